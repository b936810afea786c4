"""What the engine remembers of one observer or feedback provider: a fold of the log, never a state of its own.

When it last spoke, how gravely, what of it the agent has not been told yet, until when it is to be quiet, whether it is
off. All of it can be made from the session's slices at any time, and is, after a rollback or when a session goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.clock import Clock
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import error_text, storable
from watchkeeper.core.workers import Patience, has_passing, run_in_worker
from watchkeeper.prompt.advice import SEVERITIES, Advice, Assessment, Feedback, Severity
from watchkeeper.prompt.observer import (
    TREND_SPAN,
    FeedbackContext,
    ObserverConfig,
    ObserverTrigger,
    SourceConfig,
    is_on_loop,
)
from watchkeeper.runtime.events import AdviceAcknowledged, SourceRan
from watchkeeper.runtime.user_code import RunOverError, StrayCancellationError, is_cancelled, over_at, within

KEPT_SEVERITIES: Final = 10 * TREND_SPAN


class Source:
    """One source of advice.

    Attributes:
        config: As the template declares it.
        name: Its name.
        limit_seconds: What one look may take.
        is_observer: Whether it has the observer's face.
        is_async: Whether a method of its own is ``async def``.
        asks_on_loop: Whether its ``should_run`` is marked to be asked on the loop.
        speaks_on_loop: Whether both its methods are.
        should_run: The user's method.
        speak: The user's method: ``observe`` or ``provide``.
        about_limits: Whether it speaks of hard limits; its warnings are then never held back.
        off: Whether it overran its time and is not asked any more.
        spoke_at_call: Tool calls when it last spoke or failed; 0 before.
        spoke_at: When that was, or None.
        marks: How many shares of limits, of those that it is to be asked at, were passed then.
        file_seen: Whether the awaited file was there when it was last looked for.
        severities: Of its newest advice, the oldest first.
        waiting: Advice that the agent has not been told yet.
        quiet_until: Tool call up to which it is to be quiet.
        grave: Pieces of advice in a row that count for its escalation.
    """

    def __init__(self, config: SourceConfig) -> None:
        """Remember nothing yet."""
        self.config = config
        self.name = config.name
        self.trigger: ObserverTrigger = config.trigger
        self.limit_seconds = config.limit_seconds
        self.is_observer = isinstance(config, ObserverConfig)
        self.should_run: Callable[..., Any] = config.source.should_run
        self.speak: Callable[..., Any] = config.source.observe if self.is_observer else config.source.provide
        self.is_async = any(inspect.iscoroutinefunction(method) for method in (self.should_run, self.speak))
        self.asks_on_loop = is_on_loop(self.should_run)
        self.speaks_on_loop = self.asks_on_loop and is_on_loop(self.speak)
        self.about_limits = bool(getattr(config.source, "about_limits", False))
        self.file_seen = False
        self.off = False
        self.severities: deque[Severity] = deque(maxlen=KEPT_SEVERITIES)
        self.forget()

    def forget(self) -> None:
        """Go back to the beginning, to follow another log; who is off stays off for the rest of the run."""
        self.spoke_at_call = 0
        self.spoke_at: datetime | None = None
        self.marks = 0
        self.severities.clear()
        self.waiting: Advice | None = None
        self.quiet_until = 0
        self.grave = 0

    def begin_run(self) -> None:
        """Forget what held for an earlier run only."""
        self.off = False
        self.marks = 0

    def passed(self, budget: BudgetStatus) -> int:
        """Return how many shares of its trigger are passed, each counted for every limit that has passed it."""
        shares = self.trigger.shares
        return sum(used >= each for used in budget.shares.values() for each in shares) if shares else 0

    def is_quiet(self, call_index: int) -> bool:
        """Return whether the agent asked it to be quiet; one that speaks of hard limits still looks."""
        return call_index <= self.quiet_until and not self.about_limits

    def follow(self, ran: SourceRan, call_index: int, at: datetime) -> None:
        """Take in what came of asking it; one that failed waits for its cadence as one that spoke does."""
        if ran.outcome == "overran":
            self.off = True
        if ran.outcome == "silent":
            self.grave = 0
            return
        self.spoke_at_call, self.spoke_at = call_index, at
        self.marks = ran.marks
        advice = ran.advice
        if advice is None:
            return
        self.severities.append(advice.severity)
        if call_index <= self.quiet_until and not self._holds_back_nothing(advice):
            return  # the agent is not told, so it cannot be said not to heed it
        self.waiting = advice
        escalate = self.config.escalate
        if escalate is not None:
            graver = SEVERITIES.index(advice.severity) >= SEVERITIES.index(escalate.severity)
            self.grave = self.grave + 1 if graver else 0

    def answered(self, answer: AdviceAcknowledged) -> None:
        """Take in that the agent answered it."""
        self.quiet_until = answer.call_index + answer.for_calls
        self.grave = 0
        if self.waiting is not None and not self._holds_back_nothing(self.waiting):
            self.waiting = None

    def deliver(self, call_index: int) -> Advice | None:
        """Return what the agent is told now, once; what is too old, or not wanted, is dropped."""
        advice, self.waiting = self.waiting, None
        if advice is None or advice.is_stale(call_index, self.config.max_age_calls):
            return None
        return None if call_index <= self.quiet_until and not self._holds_back_nothing(advice) else advice

    def _holds_back_nothing(self, advice: Advice) -> bool:
        return self.about_limits and advice.severity == "warning"


# --- asking ---------------------------------------------------------------------------------------------------------
# Asking observers and feedback providers, whatever they do: they may raise, hang, or answer nonsense; the run goes on.
#
# They are asked in their order: async methods and those marked `on_loop` on the loop, the others on a worker thread, as
# many as follow one another in one hand-off. Each source has a time limit of its own. One that overruns it on a
# thread is
# left behind with the thread, and the rest are asked on another. Once the run is over nobody is asked any more.
# Whatever
# they raise or return is recorded and bounded; only what passes everybody passes (`core.crashes`).

ERROR_CHARS: Final = 500
"""Longer errors are cut."""


class Round(NamedTuple):
    """One look of the sources that are due.

    Attributes:
        context: What they may look at; its ``advice`` grows while they are asked.
        said: What was said so far: the list behind ``context.advice``.
        call_index: Tool calls so far.
        at: This moment, in UTC.
    """

    context: FeedbackContext
    said: list[Advice]
    call_index: int
    at: datetime


async def ask_all(due: Sequence[Source], round_: Round, gate: ExecutionContext, clock: Clock) -> list[SourceRan]:
    """Ask every source that is due; return what came of those that spoke or failed.

    It returns early if the run is over meanwhile.
    """
    runs: list[SourceRan] = []
    over = over_at(gate, clock)
    aside: list[Source] = []  # once one is asked on a thread, the sync ones that follow are asked there with it
    wants = False
    for source in due:
        if aside and not source.is_async:
            aside.append(source)
            continue
        if aside:
            runs += await _ask_aside(aside, wants, round_, gate, clock)
            aside = []
        wants = False
        if clock.monotonic() >= over or gate.work_stop is not None:
            return runs
        if source.asks_on_loop:
            wants, ran = _ask_here(source, round_, clock)
            if ran is not None:
                heard(ran, round_)
                runs.append(ran)
            if not wants:
                continue
        if source.is_async:
            runs += await _ask_on_loop(source, wants, round_, gate, clock)
        else:
            aside.append(source)
    if aside:
        runs += await _ask_aside(aside, wants, round_, gate, clock)
    return runs


def _ask_here(source: Source, round_: Round, clock: Clock) -> tuple[bool, SourceRan | None]:
    """Ask what is marked `on_loop`; return whether there is more to ask elsewhere, or else what came of it."""
    began = clock.monotonic()
    wants = False
    ran: SourceRan | None = None
    try:
        if not _as_bool(_should_run(source, round_)):
            ran = silent(source)
        elif source.speaks_on_loop:
            ran = _ran(source, _speak(source, round_), round_)
        else:
            wants = True
    except BaseException as error:  # a cancellation, too: nothing was awaited, so it comes from the source
        if has_passing(error):
            raise
        ran = failed(source, error, round_)
    if clock.monotonic() - began >= source.limit_seconds:
        return False, overran(source, round_)
    return wants, ran


async def _ask_aside(
    sources: list[Source], wants: bool, round_: Round, gate: ExecutionContext, clock: Clock
) -> Sequence[SourceRan]:
    """Ask sync sources on a worker thread; ``wants`` if the first of them is known to have something to say."""
    runs: list[SourceRan] = []
    over = over_at(gate, clock)
    while sources and gate.work_stop is None and clock.monotonic() < over:
        looks = Looks(sources, wants, round_, gate, clock)
        try:
            await run_in_worker(looks, patience=Patience(looks.until, clock, gate.cancellation))
        except TimeoutError:
            sources, wants = looks.leave(), False
        except BaseException:
            looks.leave()
            raise
        else:
            sources = []
        runs += looks.runs
    return runs


class Looks:
    """The sync sources of one hand-off; called on a worker thread.

    Once nobody waits for it, it asks no further source, and what the one that is asked then says is lost.

    Attributes:
        runs: What came of those that spoke or failed.
    """

    def __init__(
        self, sources: Sequence[Source], wants: bool, round_: Round, gate: ExecutionContext, clock: Clock
    ) -> None:
        """Begin before the first of them; ``wants`` if it was asked already whether it has something to say."""
        self._sources = sources
        self._wants = wants
        self._round = round_
        self._clock = clock
        self._over = over_at(gate, clock)
        self._lock = threading.Lock()
        self._left = False
        self._place = 0
        self._began = clock.monotonic()
        self.runs: list[SourceRan] = []

    def __call__(self) -> None:
        """Ask them, one after the other."""
        round_, lock, clock, wants = self._round, self._lock, self._clock, self._wants
        for source in self._sources:
            ran = look(source, wants, round_)
            wants = False
            with lock:
                if self._left:
                    return
                if ran is not None:
                    heard(ran, round_)
                    self.runs.append(ran)
                self._place += 1
                self._began = clock.monotonic()

    def until(self) -> float:
        """Return the instant at which the one that is asked now has overrun, or the run is over."""
        with self._lock:
            if self._place >= len(self._sources):
                return self._over
            return min(self._began + self._sources[self._place].limit_seconds, self._over)

    def leave(self) -> list[Source]:
        """Stop waiting; return those that are still to be asked. The one that overran is recorded and skipped."""
        with self._lock:
            self._left = True
            rest = list(self._sources[self._place :])
            if rest and self._clock.monotonic() >= self._began + rest[0].limit_seconds:
                self.runs.append(overran(rest[0], self._round))
            return rest[1:]


def look(source: Source, wants: bool, round_: Round) -> SourceRan | None:
    """Ask one sync source; return what came of it, or None if it had nothing to say."""
    try:
        if not (wants or _as_bool(_should_run(source, round_))):
            return silent(source)
        return _ran(source, _speak(source, round_), round_)
    except BaseException as error:  # a cancellation, too: nobody can cancel a thread, so it comes from the source
        if has_passing(error):
            raise
        return failed(source, error, round_)


async def _ask_on_loop(
    source: Source, wants: bool, round_: Round, gate: ExecutionContext, clock: Clock
) -> Sequence[SourceRan]:
    """Ask one async source within its time limit; nothing, or what came of it."""
    until = clock.monotonic() + source.limit_seconds
    try:
        ran = await within(gate, _look_async(source, wants, round_), clock, until)
    except RunOverError:
        ran = None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if has_passing(error):
            raise
        ran = failed(source, error, round_)
    if clock.monotonic() >= until:  # also where it stood still on the loop, so that nothing could interrupt it
        ran = overran(source, round_)
    if ran is None:
        return ()
    heard(ran, round_)
    return (ran,)


async def _look_async(source: Source, wants: bool, round_: Round) -> SourceRan | None:
    """Ask a source of which at least one method is async; the other one is called where it belongs."""
    if not (wants or _as_bool(await _answer(source.should_run, _should_run, source, round_))):
        return silent(source)
    return _ran(source, await _answer(source.speak, _speak, source, round_), round_)


async def _answer(
    method: Callable[..., Any], ask: Callable[[Source, Round], Any], source: Source, round_: Round
) -> Any:
    if inspect.iscoroutinefunction(method):
        return await ask(source, round_)
    if is_on_loop(method):
        return ask(source, round_)
    try:
        return await run_in_worker(ask, source, round_)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise StrayCancellationError from error


def overran(source: Source, round_: Round) -> SourceRan:
    """Return what is recorded of a source that took too long."""
    took = f"took longer than {format_duration(source.limit_seconds)} and is off for the rest of the run"
    return SourceRan(source.name, "overran", error=took, marks=source.passed(round_.context.budget))


def failed(source: Source, error: BaseException, round_: Round) -> SourceRan:
    """Return what is recorded of a source that raised."""
    return SourceRan(source.name, "failed", error=said_of(error), marks=source.passed(round_.context.budget))


def said_of(error: BaseException) -> str:
    """Return an error's type and message, bounded, whatever its own methods do."""
    return storable(error_text(error)[:ERROR_CHARS])


def silent(source: Source) -> SourceRan | None:
    """Return what is recorded of a source that has nothing to say: only that a row of grave advice has ended."""
    return SourceRan(source.name, "silent") if source.grave else None


def heard(ran: SourceRan, round_: Round) -> None:
    """Let the sources that follow read what was said."""
    if ran.advice is not None:
        round_.said.append(ran.advice)


def _should_run(source: Source, round_: Round) -> Any:
    if source.is_observer:
        return source.should_run(round_.context.session, context=round_.context)
    return source.should_run(context=round_.context)


def _speak(source: Source, round_: Round) -> Any:
    if source.is_observer:
        return source.speak(round_.context.session, context=round_.context)
    return source.speak(context=round_.context)


def _ran(source: Source, said: object, round_: Round) -> SourceRan | None:
    """Check and stamp what was said."""
    if said is None:
        return silent(source)
    expected = Assessment if source.is_observer else Feedback
    if not isinstance(said, expected):
        if inspect.iscoroutine(said):
            said.close()
        raise TypeError(f"{_verb(source)}() must return {expected.__name__} or None, not {reprlib.repr(said)}")
    advice = said.stamped(source.name, round_.call_index, round_.at)
    return SourceRan(source.name, "advised", advice, None, source.passed(round_.context.budget))


def _verb(source: Source) -> str:
    return "observe" if source.is_observer else "provide"


def _as_bool(wanted: object) -> bool:
    if wanted is True or wanted is False:
        return wanted
    if inspect.iscoroutine(wanted):
        wanted.close()
        raise TypeError("should_run() returned a coroutine; declare it `async def`, so that it is asked on the loop")
    return bool(wanted)
