"""When the agent has left its task's folders, and when it has good reason to be elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpus import ask, event_of
from tests.corpus.trace import TracedCall
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.drift import (
    DEEPEST,
    MOST_FOLDERS,
    DriftDetector,
    at_most,
    belongs,
    early_paths,
    folder_of,
    home_of,
    is_inside,
    is_placed,
    surroundings,
    words_of,
)
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import FIRST_PATHS, PATHS_OF_A_CALL, Trajectory
from watchkeeper.session.session import Session

DRIFT = DriftDetector()
TASK = "Refunds fail in src/payments/refund.py. Find out why."


def at(*paths: str) -> list[TracedCall]:
    """Return a call for each path."""
    return [TracedCall("read", {"path": path}, "text") for path in paths]


def far(count: int, folder: str = "www/styles") -> list[TracedCall]:
    """Return calls somewhere else."""
    return at(*(f"{folder}/f{number}.css" for number in range(count)))


HOME = at("src/payments/refund.py", "src/payments/gateway.py", "tests/payments/test_refund.py")


@pytest.mark.spec("TO-015")
def test_work_outside_the_tasks_folders_is_drift() -> None:
    said = ask(DRIFT, [*HOME, *far(10)], TASK)
    assert said is not None
    assert (said.observer_name, said.severity) == ("Drift", "warning")
    assert said.summary == (
        "Your task is about src/payments; 10 of the last 10 calls with paths worked outside it, mostly in www/styles."
    )
    (seen,) = said.observations
    assert (seen.category, seen.description) == ("drift", "10 calls outside the task's paths")
    assert seen.evidence is not None
    assert seen.evidence.splitlines()[:4] == [
        *(f"#{number} read(path='www/styles/f{number - 4}.css')" for number in (4, 5, 6)),
        "... 4 more ...",
    ]
    assert said.suggestions == ("Go back to the task, or say why this work is needed for it.",)


@pytest.mark.spec("TO-015")
@pytest.mark.parametrize(("count", "severity"), [(7, None), (8, "caution"), (9, "caution"), (10, "warning")])
def test_a_short_excursion_is_none(count: int, severity: str | None) -> None:
    said = ask(DRIFT, [*HOME * 3, *far(count)], TASK)
    assert (said and said.severity) == severity


def test_calls_without_paths_say_nothing() -> None:
    quiet = [TracedCall("think", {"text": "hm"}, "ok"), *at("README.md", "Makefile", "./setup.cfg")]
    mixed = [call for each in far(10) for call in (each, *quiet[:2])]
    assert ask(DRIFT, [*HOME, *mixed], TASK) is not None
    assert ask(DRIFT, [*HOME, *quiet * 20], TASK) is None
    assert ask(DRIFT, [TracedCall("think", {}, "ok")] * 30, TASK) is None


def test_the_way_home_ends_it() -> None:
    assert ask(DRIFT, [*HOME, *far(30), *HOME], TASK) is None


@pytest.mark.parametrize(
    "task",
    [
        "Tidy the client/server and/or read/write code of 12/03/2026.",
        "See https://example.org/src/payments/refund.py and www.example.org/a/b.html",
        "Write what you find to out/report.md",
        "Do it",
        "",
    ],
)
def test_what_is_no_path_of_the_task_does_not_tie_the_agent_down(task: str) -> None:
    assert ask(DRIFT, at(*(f"engine/loop/f{number}.c" for number in range(30))), task) is None


def test_without_named_paths_the_surroundings_of_the_first_calls_stand_for_the_task() -> None:
    first = at(*(f"web/login/{name}.ts" for name in "abcde"))
    beside = at(*(f"web/cart/{number}.ts" for number in range(20)))
    assert ask(DRIFT, [*first, *beside], "Repair it.") is None
    said = ask(DRIFT, [*first, *far(10, "infra/dns")], "Repair it.")
    assert said is not None
    assert said.summary.startswith("Your task is about web; 10 of the last 10")
    assert ask(DRIFT, [*at("a/x.c", "b/y.c", "c/z.c", "d/v.c", "e/w.c"), *far(20)], "Repair it.") is None


def test_how_many_first_calls_stand_for_it_can_be_said() -> None:
    calls = [*at("web/a.ts", "web/b.ts"), *far(20, "infra/dns")]
    assert ask(DRIFT, calls, "Repair it.") is None
    assert ask(DriftDetector(first=2), calls, "Repair it.") is not None


def test_given_paths_alone_count() -> None:
    detector = DriftDetector(paths=["lib/core", "bin/tool.sh"], name="Scope")
    assert detector.paths == ("lib/core", "bin/tool.sh")
    said = ask(detector, HOME * 4, TASK.replace("Refunds", "They").replace("refund", "it").replace("payments", "x"))
    assert said is not None
    assert said.observer_name == "Scope"
    assert said.summary.startswith("Your task is about bin, lib/core; 10 of the last 10")
    assert ask(detector, at(*["lib/core/x/y.c"] * 20), TASK) is None
    assert DriftDetector(paths=["README.md", "src/"]).paths == ("README.md", "src/"), "one folder is enough"


@pytest.mark.parametrize(
    "path",
    [
        "src/payments/models.py",
        "src/payments/sub/x.py",
        "/workspace/src/payments/x.py",
        "src",
        "src/",
        "tests/payment/test_x.py",
        "web/RefundButton.tsx",
        "src\\payments\\x.py",
    ],
)
def test_a_path_belongs_by_its_place_or_by_a_word_of_the_task(path: str) -> None:
    assert belongs(path, home_of((), TASK, ("src/payments/refund.py",)))


@pytest.mark.parametrize("path", ["src/orders/x.py", "www/f.css", "/etc/hosts", "docs/find.md.d/x", "lib/why/x.c"])
def test_other_paths_do_not(path: str) -> None:
    task = "Look in src/payments/refund.py"
    assert not belongs(path, home_of((), task, ("src/payments/refund.py",)))


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("src/a.py", ("src",)),
        ("src/pkg", ("src", "pkg")),
        ("src/v1.2/", ("src", "v1.2")),
        ("/srv/x/", ("srv", "x")),
        ("./a.py", ()),
        ("", ()),
        (".", ()),
        ("~/notes/x.md", ("notes",)),
        ("C:\\data\\birds\\may.csv", ("C:", "data", "birds")),
        (".github/workflows", (".github", "workflows")),
        (".env", (".env",)),
    ],
)
def test_the_folder_that_a_path_stands_for(path: str, folder: tuple[str, ...]) -> None:
    assert folder_of(path) == folder


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ("Fix `src/a/b.py` and ./lib/c, please.", {("src", "a"), ("lib", "c")}),
        ("in C:\\surveys\\birds and ~/notes/", {("C:", "surveys", "birds"), ("notes",)}),
        ("From ../ and ./ to src/a/b.py", {("src", "a")}),
        ("look at /srv/app/logs.", {("srv", "app", "logs")}),
        ("https://example.org/a/b and e.g. Node.js", set[tuple[str, ...]]()),
    ],
)
def test_paths_are_found_in_a_text(task: str, named: set[tuple[str, ...]]) -> None:
    assert home_of((), task, ()).folders == named


@pytest.mark.parametrize(
    ("path", "placed"),
    [("a/b", True), ("a\\b.py", True), ("/etc/x", True), (".git/x", True), ("Makefile", False), ("./a.py", False)]
    + [(path, False) for path in ("", ".", "..", "/", "src/", "~/x.md")],
)
def test_a_bare_name_at_the_top_is_no_place(path: str, placed: bool) -> None:
    assert is_placed(path) is placed


@pytest.mark.parametrize("piece", ["a", "1", "+", "~", "/", ".", "a/", "C:", "://", "A", " ", "\\", "-@"])
def test_a_task_of_megabytes_is_read_at_once(piece: str) -> None:
    said = ask(DRIFT, [*HOME, *far(10)], piece * 300_000)
    assert said is None or len(said.summary) < 500


def test_words_of_a_path_say_something() -> None:
    assert words_of("src/UserProfiles/index_of_orders.test.ts") == {"profile", "order"}
    assert words_of("glass/of/tea.txt") == {"glass", "tea"}


def test_the_surroundings_of_folders() -> None:
    assert surroundings([]) == set()
    assert surroundings([("a", "b", "c")]) == {("a", "b")}
    assert surroundings([("a", "b"), ("a", "c")]) == {("a",)}
    assert surroundings([("a",), ("b",)]) == set()
    assert surroundings([(), ("b",)]) == set()


@given(st.lists(st.text("ab./\\~ :", max_size=12), max_size=30), st.text("ab./\\ ", max_size=40))
def test_no_path_and_no_task_is_too_strange(paths: list[str], task: str) -> None:
    said = ask(DRIFT, at(*paths), task)
    assert said is None or said.observations[0].evidence


def test_of_very_many_places_those_above_them_are_the_tasks() -> None:
    files = [f"src/mod{number}/deep/file.py" for number in range(1000)]
    home = home_of((), "Tidy:\n" + "\n".join(files), ())
    assert home.folders == {("src",)}
    few = {("src", "a"), ("src", "b", "c"), ("lib",)}
    assert at_most(3, few) == few
    assert at_most(2, few) == {("src",), ("lib",)}
    assert at_most(1, few) == at_most(1, set()) == set()
    assert at_most(5, {("a",) * 500}) == {("a",) * DEEPEST}
    everywhere = "Tidy:\n" + "\n".join(f"{folder}/x.py" for folder in names(60))
    assert not home_of((), everywhere, ("there/all/a.py",)).folders
    assert ask(DRIFT, [*at("aa/x.py"), *far(20)], everywhere) is None
    assert DriftDetector(paths=[f"{folder}/x" for folder in names(50)] * 2)


def names(count: int) -> list[str]:
    """Return names of folders."""
    return [f"{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(count)]


@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple), max_size=20), st.integers(1, 9))
def test_fewer_folders_hold_all_that_the_many_held(folders: set[tuple[str, ...]], most: int) -> None:
    fewer = at_most(most, folders)
    assert len(fewer) <= most
    assert not fewer or all(any(folder[: len(above)] == above for above in fewer) for folder in folders)
    assert folders != fewer or len(folders) <= most


def far_away(number: int) -> dict[str, Any]:
    """Return arguments of a call elsewhere."""
    return {"path": f"zz{number}/qq/y.txt"}


def ever_more(number: int) -> dict[str, Any]:
    """Return arguments with thousands of paths: of the first calls in one folder, and then elsewhere."""
    return {"paths": [f"{'src' if number < 20 else f'out{number}'}/a/{each}.py" for each in range(2000)]}


@pytest.mark.parametrize(
    ("task", "params"),
    [
        ("Tidy:\n" + "\n".join(f"src/m{n}/d{n}/f{n}.py" for n in range(1000)), far_away),
        ("Do it.", ever_more),
    ],
    ids=["a task with a thousand paths", "calls with thousands of paths"],
)
def test_what_is_looked_at_is_bounded(task: str, params: Callable[[int], dict[str, Any]]) -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=task)
    for number in range(40):
        trajectory.add(event_of(TracedCall("read", params(number), "text"), number))
    assert DRIFT.should_run(session, context=context)
    home = home_of((), task, early_paths(trajectory.first_paths, DRIFT.first))
    assert len(home.each) == len(home.begins) == len(home.folders) <= MOST_FOLDERS
    assert len(early_paths(trajectory.first_paths, DRIFT.first)) <= FIRST_PATHS
    assert all(len(call.paths) <= PATHS_OF_A_CALL for call in trajectory.recent(40))
    looks = is_inside.cache_info().misses
    assert DRIFT.should_run(session, context=context)
    assert is_inside.cache_info().misses == looks, "a call is judged once"


@given(st.lists(st.sampled_from(["src/payments/a.py", "tests/payments/b.py", "README.md"]), max_size=40))
def test_it_never_speaks_of_work_where_the_task_is(paths: list[str]) -> None:
    assert ask(DRIFT, at(*paths), TASK) is None


def test_it_is_asked_once_enough_calls_went_elsewhere() -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory, task=TASK)
    wanted: list[bool] = []
    for number, call in enumerate([*HOME, *far(7), TracedCall("look", {}, "ok"), *far(3)], 1):
        trajectory.add(event_of(call, number))
        wanted.append(DRIFT.should_run(session, context=context))
    assert wanted.index(True) == 11
    assert all(wanted[11:])


@given(st.lists(st.sampled_from(["src/payments/a.py", "www/b.css", "top.md", ""]), max_size=40), st.booleans())
def test_it_is_asked_exactly_where_it_speaks(paths: list[str], named: bool) -> None:
    session, trajectory = Session(), Trajectory()
    for number, call in enumerate(at(*paths), 1):
        trajectory.add(event_of(call, number))
        session.dispatch(event_of(call, number))
    context = ObserverContext(session, trajectory=trajectory, task=TASK if named else "Look around.")
    spoke = DRIFT.observe(session, context=context) is not None
    assert DRIFT.should_run(session, context=context) is (spoke and len([path for path in paths if path]) >= 10)


def test_only_the_beginning_of_a_long_task_is_read_for_its_place() -> None:
    mentioned = "Look into www/styles, too."
    assert ask(DRIFT, [*HOME, *far(10)], f"{TASK} {mentioned}") is None
    assert ask(DRIFT, [*HOME, *far(10)], f"{TASK} {'x ' * 25_000} {mentioned}") is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"paths": "src"}, r"DriftDetector\(paths='src'\) must be a list of paths"),
        ({"paths": 3}, r"DriftDetector\(paths=3\) must be a list"),
        ({"paths": ["src", ""]}, r"must be a list of paths; '' is no path"),
        ({"paths": ["src", 3]}, r"must be a list of paths; 3 is no path"),
        ({"paths": ["main.py"]}, r"'main.py' names no folder, so nothing could lie outside of it; give folders"),
        *(({"paths": ["src/", path]}, "names no folder") for path in (".", "/", "./", "~", "..", "../..", " / ", "\\")),
        ({"paths": [f"part{number}/" for number in range(60)]}, r"names 60 folders at the top; .* at most 50"),
        ({"window": 2}, r"window=2\) must be a whole number from 3 to 200"),
        ({"first": 0}, r"first=0\) must be a whole number from 1 to 20"),
        ({"outside": 1.0}, r"outside=1.0"),
        ({"name": None}, r"name=None"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        DriftDetector(**fields)
