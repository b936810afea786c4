"""What one tool call asked for: the kind of action, the things it names, and whether it writes.

Command lines and statements are read as such, because a tool that runs them does many things. Tools are known by what
they are asked, never by their names, and everything is computed once for each call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar, cast

from watchkeeper.prompt.trajectory import CallDigest
from watchkeeper.tools.context import ToolInvoked

K = TypeVar("K")
V = TypeVar("V")

KEPT: Final = 4096
"""The number of calls whose reading is kept."""

ARGUMENTS: Final = 20
ARGUMENT_CHARS: Final = 400
THINGS: Final = 24
"""How many arguments are read, how much of each, and how many things one call may name."""

SHORT: Final = 150
"""A longer answer is no acknowledgement."""

LONGEST: Final = 4200
"""So much of an argument is compared with that of another try."""

_ASKED: dict[int, Asked] = {}


def keep(kept: dict[K, V], key: K, value: V) -> V:
    """Keep a value, and return it; if there are too many, all are forgotten, which is rare.

    Args:
        kept: The values by their keys.
        key: A new one.
        value: Its value.
    """
    if len(kept) >= KEPT:
        kept.clear()
    kept[key] = value
    return value


class Asked(NamedTuple):
    """What a call asked for.

    Attributes:
        action: The tool, with the program and its subcommand for a command line, and the verb for a tool of many.
        things: The files, hosts, ids and names among its arguments.
        values: Fingerprint of its arguments, without those that say only how, such as a time limit.
        writes: Whether it seems to write something.
        words: The words of its texts, in lower case.
    """

    action: str
    things: frozenset[str]
    values: int
    writes: bool
    words: frozenset[str]


COMMAND_KEYS: Final = re.compile(
    r"(?:^|_)(?:command|cmd|commandline|shell|bash|script|line|argv|args|exec)$", re.IGNORECASE
)
WRITE_KEYS: Final = re.compile(
    r"^(?:content|contents|text|body|patch|diff|new\w*|old\w*|replace\w*|after|data|value|to|set|source|edits?|"
    r"changes?)$"
    r"|_(?:text|content|value)$",
    re.IGNORECASE,
)
MOVES: Final = re.compile(r"^\s*(?:cd|pushd)\s+\S+\s*(?:&&|;)\s*")
WRITING: Final = re.compile(
    r"(?:^|\s)>{1,2}\s*[\w./~$]|\b(?:sed -i|tee|mv|cp|rm|apply|patch|install|write_text|set|edit|commit|checkout)\b"
)
VERB_KEYS: Final = re.compile(r"(?:^|_)(?:action|op|operation|method|verb|subcommand|mode)$", re.IGNORECASE)
ID_KEYS: Final = re.compile(r"(?:^|_)(?:id|ids|no|nr|num|number|key|ref|index)$|[a-z]Id$", re.IGNORECASE)
HOW: Final = re.compile(
    r"timeout|limit|max|min|retr|attempt|offset|seconds|wait|delay|_ms$|depth|lines|page|size|verbos|count",
    re.IGNORECASE,
)
"""Names of numbers that say how something is done, not what."""

OF_A_TRY: Final = re.compile(r"attempt|retry|request_?id|nonce|idempot|trace|timestamp", re.IGNORECASE)
VOLATILE: Final = re.compile(
    r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{20,27}\b|\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{8,}\b|\d{4}-\d\d-\d\d[Tt ][\d:.]+[Zz]?"
)
"""What differs between two tries of one thing."""

SKIPPED: Final = frozenset(["sudo", "env", "time", "nohup", "nice", "timeout", "exec", "command", "xargs"])
PRELUDES: Final = frozenset(["cd", "export", "source", "set", "sleep", "echo", "mkdir", "true", "pwd", "."])
PLAIN: Final = frozenset(
    [
        "cat",
        "ls",
        "grep",
        "rg",
        "egrep",
        "rm",
        "cp",
        "mv",
        "find",
        "head",
        "tail",
        "sed",
        "awk",
        "touch",
        "chmod",
        "chown",
        "test",
        "which",
        "diff",
        "less",
        "wc",
        "sort",
        "tee",
        "ln",
        "stat",
        "file",
        "du",
        "df",
        "ps",
        "kill",
        "curl",
        "wget",
        "ping",
        "ssh",
        "scp",
    ]
)
"""Programs without subcommands."""

SQL: Final = re.compile(
    r"\s*(select|insert|update|delete|create|alter|drop|grant|truncate|with|merge|copy)\s", re.IGNORECASE
)
ANY_WORD: Final = re.compile(r"\w{2,}")
READING: Final = frozenset(("select", "with"))
"""Statements that only read."""

THING: Final = re.compile(
    r"'([^'\n]{2,80})'|\"([^\"\n]{2,80})\"|`([^`\n]{2,80})`|"
    # a path begins at a word's beginning or a slash, so that a long word is not searched from each of its characters
    r"((?:(?<![\w~.@-])|(?=[/\\]))(?:[a-z][a-z0-9+.-]*://)?[\w~.@-]*(?:[/\\][\w.@~{}-]+)+/?)"
    r"|(\b\w[\w-]*(?:[._:@-][\w-]+)+)"
)


def asked(call: CallDigest, invoked: ToolInvoked) -> Asked:
    """Return what a call asked for.

    Args:
        call: Its digest.
        invoked: The call itself.
    """
    known = _ASKED.get(call.action)
    if known is None:
        known = keep(_ASKED, call.action, _asked(invoked.name, invoked.params))
    return known


DONE: Final = re.compile(
    r"\b(?:saved|updated|written|wrote|edited|applied|patched|replaced|changed|modified|set|created|added|removed|"
    r"deleted|"
    r"installed|committed|moved|renamed|inserted)\b",
    re.IGNORECASE,
)
"""What a short answer says after a change."""


def has_changed(call: CallDigest, invoked: ToolInvoked) -> bool:
    """Return whether a call that succeeded seems to have changed something.

    Args:
        call: Its digest.
        invoked: The call itself.
    """
    if asked(call, invoked).writes:
        return True
    said = invoked.rendered_output
    return len(said) <= SHORT and DONE.search(said) is not None


def _asked(tool: str, params: Any) -> Asked:
    parts = [tool]
    things: list[str] = []
    given: list[str] = []
    writes = False
    for name, value in islice(named(params), ARGUMENTS):
        if isinstance(value, list | tuple) and COMMAND_KEYS.search(name):
            value = " ".join(str(each) for each in islice(cast("Iterable[Any]", value), ARGUMENTS))
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float):
            if not HOW.search(name):
                given.append(f"{value}")
            if ID_KEYS.search(name):
                things.append(f"{name}={value}".lower())
            continue
        if isinstance(value, str) and COMMAND_KEYS.search(name):
            value = MOVES.sub("", value[: 2 * ARGUMENT_CHARS])
            statement = SQL.match(value)
            is_writing = statement[1].lower() not in READING if statement else WRITING.search(value) is not None
            writes = writes or is_writing
        writes = writes or WRITE_KEYS.search(name) is not None
        texts = cast("Iterable[Any]", value) if isinstance(value, list | tuple) else (value,)
        for text in islice(texts, ARGUMENTS):
            given.append(
                VOLATILE.sub("~", text[:LONGEST]) if isinstance(text, str) and not OF_A_TRY.search(name) else ""
            )
            if isinstance(text, str):
                parts += _verbs(name, text)
                things += () if VERB_KEYS.search(name) else _things_of_argument(text[:ARGUMENT_CHARS].lower())
    words = frozenset(ANY_WORD.findall(" ".join(given)[: 2 * ARGUMENT_CHARS].lower()))
    return Asked(" ".join(parts), frozenset(things[: 2 * THINGS]), hash(tuple(given)), writes, words)


def named(params: Any) -> Iterable[tuple[str, Any]]:
    """Return the arguments of a call with their names; a text is a command.

    Args:
        params: Decoded arguments, or the text that the model wrote in their place.
    """
    if isinstance(params, str):
        return (("command", params),)
    if isinstance(params, dict):
        return ((str(name), value) for name, value in _flat(cast("Mapping[str, Any]", params)))
    fields: Iterable[str] = getattr(params, "__struct_fields__", ()) or getattr(params, "__dataclass_fields__", ())
    return ((name, getattr(params, name)) for name in fields)


def _flat(params: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, dict):
            yield from islice(cast("Mapping[str, Any]", value).items(), ARGUMENTS)
        else:
            yield name, value


def _verbs(name: str, text: str) -> list[str]:
    """Return what an argument says of the kind of action."""
    statement = SQL.match(text)
    if statement is not None:
        return [statement[1].lower()]
    if COMMAND_KEYS.search(name):
        return program(text[:ARGUMENT_CHARS])
    return [text.lower()] if VERB_KEYS.search(name) and len(text) <= 24 else []


def program(line: str) -> list[str]:
    """Return the program that a command line runs, with its subcommand; of several the first that is no preparation.

    Args:
        line: As for a shell.
    """
    first: list[str] = []
    for part in re.split(r"&&|;|\n|\|\|", line):
        words = [word for word in part.split("|")[0].split() if "=" not in word.split("/")[0] or word.startswith("-")]
        while words and words[0] in SKIPPED:
            words = words[1:]
        if not words:
            continue
        name = words[0].rpartition("/")[2]
        first = first or [name]
        if name in PRELUDES:
            continue
        if name in PLAIN:
            return [name]
        plain = [word for word in words[1:4] if not word.startswith("-") or word == "-m"]
        return [name, *(word for word in plain[:2] if re.fullmatch(r"-m|[a-z][a-z_-]*", word))][:3]
    return first


def _things_of_argument(text: str) -> list[str]:
    text = text.strip()
    if len(text) <= 120 and text and not any(char.isspace() for char in text):
        return spellings(text)
    return things_in(text)


def things_in(text: str) -> list[str]:
    """Return the things that a text names: what stands in quotes, paths, hosts, names that are more than a word.

    Args:
        text: In lower case.
    """
    found: list[str] = []
    for match in islice(THING.finditer(text), THINGS):
        found += spellings(next(filter(None, match.groups())))
    return found


def spellings(thing: str) -> list[str]:
    """Return a thing and other names by which it may be meant: a path without its folder, an address's host.

    Args:
        thing: In lower case.
    """
    thing = thing.strip(" .,;:()[]{}<>'\"`").replace("\\", "/")
    scheme, _, rest = thing.rpartition("://")
    plain = rest.partition("?")[0].rstrip("/")
    if not plain or plain.isdigit():
        return [plain] if plain else []
    if "/" not in plain:
        return [plain]
    if scheme.startswith("http"):
        return [plain, plain.partition("/")[0]]
    plain = plain.lstrip("./")
    return [plain, plain.rpartition("/")[2]]
