"""The page in a real browser: from the list to what stopped a run, by mouse and by keyboard; hostile text is inert."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.inspector.browser import reading
from tests.inspector.support import fill


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve a store with two runs, and return the address with its token."""
    fill(tmp_path / "s")
    with reading(tmp_path / "s") as found:
        yield found


def test_from_the_list_to_what_stopped_a_run(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_role("heading", level=1)).to_have_text("1 of 2 done")
    assert "token" not in page.url
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="1 stopped: step limit").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="tests/sort").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("ceiling of 3 steps")
    stop = page.locator(".told.at")
    expect(stop).to_contain_text("This stopped the run")
    expect(stop).to_be_in_viewport()
    expect(page.locator(".tree .at")).to_contain_text("next call refused")
    expect(page.locator(".gauges tr.reached")).to_contain_text("3")


def test_search_and_keys(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("/")
    page.keyboard.type("nothing like it")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.get_by_role("link", name="Clear the filters").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator("tbody tr.at")).to_contain_text("tests/triage")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Done: 3 turns")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".told.at")).to_contain_text("turn 1")
    there = page.url
    page.reload()
    expect(page.locator(".told.at")).to_contain_text("turn 1")
    assert page.url == there
    page.keyboard.press("Escape")
    expect(page.locator("tbody tr")).to_have_count(2)


def test_hostile_text_stays_text(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="tests/triage").click()
    expect(page.locator("pre", has_text="<script>alert(1)</script>").first).to_be_visible()
    assert page.locator("pre img, pre script").count() == 0
