"""Runs over many items: one result each, in order, under one ceiling; a failed item does not stop the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit import JUDGE, Slow
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.run import arun_many, run_many
from watchkeeper.children.child import ChildTask, children_of
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, ProviderError, RunStoppedError
from watchkeeper.core.model import ModelReply, ModelRequest, ModelSettings
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.core.workers import BreakOut
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ItemEnded, ManyEnded, ManyStarted, RunStarted
from watchkeeper.runtime.result import ManyResult
from watchkeeper.runtime.result import transcript_of as real_transcript_of
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import Tool, tool

PRICES = {"scripted": ModelPrice.per_million(1, 10)}


@dataclass(frozen=True)
class Item:
    """What one run is about."""

    name: str


@dataclass(frozen=True)
class Done:
    """What it answers."""

    name: str


@tool
async def step(*, context: ToolContext) -> str:
    """Take a step and leave a trace."""
    context.session[Item].append(Item("trace"))
    return "ok"


TEMPLATE = PromptTemplate[Done](
    ns="tests",
    key="many",
    params=(Item,),
    sections=[MarkdownSection(title="Task", key="task", template="Do ${name}.", tools=(step,))],
)
ITEMS = [Item(f"item {number}") for number in range(8)]


def name_in(request: ModelRequest) -> str:
    opening: Any = request.transcript[0]
    return str(opening.text).split("Do ")[1].rstrip(".")


def obedient(request: ModelRequest) -> Any:
    """Take two steps, then answer with the item's name; when landing, answer at once."""
    steps = sum(1 for message in request.transcript if message.role == "tool")
    if steps < 2 and request.tool_choice != "none":
        return Call("step")
    return Say(Done(name_in(request)))


def name_of(item: Item) -> str:
    return item.name


def over(items: list[Item] = ITEMS, script: Callable[[ModelRequest], Any] = obedient, **options: Any) -> Any:
    given: dict[str, Any] = {"store": None, "clock": TestClock(), "label": name_of, **options}
    model = given.pop("model", None) or ScriptedModel(script)
    return run_many(TEMPLATE, items, model=model, **given)


@pytest.mark.spec("FR-049")
def test_every_item_has_its_result_in_order() -> None:
    many = over(concurrency=3)
    assert [result.output for result in many.results] == [Done(item.name) for item in ITEMS]
    assert [result.item for result in many.results] == [item.name for item in ITEMS]
    assert many.stop is None
    assert many.not_done == ()
    assert many.usage.tool_calls == 16
    assert many.sentence().startswith("8 of 8 items done: 16 tool calls")
    assert many.cost == 0


@pytest.mark.spec("FR-049")
def test_items_run_in_sessions_of_their_own() -> None:
    many = over()
    sessions = {result.session.session_id for result in many.results}
    assert len(sessions) == 8
    assert all(len(result.session[Item].all()) == 2 for result in many.results)
    assert all(result.usage.tool_calls == 2 for result in many.results)


@pytest.mark.spec("FR-049")
async def test_no_more_items_run_at_once_than_asked_for() -> None:
    running: list[int] = [0, 0]

    class Counting(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            running[0] += 1
            running[1] = max(running)
            await asyncio.sleep(0)
            running[0] -= 1
            return await super().turn(request)

    await arun_many(TEMPLATE, ITEMS, model=Counting(obedient), store=None, concurrency=3)
    assert running[1] == 3


@pytest.mark.spec("FR-050")
def test_an_item_that_fails_never_loses_the_others() -> None:
    def script(request: ModelRequest) -> Any:
        if name_in(request) == "item 3":
            return ProviderError("bad item", fault="bad_request", status=400)
        return obedient(request)

    many = over(script=script)
    assert [result.ok for result in many.results] == [True, True, True, False, True, True, True, True]
    failed = many.results[3]
    assert failed.stop is not None
    assert failed.stop.reason == "provider_error"
    assert many.stop is None
    assert "7 of 8 items done" in many.sentence()


def test_a_bug_in_one_item_is_its_result_and_nobody_elses() -> None:
    def script(request: ModelRequest) -> Any:
        if name_in(request) == "item 0":
            raise KeyError("bug")
        return obedient(request)

    many = over(script=script)
    assert many.results[0].stop is not None
    assert "KeyError: 'bug'" in many.results[0].stop.message
    assert isinstance(many.results[0].error, KeyError)
    assert len(many.done) == 7


def test_an_item_that_cannot_be_bound_is_marked_and_the_rest_runs() -> None:
    many = over([*ITEMS[:2], "no dataclass", *ITEMS[2:]], label=str)  # type: ignore[list-item]
    assert [result.ok for result in many.results].count(False) == 1
    assert "bind takes dataclass instances" in many.results[2].sentence()


@pytest.mark.spec("FR-049")
@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_one_ceiling_holds_over_all_items_together(concurrency: int) -> None:
    settings = ModelSettings(max_output_tokens=100)
    model = ScriptedModel(obedient, free=False)
    limits = Limits(max_cost_usd="0.02")
    items = [Item(f"item {number}") for number in range(60)]
    many = over(items, model=model, limits=limits, prices=PRICES, settings=settings, concurrency=concurrency)
    assert many.stop is not None
    assert many.stop.reason == "budget_exceeded"
    assert many.cost is not None
    assert many.cost <= Decimal("0.02")
    assert many.usage.cost_nanos == sum(result.usage.cost_nanos for result in many.results)
    assert len(many.results) == 60
    assert 0 < len(many.done) < 60
    assert many.results[-1].stop is not None
    assert many.results[-1].sentence().startswith("Not started: ")


def test_a_small_budget_still_buys_the_first_item() -> None:
    def answer(request: ModelRequest) -> Any:
        return Say(Done(name_in(request)))

    result = over(ITEMS[:2], answer, limits=Limits(max_total_tokens=2_500), concurrency=1)
    assert result.results[0].ok


@pytest.mark.spec("FR-050")
def test_items_under_way_land_when_the_whole_reaches_its_ceiling() -> None:
    many = over(limits=Limits(max_steps=13), concurrency=2)
    assert many.stop is not None
    assert many.usage.steps <= 13
    landed = [result for result in many.results if result.stop and result.turns > 0]
    assert landed
    assert all(isinstance(result.partial, Done) for result in landed)


@pytest.mark.spec("FR-050")
def test_the_deadline_of_the_whole_marks_the_rest_as_not_done() -> None:
    clock = TestClock()

    class Slow(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            await clock.sleep(600)
            return await super().turn(request)

    many = over(model=Slow(obedient), clock=clock, limits=Limits(deadline="1h"), concurrency=1)
    assert len(many.done) == 1
    assert clock.monotonic() <= 3600
    assert many.stop is not None
    assert many.stop.reason == "timeout"
    assert all(result.sentence().startswith("Not started") for result in many.results[2:])


def test_items_that_were_not_started_are_told_what_ended_the_whole() -> None:
    """Not that an item's own time was over: it has what the whole had left when it began."""
    clock = TestClock()

    class Slow(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            await clock.sleep(1000)
            return await super().turn(request)

    script = failing(set())
    many = over(model=Slow(script), clock=clock, limits=Limits(deadline="40m"), concurrency=1)
    assert [result.ok for result in many.results[:4]] == [True, True, False, False]
    assert many.stop.message.startswith("The whole run reached its deadline of 40m; ")
    assert many.results[2].stop.message.startswith("The whole run reached its deadline of 40m; ")
    assert many.results[-1].stop.message == f"Not started: {many.stop.message}"


def test_many_inside_a_context_name_its_deadline_and_not_what_was_left_of_it() -> None:
    clock = TestClock()

    class Slow(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            await clock.sleep(500)
            return await super().turn(request)

    with ExecutionContext(Limits(deadline="40m"), clock=clock):
        clock.advance(1200)
        many = over(model=Slow(failing(set())), clock=clock, concurrency=1)
    assert many.stop.message.startswith("The whole run reached its deadline of 40m")


def test_an_item_that_fills_its_context_ends_alone() -> None:
    """Its stop names the context as the limit; that is none over all items."""

    def script(request: ModelRequest) -> Any:
        large = name_in(request) == "item 1" and request.tool_choice != "none"
        return Calls((Call("step"),), usage=TokenUsage(7_900, 90)) if large else obedient(request)

    many = over(model=ScriptedModel(script, context_window=8_000), concurrency=1)
    assert [result.stop.reason for result in many.not_done] == ["context_full"]
    assert many.stop is None


def failing(names: set[str], fault: Any = "server") -> Callable[[ModelRequest], Any]:
    """Answer at once, but fail for the items of these names."""

    def script(request: ModelRequest) -> Any:
        name = name_in(request)
        return ProviderError(f"no {name}", fault=fault) if name in names else Say(Done(name))

    return script


MANY = [Item(f"item {number}") for number in range(200)]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(("first", "apart"), [(0, 20), (50, 1)], ids=["scattered", "in a row"])
def test_ten_bad_items_lose_no_good_one(first: int, apart: int, concurrency: int) -> None:
    """Every item has the default retries to itself; if the breaker opens, the good items wait."""
    bad = {f"item {first + apart * number}" for number in range(10)}
    many = over(MANY, failing(bad), concurrency=concurrency)
    assert (len(many.done), many.stop) == (190, None)
    assert {result.item for result in many.not_done} == bad
    assert {result.stop.reason for result in many.not_done} == {"provider_error"}
    assert many.usage.retries == 10 * 4


@pytest.mark.parametrize("retries", [5, 20], ids=["few", "as many as the default"])
def test_retries_that_are_asked_for_are_one_ceiling_over_all_items(retries: int) -> None:
    many = over(MANY, failing({item.name for item in MANY[:10]}), limits=Limits(max_retries=retries), concurrency=1)
    assert (many.stop.reason, many.stop.limit) == ("retry_budget_exceeded", "max_retries")
    assert many.usage.retries == retries
    assert len(many.done) == 0


def test_the_default_retries_hold_for_each_item_and_so_do_those_of_each() -> None:
    assert over(ITEMS[:1]).results[0].limits.max_retries == 20
    assert over(ITEMS[:1]).limits.max_retries is None
    many = over(ITEMS, failing({"item 0", "item 1"}), each=Limits(max_retries=1))
    assert many.usage.retries == 2
    assert (len(many.done), many.stop) == (6, None)


def test_a_provider_that_is_down_for_minutes_loses_no_item() -> None:
    clock = TestClock()

    def script(request: ModelRequest) -> Any:
        if 10 < clock.monotonic() < 130:
            return ProviderError("down", fault="overloaded")
        clock.advance(1)
        return Say(Done(name_in(request)))

    many = over(MANY, script, clock=clock, concurrency=8)
    assert len(many.done) >= 190
    assert many.stop is None


def test_a_provider_that_is_gone_ends_the_work_long_before_the_deadline() -> None:
    clock = TestClock()
    many = over(MANY, failing({item.name for item in MANY}, "overloaded"), clock=clock, limits=Limits(deadline="9h"))
    assert many.stop.reason == "provider_error"
    assert many.stop.message.startswith("No answer for 1")
    assert "Not started: No answer for 1" in many.results[-1].sentence()
    assert 600 <= clock.monotonic() < 1200


def test_an_item_without_an_answer_ends_no_others_while_one_that_takes_long_gets_answers() -> None:
    clock, lost = TestClock(), asyncio.Event()

    class Uneven(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            opening: Any = request.transcript[0]
            await asyncio.sleep(0)
            if "item 1." in opening.text:
                await lost.wait()
            elif "item 0." in opening.text:
                clock.advance(120)
                if clock.monotonic() > 700:
                    lost.set()
            return await super().turn(request)

    def script(request: ModelRequest) -> Any:
        opening: Any = request.transcript[0]
        if "item 1." in opening.text:
            return ProviderError("the connection was lost", fault="auth")
        takes_long = "item 0." in opening.text and len(request.transcript) < 15
        return Call("step") if takes_long else "done"

    ends = run_many(template(step), NUMBERED, model=Uneven(script), store=None, clock=clock, concurrency=2)
    assert [result.ok for result in ends.results] == [True, False, True, True, True, True]
    assert ends.stop is None


def test_an_error_that_will_not_pass_opens_no_breaker() -> None:
    clock = TestClock()
    many = over(MANY, failing({item.name for item in MANY}, "auth"), clock=clock)
    assert {result.stop.reason for result in many.results} == {"provider_error"}
    assert clock.monotonic() == 0


def test_a_mistake_in_the_code_of_a_model_opens_no_breaker() -> None:
    def mistaken(request: ModelRequest) -> Any:
        raise AttributeError("'ModelRequest' object has no attribute 'messages'")

    clock = TestClock()
    many = over(MANY[:50], mistaken, clock=clock)
    assert {result.stop.reason for result in many.results} == {"error"}
    assert clock.monotonic() == 0


@pytest.mark.parametrize(
    "each",
    [
        Limits(account="a", account_limit="$1/day"),
        Limits(deadline=TestClock().now() - timedelta(days=1)),
    ],
)
def test_limits_for_each_item_that_hold_for_none_are_refused_before_the_first(each: Limits) -> None:
    model = ScriptedModel(obedient)
    with pytest.raises(ConfigurationError, match=r"the whole run|is over already"):
        over(model=model, each=each)
    assert not model.requests


def test_limits_for_each_item_end_that_item_alone() -> None:
    many = over(each=Limits(max_tool_calls=1, landing=None, deadline=None))
    assert all(result.stop and result.stop.reason == "tool_call_limit_exceeded" for result in many.results)
    assert many.stop is None
    assert len({result.run_id for result in many.results}) == 8


@pytest.mark.parametrize(
    ("whole", "limit"),
    [(Limits(max_total_tokens=1_500), "max_total_tokens"), (Limits(max_steps=7), "max_steps")],
    ids=["tokens", "steps"],
)
def test_a_ceiling_over_all_ends_the_whole_also_where_each_item_has_one(whole: Limits, limit: str) -> None:
    result = over(limits=whole, each=Limits(max_steps=50), concurrency=1)
    assert result.stop is not None
    assert result.stop.limit == limit
    assert not result.results[-1].ok
    assert result.results[-1].stop.message.startswith("Not started")


def test_the_deadline_of_the_whole_ends_it_also_where_each_item_has_one() -> None:
    clock = TestClock()

    def slow(request: ModelRequest) -> Any:
        clock.advance(100)
        return obedient(request)

    result = over(script=slow, limits=Limits(deadline="5m"), each=Limits(deadline="1h"), concurrency=1, clock=clock)
    assert result.stop is not None
    assert result.stop.reason == "timeout"


def test_a_label_is_one_short_line_whatever_is_given() -> None:
    def label(item: Item) -> Any:
        return f"{item.name}\n" * 100 if item is ITEMS[0] else 5

    result = over(ITEMS[:2], label=label)
    first, second = (item.item for item in result.results)
    assert first.startswith("item 0 item 0")
    assert (len(first), first[-1]) == (200, "…")
    assert second == "5"


def test_the_stop_of_an_item_is_on_its_own_log() -> None:
    many = over(ITEMS[:1], each=Limits(max_tool_calls=1, landing=None, deadline=None))
    (stopped,) = many.results[0].session[SafetyEvent].all()
    assert stopped.event_type == "tool_call_limit_exceeded"


def test_turns_are_counted_for_each_item() -> None:
    many = over(limits=Limits(max_turns=3))
    assert all(result.turns <= 3 for result in many.results)


def test_several_values_may_be_bound_for_one_item() -> None:
    @dataclass(frozen=True)
    class Colour:
        colour: str

    section = MarkdownSection(title="T", key="t", template="Do ${name} in ${colour}.")
    template = PromptTemplate[Done](ns="tests", key="pair", params=(Item, Colour), sections=[section])
    model = ScriptedModel(lambda request: Say(Done(name_in(request))))
    many = run_many(template, [(Item("a"), Colour("red"))], model=model, store=None, clock=TestClock())
    assert many.results[0].output == Done("a in red")


def test_a_prompt_with_values_bound_for_all_is_taken_too() -> None:
    model = ScriptedModel([Say(Done("x"))])
    many = run_many(Prompt(TEMPLATE), [Item("x")], model=model, store=None, clock=TestClock())
    assert many.done[0].output == Done("x")


def test_no_items_are_no_work() -> None:
    many = over([])
    assert many.results == ()
    assert many.stop is None


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_concurrency_that_makes_no_sense_is_refused(concurrency: int) -> None:
    with pytest.raises(ConfigurationError, match="concurrency"):
        over(concurrency=concurrency)


def test_a_stopped_whole_raises_only_if_asked_and_carries_all_results() -> None:
    with pytest.raises(RunStoppedError) as caught:
        over(limits=Limits(max_steps=5), raise_on_stop=True)
    assert len(caught.value.result.results) == 8


def test_events_of_all_items_reach_the_listener_and_the_store(tmp_path: Path) -> None:
    heard: list[Any] = []
    store = RunStore(tmp_path / "runs.sqlite3")
    many = over(on_event=heard.append, store=store)
    kinds: list[type] = [type(event) for event in heard]
    assert [kinds.count(kind) for kind in (ManyStarted, RunStarted, ItemEnded, ManyEnded)] == [1, 8, 8, 1]
    (stored,) = store.runs()
    assert (stored.run_id, stored.items, stored.items_done) == (str(many.run_id), 8, 8)
    children = store.children(stored.run_id)
    assert {child.run_id for child in children} == {str(result.run_id) for result in many.results}
    store.close()


class Judge:
    """A checker that asks a model, and notes what was kept back for its word."""

    asks_model = True

    def __init__(self) -> None:
        """Note nothing yet."""
        self.kept: list[Decimal] = []

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Look at the run's gate."""
        children = children_of(context.session)
        assert children is not None
        assert children.family.verdict_gate is not None
        self.kept.append(Decimal(str(children.family.verdict_gate.limits.max_cost_usd)))
        return TaskCompletionResult.ok()


@pytest.mark.parametrize(("concurrency", "most"), [(1, "0.1"), (4, "0.025")])
def test_items_side_by_side_keep_no_more_for_their_verdicts_than_one_would(concurrency: int, most: str) -> None:
    judge = Judge()
    judged = replace(TEMPLATE, task_completion_checker=judge)
    result = run_many(
        judged,
        ITEMS[:4],
        model=ScriptedModel([Say(Done("x"))] * 4),
        limits=Limits(max_cost_usd=1),
        concurrency=concurrency,
        prices=PRICES,
        store=None,
    )
    assert len(result.done) == 4
    assert len(judge.kept) == 4
    assert all(Decimal(0) < kept <= Decimal(most) for kept in judge.kept)


def fails_for(name: str) -> Callable[[ModelRequest], Any]:
    """Return a script that cannot do one of the items."""

    def answer(request: ModelRequest) -> Any:
        found = name_in(request)
        return ProviderError("it is down", fault="bad_request") if found == name else Say(Done(found))

    return answer


@pytest.mark.spec("FR-141")
def test_the_result_of_many_is_its_results_in_order() -> None:
    many = over(ITEMS[:3])
    assert (len(many), list(many), bool(many), many.ok) == (3, list(many.results), True, True)
    assert many.unwrap() == (Done("item 0"), Done("item 1"), Done("item 2"))


def test_a_result_over_no_items_is_a_result_all_the_same() -> None:
    many = over([])
    assert (len(many), bool(many), many.ok, many.unwrap()) == (0, True, True, ())


@pytest.mark.spec("FR-141")
def test_many_are_unwrapped_whole_or_not_at_all() -> None:
    many = over(ITEMS[:3], fails_for("item 1"))
    assert (many.ok, many.stop) == (False, None)
    with pytest.raises(RunStoppedError, match=r"2 of 3 items done.*'item 1'") as caught:
        many.unwrap()
    assert caught.value.result is many
    assert caught.value.stop == many.results[1].stop


def test_what_ended_the_whole_is_what_unwrapping_it_says() -> None:
    many = over(ITEMS[:3], limits=Limits(max_steps=4), concurrency=1)
    with pytest.raises(RunStoppedError) as caught:
        many.unwrap()
    assert caught.value.stop == many.stop
    assert many.stop.limit == "max_steps"


# --- what one item raises, or does to its own task, ends that item; the job -----------------------------------------


class Panic(BaseException):
    """Stands for what a Rust extension raises."""


@dataclass(frozen=True)
class Numbered:
    """What one run is about."""

    number: int


NUMBERED = [Numbered(number) for number in range(6)]
BAD = 2


def template(*tools: Tool) -> PromptTemplate[str]:
    """Return an agent with these tools."""
    section = MarkdownSection("Task", "task", "Do item ${number}.", tools=tools)
    return PromptTemplate[str](ns="tests", key="many", params=(Numbered,), sections=[section])


def script(request: ModelRequest) -> Any:
    """Call the tool once where the item is the bad one."""
    opening: Any = request.transcript[0]
    bad = f"item {BAD}." in str(opening.text) and len(request.transcript) == 1
    return Call("look") if bad else "done"


def broken(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> None:
    """Let the loop itself fail for the bad item."""
    count = iter(range(len(NUMBERED)))

    def transcript_of(log: Any) -> Any:
        if next(count) == BAD:
            fail()
        return real_transcript_of(log)

    monkeypatch.setattr("watchkeeper.loop.run.transcript_of", transcript_of)


def many(model: Any = None, *tools: Tool, **options: Any) -> ManyResult[str]:
    """Run all items, one after the other."""
    given: dict[str, Any] = {"store": None, "concurrency": 1, **options}
    return run_many(template(*tools), NUMBERED, model=model or ScriptedModel(script), **given)


@pytest.mark.spec("FR-151")
@pytest.mark.parametrize(
    "error",
    [Panic("rust"), BaseExceptionGroup("rust", [Panic()]), asyncio.CancelledError("rust")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_leaves_one_item_is_its_failure(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail() -> None:
        raise error

    broken(monkeypatch, fail)
    ends = many()
    assert [result.ok for result in ends.results] == [number != BAD for number in range(6)]
    stop = ends.results[BAD].stop
    assert stop is not None
    assert (stop.reason, stop.message) == ("error", f"The item failed: {type(error).__name__}: {error}")
    assert ends.results[BAD].error is error
    assert ends.stop is None


async def test_what_passes_everybody_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def fail() -> None:
        seen.append(True)
        raise BreakOut("block")

    broken(monkeypatch, fail)
    with pytest.raises(BaseExceptionGroup) as raised:
        await arun_many(template(), NUMBERED, model=ScriptedModel(script), store=None, concurrency=1)
    assert raised.group_contains(BreakOut)
    assert seen == [True]


def test_a_tool_that_cancels_the_task_it_runs_in_costs_its_own_item_only() -> None:
    @tool
    async def look() -> str:
        """Look."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "unseen"

    ends = many(None, look)
    assert [result.ok for result in ends.results] == [number != BAD for number in range(6)]


async def test_cancelling_the_job_is_raised() -> None:
    begun = asyncio.Event()

    class Hanging(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            begun.set()
            await asyncio.Event().wait()
            return await super().turn(request)

    task = asyncio.ensure_future(arun_many(template(), NUMBERED, model=Hanging(script), store=None))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_job_that_is_broken_off_has_its_end_on_record(tmp_path: Path) -> None:
    begun = asyncio.Event()

    class Hanging(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            begun.set()
            await asyncio.Event().wait()
            return await super().turn(request)

    with RunStore(tmp_path / "runs.db") as store:
        task = asyncio.ensure_future(arun_many(template(), NUMBERED, model=Hanging(script), store=store))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        whole = next(run for run in store.runs() if run.items is not None)
    assert whole.ended_at is not None
    assert (whole.items_done, whole.items) == (0, len(NUMBERED))
    assert whole.stop is not None
    assert whole.stop["reason"] == "aborted"


@pytest.mark.parametrize(
    ("items", "options"),
    [
        (NUMBERED * 20, {"limits": Limits(max_steps=1)}),
        (NUMBERED * 20, {"each": Limits(max_total_tokens=1)}),
        (["no item"] * 120, {}),
    ],
    ids=["not started", "refused", "not bound"],
)
async def test_other_work_gets_its_turn_between_items_that_wait_for_nothing(items: list[Any], options: Any) -> None:
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(other_work())
    ends = await arun_many(template(), items, model=ScriptedModel(script), store=None, concurrency=1, **options)
    other.cancel()
    assert len(ends.not_done) >= 119
    assert turns >= len(items)


def test_tools_and_their_children_that_time_out_together_lose_no_item() -> None:
    @tool(timeout=timedelta(milliseconds=40))
    async def look(*, context: ToolContext) -> str:
        """Ask a judge."""
        children = children_of(context.session)
        assert children is not None
        limits = Limits(deadline=timedelta(milliseconds=43), landing=None)
        child = await children.start(ChildTask(Prompt(JUDGE), "evaluation", limits))
        return child.result.sentence()

    def asks(request: ModelRequest) -> Any:
        return Call("look") if len(request.transcript) == 1 else "done"

    items = [Numbered(number) for number in range(50)]
    ends = run_many(template(look), items, model=Slow(asks), store=None, concurrency=25)
    assert Counter(result.sentence().split(":")[0] for result in ends.results) == {"Done": 50}
