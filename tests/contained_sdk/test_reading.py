"""Token counts are read out of streams however their bytes are cut, and nothing that belongs to the caller is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.adapters.anthropic import MESSAGES
from watchkeeper.adapters.openai_chat import CHAT
from watchkeeper.adapters.openai_responses import RESPONSES
from watchkeeper.adapters.wire import Wire
from watchkeeper.contained_sdk.reading import SentRequest, StreamReader, read_whole, wire_at
from watchkeeper.core.usage import TokenUsage


def data(value: Any, end: str = "\n\n") -> bytes:
    return b"data: " + msgspec.json.encode(value) + end.encode()


CHAT_STREAM = [
    data({"choices": [{"index": 0, "delta": {"content": 'a "usage" of words'}}], "usage": None}, "\r\n\r\n"),
    data({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}),
    b"data: [DONE]\n\n",
]
RESPONSES_STREAM = [
    b"event: response.created\n" + data({"type": "response.created", "response": {"id": "r", "usage": None}}),
    data({"type": "response.output_text.delta", "delta": "hi"}),
    data({"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": 10, "output_tokens": 5}}}),
]
MESSAGES_STREAM = [
    data({"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}),
    data({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}}),
    data({"type": "message_stop"}),
]
STREAMS: list[tuple[Wire, list[bytes]]] = [
    (CHAT, CHAT_STREAM),
    (RESPONSES, RESPONSES_STREAM),
    (MESSAGES, MESSAGES_STREAM),
]


@pytest.mark.parametrize(("wire", "stream"), STREAMS)
@given(cuts=st.lists(st.integers(0, 400)), hide=st.booleans())
def test_however_a_stream_is_cut_it_tells_the_same(
    wire: Wire, stream: list[bytes], cuts: list[int], hide: bool
) -> None:
    whole = b"".join(stream)
    reader = StreamReader(wire, hide_usage=hide)
    places = [0, *sorted(cut % len(whole) for cut in cuts), len(whole)]
    passed = b"".join(reader.feed(whole[a:b]) for a, b in pairwise(places)) + reader.finish()
    assert reader.seen.usage == TokenUsage(10, 5)
    assert (reader.seen.ended, reader.seen.size) == (True, len(whole))
    hidden = CHAT_STREAM[1][:-1] if hide and wire is CHAT else b""
    assert passed == whole.replace(hidden, b"")


def test_the_work_grows_with_a_line_as_its_length() -> None:
    """A picture comes in one line; put together anew for each piece, eight megabytes took eight seconds."""
    copied = 0

    class Counting(bytes):
        def __radd__(self, other: bytes) -> bytes:
            nonlocal copied
            copied += len(other)
            return other + bytes(self)

    reader = StreamReader(RESPONSES, hide_usage=False)
    start = b'data: {"type": "response.image", "image": "'
    pieces = [start, *[Counting(b"x" * 1000)] * 2000]
    assert all(reader.feed(piece) == b"" for piece in pieces)
    assert reader.feed(b'"}\n') == b"".join(pieces) + b'"}\n'
    assert copied <= len(start) + 2_000_000


def test_lines_may_end_with_a_carriage_return_alone() -> None:
    stream = b"data: 1\r\rdata: [DONE]\r\r"
    reader = StreamReader(RESPONSES, hide_usage=False)
    first = reader.feed(stream[:9]) + reader.feed(stream[9:12])
    assert first == stream[:8]
    assert first + reader.feed(stream[12:]) + reader.finish() == stream
    assert reader.seen.ended


@given(noise=st.binary(max_size=60), wire=st.sampled_from([CHAT, RESPONSES, MESSAGES]))
def test_nonsense_passes_as_it_is_and_tells_nothing(noise: bytes, wire: Wire) -> None:
    reader = StreamReader(wire, hide_usage=True)
    stream = b'data: {"usage": ' + noise
    assert reader.feed(stream) + reader.finish() == stream
    assert read_whole(wire, b'{"usage": ' + noise).usage is None or noise.endswith(b"}")


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": -1, "completion_tokens": 5}, {"prompt_tokens": "many"}, "none"]
)
def test_counts_that_make_no_sense_are_none(usage: Any) -> None:
    assert read_whole(CHAT, msgspec.json.encode({"usage": usage})).usage is None


def test_paths_belong_to_their_interfaces() -> None:
    assert wire_at("/v1/chat/completions") is CHAT
    assert wire_at("/openai/deployments/x/chat/completions") is CHAT
    assert wire_at("/v1/responses") is RESPONSES
    assert wire_at("/v1/messages") is MESSAGES
    assert wire_at("/v1/threads/t/messages") is None
    assert wire_at("/v1/threads/t/v1/messages") is None
    assert wire_at("/v1/completions") is None


@given(text=st.text(max_size=200), system=st.text(max_size=50))
def test_the_bound_is_never_less_than_the_bytes_of_what_is_said(text: str, system: str) -> None:
    body = msgspec.json.encode(
        {"model": "m", "system": system, "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}
    )
    bound, unsized = SentRequest(MESSAGES, body, "").input_bound()
    assert bound >= len(text.encode()) + len(system.encode())
    assert unsized == 0


def test_a_large_image_counts_as_one_part_and_not_by_its_bytes() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image, {"type": "text", "text": "An owl."}]}
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": [result]}]})
    bound, unsized = SentRequest(MESSAGES, body, "").input_bound()
    assert (bound < 500, unsized) == (True, 1)


def test_the_arguments_of_a_tool_are_text() -> None:
    call = {"type": "tool_use", "id": "t", "name": "find", "input": {"type": "file", "name": "a.txt"}}
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "assistant", "content": [call]}]})
    assert SentRequest(MESSAGES, body, "").input_bound()[1] == 0


@pytest.mark.parametrize(
    ("server", "caps", "sent"),
    [
        ("https://api.deepseek.com", {"max_completion_tokens": 900}, {"max_completion_tokens": 50, "max_tokens": 50}),
        ("https://api.deepseek.com", {"max_completion_tokens": 9}, {"max_completion_tokens": 9, "max_tokens": 9}),
        ("https://api.deepseek.com", {"max_tokens": 900}, {"max_tokens": 50}),
        ("https://api.deepseek.com", {}, {"max_tokens": 50}),
        ("https://elsewhere.example", {"max_completion_tokens": 900}, {"max_completion_tokens": 50}),
    ],
)
def test_a_server_that_passes_over_the_newer_cap_gets_the_older_one(
    server: str, caps: dict[str, int], sent: dict[str, int]
) -> None:
    body = msgspec.json.encode({"model": "m", "messages": [], **caps})
    request = SentRequest(CHAT, body, f"{server}/chat/completions")
    fields = msgspec.json.decode(request.capped(50), type=dict[str, Any])
    assert {name: cap for name, cap in fields.items() if name.startswith("max_")} == sent
    assert msgspec.json.decode(request.capped(None)) == msgspec.json.decode(body)
