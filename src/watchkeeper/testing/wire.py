"""A loopback HTTP server that answers by script, for tests and benchmarks of anything that calls a provider.

A script says what to answer in words that are the same for every provider: a sequence of answers and faults, used up
one per request, or a function from the request's number and body to one of them. A `FakeProvider` words it as its
provider does; running out of script is an error that it reports. It speaks HTTP/1.1 over asyncio with no framework in
between, so that it costs less time than the code that it is used to measure. Every request is recorded, and every
error of the script. A fault is scripted, never random: a connection that breaks where the script says, or an answer
that never comes. It listens on 127.0.0.1 only.
"""

from __future__ import annotations

import asyncio
import difflib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple, Self, get_args

import msgspec

from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import ToolCall
from watchkeeper.core.usage import TokenUsage

HEAD_END: Final = b"\r\n\r\n"
PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
JSON: Final = "application/json"
HANG_SECONDS: Final = 60.0
"""How long an answer hangs, in real seconds; then the connection is closed, so that no test waits for ever."""

FIRST_JUMP: Final = 0.05
NEXT_JUMP: Final = 1.0
"""Real seconds until the test's clock jumps, and between its jumps: the client must have had the time to react."""

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as it arrived.

    Attributes:
        method: For example ``POST``.
        path: Path with its query.
        headers: By lower-case name; of repeated ones the last.
        body: The body's bytes.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body."""
        return msgspec.json.decode(self.body)


@dataclass(frozen=True, slots=True)
class WireReply:
    """One answer.

    Attributes:
        status: HTTP status.
        headers: Sent beside content type and length.
        body: The whole body, if ``parts`` is empty.
        parts: Pieces of a chunked body, each sent on its own.
        content_type: Content type of the body.
        delay: Seconds before anything is sent, on the event loop's own clock.
        pause: Seconds between the parts, and before the end.
        breaks: Close the connection when everything given was sent, without ending the body.
        hangs: Send nothing at all and keep the connection open, for at most `HANG_SECONDS`.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    parts: Sequence[bytes] = ()
    content_type: str = JSON
    delay: float = 0.0
    pause: float = 0.0
    breaks: bool = False
    hangs: bool = False

    def head(self) -> bytes:
        """Return status line and headers."""
        lines = [f"HTTP/1.1 {self.status} {PHRASES.get(self.status, 'Unknown')}", f"content-type: {self.content_type}"]
        if self.parts:
            lines.append("transfer-encoding: chunked")
        else:
            # A broken answer promises more than it sends.
            lines.append(f"content-length: {len(self.body) + (64 if self.breaks else 0)}")
        lines.extend(f"{name}: {value}" for name, value in self.headers.items())
        return "\r\n".join(lines).encode() + HEAD_END


Answer = Callable[[WireRequest], WireReply]


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> WireReply:
    """Return an answer in JSON."""
    return WireReply(status=status, headers=headers or {}, body=msgspec.json.encode(value))


class WireServer:
    """A server on 127.0.0.1 that asks ``answer`` what to say.

    Used with ``async with`` it runs on the running loop; used with ``with`` it runs on a thread and loop of its own.

    Args:
        answer: Called with each request on the server's loop; returns at once.
        record: Whether to keep the requests; False is for benchmarks of long runs.
        clock: The test's clock. While an answer hangs, nothing else would move it: it jumps to its next timer, until
            the client's own time is over.
    """

    def __init__(self, answer: Answer, *, record: bool = True, clock: TestClock | None = None) -> None:
        self.requests: list[WireRequest] = []
        self.errors: list[Exception] = []
        self.connections = 0
        self._answer = answer
        self._record = record
        self.clock = clock
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        if self._server is None:
            raise RuntimeError("the fake server is not running: use it with `with` or `async with`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, from any loop, until a condition on its requests or connections holds."""
        if self._loop not in (None, asyncio.get_running_loop()):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.until(condition), self._loop))
        elif not condition():
            future = asyncio.get_running_loop().create_future()
            self._watchers.append((condition, future))
            await future

    def _changed(self) -> None:
        for watcher in list(self._watchers):
            condition, future = watcher
            if future.done() or condition():
                self._watchers.remove(watcher)
                if not future.done():
                    future.set_result(None)

    async def start(self, port: int = 0) -> None:
        """Listen on a free port, or on the given one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        await asyncio.sleep(0)  # a connection that was just accepted is made known
        self.drop_connections()
        await server.wait_closed()
        await self.until(lambda: not self._open)

    def drop_connections(self) -> None:
        """Close every open connection, as a provider's load balancer sometimes does."""
        for connection in list(self._open):
            connection.drop()

    def handle(self, request: WireRequest) -> WireReply:
        """Record a request and return what to answer."""
        if self._record:
            self.requests.append(request)
            self._changed()
        return self._answer(request)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        started = threading.Event()

        def serve() -> None:
            loop = asyncio.new_event_loop()
            self._loop = loop
            loop.run_until_complete(self.start())
            started.set()
            loop.run_forever()
            loop.run_until_complete(self.stop())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        self._thread = threading.Thread(target=serve, name="fake-provider", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def opened(self, connection: _Connection) -> None:
        self.connections += 1
        self._open.add(connection)

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._changed()


class _Connection(asyncio.Protocol):
    """One connection; requests on it are answered one after the other."""

    def __init__(self, server: WireServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: WireRequest | None = None
        self._busy = False
        self._hanging: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._hanging is not None:
            self._hanging.cancel()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _next(self) -> None:
        """Answer the next request, if it is here as a whole and none is being answered."""
        if self._busy or self._transport is None:
            return
        if self._head is None:
            end = self._buffer.find(HEAD_END)
            if end < 0:
                return
            self._head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + len(HEAD_END)]
        length = int(self._head.headers.get("content-length", "0"))
        if len(self._buffer) < length:
            return
        request = replace(self._head, body=bytes(memoryview(self._buffer)[:length]))
        del self._buffer[:length]
        self._head = None
        try:
            reply = self._server.handle(request)
        except Exception as error:
            self._server.errors.append(error)
            reply = json_reply({"error": {"message": f"the fake server failed: {error!r}"}}, 500)
        if reply.hangs:
            self._busy = True
            loop = asyncio.get_running_loop()
            self._hang(loop, loop.time() + HANG_SECONDS, FIRST_JUMP)
        elif reply.delay or reply.parts:
            self._busy = True
            asyncio.get_running_loop().call_later(reply.delay, self._send, reply)
        else:
            self._send(reply)

    def _hang(self, loop: asyncio.AbstractEventLoop, until: float, wait: float) -> None:
        """Stay silent; move the test's clock on, until the client gives up."""
        if self._server.clock is None:
            self._hanging = loop.call_at(until, self.drop)
            return

        def on() -> None:
            if self._server.clock is not None and loop.time() < until:
                self._server.clock.jump()
                self._hang(loop, until, NEXT_JUMP)
            else:
                self.drop()

        self._hanging = loop.call_later(wait, on)

    def _send(self, reply: WireReply) -> None:
        if self._transport is None:
            return
        self._transport.write(reply.head() + (b"" if reply.parts else reply.body))
        if reply.parts:
            self._send_part(reply, 0)
        else:
            self._done(reply)

    def _send_part(self, reply: WireReply, index: int) -> None:
        if self._transport is None:
            return
        if index < len(reply.parts):
            part = reply.parts[index]
            self._transport.write(b"%x\r\n%s\r\n" % (len(part), part))
            # At the earliest in the next turn of the loop, so that a client sees the parts one by one.
            asyncio.get_running_loop().call_later(reply.pause, self._send_part, reply, index + 1)
            return
        if not reply.breaks:
            self._transport.write(b"0\r\n\r\n")
        self._done(reply)

    def _done(self, reply: WireReply) -> None:
        self._busy = False
        if reply.breaks:
            self.drop()
        else:
            self._next()


def _parse_head(head: bytes) -> WireRequest:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    fields = (line.partition(":") for line in lines)
    return WireRequest(method, path, {name.strip().lower(): value.strip() for name, _, value in fields}, b"")


# --- scripts ----------------------------------------------------------------------------------------------------------

SOME_TOKENS: Final = TokenUsage(input_tokens=10, output_tokens=5)

FaultKind = (
    Literal["rate_limit", "quota", "overloaded", "auth", "context_full", "bad_request", "blocked", "server"]
    | Literal["broken", "unfinished", "hang", "garbage"]
)
FAULTS: Final[tuple[str, ...]] = tuple(name for kinds in get_args(FaultKind) for name in get_args(kinds))


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer.

    Attributes:
        text: Visible text.
        calls: Tool calls.
        reasoning: Visible reasoning.
        refusal: Text of a refusal; the answer then is one.
        cut: True if the output cap ended the answer.
        filtered: True if a content filter ended the answer.
        usage: Tokens to report, in our terms.
        delay: Seconds until the first byte.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    cut: bool = False
    filtered: bool = False
    usage: TokenUsage = SOME_TOKENS
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure.

    Attributes:
        kind: Which one. ``broken`` cuts the connection in the middle of an answer, ``unfinished`` ends a stream in good
            order but too early, ``garbage`` is not JSON, ``hang`` is silence; the others are errors that the provider
            reports.
        headers: Sent with it, for example ``retry-after``.
        midway: For a streamed answer: report it inside the stream, after the first text.
        message: Replaces the provider's usual words.
    """

    kind: FaultKind
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    midway: bool = False
    message: str = ""

    def __post_init__(self) -> None:
        """Refuse a fault that does not exist.

        Raises:
            ConfigurationError: With the nearest that does.
        """
        if self.kind not in FAULTS:
            near = difflib.get_close_matches(str(self.kind), FAULTS, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FAULTS)}"
            raise ConfigurationError(f"there is no fault {self.kind!r}; {meant}")


Step = Reply | Fault
Script = Sequence[Step] | Callable[[int, Any], Step]


def say(text: str, **details: Any) -> Reply:
    """Return an answer in text."""
    return Reply(text=text, **details)


def call(name: str, arguments: Mapping[str, Any] | str, call_id: str = "call_1", **details: Any) -> Reply:
    """Return an answer that asks for one tool call; arguments given as text go out as they are."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return Reply(calls=(ToolCall(call_id, name, text),), **details)


class Scripted:
    """Returns the steps of a script one by one."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.used = 0

    def next(self, body: Any) -> Step | None:
        """Return the next step, or None if there is none left."""
        number = self.used
        self.used += 1
        if callable(self._script):
            return self._script(number, body)
        return self._script[number] if number < len(self._script) else None

    def assert_complete(self) -> None:
        """Check that every step of the script was used, and nothing beyond it was asked.

        Raises:
            AssertionError: If not.
        """
        if not callable(self._script) and self.used != len(self._script):
            raise AssertionError(f"the script has {len(self._script)} steps and {self.used} requests came")


# --- providers --------------------------------------------------------------------------------------------------------

BEGUN: Final = Reply(text="The answer begins")
GARBAGE: Final = b"<html>Bad gateway</html>"


@dataclass(frozen=True, slots=True)
class Wording:
    """How an interface words the answer to one request: whole, as events, and as the event of a fault midway."""

    whole: Callable[[Reply], Mapping[str, Any]]
    events: Callable[[Reply], Iterable[bytes]]
    failing: Callable[[Fault], bytes]


class ErrorRow(NamedTuple):
    """An error as a provider reports it."""

    status: int
    type: str
    code: str | None
    message: str


def error_table(rows: str) -> Mapping[str, ErrorRow]:
    """Return errors by fault, from two lines each: status, fault, type and perhaps a code; then the message."""
    lines = rows.strip().splitlines()
    errors: dict[str, ErrorRow] = {}
    for head, message in zip(lines[::2], lines[1::2], strict=True):
        status, fault, type_, *code = head.split()
        errors[fault] = ErrorRow(int(status), type_, code[0] if code else None, message.strip())
    return errors


class FakeProvider(WireServer):
    """A server to give to a provider's client as ``base_url``.

    Args:
        script: What to answer, request by request.
        key: The only key that is accepted; None accepts any.
        strict: Whether to refuse what the real provider refuses.
        record: Whether to keep the requests.
        clock: The test's clock; see `WireServer`.
    """

    prefix: str
    errors_by_fault: Mapping[str, ErrorRow]
    id_header: str
    no_json: str

    def __init__(
        self,
        script: Script,
        *,
        key: str | None = None,
        strict: bool = True,
        record: bool = True,
        clock: TestClock | None = None,
    ) -> None:
        super().__init__(self._reply, record=record, clock=clock)
        self.script = Scripted(script)
        self._key = key
        self._strict = strict

    @property
    def base_url(self) -> str:
        """The address for a client."""
        return self.url + self.prefix

    def bodies(self) -> list[dict[str, Any]]:
        """Return the decoded bodies of all requests so far."""
        return [request.json() for request in self.requests]

    def refusal(self, request: WireRequest, key: str | None) -> WireReply | None:
        """Return the answer to a request without the right key, or to no model at all; None if it is fine."""
        raise NotImplementedError

    def problem(self, path: str, body: dict[str, Any]) -> str | None:
        """Return what the real provider refuses in a request."""
        raise NotImplementedError

    def wording(self, path: str, body: dict[str, Any], number: int) -> Wording:
        """Return how the answer to a request is worded."""
        raise NotImplementedError

    def error_body(self, row: ErrorRow, message: str) -> dict[str, Any]:
        """Return the body of an error; a message of its own replaces the usual one."""
        raise NotImplementedError

    def error(
        self, kind: str, message: str = "", status: int = 0, headers: Mapping[str, str] | None = None
    ) -> WireReply:
        """Return an error as an answer of its own."""
        row = self.errors_by_fault[kind]
        headers = {self.id_header: "req_error", **(headers or {})}
        return json_reply(self.error_body(row, message), status or row.status, headers)

    def _reply(self, request: WireRequest) -> WireReply:
        refused = self.refusal(request, self._key)
        if refused is not None:
            return refused
        try:
            body: dict[str, Any] = request.json()
        except msgspec.DecodeError:
            return self.error("bad_request", self.no_json)
        problem = self.problem(request.path, body) if self._strict else None
        if problem:
            return self.error("bad_request", problem)
        step = self.script.next(body)
        number = self.script.used
        if step is None:
            return self.error("server", f"the script has no answer for request {number}")
        reply = self._worded(step, self.wording(request.path, body, number), bool(body.get("stream")))
        return reply if reply.hangs or reply.headers else replace(reply, headers={self.id_header: f"req_{number}"})

    def _worded(self, step: Step, wording: Wording, streaming: bool) -> WireReply:
        """Return what to send for one step of a script."""
        if isinstance(step, Reply):
            if streaming:
                return _stream(wording.events(step), delay=step.delay)
            return WireReply(body=msgspec.json.encode(wording.whole(step)), delay=step.delay)
        if step.kind == "hang":
            return WireReply(hangs=True)
        if step.kind == "garbage":
            parts = [b"event: message_start\ndata: " + GARBAGE + b"\n\n"]
            return _stream(parts) if streaming else WireReply(body=GARBAGE)
        # After half of the events of a stream, text has begun and no event that ends the answer has been sent.
        events = list(wording.events(BEGUN))
        half = events[: len(events) // 2]
        if step.kind in ("broken", "unfinished"):
            if streaming:
                return _stream(half, breaks=step.kind == "broken")
            return WireReply(body=msgspec.json.encode(wording.whole(BEGUN))[:40], breaks=True)
        if step.midway:
            return _stream([*half, wording.failing(step)])
        return self.error(step.kind, step.message, headers=step.headers)


def _stream(parts: Iterable[bytes], *, delay: float = 0.0, breaks: bool = False) -> WireReply:
    return WireReply(parts=list(parts), content_type=EVENT_STREAM, delay=delay, breaks=breaks)


def event(fields: Mapping[str, Any]) -> bytes:
    """Return a server-sent event; one with a type is named by it."""
    name = b"event: %s\n" % str(fields["type"]).encode() if "type" in fields else b""
    return name + b"data: %s\n\n" % msgspec.json.encode(fields)


def pieces(text: str, length: int = 8) -> list[str]:
    """Cut a text into pieces, as streams do."""
    return [text[start : start + length] for start in range(0, len(text), length)]


def subschemas(
    schema: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield a schema and every schema in it, each with its path."""
    yield path, dict(schema)
    named: dict[str, dict[str, Any]] = {**(schema.get("properties") or {}), **(schema.get("$defs") or {})}
    for name, part in named.items():
        yield from subschemas(part, (*path, name))
    if isinstance(schema.get("items"), dict):
        yield from subschemas(schema["items"], (*path, "items"))
    options: list[dict[str, Any]] = schema.get("anyOf") or []
    for option in options:
        yield from subschemas(option, path)
