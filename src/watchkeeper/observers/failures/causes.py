"""Of what cause a tool call failed, by the words, codes and names of its message.

A message has a class (rights, quota, disk, network, a lock ...), if it is one of the common ones, and names things. Two
failures of one class, or that name one thing, may have one cause; `cascade` says which have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, cast

from watchkeeper.observers.questions import THINGS, stem, things_in, words_of

CODES: Final = 3
"""How many codes of one message are read."""


Class = Literal[
    "", "tool", "dependency", "disk", "login", "rights", "quota", "network", "lock", "conflict", "missing", "interface"
]


class Failure(NamedTuple):
    """A failed call.

    Attributes:
        told: The things that its message names.
        group: The class of what went wrong, empty if it is none of the common ones.
        codes: Codes of its own that the message gives, other than those of HTTP.
        words: The words of the message, without names, paths, ids and numbers.
        says: The stems of those that say something of the cause, and were not among the arguments.
        quoted: The words that the message quotes.
    """

    told: frozenset[str]
    group: Class
    codes: frozenset[str]
    words: frozenset[str]
    says: frozenset[str]
    quoted: frozenset[str]


STRONG: Final[tuple[tuple[Class, re.Pattern[str]], ...]] = tuple(
    (cast("Class", name), re.compile(pattern))
    for name, pattern in {
        "tool": r"unknown tool|no (?:such )?tool\b|tool .{0,40}(?:not (?:found|available)|does not exist)|unknown_tool",
        "dependency": r"no such module|no package called|(?:has|have) to be installed|must be installed|shared object"
        r"|not on (?:the )?path|undefined symbol|is missing from the environment|(?:package|module|library|plugin"
        r"|driver|dependency) .{0,40}(?:not found|missing|unavailable|not available|not loaded)|no module named"
        r"|modulenotfound|command not found|not installed|is not recogni[sz]ed as|cannot find (?:module|package)"
        r"|importerror|missing (?:dependenc|librar|package)|unable to locate package|shared librar|unmet dependenc"
        r"|could not find a version|no matching distribution|executable .{0,40}not found|unresolved import"
        r"|: not found$",
        "disk": r"could not extend|0 bytes free|of its capacity|at capacity|unable to extend|errno 28"
        r"|speicher .{0,12}voll|festplatte voll|disque plein|disco lleno|no space|disk (?:is )?full|disk quota|enospc"
        r"|out of (?:disk|space)|(?:volume|storage|device|filesystem|partition|tablespace) .{0,24}(?:is )?full"
        r"|insufficient (?:disk|storage)|not enough (?:disk|space|storage)",
        "login": r"(?:expired|invalid|revoked)_?(?:token|grant|credential|session|signature|certificate|licen[cs]e)"
        r"|(?:user|account)s? (?:is |has been |was )?(?:suspended|blocked|disabled|closed"
        r"|inactive)|sign-?in has|lapsed|deactivated|logon|login failed|\bjwt\b|\boauth\b|kerberos|no credentials"
        r"|abgelaufen|nicht angemeldet|expirée?\b|caducad|no autenticad|unauthori[sz]ed|unauthenticated|authentication"
        r"|(?:token|credential|session|password|certificate|api.?key|licen[cs]e|ticket|grant|signature|secret|login"
        r"|cookie)s?\b.{0,40}(?:expired|invalid|revoked|rejected|not (?:accepted|valid)|missing|required|wrong|bad"
        r"|unknown|mismatch|stale|abgelaufen|no longer)|(?:expired|invalid|revoked|bad|wrong|stale"
        r"|missing)\b.{0,24}(?:token"
        r"|credential|session\b|password|certificate|api.?key|licen[cs]e|ticket|signature|secret|login|user name)"
        r"|(?:log|sign) ?in (?:first|again|required)|please (?:log|sign)|session .{0,24}(?:over|ended|closed|timed)"
        r"|not (?:logged|signed) in",
        "rights": r"view-only|restricted\b|access list|screened|only the owner|need the role|(?:limited|restricted) to"
        r"|embargo|legal hold|not a member|ask your admin|(?:scope|role|permission|privilege|right"
        r"|grant)s?\b.{0,40}(?:missing|required|insufficient|lacking|needed|not granted)|errno 13\b|\berofs\b"
        r"|write.protected|immutable|clearance|not the owner|keine berechtigung|denegado|refusée?\b|geweigerd|nekad"
        r"|droits insuffisants|отказано|requires? (?:the )?(?:\w+ )?(?:role|approval|sign-off|privilege)|permission"
        r"|access ?denied|forbidden|not (?:authori[sz]ed|entitled|allowed to|permitted)|may not"
        r"|insufficient[ _](?:privilege|permission|scope|right|role)|read-?only|\beacces\b|\beperm\b|verweigert"
        r"|accès refus|lacks? (?:the )?(?:\S+ )?(?:role|right|permission|privilege|scope|grant)|access .{0,30}denied"
        r"|denied by (?:policy|acl)",
        "quota": r"used up|(?:mailbox|inbox) .{0,12}full|mailbox full|no (?:free |more |remaining )?licen[cs]"
        r"|licensed number|maximum number|cap hit|over (?:budget|quota)|nothing left|too many|used all|come back"
        r"|kontingent|überschritten|dépassé|excedid|allowance|exhausted|too many requests|rate.?limit|throttl"
        r"|slow down|quota|limit (?:is |was )?(?:exceeded|reached|hit)|exceed(?:s|ed|ing)? .{0,40}(?:limit|allowance"
        r"|budget)|out of credit|insufficient (?:funds|credit|balance)|payment required|budget .{0,20}(?:exhausted"
        r"|used up)|no .{0,24}credits? left|credits? .{0,16}exhausted",
        "lock": r"locked|is editing|being (?:edited|rebuilt|used)|held by|index\.lock|reserved by|another (?:process"
        r"|instance|session|user|transaction)|in use\b|checked out|gesperrt|verrouill|bloquead|\block(?:s|ed|ing)?\b"
        r"|deadlock|\bbusy\b|in use by|held by|ebusy|checked out by|being edited by|already (?:running|in progress)",
        "network": r"errno 11[01]\b|\bdns\b|connection to .{1,60}? (?:lost|refused|reset|closed|failed|timed)"
        r"|no connection|shutting down|not (?:reachable"
        r"|responding)"
        r"|(?:database|server|service|host|backend|gateway|node) (?:is )?(?:currently )?(?:not available|down)"
        r"|n[o']t (?:answer|respond)|no (?:reply|answer)|disconnect|max retries|tunnel|gone away|getaddrinfo|nxdomain"
        r"|servfail|socket (?:error|closed|hang)|nicht erreichbar|injoignable|inaccesible"
        r"|connection (?:was )?(?:refused|reset|timed|aborted|closed|lost|failed)|could not (?:resolve|translate"
        r"|connect|reach)|(?:can|could) ?n[o']t (?:connect|reach|resolve)|unreachable|no route"
        r"|name (?:or service )?(?:resolution|not known)|\beconn|\betimedout|\benotfound|unknown host|host not found"
        r"|bad gateway|service unavailable|gateway time|timed? ?-?out\b|upstream|temporarily|offline|handshake"
        r"|broken pipe|not responding|no response|failed to connect|network (?:is )?(?:down|error)|no carrier"
        r"|link down",
    }.items()
)
WEAK: Final[tuple[tuple[Class, re.Pattern[str]], ...]] = tuple(
    (cast("Class", name), re.compile(pattern))
    for name, pattern in {
        "conflict": r"already (?:exists|taken|booked|in use)|duplicate|conflict|version mismatch|out of date|stale"
        r"|precondition",
        "interface": r"unexpected (?:keyword|argument)|\bwant(?:s|ed) |did you mean|n[o']t understand|was retired"
        r"|switched off|undefined header|use \S+ instead|\b(?:integer|number|string|boolean|date|array|object|list"
        r"|float|digits|letters) expected|(?:unknown|no such|unexpected|unrecogni[sz]ed|unsupported|undefined|invalid"
        r"|illegal|bad|missing|required) (?:required )?(?:\w+ )?(?:option|argument|field|parameter|param|column|method"
        r"|property|attribute|key|keyword|function|flag|operation|enum|value|type|format|unit|element|endpoint|syntax"
        r"|token|property)s?\b|(?:column|field|function|method|attribute|property|parameter|argument"
        r"|operator).{0,60}(?:does not exist|not found|unknown|required|missing|is not defined|has no)"
        r"|expected .{1,60}(?:got|found|received)|must (?:be|have|not|match|contain|start|include)|syntax error"
        r"|parse error|malformed|unprocessable|schema|validation|not a valid|is required|bad request|typeerror"
        r"|attributeerror|unmarshal|cannot (?:parse|convert|deserialize)|wrong type|usage:",
        "missing": r"not found|no such|does not exist|doesn't exist|notfound|unknown|no entry|enoent|cannot find"
        r"|nonexistent|is missing|nicht gefunden|introuvable|no (?:file|record|user|object) ",
    }.items()
)
OF_CODE: Final[Mapping[str, Class]] = {
    code: cast("Class", name)
    for name, codes in {
        "login": "401 407", "rights": "403", "quota": "402 429", "network": "408 502 503 504", "missing": "404 410",
        "conflict": "409 412", "interface": "400 405 406 415 422", "lock": "423", "disk": "507",
    }.items()
    for code in codes.split()
}  # fmt: skip
HTTP_CODE: Final = re.compile(
    r"(?<![\w./#:=-])(?<!line )(?<!row )(?<!id )([45]\d\d)(?![\w./-]*\w)|[\"=:]\s*([45]\d\d)\b"
)
OWN_CODE: Final = re.compile(
    r"(?:^|[(\[\"']|code\W{1,4}|err(?:or)?\W{1,3})([a-z]{1,8}[_-]?\d{2,6})(?=[)\]\"':,.\s]|$)"
    r"|\b([a-z]+(?:_[a-z0-9]+)*_(?:error|denied|exceeded|failed|invalid|required|expired|missing|exhausted|unavailable"
    r"|timeout|not_[a-z]+|no_[a-z]+))\b"
)
LABEL: Final = re.compile(
    r'"[\w. -]{1,40}"\s*:(?!//)|^x-[\w-]+:.*$|^http/[\d.]+|^\w+[-_](?:id|type|length|at|by|code|ref)\s*[:=].*$',
    re.MULTILINE,
)
"""Names of fields and headers."""

TAG: Final = re.compile(r"</?[\w:]{1,40}>")

QUOTED: Final = re.compile(r"(?<!\w)'(\w{2,60})'|\"(\w{2,60})\"")
NAMED_THING: Final = re.compile(r"(?<!\w)'[^'\s]*'|`[^`\s]*`|\"[^\"\s]*\"|(?<![\w.~-])[\w.~-]*[/\\](?!1\.)[\w./\\~-]+")
"""Names, whose words say nothing of what went wrong."""

WORD: Final = re.compile(r"[^\W\d_]{3,}")
PLACED: Final = re.compile(r"(?<!\S)\S*[/\\]\S+|\b(?=\w*\d)[\w.:-]+|\{|\}")
PASSING: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|(?<![^\s'\"`])\S*[/\\]\S+|\b(?=\w*\d)[\w.:-]+|\{|\}")

FRAME: Final = words_of(
    "error errors err fail failed failure fails denied refused rejected forbidden invalid cannot can could not the"
    " and for was were has have had been being this that these with from are but you your please try again later"
    " would unable status code message reason cause result request response call http exception fatal bad unknown"
    " missing required must will does did don didn doesn isn because while when after before line file warning info"
    " traceback most recent last one any all its into only more now yet still already there here nothing none never"
    " allowed possible accepted valid found used use get got set run started start done made given current new old"
    " wrong wanted expected needs need user account job record document entry value server service system data page"
    " item order name number type out too many first per see than then they who what why how our their operation"
    " command action change changes"
)
"""Words that stand in refusals of any cause."""


def failure_of(message: str, *, unknown_tool: bool, echo: frozenset[str]) -> Failure:
    """Return what is to be known of a call that failed.

    Args:
        message: Of its `Verdict`.
        unknown_tool: Whether there is no such tool.
        echo: The words of its arguments.
    """
    bare = LABEL.sub(" ", TAG.sub(" ", message) if "</" in message else message)
    bare = bare.replace('"', " ") if message[:1] in "{[" else bare  # there names stand in quotes, too
    words = frozenset(WORD.findall(PASSING.sub(" ", message)))
    return Failure(
        told=frozenset(things_in(bare)[:THINGS]),
        group="tool" if unknown_tool else classed(NAMED_THING.sub(" ~ ", bare)),
        codes=frozenset(one or other for one, other in OWN_CODE.findall(message)[:CODES]),
        words=words,
        says=frozenset([stem(word) for word in frozenset(WORD.findall(PLACED.sub(" ", message))) - FRAME - echo]),
        quoted=frozenset(one or other for one, other in QUOTED.findall(message.replace('\\"', "'"))) & echo,
    )


def is_strong(line: str) -> bool:
    """Return whether the words of a line, in lower case, name a cause."""
    return any(pattern.search(line) for _, pattern in STRONG)


def classed(message: str) -> Class:
    """Return the class of what went wrong: by its words, or else by its code.

    Args:
        message: In lower case.
    """
    for name, pattern in (*STRONG, *WEAK):
        if pattern.search(message):
            return name
    for one, other in HTTP_CODE.findall(message):
        if (one or other) in OF_CODE:
            return OF_CODE[one or other]
    return ""
