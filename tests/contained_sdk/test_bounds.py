"""What a hostile server, or ordinary code, could use to get past the bounds of a block."""

# ruff: noqa: PT012, SIM117 -- a stream is read where it is asked for; servers, clients and blocks nest as they are used

from __future__ import annotations

import asyncio
import contextvars
import gzip
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import httpx2
import msgspec
import openai
import pytest
from openai import OpenAI

from tests.contained_sdk.test_http import (
    CLAUDE,
    GPT,
    PLAIN,
    PRICES,
    Ask,
    Plain,
    always,
    async_client,
    chat,
    every_side,
    messages,
    responses,
    server_for,
    sync_client,
    whole_or_streamed,
)
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.openai_responses import RESPONSES
from watchkeeper.asking.provider_work import TOOLS_OVERHEAD
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk import calls, exchange
from watchkeeper.contained_sdk.calls import CallStopped, Counted
from watchkeeper.contained_sdk.http import contained_http_client
from watchkeeper.contained_sdk.jobs import Job, Jobs
from watchkeeper.contained_sdk.reading import Seen, SentRequest
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.errors import ConfigurationError, RunStoppedError, UnpricedModelError
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.testing.fake_anthropic import FakeAnthropic
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import EVENT_STREAM, WireReply, WireServer, json_reply, say

# --- what the caller sends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [100, 400, 600, 800, 1_000, 5_000, 100_000])
@pytest.mark.parametrize("place", ["messages", "tools", "metadata"])
def test_a_deeply_nested_body_is_counted_or_refused(levels: int, place: str) -> None:
    deep = "[" * levels + "]" * levels
    message = '{"role": "user", "content": "Hi."}'
    held = {
        "messages": f'[{{"role": "user", "content": {deep}}}]',
        "tools": f'[{{"name": "x", "x": {deep}}}]',
        "metadata": deep,
    }
    body = f'{{"model": "{GPT}", "messages": [{message}], "{place}": {held[place]}}}'
    with FakeOpenAI(always(say("Good."))) as server, contained_http_client() as http:
        try:
            with contained(max_cost_usd=1) as gate:
                http.post(f"{server.base_url}/chat/completions", content=body)
        except (ConfigurationError, UnpricedModelError):
            assert (levels > 100, server.requests) == (True, [])
        else:
            assert gate.usage.model_calls == len(server.requests) == 1


# --- what outlives a model call ---------------------------------------------------------------------------------------

PRICED = Limits(max_cost_usd=1, landing=None)


def test_a_thread_that_outlives_a_model_call_sends_nothing_in_its_name() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        refused: list[object] = []

        def late() -> None:
            with pytest.raises(CallStopped) as caught:
                chat(client)
            refused.append(caught.value)

        with ExecutionContext(PRICED) as gate:
            copied = gate.call_llm(contextvars.copy_context).value
            assert copied is not None
            thread = threading.Thread(target=copied.run, args=(late,))
            thread.start()
            thread.join()
        assert (len(refused), len(server.requests)) == (1, 0)


async def test_a_task_that_outlives_a_model_call_is_counted_in_its_block() -> None:
    with FakeOpenAI(always(say("Good."))) as server:
        async with async_client(chat, server) as client:
            go_on = asyncio.Event()

            async def late() -> None:
                await go_on.wait()
                await chat(client)

            async def begin() -> asyncio.Task[None]:
                return asyncio.create_task(late())

            with ExecutionContext(Limits(max_steps=2, landing=None)) as gate:
                task = (await gate.acall_llm(begin)).value
                go_on.set()
                assert task is not None
                await task
                assert (gate.usage.model_calls, gate.usage.steps, len(server.requests)) == (2, 2, 1)


# --- replies without end ----------------------------------------------------------------------------------------------

DEEP = b"[" * 100_000 + b"]" * 100_000
ONCE = {"max_tokens": 300}


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_WHOLE_BYTES", 100_000)
    monkeypatch.setattr(exchange, "MOST_STREAM_BYTES", 200_000)
    monkeypatch.setattr(exchange, "MOST_EVENT_BYTES", 50_000)


@every_side
@whole_or_streamed
@pytest.mark.parametrize("part", [b"x" * 10_000, b"data: 1\n" * 1_000], ids=["one line", "lines"])
@pytest.mark.usefixtures("small_bounds")
async def test_a_reply_that_does_not_end_is_not_read_on(side: Plain, stream: bool, part: bytes) -> None:
    kind = EVENT_STREAM if stream else "application/json"
    with WireServer(lambda request: WireReply(parts=[part] * 100, content_type=kind)) as server:
        async with side.using(side.chat_client(server)) as http, side.using(contained(prices=PRICES)) as gate:
            client = http.with_options(max_retries=0)
            with pytest.raises(Exception, match=r"Connection error|larger than") as caught:
                answer = await side.of(chat(client, stream=stream, **ONCE))
                await side.all(answer) if stream else answer
            assert type(caught.value.__cause__ or caught.value).__name__ == "ReadError"
            assert gate.usage.tokens.output_tokens == 300


@every_side
@pytest.mark.usefixtures("small_bounds")
async def test_a_small_reply_that_unpacks_to_much_is_not_unpacked(side: Plain) -> None:
    packed = gzip.compress(b" " * 1_000_000)
    with WireServer(lambda request: WireReply(headers={"content-encoding": "gzip"}, body=packed)) as server:
        async with side.using(side.chat_client(server)) as client, side.using(contained(prices=PRICES)):
            with pytest.raises(openai.APIConnectionError):
                await side.of(chat(client.with_options(max_retries=0), **ONCE))


@every_side
async def test_a_packed_reply_is_read(side: Plain) -> None:
    body = b'{"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
    reply = WireReply(headers={"content-encoding": "gzip"}, body=gzip.compress(body))
    with WireServer(lambda request: reply) as server:
        async with side.using(side.chat_client(server)) as client, side.using(contained(prices=PRICES)) as gate:
            assert (await side.of(chat(client))).id == "x"
            assert gate.usage.tokens.total == 7


@whole_or_streamed
def test_a_nested_reply_is_charged_like_one_that_cannot_be_read(stream: bool) -> None:
    body = b'{"id": "x", "choices": [], "usage": ' + DEEP + b"}"
    reply = WireReply(parts=[b"data: " + body + b"\n\n"], content_type=EVENT_STREAM) if stream else WireReply(body=body)
    with WireServer(lambda request: reply) as server:
        with PLAIN.chat_client(server) as client, contained(prices=PRICES) as gate:
            answer = client.chat.completions.with_streaming_response.create(
                model="gpt-5-mini", messages=[], stream=stream, **ONCE
            )
            with answer as response:
                assert DEEP in b"".join(response.iter_bytes())
            assert (gate.usage.tokens.output_tokens, len(server.requests)) == (300, 1)


def test_a_nested_refusal_costs_nothing() -> None:
    with WireServer(lambda request: WireReply(400, body=DEEP)) as server:
        with PLAIN.chat_client(server) as client, contained(prices=PRICES) as gate:
            with pytest.raises(openai.BadRequestError):
                chat(client)
            assert gate.usage.tokens.total == 0


# --- other models than the one that is asked --------------------------------------------------------------------------

OTHER, FLAT = ModelPrice.per_million(100, 1000), ModelPrice.per_million(100, 100)
WHOLE: dict[str, object] = {"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
ADVISED = [{"type": "advisor_20260301", "name": "advisor", "model": "opus"}]
CAP = "max_output_tokens"
FIELDS = {
    "openrouter": (chat, {"models": ["opus"]}, 60 * 100),
    "litellm": (chat, {"fallbacks": ["opus"]}, 60 * 100),
    "anthropic": (messages, {"fallbacks": [{"model": "opus"}]}, 60 * 100),
    "advisor": (messages, {"tools": ADVISED}, 60 * 100),
}


@pytest.mark.parametrize(("ask", "fields", "micros"), FIELDS.values(), ids=FIELDS)
def test_a_call_costs_what_the_dearest_model_costs_that_may_answer_it(
    ask: Ask, fields: dict[str, object], micros: int
) -> None:
    with server_for(ask, always(say("Good."))) as server, sync_client(ask, server) as client:
        with contained(max_cost_usd=500, max_part_tokens=100, prices={**PRICES, "opus": OTHER}) as gate:
            ask(client, extra_body=fields)
            assert gate.usage.cost_nanos == micros * 1_000
        with pytest.raises(UnpricedModelError, match="opus has no known price, and the request lets it answer"):
            with contained(max_cost_usd=500, max_part_tokens=100, prices=PRICES):
                ask(client, extra_body=fields)
        assert len(server.requests) == 1


def test_the_deployment_in_an_address_counts_if_its_price_is_known() -> None:
    with WireServer(lambda request: json_reply(WHOLE)) as server, contained_http_client() as http:
        for name, nanos in (("opus", 7_000 * 100), ("mine", 7_000)):
            how: Any = {"azure_endpoint": server.url, "azure_deployment": name, "api_version": "1", "api_key": "k"}
            client = openai.AzureOpenAI(http_client=http, **how)
            with contained(max_cost_usd=500, prices={GPT: ModelPrice.per_million(1, 1), "opus": FLAT}) as gate:
                chat(client)
                assert gate.usage.cost_nanos == nanos


def test_each_model_that_may_answer_gets_its_part_of_what_is_granted() -> None:
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client:
        fallbacks = [{"model": CLAUDE, "max_tokens": 50_000}, {"model": CLAUDE}]
        with contained(max_output_tokens=3000):
            messages(client, max_tokens=100, extra_body={"fallbacks": fallbacks})
        body = server.bodies()[0]
    assert (body["max_tokens"], [each.get("max_tokens") for each in body["fallbacks"]]) == (100, [1000, None])


COMPACT: Any = {"edits": [{"type": "compact_20260112"}]}, [{"type": "compaction", "compact_threshold": 1000}]


@pytest.mark.parametrize(("ask", "field", "cap"), [(messages, COMPACT[0], "max_tokens"), (responses, COMPACT[1], CAP)])
def test_a_summary_that_the_provider_makes_on_the_way_has_its_part_of_what_is_granted(
    ask: Ask, field: Any, cap: str
) -> None:
    with server_for(ask, always(say("Good."))) as server, sync_client(ask, server) as client:
        with contained(max_output_tokens=3000):
            ask(client, extra_body={"context_management": field, cap: 2000})
            ask(client, extra_body={"context_management": {"edits": [{"type": "clear_thinking"}]}, cap: 2000})
    assert [body[cap] for body in server.bodies()] == [1500, 2000]


def test_the_reading_of_a_summary_is_reserved() -> None:
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client:
        with pytest.raises(RunStoppedError, match="ceiling of 10,000 input tokens"), contained(max_input_tokens=10_000):
            asked: Any = {"messages": [{"role": "user", "content": "x" * 6_000}]}
            messages(client, **asked)
            messages(client, **asked, extra_body={"context_management": COMPACT[0]})
        assert len(server.requests) == 1


def test_what_the_provider_adds_for_each_tool_that_it_only_names_is_reserved() -> None:
    tools = [{"type": kind, "name": kind} for kind in ("bash_20250124", "text_editor_20250728", "memory_20250818")]
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client:
        with contained(max_input_tokens=4 * TOOLS_OVERHEAD + 400):
            messages(client, extra_body={"tools": tools})
        with pytest.raises(RunStoppedError), contained(max_input_tokens=4 * TOOLS_OVERHEAD):
            messages(client, extra_body={"tools": tools})
        assert len(server.requests) == 1


@pytest.mark.parametrize("budget", ["many", [1], None])
def test_a_budget_that_is_no_number_is_for_the_provider_to_refuse(budget: object) -> None:
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client:
        with contained(max_cost_usd=1, prices=PRICES) as gate:
            messages(client, extra_body={"thinking": {"type": "enabled", "budget_tokens": budget}})
            assert (gate.usage.steps, len(server.requests)) == (1, 1)


def test_what_the_provider_chooses_or_stores_has_no_bound() -> None:
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client:
        with pytest.raises(UnpricedModelError, match="what fallbacks='default' chooses has no known price"):
            with contained(max_cost_usd=1, prices=PRICES):
                messages(client, extra_body={"fallbacks": "default"})
        with pytest.raises(ConfigurationError, match="max_part_tokens"), contained(max_cost_usd=1, prices=PRICES):
            messages(client, extra_body={"thread": {"type": "continue", "previous_message_id": "m"}})
        assert not server.requests


def test_blocks_that_generators_hold_may_be_left_in_any_order() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:

        def asked(times: int) -> Iterator[Any]:
            with contained(max_steps=5):
                for _ in range(times):
                    yield chat(client)

        with contained(max_cost_usd=1, prices=PRICES) as gate:
            assert len(list(zip(asked(2), asked(2), strict=True))) == 2
            chat(client)
            assert gate.usage.model_calls == 5
        chat(client)
        assert len(server.requests) == 6


# --- answers that drip, and answers that cannot be read ---------------------------------------------------------------


@pytest.mark.parametrize("ends", ["deadline", "block"])
async def test_an_answer_that_drips_is_not_read_on_when_its_call_is_over(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "SETTLE_SECONDS", 0.1)
    reply = WireReply(parts=[b" "] * 100_000, pause=0.01)
    async with WireServer(lambda request: reply) as server:
        with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client(), max_retries=0) as client:

            def plain() -> None:
                with contained(timeout="200ms" if ends == "deadline" else None, store=None):
                    asked = threading.Thread(target=contextvars.copy_context().run, args=(refused,))
                    asked.start()
                    if ends == "deadline":
                        asked.join()
                    else:
                        asyncio.run_coroutine_threadsafe(server.until(lambda: bool(server.requests)), loop).result()
                asked.join()

            def refused() -> None:
                with pytest.raises(CallStopped):
                    chat(client)

            loop = asyncio.get_running_loop()
            await asyncio.to_thread(plain)
            await server.until(lambda: server.open_connections == 0)


COUNTED: dict[str, Any] = {"id": "c", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 9000}}


@pytest.mark.parametrize(
    "body",
    [
        msgspec.json.encode(COUNTED)[:-1],
        msgspec.json.encode(COUNTED) + b"\n{}",
        b"\xef\xbb\xbf" + msgspec.json.encode(COUNTED)[:-1],
        msgspec.json.encode({**COUNTED, "usage": {"prompt_tokens": "100", "completion_tokens": "9000"}}),
        b"data: " + msgspec.json.encode(COUNTED),
    ],
    ids=["cut", "followed", "marked", "counts in words", "unasked stream"],
)
def test_an_answer_that_cannot_be_read_is_charged_what_was_reserved(body: bytes) -> None:
    with WireServer(lambda request: WireReply(body=body)) as server, contained_http_client() as http:
        with contained(max_cost_usd=1, prices=PRICES) as gate:
            request = {"model": GPT, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 9_500}
            http.post(f"{server.url}/chat/completions", json=request)
        assert gate.usage.tokens.output_tokens == 9_500


@pytest.mark.parametrize("kind", ["Text/Event-Stream", "text/plain; charset=utf-8", "application/octet-stream"])
@every_side
async def test_a_stream_of_another_type_stays_one_and_is_counted(side: Plain, kind: str) -> None:
    parts = [b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi."}}]}\n\n', b"data: [DONE]\n\n"]
    told = b"data: " + msgspec.json.encode(COUNTED) + b"\n\n"
    with WireServer(lambda request: WireReply(parts=[parts[0], told, parts[1]], content_type=kind)) as server:
        async with side.using(side.chat_client(server)) as client, side.using(contained(prices=PRICES)) as gate:
            (chunk,) = await side.all(await side.of(chat(client, stream=True)))
            assert chunk.choices[0].delta.content == "Hi."
            assert (gate.usage.tokens.input_tokens, gate.usage.tokens.output_tokens) == (100, 9000)
        assert server.requests[0].json()["stream_options"] == {"include_usage": True}


@every_side
async def test_a_stream_of_another_type_arrives_before_it_is_complete(side: Plain) -> None:
    part = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi."}}]}\n\n'
    with WireServer(lambda request: WireReply(parts=[part, part], content_type="text/plain", pause=30.0)) as server:
        async with side.using(side.chat_client(server)) as client, side.using(contained(prices=PRICES)):
            stream = await side.of(chat(client, stream=True))
            assert (await side.first(stream)).choices[0].delta.content == "Hi."
            await side.of(stream.close())


def test_an_event_whose_counts_cannot_be_read_costs_what_was_reserved() -> None:
    broken = b'data: {"choices":[],"usage":{"prompt_tokens":"many","completion_tokens":9000}}\n\n'
    reply = WireReply(parts=[broken, b"data: [DONE]\n\n"], content_type=EVENT_STREAM)
    with WireServer(lambda request: reply) as server, contained_http_client() as http:
        with OpenAI(api_key="k", base_url=server.url, http_client=http) as client, contained(prices=PRICES) as gate:
            list(chat(client, stream=True, max_tokens=9_500))
        assert gate.usage.tokens.output_tokens == 9_500


@pytest.mark.parametrize("more", [{}, {"model": "gpt-image-1"}])
def test_a_tool_by_which_another_model_draws_has_no_price(more: dict[str, str]) -> None:
    """What it draws is on the bill, but in no count of the answer."""
    tools: Any = [{"type": "image_generation", **more}]
    with FakeOpenAI(always(say("Good."))) as server, sync_client(responses, server) as client:
        with pytest.raises(UnpricedModelError, match="image_generation"):
            with contained(max_cost_usd=1, max_part_tokens=100, prices=PRICES):
                responses(client, tools=tools)
        assert server.requests == []
        with contained(max_total_tokens=50_000, max_part_tokens=100) as ctx:
            responses(client, tools=tools)
        assert ctx.usage.model_calls == 1


# --- what is billed although it failed --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "code", "calls"),
    [("azure", "content_filter", 1), ("openai", "content_filter", 0), ("groq", "tool_use_failed", 1)],
)
def test_a_refusal_that_the_provider_bills_is_charged_what_was_reserved(provider: str, code: str, calls: int) -> None:
    """Azure bills a prompt that its filter has read; Groq refuses what the model has written."""
    refused = json_reply({"error": {"message": "no", "code": code}}, 400)
    prices = {f"{provider}:m": ModelPrice.per_million(1, 1)}
    with WireServer(lambda request: refused) as server, contained_http_client(provider=provider) as http:
        with contained(max_cost_usd=1, prices=prices) as ctx:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 300}
            assert http.post(f"{server.url}/v1/chat/completions", json=body).status_code == 400
            assert (ctx.usage.presumed.calls, ctx.usage.tokens.output_tokens) == (calls, 300 * calls)
            assert ((ctx.usage.cost_nanos or 0) > 300_000) is bool(calls)


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_body_that_came_in_pieces_is_sent_with_one_length(module: Any) -> None:
    """Two lengths are two requests to some servers, and none to others."""
    sent: list[Any] = []

    def answer(request: Any) -> Any:
        sent.append(request.headers)
        return module.Response(200, json={})

    body = msgspec.json.encode({"model": GPT, "messages": []})
    with contained_http_client(module.MockTransport(answer)) as http, contained(store=None):
        http.post("http://localhost/v1/chat/completions", content=iter([body[:9], body[9:]]))
    assert int(sent[0]["content-length"]) > len(body)
    assert "transfer-encoding" not in sent[0]


def test_threads_that_learn_at_once_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer would be lost if what it counted could not be kept: it is paid by then."""
    monkeypatch.setattr(calls, "KEPT_ANSWERS", 1)
    monkeypatch.setattr("watchkeeper.contained_sdk.jobs.KEPT_JOBS", 1)
    counted, jobs = Counted(), Jobs()
    sent = SentRequest(RESPONSES, b'{"model":"m","input":"Hello there."}', "http://localhost")

    def learn(thread: int) -> None:
        for number in range(8000):
            seen = Seen()
            seen.usage, seen.response_id = TokenUsage(10, 5), f"{thread}-{number}"
            counted.learn(sent, seen)
            jobs.add(seen.response_id, Job(RESPONSES, lambda seen: None, ""))
            jobs.learn(seen.response_id, seen)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(learn, range(8))] == [None] * 8
    finally:
        sys.setswitchinterval(switching)
