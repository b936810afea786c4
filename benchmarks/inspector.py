"""What the inspector's list costs over 10,000 runs: from the request to rows on the screen, at most 1 s.

Most runs are done, every ninth was stopped by a limit. The index of the store is made before, as whoever looks a second
time finds it. The browser is chromium, if there is one; without it only the server is measured. Run with
``python -m benchmarks.inspector``; exits 1 if the target is missed.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID
from zlib import crc32

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.run import run
from watchkeeper.core.usage import ModelPrice
from watchkeeper.inspector.runs_view import runs_view
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.store.run_file import CHECKED, TAIL
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import tool

RUNS = 10_000
SECONDS = 1.0
PRICES = {"scripted:scripted": ModelPrice.per_million(2, 8)}
BEGAN = datetime(2026, 11, 21, 22, tzinfo=UTC)
TIME = re.compile(rb"2026-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+")


@tool(read_only=True)
def look(path: str) -> str:
    """Look at a path."""
    return f"nothing in {path}"


def written(folder: Path, limits: Limits) -> Path:
    """Write one run; return its file."""
    task = MarkdownSection(title="Task", key="task", template="Find it.", tools=(look,))
    script = [Call("look", {"path": name}) for name in "abcd"]
    model = ScriptedModel([*script, Say("Here.")], free=False)
    prompt = PromptTemplate[str](ns="bench", key="list", sections=(task,))
    run(prompt, model=model, prices=PRICES, limits=limits, store=folder)
    return next((folder / "runs").iterdir())


def fill(folder: Path, count: int) -> None:
    """Write many runs: copies of two, each with an id and a time of its own."""
    patterns = list[tuple[list[bytes], bytes]]()
    for name, limits in (("done", Limits(max_cost_usd="0.50")), ("stopped", Limits(max_cost_usd="0.50", max_steps=5))):
        file = written(folder.parent / name, limits)
        patterns.append((file.read_bytes().splitlines(), file.name.removesuffix(".jsonl").encode()))
    RunStore(folder).close()
    for number in range(count):
        lines, old = patterns[number % 9 == 0]
        new = str(UUID(int=number * 7_919 + (1 << 100), version=4)).encode()
        at = (BEGAN + timedelta(seconds=3 * number)).isoformat(timespec="microseconds").removesuffix("+00:00").encode()
        heads = (TIME.sub(at, line[: 1 - TAIL].replace(old, new)) for line in lines)
        text = b"".join(head + CHECKED % crc32(head) for head in heads)
        (folder / "runs" / f"{new.decode()}.jsonl").write_bytes(text)


def on_screen(store: RunStore) -> float | None:
    """Return the seconds from the navigation to rows on the screen; None without a browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    from tests.inspector.browser import QUIET, serving

    with serving(store) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        times = list[float]()
        page.goto(address)
        for _ in range(5):
            begin = time.perf_counter()
            page.goto(address.partition("?")[0])
            page.wait_for_selector("tbody tr td")
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            times.append(time.perf_counter() - begin)
            page.goto("about:blank")
        browser.close()
        return sorted(times)[2]


def main() -> int:
    """Measure, and compare."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "store"
        begin = time.perf_counter()
        fill(folder, RUNS)
        print(f"{RUNS:,} runs written in {time.perf_counter() - begin:.1f} s")
        with RunStore(folder, read_only=True) as store:
            begin = time.perf_counter()
            store.runs(1)
            print(f"index made in {time.perf_counter() - begin:.1f} s")
            times, answer = list[float](), b""
            for _ in range(5):
                begin = time.process_time()
                answer = msgspec.json.encode(runs_view(store))
                times.append(time.process_time() - begin)
            assert len(json.loads(answer)["rows"]) == RUNS
            server, seconds = sorted(times)[2], on_screen(store)
    print(f"server: {server:.2f} s of CPU, {len(answer) / 1_000_000:.1f} MB of JSON")
    if seconds is not None:
        print(f"on the screen after {seconds:.2f} s (at most {SECONDS:g} s)")
    return 1 if (seconds or server) > SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
