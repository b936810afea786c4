"""A fake of Anthropic's Messages on the loopback, whole and streamed.

Formats: anthropic/types/message.py, anthropic/types/raw_message_stream_event.py and
https://platform.claude.com/docs/en/build-with-claude/streaming; errors: https://platform.claude.com/docs/en/api/errors.
It refuses what the real one refuses, changed thinking included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.provider_checks import blocks_of, check_messages
from watchkeeper.testing.wire import (
    Reply,
    Script,
    Scripted,
    WireReply,
    WireRequest,
    WireServer,
    Wording,
    json_reply,
    pieces,
)

MODEL: Final = "claude-sonnet-5"

# https://platform.claude.com/docs/en/api/errors#http-errors: status, type, message
ERRORS: Final[Mapping[str, tuple[int, str, str]]] = {
    "rate_limit": (
        429,
        "rate_limit_error",
        "This request would exceed your organization's rate limit of 50 requests per minute.",
    ),
    "quota": (402, "billing_error", "There is an issue with your billing or payment information."),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "auth": (401, "authentication_error", "invalid x-api-key"),
    "context_full": (400, "invalid_request_error", "prompt is too long: 207791 tokens > 200000 maximum"),
    "bad_request": (400, "invalid_request_error", "frobnicate: Extra inputs are not permitted"),
    "blocked": (400, "invalid_request_error", "Output blocked by content filtering policy"),
    "server": (500, "api_error", "Internal server error"),
}


class FakeAnthropic(WireServer):
    """A server to give to an Anthropic client as ``base_url``.

    Args:
        script: What to answer, request by request.
        key: The only key that is accepted; None accepts any.
        strict: Whether to refuse what the real provider refuses.
        record: Whether to keep the requests.
    """

    def __init__(self, script: Script, *, key: str | None = None, strict: bool = True, record: bool = True) -> None:
        super().__init__(self._reply, record=record)
        self.script = Scripted(script)
        self._key = key
        self._strict = strict
        self._signed: dict[str, str] = {}

    @property
    def base_url(self) -> str:
        """The address for a client, without ``/v1``."""
        return self.url

    def bodies(self) -> list[dict[str, Any]]:
        """Return the decoded bodies of all requests so far."""
        return [request.json() for request in self.requests]

    def _reply(self, request: WireRequest) -> WireReply:
        # Older SDKs send the key as x-api-key, newer ones (2.x) as a bearer token.
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not key or (self._key is not None and key != self._key):
            return error_reply("auth", message="" if key else "x-api-key header is required")
        if request.method != "POST" or request.path != "/v1/messages":
            return error_reply("bad_request", 404, "Not Found")
        if "anthropic-version" not in request.headers:
            return error_reply("bad_request", message="anthropic-version: header is required")
        try:
            body: dict[str, Any] = request.json()
        except msgspec.DecodeError:
            return error_reply("bad_request", message="The request body is not valid JSON")
        problem = (check_messages(body) or self._check_thinking(body)) if self._strict else None
        if problem:
            return error_reply("bad_request", message=problem)
        step = self.script.next(body)
        if step is None:
            return error_reply("server", message=f"the script has no answer for request {self.script.used}")
        if isinstance(step, Reply) and step.reasoning:
            self._signed[signature(self.script.used)] = step.reasoning
        return messages_wording(self.script.used).answer(step, streaming=bool(body.get("stream")))

    def _check_thinking(self, body: Mapping[str, Any]) -> str | None:
        messages: list[dict[str, Any]] = body["messages"]
        for index, message in enumerate(messages):
            for place, block in enumerate(blocks_of(message)):
                if block["type"] == "thinking" and self._signed.get(block["signature"]) != block["thinking"]:
                    return f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block"
        return None


def signature(number: int) -> str:
    """Return the signature that stands under the thinking of an answer."""
    return f"signed:{number}"


def messages_wording(number: int) -> Wording:
    """Return how Messages words the answer to a request."""
    return Wording(
        whole=lambda reply: message_object(reply, number),
        events=lambda reply: message_events(reply, number),
        failing=lambda fault: [_event(error_body(fault.kind, fault.message))],
        error=lambda fault: error_reply(fault.kind, message=fault.message, headers=fault.headers),
        headers={"request-id": f"req_{number}"},
    )


def error_body(kind: str, message: str) -> dict[str, Any]:
    """Return an error's body."""
    _, type_, text = ERRORS[kind]
    return {"type": "error", "error": {"type": type_, "message": message or text}, "request_id": "req_error"}


def error_reply(kind: str, status: int = 0, message: str = "", headers: Mapping[str, str] | None = None) -> WireReply:
    """Return an error as Anthropic words it."""
    usual = ERRORS[kind][0]
    return json_reply(error_body(kind, message), status or usual, {"request-id": "req_error", **(headers or {})})


def stop_reason(reply: Reply) -> str:
    """Return why the answer ended."""
    if reply.refusal or reply.filtered:
        return "refusal"
    if reply.cut:
        return "max_tokens"
    return "tool_use" if reply.calls else "end_turn"


def usage_fields(usage: TokenUsage) -> dict[str, Any]:
    """Return token counts; here those of the cache do not count as input (anthropic/types/usage.py)."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_tokens,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }


def content(reply: Reply, number: int) -> list[dict[str, Any]]:
    """Return the blocks of an answer."""
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": signature(number)})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text, "citations": None})
    blocks.extend(
        {
            "type": "tool_use",
            "id": call.call_id,
            "name": call.name,
            "input": msgspec.json.decode(call.arguments),
            "caller": {"type": "direct"},
        }
        for call in reply.calls
    )
    return blocks


def message_object(reply: Reply, number: int) -> dict[str, Any]:
    """Return a whole answer."""
    refused = {"type": "refusal", "category": None, "explanation": reply.refusal or None}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content(reply, number),
        "stop_reason": stop_reason(reply),
        "stop_sequence": None,
        "stop_details": refused if stop_reason(reply) == "refusal" else None,
        "container": None,
        "usage": usage_fields(reply.usage),
    }


def message_events(reply: Reply, number: int) -> Iterator[bytes]:
    """Yield an answer as server-sent events."""
    whole = message_object(reply, number)
    counts: dict[str, Any] = whole["usage"]
    begun: dict[str, Any] = {
        **whole,
        "content": [],
        "stop_reason": None,
        "stop_details": None,
        "usage": {**counts, "output_tokens": 1},
    }
    yield _event({"type": "message_start", "message": begun})
    yield _event({"type": "ping"})
    for index, block in enumerate(whole["content"]):
        yield from _block_events(index, block)
    delta = {key: whole[key] for key in ("stop_reason", "stop_sequence", "stop_details", "container")}
    final = {key: counts[key] for key in ("output_tokens", "output_tokens_details")}
    yield _event({"type": "message_delta", "delta": delta, "usage": final})
    yield _event({"type": "message_stop"})


def _block_events(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    kind = block["type"]
    deltas: list[dict[str, Any]]
    empty: dict[str, Any]
    if kind == "text":
        empty = {**block, "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    elif kind == "thinking":
        empty = {**block, "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    else:
        empty = {**block, "input": {}}
        written = msgspec.json.encode(block["input"]).decode()
        texts = ["", *pieces(written)] if block["input"] else [""]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in texts]
    yield _event({"type": "content_block_start", "index": index, "content_block": empty})
    for delta in deltas:
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
    yield _event({"type": "content_block_stop", "index": index})


def _event(fields: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(fields["type"]).encode(), msgspec.json.encode(fields))
