"""Child runs: how they start, and that everything is closed and returned however they end."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import (
    ANSWER,
    Call,
    Inside,
    Say,
    ScriptedModel,
    agent,
    answers,
    children,
    events,
    inside,
    left_of,
    play,
    question,
)
from tests.subagents.support import DIG, dispatching, parent_template
from tests.subagents.support import task as dispatched
from watchkeeper.accounting.budget import Budget
from watchkeeper.accounting.limits import Limits, Verdict
from watchkeeper.app.run import arun
from watchkeeper.children.child import ChildRun, ChildTask, children_of
from watchkeeper.core import workers
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import (
    ConfigurationError,
    NestingDepthError,
    ProviderError,
    SessionError,
    Stop,
    WatchkeeperError,
)
from watchkeeper.core.messages import UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.judging.evaluator import NestedEvaluator
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.advice import Feedback
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.evaluation import NestedExecutionContext
from watchkeeper.prompt.observer import Escalation, FeedbackContext, FeedbackProviderConfig, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.advice_events import AdviceAcknowledged
from watchkeeper.runtime.events import ChildEnded, ChildKind, ChildStarted, RunEnded, RunStarted
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.log import StateInherited
from watchkeeper.session.session import Session
from watchkeeper.subagents.payloads import PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.resources import ResourceBinding, Resources, Scope
from watchkeeper.tools.tool import tool

BARE = Limits(deadline=None, max_total_tokens=None, max_retries=None, max_turns=None, landing=None)


@dataclass(frozen=True)
class Note:
    """What a user's own code keeps."""

    text: str


def task(prompt: Prompt[Any] | None = None, limits: Limits = BARE, **details: Any) -> ChildTask[Any]:
    return ChildTask(prompt or question(), details.pop("kind", "evaluation"), limits, **details)


def starting(**details: Any) -> Callable[[TaskCompletionContext], Any]:
    async def act(context: TaskCompletionContext) -> ChildRun[Any]:
        return await children(context).start(task(**details))

    return act


# --- what a child is --------------------------------------------------------------------------------------------------


@pytest.mark.spec("NE-016", "NE-036", "FR-166")
async def test_a_child_has_a_session_a_dispatcher_and_a_span_of_its_own_in_its_parents_trace() -> None:
    result, checker = await inside(starting(), [ANSWER, "Fine."])
    run = cast("ChildRun[str]", checker.said[0])
    parent = events(result, RunStarted)[0].run_context
    assert (run.result.output, run.result.stop) == ("Fine.", None)
    assert run.result.session.parent == result.session
    assert run.result.session.dispatcher is not result.session.dispatcher
    context = run.run_context
    assert (context.trace_id, context.parent_span_id) == (parent.trace_id, parent.span_id)
    assert context.span_id not in (None, parent.span_id)
    assert context.run_id != parent.run_id
    assert context.session_id == run.result.session.session_id
    assert (context.request_id, context.worker_id, context.attempt) == (parent.request_id, parent.worker_id, 1)


@pytest.mark.spec("NE-016", "NE-028")
async def test_the_parents_log_has_one_pair_of_events_that_leads_to_the_childs_log() -> None:
    result, checker = await inside(starting(call_id="call-7"), [ANSWER, "Fine."])
    run = checker.said[0]
    started, ended = events(result, ChildStarted)[0], events(result, ChildEnded)[0]
    parent = events(result, RunStarted)[0].run_context
    assert started.run_context == run.run_context
    assert (started.kind, started.prompt_name, started.model) == ("evaluation", "tests/question", "scripted:scripted")
    assert (started.depth, started.call_id, started.parent_run_id) == (1, "call-7", parent.run_id)
    assert (ended.run_id, ended.parent_run_id, ended.stop) == (run.run_context.run_id, parent.run_id, None)
    assert ended.usage == run.result.usage
    assert (ended.kind, ended.completion) == ("evaluation", "unchecked")
    assert ended.said == "Done: 1 turn, 0 tool calls, 120 tokens, $0.00, 0ms."
    own = next(envelope.event for envelope in run.result.session.log if isinstance(envelope.event, RunStarted))
    assert own.parent_run_id == parent.run_id
    others = [type(envelope.event).__name__ for envelope in result.session.log if envelope.event is not started]
    assert others.count("RunStarted") == 1
    assert others.count("ChildStarted") == 0


@pytest.mark.spec("NE-028")
async def test_log_lines_have_the_ids_of_both(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="watchkeeper"):
        result, checker = await inside(starting(), [ANSWER, "Fine."])
    child, parent = checker.said[0].run_context.run_id, result.run_id
    lines = [line for line in caplog.messages if "child." in line]
    assert ["event='child.started'" in lines[0], "event='child.ended'" in lines[1]] == [True, True]
    assert all(f"run_id='{child}'" in line and f"parent_run_id='{parent}'" in line for line in lines)
    assert "tokens=120" in lines[1]


@pytest.mark.spec("FR-166")
async def test_what_a_child_uses_counts_in_its_parent_once() -> None:
    result, checker = await inside(starting(), [ANSWER, "Fine."])
    assert checker.said[0].result.usage.tokens == TokenUsage(100, 20)
    assert result.usage.tokens == TokenUsage(200, 40)
    assert result.usage.model_calls == 2


async def test_a_child_starts_with_the_state_that_it_is_given_and_derives_more() -> None:
    seen: list[Any] = []

    def hydrate(session: Session) -> None:
        seen.append(session[Note].latest())
        session[Note].append(Note("two"))

    async def act(context: TaskCompletionContext) -> Any:
        context.session[Note].append(Note("one"))
        snapshot = context.session.snapshot()
        return await children(context).start(task(snapshot=snapshot, hydrate=hydrate))

    result, checker = await inside(act, [ANSWER, "Fine."])
    child = checker.said[0].result.session
    assert seen == [Note("one")]
    assert [note.text for note in child[Note].all()] == ["one", "two"]
    assert [note.text for note in result.session[Note].all()] == ["one"]
    assert isinstance(child.log[0].event, StateInherited)


async def test_a_child_with_its_parents_state_does_not_take_its_parents_deeds_for_its_own() -> None:
    async def act(context: TaskCompletionContext) -> ChildRun[Any]:
        context.session.dispatch(AdviceAcknowledged("watcher", "acknowledge", 3, 1))
        context.session[Feedback].append(Feedback("watcher", "from the parent"))
        return await children(context).start(task(snapshot=context.session.snapshot()))

    result, checker = await inside(act, [ANSWER, "Fine."])
    assert (len(result.session[AdviceAcknowledged].all()), len(result.session[Feedback].all())) == (1, 1)
    assert checker.said[0].result.session[AdviceAcknowledged].all() == ()
    assert checker.said[0].result.session[Feedback].all() == ()


async def test_a_child_without_a_snapshot_starts_empty() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        context.session[Feedback].append(Feedback("one", "from the parent"))
        return await children(context).start(task())

    _, checker = await inside(act, [ANSWER, "Fine."])
    assert checker.said[0].result.session[Feedback].all() == ()


async def test_it_is_told_messages_and_offered_tools_besides_those_of_its_prompt() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel([ANSWER, Call("look"), "Fine."])
    await inside(starting(tools=(look,), messages=(UserMessage.of("Besides."),)), model)
    asked = model.requests[1]
    assert [spec.name for spec in asked.tools] == ["look"]
    assert asked.transcript[1] == UserMessage.of("Besides.")


async def test_a_tool_with_the_name_of_another_is_refused_before_anything_is_spent() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    @tool(name="look")
    def look_again() -> str:
        """Look again."""
        return "seen again"

    result, checker = await inside(starting(prompt=question(tools=(look,)), tools=(look_again,)), [ANSWER])
    assert isinstance(checker.raised[0], ConfigurationError)
    assert "rename one" in str(checker.raised[0])
    assert events(result, ChildStarted) == []
    assert result.session.children == ()


async def test_the_parents_fallback_takes_over_in_a_child_that_has_its_parents_model() -> None:
    down = ProviderError("down", fault="auth", provider="scripted")
    first = ScriptedModel([ANSWER, down], name="first")
    second = ScriptedModel(["Fine."], name="second")
    _, checker = await inside(starting(), first, fallback=[second])
    assert checker.said[0].result.output == "Fine."
    assert checker.said[0].result.answered_by == ("scripted:second",)


async def test_a_child_with_a_model_of_its_own_has_no_fallback() -> None:
    down = ProviderError("down", fault="auth", provider="scripted")
    own = PricedModel(ScriptedModel([down], name="own"), None)
    second = ScriptedModel(["Fine."], name="second")
    result, checker = await inside(starting(model=own), [ANSWER], fallback=[second])
    assert checker.said[0].result.stop.reason == "provider_error"
    assert events(result, ChildStarted)[0].model == "scripted:own"


async def test_a_child_has_one_model_so_its_advice_cannot_switch_it() -> None:
    @dataclass
    class Nag:
        name: str = "nag"

        def should_run(self, *, context: FeedbackContext) -> bool:
            return True

        def provide(self, *, context: FeedbackContext) -> None:
            return None

    provider = FeedbackProviderConfig(
        Nag(), ObserverTrigger(on_every_call=True), escalate=Escalation(action="switch_model", model="local")
    )
    section = MarkdownSection(title="", key="task", template="Go.")
    prompt = Prompt(PromptTemplate[str](ns="t", key="k", sections=(section,), feedback_providers=(provider,)))
    result, checker = await inside(starting(prompt=prompt), [ANSWER])
    assert "cannot escalate to another" in str(checker.raised[0])
    assert events(result, ChildEnded)[0].stop is not None
    assert result.session.children == ()


# --- depth ------------------------------------------------------------------------------------------------------------


def nesting(depths: list[int], most: int) -> Callable[[TaskCompletionContext], Any]:
    """Start a child that is checked by starting a child that is checked by ..."""

    async def act(context: TaskCompletionContext) -> Any:
        depths.append(sum(children(context).family.scope.depths.values()))
        section = MarkdownSection(title="", key="task", template="Go.")
        checker = Inside(act)
        prompt = Prompt(PromptTemplate[str](ns="t", key="k", sections=(section,), task_completion_checker=checker))
        return await children(context).start(task(prompt=prompt, max_depth=most))

    return act


@given(st.integers(1, 4))
def test_children_never_stand_deeper_than_they_may(most: int) -> None:
    depths: list[int] = []

    async def scenario() -> Inside:
        return (await inside(nesting(depths, most), answers))[1]

    checker = asyncio.run(scenario())
    assert depths == list(range(most + 1))  # the one at the limit tried, and was refused
    assert checker.raised == []
    assert checker.said[0].result.completion == ("unverified" if most == 1 else "verified")


async def test_one_child_too_many_is_refused_and_nothing_is_started() -> None:
    refused: list[BaseException] = []

    async def again(context: TaskCompletionContext) -> Any:
        try:
            return await children(context).start(task())
        except NestingDepthError as error:
            refused.append(error)
            raise

    section = MarkdownSection(title="", key="task", template="Go.")
    template = PromptTemplate[str](ns="t", key="k", sections=(section,), task_completion_checker=Inside(again))
    result, checker = await inside(starting(prompt=Prompt(template)), [ANSWER, "Fine."])
    assert str(refused[0]) == (
        "nested evaluations may stand at most 1 deep here, and 1 stands above this one; nothing was started"
        " (raise max_nesting_depth to allow more)"
    )
    inner = checker.said[0].result
    assert [type(each.event).__name__ for each in inner.session.log].count("ChildStarted") == 0
    assert inner.completion == "unverified"
    assert result.usage.model_calls == 2


@pytest.mark.spec("FR-166")
async def test_nobody_below_can_raise_what_somebody_above_allows() -> None:
    depths: list[int] = []

    async def act(context: TaskCompletionContext) -> Any:
        depths.append(sum(children(context).family.scope.depths.values()))
        section = MarkdownSection(title="", key="task", template="Go.")
        template = PromptTemplate[str](ns="t", key="k", sections=(section,), task_completion_checker=Inside(act))
        return await children(context).start(task(prompt=Prompt(template), max_depth=1 if len(depths) == 1 else 9))

    await inside(act, answers)
    assert depths == [0, 1]


@pytest.mark.spec("NE-026")
async def test_holding_on_to_the_session_above_does_not_make_code_stand_higher() -> None:
    raised: list[BaseException] = []

    async def outer(context: TaskCompletionContext) -> Any:
        above = children(context)

        async def inner(_: TaskCompletionContext) -> Any:
            try:
                return await above.start(task())
            except NestingDepthError as error:
                raised.append(error)
                raise

        section = MarkdownSection(title="", key="task", template="Go.")
        template = PromptTemplate[str](ns="t", key="k", sections=(section,), task_completion_checker=Inside(inner))
        return await above.start(task(prompt=Prompt(template)))

    result, _ = await inside(outer, [ANSWER, "Fine."])
    assert len(raised) == 1
    assert len(events(result, ChildStarted)) == 1


async def test_judges_and_subagents_count_apart_and_siblings_do_not_count() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        section = MarkdownSection(title="", key="task", template="Go.")
        template = PromptTemplate[str](
            ns="t", key="k", sections=(section,), task_completion_checker=Inside(starting(kind="evaluation"))
        )
        first = await children(context).start(task(prompt=Prompt(template), kind="subagent"))
        return [first, await children(context).start(task())]

    _, checker = await inside(act, answers)
    assert [run.result.completion for run in checker.said[0]] == ["verified", "unchecked"]


# --- every end --------------------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[], Any]] = {
    "answer": lambda: "Fine.",
    "provider": lambda: ProviderError("no", fault="auth", provider="scripted"),
    "bug": lambda: ValueError("a bug in an adapter"),
    "hang": lambda: "hang",
}


@pytest.mark.spec("NE-029", "FR-167")
@settings(max_examples=20)
@given(st.lists(st.sampled_from(sorted(ENDS)), min_size=1, max_size=4), st.booleans())
def test_whatever_way_children_end_nothing_of_them_stays(ends: list[str], carve: bool) -> None:
    clock = TestClock()

    def respond(request: Any) -> Any:
        text = request.transcript[0].text
        if "Question" not in text:
            return ANSWER
        end = ENDS[text.rpartition(" ")[2]]()
        if end == "hang":
            clock.advance(100)
            return "Too late."
        return end

    left: list[dict[str, int]] = []

    async def act(context: TaskCompletionContext) -> Any:
        gate = children(context).family.scope.gate
        left.append(gate.left())
        spent = 0
        references: list[Any] = []
        for end in ends:
            run = await children(context).start(
                task(question(f"End with {end}"), limits=Limits(deadline="60s", max_total_tokens=5_000), carve=carve)
            )
            references.append(weakref.ref(run.result.session))
            spent += run.result.usage.tokens.total
            assert context.session.children == ()
            with pytest.raises(SessionError, match="was closed"):
                run.result.session.reset()
            del run
        left.append(gate.left())
        assert left_of(references) == 0
        return spent

    async def scenario() -> tuple[Any, Inside]:
        return await inside(act, ScriptedModel(respond), Limits(deadline="2h", max_total_tokens=500_000), clock=clock)

    result, checker = asyncio.run(scenario())
    assert checker.raised == []
    assert left[0]["max_total_tokens"] - left[1]["max_total_tokens"] == checker.said[0]
    assert len(events(result, ChildStarted)) == len(events(result, ChildEnded)) == len(ends)


async def test_a_child_that_cannot_be_prepared_is_closed_all_the_same() -> None:
    def hydrate(session: Session) -> None:
        raise LookupError("no plan")

    result, checker = await inside(starting(hydrate=hydrate), [ANSWER])
    assert isinstance(checker.raised[0], LookupError)
    assert result.session.children == ()
    assert result.completion == "unverified"


@pytest.mark.spec("FR-167")
async def test_cancelling_a_child_ends_it_and_is_raised_again() -> None:
    reached = asyncio.Event()

    class Hanging(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            if "Question" not in request.transcript[0].text:
                return await super().turn(request)
            reached.set()
            await asyncio.Event().wait()

    async def act(context: TaskCompletionContext) -> Any:
        child = asyncio.ensure_future(children(context).start(task()))
        await reached.wait()
        (below,) = context.session.children
        child.cancel()
        with pytest.raises(asyncio.CancelledError):
            await child
        assert below not in context.session.children
        return "cancelled"

    result, checker = await inside(act, Hanging([ANSWER]))
    ended = events(result, ChildEnded)[0]
    assert checker.said == ["cancelled"]
    assert ended.stop is not None
    assert ended.stop.reason == "aborted"
    assert ended.said.startswith("The run was broken off")


async def test_a_child_stopped_by_a_ceiling_of_its_own_leaves_its_parent_unharmed() -> None:
    result, checker = await inside(starting(limits=Limits(max_total_tokens=10)), [ANSWER])
    stopped = checker.said[0].result
    assert (stopped.stop.reason, stopped.stop.limit) == ("token_limit_exceeded", "max_total_tokens")
    assert stopped.output is None
    assert (result.stop, result.completion) == (None, "verified")


async def test_a_child_that_gets_nothing_of_what_is_left_is_a_result_with_that_stop() -> None:
    limits = Limits(max_total_tokens=5_000, landing=None, verdict=None)
    spent = Say(ANSWER, usage=TokenUsage(4_000, 1_000))
    _, checker = await inside(starting(limits=Limits(max_total_tokens=100)), [spent], limits)
    assert checker.said[0].result.stop.reason == "token_limit_exceeded"
    assert checker.said[0].result.usage.model_calls == 0


async def test_its_resources_are_closed_with_it_whatever_they_say() -> None:
    closed: list[str] = []

    class Client:
        def close(self) -> None:
            closed.append("closed")
            raise OSError("already gone")

    @tool
    def fetch(*, context: ToolContext) -> str:
        """Fetch."""
        context.resources.get(Client)
        return "fetched"

    resources = Resources([ResourceBinding(Client, lambda _: Client())])
    act = starting(prompt=question(tools=(fetch,)), resources=resources)
    _, checker = await inside(act, [ANSWER, Call("fetch"), "Fine."])
    assert checker.said[0].result.output == "Fine."
    assert closed == ["closed"]


async def test_nothing_is_inherited_but_what_the_task_hands_over() -> None:
    class Client:
        """A client of the parent's."""

    asked: list[Any] = []

    @tool
    def look(*, context: ToolContext) -> str:
        """Look around."""
        asked.extend([Client in context.resources, context.filesystem is None])
        return "looked"

    files = MemoryFilesystem({"a.txt": b"a"})
    options: dict[str, Any] = {"resources": Resources.of({Client: Client()}), "filesystem": files}
    await inside(starting(prompt=question(tools=(look,))), [ANSWER, Call("look"), "Fine."], **options)
    assert asked[0] is False


def test_resources_made_afresh_are_those_of_one_tool_call_and_the_overrides() -> None:
    per_run = ResourceBinding(int, lambda _: 1)
    per_call = ResourceBinding(str, lambda _: "fresh", Scope.TOOL_CALL)
    parent = Resources([per_run, per_call], {float: 1.5}).child({bytes: b"child"})
    fresh = parent.afresh({dict: {}, list: ResourceBinding(list, lambda _: [1])})
    assert [kind in fresh for kind in (int, float, bytes)] == [False, False, False]
    assert fresh.tool_call().get(str) == "fresh"
    assert fresh.get(dict) == {}
    assert fresh.get(list) == [1]
    assert str not in Resources.of({str: "own"}).afresh()
    assert parent.afresh({str: "mine"}).get(str) == "mine"


# --- the verdict ------------------------------------------------------------------------------------------------------


async def test_a_verdict_is_paid_from_what_was_kept_back_when_the_works_ceiling_is_reached() -> None:
    limits = Limits(max_total_tokens=20_000, landing=None)
    spent = Say(ANSWER, usage=TokenUsage(15_700, 200))
    result, checker = await inside(starting(kind="verdict"), [spent, "Fine."], limits, asks_model=True)
    assert checker.said[0].result.output == "Fine."
    assert result.completion == "verified"
    result, checker = await inside(starting(kind="evaluation"), [spent, "Fine."], limits, asks_model=True)
    assert checker.said[0].result.stop.reason == "token_limit_exceeded"


async def test_a_verdict_that_loses_the_race_against_the_end_of_the_work_still_has_its_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "BRIEF_SECONDS", 5.0)  # the loop hears of the end after `hydrate`, not during it
    clock = TestClock()
    raced: list[str] = []
    short = replace(BARE, deadline=timedelta(seconds=4))

    async def act(context: TaskCompletionContext) -> Any:
        def hydrate(session: Session) -> None:
            if not raced:
                raced.append("the work's time ends between the decision and the call")
                clock.advance(96)

        return await children(context).start(task(limits=short, kind="verdict", hydrate=hydrate))

    limits = Limits(deadline="100s", landing=None)
    result, checker = await inside(act, [ANSWER, "Fine."], limits, asks_model=True, clock=clock)
    assert checker.said[0].result.output == "Fine."
    assert [ended.stop is None for ended in events(result, ChildEnded)] == [False, True]


# --- threads and loops ------------------------------------------------------------------------------------------------


async def test_another_thread_waits_for_a_child_that_runs_on_the_runs_loop() -> None:
    loops: list[Any] = []

    async def act(context: TaskCompletionContext) -> Any:
        below = children(context)

        async def work() -> Any:
            loops.append(asyncio.get_running_loop())
            return await below.start(task())

        return await asyncio.to_thread(lambda: below.wait_for(work(), "start"))

    _, checker = await inside(act, [ANSWER, "Fine."])
    assert checker.said[0].result.output == "Fine."
    assert loops == [asyncio.get_running_loop()]


async def test_the_loops_own_thread_is_told_what_to_await() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        with pytest.raises(WatchkeeperError, match=r"await evaluate_async\(\.\.\.\)"):
            children(context).wait_for(children(context).start(task()), "evaluate_async")

    _, checker = await inside(act, [ANSWER])
    assert checker.raised == []


async def test_a_session_has_children_only_while_a_run_writes_to_it() -> None:
    seen: list[Any] = []

    @tool
    def look(*, context: ToolContext) -> str:
        """Look."""
        seen.append(children_of(context.session))
        return "looked"

    session = Session()
    assert children_of(session) is None
    await play(agent(look), [Call("look"), ANSWER], session=session)
    assert seen[0] is not None
    assert children_of(session) is None


async def test_concurrent_children_share_nothing() -> None:
    async def act(context: TaskCompletionContext) -> Any:
        runs = [children(context).start(task(question(f"Number {number}"))) for number in range(20)]
        return await asyncio.gather(*runs)

    def respond(request: Any) -> Any:
        text = request.transcript[0].text
        return text.rpartition(" ")[2] if "Number" in text else ANSWER

    result, checker = await inside(act, respond)
    runs = checker.said[0]
    assert [run.result.output for run in runs] == [str(number) for number in range(20)]
    assert len({run.run_context.span_id for run in runs}) == 20
    for run in runs:
        ended = [each.event for each in run.result.session.log if isinstance(each.event, RunEnded)]
        assert [each.run_id for each in ended] == [run.run_context.run_id]
    assert result.usage.tokens.total == 21 * 120


async def test_a_price_is_charged_to_the_child_and_to_its_parent() -> None:
    price = ModelPrice.per_million("1", "1")
    own = PricedModel(ScriptedModel(["Fine."], free=False), price)
    result, checker = await inside(starting(model=own), [ANSWER], Limits(max_cost_usd=1))
    assert checker.said[0].result.usage.cost_nanos == 120_000
    assert result.usage.cost_nanos == 120_000


# --- Code inside a run that wants more than is its own: of the verdict's share, of a budget, of time ---


class Judge:
    """Asks a model for the last word."""

    asks_model = True

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        stop = await ask(context.session, "verdict")
        return TaskCompletionResult.ok() if stop is None else TaskCompletionResult.unverified(stop.message)


async def ask(session: Session, kind: ChildKind) -> Stop | None:
    children = children_of(session)
    assert children is not None
    return (await children.start(ChildTask(question(), kind, Limits(deadline=None, landing=None)))).result.stop


async def spent_by_a_tool(kind: ChildKind) -> tuple[int, str]:
    """Return what a tool can have with as many children of this kind as there may be, and how the run stands then."""
    spent: list[int] = []

    @tool
    async def spend(*, context: ToolContext) -> str:
        """Ask until nothing is left."""
        while await ask(context.session, kind) is None:
            pass
        assert context.budget is not None
        spent.append(context.budget.tokens_used)
        return "spent"

    section = MarkdownSection(title="Task", key="task", template="Work.", tools=[spend])
    template = PromptTemplate[str](ns="tests", key="agent", sections=[section], task_completion_checker=Judge())
    model = ScriptedModel([Call("spend", {}), *["fine"] * 500])
    limits = Limits(max_total_tokens=40_000, verdict=Verdict(share=0.3))
    result = await arun(template, model=model, limits=limits, store=None)
    return spent[0], result.completion


async def test_what_is_kept_for_the_verdict_is_not_had_by_calling_oneself_a_verdict() -> None:
    as_verdict, as_evaluation = await spent_by_a_tool("verdict"), await spent_by_a_tool("evaluation")
    assert as_verdict == as_evaluation
    assert as_verdict[1] == "verified"


class Lingering(ScriptedModel):
    """Takes its time to break off: longer than the gate waits for it on a clock that this moves."""

    def __init__(self, clock: TestClock, name: str = "scripted") -> None:
        """Turn this clock."""
        super().__init__([], name=name)
        self.clock = clock
        self.asked = asyncio.Semaphore(0)
        self.let_go = asyncio.Event()

    async def turn(self, request: ModelRequest) -> ModelReply:
        self.asked.release()
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().call_soon(self.clock.advance, 1)  # once the gate has begun to wait
            await self.let_go.wait()
        return await super().turn(request)


class Asks:
    """Has a model judge that never answers."""

    asks_model = True

    def __init__(self, judge: Lingering) -> None:
        self.judge = judge

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        nested = context.create_nested_context()
        evaluator = NestedEvaluator(Adapter(self.judge, clock=self.judge.clock), prompt=question(), context=nested)
        await evaluator.evaluate_async()
        return TaskCompletionResult.ok()


def booked(result: RunResult[Any]) -> tuple[int, int]:
    """Return how many tokens stand in a result and on its log."""
    ends = [envelope.event for envelope in result.session.log if isinstance(envelope.event, RunEnded)]
    return result.usage.tokens.output_tokens, ends[-1].usage.tokens.output_tokens


async def test_a_judge_that_was_cut_off_is_booked_in_the_result() -> None:
    section = MarkdownSection(title="Task", key="task", template="Work.")
    judge = Lingering(TestClock())
    template = PromptTemplate[str](ns="tests", key="agent", sections=[section], task_completion_checker=Asks(judge))
    running = asyncio.ensure_future(
        arun(template, model=ScriptedModel(["done"]), limits=Limits(deadline="10s"), store=None, clock=judge.clock)
    )
    await judge.asked.acquire()
    judge.clock.advance(10)
    result = await running
    judge.let_go.set()
    assert result.completion == "unverified"
    assert booked(result) == (20 + 16_384, 20 + 16_384)


async def test_all_of_several_children_that_an_abort_cut_off_are_booked_in_the_result() -> None:
    begun: list[Session] = []
    child = Lingering(TestClock(), "child")
    section = PromptSubagentToolsSection(PromptRegistry(DIG), model=child, hydrate=begun.append)
    model = ScriptedModel([dispatching(dispatched(), dispatched(), dispatched()), "done"])
    running = asyncio.ensure_future(arun(parent_template(section), model=model, store=None, clock=child.clock))
    for _ in range(3):
        await child.asked.acquire()
    parent = begun[0].parent
    assert parent is not None
    children = children_of(parent)
    assert children is not None
    children.family.scope.gate.abort("enough")
    result = await running
    child.let_go.set()
    assert result.stop is not None
    assert result.stop.reason == "aborted"
    assert booked(result) == (20 + 3 * 16_384, 20 + 3 * 16_384)


# --- what is left behind ----------------------------------------------------------------------------------------------


class Overrunning(ScriptedModel):
    """Lets the time of its caller pass, and then does not answer."""

    def __init__(self, clock: TestClock) -> None:
        """Turn this clock."""
        super().__init__([], free=False)
        self.clock = clock

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Wait for nothing."""
        self.clock.advance(2)
        await asyncio.Event().wait()
        raise AssertionError("nobody answers")


@pytest.mark.parametrize("asks", ["tool", "provider"])
async def test_what_a_child_that_is_left_behind_spends_is_in_the_result(asks: str) -> None:
    clock = TestClock()
    adapter = Adapter(Overrunning(clock), price=ModelPrice.per_million(1, 15), clock=clock)

    def judged(session: Session) -> None:
        context = NestedExecutionContext(session, budget=Budget(max_total_tokens=8_000))
        NestedEvaluator(adapter, prompt=question(), context=context).evaluate()

    @tool(timeout="1s")
    def work(*, context: ToolContext) -> str:
        """Work."""
        if asks == "tool":
            judged(context.session)
        return "ok"

    class Judging:
        name = "judging"

        def should_run(self, *, context: FeedbackContext) -> bool:
            return asks == "provider"

        def provide(self, *, context: FeedbackContext) -> None:
            judged(context.session)

    template = replace(
        agent(work),
        feedback_providers=[FeedbackProviderConfig(Judging(), ObserverTrigger(on_every_call=True), time_limit="1s")],
    )
    result = await play(template, [Call("work"), ANSWER], Limits(max_cost_usd=1), clock=clock)
    [ended] = events(result, ChildEnded)
    assert ended.usage.tokens.total == 8_000
    assert result.usage.tokens.total == 8_240
    assert result.usage.presumed == ended.usage.presumed
    assert (result.usage.presumed.calls, result.cost) == (1, ended.usage.cost)
    assert isinstance([envelope.event for envelope in result.session.log][-1], RunEnded)
