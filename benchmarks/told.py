"""What the bundled model does when it goes in circles and is told, beside the same runs untold.

An agent is to find things in an archive that are not there, with a search, a list and a reader. Each task is run twice
with the same seed: with `StallDetector` and `ErrorCascadeDetector`, and without. Printed for both: how the runs ended,
how many calls they made and how many of these brought nothing new; and of the told runs, what the agent did next. Run
by hand, ``python -m benchmarks.told [RUNS]`` or ``make measure``: it needs the model's packages (``make run`` installs
them), and 20 runs of each kind take about half an hour on two cores.
"""

from __future__ import annotations

import asyncio
import collections
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper import Agent, Limits, ModelSettings, PredicateChecker, tool
from watchkeeper.events import ObserversRan, ToolInvoked
from watchkeeper.local.model import LocalModel
from watchkeeper.observers import ErrorCascadeDetector, ObserverConfig, ObserverTrigger, StallDetector
from watchkeeper.prompt.completion import TaskCompletionContext

RUNS, MOST_TURNS = 20, 16

ARCHIVE = {
    "invoices/2026-01.txt": "Invoice of January 2026, customer Alder: total 410.00",
    "invoices/2026-02.txt": "Invoice of February 2026, customer Birch: total 93.50",
    "invoices/2026-03.txt": "Invoice of March 2026, customer Cedar: total 1,200.00",
    "letters/2026-02-cedar.txt": "Cedar asks for a copy of the contract.",
    "letters/2026-03-alder.txt": "Alder moves to Elm Street 4.",
    "contracts/birch.txt": "Contract with Birch, from 2024, 24 months.",
}
MISSING = (
    "the total of the invoice of May 2026",
    "the phone number of Cedar",
    "the contract with Alder",
    "the invoice of customer Dogwood",
    "the letter in which Birch complains",
    "the total of the invoice of August 2025",
    "the name of the person who signed the contract with Birch",
    "the reminder that was sent to Cedar",
    "the delivery note of March 2026",
    "the bank account of Alder",
)


@tool(read_only=True)
def search(words: str) -> str:
    """Search the archive for words; returns the names of the files that contain all of them."""
    wanted = words.lower().split()
    found = [name for name, text in ARCHIVE.items() if all(word in f"{name} {text}".lower() for word in wanted)]
    return "\n".join(found) or f"no file contains {words!r}"


@tool(read_only=True)
def list_folder(folder: str) -> str:
    """List a folder of the archive: invoices, letters or contracts."""
    found = [name for name in ARCHIVE if name.startswith(f"{folder.strip('/. ')}/")]
    return "\n".join(found) or f"there is no folder {folder!r}"


@tool(read_only=True)
def read(name: str) -> str:
    """Read a file of the archive."""
    return ARCHIVE.get(name.strip("/ "), f"there is no file {name!r}")


@tool
def hand_in(name: str, quote: str) -> str:
    """Hand in what was found: the name of the file, and the words in it that say what is asked for."""
    if quote.strip() and quote.lower() in ARCHIVE.get(name.strip("/ "), "").lower():
        return "not accepted: these words do not say what is asked for"
    return f"not accepted: {name!r} does not contain {quote!r}"


@tool
def give_up(reason: str) -> str:
    """Say that it cannot be found, and what is missing."""
    return "noted"


@dataclass(frozen=True)
class Played:
    """One run.

    Attributes:
        ended: How it ended: ``gave up``, ``answered``, or the reason of its stop.
        calls: How many tool calls it made.
        repeated: How many of these were the same as an earlier one.
        told_after: After how many calls it was told first; None if never.
        next: What it did after that: ``gave up``, ``answered``, ``tried something new``, ``repeated itself``, or
            ``was stopped``.
    """

    ended: str
    calls: int
    repeated: int
    told_after: int | None
    next: str


def has_given_up(names: Sequence[str]) -> bool:
    """Whether the agent gave up; nothing of what is asked for is there, so that nothing else can be accepted."""
    return "give_up" in names


def has_ended(context: TaskCompletionContext) -> bool:
    """Whether the work is over, for the checker."""
    return has_given_up([call.name for call in context.session[ToolInvoked].all()])


async def play(model: LocalModel, number: int, *, told: bool) -> Played:
    """Run one task."""
    always = ObserverTrigger(every_n_calls=1)
    observers = [ObserverConfig(each, always) for each in (StallDetector(), ErrorCascadeDetector())] if told else []
    agent = Agent(
        model,
        "You work in an archive. Find what is asked for with the tools, and hand in the words of the file that say it."
        " Do not answer before something was handed in, or you gave up.",
        tools=(search, list_folder, read, hand_in, give_up),
        task_completion_checker=PredicateChecker(has_ended, "something was handed in and accepted, or you gave up"),
        completion_rounds=MOST_TURNS,
        observers=observers,
        settings=ModelSettings(temperature=0.7, seed=number),
        limits=Limits(max_turns=MOST_TURNS, deadline="20m", max_total_tokens=None),
    )
    result = await agent.arun(f"Find {MISSING[number % len(MISSING)]}.", store=None)
    calls = [(call.name, json.dumps(call.params, sort_keys=True)) for call in result.session[ToolInvoked].all()]
    first = next(
        (
            ran.call_index
            for ran in result.session[ObserversRan].all()
            if any(run.advice is not None for run in ran.runs)
        ),
        None,
    )
    gave_up = has_given_up([name for name, _ in calls])
    ended = result.stop.reason if result.stop is not None else "gave up" if gave_up else "answered"
    after = "" if first is None else "answered" if result.stop is None else "was stopped"
    if first is not None and first < len(calls):
        after = "repeated itself" if calls[first] in calls[:first] else "tried something new"
        after = "gave up" if calls[first][0] == "give_up" else after
    return Played(ended, len(calls), len(calls) - len(set(calls)), first, after)


def shown(name: str, runs: list[Played]) -> str:
    """Return what is printed of runs of one kind."""
    ends = ", ".join(f"{end} {count}" for end, count in collections.Counter(run.ended for run in runs).most_common())
    calls, repeated = (statistics.mean(values) for values in ([r.calls for r in runs], [r.repeated for r in runs]))
    return f"{name:<8} {ends}; {calls:.1f} calls a run, {repeated:.1f} of them the same as an earlier one (means)"


async def main() -> int:
    """Run all tasks in both ways, and print the totals."""
    count = int(sys.argv[1]) if sys.argv[1:] else RUNS
    model, untold, told = LocalModel(), list[Played](), list[Played]()
    try:
        for number in range(count):
            untold.append(await play(model, number, told=False))
            told.append(await play(model, number, told=True))
            print(f"{number + 1} of {count}: {untold[-1]} | {told[-1]}", file=sys.stderr, flush=True)
    finally:
        await model.close()
    print(shown("untold", untold))
    print(shown("told", told))
    spoken = [run for run in told if run.told_after is not None]
    nexts = ", ".join(
        f"{what} {number}" for what, number in collections.Counter(run.next for run in spoken).most_common()
    )
    print(f"told in {len(spoken)} of {count} runs; what the agent did next: {nexts or 'nothing to say'}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
