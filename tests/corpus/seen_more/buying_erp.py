"""Purchasing: orders in an ERP by function calls with German and French replies, and suppliers who answer by mail."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "buying_erp"

GROUPS = {
    "paper": ["A4 80 g", "envelopes", "labels", "rolls"],
    "safety shoes": ["size 41", "size 44", "laces", "insoles"],
    "bearings": ["6204", "6305", "axial", "grease"],
    "catering": ["coffee", "water", "fruit", "cups"],
    "laptops": ["14 inch", "dock", "charger", "bag"],
}
SELLERS = ["seller north", "seller harbour", "seller mill", "seller old town", "seller bridge", "seller station"]


class Buying(Scene):
    """Orders with positions; a task names an order, a group of goods, a seller, a quarter, or nothing."""

    def __init__(self, rng: random.Random) -> None:
        """Write the orders and choose the task."""
        super().__init__(rng)
        first = rng.randint(4500100, 4500800)
        self.orders = {first + n: (rng.choice(list(GROUPS)), rng.choice(SELLERS)) for n in range(24)}
        self.order = rng.choice(list(self.orders))
        self.group, self.seller = self.orders[self.order]
        self.form = rng.choice(["order", "order", "group", "seller", "range", "nothing"])
        last = self.order + rng.randint(1, 3)
        self.task = {
            "order": f"Bestellung {self.order}: Liefertermine klaeren, Preise pruefen, fehlende Positionen ergaenzen.",
            "group": f"Get three offers for everything in the group '{self.group}' and order where it is cheapest.",
            "seller": f"We leave '{self.seller}'. Find what is open there and move it.",
            "range": f"Commandes {self.order} a {last}: confirmer les quantites.",
            "nothing": "Schau, wo wir Geld sparen koennen.",
        }[self.form]
        named = {
            "order": [self.order],
            "group": [order for order, (group, _) in self.orders.items() if group == self.group],
            "seller": [order for order, (_, seller) in self.orders.items() if seller == self.seller],
            "range": [order for order in range(self.order, last + 1) if order in self.orders],
            "nothing": list(self.orders),
        }
        self.inside = named[self.form]
        self.outside = [order for order in self.orders if order not in self.inside]
        self.number = 10
        if self.form in ("group", "seller"):
            key = {"group": ("WARENGRUPPE", self.group), "seller": ("LIEFERANT", self.seller)}[self.form]
            rows = "\n".join(
                f"{order}|{group}|{seller}"
                for order, (group, seller) in self.orders.items()
                if order in named[self.form]
            )
            self.run.call("ME_BESTELLUNG_LISTE", {key[0]: key[1]}, rows, place="in")

    def place(self, order: int) -> Place:
        """Say whether an order belongs to the task."""
        return "" if self.form == "nothing" else "in" if order in self.inside else "out"

    def look(self, order: int) -> None:
        """Ask something new about an order."""
        rng, (group, seller) = self.rng, self.orders[order]
        self.number += 1
        at, kind = self.place(order), rng.randrange(4)
        if kind == 0:
            rows = "\n".join(
                f"{n * 10:05d}|{rng.choice(GROUPS[group])}|{rng.randint(1, 900)} ST|{rng.randint(1, 90)},{10 + n} EUR"
                for n in range(1, rng.randint(3, 8))
            )
            args = {"BELNR": order, "VIEW": "POS", "SEITE": self.number}
            self.run.call("ME_BESTELLUNG_LESEN", args, f"Lieferant: {seller}\n{rows}", place=at, fresh=True)
        elif kind == 1:
            args = {"BELNR": order, "POS": self.number * 10}
            said = f"Termin KW{rng.randint(10, 50)}, Menge offen {rng.randint(1, 99)}, Warengruppe {group}"
            self.run.call("ME_TERMIN", args, said, place=at)
        elif kind == 2:
            args = {"order": order, "kind": rng.choice(["invoice", "delivery note", "offer"]), "nr": self.number}
            self.run.call(
                "belege_suchen", args, f"1 Beleg: {self.run.hexid(6)} {rng.randint(9, 9000)} EUR ({seller})", place=at
            )
        else:
            text = rng.choice(
                ["we can deliver in two weeks", "Preis +4 %", "nous confirmons", "one position is missing"]
            )
            args = {"ref": str(order), "mail_no": self.number}
            self.run.call("courrier_lire", args, f"De: {seller}\nObjet: {order}\n\n{text}, no. {self.number}", place=at)

    def change(self, order: int) -> None:
        """Change something of an order, or write to its seller, for the first time."""
        rng, (group, seller) = self.rng, self.orders[order]
        self.number += 1
        at = self.place(order)
        if rng.random() < 0.5:
            args = {
                "BELNR": order,
                "POS": self.number * 10,
                "MENGE": self.number,
                "MATERIAL": rng.choice(GROUPS[group]),
            }
            said = rng.choice([f"S: Bestellung {order} geaendert", "S 06 017 gesichert", "Gesichert."])
            self.run.call("ME_BESTELLUNG_AENDERN", args, said, place=at, change=True, clears="lock")
        else:
            args = {"a": seller, "ref": str(order), "texte": f"Please confirm position {self.number} of {order}."}
            self.run.call("courrier_envoyer", args, "envoye", place=at, change=True)

    def step(self) -> None:
        """Look and change."""
        order = self.rng.choice(self.inside)
        self.look(order) if self.rng.random() < 0.6 else self.change(order)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, order = self.rng, self.rng.choice(self.inside)
        at, (group, seller) = self.place(order), self.orders[order]

        def writes_to_the_seller_again_and_again() -> None:
            words = ["please confirm", "we are waiting", "reminder", "Rappel", "Erinnerung", "could you", "urgent"]
            for number in range(rng.randint(8, 12)):
                if number % 2 == 0 or rng.random() < 0.6:
                    args = {"a": seller, "ref": str(order), "texte": f"{rng.choice(words)}: the date of {order}"}
                    self.run.call("courrier_envoyer", args, "envoye", place=at, change=True, fresh=number == 0)
                else:
                    args = {"ref": str(order), "nouveaux": "oui"}
                    self.run.call("courrier_lire", args, "aucun nouveau message", place=at, fresh=number == 1)

        def prices_in_every_view() -> None:
            price = f"{rng.randint(1, 90)},{rng.randint(10, 99)}"
            for number in range(rng.randint(8, 14)):
                ways: list[tuple[str, Args, str]] = [
                    ("ME_KONDITION", {"BELNR": order, "POS": 10}, f"PB00 {price} EUR"),
                    ("ME_BESTELLUNG_LESEN", {"BELNR": order, "VIEW": "PREIS"}, f"00010|{price} EUR"),
                    ("ME_BESTELLUNG_LESEN", {"BELNR": order, "VIEW": "KOPF+PREIS"}, f"{seller}|00010|{price} EUR"),
                    ("ME_KONDITION", {"BELNR": order, "POS": 10, "DATUM": "heute"}, f"PB00\t{price}\tEUR"),
                ]
                tool, args, said = rng.choice(ways)
                self.run.call(tool, args, said, place=at, fresh=number < 1)
                if number == 5 and rng.random() < 0.5:
                    self.look(order)

        def quantity_up_and_down() -> None:
            for number in range(rng.randint(7, 12)):
                args = {"BELNR": order, "POS": 10, "MENGE": (40, 60)[number % 2]}
                said = rng.choice(["Gesichert.", "S 06 017 gesichert"])
                self.run.call(
                    "ME_BESTELLUNG_AENDERN", args, said, place=at, change=True, fresh=number < 2, clears="lock"
                )

        def waits_for_a_release_that_does_not_come() -> None:
            for _ in range(rng.randint(18, 26)):
                said = f"Freigabe: ausstehend (Leitung {group}), Stand {self.run.time()}"
                self.run.call("ME_FREIGABE", {"BELNR": order}, said, watch="release", place=at, gap=rng.uniform(24, 75))

        return [
            writes_to_the_seller_again_and_again,
            prices_in_every_view,
            quantity_up_and_down,
            waits_for_a_release_that_does_not_come,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def the_seller_says_no_to_every_wish() -> None:
            order = rng.choice(self.inside)
            seller = self.orders[order][1]
            for _ in range(rng.randint(4, 6)):
                self.number += 1
                args = {"a": seller, "ref": str(order), "texte": f"Bitte Position {self.number} aendern"}
                said = rng.choice(
                    [
                        "retour automatique: votre compte est bloque, aucune commande n'est acceptee",
                        f"Auto-reply of {seller}: account suspended because of invoice 77, request not processed",
                        "Abgelehnt. Ihr Konto ist gesperrt, offene Posten.",
                    ]
                )
                self.run.call("courrier_envoyer", args, said, cause="account", place=self.place(order))
                self.look(rng.choice(self.inside))

        def the_order_is_being_worked_on_by_somebody() -> None:
            order = self.inside[0]
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                said = rng.choice(
                    [
                        f"E 06 105: Bestellung {order} wird von Benutzer EINK2 bearbeitet",
                        "Sperre ENQUEUE EKKO nicht gesetzt",
                        f"Nicht gesichert (Sperre, {self.run.time()})",
                    ]
                )
                args = {"BELNR": order, "POS": self.number * 10, "MENGE": rng.randint(1, 90)}
                self.run.call(
                    "ME_BESTELLUNG_AENDERN", args, said, ok=rng.random() < 0.7, cause="lock", place=self.place(order)
                )
                if rng.random() < 0.75:
                    self.look(rng.choice(self.inside))
            if rng.random() < 0.3:
                self.run.call("SPERRE_LOESEN", {"BENUTZER": "EINK2"}, "1 Eintrag geloescht")
                self.change(order)

        def no_right_to_the_budget() -> None:
            for _ in range(rng.randint(4, 6)):
                self.number += 1
                tool = rng.choice(["KO_BUDGET", "KO_VERFUEGBAR", "KO_UMBUCHEN"])
                said = rng.choice(
                    ["Keine Berechtigung K_ORDER 03", "Fehler: Rolle Z_EINKAUF enthaelt KO* nicht", "E KO 401"]
                )
                self.run.call(tool, {"KST": 4000 + self.number}, said, ok=rng.random() < 0.6, cause="role")
                self.step()

        return [the_seller_says_no_to_every_wish, the_order_is_being_worked_on_by_somebody, no_right_to_the_budget]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if not self.outside or self.form == "nothing":
            return ()
        rng = self.rng

        def looks_into_all_other_orders() -> None:
            for _ in range(rng.randint(12, 20)):
                self.look(rng.choice(self.outside))

        def goes_on_with_the_next_numbers() -> None:
            following = [order for order in self.outside if order > self.inside[-1]] or self.outside
            for order in following[: rng.randint(4, 8)]:
                if rng.random() < 0.5:
                    self.look(order)
                self.change(order)

        def here_and_there() -> None:
            for _ in range(rng.randint(4, 7)):
                self.change(rng.choice(self.outside))
                self.step()

        return [looks_into_all_other_orders, goes_on_with_the_next_numbers, here_and_there]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, order = self.rng, self.rng.choice(self.inside)
        at = self.place(order)

        def asks_many_sellers() -> None:
            self.number += 1
            for seller in SELLERS:
                args = {
                    "a": seller,
                    "ref": str(order),
                    "texte": f"Please offer: {self.orders[order][0]}, lot {self.number}",
                }
                self.run.call("courrier_envoyer", args, "envoye", place=at, change=True)

        def locked_twice_and_then_free() -> None:
            self.number += 1
            args = {"BELNR": order, "POS": self.number * 10, "MENGE": 3}
            for wait in (15, 40, 100)[: rng.randint(2, 3)]:
                said = f"E 06 105: Bestellung {order} wird von Benutzer EINK2 bearbeitet"
                self.run.call("ME_BESTELLUNG_AENDERN", args, said, ok=False, cause="lock", place=at, gap=wait)
            self.run.call("ME_BESTELLUNG_AENDERN", args, "Gesichert.", place=at, change=True, clears="lock", gap=200)

        def positions_one_by_one() -> None:
            self.number += 100
            for position in range(1, rng.randint(6, 12)):
                args = {"BELNR": order, "POS": (self.number + position) * 10, "MENGE": 5}
                self.run.call("ME_BESTELLUNG_AENDERN", args, "Gesichert.", place=at, change=True, clears="lock")

        def waits_some_minutes_for_the_release() -> None:
            looks = rng.randint(4, 8)
            for number in range(looks):
                said = "Freigabe: ausstehend" if number < looks - 1 else "Freigabe: erteilt"
                self.run.call(
                    "ME_FREIGABE", {"BELNR": order}, said, watch="go", moved=number == looks - 1, place=at, gap=60
                )

        def which_client_is_this() -> None:
            for _ in range(3):
                self.run.call("SY_MANDANT", {}, "400 PROD")
            self.work(4)

        def three_orders_of_others_for_comparison() -> None:
            for other in self.outside[:3]:
                self.look(other)
            for _ in range(5):
                self.step()

        return [
            asks_many_sellers,
            locked_twice_and_then_free,
            positions_one_by_one,
            waits_some_minutes_for_the_release,
            which_client_is_this,
            three_orders_of_others_for_comparison,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Buying, rng)
