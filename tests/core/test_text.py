"""Texts from outside are bounded, and valid as UTF-8."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.asking.models import text_bytes
from watchkeeper.core.messages import UserMessage
from watchkeeper.core.text import CrashError, bounded, clipped, error_text, fold_points, printable, shown, storable


@given(st.text(st.characters(), max_size=50), st.integers(1, 60))
def test_what_is_cut_is_said(text: str, most: int) -> None:
    shown = bounded(text, most)
    shown.encode()  # raises where it could not be sent
    if len(text) <= most:
        assert len(shown) == len(text)
    else:
        assert shown.endswith(f"\n[cut: {len(text) - most} more characters]")


def test_only_what_cannot_be_sent_is_replaced() -> None:
    assert storable("naïve \U0001f600") == "naïve \U0001f600"
    assert storable("caf\udce9") == "caf?"


def test_a_lone_surrogate_counts_as_what_is_sent_for_it() -> None:
    assert text_bytes(UserMessage.of("caf\udce9")) == len("caf\ufffd".encode())


@given(st.text(max_size=20), st.integers(1, 20))
def test_what_is_clipped_ends_with_an_ellipsis_and_is_no_longer_than_it_may_be(text: str, most: int) -> None:
    short = clipped(text, most)
    assert len(short) <= most
    assert short == text if len(text) <= most else short == text[: most - 1] + "…"


def test_every_character_that_acts_or_hides_is_shown_as_an_escape() -> None:
    """Kept are tabs, newlines, the joiners of several scripts, and marks before numbers, which are seen."""
    kept = set("\t\n\u200c\u200d\u06dd\u070f\u08e2\u0890\u0891\U000110bd\U000110cd") | set(
        map(chr, range(0x600, 0x606))
    )
    hiding = {
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
    assert {character for character in hiding if printable(character) == character} == kept
    assert printable("é ✓ 漢 \xa0 👩\u200d🚀 \ue000") == "é ✓ 漢 \xa0 👩\u200d🚀 \ue000"


@given(st.text(max_size=60), st.integers(12, 30), st.integers(0, 4))
def test_a_folded_line_fits_and_loses_nothing(text: str, width: int, margin: int) -> None:
    line = printable(text).replace("\n", " ")
    points = [0, *fold_points(line, width, margin), len(line)]
    parts = [line[begin:end] for begin, end in pairwise(points)]
    assert "".join(parts) == line
    for number, part in enumerate(parts):
        wide = sum(unicodedata.east_asian_width(each) in "WF" for each in part)
        assert len(part) + wide + 7 * part.count("\t") + (margin if number else 0) <= width


def test_the_library_is_silent_unless_logging_is_configured() -> None:
    """Also for warnings and errors, which the standard library would print where nobody listens."""
    code = (
        "from watchkeeper.core.text import logger\n"
        "logger().warning('listener.failed', error='x')\n"
        "logger().error('ledger.unwritten', error='x')\n"
    )
    more = "import logging\nlogging.basicConfig(level='WARNING')\n" + code
    for script, said in ((code, False), (more, True)):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert ("event='listener.failed' error='x'" in done.stderr) is said
        assert done.stdout == ""
        assert said or done.stderr == ""


class Panic(BaseException):
    """Stands for what a Rust extension raises."""


class Mute(BaseException):
    """Cannot say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError("mute")

    __repr__ = __str__


def test_the_message_says_what_it_was() -> None:
    assert str(CrashError(Panic("rust"))) == "Panic: rust"
    assert error_text(CrashError(Panic("rust"))) == "Panic: rust"
    assert error_text(Panic()) == "Panic"
    assert error_text(Mute()) == "Mute, whose message cannot be read: ValueError"
    assert error_text(KeyError("name")) == "KeyError: 'name'"
    assert error_text(None) == "no error"


def test_a_value_is_shown_though_it_cannot_show_itself() -> None:
    assert shown([1]) == "[1]"
    assert shown(Mute()) == "a Mute, whose repr cannot be read: ValueError"
