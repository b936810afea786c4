"""Keeping the queue of a telescope: observing blocks by number, frames by address, a console, a reduction."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "observatory"
_FIELDS = ["HD", "NGC", "UGC", "LP", "GJ", "WASP"]


class Observatory(Run):
    """A queue with blocks of several programmes, and the frames of some nights."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Fill the queue and choose the task."""
        super().__init__(rng)
        self.blocks: dict[int, dict[str, Any]] = {}
        first = rng.randint(21000, 23000)
        programmes = [f"{rng.randint(112, 116)}-{n:04d}" for n in rng.sample(range(200, 990), 4)]
        for number in range(28):
            programme = programmes[min(number // 7, 3)]
            target = f"{rng.choice(_FIELDS)} {rng.randint(100, 9999)}"
            block = {
                "programme": programme,
                "target": target,
                "state": "waiting",
                "seeing": rng.choice([0.6, 0.8, 0.9]),
            }
            block |= {"exptime": rng.randint(20, 900), "calib": first + 500 + number, "grade": rng.choice("ABC")}
            self.blocks[first + number] = block
            calib = {"programme": "calib", "target": rng.choice(["ThAr", "flat", "dark"]), "state": "waiting"}
            self.blocks[first + 500 + number] = calib | {"seeing": 2.0, "exptime": rng.randint(1, 30), "grade": "-"}
        self.mine = [number for number in self.blocks if self.blocks[number]["programme"] == programmes[1]]
        self.others = [
            number for number in self.blocks if self.blocks[number]["programme"] in (programmes[0], *programmes[2:])
        ]
        self.night = f"2026-0{rng.randint(1, 6)}-{rng.randint(10, 28)}"
        self.todo = list(self.mine)
        narrow = [
            f"The PI of {programmes[1]} accepts a seeing of 1.1. Please set it in all her blocks and fix what fails.",
            (
                f"Block {self.mine[0]} got a C last night. See why from its frames, correct it and put it back. "
                f"{self.mine[1]} and {self.mine[2]} may have the same fault."
            ),
        ]
        wide = [
            "Tonight's plan has a hole around midnight, please sort it out.",
            "Go through the whole queue: many blocks fail.",
        ]
        self.task = rng.choice(narrow if named or rng.random() < 0.7 else wide)
        if self.task == narrow[1]:
            self.todo = self.mine[:3]
        if self.task in narrow:
            self.inside = {str(n) for n in self.todo} | {str(self.blocks[n]["calib"]) for n in self.todo}
            self.inside |= {self.frame(n, k) for n in self.todo for k in range(3)}
        self.wrong = {n: rng.sample(["guide star", "exposure", "offset", "filter", "binning"], 3) for n in self.todo}

    def frame(self, block: int, number: int) -> str:
        """Return the address of a frame of a block."""
        return f"sdb://raw/{self.night}/SPEC.{block % 1000:03d}.{number:02d}.fits"

    # ---- tools

    def get(self, block: int, way: int = 0) -> None:
        """Show a block by its number, or by the console."""
        text = " ".join(f"{key}={value}" for key, value in self.blocks[block].items())
        shows = f"{block} {text}"
        if way == 1:
            self.call(
                "console", f"ob show {block}", f"[{self.stamp()}] OB {block}: {text}\nok", shows=shows, on=str(block)
            )
        elif way == 2:
            found = f"1 of 1 blocks\n{block} | " + text.replace(" ", " | ")
            self.call("ob_query", {"filter": {"id": [block]}, "limit": 50}, found, shows=shows, on=str(block))
        else:
            self.call("ob_get", {"id": block}, f"{text} (rev {self.hexes(6)})", shows=shows, on=str(block))

    def patch(self, block: int, key: str, value: object) -> None:
        """Set one field of a block."""
        self.blocks[block][key] = value
        inner = {"constraints": {key: value}} if key == "seeing" else {key: value}
        state = (f"{block}.{key}", str(value))
        self.call(
            "ob_patch", {"ob": {"id": block, **inner}}, f"saved, rev {self.hexes(6)}", change=state, on=str(block)
        )

    def header(self, block: int, number: int) -> None:
        """Show the header of a frame."""
        uri = self.frame(block, number)
        known = random.Random(uri)
        text = f"OBJECT = '{self.blocks[block]['target']}'\nEXPTIME = {known.uniform(5, 900):.3f}\n"
        text += f"FWHM = {known.uniform(0.5, 2.4):.2f}\n"
        text += (
            f"AIRMASS = {known.uniform(1, 2):.3f}\nGUIDE = {known.choice(['T', 'F'])}\nSNR = {known.uniform(3, 90):.1f}"
        )
        shows = [f"{uri} {line}" for line in text.splitlines()]
        self.call("frame_header", {"uri": uri}, text, shows=shows, on=uri)

    def verify(self, block: int) -> None:
        """Check a block against the rules."""
        bad = self.wrong.get(block, [])
        text = f"OB {block}: {len(bad)} problem(s)" + "".join(f"\n - {what} not allowed for this mode" for what in bad)
        self.call("ob_verify", {"id": block}, text, check=(f"verify {block}", " ".join(bad), bool(bad)), on=str(block))

    # ---- work

    def opening(self) -> None:
        """Look around in the queue."""
        for page in range(self.some(1, 3)):
            rows = "\n".join(f"{n} {self.blocks[n]['target']}" for n in list(self.blocks)[page * 6 : page * 6 + 6])
            self.call("ob_list", {"state": "waiting", "page": page}, rows, shows=rows)
        for block in self.rng.sample(self.others, self.some(0, 3)):
            self.get(block)

    def unit(self) -> None:
        """Mend one block."""
        left = [n for n in self.todo if self.wrong[n]]
        if not left:
            return
        block = left[0]
        self.get(block)
        self.verify(block)
        if self.rng.random() < 0.5:
            self.header(block, self.some(0, 2))
        what = self.wrong[block].pop()
        self.patch(block, what.replace(" ", "_"), self.some(1, 999))
        self.verify(block)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.dome, self.same_block, self.fwhm, self.failed_job],
            "cascading": [self.archive_login, self.units, self.locked],
            "drifting": [self.retunes, self.transient, self.others_between],
            "healthy": [self.glance, self.exposure, self.pages, self.calibrations, self.series, self.retry, self.focus],
        }

    def hammers(self) -> list[Step]:
        """Return a command that is sent again and again."""
        return [self.jammed]

    def dome(self) -> None:
        self.story.append("waits for a dome that stays closed")
        for _ in range(self.some(18, 26)):
            text = f"[{self.stamp()}] dome CLOSED (humidity hold)"
            self.call("console", "dome status", text, wait=("dome", "closed"), gap=self.rng.uniform(25, 75))

    def same_block(self) -> None:
        self.story.append("looks at three blocks through three tools, again and again")
        blocks = self.todo[:3]
        for block in blocks:
            self.get(block)
        looks: list[Step] = [partial(self.get, b, w) for b in blocks for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 18), lambda: self.call("console", "date", self.stamp()))

    def fwhm(self) -> None:
        self.story.append("tries two focus values in turn")
        block = self.todo[0]
        self.wrong[block] = self.wrong[block] or ["offset"]
        values = [self.some(100, 200), self.some(201, 300)]
        for turn in range(self.some(8, 12)):
            self.patch(block, "focus", values[turn % 2] if turn != 5 else values[0])
            self.verify(block)

    def failed_job(self) -> None:
        self.story.append("asks for the state of a reduction that has failed")
        job = self.some(5000, 9999)
        asked = {"recipe": "spec_science", "inputs": [self.frame(self.todo[0], k) for k in range(3)]}
        self.call("reduce", asked, f"job {job} accepted", on=asked["inputs"])
        for turn in range(self.some(8, 14)):
            state = "RUNNING" if turn == 0 else "FAILED (no wavelength solution)"
            arguments: dict[str, Any] = self.pick([{"job": job}, {"job": job, "verbose": True}, {"job": str(job)}])
            text = f"job {job} {state} cpu={self.rng.random() * 9:.1f}"
            self.call("reduce_status", arguments, text, wait=(f"job{job}", state), final=turn > 0, gap=self.some(5, 60))

    def archive_login(self) -> None:
        self.story.append("the ticket of the archive has expired")
        steps: list[Step] = []
        for number in range(self.some(4, 7)):
            uri = self.frame(self.todo[number % len(self.todo)], 3 + number)
            said = self.pick(
                ["401: ticket expired", '{"status": "ok", "error": {"code": 401, "text": "ticket expired"}}']
            )
            tool, key = self.pick([("frame_fetch", "uri"), ("frame_preview", "src")])
            steps.append(partial(self.call, tool, {key: uri}, said, ok=said[0] == "{", cause="ticket", asks=uri))
        self.weave(steps, [self.unit, lambda: self.get(self.todo[-1]), lambda: self.verify(self.todo[-1])])

    def units(self) -> None:
        self.story.append("gives coordinates in a form the tool does not take")
        block = self.todo[0]
        forms = [
            "12:31:08.4 -05:11:02",
            "187.785 -5.184",
            "12h31m08.4s -05d11m02s",
            "J123108-051102",
            "12 31 08.4,-05 11 02",
        ]
        for number, form in enumerate(forms[: self.some(4, 5)]):
            said = f"E{self.some(100, 999)} guide.pos: expected object {{ra, dec}}, got string"
            arguments = {"id": block, "guide": {"pos": form}}
            self.call("guide_set", arguments, said, ok=False, cause="guide form", asks=form, on=str(block))
            if number % 2:
                self.header(block, 3 + number)
        if self.rng.random() < 0.6:
            good = {"id": block, "guide": {"pos": {"ra": 187.785, "dec": -5.184}}}
            self.call(
                "guide_set",
                good,
                "guide star set",
                change=(f"{block}.guide", "set"),
                clears="guide form",
                on=str(block),
            )

    def locked(self) -> None:
        self.story.append("the night plan is locked by the operator")
        steps: list[Step] = []
        for block in self.rng.sample(self.todo, min(len(self.todo), 3)) * 2:
            slot = f"{self.some(0, 5):02d}:{self.some(0, 59):02d}"
            said = f"refused: plan {self.night} is locked by operator console 2"
            arguments = {"night": self.night, "entry": {"ob": block, "at": slot}}
            asked = f"{block} {slot}"
            steps.append(partial(self.call, "plan_insert", arguments, said, ok=False, cause="plan lock", asks=asked))
        self.weave(steps[: self.some(4, 5)], [self.unit, lambda: self.get(self.todo[-1]), self.unit])

    def jammed(self) -> None:
        self.story.append("sends a command that the instrument refuses each time")
        for _ in range(self.some(8, 12)):
            way = self.pick(["grating set 3", "grating set --to 3", "GRATING SET 3"])
            said = f"[{self.stamp()}] ERR 77 grating: interlock open"
            self.call("console", way, said, ok=self.soft, cause="interlock", asks="grating")

    def retunes(self) -> None:
        self.story.append("sets the constraints of other programmes too")
        for block in self.rng.sample(self.others, self.some(4, 7)):
            if self.rng.random() < 0.5:
                self.get(block)
            self.patch(block, "seeing", 1.1 + self.some(0, 4) / 10)

    def transient(self) -> None:
        self.story.append("follows a curious spectrum of another programme")
        block = self.pick(self.others)
        self.get(block, 2)
        for number in range(self.some(5, 8)):
            self.header(block if number < 5 else self.pick(self.others), number)
            if self.rng.random() < 0.2:
                self.get(self.todo[0])

    def others_between(self) -> None:
        self.story.append("mends other blocks between its own")
        for block in self.rng.sample(self.others, self.some(4, 5)):
            self.patch(block, self.pick(["offset", "binning", "filter"]), self.some(1, 99))
            if self.rng.random() < 0.7:
                self.get(self.pick(self.todo), self.some(0, 2))

    def exposure(self) -> None:
        self.story.append("waits for an exposure that goes on")
        total = self.some(6, 9)
        for done in range(1, total + 1):
            text = f"[{self.stamp()}] integration {done}/{total}"
            self.call("console", "exp status", text, wait=("exp", f"{done}"), gap=self.rng.uniform(30, 60))

    def pages(self) -> None:
        self.story.append("reads the night log page by page")
        for page in range(self.some(4, 7)):
            text = "\n".join(
                f"{page:02d}:{self.some(10, 59)} {self.pick(_FIELDS)} seeing {self.rng.uniform(0.5, 2):.3f}"
                for _ in range(5)
            )
            self.call("night_log", {"night": self.night, "cursor": page * 5}, text, shows=text)

    def calibrations(self) -> None:
        self.story.append("corrects the calibrations that its blocks refer to")
        for block in self.todo[:3]:
            calib = self.blocks[block]["calib"]
            self.get(block)
            self.get(calib)
            self.patch(calib, "exptime", self.some(40, 99))

    def series(self) -> None:
        self.story.append("reads headers that differ a little")
        for block in self.todo[:2]:
            for number in range(3):
                self.header(block, number)

    def retry(self) -> None:
        self.story.append("tries again with longer waits, and it goes")
        for wait in (4, 10, 25, 50)[: self.some(2, 4)]:
            said = f"503 catalogue busy ({self.hexes(4)})"
            self.call("catalogue", {"cone": [187.7, -5.1, 0.02]}, said, ok=False, cause="busy", asks="cone", gap=wait)
        text = f"3 sources: {self.hexes(5)} {self.hexes(5)} {self.hexes(5)}"
        self.call("catalogue", {"cone": [187.7, -5.1, 0.02]}, text, shows=text, clears="busy", gap=120)

    def focus(self) -> None:
        self.story.append("measures the focus in one parallel turn")
        with self.together():
            for step in range(self.some(4, 7)):
                text = f"focus {1200 + 20 * step}: FWHM {self.rng.uniform(0.7, 1.4):.2f}"
                self.call("console", f"focus probe {1200 + 20 * step}", text, shows=text)

    def glance(self) -> None:
        self.story.append("looks for a moment at another programme, and goes back")
        self.unit()
        for block in self.rng.sample(self.others, self.some(2, 4)):
            self.get(block, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Observatory(rng, named), rng)
