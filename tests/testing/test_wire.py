"""The loopback server: it answers as scripted, records what came, and breaks where it is told to."""

from __future__ import annotations

import asyncio
import http.client
import socket

import pytest

from watchkeeper.testing.wire import WireReply, WireRequest, WireServer, json_reply


def echo(request: WireRequest) -> WireReply:
    return json_reply({"method": request.method, "path": request.path, "body": request.body.decode()})


def connection(server: WireServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)


def test_it_answers_and_records() -> None:
    with WireServer(echo) as server:
        client = connection(server)
        for text in ("one", "two"):
            client.request("POST", "/v1/x?y=1", body=text, headers={"X-Team": "watch"})
            answer = client.getresponse()
            assert answer.status == 200
            assert answer.read() == b'{"method":"POST","path":"/v1/x?y=1","body":"%s"}' % text.encode()
        client.close()
        assert [request.body for request in server.requests] == [b"one", b"two"]
        assert server.requests[0].headers["x-team"] == "watch"
        assert server.connections == 1


def test_recording_can_be_left_out() -> None:
    with WireServer(echo, record=False) as server:
        client = connection(server)
        client.request("GET", "/")
        assert client.getresponse().read() == b'{"method":"GET","path":"/","body":""}'
        client.close()
        assert server.requests == []


def test_parts_are_sent_one_by_one() -> None:
    with WireServer(lambda request: WireReply(parts=[b"one ", b"two"], content_type="text/plain")) as server:
        client = connection(server)
        client.request("GET", "/")
        answer = client.getresponse()
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.read() == b"one two"
        client.close()


def test_a_request_may_come_in_pieces_and_two_at_once() -> None:
    with WireServer(echo) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"POST /a HTTP/1.1\r\nContent-Le")
            client.sendall(b"ngth: 3\r\n\r\nab")
            client.sendall(b"cGET /b HTTP/1.1\r\n\r\n")
            received = b""
            while received.count(b"path") < 2:
                received += client.recv(65536)
        assert [request.path for request in server.requests] == ["/a", "/b"]
        assert server.requests[0].body == b"abc"


@pytest.mark.parametrize("reply", [WireReply(body=b"half", breaks=True), WireReply(parts=[b"half"], breaks=True)])
def test_a_broken_answer_is_incomplete(reply: WireReply) -> None:
    with WireServer(lambda request: reply) as server:
        client = connection(server)
        client.request("GET", "/")
        with pytest.raises(http.client.IncompleteRead):
            client.getresponse().read()
        client.close()


def test_a_status_without_a_name() -> None:
    with WireServer(lambda request: WireReply(status=529)) as server:
        client = connection(server)
        client.request("GET", "/")
        answer = client.getresponse()
        assert (answer.status, answer.reason) == (529, "Unknown")
        client.close()


async def test_an_answer_can_be_late_or_never_come() -> None:
    replies = [WireReply(delay=0.01, body=b"late"), WireReply(hangs=True)]
    async with WireServer(lambda request: replies.pop(0)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /late HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(b"late")).startswith(b"HTTP/1.1 200 OK")
        writer.write(b"GET /never HTTP/1.1\r\n\r\n")
        await server.until(lambda: len(server.requests) == 2)
        server.drop_connections()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert [request.path for request in server.requests] == ["/late", "/never"]


async def test_a_client_that_leaves_early_harms_nobody() -> None:
    async with WireServer(lambda request: WireReply(delay=0.01, parts=[b"x"] * 3)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(2):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await server.until(lambda: bool(server.requests))
            writer.close()
            await writer.wait_closed()
            await server.until(lambda: not server.open_connections)
        await asyncio.sleep(0.02)


async def test_waiting_for_what_holds_already_returns_at_once() -> None:
    async with WireServer(echo) as server:
        await server.until(lambda: not server.requests)


async def test_a_cancelled_wait_is_forgotten() -> None:
    async with WireServer(echo) as server:
        waiting = asyncio.create_task(server.until(lambda: False))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await server.until(lambda: bool(server.requests))
        writer.close()
        await writer.wait_closed()


async def test_a_server_that_is_not_running_has_no_address() -> None:
    server = WireServer(echo)
    with pytest.raises(RuntimeError, match="is not running"):
        _ = server.url
    await server.stop()


def test_a_port_can_be_chosen() -> None:
    async def twice() -> None:
        async with WireServer(echo) as first:
            port = int(first.url.rpartition(":")[2])
        second = WireServer(echo)
        await second.start(port)
        assert second.url.endswith(f":{port}")
        await second.stop()

    asyncio.run(twice())
