"""Incident response at a network operator: devices, their configs and counters, alarms, tickets."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world2 import Place, Scene, Step, produce

KIND = "incident response at a network operator"
CITIES = ("mvl", "trg", "osk", "lbn", "qrm", "hds")


class Network(Scene):
    """A ring of routers; one or two of them are ill."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.city, *elsewhere = rng.sample(CITIES, 3)
        number = rng.randint(2, 6)
        self.ill = [f"agg{number:02}.{self.city}", f"pe{number:02}.{self.city}"]
        self.near = [f"rr{n:02}.{self.city}" for n in (1, 2)]
        self.others = [f"agg{number + n:02}.{self.city}" for n in (1, 2, 3)]
        self.others += [f"pe{n:02}.{place}" for place in elsewhere for n in (1, 2, 3)]
        self.ports = [f"{a}/{b}/{c}" for a in (0, 1) for b in (0, 1, 2) for c in (0, 1, 2, 3)]
        self.ticket = f"INC{rng.randint(40000, 98000)}"
        self.task = rng.choice(
            [
                (
                    "{t}: loss behind {a} and {b} since 04:10. Find the cause on these two, repair "
                    "it there, and keep the ticket up to date."
                ),
                (
                    "Ticket {t} is yours. Affected: {a}, {b}. Check ports, BGP and optics, bring the packet loss "
                    "down, and write what you did into the ticket."
                ),
                (
                    "Loss alarms on {a} and {b} ({t}). Work on them until the error counters stand still; changes "
                    "only where the cause is."
                ),
            ]
        ).format(t=self.ticket, a=self.ill[0], b=self.ill[1])

    def where(self, device: str) -> Place:
        """Routers of the ticket and their neighbours by BGP are inside."""
        return "in" if device in self.ill or device in self.near else "out"

    def cli(
        self, device: str, command: str, text: str, *facts: str, change: bool = False, gap: float | None = None
    ) -> None:
        """A command on a device."""
        prompt = f"{device}> {command}\n" if self.rng.random() < 0.4 else ""
        self.call(
            "device_cli",
            {"host": device, "cmd": command},
            f"{prompt}{text}\n{device}> ",
            facts=facts,
            uses=(f"login {device}",),
            place=self.where(device),
            far=device in self.near,
            change=change,
            gap=gap,
        )

    def port(self, device: str, port: str) -> None:
        """One port's counters."""
        rng = random.Random(device + port + str(self.day))
        text = (
            f"te-{port} up, line protocol up\n  MTU {rng.choice([1514, 9100])}, BW 10G, load {rng.randint(1, 240)}"
            f"/255\n  {rng.randint(10**6, 10**9)} packets in, {rng.choice([0, 0, 3, 1881, 240])} errors, "
            f"{rng.choice([0, 0, 12, 411])} CRC\n  Last clearing of counters never, now {self.stamp('clock')}"
        )
        self.cli(device, self.pick(["show interface", "sh int"]) + f" te-{port}", text, f"port {device} {port}")

    def optics(self, device: str, port: str) -> None:
        """Light levels."""
        rng = random.Random(port + device)
        power = -rng.uniform(1, 19)
        text = (
            f"te-{port}  rx {power:.2f} dBm  tx {-rng.uniform(0, 3):.2f} dBm  temp {rng.randint(29, 61)} C  bias 38 mA"
        )
        self.cli(device, f"show optics te-{port}", text, f"light {device} {port}")

    def bgp(self, device: str) -> None:
        """Sessions."""
        rng = random.Random("bgp" + device)
        lines = [
            f"10.{rng.randint(0, 60)}.{rng.randint(0, 255)}.{n:<4} 64{rng.randint(500, 599)}  "
            f"{rng.choice(['Established', 'Established', 'Active', 'Idle(adm)'])}  {rng.randint(0, 90000)}"
            for n in range(1, rng.randint(6, 14))
        ]
        if device in self.ill:
            lines = [f"{one}  64500  Established  {rng.randint(0, 90000)}" for one in self.near] + lines
        self.cli(device, "show bgp summary", "Neighbor  AS  State  PfxRcd\n" + "\n".join(lines), f"bgp {device}")

    def config(self, device: str, section: str) -> None:
        """A section of the running config."""
        rng = random.Random(section + device)
        text = f"{section}\n" + "\n".join(
            f"  {rng.choice(['set', 'permit', 'match', 'policy', 'queue'])} {rng.choice(['v4', 'v6', 'mpls'])} "
            f"{rng.randint(10, 99)} {rng.choice(['in', 'out'])}"
            for _ in range(rng.randint(4, 12))
        )
        command = self.pick([f"show running-config {section}", f"sh run | section {section}"])
        self.cli(device, command, text, f"config {device} {section}")

    def change(self, device: str, line: str, why: str) -> None:
        """A line is put into the config and committed."""
        self.call(
            "config_push",
            {"device": device, "lines": [line], "comment": f"{self.ticket} {why}", "commit": True},
            f"<reply><ok/><commit-id>{self.rng.randint(10**9, 10**10)}</commit-id></reply>",
            facts=(f"set {device} {line}",),
            uses=(f"lock {device}",),
            place=self.where(device),
            change=True,
        )

    def log(self, device: str, page: int) -> None:
        """A page of the log; other entries on each page."""
        rng = random.Random(f"{device}{page}{self.day}")
        words = ["LINK-3-UPDOWN te-", "BGP-5-ADJ nbr 10.4.", "OPTIC-4-RXLOW te-", "LDP-5-SESS ", "SYS-6-TTY "]
        text = "\n".join(
            f"Mar {self.day:2} 0{rng.randint(2, 5)}:{rng.randint(10, 59)}:{rng.randint(10, 59)} "
            f"%{rng.choice(words)}{rng.randint(0, 1)}/{rng.randint(0, 2)} {rng.choice(['down', 'up', 'flap', 'reset'])}"
            for _ in range(rng.randint(5, 14))
        )
        arguments = {"source": device, "from_line": page * 200, "to_line": page * 200 + 199}
        self.call("syslog", arguments, text, facts=(f"log {device} {page}",), place=self.where(device))

    def note(self, text: str) -> None:
        """An entry in the ticket."""
        reply = json.dumps({"ticket": self.ticket, "entry": self.rng.randint(2, 90), "saved": self.stamp()})
        self.call(
            "ticket_update", {"id": self.ticket, "text": text}, reply, facts=("note " + text,), place="in", change=True
        )

    def alarms(self) -> None:
        """What is red now."""
        rows = [
            {"dev": one, "sev": self.pick([2, 3, 4]), "what": self.pick(["loss", "crc", "rx low"])} for one in self.ill
        ]
        self.call("alarms", {"region": self.city, "open": True}, json.dumps(rows), facts=("alarms first",))

    def steps(self) -> list[Step]:
        part = functools.partial
        steps: list[Step] = [("", self.alarms)]
        for device in self.ill:
            steps.append((device, part(self.bgp, device)))
            looks: list[Step] = [("", part(self.log, device, page)) for page in range(3)]
            for port in self.some(self.ports, 5):
                looks.append((device, part(self.port, device, port)))
                looks.append((device, part(self.optics, device, port)))
            looks += [
                (device, part(self.config, device, one)) for one in self.some(["qos", "policy", "mpls", "acl"], 3)
            ]
            steps += self.some(looks, len(looks))
            port = self.pick(self.ports)
            steps.append(
                ("lock", part(self.change, device, f"interface te-{port} carrier-delay up 3000", "dampen flaps"))
            )
            steps.append(("", part(self.note, f"{device}: carrier delay set on te-{port}, watching")))
        steps.append(("", part(self.note, f"light level on {self.ill[1]} weak, field team asked to clean")))
        return steps

    def one_counter_in_many_words(self) -> None:
        """The CRC counter of one port stands still at a value that is looked up in every way."""
        device, port, count = self.ill[0], self.pick(self.ports), self.rng.randint(1200, 90000)
        fact = f"crc {device} {port}"
        for number in range(self.rng.randint(9, 18)):
            way = self.rng.randrange(6)
            if way < 3:
                command = (
                    f"show interface te-{port} | inc CRC",
                    f"sh int te-{port} errors",
                    f"show counters te-{port} crc",
                )[way]
                text = (f"  {count} CRC, 0 frame, 0 overrun", f"te-{port}: crc={count} frame=0", f"CRC{count:>14}")[way]
                self.cli(device, command, text, fact)
            elif way == 3:
                oid = f"ifInCrc.{100 + self.ports.index(port)}"
                self.call(
                    "snmp_get", {"target": device, "oid": oid}, f"{oid} = Counter64: {count}", facts=(fact,), place="in"
                )
            elif way == 4:
                body = {"series": f"{device}.te-{port}.crc", "last": count, "asked": self.stamp()}
                window = f"-{self.pick([5, 10, 15, 30])}m"
                self.call(
                    "metrics",
                    {"q": f"crc{{{device},{port}}}", "from": window},
                    json.dumps(body),
                    facts=(fact,),
                    place="in",
                )
            else:
                self.cli(
                    device,
                    f"sh int te-{port} | i CRC|input err",
                    f"  {count} CRC, 0 frame ({self.stamp('clock')})",
                    fact,
                )
            if number == 4 and self.rng.random() < 0.6:
                self.log(device, 7)

    def mtu_between_tried_values(self) -> None:
        """The MTU goes back and forth between values that did not help."""
        device, port = self.ill[0], self.pick(self.ports)
        for mtu in self.rng.choice([(9000, 9192), (1514, 9192)]) * self.rng.choice((4, 5)):
            self.change(device, f"interface te-{port} mtu {mtu}", self.pick(["try", "mtu", "again", "path mtu"]))
            text = f"sent 50, received 31, lost 38 %  (df, size 1472, {self.rng.uniform(2, 6):.1f} ms)"
            self.call(
                self.pick(["ping", "device_ping"]),
                {"from": device, "to": self.near[0]},
                text,
                facts=self.again("loss"),
                place="in",
            )

    def looking_at_a_cancelled_job(self) -> None:
        """The upgrade job was cancelled by the scheduler, and the agent goes on asking."""
        job = f"J-{self.rng.randint(1000, 9999)}"
        fact = (f"job {job} cancelled",)
        for number in range(self.rng.randint(9, 15)):
            stamp = self.stamp()
            way = self.rng.randrange(4)
            gap = self.rng.uniform(6, 50)
            if way == 0:
                text = json.dumps(
                    {"job": job, "what": "linecard-reset", "state": "CANCELLED", "by": "scheduler", "polled": stamp}
                )
                self.call("job_get", {"id": job}, text, facts=fact, watch=job, final=True, gap=gap)
            elif way == 1:
                text = f"jobs since {stamp}: 1\n{job} linecard-reset CANCELLED (scheduler)"
                self.call(
                    "job_list",
                    {"device": self.ill[0], "n": number + 1},
                    text,
                    facts=fact,
                    watch=job,
                    final=True,
                    gap=gap,
                )
            elif way == 2:
                text = f"{job}: linecard-reset, cancelled by scheduler"
                self.call("job_log", {"id": job, "tail": 20 + number}, text, facts=fact, watch=job, final=True, gap=gap)
            else:
                text = f"JOB=linecard-reset STATE=CANCELLED BY=scheduler T={self.rng.randrange(10**6)}"
                self.call("job_get", {"id": job, "wait_s": 5}, text, facts=fact, watch=job, final=True, gap=gap)

    def field_team_without_news(self) -> None:
        """The visit stays `assigned` for more than a quarter of an hour."""
        order = f"WO-{self.rng.randint(100, 999)}"
        team = self.pick(["north", "night", "fibre"])
        for number in range(self.rng.randint(17, 23)):
            gap = self.rng.uniform(60, 110)
            if number % 2:
                text = f"{order}  assigned  team {team}  not departed   ({self.stamp('clock')})"
                arguments: dict[str, object] = {"order": order}
            else:
                text = json.dumps(
                    {"order": order, "state": "assigned", "team": team, "departed": None, "t": self.stamp()}
                )
                arguments = {"order": order, "view": self.pick(["full", "json", "api"])}
            tool = "field_status" if number % 3 else "dispatch_board"
            self.call(tool, arguments, text, facts=(f"{order} assigned",), watch=order, gap=gap)

    def login_refused(self) -> None:
        """The device's account server is unreachable; commands of all kinds are refused."""
        device = self.ill[1]
        self.blocked.add(device)
        dense = self.rng.random() < 0.3
        for _ in range(self.rng.randint(7, 12) if dense else self.rng.randint(4, 8)):
            command = (
                "show version"
                if dense
                else self.pick(["show log", "show bgp summary", "sh int brief", "show env", "sh ver"])
            )
            text = self.pick(
                ["% Authorization failed (aaa: no server reachable)", "% AAA: no server reachable, access denied"]
            )
            self.call(
                "device_cli",
                {"host": device, "cmd": command},
                f"{device}> {command}\n{text}",
                ok=not dense,
                cause=f"login {device}",
                place="in",
                facts=() if dense else (f"try {command}",),
            )
            if not dense:
                self.work(self.rng.choice((0, 1, 1, 2)))
        if self.rng.random() < 0.4:
            self.blocked.discard(device)
            self.call(
                "aaa_fallback",
                {"device": device, "mode": "local"},
                "done",
                facts=("aaa local",),
                place="in",
                change=True,
            )
            self.port(device, self.pick(self.ports))

    def config_locked(self) -> None:
        """Somebody else's session holds the config lock."""
        device, owner = self.ill[0], f"ops{self.rng.randint(2, 9)}"
        self.blocked.add("lock")
        for number in range(self.rng.randint(4, 7)):
            port = self.pick(self.ports)
            line = self.pick([f"interface te-{port} shutdown", f"interface te-{port} mtu 1500", f"no qos te-{port}"])
            text = f"<reply><error><tag>lock-denied</tag><info>held by {owner}</info></error></reply>"
            self.call(
                self.pick(["config_push", "config_push", "config_edit"]),
                {"device": device, "lines": [line], "commit": bool(number % 2)},
                text,
                ok=self.rng.random() < 0.5,
                cause=f"lock {device}",
                place="in",
                facts=(f"line {line}",),
            )
            self.work(self.rng.choice((0, 1, 2, 3)))

    def metrics_with_wrong_labels(self) -> None:
        """The time series base wants another syntax; each query is a little different and refused alike."""
        self.single_quotes(self.rng.randint(4, 8))

    def quotes_put_right(self) -> None:
        """Three parse errors, then the query is right."""
        self.single_quotes(3)
        query = f'loss{{device="{self.ill[0]}"}}[1h]'
        body = {"status": "ok", "series": [round(self.rng.uniform(0, 4), 2) for _ in range(12)]}
        self.call("metrics", {"q": query}, json.dumps(body), facts=(query,), uses=("labels",), place="in")

    def two_healthy_routers(self) -> None:
        """What does a router without loss look like: a few looks, then back."""
        for device in self.some(self.others, 2):
            self.bgp(device)
            self.port(device, self.pick(self.ports))
        self.work(6)

    def single_quotes(self, count: int) -> None:
        """So many queries of the wrong syntax."""
        for _ in range(count):
            what = self.pick(["loss", "crc", "rx_power", "drops", "util"])
            query = f"{what}{{device='{self.pick(self.ill)}'}}[{self.pick(['5m', '1h', '15m'])}]"
            body = {
                "status": "error",
                "type": "parse",
                "msg": "range vectors need double-quoted labels",
                "req": self.hexid(),
            }
            self.call("metrics", {"q": query}, json.dumps(body), cause="labels", facts=(query,), place="in")
            self.work(self.rng.choice((0, 1, 1, 2)))

    def tuning_the_whole_region(self) -> None:
        """Carrier delays and queues of routers that are not in the ticket."""
        dense = self.rng.random() < 0.4
        for device in self.some(self.others, self.rng.randint(4, 6)):
            port = self.pick(self.ports)
            if dense:
                self.port(device, port)
                self.optics(device, port)
            line = self.pick(
                [f"interface te-{port} carrier-delay up 3000", f"qos te-{port} queue 4 depth 900", "lldp run"]
            )
            self.change(device, line, "harmonise")
            self.work(1 if dense else 2)

    def reading_other_cities(self) -> None:
        """Logs and sessions of routers elsewhere."""
        for device in self.some(self.others, self.rng.randint(3, 4)):
            self.bgp(device)
            self.log(device, 0)
            for port in self.some(self.ports, self.rng.randint(1, 3)):
                self.port(device, port)

    def other_tickets(self) -> None:
        """Tickets with other numbers are answered and closed."""
        for step in self.some([-7, -3, -2, -1, 1, 2, 5, 9], self.rng.randint(4, 6)):
            ticket = f"INC{int(self.ticket[3:]) + step}"
            reply = json.dumps({"ticket": ticket, "entry": self.rng.randint(2, 9), "saved": self.stamp()})
            text = self.pick(["looks like the same cause", "please retest", "closing, no answer", "raised to P2"])
            self.call(
                "ticket_update",
                {"id": ticket, "text": text},
                reply,
                facts=(f"note {ticket}",),
                place="out",
                change=True,
            )
            self.work(self.rng.choice((1, 2)))

    def reboot_of_a_card(self) -> None:
        """A line card restarts; the look shows nothing new for some minutes."""
        device = self.ill[0]
        card = f"{self.rng.randint(0, 1)}/{self.rng.randint(0, 3)}"
        self.cli(device, f"reload card {card}", "reloading", f"reload {card}", change=True)
        for _ in range(self.rng.randint(4, 8)):
            self.call(
                "card_state",
                {"host": device, "slot": card},
                f"{card} BOOTING ({self.stamp('clock')})",
                facts=(f"card {card} booting",),
                watch=f"card {card}",
                gap=self.rng.uniform(25, 80),
                place="in",
            )
        self.call(
            "card_state", {"host": device, "slot": card}, f"{card} RUN", facts=(f"card {card} run",), place="in", gap=31
        )

    def backoff(self) -> None:
        """A collector is overloaded; longer and longer pauses, then an answer."""
        gap = 5.0
        for _ in range(self.rng.randint(3, 4)):
            self.call("flow_top", {"device": self.ill[1]}, "503 collector overloaded", ok=False, cause="flow", gap=gap)
            gap *= self.rng.uniform(1.6, 2.4)
        text = "\n".join(f"10.9.{n}.{self.rng.randint(1, 250)} {self.rng.randint(1, 900)} Mbit/s" for n in range(9))
        self.call("flow_top", {"device": self.ill[1]}, text, facts=("flow",), uses=("flow",), gap=gap)

    def neighbours_by_bgp(self) -> None:
        """The route reflectors to which the two routers have sessions."""
        self.bgp(self.ill[0])
        for device in self.near:
            self.bgp(device)
            for port in self.some(self.ports, 3):
                self.port(device, port)

    def flap_watch(self) -> None:
        """A counter that grows at each look."""
        device, port, count = self.ill[0], self.pick(self.ports), self.rng.randint(10, 4000)
        for _ in range(self.rng.randint(5, 8)):
            count += self.rng.randint(1, 60)
            self.cli(device, f"show drops te-{port}", f"te-{port} tail drops {count}", f"drops {port} {count}")

    def bisect_of_prefixes(self) -> None:
        """Which half of the address space is lossy."""
        low, high = 0, 256
        bad = self.rng.randrange(256)
        while high - low > 1:
            middle = (low + high) // 2
            loss = low <= bad < middle
            text = f"10.{low}.0.0-10.{middle - 1}.255.255: {'loss 31 %' if loss else 'loss 0 %'}"
            self.call("probe", {"first": f"10.{low}", "last": f"10.{middle - 1}"}, text, facts=(text,))
            low, high = (low, middle) if loss else (middle, high)

    def three_different_refusals(self) -> None:
        """Each failure has its own cause and is put right."""
        device = self.ill[1]
        self.call(
            "scp_get", {"host": device, "path": "core.tgz"}, "permission denied (publickey)", ok=False, cause="key"
        )
        self.call(
            "scp_get", {"host": device, "path": "/core.tgz", "user": "noc"}, "no such file", ok=False, cause="file"
        )
        arguments = {"host": device, "path": "/var/core.tgz", "user": "noc"}
        self.call("scp_get", arguments, "local disk quota: need 812 MB", ok=False, cause="quota")
        arguments |= {"to": "/scratch"}
        self.call("scp_get", arguments, "812 MB in 6.1 s", facts=("core",), gap=14)

    def around_the_region(self) -> None:
        """Before anything else: how do the others do."""
        for device in self.some(self.others, self.rng.randint(5, 8)):
            self.bgp(device)

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        return {
            "stalled": [
                self.one_counter_in_many_words,
                self.mtu_between_tried_values,
                self.looking_at_a_cancelled_job,
                self.field_team_without_news,
            ],
            "cascading": [self.login_refused, self.config_locked, self.metrics_with_wrong_labels],
            "drifting": [self.tuning_the_whole_region, self.reading_other_cities, self.other_tickets],
            "alike": [
                self.reboot_of_a_card,
                self.backoff,
                self.neighbours_by_bgp,
                self.flap_watch,
                self.bisect_of_prefixes,
                self.three_different_refusals,
                self.quotes_put_right,
                self.two_healthy_routers,
            ],
            "opening": [self.around_the_region],
        }


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Runs of an agent in a network operator's night shift."""
    return produce(rng, KIND, Network)
