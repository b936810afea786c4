"""How a small model without tool calls of its own uses tools: one JSON object a turn, held to a schema.

The object says which tool, or that the work is done, and brings the arguments or the answer. The instructions stand in
the system message and never change within a run; tool results become user messages, which every chat template keeps;
what the model wrote goes back exactly as it wrote it. So the engine's prompt cache holds and a turn costs what is new.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from watchkeeper.adapters.encoding import encode, own_data
from watchkeeper.adapters.local_schema import STRING_CHARS, bounded_schema, describe_fields
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
from watchkeeper.core.model import ModelReply, OutputSchema, ToolChoice, ToolSpec

ENCODING: Final = "local"
FINAL: Final = "final_answer"
ESCAPE_CHARS: Final = 12
HALF_PAIR: Final = re.compile("[\ud800-\udbff]$")
KEPT_PLANS: Final = 16


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


class StepPlans:
    """Plans by the tools and the schema that they were made from; the objects are held, so that ids stay theirs."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Start with none."""
        self._entries: dict[tuple[int, int], tuple[tuple[ToolSpec, ...], OutputSchema | None, StepPlan]] = {}

    def get(self, tools: tuple[ToolSpec, ...], output: OutputSchema | None) -> StepPlan:
        """Return the plan for these very objects."""
        key = (id(tools), id(output))
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= KEPT_PLANS:
                self._entries.clear()
            entry = self._entries[key] = (tools, output, make_plan(tools, output))
        return entry[2]


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
        plan: What it was asked for.
        position: Where in the transcript the answer will stand; names the call.
    """
    raw = reply.message.text
    if not plan.final:
        return reply
    data = {"encoding": ENCODING, "content": raw}
    try:
        step = msgspec.json.decode(raw, type=Step)
    except (msgspec.DecodeError, UnicodeEncodeError):
        # Cut off by its cap, or not the form that was asked for: what can be read of an answer is kept.
        text = visible_answer(raw, plan) or raw
        return replace(reply, message=AssistantMessage(text=text, provider_data=data))
    if step.action == plan.final:
        text = visible_answer(raw, plan)
        return replace(reply, message=AssistantMessage(text=text, provider_data=data))
    call = ToolCall(f"call_{position}", step.action, bytes(step.arguments).decode())
    message = AssistantMessage(tool_calls=(call,), provider_data=data)
    return replace(reply, message=message, finish="tool_calls")


def visible_answer(raw: str, plan: StepPlan) -> str:
    """Return as much of the final answer as there is in what the model wrote so far; empty while it uses a tool."""
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
