"""Instrumented HTTP clients, with the real SDKs against servers that speak the providers' formats."""

# ruff: noqa: PT012, SIM117 -- a block that is ended is what is tested; servers, clients and blocks nest as they are used

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, cast

import anthropic
import msgspec
import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI

from tests.kit import collect_garbage
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.openai_responses import RESPONSES
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk import exchange as contained_streams
from watchkeeper.contained_sdk.calls import CallStopped, Counted
from watchkeeper.contained_sdk.exchange import TaskStream, ThreadStream
from watchkeeper.contained_sdk.http import (
    AsyncContainedTransport,
    ContainedTransport,
    contained_async_http_client,
    contained_http_client,
    sdk_module,
)
from watchkeeper.contained_sdk.reading import Seen, SentRequest
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, RunStoppedError, UnpricedModelError
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.shield.circuit_breaker import CircuitBreakers
from watchkeeper.shield.decision import Decision
from watchkeeper.shield.egress import EgressAllowList
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.usage_hooks import ModelDowngradeHook
from watchkeeper.testing.fake_anthropic import FakeAnthropic
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import (
    EVENT_STREAM,
    Fault,
    FaultKind,
    Script,
    Step,
    WireReply,
    WireRequest,
    WireServer,
    json_reply,
    say,
)

GPT, CLAUDE = "gpt-5-mini", "claude-sonnet-5"
HELLO: Any = [{"role": "user", "content": "Hello there."}]
PRICES = {GPT: ModelPrice.per_million(1, 10), CLAUDE: ModelPrice.per_million(1, 10)}
TOKENS = TokenUsage(input_tokens=10, output_tokens=5)
COST = 10 * 1_000 + 5 * 10_000
"""Nano-dollars of one reply with these tokens, at those prices."""

AT_ONCE = {"retry-after-ms": "1"}
Ask = Callable[..., Any]


def chat(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": GPT, "messages": HELLO, **more})


def responses(client: Any, **more: Any) -> Any:
    return client.responses.create(**{"model": GPT, "input": "Hello there.", **more})


def messages(client: Any, **more: Any) -> Any:
    return client.messages.create(**{"model": CLAUDE, "messages": HELLO, "max_tokens": 1000, **more})


every_interface = pytest.mark.parametrize("ask", [chat, responses, messages], ids=lambda ask: ask.__name__)


def server_for(ask: Ask, script: Script) -> Any:
    return FakeAnthropic(script) if ask is messages else FakeOpenAI(script)


class Plain:
    """How plain code uses clients, blocks and streams; its calls block, so its server has a thread of its own."""

    sdks: tuple[Any, Any] = (OpenAI, Anthropic)
    http_client: Callable[..., Any] = staticmethod(contained_http_client)
    transport = "HTTPTransport"

    def client(self, ask: Ask, server: Any, **how: Any) -> Any:
        return self.sdks[ask is messages](api_key="k", base_url=server.base_url, http_client=self.http_client(**how))

    def chat_client(self, server: WireServer) -> Any:
        return self.sdks[0](api_key="k", base_url=server.url, http_client=self.http_client())

    @contextlib.asynccontextmanager
    async def using(self, manager: Any) -> AsyncGenerator[Any]:
        with manager as value:
            yield value

    async def of(self, value: Any) -> Any:
        return value

    async def all(self, stream: Any) -> list[Any]:
        return list(stream)

    async def first(self, stream: Any) -> Any:
        return next(iter(stream))


class Async(Plain):
    """How async code does the same."""

    sdks = (AsyncOpenAI, AsyncAnthropic)
    http_client = staticmethod(contained_async_http_client)
    transport = "AsyncHTTPTransport"

    @contextlib.asynccontextmanager
    async def using(self, manager: Any) -> AsyncGenerator[Any]:
        async with manager as value:
            yield value

    async def of(self, value: Any) -> Any:
        return await value

    async def all(self, stream: Any) -> list[Any]:
        return [event async for event in stream]

    async def first(self, stream: Any) -> Any:
        return await anext(aiter(stream))


PLAIN, ASYNC = Plain(), Async()
every_side = pytest.mark.parametrize("side", [PLAIN, ASYNC], ids=["plain", "async"])
whole_or_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def sync_client(ask: Ask, server: Any, **how: Any) -> Any:
    return PLAIN.client(ask, server, **how)


def async_client(ask: Ask, server: Any, **how: Any) -> Any:
    return ASYNC.client(ask, server, **how)


def always(step: Step) -> Script:
    return lambda number, body: step


# --- counting and pricing ---------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-118")
@every_side
@every_interface
async def test_each_call_is_counted_and_priced_by_its_own_tokens(side: Plain, ask: Ask) -> None:
    with server_for(ask, always(say("Good."))) as server:
        async with side.using(side.client(ask, server)) as client:
            async with side.using(contained(max_cost_usd=1, prices=PRICES)) as ctx:
                await asyncio.gather(side.of(ask(client)), side.of(ask(client)))
                usage = ctx.usage
    nodes = ctx.get_snapshot().nodes
    assert (usage.steps, usage.model_calls, usage.cost_nanos) == (2, 2, 2 * COST)
    assert usage.tokens == TokenUsage(20, 10)
    assert [(node.operation_name, node.status) for node in nodes] == [(CLAUDE if ask is messages else GPT, "ok")] * 2


@every_side
@every_interface
async def test_a_stream_is_passed_on_and_settled_at_its_end(side: Plain, ask: Ask) -> None:
    with server_for(ask, always(say("One, two, three, four."))) as server:
        async with side.using(side.client(ask, server)) as client:
            async with side.using(contained(max_cost_usd=1, prices=PRICES)) as ctx:
                events = await side.all(await side.of(ask(client, stream=True)))
                assert len(events) > 4
                assert ctx.usage.cost_nanos == COST
                assert [node.status for node in ctx.get_snapshot().nodes] == ["ok"]


def test_the_stream_helpers_of_the_sdks_work_inside() -> None:
    with FakeOpenAI(always(say("Fine."))) as server, sync_client(responses, server) as client, contained() as ctx:
        with client.responses.stream(model=GPT, input="Hello.") as stream:
            assert stream.get_final_response().output_text == "Fine."
        assert ctx.usage.tokens == TOKENS
    with FakeAnthropic(always(say("Fine."))) as other, sync_client(messages, other) as client, contained() as ctx:
        with client.messages.stream(model=CLAUDE, messages=HELLO, max_tokens=9) as stream:
            assert "".join(stream.text_stream) == "Fine."
        assert ctx.usage.tokens == TOKENS


def test_embeddings_cost_their_input() -> None:
    def answer(request: WireRequest) -> WireReply:
        vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
        usage = {"prompt_tokens": 7, "total_tokens": 7}
        return json_reply({"object": "list", "data": [vector], "model": "e", "usage": usage})

    with WireServer(answer) as server, contained_http_client() as http, contained(max_cost_usd=1) as ctx:
        client = OpenAI(api_key="k", base_url=server.url, http_client=http)
        client.embeddings.create(model="text-embedding-3-small", input="Hello there.", encoding_format="float")
        assert ctx.usage.tokens == TokenUsage(7, 0)
        assert ctx.usage.cost_nanos == 7 * 20


@every_side
@pytest.mark.parametrize("name", ["httpx", "httpx2"])
@pytest.mark.parametrize("given_by", ["module", "transport"])
async def test_both_httpx_modules_serve(side: Plain, name: str, given_by: str) -> None:
    module: Any = importlib.import_module(name)
    how = {"httpx": module} if given_by == "module" else {"transport": getattr(module, side.transport)()}
    with FakeOpenAI(always(say("Good."))) as server:
        async with side.using(side.client(chat, server, **how)) as client, side.using(contained()) as ctx:
            await side.of(chat(client))
            assert len(await side.all(await side.of(chat(client, stream=True)))) > 1
            assert ctx.usage.tokens == TokenUsage(20, 10)


def test_an_older_openai_package_gets_the_older_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sdk_module().__name__ == "httpx2"
    monkeypatch.delattr(openai, "DefaultHttpx2Client")
    assert sdk_module().__name__ == "httpx"


@every_side
async def test_outside_of_any_block_requests_pass_untouched(side: Plain) -> None:
    with FakeOpenAI(always(say("Good."))) as server:
        async with side.using(side.client(chat, server)) as client:
            await side.of(chat(client))
            async with side.using(contained()):
                await side.of(chat(client))
            await side.of(chat(client))
        bodies = [request.body for request in server.requests]
    assert bodies[0] == bodies[2]
    assert b"max_tokens" not in bodies[0]
    assert b"max_tokens" in bodies[1]


# --- ceilings ---------------------------------------------------------------------------------------------------------


@every_side
@every_interface
@whole_or_streamed
async def test_what_does_not_fit_is_not_sent(side: Plain, ask: Ask, stream: bool) -> None:
    with server_for(ask, always(say("Good."))) as server:
        async with side.using(side.client(ask, server)) as client:
            with pytest.raises(RunStoppedError) as caught:
                async with side.using(contained(max_steps=3)):
                    while True:
                        answer = await side.of(ask(client, stream=stream))
                        await side.all(answer) if stream else answer
        assert len(server.requests) == 3
    assert caught.value.stop.reason == "step_limit_exceeded"
    assert caught.value.result.usage.steps == 3
    assert isinstance(caught.value.__cause__, CallStopped)


@pytest.mark.spec("FR-119")
def test_a_refusal_gets_past_every_layer_of_retries() -> None:
    """No SDK wraps it, no ``except Exception`` swallows it, nothing waits for it."""
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        seen = 0
        with pytest.raises(RunStoppedError), contained(max_steps=1):
            while True:
                try:
                    chat(client.with_options(max_retries=5))
                except Exception:
                    seen += 1
        assert (seen, len(server.requests)) == (0, 1)


def spendthrift(number: int, body: Mapping[str, Any]) -> Step:
    """Use every output token that was granted, and as much input as there are bytes in the conversation."""
    cap = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens") or 0
    return say("Good.", usage=TokenUsage(len(msgspec.json.encode(body["messages"])), cap))


@pytest.mark.spec("FR-118")
@settings(max_examples=15)
@given(cost=st.integers(1_000, 400_000), cap=st.none() | st.integers(1, 4000), stream=st.booleans())
def test_a_ceiling_on_money_is_never_overshot(cost: int, cap: int | None, stream: bool) -> None:
    dollars = f"{cost / 1_000_000:.6f}"
    named: dict[str, Any] = {} if cap is None else {"max_tokens": cap}
    with FakeOpenAI(spendthrift) as server, sync_client(chat, server) as client:
        with pytest.raises(RunStoppedError) as caught, contained(max_cost_usd=dollars, prices=PRICES):
            while True:
                answer = chat(client, stream=stream, **named)
                list(answer) if stream else answer
        spent = caught.value.result.usage
        sent = len(server.requests)
    assert spent.cost_nanos <= cost * 1_000
    assert spent.model_calls == sent
    assert caught.value.stop.reason == "budget_exceeded"


def test_the_cap_is_what_was_granted_and_everything_else_keeps_its_bytes() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with contained(max_output_tokens=500, prices=PRICES):
            chat(client, max_completion_tokens=4000, temperature=0.1, user="ü")
            chat(client, max_tokens=100)
            chat(client)
        first, second, third = server.bodies()
        original = server.requests[0].body
    assert first["max_completion_tokens"] == 500
    assert "max_tokens" not in first
    assert b'"temperature":0.1' in original.replace(b": ", b":")
    assert second["max_tokens"] == 100
    assert third["max_tokens"] == 490


@pytest.mark.parametrize("first", [-1, 50, 90_000])
@pytest.mark.parametrize("second", [-5, 50, 90_000])
def test_of_two_caps_and_of_negative_ones_none_gets_past_what_was_granted(first: int, second: int) -> None:
    """vLLM takes the newer of both, others the older one; LM Studio takes -1 for no cap at all."""
    caps = {"max_tokens": first, "max_completion_tokens": second}
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with contained(max_output_tokens=500):
            chat(client, **caps)
        sent = server.bodies()[0]
    assert {name: sent[name] for name in caps} == {name: 50 if cap == 50 else 500 for name, cap in caps.items()}


def test_a_ceiling_holds_at_a_server_that_takes_the_larger_of_two_caps() -> None:
    def larger(number: int, body: Mapping[str, Any]) -> Step:
        written = max(body["max_tokens"], body["max_completion_tokens"])
        return say("Good.", usage=TokenUsage(len(msgspec.json.encode(body["messages"])), written))

    with FakeOpenAI(larger) as server, sync_client(chat, server) as client:
        with pytest.raises(RunStoppedError) as caught, contained(max_cost_usd="$0.20", prices=PRICES):
            while True:
                chat(client, max_tokens=50, max_completion_tokens=9_000)
    assert 190_000_000 < caught.value.result.usage.cost_nanos <= 200_000_000


def test_several_alternatives_share_what_was_granted() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with contained(max_output_tokens=900):
            chat(client, n=3, max_tokens=400)
        assert server.bodies()[0]["max_tokens"] == 300


@every_interface
def test_a_conversation_is_bounded_by_its_last_count_and_the_bytes_of_what_is_new(ask: Ask) -> None:
    """With bytes alone the second turn would not fit: its 40,000 bytes count as so many tokens."""
    history: list[Any] = [{"role": "user", "content": "x" * 40_000}]
    field = "input" if ask is responses else "messages"
    tokens = TokenUsage(8_000, 5)
    with server_for(ask, always(say("Good.", usage=tokens))) as server, sync_client(ask, server) as client:
        with contained(max_input_tokens=48_000) as ctx:
            ask(client, **{field: history})
            assert ctx.usage.tokens.input_tokens == 8_000
            history += [{"role": "assistant", "content": "Good."}, {"role": "user", "content": "And now?"}]
            for _ in range(4):
                ask(client, **{field: history})
        with pytest.raises(RunStoppedError), contained(max_input_tokens=48_000):
            for number in range(2):
                ask(client, **{field: [{"role": "user", "content": str(number)}, *history]})
    assert len(server.requests) == 6


@pytest.mark.spec("FR-152")
@every_interface
def test_one_low_count_does_not_let_a_conversation_pass_its_ceiling(ask: Ask) -> None:
    """Some servers leave out what they had in a cache."""
    history: list[Any] = [{"role": "user", "content": "x" * 7_000}]
    field = "input" if ask is responses else "messages"

    def counting(number: int, body: Mapping[str, Any]) -> Step:
        return say("Good.", usage=TokenUsage((6_000, 50, 6_300)[number], 5))

    with server_for(ask, counting) as server, sync_client(ask, server) as client:
        with pytest.raises(RunStoppedError) as caught, contained(max_input_tokens=12_150, max_total_tokens=None):
            for _ in range(3):
                ask(client, **{field: history})
                history += [{"role": "assistant", "content": "Good."}, {"role": "user", "content": "And now?"}]
        assert caught.value.result.usage.tokens.input_tokens == 6_050
        assert len(server.requests) == 2


def test_one_low_count_does_not_lower_what_a_stored_conversation_is_bounded_by() -> None:
    counted = Counted()
    body = {"model": "m", "input": "And now?"}
    bounds: list[int] = []
    previous: dict[str, str] = {}
    for number, tokens in enumerate((6_000, 50, 60)):
        sent = msgspec.json.encode({**body, **previous})
        call = SentRequest(RESPONSES, sent, "https://example.org/v1/responses")
        bounds.append(counted.bound(call)[0])
        seen = Seen()
        seen.usage, seen.response_id = TokenUsage(tokens, 5), f"r{number}"
        counted.learn(call, seen)
        previous = {"previous_response_id": seen.response_id}
    assert bounds[0] < 6_000 < bounds[1] < bounds[2]


def test_several_conversations_side_by_side_keep_their_counts() -> None:
    def counting(number: int, body: Mapping[str, Any]) -> Step:
        return say("Good.", usage=TokenUsage(8_000 if len(body["messages"][0]["content"]) > 99 else 1, 5))

    with FakeOpenAI(counting) as server, sync_client(chat, server) as client:
        with contained(max_input_tokens=100_000) as ctx:
            histories: list[Any] = [[{"role": "user", "content": name * 40_000}] for name in "ab"]
            for _ in range(4):
                for history in histories:
                    chat(client, messages=history)
                    history += [{"role": "user", "content": "And now?"}]
            assert ctx.usage.tokens.input_tokens == 64_000
            for number in range(9):
                chat(client, messages=[{"role": "user", "content": str(number)}])
            with pytest.raises(CallStopped):
                chat(client, messages=histories[0])


def test_a_request_without_a_cap_gets_the_default_of_its_client() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server, output_cap=77) as client:
        with contained():
            chat(client)
        with contained(max_total_tokens=None):
            chat(client)
        assert server.bodies()[0]["max_tokens"] == 77
        assert "max_tokens" not in server.bodies()[1]
    with pytest.raises(ConfigurationError, match="output_cap=0"):
        contained_http_client(output_cap=0)


def test_thinking_leaves_a_cap_that_the_provider_takes_or_nothing() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client:
        with pytest.raises(RunStoppedError), contained(max_output_tokens=2000):
            messages(client, max_tokens=4000, thinking=thinking)
        assert server.requests == []
        with contained(max_output_tokens=3000):
            messages(client, max_tokens=4000, thinking=thinking)
        assert server.bodies()[0]["max_tokens"] == 3000


def test_a_model_without_a_price_is_refused_before_its_first_request() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with pytest.raises(UnpricedModelError, match=r"unheard-of.*contained\(prices="), contained(max_cost_usd=1):
            chat(client, model="unheard-of")
        with pytest.raises(UnpricedModelError), contained(max_cost_usd=1):
            chat(client, model="unheard-of", stream=True)
        assert server.requests == []
        with contained() as ctx:
            chat(client, model="unheard-of")
            assert ctx.usage.cost_nanos is None
        with contained(max_cost_usd=1, prices={"openrouter:unheard-of": ModelPrice.per_million(1, 10)}) as ctx:
            client = sync_client(chat, server, provider="openrouter")
            chat(client, model="unheard-of")
            client.close()
            assert ctx.usage.cost_nanos == COST


ADDED: dict[str, Any] = {"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]}
GOOGLED: dict[str, Any] = {"extra_body": {"tools": [{"googleSearch": {}}]}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.invalid/a.png"}}]}]


@pytest.mark.spec("FR-118")
@pytest.mark.parametrize(
    ("ask", "more"),
    [
        (chat, {"messages": IMAGE}),
        (chat, {"messages": [{"role": "user", "content": [{"type": "document_url", "document_url": "https://x/a"}]}]}),
        (chat, {"messages": [{"role": "user", "content": [{"type": "input_video", "video_url": "https://x/a"}]}]}),
        (chat, {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        (chat, {"web_search_options": {}}),
        (chat, {"extra_body": {"search_parameters": {"mode": "on"}}}),
        (chat, {"extra_body": {"plugins": [{"id": "web"}]}}),
        (chat, {"extra_body": {"data_sources": [{"type": "azure_search"}]}}),
        (chat, {"extra_body": {"enable_search": True}}),
        (chat, GOOGLED),
        (chat, {"model": "gpt-5-search-api"}),
        (responses, {"input": [{"id": "msg_1"}]}),
        (responses, {"previous_response_id": "resp_unseen"}),
        (responses, {"tools": [{"type": "web_search"}]}),
        (responses, {"input": [*HELLO, ADDED]}),
        (responses, {"input": [*HELLO, {"type": "compaction_trigger"}]}),
        (chat, {"messages": [{"role": "user", "content": [{"type": "stored_text", "text_id": "t"}]}]}),
        (chat, {"messages": [{"role": "user", "content": [{"image_url": {"url": "https://x/a.png"}}]}]}),
        (messages, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ],
)
def test_what_its_bytes_do_not_bound_needs_a_bound(ask: Ask, more: dict[str, Any]) -> None:
    with server_for(ask, always(say("Good."))) as server, sync_client(ask, server) as client:
        with pytest.raises(ConfigurationError, match="max_part_tokens"), contained():
            ask(client, **more)
        assert server.requests == []
        with pytest.raises(RunStoppedError), contained(max_part_tokens="3M"):
            ask(client, **more)
        assert server.requests == []
        with contained(max_part_tokens="10k") as ctx:
            ask(client, **more)
            assert ctx.usage.tokens == TOKENS
        with contained(max_total_tokens=None):
            ask(client, **more)


UNKNOWN: Any = {"extra_body": {"new_search": {}}}
THINKS: Any = {"extra_body": {"enable_thinking": True}}
GEMINI: Any = {"extra_body": {"extra_body": {"google": {"cached_content": "c", "thinking_config": {}}}}}


@pytest.mark.parametrize("ask", [chat, responses, messages])
@pytest.mark.parametrize(
    ("more", "name"), [(UNKNOWN, "new_search"), (GEMINI, "cached_content"), (THINKS, "enable_thinking")]
)
def test_a_field_that_nobody_knows_needs_a_bound_where_a_ceiling_is_named(
    ask: Ask, more: dict[str, Any], name: str
) -> None:
    with server_for(ask, always(say("Good."))) as server, sync_client(ask, server) as client:
        refused = pytest.raises(ConfigurationError, match=f"knows here how much {name} may.*max_part_tokens")
        with refused, contained(max_total_tokens="90k"):
            ask(client, **more)
        with pytest.raises(RunStoppedError), contained(max_total_tokens="90k", max_part_tokens="91k"):
            ask(client, **more)
        with pytest.raises(CallStopped, match=name), ExecutionContext(Limits(max_total_tokens="90k")):
            ask(client, **more)
        assert server.requests == []
        for allowed in ({"max_part_tokens": 1}, {"uncounted": "allow"}):
            with contained(max_total_tokens="90k", **cast("Any", allowed)) as ctx:
                ask(client, **more)
                assert ctx.usage.tokens == TOKENS
        with contained():
            ask(client, **more)


SIZED: list[tuple[Ask, dict[str, Any]]] = [
    (chat, {"role": "user", "content": [{"text": "Hi."}, {"type": "reference", "reference_ids": [1]}]}),
    (responses, {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}),
    (responses, {"type": "custom_tool_call_output", "call_id": "c", "output": "Done."}),
    (responses, {"role": "assistant", "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]}),
    (messages, {"role": "user", "content": [{"type": "search_result", "source": "x", "title": "y", "content": []}]}),
    (messages, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}),
]


@pytest.mark.parametrize(("ask", "item"), SIZED)
def test_parts_that_are_no_more_than_their_bytes_need_no_bound(ask: Ask, item: dict[str, Any]) -> None:
    with server_for(ask, always(say("Good."))) as server, sync_client(ask, server) as client:
        with contained(max_total_tokens="90k") as ctx:
            ask(client, **{"input" if ask is responses else "messages": [*HELLO, item]})
            assert ctx.usage.tokens == TOKENS


def test_an_inner_bound_of_a_part_does_not_lower_the_one_around_it() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with pytest.raises(RunStoppedError), contained(max_total_tokens="50k", max_part_tokens="60k"):
            with contained(max_part_tokens=10):
                chat(client, messages=IMAGE, max_tokens=100)
        assert server.requests == []


def test_a_stored_answer_that_was_seen_bounds_what_goes_on_from_it() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(responses, server) as client, contained() as ctx:
        first = responses(client)
        responses(client, previous_response_id=first.id)
        assert ctx.usage.model_calls == 2


def test_reasoning_that_the_provider_keeps_counts_in_what_goes_on_from_it() -> None:
    used = TokenUsage(10, 5000, reasoning_tokens=4990)
    with FakeOpenAI(always(say("Good.", usage=used))) as server, sync_client(responses, server) as client:
        with pytest.raises(RunStoppedError, match="9,000 tokens"), contained(max_total_tokens=9_000):
            responses(client, input=HELLO, max_output_tokens=5000)
            named: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
            responses(client, input=[*HELLO, named], max_output_tokens=100)
        assert len(server.requests) == 1


def test_text_in_a_document_is_bounded_by_its_bytes() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Some words."}
    content = [{"type": "document", "source": source}, {"type": "text", "text": "Read it."}]
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client, contained() as ctx:
        messages(client, messages=[{"role": "user", "content": content}])
        assert ctx.usage.model_calls == 1


# --- retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-118")
@every_interface
def test_each_retry_of_the_sdk_is_admitted(ask: Ask) -> None:
    down = Fault("server", headers=AT_ONCE)
    with server_for(ask, [down, down, say("Good.")]) as server, sync_client(ask, server) as client:
        with contained() as ctx:
            ask(client)
            assert (ctx.usage.steps, ctx.usage.retries, ctx.usage.tokens) == (3, 2, TOKENS)
            assert [node.status for node in ctx.get_snapshot().nodes] == ["error", "error", "ok"]
        assert len(server.requests) == 3


@every_interface
async def test_no_more_retries_leave_than_there_are(ask: Ask) -> None:
    down = Fault("server", headers=AT_ONCE)
    async with server_for(ask, always(down)) as server, async_client(ask, server) as client:
        with pytest.raises(RunStoppedError) as caught:
            async with contained(max_retries=1):
                await ask(client.with_options(max_retries=4), stream=True)
        assert len(server.requests) == 2
        assert caught.value.stop.reason == "retry_budget_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_a_wait_that_would_outlast_the_deadline_is_not_begun(stream: bool) -> None:
    busy = Fault("rate_limit", headers={"retry-after": "30"})
    with FakeOpenAI(always(busy)) as server, sync_client(chat, server) as client:
        with pytest.raises(openai.RateLimitError), contained(timeout="20s"):
            chat(client, stream=stream)
        assert len(server.requests) == 1


@every_side
@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [("auth", openai.AuthenticationError, "API key"), ("bad_request", openai.BadRequestError, "frobnicate")],
)
async def test_a_refusal_of_the_provider_reaches_the_caller_as_it_is_and_costs_nothing(
    side: Plain, kind: FaultKind, error: type[Exception], said: str
) -> None:
    with FakeOpenAI(always(Fault(kind))) as server:
        async with side.using(side.client(chat, server)) as client:
            async with side.using(contained(max_cost_usd=1, prices=PRICES)) as ctx:
                for stream in (False, True):
                    with pytest.raises(error, match=said):
                        await side.of(chat(client, stream=stream))
                assert (ctx.usage.cost_nanos, ctx.usage.steps) == (0, 2)
                assert [node.status for node in ctx.get_snapshot().nodes] == ["error", "error"]
        assert len(server.requests) == 2


def test_a_server_that_is_not_there_costs_nothing() -> None:
    client = OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1", http_client=contained_http_client(), max_retries=0)
    with client, contained(max_cost_usd=1, prices=PRICES) as ctx:
        with pytest.raises(openai.APIConnectionError):
            chat(client)
        assert (ctx.usage.cost_nanos, ctx.usage.steps) == (0, 1)


@every_interface
def test_a_connection_that_breaks_is_charged_what_was_reserved(ask: Ask) -> None:
    with server_for(ask, always(Fault("broken"))) as server, sync_client(ask, server) as client:
        client = client.with_options(max_retries=0)
        with contained(max_cost_usd=1, prices=PRICES) as ctx:
            for stream in (False, True):
                with pytest.raises(Exception, match=r"(?i)connection|peer|incomplete"):
                    list(ask(client, stream=stream))
            cap = 1000 if ask is messages else 16_384
            assert cast("int", ctx.usage.cost_nanos) > 2 * cap * 10_000


def test_an_answer_that_is_none_is_charged_by_its_size() -> None:
    with WireServer(lambda request: WireReply(body=b"<html>Hm.</html>")) as server:
        client = OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client())
        with client, contained(max_cost_usd=1, prices=PRICES) as ctx:
            with pytest.raises(ValueError, match="Expecting value"):
                chat(client)
            assert ctx.usage.tokens.output_tokens == 16
            assert ctx.usage.tokens.input_tokens > 50


# --- streams ----------------------------------------------------------------------------------------------------------


def events_of(*texts: str) -> list[bytes]:
    def chunk(text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        return b"data: " + msgspec.json.encode({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})

    return [chunk(text) + b"\n\n" for text in texts]


USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}\n\n'


def streaming(parts: list[bytes], **how: Any) -> WireServer:
    return WireServer(lambda request: WireReply(parts=parts, content_type=EVENT_STREAM, **how))


def test_the_counts_that_only_we_asked_for_are_not_passed_on() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client, contained() as ctx:
        hidden = list(chat(client, stream=True))
        shown = list(chat(client, stream=True, stream_options={"include_usage": True}))
        assert all(chunk.choices for chunk in hidden)
        assert shown[-1].usage.prompt_tokens == 10
        assert ctx.usage.tokens == TokenUsage(20, 10)
        assert all(body["stream_options"] == {"include_usage": True} for body in server.bodies())


@every_side
async def test_bytes_are_passed_on_before_the_answer_is_complete(side: Plain) -> None:
    with streaming([*events_of("one"), *events_of("two")], pause=30.0) as server:
        async with side.using(side.chat_client(server)) as client, side.using(contained()):
            stream = await side.of(chat(client, stream=True))
            assert (await side.first(stream)).choices[0].delta.content == "one"
            await side.of(stream.close())


@pytest.mark.spec("FR-118")
@every_side
async def test_a_stream_that_is_closed_midway_is_dropped_and_charged_what_was_reserved(side: Plain) -> None:
    with streaming(events_of("one", "two"), pause=30.0) as server:
        async with side.using(side.chat_client(server)) as client:
            async with side.using(contained(prices=PRICES)) as ctx:
                async with side.using(await side.of(chat(client, stream=True, max_tokens=300))) as stream:
                    await side.first(stream)
                assert ctx.usage.tokens.output_tokens == 300
                assert cast("int", ctx.usage.cost_nanos) > 300 * 10_000
                assert [node.status for node in ctx.get_snapshot().nodes] == ["error" if side is PLAIN else "aborted"]
                await server.until(lambda: server.open_connections == 0)


def test_a_stream_that_is_closed_after_its_last_word_costs_what_it_said() -> None:
    parts = [*events_of("one"), USAGE, b"data: [DONE]\n\n"]
    with streaming(parts) as server:
        with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
            with contained() as ctx:
                assert [chunk.choices[0].delta.content for chunk in chat(client, stream=True)] == ["one"]
                assert ctx.usage.tokens == TOKENS


def test_a_stream_without_counts_is_charged_by_its_size() -> None:
    with streaming([*events_of("one"), b"data: {", b"}\n\ndata: [DONE]"]) as server:
        with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
            with contained() as ctx:
                list(chat(client, stream=True))
                assert 50 < ctx.usage.tokens.output_tokens < 200


@every_side
async def test_a_stream_that_nobody_reads_any_more_is_dropped(side: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ThreadStream if side is PLAIN else TaskStream
    settled = threading.Event()
    over = kind.over

    def over_and_told(stream: Any) -> None:
        over(stream)
        settled.set()

    monkeypatch.setattr(kind, "over", over_and_told)
    with streaming(events_of("one", "two"), pause=30.0) as server:
        async with side.using(side.chat_client(server)) as client, side.using(contained()) as ctx:
            stream = await side.of(chat(client, stream=True, max_tokens=300))
            del stream
            # The thread that handed the stream over may let go of it only after the first collection.
            while not settled.is_set():
                collect_garbage()
                await asyncio.sleep(0)
            await server.until(lambda: server.open_connections == 0)
            assert ctx.usage.tokens.output_tokens == 300


def test_an_interrupt_while_the_answer_is_awaited_drops_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr(contained_streams, "SimpleQueue", Impatient)
    with FakeOpenAI(always(Fault("hang"))) as server, sync_client(chat, server) as client:
        with pytest.raises(KeyboardInterrupt), contained(timeout="5m"):
            chat(client, stream=True)


@pytest.mark.parametrize("ask", [chat, messages])
def test_an_error_inside_a_stream_reaches_the_caller_and_is_charged_what_was_reserved(ask: Ask) -> None:
    step = Fault("overloaded", midway=True)
    with server_for(ask, always(step)) as server, sync_client(ask, server) as client:
        with contained() as ctx:
            with contextlib.suppress(openai.APIError, anthropic.APIError):
                list(ask(client, stream=True))
            assert ctx.usage.tokens.output_tokens > 500


@every_side
async def test_an_answer_that_is_not_streamed_though_it_was_to_be_passes(side: Plain) -> None:
    whole = json_reply({"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    body = {"model": GPT, "messages": HELLO, "stream": True}
    with WireServer(lambda request: whole) as server:
        async with side.using(side.http_client()) as http, side.using(contained()) as ctx:
            response = await side.of(http.post(f"{server.url}/v1/chat/completions", json=body))
            assert response.json()["id"] == "x"
            assert ctx.usage.tokens == TokenUsage(3, 4)


# --- time -------------------------------------------------------------------------------------------------------------


@every_side
@whole_or_streamed
async def test_the_deadline_ends_a_call(side: Plain, stream: bool) -> None:
    clock = TestClock()

    def hang(number: int, body: Any) -> Fault:
        clock.advance(10)
        return Fault("hang")

    with FakeOpenAI(hang) as server:
        async with side.using(side.client(chat, server)) as client:
            with pytest.raises(RunStoppedError) as caught:
                async with side.using(contained(timeout="10s", prices=PRICES, clock=clock)):
                    await side.of(chat(client, stream=stream))
    assert caught.value.stop.reason == "timeout"
    assert clock.monotonic() == 10
    assert caught.value.result.usage.cost_nanos > 16_384 * 10_000


FIRST_CALL = """
import sys
from watchkeeper.blocks.contained import contained
from watchkeeper.core.usage import ModelPrice
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import say
from openai import OpenAI
from watchkeeper.contained_sdk.http import {client}

with FakeOpenAI(lambda number, body: say("Good.")) as server:
    {client}()
    client = OpenAI(api_key="k", base_url=server.base_url, http_client=None)
    with contained(timeout="1m") as gate:
        gate.call_tool(int)
        before = set(sys.modules)
        client.chat.completions.create(model="m", messages=[dict(role="user", content="Hello.")])
        client.responses.create(model="m", input="Hello.")
        print(sorted(name for name in set(sys.modules) - before if name.startswith("openai")))
"""


@pytest.mark.parametrize("client", ["contained_http_client", "contained_async_http_client"])
def test_the_first_call_of_a_process_imports_nothing_of_the_sdk_s_in_the_block_s_time(client: str) -> None:
    code = FIRST_CALL.format(client=client)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.spec("FR-118")
@every_side
async def test_the_deadline_ends_a_stream_in_which_nothing_arrives(side: Plain) -> None:
    clock = TestClock()
    passing = threading.Timer(0.02, clock.advance, [10])  # a moment later, while the rest is awaited
    with streaming(events_of("one", "two"), pause=600.0) as server:
        async with side.using(side.chat_client(server)) as client:
            with pytest.raises(RunStoppedError) as caught:
                async with side.using(contained(timeout="10s", clock=clock)):
                    stream = await side.of(chat(client, stream=True))
                    assert (await side.first(stream)).choices[0].delta.content == "one"
                    passing.start()
                    await side.all(stream)
    passing.join()
    assert caught.value.stop.reason == "timeout"


async def test_cancelling_a_call_is_settled_and_passes_through() -> None:
    for stream in (False, True):
        async with FakeOpenAI(always(Fault("hang"))) as server, async_client(chat, server) as client:
            async with contained() as ctx:
                task = asyncio.create_task(chat(client, stream=stream, max_tokens=300))
                await server.until(lambda: len(server.requests) == 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await server.until(lambda: server.open_connections == 0)
                assert ctx.usage.tokens.output_tokens == 300


def test_an_abort_ends_a_call_under_way() -> None:
    with FakeOpenAI(always(Fault("hang"))) as server, sync_client(chat, server) as client:
        with pytest.raises(RunStoppedError) as caught, contained() as ctx:
            threading.Timer(0.1, ctx.abort, ["enough"]).start()
            chat(client, stream=True)
    assert caught.value.stop.reason == "aborted"


# --- other requests, hooks, breakers ----------------------------------------------------------------------------------


def anything(request: WireRequest) -> WireReply:
    return json_reply({"object": "list", "data": [], "model": "m", "results": [], "id": "x"})


@every_side
async def test_reading_and_free_requests_pass_uncounted(side: Plain) -> None:
    with WireServer(anything) as server:
        async with side.using(side.chat_client(server)) as client:
            async with side.using(contained(max_steps=1, max_cost_usd=1)) as ctx:
                await side.of(client.models.list())
                await side.of(client.moderations.create(input="Hello."))
                await side.of(client.models.list())
                assert ctx.usage.steps == 0
        assert len(server.requests) == 3


def test_a_request_that_bills_in_unknown_ways_is_a_tool_call_and_needs_a_chain_without_a_cost_ceiling() -> None:
    with WireServer(anything) as server:
        with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
            with contained() as ctx:
                client.images.generate(prompt="An owl.")
                assert (ctx.usage.tool_calls, ctx.usage.cost_nanos) == (1, None)
            with pytest.raises(UnpricedModelError, match="images/generations"), contained(max_cost_usd=1):
                client.images.generate(prompt="An owl.")
        assert len(server.requests) == 1


def test_nothing_leaves_after_a_stop_not_even_what_is_free() -> None:
    with WireServer(anything) as server:
        with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
            with pytest.raises(RunStoppedError), contained() as ctx:
                ctx.abort("enough")
                client.models.list()
        assert server.requests == []


def test_egress_hooks_are_asked_about_every_request() -> None:
    shield = ShieldPipeline(egress=EgressAllowList(["api.openai.com"], ["GET", "POST"]))
    with WireServer(anything) as server:
        with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
            for request in (client.models.list, lambda: chat(client)):
                with pytest.raises(RunStoppedError, match=r"add 'http://127.* to hosts"), contained(pipeline=shield):
                    request()
        assert server.requests == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Decision.HALT, "policy_halt"),
        (Decision.QUARANTINE, "policy_quarantine"),
        (Decision.DEGRADE, "policy_halt"),
        (None, "hook_failed"),
    ],
)
def test_a_refused_request_stops_the_block_for_the_reason_that_its_event_names(
    said: Decision | None, reason: str
) -> None:
    class Guard:
        def before_egress(self, ctx: object, url: str, method: str) -> Decision:
            if said is None:
                raise ValueError
            return said

        def explain(self, ctx: object) -> str:
            return "This one is for a person to decide."

    with WireServer(anything) as server, contained_http_client() as http:
        with pytest.raises(RunStoppedError) as caught, contained(pipeline=ShieldPipeline(egress=Guard())):
            http.get(f"{server.url}/v1/models?of=somebody")
        assert server.requests == []
    (event,) = caught.value.result.events
    assert (caught.value.stop.reason, caught.value.stop.source) == (reason, "hook")
    assert caught.value.stop.message == event.reason
    assert event.event_type == (reason if said is not Decision.DEGRADE else "policy_degrade")


def test_a_hook_may_switch_to_the_cheaper_model() -> None:
    class Always:
        def before_llm_call(self, ctx: object) -> Decision:
            return Decision.DEGRADE

    shield = ShieldPipeline(pre_dispatch=ModelDowngradeHook("openai:gpt-5-nano", at_cost_share=None, when=Always()))
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with contained(pipeline=shield) as ctx:
            chat(client)
            list(chat(client, stream=True))
            assert ctx.usage.steps == 2
        assert [body["model"] for body in server.bodies()] == ["gpt-5-nano"] * 2


class AlwaysDegrade:
    def before_llm_call(self, ctx: object) -> Decision:
        return Decision.DEGRADE


def test_the_cheaper_model_of_one_provider_is_never_asked_of_another() -> None:
    hook = ModelDowngradeHook("openai:gpt-5-nano", at_cost_share=None, when=AlwaysDegrade())
    with FakeAnthropic(always(say("Good."))) as server, sync_client(messages, server) as client:
        with pytest.raises(RunStoppedError, match="openai:gpt-5-nano cannot take the place of a model of anthropic"):
            with contained(pipeline=ShieldPipeline(pre_dispatch=hook)):
                messages(client)
        assert server.requests == []


@pytest.mark.parametrize("name", ["gpt-5-nano", "openai:gpt-5-nano", "ft:gpt-5-nano:acme", "openai:ft:gpt-5-nano:acme"])
def test_a_cheaper_model_may_be_named_with_or_without_its_provider(name: str) -> None:
    hook = ModelDowngradeHook(name, at_cost_share=None, when=AlwaysDegrade())
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with contained(pipeline=ShieldPipeline(pre_dispatch=hook)):
            chat(client)
        assert [body["model"] for body in server.bodies()] == [name.removeprefix("openai:")]


def test_a_hook_that_halts_ends_the_block() -> None:
    class Never:
        def before_llm_call(self, ctx: object) -> Decision:
            return Decision.HALT

    for decision in (Decision.HALT, Decision.RETRY):
        Never.before_llm_call = lambda self, ctx, said=decision: said  # type: ignore[method-assign,misc]
        with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
            with pytest.raises(RunStoppedError), contained(pipeline=ShieldPipeline(pre_dispatch=Never())):
                chat(client)
            assert server.requests == []


def test_an_open_circuit_keeps_calls_away() -> None:
    breakers = CircuitBreakers(failure_threshold=1)
    with FakeOpenAI(always(Fault("server", headers=AT_ONCE))) as server, sync_client(chat, server) as client:
        with pytest.raises(RunStoppedError) as caught, contained(circuit_breaker=breakers):
            chat(client)
        assert len(server.requests) == 1
    assert caught.value.stop.reason == "circuit_open"


# --- threads and tasks ------------------------------------------------------------------------------------------------


async def test_tasks_and_their_threads_are_inside() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        async with contained() as ctx:
            await asyncio.gather(asyncio.to_thread(chat, client), asyncio.to_thread(chat, client))
            assert ctx.usage.model_calls == 2


def test_a_bare_thread_is_inside_if_it_is_given_the_context_variables() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        with contained(max_steps=4) as ctx, ThreadPoolExecutor(4) as pool:
            inside = [pool.submit(contextvars.copy_context().run, chat, client) for _ in range(10)]
            errors = [future.exception() for future in inside]
            assert sum(error is None for error in errors) == 4
            assert all(isinstance(error, CallStopped) for error in errors if error)
            assert ctx.usage.steps == 4
        assert len(server.requests) == 4


async def test_a_task_that_outlives_its_block_can_send_nothing() -> None:
    async with FakeOpenAI(always(say("Good."))) as server, async_client(chat, server) as client:
        go_on = asyncio.Event()

        async def late() -> None:
            await go_on.wait()
            await chat(client)

        async with contained():
            task = asyncio.create_task(late())
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(CallStopped, match="closed"):
            await task
        assert server.requests == []


def test_a_stream_that_is_still_open_when_its_block_ends_is_over() -> None:
    with streaming(events_of("one", "two"), pause=30.0) as server:
        with OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
            with contained() as ctx:
                stream = chat(client, stream=True, max_tokens=300)
                next(iter(stream))
            with pytest.raises(CallStopped, match="closed"):
                list(stream)
            assert ctx.usage.tokens.output_tokens == 300


# --- transports of one's own ------------------------------------------------------------------------------------------


class OneAnswer:
    """A transport without a network."""

    def __init__(self, httpx: Any, headers: Mapping[str, str]) -> None:
        self.httpx = httpx
        self.headers = headers
        self.closed = False

    def handle_request(self, request: Any) -> Any:
        chunks: Iterator[bytes] = iter([*events_of("one"), USAGE, b"data: [DONE]\n\n"])
        return self.httpx.Response(200, headers={"content-type": EVENT_STREAM, **self.headers}, content=chunks)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> OneAnswer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def test_any_transport_can_be_contained() -> None:
    import httpx

    real = OneAnswer(httpx, {})
    http = httpx.Client(transport=cast("Any", ContainedTransport(real)))
    with OpenAI(api_key="k", base_url="http://127.0.0.1/v1", http_client=http) as client, contained() as ctx:
        assert len(list(chat(client, stream=True))) == 1
        assert ctx.usage.tokens == TOKENS
    assert real.closed
    assert isinstance(AsyncContainedTransport(httpx.AsyncHTTPTransport()), AsyncContainedTransport)


def test_a_stream_that_came_compressed_unasked_passes_unread_and_is_charged_what_was_reserved() -> None:
    import httpx

    http = contained_http_client(OneAnswer(httpx, {"content-encoding": "br"}), httpx=httpx)
    with http, contained() as ctx:
        body = {"model": GPT, "messages": HELLO, "stream": True, "max_tokens": 300}
        with http.stream("POST", "http://127.0.0.1/v1/chat/completions", json=body) as response:
            assert b"".join(response.iter_raw()).endswith(b"data: [DONE]\n\n")
        assert ctx.usage.tokens.output_tokens == 300


def test_a_body_that_is_no_json_is_no_model_call() -> None:
    with WireServer(anything) as server, contained_http_client() as http, contained() as ctx:
        http.post(f"{server.url}/v1/chat/completions", content=b"[1, 2")
        assert ctx.usage.tool_calls == 1


def test_real_providers_are_blocked_where_tests_block_them() -> None:
    with contained_http_client() as http, pytest.raises(ConfigurationError, match="not on this machine"), contained():
        http.post("https://api.openai.com/v1/chat/completions", json={"model": GPT, "messages": HELLO})


def test_the_gate_of_a_block_is_an_execution_context() -> None:
    with contained() as ctx:
        assert isinstance(ctx, ExecutionContext)
