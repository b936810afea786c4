"""``watchkeeper pending``, ``approve`` and ``deny``: what parked runs wait for, and the answers of persons."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from rich.console import Console

from watchkeeper.cli.console import print_fenced, put
from watchkeeper.cli.stored.listing import SHORT_ID
from watchkeeper.cli.storing import to_type
from watchkeeper.core.text import one_line
from watchkeeper.runtime.parking import SHORT_DIGEST, CallParked
from watchkeeper.store.answers import Waiting
from watchkeeper.store.run_index import StoredRun


def print_pending(console: Console, found: tuple[Waiting, ...], now: datetime, store: Path) -> None:
    """Print every call that waits: who asks what, all of its arguments, and how to answer."""
    for run, question in found:
        where = "" if run.item is None else f", item {one_line(run.item)}"
        put(console, (run.run_id[:SHORT_ID], "bold"), f"  {one_line(run.prompt)}{where}: ", (question.named, "cyan"))
        put(console, f"  {question.asked_by} asks: {one_line(question.question)}")
        print_fenced(console, question.arguments)
        until = _until(run, question, now, store)
        put(console, (f"  hash of the arguments: {question.digest[:SHORT_DIGEST]}; {until}", "dim"))


def _until(run: StoredRun, question: CallParked, now: datetime, store: Path) -> str:
    if question.expires is None:
        return "it waits as long as it takes"
    word = "allowed" if question.then == "allow" else "denied"
    if now >= question.expires:
        return f"expired, so it counts as {word}: {_to_go_on(run, store)}"
    return f"{word} after {question.expires:%Y-%m-%d %H:%M} UTC"


def said_of(found: Waiting, allowed: bool, store: Path, *, goes_on: bool) -> str:
    """Say that an answer is on record, and what to do now, unless the run goes on by itself."""
    said = f"{'approved' if allowed else 'denied'}: {found.question.named}"
    return said if goes_on else f"{said}; go on with: {_to_go_on(found.run, store)}"


def _to_go_on(run: StoredRun, store: Path) -> str:
    return to_type(f"resume {(run.parent_id or run.run_id)[:SHORT_ID]}", store)
