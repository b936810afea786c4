"""Answers in the format of OpenAI's Responses, whole and as events, for the fake server.

Formats: openai/types/responses/response.py for the object, and the event types beside it
(response_created_event.py, response_output_item_added_event.py, response_text_delta_event.py and so on).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from watchkeeper.testing.script import Reply
from watchkeeper.testing.wording import pieces

MODEL: Final = "gpt-5-mini-2025-08-07"
CREATED: Final = 1767225600
HOLLOW: Final[Mapping[str, dict[str, Any]]] = {
    "message": {"content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
}


def output_items(reply: Reply, number: int) -> list[dict[str, Any]]:
    """Return the items of an answer."""
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        items.append(
            {
                "id": f"rs_{number}",
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": reply.reasoning}],
                "encrypted_content": f"encrypted:{number}",
                "status": None,
            }
        )
    content: list[dict[str, Any]] = []
    if reply.text:
        content.append({"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []})
    if reply.refusal:
        content.append({"type": "refusal", "refusal": reply.refusal})
    if content:
        items.append(
            {
                "id": f"msg_{number}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": content,
            }
        )
    items.extend(
        {
            "id": f"fc_{number}_{index}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for index, call in enumerate(reply.calls)
    )
    return items


def response_object(reply: Reply, body: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a whole answer."""
    reason = "max_output_tokens" if reply.cut else "content_filter" if reply.filtered else None
    usage = reply.usage
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": CREATED,
        "status": "incomplete" if reason else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "max_output_tokens": body.get("max_output_tokens"),
        "model": MODEL,
        "output": output_items(reply, number),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.get("store", True),
        "temperature": 1.0,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total,
        },
        "user": None,
        "metadata": {},
    }


def response_events(reply: Reply, body: Mapping[str, Any], number: int) -> Iterator[bytes]:
    """Yield an answer as server-sent events, each with its number."""
    for sequence, event in enumerate(_events(reply, body, number)):
        fields = {**event, "sequence_number": sequence}
        yield b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(fields))


def failed_event(error: Mapping[str, Any], body: Mapping[str, Any], number: int) -> bytes:
    """Return the event with which a stream fails (openai/types/responses/response_failed_event.py)."""
    reported = {"code": error["code"] or "server_error", "message": error["message"]}
    failed = {**response_object(Reply(), body, number), "status": "failed", "error": reported}
    event = {"type": "response.failed", "sequence_number": 99, "response": failed}
    return b"event: response.failed\ndata: %s\n\n" % msgspec.json.encode(event)


def _events(reply: Reply, body: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    whole = response_object(reply, body, number)
    begun: dict[str, Any] = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = {key: value for key, value in item.items() if key not in ("content", "summary", "arguments")}
        begun_item = {**empty, **HOLLOW[item["type"]], "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun_item}
        if item["type"] == "message":
            for part_index, part in enumerate(item["content"]):
                yield from _part_events({**place, "content_index": part_index}, part)
        elif item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            named = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **named}
        else:
            text = item["summary"][0]["text"]
            place["summary_index"] = 0
            part = item["summary"][0]
            yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": text}
            yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    kind = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
    yield {"type": kind, "response": whole}


def _part_events(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    key = "text" if part["type"] == "output_text" else "refusal"
    chances: dict[str, Any] = {"logprobs": []} if key == "text" else {}
    name = f"response.{part['type']}"
    yield {"type": "response.content_part.added", **place, "part": {**part, key: ""}}
    for piece in pieces(part[key]):
        yield {"type": f"{name}.delta", **place, **chances, "delta": piece}
    yield {"type": f"{name}.done", **place, **chances, key: part[key]}
    yield {"type": "response.content_part.done", **place, "part": part}
