"""Make the pictures of the inspector for the docs: a night of made-up runs, shown by chromium in both themes.

Usage: python -m scripts.picture_inspector [FOLDER], by default docs/inspector. The runs are written event by event, so
the pictures change only if the page does. Needs chromium. A picture may have 150,000 bytes.
"""

from __future__ import annotations

import re
import shutil
import struct
import sys
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from zlib import compress, crc32, decompress

from playwright.sync_api import Page, ViewportSize, sync_playwright

from tests.inspector.browser import QUIET, reading
from tests.inspector.written import START, Written, write_night
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import Stop
from watchkeeper.store.run_file import CHECKED, TAIL
from watchkeeper.store.run_store import RunStore

MOST_BYTES = 150_000
FOLDER = Path(__file__).parents[1] / "docs" / "inspector"
SIZE: ViewportSize = {"width": 1280, "height": 800}
VERDICT = re.compile(rb'"verdict":"unchecked"')


def ended_by(reason: str, limit: str | None, said: str) -> Stop:
    """Return a stop."""
    return Stop(reason, "gate", said, limit, "")  # type: ignore[arg-type]


STOPS = {
    "budget": ended_by("budget_exceeded", "max_cost_usd", "The run reached its cost ceiling of $0.50."),
    "circuit": ended_by("circuit_open", None, "openai did not answer five times; its circuit is open."),
    "turns": ended_by("turn_limit_exceeded", "max_turns", "The run reached its ceiling of 30 turns."),
}

PROMPTS = (
    ("inbox/triage", "openai:gpt-5-mini", 24, 40, 2, 0.3),
    ("forms/check", "openai:gpt-5-mini", 10, 55, 3, 0.5),
    ("ledger/reconcile", "openai:gpt-5", 6, 300, 9, 6.0),
    ("docs/links", "anthropic:claude-sonnet-4-5", 3, 700, 12, 8.0),
)
"""Of each prompt: its name, the model, how many runs, their seconds, turns and thousandths of a dollar a turn."""


def sealed(file: Path, model: str, verdict: str) -> None:
    """Put a model and a verdict into a run's file, with the checksums that its lines then have."""
    lines: list[bytes] = []
    for line in file.read_bytes().splitlines():
        head = line[: 1 - TAIL].replace(b"scripted:scripted", model.encode())
        if b'"tag":"run_ended"' in head:
            head = VERDICT.sub(f'"verdict":"{verdict}"'.encode(), head)
        lines.append(head + CHECKED % crc32(head))
    file.write_bytes(b"".join(lines))


def night(folder: Path) -> tuple[str, str, str]:
    """Write a night; return the ids of a run that its budget stopped, and of two that tried the same."""
    noise, seed = Random(3), 100
    models: dict[str, tuple[str, str]] = {}
    with RunStore(folder) as store:
        now = START - timedelta(hours=2, minutes=20)
        for name, model, count, seconds, turns, price in PROMPTS:
            for number in range(count):
                seed += 1
                limits = Limits(max_cost_usd="0.50", max_total_tokens=400_000, max_steps=80, max_turns=30)
                run = Written(store, limits, name=name, seed=seed, now=now)
                for _ in range(noise.randint(max(1, turns - 1), turns + 2)):
                    nanos = int(price * 1_000_000 * noise.uniform(1, 3))
                    run.model(seconds / turns * noise.uniform(0.5, 1.2), (noise.randint(900, 9_000), 200), nanos)
                    run.tool(noise.uniform(0.2, 2))
                stop = None
                if (name, number) in (("forms/check", 4), ("forms/check", 5)):
                    run.failed_model()
                    stop = STOPS["circuit"]
                elif (name, number) in (("ledger/reconcile", 1), ("ledger/reconcile", 3), ("ledger/reconcile", 4)):
                    run.advised("warning")
                    stop = STOPS["budget"]
                elif (name, number) == ("inbox/triage", 7):
                    run.advised("caution")
                    stop = STOPS["turns"]
                if (name, number) == ("docs/links", 2):
                    run.flush()  # its process died
                else:
                    run.end(stop)
                verdict = "unchecked" if stop is not None else "unverified" if number == 9 else "verified"
                models[str(run.run_id)] = (model, verdict)
                now = run.now if number % 2 else now + timedelta(seconds=seconds / 3)
            now += timedelta(minutes=12)
        stopped = write_night(store)
        other = Written(store, Limits(max_cost_usd="0.12", max_steps=80), seed=99, now=START + timedelta(minutes=14))
        for turn in range(1, 12):
            other.model(15, (900 + 60 * turn, 150), 3_000_000 + 150_000 * turn)
            other.tool(1, "INV-20418")
            if turn in (3, 8):
                other.tool(1, "no such invoice", "failed")
        other.end()
        models |= {str(each.run_id): ("openai:gpt-5", "verified") for each in (other,)}
        models[str(stopped.run_id)] = ("openai:gpt-5", "rejected")
    for file in (folder / "runs").iterdir():
        run_id = file.name.removesuffix(".jsonl").rpartition(".")[2]
        sealed(file, *models.get(run_id, ("openai:gpt-5", "unchecked")))
    return str(stopped.run_id), str(stopped.run_id), str(other.run_id)


def small(png: bytes) -> bytes:
    """Return a picture with 256 colours, each pixel one byte: text with soft edges has thousands that look the same."""
    width, height = struct.unpack(">II", png[16:24])
    pixels, channels = unfiltered(png, width, height), png_channels(png)
    colours = [pixels[at : at + 3] for at in range(0, len(pixels), channels)]
    counts = Counter(colours)
    palette = [colour for colour, _ in counts.most_common(256)]
    places = {colour: place for place, colour in enumerate(palette)}
    for colour in counts:
        if colour not in places:
            places[colour] = min(range(len(palette)), key=lambda at: distance(palette[at], colour))
    indexed = bytes(places[colour] for colour in colours)
    rows = b"".join(b"\0" + indexed[at : at + width] for at in range(0, len(indexed), width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", b"".join(palette)), (b"IDAT", compress(rows, 9)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(data)) + tag + data + struct.pack(">I", crc32(tag + data)) for tag, data in parts)
    return png[:8] + b"".join(chunks)


def distance(one: bytes, other: bytes) -> int:
    """Return how different two colours are."""
    return sum((left - right) ** 2 for left, right in zip(one, other, strict=True))


def png_channels(png: bytes) -> int:
    """Return how many bytes a pixel has: three, or four with transparency."""
    return {2: 3, 6: 4}[png[25]]


def unfiltered(png: bytes, width: int, height: int) -> bytes:
    """Return the pixels of a picture as chromium writes it: eight bits a channel, not interlaced."""
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    raw, channels = decompress(data), png_channels(png)
    stride, out, above = width * channels, bytearray(), bytearray(width * channels)
    for row in range(height):
        begin = row * (stride + 1)
        line, how = bytearray(raw[begin + 1 : begin + 1 + stride]), raw[begin]
        for place in range(stride if how else 0):
            left = line[place - channels] if place >= channels else 0
            corner = above[place - channels] if place >= channels else 0
            guess = (0, left, above[place], (left + above[place]) // 2, paeth(left, above[place], corner))[how]
            line[place] = (line[place] + guess) & 255
        out += line
        above = line
    return bytes(out)


def paeth(left: int, above: int, corner: int) -> int:
    """Return the neighbour that is nearest to their common estimate."""
    estimate = left + above - corner
    return min((left, above, corner), key=lambda each: abs(estimate - each))


def taken(page: Page, address: str, place: str, file: Path) -> None:
    """Take the picture of one screen."""
    page.goto(f"{address.partition('?')[0]}{place}")
    page.wait_for_selector("h1")
    page.wait_for_timeout(700)
    page.evaluate("document.querySelector('main').scrollTop = 0")
    file.write_bytes(small(page.screenshot()))
    size = file.stat().st_size
    print(f"{file}: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{file} has more than {MOST_BYTES:,} bytes: make the picture smaller")


def main() -> None:
    """Take all pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is not installed")
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        store = Path(temporary) / "night.store"
        run, one, other = night(store)
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        with reading(store) as address:
            for theme in ("light", "dark"):
                page = browser.new_page(viewport=SIZE, color_scheme=theme, timezone_id="UTC")
                page.goto(address)
                taken(page, address, "#/runs", into / f"runs-{theme}.png")
                taken(page, address, f"#/run/{run}", into / f"run-{theme}.png")
                taken(page, address, f"#/compare/{one}/{other}", into / f"compare-{theme}.png")
        browser.close()


if __name__ == "__main__":
    main()
