"""The lines of a run's file, read from its end."""

from __future__ import annotations

import io
from typing import Any

from watchkeeper.store.run_file import CHUNK, EventLine, event_line, last_lines


class Reads(io.BytesIO):
    """A file that counts how often it is read."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.count += 1
        return found


def line(seq: int, text: str = "") -> bytes:
    """Return the line of an event."""
    body: dict[str, Any] = {"text": text}
    return event_line(EventLine(seq, "2026-11-01T00:00:00Z", "tests.said", body))


def test_lines_are_read_backwards_whatever_their_length() -> None:
    sizes = (0, 5, CHUNK // 2, CHUNK - 40, CHUNK, 3 * CHUNK, 1, 2)
    file = io.BytesIO(b"".join(line(seq, "x" * size) for seq, size in enumerate(sizes, 1)) + b'{"seq":9,"torn')
    assert [found.seq for found in last_lines(file)] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_a_line_of_many_megabytes_is_read_in_few_steps() -> None:
    file = Reads(line(1) + line(2, "x" * (100 * CHUNK)) + line(3))
    assert [found.seq for found in last_lines(file)] == [3, 2, 1]
    assert file.count < 12
