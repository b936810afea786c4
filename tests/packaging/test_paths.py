"""The tree names no path of a single machine and no registry's host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("src", "tests", "docs", "examples", "benchmarks", "scripts", "requirements", ".ci")
FOREIGN = re.compile(
    "|".join(
        (
            r"/(?:wor[k]|far[m]|roo[t])/",
            r"/home/[a-z]",
            r"/Users/[a-z]",
            r"\.librar[y]\b",
            r"(?:py[p]i|pythonhoste[d]|npmj[s])\.org",
        )
    )
)


def texts() -> Iterator[tuple[str, str]]:
    """Yield every text file that belongs to the project, with its path from the root."""
    files = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in {".md", ".toml", ""}]
    files = [path for path in files if path.name != ".git"]  # what a worktree has instead of a folder
    for place in PLACES:
        files += [path for path in (ROOT / place).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in sorted(files):
        if path.name in (".coverage", ".git") or path.name.startswith(".coverage."):
            continue  # made here; .git is a file in a linked worktree
        try:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_no_file_mentions_a_path_of_one_machine() -> None:
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert found == []
