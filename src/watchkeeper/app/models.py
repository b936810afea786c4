"""Model strings to models: ``provider:name``, and the few that need no provider.

    openai:gpt-5-mini            Chat Completions (OPENAI_API_KEY)
    openai-responses:gpt-5       Responses
    anthropic:claude-sonnet-5    Messages (ANTHROPIC_API_KEY)
    litellm:groq/llama-3.3-70b   a hundred others, through LiteLLM
    local                        the bundled model, on this machine
    local:PATH.gguf              any GGUF file, on this machine
    http://host:port/v1#name     any OpenAI-compatible server (WATCHKEEPER_API_KEY, if it asks for a key)

The command line knows ``scripted`` besides: fixed replies that the agent's file brings along, and no model at all.
Nothing is imported, and no connection or process is opened, before a model is really asked for. A key of one provider
is never sent to another address.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from watchkeeper.core.errors import UnknownModelError

if TYPE_CHECKING:
    from watchkeeper.core.model import Model


def _openai(name: str) -> Model:
    from watchkeeper.adapters.openai_chat import OpenAIChatModel

    return OpenAIChatModel(name)


def _openai_responses(name: str) -> Model:
    from watchkeeper.adapters.openai_responses import OpenAIResponsesModel

    return OpenAIResponsesModel(name)


def _anthropic(name: str) -> Model:
    from watchkeeper.adapters.anthropic import AnthropicModel

    return AnthropicModel(name)


def _litellm(name: str) -> Model:
    from watchkeeper.adapters.litellm import LiteLLMModel

    return LiteLLMModel(name)


def _local(path: str) -> Model:
    from watchkeeper.adapters.local import LocalModel

    return LocalModel(path)


MAKERS: Final[Mapping[str, Callable[[str], Model]]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "litellm": _litellm,
    "local": _local,
}

HELP: Final = (
    "write 'openai:NAME', 'openai-responses:NAME', 'anthropic:NAME', 'litellm:PROVIDER/NAME', 'local', "
    "'local:PATH.gguf' or 'http://HOST:PORT/v1#NAME'"
)


SERVER_PROVIDER: Final = "openai-compatible"
SERVER_KEY: Final = "WATCHKEEPER_API_KEY"
NO_KEY: Final = "no-key"


def model_from(text: str) -> Model:
    """Return the model that a string names.

    Raises:
        UnknownModelError: If the string names none; the message lists the forms.
        MissingExtraError: If the provider's SDK, or the engine, is not installed.
        MissingKeyError: If the provider needs a key that is not set.
    """
    if text.startswith(("http://", "https://")):
        return _server(text)
    provider, _, name = text.partition(":")
    maker = MAKERS.get(provider)
    if maker is None:
        raise UnknownModelError(f"there is no model {text!r}; {_hint(provider)}{HELP}")
    if not name and provider != "local":
        raise UnknownModelError(f"{text!r} names no model of {provider}; {HELP}")
    return maker(name)


def _hint(provider: str) -> str:
    if provider == "scripted":
        return "a script cannot be named by a string, pass ScriptedModel([...]); "
    near = difflib.get_close_matches(provider, MAKERS, n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def _server(text: str) -> Model:
    url, _, name = text.partition("#")
    if not name:
        raise UnknownModelError(f"{text!r} does not say which model to ask for; write '{url}#NAME'")
    from watchkeeper.adapters.openai_chat import OpenAIChatModel

    key = os.environ.get(SERVER_KEY) or NO_KEY
    return OpenAIChatModel(name, api_key=key, base_url=url, provider=SERVER_PROVIDER)
