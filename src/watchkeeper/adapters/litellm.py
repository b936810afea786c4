"""One turn over LiteLLM, for the providers that have no adapter of their own.

LiteLLM translates; this adapter speaks Chat Completions with it and turns its errors into ours. Its retries, its price
download and its debug notes are off. It walks the whole history in every turn, so it costs more than other adapters.
Facts: https://docs.litellm.ai/docs/completion/input and litellm/exceptions.py.
"""

from __future__ import annotations

import contextlib
import os
import urllib.request
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from typing import Any, Final

import msgspec

from watchkeeper.adapters.endpoint import (
    quoted,
    check_base_url,
    check_key,
    check_extra,
    check_remote,
    given,
    import_sdk,
    listening,
    reading,
    unreadable,
)
from watchkeeper.adapters.openai_chat import (
    CHAT,
    STREAMED,
    Chunks,
    Completion,
    chat_fixed,
    chat_head,
    message_fields,
    read_reply,
)
from watchkeeper.adapters.wire import OnDelta
from watchkeeper.containment.calls import check_leaving
from watchkeeper.core.errors import ConfigurationError, MissingKeyError, ProviderError
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.secrets import conceal, hold, hold_headers, hold_url, hold_variables, scrub

RESERVED: Final = CHAT.reserved | {"model", "num_retries", "max_retries"}
NO_PRICE_DOWNLOAD: Final = "LITELLM_LOCAL_MODEL_COST_MAP"
# Its classes say what its status codes do not: both are 400.
BY_CLASS: Final = {
    "ContextWindowExceededError": "context_length_exceeded",
    "ContentPolicyViolationError": "content_policy_violation",
}


class LiteLLMModel:
    """A model behind LiteLLM.

    Args:
        name: The model with its provider as LiteLLM writes it, for example ``gemini/gemini-2.5-flash``.
        api_key: The key, or None for the environment variable of that provider.
        base_url: Address of another server.
        native_output: Whether the model takes a schema; None asks LiteLLM.
        context_window: Tokens the model can hold; None asks LiteLLM.
        max_output_tokens: Largest reply the model can give; None asks LiteLLM.
        headers: Sent with every request.

    Raises:
        MissingExtraError: If the litellm package is not installed.
        MissingKeyError: If LiteLLM names environment variables for this model that are not set.
        ConfigurationError: If LiteLLM does not know the provider.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        native_output: bool | None = None,
        context_window: int | None = None,
        max_output_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        check_base_url(base_url)
        with _without_price_download():
            sdk: Any = import_sdk("litellm", "LiteLLMModel", "litellm")
        hold(api_key)
        check_key(name, api_key)
        hold_variables(os.environ)  # LiteLLM reads the one that it needs, and does not say which
        for address in (base_url, *urllib.request.getproxies().values()):
            hold_url(address)
        hold_headers(headers)
        self._litellm = sdk
        self._litellm.suppress_debug_info = True
        self.name = name
        self.provider, found = _provider(self._litellm, name, base_url)
        self.address = base_url or found or f"litellm:{self.provider}"
        _check_key(self._litellm, name, api_key, base_url)
        facts = _facts(self._litellm, name)
        self.native_output = bool(facts.get("supports_response_schema")) if native_output is None else native_output
        self.context_window = context_window or facts.get("max_input_tokens")
        self.max_output_tokens = max_output_tokens or facts.get("max_output_tokens")
        self.free = False
        self._encoding = CHAT.encoding.format(provider=self.provider, name=name)
        self._base_url = base_url
        self._options = given({"api_key": api_key, "api_base": base_url, "extra_headers": headers})

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Ask for one reply.

        Raises:
            ProviderError: With the fault that tells whether a retry may help.
        """
        check_extra(request.settings.extra, RESERVED)
        check_remote(self.address)
        check_leaving(self.address, "POST")
        fields = {
            **chat_head(self.name, request, "max_tokens"),
            **chat_fixed(request, self.native_output),
            **self._options,
            "messages": [message_fields(message, self._encoding) for message in request.transcript],
            "timeout": request.timeout,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,
            # With tools LiteLLM's gateway to MCP servers needs one more package; our tools do not use that gateway.
            "_skip_mcp_handler": True,
        }
        completion = await (
            self._whole(fields) if request.on_delta is None else self._streamed(fields, request.on_delta)
        )
        with reading(self.provider):
            return read_reply(completion, self.provider, self._encoding, len(request.transcript))

    async def _whole(self, fields: dict[str, Any]) -> Completion:
        with self._translating():
            answer = await self._litellm.acompletion(**fields)
        with reading(self.provider):
            return msgspec.convert(answer.model_dump(warnings=False), Completion)

    async def _streamed(self, fields: dict[str, Any], on_delta: OnDelta) -> Completion:
        with listening(on_delta) as hear:
            chunks = Chunks(hear, self.provider)
            with self._translating():
                stream = await self._litellm.acompletion(**fields, **STREAMED)
                async with _closing(stream):
                    async for chunk in stream:
                        with reading(self.provider):
                            chunks.feed(chunk.model_dump(warnings=False))
            with reading(self.provider):
                return chunks.whole()

    @contextlib.contextmanager
    def _translating(self) -> Generator[None]:
        """Translate every error of LiteLLM; it passes on errors of the libraries that it uses."""
        try:
            yield
        except ProviderError:
            raise
        except Exception as error:
            translated = _translated(error, self.provider, self._base_url or f"LiteLLM's {self.provider}")
            conceal(error)
            raise translated from error

    async def close(self) -> None:
        """Close LiteLLM's connections, which it shares among all its models."""
        await self._litellm.close_litellm_async_clients()


def _translated(error: Exception, provider: str, url: str) -> ProviderError:
    """Translate an error of LiteLLM into a `ProviderError`.

    LiteLLM reports status 500 also where no server sent it: for a lost connection, an error within a stream, and a
    reply that it cannot read. The causes of its error tell these cases apart, and whether the request may be billed.
    """
    from watchkeeper.adapters.provider_errors import provider_error

    scrub(error)
    code = BY_CLASS.get(type(error).__name__)
    status: int | None = getattr(error, "status_code", None)
    chain = list(_behind(error))
    http = [each for each in chain if type(each).__module__.partition(".")[0] in HTTP_LIBRARIES]
    answered = any(hasattr(each, "status_code") or hasattr(each, "response") for each in http)
    if code is not None or (status is not None and status < 500) or answered:
        return provider_error(error, provider=provider, url=url, code=code)
    if http:
        return provider_error(http[0], provider=provider, url=url)
    if any(isinstance(each, ImportError) for each in chain):
        return provider_error(error, provider=provider, url=url)
    return unreadable(provider, f"a reply that LiteLLM can read ({quoted(str(error))})")


HTTP_LIBRARIES: Final = frozenset({"openai", "httpx", "httpx2", "aiohttp"})


def _behind(error: BaseException) -> Iterator[Exception]:
    """Yield the exceptions behind one, the last one raised first."""
    seen: set[int] = {id(error)}
    behind = error.__cause__ or error.__context__
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        if isinstance(behind, Exception):
            yield behind
        behind = behind.__cause__ or behind.__context__


@contextlib.contextmanager
def _without_price_download() -> Generator[None]:
    """Keep LiteLLM from fetching its price list from the network while it is imported."""
    before = os.environ.get(NO_PRICE_DOWNLOAD)
    os.environ[NO_PRICE_DOWNLOAD] = "True"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_PRICE_DOWNLOAD]
        else:
            os.environ[NO_PRICE_DOWNLOAD] = before


@contextlib.asynccontextmanager
async def _closing(stream: Any) -> AsyncGenerator[None]:
    """Drop the connection of a stream that was not read to its end."""
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _provider(litellm: Any, name: str, base_url: str | None) -> tuple[str, str | None]:
    """Return the provider's name, and its address if LiteLLM knows it."""
    try:
        _, provider, _, address = litellm.get_llm_provider(name, api_base=base_url)
        return str(provider), address or None
    except litellm.exceptions.BadRequestError as error:
        raise ConfigurationError(
            f"LiteLLM knows no provider for {name!r}: write provider/model, for example 'gemini/gemini-2.5-flash'"
        ) from error


def _check_key(litellm: Any, name: str, api_key: str | None, base_url: str | None) -> None:
    if api_key or base_url:
        return
    found: dict[str, Any] = litellm.validate_environment(name)
    missing: list[str] = found.get("missing_keys") or []
    if not found.get("keys_in_environment") and missing:
        raise MissingKeyError(f"LiteLLM's {name} needs a key: set {' and '.join(missing)}, or pass api_key=...")


def _facts(litellm: Any, name: str) -> dict[str, Any]:
    """Return what LiteLLM knows about a model; nothing, if it does not know it."""
    try:
        return dict(litellm.get_model_info(name))
    except Exception as error:
        if "isn't mapped" not in str(error):
            raise
        return {}
