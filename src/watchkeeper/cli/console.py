"""The output of the command line: plain lines, the same in a terminal, a pipe, a CI log and a file.

If the output is not a terminal, nothing is cut or folded. Nothing foreign acts on a terminal or imitates a line of the
report: `styled` replaces credentials, escapes what it is given (`watchkeeper.core.text.printable`) and makes one line
of it. In a terminal, a line that is too long is folded, its further parts behind a margin. Texts of several lines, such
as answers, are printed by `print_fenced`, with a mark before every line that nothing else begins with. Modules of this
folder print only with `put`, `say`, `print_fenced`, `say_fenced` and `print_table`, or write JSON, which is escaped
anyway.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise, repeat
from pathlib import Path
from typing import IO, Final, TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import fold_points, printable

CUT: Final = 100
"""Texts of models and tools are cut to this length in lines about them; the store has all of them."""

CANNOT_PRINT: Final = 1
"""Exit code of a command whose output is lost."""

UNPRINTABLE: Final = (OSError, ValueError)
"""What a stream raises if it cannot be written: for a full disk, a closed terminal or file, or an encoding."""

BATCH: Final = 200
"""How many lines are written at once where many are printed."""

CODES: Final = {"bold": "1", "dim": "2"} | {
    name: str(30 + number)
    for number, name in enumerate(("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"))
}
"""What a terminal is sent for each word of a style."""

PIPE_WIDTH: Final = 100_000

MARGIN: Final = "    "
"""Before every further part of a line that is folded."""

GAP: Final = 2
"""Blanks between two columns of a table."""

LEAST: Final = 8
"""To how many columns a text of a row may be cut."""

ENOUGH: Final = 18
"""How many columns are enough for a state in a row that is too long."""

CHUNK: Final = 1 << 16

FENCE: Final = "│ "
"""Before every line of a text of several lines."""


class PlainConsole(Console):
    """A console that prints nothing more after its reader has closed the pipe, so that the run goes on."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True
        silence(self.file)


def silence(stream: IO[str]) -> None:
    """Discard what a stream still buffers and all that is written to it from now on."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def let_go() -> None:
    """Discard what the standard streams still buffer for a terminal or a reader that is gone.

    Python flushes them when it exits, and makes the exit code 120 if that fails.
    """
    for stream in (cast("TextIO | None", sys.stdout), cast("TextIO | None", sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except ValueError:
            continue  # it was closed
        except OSError as error:
            if stream is not None and error.errno in (errno.EIO, errno.EPIPE):
                silence(stream)


def make_console(file: TextIO | None) -> PlainConsole:
    """Return a console for a stream; what its encoding cannot write is written as escapes.

    Where the standard streams are closed Python has None for them; the console is silent then.
    """
    if file is None:
        return PlainConsole(file=io.StringIO(), quiet=True)
    reconfigure = getattr(file, "reconfigure", None)
    if reconfigure is not None:
        try:
            reconfigure(errors="backslashreplace")
        except OSError:  # it writes what is buffered first, and the terminal or reader is gone
            silence(file)
            reconfigure(errors="backslashreplace")
    plain = bool(os.environ.get("NO_COLOR"))  # rich would leave out colours only
    console = PlainConsole(
        file=file, highlight=False, emoji=False, markup=False, soft_wrap=True, color_system=None if plain else "auto"
    )
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


Part = str | tuple[str, str]
"""A text, with its style or without one."""


def styled(*parts: Part) -> Text:
    """Return parts as one printable line; no markup in them is obeyed."""
    return Text.assemble(*_flat(parts))


def _flat(parts: Iterable[Part]) -> list[tuple[str, str]]:
    """Return parts as one printable line, each with its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return [(_shown(text), style) for text, style in pairs]


def _shown(text: str) -> str:
    return printable(redacted(text)).replace("\n", " ")


def put(console: Console, *parts: Part) -> None:
    """Print one line."""
    put_all(console, (parts,))


def put_all(console: Console, lines: Iterable[Sequence[Part]]) -> None:
    """Print lines that end somewhere, many at once, because a stored run may have 100,000 of them.

    A line whose first part is `FENCE` belongs to a text of several lines.
    """
    waiting: list[Sequence[Part]] = []
    try:
        for parts in lines:
            waiting.append(parts)
            if len(waiting) >= BATCH:
                _write(console, waiting)
    finally:  # what comes may be damaged; what came before is printed
        _write(console, waiting)


def fenced(text: str, style: str = "") -> Iterator[Sequence[Part]]:
    """Yield the lines of a text of any number of lines, each behind the fence, for `put_all`."""
    return map(behind_fence, redacted(text).replace("\r\n", "\n").split("\n"), repeat(style))


def behind_fence(line: str, style: str = "") -> Sequence[Part]:
    """Return a line of a text of several lines, for `put_all`."""
    return (FENCE, (line, style)) if line else (FENCE.rstrip(),)


def print_fenced(console: Console, text: str, style: str = "") -> None:
    """Print a text of any number of lines, each behind the fence."""
    put_all(console, fenced(text, style))


def _plain(lines: Iterable[Sequence[Part]]) -> list[str]:
    """Return lines as they are printed where there is no terminal."""
    texts = ["".join([part if isinstance(part, str) else part[0] for part in parts]) for parts in lines]
    whole = "".join(texts)
    # Nearly always nothing in them is replaced, and one look at all is many times quicker than one at each.
    return texts if _shown(whole) == whole else [_shown(text) for text in texts]


def _folded(parts: Sequence[Part], width: int, colours: bool) -> Iterator[str]:
    """Yield the parts of a line for a terminal, which would go on at the left edge."""
    pairs = _flat(parts)
    line = "".join([text for text, _ in pairs])
    margin = FENCE if pairs and pairs[0][0] == FENCE else MARGIN
    points = word_points(line, width, len(margin))
    for number, (start, end) in enumerate(pairwise((0, *points, len(line)))):
        yield (margin if number else "") + (_coloured(pairs, start, end) if colours else line[start:end])


def _coloured(pairs: list[tuple[str, str]], start: int, end: int) -> str:
    """Return a part of a line with the codes of its styles."""
    said, place = "", 0
    for text, style in pairs:
        part = text[max(start - place, 0) : max(end - place, 0)]
        place += len(text)
        if part:
            said += f"\x1b[{';'.join(CODES[word] for word in style.split())}m{part}\x1b[0m" if style else part
    return said


def _write(console: Console, lines: list[Sequence[Part]]) -> None:
    """Write lines and forget them; as rich does, print nothing more after the reader has closed the pipe."""
    if not lines or console.quiet:
        lines.clear()
        return
    if console.is_terminal:
        width, colours = console.width, console.color_system is not None and not console.no_color
        texts = [part for parts in lines for part in _folded(parts, width, colours)]
    else:
        texts = _plain(lines)
    text = "\n".join(texts) + "\n"
    lines.clear()
    try:
        console.file.write(text)
        console.file.flush()
    except BrokenPipeError:
        console.on_broken_pipe()


def row_of(parts: Sequence[Part], width: int, *, colours: bool) -> str:
    """Return a line as a terminal is sent it, cut with an ellipsis if it is wider than so many columns."""
    pairs = _flat(parts)
    line = "".join([text for text, _ in pairs])
    end = len(line)
    if fold_points(line, width):
        end = next(iter(fold_points(line, max(width - 1, 1))), end)
    shown = _coloured(pairs, 0, end) if colours else line[:end]
    return shown if end == len(line) else f"{shown}…"


def word_points(line: str, width: int, margin: int) -> list[int]:
    """Return where to break a line, as `fold_points` does, but between words if a part has more than one word."""
    points: list[int] = []
    start, room = 0, width
    while found := _first_fold(line[start : start + room + 1], room):
        space = line.rfind(" ", start, start + found)
        start = space + 1 if line[start : max(space, start)].strip() else start + found
        points.append(start)
        room = max(width - margin, 1)
    return points


def _first_fold(part: str, room: int) -> int:
    if part.isascii() and "\t" not in part:
        return room if len(part) > room else 0
    return next(iter(fold_points(part, room)), 0)


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Text | str]]) -> None:
    """Print rows under a head; in a terminal cells fold to its width, elsewhere every row is one line.

    The first cell of a row is cut instead: its second line would begin at the left edge, like a new row.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(
            column, overflow="fold" if number else "ellipsis", no_wrap=not number or not console.is_terminal
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else styled(cell) for cell in row))
    if console.is_terminal:
        console.print(table, soft_wrap=False)
        return
    with console.capture() as captured:
        console.print(table, soft_wrap=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip())


def cut_to_fit(
    columns: Sequence[str], rows: Sequence[Sequence[Text | str]], width: int, names: Sequence[int], last: int
) -> list[tuple[Text | str, ...]]:
    """Return rows in which the widest texts are cut, so that each row is a line.

    Args:
        columns: The heads of the columns.
        rows: The rows.
        width: Of the line.
        names: Numbers of the columns that are cut first, to `LEAST` at most.
        last: Number of the column that is cut to `ENOUGH` before them, and further after them.
    """
    cells = [[cell.copy() if isinstance(cell, Text) else styled(cell) for cell in row] for row in rows]
    widths = [max(len(head), *(row[at].cell_len for row in cells)) for at, head in enumerate(columns)]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        widest = max(names, key=widths.__getitem__)
        if widths[widest] <= LEAST or widths[last] > ENOUGH:
            widest = last
        if widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    for row in cells:
        for at in (*names, last):
            row[at].truncate(widths[at], overflow="ellipsis")
    return [tuple(row) for row in cells]


def say(console: Console, *parts: Part) -> None:
    """Print one line beside the result; an error in printing it is ignored."""
    with suppress(*UNPRINTABLE):
        put(console, *parts)


def say_fenced(console: Console, text: str) -> None:
    """Print a text of several lines beside the result; an error in printing it is ignored."""
    with suppress(*UNPRINTABLE):
        print_fenced(console, text)


def complain(console: Console, message: str) -> None:
    """Print one error in one line."""
    say(console, ("error:", "bold red"), " ", message)


def error_console() -> PlainConsole:
    """Return a console for standard error."""
    return make_console(sys.stderr)


@contextmanager
def printing() -> Generator[TextIO]:
    """Yield standard output to a block that only prints; a closed pipe is not an error.

    Raises:
        SystemExit: If it cannot be printed; one line says why.
    """
    out = cast("TextIO | None", sys.stdout)
    if out is None:
        complain(error_console(), "the output cannot be printed: standard output is closed")
        raise SystemExit(CANNOT_PRINT)
    try:
        yield out
        out.flush()
    except BrokenPipeError:
        silence(out)
    except UNPRINTABLE as error:
        silence(out)
        complain(error_console(), f"the output cannot be printed: {error}")
        raise SystemExit(CANNOT_PRINT) from error


class Complaints(logging.Handler):
    """Shows the library's own warnings on standard error, unless the agent's file has configured logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record in one line."""
        if not logging.getLogger().handlers:
            say(error_console(), (f"{record.levelname.lower()}:", "yellow"), " ", record.getMessage())


def show_warnings() -> None:
    """Show warnings of the library, and only once, however often the command line is run in this process."""
    logger = logging.getLogger("watchkeeper")
    if not any(isinstance(handler, Complaints) for handler in logger.handlers):
        logger.addHandler(Complaints(logging.WARNING))


def hold_standard_descriptors() -> None:
    """Reserve the numbers of closed standard streams, so that no other file or socket gets them and is written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def pass_on(early: IO[bytes]) -> None:
    """Print on standard error what another process of this command has printed to a file; it was escaped there."""
    early.seek(0)
    text = early.read().decode("utf-8", "backslashreplace")
    with suppress(AttributeError, *UNPRINTABLE):  # there may be no standard error
        sys.stderr.write(text)


def move_output(early: int, log: Path) -> None:
    """Let the standard streams write to a file from now on, behind what they have written so far."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        copied = _copied(early, file, 0)
        for number in (1, 2):
            os.dup2(file, number)
        _copied(early, file, copied)  # what other threads have written meanwhile
    finally:
        os.close(file)


def _copied(source: int, target: int, start: int) -> int:
    """Copy a file from a position to its end; return the position of the end."""
    while part := os.pread(source, CHUNK, start):
        while part:
            written = os.write(target, part)
            start, part = start + written, part[written:]
    return start
