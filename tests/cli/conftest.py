"""A command line in a folder of its own, which leaves nothing behind in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import CommandLine, Processes


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """Return a command line with an agent's file in its folder."""
    modules, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    made = CommandLine(tmp_path, monkeypatch, capsys)
    made.write()
    yield made
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def _warm() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


@pytest.fixture
def processes(_warm: Processes) -> Iterator[Processes]:
    """Return what starts commands in processes of their own; what still runs at the end is killed."""
    yield _warm
    _warm.end_latest()
