"""What kinds with a tree of linked files share: the tree, the task about a part of it, and the shapes of trouble.

A kind says how paths look, what a file holds, and how its tools read, change, search and check. It must not say what is
inside the task: that follows here from the names in the task and from the links of the files.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from tests.corpus.seen_more.world import Place, Scene, Shape

Form = Literal["path", "file", "glob", "folder", "words", "red", "line", "everywhere", "nothing"]


class TreeScene(Scene):
    """Files in parts (folders) that link to each other, and a task about some of them."""

    parts: ClassVar[dict[str, list[str]]] = {}
    shared: ClassVar[dict[str, list[str]]] = {}
    strays: Sequence[str] = ()
    words: Sequence[str] = ()
    forms: Sequence[Form] = ("path", "file", "glob", "folder", "words", "words", "red", "line", "everywhere", "nothing")

    def __init__(self, rng: random.Random) -> None:
        """Lay out the tree and choose the task."""
        super().__init__(rng)
        self.number = rng.randint(3, 60)
        self.paths = {part: [self.path(part, stem) for stem in stems] for part, stems in self.parts.items()}
        self.libs = [self.path(part, stem) for part, stems in self.shared.items() for stem in stems]
        self.links: dict[str, list[str]] = {}
        self.text: dict[str, list[str]] = {}
        for own in self.paths.values():
            for path in own:
                mates = [mate for mate in rng.sample(own, min(2, len(own))) if mate != path]
                self.links[path] = [*mates[:1], rng.choice(self.libs)]
        for path in self.libs:
            self.links[path] = []
        for path in [*self.links]:
            self.text[path] = [*(self.link_line(path, link) for link in self.links[path]), *self.body(path)]
            test = self.test_of(path)
            if test:
                self.links[test] = [path]
                self.text[test] = [self.link_line(test, path), *self.body(test)]
        self.known: set[str] = set()
        self.asked: set[str] = set()
        self.red = rng.sample(list(self.words), rng.randint(2, 5))
        self.part = rng.choice(list(self.parts))
        self.target = rng.choice(self.paths[self.part])
        self.form: Form = rng.choice(self.forms)
        self.task = self.say_task()
        self._settle()
        if rng.random() < 0.12:
            self._hide_task_in_ticket()

    def _settle(self) -> None:
        own = self.paths[self.part]
        named = [self.target] if self.form in ("path", "file", "line") else list(own)
        if self.form == "everywhere":
            named = list(self.text)
        tests = [test for path in named if (test := self.test_of(path))]
        self.core = sorted({*named, *tests})
        near = {link for path in self.core for link in self.links.get(path, [])}
        self.named_by_check = ""
        if self.form == "red":
            self.named_by_check = self.rng.choice([path for path in self.text if path not in self.core])
            near.add(self.named_by_check)
        self.inside = sorted({*self.core, *near})
        self.outside = sorted(path for path in self.text if path not in self.inside)

    def _hide_task_in_ticket(self) -> None:
        key = f"{self.part.rsplit('/', 1)[-1][:3].upper()}-{self.number}{self.rng.randint(10, 99)}"
        text = f"{key} [{self.rng.choice(['bug', 'story', 'chore'])}, prio {self.rng.randint(1, 4)}]\n{self.task}"
        self.task = self.rng.choice([f"Work on {key}.", f"{key} is yours. Finish it today.", f"Please do ticket {key}"])
        self.run.call("tracker_get", {"key": key}, text, place=self.here)

    def path(self, part: str, stem: str) -> str:
        """Say where a file lies."""
        raise NotImplementedError

    def test_of(self, path: str) -> str:
        """Say where the test of a file lies, or nothing."""
        return ""

    def link_line(self, path: str, link: str) -> str:
        """Say how a file names another that it needs."""
        raise NotImplementedError

    def body(self, path: str) -> list[str]:
        """Write what a file holds."""
        raise NotImplementedError

    def say_task(self) -> str:
        """Say the task in the words of its form."""
        raise NotImplementedError

    def new_line(self, path: str, word: str) -> str:
        """Write a line that was not in a file before."""
        raise NotImplementedError

    def do_read(self, path: str, fresh: bool | None, place: Place) -> None:
        """Record a look into a file; ``fresh`` None is the first look."""
        raise NotImplementedError

    def do_edit(self, path: str, before: str, after: str, fresh: bool, place: Place) -> None:
        """Record a change of a file."""
        raise NotImplementedError

    def do_seek(self, query: str, hits: list[str], fresh: bool, place: Place) -> None:
        """Record a search."""
        raise NotImplementedError

    def do_check(self, red: list[str], fresh: bool, place: Place) -> None:
        """Record a run of the tests of the task's part."""
        raise NotImplementedError

    def place(self, path: str) -> Place:
        """Say whether a file belongs to the task."""
        return "" if self.form == "nothing" else "in" if path in self.inside else "out"

    @property
    def here(self) -> Place:
        """The place of what belongs to the task as a whole."""
        return "" if self.form == "nothing" else "in"

    def read(self, path: str) -> None:
        """Read a file for the first time."""
        self.known.add(path)
        self.do_read(path, None, self.place(path))

    def edit(self, path: str, word: str = "") -> None:
        """Change a line of a file to something new."""
        lines = self.text[path]
        first = len(self.links.get(path, []))
        at = self.rng.choice(
            [n for n, line in enumerate(lines) if n >= first and len(line.strip()) > 3] or [len(lines) - 1]
        )
        before, after = lines[at], self.new_line(path, word or self.rng.choice(list(self.words)))
        self.number += 1
        lines[at] = after
        self.do_edit(path, before, after, True, self.place(path))
        if path in self.inside and self.red and self.rng.random() < 0.4:
            self.red.pop()

    def check(self) -> None:
        """Run the tests."""
        self.do_check(self.red, self.run.check("tests", " ".join(self.red)), self.here)

    def seek(self) -> None:
        """Search for something that was not searched for before."""
        self.number += 1
        scope = list(self.text if self.form in ("everywhere", "nothing") else self.paths[self.part])
        names = re.findall(r"[A-Za-z_]{4,}[0-9]*", " ".join(self.text[self.rng.choice(scope)]))
        query = self.rng.choice(names or list(self.words))
        if query in self.asked or self.rng.random() < 0.2:
            query = f"{self.rng.choice(list(self.words))}.*{self.rng.randint(0, 99)}"
        hits = [
            f"{path}:{n}:{line}"
            for path in scope
            for n, line in enumerate(self.text[path], 1)
            if re.search(query, line)
        ]
        self.do_seek(query, hits[:25], query not in self.asked, self.here)
        self.asked.add(query)

    def quiet(self) -> None:
        """Do one fruitful thing that changes and runs nothing."""
        unknown = [path for path in (self.text if self.form == "nothing" else self.inside) if path not in self.known]
        self.read(self.rng.choice(unknown)) if unknown else self.seek()

    def step(self) -> None:
        """Read what is new, change, check now and then."""
        dice = self.rng.random()
        if self.form == "red" and "tests" not in self.run.answers:
            self.check()
        elif dice < 0.5:
            self.quiet()
        elif dice < 0.58:
            self.seek()
        else:
            path = self.rng.choice(self.core)
            if path not in self.known and self.rng.random() < 0.8:
                self.read(path)
            self.edit(path)
            if self.rng.random() < 0.35:
                self.check()

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng = self.rng

        def reads_the_same_again() -> None:
            if self.target not in self.known:
                self.read(self.target)
            for number in range(rng.randint(8, 14)):
                self.do_read(self.target, False, self.place(self.target))
                if number == 4 and rng.random() < 0.5:
                    self.seek()

        def edits_back_and_forth() -> None:
            lines = self.text[self.target]
            one, two = lines[-1], self.new_line(self.target, rng.choice(list(self.words)))
            red = self.red or [rng.choice(list(self.words))]
            self.do_check(red, True, self.here)
            for number in range(rng.randint(4, 7)):
                before, after = (one, two) if number % 2 == 0 else (two, one)
                self.do_edit(self.target, before, after, number == 0, self.place(self.target))
                self.do_check(red, number == 0, self.here)

        def searches_in_other_spellings() -> None:
            word = f"{rng.choice(list(self.words))}_{rng.choice(['legacy', 'tmp', 'v0'])}"
            ways = [
                word,
                word.upper(),
                word.replace("_", ""),
                f"\\b{word}\\b",
                f"{word}.*",
                f"({word})",
                word.title(),
                f"{word} ",
            ]
            for number in range(rng.randint(8, 15)):
                self.do_seek(rng.choice(ways), [], number == 0, self.here)

        def runs_the_tests_without_a_change() -> None:
            red = self.red or [rng.choice(list(self.words))]
            for number in range(rng.randint(8, 14)):
                self.do_check(red, number == 0, self.here)
                if number == 4 and rng.random() < 0.4:
                    self.quiet()

        return [
            reads_the_same_again,
            edits_back_and_forth,
            searches_in_other_spellings,
            runs_the_tests_without_a_change,
        ]

    def refusals(self) -> Sequence[Shape]:
        """One file cannot be written while the same tool writes others."""
        rng = self.rng
        path = rng.choice(self.core)
        others = [other for other in self.core if other != path]

        def one_file_refuses_every_change() -> None:
            for _ in range(rng.randint(4, 7)):
                self.number += 1
                before, after = rng.choice(self.text[path]), self.new_line(path, rng.choice(list(self.words)))
                self.do_edit(path, before, after, True, self.place(path))
                said = [
                    f"permission denied: {path}",
                    f"{path} is locked by another session",
                    "EACCES",
                    f"{path}: owner is root",
                ]
                self.run.refuse(
                    "file", rng.choice([*said, "Not saved. The file is checked out elsewhere."]), rng.random() < 0.6
                )
                self.edit(rng.choice(others)) if others and rng.random() < 0.6 else self.quiet()

        return [one_file_refuses_every_change]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form in ("nothing", "everywhere") or not self.outside:
            return ()
        rng, word = self.rng, self.rng.choice(list(self.words))
        part = rng.choice([part for part in self.parts if part != self.part])
        foreign = [path for path in self.paths[part] if path in self.outside]

        def makes_another_part_nice() -> None:
            for path in foreign[: rng.randint(3, 5)]:
                self.read(path)
                for _ in range(rng.randint(1, 3)):
                    self.edit(path)

        def reads_through_the_rest_of_the_tree() -> None:
            for path in rng.sample(self.outside, min(len(self.outside), rng.randint(13, 22))):
                self.read(path)
                if rng.random() < 0.12:
                    self.quiet()

        def carries_the_change_everywhere() -> None:
            for path in rng.sample(self.outside, min(len(self.outside), rng.randint(5, 10))):
                self.edit(path, word)
                if rng.random() < 0.2:
                    self.check()

        def follows_links_further_and_further() -> None:
            self.quiet()
            seen = {*self.inside}
            for path in self.libs + self.outside:
                if path not in seen and len(seen) < len(self.inside) + 12:
                    seen.add(path)
                    self.read(path)
                    if rng.random() < 0.4:
                        self.edit(path)

        def alternates_with_foreign_changes() -> None:
            for _ in range(rng.randint(4, 7)):
                self.edit(rng.choice(self.outside))
                self.quiet()

        def sets_up_the_surroundings() -> None:
            for name in rng.sample(list(self.strays), min(len(self.strays), rng.randint(4, 6))):
                line = f"{rng.choice(list(self.words))}: {self.number}"
                self.number += 1
                self.do_edit(name, "", line, True, "out")

        return [
            makes_another_part_nice,
            reads_through_the_rest_of_the_tree,
            carries_the_change_everywhere,
            follows_links_further_and_further,
            alternates_with_foreign_changes,
            sets_up_the_surroundings,
        ]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng = self.rng

        def changes_what_the_files_need() -> None:
            for path in [path for path in self.inside if path not in self.core][:3]:
                self.read(path) if path not in self.known else self.edit(path)
                self.edit(path)

        def checks_after_each_edit() -> None:
            for _ in range(rng.randint(3, 6)):
                self.edit(self.target)
                self.red = rng.sample(list(self.words), rng.randint(1, 4))
                self.check()

        def looks_around_first() -> None:
            if len(self.run.calls) < 2:
                for path in rng.sample(sorted(self.text), 7):
                    self.read(path)
            self.work(5)

        def a_short_way_out_and_back() -> None:
            for path in rng.sample(self.outside, min(len(self.outside), rng.randint(2, 4))):
                self.read(path)
            for _ in range(5):
                self.edit(rng.choice(self.core))

        def goes_through_all_callers() -> None:
            if self.form == "everywhere":
                for path in rng.sample(sorted(self.text), rng.randint(10, 18)):
                    self.edit(path, self.words[0])
            else:
                self.work(3)

        def finds_nothing_several_times() -> None:
            for number in range(rng.randint(4, 6)):
                self.do_seek(f"{self.words[number]}_{self.number}", [], True, self.here)
                self.number += 1
            self.edit(self.target)

        def compares_with_a_model_elsewhere() -> None:
            for path in rng.sample(self.outside, min(len(self.outside), rng.randint(2, 4))):
                self.read(path)
                self.edit(rng.choice(self.core))
                self.quiet()

        def two_small_changes_elsewhere() -> None:
            for _ in range(3):
                self.edit(rng.choice(self.core))
            for path in self.outside[:2]:
                self.edit(path)
            for _ in range(6):
                self.edit(rng.choice(self.core))

        def writes_new_files_of_the_part() -> None:
            if self.form in ("folder", "words", "glob"):
                for word in rng.sample(list(self.words), rng.randint(2, 4)):
                    path = self.path(self.part, f"{word.replace(' ', '_')}_extra")
                    self.do_edit(path, "", self.new_line(path, word), True, self.here)
                    self.number += 1
            self.work(2)

        def reads_once_more_before_each_edit() -> None:
            for _ in range(rng.randint(2, 4)):
                self.edit(self.target)
                self.do_read(self.target, False, self.place(self.target))

        return [
            changes_what_the_files_need,
            checks_after_each_edit,
            looks_around_first,
            a_short_way_out_and_back,
            goes_through_all_callers,
            finds_nothing_several_times,
            compares_with_a_model_elsewhere,
            two_small_changes_elsewhere,
            writes_new_files_of_the_part,
            reads_once_more_before_each_edit,
        ]
