"""Makes models of model strings: ``provider:name``, and the few that need no provider.

    openai:gpt-5-mini            Chat Completions (OPENAI_API_KEY)
    openai-responses:gpt-5       Responses
    anthropic:claude-sonnet-5    Messages (ANTHROPIC_API_KEY)
    litellm:groq/llama-3.3-70b   a hundred others, through LiteLLM
    local                        the bundled model, on this machine
    local:PATH.gguf              any GGUF file, on this machine
    http://host:port/v1#name     any OpenAI-compatible server (WATCHKEEPER_API_KEY, if it asks for a key)

The command line also knows ``scripted``: fixed replies from the agent's file, without a model.
A provider's module is imported, and a connection or process opened, only when a model of it is needed. A key of one
provider is never sent to another address.
"""

from __future__ import annotations

import difflib
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from watchkeeper.app.options import RunOptions
from watchkeeper.app.prices import check_priced, price_of
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, UnknownModelError, UnpricedModelError
from watchkeeper.accounting.account import Account, shared_account
from watchkeeper.accounting.limits import Limits
from watchkeeper.asking.provider_work import check_extra_is_bounded
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.secrets import hold_url
from watchkeeper.core.workers import run_in_worker
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.plan import PricedModel
from watchkeeper.runtime.user_code import closed
from watchkeeper.shield.pipeline import ShieldPipeline

PROVIDERS: Final[Mapping[str, str]] = {
    "openai": "watchkeeper.adapters.openai_chat:OpenAIChatModel",
    "openai-responses": "watchkeeper.adapters.openai_responses:OpenAIResponsesModel",
    "anthropic": "watchkeeper.adapters.anthropic:AnthropicModel",
    "litellm": "watchkeeper.adapters.litellm:LiteLLMModel",
    "local": "watchkeeper.local.model:LocalModel",
}
"""By provider, the class of its models, which is imported when one is asked for."""

HELP: Final = (
    "write 'openai:NAME', 'openai-responses:NAME', 'anthropic:NAME', 'litellm:PROVIDER/NAME', 'local', "
    "'local:PATH.gguf' or 'http://HOST:PORT/v1#NAME'"
)


SERVERS: Final = ("http://", "https://")
SERVER_PROVIDER: Final = "openai-compatible"
SERVER_KEY: Final = "WATCHKEEPER_API_KEY"
NO_KEY: Final = "no-key"

_imported: Final[set[str]] = set()
"""How the strings begin of which this process has made a model, so that its SDK is imported."""


def model_from(text: str) -> Model:
    """Return the model that a string names.

    Raises:
        UnknownModelError: If the string names none; the message lists the forms.
        MissingExtraError: If the provider's SDK, or the engine, is not installed.
        MissingKeyError: If the provider needs a key that is not set.
    """
    check_model_text(text)
    if text.startswith(SERVERS):
        return _server(text)
    provider, _, name = text.partition(":")
    model_class: Callable[[str], Model] = pkgutil.resolve_name(PROVIDERS[provider])
    return model_class(name)


def check_model_text(text: str, also: str = "") -> None:
    """Refuse a text that names no model; nothing is imported or opened, and keys are not looked for.

    Args:
        text: The text.
        also: A word that the caller understands besides, to be named in the message; empty for none.

    Raises:
        UnknownModelError: If it names none; the message lists the forms.
    """
    if text.startswith(SERVERS):
        hold_url(text)
        url, _, name = text.partition("#")
        if not url.isprintable() or " " in url:
            raise UnknownModelError(f"{url!r} is no address: it has characters that no address has")
        if not name:
            raise UnknownModelError(f"{text!r} does not say which model to ask for; write '{url}#NAME'")
        return
    provider, _, name = text.partition(":")
    if provider not in PROVIDERS:
        near = difflib.get_close_matches(provider.lower(), [*PROVIDERS, *filter(None, (also,))], n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if provider == "scripted" and not also:
            hint = "a script cannot be named by a string, pass ScriptedModel([...]); "
        forms = f"{HELP}, or {also!r} for the fixed replies of the agent's file" if also else HELP
        raise UnknownModelError(f"there is no model {text!r}; {hint}{forms}")
    if not name and provider != "local":
        raise UnknownModelError(f"{text!r} names no model of {provider}; {HELP}")


def _server(text: str) -> Model:
    url, _, name = text.partition("#")
    from watchkeeper.adapters.openai_chat import OpenAIChatModel

    key = os.environ.get(SERVER_KEY) or NO_KEY
    return OpenAIChatModel(name, api_key=key, base_url=url, provider=SERVER_PROVIDER)


# --- the models of a run --------------------------------------------------------------------------------------------
# All of them are made, and priced, before anything is spent, so that a fallback that cannot work is refused at once. A
# model that is made here from a string is closed with the run; the caller closes the models that the caller made.


class RunModels(msgspec.Struct, frozen=True):
    """The models of a run.

    Attributes:
        first: The model that is asked first.
        fallback: The models that take over, in this order, when the one in use cannot answer.
        cheaper: The model that takes over if a hook answers DEGRADE; None if none is named.
        escalations: By source of advice, the model that takes over if the advice is not followed.
        children: The models of child runs, by their names in the template: a string, ``provider:name`` or an
            `Adapter`.
    """

    first: PricedModel
    fallback: tuple[PricedModel, ...] = ()
    cheaper: PricedModel | None = None
    escalations: Mapping[str, PricedModel] = msgspec.field(default_factory=dict[str, PricedModel])
    children: Mapping[Any, PricedModel] = msgspec.field(default_factory=dict[Any, PricedModel])

    @property
    def output_in_prompt(self) -> bool:
        """Whether the prompt must describe the answer's form, because not every provider can enforce it."""
        line = (self.first, *self.fallback, self.cheaper, *self.escalations.values())
        return not all(each.model.native_output for each in line if each is not None)


async def open_models(
    stack: AsyncExitStack,
    model: Model | str,
    limits: Limits,
    options: RunOptions,
    template: PromptTemplate[Any],
) -> RunModels:
    """Make the models of a run as `models_of_run` does; on a worker thread if that may import an SDK.

    To import one can take seconds, for which the event loop would be blocked.
    """
    make = partial(models_of_run, stack, model, limits, options, template)
    shield = options.get("shield")
    escalations = (source.escalate.model for source in template.sources if source.escalate is not None)
    cheaper = None if shield is None else shield.fallback_model
    named = (model, *checked_fallback(options.get("fallback", ()), model), cheaper, *escalations, *template.models)
    begin = {each.partition(":")[0] for each in named if isinstance(each, str)}
    new = (begin & {"http", "https", *PROVIDERS}) - _imported
    return await run_in_worker(make) if new else make()


def models_of_run(
    stack: AsyncExitStack,
    model: Model | str,
    limits: Limits,
    options: RunOptions,
    template: PromptTemplate[Any],
    make: Callable[[str], Model] | None = None,
) -> RunModels:
    """Make the models of a run; those that are made here are closed by ``stack``.

    Args:
        stack: The exit stack that closes the models.
        model: The model that is asked first.
        limits: Ceilings in force; a cost ceiling needs prices.
        options: Names the fallback, the shield, settings and prices.
        template: Names the models of child runs, judges and escalations.
        make: Makes a model of a string; `model_from` by default.

    Raises:
        ConfigurationError: For an unknown or unpriced model, a missing key or extra, or the same model twice.
    """
    named = (model, *checked_fallback(options.get("fallback", ()), model))
    models = [_made(stack, each, make) for each in named]
    shield, clock = options.get("shield"), options.get("clock", SYSTEM_CLOCK)
    asked, prices = options.get("settings", ModelSettings()), options.get("prices")
    account = Account(limits, shared_account(limits))

    def priced(each: Model, own: PricedModel | None = None) -> PricedModel:
        settings = settings_for(each, models[0], asked) if own is None else own.settings
        price = (own and own.price) or price_of(each, prices, settings, clock)
        check_priced(each, price, limits)
        check_extra_is_bounded(settings, account, each.name)
        check_reachable(each, shield)
        return PricedModel(each, price, settings)

    line = [priced(each) for each in models]

    def found(wanted: Model | str | Adapter) -> PricedModel:
        """Return the model of the line that is named, or a new one."""
        if isinstance(wanted, Adapter):
            return priced(wanted.model, wanted.priced)
        for each, inline in zip(named, line, strict=True):
            if wanted is each or wanted in (each, inline.label, inline.model.name):
                return inline
        return priced(_made(stack, wanted, make))

    cheaper = None if shield is None else shield.fallback_model
    escalations = {
        source.name: found(source.escalate.model)
        for source in template.sources
        if source.escalate is not None and source.escalate.model is not None
    }
    asked_below = [each for each in template.models if ours(each, limits)]
    children = {name_of(each) if isinstance(each, Model) else each: found(each) for each in asked_below}
    return RunModels(line[0], tuple(line[1:]), None if cheaper is None else found(cheaper), escalations, children)


def ours(asked: object, limits: Limits) -> bool:
    """Return whether what a template asks is a model or an `Adapter`, not the caller's own adapter.

    Raises:
        UnpricedModelError: For the caller's own adapter under a cost ceiling: its price is known only afterwards.
    """
    if isinstance(asked, Model | str | Adapter):
        return True
    if limits.max_cost_nanos is not None:
        raise UnpricedModelError(
            f"max_cost_usd is set, but nobody knows before a call what the adapter {type(asked).__name__} of a judge"
            " costs, so the ceiling could not be kept; give Adapter(model) or the name of a model, or lift max_cost_usd"
        )
    return False


def check_reachable(model: Model, shield: ShieldPipeline | None) -> None:
    """Refuse a model whose address an allow-list of the shield forbids.

    Raises:
        ConfigurationError: With the entry to add.
    """
    address: str | None = getattr(model, "address", None)
    missing = None if shield is None or address is None else shield.unreachable(address, "POST")
    if missing is not None:
        if address is not None and "://" not in address:
            missing = "nobody knows it; give the model its base_url=..."
        raise ConfigurationError(
            f"the shield's EgressAllowList does not allow requests to the address of {name_of(model)}: {missing}"
        )


def name_of(model: Model) -> str:
    """Return ``provider:name``."""
    return f"{model.provider}:{model.name}"


def checked_fallback(fallback: object, model: Model | str) -> tuple[Model | str, ...]:
    """Return the models that take over.

    Raises:
        ConfigurationError: If they are not a sequence of models, or one of them occurs twice.
    """
    if not isinstance(fallback, Sequence) or isinstance(fallback, str | bytes):
        raise ConfigurationError(f"fallback={fallback!r} must be a sequence of models; write fallback=('openai:NAME',)")
    checked: list[Model | str] = []
    each: Any
    for each in fallback:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(each, str | Model):
            raise ConfigurationError(f"fallback names {each!r}, which is neither a model nor the name of one")
        if any(each is other or (isinstance(each, str) and each == other) for other in (model, *checked)):
            name = each if isinstance(each, str) else name_of(each)
            raise ConfigurationError(f"{name} is named twice in model= and fallback=; name each model once")
        checked.append(each)
    return tuple(checked)


def settings_for(model: Model, first: Model, settings: ModelSettings) -> ModelSettings:
    """Return the settings for a model, without the extra fields that belong to another provider."""
    if model.provider == first.provider or not settings.extra:
        return settings
    return replace(settings, extra={}, extra_max_tokens=None)


def _made(stack: AsyncExitStack, named: Model | str, make: Callable[[str], Model] | None) -> Model:
    if not isinstance(named, str):
        return named
    made = (make or model_from)(named)
    _imported.add(named.partition(":")[0])
    stack.push_async_callback(lambda: closed(f"the model {named}", made.close()))
    return made
