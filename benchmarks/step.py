"""What a step costs in process: CPU time of one model turn and one tool call, above a loop written by hand.

An agent with one tool; the model calls it N times, one call a turn, then answers. No HTTP. On are the gate with a
deadline and with ceilings on cost, tokens, steps, calls and retries, the log, the session and transactions. Each
figure is the best of several runs; the loop by hand is measured in the same process, and so is langchain's agent
where it is installed: figures in µs are those of one machine, the ratio to a peer holds on any.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from benchmarks.peers import langchain_agent
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import arun
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.tools.tool import Tool, tool

LIMITS = Limits(
    deadline="1h",
    max_cost_usd=1000,
    max_total_tokens=10**12,
    max_steps=10**9,
    max_tool_calls=10**9,
    max_turns=10**9,
)
SIZES = (10, 100, 1000, 10_000)
TARGETS = {10: 100, 1000: 120}
SYNC_EXTRA = 60
PEER_MOST = 100


class Fake:
    """A model that calls the tool N times and then answers; it costs next to nothing itself."""

    name = provider = "fake"
    native_output = True
    context_window = max_output_tokens = None
    free = True

    def __init__(self, turns: int, tool_name: str) -> None:
        """Call ``tool_name`` for ``turns`` turns."""
        self.left = turns
        self.tool_name = tool_name

    async def turn(self, request: ModelRequest | None) -> ModelReply:
        """Answer at once."""
        self.left -= 1
        if self.left < 0:
            return ModelReply(AssistantMessage("done"), TokenUsage(100, 20))
        call = ToolCall(f"c{self.left}", self.tool_name, '{"a":1,"b":2}')
        return ModelReply(AssistantMessage("", (call,)), TokenUsage(100, 20), "tool_calls")

    async def close(self) -> None:
        """Nothing is open."""


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def add_sync(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def by_hand(turns: int) -> None:
    """Run the loop as one would write it without any of it."""
    model = Fake(turns, "add")
    messages: list[Any] = []
    while True:
        reply = await model.turn(None)
        messages.append(reply.message)
        if not reply.message.tool_calls:
            return
        for call in reply.message.tool_calls:
            arguments = json.loads(call.arguments)
            messages.append({"id": call.call_id, "content": json.dumps(arguments["a"] + arguments["b"])})


def template_with(offered: Tool) -> PromptTemplate[str]:
    """Return an agent with one tool; made once, as in a program."""
    sections = [MarkdownSection(title="Task", key="task", template="Add.", tools=(offered,))]
    return PromptTemplate(ns="bench", key=offered.name, sections=sections)


async def with_watchkeeper(turns: int, template: PromptTemplate[str]) -> None:
    """Run the same work as an agent."""
    result = await arun(template, model=Fake(turns, template.key), limits=LIMITS, store=None)
    if result.stop is not None or result.usage.tool_calls != turns:
        raise RuntimeError(f"the run did not do its work: {result.sentence()}")


def cpu_per_step(work: Callable[[], Awaitable[None]], turns: int) -> float:
    """Return the least CPU time per step of several runs, in microseconds."""
    best = float("inf")
    gc.collect()
    for _ in range(max(3, 600 // turns)):
        began = time.process_time()
        asyncio.run(_awaited(work))
        best = min(best, time.process_time() - began)
    return best / turns * 1e6


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def import_cpu() -> float:
    """Return the CPU time of ``import watchkeeper`` above a bare interpreter, in milliseconds, best of five."""
    code = "import time; began = time.process_time(); import watchkeeper; print(time.process_time() - began)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs) * 1000


def main() -> None:
    """Print the table."""
    print("CPU per step, µs above a loop by hand (one model turn and one tool call)")
    print(f"{'N':>7} {'by hand':>8} {'async tool':>11} {'sync tool':>10}  target async / sync")
    with_async, with_sync, peer = template_with(add), template_with(add_sync), langchain_agent()
    for turns in SIZES:
        bare = cpu_per_step(partial(by_hand, turns), turns)
        ours = cpu_per_step(partial(with_watchkeeper, turns, with_async), turns) - bare
        sync = cpu_per_step(partial(with_watchkeeper, turns, with_sync), turns) - bare
        target = TARGETS.get(turns)
        goal = f"{target} / {target + SYNC_EXTRA}" if target else ""
        print(f"{turns:>7} {bare:>8.1f} {ours:>11.1f} {sync:>10.1f}  {goal}")
        if peer is not None and turns <= PEER_MOST:
            theirs = cpu_per_step(partial(peer, turns), turns) - bare
            print(f"{'':>7} langchain: {theirs:,.0f}, {theirs / ours:.1f} times as much")
    print(f"import watchkeeper: {import_cpu():.1f} ms of CPU (target 80)")


if __name__ == "__main__":
    main()
