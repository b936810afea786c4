"""Research in archives and on the web: much is read, little is written; tasks name topics, people's roles and years."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "archive_reading"

TOPICS = {
    "canal lock keepers": ["lock 9", "toll book", "barge", "wages of the keeper", "Schleuse"],
    "glass beads": ["furnace", "bead trade", "Glasperlen", "cobalt", "kiln"],
    "city cholera 1866": ["well", "cholera ward", "burials", "quarantine", "pump"],
    "school gardens": ["seed list", "garden teacher", "potager", "beehives", "allotment"],
    "lighthouse optics": ["lens", "oil", "keeper's log", "phare", "flash period"],
    "tram strike": ["depot", "leaflet", "union hall", "Streik", "timetable"],
}
SOURCES = ["town archive", "parish register", "newspaper", "thesis", "museum leaflet", "letters", "Protokollbuch"]


class Reading(Scene):
    """Documents by topic; a task about one topic."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the topic."""
        super().__init__(rng)
        self.topic = rng.choice(list(TOPICS))
        self.form = rng.choice(["topic", "topic", "question", "list", "nothing"])
        word = rng.choice(TOPICS[self.topic])
        self.task = {
            "topic": f"Write two pages about {self.topic}, with sources.",
            "question": f"Who paid for the {word} ({self.topic}) and until when? I need proof, not guesses.",
            "list": f"Bibliography: {self.topic}. At least 20 titles, also foreign ones, each checked.",
            "nothing": "Find something for our column 'A hundred years ago'.",
        }[self.form]
        self.number = rng.randint(10, 400)
        self.notes = 0

    def place(self, topic: str) -> Place:
        """Say whether a topic belongs to the task."""
        return "" if self.form == "nothing" else "in" if topic == self.topic else "out"

    def own(self) -> str:
        """Choose the topic of the task."""
        return self.rng.choice(list(TOPICS)) if self.form == "nothing" else self.topic

    def text(self, topic: str) -> str:
        """Write a passage that was not seen before."""
        rng = self.rng
        self.number += 1
        words = TOPICS[topic]
        lines = [
            f"{rng.choice(SOURCES)}, fol. {self.number + n}: on the {rng.choice(words)} and the {rng.choice(words)}, "
            f"{rng.randint(2, 90)} {rng.choice(['thalers', 'pounds', 'Mark', 'francs'])} in 18{rng.randint(10, 99)}."
            for n in range(rng.randint(1, 12))
        ]
        return "\n".join(lines)

    def look(self, topic: str) -> None:
        """Read something new about a topic."""
        rng, at = self.rng, self.place(topic)
        words = TOPICS[topic]
        slug = topic.replace(" ", "-")
        self.number += 1
        kind = rng.randrange(4)
        if kind == 0:
            args: Args = {"q": f"{rng.choice(words)} {rng.choice(SOURCES)} 18{self.number % 90 + 10}", "n": 5}
            rows = [
                f"{n}. {topic}: {rng.choice(words)} ({rng.choice(SOURCES)}, {self.number + n})" for n in range(1, 6)
            ]
            self.run.call("web_search", args, "\n".join(rows), place=at, fresh=True)
        elif kind == 1:
            self.run.call("fetch", {"url": f"https://archive.example/{slug}/{self.number}"}, self.text(topic), place=at)
        elif kind == 2:
            args = {"fond": slug, "signatur": f"{rng.choice('ABCDE')} {self.number}"}
            self.run.call("findbuch_lesen", args, self.text(topic), place=at)
        else:
            args = {"collection": slug, "scan": self.number, "ocr": True}
            self.run.call("scan_transcribe", args, f"[{self.number}r] {self.text(topic)} [illegible]", place=at)

    def write(self, topic: str) -> None:
        """Add a note."""
        self.notes += 1
        args: Args = {
            "section": f"{topic} {self.notes}",
            "text": f"On {self.rng.choice(TOPICS[topic])}, see {self.number}.",
        }
        self.run.call("notes_add", args, f"{self.notes} notes", place=self.place(topic), change=True, clears="notes")

    def step(self) -> None:
        """Read much, write little."""
        topic = self.own()
        self.look(topic) if self.rng.random() < 0.85 else self.write(topic)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, topic = self.rng, self.own()
        at, word = self.place(topic), self.rng.choice(TOPICS[topic])

        def asks_in_other_words_and_gets_the_same_titles() -> None:
            titles = [f"{word} ({rng.choice(SOURCES)})", f"{topic}, a study ({rng.choice(SOURCES)})", f"On {word} II"]
            ways = [
                f"{word} {topic}",
                f"{topic} {word} history",
                f"history of {word}",
                f"{word} sources",
                f"Geschichte {word}",
            ]
            ways += [f"what is known about {word}", f"{word} 19th century", f'"{word}"']
            for number in range(rng.randint(8, 15)):
                rng.shuffle(titles)
                said = "\n".join(f"{n}. {title}" for n, title in enumerate(titles, 1)) + f"\n({self.run.millis()} ms)"
                self.run.call(
                    "web_search",
                    {"q": rng.choice(ways), "n": rng.choice([3, 5, 10])},
                    said,
                    fresh=number == 0,
                    place=at,
                )
                if number == 5 and rng.random() < 0.5:
                    self.look(topic)

        def one_page_through_four_doors() -> None:
            self.number += 1
            page, url = self.text(topic), f"https://archive.example/{topic.replace(' ', '-')}/{self.number}"
            ways: list[tuple[str, Args, str]] = [
                ("fetch", {"url": url}, page),
                ("fetch", {"url": url + "?view=print"}, page),
                ("fetch", {"url": url.replace("https://", "http://")}, f"<pre>{page}</pre>"),
                ("browser_text", {"address": url}, f"Archive example | menu | {page}"),
                ("fetch", {"url": f"https://cache.example/{url}"}, f"(copy of {self.run.time()})\n{page}"),
            ]
            for number in range(rng.randint(8, 13)):
                tool, args, said = rng.choice(ways)
                self.run.call(tool, args, said, fresh=number == 0, place=at)

        def a_paragraph_to_and_fro() -> None:
            texts = [f"The {word} was paid by the town.", f"The {word} was paid by the parish."]
            for number in range(rng.randint(7, 11)):
                args: Args = {"section": f"{topic} draft", "text": texts[number % 2]}
                self.run.call("notes_replace", args, "saved", fresh=number < 2, change=True, place=at, clears="notes")

        def a_request_lies_in_the_reading_room() -> None:
            for _ in range(rng.randint(18, 25)):
                said = f"Bestellung {topic}: im Magazin, noch nicht ausgehoben ({self.run.time()})"
                self.run.call(
                    "bestellung_status", {"signatur": word}, said, watch="order", place=at, gap=rng.uniform(22, 70)
                )

        return [
            asks_in_other_words_and_gets_the_same_titles,
            one_page_through_four_doors,
            a_paragraph_to_and_fro,
            a_request_lies_in_the_reading_room,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng, topic = self.rng, self.own()
        at, slug = self.place(topic), topic.replace(" ", "-")

        def the_licence_ended() -> None:
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                said = rng.choice(
                    [
                        "<html><title>Acces refuse</title>Votre institution n'est plus abonnee.</html>",
                        "You have reached a page that is for subscribers. Sign in through your institution.",
                        'HTTP 402\n{"detail": "licence ended"}',
                        "Vorschau endet hier. Fuer den Volltext fehlt die Lizenz.",
                    ]
                )
                args: Args = {"url": f"https://fulltext.example/{slug}/{self.number}"}
                self.run.call("fetch", args, said, ok=rng.random() < 0.75, cause="licence", place=at)
                self.findbuch(topic)

        def the_reader_of_scans_is_overloaded() -> None:
            for _ in range(rng.randint(4, 7)):
                self.number += 1
                said = rng.choice(
                    [
                        "[]\nwarning: model queue full, nothing transcribed",
                        "503 ocr busy",
                        "Texterkennung nicht verfuegbar",
                    ]
                )
                args: Args = {"collection": slug, "scan": self.number, "ocr": True}
                self.run.call("scan_transcribe", args, said, ok=rng.random() < 0.7, cause="ocr", place=at)
                if rng.random() < 0.8:
                    self.findbuch(topic)

        return [the_licence_ended, the_reader_of_scans_is_overloaded]

    def findbuch(self, topic: str) -> None:
        """Read in the finding aid."""
        self.number += 1
        args: Args = {"fond": topic.replace(" ", "-"), "signatur": f"F {self.number}"}
        self.run.call("findbuch_lesen", args, self.text(topic), place=self.place(topic))

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng
        others = [topic for topic in TOPICS if topic != self.topic]

        def falls_into_another_subject() -> None:
            topic = rng.choice(others)
            for _ in range(rng.randint(12, 20)):
                self.look(topic) if rng.random() < 0.85 else self.write(topic)

        def from_one_thing_to_another() -> None:
            for _ in range(rng.randint(12, 18)):
                self.look(rng.choice(others))
                if rng.random() < 0.1:
                    self.step()

        def writes_about_other_things() -> None:
            for _ in range(rng.randint(4, 6)):
                topic = rng.choice(others)
                self.look(topic)
                self.write(topic)

        return [falls_into_another_subject, from_one_thing_to_another, writes_about_other_things]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, topic = self.rng, self.own()
        at, slug = self.place(topic), topic.replace(" ", "-")

        def leaf_by_leaf() -> None:
            self.number += 50
            for leaf in range(self.number, self.number + rng.randint(6, 14)):
                args: Args = {"collection": slug, "scan": leaf, "ocr": True}
                self.run.call("scan_transcribe", args, f"[{leaf}] {self.text(topic)}", place=at, clears="ocr")

        def no_hits_for_several_names() -> None:
            for _ in range(rng.randint(4, 7)):
                self.number += 1
                self.run.call("findbuch_suchen", {"fond": slug, "nr": f"X{self.number}"}, "keine Treffer", place=at)
            self.look(topic)

        def busy_then_free() -> None:
            gap = 5.0
            self.number += 1
            args: Args = {"collection": slug, "scan": self.number, "ocr": True}
            for _ in range(rng.randint(2, 4)):
                self.run.call(
                    "scan_transcribe", args, "503 ocr busy", ok=rng.random() < 0.5, cause="ocr", place=at, gap=gap
                )
                gap *= 2
            self.run.call("scan_transcribe", args, self.text(topic), clears="ocr", place=at, gap=gap)

        def the_clock_of_the_room() -> None:
            for _ in range(3):
                self.run.call("lesesaal_info", {}, "open until 18:00")
            self.work(5)

        def a_side_glance() -> None:
            for other in rng.sample(list(TOPICS), rng.randint(2, 4)):
                self.look(other)
            for _ in range(6):
                self.step()

        def looks_around_at_the_beginning() -> None:
            if len(self.run.calls) < 2:
                for other in rng.sample(list(TOPICS), 5):
                    self.look(other)
            self.work(7)

        return [
            leaf_by_leaf,
            no_hits_for_several_names,
            busy_then_free,
            the_clock_of_the_room,
            a_side_glance,
            looks_around_at_the_beginning,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Reading, rng)
