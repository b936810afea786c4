"""Lifts in a tower: controllers with registers, event logs, a building management system."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class ElevatorPlc(Stage):
    """One lift of a group; its registers, its doors, its log."""

    kind = "elevator_plc"
    styles = ("log", "csv", "json")
    paces = (3.0, 8.0, 14.0)

    def setup(self) -> None:
        self.lift = self.n(1, 4)
        self.unit = 10 + self.lift
        self.others = list(range(5, 13))
        self.floors = self.n(12, 50)
        self.door = f"D{self.lift}{self.n(1, self.floors):02}"
        self.task = self.pick(
            (
                f"Lift {self.lift} (unit {self.unit}) relevels too often at night. Read its registers and log, adjust "
                "the brake delay."
            ),
            f"Tenants say lift {self.lift} skips floor {self.n(2, self.floors)}. Find out, correct the floor table.",
            f"unit {self.unit}: door {self.door} reopens. Tune the door parameters (40100-40160), nothing else.",
        )

    def register(self, unit: int, *, write: bool, **more: Any) -> None:
        """Read or write a register."""
        number, value = self.n(40001, 40400), self.n(0, 65535)
        args = {"unit": unit, "register": number}
        if write:
            self.call(
                "modbus_write", {**args, "value": value}, f"unit {unit} {number} <- {value} ok", change=True, **more
            )
        else:
            text = self.pick(
                f"unit {unit} {number}: {value} (0x{value:04x})",
                self.one(unit=unit, reg=number, raw=value, scaled=value / 100),
            )
            self.call("modbus_read", {**args, "count": self.n(1, 8)}, text, **more)

    def step(self) -> None:
        kind = self.n(0, 4)
        if kind < 2:
            self.register(self.unit, write=False)
        elif kind == 2:
            self.register(self.unit, write=True)
        elif kind == 3:
            self.call(
                "event_log",
                {"lift": self.lift, "from": self.day(), "lines": self.n(3, 60)},
                (
                    f"{self.day()} L{self.lift} {self.pick('RELEVEL', 'DOOR_REOPEN', 'BRAKE', 'CALL', 'LOAD')} floor "
                    f"{self.n(0, self.floors)} {self.n(1, 9999)}"
                ),
            )
        else:
            self.call(
                "ride_test",
                {"lift": self.lift, "from": self.n(0, 9), "to": self.n(10, self.floors)},
                f"L{self.lift} {self.x(4, 60)} s, jerk {self.x(0, 2, 2)} m/s3, stop error {self.n(-20, 20)} mm",
            )

    def drift_whole_group(self) -> None:
        """Writes the same parameters to the other lifts of the tower."""
        self.lead()
        for other in self.some(self.others, 6, 8):
            self.register(10 + other, write=False, out=True)
            self.register(10 + other, write=True, out=True)
            self.now_and_then()

    def drift_air_conditioning(self) -> None:
        """The bus has other devices, too: fans and lights are set."""
        self.lead()

        def device() -> None:
            self.register(self.n(60, 99), write=self.chance(0.5), out=True)

        self.gradually(device, 17, 25)

    def drift_tenants(self) -> None:
        """Reads who lives where and who complained of what, in years of tickets about heating and post boxes."""
        self.lead()
        for _ in self.times(9, 13):
            flat = f"{self.n(1, 40)}{self.pick(*'ABCD')}"
            self.call(
                "bms_ticket",
                {"flat": flat, "nr": self.n(1, 9999)},
                (
                    f"{flat} {self.person()}: "
                    f"{self.pick('radiator cold', 'post box', 'noise', 'bicycle', 'bulb', 'smell')} since {self.day()}"
                ),
                out=True,
            )
            self.now_and_then()
        self.tail()

    def drift_drawings(self) -> None:
        """Redraws plans of the car park."""
        self.lead()
        for _ in self.times(8, 11):
            layer = f"P{self.n(1, 4)}-{self.pick('ramps', 'lines', 'signs', 'pumps', 'gates')}"
            self.call(
                self.pick("cad_move", "cad_text", "cad_hatch"),
                {"layer": layer, "x": self.n(0, 9000)},
                f"{layer}: {self.n(1, 400)} objects changed",
                out=True,
                change=True,
            )
            self.now_and_then(0.1)

    def stall_overlapping_registers(self) -> None:
        """Reads windows over the same registers, whose values stand."""
        self.work(5, 9)
        values = [self.n(0, 999) for _ in range(12)]
        self.call("modbus_read", {"unit": self.unit, "register": 40100, "count": 12}, f"{values}")
        for _ in self.times(7, 12):
            low, high = self.n(0, 5), self.n(7, 11)
            self.call(
                "modbus_read",
                {"unit": self.unit, "register": 40100 + low, "count": high - low},
                f"{values[low:high]}",
                new=False,
                gap=self.x(1, 15),
            )
        self.tail()

    def stall_delay_between_two(self) -> None:
        """The brake delay between two values, and then values in between that bring nothing."""
        self.work(4, 8)
        for number, value in enumerate([180, 260, 180, 260, 220, 200, 240, 180, 230, 260][: self.n(8, 10)]):
            self.call(
                "modbus_write",
                {"unit": self.unit, "register": 40133, "value": value},
                f"40133 <- {value}; relevels 14/h",
                new=number < 2,
            )

    def stall_waits_for_idle(self) -> None:
        """Waits until nobody uses the lift; a person holds the door."""
        self.work(4, 8)
        for number in self.times(13, 22):
            self.call(
                "lift_state",
                {"lift": self.lift},
                f"door open, floor 0, light curtain broken {self.time()}",
                new=number == 0,
                wait="idle",
                gap=self.x(25, 110),
            )

    def cascade_write_protection(self) -> None:
        """The key switch stands at 'operate': writing is impossible, in several codes."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            number = self.n(40001, 40400)
            self.call(
                self.pick("modbus_write", "param_set", "table_upload"),
                {"unit": self.unit, "register": number, "value": self.n(0, 999)},
                self.pick(
                    f"exception 0x04 at {number}",
                    f"{number}: SLAVE_DEVICE_FAILURE (write-protected)",
                    self.one(reg=number, written=False, key="OPERATE"),
                ),
                ok=self.chance(0.3),
                cause="key",
            )
            if self.chance(0.4):
                self.register(self.unit, write=False)

    def cascade_bus_silent(self) -> None:
        """The line is open: reads time out at every address and speed."""
        self.work(3, 8)
        for _ in self.times(5, 8):
            number = self.n(40001, 40400)
            self.call(
                self.pick("modbus_read", "modbus_scan", "event_log"),
                {"unit": self.unit, "register": number, "baud": self.pick(9600, 19200, 38400)},
                self.pick(
                    f"timeout after 1000 ms ({number})",
                    f"CRC error, 0 of {self.n(5, 20)} bytes",
                    f"no response from {self.unit} for {number}",
                ),
                ok=False,
                cause="bus",
            )
            if self.chance(0.3):
                self.call(
                    "manual", {"page": self.n(1, 300)}, f"p. {self.n(1, 300)}: terminal X{self.n(1, 9)} carries A and B"
                )

    def healthy_register_sweep(self) -> None:
        """Register after register of the named unit."""
        start = self.n(40001, 40100)
        for number in self.times(15, 26):
            self.call(
                "modbus_read", {"unit": self.unit, "register": start + number}, f"{start + number}: {self.n(0, 65535)}"
            )
        self.work(1, 3)

    def healthy_ladder(self) -> None:
        """One value is raised step by step; a ride after each."""
        self.work(2, 4)
        value = self.n(100, 160)
        for _ in self.times(7, 11):
            value += self.n(5, 15)
            self.call(
                "modbus_write", {"unit": self.unit, "register": 40133, "value": value}, f"40133 <- {value}", change=True
            )
            self.call("ride_test", {"lift": self.lift}, f"stop error {self.x(-9, 9)} mm at {value}")

    def healthy_illegal_address(self) -> None:
        """Which registers exist is found out by asking; 'illegal address' is an answer."""
        self.work(2, 5)
        for number in self.some(range(40400, 40600), 7, 10):
            self.call(
                "modbus_read",
                {"unit": self.unit, "register": number},
                f"exception 0x02 illegal data address {number}",
                ok=False,
            )
        self.work(4, 8)

    def healthy_upload(self) -> None:
        """Blocks of the floor table are loaded, with a count."""
        self.work(4, 7)
        for block in self.times(9, 16):
            self.call("table_upload", {"unit": self.unit, "block": block}, f"block {block} of 16 stored", change=True)
        self.work(3, 5)

    def healthy_compare_first(self) -> None:
        """At the beginning the neighbour is read for comparison, then only the lift of the task."""
        for _ in self.times(3, 5):
            self.register(10 + self.others[0], write=False, out=True)
        self.work(11, 20)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(ElevatorPlc, rng)
