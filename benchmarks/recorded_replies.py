"""Forms of replies as providers really send them; for tests, and as what `benchmarks.malformed_replies` damages.

Each function words one reply, whole or as a stream; `FORMS` has those of each interface that the fakes do not word:
server tools, paused turns, compaction, citations, refusals, parts of content, errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from watchkeeper.testing import WireReply
from watchkeeper.testing.wire import EVENT_STREAM, event, json_reply


def streamed(*chunks: dict[str, Any], done: bool = False) -> WireReply:
    parts = [*map(event, chunks), *([b"data: [DONE]\n\n"] if done else [])]
    return WireReply(parts=parts, content_type=EVENT_STREAM)


def chat(finish: str | None, text: str = "Half an ans", *, stream: bool = False, **fields: Any) -> WireReply:
    message = {"role": "assistant", "content": text, **fields}
    if not stream:
        return json_reply({"id": "r1", "choices": [{"index": 0, "message": message, "finish_reason": finish}]})
    first = {"choices": [{"index": 0, "delta": message, "finish_reason": None}]}
    return streamed(first, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, done=True)


def claude(
    reason: str | None, *blocks: dict[str, Any], usage: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    content = list(blocks) or [{"type": "text", "text": "Half an ans"}]
    counts = usage or {"input_tokens": 9, "output_tokens": 3}
    return {"id": "m1", "type": "message", "role": "assistant", "model": "claude-sonnet-5"} | {
        "content": content,
        "stop_reason": reason,
        "usage": counts,
        **fields,
    }


def claude_events(whole: dict[str, Any], *deltas: tuple[int, dict[str, Any]]) -> WireReply:
    """Return a message as its events; the blocks begin as given, and the deltas follow."""
    begun: dict[str, Any] = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 9, "output_tokens": 1},
    }
    parts: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(whole["content"]):
        parts.append({"type": "content_block_start", "index": index, "content_block": block})
        own = [delta for place, delta in deltas if place == index]
        parts.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in own)
        parts.append({"type": "content_block_stop", "index": index})
    parts.append({"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"]}, "usage": whole["usage"]})
    return streamed(*parts, {"type": "message_stop"})


def response(status: str, reason: str | None = None, *items: dict[str, Any], stream: bool = False) -> WireReply:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Half an ans"}]}
    details = None if reason is None else {"reason": reason}
    whole: dict[str, Any] = {"id": "r1", "model": "gpt-5-mini", "status": status, "output": list(items) or [said]}
    whole |= {"incomplete_details": details, "usage": {"input_tokens": 9, "output_tokens": 3}}
    if not stream:
        return json_reply(whole)
    return streamed({"type": "response.incomplete" if reason else "response.completed", "response": whole})


SEARCH: dict[str, Any] = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "owl"},
}
FOUND: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


COMPACTED: dict[str, Any] = {
    "input_tokens": 224,
    "output_tokens": 22,
    "iterations": [
        {"type": "compaction", "input_tokens": 83_555, "output_tokens": 154},
        {"type": "message", "input_tokens": 224, "output_tokens": 22},
    ],
}


THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "Hm.", "signature": "s1"}
ENCRYPTED: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "opaque"}
USE: dict[str, Any] = {"type": "tool_use", "id": "call_1", "name": "lookup", "input": {"word": "owl"}}
FUNCTION_CALL: dict[str, Any] = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "lookup",
    "arguments": '{"word":"owl"}',
}
SIGNED: dict[str, Any] = {
    "id": "call_1",
    "function": {"name": "lookup", "arguments": '{"word":"owl"}'},
    "extra_content": {"sign": 1},
}


COUNTED: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}


RETIRED = "The model `gpt-4-32k` has been deprecated"


UNREAD = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."
FAILED_CALL: dict[str, Any] = {
    "message": UNREAD,
    "type": "invalid_request_error",
    "failed_generation": "<function=lookup>",
}


def thought(said: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [text(said)]}


# --- forms to damage ------------------------------------------------------------------------------------------------

ADVISED: dict[str, Any] = {
    "input_tokens": 5,
    "output_tokens": 2,
    "iterations": [
        {"type": "advisor_message", "model": "claude-opus-4", "input_tokens": 5, "output_tokens": 5},
        {"type": "message", "input_tokens": 3, "output_tokens": 2},
    ],
    "server_tool_use": {"web_search_requests": 1},
    "service_tier": "priority",
}
CITED: dict[str, Any] = {
    "type": "text",
    "text": "A bird.",
    "citations": [{"type": "char_location", "cited_text": "An owl", "document_index": 0}],
}
COMPACTION: dict[str, Any] = {"type": "compaction", "content": "They spoke of owls."}
MESSAGES: Final = (
    claude("pause_turn", text("An owl "), SEARCH),
    claude("end_turn", SEARCH, FOUND, text("is a bird.")),
    claude("end_turn", COMPACTION, text("A bird."), usage=COMPACTED),
    claude("tool_use", THOUGHT, USE),
    claude("end_turn", {"type": "redacted_thinking", "data": "opaque"}, CITED, usage=ADVISED),
)
PIECES: Final = [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"que', 'ry": "owl"}')]
SUMMARY: Final = {"type": "compaction_delta", "content": "They spoke of owls.", "encrypted_content": "opaque"}
STREAMED_MESSAGES: Final = (
    *map(claude_events, MESSAGES),
    claude_events(claude("pause_turn", {**SEARCH, "input": {}}), *((0, piece) for piece in PIECES)),
    claude_events(
        claude("compaction", {**COMPACTION, "content": ""}),
        (0, SUMMARY),
        (0, {"type": "signature_delta", "signature": "s1"}),
    ),
)

TOOL_SEARCH: dict[str, Any] = {
    "type": "tool_search_call",
    "call_id": None,
    "arguments": {"goal": "words"},
    "execution": "server",
}
ARGUMENTS_AS_OBJECT: dict[str, Any] = {**FUNCTION_CALL, "arguments": {"word": "owl"}}
WEB_SEARCH: dict[str, Any] = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "owl"},
}
ANNOTATED: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "phase": "final",
    "content": [
        {
            "type": "output_text",
            "text": "A bird.",
            "annotations": [{"type": "url_citation", "url": "https://example.org"}],
            "logprobs": [],
        },
        {"type": "refusal", "refusal": "No."},
    ],
}
ITEMS: Final = ((TOOL_SEARCH, ARGUMENTS_AS_OBJECT), (ENCRYPTED, FUNCTION_CALL), (WEB_SEARCH, ANNOTATED))

NAMED_FAULT: dict[str, Any] = {"error": {**FAILED_CALL, "code": "tool_use_failed"}}
MIXED: Final = streamed(
    {"choices": [{"index": 0, "delta": {"content": "A "}, "finish_reason": None}]},
    {"choices": [{"index": 1, "delta": {"content": "An "}, "finish_reason": None}]},
    {"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    COUNTED,
    done=True,
)
CALLED: Final = streamed(
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **SIGNED}]}, "finish_reason": None}]},
    {
        "choices": [
            {
                "index": 0,
                "delta": {"content": [thought("Hm.")], "reasoning_details": [{"type": "r", "index": 0, "text": "q"}]},
                "finish_reason": "tool_calls",
            }
        ]
    },
    COUNTED,
    done=True,
)

FORMS: Final[Mapping[str, tuple[Sequence[WireReply], Sequence[WireReply]]]] = {
    "anthropic": (tuple(map(json_reply, MESSAGES)), STREAMED_MESSAGES),
    "openai_responses": (
        (
            *(response("completed", None, *items) for items in ITEMS),
            response("incomplete", "max_output_tokens", ANNOTATED),
            response("failed"),
        ),
        tuple(response("completed", None, *items, stream=True) for items in ITEMS),
    ),
    "openai_chat": (
        (
            chat("tool_calls", "", tool_calls=[SIGNED]),
            chat("stop", content=[thought("Which bird?"), text("A "), text("bird.")]),
            chat("stop", reasoning_details=[{"type": "r", "text": "q", "index": 0}], annotations=[{}], audio=None),
            json_reply(NAMED_FAULT, 400),
            json_reply({"error": {"message": RETIRED, "code": "model_not_found"}}, 404),
        ),
        (MIXED, CALLED, streamed(NAMED_FAULT)),
    ),
}
"""By interface: whole replies, and streamed ones."""
