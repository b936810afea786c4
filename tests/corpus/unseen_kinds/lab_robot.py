"""A laboratory's pipetting robot and plate reader: samples, methods, runs, results."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world2 import Place, Scene, Step, produce

KIND = "lab robots and instrument runs"
ROWS = "ABCDEFGH"


class Lab(Scene):
    """Plates in a hotel, a robot that moves liquid, a reader that measures them."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        first = rng.randint(2100, 2890)
        self.plates = [f"PL-{first + n}" for n in range(rng.randint(2, 3))]
        self.others = [f"PL-{first + n}" for n in (-4, -3, -2, -1, 4, 5, 6, 7)]
        self.method = rng.choice(["bca_micro", "bradford_std", "elisa_il8", "nadh_kinetics"])
        self.nm = rng.choice([562, 595, 450, 340])
        self.gain = 80
        self.seen.add("gain set 80")
        self.values = {
            (plate, row): [round(rng.uniform(0.08, 2.4), 3) for _ in range(12)]
            for plate in (*self.plates, *self.others)
            for row in ROWS
        }
        self.runs = {plate: f"r{rng.randint(400, 999)}{n}" for n, plate in enumerate((*self.plates, *self.others))}
        self.task = rng.choice(
            [
                (
                    "Measure plates {p} with method {m} at {w} nm and enter the concentrations in the LIMS by rows. "
                    "Dilute what is above 2.0."
                ),
                (
                    "{p} came in this morning. Run {m} on them ({w} nm), book each row's mean into the sample record, "
                    "and leave a line in the journal for whatever was out of range."
                ),
                "Please finish the assay {m} for {p}: reader at {w} nm, results into the LIMS, outliers diluted 1:5.",
            ]
        ).format(p=" and ".join(self.plates), m=self.method, w=self.nm)

    def where(self, plate: str) -> Place:
        """Whether a plate is of the task."""
        return "in" if plate in self.plates else "out"

    # What can be looked at.

    def sample(self, plate: str) -> None:
        """The record of a plate."""
        rng = random.Random(plate)
        where = self.where(plate)
        body = {
            "barcode": plate,
            "project": f"proj-{rng.randint(10, 60)}",
            "matrix": rng.choice(["lysate", "serum", "supernatant"]),
            "hotel_slot": rng.randint(1, 40),
            "received": f"2031-03-{max(1, self.day - 1):02}",
            "open_rows": list(ROWS),
        }
        self.call(
            "lims_sample", {"barcode": plate}, json.dumps(body), facts=(f"sample {plate}",), place=where, uses=("lims",)
        )

    def row(self, plate: str, row: str) -> None:
        """A row of measured values."""
        where = self.where(plate)
        cells = "\n".join(f"{row}{n + 1},{value:.3f}" for n, value in enumerate(self.values[plate, row]))
        text = f"# run {self.runs[plate]} exported {self.stamp()}\nwell,od{self.nm}\n{cells}"
        self.call(
            "reader_result",
            {"run": self.runs[plate], "rows": row, "format": "csv"},
            text,
            facts=(f"value {plate} {row} low", f"value {plate} {row} high"),
            place=where,
        )

    def book(self, plate: str, row: str, note: str = "") -> None:
        """Enter a row's mean."""
        where = self.where(plate)
        mean = sum(self.values[plate, row]) / 12
        self.call(
            "lims_set",
            {"barcode": plate, "field": f"row_{row}_mean", "value": round(mean, 3)} | ({"note": note} if note else {}),
            f"ok rev={self.rng.randint(1000, 9999)}",
            facts=(f"booked {plate} {row} {note}",),
            uses=("lims-write",),
            place=where,
            change=True,
        )

    def dilute(self, plate: str, row: str) -> None:
        """Move liquid within a plate."""
        volume = self.pick([10, 20, 25, 40])
        self.call(
            "robot_transfer",
            {"src": f"{plate}:{row}1-{row}12", "dst": f"{plate}-D:{row}1-{row}12", "vol_ul": volume},
            f"DONE t={self.rng.uniform(9, 31):.1f}s tips=8 residual<0.5ul",
            facts=(f"diluted {plate} {row}",),
            uses=("tips", "unit"),
            place="in" if plate in self.plates else "out",
            change=True,
        )

    def method_show(self, name: str, *, far: bool = False) -> None:
        """A method's text."""
        rng = random.Random(name)
        text = (
            f"<method name='{name}' rev='{rng.randint(2, 30)}'><gain>{self.gain}</gain>"
            f"<shake s='{rng.randint(5, 60)}' mm='{rng.choice([1, 2, 3])}'/>"
            f"<liquidclass ref='{name[:4]}_aq'/><standard plate='{name[:4].upper()}-STD'/></method>"
        )
        self.call(
            "method_show",
            {"name": name, "view": self.pick(["xml", "full"])},
            text,
            facts=(f"method {name} {self.gain}",),
            place="in" if name == self.method or far else "out",
            far=far,
        )

    def measure(self, plate: str) -> None:
        """Start a run and watch it until it is done."""
        run = self.runs[plate]
        where = self.where(plate)
        self.call(
            "run_start",
            {"plate": plate, "method": self.method, "nm": self.nm},
            f"accepted run={run} eta={self.rng.randint(70, 200)}s",
            facts=(f"run {plate}",),
            place=where,
            change=True,
        )
        done = 0
        while done < 100:
            done = min(100, done + self.rng.randint(22, 55))
            text = f"[{self.stamp('clock')}] {run} {self.pick(['reading', 'shake+read'])} {done}% of 96 wells"
            text = f"[{self.stamp('clock')}] {run} finished, 96/96 wells" if done == 100 else text
            self.call(
                "run_poll",
                {"run": run},
                text,
                facts=(f"progress {plate} {done}",),
                watch=run,
                gap=self.rng.uniform(12, 40),
            )

    def steps(self) -> list[Step]:
        part = functools.partial
        steps: list[Step] = [("", part(self.method_show, self.method))]
        for plate in self.plates:
            steps.append(("lims", part(self.sample, plate)))
            steps.append(("", part(self.measure, plate)))
            for row in self.some(ROWS, 6):
                steps.append(("", part(self.row, plate, row)))
                if max(self.values[plate, row]) > 2.0 and self.rng.random() < 0.5:
                    steps.append(("tips", part(self.dilute, plate, row)))
                steps.append(("lims-write", part(self.book, plate, row)))
        steps.append(("", self.journal))
        return steps

    def journal(self) -> None:
        """A line in the journal."""
        text = self.pick(
            ["edge effect in column 12", "range ok", "blank slightly high", "dilution 1:5 where above 2.0"]
        )
        self.call("journal_append", {"text": f"{self.plates[0]}: {text}"}, "noted", facts=("journal " + text,))

    # Troubles.

    def the_same_blank_in_every_view(self) -> None:
        """Why is the blank high: the same wells through every window."""
        plate, row = self.pick(self.plates), self.pick(ROWS)
        run, values = self.runs[plate], self.values[plate, row][:6]
        fact = (f"value {plate} {row} low",)
        low, views = [f"{value:.3f}" for value in values], list[tuple[str, dict[str, Any], str]]()
        wells = [f"{row}{n}" for n in range(1, 7)]
        views.append(
            (
                "reader_result",
                {"run": run, "rows": row, "cols": "1-6"},
                "well,od\n" + "\n".join(f"{a},{b}" for a, b in zip(wells, low, strict=True)),
            )
        )
        views.append(
            (
                "reader_result",
                {"run": run, "wells": wells, "format": "json"},
                json.dumps({"run": run, "od": dict(zip(wells, values, strict=True))}),
            )
        )
        views.append(
            ("reader_export", {"run": run, "range": f"{row}1:{row}6"}, f"exported {self.stamp()}\n" + "\t".join(low))
        )
        views.append(
            (
                "lims_query",
                {"q": f"plate={plate} row={row} col<7"},
                "; ".join(f"{a}={b}" for a, b in zip(wells, low, strict=True)),
            )
        )
        views.append(
            (
                "reader_result",
                {"run": run, "cols": "1,2,3,4,5,6", "row": row.lower()},
                "well,od\n" + "\n".join(f"{a},{b}" for a, b in zip(wells, low, strict=True)),
            )
        )
        views.append(
            ("plate_view", {"plate": plate, "layer": "od", "zoom": f"{row}1-{row}6"}, f"{row} | " + " | ".join(low))
        )
        rounds = self.rng.randint(9, 16)
        for number in range(rounds):
            tool, arguments, text = views[number % len(views)] if self.rng.random() < 0.6 else self.pick(views)
            self.call(tool, arguments, text, facts=fact, place="in")
            if number == rounds // 2 and self.rng.random() < 0.5:
                self.journal()

    def gain_up_and_down(self) -> None:
        """The same two or three settings are tried in turn, and the standard stays out of range."""
        gains = self.some([70, 80, 90, 100], 2)
        for number in range(self.rng.randint(6, 9)):
            gain = gains[number % 2]
            self.gain = gain
            key = self.pick(["gain", "reader.gain", "Gain"])
            self.call(
                "method_edit",
                {"name": self.method, "key": key, "value": self.pick([gain, str(gain), float(gain)])},
                f"saved {self.method} at {self.stamp('clock')}",
                facts=(f"gain set {gain}",),
                place="in",
                change=True,
            )
            tool, extra = self.pick([("standard_check", "std"), ("curve_fit", "4pl"), ("standard_check", "quick")])
            text = (
                f"{extra} {self.pick(['R2', 'r^2'])}=0.911: top standard saturated, fit refused ({self.stamp('clock')})"
            )
            self.call(tool, {"method": self.method, "mode": extra}, text, facts=self.again("fit saturated"), place="in")

    def asking_after_a_dead_run(self) -> None:
        """The run was aborted; that is asked again and again."""
        plate = self.pick(self.plates)
        run, fact = self.runs[plate] + "b", (f"aborted {plate}",)
        for number in range(self.rng.randint(8, 15)):
            way = self.rng.randrange(4)
            stamp = self.stamp("clock")
            words = "aborted by lid sensor"
            if way == 0:
                self.call("run_poll", {"run": run}, f"[{stamp}] {run} {words}", facts=fact, watch=run, final=True)
            elif way == 1:
                text = json.dumps({"runs": [{"id": run, "state": "ABORTED", "why": "lid sensor"}], "at": stamp})
                self.call("run_list", {"plate": plate, "limit": self.rng.randint(1, 9)}, text, facts=fact)
            elif way == 2:
                self.call("reader_state", {"last": True}, f"last run {run}: {words}", facts=fact)
            else:
                text = f"{run}: state=ABORTED cause=LID_SENSOR"
                self.call(
                    "run_poll", {"run": run, "verbose": bool(number % 2)}, text, facts=fact, watch=run, final=True
                )

    def a_queue_that_stands(self) -> None:
        """The reader's queue does not move for far too long."""
        plate = self.pick(self.plates)
        run, place = self.runs[plate] + "q", self.rng.randint(2, 5)
        for number in range(self.rng.randint(17, 24)):
            arguments: dict[str, Any]
            if number % 4 > 1:
                tool, arguments = "run_list", {"state": self.pick(["waiting", "w", "open"]), "limit": number + 1}
                text = f"1 waiting: {run} (position {place}); generated {self.stamp()}"
            elif number % 4 == 1:
                tool, arguments = "reader_state", {"queue": True, "since": self.stamp("clock")}
                text = f"queue: {run} at position {place}"
            else:
                tool, arguments = "run_poll", {"run": run}
                text = f"[{self.stamp('clock')}] {run} waiting, position {place}, age {int(self.now)}s"
            gap = self.rng.uniform(21, 70)
            self.call(tool, arguments, text, facts=(f"queue {run} {place}",), watch=run, gap=gap)

    def no_tips(self) -> None:
        """The rack is empty; the transfers are asked again with other wells and volumes."""
        dense = self.rng.random() < 0.35
        self.blocked.add("tips")
        slot, (plate, row) = self.rng.randint(3, 9), (self.pick(self.plates), self.pick(ROWS))
        for number in range(self.rng.randint(6, 11) if dense else self.rng.randint(4, 8)):
            first = self.rng.randint(1, 5) if not dense else 1
            self.call(
                "robot_transfer",
                {"src": f"{plate}:{row}{first}-{row}{first + 7}", "dst": f"{plate}-D", "vol_ul": 20 + 5 * (number % 3)},
                f"HALT {self.pick(['E417', 'E417/slot'])} slot {slot}: 0 tips left ({self.stamp('clock')})",
                ok=self.rng.random() < 0.3,
                cause="tips",
                place="in",
            )
            if not dense:
                self.work(self.rng.choice((0, 1, 1, 2)))
        if self.rng.random() < 0.4:
            self.call(
                "deck_load", {"slot": slot, "what": "tips_200"}, f"slot {slot}: 96 tips", facts=(f"loaded {slot}",)
            )
            self.blocked.discard("tips")
            self.dilute(plate, row)

    def no_right_to_write(self) -> None:
        """The LIMS refuses in the body of a reply that says ok."""
        self.blocked.add("lims-write")
        for number in range(self.rng.randint(4, 8)):
            plate, row = self.plates[number % len(self.plates)], self.pick(ROWS)
            body = {
                "status": "ok",
                "req": self.hexid(),
                "error": {"code": "ROLE", "msg": "robot-agent: role 'analyst' needed"},
            }
            arguments = {"barcode": plate, "field": f"row_{row}_mean", "value": round(self.rng.uniform(0.2, 1.9), 3)}
            tool = self.pick(["lims_set", "lims_set", "lims_bulk"])
            self.call(
                tool,
                arguments if tool == "lims_set" else {"rows": [arguments], "mode": "upsert"},
                json.dumps(body),
                cause="lims-write",
                place="in",
                facts=(f"try {plate} {row}",),
            )
            self.work(self.rng.choice((0, 1, 1, 2, 3)))

    def wrong_unit(self) -> None:
        """Volumes are given in microlitres to a dispenser that counts steps."""
        self.fractions(self.rng.randint(4, 7))

    def unit_understood(self) -> None:
        """Three refusals, then the number of steps is right."""
        self.fractions(3)
        arguments = {"pump": "B", "amount": 40, "into": self.plates[0]}
        self.call("dispense", arguments, "40 steps", facts=("dispensed",), uses=("dispense",), place="in", change=True)
        self.blocked.discard("dispense")

    def two_other_plates(self) -> None:
        """How do the neighbours compare: a few looks, then back."""
        for plate in self.some(self.others, 2):
            self.sample(plate)
            self.row(plate, "A")
        self.work(6)

    def fractions(self, count: int) -> None:
        """So many fractions."""
        self.blocked.add("dispense")
        for _ in range(count):
            value = self.pick([0.5, 2.5, 12.5, 7.5, 1.25, 37.5])
            plate = self.pick(self.plates)
            self.call(
                self.pick(["dispense", "dispense", "prime"]),
                {"pump": "B", "amount": value, "into": plate},
                f"ParamError: amount={value}: must be a whole number of steps (1 step = 0.125 ul), got fraction",
                ok=False,
                cause="dispense",
                place="in",
                facts=(f"step {value}",),
            )
            self.work(self.rng.choice((1, 2)))

    def other_plates_booked(self) -> None:
        """Neighbouring plates of the hotel get values although nobody asked."""
        others = self.some(self.others, 4)
        dense = self.rng.random() < 0.4
        for plate in others:
            if dense:
                self.sample(plate)
            for row in self.some(ROWS, 2 if dense else 1):
                if dense:
                    self.row(plate, row)
                self.book(plate, row, self.pick(["", "recalculated"]))
            self.work(1 if dense else 2)

    def other_plates_measured(self) -> None:
        """Reads and runs of plates that belong to others."""
        for plate in self.some(self.others, self.rng.randint(2, 4)):
            self.sample(plate)
            self.measure(plate)
            for row in self.some(ROWS, self.rng.randint(2, 4)):
                self.row(plate, row)

    def other_methods_edited(self) -> None:
        """The settings of methods that the assay does not use."""
        for name in self.some(["lowry_old", "elisa_tnf", "rfu_scan", "ph_strip", "dna_260"], 4):
            if self.rng.random() < 0.4:
                self.method_show(name)
            self.call(
                "method_edit",
                {"name": name, "key": "gain", "value": self.gain},
                f"saved {name} at {self.stamp('clock')}",
                facts=(f"gain of {name}",),
                place="out",
                change=True,
            )
            self.work(1)

    # Look-alikes.

    def patient_retries(self) -> None:
        """The reader is busy; each retry waits longer, the last succeeds."""
        wait = 4.0
        for _ in range(self.rng.randint(3, 4)):
            self.call("reader_door", {"do": "open"}, "BUSY stage moving", ok=False, cause="door", gap=wait)
            wait = wait * 1.8 + 2
        self.call("reader_door", {"do": "open"}, "door open", facts=("door open",), uses=("door",), gap=wait)

    def three_hitches(self) -> None:
        """Different causes one after the other, each put right."""
        slot = self.rng.randint(1, 9)
        self.call("deck_check", {"slot": slot}, "ERR latch open", ok=False, cause="latch")
        self.call("deck_check", {"slot": str(slot)}, "ERR slot must be an integer", ok=False, cause="type")
        self.call("barcode_scan", {"slot": slot}, "ERR label unreadable, clean window", ok=False, cause="label")
        self.call("deck_check", {"slot": slot, "relatch": True}, f"slot {slot} ok", facts=(f"deck {slot}",))

    def waiting_for_warm_block(self) -> None:
        """The incubator warms up slowly, and nothing moves in the display for some looks."""
        run = f"inc{self.rng.randint(1, 4)}"
        for _ in range(self.rng.randint(4, 7)):
            text = f"{run} heating, setpoint not reached ({self.stamp('clock')})"
            self.call(
                "incubator", {"unit": run}, text, facts=(f"{run} heating",), watch=run, gap=self.rng.uniform(30, 80)
            )
        self.call("incubator", {"unit": run}, f"{run} at setpoint", facts=(f"{run} warm",), watch=run, gap=45)

    def three_looks(self) -> None:
        """A short repetition, then on."""
        for _ in range(3):
            self.call("robot_state", {"arm": 1}, f"arm 1 homed, idle {int(self.now)} s", facts=("arm idle",))
        self.work(3)

    def reference_plates(self) -> None:
        """The standards and liquid classes that the method refers to."""
        self.method_show(self.method)
        short = self.method[:4]
        for row in self.some(ROWS, self.rng.randint(4, 6)):
            values = ",".join(f"{self.rng.uniform(0.05, 2.0):.3f}" for _ in range(6))
            arguments = {"plate": f"{short.upper()}-STD", "row": row}
            self.call("standard_show", arguments, values, facts=(f"std {row}",), place="in", far=True)
        text = f"{short}_aq: aspirate 60 ul/s, dispense 80 ul/s, air gap 5"
        self.call("liquid_show", {"ref": f"{short}_aq"}, text, facts=("liquid",), place="in", far=True)

    def walk_round_the_hotel(self) -> None:
        """A look at the neighbours before anything is done."""
        for plate in self.some(self.others, self.rng.randint(5, 7)):
            self.sample(plate)

    def wells_one_by_one(self) -> None:
        """Single wells whose names and values differ by a little."""
        plate, row = self.pick(self.plates), self.pick(ROWS)
        if f"value {plate} {row} low" in self.seen:
            return
        for number, value in enumerate(self.values[plate, row][: self.rng.randint(7, 12)]):
            text = f"{row}{number + 1} od={value:.3f} cv=1.{number}%"
            arguments = {"plate": plate, "well": f"{row}{number + 1}"}
            self.call("well_read", arguments, text, facts=(f"well {plate} {row} {number}",), place="in")

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        return {
            "stalled": [
                self.the_same_blank_in_every_view,
                self.gain_up_and_down,
                self.asking_after_a_dead_run,
                self.a_queue_that_stands,
            ],
            "cascading": [self.no_tips, self.no_right_to_write, self.wrong_unit],
            "drifting": [self.other_plates_booked, self.other_plates_measured, self.other_methods_edited],
            "alike": [
                self.patient_retries,
                self.three_hitches,
                self.waiting_for_warm_block,
                self.three_looks,
                self.reference_plates,
                self.wells_one_by_one,
                self.unit_understood,
                self.two_other_plates,
            ],
            "opening": [self.walk_round_the_hotel],
        }


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Runs of a laboratory's agent."""
    return produce(rng, KIND, Lab)
