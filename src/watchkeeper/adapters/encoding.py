"""Bytes of a request, each made once.

A message is encoded when it is new and its bytes are kept in its transcript; what is the same in every turn of a run
(tools, the output's schema) is encoded once for those objects. A turn joins bytes: no history is ever encoded again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import AssistantMessage, Message
from watchkeeper.core.transcript import Transcript

ENCODER: Final = msgspec.json.Encoder()
KEPT_ENTRIES: Final = 64
DIGEST: Final = 32


def encode(value: Any) -> bytes:
    """Return a value as JSON; halves of surrogate pairs, which files and processes can leave in text, become U+FFFD."""
    try:
        return ENCODER.encode(value)
    except UnicodeEncodeError:
        return ENCODER.encode(_well_formed(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"a request cannot be written as JSON: {error}") from error


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {_well_formed(key): _well_formed(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item) for item in cast("list[Any]", value)]
    return value


def encoded_messages(transcript: Transcript, key: str, encode_message: Callable[[Message], bytes]) -> list[bytes]:
    """Return the elements of a JSON array of all messages, commas included, encoding only what is new.

    Args:
        transcript: The conversation; its place for ``key`` is filled up.
        key: Name of the encoding.
        encode_message: Encodes one message; may return several elements, or none.
    """
    pieces = transcript.encoded(key)
    for message in transcript.since(len(pieces)):
        piece = encode_message(message)
        pieces.append(b"," + piece if piece and any(pieces) else piece)
    return pieces


def tool_arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object, for providers that take no text; broken ones stay visible in it."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {"unreadable_arguments": text}


def own_data(message: AssistantMessage, encoding: str) -> dict[str, Any]:
    """Return what an adapter kept in a message under its encoding; nothing, if another adapter wrote it."""
    data: Any = message.provider_data
    if not isinstance(data, dict):
        return {}
    data = cast("dict[str, Any]", data)
    return data if data.get("encoding") == encoding else {}


def portable_id(call_id: str, allowed: re.Pattern[str]) -> str:
    """Return a call's id as a provider accepts it: itself, or where its form is not allowed one made from it.

    Ids of other providers, from before a switch of models, can be longer than a provider takes, or have other letters.
    """
    if allowed.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:DIGEST]}"


class Kept:
    """Bytes that depend only on which objects they were made from; the objects are held, so that ids stay theirs."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Start with nothing."""
        self._entries: dict[tuple[int, ...], tuple[tuple[object, ...], bytes]] = {}

    def get(self, make: Callable[[], bytes], *objects: object) -> bytes:
        """Return what ``make`` returned when it was first asked for these very objects."""
        key = tuple(map(id, objects))
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= KEPT_ENTRIES:
                self._entries.clear()
            entry = self._entries[key] = (objects, make())
        return entry[1]


def join_body(head: Mapping[str, Any], array: str, pieces: list[bytes], tail: bytes) -> bytes:
    """Return one JSON object: the fields of ``head``, an array of encoded pieces, and encoded fields in braces."""
    close = b"]" if tail == b"{}" else b"],"
    return b"".join([encode(head)[:-1], b',"', array.encode(), b'":[', *pieces, close, tail[1:]])


def check_extra(extra: Mapping[str, Any], reserved: frozenset[str]) -> None:
    """Refuse provider-specific fields that would replace what an adapter is there to write.

    Raises:
        ConfigurationError: If there are any.
    """
    clash = sorted(reserved & extra.keys())
    if clash:
        raise ConfigurationError(f"ModelSettings.extra cannot set {', '.join(clash)}: the adapter writes these itself")
