"""Exchanges folders and files with links (Linux), as fast as it can, while `HostFilesystem` works on them.

Run as ``python -m scripts.race_links SECONDS``. It prints how many reads, writes and lists came out of the root; the
tests run it for two seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystems import HostFilesystem

SECRET = "secret"

SWAPPER = """
import ctypes, os, sys
root, outside = sys.argv[1:]
os.chdir(root)
system, here, exchange = ctypes.CDLL(None), -100, 2  # AT_FDCWD, RENAME_EXCHANGE
swapped = [b"folder", b"folder/inner", b"file"]
for name in swapped:
    os.symlink(os.path.join(outside.encode(), name), name.replace(b"/", b"-") + b".link")
print("ready", flush=True)
while True:
    for name in swapped:
        for again in range(2):
            system.renameat2(here, name, here, name.replace(b"/", b"-") + b".link", exchange)
"""


@dataclass
class Escapes:
    """What was tried, and what came out of the root."""

    tries: int = 0
    reads: int = 0
    writes: int = 0
    lists: int = 0


@contextmanager
def swapping(root: Path, outside: Path) -> Generator[None]:
    """Swap in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(root), str(outside)], stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def race(folder: Path, seconds: float, least: int = 0) -> Escapes:
    """Work on files for some seconds, and at least so many tries, while they are swapped; return what escaped."""
    root, outside = folder / "root", folder / "outside"
    for each in (root / "folder" / "inner", outside / "inner"):
        each.mkdir(parents=True)
    for each, text in ((root, "inside"), (outside, SECRET)):
        for name in ("file", "folder/file", "inner/file", "folder/inner/file"):
            with suppress(FileNotFoundError):
                (each / name).write_text(text)
    (outside / "only_here").write_text(SECRET)
    before = {path: path.read_text() for path in outside.rglob("*") if path.is_file()}
    found = Escapes()
    files = HostFilesystem(root)
    paths = ("file", "folder/file", "folder/inner/file")
    over_at = time.monotonic() + seconds
    with swapping(root, outside):
        while time.monotonic() < over_at or found.tries < least:
            for path in paths:
                found.tries += 1
                with suppress(FilesystemError):
                    found.reads += files.read_text(path) == SECRET
                with suppress(FilesystemError):
                    files.write_text(path, "inside")
            with suppress(FilesystemError):
                found.lists += any("only_here" in each for each in files.glob("**"))
            with suppress(FilesystemError):
                found.lists += "folder/only_here" in files.list("folder")
            with suppress(FilesystemError):
                files.write_text(f"folder/new{found.tries % 5}", "inside")
    after = {path: path.read_text() for path in outside.rglob("*") if path.is_file()}
    found.writes = len(after.items() ^ before.items())
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(race(Path(made), float(sys.argv[1])), os.uname().release)
