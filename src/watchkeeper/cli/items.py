"""Reads what ``--each`` names: files, texts of files, lines, rows of CSV and of JSON lines; the last three also from
standard input.

Nothing of the agent is executed here. A line that cannot be read is reported with its number, together with all others,
before anything is spent; whoever calls decides whether to refuse them or to leave them out.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO, cast

import msgspec

from watchkeeper.cli.loading import labels_of, matching_files
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.quantities import counted
from watchkeeper.core.text import one_line

STDIN: Final = "-"
SHOWN: Final = 5
"""Maximum number of bad lines that a message names; it counts the others."""


@dataclass(frozen=True, slots=True)
class Given:
    """One item as it was read.

    Attributes:
        label: Its name in results and progress.
        where: Where it comes from, for messages.
        value: A text for the one parameter that is open, or texts by parameter.
    """

    label: str
    where: str
    value: str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Bad:
    """One item that cannot be used: where it is, and why."""

    where: str
    why: str

    def __str__(self) -> str:
        """Say both in one line."""
        return f"{self.where}: {self.why}"


def read_items(sources: Sequence[str]) -> list[Given | Bad]:
    """Return the items of all sources, in order; a file that several patterns match is one item.

    Raises:
        ConfigurationError: If a source cannot be read at all, or has no items.
    """
    if sum(source.endswith(f":{STDIN}") or source == STDIN for source in sources) > 1:
        raise ConfigurationError("--each: standard input can be read once only")
    found: list[Given | Bad | tuple[Path, bool]] = []  # of a file, whether its text is the item
    for source in sources:
        kind, separator, name = source.partition(":")
        read = READERS.get(kind) if separator else None
        if source == STDIN:
            raise ConfigurationError(f"--each -: write lines:-, csv:- or jsonl:- for standard input ({FORMS})")
        if read is None:
            as_text = kind == "text" and bool(separator)
            seen = {item for item in found if isinstance(item, tuple)}
            files = ((path, as_text) for path in matching_files(name if as_text else source))
            found += [file for file in files if file not in seen]
            continue
        items = list(read(name, _text(source, name)))
        if not items:
            raise ConfigurationError(f"--each {source!r} has no items")
        found += items
    paths = list(dict.fromkeys(item[0] for item in found if isinstance(item, tuple)))
    labels = dict(zip(paths, labels_of(paths), strict=True))
    return [_of_file(*item, labels[item[0]]) if isinstance(item, tuple) else item for item in found]


def _of_file(path: Path, as_text: bool, label: str) -> Given | Bad:
    if not as_text:
        return Given(label, str(path), str(path))
    try:
        return Given(label, str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return Bad(str(path), "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error))


def _text(source: str, name: str) -> str:
    """Return the text of a file or of standard input; bytes that are not UTF-8 are lone surrogates in it."""
    if name == STDIN:
        stdin = cast("TextIO | None", sys.stdin)
        if stdin is None:
            raise ConfigurationError(f"--each {source!r}: standard input is closed")
        data = stdin.buffer.read()
    else:
        try:
            data = Path(name).read_bytes()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(f"--each {source!r} cannot be read: {why}") from error
    return data.decode("utf-8-sig", errors="surrogateescape")


def _readable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _place(name: str, number: int) -> tuple[str, str]:
    """Return label and place of a line."""
    file = "stdin" if name == STDIN else name
    return f"{Path(file).name}:{number}", f"{file}, line {number}"


def _lines(name: str, text: str) -> Iterator[Given | Bad]:
    """Yield the lines that are not blank."""
    for number, line in enumerate(text.split("\n"), start=1):
        label, where = _place(name, number)
        if line.strip():
            yield Given(label, where, line.removesuffix("\r")) if _readable(line) else Bad(where, "not UTF-8")


def _json_lines(name: str, text: str) -> Iterator[Given | Bad]:
    """Yield one item for each JSON object; ``null`` is as good as no value."""
    for line in _lines(name, text):
        if isinstance(line, Bad):
            yield line
            continue
        try:
            row: Any = msgspec.json.decode(cast("str", line.value))
        except (ValueError, RecursionError) as error:
            yield Bad(line.where, str(error))
            continue
        if isinstance(row, dict):
            cells = cast("dict[str, Any]", row).items()
            values = {
                key: cell if isinstance(cell, str) else json.dumps(cell) for key, cell in cells if cell is not None
            }
            yield Given(line.label, line.where, values)
        else:
            yield Bad(line.where, "not a JSON object")


def _rows(name: str, text: str) -> Iterator[Given | Bad]:
    """Yield one item for each row below the head, which names the columns.

    Raises:
        ConfigurationError: If the head names a column twice, or not at all.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    head: list[str] | None = None
    while True:
        number = reader.line_num + 1
        label, where = _place(name, number)
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Bad(where, str(error))
            continue
        if not any(map(str.strip, row)):
            continue
        if head is None:
            head = [column.strip() for column in row]
            if len(set(head)) < len(head) or "" in head:
                raise ConfigurationError(f"{where}: every column needs a name of its own: {one_line(', '.join(head))}")
        elif len(row) != len(head):
            yield Bad(where, f"{counted(len(row), 'cell')}, and {counted(len(head), 'column')}")
        elif not all(map(_readable, row)):
            yield Bad(where, "not UTF-8")
        else:
            yield Given(label, where, dict(zip(head, row, strict=True)))


READERS: Final[Mapping[str, Callable[[str, str], Iterator[Given | Bad]]]] = {
    "lines": _lines,
    "csv": _rows,
    "jsonl": _json_lines,
}
FORMS: Final = "PATTERN, text:PATTERN, lines:FILE, csv:FILE or jsonl:FILE"


def refuse(bad: Sequence[Bad], good: int, *, skip: bool) -> list[str]:
    """Return a line for each of the first few bad items, and for the others together, if bad ones are left out.

    Args:
        bad: The bad items.
        good: How many good ones there are.
        skip: Whether bad ones are left out.

    Raises:
        ConfigurationError: If bad ones are not left out, or no good one is there.
    """
    lines = [str(item) for item in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"and {len(bad) - SHOWN:,} more")
    if bad and not (skip and good):
        said = "no item can be used" if skip else "--skip-bad leaves out what cannot be used"
        raise ConfigurationError(f"--each: {'; '.join(lines)} ({said})")
    return lines
