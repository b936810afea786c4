"""A pipetting robot with an arm, a deck of plates and a reader; results are status words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "assay_robot"

ROWS = "ABCDEFGH"


class Bench(Scene):
    """Plates with wells that are filled, shaken, and measured."""

    def __init__(self, rng: random.Random) -> None:
        """Put plates on the deck and choose the order."""
        super().__init__(rng)
        first = rng.randint(10, 80)
        self.plates = [f"P{first + number}" for number in range(9)]
        self.own = rng.sample(self.plates, rng.choice([1, 1, 2, 3]))
        self.form = rng.choice(["plate", "plate", "plate", "nothing"])
        wells = f"{rng.choice(ROWS)}1"
        self.task = {
            "plate": rng.choice(
                [
                    f"Dilution series on {' and '.join(self.own)}: start at {wells}, 1:2 by row, read at 450 nm.",
                    f"Repeat the measurement of {', '.join(self.own)}; fill up wells below 80 ul first.",
                    f"{'/'.join(self.own)} -> wash three times, add substrate, read every well once.",
                ]
            ),
            "nothing": "Calibrate the instrument.",
        }[self.form]
        self.todo = [(plate, f"{row}{column}") for plate in self.own for row in ROWS for column in range(1, 13)]
        self.tip = 0

    def place(self, plate: str) -> Place:
        """Say whether a plate belongs to the task."""
        return "" if self.form == "nothing" else "in" if plate in self.own else "out"

    def ack(self) -> str:
        """A status line as the controller prints it."""
        return self.rng.choice(["OK", "DONE", f"ACK {self.run.hexid(4).upper()}", "STATUS=IDLE ERR=0"])

    def well(self, plate: str, well: str) -> None:
        """Do a new thing with a well."""
        rng, at = self.rng, self.place(plate)
        kind = rng.randrange(4)
        if kind == 0:
            args = {"plate": plate, "well": well, "volume_ul": rng.choice([5, 10, 20, 50, 100])}
            said = f"{self.ack()} level={rng.randint(60, 320)}ul"
            self.run.call("liquid_dispense", args, said, place=at, change=True, clears="arm", fresh=True)
        elif kind == 1:
            args = {
                "from": f"{plate}:{well}",
                "to": f"{plate}:{well[0]}{int(well[1:]) % 12 + 1}",
                "ul": rng.choice([25, 50]),
            }
            self.run.call("liquid_transfer", args, self.ack(), place=at, change=True, clears="arm", fresh=True)
        else:
            value = rng.uniform(0.04, 2.4)
            args = {"plate": plate, "wells": [well], "nm": 450}
            self.run.call(
                "reader_measure", args, f"{well}\t{value:.4f}\tT={rng.uniform(24, 26):.1f}C", place=at, fresh=True
            )

    def step(self) -> None:
        """Go on to the next well; change tips and plates now and then."""
        if not self.todo:
            return
        plate, well = self.todo.pop(0)
        self.well(plate, well)
        dice = self.rng.random()
        if dice < 0.08:
            self.tip += 1
            self.run.call("arm_pick_tip", {"rack": 1, "position": self.tip}, self.ack(), change=True, clears="arm")
        elif dice < 0.14:
            args = {"plate": plate, "seconds": self.rng.randint(5, 60), "rpm": 300 + len(self.todo)}
            self.run.call("shaker_run", args, self.ack(), place=self.place(plate), change=True, fresh=True)

    def measure(self) -> None:
        """Read a well that was not read yet; this needs no arm."""
        if self.todo:
            plate, well = self.todo.pop(0)
            line = f"{well}\t{self.rng.uniform(0.04, 2.4):.4f}"
            args = {"plate": plate, "wells": [well], "nm": 450}
            self.run.call("reader_measure", args, line, place=self.place(plate))

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, plate = self.rng, self.own[0]
        at = self.place(plate)

        def asks_for_the_state_in_every_way() -> None:
            state = rng.choice(["HOMING_REQUIRED", "LID_OPEN", "PAUSED_BY_USER"])
            ways: list[tuple[str, Args, str]] = [
                ("arm_status", {}, f"STATE={state} t={{t}}"),
                ("deck_status", {"verbose": True}, f"arm: {state}; deck: 9 plates; uptime {{t}} s"),
                ("controller_query", {"cmd": "?ST"}, f"!ST {state} {{h}}"),
                ("arm_status", {"fields": ["state"]}, f'{{"state": "{state}", "seq": {{t}}}}'),
                ("controller_query", {"cmd": "?ERR"}, f"!ERR {state}"),
            ]
            for number in range(rng.randint(8, 16)):
                tool, args, said = rng.choice(ways)
                text = said.replace("{t}", str(int(self.run.clock))).replace("{h}", self.run.hexid(4))
                self.run.call(tool, args, text.replace("{{", "{").replace("}}", "}"), fresh=number == 0, place="")
                if number == 4 and rng.random() < 0.4:
                    self.measure()

        def heats_for_ever() -> None:
            for _ in range(rng.randint(18, 24)):
                said = f"PLATE {plate} T=31.{rng.choice('00')} SET=37.0 t={int(self.run.clock)}"
                self.run.call("incubator_status", {"slot": 2}, said, watch="heat", gap=rng.uniform(30, 75))

        def moves_the_plate_to_and_fro() -> None:
            for number in range(rng.randint(8, 13)):
                args = {"plate": plate, "to": ("reader", "deck:4")[number % 2]}
                self.run.call("arm_move_plate", args, self.ack(), fresh=number < 2, change=True, place=at, clears="arm")

        def measures_the_blank_again() -> None:
            for number in range(rng.randint(8, 14)):
                wells = rng.choice([["H12"], ["H12", "H12"], ["h12"], "H12:H12"])
                args = {"plate": plate, "wells": wells, "nm": rng.choice([450, 450, 451])}
                self.run.call(
                    "reader_measure", args, f"H12\tOVERFLOW\tT=25.{rng.randint(0, 3)}C", fresh=number == 0, place=at
                )

        return [asks_for_the_state_in_every_way, heats_for_ever, moves_the_plate_to_and_fro, measures_the_blank_again]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def the_arm_has_lost_its_position() -> None:
            for _ in range(rng.randint(4, 8)):
                plate = rng.choice(self.own)
                well = f"{rng.choice(ROWS)}{rng.randint(1, 12)}"
                self.tip += 1
                acts: list[tuple[str, Args]] = [
                    ("liquid_dispense", {"plate": plate, "well": well, "volume_ul": 10 + self.tip}),
                    ("arm_pick_tip", {"rack": 1, "position": self.tip}),
                    ("arm_move_plate", {"plate": plate, "to": f"deck:{self.tip % 9}"}),
                    ("liquid_transfer", {"from": f"{plate}:{well}", "to": f"{plate}:A1", "ul": 5 + self.tip}),
                ]
                tool, args = rng.choice(acts)
                said = rng.choice(
                    ["NAK E31 Z-AXIS NOT REFERENCED", "STATUS=FAULT ERR=31", f"E31 z ref lost near {well}"]
                )
                self.run.call(tool, args, said, ok=rng.random() < 0.75, cause="arm", place=self.place(plate))
                if rng.random() < 0.75:
                    self.measure()
            if rng.random() < 0.3:
                self.run.call("arm_home", {"axis": "all"}, "DONE", change=True, clears="arm")

        def the_trough_is_empty() -> None:
            for _ in range(rng.randint(4, 7)):
                self.tip += 1
                args = {"trough": "T1", "volume_ul": rng.choice([100, 200, 50]) + self.tip}
                said = rng.choice(
                    [
                        "CLOT_OR_EMPTY pressure=-2",
                        "OK warning: aspirated 0 ul (no liquid found)",
                        "NAK E12 LLD no surface",
                    ]
                )
                self.run.call("liquid_aspirate", args, said, ok=rng.random() < 0.8, cause="trough")
                self.measure()

        return [the_arm_has_lost_its_position, the_trough_is_empty]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng
        others = [plate for plate in self.plates if plate not in self.own]

        def goes_on_to_the_next_plate() -> None:
            plate = others[0]
            for number in range(rng.randint(8, 16)):
                self.well(plate, f"{ROWS[number // 12]}{number % 12 + 1}")

        def fills_other_plates() -> None:
            for plate in rng.sample(others, rng.randint(4, 6)):
                args = {"plate": plate, "well": f"{rng.choice(ROWS)}1", "volume_ul": rng.choice([50, 80])}
                self.run.call("liquid_dispense", args, self.ack(), place="out", change=True, fresh=True, clears="arm")
                if rng.random() < 0.3:
                    self.measure()

        def measures_the_whole_deck() -> None:
            for plate in others * 2:
                wells = [f"{rng.choice(ROWS)}{number}" for number in range(1, 5)]
                said = "\n".join(f"{well}\t{rng.uniform(0, 2):.4f}" for well in wells)
                self.run.call(
                    "reader_measure", {"plate": plate, "wells": wells, "nm": 620}, said, place="out", fresh=True
                )

        return [goes_on_to_the_next_plate, fills_other_plates, measures_the_whole_deck]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, plate = self.rng, self.own[0]
        at = self.place(plate)

        def reads_row_by_row() -> None:
            for row in ROWS:
                said = "  ".join(f"{rng.uniform(0.11, 0.13):.4f}" for _ in range(12))
                self.run.call("reader_measure", {"plate": plate, "row": row, "nm": 405}, said, place=at, fresh=True)

        def three_faults_then_homing() -> None:
            for _ in range(rng.randint(2, 3)):
                self.tip += 1
                args = {"rack": 1, "position": self.tip}
                self.run.call("arm_pick_tip", args, "NAK E31 Z-AXIS NOT REFERENCED", ok=rng.random() < 0.5, cause="arm")
            self.run.call("arm_home", {"axis": "all"}, "DONE", change=True, clears="arm")
            self.work(3)

        def waits_for_warmth() -> None:
            warm = rng.uniform(20, 29)
            while warm < 37:
                more = rng.choice([0.0, 2.5, 4.0])
                warm += more
                self.run.call(
                    "incubator_status",
                    {"slot": 2},
                    f"T={warm:.1f} SET=37.0",
                    watch="warm",
                    moved=True,
                    gap=rng.uniform(25, 60),
                )

        def washes_three_times() -> None:
            for number in range(3):
                args = {"plate": plate, "buffer": "PBS", "volume_ul": 300}
                self.run.call("washer_cycle", args, "DONE", place=at, change=True, fresh=True if number else "auto")
            self.work(4)

        def counts_the_deck_first() -> None:
            for other in self.plates[:5] if len(self.run.calls) < 4 else ():
                self.run.call(
                    "deck_scan", {"plate": other}, f"barcode {self.run.hexid(8)} lid=no", place=self.place(other)
                )
            self.work(6)

        def moves_four_plates_out_of_the_way() -> None:
            others = [other for other in self.plates if other not in self.own]
            for number, other in enumerate(others[:2]):
                args = {"plate": other, "to": f"hotel:{number + 1}"}
                self.run.call("arm_move_plate", args, self.ack(), place=self.place(other), change=True, clears="arm")
            self.work(6)

        return [
            reads_row_by_row,
            three_faults_then_homing,
            waits_for_warmth,
            washes_three_times,
            counts_the_deck_first,
            moves_four_plates_out_of_the_way,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Bench, rng)
