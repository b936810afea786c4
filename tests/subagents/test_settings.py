"""What children get: settings one over the other, and shares of what is left."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.session.session import Session
from watchkeeper.subagents.dispatch import SubagentSettings, allotted, check_least_one, check_share


async def later(session: Session) -> None:
    """Prepare nothing, and not in time."""


class Later:
    """An object that is called like an async function."""

    async def __call__(self, session: Session) -> None:
        """Prepare nothing, and not in time."""


def test_own_settings_stand_over_those_of_all() -> None:
    every = SubagentSettings(model="local", limits=Limits(max_turns=3), description="all")
    own = SubagentSettings(limits=Limits(max_turns=5))
    assert own.over(every) == SubagentSettings("local", Limits(max_turns=5), None, "all")
    assert SubagentSettings("a:b", description="own").over(every).description == "own"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": 7}, "model=7 of a subagent must be a model or its name, for example 'openai:gpt-5-mini'"),
        ({"limits": "1h"}, "limits='1h' of a subagent must be Limits, for example Limits"),
        ({"description": None}, "description=None"),
        ({"hydrate": "x"}, "hydrate='x' must be a function that takes the child's session"),
        ({"hydrate": later}, "must be a function that takes the child's session, and not async"),
        ({"hydrate": Later()}, "must be a function that takes the child's session, and not async"),
    ],
    ids=["model", "limits", "description", "hydrate", "async hydrate", "async object"],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SubagentSettings(**fields)
    assert words in str(caught.value)


@pytest.mark.parametrize("share", [0, 1, -0.5, "half", True, None])
def test_a_share_leaves_something_to_both(share: object) -> None:
    with pytest.raises(ConfigurationError, match="must lie between 0 and 1"):
        check_share(share)
    assert check_share(0.25) == 0.25


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_counts_are_whole_and_positive(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"max_depth=.* must be a whole number, at least 1"):
        check_least_one(value, "max_depth")
    assert check_least_one(3, "max_depth") == 3


FULL = Limits(
    deadline="1h",
    max_cost_usd=2,
    max_total_tokens=100_000,
    max_input_tokens=80_000,
    max_output_tokens=40_000,
    max_tool_calls=100,
    max_steps=300,
    max_retries=8,
    max_turns=7,
)


def test_children_get_a_share_of_every_ceiling_and_of_the_time() -> None:
    with ExecutionContext(FULL, clock=TestClock()) as gate:
        limits = allotted(gate, 3600.0, 0.5, 2, 1)
    assert limits.deadline == timedelta(minutes=30)
    assert limits.max_cost_usd == Decimal("0.5")
    assert (limits.max_total_tokens, limits.max_input_tokens, limits.max_output_tokens) == (25_000, 20_000, 10_000)
    assert (limits.max_tool_calls, limits.max_steps, limits.max_retries, limits.max_turns) == (
        25,
        74,
        2,
        7,
    )  # one step is held for landing
    assert limits.landing == FULL.landing


def test_what_is_not_limited_stays_so() -> None:
    lifted = Limits(deadline=None, max_total_tokens=None, max_retries=None, max_turns=None)
    with ExecutionContext(lifted, clock=TestClock()) as gate:
        assert allotted(gate, None, 0.5, 1, 1) == lifted


def test_what_is_used_up_is_left_to_the_parent_to_tell() -> None:
    with ExecutionContext(Limits(max_steps=1), clock=TestClock()) as gate:
        gate.call(CallRequest("tool", "look"), lambda _: None)
        assert gate.left()["max_steps"] == 0
        assert allotted(gate, 10.0, 0.5, 1, 1).max_steps is None


def test_the_last_one_is_not_rounded_away() -> None:
    with ExecutionContext(Limits(max_steps=1, max_tool_calls=1), clock=TestClock()) as gate:
        assert allotted(gate, 0.0, 0.5, 20, 5).max_steps == 1
        assert allotted(gate, 0.0, 0.5, 20, 5).deadline == timedelta(milliseconds=1)


@pytest.mark.spec("SD-017")
@given(st.integers(1, 10**15), st.floats(0.01, 0.99), st.integers(1, 20))
def test_shares_together_never_exceed_what_is_left(tokens: int, share: float, children: int) -> None:
    limits = Limits(max_total_tokens=tokens, max_input_tokens=tokens, max_steps=tokens)
    with ExecutionContext(limits, clock=TestClock()) as gate:
        each = allotted(gate, 60.0, share, children, 1)
    for name in ("max_total_tokens", "max_input_tokens", "max_steps"):
        part = each.ceiling(name)
        if part is not None and part > 1:
            assert part * children <= tokens * share * (1 + 1e-12)
            assert isinstance(part, int)


def test_what_others_hold_is_not_left() -> None:
    with ExecutionContext(FULL, clock=TestClock()) as gate, gate.child(Limits(max_total_tokens=60_000)) as other:
        assert other.left()["max_total_tokens"] == 60_000
        assert gate.left()["max_total_tokens"] == 40_000
        assert allotted(gate, 60.0, 0.5, 1, 1).max_total_tokens == 20_000
    with ExecutionContext(FULL, clock=TestClock()) as gate, gate.child(Limits(max_steps=10)) as child:
        assert (child.left()["max_steps"], child.left()["max_total_tokens"]) == (
            9,
            100_000,
        )  # one step is held for landing
        assert child.left()["max_cost_nanos"] == 2 * 10**9
