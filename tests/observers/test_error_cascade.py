"""When calls keep failing, which of them fail alike, and how that is put."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpus import ask, event_of
from tests.corpus.trace import TracedCall
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.cascade import ErrorCascadeDetector, largest_group
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import Trajectory, digest
from watchkeeper.session.session import Session

ERRORS = ErrorCascadeDetector()


def bad(result: str, tool: str = "t", **arguments: Any) -> TracedCall:
    """A call that failed."""
    return TracedCall(tool, arguments, result, success=False)


OK = TracedCall("t", {}, "ok")


@pytest.mark.spec("TO-014")
def test_failures_in_a_row_are_a_cascade_and_the_group_is_named() -> None:
    said = ask(ERRORS, [OK, *(bad(f"no such file: '{name}'", "read", path=name) for name in ("a", "b", "c"))])
    assert said is not None
    assert said.observer_name == "Errors"
    assert said.severity == "caution"
    assert said.summary == "The last 3 tool calls failed; 3 of them failed alike: no such file: 'c'"
    (seen,) = said.observations
    assert (seen.category, seen.description) == ("error_cascade", "3 failures of one kind")
    assert seen.evidence == "\n".join(
        f"#{number} read(path='{name}') → no such file: '{name}'" for number, name in enumerate("abc", 2)
    )
    assert said.suggestions == (
        "Stop and find out why before you call again; the same call will fail the same way.",
        "Check your assumptions about names, paths and arguments, or take another way.",
    )


@pytest.mark.parametrize(
    ("row", "severity"), [(0, None), (2, None), (3, "caution"), (5, "caution"), (6, "warning"), (400, "warning")]
)
def test_the_longer_the_graver(row: int, severity: str | None) -> None:
    said = ask(ERRORS, [OK, *[bad("no")] * row])
    assert (said and said.severity) == severity


def test_only_failures_in_a_row_count() -> None:
    assert ask(ERRORS, [bad("no"), bad("no"), OK] * 9) is None
    assert ask(ERRORS, [*[bad("no")] * 9, OK]) is None
    assert ask(ERRORS, [*[bad("no")] * 9, OK, bad("no"), bad("no")]) is None


def test_failures_of_different_kinds_are_said_to_be_different() -> None:
    said = ask(ERRORS, [bad("permission denied"), bad("schema names are lower case"), bad("unknown host")])
    assert said is not None
    assert said.summary == "The last 3 tool calls failed; each failed differently, the last: unknown host"
    assert said.observations[0].description == "3 failures of as many kinds"
    assert said.observations[0].evidence is not None
    assert said.observations[0].evidence.count("\n") == 2, "each of them is cited"


@pytest.mark.spec("TO-014")
def test_the_same_trouble_in_other_words_is_one_group() -> None:
    said = ask(
        ERRORS,
        [
            bad("No such file: 'x.csv'"),
            bad("syntax error near ';'"),
            bad("cat: x.csv: No such file or directory"),
            bad("[Errno 2] No such file or directory: '/data/x.csv'"),
        ],
    )
    assert said is not None
    assert "3 of them failed alike: [Errno 2] No such file or directory" in said.summary
    assert said.observations[0].evidence is not None
    assert "syntax" not in said.observations[0].evidence


def test_of_a_very_long_row_the_newest_are_grouped() -> None:
    said = ask(ERRORS, [bad(f"no file 'f{number}'") for number in range(1234)])
    assert said is not None
    assert said.summary == "The last 1,234 tool calls failed; 50 of the last 50 failed alike: no file 'f1233'"
    assert said.observations[0].evidence is not None
    assert said.observations[0].evidence.splitlines()[0].startswith("#1185 ")


def test_a_failure_without_a_message_is_named_by_how_it_ended() -> None:
    said = ask(ERRORS, [bad("")] * 3)
    assert said is not None
    assert said.summary.endswith("3 of them failed alike: failed")


def test_a_message_of_megabytes_is_cut() -> None:
    said = ask(ERRORS, [bad("x " * 10**6)] * 3)
    assert said is not None
    assert len(said.summary) < 300


def test_of_two_groups_of_one_size_that_of_the_newest_failure_is_taken() -> None:
    said = ask(ERRORS, [bad("permission denied"), bad("no such host"), bad("permission denied"), bad("no such host")])
    assert said is not None
    assert "2 of them failed alike: no such host" in said.summary


def test_likeness_may_be_strict_or_lax() -> None:
    calls = [bad("quota exceeded for nodes"), bad("quota exceeded today"), bad("quota exceeded for you")]
    strict = ask(ErrorCascadeDetector(likeness=0.99), calls)
    lax = ask(ErrorCascadeDetector(likeness=0.1), calls)
    assert strict is not None
    assert lax is not None
    assert "each failed differently" in strict.summary
    assert "3 of them failed alike" in lax.summary


@given(st.lists(st.sampled_from(["no such file", "no such host", "12", "", "denied to all"]), min_size=1, max_size=80))
def test_the_largest_group_is_part_of_the_failures_in_their_order(messages: list[str]) -> None:
    failed = [digest(event_of(bad(message), number), number) for number, message in enumerate(messages, 1)]
    group = largest_group(failed, 0.5)
    indices = [call.index for call in group]
    assert indices == sorted(indices)
    assert len(group) >= max(messages.count(message) for message in set(messages))


def test_it_is_asked_when_enough_failed_in_a_row() -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory)
    assert not ERRORS.should_run(session, context=context)
    for number in range(1, 4):
        assert not ERRORS.should_run(session, context=context)
        trajectory.add(event_of(bad("no"), number))
    assert ERRORS.should_run(session, context=context)


@pytest.mark.parametrize(
    ("detector", "grave"),
    [
        (ErrorCascadeDetector(), 6),
        (ErrorCascadeDetector(failures=10), 20),
        (ErrorCascadeDetector(failures=10, severe=12), 12),
        (ErrorCascadeDetector(severe=3), 3),
    ],
    ids=["as it comes", "patient", "patient, then soon grave", "grave at once"],
)
def test_a_row_is_grave_at_twice_the_length_or_as_said(detector: ErrorCascadeDetector, grave: int) -> None:
    milder, graver = (ask(detector, [bad("no")] * row) for row in (grave - 1, grave))
    assert milder is None or milder.severity == "caution"
    assert graver is not None
    assert graver.severity == "warning"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"failures": 10, "severe": 6}, r"severe=6\) must be a whole number of at least 10"),
        ({"severe": "6"}, r"severe='6'"),
        ({"failures": 1}, r"ErrorCascadeDetector\(failures=1\) must be a whole number of at least 2"),
        ({"failures": 5, "severe": 4}, r"severe=4\) must be a whole number of at least 5"),
        ({"likeness": 1.0}, r"likeness=1.0"),
        ({"name": ""}, r"name=''\) must have a name"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        ErrorCascadeDetector(**fields)
