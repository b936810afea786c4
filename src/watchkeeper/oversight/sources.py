"""Observers and feedback providers during a run: the state that the engine keeps for each, and how each is asked.

The state of a `Source` is a fold of the log: when it last spoke and with which severity, its advice that is not yet
delivered, until when it is to be quiet, whether it is off. This state is rebuilt from the session's slices after a
rollback, or when a later run continues the session.

Sources are asked in their order: async methods and those marked `on_loop` on the loop, the others on a worker thread,
consecutive ones together on one thread. A source may raise, hang, or return an invalid value; the run goes on. Each
source has its own time limit. A source that exceeds it on a thread is abandoned with that thread, and the others are
asked on another thread. No source is asked once the run is over. What a source raises or returns is recorded, cut to a
maximum length; only exceptions that end the program or a contained block (`has_passing`) are raised again.
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

from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import error_text, storable
from watchkeeper.core.workers import Patience, has_passing, run_in_worker
from watchkeeper.oversight.cool_down import CoolDown
from watchkeeper.prompt.advice import SEVERITIES, SUSPICION, Advice, Assessment, Feedback, Severity
from watchkeeper.prompt.observer import (
    TREND_SPAN,
    FeedbackContext,
    ObserverConfig,
    ObserverTrigger,
    SourceConfig,
    is_on_loop,
)
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.runtime.advice_events import AdviceAcknowledged, SourceRan
from watchkeeper.runtime.plan import RunScope
from watchkeeper.runtime.user_code import RunOverError, StrayCancellationError, is_cancelled, within

KEPT_SEVERITIES: Final = 10 * TREND_SPAN


class Source:
    """One source of advice.

    Attributes:
        config: As the template declares it.
        name: Its name.
        limit_seconds: Time limit for asking it once.
        is_observer: Whether it is an observer; False for a feedback provider.
        is_async: Whether a method of its own is ``async def``.
        asks_on_loop: Whether its ``should_run`` is marked to be asked on the loop.
        speaks_on_loop: Whether both its methods are.
        should_run: The user's method.
        speak: The user's method: ``observe`` or ``provide``.
        about_limits: Whether it speaks of hard limits; its warnings are then never held back.
        is_status: Whether all of its advice is told: it speaks of limits, or only when something happens.
        off: Whether it overran its time and is not asked any more.
        spoke_at_call: Tool calls when it last spoke or failed; 0 before.
        spoke_at: When that was, or None.
        marks: How many of its trigger's shares of limits were passed at that moment.
        file_seen: Whether the awaited file was there when it was last looked for.
        severities: Of its newest advice, the oldest first.
        waiting: Advice that the agent has not been told yet.
        quiet_until: Tool call up to which it is to be quiet.
        grave: Pieces of advice in a row that count for its escalation.
        cool_down: What of its advice the agent is told.
        asked: How often it was asked, if that is bounded.
        asked_at_call: Tool calls when it was last asked, if that is bounded.
        suspected: Whether another source has raised a suspicion since then.
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
        events = {"at_limit_share", "when_file_exists"}
        self.is_status = self.about_limits or events.issuperset(self.trigger.conditions or ("on_every_call",))
        self.file_seen = False
        self.off = False
        self.severities: deque[Severity] = deque(maxlen=KEPT_SEVERITIES)
        self.forget()

    def forget(self) -> None:
        """Reset the state, to rebuild it from the log; a source that is off stays off for the rest of the run."""
        self.spoke_at_call = 0
        self.spoke_at: datetime | None = None
        self.marks = 0
        self.severities.clear()
        self.waiting: Advice | None = None
        self.quiet_until = 0
        self.grave = 0
        self.cool_down = CoolDown(self.config.cool_down)
        self.asked = self.asked_at_call = 0
        self.suspected = False

    def begin_run(self) -> None:
        """Forget what held for an earlier run only."""
        self.off = False
        self.marks = 0

    def is_due(self, trajectory: Trajectory, budget: BudgetStatus, now: datetime) -> bool:
        """Return whether a condition of its trigger holds; one that waits for a file is asked by the engine."""
        trigger = self.trigger
        if self.off or (trajectory.count <= self.quiet_until and self.is_quiet(trajectory.count)):
            return False
        if trigger.at_most_one_in is not None and not self.may_be_asked(trajectory.count, trigger.at_most_one_in):
            return False
        if trigger.on_every_call or (trigger.on_suspicion and self.suspected):
            return True
        every, errors, seconds = trigger.every_n_calls, trigger.after_consecutive_errors, trigger.every_n_seconds
        if every is not None and trajectory.count - max(self.spoke_at_call, self.asked_at_call) >= every:
            return True
        if errors is not None and trajectory.errors_in_a_row >= errors:
            return True
        if seconds is not None and (self.spoke_at is None or _apart(now, self.spoke_at) >= seconds):
            return True
        return self.passed(budget) > self.marks

    def may_be_asked(self, count: int, one_in: int) -> bool:
        """Return whether a bound of one question in so many calls allows one after ``count`` tool calls."""
        if not self.asked:
            return True
        return self.asked * one_in < count and count - self.asked_at_call >= 2 * one_in // 3

    def passed(self, budget: BudgetStatus) -> int:
        """Return how many shares of its trigger are passed; a share counts once for every limit that has passed it."""
        shares = self.trigger.shares
        return sum(used >= each for used in budget.shares.values() for each in shares) if shares else 0

    @property
    def hears_silence(self) -> bool:
        """Whether it matters for what the agent is told that it has nothing to say now."""
        return not self.is_status and self.cool_down.hears_silence

    def is_quiet(self, call_index: int) -> bool:
        """Return whether the agent asked it to be quiet; a source about hard limits is asked nevertheless."""
        return call_index <= self.quiet_until and not self.about_limits

    def follow(self, ran: SourceRan, call_index: int, at: datetime) -> None:
        """Record the outcome of asking it; after a failure the trigger's interval begins anew, as after advice."""
        if ran.outcome == "overran":
            self.off = True
        if self.trigger.at_most_one_in is not None:
            self.asked, self.asked_at_call, self.suspected = self.asked + 1, call_index, False
        if ran.outcome == "silent":
            self.grave = 0
            self.cool_down.silent(call_index)
            return
        self.spoke_at_call, self.spoke_at = call_index, at
        passed, self.marks = ran.marks > self.marks, ran.marks
        advice = ran.advice
        if advice is None:
            return
        if advice.severity == SUSPICION:
            self.grave = 0
            self.cool_down.silent(call_index)
            return
        self.severities.append(advice.severity)
        if call_index <= self.quiet_until and not self._holds_back_nothing(advice):
            return  # the agent does not see this advice, so it cannot have ignored it
        news = self.cool_down.tells(advice, call_index)
        if news or passed or self.is_status or self.waiting is not None:
            self.waiting = advice
        escalate = self.config.escalate
        if escalate is not None:
            graver = SEVERITIES.index(advice.severity) >= SEVERITIES.index(escalate.severity)
            self.grave = self.grave + 1 if graver else 0

    def answered(self, answer: AdviceAcknowledged) -> None:
        """Take in that the agent answered it."""
        self.quiet_until = answer.call_index + answer.for_calls
        self.cool_down.skip(answer.for_calls)
        self.grave = 0
        if self.waiting is not None and not self._holds_back_nothing(self.waiting):
            self.waiting = None

    def deliver(self, call_index: int) -> Advice | None:
        """Return the waiting advice, once; advice that is stale, or that the agent asked not to get, is dropped."""
        advice, self.waiting = self.waiting, None
        if advice is None or advice.is_stale(call_index, self.config.max_age_calls):
            return None
        return None if call_index <= self.quiet_until and not self._holds_back_nothing(advice) else advice

    def _holds_back_nothing(self, advice: Advice) -> bool:
        return self.about_limits and advice.severity == "warning"


def _apart(one: datetime, other: datetime) -> float:
    """Return the seconds between two moments, never negative, even if the machine's clock was set back."""
    return abs((one - other).total_seconds())


ERROR_CHARS: Final = 500
"""Longer errors are cut."""


class Round(NamedTuple):
    """One round of asking the sources that are due.

    Attributes:
        context: What they may look at; its ``advice`` grows while they are asked.
        said: What was said so far: the list behind ``context.advice``.
        call_index: Tool calls so far.
        at: This moment, in UTC.
        scope: The run's; its gate ends the round with the work.
        over: Monotonic instant at which the work is over.
    """

    context: FeedbackContext
    said: list[Advice]
    call_index: int
    at: datetime
    scope: RunScope
    over: float

    def is_over(self) -> bool:
        """Return whether the run's work is over; no further source is asked then."""
        return self.scope.gate.work_stop is not None or self.scope.clock.monotonic() >= self.over

    def heard(self, ran: SourceRan | None) -> Sequence[SourceRan]:
        """Make the advice readable for the next sources; return the outcome as a sequence of one or none."""
        if ran is None:
            return ()
        if ran.advice is not None:
            self.said.append(ran.advice)
        return (ran,)


async def ask_all(due: Sequence[Source], round_: Round) -> list[SourceRan]:
    """Ask every source that is due; return the outcomes of those that spoke or failed.

    It returns early if the run ends meanwhile.
    """
    runs: list[SourceRan] = []
    aside: list[Source] = []  # once one is asked on a thread, the sync ones that follow are asked there with it
    wants = False
    for source in due:
        if aside and not source.is_async:
            aside.append(source)
            continue
        if aside:
            runs += await _ask_aside(aside, wants, round_)
            aside = []
        wants = False
        if round_.is_over():
            return runs
        if source.asks_on_loop:
            wants, ran = _ask_here(source, round_)
            runs += round_.heard(ran)
            if not wants:
                continue
        if source.is_async:
            runs += await _ask_on_loop(source, wants, round_)
        else:
            aside.append(source)
    if aside:
        runs += await _ask_aside(aside, wants, round_)
    return runs


def _ask_here(source: Source, round_: Round) -> tuple[bool, SourceRan | None]:
    """Ask the methods marked `on_loop`; return whether ``speak`` is still to be called elsewhere, or the outcome."""
    began, clock = round_.scope.clock.monotonic(), round_.scope.clock
    wants = False
    ran: SourceRan | None = None
    if source.speaks_on_loop:
        ran = look(source, False, round_)
    else:
        try:
            wants = _as_bool(_call(source.should_run, source, round_))
            ran = None if wants else silent(source)
        except BaseException as error:  # a cancellation, too: nothing was awaited, so it comes from the source
            ran = failed(source, error, round_)
    if clock.monotonic() - began >= source.limit_seconds:
        return False, overran(source, round_)
    return wants, ran


async def _ask_aside(sources: list[Source], wants: bool, round_: Round) -> Sequence[SourceRan]:
    """Ask sync sources on a worker thread; ``wants`` says that the first one's ``should_run`` was asked already and
    returned True.
    """
    scope, runs = round_.scope, list[SourceRan]()
    while sources and not round_.is_over():
        looks = Looks(sources, wants, round_)
        try:
            await run_in_worker(looks, patience=Patience(looks.until, scope.clock, scope.gate.cancellation))
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

    Once the caller has stopped waiting (`leave`), no further source is asked, and the answer of the current one is
    lost.

    Attributes:
        runs: The outcomes of the sources that spoke or failed.
    """

    def __init__(self, sources: Sequence[Source], wants: bool, round_: Round) -> None:
        """Begin before the first source; ``wants`` says that its ``should_run`` has already returned True."""
        self._sources = sources
        self._wants = wants
        self._round = round_
        self._lock = threading.Lock()
        self._left = False
        self._place = 0
        self._began = round_.scope.clock.monotonic()
        self.runs: list[SourceRan] = []

    def __call__(self) -> None:
        """Ask the sources, one after the other; runs on a worker thread."""
        round_, lock, wants = self._round, self._lock, self._wants
        for source in self._sources:
            ran = look(source, wants, round_)
            wants = False
            with lock:
                if self._left:
                    return
                self.runs += round_.heard(ran)
                self._place += 1
                self._began = round_.scope.clock.monotonic()

    def until(self) -> float:
        """Return the monotonic instant at which the current source has exceeded its time limit, or the run is over."""
        with self._lock:
            if self._place >= len(self._sources):
                return self._round.over
            return min(self._began + self._sources[self._place].limit_seconds, self._round.over)

    def leave(self) -> list[Source]:
        """Stop waiting; return the sources still to be asked. One that overran is recorded and skipped."""
        with self._lock:
            self._left = True
            rest = list(self._sources[self._place :])
            if rest and self._round.scope.clock.monotonic() >= self._began + rest[0].limit_seconds:
                self.runs.append(overran(rest[0], self._round))
            return rest[1:]


def look(source: Source, wants: bool, round_: Round) -> SourceRan | None:
    """Ask one sync source; return the outcome, or None if it had nothing to say."""
    try:
        if not (wants or _as_bool(_call(source.should_run, source, round_))):
            return silent(source)
        return _checked(source, _call(source.speak, source, round_), round_)
    except BaseException as error:  # a cancellation, too: nobody can cancel a thread, so it comes from the source
        return failed(source, error, round_)


async def _ask_on_loop(source: Source, wants: bool, round_: Round) -> Sequence[SourceRan]:
    """Ask one async source within its time limit; return its outcome, or nothing if it had nothing to say."""
    clock = round_.scope.clock
    until = clock.monotonic() + source.limit_seconds
    try:
        ran = await within(round_.scope.gate, _look_async(source, wants, round_), clock, until)
    except RunOverError:
        ran = None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        ran = failed(source, error, round_)
    if clock.monotonic() >= until:  # also if it blocked the loop, so that no timer could interrupt it
        ran = overran(source, round_)
    return round_.heard(ran)


async def _look_async(source: Source, wants: bool, round_: Round) -> SourceRan | None:
    """Ask a source with an async method; a sync method is called on a thread, or on the loop if marked `on_loop`."""
    if not (wants or _as_bool(await _answer(source.should_run, source, round_))):
        return silent(source)
    return _checked(source, await _answer(source.speak, source, round_), round_)


async def _answer(method: Callable[..., Any], source: Source, round_: Round) -> Any:
    if inspect.iscoroutinefunction(method):
        return await _call(method, source, round_)
    if is_on_loop(method):
        return _call(method, source, round_)
    try:
        return await run_in_worker(_call, method, source, round_)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise StrayCancellationError from error


def _call(method: Callable[..., Any], source: Source, round_: Round) -> Any:
    """Call a method of the user's source; an observer also gets the session."""
    context = round_.context
    return method(context.session, context=context) if source.is_observer else method(context=context)


def overran(source: Source, round_: Round) -> SourceRan:
    """Return what is recorded of a source that took too long."""
    took = f"took longer than {format_duration(source.limit_seconds)} and is off for the rest of the run"
    return SourceRan(source.name, "overran", error=took, marks=source.passed(round_.context.budget))


def failed(source: Source, error: BaseException, round_: Round) -> SourceRan:
    """Return what is recorded of a source that raised; exceptions that end the program or a block (`has_passing`) are
    raised again.
    """
    if has_passing(error):
        raise error
    return SourceRan(source.name, "failed", error=said_of(error), marks=source.passed(round_.context.budget))


def said_of(error: BaseException) -> str:
    """Return an error's type and message, cut to `ERROR_CHARS`, even if the error's own methods raise."""
    return storable(error_text(error)[:ERROR_CHARS])


def silent(source: Source) -> SourceRan | None:
    """Return what is recorded of a source that has nothing to say: an event only if it ends a series of advice that
    counts for escalation or for what the agent is told again.
    """
    return SourceRan(source.name, "silent") if source.grave or source.hears_silence else None


def _checked(source: Source, said: object, round_: Round) -> SourceRan | None:
    """Check the advice of a source, and add its time and call index."""
    if said is None:
        bounded = source.trigger.at_most_one_in is not None  # the question counts, and may have cost something
        return SourceRan(source.name, "silent") if bounded else silent(source)
    expected = Assessment if source.is_observer else Feedback
    if not isinstance(said, expected):
        if inspect.iscoroutine(said):
            said.close()
        method = "observe" if source.is_observer else "provide"
        raise TypeError(f"{method}() must return {expected.__name__} or None, not {reprlib.repr(said)}")
    advice = said.stamped(source.name, round_.call_index, round_.at)
    return SourceRan(source.name, "advised", advice, None, source.passed(round_.context.budget))


def _as_bool(wanted: object) -> bool:
    if wanted is True or wanted is False:
        return wanted
    if inspect.iscoroutine(wanted):
        wanted.close()
        raise TypeError("should_run() returned a coroutine; declare it `async def`, so that it is asked on the loop")
    return bool(wanted)
