"""A patent attorney's search: one application, its claims, what it cites and what cites it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

FIELDS = ["hinges", "batteries", "yeast", "filters", "looms", "antennas", "valves", "insulin", "prosthetics", "drones"]
PARTS = ["housing", "lever", "membrane", "electrode", "spring", "nozzle", "sensor", "gear", "coil", "seal"]


class PatentSearch(Stage):
    """An application names documents; those are one step away."""

    kind = "patent_search"
    styles = ("html", "json", "yaml")
    memo = ("excerpt_save",)

    def setup(self) -> None:
        self.field, *self.others = self.some(FIELDS, 7)
        self.app = f"{self.pick('EP', 'US', 'WO', 'DE')}{self.n(10**6, 10**7)}{self.pick('A1', 'B2', 'A')}"
        self.cited = [self.number() for _ in range(8)]
        self.task = self.pick(
            (
                f"Novelty search for {self.app} ({self.field}): go through the cited documents, feature by feature, "
                "against claim 1."
            ),
            f"Is claim {self.n(1, 15)} of {self.app} anticipated by {self.cited[0]} or {self.cited[1]}? Write a note.",
            (
                f"Opposition against {self.app}. Read the file history and the citations ({', '.join(self.cited[:3])} ."
                "..), collect passages."
            ),
        )

    def number(self) -> str:
        """Return a document's number."""
        return f"{self.pick('EP', 'US', 'JP', 'CN', 'GB')}{self.n(10**5, 10**8)}{self.pick('A', 'B1', 'C', 'U')}"

    def passage(self, field: str) -> str:
        """Return a passage."""
        a, b = self.some(PARTS, 2)
        return (
            f"[{self.n(1, 140):04}] In the {field[:-1]} according to {self.pick('Fig.', 'claim', 'example')} "
            f"{self.n(1, 19)}, the {a} ({self.n(10, 99)}) is "
            f"{self.pick('fixed to', 'biased against', 'spaced from')} the {b} ({self.n(10, 99)}) by "
            f"{self.x(0, 90)} {self.pick('mm', 'degrees', 'bar')}."
        )

    def step(self) -> None:
        kind, document = self.n(0, 4), self.pick(*self.cited)
        if kind == 0:
            self.call(
                "patent_text",
                {"doc": self.app, "part": self.pick("claims", "description"), "from": self.n(1, 140)},
                self.passage(self.field),
            )
        elif kind < 3:
            self.call(
                "patent_text",
                {"doc": document, "part": self.pick("claims", "description", "abstract"), "from": self.n(1, 140)},
                self.passage(self.field),
            )
        elif kind == 3:
            self.call(
                "register_events",
                {"doc": self.app, "page": self.n(1, 60)},
                self.one(
                    event=self.pick("fee paid", "reply filed", "examiner's letter", "amendment"),
                    on=self.day(),
                    code=f"{self.n(1000, 9999)}",
                ),
            )
        else:
            self.call(
                "excerpt_save",
                {"doc": document, "text": self.passage(self.field)[:80]},
                f"excerpt {self.n(1, 9999)} of {document}",
                change=True,
            )

    def drift_citations_of_citations(self) -> None:
        """What the cited cite, and what those cite, further and further."""
        self.lead()
        far = self.number()
        for _ in self.times(9, 14):
            nxt = self.number()
            self.call(
                "patent_citations",
                {"doc": far},
                self.show([{"doc": nxt, "by": self.person(), "year": self.n(1931, 2019)}]),
                out=True,
            )
            if self.chance(0.5):
                self.call(
                    "patent_text", {"doc": nxt, "part": "abstract"}, self.passage(self.pick(*self.others)), out=True
                )
            far = nxt

    def drift_inventor_biography(self) -> None:
        """Who is the inventor, where does she live, what else did she found?"""
        self.lead()
        for _ in self.times(9, 13):
            who = self.person()
            self.call(
                *self.pick(
                    (
                        "web_open",
                        {"url": f"https://people.example/{who.lower().replace(' ', '-')}"},
                        (
                            f"<h1>{who}</h1><p>born {self.n(1940, 1999)}, founded {self.pick('Arvo', 'Belt', 'Cirro')} "
                            f"{self.n(1, 99)}</p>"
                        ),
                    ),
                    (
                        "company_register",
                        {"name": f"{who.split()[1]} {self.pick('GmbH', 'Ltd', 'Inc')}"},
                        f"HRB {self.n(1000, 99999)} capital {self.n(25, 900)} T",
                    ),
                    (
                        "news_search",
                        {"q": who, "year": self.n(2001, 2026)},
                        f"{who} wins {self.pick('prize', 'lawsuit', 'grant')} ({self.day()})",
                    ),
                ),
                out=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def drift_other_files(self) -> None:
        """Edits the notes of other cases of the office."""
        self.lead()
        for _ in self.times(8, 11):
            case = f"{self.pick('K', 'M', 'Z')}{self.n(1000, 9999)}-{self.pick('EP', 'US')}"
            if self.chance(0.35):
                self.call(
                    "case_note",
                    {"case": case, "page": self.n(1, 20)},
                    f"{case}: {self.pick(*self.others)}, deadline {self.day()}",
                    out=True,
                )
            else:
                self.call(
                    "case_note_write",
                    {"case": case, "text": f"see {self.number()} {self.pick('col.', 'para', 'page')} {self.n(1, 40)}"},
                    f"{case} note {self.n(1, 999)} saved",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_class_by_class(self) -> None:
        """Browses the classification into other arts."""
        self.lead()

        def browse() -> None:
            symbol = (
                f"{self.pick(*'ABCDEFGH')}{self.n(1, 99):02}{self.pick(*'BCDFGHK')}{self.n(1, 99)}/{self.n(0, 99):02}"
            )
            self.call(
                self.pick("class_browse", "class_statistics"),
                {"symbol": symbol},
                f"{symbol} {self.pick(*self.others)}: {self.n(20, 90000)} documents",
                out=True,
            )

        self.gradually(browse, 20, 28)
        self.tail()

    def stall_query_variants(self) -> None:
        """The query in all spellings finds the same two documents."""
        self.work(5, 9)
        pair = ", ".join(self.cited[:2])
        for number in self.times(7, 13):
            a, b = self.pick(
                ("lever", "spring"), ("spring", "lever"), ("levers", "springs"), ("lever arm", "coil spring")
            )
            self.call(
                "patent_search",
                {"q": self.pick(f"{a} AND {b}", f"({a}) ({b})", f"ti,ab=({a} w/5 {b})", f"{self.field} {a} {b}")},
                self.pick(f"2 hits: {pair}", pair, f"{pair} (2)"),
                new=number == 0,
            )
        self.tail()

    def stall_missing_page(self) -> None:
        """The scan has no page 7; it is asked for by all offices' services."""
        self.work(4, 9)
        document = self.cited[0]
        for number in self.times(7, 12):
            self.call(
                self.pick("patent_page", "pdf_page", "fulltext_page", "drawing"),
                {
                    "doc": document,
                    "page": 7,
                    "source": self.pick("epo", "google", "dpma", "uspto", "jpo"),
                    "try": number,
                },
                self.pick("page 7 is blank", "(empty page)", "7: no image data, no text"),
                new=number == 0,
            )

    def stall_tag_on_and_off(self) -> None:
        """A document is marked 'relevant', then 'background', then 'relevant'."""
        self.work(4, 9)
        document = self.cited[0]
        for number in self.times(8, 13):
            tag = ["relevant", "background"][number % 2]
            self.call("doc_tag", {"doc": document, "tag": tag}, f"{document}: {tag}", new=number < 2)
        self.tail()

    def cascade_licence_ip(self) -> None:
        """The licence is bound to another address; text and search are refused in many words."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            document = self.pick(*self.cited)
            self.call(
                self.pick("patent_text", "patent_search", "patent_citations", "drawing"),
                {"doc": document, "n": self.n(1, 99)},
                self.pick(
                    f"Access to {document} denied: address not in range",
                    f"<html>Please contact your licence administrator ({document})</html>",
                    self.one(code="E-LIC-7", doc=document),
                    f"session ended while loading {document}",
                ),
                ok=self.chance(0.5),
                cause="licence",
            )
            if self.chance(0.4):
                self.call(
                    "register_events",
                    {"doc": self.app, "page": self.n(1, 99)},
                    self.one(event="fee paid", code=self.n(1, 9999)),
                )

    def cascade_number_format(self) -> None:
        """Numbers are given with blanks, which the service does not understand; every document 'does not exist'."""
        self.work(3, 8)
        for document in self.some(self.cited, 4, 7):
            self.call(
                "patent_text",
                {"doc": f"{document[:2]} {document[2:-1]} {document[-1]}"},
                self.pick(
                    f"unparsable publication number '{document[:2]} {document[2:-1]}'",
                    f"invalid docdb id near '{document[2:6]}'",
                    f"400 {document[:2]}: format",
                ),
                ok=False,
                cause="format",
            )
            if self.chance(0.4):
                self.call(
                    "register_events",
                    {"doc": self.app, "page": self.n(1, 99)},
                    self.one(event="reply filed", code=self.n(1, 9999)),
                )
        self.tail()

    def healthy_all_citations(self) -> None:
        """Each cited document, claims and description."""
        for document in self.cited:
            self.call("patent_text", {"doc": document, "part": "claims"}, self.passage(self.field))
            self.call("patent_text", {"doc": document, "part": "description"}, self.passage(self.field))

    def healthy_file_history(self) -> None:
        """Page after page of the register."""
        self.work(1, 3)
        for page in self.times(12, 20):
            self.call(
                "register_events",
                {"doc": self.app, "page": page + 1},
                self.show([{"page": page + 1, "event": self.pick("fee", "letter", "reply"), "on": self.day()}]),
            )
        self.work(2, 4)

    def healthy_query_refined(self) -> None:
        """A query becomes narrower, and the hits fewer."""
        self.work(2, 5)
        hits, query = self.n(20000, 90000), self.field
        while hits > 3:
            query += f" AND {self.pick(*PARTS)}"
            hits = int(hits * self.x(0.15, 0.5, 2))
            self.call("patent_search", {"q": query}, f"{hits} hits, first {self.pick(*self.cited)} {self.n(1, 99)}")
        self.work(5, 9)

    def healthy_family_members(self) -> None:
        """The application's own family, in other countries, and its examiners' letters."""
        self.work(2, 4)
        family = [f"{country}{self.app[2:-2]}{self.pick('A', 'B')}" for country in ("JP", "CN", "KR", "CA", "AU", "BR")]
        self.call("patent_family", {"doc": self.app}, f"{self.app}: {' '.join(family)}")
        for member in family:
            self.call(
                "register_events",
                {"doc": member, "page": 1},
                self.one(doc=member, event="examiner's letter", on=self.day()),
            )
        self.work(4, 8)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(PatentSearch, rng)
