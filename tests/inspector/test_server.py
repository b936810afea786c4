"""The server answers this machine's user alone, changes nothing, and tells the page to load nothing from elsewhere."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from tests.inspector.support import fill
from watchkeeper.cli.report import line_of
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.inspector.guarding import LOOPBACK, new_token
from watchkeeper.inspector.server import application, listen
from watchkeeper.store.run_store import RunStore

HERE = "http://127.0.0.1:8000"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        yield TestClient(application(store, line_of, "secret", 8000), base_url=HERE, follow_redirects=False)


def test_the_token_becomes_a_cookie_and_leaves_the_address(client: TestClient) -> None:
    answer = client.get("/?token=secret")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").text.startswith("<!doctype html>")
    assert client.get("/api/runs").json()["sentence"] == "1 of 2 done"


@pytest.mark.parametrize("path", ["//evil.example", "///evil.example", "/\\evil.example", "/%5c/evil.example"])
def test_the_token_leads_to_no_other_host(client: TestClient, path: str) -> None:
    location = client.get(f"{HERE}{path}?token=secret").headers["location"]
    assert urlsplit(location.replace("\\", "/")).netloc in ("", "127.0.0.1:8000")


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/runs", "/api/runs/7", "/?token=", "/?token=secre", "/nowhere"])
def test_nothing_is_told_without_the_token(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 403
    assert "sentence" not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0:8000", "169.254.169.254"])
def test_another_host_is_refused_even_with_the_token(client: TestClient, host: str) -> None:
    assert client.get("/api/runs?token=secret", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    client.get("/?token=secret")
    assert client.request(method, "/api/runs").status_code == 405


def test_every_answer_has_the_policy(client: TestClient) -> None:
    for path in ("/api/runs", "/?token=secret", "/", "/page.js", "/page.css", "/nowhere", "/../server.py"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_only_the_files_of_the_page_are_handed_out(client: TestClient) -> None:
    client.get("/?token=secret")
    for path in ("/server.py", "/..%2fserver.py", "/page/../server.py", "/__init__.py"):
        assert client.get(path).status_code == 404
    assert client.get("/api/runs/ffff").status_code == 404
    assert "no run whose id" in client.get("/api/runs/ffff").json()["error"]


def test_a_port_that_is_taken_is_said_in_words() -> None:
    with listen(0) as first:
        assert first.getsockname()[0] == LOOPBACK
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"--port={port} is taken"):
            listen(port)
    with pytest.raises(ConfigurationError, match="--port=70000 cannot be used: ports are from 1 to 65535; 0 takes any"):
        listen(70_000)
    assert isinstance(first, socket.socket)


def test_another_address_must_be_one_of_this_machine() -> None:
    for address, why in (
        ("evil.example", "must be an address such as"),
        ("192.0.2.1", "is no address of this machine; name one that it has, or 0.0.0.0"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            listen(0, address)
    with listen(0, "127.0.0.2") as listener:
        assert listener.getsockname()[0] == "127.0.0.2"


@pytest.mark.parametrize(
    ("address", "asked", "answer"),
    [
        ("192.168.0.7", "192.168.0.7:8000", 200),
        ("192.168.0.7", "localhost:8000", 200),
        ("192.168.0.7", "evil.example", 400),
        ("0.0.0.0", "box.example:8000", 200),
    ],
)
def test_where_another_address_is_bound_its_requests_are_answered_with_the_token(
    tmp_path: Path, address: str, asked: str, answer: int
) -> None:
    RunStore(tmp_path / "s").close()
    with RunStore(tmp_path / "s", read_only=True) as store:
        app = application(store, line_of, "secret", 8000, address)
        client = TestClient(app, base_url=HERE, headers={"host": asked})
        assert client.get("/api/runs").status_code == (403 if answer == 200 else 400)
        cookie = {"cookie": "watchkeeper_8000=secret"}
        assert client.get("/api/runs", headers=cookie).status_code == answer


def test_tokens_are_long_and_never_the_same() -> None:
    assert len({new_token() for _ in range(9)}) == 9
    assert len(new_token()) == 32
