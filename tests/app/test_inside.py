"""What is started inside a run, a block or a context is bound by what is around it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit import ANSWER, Call, Calls, Say, ScriptedModel, events, inside, question
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.app.agent import Agent
from watchkeeper.blocks.contained import contained
from watchkeeper.containment import enclosing
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import BudgetExceededError, ConfigurationError
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.completion import TaskCompletionContext
from watchkeeper.prompt.observer import ObserverConfig, ObserverTrigger
from watchkeeper.runtime.events import ChildEnded, ChildStarted, ManyStarted, RunEnded, RunStarted
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.session.session import Session
from watchkeeper.shield.decision import Decision
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.tool import Tool, tool

pytestmark = pytest.mark.spec("FR-180")

PRICES = {"scripted": ModelPrice.per_million(10, 10)}


@dataclass(frozen=True)
class Seen:
    number: int


def child(*script: Any, **more: Any) -> Agent[str]:
    """Return an agent that answers once, or as its script says; a turn takes 120 tokens."""
    return Agent(ScriptedModel(script or (lambda _: "inner")), "Be brief.", str, name="inner", **more)


def parent(*tools: Tool, calls: int = 1, limits: Limits = Limits()) -> Agent[str]:
    """Return an agent that calls its first tool so often, and then says that it is done."""
    name = tools[0].name
    script: list[Any] = [*(Call(name, {}) for _ in range(calls)), "done"]
    return Agent(ScriptedModel(script), "Use the tool.", str, tools=tools, limits=limits, name="outer")


def started_by(act: Callable[[], Any]) -> tuple[Tool, list[Any]]:
    """Return an async tool that does something, and what came of it."""
    seen: list[Any] = []

    @tool
    async def start() -> str:
        """Start something."""
        seen.append(await act())
        return "started"

    return start, seen


def started_on_a_thread(act: Callable[[], Any]) -> tuple[Tool, list[Any]]:
    seen: list[Any] = []

    @tool
    def start() -> str:
        """Start something."""
        seen.append(act())
        return "started"

    return start, seen


# --- a run inside a run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["async", "sync"])
def test_what_a_run_inside_a_tool_uses_counts_in_the_run_around_it(way: str) -> None:
    inner = child()
    start, seen = (
        started_by(lambda: inner.arun("x", store=None))
        if way == "async"
        else started_on_a_thread(lambda: inner.run("x", store=None))
    )
    result = parent(start).run("go", store=None)
    assert seen[0].output == "inner"
    assert result.usage.tokens.total == 3 * 120
    assert result.usage.steps == 5  # two turns, the tool, the run in it and its turn


def test_a_ceiling_of_the_run_around_it_bounds_it() -> None:
    """The report that began this: 60,400 tokens were spent under a ceiling of 20,000, and 400 were counted."""
    asked = 0

    def again(request: ModelRequest) -> Say | Calls:
        nonlocal asked
        asked += 1
        return Calls((Call("look", {}),), usage=TokenUsage(5_000, 100)) if request.tools else Say("so far")

    @tool
    def look() -> str:
        """Look."""
        return "more"

    inner = Agent(ScriptedModel(again), "Look.", str, tools=(look,), name="inner")
    start, seen = started_by(lambda: inner.arun("x", store=None))
    result = parent(start, limits=Limits(max_total_tokens=20_000)).run("go", store=None)
    assert seen[0].stop is not None
    assert seen[0].stop.reason == "token_limit_exceeded"
    assert result.usage.tokens.total <= 20_000
    assert asked <= 5


def test_the_log_of_the_run_around_it_leads_to_it(tmp_path: Path) -> None:
    start, seen = started_by(lambda: child().arun("x"))
    result = parent(start).run("go", store=tmp_path / "runs.sqlite3")
    inner = seen[0]
    began, ended = events(result, ChildStarted)[0], events(result, ChildEnded)[0]
    own, above = events(inner, RunStarted)[0], events(result, RunStarted)[0]
    assert (began.kind, began.prompt_name, began.model, began.depth) == ("run", "agents/inner", "scripted:scripted", 1)
    assert began.call_id == events(result, ToolInvoked)[0].call_id
    assert began.run_context == own.run_context
    assert (began.parent_run_id, own.parent_run_id, ended.run_id) == (result.run_id, result.run_id, inner.run_id)
    assert (ended.usage, ended.said) == (inner.usage, inner.sentence())
    assert own.run_context.trace_id == above.run_context.trace_id
    assert own.run_context.parent_span_id == above.run_context.span_id
    assert own.run_context.request_id == above.run_context.request_id
    assert not own.apart
    with RunStore(tmp_path / "runs.sqlite3") as store:
        assert [row.run_id for row in store.runs(10)] == [str(result.run_id)]
        assert [row.run_id for row in store.children(str(result.run_id))] == [str(inner.run_id)]


async def test_a_run_over_many_items_is_one_child_with_its_items_below() -> None:
    start, seen = started_by(lambda: child().arun_many(["x", "y", "z"], store=None))
    result = await parent(start).arun("go", store=None)
    many: ManyResult[str] = seen[0]
    assert [each.output for each in many] == ["inner"] * 3
    assert [each.run_context.run_id for each in events(result, ChildStarted)] == [many.run_id]
    assert events(result, ChildEnded)[0].said == many.sentence()
    whole = many.results[0].session.parent
    assert whole is not None
    began = [each.event for each in whole.log if isinstance(each.event, ManyStarted)]
    assert [each.parent_run_id for each in began] == [result.run_id]
    assert events(many.results[0], RunStarted)[0].parent_run_id == many.run_id
    assert result.usage.tokens.total == 5 * 120


async def test_in_a_checker_it_is_bound_too() -> None:
    async def act(context: TaskCompletionContext) -> RunResult[str]:
        return await child().arun("x", store=None)

    result, checker = await inside(act, [ANSWER])
    assert checker.said[0].output == "inner"
    assert result.usage.tokens.total == 240
    assert len(events(result, ChildStarted)) == 1


async def test_one_that_stands_apart_is_bound_by_nothing_and_says_so() -> None:
    start, seen = started_by(lambda: child().arun("x", store=None, parent=None))
    result = await parent(start).arun("go", store=None)
    assert result.usage.tokens.total == 240
    assert events(result, ChildStarted) == []
    own = events(seen[0], RunStarted)[0]
    assert (own.apart, own.parent_run_id) == (True, None)
    assert own.run_context.trace_id != events(result, RunStarted)[0].run_context.trace_id


def test_outside_of_all_parent_none_says_nothing() -> None:
    result = child().run("x", store=None, parent=None)
    assert not events(result, RunStarted)[0].apart


async def test_a_deadline_around_it_ends_it_and_it_hands_over_what_it_has() -> None:
    clock = TestClock()

    def slow(request: ModelRequest) -> Say | Call:
        clock.advance(20)
        return Call("look", {}) if request.tools else Say("so far")

    @tool
    def look() -> str:
        """Look."""
        return "more"

    inner = Agent(ScriptedModel(slow), "Look.", str, tools=(look,), name="inner", limits=Limits(deadline="2h"))
    start, seen = started_by(lambda: inner.arun("x", store=None))
    outer = parent(start, limits=Limits(deadline="2m"))
    result = await outer.arun("go", store=None, clock=clock)
    assert seen == [] or seen[0].stop.reason == "timeout"
    ended = events(result, ChildEnded)[0]
    assert ended.stop is not None
    assert result.stop is not None
    assert result.stop.reason == "timeout"


async def test_an_abort_around_it_ends_it() -> None:
    waiting = asyncio.Event()

    class Waits(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            waiting.set()
            await asyncio.sleep(60)
            raise AssertionError("nobody waits so long")

    inner = Agent(Waits([]), "Wait.", str, name="inner")
    seen: list[RunResult[str]] = []
    with ExecutionContext(UNLIMITED) as around:

        async def run() -> None:
            seen.append(await inner.arun("x", store=None))

        task = asyncio.ensure_future(run())
        await waiting.wait()
        around.abort("enough")
        await task
    assert seen[0].stop is not None
    assert seen[0].stop.reason == "aborted"
    assert events(seen[0], RunEnded)[0].stop is not None


async def test_a_tool_that_overruns_its_time_takes_a_run_inside_it_along() -> None:
    clock, ended = TestClock(), threading.Event()

    class Waits(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            clock.advance(1)
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            raise AssertionError("nobody waits so long")

    inner = Agent(Waits([]), "Wait.", str, name="inner")

    @tool(timeout=1)
    def start() -> str:
        """Start a run on a thread."""
        return str(inner.run("x", store=None).stop)

    result = await parent(start).arun("go", store=None, clock=clock)
    assert result.output == "done"
    assert clock.monotonic() >= 1  # it was asked
    assert await asyncio.to_thread(ended.wait, 30)


def test_limits_that_it_does_not_set_are_those_around_it() -> None:
    start, seen = started_by(lambda: child().arun("x", store=None))
    wide = Limits(deadline="5h", max_total_tokens=9_000_000)
    parent(start, limits=wide).run("go", store=None)
    assert (seen[0].limits.deadline, seen[0].limits.max_total_tokens) == (None, None)
    start, seen = started_by(lambda: child(limits=Limits(max_total_tokens=5_000)).arun("x", store=None))
    parent(start, limits=wide).run("go", store=None)
    assert seen[0].limits.max_total_tokens == 5_000


@pytest.mark.parametrize("given", [{"account": "team-b", "account_limit": "$1/day"}, {}])
async def test_an_account_or_a_ledger_of_its_own_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    more: dict[str, Any] = {} if given else {"ledger": tmp_path / "own.sqlite3"}
    inner = child(limits=Limits(**given))
    with ExecutionContext(UNLIMITED), pytest.raises(ConfigurationError, match="parent=None"):
        await inner.arun("x", store=None, **more)


async def test_the_account_of_the_run_around_it_may_be_named_again(tmp_path: Path) -> None:
    team = Limits(account="team-a", account_limit="$1/day")
    start, seen = started_by(lambda: child(limits=team).arun("x", store=None))
    with SqliteLedger(tmp_path / "ledger.sqlite3") as ledger:
        result = await parent(start, limits=team).arun("go", store=None, ledger=ledger, prices=PRICES)
    assert seen[0].output == "inner"
    assert result.usage.tokens.total == 360


async def test_a_clock_of_its_own_is_refused() -> None:
    with ExecutionContext(UNLIMITED), pytest.raises(ConfigurationError, match="leave clock= out"):
        await child().arun("x", store=None, clock=TestClock())


def test_hooks_of_the_run_around_it_are_asked_about_its_calls() -> None:
    asked: list[str] = []

    class Watch:
        def __init__(self, name: str) -> None:
            self.name = name

        def before_llm_call(self, ctx: Any) -> Decision | None:
            asked.append(self.name)
            return None

    inner = child(shield=ShieldPipeline(pre_dispatch=Watch("own")))
    start, _ = started_by(lambda: inner.arun("x", store=None))
    replace(parent(start), shield=ShieldPipeline(pre_dispatch=Watch("above"))).run("go", store=None)
    assert asked == ["above", "above", "own", "above"]


def test_twenty_runs_that_race_under_one_ceiling_never_pass_it() -> None:
    inner = child(limits=Limits(max_total_tokens=4_000, landing=None, min_output_tokens=1))
    results: list[RunResult[str]] = []

    @tool
    def start() -> str:
        """Start twenty runs."""
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=context.copy().run, args=(lambda: results.append(inner.run("x", store=None)),))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return "started"

    limits = Limits(max_steps=15, landing=None, verdict=None)
    result = parent(start, limits=limits).run("go", store=None)
    assert len(results) == 20
    done = [each for each in results if each.ok]
    assert result.usage.steps == 15
    assert result.usage.model_calls == 1 + len(done) + (1 if result.ok else 0)


# --- inside blocks and contexts ---------------------------------------------------------------------------------------


def test_a_run_inside_a_contained_block_counts_there() -> None:
    with contained(max_steps=1) as block:
        result = child().run("x", store=None)
        assert (result.usage.steps, block.get_snapshot().step_count) == (0, 1)
    assert result.stop is not None
    assert (result.stop.reason, result.stop.limit) == ("step_limit_exceeded", "max_steps")
    with contained(max_steps=2) as block:
        assert child().run("x", store=None).output == "inner"
        assert block.usage.tokens.total == 120


async def test_a_run_that_the_context_around_it_refuses_is_a_result_with_its_stop() -> None:
    with ExecutionContext(replace(UNLIMITED, max_steps=1, landing=None)) as around:
        around.wrap_tool_call(lambda: None)
        result = await child().arun("x", store=None)
        many = await child().arun_many(["x", "y"], store=None)
    assert result.stop is not None
    assert (result.stop.reason, result.stop.limit) == ("step_limit_exceeded", "max_steps")
    assert many.stop == result.stop
    assert [each.stop for each in many] == [result.stop, result.stop]


def test_a_context_inside_a_run_is_bound_by_it() -> None:
    def act() -> list[Decision]:
        with ExecutionContext(UNLIMITED) as own:
            return [own.wrap_tool_call(lambda: None) for _ in range(9)]

    start, seen = started_on_a_thread(act)
    result = parent(start, limits=Limits(max_tool_calls=4)).run("go", store=None)
    assert seen[0] == [Decision.ALLOW] * 3 + [Decision.HALT] * 6
    assert result.usage.tool_calls == 4


async def test_what_outlives_the_run_in_which_it_began_cannot_start_anything() -> None:
    later: list[asyncio.Task[Any]] = []
    over = asyncio.Event()

    async def after() -> Any:
        await over.wait()
        return await child().arun("x", store=None)

    @tool
    async def start() -> str:
        """Leave a task behind."""
        later.append(asyncio.ensure_future(after()))
        return "left"

    await parent(start).arun("go", store=None)
    over.set()
    with pytest.raises(ConfigurationError, match=r"'start', which is closed by now.*parent=None"):
        await later[0]


async def test_runs_one_after_the_other_are_not_inside_each_other() -> None:
    results = [await child().arun("x", store=None) for _ in range(2)]
    assert [events(each, RunStarted)[0].parent_run_id for each in results] == [None, None]


# --- what else asks a model, or ends a run ----------------------------------------------------------------------------


async def test_an_evaluation_inside_a_tool_is_bound_and_counted() -> None:
    adapter = Adapter(ScriptedModel(lambda _: "fine"))
    start, seen = started_by(lambda: adapter.evaluate_async(question()))
    result = await parent(start).arun("go", store=None)
    assert seen[0].output == "fine"
    assert result.usage.tokens.total == 3 * 120
    start, _ = started_by(lambda: adapter.evaluate_async(question()))
    stopped = await parent(start, limits=Limits(max_steps=2, landing=None)).arun("go", store=None)
    assert stopped.usage.model_calls == 1


@pytest.mark.parametrize("way", ["async", "sync"])
def test_the_log_and_the_store_lead_to_an_evaluation(way: str, tmp_path: Path) -> None:
    adapter = Adapter(ScriptedModel(lambda _: "fine"))
    start, seen = (
        started_by(lambda: adapter.evaluate_async(question()))
        if way == "async"
        else started_on_a_thread(lambda: adapter.evaluate(question()))
    )
    result = parent(start).run("go", store=tmp_path / "runs.sqlite3")
    began, ended = events(result, ChildStarted)[0], events(result, ChildEnded)[0]
    above = events(result, RunStarted)[0].run_context
    assert (began.kind, began.prompt_name, began.parent_run_id) == ("run", seen[0].prompt_name, result.run_id)
    assert began.call_id == events(result, ToolInvoked)[0].call_id
    assert (began.run_context.trace_id, began.run_context.parent_span_id) == (above.trace_id, above.span_id)
    assert (ended.run_id, ended.usage.tokens.total, ended.stop) == (began.run_context.run_id, 120, None)
    with RunStore(tmp_path / "runs.sqlite3") as store:
        assert [row.run_id for row in store.runs(10)] == [str(result.run_id)]
        assert [row.run_id for row in store.children(str(result.run_id))] == [str(ended.run_id)]


async def test_an_evaluation_that_is_stopped_is_recorded_with_its_stop() -> None:
    adapter = Adapter(ScriptedModel(lambda _: "fine"))
    start, _ = started_by(lambda: adapter.evaluate_async(question(), budget=Budget(max_total_tokens=1)))
    result = await parent(start).arun("go", store=None)
    assert len(events(result, ChildStarted)) == 1
    stop = events(result, ChildEnded)[0].stop
    assert stop is not None
    assert stop.limit == "max_total_tokens"


@pytest.mark.parametrize("way", ["evaluate", "run", "apart"])
async def test_what_is_started_in_the_session_of_the_run_has_a_log_of_its_own(way: str, tmp_path: Path) -> None:
    """The log of the run would tell of two runs otherwise, and say that it has ended, or go on with the wrong one."""
    adapter = Adapter(ScriptedModel(lambda _: "fine"))
    seen = list[int]()

    @tool
    async def start(*, context: ToolContext) -> str:
        """Start an evaluation."""
        context.session.dispatch(Seen(7))
        if way == "evaluate":
            return (await adapter.evaluate_async(question(), session=context.session)).text
        apart: Any = {"parent": None, "store": tmp_path / "apart"} if way == "apart" else {}
        inner = await child().arun("x", session=context.session, **apart)
        seen.extend(each.number for each in inner.session[Seen].all())
        return inner.text

    result = await parent(start).arun("go", store=tmp_path / "store")
    assert (len(events(result, RunStarted)), len(events(result, RunEnded))) == (1, 1)
    below = 0 if way == "apart" else 1
    assert (len(events(result, ChildStarted)), len(events(result, ChildEnded))) == (below, below)
    assert [each.number for each in result.session[Seen].all()] == [7]
    assert seen == ([] if way == "evaluate" else [7]), "it begins with the state of the run"
    with RunStore(tmp_path / "store") as store:
        assert len(store.children(str(result.run_id))) == below


async def test_an_evaluation_in_a_session_of_the_users_own_writes_there(tmp_path: Path) -> None:
    adapter, own = Adapter(ScriptedModel(lambda _: "fine")), Session()

    @tool
    async def start() -> str:
        """Start an evaluation."""
        return (await adapter.evaluate_async(question(), session=own)).text

    result = await parent(start).arun("go", store=tmp_path / "runs.sqlite3")
    assert sum(isinstance(each.event, RunStarted) for each in own.log) == 1
    with RunStore(tmp_path / "runs.sqlite3") as store:
        assert store.children(str(result.run_id)) == ()


async def test_one_with_a_shared_budget_is_counted_once_here_and_once_there() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=600))
    adapter = Adapter(ScriptedModel(lambda _: "fine"))
    start, seen = started_by(lambda: adapter.evaluate_async(question(), budget_tracker=tracker))
    result = await parent(start, calls=2).arun("go", store=None)
    assert [each.output for each in seen] == ["fine", "fine"]
    assert result.usage.tokens.total == 5 * 120
    assert tracker.usage.tokens.total == 240
    await adapter.evaluate_async(question(), budget_tracker=tracker)
    with pytest.raises(BudgetExceededError):
        await adapter.evaluate_async(question(), budget_tracker=tracker)


async def test_in_an_observer_it_is_bound_too() -> None:
    class Asks:
        name = "asks"

        async def observe(self, session: Any, *, context: Any) -> Assessment | None:
            await child().arun("x", store=None)
            return None

        def should_run(self, session: Any, *, context: Any) -> bool:
            return True

    start, _ = started_by(lambda: asyncio.sleep(0))
    watched = replace(parent(start), observers=(ObserverConfig(Asks(), trigger=ObserverTrigger(every_n_calls=1)),))
    result = await watched.arun("go", store=None)
    assert result.usage.tokens.total == 3 * 120
    assert len(events(result, ChildStarted)) == 1


def test_the_first_ctrl_c_lands_the_run_inside_too() -> None:
    @tool
    def interrupt() -> str:
        """Press Ctrl-C, and wait until it has arrived."""
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            if gates[0].work_stop is not None:
                return "pressed"
            SYSTEM_CLOCK.wait(threading.Event(), 0.01)
        raise AssertionError("it never arrived")

    gates: list[ExecutionContext] = []
    inner = Agent(
        ScriptedModel([Call("interrupt", {}), "so far"]),
        "Do it.",
        str,
        tools=(interrupt,),
        name="inner",
    )

    async def act() -> RunResult[str]:
        gates.append(enclosing.current())
        return await inner.arun("x", store=None)

    start, seen = started_by(act)
    result = parent(start, calls=3).run("go", store=None)
    assert seen[0].stop is not None
    assert (seen[0].stop.reason, seen[0].partial) == ("interrupted", "so far")
    assert result.stop is not None
    assert result.stop.reason == "interrupted"


@pytest.mark.parametrize("opened", [contained, lambda: ExecutionContext(Limits())], ids=["block", "context"])
def test_what_generators_hold_open_may_be_left_in_any_order(opened: Callable[[], Any]) -> None:
    def held() -> Iterator[Any]:
        with opened() as gate:
            yield gate

    with contained(max_steps=9) as around:
        first, second, third = held(), held(), held()
        for generator in (first, second, third):
            next(generator)
        for generator in (first, third, second):
            assert next(generator, None) is None
        assert enclosing.current() is around
    assert enclosing.current() is None
    assert enclosing.ENTERED.get() is None
