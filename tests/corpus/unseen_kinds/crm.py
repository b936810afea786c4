"""Records of customers in a CRM, behind a limit on requests and with rights for each field and region."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world1 import World, produce

KIND = "records in a CRM"

_FIRST = "Anouk Bela Cemre Dagny Ewa Farid Gudrun Hamid Ines Jonna Kofi Lale Milan Nuno Oda Pavel Rhea Selim Tove Ugo"
_LAST = (
    "Arven Bruhn Cetin Dorsch Elmqvist Fierro Galanis Hruska Ivarsen Jokela Kalinin Lorch Moberg Nadal Okoye Pretorius"
)
_FIRMS = "Bäckerei|Dental|Roofing|Optik|Nursery|Garage|Hotel|Pharmacy|Studio|Winery"
_FIELDS = ("phone", "industry", "size", "language", "source", "owner_note")


@dataclass
class Account:
    """One customer."""

    key: str
    name: str
    person: str
    phone: str
    stage: str
    rev: int


class Crm(World):
    """A list of accounts whose records are brought into order."""

    free_task = "Keep the CRM in good order today: any record, any setting."

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.list = f"L-{rng.randrange(20, 99)}"
        self.region = rng.choice(("North", "Alps", "Coast", "Iberia", "Baltics"))
        self.other = rng.choice(("South", "Islands", "Export"))
        self.base = rng.randrange(100000, 800000)
        self.style = rng.choice(("json", "table", "text"))
        self.accounts = [self._account(self.base + 7 * i) for i in range(rng.randint(17, 28))]
        self.strangers = [self._account(self.base + 40000 + 11 * i) for i in range(14)]
        self.left = 100
        self.extra = rng.choice((0, 6, 30))
        self.doubles = rng.randint(6, 12)
        self.slips = 2
        self.task = (
            f"Put list {self.list} (region {self.region}) of the CRM into order: phone numbers as +NN, stages "
            "brought up to date, doubles merged; unclear numbers are asked for by mail. "
            + rng.choice(("Contacts of these accounts may be touched too.", "Mind the limit of requests."))
        )

    def _account(self, number: int) -> Account:
        rng = self.rng
        person = f"{rng.choice(_FIRST.split())} {rng.choice(_LAST.split())}"
        name = f"{rng.choice(_FIRMS.split('|'))} {person.split()[1]}"
        phone = f"0{rng.randrange(30, 99)}/{rng.randrange(10000, 999999)}"
        return Account(
            f"A{number}", name, person, phone, rng.choice(("lead", "trial", "won", "dormant")), rng.randrange(1, 30)
        )

    # --- tools

    def say(self, tool: str, arguments: dict[str, Any], text: str, **meant: Any) -> None:
        """A call; the counter of requests left stands in many results."""
        self.left = self.left - 1 if self.left > 3 else 100
        tail = f"\n(quota {self.left}/100)" if self.style != "text" else ""
        self.run.call(tool, arguments, text + tail, **meant)

    def show(self, one: Account, touch: str = "in", way: int = 0) -> None:
        """A record, or the same through another door."""
        rows = {"id": one.key, "name": one.name, "contact": one.person, "phone": one.phone, "stage": one.stage}
        seed = random.Random(one.key)
        for index in range(self.extra):
            rows[f"x_{index:02d}"] = f"{seed.choice(_FIELDS)}-{seed.randrange(9999)}"
        if self.style == "json":
            text = "{" + ", ".join(f'"{k}": "{v}"' for k, v in rows.items()) + f', "rev": {one.rev}}}'
        elif self.style == "table":
            text = "\n".join(f"| {k:<8}| {v:<24}|" for k, v in rows.items())
        else:
            text = f"{one.name} ({one.key}), contact {one.person}, tel. {one.phone}. Stage: {one.stage}."
        tool, arguments = (
            ("crm_get", {"record": one.key}),
            ("crm_get", {"record": one.key, "fields": "*"}),
            ("crm_search", {"where": f"id = '{one.key}'", "limit": self.rng.choice((1, 5, 10))}),
            ("crm_export", {"ids": [one.key], "at": self.run.stamp("%H:%M:%S")}),
        )[way]
        self.say(tool, arguments, text, facts=[f"{one.key} {one.phone} {one.stage}"], touch=touch)

    def set(self, one: Account, field: str, value: str, touch: str = "in") -> None:
        """Change a field."""
        if field in ("phone", "stage"):
            setattr(one, field, value)
        one.rev += 1
        arguments = {"record": one.key, "set": {field: value}}
        text = f"updated {one.key} rev {one.rev} at {self.run.stamp('%H:%M:%S')}" if self.style != "text" else "Saved."
        self.say("crm_update", arguments, text, state=f"{one.key} {field}={value}", touch=touch, changes=True)

    def merge(self, one: Account) -> None:
        """Merge a double into a record."""
        twin = f"D{int(one.key[1:]) * 3 % 99991}"
        self.doubles = max(0, self.doubles - 1)
        text = f"merged {twin} into {one.key}: {self.rng.randrange(1, 9)} fields kept"
        self.say("crm_merge", {"keep": one.key, "drop": twin}, text, state=f"merge {one.key}", touch="in", changes=True)

    def report(self) -> None:
        """The list's report of what is not in order."""
        bad = sum("/" in one.phone for one in self.accounts)
        text = f"List {self.list}: {bad} phones in old form, {self.doubles} possible doubles"
        self.say("list_health", {"list": self.list}, text, check=("health", f"{bad} {self.doubles}"), touch="in")

    def look_around(self) -> None:
        for number in self.rng.sample(range(100, 140), self.rng.randint(3, 5)):
            text = f"L-{number}: {number * 3 % 90} accounts, region {self.other}"
            self.say("list_info", {"list": f"L-{number}"}, text, facts=[f"list {number}"], touch="out")

    def work(self) -> Iterator[None]:
        rng = self.rng
        size = rng.choice((6, 10))
        for start in range(0, len(self.accounts), size):
            rows = [f"{one.key}  {one.name}" for one in self.accounts[start : start + size]]
            cursor = f"c{start}x{self.base % 89}"
            after = f"c{start + size}x{self.base % 89}" if start + size < len(self.accounts) else "-"
            text = "\n".join(rows) + f"\nnext: {after}"
            self.say("list_members", {"list": self.list, "cursor": cursor}, text, facts=[cursor], touch="in")
            yield
        batch = rng.choice((1, 1, 3, 5))
        for start in range(0, len(self.accounts), batch):
            part = self.accounts[start : start + batch]
            for one in part:
                self.run.next_gap = None if one is part[0] else 0.0
                self.show(one)
                yield
            for one in part:
                number = one.phone.replace("/", " ").lstrip("0")
                self.set(one, "phone", f"+{rng.choice((49, 43, 41))} {number}")
                yield
                if rng.random() < 0.45:
                    self.set(one, "stage", rng.choice(("active", "renewal", "closed")))
                    yield
                if rng.random() < 0.25:
                    self.merge(one)
                    yield
            if start // batch % 4 == 3:
                self.report()
                yield

    # --- look-alikes

    def alike_limit(self) -> None:
        """The limit on requests is respected; each pause is longer."""
        name, wait = f"limit{self.run.hex(4)}", 5.0
        arguments = {"list": self.list, "into": f"report_{self.run.hex(3)}"}
        for attempt in range(self.rng.choice((3, 4))):
            text = f"429 too many requests; window resets in {self.rng.randrange(9, 60)} s"
            self.run.call("list_export", arguments, text, fail=name, ask=f"{attempt}", touch="in", gap=wait)
            wait *= self.rng.uniform(1.8, 2.6)
        self.run.call("list_export", arguments, "exported", facts=[name], clears=[name], touch="in", gap=wait)

    def alike_import(self) -> None:
        """An import looked at with patience while its count of rows grows."""
        job, rows = f"imp{self.run.hex(4)}", 0
        for _ in range(self.rng.randint(2, 4)):
            for _ in range(self.rng.choice((1, 2, 4))):
                self.run.pause(22, 70)
                self.run.call("import_state", {"job": job}, f"running, {rows} rows", wait=(job, f"{rows}"))
            rows += self.rng.randrange(40, 900)
        self.run.pause(22, 70)
        self.run.call("import_state", {"job": job}, f"done, {rows} rows", wait=(job, f"done {rows}"))

    def alike_no_double(self) -> None:
        """Is there a double? Not for this name, nor for the next."""
        for one in self.rng.sample(self.accounts, self.rng.randint(4, 7)):
            arguments = {"name": one.name, "list": self.list}
            fact = f"double {one.name} {one.key}"
            self.say("find_doubles", arguments, "no match", facts=[fact], touch="in", ok=self.lenient)

    def alike_opinions(self) -> None:
        """Five scorers in one turn give one account the same mark."""
        one, mark = self.rng.choice(self.accounts), self.rng.choice("ABC")
        for index, model in enumerate(("fit", "intent", "size", "churn", "credit")):
            self.run.next_gap = 0.0 if index else None
            arguments = {"record": one.key, "model": model}
            self.run.call("score", arguments, mark, facts=[f"{one.key} {model} {mark}"], touch="in")

    def alike_contacts(self) -> None:
        """The contacts and offers that an account links to."""
        one = self.rng.choice(self.accounts)
        keys = [f"{self.rng.choice('CQ')}{self.rng.randrange(10000, 99999)}" for _ in range(self.rng.randint(5, 7))]
        self.say("crm_links", {"record": one.key}, " ".join(keys), facts=keys, touch="in")
        for key in keys:
            text = f"{key}: {self.rng.choice(_FIRST.split())} {self.rng.choice(_LAST.split())}, linked to {one.key}"
            self.say("crm_get", {"record": key}, text, facts=[text], touch="in")

    def alike_three_faults(self) -> None:
        """A record that is refused for three reasons, each put right."""
        one = self.rng.choice(self.accounts)
        record: dict[str, Any] = {"account": one.key, "subject": "call"}
        faults = [
            ("due", "2026-11-30", "due: missing"),
            ("type", "phone", "type: not in list"),
            ("owner", "me", "owner: ?"),
        ]
        for field, value, text in self.rng.sample(faults, self.rng.choice((2, 3, 3))):
            self.say("task_create", dict(record), f"400 {text}", fail=f"{one.key} {field}", touch="in", ok=False)
            record[field] = value
        text = f"T{self.rng.randrange(1000, 9999)} created"
        self.say("task_create", record, text, state=f"task {one.key} {len(self.run.calls)}", touch="in")

    def alike_same_note(self) -> None:
        """One long note that grows by a line with each call."""
        one = self.rng.choice(self.accounts)
        for index in range(self.rng.randint(5, 7)):
            arguments = {"record": one.key, "append": f"{index + 1}. {self.rng.choice(_FIELDS)} asked for"}
            state = f"note {one.key} {len(self.run.calls)}"
            self.run.call("note_append", arguments, "Saved.", state=state, touch="in", changes=True)

    def alike_ping(self) -> None:
        """The same short call three or four times."""
        for _ in range(self.rng.choice((3, 4))):
            self.run.call("quota", {}, "unlimited until 18:00", facts=["quota"])

    def alike_slip(self) -> None:
        """A record of another list, looked at and perhaps changed once."""
        one = self.strangers[self.slips]
        self.show(one, "out")
        if self.slips > 0:
            self.slips -= 1
            self.set(one, "phone", f"+351 {self.rng.randrange(100000, 999999)}", "out")

    # --- stalls

    def stall_field_war(self) -> None:
        """A field is set, something sets it back, and it is set again."""
        one = self.rng.choice(self.accounts)
        old, new = one.stage, "active" if one.stage != "active" else "renewal"
        self.run.states.add(f"{one.key} stage={old}")
        for turn in range(self.rng.randint(7, 9)):
            self.set(one, "stage", new)
            one.stage = old
            tool, text = self.rng.choice(
                (("crm_get", f"{one.key} stage: {old}"), ("crm_history", f"automation: -> {old}"))
            )
            text += f" (rev {one.rev}, {self.run.stamp('%H:%M:%S')})"
            self.say(tool, {"record": one.key, "only": "stage"}, text, check=(f"war {one.key}", old), touch="in")
            if turn == 4:
                self.go(0, 1)

    def stall_lost_person(self) -> None:
        """A contact whom nobody has is looked for under all spellings."""
        first, last = self.rng.choice(_FIRST.split()), self.rng.choice(("Quillfeather", "Zandvoort", "Yxkull"))
        forms = (
            f"{first} {last}",
            f"{last}, {first}",
            last.lower(),
            f"{first[0]}. {last}",
            f"*{last}*",
            last[:6] + "%",
        )
        ways = [
            ("crm_search", "where", "0 records"),
            ("contact_find", "name", "[]"),
            ("global_search", "q", "Nothing found."),
        ]

        def act() -> None:
            tool, key, text = self.rng.choice(ways)
            value = self.rng.choice(forms)
            self.say(tool, {key: f"name like '{value}'" if key == "where" else value}, text, facts=[f"no {last}"])

        self.stuck([act] * self.rng.randint(9, 13))

    def stall_same_record(self) -> None:
        """One record through all doors."""
        one = self.rng.choice(self.accounts)
        self.stuck([partial(self.show, one, "in", self.rng.randrange(4)) for _ in range(self.rng.randint(8, 12))])

    def stall_approval(self) -> None:
        """An approval that does not come, asked after far too often or far too long."""
        request, slow = f"REQ-{self.run.hex(4)}", self.rng.random() < 0.5

        def act() -> None:
            if slow:
                self.run.pause(30, 110)
            now = self.run.stamp("%H:%M:%S")
            tool, text = self.rng.choice(
                (("approval_state", f"waiting for R. (seen {now})"), ("approval_log", f"{now} open"))
            )
            self.say(tool, {"request": request, "tail": self.rng.randrange(1, 4)}, text, wait=(request, "open"))

        arguments = {"what": f"merge across regions, {self.list}", "by": "R."}
        self.say("approval_ask", arguments, f"{request} opened", state=request, touch="in")
        count = self.rng.randint(18, 23) if slow else self.rng.randint(9, 13)
        if slow:
            for _ in range(count):
                act()
        else:
            self.stuck([act] * count)

    # --- cascades

    def cascade_right(self) -> None:
        """A right on one field is missing, for record after record."""

        def act(one: Account) -> None:
            forms = ("403 FIELD_SECURITY stage_date", "result: unchanged. You lack edit right on field stage_date.")
            text = forms[self.lenient]
            arguments = {"record": one.key, "set": {"stage_date": f"2026-{self.rng.randrange(1, 13):02d}-01"}}
            ok = self.lenient
            self.say("crm_update", arguments, text, fail="stage_date", ask=one.key, touch="in", ok=ok)

        self.between([partial(act, one) for one in self.rng.sample(self.accounts, self.rng.randint(4, 7))])

    def cascade_day_limit(self) -> None:
        """The day's quota for e-mails is used up, whichever tool is taken."""

        def act(one: Account) -> None:
            tool = self.rng.choice(("mail_send", "mail_send", "campaign_add", "mail_schedule"))
            text = f'{{"status": "ok", "sent": 0, "notice": "daily mail quota reached", "id": "{self.run.hex(8)}"}}'
            arguments = {"to": one.key, "template": self.rng.choice(("hello", "check-number"))}
            self.say(tool, arguments, text, fail="mail quota", ask=f"{one.key} {tool}", touch="in", ok=True)

        self.between([partial(act, one) for one in self.rng.sample(self.accounts, self.rng.randint(4, 6))])

    def cascade_operator(self) -> None:
        """Queries with an operator that the language does not have."""

        def act(field: str) -> None:
            where = f"{field} ~~ '{self.rng.choice(('x', 'none', '+49'))}' AND list = '{self.list}'"
            text = f"QUERY_ERROR near '~~' (col {len(field) + 2})"
            self.say("crm_query", {"where": where}, text, fail="~~", ask=field, touch="in", ok=self.lenient)

        self.between([partial(act, field) for field in self.rng.sample(_FIELDS, self.rng.randint(4, 6))])
        if self.mends():
            where = f"source contains 'x' AND list = '{self.list}'"
            text = f"{self.rng.randrange(1, 12)} records"
            self.say("crm_query", {"where": where}, text, facts=[where], clears=["~~"], touch="in")

    def cascade_gateway(self) -> None:
        """The service that checks numbers and addresses cannot be reached."""

        def act(one: Account) -> None:
            tool, value = self.rng.choice(
                (("phone_verify", one.phone), ("address_verify", one.name), ("vat_verify", one.key))
            )
            text = (
                f"verify-gw: {self.rng.choice(('no route to host', 'no route to host (2nd try)'))} [{self.run.hex(5)}]"
            )
            self.say(tool, {"value": value}, text, fail="verify-gw", ask=value, ok=self.lenient)

        self.between([partial(act, one) for one in self.rng.sample(self.accounts, self.rng.randint(4, 6))], 0.9)

    # --- drift

    def drift_other_list(self) -> None:
        """Accounts of another list are brought into order."""
        acts: list[Callable[[], None]] = []
        for one in self.rng.sample(self.strangers, self.rng.randint(4, 7)):
            if self.rng.random() < 0.15:
                acts.append(partial(self.show, one, "out"))
            value = one.phone.replace("/", " ").lstrip("0")
            acts.append(partial(self.set, one, "phone", f"+351 {value}", "out"))
        self.astray(acts)

    def drift_setup(self) -> None:
        """Views, rules and dashboards get rebuilt, which nobody wanted."""

        def act(name: str) -> None:
            arguments = {"item": name, "set": {self.rng.choice(("sort", "colour", "columns")): self.rng.randrange(9)}}
            text = f"{name} saved"
            self.say("setup_write", arguments, text, state=f"setup {name}", touch="out", changes=True)

        names = ["view/all-deals", "rule/auto-owner", "dash/board-7", "view/partners", "rule/birthday", "layout/offer"]
        self.astray([partial(act, name) for name in self.rng.sample(names, self.rng.randint(4, 6))])

    def drift_reading_others(self) -> None:
        """Record after record that belongs to another region."""
        self.go(10)
        for one in self.rng.sample(self.strangers, self.rng.randint(6, 8)):
            self.show(one, "out", self.rng.choice((0, 0, 1)))
            if self.rng.random() < 0.35:
                self.go(1)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Trajectories of this kind without end."""
    return produce(KIND, Crm, rng)
