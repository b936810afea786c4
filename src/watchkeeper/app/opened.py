"""What is open during one call of `run`, `run_many` or their twins: gate, session, models, store, listeners."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

from watchkeeper.app.options import ManyOptions
from watchkeeper.app.surroundings import Surroundings
from watchkeeper.children.inside import Surrounding
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock
from watchkeeper.core.codec import CodecError
from watchkeeper.core.ids import SYSTEM_IDS, RunContext
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.usage import ModelPrice, Usage
from watchkeeper.loop.resume import Resumed
from watchkeeper.loop.resume_many import ResumedMany
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.parking import Park, park_of
from watchkeeper.runtime.plan import RunPlan, RunScope, plan_for
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import check
from watchkeeper.tools.resources import Resources

OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class Start:
    """What is known of a run before anything is opened for it.

    Attributes:
        around: The run, block or context in which the run is started.
        clock: The source of time.
        session: The session whose log gets the run's events.
        context: The identifiers of the run.
        limits: The limits in force.
        resumed: What an earlier process has put on record of the run, or None for a new one.
        gates: The gate of the run, once it is open.
    """

    around: Surrounding
    clock: Clock
    session: Session
    context: RunContext
    limits: Limits
    resumed: Resumed | ResumedMany | None = None
    gates: list[ExecutionContext] = field(default_factory=list[ExecutionContext])

    @property
    def usage(self) -> Usage:
        """What was used so far."""
        return self.gates[0].usage if self.gates else Usage()


@dataclass(frozen=True, slots=True)
class Opened(Generic[OutputT]):
    """What is open during one call of a public function: its gate, its session, models, store and listeners."""

    prompt: Prompt[OutputT]
    options: ManyOptions
    resources: Resources
    around: Surroundings
    gate: ExecutionContext
    start: Start

    def begun(self) -> None:
        """Put the start of the run into the store, if it has one."""
        if self.around.record is not None:
            self.around.record.begun()

    def plan(self, prompt: Prompt[OutputT], gate: ExecutionContext) -> RunPlan[OutputT]:
        """Render a prompt, once, and return the plan of its run."""
        models = self.around.models
        return plan_for(
            prompt,
            prompt.render(deadline=gate.deadline, output_in_prompt=models.output_in_prompt),
            models.first,
            on_context_full=self.options.get("on_context_full", "land"),
            on_delta=self.around.on_delta,
            fallback=models.fallback,
            cheaper=models.cheaper,
            escalations=models.escalations,
            child_models=models.children,
            park=self.park,
        )

    @property
    def park(self) -> Park | None:
        """How the run parks where a person is to be asked; a resumed run does so as before unless told otherwise."""
        resumed, chosen = self.start.resumed, self.options.get("on_ask")
        if chosen is None:
            return None if resumed is None else resumed.opened.park
        return park_of(chosen)

    def scope(
        self,
        session: Session,
        gate: ExecutionContext,
        context: RunContext,
        parent_run_id: UUID | None = None,
        item: str | None = None,
        item_index: int | None = None,
    ) -> RunScope:
        """Return the scope of a run."""
        around = self.start.around
        return RunScope(
            session=session,
            gate=gate,
            run_context=context,
            clock=self.start.clock,
            ids=self.options.get("ids", SYSTEM_IDS),
            rng=self.options.get("rng", SYSTEM_IDS.random),
            resources=self.resources,
            filesystem=self.options.get("filesystem"),
            parent_run_id=parent_run_id or around.parent_run_id,
            item=item,
            depths=around.depths,
            deepest=around.deepest,
            watch=partial(self.around.watch, child=True),
            price_of=partial(_price_for_sdk, self),
            apart=around.apart,
            waits_out=item is not None and self.options.get("breakers") is None,
            durable=self.around.durable,
            item_index=item_index,
        )


def _price_for_sdk(opened: Opened[Any], provider: str, model: str, sent: Any) -> ModelPrice | None:
    """Return the price of a model that the run's code calls through a provider's own SDK."""
    from watchkeeper.app.prices import lookup

    return lookup(opened.options.get("prices") or {}, opened.start.clock)(provider, model, sent)


def to_go_on(opened: Opened[Any], why: str = "") -> dict[str, Any]:
    """Return what another process needs to go on with the run, as fields of `RunOpened`; ``why`` it could not."""
    prompt, options = opened.prompt, opened.options
    params, variables = tuple(prompt.params.values()), dict(prompt.variables)
    try:
        check((params, variables))
    except CodecError as error:
        params, variables, why = (), {}, f"its parameters cannot be stored: {error}"
    origin = options.get("origin", {})
    return {"origin": origin, "params": params, "variables": variables, "not_resumable": why}
