"""A fake of OpenAI's two interfaces on the loopback: Chat Completions and Responses, whole and streamed.

Formats: openai/types/chat (chat_completion.py, chat_completion_chunk.py), openai/types/responses, and
https://platform.openai.com/docs/guides/error-codes for errors. It refuses what the real one refuses (see
`provider_checks`) and reports a script that ran out as a server error, so a wrong expectation is seen where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.provider_checks import check_chat, check_responses
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

# --- fake openai responses ------------------------------------------------------------------------------------------
# Answers in the format of OpenAI's Responses, whole and as events, for the fake server.
#
# Formats: openai/types/responses/response.py for the object, and the event types beside it
# (response_created_event.py, response_output_item_added_event.py, response_text_delta_event.py and so on).

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


# https://platform.openai.com/docs/guides/error-codes/api-errors: status, type, code, message
ERRORS: Final[Mapping[str, tuple[int, str, str | None, str]]] = {
    "rate_limit": (
        429,
        "requests",
        "rate_limit_exceeded",
        "Rate limit reached for gpt-5-mini on requests per min (RPM): Limit 3, Used 3. Please try again in 20s.",
    ),
    "quota": (
        429,
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    "overloaded": (
        503,
        "service_unavailable_error",
        None,
        "The server is currently overloaded with other requests. Sorry about that! You can retry your request.",
    ),
    "auth": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided: test."),
    "context_full": (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens.",
    ),
    "bad_request": (400, "invalid_request_error", None, "Unrecognized request argument supplied: frobnicate"),
    "blocked": (
        400,
        "invalid_request_error",
        "content_policy_violation",
        "Your request was rejected as a result of our safety system.",
    ),
    "server": (
        500,
        "server_error",
        None,
        "The server had an error while processing your request. Sorry about that!",
    ),
}


class FakeOpenAI(WireServer):
    """A server to give to an OpenAI client as ``base_url``.

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

    @property
    def base_url(self) -> str:
        """The address for a client, up to and with ``/v1``."""
        return f"{self.url}/v1"

    def bodies(self) -> list[dict[str, Any]]:
        """Return the decoded bodies of all requests so far."""
        return [request.json() for request in self.requests]

    def _reply(self, request: WireRequest) -> WireReply:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not key or (self._key is not None and key != self._key):
            return error_reply("auth", message="You didn't provide an API key." if not key else "")
        chat = request.path == "/v1/chat/completions"
        if request.method != "POST" or not (chat or request.path == "/v1/responses"):
            return error_reply("bad_request", 404, f"Invalid URL ({request.method} {request.path})")
        try:
            body: dict[str, Any] = request.json()
        except msgspec.DecodeError:
            return error_reply("bad_request", message="We could not parse the JSON body of your request.")
        problem = (check_chat if chat else check_responses)(body) if self._strict else None
        if problem:
            return error_reply("bad_request", message=problem)
        step = self.script.next(body)
        if step is None:
            return error_reply("server", message=f"the script has no answer for request {self.script.used}")
        wording = chat_wording(body, self.script.used) if chat else responses_wording(body, self.script.used)
        return wording.answer(step, streaming=bool(body.get("stream")))


def chat_wording(body: Mapping[str, Any], number: int) -> Wording:
    """Return how Chat Completions words the answer to a request."""
    return Wording(
        whole=lambda reply: completion_object(reply, number),
        events=lambda reply: completion_chunks(reply, body, number),
        failing=lambda fault: [
            b"data: " + msgspec.json.encode({"error": error_fields(fault.kind, fault.message)}) + b"\n\n"
        ],
        error=lambda fault: error_reply(fault.kind, message=fault.message, headers=fault.headers),
        headers={"x-request-id": f"req_{number}"},
    )


def responses_wording(body: Mapping[str, Any], number: int) -> Wording:
    """Return how Responses words the answer to a request."""
    return Wording(
        whole=lambda reply: response_object(reply, body, number),
        events=lambda reply: response_events(reply, body, number),
        failing=lambda fault: [failed_event(error_fields(fault.kind, fault.message), body, number)],
        error=lambda fault: error_reply(fault.kind, message=fault.message, headers=fault.headers),
        headers={"x-request-id": f"req_{number}"},
    )


def error_fields(kind: str, message: str = "") -> dict[str, Any]:
    """Return an error as OpenAI words it."""
    _, type_, code, text = ERRORS[kind]
    return {"message": message or text, "type": type_, "param": None, "code": code}


def error_reply(kind: str, status: int = 0, message: str = "", headers: Mapping[str, str] | None = None) -> WireReply:
    """Return an error as an answer."""
    error = {"error": error_fields(kind, message)}
    return json_reply(error, status or ERRORS[kind][0], {"x-request-id": "req_error", **(headers or {})})


def usage_fields(usage: TokenUsage) -> dict[str, Any]:
    """Return token counts as openai/types/completion_usage.py has them."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def finish_reason(reply: Reply) -> str:
    """Return why the answer ended."""
    if reply.filtered:
        return "content_filter"
    if reply.cut:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def completion_object(reply: Reply, number: int) -> dict[str, Any]:
    """Return a whole answer (openai/types/chat/chat_completion.py)."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or None,
        "refusal": reply.refusal or None,
        "annotations": [],
    }
    if reply.reasoning:
        # Not OpenAI's: what vLLM, llama.cpp and DeepSeek call it.
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}],
        "usage": usage_fields(reply.usage),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def completion_chunks(reply: Reply, body: Mapping[str, Any], number: int) -> Iterator[bytes]:
    """Yield an answer as server-sent events (openai/types/chat/chat_completion_chunk.py)."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event(number, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for key, text in (("reasoning_content", reply.reasoning), ("content", reply.text), ("refusal", reply.refusal)):
        for piece in pieces(text):
            yield chunk({key: piece})
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]})
        for piece in pieces(call.arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, finish_reason(reply))
    options: dict[str, Any] = body.get("stream_options") or {}
    if options.get("include_usage"):
        yield _event(number, [], usage_fields(reply.usage))
    yield b"data: [DONE]\n\n"


def _event(number: int, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
    fields = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
        "service_tier": "default",
        "system_fingerprint": None,
        "choices": choices,
        "usage": usage,
    }
    return _data(fields)


def _data(fields: Mapping[str, Any]) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(fields)
