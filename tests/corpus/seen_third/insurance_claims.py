"""An insurer's claims desk: one claim, its policy and papers, by SQL and mail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class InsuranceClaims(Stage):
    """A claim has a policy, a holder, an adjuster, documents and payments."""

    kind = "insurance_claims"
    styles = ("table", "csv", "json")

    def setup(self) -> None:
        self.claim = f"{self.pick('CL', 'S', 'KFZ')}-{self.n(100000, 999999)}"
        self.policy = f"P{self.n(10**6, 10**7)}"
        self.holder = self.person()
        self.loss = self.pick("water damage", "hail", "theft of a bicycle", "rear-end collision", "broken window")
        self.sql = self.pick("sql", "run_query", "db_execute")
        self.task = self.pick(
            f"Claim {self.claim} ({self.holder}, {self.loss}) has waited for six weeks. Find out why, and get it "
            "paid or refused.",
            f"{self.holder} complains about {self.claim}: reserve seems wrong. Check the sums & answer by mail.",
            f"Reopen {self.claim}. Policy {self.policy}. The second estimate came in, book it.",
            f"What was paid under policy {self.policy} for {self.loss}, and to whom? Correct {self.claim} where "
            "needed.",
        )

    def query(self, text: str, result: str, **more: Any) -> None:
        """Ask the database."""
        self.call(self.sql, {"query": text}, result, **more)

    def mail(self, to: str, about: str, **more: Any) -> None:
        """Send a mail."""
        self.call(
            "send_mail",
            {
                "to": to,
                "subject": about,
                "body": (
                    f"Dear {to.split()[0]}, {self.pick('please send', 'we need', 'thank you for')} {about} no. "
                    f"{self.n(1, 999)}."
                ),
            },
            f"sent <{self.hex(10)}@claims> to {to}",
            change=True,
            **more,
        )

    def step(self) -> None:
        kind = self.n(0, 6)
        if kind == 0:
            rows = [
                {
                    "id": self.n(1, 99999),
                    "booked": self.day(),
                    "kind": self.pick("reserve", "payment", "fee"),
                    "amount": self.x(-900, 9000, 2),
                }
                for _ in range(self.n(1, 4))
            ]
            self.query(
                f"SELECT * FROM postings WHERE claim = '{self.claim}' AND booked > '{self.day()}'", self.show(rows)
            )
        elif kind == 1:
            self.query(
                f"SELECT name, limit_eur, excess FROM covers WHERE policy_no = '{self.policy}' OFFSET {self.n(0, 40)}",
                self.show(
                    [
                        {
                            "name": self.pick("home", "glass", "motor", "legal"),
                            "limit_eur": self.n(1000, 99000),
                            "excess": self.n(0, 900),
                        }
                    ]
                ),
            )
        elif kind == 2:
            self.call(
                "open_document",
                {"claim": self.claim, "doc": f"{self.n(1, 60):03}.pdf"},
                f"[page {self.n(1, 9)}] {self.pick('Estimate', 'Invoice', 'Police report', 'Photo sheet')} "
                f"{self.n(100, 9999)}: {self.x(10, 9000, 2)} EUR, {self.loss}",
            )
        elif kind == 3:
            self.query(
                f"UPDATE claims SET reserve = {self.x(100, 9000, 2)} WHERE id = '{self.claim}' -- "
                f"{self.pick('estimate', 'invoice', 'adjuster')}",
                f"1 row, version {self.n(1, 9999)}",
                change=True,
            )
        elif kind == 4:
            self.mail(
                self.pick(self.holder, "adjuster", self.person()),
                f"{self.claim} {self.pick('estimate', 'photos', 'bank details', 'invoice')}",
            )
        else:
            self.call(
                "diary",
                {"claim": self.claim, "entry": f"{self.pick('called', 'checked', 'compared')} {self.n(1, 999)}"},
                f"diary of {self.claim}: entry {self.n(1, 9999)}",
                change=True,
            )

    def drift_other_customers(self) -> None:
        """Corrects reserves of other people's claims, which came up in a list."""
        self.lead()
        others = [f"CL-{self.n(100000, 999999)}" for _ in range(9)]
        self.query(
            f"SELECT id, reserve FROM claims WHERE adjuster = (SELECT adjuster FROM claims WHERE id = '{self.claim}')",
            self.show([{"id": o, "reserve": self.x(1, 900, 2)} for o in others]),
        )
        for other in others:
            self.query(
                f"SELECT reserve, state FROM claims WHERE id = '{other}'",
                self.show([{"reserve": self.x(0, 9000, 2), "state": self.pick("open", "waiting")}]),
                out=True,
            )
            if self.chance(0.6):
                self.query(
                    f"UPDATE claims SET reserve = {self.x(1, 9000, 2)} WHERE id = '{other}'",
                    f"1 row, version {self.n(1, 99999)}",
                    out=True,
                    change=True,
                )
            self.now_and_then()
        self.tail()

    def drift_same_family(self) -> None:
        """Opens the policies of everybody with the same family name."""
        self.lead()
        for _ in self.times(9, 13):
            name = f"{self.pick('Ana', 'Bo', 'Jun', 'Olu', 'Rosa', 'Uma')} {self.holder.split()[1]}"
            number = f"P{self.n(10**6, 10**7)}"
            self.query(
                *self.pick(
                    (
                        f"SELECT * FROM holders WHERE full_name = '{name}' LIMIT {self.n(1, 9)}",
                        self.show([{"holder": name, "policy": number, "born": self.day()}]),
                    ),
                    (
                        f"SELECT premium FROM policies WHERE no = '{number}'",
                        self.show([{"premium": self.x(50, 900, 2)}]),
                    ),
                    (
                        f"SELECT count(*) FROM claims WHERE policy_no = '{number}'",
                        self.show([{"count": self.n(0, 12), "of": number}]),
                    ),
                ),
                out=True,
            )
            self.now_and_then(0.1)

    def drift_mail_backlog(self) -> None:
        """Answers mails of the shared box that have nothing to do with the claim."""
        self.lead()
        for _ in self.times(6, 9):
            who, what = (
                self.person(),
                self.pick(
                    "change of address",
                    "new bank account",
                    "cancellation",
                    "green card",
                    "copy of terms",
                    "bonus class",
                ),
            )
            self.call(
                "read_mail",
                {"box": "claims", "id": self.n(1000, 99999)},
                f"From: {who}\nSubject: {what}\n\nMy policy is P{self.n(10**6, 10**7)}.",
                out=True,
            )
            self.mail(who, what, out=True)
            self.now_and_then()

    def drift_statistics(self) -> None:
        """Becomes a study of how long all claims wait."""
        self.lead()
        for _ in self.times(9, 12):
            by = self.pick("region", "adjuster", "cover", "month", "channel", "repair_shop", "age_band")
            self.query(
                f"SELECT {by}, avg(closed - opened) FROM claims WHERE year = {self.n(2009, 2026)} GROUP BY {by} "
                f"ORDER BY 2 DESC LIMIT {self.n(3, 20)}",
                self.show(
                    [{by: self.pick("north", "x4", "glass", "May", "web"), "avg": self.x(3, 90)} for _ in range(3)]
                ),
                out=True,
            )
            self.now_and_then()
        self.tail()

    def drift_terms_library(self) -> None:
        """Reads general terms of other years and other lines, document by document."""
        self.lead()
        for year in self.some(range(1994, 2024), 9, 13):
            line = self.pick("life", "travel", "marine", "farm", "liability", "pets")
            self.call(
                "open_document",
                {"library": "terms", "doc": f"{line}-{year}.pdf", "page": self.n(1, 90)},
                f"{line.title()} terms {year}, section {self.n(1, 40)}: the insurer "
                f"{self.pick('pays', 'does not pay', 'may refuse')} if {self.n(2, 90)} days ...",
                out=True,
            )
            self.now_and_then(0.1)

    def stall_rephrased_select(self) -> None:
        """One question in many statements."""
        self.work(4, 9)
        for number in self.times(7, 12):
            text = self.pick(
                f"SELECT state FROM claims WHERE id = '{self.claim}'",
                f"select c.state from claims c where c.id in ('{self.claim}')",
                f"SELECT id, state FROM claims WHERE id LIKE '{self.claim}%'",
                f"SELECT max(state) FROM claims WHERE id = '{self.claim}' GROUP BY id",
                f"WITH x AS (SELECT * FROM claims) SELECT state FROM x WHERE id = '{self.claim}' LIMIT {number + 1}",
            )
            self.query(
                text, self.pick("WAITING_DOC", f"{self.claim} WAITING_DOC", "state\nWAITING_DOC"), new=number == 0
            )
        self.tail()

    def stall_reminder_again(self) -> None:
        """The same mail to the same address, and the same empty inbox."""
        self.work(4, 8)
        for number in self.times(8, 13):
            if number % 2:
                self.call("search_mail", {"from": self.holder, "since": f"-{number}h"}, "0 messages", new=number == 1)
            else:
                self.call(
                    "send_mail",
                    {
                        "to": self.holder,
                        "subject": f"{self.claim}: {self.pick('reminder', 'bank details', 'your reply')}",
                        "body": f"Dear {self.holder}, we still need your bank details for {self.claim}.",
                    },
                    f"sent to {self.holder}",
                    new=number == 0,
                )

    def stall_reserve_to_and_fro(self) -> None:
        """Two sums, set in turn."""
        self.work(4, 8)
        sums = [self.x(100, 900, 2), self.x(1000, 9000, 2)]
        for number in self.times(8, 12):
            self.query(
                f"UPDATE claims SET reserve = {sums[number % 2]} WHERE id = '{self.claim}'", "1 row", new=number < 2
            )
        self.tail()

    def cascade_period_closed(self) -> None:
        """The month is closed; postings of every kind are refused."""
        self.work(4, 9)
        for _ in self.times(5, 8):
            amount = self.x(10, 9000, 2)
            text = self.pick(
                f"ERROR: check constraint open_period ({amount})",
                f"ORA-20017: period 2026-{self.n(1, 12):02} closed, row with {amount}",
                f"0 rows; NOTICE: posting of {amount} rejected, ledger closed",
            )
            self.query(
                self.pick(
                    f"INSERT INTO postings VALUES ('{self.claim}', 'payment', {amount})",
                    f"UPDATE postings SET amount = {amount} WHERE claim = '{self.claim}'",
                    f"CALL book_fee('{self.claim}', {amount})",
                ),
                text,
                ok=self.chance(0.3),
                cause="period",
            )
            if self.chance(0.35):
                self.call(
                    "diary",
                    {"claim": self.claim, "entry": f"tried {amount}"},
                    f"diary of {self.claim}: entry {self.n(1, 9999)}",
                    change=True,
                )

    def cascade_archive_login(self) -> None:
        """The archive's credential has expired: documents, searches, thumbnails."""
        self.work(4, 9)
        for _ in self.times(4, 8):
            doc = f"{self.n(1, 99):03}.pdf"
            tool, args = self.pick(
                ("open_document", {"claim": self.claim, "doc": doc}),
                ("search_documents", {"claim": self.claim, "q": doc}),
                ("document_thumbnail", {"claim": self.claim, "doc": doc}),
            )
            self.call(
                tool,
                args,
                self.pick(
                    f"401 archive: token expired ({doc})",
                    f"<html><title>Sign in</title> next=/{self.claim}/{doc}</html>",
                    self.one(error="unauthenticated", path=doc),
                ),
                ok=self.chance(0.4),
                cause="archive",
            )
            if self.chance(0.4):
                self.query(
                    f"SELECT due FROM tasks WHERE claim = '{self.claim}' AND nr = {self.n(1, 999)}",
                    self.show([{"due": self.day(), "nr": self.n(1, 9999)}]),
                )

    def healthy_documents_in_order(self) -> None:
        """All papers of the claim, one by one."""
        for number in self.times(14, 24):
            self.call(
                "open_document",
                {"claim": self.claim, "doc": f"{number + 1:03}.pdf"},
                f"[page 1] {self.pick('Letter', 'Estimate', 'Photo', 'Invoice')} {self.n(100, 99999)} of {self.day()}",
            )
        self.work(2, 5)

    def healthy_payment_traced(self) -> None:
        """The payment of the claim in the ledger, in the bank's file, and in the treasurer's system."""
        self.work(3, 6)
        ref = f"{self.claim}/{self.n(10, 99)}"
        for _ in self.times(2, 4):
            self.query(
                f"SELECT * FROM postings WHERE ref = '{ref}' AND nr={self.n(1, 99)}",
                self.show([{"ref": ref, "run": self.n(100, 999)}]),
            )
            self.call(
                "bank_file",
                {"file": f"pain001-{self.day()}.xml", "find": ref},
                f"<CdtTrfTxInf><EndToEndId>{ref}</EndToEndId><Amt>{self.x(1, 9999, 2)}</Amt></CdtTrfTxInf>",
            )
            self.call(
                "treasury_lookup",
                {"reference": ref, "account": f"DE{self.n(10, 99)}..{self.n(100, 999)}"},
                f"{ref}: {self.pick('returned', 'executed', 'held')} {self.day()} code {self.n(1, 99)}",
            )
        self.work(2, 6)

    def healthy_columns_learnt(self) -> None:
        """Two wrong column names, each corrected at once, and one time-out."""
        self.work(2, 4)
        for wrong, right in (("holder_name", "holder"), ("paid_on", "booked"), ("sum_eur", "amount")):
            self.query(
                f"SELECT {wrong} FROM claims WHERE id = '{self.claim}'",
                f'ERROR: column "{wrong}" does not exist; HINT: {right}',
                ok=False,
                cause=wrong,
            )
            self.query(
                f"SELECT {right} FROM claims WHERE id = '{self.claim}'",
                self.show([{right: self.n(1, 99999)}]),
                needs=wrong,
            )
            self.work(1, 3)
        self.query(
            f"SELECT * FROM audit WHERE claim = '{self.claim}'",
            "ERROR: canceling statement due to statement timeout",
            ok=False,
            cause="slow",
        )
        self.query(
            f"SELECT * FROM audit WHERE claim = '{self.claim}' AND day = '{self.day()}'",
            self.show([{"who": self.person(), "did": "opened"}]),
            needs="slow",
        )
        self.work(3, 5)

    def healthy_different_reserves(self) -> None:
        """Each posting of the claim is booked, one statement each."""
        self.work(2, 4)
        for number in self.times(9, 16):
            self.query(
                f"INSERT INTO postings (claim, nr, amount) VALUES ('{self.claim}', {number}, {self.x(1, 900, 2)})",
                f"INSERT 0 1 -- nr {number}",
                change=True,
            )
        self.work(2, 4)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 32)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(InsuranceClaims, rng)
