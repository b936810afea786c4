"""A review of research literature: catalogues, screening decisions, notes with citations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world1 import World, produce

KIND = "literature review"

_TOPICS = (
    (
        "heat pumps in old buildings",
        "defrosting|seasonal performance|flow temperature|hydraulic balance|noise|retrofit",
    ),
    ("sleep of shift workers", "melatonin|light exposure|night rotation|naps|chronotype|alertness"),
    ("seagrass restoration", "seed bags|turbidity|transplant survival|grazing|sediment|blue carbon"),
    ("reading aloud in schools", "fluency|repeated reading|vocabulary|listening|second language|motivation"),
    ("corrosion of rebar", "chloride ingress|half-cell potential|inhibitors|carbonation|cover depth|coatings"),
)
_NAMES = "Abara Bergh Castelo Duong Eriksdatter Fofana Grabowska Haldane Imura Jovic Kettle Lindqvist Mbeki Nwosu"
_WHO = tuple(_NAMES.split())
_TOOLS = ("catalogue.search", "crossindex_lookup", "union_catalogue")


@dataclass
class Work:
    """One publication."""

    key: str
    title: str
    who: str
    year: int
    finding: str


class Review(World):
    """A reviewer who screens one set of hits and writes notes with citations."""

    free_task = "Use the afternoon in the library as you like: screen, read and write notes where you see a need."

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.topic, words = rng.choice(_TOPICS)
        self.words = words.split("|")
        self.slug = "-".join(self.topic.split()[:2])
        self.label = f"{self.topic.split()[0][:2].upper()}{rng.randrange(10, 60)}"
        self.hits = [self._make(self.label.lower(), i) for i in range(rng.randint(18, 30))]
        self.others = [self._make(f"zz{rng.randrange(10, 99)}", i) for i in range(14)]
        self.cited = [self._make("ref", i) for i in range(20)]
        self.open_points = rng.randint(9, 16)
        self.red_is_fine = rng.random() < 0.5
        self.wordy = rng.random() < 0.5
        self.blurb = " ".join(rng.choice(self.words) for _ in range(24))
        self.drafts = 0
        self.slips = rng.choice((1, 2))
        self.task = (
            f"Screen the hits of set {self.label} for our review of {self.topic}: read each, decide, write the notes "
            f"in review/{self.slug}/ with citations. {rng.choice(('Works cited by an included one may be read.', ''))}"
        )

    def _make(self, prefix: str, index: int) -> Work:
        rng = self.rng
        word = rng.choice(self.words)
        who, year = rng.choice(_WHO), rng.randrange(1996, 2026)
        title = f"{rng.choice(('On', 'Effects of', 'A trial of', 'Measuring', 'Rethinking'))} {word}"
        finding = f"{word} changed the outcome by {rng.randrange(-40, 60)} % (n={rng.randrange(12, 900)})"
        return Work(f"{prefix}-{index:03d}", title, who, year, finding)

    # --- tools

    def read(self, work: Work, touch: str = "in", way: int = 0) -> None:
        """The record, its abstract, or the same by another door."""
        bib = f"@article{{{work.key},\n author={{{work.who}, {work.key[0].upper()}.}},\n title={{{work.title}}},\n"
        bib += f" year={work.year},\n abstract={{{work.finding}}}\n}}\n% {self.run.stamp()}"
        prose = f"{work.who} ({work.year}): {work.title}.\n\nAbstract. We report that {work.finding}."
        tool, arguments, text = (
            ("record.get", {"key": work.key}, bib),
            ("abstract", {"id": f"set:{work.key}"}, prose + f"\n[served in {self.rng.randrange(20, 900)} ms]"),
            ("record.get", {"key": work.key, "format": "ris"}, f"TY  - JOUR\nTI  - {work.title}\nAB  - {work.finding}"),
            ("fulltext.section", {"key": work.key, "section": "abstract"}, f"ABSTRACT @{self.run.hex(4)}\n{prose}"),
        )[way]
        self.run.call(tool, arguments, text, facts=[f"read {work.key}"], touch=touch)

    def decide(self, work: Work, touch: str = "in", what: str = "") -> None:
        """Record a decision about a hit."""
        what = what or self.rng.choice(("include", "exclude", "exclude", "unclear"))
        arguments = {"record": work.key, "decision": what, "reason": self.rng.choice(self.words)}
        text = f"Recorded: {work.key} -> {what}. ({self.run.stamp('%d %b %Y %H:%M')})"
        self.run.call("screening.decide", arguments, text, state=f"{work.key}={what}", touch=touch, changes=True)

    def note(self, work: Work, folder: str = "", touch: str = "in") -> None:
        """Append a paragraph to a note."""
        self.drafts += 1
        path = f"review/{folder or self.slug}/{self.rng.choice(('methods', 'findings', 'gaps'))}.md"
        arguments = {"note": path, "text": f"{work.who} {work.year} finds that {work.finding} [@{work.key}]."}
        text = f"+1 paragraph, {2300 + self.drafts * 87} characters"
        state = f"{path} {work.key} {self.drafts}"
        self.run.call("notes.append", arguments, text, state=state, touch=touch, changes=True)

    def lint(self) -> None:
        """The check of the notes' citations, red while points are open."""
        text = f"citecheck ({self.rng.uniform(0.1, 2):.2f} s): {self.open_points} unresolved\n" + "\n".join(
            f"  {self.hits[i % len(self.hits)].key}: no page number" for i in range(self.open_points)
        )
        arguments = {"folder": f"review/{self.slug}"}
        ok = self.red_is_fine or self.open_points == 0
        self.run.call("citecheck", arguments, text, check=("lint", str(self.open_points)), touch="in", ok=ok)

    def page(self, offset: int) -> None:
        """One page of the set."""
        part = self.hits[offset : offset + 8]
        text = "\n".join(f"{offset + i + 1}. {w.title} ({w.who}, {w.year}) {w.key}" for i, w in enumerate(part))
        if self.wordy:
            text = "\n".join(f"{line}\n    {self.topic}; {self.blurb}" for line in text.split("\n"))
        arguments = {"set": self.label, "offset": offset, "n": 8}
        self.run.call("catalogue.set", arguments, text, facts=[f"page{offset}"], touch="in")

    def look_around(self) -> None:
        for index in range(self.rng.randint(3, 6)):
            path = f"review/{self.rng.choice(('old', 'shared', 'theses'))}-{index}/index.md"
            text = f"# Index\n{self.rng.randrange(3, 40)} notes, last by {self.rng.choice(_WHO)}"
            self.run.call("notes.read", {"note": path}, text, facts=[path], touch="out")

    def work(self) -> Iterator[None]:
        rng = self.rng
        style = rng.choice(("pages first", "page by page"))
        for offset in range(0, len(self.hits), 8):
            if style == "pages first":
                self.page(offset)
                yield
        for index, hit in enumerate(self.hits):
            if style == "page by page" and index % 8 == 0:
                self.page(index)
                yield
            self.read(hit)
            yield
            if rng.random() < 0.7:
                self.decide(hit)
                yield
            if rng.random() < 0.4:
                self.note(hit)
                yield
            if index % 4 == 3:
                self.open_points = max(0, self.open_points - rng.randint(0, 2))
                self.lint()
                yield

    # --- look-alikes

    def alike_votes(self) -> None:
        """Five screeners asked in one turn give the same vote."""
        hit, vote = self.rng.choice(self.hits), self.rng.choice(("include", "exclude"))
        for index, who in enumerate(self.rng.sample(_WHO, 5)):
            self.run.next_gap = 0.0 if index else None
            arguments = {"persona": who.lower(), "record": hit.key}
            self.run.call("second_opinion", arguments, f"VOTE {vote}", facts=[f"{hit.key} {who}"], touch="in")

    def alike_no_hits(self) -> None:
        """Terms that nobody has used yet: each is a new question."""
        for word in self.rng.sample(self.words, self.rng.randint(4, 6)):
            arguments = {"q": f'"{word}" AND "{self.rng.choice(_WHO)} cohort"', "set": self.label}
            self.run.call("catalogue.search", arguments, "0 hits", facts=[f"hits {arguments['q']}"])

    def alike_loan(self) -> None:
        """A loan that is waited for, and comes nearer."""
        loan = f"ILL-{self.run.hex(5)}"
        hit = self.rng.choice(self.hits)
        self.run.call("loan.order", {"key": hit.key}, f"ordered as {loan}", state=loan, touch="in")
        for state in ("ordered", "found on shelf", "in scanning", "delivered"):
            for _ in range(self.rng.randint(1, 4)):
                self.run.pause(24, 120)
                self.run.call("loan.status", {"loan": loan}, f"{loan}: {state}", wait=(loan, state))

    def alike_references(self) -> None:
        """The works that included hits cite, one step away."""
        hit = self.rng.choice(self.hits)
        part = self.rng.sample(self.cited, self.rng.randint(5, 7))
        text = f"{hit.key} cites: " + ", ".join(work.key for work in part)
        self.run.call("citations.of", {"key": hit.key, "direction": "out"}, text, facts=[text], touch="in")
        for work in part:
            self.read(work, "in", self.rng.choice((0, 0, 1)))

    def alike_page_numbers(self) -> None:
        """Points of the citation check put right one by one."""
        for _ in range(self.rng.randint(3, 5)):
            hit = self.rng.choice(self.hits)
            arguments = {"note": f"review/{self.slug}/findings.md", "find": f"[@{hit.key}]", "pages": self.drafts}
            self.drafts += 1
            text = "1 replaced"
            self.run.call("notes.replace", arguments, text, state=f"pages {self.drafts}", touch="in", changes=True)
            self.open_points = max(0, self.open_points - self.rng.randint(0, 1))
            self.lint()

    def alike_access(self) -> None:
        """Full texts that fail for reasons of their own, each left or put right."""
        for reason in ("HTTP 404 moved to another host", "PDF is damaged (xref)", "scan without text layer"):
            hit = self.rng.choice(self.hits)
            self.run.call("fulltext.fetch", {"key": hit.key}, reason, fail=reason + hit.key, touch="in")

    def alike_busy(self) -> None:
        """A busy index, asked again later and later."""
        name, wait = f"busy{self.run.hex(4)}", 5.0
        arguments = {"key": self.rng.choice(self.hits).key, "direction": "in"}
        for attempt in range(self.rng.choice((3, 4))):
            self.run.call("citations.of", arguments, "429 slow down", fail=name, ask=f"{attempt}", touch="in", gap=wait)
            wait *= self.rng.uniform(1.7, 2.5)
        text = f"{arguments['key']} is cited by {self.rng.randrange(2, 90)} works"
        self.run.call("citations.of", arguments, text, facts=[name], clears=[name], touch="in", gap=wait)

    def alike_four_same(self) -> None:
        """The same empty tray three or four times, no more."""
        for _ in range(self.rng.choice((3, 3, 4))):
            self.run.call("inbox.list", {}, "(empty)", facts=["inbox empty"])

    def alike_slip(self) -> None:
        """One look and one decision outside the set."""
        for work in self.others[: self.rng.choice((1, 2))]:
            self.read(work, "out")
            self.go(1)
        if self.slips > 0:
            self.slips -= 1
            self.decide(self.others[-1], "out")

    # --- stalls

    def stall_synonyms(self) -> None:
        """The same handful of hits comes back for every wording, in another order."""
        found = self.rng.sample(self.hits, 4)
        words = self.rng.sample(self.words, 2)
        forms = [" AND ".join(words), " ".join(reversed(words)), f'("{words[0]}" OR "{words[0]}s") {words[1]}']
        forms += [f"{words[1]} {words[0]} study", f"title:({words[0]}) {words[1]}", f"{words[0]}* {words[1]}*"]

        def look() -> None:
            self.rng.shuffle(found)
            took = self.rng.randrange(30, 900)
            if self.rng.random() < 0.5:
                text = "\n".join(f"- {w.key} {w.who} {w.year}, {w.title}" for w in found) + f"\n4 results ({took} ms)"
            else:
                text = f"{took} ms | 4 | " + "; ".join(f"{w.title} [{w.key}]" for w in found)
            arguments = {self.rng.choice(("q", "query")): self.rng.choice(forms)}
            self.run.call(self.rng.choice(_TOOLS), arguments, text, facts=[f"four {words}"])

        self.stuck([look] * self.rng.randint(9, 14))

    def stall_rereading(self) -> None:
        """One abstract is read by every door there is."""
        hit = self.rng.choice(self.hits)
        self.stuck([partial(self.read, hit, "in", self.rng.randrange(4)) for _ in range(self.rng.randint(8, 13))])

    def stall_wording(self) -> None:
        """A sentence goes back and forth between two wordings, and the check stays as it is."""
        hit, path = self.rng.choice(self.hits), f"review/{self.slug}/gaps.md"
        forms = (f"see {hit.who} ({hit.year})", f"[@{hit.key}, see there]")
        self.run.states.add(f"{path} wording {hit.key} 1")
        for turn in range(self.rng.randint(5, 8)):
            arguments = {"note": path, "find": forms[(turn + 1) % 2], "put": forms[turn % 2]}
            state = f"{path} wording {hit.key} {turn % 2}"
            text = f"1 replaced, revision {40 + turn}"
            self.run.call("notes.replace", arguments, text, state=state, touch="in", changes=True)
            self.lint()
            if turn == 3:
                self.go(0, 1)

    def stall_loan(self) -> None:
        """A loan that does not move, looked at far beyond any patience."""
        loan = f"ILL-{self.run.hex(5)}"
        hit = self.rng.choice(self.hits)
        self.run.call("loan.order", {"key": hit.key}, f"ordered as {loan}", state=loan, touch="in")
        for turn in range(self.rng.randint(18, 24)):
            self.run.pause(30, 150)
            text = f"{loan}: requested from partner library, no answer yet (checked {self.run.stamp('%H:%M:%S')})"
            self.run.call("loan.status", {"loan": loan, "verbose": turn % 2 == 0}, text, wait=(loan, "requested"))

    # --- cascades

    def cascade_session(self) -> None:
        """Every full text ends at the same login page."""

        def act(hit: Work) -> None:
            page = f"<html><title>Sign in</title><p>Your institution's session has ended.</p><!-- {self.run.hex(6)} -->"
            text = self.rng.choice((page, "Access through institution: session ended, sign in again", page))
            arguments: dict[str, Any] = {"key": hit.key}
            if self.rng.random() < 0.3:
                arguments["mirror"] = self.rng.choice(("eu", "publisher"))
            ok = self.lenient
            self.run.call("fulltext.fetch", arguments, text, fail="session", ask=hit.key, touch="in", ok=ok)

        self.between([partial(act, hit) for hit in self.rng.sample(self.hits, self.rng.randint(4, 7))])

    def cascade_style(self) -> None:
        """An export that knows no such field, tried again with other contents."""
        styles = ["author-year", "numeric", "chicago", "note", "apa7", "vancouver"]
        self.rng.shuffle(styles)

        def act(style: str) -> None:
            text = f'{{"status":"ok","data":null,"errors":["unexpected argument \'style\' (got \'{style}\')"]}}'
            arguments = {"folder": f"review/{self.slug}", "style": style}
            self.run.call("bibliography.export", arguments, text, fail="style", ask=style, touch="in", ok=True)

        self.between([partial(act, style) for style in styles[: self.rng.randint(4, 6)]])
        if self.mends():
            arguments = {"folder": f"review/{self.slug}", "format": "apa7"}
            text = f'{{"status":"ok","data":"{len(self.hits)} entries"}}'
            self.run.call("bibliography.export", arguments, text, facts=[text], clears=["style"], touch="in")

    def cascade_read_only(self) -> None:
        """The store for files has no room; tool after tool hits the same wall."""
        acts: list[Callable[[], None]] = []
        for tool, name in (("tables.write", "t1.csv"), ("attachments.put", "a.pdf"), ("figures.save", "prisma.svg")):
            acts += [partial(self._full, tool, f"{attempt}-{name}") for attempt in (1, 2)]
        self.between(acts[: self.rng.randint(4, 6)])

    def _full(self, tool: str, name: str) -> None:
        reason = self.rng.choice(("file store is full (2.0 of 2.0 GB)", "not written: file store is full"))
        self.run.call(tool, {"target": f"files/{self.slug}/{name}"}, reason, fail="quota", ask=name, touch="in")

    # --- drift

    def drift_other_set(self) -> None:
        """Hits of another set are read and decided."""
        acts: list[Callable[[], None]] = []
        for work in self.others[: self.rng.randint(5, 7)]:
            if self.rng.random() < 0.2:
                acts.append(partial(self.read, work, "out"))
            acts.append(partial(self.decide, work, "out"))
        self.astray(acts)

    def drift_other_review(self) -> None:
        """Notes of a review that nobody asked about are improved."""
        folder = self.rng.choice(("grant-2024", "thesis-kettle", "lab-handbook"))
        acts = [partial(self.note, work, folder, "out") for work in self.others[: self.rng.randint(4, 7)]]
        self.astray(acts)

    def drift_reading_afar(self) -> None:
        """Reading far from the topic, one thing after the other."""
        self.go(10)
        for index, word in enumerate(
            self.rng.sample(("bells", "ferries", "chess", "yeast", "kites", "maps", "moss"), 6)
        ):
            work = Work(f"misc-{index:02d}{self.run.hex(2)}", f"A history of {word}", "Moore", 1990, f"{word} are old")
            self.read(work, "out", self.rng.choice((0, 1)))
            if self.rng.random() < 0.25:
                self.go(1)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Trajectories of this kind without end."""
    return produce(KIND, Review, rng)
