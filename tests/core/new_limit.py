"""What a copy of Watchkeeper that has one limit more makes of it; run by `test_meters`, says it on stdout as JSON."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.app.resume import resume
from watchkeeper.app.run import run
from watchkeeper.app.settings import limits_from, settings_here
from watchkeeper.blocks.contained import contained
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.usage import Usage
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.loop.used import spent_of
from watchkeeper.observers.resources import PaceEstimator, ResourceObserver
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import RunEnded
from watchkeeper.session.session import Session
from watchkeeper.shield.decision import ChainMetadata
from watchkeeper.subagents.payloads import PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.testing import TestClock
from watchkeeper.tools.context import ToolInvoked

CHILD = CallRequest("child", "helper")
TOOL = CallRequest("tool", "look")
CHAIN = ChainMetadata("request", "chain")


def limits(**more: Any) -> Limits:
    """Return limits with the new one, as only a dictionary can name it here."""
    return Limits(**more)


def stops(gate: ExecutionContext, *requests: CallRequest) -> list[dict[str, Any] | None]:
    """Make calls one after the other; return the stop of each, or None for one that ran."""
    found = [gate.call(request, lambda ticket: None).stop for request in requests]
    return [
        None if stop is None else {"reason": stop.reason, "limit": stop.limit, "value": stop.value, "said": str(stop)}
        for stop in found
    ]


def of_the_gate() -> dict[str, Any]:
    """Return what the gate and a contained block say when the limit is reached, and how it is carved and kept."""
    with ExecutionContext(limits(max_child_runs=2)) as gate:
        reached = stops(gate, CHILD, TOOL, CHILD, TOOL, CHILD)
    with ExecutionContext(limits(max_child_runs=3)) as parent, parent.child(limits(max_child_runs=2)) as child:
        carved = (child.left()["max_child_runs"], parent.left()["max_child_runs"])
    with ExecutionContext(limits(max_child_runs=20)) as gate:
        verdict = gate.keep_verdict()
        kept = gate.left()["max_child_runs"] if verdict else None
    single: Any = {"max_child_runs": 1}
    with contained(**single) as block:
        inside = block.limits.ceiling("max_child_runs")
    described = limits(max_child_runs=3).describe()
    return {"reached": reached, "carved": carved, "kept": kept, "contained": inside, "described": described}


def of_the_ledger(path: Path) -> dict[str, Any]:
    """Return the columns of an old ledger file after its use, and who may still do what after one child run."""
    two, tool_calls = limits(max_child_runs=2), 0
    found: list[dict[str, Any] | None] = []
    for _ in range(3):
        with SqliteLedger(path) as ledger, ExecutionContext(two, None, CHAIN, ledger=ledger) as gate:
            found += stops(gate, CHILD)
            tool_calls = gate.usage.tool_calls
    with closing(sqlite3.connect(path)) as connection:
        tables = {
            table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for table in ("settled", "reserved")
        }
    return {"stops": found, "tables": tables, "tool_calls": tool_calls}


def of_the_settings(folder: Path) -> dict[str, Any]:
    """Return the limit as the file, the environment and an option set it."""
    (folder / "pyproject.toml").write_text("[tool.watchkeeper]\nmax_child_runs = 3\n", encoding="utf-8")
    environ = {"WATCHKEEPER_MAX_CHILD_RUNS": "4"}
    found = {
        "file": settings_here(None, {}, folder),
        "environment": settings_here(None, environ, folder),
        "option": settings_here({"max_child_runs": "5"}, environ, folder),
    }
    return {name: limits_from(settings).ceiling("max_child_runs") for name, settings in found.items()}


def of_the_observers() -> dict[str, Any]:
    """Return what the observers of resources and pace say when half of the limit is used."""
    clock = TestClock()
    with ExecutionContext(limits(deadline="1h", max_child_runs=8), clock=clock) as gate:
        stops(gate, *[CHILD] * 4, *[TOOL] * 10)
        clock.advance(600)
        context = ObserverContext(Session(), budget=gate.budget_status())
    pace = PaceEstimator().observe(context.session, context=context)
    resources = ResourceObserver().observe(context.session, context=context)
    assert pace is not None
    return {
        "pace": pace.summary,
        "evidence": pace.observations[0].description,
        "advice": pace.suggestions,
        "left": resources.summary,
    }


def of_a_run(store: Path) -> dict[str, Any]:
    """Return how a run whose subagents use up the limit ends, and what it says when it is to go on under which one."""
    helper = PromptTemplate[str](ns="t", key="help", sections=(MarkdownSection("Role", "role", "Help."),))
    asked: list[str] = []

    def help_out(request: object) -> str:
        asked.append("helper")
        return "Here."

    section = PromptSubagentToolsSection(PromptRegistry(helper), model=ScriptedModel(help_out))
    boss = PromptTemplate[str](ns="t", key="boss", sections=(MarkdownSection("Task", "task", "Work."), section))
    task = {"mode": "ad_hoc", "prompt_ns": "t", "prompt_key": "help", "instructions": "Help."}
    hand_over = Call("dispatch_subagent", task)
    ended = run(boss, model=ScriptedModel([hand_over] * 3 + ["Half."]), limits=limits(max_child_runs=2), store=store)

    def ask(request: object) -> str:
        asked.append("boss")
        return "Done."

    cut_off = [each for each in ended.session.log if not isinstance(each.event, RunEnded)]
    used = [attrgetter("child_runs")(usage) for usage in (ended.usage, spent_of(cut_off, lambda _: Usage()).usage)]
    run_id = str(ended.run_id)
    still = resume(run_id, boss, model=ScriptedModel(ask), store=store)
    asked_for_nothing = list(asked)
    higher = resume(run_id, boss, model=ScriptedModel(ask), store=store, limits=limits(max_child_runs=3))
    return {
        "ended": None if ended.stop is None else [ended.stop.reason, ended.stop.limit],
        "handed_over": [event.result.success for event in ended.session[ToolInvoked].all()],
        "still": None if still.stop is None else still.stop.message,
        "asked": asked_for_nothing,
        "higher": [higher.output, asked],
        "used": used,
    }


if __name__ == "__main__":
    here = Path(sys.argv[1])
    os.chdir(here)
    said = {
        "gate": of_the_gate(),
        "ledger": of_the_ledger(here / "ledger.sqlite3"),
        "settings": of_the_settings(here),
        "observers": of_the_observers(),
        "run": of_a_run(here / "runs"),
    }
    print(json.dumps(said))
