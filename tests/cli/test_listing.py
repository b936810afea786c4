"""``runs``: which runs are listed, in which order, how a row looks, and what they come to together."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import CommandLine
from watchkeeper.cli.console import PlainConsole, make_console
from watchkeeper.cli.stored.listing import print_runs, print_totals
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.selection import Selection, totals_of
from watchkeeper.store.states import state_of

FOLDER = ("-p", "folder=inbox")
GOLDEN = Path(__file__).parent / "golden"
START = datetime(2026, 11, 23, 1, 2, 3, tzinfo=UTC)
ESCAPE = re.compile("\x1b")

FACTS: dict[str, Any] = {
    "parent_id": None,
    "prompt": "billing/triage",
    "model": "anthropic:claude-sonnet-5",
    "item": None,
    "items": None,
    "limits": "$1",
    "started_at": START,
    "ended_at": START + timedelta(minutes=4),
    "stop": None,
    "items_done": None,
    "tokens": 12_000,
    "cost_nanos": 312_000_000,
    "steps": 9,
    "duration_ms": 240_000.0,
    "completion": "verified",
    "turns": 5,
    "usage": {"tool_calls": 4},
}
NOT_ENDED: dict[str, Any] = dict.fromkeys(
    ("ended_at", "tokens", "cost_nanos", "steps", "duration_ms", "completion", "turns", "usage")
)


def stored(number: int, **changed: Any) -> StoredRun:
    """Return a stored run."""
    facts: dict[str, Any] = {**FACTS, "run_id": f"{number:08x}-0000-4000-8000-000000000000", **changed}
    return StoredRun(**facts)


def stopped(reason: str) -> dict[str, str]:
    """Return a stop as it is stored."""
    return {"reason": reason, "message": "It was stopped."}


NIGHT = (
    stored(1),
    stored(2, stop=stopped("budget_exceeded"), completion="unchecked", cost_nanos=1_000_000_000),
    stored(3, prompt="a-team-with-a-long-name/summarise-every-incident", model="openai:gpt-5-mini", cost_nanos=None),
    stored(4, **NOT_ENDED, running=True, process=4711),
    stored(5, **NOT_ENDED),
    stored(6, items=200, items_done=197, completion=None, turns=None, duration_ms=7_265_000.0, cost_nanos=41_238),
    stored(7, stop=stopped("parked"), prompt="\x1b[2J\u202e漢字漢字漢字漢字漢字漢字", model="local:\x07"),
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_row_is_a_line_of_the_terminal(width: int) -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, width=width, color_system=None, soft_wrap=True)
    print_runs(console, NIGHT)
    print_totals(console, totals_of(NIGHT), len(NIGHT))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "\n".join(lines) + "\n" == (GOLDEN / f"runs-{width}.txt").read_text("utf-8")
    assert len([line for line in lines if line.startswith("0000000")]) == len(NIGHT)


def test_no_color_means_no_styles_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    for value, styles in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        out = Terminal()
        console = make_console(out)
        print_runs(console, NIGHT)
        print_totals(console, totals_of(NIGHT), 7)
        assert bool(ESCAPE.search(out.getvalue())) is styles


def test_what_has_failed_is_what_nobody_waits_for_and_is_not_done() -> None:
    assert [state_of(run).has_failed for run in NIGHT] == [False, True, False, False, True, True, False]
    assert state_of(stored(8, **NOT_ENDED, damage="it is damaged")).has_failed
    assert not state_of(stored(9, stop=stopped("timeout"), superseded=True)).has_failed


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({}, "done", "done and verified"),
        ({"completion": "unverified"}, "unverified", "done, not verified"),
        ({"stop": stopped("retry_budget_exceeded")}, "stopped", "retry limit"),
        ({"stop": stopped("token_limit_exceeded")}, "stopped", "token limit"),
        ({"stop": stopped("policy_halt")}, "stopped", "policy halt"),
        ({"stop": stopped("of_a\x07later version")}, "stopped", "of a\\x07later version"),
        ({"stop": stopped("interrupted")}, "stopped", "interrupted"),
        ({"stop": stopped("store_failed")}, "failed", "store failed"),
        ({"stop": stopped("timeout"), "items": 5, "items_done": 3}, "stopped", "3 of 5 done: deadline"),
        ({"stop": stopped("parked"), "items": 5, "items_done": 4}, "waiting", "4 of 5 done: parked"),
        ({"items": 5}, "stopped", "0 of 5 done"),
        ({**NOT_ENDED, "not_resumable": "it is damaged"}, "lost", "process died"),
    ],
)
def test_the_state_of_a_run_is_a_kind_and_a_few_words(changed: dict[str, Any], kind: str, words: str) -> None:
    state = state_of(stored(1, **changed))
    assert (state.kind, state.words) == (kind, words)


def test_totals_leave_no_run_out() -> None:
    totals = totals_of(NIGHT)
    assert (totals.runs, totals.done, totals.failed, totals.parked, totals.running) == (7, 2, 3, 1, 1)
    assert (totals.tokens, totals.unpriced, totals.open) == (60_000, 1, 2)
    assert totals.cost_nanos == 2 * 312_000_000 + 1_000_000_000 + 41_238
    again = totals_of([stored(1, superseded=True), stored(2)])
    assert (again.runs, again.tokens) == (1, 24_000)


def test_runs_are_chosen_by_prompt_model_and_time(cli: CommandLine) -> None:
    cli.run(*FOLDER)
    cli.run("--max-turns", "1", *FOLDER)

    def states(*options: str) -> list[str | None]:
        rows = json.loads(cli("runs", "--json", *options).out)
        return [None if row["stop"] is None else row["stop"]["reason"] for row in rows]

    assert states() == ["turn_limit_exceeded", None]
    assert states("--failed") == states("--stopped") == ["turn_limit_exceeded"]
    assert states("--prompt", "TRIAGE", "--model", "scripted") == states()
    assert states("--prompt", "another") == states("--model", "gpt") == []
    assert states("--since", "1h") == states()
    assert states("--sort", "tokens") == [None, "turn_limit_exceeded"]
    assert cli("runs", "--prompt", "another").out.startswith("no run in ")


def test_since_leaves_out_what_began_before() -> None:
    wanted = Selection(since=START)
    assert [wanted.takes(stored(1, started_at=START + timedelta(seconds=late))) for late in (-1, 0)] == [False, True]
    assert wanted.takes(stored(2, started_at=START - timedelta(days=9), damage="it is damaged"))


def test_the_runs_below_a_run_are_listed_by_their_items(cli: CommandLine) -> None:
    for name in ("a.txt", "b.txt"):
        (cli.folder / name).touch()
    whole = json.loads(cli.run("--each", "*.txt", "--json").out)["run_id"]
    said = cli("runs", "--parent", whole[:8], "--sort", "started").out
    assert {part for part in said.split() if part.endswith(".txt")} == {"a.txt", "b.txt"}
    assert "2 runs: " in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sort", "name"), "--sort='name' must be one of started, cost, tokens, took"),
        (("--since", "yesterday"), "--since"),
        (("--since", "12"), "--since='12' names no unit; write '12h' for hours, or '12d' for days"),
        (("--since", " 1.5 "), "names no unit; write '1.5h' for hours"),
        (("--parent", "ffff"), "no run whose id begins with 'ffff'"),
    ],
)
def test_a_wrong_choice_is_refused(cli: CommandLine, options: tuple[str, ...], said: str) -> None:
    cli.run(*FOLDER)
    told = cli("runs", *options)
    assert (told.code, told.out) == (2, "")
    assert said in told.err
