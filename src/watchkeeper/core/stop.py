"""Why a run ended before its work was done.

One `Stop` is chosen in one place (the gate, or the loop for what only the loop can see) and translated at the edges:
a `Decision` for wrap_*, an exception for evaluate, a failed ToolResult for tools, a field of RunResult for run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StopReason = Literal[
    # the gate's (seed: execution-context, section 6)
    "budget_exceeded",
    "retry_budget_exceeded",
    "circuit_open",
    "step_limit_exceeded",
    "timeout",
    "aborted",
    "provider_rate_limit",
    "provider_error",
    # the gate's, for ceilings that the seed does not have
    "token_limit_exceeded",
    "tool_call_limit_exceeded",
    # a shield hook's: it said HALT or QUARANTINE, or it failed
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
    # an observer's, whose advice was not heeded
    "escalated",
]


@dataclass(frozen=True, slots=True)
class Stop:
    """What ended a run.

    Attributes:
        reason: One of the known reasons.
        source: Who decided: ``gate``, ``hook``, ``loop``, ``provider``, ``checker``, ``observer`` or ``caller``.
        limit: Name of the limit that was reached (a field of Limits), if one was.
        value: The ceiling, as text with its unit ("$2.00", "1h", "500,000 tokens").
        message: One sentence for a person.
    """

    reason: StopReason
    source: str
    message: str
    limit: str | None = None
    value: str | None = None

    def __str__(self) -> str:
        """Return the sentence."""
        return self.message
