"""How calls are cited: by index, shortened, whatever the arguments are; and how thresholds are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpus import event_of
from tests.corpus.trace import TracedCall
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.evidence import (
    ARGUMENT_CHARS,
    VALUE_CHARS,
    arguments_of,
    check_settings,
    cite,
    line_of,
    shorten,
)


class Query(msgspec.Struct):
    """Arguments as a tool gets them."""

    path: str
    limit: int = 3


class Nothing(msgspec.Struct):
    """Arguments of a tool that takes none."""


@dataclass
class Edit:
    """Arguments of another kind."""

    path: str
    text: str


class Silent:
    """Something that nobody expects among arguments."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (Query("a.py"), "path='a.py', limit=3"),
        (Nothing(), ""),
        (Edit("a.py", "import os\n\n  x = 1\n"), "path='a.py', text='import os x = 1'"),
        ({"path": "a.py", "deep": {"b": [1, 2]}}, "path='a.py', deep={'b': [1, 2]}"),
        ({}, ""),
        (None, ""),
        ('{"path": broken\n', '{"path": broken'),
        ([1, "two"], "[1, 'two']"),
        ({"quote": "it's"}, 'quote="it\'s"'),
        ({str(n): n for n in range(10)}, "0=0, 1=1, 2=2, 3=3, 4=4, 5=5, 6=6, 7=7, …"),
    ],
)
def test_arguments_of_every_kind_are_written_as_a_person_would(params: Any, said: str) -> None:
    assert arguments_of(params) == said


def test_megabytes_of_arguments_are_cut() -> None:
    said = line_of(event_of(TracedCall("t", {"text": "x y" * 10**6, "rows": list(range(10**6))}, "ok"), 1), 1)
    assert said.startswith("#1 t(text='x yx y")
    assert len(said) < ARGUMENT_CHARS + 20
    assert "rows=[0, 1, 2, 3, 4, 5, ...]" in said
    assert len(arguments_of("y" * 10**6)) == ARGUMENT_CHARS


def test_arguments_that_cannot_be_shown_do_no_harm() -> None:
    assert "Silent instance" in arguments_of({"x": Silent()})


def test_a_call_is_cited_by_index_with_what_went_wrong() -> None:
    failed = event_of(TracedCall("edit_file", {"path": "a.py"}, "no\nsuch text", success=False), 1)
    assert line_of(failed, 12) == "#12 edit_file(path='a.py')"
    assert line_of(failed, 12, errors=True) == "#12 edit_file(path='a.py') → no such text"
    fine = event_of(TracedCall("edit_file", {"path": "a.py"}, "done"), 1)
    assert line_of(fine, 1_234, errors=True) == "#1234 edit_file(path='a.py')"


def test_of_many_calls_the_first_and_the_last_are_cited() -> None:
    calls = [event_of(TracedCall("t", {"n": number}, "ok"), number) for number in range(1, 2001)]
    lines = cite(calls, range(1, 2001)).splitlines()
    assert lines == ["#1 t(n=1)", "#2 t(n=2)", "#3 t(n=3)", "... 1,994 more ..."] + [
        f"#{number} t(n={number})" for number in (1998, 1999, 2000)
    ]
    assert cite(calls, range(1, 7)).count("\n") == 5
    assert cite(calls, range(1, 8)).splitlines()[3] == "... 1 more ..."
    assert cite(calls, [2]) == "#2 t(n=2)"


def test_what_is_not_there_is_not_cited() -> None:
    calls = [event_of(TracedCall("t", {}, "ok"), 1)]
    assert cite(calls, [-1, 0, 1, 2]) == "#1 t()"
    assert cite(calls, []) == ""


@given(st.text(max_size=1000), st.integers(2, 200))
def test_a_shortened_text_is_one_line_and_no_longer_than_asked(text: str, most: int) -> None:
    short = shorten(text, most)
    assert len(short) <= most
    assert len(short.splitlines()) <= 1
    if len(" ".join(text.split())) <= most and len(text) <= most:
        assert short == " ".join(text.split())


def test_a_cut_is_shown() -> None:
    assert shorten("x" * VALUE_CHARS) == "x" * VALUE_CHARS
    assert shorten("x" * (VALUE_CHARS + 1)) == "x" * (VALUE_CHARS - 1) + "…"
    assert shorten(" " * 10**6 + "x", 10) == "…"


@dataclass(frozen=True)
class D:
    """An observer's settings: a count, a share and a name."""

    n: object = 1
    s: object = 0.5
    name: object = "D"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_a_count_is_a_whole_number(value: object) -> None:
    with pytest.raises(ObserverError, match=r"D\(n=.*\) must be a whole number of at least 1"):
        check_settings(D(n=value), n=(1, None))


def test_a_count_may_have_a_most() -> None:
    check_settings(D(n=5), n=(2, 5))
    with pytest.raises(ObserverError, match=r"D\(n=6\) must be a whole number from 2 to 5"):
        check_settings(D(n=6), n=(2, 5))


@pytest.mark.parametrize("value", [0, 1, -0.5, 1.5, float("nan"), True, "0.5", None])
def test_a_share_lies_between_nothing_and_all(value: object) -> None:
    with pytest.raises(ObserverError, match=r"D\(s=.*\) must be more than 0 and less than 1"):
        check_settings(D(s=value), "s")
    check_settings(D(s=0.5), "s")


@pytest.mark.parametrize("value", ["", "  ", None, 3])
def test_a_name_is_a_text(value: object) -> None:
    with pytest.raises(ObserverError, match=r"D\(name=.*\) must have a name"):
        check_settings(D(name=value))
    check_settings(D(name="x"))


@pytest.mark.parametrize("value", ["a\nb", " a", "x" * 10**6, "\x1b[2J"], ids=["lines", "blank", "long", "control"])
def test_a_name_can_stand_in_a_heading(value: str) -> None:
    with pytest.raises(ObserverError, match=r"the name .* must be one line") as raised:
        check_settings(D(name=value))
    assert len(str(raised.value)) < 500


def test_no_value_is_too_strange_or_too_large_to_be_refused() -> None:
    class Strange:
        def __repr__(self) -> str:
            raise ValueError("no text")

    settings: list[tuple[tuple[str, ...], dict[str, tuple[int, int | None]]]] = [((), {"n": (1, None)}), (("n",), {})]
    for shares, counts in settings:
        for value in (Strange(), "x" * 10**6, [[[0] * 9] * 9] * 9):
            with pytest.raises(ObserverError, match="D\\(n=") as raised:
                check_settings(D(n=value), *shares, **counts)
            assert len(str(raised.value)) < 400
    for name in (Strange(), None, b"x", "  "):
        with pytest.raises(ObserverError, match="D\\(name="):
            check_settings(D(name=name))
