"""Asking observers and feedback providers, whatever they do: they may raise, hang, or answer nonsense; the run goes on.

Sync ones are asked one after the other on one worker thread, in one hand-off; async ones on the loop. Each has a time
limit of its own. One that overruns is left behind with its thread, and the rest are asked on another.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import Clock
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.workers import Patience, run_in_worker
from watchkeeper.prompt.advice import Advice, Assessment, Feedback
from watchkeeper.prompt.observer_context import FeedbackContext
from watchkeeper.runtime.bounded import RunOverError, within
from watchkeeper.runtime.events import SourceRan
from watchkeeper.runtime.sources import Source


class Round(NamedTuple):
    """One look of the sources that are due.

    Attributes:
        context: What they may look at; its ``advice`` grows while they are asked.
        said: What was said so far: the list behind ``context.advice``.
        call_index: Tool calls so far.
        at: This moment, in UTC.
        share: The largest share of a limit that is used.
    """

    context: FeedbackContext
    said: list[Advice]
    call_index: int
    at: datetime
    share: float


async def ask_all(due: Sequence[Source], round_: Round, gate: ExecutionContext, clock: Clock) -> list[SourceRan]:
    """Ask every source that is due; return what came of those that spoke or failed.

    It returns early if the run is over meanwhile.
    """
    runs: list[SourceRan] = []
    for is_async, group in groupby(due, attrgetter("is_async")):
        sources = list(group)
        if is_async:
            for source in sources:
                runs += await _ask_on_loop(source, round_, gate, clock)
            continue
        while sources and gate.work_stop is None:
            looks = Looks(sources, round_, gate, clock)
            try:
                await run_in_worker(looks, patience=Patience(looks.until, clock, gate.cancellation))
            except TimeoutError:
                looks.left = True
            sources = looks.rest()
            runs += looks.runs
    return runs


class Looks:
    """The sync sources of one hand-off; called on a worker thread.

    Attributes:
        runs: What came of those that spoke or failed.
        left: Set when nobody waits for it any more: it asks no further source.
    """

    def __init__(self, sources: Sequence[Source], round_: Round, gate: ExecutionContext, clock: Clock) -> None:
        """Begin before the first of them."""
        self._sources = sources
        self._round = round_
        self._clock = clock
        deadline = gate.work_deadline
        self._over = float("inf") if deadline is None else deadline.instant(clock)
        self._place = 0
        self._began = clock.monotonic()
        self.runs: list[SourceRan] = []
        self.left = False

    def __call__(self) -> None:
        """Ask them, one after the other."""
        for place, source in enumerate(self._sources):
            if self.left:
                return
            self._began = self._clock.monotonic()
            self._place = place
            ran = look(source, self._round)
            if ran is not None and not self.left:
                self.runs.append(ran)
        self._place = len(self._sources)

    def until(self) -> float:
        """Return the instant at which the one that is asked now has overrun, or the run is over."""
        return min(self._began + self._sources[min(self._place, len(self._sources) - 1)].limit_seconds, self._over)

    def rest(self) -> list[Source]:
        """Return those that are still to be asked; the one that overran is recorded and skipped."""
        if not self.left or self._place >= len(self._sources):
            return []
        late = self._sources[self._place]
        if self._clock.monotonic() >= self._began + late.limit_seconds:
            self.runs.append(overran(late))
        return list(self._sources[self._place + 1 :])


def look(source: Source, round_: Round) -> SourceRan | None:
    """Ask one sync source; return what came of it, or None if it had nothing to say."""
    try:
        if not _as_bool(_should_run(source, round_)):
            source.grave = 0
            return None
        said = _speak(source, round_)
        return _ran(source, said, round_)
    except Exception as error:
        return SourceRan(source.name, "failed", error=f"{type(error).__name__}: {error}")


async def _ask_on_loop(source: Source, round_: Round, gate: ExecutionContext, clock: Clock) -> Sequence[SourceRan]:
    """Ask one async source within its time limit; nothing, or what came of it."""
    if gate.work_stop is not None:
        return ()
    began = clock.monotonic()
    until = began + source.limit_seconds
    try:
        ran = await within(gate, _look_async(source, round_), clock, until)
    except RunOverError:
        ran = overran(source) if clock.monotonic() >= until else None
    except Exception as error:
        ran = SourceRan(source.name, "failed", error=f"{type(error).__name__}: {error}")
    return () if ran is None else (ran,)


async def _look_async(source: Source, round_: Round) -> SourceRan | None:
    wanted = _should_run(source, round_)
    if not _as_bool(await wanted if inspect.isawaitable(wanted) else wanted):
        source.grave = 0
        return None
    said = _speak(source, round_)
    return _ran(source, await said if inspect.isawaitable(said) else said, round_)


def overran(source: Source) -> SourceRan:
    """Return what is recorded of a source that took too long."""
    took = f"took longer than {format_duration(source.limit_seconds)} and is off for the rest of the run"
    return SourceRan(source.name, "overran", error=took)


def _should_run(source: Source, round_: Round) -> Any:
    if source.is_observer:
        return source.should_run(round_.context.session, context=round_.context)
    return source.should_run(context=round_.context)


def _speak(source: Source, round_: Round) -> Any:
    if source.is_observer:
        return source.speak(round_.context.session, context=round_.context)
    return source.speak(context=round_.context)


def _ran(source: Source, said: object, round_: Round) -> SourceRan | None:
    """Stamp what was said, and let the sources that follow read it."""
    if said is None:
        source.grave = 0
        return None
    expected = Assessment if source.is_observer else Feedback
    if not isinstance(said, expected):
        if inspect.iscoroutine(said):
            said.close()
        raise TypeError(f"{_verb(source)}() must return {expected.__name__} or None, not {said!r}")
    advice = said.stamped(source.name, round_.call_index, round_.at)
    round_.said.append(advice)
    return SourceRan(source.name, "advised", advice, None, round_.share)


def _verb(source: Source) -> str:
    return "observe" if source.is_observer else "provide"


def _as_bool(wanted: object) -> bool:
    if inspect.iscoroutine(wanted):
        wanted.close()
        raise TypeError("should_run() returned a coroutine; declare it `async def`, so that it is asked on the loop")
    return bool(wanted)
