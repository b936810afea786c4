"""What an answer on the wire says it cost, whole or as server-sent events, in our terms.

A stream is passed on event by event, as its bytes arrive; only the token counts that we asked for ourselves, which the
caller does not expect, are taken out. Usage counts as known once the provider has said its last word on it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from watchkeeper.adapters import anthropic_reply, openai_chat_reply, openai_responses
from watchkeeper.adapters.wire_calls import Interface
from watchkeeper.core.usage import TokenUsage

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
