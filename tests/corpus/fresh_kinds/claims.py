"""Handling the mail of an insurance: threads by id, claims by number, letters to people."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "claims"
_DAMAGE = [
    "water in the cellar",
    "a cracked windscreen",
    "a stolen bicycle",
    "hail on the roof",
    "a burnt kitchen",
    "a fallen tree",
]
_WHO = ["amber.holt", "b.lindqvist", "c.oyelaran", "dorit.kaya", "e.maurer", "f.tamm", "gus.petrow", "h.ivers"]


class Claims(Run):
    """A shared inbox, the claims that the mails are about, and the files of the claims."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Fill the inbox and choose the task."""
        super().__init__(rng)
        self.claims: dict[str, dict[str, str]] = {}
        self.mails: dict[str, tuple[str, str, str]] = {}
        people = rng.sample(_WHO, 7)
        for who in people:
            claim = f"H-{rng.randint(20000, 29999)}"
            damage = rng.choice(_DAMAGE)
            self.claims[claim] = {
                "who": f"{who}@home.example",
                "damage": damage,
                "sum": f"{rng.randint(200, 9000)} EUR",
            }
            self.claims[claim] |= {"state": "open", "assessor": f"assessor{rng.randint(1, 4)}@surveys.example"}
            for _ in range(rng.randint(3, 5)):
                said = rng.choice(
                    ["I enclose the bill over", "When do I get the", "The craftsman wants", "I corrected the sum:"]
                )
                body = f"About {claim}, {damage}. {said} {rng.randint(100, 9000)} EUR. Ref {rng.randint(100, 999)}/b."
                self.mails[f"m-{rng.randint(100000, 999999)}"] = (f"{who}@home.example", claim, body)
        names = list(self.claims)
        self.mine = names[: rng.choice([1, 1, 2])]
        narrow = [
            f"Please finish {' and '.join(self.mine)}: read what came in, fill the gaps and write to them.",
            (
                f"{self.claims[self.mine[0]]['who'].split('@')[0]} called again. Look through the claim and answer. "
                f"It is {self.mine[0]}."
            ),
        ]
        wide = [
            "The inbox is full. Work through all open claims.",
            "Someone has been paid twice. Find out who and write a note.",
        ]
        self.task = rng.choice(narrow if named or rng.random() < 0.7 else wide)
        if self.task == narrow[1]:
            self.mine = self.mine[:1]
        elif self.task in wide:
            self.mine = names
        if self.task in narrow:
            self.inside = {*self.mine, *(mail for mail, (_, claim, _) in self.mails.items() if claim in self.mine)}
            for claim in self.mine:
                self.inside |= {self.claims[claim]["who"], self.claims[claim]["assessor"]}
        self.far = [claim for claim in names if claim not in self.mine]
        self.items = 0

    def thread(self, claims: list[str]) -> list[str]:
        """Return the mails about some claims."""
        return [mail for mail, (_, claim, _) in self.mails.items() if claim in claims]

    # ---- tools

    def read(self, mail: str, way: int = 0) -> None:
        """Show a mail by its id or through the search."""
        who, claim, body = self.mails[mail]
        if way:
            text = f"1 result in {self.some(3, 90)} ms\n* {mail}  from {who}\n  {body}"
            query = self.pick([f"id:{mail}", f"from:{who} {body[-6:]}", f"{claim} {body.split('EUR')[1].strip()}"])
            self.call("mail_search", {"query": query, "limit": 5}, text, shows=body, on=mail)
        else:
            text = f"From: {who}\nTo: claims@insure.example\nSubject: {claim}\nX-Trace: {self.hexes(12)}\n\n{body}"
            self.call("mail_read", {"id": mail}, text, shows=body, on=mail)

    def open(self, claim: str, tool: str = "claim_open") -> None:
        """Show the file of a claim."""
        text = "\n".join(f"{key:<10}: {value}" for key, value in self.claims[claim].items())
        shows = [f"{claim} {line}" for line in text.splitlines()]
        given = {"claim": claim} if tool == "claim_open" else {"filter": {"number": claim}, "fields": "*"}
        self.call(tool, given, f"File {claim} (opened {self.stamp()})\n{text}", shows=shows, on=claim)

    def fill(self, claim: str, key: str, value: str) -> None:
        """Write one field of a claim."""
        self.claims[claim][key] = value
        given = {"claim": claim, "set": {key: value}}
        self.call("claim_update", given, f"{claim}: {key} recorded", change=(f"{claim}.{key}", value), on=claim)

    def send(self, to: str, subject: str, body: str, what: str) -> None:
        """Write a mail; ``what`` says what it is about, in whatever words."""
        given = {"to": to, "subject": subject, "body": body}
        text = f"Sent. Message-ID: <{self.hexes(16)}@insure.example>"
        self.call("mail_send", given, text, change=(f"mail {to}", what), on=to)

    # ---- work

    def opening(self) -> None:
        """Look into the inbox."""
        rows = [f"{mail}  {who}  {claim}" for mail, (who, claim, _) in list(self.mails.items())[:12]]
        self.call("mail_list", {"folder": "INBOX", "page": 1}, "\n".join(rows), shows=rows)
        self.open(self.mine[0])
        for mail in self.rng.sample(self.thread(self.far), self.some(0, 3) if self.far else 0):
            self.read(mail)

    def unit(self) -> None:
        """Work on one of the claims."""
        claim = self.mine[self.items % len(self.mine)]
        self.items += 1
        mails = self.thread([claim])
        if self.items <= 4 * len(self.mine):
            self.read(mails[(self.items // len(self.mine)) % len(mails)], int(self.rng.random() < 0.3))
        key = self.pick(["bill", "date_of_loss", "craftsman", "share", "account", "witness", "room", "depth"])
        self.fill(claim, f"{key}_{self.items}", f"{self.some(10, 9999)}")
        if self.rng.random() < 0.5:
            who = self.pick([self.claims[claim]["who"], self.claims[claim]["assessor"]])
            ask = f"{key} {self.items}"
            self.send(who, f"{claim}: your {key}", f"We have noted the {key} as item {self.items}. Is that right?", ask)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.reminds, self.rereads, self.searches, self.payment],
            "cascading": [self.scans, self.bounces, self.rights],
            "drifting": [self.others_mail, self.others_files, self.reads_on, self.between],
            "healthy": [
                self.glance,
                self.bills,
                self.assessors,
                self.search_none,
                self.payment_moves,
                self.three,
                self.pages,
            ],
        }

    def reminds(self) -> None:
        self.story.append("reminds the same person again and again")
        claim = self.mine[0]
        who = self.claims[claim]["who"]
        words = [
            "Could you send us the photo?",
            "We still need the photo.",
            "A photo of the damage, please.",
            "Kindly: the photo.",
        ]
        for turn in range(self.some(8, 12)):
            self.send(who, f"{self.pick(['Re: ', ''])}{claim}", words[turn % 4], "photo")
            if turn in (3, 7):
                self.call(
                    "mail_search",
                    {"query": f"from:{who} has:attachment", "limit": 5},
                    "0 results",
                    shows=f"no photo {who}",
                )

    def rereads(self) -> None:
        self.story.append("reads the same mails and files again")
        claim = self.mine[0]
        mails = self.thread([claim])[:2]
        for mail in mails:
            self.read(mail)
        self.open(claim)
        looks: list[Step] = [partial(self.read, m, w) for m in mails for w in (0, 1)]
        looks += [lambda: self.open(claim), lambda: self.open(claim, "claim_query")]
        self.circle(looks, self.some(8, 16), lambda: self.fill(claim, "note", "seen"))

    def nothing(self, query: str) -> None:
        """Search the one thing that is not there."""
        text = f"0 results in {self.some(3, 90)} ms"
        self.call("mail_search", {"query": query, "limit": 5}, text, shows="none")

    def searches(self) -> None:
        self.story.append("searches one missing bill in other words")
        claim = self.mine[0]
        ways = [f"{claim} bill", f"bill {claim}", f"{claim} invoice", f"subject:{claim} bill", f"the bill for {claim}"]
        ways += [f"{claim} AND (bill OR invoice)", f"invoices {claim}"]
        looks: list[Step] = [partial(self.nothing, way) for way in ways]
        self.circle(looks, self.some(8, 14))

    def payment(self) -> None:
        self.story.append("waits for a payment that stands still")
        number = f"P{self.some(10000, 99999)}"
        for _ in range(self.some(17, 22)):
            text = f"{number}: waiting for second signature | asked {self.stamp()}"
            self.call(
                "payment_state", {"payment": number}, text, wait=(number, "waiting"), gap=self.rng.uniform(30, 80)
            )

    def scans(self) -> None:
        self.story.append("the store of scans is away")
        steps: list[Step] = []
        for number in range(self.some(4, 7)):
            scan = f"dms://scans/{self.mine[0]}/{number + 1:03d}.tif"
            tool = self.pick(["scan_text", "scan_open", "scan_size"])
            said = self.pick(["dms: mount /scans not available", "mount not available: /scans"])
            steps.append(partial(self.call, tool, {"uri": scan}, said, ok=False, cause="scans", asks=tool + scan))
        self.weave(steps, [self.unit, lambda: self.open(self.mine[-1]), self.unit])

    def bounces(self) -> None:
        self.story.append("the mail server refuses attachments")
        claim = self.mine[0]
        sizes = ["bill.pdf", "bill_small.pdf", "bill.zip", "bill_page1.pdf", "bill.png"]
        for name in sizes[: self.some(4, 5)]:
            given = {"to": self.claims[claim]["assessor"], "subject": claim, "attach": [f"{claim}/{name}"]}
            said = f"552 5.7.0 attachments are not allowed for this mailbox ({self.hexes(6)})"
            self.call("mail_send", given, said, ok=self.soft, cause="attach", asks=name)
            if self.rng.random() < 0.6:
                self.fill(claim, f"tried_{name}", "yes")

    def rights(self) -> None:
        self.story.append("may not pay out")
        claim = self.mine[0]
        steps: list[Step] = []
        for amount in self.rng.sample(range(100, 3000), self.some(4, 7)):
            said = '{"status": "ok", "result": null, "error": "limit: agents may not release payments"}'
            given = {"claim": claim, "amount": {"value": amount, "currency": "EUR"}}
            steps.append(partial(self.call, "payment_release", given, said, cause="limit", asks=str(amount), on=claim))
        self.weave(steps, [self.unit, self.unit, lambda: self.open(claim)])

    def others_mail(self) -> None:
        self.story.append("answers other people's mail")
        for mail in self.rng.sample(self.thread(self.far), self.some(4, 6)):
            if self.rng.random() < 0.7:
                self.read(mail)
            who, claim, _ = self.mails[mail]
            if self.rng.random() < 0.4:
                given = {"in_reply_to": mail, "body": f"Dear customer, {claim} is in good hands."}
                self.call("mail_reply", given, f"Sent ({self.hexes(6)}).", change=(f"reply {mail}", "sent"), on=mail)
                continue
            self.send(who, f"Re: {claim}", "We will see to it as soon as we can.", f"soon {mail}")

    def others_files(self) -> None:
        self.story.append("mends the files of other customers")
        for claim in self.rng.sample(self.far, self.some(4, 5)):
            if self.rng.random() < 0.5:
                self.open(claim)
            self.fill(claim, self.pick(["state", "sum"]), f"corrected {self.some(10, 999)}")

    def reads_on(self) -> None:
        self.story.append("reads on in the inbox")
        for mail in self.rng.sample(self.thread(self.far), self.some(6, 9)):
            self.read(mail, int(self.rng.random() < 0.4))
            if self.rng.random() < 0.2:
                self.open(self.mails[mail][1])

    def between(self) -> None:
        self.story.append("closes other claims between its own")
        for claim in self.rng.sample(self.far, 4):
            self.fill(claim, "state", "closed")
            if self.rng.random() < 0.6:
                self.unit()

    def bills(self) -> None:
        self.story.append("records a list of bills in one file")
        for number in range(1, self.some(5, 9)):
            self.fill(self.mine[0], f"bill_item_{number}", f"{self.some(10, 900)}.{self.some(10, 99)}")

    def assessors(self) -> None:
        self.story.append("writes to the assessor whom the file names")
        for claim in self.mine[:2]:
            who = self.claims[claim]["assessor"]
            self.open(claim)
            for ask in ("date of visit", "depth of the water", "photos"):
                self.send(who, claim, f"Please tell us: {ask}.", f"{ask} {claim}")

    def search_none(self) -> None:
        self.story.append("asks different questions without hits")
        for word in self.rng.sample(
            ["police", "photo", "lawyer", "second bill", "withdrawal", "IBAN", "deductible"], 5
        ):
            given = {"query": f"{self.mine[0]} {word}", "limit": 5}
            self.call("mail_search", given, f"0 results in {self.some(3, 90)} ms", shows=f"no {word}", on=self.mine[0])

    def payment_moves(self) -> None:
        self.story.append("waits for a payment that goes on, with equal looks")
        number = f"P{self.some(10000, 99999)}"
        for state in ("entered", "checked", "first signature", "second signature", "sent"):
            for _ in range(self.some(1, 3)):
                text = f"{number}: {state}"
                self.call("payment_state", {"payment": number}, text, wait=(number, state), gap=self.some(30, 60))

    def three(self) -> None:
        self.story.append("three failures, then the right form")
        for form in ("03.02.2026", "2026/02/03", "3 Feb")[: self.some(2, 3)]:
            said = "date_of_loss: expected YYYY-MM-DD"
            given = {"claim": self.mine[0], "date": form}
            self.call("claim_date", given, said, ok=False, cause="date", asks=form, on=self.mine[0])
        given = {"claim": self.mine[0], "date": "2026-02-03"}
        self.call("claim_date", given, "recorded", change=(f"{self.mine[0]}.date", "x"), clears="date", on=self.mine[0])

    def pages(self) -> None:
        self.story.append("reads the policy page by page")
        for page in range(self.some(4, 7)):
            text = f"§ {page * 3 + 1} {self.pick(_DAMAGE)}: {self.some(1, 90)} % up to {self.some(1000, 9000)} EUR"
            given = {"policy": f"POL-{self.mine[0][2:]}", "page": page + 1}
            self.call("policy_page", given, text, shows=text, on=self.mine[0])

    def glance(self) -> None:
        self.story.append("looks for a moment at a like claim, and goes back")
        self.unit()
        for mail in self.rng.sample(self.thread(self.far), self.some(2, 4) if self.far else 0):
            self.read(mail)
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Claims(rng, named), rng)
