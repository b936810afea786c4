"""What becomes an attribute: bounded texts without credentials, names as the conventions have them, messages as JSON.

Everything that is sent passes `text` or `document`. What models, tools and servers wrote is bounded in size, must be
UTF-8, and shows no credential that this process holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final, cast

from watchkeeper.core.messages import AssistantMessage, ImagePart, Message, SystemMessage, ToolMessage, UserMessage
from watchkeeper.core.model import FinishReason
from watchkeeper.core.secrets import HELD, redacted
from watchkeeper.core.text import bounded, clipped, storable
from watchkeeper.core.codec import CodecError
from watchkeeper.session.tagging import check
from watchkeeper.tools.tool import Tool

TEXT_CHARS: Final = 2_000
"""A longer text of an attribute is cut."""

CONTENT_CHARS: Final = 100_000
"""Longer messages are cut, the oldest first; so are longer arguments and results of tools."""

PART_CHARS: Final = 16_000
"""A longer text inside a message is cut, with a note."""

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ON_SPANS: Final = frozenset({"SPAN_ONLY", "SPAN_AND_EVENT"})
IN_EVENTS: Final = frozenset({"EVENT_ONLY", "SPAN_AND_EVENT"})

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

PROVIDERS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""The convention's name of a provider, where Watchkeeper or LiteLLM has another one."""

IN_PROCESS: Final = frozenset({"scripted", "local"})
"""Providers that answer on this machine, without a request to a server of others."""

FINISHES: Final[Mapping[FinishReason, str]] = {"refusal": "content_filter", "tool_calls": "tool_call"}


def nanoseconds(at: datetime) -> int:
    """Return a moment as OpenTelemetry counts it."""
    return (at - EPOCH) // MICROSECOND * 1_000


def text(value: object, most: int = TEXT_CHARS) -> str:
    """Return a text as an attribute."""
    return clipped(storable(redacted(str(value))), most)


def present(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that have a value, their texts bounded and without credentials."""
    return {
        name: text(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None and value != ""
    }


def provider_name(provider: str) -> str:
    """Return the name of a provider as the conventions have it."""
    return PROVIDERS.get(provider, provider)


def captured() -> str:
    """Return where the content of messages goes, as the standard variable says; empty text for nowhere."""
    chosen = os.environ.get(CAPTURE, "").strip().upper()
    return chosen if chosen in ON_SPANS | IN_EVENTS else ""


def document(value: Any, most: int = CONTENT_CHARS) -> str:
    """Return JSON-able data as an attribute: its JSON, redacted; a text is taken as it is."""
    return bounded(redacted(value if isinstance(value, str) else _json(HELD.redacted_data(value))), most)


def _json(data: Any) -> str:
    """Return data as JSON, which has no number for infinity; models write 1e999, which is read as one."""
    try:
        return json.dumps(data, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), ensure_ascii=False, default=str)


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not isfinite(data):
        return str(data)
    if isinstance(data, list):
        return [_finite(item) for item in cast("Iterable[Any]", data)]
    if isinstance(data, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Any]", data).items()}
    return data


def transcript(messages: Sequence[Message]) -> str:
    """Return messages as JSON; if that is too long, the oldest are left out, with a note in their place."""
    kept: list[str] = []
    size = 2
    for message in reversed(messages):
        encoded = document(message_data(message))
        if size + len(encoded) + 2 > CONTENT_CHARS:
            note = {"type": "text", "content": f"[{len(messages) - len(kept)} earlier messages are left out]"}
            kept.append(json.dumps({"role": "system", "parts": [note]}))
            break
        kept.append(encoded)
        size += len(encoded) + 2
    return f"[{', '.join(reversed(kept))}]"


def message_data(message: Message) -> dict[str, Any]:
    """Return a message in the form of the conventions."""
    parts: list[dict[str, Any]]
    match message:
        case SystemMessage(text=said):
            parts = [_text(said)]
        case UserMessage(parts=given):
            parts = [_image(each) if isinstance(each, ImagePart) else _text(each.text) for each in given]
        case AssistantMessage():
            parts = _said(message)
        case ToolMessage():
            parts = [{"type": "tool_call_response", "id": message.call_id, "response": _cut(message.text)}]
    return {"role": message.role, "parts": parts}


def _said(message: AssistantMessage) -> list[dict[str, Any]]:
    parts = [{"type": "reasoning", "content": _cut(message.reasoning)}] if message.reasoning else []
    parts += [_text(message.text)] if message.text else []
    return [
        *parts,
        *(
            {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": _arguments(call.arguments)}
            for call in message.tool_calls
        ),
    ]


def answer(message: AssistantMessage, finish: FinishReason) -> str:
    """Return a reply as the output messages of a call."""
    return document([{**message_data(message), "finish_reason": FINISHES.get(finish, finish)}])


def instructions(messages: Iterable[Message]) -> str | None:
    """Return the system messages as JSON; None without any."""
    parts = [_text(message.text) for message in messages if isinstance(message, SystemMessage)]
    return document(parts) if parts else None


def definitions(tools: Iterable[Tool]) -> str | None:
    """Return tools as they are offered, as JSON; None without any."""
    specs = [tool.spec for tool in tools]
    data = [
        {"type": "function", "name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in specs
    ]
    return document(data) if data else None


def _cut(said: str) -> str:
    return bounded(redacted(said), PART_CHARS)


def _text(said: str) -> dict[str, Any]:
    return {"type": "text", "content": _cut(said)}


def _image(part: ImagePart) -> dict[str, Any]:
    """Return what is told of an image: its address if it has one, never its bytes."""
    if part.url:
        return {"type": "uri", "modality": "image", "mime_type": part.media_type, "uri": _cut(part.url)}
    return {"type": "blob", "modality": "image", "mime_type": part.media_type, "content": ""}


def _arguments(written: str) -> Any:
    """Return the arguments of a call as JSON-able data; as text if they are too long or too deep, or no JSON."""
    if len(written) > PART_CHARS:
        return _cut(written)
    try:
        read = json.loads(written)
        check(read)
    except (ValueError, RecursionError, CodecError):
        return _cut(written)
    return read
