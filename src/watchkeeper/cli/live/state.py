"""What the live view of a run shows: a fold of the run's events, and the figures of its gate at one moment.

`Follower` takes events one at a time, each in a few instructions, and only notes what they say; `seen` puts it together
with the gauges into a `View`, a plain value that tests make by hand. Nothing here knows of a terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from watchkeeper.cli.stored.listing import SHORT_ID
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.core.usage import Usage
from watchkeeper.runtime.events import (
    ItemEnded,
    ManyEnded,
    ManyStarted,
    ModelReplied,
    ModelSwitched,
    RunEnded,
    RunResumed,
    RunStarted,
)
from watchkeeper.runtime.gauges import Gauge, gauges_of, projected_end
from watchkeeper.store.states import words_for

KINDS: Final = {"llm": "model", "tool": "tool", "child": "run"}
"""What a call under way is called, by its kind."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Something that goes on.

    Attributes:
        what: ``model``, ``tool``, ``run`` or, of a run over many, empty.
        name: Its name: of the model, the tool, the item.
        seconds: For how long.
    """

    what: str
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Items:
    """How the items of a run over many stand."""

    total: int
    done: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        """Items that are not over."""
        return self.total - self.done - self.failed


@dataclass(frozen=True, slots=True)
class Advised:
    """What an observer said last."""

    source: str
    severity: str
    summary: str


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the live view shows at one moment.

    Attributes:
        name: Name of the prompt.
        model: The model that answers.
        elapsed: Seconds since the run began, or went on.
        cost_nanos: What it has cost so far, in all attempts; None if unknown.
        gauges: The limits.
        end: Which limit ends it first, by its column, and when, as local time; None while nobody can say.
        now: The same clock's present time.
        under_way: What goes on, the oldest first.
        items: Of a run over many; None for one run.
        advice: The last advice, or None.
        ended: How it ended: ``done``, how many items are done, or what stopped it, in words; empty while it goes on.
    """

    name: str
    model: str
    elapsed: float
    cost_nanos: int | None
    now: datetime
    gauges: tuple[Gauge, ...] = ()
    end: tuple[str, datetime] | None = None
    under_way: tuple[UnderWay, ...] = ()
    items: Items | None = None
    advice: Advised | None = None
    ended: str = ""


def local(moment: datetime) -> datetime:
    """Return a moment in the time of this machine."""
    return moment.astimezone()


class Follower:
    """Follows one run, or one over many items, with what is below it.

    Attributes:
        changed: Whether something was noted since `seen` was called.
    """

    def __init__(self, clock: Clock, localised: Callable[[datetime], datetime] = local) -> None:
        """Follow a run whose gate is told to `opened`.

        Args:
            clock: The run's clock.
            localised: Turns a moment into the time that people read.
        """
        self._clock = clock
        self._localised = localised
        self._gate: ExecutionContext | None = None
        self._before: tuple[Gauge, ...] = ()
        self._steps_before = 0
        self._earlier = Usage()
        self._own: UUID | None = None
        self._name = self._model = self._ended = ""
        self._turns: int | None = None
        self._advice: Advised | None = None
        self._total: int | None = None
        self._done = self._failed = 0
        self._items: dict[UUID, tuple[str, datetime]] = {}
        self.changed = False

    def opened(self, gate: ExecutionContext) -> None:
        """Take the gate of the run, which has its figures."""
        self._gate, self._before, self._steps_before = gate, gauges_of(gate), gate.usage.steps

    def take(self, run_id: UUID, event: object) -> None:
        """Note what one event says."""
        match event:
            case ManyStarted():
                self._begin(run_id, event.prompt_name, event.model)
                self._total = len(event.items)
            case RunStarted(item=str(item)):
                self._items[run_id] = item, event.started_at
            case RunStarted() if self._own is None:
                self._begin(run_id, event.prompt_name, event.model)
                self._turns = 0
            case RunResumed() if self._own is None:
                self._begin(run_id, f"resumed run {str(run_id)[:SHORT_ID]}", "")
                self._earlier = event.earlier.usage
                self._total = len(event.items) or None
            case ItemEnded():
                self._item_ended(event)
            case ModelReplied() if run_id == self._own:
                self._turns = event.turn
            case ModelSwitched() if run_id == self._own:
                self._model = event.to_model
            case ObserversRan():
                self._advised(event)
            case ManyEnded(stop=None) if run_id == self._own and event.done < event.items:
                self._ended = f"{event.done:,} of {event.items:,} done"
            case RunEnded(stop=stop) | ManyEnded(stop=stop) if run_id == self._own:
                self._ended = "done" if stop is None else words_for(stop.reason)
            case _:
                return
        self.changed = True

    def _begin(self, run_id: UUID, name: str, model: str) -> None:
        self._own, self._name, self._model = run_id, name, model

    def _item_ended(self, event: ItemEnded) -> None:
        self._done += event.stop is None
        self._failed += event.stop is not None
        if event.run_id is not None:
            self._items.pop(event.run_id, None)

    def _advised(self, event: ObserversRan) -> None:
        for ran in event.runs:
            if ran.advice is not None and ran.advice.severity != "suspicion":
                self._advice = Advised(ran.source, ran.advice.severity, ran.advice.summary)

    def seen(self) -> View | None:
        """Return what there is to see now; None before the run has begun."""
        self.changed = False
        gate = self._gate
        if gate is None or self._own is None:
            return None
        now, elapsed, used = self._localised(self._clock.now()), gate.elapsed_seconds, gate.usage
        gauges, end = gauges_of(gate, self._turns), None
        if self._ended:
            gauges = tuple(replace(gauge, reserved=0) for gauge in gauges)  # there is no last turn any more
        else:
            found = projected_end(self._before, gauges, used.steps - self._steps_before, elapsed)
            end = None if found is None else (found.column, now + timedelta(seconds=found.seconds))
        items = None if self._total is None else Items(self._total, self._done, self._failed)
        under_way = () if self._ended else self._under_way(gate)
        return View(
            self._name,
            self._model,
            elapsed,
            (used + self._earlier).cost_nanos,
            now,
            gauges,
            end,
            under_way,
            items,
            self._advice,
            self._ended,
        )

    def _under_way(self, gate: ExecutionContext) -> tuple[UnderWay, ...]:
        """Return the items that go on, of a run over many, else the calls at the gate."""
        now = self._clock.now()
        if self._total is not None:
            items = tuple(self._items.values())  # another thread may add one meanwhile
            return tuple(UnderWay("", item, (now - began).total_seconds()) for item, began in items)
        nodes = [call.node for call in gate.in_flight]
        at = self._clock.monotonic()
        going_on = [node for node in nodes if node.ending is None]
        return tuple(UnderWay(KINDS.get(each.kind, each.kind), each.name, at - each.began) for each in going_on)
