"""One exchange over an httpx transport, whichever of its two modules (httpx, httpx2) the request comes from.

The request that leaves carries the cap that was granted and no longer timeout than its call has; what comes back is
made into an answer that can be read without the network. Errors leave here as a ProviderError with the original as its
cause, so that it is known whether somebody has to pay.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Mapping
from typing import Any, Final

from watchkeeper.adapters.contained_calls import ContainedCall
from watchkeeper.containment.call import Ticket
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ProviderError

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
    """Return the request to send for one admitted attempt."""
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
    status, (code, text) = response.status_code, provider_errors.describe(json_of(response))
    fault = provider_errors.classify(code, text, status)
    error = provider_errors.fault_error(
        fault,
        provider_errors.say(call.provider, status, text or code or response.reason_phrase),
        provider=call.provider,
        status=status,
        billed=fault == "timeout",
    )
    raise error


def json_of(response: Any) -> Any:
    """Return the JSON of a response, or None."""
    try:
        return response.json()
    except ValueError:
        return None


@contextlib.contextmanager
def translated(request: Any, provider: str) -> Generator[None]:
    """Turn the transport's errors into ours; the original is the cause."""
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
