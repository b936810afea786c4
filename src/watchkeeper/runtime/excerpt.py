"""A conversation as text of a bounded size, for a model that is to read about it and not to go on with it.

What can be looked up again goes first: tool results and arguments are shortened, step by step; only then messages in
the middle are left out, the first and the newest last of all. Whatever is missing, the text says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from watchkeeper.core.messages import AssistantMessage, ImagePart, Message, ToolMessage, UserMessage

STEPS: Final = (8_000, 2_000, 500, 200)
"""Bytes to which tool results and arguments are shortened, one after the other, until the text fits."""

FIRST_SHARE: Final = 1 / 3
"""Share of the room for the first messages where the middle is left out; the newest get the rest."""

LARGEST_SHARE: Final = 1 / 6
"""Share of the room that one message may take where the middle is left out."""

NOTE_BYTES: Final = 80
"""Room for a note of what is left out."""

SEPARATOR: Final = "\n\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that was said or done.

    Attributes:
        head: By whom, or what it is the result of.
        text: What.
        lookup: Whether it can be looked up again.
    """

    head: str
    text: str
    lookup: bool = False

    def written(self, most: int | None = None) -> str:
        """Return it as text; what can be looked up is shortened to ``most`` bytes."""
        text = self.text if most is None or not self.lookup else shortened(self.text, most)
        return f"[{self.head}]\n{text}"


def excerpt(messages: Iterable[Message], room: int) -> str:
    """Return messages as text.

    Args:
        messages: What was said.
        room: Bytes that the text may have, as UTF-8.
    """
    pieces = [piece for message in messages for piece in pieces_of(message)]
    for most in (None, *STEPS):
        written = [piece.written(most) for piece in pieces]
        if _size(written) <= room:
            return SEPARATOR.join(written)
    largest = int(room * LARGEST_SHARE)
    return _without_middle([shortened(piece.written(STEPS[-1]), largest) for piece in pieces], room)


def shortened(text: str, most: int) -> str:
    """Return text of at most ``most`` bytes, with a note in place of its middle; at least the note itself."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return text
    left = max(most - NOTE_BYTES, 0)
    tail = left // 3
    first = data[: left - tail].decode("utf-8", "ignore")
    last = data[len(data) - tail :].decode("utf-8", "ignore")
    return f"{first}\n[... {len(data) - left:,} bytes are left out here ...]\n{last}"


def pieces_of(message: Message) -> list[Piece]:
    """Return what one message says; a call stands apart from what was said beside it."""
    match message:
        case ToolMessage(name=name, text=text, is_error=is_error):
            return [Piece(f"{'error from' if is_error else 'result of'} {name}", text, lookup=True)]
        case AssistantMessage():
            said = [Piece("assistant", message.text)] if message.text.strip() else []
            calls = [Piece(f"assistant calls {call.name}", call.arguments, lookup=True) for call in message.tool_calls]
            return said + calls
        case UserMessage(parts=parts):
            texts = ("(an image)" if isinstance(part, ImagePart) else part.text for part in parts)
            return [Piece("user", SEPARATOR.join(texts))]
        case _:
            return [Piece("instructions", message.text)]


def _without_middle(written: Sequence[str], room: int) -> str:
    """Return the first and the newest texts that fit, and between them how many are missing."""
    room -= NOTE_BYTES
    first = _fitting(written, int(room * FIRST_SHARE))
    rest = written[len(first) :]
    newest = _fitting(rest[::-1], room - _size(first))[::-1]
    note = f"[... {len(rest) - len(newest):,} entries are left out here ...]"
    return SEPARATOR.join([*first, note, *newest])


def _fitting(written: Sequence[str], room: int) -> Sequence[str]:
    """Return as many texts from the beginning as there is room for."""
    for count, text in enumerate(written):
        room -= _size([text])
        if room < 0:
            return written[:count]
    return written


def _size(written: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "replace")) + len(SEPARATOR) for text in written)
