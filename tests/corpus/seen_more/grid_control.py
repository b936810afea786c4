"""A control room for substations: points are read and switched by protocol addresses; answers are status words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "grid_control"

STATIONS = ["UW-Kiesgrube", "UW-Aue", "UW-Hafen", "UW-Ziegelei", "UW-Talsperre", "UW-Bruch"]
POINTS = ["U12", "I1", "P", "Q", "tap", "oil_temp", "breaker", "earth", "relay_ver", "fan", "batt_V", "door"]
SETTABLE = ["tap_set", "fan_on", "limit_I", "limit_U", "relay_time", "curtail_pct"]


class Grid(Scene):
    """Stations with bays and points; a task about a station, a bay, a feeder's customers, or a time."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the task."""
        super().__init__(rng)
        self.station = rng.choice(STATIONS)
        self.bay = rng.randint(1, 8)
        self.form = rng.choice(["station", "bay", "bay", "topic", "nothing"])
        self.task = {
            "station": f"{self.station}: yearly check of all bays, settings to the new sheet.",
            "bay": f"The transformer at {self.station} bay {self.bay} gets too warm at night. Why? Relieve it.",
            "topic": f"Voltage complaints in the villages behind {self.station[3:]}. Look into it.",
            "nothing": "Take over the night shift. Nothing special is planned.",
        }[self.form]
        self.number = rng.randint(100, 300)

    def place(self, station: str, bay: int) -> Place:
        """Say whether a bay belongs to the task."""
        if self.form == "nothing":
            return ""
        if station != self.station:
            return "out"
        return "in" if self.form != "bay" or bay == self.bay else "out"

    def own(self) -> tuple[str, int]:
        """Choose a bay of the task."""
        if self.form == "nothing":
            return self.rng.choice(STATIONS), self.rng.randint(1, 8)
        return self.station, self.bay if self.form == "bay" else self.rng.randint(1, 8)

    def foreign(self) -> tuple[str, int]:
        """Choose a bay that the task is not about."""
        if self.form == "bay" and self.rng.random() < 0.6:
            return self.station, self.rng.choice([bay for bay in range(1, 9) if bay != self.bay])
        return self.rng.choice([station for station in STATIONS if station != self.station]), self.rng.randint(1, 8)

    def look(self, station: str, bay: int) -> None:
        """Read something that was not read before."""
        rng, at = self.rng, self.place(station, bay)
        self.number += 1
        address = f"{station}/B{bay:02d}"
        kind = rng.randrange(4)
        if kind == 0:
            point = rng.choice(POINTS)
            said = f"{address}/{point} = {rng.uniform(0, 400):.2f} Q=GOOD ts={self.run.time()}"
            self.run.call("pt_read", {"addr": f"{address}/{point}"}, said, place=at, fresh=True)
        elif kind == 1:
            rows = "\n".join(
                f"{hour:02d}:00 {rng.uniform(20, 110):7.2f}" for hour in range(0, 24, rng.choice([2, 3, 4]))
            )
            args: Args = {"addr": f"{address}/{rng.choice(POINTS[:6])}", "day": f"2025-01-{self.number % 28 + 1:02d}"}
            self.run.call("hist_query", args, rows, place=at)
        elif kind == 2:
            args = {"bay": address, "param": f"{rng.choice(SETTABLE)}.{self.number}"}
            self.run.call("relay_param_get", args, f"{rng.randint(1, 900)} (sheet: {rng.randint(1, 900)})", place=at)
        else:
            said = f"{self.number} {address} {rng.choice(['KOMMT', 'GEHT'])} {rng.choice(POINTS)} Warnung"
            self.run.call("meldebuch", {"von": self.number, "filter": address}, said, place=at)

    def change(self, station: str, bay: int) -> None:
        """Set something to a value that it never had."""
        self.number += 1
        point = self.rng.choice(SETTABLE)
        args: Args = {"addr": f"{station}/B{bay:02d}/{point}", "value": self.number}
        said = self.rng.choice(["SELECT OK / OPERATE OK", "ACT_CON POS ACT_TERM", f"executed {self.run.time()}"])
        self.run.call("cmd_set", args, said, place=self.place(station, bay), change=True, clears="link", fresh=True)

    def step(self) -> None:
        """Read and set."""
        self.look(*self.own()) if self.rng.random() < 0.75 else self.change(*self.own())

    def book(self) -> None:
        """Read in the shift book, which needs no station."""
        self.number += 1
        said = f"{self.number}: {self.rng.choice(['call from', 'work permit of'])} crew {self.rng.randint(1, 9)}"
        self.run.call("shift_book", {"entry": self.number}, said)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, (station, bay) = self.rng, self.own()
        at, address = self.place(station, bay), f"{station}/B{bay:02d}"

        def reads_a_frozen_value() -> None:
            value = f"{rng.uniform(60, 90):.1f}"
            for number in range(rng.randint(8, 16)):
                ways: list[tuple[str, Args, str]] = [
                    ("pt_read", {"addr": f"{address}/oil_temp"}, f"{value} Q=OLD ts=2025-03-01T00:00:00Z"),
                    ("pt_read_many", {"addrs": [f"{address}/oil_temp"]}, f"oil_temp {value} OLD"),
                    ("pt_force_read", {"addr": f"{address}/oil_temp"}, f"{value} (not updated) {self.run.hexid(4)}"),
                    ("pt_read", {"addr": f"{address}/oil_temp", "raw": True}, f"0x{int(float(value) * 10):04X} OLD"),
                ]
                tool, args, said = rng.choice(ways)
                self.run.call(
                    tool,
                    args,
                    said,
                    fresh=number == 0 or None if number < 3 else False,
                    place=at,
                    gap=rng.uniform(3, 15),
                )
                if number == 6 and rng.random() < 0.5:
                    self.book()

        def tap_up_tap_down() -> None:
            low = rng.randint(5, 12)
            for number in range(rng.randint(8, 13)):
                args: Args = {"addr": f"{address}/tap_set", "value": low + number % 2}
                self.run.call(
                    "cmd_set", args, "SELECT OK / OPERATE OK", place=at, change=True, fresh=number < 2, clears="link"
                )

        def waits_for_a_switch_that_does_not_move() -> None:
            for _ in range(rng.randint(18, 28)):
                said = f"{address}/breaker INTERMEDIATE since {int(self.run.clock)} s"
                self.run.call(
                    "pt_read", {"addr": f"{address}/breaker"}, said, watch="breaker", place=at, gap=rng.uniform(21, 60)
                )

        def acknowledges_the_same_alarm() -> None:
            for number in range(rng.randint(7, 12)):
                tool = rng.choice(["alarm_ack", "alarm_list", "alarm_ack"])
                said = "1 quittiert" if tool == "alarm_ack" else f"ANSTEHEND {address} Buchholz 1 ({self.run.time()})"
                self.run.call(
                    tool, {"filter": address}, said, place=at, fresh=number == 0 or None if number < 2 else False
                )

        return [
            reads_a_frozen_value,
            tap_up_tap_down,
            waits_for_a_switch_that_does_not_move,
            acknowledges_the_same_alarm,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng, (station, bay) = self.rng, self.own()

        def the_line_to_the_station_is_down() -> None:
            for _ in range(rng.randint(4, 9)):
                self.number += 1
                address = f"{station}/B{bay:02d}/{rng.choice(SETTABLE)}"
                tool = rng.choice(["cmd_set", "cmd_select", "pt_force_read"])
                said = rng.choice(
                    [
                        "NEG_CON COT=47 (unknown address)",
                        "Q=INVALID link=DOWN",
                        "Leitung gestoert, kein Telegramm",
                        "T1 timeout",
                    ]
                )
                args: Args = {"addr": address, "value": self.number}
                self.run.call(tool, args, said, ok=rng.random() < 0.7, cause="link", place=self.place(station, bay))
                self.book()
            if rng.random() < 0.3:
                self.run.call("modem_switch", {"to": "reserve"}, "reserve line up")
                self.change(station, bay)

        def another_desk_has_the_control() -> None:
            for _ in range(rng.randint(4, 7)):
                self.number += 1
                args: Args = {"addr": f"{station}/B{bay:02d}/{rng.choice(SETTABLE)}", "value": self.number}
                said = rng.choice(
                    [
                        "ABGELEHNT Bedienhoheit: Platz 3",
                        "OPERATE NOK (authority: desk 3)",
                        "refused, local/remote=desk3",
                    ]
                )
                self.run.call(
                    "cmd_set", args, said, ok=rng.random() < 0.8, cause="desk", place=self.place(station, bay)
                )
                if rng.random() < 0.8:
                    self.look(station, bay)

        def polls_an_invalid_point() -> None:
            address = f"{station}/B{bay:02d}/P"
            for number in range(rng.randint(8, 14)):
                tool = rng.choice(["pt_read", "pt_force_read"])
                said = rng.choice(["ERR object does not exist", "NEG_CON COT=47", "unknown information object"])
                at = self.place(station, bay)
                self.run.call(
                    tool, {"addr": address}, said, ok=rng.random() < 0.6, cause="object", fresh=number == 0, place=at
                )

        return [polls_an_invalid_point, the_line_to_the_station_is_down, another_desk_has_the_control]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng

        def inspects_the_whole_grid() -> None:
            for _ in range(rng.randint(12, 20)):
                self.look(*self.foreign())

        def sets_values_elsewhere() -> None:
            for _ in range(rng.randint(4, 8)):
                what = self.foreign()
                if rng.random() < 0.5:
                    self.look(*what)
                self.change(*what)

        def a_neighbouring_bay_becomes_the_work() -> None:
            what = self.foreign()
            for _ in range(rng.randint(9, 15)):
                self.look(*what) if rng.random() < 0.7 else self.change(*what)

        return [inspects_the_whole_grid, sets_values_elsewhere, a_neighbouring_bay_becomes_the_work]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, (station, bay) = self.rng, self.own()
        at, address = self.place(station, bay), f"{station}/B{bay:02d}"

        def cooling_down() -> None:
            warm = rng.uniform(85, 95)
            for _ in range(rng.randint(5, 12)):
                warm -= rng.uniform(0.3, 1.5)
                said = f"{address}/oil_temp = {warm:.1f} Q=GOOD"
                self.run.call(
                    "pt_read",
                    {"addr": f"{address}/oil_temp"},
                    said,
                    place=at,
                    watch="oil",
                    moved=True,
                    gap=rng.uniform(10, 60),
                )

        def selects_again_until_it_works() -> None:
            gap = 4.0
            for _ in range(rng.randint(2, 4)):
                self.run.call(
                    "cmd_set", {"addr": f"{address}/fan_on", "value": 1}, "T1 timeout", cause="link", place=at, gap=gap
                )
                gap *= 1.9
            self.run.call(
                "cmd_set",
                {"addr": f"{address}/fan_on", "value": 1},
                "executed",
                clears="link",
                place=at,
                change=True,
                gap=gap,
            )

        def all_points_at_once() -> None:
            for number, point in enumerate(POINTS[:8]):
                said = f"{rng.uniform(0, 9):.2f} Q=GOOD"
                self.run.call("pt_read", {"addr": f"{address}/{point}"}, said, place=at, beside=number > 0, fresh=True)

        def the_clock_three_times() -> None:
            for _ in range(3):
                self.run.call("desk_state", {}, "desk 2, authority yes")
            self.work(4)

        def a_look_at_both_neighbours() -> None:
            if self.form != "nothing":
                for _ in range(rng.randint(2, 4)):
                    self.look(*self.foreign())
            for _ in range(5):
                self.step()

        def settings_in_steps() -> None:
            for step in range(rng.randint(5, 8)):
                self.number += 1
                args: Args = {"addr": f"{address}/curtail_pct", "value": 100 - 5 * step - self.number / 1000}
                self.run.call("cmd_set", args, "SELECT OK / OPERATE OK", place=at, change=True, clears="link")

        return [
            cooling_down,
            selects_again_until_it_works,
            all_points_at_once,
            the_clock_three_times,
            a_look_at_both_neighbours,
            settings_in_steps,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Grid, rng)
