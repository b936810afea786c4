"""What oversight costs: CPU time per tool call of the engine with five observers that look at every call.

The same scripted run is made without observers, with five that look at every call and have nothing to say (what nearly
every call of a long run sees), and with five of which one speaks after every call: it is recorded, told to the agent
and read by the next turn. The difference, at call 10, 1,000 and 10,000, is the figure: between medians of turns, so
that a pause of the collector is in neither, and the least of several rounds, because others use the machine, too.
The target is 60 µs plus one hand-off to a thread, which is measured in the same process, and flat within 20 %. It is
held against quiet calls; what speaking adds has a bound of its own, so that it cannot grow unseen. Run with
``python -m benchmarks.observers``; exits 1 if a bound is missed.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.step import Fake
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
from watchkeeper.tools.tool import tool

MARKS = (10, 1_000, 10_000)
WINDOW = 200
TARGET, SPEAKING, FLAT = 60.0, 60.0, 1.2
ROUNDS, SHORT_RUNS = 5, 20
LIMITS = Limits(
    deadline="10h",
    max_cost_usd=1000,
    max_total_tokens=10**9,
    max_steps=10**6,
    max_tool_calls=10**6,
    max_turns=10**6,
)
WATCHING = (PaceEstimator(), StallDetector(), ErrorCascadeDetector(), DriftDetector())
QUIET = (*WATCHING, PaceEstimator(least_used=0.5, name="Late pace"))
SPEAKS = (ResourceObserver(), *WATCHING)


@tool
async def read(path: str) -> str:
    """Read a file."""
    return path


class Busy(Fake):
    """A model that makes another call every turn, and notes the CPU time at which each turn began."""

    def __init__(self, turns: int) -> None:
        """Make so many calls."""
        super().__init__(turns, "read")
        self.turns = turns
        self.began: list[float] = []

    async def turn(self, request: ModelRequest | None) -> ModelReply:
        """Answer at once."""
        self.began.append(time.process_time())
        self.left -= 1
        if self.left < 0:
            return ModelReply(AssistantMessage("done"), TokenUsage(100, 20))
        call = ToolCall(f"c{self.left}", self.tool_name, f'{{"path":"src/part{self.left % 37}/{self.left}.py"}}')
        return ModelReply(AssistantMessage("", (call,)), TokenUsage(100, 20), "tool_calls")


def template_with(observers: tuple[Any, ...]) -> PromptTemplate[str]:
    """Return the agent, observed or not."""
    trigger = ObserverTrigger(on_every_call=True)
    return PromptTemplate(
        ns="bench",
        key="observed",
        sections=[MarkdownSection(title="Task", key="task", template="Read all that is in src/.", tools=(read,))],
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


def measured(templates: Sequence[PromptTemplate[str]], marks: Sequence[int]) -> list[dict[int, float]]:
    """Run each template once, one after the other; return µs per turn at each mark."""
    found: list[dict[int, float]] = []
    for template in templates:
        gc.collect()
        began = asyncio.run(turns_of(template, max(marks) + 1))
        found.append({mark: per_call(began, mark) for mark in marks})
    return found


def report(name: str, figures: dict[int, float], most: float, thread: float) -> bool:
    """Print what one kind of call costs; return whether it keeps its bounds."""
    print(f"{name}: at most {most:g} and one hand-off of {thread:.1f}")
    for mark, figure in figures.items():
        print(f"  call {mark:>6,}: {figure:6.1f}")
    growth = max(figures[1_000], figures[10_000]) / min(figures[1_000], figures[10_000])
    print(f"  growth from call 1,000 to 10,000: {growth:.2f}   (at most {FLAT:g})")
    return max(figures.values()) <= most + thread and growth <= FLAT


def main() -> int:
    """Print the tables; return 1 if a bound is missed."""
    templates = [template_with(observers) for observers in ((), QUIET, SPEAKS)]
    least: list[dict[int, float]] = [{} for _ in templates]
    thread = float("inf")
    for _ in range(ROUNDS):
        rounds = [measured(templates, MARKS[:1]) for _ in range(SHORT_RUNS)]
        for found in (*rounds, measured(templates, MARKS[1:])):
            for best, figures in zip(least, found, strict=True):
                best.update({mark: min(best.get(mark, figure), figure) for mark, figure in figures.items()})
        thread = min(thread, asyncio.run(hand_off()))
    bare, quiet, speaks = least
    print("CPU per tool call with five observers on every call, µs above the same run without")
    kept = report("nobody has anything to say", {mark: quiet[mark] - bare[mark] for mark in MARKS}, TARGET, thread)
    spoken = {mark: speaks[mark] - bare[mark] for mark in MARKS}
    return int(not (report("one of them speaks", spoken, TARGET + SPEAKING, thread) and kept))


if __name__ == "__main__":
    sys.exit(main())
