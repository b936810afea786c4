"""A factory buys spare parts: an ERP that speaks XML, mail in several languages, forms of a vendors' portal."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world2 import Place, Scene, Step, produce

KIND = "procurement of spare parts by mail and forms"
NAMES = (
    "bearing",
    "shaft seal",
    "belt",
    "proximity switch",
    "valve",
    "bushing",
    "hose",
    "coupling",
    "fuse",
    "gearwheel",
)
MAILS = (
    "Sehr geehrte Damen und Herren, wir bieten an: {q} St. {p} zu {c} EUR, Lieferzeit {w} Wochen, frei Haus.",
    "Buongiorno, offriamo {q} pz. {p} a {c} EUR cad., consegna {w} settimane. Cordiali saluti",
    "Hello, our price for {p} is {c} EUR each at {q} pcs, lead time {w} weeks ex works. Best regards",
    "Dzień dobry, oferujemy {q} szt. {p}, cena {c} EUR, termin {w} tyg. Pozdrawiam",
)


class Purchase(Scene):
    """One requisition with its parts and vendors, among many."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        number = rng.randint(5200, 7900)
        self.requisition = f"RQ-{number}"
        self.others = [f"RQ-{number + step}" for step in (-6, -3, -2, -1, 1, 2, 3, 8)]
        self.machine = f"press line {rng.randint(2, 9)}"
        base = rng.randint(4010, 4890)
        self.parts = [f"{base + n * 3}.{rng.randint(10, 99)}.{rng.randint(100, 999)}" for n in range(5)]
        self.foreign = [f"{base + 700 + n * 7}.{rng.randint(10, 99)}.{rng.randint(100, 999)}" for n in range(9)]
        self.vendors = [f"v{rng.randint(100, 999)}{letter}" for letter in "abcd"]
        self.price = {(part, one): rng.randint(300, 90000) / 100 for part in self.parts for one in self.vendors}
        self.task = rng.choice(
            [
                (
                    "{r}: five spare parts for {m}. Get offers from the vendors named there, compare them in "
                    "the sheet, and place the orders."
                ),
                "Please buy what {r} asks for ({m} stands still). Offers, comparison, order, confirmation.",
                "Work through {r}. For each of its parts: stock, offers by mail or portal, comparison, order.",
            ]
        ).format(r=self.requisition, m=self.machine)

    # Looks.

    def req(self, name: str) -> None:
        """A requisition."""
        parts = self.parts if name == self.requisition else random.Random(name).sample(self.foreign, 3)
        lines = "".join(f"<line part='{part}' qty='{random.Random(part).randint(1, 40)}'/>" for part in parts)
        vendors = self.vendors if name == self.requisition else [f"v{random.Random(name).randint(100, 999)}x"]
        text = f"<requisition id='{name}' state='open'>{lines}<vendors>{' '.join(vendors)}</vendors></requisition>"
        where: Place = "in" if name == self.requisition else "out"
        self.call("erp_requisition", {"number": name, "depth": 1}, text, facts=(f"req {name}",), place=where)

    def part(self, part: str, far: bool = False) -> None:
        """A part's master record."""
        rng = random.Random(part)
        text = (
            f"<material no='{part.replace('.', '')}'><text>{rng.choice(NAMES)} {rng.randint(8, 90)} mm</text>"
            f"<stock plant='1'>{rng.randint(0, 9)}</stock><bin>{rng.choice('ABCDEF')}{rng.randint(1, 60)}</bin>"
            f"<moq>{rng.choice([1, 5, 10])}</moq><read at='{self.stamp()}'/></material>"
        )
        where: Place = "in" if part in self.parts or far else "out"
        arguments = {"material": part.replace(".", ""), "plant": 1}
        self.call("erp_material", arguments, text, facts=(f"part {part}",), uses=("format",), place=where, far=far)

    def offer(self, part: str, vendor: str) -> None:
        """The mail with an offer."""
        rng = random.Random(part + vendor)
        body = rng.choice(MAILS).format(q=rng.randint(1, 40), p=part, c=self.price[part, vendor], w=rng.randint(1, 14))
        text = f"From: sales@{vendor}.test\nSubject: {self.requisition} {part}\nReceived: {self.stamp()}\n\n{body}"
        arguments = {"message": f"{vendor}-{part[:4]}", "format": self.pick(["plain", "text"])}
        self.call("mail_read", arguments, text, facts=(f"offer {part} {vendor}",), place="in")

    # Changes.

    def ask(self, requisition: str, part: str, vendor: str) -> None:
        """Ask for an offer."""
        arguments = {
            "to": f"sales@{vendor}.test",
            "subject": f"{requisition} {part}",
            "body": f"Please quote {part}, DAP plant 1.",
        }
        text = f"queued as <{self.hexid(10)}@plant1.test>"
        where: Place = "in" if requisition == self.requisition else "out"
        facts = (f"asked {requisition} {part} {vendor}",)
        self.call("mail_send", arguments, text, facts=facts, uses=("outgoing",), place=where, change=True)

    def cell(self, part: str, vendor: str) -> None:
        """A price into the comparison."""
        row, column = 2 + self.parts.index(part), "CDEF"[self.vendors.index(vendor)]
        arguments = {
            "workbook": f"{self.requisition}.xlsx",
            "cell": f"{column}{row}",
            "value": self.price[part, vendor],
        }
        self.call("sheet_set", arguments, "1 cell", facts=(f"cell {part} {vendor}",), place="in", change=True)

    def form(self, part: str, page: int) -> None:
        """A page of the portal's form."""
        fields = (("part", "qty"), ("incoterm", "place"), ("date", "contact"))[page - 1]
        arguments = {"form": "rfq", "ref": f"{self.requisition}/{part}", "page": page, "fields": list(fields)}
        text = f"<html><h1>Request for quotation</h1><p>Step {page} of 3 saved</p><i>{self.hexid(6)}</i></html>"
        self.call(
            "portal_form", arguments, text, facts=(f"form {part} {page}",), uses=("portal",), place="in", change=True
        )

    def order(self, requisition: str, part: str, quantity: int) -> None:
        """An order."""
        text = f"<order no='45{self.rng.randint(10**6, 10**7)}' state='created' qty='{quantity}'/>"
        arguments = {"requisition": requisition, "material": part.replace(".", ""), "qty": quantity}
        where: Place = "in" if requisition == self.requisition else "out"
        facts = (f"order {requisition} {part} {quantity}",)
        self.call("erp_order", arguments, text, facts=facts, uses=("format",), place=where, change=True)

    def steps(self) -> list[Step]:
        step = functools.partial
        steps: list[Step] = [("", step(self.req, self.requisition))]
        for part in self.parts:
            steps.append(("format", step(self.part, part)))
            steps += [
                ("outgoing", step(self.ask, self.requisition, part, vendor)) for vendor in self.some(self.vendors, 2)
            ]
        steps += [("portal", step(self.form, part, page)) for part in self.parts[:2] for page in (1, 2, 3)]
        rest: list[Step] = []
        for part in self.parts:
            for vendor in self.some(self.vendors, 3):
                rest += [("", step(self.offer, part, vendor)), ("", step(self.cell, part, vendor))]
        head, tail = steps[:4], steps[4:]
        steps = head + [one for pair in zip(tail, rest[: len(tail)], strict=True) for one in pair] + rest[len(tail) :]
        return steps + [
            ("format", step(self.order, self.requisition, part, self.rng.randint(1, 9))) for part in self.parts
        ]

    # Troubles.

    def is_there_an_answer(self) -> None:
        """The mailbox is searched for one vendor's answer in quick succession, in many words; there is none."""
        vendor, part = self.pick(self.vendors), self.pick(self.parts)
        for _ in range(self.rng.randint(9, 15)):
            gap = self.rng.uniform(4, 13)
            query = self.pick(
                [
                    f"from:{vendor}",
                    f"from:sales@{vendor}.test is:unread",
                    f"{vendor} newer_than:1d",
                    f"subject:{part} from:{vendor}",
                ]
            )
            way = self.rng.randrange(3)
            if way == 0:
                text = f"0 messages ({self.rng.randint(5, 90)} ms)"
                self.call("mail_search", {"q": query}, text, facts=(f"no mail {vendor}",), place="in", gap=gap)
            elif way == 1:
                arguments: dict[str, Any] = {"folder": self.pick(["INBOX", "offers", "all"]), "sender": vendor}
                self.call(
                    "mail_list",
                    arguments,
                    f"[] as of {self.stamp()}",
                    facts=(f"no mail {vendor}",),
                    place="in",
                    gap=gap,
                )
            else:
                arguments = {"q": query, "limit": self.pick([5, 10, 50])}
                text = f"Nothing from {vendor}."
                self.call("mail_search", arguments, text, facts=(f"no mail {vendor}",), place="in", gap=gap)

    def one_offer_in_all_forms(self) -> None:
        """The same offer as text, as page, as attachment, in translation."""
        part, vendor = self.pick(self.parts), self.pick(self.vendors)
        price, weeks = self.price[part, vendor], self.rng.randint(2, 9)
        message, fact = f"{vendor}-{part[:4]}-b", (f"offer again {part} {vendor}",)
        for number in range(self.rng.randint(9, 15)):
            way = self.rng.randrange(5)
            if way == 0:
                text = f"From: sales@{vendor}.test\n\n{part}: {price} EUR, {weeks} weeks."
                self.call("mail_read", {"message": message, "format": "plain"}, text, facts=fact, place="in")
            elif way == 1:
                text = f"<p>{part}</p><td>{price} EUR</td><td>{weeks} Wochen</td><!-- {vendor} -->"
                self.call("mail_read", {"message": message, "format": "html"}, text, facts=fact, place="in")
            elif way == 2:
                text = f"ANGEBOT {vendor}\nPos 1  {part}  {price} EUR  {weeks} Wo.\n"
                self.call(
                    "pdf_text",
                    {"attachment": f"{message}/1", "pages": self.pick(["1", "1-1", "all"])},
                    text,
                    facts=fact,
                    place="in",
                )
            elif way == 3:
                arguments = {"message": message, "into": self.pick(["en", "it", "fr"])}
                self.call(
                    "translate_mail", arguments, f"{vendor}: {part} - {price} EUR - {weeks} (w)", facts=fact, place="in"
                )
            else:
                text = f'1 hit: {message} ({vendor}) "{part}: {price} EUR, {weeks}"'
                self.call(
                    "mail_search", {"q": f"{part} {self.pick(['EUR', 'price', 'offer'])}"}, text, facts=fact, place="in"
                )
            if number == 5 and self.rng.random() < 0.5:
                self.part(self.pick(self.parts))

    def quantity_to_and_fro(self) -> None:
        """The order's quantity moves between two values; the budget check says the same of both."""
        part = self.parts[0]
        pair = self.rng.choice([(4, 6), (10, 12), (2, 3)])
        number = self.rng.randint(4500000, 4599999)
        for turn in range(self.rng.randint(7, 9)):
            quantity = pair[turn % 2]
            arguments: dict[str, Any] = {
                "order": number,
                "line": 10,
                "qty": quantity,
                "material": part.replace(".", ""),
            }
            text = f"<order no='{number}' changed='{self.stamp('clock')}'/>"
            self.call("erp_order_change", arguments, text, facts=(f"quantity {quantity}",), place="in", change=True)
            arguments = {"order": number, "scope": self.pick(["budget", "all", "line 10"])}
            text = f"<check order='{number}'><msg>cost centre 4711 has no budget line</msg></check>"
            self.call(
                self.pick(["erp_check", "erp_release_test"]), arguments, text, facts=self.again("budget"), place="in"
            )

    def approval_that_does_not_come(self) -> None:
        """The order waits for the plant manager, seen through several windows, for much too long."""
        number = self.rng.randint(4500000, 4599999)
        for turn in range(self.rng.randint(17, 23)):
            gap = self.rng.uniform(60, 105)
            way = turn % 3
            if way == 0:
                tool, arguments = "erp_workflow", dict[str, Any](order=number)
                text = f"<step name='plant manager' state='waiting' asked='{self.stamp()}'/>"
            elif way == 1:
                tool, arguments = "erp_worklist", dict[str, Any](owner="plant manager", top=5 + turn)
                text = f"<item order='{number}' state='waiting'/>"
            else:
                tool, arguments = "portal_status", dict[str, Any](ref=number)
                text = f"Order {number}: waiting for plant manager ({int(self.now)} s)"
            self.call(tool, arguments, text, facts=(f"approval {number}",), watch="approval", place="in", gap=gap)

    def portal_wants_a_login(self) -> None:
        """The portal's session has ended; every form comes back as the login page."""
        self.blocked.add("portal")
        dense = self.rng.random() < 0.3
        for _ in range(self.rng.randint(7, 11) if dense else self.rng.randint(4, 8)):
            part = self.parts[0] if dense else self.pick(self.parts)
            page = 1 if dense else self.rng.randint(1, 3)
            form = "rfq" if dense else self.pick(["rfq", "rfq", "upload", "catalogue", "messages"])
            arguments = {"form": form, "ref": f"{self.requisition}/{part}", "page": page, "fields": ["part", "qty"]}
            text = f"<html><title>Sign in</title><p>Your session has ended.</p><i>{self.hexid(6)}</i></html>"
            ok = self.rng.random() < 0.7
            facts = () if dense else (f"form {form} {part} {page}",)
            self.call("portal_form", arguments, text, ok=ok, cause="portal", place="in", facts=facts)
            if not dense:
                self.work(self.rng.choice((0, 1, 1, 2)))
        if self.rng.random() < 0.4:
            self.blocked.discard("portal")
            self.call("portal_login", {"account": "plant1"}, "<html><p>Welcome, plant1</p></html>", facts=("login",))
            self.form(self.parts[0], 1)

    def outgoing_mail_held(self) -> None:
        """A policy holds every outgoing mail, whatever its text and addressee."""
        self.blocked.add("outgoing")
        for _ in range(self.rng.randint(4, 8)):
            vendor, part = self.pick(self.vendors), self.pick(self.parts)
            words = self.pick(["Please quote", "We need", "Kindly offer", "Bitte bieten Sie an:"])
            arguments = {
                "to": f"{self.pick(['sales', 'info'])}@{vendor}.test",
                "subject": part,
                "body": f"{words} {part}.",
            }
            text = f"550 5.7.1 held by rule DLP-4 (sender not released) id={self.hexid(8)}"
            tool = self.pick(["mail_send", "mail_send", "mail_reply"])
            ok = self.rng.random() < 0.5
            self.call(tool, arguments, text, ok=ok, cause="outgoing", place="in", facts=(f"{tool} {vendor} {part}",))
            self.work(self.rng.choice((0, 1, 1, 2)))

    def numbers_with_dots(self) -> None:
        """The ERP takes material numbers without dots; they are given with dots, in order after order."""
        self.blocked.add("format")
        for _ in range(self.rng.randint(4, 8)):
            part = self.pick(self.parts)
            tool, extra = self.pick([("erp_order", "qty"), ("erp_material", "plant"), ("erp_price", "year")])
            arguments = {
                "material": self.pick([part, part.replace(".", "-"), part.replace(".", " ")]),
                extra: self.rng.randint(1, 4),
            }
            text = "<fault code='M3-305'>material number: 9 digits expected, no separators</fault>"
            ok = self.rng.random() < 0.4
            self.call(tool, arguments, text, ok=ok, cause="format", place="in", facts=(f"{tool} {arguments}",))
            self.work(self.rng.choice((0, 1, 1, 2)))

    def other_requisitions_ordered(self) -> None:
        """Other departments' requisitions are ordered along."""
        dense = self.rng.random() < 0.4
        for name in self.some(self.others, self.rng.randint(4, 6)):
            if dense:
                self.req(name)
                self.part(self.pick(self.foreign))
            self.order(name, self.pick(self.foreign), self.rng.randint(1, 20))
            self.work(1 if dense else 2)

    def vendors_asked_for_others(self) -> None:
        """Vendors are asked about parts of other requisitions."""
        for name in self.some(self.others, self.rng.randint(4, 6)):
            self.ask(name, self.pick(self.foreign), f"v{self.rng.randint(100, 999)}z")
            self.work(self.rng.choice((1, 2)))

    def browsing_the_stock(self) -> None:
        """The records of parts that nobody asked for, and other requisitions."""
        for name in self.some(self.others, self.rng.randint(3, 4)):
            self.req(name)
            for part in self.some(self.foreign, 2):
                self.part(part)

    # Look-alikes.

    def pieces_of_an_assembly(self) -> None:
        """A part is an assembly; its pieces, whose numbers differ in a digit, are looked up."""
        part = self.pick(self.parts)
        pieces = [f"{part[:7]}.{part[-3:-1]}{n}" for n in range(10) if f"{part[:7]}.{part[-3:-1]}{n}" != part][:6]
        lines = "".join(f"<piece no='{piece.replace('.', '')}'/>" for piece in pieces)
        self.call(
            "erp_bom", {"material": part.replace(".", "")}, f"<bom>{lines}</bom>", facts=(f"bom {part}",), place="in"
        )
        for piece in pieces:
            self.part(piece, far=True)

    def pages_of_a_catalogue(self) -> None:
        """Page after page."""
        for page in range(1, self.rng.randint(6, 9)):
            rows = "\n".join(
                f"{self.rng.choice(NAMES)} {self.rng.randint(8, 99)} | {self.rng.randint(100, 9999) / 100}"
                for _ in range(8)
            )
            arguments = {"vendor": self.vendors[0], "page": page, "per_page": 8}
            self.call("catalogue", arguments, rows, facts=(f"catalogue {page}",), place="in")

    def four_asked_at_once(self) -> None:
        """All vendors in one turn, the same acknowledgement from each."""
        part = self.parts[-1]
        with self.turn():
            for vendor in self.vendors:
                arguments = {"to": f"sales@{vendor}.test", "subject": f"{self.requisition} {part} delivery"}
                self.call("mail_template", arguments, "ok", facts=(f"template {vendor}",), place="in", change=True)

    def confirmation_awaited(self) -> None:
        """The vendor's confirmation takes some minutes."""
        arguments = {"vendor": self.vendors[1], "kind": "confirmation"}
        for _ in range(self.rng.randint(4, 8)):
            text = f"<edi none='true' at='{self.stamp()}'/>"
            gap = self.rng.uniform(30, 85)
            self.call("edi_inbox", arguments, text, facts=("no edi",), watch="edi", place="in", gap=gap)
        self.call("edi_inbox", arguments, "<edi kind='ORDRSP' lines='5'/>", facts=("edi",), place="in", gap=40)

    def erp_is_busy(self) -> None:
        """A lock of the nightly run; longer pauses, then it works."""
        gap, arguments = 4.0, {"requisition": self.requisition, "mode": "reserve"}
        for _ in range(self.rng.randint(3, 4)):
            text = "<fault code='LOCK'>planning run active</fault>"
            self.call("erp_reserve", arguments, text, ok=False, cause="planning", place="in", gap=gap)
            gap *= self.rng.uniform(1.7, 2.4)
        self.call(
            "erp_reserve", arguments, "<ok/>", facts=("reserved",), uses=("planning",), place="in", change=True, gap=gap
        )

    def three_slips(self) -> None:
        """Three causes, each put right."""
        book = f"{self.requisition}.xlsx"
        arguments: dict[str, Any] = {"workbook": book, "cell": "B0", "value": "vendor"}
        self.call("sheet_set", arguments, "no such row: 0", ok=False, cause="row", place="in")
        arguments = {"workbook": book, "cell": "B1", "value": "=SUMM(C2:C9)"}
        self.call("sheet_set", arguments, "unknown function SUMM", ok=False, cause="function", place="in")
        arguments = {"workbook": f"{self.requisition}.xls", "cell": "B1", "value": "=SUM(C2:C9)"}
        self.call("sheet_set", arguments, "no such workbook", ok=False, cause="book", place="in")
        arguments = {"workbook": book, "cell": "B1", "value": "=SUM(C2:C9)"}
        self.call("sheet_set", arguments, "1 cell", facts=("sum",), place="in", change=True)

    def a_look_at_two_others(self) -> None:
        """How did the last ones go: a few looks, then back."""
        for name in self.some(self.others, 3):
            self.req(name)
        self.work(6)

    def what_else_is_open(self) -> None:
        """Open requisitions are looked through first."""
        for name in self.some(self.others, self.rng.randint(5, 7)):
            self.req(name)

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        return {
            "stalled": [
                self.is_there_an_answer,
                self.one_offer_in_all_forms,
                self.quantity_to_and_fro,
                self.approval_that_does_not_come,
            ],
            "cascading": [self.portal_wants_a_login, self.outgoing_mail_held, self.numbers_with_dots],
            "drifting": [self.other_requisitions_ordered, self.vendors_asked_for_others, self.browsing_the_stock],
            "alike": [
                self.pieces_of_an_assembly,
                self.pages_of_a_catalogue,
                self.four_asked_at_once,
                self.confirmation_awaited,
                self.erp_is_busy,
                self.three_slips,
                self.a_look_at_two_others,
            ],
            "opening": [self.what_else_is_open],
        }


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Runs of a factory's buyer."""
    return produce(rng, KIND, Purchase)
