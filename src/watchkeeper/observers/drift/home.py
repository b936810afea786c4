"""What a task names, and what one tool call touches: the two sides that `drift` compares.

A task names paths, files, ids with a number, numbers of a noun, quoted and other names, and plain words. A call touches
paths (also within command lines, patches, statements and addresses on the web) and values of arguments. What is only
written, how an answer is to look, and names of tools are not read. Nothing here knows what was touched before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from watchkeeper.observers.questions import (
    HUMP,
    IN_QUOTES,
    LINE_KEYS,
    SQL,
    Argument,
    Kind,
    arguments_of,
    is_line,
    words_of,
)

READ_CHARS: Final = 20_000
"""The characters of a task that are read."""

LONGEST: Final = 160
"""A longer value of an argument is a text, and touches nothing."""

TOUCHED: Final = 40
"""The number of things of one call that are compared."""

LONG_NAME: Final = 7
"""A name of so many letters may be a part of a longer name."""

LINE_CHARS: Final = 600
NUMBERS: Final = 500
"""The most numbers that one range of a task stands for."""

TOKEN: Final = re.compile(r"[^\s,;()\[\]{}<>\"'`|=]+")
PIECE: Final = re.compile(r"[^\W_]+")
NOT_PLAIN: Final = re.compile(r"[\W_]+")
LINE_NUMBER: Final = re.compile(r":\d+(?::\d+)?$")
ENDING: Final = re.compile(r"(?<=[^/\\.])\.(?:[a-z][a-z0-9]{0,5}|\*)$", re.I)
QUOTED: Final = re.compile(r"`([^`\n]{2,60})`|\"([^\"\n]{2,60})\"|(?<!\w)'([^'\n]{2,60})'(?!\w)")
WITH_ID: Final = re.compile(r"([a-z][a-z_-]{0,20}?)[-_#]?(\d{1,18})", re.I)
COUNTED: Final = re.compile(r"\b([^\W\d_]{2,20})\s+(?:(?:no\.?|nr\.?)\s+)?#?(\d{1,9})(?![\w:/]|\.\d|-0)")
RANGE: Final = re.compile(
    r"(?<![\w-])(\d{1,9})\s*(?:-|\u2013|\.\.|to|until|bis|a|à|et|and|und|&|,)\s*(\d{1,9})(?![\w-])"
)
EXCEPT: Final = re.compile(r"\b(?:except|but not|apart from|sauf|außer)\s+\S+", re.I)
EVERYWHERE: Final = re.compile(
    r"\b(?:whole|entire|across the|throughout the|over the)\s+(?:\w+\s+)?(?:repo|repository|code ?base|code|project"
    r"|tree|workspace|file|cluster|system|infrastructure)\b|\bin all \w+|\b(?:all|every|each)\s+(?:\w+\s+)?(?:callers?"
    r"|call sites?|usages?|occurrences?|references?)\b",
    re.I,
)
"""What a task says that has no outside."""

PATCHED: Final = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S{1,200})", re.M)
TABLES: Final = re.compile(r"\b(?:from|join|into|update|table)\s+[\"`\[]?([a-z_][\w.]*)", re.I)
COMMON_TABLES: Final = re.compile(r"(?:\bwith|,)\s+(\w+)\s+as\s*\(")
OPTION: Final = re.compile(r"--?[a-z][\w-]*", re.I)
SOUGHT: Final = re.compile(
    r"(?:.*_)?(?:q|query|needle|text|pattern|search|regex|expr|expression|prompt|question|keywords?|term|terms|filter)$"
)
"""Names of arguments that say what is sought: they may name the task's things, and are no things themselves."""

NAME: Final = re.compile(r"[^\W_][\w@.:<>/-]{0,60}(?: [\w@.:/-]{1,40}){0,3}")
WITHIN: Final = re.compile(r"[^\W_][\w-]*")
NO_PATH: Final = re.compile(r"^[<\\]|[\^$+?()\[\]|]")
IN_LINE: Final = re.compile(r"[^\s'\"|;&<>()=$,{}]+")
CHANGED_FOLDER: Final = re.compile(r"\s*cd\s+([^\s;&|]{1,200})\s*(?:&&|;)")
NO_KIND: Final[Kind] = ("", False, False)
SCRATCH: Final = ("/dev/", "/tmp/", "/proc/")
CHECKS: Final = words_of("test tests spec specs check checks fixture fixtures mock mocks")
OTHER: Final = re.compile(r"v\d+|old|copy|backup|bak|canary|legacy")
"""What makes another thing of a name that it is joined to."""

GENERIC: Final = words_of(
    "a about above add after again all also an and any are as at back be been before between but by can cause change"
    " changed check code come complete correct could create data date day days do does done each end every everything"
    " file files find first fix fixed folder for from further get give go good had has have her him his how if in into"
    " is it its keep know last later least list long look make may me mean more most must my name need new next no not"
    " now number of off old on one only open or other our out over path please project put read repair right run same"
    " say see send set should show since so some such take tell text than that the their them then there these they"
    " this those three time to too two under until up use used user users want was way we week what when where which"
    " while who why will with work worked would write wrong year yet you your src lib app apps main index init doc"
    " docs http https www com org tool tools output input config module modules package packages service services"
    " system test tests spec und der die das den dem ein eine ist nicht von zu mit auf im fur für wir dass les des une"
    " est pas pour dans le la call"
    " thi doe alway"  # what `singular` makes of this, does and always
)
"""Words that name nothing by themselves."""


STRONG, WEAK, LINKED, UNKNOWN, ASIDE, BESIDE, SIBLING, OTHER_ID = 3, 2, 1, 0, -1, -2, -3, -4
"""Where a thing is. Named by the task; with a word of it in its name; one step from what it names; not to be said;
elsewhere; beside what is named; another number of what is counted; another id whose letters tell."""


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """What a task names. Compared by identity: it is a cache key, and `home_of` keeps one per task.

    Attributes:
        places: Paths, each as its parts, without endings.
        names: Names that tell by themselves, in letters and digits only.
        long: Those of them that may be a part of a longer name.
        words: The other words, without a plural s.
        numbers: Numbers by their noun or their letters.
        everywhere: Whether the task says that it is about everything.
        given: Patterns of the paths that were given, so that nothing else counts; None if none were.
        shown: Some of it, to be said.
    """

    places: tuple[tuple[str, ...], ...] = ()
    names: frozenset[str] = frozenset()
    long: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    numbers: tuple[tuple[str, frozenset[int]], ...] = ()
    everywhere: bool = False
    given: tuple[re.Pattern[str], ...] | None = None
    shown: tuple[str, ...] = ()


class Thing(NamedTuple):
    """One thing that a call touches.

    Attributes:
        role: What is compared with each other: ``path``, an option, or the argument's name; empty if it is only looked
            at whether the task names it.
        parts: Its parts.
        leaf: Whether it is one thing, and no folder of things.
        written: Whether it is written to for sure.
    """

    role: str
    parts: tuple[str, ...]
    leaf: bool = True
    written: bool = False


# --- the task ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def home_of(given: tuple[str, ...], task: str) -> Home:
    """Return what a task names.

    Args:
        given: Paths given to the detector; if there are any, the text does not count.
        task: The task's text.
    """
    if given:
        return Home(
            places=tuple(parts_of(path) for path in given),
            given=tuple(pattern for path in given for pattern in _patterns(path)),
            shown=given,
        )
    text = EXCEPT.sub(" ", task[:READ_CHARS])
    quoted = [found[found.lastindex or 0] for found in QUOTED.finditer(text)]
    names = {plain(each) for each in quoted}
    words: set[str] = set()
    numbers: dict[str, set[int]] = {}
    places: list[tuple[str, ...]] = []
    for each in TOKEN.findall(text):
        token = LINE_NUMBER.sub("", each.strip(".:!?"))
        each_id = [WITH_ID.fullmatch(part) for part in token.split("/")]
        if all(each_id):
            for found in filter(None, each_id):
                numbers.setdefault(found[1].lower(), set()).add(int(found[2]))
        elif is_path(token):
            parts = tuple(part for part in parts_of(token) if "*" not in part)
            places.append(tuple(part.lower() for part in parts))
            if parts and parts[-1] not in GENERIC:
                words.update(pieces(parts[-1]))
                names.add(plain(parts[-1]))
        else:
            if HUMP.search(token) or (token.isupper() and len(token) > 1) or set("_-") & set(token):
                names.add(plain(token))
            words.update(pieces(token))
    for found in COUNTED.finditer(text):
        noun = singular(found[1].lower())
        numbers.setdefault(noun, set()).add(int(found[2]))
        words.discard(noun)
    names.update(number for number in re.findall(r"\b\d{3,18}\b", text) if not 1900 <= int(number) <= 2100)
    for first, last in RANGE.findall(text):
        between = range(int(first), min(int(last), int(first) + NUMBERS) + 1)
        names.update(str(number) for number in between if number > 99)
        for known in numbers.values():
            if int(first) in known:
                known.update(between)
    told = [piece for piece in PIECE.findall(HUMP.sub(" ", text)) if len(piece) > 1][:2000]
    names.update((one + other).lower() for one, other in pairwise(told) if not {one.lower(), other.lower()} <= GENERIC)
    names = {name for name in names if len(name) > 1 and name not in GENERIC}
    counted = [f"{noun} {number}" for noun, those in numbers.items() for number in sorted(those)[:2]]
    words = {word for word in words - GENERIC if not word.isdigit()}
    return Home(
        shown=(*("/".join(parts) for parts in places), *counted, *quoted) or tuple(sorted(words)),
        places=tuple(places),
        names=frozenset(names),
        long=tuple(sorted(name for name in names if len(name) >= LONG_NAME))[:50],
        words=frozenset(words),
        numbers=tuple((noun, frozenset(those)) for noun, those in numbers.items() if noun not in GENERIC),
        everywhere=EVERYWHERE.search(text) is not None or (not places and "everywhere" in text.lower()),
    )


def _patterns(path: str) -> Iterator[re.Pattern[str]]:
    """Yield patterns of all that is at or below a path or a glob; of an absolute one also as it stands within it."""
    parts = [part.lower() for part in parts_of(path)]
    while parts and set(parts[-1]) == {"*"}:
        parts.pop()
    is_absolute = path.startswith(("/", "~")) or path[1:3] in (":\\", ":/")
    for first in range(len(parts) if is_absolute else 1):
        written = [re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for part in parts[first:]]
        within = "/".join(written).replace("[^/]*[^/]*/", "(?:.*/)?")
        yield re.compile(f"{'^' if first else '(?:^|/)'}{within}(?:/|$)")


def place(home: Home, parts: Sequence[str]) -> int:
    """Return where a path is if the task's paths were given.

    Args:
        home: The task.
        parts: The parts of the path, in small letters.
    """
    path = "/".join(parts)
    if any(pattern.search(path) for pattern in home.given or ()):
        return STRONG
    above = any("/".join(own).lower().startswith(f"{path}/") for own in home.places)
    return LINKED if above else UNKNOWN if len(parts) < 2 else BESIDE


@lru_cache(maxsize=8192)
def grade(home: Home, part: str, before: str = "") -> int:
    """Return whether a task names a part of a thing.

    Args:
        home: The task.
        part: A part of a path, or a value, in small letters with humps.
        before: The part before it, or the name of the argument.
    """
    bare = plain(part)
    if home.numbers:
        noun, number = (singular(before.lower()), bare) if bare.isdigit() else _numbered(part)
        for known, numbers in home.numbers:
            if noun and noun in (known, singular(known)):
                return STRONG if int(number) in numbers else OTHER_ID if len(noun) > 1 else SIBLING
    if bare in home.names:
        return STRONG if len(bare) > 4 or not bare.isdigit() else WEAK
    own = pieces(part)
    has_word = not own.isdisjoint(home.words)
    if any(map(OTHER.fullmatch, own)) and any(OTHER.fullmatch(piece) for piece in own - home.words):
        return OTHER_ID if has_word else UNKNOWN
    if has_word or (len(bare) >= LONG_NAME and any(name in bare for name in home.long)):
        return WEAK
    return UNKNOWN


@lru_cache(maxsize=4096)
def _numbered(part: str) -> tuple[str, str]:
    found = WITH_ID.fullmatch(part)
    return (singular(found[1].lower()), found[2]) if found is not None else ("", "")


# --- the call ---------------------------------------------------------------------------------------------------------


def path_of(text: str) -> Thing:
    """Return what a path, a dotted name or an address on the web touches."""
    if text.startswith(("http://", "https://")):
        return Thing("url", parts_of(text))
    return Thing("path", parts_of(text), ENDING.search(text) is not None or text.count("/") == 0)


def touched(given: str | Sequence[Argument]) -> list[Thing]:
    """Return what a call touches, by its arguments.

    Args:
        given: The arguments, or the text that the model wrote in their place.
    """
    if isinstance(given, str):
        decoded = _decoded(given)
        if SQL.match(given):
            return list(_in_text("", NO_KIND, given))
        if decoded is None:
            return [thing for thing in islice(_in_line(given), TOUCHED) if thing.parts]
        return touched(arguments_of(decoded))
    things: list[Thing] = []
    for each in given[: 2 * TOUCHED]:
        if len(things) >= TOUCHED:
            break
        value = each.value
        if isinstance(value, str):
            things += _in_text(each.key, each.kind, value)
        elif isinstance(value, int) and not isinstance(value, bool) and (each.kind[0] in ("", "own id") or value > 999):
            things.append(Thing(each.key.lower(), (str(value),)))
    return [thing for thing in things[:TOUCHED] if thing.parts]


def _decoded(text: str) -> Any:
    if text[:1] == "{" and len(text) < READ_CHARS:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return None
    return None


def _in_text(key: str, about: Kind, text: str) -> Iterable[Thing]:
    kind, is_verb, _ = about
    text = text[:READ_CHARS]  # some patterns read all blanks at its beginning
    if "File: " in text or "+++ " in text:
        return [path_of(path)._replace(written=True) for path in PATCHED.findall(text)[:TOUCHED]]
    if SQL.match(text):
        names = set(TABLES.findall(text[:LINE_CHARS].lower())) - set(COMMON_TABLES.findall(text[:LINE_CHARS].lower()))
        return [
            Thing("table", (*name.split("."),)) for name in names if not name.startswith(("information_schema", "pg_"))
        ]
    if kind == "line" or LINE_KEYS.match(key.lower()) or (not kind and is_line(text)):
        return islice(_in_line(text), TOUCHED)
    if text[:1] == "{" and (decoded := _decoded(text)) is not None:
        return touched(arguments_of(decoded))
    if kind in ("payload", "old", "format", "passing") or len(text) > LONGEST or "\n" in text or not text:
        return ()
    if "://" in text[:12]:
        return (path_of(text), Thing("", tuple(WITHIN.findall(text.partition("?")[2]))))
    if " " not in text and is_path(text):
        path = path_of(text)
        return (path if len(path.parts) > 1 or not path.parts else path._replace(role=key.lower()),)
    if " " in text and all(is_path(word) for word in text.split()):
        return [path_of(word) for word in text.split()[:TOUCHED]]
    if kind == "shown" and text.isdigit():
        return ()
    if text.count(" ") > 3:
        return (Thing("", tuple(text.split())),)
    parts = (text, *WITHIN.findall(text)) if WITHIN.fullmatch(text) is None else (text,)
    is_name = (
        not is_verb
        and (kind not in ("maybe", "shown") or key.lower() in ("title", "subject"))
        and SOUGHT.match(key.lower()) is None
        and NAME.fullmatch(text) is not None
    )
    return (Thing("" if not is_name else role_of(key.lower(), text), parts),)


def role_of(key: str, value: str) -> str:
    """Return what a value is compared with: ids of the same letters, or what the same argument said before."""
    noun = _numbered(value.partition(":")[0])[0]
    return f"#{noun}" if len(noun) > 1 else f"{key}#{noun}" if noun else key


def _in_line(text: str) -> Iterator[Thing]:
    line = text[:LINE_CHARS]
    found = CHANGED_FOLDER.match(line)
    folder = found[1].rstrip("/") + "/" if found is not None else ""
    hidden = IN_QUOTES.sub(lambda quoted: "_" * len(quoted[0]), line)
    end = hidden.find("<<") if "<<" in hidden else len(line)
    head = line[:end]
    for quoted in IN_QUOTES.findall(line[end:]):
        if is_path(quoted[1:-1]) and " " not in quoted and len(quoted) < LONGEST:
            yield path_of(folder + quoted[1:-1])
    bare = IN_QUOTES.sub(lambda quoted: " _ " if " " in quoted[0] or quoted[0][2:3] in "/#|" else quoted[0], head)
    role = ""
    for place, word in enumerate(IN_LINE.findall(bare[found.end() if found is not None else 0 :])):
        if OPTION.fullmatch(word):
            role = word.lstrip("-")
        elif is_path(word) and "://" not in word and not word.startswith(("/", "~")):
            path = path_of(folder + word)
            yield path if len(path.parts) > 1 else path._replace(role="")
            role = ""
        elif is_path(word):
            if not word.startswith(SCRATCH):
                yield path_of(word)
            role = ""
        else:
            if place and not word.isdigit():
                yield Thing(role_of(role and f"-{role}", word), (word,))
            role = ""


def is_path(text: str) -> bool:
    """Return whether a word is written like a path, a file, an address on the web or a dotted name."""
    if "/" in text or "\\" in text:
        return len(text) > 2 and any(map(str.isalpha, text)) and NO_PATH.search(text) is None
    if "@" in text or text[:1].isdigit():
        return False
    return "." in text[1:-1] and (ENDING.search(text) is not None or text.count(".") > 1) and " " not in text


@lru_cache(maxsize=4096)
def parts_of(path: str) -> tuple[str, ...]:
    """Return the parts of a path, of an address or of a dotted name, without its ending."""
    scheme, _, rest = path.rpartition("://")
    bare = rest.partition("?")[0].partition("#")[0] if scheme else path
    if "/" in bare or "\\" in bare:
        bare = ENDING.sub("", bare.partition("::")[0])
        return tuple(part for part in bare.replace("\\", "/").split("/") if part not in ("", ".", "..", "...", "~"))[
            :30
        ]
    if ENDING.search(bare) is None or (bare.count(".") > 1 and bare.split(".")[-1][:1].isupper()):
        return tuple(part for part in bare.split(".") if part)[:30]
    return (ENDING.sub("", bare),)


@lru_cache(maxsize=8192)
def pieces(text: str) -> frozenset[str]:
    """Return the words of a name, in small letters and without a plural s; single letters are none."""
    if text.isalpha() and text.islower():
        return frozenset((singular(text),)) if len(text) > 1 else frozenset()
    return frozenset([singular(piece) for piece in PIECE.findall(HUMP.sub(" ", text).lower()) if len(piece) > 1])


def pieces_of(parts: Sequence[str]) -> frozenset[str]:
    """Return the words of the parts of a path."""
    return frozenset[str]().union(*map(pieces, parts))


def plain(text: str) -> str:
    """Return a name in its letters and digits only."""
    return text.lower() if text.isalnum() else NOT_PLAIN.sub("", text).lower()


def singular(word: str) -> str:
    """Return a word without its plural s."""
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word
