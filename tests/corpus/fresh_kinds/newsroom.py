"""Correcting stories of a newspaper: one gateway tool with sub-tools, slugs, a wire service, prose as result."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "newsroom"
_TOPICS = [
    "harbour-bridge",
    "school-meals",
    "night-bus",
    "water-price",
    "old-brewery",
    "town-hall-roof",
    "swimming-hall",
    "ring-road",
    "heat-plan",
    "tram-seven",
    "market-square",
    "clinic-wing",
    "river-walls",
    "bike-lanes",
]
_ANGLES = ["costs", "timeline", "interview", "comment", "numbers", "reactions", "explained"]
_WORDS = [
    "council",
    "budget",
    "delay",
    "million",
    "residents",
    "report",
    "contract",
    "vote",
    "spring",
    "engineer",
    "promise",
    "figures",
    "tender",
    "noise",
    "meeting",
    "petition",
    "estimate",
    "protest",
    "repair",
    "opening",
    "grant",
]


class Newsroom(Run):
    """A store of stories that embed boxes and link to each other."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Write the stories and choose the task."""
        super().__init__(rng)
        topics = rng.sample(_TOPICS, 8)
        self.stories: dict[str, list[str]] = {}
        for topic in topics:
            for angle in rng.sample(_ANGLES, 3):
                self.stories[f"{topic}-{angle}"] = [self._sentence() for _ in range(rng.randint(5, 8))]
        self.topic = topics[0]
        self.mine = [slug for slug in self.stories if slug.startswith(self.topic)]
        self.boxes = [f"box/{self.topic}-{what}" for what in ("map", "table")]
        for box in self.boxes:
            self.stories[box] = [self._sentence() for _ in range(3)]
        self.far = [slug for slug in self.stories if self.topic not in slug]
        narrow = [
            f"Wrong sums in {self.mine[0]}, a reader wrote. Correct it by the council's report, with its boxes.",
            f"All we have on the {self.topic.replace('-', ' ')} needs the new figures from the council's report.",
        ]
        wide = ["The style desk has decided: no more 'million' in figures. Change it in all stories of this year."]
        wide += ["A reader complains about a wrong sum somewhere on our pages. Find it."]
        self.task = rng.choice(narrow if named or rng.random() < 0.75 else wide)
        self.work = [*self.mine, *self.boxes]
        if self.task == narrow[0]:
            self.work = [self.mine[0], *self.boxes]
        elif self.task in wide:
            self.work = list(self.stories)
        if self.task in narrow:
            self.inside = {*self.work, "report/council"}
        self.place = 0

    def _sentence(self) -> str:
        words = " ".join(self.rng.sample(_WORDS, 5))
        return f"The {words} {self.some(2, 990)} {self.pick(['in May', 'last week', 'by autumn', 'again'])}."

    # ---- tools

    def desk(self, name: str, given: dict[str, Any], text: str, **more: Any) -> None:
        """Call a sub-tool of the gateway."""
        self.call("newsdesk", {"tool": name, "input": given}, text, **more)

    def read(self, slug: str, way: int = 0) -> None:
        """Show a story: the whole, as the page shows it, or through the search."""
        body = self.stories[slug]
        if way == 1:
            text = "".join(f"<p>{line}</p>" for line in body) + f"<!-- rendered {self.stamp()} node {self.hexes(4)} -->"
            self.desk("page.preview", {"url": f"https://stage.courier.example/{slug}"}, text, shows=body, on=slug)
        elif way == 2:
            text = f"1 story found for '{slug}':\n" + "\n".join(f"> {line}" for line in body)
            self.desk("story.search", {"query": f"slug:{slug}", "full": True}, text, shows=body, on=slug)
        else:
            text = f"{slug} (version {self.hexes(5)}, opened {self.stamp()})\n\n" + "\n".join(body)
            self.desk("story.read", {"slug": slug}, text, shows=body, on=slug)

    def revise(self, slug: str, old: str, new: str, place: str = "") -> None:
        """Put one sentence in the place of another."""
        self.stories[slug] = [new if line == old else line for line in self.stories[slug]]
        given = {"slug": slug, "changes": [{"find": old, "replace": new}]}
        text = f"Thank you. 1 passage changed in {slug}; the story waits for proof-reading."
        self.desk("story.revise", given, text, change=(place or f"{slug}/{old[:12]}", new), on=slug)

    # ---- work

    def opening(self) -> None:
        """Read the report, and look around."""
        text = "\n".join(self._sentence() for _ in range(4))
        self.desk("library.read", {"document": "report/council", "part": 1}, text, shows=text, on="report/council")
        for slug in self.rng.sample(self.far, self.some(0, 4)):
            self.read(slug)

    def unit(self) -> None:
        """Correct one sentence."""
        slug = self.work[self.place % len(self.work)]
        self.place += 1
        if self.place > 3 * len(self.work):
            return
        self.read(slug)
        line = self.pick(self.stories[slug])
        if self.rng.random() < 0.5:
            part = self.place + 1
            text = "\n".join(self._sentence() for _ in range(3))
            self.desk(
                "library.read", {"document": "report/council", "part": part}, text, shows=text, on="report/council"
            )
        self.revise(slug, line, self._sentence())

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.rereads, self.rewords, self.proof, self.asks_again],
            "cascading": [self.edit_lock, self.pictures, self.schedule],
            "drifting": [self.rewrites, self.wire, self.related, self.headlines],
            "healthy": [
                self.glance,
                self.everywhere,
                self.proof_moves,
                self.wire_pages,
                self.boxes_too,
                self.three,
                self.replies,
                self.facts,
            ],
        }

    def rereads(self) -> None:
        self.story.append("reads the same stories in three views")
        slugs = self.work[:2]
        for slug in slugs:
            self.read(slug)
        looks: list[Step] = [partial(self.read, s, w) for s in slugs for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 15), lambda: self.desk("me", {}, "You are desk agent 4."))

    def rewords(self) -> None:
        self.story.append("turns a sentence to and fro")
        slug = self.work[0]
        line = self.pick(self.stories[slug])
        other = self._sentence()
        self.had(f"{slug}/{line}", line)
        for turn in range(self.some(9, 14)):
            old, new = (line, other) if turn % 2 == 0 else (other, line)
            self.revise(slug, old, new, f"{slug}/{line}")
            if self.rng.random() < 0.4:
                self.read(slug, self.some(0, 2))

    def proof(self) -> None:
        self.story.append("waits for a proof-reader who does not come")
        for _ in range(self.some(17, 25)):
            text = f"{self.work[0]}: waiting for proof-reading, nobody assigned ({self.stamp()})"
            self.desk("story.state", {"slug": self.work[0]}, text, wait=("proof", "none"), gap=self.rng.uniform(22, 80))

    def asks_again(self) -> None:
        self.story.append("writes the same question to the author")
        who = f"{self.pick(['city', 'culture', 'sports'])}-desk@courier.example"
        forms = [
            "Where does the sum come from?",
            "Could you tell me the source of the sum?",
            "Still waiting: source of the sum?",
        ]
        for turn in range(self.some(8, 12)):
            given = {"to": who, "about": self.work[0], "text": forms[turn % 3]}
            self.desk("note.send", given, f"Note {self.hexes(6)} sent.", change=(f"note {who}", "source?"))

    def edit_lock(self) -> None:
        self.story.append("a colleague holds the edit lock")
        slug = self.work[0]
        said = f"Sorry: {slug} is open in another editor (terminal 12) and cannot be changed."
        for line in self.stories[slug][: self.some(4, 5)]:
            given = {"slug": slug, "changes": [{"find": line, "replace": self._sentence()}]}
            self.desk("story.revise", given, said, ok=self.soft, cause="lock", asks=line, on=slug)
            if self.rng.random() < 0.6:
                text = "\n".join(self._sentence() for _ in range(2))
                part = {"document": "report/council", "part": self.some(30, 999)}
                self.desk("library.read", part, text, shows=text, on="report/council")

    def pictures(self) -> None:
        self.story.append("the picture service is down")
        said = "picture service: connection refused (media-2:8443)"
        steps: list[Step] = []
        for number in self.rng.sample(range(1000, 9999), self.some(4, 7)):
            name = self.pick(["picture.get", "picture.credit", "picture.place"])
            steps.append(
                partial(self.desk, name, {"id": number}, said, ok=False, cause="media", asks=f"{name}{number}")
            )
        self.weave(steps, [self.unit, self.unit, lambda: self.read(self.work[-1])])

    def schedule(self) -> None:
        self.story.append("has no right to publish")
        said = "Not permitted: role 'desk-agent' cannot schedule."
        steps: list[Step] = []
        for slug in (self.work * 3)[: self.some(4, 5)]:
            hour = f"{self.some(6, 22)}:{self.some(10, 59)}"
            given = {"slug": slug, "at": hour}
            steps.append(
                partial(self.desk, "story.schedule", given, said, ok=False, cause="right", asks=f"{slug}{hour}")
            )
        self.weave(steps, [self.unit, lambda: self.desk("roles.list", {}, "desk-agent, chief, proof"), self.unit])

    def rewrites(self) -> None:
        self.story.append("improves stories of other desks")
        for slug in self.rng.sample(self.far, self.some(4, 6)):
            if self.rng.random() < 0.6:
                self.read(slug)
            self.revise(slug, self.pick(self.stories[slug]), self._sentence())
            if self.rng.random() < 0.25:
                self.read(self.work[0], self.some(0, 2))

    def wire(self) -> None:
        self.story.append("follows another affair")
        topic = self.pick(self.far).rsplit("-", 1)[0]
        slugs = [slug for slug in self.far if slug.startswith(topic)]
        slugs += self.rng.sample([slug for slug in self.far if slug not in slugs], self.some(3, 5))
        for slug in slugs:
            self.read(slug, self.some(0, 2))
            if self.rng.random() < 0.4:
                text = self._sentence()
                self.desk("wire.read", {"item": f"wire/{self.some(10000, 99999)}"}, text, shows=text, on=f"wire/{text}")

    def related(self) -> None:
        self.story.append("corrects the sums of other stories, since it is at it")
        for slug in self.rng.sample(self.far, 4):
            self.revise(slug, self.pick(self.stories[slug]), self._sentence())
            self.read(self.pick(self.work), self.some(0, 2))

    def headlines(self) -> None:
        self.story.append("gives other stories new headlines")
        for slug in self.rng.sample(self.far, self.some(4, 6)):
            text = f"Headline of {slug} is now: {self._sentence()}"
            given = {"story": {"slug": slug, "meta": {"headline": text[-40:]}}}
            self.desk("story.meta", given, text, change=(f"{slug} headline", text), on=slug)

    def proof_moves(self) -> None:
        self.story.append("waits for a proof-reader who comes nearer")
        for place in range(self.some(4, 6), 0, -1):
            for _ in range(self.some(1, 2)):
                text = f"{self.work[0]}: number {place} in the queue of the proof-readers"
                self.desk(
                    "story.state", {"slug": self.work[0]}, text, wait=("queue", f"{place}"), gap=self.some(25, 60)
                )

    def wire_pages(self) -> None:
        self.story.append("reads the report part by part")
        for part in range(40, 40 + self.some(4, 8)):
            text = "\n".join(self._sentence() for _ in range(4))
            self.desk(
                "library.read", {"document": "report/council", "part": part}, text, shows=text, on="report/council"
            )

    def boxes_too(self) -> None:
        self.story.append("corrects the boxes that the story embeds")
        for box in self.boxes:
            self.read(box)
            for line in list(self.stories[box])[:2]:
                self.revise(box, line, self._sentence())

    def three(self) -> None:
        self.story.append("three failures, then the right name")
        for name in ("ring", "ring_road", "dossier/ring")[: self.some(2, 3)]:
            said = f"No such dossier: {name}. (Dossiers have numbers.)"
            self.desk("dossier.open", {"name": name}, said, ok=False, cause="dossier", asks=name)
        text = "Dossier 31: " + self._sentence()
        self.desk("dossier.open", {"name": "31"}, text, shows=text, clears="dossier")

    def replies(self) -> None:
        self.story.append("adds many notes of correction to one story")
        for number in range(self.some(4, 7)):
            given = {"slug": self.work[0], "note": {"position": number, "text": self._sentence()}}
            text = f"Note {number} added."
            self.desk("story.footnote", given, text, change=(f"{self.work[0]} note {number}", "set"), on=self.work[0])

    def facts(self) -> None:
        self.story.append("asks the fact register several questions at once")
        with self.together():
            for number in range(self.some(3, 5)):
                given = {"question": f"sum of contract {number}", "topic": self.topic}
                self.desk("facts.ask", given, f"no entry for contract {number}")

    def everywhere(self) -> None:
        self.story.append("changes many stories, as far as the task goes")
        for slug in self.work[: self.some(6, 10)]:
            self.revise(slug, self.stories[slug][0], self._sentence())

    def glance(self) -> None:
        self.story.append("looks for a moment at other stories, and goes back")
        self.unit()
        for slug in self.rng.sample(self.far, self.some(2, 4)):
            self.read(slug, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Newsroom(rng, named), rng)
