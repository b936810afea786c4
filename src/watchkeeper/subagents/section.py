"""The section that lets an agent dispatch subagents.

It goes into a template like any other section. It has two tools, and tells the model when to use them and which
subagents there are. It names the models of its children, so that a run makes and prices them before it spends anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypedDict, Unpack, cast

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.model import Model
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.session.session import Session
from watchkeeper.subagents.dispatch import (
    Dispatch,
    SubagentSettings,
    check_least_one,
    check_share,
    label_of,
)
from watchkeeper.subagents.payloads import PromptRegistry
from watchkeeper.tools.tool import tool

ONE: Final = (
    "Hand one block of work to a subagent and wait for its summary. Use it for work of many turns of which only the"
    " outcome matters here, for a step of a plan, or when this conversation grows long."
)
SEVERAL: Final = (
    "Hand several blocks of work that do not need each other's results to subagents that work side by side; returns one"
    " outcome for each task, in order. Give each task files of its own to write."
)
GUIDE: Final = """\
You can hand work to subagents. Use `dispatch_subagent` when something takes many turns of reading, searching or trying
out and only its outcome matters here, when a step of a plan stands by itself, or when this conversation grows long.
Use `dispatch_subagents` for several such tasks that do not need each other's results. Do small things yourself.

A subagent starts with the state of this session and has your other tools, but it sees nothing of this conversation: put
all it must know into `instructions`. Only its summary, its output and the files in `expected_artifacts` come back. What
it spends counts here. If it fails, its message says why: change the task, or do the work yourself.

Subagents:
"""


class EveryChild(TypedDict, total=False):
    """What all children of a section get.

    Attributes:
        model: The model that answers; by default the one that the parent uses at that moment.
        limits: Ceilings of each child; a share of what the parent has left by default.
        hydrate: Prepares a child's session, in which the parent's state is.
    """

    model: Model | str | None
    limits: Limits | None
    hydrate: Callable[[Session], object] | None


class PromptSubagentToolsSection(MarkdownSection):
    """Lets an agent dispatch subagents with `dispatch_subagent` and `dispatch_subagents`."""

    __slots__ = ()

    def __init__(
        self,
        registry: PromptRegistry,
        session: Session | None = None,
        *,
        settings: Mapping[str, SubagentSettings] | None = None,
        share: float = 0.5,
        max_depth: int = 1,
        max_parallel: int = 4,
        cascade: bool = False,
        **every: Unpack[EveryChild],
    ) -> None:
        """Offer the prompts of a registry as subagents.

        Args:
            registry: The prompts; each enabled one is a subagent. Register them first.
            session: The session with whose state children start; by default that of the run which calls the tool.
            settings: Model, limits and more for the children of one prompt, by ``ns/key``.
            share: What a call's children get together of what the parent has left, of every ceiling and of its time,
                in equal parts for those that run at once; for those without limits of their own.
            max_depth: How many subagents may be nested; with 1 a subagent cannot dispatch.
            max_parallel: How many children of one `dispatch_subagents` run at once.
            cascade: Whether the snapshot includes the sessions below the parent's; its summary then names them.
            every: What all children get; see `EveryChild`.

        Raises:
            ConfigurationError: If an argument is invalid, or settings are for a prompt that is not registered.
        """
        settings = dict(settings or {})
        _check_registry(registry, settings)
        if not isinstance(cast("object", session), Session | None):
            raise ConfigurationError(f"session={session!r} is no Session; leave it out to use the run's session")
        dispatch = Dispatch(
            registry=registry,
            session=session,
            every=SubagentSettings(**every),
            settings=settings,
            share=check_share(share),
            max_depth=check_least_one(max_depth, "max_depth"),
            max_parallel=check_least_one(max_parallel, "max_parallel"),
            cascade=cascade,
        )
        super().__init__(
            title="Subagents",
            key="subagents",
            template=GUIDE + "\n".join(_listed(dispatch)).replace("$", "$$"),
            tools=(
                tool(name="dispatch_subagent", description=ONE, idempotent=True)(dispatch.one),
                tool(name="dispatch_subagents", description=SEVERAL, idempotent=True)(dispatch.several),
            ),
            models=_models(dispatch),
        )


def _check_registry(registry: object, settings: Mapping[str, object]) -> None:
    if not isinstance(registry, PromptRegistry):
        raise ConfigurationError(f"{registry!r} is no registry of prompts; give PromptRegistry(prompt, ...)")
    known = [f"{prompt.ns}/{prompt.key}" for prompt in registry]
    for name, given in settings.items():
        if name not in known:
            raise ConfigurationError(
                f"settings are for {name!r}, which is not registered: {', '.join(known) or 'none'}"
            )
        if not isinstance(given, SubagentSettings):
            raise ConfigurationError(f"settings[{name!r}]={given!r} must be SubagentSettings(...)")


def _listed(dispatch: Dispatch) -> Iterator[str]:
    """Yield a line for each subagent: its name, and what it is good for."""
    for prompt in dispatch.registry.enabled:
        name = f"{prompt.ns}/{prompt.key}"
        about = " ".join(dispatch.of(prompt).description.split()) or (prompt.name if prompt.name != name else "")
        yield f'- `{name}` (prompt_ns "{prompt.ns}", prompt_key "{prompt.key}"){f": {about}" if about else ""}'


def _models(dispatch: Dispatch) -> tuple[Any, ...]:
    """Return the models of all children, and of theirs, each once.

    Raises:
        ConfigurationError: If two different models have the same name: a run could not tell them apart.
    """
    named = [each.model for each in (dispatch.every, *dispatch.settings.values()) if each.model is not None]
    found: dict[str, Model | str] = {}
    for model in (
        *named,
        *(each for prompt in dispatch.registry for each in prompt.template.models if isinstance(each, Model | str)),
    ):
        known = found.setdefault(label_of(model), model)
        if known is not model and known != model:
            raise ConfigurationError(f"two different models of subagents are called {label_of(model)}; rename one")
    adapters = (each for prompt in dispatch.registry for each in prompt.template.models)
    return (*found.values(), *dict.fromkeys(each for each in adapters if not isinstance(each, Model | str)))
