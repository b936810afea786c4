"""What is read from one call: what passes is left out, arguments that only shape the answer make no new question."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpus import event_of
from tests.corpus.trace import TracedCall
from tests.kit import busy_seconds
from watchkeeper.observers.questions import READ_CHARS, read_line
from watchkeeper.observers.reading import Reading, Readings, read_call, readings_of, tokens_of
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import KEPT_CALLS, Trajectory
from watchkeeper.session.session import Session


def read(arguments: Any, result: str = "ok", *, success: bool = True, tool: str = "do") -> Reading:
    """Return the reading of a call."""
    return read_call(event_of(TracedCall(tool, arguments, result, success), 1), 1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3 failed in 0.12s", "3 failed in 0.29s", True),
        ("3 failed in 12 ms", "3 failed in 9 ms", True),
        ("3 failed in 1.5 seconds", "3 failed in 2.25 seconds", True),
        ("[10:00:01] waiting", "[10:00:09] waiting", True),
        ("at 2026-03-01T10:00:01Z", "at 2026-03-02T11:30:00.123+01:00", True),
        ("at 2026-03-01 10:00:01 no", "at 2026-03-02 10:00:01 no", True),
        ("<Job at 0x7f3a>", "<Job at 0x9e01>", True),
        ("id 0b5c9a6e-1111-4222-8333-444455556666", "id 1b5c9a6e-1111-4222-8333-444455556666", True),
        ('{"request_id": "f84bd8d14c", "a": 1}', '{"a": 1, "request_id": "c504840a59"}', True),
        ("running, age 5m35s", "running, age 6m05s", True),
        ("pod web-7f9c4-x2x9q up", "pod web-5d8e1-k3j2h up", True),
        ("seen 58 s ago", "seen 4 s ago", True),
        ("3 failed in 0.12s", "2 failed in 0.12s", False),
        ("ready in 20 s", "ready in 10 s", False),
        ("p95 107 ms", "p95 121 ms", False),
        ("45%", "46%", False),
        ("on 2026-03-01", "on 2026-03-02", False),
        ("a b", "a b c", False),
        ("", "", True),
    ],
)
def test_what_passes_is_left_out(one: str, other: str, same: bool) -> None:
    left, right = read({}, one), read({}, other)
    assert ((left.items, sorted(left.numbers)) == (right.items, sorted(right.numbers))) is same


@given(st.text("0123456789:.smTZx-+ ", max_size=40), st.text("0123456789:.smTZx-+ ", max_size=40))
def test_layout_is_nothing_new(one: str, other: str) -> None:
    assert tokens_of(f"{one}\t\t{other}".lower()) == tokens_of(f" {one}\t\t\t{other}  ".lower())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"path": "a.py"}, {"path": "a.py", "limit": 40, "offset": 20}, True),
        ({"path": "./a/b.py"}, {"path": "a/b.py", "verbose": True}, True),
        ({"q": "mill"}, {"q": "mill", "request_id": "77aa", "reason": "I want to know"}, True),
        ({"q": "mill"}, {"q": "mills of Corran"}, False),
        ({"key": "A17"}, {"key": "A18"}, False),
        ({"client_id": "C-017"}, {"client_id": "C-018"}, False),
        ({"q": "mill", "session_id": "9f2c11ab"}, {"q": "mill", "session_id": "0c44d1ee"}, True),
        ({"order": "4010"}, {"order": "4011"}, False),
        ({"court": 3, "time": "14:00"}, {"court": 3, "time": "15:00"}, False),
        ({"shoe": "Trail", "size": 41}, {"shoe": "Trail", "size": 42}, False),
        ({"record": "R-1"}, {"record": "R-2"}, False),
        ({"command": "cat a.py"}, {"command": "cd /app && head -n 40 ./a.py 2>&1"}, True),
        ({"command": "grep -rn foo src"}, {"command": "rg -n foo src | head -5"}, True),
        ({"command": "grep -rn foo src"}, {"command": "grep -rn foo lib"}, False),
        ("cat a.py", "sed -n '1,20p' a.py", True),
    ],
)
def test_what_only_shapes_the_answer_makes_no_other_question(one: Any, other: Any, same: bool) -> None:
    assert (read(one).action == read(other).action) is same


@pytest.mark.parametrize(
    ("arguments", "result", "changes"),
    [
        ({"path": "a.py", "content": "x"}, "saved", True),
        ({"command": "sed -i 's/a/b/' x.py"}, "", True),
        ({"command": "echo x > a.txt"}, "", True),
        ({"command": "git commit -m x"}, "", True),
        ({"sql": "update t set a = 1"}, "1 row", True),
        ({"method": "POST", "url": "https://x.example/a"}, "{}", True),
        ({"service": "web"}, "restarted", True),
        ({"command": "git status"}, "clean", False),
        ({"path": "a.py"}, "import os\nprint(os)", False),
        ({"q": "text to find"}, "no hits", False),
    ],
)
def test_a_change_is_known_by_arguments_or_by_its_acknowledgement(arguments: Any, result: str, changes: bool) -> None:
    assert bool(read(arguments, result).state) is changes


def test_what_a_line_writes_is_the_same_however_it_is_written() -> None:
    patch = "git apply - <<'EOF'\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-let a = 1\n+let a = 2\nEOF"
    script = "sed -i '1c\\let a = 2' x.py"
    assert read_line(patch).written == read_line(script).written == "let a = 2"
    assert read_line(patch).before == "let a = 1"
    assert read({"cmd": patch}).state == read({"cmd": script}).state


@pytest.mark.parametrize(
    ("result", "no", "red", "final"),
    [
        ("nothing found", True, False, False),
        ("0 hits", True, False, False),
        ("[]", True, False, False),
        ("saved", False, False, False),
        ("3 tests failed", False, True, True),
        ("0 failed, 12 passed", True, False, False),
        ("job cancelled by the owner", False, False, True),
        ("failed: 0, running: 3", True, False, False),
    ],
)
def test_it_knows_a_no_a_failure_and_an_end(result: str, no: bool, red: bool, final: bool) -> None:
    reading = read({"what": "x"}, result)
    assert (reading.is_no, reading.is_red, reading.is_final) == (no, red, final)


def test_arguments_of_every_kind_can_be_read() -> None:
    class Struct(msgspec.Struct):
        path: str

    @dataclass
    class Plain:
        path: str

    assert len({read(given).action for given in (Struct("a.py"), Plain("a.py"), {"path": "a.py"})}) == 1
    endless: dict[str, Any] = {"path": "a.py"}
    endless["x"] = endless
    odd: list[Any] = [None, {}, {"a": None}, {1: 2, None: "x"}, {"a": [1, [2, {"b": object()}]]}, endless, "", 7, [1]]
    for params in odd:
        assert read(params).index == 1


@pytest.mark.parametrize("piece", ["1", "1.", "1:", "0x", "a", "1-", "1 ", "-", "=", "a-", "\\", "{", "'", "\n", "é"])
def test_no_call_takes_long_to_read(piece: str) -> None:
    for _ in range(5):
        reading = read({"q": piece * 5000, "command": piece * 5000, "content": piece * 5000}, piece * 50_000)
        assert reading.size <= 2 * READ_CHARS


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"q": "x"}, "time" + "secs" * 24 + "x 5"),
        ({"command": "git commit " + '.replace("a\\",' * 400}, "ok"),
        ({"steps": [{"command": "git commit " + '"\\' * 2000 + str(number)} for number in range(100)]}, "ok"),
        ({"steps": [{"command": "sed -i '" + "0" * 4000 + str(number)} for number in range(100)]}, "ok"),
    ],
)
def test_no_text_that_was_made_for_it_takes_long_to_read(arguments: Any, result: str) -> None:
    assert busy_seconds(lambda: read(arguments, result)) < 1


HOSTILE = (
    '.replace("a\\",', '"\\', "'a", '"a', "a--", "a-", "a_", "secs", "a.", "a/", "git -", "sed -a -", "open(", "> ",
    ">", " ", "1 s agox", "1h1mx", "1,", "(1", "a=b ", "; b: c", "no_", "a_no_", "k" * 20 + " ", "kubectl a ", "/*",
    "-- ", "<a ", "\n", "<", "[", '{"a":', "`a", "a@", "\\", "x: ", "1 failed ", "expected ", "column ", "use ", "é",
)  # fmt: skip
"""Pieces of which texts are made that a pattern may try in many ways."""


@pytest.mark.parametrize("head", ["", "x", "rc=1 ", "git commit ", "error: "])
def test_texts_of_any_piece_are_read_in_a_short_time_wherever_they_stand(head: str) -> None:
    found = list[Reading]()
    for piece in HOSTILE:
        for size in (290, 4000):
            text = f"{head}{piece * (size // len(piece))}!"
            for arguments, result, success in (
                ({"q": "x"}, text, True),
                ({"content": "x"}, text, False),
                ({"command": text, "content": text, "q": text, "value": text}, "ok", True),
            ):
                found.clear()
                look = partial(read, arguments, result, success=success)
                assert busy_seconds(lambda look=look: found.append(look())) < 0.3, (piece, size)  # type: ignore[misc]
                assert found[0].failure.group is not None


@pytest.mark.parametrize("shut", ["[]", "[{}]"])
def test_arguments_of_many_levels_are_read(shut: str) -> None:
    deep: Any = 5
    for _ in range(3000):
        deep = [deep] if shut == "[]" else [{"a": deep}]
    assert read({"q": "x", "deep": deep}).literals == read({"q": "x", "deep": [deep]}).literals


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("see https://a.example/x", "see https://a.example/y", False),
        ("a: https://a.example/x\nb: 1", "a: https://a.example/y\nb: 1", False),
        ("it is issue #12", "it is issue #13", False),
        ("title\nit is issue #12", "title\nit is issue #13", False),
        ("color: #fff;\na", "color: #000;\na", False),
        ("half = n // 2\nreturn half", "half = n // 3\nreturn half", False),
        ("buy milk # for Ann", "buy milk # for Bob", False),
        ("a = 1  # one\nb", "a = 1  # first\nb", True),
        ("a = 1;  // one\nb", "a = 1; // first\nb", True),
        ("# one\na = 1", "# first\na = 1", True),
        ("  // one\na()", "// first\na()", True),
    ],
)
def test_only_comments_make_no_other_state(one: str, other: str, same: bool) -> None:
    left, right = (read({"path": "a.txt", "content": text}) for text in (one, other))
    assert (left.state == right.state) is same


@pytest.mark.parametrize("place", [0.2, 0.5, 0.99])
def test_two_long_texts_that_are_written_differ_wherever_they_do(place: float) -> None:
    text = "It was a long report. " * 1000
    cut = int(len(text) * place)
    one, other = (read({"path": "a.md", "content": text[:cut] + word + text[cut:]}) for word in ("this", "that"))
    assert one.state != other.state
    assert one.state == read({"path": "a.md", "content": text[:cut] + "this" + text[cut:]}).state
    written = [read({"command": f"cat > a <<EOF\n{text[:cut]}{word}{text[cut:]}\nEOF"}) for word in ("this", "that")]
    assert written[0].state != written[1].state


def test_calls_differ_also_where_their_arguments_are_not_read_any_more() -> None:
    one, other = (
        {"steps": [{"step": "a b " * 1000 + str(number)} for number in (*range(20), last)]} for last in (1, 2)
    )
    assert read(one).action != read(other).action


def test_each_call_is_read_once_and_the_newest_are_kept() -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory)
    for number in range(1, KEPT_CALLS + 50):
        session.dispatch(event := event_of(TracedCall("do", {"n": number}, "ok"), number))
        trajectory.add(event)
        if number % 7 == 0:
            assert readings_of(context) is readings_of(context)
    readings = readings_of(context)
    assert [each.index for each in readings.newest] == list(range(50, KEPT_CALLS + 50))
    assert [each.index for each in readings.since(KEPT_CALLS + 47)] == [KEPT_CALLS + 48, KEPT_CALLS + 49]
    trajectory.begin(())
    assert not trajectory.fold(Readings, Readings).newest
