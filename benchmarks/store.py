"""What the run store costs: the same runs with and without it, taking turns, in CPU time of one process.

Every model call and every tool call is on disk before it begins; the tool declares nothing, so each of its calls has to
be. In process: an agent whose model and tool cost next to nothing, N steps, at most 1.4 times the run without a store.
Over HTTP: 200 agents at once, ten steps each, at most 1.3 times the wall time and the CPU. Below that, why each run has
a file of its own: what it costs to open, own and close one for ten steps, beside one open file for all. Run with
``python -m benchmarks.store``; exits 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.http_step import LIMITS as HTTP_LIMITS
from benchmarks.http_step import LOOKUP, PRICES, SYSTEM, TASK, result
from benchmarks.step import LIMITS, Fake, add, template_with
from watchkeeper.adapters.openai_chat import OpenAIChatModel
from watchkeeper.app.run import arun
from watchkeeper.disk.liveness import own_mark
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.store.run_file import RunFile
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import tool

IN_PROCESS = 1.4
OVER_HTTP = 1.3
SHARE = 0.01
SIZES = (10, 100)
PAIRS = 15
AGENTS, STEPS, ROUNDS = 200, 10, 5


async def in_process(turns: int, store: RunStore | None) -> None:
    """Run an agent of ``turns`` steps."""
    ended = await arun(TEMPLATE, model=Fake(turns, TEMPLATE.key), limits=LIMITS, store=store)
    if ended.stop is not None or ended.not_stored or ended.usage.tool_calls != turns:
        raise RuntimeError(f"the run did not do its work: {ended.sentence()}")


TEMPLATE = template_with(add)


async def pairs(turns: int, store: RunStore) -> tuple[float, float]:
    """Return the CPU time per step without and with the store, in µs: medians of pairs."""
    runs = max(1, 300 // turns)
    cost: dict[bool, list[float]] = {False: [], True: []}
    for stored in (False, True):
        await in_process(turns, store if stored else None)
    for number in range(PAIRS):
        for stored in (False, True) if number % 2 else (True, False):
            gc.collect()
            began = time.process_time()
            for _ in range(runs):
                await in_process(turns, store if stored else None)
            cost[stored].append((time.process_time() - began) / runs / turns * 1e6)
    return statistics.median(cost[False]), statistics.median(cost[True])


async def many_over_http(url: str, store: RunStore) -> tuple[float, float]:
    """Return wall and CPU time of 200 agents at once with the store, as multiples of those without it."""
    model = OpenAIChatModel("gpt-5-mini", api_key="test", base_url=url)

    @tool(name=LOOKUP.name)
    async def lookup(word: str, context: ToolContext) -> str:
        """Look a word up in the dictionary."""
        return result(int(context.call_id.rpartition("_")[2].partition("-")[0] or 0) % STEPS, STEPS)

    sections = [
        MarkdownSection(title="Role", key="role", template=SYSTEM, role="system"),
        MarkdownSection(title="Task", key="task", template=TASK, tools=(lookup,)),
    ]
    template = PromptTemplate(ns="bench", key="store", sections=sections)
    limits = HTTP_LIMITS

    async def all_at_once(where: RunStore | None) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        runs = (arun(template, model=model, limits=limits, prices=PRICES, store=where) for _ in range(AGENTS))
        for ended in await asyncio.gather(*runs):
            assert not ended.not_stored, ended.not_stored
        return time.perf_counter() - wall, time.process_time() - cpu

    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    await all_at_once(None)
    for number in range(ROUNDS):
        for stored in (False, True) if number % 2 else (True, False):
            found[stored].append(await all_at_once(store if stored else None))
    await model.close()
    medians = [
        [statistics.median(each[place] for each in found[stored]) for place in (0, 1)] for stored in (False, True)
    ]
    return medians[1][0] / medians[0][0], medians[1][1] / medians[0][1]


def files(folder: Path) -> tuple[float, float]:
    """Return µs for the 60 writes of ten steps: into a file that is made, owned and closed, and into an open one."""
    line, mark, number = b"x" * 400 + b"\n", own_mark(), 500

    def own_file() -> None:
        for run in range(number):
            file = RunFile(folder / f"{run}.jsonl", mark, "2026-11-22T00:00:00+00:00")
            for _ in range(60):
                file.write(line)
            file.close()

    def open_file() -> None:
        file = os.open(folder / "all", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(60 * number):
            os.write(file, line)
        os.close(file)

    def micros(work: Callable[[], None]) -> float:
        began = time.process_time()
        work()
        return (time.process_time() - began) / number * 1e6

    return micros(own_file), micros(open_file)


def over_http(store: RunStore) -> tuple[float, float]:
    """Measure 200 agents against a server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.http_step", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url: Any = json.loads(server.stdout.readline())[0]
        return asyncio.run(many_over_http(url, store))


def main() -> int:
    """Print the tables; return 1 if a target is missed."""
    folder = Path(tempfile.mkdtemp(prefix="store-bench-"))
    missed = False
    try:
        with RunStore(folder / "store") as store:
            print("CPU per step in process, µs; every call is on disk before it begins")
            print(f"{'N':>6} {'without':>9} {'with':>9} {'ratio':>7}   target {IN_PROCESS}")
            for turns in SIZES:
                without, stored = asyncio.run(pairs(turns, store))
                share = (stored - without) / 1e6
                missed |= stored / without > IN_PROCESS or share > SHARE
                print(f"{turns:>6} {without:>9.1f} {stored:>9.1f} {stored / without:>7.2f}")
                print(f"{'':>6} of a step whose model takes 1 s: {share:.3%} (target under {SHARE:.0%})")
            wall, cpu = over_http(store)
            missed |= max(wall, cpu) > OVER_HTTP
            print(f"{AGENTS} agents at once over HTTP, {STEPS} steps: {wall:.2f} times the wall time, {cpu:.2f} times")
            print(f"       the CPU; target {OVER_HTTP}")
        own, shared = files(folder)
        print(f"60 writes, µs: a file for each run {own:.0f}, one open file for all {shared:.0f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
