"""`contained(...)` as decorator and context manager: what holds inside, and what it raises at its end."""

# ruff: noqa: PT012, SIM117 -- a block that is ended is what is tested, and blocks nest as they are used

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI

import watchkeeper
from tests.containment.gates import gate_with, settle
from tests.kit import Call, ScriptedModel, collect_garbage, events, left_of
from watchkeeper.accounting.call_request import CallRequest, Estimate
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.agent import Agent
from watchkeeper.blocks import contained as contained_block
from watchkeeper.blocks.contained import Contained, contained
from watchkeeper.contained_sdk.calls import CallStopped, in_force
from watchkeeper.contained_sdk.http import contained_async_http_client
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import TestClock, Timer
from watchkeeper.core.errors import ConfigurationError, LimitsError, RunStoppedError
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import FREE, ModelPrice
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.runtime.result import RunResult
from watchkeeper.shield.decision import Decision, SafetyEvent
from watchkeeper.shield.egress import EgressAllowList
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import tool

MESSAGES: Any = [{"role": "user", "content": "Hello."}]


def ask(client: OpenAI) -> str | None:
    answer = client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES)
    return answer.choices[0].message.content


def ask_for_ever(client: OpenAI) -> None:
    while True:
        ask(client)


# --- the decorator ----------------------------------------------------------------------------------------------------


def test_it_is_at_the_front_door() -> None:
    assert watchkeeper.contained is contained


def test_a_function_keeps_its_name_and_its_result(client: OpenAI) -> None:
    @contained(max_steps=2)
    def greet(name: str) -> str:
        """Greet."""
        return f"{ask(client)} {name}"

    assert greet("Ada") == "Good. Ada"
    assert (greet.__name__, greet.__doc__) == ("greet", "Greet.")


@pytest.mark.spec("FR-117")
def test_each_call_of_a_function_is_a_chain_of_its_own(client: OpenAI, server: FakeOpenAI) -> None:
    @contained(max_steps=2)
    def loop(times: int) -> int:
        for _ in range(times):
            ask(client)
        return times

    assert [loop(2), loop(2)] == [2, 2]
    with pytest.raises(RunStoppedError, match="2 steps") as caught:
        loop(3)
    assert len(server.requests) == 6
    assert caught.value.stop.limit == "max_steps"
    assert caught.value.result.usage.steps == 2


def test_a_function_may_call_itself(client: OpenAI) -> None:
    depths: list[int] = []

    @contained(max_steps=3)
    def dig(depth: int) -> None:
        depths.append(depth)
        ask(client)
        dig(depth + 1)

    with pytest.raises(RunStoppedError, match="3 steps"):
        dig(1)
    assert depths == [1, 2, 3, 4]


@pytest.mark.spec("FR-117")
async def test_an_async_function_is_contained(server: FakeOpenAI) -> None:
    http = contained_async_http_client()
    async with AsyncOpenAI(api_key="k", base_url=server.base_url, http_client=http) as client:

        @contained(max_steps=2)
        async def loop(times: int) -> int:
            for _ in range(times):
                await client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES)
            return times

        assert (await loop(1), await loop(2)) == (1, 2)
        with pytest.raises(RunStoppedError):
            await loop(3)
    assert len(server.requests) == 5


async def test_an_object_with_an_async_call_is_contained() -> None:
    class Job:
        async def __call__(self) -> bool:
            return in_force() is not None

    assert await contained()(Job())() is True


def test_errors_of_the_function_pass_as_they_are() -> None:
    @contained()
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        broken()
    assert in_force() is None


def test_generator_functions_are_refused() -> None:
    def plain() -> Iterator[int]:
        yield 1

    async def waiting() -> AsyncIterator[int]:
        yield 1

    for fn in (plain, waiting):
        with pytest.raises(ConfigurationError, match="generator function"):
            contained()(cast("Any", fn))


def test_generators_that_another_decorator_hides_are_refused() -> None:
    def numbers() -> Generator[int]:
        yield 1

    async def later() -> AsyncGenerator[int]:
        yield 1

    def passed_on(fn: Callable[[], Any]) -> Callable[[], Any]:
        return functools.wraps(fn)(lambda: fn())

    for hidden in (
        contextlib.contextmanager(numbers),
        contextlib.asynccontextmanager(later),
        passed_on(numbers),
        passed_on(later),
    ):
        with pytest.raises(ConfigurationError, match="returned a generator"):
            contained(store=None)(hidden)()
    for fn in (numbers, functools.partial(numbers)):
        used_up = functools.update_wrapper(lambda: list(numbers()), fn)
        assert contained(store=None)(used_up)() == [1]


def test_a_plain_function_that_makes_a_coroutine_is_refused() -> None:
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="decorate the `async def`"):
        contained()(cast("Any", lambda: work()))()


# --- the context manager ----------------------------------------------------------------------------------------------


def test_a_block_shows_what_is_used(client: OpenAI) -> None:
    with contained(max_cost_usd="$1", timeout="5m") as ctx:
        ask(client)
        status = ctx.budget_status()
        assert ctx.usage.model_calls == 1
    assert ctx.get_snapshot().step_count == 1
    assert (str(status.max_cost_usd), status.steps_used) == ("1", 1)


def test_blocks_of_generators_that_are_left_in_the_order_of_their_start_leave_nothing_in_force(client: OpenAI) -> None:
    def asking(steps: int) -> Generator[str | None]:
        with contained(max_steps=steps, parent=None):
            yield ask(client)
            yield ask(client)

    first, second = asking(5), asking(6)
    next(first)
    next(second)
    next(first)
    first.close()
    next(second)
    second.close()
    assert in_force() is None
    with contained(max_steps=1) as gate:
        ask(client)
    assert gate.usage.steps == 1


def test_a_block_is_open_once_at_a_time() -> None:
    block = contained()
    with block:
        with pytest.raises(ConfigurationError, match="open already"):
            block.__enter__()
    with block:
        pass
    block.__exit__(None, None, None)


async def test_an_async_block_is_open_once_at_a_time() -> None:
    block = contained()
    async with block:
        with pytest.raises(ConfigurationError, match="open already"):
            await block.__aenter__()


def test_a_refusal_that_is_handled_inside_ends_nothing(client: OpenAI) -> None:
    with contained(max_steps=1) as ctx:
        with pytest.raises(CallStopped) as caught:
            ask_for_ever(client)
    assert caught.value.stop == ctx.stop
    assert ctx.stop is not None


@pytest.mark.spec("FR-119")
def test_a_refusal_behind_another_error_is_still_the_reason(client: OpenAI) -> None:
    with pytest.raises(RunStoppedError) as caught, contained(max_steps=1):
        try:
            ask_for_ever(client)
        except BaseException as error:
            raise ValueError("it went wrong") from error
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_refusal_in_a_group_of_tasks_is_the_reason(client: OpenAI) -> None:
    with pytest.raises(RunStoppedError, match="1 step"):
        async with contained(max_steps=1), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(asyncio.to_thread(ask, client))


@pytest.mark.parametrize("raised", [ZeroDivisionError("x"), ExceptionGroup("x", [KeyError("y")])])
def test_whatever_error_leaves_a_stopped_block_it_ends_by_its_stop(client: OpenAI, raised: Exception) -> None:
    """Code that swallows the refusal goes on without an answer; what that leads to is a consequence."""
    with pytest.raises(RunStoppedError, match="1 step") as caught, contained(max_steps=1):
        with pytest.raises(CallStopped):
            ask_for_ever(client)
        raise raised
    assert caught.value.__cause__ is raised
    assert caught.value.result.usage.steps == 1


async def test_a_refusal_that_was_gathered_with_the_answers_is_the_reason(server: FakeOpenAI) -> None:
    """LangChain's ``ainvoke`` does so, and asks the refusal for its generations."""
    http = contained_async_http_client()

    async def framework(**more: Any) -> str:
        asked: Any = AsyncOpenAI(api_key="k", base_url=server.base_url, http_client=http).chat.completions
        ask: Awaitable[Any] = asked.create(model="gpt-5-mini", messages=MESSAGES, **more)
        answers: list[Any] = list(await asyncio.gather(ask, return_exceptions=True))
        return str(answers[0].choices[0].message.content)

    with pytest.raises(RunStoppedError, match="1 step") as stopped:
        async with contained(max_steps=1):
            while True:
                await framework()
    assert isinstance(stopped.value.__cause__, AttributeError)
    with pytest.raises(ConfigurationError, match="max_part_tokens") as refused:
        async with contained(max_total_tokens=5000):
            await framework(web_search_options={})
    assert isinstance(refused.value.__cause__, AttributeError)
    await http.aclose()


def test_an_error_after_a_refusal_that_an_inner_block_has_reported_is_its_own(client: OpenAI) -> None:
    with pytest.raises(ZeroDivisionError), contained():
        with pytest.raises(RunStoppedError), contained(max_steps=1):
            ask_for_ever(client)
        print(1 / 0)
    with pytest.raises(ZeroDivisionError), contained():
        with pytest.raises(ConfigurationError), contained():
            client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES, web_search_options={})
        print(1 / 0)


def test_an_error_after_another_answer_is_its_own(client: OpenAI) -> None:
    with pytest.raises(ZeroDivisionError), contained():
        with pytest.raises(CallStopped):
            client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES, web_search_options={})
        ask(client)
        print(1 / 0)


GROUP = BaseExceptionGroup("both", [KeyboardInterrupt(), CallStopped(None)])


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), GROUP])
def test_what_ends_more_than_a_stopped_block_passes_it(client: OpenAI, raised: BaseException) -> None:
    with pytest.raises(type(raised)) as caught, contained(max_steps=1):
        with pytest.raises(CallStopped):
            ask_for_ever(client)
        raise raised
    assert caught.value is raised


def test_ctrl_c_is_never_turned_into_anything_else(client: OpenAI) -> None:
    with pytest.raises(KeyboardInterrupt), contained(max_steps=1):
        try:
            ask_for_ever(client)
        except CallStopped:
            raise KeyboardInterrupt from None
    with pytest.raises(KeyboardInterrupt), contained(max_steps=1):
        try:
            ask_for_ever(client)
        except CallStopped as error:
            raise KeyboardInterrupt from error


def test_events_of_stops_are_told(client: OpenAI) -> None:
    told: list[SafetyEvent] = []
    with pytest.raises(RunStoppedError), contained(max_steps=1, on_event=told.append):
        ask_for_ever(client)
    assert [event.event_type for event in told] == ["step_limit_exceeded"]


# --- a block that contains nothing ------------------------------------------------------------------------------------


def test_a_block_without_a_call_says_so(server: FakeOpenAI, caplog: pytest.LogCaptureFixture) -> None:
    """The usual reason is a client that was made without ours: it spends, and nobody counts."""
    told: list[SafetyEvent] = []
    with OpenAI(api_key="k", base_url=server.base_url) as plain:
        with contained(on_event=told.append):
            ask(plain)
        with contained(on_event=told.append) as gate:
            ask(plain)
    assert [event.event_type for event in told] == ["no_call_seen"] * 2
    assert "contained_http_client()" in told[0].reason
    assert told[1].metadata["chain_id"] == gate.get_snapshot().chain_id
    assert [event.decision for event in gate.get_snapshot().events] == [Decision.ALLOW]
    said = [record.getMessage().count("no_call_seen") for record in caplog.records]
    assert [count for count in said if count] == [1, 1]


async def test_a_block_with_any_call_says_nothing(client: OpenAI) -> None:
    told: list[SafetyEvent] = []
    with contained(on_event=told.append), contextlib.suppress(NotFoundError):
        client.models.list()
    with contained(on_event=told.append), contained():
        ask(client)
    with contained(on_event=told.append) as gate:
        gate.call_tool(lambda: 1)
    async with contained(on_event=told.append) as gate:
        await gate.acall_tool(lambda: asyncio.sleep(0), WrapOptions("rest"))
    with pytest.raises(KeyError), contained(on_event=told.append):
        raise KeyError("x")
    with contained(on_event=told.append):
        with pytest.raises(CallStopped):
            client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES, web_search_options={})
    assert told == []


def test_a_function_says_it_once_and_not_after_a_call(client: OpenAI) -> None:
    told: list[SafetyEvent] = []

    @contained(on_event=told.append)
    def answer(known: str | None) -> str | None:
        return known or ask(client)

    answer("From the cache.")
    answer("From the cache.")
    assert len(told) == 1

    @contained(on_event=told.append)
    def other(known: str | None) -> str | None:
        return known or ask(client)

    other(None)
    other("From the cache.")
    assert len(told) == 1


# --- nesting ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-117")
def test_a_block_inside_another_is_bound_by_both(client: OpenAI, server: FakeOpenAI) -> None:
    with contained(max_steps=5) as outer:
        with pytest.raises(RunStoppedError, match="2 steps"):
            with contained(max_steps=2):
                ask_for_ever(client)
        assert outer.usage.steps == 2
        ask(client)
        assert outer.stop is None
    with pytest.raises(RunStoppedError, match="3 steps") as caught:
        with contained(max_steps=3):
            ask(client)
            with contained(max_steps=100):
                ask_for_ever(client)
    assert caught.value.result.usage.steps == 3
    assert len(server.requests) == 6


def test_two_blocks_side_by_side_share_what_the_outer_one_has(client: OpenAI, server: FakeOpenAI) -> None:
    def work() -> None:
        with contained(max_steps=100):
            ask_for_ever(client)

    with contained(max_steps=7) as ctx:
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(quietly, work)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ctx.usage.steps == 7
    assert len(server.requests) == 7


def quietly(work: Any) -> None:
    with pytest.raises(RunStoppedError):
        work()


def test_a_block_inside_has_the_prices_of_the_one_around_it(client: OpenAI) -> None:
    prices = {"openai:gpt-5-mini": ModelPrice.per_million(1, 10)}
    with contained(max_cost_usd=1, prices=prices, max_part_tokens=9) as outer, contained(max_cost_usd=1) as inner:
        ask(client)
        assert outer.usage.cost_nanos == inner.usage.cost_nanos == 60_000


def test_hooks_belong_to_the_outermost_block() -> None:
    with contained(), pytest.raises(ConfigurationError, match="outer one"):
        contained(pipeline=ShieldPipeline()).__enter__()


# --- across runs ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-117")
def test_an_account_bounds_all_its_chains_together(client: OpenAI, server: FakeOpenAI, tmp_path: Path) -> None:
    price = {"gpt-5-mini": ModelPrice.per_million(1, 10)}
    loop = contained(
        account="team-a", account_limit="$0.003/month", prices=price, ledger=tmp_path / "ledger.sqlite3", timeout="1m"
    )(ask_for_ever)
    with pytest.raises(RunStoppedError, match="team-a") as caught:
        loop(client)
    assert caught.value.stop.reason == "budget_exceeded"
    spent = len(server.requests)
    assert 1 <= spent <= 8
    with pytest.raises(RunStoppedError, match="team-a"):
        loop(client)
    with SqliteLedger(tmp_path / "ledger.sqlite3") as ledger:
        with (
            pytest.raises(RunStoppedError),
            contained(account="team-a", account_limit="$0.003/month", prices=price, ledger=ledger),
        ):
            ask(client)
    assert len(server.requests) == spent


def test_an_account_has_a_file_in_the_users_own_folder_by_default(client: OpenAI, user_folders: Path) -> None:
    with contained(account="team-a", account_limit="500k tokens/day"):
        ask(client)
    assert list(user_folders.rglob("*.sqlite3"))


def test_a_ledger_belongs_to_the_outermost_block(tmp_path: Path) -> None:
    with contained(), pytest.raises(ConfigurationError, match="ledger of the outer one"):
        contained(ledger=tmp_path / "ledger.sqlite3").__enter__()


def test_a_block_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contained() as outer:
        outer.close()
        with pytest.raises(ConfigurationError, match="closed"):
            contained().__enter__()
    with pytest.raises(ConfigurationError, match="remembers"):
        contained(account="team-a", account_limit="$1/day", ledger=MemoryLedger()).__enter__()
    shut: list[Path] = []
    shutdown = SqliteLedger.shutdown

    def shut_down(ledger: SqliteLedger) -> None:
        shut.append(ledger.path)
        shutdown(ledger)

    monkeypatch.setattr(SqliteLedger, "shutdown", shut_down)
    monkeypatch.setattr(contained_block, "ExecutionContext", None)
    with pytest.raises(TypeError):
        contained(ledger=tmp_path / "ledger.sqlite3").__enter__()
    assert tmp_path / "ledger.sqlite3" in shut
    assert in_force() is None


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-117")
async def test_the_deadline_interrupts_async_code_wherever_it_waits() -> None:
    with pytest.raises(RunStoppedError) as caught:
        async with contained(timeout="50ms"):
            await asyncio.sleep(60)
    assert caught.value.stop.reason == "timeout"
    assert caught.value.result.elapsed_ms < 30_000
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_deadline_may_be_a_moment() -> None:
    clock = TestClock()
    with pytest.raises(RunStoppedError):
        async with contained(timeout=clock.now() + timedelta(seconds=10), clock=clock):
            asyncio.get_running_loop().call_soon(clock.advance, 10)
            await asyncio.Event().wait()


async def test_a_block_inside_goes_by_the_clock_of_the_one_around_it() -> None:
    clock = TestClock()
    with pytest.raises(RunStoppedError):
        async with contained(clock=clock), contained(timeout="10s"):
            asyncio.get_running_loop().call_soon(clock.advance, 11)
            await asyncio.Event().wait()


async def test_a_deadline_that_nothing_but_the_block_noticed_is_no_refused_call() -> None:
    class LateAlarms(TestClock):
        """The thread that tells contexts of the time is busy; the loop's own timers are in time."""

        def alarm(self, when: float, callback: Callable[[], None]) -> Timer:
            return super().alarm(when + 60, callback)

    clock = LateAlarms()
    with pytest.raises(RunStoppedError) as caught:
        async with contained(timeout="10s", clock=clock):
            asyncio.get_running_loop().call_soon(clock.advance, 10)
            await asyncio.Event().wait()
    result = caught.value.result
    assert (caught.value.stop.reason, result.calls_refused, result.nodes) == ("timeout", 0, ())
    assert [event.event_type for event in result.events] == ["timeout"]


async def test_an_abort_interrupts_async_code_wherever_it_waits() -> None:
    with pytest.raises(RunStoppedError, match="enough"):
        async with contained(timeout=None) as ctx:
            threading.Timer(0.02, ctx.abort, ["enough"]).start()
            await asyncio.sleep(60)


def test_an_abort_of_a_block_whose_loop_is_closed_fails_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    collect_garbage()  # what earlier tests left behind may complain
    caplog.clear()
    opened, loop = contained(store=None), asyncio.new_event_loop()
    block = loop.run_until_complete(opened.__aenter__())
    loop.close()
    block.abort("enough")
    opened.__exit__(None, None, None)
    assert block.stop is not None
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def work() -> None:
        async with contained(timeout="10s"):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_beside_the_deadline_stays_one() -> None:
    clock = TestClock()

    async def work() -> None:
        async with contained(timeout="10s", clock=clock):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    clock.advance(11)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_code_that_ends_well_in_spite_of_the_deadline_has_ended_well() -> None:
    clock = TestClock()
    interrupted = False
    async with contained(timeout="10s", clock=clock):
        try:
            waiting = asyncio.Event().wait()
            asyncio.get_running_loop().call_soon(clock.advance, 11)
            await waiting
        except asyncio.CancelledError:
            interrupted = True
    assert interrupted
    assert (task := asyncio.current_task()) is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("timeout", ["1h", "3s"])
async def test_a_block_inside_work_that_was_left_behind_does_not_cancel_the_caller_of_that_work(timeout: str) -> None:
    clock, over, go_on = TestClock(), asyncio.Event(), asyncio.Event()

    async def work(ticket: Ticket) -> None:
        async with contained(timeout=timeout, store=None):
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()

    async def caller() -> str | None:
        with gate_with(clock) as gate:
            outcome = await gate.acall(CallRequest("tool", timeout=1), work)
            await go_on.wait()
        return outcome.stop_reason

    task = asyncio.ensure_future(caller())
    await settle()
    for seconds in (1, 1, 5):
        clock.advance(seconds)
        await settle()
    seen = (task.cancelling(), task.done())
    over.set()
    go_on.set()
    assert seen == (0, False)
    assert await task == "call_timeout"


def test_an_async_block_needs_a_task() -> None:
    with pytest.raises(ConfigurationError, match="task"):
        contained().__aenter__().send(None)
    assert in_force() is None


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"max_cost_usd": -1}, "max_cost_usd=-1"),
        ({"max_cost_usd": float("nan")}, "max_cost_usd=nan"),
        ({"max_cost_usd": float("inf")}, "max_cost_usd=inf"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"max_steps": 2**70}, "max_steps"),
        ({"timeout": "soon"}, "timeout='soon'"),
        ({"timeout": 0}, "timeout=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"max_part_tokens": 0}, "max_part_tokens=0"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(named: dict[str, Any], said: str) -> None:
    with pytest.raises(LimitsError, match=said):
        contained(**named)


def test_what_is_said_twice_or_does_not_exist_is_refused() -> None:
    misspelt: Any = {"max_stepz": 1}
    with pytest.raises(ConfigurationError, match="max_steps"):
        contained(limits=Limits(), max_steps=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_stepz'; did you mean 'max_steps'"):
        contained(**misspelt)
    with pytest.raises(ConfigurationError, match="ModelPrice"):
        contained(prices=cast("Any", {"gpt": 2}))


def test_limits_in_one_value_keep_nothing_back_for_a_landing(client: OpenAI, server: FakeOpenAI) -> None:
    with pytest.raises(RunStoppedError, match="3 steps"), contained(limits=Limits(max_steps=3)):
        ask_for_ever(client)
    assert len(server.requests) == 3


# --- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-117")
async def test_a_block_leaves_nothing_behind(client: OpenAI) -> None:
    def sync_block() -> weakref.ref[Any]:
        with contained(timeout="1h") as ctx:
            ask(client)
            return weakref.ref(ctx)

    async def async_block() -> weakref.ref[Any]:
        async with contained(timeout="1h") as ctx:
            await asyncio.sleep(0)
            return weakref.ref(ctx)

    left = [sync_block(), await async_block()]
    assert left_of(left) == 0
    assert in_force() is None


def test_a_block_that_is_closed_from_elsewhere_closes_all_the_same() -> None:
    block: Contained = contained()
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    assert in_force() is None


# --- a client without a block of its own ------------------------------------------------------------------------------

PAID = {"openai:gpt-5-mini": ModelPrice.per_million(1, 1)}


def calling(act: Callable[[], object], **limits: Any) -> Agent[str]:
    """Return an agent whose one tool does something on a worker thread."""

    @tool
    def start() -> str:
        """Do it."""
        return str(act())

    script: list[Any] = [Call("start", {}), "done"]
    return Agent(ScriptedModel(script), "Do it.", str, tools=(start,), limits=Limits(**limits))


@pytest.mark.spec("FR-181")
def test_a_call_inside_a_tool_counts_in_its_run_at_the_runs_prices(client: OpenAI) -> None:
    result = calling(lambda: ask(client), max_cost_usd=1).run("go", store=None, prices={**PAID, "scripted": FREE})
    assert result.output == "done"
    assert result.usage.model_calls == 3
    assert result.usage.tokens.total == 2 * 120 + 15
    assert result.usage.cost is not None
    assert result.usage.cost > 0


@pytest.mark.parametrize("of", ["one", "many"])
def test_a_listener_of_a_run_calls_at_the_runs_prices(client: OpenAI, of: str) -> None:
    told: list[object] = []

    def listen(*_: object) -> None:
        if not told:
            told.append(None)
            told.append(client.chat.completions.create(model="of-ours", messages=MESSAGES))
            heard.set()

    heard = threading.Event()
    prices = {"openai:of-ours": ModelPrice.per_million(1, 1), "scripted": FREE}
    agent = calling(lambda: heard.wait(30), max_cost_usd=1)
    if of == "one":
        usage = agent.run("go", store=None, prices=prices, on_event=listen).usage
    else:
        usage = agent.run_many(["go"], store=None, prices=prices, on_event=listen).usage
    assert len(told) == 2
    assert usage.cost is not None
    assert usage.cost > 0


def test_a_ceiling_of_the_run_refuses_a_call_inside_a_tool_and_an_unknown_price_does(
    client: OpenAI, server: FakeOpenAI
) -> None:
    result = calling(lambda: ask(client), max_steps=2, landing=None).run("go", store=None)
    assert result.stop is not None
    assert result.stop.reason == "step_limit_exceeded"
    unknown = lambda: client.chat.completions.create(model="unheard-of", messages=MESSAGES)  # noqa: E731
    result = calling(unknown, max_cost_usd=1).run("go", store=None, prices={"scripted": FREE})
    assert result.output == "done"
    assert "unheard-of has no known price" in events(result, ToolInvoked)[0].rendered_output
    assert server.requests == []


def test_inside_a_run_in_a_block_a_call_counts_in_both(client: OpenAI) -> None:
    with contained(max_steps=20) as block:
        result = calling(lambda: ask(client)).run("go", store=None)
    assert result.usage.model_calls == 3
    assert block.usage.model_calls == 3
    assert block.get_snapshot().step_count == 5  # the run, its two turns, the tool and the call in it


def test_a_run_whose_model_asks_by_a_contained_client_counts_each_call_once(client: OpenAI) -> None:
    class ByClient(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            await asyncio.to_thread(ask, client)
            return await super().turn(request)

    with contained(max_steps=20) as block:
        result = Agent(ByClient(["done"]), "Do it.", str).run("go", store=None)
    assert result.output == "done"
    assert (result.usage.model_calls, block.usage.model_calls) == (1, 1)


def in_a_thread(act: Callable[[], object]) -> list[object]:
    """Do something in a thread that carries no context variables; return what it returned or raised."""
    seen: list[object] = []

    def work() -> None:
        try:
            seen.append(act())
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=contextvars.Context().run, args=(work,))
    thread.start()
    thread.join()
    return seen


@pytest.mark.spec("FR-181")
def test_a_bare_thread_counts_in_the_only_block_that_is_open(client: OpenAI) -> None:
    with contained(max_steps=2) as block:
        assert in_a_thread(lambda: ask(client)) == ["Good."]
        assert block.get_snapshot().step_count == 1
        with contained(max_steps=1):
            assert in_a_thread(lambda: ask(client)) == ["Good."]
        assert block.get_snapshot().step_count == 2
        assert isinstance(in_a_thread(lambda: ask(client))[0], CallStopped)
    assert in_a_thread(lambda: ask(client)) == ["Good."]


def test_a_bare_thread_in_a_run_counts_there(client: OpenAI) -> None:
    result = calling(lambda: in_a_thread(lambda: ask(client))).run("go", store=None, prices=PAID)
    assert result.usage.model_calls == 3


def test_a_bare_thread_beside_several_blocks_is_refused_with_the_line_to_write(
    client: OpenAI, server: FakeOpenAI
) -> None:
    with contained() as one, contained(parent=None) as two:
        apart = contextvars.Context()
        third = apart.run(contained().__enter__)
        said = in_a_thread(lambda: ask(client))[0]
        assert isinstance(said, CallStopped)
        assert "2 blocks or runs are open" in str(said)
        assert "threading.Thread(target=contextvars.copy_context().run" in str(said)
        assert [each.get_snapshot().step_count for each in (one, two, third)] == [0, 0, 0]
        third.close()
    assert server.requests == []


def test_the_main_thread_and_the_tasks_outside_of_a_block_are_not_in_it(client: OpenAI) -> None:
    opened, done = threading.Event(), threading.Event()
    steps: list[int] = []

    def elsewhere() -> None:
        with contained() as block:
            opened.set()
            assert done.wait(10)
            steps.append(block.get_snapshot().step_count)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert opened.wait(10)
    assert ask(client) == "Good."
    done.set()
    thread.join()
    assert steps == [0]


def test_hosts_that_the_run_does_not_allow_are_refused_inside_a_tool(client: OpenAI, server: FakeOpenAI) -> None:
    shield = ShieldPipeline(egress=EgressAllowList(["example.com"]))
    result = replace(calling(lambda: ask(client)), shield=shield).run("go", store=None)
    assert result.output == "done"
    assert "Nothing on the list allows this request" in events(result, ToolInvoked)[0].rendered_output
    assert server.requests == []


def test_a_block_that_stands_apart_says_so(client: OpenAI) -> None:
    with contained(max_steps=1) as outer, contained(parent=None) as apart:
        ask(client)
        assert (apart.get_snapshot().apart, apart.get_snapshot().parent_id) == (True, None)
        assert (apart.get_snapshot().step_count, outer.get_snapshot().step_count) == (1, 0)
    with pytest.raises(ConfigurationError, match="parent='x' must be None"):
        contained(parent=cast("Any", "x"))


# --- a ceiling of the block that something inside has reached ---------------------------------------------------------


def ask_once(agent: Agent[str]) -> RunResult[str]:
    return agent.run("Go on.", store=None)


def test_what_fails_for_want_of_a_stopped_runs_output_ends_as_the_blocks_stop() -> None:
    agent = Agent(ScriptedModel(lambda request: "Fine."), "Answer.", str)
    with pytest.raises(RunStoppedError, match="The whole run reached its ceiling of 1 step") as caught:
        with contained(max_steps=1) as gate:
            result = ask_once(agent)
            assert (result.output, gate.stop) == (None, None)
            len(cast("str", result.output))
    assert isinstance(caught.value.__cause__, TypeError)
    assert (caught.value.stop.limit, caught.value.result.usage.steps) == ("max_steps", 1)


def test_so_does_what_fails_after_a_block_inside_has_reached_the_ceiling_of_the_outer_one() -> None:
    with pytest.raises(RunStoppedError, match="ceiling of 2 steps") as caught, contained(max_steps=2) as gate:
        with contextlib.suppress(RunStoppedError), contained(max_steps=9) as inner:
            for _ in range(3):
                if inner.call_tool(lambda: 1).stop is not None:
                    raise KeyError("No answer.")
        assert gate.usage.steps == 2
        raise LookupError("No answer.")
    assert type(caught.value.__cause__) is LookupError


def test_a_run_that_reached_its_own_ceiling_leaves_errors_as_they_are() -> None:
    own = Limits(max_output_tokens=1, landing=None)
    with pytest.raises(TypeError), contained(max_steps=9):
        result = ask_once(Agent(ScriptedModel(lambda request: "Fine."), "Answer.", str, limits=own))
        assert result.stop is not None
        raise TypeError


def test_errors_stay_as_they_are_once_the_block_has_gone_on() -> None:
    with pytest.raises(LookupError), contained(max_input_tokens=100) as gate:
        estimate = Estimate(input_tokens=500, max_output_tokens=1, min_output_tokens=1)
        with gate.child(Limits(landing=None), carve=False) as inner:
            assert not inner.call(CallRequest("llm", estimate=estimate), lambda ticket: 1).admitted
        assert gate.call_tool(lambda: 1).admitted
        raise LookupError
