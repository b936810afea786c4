"""Messages between the loop and a model, in provider-neutral form, and the transcript that holds them.

Frozen: a message is never changed once it is in a transcript. What a provider needs back unchanged in later turns
(signed reasoning, encrypted items) is kept in ``AssistantMessage.provider_data``; only the adapter interprets it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.type_tags import own_value


@own_value("text_part")
@dataclass(frozen=True, slots=True)
class TextPart:
    """Text in a message."""

    text: str


@own_value("image_part")
@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a message.

    Attributes:
        media_type: For example ``image/png``; told to the provider together with ``data``.
        data: Base64 of the bytes, or empty if ``url`` is given.
        url: An http(s) address, or empty if ``data`` is given.
        max_tokens: The caller's upper bound of the image's input tokens; needed under a cost or token ceiling, because
            the size in bytes does not bound the tokens.
    """

    media_type: str = "image/png"
    data: str = ""
    url: str = ""
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse an image with neither or both of data and url, and a url that no provider can fetch."""
        if bool(self.data) == bool(self.url):
            raise ConfigurationError("ImagePart needs either data (base64) or url, and not both")
        if not isinstance(self.data, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError("ImagePart.data is base64 text; for raw bytes write ImagePart.from_bytes(...)")
        if not self.media_type.startswith("image/"):
            raise ConfigurationError(f"media_type={self.media_type!r} is no image type; write for example 'image/png'")
        if self.url and not self.url.startswith(("https://", "http://")):
            raise ConfigurationError(
                f"url={self.url[:80]!r} must be http(s); for a file write ImagePart.from_bytes(...)"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigurationError(f"max_tokens={self.max_tokens!r} must be at least 1")

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str = "image/png", max_tokens: int | None = None) -> ImagePart:
        """Build a part from raw image bytes."""
        return cls(media_type=media_type, data=base64.b64encode(data).decode("ascii"), max_tokens=max_tokens)


Part = TextPart | ImagePart


@own_value("tool_call")
@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model asks for.

    Attributes:
        call_id: The provider's id of the call; unique within the transcript.
        name: Tool name as the model wrote it (it may be unknown).
        arguments: The arguments as JSON text, exactly as the model wrote them (they may be broken).
    """

    call_id: str
    name: str
    arguments: str


@own_value("system_message")
@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Standing instructions; at most one, the first of a transcript."""

    text: str
    role: Literal["system"] = field(default="system", init=False)


@own_value("user_message")
@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message to the model from the caller, or from the runtime on the caller's behalf."""

    parts: tuple[Part, ...]
    role: Literal["user"] = field(default="user", init=False)

    @classmethod
    def of(cls, text: str) -> UserMessage:
        """Build a message of one text part."""
        return cls((TextPart(text),))

    @property
    def text(self) -> str:
        """All text parts, joined by blank lines."""
        return "\n\n".join(part.text for part in self.parts if isinstance(part, TextPart))


@own_value("assistant_message")
@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What a model answered: text, tool calls, or both.

    Attributes:
        text: Visible text; empty if there was none.
        tool_calls: Calls in the order the model gave them.
        reasoning: Visible reasoning or its summary, if the provider shows it; never sent back as text.
        provider_data: Opaque JSON-able data that the same adapter needs back unchanged.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    provider_data: Any = None
    role: Literal["assistant"] = field(default="assistant", init=False)


@own_value("tool_message")
@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one tool call, as the model sees it."""

    call_id: str
    name: str
    text: str
    is_error: bool = False
    role: Literal["tool"] = field(default="tool", init=False)


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class Transcript:
    """The messages of one conversation: a list that only grows until a new segment replaces it.

    Within a segment no message is ever changed, moved or removed, so an adapter may keep the encoded bytes of every
    message and encode only the new messages of a turn. `encoded` stores these bytes: one list per adapter, never longer
    than the segment, and empty again when a new segment begins; only the adapter that owns the key changes it.

    Attributes:
        segment: Which segment this is; 1 for the first.
    """

    __slots__ = ("_encoded", "_messages", "segment")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = list(messages)
        self._encoded: dict[str, list[bytes]] = {}
        self.segment = 1

    def append(self, message: Message) -> None:
        """Add a message at the tail."""
        self._messages.append(message)

    def begin_segment(self, messages: Iterable[Message]) -> None:
        """Begin a new segment with these messages; earlier messages are only in the log, and encodings are dropped.

        Args:
            messages: The first messages of the segment.
        """
        self._messages = list(messages)
        self._encoded = {}
        self.segment += 1

    def encoded(self, key: str) -> list[bytes]:
        """Return the list in which the adapter named ``key`` keeps one encoding per message, oldest first."""
        return self._encoded.setdefault(key, [])

    def since(self, index: int) -> list[Message]:
        """Return the messages from ``index`` on, for an adapter that has already read those before it."""
        return self._messages[index:]

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Message:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)
