"""Notices about one run while it goes on: a person is called while something can still be done.

`Notices` reads the run's events on the loop, one by one and after they have happened, so a notice never delays the run.
Of one kind there is at most one in ten minutes, by the times of the events; what comes sooner is counted, and the next
one of that kind says how much that was. Each is delivered on a worker thread in a bounded time, and is put on record as
a `NoticeSent`, with the reason if it could not be delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

from watchkeeper.app.telling.notify import END, Notify, delivered
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock, Timer
from watchkeeper.core.errors import ReducerError, Stop
from watchkeeper.core.secrets import HELD
from watchkeeper.core.text import logger, one_line
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.core.workers import run_in_worker
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.events import ItemEnded, ManyEnded, ModelReplied, NoticeSent, RunEnded, RunStarted
from watchkeeper.runtime.gauges import DEADLINE, Gauge, gauges_of
from watchkeeper.runtime.listener import Listener, one_by_one
from watchkeeper.runtime.parking import PARKED, CallParked
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session

APART_SECONDS: Final = 600.0
"""The least time between two notices of one kind."""

LAST_SECONDS: Final = 5.0
"""How long the end of a run waits for what happened to be told, and again for its own notice, in real time."""

LATE: Final = "it was not delivered yet when the run was over"
LONGEST: Final = 500
"""Characters of the sentence of a notice."""


class Notices:
    """Tells somebody about one run; made, used and closed on its loop."""

    def __init__(self, notify: Notify, name: str, clock: Clock) -> None:
        """Begin with nothing told.

        Args:
            notify: Who is told of what.
            name: Name of the prompt of the run.
            clock: The run's clock.
        """
        self._notify = notify
        self._name = name
        self._run_id = ""
        self.events = Listener[tuple[UUID, Envelope]]("notify", one_by_one(self._take))
        self._clock = clock
        self._gate: ExecutionContext | None = None
        self._session: Session | None = None
        self._turns: int | None = None
        self._items: dict[UUID, str] = {}
        self._waiting: dict[UUID, list[CallParked]] = {}  # by run, until it has parked
        self._parked: list[tuple[str | None, CallParked]] = []  # with the item, until it is told
        self._last: dict[str, datetime] = {}
        self._at = clock.now()
        self._held_back: dict[str, int] = {}
        self._told_of: set[tuple[int, str]] = set()
        self._timers: list[Timer] = []
        self._sending: dict[asyncio.Task[None], tuple[str, str]] = {}  # with kind and sentence
        self._is_over = False

    def opened(self, gate: ExecutionContext, session: Session) -> None:
        """Take the run's gate, which has its figures, and the session on which notices are recorded."""
        self._gate, self._session, self._run_id = gate, session, gate.metadata.chain_id
        account = gate.account
        if account.deadline is not None:
            for share in self._notify.shares:
                when = account.opened_at + account.whole_seconds * share / 100
                self._timers.append(self._clock.call_at(when, self._look_at_time))

    async def _take(self, run_id: UUID, envelope: Envelope) -> None:
        """Take one event of the run or of one below it."""
        event: object = envelope.event
        self._at = envelope.at
        item = self._items.get(run_id)
        match event:
            case RunStarted(item=str(label)):
                self._items[run_id] = label
            case ObserversRan():
                self._look_at_advice(event, item)
            case CallParked():
                self._waiting.setdefault(run_id, []).append(event)
            case ItemEnded():
                if event.run_id is not None:
                    self._items.pop(event.run_id, None)
                if _failed(event.stop):
                    self._tell("failed", f"Item {event.item!r} is not done. {event.sentence}", item=event.item)
            case RunEnded(stop=Stop(reason="parked")):
                self._parked += [(item, call) for call in self._waiting.pop(run_id, ())]
                self._tell_parked()
            case RunEnded(stop=stop) | ManyEnded(stop=stop) if str(run_id) == self._run_id:
                self._tell_parked(at_end=True)
                if stop is not None and _failed(stop):
                    self._tell("failed", f"The run was stopped. {stop.message}", reason=stop.reason)
            case ModelReplied() if str(run_id) == self._run_id:
                self._turns = event.turn
                self._look_at_limits()
            case NoticeSent():
                pass
            case _:
                self._look_at_limits()

    def _look_at_advice(self, ran: ObserversRan, item: str | None) -> None:
        for source in ran.runs:
            advice = source.advice
            if advice is not None and advice.severity == "warning":
                self._tell("warning", f"{source.source} warns: {advice.summary}", item=item, source=source.source)

    def _tell_parked(self, *, at_end: bool = False) -> None:
        """Tell of all calls for which runs have parked, if it may be told now, or the whole is over."""
        parked = self._parked
        if not parked or "parked" not in self._notify.kinds or not (at_end or self._may_tell("parked")):
            return
        self._parked = []
        self._last.pop("parked", None)
        items = {item for item, _ in parked}
        facts: dict[str, Any] = {
            "item": items.pop() if len(items) == 1 else None,
            "calls": [
                {"call_id": call.call_id, "tool": call.name, "question": call.question}
                | ({} if item is None else {"item": item})
                for item, call in parked
            ],
        }
        call = parked[0][1]
        said = f"The tool call {call.name} waits for an answer: {call.question}"
        if len(parked) == 1:
            facts |= {"call_id": call.call_id, "tool": call.name}
        else:
            asked = " ".join(f"{each.named}: {each.question}" for _, each in parked)
            said = f"{len(parked)} tool calls wait for answers. {asked}"
        self._tell("parked", said, **facts)

    def _look_at_time(self) -> None:
        self._at = self._clock.now()
        self._look_at_limits()

    def _look_at_limits(self) -> None:
        """Tell of every share that a limit has passed since the last look, if it may be told now.

        A limit that has ended the work has passed them all: what is left of it is kept for the last turn, or too
        little for another call.
        """
        gate = self._gate
        if gate is None or not self._notify.shares:
            return
        gauges, stop = gauges_of(gate, self._turns), gate.work_stop
        reached = None if stop is None else stop.limit
        for share in self._notify.shares:
            passed = [
                each
                for each in gauges
                if (each.share * 100 >= share or each.limit == reached) and (share, each.limit) not in self._told_of
            ]
            if passed and self._may_tell(f"{share}%"):
                self._told_of.update((share, each.limit) for each in passed)
                said = _of_limits(passed)
                if stop is not None and any(each.limit == reached and each.share * 100 < share for each in passed):
                    said = f"{said} {stop.message}"
                self._tell(f"{share}%", said, passed=[each.limit for each in passed])

    def _may_tell(self, kind: str) -> bool:
        last = self._last.get(kind)
        return last is None or abs((self._at - last).total_seconds()) >= APART_SECONDS  # a clock may be set back

    def _tell(self, kind: str, said: str, **more: Any) -> None:
        """Send a notice, if its kind is asked for and there was none of it for a while."""
        if kind not in self._notify.kinds:
            return
        if not self._may_tell(kind):
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        self._last[kind] = self._at
        sentence = one_line(said, LONGEST)
        held_back = self._held_back.pop(kind, 0)
        facts = {name: value for name, value in more.items() if value is not None}
        self._begin_to_send(kind, sentence, self._notice(kind, sentence, held_back=held_back, **facts))

    def _begin_to_send(self, kind: str, sentence: str, notice: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._send(kind, sentence, notice))
        self._sending[task] = (kind, sentence)
        task.add_done_callback(lambda over: self._sending.pop(over, None))

    def _notice(self, kind: str, sentence: str, **more: Any) -> dict[str, Any]:
        """Return a notice as data, without credentials."""
        notice: dict[str, Any] = {
            "notice": kind,
            "run_id": self._run_id,
            "prompt": self._name,
            "sentence": sentence,
            "at": self._at.isoformat(),
            **more,
            "figures": {} if self._gate is None else figures_of(self._gate, self._turns),
        }
        data: dict[str, Any] = HELD.redacted_data(notice)
        return data

    async def _send(self, kind: str, sentence: str, notice: dict[str, Any]) -> None:
        error = await run_in_worker(partial(delivered, self._notify, kind, notice, quiet=True))
        self._record(NoticeSent(kind, self._notify.name, sentence, error or "", self._clock.now()))

    def _record(self, sent: NoticeSent) -> None:
        if sent.error:
            logger().warning("notice.failed", notice=sent.notice, to=sent.to, error=sent.error)
        if self._session is not None:
            try:
                self._session.dispatch(sent)
            except ReducerError as error:
                logger().warning("notice.not_recorded", error=str(error))

    async def ended(self, result: RunResult[Any] | ManyResult[Any]) -> None:
        """Tell that the run is over, with its result, and wait for what is not delivered yet."""
        self._is_over = True
        await self.events.drained(LAST_SECONDS)
        await self._delivered()
        if END in self._notify.kinds:
            self._begin_to_send(END, one_line(result.sentence(), LONGEST), HELD.redacted_data(result.as_data()))
            await self._delivered()
        self._leave()

    async def _delivered(self) -> None:
        if self._sending:
            await asyncio.wait([*self._sending], timeout=LAST_SECONDS)

    async def close(self) -> None:
        """Tell nothing more; what takes too long is left to itself, and that is on record."""
        for timer in self._timers:
            timer.cancel()
        if not self._is_over:  # it was broken off
            await self.events.drained(LAST_SECONDS)
            await self._delivered()
            self._leave()

    def _leave(self) -> None:
        """Leave what takes too long to itself, and put that on record."""
        for task, (kind, sentence) in [*self._sending.items()]:
            task.cancel()
            self._record(NoticeSent(kind, self._notify.name, sentence, LATE, self._clock.now()))


def _failed(stop: Stop | None) -> bool:
    """Return whether an end is a failure; a parked run has a notice of its own."""
    return stop is not None and stop.reason != PARKED


def _of_limits(passed: list[Gauge]) -> str:
    """Say how much of limits is used."""
    said = ", ".join(
        f"{int(100 * each.share)}% of the {each.name} ({each.figure(each.used)} of {each.figure(each.most)})"
        for each in passed
    )
    return f"Used: {said}."


def figures_of(gate: ExecutionContext, turns: int | None = None) -> dict[str, Any]:
    """Return what a run has used and how full its limits are, as JSON-able data; money in exact dollars, as text."""
    used = gate.usage
    return {
        "elapsed_seconds": round(gate.elapsed_seconds, 3),
        "cost_usd": None if used.cost is None else str(used.cost),
        "tokens": used.tokens.total,
        "model_calls": used.model_calls,
        "tool_calls": used.tool_calls,
        "steps": used.steps,
        "limits": dict(_limits(gauges_of(gate, turns))),
    }


def _limits(gauges: tuple[Gauge, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    for gauge in gauges:
        write: Callable[[int], Any] = int
        if gauge.limit == DEADLINE:
            write = _seconds
        elif gauge.column == "cost_nanos":
            write = _dollars
        names = ("used", "presumed", "reserved", "left", "most")
        yield gauge.limit, {name: write(getattr(gauge, name)) for name in names}


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def _dollars(nanos: int) -> str:
    return str(Decimal(nanos) / NANOS_PER_USD)
