"""The band in which a limit will be used up: how often the true end lies in it, and when there is none."""

from __future__ import annotations

import random
from statistics import median

import pytest

from watchkeeper.inspector.calls import Amounts, Node
from watchkeeper.inspector.projection import Projection, projections
from watchkeeper.store.ceilings import SECONDS

CEILING = 1_000_000_000
SCRIPTS = ("steady", "growing", "phases", "slower", "tools")


def call(number: int, begin: float, end: float, nanos: int = 0) -> Node:
    """Return a call that is over."""
    used = Amounts(nanos, steps=1)
    return Node(number=number, seq=number, run_id="r", kind="model", name="turn", begin=begin, end=end, used=used)


def scripted(script: str, seed: int) -> list[Node]:
    """Return the calls of a run up to the last that fits under its ceiling.

    All differ from call to call; they grow dearer with the conversation (``growing``), are now dear, now cheap
    (``phases``), take longer and longer (``slower``), or are two free tool calls for each of the model (``tools``).
    """
    noise, nodes, now, used = random.Random(f"{script} {seed}"), list[Node](), 0.0, 0
    while True:
        number = len(nodes)
        took = noise.lognormvariate(2.3, 0.6) * 1000 * (1 + number / 60 if script == "slower" else 1)
        cost = noise.lognormvariate(0, 0.5) * 12_000_000
        cost *= 1 + number / 80 if script == "growing" else 1
        cost *= (2.0 if number // 12 % 2 else 0.5) if script == "phases" else 1
        cost *= number % 3 == 0 if script == "tools" else 1
        if used + cost > CEILING:
            return nodes
        nodes.append(call(number, now, now + took, int(cost)))
        now, used = now + took, used + int(cost)


def halfway(nodes: list[Node]) -> Projection:
    """Return what is projected when half of a run's time is over."""
    now = (nodes[-1].end or 0) / 2
    (found,) = projections({"max_cost_usd": CEILING}, [node for node in nodes if (node.end or 0) <= now], now)
    return found


def test_the_true_end_lies_in_the_band_in_four_of_five_scripted_runs() -> None:
    runs = [scripted(script, seed) for script in SCRIPTS for seed in range(10)]
    assert len(runs) == 50
    bands = [(halfway(nodes), nodes[-1].end or 0.0) for nodes in runs]
    inside = [band.early <= end <= (band.late or float("inf")) for band, end in bands]
    assert sum(inside) >= 40
    width = median(((band.late or 9 * end) - band.early) / end for band, end in bands)
    assert width < 0.6  # a band that says nothing would always be right


def test_nothing_is_projected_below_five_calls() -> None:
    nodes = [call(number, number * 1000, number * 1000 + 900, 1000) for number in range(5)]
    limits = {"max_cost_usd": 9000, SECONDS: 60}
    assert projections(limits, nodes[:4], 4_000) == ()
    cost, time = projections(limits, nodes, 5_000)
    assert (cost.key, cost.likely) == ("max_cost_usd", 9_000)
    assert (time.key, time.early, time.late) == (SECONDS, 60_000, 60_000)
    _, time = projections(limits, nodes, 5_000, worked=20)  # it was resumed
    assert time.likely == 45_000


def test_a_limit_that_nothing_uses_is_not_projected_and_the_first_one_is_first() -> None:
    nodes = [call(number, number * 1000, number * 1000 + 900, 1000) for number in range(10)]
    limits = {"max_cost_usd": 50_000, "max_steps": 20, "max_tool_calls": 3, "max_retries": 1}
    assert [each.key for each in projections(limits, nodes, 10_000)] == ["max_steps", "max_cost_usd"]


def test_what_was_used_before_fresh_limits_does_not_count() -> None:
    nodes = [call(number, number * 1000, number * 1000 + 900, 1000) for number in range(20)]
    (cost,) = projections({"max_cost_usd": 20_000}, nodes, 20_000, since=10_000)
    assert cost.likely == pytest.approx(30_000)


def test_a_run_that_has_come_to_rest_may_never_meet_its_limit() -> None:
    nodes = [call(number, number * 1000, number * 1000 + 900, 1000 if number < 5 else 0) for number in range(10)]
    (cost,) = projections({"max_cost_usd": 20_000}, nodes, 10_000)
    assert cost.late is None
    assert cost.early < cost.likely == 40_000
