"""``watchkeeper pending``, ``approve`` and ``deny``: what parked runs wait for, and the answers of persons."""

from __future__ import annotations

from datetime import datetime
from rich.console import Console

from watchkeeper.cli.console import print_fenced, put
from watchkeeper.cli.report import SHORT_ID
from watchkeeper.core.text import one_line
from watchkeeper.runtime.parking import SHORT_DIGEST
from watchkeeper.store.answers import Waiting
from watchkeeper.store.run_index import StoredRun


def print_pending(console: Console, found: tuple[Waiting, ...], now: datetime) -> None:
    """Print every call that waits: who asks what, all of its arguments, and how to answer."""
    for run, question in found:
        where = "" if run.item is None else f", item {one_line(run.item)}"
        put(console, (run.run_id[:SHORT_ID], "bold"), f"  {one_line(run.prompt)}{where}: ", (question.named, "cyan"))
        put(console, f"  {question.asked_by} asks: {one_line(question.question)}")
        print_fenced(console, question.arguments)
        until = _until(run, question.expires, question.then, now)
        put(console, (f"  hash of the arguments: {question.digest[:SHORT_DIGEST]}; {until}", "dim"))


def _until(run: StoredRun, expires: datetime | None, then: str, now: datetime) -> str:
    if expires is None:
        return "it waits as long as it takes"
    word = "allowed" if then == "allow" else "denied"
    if now >= expires:
        return f"expired, so it counts as {word}: watchkeeper resume {(run.parent_id or run.run_id)[:SHORT_ID]}"
    return f"{word} after {expires:%Y-%m-%d %H:%M} UTC"


def said_of(found: Waiting, allowed: bool) -> str:
    """Say that an answer is on record, and what to do now."""
    word = "approved" if allowed else "denied"
    root = found.run.parent_id or found.run.run_id
    return f"{word}: {found.question.named}; go on with: watchkeeper resume {root[:SHORT_ID]}"
