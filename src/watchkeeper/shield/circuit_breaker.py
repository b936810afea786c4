"""Circuit breakers: after repeated failures they refuse calls, and admit a single probe call from time to time.

A CLOSED breaker lets all calls through and counts failures in a row; after ``failure_threshold`` of them it is OPEN and
lets no call through. After the recovery time it is HALF_OPEN: one call, the probe, may pass, and its result decides.
Every call holds a permit with the generation in which the call began. Its result counts only if the breaker is still in
that generation, so a call that began before an outage cannot end the outage. A permit that is dropped frees the probe's
place if it holds it. A breaker is safe to share between chains and threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import Any, Final

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.text import logger
from watchkeeper.core.quantities import CountLike, DurationLike, count, counted, duration, format_duration

FailurePredicate = Callable[[BaseException], bool]


class CircuitState(StrEnum):
    """The state of a circuit breaker; the value equals the name."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


CHECKED: Final = object()
"""Marks a probe that `CircuitBreaker.check` let pass, because `check` returns no permit."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What a policy decides on.

    Attributes:
        cost_usd: Dollars that were spent, or are about to be.
        step_count: Calls so far.
        entity_id: What the call concerns: a user, a provider, a tool.
        chain_id: The chain.
        timestamp: When the policy is asked, with a time zone; None if that does not matter.
        metadata: Anything else.
    """

    cost_usd: float = 0.0
    step_count: int = 0
    entity_id: str = ""
    chain_id: str = ""
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """A policy's answer.

    Attributes:
        allowed: Whether to go on.
        policy_type: Name of the policy that decided.
        reason: One sentence for a person; empty if it is allowed.
        partial_result: The result so far, if the policy knows it.
        degradation_action: What to do instead, if the policy knows it.
        fallback_model: The model to use instead, if the policy knows one.
        rate_limit_ms: Milliseconds to wait before asking again; 0 if unknown, or if it is allowed.
    """

    allowed: bool
    policy_type: str
    reason: str = ""
    partial_result: Any = None
    degradation_action: str | None = None
    fallback_model: str | None = None
    rate_limit_ms: int = 0


class CircuitBreaker:
    """Refuses calls after repeated failures, and admits a probe call from time to time.

    Args:
        failure_threshold: Failures in a row that open it.
        recovery_timeout: Seconds, or text such as "1m", after which a probe may pass.
        failure_predicate: Says which errors count; all by default. If it raises, the error counts.
        name: What it guards, for its messages.
        clock: The source of time.

    Raises:
        LimitsError: If a value has the wrong type or is out of range.
    """

    def __init__(
        self,
        failure_threshold: CountLike = 5,
        recovery_timeout: DurationLike = 60.0,
        failure_predicate: FailurePredicate | None = None,
        *,
        name: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start closed."""
        self.name = name
        self._threshold = count(failure_threshold, "failure_threshold")
        self._recovery = duration(recovery_timeout, "recovery_timeout").total_seconds()
        self._predicate = failure_predicate
        self._clock = clock
        self._lock = threading.RLock()  # a permit may be collected, and so released, inside a critical section
        self._state = CircuitState.CLOSED
        self._generation = 0
        self._failures = 0
        self._open_until = 0.0
        self._probe: object | None = None
        self._probe_until = 0.0

    # --- for the gate -------------------------------------------------------------------------------------------------

    def acquire(self) -> Permit | None:
        """Return a permit for one call, or None if it may not pass."""
        with self._lock:
            if self._state is CircuitState.CLOSED:
                return Permit(self, self._generation)
            if not self._probe_is_free():
                return None
            permit = Permit(self, self._generation)
            self._probe, self._probe_until = id(permit), math.inf
            return permit

    def settle(self, permit: Permit, *, failed: bool) -> None:
        """Count the result of a permit's call, unless the breaker has begun a new generation since."""
        with self._lock:
            if permit.generation != self._generation:
                return
            if self._state is CircuitState.HALF_OPEN and self._probe != id(permit):
                return
            self._report(failed=failed)

    def give_back(self, permit: Permit) -> None:
        """Free the probe's place if this permit holds it."""
        if self._probe is not None:
            with self._lock:
                if self.is_probe(permit):
                    self._probe = None

    def is_probe(self, permit: Permit) -> bool:
        """Return whether this permit holds the probe's place."""
        with self._lock:
            return self._probe == id(permit) and permit.generation == self._generation

    def is_checked(self) -> bool:
        """Return whether the probe's place is held by a call that `check` let pass."""
        return self._probe is CHECKED

    def give_back_checked(self) -> None:
        """Free the probe's place if a call that `check` let pass holds it."""
        with self._lock:
            if self._probe is CHECKED:
                self._probe = None

    def counts(self, error: BaseException) -> bool:
        """Return whether an error counts as a failure of the guarded service."""
        if self._predicate is None:
            return True
        try:
            return bool(self._predicate(error))
        except Exception as raised:
            logger().error("failure_predicate.failed", error=repr(raised), about=repr(error))
            return True

    # --- by itself ----------------------------------------------------------------------------------------------------

    def check(self, context: PolicyContext | None = None) -> PolicyDecision:
        """Return whether a call may pass now; report its result by `record_success` or `record_failure`.

        If the result of a probe is never reported, its place is free again after another recovery time.
        """
        with self._lock:
            if self._state is CircuitState.CLOSED:
                return PolicyDecision(True, "circuit_breaker")
            if self._probe_is_free():
                self._probe, self._probe_until = CHECKED, self._clock.monotonic() + self._recovery
                return PolicyDecision(True, "circuit_breaker")
            wait = math.ceil(self.seconds_left * 1000)
        return PolicyDecision(False, "circuit_breaker", self.explain(), rate_limit_ms=wait)

    def record_success(self) -> None:
        """Report, after `check`, that the call succeeded; ignored while the breaker is open."""
        self._record(failed=False)

    def record_failure(self, *, error: BaseException | None = None) -> None:
        """Report, after `check`, that the call failed; ignored while the breaker is open."""
        if error is None or self.counts(error):
            self._record(failed=True)

    def _record(self, *, failed: bool) -> None:
        with self._lock:
            if self._state is CircuitState.CLOSED or self._probe is CHECKED:
                self._report(failed=failed)

    def reset(self) -> None:
        """Close the breaker in any state; results of in-flight calls no longer count."""
        with self._lock:
            self._move(CircuitState.CLOSED)

    @property
    def state(self) -> CircuitState:
        """The present state; HALF_OPEN as soon as a probe may pass."""
        with self._lock:
            self._half_open_if_due()
            return self._state

    @property
    def seconds_left(self) -> float:
        """Seconds until a probe may pass; 0 if one may pass now, if the end is unknown, or if the breaker is closed."""
        with self._lock:
            if self._state is CircuitState.OPEN:
                until = self._open_until
            elif self._state is CircuitState.CLOSED or self._probe is None or self._probe_until == math.inf:
                return 0.0
            else:
                until = self._probe_until
            return max(until - self._clock.monotonic(), 0.0)

    def explain(self) -> str:
        """Say, in one sentence, why nothing may pass."""
        what = self.name or "What was called"
        with self._lock:
            left, state = self.seconds_left, self._state
        if state is CircuitState.HALF_OPEN:
            return f"{what} failed too often in a row; one call is testing whether it is back."
        times = counted(self._threshold, "time")
        return f"{what} failed {times} in a row; nothing is sent to it for another {format_duration(left)}."

    # --- inside the critical section ----------------------------------------------------------------------------------

    def _report(self, *, failed: bool) -> None:
        if not failed:
            self._failures = 0
            if self._state is not CircuitState.CLOSED:
                self._move(CircuitState.CLOSED)
            return
        self._failures += 1
        if self._state is CircuitState.HALF_OPEN or self._failures >= self._threshold:
            self._move(CircuitState.OPEN)

    def _move(self, state: CircuitState) -> None:
        """Change to another state and begin a new generation; permits of the old one no longer count."""
        self._state = state
        self._generation += 1
        self._failures = 0
        self._probe = None
        if state is CircuitState.OPEN:
            self._open_until = self._clock.monotonic() + self._recovery

    def _half_open_if_due(self) -> None:
        if self._state is CircuitState.OPEN and self._clock.monotonic() >= self._open_until:
            self._move(CircuitState.HALF_OPEN)

    def _probe_is_free(self) -> bool:
        self._half_open_if_due()
        if self._state is not CircuitState.HALF_OPEN:
            return False
        return self._probe is None or self._clock.monotonic() >= self._probe_until


@dataclass(slots=True, eq=False)
class Permit:
    """Permission for one call to pass a breaker; report success or failure, and release it in every case.

    Attributes:
        breaker: The breaker that gave it.
        generation: The breaker's generation at that time.
    """

    breaker: CircuitBreaker
    generation: int

    def succeeded(self) -> None:
        """Report that the call succeeded; ignored once the breaker has begun a new generation."""
        self.breaker.settle(self, failed=False)

    def failed(self, error: BaseException) -> None:
        """Report that the call failed; ignored in a new generation, or if such errors do not count."""
        if self.breaker.counts(error):
            self.breaker.settle(self, failed=True)

    @property
    def holds_probe(self) -> bool:
        """Whether its call is the probe, which tests whether the guarded service works again."""
        return self.breaker.is_probe(self)

    def release(self) -> None:
        """Free the probe's place if this permit holds it and nothing was reported; else do nothing."""
        self.breaker.give_back(self)

    __del__ = release  # for a permit whose holder was killed before it could release it


# --- breakers of the caller's own -------------------------------------------------------------------------------------
# A subclass that overrides one of the public methods, or any other object that has them, is asked by these methods, as
# docs/specification.md describes it (execution-context): `check` before a call, `record_success` or `record_failure`
# after it. Permits are better, because they distinguish a call that began before an outage from one after it.

ASKED: Final = ("check", "record_success", "record_failure")


def has_own_methods(breaker: object) -> bool:
    """Return whether a breaker replaces one of the public methods of `CircuitBreaker` that are in `ASKED`."""
    if type(breaker) is not CircuitBreaker:
        kind = type(breaker)
        if any(getattr(kind, name, None) is not getattr(CircuitBreaker, name) for name in ASKED):
            return True
    return not vars(breaker).keys().isdisjoint(ASKED)


class AskedBreaker:
    """Asks a breaker by its public methods, and returns permits that report results by them.

    Args:
        breaker: The breaker.

    Raises:
        ConfigurationError: If it lacks one of the methods, or one is a coroutine function.
    """

    __slots__ = ("_needs_context", "_tells_error", "breaker")

    def __init__(self, breaker: Any) -> None:
        """Check the methods, once."""
        for name in ASKED:
            method = getattr(breaker, name, None)
            if not callable(method):
                raise ConfigurationError(
                    f"circuit_breaker={breaker!r} has no method {name}; a breaker has {', '.join(ASKED)}"
                )
            if iscoroutinefunction(method):
                raise ConfigurationError(f"circuit_breaker={breaker!r}: {name} must be a plain function, not async")
        self.breaker = breaker
        self._needs_context = accepts(breaker.check, PolicyContext())
        self._tells_error = accepts(breaker.record_failure, error=None)

    def ask(self, context: PolicyContext) -> AskedPermit | str:
        """Return a permit for one call, or the reason why it may not pass."""
        said = self.breaker.check(context) if self._needs_context else self.breaker.check()
        if not said.allowed:
            return f"{said.reason}" or "The circuit breaker lets nothing pass."
        return AskedPermit(self, isinstance(self.breaker, CircuitBreaker) and self.breaker.is_checked())

    def report_failure(self, error: BaseException) -> None:
        """Report that a call failed."""
        if self._tells_error:
            self.breaker.record_failure(error=error)
        else:
            self.breaker.record_failure()


def accepts(method: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Return whether a method accepts these arguments; True if its signature is not known."""
    try:
        bound = signature(method)
    except (TypeError, ValueError):
        return True
    try:
        bound.bind(*args, **named)
    except TypeError:
        return False
    return True


@dataclass(slots=True, eq=False)
class AskedPermit:
    """Permission for one call to pass a breaker that is asked by its public methods.

    Attributes:
        asked: The `AskedBreaker` that returned it.
        holds_probe: Whether its call is the probe, which tests whether the guarded service works again.
    """

    asked: AskedBreaker
    holds_probe: bool

    @property
    def breaker(self) -> object:
        """The breaker."""
        return self.asked.breaker

    def succeeded(self) -> None:
        """Report that the call succeeded."""
        self.asked.breaker.record_success()

    def failed(self, error: BaseException) -> None:
        """Report that the call failed."""
        self.asked.report_failure(error)

    def release(self) -> None:
        """Free the probe's place if this permit holds it and nothing was reported."""
        if self.holds_probe:
            self.holds_probe = False
            self.asked.breaker.give_back_checked()


class CircuitBreakers:
    """One circuit breaker for each provider, all with the same settings, each made at its first use.

    Args:
        failure_threshold: As for `CircuitBreaker`, like the other arguments.
        recovery_timeout: Seconds, or text such as "1m".
        failure_predicate: Says which errors count.
        clock: The source of time.

    Raises:
        LimitsError: If a value has the wrong type or is out of range.
    """

    __slots__ = ("_breakers", "_lock", "_make")

    def __init__(
        self,
        failure_threshold: CountLike = 5,
        recovery_timeout: DurationLike = 60.0,
        failure_predicate: FailurePredicate | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start without any."""
        self._make = partial(CircuitBreaker, failure_threshold, recovery_timeout, failure_predicate, clock=clock)
        self._make()  # checks the values now, not at the first call
        self._breakers: dict[str, CircuitBreaker] = {}
        self._lock = threading.Lock()

    def of(self, provider: str) -> CircuitBreaker:
        """Return the breaker of a provider; the same one every time."""
        breaker = self._breakers.get(provider)
        if breaker is None:
            with self._lock:
                breaker = self._breakers.setdefault(provider, self._make(name=provider))
        return breaker

    def states(self) -> Mapping[str, CircuitState]:
        """Return the present state of the breaker of each provider."""
        return {provider: breaker.state for provider, breaker in list(self._breakers.items())}
