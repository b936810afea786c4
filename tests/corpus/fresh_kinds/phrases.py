"""Translating the texts of a program: catalogues by language and part, a shell, a memory of translations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "phrases"
_PARTS = ["billing", "login", "reports", "search", "upload", "profile"]
_LANGUAGES = ["de", "nl", "sv", "it", "pl"]
_THINGS = [
    "invoice",
    "address",
    "report",
    "file",
    "account",
    "filter",
    "date",
    "share",
    "folder",
    "note",
    "team",
    "plan",
]
_SAYS = ["Delete the {}?", "{} saved", "No {} found", "Choose a {}", "{} of %(total)d", "Your {} has expired", "New {}"]
_WORDS = {
    "de": ["Rechnung", "Ordner", "wird", "gelöscht", "gespeichert", "Ihre", "neu", "keine", "wählen", "abgelaufen"],
    "nl": ["rekening", "map", "wordt", "verwijderd", "bewaard", "uw", "nieuw", "geen", "kiezen", "verlopen"],
    "sv": ["faktura", "mapp", "raderas", "sparad", "din", "ny", "ingen", "välj", "utgången", "konto"],
    "it": ["fattura", "cartella", "eliminare", "salvato", "nuovo", "nessun", "scegli", "scaduto", "conto", "filtro"],
    "pl": ["faktura", "folder", "usunąć", "zapisano", "nowy", "brak", "wybierz", "wygasło", "konto", "plik"],
}


class Phrases(Run):
    """Catalogues po/LANGUAGE/PART.po, their templates and a glossary for each language."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Write the catalogues and choose the task."""
        super().__init__(rng)
        self.texts = {part: [self.pick(_SAYS).format(thing) for thing in rng.sample(_THINGS, 8)] for part in _PARTS}
        self.files: dict[str, dict[str, str]] = {}
        for language in _LANGUAGES:
            for part in _PARTS:
                done = rng.random() < 0.5
                self.files[f"po/{language}/{part}.po"] = {
                    t: self.saying(language) if done else "" for t in self.texts[part]
                }
        for part in _PARTS:
            self.files[f"po/{part}.pot"] = dict.fromkeys(self.texts[part], "")
        self.language, self.part = rng.choice(_LANGUAGES), rng.choice(_PARTS)
        self.mine = [f"po/{self.language}/{self.part}.po"]
        speech = {"de": "German", "nl": "Dutch", "sv": "Swedish", "it": "Italian", "pl": "Polish"}[self.language]
        narrow = [
            f"The {self.part} part of our {speech} is half empty, and some of it is wrong. Please complete it.",
            f"{self.part}.po ({self.language}): please translate what is missing and keep to the glossary",
            f"finish everything under po/{self.language}/ for the release on Friday",
        ]
        wide = ["The program says 'Your plan has expired' differently in each language; unify it everywhere."]
        self.task = rng.choice(narrow if named or rng.random() < 0.75 else wide)
        if self.task == narrow[2]:
            self.mine = [path for path in self.files if path.startswith(f"po/{self.language}/")]
        elif self.task in wide:
            self.mine = [path for path in self.files if path.endswith(".po")]
        glossary = f"glossary/{self.language}.csv"
        if self.task in narrow:
            self.inside = {*self.mine, glossary, *(f"po/{path.split('/')[2]}t" for path in self.mine)}
        self.glossary = glossary
        self.far = [path for path in self.files if path.endswith(".po") and path not in self.mine]
        self.bad = dict.fromkeys(self.mine, 3)

    def saying(self, language: str) -> str:
        """Return something in a language."""
        return " ".join(self.rng.sample(_WORDS[language], 3)).capitalize()

    # ---- tools

    def show(self, path: str, way: int = 0) -> None:
        """Show a catalogue: whole, through the shell, or the entries as a table."""
        items = self.files[path].items()
        shows = [f"{path} {text} {said}" for text, said in items]
        if way == 1:
            body = "\n\n".join(f'msgid "{text}"\nmsgstr "{said}"' for text, said in items)
            line = self.pick([f"cat {path}", f"msgcat --no-wrap {path}", f"less -FX ./{path}"])
            self.call("sh", {"line": line}, f"# Last-Translator: agent\n{body}\n", shows=shows, on=path)
        elif way == 2:
            body = "\n".join(f"{number:>3} | {text:<24} | {said}" for number, (text, said) in enumerate(items, 1))
            self.call(
                "catalogue_table",
                {"catalogue": path, "columns": ["id", "source", "target"]},
                body,
                shows=shows,
                on=path,
            )
        else:
            body = "\n".join(f'msgid "{text}"\nmsgstr "{said}"' for text, said in items)
            self.call("po_read", {"file": path}, body, shows=shows, on=path)

    def put(self, path: str, text: str, said: str) -> None:
        """Set one translation."""
        self.files[path][text] = said
        state = (f"{path} {text}", said)
        if self.rng.random() < 0.25:
            line = f'sed -i \'/^msgid "{text}"/{{n;s/.*/msgstr "{said}"/}}\' {path} && git diff --stat'
            self.call("sh", {"line": line}, f" {path} | 2 +-", change=state, on=path)
            return
        self.call("po_set", {"file": path, "msgid": text, "msgstr": said}, "ok", change=state, on=path)

    def lint(self, path: str) -> None:
        """Check the form of a catalogue."""
        empty = sum(not said for said in self.files[path].values())
        bad = self.bad.get(path, 0)
        text = f"{path}: {8 - empty} translated, {empty} untranslated, {bad} format errors.\n"
        text += "".join(f"{path}:{40 + 3 * k}: format specifications differ\n" for k in range(bad))
        answer = f"{empty} {bad}"
        self.call("sh", {"line": f"msgfmt --check --statistics {path}"}, text, check=(path, answer, bad > 0), on=path)

    def memory(self, text: str) -> None:
        """Ask the memory of translations."""
        hits = "\n".join(f"{self.some(60, 99)}% {self.saying(self.language)}" for _ in range(self.some(1, 3)))
        self.call("tm_lookup", {"lang": self.language, "text": text}, hits, shows=hits)

    # ---- work

    def opening(self) -> None:
        """Look around in the catalogues."""
        listing = "\n".join(sorted(path for path in self.files if path.endswith(".po")))
        self.call("sh", {"line": "ls po/*/*.po"}, listing, shows=listing)
        self.show(self.mine[0], self.some(0, 2))
        text = "\n".join(f"{thing};{self.pick(_WORDS[self.language])}" for thing in _THINGS)
        self.call("sh", {"line": f"cat {self.glossary}"}, text, shows=text, on=self.glossary)
        for path in self.rng.sample(self.far, min(len(self.far), self.some(0, 3))):
            self.show(path)

    def unit(self) -> None:
        """Translate two texts."""
        path = self.pick(self.mine)
        empty = [text for text, said in self.files[path].items() if not said] or self.rng.sample(
            list(self.files[path]), 2
        )
        for text in empty[:2]:
            if self.rng.random() < 0.4:
                self.memory(text)
            self.put(path, text, self.saying(path.split("/")[1]) + f" {text.count('%') * '%(total)d'}".rstrip())
        if self.bad[path]:
            self.bad[path] -= 1
        self.lint(path)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.rereads, self.wording, self.reviewer, self.remembers],
            "cascading": [self.quota, self.plural, self.upload],
            "drifting": [self.languages, self.style, self.reading],
            "healthy": [
                self.glance,
                self.everywhere,
                self.all_empty,
                self.templates,
                self.render,
                self.three,
                self.greps,
                self.screens,
            ],
        }

    def hammers(self) -> list[Step]:
        """Return an upload that fails each time."""
        return [self.export]

    def rereads(self) -> None:
        self.story.append("reads one catalogue in three forms, again and again")
        path = self.mine[0]
        self.show(path)
        looks: list[Step] = [partial(self.show, path, w) for w in (0, 1, 2)]
        looks.append(lambda: self.show(path, 1))
        self.circle(looks, self.some(7, 14), lambda: self.memory(self.pick(_THINGS)))

    def wording(self) -> None:
        self.story.append("cannot decide between two wordings")
        path = self.mine[0]
        text = self.pick(list(self.files[path]))
        both = (self.saying(self.language), self.saying(self.language) + "!")
        for turn in range(self.some(10, 16)):
            self.put(path, text, both[turn % 2])
            if self.rng.random() < 0.3:
                self.lint(path)

    def reviewer(self) -> None:
        self.story.append("waits for a reviewer, looking every few seconds")
        batch = self.some(300, 900)
        for _ in range(self.some(9, 16)):
            text = f"batch {batch}: in review (0 of 8 approved), checked {self.stamp()}"
            self.call("review_status", {"batch": batch}, text, wait=(f"batch{batch}", "0"), gap=self.rng.uniform(3, 12))

    def recall(self, text: str, hit: str) -> None:
        """Ask the memory for something that has one hit."""
        given = {"lang": self.language, "text": text}
        self.call("tm_lookup", given, f"{hit}  ({self.some(2, 40)} ms)", shows=hit)

    def remembers(self) -> None:
        self.story.append("asks the memory the same thing in other spellings")
        text = self.texts[self.part][0]
        hit = f"71% {self.saying(self.language)}"
        ways = [text, text.lower(), text.upper(), f" {text}", text.rstrip("?"), f'"{text}"', text + "."]
        looks: list[Step] = [partial(self.recall, way, hit) for way in ways]
        self.circle(looks, self.some(8, 14), lambda: self.show(f"po/{self.mine[0].split('/')[2]}t"))

    def quota(self) -> None:
        self.story.append("the quota of the machine translation is used up")
        steps: list[Step] = []
        for text in self.rng.sample(self.texts[self.part], self.some(4, 5)):
            said = f'{{"translations": [], "error": "quota exceeded for key ...{self.hexes(4)}"}}'
            given = {"q": [text], "target": self.language}
            steps.append(partial(self.call, "mt_translate", given, said, cause="quota", asks=text))
        self.weave(steps, [self.unit, lambda: self.lint(self.mine[0]), self.unit])

    def plural(self) -> None:
        self.story.append("writes plural forms in a shape the tool refuses")
        path = self.mine[0]
        shapes = ['["a", "b"]', '{"0": "a"}', '"a|b"', '{"one": "a", "other": "b"}', '"a;b"']
        for number, shape in enumerate(shapes[: self.some(4, 5)]):
            said = f"ValueError: msgstr_plural must map int to str, got {shape[:8]}"
            given = {"file": path, "msgid": self.texts[self.part][0], "msgstr_plural": shape}
            self.call("po_set_plural", given, said, ok=False, cause="plural", asks=shape, on=path)
            if number % 2:
                self.memory(self.pick(_THINGS) + str(number))
        if self.rng.random() < 0.5:
            good = {"file": path, "forms": {"0": "a", "1": "b"}, "index": "int"}
            self.call("po_set_plural", good, "ok", change=(f"{path} plural", "ab"), clears="plural", on=path)

    def upload(self) -> None:
        self.story.append("the token of the platform has expired")
        ways = [
            "tx push -t",
            "tx pull -s",
            f"tx push -l {self.language}",
            "tx status",
            f"tx pull -l {self.language} --force",
        ]
        steps: list[Step] = []
        for way in self.rng.sample(ways, self.some(4, 5)):
            said = f"tx ERROR: 401 Unauthorized (request {self.hexes(10)})"
            steps.append(partial(self.call, "sh", {"line": way}, said, ok=self.soft, cause="token", asks=way))
        asides: list[Step] = [
            lambda: self.call("sh", {"line": "cat .tx/config"}, "[main]\nhost = https://lingo.example"),
            lambda: self.call("sh", {"line": "env | grep -c TX_TOKEN"}, "1"),
        ]
        self.weave(steps, [*asides, self.unit])

    def export(self) -> None:
        self.story.append("packs the catalogues on a full disk, again and again")
        for number in range(self.some(8, 12)):
            way = self.pick(["make mo", "make -j2 mo", "make mo 2>&1", "make -B mo"])
            said = (
                f"msgfmt: error while writing: No space left on device\nmake: *** Error 1 ({self.some(1, 4)}.{number}s)"
            )
            self.call("sh", {"line": way}, said, ok=self.soft, cause="disk", asks="mo")

    def languages(self) -> None:
        self.story.append("goes on to the other languages")
        paths = [path for path in self.far if path.endswith(f"{self.mine[0].split('/')[2]}")]
        for path in self.rng.sample(paths, min(len(paths), self.some(3, 4))):
            if self.rng.random() < 0.6:
                self.show(path, self.some(0, 2))
            for text in list(self.files[path])[: self.some(1, 3)]:
                self.put(path, text, self.saying(path.split("/")[1]))

    def style(self) -> None:
        self.story.append("improves the style of other parts in between")
        for path in self.rng.sample(self.far, self.some(4, 5)):
            text = self.pick(list(self.files[path]))
            self.put(path, text, self.saying(path.split("/")[1]) + ".")
            if self.rng.random() < 0.6:
                self.lint(self.mine[0]) if self.rng.random() < 0.5 else self.memory(text)

    def reading(self) -> None:
        self.story.append("reads catalogue after catalogue that is not its own")
        for path in self.rng.sample(self.far, self.some(6, 9)):
            self.show(path, self.some(0, 2))

    def all_empty(self) -> None:
        self.story.append("translates many texts of one file")
        path = self.mine[0]
        for text in list(self.files[path])[: self.some(5, 8)]:
            self.put(path, text, self.saying(self.language) + f" ({self.some(1, 9)})")

    def templates(self) -> None:
        self.story.append("compares with the template and the code that uses it")
        for path in self.mine[:3]:
            self.show(f"po/{path.split('/')[2]}t", 1)

    def render(self) -> None:
        self.story.append("waits for screenshots that come one by one")
        for done in range(1, self.some(5, 8)):
            text = f"{done}/8 screens rendered"
            self.call("screens_status", {"lang": self.language}, text, wait=("screens", text), gap=self.some(20, 40))

    def three(self) -> None:
        self.story.append("tries again with longer waits, and it goes")
        waits = (5, 12, 30, 70)[: self.some(3, 4)]
        for wait in waits:
            said = f"spellserver: busy ({self.some(20, 90)} in line)"
            self.call("spell", {"file": self.mine[0]}, said, ok=False, cause="spell", asks="spell", gap=wait)
        text = f"0 unknown words in {self.mine[0]}"
        self.call("spell", {"file": self.mine[0]}, text, shows=text, clears="spell", on=self.mine[0], gap=waits[-1] * 2)

    def greps(self) -> None:
        self.story.append("looks for words that must not occur, and finds none")
        for word in self.rng.sample(["email", "Login", "File", "Account", "Team", "Plan", "Share"], self.some(4, 6)):
            line = f"grep -n '\"{word}\"' {self.mine[0]}"
            self.call("sh", {"line": line}, "[exit 1]", ok=self.soft, on=self.mine[0])

    def screens(self) -> None:
        self.story.append("measures several widths in one turn")
        with self.together():
            for width in self.rng.sample([320, 360, 390, 768, 1024, 1280], 4):
                self.call("fit_check", {"lang": self.language, "part": self.part, "width": width}, "fits: yes")

    def everywhere(self) -> None:
        self.story.append("changes many catalogues, as far as the task goes")
        for path in self.rng.sample(self.mine, min(len(self.mine), self.some(6, 10))):
            self.put(path, list(self.files[path])[-1], self.saying(path.split("/")[1]) + "!")

    def glance(self) -> None:
        self.story.append("looks for a moment at another language, and goes back")
        self.unit()
        for path in self.rng.sample(self.far, min(len(self.far), self.some(2, 4))):
            self.show(path, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Phrases(rng, named), rng)
