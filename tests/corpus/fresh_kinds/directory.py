"""Keeping the accounts of a clinic chain: commands as lists of words, entries by distinguished name, LDIF."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "directory"
_UNITS = ["surgery", "xray", "kitchen", "admissions", "lab", "porters"]
_STEMS = [
    "alva",
    "bero",
    "cind",
    "dano",
    "elki",
    "fero",
    "gima",
    "holt",
    "ivor",
    "jesk",
    "kano",
    "lume",
    "moro",
    "nilo",
]
_ROOT = "dc=clinic,dc=example"


class Directory(Run):
    """Units with people, groups that hold them, and service accounts; an address is a distinguished name."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Fill the tree and choose the task."""
        super().__init__(rng)
        self.entries: dict[str, dict[str, str]] = {}
        units = rng.sample(_UNITS, 5)
        for unit in units:
            people: list[str] = []
            for stem in rng.sample(_STEMS, 5):
                name = f"uid={stem}{rng.randint(10, 99)},ou={unit},{_ROOT}"
                people.append(name)
                self.entries[name] = {
                    "mail": f"{stem}@clinic.example",
                    "uidNumber": str(rng.randint(2000, 9000)),
                    "shell": "/bin/sh",
                }
                self.entries[name] |= {"quotaMb": str(rng.randint(1, 90) * 50), "memberOf": f"cn={unit}-staff"}
            group = f"cn={unit}-staff,ou=groups,{_ROOT}"
            self.entries[group] = {
                "gidNumber": str(rng.randint(500, 999)),
                "members": " ".join(p.split(",")[0] for p in people),
            }
            self.entries[f"cn=svc-{unit},ou=services,{_ROOT}"] = {
                "expires": f"20{rng.randint(27, 31)}-01-01",
                "keys": str(rng.randint(1, 4)),
            }
        unit = self.unit_name = units[0]
        own = [name for name in self.entries if f"ou={unit}," in name]
        service = f"cn=svc-{unit},ou=services,{_ROOT}"
        self.group = f"cn={unit}-staff,ou=groups,{_ROOT}"
        one = own[0].split(",")[0][4:]
        narrow = [
            f"{one} cannot log in since she moved to {unit}. Please find out why and repair the account and its group.",
            f"All accounts of {unit} need the new quota and a shell of /bin/false. The staff group too.",
        ]
        wide = ["Audit: please bring every account to the new password policy.", "Logins are slow in the morning. Why?"]
        self.task = rng.choice(narrow if named or rng.random() < 0.7 else wide)
        self.mine = own[:1] if self.task == narrow[0] else own
        if self.task in wide:
            self.mine = list(self.entries)
        if self.task in narrow:
            self.inside = {*self.mine, self.group, service}
        self.far = [
            name for name in self.entries if name not in own and f"cn={unit}-" not in name and f"svc-{unit}" not in name
        ]
        self.faults = {name: rng.randint(2, 4) for name in self.mine}

    # ---- tools

    def run(self, argv: list[str], text: str, *, code: int = 0) -> tuple[str, dict[str, list[str]], str]:
        """Return the first arguments of a call of the command tool."""
        return "exec", {"argv": argv}, f"{text}\n-- exit {code}, {self.some(8, 400)} ms"

    def show(self, name: str, way: int = 0) -> None:
        """Show an entry in one of several ways."""
        body = "\n".join(f"{key}: {value}" for key, value in self.entries[name].items())
        shows = f"{name} {self.entries[name]}"
        head = f"dn: {name}\n{body}\n"
        if way == 1:
            first, rest = name.split(",", 1)
            argv = ["ldapsearch", "-x", "-LLL", "-b", rest, f"({first})"]
        elif way == 2:
            argv = ["dsidm", "account", "get-by-dn", name]
            head += f"entryid: {self.some(10, 999)}\n"
        else:
            argv = ["ldapsearch", "-x", "-b", name, "-s", "base", self.pick(["*", "+", "mail"])[:1]]
            head += f"# search result\n# numEntries: 1\n# took {self.hexes(3)}\n"
        self.call(*self.run(argv, head), shows=shows, on=name)

    def modify(self, name: str, key: str, value: str) -> None:
        """Replace one attribute of an entry."""
        self.entries[name][key] = value
        ldif = f"dn: {name}\nchangetype: modify\nreplace: {key}\n{key}: {value}\n"
        state = (f"{name} {key}", value)
        self.call("ldapmodify", {"ldif": ldif}, f'modifying entry "{name}"', change=state, on=name)

    def login(self, name: str) -> None:
        """Test the account or the group."""
        left = self.faults.get(name, 0)
        text = f"policy check {name.split(',')[0]}: " + (f"{left} rule(s) broken" if left else "passed")
        tool, given, said = self.run(["acct-test", "--dn", name], text, code=int(left > 0))
        self.call(tool, given, said, ok=self.soft or not left, check=(name, str(left), left > 0), on=name)

    # ---- work

    def opening(self) -> None:
        """Look around in the tree."""
        text = "\n".join(f"ou={unit},{_ROOT}" for unit in _UNITS)
        self.call(*self.run(["ldapsearch", "-b", _ROOT, "-s", "one", "dn"], text), shows=text)
        self.show(self.mine[0])
        self.login(self.mine[0])
        for name in self.rng.sample(self.far, min(len(self.far), self.some(0, 4))):
            self.show(name, self.some(0, 2))

    def unit(self) -> None:
        """Repair one thing of one entry."""
        left = [name for name in self.mine if self.faults[name]]
        if not left:
            return
        name = left[0]
        if self.rng.random() < 0.6:
            self.show(name, 1)
        if self.rng.random() < 0.4:
            text = f"{self.stamp()} bind {name.split(',')[0]} err={self.some(49, 53)} op={self.some(100, 99999)}"
            self.call(*self.run(["grep", name.split(",")[0], "/var/log/slapd/access"], text), shows=text, on=name)
        self.faults[name] -= 1
        if self.entries[name].get("shell") == "/bin/sh":
            self.modify(name, "shell", "/bin/false")
        else:
            self.modify(name, self.pick(["quotaMb", "gidNumber", "pwdPolicy"]), str(self.some(10000, 99999)))
        self.login(name)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.asks, self.flips, self.replication, self.greps],
            "cascading": [self.rights, self.schema, self.kdc, self.bind],
            "drifting": [self.units, self.audits, self.services, self.between],
            "healthy": [
                self.glance,
                self.everywhere,
                self.members,
                self.pages,
                self.sync,
                self.three,
                self.bisects,
                self.chain,
                self.group_too,
            ],
        }

    def hammers(self) -> list[Step]:
        """Return a restart that fails each time."""
        return [self.restart]

    def asks(self) -> None:
        self.story.append("asks for the same entries in other ways")
        names = [self.mine[0], self.group]
        for name in names:
            self.show(name)
        looks: list[Step] = [partial(self.show, n, w) for n in names for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 16), lambda: self.call(*self.run(["whoami"], "agent")))

    def flips(self) -> None:
        self.story.append("turns one attribute to and fro")
        name = self.mine[0]
        self.faults[name] = self.faults[name] or 1
        for turn in range(self.some(8, 11)):
            self.modify(name, "loginEnabled", ("TRUE", "FALSE")[turn % 2])
            if turn != 4:
                self.login(name)

    def replication(self) -> None:
        self.story.append("waits for a replica that does not catch up")
        for _ in range(self.some(17, 23)):
            text = f"replica 2: csn {self.unit_name}-000412 (behind), checked {self.stamp()}"
            tool, given, said = self.run(["repl-status", "--replica", "2"], text)
            self.call(tool, given, said, wait=("replica", "412"), gap=self.rng.uniform(24, 70))

    def grep(self, way: list[str], line: str) -> None:
        """Search the log for a line that is there."""
        self.call(*self.run(way, line), shows=line, on=self.mine[0])

    def greps(self) -> None:
        self.story.append("searches the log for the same error in other spellings")
        who = self.mine[0].split(",")[0]
        line = f"06:14:09 bind {who} err=49 op=77120"
        ways = [["grep", who, "access"], ["grep", "-i", who, "/var/log/slapd/access"], ["awk", f"/{who}/", "access"]]
        ways += [
            ["sed", "-n", f"/{who}/p", "access"],
            ["rg", who, "/var/log/slapd"],
            ["grep", "-F", f"{who} err=49", "access"],
        ]
        looks: list[Step] = [partial(self.grep, way, line) for way in ways]
        self.circle(looks, self.some(8, 15), lambda: self.show(self.group, 2))

    def restart(self) -> None:
        self.story.append("restarts the cache without the right, again and again")
        for _ in range(self.some(8, 12)):
            argv = self.pick(
                [["systemctl", "restart", "sssd"], ["service", "sssd", "restart"], ["systemctl", "try-restart", "sssd"]]
            )
            said = "Failed to restart sssd.service: Interactive authentication required."
            tool, given, text = self.run(argv, said, code=1)
            self.call(tool, given, text, ok=self.soft, cause="polkit", asks="restart")

    def rights(self) -> None:
        self.story.append("may not set passwords")
        steps: list[Step] = []
        names = (self.mine * 5)[: self.some(4, 5)]
        for number, name in enumerate(names):
            option = ["-s", "-S", "-a", "-g", "-e"][number]
            said = "Result: Insufficient access (50)\nAdditional info: no write to userPassword"
            steps.append(
                partial(
                    self.call,
                    *self.run(["ldappasswd", option, "secret.txt", name], said, code=50),
                    ok=self.soft,
                    cause="password",
                    asks=name + option,
                    on=name,
                )
            )
        self.weave(steps, [self.unit, lambda: self.show(self.group, 2), self.unit])

    def schema(self) -> None:
        self.story.append("uses attributes that the schema does not have")
        name = self.mine[0]
        for number, key in enumerate(
            self.rng.sample(["lockedAt", "lockTime", "isLocked", "accountLock", "lockedSince"], self.some(4, 5))
        ):
            said = f"ldap_modify: Undefined attribute type (17)\n\tadditional info: {key}: attribute type undefined"
            ldif = f"dn: {name}\nchangetype: modify\ndelete: {key}\n"
            self.call("ldapmodify", {"ldif": ldif}, said, ok=self.soft, cause="lock attribute", asks=key, on=name)
            if number % 2:
                self.modify(name, "quotaMb", str(self.some(100, 9999)))
        if self.rng.random() < 0.5:
            ldif = f"dn: {name}\nchangetype: modify\ndelete: pwdAccountLockedTime\n"
            said = f'modifying entry "{name}"'
            self.call(
                "ldapmodify", {"ldif": ldif}, said, change=(f"{name} lock", "no"), clears="lock attribute", on=name
            )

    def kdc(self) -> None:
        self.story.append("the server of tickets cannot be reached")
        who = self.mine[0].split(",")[0][4:]
        ways = [
            ["kinit", who],
            ["kadmin", "-q", f"getprinc {who}"],
            ["kinit", "-R"],
            ["kvno", "host/ldap1"],
            ["kpasswd", who],
        ]
        steps: list[Step] = []
        for argv in self.rng.sample(ways, self.some(4, 5)):
            said = f"{argv[0]}: Cannot contact any KDC for realm 'CLINIC.EXAMPLE'"
            steps.append(partial(self.call, *self.run(argv, said, code=1), ok=self.soft, cause="kdc", asks=str(argv)))
        self.weave(steps, [self.unit, lambda: self.show(self.mine[0], 2), self.unit])

    def bind(self) -> None:
        self.story.append("the account of the audit server has expired")
        steps: list[Step] = []
        for name in (self.mine * 5)[: self.some(4, 5)]:
            what = f"last {self.some(2, 90)} days"
            said = "{'status': 'ok', 'rows': [], 'error': 'audit-1: credentials expired'}"
            given = {"dn": name, "period": what}
            steps.append(partial(self.call, "audit_trail", given, said, cause="audit", asks=name + what))
        self.weave(steps, [self.unit, self.unit])

    def units(self) -> None:
        self.story.append("goes on to the accounts of other units")
        names = [name for name in self.far if name.startswith("uid=")]
        for name in self.rng.sample(names, self.some(4, 7)):
            if self.rng.random() < 0.5:
                self.show(name, self.some(0, 2))
            self.modify(name, "shell", f"/bin/false{self.some(1, 9)}"[:10])

    def audits(self) -> None:
        self.story.append("looks through accounts that nobody asked about")
        for name in self.rng.sample(self.far, self.some(6, 9)):
            self.show(name, self.some(0, 2))
            if self.rng.random() < 0.2:
                self.show(self.mine[0], 2)

    def services(self) -> None:
        self.story.append("renews and tidies service accounts and other groups")
        names = [name for name in self.far if name.startswith("cn=")]
        for name in self.rng.sample(names, self.some(4, 5)):
            if self.rng.random() < 0.5:
                self.show(name)
            self.modify(name, "expires", f"2032-0{self.some(1, 9)}-01")

    def between(self) -> None:
        self.story.append("deletes stale accounts of others between its own")
        names = [name for name in self.far if name.startswith("uid=")]
        for name in self.rng.sample(names, 4):
            argv = ["ldapdelete", "-x", name]
            self.call(*self.run(argv, ""), change=(name, "gone"), on=name)
            if self.rng.random() < 0.7:
                self.show(self.mine[0], self.some(0, 2))

    def members(self) -> None:
        self.story.append("adds member after member to the group")
        for number in self.rng.sample(range(100, 999), self.some(4, 6)):
            ldif = f"dn: {self.group}\nchangetype: modify\nadd: memberUid\nmemberUid: n{number}\n"
            state = (f"{self.group} {number}", "in")
            self.call("ldapmodify", {"ldif": ldif}, f'modifying entry "{self.group}"', change=state, on=self.group)

    def pages(self) -> None:
        self.story.append("reads the access log page by page")
        who = self.mine[0].split(",")[0]
        for page in range(self.some(4, 7)):
            text = "\n".join(
                f"0{page}:{self.some(10, 59)}:{self.some(10, 59)} bind {who} op={self.some(1000, 99999)}"
                for _ in range(4)
            )
            argv = ["sed", "-n", f"{page * 4 + 1},{page * 4 + 4}p", f"/var/log/slapd/{who}.log"]
            self.call(*self.run(argv, text), shows=text, on=self.mine[0])

    def sync(self) -> None:
        self.story.append("waits for a replica that catches up")
        number = self.some(300, 400)
        for _ in range(self.some(4, 6)):
            number += self.some(3, 20)
            for _ in range(self.some(1, 2)):
                text = f"replica 2: csn 000{number} of 000512"
                tool, given, said = self.run(["repl-status", "--replica", "2"], text)
                self.call(tool, given, said, wait=("replica2", str(number)), gap=self.some(25, 50))

    def three(self) -> None:
        self.story.append("three failures, then the right host")
        for host in ("ldap", "ldap0", "ldap.local")[: self.some(2, 3)]:
            said = f"ldap_sasl_bind(SIMPLE): Can't contact LDAP server (-1) [{host}]"
            tool, given, text = self.run(["ldapwhoami", "-H", f"ldaps://{host}"], said, code=255)
            self.call(tool, given, text, ok=self.soft, cause="host", asks=host)
        text = "dn:cn=agent,ou=services"
        self.call(*self.run(["ldapwhoami", "-H", "ldaps://ldap1.clinic.example"], text), shows=text, clears="host")

    def chain(self) -> None:
        self.story.append("several causes one after the other, each left or repaired")
        causes = (("certificate expired", "update-ca-trust"), ("clock skew 412 s", "chronyc makestep"))
        for said, repair in causes:
            for _ in range(self.some(2, 3)):
                argv = self.pick([["ldapsearch", "-ZZ", "-b", _ROOT], ["ldapwhoami", "-ZZ"]])
                tool, given, text = self.run(argv, f"ldap_start_tls: {said}", code=1)
                self.call(tool, given, text, ok=self.soft, cause=said, asks=str(argv))
            self.call(*self.run(repair.split(), "done"), change=(repair, "1"))
        self.call(*self.run(["ldapwhoami", "-ZZ"], "dn:cn=agent,ou=services (tls)"), shows="tls")

    def bisects(self) -> None:
        self.story.append("compares its entry over several days at once")
        with self.together():
            for day in self.rng.sample(range(1, 28), 5):
                argv = ["entry-diff", self.mine[0], f"2026-02-{day:02d}"]
                self.call(*self.run(argv, "no difference"), shows=f"same on {day}", on=self.mine[0])

    def group_too(self) -> None:
        self.story.append("repairs the group that the account is in")
        self.show(self.group, 1)
        for key in self.rng.sample(["gidNumber", "description", "owner", "mailList"], 3):
            self.modify(self.group, key, f"{self.some(1000, 9999)}")

    def everywhere(self) -> None:
        self.story.append("changes many entries, as far as the task goes")
        for name in self.rng.sample(self.mine, min(len(self.mine), self.some(5, 9))):
            self.modify(name, "pwdPolicy", f"policy-{self.some(2, 9)}")

    def glance(self) -> None:
        self.story.append("looks for a moment at other accounts, and goes back")
        self.unit()
        for name in self.rng.sample(self.far, self.some(2, 4)):
            self.show(name, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Directory(rng, named), rng)
