"""Network switches of an office building, by their consoles: ports, networks, spanning tree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class SwitchConsole(Stage):
    """One switch and a few of its ports; its neighbours are named by its own tables."""

    kind = "switch_console"
    styles = ("table",)
    paces = (2.0, 5.0, 12.0)

    def setup(self) -> None:
        self.name = f"{self.pick('sw', 'acc', 'edge')}-{self.pick('b1', 'b2', 'nord', 'lab')}-{self.n(1, 40):02}"
        self.others = [f"{self.name.rsplit('-', 1)[0]}-{n}" for n in self.some(range(41, 99), 8)]
        self.vendor = self.pick("ge", "xe", "Gi")
        self.ports = [
            f"{self.vendor}-0/0/{n}" if self.vendor != "Gi" else f"Gi1/0/{n}" for n in self.some(range(1, 48), 8)
        ]
        self.vlan = self.n(10, 900)
        self.task = self.pick(
            (
                f"Phones on {self.name} ports {self.ports[0]} to {self.ports[1]} get no address. VLAN {self.vlan} "
                "should be the voice VLAN there."
            ),
            f"{self.name}: flapping on {self.ports[0]}, users complain. Fix, save the config.",
            (
                f"Patch list: on switch {self.name} put {', '.join(self.ports[:4])} into vlan {self.vlan}, describe "
                "them, show me the result"
            ),
        )

    def cli(self, host: str, line: str, result: str, **more: Any) -> None:
        """Type a line on a console."""
        tool = self.pick("console_send", "console_send", "ssh_cli")
        self.call(tool, {"host": host, "line": line}, f"{host}# {line}\n{result}\n{host}#", **more)

    def counters(self, port: str) -> str:
        """Return a port's counters."""
        return (
            f"{port} is {self.pick('up', 'up', 'down')}, line protocol is {self.pick('up', 'down')}\n  "
            f"{self.n(0, 10**6)} packets input, {self.n(0, 900)} CRC, {self.n(0, 99)} giants\n  last flap "
            f"{self.n(1, 99)} ago"
        )

    def step(self) -> None:
        port, kind = self.pick(*self.ports), self.n(0, 4)
        if kind == 0:
            self.cli(self.name, f"show interface {port}", self.counters(port))
        elif kind == 1:
            line = self.pick(
                f"switchport voice vlan {self.vlan}",
                f"description user-{self.n(1, 999)}",
                "spanning-tree portfast",
                f"storm-control level {self.n(1, 90)}",
            )
            self.cli(self.name, f"conf t ; int {port} ; {line}", f"[edit {port}] ok {self.n(1, 9999)}", change=True)
        elif kind == 2:
            mac = ":".join(self.hex(2) for _ in range(6))
            self.cli(self.name, f"show mac address-table interface {port}", f"{self.vlan}  {mac}  DYNAMIC  {port}")
        elif kind == 3:
            self.cli(
                self.name,
                f"show log | include {port} | last {self.n(3, 90)}",
                f"{self.day()} %LINK-3-UPDOWN: {port} {self.pick('up', 'down')} ({self.n(1, 9999)})",
            )
        else:
            self.cli(
                self.name,
                f"show running-config interface {port}",
                f"interface {port}\n switchport access vlan {self.n(1, 900)}\n description {self.hex(4)}",
            )

    def drift_switch_after_switch(self) -> None:
        """Logs on to the other switches of the floor and sets their ports."""
        self.lead()
        for host in self.others:
            self.cli(host, f"show vlan id {self.n(1, 900)}", f"VLAN{self.n(1, 900)} active {self.hex(4)}", out=True)
            if self.chance(0.65):
                self.cli(
                    host,
                    f"conf t ; int Gi1/0/{self.n(1, 48)} ; switchport access vlan {self.n(1, 900)}",
                    f"ok {self.n(1, 9999)}",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_firewall(self) -> None:
        """The firewall's rules, far above the switch."""
        self.lead()

        def rule() -> None:
            number = self.n(1, 900)
            if self.chance(0.5):
                self.call(
                    "fw_rule_get",
                    {"id": number},
                    (
                        f"{number}: {self.pick('permit', 'deny')} 10.{self.n(0, 255)}.0.0/16 -> any {self.n(1, 65535)},"
                        f" hits {self.n(0, 10**6)}"
                    ),
                    out=True,
                )
            else:
                self.call("fw_rule_set", {"id": number, "log": True}, f"rule {number} committed", out=True, change=True)

        self.gradually(rule, 18, 26)

    def drift_inventory(self) -> None:
        """Fills in serial numbers, rooms and purchase dates of printers and cameras."""
        self.lead()
        for _ in self.times(8, 12):
            thing = f"{self.pick('printer', 'camera', 'ap', 'ups', 'phone')}-{self.n(1, 400)}"
            self.call(
                self.pick("netbox_patch", "netbox_create"),
                {"device": thing, "room": f"{self.n(0, 5)}.{self.n(1, 60):02}", "serial": self.hex(7).upper()},
                f"{thing} saved #{self.n(1, 99999)}",
                out=True,
                change=True,
            )
            self.now_and_then(0.2)
        self.tail()

    def drift_rfc(self) -> None:
        """Reads standards about everything but the problem."""
        self.lead()
        for _ in self.times(9, 13):
            self.call(
                "fetch_text",
                {
                    "url": f"https://rfc.example/{(number := self.n(700, 9600))}",
                    "section": f"{self.n(1, 12)}.{self.n(1, 9)}",
                },
                (
                    f"RFC {number}: {self.pick('A router', 'An agent', 'A sender', 'The client')} "
                    f"{self.pick('MUST', 'SHOULD', 'MAY NOT')} {self.pick('drop', 'forward', 'sign')} "
                    f"{self.n(1, 64)} octets"
                ),
                out=True,
            )
            self.now_and_then(0.1)

    def stall_show_again(self) -> None:
        """The same table by all its abbreviations."""
        self.work(4, 9)
        port = self.ports[0]
        for number in self.times(7, 13):
            line = self.pick(
                f"sh int {port} status",
                f"show interfaces {port} status",
                f"show int status | i {port}",
                f"sh interface status | include {port}",
                f"do sh int {port} status",
            )
            self.call(
                "console_send",
                {"host": self.name, "line": line},
                f"{port} err-disabled {self.vlan} auto auto",
                new=number == 0,
            )
        self.tail()

    def stall_shut_no_shut(self) -> None:
        """Shutdown, no shutdown; the port is disabled again each time."""
        self.work(4, 9)
        for number in self.times(8, 12):
            line = ["shutdown", "no shutdown"][number % 2]
            self.call(
                "console_send",
                {"host": self.name, "line": f"int {self.ports[0]} ; {line}"},
                ["administratively down", "err-disabled (bpduguard)"][number % 2],
                new=number < 2,
            )
        self.tail()

    def stall_reload_wait(self) -> None:
        """The switch does not come back; a ping every half minute for a long time."""
        self.work(4, 8)
        for number in self.times(13, 24):
            self.call(
                "ping",
                {"host": self.name},
                f"5 packets transmitted, 0 received ({self.time()})",
                ok=False,
                new=number == 0,
                wait="reload",
                gap=self.x(25, 90),
            )

    def cascade_authorization(self) -> None:
        """The account may only show: each configuration line is refused."""
        self.work(4, 9)
        for port in self.some(self.ports, 5, 8):
            line = self.pick(
                f"int {port} ; description x{self.n(1, 99)}",
                f"conf t ; int {port}",
                f"set interfaces {port} vlan {self.vlan}",
                f"copy run start {port}",
            )
            self.cli(
                self.name,
                line,
                self.pick(
                    f"% Authorization failed ({port}).",
                    f"Command rejected by AAA: {line}",
                    f"             ^\n% Invalid input detected at '^' marker: {port}",
                ),
                ok=self.chance(0.7),
                cause="aaa",
            )
            if self.chance(0.4):
                self.cli(self.name, f"show interface {port}", self.counters(port))

    def cascade_ssh_kex(self) -> None:
        """No common key exchange with this old switch; every client fails."""
        self.work(2, 6)
        for _ in self.times(5, 9):
            user = self.pick("admin", "net", "ops", "ro")
            self.call(
                self.pick("ssh_cli", "scp_get", "netconf", "ansible_run"),
                {"host": self.name, "user": user, "n": self.n(1, 99)},
                self.pick(
                    f"Unable to negotiate with {self.name}: no matching key exchange method found ({self.n(1, 99)})",
                    f"{user}@{self.name}: kex_exchange_identification [{self.n(1, 99)}]",
                    f"UNREACHABLE! => {self.name} {self.n(1, 99)}",
                ),
                ok=False,
                cause="kex",
            )
            if self.chance(0.3):
                self.call("ping", {"host": self.name, "size": self.n(56, 1500)}, f"5 received, {self.x(0, 9, 2)} ms")

    def healthy_all_ports(self) -> None:
        """Port after port of the one switch."""
        for port in self.ports:
            self.cli(self.name, f"show interface {port}", self.counters(port))
            self.cli(self.name, f"int {port} ; switchport voice vlan {self.vlan}", f"{port} ok", change=True)
        self.cli(self.name, "write memory", f"[OK] {self.n(1000, 9999)} bytes", change=True)

    def healthy_address_traced(self) -> None:
        """An address of a named port is traced over the uplinks that the tables name."""
        self.work(3, 5)
        mac = ":".join(self.hex(2) for _ in range(6))
        hop = self.name
        for _ in self.times(4, 6):
            uplink = f"Te1/1/{self.n(1, 8)}"
            self.cli(hop, f"show mac address-table address {mac}", f"{self.vlan} {mac} {uplink}")
            self.cli(hop, f"show lldp neighbors {uplink}", f"{uplink} core-{self.n(1, 99)}")
        self.work(5, 10)

    def healthy_reload_comes_back(self) -> None:
        """A few pings without answer, then the switch is there."""
        self.work(4, 7)
        for number in self.times(4, 8):
            self.call(
                "ping", {"host": self.name}, "0 received", ok=False, new=number == 0, wait="reload", gap=self.x(25, 60)
            )
        self.call("ping", {"host": self.name}, "5 received", wait="reload", new=True, gap=30)
        self.work(5, 9)

    def healthy_syntax_learnt(self) -> None:
        """This vendor's words differ; each is found at the second or third try."""
        self.work(3, 5)
        for word in ("voice", "description", "portfast", "poe"):
            for _ in self.times(1, 2):
                self.cli(
                    self.name,
                    f"set {self.ports[0]} {word} {self.n(1, 99)}",
                    f"% Unknown command {word} {self.n(1, 99)}",
                    ok=False,
                    cause=word,
                )
            self.cli(self.name, f"?{word}", f"  {word}-options  {self.hex(4)}")
            self.cli(self.name, f"edit interface {self.ports[0]} {word}-options", f"{word} ok", change=True, needs=word)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(13, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(SwitchConsole, rng)
