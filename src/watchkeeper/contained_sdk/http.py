"""HTTP clients for the official SDKs whose model calls pass the gate of the contained block around them.

They are given to an SDK by its own extension point (``http_client=``); nothing is patched. Inside a block every model
call is admitted before its bytes leave, also each retry of the SDK's; an answer is settled by its own token counts; a
stream stays a stream and is settled when it ends. Outside of any block requests pass untouched.

What happens to a request is written once, as generators that yield what has to be waited for: `run` drives them for
plain code, where a yielded value is already there, and `arun` for async code, which awaits it; `Ways` are how each
does input and output. httpx and its successor httpx2 serve alike: the module is that of the request.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Final, Self

from watchkeeper.contained_sdk.calls import (
    ACTIVE,
    CallStopped,
    ContainedCall,
    as_answer,
    as_whole,
    module_of,
    outgoing,
    translated,
    unpriced,
)
from watchkeeper.contained_sdk.reading import StreamReader, is_unbilled
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.leaving import check_leaving
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, UnpricedModelError
from watchkeeper.core.workers import WORKERS, Job
from watchkeeper.loop.models import DEFAULT_OUTPUT_CAP

Steps = Generator[Any, Any, Any]
"""Yields what has to be waited for, and is sent what came of it."""

Work = Callable[[Ticket], Steps]


def run(steps: Steps) -> Any:
    """Drive steps whose yielded values are already there, and return their result."""
    value = None
    try:
        while True:
            value = steps.send(value)
    except StopIteration as end:
        return end.value


async def arun(steps: Steps) -> Any:
    """Drive steps that yield awaitables, and return their result."""
    try:
        waited = next(steps)
        while True:
            try:
                value = await waited
            except BaseException as error:
                waited = steps.throw(error)
            else:
                waited = steps.send(value)
    except StopIteration as end:
        return end.value


@dataclass(frozen=True, slots=True)
class Ways:
    """How one kind of code does input and output; what is yielded to its driver comes from here.

    Attributes:
        body: Reads the body of a request.
        send: Sends a request over a transport.
        chunks: Begins to read the stream of a response; not yielded.
        next: Reads the next chunk, or None.
        close: Closes a response.
        admit: Passes a call and its work through the gate.
    """

    body: Callable[[Any], Any]
    send: Callable[[Any, Any], Any]
    chunks: Callable[[Any], Any]
    next: Callable[[Any], Any]
    close: Callable[[Any], Any]
    admit: Callable[[ContainedCall, Work], Any]


BLOCKING: Final = Ways(
    body=lambda request: request.read(),
    send=lambda real, request: real.handle_request(request),
    chunks=lambda response: iter(response.stream),
    next=lambda chunks: next(chunks, None),
    close=lambda response: response.close(),
    admit=lambda call, work: call.block.context.call(call.request, lambda ticket: run(work(ticket)), call.meter),
)
AWAITING: Final = Ways(
    body=lambda request: request.aread(),
    send=lambda real, request: real.handle_async_request(request),
    chunks=lambda response: aiter(response.stream),
    next=lambda chunks: anext(chunks, None),
    close=lambda response: response.aclose(),
    admit=lambda call, work: call.block.context.acall(call.request, lambda ticket: arun(work(ticket)), call.meter),
)


# --- one request ------------------------------------------------------------------------------------------------------


class Exchange:
    """One request of a block, and its answer as a whole."""

    def __init__(self, ways: Ways, real: Any, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        self.ways = ways
        self._real = real
        self._call = call
        self._request = request

    def answer(self) -> Steps:
        """Send the request if the gate lets it through, and return the response; None if it was passed on.

        Raises:
            CallStopped: If it may not be sent.
            Exception: What the transport raised.
        """
        call = self._call
        outcome = yield self.ways.admit(call, self._attempt)
        while call.degrades(outcome):
            outcome = yield self.ways.admit(call, self._attempt)
        call.settle(outcome)
        return outcome.value if call.failure is None else call.failure

    def _attempt(self, ticket: Ticket) -> Steps:
        """Send one admitted attempt."""
        self.check()
        ways, request = self.ways, self._request
        with translated(request, self._call.provider):
            response = yield ways.send(self._real, outgoing(request, self._call, ticket))
            try:
                chunks = ways.chunks(response)
                if self._call.streaming and streams(response):
                    return (yield from self.pass_on(response, chunks))
                content = bytearray()
                while (chunk := (yield ways.next(chunks))) is not None:
                    content += chunk
                return as_answer(self._call, as_whole(request, response, bytes(content)))
            finally:
                yield ways.close(response)

    def check(self) -> None:
        """Raise if nobody wants the answer any more."""

    def pass_on(self, response: Any, chunks: Any) -> Steps:
        """Hand on a stream as it comes."""
        raise NotImplementedError


def final(error: BaseException) -> BaseException:
    """Return what the caller gets to see of an error: what cannot be admitted at all ends the block, unretried."""
    if isinstance(error, UnpricedModelError):
        return unpriced(error)
    return CallStopped(None, error) if isinstance(error, ConfigurationError) else error


# --- streams ----------------------------------------------------------------------------------------------------------

LAST_BYTES_SECONDS: Final = 0.2
"""How long the end of a complete answer may take, so that its connection can be used again."""

SETTLE_SECONDS: Final = 1.0
"""How long closing waits for the call to be settled."""

EVENT_STREAM: Final = "text/event-stream"


class StreamDroppedError(Exception):
    """The caller closed the stream before its end."""


def taken(part: Any) -> Any:
    """Return what was in the queue of a stream, or raise it."""
    if isinstance(part, BaseException):
        raise part
    return part


class ArrivingStream:
    """The stream of a response, mixed with httpx's own stream classes; dropped if nobody holds it any more."""

    def __init__(self, streamed: Streamed) -> None:
        """Read from what arrives."""
        self._streamed = streamed

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: taken(self._streamed.get()), None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := taken(await self._streamed.get())) is not None:
            yield chunk

    def close(self) -> None:
        """End the call of plain code."""
        self._streamed.close()

    async def aclose(self) -> None:
        """End the call of async code."""
        await self._streamed.close()

    def __del__(self) -> None:
        """Drop the call."""
        self._streamed.drop()


class Streamed(Exchange):
    """A streamed answer: the call lasts as long as its stream.

    A thread or task of its own holds the call at the gate and reads the stream as fast as it comes; the caller takes
    the bytes from a queue as they arrive, and can be told to stop at any moment, also while nothing arrives. A stream
    that is closed early is dropped at the provider too, and is charged what was reserved unless its token counts had
    come. In the queue are the response, then its bytes, then None; an exception at any place ends it.
    """

    get: Callable[[], Any]
    put: Callable[[Any], None]

    def open(self) -> Steps:
        """Send the request and return the response, its stream still to come; raises what `answer` raises."""
        self.start()
        try:
            first = yield self.get()
        except BaseException:
            yield self.give_up()
            raise
        return taken(first)

    def hold(self) -> Steps:
        """Hold the call at the gate until the stream is over."""
        try:
            self.put((yield from self.answer()))
        except BaseException as error:
            self.put(final(error))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.over()

    def pass_on(self, response: Any, chunks: Any) -> Steps:
        """Hand on a stream as it comes, without the token counts that only we asked for."""
        reader = reader_of(self._call, response)
        self.connected(socket_of(response))
        try:
            self.put(self.response(response))
            while (chunk := (yield self.ways.next(chunks))) is not None:
                self.check()
                self.put(reader.feed(chunk) if reader else chunk)
            self.put(reader.finish() if reader else b"")
        finally:
            self.connected(None)

    def response(self, response: Any) -> Any:
        """Return a response like the provider's whose stream is what arrives here."""
        httpx = module_of(self._request)
        stream: Any = type("ArrivingStream", (ArrivingStream, httpx.SyncByteStream, httpx.AsyncByteStream), {})
        parts = {"headers": response.headers, "extensions": response.extensions}
        return httpx.Response(response.status_code, stream=stream(self), **parts)

    def start(self) -> None:
        """Begin to hold the call."""
        raise NotImplementedError

    def drop(self) -> None:
        """End the call at once; from any thread."""
        raise NotImplementedError

    def close(self) -> Any:
        """End the call and wait until it is settled; what is complete gets a moment to be so by its own counts."""
        raise NotImplementedError

    def give_up(self) -> Any:
        """End the call while its first word is awaited."""
        return self.close()

    def connected(self, found: socket.socket | None) -> None:
        """Take note of the socket that the stream arrives at; None once it may carry another call."""

    def over(self) -> None:
        """Take note that the call is settled."""


class ThreadStream(Streamed):
    """For plain code: a worker thread holds the call."""

    def __init__(self, ways: Ways, real: Any, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        super().__init__(ways, real, call, request)
        queue: SimpleQueue[Any] = SimpleQueue()
        self.get, self.put = queue.get, queue.put
        self._dropped = False
        self._over = threading.Event()
        self._socket: socket.socket | None = None
        self._lock = threading.RLock()  # a finaliser may come in here in the middle

    def start(self) -> None:
        WORKERS.run(Job(lambda: run(self.hold()), lambda job: None))

    def check(self) -> None:
        if self._dropped:
            raise StreamDroppedError("the stream was closed before its end")

    def connected(self, found: socket.socket | None) -> None:
        with self._lock:
            self._socket = found

    def over(self) -> None:
        self.drop()  # after the deadline the reader may still be waiting for bytes
        self._over.set()

    def close(self) -> None:
        if self._call.seen.ended:
            SYSTEM_CLOCK.wait(self._over, LAST_BYTES_SECONDS)
        if not self._over.is_set():
            self.drop()
            SYSTEM_CLOCK.wait(self._over, SETTLE_SECONDS)

    def give_up(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Break the connection, so that the provider stops; whoever reads it looks up at once."""
        self._dropped = True
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):  # it is closed already
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class TaskStream(Streamed):
    """For async code: a task holds the call."""

    def __init__(self, ways: Ways, real: Any, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        super().__init__(ways, real, call, request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.get, self.put = queue.get, queue.put_nowait
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(arun(self.hold()))

    async def close(self) -> None:
        task = self._task
        if task is None or task.done():
            return
        if self._call.seen.ended:
            await asyncio.wait({task}, timeout=LAST_BYTES_SECONDS)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=SETTLE_SECONDS)

    def drop(self) -> None:
        task = self._task
        if task is not None and not task.done():
            with suppress(RuntimeError):  # a loop that was closed runs nothing that could be cancelled
                self._loop.call_soon_threadsafe(task.cancel)


def streams(response: Any) -> bool:
    """Return whether a response is a stream of events, and no refusal."""
    kind: str = response.headers.get("content-type", "")
    return bool(response.status_code < 400) and kind.startswith(EVENT_STREAM)


def reader_of(call: ContainedCall, response: Any) -> StreamReader | None:
    """Return what reads the token counts; None if the stream came compressed, though nobody asked for that."""
    if call.sent is None or response.headers.get("content-encoding", "identity") != "identity":
        return None
    reader = StreamReader(call.sent.wire, hide_usage=call.sent.adds_usage)
    call.seen = reader.seen
    return reader


def socket_of(response: Any) -> socket.socket | None:
    """Return the socket beneath a response, if its transport shows it."""
    with suppress(AttributeError):  # not every transport has one
        found = response.extensions.get("network_stream").get_extra_info("socket")
        return found if isinstance(found, socket.socket) else None
    return None


# --- transports and clients -------------------------------------------------------------------------------------------


class ContainedTransport:
    """An httpx transport, for plain and for async code, that lets each request through the gate of the block around it.

    Args:
        real: The transport that sends.
        provider: Whose prices hold; by default OpenAI's or Anthropic's, by the interface that is spoken.
        output_cap: Output tokens that a request without a cap of its own may ask for.

    Raises:
        ConfigurationError: If the cap is not a positive whole number.
    """

    def __init__(self, real: Any, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP) -> None:
        if not is_count(output_cap):
            raise ConfigurationError(f"output_cap={output_cap!r} must be a whole number of tokens, 1 or more")
        self._real = real
        self._provider = provider
        self._output_cap = output_cap

    def handle_request(self, request: Any) -> Any:
        """Send a request if it may be sent.

        Raises:
            CallStopped: If not.
        """
        return run(self._handle(request, BLOCKING, ThreadStream))

    async def handle_async_request(self, request: Any) -> Any:
        """Do the same for async code."""
        return await arun(self._handle(request, AWAITING, TaskStream))

    def _handle(self, request: Any, ways: Ways, stream: type[Streamed]) -> Steps:
        block, real = ACTIVE.get(), self._real
        if block is not None:
            block.check(str(request.url), request.method)
        else:
            check_leaving(str(request.url), request.method)
        if block is None or is_unbilled(request.method, request.url.path):
            return (yield ways.send(real, request))
        call = ContainedCall(block, request, (yield ways.body(request)), self._provider, self._output_cap)
        if call.streaming:
            return (yield from stream(ways, real, call, request).open())
        try:
            return (yield from Exchange(ways, real, call, request).answer())
        except (UnpricedModelError, ConfigurationError) as error:
            raise final(error) from None

    def close(self) -> None:
        """Close the transport that sends."""
        self._real.close()

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._real.aclose()

    def __enter__(self) -> Self:
        self._real.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._real.__exit__(*raised)

    async def __aenter__(self) -> Self:
        await self._real.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._real.__aexit__(*raised)


AsyncContainedTransport = ContainedTransport


def is_count(value: object) -> bool:
    """Return whether a value is a positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


CONNECTIONS: Final = {"max_connections": 1000, "max_keepalive_connections": 100}
LOADED_BY_FIRST_CALL: Final = ("openai.resources.chat", "openai.resources.responses")
"""500 modules that the OpenAI package imports only when its first call is made; Anthropic's imports all with itself."""


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
    return _client("", transport, provider, output_cap, httpx)


def contained_async_http_client(
    transport: Any = None, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP, httpx: ModuleType | None = None
) -> Any:
    """Return an HTTP client for ``AsyncOpenAI(http_client=...)`` or ``AsyncAnthropic(http_client=...)``.

    Args and errors are those of `contained_http_client`.
    """
    return _client("Async", transport, provider, output_cap, httpx)


def _client(kind: str, transport: Any, provider: str, output_cap: int, httpx: ModuleType | None) -> Any:
    import_interfaces()
    module: Any = httpx or (module_of(transport) if transport is not None else sdk_module())
    if transport is None:
        transport = getattr(module, f"{kind}HTTPTransport")(limits=module.Limits(**CONNECTIONS))
    contained = ContainedTransport(transport, provider=provider, output_cap=output_cap)
    return getattr(module, f"{kind}Client")(transport=contained)


def import_interfaces() -> None:
    """Import what the SDK in use would import at its first call.

    There it would take a third of a second of the block's time, and hold up the event loop for as long.
    """
    if "openai" in sys.modules:
        for name in LOADED_BY_FIRST_CALL:
            with suppress(ImportError):  # a version that is laid out differently
                importlib.import_module(name)


def sdk_module() -> ModuleType:
    """Return httpx2, which the newer SDKs take, unless it is missing or the openai package in use does not know it."""
    openai = sys.modules.get("openai")
    newer = openai is None or hasattr(openai, "DefaultHttpx2Client")
    for name in ("httpx2", "httpx") if newer else ("httpx", "httpx2"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise MissingExtraError("contained_http_client", "openai")
