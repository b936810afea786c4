"""How long the page of a run of 100,000 calls takes to show something and all, and how it scrolls, in a real browser.

The run is written to a store of its own, then `watchkeeper view`'s server hands it out to chromium. Measured are the
time to the first paint of the run's head, to the last call, the longest task of the page's thread while it scrolls its
tree and its transcript from top to bottom, and how many rows are in the page. Needs chromium and playwright.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from playwright.sync_api import Page, expect

from tests.inspector.browser import inert, reading, started
from tests.inspector.written import Written
from watchkeeper.accounting.limits import Limits
from watchkeeper.store.run_store import RunStore

CALLS = 100_000
FIRST_PAINT_MS = 1_000
LONG_TASK_MS = 50
MOST_ROWS = 200

WATCH = """
window.longest = 0; window.tasks = [];
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) { window.tasks.push(Math.round(task.duration)); }
}).observe({ type: "longtask", buffered: true });
"""

PAINTED = """
new Promise((done) => {
  const look = () => document.querySelector(".runhead h1")
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : requestAnimationFrame(look);
  look();
})
"""

SCROLL = """
(selector) => new Promise((done) => {
  const box = document.querySelector(selector);
  window.tasks.length = 0;
  const most = box.scrollHeight - box.clientHeight;
  let turn = 0;
  const step = () => {
    box.scrollTop = most * (turn / 120);
    if (++turn <= 120) requestAnimationFrame(step);
    else setTimeout(() => done(Math.max(0, ...window.tasks)), 300);
  };
  step();
})
"""


def written(folder: Path) -> str:
    """Write the run, and return its id."""
    with RunStore(folder) as store:
        run = Written(store, Limits(max_cost_usd=9_000, max_total_tokens=900_000_000, max_steps=900_000))
        for turn in range(CALLS // 2):
            run.model(1.0)
            run.tool(0.3)
            if turn % 500 == 0:
                run.advised()
                run.flush()
        run.end()
        return str(run.run_id)


def measured(page: Page, address: str, run_id: str) -> dict[str, float]:
    """Open the page, scroll it, and return what that took."""
    page.add_init_script(WATCH)
    page.goto(address)
    page.wait_for_selector("table.grid")  # the index is made once, by whoever looks first
    there = page.url.split("#")[0]
    page.goto("about:blank")
    page.goto(f"{there}#/run/{run_id}", wait_until="commit")
    figures: dict[str, Any] = {"first paint, ms": page.evaluate(PAINTED)}
    begun = perf_counter()
    expect(page.locator(".left h2")).to_contain_text(f"{CALLS // 2:,} model calls", timeout=120_000)
    expect(page.get_by_text("Reading the record")).to_have_count(0, timeout=120_000)
    figures["all calls, s"] = perf_counter() - begun
    figures["longest task while reading, ms"] = page.evaluate("Math.max(0, ...window.tasks)")
    page.wait_for_timeout(500)
    figures["longest task, tree, ms"] = page.evaluate(f"({SCROLL})('.tree')")
    figures["longest task, transcript, ms"] = page.evaluate(f"({SCROLL})('.entries')")
    figures["rows of the tree"] = page.locator(".call").count()
    figures["elements"] = page.locator("*").count()
    return figures


def main() -> int:
    """Measure, and return 1 if a target was missed."""
    with tempfile.TemporaryDirectory() as folder:
        run_id = written(Path(folder) / "s")
        browsers = started()
        with (
            reading(Path(folder) / "s") as address,
            inert(next(browsers), viewport={"width": 1440, "height": 900}) as page,
        ):
            figures = measured(page, address, run_id)
        browsers.close()  # type: ignore[attr-defined]
    for name, figure in figures.items():
        print(f"{name:32} {figure:10,.1f}")
    missed = [
        name
        for name, most in (
            ("first paint, ms", FIRST_PAINT_MS),
            ("longest task, tree, ms", LONG_TASK_MS),
            ("longest task, transcript, ms", LONG_TASK_MS),
            ("rows of the tree", MOST_ROWS),
        )
        if figures[name] > most
    ]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
