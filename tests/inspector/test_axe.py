"""axe finds nothing on any screen, in either theme; nothing moves for those who want that."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.inspector.browser import inert, reading
from tests.inspector.support import fill, fill_many
from watchkeeper.cli.report import line_of
from watchkeeper.inspector.exporting import exported
from watchkeeper.inspector.redaction import Redaction
from watchkeeper.store.run_store import RunStore

AXE = Path(__file__).parents[2] / "page" / "node_modules" / "axe-core" / "axe.min.js"

if not AXE.exists():
    if os.environ.get("CI") == "true":
        pytest.fail("CI needs axe-core: make page", pytrace=False)
    pytest.skip("axe-core is not there: make page", allow_module_level=True)

RUN = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(
    (found) => JSON.stringify(found.violations.map(({id, help, nodes}) =>
        [id, help, nodes.slice(0, 3).map((node) => node.html.slice(0, 200) + " " + node.failureSummary)])))"""


def found(page: Page) -> Any:
    """Return what axe finds on a page."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return json.loads(page.evaluate(RUN))


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return a store with runs that are done and stopped, and the ids of two of them."""
    folder = tmp_path_factory.mktemp("axe") / "s"
    fill_many(folder)
    fill(folder)
    done, stopped = fill(folder)
    return folder, done, stopped


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, night: tuple[Path, str, str], theme: str) -> None:
    folder, done, stopped = night
    hashes = ["#/runs", "#/runs?q=nothing+like+it", f"#/run/{stopped}", f"#/run/{done}", f"#/compare/{done}/{stopped}"]
    hashes += [f"#/run/{done}?tab={tab}" for tab in ("state", "log", "raw")]
    with reading(folder) as address, inert(browser, color_scheme=theme, reduced_motion="reduce") as page:
        page.goto(address)
        for place in hashes:
            page.goto(f"{address.partition('?')[0]}{place}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_timeout(300)
            assert found(page) == [], place
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        assert found(page) == []


def test_axe_finds_nothing_in_an_exported_page(browser: Browser, night: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, _, stopped = night
    with RunStore(folder, read_only=True) as store:
        made = exported(store, stopped, line_of, Redaction(["tests/sort"]))
    (tmp_path / "x.html").write_text(made.page, encoding="utf-8")
    with inert(browser) as page:
        page.goto((tmp_path / "x.html").as_uri())
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert found(page) == []


def test_nothing_moves_for_those_who_want_that(browser: Browser, night: tuple[Path, str, str]) -> None:
    folder, done, _ = night
    with reading(folder) as address, inert(browser, reduced_motion="reduce") as page:
        for place in ("#/runs", f"#/run/{done}"):
            page.goto(address)
            page.goto(f"{address.partition('?')[0]}{place}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.evaluate("document.getAnimations().length") == 0
