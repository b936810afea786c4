"""The switch that keeps tests from reaching real providers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from watchkeeper.adapters import remote
from watchkeeper.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:80/v1", True),
        ("http://localhost/v1", True),
        ("http://api.localhost", True),
        ("http://[::1]:8080", True),
        ("https://api.openai.com/v1", False),
        ("http://10.0.0.1", False),
        ("http://localhost.example.com", False),
        ("nonsense", False),
    ],
)
def test_this_machine_is_told_from_others(url: str, near: bool) -> None:
    assert remote.is_loopback(url) is near


def test_blocking_returns_what_held_before() -> None:
    before = remote.allow_remote(False)
    assert remote.allow_remote(before) is False
    remote.allow_remote(False)
    with pytest.raises(ConfigurationError, match=r"api\.openai\.com"):
        remote.check_remote("https://api.openai.com/v1")
    remote.allow_remote(True)
    remote.check_remote("https://api.openai.com/v1")
    remote.allow_remote(before)


@pytest.mark.spec("FR-069")
@pytest.mark.parametrize(("module", "allowed"), [("watchkeeper.testing.wire", False), ("watchkeeper.adapters", True)])
def test_importing_the_fakes_blocks_real_providers(module: str, allowed: bool) -> None:
    code = f"import {module}; from watchkeeper.adapters.remote import REMOTE; assert REMOTE.allowed is {allowed}"
    subprocess.run([sys.executable, "-c", code], check=True)
