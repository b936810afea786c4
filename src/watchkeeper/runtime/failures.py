"""What it means for a run that a model did not answer: the work is over, or another model may.

`WorkStoppedError` ends the work whoever would be asked; `UnansweredError` passes the turn on to the next model of the
run. Nothing here records or decides: errors and outcomes go in, what is to be raised comes out.
"""

from __future__ import annotations

from typing import Final, TypeGuard

from watchkeeper.containment.call import Outcome
from watchkeeper.containment.decision import Decision
from watchkeeper.core.crashes import said_by
from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.core.model import ModelReply
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.stop import Stop, StopReason
from watchkeeper.runtime.patience import held_back

DEGRADED: Final = "degraded"
"""Why a run goes on with the cheaper model: a hook said so."""

CIRCUIT_OPEN: Final = "circuit_open"
"""Why a model is passed over: its breaker lets nothing through."""

UNASKED: Final = frozenset({DEGRADED, CIRCUIT_OPEN})
"""Reasons for which a model was not even asked."""

OWN_FAULTS: Final = frozenset({"context_full", "bad_request"})
"""Faults of the request: another model would answer it with the same."""


class WorkStoppedError(Exception):
    """The gate, or a provider for good, ended the work; carries the stop to the driver."""

    def __init__(self, stop: Stop, error: BaseException | None = None) -> None:
        """Keep the stop and the error behind it."""
        super().__init__(stop.message)
        self.stop = stop
        self.error = error


class UnansweredError(Exception):
    """The model in use does not answer; another may.

    Attributes:
        reason: The provider's fault, ``circuit_open`` or ``degraded``.
        stop: What ends the run if no other model takes over.
        error: The exception behind it, if there is one.
    """

    def __init__(self, reason: str, stop: Stop, error: BaseException | None = None) -> None:
        """Keep why."""
        super().__init__(stop.message)
        self.reason = reason
        self.stop = stop
        self.error = error


def may_pass_on(error: BaseException | None) -> TypeGuard[ProviderError]:
    """Return whether another model may answer after this error."""
    return isinstance(error, ProviderError) and error.fault not in OWN_FAULTS


def not_let_through(outcome: Outcome[ModelReply]) -> BaseException:
    """Return what is raised for a call that was not admitted."""
    stop = outcome.stop
    if stop is not None and stop.reason == CIRCUIT_OPEN:
        return UnansweredError(CIRCUIT_OPEN, stop)
    if stop is not None:
        return WorkStoppedError(stop, outcome.error)
    said = f"The model may not be asked: {held_back(outcome)}."
    if outcome.decision is Decision.DEGRADE:
        return UnansweredError(DEGRADED, Stop("policy_halt", "hook", said))
    return WorkStoppedError(Stop("policy_halt", "hook", said))


def refusal(reply: ModelReply, provider: str) -> ProviderError:
    """Return the error for a reply that refuses, where another model may answer."""
    said = reply.refusal or reply.message.text or "no reason given"
    return ProviderError(f"the model refused: {said}", fault="refused", provider=provider, billed=True)


def passed_on(error: BaseException, nothing_to_lose: bool) -> BaseException:
    """Return what is raised for a failed attempt: a bug in an adapter ends the work, it never loses what was done.

    What is wrong with the configuration shows in the first turn, where there is nothing to lose yet.
    """
    if isinstance(error, ProviderError) or (nothing_to_lose and isinstance(error, ConfigurationError)):
        return error
    said = f"The model failed unexpectedly: {said_by(error)}"
    return WorkStoppedError(Stop("error", "provider", said), error)


def is_outage(error: BaseException) -> bool:
    """Return whether an error says that a provider is down, and not that it was asked for something wrong."""
    return not isinstance(error, ProviderError) or error.fault not in {*OWN_FAULTS, "refused"}


def provider_stop(error: ProviderError) -> Stop:
    """Translate a provider's failure, after all retries, into a stop."""
    reasons: dict[str, StopReason] = {
        "rate_limit": "provider_rate_limit",
        "context_full": "context_full",
        "refused": "refused",
    }
    waited = f" (asked to wait {format_duration(error.retry_after)})" if error.retry_after else ""
    return Stop(reasons.get(error.fault, "provider_error"), "provider", f"The provider failed: {error}{waited}")
