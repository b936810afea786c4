"""A law office: dockets with documents, deadlines, drafts, post to courts and clients. Results are prose."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world2 import Place, Scene, Step, produce

KIND = "case files and deadlines of a law office"
WHO = (
    "the claimant",
    "the respondent",
    "the expert",
    "the bailiff",
    "witness A.",
    "witness R.",
    "the insurer",
    "the carrier",
)
DID = ("received", "returned", "inspected", "disputed", "signed", "delivered", "withheld", "photographed", "repaired")
WHAT = (
    "the pump",
    "the invoice of 4 May",
    "the second crate",
    "the seal",
    "the notice of defects",
    "the key",
    "the ledger",
)
SECTIONS = (
    "facts",
    "jurisdiction",
    "limitation",
    "defects",
    "damages",
    "set-off",
    "costs",
    "exhibits",
    "prayer",
    "evidence",
)


class Office(Scene):
    """A register of dockets; one of them is today's work."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        number = rng.randint(120, 880)
        self.docket = f"{number:04}/31"
        self.joined = f"{number - rng.randint(30, 60):04}/30"
        self.others = [f"{number + step:04}/31" for step in (-5, -3, -2, -1, 1, 2, 4, 6)]
        self.items = {f"D{n}": rng.randint(3, 7) for n in range(1, 9)}
        self.draft: dict[str, int] = {}
        self.court = rng.choice(["District Court, chamber 3", "Regional Court, chamber 11", "Commercial Court, list B"])
        self.task = rng.choice(
            [
                (
                    "Docket {d}: prepare the statement of defence. Read the file, enter every deadline, write the "
                    "sections, send the client a summary. The matter joined to it may be consulted."
                ),
                (
                    "Please go through {d} today: all items, deadlines into the calendar, a draft for the "
                    "{c}, a letter to the client."
                ),
                "In {d} the answer to the {c} falls due soon. File, deadlines, draft, post - in this docket only.",
            ]
        ).format(d=self.docket, c=self.court)

    def where(self, docket: str) -> Place:
        """The docket and the one that is joined to it."""
        return "in" if docket in (self.docket, self.joined) else "out"

    # Looks.

    def page(self, docket: str, item: str, number: int) -> str:
        """The text of a page."""
        rng = random.Random(f"{docket}{item}{number}")
        lines = [
            f"({number}.{row}) On {rng.randint(1, 28)} {rng.choice(['May', 'June', 'July'])} {rng.choice(WHO)} "
            f"{rng.choice(DID)} {rng.choice(WHAT)}; EUR {rng.randint(90, 90000):,}."
            for row in range(1, rng.randint(4, 8))
        ]
        return f"- {number} -\n" + "\n".join(lines)

    def pages(self, docket: str, item: str, first: int, last: int, way: int | None = None) -> None:
        """Pages of an item; the same pages can be asked for in several ways."""
        numbers = range(first, last + 1)
        text = "\n".join(self.page(docket, item, number) for number in numbers)
        way = self.rng.randrange(3) if way is None else way
        arguments: dict[str, Any]
        if way == 0:
            tool, arguments = "file_read", {"docket": docket, "item": item, "pages": f"{first}-{last}"}
        elif way == 1:
            tool, arguments = "file_read", {"ref": f"{docket}#{item}", "from": first, "to": last}
        else:
            tool, arguments = "ocr_text", {"document": f"{docket} / {item}", "sheets": list(numbers)}
            text = text.replace("\n(", " (")
        facts = [f"page {docket} {item} {number}" for number in numbers]
        uses = ("archive",) if item in ("D1", "D2") else ()
        far = docket == self.joined
        self.call(tool, arguments, text, facts=facts, uses=uses, place=self.where(docket), far=far)

    def cover(self, docket: str) -> None:
        """What a docket holds."""
        rng = random.Random(docket)
        kind = rng.choice(["Sale", "Carriage", "Lease", "Works"])
        text = f"Docket {docket}. {kind}, value EUR {rng.randint(3, 400)}000.\n"
        text += "\n".join(f"{item}  {pages} pp." for item, pages in self.items.items())
        if docket == self.docket:
            text += f"\nJoined by order to {self.joined}."
        arguments = {"docket": docket}
        far = docket == self.joined
        self.call("docket_open", arguments, text, facts=(f"cover {docket}",), place=self.where(docket), far=far)

    def compute(self, item: str) -> None:
        """The end of a period."""
        rng = random.Random(item + self.docket)
        weeks, day = rng.choice([1, 2, 4, 6]), rng.randint(1, 28)
        end = day + 7 * weeks
        last = f"{end} March" if end <= 31 else f"{end - 31} April" if end <= 61 else f"{end - 61} May"
        text = f"Service {day} March 2031, period {weeks} week(s): ends with {last} 2031."
        arguments = {"served": f"2031-03-{day:02}", "period": f"{weeks}w", "item": item}
        self.call("deadline_compute", arguments, text, facts=(f"period {item}",), place="in")

    # Changes.

    def enter(self, docket: str, label: str) -> None:
        """A deadline into the calendar."""
        day = self.rng.randint(1, 28)
        arguments = {"docket": docket, "date": f"2031-04-{day:02}", "label": label, "warn_days": [7, 1]}
        self.call(
            "calendar_enter",
            arguments,
            f"Entered as F-{self.rng.randint(1000, 9999)}; second check by registry pending.",
            facts=(f"entered {docket} {label}",),
            uses=("date",),
            place=self.where(docket),
            change=True,
        )

    def write(self, section: str) -> None:
        """A section of the draft grows."""
        self.draft[section] = self.draft.get(section, 0) + 1
        body = " ".join(f"{self.pick(WHO).capitalize()} {self.pick(DID)} {self.pick(WHAT)}." for _ in range(3))
        arguments = {"draft": f"{self.docket}-answer", "section": section, "text": body, "mode": "append"}
        text = f"Draft saved, {sum(self.draft.values()) * 41} words, version {sum(self.draft.values())}."
        self.call(
            "draft_write", arguments, text, facts=(f"draft {section} {self.draft[section]}",), place="in", change=True
        )

    def letter(self, docket: str, to: str, about: str) -> None:
        """A letter by ordinary post."""
        arguments = {"docket": docket, "to": to, "body": f"In the above matter we inform you about {about}."}
        text = f"Letter to {to} handed to the post room at {self.stamp('clock')[:5]}."
        facts = (f"letter {docket} {to} {about}",)
        self.call("letter_send", arguments, text, facts=facts, place=self.where(docket), change=True)

    def steps(self) -> list[Step]:
        part = functools.partial
        steps: list[Step] = [("", part(self.cover, self.docket))]
        reads: list[Step] = []
        for item, count in self.items.items():
            need = "archive" if item in ("D1", "D2") else ""
            firsts = range(1, count + 1, 2)
            reads += [(need, part(self.pages, self.docket, item, first, min(count, first + 1))) for first in firsts]
        others: list[Step] = []
        for item in self.some(list(self.items), 5):
            others.append(("", part(self.compute, item)))
            others.append(("date", part(self.enter, self.docket, f"period of {item}")))
        others += [("", part(self.write, section)) for section in self.some(SECTIONS, 10)]
        others += [("", part(self.write, section)) for section in self.some(SECTIONS, 4)]
        for number, step in enumerate(others):
            reads.insert(min(len(reads), 3 + 2 * number), step)
        return [*steps, *reads, ("", part(self.letter, self.docket, "client", "the state of the matter"))]

    # Troubles.

    def pages_read_already(self) -> None:
        """An item is turned over again in other ranges."""
        item, count = self.pick(
            [(name, count) for name, count in self.items.items() if count > 3 and name not in ("D1", "D2")]
        )
        self.pages(self.docket, item, 1, count, 0)
        for number in range(self.rng.randint(8, 14)):
            first = self.rng.randint(1, count)
            last = self.rng.randint(first, min(count, first + 2))
            if number == 4 and self.rng.random() < 0.5:
                self.compute("D99")
            elif self.rng.random() < 0.25:
                word = self.pick(WHAT)
                hits = [n for n in range(1, count + 1) if word in self.page(self.docket, item, n)]
                text = f"{item}: {word!r} on page(s) {', '.join(map(str, hits)) or 'none'}"
                self.call(
                    "file_search", {"docket": self.docket, "item": item, "words": word}, text, facts=(), place="in"
                )
            else:
                self.pages(self.docket, item, first, last)

    def reminders_to_the_expert(self) -> None:
        """The same reminder in other words, and the same empty tray, within a few minutes."""
        words = (
            "kindly let us have your report",
            "may we remind you of the report",
            "we still lack your report",
            "report, please",
        )
        for number in range(self.rng.randint(9, 14)):
            gap = self.rng.uniform(4, 9)
            if number % 2 == 0:
                channel = self.pick(["letter_send", "mail_send", "fax_send"])
                arguments = {
                    "docket": self.docket,
                    "to": "expert",
                    "body": f"{self.pick(words).capitalize()}. ({number})",
                }
                text = self.pick(["Handed over", "Sent", "Accepted"]) + f" at {self.stamp('clock')}."
                self.call(channel, arguments, text, facts=("reminder expert",), place="in", change=True, gap=gap)
            else:
                arguments = {"docket": self.docket, "tray": self.pick(["in", "all", "today"])}
                text = f"No new post in {self.docket}. ({self.stamp('clock')})"
                self.call("post_tray", arguments, text, facts=("tray empty",), place="in", gap=gap)

    def one_period_many_ways(self) -> None:
        """The same period is computed with other spellings and tools; it ends on the same day."""
        day = self.rng.randint(3, 12)
        end = f"{day + 14} March 2031"
        for _ in range(self.rng.randint(9, 15)):
            way = self.rng.randrange(4)
            arguments: dict[str, Any]
            if way == 0:
                arguments = {
                    "served": self.pick([f"2031-03-{day:02}", f"{day}.3.2031"]),
                    "period": self.pick(["2w", "14d"]),
                }
                self.call("deadline_compute", arguments, f"Ends with {end}.", facts=("two weeks",), place="in")
            elif way == 1:
                question = f"two weeks after service on {day} March, " + self.pick(
                    ["when does it end?", "last day?", "deadline?"]
                )
                self.call(
                    "ask_rules",
                    {"question": question},
                    f"The period ends with the expiry of {end}.",
                    facts=("two weeks",),
                )
            elif way == 2:
                arguments = {"start": f"2031-03-{day:02}", "add_days": 14, "holidays": self.pick(["state", "federal"])}
                self.call("date_add", arguments, f"2031-03-{day + 14:02} ({end})", facts=("two weeks",))
            else:
                arguments = {"docket": self.docket, "around": f"2031-03-{day + 14:02}", "span": self.rng.randint(1, 4)}
                text = f"{end}: a period of two weeks ends."
                self.call("calendar_show", arguments, text, facts=("two weeks",), place="in")

    def wording_to_and_fro(self) -> None:
        """A sentence changes between two wordings; the reviewer's remark stays."""
        wordings = ("The claim is time-barred.", "The claim has lapsed by limitation.")
        for number in range(self.rng.randint(7, 9)):
            arguments = {
                "draft": f"{self.docket}-answer",
                "section": "limitation",
                "text": wordings[number % 2],
                "mode": "replace",
            }
            text = f"Draft saved ({self.stamp('clock')})."
            self.call("draft_write", arguments, text, facts=(f"wording {number % 2}",), place="in", change=True)
            arguments = {"draft": f"{self.docket}-answer", "rules": self.pick(["house", "court", "all"])}
            text = "1 remark. Limitation: no reference to the provision is given."
            self.call(
                self.pick(["draft_check", "draft_review"]), arguments, text, facts=self.again("remark"), place="in"
            )

    def card_is_not_valid(self) -> None:
        """The electronic post to courts refuses the signature card, whatever is sent."""
        dense = self.rng.random() < 0.3
        for number in range(self.rng.randint(7, 11) if dense else self.rng.randint(4, 8)):
            body = (
                "time extension"
                if dense
                else self.pick(["answer, part 1", "power of attorney", "time extension", "exhibits"])
            )
            arguments = {"court": self.court, "docket": self.docket, "title": body} | (
                {} if dense else {"part": number + 1}
            )
            text = (
                f"<epost ref='{self.hexid()}'><status>accepted</status><delivery>none: signature card not valid "
                f"(blocked {self.day} Feb)</delivery></epost>"
            )
            facts = () if dense else (f"epost {number}",)
            ok = self.rng.random() < 0.6
            self.call("court_post", arguments, text, ok=ok, cause="card", place="in", facts=facts)
            if not dense:
                self.work(self.rng.choice((0, 1, 1, 2)))
        if self.rng.random() < 0.4:
            self.call("card_select", {"slot": 2}, "Card in slot 2 is valid until 2033.", facts=("slot 2",))
            arguments = {"court": self.court, "docket": self.docket, "title": "time extension"}
            text = f"<epost ref='{self.hexid()}'><status>delivered</status></epost>"
            self.call("court_post", arguments, text, facts=("delivered",), uses=("card",), place="in", change=True)

    def archive_out_of_reach(self) -> None:
        """The oldest items lie on a scanner archive that does not answer."""
        self.blocked.add("archive")
        for _ in range(self.rng.randint(4, 8)):
            item = self.pick(["D1", "D2"])
            first = self.rng.randint(1, 3)
            arguments = {"docket": self.docket, "item": item, "pages": f"{first}-{first + 1}"}
            tool = self.pick(["file_read", "ocr_text", "file_print"])
            text = (
                f"Item {item} could not be fetched: scan archive (sa-2) does not answer within {self.pick([10, 30])} s."
            )
            gap = self.rng.uniform(14, 36)
            facts = (f"{tool} {item} {first}",)
            self.call(
                tool, arguments, text, ok=self.rng.random() < 0.4, cause="archive", place="in", facts=facts, gap=gap
            )
            self.work(self.rng.choice((0, 1, 1, 2, 3)))

    def day_before_month(self) -> None:
        """The calendar takes dates in one form only; entry after entry has another."""
        self.blocked.add("date")
        for _ in range(self.rng.randint(4, 8)):
            day, item = self.rng.randint(1, 28), self.pick(list(self.items))
            date = self.pick([f"{day}.4.2031", f"{day:02}/04/2031", f"{day} April 2031", f"{day:02}-04-31"])
            arguments = {"docket": self.docket, "date": date, "label": f"period of {item}"}
            text = "Not entered: the date must be given as YYYY-MM-DD."
            self.call(
                "calendar_enter", arguments, text, ok=self.rng.random() < 0.5, cause="date", place="in", facts=(date,)
            )
            self.work(self.rng.choice((0, 1, 1, 2)))

    def deadlines_of_other_dockets(self) -> None:
        """The calendar of neighbouring dockets is put in order, too."""
        dense = self.rng.random() < 0.4
        for docket in self.some(self.others, self.rng.randint(4, 6)):
            if dense:
                self.cover(docket)
                self.pages(docket, "D3", 1, 2)
            self.enter(docket, self.pick(["answer", "reply", "hearing", "appeal"]))
            self.work(1 if dense else 2)

    def novels_from_the_register(self) -> None:
        """The agent reads what others have in their files."""
        for docket in self.some(self.others, 3):
            self.cover(docket)
            for item in self.some(list(self.items)[2:], self.rng.randint(2, 4)):
                self.pages(docket, item, 1, 2)

    def letters_in_other_matters(self) -> None:
        """Clients of other dockets get letters."""
        for docket in self.some(self.others, self.rng.randint(4, 6)):
            self.letter(docket, "client", self.pick(["a new hearing date", "our opinion", "the fees", "an offer"]))
            self.work(self.rng.choice((1, 2)))

    # Look-alikes.

    def the_joined_matter(self) -> None:
        """The docket that is joined by order is read."""
        self.cover(self.docket)
        self.cover(self.joined)
        for item in self.some(list(self.items)[2:], self.rng.randint(4, 6)):
            self.pages(self.joined, item, 1, 2)

    def receipt_of_the_court(self) -> None:
        """The receipt takes a while."""
        arguments = {"docket": self.docket, "last": True}
        for _ in range(self.rng.randint(4, 8)):
            text = f"Sent; no receipt yet. ({self.stamp('clock')})"
            gap = self.rng.uniform(30, 80)
            self.call("receipt", arguments, text, facts=("no receipt",), watch="receipt", place="in", gap=gap)
        self.call(
            "receipt", arguments, "Receipt of the court's server: 0 errors.", facts=("receipt",), place="in", gap=44
        )

    def busy_line(self) -> None:
        """The registry's fax is engaged; each pause is longer."""
        gap, arguments = 5.0, {"to": "registry", "item": "D4"}
        for _ in range(self.rng.randint(3, 4)):
            self.call("fax_item", arguments, "Line engaged.", ok=False, cause="fax", place="in", gap=gap)
            gap *= self.rng.uniform(1.6, 2.3)
        self.call("fax_item", arguments, "7 pages sent.", facts=("faxed",), uses=("fax",), place="in", gap=gap)

    def three_times_refused(self) -> None:
        """The same refusal three times, then the form is found."""
        for body in ("D5", "item D5", "5"):
            arguments = {"docket": self.docket, "label": body}
            self.call(
                "exhibit_mark", arguments, "Refused: labels begin with K or B.", ok=False, cause="label", place="in"
            )
        arguments = {"docket": self.docket, "label": "K5"}
        self.call("exhibit_mark", arguments, "Marked K5.", facts=("K5",), uses=("label",), place="in", change=True)

    def terms_without_hits(self) -> None:
        """Different questions, each answered by nothing."""
        for words in self.some(
            ["force majeure", "arbitration", "retention of title", "assignment", "usage", "guarantee"], 5
        ):
            arguments = {"docket": self.docket, "words": words}
            self.call("file_search", arguments, "No passage.", facts=(f"no {words}",), place="in")

    def one_section_grows(self) -> None:
        """Many additions to one section."""
        for _ in range(self.rng.randint(5, 8)):
            self.write("damages")

    def two_neighbours(self) -> None:
        """Two precedents among the office's own dockets are looked up, then on."""
        for docket in self.some(self.others, 2):
            self.cover(docket)
            self.pages(docket, "D4", 1, 2)
        self.work(6)

    def morning_round(self) -> None:
        """What else is on the desk."""
        for docket in self.some(self.others, self.rng.randint(5, 7)):
            self.cover(docket)

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        return {
            "stalled": [
                self.pages_read_already,
                self.reminders_to_the_expert,
                self.one_period_many_ways,
                self.wording_to_and_fro,
            ],
            "cascading": [self.card_is_not_valid, self.archive_out_of_reach, self.day_before_month],
            "drifting": [self.deadlines_of_other_dockets, self.novels_from_the_register, self.letters_in_other_matters],
            "alike": [
                self.the_joined_matter,
                self.receipt_of_the_court,
                self.busy_line,
                self.three_times_refused,
                self.terms_without_hits,
                self.one_section_grows,
                self.two_neighbours,
            ],
            "opening": [self.morning_round],
        }


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Runs of an agent in a law office."""
    return produce(rng, KIND, Office)
