"""When the agent has left what its task names, and when it has good reason to be elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpus import ask, ask_once, event_of
from tests.corpus.trace import TracedCall
from tests.kit import busy_seconds
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.drift.home import OTHER_ID, SIBLING, STRONG, UNKNOWN, WEAK, Thing, grade, home_of
from watchkeeper.observers.drift.home import touched as touched_by
from watchkeeper.observers.questions import arguments_of
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session

DRIFT = DriftDetector()
TASK = "Refunds fail in src/payments/. Find out why."


def at(*paths: str, result: str = "these are the lines of the file", key: str = "path") -> list[TracedCall]:
    """Return a look for each path."""
    return [TracedCall("read", {key: path}, result) for path in paths]


def edits(*paths: str) -> list[TracedCall]:
    """Return a change for each path."""
    return [TracedCall("edit", {"path": path, "old_string": "a", "new_string": "b"}, "ok") for path in paths]


def far(count: int, folder: str = "www/styles") -> list[TracedCall]:
    """Return looks somewhere else."""
    return at(*(f"{folder}/file{number}.css" for number in range(count)))


HOME = at("src/payments/refund.py", "src/payments/gateway.py", "tests/payments/test_refund.py")


@pytest.mark.spec("TO-015")
def test_looks_outside_of_what_the_task_names_are_drift() -> None:
    said = ask(DRIFT, [*HOME * 4, *far(8)], TASK)
    assert said is not None
    assert (said.observer_name, said.severity) == ("Drift", "warning")
    assert said.summary.startswith("Your task names src/payments; 8 of the last 8 calls that touch such things")
    assert "www/styles/file0" in said.summary
    (seen,) = said.observations
    assert (seen.category, seen.description) == ("drift", "8 calls outside the task")
    assert seen.evidence is not None
    assert seen.evidence.startswith("#13 read(path='www/styles/file0.css')")
    assert said.suggestions == ("Go back to the task, or say why this work is needed for it.",)


@pytest.mark.spec("TO-015")
@pytest.mark.parametrize(("count", "severity"), [(4, None), (5, "caution"), (7, "caution"), (8, "warning")])
def test_five_of_eight_looks_outside_are_drift(count: int, severity: str | None) -> None:
    said = ask(DRIFT, [*HOME * 4, *far(count)], TASK)
    assert (said and said.severity) == severity


def test_three_changes_outside_are_drift_even_between_work_inside() -> None:
    there = edits("www/a.css", "www/b.css", "www/c.css")
    assert ask(DRIFT, [*HOME, there[0], HOME[0], there[1], HOME[1]], TASK) is None
    assert ask(DRIFT, [*HOME, there[0], HOME[0], there[1], HOME[1], there[2]], TASK) is not None


def test_looking_around_at_the_beginning_is_none() -> None:
    assert ask(DRIFT, [*HOME, *far(7)], TASK) is None
    assert ask(DRIFT, [*HOME, *far(9)], TASK) is not None


def test_work_that_was_never_inside_is_not_judged() -> None:
    assert ask(DRIFT, far(30), TASK) is None


def test_calls_that_touch_nothing_do_not_count() -> None:
    quiet = [TracedCall("think", {"thought": "hm"}, "ok"), *at("README.md", "Makefile")]
    assert ask(DRIFT, [*HOME * 4, *(call for each in far(8) for call in (*quiet, each))], TASK) is not None
    assert ask(DRIFT, [*HOME, *quiet * 20], TASK) is None


def test_the_way_home_ends_it() -> None:
    assert ask(DRIFT, [*HOME * 4, *far(20), *HOME], TASK) is None


def test_what_was_found_within_a_turn_is_told_after_it() -> None:
    calls = [*HOME * 4, *far(6), *HOME]
    assert ask_once(DRIFT, calls, TASK) is not None


@pytest.mark.parametrize(
    ("task", "inside", "outside"),
    [
        (
            "Docket 803: add the stamps.",
            "http://law.example/v3/dockets/803/pages/{}",
            "http://law.example/v3/dockets/8{}4/pages/1",
        ),
        ("Why is the feed of mobile-api slow?", {"service": "mobile-api", "page": "{}"}, {"service": "pay{}-gateway"}),
        ("Invoice INV-1200 is wrong.", {"doc": "INV-1200", "page": "{}"}, {"doc": "INV-13{}"}),
        ("Tidy the space 'garden rules'.", {"space": "Garden rules", "page": "{}"}, {"space": "Harbour {}"}),
        ("Make ferry.push.Sender safe.", "ferry.push.Sender", "ferry.login.Pin{}Store"),
        ("Count the rows of visits.", {"sql": "select {} from visits"}, {"sql": "select a from salaries{}"}),
        (
            "Repair deploy/digest in feed.",
            {"cmd": "kubectl -n feed logs deploy/digest"},
            {"cmd": "kubectl logs deploy/mail{}"},
        ),
    ],
)
def test_things_of_any_kind_are_compared_with_those_that_the_task_names(task: str, inside: Any, outside: Any) -> None:
    def calls(form: Any, count: int) -> list[TracedCall]:
        text = json.dumps(form if isinstance(form, dict) else {"at": form})
        each = [json.loads(text.replace("{}", str(number))) for number in range(count)]
        return [TracedCall("tool", params, f"row {at} of it, as it stands") for at, params in enumerate(each)]

    assert ask(DRIFT, calls(inside, 30), task) is None
    assert ask(DRIFT, [*calls(inside, 12), *calls(outside, 8)], task) is not None


def test_what_an_inside_file_imports_is_inside() -> None:
    shared = [f"lib/shared/part{number}.py" for number in range(12)]
    imports = "\n".join(f"from lib.shared import part{number}" for number in range(12))
    known = at("src/payments/refund.py", result=imports)
    assert ask(DRIFT, [*HOME * 4, *known, *edits(*shared)], TASK) is None
    assert ask(DRIFT, [*HOME * 4, *edits(*shared)], TASK) is not None


def test_a_list_makes_no_siblings_inside() -> None:
    names = "\n".join(f"www/styles/file{number}.css" for number in range(9))
    listed = TracedCall("list", {"path": "src/payments"}, names)
    assert ask(DRIFT, [*HOME * 4, listed, *far(8)], TASK) is not None


def test_what_a_failed_check_names_is_inside() -> None:
    red = TracedCall(
        "test", {}, "\n".join(f"FAILED www/styles/file{number}.css: expected 3" for number in range(9)), False
    )
    assert ask(DRIFT, [*HOME * 4, red, *far(8)], TASK) is None


def test_the_text_of_a_ticket_tells_the_task() -> None:
    ticket = TracedCall("get", {"key": "UI-7"}, "UI-7: the refund screens of payments flicker")
    work = [ticket, *HOME * 4]
    assert ask(DRIFT, [*work, *edits("www/a.css", "www/b.css", "www/c.css")], "Work on UI-7.") is not None
    assert ask(DRIFT, work, "Work on UI-7.") is None


@pytest.mark.parametrize("task", ["Rename colour to color in the whole repository.", "Do it", "", "Look around."])
def test_a_task_that_names_nothing_or_everything_has_no_outside(task: str) -> None:
    calls = at(*(f"part{number}/loop/f{number}.c" for number in range(30)))
    assert ask(DRIFT, calls, task) is None


def test_looks_at_one_thing_elsewhere_are_waiting() -> None:
    assert ask(DRIFT, [*HOME * 4, *at(*["jobs/queue/state.txt"] * 12)], TASK) is None


def test_a_look_that_finds_nothing_touches_nothing() -> None:
    assert (
        ask(DRIFT, [*HOME * 4, *at(*(f"www/f{number}.css" for number in range(9)), result="no such file")], TASK)
        is None
    )


@pytest.mark.parametrize("given", [["src/auth/**"], ["/srv/src/auth"], ["src/auth/", "docs/*.md"], ["src/*/login.py"]])
def test_given_paths_and_globs_alone_count(given: list[str]) -> None:
    detector = DriftDetector(paths=given, name="Scope")
    home = at("src/auth/login.py", "src/auth/login.py", "/srv/src/auth/login.py", "src")
    assert ask(detector, home * 5, TASK) is None
    said = ask(detector, [*home * 3, *HOME * 3], TASK)
    assert said is not None
    assert said.observer_name == "Scope"
    assert said.summary.startswith(f"Your task names {given[0]}")
    assert detector.paths == tuple(given)


def test_what_a_task_names_is_found_in_the_parts_of_a_thing() -> None:
    home = home_of((), "Fix src/api/orders.py for customers, see BK-12 and page 7, but not SettingsScreen.")
    assert grade(home, "orders") == STRONG
    assert grade(home, "customer_list") == WEAK
    assert (grade(home, "BK12"), grade(home, "BK-13")) == (STRONG, OTHER_ID)
    assert (grade(home, "7", "pages"), grade(home, "8", "pages")) == (STRONG, OTHER_ID)
    assert (grade(home, "src"), grade(home, "invoices"), grade(home, "orders-old")) == (UNKNOWN, UNKNOWN, OTHER_ID)
    assert grade(home_of((), "Wash P7."), "P8") == SIBLING


def touched(params: Any) -> list[Thing]:
    """Return what a call with these arguments touches."""
    return touched_by(params if isinstance(params, str) else arguments_of(params))


def things(params: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Return what arguments touch, without the rest."""
    return [(thing.role, thing.parts) for thing in touched(params)]


def test_a_call_touches_what_its_arguments_name_whatever_they_are_called() -> None:
    assert things({"anything": "src/a/b.py", "content": "x/y.py", "limit": 5}) == [("path", ("src", "a", "b"))]
    assert things({"cmd": "cd src && cat a.py > out/b.txt"}) == [("path", ("src", "a")), ("path", ("src", "out", "b"))]
    assert things('{"node": {"service": "mail"}}') == [("service", ("mail",))]
    assert things({"input": "*** Update File: a/b.c\n-x\n+y"}) == [("path", ("a", "b"))]
    assert things({"q": "SELECT a FROM x.orders"}) == [("table", ("x", "orders"))]
    assert ("url", ("host", "a", "7")) in things({"to": "https://host/a/7?x=1"})
    assert touched({}) == touched({"a": None}) == touched({"a": ""}) == []
    assert touched({"input": "+++ b/src/x.py\n"}) == [Thing("path", ("src", "x"), written=True)]


@pytest.mark.parametrize(
    "piece", ["a", "1", "+", "~", "/", ".", "a/", "C:", "://", "A", " ", "\\", "-@", "a1 ", "'", "x,"]
)
def test_hostile_texts_of_megabytes_are_read_at_once(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    calls = [*HOME, TracedCall("sh", {"cmd": text, "path": text}, text), TracedCall("x", text, text)]
    assert busy_seconds(lambda: ask(DRIFT, calls, text)) < 5


def test_what_is_kept_is_bounded_and_costs_the_same_at_any_length() -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=TASK)

    def run(first: int, count: int) -> None:
        for number in range(first, first + count):
            params = {
                f"key{number}": f"value{number}",
                "path": f"{'src/payments' if number % 2 else f'd{number}/e'}/f{number}.py",
            }
            event = event_of(TracedCall("read", params, f"text {number} " * 50), number + 1)
            session.dispatch(event)
            trajectory.add(event)
            DRIFT.should_run(session, context=context)

    early = busy_seconds(lambda: run(0, 600))
    run(600, 1200)
    assert busy_seconds(lambda: run(1800, 600)) < 3 * early + 0.5


@given(st.lists(st.text("ab./\\~ :", max_size=12), max_size=30), st.text("ab./\\ 1-", max_size=40))
def test_no_path_and_no_task_is_too_strange(paths: list[str], task: str) -> None:
    said = ask(DRIFT, at(*paths), task)
    assert said is None or said.observations[0].evidence


@given(st.lists(st.sampled_from(["src/payments/a.py", "tests/payments/b.py", "README.md"]), max_size=40))
def test_it_never_speaks_of_work_where_the_task_is(paths: list[str]) -> None:
    assert ask(DRIFT, at(*paths), TASK) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"paths": "src"}, r"DriftDetector\(paths='src'\) must be a list of paths"),
        ({"paths": 3}, r"DriftDetector\(paths=3\) must be a list"),
        ({"paths": ["src", ""]}, r"must be a list of paths; '' is no path"),
        ({"paths": ["src", 3]}, r"must be a list of paths; 3 is no path"),
        *(({"paths": ["src/", path]}, "names no folder") for path in (".", "/", "./", "~", "..", "../..", " / ", "**")),
        ({"window": 2}, r"window=2\) must be a whole number from 3 to 200"),
        ({"first": 0}, r"first=0\) must be a whole number from 1 to 20"),
        ({"changes": 0}, r"changes=0\) must be a whole number of at least 1"),
        ({"outside": 1.0}, r"outside=1.0"),
        ({"name": None}, r"name=None"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        DriftDetector(**fields)


def test_a_number_with_punctuation_is_compared_by_its_digits() -> None:
    assert grade(home_of((), "retime route 12"), ":12", "route") == STRONG


def test_a_long_name_of_an_argument_is_not_repeated_for_each_value_below_it() -> None:
    long = "n" * 1_000_000
    found = arguments_of({long: {f"k{number}": number for number in range(50)}, "n" * 999_999: {"k0": 0}})
    assert len(found) == 51
    assert max(len(each.path) for each in found) < 200
    assert len({each.path for each in found}) == 51


def test_blanks_at_the_beginning_of_an_argument_are_not_all_read() -> None:
    assert touched_by(arguments_of({"q": " " * 50_000_000 + "x"})) == []  # half a minute, if they were
