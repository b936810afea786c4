"""One turn over OpenAI's Responses, used statelessly.

Nothing is stored at the provider (``store: false``): every turn sends the whole conversation, and a reasoning model
gets its own items back as it sent them, reasoning encrypted. The final event of a stream carries the whole answer, so
one function reads whole and streamed answers. Facts: https://platform.openai.com/docs/api-reference/responses and
openai/types/responses.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from watchkeeper.adapters.endpoint import broken_stream, encode, encoded_messages, own_data, portable_id, with_ids
from watchkeeper.adapters.openai_chat import (
    ReplyUsage,
    TokenDetails,
    fixed_fields,
    image_url,
    named_schema,
    openai_endpoint,
    request_head,
    written_arguments,
)
from watchkeeper.adapters.wire import OnDelta, RemoteModel, Wire, usage_of
from watchkeeper.core.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from watchkeeper.core.model import FinishReason, ModelReply, ModelRequest

# Asking others for encrypted reasoning is an error ("Encrypted content is not supported with this model").
REASONING_MODELS: Final = re.compile(r"^(o\d|gpt-[5-9]|codex|computer-use)")
CALL_ID: Final = re.compile(r".{1,64}", re.DOTALL)
FINAL_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
COMPLETED: Final = frozenset({None, "", "completed"})
CUT: Final = frozenset({None, "max_output_tokens"})


class Content(msgspec.Struct):
    """A part of a message or of reasoning."""

    type: str = ""
    text: str = ""
    refusal: str = ""


class Item(msgspec.Struct):
    """One item of the output."""

    type: str = ""
    content: list[Content] | None = None
    summary: list[Content] | None = None
    call_id: str = ""
    name: str = ""
    arguments: Any = ""


class ResponseUsage(ReplyUsage):
    """Tokens of an answer."""

    prompt_tokens: int | None = msgspec.field(default=None, name="input_tokens")
    completion_tokens: int | None = msgspec.field(default=None, name="output_tokens")
    prompt_tokens_details: TokenDetails | None = msgspec.field(default=None, name="input_tokens_details")
    completion_tokens_details: TokenDetails | None = msgspec.field(default=None, name="output_tokens_details")


READ_ITEMS: Final = frozenset({"message", "function_call", "reasoning"})
"""Types of items that are decoded; items of the provider's own tools are not, because their fields differ."""


class Response(msgspec.Struct):
    """A whole answer; its items stay raw, because they go back unchanged."""

    id: str = ""
    model: str = ""
    status: str | None = None
    output: list[dict[str, Any]] = []
    usage: Any = None
    incomplete_details: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def encode_request(model: RemoteModel, request: ModelRequest, streaming: bool) -> bytes:
    """Return the body of a request."""
    encoding = model.encoding
    head = response_head(model.name, request)
    if streaming:
        head["stream"] = True

    def element(message: Message) -> bytes:
        return b",".join(map(encode, input_items(message, encoding)))

    pieces = encoded_messages(request.transcript, encoding, element)
    return model.body(request, head, pieces, lambda: response_fixed(request, model.native_output))


def response_head(name: str, request: ModelRequest) -> dict[str, Any]:
    """Return the fields that may change from turn to turn."""
    effort = request.settings.effort
    reasons = effort is not None or REASONING_MODELS.match(name)
    return request_head(
        name,
        request,
        "max_output_tokens",
        store=False,
        reasoning=None if effort is None else {"effort": effort},
        include=["reasoning.encrypted_content"] if reasons else None,
    )


def response_fixed(request: ModelRequest, native_output: bool) -> dict[str, Any]:
    """Return the fields that are the same in every turn of a run."""
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            # Here the default is to enforce, which would make optional parameters required.
            "strict": False,
        }
        for tool in request.tools
    ]
    form = None
    if request.output is not None and native_output:
        form = {"format": {"type": "json_schema", **named_schema(request.output)}}
    return fixed_fields(request, tools, text=form)


def input_items(message: Message, encoding: str) -> list[dict[str, Any]]:
    """Return a message as the items that the interface wants."""
    match message:
        case SystemMessage(text=text):
            return [{"role": "system", "content": text}]
        case UserMessage(parts=(TextPart(text=text),)):
            return [{"role": "user", "content": text}]
        case UserMessage(parts=parts):
            content = [
                {"type": "input_text", "text": part.text}
                if isinstance(part, TextPart)
                else {"type": "input_image", "image_url": image_url(part), "detail": "auto"}
                for part in parts
            ]
            return [{"role": "user", "content": content}]
        case ToolMessage(call_id=call_id, text=text):
            return [{"type": "function_call_output", "call_id": portable_id(call_id, CALL_ID), "output": text}]
        case AssistantMessage():
            return _assistant_items(message, encoding)


def _assistant_items(message: AssistantMessage, encoding: str) -> list[dict[str, Any]]:
    returned = own_data(message, encoding).get("items")
    if returned is not None:
        return with_ids(returned, message, "function_call", "call_id", CALL_ID)
    items: list[dict[str, Any]] = []
    if message.text:
        items.append({"role": "assistant", "content": message.text})
    items.extend(
        {
            "type": "function_call",
            "call_id": portable_id(call.call_id, CALL_ID),
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in message.tool_calls
    )
    return items


class Events:
    """Reads the events of a stream: passes text on, and keeps the whole answer that ends it."""

    def __init__(self, on_delta: OnDelta, provider: str) -> None:
        """Pass text to ``on_delta`` as it arrives; ``provider`` is the name in error messages."""
        self._on_delta = on_delta
        self._provider = provider
        self._final: Any = None

    def feed(self, event: dict[str, Any]) -> None:
        """Take in one event.

        Raises:
            ProviderError: If it reports an error.
        """
        kind = event.get("type")
        if kind == "response.output_text.delta":
            self._on_delta(str(event.get("delta") or ""))
        elif kind in FINAL_EVENTS:
            self._final = event.get("response")
        elif kind == "error":
            from watchkeeper.adapters.provider_errors import reply_error

            raise reply_error({key: event.get(key) for key in ("code", "message")}, self._provider)

    def whole(self) -> Response:
        """Return the whole answer.

        Raises:
            ProviderError: If the stream ended without it.
        """
        if self._final is None:
            raise broken_stream(self._provider, "the stream ended without a final response")
        return msgspec.convert(self._final, Response)


def read_reply(response: Response, provider: str, encoding: str, position: int) -> ModelReply:
    """Return the answer in our terms.

    Raises:
        ProviderError: If the provider says that the answer failed.
    """
    if response.status == "failed" or response.error:
        from watchkeeper.adapters.provider_errors import reply_error

        raise reply_error(response.error or {}, provider)
    texts: list[str] = []
    refusals: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for item in (msgspec.convert(raw, Item, strict=False) for raw in response.output if raw.get("type") in READ_ITEMS):
        if item.type == "message":
            texts.extend(part.text for part in item.content or () if part.type == "output_text")
            refusals.extend(part.refusal for part in item.content or () if part.type == "refusal")
        elif item.type == "function_call":
            calls.append(ToolCall(item.call_id, item.name, written_arguments(item.arguments)))
        elif item.type == "reasoning":
            reasoning.extend(part.text for part in item.summary or item.content or ())
    finish = _finish(response, refused=bool(refusals), called=bool(calls))
    return ModelReply(
        message=AssistantMessage(
            text="".join(texts),
            tool_calls=tuple(calls),
            reasoning="\n\n".join(reasoning),
            provider_data=_returned_items(response.output, encoding),
        ),
        usage=usage_of(ResponseUsage, response.usage),
        finish=finish,
        model=response.model,
        response_id=response.id,
        refusal="".join(refusals),
        ended_by=str((response.incomplete_details or {}).get("reason") or response.status) * (finish == "unknown"),
    )


def _finish(response: Response, *, refused: bool, called: bool) -> FinishReason:
    reason = (response.incomplete_details or {}).get("reason")
    if refused or reason == "content_filter":
        return "refusal"
    if response.status == "incomplete":
        return "length" if reason in CUT else "unknown"
    if response.status not in COMPLETED:
        return "unknown"
    return "tool_calls" if called else "stop"


def _returned_items(output: list[dict[str, Any]], encoding: str) -> dict[str, Any] | None:
    """Return the items to send back, if they contain more than text and calls.

    Reasoning that came without its encrypted content cannot be resolved without storage, and the ids of its neighbours
    refer to it: then no raw item is sent back.
    """
    reasoning = [item for item in output if item.get("type") == "reasoning"]
    phased = any(item.get("phase") for item in output)
    if not (reasoning or phased) or not all(item.get("encrypted_content") for item in reasoning):
        return None
    items = [{key: value for key, value in item.items() if value is not None} for item in output]
    return {"encoding": encoding, "items": items}


STORED: Final = ("previous_response_id", "conversation")
"""Fields that stand for a stored conversation."""

RESPONSES: Final = Wire(
    provider="openai",
    path="/responses",
    history="input",
    encoding="openai_responses:{name}",
    reserved=frozenset({"stream", "store", "background", *STORED}),
    caps=("max_output_tokens",),
    cap_at=lambda url: "max_output_tokens",
    usage=ResponseUsage,
    counted=FINAL_EVENTS,
    ended=FINAL_EVENTS,
    stored=STORED,
    connect=openai_endpoint,
    encode=encode_request,
    answer=Response,
    collect=Events,
    read=read_reply,
)


class OpenAIResponsesModel(RemoteModel):
    """A model that is reached through OpenAI's Responses.

    Args and errors are those of `RemoteModel`; the default ``api_key`` is ``OPENAI_API_KEY``, and ``base_url`` ends
    with ``/v1``.
    """

    wire = RESPONSES
