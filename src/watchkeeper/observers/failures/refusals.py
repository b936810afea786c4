"""Whether a tool call failed, by what its result says; of what cause, `causes` says.

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
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from watchkeeper.observers.failures.causes import classed, is_strong
from watchkeeper.observers.questions import Question, plain, terms_of, words_of

Outcome = Literal["succeeded", "failed", "neither", "doubtful"]

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
    " disconnected reconnect unloaded dropped lost gone giving closed down warn warning warnings rej zero off full"
    " kein keine keinen keiner keinem fehlt fehlen fehlend ungueltig ungültig unbekannt geschuetzt geschützt voll pas"
    " plus ne aucun aucune refuse refusé bloque bloqué invalide inconnu manquant erreur échec fallo falta inválido"
    " bloqueado lleno agotado non errore fallito bloccato niet geen ongeldig ontbreekt nao não negado recusado"
) | frozenset(map(str, (*range(400, 430), *range(500, 512))))
"""Words of which one stands in nearly every refusal."""

DOUBTS: Final = words_of(
    "not error errors err fail failed failure fault refused denied rejected declined expired invalid missing unable"
    " cannot couldn unavailable warning warn lost dropped disconnected blocked locked protected busy offline closed off"
    " timeout exceeded empty nicht kein keine fehlt fehlen pas plus aucune aucun refuse refusé niet geen nao não non"
    " negado"
)
"""Words of which one makes a short answer doubtful."""

YET: Final = re.compile(
    r"\b(?:yet|still|so far|noch (?:nicht|kein\w*|immer)|pas encore|todav[ií]a no|a[uú]n no|non ancora|nog niet)\b"
)
"""What says that something is awaited."""

HINT_PARTS: Final = (
    "error", "exception", "denied", "fail", "err_", "econn", "enot", "eacc", "etime", '": false', '":false',
    "rolled back", "used up", "used all", "out of ", "closed for", "try again", "come back", "is down", "are down",
    "in use", "is being", "checked out", "switched off", " bytes free", "please", "too many", "sqlstate", "sign in",
    "log in", "invalid",
)  # fmt: skip
"""Parts of texts of which one stands in the others."""

OPENING: Final = re.compile(
    r"(?:[\[(<*!?❌⚠✗✖\s-]*)(?:\d[\d:.,tz/+ -]{6,30}\W*)?(?!errors?[ _-]?(?:rate|handling|handler|log|count|budget|free"
    r"|margin|bar|page|codes?\b)|errors?\s*[:=]\s*(?:none|no\b|0))(?:(?:error|err|fatal|failed|failure|fault|exception"
    r"|critical|abort|fehler|fehlgeschlagen|erreur|échec|refusé|errore|fallo|fout|feil|sorry|traceback|panic|rejection"
    r"|nak|nack|nok|cannot|can't|can not|could not|couldn't|unable to|tool error|syntax error|segmentation fault"
    r"|sqlstate|msg \d+, level|an (?:internal |unexpected )?error (?:has )?occurr?ed|rej|unsuccessful|undeliverable"
    r"|not delivered|unauthori[sz]ed|forbidden|not (?:allowed"
    r"|permitted|authori[sz]ed|accepted|possible|saved|filed|done|sent|written|applied|created|executed|processed"
    r"|stored|started)|(?:permission|access|operation|request|command|connection|authentication|login|call|action"
    r"|upload|write|transaction|zugriff|accès|acceso|toegang)\b[^.\n]{0,30}?\b(?:denied|refused|failed|rejected"
    r"|forbidden|timed out|not permitted|aborted|verweigert|refusé|denegado|geweigerd)|(?:invalid|illegal|unknown"
    r"|unrecogni[sz]ed|unsupported|unexpected)(?=\W+\w)|too many requests|quota(?!\s*[:=])|rate limit)\b|(?:denied"
    r"|refused|rejected|declined|aborted|blocked|skipped|ignored|discarded|dropped|bounced|killed)(?:\W*$"
    r"|\s*[:;(,–-](?!\s*(?:no\b|none|false|\d))|\s*\.\s|\s+(?:by|because|due|with)\b)|no:|e(?:acces|timedout|conn\w+"
    r"|notfound|perm|busy|rofs|nospc|exist|noent|mfile|pipe)\b|[a-z_.]*(?:error|exception)\b"
    r"|e ?(?:\w{2,3} )?\d{2,3}(?=:|\W*$)|e[a-z]*\d{2,6}\b|-\d{2,4},"
    r"|[a-z]{2,8}[-_]?\d{3,6}\b[^\n]{0,60}\b(?:error|not|unable|denied|exceed|fail|invalid|no|refused))"
)
"""How the first line of a refusal begins, in lower case."""

CODED: Final = re.compile(
    r"[\[(<*!\s-]*(?:http(?:/[\d.]+)? ?)?(?:status:? ?)?[45]\d\d\b(?:\W*$|(?=\s*[\w:-]*[a-z]|\s\d\.\d)(.*))"
)
"""A line that begins with a code of HTTP; what stands after it must have a word of a refusal."""

WORDS: Final = re.compile(r"[a-z]+")

WELL: Final = re.compile(
    r"\W*(?:(?:http(?:/[\d.]+)? ?)?(?:status:? ?)?20\d [a-z]|ok\b:? no (?:errors?|problems?|issues?)\b)"
)
"""How an answer begins that says that all went well."""

ERROR_CODE: Final = re.compile(r"\b(?:err(?:or|no)?|fault)\s*=\s*-?[1-9]\d*\b|\b(?:state|status)\s*[:=]\s*fault\b")

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
    r"<(?:error|fault|exception|\w+:fault)\b|^<(?:h1|h2|b|title|strong|p)>\s*[45]\d\d\b|<status>\s*(?:error|denied|refused|failed|rejected)|<\w+[^>]*\b(?:status"
    r"|result|code)=['\"](?:error|fail|denied|refused|rejected|[45]\d\d)|"
    r'^[\s{]*"(?:error|fault)"\s*:\s*(?!null|false|""|\[\s*\]|\{\s*\}|\d)|^[\s{]*"(?:ok|success)"\s*:\s*false'
)
"""An error at the beginning of an answer that has fields, in lower case."""

NAMED: Final = re.compile(
    r"(?:ok|success|accepted)\s*[:=]\s*(?:false|no)\b|(?:status|result|outcome|response)\s*[:=]\s*(?:error|err|denied"
    r"|refused|rejected|failed|nok|ko|[45]\d\d)\b|(?:.{0,40}[\s,;])?err(?:or)?[:=](?!none|no\b|null|ok|false)[a-z]\w{2,}"
)
"""A line of an answer with a name and a value in each."""

SAYS_NO: Final = re.compile(
    # it was not done, or cannot be
    r"(?:n't|\b(?:not|cannot|no longer|never|unable to|failed to|refuse[sd]? to))(?: (?!yet)\w+){0,2}? (?:accepted"
    r"|allowed|authori[sz]ed|permitted|possible|saved|filed|stored|sent|delivered|started|written|applied|created"
    r"|executed|performed|processed|changed|updated|posted|booked|placed|submitted|registered|recogni[sz]ed|supported"
    r"|valid|licensed|reachable|enabled|activated|installed|entitled|eligible|completed|transferred|uploaded|opened"
    r"|connect|reach|answer\w*|respond\w*|find|understand|understood|do|let|take|accept|process|save|store|send|write"
    r"|create|open|read|load|start|run|execute|complete|resolve|parse|convert|allocate|acquire|obtain|get|perform|add"
    r"|post|place|change|edit|delete|print|ship|show|exist|match|support|know|fetch|access|upload|log|sign|bind"
    r"|validate)\b(?! yet)|(?:could|can) ?(?:not|n't|'t) be\b|\b(?:nothing (?:was|has been|is|got) (?!found|to"
    r"|changed since|new)\w+(?:ed|en|nt|ne|de)\b|no (?:changes?|action|entry|entries|rows?|records?|orders?"
    r"|bookings?) (?:was|were|has been|have been|is|are)? ?(?:made|taken|written|saved|stored|created|applied|posted"
    r"|placed)\b|rolled back[.:]|was rolled back|unprocessed\b|(?:was|were|been|change|request|command|entry|message"
    r"|submission|call|edit|update|posting|filing|job) (?:was |is )?(?:discarded|dropped|ignored|skipped|bounced"
    r"|blocked|held|rejected|refused|declined|denied|aborted|voided|returned)\b|(?:refused|rejected|denied"
    r"|declined)(?: by|:| because| -)|(?:failed|failure|error|fault|problem): +(?!none\b|no\W*$|0|null)\S)"
    # whoever asks may not
    r"|no (?:permission|rights?|access)\b|unauthori[sz]ed|not (?:a|an) (?:member|owner|admin)|(?:permission"
    r"|access) (?:\S+ )?(?:denied|refused|restricted)|(?:view|read)-only for\b|(?:is|are) closed for (?!renov|good"
    r"|lunch)|\b(?:you (?:do not|don't|are not|aren't|cannot|can't|may not|need\b|must\b|lack\b|have (?:used|reached"
    r"|exceeded|no\b))|(?:i|we) (?:can't|cannot|can not|am not|don't (?:understand|have|know)|regret|won't|will not)\b"
    r"|i'm (?:not|afraid|unable)|unfortunately\b|sorry\b|regret\b|only (?:the |an? )?[\w-]+ (?:may|can)\b|(?:limited"
    r"|restricted) to\b|ask (?:your|the|an) |contact (?:your|the|an) |insufficient |forbidden\b|screened\b"
    r"|permission[_ ]denied|legal hold\b|embargo\b)"
    # it must be asked for in another way
    r"|unexpected (?:keyword|argument|token|field|param|key|option|value|end|type)|(?:was|is|been) (?:retired"
    r"|switched off|decommissioned)|syntax error|there is no \S+ (?:called|named|by that|with)|already (?:on file"
    r"|exists)|\b(?:did you mean\b|(?:wants?|wanted|expects?|expected) (?:yyyy|an? |the |one of|int|str|num)"
    r"|has to be\b|is required\b|(?:bad|invalid|malformed|illegal|unknown|undefined|unrecogni[sz]ed|unsupported"
    r"|wrong) [a-z'\"]+|use \S+ (?:\S+ )?instead\b|use the new\b|has no (?:attribute|column|field|property|method"
    r"|member|such)|no such \w+(?:\W*$|:|\.)|violates\b|version conflict|required but\b)"
    # it is not let in
    r"|please (?:log|sign)|\b(?:(?:log|sign) ?in again|(?:token|session|credentials?|password|certificate|key"
    r"|licen[cs]e|account|subscription|trial|permit|ticket|sign-in|cookie|secret)s?\b(?! (?:valid"
    r"|expires))[^:=\n]{0,30}\b(?:has |is |was |been )?(?:expired|lapsed|revoked|deactivated|suspended|inactive|ended"
    r"|invalid|stale|disabled|run out|changed|wrong)\b)"
    # there is no more of something, or nothing answers
    r"|100 ?% (?:of|full)|connection (?:to \S+ )?(?:was )?(?:refused|reset|closed|lost)|max retries|not (?:answering"
    r"|responding)|licen[cs]e not found|try again (?:later|in)|not recogni[sz]ed|\((?:failure|failed|error|refused"
    r"|rejected|denied)\)|\b(?:(?:maximum|max|limit|quota|cap|allowance|users?|space|capacity"
    r"|storage)\b[^:=\n]{0,24}\b(?:exceeded|reached|exhausted|used up|spent|hit)\b|over (?:quota|budget|limit)\b"
    r"|too many \w|nothing left|no (?:free|more|remaining|spare) \w|out of (?:memory|space|credits?|toner|paper|disk"
    r"|tokens?|quota|capacity|service)\b|used all\b|slow down\b|rate (?:limit|cap)|0 bytes free|no space left|(?:disk"
    r"|volume|storage|mailbox|inbox|queue|tank|drive|device) (?:is )?full\b|no (?:answer|reply|response|route"
    r"|carrier)\b(?! yet)|timed? ?-?out\b|unreachable\b|e(?:connrefused|connreset|timedout|notfound)\b|disconnect|(?:is"
    r"|are) down\b|0 of \d+ (?:\w+ )?\w+ed\b|retry (?:after|in|later)|come back\b|isn't processed|(?:is|are|was"
    r"|were) (?:no longer|protected)\b|protected (?:by|cell|file|range|object|branch|record)|(?:view|read)[- ]only\b"
    r"|request \w*? ?access|giving up\b|(?:session|connection|line|link|carrier) (?:lost|dropped|gone)\b|no exact match"
    r"|does not occur\b|[a-z]{3,} failed (?:\(|:|to\b|because|with)|sign in (?:through|to|with|first)\b"
    r"|for subscribers\b)"
)
"""What a short answer in words says that refuses something, in lower case."""

FOREIGN: Final = re.compile(
    r"verweigert|abgelehnt|abgelaufen|gesperrt|fehlgeschlagen|geschuetzt|ungueltig|\bfehl(?:t|en|er)\b"
    r"|keine? berechtigung"
    r"|\bnicht (?!gefunden|vorhanden)(?:\w+ ){0,2}?(?:\w+(?:t|bar|ig|lich)|\w{4,}en)\b|refuse[er]?s?\b(?! to)|echou"
    r"|interdit|impossible|expiree?s?\b|plein\b|\bn'(?:a|est|ont|etes) (?:pas|plus)\b|\bne (?:peut|sont"
    r"|peuvent) (?:pas|plus)\b"
    r"|\baucune? [^.]{1,30}n'|\bbloquee?\b|manquante?\b|denegad|rechazad|no (?:permitid|autorizad|se (?:pudo"
    r"|puede))|caducad"
    r"|bloquead|agotad|lleno|geweigerd|mislukt|verlopen|ongeldig|ontbreekt|\bniet (?!gevonden)\w+|negato|scadut|fallit"
    r"|non (?:autorizzat|consentit|e possibile)|nao (?:foi possivel|autorizad)|отказано|ошибка|запрещ"
    r"|失败|错误|拒绝|权限|過期|失敗|エラー|権限|できません"
)
"""The same in other languages, without accents."""

BARE: Final = str.maketrans(
    dict(zip("àáâãçèéêëìíîïñòóôõùúû", "aaaaceeeeiiiinoooouuu", strict=True))
    | {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}
)
"""Letters without accents."""

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
    r"|locked|blocked|held)\s*[:=] (?!no\b|none))(?![^:=\n]{0,40}\b(?:not|cannot|unable|fail\w*|reject\w*|refus\w*"
    r"|nicht)\b[^:=\n]{0,40}[:=]\s*(?!no\b|none|false|\d))(?:[\w/()-]+ ){0,3}[\w/()-]+ ?(?::[ \t]+"
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
    r"|--- fail:?|✗|✘|✕|red)\s+(?!to\b|because|with\b|[45]\d\d\b)[\w./-]*[/_:.\d]"
    r"|^[^\S\n]*[x×✗✘✕] \w.* (?:>|›|expected)|\[\d+/\d+\] [^\n]*: (?:fail|error)"
    r"|[\w/-]\.\w+:\[\d+,\d+\]"
    r"|^[^\s:]+[:(]\d+(?:[:,]\d+)?\)?:? (?:error|warning|fatal error|note)|^(?:type ?)?checks?\b[\w ]{0,20}(?:failed"
    r"|red)\b|\d (?:of|/) ?\d+ (?:tests|checks|passed|failed|ok)|\b(?:assert|expected:? (?!\d+[- ][a-z])[^\s,;]*\d"
    r"|expected (?!an? |yyyy|one of|int|num|str|date|bool).{1,60}\b(?:but (?:was|got)|actual)|(?:failed|failures|errors"
    r"|passed)\"?\s*[:=]\s*\d{1,3}\b(?!\s+[a-z])|(?:tests?|specs?|lint)[\w ]{0,20}(?:failed|red)\b)",
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


def verdict_of(text: str, message: str, *, success: bool, words: frozenset[str], question: Question) -> Verdict:
    """Return how a call came out.

    Args:
        text: Its result in lower case, without the command line that it repeats.
        message: What the tool reports to have gone wrong.
        success: Whether it reports a success.
        words: The words of the result.
        question: What was asked for.
    """
    has_code = (
        not ENDS.isdisjoint(words)
        or "\n? " in text
        or "\n$? " in text
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
        said = _refuses(body, words, question)
        if said != "failed":
            if said == "succeeded" and _is_doubtful(body):
                return Verdict("doubtful", body)
            return NEITHER if said == "neither" else SUCCEEDED
    body = ENVELOPE.sub("", body).strip()
    if _is_no_failure(code, body) or _asks_whether(code, body, question):
        return NEITHER
    return Verdict("failed", body[:FIRST_CHARS])


def _has_part(text: str) -> bool:
    edges = text if len(text) <= SHORT else text[:LINE] + text[-LINE:]
    return any(map(edges.__contains__, HINT_PARTS))


def _refuses(body: str, words: frozenset[str], question: Question) -> Outcome:
    """Whether a result says that what was asked was refused or went wrong."""
    if body.startswith("<") and len(body) <= SHORT and STRUCTURED.search(body, 0, FIRST_CHARS) is None:
        bare = TAG.sub(" ", body).strip()
        body = bare if bare and len(bare) <= LINE else body
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
    if WELL.match(first):
        return "succeeded"
    if OPENING.match(first) or _is_coded(first) or ERROR_CODE.search(first):
        return "failed"
    if _is_message((first, *ends)) or any(NAMED.match(line) for line in lines[:FEW]):
        return "failed"
    if LISTED.match(first) or LETTER.match(first):
        return "succeeded"
    if len(lines) < FEW and any(PROGRAM.match(line) and not REPORT.match(line) and is_strong(line) for line in ends):
        return "failed"
    if len(body) > LINE or len(lines) > FEW or (len(lines) > 1 and all(ITEM.match(line) for line in lines)):
        return "succeeded"
    return _refuses_in_words(body, words, question)


def _is_doubtful(body: str) -> bool:
    """Whether a short answer has a word of a refusal.

    An answer with fields must have it in what it says of itself, not in what it tells.
    """
    if len(body) > LINE or body.count("\n") >= FEW:
        return False
    if FIELDS.match(body) and not body.startswith("<"):
        said = [value for name, value in _decoded(body).items() if name in SAID and isinstance(value, str)]
        doubts = any(not DOUBTS.isdisjoint(WORDS.findall(text)) for text in said)
    else:
        told = TAG.sub(" ", body) if body.startswith("<") else body
        doubts = not DOUBTS.isdisjoint(WORDS.findall(told)) and not WELL.match(told)
        doubts = doubts and not DOUBTS.isdisjoint(WORDS.findall(REPORT.sub("", told)))
    return doubts and not any(each.search(body) for each in (VERDICT, COUNTED, NO_HITS, YET))


def _refuses_in_words(body: str, words: frozenset[str], question: Question) -> Outcome:
    """Whether a short answer says no; what names the thing that was asked for may be the answer."""
    if "\n" not in body and ANSWERED.match(body):
        return "failed"
    if VERDICT.search(body) or COUNTED.search(body):
        return "succeeded"
    told = ASIDE.sub(" ", REPORT.sub("", body))
    if not told.strip():
        return "succeeded"
    if "\n" not in body and YET.search(told) and not is_strong(told):
        return "neither"
    if SAYS_NO.search(told) or FOREIGN.search(told if told.isascii() else told.translate(BARE)):
        return "failed"
    acts = question.changes or bool(question.payload or question.maybe)
    if acts and CHANGED.isdisjoint(words) and YES.isdisjoint(words) and not told.split(None, 1)[0].endswith("ed"):
        return "failed" if is_strong(told) or not NEGATIVE.isdisjoint(words) or STATE.search(told) else "succeeded"
    state = STATE.search(told)
    if state is None or state.start() == 0:
        return "neither" if len(words) <= STATE_WORDS and "not" in words else "succeeded"
    if acts or len(words) < STATE_WORDS:
        return "neither"
    literals = terms_of(question).literals
    return "neither" if any(plain(word) in literals for word in words) else "failed"  # it names what was asked for


def _is_coded(line: str) -> bool:
    found = CODED.match(line)
    return found is not None and (not found[1] or not HINTS.isdisjoint(WORDS.findall(found[1])))


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
STATE_NAME: Final = re.compile(r"^(?:status|state|result|outcome|type|title|level|kind|severity|verdict|response|ack)$")
REFUSAL: Final = re.compile(
    r"^(?:error|err|denied|refused|rejected|forbidden|unauthori[sz]ed|fault|nok|ko|nak|invalid|failure"
    r"|not[ _](?:allowed|permitted|accepted|authori[sz]ed|executed)|(?:permission|access)[ _]denied)$"
)
THINGS_OWN: Final = words_of("id job case number ref title name order claim ticket task run invoice sample")
REASONS: Final = words_of("reason message msg detail details why cause because code hint")
"""Fields of the state of a thing, and fields that tell why a call was refused."""

SAID: Final = REASONS | words_of("warning warnings notice remark status result response ack")
"""Fields of an answer that may say in words that it is a refusal."""

TAG: Final = re.compile(r"<[^<>]{0,200}>")

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
