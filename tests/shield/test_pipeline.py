"""The shield pipeline by itself: slots, the first objection, what is recorded, and hooks that are broken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.shield import pipeline as module
from watchkeeper.shield.decision import ChainMetadata, Decision, ToolCallContext, facts_of
from watchkeeper.shield.pipeline import ShieldPipeline


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


CALL = ToolCallContext("req", tool_name="ask", metadata={"chain_id": "chain"})
EVERY = {
    "before_llm_call": (),
    "after_llm_call": ("answer",),
    "before_tool_call": (),
    "before_egress": ("https://example.com", "GET"),
    "on_error": (ValueError("no luck"),),
    "before_charge": (0.5,),
}


class Says:
    """A hook for every slot that says one thing and remembers what it was asked."""

    def __init__(self, said: Any, **attributes: Any) -> None:
        self.said = said
        self.asked: list[tuple[Any, ...]] = []
        for name, value in attributes.items():
            setattr(self, name, value)

    def _answer(self, *facts: Any) -> Any:
        self.asked.append(facts)
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said() if callable(self.said) else self.said

    before_llm_call = after_llm_call = before_tool_call = before_egress = on_error = before_charge = _answer


def everywhere(*hooks: Any, **options: Any) -> ShieldPipeline:
    return ShieldPipeline(pre_dispatch=hooks, egress=hooks, retry=hooks, budget=hooks, tool_dispatch=hooks, **options)


def ask(pipeline: ShieldPipeline, method: str) -> Decision:
    decision: Decision = getattr(pipeline, method)(CALL, *EVERY[method])
    return decision


@pytest.mark.spec("EC-034")
@pytest.mark.parametrize("method", EVERY)
def test_the_first_that_does_not_allow_wins_and_is_recorded(method: str, clock: TestClock) -> None:
    hooks = [Says(None), Says(Decision.ALLOW), Says(Decision.QUEUE), Says(Decision.HALT)]
    pipeline = everywhere(*hooks, clock=clock)
    assert ask(pipeline, method) is Decision.QUEUE
    assert [len(hook.asked) for hook in hooks] == [1, 1, 1, 0]
    assert hooks[0].asked == [(CALL, *EVERY[method])]
    (event,) = pipeline.get_events()
    assert (event.event_type, event.decision, event.hook) == ("policy_queue", Decision.QUEUE, "Says")
    assert (event.request_id, event.ts) == ("req", datetime(2026, 1, 1, tzinfo=UTC))
    assert event.metadata["chain_id"] == "chain"
    assert "ask" in event.reason


@pytest.mark.parametrize("method", EVERY)
def test_hooks_that_abstain_allow(method: str) -> None:
    pipeline = everywhere(Says(None), Says(Decision.ALLOW))
    assert ask(pipeline, method) is Decision.ALLOW
    assert pipeline.get_events() == ()


@pytest.mark.parametrize("method", sorted(set(EVERY) - {"on_error"}))
def test_an_empty_pipeline_allows(method: str) -> None:
    assert ask(ShieldPipeline(), method) is Decision.ALLOW


def test_without_a_retry_hook_a_failure_means_halt_or_what_the_policy_says() -> None:
    pipeline = ShieldPipeline()
    assert ask(pipeline, "on_error") is Decision.HALT
    assert [(event.event_type, event.hook) for event in pipeline.get_events()] == [("provider_error", "ShieldPipeline")]
    assert ask(ShieldPipeline(on_error_policy=Decision.RETRY), "on_error") is Decision.RETRY
    lenient = ShieldPipeline(on_error_policy=Decision.ALLOW)
    assert ask(lenient, "on_error") is Decision.ALLOW
    assert lenient.get_events() == ()


def test_a_slot_holds_one_hook_or_several() -> None:
    one: Any = Says(Decision.HALT)
    assert ShieldPipeline(tool_dispatch=one).before_tool_call(CALL) is Decision.HALT
    several: Any = [Says(None), one]
    assert ShieldPipeline(tool_dispatch=several).before_tool_call(CALL) is Decision.HALT


def test_a_halt_names_its_reason() -> None:
    def reason(method: str, **attributes: Any) -> str:
        pipeline = everywhere(Says(Decision.HALT, **attributes))
        ask(pipeline, method)
        return pipeline.get_events()[0].event_type

    assert reason("before_llm_call") == "policy_halt"
    assert reason("on_error") == "provider_error"
    assert reason("before_charge") == "budget_exceeded"
    assert reason("before_llm_call", stop_reason="provider_rate_limit") == "provider_rate_limit"


def test_a_hook_may_explain_itself_and_a_broken_explanation_changes_nothing() -> None:
    def sunday(ctx: ToolCallContext) -> str:
        return "It is Sunday."

    def broken(ctx: ToolCallContext) -> str:
        raise RuntimeError

    for explain, said in ((sunday, "It is Sunday."), (broken, "Says said HALT before a model call: ")):
        pipeline = everywhere(Says(Decision.HALT, explain=explain))
        assert ask(pipeline, "before_llm_call") is Decision.HALT
        assert pipeline.get_events()[0].reason.startswith(said)


async def nobody() -> Decision:
    return Decision.ALLOW


@pytest.mark.spec("EC-034")
@pytest.mark.parametrize("method", EVERY)
@pytest.mark.parametrize(
    "said", [ValueError("broken"), True, "ALLOW!", 0, nobody], ids=["raises", "True", "text", "0", "coroutine"]
)
def test_a_hook_that_raises_or_answers_nonsense_is_recorded_and_counts_as_halt(method: str, said: Any) -> None:
    after = Says(None)
    pipeline = everywhere(Says(said), after)
    assert ask(pipeline, method) is Decision.HALT
    assert after.asked == []
    (event,) = pipeline.get_events()
    assert (event.event_type, event.hook) == ("hook_failed", "Says")


def test_what_must_not_be_swallowed_is_not() -> None:
    with pytest.raises(KeyboardInterrupt):
        ask(everywhere(Says(KeyboardInterrupt())), "before_llm_call")


@pytest.mark.parametrize("method", EVERY)
def test_hooks_that_take_too_long_are_recorded_and_count_as_halt(method: str, clock: TestClock) -> None:
    slow: Any = Says(lambda: clock.advance(2.0))
    pipeline = everywhere(slow, clock=clock, hook_timeout="1s")
    assert ask(pipeline, method) is Decision.HALT
    assert "took 2.0 s" in pipeline.get_events()[0].reason
    assert ask(everywhere(slow, clock=clock, hook_timeout="3s"), method) is Decision.ALLOW
    slow.blocks_for = 5.0
    assert ask(everywhere(slow, clock=clock, hook_timeout="1s"), method) is Decision.ALLOW


def test_a_call_that_is_degraded_already_passes_where_it_should_be() -> None:
    pipeline = everywhere(Says(Decision.DEGRADE), Says(Decision.QUARANTINE))
    assert pipeline.before_llm_call(CALL) is Decision.DEGRADE
    assert pipeline.before_llm_call(ToolCallContext("req", degraded=True)) is Decision.QUARANTINE


def test_the_fallback_model_is_the_first_that_a_hook_names() -> None:
    assert ShieldPipeline().fallback_model is None
    hooks: Any = (Says(None), Says(None, fallback_model=None), Says(None, fallback_model="small"), Says(None))
    assert ShieldPipeline(pre_dispatch=hooks).fallback_model == "small"


def test_release_goes_to_every_hook_that_counts_and_a_failure_of_one_changes_nothing() -> None:
    released: list[str] = []

    def broken(ctx: ToolCallContext) -> None:
        released.append("broken")
        raise RuntimeError

    def note(ctx: ToolCallContext) -> None:
        released.append(ctx.kind)

    hooks: Any = (Says(None, release=broken), Says(None), Says(None, release=note))
    pipeline = ShieldPipeline(pre_dispatch=hooks, tool_dispatch=hooks[2])
    pipeline.release(CALL)
    pipeline.release(ToolCallContext("req", kind="tool"))
    assert released == ["broken", "llm", "tool"]


class Halts:
    def before_llm_call(self, ctx: ToolCallContext) -> Decision:
        return Decision.HALT


class Waits:
    async def before_llm_call(self, ctx: ToolCallContext) -> None:
        return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_dispatch": Halts()}, "tool_dispatch=.* has no method before_tool_call"),
        ({"pre_dispatch": [Halts(), None]}, "pre_dispatch=None has no method"),
        ({"pre_dispatch": Waits()}, "before_llm_call must be a plain function, not async"),
        ({"pre_dispatch": Says(None, stop_reason="sunday")}, "stop_reason='sunday'"),
        ({"pre_dispatch": Says(None, blocks_for=-1)}, "blocks_for=-1"),
        ({"on_error_policy": "MAYBE"}, "on_error_policy='MAYBE'"),
        ({"hook_timeout": 0}, "hook_timeout=0"),
    ],
)
def test_hooks_and_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ShieldPipeline(**options)
    assert issubclass(LimitsError, ConfigurationError)


def test_a_pipeline_keeps_its_newest_events_and_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_EVENTS", 3)
    pipeline = ShieldPipeline(pre_dispatch=Halts())
    for number in range(5):
        pipeline.before_llm_call(ToolCallContext(str(number)))
    assert [event.request_id for event in pipeline.get_events()] == ["2", "3", "4"]
    assert pipeline.events_dropped == 2


@pytest.mark.spec("EC-035")
def test_a_tag_never_takes_the_place_of_what_the_chain_says_of_itself() -> None:
    tags = {"env": "prod", "chain_id": "forged", "org_id": "forged", "team": "forged", "service": "forged"}
    facts = facts_of(ChainMetadata("req", "chain", "acme", "ml", "summariser", tags=tags))
    assert dict(facts) == {
        "env": "prod",
        "chain_id": "chain",
        "org_id": "acme",
        "team": "ml",
        "service": "summariser",
    }
