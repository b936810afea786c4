"""The inputs of a run, as frozen values; the code that starts a run creates them.

`RunPlan` holds the task and the models; `RunScope` holds session, gate, clock and files. They are msgspec structs,
because every run creates some and a dataclass with so many fields would take microseconds more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, get_args
from uuid import UUID

import msgspec

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import ConfigurationError, ReducerError, StoreError
from watchkeeper.core.ids import IdSource, RunContext
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.usage import ModelPrice
from watchkeeper.prompt.completion import COMPLETION_ROUNDS, TaskCompletionChecker
from watchkeeper.prompt.evaluation import NestedExecutionConfig
from watchkeeper.prompt.observer import SourceConfig
from watchkeeper.prompt.evaluation import RenderedPrompt
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import CallBegun, ReducerFailed
from watchkeeper.runtime.file_record import FilesChanged
from watchkeeper.runtime.parking import Park
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.resources import Resources

OutputT = TypeVar("OutputT")
OnContextFull = Literal["compact", "land", "stop"]
CONTEXT_CHOICES: Final[tuple[str, ...]] = get_args(OnContextFull)

MAX_RESULT_BYTES = 32_768
"""A tool result longer than this is cut, with a note, before the model sees it."""


class PricedModel(msgspec.Struct, frozen=True):
    """A model with its price and settings.

    Attributes:
        model: The model that answers.
        price: Its price, or None if unknown.
        settings: The settings of its requests.
    """

    model: Model
    price: ModelPrice | None
    settings: ModelSettings = ModelSettings()

    @property
    def provider(self) -> str:
        """The provider's name, as events carry it."""
        return self.model.provider

    @property
    def label(self) -> str:
        """``provider:name``."""
        return f"{self.model.provider}:{self.model.name}"


class RunPlan(msgspec.Struct, Generic[OutputT], frozen=True):
    """What a run does.

    Attributes:
        prompt: The rendered prompt, with its tools and output type.
        model: The model that answers.
        checker: The completion checker, or None.
        on_context_full: ``compact`` goes on with a summary, ``land`` takes a last turn, ``stop`` ends at once.
        parse_output: Whether the final text is parsed into the output type.
        on_delta: Where text goes as it arrives, or None.
        fallback: The models that take over, in this order, when the model cannot answer.
        cheaper: The model that takes over if a hook answers DEGRADE, or None; may be one of ``fallback``.
        sources: The observers, then the feedback providers, that advise the agent.
        escalations: By source, the model that takes over if its advice is not followed.
        completion_rounds: How often "incomplete" may send the agent back to work.
        nested: What nested evaluations may do, or None for the defaults.
        child_models: Models that the template names for its children, by what it names them with.
        park: How the run parks where a person is to be asked and nobody answers; None to deny the call.
    """

    prompt: RenderedPrompt[OutputT]
    model: PricedModel
    checker: TaskCompletionChecker | None = None
    on_context_full: OnContextFull = "land"
    parse_output: bool = True
    on_delta: Callable[[str], None] | None = None
    fallback: tuple[PricedModel, ...] = ()
    cheaper: PricedModel | None = None
    sources: tuple[SourceConfig, ...] = ()
    escalations: Mapping[str, PricedModel] = msgspec.field(default_factory=dict[str, PricedModel])
    completion_rounds: int = COMPLETION_ROUNDS
    nested: NestedExecutionConfig | None = None
    child_models: Mapping[Any, PricedModel] = msgspec.field(default_factory=dict[Any, PricedModel])
    park: Park | None = None

    @property
    def models(self) -> tuple[PricedModel, ...]:
        """Every model of the run: the one that was asked for, those that take over, the cheaper one, escalations."""
        line = [self.model, *self.fallback]
        for other in (self.cheaper, *self.escalations.values()):
            if other is not None and not any(each.model is other.model for each in line):
                line.append(other)
        return tuple(line)


def plan_for(
    prompt: Prompt[OutputT], rendered: RenderedPrompt[OutputT], model: PricedModel, **more: Any
) -> RunPlan[OutputT]:
    """Return the plan for a prompt: what its template declares, and ``more`` of the fields of `RunPlan`."""
    template = prompt.template
    return RunPlan(
        rendered,
        model,
        checker=template.task_completion_checker,
        sources=template.sources,
        completion_rounds=template.completion_rounds,
        nested=template.nested_execution_config,
        **more,
    )


def refuse_model_switches(template: PromptTemplate[Any], who: str, instead: str) -> None:
    """Refuse a source that escalates to another model where there is only one.

    Args:
        template: The template whose sources are checked.
        who: The thing that has only one model, for the message.
        instead: The recommended replacement, for the message.

    Raises:
        ConfigurationError: Naming the source.
    """
    for source in template.sources:
        if source.escalate is not None and source.escalate.action == "switch_model":
            raise ConfigurationError(
                f"{who} has one model, so the advice of {source.name!r} cannot escalate to another; use {instead}"
            )


class NotOnRecordError(StoreError):
    """A call was not begun, because it could not be put on record before."""


class Durable(Protocol):
    """Where a run's events go that must be on record before it goes on."""

    async def begin_call(self, run_id: UUID, call: CallBegun | FilesChanged) -> None:
        """Put on disk that a call begins, or which files its commit is about to change; see `barrier`."""
        ...

    def write_ahead(self, run_id: UUID, call: CallBegun) -> None:
        """Put on disk, on any thread and at once, that a call begins which the code of a run makes.

        Raises:
            StoreError: If it cannot be written, and the run is not to go on without its record.
        """
        ...

    def hold(self, run_id: UUID) -> None:
        """Let what a run records from now on belong together: a crash leaves all of it on record, or nothing."""
        ...

    def release(self, run_id: UUID) -> None:
        """End what belongs together, with the event that was recorded last."""
        ...

    async def barrier(self) -> bool:
        """Return once everything that was recorded so far is on disk; False if the run goes on without its record.

        Raises:
            StoreError: If it cannot be written, and the run is not to go on without its record.
        """
        ...


class RunScope(msgspec.Struct, frozen=True, weakref=True):
    """The session, gate, clock and files of a run.

    Attributes:
        session: The session with the log and the slices of the run.
        gate: The gate that admits the run's calls.
        run_context: The identifiers of the run.
        clock: The source of time.
        ids: The source of identifiers.
        rng: The source of randomness, for backoff.
        resources: The resources that its tools may request.
        filesystem: What its tools may read and write, or None.
        parent_run_id: The run above it, which started this child or runs over many items, or None.
        item: Which item of a run over many this is, or None.
        item_index: The number of the item, from 0.
        depths: Its nesting depth by family, itself included (`children.child`).
        deepest: The maximum depth by family, as set by the runs above it.
        watch: Forwards the events of a child's session, given the id of its run; returns a function that ends it.
        price_of: Returns the price of a provider's model for a call that the run's code makes with a provider's own
            SDK, given the call; None if unknown.
        apart: Whether it was started inside another run or context but is independent of it (``parent=None``).
        waits_out: Whether a call waits while the breaker of its provider is open, instead of ending the run.
        densities: Input tokens per byte, by ``provider:name`` of the model, as last counted in this run or those around
            it; only for estimates.
        durable: Where its events are stored, or None without a store.
    """

    session: Session
    gate: ExecutionContext
    run_context: RunContext
    clock: Clock
    ids: IdSource
    rng: random.Random = msgspec.field(default_factory=random.Random)
    resources: Resources = msgspec.field(default_factory=Resources)
    filesystem: Filesystem | None = None
    parent_run_id: UUID | None = None
    item: str | None = None
    depths: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    deepest: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    watch: Callable[[Session, UUID], Callable[[], None]] | None = None
    price_of: Callable[[str, str, Any], ModelPrice | None] | None = None
    apart: bool = False
    waits_out: bool = False
    densities: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    durable: Durable | None = None
    item_index: int | None = None

    async def begin_call(self, call: CallBegun | FilesChanged, *, last: bool = False) -> None:
        """Put on disk that a call is about to begin, or its commit to change files, if there is a store.

        Args:
            call: The call, or the changes.
            last: Whether it is the last turn, which is taken even if nothing can be put on record any more.

        Raises:
            NotOnRecordError: If it cannot be put on record: then it must not begin.
        """
        if self.durable is None:
            return
        try:
            await self.durable.begin_call(self.run_context.run_id, call)
        except StoreError as error:
            if not last:
                raise NotOnRecordError(str(error)) from error

    async def all_on_record(self) -> None:
        """Return once everything that was recorded so far is on disk, if there is a store.

        Raises:
            NotOnRecordError: If it cannot be put on record: then what follows from it must not begin.
        """
        if self.durable is not None:
            try:
                await self.durable.barrier()
            except StoreError as error:
                raise NotOnRecordError(str(error)) from error

    def record(self, event: Any) -> None:
        """Write one of the runtime's own events on the log.

        If a reducer of the user raises on the event, the run goes on: the session has recorded the event, and the
        failure is recorded as an event of its own.
        """
        try:
            self.session.dispatch(event)
        except ReducerError as error:
            if not isinstance(event, ReducerFailed):
                self.record(ReducerFailed(type(event).__name__, str(error), self.clock.now()))
