"""One turn over OpenAI's Chat Completions, or any server that speaks it.

Translates and does nothing else. The bytes of each message are made once and kept in the transcript, those of tools and
schema once for a run; a turn joins them. What a reasoning model wants back with its calls is returned unchanged.
Facts: https://platform.openai.com/docs/api-reference/chat and the types of the openai package.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final, Literal

from watchkeeper.adapters.encoding import Kept, check_extra, encode, encoded_messages, join_body, own_data, portable_id
from watchkeeper.adapters.endpoint import decode_reply
from watchkeeper.adapters.openai_chat_reply import ENCODING, Chunks, Completion, read_reply
from watchkeeper.adapters.openai_endpoint import image_url, named_schema, openai_endpoint
from watchkeeper.core.messages import AssistantMessage, Message, SystemMessage, TextPart, ToolMessage, UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest, ToolSpec

RESERVED: Final = frozenset({"messages", "stream", "stream_options"})
OPENAI_CALL_ID: Final = re.compile(r".{1,40}", re.DOTALL)
ANY_CALL_ID: Final = re.compile(r".*", re.DOTALL)
OutputCapField = Literal["max_completion_tokens", "max_tokens"]


class OpenAIChatModel:
    """A model behind Chat Completions.

    Args:
        name: The model's name as the server knows it.
        api_key: The key, or None for ``OPENAI_API_KEY``.
        base_url: Address of another server, up to and with ``/v1``.
        provider: Provider name, for prices, telemetry and errors.
        native_output: False for servers that know no ``json_schema`` response format; the prompt then describes it.
        context_window: Tokens the model can hold, if known.
        max_output_tokens: Largest reply the model can give, if known.
        headers: Sent with every request.

    Raises:
        MissingExtraError: If the openai package is not installed.
        MissingKeyError: If OpenAI itself is meant and there is no key.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        provider: str = "openai",
        native_output: bool = True,
        context_window: int | None = None,
        max_output_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.provider = provider
        self.native_output = native_output
        self.context_window = context_window
        self.max_output_tokens = max_output_tokens
        self.free = False
        self._endpoint = openai_endpoint(
            "OpenAIChatModel", api_key=api_key, base_url=base_url, provider=provider, headers=headers
        )
        self._cap = output_cap_field(self._endpoint.url)
        self._call_ids = call_ids_at(self._endpoint.url)
        # What one server wants back with its calls another one refuses, so each model has encodings of its own.
        self._encoding = f"{ENCODING}:{provider}:{name}"
        self._kept = Kept()

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Ask for one reply.

        Raises:
            ProviderError: With the fault that tells whether a retry may help.
        """
        streaming = request.on_delta is not None
        head = request_head(self.name, request, self._cap)
        if streaming:
            head["stream"] = True
            head["stream_options"] = {"include_usage": True}
        pieces = encoded_messages(request.transcript, self._encoding, self._encode)
        tail = self._kept.get(
            lambda: encode(fixed_fields(request, self.native_output)), request.tools, request.output, request.settings
        )
        body = join_body(head, "messages", pieces, tail)
        if request.on_delta is not None:
            chunks = Chunks(request.on_delta)
            await self._endpoint.stream("chat/completions", body, request.timeout, chunks.feed)
            completion = chunks.completion(self.provider)
        else:
            content = await self._endpoint.ask("chat/completions", body, request.timeout)
            completion = decode_reply(content, Completion, self.provider)
        return read_reply(completion, self.provider, len(request.transcript), self._encoding)

    async def close(self) -> None:
        """Close the connections; the model stays usable."""
        await self._endpoint.close()

    def _encode(self, message: Message) -> bytes:
        return encode(message_fields(message, self._encoding, self._call_ids))


def output_cap_field(url: str) -> OutputCapField:
    """Return what a server calls the cap on a reply; others than OpenAI know the older name, and rarely the newer."""
    return "max_completion_tokens" if is_openai(url) else "max_tokens"


def call_ids_at(url: str) -> re.Pattern[str]:
    """Return the form of a call's id that a server takes; others than OpenAI may need their own, however long."""
    return OPENAI_CALL_ID if is_openai(url) else ANY_CALL_ID


def is_openai(url: str) -> bool:
    """Return whether a server is OpenAI's, at its own address or at Azure's."""
    return (urllib.parse.urlsplit(url).hostname or "").endswith(("openai.com", "openai.azure.com"))


def request_head(name: str, request: ModelRequest, cap: str) -> dict[str, Any]:
    """Return the fields that may change from turn to turn."""
    settings = request.settings
    check_extra(settings.extra, RESERVED)
    head: dict[str, Any] = {"model": name, cap: request.max_output_tokens}
    wishes = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "reasoning_effort": settings.effort,
    }
    head.update({key: value for key, value in wishes.items() if value is not None})
    if request.tools:
        head["tool_choice"] = request.tool_choice
        if settings.parallel_tool_calls is not None:
            head["parallel_tool_calls"] = settings.parallel_tool_calls
    head.update(settings.extra)
    return head


def fixed_fields(request: ModelRequest, native_output: bool) -> dict[str, Any]:
    """Return the fields that are the same in every turn of a run."""
    fields: dict[str, Any] = {}
    if request.tools:
        fields["tools"] = [tool_fields(tool) for tool in request.tools]
    if request.output is not None and native_output:
        fields["response_format"] = {"type": "json_schema", "json_schema": named_schema(request.output)}
    return {key: value for key, value in fields.items() if key not in request.settings.extra}


def tool_fields(tool: ToolSpec) -> dict[str, Any]:
    """Return a tool as the interface wants it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def message_fields(
    message: Message, encoding: str = ENCODING, call_ids: re.Pattern[str] = ANY_CALL_ID
) -> dict[str, Any]:
    """Return a message as the interface wants it.

    Args:
        message: What was said.
        encoding: Name of the model's encodings; what other models kept in the message is left out.
        call_ids: The form of a call's id that the server takes.
    """
    match message:
        case SystemMessage(text=text):
            return {"role": "system", "content": text}
        case UserMessage(parts=(TextPart(text=text),)):
            return {"role": "user", "content": text}
        case UserMessage(parts=parts):
            return {
                "role": "user",
                "content": [
                    {"type": "text", "text": part.text}
                    if isinstance(part, TextPart)
                    else {"type": "image_url", "image_url": {"url": image_url(part)}}
                    for part in parts
                ],
            }
        case ToolMessage(call_id=call_id, text=text):
            return {"role": "tool", "tool_call_id": portable_id(call_id, call_ids), "content": text}
        case AssistantMessage():
            return _assistant_fields(message, encoding, call_ids)


def _assistant_fields(message: AssistantMessage, encoding: str, call_ids: re.Pattern[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": "assistant", "content": message.text}
    mine = own_data(message, encoding)
    if message.tool_calls:
        fields["content"] = message.text or None
        extras = mine.get("calls", {})
        fields["tool_calls"] = [
            {
                "id": portable_id(call.call_id, call_ids),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                **extras.get(call.call_id, {}),
            }
            for call in message.tool_calls
        ]
    fields.update(mine.get("message", {}))
    return fields
