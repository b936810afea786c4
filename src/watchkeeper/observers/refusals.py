"""Whether a tool call failed, and of what cause, by what its result says.

A call failed if its tool reported that, or if its result says so although the tool reported a success: an error object,
an error in the first or last line of a short answer, an exit code, or a short answer in words that says no: that
something was not done, may not be done, or cannot be done as things stand. What is no failure: a search without hits,
exit code 1 without a message, the red verdict of a check, and a "no" that answers a question. A short answer that only
tells a state which keeps things from being done ("the door is locked") is neither a failure nor a success, unless the
call was to change something.

A result in which no word of a refusal stands is not looked at any closer; of a long one only the beginning and the end
are. The words are English, with those of other languages that mean a refusal by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from watchkeeper.observers.questions import THINGS, Question, plain, stem, things_in, words_of

Outcome = Literal["succeeded", "failed", "neither"]

FIRST_CHARS: Final = 700
LAST_CHARS: Final = 300
"""How much of a longer result is read."""

LONGEST: Final = 4200
"""A longer result of a failed call is read at its beginning and its end only."""

SHORT: Final = 600
"""An answer of at most so many characters may be a refusal as a whole; a longer one tells something."""

LINE: Final = 300
FEW: Final = 3
"""So much of a line is read; an answer in words that says no has at most so many characters and lines."""

FIELDS_READ: Final = 20


class Verdict(NamedTuple):
    """What a result says: how the call came out, and the message if it failed (in lower case, without wrapping)."""

    outcome: Outcome
    message: str = ""


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


Class = Literal[
    "", "tool", "dependency", "disk", "login", "rights", "quota", "network", "lock", "conflict", "missing", "interface"
]

SUCCEEDED: Final = Verdict("succeeded")
NEITHER: Final = Verdict("neither")


# --- did it fail? -----------------------------------------------------------------------------------------------------

HINTS: Final = words_of(
    "error errors err erro fatal fail failed fails failure failures fault exception critical traceback panic abort"
    " aborted denied refused refuses rejected rejects rejection declined forbidden unauthorized unauthorised invalid"
    " illegal unknown unrecognized unrecognised unsupported unexpected undefined unable unavailable unreachable"
    " undeliverable unprocessed unsuccessful cannot can couldn didn doesn isn don won wasn aren haven not no nothing"
    " never sorry unfortunately regret afraid expired lapsed revoked deactivated suspended inactive disabled blocked"
    " locked lock held reserved busy offline full limit quota budget maximum cap throttled exhausted exceeded"
    " insufficient timeout timed reset disconnect missing required requires must need wants wanted expects expected"
    " only duplicate conflict stale malformed bad wrong mismatch killed segmentation permission access permitted"
    " allowed nok nak nack ko skipped ignored discarded dropped bounced returned retired decommissioned embargo"
    " maintenance frozen protected interlock hold screened restricted limited sign-in view-only read-only write-"
    " protected installed e-stop instead already taken violates slow subscription trial licence license denegado"
    " geweigerd verweigert abgelehnt abgelaufen gesperrt nicht plein lleno interdit impossible fehler fehlgeschlagen"
    " rechazado caducado mislukt verlopen negato scaduto"
) | frozenset(map(str, (*range(400, 430), *range(500, 512))))
"""Words of which one stands in nearly every refusal."""

HINT_PARTS: Final = (
    "error", "exception", "denied", "fail", "err_", "econn", "enot", "eacc", "etime", '": false', '":false',
    "rolled back", "used up", "used all", "out of ", "closed for", "try again", "come back", "is down", "are down",
    "in use", "is being", "checked out", "switched off", " bytes free", "please", "too many", "sqlstate",
)  # fmt: skip
"""Parts of texts of which one stands in the others."""

OPENING: Final = re.compile(
    r"(?:[\[(<*!?❌⚠✗✖\s-]*)(?:\d[\d:.,tz/+ -]{6,30}\W*)?(?!errors?[ _-]?(?:rate|handling|handler|log|count|budget|free"
    r"|margin|bar|page|codes?\b)|errors?\s*[:=]\s*(?:none|no\b|0))(?:(?:error|err|fatal|failed|failure|fault|exception"
    r"|critical|abort|fehler|fehlgeschlagen|erreur|échec|refusé|errore|fallo|fout|feil|sorry|traceback|panic|rejection"
    r"|nak|nack|nok|cannot|can't|can not|could not|couldn't|unable to|tool error|syntax error|segmentation fault"
    r"|sqlstate|msg \d+, level|unsuccessful|undeliverable|not delivered|unauthori[sz]ed|forbidden|not (?:allowed"
    r"|permitted|authori[sz]ed|accepted|possible|saved|filed|done|sent|written|applied|created|executed|processed"
    r"|stored|started)|(?:permission|access|operation|request|command|connection|authentication|login|call|action"
    r"|upload|write|transaction|zugriff|accès|acceso|toegang)\b[^.\n]{0,30}?\b(?:denied|refused|failed|rejected"
    r"|forbidden|timed out|not permitted|aborted|verweigert|refusé|denegado|geweigerd)|(?:invalid|illegal|unknown"
    r"|unrecogni[sz]ed|unsupported|unexpected)(?=\W+\w)|too many requests|quota(?!\s*[:=])|rate limit)\b|(?:denied"
    r"|refused|rejected|declined|aborted|blocked|skipped|ignored|discarded|dropped|bounced|killed)(?:\W*$"
    r"|\s*[:;(,–-](?!\s*(?:no\b|none|false|\d))|\s*\.\s|\s+(?:by|because|due|with)\b)|no:|e(?:acces|timedout|conn\w+"
    r"|notfound|perm|busy|rofs|nospc|exist|noent|mfile|pipe)\b|[a-z_.]*(?:error|exception)\b"
    r"|(?:http(?:/[\d.]+)? ?)?(?:status:? ?)?[45]\d\d\b(?=\s*[\w:-]*[a-z]|$|\s\d\.\d)|e[a-z]*\d{2,6}\b|-\d{2,4},"
    r"|[a-z]{2,8}[-_]?\d{3,6}\b[^\n]{0,60}\b(?:error|not|unable|denied|exceed|fail|invalid|no|refused))"
)
"""How the first line of a refusal begins, in lower case."""

MESSAGE: Final = re.compile(
    r"^[\w./@-]{1,40}(?:\[\d+\])?: (?:.{0,120}: )?(?:error\b|fatal\b|permission denied|no such|command not found"
    r"|not found|cannot |can't |could not|operation not permitted|connection (?:refused|reset|timed out)|access denied"
    r"|device or resource busy|no space left|read-only (?:file|v|d|p)|authentication|unable|failed|not (?:a |an "
    r"|authori|permitted|allowed)|unrecogni|invalid|unknown|timed out|disk quota|\*\*\*|[\w-]{1,9} failed)"
    r"|: (?:permission denied|no space left on device|command not found|connection (?:refused|timed out|reset\b.*)"
    r"|operation not permitted|no route to host|no such (?:file or directory|host)|access denied|unauthorized"
    r"|forbidden|not found)\W*$|^[\w.]*[a-z](?:error|exception): |^[\w-]+ err(?:or)?[!:](?! ?(?:none|0\b|no\b|-))"
    r"|^npm err|\bnt_status_(?!ok)"
)
"""A line that a program writes when it fails, in lower case."""

STRUCTURED: Final = re.compile(
    r"<(?:error|fault|exception|\w+:fault)\b|<status>\s*(?:error|denied|refused|failed|rejected)|<\w+[^>]*\b(?:status"
    r"|result|code)=['\"](?:error|fail|denied|refused|rejected|[45]\d\d)|"
    r'^[\s{]*"(?:error|fault)"\s*:\s*(?!null|false|""|\[\s*\]|\{\s*\}|\d)|^[\s{]*"(?:ok|success)"\s*:\s*false'
)
"""An error at the beginning of an answer that has fields, in lower case."""

NAMED: Final = re.compile(
    r"(?:ok|success|accepted)\s*[:=]\s*(?:false|no)\b|(?:status|result|outcome|response)\s*[:=]\s*(?:error|err|denied"
    r"|refused|rejected|failed|nok|ko|[45]\d\d)\b"
)
"""A line of an answer with a name and a value in each."""

SAYS_NO: Final = re.compile(
    # it was not done, or cannot be
    r"(?:\bnot|n't|\bcannot|\bno longer|\bnever|\bunable to|\bfailed to"
    r"|\brefuse[sd]? to)(?: (?!yet)\w+){0,2}? (?:accepted|allowed|authori[sz]ed|permitted|possible|saved|filed|stored"
    r"|sent|delivered|started|written|applied|created|executed|performed|processed|changed|updated|posted|booked"
    r"|placed|submitted|registered|recogni[sz]ed|supported|valid|licensed|reachable|enabled|activated|installed"
    r"|entitled|eligible|completed|transferred|uploaded|opened|connect|reach|answer\w*|respond\w*|find|understand"
    r"|understood|do|let|take|accept|process|save|store|send|write|create|open|read|load|start|run|execute|complete"
    r"|resolve|parse|convert|allocate|acquire|obtain|get|perform|add|post|place|change|edit|delete|print|ship|show"
    r"|exist|match|support|know|fetch|access|upload|log|sign|bind|validate)\b(?! yet)|(?:could|can) ?(?:not|n't"
    r"|'t) be\b|\bnothing (?:was|has been|is|got) (?!found|to|changed since|new)\w+(?:ed|en|nt|ne|de)\b"
    r"|\bno (?:changes?|action|entry|entries|rows?|records?|orders?|bookings?) (?:was|were|has been|have been|is"
    r"|are)? ?(?:made|taken|written|saved|stored|created|applied|posted|placed)\b|\brolled back[.:]|\bwas rolled back"
    r"|\bunprocessed\b|\b(?:was|were|been|change|request|command|entry|message|submission|call|edit|update|posting"
    r"|filing|job) (?:was |is )?(?:discarded|dropped|ignored|skipped|bounced|blocked|held|rejected|refused|declined"
    r"|denied|aborted|voided|returned)\b|\b(?:refused|rejected|denied|declined)(?: by|:| because| -)|\b(?:failed"
    r"|failure|error|fault|problem): +(?!none\b|no\W*$|0|null)\S"
    # whoever asks may not
    r"|\byou (?:do not|don't|are not|aren't|cannot|can't|may not|need\b|must\b|lack\b|have (?:used|reached|exceeded"
    r"|no\b))|\b(?:i|we) (?:can't|cannot|can not|am not|don't (?:understand|have|know)|regret|won't|will not)\b"
    r"|\bi'm (?:not|afraid|unable)|\bunfortunately\b|\bsorry\b|\bregret\b|\bonly (?:the |an? )?[\w-]+ (?:may|can)\b"
    r"|\b(?:limited|restricted) to\b|\bask (?:your|the|an) |\bcontact (?:your|the|an) |no (?:permission|rights?"
    r"|access)\b|\binsufficient |\bforbidden\b|unauthori[sz]ed|not (?:a|an) (?:member|owner|admin)|(?:permission"
    r"|access) (?:\S+ )?(?:denied|refused|restricted)|\bscreened\b|\bpermission[_ ]denied|(?:view|read)-only for\b"
    r"|(?:is|are) closed for (?!renov|good|lunch)|\blegal hold\b|\bembargo\b"
    # it must be asked for in another way
    r"|\bdid you mean\b|unexpected (?:keyword|argument|token|field|param|key|option|value|end|type)|\b(?:wants?|wanted"
    r"|expects?|expected) (?:yyyy|an? |the |one of|int|str|num)|\bhas to be\b|\bis required\b|\b(?:bad|invalid"
    r"|malformed|illegal|unknown|undefined|unrecogni[sz]ed|unsupported|wrong) [a-z'\"]+|\buse \S+ (?:\S+ )?instead\b"
    r"|\buse the new\b|(?:was|is|been) (?:retired|switched off|decommissioned)|\bhas no (?:attribute|column|field"
    r"|property|method|member|such)|\bno such \w+(?:\W*$|:|\.)|syntax error|there is no \S+ (?:called|named|by that"
    r"|with)|\bviolates\b|already (?:on file|exists)|\bversion conflict|\brequired but\b"
    # it is not let in
    r"|\b(?:log|sign) ?in again|please (?:log|sign)|\b(?:token|session|credentials?|password|certificate|key"
    r"|licen[cs]e|account|subscription|trial|permit|ticket|sign-in|cookie|secret)s?\b(?! (?:valid"
    r"|expires))[^:=\n]{0,30}\b(?:has |is |was |been )?(?:expired|lapsed|revoked|deactivated|suspended|inactive|ended"
    r"|invalid|stale|disabled|run out|changed|wrong)\b"
    # there is no more of something, or nothing answers
    r"|\b(?:maximum|max|limit|quota|cap|allowance|users?|space|capacity|storage)\b[^:=\n]{0,24}\b(?:exceeded|reached"
    r"|exhausted|used up|spent|hit)\b|\bover (?:quota|budget|limit)\b|\btoo many \w|\bnothing left|\bno (?:free|more"
    r"|remaining|spare) \w|\bout of (?:memory|space|credits?|toner|paper|disk|tokens?|quota|capacity|service)\b"
    r"|\bused all\b|\bslow down\b|\brate (?:limit|cap)|\b0 bytes free|\bno space left|100 ?% (?:of|full)|\b(?:disk"
    r"|volume|storage|mailbox|inbox|queue|tank|drive|device) (?:is )?full\b|\bno (?:answer|reply|response|route"
    r"|carrier)\b|\btimed? ?-?out\b|\bunreachable\b|connection (?:to \S+ )?(?:was )?(?:refused|reset|closed|lost)"
    r"|max retries|\be(?:connrefused|connreset|timedout|notfound)\b|\bdisconnect|not (?:answering|responding)|\b(?:is"
    r"|are) down\b|licen[cs]e not found|\b0 of \d+ \w+ed\b|try again (?:later|in)|\bretry (?:after|in|later)"
    r"|\bcome back\b|\bisn't processed|not recogni[sz]ed"
)
"""What a short answer in words says that refuses something, in lower case."""

FOREIGN: Final = re.compile(
    r"verweigert|abgelehnt|abgelaufen|gesperrt|fehlgeschlagen|nicht (?:erlaubt|zulässig|möglich|erreichbar|berechtigt"
    r"|gespeichert)|schreibgeschützt|refusée?\b|échoué|interdit|impossible|expirée?\b|plein\b|denegado|rechazad"
    r"|no permitid|caducad|lleno|geweigerd|mislukt|verlopen|negato|scadut|отказано|ошибка|запрещ"
    r"|失败|错误|拒绝|权限|過期|失敗|エラー|権限|できません"
)
"""The same in other languages."""

YES: Final = words_of(
    "ok okay done success successful successfully succeeded true yes noted acknowledged recorded received thanks waited"
)
"""Words of an answer that says that all went well."""

CHANGED: Final = words_of(
    "written wrote saved updated created deleted removed moved renamed applied sent replaced changed inserted"
    " edited added patched modified restarted deployed committed scheduled posted uploaded assigned stored"
    " submitted booked started enabled disabled merged pushed copied installed closed granted reserved overwritten"
    " reverted restored rebooted published registered adjusted set delivered reloaded tagged linked archived"
    " confirmed ordered replacement replacements"
)
"""Words of an acknowledgement that something was changed."""

NEGATIVE: Final = words_of(
    "not no cannot missing needs need must mismatch closed suspended embargo embargoed freeze frozen pending taken"
    " wrong unknown invalid nothing without only required blocked held over full busy offline already inactive"
    " duplicate"
)
"""Words of which one stands in a short answer that does not say that a change was made."""

STATE: Final = re.compile(
    r"\b(?:closed for|offline|busy|in use|(?:in|under) maintenance|in maintenance mode|frozen|suspended|held|reserved"
    r"|checked out|disabled|on hold|read-only|write-protected|unavailable|locked|blocked|taken"
    r"|interlock (?:is )?(?:active|open|engaged)|e-stop|in progress|not (?:available|ready|homed)|(?:is|being) (?:edit"
    r"|rebuil|us|modifi|process)\w+|stays shut|stays closed|inactive)\b(?!\.\w)"
)
"""A state that keeps things from being done."""

REPORT: Final = re.compile(
    r"^(?!(?:error|fault|reason|cause|why|message|msg|detail|no|nok|denied|rejected|skipped|sorry"
    r"|missing)\b)(?![^:=]{0,30}\b(?:failed|error|fault|problem|missing|rejected|refused|denied|suspended|expired"
    r"|locked|blocked|held)\s*[:=] (?!no\b|none))(?:[\w/()-]+ ){0,3}[\w/()-]+ ?(?::[ \t]+"
    r"|=[ \t]*)(?!not? \w)(?:\S+(?: \S+)?(?:; ?[\w ]+: \S+)*[ \t]*$|\d+ .*$)|^.*\w=\S.*\w=\S.*$",
    re.MULTILINE,
)
"""A line that tells the value of something."""

ITEM: Final = re.compile(r"\W*(?:[^\W\d]+\W){0,3}\W*\w*\d[\w-]*\W*[:|,=\t]")
"""How a line of a list of numbered things begins."""

ANSWERED: Final = re.compile(r"[\w -]{1,30}[:=]\s*(?:error|denied|refused|rejected|declined|forbidden|nok|nak)\W*$")
LETTER: Final = re.compile(r"(?:from|to|subject|date|dear|hello|von|an|betreff)\b[ :]")
"""How a letter begins, which is content."""

ASIDE: Final = re.compile(r"(?<!\w)'[^'\n]{3,}'(?!\w)")
"""What somebody else said."""

STATE_WORDS: Final = 5
"""A state is told in so many words at least."""

LISTED: Final = re.compile(r"[\w./\\-]+:\d+[:-]|[#*•§]|\d+[.)] |def |class |import |//")
"""How a line of a file begins, or of a list."""

ENDED: Final = re.compile(
    r"^\W*(?:(?:command|process|program)\s+)?(?:exit(?:ed)?(?:\s+with)?(?:[ _-]?(?:code|status))?"
    r"|status|return[ _]?code|rc|code|\?)\W{0,3}(?<!\d)([0-2]?\d?\d)(?:\W*$"
    r"|[\s,;|)\]]+(?:\w+\s*[=:]\s*[\w.]+(?:[\s,;)\]]+|$))*$)",
    re.MULTILINE,
)
"""The line that tells the exit code."""

ENDS: Final = words_of("exit exited returncode return_code rc exitcode exit_code exit_status")
STATES: Final = words_of("status return code")

CODE_FIELD: Final = re.compile(r'"(?:exit_?(?:code|status)?|return_?code|rc|exitcode)"\s*:\s*(\d{1,3})\b')

VERDICT: Final = re.compile(
    r"(?<![\d.])(?!0*[45]\d\d [ef])\d+ (?:(?:tests?|checks?|cases?|specs?|assertions?|examples?|suites?"
    r"|rules?) )?(?:failed|passed|failing|passing)\b(?!:? \D*\b(?:to|because|with)\b)|^[^\S\n]*(?:failed|fail|not ok"
    r"|--- fail:?|✗|✘|✕|red)\s+(?!to\b|because|with\b|[45]\d\d\b)[\w./-]*[/_:.\d]|\bassert"
    r"|\bexpected:? (?!\d+[- ][a-z])[^\s,;]*\d|\bexpected (?!an? |yyyy|one of|int|num|str|date"
    r"|bool).{1,60}\b(?:but (?:was|got)|actual)|\b(?:failed|failures|errors|passed)\"?\s*[:=]\s*\d{1,3}\b(?!\s+[a-z])"
    r"|^[^\s:]+[:(]\d+(?:[:,]\d+)?\)?:? (?:error|warning|fatal error|note)|\b(?:tests?|specs?"
    r"|lint)[\w ]{0,20}(?:failed|red)\b|^(?:type ?)?checks?\b[\w ]{0,20}(?:failed|red)\b|\d (?:of|/) ?\d+ (?:tests"
    r"|checks|passed|failed|ok)",
    re.MULTILINE,
)
"""What a check says of what it checked, in lower case."""

COUNTED: Final = re.compile(
    r"(?<![\d.])(?!0*[45]\d\d [ef])\d+ (?:(?:new|more|type|syntax|lint\w*|style|files?|rules?) )?(?:failures?|errors?"
    r"|problems?|warnings?|violations?|mismatch(?:es)?)\b"
)
"""The same, if nothing is said of the cause."""

SPOT: Final = re.compile(r"[\w/\\-]\.\w+:\d+\b")
"""The line of a file."""

NO_VERDICT: Final = re.compile(
    r"no module named|modulenotfound|command not found|cannot find (?:module|package)|no space left|permission denied"
    r"|connection refused|could not connect|not installed|unauthori[sz]ed|quota exceeded|too many requests"
)
"""What keeps a check from checking."""

NO_HITS: Final = re.compile(
    r"\b(?:no|0|zero) (?!such)(?:\w+ ){0,2}?(?:match(?:es|ing)?|results?|hits?|entries|records?|rows?|documents?"
    r"|items?|occurrences?|messages?|differences?|orders?|tasks?)\b(?! (?:was|were|made|written|saved|stored|could"
    r"|can))|\bnothing (?:was )?(?:found|matched|to show)|no files? (?:found|match)|\b(?:keine treffer"
    r"|aucun r[ée]sultat|sin resultados)"
)
ERRORLIKE: Final = re.compile(r"error|denied|refused|failed|exception|cannot|could not|unable|fatal|unauthori|expired")


def verdict_of(
    text: str, message: str, *, success: bool, words: frozenset[str], literals: frozenset[str], question: Question
) -> Verdict:
    """Return how a call came out.

    Args:
        text: Its result in lower case, without the command line that it repeats.
        message: What the tool reports to have gone wrong.
        success: Whether it reports a success.
        words: The words of the result.
        literals: The names and numbers that were asked for.
        question: What was asked for.
    """
    has_code = (
        not ENDS.isdisjoint(words)
        or "\n? " in text
        or (text[:1] not in "{[<" and len(text) <= SHORT and not STATES.isdisjoint(words))
    )
    if success and not has_code and HINTS.isdisjoint(words) and text.isascii() and not _has_part(text):
        return SUCCEEDED
    if len(text) > FIRST_CHARS + LAST_CHARS and (success or len(text) > LONGEST):
        text = f"{text[:FIRST_CHARS]}\n{text[-LAST_CHARS:]}"
    if message and message[:FIRST_CHARS].lower() not in text:
        text = f"{message[:FIRST_CHARS].lower()}\n{text}"
    code, body = _without_code(text.strip(), has_code=has_code)
    if success and not code:
        if has_code and HINTS.isdisjoint(words) and body.isascii() and not _has_part(body):
            return SUCCEEDED
        said = _refuses(body, literals, words, question)
        if said != "failed":
            return NEITHER if said == "neither" else SUCCEEDED
    body = ENVELOPE.sub("", body).strip()
    if _is_no_failure(code, body) or _asks_whether(code, body, question):
        return NEITHER
    return Verdict("failed", body[:FIRST_CHARS])


def _has_part(text: str) -> bool:
    edges = text if len(text) <= SHORT else text[:LINE] + text[-LINE:]
    return any(part in edges for part in HINT_PARTS)


def _refuses(body: str, literals: frozenset[str], words: frozenset[str], question: Question) -> Outcome:
    """Whether a result says that what was asked was refused or went wrong."""
    if FIELDS.match(body):
        fields = _decoded(body)
        error = _tells_error(fields) if fields else STRUCTURED.search(body, 0, FIRST_CHARS) is not None
        return "failed" if error else "succeeded"
    lines = [line[:LINE] for line in body.splitlines() if line.strip()]
    if not lines:
        return "succeeded"
    first, ends = lines[0], [line for line in lines[-2:] if len(lines) == 1 or not line[:4].isdigit()]  # no log
    if len(body) > SHORT:
        is_error = first.startswith("traceback") or _is_message(ends)
        return "failed" if OPENING.match(first) is not None and is_error else "succeeded"
    if OPENING.match(first) or _is_message((first, *ends)) or any(NAMED.match(line) for line in lines[:FEW]):
        return "failed"
    if LISTED.match(first) or LETTER.match(first):
        return "succeeded"
    if len(lines) < FEW and any(PROGRAM.match(line) and not REPORT.match(line) and is_strong(line) for line in ends):
        return "failed"
    if len(body) > LINE or len(lines) > FEW or (len(lines) > 1 and all(ITEM.match(line) for line in lines)):
        return "succeeded"
    return _refuses_in_words(body, literals, words, question)


def _refuses_in_words(body: str, literals: frozenset[str], words: frozenset[str], question: Question) -> Outcome:
    """Whether a short answer says no; what names the thing that was asked for may be the answer."""
    if "\n" not in body and ANSWERED.match(body):
        return "failed"
    if VERDICT.search(body) or COUNTED.search(body):
        return "succeeded"
    told = ASIDE.sub(" ", REPORT.sub("", body))
    if not told.strip():
        return "succeeded"
    if SAYS_NO.search(told) or FOREIGN.search(told):
        return "failed"
    acts = question.changes or bool(question.payload or question.maybe)
    if acts and CHANGED.isdisjoint(words) and YES.isdisjoint(words) and not told.split(None, 1)[0].endswith("ed"):
        return "failed" if is_strong(told) or not NEGATIVE.isdisjoint(words) or STATE.search(told) else "succeeded"
    state = STATE.search(told)
    if state is None or state.start() == 0:
        return "neither" if len(words) <= STATE_WORDS and "not" in words else "succeeded"
    names_it = any(plain(word) in literals for word in words)
    return "neither" if acts or names_it or len(words) < STATE_WORDS else "failed"


def _is_message(lines: Sequence[str]) -> bool:
    return any((": " in line or " err" in line) and MESSAGE.search(line) for line in lines)


FIELDS: Final = re.compile(r"[{<]|\[\s*[{\[\"]")
"""How an answer with fields begins."""

OK_FIELD: Final = re.compile(
    r"^(?:ok|success|succeeded|successful|accepted|applied|granted|allowed|permitted|authori[sz]ed)$"
)
ERROR_FIELD: Final = re.compile(
    r"^(?:error|err|fault|exception|failure|errors|(?:error|fault)_?(?:code|message|msg|type|reason|detail|string"
    r"|text)|err_?(?:code|msg)|rejection|refusal|denial|problem)$"
)
CODE_NAME: Final = re.compile(r"^(?:status|code|status_?code|http|http_?(?:status|code))$")
STATE_NAME: Final = re.compile(r"^(?:status|state|result|outcome|type|level|kind|severity|verdict|response|ack)$")
REFUSAL: Final = re.compile(
    r"^(?:error|err|denied|refused|rejected|forbidden|unauthori[sz]ed|fault|nok|ko|nak|invalid|failure"
    r"|not[ _](?:allowed|permitted|accepted|authori[sz]ed|executed)|(?:permission|access)[ _]denied)$"
)
THINGS_OWN: Final = words_of("id job case number ref title name order claim ticket task run invoice sample")
REASONS: Final = words_of("reason message msg detail details why cause because code hint")
"""Fields of the state of a thing, and fields that tell why a call was refused."""

EMPTY: Final = (None, False, "", "none", "no", "null", "0", "ok")


def _decoded(text: str) -> dict[str, Any]:
    """Return the fields of an answer; none if it is no whole JSON object."""
    try:
        fields = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def _tells_error(fields: dict[str, Any], depth: int = 3) -> bool:
    """Whether the fields of an answer tell an error; lists of things with states of their own are content."""
    for name, value in islice(fields.items(), FIELDS_READ):
        if value in (False, "false", "no") and OK_FIELD.match(name):
            return True
        if name in ("iserror", "is_error", "failed", "denied", "refused", "rejected") and value is True:
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
            or (
                isinstance(value, str)
                and STATE_NAME.match(name)
                and REFUSAL.match(value)
                and (THINGS_OWN.isdisjoint(fields) or not REASONS.isdisjoint(fields))
            )
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


def _asks_whether(code: int | None, body: str, question: Question) -> bool:
    """Whether a call asks whether something works, is there or is equal, so that a "no" is no failure."""
    asks = any(CHECK.search(text) for text in (*question.asked, *question.raw))
    if asks and classed(body) in ("", "network", "lock"):
        return True
    return code in (None, 1) and question.doing[:1] in COMPARING and ERRORLIKE.search(body) is None


COMPARING: Final = [[name] for name in ("diff", "cmp", "grep", "egrep", "rg", "test", "which", "comm", "pgrep", "[")]
"""Programs that end with 1 to say no."""


def _is_no_failure(code: int | None, body: str) -> bool:
    """Whether what looks like a failure is only the answer to a question."""
    if code == 1 and not body:
        return True
    if VERDICT.search(body):
        return NO_VERDICT.search(body) is None or "passed" in body
    if COUNTED.search(body):
        return SPOT.search(body) is not None or classed(body) in ("", "conflict", "missing")
    hits = len(body) <= SHORT and NO_HITS.search(body) is not None
    return hits and ERRORLIKE.search(body) is None and not is_strong(body)


def _without_code(text: str, *, has_code: bool) -> tuple[int | None, str]:
    """Return the exit code that a result tells, None if it tells none, and what else it says."""
    code = None
    if text.startswith("{"):
        field = CODE_FIELD.search(text)
        code = int(field[1]) if field else None
        text = _unwrapped(text, has_code=code is not None)
    if has_code and not FIELDS.match(text):
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
    r"^[^\w\n]*(?:stdout|stderr|output)[^\w\n]*$"
    r"|^[^\w\n]*(?:rc|took|elapsed|duration|time|done)\b[ \w:=]*?(?<![\d.])[\d.]+ ?(?:ms|s)[^\w\n]*$",
    re.MULTILINE,
)
WRITTEN: Final = re.compile(r"^(?:std_?out|std_?err|output|out|err|text|lines|body|content|response|result|log)$")
CHECK: Final = re.compile(
    r"(?i:/(?:health\w*|ready\w*|livez?|liveness|readiness|ping|heartbeat)(?![\w=])|\b(?:healthz|health[ _-]?checks?"
    r"|self-?test|liveness|readiness)\b)"
)
"""What stands in the arguments of a call that asks whether something works."""

PROGRAM: Final = re.compile(r"^\W*[a-z][\w.@-]{1,30}(?: [\w-]+)?: \S")
"""How a program begins what it says."""


# --- what went wrong? -------------------------------------------------------------------------------------------------

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
        "login": r"invalid_grant|(?:user|account)s? (?:is |has been |was )?(?:suspended|blocked|disabled|closed"
        r"|inactive)|sign-?in has|lapsed|deactivated|logon|login failed|\bjwt\b|\boauth\b|kerberos|no credentials"
        r"|abgelaufen|nicht angemeldet|expirée?\b|caducad|no autenticad|unauthori[sz]ed|unauthenticated|authentication"
        r"|(?:token|credential|session|password|certificate|api.?key|licen[cs]e|ticket|grant|signature|secret|login"
        r"|cookie)s?\b.{0,40}(?:expired|invalid|revoked|rejected|not (?:accepted|valid)|missing|required|wrong|bad"
        r"|unknown|mismatch|stale|abgelaufen)|(?:expired|invalid|revoked|bad|wrong|stale|missing)\b.{0,24}(?:token"
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
        "network": r"errno 11[01]\b|connection to \S+ lost|no connection|shutting down|not (?:reachable|responding)"
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
        "conflict": r"already exists|duplicate|conflict|version mismatch|out of date|stale|precondition",
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
    bare = LABEL.sub(" ", message)
    bare = bare.replace('"', " ") if message[:1] in "{[" else bare  # there names stand in quotes, too
    words = frozenset(WORD.findall(PASSING.sub(" ", message)))
    return Failure(
        told=frozenset(things_in(bare)[:THINGS]),
        group="tool" if unknown_tool else classed(NAMED_THING.sub(" ~ ", bare)),
        codes=frozenset(one or other for one, other in OWN_CODE.findall(message)[:FEW]),
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
