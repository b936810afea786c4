"""One turn over OpenAI's Chat Completions, or any server that speaks it.

Translates and does nothing else. The bytes of each message are made once and kept in the transcript, those of tools and
schema once for a run; a turn joins them. What a reasoning model wants back with its calls is returned unchanged.
Facts: https://platform.openai.com/docs/api-reference/chat and the types of the openai package.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from watchkeeper.adapters.endpoint import (
    Endpoint,
    Kept,
    check_base_url,
    check_extra,
    decode_reply,
    encode,
    encoded_messages,
    import_sdk,
    join_body,
    own_data,
    portable_id,
    strict_schema,
)
from watchkeeper.core.errors import MissingKeyError, ProviderError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from watchkeeper.core.model import FinishReason, ModelReply, ModelRequest, OutputSchema, ToolSpec
from watchkeeper.core.usage import TokenUsage

# --- openai chat reply ----------------------------------------------------------------------------------------------
# What Chat Completions answers, whole or in chunks, in our terms.
#
# A stream is put together to a whole answer first, so that text, refusal, tool calls and usage are read in one way
# only.
# Lenient where servers of this interface differ, strict where a reply would be lost: no choices, or a stream without an
# end, is an error. Facts: openai/types/chat/chat_completion.py and chat_completion_chunk.py.

ENCODING: Final = "openai_chat"
FINISH: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
}
# Not OpenAI's: what other servers of this interface send with a reasoning model's message and want back with it.
ECHOED: Final = ("reasoning_content", "reasoning_details")


class ReplyFunction(msgspec.Struct):
    """A call's function."""

    name: str = ""
    arguments: Any = ""


class ReplyCall(msgspec.Struct):
    """A call in an answer."""

    id: str | None = None
    function: ReplyFunction = msgspec.field(default_factory=ReplyFunction)
    extra_content: Any = None


class ReplyMessage(msgspec.Struct):
    """The message in an answer."""

    content: Any = None
    refusal: str | None = None
    tool_calls: list[ReplyCall] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    reasoning_details: Any = None


class Choice(msgspec.Struct):
    """The one alternative that was asked for."""

    message: ReplyMessage = msgspec.field(default_factory=ReplyMessage)
    finish_reason: str | None = None


class TokenDetails(msgspec.Struct):
    """Parts of a token count."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class ReplyUsage(msgspec.Struct):
    """Tokens of an answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class Completion(msgspec.Struct):
    """A whole answer."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] = []
    usage: ReplyUsage | None = None
    error: Any = None


class Chunks:
    """Puts the chunks of a stream together to a whole answer."""

    def __init__(self, on_delta: Callable[[str], None]) -> None:
        """Pass text on as it arrives."""
        self._on_delta = on_delta
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None

    def feed(self, chunk: dict[str, Any]) -> None:
        """Take in one chunk."""
        for key in ("id", "model", "usage"):
            if chunk.get(key):
                self._fields[key] = chunk[key]
        for choice in chunk.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            delta: dict[str, Any] = choice.get("delta") or {}
            for key in ("content", "refusal", "reasoning_content", "reasoning"):
                text = delta.get(key)
                if isinstance(text, str) and text:
                    self._texts.setdefault(key, []).append(text)
                    if key == "content":
                        self._on_delta(text)
            self._details.extend(delta.get("reasoning_details") or ())
            for call in delta.get("tool_calls") or ():
                self._add_call(call)

    def _add_call(self, delta: dict[str, Any]) -> None:
        index = delta.get("index")
        if index is None:
            # Some servers send whole calls without an index.
            index = len(self._calls)
        call = self._calls.setdefault(index, {"id": None, "name": "", "arguments": []})
        function: dict[str, Any] = delta.get("function") or {}
        call["id"] = delta.get("id") or call["id"]
        call["name"] = call["name"] or function.get("name") or ""
        call["arguments"].append(function.get("arguments") or "")
        call["extra_content"] = delta.get("extra_content") or call.get("extra_content")

    def completion(self, provider: str) -> Completion:
        """Return the whole answer.

        Raises:
            ProviderError: If the stream ended before the model did.
        """
        if self._finish is None:
            from watchkeeper.adapters.provider_errors import broken_stream

            raise broken_stream(provider, "the stream ended without a finish reason")
        message: dict[str, Any] = {key: "".join(texts) for key, texts in self._texts.items()}
        message["reasoning_details"] = self._details or None
        message["tool_calls"] = [
            {
                "id": call["id"],
                "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
                "extra_content": call.get("extra_content"),
            }
            for _, call in sorted(self._calls.items())
        ]
        whole = {**self._fields, "choices": [{"message": message, "finish_reason": self._finish}]}
        return convert_completion(whole, provider)


def convert_completion(fields: Mapping[str, Any], provider: str) -> Completion:
    """Return an answer that was decoded already.

    Raises:
        ProviderError: If it is none.
    """
    try:
        return msgspec.convert(fields, Completion)
    except msgspec.ValidationError as error:
        raise ProviderError(
            f"{provider} answered something that is not a chat completion: {error}",
            fault="server",
            provider=provider,
            billed=True,
        ) from error


def read_reply(completion: Completion, provider: str, position: int, encoding: str = ENCODING) -> ModelReply:
    """Return the answer in our terms.

    Args:
        completion: The whole answer.
        provider: Provider name, for errors.
        position: Where in the transcript the answer will stand; names calls that came without an id.
        encoding: Name of the model's encodings, under which it finds again what it wants back.

    Raises:
        ProviderError: If there is no message in the answer.
    """
    if not completion.choices:
        from watchkeeper.adapters.provider_errors import reply_error

        raise reply_error(completion.error or {"message": "the answer has no choices"}, provider)
    choice = completion.choices[0]
    message = choice.message
    calls = tuple(
        ToolCall(call.id or f"call_{position}_{index}", call.function.name, _arguments(call.function.arguments))
        for index, call in enumerate(message.tool_calls or ())
    )
    finish = FINISH.get(choice.finish_reason or "stop", "stop")
    if message.refusal:
        finish = "refusal"
    elif calls and finish == "stop":
        finish = "tool_calls"
    reasoning = message.reasoning_content or (message.reasoning if isinstance(message.reasoning, str) else "")
    return ModelReply(
        message=AssistantMessage(
            text=_text(message.content),
            tool_calls=calls,
            reasoning=reasoning,
            provider_data=_echo(message, calls, encoding),
        ),
        usage=read_usage(completion.usage),
        finish=finish,
        model=completion.model or "",
        response_id=completion.id or "",
        refusal=message.refusal or "",
    )


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(str(part.get("text") or "") for part in parts if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments).decode()


def _echo(message: ReplyMessage, calls: tuple[ToolCall, ...], encoding: str) -> dict[str, Any] | None:
    """Return what the server wants back unchanged while its calls are answered, if it sent any."""
    if not calls:
        return None
    fields = {key: getattr(message, key) for key in ECHOED if getattr(message, key)}
    extras = {
        call.call_id: {"extra_content": sent.extra_content}
        for call, sent in zip(calls, message.tool_calls or (), strict=True)
        if sent.extra_content
    }
    return {"encoding": encoding, "message": fields, "calls": extras} if fields or extras else None


def read_usage(usage: ReplyUsage | None) -> TokenUsage:
    """Return token counts in our terms; here prompt tokens include the cached ones and completion the reasoning."""
    if usage is None:
        return TokenUsage()
    prompt = usage.prompt_tokens_details or TokenDetails()
    completion = usage.completion_tokens_details or TokenDetails()
    return TokenUsage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=prompt.cached_tokens or 0,
        cache_write_tokens=prompt.cache_write_tokens or 0,
        reasoning_tokens=completion.reasoning_tokens or 0,
    )


# --- openai endpoint ------------------------------------------------------------------------------------------------
# What both of OpenAI's interfaces share: the client, the key, and how ids and images are written.
#
# Any server that speaks one of the interfaces is reached with ``base_url``; it needs a key only if it asks for one.

NO_KEY: Final = "no-key"
NAME_LENGTH: Final = 64


def openai_endpoint(
    what: str, *, api_key: str | None, base_url: str | None, provider: str, headers: Mapping[str, str] | None
) -> Endpoint:
    """Return an endpoint that speaks through the OpenAI SDK.

    Args:
        what: Who asks, for the error if the SDK is missing.
        api_key: The key, or None for ``OPENAI_API_KEY``.
        base_url: Address up to and with ``/v1``, or None for ``OPENAI_BASE_URL`` or OpenAI itself.
        provider: Provider name, for errors.
        headers: Sent with every request.

    Raises:
        MissingExtraError: If the SDK is not installed.
        MissingKeyError: If OpenAI itself is meant and there is no key.
    """
    sdk = import_sdk("openai", what, "openai")
    from watchkeeper.adapters.transport import aio_client

    base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
    check_base_url(base_url)
    key = api_key or os.environ.get("OPENAI_API_KEY")
    if not key and base_url is None:
        raise MissingKeyError(
            f"{what} needs a key: set OPENAI_API_KEY or pass api_key=...; for a server of your own pass base_url=..."
        )
    client: Any = sdk.AsyncOpenAI(
        api_key=key or NO_KEY, base_url=base_url, max_retries=0, http_client=aio_client(sdk), default_headers=headers
    )
    return Endpoint(provider, sdk, client, {"security": {"bearer_auth": True}})


def image_url(part: ImagePart) -> str:
    """Return an image's address, or the image itself as a data URL."""
    return part.url or f"data:{part.media_type};base64,{part.data}"


def named_schema(output: OutputSchema) -> dict[str, Any]:
    """Return the name, the schema and whether it is enforced, as both interfaces want them."""
    strict = strict_schema(output.schema)
    name = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in output.name)
    return {
        "name": name[:NAME_LENGTH] or "output",
        "schema": output.schema if strict is None else strict,
        "strict": strict is not None,
    }


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
