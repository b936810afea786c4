"""HTTP under the provider SDKs: their own client class, with aiohttp's sockets beneath it.

An SDK is handed an httpx client whose `send` exchanges bytes through aiohttp, at a quarter of the cost; everything
above it (authentication, headers, errors, streams) stays the SDK's. One aiohttp session is kept per event loop and
closed with that loop, so nothing is left open. Redirects are never followed: a key goes only where it was meant to go.
Nothing here retries, and nothing here knows a provider.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import socket
import threading
import urllib.parse
import urllib.request
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from types import ModuleType
from typing import Any, Final, cast

import aiohttp
import yarl

from watchkeeper.adapters.endpoint import BODY, is_loopback, sdk_httpx
from watchkeeper.adapters.reply_bounds import (
    MOST_ERROR_BYTES,
    MOST_EVENT_BYTES,
    MOST_READ_OBJECTS,
    MOST_STREAM_BYTES,
    MOST_WHOLE_BYTES,
    BodyBounds,
    RefusedBodyError,
    encoding_of,
    oversized,
)
from watchkeeper.core.secrets import hold_url
from watchkeeper.core.trace.place import passed_on

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 600.0
LEAST_SECONDS: Final = 0.001
LARGE_BODY_BYTES: Final = 1 << 20
IDLE_SECONDS: Final = 15.0
LAST_EVENT: Final = b"data: [DONE]\n\n"
LAST_BYTES_SECONDS: Final = 0.2


def environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL, if any."""
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is None or is_loopback(url) or urllib.request.proxy_bypass(parts.netloc):
        return None
    address = proxy if "://" in proxy else f"http://{proxy}"
    hold_url(address)
    return address


def open_socket(address: Any) -> socket.socket:
    """Open a socket that probes an idle peer, because a model may think for minutes without sending a byte."""
    opened = socket.socket(address[0], address[1], address[2])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return opened


Held = tuple[aiohttp.ClientSession, AsyncGenerator[None]]


class OpenSessions:
    """The open sessions by event loop. It holds no reference to its owner, so it can outlive the owner."""

    def __init__(self) -> None:
        """Start without sessions."""
        self.held: dict[asyncio.AbstractEventLoop, Held] = {}
        self.lock = threading.Lock()

    def take(self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> bool:
        """Remove a session and return whether it was still held; the caller that gets True closes it."""
        with self.lock:
            held = self.held.get(loop)
            if held is None or held[0] is not session:
                return False
            del self.held[loop]
            return True

    def forget_dead_loops(self) -> None:
        """Close the sessions of loops that are gone; the caller holds the lock."""
        for loop in [loop for loop in self.held if loop.is_closed()]:
            close_at_once(self.held.pop(loop)[0])

    def abandon(self) -> None:
        """Close everything, on the loop of each session; called when the owner was collected, on any thread."""
        with self.lock:
            held = [(loop, session) for loop, (session, _) in self.held.items()]
            self.held.clear()
        for loop, session in held:
            if loop.is_running():
                with contextlib.suppress(RuntimeError):  # closed just now
                    loop.call_soon_threadsafe(close_at_once, session)
                    continue
            close_at_once(session)


def close_at_once(session: aiohttp.ClientSession) -> None:
    """Close a session's sockets without waiting until that is done: one step of the coroutine begins all of it."""
    closing = session.close()
    with contextlib.suppress(StopIteration):
        closing.send(None)
    closing.close()


async def until_loop_ends(
    open_sessions: OpenSessions, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession
) -> AsyncGenerator[None]:
    """Close a session when its loop does: it closes its unfinished async generators when it shuts down."""
    try:
        yield
    finally:
        open_sessions.take(loop, session)
        await session.close()


class LoopSessions:
    """aiohttp sessions, one per event loop, each closed when its loop shuts down, or when this object is collected."""

    def __init__(self) -> None:
        """Open nothing before the first request."""
        self._open_sessions = OpenSessions()
        weakref.finalize(self, self._open_sessions.abandon)

    @property
    def count(self) -> int:
        """How many sessions are open."""
        return len(self._open_sessions.held)

    async def get(self) -> aiohttp.ClientSession:
        """Return the running loop's session, opening it at first use."""
        held = self._open_sessions.held.get(asyncio.get_running_loop())
        if held is not None and not held[0].closed:
            return held[0]
        return await self._open()

    async def _open(self) -> aiohttp.ClientSession:
        loop, opened = asyncio.get_running_loop(), self._open_sessions
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=open_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept"),
        )
        guard = until_loop_ends(opened, loop, session)
        await anext(guard)
        with opened.lock:
            opened.forget_dead_loops()
            opened.held[loop] = (session, guard)
        return session

    async def close(self) -> None:
        """Close every session: those of other running loops on their own loop."""
        here, opened = asyncio.get_running_loop(), self._open_sessions
        with opened.lock:
            opened.forget_dead_loops()
            held = list(opened.held.items())
        for loop, (session, guard) in held:
            if not loop.is_running() or not opened.take(loop, session):
                continue
            if loop is here:
                await guard.aclose()
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_finish(guard), loop))


async def _finish(guard: AsyncGenerator[None]) -> None:
    await guard.aclose()


class SocketStream:
    """A response body that is still arriving; mixed with an httpx module's stream class."""

    def __init__(self, response: aiohttp.ClientResponse, httpx: Any) -> None:
        """Take over an open response."""
        self._response = response
        self._httpx = httpx
        self._tail = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            most = MOST_STREAM_BYTES if self._response.ok else most_whole(self._response)
            bounds = BodyBounds(most, encoding_of(self._response), MOST_EVENT_BYTES, most_objects=MOST_READ_OBJECTS)
            is_first = True
            async for piece in bounds.pieces(self._response.content.iter_any()):
                if is_first:  # SDKs would take a byte order mark for a part of the first field's name
                    piece, is_first = piece.removeprefix(codecs.BOM_UTF8), False
                self._tail = piece[-len(LAST_EVENT) :]
                yield piece
        except (aiohttp.ClientError, OSError, RefusedBodyError) as error:
            raise as_httpx_error(self._httpx, error) from error

    async def aclose(self) -> None:
        """Drop the connection, unless the whole body has arrived and it can be used again.

        An SDK stops reading at the event that says it is the last; the end of the body may still be on its way.
        """
        if self._tail == LAST_EVENT:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(LAST_BYTES_SECONDS):
                    await self._response.content.wait_eof()
        self._response.close()


class Exchange:
    """Sends one httpx request through aiohttp and returns an httpx response; serves as an httpx transport."""

    def __init__(self, httpx: Any) -> None:
        """Use the request and response classes of ``httpx``: the httpx module on which the SDK is built."""
        self._httpx = httpx
        self._stream_class: type[SocketStream] = type("AioStream", (SocketStream, httpx.AsyncByteStream), {})
        self.sessions = LoopSessions()
        self._targets: dict[str, dict[str, Any]] = {}

    async def handle_async_request(self, request: Any) -> Any:
        """Exchange one request (httpx's transport interface)."""
        return await self.exchange(request, stream=True)

    async def aclose(self) -> None:
        """Close all sessions."""
        await self.sessions.close()

    async def exchange(self, request: Any, *, stream: bool) -> Any:
        """Send a request; read the body too unless ``stream``.

        Raises:
            httpx.TransportError: For every connection failure, as the SDKs expect it.
        """
        body: bytes | None = request.extensions.get(BODY)
        if body is None:
            body = cast("bytes", request.content)
        session = await self.sessions.get()
        try:
            response = await session.request(
                request.method,
                data=body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body),
                headers=[*request.headers.multi_items(), *passed_on(request.headers)],
                allow_redirects=False,
                timeout=_timeout(request.extensions.get("timeout")),
                **self._target(str(request.url)),
            )
            if stream:
                return self._response(response, request, self._stream_class(response, self._httpx), {})
            async with response:
                content = await whole_body(response)
        except (aiohttp.ClientError, OSError, ValueError, RefusedBodyError) as error:
            raise as_httpx_error(self._httpx, error) from error
        return self._response(response, request, self._httpx.ByteStream(content), {BODY: content})

    def _response(self, answer: aiohttp.ClientResponse, request: Any, stream: Any, extensions: dict[str, Any]) -> Any:
        headers = answer.raw_headers
        if "content-encoding" in answer.headers:  # it is decoded here, where its size is bounded
            headers = tuple(header for header in headers if header[0].lower() != b"content-encoding")
        response = self._httpx.Response(
            answer.status, headers=headers, stream=stream, request=request, extensions=extensions
        )
        # JSON and events are UTF-8. A charset that the server names may be no encoding of text at all, such as bz2.
        response.encoding = "utf-8"
        return response

    def _target(self, url: str) -> dict[str, Any]:
        target = self._targets.get(url)
        if target is None:
            # Looked up once, and certificates only where TLS is spoken: loading them takes 30 ms.
            context = self._httpx.create_ssl_context() if url.startswith("https") else True
            target = {"url": yarl.URL(url, encoded=True), "proxy": environment_proxy(url), "ssl": context}
            self._targets[url] = target
        return target


async def whole_body(response: aiohttp.ClientResponse) -> bytes:
    """Return a response's bytes, decoded.

    Raises:
        RefusedBodyError: If there are too many.
    """
    length, encoding = response.content_length, encoding_of(response)
    most = most_whole(response)
    if length is not None and length > most:
        raise oversized("reply", most)
    bounds = BodyBounds(most, encoding, most_objects=MOST_READ_OBJECTS)
    if length is None or encoding:
        return b"".join([piece async for piece in bounds.pieces(response.content.iter_any())])
    content = await response.read()
    bounds.count(content)
    return content


def most_whole(response: aiohttp.ClientResponse) -> int:
    """Return how many bytes a reply that is read as a whole may have."""
    return MOST_WHOLE_BYTES if response.ok else min(MOST_ERROR_BYTES, MOST_WHOLE_BYTES)


def _timeout(seconds: Any) -> aiohttp.ClientTimeout:
    if isinstance(seconds, int | float):
        # aiohttp takes 0 for no timeout.
        seconds = max(seconds, LEAST_SECONDS)
        return aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_SECONDS, seconds))
    return aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)


def as_httpx_error(httpx: Any, error: Exception) -> Exception:
    """Return the error of an httpx module that says what an aiohttp error says."""
    text = str(error) or type(error).__name__
    kind: type[Exception] = httpx.ReadError
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        kind = httpx.ConnectTimeout
    elif isinstance(error, TimeoutError):
        kind = httpx.ReadTimeout
    elif isinstance(error, aiohttp.ClientConnectorError):
        kind = httpx.ConnectError
    elif isinstance(error, aiohttp.InvalidURL):
        kind = httpx.UnsupportedProtocol
    return kind(text)


class AioClient:
    """What is changed in an httpx client: how a request is built and sent, and how the client is closed."""

    exchange: Exchange
    httpx: Any

    def build_request(self, method: str, url: Any, **parts: Any) -> Any:
        """Build a request from what the SDK decided, without merging defaults that the SDK has set already."""
        content = parts.get("content")
        if isinstance(content, bytes) and not (parts.get("files") or parts.get("params")):
            return self.httpx.Request(
                method,
                url,
                headers=parts.get("headers"),
                stream=self.httpx.ByteStream(content),
                extensions={"timeout": parts.get("timeout"), BODY: content},
            )
        return self.httpx.AsyncClient.build_request(self, method, url, **parts)

    async def send(self, request: Any, *, stream: bool = False, auth: Any = None, follow_redirects: Any = None) -> Any:
        """Send a request; a sign-in that needs several requests goes the whole way through httpx."""
        if auth is None:
            return await self.exchange.exchange(request, stream=stream)
        return await self.httpx.AsyncClient.send(self, request, stream=stream, auth=auth, follow_redirects=False)

    async def aclose(self) -> None:
        """Close the sockets but stay usable: the next request opens new ones."""
        await self.exchange.aclose()


def aio_client(sdk: ModuleType) -> Any:
    """Return an httpx client over aiohttp, to be given to an SDK's client."""
    httpx = sdk_httpx(sdk)
    exchange = Exchange(httpx)
    made: Any = type("AioHttpClient", (AioClient, httpx.AsyncClient), {"exchange": exchange, "httpx": httpx})
    return made(transport=exchange, trust_env=False)
