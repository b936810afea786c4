"""Replies that are not what their interface promises raise a `ProviderError`; counts that cannot be are not booked."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.malformed_replies import (
    CHAT,
    INTERFACES,
    LITELLM,
    MESSAGES,
    PRICE,
    RESPONSES,
    Interface,
    ignore,
    replies_of,
)
from tests.adapters.remote import request
from tests.kit import events
from watchkeeper import Agent, Limits, RunResult, arun
from watchkeeper.adapters import reply_bounds, transport
from watchkeeper.adapters.provider_errors import MESSAGE_LENGTH
from watchkeeper.clock import TestClock
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.secrets import hold
from watchkeeper.models import ScriptedModel
from watchkeeper.runtime.events import ModelFailed, ModelSwitched
from watchkeeper.testing import FakeAnthropic, FakeOpenAI, Reply, WireReply, WireRequest, WireServer, say

notes = pytest.mark.filterwarnings("ignore::UserWarning:pydantic", "ignore::DeprecationWarning:litellm")
every_interface = pytest.mark.parametrize(
    "interface",
    [CHAT, RESPONSES, MESSAGES, pytest.param(LITELLM, marks=notes)],
    ids=lambda interface: interface.name,
)
every_wire = pytest.mark.parametrize("interface", [CHAT, RESPONSES, MESSAGES], ids=lambda interface: interface.name)
whole_or_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

BATCH = 8


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic"])
@settings(max_examples=8)
@given(seed=st.integers(0, 2**31))
def test_no_damaged_reply_raises_a_foreign_exception(name: str, seed: int) -> None:
    _, defects = asyncio.run(replies_of(INTERFACES[name], range(seed, seed + BATCH)))
    assert not defects


@notes
@settings(max_examples=2)
@given(seed=st.integers(0, 2**31))
def test_nor_does_one_that_litellm_reads(seed: int) -> None:
    _, defects = asyncio.run(replies_of(LITELLM, range(seed, seed + BATCH)))
    assert not defects


def damaged(interface: Interface, **fields: Any) -> Any:
    """Return what answers every request with a good reply, some of whose fields are replaced."""

    def reply(number: int, body: Any) -> Reply:
        return say("An owl.")

    fake = interface.fake(reply)

    def answer(sent: WireRequest) -> WireReply:
        reply = fake.handle(sent)
        return WireReply(body=json.dumps({**msgspec.json.decode(reply.body), **fields}).encode())

    return answer


GARBAGE = {
    "whole": WireReply(body=b'{"choices": 7, "output": 7, "content": 7}'),
    "streamed": WireReply(parts=[b"event: message_start\ndata: [7\n\n"], content_type="text/event-stream"),
}


async def asked(model: Any, *, stream: bool = False, **options: Any) -> RunResult[str]:
    if stream:
        options["on_event"] = ignore
    agent: Agent[str] = Agent(model, "Be brief.", str, limits=Limits(max_cost_usd=1, max_retries=9))
    return await arun(
        agent.prompt("What is an owl?"),
        model=model,
        limits=agent.limits,
        prices={f"{model.provider}:{model.name}": PRICE},
        clock=TestClock(),
        rng=random.Random(1),
        **options,
    )


@every_interface
@whole_or_streamed
async def test_an_unreadable_reply_is_tried_once_more_and_its_worst_case_is_booked(
    interface: Interface, stream: bool
) -> None:
    async with WireServer(lambda sent: GARBAGE["streamed" if stream else "whole"]) as server:
        model = interface.model(server.url)
        result = await asked(model, stream=stream)
        await model.close()
    assert [failed.fault for failed in events(result, ModelFailed)] == ["malformed_reply"] * 2
    assert result.stop is not None
    assert result.stop.reason == "provider_error"
    assert len(server.requests) == 2
    assert result.usage.tokens.output_tokens == 2 * 16_384


@every_interface
async def test_a_good_reply_after_an_unreadable_one_is_used(interface: Interface) -> None:
    fake, number = interface.fake([say("An owl.")]), itertools.count()
    async with WireServer(lambda sent: fake.handle(sent) if next(number) else GARBAGE["whole"]) as server:
        model = interface.model(server.url)
        result = await asked(model)
        await model.close()
    assert (result.text, result.stop) == ("An owl.", None)


async def test_other_failures_before_it_do_not_count_as_its_attempts() -> None:
    fake, number = FakeOpenAI([say("An owl.")]), itertools.count()
    first = [fake.error("overloaded"), fake.error("server"), GARBAGE["whole"]]

    def answer(sent: WireRequest) -> WireReply:
        place = next(number)
        return first[place] if place < len(first) else fake.handle(sent)

    async with WireServer(answer) as server:
        model = CHAT.model(server.url)
        result = await asked(model)
        await model.close()
    assert result.text == "An owl."
    assert [failed.fault for failed in events(result, ModelFailed)] == ["overloaded", "server", "malformed_reply"]


async def test_another_model_takes_over_from_one_whose_replies_cannot_be_read() -> None:
    other = ScriptedModel(["An owl."], provider="other")
    async with WireServer(lambda sent: GARBAGE["whole"]) as server:
        model = CHAT.model(server.url)
        result = await asked(model, fallback=[other])
        await model.close()
    assert result.text == "An owl."
    assert [switched.reason for switched in events(result, ModelSwitched)] == ["malformed_reply"]


@pytest.mark.parametrize(
    "interface", [CHAT, RESPONSES, MESSAGES, pytest.param(LITELLM, marks=notes)], ids=lambda each: each.name
)
async def test_what_a_listener_raises_is_no_fault_of_the_reply(interface: Interface) -> None:
    def heard(text: str) -> None:
        raise LookupError(text)

    async with interface.fake([say("An owl.")]) as fake:
        model = interface.model(fake.url)
        with pytest.raises(LookupError):
            await model.turn(request(on_delta=heard))
        await model.close()


async def test_items_of_the_providers_own_tools_may_have_fields_of_other_types() -> None:
    said = {"type": "message", "content": [{"type": "output_text", "text": "An owl."}]}
    output = [{"type": "tool_search_call", "arguments": {"query": "owl"}, "content": "none"}, said]
    async with WireServer(damaged(RESPONSES, output=output)) as server:
        model = RESPONSES.model(server.url)
        assert (await model.turn(request())).message.text == "An owl."
        await model.close()


@pytest.mark.parametrize(
    "headers",
    [{"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, {"retry-after": "9" * 5000, "date": "-"}],
    ids=["year", "digits"],
)
async def test_a_wait_that_no_calendar_has_is_not_waited_for(headers: dict[str, str]) -> None:
    fake = FakeAnthropic([])
    async with WireServer(lambda sent: fake.error("rate_limit", headers=headers)) as server:
        model = MESSAGES.model(server.url)
        with pytest.raises(ProviderError) as caught:
            await model.turn(request())
        await model.close()
    assert (caught.value.fault, caught.value.retry_after) == ("rate_limit", None)


CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
MESSAGES_USAGE = {"input_tokens": 10, "output_tokens": 5}


@pytest.mark.parametrize(
    ("interface", "usage"),
    [
        (CHAT, {**CHAT_USAGE, "prompt_tokens": 2**63}),
        (CHAT, {**CHAT_USAGE, "prompt_tokens": -10}),
        (CHAT, {**CHAT_USAGE, "completion_tokens": 10**12}),
        (CHAT, {**CHAT_USAGE, "prompt_tokens_details": {"cached_tokens": 10_000_000}}),
        (CHAT, {**CHAT_USAGE, "prompt_tokens": "1k"}),
        (CHAT, ["10", "5"]),
        (RESPONSES, {**MESSAGES_USAGE, "input_tokens_details": {"cached_tokens": 11}}),
        (RESPONSES, {**MESSAGES_USAGE, "output_tokens": "many"}),
        (MESSAGES, {**MESSAGES_USAGE, "input_tokens": "1k"}),
        (MESSAGES, {**MESSAGES_USAGE, "cache_read_input_tokens": -9}),
        (MESSAGES, 15),
    ],
)
async def test_usage_that_cannot_be_keeps_the_reply_and_books_the_worst_case(interface: Interface, usage: Any) -> None:
    async with WireServer(damaged(interface, usage=usage)) as server:
        model = interface.model(server.url)
        result = await asked(model)
        await model.close()
    assert (result.text, result.stop) == ("An owl.", None)
    tokens = result.usage.tokens
    assert 20 < tokens.input_tokens < 1_000
    assert tokens.output_tokens == 16_384
    assert result.usage.cost_nanos == PRICE.cost(tokens) < 10**9


async def test_a_stream_with_counts_that_are_none_keeps_its_reply() -> None:
    fake = FakeAnthropic([say("An owl.")])

    def answer(sent: WireRequest) -> WireReply:
        parts = [
            part.replace(b'"usage":{', b'"usage":[7],"was":{') if b"message_delta" in part else part
            for part in fake.handle(sent).parts
        ]
        return WireReply(parts=parts, content_type="text/event-stream")

    async with WireServer(answer) as server:
        model = MESSAGES.model(server.url)
        result = await asked(model, stream=True)
        await model.close()
    assert (result.text, result.usage.tokens.output_tokens) == ("An owl.", 16_384)


async def test_one_impossible_count_does_not_spoil_the_turns_that_follow() -> None:
    """The next call is bounded by the bytes of the conversation, not by the count."""
    usages = iter([{**CHAT_USAGE, "prompt_tokens": 10**30}, CHAT_USAGE])
    async with WireServer(lambda sent: damaged(CHAT, usage=next(usages))(sent)) as server:
        model = CHAT.model(server.url)
        first = await asked(model)
        second = await asked(model, session=first.session)
        await model.close()
    assert (second.text, second.stop) == ("An owl.", None)


# --- replies without an end -------------------------------------------------------------------------------------------


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_WHOLE_BYTES", 100_000)
    monkeypatch.setattr(transport, "MOST_STREAM_BYTES", 200_000)
    monkeypatch.setattr(transport, "MOST_EVENT_BYTES", 50_000)


def endless(line: bytes, streamed: bool) -> WireReply:
    """Return a reply that goes on far beyond every bound."""
    kind = "text/event-stream" if streamed else "application/json"
    return WireReply(parts=[line * 100] * 2_000, content_type=kind)


DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize(
    ("line", "stream"),
    [(b" " * 100, False), (b"\n", False), (DELTA, True), (b"data: " + b"x" * 94, True), (b"data:\n", True)],
    ids=["whole", "whole-lines", "events", "one-line", "one-event"],
)
async def test_a_reply_without_an_end_is_not_read_to_the_end(line: bytes, stream: bool) -> None:
    async with WireServer(lambda sent: endless(line, stream)) as server:
        model = CHAT.model(server.url)
        result = await asked(model, stream=stream)
        await model.close()
    assert result.stop is not None
    assert result.stop.reason == "provider_error"
    assert "larger than" in result.stop.message
    assert [failed.fault for failed in events(result, ModelFailed)] == ["oversized_reply"]
    assert result.usage.tokens.output_tokens == 16_384


@pytest.mark.usefixtures("small_bounds")
async def test_a_reply_that_says_how_large_it_is_is_not_read_at_all() -> None:
    async with WireServer(lambda sent: WireReply(body=b" " * 100_001)) as server:
        model = CHAT.model(server.url)
        with pytest.raises(ProviderError, match="larger than") as caught:
            await model.turn(request())
        await model.close()
    assert (caught.value.fault, caught.value.billed, caught.value.retryable) == ("oversized_reply", True, False)


@pytest.mark.usefixtures("small_bounds")
@whole_or_streamed
@pytest.mark.parametrize("status", [200, 500])
async def test_a_small_body_that_decodes_to_a_large_one_is_refused(stream: bool, status: int) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    kind = "text/event-stream" if stream else "application/json"
    reply = WireReply(status=status, headers={"content-encoding": "gzip"}, body=bomb, content_type=kind)
    async with WireServer(lambda sent: reply) as server:
        model = CHAT.model(server.url)
        with pytest.raises(ProviderError) as caught:
            await model.turn(request(stream=stream))
        await model.close()
    assert caught.value.fault == "oversized_reply"


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\r", b"\r\n\r\n"])
def test_an_event_may_end_between_two_pieces(blank: bytes) -> None:
    bounds = reply_bounds.BodyBounds(1_000, "", 30, most_objects=3)
    for cut in range(1, len(blank)):
        for _ in range(10):
            bounds.count(b'data: {"a": []}' + blank[:cut])
            bounds.count(blank[cut:])


@given(st.lists(st.text("\r\nx", min_size=1, max_size=6), max_size=6))
def test_events_end_where_the_sdks_see_an_end(pieces: list[str]) -> None:
    bounds, collected = reply_bounds.BodyBounds(1_000, "", 1_000), b""
    for piece in (text.encode() for text in pieces):
        bounds.count(piece)
        for line in piece.splitlines(keepends=True):  # as the SDKs do it
            collected += line
            if collected.endswith((b"\r\r", b"\n\n", b"\r\n\r\n")):
                collected = b""
        assert bounds._event == len(collected)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("line", [b"x\n", b"x\r\r\n", b"\r\r\n"])
async def test_a_long_event_of_very_many_lines_is_not_read(line: bytes) -> None:
    """An SDK copies with each line what it has of an event: 4 MB of such lines would take minutes."""
    assert await faults_of(CHAT, b": " + line * (4_000_000 // len(line)), stream=True) == ["oversized_reply"]


async def test_a_byte_order_mark_costs_no_event_of_a_stream() -> None:
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    reply = WireReply(body=b"\xef\xbb\xbf" + DELTA + end, content_type="text/event-stream")
    async with WireServer(lambda sent: reply) as server:
        model = CHAT.model(server.url)
        assert (await model.turn(request(stream=True))).message.text == "x"
        await model.close()


MANY_OBJECTS = b'{"choices": [], "usage": [' + b"{}," * 2 * reply_bounds.MOST_READ_OBJECTS + b"{}]}"


async def faults_of(interface: Interface, body: bytes, *, stream: bool = False) -> list[str]:
    """Return the faults that an agent's model calls end with if the server always answers with these bytes."""
    kind = "text/event-stream" if stream else "application/json"
    async with WireServer(lambda sent: WireReply(body=body, content_type=kind)) as server:
        result = await asked(interface.model(server.url), stream=stream)
    return [failed.fault for failed in events(result, ModelFailed)]


async def test_the_events_of_a_stream_may_not_bring_objects_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_bounds, "OBJECTS_OF_STREAM", 2)
    details = b",".join([b"{}"] * 90_000)
    event = b'data: {"choices":[{"delta":{"reasoning_details":[' + details + b"]}}]}\n\n"
    assert await faults_of(CHAT, event * 3, stream=True) == ["oversized_reply"]


def calls_of(ids: list[str]) -> bytes:
    """Return a reply that calls a tool once for each id."""
    calls = [{"id": each, "function": {"name": "look", "arguments": "{}"}} for each in ids]
    return json.dumps({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}).encode()


async def test_a_reply_of_very_many_calls_is_not_carried_out() -> None:
    """Naming, refusing and recording them one after another would hold up everything else in the process."""
    assert await faults_of(CHAT, calls_of(["same"] * 1_001)) == ["oversized_reply"]


@pytest.mark.parametrize("index", [10_001, -10_001, 2**61 - 1, 10**400], ids=["high", "low", "hash", "long"])
async def test_a_streamed_answer_has_no_part_at_an_index_beyond_all_answers(index: int) -> None:
    """Numbers of one hash make every look into a dict as long as the dict."""
    call = b'data: {"choices":[{"delta":{"tool_calls":[{"index":%d}]}}]}\n\n' % index
    assert set(await faults_of(CHAT, call, stream=True)) == {"malformed_reply"}
    start = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d}\n\n' % index
    assert set(await faults_of(MESSAGES, start, stream=True)) == {"malformed_reply"}


async def test_a_reply_that_cannot_be_recorded_is_a_fault_of_the_provider() -> None:
    deep = b'{"type":"x","y":' + b"[" * 500 + b"]" * 500 + b"}"
    body = b'{"content":[{"type":"text","text":"a"},' + deep + b'],"stop_reason":"end_turn"}'
    assert set(await faults_of(MESSAGES, body)) == {"malformed_reply"}


@every_wire
@whole_or_streamed
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "compressed"])
async def test_a_reply_of_very_many_objects_is_not_parsed(interface: Interface, stream: bool, declared: bool) -> None:
    """Parsing it would hold up everything else in the process for seconds, and take gigabytes."""
    body = b"data: " + MANY_OBJECTS + b"\n\n" if stream else MANY_OBJECTS
    headers = {} if declared else {"content-encoding": "gzip"}
    kind = "text/event-stream" if stream else "application/json"
    reply = WireReply(body=body if declared else gzip.compress(body), headers=headers, content_type=kind)
    async with WireServer(lambda sent: reply) as server:
        result = await asked(interface.model(server.url), stream=stream)
    assert [failed.fault for failed in events(result, ModelFailed)] == ["oversized_reply"]


@whole_or_streamed
async def test_of_a_failed_request_a_mebibyte_is_read(stream: bool) -> None:
    reply = WireReply(status=400, body=b"x" * (reply_bounds.MOST_ERROR_BYTES + 1))
    async with WireServer(lambda sent: reply) as server:
        model = CHAT.model(server.url)
        with pytest.raises(ProviderError, match="larger than 1 MiB") as caught:
            await model.turn(request(stream=stream))
        await model.close()
    assert caught.value.fault == "oversized_reply"


@whole_or_streamed
async def test_other_tasks_run_while_a_large_reply_is_decoded(stream: bool) -> None:
    bomb = gzip.compress(b"\n" * 4_000_000)
    reply = WireReply(
        body=bomb, headers={"content-encoding": "gzip"}, content_type="text/event-stream" if stream else "text/plain"
    )
    turns_of_others = 0

    async def others() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    async with WireServer(lambda sent: reply) as server:
        model = CHAT.model(server.url)
        with pytest.raises(ProviderError):  # opens the connection
            await model.turn(request(stream=stream))
        pieces: list[int] = []
        counted = reply_bounds.BodyBounds.count

        def count(bounds: reply_bounds.BodyBounds, piece: bytes) -> None:
            pieces.append(turns_of_others)
            counted(bounds, piece)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reply_bounds.BodyBounds, "count", count)
            task = asyncio.create_task(others())
            with pytest.raises(ProviderError):
                await model.turn(request(stream=stream))
            task.cancel()
        await model.close()
    assert len(pieces) > 4_000_000 // reply_bounds.PIECE
    assert len(set(pieces)) > len(pieces) - 3


@every_wire
@whole_or_streamed
@pytest.mark.parametrize("charset", ["bz2", "hex", "rot13", "idna", "undefined", "utf-16"])
async def test_a_charset_that_cannot_decode_text_is_not_used(interface: Interface, stream: bool, charset: str) -> None:
    """An error's text was decoded as the server says, which fails, or unpacks a small body to a large one."""
    answer = b'{"error": {"message": "no such model", "code": "model_not_found"}}'
    reply = WireReply(status=400, body=answer, content_type=f"application/json; charset={charset}")
    async with WireServer(lambda sent: reply) as server:
        model = interface.model(server.url)
        with pytest.raises(ProviderError, match="no such model") as caught:
            await model.turn(request(stream=stream))
        await model.close()
    assert caught.value.status == 400


@every_wire
@pytest.mark.parametrize("missing", [1, 12, 20])
async def test_the_beginning_of_a_reply_is_quoted_without_a_part_of_a_key(interface: Interface, missing: int) -> None:
    """The quotation ends somewhere in the key."""
    key = "sk-0123456789-abcdefghij"
    hold(key)
    body = b"x" * (200 - len(key) + missing) + key.encode()
    async with WireServer(lambda sent: WireReply(body=body)) as server:
        model = interface.model(server.url)
        with pytest.raises(ProviderError, match="xxx") as caught:
            await model.turn(request())
        await model.close()
    assert "sk-" not in str(caught.value)


async def test_a_long_error_in_a_reply_is_quoted_without_a_part_of_a_key() -> None:
    key = "sk-0123456789-klmnopqrst"
    hold(key)
    said = "x" * (MESSAGE_LENGTH - 10) + key + "x" * 100
    async with WireServer(lambda sent: WireReply(body=json.dumps({"error": {"message": said}}).encode())) as server:
        model = CHAT.model(server.url)
        with pytest.raises(ProviderError, match="xxx") as caught:
            await model.turn(request())
        await model.close()
    assert "sk-" not in str(caught.value)


async def test_a_compressed_stream_is_read() -> None:
    fake = FakeOpenAI([say("An owl.")])

    def answer(sent: WireRequest) -> WireReply:
        whole = gzip.compress(b"".join(fake.handle(sent).parts))
        headers = {"content-encoding": "gzip"}
        return WireReply(parts=[whole[:50], whole[50:]], content_type="text/event-stream", headers=headers)

    async with WireServer(answer) as server:
        model = CHAT.model(server.url)
        assert (await model.turn(request(stream=True))).message.text == "An owl."
        await model.close()


@whole_or_streamed
@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_an_encoding_that_nobody_asked_for_is_an_unreadable_reply(stream: bool, encoding: str) -> None:
    kind = "text/event-stream" if stream else "application/json"
    reply = WireReply(headers={"content-encoding": encoding}, body=b"no such encoding", content_type=kind)
    async with WireServer(lambda sent: reply) as server:
        model = CHAT.model(server.url)
        with pytest.raises(ProviderError) as caught:
            await model.turn(request(stream=stream))
        await model.close()
    assert caught.value.fault == "malformed_reply"
