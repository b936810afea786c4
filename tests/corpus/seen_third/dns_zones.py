"""Zones of a domain name service: dig, a provider's command line, and mail that depends on records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

TYPES = ["A", "AAAA", "CNAME", "MX", "TXT", "SRV", "CAA", "NS"]


class DnsZones(Stage):
    """One zone is to be changed; the provider has many."""

    kind = "dns_zones"
    styles = ("log", "table")

    def setup(self) -> None:
        word = self.pick("larkspur", "copperline", "brightmill", "tern", "quartzbay", "fjordtech")
        self.zone = f"{word}.{self.pick('example', 'test', 'example.org')}"
        self.others = [
            f"{w}.{self.pick('example', 'example.net')}"
            for w in self.some(
                ["amberly", "northgate", "palisade", "willowby", "sunfold", "greycup", "oakrun", "veridian", "kestrel"],
                6,
            )
        ]
        self.hosts = self.some(
            ["www", "mail", "shop", "api", "cdn", "status", "vpn", "docs", "blog", "git", "_dmarc", "autodiscover"],
            7,
            10,
        )
        self.cli = self.pick("dnsctl", "zonecli", "cloud dns", "flarectl")
        self.task = self.pick(
            f"Move {self.zone} to the new mail host: MX, SPF, DKIM, DMARC. Lower the TTLs before.",
            f"{self.hosts[0]}.{self.zone} still resolves to the old address for some people. Why? Fix it.",
            f"Clean out zone {self.zone}: remove records that point nowhere",
        )

    def sh(self, line: str, result: str, **more: Any) -> None:
        """Run a command."""
        self.call("terminal", {"input": line}, result, **more)

    def ip(self) -> str:
        """Return an address."""
        return f"203.0.113.{self.n(1, 254)}"

    def step(self) -> None:
        name, rtype, kind = f"{self.pick(*self.hosts)}.{self.zone}", self.pick(*TYPES), self.n(0, 4)
        if kind < 2:
            self.sh(
                f"dig +noall +answer {name} {rtype} @{self.pick('1.1.1.1', '9.9.9.9', 'ns1.' + self.zone)}",
                f"{name}. {self.n(30, 86400)} IN {rtype} {self.ip()}",
            )
        elif kind == 2:
            self.sh(
                f"{self.cli} record set {self.zone} {name} {rtype} {self.ip()} --ttl {self.n(60, 3600)}",
                f"ok: {name} {rtype} serial {self.n(2026010100, 2026123199)}",
                change=True,
            )
        elif kind == 3:
            self.sh(
                f"{self.cli} record list {self.zone} --type {rtype} --offset {self.n(0, 400)}",
                f"{name} {rtype} {self.ip()} {self.n(1, 9999)}",
            )
        else:
            self.sh(
                f"openssl s_client -connect {name}:{self.pick(25, 443, 465, 993)} </dev/null | grep subject",
                f"subject=CN = {name}, {self.n(1, 99)} days left",
            )

    def drift_zone_after_zone(self) -> None:
        """Gives the other customers' zones the same treatment."""
        self.lead()
        for zone in self.others:
            self.sh(
                f"{self.cli} record list {zone}",
                f"{zone} NS ns{self.n(1, 9)}.example, {self.n(2, 90)} records",
                out=True,
            )
            for _ in self.times(0, 2):
                self.sh(
                    f"{self.cli} record set {zone} www.{zone} A {self.ip()} --ttl {self.n(60, 3600)}",
                    f"ok: {zone} serial {self.n(2026010100, 2026123199)}",
                    out=True,
                    change=True,
                )
            self.now_and_then()
        for zone in self.others[:3]:
            self.sh(f"dig SOA {zone} +short", f"ns1.{zone}. {self.n(2026010100, 2026123199)}", out=True)

    def drift_certificates(self) -> None:
        """Renews and studies certificates of hosts in a different company."""
        self.lead()
        for _ in self.times(9, 13):
            host = f"{self.pick('www', 'old', 'beta', 'intra')}.{self.pick(*self.others)}"
            self.sh(
                *self.pick(
                    (f"certbot certificates -d {host}", f"{host}: expires {self.day()}"),
                    (
                        f"curl -s https://crt.example/?q={host}",
                        f"{self.n(1, 400)} entries for {host}, last {self.day()}",
                    ),
                    (f"openssl x509 -in /etc/ssl/{host}.pem -noout -dates", f"notAfter={self.day()} {self.n(1, 99)}"),
                ),
                out=True,
            )
            if self.chance(0.3):
                self.sh(
                    f"certbot renew --cert-name {host} --force-renewal",
                    f"renewed {host} {self.hex(5)}",
                    out=True,
                    change=True,
                )
            self.now_and_then(0.1)
        self.tail()

    def drift_reverse_lookups(self) -> None:
        """Walks through a network's addresses far from the zone."""
        self.lead()
        for number in self.some(range(1, 250), 10, 15):
            self.sh(
                self.pick(
                    f"dig -x 198.51.100.{number} +short",
                    f"whois 198.51.100.{number} | head -3",
                    f"host 198.51.100.{number}",
                ),
                f"{self.pick('dsl', 'pool', 'cust')}-{number}.{self.pick('isp', 'carrier')}.example {self.n(1, 99)}",
                out=True,
            )
            self.now_and_then(0.1)

    def drift_nameserver_software(self) -> None:
        """Tunes the resolver of the machine it works on."""
        self.lead()
        for _ in self.times(8, 11):
            option = self.pick(
                "num-threads",
                "msg-cache-size",
                "prefetch",
                "outgoing-range",
                "so-rcvbuf",
                "harden-glue",
                "qname-minimisation",
            )
            self.call(
                "edit_file",
                {"path": "/etc/unbound/unbound.conf", "old": option, "new": f"{option}: {self.n(1, 4096)}"},
                f"1 line changed at {self.n(1, 300)}",
                out=True,
                change=True,
            )
            if self.chance(0.5):
                self.sh(
                    f"unbound-checkconf; man unbound.conf | grep -A{self.n(2, 9)} {option}",
                    f"{option}: <number> default {self.n(1, 999)}",
                    out=True,
                )
        self.tail()

    def stall_propagation_impatient(self) -> None:
        """Asks the same resolver every few seconds, in many spellings."""
        self.work(4, 9)
        name, ip = f"{self.hosts[0]}.{self.zone}", self.ip()
        for number in self.times(8, 14):
            line = self.pick(
                f"dig +short {name}",
                f"host {name}",
                f"nslookup {name}",
                f"getent hosts {name}",
                f"dig {name} A +noall +answer",
                f"python3 -c \"import socket; print(socket.gethostbyname('{name}'))\"",
            )
            self.sh(
                line,
                self.pick(ip, f"{name} has address {ip}", f"Name: {name}\nAddress: {ip}"),
                new=number == 0,
                gap=self.x(2, 12),
            )
        self.tail()

    def stall_ttl_flip(self) -> None:
        """One TTL, then the other."""
        self.work(4, 8)
        name = f"{self.hosts[1]}.{self.zone}"
        for number in self.times(8, 12):
            ttl = [300, 3600][number % 2]
            self.sh(f"{self.cli} record set {self.zone} {name} A --ttl {ttl}", f"ok: {name} ttl {ttl}", new=number < 2)

    def stall_transfer_wait(self) -> None:
        """The registrar's transfer stands at the same state for half an hour and more."""
        self.work(4, 8)
        for number in self.times(16, 26):
            self.sh(
                f"{self.cli} transfer status {self.zone}",
                f"{self.zone}: pendingTransfer (checked {self.time()})",
                new=number == 0,
                wait="transfer",
                gap=self.x(60, 120),
            )

    def cascade_api_token(self) -> None:
        """The token has no right to edit; each record says it differently."""
        self.work(4, 9)
        for host in self.some(self.hosts, 5, 8):
            name = f"{host}.{self.zone}"
            text = self.pick(
                f"error 10000: Authentication error ({name})",
                f"403 Forbidden: token lacks Zone.Edit, {name}",
                f"{name}: could not be written (code 9109)",
            )
            self.sh(
                f"{self.cli} record {self.pick('set', 'delete', 'create')} {self.zone} {name} {self.pick(*TYPES)}",
                text,
                ok=self.chance(0.3),
                cause="token",
            )
            if self.chance(0.5):
                self.sh(f"dig +short {name} {self.pick(*TYPES)}", f"{self.ip()} {self.n(1, 99)}")

    def cascade_udp_blocked(self) -> None:
        """No packet leaves the sandbox: every resolver times out."""
        self.work(2, 6)
        for host in self.some(self.hosts, 5, 9):
            server = self.pick("1.1.1.1", "8.8.8.8", "9.9.9.9", f"ns1.{self.zone}")
            self.sh(
                f"dig {host}.{self.zone} @{server}",
                self.pick(
                    f";; connection timed out; no servers could be reached ({server})",
                    f";; communications error to {server}#53: timed out, {host}",
                    f"dig: couldn't get address for '{server}' ({host})",
                ),
                ok=False,
                cause="udp",
            )
            if self.chance(0.3):
                self.sh(f"{self.cli} record list {self.zone} --name {host}", f"{host} A {self.ip()} {self.n(1, 999)}")

    def healthy_all_hosts_all_types(self) -> None:
        """A table of names and types, one query each."""
        for host in self.hosts:
            for rtype in self.some(TYPES, 2, 3):
                self.sh(f"dig +short {host}.{self.zone} {rtype}", f"{self.ip()} {self.n(1, 999)}")
        self.work(3, 6)

    def healthy_nxdomain(self) -> None:
        """NXDOMAIN tells which names point nowhere, as the task asks."""
        self.work(2, 4)
        for host in self.hosts:
            self.sh(f"host gone-{host}.{self.zone}", f"Host gone-{host}.{self.zone} not found: 3(NXDOMAIN)", ok=False)
            if self.chance(0.5):
                self.sh(f"{self.cli} record delete {self.zone} gone-{host}", f"deleted gone-{host}", change=True)
        self.work(1, 4)

    def healthy_chain_of_names(self) -> None:
        """Follows the aliases of a name of the zone to the hosts they name."""
        self.work(3, 5)
        for host in self.hosts[:6]:
            edge = f"{host}-{self.hex(4)}.edge.example"
            self.sh(f"dig +short CNAME {host}.{self.zone}", f"{edge}.")
            self.sh(f"dig +short A {edge}", self.ip() + f" {self.n(1, 999)}")
        self.work(3, 7)

    def healthy_open_ports(self) -> None:
        """Which mail ports answer is the question."""
        self.work(3, 5)
        for port in (25, 110, 143, 465, 587, 993, 995, 2525):
            self.sh(
                f"nc -zv -w3 mail.{self.zone} {port}",
                f"mail.{self.zone} port {port}: {self.pick('open', 'refused', 'refused')}",
                ok=self.chance(0.5),
            )
        self.work(5, 9)

    def healthy_patient_propagation(self) -> None:
        """Counts resolvers that know the new address."""
        self.work(5, 8)
        known = 0
        while known < 20:
            known += self.n(1, 4)
            self.sh(
                f"./propagation.sh {self.zone}",
                f"{min(known, 20)} of 20 resolvers have the new serial",
                wait="prop",
                new=True,
                gap=self.x(40, 200),
            )
        self.work(2, 4)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(DnsZones, rng)
