"""What oversight costs: CPU time per tool call of the engine with five observers that look at every call.

The same scripted run is made without observers; with the five that ship and have nothing to say, while the agent makes
a new call every turn, and while it polls a log of sixty lines with times of day whose last line tells the progress;
with five of which one speaks after every call: it is recorded, told to the agent and read by the next turn; and with
five plain ones of a user's own, which are asked on a thread. The difference, from call 10, 1,000 and 10,000 on, is the
figure: between medians of turns, so that a pause of the collector is in neither, of runs made one right after the
other, and the median of several such pairs, because others use the machine, too.
Each is to cost at most 60 µs plus one hand-off to a thread, and to be flat within 20 %. Those that ship are held to a
hand-off in a tight loop, which keeps both cores warm; those on a thread to what a sync tool costs more than an async
one in the same run: a hand-off between cold cores, and whatever else the runtime does for a tool on a thread.
Run with ``python -m benchmarks.observers``; exits 1 if a bound is missed.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.step import Fake
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import arun
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.core.workers import run_in_worker
from watchkeeper.observers.cascade import ErrorCascadeDetector
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.resources import PaceEstimator, ResourceObserver
from watchkeeper.observers.stall import StallDetector
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.session.session import Session
from watchkeeper.tools.tool import Tool, tool

MARKS = (10, 1_000, 10_000)
WINDOW = 200
TARGET, FLAT = 60.0, 1.2
ROUNDS = 6
RUNS = {10: 20, 1_000: 3, 10_000: 1}
"""How often each mark is run up to in a round."""
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


@dataclass(frozen=True)
class Own:
    """An observer as users write them."""

    name: str

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether calls fail."""
        return context.trajectory.errors_in_a_row >= 3

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
        """Say so."""
        return Assessment(self.name, "Calls fail.")


OWN = tuple(Own(f"Own {number}") for number in range(5))


@tool
async def read(path: str) -> str:
    """Read a file."""
    return path


@tool
def read_aside(path: str) -> str:
    """Read a file, on a thread."""
    return path


STEPS = itertools.count(1)


@tool
async def poll(path: str) -> str:
    """Look how far a job has come."""
    step = next(STEPS)
    lines = [f"2026-03-01T10:{step % 60:02d}:{second:02d} worker {second} idle" for second in range(60)]
    return "\n".join((*lines, f"step {step} done"))


class Busy(Fake):
    """A model that makes another call every turn, or polls, and notes the CPU time at which each turn began."""

    def __init__(self, turns: int, tool_name: str) -> None:
        """Make so many calls."""
        super().__init__(turns, tool_name)
        self.turns = turns
        self.began: list[float] = []

    async def turn(self, request: ModelRequest | None) -> ModelReply:
        """Answer at once."""
        self.began.append(time.process_time())
        self.left -= 1
        if self.left < 0:
            return ModelReply(AssistantMessage("done"), TokenUsage(100, 20))
        path = "src/job.log" if self.tool_name == poll.name else f"src/part{self.left % 37}/{self.left}.py"
        call = ToolCall(f"c{self.left}", self.tool_name, f'{{"path":"{path}"}}')
        return ModelReply(AssistantMessage("", (call,)), TokenUsage(100, 20), "tool_calls")


def template_with(observers: Sequence[Any] = (), offered: Tool = read) -> PromptTemplate[str]:
    """Return the agent, observed or not."""
    trigger = ObserverTrigger(on_every_call=True)
    return PromptTemplate(
        ns="bench",
        key="observed",
        sections=[MarkdownSection(title="Task", key="task", template="Read all that is in src/.", tools=(offered,))],
        observers=[ObserverConfig(observer, trigger) for observer in observers],
    )


async def turns_of(template: PromptTemplate[str], turns: int) -> list[float]:
    """Run to the end; return the CPU time at which each turn began."""
    (offered,) = template.sections[0].tools
    model = Busy(turns, offered.name)
    result = await arun(template, model=model, limits=LIMITS, store=None)
    if result.stop is not None or result.usage.tool_calls != turns:
        raise RuntimeError(f"the run did not do its work: {result.sentence()}")
    return model.began


def per_call(began: list[float], mark: int) -> float:
    """Return µs per turn from a call on: the median of some turns, which a busy machine disturbs little."""
    turns = [after - before for before, after in pairwise(began[mark : mark + window(mark)])]
    return statistics.median(turns) * 1e6


def window(mark: int) -> int:
    """Return how many turns are looked at from a call on."""
    return min(mark, WINDOW)


async def hand_off() -> float:
    """Return µs of CPU for one call on a worker thread."""
    await run_in_worker(int)
    began = time.process_time()
    for _ in range(2000):
        await run_in_worker(int)
    return (time.process_time() - began) / 2000 * 1e6


def measured(templates: Sequence[PromptTemplate[str]], mark: int) -> list[float]:
    """Run each template once, one after the other; return µs per turn from a call on."""
    found: list[float] = []
    for template in templates:
        gc.collect()
        found.append(per_call(asyncio.run(turns_of(template, mark + window(mark))), mark))
    return found


def report(name: str, figures: dict[int, float], thread: float, hand_off_is: str = "one hand-off") -> bool:
    """Print what one kind of call costs; return whether it keeps its bounds."""
    print(f"{name}: at most {TARGET:g} and {hand_off_is} of {thread:.1f}")
    for mark, figure in figures.items():
        print(f"  call {mark:>6,}: {figure:6.1f}")
    growth = max(figures.values()) / min(figures.values())
    print(f"  growth over the run: {growth:.2f}   (at most {FLAT:g})")
    return max(figures.values()) <= TARGET + thread and growth <= FLAT


def main() -> int:
    """Print the tables; return 1 if a bound is missed."""
    templates = [template_with(), template_with((), read_aside), *map(template_with, (QUIET, SPEAKS, OWN))]
    polling = [template_with((), poll), template_with(QUIET, poll)]
    above: dict[int, list[list[float]]] = {mark: [] for mark in MARKS}
    threads: list[float] = []
    for _ in range(ROUNDS):
        for mark in MARKS:
            for _ in range(RUNS[mark]):
                bare, *others = measured(templates, mark)
                still, watched = measured(polling, mark)
                above[mark].append([*(figure - bare for figure in others), watched - still])
        threads.append(asyncio.run(hand_off()))
    thread = statistics.median(threads)
    figures = {mark: [statistics.median(each) for each in zip(*pairs, strict=True)] for mark, pairs in above.items()}
    kinds = ({mark: each[place] for mark, each in figures.items()} for place in range(5))
    sync_tool, quiet, speaks, own, polled = kinds
    print("CPU per tool call with five observers on every call, µs above the same run without")
    kept = [
        report("those that ship, nothing to say", quiet, thread),
        report("those that ship, nothing to say, the agent polls", polled, thread),
        report("those that ship, one of them speaks", speaks, thread),
        report(
            "plain ones on a thread, nothing to say",
            own,
            statistics.median(sync_tool.values()),
            "what a sync tool costs more than an async one",
        ),
    ]
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
