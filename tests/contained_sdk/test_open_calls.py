"""What is still under way when its block ends is ended and charged by the block."""

# ruff: noqa: SIM117 -- a block that is ended is what is tested; servers, clients and blocks nest as they are used

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx2
import pytest
from openai import OpenAI

from tests.contained_sdk.test_http import (
    ASYNC,
    GPT,
    HELLO,
    PRICES,
    USAGE,
    Plain,
    chat,
    events_of,
    every_side,
    messages,
    streaming,
)
from tests.kit import Call, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk import exchange
from watchkeeper.contained_sdk.calls import CallStopped, ContainedCall
from watchkeeper.contained_sdk.http import contained_http_client
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Witness
from watchkeeper.core.usage import FREE, Presumed, TokenUsage
from watchkeeper.shield.decision import Decision
from watchkeeper.store.run_store import RunStore
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import EVENT_STREAM, Fault, WireReply, WireServer
from watchkeeper.tools.tool import tool

CAP = 300
WORST = CAP * 10_000
"""Nano-dollars of all output tokens that were asked for; the input costs a little more."""


@pytest.fixture
def server() -> Iterator[WireServer]:
    with streaming(events_of("one", "two"), pause=30.0) as server:
        yield server


@pytest.fixture
def client(server: WireServer) -> Iterator[OpenAI]:
    with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
        yield client


def begin(client: OpenAI) -> Any:
    stream = chat(client, stream=True, max_tokens=CAP)
    next(iter(stream))
    return stream


def forget(client: OpenAI) -> None:
    stream = begin(client)
    del stream


def hold(client: OpenAI) -> Any:
    return begin(client)


def leave_the_program(client: OpenAI) -> None:
    begin(client)
    raise SystemExit(3)


def in_a_thread(client: OpenAI) -> None:
    held: list[Any] = []
    thread = threading.Thread(target=contextvars.copy_context().run, args=(lambda: held.append(begin(client)),))
    thread.start()
    thread.join()


@pytest.mark.parametrize("timeout", ["1h", None])
@pytest.mark.parametrize("end", [hold, forget, leave_the_program, in_a_thread], ids=lambda end: end.__name__)
def test_a_stream_that_is_open_is_charged_before_the_block_is_left(
    client: OpenAI, tmp_path: Path, end: Callable[[OpenAI], Any], timeout: str | None
) -> None:
    """Also at the ledger: a program that ends here has nothing left to book."""
    terms: dict[str, Any] = {"account": "a", "account_limit": "$1/day", "ledger": tmp_path / "l", "prices": PRICES}
    kept = None
    with suppress(SystemExit), contained(timeout=timeout, **terms) as ctx:
        kept = end(client)
    assert (kept is not None) == (end is hold)
    assert ctx.usage.tokens.output_tokens == CAP
    assert [node.status for node in ctx.get_snapshot().nodes] != ["running"]
    with contained(**terms) as later:
        assert WORST < 1_000_000_000 - later.left()["max_cost_nanos"] < 2 * WORST


def test_a_stream_that_a_decorated_function_returns_is_charged_when_it_returns(client: OpenAI) -> None:
    gates: list[Any] = []

    @contained()
    def ask() -> Any:
        with contained() as gate:
            gates.append(gate)
            return begin(client)

    stream = ask()
    assert gates[0].usage.tokens.output_tokens == CAP
    with pytest.raises(CallStopped, match="closed"):
        list(stream)


async def test_an_async_stream_that_is_open_is_charged_before_the_block_is_left(server: WireServer) -> None:
    async with ASYNC.using(ASYNC.chat_client(server)) as client:
        async with contained(prices=PRICES) as ctx:
            stream = await chat(client, stream=True, max_tokens=CAP)
            await anext(aiter(stream))
        assert ctx.usage.tokens.output_tokens == CAP
        with pytest.raises(CallStopped, match="closed"):
            [chunk async for chunk in stream]
        with contained(prices=PRICES) as other:
            stream = await chat(client, stream=True, max_tokens=CAP)
            await anext(aiter(stream))
        assert other.usage.tokens.output_tokens == CAP
        await stream.close()
        assert other.usage.tokens.output_tokens == CAP


def cancelled_again_and_again(task: asyncio.Task[Any]) -> None:
    """Cancel a task wherever it waits until it has ended, as a cancel scope of anyio does."""
    if not task.done():
        task.cancel()
        asyncio.get_running_loop().call_soon(cancelled_again_and_again, task)


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_block_cannot_wait_for_is_on_record(server: WireServer, tmp_path: Path, is_async: bool) -> None:
    """A plain block holds its loop; a scope that cancels again and again lets nothing wait."""
    gates: list[Any] = []
    opened = asyncio.Event()

    async def work(client: Any) -> None:
        async with AsyncExitStack() as stack:
            block = contained(prices=PRICES, store=tmp_path / "runs")
            gates.append(await stack.enter_async_context(block) if is_async else stack.enter_context(block))
            stream = await chat(client, stream=True, max_tokens=CAP)
            await anext(aiter(stream))
            opened.set()
            await asyncio.Event().wait()

    async with ASYNC.using(ASYNC.chat_client(server)) as client:
        task = asyncio.create_task(work(client))
        await opened.wait()
        cancelled_again_and_again(task)
        with pytest.raises(asyncio.CancelledError):
            await task
        now = gates[0].usage
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others) if others else None
    assert gates[0].usage == now
    assert now.tokens.output_tokens == CAP
    with RunStore(tmp_path / "runs", read_only=True) as store:
        (run,) = store.runs()
        assert [event.tag for event in store.events(run.run_id)] == ["run_started", "call_ended", "run_ended"]
    assert run.cost_nanos == now.cost_nanos


async def test_what_the_code_of_a_cancelled_run_left_open_is_on_record(server: WireServer, tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with ASYNC.using(ASYNC.chat_client(server)) as client:

        @tool
        async def look() -> str:
            """Look."""
            stream = await chat(client, stream=True, max_tokens=CAP)
            opened.set()
            await asyncio.Event().wait()
            return f"{stream}"

        agent = Agent(ScriptedModel([Call("look"), "done"]), "Work.", str, tools=[look])
        run = asyncio.create_task(agent.arun("a task", store=tmp_path / "runs", prices={**PRICES, "scripted": FREE}))
        await opened.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    with RunStore(tmp_path / "runs", read_only=True) as store:
        (row,) = store.runs()
    assert row.cost_nanos is not None
    assert WORST < row.cost_nanos < 2 * WORST


@pytest.mark.parametrize("timeout", ["1h", None])
def test_a_call_of_a_thread_that_the_block_does_not_wait_for_is_on_record(tmp_path: Path, timeout: str | None) -> None:
    """At the block's own gate; without a deadline nothing interrupts a thread, and the end presumes the worst."""
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait(30)

    with contained(timeout=timeout, store=tmp_path / "runs") as gate:
        hint = WrapOptions("ask", cost_estimate_hint=0.25)
        thread = threading.Thread(target=lambda: gate.call_llm(work, hint))
        thread.start()
        assert begun.wait(10)
    goes_on.set()
    thread.join()
    with RunStore(tmp_path / "runs", read_only=True) as store:
        (run,) = store.runs()
        (call,) = (event.body for event in store.events(run.run_id) if event.tag == "call_ended")
    assert (run.cost_nanos, call["cost_nanos"], call["status"]) == (250_000_000, 250_000_000, "aborted")


def test_a_call_that_ends_just_after_its_block_has_presumed_it_is_on_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    tell = ExecutionContext.tell

    def told_late(gate: ExecutionContext, witness: Witness | None) -> Witness | None:
        if witness is None:
            goes_on.set()
            thread.join()
        return tell(gate, witness)

    def work() -> None:
        begun.set()
        goes_on.wait(30)

    monkeypatch.setattr(ExecutionContext, "tell", told_late)
    with contained(timeout=None, store=tmp_path / "runs") as gate:
        hint = WrapOptions("ask", cost_estimate_hint=0.25)
        thread = threading.Thread(target=lambda: gate.call_llm(work, hint))
        thread.start()
        assert begun.wait(10)
    with RunStore(tmp_path / "runs", read_only=True) as store:
        (run,) = store.runs()
        assert [event.tag for event in store.events(run.run_id)] == ["run_started", "call_ended", "run_ended"]
    assert run.cost_nanos == 250_000_000


async def test_what_goes_on_after_a_block_that_could_not_wait_is_abandoned_and_corrected_at_its_end() -> None:
    goes_on = asyncio.Event()

    async def stubborn(ticket: Ticket) -> str:
        while not goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await goes_on.wait()
        ticket.charge(0.01)
        return "late"

    with contained(store=None) as gate:
        call = asyncio.create_task(gate.acall_llm(stubborn, WrapOptions("ask", cost_estimate_hint=0.25)))
        await asyncio.sleep(0)
    assert gate.usage.cost_nanos == 250_000_000
    outcome = await call
    assert (outcome.decision, outcome.stop_reason) == (Decision.HALT, "aborted")
    goes_on.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert gate.usage.cost_nanos == 10_000_000
    (node,) = gate.get_snapshot().nodes
    assert (node.cost_usd, node.late_result) == (0.01, "late")


@pytest.mark.parametrize("hint", [0.25, 0.0])
async def test_what_a_call_has_told_of_its_cost_is_on_record_also_below_a_run_that_is_cancelled(
    tmp_path: Path, hint: float
) -> None:
    told = asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def ask(ticket: Ticket) -> None:
        ticket.charge(0.4)
        told.set()
        await asyncio.Event().wait()

    async def beside() -> None:
        async with contained() as gate:
            await gate.acall_llm(ask, WrapOptions("ask", cost_estimate_hint=hint))

    @tool
    async def look() -> None:
        """Look."""
        left.append(asyncio.create_task(beside()))
        await asyncio.Event().wait()

    agent = Agent(ScriptedModel([Call("look"), "done"]), "Work.", str, tools=[look])
    options: Any = {"store": tmp_path / "runs", "prices": {"scripted": FREE}}
    run = asyncio.create_task(agent.arun("a task", **options))
    await told.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.wait(left)
    with RunStore(tmp_path / "runs", read_only=True) as store:
        (row,) = (run for run in store.runs() if run.parent_id is None)
    assert row.cost_nanos == 400_000_000
    assert (await agent.aresume(row.run_id, **options)).usage.cost_nanos == 400_000_000


def test_a_block_counts_what_a_call_that_goes_on_has_told_of_its_cost(tmp_path: Path) -> None:
    told, goes_on = threading.Event(), threading.Event()

    def work(ticket: Ticket) -> None:
        ticket.charge(0.4)
        told.set()
        goes_on.wait(30)

    with contained(timeout=None, store=tmp_path / "runs") as gate:
        thread = threading.Thread(target=lambda: gate.call_llm(work))
        thread.start()
        assert told.wait(10)
    goes_on.set()
    thread.join()
    with RunStore(tmp_path / "runs", read_only=True) as store:
        (run,) = store.runs()
        (call,) = (event.body for event in store.events(run.run_id) if event.tag == "call_ended")
    assert (run.cost_nanos, call["cost_nanos"], gate.usage.cost_nanos) == (400_000_000,) * 3


class SharedConnection(httpx2.BaseTransport):
    """Answers as over HTTP/2: all answers come by one socket, and none while another one is read from it."""

    def __init__(self) -> None:
        self.far, self.socket = socket.socketpair()
        self.goes_on = threading.Event()
        self.reading = threading.Lock()
        self.answers = 0

    def get_extra_info(self, name: str) -> socket.socket:
        return self.socket

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.answers += 1
        parts = {"http_version": b"HTTP/2", "network_stream": self}
        stream = self.first() if self.answers == 1 else self.second()
        return httpx2.Response(200, headers={"content-type": EVENT_STREAM}, stream=Parts(stream), extensions=parts)

    def first(self) -> Iterator[bytes]:
        yield events_of("one")[0]
        with self.reading:
            self.goes_on.wait(30)
        yield events_of("two")[0]

    def second(self) -> Iterator[bytes]:
        with self.reading:
            yield from events_of("one", "two")


class Parts(httpx2.SyncByteStream):
    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return self._parts


def ask_over(shared: SharedConnection) -> OpenAI:
    return OpenAI(api_key="k", base_url="http://127.0.0.1:1", http_client=contained_http_client(shared))


def test_a_stream_that_is_closed_early_leaves_a_connection_that_others_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its reader waits for bytes, because the caller did."""
    monkeypatch.setattr(exchange, "SETTLE_SECONDS", 0.0)
    with SharedConnection() as shared:
        client = ask_over(shared)
        with shared.far, shared.socket, contained(max_cost_usd=1, prices=PRICES) as gate:
            stream = begin(client)

            def read() -> None:
                with suppress(CallStopped):
                    list(stream)

            reader = threading.Thread(target=read)
            reader.start()
            while not shared.reading.locked():
                pass
            stream.response.close()
            shared.socket.sendall(b"open")
            assert shared.far.recv(4) == b"open"
            shared.goes_on.set()
            reader.join()
            assert len(list(chat(client, stream=True))) > 1
    assert gate.usage.model_calls == 2


@pytest.mark.parametrize("closed", [False, True])
def test_a_stream_that_nobody_reads_holds_up_no_other_on_its_connection(closed: bool) -> None:
    """Over HTTP/2 answers wait for the one that is read; a read cannot be ended without ending all of them."""
    with SharedConnection() as shared:
        client = ask_over(shared)
        with shared.far, shared.socket:
            with contained(max_cost_usd=1, prices=PRICES) as gate:
                stream = begin(client)
                if closed:
                    stream.close()
                assert len(list(chat(client, stream=True))) == 2
            assert [node.status for node in gate.get_snapshot().nodes] == ["error", "ok"]
            assert len(list(chat(client, stream=True))) == 2
            assert not shared.goes_on.is_set()


def test_a_call_in_another_thread_is_charged_before_the_block_is_left() -> None:
    sent = threading.Event()

    def answer(number: int, body: Any) -> Fault:
        sent.set()
        return Fault("hang")

    with FakeOpenAI(answer) as server:
        client = OpenAI(api_key="k", base_url=server.base_url, http_client=contained_http_client())
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                chat(client, max_tokens=CAP)
            except BaseException as error:
                errors.append(error)

        with contained() as ctx:
            thread = threading.Thread(target=contextvars.copy_context().run, args=(ask,))
            thread.start()
            assert sent.wait(10)
        assert ctx.usage.tokens.output_tokens == CAP
        thread.join()
        assert isinstance(errors[0], CallStopped)
        client.close()


async def test_a_call_in_another_task_is_charged_before_the_block_is_left() -> None:
    async with FakeOpenAI(lambda number, body: Fault("hang")) as server:
        async with ASYNC.client(chat, server) as client:
            async with contained() as ctx:
                task = asyncio.create_task(chat(client, max_tokens=CAP))
                await server.until(lambda: len(server.requests) == 1)
            assert ctx.usage.tokens.output_tokens == CAP
            with pytest.raises(CallStopped):
                await task


def test_an_answer_that_is_complete_is_charged_by_its_own_counts() -> None:
    """Its caller has not seen the end of the response, which comes a moment later."""
    with streaming([*events_of("one"), USAGE, b"data: [DONE]\n\n"], pause=0.02) as server:
        with contained_http_client() as plain, contained() as ctx:
            body = {"model": GPT, "messages": HELLO, "stream": True, "max_tokens": CAP}
            request = plain.build_request("POST", f"{server.url}/v1/chat/completions", json=body)
            stream = plain.send(request, stream=True)
            for chunk in stream.iter_raw():
                if b"[DONE]" in chunk:
                    break
        assert ctx.usage.tokens == TokenUsage(10, 5)


def test_a_stream_that_its_own_reader_collects_is_not_waited_for(
    client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run in any thread, also in the one whose end would then be awaited."""
    held: list[Any] = []
    settle = ContainedCall.meter

    def collected(*args: Any) -> Any:
        held.pop().response.close()
        return settle(*args)

    monkeypatch.setattr(ContainedCall, "meter", collected)
    monkeypatch.setattr(exchange, "SYSTEM_CLOCK", None)
    with contained(timeout=None) as ctx:
        held.append(begin(client))
    assert ctx.usage.tokens.output_tokens == CAP
    assert held == []


# --- counts before the end --------------------------------------------------------------------------------------------


def counting(number: int, finish: str | None = None) -> bytes:
    reason = f'"{finish}"' if finish else "null"
    choice = f'{{"index":0,"delta":{{"content":"word "}},"finish_reason":{reason}}}'
    usage = f'{{"prompt_tokens":9,"completion_tokens":{number},"total_tokens":{9 + number}}}'
    return f'data: {{"id":"c","object":"chat.completion.chunk","choices":[{choice}],"usage":{usage}}}\n\n'.encode()


CUMULATIVE = [counting(number) for number in range(1, 5)]


@every_side
@pytest.mark.parametrize("breaks", [True, False], ids=["broken", "ended too early"])
async def test_counts_in_every_chunk_are_not_the_last_word(side: Plain, breaks: bool) -> None:
    """A proxy may end a response properly whose source was cut."""
    reply = WireReply(parts=CUMULATIVE, content_type=EVENT_STREAM, breaks=breaks)
    with WireServer(lambda request: reply) as server:
        async with side.using(side.chat_client(server)) as client, side.using(contained(prices=PRICES)) as ctx:
            stream = await side.of(chat(client, stream=True, max_tokens=CAP))
            try:
                await side.all(stream)
            except Exception:
                assert breaks
            assert ctx.usage.tokens.output_tokens == CAP
            assert cast("int", ctx.usage.cost_nanos) > WORST


@pytest.mark.parametrize("end", [[b"data: [DONE]\n\n"], [counting(5, "stop")]], ids=["done", "finish_reason"])
def test_counts_in_every_chunk_hold_once_the_answer_is_complete(end: list[bytes]) -> None:
    reply = WireReply(parts=[*CUMULATIVE, *end], content_type=EVENT_STREAM)
    with WireServer(lambda request: reply) as server, contained_http_client() as plain, contained() as ctx:
        client = OpenAI(api_key="k", base_url=server.url, http_client=plain)
        list(chat(client, stream=True, max_tokens=CAP))
        assert ctx.usage.tokens.output_tokens == (4 if len(end[0]) < 20 else 5)


def test_more_than_was_granted_is_charged_if_the_provider_told_so() -> None:
    reply = WireReply(parts=[counting(CAP + 50)], content_type=EVENT_STREAM, breaks=True)
    with WireServer(lambda request: reply) as server, contained_http_client() as plain:
        with contained(prices=PRICES, max_cost_usd=1) as ctx:
            client = OpenAI(api_key="k", base_url=server.url, http_client=plain)
            with pytest.raises(Exception, match=r"(?i)peer|incomplete"):
                list(chat(client, stream=True, max_tokens=CAP))
            assert ctx.usage.tokens.output_tokens == CAP + 50
            assert cast("int", ctx.usage.cost_nanos) >= (CAP + 50) * 10_000


START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"content":[],"model":"claude-sonnet-5","usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
)


@pytest.mark.parametrize(("ask", "part"), [(chat, CUMULATIVE[0]), (messages, START)], ids=["chat", "messages"])
def test_a_worst_case_is_presumed_whatever_the_provider_had_told(ask: Any, part: bytes) -> None:
    reply = WireReply(parts=[part], content_type=EVENT_STREAM, breaks=True)
    with WireServer(lambda request: reply) as server, contained_http_client() as plain:
        sdk = anthropic.Anthropic if ask is messages else OpenAI
        client: Any = sdk(api_key="k", base_url=server.url, http_client=plain, max_retries=0)
        with contained(prices=PRICES, max_cost_usd=1) as ctx:
            with pytest.raises(Exception, match=r"(?i)peer|incomplete"):
                list(ask(client, stream=True, max_tokens=CAP))
            assert ctx.usage.tokens.output_tokens == CAP
            assert ctx.usage.presumed == Presumed(1, ctx.usage.tokens, ctx.usage.cost_nanos)


FORKED = """
import os, sys
from openai import OpenAI
from watchkeeper import contained
from watchkeeper.contained_sdk import contained_http_client
from watchkeeper.contained_sdk.calls import CallStopped

client = OpenAI(api_key="k", base_url=sys.argv[1], http_client=contained_http_client())
ask = [{"role": "user", "content": "Hello there."}]

def read(stream):
    try:
        next(iter(stream.response.stream))
    except CallStopped as error:
        print("forked" in str(error), flush=True)

def collect(stream):
    stream.response.stream._stream.__del__()  # httpx has put its own around ours

acts = {"leave": lambda stream: sys.exit(), "close": lambda stream: stream.close(), "collect": collect, "read": read}
for act in acts.values():
    try:
        with contained(store=None) as gate:
            stream = client.chat.completions.create(model="gpt-5-mini", messages=ask, stream=True)
            words = [next(stream).choices[0].delta.content]
            sys.stdout.flush()  # or the child would write it, too
            child = os.fork()
            if not child:
                act(stream)
                os._exit(0)
            os.waitpid(child, 0)
            words += [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
        print(words, gate.usage.tokens.total)
    except SystemExit:
        os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_end_the_stream_of_its_parent() -> None:
    """They share the connection: what the child does to its copies of stream and block must not reach it."""
    parts = [*events_of("one", "two"), USAGE, b"data: [DONE]\n\n"]
    with streaming(parts, pause=0.3) as server:
        run = [sys.executable, "-c", FORKED, server.url]
        done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=240)
    whole = "['one', 'two'] 15\n"
    assert done.stdout == whole * 3 + "True\n" + whole, done.stderr
    assert "Traceback" not in done.stderr  # it may warn of forking beside threads
