"""The options of a run beside prompt, model and limits, and the checks of all arguments.

`RunOptions` is the one list of keyword arguments; an option that is left out has the default that its docstring names,
read where it is used. One table checks all arguments before anything is opened or spent: an error names the value and
what to write instead, and for an unknown keyword the nearest one that exists. Only the type of a value is checked here;
whether a path can be written or a model exists is checked where it is used, also before anything is spent.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, cast, get_args
from uuid import UUID

from watchkeeper.accounting.ledger import Ledger
from watchkeeper.app.telling.notify import Notify
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.tracing import Tracer
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.ids import IdSource
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.messages import ImagePart
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.quantities import is_whole
from watchkeeper.core.text import clipped, shown
from watchkeeper.core.usage import ModelPrice
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.parking import ASK_CHOICES, Park
from watchkeeper.runtime.plan import CONTEXT_CHOICES, OnContextFull
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.disk.power import DURABILITIES, Durability
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.resources import Resources

BRIEF_CHARS: Final = 60
"""A value with a longer ``repr`` is shown by its type in messages."""

MODEL_PARTS: Final = tuple(name for name in vars(Model) if not name.startswith("_"))
"""The members of a model; looked up by name, because a check against the protocol takes twenty microseconds."""

OnAsk = Literal["deny", "park"]
OnStoreFailure = Literal["stop", "go_on"]
STORE_CHOICES: Final[tuple[str, ...]] = get_args(OnStoreFailure)

CHECKED_WHERE_USED: Final = frozenset({"fallback"})
"""Options that have a rule of their own: `models.checked_fallback`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one argument must be.

    Attributes:
        fits: Whether a value will do.
        wanted: The end of the sentence "... must be ...", with what to write.
        optional: Whether None will do, too.
    """

    fits: Callable[[Any], bool]
    wanted: str
    optional: bool = False


def _any_of(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _with(*names: str) -> Callable[[Any], bool]:
    """Return a check that accepts an object with these attributes, unless the object is a class."""
    return lambda value: not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _is_model(value: Any) -> bool:
    return isinstance(value, str) or _with(*MODEL_PARTS)(value)


def _is_ledger(value: Any) -> bool:
    return isinstance(value, str | Path) or _with("admit", "settle")(value)


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_task(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return _has_text(value)
    items = cast("Sequence[Any]", value)
    kinds: set[type] = {type(item) for item in items}
    return kinds == {str, ImagePart} and any(map(_has_text, items))


def _are_listed(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _are_several(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


_SHIELD: Final = Rule(
    _any_of(ShieldPipeline),
    "a ShieldPipeline, each hook in its slot: ShieldPipeline(tool_dispatch=ToolPermissionHook(...))",
    True,
)
_BREAKERS: Final = Rule(_any_of(CircuitBreaker, CircuitBreakers), "CircuitBreakers(...)", True)
_LISTENER: Final = Rule(callable, "a function, sync or async", True)

RULES: Final[Mapping[str, Rule]] = {
    "prompt": Rule(
        _any_of(Prompt, PromptTemplate),
        "a PromptTemplate or a Prompt; a plain text goes to an agent, Agent(model, instructions, str).run(text), and "
        "an Agent is run by its own method, agent.run(task)",
    ),
    "model": Rule(_is_model, "a text such as 'openai:gpt-5-mini' or 'local', or a Model such as ScriptedModel([...])"),
    "limits": Rule(
        _any_of(Limits), "Limits, for example Limits(deadline='30m', max_cost_usd=1); Limits(max_turns=None) lifts one"
    ),
    "each": Rule(_any_of(Limits), "Limits for every single item, for example Limits(deadline='1m')", True),
    "session": Rule(_any_of(Session), "a Session; to go on after an earlier run write session=result.session", True),
    "concurrency": Rule(lambda value: is_whole(value, 1), "a whole number of at least 1, for example 4"),
    "label": Rule(callable, "a function that names an item, for example label=str"),
    "items": Rule(_are_several, "a list of items, one for each run"),
    "settings": Rule(_any_of(ModelSettings), "ModelSettings, for example ModelSettings(temperature=0.1)"),
    "shield": _SHIELD,
    "pipeline": _SHIELD,
    "breakers": _BREAKERS,
    "circuit_breaker": _BREAKERS,
    "resources": Rule(_any_of(Resources), "Resources; for things that exist already Resources.of({Type: thing})", True),
    "filesystem": Rule(
        lambda value: isinstance(value, Filesystem), "a Filesystem; for a folder write HostFilesystem('/path')", True
    ),
    "on_context_full": Rule(
        lambda value: isinstance(value, str) and value in CONTEXT_CHOICES, " or ".join(map(repr, CONTEXT_CHOICES))
    ),
    "on_event": _LISTENER,
    "on_record": _LISTENER,
    "notify": Rule(_any_of(Notify), "a Notify, for example Notify('https://example.org/hook', on='warning,80%')", True),
    "telemetry": Rule(_with("enter", "following"), "a Telemetry, for example watchkeeper.telemetry.Telemetry()", True),
    "traceparent": Rule(_any_of(str), "text such as '00-<32 hex digits>-<16 hex digits>-01'", True),
    "on_open": Rule(callable, "a function of the run's ExecutionContext"),
    "store": Rule(_any_of(str, Path, RunStore), "a path, an open RunStore, or None for no store", True),
    "on_store_failure": Rule(
        lambda value: isinstance(value, str) and value in STORE_CHOICES, " or ".join(map(repr, STORE_CHOICES))
    ),
    "durability": Rule(
        lambda value: isinstance(value, str) and value in DURABILITIES, " or ".join(map(repr, DURABILITIES)), True
    ),
    "ledger": Rule(_is_ledger, "a path or an open ledger; leave it out for the usual one"),
    "raise_on_stop": Rule(_any_of(bool), "True or False"),
    "parent": Rule(lambda value: False, "None, for an independent run; else leave it out", True),
    "on_ask": Rule(
        lambda value: isinstance(value, Park) or (isinstance(value, str) and value in ASK_CHOICES),
        "'deny', 'park', or Park(expires='3d', then='deny')",
    ),
    "origin": Rule(lambda value: isinstance(value, Mapping), "a dict of plain values"),
    "clock": Rule(_with("now", "monotonic", "call_at"), "a Clock, for example SystemClock()"),
    "ids": Rule(_with("uuid", "span_id"), "an IdSource, for example RandomIds(random.Random(7))"),
    "rng": Rule(_with("random", "uniform"), "a random.Random"),
    "instructions": Rule(_any_of(str), "text"),
    "sections": Rule(
        lambda value: _are_listed(value) and all(isinstance(each, MarkdownSection) for each in value),
        "a list of sections, for example [MarkdownSection('Style', 'style', 'Be brief.')]",
    ),
    "subagents": Rule(
        lambda value: _are_listed(value) or type(value).__name__ == "PromptRegistry",
        "a list of prompts and templates, for example [PromptTemplate(...)], or a PromptRegistry of them",
    ),
    "name": Rule(_any_of(str), "text"),
    "task": Rule(_is_task, "text that says what is to be done, or a list of texts and images"),
    "tasks": Rule(_are_several, "a list of texts, one for each task"),
}


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse a value that is not of the type that its name asks for.

    Raises:
        ConfigurationError: Naming the argument, the value and what to write.
    """
    for name, value in given.items():
        if name in CHECKED_WHERE_USED:
            continue
        if name == "prices":
            check_prices(value)
            continue
        rule = RULES[name]
        if not (rule.fits(value) or (rule.optional and value is None)):
            raise ConfigurationError(f"{name}={brief(value)} must be {rule.wanted}")


def check_prices(prices: object) -> None:
    """Refuse invalid prices before the run begins; None means none.

    Raises:
        ConfigurationError: Naming the entry.
    """
    write = "for example {'openai:gpt-5-mini': ModelPrice.per_million(0.25, 2)}"
    if not isinstance(prices, Mapping | None):
        raise ConfigurationError(f"prices={brief(prices)} must be a dict, {write}")
    for name, price in cast("Mapping[object, object]", prices or {}).items():
        if not isinstance(name, str):
            raise ConfigurationError(f"prices has the key {brief(name)}, which is not a model's name; write {write}")
        if not isinstance(price, ModelPrice):
            raise ConfigurationError(f"prices[{name!r}]={brief(price)} must be a ModelPrice; write {write}")


def check_keywords(given: Collection[str], options: Collection[str], others: Collection[str]) -> None:
    """Refuse a keyword that does not exist.

    Args:
        given: The keywords that the caller wrote.
        options: The keywords that exist.
        others: Other keywords that exist, here or in a related function.

    Raises:
        TypeError: As Python itself does, with the nearest keyword that exists.
    """
    for name in given:
        if name in options:
            continue
        if name in others:
            meant = " here; run takes a session, and run_many takes each, concurrency and label"
        else:
            near = difflib.get_close_matches(name, {*options, *others}, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(options))}"
        raise TypeError(f"unexpected keyword argument {name!r}{meant}")


def check_left_to_agent(given: Mapping[str, Any]) -> None:
    """Refuse, for a run of an `Agent`, options that the agent itself gives.

    Raises:
        ConfigurationError: With the way to say it.
    """
    for name in ("model", "limits"):
        if name in given:
            raise ConfigurationError(
                f"{name}= belongs to the Agent, not to one of its runs; "
                f"write dataclasses.replace(agent, {name}=...).run(...), or make another Agent"
            )
    for name in ("prompt", "label"):
        if name in given:
            raise ConfigurationError(
                f"an Agent gives {name}= itself, from its task; with watchkeeper.run or run_many it can be chosen"
            )


def renamed(error: LimitsError, field: str, name: str) -> LimitsError:
    """Return the error about a field of `Limits` under the name by which the caller gave it."""
    return LimitsError(str(error).replace(f"{field}=", f"{name}=", 1))


def brief(value: object) -> str:
    """Return a value for a message: its repr, or only the name of its type if the repr is long."""
    text = shown(value)
    if len(text) <= BRIEF_CHARS and "\n" not in text:
        return text
    return clipped(text, BRIEF_CHARS) if isinstance(value, str | bytes) else f"{type(value).__name__}(...)"


StoreLike = Path | str | Literal["default"] | None
LedgerLike = Path | str | Literal["default"]


class RunOptions(TypedDict, total=False):
    """The options of a run beside prompt, model, limits and session, for `run`, `arun`, and the runs of an Agent.

    Attributes:
        settings: How the model is asked: temperature, effort, output cap ...
        prices: The caller's own prices, by ``provider:model`` or model name; they win over the list.
        fallback: Models, or their strings, that take over in this order when the model in use does not answer. The
            same limits hold for every attempt.
        shield: Hooks that are asked before every model call and tool call.
        breakers: Circuit breakers, one for each provider, to share between runs; with ``fallback`` the run has some of
            its own by default.
        resources: What tools may ask their context for.
        filesystem: What tools may read and write.
        on_event: Gets every event of the log as it happens, and `TextDelta` where the provider streams; sync
            callables run on a worker thread.
        on_record: Like ``on_event``, with more data: gets the id of the run and the envelope of every event, so that
            the runs of `run_many` can be told apart; no text deltas.
        on_open: Called with the gate of the run before anything is spent. Its figures (``budget_status()``, ``left()``,
            ``usage``) may be read from any thread while the run goes on. It is sync and called on the run's loop; if it
            raises, so does the run.
        notify: Who is told about the run while it goes on, and of what: a `Notify`.
        telemetry: Makes OpenTelemetry spans and metrics of the run: a `watchkeeper.telemetry.Telemetry`. Runs that are
            started inside the run, and its subagents, are traced too.
        traceparent: The span of a caller (W3C trace context) below which the trace of the run goes on; by default the
            current span of OpenTelemetry, if the program uses that.
        on_context_full: When the model's context is full, ``compact`` summarises the conversation and goes on, ``land``
            (the default) takes a last turn, ``stop`` ends at once.
        store: Where the run is written while it goes on: the user's data folder by default, a path, or None.
        on_store_failure: When a write to the store has failed for 60 s, ``stop`` (the default) ends the run, with a
            last turn, because a run without a record can neither be inspected nor resumed; ``go_on`` goes on without
            the record, and the result's ``not_stored`` says so.
        durability: What the record survives: with ``process`` the death of the process, with ``power`` that of the
            machine, too; what waits for the record then waits for the disk. By default what the store was opened with.
        on_ask: What happens to a tool call about which a person is to be asked, where nobody answers: ``deny`` (the
            default); or ``park``, or a `Park` with an expiry: the run ends and waits for the answer, see
            docs/recovery.md. It needs a store.
        ledger: Where what is spent is kept, so that other processes and later runs count it: a ledger, or a file. By
            default a file in the user's data folder if the limits name an account, else this process's memory.
        raise_on_stop: Raise RunStoppedError instead of returning a stopped result.
        parent: None makes the run independent of the run, block or context in which it is started; its record says so.
            By default the run is part of it: the outer limits hold too, and its use is counted there.
        origin: How the run was started, kept on its record; the command line reads it when the run is resumed.
        clock: Time.
        ids: Identifiers.
        rng: Randomness, for backoff.
    """

    settings: ModelSettings
    prices: Mapping[str, ModelPrice]
    fallback: Sequence[Model | str]
    shield: ShieldPipeline | None
    breakers: CircuitBreakers | None
    resources: Resources
    filesystem: Filesystem
    on_event: Callable[[Any], Any]
    on_record: Callable[[UUID, Envelope], Any]
    on_open: Callable[[ExecutionContext], Any]
    notify: Notify | None
    telemetry: Tracer | None
    traceparent: str | None
    on_context_full: OnContextFull
    store: RunStore | StoreLike
    on_store_failure: OnStoreFailure
    durability: Durability | None
    on_ask: Park | OnAsk
    ledger: Ledger | LedgerLike
    raise_on_stop: bool
    parent: None
    origin: Mapping[str, Any]
    clock: Clock
    ids: IdSource
    rng: random.Random


class TaskOptions(RunOptions, total=False):
    """The options of `Agent.run_many`: the options of a run, and these.

    Attributes:
        each: Further limits of every single item; they can only tighten.
        concurrency: How many items run at once; 4 by default.
    """

    each: Limits | None
    concurrency: int


class ManyOptions(TaskOptions, total=False):
    """The options of `run_many` and `arun_many`: those of `TaskOptions`, and this one.

    Attributes:
        label: Names an item in results, logs and progress; ``str`` by default.
    """

    label: Callable[[Any], str]


NAMED: Final = ("model", "limits", "session", "each", "concurrency", "label")
"""Named arguments of `run` or `run_many` beside the options of every run."""


def options_for_run(given: RunOptions, kind: type[Any] = RunOptions) -> ManyOptions:
    """Return the options with resources of the run's own, so that no two runs share what one of them makes and closes.

    Args:
        given: The keyword arguments.
        kind: Which of them there are: `RunOptions` or `ManyOptions`.

    Raises:
        ConfigurationError: If a value has the wrong type for its name.
        TypeError: For an option that does not exist.
    """
    check_keywords(given, kind.__annotations__, NAMED)
    check_arguments(given)
    resources = given.get("resources")
    own: RunOptions = {**given, "resources": Resources() if resources is None else resources.for_run()}
    return cast("ManyOptions", own)
