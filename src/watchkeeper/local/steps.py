"""How a small model without tool calls of its own uses tools: one JSON object a turn, with an enforced schema.

The object says which tool, or that the work is done, and brings the arguments or the answer. The instructions are in
the system message and never change within a run; tool results become user messages, which every chat template keeps;
what the model wrote goes back exactly as it wrote it. So the engine's prompt cache stays valid and a turn computes only
the new part.

The engine turns a schema into a grammar, so an answer always has its form; what the grammar cannot hold (free patterns,
ranges of decimals) is left out and checked by the runtime as for every model. Strings and arrays get bounds, because a
small model may repeat itself without end. The prompt gets the same types in a line each, with their descriptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec

from watchkeeper.adapters.endpoint import check_extra, encode, given, join_body, own_data
from watchkeeper.adapters.openai_chat import STREAMED
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from watchkeeper.core.model import ModelReply, ModelRequest, OutputSchema, ToolChoice, ToolSpec

ENCODING: Final = "local"
RESERVED: Final = frozenset({"response_format", "tools", *STREAMED})
FINAL: Final = "final_answer"
ESCAPE_CHARS: Final = 12
HALF_PAIR: Final = re.compile("[\ud800-\udbff]$")


class Step(msgspec.Struct):
    """What the model wrote."""

    action: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    answer: msgspec.Raw = msgspec.Raw(b'""')


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the turns of a run have in common.

    Attributes:
        instructions: What is added to the system message; may be empty.
        formats: For each tool choice the request's ``response_format``, encoded; none for free text.
        final: The action that ends the work; empty if there are no tools, and so no steps.
        typed: Whether the final answer has a schema.
    """

    instructions: str
    formats: dict[ToolChoice, bytes]
    final: str
    typed: bool


def make_plan(tools: Sequence[ToolSpec], output: OutputSchema | None) -> StepPlan:
    """Return the instructions and the schemas for these tools and this answer."""
    definitions: dict[str, Any] = {}
    if not tools:
        if output is None:
            return StepPlan("", {}, "", typed=False)
        form = encode(_response_format(bounded_schema(output.schema, definitions, ""), definitions))
        return StepPlan(_answer_words(output), {"auto": form, "none": form, "required": form}, "", typed=True)
    final = FINAL
    while any(tool.name == final for tool in tools):
        final += "_"
    branches = [
        _branch(tool.name, "arguments", bounded_schema(tool.parameters, definitions, f"{index}."))
        for index, tool in enumerate(tools)
    ]
    answer: dict[str, Any] = {"type": "string", "maxLength": STRING_CHARS}
    if output is not None:
        answer = bounded_schema(output.schema, definitions, "answer.")
    end = _branch(final, "answer", answer)
    formats: dict[ToolChoice, bytes] = {
        "auto": encode(_response_format({"anyOf": [*branches, end]}, definitions)),
        "required": encode(_response_format({"anyOf": branches}, definitions)),
        "none": encode(_response_format(end, definitions)),
    }
    return StepPlan(_step_words(tools, output, final), formats, final, typed=output is not None)


def _branch(action: str, field: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"action": {"const": action}, field: schema},
        "required": ["action", field],
        "additionalProperties": False,
    }


def _response_format(schema: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    root = {**schema, "$defs": definitions} if definitions else schema
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": root, "strict": True}}


def _answer_words(output: OutputSchema) -> str:
    fields = describe_fields(output.schema, "- ")
    return f"Reply with one JSON object on a single line, with these fields and nothing else:\n{fields}"


def _step_words(tools: Sequence[ToolSpec], output: OutputSchema | None, final: str) -> str:
    answer = '"<your answer>"' if output is None else "{...}"
    rules = (
        "Work in steps. Each reply is one JSON object on a single line, and nothing else. To use a tool:\n"
        '{"action":"<tool>","arguments":{...}}\n'
        "You then get its result. When the work is done:\n"
        f'{{"action":"{final}","answer":{answer}}}'
    )
    parts = [rules, "Tools:\n" + "\n".join(_tool_words(tool) for tool in tools)]
    if output is not None:
        parts.append(f"Fields of the answer:\n{describe_fields(output.schema, '- ')}")
    return "\n\n".join(parts)


def _tool_words(tool: ToolSpec) -> str:
    fields = describe_fields(tool.parameters, "    ")
    words = f"- {tool.name}: {' '.join(tool.description.split())}"
    return f"{words}\n{fields}" if fields else words


def request_body(name: str, request: ModelRequest, plan: StepPlan, newlines: Sequence[int]) -> bytes:
    """Return the request's body; each message was encoded when it was new.

    Raises:
        ConfigurationError: If the settings' extra fields would replace what is written here.
        ProviderError: If a message has an image.
    """
    fragments = request.transcript.encoded(ENCODING)
    fragments.extend(encode_fragment(message) for message in request.transcript.since(len(fragments)))
    settings = request.settings
    check_extra(settings, RESERVED)
    wishes = {"temperature": settings.temperature, "top_p": settings.top_p, "seed": settings.seed}
    head = {"model": name, "max_tokens": request.max_output_tokens, "temperature": 0.0, **given(wishes)}
    if request.on_delta is not None:
        head.update(STREAMED)
    head.update(settings.extra)
    form = plan.formats.get(request.tool_choice)
    tail = b"{}"
    if form is not None:
        tail = b'{"response_format":' + form + b"}"
        head.setdefault("logit_bias", [[token, False] for token in newlines])
    return join_body(head, "messages", join_messages(fragments, plan.instructions), tail)


def encode_fragment(message: Message) -> bytes:
    """Return a message as the first letter of its role and its text as the inside of a JSON string.

    Raises:
        ProviderError: If it has a part that the model cannot read.
    """
    match message:
        case SystemMessage(text=text):
            return b"s" + _inside(text)
        case UserMessage(parts=parts):
            if any(isinstance(part, ImagePart) for part in parts):
                raise ProviderError(
                    "the local model reads text only, and a message has an image: describe it in words, or use a "
                    "provider's model",
                    fault="bad_request",
                    provider="local",
                )
            return b"u" + _inside(message.text)
        case ToolMessage(name=name, text=text, is_error=is_error):
            return b"u" + _inside(f"{'Error from' if is_error else 'Result of'} {name}:\n{text}")
        case AssistantMessage():
            return b"a" + _inside(_said(message))


def _inside(text: str) -> bytes:
    return encode(text)[1:-1]


def _said(message: AssistantMessage) -> str:
    mine = own_data(message, ENCODING)
    if mine:
        return str(mine["content"])
    calls = [
        f'{{"action":{json.dumps(call.name)},"arguments":{call.arguments or "{}"}}}' for call in message.tool_calls
    ]
    return "\n".join([message.text, *calls] if message.text else calls)


def join_messages(fragments: Sequence[bytes], instructions: str) -> list[bytes]:
    """Return the elements of a JSON array of messages: the instructions, then roles in turn.

    Neighbours of one role become one message, because many chat templates want roles to alternate.
    """
    pieces: list[bytes] = []
    system = [fragment[1:] for fragment in fragments if fragment[:1] == b"s"]
    if instructions:
        system.append(_inside(instructions))
    if system:
        pieces.append(b'{"role":"system","content":"' + b"\\n\\n".join(system))
    last = b""
    for fragment in fragments:
        role = fragment[:1]
        if role == b"s":
            continue
        if role == last:
            pieces.append(b"\\n\\n" + fragment[1:])
            continue
        name = b"user" if role == b"u" else b"assistant"
        pieces.append((b'"},' if pieces else b"") + b'{"role":"' + name + b'","content":"' + fragment[1:])
        last = role
    if pieces:
        pieces.append(b'"}')
    return pieces


def read_step(reply: ModelReply, plan: StepPlan, position: int) -> ModelReply:
    """Return a reply with the model's JSON object turned into a tool call or an answer.

    Args:
        reply: The reply, with all that the model wrote as its text.
        plan: The plan of the step: what the model was asked for.
        position: Index of the answer in the transcript; used to name the call.
    """
    raw = reply.message.text
    if not plan.final:
        return reply
    data = {"encoding": ENCODING, "content": raw}
    try:
        step = msgspec.json.decode(raw, type=Step)
    except (msgspec.DecodeError, UnicodeEncodeError):
        # Cut off by its cap, or not in the requested form: the readable part of an answer is kept.
        text = visible_answer(raw, plan) or raw
        return replace(reply, message=AssistantMessage(text=text, provider_data=data))
    if step.action == plan.final:
        text = visible_answer(raw, plan)
        return replace(reply, message=AssistantMessage(text=text, provider_data=data))
    call = ToolCall(f"call_{position}", step.action, bytes(step.arguments).decode())
    message = AssistantMessage(tool_calls=(call,), provider_data=data)
    return replace(reply, message=message, finish="tool_calls")


def visible_answer(raw: str, plan: StepPlan) -> str:
    """Return the part of the final answer that the model has written so far; empty while it uses a tool."""
    if not plan.final:
        return raw
    opening = re.match(rf'\s*\{{\s*"action"\s*:\s*"{re.escape(plan.final)}"\s*,\s*"answer"\s*:\s*', raw)
    if opening is None:
        return ""
    rest = raw[opening.end() :]
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(rest)
    except ValueError:
        return rest if plan.typed else _partial_string(rest)
    return rest[:end] if plan.typed else str(value)


def _partial_string(rest: str) -> str:
    """Decode a JSON string whose end is missing, as far as its last whole character."""
    for cut in range(min(ESCAPE_CHARS, len(rest))):
        try:
            text = json.loads(rest[: len(rest) - cut] + '"', strict=False)
        except ValueError:
            continue
        return HALF_PAIR.sub("", str(text))
    return ""


class AnswerStream:
    """Passes on the visible part of an answer while the model's JSON object arrives."""

    def __init__(self, plan: StepPlan, on_delta: Callable[[str], None]) -> None:
        """Pass text on to ``on_delta``."""
        self._plan = plan
        self._on_delta = on_delta
        self._raw = ""
        self._shown = 0

    def feed(self, delta: str) -> None:
        """Take in what arrived."""
        self._raw += delta
        text = visible_answer(self._raw, self._plan)
        if len(text) > self._shown:
            self._on_delta(text[self._shown :])
            self._shown = len(text)


# --- schemas and their words ------------------------------------------------------------------------------------------

STRING_CHARS: Final = 2000
LONGEST_STRING_CHARS: Final = 8000
ARRAY_ITEMS: Final = 50
FORMATS: Final = frozenset({"date", "time", "date-time", "uuid"})
INTEGER_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
DEFINITIONS: Final = "#/$defs/"
# Anchored, of classes and literals, and without repetition that has no end.
PLAIN_WORD: Final = re.compile(r"[A-Za-z][\w-]*")
SAFE_PATTERN: Final = re.compile(r"\^(?:\[[\w -]+\]|\\d|[\w :/@#-]|\{\d{1,3}(?:,\d{1,3})?\}|\?)+\$")

Schema = Mapping[str, Any]


def bounded_schema(schema: Schema, definitions: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return a schema that the engine accepts and whose answers end.

    Args:
        schema: A self-contained JSON Schema.
        definitions: Takes up the schema's own definitions, bounded; belongs under ``$defs`` at the root.
        prefix: Put before the names of definitions, to tell apart those of several schemas.
    """
    for name, part in cast("Mapping[str, Schema]", schema.get("$defs") or {}).items():
        definitions[prefix + name] = _bounded(part, prefix)
    return _bounded(schema, prefix)


def _bounded(node: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {}
    schema = cast("Schema", node)
    if "$ref" in schema:
        return {"$ref": DEFINITIONS + prefix + str(schema["$ref"]).removeprefix(DEFINITIONS)}
    for key in ("const", "enum"):
        if key in schema:
            return {key: schema[key]}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return {"anyOf": [_bounded(option, prefix) for option in schema[key]]}
    if "allOf" in schema:
        return {"allOf": [_bounded(part, prefix) for part in schema["allOf"]]}
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = cast("list[str]", kind)
        return {"anyOf": [_bounded({**schema, "type": one}, prefix) for one in kinds]}
    match kind:
        case "string":
            return _bounded_string(schema)
        case "integer":
            return {"type": kind, **{key: schema[key] for key in INTEGER_BOUNDS if isinstance(schema.get(key), int)}}
        case "number" | "boolean" | "null":
            return {"type": kind}
        case "array":
            return _bounded_array(schema, prefix)
        case "object":
            return _bounded_object(schema, prefix)
        case _:
            return _bounded_object(schema, prefix) if "properties" in schema else {}


def _bounded_string(schema: Schema) -> dict[str, Any]:
    if schema.get("format") in FORMATS:
        return {"type": "string", "format": schema["format"]}
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and SAFE_PATTERN.fullmatch(pattern):
        return {"type": "string", "pattern": pattern}
    longest = min(schema.get("maxLength", STRING_CHARS), LONGEST_STRING_CHARS)
    return {"type": "string", "minLength": min(schema.get("minLength", 0), longest), "maxLength": longest}


def _bounded_array(schema: Schema, prefix: str) -> dict[str, Any]:
    most = min(schema.get("maxItems", ARRAY_ITEMS), ARRAY_ITEMS)
    if schema.get("prefixItems"):
        return {"type": "array", "prefixItems": [_bounded(item, prefix) for item in schema["prefixItems"]]}
    least = min(schema.get("minItems", 0), most)
    return {"type": "array", "items": _bounded(schema.get("items"), prefix), "minItems": least, "maxItems": most}


def _bounded_object(schema: Schema, prefix: str) -> dict[str, Any]:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    others = schema.get("additionalProperties")
    bounded: dict[str, Any] = {"type": "object"}
    if properties or others is False:
        bounded["properties"] = {name: _bounded(part, prefix) for name, part in properties.items()}
        bounded["required"] = [name for name in properties if name in schema.get("required", ())]
        bounded["additionalProperties"] = False
    if isinstance(others, Mapping):
        bounded["additionalProperties"] = _bounded(others, prefix)
    return bounded


def describe_fields(schema: Schema, indent: str) -> str:
    """Return an object's fields, a line each: name, type, description."""
    definitions = cast("Mapping[str, Schema]", schema.get("$defs") or {})
    required = schema.get("required", ())
    lines: list[str] = []
    for name, part in cast("Mapping[str, Schema]", schema.get("properties") or {}).items():
        optional = "" if name in required else ", optional"
        words = description_of(part, definitions)
        lines.append(f"{indent}{name} ({type_words(part, definitions)}{optional}){': ' + words if words else ''}")
    return "\n".join(lines)


def description_of(part: Schema, definitions: Mapping[str, Schema]) -> str:
    """Return what a field is for, on one line: its own description or else that of its type."""
    text = part.get("description")
    if not text and "$ref" in part:
        text = definitions.get(_name(part), {}).get("description")
    return " ".join(str(text).split()) if text else ""


def type_words(part: Any, definitions: Mapping[str, Schema], within: tuple[str, ...] = ()) -> str:
    """Return a short description of a type.

    Args:
        part: The type's schema.
        definitions: The schemas that the references in it name.
        within: Names of the definitions that are being described, so that a recursive type ends.
    """
    if not isinstance(part, Mapping):
        return "anything"
    schema = cast("Schema", part)
    if "$ref" in schema:
        name = _name(schema)
        return name if name in within else type_words(definitions.get(name), definitions, (*within, name))
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return _choice(schema["enum"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " | ".join(type_words(option, definitions, within) for option in options)
    kind = schema.get("type", "object" if "properties" in schema else "anything")
    if isinstance(kind, list):
        return " | ".join(cast("list[str]", kind))
    if kind == "array":
        return f"list of {type_words(schema.get('items'), definitions, within)}"
    if kind == "object" and schema.get("properties"):
        fields = [
            f"{name}: {type_words(field, definitions, within)}{_remark(field, definitions)}"
            for name, field in schema["properties"].items()
        ]
        return "{" + ", ".join(fields) + "}"
    return f"{kind}{_limits(schema)}"


def _choice(values: Any) -> str:
    """Return the allowed values; quotes, which cost a token each, only where a text could be mistaken."""
    plain = all(isinstance(value, str) and PLAIN_WORD.fullmatch(value) for value in values)
    words = values if plain else [json.dumps(value, ensure_ascii=False) for value in values]
    return f"one of {', '.join(words)}" if plain else " | ".join(words)


def _remark(field: Schema, definitions: Mapping[str, Schema]) -> str:
    words = description_of(field, definitions)
    return f" ({words})" if words else ""


def _limits(schema: Schema) -> str:
    if isinstance(schema.get("format"), str):
        return f" {schema['format']}"
    if "minimum" in schema and "maximum" in schema:
        return f" from {schema['minimum']} to {schema['maximum']}"
    return ""


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix(DEFINITIONS)
