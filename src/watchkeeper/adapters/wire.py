"""A request on its way to a provider, read from its bytes: what it is, what it may cost at worst, how it is capped.

Four interfaces are known: Chat Completions, Responses, Embeddings, and Anthropic's Messages. A field is changed only
where the gate grants less than was asked, where no cap was named, where a stream would end without its token counts,
or where a cheaper model takes over; every other value keeps its bytes. Nothing here sends, and nothing here decides.
Facts: the request types of the openai and anthropic packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from watchkeeper.adapters import anthropic as anthropic_reply
from watchkeeper.adapters import openai_chat as openai_chat_reply
from watchkeeper.adapters import openai_responses
from watchkeeper.adapters.openai_chat import output_cap_field
from watchkeeper.core.usage import TokenUsage
from watchkeeper.loop.models import FRAME_TOKENS, TOOLS_OVERHEAD

Interface = Literal["chat", "responses", "embeddings", "messages"]
ENDINGS: Final[Mapping[str, Interface]] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/embeddings": "embeddings",
    "/v1/messages": "messages",
}
UNBILLED: Final = re.compile(
    r"/(files|uploads(/.+)?|moderations|messages/count_tokens|responses/input_tokens|responses/[^/]+/cancel)$"
)
"""Posts that cost nothing by themselves."""

CAPS: Final[Mapping[Interface, tuple[str, ...]]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "embeddings": (),
    "messages": ("max_tokens",),
}
HISTORY: Final[Mapping[Interface, str]] = {
    "chat": "messages",
    "responses": "input",
    "embeddings": "",
    "messages": "messages",
}
"""The field that holds the conversation, as a list."""

PASSING: Final = frozenset(
    {"max_completion_tokens", "max_tokens", "max_output_tokens", "n", "stream", "stream_options"}
)
"""Fields that say nothing of the input."""

UNSIZED: Final = frozenset(
    {
        "audio",
        "computer_screenshot",
        "container_upload",
        "document",
        "file",
        "image",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "item_reference",
        "video_url",
    }
)
"""Types of parts whose bytes say nothing of the tokens they cost."""

SIZED_SOURCES: Final = frozenset({"text", "content"})
STORED: Final = ("previous_response_id", "conversation", "prompt")
"""Fields of Responses that bring in what the provider has stored."""

AT_THE_PROVIDER: Final = ("web_search_options", "mcp_servers")
OWN_TOOLS: Final = re.compile(r"(function|custom|local_shell|apply_patch|(computer|bash|text_editor|memory)(_.*)?)?$")
"""Types of tools that the caller runs; all others run at the provider and add to the input by themselves."""

DEAR: Final = ("service_tier", "speed", "inference_geo")
"""Fields that may choose another price."""


def interface_of(path: str) -> Interface | None:
    """Return the interface that a path belongs to, or None."""
    if "/threads/" in path:
        return None
    return next((interface for ending, interface in ENDINGS.items() if path.endswith(ending)), None)


class WireCall:
    """One model call, read from the body of its request.

    Attributes:
        interface: Which interface it is for.
        model: The model's name.
        streaming: Whether the answer is to come as a stream.
        cap: Output tokens that it asks for at most, all alternatives together; None if it names no cap.
        copies: How many alternatives it asks for.
        least: Output tokens without which the provider would refuse the request.
        pieces: The messages of the conversation, as bytes.
        fixed: Everything else that the input's tokens depend on; the same in each turn of one conversation.
        previous: The stored answer that it goes on from, if it does.
        wishes: Fields that may choose another price.
        long_cache: Whether it asks for caches that live for an hour.
        audible: Whether it asks for spoken answers, which no list of prices by token covers.
        adds_usage: Whether the stream's token counts are there only because we ask for them.
    """

    def __init__(self, interface: Interface, body: bytes, url: str) -> None:
        """Read a body.

        Raises:
            msgspec.DecodeError: If it is not a JSON object, or a field is not what it has to be.
        """
        self._fields = fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        self._url = url
        self.interface: Interface = interface
        self.model = self._get("model", str) or ""
        self.streaming = self._get("stream", bool) or False
        self.copies = max(self._get("n", int) or 1, 1) if interface == "chat" else 1
        caps = [cap for cap in (self._get(name, int) for name in CAPS[interface]) if cap is not None]
        self.cap = min(caps) * self.copies if caps else None
        thinking: dict[str, Any] = self._get("thinking", dict) or {}
        self.least = int(thinking.get("budget_tokens") or 0) + 1 if interface == "messages" else 0
        self.wishes = {name: wish for name in DEAR if (wish := self._get(name, str)) is not None}
        self.long_cache = re.search(rb'"ttl"\s*:\s*"1h"', body) is not None
        self.audible = "audio" in fields
        self.previous: str | None = self._get("previous_response_id", str) if interface == "responses" else None
        options: dict[str, Any] = self._get("stream_options", dict) or {}
        self.adds_usage = interface == "chat" and self.streaming and not options.get("include_usage")
        self._options = options
        self.pieces, self.fixed = self._parts()
        sized = sum(len(value) for _, value in self.fixed)
        tools: list[dict[str, Any]] = self._get("tools", list[dict[str, Any]]) or []
        self._fixed_bytes = sized + FRAME_TOKENS + (TOOLS_OVERHEAD if tools else 0)
        at_provider = sum(OWN_TOOLS.match(str(tool.get("type") or "")) is None for tool in tools)
        names = (*STORED, *AT_THE_PROVIDER) if interface == "responses" else AT_THE_PROVIDER
        self._fixed_unsized = at_provider + sum(self._given(name) for name in names)

    def input_bound(self, known: int = 0) -> tuple[int, int]:
        """Return an upper bound of the tokens of what is text, and how many parts there are that bytes do not bound.

        Args:
            known: How many messages, and with them everything fixed, the provider has counted before; they are left
                out, but not what the provider may add by itself in each turn.
        """
        text, unsized = (FRAME_TOKENS if known else self._fixed_bytes), self._fixed_unsized
        for piece in self.pieces[known:]:
            size, parts = weigh(msgspec.json.decode(piece))
            text += len(piece) - size + FRAME_TOKENS
            unsized += parts
        return text, unsized

    def capped(self, granted: int | None, model: str | None = None) -> bytes:
        """Return the body to send.

        Args:
            granted: Output tokens granted for all alternatives together; None leaves the cap as it is.
            model: Asked instead of the one that the request names.
        """
        fields: dict[str, Any] = dict(self._fields)
        names = CAPS[self.interface]
        if granted is not None and names and (self.cap is None or granted < self.cap):
            default = output_cap_field(self._url) if self.interface == "chat" else names[0]
            for name in [name for name in names if self._given(name)] or [default]:
                fields[name] = granted // self.copies
        if self.adds_usage:
            fields["stream_options"] = {**self._options, "include_usage": True}
        if model is not None:
            fields["model"] = model
        return msgspec.json.encode(fields)

    def _given(self, name: str) -> bool:
        return name in self._fields and bytes(self._fields[name]) != b"null"

    def _get(self, name: str, type_: Any) -> Any:
        return msgspec.json.decode(self._fields[name], type=type_ | None) if name in self._fields else None

    def _parts(self) -> tuple[tuple[bytes, ...], tuple[tuple[str, bytes], ...]]:
        """Return the messages, and all other fields that matter for the input, as bytes."""
        history = HISTORY[self.interface]
        pieces: tuple[bytes, ...] = ()
        if history in self._fields and bytes(self._fields[history]).lstrip()[:1] == b"[":
            pieces = tuple(map(bytes, msgspec.json.decode(self._fields[history], type=list[msgspec.Raw])))
        left_out = PASSING | ({history} if pieces else frozenset[str]())
        fixed = tuple((name, bytes(value)) for name, value in self._fields.items() if name not in left_out)
        return pieces, fixed


def weigh(content: Any) -> tuple[int, int]:
    """Return the bytes of the parts whose bytes say nothing of their tokens, and how many such parts there are."""
    inner: Sequence[Any]
    if isinstance(content, dict):
        fields = cast("dict[str, Any]", content)
        source: Any = fields.get("source")
        plain = isinstance(source, dict) and cast("dict[str, Any]", source).get("type") in SIZED_SOURCES
        if fields.get("type") in UNSIZED and not plain:
            return len(msgspec.json.encode(fields)), 1
        inner = list(fields.values())
    elif isinstance(content, list):
        inner = cast("Sequence[Any]", content)
    else:
        return 0, 0
    weights = [weigh(value) for value in inner if isinstance(value, list | dict)]
    return sum(size for size, _ in weights), sum(parts for _, parts in weights)


# --- wire usage -----------------------------------------------------------------------------------------------------
# What an answer on the wire says it cost, whole or as server-sent events, in our terms.
#
# A stream is passed on event by event, as its bytes arrive; only the token counts that we asked for ourselves, which
# the
# caller does not expect, are taken out. Usage counts as known once the provider has said its last word on it.

FINAL_EVENTS: Final = openai_responses.FINAL_EVENTS
DONE: Final = b"[DONE]"


class ChatAnswer(msgspec.Struct):
    """What is read of a completion, a chunk of one, or embeddings."""

    usage: openai_chat_reply.ReplyUsage | None = None
    choices: list[msgspec.Raw] = []


class ResponsesAnswer(msgspec.Struct):
    """What is read of a response."""

    id: str = ""
    usage: openai_responses.ReplyUsage | None = None


class ResponsesEvent(msgspec.Struct):
    """What is read of an event of a response."""

    type: str = ""
    response: ResponsesAnswer | None = None


class MessagesAnswer(msgspec.Struct):
    """What is read of a message, or of an event of one."""

    type: str = ""
    usage: dict[str, Any] | None = None
    message: dict[str, Any] | None = None


class Seen:
    """What an answer has told so far.

    Attributes:
        usage: Its token counts, once they are final and make sense.
        response_id: The id under which the provider keeps the answer, if it does.
        ended: Whether the answer said that it was complete.
        size: Bytes of it so far.
    """

    __slots__ = ("ended", "response_id", "size", "usage")

    def __init__(self) -> None:
        """Know nothing yet."""
        self.usage: TokenUsage | None = None
        self.response_id = ""
        self.ended = False
        self.size = 0

    def take(self, usage: TokenUsage) -> None:
        """Keep token counts unless they are nonsense."""
        parts = (usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens)
        if usage.input_tokens > 0 and min(parts) >= 0:
            self.usage = usage


def read_whole(interface: Interface, content: bytes) -> Seen:
    """Return what a whole answer tells; one that is no JSON tells nothing but its size."""
    seen = Seen()
    seen.size = len(content)
    seen.ended = True
    try:
        if interface == "responses":
            response = msgspec.json.decode(content, type=ResponsesAnswer)
            seen.response_id = response.id
            seen.take(openai_responses.read_usage(response.usage))
        elif interface == "messages":
            seen.take(_messages_usage(msgspec.json.decode(content, type=MessagesAnswer).usage))
        else:
            seen.take(openai_chat_reply.read_usage(msgspec.json.decode(content, type=ChatAnswer).usage))
    except (msgspec.DecodeError, ValueError, TypeError):
        seen.usage = None  # the reservation is charged: no answer costs nothing
    return seen


class StreamReader:
    """Reads the token counts out of a stream of server-sent events while it passes.

    Attributes:
        seen: What it has told so far.
    """

    def __init__(self, interface: Interface, *, hide_usage: bool) -> None:
        """Begin.

        Args:
            interface: Whose events they are.
            hide_usage: Whether to take out the chunk that brings nothing but token counts.
        """
        self.seen = Seen()
        self._interface = interface
        self._hide = hide_usage
        self._rest = b""
        self._message_usage: dict[str, Any] = {}

    def feed(self, chunk: bytes) -> bytes:
        """Take in bytes and return those to pass on: all events that are complete."""
        self.seen.size += len(chunk)
        lines = (self._rest + chunk).splitlines(keepends=True)
        self._rest = b""
        if lines and (not lines[-1].endswith(b"\n")):
            self._rest = lines.pop()
        return b"".join(line for line in lines if not self._swallows(line))

    def finish(self) -> bytes:
        """Return what is left at the end of the stream."""
        rest, self._rest = self._rest, b""
        return b"" if self._swallows(rest) else rest

    def _swallows(self, line: bytes) -> bool:
        """Read one line; return whether the caller is not to see it."""
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        if data == DONE:
            self.seen.ended = True
        elif b'"usage"' in data or b'"message_stop"' in data or b'"response.' in data:
            try:
                return self._read(data)
            except (msgspec.DecodeError, ValueError, TypeError):
                return False  # no token counts: the reservation is charged
        return False

    def _read(self, data: bytes) -> bool:
        seen = self.seen
        if self._interface == "responses":
            event = msgspec.json.decode(data, type=ResponsesEvent)
            if event.response is not None:
                seen.response_id = event.response.id
                if event.type in FINAL_EVENTS:
                    seen.ended = True
                    seen.take(openai_responses.read_usage(event.response.usage))
            return False
        if self._interface == "messages":
            self._read_message(msgspec.json.decode(data, type=MessagesAnswer))
            return False
        chunk = msgspec.json.decode(data, type=ChatAnswer)
        if chunk.usage is not None:
            seen.take(openai_chat_reply.read_usage(chunk.usage))
        return self._hide and chunk.usage is not None and not chunk.choices

    def _read_message(self, event: MessagesAnswer) -> None:
        """Follow Anthropic's counts: the input's come first, the output's at the end, both may be said again."""
        if event.type == "message_stop":
            self.seen.ended = True
        started: dict[str, Any] = event.message or {}
        for usage in (started.get("usage"), event.usage):
            self._message_usage.update({key: value for key, value in (usage or {}).items() if value is not None})
        if event.type == "message_delta":
            self.seen.take(_messages_usage(self._message_usage))


def _messages_usage(usage: dict[str, Any] | None) -> TokenUsage:
    return anthropic_reply.read_usage(usage or {})
