"""One request of a contained block on its way: asked at the gate, sent, and answered, as a whole or as a stream.

What happens to a request is written once, as generators that yield what has to be waited for: `run` drives them for
plain code, where a yielded value is already there, and `arun` for async code, which awaits it; `Ways` are how each
does input and output. httpx and its successor httpx2 both work: the module of the request is used.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from watchkeeper.accounting.call_request import CLOSED_UNDER_WAY
from watchkeeper.adapters.reply_bounds import (
    MOST_EVENT_BYTES,
    MOST_STREAM_BYTES,
    MOST_WHOLE_BYTES,
    BodyBounds,
    encoding_of,
)
from watchkeeper.contained_sdk.calls import (
    REDIRECTIONS,
    CallStopped,
    ContainedCall,
    as_answer,
    as_whole,
    module_of,
    outgoing,
    translated,
    unpriced,
)
from watchkeeper.contained_sdk.jobs import stream_class
from watchkeeper.contained_sdk.reading import StreamReader
from watchkeeper.contained_sdk.traffic import LAST_BYTES_SECONDS, SETTLE_SECONDS
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, UnpricedModelError
from watchkeeper.core.workers import WORKERS, Job, call_in_loop

Steps = Generator[Any, Any, Any]
"""Yields what has to be waited for, and is sent the result."""

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
    """The input and output operations of plain or async code; their results are yielded to the driver.

    Attributes:
        body: Reads the body of a request.
        send: Sends a request over a transport.
        chunks: Begins to read the stream of a response; not yielded.
        next: Reads the next chunk, or None.
        close: Closes a response.
        admit: Passes a call and its work through the gate.
        loop: Returns the event loop that it needs, or None.
    """

    body: Callable[[Any], Any]
    send: Callable[[Any, Any], Any]
    chunks: Callable[[Any], Any]
    next: Callable[[Any], Any]
    close: Callable[[Any], Any]
    admit: Callable[[ContainedCall, Work], Any]
    loop: Callable[[], asyncio.AbstractEventLoop | None]


BLOCKING: Final = Ways(
    body=lambda request: request.read(),
    send=lambda real, request: real.handle_request(request),
    chunks=lambda response: iter(response.stream),
    next=lambda chunks: next(chunks, None),
    close=lambda response: response.close(),
    admit=lambda call, work: call.block.context.call(call.request, lambda ticket: run(work(ticket)), call.meter),
    loop=lambda: None,
)
AWAITING: Final = Ways(
    body=lambda request: request.aread(),
    send=lambda real, request: real.handle_async_request(request),
    chunks=lambda response: aiter(response.stream),
    next=lambda chunks: anext(chunks, None),
    close=lambda response: response.aclose(),
    admit=lambda call, work: call.block.context.acall(call.request, lambda ticket: arun(work(ticket)), call.meter),
    loop=asyncio.get_running_loop,
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
        """Send the request if the gate lets it through, and return the response; None if it was passed on as a stream.

        Raises:
            CallStopped: If it may not be sent.
            Exception: The error of the transport.
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
            if response.status_code == SWITCHED:
                return response
            try:
                chunks = ways.chunks(response)
                if self._call.streaming and streams(response, asked=True):
                    return (yield from self.pass_on(response, chunks))
                content, patience = bytearray(), Patience(ticket)
                bounds = BodyBounds(MOST_WHOLE_BYTES, encoding_of(response))
                while (chunk := (yield ways.next(chunks))) is not None:
                    patience.check()
                    for piece in bounds.decoded(chunk):
                        content += piece
                return as_answer(self._call, as_whole(request, response, bytes(content)))
            finally:
                yield ways.close(response)

    def check(self) -> None:
        """Raise if the answer is no longer wanted."""

    def pass_on(self, response: Any, chunks: Any) -> Steps:
        """Hand on a stream as it comes."""
        raise NotImplementedError


class Patience:
    """How long an answer may go on to arrive after its call was ended: a moment, in which its cost may become known."""

    def __init__(self, ticket: Ticket) -> None:
        """Begin to read the answer to a call."""
        self._ticket = ticket
        self._until: float | None = None

    def check(self) -> None:
        """Raise if it is over: a thread that reads what nobody wants any more ends."""
        if self._ticket.cancellation.is_cancelled:
            now = SYSTEM_CLOCK.monotonic()
            if self._until is None:
                self._until = now + SETTLE_SECONDS
            elif now > self._until:
                raise StreamDroppedError("the answer was still arriving when its call was over")


def final(error: BaseException) -> BaseException:
    """Return the error that the caller gets.

    If no such call can ever be admitted, it is a stop of the block, which no SDK takes for a reason to try again.
    """
    if isinstance(error, UnpricedModelError):
        return unpriced(error)
    if isinstance(error, StreamDroppedError):
        return CallStopped(CLOSED_UNDER_WAY)
    return CallStopped(None, error) if isinstance(error, ConfigurationError) else error


# --- streams ----------------------------------------------------------------------------------------------------------

SWITCHED: Final = 101
"""The status of a connection that is no longer HTTP, for example a websocket: it stays open, and has no body."""

EVENT_STREAM: Final = "text/event-stream"
STREAMED: Final = (EVENT_STREAM, "text/plain", "application/octet-stream", "application/x-ndjson")
"""Content types of what is read as a stream where one was asked for."""


INHERITED_STREAM: Final = (
    "this stream was opened before the process was forked, and the answer arrives in the process that opened it; make"
    " the request anew in this one"
)


class StreamDroppedError(Exception):
    """The caller closed the stream before its end, or the call was over."""


def taken(part: Any) -> Any:
    """Return what was in the queue of a stream, or raise it."""
    if isinstance(part, BaseException):
        raise part
    return part


class ArrivingStream:
    """The stream of a response, mixed with httpx's own stream classes; collecting it drops the call.

    A process that was forked meanwhile can neither read nor end it: it shares the connection with the one that does.
    """

    def __init__(self, streamed: Streamed) -> None:
        """Read from what arrives."""
        self._streamed = streamed
        self._process = os.getpid()

    def __iter__(self) -> Iterator[bytes]:
        self._check_process()
        return iter(lambda: taken(self._streamed.ask()), None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._check_process()
        while (chunk := taken(await self._streamed.ask())) is not None:
            yield chunk

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise CallStopped(None, ConfigurationError(INHERITED_STREAM))

    def close(self) -> None:
        """End the call of plain code."""
        if self._process == os.getpid():
            self._streamed.close()

    async def aclose(self) -> None:
        """End the call of async code."""
        if self._process == os.getpid():
            await self._streamed.close()

    def __del__(self) -> None:
        """Drop the call."""
        if self._process == os.getpid():
            self._streamed.drop()


class Streamed(Exchange):
    """A streamed answer: the call lasts as long as its stream.

    A thread or task of its own holds the call at the gate and reads the stream as fast as it comes; the caller takes
    the bytes from a queue as they arrive, and can be told to stop at any moment, also while nothing arrives. A thread
    reads only what the caller asks for where a connection is shared: other answers wait while it reads. A stream
    that is closed early, or is open when its block ends, is dropped at the provider too, and is charged what was
    reserved unless its token counts had come. In the queue are the response, then its bytes, then None; an exception at
    any place ends it.
    """

    get: Callable[[], Any]
    put: Callable[[Any], None]

    def __init__(self, ways: Ways, real: Any, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        super().__init__(ways, real, call, request)
        self._cut = False
        self._under_way = call.block.traffic.begin(call.block.context, ways.loop(), self)

    @property
    def complete(self) -> bool:
        """Whether its answer has come to its end, if not its connection."""
        return self._call.seen.ended

    def cut(self) -> None:
        """End the call because its block has ended."""
        self._cut = True
        self.drop()

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
            self.put(CallStopped(CLOSED_UNDER_WAY) if self._cut else final(error))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.over()

    def pass_on(self, response: Any, chunks: Any) -> Steps:
        """Hand on a stream as it comes, without the token counts that only we asked for."""
        reader = reader_of(self._call, response)
        bounds = BodyBounds(MOST_STREAM_BYTES, "", MOST_EVENT_BYTES, parsed=not encoding_of(response))
        self.connected(response)
        try:
            self.put(self.response(response))
            self.await_demand()
            while (chunk := (yield self.ways.next(chunks))) is not None:
                self.check()
                for piece in bounds.decoded(chunk):
                    self.put(reader.feed(piece) if reader else piece)
                self.await_demand()
            self.put(reader.finish() if reader else b"")
        finally:
            self.connected(None)

    def response(self, response: Any) -> Any:
        """Return a copy of the provider's response; its stream yields what arrives here."""
        httpx = module_of(self._request)
        stream = stream_class(ArrivingStream, httpx)
        parts = {"headers": response.headers, "extensions": response.extensions}
        return httpx.Response(response.status_code, stream=stream(self), **parts)

    def start(self) -> None:
        """Start to read the stream; the call is in flight until the stream ends."""
        raise NotImplementedError

    def drop(self) -> None:
        """End the call at once; from any thread."""
        raise NotImplementedError

    def close(self) -> Any:
        """End the call and wait until it is settled; a complete answer is given a moment to deliver its usage first."""
        raise NotImplementedError

    def give_up(self) -> Any:
        """End the call before its first part has arrived."""
        return self.close()

    def ask(self) -> Any:
        """Return the next part for the caller, who waits for it."""
        return self.get()

    def await_demand(self) -> None:
        """Wait until more is to be read."""

    def connected(self, response: Any) -> None:
        """Take note of the connection that the stream arrives by; None once it may carry another call."""

    def over(self) -> None:
        """Take note that the call is settled."""
        self._call.block.traffic.end(self._under_way)


class ThreadStream(Streamed):
    """For plain code: a worker thread holds the call."""

    def __init__(self, ways: Ways, real: Any, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        super().__init__(ways, real, call, request)
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.get = self._queue.get
        self.put = self._put
        self._dropped = False
        self._shared = False
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._threads: set[int] = set()
        self._socket: socket.socket | None = None
        self._lock = threading.RLock()  # a finaliser may come in here in the middle

    def start(self) -> None:
        WORKERS.run(Job(self._work, lambda job: None))

    def _work(self) -> None:
        self._threads.add(threading.get_ident())
        run(self.hold())

    def check(self) -> None:
        self._threads.add(threading.get_ident())
        if self._dropped:
            raise StreamDroppedError("the stream was closed before its end")

    def _put(self, part: Any) -> None:
        self._wanted.clear()  # before the caller can take it and ask for more
        self._queue.put(part)

    def ask(self) -> Any:
        if self._queue.empty():
            self._wanted.set()
        return self.get()

    def await_demand(self) -> None:
        if self._shared:
            if not self._dropped:
                self._wanted.wait()
            self.check()

    def connected(self, response: Any) -> None:
        with self._lock:
            self._shared = response is not None and is_shared(response)
            self._socket = None if response is None or self._shared else socket_of(response)

    def over(self) -> None:
        self.drop()  # after the deadline the reader may still be waiting for bytes
        self._over.set()
        super().over()

    def close(self) -> None:
        if threading.get_ident() in self._threads:  # a finaliser runs on this thread: waiting would deadlock
            self.drop()
            return
        if self._call.seen.ended:
            SYSTEM_CLOCK.wait(self._over, LAST_BYTES_SECONDS)
        if not self._over.is_set():
            self.drop()
            SYSTEM_CLOCK.wait(self._over, SETTLE_SECONDS)

    def give_up(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Break the connection, so that the provider stops; a reader that waits for bytes wakes at once.

        One that shares its connection wakes if it waits for the caller.
        """
        self._dropped = True
        self._wanted.set()
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):  # it is closed already
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class TaskStream(Streamed):
    """A streamed call for async code: a task of its own keeps the call open at the gate while the caller reads."""

    def __init__(self, ways: Ways, real: Any, call: ContainedCall, request: Any) -> None:
        """Prepare; nothing is sent yet."""
        super().__init__(ways, real, call, request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.get, self.put = queue.get, queue.put_nowait
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(arun(self.hold()))
        self._task.add_done_callback(lambda task: self.over())  # one that is cancelled at once never holds the call

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
            call_in_loop(self._loop, task.cancel)


def streams(response: Any, *, asked: bool = False) -> bool:
    """Return whether a response is a stream of events, and neither a refusal nor a redirect.

    Where a stream was asked for, some servers give it another type, or none.
    """
    kind: str = response.headers.get("content-type", "").lower()
    is_stream = kind.startswith(STREAMED) or not kind if asked else kind.startswith(EVENT_STREAM)
    return bool(response.status_code < REDIRECTIONS) and is_stream


def reader_of(call: ContainedCall, response: Any) -> StreamReader | None:
    """Return what reads the token counts; None if the stream is compressed without request."""
    if call.sent is None or encoding_of(response):
        return None
    reader = StreamReader(call.sent.wire, hide_usage=call.sent.adds_usage, copies=call.sent.copies)
    call.seen = reader.seen
    return reader


def is_shared(response: Any) -> bool:
    """Return whether other answers come by the same connection."""
    return bool(response.extensions.get("http_version") == b"HTTP/2")


def socket_of(response: Any) -> socket.socket | None:
    """Return the socket beneath a response, if its transport shows it."""
    with suppress(AttributeError):  # not every transport has one
        found = response.extensions.get("network_stream").get_extra_info("socket")
        return found if isinstance(found, socket.socket) else None
    return None
