"""One run with everything that telemetry tells of, and what was exported of it as data that is the same every time.

``make backends`` sends it to real backends; `test_recorded.py` compares what it exports today with what they were sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from watchkeeper import Limits, MarkdownSection, ModelPrice, PromptTemplate, TokenUsage, tool
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.run import arun
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.usage import Usage
from watchkeeper.prompt.completion import TaskCompletionChecker, TaskCompletionContext, TaskCompletionResult
from watchkeeper.subagents import PromptRegistry, PromptSubagentToolsSection
from watchkeeper.telemetry import Telemetry, names

PRICES = {"gpt-5-mini": ModelPrice.per_million("0.25", 2)}
VARYING = re.compile(r"\.id$|_id$|\.deadline$|remaining_seconds$|response\.id$|conversation")
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@tool
def read_log(name: str) -> str:
    """Return the end of a log file."""
    return "01:00 started; 01:07 rsync: no space left on device"


@tool
def page(who: str) -> str:
    """Call somebody."""
    raise ConnectionError("the pager does not answer")


@dataclass
class Cites(TaskCompletionChecker):
    """Is satisfied by an answer that quotes the log."""

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Look for the quote."""
        if "rsync" in str(context.tentative_output):
            return TaskCompletionResult.ok("the line is quoted")
        return TaskCompletionResult.incomplete("quote the line")


def model(*steps: Any) -> ScriptedModel:
    return ScriptedModel(steps, name="gpt-5-mini", provider="openai", free=False)


async def sample(telemetry: Telemetry, clock: Clock = SYSTEM_CLOCK) -> Usage:
    """Make the run and return what it used."""
    dig = PromptTemplate[str](ns="night", key="disk", sections=[MarkdownSection("Disk", "disk", "Look at the disk.")])
    below = model(Say("The disk is full.", TokenUsage(900, 60)))
    dispatching = PromptSubagentToolsSection(PromptRegistry(dig), model=below)
    task = MarkdownSection("Task", "task", "Why did the backup end? Quote the line.", tools=(read_log, page))
    template = PromptTemplate[str](
        ns="night", key="watch", sections=[task, dispatching], task_completion_checker=Cites()
    )
    order = {"mode": "ad_hoc", "prompt_ns": "night", "prompt_key": "disk", "instructions": "Is it full?"}
    script = model(
        ProviderError("overloaded", fault="overloaded", provider="openai"),
        Call("read_log", {"name": "backup"}),
        Call("page", {"who": "the operator"}),
        Call("dispatch_subagent", order),
        Say("The disk is full.", TokenUsage(1500, 80, 800)),
        Say("01:07 rsync: no space left on device", TokenUsage(1600, 90, 1200, 0, 30)),
    )
    limits = Limits(deadline="10m", max_cost_usd="0.50")
    result = await arun(
        template, model=script, limits=limits, store=None, prices=PRICES, clock=clock, telemetry=telemetry
    )
    assert result.completion == "verified", result.sentence()
    return result.usage


def as_data(spans: Iterable[ReadableSpan]) -> list[dict[str, Any]]:
    """Return spans as data without ids and times, each with the name of the span above it."""
    known = list(spans)
    by_id = {span.context.span_id: span.name for span in known if span.context is not None}
    return [
        {
            "name": span.name,
            "below": None if span.parent is None else by_id.get(span.parent.span_id),
            "kind": span.kind.name,
            "status": span.status.status_code.name,
            "attributes": settled(span.attributes or {}),
            "events": [{"name": event.name, "attributes": settled(event.attributes or {})} for event in span.events],
        }
        for span in known
    ]


def settled(attributes: Any) -> dict[str, Any]:
    """Return attributes with a mark in place of what differs every time."""
    return {
        name: "*" if VARYING.search(name) else IDS.sub("*", value) if isinstance(value, str) else plain(value)
        for name, value in sorted(attributes.items())
    }


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return json.loads(json.dumps(value))


def reported(spans: Iterable[ReadableSpan]) -> int:
    """Return all tokens that providers reported."""
    given: list[dict[str, Any]] = [dict(span.attributes or {}) for span in spans]
    counts: list[int] = [each.get(name, 0) for each in given for name in (names.INPUT_TOKENS, names.OUTPUT_TOKENS)]
    return sum(counts)
