"""What one tool call did and what it brought: read once for each call and shared by the detectors.

A result is read as a set of words and a list of numbers. What differs at every call by itself is left out: moments,
durations of the call, addresses, hashes, and fields that by their name hold ids of requests, tokens or counts of
attempts. The order and the layout of a result do not matter. Arguments are the question: those that only say how much
of the answer to show, or that differ by themselves, do not make a question new. Names of tools are never read; names
of arguments are hints; command lines are read where an argument holds one (`commands`).

Every call is read in a time that is bounded by `READ_CHARS`, not by its size.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, Final, cast

import msgspec

from watchkeeper.observers.commands import is_line, read_line
from watchkeeper.observers.vocabulary import CHANGED, ENVELOPE, FINAL_WORDS, NO_WORDS, RED_WORDS, YES
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import KEPT_CALLS
from watchkeeper.tools.context import ToolInvoked

READ_CHARS: Final = 4_000
"""The characters of a result or of an argument that are read; of longer texts the middle is only compared."""

READ_ARGUMENTS: Final = 5 * READ_CHARS
"""The characters of all arguments of a call that are read, together."""

READ_VALUES: Final = 100
"""The number of values among a call's arguments that are read."""

TOKEN: Final = re.compile(
    r"[ \t\r\"':,;.()<>=/|*#!?@&^~$%+]{0,20}+"  # what is between, skipped at once
    r"(?:([a-z\u00aa-\uffff]\w*(?:-\w+)*|[\n{}\[\]]"  # a word, or the end of a row
    # a day, a number with what belongs to it, if it is none of those below
    r"|(?!\d{4}-\d\d-\d\d[t ]\d|\d\d?:\d\d:\d|\d+(?:\.\d+)? ?(?:s|secs?|seconds?|m|min|minutes?|h|hours?|d|days?) ago"
    r"|\d+h ?\d+m|\d+m ?\d+(?:\.\d+)?s\b|\d+\.\d+ ?s(?:ecs?|econds?)?\b|1\d{9}(?:\d{3})?(?:\.\d+)?\b)"
    r"(?:\d{4}-\d\d-\d\d|-?\d\d?:\d\d(?!\d)"
    r"|-?\d+(?:[.,]\d+)*(?: (?:ms|s|sec|seconds|min|minutes|µs|us)\b|[\w%]*(?:-\w+)*)))"
    r"|\\[nrt]"
    # moments, with or without a day; lasting hours and minutes; seconds and milliseconds since 1970
    r"|\d{4}-\d\d-\d\d[t ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:z|[+-]\d\d:?\d\d)?"
    r"|\d\d?:\d\d:\d\d(?:[.,]\d+)?z?"
    r"|\d+(?:\.\d+)? ?(?:s|secs?|seconds?|m|min|minutes?|h|hours?|d|days?) ago\b"
    r"|\d+h ?\d+m(?: ?\d+s)?\b|\d+m ?\d+(?:\.\d+)?s\b|\d+\.\d+ ?s(?:ecs?|econds?)?\b"
    r"|1\d{9}(?:\d{3})?(?:\.\d+)?\b)"
)
"""One pass over a result in small letters; what is matched and not kept passes."""

CODE: Final = re.compile(
    r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{5,64}|0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
"""Hashes, addresses and ids."""

MIXED: Final = re.compile(r"[a-z]\d|\d[a-z]")
PASSING_FIELD: Final = re.compile(
    r"(?:[a-z]+[_-])*(?:(?:request|req|trace|span|correlation|session|transaction|txn|nonce|etag|cursor|timestamp|ts"
    r"|elapsed|duration|took|uptime|age|attempts?|tries|try|polls?|looks?|calls?|seq|pid|checked|asked|queried|polled|fetched"
    r"|refreshed|time|runtime|nonce"
    r"|response-time|wall|token|hash|sha|sha256|md5|digest|checksum|rev|revision|rid|tid|execution_count|seconds|secs)"
    r"(?:[_-]?(?:id|uuid|no|nr|at|ms|s|sec|secs|seconds|hash|number|key|token|time|ref)){0,3}"
    r"|(?:query|server|exec|execution|total|cpu|read|load|db|sql|tool|fetch|op)_?(?:ms|millis|secs|seconds|time)"
    r"|[a-z_]+_(?:at|ts|hash|token|elapsed|rev))|ms|millis|msec"
    r"|requestid|traceid|in|after|within|real|user|sys"
)
"""Words after which a number, or a code, differs by itself."""

LONGEST_NAME: Final = 100
"""A longer word is no name of such a field."""

MEASURED: Final = frozenset(("in", "after", "within", "real", "user", "sys"))
"""Words after which only a duration passes."""

UNITS: Final = re.compile(r"[\d.,]+ ?(?:ns|µs|us|ms|msec)|\d+[.,]\d+ ?(?:s|secs?|seconds?)")
FOLLOWED: Final = frozenset(("exit", "code", "status", "exit_code", "returncode", "exitcode", "rc"))
"""Words after which a zero says nothing."""


RED: Final = re.compile(
    r"(?<!\b0 )(?<!\bno )\b(?:fail(?:ed|s|ure|ures|ing)?|error|errors|exception|traceback|mismatch|invalid|denied"
    r"|refused|forbidden|unauthorized|timed out|timeout|red|rejected|violations?|broken|conflict|unreachable"
    r"|fehlgeschlagen|fehler|abgelehnt|[ée]chec|erreur|fall[oó])\b(?!\W{0,4}(?:0\b|null|none|false|\[\]))"
)
FINAL: Final = re.compile(
    r"(?<!\b0 )(?<!\bno )(?<!\bif )\b(?:failed|cancell?ed|aborted|terminated|killed|dead|lost|crashed|expired|rejected"
    r"|declined|stopped|gone|exited|deadlettered)\b(?!\W{0,4}(?:0\b|null|none|false|\[\]|[1-9]))"
)
ACK_WORDS: Final = 25
"""An acknowledgement has at most so many words."""

ENDS: Final = frozenset("\n{}[]")
ROW_WORDS: Final = 2
"""A row with fewer words and numbers is not told apart."""

LONG_QUESTION: Final = 4
"""In a question with more terms, single digits say nothing."""

REMARK: Final = re.compile(r"\s--\s.*$|/\*.{0,200}?\*/|\b(?:limit|offset)\s+\d+\b", re.M | re.I)
QUOTED: Final = re.compile(r"(?<!\w)['\"]([\w .:-]{2,40})['\"]")
SQL_CHANGE: Final = re.compile(r"\s*(?:insert|update|delete|create|alter|drop|merge|truncate|grant|revoke)\s", re.I)
RANGE: Final = re.compile(r" ?\[? ?-?\d+ ?(?:[-:,.]{1,3} ?-?\d+)? ?\]? ?")
LITERAL: Final = re.compile(r"[\d_/\\.@#-]|[a-z][A-Z]|^[A-Z]{2,}$")
NOUGHT: Final = frozenset(("0", "1"))
DIGITS: Final = frozenset("-0123456789")
DAY: Final = re.compile(r"(?:19|20)\d{6}")
AMOUNT: Final = re.compile(r"\d+(?:\.\d+)?")
AMOUNTS: Final = 4
"""What has more numbers is not a setting that is tried in steps."""

ASKED: Final = re.compile(r"(?<![\w@#./\\~:+-])[\w@#./\\~:+-]*\w")
PLAIN: Final = re.compile(r"[^0-9a-z]+")
LEADING_ZEROS: Final = re.compile(r"(?<!\d)0+(?=\d)")

SHOWN_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:limit|max|maximum|min|count|offset|page|pages|per|size|start|end|first|last|from|to|line|lines|range"
    r"|skip|top|take|head|tail|depth|width|context|before|after|timeout|wait|seconds|workers|jobs|parallel|retries"
    r"|chars|characters|bytes|length|results|hits|rows|n|k|window|minutes|hours|tries|attempt|cols|columns|indent"
    r"|verbosity|level|since|until|chunk|begin|stop|delay|interval|ms|s|t|sec|secs|duration|time)$"
)
"""Arguments that, as numbers or ranges, say how much of the answer to show."""

FORMAT_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:format|fmt|output|style|sort|sort_by|order|order_by|verbose|verbosity|color|colour|encoding|pretty"
    r"|view|mode|detail|details|render|reporter|lang|locale|tz|timezone|columns|fields|include|show|as)$"
)
PASSING_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:(?:request|req|trace|span|correlation|idempotency|session|nonce|client|call|message)_?(?:id|key|uuid|"
    r"token|ref)|nonce|timestamp|ts|attempt|tries|seq|reason|reasoning|thought|thoughts|why|rationale|explanation"
    r"|purpose|justification|intent|comment|now|cache_bust|cachebuster)$"
)
PAYLOAD_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:content|contents|body|new|old|new_\w+|old_\w+|replacement|replace|replace_with|patch|diff|before"
    r"|updates?|changes?|set|payload|edits?|append|insert|html|markdown)$"
)
MAYBE_PAYLOAD_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:text|value|values|data|message|fields|record|note|notes|amount|qty|quantity|status|state|title|"
    r"subject|comment|description|code|source|with|delta|rate|price|level|assignee|tags?|labels?|config|settings?)$"
)
OLD_KEYS: Final = re.compile(r"^(?:.*_)?(?:old|old_\w+|before|search|find|original)$")
LINE_KEYS: Final = re.compile(r"^(?:.*_)?(?:cmd|command|command_line|cmdline|script|line|shell|argv|bash|exec|run|sh)$")
HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one call did and what it brought.

    Attributes:
        index: Its number in the session, from 1.
        name: The tool.
        at: When it began, in seconds since 1970.
        success: Whether it succeeded by what the tool reported.
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
    name: str
    at: float
    success: bool
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
    def is_ack(self) -> bool:
        """Whether the result says nothing about the matter."""
        return not (
            self.size > ACK_WORDS
            or self.is_red
            or self.items - self.echo - CHANGED
            or set(self.numbers) - self.echo - NOUGHT
        )


class Question(msgspec.Struct, gc=False):
    """What the arguments of a call say; filled while they are read."""

    exact: list[str] = []
    shown: list[str] = []
    asked: list[str] = []
    payload: list[str] = []
    old: list[str] = []
    raw: list[str] = []
    names: list[str] = []
    places: list[str] = []
    maybe: bool = False
    changes: bool = False


def read_call(invoked: ToolInvoked, index: int) -> Reading:
    """Return what a call did and brought.

    Args:
        invoked: The call.
        index: Its number in the session, from 1.
    """
    question = read_arguments(invoked.params)
    asked = " ".join(question.asked)
    literals, words = terms_of(asked)
    if question.names:
        literals, words = literals.union(question.names), words.difference(question.names)
    tokens = tokens_of(result_of(invoked.rendered_output, question))
    found = frozenset(tokens) - ENDS
    numbers = tuple([token for token in tokens if token[0] in DIGITS])
    labels = tuple([before for before, token in pairwise(("", *tokens)) if token[0] in DIGITS])
    items = found.difference(ENVELOPE, numbers)
    spoken = frozenset(tokens_of(asked))
    written = [text for text in (*question.payload, *question.raw) if text]
    echo = spoken.union(tokens_of(bounded(" ".join(written)))) if written else spoken
    rest = items - spoken
    size = len(tokens)
    is_red = not invoked.success or not (RED_WORDS.isdisjoint(found) or RED.search(_begin(invoked)) is None)
    acknowledged = size <= ACK_WORDS and not CHANGED.isdisjoint(found)
    clear = question.changes or bool(question.payload and (not question.maybe or size <= ACK_WORDS))
    key = (invoked.name, *question.shown)
    state = 0
    if clear or (acknowledged and not is_red):
        state = hash(tuple(map(normal, question.payload)) if question.payload else ("", *map(normal, question.exact)))
    says_nothing = not (rest - echo or frozenset(numbers) - echo - NOUGHT or found & YES)
    amount, likes = amount_of(question.payload or question.exact) if state else ((), 0)
    return Reading(
        index=index,
        name=invoked.name,
        at=invoked.created_at.timestamp() - invoked.duration_ms / 1000,
        success=invoked.success,
        exact=hash((invoked.name, *question.exact, *question.payload)),
        action=hash((*key, *question.payload)),
        literals=literals,
        names=frozenset(question.names),
        keys=frozenset([name for name in question.names if not DAY.fullmatch(name)]),
        words=words,
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
        shape=hash(rest),
        rows=rows_of(tokens, spoken),
        size=size,
        is_no=size <= 4 * ACK_WORDS and (not NO_WORDS.isdisjoint(found) or "0" in numbers or says_nothing),
        is_red=is_red,
        is_final=not FINAL_WORDS.isdisjoint(found) and FINAL.search(_begin(invoked)) is not None,
        is_pause=not asked and size <= 8 and not question.payload and bool(question.exact),
    )


def result_of(text: str, question: Question) -> str:
    """Return what is read of a result: without the command line that a terminal shows first, and bounded."""
    for raw in question.raw:
        place = text.find(raw, 0, len(raw) + 8)
        if raw and place >= 0:
            text = text[place + len(raw) :]
    return bounded(text)


def _begin(invoked: ToolInvoked) -> str:
    return invoked.rendered_output[:READ_CHARS].lower()


def tokens_of(text: str) -> list[str]:
    """Return the words, numbers and ends of rows of a text, in small letters and in order, without what passes."""
    kept: list[str] = []
    before = ""
    for token in TOKEN.findall(text.lower()):
        if token.isalpha():
            kept.append(token)
            before = token
        elif not token:
            before = ""
        elif token in ENDS:
            kept.append(token)
        elif token.isdigit():
            if not (before and (is_passing(before) or (token == "0" and before in FOLLOWED))) or before in MEASURED:
                kept.append(token)
            before = token
        else:
            if not passes(before, token):
                kept.append(without_codes(token))
            before = token
    return kept


@lru_cache(maxsize=4096)
def without_codes(word: str) -> str:
    """Return a compound word without the parts that are codes: ``worker-7f9c4-x2x9q`` is one ``worker``."""
    first, *rest = word.split("-")
    if not rest or not first:
        return word
    kept = [part for part in rest if len(part) < 4 or part.isdigit() or not MIXED.search(part)]
    if len(kept) < len(rest):
        kept = [part for part in kept if len(part) < 4 or not part.isdigit()]
    return "-".join([first, *kept])


@lru_cache(maxsize=8192)
def passes(before: str, token: str) -> bool:
    """Return whether a number, or a word with digits, differs at every call by itself.

    Args:
        before: The word before it.
        token: The number or the word.
    """
    if CODE.fullmatch(token):
        return True
    if not any(map(str.isdigit, token)):
        return False
    if before in MEASURED:
        return UNITS.fullmatch(token) is not None and not token.isdigit()
    return is_passing(before)


@lru_cache(maxsize=2048)
def is_passing(before: str) -> bool:
    """Return whether what stands after a word differs at every call by itself."""
    return len(before) <= LONGEST_NAME and PASSING_FIELD.fullmatch(before) is not None


def rows_of(tokens: Sequence[str], asked: frozenset[str]) -> frozenset[int]:
    """Return fingerprints of the rows of a result that say enough to be told apart, without words of the question."""
    rows: list[int] = []
    row: list[str] = []
    for token in (*tokens, "\n"):
        if token in ENDS:
            if len(row) >= ROW_WORDS and not asked.issuperset(row):
                rows.append(hash(frozenset(row)))
            row = []
        elif token not in ENVELOPE:
            row.append(token)
    return frozenset(rows)


def bounded(text: str) -> str:
    """Return a text, or both ends of a long one with a fingerprint of its middle between them."""
    if len(text) <= READ_CHARS:
        return text
    half = READ_CHARS // 2
    return f"{text[:half]} middle{hash(text[half:-half])} {text[-half:]}"


def both_ends(text: str) -> str:
    """Return what is read of an argument: as `bounded`, with the fingerprint on a line of its own."""
    if len(text) <= READ_CHARS:
        return text
    half = READ_CHARS // 2
    return f"{text[:half]}\nmiddle{hash(text[half:-half])}\n{text[-half:]}"


def normal(text: str) -> str:
    """Return a text without its layout and its comments."""
    lines = (line.split("#", 1)[0].split("//", 1)[0] for line in text[:20_000].lower().splitlines())
    return "".join("".join(lines).split()) or "".join(text.split())


def amount_of(written: Sequence[str]) -> tuple[tuple[float, ...], int]:
    """Return the numbers of what is written, if they are few, and a fingerprint of the rest."""
    text = " ".join(written)[:READ_CHARS]
    found = AMOUNT.findall(text)
    return tuple(map(float, found)) if len(found) <= AMOUNTS else (), hash(AMOUNT.sub("#", text))


def terms_of(asked: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names and numbers that a question has, and its other words."""
    literals: list[str] = []
    words: list[str] = []
    if asked.isupper() and " " in asked:
        asked = asked.lower()
    literals.extend(PLAIN.sub("", quoted.lower()) for quoted in QUOTED.findall(asked))
    terms = ASKED.findall(asked)
    long = len(terms) > LONG_QUESTION
    for term in terms:
        if not (long and len(term) == 1):
            is_literal, plain = term_of(term)
            (literals if is_literal else words).append(plain)
    return frozenset(literals), frozenset(words) - ENVELOPE


@lru_cache(maxsize=4096)
def term_of(term: str) -> tuple[bool, str]:
    """Return whether a term is a name or a number, and its plain form."""
    if not LITERAL.search(term):
        return False, stem(term.lower())
    if "/" in term or "\\" in term:
        return True, place_of(term)
    return True, LEADING_ZEROS.sub("", PLAIN.sub("", term.lower())) or term


def place_of(path: str) -> str:
    """Return the last two parts of a path, which are the same however it is written."""
    parts = [part for part in re.split(r"[/\\]+", path.lower()) if part not in ("", ".", "..", "~")]
    return "/".join(parts[-2:])


def stem(word: str) -> str:
    """Return a word without the ending of a plural or of a tense."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


# --- arguments --------------------------------------------------------------------------------------------------------


def read_arguments(params: Any) -> Question:
    """Return what arguments ask and what they write."""
    question = Question([], [], [], [], [], [], [], [])
    if isinstance(params, str):
        _read_text("", both_ends(params), question)
        return question
    left = READ_ARGUMENTS
    for path, value in islice(_flat(params), READ_VALUES):
        if isinstance(value, str):
            left -= min(len(value), READ_CHARS)
            value = both_ends(value) if left >= 0 else f"{hash(value)}"  # of the rest only whether it is the same
        key = path.rpartition(".")[2]
        _read_value(path, kind_of_key(key), value, question)
    if not question.asked and not question.payload:
        question.shown = question.exact
    return question


def _read_value(path: str, kind: str, value: Any, question: Question) -> None:
    if value is None or value == "":
        return
    if isinstance(value, str):
        if kind == "passing" or (kind in ("shown", "format") and (kind == "format" or RANGE.fullmatch(value))):
            if kind != "passing":
                question.exact.append(f"{path}={value}")
            return
        _read_text(kind, value, question)
    elif isinstance(value, bool):
        question.exact.append(f"{path}={value}")
    elif kind == "passing":
        return
    elif kind in ("shown", "format"):
        question.exact.append(f"{path}={value}")
    elif kind in ("payload", "maybe"):
        question.payload.append(f"{path}={value}")
        question.maybe = question.maybe or kind == "maybe"
    else:
        _asked(f"{value}", question)


def _read_text(kind: str, text: str, question: Question) -> None:
    if kind == "line" or (not kind and is_line(text)):
        line = read_line(text)
        question.exact.append(" ".join(text.split()))
        question.raw.append(text)
        question.shown.append(line.asked.lower())
        question.asked.append(line.asked)
        question.changes = question.changes or line.changes
        if line.changes:
            question.payload.append(line.written)
            question.places += [place_of(place) for place in line.places]
            if line.before:
                question.old.append(line.before)
    elif kind == "payload":
        question.payload.append(text)
    elif kind == "old":
        question.old.append(text)
        question.payload.append(text)
    elif kind == "maybe":
        question.payload.append(text)
        question.maybe = True
    else:
        if text in ("POST", "PUT", "PATCH", "DELETE") or SQL_CHANGE.match(text):
            question.changes = True
        _asked(text, question)


def _asked(text: str, question: Question) -> None:
    plain = " ".join(REMARK.sub("", text).split())
    if plain and " " not in plain:
        question.names += terms_of(plain)[0] if LITERAL.search(plain) else (stem(plain.lower()),)
    question.exact.append(plain)
    question.shown.append(plain.lower().removeprefix("./").rstrip("/"))
    question.asked.append(plain)


@lru_cache(maxsize=1024)
def kind_of_key(key: str) -> str:
    """Return what the name of an argument says about it; empty if nothing."""
    name = HUMP.sub("_", key[:60]).replace("-", "_").lower()
    kinds = (
        ("passing", PASSING_KEYS),
        ("line", LINE_KEYS),
        ("old", OLD_KEYS),
        ("payload", PAYLOAD_KEYS),
        ("shown", SHOWN_KEYS),
        ("format", FORMAT_KEYS),
        ("maybe", MAYBE_PAYLOAD_KEYS),
    )
    return next((kind for kind, pattern in kinds if pattern.match(name)), "")


def _flat(params: Any, path: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Yield the values of arguments with their names, in the order of the names."""
    if isinstance(params, Mapping):
        named = cast("Any", params)
        for key in sorted(map(str, list(named)[:READ_VALUES])):
            yield from _within(named.get(key), f"{path}.{key}", depth)
    elif isinstance(params, msgspec.Struct):
        for name in params.__struct_fields__:
            yield from _within(getattr(params, name), f"{path}.{name}", depth)
    elif is_dataclass(params):
        for item in fields(params):
            yield from _within(getattr(params, item.name), f"{path}.{item.name}", depth)


def _within(value: Any, path: str, depth: int) -> Iterable[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        each = cast("Sequence[Any]", value)[:READ_VALUES]
        if all(isinstance(one, str) for one in each):
            yield path, " ".join(cast("Sequence[str]", each))
        else:
            for one in each:
                yield from _within(one, path, depth + 1)
    elif depth < 4 and (isinstance(value, Mapping | msgspec.Struct) or is_dataclass(value)):
        yield from _flat(value, path, depth + 1)
    elif value is None or isinstance(value, str | int | float):
        yield path, value
    else:
        yield path, "object"


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
