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
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
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

PIPE_WIDTH: Final = 100_000

MARGIN: Final = "    "
"""Before every further part of a line that is folded."""

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
    console = PlainConsole(file=file, highlight=False, emoji=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


Part = str | tuple[str, str]
"""A text, with its style or without one."""


def styled(*parts: Part) -> Text:
    """Return parts as one printable line; no markup in them is obeyed."""
    return Text.assemble(*((_flat(part), "") if isinstance(part, str) else (_flat(part[0]), part[1]) for part in parts))


def _flat(text: str) -> str:
    return printable(redacted(text)).replace("\n", " ")


def put(console: Console, *parts: Part) -> None:
    """Print one line."""
    _put(console, styled(*parts), MARGIN)


def print_fenced(console: Console, text: str, style: str = "") -> None:
    """Print a text of any number of lines, each behind the fence."""
    for line in printable(redacted(text).replace("\r\n", "\n")).split("\n"):
        _put(console, Text.assemble(FENCE if line else FENCE.rstrip(), (line, style)), FENCE)


def _put(console: Console, line: Text, margin: str) -> None:
    """Print a line; in a terminal fold it, because a terminal would go on at the left edge."""
    points = word_points(line.plain, console.width, len(margin)) if console.is_terminal else []
    for number, part in enumerate(line.divide(points)):
        console.print(Text.assemble(margin, part) if number else part)


def word_points(line: str, width: int, margin: int) -> list[int]:
    """Return where to break a line, as `fold_points` does, but between words if a part has more than one word."""
    points: list[int] = []
    start, room = 0, width
    while found := fold_points(line[start : start + room + 1], room):
        space = line.rfind(" ", start, start + found[0])
        start = space + 1 if line[start : max(space, start)].strip() else start + found[0]
        points.append(start)
        room = max(width - margin, 1)
    return points


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
