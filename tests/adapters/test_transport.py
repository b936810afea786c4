"""The SDKs' HTTP client over aiohttp: what it carries, whom it trusts, and that it leaves nothing open."""

from __future__ import annotations

import asyncio
import gzip
import threading
import warnings
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pytest

from tests.adapters.remote import CHAT, REMOTES, Remote, conversation, request
from tests.kit import collect_garbage
from watchkeeper import Agent
from watchkeeper.adapters import endpoint, transport
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import UserMessage
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import Reply, WireReply, WireRequest, WireServer, say


def yes(number: int, body: Any) -> Reply:
    return say("Yes.")


def test_the_environment_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "near.example")
    assert transport.environment_proxy("https://api.openai.com/v1") == "http://proxy.example:3128"
    assert transport.environment_proxy("https://near.example/v1") is None
    assert transport.environment_proxy("https://localhost/v1") is None
    assert transport.environment_proxy("http://api.example/v1") is None
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example:3128")
    assert transport.environment_proxy("https://api.openai.com/v1") == "http://user:secret@proxy.example:3128"


def test_the_client_is_of_the_sdks_own_httpx() -> None:
    older = SimpleNamespace(DefaultAsyncHttpxClient=type("Default", (httpx.AsyncClient,), {}))
    newer = SimpleNamespace(DefaultAsyncHttpxClient=type("Default", (httpx2.AsyncClient,), {}))
    assert isinstance(transport.aio_client(older), httpx.AsyncClient)  # type: ignore[arg-type]
    assert isinstance(transport.aio_client(newer), httpx2.AsyncClient)  # type: ignore[arg-type]


async def test_a_large_conversation_is_sent_without_complaint() -> None:
    """aiohttp warns of large bytes, and warnings are errors here."""
    text = "x" * (transport.LARGE_BODY_BYTES + 1)
    async with CHAT.fake([say("Long.")]) as fake:
        model = CHAT.model(fake.base_url)
        assert (await model.turn(request(conversation(UserMessage.of(text))))).message.text == "Long."
        await model.close()
        assert fake.bodies()[0]["messages"][0]["content"] == text


async def test_a_compressed_answer_is_read() -> None:
    inner = FakeOpenAI(yes)

    def compressed(incoming: WireRequest) -> WireReply:
        reply = inner.handle(incoming)
        return WireReply(headers={"content-encoding": "gzip"}, body=gzip.compress(reply.body))

    async with WireServer(compressed) as server:
        model = CHAT.model(f"{server.url}/v1")
        assert (await model.turn(request())).message.text == "Yes."
        await model.close()


async def test_a_redirect_is_not_followed() -> None:
    """The key would go along to an address that nobody named."""
    async with CHAT.fake(yes) as target:

        def redirect(incoming: WireRequest) -> WireReply:
            return WireReply(status=307, headers={"location": f"{target.base_url}/chat/completions"})

        async with WireServer(redirect) as server:
            model = CHAT.model(f"{server.url}/v1")
            with pytest.raises(ProviderError, match=r"a redirect to .* give the final address as base_url") as caught:
                await model.turn(request())
            await model.close()
        assert target.requests == []
    assert (caught.value.fault, caught.value.status) == ("bad_request", 307)


async def test_an_idle_connection_that_the_server_dropped_is_replaced() -> None:
    async with CHAT.fake(yes) as fake:
        model = CHAT.model(fake.base_url)
        await model.turn(request())
        fake.drop_connections()
        await fake.until(lambda: not fake.open_connections)
        await asyncio.sleep(0)
        assert (await model.turn(request())).message.text == "Yes."
        await model.close()
        assert fake.connections == 2


async def test_many_turns_at_once() -> None:
    async with CHAT.fake(yes) as fake:
        model = CHAT.model(fake.base_url)
        replies = await asyncio.gather(*(model.turn(request()) for _ in range(50)))
        await model.close()
    assert {reply.message.text for reply in replies} == {"Yes."}


class Rotating(httpx.Auth):
    """A sign-in of two requests: the first key is refused, the second is taken."""

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        request.headers["authorization"] = "Bearer stale"
        response = yield request
        if response.status_code == 401:
            request.headers["authorization"] = "Bearer fresh"
            yield request


async def test_a_sign_in_of_several_requests_goes_through_httpx() -> None:
    async with FakeOpenAI(yes, key="fresh") as fake:
        client = transport.aio_client(openai)
        body = b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"Hello"}]}'
        sent = client.build_request("POST", httpx.URL(f"{fake.base_url}/chat/completions"), content=body)
        response = await client.send(sent, auth=Rotating())
        assert b"Yes." in await endpoint.body_of(response)
        await client.aclose()
        assert [incoming.headers["authorization"] for incoming in fake.requests] == ["Bearer stale", "Bearer fresh"]


async def test_other_requests_are_built_as_httpx_builds_them() -> None:
    client = transport.aio_client(openai)
    built = client.build_request("GET", "http://localhost/v1/models", params={"limit": "1"})
    assert str(built.url) == "http://localhost/v1/models?limit=1"
    await client.aclose()


async def test_closing_reaches_the_connections_of_other_loops() -> None:
    """So a model that was used through the synchronous API can be closed from anywhere."""
    model: Any = None
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with CHAT.fake(yes) as fake:
            model = CHAT.model(fake.base_url)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(model.turn(request()), loop))
            await model.turn(request())
            assert fake.open_connections == 2
            await model.close()
            await model.turn(request())
            await model.close()
            assert fake.connections == 3
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


def test_a_loop_that_died_without_cleaning_up_is_forgotten() -> None:
    with CHAT.fake(yes) as fake:
        sessions = transport.LoopSessions()

        async def use() -> None:
            session = await sessions.get()
            assert not session.closed

        careless = asyncio.new_event_loop()
        careless.run_until_complete(use())
        careless.close()
        asyncio.run(use())
        assert sessions.count == 0
        assert fake.connections == 0


async def test_a_stream_whose_end_is_still_on_its_way_keeps_its_connection() -> None:
    """A new connection would cost a handshake in every streamed turn."""
    inner = FakeOpenAI(yes)

    def slowly(incoming: WireRequest) -> WireReply:
        return replace(inner.handle(incoming), pause=0.002)

    async with WireServer(slowly) as server:
        model = CHAT.model(f"{server.url}/v1")
        for _ in range(3):
            assert (await model.turn(request(stream=True))).message.text == "Yes."
        await model.close()
        assert server.connections == 1


async def test_a_stream_that_goes_on_after_its_last_event_is_dropped() -> None:
    inner = FakeOpenAI(yes)

    def endless(incoming: WireRequest) -> WireReply:
        reply = inner.handle(incoming)
        return replace(reply, parts=[b"".join(reply.parts), *[b": keep-alive\n\n"] * 50], pause=0.02)

    async with WireServer(endless) as server:
        model = CHAT.model(f"{server.url}/v1")
        assert (await model.turn(request(stream=True))).message.text == "Yes."
        await server.until(lambda: not server.open_connections)
        await model.close()


def test_a_loop_that_rests_keeps_its_session_until_it_is_used_again() -> None:
    """Nothing can be awaited on it from elsewhere, and its own shutdown will close the session."""
    with CHAT.fake(yes) as fake:
        model = CHAT.model(fake.base_url)
        resting = asyncio.new_event_loop()
        resting.run_until_complete(model.turn(request()))
        asyncio.run(model.close())
        assert fake.open_connections == 1
        resting.run_until_complete(model.turn(request()))
        assert fake.connections == 1
        resting.run_until_complete(resting.shutdown_asyncgens())
        resting.close()


async def test_other_bodies_are_read_from_the_request() -> None:
    async with CHAT.fake(yes) as fake:
        client = transport.aio_client(openai)
        body = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "Hello"}]}
        sent = client.build_request(
            "POST", f"{fake.base_url}/chat/completions", json=body, headers={"authorization": "Bearer t"}
        )
        assert b"Yes." in await endpoint.body_of(await client.send(sent))
        await client.aclose()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aiohttp.ConnectionTimeoutError(), "ConnectTimeout"),
        (aiohttp.SocketTimeoutError(), "ReadTimeout"),
        (aiohttp.InvalidURL("x"), "UnsupportedProtocol"),
        (aiohttp.ServerDisconnectedError(), "ReadError"),
        (OSError("gone"), "ReadError"),
    ],
)
def test_errors_are_what_the_sdks_expect(error: Exception, kind: str) -> None:
    translated = transport.as_httpx_error(httpx, error)
    assert isinstance(translated, httpx.TransportError)
    assert type(translated).__name__ == kind
    assert str(translated)


class Sessions:
    """Ways to use a fresh model object for each of several runs, and to forget it."""

    def __init__(self, remote: Remote, url: str) -> None:
        self._remote, self._url = remote, url

    def _agent(self) -> Agent[str]:
        return Agent(self._remote.model(self._url), "Be brief.", str)

    def one_after_the_other(self) -> None:
        for _ in range(5):
            assert self._agent().run("Go.", store=None).text == "Yes."

    def in_one_loop(self) -> None:
        async def runs() -> None:
            for _ in range(5):
                assert (await self._agent().arun("Go.", store=None)).text == "Yes."
                collect_garbage()

        asyncio.run(runs())

    def each_in_a_loop(self) -> None:
        async def run() -> None:
            assert (await self._agent().arun("Go.", store=None)).text == "Yes."

        for _ in range(3):
            asyncio.run(run())

    def over_many(self) -> None:
        assert self._agent().run_many(["Go.", "Go."], store=None).ok

    def in_a_cycle(self) -> None:
        agent: Any = self._agent()
        assert agent.run("Go.", store=None).text == "Yes."
        agent.model.endpoint.circle = agent.model

    def in_a_loop_that_stands_still(self) -> None:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(self._agent().arun("Go.", store=None)).text == "Yes."
        collect_garbage()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.name)
@pytest.mark.parametrize("way", [name for name in vars(Sessions) if not name.startswith("_")])
def test_a_model_that_is_forgotten_leaves_no_connection_open(
    remote: Remote, way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are closed with the model, not only when they have been idle for long."""
    monkeypatch.setattr(transport, "IDLE_SECONDS", 3600)
    collect_garbage()  # what earlier tests left behind may complain
    caplog.clear()
    with warnings.catch_warnings(record=True) as seen, remote.fake(lambda number, body: say("Yes.")) as fake:
        warnings.simplefilter("always")
        getattr(Sessions(remote, fake.base_url), way)()
        collect_garbage()
        asyncio.run(asyncio.wait_for(fake.until(lambda: not fake.open_connections), 60))
        assert len(fake.requests) >= 1
    assert [str(each.message) for each in seen if each.category is ResourceWarning] == []
    assert "Unclosed" not in caplog.text
