"""What a run prints at its end, and what ``runs`` and ``show`` print of stored ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from rich.markup import escape
from rich.table import Table

from watchkeeper.cli.progress import shorten
from watchkeeper.core.codec import display, encode, to_builtins
from watchkeeper.core.quantities import format_duration, format_money
from watchkeeper.runtime.result import ManyResult, RunResult

if TYPE_CHECKING:
    from rich.console import Console

    from watchkeeper.store.run_store import RunStore, StoredEvent, StoredRun


def as_data(result: RunResult[Any]) -> dict[str, Any]:
    """Return a result as JSON-able data: everything but the session."""
    return {
        "run_id": str(result.run_id),
        "item": result.item,
        "prompt": result.prompt_name,
        "model": result.model,
        "ok": result.ok,
        "output": to_builtins(result.output),
        "stop": to_builtins(result.stop),
        "partial": to_builtins(result.partial),
        "completion": result.completion,
        "completion_note": result.completion_note,
        "turns": result.turns,
        "usage": to_builtins(result.usage),
        "cost_usd": None if result.cost is None else str(result.cost),
        "duration_seconds": round(result.duration.total_seconds(), 3),
        "limits": result.limits.describe(),
        "sentence": result.sentence(),
    }


def many_as_data(result: ManyResult[Any]) -> dict[str, Any]:
    """Return the result of a run over many as JSON-able data."""
    return {
        "run_id": str(result.run_id),
        "ok": not result.not_done,
        "stop": to_builtins(result.stop),
        "usage": to_builtins(result.usage),
        "cost_usd": None if result.cost is None else str(result.cost),
        "duration_seconds": round(result.duration.total_seconds(), 3),
        "limits": result.limits.describe(),
        "sentence": result.sentence(),
        "results": [as_data(item) for item in result.results],
    }


def print_result(console: Console, result: RunResult[Any], where: str) -> None:
    """Print the typed result, what ended it, what it cost, and where to look further."""
    console.print()
    shown = result.output if result.ok else result.partial
    if shown is not None:
        console.print("[bold]Result[/bold]" if result.ok else "[bold]Partial result[/bold]")
        console.print(pretty(shown), highlight=False)
    colour = "green" if result.ok else "yellow"
    console.print(f"[{colour}]{escape(result.sentence())}[/{colour}]")
    console.print(f"[dim]{escape(where)}[/dim]")


def print_many(console: Console, result: ManyResult[Any], where: str) -> None:
    """Print one row per item, then the whole."""
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("item", "", "result"):
        table.add_column(column, overflow="fold")
    for item in result.results:
        mark = "[green]✓[/green]" if item.ok else "[red]✗[/red]"
        said = display(item.output) if item.ok else item.stop.message if item.stop else ""
        table.add_row(escape(item.item or ""), mark, escape(shorten(said, 160)))
    console.print(table)
    colour = "green" if not result.not_done else "yellow"
    console.print(f"[{colour}]{escape(result.sentence())}[/{colour}]")
    console.print(f"[dim]{escape(where)}[/dim]")


def pretty(value: Any) -> str:
    """Write a value for reading: text as it is, everything else as indented JSON."""
    if isinstance(value, str):
        return escape(value)
    return escape(json.dumps(json.loads(encode(value)), indent=2, ensure_ascii=False))


def print_runs(console: Console, runs: tuple[StoredRun, ...]) -> None:
    """Print stored runs, one row each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "started (UTC)", "prompt", "model", "state", "cost", "took"):
        table.add_column(column)
    for run in runs:
        table.add_row(
            run.run_id[:8],
            run.started_at.strftime("%Y-%m-%d %H:%M:%S"),
            escape(run.prompt if run.items is None else f"{run.prompt} ×{run.items}"),
            escape(run.model),
            state_of(run),
            "" if run.ended_at is None else format_money(run.cost_nanos),
            "" if run.duration_ms is None else format_duration(run.duration_ms / 1000),
        )
    console.print(table)


def state_of(run: StoredRun) -> str:
    """Say in a word or two how a stored run stands."""
    if run.ended_at is None:
        return "[cyan]not ended[/cyan]"
    if run.items is not None and run.done is not None and run.done < run.items:
        return f"[yellow]{run.done} of {run.items} done[/yellow]"
    return "[green]done[/green]" if run.stop is None else f"[yellow]{run.stop['reason']}[/yellow]"


def print_run(console: Console, store: RunStore, run: StoredRun) -> None:
    """Print one stored run: its head, its items or its events, its end."""
    console.print(f"[bold]{escape(run.prompt)}[/bold] {run.run_id} with [cyan]{escape(run.model)}[/cyan]")
    console.print(f"[dim]limits: {escape(run.limits)}[/dim]")
    children = store.children(run.run_id)
    if children:
        print_runs(console, children)
    for event in store.events(run.run_id):
        line = event_line(event)
        if line:
            console.print(f"[dim]{event.at.strftime('%H:%M:%S')}[/dim] {line}", highlight=False)
    if run.stop is not None:
        console.print(f"[yellow]{escape(str(run.stop['message']))}[/yellow]")
    elif run.ended_at is None:
        console.print("[cyan]not ended: it is still running, or its process died[/cyan]")


def event_line(event: StoredEvent) -> str:
    """Say one stored event in one line; empty for events that say nothing to a person."""
    body = event.body
    match event.tag:
        case "prompt_rendered":
            said = f"prompt, {len(body['messages'])} messages, tools: {', '.join(body['tool_names']) or 'none'}"
        case "model_replied":
            usage = body["usage"]
            said = f"model turn {body['turn']}: {usage.get('input_tokens', 0)} in, {usage.get('output_tokens', 0)} out"
        case "tool_invoked":
            said = f"{body['name']} → {body['outcome']}: {body['rendered_output']}"
        case "notice_appended":
            said = f"told the agent: {body['text']}"
        case "model_failed":
            said = f"model failed ({body['fault']}): {body['error']}"
        case "completion_checked":
            said = f"checked, {body['status']}: {body['explanation']}"
        case "safety_event":
            said = f"{body['event_type']}: {body['reason']}"
        case "run_ended":
            said = f"ended: {body['text']}" if body["text"] else "ended"
        case "item_ended":
            said = f"{body['item']}: {body['sentence']}"
        case _:
            return ""
    return escape(shorten(said, 140))


def stored_as_data(run: StoredRun) -> dict[str, Any]:
    """Return a stored run as JSON-able data."""
    return cast("dict[str, Any]", to_builtins(run))
