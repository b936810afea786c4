"""The tree of errors, and `Stop`, which says why a run was stopped.

    WatchkeeperError
    ├─ ConfigurationError            invalid configuration by the caller (also a ValueError)
    │  ├─ LimitsError                an invalid limit, budget or deadline
    │  ├─ PromptDefinitionError      a template with unknown placeholders, duplicate keys, ...
    │  ├─ ToolDefinitionError        a tool without types, without a description, ...
    │  ├─ ObserverError              an invalid observer, trigger or advice
    │  ├─ UnknownModelError          a model string with no known provider or model
    │  ├─ UnpricedModelError         a cost ceiling is set, but the price is not known
    │  ├─ NestingDepthError          a child run would be nested too deeply
    │  ├─ UnsentError                a model as it is set up; no request was sent
    │  ├─ MissingKeyError            no API key
    │  └─ MissingExtraError          an optional dependency is not installed
    ├─ PromptEvaluationError         an evaluation could not be completed; has a phase
    │  ├─ DeadlineExceededError      phase "deadline"
    │  ├─ BudgetExceededError        phase "budget"
    │  ├─ OutputParseError           phase "response"
    │  └─ ProviderError              phase "request": what a provider answered or failed to answer
    │     └─ ThrottleError           rate limit, with its retry-after
    ├─ ToolValidationError           arguments or a payload that a model can correct
    ├─ EgressRefusedError            a hook refused a request; nothing was sent
    ├─ DispatchSubagentError         a subagent's run failed, or could not be started
    ├─ NestedEvaluationError         a nested evaluation failed; has a kind
    ├─ ToolProcessError              an isolated tool failed, or its process died
    ├─ SessionError                  the log or a slice
    │  ├─ ReducerError               a reducer raised; the event is recorded, no slice changed
    │  └─ SnapshotError              a snapshot that cannot be written, read or restored
    ├─ FilesystemError               a path outside the root, a conflict, a read-only view
    ├─ StoreError                    runs on disk
    └─ RunStoppedError               raised by ``run(..., raise_on_stop=True)``

A message says what happened, with which value, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from watchkeeper.core.secrets import redacted

Phase = Literal["preflight", "request", "response", "budget", "deadline"]

ProviderFault = Literal[
    "rate_limit",
    "overloaded",
    "auth",
    "not_found",
    "context_full",
    "bad_request",
    "refused",
    "connection",
    "timeout",
    "broken_stream",
    "malformed_reply",
    "oversized_reply",
    "server",
]

RETRYABLE_FAULTS: Final[frozenset[str]] = frozenset(
    {"rate_limit", "overloaded", "connection", "timeout", "broken_stream", "malformed_reply", "server"}
)


class WatchkeeperError(Exception):
    """Root of every error that Watchkeeper raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by state, without calling the constructor again: errors are sent between processes."""
        return _restored, (type(self), self.args, dict(self.__dict__))


def _restored(type_: type[WatchkeeperError], args: tuple[Any, ...], state: dict[str, Any]) -> WatchkeeperError:
    error = type_.__new__(type_, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigurationError(WatchkeeperError, ValueError):
    """The caller's configuration is invalid; raised before anything is spent."""


class UnsentError(ConfigurationError):
    """A model cannot be asked as it is set up; no request was sent, so that nothing is charged for the call."""


class LimitsError(ConfigurationError):
    """A limit, budget, deadline or duration is invalid."""


class PromptDefinitionError(ConfigurationError):
    """A prompt template, section or binding that cannot be rendered."""


class ToolDefinitionError(ConfigurationError):
    """A tool whose name, types or description cannot be offered to a model."""


class ObserverError(ConfigurationError):
    """An observer, its trigger or its advice is invalid."""


class UnknownModelError(ConfigurationError):
    """A model string that names no known provider or model."""


class UnpricedModelError(ConfigurationError):
    """A cost ceiling is set, but the price of the model is not known."""


class NestingDepthError(ConfigurationError):
    """A child run would be nested below more runs than allowed; nothing was started."""


class MissingKeyError(ConfigurationError):
    """A provider needs an API key and none was given."""


class MissingExtraError(ConfigurationError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'watchkeeper[{extra}]'")
        self.extra = extra


class PromptEvaluationError(WatchkeeperError):
    """An evaluation could not be completed (docs/specification.md, deadlines and nested execution).

    Args:
        message: What happened, with the value, and what to do.
        phase: The phase of the evaluation in which it happened.
        prompt_name: ``ns/key`` of the prompt, if known.
        provider_payload: Facts for the host's log; deadline errors carry the cutoff under ``"deadline"``.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: Phase,
        prompt_name: str | None = None,
        provider_payload: Mapping[str, Any] | None = None,
    ) -> None:
        message = redacted(message)
        super().__init__(message)
        self.message = message
        self.phase: Phase = phase
        self.prompt_name = prompt_name
        self.provider_payload: dict[str, Any] = dict(provider_payload or {})
        self.stop: Stop | None = None


class DeadlineExceededError(PromptEvaluationError):
    """The deadline passed; nothing further was sent."""

    def __init__(
        self, message: str, *, prompt_name: str | None = None, provider_payload: Mapping[str, Any] | None = None
    ) -> None:
        """Fix the phase to ``deadline``."""
        super().__init__(message, phase="deadline", prompt_name=prompt_name, provider_payload=provider_payload)


class BudgetExceededError(PromptEvaluationError):
    """A ceiling on money, tokens, steps, calls or retries was reached."""

    def __init__(
        self, message: str, *, prompt_name: str | None = None, provider_payload: Mapping[str, Any] | None = None
    ) -> None:
        """Fix the phase to ``budget``."""
        super().__init__(message, phase="budget", prompt_name=prompt_name, provider_payload=provider_payload)


class OutputParseError(PromptEvaluationError):
    """The model's final answer does not fit the declared output type."""

    def __init__(self, message: str, *, raw: str = "", prompt_name: str | None = None) -> None:
        super().__init__(message, phase="response", prompt_name=prompt_name, provider_payload={"raw": raw})
        self.raw = raw


class ProviderError(PromptEvaluationError):
    """A provider refused, failed or could not be reached.

    Args:
        message: What the provider said, shortened.
        fault: Which of the known faults it is.
        provider: Provider name, for example ``openai``.
        status: HTTP status, if there was one.
        retry_after: Seconds the provider asked to wait, if it did.
        billed: Whether the provider may have charged for the failed request.
    """

    def __init__(
        self,
        message: str,
        *,
        fault: ProviderFault,
        provider: str = "",
        status: int | None = None,
        retry_after: float | None = None,
        billed: bool = False,
    ) -> None:
        super().__init__(message, phase="request", provider_payload={"provider": provider, "status": status})
        self.fault: ProviderFault = fault
        self.provider = provider
        self.status = status
        self.retry_after = retry_after
        self.billed = billed

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.fault in RETRYABLE_FAULTS


class ThrottleError(ProviderError):
    """The provider limits the rate; ``retry_after`` is the wait in seconds, if the provider gave one."""

    def __init__(
        self, message: str, *, provider: str = "", status: int | None = 429, retry_after: float | None = None
    ) -> None:
        """Fix the fault to ``rate_limit``."""
        super().__init__(message, fault="rate_limit", provider=provider, status=status, retry_after=retry_after)


class ToolValidationError(WatchkeeperError):
    """Arguments or a payload that do not fit; worded so that a model can correct them."""


class EgressRefusedError(WatchkeeperError):
    """A hook of the shield refused an outgoing request; nothing was sent.

    Args:
        message: Where the request would have been sent, and what to do.
        reason: The reason of the stop that this error carries.
    """

    def __init__(self, message: str, *, reason: StopReason = "policy_halt") -> None:
        super().__init__(message)
        self.stop = Stop(reason, "hook", message)


class DispatchSubagentError(WatchkeeperError):
    """A subagent's run failed or could not be started; the run that dispatched it goes on."""


class NestedEvaluationError(WatchkeeperError):
    """A nested evaluation failed, and its caller decides what to do (docs/specification.md).

    Args:
        message: What happened, and what to do.
        kind: ``throttled``, ``output``, ``evaluation`` for any other early end of the run, or ``error`` for an error
            raised outside the run.
        phase: The phase in which it happened, if an evaluation failed.
    """

    def __init__(self, message: str, *, kind: str = "error", phase: Phase | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.phase = phase


class ToolProcessError(WatchkeeperError):
    """An isolated tool raised in its process, or the process ended without a result.

    Attributes:
        traceback: Where it was raised in that process, as text; empty if it did not raise.
    """

    def __init__(self, said: str, traceback: str = "") -> None:
        """Say what happened."""
        super().__init__(said)
        self.traceback = traceback


class SessionError(WatchkeeperError):
    """The log or a slice was used in a way that cannot work."""


class ReducerError(SessionError):
    """A reducer raised or returned an invalid result; its event is recorded and no slice changed."""


class SnapshotError(SessionError):
    """A snapshot that cannot be written, read or restored."""


class FilesystemError(WatchkeeperError):
    """A path outside the root, a missing file, a conflict, or a write to a read-only view."""


class StoreError(WatchkeeperError):
    """The store cannot be opened, read or written."""


class RunStoppedError(WatchkeeperError):
    """A run ended before its work was done; ``stop`` says why and ``result`` is the result up to then."""

    def __init__(self, message: str, *, stop: Stop, result: Any) -> None:
        super().__init__(message)
        self.stop = stop
        self.result = result


StopReason = Literal[
    # the gate's (docs/specification.md, execution context)
    "budget_exceeded",
    "retry_budget_exceeded",
    "circuit_open",
    "step_limit_exceeded",
    "timeout",
    "aborted",
    "provider_rate_limit",
    "provider_error",
    # the gate's, for ceilings beyond the specification
    "token_limit_exceeded",
    "tool_call_limit_exceeded",
    # a shield hook's: it returned HALT or QUARANTINE, or it failed
    "policy_halt",
    "policy_quarantine",
    "hook_failed",
    # the loop's
    "turn_limit_exceeded",
    "context_full",
    "output_invalid",
    "empty_answer",
    "refused",
    "incomplete",
    "unverified",
    "error",
    "interrupted",
    "cancelled",  # by a person, while no process worked on it
    # an observer's, whose advice was not followed
    "escalated",
    # the store's: the run's events cannot be written
    "store_failed",
    # the loop's, and no failure: tool calls wait for the answer of a person
    "parked",
]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ended before its work was done.

    It is chosen in one place (the gate, or the loop for what only the loop can see) and translated at the edges: a
    `Decision` for wrap_*, an exception for evaluate, a failed ToolResult for tools, a field of RunResult for run.

    Attributes:
        reason: One of the known reasons.
        source: The part that decided: ``gate``, ``hook``, ``loop``, ``provider``, ``checker``, ``observer``, ``store``
            or ``caller``.
        limit: Name of the limit that was reached (a field of Limits), if one was.
        value: The ceiling, as text with its unit ("$2.00", "1h", "500,000 tokens").
        message: One sentence for a person.
    """

    reason: StopReason
    source: str
    message: str
    limit: str | None = None
    value: str | None = None

    def __post_init__(self) -> None:
        """Keep credentials out of the message: it may repeat what a provider said."""
        said = redacted(self.message)
        if said is not self.message:
            object.__setattr__(self, "message", said)

    def __str__(self) -> str:
        return self.message
