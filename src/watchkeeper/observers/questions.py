"""What one tool call asks for: its arguments, and the command line among them, read once for all detectors.

Arguments are the question. Those that only say how much of the answer to show, or that differ at every call by
themselves, make no other question. Names of tools are never read; names of arguments are hints. A command line is read
for what it asks, for the program that it runs, and for what it changes: options, ranges, and what only shapes the
output behind a pipe are left out, and reading a file by ``cat``, ``sed -n`` or a pager is one action. Nothing is run,
no line is parsed exactly; what is not understood stands as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import msgspec


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text that has blanks between them."""
    return frozenset(text.split())


READ_CHARS: Final = 4_000
"""The characters of a result or of an argument that are read; of longer texts the middle is only compared."""

READ_ARGUMENTS: Final = 5 * READ_CHARS
"""The characters of all arguments of a call that are read, together."""

READ_VALUES: Final = 100
"""The number of values among a call's arguments that are read."""

DEEPEST: Final = 20
"""What stands in more lists than this is not read."""

THINGS: Final = 24
"""How many things one text may name."""

LONGEST_KEY: Final = 60
LONGEST_NAME: Final = 120
LONGEST_VERB: Final = 24


class Question(msgspec.Struct, gc=False):
    """What the arguments of a call say; filled while they are read.

    Attributes:
        given: The arguments themselves, or the text that the model wrote in their place.
        exact: All of them but those that differ by themselves.
        shown: The same without those that only say how much to show.
        asked: The texts of the question.
        payload: What is written.
        old: What is replaced.
        raw: Command lines as they stand.
        names: The values that are one name.
        places: The paths that a command line changes.
        doing: The program and subcommand of a command line, the verb of a statement, the operation that is named.
        things: The files, addresses, hosts, ids and names among them, in small letters, each in its spellings.
        maybe: What is written if the result acknowledges that, and else asked for.
        changes: Whether they show that something is changed.
    """

    given: str | Sequence[Argument]
    exact: list[str]
    shown: list[str]
    asked: list[str]
    payload: list[str]
    old: list[str]
    raw: list[str]
    names: list[str]
    places: list[str]
    doing: list[str]
    things: list[str]
    maybe: list[str]
    changes: bool = False


# --- arguments --------------------------------------------------------------------------------------------------------

SHOWN_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:limit|max|maximum|min|count|offset|page|pages|per|(?:page|batch|chunk)_?size|start|end|first|last"
    r"|from|to|line|lines|range|skip|top|take|head|tail|depth|context|before|after|timeout|wait|seconds|workers|jobs"
    r"|parallel"
    r"|retries|chars|characters|bytes|length|results|hits|rows|n|k|window|tries|attempt|cols|columns|indent|verbosity"
    r"|since|until|chunk|begin|stop|delay|interval|sec|secs|s|ms|minutes|hours|duration)$"
)
"""Arguments that, as numbers or ranges, say how much of the answer to show."""

FORMAT_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:format|fmt|output|style|sort|sort_by|order|order_by|verbose|verbosity|color|colour|encoding|pretty"
    r"|view|mode|detail|details|render|reporter|lang|locale|tz|timezone|columns|fields|include|show|as)$"
)
CURSOR_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:cursor|page_?token|next_?token|token_?next|continue|continuation(?:_?token)?|marker|bookmark"
    r"|scroll_?id|starting_?after|search_?after)$"
)
"""Arguments that say where the answer goes on."""

PASSING_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:(?:request|req|trace|span|correlation|idempotency|nonce)_?(?:id|key|uuid|token|ref)|nonce|timestamp"
    r"|ts|attempt|tries|seq|reason|reasoning|thought|thoughts|why|rationale|explanation|purpose|justification|intent"
    r"|now|cache_bust|cachebuster)$"
)
OWN_ID_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:(?:session|client|call|message)_?(?:id|key|uuid|token|ref)|at|time|clock)$"
)
"""Arguments that differ at every call by themselves if they are codes, or moments with seconds."""

CODE: Final = re.compile(
    r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{5,64}|0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
"""Hashes, addresses and ids of machines, in small letters."""

MOMENT: Final = re.compile(r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")

PAYLOAD_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:content|contents|body|new|old|new_\w+|old_\w+|replacement|replace|replace_with|patch|diff|before"
    r"|updates?|changes?|set|payload|edits?|append|insert|html|markdown)$"
)
MAYBE_PAYLOAD_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:text|value|values|data|message|fields|record|note|notes|amount|qty|quantity|status|state|title"
    r"|subject|comment|description|code|source|with|delta|rate|price|level|assignee|tags?|labels?|config|settings?)$"
)
OLD_KEYS: Final = re.compile(r"^(?:.*_)?(?:old|old_\w+|before|search|find|original)$")
LINE_KEYS: Final = re.compile(
    r"^(?:.*_)?(?:cmd|command|command_line|commandline|cmdline|script|line|shell|argv|bash|exec|run|sh)$"
)
VERB_KEYS: Final = re.compile(r"^(?:.*_)?(?:action|op|operation|method|verb|subcommand|mode)$")
ID_KEYS: Final = re.compile(r"^(?:.*_)?(?:id|ids|no|nr|num|number|key|ref|index)$")
HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

REMARK: Final = re.compile(r"\s--\s.*$|/\*.{0,200}?\*/|\b(?:limit|offset)\s+\d+\b", re.M | re.I)
SQL: Final = re.compile(
    r"\s*(?:(select|with|copy)|(insert|update|delete|create|alter|drop|merge|truncate|grant|revoke))\s", re.I
)
METHODS: Final = frozenset(("POST", "PUT", "PATCH", "DELETE"))
RANGE: Final = re.compile(
    r"(?!\d\d?:\d\d$) ?\[? ?-?\d+ ?(?:[-:,.]{1,3} ?-?\d+)? ?\]? ?"
    r"|(?:[\w ']{1,40}!)?\$?[A-Za-z]{1,3}\$?\d{0,7}:\$?[A-Za-z]{1,3}\$?\d{0,7}"
    r"|[-+]?\d+ ?[smhd]"
)
"""A number, a range of numbers or of the cells of a table, or a time span."""

PARAMETER: Final = re.compile(r"([?&])([\w.\[\]-]{1,60})=([^&#\s'\"]*)")
"""A parameter of an address."""

HAS_DIGIT: Final = re.compile(r"\d")

Kind = tuple[str, bool, bool]
"""What the name of an argument says about it, and whether it names an operation or an id."""


class Argument(msgspec.Struct, frozen=True, gc=False):
    """One value among the arguments of a call.

    Attributes:
        path: Its name, with the names of what it stands in.
        key: Its own name.
        kind: What that name says about it.
        value: The value; of a list of texts, these with blanks between them.
    """

    path: str
    key: str
    kind: Kind
    value: Any


def arguments_of(params: Any) -> Sequence[Argument]:
    """Return the values of arguments in the order of their names, at most `READ_VALUES`.

    Args:
        params: Decoded arguments.
    """
    found: list[Argument] = []
    for path, value in islice(flat(params), READ_VALUES):
        key = path.rpartition(".")[2]
        found.append(Argument(path, key, kind_of_key(key[:LONGEST_KEY]), value))
    return found


def read_arguments(given: str | Sequence[Argument]) -> Question:
    """Return what arguments ask and what they write.

    Args:
        given: The arguments, or the text that the model wrote in their place, which is a command.
    """
    question = Question(given, [], [], [], [], [], [], [], [], [], [], [])
    if isinstance(given, str):
        _read_text(("", False, False), both_ends(given), question)
        return question
    left = READ_ARGUMENTS
    for each in given:
        value = each.value
        if isinstance(value, str):
            left -= min(len(value), READ_CHARS)
            value = both_ends(value) if left >= 0 else f"{hash(value)}"  # of the rest only whether it is the same
        _read_value(each.path, each.kind, value, question)
    return question


def both_ends(text: str) -> str:
    """Return a text, or both ends of a long one with a fingerprint of its middle on a line between them."""
    if len(text) <= READ_CHARS:
        return text
    half = READ_CHARS // 2
    return f"{text[:half]}\nmiddle{hash(text[half:-half])}\n{text[-half:]}"


def settle(question: Question, *, written: bool) -> None:
    """Take what may be written as written or as asked for, now that the result is known."""
    if written:
        question.payload += question.maybe
    else:
        for text in question.maybe:
            _asked(text, question)
    question.maybe = []
    if not question.asked and not question.payload:
        question.shown = question.exact


@lru_cache(maxsize=1024)
def kind_of_key(key: str) -> Kind:
    """Return what the name of an argument says about it."""
    name = HUMP.sub("_", key).replace("-", "_").lower()
    kinds = (
        ("passing", PASSING_KEYS),
        ("own id", OWN_ID_KEYS),
        ("cursor", CURSOR_KEYS),
        ("line", LINE_KEYS),
        ("old", OLD_KEYS),
        ("payload", PAYLOAD_KEYS),
        ("shown", SHOWN_KEYS),
        ("format", FORMAT_KEYS),
        ("maybe", MAYBE_PAYLOAD_KEYS),
    )
    kind = next((kind for kind, pattern in kinds if pattern.match(name)), "")
    return kind, VERB_KEYS.match(name) is not None, ID_KEYS.match(name) is not None


def _read_value(path: str, key: Kind, value: Any, question: Question) -> None:
    kind = key[0]
    if kind == "line" and (not isinstance(value, str) or RANGE.fullmatch(value)):
        kind = "shown"  # not a command line, but a line of a file
    if value is None or value == "" or (kind == "passing" and not isinstance(value, bool)):
        return
    if isinstance(value, str):
        if kind == "own id" and (CODE.fullmatch(value.lower()) or MOMENT.fullmatch(value)):
            return
        if _only_shows(kind, value):
            question.exact.append(f"{path}={value}")
            if key[1]:
                question.doing.append(value[:LONGEST_VERB].lower())
            return
        _read_text(key, value, question)
    elif isinstance(value, bool) or kind == "shown":
        question.exact.append(f"{path}={value}")
    elif kind in ("payload", "maybe"):
        (question.payload if kind == "payload" else question.maybe).append(f"{path}={value}")
    else:
        if key[2]:
            question.things.append(f"{path}={value}".lower())
        _asked(f"{value}", question)


def _only_shows(kind: str, value: str) -> bool:
    """Whether a text among the arguments only says how much of the answer to show, or in what form."""
    if kind == "shown":
        return RANGE.fullmatch(value) is not None
    return kind == "cursor" or (kind == "format" and not HAS_DIGIT.search(value))


def without_view(address: str) -> str:
    """Return an address without the parameters that only say how much of the answer to show, or that pass."""
    return PARAMETER.sub(_kept, address)


def _kept(found: re.Match[str]) -> str:
    kind = kind_of_key(found[2][:LONGEST_KEY])[0]
    return found[1] if kind in ("passing", "own id") or _only_shows(kind, found[3]) else found[0]


def _read_text(key: Kind, text: str, question: Question) -> None:
    kind, is_verb, _ = key
    statement = SQL.match(text) if " " in text else None
    if statement is None and (kind == "line" or (not kind and is_line(text))):
        _read_line(text, question)
        return
    if is_verb and len(text) <= LONGEST_VERB:
        question.doing.append(text.lower())
    elif len(text) <= LONGEST_NAME and len(text.split(None, 1)) == 1:
        question.things += spellings(text.lower())
    if kind == "payload":
        question.payload.append(text)
    elif kind == "old":
        question.old.append(text)
        question.payload.append(text)
    elif kind == "maybe":
        question.maybe.append(text)
    else:
        if statement is not None:
            question.doing.append((statement[1] or statement[2]).lower())
        if text in METHODS or (statement is not None and statement[2]):
            question.changes = True
        _asked(text, question)


def _read_line(text: str, question: Question) -> None:
    line = read_line(without_view(text) if "?" in text else text)
    question.exact.append(" ".join(text.split()))
    question.raw.append(text)
    question.shown.append(line.asked.lower())
    question.asked.append(line.asked)
    question.doing += line.program
    if line.sought:
        question.names.append(plain(line.sought))
    question.changes = question.changes or line.changes
    if line.changes:
        question.payload.append(line.written)
        question.places += [place_of(place) for place in line.places]
        if line.before:
            question.old.append(line.before)


def _asked(text: str, question: Question) -> None:
    if " " in text or "\n" in text:
        text = " ".join(REMARK.sub("", text).split())
    if text and " " not in text:
        question.names += _terms_in(text).literals if LITERAL.search(text) else (stem(text.lower()),)
    question.exact.append(text)
    text = without_view(text) if "?" in text else text
    question.shown.append(text.lower().removeprefix("./").rstrip("/"))
    question.asked.append(text)


def flat(params: Any, path: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Yield the values of arguments with their names, in the order of the names."""
    if isinstance(params, Mapping):
        named = cast("Any", params)
        for key in sorted(map(str, list(named)[:READ_VALUES])):
            value = named.get(key)
            inside = f"{path}.{_brief(key)}"
            if isinstance(value, str):
                yield inside, value
            else:
                yield from _within(value, inside, depth)
    elif isinstance(params, msgspec.Struct):
        for name in params.__struct_fields__:
            yield from _within(getattr(params, name), f"{path}.{name}", depth)
    elif is_dataclass(params):
        for item in fields(params):
            yield from _within(getattr(params, item.name), f"{path}.{item.name}", depth)


def _brief(key: str) -> str:
    """Return a name, or the beginning of a long one with a fingerprint: it is repeated for each value that it has."""
    return key if len(key) <= LONGEST_NAME else f"{key[:LONGEST_KEY]}{hash(key)}"


def _within(value: Any, path: str, depth: int) -> Iterable[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        each = cast("Sequence[Any]", value)[:READ_VALUES]
        if all(isinstance(one, str) for one in each):
            yield path, " ".join(cast("Sequence[str]", each))
        elif depth < DEEPEST:
            for one in each:
                yield from _within(one, path, depth + 1)
        else:
            yield path, "object"
    elif value is None or isinstance(value, str | int | float):
        yield path, value
    elif depth < 4 and (isinstance(value, Mapping | msgspec.Struct) or is_dataclass(value)):
        yield from flat(value, path, depth + 1)
    else:
        yield path, "object"


# --- terms and things -------------------------------------------------------------------------------------------------

QUOTED: Final = re.compile(r"(?<!\w)['\"]([\w .:-]{2,40})['\"]")
LITERAL: Final = re.compile(r"[\d_/\\.@#-]|[a-z][A-Z]|^[A-Z]{2,}$")
ASKED: Final = re.compile(r"(?<![\w@#./\\~:+-])[\w@#./\\~:+-]*\w")
PLAIN: Final = re.compile(r"[^0-9a-z]+")
LEADING_ZEROS: Final = re.compile(r"(?<!\d)0+(?=\d)")
LONG_QUESTION: Final = 4
"""In a question with more terms, single digits say nothing."""

THING: Final = re.compile(
    r"'([^'\n]{2,80})'|\"([^\"\n]{2,80})\"|`([^`\n]{2,80})`"
    # a path begins at a word's beginning or a slash, so that a long word is not searched from each of its characters
    r"|((?:(?<![\w~.@-])|(?=[/\\]))(?:[a-z][a-z0-9+.-]*://)?[\w~.@-]*(?:[/\\][\w.@~{}-]+)+/?)"
    r"|(\b\w[\w-]*(?:[._:@-][\w-]+)+)"
)


class Terms(NamedTuple):
    """The terms of a question: names and numbers in their plain form and as they stand, and the other words."""

    literals: frozenset[str]
    words: frozenset[str]
    things: Sequence[str]


def terms_of(question: Question) -> Terms:
    """Return the terms of a question."""
    terms = _terms_in(" ".join(question.asked))
    if question.names:
        return Terms(terms.literals.union(question.names), terms.words.difference(question.names), terms.things)
    return terms


def _terms_in(text: str) -> Terms:
    return _terms_in_short(text) if len(text) <= LONGEST_NAME else _read_terms(text)


@lru_cache(maxsize=1024)
def _terms_in_short(text: str) -> Terms:
    return _read_terms(text)  # what is asked is read as a value, for the outcome, and for the question


def _read_terms(text: str) -> Terms:
    literals: list[str] = []
    words: list[str] = []
    things: list[str] = []
    if " " in text and text.isupper():
        text = text.lower()
    if "'" in text or '"' in text:
        literals.extend(plain(quoted) for quoted in QUOTED.findall(text))
    terms = ASKED.findall(text)
    long = len(terms) > LONG_QUESTION
    titled = text.istitle()
    for place, term in enumerate(terms):
        if not (long and len(term) == 1):
            is_literal, form = term_of(term)
            if is_literal or (term[0].isupper() and (place or titled)):
                literals.append(form)
                if is_literal:
                    things.append(term)
            else:
                words.append(form)
    return Terms(frozenset(literals), frozenset(words), things)


def plain(text: str) -> str:
    """Return a name without its punctuation, in small letters."""
    return PLAIN.sub("", text.lower())


@lru_cache(maxsize=4096)
def term_of(term: str) -> tuple[bool, str]:
    """Return whether a term is a name or a number, and its plain form."""
    if not LITERAL.search(term):
        return False, stem(term.lower())
    if "/" in term or "\\" in term:
        return True, place_of(term)
    return True, LEADING_ZEROS.sub("", plain(term)) or term


def place_of(path: str) -> str:
    """Return the last two parts of a path, which are the same however it is written."""
    parts = [part for part in re.split(r"[/\\]+", path.lower()) if part not in ("", ".", "..", "~")]
    return "/".join(parts[-3:])


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """Return a word without the ending of a plural or of a tense."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def things_in(text: str) -> list[str]:
    """Return the things that a text names: what stands in quotes, paths, hosts, names that are more than a word.

    Args:
        text: In lower case.
    """
    found: list[str] = []
    for parts in islice(THING.findall(text), THINGS):
        found += spellings(next(filter(None, parts)))
    return found


@lru_cache(maxsize=4096)
def spellings(thing: str) -> tuple[str, ...]:
    """Return a thing and other names by which it may be meant: a path without its folder, an address's host.

    Args:
        thing: In lower case.
    """
    thing = thing.strip(" .,;:()[]{}<>'\"`").replace("\\", "/")
    scheme, _, rest = thing.rpartition("://")
    plain = rest.partition("?")[0].rstrip("/")
    if "/" not in plain:
        return (plain,) if plain else ()
    if scheme.startswith("http"):
        return plain, plain.partition("/")[0], plain.rpartition("/")[0]
    plain = plain.lstrip("./")
    return plain, plain.rpartition("/")[2]


# --- command lines ----------------------------------------------------------------------------------------------------

BEFORE: Final = words_of("sudo time env nohup nice exec command stdbuf xargs")
"""Programs that only start the program that is named after them."""

SAYING: Final = words_of("echo printf date sleep cd pushd popd true set export clear pwd wc sort uniq cut tr column")
"""Programs that neither ask nor change anything outside of the output."""

KNOWN: Final = words_of(
    "git npm npx yarn pnpm node python python3 pytest make cmake docker podman kubectl helm curl wget ls find ps"
    " ss lsof sed awk go cargo rustc java mvn gradle ruby bash sh psql sqlite3 mysql systemctl journalctl ssh df"
    " du diff stat file tree jq terraform aws gcloud az ruff mypy tox uv pip"
)
"""Programs by which a command line is known as one."""

READING: Final = words_of("cat head tail less more nl bat view type tac zcat strings")
"""Programs that show a file."""

SEARCHING: Final = words_of("grep rg ag ack egrep fgrep findstr zgrep")
"""Programs that search in files."""

CHANGING: Final = words_of(
    "rm mv cp touch mkdir rmdir chmod chown ln tee patch kill pkill killall rsync scp dd truncate install unzip"
    " tar reboot shutdown mount umount useradd passwd crontab createdb dropdb black prettier gofmt"
)
"""Programs that change something."""

STARTERS: Final = KNOWN | READING | SEARCHING | CHANGING | SAYING
PRELUDES: Final = words_of("cd pushd export source set sleep echo mkdir true pwd .")
WHOLE: Final = words_of(
    "cat ls grep rg egrep rm cp mv find head tail sed awk touch chmod chown test which diff less wc sort tee ln stat"
    " file du df ps kill curl wget ping ssh scp"
)
"""Programs without subcommands."""

SUBCOMMAND: Final = re.compile(r"-m|[a-z][a-z_-]*")

LINE: Final = re.compile(r"\s*(?:\$ )?([a-z][\w.+-]*)\s+\S")
OPTION: Final = re.compile(r"\s*[a-z][\w.+-]*(?: [\w./=:-]+){0,3} --?[a-z]")
"""How a line begins that has options."""

IN_QUOTES: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\[\s\S]?)*(?:\"|\Z)")
BETWEEN: Final = re.compile(r"(?:&&|\|\||;|\n|(?<!\|)\|(?!\|))")
REDIRECT: Final = re.compile(r"(?<![0-9&<>=-])1?>>?\s*+(?!/dev/null|&)[\w./~$\"'-]")
NOISE: Final = re.compile(r" ?[0-9&]?>>? ?(?:/dev/null|&\d)| ?\d>&\d")
ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=\S*")
SCRIPT_RANGE: Final = re.compile(r"['\"]?\d+(?:,\+?\d+|,\$)?[pqd]?(?:;\d+q)?['\"]?|['\"]?NR[<>=&|\dNR ]+['\"]?")
SETTING: Final = re.compile(r"--(?!.*(?:timeout|output|namespace|context|color|verbose|watch|tail|since|wait))[\w-]+=")
HUNK: Final = re.compile(r"^([+-])(?!\+\+|--)(.*)$", re.M)
SUBSTITUTE: Final = re.compile(r"^\d*(?:,\d*)?s(.)(.*?)(?<!\\)\1(.*?)(?<!\\)\1")
REPLACE: Final = re.compile(
    r"\.replace\(\W{0,8}(\w.{0,200}?)(?<![\"'\\])[\"'\\]{1,4},[\s\"'\\]{0,8}(\w?.{0,200}?)[\"'\\]{1,4}\)"
)
SCRIPT: Final = re.compile(r"^[\d,$]*[caid]\\?\s*")
PLACE: Final = re.compile(r"(?<![\w.~@-])[\w.~@-]*(?:/[\w.@-]+)+|\b(?<!\w)(?<!\w-)[\w-]{1,80}\.[a-z]{1,5}\b")

CHANGING_PAIRS: Final = re.compile(
    r"\b(?:git\s+(?:-\S+\s+){0,8}(?:commit|push|checkout|reset|stash|apply|add|merge|rebase|restore|revert|cherry-pick"
    r"|switch|tag|pull|clean|rm|mv|am)|(?:pip3?|uv|npm|pnpm|yarn|apt|apt-get|brew|cargo|gem|poetry|conda|go|dnf"
    r"|yum)\s+(?:\w+\s+)?(?:install|add|remove|uninstall|upgrade|update|get|ci)|(?:systemctl|service|supervisorctl|pm2"
    r"|rc-service)\s+(?:\S+\s+)?(?:start|restart|stop|reload|enable|disable)|(?:docker|podman"
    r"|docker-compose)\s+(?:compose\s+)?(?:run|restart|stop|start|rm|build|up|down|pull|push|prune)"
    r"|kubectl\s+(?:\S+\s+){0,6}?(?:apply|delete|patch|scale|edit|set|create|replace|annotate|label|drain|cordon)"
    r"|kubectl\s+(?:\S+\s+){0,6}?rollout\s+(?:restart|undo)|(?:terraform|tofu|pulumi|helm)\s+(?:apply|destroy|import"
    r"|up|install|upgrade|rollback|uninstall)|sed\s+(?:-\w+\s+){0,8}-i|sed\s+-\w*i|perl\s+-\w*i"
    r"|curl\s.{0,300}?(?:-X\s*(?:POST|PUT|PATCH|DELETE)|\s-d\s|--data|\s-T\s)|\.write(?:_text|_bytes|lines)?\("
    r"|open\([^)]{0,200}['\"][wax]|(?i:insert\s+into|update\s+\w+\s+set|delete\s+from|alter\s+table|drop\s+\w+))"
)


class Line(NamedTuple):
    """What a command line asks and does.

    Attributes:
        asked: What it asks.
        program: The program that it runs, with its subcommand; of several the first that is no preparation.
        changes: Whether it changes something.
        sought: What it searches for.
        written: If it changes something: what it writes, as far as that can be told.
        before: What it replaces, if it says so.
        places: The paths that it names.
    """

    asked: str
    program: tuple[str, ...]
    changes: bool
    sought: str = ""
    written: str = ""
    before: str = ""
    places: tuple[str, ...] = ()


def is_line(text: str) -> bool:
    """Return whether a text without a telling name looks like a command line."""
    found = LINE.match(text)
    return found is not None and (found.group(1) in STARTERS or OPTION.match(text) is not None)


def read_line(text: str) -> Line:
    """Return what a command line asks, without options, ranges and what only shapes its output."""
    line = NOISE.sub("", text[: READ_CHARS + 100])  # a little more than `both_ends` returns
    bare = IN_QUOTES.sub(lambda quoted: "_" * len(quoted.group()), line)
    changes = REDIRECT.search(bare) is not None or CHANGING_PAIRS.search(line) is not None
    asked: list[str] = []
    said: list[str] = []
    program: tuple[str, ...] = ()
    sought = ""
    start = 0
    for end, after in [*((found.start(), found.end()) for found in BETWEEN.finditer(bare)), (len(bare), len(bare))]:
        part = line[start:end]
        start = after
        words = part.split()
        while words and (words[0] in BEFORE or ASSIGNED.fullmatch(words[0])):
            words.pop(0)
        if words and words[0] == "timeout":
            words = words[2:]
        if not words:
            continue
        if not program or program[0] in PRELUDES:
            program = _program(words) or program
        verb, rest = _read_part(part, words)
        if verb == "search" and rest and not sought:
            sought = rest[0]
        changes = changes or verb in CHANGING
        if verb in SAYING or (asked and verb in ("read", "jq", "awk", "sed")):
            said.append(" ".join((verb, *rest)))
        else:
            asked.append(" ".join((verb, *rest)))
    question = " ; ".join(asked or said)
    if not changes:
        return Line(question, program, False, sought)
    written, before = _written(line, question)
    outside = IN_QUOTES.sub(" ", line.partition("<<")[0]) if "<<" not in line or HUNK.search(line) is None else line
    return Line(question, program, True, sought, written, before, tuple(dict.fromkeys(PLACE.findall(outside)))[:8])


def _program(words: Sequence[str]) -> tuple[str, ...]:
    name = words[0].rpartition("/")[2]
    if name in PRELUDES or name in WHOLE:
        return (name,)
    plain = [word for word in words[1:4] if not word.startswith("-") or word == "-m"]
    return (name, *(word for word in plain[:2] if SUBCOMMAND.fullmatch(word)))


def _written(line: str, question: str) -> tuple[str, str]:
    """Return what a line writes and what it replaces: the lines of a patch, the script of an editor, or the line."""
    hunks = HUNK.findall(line)
    if hunks and "@@" in line:
        return tuple("\n".join(text for sign, text in hunks if sign == kind) for kind in "+-")  # type: ignore[return-value]
    replaced = REPLACE.search(line)
    if replaced is not None:
        return replaced.group(2), replaced.group(1)
    for quoted in IN_QUOTES.findall(line):
        script = quoted[1:-1]
        found = SUBSTITUTE.match(script)
        if found is not None:
            return found.group(3), found.group(2)
        if SCRIPT.match(script) is not None:
            return SCRIPT.sub("", script), ""
    return " ".join(line.split()) if "<<" in line else question, ""


def _read_part(part: str, words: Sequence[str]) -> tuple[str, list[str]]:
    verb = words[0].rpartition("/")[2]
    if verb in READING or (verb in ("sed", "awk") and "-i" not in words and SCRIPT_RANGE.search(part)):
        given = [word for word in words[1:] if not word.startswith("-") and not SCRIPT_RANGE.fullmatch(word)]
        return ("read", [_plain(word) for word in given if not word.isdigit()])
    if verb in SEARCHING:
        verb = "search"
    return verb, [_plain(word) for word in words[1:] if not word.startswith("-") or SETTING.match(word)]


def _plain(word: str) -> str:
    """Return a word without quotes and without the beginning that a path may have or not."""
    return word.strip("'\"").removeprefix("./").rstrip("/")
