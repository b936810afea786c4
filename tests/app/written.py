"""The lines of all files of a store, in the order in which they were written, and stores that end at any of them."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from watchkeeper.store.run_file import RunFile
from watchkeeper.store.run_store import RunStore


@dataclass
class Written:
    """Lines with the names of their files, in the order in which they were written."""

    lines: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])

    def place(self, tag: str) -> int:
        """Return the place of the first event of a type."""
        return next(place for place, (_, line) in enumerate(self.lines) if f'"tag":"{tag}"'.encode() in line)

    def with_tag(self, tag: str, count: int) -> list[bytes]:
        """Return the events of a type among the first lines."""
        return [line for _, line in self.lines[:count] if f'"tag":"{tag}"'.encode() in line]

    def begun(self, kind: str, count: int) -> list[dict[str, Any]]:
        """Return the calls of a kind that have begun within the first lines."""
        calls = [json.loads(line)["begun"] for _, line in self.lines[:count] if line.startswith(b'{"begun":')]
        return [call for call in calls if call["kind"] == kind]

    def cut(self, count: int, store: Path) -> Path:
        """Make a store whose process died after these many lines, within the next one, in the place of one before it.

        Many cuts in one place are cheaper, because the index of the store is made once.
        """
        RunStore(store).close()
        for file in (store / "runs").iterdir():
            file.unlink()
        files: dict[str, bytes] = {}
        for name, line in self.lines[:count]:
            files[name] = files.get(name, b"") + line
        for name, line in self.lines[count : count + 1]:
            files[name] = files.get(name, b"") + line[: len(line) // 2]
        for name, data in files.items():
            (store / "runs" / name).write_bytes(data)
        return store


@contextmanager
def written() -> Generator[Written]:
    """Note what is written to the files of runs inside the block."""
    noted, write = Written(), RunFile.write

    def noting(file: RunFile, data: bytes, *, last: bool = False) -> None:
        write(file, data, last=last)
        noted.lines.extend((file.path.name, line) for line in data.splitlines(keepends=True))

    with patch.object(RunFile, "write", noting):
        yield noted
