"""One turn over Anthropic's Messages.

Messages are kept as encoded content blocks; where the role changes, the bytes close one turn and open the next, so the
results of parallel calls are in one turn, as the API requires. Cache breakpoints are set after the system prompt and at
the last two tails, so the growing prefix is read from the cache. Blocks with thinking are sent back unchanged. The
events of a stream are first joined into a whole message, so one function reads whole and streamed answers. Facts:
https://platform.claude.com/docs/en/api/messages and the types of the anthropic package.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict, Unpack, cast

import msgspec

from watchkeeper.adapters.endpoint import (
    ANTHROPIC_KEYWORDS,
    Endpoint,
    all_tools,
    broken_stream,
    check_base_url,
    describe_schema,
    encode,
    given,
    import_sdk,
    own_data,
    part_index,
    portable_id,
    strict_schema,
    tool_arguments,
    unreadable,
    with_ids,
)
from watchkeeper.adapters.wire import OnDelta, RemoteModel, Wire, usage_of
from watchkeeper.core.errors import MissingKeyError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Transcript,
    UserMessage,
)
from watchkeeper.core.model import FinishReason, ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage

FINISH: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "paused",
    "compaction": "paused",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
DELTA_FIELDS: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class TokenDetails(msgspec.Struct):
    """Parts of a token count."""

    thinking_tokens: int | None = None


class Counts(msgspec.Struct):
    """Tokens of an answer, or of one time that its model was asked.

    Attributes:
        type: For one time: what the model was asked for.
    """

    type: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: TokenDetails | None = None

    def tokens(self) -> TokenUsage:
        """Return them in our terms; the cache's tokens are added to the input, as they are part of it."""
        read, written = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        return TokenUsage(
            input_tokens=(self.input_tokens or 0) + read + written,
            output_tokens=self.output_tokens or 0,
            cached_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=(self.output_tokens_details or TokenDetails()).thinking_tokens or 0,
        )


class ReplyUsage(Counts):
    """Tokens of an answer (anthropic/types/beta/beta_usage.py).

    Attributes:
        iterations: Every time that the model was asked. The counts of the answer are the sum of those for messages;
            what a compaction or an advisor used is billed, too, and is only here.
    """

    iterations: list[Counts] | None = None

    def tokens(self) -> TokenUsage:
        """Return them in our terms, with all that is billed."""
        beside = (each for each in self.iterations or () if each.type not in OF_MESSAGES)
        return sum((each.tokens() for each in beside), Counts.tokens(self))

    def context(self) -> int | None:
        """Return the size of the conversation, if the model was asked several times, or for something else."""
        times = self.iterations or []
        messages = [each for each in times if each.type in OF_MESSAGES]
        if len(times) == len(messages) < 2:
            return None
        return (messages[-1] if messages else self).tokens().total


OF_MESSAGES: Final = frozenset({"message", "fallback_message"})


class Events:
    """Joins the events of a stream into a whole message."""

    def __init__(self, on_delta: OnDelta, provider: str) -> None:
        """Pass text on as it arrives; the provider is named in errors."""
        self._on_delta = on_delta
        self._provider = provider
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._partial: dict[int, dict[str, list[str]]] = {}
        self._ended = False

    def feed(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        index = part_index(event.get("index") or 0)
        match event.get("type"):
            case "message_start":
                self._message = dict(event.get("message") or {})
            case "content_block_start":
                self._blocks[index] = dict(event.get("content_block") or {})
            case "content_block_delta":
                self._add(index, event.get("delta") or {})
            case "message_delta":
                self._message.update(given(event.get("delta")))
                self._message["usage"] = _latest_usage(self._message.get("usage"), event.get("usage"))
            case "message_stop":
                self._ended = True
            case _:
                pass

    def _add(self, index: int, delta: dict[str, Any]) -> None:
        kind = str(delta.get("type"))
        block = self._blocks.setdefault(index, {"type": "text"})
        partial = self._partial.setdefault(index, {})
        if kind == "input_json_delta":
            partial.setdefault("input", []).append(str(delta.get("partial_json") or ""))
        elif kind == "citations_delta":
            cited: list[Any] = block.get("citations") or []
            cited.append(delta.get("citation"))
            block["citations"] = cited
        elif kind == "compaction_delta":
            block.update({key: value for key, value in delta.items() if key != "type"})
        elif kind in DELTA_FIELDS:
            text = str(delta.get(DELTA_FIELDS[kind]) or "")
            partial.setdefault(DELTA_FIELDS[kind], []).append(text)
            if kind == "text_delta" and text:
                self._on_delta(text)

    def whole(self) -> dict[str, Any]:
        """Return the whole message.

        Raises:
            ProviderError: If the stream ended before the message did.
        """
        if not self._ended:
            raise broken_stream(self._provider, "the stream ended without message_stop")
        for index, fields in self._partial.items():
            block = self._blocks[index]
            for key, texts in fields.items():
                text = "".join(texts)
                if key != "input":
                    block[key] = (block.get(key) or "") + text
                elif block.get("type") == "tool_use":
                    block["input_text"] = text  # `read_message` takes it out again
                    block["input"] = tool_arguments(text)
                elif text:
                    block["input"] = tool_arguments(text)
        return {**self._message, "content": [block for _, block in sorted(self._blocks.items())]}


def _latest_usage(earlier: Any, later: Any) -> Any:
    """Return the counts that hold after an event; what is no object of counts is left for who reads the message."""
    if later is None:
        return earlier
    if isinstance(earlier, dict) and isinstance(later, dict):
        return {**given(cast("dict[str, Any]", earlier)), **given(cast("dict[str, Any]", later))}
    return later


def read_message(message: Mapping[str, Any], provider: str, encoding: str, position: int) -> ModelReply:
    """Return a whole message in our terms.

    Raises:
        ProviderError: If it is none.
    """
    content = message.get("content")
    if not isinstance(content, list):
        raise unreadable(provider, "a message: it has no content")
    blocks = cast("list[dict[str, Any]]", content)
    calls: list[ToolCall] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            written = block.pop("input_text", None)
            arguments = written if written is not None else encode(block.get("input") or {}).decode()
            calls.append(ToolCall(str(block.get("id")), str(block.get("name")), arguments or "{}"))
    details: dict[str, Any] = message.get("stop_details") or {}
    usage = usage_of(ReplyUsage, message.get("usage"))
    reason = str(message.get("stop_reason") or "")
    finish: FinishReason = FINISH.get(reason, "unknown")
    return ModelReply(
        message=AssistantMessage(
            text="".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text"),
            tool_calls=tuple(calls),
            reasoning="\n\n".join(str(block["thinking"]) for block in blocks if block.get("thinking")),
            provider_data=_returned_blocks(blocks, encoding),
        ),
        usage=usage,
        finish=finish,
        model=str(message.get("model") or ""),
        response_id=str(message.get("id") or ""),
        refusal=str(details.get("explanation") or "the model refused") if finish == "refusal" else "",
        ended_by=reason if finish == "unknown" else "",
        context_tokens=_context(message.get("usage")) if usage.is_possible else None,
    )


def _context(told: Any) -> int | None:
    return None if told is None else msgspec.convert(told, ReplyUsage).context()


def _returned_blocks(blocks: list[dict[str, Any]], encoding: str) -> dict[str, Any] | None:
    """Return the blocks to send back, if they contain more than one text and calls."""
    kinds = [block.get("type") for block in blocks]
    if kinds.count("text") <= 1 and set(kinds) <= {"text", "tool_use"}:
        return None
    kept = [given(block) for block in blocks if block.get("type") != "text" or str(block.get("text") or "").strip()]
    return {"encoding": encoding, "blocks": kept}


TOOL_CHOICE: Final = {"auto": "auto", "required": "any", "none": "none"}
EFFORT: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
EMPTY_TEXT: Final = "(empty)"
TOOL_USE_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
CacheTime = Literal["5m", "1h"]


def encode_request(model: RemoteModel, request: ModelRequest, streaming: bool) -> bytes:
    """Return the body of a request."""
    assert isinstance(model, AnthropicModel), "a wire encodes for the models of its own file"
    transcript = request.transcript
    pieces = marked_tails(transcript, encoded_turns(transcript, model.encoding), model.mark)
    first = transcript[0] if len(transcript) else None
    system = first if isinstance(first, SystemMessage) else None
    closed = [*pieces, b"]}"] if any(pieces) else pieces
    head = request_head(model.name, request, streaming)
    return model.body(request, head, closed, lambda: fixed_fields(model, request, system), system)


def request_head(name: str, request: ModelRequest, streaming: bool) -> dict[str, Any]:
    """Return the fields that may change from turn to turn."""
    settings = request.settings
    wishes = {"stream": streaming or None, "temperature": settings.temperature, "top_p": settings.top_p}
    head: dict[str, Any] = {"model": name, "max_tokens": request.max_output_tokens, **given(wishes)}
    if request.tools and "tool_choice" not in settings.extra:
        choice: dict[str, Any] = {"type": TOOL_CHOICE[request.tool_choice]}
        if settings.parallel_tool_calls is False and request.tool_choice != "none":
            choice["disable_parallel_tool_use"] = True
        head["tool_choice"] = choice
    return head


def fixed_fields(model: AnthropicModel, request: ModelRequest, system: SystemMessage | None) -> dict[str, Any]:
    """Return the fields that are the same in every turn of a run."""
    settings = request.settings
    marked = {} if model.mark is None else {"cache_control": model.mark}
    fields: dict[str, Any] = {}
    own = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    tools = all_tools(own, settings.extra)
    if tools:
        fields["tools"] = tools
    output: dict[str, Any] = {}
    text = system.text if system is not None else ""
    if settings.effort is not None:
        output["effort"] = EFFORT[settings.effort]
        fields["thinking"] = {"type": "adaptive"}
    if request.output is not None and model.native_output:
        schema = strict_schema(request.output.schema, ANTHROPIC_KEYWORDS)
        if schema is None:
            text = "\n\n".join(filter(None, [text, describe_schema(request.output)]))
        else:
            output["format"] = {"type": "json_schema", "schema": schema}
    if output:
        fields["output_config"] = output
    if text.strip():
        fields["system"] = [{"type": "text", "text": text, **marked}]
    elif tools:
        tools[-1].update(marked)
    return {**fields, **{name: value for name, value in settings.extra.items() if name != "tools"}}


def encoded_turns(transcript: Transcript, encoding: str) -> list[bytes]:
    """Return the bytes of each message: its blocks, with what closes the turn before it and opens its own."""
    pieces = transcript.encoded(encoding)
    for index, message in enumerate(transcript.since(len(pieces)), start=len(pieces)):
        blocks = b",".join(encode(block) for block in content_blocks(message, encoding))
        speaker = "assistant" if isinstance(message, AssistantMessage) else "user"
        before = _speaker_before(transcript, pieces, index)
        if blocks and before == speaker:
            blocks = b"," + blocks
        elif blocks:
            opening = b'{"role":"%s","content":[' % speaker.encode()
            blocks = (b"]}," if before else b"") + opening + blocks
        pieces.append(blocks)
    return pieces


def _speaker_before(transcript: Transcript, pieces: list[bytes], index: int) -> str:
    for earlier in range(index - 1, -1, -1):
        if pieces[earlier]:
            return "assistant" if isinstance(transcript[earlier], AssistantMessage) else "user"
    return ""


def marked_tails(transcript: Transcript, pieces: list[bytes], mark: Mapping[str, str] | None) -> list[bytes]:
    """Mark the newest block, and the one that was newest a turn ago, as ends of a cached prefix.

    The provider looks back only a limited number of blocks from a mark. The older mark finds the cache after a long
    turn.
    """
    if mark is None:
        return pieces
    tails: list[int] = []
    want_user = True
    for index in range(len(pieces) - 1, -1, -1):
        if len(tails) == 2:
            break
        is_user = isinstance(transcript[index], UserMessage | ToolMessage)
        if is_user and want_user and pieces[index]:
            tails.append(index)
        want_user = not is_user or (want_user and not pieces[index])
    marked = list(pieces)
    for index in tails:
        marked[index] = marked[index][:-1] + b',"cache_control":' + encode(mark) + b"}"
    return marked


def anthropic_endpoint(
    what: str, provider: str, api_key: str | None, base_url: str | None, headers: Mapping[str, str] | None
) -> Endpoint:
    """Return an endpoint that speaks through the Anthropic SDK.

    Raises:
        MissingExtraError: If the SDK is not installed.
        MissingKeyError: If it finds no credentials.
    """
    sdk = import_sdk("anthropic", what, "anthropic")
    from watchkeeper.adapters.transport import aio_client

    check_base_url(base_url or os.environ.get("ANTHROPIC_BASE_URL") or None)
    options: dict[str, Any] = {}
    if "open_telemetry" in inspect.signature(sdk.AsyncAnthropic).parameters:
        # Model calls are traced once, where they pass the gate.
        options["open_telemetry"] = False
    client: Any = sdk.AsyncAnthropic(
        api_key=api_key,
        base_url=base_url,
        max_retries=0,
        http_client=aio_client(sdk),
        default_headers=headers,
        **options,
    )
    if not (client.api_key or client.auth_token or getattr(client, "credentials", None)):
        raise MissingKeyError(f"{what} needs a key: set ANTHROPIC_API_KEY or pass api_key=...")
    return Endpoint(provider, sdk, client)


def content_blocks(message: Message, encoding: str) -> list[dict[str, Any]]:
    """Return a message as content blocks; none for empty answers and the system prompt (another field)."""
    match message:
        case SystemMessage():
            return []
        case UserMessage(parts=parts):
            return [_part_block(part) for part in parts if isinstance(part, ImagePart) or part.text.strip()] or [
                {"type": "text", "text": EMPTY_TEXT}
            ]
        case ToolMessage():
            used = portable_id(message.call_id, TOOL_USE_ID)
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": used}
            if message.text:
                block["content"] = message.text
            if message.is_error:
                block["is_error"] = True
                block.setdefault("content", EMPTY_TEXT)
            return [block]
        case AssistantMessage():
            return _assistant_blocks(message, encoding)


def _part_block(part: Part) -> dict[str, Any]:
    if not isinstance(part, ImagePart):
        return {"type": "text", "text": part.text}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}


def _assistant_blocks(message: AssistantMessage, encoding: str) -> list[dict[str, Any]]:
    returned = own_data(message, encoding).get("blocks")
    if returned is not None:
        return with_ids(returned, message, "tool_use", "id", TOOL_USE_ID)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": message.text}] if message.text.strip() else []
    blocks.extend(
        {
            "type": "tool_use",
            "id": portable_id(call.call_id, TOOL_USE_ID),
            "name": call.name,
            "input": tool_arguments(call.arguments),
        }
        for call in message.tool_calls
    )
    return blocks


MESSAGES: Final = Wire(
    provider="anthropic",
    path="/v1/messages",
    history="messages",
    encoding="anthropic:{name}",
    reserved=frozenset({"stream"}),
    caps=("max_tokens",),
    cap_at=lambda url: "max_tokens",
    # Whole answers that may take longer than ten minutes must be streamed; the SDK reckons 128,000 tokens an hour.
    longest_whole=21_333,
    usage=ReplyUsage,
    counted=frozenset({"message_delta"}),
    ended=frozenset({"message_stop"}),
    thinks_in_cap=True,
    connect=anthropic_endpoint,
    encode=encode_request,
    answer=dict[str, Any],
    collect=Events,
    read=read_message,
)


class RemoteOptions(TypedDict, total=False):
    """What `RemoteModel` takes beside the name."""

    api_key: str | None
    base_url: str | None
    provider: str
    native_output: bool
    context_window: int | None
    max_output_tokens: int | None
    headers: Mapping[str, str] | None


class AnthropicModel(RemoteModel):
    """A model behind Anthropic's Messages.

    Args:
        name: The model's name as Anthropic knows it.
        cache: How long prompt caches live, or None for no caching.
        **options: Those of `RemoteModel`; without ``api_key`` the SDK uses ``ANTHROPIC_API_KEY`` (or a token or profile
            that it finds). ``base_url`` is given without ``/v1``.

    Raises:
        MissingExtraError: If the anthropic package is not installed.
        MissingKeyError: If the SDK finds no credentials.
    """

    wire = MESSAGES

    def __init__(self, name: str, *, cache: CacheTime | None = "5m", **options: Unpack[RemoteOptions]) -> None:
        super().__init__(name, **options)
        self.cache = cache
        self.mark: Mapping[str, str] | None = None
        if cache is not None:
            self.mark = {"type": "ephemeral", **({} if cache == "5m" else {"ttl": cache})}
