"""What a run prints at its end, and what ``runs`` and ``show`` print of stored ones.

A run says the same in the same words, at its end and from the store; their JSON has the same keys for the same things.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from watchkeeper.cli.console import one_line, print_table, printable, styled
from watchkeeper.cli.event_lines import done_mark, line_of, parts_of
from watchkeeper.core.codec import display, to_builtins
from watchkeeper.core.quantities import format_duration, format_money
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.store.ledger_file import AccountReport
from watchkeeper.store.run_store import untyped

if TYPE_CHECKING:
    from watchkeeper.store.run_store import RunStore, StoredEvent, StoredRun

SHORT_ID: Final = 8
ANSWER_CUT: Final = 160
"""Where answers of items are cut in a terminal's table; a pipe, --json and ``show`` have the whole."""


def print_result(console: Console, result: RunResult[Any]) -> None:
    """Print the typed result, what ended it and what it cost."""
    console.print()
    shown = result.output if result.ok else result.partial
    if shown is not None:
        console.print(styled(("Result" if result.ok else "Partial result", "bold")))
        text = shown if isinstance(shown, str) else json.dumps(to_builtins(shown), indent=2, ensure_ascii=False)
        console.print(Text(printable(text)))
    if result.answered_by not in ((), (result.model,)):
        console.print(styled((f"Answered by {', then '.join(map(one_line, result.answered_by))}", "cyan")))
    if result.completion_note:
        console.print(styled((f"{result.completion.capitalize()}: {one_line(result.completion_note)}", "cyan")))
    console.print(styled((one_line(result.sentence()), "green" if passed(result) else "yellow")))


def print_many(console: Console, result: ManyResult[Any]) -> None:
    """Print one row per item, then the whole."""
    console.print()
    cut = ANSWER_CUT if console.is_terminal else None
    rows: list[tuple[Text | str, ...]] = []
    for item in result.results:
        if item.ok:
            mark, said = styled(done_mark(item.completion)), one_line(display(item.output), cut)
        else:
            mark, said = styled(("✗", "red")), one_line(item.stop.message if item.stop else "")
        rows.append((one_line(item.item or ""), mark, said))
    print_table(console, ("item", "", "result"), rows)
    good = all(passed(item) for item in result.results)
    console.print(styled((one_line(result.sentence()), "green" if good else "yellow")))


def passed(result: RunResult[Any]) -> bool:
    """Return whether work is done, and no checker had to leave it unverified."""
    return result.ok and result.completion != "unverified"


def print_runs(console: Console, runs: tuple[StoredRun, ...]) -> None:
    """Print stored runs, one row each; items of a run over many by their labels."""
    items = any(run.item is not None for run in runs)
    rows = [
        (
            run.run_id[:SHORT_ID],
            run.started_at.strftime("%Y-%m-%d %H:%M:%S"),
            one_line(run.item or "" if items else run.prompt + (f" ×{run.items}" if run.items is not None else "")),
            one_line(run.model),
            state_of(run),
            "" if run.ended_at is None else format_money(run.cost_nanos),
            "" if run.seconds is None else format_duration(run.seconds),
        )
        for run in runs
    ]
    what = "item" if items else "prompt"
    print_table(console, ("run", "started (UTC)", what, "model", "state", "cost", "took"), rows)


def state_of(run: StoredRun) -> Text:
    """Say in a word or two how a stored run stands."""
    if run.ended_at is None:
        return Text("not ended", "cyan")
    if run.items is not None and run.items_done is not None and run.items_done < run.items:
        return Text(f"{run.items_done} of {run.items} done", "yellow")
    if run.stop is not None:
        return Text(str(run.stop["reason"]), "yellow")
    if run.completion == "unverified":
        return Text("done, not verified", "yellow")
    return Text("done and verified" if run.completion == "verified" else "done", "green")


def print_run(console: Console, store: RunStore, run: StoredRun) -> None:
    """Print one stored run: its head, its items, its events, its end."""
    what = one_line(run.prompt if run.item is None else f"{run.prompt}, item {run.item}")
    console.print(styled((what, "bold"), f" {run.run_id} with ", (one_line(run.model), "cyan")))
    console.print(styled((f"started {run.started_at:%Y-%m-%d %H:%M:%S} UTC; limits: {run.limits}", "dim")))
    answer, said = "", ""
    for event in store.events(run.run_id):
        if event.tag == "run_ended":
            answer = str(untyped(event.body).get("text") or "")
        elif event.tag == "completion_checked":
            said = str(untyped(event.body).get("explanation") or said)
        line = line_of(event.tag, event.body)
        if line is not None:
            console.print(styled((f"{event.at:%H:%M:%S}", "dim"), "  ", *parts_of(line)))
    children = store.children(run.run_id)
    if children:
        console.print()
        print_runs(console, children)
    if answer:
        console.print()
        console.print(Text(printable(answer)))
    console.print(Text(one_line(run.sentence(said)), state_of(run).style))


def with_children(store: RunStore, run: StoredRun) -> Iterator[StoredRun]:
    """Yield a run and all below it, each before its own children, in the order they began."""
    yield run
    for child in store.children(run.run_id):
        yield from with_children(store, child)


def event_as_data(run: StoredRun, event: StoredEvent) -> dict[str, Any]:
    """Return a stored event as JSON-able data."""
    return {
        "run_id": run.run_id,
        "seq": event.seq,
        "at": event.at.isoformat(),
        "tag": event.tag,
        "event": event.body,
    }


def print_accounts(console: Console, reports: Sequence[AccountReport]) -> None:
    """Print a table, one line for each account."""
    rows: list[tuple[Text | str, ...]] = [
        (
            styled((report.name, "bold")),
            *(
                words
                for used in (report.day, report.month)
                for words in (format_money(used.cost_nanos), f"{used.tokens:,}")
            ),
            format_money(report.held_nanos) if report.held_nanos or report.held_tokens else "nothing",
        )
        for report in reports
    ]
    print_table(console, ("account", "today", "tokens", "this month", "tokens", "held"), rows)
