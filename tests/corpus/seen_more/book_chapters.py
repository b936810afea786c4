"""A publishing house: manuscripts in parts, through the tools of an editorial system."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tests.corpus.seen_more.trees import TreeScene
from tests.corpus.seen_more.world import Place, Shape, js, stories
from tests.corpus.trace import Trace

KIND = "book_chapters"


class Manuscripts(TreeScene):
    """Sections of several books; sections cite others, figures and a glossary."""

    parts: ClassVar[dict[str, list[str]]] = {
        "bees": ["ch01-spring", "ch02-hive", "ch03-swarm", "ch04-honey", "ch05-winter"],
        "sailing": ["ch01-knots", "ch02-wind", "ch03-harbour", "ch04-storm"],
        "bread": ["ch01-flour", "ch02-sourdough", "ch03-oven", "ch04-rye", "ch05-rolls"],
        "clocks": ["ch01-weights", "ch02-escapement", "ch03-pendulum", "ch04-cases"],
    }
    shared: ClassVar[dict[str, list[str]]] = {
        "common": ["glossary", "house-style", "authors", "imprint"],
        "figures": ["fig-tools", "fig-maps", "fig-tables"],
    }
    strays = (
        "catalogue/autumn",
        "website/blurb",
        "newsletter/march",
        "contracts/template",
        "jacket/spine",
        "fair/stand-list",
    )
    words = (
        "comma",
        "caption",
        "footnote",
        "heading",
        "quotation",
        "hyphen",
        "index entry",
        "metre",
        "spelling",
        "date",
        "credit",
    )
    forms = ("path", "file", "glob", "folder", "words", "words", "words", "line", "everywhere", "nothing")

    def path(self, part: str, stem: str) -> str:
        """Sections have addresses of the house's own scheme."""
        return f"ms:{part}/{stem}"

    def link_line(self, path: str, link: str) -> str:
        """A cross reference."""
        return f"{{see {link}}}"

    def body(self, path: str) -> list[str]:
        """Paragraphs."""
        rng = self.rng
        name = path.split("-")[-1]
        return [
            f"Of {name} {n}: the {rng.choice(self.words)} is {rng.choice(['old', 'good', 'unclear'])}, "
            f"as {rng.randint(2, 90)} say."
            for n in range(rng.randint(4, 12))
        ]

    def new_line(self, path: str, word: str) -> str:
        """A sentence."""
        return f"The {word} was set anew ({self.number})."

    def say_task(self) -> str:
        """The task in its form."""
        rng = self.rng
        chapter, title = self.target.split("/")[-1].split("-")
        return {
            "path": f"Copy-edit {self.target}. British spelling, metric units, captions below figures.",
            "file": f"The chapter on {title} in '{self.part}' came back from the reader with 31 marks. Work them in.",
            "glob": f"ms:{self.part}/ch*: number the footnotes anew",
            "folder": f"Read the whole of ms:{self.part} once more before it goes to the printer.",
            "words": rng.choice(
                [
                    f"The author of the {self.part} book wants gentler sentences. You know how.",
                    f"Index for the book about {self.part}, please.",
                    f"Bitte das Buch ueber {self.part} auf einheitliche Masse bringen.",
                ]
            ),
            "line": f"{self.part} {chapter} ({title}): second paragraph repeats the first",
            "red": "",
            "everywhere": "New house style: en dashes between numbers, in all books and common parts.",
            "nothing": "Proof-read what is lying around.",
        }[self.form]

    def do_read(self, path: str, fresh: bool | None, place: Place) -> None:
        """Open a section."""
        lines, rng = self.text[path], self.rng
        if fresh is None or fresh or rng.random() < 0.4:
            self.run.call("section_get", {"ref": path}, "\n\n".join(lines), fresh=fresh is None or fresh, place=place)
        elif rng.random() < 0.5:
            first = rng.randint(1, 2)
            shown = "\n".join(f"[{n}] {line}" for n, line in enumerate(lines[first - 1 :], first))
            self.run.call("section_paragraphs", {"ref": path, "from": first}, shown, fresh=False, place=place)
        else:
            shown = "<section><p>" + "</p><p>".join(lines) + "</p></section>"
            self.run.call("section_export", {"ref": path, "as": "xml"}, shown, fresh=False, place=place)

    def do_edit(self, path: str, before: str, after: str, fresh: bool, place: Place) -> None:
        """Propose a change in a section."""
        args = {"ref": path, "strike": before[:60], "insert": after}
        said = self.rng.choice(
            ["Change recorded.", js(rev=self.run.hexid(5), ok=True), f"{path} +{len(after)} -{len(before[:60])}"]
        )
        self.run.call("change_propose", args, said, fresh=fresh, change=True, place=place, clears="style")

    def do_seek(self, query: str, hits: list[str], fresh: bool, place: Place) -> None:
        """Search in the texts."""
        none = self.rng.choice(["Nothing found.", "0 passages", ""])
        self.run.call(
            "text_find", {"phrase": query, "in": f"ms:{self.part}"}, "\n".join(hits) or none, fresh=fresh, place=place
        )

    def do_check(self, red: list[str], fresh: bool, place: Place) -> None:
        """Let the house's checker read."""
        lines = [f"- {word}: {len(word)} places in {self.target}" for word in red] or ["no remarks"]
        args = {"book": self.part, "rules": "house"}
        self.run.call(
            "style_check", args, f"checked at {self.run.time()}\n" + "\n".join(lines), fresh=fresh, place=place
        )

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def the_galley_is_frozen() -> None:
            for _ in range(rng.randint(4, 8)):
                path = rng.choice(self.core)
                self.number += 1
                args = {"ref": path, "strike": rng.choice(self.text[path])[:40], "insert": f"... {self.number}"}
                said = rng.choice(
                    [
                        "Not recorded: galleys are frozen since the imprimatur of the 3rd.",
                        js(rev=None, ok=False, why="FROZEN", by="production"),
                        f"The book of {path} is closed for changes. Ask production to open it.",
                    ]
                )
                self.run.call(
                    "change_propose", args, said, ok=rng.random() < 0.8, cause="style", place=self.place(path)
                )
                self.quiet()

        def the_typesetter_does_not_run() -> None:
            for number in range(rng.randint(4, 7)):
                said = rng.choice(
                    [
                        "! LaTeX Error: File `garamond-house.sty' not found.",
                        "Typesetting stopped: font GaramondHouse missing (page 1)",
                        f"proof {self.run.hexid(4)}: 0 pages, log says 'garamond-house'",
                    ]
                )
                args = {
                    "book": self.part,
                    "pages": f"{number * 8 + 1}-{number * 8 + 8}",
                    "as": rng.choice(["pdf", "epub", "png"]),
                }
                self.run.call("proof_make", args, said, ok=rng.random() < 0.6, cause="font", place=self.here)
                if rng.random() < 0.7:
                    self.step()

        return [the_galley_is_frozen, the_typesetter_does_not_run]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""

        def who_am_i() -> None:
            for _ in range(3):
                self.run.call("session_user", {}, "agent (copy editor)")
            self.work(5)

        return [*super().alikes(), who_am_i]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Manuscripts, rng)
