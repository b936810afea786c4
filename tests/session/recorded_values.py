"""One value of every kind of ours that stands inside recorded events, to be compared with what an older log holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from watchkeeper.accounting.budget import Budget, BudgetStatus
from watchkeeper.accounting.limits import Limits
from watchkeeper.asking.compaction import ContextSummary
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import RunContext
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.judging.templates import ComparisonVerdict, CompletionVerdict, RubricResult, TrajectoryAssessment
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.runtime.events import RunEnded, RunStarted
from watchkeeper.session.log import Envelope, SliceEdited
from watchkeeper.shield.decision import Decision, SafetyEvent
from watchkeeper.subagents.payloads import (
    DispatchSubagent,
    DispatchSubagentResult,
    DispatchSubagents,
    DispatchSubagentsResult,
    SubagentOutcome,
)
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.filesystem import FileStat
from watchkeeper.tools.filesystems import FileChange
from watchkeeper.tools.values import ToolResult

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ID = UUID(int=1)


def recorded() -> list[Envelope]:
    """Return a log in which every such kind of value occurs."""
    task = DispatchSubagent("ad_hoc", "docs", "reader", "Read it.", ("notes.md",))
    done = DispatchSubagentResult("docs", "reader", "Read.", ("notes.md",), ("read",), run_id=ID)
    outputs: list[Any] = [
        CompletionVerdict(("a", "b"), ("text",), "It has a.", complete=False, missing="b"),
        TrajectoryAssessment("It repeats itself.", "stuck", "Stop."),
        ComparisonVerdict("clear", "first"),
        RubricResult({"clear": 3}, {"clear": "It is."}, 0.75),
        ContextSummary(("read",), ("fact",), ("choice",), ("write",)),
    ]
    messages = (
        SystemMessage("Be brief."),
        UserMessage((TextPart("Look:"), ImagePart(url="https://example.org/a.png"))),
        AssistantMessage("Hm.", (ToolCall("c1", "read", "{}"),), provider_data={"signed": [1]}),
        ToolMessage("c1", "read", "text", is_error=True),
    )
    events: list[Any] = [
        RunStarted(RunContext(ID, ID, ID, trace_id="0" * 32), "docs/main", "openai:gpt", "none", NOON, NOON),
        PromptRendered("docs/main", messages, ("read",), "loop", ID, NOON),
        SliceEdited(Budget, "seed", (Budget(Deadline(NOON), max_cost_usd="2.50"),)),
        SliceEdited(Limits, "append", (Limits(account="team-a", account_limit="$20/day"),)),
        SafetyEvent("budget_exceeded", Decision.HALT, "It is used up.", "gate", ts=NOON),
        _invoked({"path": "a"}, [FileStat("a", "file", 3), FileChange("a", "created")]),
        _invoked({}, BudgetStatus(Deadline(NOON), tokens_used=3)),
        _invoked(
            DispatchSubagents((task,)), DispatchSubagentsResult((SubagentOutcome(done), SubagentOutcome(error="no")))
        ),
        *(_ended(output) for output in outputs),
    ]
    return [Envelope(seq, NOON, event) for seq, event in enumerate(events, 1)]


def _invoked(params: Any, value: Any) -> ToolInvoked:
    result = ToolResult.ok(value)
    return ToolInvoked("docs/main", "loop", "read", params, result, ID, NOON, TokenUsage(5, 2), "text", "c1", ID)


def _ended(output: Any) -> RunEnded:
    stop = Stop("timeout", "gate", "It took too long.", "deadline", "1h")
    return RunEnded(
        ID, stop, output, None, "text", "unchecked", Usage(TokenUsage(5, 2), 7, 1, 1, 2), 1.5, None, NOON, 1
    )
