"""The state after each event, from the changes that reducers made; what each event has changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from playwright.sync_api import Browser, expect

from tests.inspector.browser import inert, reading
from tests.inspector.written import Written
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import StoreError
from watchkeeper.inspector.state_view import StateView, state_view
from watchkeeper.runtime.events import NoticeAppended
from watchkeeper.session.log import RolledBack, SessionReset
from watchkeeper.session.slices import SliceChange, SliceSplice
from watchkeeper.store.run_store import RunStore


@dataclass(frozen=True)
class Plan:
    """A step of a plan."""

    step: str


@dataclass(frozen=True)
class Note:
    """A note."""

    text: str


def plans(*steps: str) -> tuple[Plan, ...]:
    """Return steps."""
    return tuple(map(Plan, steps))


def written(store: RunStore) -> Written:
    """Write a run whose events 3 to 8 change its state."""
    run = Written(store, Limits())
    for changes in (
        (SliceChange(Plan, "extend", plans("read", "match")),),
        (SliceChange(Plan, "extend", plans("file")), SliceChange(Note, "replace", (Note("begun"),))),
        (SliceSplice(Plan, "splice", plans("check"), (0, 0, 1, 1, 2, 3)),),
    ):
        run.event(NoticeAppended("x", run.now), changes)
    run.event(RolledBack(UUID(int=1), 3))
    run.event(NoticeAppended("x", run.now))
    run.event(SessionReset())
    run.end()
    return run


def items(view: StateView) -> dict[str, list[str]]:
    """Return the items of each slice with their signs."""
    return {each.name: [item.sign + item.text for item in each.items] for each in view.slices}


@pytest.mark.parametrize(
    ("at", "cause", "expected"),
    [
        (2, "", {}),
        (3, "notice_appended", {"Plan": ['+{"step": "read"}', '+{"step": "match"}']}),
        (
            4,
            "notice_appended",
            {
                "Plan": ['{"step": "read"}', '{"step": "match"}', '+{"step": "file"}'],
                "Note": ['+{"text": "begun"}'],
            },
        ),
        (
            5,
            "notice_appended",
            {
                "Plan": ['{"step": "read"}', '-{"step": "match"}', '+{"step": "check"}', '{"step": "file"}'],
                "Note": ['{"text": "begun"}'],
            },
        ),
        (
            7,
            "rolled_back",
            {
                "Plan": ['{"step": "read"}', '-{"step": "check"}', '-{"step": "file"}', '+{"step": "match"}'],
                "Note": ['-{"text": "begun"}'],
            },
        ),
        (8, "session_reset", {"Plan": ['-{"step": "read"}', '-{"step": "match"}']}),
    ],
)
def test_the_state_after_each_event(tmp_path: Path, at: int, cause: str, expected: dict[str, list[str]]) -> None:
    with RunStore(tmp_path / "s") as store:
        run = written(store)
        view = state_view(store, str(run.run_id), at)
    assert (view.cause, view.unknown) == (cause, "")
    assert items(view) == expected


def test_of_a_long_slice_the_last_items_are_shown(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits())
        at = run.event(
            NoticeAppended("x", run.now), (SliceChange(Note, "extend", tuple(map(Note, map(str, range(3000))))),)
        )
        run.end()
        (notes,) = state_view(store, str(run.run_id), at).slices
        with pytest.raises(StoreError, match="no event"):
            state_view(store, "ffff", 3)
    assert (notes.count, notes.left_out, len(notes.items)) == (3000, 2800, 200)
    assert notes.items[-1].text == '{"text": "2999"}'


def test_the_slider_goes_from_change_to_change(browser: Browser, tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = written(store)
    with reading(tmp_path / "s") as address, inert(browser) as page:
        page.goto(address)
        page.goto(f"{page.url.split('#')[0]}#/run/{run.run_id}?at=5&tab=state")
        panel = page.get_by_role("tabpanel")
        expect(panel.locator(".added")).to_contain_text("check")
        expect(panel.locator(".removed")).to_contain_text("match")
        slider = panel.get_by_role("slider")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(panel.locator(".added")).to_have_count(2)
        expect(panel).to_contain_text("Change 2 of 5")
        assert "at=4" in page.url
