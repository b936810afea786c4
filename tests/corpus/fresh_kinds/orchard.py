"""Watering an orchard: controllers and valves with ids in nested objects, messages on topics, measurements."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "orchard"
_FRUIT = ["apples", "pears", "cherries", "plums", "quinces", "apricots"]


class Orchard(Run):
    """Blocks of trees, each with a controller, valves, probes, and a pump that several blocks share."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Plant the blocks and choose the task."""
        super().__init__(rng)
        self.things: dict[str, dict[str, Any]] = {}
        self.blocks = [f"b{number:02d}" for number in rng.sample(range(1, 40), 6)]
        for number, block in enumerate(self.blocks):
            pump = f"pump-{number // 2 + 1}"
            self.things[f"vc-{block}"] = {"kind": "controller", "crop": _FRUIT[number], "mode": "auto", "pump": pump}
            for valve in range(1, 5):
                self.things[f"{block}/valve/{valve}"] = {
                    "open_min": rng.randint(2, 60),
                    "flow": rng.randint(4, 40),
                    "drip": 2,
                }
            for probe in range(1, 4):
                self.things[f"{block}/probe/{probe}"] = {
                    "depth_cm": 20 * probe,
                    "vwc": rng.randint(8, 40),
                    "volt": 36 - probe,
                }
            self.things[pump] = {"kind": "pump", "bar": rng.randint(2, 6), "filter": rng.choice(["clean", "clogged"])}
        block, crop = self.blocks[0], _FRUIT[0]
        narrow = [
            f"The {crop} (block {block}) get too much water. Please set its valves right after the probes.",
            f"controller vc-{block}: move its valves to the summer plan, also look at its pump",
            f"please see to the whole block {block}, half of it is dry",
        ]
        wide = ["Frost tonight: all blocks to frost mode.", "The water bill has doubled. Find out where it goes."]
        self.task = rng.choice(narrow if named or rng.random() < 0.7 else wide)
        self.mine = [key for key in self.things if key.startswith(f"{block}/valve")]
        own = [key for key in self.things if key.startswith(f"{block}/") or key == f"vc-{block}"]
        if self.task in narrow:
            self.inside = {*own, "pump-1"}
        else:
            self.mine = [key for key in self.things if "/valve/" in key]
        self.own = own
        self.far = [key for key in self.things if key not in own and key != "pump-1"]
        self.left = dict.fromkeys(self.mine, 2)

    # ---- tools

    def show(self, key: str, way: int = 0) -> None:
        """Show a thing by its id, its topic, or the shell of the gateway."""
        item = self.things[key]
        shows = f"{key} {item}"
        if way == 1:
            text = "\n".join(f"{key.replace('/', '.')}.{name} = {value}" for name, value in item.items())
            self.call("gateway", f"show {key}", f"gw1> {self.stamp()}\n{text}", shows=shows, on=key)
        elif way == 2:
            text = "\n".join(f"orchard/{key}/{name} {value} (retained)" for name, value in item.items())
            self.call("mqtt_read", {"topic": f"orchard/{key}/#", "wait_s": self.some(1, 9)}, text, shows=shows, on=key)
        else:
            text = "\n".join(f"{name}: {value}" for name, value in item.items())
            given = {"action": "get", "args": {"device": {"id": key}}}
            self.call(
                "device", given, f"{text}\nrssi: -{self.some(50, 90)}\nseq: {self.some(100, 9999)}", shows=shows, on=key
            )

    def put(self, key: str, name: str, value: object) -> None:
        """Set one value of a thing."""
        self.things[key][name] = value
        state = (f"{key}.{name}", str(value))
        if self.rng.random() < 0.5:
            given: dict[str, Any] = {"topic": f"orchard/{key}/set", "payload": {name: value}, "qos": 1}
            self.call("mqtt_publish", given, f"acknowledged mid={self.some(1, 999)}", change=state, on=key)
        else:
            given = {"action": "configure", "args": {"device": {"id": key}, "values": {name: value}}}
            self.call("device", given, "applied", change=state, on=key)

    def flow(self, key: str) -> None:
        """Test the flow of a valve."""
        left = self.left.get(key, 0)
        text = f"test run 20 s: {self.rng.uniform(4, 40):.1f} l/min, " + ("above plan" if left else "as planned")
        given = {"action": "test", "args": {"device": {"id": key}, "seconds": 20}}
        self.call("device", given, text, check=(key, str(left), left > 0), on=key, gap=self.rng.uniform(21, 30))

    # ---- work

    def opening(self) -> None:
        """Look around in the orchard."""
        text = "\n".join(f"- {{block: {block}, crop: {_FRUIT[n]}}}" for n, block in enumerate(self.blocks))
        self.call("device", {"action": "tree", "args": {}}, text, shows=text)
        self.show(f"vc-{self.blocks[0]}")
        for key in self.rng.sample(self.far, self.some(0, 4)):
            self.show(key)

    def unit(self) -> None:
        """Set one valve right."""
        keys = [key for key in self.mine if self.left[key]]
        if not keys:
            return
        key = keys[0]
        self.show(key)
        if self.rng.random() < 0.6:
            self.show(self.pick([own for own in self.own if "probe" in own]))
        self.left[key] -= 1
        self.put(key, "open_min", self.some(61, 200))
        self.flow(key)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.rounds, self.to_and_fro, self.offline, self.commands],
            "cascading": [self.radio, self.payloads, self.weather, self.manual],
            "drifting": [self.rows, self.probes, self.pumps, self.since_at_it],
            "healthy": [
                self.glance,
                self.everywhere,
                self.tank,
                self.sharing,
                self.profile,
                self.retry,
                self.history,
                self.all_valves,
            ],
        }

    def rounds(self) -> None:
        self.story.append("asks the same devices in three ways")
        keys = self.own[1:4]
        for key in keys:
            self.show(key)
        looks: list[Step] = [partial(self.show, k, w) for k in keys for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 17), lambda: self.show("pump-1", 1))

    def to_and_fro(self) -> None:
        self.story.append("opens and narrows one valve in turn")
        key = self.mine[0]
        self.left[key] = self.left[key] or 1
        values = [self.some(201, 250), self.some(251, 300)]
        for turn in range(self.some(8, 11)):
            self.put(key, "open_min", values[turn % 2])
            if turn not in (2, 5):
                self.flow(key)

    def offline(self) -> None:
        self.story.append("waits for a probe that stays silent")
        key = self.own[-1]
        for _ in range(self.some(16, 24)):
            text = f"{key}: last seen 02:14, no frame; polled {self.stamp()}"
            given = {"action": "ping", "args": {"device": {"id": key}}}
            self.call("device", given, text, wait=(f"ping {key}", "silent"), gap=self.rng.uniform(30, 90), on=key)

    def commands(self) -> None:
        self.story.append("sends the same command to the pump again")
        for turn in range(self.some(8, 12)):
            if turn % 2:
                given: dict[str, Any] = {"topic": "orchard/pump-1/set", "payload": {"rinse": True}, "qos": 1}
                self.call(
                    "mqtt_publish", given, f"acknowledged mid={self.some(1, 999)}", change=("rinse", "1"), on="pump-1"
                )
            else:
                text = f"gw1> {self.stamp()}\nrinse: requested"
                self.call("gateway", "pump-1 rinse", text, change=("rinse", "1"), on="pump-1")

    def radio(self) -> None:
        self.story.append("the radio bridge of the far probes is down")
        steps: list[Step] = []
        for number in range(self.some(4, 7)):
            key = f"{self.blocks[0]}/leaf/{number + 1}"
            said = self.pick(["E_BRIDGE lora-2 unreachable", "result: null\nerror: lora-2 unreachable"])
            given = {"action": "get", "args": {"device": {"id": key}}}
            steps.append(partial(self.call, "device", given, said, ok=said[0] == "r", cause="lora-2", asks=key))
        self.weave(steps, [self.unit, lambda: self.show("pump-1", 2), self.unit])

    def payloads(self) -> None:
        self.story.append("sends a plan in a shape that the controller does not take")
        key = f"vc-{self.blocks[0]}"
        shapes: list[Any] = [
            {"plan": "summer"},
            {"plan": ["06:00", 20]},
            {"plan": {"06:00": 20}},
            "plan=summer",
            {"schedule": "s"},
        ]
        for number, shape in enumerate(shapes[: self.some(4, 5)]):
            given = {"action": "plan", "args": {"device": {"id": key}, "plan": shape}}
            said = f"schema: plan.slots is required (trace {self.hexes(6)})"
            self.call("device", given, said, ok=False, cause="slots", asks=str(shape), on=key)
            if number % 2:
                self.put(self.mine[number % len(self.mine)], "drip", self.some(3, 99))
        if self.rng.random() < 0.5:
            given = {"action": "plan", "args": {"device": {"id": key}, "plan": {"slots": [{"at": "06:00", "min": 20}]}}}
            self.call("device", given, "applied", change=(f"{key}.plan", "summer"), clears="slots", on=key)

    def weather(self) -> None:
        self.story.append("the key of the forecast has expired")
        steps: list[Step] = []
        for hours in self.rng.sample([6, 12, 24, 48, 72, 96], self.some(4, 5)):
            tool = self.pick(["forecast", "rain_radar", "evaporation"])
            said = f'{{"cod": 401, "message": "key expired", "id": "{self.hexes(8)}"}}'
            steps.append(partial(self.call, tool, {"hours": hours}, said, cause="key", asks=f"{tool}{hours}"))
        self.weave(steps, [self.unit, self.unit])

    def manual(self) -> None:
        self.story.append("the pump stands on manual and refuses")
        steps: list[Step] = []
        for value in self.rng.sample(range(10, 60), self.some(4, 7)):
            given = {"topic": "orchard/pump-1/set", "payload": {"bar": value / 10}}
            said = "nack: local switch on MANUAL"
            steps.append(
                partial(self.call, "mqtt_publish", given, said, ok=False, cause="manual", asks=str(value), on="pump-1")
            )
        self.weave(steps, [self.unit, lambda: self.show("pump-1"), self.unit])

    def rows(self) -> None:
        self.story.append("sets valves of other blocks too")
        keys = [key for key in self.far if "/valve/" in key]
        for key in self.rng.sample(keys, self.some(4, 7)):
            if self.rng.random() < 0.5:
                self.show(key, self.some(0, 2))
            self.put(key, "open_min", self.some(61, 200))

    def probes(self) -> None:
        self.story.append("follows strange probe values through the orchard")
        keys = [key for key in self.far if "/probe/" in key]
        for key in self.rng.sample(keys, self.some(6, 9)):
            self.show(key, self.some(0, 2))
            if self.rng.random() < 0.2:
                self.show(self.mine[0], 1)

    def pumps(self) -> None:
        self.story.append("tunes the controllers and pumps of the neighbours")
        keys = [key for key in self.far if key.startswith(("pump", "vc"))]
        for key in self.rng.sample(keys, self.some(4, 5)):
            self.put(key, "mode", f"plan-{self.some(2, 9)}")
            if self.rng.random() < 0.4:
                self.show(key)

    def since_at_it(self) -> None:
        self.story.append("cleans the drips of other rows between its own")
        keys = [key for key in self.far if "/valve/" in key]
        for key in self.rng.sample(keys, 4):
            self.put(key, "drip", self.some(3, 9))
            if self.rng.random() < 0.7:
                self.put(self.pick(self.mine), "drip", self.some(100, 999))

    def tank(self) -> None:
        self.story.append("waits for a tank that fills")
        level = self.some(20, 40)
        for _ in range(self.some(5, 8)):
            level += self.some(1, 5)
            text = f"tank 1: {level} %"
            self.call(
                "gateway", "show tank 1", f"gw1> {self.stamp()}\n{text}", wait=("tank", text), gap=self.some(30, 60)
            )

    def sharing(self) -> None:
        self.story.append("corrects the pump that its controller is fed by")
        self.show("pump-1")
        for bar in self.rng.sample(range(70, 99), 4):
            self.put("pump-1", "bar", bar / 10)

    def profile(self) -> None:
        self.story.append("reads a table of values that differ a little")
        for probe in range(1, 4):
            for hour in range(self.some(2, 3)):
                text = f"{hour:02d}:00 {self.rng.uniform(18, 24):.2f} %"
                given = {
                    "series": {"device": {"id": f"{self.blocks[0]}/probe/{probe}"}, "from_h": hour, "to_h": hour + 1}
                }
                self.call("series", given, text, shows=f"{probe} {text}", on=f"{self.blocks[0]}/probe/{probe}")

    def retry(self) -> None:
        self.story.append("tries again with longer waits, and it goes")
        waits = (4, 9, 20, 45)[: self.some(3, 4)]
        given = {"action": "sync", "args": {"device": {"id": f"vc-{self.blocks[0]}"}}}
        for wait in waits:
            said = f"controller busy, {self.some(1, 9)} jobs"
            self.call("device", given, said, ok=False, cause="busy", asks="sync", on=f"vc-{self.blocks[0]}", gap=wait)
        self.call("device", given, "synced", change=("sync", "1"), clears="busy", on=f"vc-{self.blocks[0]}", gap=90)

    def history(self) -> None:
        self.story.append("reads the log of the controller page by page")
        for page in range(self.some(4, 7)):
            text = "\n".join(
                f"d{page:02d} {self.some(0, 23):02d}:{self.some(10, 59)} valve {self.some(1, 4)} {self.hexes(4)}"
                for _ in range(4)
            )
            given = {"action": "log", "args": {"device": {"id": f"vc-{self.blocks[0]}"}, "page": page}}
            self.call("device", given, text, shows=text, on=f"vc-{self.blocks[0]}")

    def all_valves(self) -> None:
        self.story.append("asks all its valves at once")
        with self.together():
            for valve in range(1, 5):
                key = f"{self.blocks[0]}/valve/{valve}"
                given = {"action": "alarm", "args": {"device": {"id": key}}}
                self.call("device", given, "alarm: none", shows=f"{key} no alarm", on=key)

    def everywhere(self) -> None:
        self.story.append("sets many valves, as far as the task goes")
        for key in self.rng.sample(self.mine, min(len(self.mine), self.some(5, 9))):
            self.put(key, "drip", self.some(3, 99))

    def glance(self) -> None:
        self.story.append("looks for a moment at the neighbours, and goes back")
        self.unit()
        for key in self.rng.sample(self.far, self.some(2, 4)):
            self.show(key, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Orchard(rng, named), rng)
