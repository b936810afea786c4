"""What the real providers refuse, so that a fake refuses it too.

Each function looks at a decoded request and returns the provider's words, or None if the request is fine. Only rules
that adapters have broken in practice are here: calls and results that do not belong together, empty blocks, schemas
outside the enforced subset, too many cache breakpoints, reasoning that cannot be resolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

CACHE_BREAKPOINTS: Final = 4
FORMAT: Final = "output_config.format.schema"
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
    """Return the content blocks of a turn; a text alone stands for one block."""
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


def subschemas(
    schema: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield a schema and every schema in it, each with its path."""
    yield path, dict(schema)
    named: dict[str, dict[str, Any]] = {**(schema.get("properties") or {}), **(schema.get("$defs") or {})}
    for name, part in named.items():
        yield from subschemas(part, (*path, name))
    if isinstance(schema.get("items"), dict):
        yield from subschemas(schema["items"], (*path, "items"))
    options: list[dict[str, Any]] = schema.get("anyOf") or []
    for option in options:
        yield from subschemas(option, path)
