"""What holds for every test: no network but the loopback, no provider's key, no file in the user's own folders.

The guard stands on the socket module for the whole session, so that it covers fixtures and threads too. An attempt to
leave the machine raises, and fails the test even where a library swallows the error. Data folders are fresh for each
test; nothing is made until something writes there.
"""

from __future__ import annotations

import gc
import ipaddress
import itertools
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Two busy cores make any deadline for one example a coin toss; in CI the same examples are drawn each time.
hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("here"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

REAL_CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
FOREIGN_SETTINGS = re.compile(
    r"^(WATCHKEEPER_|OPENAI_|ANTHROPIC_|CLAUDE_|AZURE_|AWS_|GOOGLE_|GEMINI_|MISTRAL_|GROQ_|COHERE_|LITELLM_|HF_|OTEL_)"
    r"|_API_KEY$|^(https?|all|no)_proxy$",
    re.IGNORECASE,
)


class NetworkAttempt(RuntimeError):
    """Raised where a test tries to reach anything but this machine's loopback."""


class NetworkGuard:
    """Lets sockets reach the loopback only, and remembers what was refused until it is asked."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def check(self, host: object) -> None:
        """Refuse a host that is neither the loopback nor a wildcard to bind to."""
        if host is None or host in ("", b"", "localhost", b"localhost"):
            return
        text = host.decode() if isinstance(host, bytes) else str(host)
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            address = None
        if address is not None and (address.is_loopback or address.is_unspecified):
            return
        self.refused.append(text)
        raise NetworkAttempt(f"a test tried to reach {text!r}: tests may use the loopback only")

    def check_address(self, sock: socket.socket, address: Any) -> None:
        """Refuse an address of an internet socket; other families never leave the machine."""
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            self.check(address[0])

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put the guard before every call of the socket module that names a remote host."""
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, self._guarded_method(getattr(socket.socket, name)))
        patch.setattr(socket.socket, "sendto", self._guarded_sendto(socket.socket.sendto))
        for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
            patch.setattr(socket, name, self._guarded_lookup(getattr(socket, name)))

    def _guarded_method(self, original: Any) -> Any:
        def call(sock: socket.socket, address: object) -> Any:
            self.check_address(sock, address)
            return original(sock, address)

        return call

    def _guarded_sendto(self, original: Any) -> Any:
        def call(sock: socket.socket, data: object, *rest: object) -> Any:
            self.check_address(sock, rest[-1])
            return original(sock, data, *rest)

        return call

    def _guarded_lookup(self, original: Any) -> Any:
        def call(host: object, *args: object, **kwargs: object) -> Any:
            self.check(host)
            return original(host, *args, **kwargs)

        return call


_session_patch = pytest.MonkeyPatch()
_guard = NetworkGuard()
_places = itertools.count()
_empty_places: list[Path] = []
_modules_frozen = 0


def pytest_configure() -> None:
    """Put the guard up before anything is collected."""
    _guard.install(_session_patch)
    for name in [name for name in os.environ if FOREIGN_SETTINGS.search(name)]:
        _session_patch.delenv(name)


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of the collector, which tests of leaks call hundreds of times."""
    _freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Keep out of the collector also what tests import: an SDK is hundreds of thousands of objects.

    This is done between two tests, when a collection has removed what the first one left behind in circles. So a test
    that counts objects, or waits for one to go, sees everything that it makes itself.
    """
    if len(sys.modules) > _modules_frozen + 20:
        _freeze()


def _freeze() -> None:
    """Take what is alive out of the collector's sight, after what is not."""
    global _modules_frozen
    gc.collect()
    gc.freeze()
    _modules_frozen = len(sys.modules)


def pytest_unconfigure() -> None:
    """Take the guard down."""
    _session_patch.undo()


@pytest.fixture(autouse=True)
def network_guard() -> Iterator[NetworkGuard]:
    """Fail a test that tried to leave the machine, whatever caught the error."""
    _guard.refused.clear()
    yield _guard
    refused, _guard.refused = _guard.refused, []
    assert not refused, f"the test tried to reach {refused}: tests may use the loopback only"


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def user_folders(_homes: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Point the user's folders to an empty place of this test's own, and return it.

    A place that is still empty afterwards serves the next test: few write there, and thousands of folders take seconds
    to make and to remove. A test marked `model` keeps the real cache folder, so that the model is joined once and not
    once per test.
    """
    if _empty_places:
        place = _empty_places.pop()
    else:
        place = _homes / str(next(_places))
        place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in ("DATA", "CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(place / name.lower()))
    if request.node.get_closest_marker("model") is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", REAL_CACHE)
    yield place
    if place.is_dir() and not os.listdir(place):
        _empty_places.append(place)


@pytest.fixture
def terminal_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGHUP do what they do in a terminal, here and in what the test starts.

    Under ``nohup``, and in the background of a script, they are ignored, and every process inherits that.
    """
    terminal: dict[str, Any] = {"SIGINT": signal.default_int_handler, "SIGHUP": signal.SIG_DFL}
    there = {getattr(signal, name): handler for name, handler in terminal.items() if hasattr(signal, name)}
    before = {number: signal.signal(number, handler) for number, handler in there.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def clock() -> Any:
    """Return a `TestClock`, which stands still until a test moves it."""
    from watchkeeper.core.clock import TestClock

    return TestClock()
