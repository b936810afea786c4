"""How much of a reply is read, and how it is unpacked on the way.

A server may send without end, or a little that unpacks to much.
`BodyBounds` counts decoded bytes and the objects in them, all together and in one event, and refuses what is too large.
Nothing here does input or output.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from watchkeeper.core.errors import ProviderFault

MEBIBYTE: Final = 1 << 20
MOST_WHOLE_BYTES: Final = 64 * MEBIBYTE
MOST_STREAM_BYTES: Final = 256 * MEBIBYTE
"""A stream repeats its frame for every few characters, so it may be larger than a whole reply of the same answer."""

MOST_EVENT_BYTES: Final = 16 * MEBIBYTE
"""SDKs collect an event of a stream before they look at it, and copy what they have with every line and piece."""

MOST_COPIED_BYTES: Final = 1 << 31
"""What an SDK may have to copy because events of a stream are long and have many lines."""

BLANK: Final = re.compile(rb"\n\n|\r\r(?!\n)|\r\n\r\n")
"""What ends an event, as the SDKs see it: to them, two returns and a newline end none."""

LONGEST_BLANK: Final = 4

MOST_ERROR_BYTES: Final = MEBIBYTE
"""The reply to a request that failed is an error message; SDKs parse it, print it and search it."""

MOST_OBJECTS: Final = 1_000_000
"""Objects and lists that a reply, or an event of a streamed one, may have if the caller's own SDK parses it; eight
commas count as one more. To parse 64 MiB of empty objects takes many seconds and gigabytes, and nothing else in the
process runs meanwhile."""

MOST_READ_OBJECTS: Final = 100_000
"""The same for replies that adapters read: they read each object, and no answer of a model has as many."""

OBJECTS_OF_STREAM: Final = 50
"""A stream may have this many times the objects of one event, because the contents of its events are collected."""

PIECE: Final = 1 << 16
"""Bytes that are handed on before other tasks of the event loop have their turn."""
ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS


class RefusedBodyError(Exception):
    """The transport stopped reading a reply: it is too large, or has an encoding that was not requested.

    Attributes:
        fault: Which fault of the provider that is.
    """

    def __init__(self, message: str, fault: ProviderFault) -> None:
        super().__init__(message)
        self.fault: ProviderFault = fault


def encoding_of(response: Any) -> str:
    """Return a response's content encoding in lower case; nothing if it has none."""
    encoding: str = response.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


class BodyBounds:
    """Counts what one reply holds and refuses a reply that is too large; decodes content encodings that were not
    requested.

    Args:
        most: Bytes that the reply may have, decoded.
        encoding: The reply's content encoding, or nothing.
        most_in_event: Bytes that one event of a stream may have; None if the reply is read as a whole.
        most_objects: Objects and lists that the reply, or one event, may have.
        parsed: Whether the bytes are parsed as they are; False for those of a stream that is passed on encoded.

    Raises:
        RefusedBodyError: For an encoding that is not known.
    """

    def __init__(
        self,
        most: int,
        encoding: str,
        most_in_event: int | None = None,
        *,
        most_objects: int = MOST_OBJECTS,
        parsed: bool = True,
    ) -> None:
        self._most = most
        self._most_objects = most_objects
        self._parsed = parsed
        self._most_in_event = most_in_event
        self._size = 0
        self._event = 0
        self._copied = 0
        self._objects = 0
        self._all_objects = 0
        self._commas = 0
        self._last = b""
        self._zlib: Any = None
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._zlib = zlib.decompressobj(ZLIB_OR_GZIP)
        elif encoding not in ("", "identity"):
            raise RefusedBodyError(f"the reply is encoded as {encoding!r}, which nobody asked for", "malformed_reply")

    async def pieces(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield a reply decoded, in pieces that are small enough for other tasks to run in between.

        Raises:
            RefusedBodyError: If the reply is too large, or cannot be decoded.
        """
        async for chunk in chunks:
            for piece in self.decoded(chunk):
                yield piece
                if len(piece) >= PIECE:
                    await asyncio.sleep(0)

    def decoded(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the pieces of a chunk, decoded and counted.

        Raises:
            RefusedBodyError: If the reply is too large, or cannot be decoded.
        """
        for piece in self._pieces(chunk):
            self.count(piece)
            yield piece

    def _pieces(self, chunk: bytes) -> Iterator[bytes]:
        if self._zlib is None:
            if len(chunk) <= PIECE:
                yield chunk
            else:
                yield from (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))
            return
        while chunk:
            try:
                piece = self._zlib.decompress(chunk, PIECE)
            except zlib.error as error:
                raise RefusedBodyError(f"the reply cannot be decoded: {error}", "malformed_reply") from None
            chunk = self._zlib.unconsumed_tail
            yield piece

    def count(self, piece: bytes) -> None:
        """Count a decoded piece.

        Raises:
            RefusedBodyError: If the reply is too large.
        """
        self._size += len(piece)
        if self._size > self._most:
            raise oversized("reply", self._most)
        if not self._parsed:
            return
        start = 0 if self._most_in_event is None else self._count_event(piece, self._most_in_event)
        self._all_objects += piece.count(b"{") + piece.count(b"[")
        self._objects += piece.count(b"{", start) + piece.count(b"[", start)
        self._commas += piece.count(b",", start)
        many = self._objects + self._commas // 8 > self._most_objects
        if many or self._all_objects > OBJECTS_OF_STREAM * self._most_objects:
            raise RefusedBodyError("a reply has too many objects; it was not read", "oversized_reply")

    def _count_event(self, piece: bytes, most: int) -> int:
        """Count a piece of a stream of events; return where the event begins that it does not end."""
        joined, before = self._last + piece, len(self._last)  # what ends an event may be split over pieces
        ends = [blank.end() for blank in BLANK.finditer(joined)]
        if self._event > PIECE:
            first = ends[0] - before if ends else len(piece)
            lines = piece.count(b"\n", 0, first) + piece.count(b"\r", 0, first)
            self._copied += lines * self._event
        start = ends[-1] - before if ends else 0
        self._last = joined[max(ends[-1] if ends else 0, len(joined) - LONGEST_BLANK + 1) :]
        if start:
            self._event = self._objects = self._commas = 0
        self._event += len(piece) - start
        if self._event > most or self._copied > MOST_COPIED_BYTES:
            raise oversized("single event of the reply", most)
        return start


def oversized(what: str, most: int) -> RefusedBodyError:
    """Return the error for a reply that is too long."""
    return RefusedBodyError(f"a {what} is larger than {most // MEBIBYTE} MiB; the rest was not read", "oversized_reply")
