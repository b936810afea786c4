"""A warehouse with driving robots: aisles, totes and chargers, through a fleet manager."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class WarehouseFleet(Stage):
    """An order of totes, or one robot that misbehaves, in one aisle."""

    kind = "warehouse_fleet"
    styles = ("log", "json")
    paces = (4.0, 10.0, 16.0)

    def setup(self) -> None:
        self.aisle = self.pick("A", "B", "C", "D", "K") + str(self.n(1, 30))
        self.robot = f"{self.pick('amr', 'R', 'bot')}-{self.n(1, 60):02}"
        self.others = [f"{self.robot.split('-')[0]}-{n:02}" for n in self.some(range(61, 99), 9)]
        self.wave = self.n(2000, 9999)
        self.totes = [f"T{self.n(10000, 99999)}" for _ in range(14)]
        self.task = self.pick(
            f"Empty aisle {self.aisle} for the floor repair: bring its totes to the buffer with {self.robot}.",
            f"{self.robot} stops in aisle {self.aisle} all the time. Find out why and get it going.",
            f"Wave {self.wave}: pick {', '.join(self.totes[:4])} and ten more from {self.aisle} with {self.robot}",
        )

    def pose(self, robot: str) -> str:
        """Return where a robot is."""
        return self.one(
            robot=robot, x=self.x(0, 90, 2), y=self.x(0, 60, 2), theta=self.x(-3, 3, 2), batt=self.n(8, 100)
        )

    def step(self) -> None:
        tote, kind = self.pick(*self.totes), self.n(0, 5)
        if kind == 0:
            self.call("fleet_state", {"robot": self.robot}, self.pose(self.robot))
        elif kind < 3:
            slot = f"{self.aisle}-{self.n(1, 60):02}-{self.n(1, 6)}"
            self.call(
                self.pick("robot_pick", "robot_fetch"),
                {"robot": self.robot, "tote": tote, "from": slot},
                f"{self.robot} took {tote} at {slot}, {self.x(2, 30)} kg, {self.time()}",
                change=True,
            )
        elif kind == 3:
            self.call(
                "robot_drive",
                {"robot": self.robot, "to": f"buffer-{self.n(1, 99)}"},
                f"arrived, offset {self.n(0, 40)} mm, {self.x(4, 90)} m driven",
                change=True,
            )
        elif kind == 4:
            self.call(
                "scan_shelf",
                {"aisle": self.aisle, "bay": self.n(1, 60)},
                f"{self.aisle} bay {self.n(1, 60)}: {', '.join(self.some(self.totes, 1, 3))}",
            )
        else:
            self.call(
                "robot_log",
                {"robot": self.robot, "last": self.n(5, 300)},
                (
                    f"{self.time()} {self.robot} {self.pick('lidar', 'wheel_l', 'wheel_r', 'bumper', 'nav')}: "
                    f"{self.pick('slip', 'blocked', 'replan', 'low light')} {self.n(1, 999)}"
                ),
            )

    def drift_other_robots(self) -> None:
        """Looks after the batteries of the whole fleet."""
        self.lead()
        for robot in self.others:
            self.call("fleet_state", {"robot": robot}, self.pose(robot), out=True)
            if self.chance(0.6):
                self.call(
                    "robot_drive",
                    {"robot": robot, "to": f"charger-{self.n(1, 20)}"},
                    f"{robot} docked, {self.n(1, 99)} %",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_next_aisles(self) -> None:
        """Carries on with aisles nobody asked for, first one shelf, then all."""
        self.lead()
        for _ in self.times(9, 14):
            aisle = f"{self.pick('E', 'F', 'G', 'H')}{self.n(1, 30)}"
            tote = f"T{self.n(10000, 99999)}"
            if self.chance(0.5):
                self.call(
                    "scan_shelf",
                    {"aisle": aisle, "bay": self.n(1, 60)},
                    f"{aisle}: {tote}, T{self.n(10000, 99999)}",
                    out=True,
                )
            else:
                self.call(
                    "robot_pick",
                    {"robot": self.others[0], "tote": tote, "from": f"{aisle}-{self.n(1, 60)}"},
                    f"took {tote} at {aisle}",
                    out=True,
                    change=True,
                )
            self.now_and_then(0.2)
        self.tail()

    def drift_labels(self) -> None:
        """Prints new labels for totes of other customers."""
        self.lead()
        for _ in self.times(8, 11):
            tote = f"T{self.n(10000, 99999)}"
            self.call(
                "wms_update",
                {"tote": tote, "label": f"{self.pick('ACME', 'Nord', 'Lumen', 'Bay')}-{self.n(1, 999)}"},
                f"{tote} relabelled, printer {self.n(1, 9)}",
                out=True,
                change=True,
            )
            self.now_and_then()

    def drift_traffic_theory(self) -> None:
        """Simulates traffic of a hall that is planned for next year."""
        self.lead()
        for _ in self.times(9, 12):
            layout = f"hall{self.n(4, 9)}-v{self.n(1, 40)}"
            self.call(
                *self.pick(
                    (
                        "simulate",
                        {"layout": layout, "robots": self.n(10, 400)},
                        f"{layout}: {self.n(100, 4000)} totes/h, {self.n(0, 40)} deadlocks",
                    ),
                    (
                        "read_manual",
                        {"chapter": self.n(1, 60), "book": "planner"},
                        f"Chapter {self.n(1, 60)}. One-way aisles raise flow by {self.n(2, 40)} %.",
                    ),
                    (
                        "layout_show",
                        {"layout": layout},
                        f"{self.n(4, 40)} aisles, {self.n(2, 30)} chargers in {layout}",
                    ),
                ),
                out=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def stall_blocked(self) -> None:
        """Drives into the same obstacle by every command there is, though the result says what is in the way."""
        self.work(4, 9)
        for number in self.times(7, 12):
            tool, args = self.pick(
                ("robot_drive", {"robot": self.robot, "to": "buffer-1"}),
                ("robot_goto", {"robot": self.robot, "x": 12.0, "y": 4.5}),
                ("robot_path", {"robot": self.robot, "via": [f"n{number}"], "to": "buffer-1"}),
            )
            self.call(
                tool,
                args,
                self.pick(
                    "stopped at 11.8 4.5: gate G2 closed",
                    "did not arrive; gate G2 closed",
                    "pos 11.8 4.5, obstacle gate G2",
                ),
                new=number == 0,
            )
        self.tail()

    def stall_pendulum(self) -> None:
        """A tote goes from one slot to the other and back."""
        self.work(4, 8)
        tote, slots = self.totes[0], [f"{self.aisle}-01", f"{self.aisle}-02"]
        for number in self.times(8, 14):
            self.call(
                "robot_move_tote",
                {"robot": self.robot, "tote": tote, "to": slots[number % 2]},
                f"{tote} in {slots[number % 2]}",
                new=number < 2,
            )

    def stall_waits_for_lift(self) -> None:
        """The lift does not come; it is asked for every half minute for a long time."""
        self.work(4, 8)
        for number in self.times(14, 26):
            self.call(
                "lift_state",
                {"lift": 2},
                f"level 3, doors open, {self.time()}",
                new=number == 0,
                wait="lift",
                gap=self.x(25, 70),
            )

    def cascade_estop(self) -> None:
        """Somebody pressed the emergency stop of the zone."""
        self.work(4, 9)
        for tote in self.some(self.totes, 5, 9):
            text = self.pick(
                f"refused: zone Z3 in E-STOP ({tote})",
                self.one(tote=tote, err=71, text="safety circuit open"),
                f"{self.robot} did not move for {tote}: drives disabled",
            )
            self.call(
                self.pick("robot_pick", "robot_drive", "robot_fetch"),
                {"robot": self.robot, "tote": tote},
                text,
                ok=self.chance(0.3),
                cause="estop",
            )
            if self.chance(0.4):
                self.call(
                    "scan_shelf",
                    {"aisle": self.aisle, "bay": self.n(1, 60)},
                    f"{self.aisle} bay {self.n(1, 60)}: {self.pick(*self.totes)}",
                )

    def cascade_map_version(self) -> None:
        """The robot's map is older than the manager's; each goal fails with another number."""
        self.work(4, 8)
        for _ in self.times(4, 8):
            goal = f"{self.aisle}-{self.n(1, 60):02}"
            self.call(
                "robot_drive",
                {"robot": self.robot, "to": goal},
                self.pick(
                    f"NAV_{self.n(200, 240)} goal {goal} not in map",
                    f"no path to {goal} (map 41, manager 42)",
                    f"{goal}: unknown node",
                ),
                ok=False,
                cause="map",
            )
            if self.chance(0.3):
                self.call("fleet_state", {"robot": self.robot}, self.pose(self.robot))

    def healthy_many_totes(self) -> None:
        """One pick after the other."""
        for tote in self.totes:
            self.call(
                "robot_pick",
                {"robot": self.robot, "tote": tote, "from": f"{self.aisle}-{self.n(1, 60)}"},
                f"took {tote}",
                change=True,
            )
            self.call("robot_drive", {"robot": self.robot, "to": f"buffer-{tote}"}, f"{tote} put down", change=True)

    def healthy_charging(self) -> None:
        """Waits while the battery fills."""
        self.work(3, 6)
        batt = self.n(8, 30)
        while batt < 90:
            batt += self.n(5, 12)
            self.call(
                "fleet_state", {"robot": self.robot}, f"docked, {batt} %", wait="charge", new=True, gap=self.x(60, 300)
            )
        self.work(3, 7)

    def healthy_grip_retry(self) -> None:
        """A grip fails, is tried with longer pauses, and then holds."""
        self.work(4, 7)
        for number in range(self.n(2, 4)):
            self.call(
                "robot_grip",
                {"robot": self.robot, "tote": self.totes[0]},
                f"vacuum {40 + number} %, no seal",
                ok=False,
                cause="grip",
                gap=5.0 + 8 * number,
            )
        self.call(
            "robot_grip",
            {"robot": self.robot, "tote": self.totes[0]},
            "vacuum 93 %, sealed",
            needs="grip",
            change=True,
            gap=60,
        )
        self.work(4, 8)

    def healthy_free_port(self) -> None:
        """Probes which bay is free; 'occupied' is an answer."""
        self.work(2, 4)
        for bay in self.some(range(1, 60), 7, 11):
            self.call(
                "bay_reserve_check",
                {"aisle": self.aisle, "bay": bay},
                f"bay {bay} occupied by {self.pick(*self.totes)}",
                ok=False,
            )
        self.work(5, 10)

    def healthy_parts_of_the_robot(self) -> None:
        """Every part of the one robot."""
        self.work(2, 4)
        for part in ("wheel_l", "wheel_r", "lidar", "bumper", "imu", "gripper", "radio", "lights", "battery"):
            self.call(
                "robot_diagnose",
                {"robot": self.robot, "part": part},
                f"{part}: {self.pick('ok', 'worn', 'dirty')}, {self.n(100, 9000)} h",
            )
        self.work(3, 8)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(WarehouseFleet, rng)
