"""What a parent's log says of the runs below it: that each began, how it ended, and the ids that lead to its log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from watchkeeper.core.run_context import RunContext
from watchkeeper.core.stop import Stop
from watchkeeper.core.usage import Usage
from watchkeeper.session.registry import event

ChildKind = Literal["subagent", "evaluation", "verdict", "summary"]
"""What a child run is for: a block of work, a judgement while the work goes on, the judgement at its end, a summary."""


@event("child_started")
@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A run below this one began; its own log has the rest.

    Attributes:
        run_context: The child's identifiers: this run's trace, a span of its own whose parent is this run's.
        parent_run_id: This run.
        kind: What the child is for.
        prompt_name: ``ns/key`` of its prompt.
        model: ``provider:name`` of its model.
        depth: How many runs stand above it.
        limits: The limits it got, in words.
        call_id: The tool call that asked for it, or None.
        started_at: When.
    """

    run_context: RunContext
    parent_run_id: UUID
    kind: ChildKind
    prompt_name: str
    model: str
    depth: int
    limits: str
    call_id: str | None
    started_at: datetime


@event("child_ended")
@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A run below this one is over.

    Attributes:
        run_id: Which one; the key of its log.
        parent_run_id: This run.
        kind: What it was for.
        prompt_name: ``ns/key`` of its prompt.
        stop: Why it ended early, or None.
        completion: Its checker's verdict, or ``unchecked``.
        usage: Everything it used, the runs below it included; counted in this run's usage too, once.
        duration_ms: From its start to its end.
        said: How it ended, in a sentence.
        ended_at: When.
    """

    run_id: UUID
    parent_run_id: UUID
    kind: ChildKind
    prompt_name: str
    stop: Stop | None
    completion: str
    usage: Usage
    duration_ms: float
    said: str
    ended_at: datetime
