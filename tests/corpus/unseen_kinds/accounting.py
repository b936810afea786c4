"""An accounting office: supplier invoices in a mailbox folder, a purchase ledger, files from the bank."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world1 import World, produce

KIND = "accounting office"

_NAMES = "Zirbelquast|Ostrupvik Pack|Nebelkamp & Sohn|Papier Quendelin|Tivarro Fracht|Moorhalm Strom|Altwick"
_GOODS = "pallets|toner|electricity|shelving|courier runs|packing foam|cleaning|forklift hire|labels|screws M6"


@dataclass
class Invoice:
    """One invoice as it lies in the inbox."""

    number: int
    vendor: int
    goods: str
    net: int
    rate: int
    code: str = ""
    account: int = 0

    @property
    def gross(self) -> int:
        return self.net + self.net * self.rate // 100


def _eur(cents: int) -> str:
    whole, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}{whole:,}".replace(",", ".") + f",{rest:02d}"


class Office(World):
    """An office that posts a range of invoices and matches them to the bank's lines."""

    free_task = "Do the work of the office that is open today, wherever it is, and keep the books clean."

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.first = rng.randrange(4100, 8800)
        self.count = rng.randint(16, 26)
        self.month = rng.randint(2, 11)
        names = _NAMES.split("|")
        self.vendors = {70000 + 10 * i + rng.randrange(9): name for i, name in enumerate(names)}
        self.docs = {n: self._invoice(n) for n in range(self.first - 30, self.first + self.count + 30)}
        self.last = self.first + self.count - 1
        self.missing = rng.randrange(1200, 99000)
        self.box = f"inbox/2026-{self.month:02d}"
        self.slipped: set[str] = set()
        self.batch = rng.choice((0, 0, 3, 4))
        self.other_accounts = [
            f"{acc:>6} {_eur(rng.randrange(-9000000, 9000000)):>16}"
            for acc in sorted(rng.sample(range(1000, 8900), rng.choice((2, 12, 45))))
        ]
        self.journal = rng.randrange(2000, 9000)
        self.bank = f"CAMT053_{rng.randrange(100, 999)}_2026{self.month:02d}28.xml"
        self.task = (
            f"Post the supplier invoices {self.first} to {self.last} from {self.box} to the purchase ledger, and match "
            f"them with the bank file {self.bank}. " + rng.choice(("", "The books of this month must balance after."))
        )

    def _invoice(self, number: int) -> Invoice:
        rng = self.rng
        vendor = rng.choice(list(self.vendors))
        return Invoice(number, vendor, rng.choice(_GOODS.split("|")), rng.randrange(900, 900000), rng.choice((7, 19)))

    # --- tools

    def open(self, number: int, touch: str = "in", way: str = "") -> None:
        """Open the picture of an invoice, whole or in part."""
        one = self.docs[number]
        text = (
            f"{self.vendors[one.vendor]}\nRechnung Nr. {number}   {one.goods}\nNetto {_eur(one.net)} EUR\n"
            f"USt {one.rate}% {_eur(one.gross - one.net)}\n"
            f"Brutto {_eur(one.gross)} EUR\nKreditor {one.vendor}, Lieferschein LS-{number * 17 % 90000}"
        )
        arguments: dict[str, object] = {"document": f"{self.box}/ER-{number}.pdf"}
        if way == "ocr":
            arguments["mode"] = "ocr"
            text = "[ocr conf=0." + str(self.rng.randrange(80, 99)) + "] " + text.replace("\n", " / ")
        elif way == "page":
            arguments["pages"] = self.rng.choice(("1", "1-1", "1-9"))
            text = "--- page 1 of 1 ---\n" + text
        self.run.call("open_document", arguments, text, facts=[f"doc{number}"], touch=touch)

    def vendor(self, key: int, touch: str = "in") -> None:
        """The master record of a supplier."""
        text = (
            f"KREDITOR  {key}\nNAME      {self.vendors.get(key, 'Einmallieferant')}\n"
            f"ZAHLZIEL  {14 + key % 3 * 8} Tage\nIBAN      DE{key % 89 + 10} **** **** {key * 7 % 10000:04d}\n"
            f"abgerufen {self.run.stamp('%d.%m.%Y %H:%M:%S')}"
        )
        self.run.call("kreditor_anzeigen", {"konto": str(key)}, text, facts=[f"vendor{key}"], touch=touch)

    def post(self, number: int, code: str, account: int, touch: str = "in", tool: str = "ledger.post") -> None:
        """Post an invoice, or change how it is posted."""
        one = self.docs[number]
        one.code, one.account = code, account
        self.journal += 1
        text = (
            f'<ack belegnr="{self.journal}" zeit="{self.run.stamp("%H:%M:%S")}"><soll konto="{account}">{_eur(one.net)}'
            f'</soll><haben konto="{one.vendor}">{_eur(one.gross)}</haben><stkz>{code}</stkz></ack>'
        )
        arguments = {"beleg": f"ER-{number}", "konto": account, "stkz": code, "betrag": f"{one.net / 100:.2f}"}
        self.run.call(tool, arguments, text, state=f"{number}={code}/{account}", touch=touch, changes=True)

    def lines(self, start: int) -> None:
        """Ten lines of the bank's file."""
        rows = [
            f'<Ntry ref="{start + i}"><Amt Ccy="EUR">{d.gross / 100:.2f}</Amt><Rmt>ER {d.number} {d.goods}</Rmt></Ntry>'
            for i, d in enumerate(list(self.docs.values())[30 + start : 30 + start + 8])
        ]
        text = f"<Stmt file='{self.bank}' from='{start}'>\n" + "\n".join(rows) + "\n</Stmt>"
        self.run.call("bank_file.entries", {"file": self.bank, "skip": start}, text, facts=[f"bank{start}"], touch="in")

    def balance(self) -> None:
        """The trial balance and its difference."""
        posted = [d for d in self.docs.values() if d.code]
        total = sum(d.gross for d in posted)
        rows = [f"{acc:>6} {_eur(sum(d.net for d in posted if d.account == acc)):>16}" for acc in (3300, 4930, 4240)]
        rows += self.other_accounts
        text = "Konto             Saldo EUR\n" + "\n".join(rows) + f"\n{'Summe':>6} {_eur(total):>16}\n"
        text += f"Abweichung zum Sammelkonto: {_eur(self.missing)}\nStand {self.run.stamp('%H:%M:%S')}"
        arguments = {"period": f"2026-{self.month:02d}"}
        self.run.call("report.saldenliste", arguments, text, check=("balance", f"{total} {self.missing}"))

    def look_around(self) -> None:
        for month in self.rng.sample(range(1, 13), self.rng.randint(3, 7)):
            folder = f"inbox/2025-{month:02d}"
            text = f"{month * 7 % 31 + 20} documents, oldest ER-{3000 + month * 31}, all posted"
            self.run.call("mailbox_folder", {"folder": folder, "summary": True}, text, facts=[folder], touch="out")

    def work(self) -> Iterator[None]:
        rng = self.rng
        numbers = list(range(self.first, self.last + 1))
        for begin in range(0, len(numbers), 12):
            rows = [f"ER-{n}.pdf  {200 + n * 13 % 700} KB" for n in numbers[begin : begin + 12]]
            arguments = {"folder": self.box, "from": f"ER-{numbers[begin]}", "limit": 12}
            self.run.call("mailbox_folder", arguments, "\n".join(rows), facts=[f"box{begin}"], touch="in")
            yield
        for index, number in enumerate(numbers):
            if self.batch and index % self.batch == 0:
                for other in numbers[index : index + self.batch]:
                    self.run.next_gap = None if other == number else 0.0
                    self.open(other)
                    yield
            elif not self.batch:
                self.open(number)
                yield
            one = self.docs[number]
            if f"vendor{one.vendor}" not in self.run.known:
                self.vendor(one.vendor)
                yield
            self.post(number, "V9" if one.rate == 19 else "V7", rng.choice((3300, 4930, 4240)))
            yield
            if index % 5 == 4:
                self.lines(index - 4)
                yield
                self.balance()
                yield
            if rng.random() < 0.5:
                text = f"matched ER-{number} <-> entry {index} ({_eur(one.gross)}), left: {len(numbers) - index}"
                arguments = {"left": f"ER-{number}", "right": f"{self.bank}#{index}"}
                self.run.call("match_items", arguments, text, state=f"match{number}", touch="in", changes=True)
                yield

    # --- look-alikes

    def alike_download(self) -> None:
        """A bank file on its way, looked at with patience, arrives."""
        name = f"MT940_{self.run.hex(5)}"
        arguments = {"type": "MT940", "days": 30}
        self.run.call("bank_file.order", arguments, f"ordered: {name}", state=name, touch="in")
        for _ in range(self.rng.randint(4, 8)):
            self.run.pause(25, 95)
            self.run.call("bank_file.status", {"order": name}, "IN TRANSMISSION", wait=(name, "transmission"))
        self.run.pause(30, 60)
        self.run.call("bank_file.status", {"order": name}, "RECEIVED, 41 entries", wait=(name, "received"))

    def alike_three_causes(self) -> None:
        """Three failures of three causes, each put right."""
        number = self.rng.randrange(self.first, self.last)
        arguments: dict[str, object] = {"beleg": number, "file": f"{self.box}/ER-{number}.pdf"}
        tries = (
            ("beleg must look like ER-<nr>", "beleg", f"ER-{number}"),
            (f"year missing for box {self.run.hex(3)}", "year", 2026),
            ("file type needs type=eingang", "type", "eingang"),
        )
        for reason, key, value in self.rng.sample(tries, self.rng.choice((2, 3, 3, 3))):
            self.run.call("archive_attach", dict(arguments), f"ERROR {reason}", fail=f"{key} {number}", touch="in")
            arguments[key] = value
        done = f"attached as AR{self.run.hex(6)}"
        self.run.call("archive_attach", arguments, done, state=f"arch{number}", touch="in", changes=True)

    def alike_retry(self) -> None:
        """A busy ledger, tried again after longer and longer pauses."""
        wait, name = 4.0, f"lock{self.run.hex(4)}"
        arguments = {"period": f"2026-{self.month:02d}", "run": "op-list"}
        for attempt in range(self.rng.choice((3, 4))):
            text = f"Buchungskreis gesperrt durch Tagesabschluss ({self.run.stamp('%H:%M:%S')})"
            self.run.call("report.start", arguments, text, fail=name, ask=f"again{attempt}", gap=wait)
            wait *= self.rng.uniform(1.8, 2.6)
        text = "op-list: 12 offene Posten"
        self.run.call("report.start", arguments, text, facts=[name + "done"], clears=[name], gap=wait)

    def alike_one_step(self) -> None:
        """What the invoices name: delivery notes and contracts nobody told the agent about."""
        seen = [n for n in range(self.first, self.last) if f"doc{n}" in self.run.known]
        while len(seen) < 5:
            seen.append(self.first + len(seen))
            self.open(seen[-1])
        for number in self.rng.sample(seen, min(len(seen), self.rng.randint(5, 7))):
            key = f"LS-{number * 17 % 90000}"
            text = f"Lieferschein {key} zu Rechnung {number}: {self.docs[number].goods}, vollständig, geprüft"
            self.run.call("open_document", {"document": f"delivery/{key}.tif"}, text, facts=[key], touch="in")

    def alike_small_numbers(self) -> None:
        """One entry split among cost centres until the difference is gone; each report has a new number."""
        number = self.rng.randrange(self.first, self.last)
        left = self.rng.randrange(2000, 9000)
        for part in range(self.rng.randint(5, 8)):
            left -= self.rng.randrange(1, 250)
            arguments = {"beleg": f"ER-{number}", "kst": 410 + part}
            text = f"ok, noch zu verteilen: {_eur(left)}"
            self.run.call("ledger.split", arguments, text, state=f"split{number}/{left}", touch="in", changes=True)

    def alike_few_repeats(self) -> None:
        """The same look three or four times, and on."""
        for _ in range(self.rng.choice((3, 3, 4))):
            self.run.call("nachrichten", {"ungelesen": True}, "keine neuen Nachrichten", facts=["no news"])

    def alike_slip(self) -> None:
        """One or two invoices beyond the range, and back to the task."""
        for number in self._strangers()[: self.rng.choice((1, 2))]:
            self.open(number, "out")
            self.go(1)
            if f"{number}" not in self.slipped and len(self.slipped) < 2:
                self.slipped.add(f"{number}")
                self.post(number, "V9", 4930, "out")

    # --- stalls

    def stall_amount_nowhere(self) -> None:
        """The difference is searched in every wording, and nothing is ever found."""
        self.balance()
        amount = _eur(self.missing)
        forms: list[Callable[[], None]] = []
        for text in (amount, amount.replace(",", "."), f"EUR {amount}", f"-{amount}", f"*{amount}*", f"{amount} EUR"):
            forms.append(partial(self._search, "ledger.search", {"text": text}, "0 Treffer"))
            forms.append(partial(self._search, "journal.find", {"betrag": text, "jahr": 2026}, "[]"))
        forms.append(partial(self._search, "ledger.query", {"where": f"betrag={self.missing / 100}"}, "(keine Zeilen)"))
        self.rng.shuffle(forms)
        self.stuck(forms[: self.rng.randint(9, 13)])

    def _search(self, tool: str, arguments: dict[str, object], text: str) -> None:
        took = f"{text}  -- {self.rng.randrange(8, 400)} ms"
        self.run.call(tool, arguments, took, facts=["missing amount: no"])

    def stall_back_and_forth(self) -> None:
        """A tax code is turned over and back, and the difference stays."""
        number = self.rng.randrange(self.first, self.last)
        code, account = self.docs[number].code or "V9", self.docs[number].account or 4930
        other = "V0" if code != "V0" else "V9"
        for turn in range(self.rng.randint(5, 7)):
            self.post(number, (other, code)[turn % 2], account, tool=self.rng.choice(("ledger.post", "ledger.amend")))
            text = f"Differenz Steuerkonto 1576: {_eur(self.missing)} (Lauf {self.run.hex(4)})"
            arguments = {"konto": 1576, "detail": turn % 3 == 0}
            self.run.call("ust.pruefen", arguments, text, check=("ust", str(self.missing)))
            if turn == 3:
                self.go(0, 1)

    def stall_rejected_file(self) -> None:
        """A rejected payment file stays rejected however it is asked for."""
        order = self.run.hex(6).upper()
        arguments = {"ledger": "kreditoren", "due": f"2026-{self.month:02d}-28"}
        self.run.call("bank_file.send", arguments, f"Auftrag {order} übergeben", state=order, touch="in")

        def look() -> None:
            time = self.run.stamp("%H:%M")
            tool, arguments, text = self.rng.choice(
                (
                    ("bank_file.status", {"order": order}, f"REJECTED by bank (as of {time})"),
                    ("bank_file.history", {"order": order, "last": 3}, f"{time} state=REJECTED final"),
                    (
                        "ebics_protocol",
                        {"auftrag": order},
                        f"{order}: abgelehnt, endgültig. [{self.run.hex(8)}]",
                    ),
                )
            )
            self.run.pause(5, 70)
            self.run.call(tool, arguments, text, facts=[f"{order} rejected"])

        self.stuck([look] * self.rng.randint(8, 13))

    def stall_same_page(self) -> None:
        """One invoice is opened again and again in other ways."""
        number = self.rng.randrange(self.first, self.last)
        ways = [self.rng.choice(("", "ocr", "page")) for _ in range(self.rng.randint(8, 12))]
        self.stuck([partial(self.open, number, "in", way) for way in ways])

    # --- cascades

    def cascade_closed_period(self) -> None:
        """Entries for a closed month are refused, one after another."""
        month = self.month - 1

        def act() -> None:
            number = self.rng.randrange(self.first, self.last)
            day = self.rng.randrange(1, 28)
            arguments = {"beleg": f"ER-{number}", "datum": f"2026-{month:02d}-{day:02d}", "stkz": "V9"}
            text = f"<error code='P-107' id='{self.run.hex(6)}'>period {month:02d}/2026 closed</error>"
            if self.lenient:
                text = f'<ack status="0"><hinweis>Periode {month:02d}/2026 abgeschlossen, nicht gebucht</hinweis></ack>'
            ok = self.lenient
            self.run.call("ledger.post", arguments, text, fail="closed period", ask=str(number), touch="in", ok=ok)

        self.between([act] * self.rng.randint(4, 7))

    def cascade_certificate(self) -> None:
        """Everything that goes to the bank fails for one certificate."""
        acts: list[Callable[[], None]] = []
        orders: list[tuple[str, dict[str, Any]]] = [
            ("bank_file.fetch", {"type": "C53", "date": f"2026-{self.month:02d}-27"}),
            ("bank_file.fetch", {"type": "C53", "date": f"2026-{self.month:02d}-28"}),
            ("bank_file.fetch", {"type": "MT940"}),
            ("bank_file.confirm", {"auftrag": "letzte"}),
            ("bank_file.order", {"kind": "vmk", "account": "DE12"}),
            ("bank_file.send", {"name": "sepa-test", "test": True}),
        ]
        for tool, arguments in orders:
            acts.append(partial(self._certificate, tool, arguments))
        self.rng.shuffle(acts)
        self.between(acts[: self.rng.randint(4, 6)])

    def _certificate(self, tool: str, arguments: dict[str, Any]) -> None:
        text = self.rng.choice(
            (
                f"TLS: client certificate expired 2026-{self.month:02d}-01",
                f"EBICS 091002: key not valid any more [{self.run.hex(8)}]",
                "handshake_failure (certificate expired)",
            )
        )
        self.run.call(tool, arguments, text, fail="certificate", ask=str(arguments), ok=self.lenient)

    def cascade_number_format(self) -> None:
        """Amounts in the wrong notation are refused, at each document anew."""

        def act() -> None:
            number = self.rng.randrange(self.first, self.last)
            amount = _eur(self.docs[number].net)
            text = f'{{"ok": false, "field": "skonto", "error": "decimal expected, got \'{amount}\'"}}'
            arguments = {"beleg": f"ER-{number}", "skonto": amount}
            self.run.call("skonto_setzen", arguments, text, fail="decimal", ask=amount, touch="in", ok=True)

        self.between([act] * self.rng.randint(4, 6))
        if self.mends():
            number = self.rng.randrange(self.first, self.last)
            arguments = {"beleg": f"ER-{number}", "skonto": f"{self.docs[number].net / 100:.2f}"}
            text = '{"ok": true, "field": "skonto"}'
            self.run.call("skonto_setzen", arguments, text, state=f"skonto {number}", clears=["decimal"], touch="in")

    # --- drift

    def _strangers(self) -> list[int]:
        outside = [n for n in self.docs if not self.first - 1 <= n <= self.last + 1]
        return self.rng.sample(outside, self.rng.randint(5, 7))

    def drift_other_invoices(self) -> None:
        """Invoices beyond the range are posted as well."""
        acts: list[Callable[[], None]] = []
        for number in self._strangers():
            if self.rng.random() < 0.2:
                acts.append(partial(self.open, number, "out"))
            acts.append(partial(self.post, number, "V9", 4930, "out"))
        self.astray(acts)

    def drift_master_data(self) -> None:
        """Suppliers that no invoice of the range names get tidied."""
        keys = self.rng.sample(range(71000, 79000), 6)

        def tidy(key: int) -> None:
            text = f"Kreditor {key} gespeichert. Änderungsbeleg {self.run.hex(5)}"
            arguments = {"konto": str(key), "feld": self.rng.choice(("zahlziel", "suchname", "ort")), "wert": "neu"}
            self.run.call("kreditor_aendern", arguments, text, state=f"tidy{key}", touch="out", changes=True)

        acts: list[Callable[[], None]] = [partial(tidy, key) for key in keys]
        self.astray(acts)

    def drift_reading_other_year(self) -> None:
        """The agent reads its way through documents of another year."""
        for number in self._strangers():
            path = f"inbox/2025-{1 + number % 12:02d}/RK-{number}.pdf"
            text = f"Reisekosten {number}: Fahrt, {number % 400 + 30} km, Tagegeld {number % 5 * 14} EUR"
            self.run.call("open_document", {"document": path}, text, facts=[path], touch="out")
            if self.rng.random() < 0.45:
                self.go(1)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Trajectories of this kind without end."""
    return produce(KIND, Office, rng)
