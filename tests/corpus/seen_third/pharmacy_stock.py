"""A hospital pharmacy: a recalled batch is traced through wards and cabinets, by a REST service."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

DRUGS = [
    "amoxicillin",
    "heparin",
    "insulin-glargine",
    "metoprolol",
    "morphine",
    "ondansetron",
    "propofol",
    "salbutamol",
    "warfarin",
]
WARDS = ["2A", "2B", "3C", "ICU", "NEO", "ONC", "SURG-1", "SURG-2", "ED", "DIAL"]


class PharmacyStock(Stage):
    """One batch of one drug is recalled; other drugs have troubles of their own."""

    kind = "pharmacy_stock"
    memo = ("append_note",)

    def setup(self) -> None:
        self.drug, *self.others = self.some(DRUGS, 6)
        self.lot = f"{self.pick('L', 'B', 'CH')}{self.n(1000, 9999)}{self.pick('', 'A', 'X')}"
        self.wards = self.some(WARDS, 4, 8)
        self.base = self.pick("/api/v2", "/pharm", "https://rx.klinik.example/v1")
        self.task = self.pick(
            f"Recall notice: lot {self.lot} of {self.drug}. Find every cabinet that holds it and put it in quarantine.",
            f"{self.lot} ({self.drug}) is recalled by the maker. Where did it go, and is it all blocked?",
            f"Rueckruf Charge {self.lot}, {self.drug}: Bestand je Station, sperren, Liste an die Aufsicht",
            f"pls block lot {self.lot} everywhere + tell me how many units of {self.drug} were given out of it",
        )

    def get(self, path: str, result: str, **more: Any) -> None:
        """Ask the service."""
        self.call("http_get", {"url": f"{self.base}{path}"}, result, **more)

    def step(self) -> None:
        ward = self.pick(*self.wards)
        kind = self.n(0, 4)
        if kind == 0:
            rows = [
                {"cabinet": f"{ward}-{self.n(1, 40):02}", "lot": self.lot, "units": self.n(0, 60)}
                for _ in range(self.n(1, 4))
            ]
            self.get(f"/stock?lot={self.lot}&ward={ward}", self.show(rows))
        elif kind == 1:
            args = {"url": f"{self.base}/quarantine", "body": {"lot": self.lot, "cabinet": f"{ward}-{self.n(1, 99)}"}}
            self.call(
                "http_post", args, self.one(quarantine=self.n(10000, 99999), lot=self.lot, state="blocked"), change=True
            )
        elif kind == 2:
            rows = [
                {"dose": self.hex(6), "lot": self.lot, "given": f"{self.day()}", "ward": ward}
                for _ in range(self.n(2, 6))
            ]
            self.get(f"/administrations?lot={self.lot}&page={self.n(1, 90)}", self.show(rows))
        elif kind == 3:
            self.get(
                f"/shipments/{self.n(20000, 29999)}",
                self.one(lot=self.lot, drug=self.drug, to=ward, units=self.n(10, 400)),
            )
        else:
            self.call(
                "http_post",
                {
                    "url": f"{self.base}/messages",
                    "body": {
                        "to": f"ward-{ward}",
                        "text": f"Lot {self.lot}: return {self.n(1, 40)} units of {self.drug}",
                    },
                },
                f"202 queued as {self.n(100, 99999)}",
                change=True,
            )

    def drift_reorder_levels(self) -> None:
        """Low stock of other drugs is seen on the way, and mended."""
        self.lead()
        for _ in self.times(8, 12):
            drug = self.pick(*self.others)
            if self.chance(0.5):
                self.get(
                    f"/items/{drug}/levels",
                    self.one(item=drug, min=self.n(5, 20), max=self.n(30, 90), now=self.n(0, 30)),
                    out=True,
                )
            else:
                level = self.n(20, 200)
                self.call(
                    "http_put",
                    {"url": f"{self.base}/items/{drug}/levels", "body": {"min": level}},
                    self.one(item=drug, min=level, saved=True),
                    out=True,
                    change=True,
                )
            self.now_and_then()
        self.tail()

    def drift_sibling_lots(self) -> None:
        """From the recalled lot to lots beside it, which nobody recalled."""
        self.lead()
        stem = int("".join(c for c in self.lot if c.isdigit()))
        for number in self.times(8, 13):
            lot = f"L{stem + number + 1}"
            if self.chance(0.6):
                args = {"url": f"{self.base}/quarantine", "body": {"lot": lot, "reason": "near a recalled one"}}
                self.call(
                    "http_post",
                    args,
                    self.one(quarantine=self.n(10000, 99999), lot=lot, state="blocked"),
                    out=True,
                    change=True,
                )
            else:
                self.get(
                    f"/stock?lot={lot}",
                    self.show([{"lot": lot, "ward": self.pick(*WARDS), "units": self.n(1, 90)}]),
                    out=True,
                )
            self.now_and_then(0.1)

    def drift_patients(self) -> None:
        """Reads charts of patients that never had the drug, further and further away."""
        self.lead()
        for _ in self.times(9, 14):
            who = self.n(400000, 499999)
            other = self.pick(*self.others)
            path = self.pick(
                f"/patients/{who}/chart", f"/patients/{who}/allergies", f"/patients/{who}/orders?drug={other}"
            )
            self.get(
                path,
                self.one(
                    patient=who,
                    name=self.person(),
                    on=other,
                    mg=self.n(1, 900),
                    note=self.pick("stable", "reviewed", "ask again"),
                ),
                out=True,
            )
            self.now_and_then()
        self.tail()

    def drift_formulary_text(self) -> None:
        """Rewrites formulary pages, one wrong turn after a link to the monograph."""
        self.lead()
        self.get(
            f"/monographs/{self.drug}",
            f"# {self.drug}\nclass {self.pick('C', 'D')}, see also {', '.join(self.others[:3])}",
        )
        for _ in self.times(8, 11):
            drug = self.pick(*self.others)
            self.get(
                f"/monographs/{drug}",
                f"# {drug}\nrev {self.n(1, 90)}: {self.pick('dose', 'storage', 'interactions')} section is "
                f"{self.pick('old', 'long', 'unclear')}",
                out=True,
            )
            if self.chance(0.6):
                self.call(
                    "http_patch",
                    {
                        "url": f"{self.base}/monographs/{drug}",
                        "body": {"section": self.pick("dose", "storage"), "text": f"Keep below {self.n(8, 30)} C"},
                    },
                    f"204 rev {self.n(91, 999)}",
                    out=True,
                    change=True,
                )

    def stall_same_page(self) -> None:
        """The cursor is ignored by the service: every page is the first."""
        self.work(3, 9)
        rows = [{"cabinet": f"{w}-{self.n(1, 40):02}", "lot": self.lot, "units": self.n(0, 60)} for w in self.wards]
        text = self.show(rows)
        for page in self.times(8, 14):
            self.get(f"/stock?lot={self.lot}&cursor={self.hex(10)}&page={page + 1}", text, new=page == 0)
        self.tail()

    def stall_block_unblock(self) -> None:
        """Two rules fight: what is blocked is released, and blocked again."""
        self.work(4, 8)
        cabinet = f"{self.wards[0]}-{self.n(1, 40)}"
        for number in self.times(8, 13):
            state = "released" if number % 2 else "blocked"
            self.call(
                "http_post",
                {"url": f"{self.base}/cabinets/{cabinet}/state", "body": {"lot": self.lot, "state": state}},
                self.one(cabinet=cabinet, lot=self.lot, state=state),
                new=number < 2,
            )

    def stall_three_doors(self) -> None:
        """The same count through three endpoints, again and again."""
        self.work(4, 10)
        units = self.n(100, 900)
        for number in self.times(8, 15):
            path = [f"/lots/{self.lot}", f"/stock/summary?lot={self.lot}", f"/lots?q={self.lot}&fields=units"][
                number % 3
            ]
            text = [
                self.one(lot=self.lot, units=units),
                f"total {units} units of {self.lot}",
                self.show([{"units": units}]),
            ][number % 3]
            self.get(path, text, new=number == 0)
        self.tail()

    def cascade_signature(self) -> None:
        """A second pharmacist would have to sign in; every block is refused, in many words."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            cabinet = f"{self.pick(*self.wards)}-{self.n(1, 99)}"
            text = self.pick(
                f"403 four-eyes rule: no second signature for {cabinet}",
                self.one(error="COSIGN_REQUIRED", cabinet=cabinet),
                f"request for {cabinet} not executed (witness session missing, code {self.n(10, 99)})",
            )
            self.call(
                self.pick("http_post", "http_put"),
                {"url": f"{self.base}/quarantine/{cabinet}", "body": {"lot": self.lot}},
                text,
                ok=self.chance(0.3),
                cause="cosign",
            )
            if self.chance(0.35):
                self.get(
                    f"/cabinets/{cabinet}",
                    self.one(cabinet=cabinet, door=self.pick("closed", "open"), temp=self.x(2, 25)),
                )

    def cascade_gateway(self) -> None:
        """The stock service behind the gateway is gone: 502, 504, empty replies, resets, whatever is asked."""
        self.work(5, 10)
        for _ in self.times(5, 10):
            ward = self.pick(*self.wards)
            text = self.pick(
                f"502 Bad Gateway ({ward})",
                f"504 upstream stock-svc timed out for {ward}",
                f"curl: (56) reset by peer [{self.n(1, 99)}]",
                self.one(status=503, hint=f"stock-svc, shard {ward}"),
            )
            self.get(
                self.pick(
                    f"/stock?lot={self.lot}&ward={ward}", f"/administrations?ward={ward}", f"/shipments?ward={ward}"
                ),
                text,
                ok=False,
                cause="stock-svc",
            )
            if self.chance(0.3):
                self.note(f"{ward}: still open ({self.n(1, 999)})")

    def healthy_ward_by_ward(self) -> None:
        """One call a ward, all of the same form."""
        for ward in self.some(WARDS, 9, 10):
            self.get(
                f"/stock?lot={self.lot}&ward={ward}",
                self.show([{"ward": ward, "lot": self.lot, "units": self.n(0, 90), "seen": self.day()}]),
            )
        self.work(2, 8)

    def healthy_through_three_systems(self) -> None:
        """The lot is traced through purchasing, the robot store and the bedside records."""
        self.work(2, 5)
        order, robot = self.n(45000, 45999), self.hex(5).upper()
        self.get(
            f"/purchasing/orders/{order}",
            self.one(order=order, line=f"{self.drug} lot {self.lot}", supplier=self.person()),
        )
        for _ in self.times(4, 7):
            self.call(
                "robot_store_query",
                {"q": f"lot={self.lot} bay={self.n(1, 60)}"},
                f"bay {self.n(1, 60)} pack {robot}{self.n(1, 99)} lot {self.lot} picked {self.day()}",
            )
            self.call(
                "sql",
                {
                    "db": "bedside",
                    "query": (
                        f"select dose_id, ward from given where lot = '{self.lot}' and pack like "
                        f"'{robot}{self.n(1, 99)}%'"
                    ),
                },
                self.show([{"dose_id": self.n(1, 99999), "ward": self.pick(*self.wards)}]),
            )
        self.work(2, 6)

    def healthy_not_held_here(self) -> None:
        """404 answers whether a ward holds the lot."""
        self.work(1, 3)
        for ward in self.some(WARDS, 7, 9):
            held = self.chance(0.3)
            self.get(
                f"/wards/{ward}/lots/{self.lot}",
                self.one(ward=ward, units=self.n(1, 40)) if held else f"404 {ward} has never held {self.lot}",
                ok=held,
            )
        self.work(2, 6)

    def healthy_slow_report(self) -> None:
        """A report is polled while it moves on."""
        self.work(2, 5)
        done, job = 0, self.n(100, 999)
        self.call(
            "http_post", {"url": f"{self.base}/reports", "body": {"lot": self.lot}}, f"202 report {job}", change=True
        )
        while done < 100:
            done = min(100, done + self.n(6, 19))
            self.get(f"/reports/{job}", self.one(report=job, percent=done), wait="report", new=True, gap=self.x(4, 40))
        self.get(f"/reports/{job}/content", self.show([{"ward": w, "given": self.n(0, 40)} for w in self.wards]))

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(PharmacyStock, rng)
