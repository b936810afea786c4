"""A browser for each module of the inspector's tests, a page for each test, and a command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.cli.support import CommandLine
from tests.inspector.browser import inert, started


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line in a folder of its own, without an agent in it."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser."""
    yield from started()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page; at the end it must have raised nothing and asked its own server only."""
    with inert(browser) as opened:
        yield opened
