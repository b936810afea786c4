"""What LiteLLM may send within one admitted call: one request to a model, to the address it was meant for, once.

LiteLLM and the SDKs beneath it send a request again by themselves: after a connection that was reset, after a broken
answer, and, where LiteLLM drops the number of retries that it is given, after errors of the server. They follow
redirects, and take most keys along. The gate knows none of that, and the provider bills it. So within `one_exchange`
the clients of httpx, through which all of them send, follow no redirect, send no POST again that was not refused, and
ask the egress hooks about other addresses than the model's. Requests outside of it are not touched.
"""

from __future__ import annotations

import functools
import urllib.parse
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from watchkeeper.adapters.endpoint import check_remote
from watchkeeper.containment.calls import check_leaving
from watchkeeper.core.errors import EgressRefusedError, ProviderError

REFUSED: Final = 400
"""From this status on the provider has not done the work, and bills nothing."""

HEEDS: Final = "heeds_watchkeeper"
"""Marks a client's method that knows `one_exchange`."""

NO_RETRY: Final = "x-should-retry"
"""A header of answers by which OpenAI's SDK knows whether to try again."""


class _EndedError(BaseException):
    """Ends the exchange through everything that would catch an exception and send again."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__("the exchange is over")
        self.error = error


class _Exchange:
    """The requests of one call."""

    def __init__(self, address: str, provider: str) -> None:
        self.is_over = False
        self._provider = provider
        self._server = urllib.parse.urlsplit(address)[:2]
        self._sent: dict[str, Exception | None] = {}  # by URL; what went wrong, None where there is an answer

    @contextmanager
    def sending(self, request: Any) -> Generator[Callable[[Any], None]]:
        """Check a request before it is sent, and take note of how that went.

        Args:
            request: The request of httpx; the block sends it and hands on its answer.

        Raises:
            _EndedError: If it may not be sent.
        """
        url = str(request.url)
        once = request.method == "POST"
        if once and url in self._sent:
            raise _EndedError(self._sent[url])
        if urllib.parse.urlsplit(url)[:2] != self._server:
            try:
                check_remote(url)
                check_leaving(url, request.method)
            except Exception as error:
                if not once:
                    raise  # LiteLLM may do without what it wanted to look up
                raise _EndedError(error) from error

        def answered(response: Any) -> None:
            response.headers[NO_RETRY] = "false"
            if once and response.status_code < REFUSED:
                self._sent[url] = None

        try:
            yield answered
        except Exception as error:
            if once:
                self._sent[url] = error
            raise

    def redirected(self, response: Any) -> _EndedError:
        """Return the error for an answer that names another address."""
        status, target = response.status_code, response.headers.get("location")
        said = f"{self._provider} answered {status}: a redirect to {target}, which is not followed"
        said += ": give the final address as base_url"
        return _EndedError(ProviderError(said, fault="bad_request", provider=self._provider, status=status))

    def told(self, error: Exception | None) -> Exception:
        """Return the error with which the call ends; what was sent before may be on the bill."""
        if error is None or (isinstance(error, EgressRefusedError) and self._sent):
            said = error or "LiteLLM would have sent a second request in one call, which is not admitted"
            return ProviderError(f"{self._provider}: {said}", fault="bad_request", provider=self._provider, billed=True)
        return error


_EXCHANGE: ContextVar[_Exchange | None] = ContextVar("watchkeeper_litellm_exchange", default=None)


@contextmanager
def one_exchange(address: str, provider: str) -> Generator[None]:
    """Let one request to a model pass while the block runs.

    Args:
        address: The model's, about which the egress hooks were asked.
        provider: Named in errors.

    Raises:
        Exception: The first failure, if the request would have been sent again; or why another may not be sent.
    """
    exchange = _Exchange(address, provider)
    token = _EXCHANGE.set(exchange)
    try:
        yield
    except _EndedError as ended:
        error = exchange.told(ended.error)
        raise error from error.__cause__
    finally:
        exchange.is_over = True  # LiteLLM's own tasks, which report to others, keep the context
        _EXCHANGE.reset(token)


def guard_requests(httpx: Any) -> None:
    """Make the clients of httpx heed `one_exchange`; once in a process.

    Args:
        httpx: The module.
    """
    if not hasattr(httpx.AsyncClient.send, HEEDS):
        httpx.AsyncClient.send = _guarded_async(httpx.AsyncClient.send)
        httpx.Client.send = _guarded(httpx.Client.send)


def _guarded_async(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def guarded(client: Any, request: Any, **options: Any) -> Any:
        exchange = _EXCHANGE.get()
        if exchange is None or exchange.is_over:
            return await send(client, request, **options)
        with exchange.sending(request) as answered:
            response = await send(client, request, **{**options, "follow_redirects": False})
            if response.has_redirect_location:
                await response.aclose()
                raise exchange.redirected(response)
            answered(response)
        return response

    setattr(guarded, HEEDS, True)
    return guarded


def _guarded(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def guarded(client: Any, request: Any, **options: Any) -> Any:
        exchange = _EXCHANGE.get()
        if exchange is None or exchange.is_over:
            return send(client, request, **options)
        with exchange.sending(request) as answered:
            response = send(client, request, **{**options, "follow_redirects": False})
            if response.has_redirect_location:
                response.close()
                raise exchange.redirected(response)
            answered(response)
        return response

    setattr(guarded, HEEDS, True)
    return guarded
