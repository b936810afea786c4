"""One turn over OpenAI's Chat Completions, or any server that speaks it; and what both of OpenAI's interfaces share.

Translates and does nothing else. The chunks of a stream are first joined into a whole answer, so one function reads
text, refusal, tool calls and usage. Lenient where servers of this interface differ, strict where a reply would be lost:
no choices, or a stream without an end, is an error. Reasoning that a model requires back with its calls is sent back
unchanged. Facts: https://platform.openai.com/docs/api-reference/chat and the types of the openai package.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from watchkeeper.adapters.endpoint import (
    Endpoint,
    all_tools,
    broken_stream,
    check_base_url,
    encode,
    encoded_messages,
    given,
    import_sdk,
    own_data,
    part_index,
    portable_id,
    strict_schema,
)
from watchkeeper.adapters.wire import OnDelta, RemoteModel, Wire, usage_of
from watchkeeper.core.errors import ConfigurationError, MissingKeyError, ProviderError, ProviderFault
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
from watchkeeper.core.model import FinishReason, ModelReply, ModelRequest, OutputSchema, ToolSpec, extra_fields
from watchkeeper.core.usage import TokenUsage

ENCODING: Final = "openai_chat"
# OpenAI's own; then those of other servers. A reason that is not here never makes an answer final.
FINISH: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
    "eos": "stop",  # Together
    "eos_token": "stop",  # text-generation-inference
    "stop_sequence": "stop",  # text-generation-inference
    "model_length": "length",  # Mistral
    "max_tokens": "length",
}
FAILED: Final[Mapping[str, ProviderFault]] = {
    "error": "server",  # Mistral, OpenRouter
    "insufficient_system_resource": "overloaded",  # DeepSeek
}
# Fields that OpenAI does not have: other servers send them with a reasoning model's message and require them back.
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
    error: Any = None


class TokenDetails(msgspec.Struct):
    """Parts of a token count."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class ReplyUsage(msgspec.Struct):
    """Tokens of an answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: Any = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None

    def tokens(self) -> TokenUsage:
        """Return them in our terms; input includes the cached tokens, and output the reasoning tokens.

        xAI and Gemini count reasoning, which they bill as output, beside the completion: only the total has it.
        """
        inputs = self.prompt_tokens_details or TokenDetails()
        outputs = self.completion_tokens_details or TokenDetails()
        read, written, reasoned = self.prompt_tokens or 0, self.completion_tokens or 0, outputs.reasoning_tokens or 0
        beside = self.total_tokens - read - written if type(self.total_tokens) is int and read > 0 <= written else 0
        return TokenUsage(
            input_tokens=read,
            output_tokens=written + max(min(beside, reasoned or beside), 0),
            cached_tokens=inputs.cached_tokens or 0,
            cache_write_tokens=inputs.cache_write_tokens or 0,
            reasoning_tokens=reasoned,
        )


class Completion(msgspec.Struct):
    """A whole answer."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] = []
    usage: Any = None
    error: Any = None


class Chunks:
    """Joins the chunks of a stream into a whole answer."""

    def __init__(self, on_delta: OnDelta, provider: str) -> None:
        """Pass text on as it arrives; the provider is named in errors."""
        self._on_delta = on_delta
        self._provider = provider
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None
        self._counted = False
        self._index: Any = None

    def feed(self, chunk: dict[str, Any]) -> None:
        """Take in one chunk."""
        for key in ("id", "model", "usage"):
            if chunk.get(key):
                self._fields[key] = chunk[key]
        # By the interface this chunk is the last one; some servers send it, and no reason to finish.
        self._counted = self._counted or bool(chunk.get("usage") and not chunk.get("choices"))
        for choice in chunk.get("choices") or ():
            index = choice.get("index") or 0
            self._index = index if self._index is None else self._index
            if index != self._index:  # another alternative; the one that began first is the answer
                continue
            self._finish = choice.get("finish_reason") or self._finish
            delta: dict[str, Any] = choice.get("delta") or {}
            content, thoughts = _read_content(delta.get("content"))
            said = {**delta, "content": content, "reasoning": thoughts or delta.get("reasoning")}
            for key in ("content", "refusal", "reasoning_content", "reasoning"):
                text = said.get(key)
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
        call = self._calls.setdefault(part_index(index), {"id": None, "name": "", "arguments": []})
        function: dict[str, Any] = delta.get("function") or {}
        call["id"] = delta.get("id") or call["id"]
        call["name"] = call["name"] or function.get("name") or ""
        call["arguments"].append(function.get("arguments") or "")
        call["extra_content"] = delta.get("extra_content") or call.get("extra_content")

    def whole(self) -> Completion:
        """Return the whole answer.

        Raises:
            ProviderError: If the stream ended before the model did.
        """
        if self._finish is None and not (self._counted and (self._texts or self._calls)):
            raise broken_stream(self._provider, "the stream ended without a finish reason")
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
        # A stream that came to its counts is whole also without a reason to finish; a whole answer has no such sign.
        whole = {**self._fields, "choices": [{"message": message, "finish_reason": self._finish or "stop"}]}
        return msgspec.convert(whole, Completion)


def read_reply(completion: Completion, provider: str, encoding: str, position: int) -> ModelReply:
    """Return the answer in our terms.

    Args:
        completion: The whole answer.
        provider: Provider name, for errors.
        encoding: Name of the model's encodings, under which it finds again what it wants back.
        position: Index of the answer in the transcript; used to name calls that came without an id.

    Raises:
        ProviderError: If there is no message in the answer, or the server says that it failed.
    """
    if not completion.choices:
        from watchkeeper.adapters.provider_errors import reply_error

        raise reply_error(completion.error or {"message": "the answer has no choices"}, provider)
    choice = completion.choices[0]
    message = choice.message
    reason = choice.finish_reason or ""
    if reason in FAILED:
        raise _failed(choice.error or completion.error, reason, provider)
    calls = tuple(
        ToolCall(call.id or f"call_{position}_{index}", call.function.name, written_arguments(call.function.arguments))
        for index, call in enumerate(message.tool_calls or ())
    )
    finish: FinishReason = FINISH.get(reason, "unknown")
    if message.refusal:
        finish = "refusal"
    elif calls and finish == "stop":
        finish = "tool_calls"
    text, thoughts = _read_content(message.content)
    reasoning = message.reasoning_content or (message.reasoning if isinstance(message.reasoning, str) else "")
    return ModelReply(
        message=AssistantMessage(
            text=text,
            tool_calls=calls,
            reasoning=reasoning or thoughts,
            provider_data=_echo(message, calls, encoding),
        ),
        usage=usage_of(ReplyUsage, completion.usage),
        finish=finish,
        model=completion.model or "",
        response_id=completion.id or "",
        refusal=message.refusal or "",
        ended_by=reason if finish == "unknown" else "",
    )


def _failed(error: object, reason: str, provider: str) -> ProviderError:
    """Return the error for an answer of which the server itself says that it failed."""
    from watchkeeper.adapters.provider_errors import fault_error, reply_error, say

    if error:
        return reply_error(error, provider)
    said = say(provider, None, f"the answer ended with {reason!r}")
    return fault_error(FAILED[reason], said, provider=provider, billed=True)


def _read_content(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning of a content; some servers send parts, Mistral with ``thinking`` in parts."""
    if not isinstance(content, list):
        return (content, "") if isinstance(content, str) else ("", "")
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    for part in cast("list[dict[str, Any]]", content):
        kind = part.get("type")
        if kind in texts:
            inner = part.get(kind) or ""
            texts[kind].append(_read_content(inner)[0] if isinstance(inner, list) else str(inner))
    return "".join(texts["text"]), "".join(texts["thinking"])


def written_arguments(arguments: Any) -> str:
    """Return a call's arguments as JSON text; some servers send them as an object."""
    return arguments if isinstance(arguments, str) else encode(arguments).decode()


def _echo(message: ReplyMessage, calls: tuple[ToolCall, ...], encoding: str) -> dict[str, Any] | None:
    """Return what the server wants back unchanged while its calls are answered, if it sent any."""
    if not calls:
        return None
    fields = {key: getattr(message, key) for key in ECHOED if getattr(message, key)}
    # By position, because the loop gives a call another id if the server uses the same one twice.
    extras = [given({"extra_content": sent.extra_content}) for sent in message.tool_calls or ()]
    return {"encoding": encoding, "message": fields, "extras": extras} if fields or any(extras) else None


# --- what both of OpenAI's interfaces share -------------------------------------------------------------------------

NO_KEY: Final = "no-key"
NAME_LENGTH: Final = 64


def openai_endpoint(
    what: str, provider: str, api_key: str | None, base_url: str | None, headers: Mapping[str, str] | None
) -> Endpoint:
    """Return an endpoint that speaks through the OpenAI SDK; other servers need a key only if they ask for one.

    Args:
        what: Name of the caller, for error messages.
        provider: Provider name, for errors.
        api_key: The key, or None for ``OPENAI_API_KEY``.
        base_url: Address up to and with ``/v1``, or None for ``OPENAI_BASE_URL`` or OpenAI itself.
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


def request_head(name: str, request: ModelRequest, cap: str, **more: object) -> dict[str, Any]:
    """Return the fields that may change from turn to turn; of ``more`` those that are not None."""
    settings = request.settings
    wishes = {"temperature": settings.temperature, "top_p": settings.top_p, **more}
    head = {"model": name, cap: request.max_output_tokens, **given(wishes)}
    if request.tools:
        head["tool_choice"] = request.tool_choice
        if settings.parallel_tool_calls is not None:
            head["parallel_tool_calls"] = settings.parallel_tool_calls
    head.update((name, value) for name, value in settings.extra.items() if name != "tools")
    return head


def fixed_fields(request: ModelRequest, tools: list[dict[str, Any]], **output: object) -> dict[str, Any]:
    """Return the fields that are the same in every turn of a run; settings may add tools, and replace the others."""
    extra = request.settings.extra
    fields = given({key: value for key, value in output.items() if key not in extra})
    tools = all_tools(tools, extra)
    return {"tools": tools, **fields} if tools else fields


# --- requests -------------------------------------------------------------------------------------------------------

OPENAI_CALL_ID: Final = re.compile(r".{1,40}", re.DOTALL)
ANY_CALL_ID: Final = re.compile(r".*", re.DOTALL)


def encode_request(model: RemoteModel, request: ModelRequest, streaming: bool) -> bytes:
    """Return the body of a request."""
    url, encoding = model.endpoint.url, model.encoding
    head = chat_head(model.name, request, output_cap_field(url))
    if streaming:
        head.update(STREAMED)
    ids = call_ids_at(url)
    pieces = encoded_messages(request.transcript, encoding, lambda said: encode(message_fields(said, encoding, ids)))
    return model.body(request, head, pieces, lambda: chat_fixed(request, model.native_output))


STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}}


@lru_cache
def is_openai(url: str) -> bool:
    """Return whether a server is OpenAI's, at its own address or at Azure's."""
    return (urllib.parse.urlsplit(url).hostname or "").endswith(("openai.com", "openai.azure.com"))


def output_cap_field(url: str) -> str:
    """Return what a server calls the cap on a reply; others than OpenAI know the older name, and rarely the newer."""
    return "max_completion_tokens" if is_openai(url) else "max_tokens"


def call_ids_at(url: str) -> re.Pattern[str]:
    """Return the form of a call's id that a server takes; others than OpenAI may need their own, however long."""
    return OPENAI_CALL_ID if is_openai(url) else ANY_CALL_ID


def chat_head(name: str, request: ModelRequest, cap: str) -> dict[str, Any]:
    """Return the fields that may change from turn to turn.

    Raises:
        ConfigurationError: If the settings ask for several alternatives.
    """
    settings = request.settings
    alternatives = extra_fields(settings).get("n", 1)
    if alternatives != 1:
        raise ConfigurationError(
            f"ModelSettings.extra cannot set n={alternatives!r}: a run uses one alternative, and its limits "
            "reserve the cost of one; for several answers use several runs"
        )
    return request_head(name, request, cap, seed=settings.seed, reasoning_effort=settings.effort)


def chat_fixed(request: ModelRequest, native_output: bool) -> dict[str, Any]:
    """Return the fields that are the same in every turn of a run."""
    form = None
    if request.output is not None and native_output:
        form = {"type": "json_schema", "json_schema": named_schema(request.output)}
    return fixed_fields(request, [tool_fields(tool) for tool in request.tools], response_format=form)


def tool_fields(tool: ToolSpec) -> dict[str, Any]:
    """Return a tool as the interface wants it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def message_fields(message: Message, encoding: str, call_ids: re.Pattern[str] = ANY_CALL_ID) -> dict[str, Any]:
    """Return a message as the interface wants it.

    Args:
        message: The message to encode.
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
        extras: list[dict[str, Any]] = mine.get("extras") or [{}] * len(message.tool_calls)
        fields["tool_calls"] = [
            {
                "id": portable_id(call.call_id, call_ids),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                **extra,
            }
            for call, extra in zip(message.tool_calls, extras, strict=False)
        ]
    fields.update(mine.get("message", {}))
    return fields


CHAT: Final = Wire(
    provider="openai",
    path="/chat/completions",
    history="messages",
    encoding=f"{ENCODING}:{{provider}}:{{name}}",
    reserved=frozenset(STREAMED),
    caps=("max_completion_tokens", "max_tokens"),
    cap_at=output_cap_field,
    usage=ReplyUsage,
    counted=frozenset({""}),
    asks_usage=True,
    connect=openai_endpoint,
    encode=encode_request,
    answer=Completion,
    collect=Chunks,
    read=read_reply,
)
EMBEDDINGS: Final = replace(CHAT, path="/embeddings", history="", caps=(), replies=False, asks_usage=False)
"""Only for reading; none of Watchkeeper's models uses this interface."""


class OpenAIChatModel(RemoteModel):
    """A model that is reached through Chat Completions: at OpenAI, or at any server with the same interface.

    Args and errors are those of `RemoteModel`; the default ``api_key`` is ``OPENAI_API_KEY``, and ``base_url`` ends
    with ``/v1``.
    """

    wire = CHAT
