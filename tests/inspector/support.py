"""Stores for the inspector's tests: runs that are done, stopped, hostile, over many items, with children."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.run import run, run_many
from watchkeeper.core.usage import ModelPrice
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.tools.tool import tool

PRICES = {"scripted:scripted": ModelPrice.per_million(2, 8)}
HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>\x1b[2J\x1b]8;;http://x\x07link\u202e\nforged"


@dataclass(frozen=True)
class Letter:
    """One item."""

    name: str


@tool
def look(path: str) -> str:
    """Look at a path."""
    if path == "bad":
        raise LookupError("no such path")
    return HOSTILE


def template(key: str = "triage") -> PromptTemplate[str]:
    """Return an agent with one tool."""
    task = MarkdownSection(title="Task", key="task", template="Find the bug.", tools=(look,))
    return PromptTemplate[str](ns="tests", key=key, sections=(task,))


def looks(*paths: str, last: str = "It is in the other.") -> ScriptedModel:
    """Return a model that looks at paths, one a turn."""
    script: list[Any] = [Calls((Call("look", {"path": path}),), f"I look at {path}.") for path in paths]
    return ScriptedModel([*script, Say(last)], free=False)


def fill(store: Path) -> tuple[str, str]:
    """Store a run that is done and one that its limit of steps stopped; return their ids."""
    limits = Limits(max_cost_usd="0.50", max_steps=9)
    done = run(template(), model=looks("a", "bad"), prices=PRICES, limits=limits, store=store)
    few = Limits(max_cost_usd="1", max_steps=3)
    stopped = run(template("sort"), model=looks("a", "b", "c"), prices=PRICES, limits=few, store=store)
    return str(done.run_id), str(stopped.run_id)


def fill_many(store: Path, steps: int | None = None) -> str:
    """Store a run over three items, with a ceiling of steps over all of them; return its id."""
    task = MarkdownSection(title="Task", key="task", template="Read ${name}.")
    result = run_many(
        PromptTemplate[str](ns="tests", key="letters", params=(Letter,), sections=(task,)),
        [Letter("first"), Letter("second"), Letter("third")],
        model=ScriptedModel(lambda _: Say("done"), free=False),
        prices=PRICES,
        limits=Limits(max_cost_usd="1", max_steps=steps),
        concurrency=1,
        store=store,
    )
    return str(result.run_id)
