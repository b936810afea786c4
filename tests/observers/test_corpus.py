"""How good the detectors are, on labelled trajectories that are replayed call by call; the table in the docs is true.

The corpus stands in ``tests/corpus``. A detector is asked after every call, as by a trigger on every call, and then
after turns of several calls; it must be silent all through a healthy trajectory, and speak of what the others are
labelled with, not before it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.corpus.corpus import (
    BEGAN,
    BY_HAND,
    DETECTORS,
    FOLDER,
    PARTS,
    Words,
    baseline_words,
    event_of,
    first_words,
    generated,
    load,
    replay,
    score,
    scores,
    table,
    written,
)
from tests.corpus.record import record
from tests.corpus.trace import Label, Trace
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

PRECISION, RECALL = 0.95, 0.9
PAGE = Path(__file__).parents[2] / "docs" / "oversight.md"
ALL = [trace for name in BY_HAND for trace in load(name)]
DETECTED = list(DETECTORS)


@pytest.mark.spec("TO-013", "TO-014", "TO-015", "FR-154")
@pytest.mark.parametrize("label", DETECTED)
def test_a_detector_is_right_when_it_speaks_and_speaks_when_it_must(label: Label) -> None:
    each = score(label, ALL)
    assert each.precision >= PRECISION, each.false_alarms
    assert each.recall >= RECALL, each.missed


@pytest.mark.parametrize("label", DETECTED)
def test_a_detector_does_as_well_on_what_was_written_after_it(label: Label) -> None:
    each = score(label, load("held_out"))
    assert each.precision >= PRECISION, each.false_alarms
    assert each.recall >= RECALL, each.missed


@pytest.mark.parametrize("turn", [2, 3, 5, 10])
@pytest.mark.parametrize("label", DETECTED)
def test_a_detector_does_as_well_on_turns_of_several_calls(label: Label, turn: int) -> None:
    each = score(label, ALL, turn)
    assert each.precision >= PRECISION, each.false_alarms
    assert each.recall >= RECALL, each.missed


def test_what_is_over_at_the_end_of_a_turn_is_told_of_stalls_alone() -> None:
    missed = {label: {name for turn in (2, 3, 5, 10) for name in score(label, ALL, turn).missed} for label in DETECTED}
    assert missed == {
        "stalled": set(),
        "cascading": {"inbox 14, local model"},
        "drifting": set(),
    }


@pytest.mark.spec("FR-154")
@pytest.mark.parametrize("label", DETECTED)
def test_hardly_any_healthy_trajectory_raises_an_alarm(label: Label) -> None:
    each = score(label, ALL)
    assert each.healthy_alarms <= (1 - PRECISION) * each.healthy


def test_what_the_detectors_cannot_tell_is_known() -> None:
    hard = load("hard")
    wrong = {label: (each.false_alarms, each.missed) for label in DETECTED for each in [score(label, hard)]}
    assert wrong == {
        "stalled": (
            ["a queue that stands still for six looks, and then moves"],
            ["thinking between the same two looks"],
        ),
        "cascading": ([], []),
        "drifting": ([], ["the wrong folder bears the right word"]),
    }


LEAST: Final[Mapping[str, Mapping[Label, tuple[float, float]]]] = {
    "unseen_kinds": {"stalled": (0.77, 0.72), "cascading": (0.91, 0.90), "drifting": (0.83, 0.37)},
    "fresh_kinds": {"stalled": (0.76, 0.76), "cascading": (0.81, 0.70), "drifting": (0.58, 0.22)},
}
"""Least precision and recall on kinds of work that nobody tuned to, by part; the docs say what is wanted."""

LEAST_THIRD: Final[Mapping[Label, tuple[float, float]]] = {
    "stalled": (0.92, 0.77),
    "cascading": (0.75, 0.90),
    "drifting": (0.72, 0.27),
}
"""Least precision and recall on the youngest part that was read; only rules of stalls and cascades follow from it."""

FIRST_WORDS: Final = {"fresh_kinds": 6.7, "seen_third": 4.9}
"""First words in 1,000 healthy calls that are not exceeded, where these are more than the two that are wanted."""


@pytest.fixture(scope="session")
def parts() -> Mapping[str, list[Trace]]:
    """Return the generated trajectories of each part; they stay in memory, where `once` knows each by its place."""
    return {part: [trace for traces in generated(part).values() for trace in traces] for part in PARTS}


def once(words: Words) -> Words:
    """Return a function that replays each trajectory of `parts` once for all tests, for all of them stay in memory."""
    said: dict[int, Mapping[Label, int]] = {}

    def asked(trace: Trace, turn: int) -> Mapping[Label, int]:
        if id(trace) not in said:
            said[id(trace)] = words(trace, turn)
        return said[id(trace)]

    return asked


said_first, said_plainly = once(first_words), once(baseline_words)


def test_detectors_find_trouble_in_kinds_of_work_that_nobody_tuned_to(parts: Mapping[str, list[Trace]]) -> None:
    for part, least in LEAST.items():
        mine, plain = scores(parts[part], words=said_first), scores(parts[part], words=said_plainly)
        for label, (precision, recall) in least.items():
            assert mine[label].precision >= precision
            assert mine[label].recall >= recall
            assert mine[label].precision > plain[label].precision + 0.3
            assert mine[label].recall > plain[label].recall + 0.2
    measured = table(parts, baselines=True, words=said_first, plain=said_plainly)
    assert measured in PAGE.read_text(encoding="utf-8"), f"docs/oversight.md must hold:\n{measured}"


def test_detectors_find_trouble_in_the_third_set(parts: Mapping[str, list[Trace]]) -> None:
    mine = scores(parts["seen_third"], words=said_first)
    for label, (precision, recall) in LEAST_THIRD.items():
        assert mine[label].precision >= precision
        assert mine[label].recall >= recall


def test_hardly_anything_is_said_in_healthy_work_of_any_kind(parts: Mapping[str, list[Trace]]) -> None:
    for part, traces in parts.items():
        healthy = [trace for trace in traces if trace.labels == ("healthy",)]
        words = sum(len(said_first(trace, 1)) for trace in healthy)
        assert words <= FIRST_WORDS.get(part, 2.0) * sum(len(trace.calls) for trace in healthy) / 1000


def test_the_generated_parts_are_large_and_their_labels_make_sense(parts: Mapping[str, list[Trace]]) -> None:
    sizes = (("seen_kinds", 7, 25), ("seen_more", 23, 60), ("unseen_kinds", 14, 100), ("fresh_kinds", 12, 100))
    for part, kinds, positives in sizes:
        assert len(generated(part, 1)) >= kinds
        labels = Counter(label for trace in parts[part] for label in trace.labels)
        assert all(labels[label] >= positives for label in DETECTED)
        assert labels["healthy"] >= 0.45 * len(parts[part])
        for trace in parts[part]:
            assert trace.labels == ("healthy",) or set(trace.labels) == set(trace.since)
            assert all(1 <= since <= len(trace.calls) for since in trace.since.values())
            assert [call.at for call in trace.calls] == sorted(call.at for call in trace.calls)


@pytest.mark.spec("FR-154")
def test_the_table_in_the_docs_is_what_was_measured() -> None:
    measured = table({name: load(name) for name in (*BY_HAND, "hard")})
    assert measured in PAGE.read_text(encoding="utf-8"), f"docs/oversight.md must hold:\n{measured}"


def test_the_corpus_is_large_and_varied() -> None:
    assert len(ALL) >= 60
    names = Counter(trace.name for trace in [*ALL, *load("hard")])
    assert max(names.values()) == 1
    written_after = len(load("held_out"))
    assert 0.3 <= written_after / (written_after + len(load("tuning"))) <= 0.4
    labels = Counter(label for trace in ALL for label in trace.labels)
    assert min(labels.values()) >= 7, labels
    assert len({call.tool for trace in ALL for call in trace.calls}) > 100
    assert any(trace.origin == "recorded: local model" for trace in load("recorded"))


@pytest.mark.parametrize("trace", [*ALL, *load("hard")], ids=lambda trace: trace.name)
def test_a_label_makes_sense(trace: Trace) -> None:
    assert trace.labels == ("healthy",) or ("healthy" not in trace.labels and trace.labels)
    assert set(trace.since) == set(trace.labels) - {"healthy"}
    assert all(1 <= since <= len(trace.calls) for since in trace.since.values())
    assert trace.task
    times = [call.at for call in trace.calls]
    assert times == sorted(times)
    assert all(isinstance(call.arguments, dict | str) for call in trace.calls)


@pytest.mark.parametrize("name", [*BY_HAND, "hard"])
def test_a_file_stands_as_it_would_be_written(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == written(load(name))


@pytest.mark.parametrize("label", DETECTED)
def test_no_detector_knows_the_names_of_tools(label: Label) -> None:
    for trace in ALL:
        names = {name: f"t{place}" for place, name in enumerate(sorted({call.tool for call in trace.calls}))}
        calls = tuple(msgspec.structs.replace(call, tool=names[call.tool]) for call in trace.calls)
        renamed = msgspec.structs.replace(trace, calls=calls)
        spoke = [[number for number, _ in replay(each, DETECTORS[label])] for each in (trace, renamed)]
        assert spoke[0] == spoke[1], trace.name


@pytest.mark.spec("TO-015")
def test_no_drift_is_seen_by_the_names_of_folders() -> None:
    letters, others = "abcdefghijklmnopqrstuvwxyz", "qwertyuiopasdfghjklzxcvbnm"
    strange = str.maketrans(letters + letters.upper(), others + others.upper())
    for trace in ALL:
        if "drifting" not in trace.labels:
            continue
        calls = tuple(msgspec.structs.replace(call, arguments=_moved(call.arguments, strange)) for call in trace.calls)
        renamed = msgspec.structs.replace(trace, task=_names_moved(trace.task, strange), calls=calls)
        assert list(replay(renamed, DriftDetector())), trace.name


@pytest.mark.parametrize(
    "trace", [trace for trace in load("recorded") if "local" not in trace.origin], ids=lambda t: t.name
)
def test_a_recorded_run_runs_the_same_today(trace: Trace) -> None:
    kind = trace.origin.removeprefix("recorded: ").removesuffix(" model")
    message = trace.task.rpartition("/")[2].rstrip(".")
    today = [msgspec.structs.replace(call, at=0.0) for call in record(message, kind).calls]
    assert today == [msgspec.structs.replace(call, at=0.0) for call in trace.calls]


@pytest.mark.parametrize("label", DETECTED)
def test_a_run_that_goes_on_is_judged_as_if_it_had_never_paused(label: Label) -> None:
    detector = DETECTORS[label]
    for trace in ALL:
        session = Session()
        spoke = [number for number, _ in replay(trace, detector)]
        for number, call in enumerate(trace.calls, 1):
            session.dispatch(event_of(call, number))
            trajectory = Trajectory()  # as after a pause
            trajectory.begin(session[ToolInvoked].all())
            context = ObserverContext(session, trajectory=trajectory, task=trace.task)
            said = detector.observe(session, context=context) if detector.should_run(session, context=context) else None
            assert (said is not None) is (number in spoke), trace.name
            if said is not None:
                session[Assessment].append(said.stamped(detector.name, number, BEGAN))


def _moved(arguments: dict[str, object], letters: dict[int, int]) -> dict[str, object]:
    """Return arguments with other letters in their paths."""
    return {
        name: _names_moved(value, letters) if isinstance(value, str) and name in ("path", "file") else value
        for name, value in arguments.items()
    }


def _names_moved(text: str, letters: dict[int, int]) -> str:
    return text.translate(letters)
