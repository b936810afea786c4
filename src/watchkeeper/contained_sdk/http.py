"""HTTP clients for the official SDKs whose model calls pass the gate of the contained block around them.

They are given to an SDK by its own extension point (``http_client=``); nothing is patched. Inside a block every model
call is admitted before its bytes leave, also each retry of the SDK's; an answer is settled by its own token counts; a
stream stays a stream and is settled when it ends. Outside of any block requests pass untouched.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import socket
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Final, NamedTuple

from watchkeeper.adapters.wire import StreamReader
from watchkeeper.contained_sdk.calls import (
    ACTIVE,
    CallStopped,
    ContainedCall,
    Containment,
    Posted,
    as_answer,
    as_whole,
    is_unbilled,
    module_of,
    outgoing,
    translated,
    unpriced,
)
from watchkeeper.containment.in_flight import Outcome, Ticket
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, UnpricedModelError
from watchkeeper.core.workers import WORKERS, Job
from watchkeeper.loop.models import DEFAULT_OUTPUT_CAP

# --- contained streams ----------------------------------------------------------------------------------------------
# Streamed answers at the gate: the call lasts as long as its stream.
#
# A thread (or task) of its own holds the call at the gate and reads the stream as fast as it comes; the caller takes
# the
# bytes as they arrive, and can be told to stop at any moment, also while nothing arrives. A stream that is closed early
# is dropped at the provider too, and is charged what was reserved unless its token counts had come.

LAST_BYTES_SECONDS: Final = 0.2
"""How long the end of a complete answer may take, so that its connection can be used again."""

SETTLE_SECONDS: Final = 1.0
"""How long closing waits for the call to be settled."""

EVENT_STREAM: Final = "text/event-stream"


class StreamDroppedError(Exception):
    """The caller closed the stream before its end."""


class Head(NamedTuple):
    """The beginning of an answer."""

    response: Any


class Raised(NamedTuple):
    """How a stream broke off."""

    error: BaseException


class End(NamedTuple):
    """The end of a stream."""


Part = Head | Raised | End | bytes


class Streamed:
    """A streamed answer that plain code reads."""

    def __init__(self, block: Containment, call: ContainedCall, real: Any, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        self._block = block
        self._call = call
        self._real = real
        self._request = request
        self._parts: SimpleQueue[Part] = SimpleQueue()
        self._dropped = False
        self._over = threading.Event()
        self._socket: socket.socket | None = None
        self._lock = threading.RLock()  # a finaliser may come in here in the middle

    def open(self) -> Any:
        """Send the request and return the response, its stream still to come.

        Raises:
            CallStopped: If it may not be sent.
            Exception: What the transport raised.
        """
        WORKERS.run(Job(self._run, lambda job: None))
        try:
            first = self._parts.get()
        except BaseException:
            self.drop()
            raise
        if isinstance(first, Raised):
            raise first.error
        assert isinstance(first, Head), "a stream begins with its head"
        return first.response

    def parts(self) -> Iterator[bytes]:
        """Yield what arrives."""
        while not isinstance(part := self._parts.get(), End):
            if isinstance(part, Raised):
                raise part.error
            assert isinstance(part, bytes), "a stream has one head"
            yield part

    def close(self) -> None:
        """End the call; what is complete gets a moment to be settled by its own counts."""
        if self._call.seen.ended:
            SYSTEM_CLOCK.wait(self._over, LAST_BYTES_SECONDS)
        if not self._over.is_set():
            self.drop()
            SYSTEM_CLOCK.wait(self._over, SETTLE_SECONDS)

    def drop(self) -> None:
        """Break the connection, so that the provider stops; whoever reads it looks up at once."""
        self._dropped = True
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):  # it is closed already
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _run(self) -> None:
        """Hold the call at the gate until the stream is over."""
        try:
            context, call = self._block.context, self._call
            outcome: Outcome[Any] = context.call(call.request, self._read, call.meter)
            while call.degrades(outcome):
                outcome = context.call(call.request, self._read, call.meter)
            self._parts.put(ending(call, outcome))
        except BaseException as error:
            self._parts.put(Raised(stopped(error)))
        finally:
            self.drop()  # after the deadline the reader may still be waiting for bytes
            self._over.set()

    def _read(self, ticket: Ticket) -> Any:
        """Read the whole stream, handing on what comes; return an answer that is none."""
        self._check()
        with translated(self._request, self._call.provider):
            response = self._real.handle_request(outgoing(self._request, self._call, ticket))
            try:
                if not streams(response):
                    content = b"".join(response.stream)
                    return as_answer(self._call, as_whole(self._request, response, content))
                self._socket = socket_of(response)
                reader = reader_of(self._call, response)
                self._parts.put(Head(streaming_response(self._request, response, ArrivingStream, self)))
                for chunk in response.stream:
                    self._check()
                    self._parts.put(reader.feed(chunk) if reader else chunk)
                self._parts.put(reader.finish() if reader else b"")
                return None
            finally:
                with self._lock:  # from now on the connection may carry another call
                    self._socket = None
                response.close()

    def _check(self) -> None:
        if self._dropped:
            raise StreamDroppedError("the stream was closed before its end")


class AsyncStreamed:
    """A streamed answer that async code reads."""

    def __init__(self, block: Containment, call: ContainedCall, real: Any, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        self._block = block
        self._call = call
        self._real = real
        self._request = request
        self._parts: asyncio.Queue[Part] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> Any:
        """Send the request and return the response, its stream still to come.

        Raises:
            CallStopped: If it may not be sent.
            Exception: What the transport raised.
        """
        self._task = self._loop.create_task(self._run())
        try:
            first = await self._parts.get()
        except BaseException:
            await self.aclose()
            raise
        if isinstance(first, Raised):
            raise first.error
        assert isinstance(first, Head), "a stream begins with its head"
        return first.response

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield what arrives."""
        while not isinstance(part := await self._parts.get(), End):
            if isinstance(part, Raised):
                raise part.error
            assert isinstance(part, bytes), "a stream has one head"
            yield part

    async def aclose(self) -> None:
        """End the call; what is complete gets a moment to be settled by its own counts."""
        task = self._task
        if task is None or task.done():
            return
        if self._call.seen.ended:
            await asyncio.wait({task}, timeout=LAST_BYTES_SECONDS)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=SETTLE_SECONDS)

    def drop(self) -> None:
        """Cancel the call; from any thread."""
        task = self._task
        if task is not None and not task.done():
            with suppress(RuntimeError):  # a loop that was closed runs nothing that could be cancelled
                self._loop.call_soon_threadsafe(task.cancel)

    async def _run(self) -> None:
        """Hold the call at the gate until the stream is over."""
        try:
            context, call = self._block.context, self._call
            outcome: Outcome[Any] = await context.acall(call.request, self._read, call.meter)
            while call.degrades(outcome):
                outcome = await context.acall(call.request, self._read, call.meter)
            self._parts.put_nowait(ending(call, outcome))
        except BaseException as error:
            self._parts.put_nowait(Raised(stopped(error)))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _read(self, ticket: Ticket) -> Any:
        """Read the whole stream, handing on what comes; return an answer that is none."""
        put = self._parts.put_nowait
        with translated(self._request, self._call.provider):
            response = await self._real.handle_async_request(outgoing(self._request, self._call, ticket))
            try:
                if not streams(response):
                    content = b"".join([chunk async for chunk in response.stream])
                    return as_answer(self._call, as_whole(self._request, response, content))
                reader = reader_of(self._call, response)
                put(Head(streaming_response(self._request, response, AsyncArrivingStream, self)))
                async for chunk in response.stream:
                    put(reader.feed(chunk) if reader else chunk)
                put(reader.finish() if reader else b"")
                return None
            finally:
                await response.aclose()


class ArrivingStream:
    """The stream of a response, mixed with an httpx module's own stream class."""

    def __init__(self, streamed: Streamed) -> None:
        """Read from what arrives."""
        self._streamed = streamed

    def __iter__(self) -> Iterator[bytes]:
        return self._streamed.parts()

    def close(self) -> None:
        """End the call."""
        self._streamed.close()

    def __del__(self) -> None:
        """Drop a stream that nobody reads or closes any more."""
        self._streamed.drop()


class AsyncArrivingStream:
    """The async twin of `ArrivingStream`."""

    def __init__(self, streamed: AsyncStreamed) -> None:
        """Read from what arrives."""
        self._streamed = streamed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._streamed.parts()

    async def aclose(self) -> None:
        """End the call."""
        await self._streamed.aclose()

    def __del__(self) -> None:
        """Drop a stream that nobody reads or closes any more."""
        self._streamed.drop()


def ending(call: ContainedCall, outcome: Outcome[Any]) -> Part:
    """Return what the caller finds at the end: nothing more, or the only answer, which is no stream.

    Raises:
        CallStopped: If the gate or a hook stopped the call.
        Exception: What the transport raised.
    """
    call.settle(outcome)
    only = outcome.value if call.failure is None else call.failure
    return End() if only is None else Head(only)


def stopped(error: BaseException) -> BaseException:
    """Return what the caller gets to see of an error."""
    if isinstance(error, UnpricedModelError):
        return unpriced(error)
    return CallStopped(None, error) if isinstance(error, ConfigurationError) else error


def streams(response: Any) -> bool:
    """Return whether a response is a stream of events, and no refusal."""
    kind: str = response.headers.get("content-type", "")
    return bool(response.status_code < 400) and kind.startswith(EVENT_STREAM)


def reader_of(call: ContainedCall, response: Any) -> StreamReader | None:
    """Return what reads the token counts; None if the stream came compressed, though nobody asked for that."""
    if call.wire is None or response.headers.get("content-encoding", "identity") != "identity":
        return None
    reader = StreamReader(call.wire.interface, hide_usage=call.wire.adds_usage)
    call.seen = reader.seen
    return reader


def streaming_response(request: Any, response: Any, kind: type[Any], streamed: Any) -> Any:
    """Return a response like the provider's whose stream is what arrives here."""
    httpx = module_of(request)
    base = httpx.SyncByteStream if kind is ArrivingStream else httpx.AsyncByteStream
    mixed: Any = type(kind.__name__, (kind, base), {})
    return httpx.Response(
        response.status_code, headers=response.headers, stream=mixed(streamed), extensions=response.extensions
    )


def socket_of(response: Any) -> socket.socket | None:
    """Return the socket beneath a response, if its transport shows it."""
    stream = response.extensions.get("network_stream")
    with contextlib.suppress(AttributeError):  # not every transport has one
        found = stream.get_extra_info("socket")
        return found if isinstance(found, socket.socket) else None
    return None


RETRY_HEADER: Final = "x-stainless-retry-count"
CONNECTIONS: Final = {"max_connections": 1000, "max_keepalive_connections": 100}
LOADED_BY_FIRST_CALL: Final = ("openai.resources.chat", "openai.resources.responses")
"""500 modules that the OpenAI package imports only when its first call is made; Anthropic's imports all with itself."""


class ContainedTransport:
    """An httpx transport that lets each request through the gate of the block around it.

    Args:
        real: The transport that sends.
        provider: Whose prices hold; by default OpenAI's or Anthropic's, by the interface that is spoken.
        output_cap: Output tokens that a request without a cap of its own may ask for.
    """

    def __init__(self, real: Any, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP) -> None:
        self._real = real
        self._provider = provider
        self._output_cap = checked(output_cap)

    def handle_request(self, request: Any) -> Any:
        """Send a request if it may be sent.

        Raises:
            CallStopped: If not.
        """
        block = ACTIVE.get()
        if block is None:
            return self._real.handle_request(request)
        block.check(str(request.url), request.method)
        if is_unbilled(request.method, request.url.path):
            return self._real.handle_request(request)
        call = ContainedCall(block, posted(request, request.read()), self._provider, self._output_cap)
        if call.streaming:
            return Streamed(block, call, self._real, request).open()
        with refusals():
            return self._answer(block, call, request)

    def _answer(self, block: Containment, call: ContainedCall, request: Any) -> Any:
        def send(ticket: Ticket) -> Any:
            with translated(request, call.provider):
                response = self._real.handle_request(outgoing(request, call, ticket))
                try:
                    content = b"".join(response.stream)
                finally:
                    response.close()
            return as_answer(call, as_whole(request, response, content))

        outcome = block.context.call(call.request, send, call.meter)
        while call.degrades(outcome):
            outcome = block.context.call(call.request, send, call.meter)
        call.settle(outcome)
        return call.failure or outcome.value

    def close(self) -> None:
        """Close the transport that sends."""
        self._real.close()

    def __enter__(self) -> ContainedTransport:
        self._real.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._real.__exit__(*raised)


class AsyncContainedTransport:
    """The async twin of `ContainedTransport`; for asyncio."""

    def __init__(self, real: Any, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP) -> None:
        self._real = real
        self._provider = provider
        self._output_cap = checked(output_cap)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request if it may be sent.

        Raises:
            CallStopped: If not.
        """
        block = ACTIVE.get()
        if block is None:
            return await self._real.handle_async_request(request)
        block.check(str(request.url), request.method)
        if is_unbilled(request.method, request.url.path):
            return await self._real.handle_async_request(request)
        call = ContainedCall(block, posted(request, await request.aread()), self._provider, self._output_cap)
        if call.streaming:
            return await AsyncStreamed(block, call, self._real, request).open()
        with refusals():
            return await self._answer(block, call, request)

    async def _answer(self, block: Containment, call: ContainedCall, request: Any) -> Any:
        async def send(ticket: Ticket) -> Any:
            with translated(request, call.provider):
                response = await self._real.handle_async_request(outgoing(request, call, ticket))
                try:
                    content = b"".join([chunk async for chunk in response.stream])
                finally:
                    await response.aclose()
            return as_answer(call, as_whole(request, response, content))

        outcome = await block.context.acall(call.request, send, call.meter)
        while call.degrades(outcome):
            outcome = await block.context.acall(call.request, send, call.meter)
        call.settle(outcome)
        return call.failure or outcome.value

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._real.aclose()

    async def __aenter__(self) -> AsyncContainedTransport:
        await self._real.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._real.__aexit__(*raised)


def contained_http_client(
    transport: Any = None, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP, httpx: ModuleType | None = None
) -> Any:
    """Return an HTTP client for ``OpenAI(http_client=...)`` or ``Anthropic(http_client=...)``.

    Args:
        transport: What sends, for example ``httpx.HTTPTransport(proxy=...)``; by default one like the SDK's own,
            which does not look at the environment for a proxy.
        provider: Whose prices hold, for example ``openrouter``; by default OpenAI's or Anthropic's, by the interface
            that is spoken.
        output_cap: Output tokens that a request without a cap of its own may ask for, where a ceiling holds.
        httpx: The module whose client the SDK wants, httpx or httpx2; by default the one that the SDKs here take.

    Raises:
        MissingExtraError: If neither module is installed.
    """
    import_interfaces()
    module: Any = httpx or (module_of(transport) if transport is not None else sdk_module())
    real = transport if transport is not None else module.HTTPTransport(limits=module.Limits(**CONNECTIONS))
    return module.Client(transport=ContainedTransport(real, provider=provider, output_cap=output_cap))


def contained_async_http_client(
    transport: Any = None, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP, httpx: ModuleType | None = None
) -> Any:
    """Return an HTTP client for ``AsyncOpenAI(http_client=...)`` or ``AsyncAnthropic(http_client=...)``.

    Args and errors are those of `contained_http_client`.
    """
    import_interfaces()
    module: Any = httpx or (module_of(transport) if transport is not None else sdk_module())
    real = transport if transport is not None else module.AsyncHTTPTransport(limits=module.Limits(**CONNECTIONS))
    return module.AsyncClient(transport=AsyncContainedTransport(real, provider=provider, output_cap=output_cap))


def import_interfaces() -> None:
    """Import what the SDK in use would import at its first call.

    There it would take a third of a second of the block's time, and hold up the event loop for as long.
    """
    if "openai" in sys.modules:
        for name in LOADED_BY_FIRST_CALL:
            with contextlib.suppress(ImportError):  # a version that is laid out differently
                importlib.import_module(name)


def sdk_module() -> ModuleType:
    """Return httpx2, which the newer SDKs take, unless it is missing or the openai package in use does not know it."""
    openai = sys.modules.get("openai")
    newer = openai is None or hasattr(openai, "DefaultHttpx2Client")
    for name in ("httpx2", "httpx") if newer else ("httpx", "httpx2"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise MissingExtraError("contained_http_client", "openai")


def posted(request: Any, body: bytes) -> Posted:
    """Return what a call is read from."""
    retries = request.headers.get(RETRY_HEADER, "0")
    return Posted(str(request.url), request.url.path, body, retries.isdecimal() and int(retries) > 0)


@contextlib.contextmanager
def refusals() -> Generator[None]:
    """Let what cannot be admitted at all end the block, instead of being retried by an SDK."""
    try:
        yield
    except UnpricedModelError as error:
        raise unpriced(error) from error
    except ConfigurationError as error:
        raise CallStopped(None, error) from None


def checked(output_cap: object) -> int:
    """Return a cap that can be one.

    Raises:
        ConfigurationError: If it is not a positive whole number.
    """
    if isinstance(output_cap, bool) or not isinstance(output_cap, int) or output_cap < 1:
        raise ConfigurationError(f"output_cap={output_cap!r} must be a whole number of tokens, 1 or more")
    return output_cap
