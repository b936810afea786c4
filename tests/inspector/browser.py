"""A browser for the page's tests: serves a store, and opens pages that may ask their own server only.

A page must raise nothing, open no dialog and ask no other address; that is checked when the test has ended.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from watchkeeper.cli.report import line_of
from watchkeeper.inspector.server import application, listen
from watchkeeper.store.run_store import RunStore

expect.set_options(timeout=60_000)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]


@contextmanager
def serving(store: RunStore) -> Generator[str]:
    """Serve a store; yields the address with its token."""
    with listen(0) as listener:
        port = listener.getsockname()[1]
        app = application(store, line_of, "secret", port)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/?token=secret"
        finally:
            server.should_exit = True
            with socket.socket() as wake:
                wake.connect_ex(("127.0.0.1", port))
            thread.join(60)


@contextmanager
def reading(folder: Path) -> Generator[str]:
    """Serve the store in a folder; yields the address with its token."""
    with RunStore(folder, read_only=True) as store, serving(store) as address:
        yield address


def started() -> Iterator[Browser]:
    """Start a browser; where none is installed, skip the test, but not in CI."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs chromium: apt-get install chromium", pytrace=False)
        pytest.skip("no chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


NOT_THERE = "the server responded with a status of 404"
OWN = ("http://127.0.0.1:", "data:", "file:")


@contextmanager
def inert(browser: Browser, **options: Any) -> Generator[Page]:
    """Open a page that raises nothing, opens no dialog, and asks no address but its own server's."""
    said: list[str] = []
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    opened = context.new_page()
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on(
        "console", lambda line: said.append(line.text) if line.type == "error" and "404" not in line.text else None
    )
    opened.on("dialog", lambda dialog: said.append(dialog.message))
    opened.on("request", lambda asked: None if asked.url.startswith(OWN) else said.append(asked.url))
    yield opened
    context.close()
    assert [each for each in said if NOT_THERE not in each] == []
