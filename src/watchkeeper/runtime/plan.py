"""What a run is given before it starts: frozen values, made by the composition root or by `evaluate`.

`RunPlan` says what to do and how; `RunHome` says where: whose session, whose gate, whose clock. They are msgspec
structs, because every run makes some and their many fields cost a dataclass microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Generic, Literal, TypeVar
from uuid import UUID

import msgspec

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock
from watchkeeper.core.ids import IdSource
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.price import ModelPrice
from watchkeeper.core.run_context import RunContext
from watchkeeper.prompt.completion import TaskCompletionChecker
from watchkeeper.prompt.observer import SourceConfig
from watchkeeper.prompt.rendered import RenderedPrompt
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.resources import Resources

OutputT = TypeVar("OutputT")
OnContextFull = Literal["land", "stop"]

MAX_RESULT_BYTES = 32_768
"""A tool result longer than this is cut, with a note, before the model sees it."""


class PricedModel(msgspec.Struct, frozen=True):
    """A model with what the run knows of it.

    Attributes:
        model: Who answers.
        price: What it charges, or None if nobody knows.
        settings: How it is asked.
    """

    model: Model
    price: ModelPrice | None
    settings: ModelSettings = ModelSettings()

    @property
    def label(self) -> str:
        """``provider:name``."""
        return f"{self.model.provider}:{self.model.name}"


class RunPlan(msgspec.Struct, Generic[OutputT], frozen=True):
    """What a run does.

    Attributes:
        prompt: The rendered prompt, with its tools and output type.
        model: Who answers.
        price: What the model charges, or None if nobody knows.
        settings: How the model is asked.
        checker: Who says whether the work is done, or None.
        on_context_full: ``land`` takes a last turn, ``stop`` ends at once.
        parse_output: Whether the final text is parsed into the output type.
        on_delta: Where text goes as it arrives, or None.
        fallback: Who takes over, in this order, when the model cannot answer.
        cheaper: Who takes over where a hook says DEGRADE, or None; may be one of ``fallback``.
        sources: Who advises the agent: observers, then feedback providers.
        escalations: By source, who takes over if its advice is not heeded.
    """

    prompt: RenderedPrompt[OutputT]
    model: Model
    price: ModelPrice | None
    settings: ModelSettings = ModelSettings()
    checker: TaskCompletionChecker | None = None
    on_context_full: OnContextFull = "land"
    parse_output: bool = True
    on_delta: Callable[[str], None] | None = None
    fallback: tuple[PricedModel, ...] = ()
    cheaper: PricedModel | None = None
    sources: tuple[SourceConfig, ...] = ()
    escalations: Mapping[str, PricedModel] = msgspec.field(default_factory=dict[str, PricedModel])

    @property
    def models(self) -> tuple[PricedModel, ...]:
        """Every model of the run: the one that was asked for, those that take over, the cheaper one, escalations."""
        line = [PricedModel(self.model, self.price, self.settings), *self.fallback]
        for other in (self.cheaper, *self.escalations.values()):
            if other is not None and not any(each.model is other.model for each in line):
                line.append(other)
        return tuple(line)


class Place(msgspec.Struct, frozen=True):
    """Which item of a run over many a run is.

    Attributes:
        parent_run_id: The run over many.
        item: The item's label.
    """

    parent_run_id: UUID
    item: str


class RunHome(msgspec.Struct, frozen=True):
    """Where a run lives.

    Attributes:
        session: Its log and slices.
        gate: What admits its calls.
        run_context: Its identifiers.
        clock: Its time.
        ids: Its identifiers' source.
        rng: Its randomness, for backoff.
        resources: What its tools may ask for.
        filesystem: What its tools may read and write, or None.
        place: Which item of a run over many it is, or None.
    """

    session: Session
    gate: ExecutionContext
    run_context: RunContext
    clock: Clock
    ids: IdSource
    rng: random.Random = msgspec.field(default_factory=random.Random)
    resources: Resources = msgspec.field(default_factory=Resources)
    filesystem: Filesystem | None = None
    place: Place | None = None
