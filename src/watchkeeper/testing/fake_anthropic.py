"""A fake of Anthropic's Messages on the loopback, whole and streamed.

Formats: anthropic/types/message.py, anthropic/types/raw_message_stream_event.py and
https://platform.claude.com/docs/en/build-with-claude/streaming; errors: https://platform.claude.com/docs/en/api/errors.
It refuses what the real one refuses, changed thinking included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from watchkeeper.adapters.anthropic import MESSAGES
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.wire import (
    ErrorRow,
    FakeProvider,
    Reply,
    WireReply,
    WireRequest,
    Wording,
    error_table,
    event,
    pieces,
    subschemas,
)

MODEL: Final = "claude-sonnet-5"

# https://platform.claude.com/docs/en/api/errors#http-errors
ERRORS: Final = error_table("""
429 rate_limit   rate_limit_error
    This request would exceed your organization's rate limit of 50 requests per minute.
402 quota        billing_error
    There is an issue with your billing or payment information.
529 overloaded   overloaded_error
    Overloaded
401 auth         authentication_error
    invalid x-api-key
400 context_full invalid_request_error
    prompt is too long: 207791 tokens > 200000 maximum
400 bad_request  invalid_request_error
    frobnicate: Extra inputs are not permitted
400 blocked      invalid_request_error
    Output blocked by content filtering policy
500 server       api_error
    Internal server error
""")


class FakeAnthropic(FakeProvider):
    """A server to give to an Anthropic client as ``base_url``; arguments are those of `FakeProvider`."""

    prefix = ""
    errors_by_fault = ERRORS
    id_header = "request-id"
    no_json = "The request body is not valid JSON"

    @cached_property
    def _signed(self) -> dict[str, str]:
        return {}

    def refusal(self, request: WireRequest, key: str | None) -> WireReply | None:
        # Older SDKs send the key as x-api-key, newer ones (2.x) as a bearer token.
        sent = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not sent or (key is not None and key != sent):
            return self.error("auth", "" if sent else "x-api-key header is required")
        if request.method != "POST" or request.path != MESSAGES.path:
            return self.error("bad_request", "Not Found", 404)
        if "anthropic-version" not in request.headers:
            return self.error("bad_request", "anthropic-version: header is required")
        return None

    def problem(self, path: str, body: dict[str, Any]) -> str | None:
        return check_messages(body) or self._check_thinking(body)

    def _check_thinking(self, body: dict[str, Any]) -> str | None:
        for index, message in enumerate(body["messages"]):
            for place, block in enumerate(blocks_of(message)):
                if block["type"] == "thinking" and self._signed.get(block["signature"]) != block["thinking"]:
                    return f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block"
        return None

    def wording(self, path: str, body: dict[str, Any], number: int) -> Wording:
        def whole(reply: Reply) -> dict[str, Any]:
            self._signed[signature(number)] = reply.reasoning
            return message_object(reply, number)

        return Wording(
            whole,
            events=lambda reply: message_events(whole(reply)),
            failing=lambda fault: event(self.error_body(ERRORS[fault.kind], fault.message)),
        )

    def error_body(self, row: ErrorRow, message: str) -> dict[str, Any]:
        error = {"type": row.type, "message": message or row.message}
        return {"type": "error", "error": error, "request_id": "req_error"}


def signature(number: int) -> str:
    """Return the signature of the thinking of an answer."""
    return f"signed:{number}"


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
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write_tokens, "ephemeral_1h_input_tokens": 0},
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
        {"type": "tool_use", "id": call.call_id, "name": call.name, "caller": {"type": "direct"}}
        | {"input": msgspec.json.decode(call.arguments)}
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


def message_events(whole: dict[str, Any]) -> Iterator[bytes]:
    """Yield a whole answer as server-sent events."""
    counts: dict[str, Any] = whole["usage"]
    unknown: dict[str, Any] = {"content": [], "stop_reason": None, "stop_details": None}
    begun = {**whole, **unknown, "usage": {**counts, "output_tokens": 1}}
    yield event({"type": "message_start", "message": begun})
    yield event({"type": "ping"})
    for index, block in enumerate(whole["content"]):
        yield from _block_events(index, block)
    delta = {key: whole[key] for key in ("stop_reason", "stop_sequence", "stop_details", "container")}
    final = {key: counts[key] for key in ("output_tokens", "output_tokens_details")}
    yield event({"type": "message_delta", "delta": delta, "usage": final})
    yield event({"type": "message_stop"})


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
    yield event({"type": "content_block_start", "index": index, "content_block": empty})
    for delta in deltas:
        yield event({"type": "content_block_delta", "index": index, "delta": delta})
    yield event({"type": "content_block_stop", "index": index})


# --- what the provider refuses ----------------------------------------------------------------------------------------
# Each function returns the provider's words, or None. Only rules that adapters have broken in practice are here: calls
# and results that do not belong together, empty blocks, schemas outside the enforced subset, too many cache
# breakpoints, reasoning that cannot be resolved.

FORMAT: Final = "output_config.format.schema"
CACHE_BREAKPOINTS: Final = 4
UNSUPPORTED_BY_ANTHROPIC: Final = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "maxItems",
)

Problem = str | None


def check_messages(body: Mapping[str, Any]) -> Problem:
    """Check a request of Anthropic's Messages (https://platform.claude.com/docs/en/api/messages)."""
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            return f"{name}: Field required"
    messages: list[dict[str, Any]] = body["messages"]
    if not messages:
        return "messages: at least one message is required"
    marks = str(body).count("'cache_control'")
    if marks > CACHE_BREAKPOINTS:
        return f"A maximum of {CACHE_BREAKPOINTS} blocks with cache_control may be provided. Found {marks}."
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        problem = _check_turn(message, index, waiting)
        if problem:
            return problem
        waiting = {block["id"] for block in blocks_of(message) if block["type"] == "tool_use"}
    if waiting:
        return _unanswered(len(messages) - 1, waiting)
    output_config: dict[str, Any] = body.get("output_config") or {}
    output_format: dict[str, Any] = output_config.get("format") or {}
    return check_anthropic_schema(output_format["schema"]) if output_format else None


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a turn; a plain text becomes one block."""
    content: str | list[dict[str, Any]] = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _check_turn(message: Mapping[str, Any], index: int, waiting: set[str]) -> Problem:
    blocks = blocks_of(message)
    if not blocks:
        return f"messages.{index}: all messages must have non-empty content"
    answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
    if waiting - answered:
        return _unanswered(index - 1, waiting - answered)
    if answered - waiting:
        return (
            f"messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: "
            f"{', '.join(sorted(answered - waiting))}. Each `tool_result` block must have a corresponding `tool_use` "
            "block in the previous message."
        )
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            return "messages: text content blocks must contain non-whitespace text"
    return None


def _unanswered(index: int, ids: set[str]) -> str:
    return (
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(sorted(ids))}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message."
    )


def check_anthropic_schema(schema: Mapping[str, Any]) -> Problem:
    """Check an output schema (https://platform.claude.com/docs/en/build-with-claude/structured-outputs)."""
    for _, part in subschemas(schema):
        kind = part.get("type")
        if kind == "object" and part.get("additionalProperties") is not False:
            return (
                "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
            )
        for key in UNSUPPORTED_BY_ANTHROPIC:
            if key in part:
                return f"{FORMAT}: For '{kind}' type, property '{key}' is not supported"
    return None
