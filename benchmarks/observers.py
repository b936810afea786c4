"""What oversight costs: CPU time per tool call of the engine with five observers that look at every call.

The same scripted run is made with and without observers; the difference, at call 10, 1,000 and 10,000, is the figure:
between medians of turns, so that a pause of the collector is in neither.
The target is 60 µs plus one hand-off to a thread, which is measured in the same process, and flat within 20 %. Run with
``python -m benchmarks.observers``; exits 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

from benchmarks.step import Fake, add
from watchkeeper.app.run import arun
from watchkeeper.core.limits import Limits
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.error_cascade import ErrorCascadeDetector
from watchkeeper.observers.pace import PaceEstimator
from watchkeeper.observers.resources import ResourceObserver
from watchkeeper.observers.stall import StallDetector
from watchkeeper.prompt.observer import ObserverConfig, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate

MARKS = (10, 1_000, 10_000)
WINDOW = 200
TARGET, FLAT = 60.0, 1.2
ROUNDS = 5
LIMITS = Limits(
    deadline="10h",
    max_cost_usd=1000,
    max_total_tokens=10**9,
    max_steps=10**6,
    max_tool_calls=10**6,
    max_turns=10**6,
)
OBSERVERS = (ResourceObserver(), PaceEstimator(), StallDetector(), ErrorCascadeDetector(), DriftDetector())


class Busy(Fake):
    """A model that makes another call every turn, and notes the CPU time at which each turn began."""

    def __init__(self, turns: int) -> None:
        """Make so many calls."""
        super().__init__(turns, "add")
        self.turns = turns
        self.began: list[float] = []

    async def turn(self, request: ModelRequest | None) -> ModelReply:
        """Answer at once."""
        self.began.append(time.process_time())
        self.left -= 1
        if self.left < 0:
            return ModelReply(AssistantMessage("done"), TokenUsage(100, 20))
        call = ToolCall(f"c{self.left}", self.tool_name, f'{{"a":{self.left},"b":2}}')
        return ModelReply(AssistantMessage("", (call,)), TokenUsage(100, 20), "tool_calls")


def template_with(observers: tuple[Any, ...]) -> PromptTemplate[str]:
    """Return the agent, observed or not."""
    trigger = ObserverTrigger(on_every_call=True)
    return PromptTemplate(
        ns="bench",
        key="observed",
        sections=[MarkdownSection(title="Task", key="task", template="Add.", tools=(add,))],
        observers=[ObserverConfig(observer, trigger) for observer in observers],
    )


async def turns_of(template: PromptTemplate[str], turns: int) -> list[float]:
    """Run to the end; return the CPU time at which each turn began."""
    model = Busy(turns)
    result = await arun(template, model=model, limits=LIMITS, store=None)
    if result.stop is not None or result.usage.tool_calls != turns:
        raise RuntimeError(f"the run did not do its work: {result.sentence()}")
    return model.began


def per_call(began: list[float], mark: int) -> float:
    """Return µs per turn up to a call: the median of the turns before it, which a busy machine disturbs little."""
    last = min(mark, len(began) - 1)
    turns = [after - before for before, after in pairwise(began[max(last - WINDOW, 0) : last + 1])]
    return statistics.median(turns) * 1e6


async def hand_off() -> float:
    """Return µs of CPU for one call on a worker thread."""
    await run_in_worker(int)
    began = time.process_time()
    for _ in range(2000):
        await run_in_worker(int)
    return (time.process_time() - began) / 2000 * 1e6


def main() -> int:
    """Print the table; return 1 if a target is missed."""
    bare, observed = template_with(()), template_with(OBSERVERS)
    most = max(MARKS) + 1
    figures: dict[int, float] = dict.fromkeys(MARKS, float("inf"))
    thread = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        without = asyncio.run(turns_of(bare, most))
        gc.collect()
        with_ = asyncio.run(turns_of(observed, most))
        thread = min(thread, asyncio.run(hand_off()))
        for mark in MARKS:
            figures[mark] = min(figures[mark], per_call(with_, mark) - per_call(without, mark))
    print("CPU per tool call with five observers on every call, µs above the same run without")
    for mark in MARKS:
        print(f"  call {mark:>6,}: {figures[mark]:6.1f}   (at most {TARGET:g} and one hand-off of {thread:.1f})")
    longest = max(figures[1_000], figures[10_000])
    growth = longest / min(figures[1_000], figures[10_000])
    print(f"  growth from call 1,000 to 10,000: {growth:.2f}   (at most {FLAT:g})")
    return int(longest > TARGET + thread or growth > FLAT)


if __name__ == "__main__":
    sys.exit(main())
