"""Nested evaluation: every specified rule and error category, and what must always hold."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import (
    ANSWER,
    Call,
    Inside,
    Report,
    Say,
    ScriptedModel,
    agent,
    answers,
    children,
    events,
    inside,
    play,
    question,
)
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.accounting.limits import Limits
from watchkeeper.children.child import children_of
from watchkeeper.core.clock import Clock, Deadline, TestClock
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    LimitsError,
    NestingDepthError,
    OutputParseError,
    PromptEvaluationError,
    ProviderError,
    SessionError,
    StoreError,
    ThrottleError,
    UnpricedModelError,
    WatchkeeperError,
)
from watchkeeper.core.ids import RunContext, root_run_context
from watchkeeper.core.messages import Transcript
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.judging import (
    NestedEvaluationResult,
    NestedEvaluator,
    NestedExecutionConfig,
    NestedExecutionContext,
    derive_nested_deadline,
    iter_sessions_bottom_up,
)
from watchkeeper.judging.evaluator import outside_model
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.advice import Feedback
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.evaluation import PromptExecuted, PromptResponse
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ChildEnded, ChildStarted, RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.session.session import iter_sessions_bottom_up as walk
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.resources import ResourceBinding, Resources, Scope
from watchkeeper.tools.tool import tool

Act = Callable[[TaskCompletionContext], Awaitable[Any]]


def report(text: str = "Report.") -> Prompt[Report]:
    section = MarkdownSection(title="", key="task", template=text)
    return Prompt(PromptTemplate[Report](ns="tests", key="report", sections=(section,)))


def asking(prompt: Prompt[Any] | None = None, **nested: Any) -> Act:
    """Return what evaluates a prompt with the run's own model."""

    async def act(context: TaskCompletionContext) -> Any:
        given: dict[str, Any] = {
            "deadline": derive_nested_deadline(context.deadline, clock=context.session.clock),
            **nested,
        }
        adapter = context.adapter
        assert adapter is not None
        evaluator = NestedEvaluator(
            adapter, prompt=prompt or question(), context=NestedExecutionContext(context.session, **given)
        )
        return await evaluator.evaluate_async()

    return act


def alone(model: ScriptedModel, prompt: Prompt[Any] | None = None, **nested: Any) -> NestedEvaluator[Any]:
    """Return an evaluator outside of any run."""
    session = nested.pop("session", None) or Session(clock=TestClock())
    given: dict[str, Any] = {"budget": Budget(max_total_tokens=5_000), **nested}
    return NestedEvaluator(
        Adapter(model, clock=session.clock),
        prompt=prompt or question(),
        context=NestedExecutionContext(session, **given),
    )


# --- what it returns --------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-002")
async def test_an_evaluation_returns_its_answer_its_usage_and_its_identifiers() -> None:
    result, checker = await inside(asking(report()), [ANSWER, '{"total": 7}'])
    said = checker.said[0]
    assert said == NestedEvaluationResult(
        True, Report(7), None, TokenUsage(100, 20), events(result, ChildStarted)[0].run_context
    )
    assert result.usage.tokens == TokenUsage(200, 40)


async def test_an_adapter_with_a_model_of_its_own_is_a_child_of_the_run_too() -> None:
    own = ScriptedModel(["Fine."], name="judge")

    async def act(context: TaskCompletionContext) -> Any:
        nested = context.create_nested_context()
        return await NestedEvaluator(Adapter(own), prompt=question(), context=nested).evaluate_async()

    result, checker = await inside(act, [ANSWER])
    assert checker.said[0].output == "Fine."
    assert events(result, ChildStarted)[0].model == "scripted:judge"
    assert events(result, ChildStarted)[0].kind == "verdict"
    assert result.usage.model_calls == 2


async def test_the_adapter_of_another_run_lends_its_model_only() -> None:
    others: list[Any] = []

    async def keep(context: TaskCompletionContext) -> Any:
        others.append(context.adapter)

    await inside(keep, ScriptedModel([ANSWER, "Fine."], name="other"))

    async def act(context: TaskCompletionContext) -> Any:
        nested = context.create_nested_context()
        return await NestedEvaluator(others[0], prompt=question(), context=nested).evaluate_async()

    result, checker = await inside(act, [ANSWER])
    assert checker.said[0].output == "Fine."
    assert events(result, ChildStarted)[0].model == "scripted:other"


@pytest.mark.spec("NE-002")
def test_outside_of_any_run_it_has_a_gate_of_its_own() -> None:
    session = Session(clock=TestClock())
    evaluator = alone(ScriptedModel(["Fine."]), session=session)
    result = evaluator.evaluate()
    assert (result.success, result.output, result.usage) == (True, "Fine.", TokenUsage(100, 20))
    kinds = [type(envelope.event).__name__ for envelope in session.log]
    assert kinds == ["ChildStarted", "ChildEnded"]
    assert session.children == ()
    assert children_of(session) is None


async def test_outside_of_any_run_the_trace_is_the_callers() -> None:
    session = Session(clock=TestClock())
    above = root_run_context(session.session_id)
    result = await alone(ScriptedModel(["Fine."]), session=session, parent_run_context=above).evaluate_async()
    child = cast("RunContext", result.child_run_context)
    assert (child.trace_id, child.parent_span_id, child.request_id) == (above.trace_id, above.span_id, above.request_id)


# --- threads ----------------------------------------------------------------------------------------------------------


async def test_a_sync_evaluation_runs_below_its_run_whatever_thread_it_is_called_from() -> None:
    loops: list[Any] = []

    class Model(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            loops.append(asyncio.get_running_loop())
            return await super().turn(request)

    async def act(context: TaskCompletionContext) -> Any:
        nested = context.create_nested_context()
        adapter = context.adapter
        assert adapter is not None
        return await asyncio.to_thread(NestedEvaluator(adapter, prompt=question(), context=nested).evaluate)

    result, checker = await inside(act, Model([ANSWER, "Fine."]))
    assert checker.said[0].output == "Fine."
    assert len(events(result, ChildEnded)) == 1
    assert loops == [asyncio.get_running_loop()] * 2


async def test_on_the_loops_own_thread_it_says_what_to_await() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        nested = context.create_nested_context()
        adapter = context.adapter
        assert adapter is not None
        return NestedEvaluator(adapter, prompt=question(), context=nested).evaluate()

    _, checker = await inside(act, [ANSWER])
    assert isinstance(checker.raised[0], WatchkeeperError)
    assert "await evaluate_async(...)" in str(checker.raised[0])


# --- State Visibility -------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-005")
async def test_read_state_parent_to_child_by_an_explicit_query() -> None:
    seen: list[Any] = []

    async def act(context: TaskCompletionContext) -> Any:
        context.session[Feedback].append(Feedback("parent", "a note"))

        @tool
        def read(*, context: ToolContext) -> str:
            """Read what the parent knows."""
            parent = context.session.origin.parent
            assert parent is not None
            seen.append(parent[Feedback].latest())
            return "read"

        return await asking(question(tools=(read,)), config=NestedExecutionConfig(allow_nested_tools=True))(context)

    await inside(act, [ANSWER, Call("read"), "Fine."])
    assert seen == [Feedback("parent", "a note")]


@pytest.mark.spec("NE-005")
async def test_read_state_child_to_parent_is_blocked() -> None:
    result, checker = await inside(asking(), [ANSWER, "Fine."])
    assert checker.said[0].success
    assert result.session.children == ()
    assert [event.text for event in events(result, PromptExecuted)] == [ANSWER]


@pytest.mark.spec("NE-005")
async def test_write_state_is_blocked_both_ways() -> None:
    notes: list[Any] = []

    @tool
    def note(*, context: ToolContext) -> str:
        """Take a note."""
        parent = context.session.parent
        assert parent is not None
        with pytest.raises(SessionError, match="can be read from below"):
            parent[Feedback].append(Feedback("child", "yours"))
        context.session[Feedback].append(Feedback("child", "mine"))
        notes.append(context.session.origin)
        return "noted"

    allowed = NestedExecutionConfig(allow_nested_tools=True)
    result, _ = await inside(asking(question(tools=(note,)), config=allowed), [ANSWER, Call("note"), "Fine."])
    assert result.session[Feedback].all() == ()
    assert [said.source for said in notes[0][Feedback].all()] == ["child"]
    with pytest.raises(SessionError, match="was closed"):
        notes[0][Feedback].append(Feedback("parent", "yours"))


@pytest.mark.spec("NE-005")
async def test_events_reach_only_the_dispatcher_of_their_own_session() -> None:
    heard: list[str] = []
    session = Session()
    session.dispatcher.subscribe_all(lambda envelope: heard.append(type(envelope.event).__name__))
    await inside(asking(), [ANSWER, "Fine."], session=session)
    assert heard.count("RunStarted") == heard.count("ModelReplied") == 1
    assert [heard.count("ChildStarted"), heard.count("ChildEnded")] == [1, 1]


# --- Resource Inheritance Rules ---------------------------------------------------------------------------------------


class HttpClient:
    """A client that the parent's tools share."""


class Rate:
    """A resource of one tool call."""


def looking(seen: dict[str, Any]) -> Any:
    @tool
    def look(*, context: ToolContext) -> str:
        """Look at what there is."""
        seen["clock"] = context.scope.clock
        seen["filesystem"] = context.filesystem
        seen["client"] = context.resources.get(HttpClient) if HttpClient in context.resources else None
        seen.setdefault("rates", []).append(context.resources.get(Rate) if Rate in context.resources else None)
        return "looked"

    return look


async def look(seen: dict[str, Any], nested: dict[str, Any], **options: Any) -> Inside:
    allowed = NestedExecutionConfig(allow_nested_tools=True)
    act = asking(question(tools=(looking(seen),)), config=allowed, **nested)
    script = [ANSWER, Call("look"), Call("look"), "Fine."]
    _, checker = await inside(act, script, **options)
    assert checker.raised == []
    assert checker.said[0].success
    return checker


@pytest.mark.spec("NE-007")
async def test_the_clock_is_inherited() -> None:
    seen: dict[str, Any] = {}
    clock: Clock = TestClock()
    await look(seen, {}, clock=clock)
    assert seen["clock"] is clock


@pytest.mark.spec("NE-007")
async def test_the_filesystem_is_inherited_as_a_read_only_view() -> None:
    written: list[BaseException] = []
    files = MemoryFilesystem({"a.txt": b"a"})

    @tool
    def write(*, context: ToolContext) -> str:
        """Try to write."""
        assert context.filesystem is not None
        assert context.filesystem.read_text("a.txt") == "a"
        context.filesystem.write_text("a.txt", "changed")
        return "written"

    allowed = NestedExecutionConfig(allow_nested_tools=True)
    act = asking(question(tools=(write,)), config=allowed)
    _, checker = await inside(act, [ANSWER, Call("write"), "Fine."], filesystem=files)
    assert checker.said[0].success
    assert written == []
    assert files.read_text("a.txt") == "a"


@pytest.mark.spec("NE-007")
async def test_http_clients_and_custom_resources_are_not_inherited() -> None:
    seen: dict[str, Any] = {}
    await look(seen, {}, resources=Resources.of({HttpClient: HttpClient()}))
    assert seen["client"] is None


@pytest.mark.spec("NE-007")
async def test_custom_resources_are_overridden_explicitly() -> None:
    seen: dict[str, Any] = {}
    own = HttpClient()
    nested = {"resource_overrides": {HttpClient: own}}
    await look(seen, nested, resources=Resources.of({HttpClient: HttpClient()}))
    assert seen["client"] is own


@pytest.mark.spec("NE-007")
async def test_resources_of_a_tool_call_are_made_afresh() -> None:
    seen: dict[str, Any] = {}
    made: list[Rate] = []

    def make(_: Resources) -> Rate:
        made.append(Rate())
        return made[-1]

    await look(seen, {}, resources=Resources([ResourceBinding(Rate, make, Scope.TOOL_CALL)]))
    assert seen["rates"] == made
    assert len(set(map(id, made))) == 2


async def test_a_resource_made_for_an_evaluation_is_closed_with_it() -> None:
    closed: list[str] = []

    class Connection(HttpClient):
        def close(self) -> None:
            closed.append("closed")

    seen: dict[str, Any] = {}
    await look(seen, {"resource_overrides": {HttpClient: ResourceBinding(HttpClient, lambda _: Connection())}})
    assert isinstance(seen["client"], Connection)
    assert closed == ["closed"]


# --- budgets ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-035")
async def test_a_budget_of_its_own_is_set_aside_from_what_the_run_has_left() -> None:
    left: list[Any] = []

    class Model(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            left.append([gate.left()["max_total_tokens"] for gate in gates])
            return await super().turn(request)

    gates: list[Any] = []

    async def act(context: TaskCompletionContext) -> Any:
        gates.append(children(context).family.scope.gate)
        return await asking(budget=Budget(max_total_tokens=5_000))(context)

    limits = Limits(max_total_tokens=50_000, landing=None)
    result, checker = await inside(act, Model([ANSWER, "Fine."]), limits)
    assert left == [[], [50_000 - 120 - 5_000]]
    assert gates[0].usage.tokens.total == result.usage.tokens.total == 240
    assert "total tokens 5,000" in events(result, ChildStarted)[0].limits
    assert checker.said[0].usage == TokenUsage(100, 20)


@pytest.mark.spec("NE-035")
async def test_without_one_it_shares_what_the_run_has_left() -> None:
    result, _ = await inside(asking(), [ANSWER, "Fine."], Limits(max_total_tokens=50_000))
    assert "total tokens" not in events(result, ChildStarted)[0].limits


@pytest.mark.spec("NE-011")
async def test_what_it_used_is_added_to_a_tracker_once() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=9_000))

    async def act(context: TaskCompletionContext) -> Any:
        nested = NestedExecutionContext(context.session)
        adapter = context.adapter
        assert adapter is not None
        evaluator = NestedEvaluator(adapter, prompt=question(), context=nested)
        return await evaluator.evaluate_async(budget_tracker=tracker)

    result, _ = await inside(act, [ANSWER, "Fine."])
    assert tracker.usage.tokens == TokenUsage(100, 20)
    assert "total tokens 9,000" in events(result, ChildStarted)[0].limits
    assert result.usage.tokens == TokenUsage(200, 40)


@pytest.mark.spec("NE-011")
async def test_the_tracker_of_the_run_itself_counts_it_once_too() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=90_000))

    async def act(context: TaskCompletionContext) -> Any:
        adapter = context.adapter
        assert adapter is not None
        evaluator = NestedEvaluator(adapter, prompt=question(), context=NestedExecutionContext(context.session))
        return await evaluator.evaluate_async(budget_tracker=tracker)

    checker = Inside(act)
    adapter = Adapter(ScriptedModel([ANSWER, "Fine."]), clock=TestClock())
    await adapter.evaluate_async(Prompt(agent(checker=checker)), budget_tracker=tracker)
    assert checker.raised == []
    assert tracker.usage.tokens == TokenUsage(200, 40)


@pytest.mark.spec("NE-011")
async def test_a_tracker_bounds_evaluations_inside_and_outside_of_runs_together() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=2_800))
    adapter = Adapter(ScriptedModel([Say("One.", usage=TokenUsage(1_000, 200))]), clock=TestClock())
    await adapter.evaluate_async(question(), budget_tracker=tracker)
    spent = Say("Two.", usage=TokenUsage(1_000, 500))
    session = Session(clock=TestClock())
    nested = NestedExecutionContext(session)

    async def act(context: TaskCompletionContext) -> Any:
        own = context.adapter
        assert own is not None
        evaluator = NestedEvaluator(own, prompt=question(), context=NestedExecutionContext(context.session))
        return await evaluator.evaluate_async(budget_tracker=tracker)

    _, checker = await inside(act, [ANSWER, spent])
    assert checker.said[0].output == "Two."
    assert tracker.usage.tokens == TokenUsage(2_000, 700)
    last = NestedEvaluator(Adapter(ScriptedModel([])), prompt=question(), context=nested)
    with pytest.raises(BudgetExceededError, match="ceiling of 2,800 tokens after 2,700"):
        await last.evaluate_async(budget_tracker=tracker)


async def test_a_tracker_that_is_used_up_is_said_before_anything_is_started() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=10), Usage(tokens=TokenUsage(10, 0)))
    session = Session(clock=TestClock())
    evaluator = alone(ScriptedModel([]), session=session)
    with pytest.raises(BudgetExceededError, match="used up"):
        await evaluator.evaluate_async(budget_tracker=tracker)
    assert len(session.log) == 0


@pytest.mark.spec("NE-029")
async def test_a_budget_exhausted_in_the_middle_of_an_evaluation_propagates_and_leaves_the_run_unharmed() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "x" * 20_000

    allowed = NestedExecutionConfig(allow_nested_tools=True)
    act = asking(question(tools=(look,)), config=allowed, budget=Budget(max_total_tokens=4_000))
    result, checker = await inside(act, [ANSWER, Call("look"), "never asked"])
    assert isinstance(checker.raised[0], BudgetExceededError)
    ended = events(result, ChildEnded)[0]
    assert ended.stop is not None
    assert ended.stop.reason == "token_limit_exceeded"
    assert ended.usage.model_calls == 1
    assert result.usage.model_calls == 2
    assert (result.stop, result.completion) == (None, "unverified")


@pytest.mark.spec("NE-029")
@given(st.lists(st.integers(0, 3_000), max_size=6), st.integers(2_000, 12_000))
def test_nested_usage_is_consolidated_exactly_once_and_never_exceeds_the_runs_ceiling(
    sizes: list[int], ceiling: int
) -> None:
    used: list[int] = []

    def respond(request: Any) -> Any:
        text = request.transcript[0].text
        if "Question" not in text:
            return Say(ANSWER, usage=TokenUsage(10, 20))
        wanted = int(text.rpartition(" ")[2])
        return Say("Fine.", usage=TokenUsage(10, min(wanted, request.max_output_tokens)))

    async def act(context: TaskCompletionContext) -> Any:
        for size in sizes:
            try:
                said = await asking(question(f"Use {size}"))(context)
            except BudgetExceededError:
                used.append(0)
            else:
                used.append(said.usage.total)

    async def scenario() -> Any:
        limits = Limits(max_total_tokens=ceiling, landing=None, verdict=None)
        return (await inside(act, ScriptedModel(respond), limits))[0]

    result = asyncio.run(scenario())
    assert result.usage.tokens.total == 30 + sum(used)
    assert result.usage.tokens.total <= ceiling
    assert sum(ended.usage.tokens.total for ended in events(result, ChildEnded)) == sum(used)


# --- Error Categories -------------------------------------------------------------------------------------------------


def slow(clock: TestClock, by: float) -> Callable[[Any], Any]:
    def respond(request: Any) -> Any:
        clock.advance(by)
        return "Too late."

    return respond


@pytest.mark.spec("NE-037")
async def test_deadline_exceeded_propagates() -> None:
    clock = TestClock()
    result, checker = await inside(asking(), [ANSWER, slow(clock, 31)], clock=clock)
    error = checker.raised[0]
    assert isinstance(error, DeadlineExceededError)
    assert (error.phase, result.stop) == ("deadline", None)
    assert error.provider_payload["deadline"] == "2026-01-01T00:00:30+00:00"


@pytest.mark.spec("NE-037")
async def test_budget_exceeded_propagates() -> None:
    _, checker = await inside(asking(budget=Budget(max_total_tokens=10)), [ANSWER])
    assert isinstance(checker.raised[0], BudgetExceededError)


@pytest.mark.spec("NE-037")
async def test_a_throttle_is_captured() -> None:
    throttled = ThrottleError("slow down", provider="scripted", retry_after=3_600)
    _, checker = await inside(asking(), [ANSWER, throttled])
    said = checker.said[0]
    assert (said.success, said.output, said.error.kind, said.error.phase) == (False, None, "throttled", "request")
    assert said.error.__cause__ is throttled
    assert said.child_run_context is not None


async def test_a_model_that_only_names_the_fault_is_throttled_too() -> None:
    _, checker = await inside(asking(), [ANSWER, *[ProviderError("slow down", fault="rate_limit")] * 30])
    assert (checker.said[0].success, checker.said[0].error.kind) == (False, "throttled")


@pytest.mark.spec("NE-037")
async def test_an_answer_that_cannot_be_read_is_captured() -> None:
    result, checker = await inside(asking(report()), [ANSWER, "no", "no", "no", "no"])
    said = checker.said[0]
    assert (said.success, said.error.kind, said.error.phase) == (False, "output", "response")
    assert said.usage.total == result.usage.tokens.total - 120
    assert (result.stop, result.output) == (None, Report(1))


@pytest.mark.spec("NE-037")
async def test_any_other_failure_of_an_evaluation_is_captured() -> None:
    down = ProviderError("no such model", fault="auth", provider="scripted")
    _, checker = await inside(asking(), [ANSWER, down])
    assert (checker.said[0].error.kind, checker.said[0].error.message) == ("evaluation", "no such model")
    _, checker = await inside(asking(), [ANSWER, ValueError("a bug")])
    assert checker.said[0].error.kind == "evaluation"
    assert "ValueError: a bug" in checker.said[0].error.message


async def test_what_is_raised_outside_of_the_evaluation_is_captured_as_an_error() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        context.session.child().close()
        nested = NestedExecutionContext(closed, budget=Budget(max_total_tokens=5_000))
        return await NestedEvaluator(Adapter(ScriptedModel([])), prompt=question(), context=nested).evaluate_async()

    closed = Session()
    closed.close()
    _, checker = await inside(act, [ANSWER])
    assert checker.said[0].error.kind == "error"
    assert "SessionError" in checker.said[0].error.message


@pytest.mark.spec("NE-037")
async def test_a_cancellation_is_always_raised_again() -> None:
    reached = asyncio.Event()

    class Hanging(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

    session = Session()
    tracker = BudgetTracker(Budget(max_total_tokens=9_000))
    evaluating = asyncio.ensure_future(
        alone(Hanging([]), session=session, budget=None).evaluate_async(budget_tracker=tracker)
    )
    await reached.wait()
    evaluating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await evaluating
    assert session.children == ()
    assert tracker.usage.tokens.total > 0  # nobody knows what a cancelled request costs: its reservation is charged


async def test_a_store_that_fails_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = alone(ScriptedModel([]))

    async def fail(*_: Any) -> Any:
        raise StoreError("the disk is full")

    monkeypatch.setattr("watchkeeper.children.child.Children.start", fail)
    with pytest.raises(StoreError, match="disk is full"):
        await evaluator.evaluate_async()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-039")
async def test_an_evaluation_without_any_limit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"nothing limits this nested evaluation; give .* a deadline"):
        await alone(ScriptedModel([]), budget=None).evaluate_async()


@pytest.mark.spec("NE-039")
async def test_the_parents_whole_deadline_is_never_an_evaluations() -> None:
    result, _ = await inside(
        asking(deadline=Deadline(TestClock().now() + timedelta(hours=5))), [ANSWER, "Fine."], Limits(deadline="9h")
    )
    assert "deadline 2026-01-01T00:00:30" in events(result, ChildStarted)[0].limits


@pytest.mark.spec("NE-032")
def test_tools_are_refused_unless_they_are_allowed() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "looked"

    with pytest.raises(ConfigurationError, match=r"has tools \(look\).*allow_nested_tools=True"):
        alone(ScriptedModel([]), question(tools=(look,)))
    config = NestedExecutionConfig(allow_nested_tools=True)
    result = alone(ScriptedModel([Call("look"), "Fine."]), question(tools=(look,)), config=config).evaluate()
    assert result.output == "Fine."


@tool
async def look_around() -> str:
    """Look around."""
    return "nothing"


@pytest.mark.parametrize("own", [None, NestedExecutionConfig("1h", allow_nested_tools=True, max_nesting_depth=3)])
async def test_the_templates_rules_bind_a_context_that_was_made_by_hand(own: NestedExecutionConfig | None) -> None:
    clock, raised = TestClock(), list[BaseException]()

    async def act(context: Any) -> None:
        built: dict[str, Any] = {
            "deadline": clock.now() + timedelta(hours=1),
            **({} if own is None else {"config": own}),
        }
        for asked in (question(), question(tools=(look_around,))):
            try:
                made = NestedExecutionContext(context.session, context.run_context, **built)
                await NestedEvaluator(context.adapter, prompt=asked, context=made).evaluate_async()
            except WatchkeeperError as error:
                raised.append(error)

    template = replace(agent(checker=Inside(act)), nested_execution_config=NestedExecutionConfig("1s"))
    await play(template, [ANSWER, slow(clock, 4), "No."], clock=clock)
    assert [type(error) for error in raised] == [DeadlineExceededError, ConfigurationError]


def nesting(seen: list[Any], config: NestedExecutionConfig) -> Act:
    async def act(context: TaskCompletionContext) -> Any:
        section = MarkdownSection(title="", key="task", template="Go.")
        template = PromptTemplate[str](ns="t", key="k", sections=(section,), task_completion_checker=Inside(act))
        try:
            said = await asking(Prompt(template), config=config)(context)
        except NestingDepthError as error:
            seen.append(error)
            raise
        seen.append(said)
        return said

    return act


@pytest.mark.spec("NE-026")
@given(st.integers(1, 3))
def test_evaluations_nest_no_deeper_than_the_configuration_says(most: int) -> None:
    seen: list[Any] = []
    act = nesting(seen, NestedExecutionConfig(max_nesting_depth=most))
    asyncio.run(cast("Any", inside(act, answers)))
    assert [type(each) for each in seen] == [NestingDepthError] + [NestedEvaluationResult] * most


# --- isolation --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-029")
def test_evaluations_on_many_threads_are_isolated_from_each_other() -> None:
    """State is isolated under concurrent execution, with real threads."""
    answers: dict[int, Any] = {}

    def respond(request: Any) -> Any:
        text = request.transcript[0].text
        return text.rpartition(" ")[2] if "Number" in text else ANSWER

    async def act(context: TaskCompletionContext) -> Any:
        adapter = context.adapter
        assert adapter is not None

        def ask(number: int) -> None:
            nested = context.create_nested_context(budget=Budget(max_total_tokens=5_000))
            evaluator = NestedEvaluator(adapter, prompt=question(f"Number {number}"), context=nested)
            answers[number] = evaluator.evaluate()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)

    async def scenario() -> Any:
        return (await inside(act, ScriptedModel(respond)))[0]

    result = asyncio.run(scenario())
    assert {number: said.output for number, said in answers.items()} == {n: str(n) for n in range(16)}
    contexts = [said.child_run_context for said in answers.values()]
    assert len({context.session_id for context in contexts}) == 16
    assert result.usage.tokens.total == 17 * 120
    assert result.session.children == ()


# --- the trace tree ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-036")
async def test_the_trace_is_the_tree_that_the_document_draws() -> None:
    @tool
    def edit_file() -> str:
        """Edit."""
        return "edited"

    @tool
    def run_tests() -> str:
        """Test."""
        return "passed"

    kept: list[Session] = []

    async def act(context: TaskCompletionContext) -> Any:
        def watch(envelope: Envelope) -> None:
            if isinstance(envelope.event, ChildStarted):
                kept.extend(context.session.children)

        context.session.dispatcher.subscribe_all(watch)
        return await asking(question(key="verify_completion"))(context)

    script = [Call("edit_file"), Call("run_tests"), ANSWER, "Fine."]
    result, _ = await inside(act, script, tools=(edit_file, run_tests))
    root = events(result, RunStarted)[0].run_context

    def drawn(session: Session, context: RunContext, depth: int = 0) -> list[str]:
        lines = [f"{'  ' * depth}Span {context.span_id}, parent {context.parent_span_id}"]
        for envelope in session.log:
            event: Any = envelope.event
            kind = type(event).__name__
            if kind == "ToolInvoked":
                lines.append(f"{'  ' * depth}- ToolInvoked: {event.name}")
            elif kind == "PromptExecuted":
                lines.append(f"{'  ' * depth}- PromptExecuted: {event.prompt_name}")
            elif kind == "ChildStarted":
                assert event.run_context.trace_id == context.trace_id
                child = next(each for each in kept if each.session_id == event.run_context.session_id)
                lines += drawn(child, event.run_context, depth + 1)
        return lines

    child = events(result, ChildStarted)[0].run_context
    assert drawn(result.session, root) == [
        f"Span {root.span_id}, parent None",
        "- ToolInvoked: edit_file",
        "- ToolInvoked: run_tests",
        f"  Span {child.span_id}, parent {root.span_id}",
        "  - PromptExecuted: tests/verify_completion",
        "- PromptExecuted: tests/agent",
    ]


@pytest.mark.spec("NE-036")
async def test_events_and_log_lines_of_children_suffice_to_draw_the_tree(caplog: pytest.LogCaptureFixture) -> None:
    recorded: list[Any] = []
    config = NestedExecutionConfig(max_nesting_depth=3)

    def record(_: UUID, envelope: Envelope) -> None:
        recorded.append(envelope.event)

    with caplog.at_level(logging.INFO, logger="watchkeeper"):
        result, _ = await inside(
            nesting([], config),
            answers,
            on_record=record,
        )
    started = [event for event in recorded if isinstance(event, ChildStarted)]
    ended = {event.run_id: event for event in recorded if isinstance(event, ChildEnded)}

    def drawn(run_id: UUID, depth: int = 0) -> list[str]:
        lines: list[str] = []
        for event in started:
            if event.parent_run_id == run_id:
                own = event.run_context.run_id
                end = ended[own]
                said = f"{event.kind} {event.prompt_name}: {end.completion}, {end.usage.tokens.total} tokens"
                lines += [f"{'  ' * depth}{said}", *drawn(own, depth + 1)]
        return lines

    tree = ["evaluation t/k: verified, 360 tokens", "  evaluation t/k: verified, 240 tokens"]
    assert drawn(result.run_id) == [*tree, "    evaluation t/k: unverified, 120 tokens"]

    def field_of(line: str, name: str) -> str:
        found = re.search(rf"\b{name}='?([^' ]*)", line)
        assert found is not None
        return found[1]

    ends = [line for line in caplog.messages if "child.ended" in line]
    parents = {field_of(line, "run_id"): field_of(line, "parent_run_id") for line in ends}
    assert parents == {str(event.run_context.run_id): str(event.parent_run_id) for event in started}
    assert sorted(int(field_of(line, "tokens")) for line in ends) == [120, 240, 360]


def test_sessions_are_walked_from_the_bottom_up_while_an_evaluation_goes_on() -> None:
    walked: list[list[Session]] = []
    session = Session(clock=TestClock())

    def respond(request: Any) -> Any:
        walked.append(list(iter_sessions_bottom_up(session)))
        return "Fine."

    assert iter_sessions_bottom_up is walk
    alone(ScriptedModel(respond), session=session).evaluate()
    assert [each.parent for each in walked[0]] == [session, None]
    assert list(iter_sessions_bottom_up(session)) == [session]


# --- adapters of the caller's own -------------------------------------------------------------------------------------


@dataclass
class Outside:
    """An adapter that is not ours."""

    answer: Any
    name: str = "outside"
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def evaluate_async(self, prompt: Any, *params: Any, **arguments: Any) -> Any:
        """Answer."""
        self.seen.append(arguments)
        said = self.answer(prompt, arguments) if callable(self.answer) else self.answer
        if asyncio.iscoroutine(said):
            said = await said
        if isinstance(said, BaseException):
            raise said
        return said


SOME = TokenUsage(30, 10)
A_TENTH_OF_A_CENT = Decimal("0.001")


def response(usage: TokenUsage = SOME, cost: Decimal | None = A_TENTH_OF_A_CENT) -> Any:
    return PromptResponse("tests/question", "Fine.", "Fine.", usage, cost)


def asking_outside(adapter: Any, prompt: Prompt[Any] | None = None, **nested: Any) -> Act:
    async def act(context: TaskCompletionContext) -> Any:
        given: dict[str, Any] = {
            "deadline": derive_nested_deadline(context.deadline, clock=context.session.clock),
            **nested,
        }
        own = NestedExecutionContext(context.session, **given)
        return await NestedEvaluator(adapter, prompt=prompt or question(), context=own).evaluate_async()

    return act


@pytest.mark.spec("NE-002")
async def test_an_adapter_of_the_callers_own_is_a_child_with_all_that_belongs_to_one() -> None:
    outside = Outside(response())
    act = asking_outside(outside, budget=Budget(max_total_tokens=5_000))
    result, checker = await inside(act, [ANSWER], Limits(deadline="1h"))
    said = checker.said[0]
    assert (said.output, said.usage) == ("Fine.", TokenUsage(30, 10))
    assert events(result, ChildStarted)[0].model == "outside:Outside"
    assert result.usage.tokens == TokenUsage(130, 30)
    assert result.usage.cost_nanos == 1_000_000
    given = outside.seen[0]
    assert given["session"].parent == result.session
    assert given["run_context"] == said.child_run_context
    assert given["budget"] == Budget(max_total_tokens=5_000)
    assert given["deadline"].at.isoformat() == "2026-01-01T00:00:30+00:00"
    assert given["parse_output"] is True
    kinds = [type(envelope.event).__name__ for envelope in given["session"].log]
    assert kinds[0] == "RunStarted"
    assert kinds[-3:] == ["ModelReplied", "PromptExecuted", "RunEnded"]


async def test_one_that_is_sync_is_called_on_a_worker_thread() -> None:
    threads: list[Any] = []

    class Sync:
        def evaluate(self, prompt: Any, **arguments: Any) -> Any:
            threads.append(threading.current_thread())
            return response(cost=None)

    result, checker = await inside(asking_outside(Sync()), [ANSWER])
    assert checker.said[0].output == "Fine."
    assert threads != [threading.current_thread()]
    assert events(result, ChildStarted)[0].model == "Sync:Sync"
    assert result.cost is None  # nobody knows what it cost


async def test_where_a_cost_ceiling_holds_it_is_refused_because_nobody_knows_its_price() -> None:
    outside = Outside(response())
    _, checker = await inside(asking_outside(outside), [ANSWER], Limits(max_cost_usd=1))
    assert isinstance(checker.raised[0], UnpricedModelError)
    assert outside.seen == []


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ThrottleError("slow down", provider="outside"), "throttled"),
        (OutputParseError("no JSON", raw="no"), "output"),
        (PromptEvaluationError("broken", phase="response"), "evaluation"),
        (ValueError("a bug"), "evaluation"),
        (response(usage=cast("Any", None)), "evaluation"),
        (response(usage=TokenUsage(-1, 0)), "evaluation"),
        (response(usage=TokenUsage(cast("Any", float("nan")), 0)), "evaluation"),
        (response(usage=TokenUsage(1, 1, cached_tokens=-500)), "evaluation"),
        (response(cost=Decimal(-1)), "evaluation"),
        (response(cost=cast("Any", float("nan"))), "evaluation"),
        ("no response", "evaluation"),
    ],
    ids=[
        "throttle",
        "unreadable",
        "other",
        "bug",
        "no-usage",
        "nonsense-usage",
        "usage-no-number",
        "usage-of-cache-below-zero",
        "nonsense-cost",
        "cost-no-decimal",
        "no-response",
    ],
)
async def test_what_goes_wrong_in_it_is_captured_and_it_is_called_once(raised: Any, kind: str) -> None:
    outside = Outside(raised)
    _, checker = await inside(asking_outside(outside), [ANSWER])
    assert (checker.said[0].success, checker.said[0].error.kind) == (False, kind)
    assert len(outside.seen) == 1


@pytest.mark.parametrize("error", [DeadlineExceededError("late"), BudgetExceededError("poor"), LimitsError("wrong")])
async def test_limits_and_configuration_errors_of_it_propagate(error: Exception) -> None:
    _, checker = await inside(asking_outside(Outside(error)), [ANSWER])
    assert checker.raised == [error]


async def test_one_that_never_ends_is_cancelled_at_its_deadline() -> None:
    clock = TestClock()

    async def hang(*_: Any) -> Any:
        clock.advance(31)
        await asyncio.Event().wait()

    _, checker = await inside(asking_outside(Outside(hang)), [ANSWER], clock=clock)
    assert isinstance(checker.raised[0], DeadlineExceededError)


async def test_one_that_raises_a_cancellation_of_its_own_has_failed() -> None:
    _, checker = await inside(asking_outside(Outside(asyncio.CancelledError())), [ANSWER])
    assert checker.said[0].error.kind == "evaluation"


async def test_one_that_nests_again_is_refused_at_the_depth_limit() -> None:
    refused: list[Any] = []

    async def again(prompt: Any, arguments: Any) -> Any:
        own = NestedExecutionContext(arguments["session"], deadline=arguments["deadline"])
        try:
            await NestedEvaluator(Adapter(ScriptedModel([])), prompt=question(), context=own).evaluate_async()
        except NestingDepthError as error:
            refused.append(error)
        return response()

    _, checker = await inside(asking_outside(Outside(again)), [ANSWER])
    assert len(refused) == 1
    assert checker.said[0].success


async def test_what_it_may_use_is_at_most_what_is_left() -> None:
    outside = Outside(response())
    await inside(asking_outside(outside), [ANSWER], Limits(max_total_tokens=3_000, landing=None))
    assert outside.seen[0]["budget"].max_total_tokens == 3_000 - 120
    await inside(asking_outside(outside), [ANSWER])
    assert outside.seen[1]["budget"].max_total_tokens > 8_192


async def test_outside_of_runs_it_is_evaluated_too_and_its_turns_stay_its_own() -> None:
    session = Session(clock=TestClock())
    own = NestedExecutionContext(session, budget=Budget(max_total_tokens=5_000))
    adapter: Any = Outside(response())
    result = await NestedEvaluator(adapter, prompt=question(), context=own).evaluate_async()
    assert result.output == "Fine."
    model = outside_model(adapter).model
    with pytest.raises(ConfigurationError, match="evaluates whole prompts"):
        await model.turn(ModelRequest(Transcript()))
    await model.close()


class Left:
    """A sync checker that is still at work when the run is over, and then asks a model."""

    def __init__(self, adapter: Adapter | None = None) -> None:
        self.adapter = adapter
        self.begun, self.over, self.done = threading.Event(), threading.Event(), threading.Event()
        self.raised: list[BaseException] = []

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        assert context.adapter is not None
        nested = context.create_nested_context(max_duration="1h")
        evaluator = NestedEvaluator(self.adapter or context.adapter, prompt=question(), context=nested)
        self.begun.set()
        self.over.wait(30)
        try:
            evaluator.evaluate()
        except BaseException as error:
            self.raised.append(error)
        self.done.set()
        return TaskCompletionResult.ok()


@pytest.mark.parametrize("other", [False, True], ids=["the run's own", "another"])
async def test_what_a_run_has_left_behind_cannot_ask_a_model_that_nobody_counts(other: bool) -> None:
    model, judge = ScriptedModel(answers), ScriptedModel(answers)
    checker = Left(Adapter(judge) if other else None)
    clock = TestClock()
    running = asyncio.create_task(play(agent(checker=checker), model, Limits(deadline="10s"), clock=clock))
    assert await run_in_worker(checker.begun.wait, 30)
    clock.advance(10)
    result = await running
    assert result.completion == "unverified"
    checker.over.set()
    assert await run_in_worker(checker.done.wait, 30)
    assert isinstance(checker.raised[0], ConfigurationError)
    assert "is over" in str(checker.raised[0])
    assert (len(model.requests), len(judge.requests)) == (1, 0)


class UsedUp(BudgetTracker):
    """Is used up by others as soon as somebody has seen that something is left."""

    looks = 0

    def remaining(self) -> Budget:
        self.looks += 1
        if self.looks > 1:
            raise BudgetExceededError("the shared budget is used up")
        return super().remaining()


async def test_a_tracker_that_others_use_up_at_that_moment_is_a_ceiling_that_was_reached() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        nested = NestedExecutionContext(context.session)
        evaluator = NestedEvaluator(Adapter(ScriptedModel(answers)), prompt=question(), context=nested)
        return await evaluator.evaluate_async(budget_tracker=UsedUp(Budget(max_total_tokens=500)))

    _, checker = await inside(act, [ANSWER])
    assert isinstance(checker.raised[0], BudgetExceededError)
