"""The server of ``watchkeeper view``: the built page, and what each screen shows as JSON. It changes nothing."""

from __future__ import annotations

import errno
import mimetypes
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from typing import Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.core.text import clipped
from watchkeeper.inspector.compare_view import compare_view
from watchkeeper.inspector.guarding import ANY_ADDRESS, LOOPBACK, Guard, hosts_of, new_token
from watchkeeper.inspector.event_view import event_view
from watchkeeper.inspector.following import Recordings, follow
from watchkeeper.inspector.run_view import run_head, run_view
from watchkeeper.inspector.state_view import state_view
from watchkeeper.inspector.story import Tells
from watchkeeper.inspector.runs_view import runs_view
from watchkeeper.store.run_store import RunStore

PAGE: Final = ("index.html", "page.js", "page.css")
"""The files of the built page; nothing else is handed out."""

NOT_FOUND: Final = 404
IPV6: Final = 6
LAST_PORT: Final = 65_535
LONGEST_NUMBER: Final = 18
"""Digits of the largest number of an event that is looked for."""


def application(store: RunStore, tells: Tells, token: str, port: int = 0, address: str = LOOPBACK) -> ASGIApp:
    """Return the application that answers for a store.

    Args:
        store: The runs.
        tells: Returns the line of an event in words, given its tag and JSON.
        token: The secret that a request must bring.
        port: Where it is served.
        address: The address that is listened on.
    """

    def runs(_: Request) -> msgspec.Struct:
        return runs_view(store)

    recordings = Recordings(store, tells)

    def run(request: Request) -> msgspec.Struct:
        return run_view(store, request.path_params["run_id"], tells)

    def compare(request: Request) -> msgspec.Struct:
        return compare_view(store, request.path_params["one"], request.path_params["other"])

    def head(request: Request) -> msgspec.Struct:
        recording, _ = recordings.of(request.path_params["run_id"])
        return run_head(recording, whole=False)

    def event(request: Request) -> msgspec.Struct:
        recording, _ = recordings.of(request.path_params["run_id"])
        seq, whole = number_in(request), "all" in request.query_params
        return event_view(store, recording.run.run_id, seq, recording.position(seq), whole=whole)

    def state(request: Request) -> msgspec.Struct:
        recording, _ = recordings.of(request.path_params["run_id"])
        return state_view(store, recording.run.run_id, number_in(request))

    async def live(request: Request) -> Response:
        last_id = request.headers.get("last-event-id", "")
        pieces = follow(recordings, request.path_params["run_id"], last_id)
        return StreamingResponse(pieces, media_type="text/event-stream")

    routes = [
        Route("/", partial(_file, "index.html")),
        *(Route(f"/{name}", partial(_file, name)) for name in PAGE),
        Route("/api/runs", partial(_json, runs)),
        Route("/api/runs/{run_id}", partial(_json, run)),
        Route("/api/compare/{one}/{other}", partial(_json, compare)),
        Route("/api/runs/{run_id}/head", partial(_json, head)),
        Route("/api/runs/{run_id}/live", live),
        Route("/api/runs/{run_id}/events/{seq}", partial(_json, event)),
        Route("/api/runs/{run_id}/state/{seq}", partial(_json, state)),
    ]
    guarded = Guard(Starlette(routes=routes), token, f"watchkeeper_{port}")
    return TrustedHostMiddleware(guarded, allowed_hosts=list(hosts_of(address)), www_redirect=False)


def number_in(request: Request) -> int:
    """Return the number of an event in the address of a request.

    Raises:
        StoreError: If there is none, or one that no run can have.
    """
    text: str = request.path_params["seq"]
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER):
        raise StoreError(f"{clipped(text, LONGEST_NUMBER)} is no number of an event")
    return int(text)


async def _file(name: str, request: Request) -> Response:
    content = files("watchkeeper.inspector").joinpath("page", name).read_bytes()
    return Response(content, media_type=mimetypes.guess_type(name)[0])


async def _json(view: Callable[[Request], msgspec.Struct], request: Request) -> Response:
    """Answer with a view, made on a worker thread because it reads files; or with why there is none."""
    try:
        content, status = msgspec.json.encode(await run_in_threadpool(view, request)), 200
    except StoreError as error:
        content, status = msgspec.json.encode({"error": str(error)}), NOT_FOUND
    return Response(content, status, media_type="application/json")


def listen(port: int, address: str = LOOPBACK) -> socket.socket:
    """Return a socket that listens; port 0 takes any that is free.

    Args:
        port: The port.
        address: An address of this machine.

    Raises:
        ConfigurationError: If the port is taken or may not be used, or the address is none of this machine.
    """
    try:
        family = socket.AF_INET6 if ip_address(address).version == IPV6 else socket.AF_INET
    except ValueError:
        raise ConfigurationError(f"--bind={address!r} must be an address such as 192.168.0.7 or 0.0.0.0") from None
    if not 0 <= port <= LAST_PORT:
        raise ConfigurationError(f"--port={port} cannot be used: ports are from 1 to {LAST_PORT}; 0 takes any")
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = error.errno
        if reason == errno.EADDRNOTAVAIL:
            raise ConfigurationError(
                f"--bind={address} is no address of this machine; name one that it has, or 0.0.0.0 for all of them"
            ) from error
        why = "is taken by another program" if reason == errno.EADDRINUSE else f"cannot be used: {error}"
        raise ConfigurationError(f"--port={port} {why}; name another one, or none for any that is free") from error
    return listener


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is about to run.

    Attributes:
        address: Its address with the token.
        server: What answers.
        listener: Where it listens; closed at the end.
    """

    address: str
    server: uvicorn.Server
    listener: socket.socket

    def run(self) -> None:
        """Serve until Ctrl-C, or until it is told to exit."""
        with self.listener:
            self.server.run(sockets=[self.listener])


def served(store: RunStore, tells: Tells, listener: socket.socket) -> Served:
    """Return a server for a store.

    Args:
        store: The runs.
        tells: Returns the line of an event in words.
        listener: Where it is served.
    """
    token, (host, port) = new_token(), listener.getsockname()[:2]
    settings = uvicorn.Config(
        application(store, tells, token, port, host),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,  # a page that follows a run would keep it for ever
    )
    name = socket.gethostname() if host in ANY_ADDRESS else f"[{host}]" if ":" in host else host
    return Served(f"http://{name}:{port}/?token={token}", uvicorn.Server(settings), listener)
