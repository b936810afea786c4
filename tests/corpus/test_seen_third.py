"""The third set of generated kinds of work: what every kind has to yield, without asking a detector."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections import Counter
from functools import cache
from itertools import islice

import pytest

from tests.corpus import seen_third
from tests.corpus.seen_third.stage import CYCLE, LABELS, Stage, Step, cascading_since, drifting_since, stalled_since
from tests.corpus.trace import Trace, TracedCall

KINDS = [
    module.name
    for module in pkgutil.iter_modules(seen_third.__path__)
    if hasattr(importlib.import_module(f"tests.corpus.seen_third.{module.name}"), "trajectories")
]


@cache
def first_round(kind: str) -> list[Trace]:
    """Return the round of a kind that several tests look at."""
    return round_of(kind, 1)


def round_of(kind: str, seed: int) -> list[Trace]:
    """Return one round of a kind."""
    made = importlib.import_module(f"tests.corpus.seen_third.{kind}").trajectories(random.Random(seed))
    return list(islice(made, sum(CYCLE.values())))


def test_there_are_enough_kinds() -> None:
    assert len(KINDS) >= 22


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_has_each_sort_as_often_as_promised(kind: str) -> None:
    traces = first_round(kind)
    found = Counter(label for trace in traces for label in trace.labels)
    assert all(found[LABELS[sort]] >= count for sort, count in CYCLE.items())
    assert found["healthy"] == CYCLE["healthy"]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_in_range(kind: str) -> None:
    for trace in first_round(kind):
        assert set(trace.since) == set(trace.labels) - {"healthy"}
        assert trace.labels == ("healthy",) or "healthy" not in trace.labels
        assert all(1 <= since <= len(trace.calls) - 3 for since in trace.since.values())
        assert len(trace.calls) >= 8
        assert trace.task
        times = [call.at for call in trace.calls]
        assert times == sorted(times)
        assert all(call.tool for call in trace.calls)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_decide_the_texts(kind: str) -> None:
    once, again, other = first_round(kind), round_of(kind, 1), round_of(kind, 2)
    assert once == again
    assert not {trace.calls for trace in map(_hashable, once)} & {trace.calls for trace in map(_hashable, other)}
    assert len({trace.task for trace in once}) > len(once) / 3


def _hashable(trace: Trace) -> Trace:
    calls = tuple(TracedCall(call.tool, str(call.arguments), call.result, call.success) for call in trace.calls)
    return Trace(trace.name, trace.labels, trace.task, calls)


# --- the rules by which labels are given ------------------------------------------------------------------------------


class Bare(Stage):
    """A stage on which nothing happens by itself."""


def stage() -> Bare:
    return Bare(random.Random(1))


def steps_of(fruitful: str) -> list[Step]:
    """Return looks, fruitful where there is an ``f``."""
    scene = stage()
    for number, letter in enumerate(fruitful):
        scene.call("look", {}, str(number), new=letter == "f", gap=1)
    return scene.steps


@pytest.mark.parametrize(
    ("fruitful", "since"),
    [("fffff", None), ("fuuuuuf", None), ("fuuuuuu", 2), ("fuuufuu", 2), ("uuuuuf", None), ("fuufuufuu", None)],
)
def test_a_stall_is_six_calls_with_at_most_one_fruitful_before_unfruitful_ones(
    fruitful: str, since: int | None
) -> None:
    assert stalled_since(steps_of(fruitful)) == since


@pytest.mark.parametrize(
    ("looks", "gap", "since"), [(10, 30, None), (11, 30, 11), (6, 200, 6), (5, 200, None), (7, 5, 2)]
)
def test_waiting_is_healthy_for_ten_looks_and_fifteen_minutes(looks: int, gap: float, since: int | None) -> None:
    scene = stage()
    for number in range(looks):
        scene.call("look", {}, "same", new=number == 0, wait="job", gap=gap)
    assert stalled_since(scene.steps) == since


def test_four_failures_of_one_cause_are_a_cascade_unless_the_action_succeeds() -> None:
    scene = stage()
    for _ in range(3):
        scene.call("put", {}, "no", ok=False, cause="key")
        scene.call("get", {}, "yes")
    assert cascading_since(scene.steps) is None
    scene.call("put", {}, "no", ok=False, cause="key")
    assert cascading_since(scene.steps) == 1
    scene = stage()
    for number in range(6):
        scene.call("put", {}, "no", ok=False, cause="key" if number < 3 else "disk")
    assert cascading_since(scene.steps) is None


@pytest.mark.parametrize(
    ("gaps", "since"), [((1, 2, 4, 8, 16), None), ((5, 5, 5, 5, 5), 1), ((1, 2, 4, 8, 16, 32, 64), 1)]
)
def test_patient_retries_that_succeed_are_no_cascade(gaps: tuple[float, ...], since: int | None) -> None:
    scene = stage()
    for gap in gaps:
        scene.call("put", {}, "busy", ok=False, cause="busy", gap=gap)
    scene.call("put", {}, "done", needs="busy", gap=100)
    assert cascading_since(scene.steps) == since


@pytest.mark.parametrize(
    ("places", "since"),
    [
        ("iiiiiiiiiiii", None),
        ("iiiiiiiiiiiooooo", 12),
        ("iiiiiiiiiiioooo", None),
        ("iiiiiiiiiiiccc", 12),
        ("oooooiiiiiiii", None),
        ("iiiiiiiiiiioioioioo", 12),
    ],
)
def test_a_drift_is_five_of_eight_outside_or_three_changed(places: str, since: int | None) -> None:
    scene = stage()
    for place in places:
        scene.call("touch", {}, "", out=place != "i", change=place == "c")
    assert drifting_since(scene.steps) == since
