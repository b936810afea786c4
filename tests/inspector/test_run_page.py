"""The page of one run in a real browser: one time for all panels, the tree, the tabs, the detail, and what is live."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.inspector.browser import inert, reading, serving
from tests.inspector.written import Written, write_night
from watchkeeper.accounting.limits import Limits
from watchkeeper.store.run_store import RunStore


@pytest.fixture
def night(tmp_path: Path) -> Iterator[str]:
    """Serve a run that its budget stopped; return the address of its page."""
    with RunStore(tmp_path / "s") as store:
        run = write_night(store)
    with reading(tmp_path / "s") as address:
        yield f"{address}#/run/{run.run_id}"


def opened(page: Page, address: str) -> None:
    """Open a run's page by the address with the token."""
    start, run = address.split("#")
    page.goto(start)
    page.goto(f"{page.url.split('#')[0]}#{run}")


def test_a_stopped_run_opens_on_what_stopped_it(page: Page, night: str) -> None:
    opened(page, night)
    expect(page.get_by_role("heading", level=1)).to_contain_text("cost ceiling of $0.12")
    expect(page.locator(".told.at")).to_contain_text("This stopped the run")
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("next call refused")
    detail = page.get_by_role("region", name="Detail")
    expect(detail).to_contain_text("■ HALT")
    rows = detail.locator(".gate tbody tr")
    expect(rows).to_contain_text(["Time", "Cost", "Tokens", "Steps"])
    expect(rows.nth(1)).to_contain_text(re.compile(r"\$0\.01.*\$0\.024.*refused"))
    expect(rows.nth(2)).to_contain_text("not asked")
    expect(page.locator(".mark.chosen")).to_have_count(1)


def test_the_tree_is_read_by_keys(page: Page, night: str) -> None:
    opened(page, night)
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("next call refused")
    page.keyboard.press("t")
    page.keyboard.press("Home")
    chosen = page.get_by_role("treeitem", selected=True)
    expect(chosen).to_contain_text("turn 1")
    expect(chosen).to_have_attribute("aria-expanded", "true")
    below = page.get_by_role("treeitem").nth(1)
    expect(below).to_have_attribute("aria-level", "2")
    page.keyboard.press("ArrowLeft")
    expect(chosen).to_have_attribute("aria-expanded", "false")
    expect(below).to_have_attribute("aria-level", "1")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(chosen).to_have_attribute("aria-level", "2")
    expect(page.get_by_role("region", name="Detail")).to_contain_text("search")
    expect(page.get_by_role("region", name="Detail")).to_contain_text('"q": "invoice"')


def test_tabs_and_moments_have_addresses(page: Page, night: str) -> None:
    opened(page, night)
    expect(page.get_by_role("tab", name="Transcript")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("3")
    expect(page.get_by_role("tab", name="Assessments 3")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".told")).to_have_count(3)
    page.keyboard.press("+")
    page.keyboard.press("[")
    expect(page).to_have_url(re.compile(r"at=\d+.*tab=assessments.*from=.*to="))
    there = page.url
    page.reload()
    expect(page.get_by_role("tab", name="Assessments 3")).to_have_attribute("aria-selected", "true")
    assert page.url == there
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("from="))
    for name, wanted in (("Log", "run_ended"), ("Verdicts", "rejected"), ("Safety", "cost ceiling")):
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_role("tabpanel")).to_contain_text(wanted)
    page.get_by_role("tab", name="Raw").click()
    expect(page.get_by_role("tabpanel")).to_contain_text('"verdict": "rejected"')


def test_a_running_run_is_followed(browser: Browser, tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits(max_cost_usd=1))
        run.model()
        run.flush()
        with serving(store) as address, inert(browser) as page:
            opened(page, f"{address}#/run/{run.run_id}")
            expect(page.get_by_text("● live")).to_be_visible()
            expect(page.get_by_role("treeitem")).to_have_count(1)
            run.begin("tool", "search", "c1")
            run.flush()
            expect(page.get_by_role("treeitem")).to_have_count(2)
            expect(page.get_by_role("treeitem").nth(1)).to_contain_text("under way")
            run.end()
            expect(page.get_by_role("heading", level=1)).to_contain_text("Done")
            expect(page.get_by_text("● live")).to_have_count(0)


def test_of_a_long_record_few_rows_are_in_the_page(browser: Browser, tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits(max_cost_usd=900))
        for _ in range(1_500):
            run.model(1.0)
            run.tool(0.1)
        run.end()
    with reading(tmp_path / "s") as address, inert(browser) as page:
        opened(page, f"{address}#/run/{run.run_id}")
        expect(page.get_by_text("1,500 model calls, 1,500 tool calls")).to_be_visible()
        expect(page.get_by_role("tab", name="Transcript 3,001")).to_be_visible()
        tree = page.get_by_role("tree")
        tree.focus()
        page.keyboard.press("End")
        expect(page.get_by_role("treeitem", selected=True)).to_contain_text("search")
        assert page.get_by_role("treeitem").count() < 80
        assert page.locator(".told").count() < 80
        assert page.locator(".mark").count() < 200
        assert page.locator("*").count() < 2_000


def test_a_long_text_is_cut_until_all_of_it_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits())
        run.model()
        run.tool(said="first" + "x" * 99_990 + "lasts")
        run.end()
    with reading(tmp_path / "s") as address, inert(browser) as page:
        opened(page, f"{address}#/run/{run.run_id}?at=4")
        text = page.locator(".told.at pre")
        expect(text).to_contain_text("[34,464 characters more]")
        page.locator(".told.at").get_by_role("button", name="Show all 100,000 characters").click()
        expect(text).to_contain_text("lasts")
        expect(text).not_to_contain_text("more]")
