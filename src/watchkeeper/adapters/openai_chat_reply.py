"""What Chat Completions answers, whole or in chunks, in our terms.

A stream is put together to a whole answer first, so that text, refusal, tool calls and usage are read in one way only.
Lenient where servers of this interface differ, strict where a reply would be lost: no choices, or a stream without an
end, is an error. Facts: openai/types/chat/chat_completion.py and chat_completion_chunk.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from watchkeeper.adapters.encoding import encode
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import FinishReason, ModelReply
from watchkeeper.core.usage import TokenUsage

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
