"""Who may read the inspector's pages: this machine's user, through its own addresses alone unless another is bound.

Other web pages in the same browser can send requests to this machine, and other users of the machine can connect, so
being on loopback is not enough. A request is answered only if its host is an address of this machine (against DNS that
changes its mind) and it brings the secret: in the first address as ``?token=``, then as a cookie that no other site's
requests carry. The page may load nothing from elsewhere and run no script but its own. Nothing can be changed: every
method but GET and HEAD is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest
from random import SystemRandom
from typing import Final

from starlette.datastructures import MutableHeaders, URL
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watchkeeper.core.ids import RandomIds

LOOPBACK: Final = "127.0.0.1"
HOSTS: Final = ("127.0.0.1", "localhost")
ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})
"""What listens on every address of the machine: the name by which it is asked for cannot be known then."""

METHODS: Final = ("GET", "HEAD")
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def new_token() -> str:
    """Return a secret that nobody can guess."""
    return RandomIds(SystemRandom()).trace_id()


def hosts_of(address: str) -> tuple[str, ...]:
    """Return the hosts for which requests are answered, by the address that is listened on."""
    if address in ANY_ADDRESS:
        return ("*",)
    return (*HOSTS, f"[{address}]" if ":" in address else address)


class Guard:
    """Answers in place of the application what may not pass, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        """Guard an application.

        Args:
            app: What answers requests that may pass.
            token: The secret.
            cookie: The cookie's name; another one for each port, because cookies know no ports.
        """
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return what is answered to a request that does not pass, or None."""
        if request.method not in METHODS:
            return PlainTextResponse("read-only", 405, {"allow": ", ".join(METHODS)})
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            return self._welcome(request.url)
        if not self._is_token(request.cookies.get(self._cookie, "")):
            return PlainTextResponse("open the address that 'watchkeeper view' has printed, with its token", 403)
        return None

    def _is_token(self, given: str) -> bool:
        return compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _welcome(self, url: URL) -> Response:
        """Keep the secret in a cookie and go on without it in the address, so that it stays in no history."""
        answer = RedirectResponse("/" + url.path.lstrip("/\\"), 303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer
