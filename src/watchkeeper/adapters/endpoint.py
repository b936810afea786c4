"""One provider's address, reached through its SDK with bytes that are already encoded.

The SDK's own ``post`` is used with an untyped body, so that its authentication, headers, errors and streams stay and
its walk over every message of the history does not happen. SDK retries are off. Whatever the SDK or the connection
raises leaves here as a ProviderError; cancelling drops the request.
"""

from __future__ import annotations

import importlib
import importlib.util
import urllib.parse
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from watchkeeper.adapters.remote import check_remote
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, ProviderError

T = TypeVar("T")


class Endpoint:
    """Posts encoded bodies through an SDK client."""

    def __init__(self, provider: str, sdk: ModuleType, client: Any, options: Mapping[str, Any] | None = None) -> None:
        """Use a client of an SDK.

        Args:
            provider: Provider name, for errors.
            sdk: The SDK's module (openai or anthropic).
            client: An async client of it, with retries off.
            options: Request options that every request needs.
        """
        from watchkeeper.adapters import provider_errors, transport

        httpx = transport.sdk_httpx(sdk)
        self._body_of = transport.body_of
        self._provider_error = provider_errors.provider_error
        self._broken_stream = provider_errors.broken_stream
        self.provider = provider
        self.url = str(client.base_url).rstrip("/") + "/"
        self._client = client
        self._options = dict(options or {})
        self._raw = httpx.Response
        self._stream_class = sdk.AsyncStream[object]
        self._errors: tuple[type[Exception], ...] = (sdk.APIError, httpx.HTTPError)

    async def ask(self, path: str, body: bytes, timeout: float | None) -> bytes:
        """Post a body and return the whole answer.

        Raises:
            ProviderError: Whatever went wrong.
        """
        check_remote(self.url)
        try:
            response = await self._client.post(
                self.url + path, content=body, cast_to=self._raw, options=self._request_options(timeout)
            )
            return await self._body_of(response)
        except self._errors as error:
            raise self._translate(error) from error

    async def stream(
        self, path: str, body: bytes, timeout: float | None, on_event: Callable[[dict[str, Any]], None]
    ) -> None:
        """Post a body and hand over every server-sent event as it comes, decoded.

        Raises:
            ProviderError: Whatever went wrong, also in the middle of the answer.
        """
        check_remote(self.url)
        try:
            stream = await self._client.post(
                self.url + path,
                content=body,
                cast_to=object,
                options=self._request_options(timeout),
                stream=True,
                stream_cls=self._stream_class,
            )
            async with stream:
                async for event in stream:
                    on_event(event)
        except self._errors as error:
            raise self._translate(error) from error
        except ValueError as error:
            raise self._broken_stream(self.provider, str(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _request_options(self, timeout: float | None) -> dict[str, Any]:
        return self._options if timeout is None else {**self._options, "timeout": timeout}

    def _translate(self, error: Exception) -> ProviderError:
        return self._provider_error(error, provider=self.provider, url=self.url)


def decode_reply(content: bytes, type_: type[T], provider: str) -> T:
    """Decode a whole answer.

    Raises:
        ProviderError: If the answer is not what the provider's interface promises.
    """
    try:
        return msgspec.json.decode(content, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        start = content[:200].decode("utf-8", "replace")
        start = content[:200].decode("utf-8", "replace")
        raise ProviderError(
            f"{provider} answered something that is not a reply ({error}): {start!r}",
            fault="server",
            provider=provider,
            billed=True,
        ) from error


def check_base_url(base_url: str | None) -> None:
    """Refuse an address that can be none.

    Raises:
        ConfigurationError: If there is one and it is not an http(s) address.
    """
    if base_url is None:
        return
    try:
        parts = urllib.parse.urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(f"base_url={base_url!r} is no address: write it like 'http://localhost:8080/v1'")


def import_sdk(name: str, what: str, extra: str) -> ModuleType:
    """Import an SDK when it is first needed.

    Raises:
        MissingExtraError: If it, or the HTTP client it is used with, is not installed.
    """
    for needed in (name, "aiohttp"):
        if importlib.util.find_spec(needed) is None:
            raise MissingExtraError(what, extra)
    return importlib.import_module(name)
