"""What one tool call asked, did and brought: read once for each call, and shared by all detectors.

A result is read as a set of words and a list of numbers. What differs at every call by itself is left out: moments,
durations of the call, addresses, hashes, and fields that by their name hold ids of requests, tokens or counts of
attempts. The order and the layout of a result do not matter. What was asked is read by `questions`, whether the call
failed and of what cause by `failures`.

Every call is read in a time that is bounded by `READ_CHARS`, not by its size.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from watchkeeper.observers.questions import (
    CODE,
    READ_CHARS,
    THINGS,
    Argument,
    Question,
    arguments_of,
    read_arguments,
    settle,
    spellings,
    terms_of,
    words_of,
)
from watchkeeper.observers.failures.causes import Failure, failure_of
from watchkeeper.observers.failures.refusals import CHANGED, YES, Outcome, Verdict, verdict_of
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import KEPT_CALLS
from watchkeeper.tools.context import ToolInvoked, error_message, is_success

TOKEN: Final = re.compile(
    r"[ \t\r\"':,;.()<>=/|*#!?@&^~$%+]{0,20}+"  # what is between, skipped at once
    r"(?:([a-z\u00aa-\uffff]\w*+(?:-\w+(?:-\w+)*|)|[\n{}\[\]]"  # a word, or the end of a row
    r"|[0-9][0-9]{0,8}+(?=[^\w.,:% -]|\Z| (?![smhdµu])|[.,](?!\d))"  # most numbers, for speed; all others come below
    # a day, a number with what belongs to it, if it is none of those below
    r"|(?=[-\d])(?!\d{4}-\d\d-\d\d[t ]\d|\d\d?:\d\d:\d"
    r"|\d+(?:\.\d+)? ?(?:s|secs?|seconds?|m|min|minutes?|h|hours?|d|days?) ago\b"
    r"|\d+h ?\d+m(?: ?\d+s)?\b|\d+m ?\d+(?:\.\d+)?s\b|\d+\.\d+ ?s(?:ecs?|econds?)?\b"
    r"|1\d{9}(?:\d{3})?(?:\.\d+)?\b)(?:\d{4}-\d\d-\d\d|-?\d\d?:\d\d(?!\d)|-?\d+(?:[.,]\d+)*(?: (?:ms|s|sec|seconds|min"
    r"|minutes|µs|us)\b|[\w%]*(?:-\w+)*)))|\\[nrt]"
    # moments, with or without a day; lasting hours and minutes; seconds and milliseconds since 1970
    r"|(?=\d)(?:\d{4}-\d\d-\d\d[t ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:z|[+-]\d\d:?\d\d)?"
    r"|\d\d?:\d\d:\d\d(?:[.,]\d+)?z?"
    r"|\d+(?:\.\d+)? ?(?:s|secs?|seconds?|m|min|minutes?|h|hours?|d|days?) ago\b|\d+h ?\d+m(?: ?\d+s)?\b"
    r"|\d+m ?\d+(?:\.\d+)?s\b|\d+\.\d+ ?s(?:ecs?|econds?)?\b|1\d{9}(?:\d{3})?(?:\.\d+)?\b))"
)
"""One pass over a result in small letters; what is matched and not kept passes."""

MIXED: Final = re.compile(r"[a-z]\d|\d[a-z]")
PASSING_FIELD: Final = re.compile(
    r"(?:[a-z]+[_-])*(?:(?:request|req|trace|span|correlation|session|transaction|txn|nonce|etag|cursor|timestamp|ts"
    r"|elapsed|duration|took|uptime|age|attempts?|tries|try|polls?|looks?|calls?|seq|pid|checked|asked|queried|polled"
    r"|fetched|refreshed|time|runtime|nonce|response-time|wall|token|hash|sha|sha256|md5|digest|checksum|rev|revision"
    r"|rid|tid|seed|execution_count|seconds|secs)(?:[_-]?(?:id|uuid|no|nr|at|ms|s|sec|secs|seconds|hash|number|key|token"
    r"|time|ref)){0,3}|(?:query|server|exec|execution|total|cpu|read|load|db|sql|tool|fetch|op)_?(?:ms|millis|secs|seconds"
    r"|time)|[a-z_]+_(?:at|ts|hash|token|elapsed|rev))|ms|millis|msec|requestid|traceid|in|after|within|real|user|sys"
)
"""Words after which a number, or a code, differs by itself."""

UUID_CHARS: Final = 36
LONGEST_FIELD: Final = 100
"""A longer word is no name of such a field."""

MEASURED: Final = frozenset(("in", "after", "within", "real", "user", "sys"))
"""Words after which only a duration passes."""

LASTED_FIRST: Final = re.compile(r"\A\s*[(\[](?:[\d.,]+ ?m?s|\d\d?:\d\d(?::\d\d)?)[)\]]")
LASTED_LAST: Final = re.compile(r"[(\[](?:[\d.,]+ ?m?s|\d\d?:\d\d(?::\d\d)?)[)\]]\s*\Z|, [\d.,]+ ?ms(?=\)\s*\Z)")
"""How long a call lasted, or when it was made, at the beginning and at the end of its result."""

UNITS: Final = re.compile(r"[\d.,]+ ?(?:ns|µs|us|ms|msec)|\d+[.,]\d+ ?(?:s|secs?|seconds?)")
FOLLOWED: Final = frozenset(("exit", "code", "status", "exit_code", "returncode", "exitcode", "rc"))
"""Words after which a zero says nothing."""


RED: Final = re.compile(
    r"\b(?<!\b0 )(?<!\bno )(?:fail(?:ed|s|ure|ures|ing)?|error|errors|exception|traceback|mismatch|invalid|denied"
    r"|refused|forbidden|unauthorized|timed out|timeout|red|rejected|violations?|broken|conflict|unreachable"
    r"|fehlgeschlagen|fehler|abgelehnt|[ée]chec|erreur|fall[oó])\b(?!\W{0,4}(?:0\b|null|none|false|\[\]))"
)
FINAL: Final = re.compile(
    r"\b(?<!\b0 )(?<!\bno )(?<!\bif )(?:failed|cancell?ed|aborted|terminated|killed|dead|lost|crashed|expired|rejected"
    r"|declined|stopped|gone|exited|deadlettered)\b(?!\W{0,4}(?:0\b|null|none|false|\[\]|[1-9]))"
)
ACK_WORDS: Final = 25
"""An acknowledgement has at most so many words."""

BRIEF: Final = 3
"""An answer of so many words and numbers that says no no acknowledges what may be a change, in any language."""

COMMENT: Final = re.compile(r"(?:^|(?<=[;{},]))[^\S\n]*//.*$|(?:^|(?<=\s))#(?:[^\S\n].*)?$", re.MULTILINE)
"""A comment in a program; not the rest of an address, of a division or of a number such as ``#12``."""

AGAIN: Final = re.compile(
    r"\b(?:(?:just |only )?(?:a )?(?:(?:kind|gentle|friendly|short|quick|second|another) )*reminder|once (?:more|again)"
    r"|again|(?:just )?following up|follow-?up|any (?:news|update)s?|did you (?:see|get|receive|read) my (?:\w+ )?\w+"
    r"|as i (?:wrote|said|asked)|(?:please|kindly) (?:note|remember)|checking in|still waiting|urgent"
    r"|(?:zur |kurze |freundliche )*erinnerung|noch ?(?:ein)?mal|nochmals|bitte beachten|wie geschrieben"
    r"|please|kindly|bitte|still)\b[\s:,.;?!-]*",
    re.IGNORECASE,
)
"""What a message says that asks for the same again."""

ENDS: Final = frozenset("\n{}[]")
ROW_WORDS: Final = 2
"""A row with fewer words and numbers is not told apart."""

NOUGHT: Final = frozenset(("0", "1"))
DIGITS: Final = frozenset("-0123456789")
DAY: Final = re.compile(r"(?:19|20)\d{6}")
DAY_CHARS: Final = 8
AMOUNT: Final = re.compile(r"\d+(?:\.\d+)?")
AMOUNTS: Final = 4
"""What has more numbers is not a setting that is tried in steps."""

ENVELOPE: Final = words_of(
    "a an the of in on at to for from by with and or is are was were be been has have had it its this that there"
    " here your you i we no not none any all as if so but again still yet now already nothing null true false ok"
    " okay done success successful successfully succeeded result results status code data message output stdout"
    " stderr exit error errors found match matches matched hit hits item items total count rows row empty please"
    " try could couldn did didn does doesn t can cannot can't s zero 0 yes response reply returned returning see"
    " info note warning trace span request req attempt poll look call id ms took elapsed time unchanged same noted"
    " acknowledged recorded received thanks thank sorry unable query search searched ack"
)
"""Words that frame an answer and say nothing about the matter."""

FRAME: Final = ENVELOPE | words_of("table tr td th ul li p b div span wall output")
"""The same, and names of tags."""

NO_WORDS: Final = words_of(
    "no not none nothing zero empty unknown missing without cannot null keine kein nicht nichts aucun aucune rien"
    " ningun ninguna nada geen niets couldn didn doesn"
)
"""Words of an answer that says no."""

RED_WORDS: Final = words_of(
    "fail failed fails failure failures failing error errors exception traceback mismatch invalid denied refused"
    " forbidden unauthorized timed timeout red rejected violation violations broken conflict unreachable"
    " fehlgeschlagen fehler abgelehnt échec echec erreur fallo falló"
)
"""Words of an answer that says that something failed."""

FINAL_WORDS: Final = words_of(
    "failed canceled cancelled aborted terminated killed dead lost crashed expired rejected declined stopped gone"
    " exited deadlettered"
)
"""Words for a state that something does not leave any more."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one call did and what it brought.

    Attributes:
        index: Its number in the session, from 1.
        invoked: The call itself.
        given: Its arguments, or the text that the model wrote in their place.
        at: When it began, in seconds since 1970.
        success: Whether it succeeded by what the tool reported.
        outcome: Whether it succeeded, failed, or neither, by what the tool reported and by what it says.
        message: If it failed, or may have: what it says went wrong, in small letters.
        likeness: Fingerprint of the words of a short result, without names, numbers and words of the question; else 0.
        doing: Fingerprint of the tool with the program and subcommand of a command line, the verb of a statement or the
            operation that is named.
        things: The names among its arguments, in their spellings.
        named: The names within them, as they stand; without operations; of numbers only the longer ones.
        exact: Fingerprint of the tool and all arguments but those that differ by themselves.
        action: The same without arguments that only say how much to show.
        literals: Names and numbers that it asks for, in small letters and without punctuation.
        names: Those of them that are the whole value of an argument.
        keys: Those of ``names`` that are no days.
        words: The other words of its question.
        amount: If it changes something: the numbers that are written, if they are few.
        likes: Fingerprint of what is written without numbers.
        target: Fingerprint of what it changes or looks at: its arguments without what is written.
        state: If it changes something: a fingerprint of what is written; else 0.
        before: If it says what was there before: a fingerprint of that; else 0.
        clear: Whether arguments show that it changes something, and not the result alone.
        echo: Words and numbers of the arguments.
        items: What the result says: words, without those that frame an answer.
        numbers: The numbers of the result, in their order.
        labels: The word or number before each of them.
        shape: Fingerprint of ``items``, without words of the question.
        rows: Fingerprints of the rows of the result.
        size: How many words and numbers the result has.
        is_no: Whether the result is short and says no, or says nothing that is not in the question.
        is_red: Whether it says that something failed.
        is_final: Whether it says that something has ended for good.
        is_pause: Whether it asks for nothing but, at most, a number, and is told nothing.
    """

    index: int
    invoked: ToolInvoked
    given: str | Sequence[Argument]
    at: float
    success: bool
    outcome: Outcome
    message: str
    likeness: int
    doing: int
    things: tuple[str, ...]
    named: tuple[str, ...]
    exact: int
    action: int
    literals: frozenset[str]
    names: frozenset[str]
    keys: frozenset[str]
    words: frozenset[str]
    amount: tuple[float, ...]
    likes: int
    target: int
    state: int
    before: int
    clear: bool
    echo: frozenset[str]
    items: frozenset[str]
    numbers: tuple[str, ...]
    labels: tuple[str, ...]
    shape: int
    rows: frozenset[int]
    size: int
    is_no: bool
    is_red: bool
    is_final: bool
    is_pause: bool

    @property
    def name(self) -> str:
        """The tool."""
        return self.invoked.name

    @property
    def addresses(self) -> frozenset[str]:
        """The files, addresses, hosts, ids and names that its arguments and its command line name, in small letters; of
        a path also its last part, of a URL also its host.
        """
        return frozenset([*self.things, *(each for thing in self.named for each in spellings(thing.lower()))])

    @property
    def failure(self) -> Failure:
        """What is to be known of a call that failed."""
        return failure_of(self.message, unknown_tool=self.invoked.outcome == "unknown_tool", echo=self.echo)

    @property
    def is_ack(self) -> bool:
        """Whether the result says nothing about the matter."""
        return not (
            self.size > ACK_WORDS
            or self.is_red
            or self.items - self.echo - CHANGED
            or set(self.numbers) - self.echo - NOUGHT
        )


def read_call(invoked: ToolInvoked, index: int) -> Reading:
    """Return what a call asked, did and brought.

    Args:
        invoked: The call.
        index: Its number in the session, from 1.
    """
    params = invoked.params
    given = params if isinstance(params, str) else arguments_of(params)
    question = read_arguments(given)
    text = result_of(invoked.rendered_output, question).lower()
    tokens = tokens_of(text)
    found = frozenset(tokens) - ENDS
    verdict = verdict_of(
        text,
        error_message(invoked) or "",
        success=is_success(invoked),
        words=found,
        question=question,
    )
    may_be_written = bool(question.maybe)
    settle(question, written=may_be_written and (verdict.outcome == "failed" or _acknowledges(len(tokens), found)))
    return _reading(invoked, index, question, text, tokens, found, verdict)


def _reading(
    invoked: ToolInvoked,
    index: int,
    question: Question,
    text: str,
    tokens: list[str],
    found: frozenset[str],
    verdict: Verdict,
) -> Reading:
    terms = terms_of(question)
    literals, words = terms.literals.difference(question.doing), terms.words  # operations are no names
    asked = " ".join(question.asked).lower()
    spoken = frozenset((*tokens_of(asked), *asked.split()))
    echo = _echo_of(question, spoken)
    numbers, labels, rows = parts_of(tokens, spoken)
    size, success = len(tokens), is_success(invoked)
    items = found.difference(ENVELOPE, numbers)
    is_red = not success or (not RED_WORDS.isdisjoint(found) and RED.search(text) is not None)
    clear = question.changes or bool(question.payload)
    changed = clear or (not is_red and size <= ACK_WORDS and not CHANGED.isdisjoint(found))
    state = _state_after(question) if changed else 0
    says_nothing = not (items - echo or frozenset(numbers) - echo - NOUGHT or found & YES)
    amount, likes = amount_of(question.payload or question.exact) if state else ((), 0)
    key = (invoked.name, *question.shown)
    return Reading(
        index=index,
        invoked=invoked,
        given=question.given,
        at=invoked.created_at.timestamp() - invoked.duration_ms / 1000,
        success=success,
        outcome=verdict.outcome,
        message=verdict.message or (invoked.outcome if verdict.outcome == "failed" else ""),
        likeness=_likeness(tokens, spoken) if size <= ACK_WORDS else 0,
        doing=hash((invoked.name, *question.doing)),
        things=tuple(question.things),
        named=tuple([term for term in terms.things[:THINGS] if _is_name(term, question.doing)]),
        exact=hash((invoked.name, *question.exact, *question.payload)),
        action=hash((*key, *question.payload)),
        literals=literals,
        names=frozenset(question.names),
        keys=frozenset([name for name in question.names if len(name) != DAY_CHARS or not DAY.fullmatch(name)]),
        words=words - ENVELOPE,
        amount=amount,
        likes=likes,
        target=hash(frozenset(question.places) or literals or words) if question.payload else hash(("", *key)),
        state=state,
        before=hash(tuple(map(normal, question.old))) if question.old else 0,
        clear=clear,
        echo=echo,
        items=items,
        numbers=numbers,
        labels=labels,
        shape=hash(items - spoken),
        rows=rows,
        size=size,
        is_no=size <= 4 * ACK_WORDS and (not NO_WORDS.isdisjoint(found) or "0" in numbers or says_nothing),
        is_red=is_red,
        is_final=not FINAL_WORDS.isdisjoint(found) and FINAL.search(text) is not None,
        is_pause=not asked and size <= 8 and not question.payload and bool(question.exact),
    )


def _echo_of(question: Question, spoken: frozenset[str]) -> frozenset[str]:
    """Return the words that an answer may only repeat: what was asked, and what was written."""
    written = " ".join([text for text in (*question.payload, *question.raw) if text])
    return spoken.union(tokens_of(bounded(written).lower())) if written else spoken


def _state_after(question: Question) -> int:
    """Return what a change leaves a thing in, as far as the arguments say."""
    return hash(tuple(map(normal, question.payload)) if question.payload else ("", *map(normal, question.exact)))


def _likeness(tokens: Sequence[str], asked: frozenset[str]) -> int:
    words = frozenset([token for token in tokens if token.isalpha() and token not in asked])
    words -= FRAME
    return hash(words) if words else 0


def parts_of(tokens: Sequence[str], asked: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[int]]:
    """Return the numbers of a result, what stands before each, and fingerprints of its rows.

    Rows are those that say enough to be told apart, without words that frame an answer, and not only words of the
    question.
    """
    numbers: list[str] = []
    labels: list[str] = []
    rows: list[int] = []
    row: list[str] = []
    before = ""
    for token in (*tokens, "\n"):
        if token in ENDS:
            if len(row) >= ROW_WORDS and not asked.issuperset(row):
                rows.append(hash(frozenset(row)))
            row = []
        else:
            if token not in ENVELOPE:
                row.append(token)
            if token[0] in DIGITS:
                numbers.append(token)
                labels.append(before)
        before = token
    return tuple(numbers), tuple(labels), frozenset(rows)


def _is_name(term: str, doing: Sequence[str]) -> bool:
    return term[0] != "-" and (len(term) > 2 or not term.isdigit()) and (not doing or term.lower() not in doing)


def _acknowledges(size: int, found: frozenset[str]) -> bool:
    """Whether a result says no more than that something was done."""
    if size > ACK_WORDS:
        return False
    brief = size <= BRIEF and "0" not in found and NO_WORDS.isdisjoint(found) and any(map(str.isalpha, found))
    return not found or brief or not (CHANGED.isdisjoint(found) and YES.isdisjoint(found))


def result_of(text: str, question: Question) -> str:
    """Return what is read of a result: bounded, without the command line and the duration that frame it."""
    for raw in question.raw:
        place = text.find(raw, 0, len(raw) + 8)
        if raw and place >= 0:
            text = text[place + len(raw) :]
    text = bounded(text)
    first = LASTED_FIRST.match(text)
    text = text[first.end() :] if first else text
    bare = text.rstrip()
    is_closed = bare.endswith((")", "]")) and (bare[-2:-1] == "s" or bare[-2:-1].isdecimal())
    return LASTED_LAST.sub("", text) if is_closed else text  # a search through all of it, which few results need


def tokens_of(text: str) -> list[str]:
    """Return the words, numbers and ends of rows of a text in small letters, in their order, without what passes."""
    kept: list[str] = []
    before = ""
    for token in TOKEN.findall(text):
        if token.isalpha():
            kept.append(token)
            before = token
        elif token in ENDS:
            kept.append(token)
        elif not token:
            if before and kept and kept[-1] == before and is_passing(before):
                kept.pop()  # the name of what passes
            before = ""
        elif token.isdigit():
            if before == "in" and kept and kept[-1] == "[":
                pass  # the count of a notebook's cells: In [12]
            elif not (before and (is_passing(before) or (token == "0" and before in FOLLOWED))) or before in MEASURED:
                kept.append(token)
            elif kept and kept[-1] == before:
                kept.pop()
            before = token
        else:
            compound = compound_of(token)
            if not compound.passes_after(before):
                kept.append(compound.bare)
            elif kept and kept[-1] == before and is_passing(before):
                kept.pop()
            before = token
    return kept


class Compound(NamedTuple):
    """A number, or a word with digits or marks in it.

    Attributes:
        is_code: Whether it is a hash, an address or the id of a machine.
        has_digit: Whether a digit stands in it.
        is_time: Whether it is a time span.
        bare: The same without the parts that are codes: ``worker-7f9c4-x2x9q`` is one ``worker``.
    """

    is_code: bool
    has_digit: bool
    is_time: bool
    bare: str

    def passes_after(self, before: str) -> bool:
        """Return whether it differs at every call by itself if it stands after a word."""
        if self.is_code or not self.has_digit:
            return self.is_code
        return self.is_time if before in MEASURED else is_passing(before)


@lru_cache(maxsize=8192)
def compound_of(token: str) -> Compound:
    """Return what is to be known of a word that has not only letters, and not only digits."""
    may_be_code = token.isalnum() or len(token) == UUID_CHARS
    return Compound(
        is_code=may_be_code and CODE.fullmatch(token) is not None,
        has_digit=any(map(str.isdigit, token)),
        is_time=not token[0].isalpha() and UNITS.fullmatch(token) is not None,
        bare=_without_codes(token) if "-" in token else token,
    )


def _without_codes(word: str) -> str:
    first, *rest = word.split("-")
    if not first:
        return word
    kept = [part for part in rest if len(part) < 4 or part.isdigit() or not MIXED.search(part)]
    if len(kept) < len(rest):
        kept = [part for part in kept if len(part) < 4 or not part.isdigit()]
    return "-".join([first, *kept])


@lru_cache(maxsize=2048)
def is_passing(before: str) -> bool:
    """Return whether what stands after a word differs at every call by itself."""
    return len(before) <= LONGEST_FIELD and PASSING_FIELD.fullmatch(before) is not None


def bounded(text: str) -> str:
    """Return a text, or both ends of a long one with a fingerprint of its middle between them."""
    if len(text) <= READ_CHARS:
        return text
    half = READ_CHARS // 2
    return f"{text[:half]} middle{hash(text[half:-half])} {text[-half:]}"


def normal(text: str) -> str:
    """Return a text without its layout and, if it has several lines, without comments; else without words that only
    ask again.
    """
    bare = COMMENT.sub("", text) if "\n" in text else AGAIN.sub("", text)
    return "".join(bare.lower().split()) or "".join(text.split())


def amount_of(written: Sequence[str]) -> tuple[tuple[float, ...], int]:
    """Return the numbers of what is written, if they are few, and a fingerprint of the rest."""
    text = " ".join(written)
    found = AMOUNT.findall(text)
    return tuple(map(float, found)) if len(found) <= AMOUNTS else (), hash(AMOUNT.sub("#", text))


# --- the shared fold --------------------------------------------------------------------------------------------------


class Readings:
    """The readings of the newest calls of a trajectory."""

    __slots__ = ("count", "newest")

    def __init__(self) -> None:
        """Begin before the first call."""
        self.newest: deque[Reading] = deque(maxlen=KEPT_CALLS)
        self.count = 0

    def follow(self, calls: Sequence[ToolInvoked], count: int) -> None:
        """Read the calls that are new, at most the newest `KEPT_CALLS`."""
        for place in range(max(self.count, count - KEPT_CALLS), min(count, len(calls))):
            self.newest.append(read_call(calls[place], place + 1))
        self.count = count

    def since(self, index: int) -> Sequence[Reading]:
        """Return the kept readings of the calls after a number, the oldest first."""
        found: list[Reading] = []
        for reading in reversed(self.newest):
            if reading.index <= index:
                break
            found.append(reading)
        return found[::-1]


def readings_of(context: ObserverContext) -> Readings:
    """Return the readings of a run's newest calls; each call is read once, whoever asks first."""
    trajectory = context.trajectory
    readings = trajectory.fold(Readings, Readings)
    if readings.count != trajectory.count:
        readings.follow(context.session[ToolInvoked].all(), trajectory.count)
    return readings
