"""Translating a large manual that lies in many files, with a memory of translations and a list of terms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world1 import World, produce

KIND = "translation of a manual"

_NOUNS = {
    "valve": ("Ventil", "vanne"),
    "gasket": ("Dichtung", "joint"),
    "drive shaft": ("Antriebswelle", "arbre"),
    "hopper": ("Trichter", "trémie"),
    "belt": ("Riemen", "courroie"),
    "bearing": ("Lager", "palier"),
    "housing": ("Gehäuse", "carter"),
    "sensor": ("Sensor", "capteur"),
    "hose": ("Schlauch", "tuyau"),
    "control panel": ("Bedienfeld", "pupitre"),
}
_VERBS = {
    "Check": ("prüfen", "Contrôler"),
    "Replace": ("ersetzen", "Remplacer"),
    "Clean": ("reinigen", "Nettoyer"),
    "Tighten": ("festziehen", "Serrer"),
    "Remove": ("ausbauen", "Déposer"),
    "Lubricate": ("schmieren", "Graisser"),
}
_PARTS = ("installation", "operation", "maintenance", "faults", "spare_parts", "safety", "transport", "disposal")


class Manual(World):
    """One part of a manual, file by file, segment by segment."""

    free_task = "Work on the translations for an hour, in whatever part and language needs it."

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.lang = rng.choice((0, 1))
        self.code = ("de", "fr")[self.lang]
        self.part, *self.others = rng.sample(_PARTS, 5)
        self.ext = rng.choice(("xml", "dita", "md", "xlf"))
        self.files = [
            f"{self.part}/{10 * i + 10:03d}_{w.replace(' ', '_')}" for i, w in enumerate(rng.sample(list(_NOUNS), 7))
        ]
        self.source = {name: [self._sentence() for _ in range(rng.randint(3, 6))] for name in self.files}
        self.target: dict[str, str] = {}
        self.issues = rng.randint(11, 19)
        self.slips = 2
        self.timed = rng.random() < 0.8
        self.task = (
            f"Translate the part '{self.part}' of the manual (all of src/en/{self.part}/, and the captions of its "
            f"pictures) into {self.code} and no other language. Write to "
            f"src/{self.code}/{self.part}/, keep to the term list, and leave no issue in the check of that folder."
        )

    def _sentence(self) -> tuple[str, str, int]:
        return self.rng.choice(list(_VERBS)), self.rng.choice(list(_NOUNS)), self.rng.randrange(2, 90)

    def _took(self) -> str:
        return f"\n<!-- {self.rng.uniform(0.01, 0.9):.3f}s -->" if self.timed else ""

    def _english(self, sentence: tuple[str, str, int]) -> str:
        return f"{sentence[0]} the {sentence[1]} after {sentence[2]} hours."

    def _foreign(self, sentence: tuple[str, str, int]) -> str:
        verb, noun = _VERBS[sentence[0]][self.lang], _NOUNS[sentence[1]][self.lang]
        if self.lang:
            return f"{verb} : {noun}, après {sentence[2]} heures."
        return f"{noun} nach {sentence[2]} Stunden {verb}."

    # --- tools

    def read(self, name: str, touch: str = "in", way: int = 0) -> None:
        """A source file, whole or in pieces."""
        sentences = self.source.get(name) or [self._sentence() for _ in range(3)]
        rows = [f'  <seg id="{i}">{self._english(s)}</seg>' for i, s in enumerate(sentences, 1)]
        path = f"src/en/{name}.{self.ext}"
        tool, arguments, text = (
            ("open_file", {"uri": path}, '<topic xml:lang="en">\n' + "\n".join(rows) + "\n</topic>" + self._took()),
            ("open_file", {"uri": path, "from_line": 1, "to_line": self.rng.randrange(20, 400)}, "\n".join(rows)),
            (
                "segments",
                {"file": path, "max": self.rng.randrange(9, 99)},
                "\n".join(f"{i}\t{self._english(s)}" for i, s in enumerate(sentences, 1)),
            ),
            ("word_count", {"file": path, "show": True}, " ¶ ".join(map(self._english, sentences)) + self._took()),
        )[way]
        self.run.call(tool, arguments, text, facts=[f"src {name}"], touch=touch)

    def write(self, name: str, index: int, text: str, touch: str = "in") -> None:
        """Put the translation of a segment."""
        arguments = {"file": f"src/{self.code}/{name}.{self.ext}", "segment": index + 1, "text": text}
        self.target[f"{name}#{index}"] = text
        reply = self.rng.choice(("saved", "saved.", f"ok ({len(text)} chars)"))
        state = f"{name}#{index}={text}"
        self.run.call("put_segment", arguments, reply, state=state, touch=touch, changes=True)

    def term(self, noun: str) -> None:
        """A term, from the list."""
        text = f"{noun}\t{_NOUNS[noun][self.lang]}\tapproved\n{noun}s\t(plural)\tapproved"
        self.run.call("term_lookup", {"term": noun, "lang": self.code}, text, facts=[f"term {noun}"])

    def memory(self, sentence: tuple[str, str, int]) -> None:
        """Matches in the memory."""
        score = 60 + sentence[2] % 40
        near = (sentence[0], sentence[1], 50)
        text = f"{score}% | {self._english(near)} | {self._foreign(near)}"
        arguments = {"query": self._english(sentence), "min": 60}
        self.run.call("memory.match", arguments, text, facts=[f"tm {sentence}"])

    def check(self, issues: int | None = None, key: str = "check") -> None:
        """The check of the folder."""
        issues = self.issues if issues is None else issues
        rows = [
            f"{self.files[i % 7]}.{self.ext}:{i % 5 + 1}: {('untranslated', 'number', 'term')[i % 3]}"
            for i in range(issues)
        ]
        text = (
            "\n".join(rows[:14]) + f"\n{issues} issues in src/{self.code}/{self.part} ({self.rng.uniform(0.4, 3):.2f}s)"
        )
        arguments = {"folder": f"src/{self.code}/{self.part}", "profile": "manual"}
        self.run.call("qa_check", arguments, text, check=(key, str(issues)), touch="in", ok=issues == 0)

    def look_around(self) -> None:
        for part in self.rng.sample(self.others, self.rng.randint(3, 4)):
            text = "\n".join(f"{part}/{i:03d}_x.{self.ext}" for i in range(10, 60, 10))
            self.run.call("list_dir", {"uri": f"src/en/{part}"}, text, facts=[f"ls {part}"], touch="out")

    def work(self) -> Iterator[None]:
        rng = self.rng
        text = "\n".join(f"{name}.{self.ext}" for name in self.files)
        self.run.call("list_dir", {"uri": f"src/en/{self.part}"}, text, facts=["ls"], touch="in")
        yield
        whole = rng.random() < 0.4
        for name in self.files:
            self.read(name)
            yield
            for index, sentence in enumerate(self.source[name]):
                if f"term {sentence[1]}" not in self.run.known and rng.random() < 0.6:
                    self.term(sentence[1])
                    yield
                if rng.random() < 0.25:
                    self.memory(sentence)
                    yield
                if whole and self.run.calls[-1].tool == "put_segment":
                    self.run.next_gap = 0.0
                self.write(name, index, self._foreign(sentence))
                yield
            self.issues = max(0, self.issues - rng.randint(1, 3))
            self.check()
            yield

    # --- look-alikes

    def alike_polish(self) -> None:
        """One segment is written six times; each version is another one."""
        name = self.rng.choice(self.files)
        text = self._foreign(self.source[name][0])
        for word in self.rng.sample(("(A)", "[kalt]", "*", "!", "M8", "Nm", "links", "§3"), self.rng.randint(4, 6)):
            text = f"{text[:-1]} {word}."
            self.write(name, 0, text)

    def alike_machine(self) -> None:
        """A machine translation runs and is looked at with patience."""
        job = f"mt-{self.run.hex(4)}"
        done = 0
        while done < 300:
            for _ in range(self.rng.choice((1, 1, 2, 4))):
                self.run.pause(22, 75)
                self.run.call("mt_status", {"job": job}, f"{done}/300 segments", wait=(job, str(done)))
            done += self.rng.randint(60, 140)
        self.run.pause(22, 75)
        self.run.call("mt_status", {"job": job}, "300/300 segments, ready", wait=(job, "ready"))

    def alike_no_match(self) -> None:
        """Words for which the memory has nothing, each another word."""
        for word in self.rng.sample(("grommet", "spigot", "burr", "dowel", "shim", "ferrule", "gland"), 5):
            arguments = {"query": word, "min": 60}
            self.run.call("memory.match", arguments, "no match", facts=[f"tm {word}"], ok=self.lenient)

    def alike_reviewers(self) -> None:
        """Five reviewers in one turn, one opinion."""
        name = self.rng.choice(self.files)
        for index in range(5):
            self.run.next_gap = 0.0 if index else None
            arguments = {"reviewer": f"R{index + 1}", "file": f"src/{self.code}/{name}.{self.ext}"}
            self.run.call(
                "ask_reviewer", arguments, "accept", facts=[f"{name} R{index} {len(self.target)}"], touch="in"
            )

    def alike_includes(self) -> None:
        """Snippets and pictures that the files include, one step away."""
        name = self.rng.choice(self.files)
        keys = [f"shared/warn_{self.rng.randrange(100, 999)}" for _ in range(self.rng.randint(5, 7))]
        text = "\n".join(f'<include href="../../{key}.{self.ext}"/>' for key in keys)
        arguments = {"file": f"src/en/{name}.{self.ext}"}
        self.run.call("list_includes", arguments, text, facts=[text], touch="in")
        for key in keys:
            text = f"<warn>Caution {key[-3:]}: {self._english(self._sentence())}</warn>"
            self.run.call("open_file", {"uri": f"{key}.{self.ext}"}, text, facts=[key], touch="in")

    def alike_faults(self) -> None:
        """Three faults of a preview, each of another kind and mended."""
        name = self.rng.choice(self.files)
        arguments: dict[str, Any] = {"file": f"src/{self.code}/{name}.{self.ext}"}
        steps = [
            ("lang", self.code, "lang is required"),
            ("paper", "A5", "no such paper: default"),
            ("dpi", 150, "dpi?"),
        ]
        for key, value, reason in self.rng.sample(steps, self.rng.choice((2, 3, 3))):
            self.run.call("render_preview", dict(arguments), f"failed: {reason}", fail=f"{key} {name}", touch="in")
            arguments[key] = value
        self.run.call("render_preview", arguments, f"page_{self.run.hex(3)}.png", facts=[f"pv {name}"], touch="in")

    def alike_crowded(self) -> None:
        """The render farm is full; each retry waits longer."""
        name, wait = f"farm{self.run.hex(4)}", 5.0
        arguments = {"book": self.part, "lang": self.code}
        for attempt in range(self.rng.choice((3, 4))):
            self.run.call(
                "render_book", arguments, "E_BUSY all workers", fail=name, ask=f"{attempt}", touch="in", gap=wait
            )
            wait *= self.rng.uniform(1.7, 2.6)
        self.run.call("render_book", arguments, "48 pages", facts=[name], clears=[name], touch="in", gap=wait)

    def alike_three_times(self) -> None:
        """The same question three or four times, no more."""
        for _ in range(self.rng.choice((3, 4))):
            self.run.call("comments", {"since": "yesterday"}, "none", facts=["comments"])

    def alike_slip(self) -> None:
        """A segment of another part, once or twice."""
        name = f"{self.others[0]}/010_intro"
        self.read(name, "out")
        if self.slips > 0:
            self.slips -= 1
            self.write(name, self.slips, self._foreign(self._sentence()), "out")

    # --- stalls

    def stall_two_words(self) -> None:
        """A segment between two wordings, and a check that does not change."""
        name = self.rng.choice(self.files)
        text = self.target.get(f"{name}#0") or self._foreign(self.source[name][0])
        forms = (text.replace(" ", "\u00a0", 1), text)
        self.run.states.add(f"{name}#0={text}")
        for turn in range(self.rng.randint(6, 8)):
            self.write(name, 0, forms[turn % 2])
            self.check()
            if turn == 4:
                self.go(0, 1)

    def stall_source(self) -> None:
        """One file is opened in every way there is."""
        name = self.rng.choice(self.files)
        self.stuck(
            [partial(self.read, name, "in", self.rng.choice((0, 1, 1, 2, 3))) for _ in range(self.rng.randint(8, 13))]
        )

    def stall_term(self) -> None:
        """A term that no list has, looked up under every spelling."""
        noun = self.rng.choice(("anti-rattle clip", "knock-out plate", "bleed nipple"))
        forms = (
            noun,
            noun.title(),
            noun.replace("-", " "),
            noun + "s",
            f'"{noun}"',
            noun.upper(),
            noun.replace("-", ""),
        )
        ways = [
            ("term_lookup", "term", "not in list"),
            ("memory.match", "query", "no match"),
            ("glossary", "entry", "[]"),
        ]
        ways.append(("search_files", "text", "0 matches in 214 files"))

        def act() -> None:
            tool, key, text = self.rng.choice(ways)
            arguments = {key: self.rng.choice(forms), "lang": self.code}
            self.run.call(tool, arguments, f"{text} ({self.rng.randrange(3, 99)} ms)", facts=[f"no term {noun}"])

        self.stuck([act] * self.rng.randint(9, 13))

    def stall_reviewer(self) -> None:
        """Reminder after reminder to one reviewer who does not answer."""
        who = f"R{self.rng.randrange(6, 30)}"
        forms = (
            "Could you look at the file?",
            "A gentle reminder about the file.",
            "Any news on the review?",
            "Still waiting.",
        )

        def ask() -> None:
            arguments = {"to": who, "text": self.rng.choice(forms)}
            reply = f"sent, #{self.rng.randrange(1000, 9999)}"
            self.run.call("message", arguments, reply, state=f"message {who}")

        def inbox() -> None:
            text = f"no message from {who} ({self.run.stamp('%H:%M:%S')})"
            self.run.call("inbox", {"from": who}, text, facts=[f"silence {who}"])

        self.stuck([self.rng.choice((ask, inbox)) for _ in range(self.rng.randint(10, 14))])

    # --- cascades

    def cascade_locked(self) -> None:
        """The pictures belong to another team; each replacement is refused."""

        def act(number: int) -> None:
            target = f"media/{self.code}/{self.part}/fig_{number}.svg"
            forms = ("Permission denied (group: media)", "not saved. You are not in group 'media'.")
            text = forms[self.lenient]
            tool = self.rng.choice(("put_picture", "put_picture", "label_picture"))
            arguments = {"target": target, "caption": self._foreign(self._sentence())}
            ok = self.lenient
            self.run.call(tool, arguments, text, fail="media", ask=str(number), touch="in", ok=ok)

        self.between([partial(act, number) for number in self.rng.sample(range(100, 999), self.rng.randint(4, 7))])

    def cascade_machine(self) -> None:
        """The translation engine cannot be reached, for any sentence."""
        engines = ("default", "fast", "eu", "default", "legacy", "default")

        def act(engine: str) -> None:
            sentence = self._english(self._sentence())
            text = (
                f'{{"engine": "{engine}", "error": "connect mt-gw:9000 timed out after {self.rng.randrange(9, 31)} s"}}'
            )
            arguments = {"text": sentence, "engine": engine, "to": self.code}
            ok = self.lenient
            self.run.call("machine_translate", arguments, text, fail="mt-gw", ask=sentence, ok=ok)

        self.between([partial(act, engine) for engine in engines[: self.rng.randint(4, 6)]])

    def cascade_tags(self) -> None:
        """Batches are handed over as text where the tool wants a list; refused each time."""

        def act(name: str) -> None:
            text = "rejected: 'segments' must be an array of strings (0 written)"
            joined = " | ".join(self._foreign(s) for s in self.source[name][:2])
            arguments = {"file": f"src/{self.code}/{name}.{self.ext}", "segments": joined}
            ok = self.lenient
            self.run.call("put_batch", arguments, text, fail="array", ask=name, touch="in", ok=ok)

        self.between([partial(act, name) for name in self.rng.sample(self.files, self.rng.randint(4, 6))])
        if self.mends():
            name = self.files[-1]
            texts = [self._foreign(s) for s in self.source[name]]
            arguments = {"file": f"src/{self.code}/{name}.{self.ext}", "segments": texts}
            text = f"{len(texts)} written"
            self.run.call(
                "put_batch", arguments, text, state=f"batch {name}", clears=["array"], touch="in", changes=True
            )

    # --- drift

    def drift_other_part(self) -> None:
        """Segments of other parts get written."""
        acts: list[Callable[[], None]] = []
        for index in range(self.rng.randint(5, 7)):
            name = f"{self.rng.choice(self.others[:2])}/{index}20_x"
            if self.rng.random() < 0.15:
                acts.append(partial(self.read, name, "out"))
            acts.append(partial(self.write, name, index, self._foreign(self._sentence()), "out"))
        self.astray(acts)

    def drift_other_language(self) -> None:
        """The same part in a language that nobody asked for."""

        def act(index: int) -> None:
            name = self.rng.choice(self.files)
            arguments = {"file": f"src/it/{name}.{self.ext}", "segment": index, "text": f"Controllare ({index})."}
            self.run.call("put_segment", arguments, "saved", state=f"it {name} {index}", touch="out", changes=True)

        self.astray([partial(act, index) for index in range(1, self.rng.randint(5, 8))])

    def drift_reading_parts(self) -> None:
        """Reading through parts that are none of the task."""
        self.go(10)
        for index in range(self.rng.randint(6, 8)):
            self.read(f"{self.rng.choice(self.others)}/{index + 1}40_y", "out", self.rng.choice((0, 2)))
            if self.rng.random() < 0.4:
                self.go(1)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Trajectories of this kind without end."""
    return produce(KIND, Manual, rng)
