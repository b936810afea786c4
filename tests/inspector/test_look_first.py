"""What the list points at first, by rule; why runs ended short; what prompts came to; the page filters by it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.inspector.browser import reading
from tests.inspector.support import fill, fill_many
from watchkeeper.inspector.look_first import Hint
from watchkeeper.inspector.runs_view import RunsView, runs_view, runs_view_of
from watchkeeper.store.activity import Activity, Advised
from watchkeeper.store.run_index import NOT_ENDED, StoredRun
from watchkeeper.store.run_store import RunStore

BEGAN = datetime(2026, 11, 21, 22, tzinfo=UTC)


def stored(number: int, *, minute: float = 0, **more: Any) -> StoredRun:
    """Return a run that is done, unless it is said how it ended."""
    ended = BEGAN + timedelta(minutes=minute + 1)
    usage: dict[str, Any] = {"retries": 2, "tool_calls": 1, "tokens": {}, "cost_nanos": 1_000_000 * number}
    facts: dict[str, Any] = {
        "parent_id": None,
        "prompt": "ledger/reconcile",
        "model": "openai:gpt-5",
        "item": None,
        "items": None,
        **NOT_ENDED,
        "limits": "",
        "started_at": BEGAN + timedelta(minutes=minute),
        "ended_at": ended,
        "usage": usage,
        "tokens": 1000 * number,
        "cost_nanos": 1_000_000 * number,
        "steps": number,
        "duration_ms": 60_000.0,
        "ceilings": {"max_cost_usd": 500_000_000.0},
    }
    return StoredRun(run_id=f"{number:08x}", **{**facts, **more})


def stopped(number: int, reason: str, limit: str | None = None, **more: Any) -> StoredRun:
    """Return a run that was stopped."""
    return stored(number, stop={"reason": reason, "message": "It stopped.", "limit": limit}, **more)


def view_of(*runs: StoredRun, **activities: Activity) -> RunsView:
    """Return the view of runs."""
    return runs_view_of("s", runs, activities)


def only(view: RunsView) -> Hint:
    """Return the only hint."""
    (hint,) = view.first
    return hint


def test_failures_that_cluster_in_time_at_one_provider_are_one_cause() -> None:
    runs = [stopped(number, "circuit_open", minute=10.0 * number) for number in (1, 2, 3)]
    far = stopped(4, "provider_error", minute=300)
    other = stopped(5, "provider_error", minute=12, model="anthropic:claude")
    found = Activity(faults={"overloaded": 5})
    hint = only(view_of(*runs, far, other, stored(6), **{"00000002": found}))
    assert (hint.title, hint.run_ids) == ("openai failed 3 runs", ("00000001", "00000002", "00000003"))
    assert (hint.since, hint.until) == (runs[0].ended_at, runs[2].ended_at)
    assert hint.detail == "3 circuit open; 5 model calls failed in them."


def test_a_prompt_that_often_meets_one_limit_says_what_the_others_used() -> None:
    others = [stored(number) for number in (310, 370, 350, 340)]
    hits = [stopped(number, "budget_exceeded", "max_cost_usd") for number in (1, 2)]
    hint = only(view_of(*others, *hits))
    assert hint.title == "ledger/reconcile: 2 of 6 stopped by cost limit"
    assert hint.detail == "Those that came to their end used $0.31 to $0.37 of $0.50."
    assert view_of(*others, *hits[:1]).first == ()  # one is no pattern
    assert view_of(*(stored(number) for number in range(10, 30)), *hits).first == ()  # too few of many
    assert only(view_of(*hits)).detail == "None of its runs came to its end."


def test_runs_without_an_end_are_told_one_by_one_or_together() -> None:
    lost = [stored(number, ended_at=None, usage=None, item=f"web-{number}") for number in range(1, 5)]
    one = only(view_of(lost[0]))
    assert one.title == "ledger/reconcile web-1: its process ended before it did"
    assert one.detail == "'watchkeeper resume 00000001' goes on with it."
    assert only(view_of(replace(lost[0], not_resumable="files"))).detail == "It cannot be resumed: files."
    assert len(view_of(*lost[:3]).first) == 3
    every = only(view_of(*lost))
    assert (every.title, len(every.run_ids)) == ("4 runs have no end: their processes ended before", 4)


def test_damaged_records_are_named() -> None:
    assert only(view_of(stored(1, damage="it is torn"))).title == "1 record cannot be read"


def test_reasons_and_prompts_add_up() -> None:
    hits = [stopped(number, "budget_exceeded", "max_cost_usd", prompt=f"a/p{number % 3}") for number in range(1, 10)]
    view = view_of(*hits, stored(500, ended_at=None, usage=None, cost_nanos=None), stored(20))
    budget, lost = view.reasons
    assert (budget.status.words, budget.runs, budget.prompts, budget.spent) == (
        "Stopped: cost limit",
        9,
        "p1, p2, p0",
        "$0.045",
    )
    assert (lost.status.key, lost.runs, lost.spent) == ("process died", 1, "unknown")
    assert sum(share.cost_nanos for share in view.prompts) == view.cost_nanos
    assert sum(share.runs for share in view.prompts) == 11
    assert view.retries == 20
    many = view_of(*(stored(number, prompt=f"a/p{number}") for number in range(1, 21)))
    assert (len(many.prompts), many.prompts[-1].prompt, many.prompts[-1].runs) == (8, "", 13)
    assert sum(share.cost_nanos for share in many.prompts) == many.cost_nanos


def test_a_row_has_the_worst_that_was_said_of_its_run() -> None:
    said = {"Pace": Advised({"info": 3, "warning": 1}), "Drift": Advised({"caution": 9})}
    view = view_of(stored(1), stored(2), **{"00000001": Activity(advised=said)})
    advice = {row.run_id: row.advice for row in view.rows}
    worst = advice["00000001"]
    assert worst is not None
    assert (worst.severity, worst.source) == ("warning", "Pace")
    assert advice["00000002"] is None


@contextmanager
def night(folder: Path) -> Generator[str]:
    """Serve a store with a run that is done, three items, and four of one prompt that a limit stopped."""
    fill_many(folder)
    for _ in range(2):
        fill(folder)
    with reading(folder) as address:
        yield address


def test_the_page_filters_by_what_it_points_at(page: Page, tmp_path: Path) -> None:
    with night(tmp_path / "s") as address:
        page.goto(address)
        expect(page.locator("tbody tr")).to_have_count(7)
        first = page.get_by_role("region", name="Look here first")
        expect(first).to_contain_text("tests/sort: 2 of 2 stopped by step limit.")
        first.get_by_role("link", name="show them").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        assert "first=tests%2Fsort+max_steps" in page.url
        page.reload()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("button", name="✕").click()
        expect(page.locator("tbody tr")).to_have_count(7)
        page.get_by_role("region", name="Why 2 ended short").get_by_role("button", name="step limit").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.keyboard.press("Escape")
        page.get_by_role("region", name="Cost and tokens by prompt").get_by_role("button", name="tests/letters").click()
        expect(page.locator("tbody tr")).to_have_count(3)
        page.get_by_label("Only this prompt").select_option("tests/triage")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_label("Only this prompt").select_option("any prompt")
        page.get_by_label("Only this model").select_option("scripted:scripted")
        expect(page.locator("tbody tr")).to_have_count(7)


def test_a_bar_of_the_night_opens_its_run(page: Page, tmp_path: Path) -> None:
    with night(tmp_path / "s") as address:
        page.goto(address)
        bars = page.get_by_role("region", name="The night").locator("rect")
        expect(bars).to_have_count(7)
        bars.nth(0).dispatch_event("click")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Done")


def test_of_many_rows_only_those_in_view_are_in_the_page(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        everything, activities = store.everything()
    runs = tuple(replace(everything[0], run_id=f"{number:032x}") for number in range(3_000))

    def many(_: RunStore) -> tuple[tuple[StoredRun, ...], Mapping[str, Activity]]:
        return runs, activities

    monkeypatch.setattr(RunStore, "everything", many)
    with RunStore(tmp_path / "s", read_only=True) as store:
        assert len(runs_view(store).rows) == 3_000
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_have_text("3,000 of 3,000 done")
        assert page.locator("tbody tr").count() < 100
        page.evaluate("document.querySelector('main').scrollTop = 1e9")
        expect(page.locator("tbody tr[aria-rowindex='3001']")).to_be_visible()
        assert page.locator("tbody tr").count() < 100
        page.keyboard.press("j")
        expect(page.locator("tbody tr.at")).to_be_in_viewport()
