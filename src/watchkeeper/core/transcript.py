"""The messages of one conversation: a list that only grows, until a new segment takes its place.

Within a segment no message is ever changed, moved or removed, so an adapter may keep the encoded bytes of every message
and send a turn at the cost of what is new in it. `encoded` is the place for that: one list per adapter, as long as or
shorter than the segment, and empty again when another begins; only the adapter that owns the key touches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watchkeeper.core.messages import Message


class Transcript:
    """An append-only sequence of messages with room for each adapter's encodings.

    Attributes:
        segment: Which segment this is; 1 for the first.
    """

    __slots__ = ("_encoded", "_messages", "segment")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        """Start with the given messages."""
        self._messages: list[Message] = list(messages)
        self._encoded: dict[str, list[bytes]] = {}
        self.segment = 1

    def append(self, message: Message) -> None:
        """Add a message at the tail."""
        self._messages.append(message)

    def begin_segment(self, messages: Iterable[Message]) -> None:
        """Begin a new segment with these messages; what was said before is on the log alone, and nothing encoded stays.

        Args:
            messages: What the segment begins with.
        """
        self._messages = list(messages)
        self._encoded = {}
        self.segment += 1

    def encoded(self, key: str) -> list[bytes]:
        """Return the list in which the adapter named ``key`` keeps one encoding per message, oldest first."""
        return self._encoded.setdefault(key, [])

    def since(self, index: int) -> list[Message]:
        """Return the messages from ``index`` on: what is new since an adapter last looked."""
        return self._messages[index:]

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._messages)

    def __getitem__(self, index: int) -> Message:
        """Return one message."""
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        """Iterate over all messages, oldest first."""
        return iter(self._messages)
