"""How much of a reply is read, and how it is unpacked on the way.

A server may send without end, or a little that unpacks to much.
`BodyBounds` counts decoded bytes, all together and in one line, and refuses what is too large. Nothing here does input
or output.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

from watchkeeper.core.errors import ProviderFault

MEBIBYTE: Final = 1 << 20
MOST_WHOLE_BYTES: Final = 64 * MEBIBYTE
MOST_STREAM_BYTES: Final = 256 * MEBIBYTE
"""A stream repeats its frame for every few characters, so it may be larger than a whole reply of the same answer."""

MOST_LINE_BYTES: Final = 16 * MEBIBYTE
"""SDKs collect a line of a stream before they look at it, and copy what they have with every piece."""

DECODED_PIECE: Final = 1 << 16
ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS


class RefusedBodyError(Exception):
    """The transport stopped reading a reply: it is too large, or has an encoding that was not requested.

    Attributes:
        fault: Which fault of the provider that is.
    """

    def __init__(self, message: str, fault: ProviderFault) -> None:
        super().__init__(message)
        self.fault: ProviderFault = fault


class BodyBounds:
    """Counts the bytes of one reply and refuses a reply that is too large; decodes content encodings that were not
    requested.

    Args:
        most: Bytes that the reply may have, decoded.
        most_in_line: Bytes that one line of it may have.
        encoding: The reply's content encoding, or nothing.

    Raises:
        RefusedBodyError: For an encoding that is not known.
    """

    def __init__(self, most: int, most_in_line: int, encoding: str) -> None:
        self._most = most
        self._most_in_line = most_in_line
        self._size = 0
        self._line = 0
        self._zlib: Any = None
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._zlib = zlib.decompressobj(ZLIB_OR_GZIP)
        elif encoding not in ("", "identity"):
            raise RefusedBodyError(f"the reply is encoded as {encoding!r}, which nobody asked for", "malformed_reply")

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decoded pieces of a chunk.

        Raises:
            RefusedBodyError: If the reply is too large, or cannot be decoded.
        """
        if self._zlib is None:
            self._count(chunk)
            yield chunk
            return
        while chunk:
            try:
                piece = self._zlib.decompress(chunk, DECODED_PIECE)
            except zlib.error as error:
                raise RefusedBodyError(f"the reply cannot be decoded: {error}", "malformed_reply") from None
            chunk = self._zlib.unconsumed_tail
            self._count(piece)
            yield piece

    def _count(self, piece: bytes) -> None:
        self._size += len(piece)
        end = piece.rfind(b"\n")
        self._line = self._line + len(piece) if end < 0 else len(piece) - end - 1
        if self._size > self._most:
            raise oversized("reply", self._most)
        if self._line > self._most_in_line:
            raise oversized("line of the reply", self._most_in_line)


def oversized(what: str, most: int) -> RefusedBodyError:
    """Return the error for a reply that is too long."""
    return RefusedBodyError(f"a {what} is larger than {most // MEBIBYTE} MiB; the rest was not read", "oversized_reply")
