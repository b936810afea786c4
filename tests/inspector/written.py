"""Writes the records of runs event by event, with times of its choice: long runs, runs that go on, runs over hours."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import RandomIds, RunContext, root_run_context
from watchkeeper.core.messages import AssistantMessage, ToolCall, UserMessage
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.runtime.advice_events import ObserversRan, SourceRan
from watchkeeper.runtime.events import (
    CallBegun,
    ChildEnded,
    ChildStarted,
    CompletionChecked,
    ModelFailed,
    ModelReplied,
    RunEnded,
    RunStarted,
)
from watchkeeper.session.log import Envelope
from watchkeeper.shield.decision import Decision, SafetyEvent
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

START = datetime(2026, 11, 16, 1, 55, 44, tzinfo=UTC)
WORST = TokenUsage(4_000, 2_000)


class Written:
    """One run on its way to a store.

    Attributes:
        now: The time of what is written next.
        usage: What it has used so far.
    """

    def __init__(
        self,
        store: RunStore,
        limits: Limits,
        *,
        name: str = "ledger/reconcile",
        seed: int = 1,
        now: datetime = START,
        above: Written | None = None,
    ) -> None:
        """Begin a run."""
        self.ids = RandomIds(random.Random(seed))
        self.context: RunContext = root_run_context(self.ids.uuid(), self.ids)
        self.run_id = self.context.run_id
        self.now = now
        self.began = now
        self.usage = Usage()
        self.turn = 0
        self.name = name
        self._store = store
        self._seq = 0
        self._calls = 0
        self._waiting: list[Item] = []
        parent = None if above is None else above.run_id
        words = limits.describe()
        deadline = now + timedelta(hours=1)
        self.event(
            RunStarted(
                self.context, name, "scripted:scripted", words, deadline, now, parent_run_id=parent, limit_values=limits
            )
        )
        task = UserMessage.of("Reconcile the statement.")
        self.event(PromptRendered(name, (task,), ("search",), "scripted", self.context.session_id, now))

    def event(self, event: Any, changes: Any = None) -> int:
        """Put an event on the log."""
        self._seq += 1
        self._waiting.append(Item(self.run_id, Envelope(self._seq, self.now, event, changes)))
        return self._seq

    def flush(self) -> None:
        """Write what was put there."""
        self._store.append(self._waiting)
        self._waiting.clear()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def begin(self, kind: Any, name: str, call_id: str = "", attempt: int = 1) -> str:
        """Put the beginning of a call there; return its id at the gate."""
        self._calls += 1
        node_id = str(UUID(int=self._calls))
        worst, nanos = (WORST, 24_000_000) if kind == "llm" else (TokenUsage(), 0)
        begun = CallBegun(kind, name, self.turn, attempt, node_id, call_id, worst, nanos, self.now)
        self._waiting.append(Item(self.run_id, begun))
        return node_id

    def model(
        self, seconds: float = 5.0, tokens: tuple[int, int] = (900, 120), nanos: int = 3_000_000, text: str = "I look."
    ) -> None:
        """Put a turn of the model there."""
        self.turn += 1
        node_id = self.begin("llm", "scripted:scripted")
        self.wait(seconds)
        used = TokenUsage(*tokens)
        message = AssistantMessage(text, (ToolCall(f"c{self._calls}", "search", '{"q": "invoice"}'),))
        ms = seconds * 1000
        self.event(
            ModelReplied(self.turn, message, "tool_calls", used, nanos, "scripted", node_id, ms, False, self.now)
        )
        self.usage += Usage(used, nanos, model_calls=1, steps=1)

    def failed_model(self, seconds: float = 1.0) -> None:
        """Put a model call there that failed and is tried again."""
        node_id = self.begin("llm", "scripted:scripted")
        self.wait(seconds)
        self.event(ModelFailed(self.turn + 1, 1, "overloaded", "503", 2.0, node_id, self.now))
        self.usage += Usage(model_calls=1, steps=1)

    def tool(
        self, seconds: float = 0.5, said: str = "nothing found", outcome: Any = "ok", name: str = "search"
    ) -> None:
        """Put a tool call there."""
        node_id = self.begin("tool", name, f"c{self._calls}")
        self.wait(seconds)
        result: ToolResult[Any] = ToolResult(outcome == "ok", said, "")
        asked, event_id, call_id = {"q": "invoice"}, self.ids.uuid(), f"c{self._calls - 1}"
        invoked = ToolInvoked(
            self.name, "scripted", name, asked, result, None, self.now, None, said, call_id, event_id, outcome
        )
        self.event(msgspec.structs.replace(invoked, duration_ms=seconds * 1000, node_id=node_id))
        self.usage += Usage(tool_calls=1, steps=1)

    def advised(self, severity: Any = "caution") -> None:
        """Put an assessment there."""
        advice = Assessment("Stall", "The last calls brought nothing new.", severity=severity)
        self.event(ObserversRan(self.turn, (SourceRan("Stall", "advised", advice),), self.now, text="### Stall"))

    def checked(self, verdict: Any = "rejected") -> None:
        """Put a verdict there."""
        self.event(CompletionChecked(verdict, "3 of 11 lines are matched.", self.now))

    def child(self, kind: Any = "subagent", name: str = "ledger/lookup", seed: int = 2) -> Written:
        """Begin a run below this one."""
        below = Written(self._store, Limits(), name=name, seed=seed, now=self.now, above=self)
        self.event(ChildStarted(below.context, self.run_id, kind, name, "scripted:scripted", 1, "", None, self.now))
        return below

    def child_ended(self, below: Written, kind: Any = "subagent") -> None:
        """End a run below this one."""
        below.end()
        self.now = below.now
        ms = (below.now - below.began).total_seconds() * 1000
        self.event(
            ChildEnded(
                below.run_id, self.run_id, kind, below.name, None, "unchecked", below.usage, ms, "Done.", self.now
            )
        )
        self.usage += below.usage + Usage(steps=1)

    def refused(self, stop: Stop) -> None:
        """Put a refusal of the gate there."""
        facts = {"limit": stop.limit, "value": stop.value, "source": "gate", "asked": 24_000_000, "left": 10_000_000}
        self.event(SafetyEvent(stop.reason, Decision.HALT, stop.message, "ExecutionContext", None, self.now, facts))

    def end(self, stop: Stop | None = None, text: str = "Three lines are certain.") -> None:
        """End the run, and write all of it."""
        ms = (self.now - self.began).total_seconds() * 1000
        self.event(
            RunEnded(
                *(self.run_id, stop, text, None, text, "unchecked", self.usage, ms, None, self.now), turns=self.turn
            )
        )
        self.flush()


def write_night(store: RunStore, seed: int = 7) -> Written:
    """Write a run that its budget stopped, with everything a page shows; return it."""
    noise = random.Random(seed)
    run = Written(store, Limits(max_cost_usd="0.12", max_total_tokens=60_000, max_steps=80, max_turns=30), seed=seed)
    for turn in range(1, 19):
        if turn in (4, 9):
            run.failed_model()
        run.model(noise.uniform(8, 30), (800 + 60 * turn, noise.randint(60, 300)), 3_000_000 + 150_000 * turn)
        for _ in range(noise.randint(1, 3)):
            failed = noise.random() < 0.15
            run.tool(noise.uniform(0.2, 3), "no such invoice" if failed else "INV-20418", "failed" if failed else "ok")
        if turn in (6, 12, 13):
            run.advised("warning" if turn == 13 else "info")
        if turn == 8:
            below = run.child()
            for _ in range(4):
                below.model(12, (1_200, 80), 2_000_000)
                below.tool(1)
            run.child_ended(below)
        if turn in (11, 16):
            judge = run.child("verdict", "judge/verdict", seed=turn)
            judge.model(20, (2_500, 90), 4_000_000)
            run.child_ended(judge, "verdict")
            run.checked()
    said = "The run has $0.01 left of its cost ceiling of $0.12 after $0.11; the next call could need up to $0.024."
    stop = Stop("budget_exceeded", "gate", said, "max_cost_usd", "$0.12")
    run.refused(stop)
    run.model(19, (1_900, 200), 4_000_000, "Three lines are certain: 1, 2, 4.")
    run.end(stop)
    return run
