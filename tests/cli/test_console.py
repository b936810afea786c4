"""Printed output: readable in a terminal and in a pipe, complete, and without control characters."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from watchkeeper.cli.console import (
    PlainConsole,
    complain,
    let_go,
    make_console,
    print_fenced,
    print_table,
    put,
    silence,
    styled,
)
from watchkeeper.core.text import one_line, printable

LONG = " ".join(f"word{number}" for number in range(200))


def piped() -> tuple[PlainConsole, io.StringIO]:
    """Return a console that writes where nobody looks at a terminal."""
    out = io.StringIO()
    return make_console(out), out


def terminal(width: int = 40) -> tuple[Console, io.StringIO]:
    """Return a console as in a terminal."""
    out = io.StringIO()
    console = PlainConsole(
        file=out, force_terminal=True, width=width, highlight=False, emoji=False, markup=False, soft_wrap=True
    )
    return console, out


def test_a_pipe_gets_whole_lines_without_colours() -> None:
    console, out = piped()
    console.print(styled((LONG, "bold red"), " :smile: [bold]x[/bold]"))
    assert out.getvalue() == f"{LONG} :smile: [bold]x[/bold]\n"


def test_a_table_in_a_pipe_has_one_whole_line_per_row_and_no_blanks_at_the_end() -> None:
    console, out = piped()
    print_table(console, ("a", "b"), [("1", LONG), ("22", styled(("[x]", "green")))])
    assert out.getvalue().splitlines() == ["a   b", f"1   {LONG}", "22  [x]"]


def test_a_table_in_a_terminal_folds_to_its_width_and_loses_nothing() -> None:
    console, out = terminal()
    print_table(console, ("a", "b"), [("1", "x" * 100)])
    assert max(len(line) for line in re.sub(r"\x1b\[\d*m", "", out.getvalue()).splitlines()) == 40
    assert out.getvalue().count("x") == 100


def test_control_characters_are_shown_and_not_obeyed() -> None:
    hostile = "a\x1b[2Jb\rc\x07d\x9be\u202ef\x00g"
    assert printable(hostile) == "a\\x1b[2Jb\\rc\\x07d\\x9be\\u202ef\\x00g"
    assert printable("tab\tand\nnewline é ✓ 漢") == "tab\tand\nnewline é ✓ 漢"
    assert printable("lone \ud800") == "lone \\ud800"


def test_the_short_way_for_printable_text_lets_nothing_through() -> None:
    assert "".join(map(printable, map(chr, range(0x110000)))) == printable("".join(map(chr, range(0x110000))))
    for letter in "\u17b4\u17b5\u3164\uffa0\U000e0100":
        assert letter.isprintable()
        assert printable(f"x{letter} ●") == f"x{letter.encode('unicode_escape').decode()} ●"


def test_without_colours_a_terminal_gets_no_styles_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    console, out = terminal(200)
    put(console, ("a", "bold red"), " b")
    monkeypatch.setenv("NO_COLOR", "1")
    console, plain = terminal(200)
    put(console, ("a", "bold red"), " b")
    assert (out.getvalue(), plain.getvalue()) == ("\x1b[1;31ma\x1b[0m b\n", "a b\n")


def test_a_fenced_line_is_folded_behind_the_fence_and_any_other_behind_the_margin() -> None:
    console, out = terminal(12)
    print_fenced(console, "abcdef ghijkl mn\n\nx")
    put(console, "│ abcdefghij", ("klm", ""))
    assert out.getvalue().splitlines() == [
        "│ abcdef ",
        "│ ghijkl mn",
        "│",
        "│ x",
        "│ ",
        "    abcdefgh",
        "    ijklm",
    ]


@given(st.text(), st.integers(2, 50))
def test_one_line_is_one_printable_line_of_at_most_the_length(text: str, cut: int) -> None:
    line = one_line(text, cut)
    assert len(line) <= cut
    assert line == printable(line)
    assert len(line.splitlines()) <= 1
    assert one_line(text).startswith(line.removesuffix("…"))


def test_a_complaint_is_one_line() -> None:
    console, out = piped()
    complain(console, f"[red]{LONG}\x1b")
    assert out.getvalue() == f"error: [red]{LONG}\\x1b\n"


def test_what_an_encoding_cannot_write_is_written_as_escapes() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = make_console(stream)
    console.print(styled("✓ \ud800"))
    stream.flush()
    assert raw.getvalue() == b"\\u2713 \\ud800\n"


def test_a_reader_that_went_away_is_printed_nothing_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        console = make_console(stream)
        for _ in range(3):
            console.print("x")
        assert console.quiet


def test_a_stream_without_a_file_cannot_be_silenced_and_that_is_no_error() -> None:
    stream = io.StringIO()
    silence(stream)
    stream.write("still there")
    assert stream.getvalue() == "still there"


def test_what_a_reader_that_is_gone_did_not_take_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        stream.write("left in the buffer")
        with pytest.raises(BrokenPipeError):
            stream.flush()
        let_go()
        stream.flush()
        assert os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev


def test_a_console_for_a_stream_whose_reader_is_gone_is_made_and_silent() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        stream.write("left in the buffer")
        make_console(stream).print("nobody reads this")
        stream.flush()
        assert os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev
