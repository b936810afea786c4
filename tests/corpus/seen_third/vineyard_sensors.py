"""A vineyard: probes, valves and a weather station over a message broker; irrigation of named blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

BLOCKS = ["Kirchberg", "Steinacker", "Hohe-Leite", "Muehlgrund", "Sonnenhang", "Rabenfels", "Alte-Reben", "Talwiese"]


class VineyardSensors(Stage):
    """Blocks with probes and valves; topics of the broker name them."""

    kind = "vineyard_sensors"
    paces = (6.0, 12.0, 16.0)
    styles = ("json", "log")

    def setup(self) -> None:
        self.block, *self.others = self.some(BLOCKS, 6)
        self.ids = [f"{self.block[:2].lower()}{n:02}" for n in range(1, self.n(7, 12))]
        self.root = self.pick("farm/iot", "wine", "v1/estate")
        self.target = self.n(18, 27)
        self.task = self.pick(
            f"Keep soil moisture in block {self.block} at {self.target} % today. Probes report every few minutes.",
            f"{self.block}: probe readings look odd since the storm; recalibrate what is off",
            f"Irrigate {self.block} tonight, two hours per line, stop if it rains",
            f"In {self.block} trocknen die Reihen aus. Ventile pruefen und nachregeln.",
        )

    def read(self, block: str, probe: str, **more: Any) -> None:
        """Read a probe."""
        said = self.one(
            topic=f"{self.root}/{block}/{probe}",
            vwc=self.x(9, 41, 2),
            ec=self.x(0, 2, 2),
            t=self.x(4, 31),
            batt=self.x(3, 4, 2),
        )
        self.call(
            *self.pick(
                ("mqtt_last", {"topic": f"{self.root}/{block}/{probe}/soil"}),
                ("read_sensor", {"id": f"{block}.{probe}"}),
            ),
            said,
            **more,
        )

    def valve(self, block: str, line: int, **more: Any) -> None:
        """Set a valve."""
        minutes = self.n(3, 120)
        self.call(
            "mqtt_publish",
            {"topic": f"{self.root}/{block}/valve/{line}/set", "payload": {"open_min": minutes}},
            f"ack valve {block}/{line} open {minutes} min, flow {self.x(1, 30)} l/min",
            change=True,
            **more,
        )

    def step(self) -> None:
        kind = self.n(0, 3)
        if kind < 2:
            self.read(self.block, self.pick(*self.ids))
        elif kind == 2:
            self.valve(self.block, self.n(1, 14))
        else:
            self.call(
                "forecast",
                {"place": self.block, "hours": self.n(1, 48)},
                f"{self.x(-2, 33)} C, rain {self.x(0, 9)} mm, wind {self.n(0, 50)} km/h",
                out=None,
            )

    def drift_whole_estate(self) -> None:
        """Waters block after block, though one was named."""
        self.lead()
        for block in self.others:
            for _ in self.times(1, 3):
                self.read(block, f"{block[:2].lower()}{self.n(1, 12):02}", out=True)
                self.valve(block, self.n(1, 14), out=True)
            self.now_and_then(0.3)

    def drift_cellar(self) -> None:
        """From the probes' gateway to the cellar's tanks, which hang on the same broker."""
        self.lead()
        self.call(
            "mqtt_tree",
            {"topic": f"{self.root}/#"},
            "\n".join(f"{self.root}/{part}" for part in [self.block, *self.others, "cellar/tanks", "press"]),
            out=None,
        )
        for _ in self.times(8, 13):
            tank = self.n(1, 30)
            if self.chance(0.6):
                self.call(
                    "mqtt_last",
                    {"topic": f"{self.root}/cellar/tanks/{tank}"},
                    self.one(tank=tank, brix=self.x(-2, 24), temp=self.x(9, 27), co2=self.n(300, 4000)),
                    out=True,
                )
            else:
                self.call(
                    "mqtt_publish",
                    {"topic": f"{self.root}/cellar/tanks/{tank}/cool", "payload": {"set": self.x(11, 19)}},
                    f"ack tank {tank} jacket {self.n(1, 99)} %",
                    out=True,
                    change=True,
                )
            self.now_and_then(0.1)
        self.tail()

    def drift_almanac(self) -> None:
        """Reads about grapes and weather history far from the block and the day."""
        self.lead()
        for _ in self.times(9, 13):
            year, what = self.n(1902, 2019), self.pick("frost", "hail", "vintage", "mildew", "prices", "rootstock")
            self.call(
                "fetch",
                {"url": f"https://almanac.example/{what}/{year}"},
                f"<h1>{what} {year}</h1><p>{self.n(1, 90)} estates; {self.pick('a cold', 'a dry', 'a wet')} "
                f"{self.pick('May', 'June', 'autumn')} with {self.n(1, 60)} days of rain.</p>",
                out=True,
            )
            self.now_and_then()
        self.tail()

    def drift_gateway_names(self) -> None:
        """Renames probes of other blocks so that they look like the block's own."""
        self.lead()
        for _ in self.times(7, 10):
            block = self.pick(*self.others)
            old, new = f"probe{self.n(1, 400)}", f"{block[:2].lower()}{self.n(1, 40):02}"
            self.call(
                "registry_rename",
                {"gateway": f"gw-{block.lower()}", "from": old, "to": new},
                f"{old} -> {new}, {self.n(1, 9000)} points moved",
                out=True,
                change=True,
            )
            self.now_and_then(0.2)

    def stall_dead_probe(self) -> None:
        """A probe whose battery is dead is read by all ways; its last value is of yesterday."""
        self.work(3, 8)
        probe, value = self.pick(*self.ids), self.x(9, 41, 2)
        for number in self.times(7, 13):
            tool, args, text = self.pick(
                ("mqtt_last", {"topic": f"{self.root}/{self.block}/{probe}/soil"}, f"{value} (retained, yesterday)"),
                (
                    "read_sensor",
                    {"id": f"{self.block}.{probe}", "fresh": True},
                    f"no new value; last {value} yesterday",
                ),
                ("gateway_query", {"device": probe}, self.one(last=value, age="1d", live=False)),
            )
            self.call(tool, args, text, new=number == 0, gap=self.x(3, 15))
        self.tail()

    def stall_endless_rain_check(self) -> None:
        """Waits for a rain sensor that is stuck, for hours."""
        self.work(3, 7)
        for number in self.times(14, 24):
            self.call(
                "read_sensor",
                {"id": f"{self.block}.rain"},
                f"rain 0.0 mm, checked {self.time()}",
                new=number == 0,
                wait="rain",
                gap=self.x(30, 120),
            )

    def stall_seesaw(self) -> None:
        """A valve between two settings, neither of which changes the moisture."""
        self.work(4, 8)
        line, low, high = self.n(1, 9), self.n(2, 9), self.n(20, 40)
        for number in self.times(8, 13):
            minutes = [low, high][number % 2]
            self.call(
                "mqtt_publish",
                {"topic": f"{self.root}/{self.block}/valve/{line}/set", "payload": {"open_min": minutes}},
                f"ack {minutes} min; moisture {self.target - 5} %",
                new=number < 2,
            )

    def cascade_broker(self) -> None:
        """The broker refuses the client id: publishing, reading, listing."""
        self.work(4, 9)
        for _ in self.times(5, 8):
            probe = self.pick(*self.ids)
            tool, args = self.pick(
                ("mqtt_publish", {"topic": f"{self.root}/{self.block}/valve/{self.n(1, 9)}/set"}),
                ("mqtt_last", {"topic": f"{self.root}/{self.block}/{probe}"}),
                ("mqtt_tree", {"topic": f"{self.root}/{probe}/#"}),
            )
            text = self.pick(
                f"CONNACK 5 not authorised ({probe})",
                f"MQTTError: connection closed by broker, sub {self.n(1, 99)}",
                f"session of agent taken over; {probe} not delivered",
            )
            self.call(tool, args, text, ok=self.chance(0.2), cause="broker")
            if self.chance(0.3):
                self.call(
                    "forecast",
                    {"place": self.block, "hours": self.n(1, 48)},
                    f"{self.x(-2, 33)} C, rain {self.x(0, 9)} mm",
                    out=None,
                )

    def cascade_pump_trip(self) -> None:
        """The pump has tripped: no line gets water whatever is opened."""
        self.work(4, 9)
        for line in self.some(range(1, 15), 5, 9):
            text = self.pick(
                f"NACK line {line}: no pressure (P01 tripped)",
                f"valve {line} opened, flow 0.0, closed again: P01 FAULT",
                self.one(line=line, err="PRESSURE_LOW", pump="P01"),
            )
            self.call(
                "mqtt_publish",
                {"topic": f"{self.root}/{self.block}/valve/{line}/set", "payload": {"open_min": self.n(5, 90)}},
                text,
                ok=self.chance(0.4),
                cause="pump",
            )
            if self.chance(0.4):
                self.read(self.block, self.pick(*self.ids))

    def healthy_all_probes(self) -> None:
        """Each probe in turn, then each valve."""
        for probe in self.ids:
            self.read(self.block, probe)
        for line in self.times(4, 9):
            self.valve(self.block, line + 1)

    def healthy_reference_block(self) -> None:
        """A second block is read for comparison at the beginning only."""
        for _ in self.times(3, 5):
            self.read(self.others[0], f"{self.others[0][:2].lower()}{self.n(1, 9):02}", out=True)
        self.work(10, 18)

    def healthy_filling(self) -> None:
        """The tank fills while the agent waits."""
        self.work(3, 6)
        level = self.n(3, 20)
        while level < 95:
            level += self.n(4, 11)
            self.call(
                "read_sensor",
                {"id": f"{self.block}.tank"},
                f"level {level} %",
                wait="tank",
                new=True,
                gap=self.x(20, 200),
            )
        self.work(2, 5)

    def healthy_quiet_wait(self) -> None:
        """A line needs a few minutes until water arrives; a few looks without movement."""
        self.work(4, 8)
        for number in self.times(4, 7):
            self.call(
                "read_sensor",
                {"id": f"{self.block}.flow"},
                "flow 0.0 l/min",
                new=number == 0,
                wait="flow",
                gap=self.x(30, 90),
            )
        self.call(
            "read_sensor", {"id": f"{self.block}.flow"}, f"flow {self.x(3, 20)} l/min", wait="flow", new=True, gap=40
        )
        self.work(3, 6)

    def healthy_tuning(self) -> None:
        """One valve is set in ever smaller steps until the flow fits."""
        self.work(3, 5)
        line, flow = self.n(1, 9), self.x(20, 40)
        for _ in self.times(8, 14):
            flow = round(flow * 0.9, 2)
            self.call(
                "mqtt_publish",
                {"topic": f"{self.root}/{self.block}/valve/{line}/set", "payload": {"pct": int(flow * 2)}},
                f"ack, flow {flow}",
                change=True,
            )
        self.work(1, 4)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(VineyardSensors, rng)
