"""A fake of OpenAI's two interfaces on the loopback: Chat Completions and Responses, whole and streamed.

Formats: openai/types/chat (chat_completion.py, chat_completion_chunk.py), openai/types/responses, and
https://platform.openai.com/docs/guides/error-codes for errors. It refuses what the real one
refuses, and reports a script that ran out as a server error, so a wrong expectation is seen where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from watchkeeper.adapters.openai_chat import CHAT
from watchkeeper.adapters.openai_responses import RESPONSES
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.wire import (
    ErrorRow,
    FakeProvider,
    Fault,
    Reply,
    WireReply,
    WireRequest,
    Wording,
    error_table,
    event,
    pieces,
    subschemas,
)

MODEL: Final = "gpt-5-mini-2025-08-07"
CREATED: Final = 1767225600
CHAT_PATH: Final = f"/v1{CHAT.path}"
RESPONSES_PATH: Final = f"/v1{RESPONSES.path}"
PREDICTED: Final = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
HOLLOW: Final[Mapping[str, dict[str, Any]]] = {
    "message": {"content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
}
UNUSED: Final[Mapping[str, Any]] = {
    "object": "response",
    "background": False,
    "service_tier": "default",
    "truncation": "disabled",
    "temperature": 1.0,
    "top_p": 1.0,
    "metadata": {},
    **dict.fromkeys(("error", "instructions", "previous_response_id", "user")),
}
"""Fields of a response that are the same in each."""


# https://platform.openai.com/docs/guides/error-codes/api-errors
ERRORS: Final = error_table("""
429 rate_limit   requests                  rate_limit_exceeded
    Rate limit reached for gpt-5-mini on requests per min (RPM): Limit 3, Used 3. Please try again in 20s.
429 quota        insufficient_quota        insufficient_quota
    You exceeded your current quota, please check your plan and billing details.
503 overloaded   service_unavailable_error
    The server is currently overloaded with other requests. Sorry about that! You can retry your request.
401 auth         invalid_request_error     invalid_api_key
    Incorrect API key provided: test.
400 context_full invalid_request_error     context_length_exceeded
    This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens.
400 bad_request  invalid_request_error
    Unrecognized request argument supplied: frobnicate
400 blocked      invalid_request_error     content_policy_violation
    Your request was rejected as a result of our safety system.
500 server       server_error
    The server had an error while processing your request. Sorry about that!
""")


class FakeOpenAI(FakeProvider):
    """A server to give to an OpenAI client as ``base_url``; arguments are those of `FakeProvider`."""

    prefix = "/v1"
    errors_by_fault = ERRORS
    id_header = "x-request-id"
    no_json = "We could not parse the JSON body of your request."

    def refusal(self, request: WireRequest, key: str | None) -> WireReply | None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not sent or (key is not None and key != sent):
            return self.error("auth", "" if sent else "You didn't provide an API key.")
        if request.method != "POST" or request.path not in (CHAT_PATH, RESPONSES_PATH):
            return self.error("bad_request", f"Invalid URL ({request.method} {request.path})", 404)
        return None

    def problem(self, path: str, body: dict[str, Any]) -> str | None:
        return check_chat(body) if path == CHAT_PATH else check_responses(body)

    def wording(self, path: str, body: dict[str, Any], number: int) -> Wording:
        def error(fault: Fault) -> dict[str, Any]:
            return error_fields(ERRORS[fault.kind], fault.message)

        if path == CHAT_PATH:
            return Wording(
                whole=lambda reply: completion_object(reply, number),
                events=lambda reply: completion_chunks(reply, body, number),
                failing=lambda fault: event({"error": error(fault)}),
            )
        return Wording(
            whole=lambda reply: response_object(reply, body, number),
            events=lambda reply: response_events(reply, body, number),
            failing=lambda fault: failed_event(error(fault), body, number),
        )

    def error_body(self, row: ErrorRow, message: str) -> dict[str, Any]:
        return {"error": error_fields(row, message)}


def error_fields(row: ErrorRow, message: str) -> dict[str, Any]:
    """Return an error as OpenAI words it."""
    return {"message": message or row.message, "type": row.type, "param": None, "code": row.code}


# --- Chat Completions -------------------------------------------------------------------------------------------------


def usage_fields(usage: TokenUsage) -> dict[str, Any]:
    """Return token counts as openai/types/completion_usage.py has them."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0, **PREDICTED},
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
    said = {"content": reply.text or None, "refusal": reply.refusal or None}
    message: dict[str, Any] = {"role": "assistant", **said, "annotations": []}
    if reply.reasoning:
        # Not OpenAI's: what vLLM, llama.cpp and DeepSeek call it.
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
    return {**_frame("chat.completion", number), "choices": [choice], "usage": usage_fields(reply.usage)}


def _frame(kind: str, number: int) -> dict[str, Any]:
    usual = {"service_tier": "default", "system_fingerprint": None}
    return {"id": f"chatcmpl-{number}", "object": kind, "created": CREATED, "model": MODEL, **usual}


def completion_chunks(reply: Reply, body: Mapping[str, Any], number: int) -> Iterator[bytes]:
    """Yield an answer as server-sent events (openai/types/chat/chat_completion_chunk.py)."""
    frame = _frame("chat.completion.chunk", number)

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**frame, "choices": [choice], "usage": None})

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
        yield event({**frame, "choices": [], "usage": usage_fields(reply.usage)})
    yield b"data: [DONE]\n\n"


# --- Responses --------------------------------------------------------------------------------------------------------


def output_items(reply: Reply, number: int) -> list[dict[str, Any]]:
    """Return the items of an answer."""
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        encrypted = {"encrypted_content": f"encrypted:{number}", "status": None}
        items.append({"id": f"rs_{number}", "type": "reasoning", "summary": summary, **encrypted})
    content: list[dict[str, Any]] = []
    if reply.text:
        content.append({"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []})
    if reply.refusal:
        content.append({"type": "refusal", "refusal": reply.refusal})
    if content:
        said = {"status": "completed", "role": "assistant", "content": content}
        items.append({"id": f"msg_{number}", "type": "message", **said})
    for index, call in enumerate(reply.calls):
        asked = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        items.append({"id": f"fc_{number}_{index}", "type": "function_call", "status": "completed", **asked})
    return items


def response_object(reply: Reply, body: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a whole answer."""
    reason = "max_output_tokens" if reply.cut else "content_filter" if reply.filtered else None
    usage = reply.usage
    return {
        **UNUSED,
        "id": f"resp_{number}",
        "created_at": CREATED,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "max_output_tokens": body.get("max_output_tokens"),
        "model": MODEL,
        "output": output_items(reply, number),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "store": body.get("store", True),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total,
        },
    }


def response_events(reply: Reply, body: Mapping[str, Any], number: int) -> Iterator[bytes]:
    """Yield an answer as server-sent events, each with its number."""
    for sequence, fields in enumerate(_events(reply, body, number)):
        yield event({**fields, "sequence_number": sequence})


def failed_event(error: Mapping[str, Any], body: Mapping[str, Any], number: int) -> bytes:
    """Return the event with which a stream fails (openai/types/responses/response_failed_event.py)."""
    reported = {"code": error["code"] or "server_error", "message": error["message"]}
    failed = {**response_object(Reply(), body, number), "status": "failed", "error": reported}
    return event({"type": "response.failed", "sequence_number": 99, "response": failed})


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


# --- what the provider refuses ----------------------------------------------------------------------------------------
# Each function returns the provider's words, or None. Only rules that adapters have broken in practice are here: calls
# and results that do not match, empty blocks, schemas outside the enforced subset, too many cache
# breakpoints, reasoning that cannot be resolved.

UNSUPPORTED_BY_OPENAI: Final = ("default", "allOf", "oneOf", "not", "minLength", "maxLength", "uniqueItems")

Problem = str | None


def check_chat(body: Mapping[str, Any]) -> Problem:
    """Check a request of Chat Completions (https://platform.openai.com/docs/api-reference/chat/create)."""
    if not body.get("model"):
        return "you must provide a model parameter"
    messages: list[dict[str, Any]] = body.get("messages") or []
    if not messages:
        return (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    f"'tool_calls' (messages.[{index}].role)."
                )
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            break
        open_calls.extend(call["id"] for call in message.get("tool_calls") or ())
    if open_calls:
        return (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
        )
    response_format: dict[str, Any] = body.get("response_format") or {}
    if response_format.get("type") == "json_schema":
        return check_openai_schema(response_format["json_schema"], "response_format")
    return None


def check_responses(body: Mapping[str, Any]) -> Problem:
    """Check a request of Responses (https://platform.openai.com/docs/api-reference/responses/create)."""
    items: list[dict[str, Any]] = [] if isinstance(body.get("input"), str) else body.get("input") or []
    if not body.get("model") or not body.get("input"):
        return "Missing required parameter: 'input'." if body.get("model") else "Missing required parameter: 'model'."
    called = {item["call_id"] for item in items if item.get("type") == "function_call"}
    answered = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
    for item in items:
        if item.get("type") == "function_call_output" and item["call_id"] not in called:
            return f"No tool call found for function call output with call_id {item['call_id']}."
        if item.get("type") == "function_call" and item["call_id"] not in answered:
            return f"No tool output found for function call {item['call_id']}."
        if item.get("type") == "reasoning" and not (item.get("encrypted_content") or body.get("store", True)):
            return (
                f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false. Try "
                "again with `store` set to true, or remove this item from your input."
            )
    text: dict[str, Any] = body.get("text") or {}
    output_format: dict[str, Any] = text.get("format") or {}
    if output_format.get("type") == "json_schema":
        return check_openai_schema(output_format, "text.format")
    return None


def check_openai_schema(named: Mapping[str, Any], where: str) -> Problem:
    """Check a named schema (https://platform.openai.com/docs/guides/structured-outputs#supported-schemas)."""
    prefix = f"Invalid schema for {where} '{named.get('name')}': "
    if not named.get("strict"):
        return None
    schema: dict[str, Any] = named["schema"]
    if schema.get("type") != "object":
        return f"{prefix}schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    for path, part in subschemas(schema):
        for key in UNSUPPORTED_BY_OPENAI:
            if key in part:
                return f"{prefix}In context={path}, '{key}' is not permitted."
        if "$ref" in part and len(part) > 1:
            return f"{prefix}In context={path}, $ref cannot have keywords {sorted(part.keys() - {'$ref'})}."
        if part.get("type") == "object":
            if part.get("additionalProperties") is not False:
                return f"{prefix}In context={path}, 'additionalProperties' is required to be supplied and to be false."
            if set(part.get("required") or ()) != set(part.get("properties") or ()):
                return (
                    f"{prefix}In context={path}, 'required' is required to be supplied and to be an array including "
                    "every key in properties."
                )
    return None
