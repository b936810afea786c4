"""HTTP clients for the official SDKs whose model calls pass the gate of the contained block around them.

They are given to an SDK by its own extension point (``http_client=``); nothing is patched. Inside a block every model
call is admitted before its bytes leave, also each retry of the SDK's; an answer is settled by its own token counts; a
stream stays a stream and is settled when it ends. Outside of any block requests pass untouched.

What happens to a request is written once, as generators that yield what has to be waited for: `run` drives them for
plain code, where a yielded value is already there, and `arun` for async code, which awaits it. `Blocking` and
`Awaiting` are the two ways to do input and output. httpx and its successor httpx2 serve alike: the module is that of
the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Final

from watchkeeper.adapters.wire import StreamReader
from watchkeeper.contained_sdk.calls import ACTIVE, CallStopped, ContainedCall, Posted, is_unbilled, unpriced
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, ProviderError, UnpricedModelError
from watchkeeper.core.workers import WORKERS, Job
from watchkeeper.runtime.run_models import DEFAULT_OUTPUT_CAP

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
class Blocking:
    """Input and output of plain code, over a transport that sends."""

    real: Any

    def body(self, request: Any) -> Any:
        return request.read()

    def send(self, request: Any) -> Any:
        return self.real.handle_request(request)

    def chunks(self, response: Any) -> Any:
        return iter(response.stream)

    def next(self, chunks: Any) -> Any:
        return next(chunks, None)

    def close(self, response: Any) -> Any:
        return response.close()

    def admit(self, call: ContainedCall, work: Work) -> Any:
        return call.block.context.call(call.request, lambda ticket: run(work(ticket)), call.meter)

    def stream(self, call: ContainedCall, request: Any) -> Streamed:
        return ThreadStream(self, call, request)


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Input and output of async code; each method returns an awaitable, except `chunks` and `stream`."""

    real: Any

    def body(self, request: Any) -> Any:
        return request.aread()

    def send(self, request: Any) -> Any:
        return self.real.handle_async_request(request)

    def chunks(self, response: Any) -> Any:
        return aiter(response.stream)

    def next(self, chunks: Any) -> Any:
        return anext(chunks, None)

    def close(self, response: Any) -> Any:
        return response.aclose()

    def admit(self, call: ContainedCall, work: Work) -> Any:
        return call.block.context.acall(call.request, lambda ticket: arun(work(ticket)), call.meter)

    def stream(self, call: ContainedCall, request: Any) -> Streamed:
        return TaskStream(self, call, request)


# --- one request ------------------------------------------------------------------------------------------------------


class AnyContainedTransport:
    """What `ContainedTransport` and `AsyncContainedTransport` share.

    Args:
        real: The transport that sends.
        provider: Whose prices hold; by default OpenAI's or Anthropic's, by the interface that is spoken.
        output_cap: Output tokens that a request without a cap of its own may ask for.

    Raises:
        ConfigurationError: If the cap is not a positive whole number.
    """

    ways: type[Blocking | Awaiting]

    def __init__(self, real: Any, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP) -> None:
        given: object = output_cap
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise ConfigurationError(f"output_cap={output_cap!r} must be a whole number of tokens, 1 or more")
        self._real = real
        self._io = self.ways(real)
        self._provider = provider
        self._output_cap = output_cap

    def _handle(self, request: Any) -> Steps:
        """Send a request if it may be sent."""
        block, io = ACTIVE.get(), self._io
        if block is not None:
            block.check(str(request.url), request.method)
        if block is None or is_unbilled(request.method, request.url.path):
            return (yield io.send(request))
        retries = request.headers.get(RETRY_HEADER, "0")
        retry = retries.isdecimal() and int(retries) > 0
        posted = Posted(str(request.url), request.url.path, (yield io.body(request)), retry)
        call = ContainedCall(block, posted, self._provider, self._output_cap)
        if call.streaming:
            return (yield from io.stream(call, request).open())
        try:
            return (yield from admitted(io, call, lambda ticket: exchange(io, call, request, ticket)))
        except (UnpricedModelError, ConfigurationError) as error:
            raise final(error) from None


class ContainedTransport(AnyContainedTransport):
    """An httpx transport that lets each request through the gate of the block around it."""

    ways = Blocking

    def handle_request(self, request: Any) -> Any:
        """Send a request if it may be sent.

        Raises:
            CallStopped: If not.
        """
        return run(self._handle(request))

    def close(self) -> None:
        """Close the transport that sends."""
        self._real.close()

    def __enter__(self) -> ContainedTransport:
        self._real.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._real.__exit__(*raised)


class AsyncContainedTransport(AnyContainedTransport):
    """The same for asyncio."""

    ways = Awaiting

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request if it may be sent.

        Raises:
            CallStopped: If not.
        """
        return await arun(self._handle(request))

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._real.aclose()

    async def __aenter__(self) -> AsyncContainedTransport:
        await self._real.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._real.__aexit__(*raised)


def admitted(io: Blocking | Awaiting, call: ContainedCall, work: Work) -> Steps:
    """Do the work of a call if the gate lets it through, and return the response; None if it was a stream."""
    outcome = yield io.admit(call, work)
    while call.degrades(outcome):
        outcome = yield io.admit(call, work)
    call.settle(outcome)
    return outcome.value if call.failure is None else call.failure


def exchange(
    io: Blocking | Awaiting, call: ContainedCall, request: Any, ticket: Ticket, streamed: Streamed | None = None
) -> Steps:
    """Send one admitted attempt and return the whole response; a stream is handed to ``streamed`` as it comes."""
    with translated(request, call.provider):
        response = yield io.send(outgoing(request, call, ticket))
        try:
            chunks = io.chunks(response)
            if streamed is not None and streams(response):
                return (yield from streamed.pass_on(response, chunks))
            content = bytearray()
            while (chunk := (yield io.next(chunks))) is not None:
                content += chunk
            return as_answer(call, as_whole(request, response, bytes(content)))
        finally:
            yield io.close(response)


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
    """The stream of a response, mixed with an httpx module's own stream class; dropped if nobody reads it any more."""

    def __init__(self, streamed: ThreadStream) -> None:
        """Read from what arrives."""
        self._streamed = streamed

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: taken(self._streamed.get()), None)

    def close(self) -> None:
        """End the call."""
        self._streamed.close()

    def __del__(self) -> None:
        """Drop the call."""
        self._streamed.give_up()


class AsyncArrivingStream:
    """The same for async code."""

    def __init__(self, streamed: TaskStream) -> None:
        """Read from what arrives."""
        self._streamed = streamed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := taken(await self._streamed.get())) is not None:
            yield chunk

    async def aclose(self) -> None:
        """End the call."""
        await self._streamed.give_up()

    def __del__(self) -> None:
        """Drop the call."""
        self._streamed.drop()


class Streamed:
    """A streamed answer: the call lasts as long as its stream.

    A thread or task of its own holds the call at the gate and reads the stream as fast as it comes; the caller takes
    the bytes from a queue as they arrive, and can be told to stop at any moment, also while nothing arrives. A stream
    that is closed early is dropped at the provider too, and is charged what was reserved unless its token counts had
    come. In the queue are the response, then its bytes, then None; an exception at any place ends it.
    """

    arriving: tuple[type[Any], str]
    get: Callable[[], Any]
    put: Callable[[Any], None]

    def __init__(self, io: Blocking | Awaiting, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        self._io = io
        self._call = call
        self._request = request

    def open(self) -> Steps:
        """Send the request and return the response, its stream still to come.

        Raises:
            CallStopped: If it may not be sent.
            Exception: What the transport raised.
        """
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
            self.put((yield from admitted(self._io, self._call, self._work)))
        except BaseException as error:
            self.put(final(error))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.over()

    def _work(self, ticket: Ticket) -> Steps:
        self.check()
        return exchange(self._io, self._call, self._request, ticket, self)

    def pass_on(self, response: Any, chunks: Any) -> Steps:
        """Hand on a stream as it comes, without the token counts that only we asked for."""
        reader = reader_of(self._call, response)
        self.connected(socket_of(response))
        try:
            self.put(self.response(response))
            while (chunk := (yield self._io.next(chunks))) is not None:
                self.check()
                self.put(reader.feed(chunk) if reader else chunk)
            self.put(reader.finish() if reader else b"")
        finally:
            self.connected(None)

    def response(self, response: Any) -> Any:
        """Return a response like the provider's whose stream is what arrives here."""
        httpx = module_of(self._request)
        own, base = self.arriving
        stream: Any = type(own.__name__, (own, getattr(httpx, base)), {})
        extensions = response.extensions
        return httpx.Response(
            response.status_code, headers=response.headers, stream=stream(self), extensions=extensions
        )

    def start(self) -> None:
        """Begin to hold the call."""
        raise NotImplementedError

    def give_up(self) -> Any:
        """End the call without reading it."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `StreamDroppedError` if nobody wants the stream any more."""

    def connected(self, found: socket.socket | None) -> None:
        """Take note of the socket that the stream arrives at; None once it may carry another call."""

    def over(self) -> None:
        """Take note that the call is settled."""


class ThreadStream(Streamed):
    """For plain code: a worker thread holds the call."""

    arriving = (ArrivingStream, "SyncByteStream")

    def __init__(self, io: Blocking, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        super().__init__(io, call, request)
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
        self.give_up()  # after the deadline the reader may still be waiting for bytes
        self._over.set()

    def close(self) -> None:
        """End the call; what is complete gets a moment to be settled by its own counts."""
        if self._call.seen.ended:
            SYSTEM_CLOCK.wait(self._over, LAST_BYTES_SECONDS)
        if not self._over.is_set():
            self.give_up()
            SYSTEM_CLOCK.wait(self._over, SETTLE_SECONDS)

    def give_up(self) -> None:
        """Break the connection, so that the provider stops; whoever reads it looks up at once."""
        self._dropped = True
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):  # it is closed already
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class TaskStream(Streamed):
    """For async code: a task holds the call."""

    arriving = (AsyncArrivingStream, "AsyncByteStream")

    def __init__(self, io: Awaiting, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        super().__init__(io, call, request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.get, self.put = queue.get, queue.put_nowait
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(arun(self.hold()))

    async def give_up(self) -> None:
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


# --- requests and responses of httpx --------------------------------------------------------------------------------

RETRY_HEADER: Final = "x-stainless-retry-count"
TIMEOUTS: Final = ("connect", "read", "write", "pool")
NEVER_SENT: Final = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol")
"""Errors after which nothing can have been billed."""


def module_of(value: Any) -> Any:
    """Return the module, httpx or httpx2, that a request or a transport comes from."""
    for base in type(value).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return importlib.import_module(name)
    return importlib.import_module("httpx")


def outgoing(request: Any, call: ContainedCall, ticket: Ticket) -> Any:
    """Return the request to send for one admitted attempt, with the cap that was granted and no longer timeouts."""
    httpx = module_of(request)
    headers = httpx.Headers(request.headers)
    headers.pop("content-length", None)
    if call.streaming:
        headers["accept-encoding"] = "identity"  # its token counts are read while it passes
    extensions = dict(request.extensions)
    if ticket.timeout is not None:
        extensions["timeout"] = bounded(extensions.get("timeout") or {}, ticket.timeout)
    return httpx.Request(request.method, request.url, headers=headers, content=call.body(ticket), extensions=extensions)


def bounded(timeouts: Mapping[str, float | None], most: float) -> dict[str, float]:
    """Return an SDK's timeouts, none of them longer than the call may take."""
    return {name: min(most, seconds) if (seconds := timeouts.get(name)) is not None else most for name in TIMEOUTS}


def as_whole(request: Any, response: Any, content: bytes) -> Any:
    """Return a response that is here as a whole."""
    return module_of(request).Response(
        response.status_code, headers=response.headers, content=content, extensions=response.extensions
    )


def as_answer(call: ContainedCall, response: Any) -> Any:
    """Return a whole response that is an answer, once its call knows what it cost.

    Raises:
        ProviderError: If it is a refusal; the call keeps the response for its caller.
    """
    if response.status_code < 400:
        call.answered(response.content)
        return response
    from watchkeeper.adapters import provider_errors

    if call.outlasts(provider_errors.retry_after(response.headers, SYSTEM_CLOCK)):
        response.headers["x-should-retry"] = "false"  # the SDKs look at it before they wait
    call.failure = response
    try:
        said = response.json()
    except ValueError:
        said = None
    status, (code, text) = response.status_code, provider_errors.describe(said)
    fault = provider_errors.classify(code, text, status)
    words = provider_errors.say(call.provider, status, text or code or response.reason_phrase)
    raise provider_errors.fault_error(fault, words, provider=call.provider, status=status, billed=fault == "timeout")


@contextlib.contextmanager
def translated(request: Any, provider: str) -> Generator[None]:
    """Turn the transport's errors into ours; the original is the cause, and it is known whether somebody has to pay."""
    httpx = module_of(request)
    try:
        yield
    except httpx.TransportError as error:
        kind = type(error).__name__
        raise ProviderError(
            f"{provider} at {request.url.host}: {kind}: {error}",
            fault="timeout" if isinstance(error, httpx.TimeoutException) else "connection",
            provider=provider,
            billed=kind not in NEVER_SENT,
        ) from error


# --- clients ----------------------------------------------------------------------------------------------------------

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
    module, real = _sending("HTTPTransport", transport, httpx)
    return module.Client(transport=ContainedTransport(real, provider=provider, output_cap=output_cap))


def contained_async_http_client(
    transport: Any = None, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP, httpx: ModuleType | None = None
) -> Any:
    """Return an HTTP client for ``AsyncOpenAI(http_client=...)`` or ``AsyncAnthropic(http_client=...)``.

    Args and errors are those of `contained_http_client`.
    """
    module, real = _sending("AsyncHTTPTransport", transport, httpx)
    return module.AsyncClient(transport=AsyncContainedTransport(real, provider=provider, output_cap=output_cap))


def _sending(kind: str, transport: Any, httpx: ModuleType | None) -> tuple[Any, Any]:
    """Return the httpx module, and the transport that sends."""
    import_interfaces()
    module: Any = httpx or (module_of(transport) if transport is not None else sdk_module())
    if transport is None:
        transport = getattr(module, kind)(limits=module.Limits(**CONNECTIONS))
    return module, transport


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
