"""HTTP clients for the official SDKs whose model calls pass the gate of the contained block around them.

They are given to an SDK by its own extension point (``http_client=``); nothing is patched. Inside a block every model
call is admitted before its bytes leave, also each retry of the SDK's; an answer is settled by its own token counts; a
stream stays a stream and is settled when it ends. Outside of any block requests pass untouched.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Generator
from types import ModuleType
from typing import Any, Final

from watchkeeper.adapters.contained_calls import (
    ACTIVE,
    CallStopped,
    ContainedCall,
    Containment,
    Posted,
    is_unbilled,
    unpriced,
)
from watchkeeper.adapters.contained_streams import AsyncStreamed, Streamed
from watchkeeper.adapters.http_exchange import as_answer, as_whole, module_of, outgoing, translated
from watchkeeper.containment.call import Ticket
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, UnpricedModelError
from watchkeeper.runtime.model_line import DEFAULT_OUTPUT_CAP

RETRY_HEADER: Final = "x-stainless-retry-count"
CONNECTIONS: Final = {"max_connections": 1000, "max_keepalive_connections": 100}


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
    module: Any = httpx or (module_of(transport) if transport is not None else sdk_module())
    real = transport if transport is not None else module.HTTPTransport(limits=module.Limits(**CONNECTIONS))
    return module.Client(transport=ContainedTransport(real, provider=provider, output_cap=output_cap))


def contained_async_http_client(
    transport: Any = None, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP, httpx: ModuleType | None = None
) -> Any:
    """Return an HTTP client for ``AsyncOpenAI(http_client=...)`` or ``AsyncAnthropic(http_client=...)``.

    Args and errors are those of `contained_http_client`.
    """
    module: Any = httpx or (module_of(transport) if transport is not None else sdk_module())
    real = transport if transport is not None else module.AsyncHTTPTransport(limits=module.Limits(**CONNECTIONS))
    return module.AsyncClient(transport=AsyncContainedTransport(real, provider=provider, output_cap=output_cap))


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
