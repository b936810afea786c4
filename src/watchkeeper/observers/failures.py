"""What one tool call says about failing: whether it failed, of which kind, and which things it named.

A call failed if its tool reported that, or if its result says so although the tool reported a success: an error object,
an error in the first or last line of a short answer, an exit code. What is no failure: a search without hits, exit code
1 without a message, the red verdict of a check.

Everything is computed from one call alone and kept by its fingerprint, so that no call is read twice. Of a long result
only its beginning and its end are read. Tools are known by what they do, never by their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from watchkeeper.observers.actions import (
    ARGUMENT_CHARS,
    ARGUMENTS,
    COMMAND_KEYS,
    THINGS,
    asked,
    keep,
    named,
    program,
    things_in,
)
from watchkeeper.prompt.trajectory import CallDigest
from watchkeeper.tools.context import ToolInvoked, error_message, is_success

Outcome = Literal["succeeded", "failed", "neither"]

FIRST_CHARS: Final = 700
LAST_CHARS: Final = 300
"""How much of a longer result is read."""

SHORT: Final = 600
"""An answer of at most so many characters may be a refusal as a whole; a longer one tells something."""


# --- did it fail? -----------------------------------------------------------------------------------------------------

OPENING: Final = re.compile(
    r"(?:[\[(<*!❌⚠✗✖\s-]*)(?:\d[\d:.,tz/+ -]{6,30}\W*)?"
    r"(?!errors?[ _-]?(?:rate|handling|handler|log|count|budget|free|margin|bar|page|codes?\b)|"
    r"errors?\s*[:=]\s*(?:none|no\b|0))"
    r"(?:(?:error|err|fatal|failed|failure|fault|exception|critical|denied|refused|rejected|forbidden|unauthori[sz]ed|"
    r"aborted|abort|fehler|fehlgeschlagen|erreur|échec|refusé|errore|fallo|fout|feil|sorry|traceback|panic|rejection|"
    r"nak|nack|nok|cannot|can't|can not|could not|couldn't|unable to|not (?:allowed|permitted|authori[sz]ed|accepted|"
    r"possible|saved|filed|"
    r"done|sent|written|applied|created|executed)|(?:permission|access|operation|request|command|connection|"
    r"authentication|login|call|action|upload|write|transaction|zugriff|accès)\b[^.\n]{0,30}?"
    r"\b(?:denied|refused|failed|rejected|forbidden|timed out|not permitted|aborted|verweigert|refusé)|"
    r"(?:invalid|illegal|unknown|unrecogni[sz]ed|unsupported)(?=\W+\w)|too many requests|quota|rate limit)\b"
    r"|[a-z_.]*(?:error|exception)\b|(?:http(?:/[\d.]+)? ?)?(?:status:? ?)?[45]\d\d\b(?=\s*[\w:-]*[a-z]|$)|"
    r"e[a-z]*\d{2,6}\b"
    r"|[a-z]{2,8}[-_]?\d{3,6}\b[^\n]{0,60}\b(?:error|not|unable|denied|exceed|fail|invalid|no|refused))"
)
"""How the first line of a refusal begins, in lower case."""

MESSAGE: Final = re.compile(
    r"^[\w./@-]{1,40}(?:\[\d+\])?: (?:.{0,120}: )?(?:error\b|fatal\b|permission denied|no such|command not found|"
    r"not found|cannot "
    r"|can't |could not|operation not permitted|connection (?:refused|reset|timed out)|access denied|"
    r"device or resource "
    r"busy|no space left|read-only|authentication|unable|failed|not (?:a |an |authori|permitted|allowed)|unrecogni|"
    r"invalid|"
    r"unknown|timed out|disk quota)"
    r"|: (?:permission denied|no space left on device|command not found|connection (?:refused|timed out|reset\b.*)|"
    r"operation not permitted|no route to host|no such (?:file or directory|host)|access denied|unauthorized|"
    r"forbidden)\W*$"
    r"|^[\w.]*[a-z](?:error|exception): |^[\w-]+ err(?:or)?[!:]"
)
"""A line that a program writes when it fails, in lower case."""

STRUCTURED: Final = re.compile(
    r"<(?:error|fault|exception|soap:fault)\b|<status>\s*(?:error|denied|refused|failed|rejected)|"
    r"<\w+[^>]*\b(?:status|result|"
    r"code)=['\"](?:error|fail|denied|refused|rejected|[45]\d\d)|"
    r'^[\s{]*"(?:error|fault)"\s*:\s*(?!null|false|""|\[\s*\]|\{\s*\}|\d)|^[\s{]*"(?:ok|success)"\s*:\s*false'
)
"""An error at the beginning of an answer that has fields, in lower case."""

NAMED: Final = re.compile(
    r"(?:ok|success|accepted)\s*[:=]\s*(?:false|no)\b|"
    r"(?:status|result|outcome)\s*[:=]\s*(?:error|denied|refused|rejected|failed|[45]\d\d)\b"
)
"""A line of an answer with a name and a value in each."""

SENTENCE: Final = re.compile(
    r"\byou (?:do not have|don't have|are not|cannot|can't|may not|must (?:first|log|sign|read))|\b(?:token|session|"
    r"credentials?|"
    r"licen[cs]e|certificate|password|key)\b.{0,24}\b(?:expired|invalid|revoked|wrong)|\b(?:permission|"
    r"access)\b.{0,30}\b(?:"
    r"denied|refused|restricted)|\b(?:quota|limit|allowance)\b.{0,24}\b(?:exceeded|reached|exhausted|used up)|"
    r"no space left|"
    r"\b(?:disk|volume|storage)\b.{0,12}\bfull\b|too many requests|not (?:authori[sz]ed|permitted|allowed)\b|\b(?:is|"
    r"are|was|"
    r"were|been) (?:refused|rejected|denied|not (?:available|reachable|permitted|accepted))|\b(?:refused|rejected|"
    r"denied)(?: by|:| because| -)|verweigert|denegado|refusée?\b|geweigerd|abgelehnt|abgelaufen|nicht (?:erlaubt|"
    r"zulässig|möglich)|interdit|отказано|ошибка|\b(?:could|can) ?not be\b|"
    r"insufficient |\bsorry\b|\b(?:mailbox|inbox|queue|tank|drive) is full|\bfailed to\b|try again later|not accepted|"
    r"no (?:permission|rights?)\b|unauthori[sz]ed|forbidden|connection refused"
)
"""What a short answer in a sentence says that refuses something, in lower case."""

ONE_SENTENCE: Final = 240
LISTED: Final = re.compile(r"[\w./\\-]+:\d+[:-]")
"""How a line of a file begins that a search found."""

ENDED: Final = re.compile(
    r"^\W*(?:(?:command|process|program)\s+)?(?:exit(?:ed)?(?:\s+with)?(?:[ _-]?(?:code|status))?|status|"
    r"return[ _]?code|"
    r"rc|code|\?)\W{0,3}(?<!\d)([0-2]?\d?\d)(?:\W*$|[\s,;|)\]]+(?:\w+\s*[=:]\s*[\w.]+(?:[\s,;)\]]+|$))*$)",
    re.MULTILINE,
)
"""The line that tells the exit code."""

CODE_FIELD: Final = re.compile(r'"(?:exit_?(?:code|status)?|return_?code|rc|exitcode)"\s*:\s*(\d{1,3})\b')

VERDICT: Final = re.compile(
    r"(?<![\d.])(?!0*[45]\d\d [ef])\d+ (?:(?:tests?|checks?|cases?|specs?|assertions?|new|more|type|syntax|lint\w*|"
    r"files?|"
    r"rules?) )?(?:failed|passed|failing|passing|failures?|errors?|problems?|warnings?|violations?|mismatch(?:es)?)\b"
    r"|^[^\S\n]*(?:failed|fail|not ok|--- fail:?|✗|✘|✕|red)\s+(?!to\b|because|with\b)[\w./-]*[/_:.\d]"
    r"|\bassert|\bexpected:? [^\s,;]*\d|\bexpected .{1,60}\b(?:but (?:was|got)|actual)|\b(?:failed|failures|errors|"
    r"passed)\"?\s*[:=]\s*\d{1,3}\b(?!\s+[a-z])"
    r"|^[^\s:]+[:(]\d+(?:[:,]\d+)?\)?:? (?:error|warning|fatal error|note)|\b(?:test|spec|check|"
    r"lint)[\w ]{0,20}(?:failed|red)\b"
    r"|\w:? failed:? (?:expected|at line|assert|in \w+ \d)|\d (?:of|/) ?\d+ (?:tests|checks|passed|failed|ok)",
    re.MULTILINE,
)
"""What a check says of what it checked, in lower case."""

NO_VERDICT: Final = re.compile(
    r"no module named|modulenotfound|command not found|cannot find (?:module|package)|no space left|permission denied|"
    r"connection refused|could not connect|not installed|unauthori[sz]ed|quota exceeded|too many requests"
)
"""What keeps a check from checking."""

NO_HITS: Final = re.compile(
    r"\b(?:no|0|zero) (?!such)(?:\w+ )?(?:match(?:es|ing)?|results?|hits?|entry|entries|records?|rows?|documents?|"
    r"items?|"
    r"occurrences?)\b|\bnothing (?:was )?(?:found|matched|to show)|no files? (?:found|match)|\b(?:keine treffer|aucun "
    r"r[ée]sultat|sin resultados)"
)
ERRORLIKE: Final = re.compile(r"error|denied|refused|failed|exception|cannot|could not|unable|fatal|unauthori|expired")


class Reading(NamedTuple):
    """What a result says: how the call came out, and the message if it failed (in lower case, without wrapping)."""

    outcome: Outcome
    message: str = ""


_READ: dict[tuple[int, bool], Reading] = {}
_FAILURES: dict[tuple[int, bool], Failure] = {}


def reading(call: CallDigest, invoked: ToolInvoked) -> Reading:
    """Return how a call came out.

    Args:
        call: Its digest.
        invoked: The call itself.
    """
    key = call.kind, call.success
    known = _READ.get(key)
    if known is None:
        known = keep(_READ, key, _read(invoked))
    return known


def _read(invoked: ToolInvoked) -> Reading:
    text, succeeded = invoked.rendered_output, is_success(invoked)
    if len(text) > FIRST_CHARS + LAST_CHARS and (succeeded or len(text) > LONGEST):
        text = f"{text[:FIRST_CHARS]}\n{text[-LAST_CHARS:]}"
    text = text.lower()
    said = error_message(invoked)
    if said and said[:FIRST_CHARS].lower() not in text:
        text = f"{said[:FIRST_CHARS].lower()}\n{text}"
    text = _without_command(text, invoked.params)
    code, body = _without_code(text)
    if succeeded and not code and not _says_error(body):
        return SUCCEEDED
    body = ENVELOPE.sub("", body).strip()
    if _is_no_failure(code, body) or _asks_whether(code, body, invoked.params):
        return NEITHER
    return Reading("failed", body[:FIRST_CHARS] or invoked.outcome)


SUCCEEDED: Final = Reading("succeeded")
NEITHER: Final = Reading("neither")


def _says_error(body: str) -> bool:
    """Whether a result says that what was asked was refused or went wrong, although the tool reported no failure."""
    if FIELDS.match(body):
        fields = _decoded(body)
        return _tells_error(fields) if fields else STRUCTURED.search(body, 0, 200) is not None
    lines = [line[:LINE] for line in body.splitlines() if line.strip()]
    if not lines:
        return False
    first, ends = lines[0], [line for line in lines[-2:] if len(lines) == 1 or not line[:4].isdigit()]  # no log
    if len(body) > SHORT:
        is_error = first.startswith("traceback") or _is_message(ends)
        return OPENING.match(first) is not None and is_error
    if OPENING.match(first) or _is_message((first, *ends)) or any(NAMED.match(line) for line in lines[:FEW]):
        return True
    if LISTED.match(first):
        return False
    if len(lines) < FEW and any(
        PROGRAM.match(line) and any(pattern.search(line) for _, pattern in STRONG) for line in ends
    ):
        return True
    return len(body) <= ONE_SENTENCE and len(lines) < FEW and SENTENCE.search(body) is not None


def _is_message(lines: Sequence[str]) -> bool:
    return any((": " in line or " err" in line) and MESSAGE.search(line) for line in lines)


LINE: Final = 300
FEW: Final = 3
"""So much of a line is read; and an answer of fewer lines may be a sentence."""

FIELDS: Final = re.compile(r"[{<]|\[\s*[{\[\"]")
"""How an answer with fields begins."""

OK_FIELD: Final = re.compile(r"^(?:ok|success|succeeded|successful|accepted|applied|granted|allowed|permitted)$")
ERROR_FIELD: Final = re.compile(
    r"^(?:error|err|fault|exception|failure|errors|error_?(?:code|message|msg|type|reason|detail)|err_?(?:code|msg))$"
)
CODE_NAME: Final = re.compile(r"^(?:status|code|status_?code|http|http_?(?:status|code))$")
STATE_NAME: Final = re.compile(r"^(?:status|state|result|outcome|type|level|kind|severity|verdict|response|ack)$")
REFUSAL: Final = re.compile(
    r"^(?:error|err|denied|refused|rejected|forbidden|unauthori[sz]ed|fault|nok|ko|nak|invalid|failure|"
    r"(?:permission|access)[ _]denied)$"
)
EMPTY: Final = (None, False, "", "none", "no", "null", "0", "ok")
DEPTH: Final = 3


def _decoded(text: str) -> dict[str, Any]:
    """Return the fields of an answer; none if it is no whole JSON object."""
    try:
        fields = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def _tells_error(fields: dict[str, Any], depth: int = DEPTH) -> bool:
    """Whether the fields of an answer tell an error; lists of things with states of their own are content."""
    for name, value in islice(fields.items(), ARGUMENTS):
        if OK_FIELD.match(name) and value in (False, 0, "false", "no"):
            return True
        if ERROR_FIELD.match(name):
            if isinstance(value, str | dict) and value and value not in EMPTY:
                return not _is_state(fields)
            if (
                name == "errors"
                and isinstance(value, list)
                and value
                and not {"warnings", "passed", "failed"} & set(fields)
            ):
                return True
        elif (
            (isinstance(value, int) and 400 <= value < 600 and CODE_NAME.match(name))
            or (isinstance(value, str) and STATE_NAME.match(name) and REFUSAL.match(value))
            or (isinstance(value, dict) and depth > 1 and _tells_error(cast("dict[str, Any]", value), depth - 1))
        ):
            return True
    return False


def _is_state(fields: dict[str, Any]) -> bool:
    """Whether an answer tells the state of something that failed, which is not a failure of asking."""
    return any(
        name in ("status", "state", "phase") and value in ("failed", "cancelled", "canceled", "dead", "lost", "crashed")
        for name, value in fields.items()
    )


def _asks_whether(code: int | None, body: str, params: Any) -> bool:
    """Whether a call asks whether something works, is there or is equal, so that a "no" is no failure."""
    for name, value in islice(named(params), ARGUMENTS):
        if isinstance(value, str):
            if CHECK.search(value[:ARGUMENT_CHARS]) and KEPT_FROM.search(body) is None:
                return True
            if code in (None, 1) and COMMAND_KEYS.search(name) and program(value[:ARGUMENT_CHARS])[:1] in COMPARING:
                return ERRORLIKE.search(body) is None
    return False


COMPARING: Final = [[name] for name in ("diff", "cmp", "grep", "egrep", "rg", "test", "which", "comm", "pgrep", "[")]
"""Programs that end with 1 to say no."""


def _is_no_failure(code: int | None, body: str) -> bool:
    """Whether what looks like a failure is only the answer to a question."""
    if code == 1 and not body:
        return True
    if VERDICT.search(body):
        return NO_VERDICT.search(body) is None or "passed" in body
    return len(body) <= SHORT and NO_HITS.search(body) is not None and ERRORLIKE.search(body) is None


def _without_command(text: str, params: Any) -> str:
    """Return a result without the command line that it repeats."""
    if text[:2] not in ("$ ", "> ", "+ ", "# "):
        return text
    for _, value in islice(named(params), ARGUMENTS):
        if isinstance(value, str) and value and text[2:].startswith(value[:LONGEST].lower()):
            return text[2 + len(value) :]
    return text


def _without_code(text: str) -> tuple[int | None, str]:
    """Return the exit code that a result tells, None if it tells none, and what else it says."""
    text, code = text.strip(), None
    if text.startswith("{"):
        field = CODE_FIELD.search(text)
        code = int(field[1]) if field else None
        text = _unwrapped(text, has_code=code is not None)
    if not FIELDS.match(text):
        lines = text.splitlines()
        for place in {0, 1, len(lines) - 2, len(lines) - 1}:
            found = ENDED.match(lines[place]) if 0 <= place < len(lines) else None
            if found is not None and (int(found[1]) < 200 or "exit" in found[0]):
                code, lines[place] = int(found[1]), ""
        text = "\n".join(lines) if code is not None else text
    return code, text.strip()


def _unwrapped(text: str, *, has_code: bool) -> str:
    """Return what a program wrote, if a result with fields is only the wrapping of that; else the result."""
    fields = _decoded(text)
    if not fields or (not has_code and _tells_error(fields)):
        return text
    written: list[str] = []
    for name, value in fields.items():
        if not WRITTEN.search(name):
            continue
        lines = cast("Sequence[Any]", value) if isinstance(value, list) else (value,)
        written += [line for line in lines if isinstance(line, str)]
    return "\n".join(written).strip() if written or has_code else text


ENVELOPE: Final = re.compile(
    r"^[^\w\n]*(?:stdout|stderr|output)[^\w\n]*$|"
    r"^[^\w\n]*(?:rc|took|elapsed|duration|time|done)\b[ \w:=]*?(?<![\d.])[\d.]+ ?(?:ms|s)[^\w\n]*$",
    re.MULTILINE,
)
WRITTEN: Final = re.compile(r"^(?:std_?out|std_?err|output|out|err|text|lines|body|content|response|result|log)$")
LONGEST: Final = 4200
"""Longer results are read at their beginning and their end only."""

CHECK: Final = re.compile(
    r"(?i:/(?:health\w*|ready\w*|livez?|liveness|readiness|ping|heartbeat)(?![\w=])|\b(?:health|healthz|health-?check|"
    r"self-?test|"
    r"liveness|readiness|probe)\b)"
)
"""What stands in the arguments of a call that asks whether something works."""

KEPT_FROM: Final = re.compile(
    r"denied|forbidden|unauthori|expired|no space|quota|too many|not found|no such|could not resolve|no route|"
    r"cannot connect|permission|login|credential"
)
"""What keeps such a call from an answer."""

PROGRAM: Final = re.compile(r"^\W*[a-z][\w.@-]{1,30}(?: [\w-]+)?: \S")
"""How a program begins what it says."""


# --- what went wrong? -------------------------------------------------------------------------------------------------

Class = Literal[
    "", "tool", "dependency", "disk", "login", "rights", "quota", "network", "lock", "conflict", "missing", "interface"
]

STRONG: Final[tuple[tuple[Class, re.Pattern[str]], ...]] = tuple(
    (cast("Class", name), re.compile(pattern))
    for name, pattern in {
        "tool": r"unknown tool|no (?:such )?tool\b|tool .{0,40}(?:not (?:found|available)|does not exist)|unknown_tool",
        "dependency": r"no such module|shared object|not on (?:the )?path|undefined symbol|"
        r"is missing from the environment|(?:package|module|library|plugin|driver|dependency) .{0,40}(?:not found|"
        r"missing|unavailable|not available|not loaded)|"
        r"no module named|modulenotfound|command not found|not installed|is not recogni[sz]ed as|"
        r"cannot find "
        r"(?:module|package)|importerror|missing (?:dependenc|librar|package)|unable to locate package|shared librar|"
        r"unmet dependenc|could not find a version|no matching distribution|executable .{0,40}not found|"
        r"unresolved import|: not found$",
        "disk": r"could not extend|unable to extend|errno 28|speicher .{0,12}voll|festplatte voll|disque plein|"
        r"disco lleno|"
        r"no space|disk (?:is )?full|disk quota|enospc|out of (?:disk|space)|(?:volume|storage|device|"
        r"filesystem|"
        r"partition|tablespace) .{0,24}(?:is )?full|insufficient (?:disk|storage)|not enough (?:disk|space|storage)",
        "login": r"invalid_grant|\bjwt\b|\boauth\b|kerberos|no credentials|abgelaufen|nicht angemeldet|expirée?\b|"
        r"caducad|no autenticad|"
        r"unauthori[sz]ed|unauthenticated|authentication|(?:token|credential|session|password|certificate|"
        r"api.?key|"
        r"licen[cs]e|ticket|grant|signature|secret|login|cookie)s?\b.{0,40}(?:expired|invalid|revoked|rejected|"
        r"not (?:accepted|valid)|missing|required|wrong|bad|unknown|mismatch|stale|abgelaufen)|(?:expired|invalid|"
        r"revoked|bad|"
        r"wrong|stale|missing)\b.{0,24}(?:token|credential|session\b|password|certificate|api.?key|licen[cs]e|ticket|"
        r"signature|secret|login|user name)|(?:log|sign) ?in (?:first|again|required)|please (?:log|sign)|"
        r"session .{0,24}(?:over|ended|closed|timed)|not (?:logged|signed) in",
        "rights": r"(?:scope|role|permission|privilege|right|grant)s?\b.{0,40}(?:missing|required|insufficient|"
        r"lacking|needed|not granted)|"
        r"errno 13\b|\berofs\b|write.protected|immutable|clearance|not the owner|keine berechtigung|"
        r"denegado|refusée?\b|geweigerd|nekad|droits insuffisants|отказано|requires? (?:the )?(?:\w+ )?(?:role|"
        r"approval|sign-off|privilege)|"
        r"permission|access ?denied|forbidden|not (?:authori[sz]ed|entitled|allowed to|permitted)|may not|"
        r"insufficient[ _](?:privilege|permission|scope|right|role)|read-?only|\beacces\b|\beperm\b|verweigert|"
        r"accès refus|lacks? "
        r"(?:the )?(?:\S+ )?(?:role|right|permission|privilege|scope|grant)|access .{0,30}denied|denied by (?:policy|"
        r"acl)",
        "quota": r"used up|kontingent|überschritten|dépassé|excedid|allowance|exhausted|"
        r"too many requests|rate.?limit|throttl|slow down|quota|limit (?:is |was )?(?:exceeded|reached|hit)|"
        r"exceed(?:s|ed|ing)? .{0,40}(?:limit|allowance|budget)|out of credit|insufficient (?:funds|credit|balance)|"
        r"payment required|budget .{0,20}(?:exhausted|used up)|no .{0,24}credits? left|credits? .{0,16}exhausted",
        "lock": r"locked|reserved by|another (?:process|instance|session|user|transaction)|in use\b|checked out|"
        r"gesperrt|verrouill|bloquead|"
        r"\block(?:s|ed|ing)?\b|deadlock|\bbusy\b|in use by|held by|ebusy|checked out by|being edited by|"
        r"already (?:running|in progress)",
        "network": r"errno 11[01]\b|getaddrinfo|nxdomain|servfail|socket (?:error|closed|hang)|nicht erreichbar|"
        r"injoignable|inaccesible|"
        r"connection (?:was )?(?:refused|reset|timed|aborted|closed|lost|failed)|could not (?:resolve|"
        r"translate|"
        r"connect|reach)|(?:can|could) ?n[o']t (?:connect|reach|resolve)|unreachable|no route|"
        r"name (?:or service )?(?:resolution|"
        r"not known)|\beconn|\betimedout|\benotfound|unknown host|host not found|bad gateway|service unavailable|"
        r"gateway time|"
        r"timed? ?-?out\b|upstream|temporarily|offline|handshake|broken pipe|not responding|no response|"
        r"failed to connect|"
        r"network (?:is )?(?:down|error)|no carrier|link down",
    }.items()
)
WEAK: Final[tuple[tuple[Class, re.Pattern[str]], ...]] = tuple(
    (cast("Class", name), re.compile(pattern))
    for name, pattern in {
        "conflict": r"already exists|duplicate|conflict|version mismatch|out of date|stale|precondition",
        "interface": r"\b(?:integer|number|string|boolean|date|array|object|list|float|digits|letters) expected|"
        r"(?:unknown|no such|unexpected|unrecogni[sz]ed|unsupported|undefined|invalid|illegal|bad|"
        r"missing|required)"
        r" (?:required )?(?:\w+ )?(?:option|argument|field|parameter|param|column|method|property|attribute|key|"
        r"keyword|"
        r"function|flag|operation|enum|value|type|format|unit|element|endpoint|syntax|token|property)s?\b|(?:column|"
        r"field|"
        r"function|method|attribute|property|parameter|argument|operator).{0,60}(?:does not exist|not found|unknown|"
        r"required|"
        r"missing|is not defined|has no)|expected .{1,60}(?:got|found|received)|must (?:be|have|not|match|contain|"
        r"start|"
        r"include)|syntax error|parse error|malformed|unprocessable|schema|validation|not a valid|is required|"
        r"bad request|typeerror|attributeerror|unmarshal|cannot (?:parse|convert|deserialize)|wrong type|usage:",
        "missing": r"not found|no such|does not exist|doesn't exist|notfound|unknown|no entry|enoent|cannot find|"
        r"nonexistent|is missing|nicht gefunden|introuvable|no (?:file|record|user|object) ",
    }.items()
)
OF_CODE: Final[Mapping[str, Class]] = {
    **dict.fromkeys(("401", "407"), "login"),
    "403": "rights",
    **dict.fromkeys(("402", "429"), "quota"),
    **dict.fromkeys(("408", "502", "503", "504"), "network"),
    **dict.fromkeys(("404", "410"), "missing"),
    **dict.fromkeys(("409", "412"), "conflict"),
    **dict.fromkeys(("400", "405", "406", "415", "422"), "interface"),
    "423": "lock",
    "507": "disk",
}
HTTP_CODE: Final = re.compile(
    r"(?<![\w./#:=-])(?<!line )(?<!row )(?<!id )([45]\d\d)(?![\w./-]*\w)|[\"=:]\s*([45]\d\d)\b"
)
OWN_CODE: Final = re.compile(
    r"(?:^|[(\[\"']|code\W{1,4}|err(?:or)?\W{1,3})([a-z]{1,8}[_-]?\d{2,6})(?=[)\]\"':,.\s]|$)|"
    r"\b([a-z]+(?:_[a-z0-9]+)*_(?:error|denied|"
    r"exceeded|failed|invalid|required|expired|missing|exhausted|unavailable|timeout|not_[a-z]+|no_[a-z]+))\b"
)
LABEL: Final = re.compile(
    r'"[\w. -]{1,40}"\s*:(?!//)|^x-[\w-]+:.*$|^http/[\d.]+|^\w+[-_](?:id|type|length|at|by|code|ref)\s*[:=].*$',
    re.MULTILINE,
)
"""Names of fields and headers."""

QUOTED: Final = re.compile(r"(?<!\w)'(\w{2,60})'|\"(\w{2,60})\"")
NAMED_THING: Final = re.compile(r"(?<!\w)'[^'\s]*'|`[^`\s]*`|\"[^\"\s]*\"|[\w.~-]*[/\\](?!1\.)[\w./\\~-]+")
"""Names, whose words say nothing of what went wrong."""

WORD: Final = re.compile(r"[^\W\d_]{3,}")
PASSING: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|\S*[/\\]\S+|\b(?=\w*\d)[\w.:-]+|\{|\}")


class Failure(NamedTuple):
    """A failed call.

    Attributes:
        action: See `Asked`.
        asked: The things among its arguments.
        told: The things that its message names.
        group: The class of what went wrong, empty if it is none of the common ones.
        codes: Codes of its own that the message gives, other than those of HTTP.
        words: The words of the message, without names, paths, ids and numbers.
        values: See `Asked`.
        parts: The words of what was asked that the message quotes.
    """

    action: str
    asked: frozenset[str]
    told: frozenset[str]
    group: Class
    codes: frozenset[str]
    words: frozenset[str]
    values: int
    parts: frozenset[str]

    def same_as(self, other: Failure) -> bool:
        """Return whether the same was asked for in the same words."""
        return self.action == other.action and self.values == other.values


def failure(call: CallDigest, invoked: ToolInvoked) -> Failure:
    """Return what is to be known of a call that failed.

    Args:
        call: Its digest.
        invoked: The call itself, whose `reading` is ``failed``.
    """
    key = call.kind, call.success
    known = _FAILURES.get(key)
    if known is None:
        message = reading(call, invoked).message
        action, things, values, _, asked_for = asked(call, invoked)
        plain = LABEL.sub(" ", message)
        plain = plain.replace('"', " ") if message[:1] in "{[" else plain  # there names stand in quotes, too
        parts = frozenset(one or other for one, other in QUOTED.findall(message.replace('\\"', "'"))) & asked_for
        told = frozenset(things_in(plain)[:THINGS])
        codes = frozenset(one or other for one, other in OWN_CODE.findall(message)[:FEW])
        words = frozenset(WORD.findall(PASSING.sub(" ", message)))
        group: Class = "tool" if invoked.outcome == "unknown_tool" else classed(NAMED_THING.sub(" ~ ", plain))
        known = keep(_FAILURES, key, Failure(action, things, told, group, codes, words, values, parts))
    return known


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
