"""HTTP clients for the official SDKs whose model calls pass the gate of the contained block around them.

They are given to an SDK by its own extension point (``http_client=``); nothing is patched. Inside a block every model
call is admitted before its bytes leave, also each retry of the SDK's; an answer is settled by its own token counts; a
stream stays a stream and is settled when it ends. Outside of any block requests pass untouched.
"""

from __future__ import annotations

import importlib
import importlib.util
import ipaddress
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, Self
from urllib.request import getproxies

from watchkeeper.contained_sdk.addresses import address_of
from watchkeeper.contained_sdk.calls import (
    CallStopped,
    ContainedCall,
    Containment,
    for_request,
    is_part_of_model_call,
    module_of,
    unencoded,
)
from watchkeeper.contained_sdk.exchange import (
    AWAITING,
    BLOCKING,
    Exchange,
    Steps,
    StreamDroppedError,
    Streamed,
    TaskStream,
    ThreadStream,
    Ways,
    arun,
    final,
    run,
    streams,
)
from watchkeeper.contained_sdk.jobs import server_of
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, UnpricedModelError
from watchkeeper.core.quantities import is_whole
from watchkeeper.core.secrets import hold_headers, hold_url
from watchkeeper.asking.models import DEFAULT_OUTPUT_CAP


class ContainedTransport:
    """An httpx transport, for plain and for async code, that lets each request through the gate of the block around it.

    Args:
        real: The transport that sends.
        provider: The provider whose prices apply; by default OpenAI or Anthropic, by the interface.
        output_cap: Output tokens that a request without a cap of its own may ask for.

    Raises:
        ConfigurationError: If the cap is not a positive whole number.
    """

    def __init__(self, real: Any, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP) -> None:
        if not is_whole(output_cap, 1):
            raise ConfigurationError(f"output_cap={output_cap!r} must be a whole number of tokens, 1 or more")
        self._real = real
        self._provider = provider
        self._output_cap = output_cap

    def handle_request(self, request: Any) -> Any:
        """Send a request, inside a block only if the gate admits it.

        Raises:
            CallStopped: If not.
        """
        return run(self._handle(request, BLOCKING, ThreadStream))

    async def handle_async_request(self, request: Any) -> Any:
        """Do the same for async code."""
        return await arun(self._handle(request, AWAITING, TaskStream))

    def _handle(self, request: Any, ways: Ways, stream: type[Streamed]) -> Steps:
        block = for_request()
        if block is None:
            return (yield ways.send(self._real, request))
        block.traffic.pass_by()
        try:
            return (yield from self._contain(request, ways, stream, block))
        except CallStopped as refusal:
            block.traffic.refuse(block.context, refusal)
            raise

    def _contain(self, request: Any, ways: Ways, stream: type[Streamed], block: Containment) -> Steps:
        """Send a request of a block if the gate admits it."""
        hold_headers(request.headers, passing=True)  # before anything is said of it: a refusal names its address
        hold_url(str(request.url), passing=True)
        try:
            address = address_of(request)
        except ConfigurationError as error:
            raise CallStopped(None, error) from None
        for url in address.urls:
            block.check(url, address.method)
        if is_part_of_model_call(block):
            return (yield ways.send(self._real, request))
        if address.purpose == "free":
            return (yield from self._pass(request, ways, block))
        call = ContainedCall(block, request, (yield ways.body(request)), address, self._provider, self._output_cap)
        if call.streaming:
            return (yield from stream(ways, self._real, call, request).open())
        under_way = block.traffic.begin(block.context, ways.loop())
        try:
            return (yield from Exchange(ways, self._real, call, request).answer())
        except (UnpricedModelError, ConfigurationError, StreamDroppedError) as error:
            raise final(error) from None
        finally:
            block.traffic.end(under_way)

    def _pass(self, request: Any, ways: Ways, block: Containment) -> Steps:
        """Send a request that is not counted; the answer to one for a job tells what the job cost."""
        retrieval = block.jobs.asked_for(request.url.path, server_of(request.url))
        if retrieval is None:
            return (yield ways.send(self._real, request))
        response = yield ways.send(self._real, unencoded(request))
        return retrieval.response(module_of(request), response, streams=streams(response))

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


CONNECTIONS: Final = {"max_connections": 1000, "max_keepalive_connections": 100}
LOADED_BY_FIRST_CALL: Final = ("openai.resources.chat", "openai.resources.responses")
"""500 modules that the OpenAI package imports only when its first call is made; Anthropic's imports all with itself."""


def contained_http_client(
    transport: Any = None, *, provider: str = "", output_cap: int = DEFAULT_OUTPUT_CAP, httpx: ModuleType | None = None
) -> Any:
    """Return an HTTP client for ``OpenAI(http_client=...)`` or ``Anthropic(http_client=...)``.

    Args:
        transport: What sends, for example ``httpx.HTTPTransport(proxy=...)``; by default one like the SDK's own,
            with the proxies that the environment names (``HTTPS_PROXY``, ``NO_PROXY``). Redirects are followed in any
            case; each address is asked for like a request of its own.
        provider: Whose prices apply, for example ``openrouter``; by default OpenAI's or Anthropic's, by the interface
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

    def contained(real: Any) -> ContainedTransport:
        return ContainedTransport(real, provider=provider, output_cap=output_cap)

    mounts: dict[str, ContainedTransport | None] = {}
    if transport is None:
        sender, limits = getattr(module, f"{kind}HTTPTransport"), module.Limits(**CONNECTIONS)
        transport = sender(limits=limits)
        for pattern, proxy in environment_proxies(module).items():
            mounts[pattern] = None if proxy is None else contained(sender(proxy=proxy, limits=limits))
    client = getattr(module, f"{kind}Client")
    return client(transport=contained(transport), mounts=mounts, follow_redirects=True)


def environment_proxies(module: ModuleType) -> dict[str, str | None]:
    """Return the proxies that the environment names, by the addresses they are for; None for those that need no proxy.

    A client that is given a transport does not look for them (the SDKs' own clients do), and httpx has no public
    function that tells them. The rule is the one of its page "Environment variables", with the patterns of its mounts.
    An entry that cannot be read is skipped.
    """
    named = getproxies()
    exempt = [entry.strip() for entry in named.get("no", "").split(",")]
    if "*" in exempt:
        return {}
    proxies: dict[str, str | None] = {}
    for scheme in ("http", "https", "all"):
        if address := named.get(scheme):
            proxies[f"{scheme}://"] = proxy = address if "://" in address else f"http://{address}"
            hold_url(proxy)  # a proxy that refuses may repeat its credentials
    for pattern in filter(None, map(pattern_without_proxy, filter(None, exempt))):
        with suppress(module.InvalidURL):
            module.URL(pattern)
            proxies[pattern] = None
    return proxies


def pattern_without_proxy(entry: str) -> str:
    """Return httpx's pattern of the addresses that an entry of ``NO_PROXY`` is for; empty if it is no entry.

    A name stands also for its subdomains; one that begins with a dot only for them. As for curl, numeric addresses and
    their networks are entries too.
    """
    if "://" in entry:
        return entry
    host, slash, bits = entry.partition("/")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_interface(f"{bare}{slash}{bits}").ip
    except ValueError:
        if slash:
            return ""
        return f"all://{entry}" if entry.startswith(("[", "*.")) or entry.lower() == "localhost" else f"all://*{entry}"
    return f"all://{f'[{bare}]' if address.version == 6 else bare}{slash}{bits}"


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
