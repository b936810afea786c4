"""What a model writes to dispatch a subagent, and what comes back of it (seed: subagent-dispatch, "Data Model").

Plain frozen values with a JSON form: the descriptions below are what the model reads, and results go on the parent's
log. Nothing is checked here; the rules stand in `rules`, so that a task among several can be refused alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from watchkeeper.core.completion import CompletionState
from watchkeeper.session.registry import event

SubagentMode = Literal["plan_step", "ad_hoc"]


@dataclass(slots=True, frozen=True)
class DispatchSubagent:
    """One task for one subagent.

    Attributes:
        mode: "plan_step" for a step of a plan (then name it in plan_step_id), "ad_hoc" for anything else.
        prompt_ns: Namespace of the subagent's prompt: what stands before the last "/" of its name.
        prompt_key: Key of the subagent's prompt: what stands after the last "/" of its name.
        instructions: Everything the subagent must know and do, in 1 to 2,000 plain ASCII characters; it sees nothing of
            this conversation.
        expected_artifacts: Paths of the files it is to leave, at most 160 ASCII characters each; others are dropped.
        plan_step_id: The step of the plan; required in mode "plan_step".
        snapshot_version: Version of the session snapshot that the task relies on, if on one; usually left out.
    """

    mode: SubagentMode
    prompt_ns: str
    prompt_key: str
    instructions: str
    expected_artifacts: tuple[str, ...] = ()
    plan_step_id: str | None = None
    snapshot_version: str | None = None


@dataclass(slots=True, frozen=True)
class DispatchSubagentResult:
    """What a subagent that completed its work hands back.

    Attributes:
        prompt_ns: Namespace of its prompt.
        prompt_key: Key of its prompt.
        message_summary: What its parent's model is told: its last words, shortened, and what became of its files.
        artifacts: The expected files that it left, and what it recorded as `Artifact`.
        tools_used: Tools that it called, in the order of first use.
        output: Its structured output as JSON values; None if it answers in text.
        plan_step_id: The step of the plan that it was given.
        run_id: Its run; the key of its log.
        completion: What the completion checker of its prompt said.
        failed_artifacts: Those of its files that could not be kept.
    """

    prompt_ns: str
    prompt_key: str
    message_summary: str
    artifacts: tuple[str, ...] = ()
    tools_used: tuple[str, ...] = ()
    output: Any = None
    plan_step_id: str | None = None
    run_id: UUID | None = None
    completion: CompletionState = "unchecked"
    failed_artifacts: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class DispatchSubagents:
    """Several tasks, each for a subagent of its own; they run side by side and see nothing of each other.

    Attributes:
        tasks: 1 to 20 tasks.
    """

    tasks: tuple[DispatchSubagent, ...]


@dataclass(slots=True, frozen=True)
class SubagentOutcome:
    """What became of one task of several: a result, or why there is none.

    Attributes:
        result: What the subagent handed back, or None.
        error: Why not; empty if it did.
    """

    result: DispatchSubagentResult | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the subagent completed its work."""
        return self.result is not None


@dataclass(slots=True, frozen=True)
class DispatchSubagentsResult:
    """What became of several tasks.

    Attributes:
        outcomes: One for each task, in the order of the tasks.
    """

    outcomes: tuple[SubagentOutcome, ...]


@event("artifact")
@dataclass(slots=True, frozen=True)
class Artifact:
    """A deliverable that a tool or a reducer records in its session, to be handed to the parent of a subagent.

    Attributes:
        path: A file of the subagent's, which is then kept, or any other reference, for example a citation.
    """

    path: str
