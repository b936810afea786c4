"""Turns one step of a script into bytes on the wire, given how a provider words answers and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from watchkeeper.testing.script import Fault, Reply, Step
from watchkeeper.testing.wire import EVENT_STREAM, WireReply

BEGUN: Final = Reply(text="The answer begins")
GARBAGE: Final = b"<html>Bad gateway</html>"


@dataclass(frozen=True, slots=True)
class Wording:
    """How a provider words things.

    Attributes:
        whole: A whole answer, as an object.
        events: An answer as server-sent events.
        failing: The events that report a fault in the middle of a stream.
        error: An error as an answer of its own.
        headers: Sent with every answer.
    """

    whole: Callable[[Reply], Mapping[str, Any]]
    events: Callable[[Reply], Iterable[bytes]]
    failing: Callable[[Fault], Iterable[bytes]]
    error: Callable[[Fault], WireReply]
    headers: Mapping[str, str]

    def answer(self, step: Step, *, streaming: bool) -> WireReply:
        """Return what to send for one step of a script."""
        if isinstance(step, Reply):
            return self._reply(step, streaming)
        if step.kind == "hang":
            return WireReply(hangs=True)
        if step.kind == "garbage":
            parts = [b"event: message_start\ndata: " + GARBAGE + b"\n\n"]
            return self._stream(parts) if streaming else WireReply(body=GARBAGE, headers=self.headers)
        # In half of a stream's events text has begun, and nothing that would end the answer has come.
        events = list(self.events(BEGUN))
        half = events[: len(events) // 2]
        if step.kind in ("broken", "unfinished"):
            if streaming:
                return self._stream(half, breaks=step.kind == "broken")
            return WireReply(body=msgspec.json.encode(self.whole(BEGUN))[:40], headers=self.headers, breaks=True)
        if step.midway:
            return self._stream([*half, *self.failing(step)])
        return self.error(step)

    def _reply(self, reply: Reply, streaming: bool) -> WireReply:
        if streaming:
            return self._stream(list(self.events(reply)), delay=reply.delay)
        return WireReply(headers=self.headers, body=msgspec.json.encode(self.whole(reply)), delay=reply.delay)

    def _stream(self, parts: list[bytes], *, delay: float = 0.0, breaks: bool = False) -> WireReply:
        return WireReply(headers=self.headers, parts=parts, content_type=EVENT_STREAM, delay=delay, breaks=breaks)


def pieces(text: str, length: int = 8) -> list[str]:
    """Cut a text into pieces, as streams do."""
    return [text[start : start + length] for start in range(0, len(text), length)]
