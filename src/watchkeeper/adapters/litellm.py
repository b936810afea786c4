"""One turn over LiteLLM, for the providers that have no adapter of their own.

LiteLLM translates; this adapter speaks Chat Completions with it and turns its errors into ours. Its retries, its
downloads of prices and tokenizers and its debug notes are off; what it may send is in `litellm_requests`. Token counts
that it guesses where the provider gave none are not taken for the provider's. It walks the whole history in every turn,
so it costs more than other adapters.
Facts: https://docs.litellm.ai/docs/completion/input and litellm/exceptions.py.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
import threading
import urllib.request
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
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
from watchkeeper.adapters.litellm_requests import guard_requests, one_exchange
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
from watchkeeper.adapters.scrubbing import conceal, scrub
from watchkeeper.adapters.wire import OnDelta
from watchkeeper.containment.calls import check_leaving
from watchkeeper.core.errors import (
    ConfigurationError,
    EgressRefusedError,
    MissingKeyError,
    ProviderError,
    UnsentError,
    WatchkeeperError,
)
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.secrets import hold, hold_headers, hold_url, hold_variables
from watchkeeper.core.trace.place import passed_on

ELSEWHERE: Final = {
    *("api_base", "api_key", "base_url", "custom_llm_provider", "use_litellm_proxy"),
    *("context_window_fallback_dict", "deployment_id", "model_list"),
}
"""Fields that send a request to another server than the one that a hook was asked about, or to an unpriced model."""

RESERVED: Final = CHAT.reserved | ELSEWHERE | {"additional_drop_params", "num_retries", "max_retries"}
GUESSED: Final = frozenset(
    {"a2a", "langflow", "langgraph", "petals", "predibase", "replicate", "sagemaker", "sagemaker_chat"}
)
"""Providers whose tokens LiteLLM counts by itself, in the messages alone."""

UNGUARDED: Final = "aiohttp_openai"
"""A provider of LiteLLM whose requests do not pass httpx; it asks the same servers as ``openai``."""

ALIASES: Final = "model_alias_map"
OTHER_MODELS: Final = ("model_fallbacks", ALIASES)
"""Settings of LiteLLM, for the whole process, that let other models answer."""

CAPS: Final = frozenset({"max_tokens", "max_completion_tokens"})
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
        ConfigurationError: If LiteLLM does not know the provider, or if it is ``aiohttp_openai``.
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
        guard_requests(importlib.import_module("httpx"))
        self._litellm = sdk
        self._litellm.suppress_debug_info = True
        self._litellm.disable_hf_tokenizer_download = True  # it would wait for the network on the event loop
        self.name = name
        self.provider, found = _provider(self._litellm, name, base_url)
        if self.provider == UNGUARDED:
            raise ConfigurationError(
                f"{name} would follow redirects with the conversation: write openai/ in place of {UNGUARDED}/"
            )
        self.address = base_url or found or f"litellm:{self.provider}"
        _check_key(self._litellm, name, api_key, base_url)
        facts = _facts(self._litellm, name)
        self.native_output = bool(facts.get("supports_response_schema")) if native_output is None else native_output
        self.context_window = context_window or facts.get("max_input_tokens")
        self.max_output_tokens = max_output_tokens or facts.get("max_output_tokens")
        self.free = False
        self._takes_cap = not CAPS.isdisjoint(_parameters(self._litellm, name, self.provider))
        self._encoding = CHAT.encoding.format(provider=self.provider, name=name)
        self._base_url = base_url
        self._options = given({"api_key": api_key, "api_base": base_url, "extra_headers": headers})

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Ask for one reply.

        Raises:
            ProviderError: With the fault that tells whether a retry may help.
        """
        check_extra(request.settings, RESERVED)
        check_remote(self.address)
        check_leaving(self.address, "POST")
        self._check_other_models()
        fields = {
            **chat_head(self.name, request, "max_tokens"),
            **chat_fixed(request, self.native_output),
            **self._options,
            "messages": [message_fields(message, self._encoding) for message in request.transcript],
            "timeout": request.timeout,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,  # but for the cap on the output, which every call must keep
            # With tools LiteLLM's gateway to MCP servers needs one more package; our tools do not use that gateway.
            "_skip_mcp_handler": True,
        }
        traced = dict(passed_on())
        if traced:
            given_headers: Mapping[str, str] = self._options.get("extra_headers", {})
            fields["extra_headers"] = {**traced, **given_headers}
        if not self._takes_cap:
            fields["allowed_openai_params"] = [*fields.get("allowed_openai_params", ()), "max_tokens"]
        with UNDER_WAY:
            completion = await (
                self._whole(fields) if request.on_delta is None else self._streamed(fields, request.on_delta)
            )
        if self.provider in GUESSED:
            completion.usage = None
        with reading(self.provider):
            return read_reply(completion, self.provider, self._encoding, len(request.transcript))

    async def _whole(self, fields: dict[str, Any]) -> Completion:
        with self._translating(), one_exchange(self.address, self.provider):
            answer = await self._litellm.acompletion(**fields)
        with reading(self.provider):
            return msgspec.convert(answer.model_dump(warnings=False), Completion)

    async def _streamed(self, fields: dict[str, Any], on_delta: OnDelta) -> Completion:
        around = contextvars.copy_context()

        def outside(text: str) -> None:  # what the listener sends is no part of the exchange
            around.run(on_delta, text)

        with listening(outside) as hear:
            chunks = Chunks(hear, self.provider)
            with self._translating(), one_exchange(self.address, self.provider):
                stream = await self._litellm.acompletion(**fields, **STREAMED)
                async with _closing(stream):
                    async for chunk in stream:
                        with reading(self.provider):
                            chunks.feed(chunk.model_dump(warnings=False))
            with reading(self.provider):
                whole = chunks.whole()
            if not _is_counted(stream):
                whole.usage = None
            return whole

    @contextlib.contextmanager
    def _translating(self) -> Generator[None]:
        """Translate every error of LiteLLM; it passes on errors of the libraries that it uses."""
        try:
            yield
        except WatchkeeperError:
            raise
        except Exception as error:
            refused = next((each for each in _behind(error) if isinstance(each, EgressRefusedError)), None)
            if refused is not None:
                raise refused from None
            translated = _translated(error, self.provider, self._base_url or f"LiteLLM's {self.provider}")
            conceal(error)
            raise translated from error

    def _check_other_models(self) -> None:
        """Refuse to ask while LiteLLM is set to let another model answer, whose price nobody has looked up."""
        for setting in OTHER_MODELS:
            value: Any = getattr(self._litellm, setting, None)
            if value and (setting != ALIASES or self.name in value):
                raise UnsentError(
                    f"litellm.{setting} may let another model than {self.name} answer, whose price is not known before"
                    " the call; empty it, and name other models in fallback="
                )

    async def close(self) -> None:
        """Close LiteLLM's connections, unless another model uses them: LiteLLM shares them among all its models."""
        if not UNDER_WAY.turns:
            await self._litellm.close_litellm_async_clients()
            kept: dict[str, Any] = self._litellm.in_memory_llm_clients_cache.cache_dict
            for key, client in [*kept.items()]:
                if type(client).__module__.partition(".")[0] == "openai":
                    kept.pop(key, None)  # LiteLLM would hand it out again; its own clients it opens anew


class _UnderWay:
    """Counts the turns that go on in this process, on all loops and threads."""

    def __init__(self) -> None:
        self.turns = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.turns += 1

    def __exit__(self, *failure: object) -> None:
        with self._lock:
            self.turns -= 1


UNDER_WAY: Final = _UnderWay()


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


def _is_counted(stream: Any) -> bool:
    """Return whether a provider sent token counts in a stream; else LiteLLM adds a guess that leaves out the tools."""
    chunks: Any = getattr(stream, "chunks", None)
    return chunks is None or any(getattr(chunk, "usage", None) for chunk in chunks)


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


def _parameters(litellm: Any, name: str, provider: str) -> Sequence[str]:
    """Return the parameters that LiteLLM sends to a model; it drops all others."""
    return litellm.get_supported_openai_params(name, provider) or ()


def _facts(litellm: Any, name: str) -> dict[str, Any]:
    """Return what LiteLLM knows about a model; nothing, if it does not know it."""
    try:
        return dict(litellm.get_model_info(name))
    except Exception as error:
        if "isn't mapped" not in str(error):
            raise
        return {}
