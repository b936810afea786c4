"""The test suite itself: it cannot leave the machine, spend a key, or write into the user's folders."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.conftest import FOREIGN_SETTINGS, NetworkAttempt, NetworkGuard

REMOTE = ("192.0.2.1", 443)  # TEST-NET-1: never routed


@pytest.mark.spec("FR-093")
def test_a_remote_connection_is_refused(network_guard: NetworkGuard) -> None:
    with socket.socket() as sock, pytest.raises(NetworkAttempt, match=r"192\.0\.2\.1"):
        sock.connect(REMOTE)
    with socket.socket(type=socket.SOCK_DGRAM) as sock, pytest.raises(NetworkAttempt):
        sock.sendto(b"x", REMOTE)
    assert network_guard.refused == ["192.0.2.1", "192.0.2.1"]
    network_guard.refused.clear()


@pytest.mark.spec("FR-093")
def test_a_name_lookup_is_refused(network_guard: NetworkGuard) -> None:
    with pytest.raises(NetworkAttempt, match=r"example\.invalid"):
        socket.getaddrinfo("example.invalid", 443)
    network_guard.refused.clear()


async def test_a_remote_connection_through_asyncio_is_refused(network_guard: NetworkGuard) -> None:
    with pytest.raises(NetworkAttempt):
        await asyncio.open_connection(*REMOTE)
    network_guard.refused.clear()


async def test_the_loopback_is_open() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection("localhost", server.sockets[0].getsockname()[1])
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()


def test_no_key_or_setting_of_a_provider_reaches_a_test() -> None:
    assert [name for name in os.environ if FOREIGN_SETTINGS.search(name)] == []


def test_the_users_folders_are_this_tests_own(user_folders: Path) -> None:
    assert Path.home() == user_folders
    assert list(user_folders.iterdir()) == []
