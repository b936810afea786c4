"""The output of the command line: plain lines, the same in a terminal, a pipe, a CI log and a file.

If the output is not a terminal, nothing is cut or folded. Control characters in texts of models and tools are shown as
escapes, because they could move the cursor or overwrite other text.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Final, TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

CUT: Final = 100
"""Texts of models and tools are cut to this length in lines about them; the store has all of them."""

CANNOT_PRINT: Final = 1
"""Exit code of a command whose output is lost."""

UNPRINTABLE: Final = (OSError, ValueError)
"""What a stream raises if it cannot be written: for a full disk, a closed terminal or file, or an encoding."""

PIPE_WIDTH: Final = 100_000
# C0 but tab and newline, C1, marks that turn the direction of text around, lone surrogates.
_UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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


def make_console(file: TextIO | None) -> PlainConsole:
    """Return a console for a stream; what its encoding cannot write is written as escapes.

    Where the standard streams are closed Python has None for them; the console is silent then.
    """
    if file is None:
        return PlainConsole(file=io.StringIO(), quiet=True)
    reconfigure = getattr(file, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    console = PlainConsole(file=file, highlight=False, emoji=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def printable(text: str) -> str:
    """Return text in which control characters are escaped."""
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str, cut: int | None = None) -> str:
    """Return text as one printable line, cut with an ellipsis if it is longer than ``cut`` characters."""
    line = printable(" ".join(text.split()))
    return line if cut is None or len(line) <= cut else f"{line[: cut - 1]}…"


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return parts, each with its style or without one, as one text that no markup in them can change."""
    return Text.assemble(*parts)


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Text | str]]) -> None:
    """Print rows under a head; in a terminal cells fold to its width, elsewhere every row is one line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not console.is_terminal)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    if console.is_terminal:
        console.print(table, soft_wrap=False)
        return
    with console.capture() as captured:
        console.print(table, soft_wrap=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip())


def say(console: Console, *parts: str | tuple[str, str]) -> None:
    """Print one line beside the result; an error in printing it is ignored."""
    with suppress(*UNPRINTABLE):
        console.print(styled(*parts))


def complain(console: Console, message: str) -> None:
    """Print one error in one line."""
    say(console, ("error:", "bold red"), " ", printable(message))


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


def hold_standard_descriptors() -> None:
    """Reserve the numbers of closed standard streams, so that no other file or socket gets them and is written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
