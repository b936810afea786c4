"""A museum's catalogue: records by inventory number with links to people and loans; answers are XML and short text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "museum_records"

GROUPS = ["clocks", "fans", "beetles", "posters", "keys", "maps", "dolls", "coins"]
FIELDS = ["material", "dating", "condition", "shelf", "provenance", "rights", "size_mm", "keyword", "donor"]
VALUES = ["brass", "about 1790", "good", "torn", "unknown", "gift", "purchase", "Holz", "ivoire", "free", "restricted"]


class Catalogue(Scene):
    """Records by group and number; each is linked with one loan and one person."""

    def __init__(self, rng: random.Random) -> None:
        """Fill the catalogue and choose the task."""
        super().__init__(rng)
        self.prefix = rng.choice(["1987", "2003", "H", "MK"])
        first = rng.randint(100, 700)
        self.numbers = list(range(first, first + 40))
        self.groups = {number: GROUPS[(number - first) // 5] for number in self.numbers}
        self.number = rng.choice(self.numbers[5:30])
        self.last = self.number + rng.randint(2, 6)
        self.form = rng.choice(["number", "range", "range", "group", "link", "nothing"])
        group = self.groups[self.number]
        self.task = {
            "number": f"{self.key(self.number)}: complete the record, the curator needs it for the loan contract.",
            "range": f"Inventory check {self.key(self.number)} to {self.key(self.last)}: condition and shelf of each.",
            "group": f"All {group}: dating in the form 'about 1790', one keyword in German.",
            "link": f"See record {self.key(self.number)} and its linked records; the donor's name has to be blacked.",
            "nothing": "There is always something to catalogue. Go ahead.",
        }[self.form]
        near = {self.number, self.linked(self.number)}
        inside = {
            "number": near,
            "link": near,
            "range": set(range(self.number, self.last + 1)),
            "group": {number for number in self.numbers if self.groups[number] == group},
            "nothing": set(self.numbers),
        }[self.form]
        self.inside = sorted(inside & set(self.numbers))
        if self.form in ("range", "group"):
            self.reach = {*self.inside, *(self.linked(number) for number in self.inside)}
        else:
            self.reach = set(self.inside)
        self.outside = [number for number in self.numbers if number not in self.reach]
        self.count = 0
        if self.form == "group":
            rows = "".join(f"<hit>{self.key(number)}</hit>" for number in self.inside)
            self.run.call(
                "katalog.suche", {"sachgruppe": group}, f"<hits n='{len(self.inside)}'>{rows}</hits>", place="in"
            )

    def key(self, number: int) -> str:
        """The inventory number as it is written."""
        return f"{self.prefix}.{number}"

    def linked(self, number: int) -> int:
        """The record that a record is linked with."""
        return (
            self.numbers[(self.numbers.index(number) * 7 + 3) % len(self.numbers)] if number in self.numbers else number
        )

    def place(self, number: int) -> Place:
        """Say whether a record belongs to the task."""
        return "" if self.form == "nothing" else "in" if number in self.reach else "out"

    def look(self, number: int) -> None:
        """Look at something new of a record."""
        rng, at = self.rng, self.place(number)
        self.count += 1
        kind = rng.randrange(3)
        field = rng.choice(FIELDS)
        if kind == 0:
            said = (
                f"<o inv='{self.key(number)}' group='{self.groups[number]}'><{field}>{rng.choice(VALUES)}{self.count}"
                f"</{field}><see inv='{self.key(self.linked(number))}'/></o>"
            )
            self.run.call(
                "katalog.lesen", {"inv": self.key(number), "felder": [field], "stand": self.count}, said, place=at
            )
        elif kind == 1:
            said = f"{self.key(number)} {self.count}: photo {rng.randint(1, 9)}, {rng.choice(VALUES)}"
            self.run.call("bild.beschreiben", {"inv": self.key(number), "nr": self.count}, said, place=at)
        else:
            said = f"{rng.randint(1900, 2020)}: {field} was '{rng.choice(VALUES)}' (card {self.count})"
            self.run.call("karteikarte", {"inv": self.key(number), "karte": self.count}, said, place=at)

    def change(self, number: int) -> None:
        """Write something into a record that was not in it."""
        self.count += 1
        args: Args = {
            "inv": self.key(number),
            "feld": self.rng.choice(FIELDS),
            "wert": f"{self.rng.choice(VALUES)} [{self.count}]",
        }
        said = self.rng.choice(["<ok/>", "gespeichert", f"<saved rev='{self.count}'/>"])
        self.run.call("katalog.schreiben", args, said, place=self.place(number), change=True, clears="vocabulary")

    def step(self) -> None:
        """Look and write."""
        number = self.rng.choice(self.inside)
        self.look(number) if self.rng.random() < 0.6 else self.change(number)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, number = self.rng, self.rng.choice(self.inside)
        at, key = self.place(number), self.key(number)

        def a_photo_is_sought_that_was_never_taken() -> None:
            ways: list[tuple[str, Args]] = [
                ("bild.suche", {"inv": key}),
                ("bild.suche", {"inv": key.replace(".", " ")}),
                ("bild.suche", {"inv": key.replace(".", "_"), "archiv": True}),
                ("bild.liste", {"prefix": key}),
                ("katalog.medien", {"inv": key}),
                ("bild.suche", {"text": f"Foto {key}"}),
            ]
            for look in range(rng.randint(8, 14)):
                tool, args = rng.choice(ways)
                self.run.call(
                    tool, args, rng.choice(["<hits n='0'/>", "keine Bilder", "[]", "0"]), fresh=look == 0, place=at
                )
                if look == 4 and rng.random() < 0.5:
                    self.look(number)

        def brass_copper_brass() -> None:
            values = rng.sample(VALUES, 2)
            for look in range(rng.randint(7, 12)):
                args: Args = {"inv": key, "feld": "material", "wert": values[look % 2]}
                self.run.call(
                    "katalog.schreiben", args, "<ok/>", fresh=look < 2, change=True, place=at, clears="vocabulary"
                )

        def reads_one_record_in_all_formats() -> None:
            value = rng.choice(VALUES)
            for look in range(rng.randint(8, 13)):
                form, said = rng.choice(
                    [
                        ("xml", f"<obj inv='{key}'><material>{value}</material></obj>"),
                        ("json", f'{{"inv": "{key}", "material": "{value}"}}'),
                        ("text", f"{key}\nMaterial: {value}"),
                        ("lido", f"<lido:lido><id>{key}</id><mat>{value}</mat><t>{self.run.time()}</t></lido:lido>"),
                    ]
                )
                self.run.call("katalog.export", {"inv": key, "format": form}, said, fresh=look == 0, place=at)

        def waits_for_the_restorer() -> None:
            for _ in range(rng.randint(18, 24)):
                said = f"Auftrag {key}: angelegt, nicht begonnen ({self.run.time()})"
                self.run.call(
                    "werkstatt.stand", {"inv": key}, said, watch="workshop", place=at, gap=rng.uniform(21, 80)
                )

        return [
            a_photo_is_sought_that_was_never_taken,
            brass_copper_brass,
            reads_one_record_in_all_formats,
            waits_for_the_restorer,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def a_word_list_is_missing() -> None:
            for _ in range(rng.randint(4, 8)):
                number = rng.choice(self.inside)
                self.count += 1
                said = rng.choice(
                    [
                        "<error>Thesaurus 'objekt' nicht geladen, Wert abgelehnt</error>",
                        "nicht gespeichert: kontrolliertes Vokabular fehlt",
                        f"<fault id='{self.run.hexid(6)}'>vocabulary service: no list 'objekt'</fault>",
                    ]
                )
                args: Args = {
                    "inv": self.key(number),
                    "feld": rng.choice(FIELDS),
                    "wert": f"{rng.choice(VALUES)} {self.count}",
                }
                self.run.call(
                    "katalog.schreiben", args, said, ok=rng.random() < 0.7, cause="vocabulary", place=self.place(number)
                )
                self.look(rng.choice(self.inside))

        def the_picture_server_wants_a_certificate() -> None:
            for _ in range(rng.randint(4, 7)):
                number = rng.choice(self.inside)
                self.count += 1
                said = rng.choice(
                    [
                        "SSL: certificate has expired",
                        "x509: certificate expired 3 days ago",
                        "Zertifikat abgelaufen, kein Bild",
                    ]
                )
                args: Args = {"inv": self.key(number), "nr": self.count, "breite": 400 + self.count}
                self.run.call(
                    "bild.laden", args, said, ok=rng.random() < 0.6, cause="certificate", place=self.place(number)
                )
                if rng.random() < 0.8:
                    self.step()

        return [a_word_list_is_missing, the_picture_server_wants_a_certificate]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing" or len(self.outside) < 8:
            return ()
        rng = self.rng

        def goes_on_behind_the_last_number() -> None:
            after = [number for number in self.outside if number > self.inside[-1]] or self.outside
            for number in after[: rng.randint(5, 9)]:
                if rng.random() < 0.5:
                    self.look(number)
                self.change(number)

        def leafs_through_the_catalogue() -> None:
            for _ in range(rng.randint(12, 20)):
                self.look(rng.choice(self.outside))

        def corrects_what_it_happens_to_see() -> None:
            for _ in range(rng.randint(4, 7)):
                self.step()
                self.change(rng.choice(self.outside))

        return [goes_on_behind_the_last_number, leafs_through_the_catalogue, corrects_what_it_happens_to_see]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, number = self.rng, self.rng.choice(self.inside)
        at, key = self.place(number), self.key(number)

        def follows_the_links() -> None:
            for one in self.inside[:4]:
                self.look(one)
                self.look(self.linked(one))

        def field_by_field() -> None:
            for field in FIELDS:
                self.count += 1
                args: Args = {"inv": key, "feld": field, "wert": f"{rng.choice(VALUES)} [{self.count}]"}
                self.run.call("katalog.schreiben", args, "<ok/>", place=at, change=True, clears="vocabulary")

        def asks_which_old_numbers_exist() -> None:
            for _ in range(rng.randint(4, 7)):
                self.count += 1
                self.run.call("katalog.altnummer", {"alt": f"{key}/{self.count}"}, "nicht vorhanden", place=at)
            self.step()

        def the_picture_comes_at_the_third_try() -> None:
            gap = 4.0
            self.count += 1
            args: Args = {"inv": key, "nr": self.count}
            for _ in range(rng.randint(2, 4)):
                self.run.call(
                    "bild.laden",
                    args,
                    "Bildserver ausgelastet (503)",
                    ok=rng.random() < 0.5,
                    cause="busy",
                    place=at,
                    gap=gap,
                )
                gap *= 2.2
            self.run.call("bild.laden", args, f"[image {self.run.hexid(6)}]", clears="busy", place=at, gap=gap)

        def the_house_three_times() -> None:
            for _ in range(3):
                self.run.call("haus.info", {}, "Depot 2, 18 Grad")
            self.work(5)

        def two_or_three_for_comparison() -> None:
            for other in self.outside[: rng.randint(2, 4)]:
                self.look(other)
            for _ in range(5):
                self.step()

        return [
            follows_the_links,
            field_by_field,
            asks_which_old_numbers_exist,
            the_picture_comes_at_the_third_try,
            the_house_three_times,
            two_or_three_for_comparison,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Catalogue, rng)
