"""A web shop's TypeScript monorepo, worked on through an editor's MCP server."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "shop_monorepo"

STEMS = {
    "checkout": ["basket", "voucher", "steps", "totals", "addressForm", "payment", "summary"],
    "catalog": ["facets", "sorting", "productTile", "listing", "stockBadge", "teaser"],
    "account": ["profile", "orders", "passwordReset", "newsletter", "returns"],
    "search": ["query", "suggest", "synonyms", "ranking", "history"],
    "admin": ["roles", "auditLog", "bulkEdit", "priceRules", "exportCsv"],
}
SHARED = {
    "utils": ["money", "dates", "retry", "guards", "strings"],
    "ui-kit": ["Button", "Field", "Modal", "Toast", "Table"],
}
WORDS = ["locale", "draft", "amount", "rows", "cursor", "label", "state", "stamp", "limit", "rate", "parts", "slot"]
VERBS = ["load", "build", "merge", "pick", "clamp", "format", "parse", "reset", "apply", "join", "split", "read", "sum"]


class Monorepo(Scene):
    """Files that import each other, and a task about some of them."""

    def __init__(self, rng: random.Random) -> None:
        """Lay out the files, their imports and what the task is about."""
        super().__init__(rng)
        self.text: dict[str, list[str]] = {}
        self.links: dict[str, list[str]] = {}
        for package, stems in [*STEMS.items(), *SHARED.items()]:
            for stem in stems:
                self._file(package, stem)
        self.read_: set[str] = set()
        self.bugs = rng.sample(WORDS, rng.randint(2, 5))
        self.inside: set[str] = set()
        self.all_inside = False
        self._choose()
        self.asked = 0

    def _file(self, package: str, stem: str) -> None:
        path = f"packages/{package}/src/{stem}.{'tsx' if stem[0].isupper() else 'ts'}"
        rng = self.rng
        mates = [
            f"packages/{package}/src/{other}.{'tsx' if other[0].isupper() else 'ts'}"
            for other in rng.sample({**STEMS, **SHARED}[package], 2)
            if other != stem
        ]
        shared = [f"packages/utils/src/{rng.choice(SHARED['utils'])}.ts"] if package != "utils" else []
        self.links[path] = [*mates[:1], *shared]
        lines = [f'import {{ {rng.choice(VERBS)} }} from "{link}"' for link in self.links[path]]
        for _ in range(rng.randint(4, 14)):
            verb, word = rng.choice(VERBS), rng.choice(WORDS)
            lines += [f"export function {verb}{word.title()}({word}: {rng.choice(['string', 'number', 'Row[]'])}) {{"]
            lines += [f"  return {rng.choice(VERBS)}({word}, {rng.randint(0, 99)})", "}"]
        self.text[path] = lines
        test = path.replace("/src/", "/test/").replace(".ts", ".test.ts")
        self.text[test] = [f'import "{path}"', *(f'it("{rng.choice(VERBS)}s {word}")' for word in rng.sample(WORDS, 3))]
        self.links[test] = [path]

    def _choose(self) -> None:
        rng = self.rng
        self.package = rng.choice(list(STEMS))
        own = [path for path in self.text if path.startswith(f"packages/{self.package}/")]
        sources = [path for path in own if "/src/" in path]
        self.target = rng.choice(sources)
        stem = self.target.split("/")[-1]
        form = rng.choice(["path", "path", "two", "glob", "words", "words", "red", "url", "nothing", "everywhere"])
        named = own
        if form == "path":
            named = [self.target]
            self.task = rng.choice(
                [
                    f"In {self.target} an amount is rounded twice. Repair that and have a test for it.",
                    f"{stem} has grown beyond what anybody can read. Make smaller functions of it, same behaviour.",
                    f"Please add strict null checks to `{self.target}`. Nothing else has to change.",
                ]
            )
        elif form == "two":
            other = rng.choice([path for path in sources if path != self.target])
            named = [self.target, other]
            self.task = f"Move what {stem} and {other.split('/')[-1]} ({self.package}) do twice to one place."
        elif form == "glob":
            self.task = f"Replace Date by Temporal in packages/{self.package}/**/*.ts, then run the package's tests."
        elif form == "words":
            self.task = rng.choice(
                [
                    f"Customers say that the {self.package} forgets their entries when they go back. Find out why.",
                    f"The {self.package} part needs proper error messages instead of 'undefined'.",
                    f"{self.package}: get rid of all TODOs.",
                ]
            )
        elif form == "red":
            self.task = f"`pnpm test --filter {self.package}` fails since yesterday. Make it green again."
        elif form == "url":
            self.task = (
                f"See https://git.shop.example/front/issues/{rng.randint(200, 900)} (component: {self.package})."
            )
        else:
            self.all_inside = True
            self.task = (
                "Look around for code that could be simpler and improve it."
                if form == "nothing"
                else f"Rename every function that begins with `{rng.choice(VERBS)}` to begin with `do`, in all of them."
            )
        if self.all_inside:
            named = list(self.text)
        self.form = form
        self.inside = set(named)
        tests = [path.replace("/src/", "/test/").replace(".ts", ".test.ts") for path in named if "/src/" in path]
        self.inside |= set(tests) | {link for path in [*named, *tests] for link in self.links[path]}
        self.outside = [path for path in self.text if path not in self.inside]

    def place(self, path: str) -> Place:
        """Say whether a file belongs to the task."""
        if self.form == "nothing":
            return ""
        return "in" if path in self.inside else "out"

    def open(self, path: str, fresh: bool | None = None) -> None:
        """Read a file, or a range of it."""
        lines = self.text[path]
        args: dict[str, object] = {"filePath": path}
        if fresh is False and self.rng.random() < 0.6:
            begin = self.rng.randint(1, 3)
            args |= {"startLine": begin, "endLine": begin + self.rng.randint(4, 30)}
            lines = lines[begin - 1 : int(str(args["endLine"]))]
        shown = "\n".join(
            f"{number:>3}| {line}" for number, line in enumerate(lines, int(str(args.get("startLine", 1))))
        )
        new = path not in self.read_ if fresh is None else fresh
        self.read_.add(path)
        self.run.call("editor_open_file", args, shown, fresh=new, place=self.place(path))

    def edit(self, path: str, word: str = "") -> None:
        """Change a line to something that was not there before."""
        rng = self.rng
        at = rng.choice([n for n, line in enumerate(self.text[path]) if line.startswith(("  ", "it("))])
        before = self.text[path][at]
        self.asked += 1
        what = f"{rng.choice(VERBS)}{(word or rng.choice(WORDS)).title()}"
        after = (
            f"  return {what}({rng.choice(WORDS)}, {self.asked})" if "/src/" in path else f'it("{what} {self.asked}")'
        )
        self.text[path][at] = after
        args = {"filePath": path, "before": before, "after": after}
        self.run.call(
            "editor_replace", args, rng.choice(["ok", f"1 replacement in {path}"]), place=self.place(path), change=True
        )
        if path in self.inside and self.bugs and rng.random() < 0.4:
            self.bugs.pop()

    def check(self, fresh: bool | None = None) -> None:
        """Run the tests of the package."""
        red = " ".join(self.bugs)
        lines = [f" RUN  v2.1.{self.rng.randint(1, 9)} packages/{self.package}"]
        lines += [
            f" FAIL test/{self.target.split('/')[-1]} > handles {bug}: expected {len(bug)} got 0" for bug in self.bugs
        ]
        lines += [
            f" Tests  {len(self.bugs)} failed | {31 - len(self.bugs)} passed   Duration {self.run.millis() / 100:.2f}s"
        ]
        new = self.run.check("tests", red) if fresh is None else fresh
        place: Place = "" if self.form == "nothing" else "in"
        self.run.call("task_run", {"script": f"test --filter {self.package}"}, "\n".join(lines), fresh=new, place=place)

    def seek(self, query: str) -> None:
        """Search in the workspace; the hits are lines of files that the task is about."""
        hits = [
            f"{path}:{n}: {line}"
            for path in sorted(self.inside)
            for n, line in enumerate(self.text[path], 1)
            if query in line
        ]
        place: Place = "" if self.form == "nothing" else "in"
        self.run.call("workspace_search", {"query": query}, "\n".join(hits[:15]) or "No results.", place=place)

    def step(self) -> None:
        """Read what is new, change, check now and then."""
        unread = [path for path in sorted(self.inside) if path not in self.read_]
        dice = self.rng.random()
        if unread and dice < 0.5:
            self.open(self.rng.choice(unread))
        elif dice < 0.6 and self.asked < 40:
            self.asked += 1
            self.seek(self.rng.choice(VERBS) + self.rng.choice(WORDS).title())
        else:
            path = self.rng.choice(sorted(path for path in self.inside if self.package in path))
            if path not in self.read_ and self.rng.random() < 0.8:
                self.open(path)
            self.edit(path)
            if self.rng.random() < 0.3:
                self.check()

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""

        def rereads_the_same_file_in_other_ranges() -> None:
            self.open(self.target)
            for number in range(self.rng.randint(8, 16)):
                self.open(self.target, fresh=False)
                if number == 4 and self.rng.random() < 0.4:
                    self.seek(self.rng.choice(WORDS) + "Of")

        def asks_for_a_name_that_is_nowhere() -> None:
            word = self.rng.choice(["rollback", "dirtyFlag", "sessionKey", "keepAlive"])
            ways: list[tuple[str, Args]] = [
                ("workspace_search", {"query": query, "include": include})
                for query in (word, word.lower(), word.upper(), f"\\b{word}\\b", f"{word}(", f"this.{word}")
                for include in (f"packages/{self.package}/**", f"packages/{self.package}/src/*.ts", self.target)
            ]
            ways += [
                ("task_run", {"script": f"grep -rn {word} packages/{self.package}"}),
                ("editor_symbols", {"name": word}),
            ]
            self.rng.shuffle(ways)
            for number, (tool, args) in enumerate(ways[: self.rng.randint(9, 17)]):
                self.run.call(
                    tool, args, self.rng.choice(["No results.", "0 matches", ""]), fresh=not number, place="in"
                )

        def edits_to_and_fro() -> None:
            path = self.target
            one, two = self.rng.sample(WORDS, 2)
            self.bugs = self.bugs or ["limit"]
            self.check()
            for number in range(self.rng.randint(4, 7)):
                a, b = (one, two) if number % 2 else (two, one)
                args = {"filePath": path, "before": f"  return {a} ?? 0", "after": f"  return {b} ?? 0"}
                self.run.call("editor_replace", args, "ok", fresh=number < 1, place=self.place(path), change=True)
                self.check(number < 1)

        return [rereads_the_same_file_in_other_ranges, asks_for_a_name_that_is_nowhere, edits_to_and_fro]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def scripts_fail_of_a_missing_package() -> None:
            gone = rng.choice(["@js-temporal/polyfill", "vitest", "tsx", "zod-lite"])
            scripts = [
                "test",
                "build",
                "lint",
                "typecheck",
                "dev --once",
                "test:unit",
                "coverage",
                f"test --filter {self.package}",
            ]
            for script in rng.sample(scripts, rng.randint(4, 8)):
                said = rng.choice(
                    [
                        f"Error: Cannot find module '{gone}'\nRequire stack:\n- /ws/{self.package}/{script}.config.ts",
                        f" ERR_MODULE_NOT_FOUND {gone} imported from /ws/{self.package}/package.json ({script})",
                        f"sh: 1: {gone.split('/')[-1]}: not found\n ELIFECYCLE {script}: exit status 127",
                    ]
                )
                self.run.call("task_run", {"script": script}, said, ok=rng.random() < 0.5, cause="package")
                if rng.random() < 0.6:
                    self.step_quietly()

        def replaces_text_that_the_editor_does_not_find() -> None:
            for _ in range(rng.randint(4, 7)):
                before = (
                    f"const {rng.choice(WORDS)} = {rng.choice(VERBS)}({rng.choice(WORDS)}, {rng.randint(100, 999)})"
                )
                said = rng.choice(
                    [
                        "0 replacements: `before` does not occur (line ends are CRLF)",
                        "Edit refused: no exact match for `before`. Tabs?",
                    ]
                )
                args = {"filePath": self.target, "before": before, "after": before.replace("const", "let")}
                self.run.call(
                    "editor_replace", args, said, ok=rng.random() < 0.4, cause="match", place=self.place(self.target)
                )
                self.step_quietly()

        return [scripts_fail_of_a_missing_package, replaces_text_that_the_editor_does_not_find]

    def step_quietly(self) -> None:
        """Do one fruitful call that needs no script and no replacement."""
        unread = [path for path in sorted(self.inside) if path not in self.read_]
        if unread:
            self.open(self.rng.choice(unread))
        else:
            self.asked += 1
            self.seek(f"{self.rng.choice(VERBS)}{self.rng.choice(WORDS).title()}{self.asked}")

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if not self.outside or self.all_inside:
            return ()
        rng = self.rng
        packages = sorted({path.split("/")[1] for path in self.outside})
        elsewhere = [path for path in self.outside if path.startswith(f"packages/{rng.choice(packages)}/")]

        def tidies_another_package() -> None:
            for path in elsewhere[:4]:
                self.open(path)
                for _ in range(rng.randint(1, 3)):
                    self.edit(path)

        def reads_on_and_on_in_other_packages() -> None:
            self.step_quietly()
            for path in rng.sample(self.outside, min(len(self.outside), rng.randint(12, 24))):
                self.open(path)
                if rng.random() < 0.1:
                    self.step_quietly()

        def applies_the_same_change_to_its_neighbours() -> None:
            word = rng.choice(WORDS)
            for path in rng.sample(self.outside, min(len(self.outside), rng.randint(5, 10))):
                self.edit(path, word)
                if rng.random() < 0.3:
                    self.check()

        def turns_to_pipelines_and_documents() -> None:
            names = [
                ".github/workflows/release.yml",
                "docs/CONTRIBUTING.md",
                "docs/glossary.md",
                "renovate.json",
                "docs/adr/0007.md",
            ]
            for name in rng.sample(names, rng.randint(4, 5)):
                for part in range(rng.randint(1, 2)):
                    args = {
                        "filePath": name,
                        "content": f"# {rng.choice(WORDS)} {rng.choice(WORDS)}\npart {part}: {rng.choice(VERBS)}",
                    }
                    self.run.call(
                        "editor_write_file", args, f"written {rng.randint(200, 4000)} bytes", place="out", change=True
                    )

        return [
            tidies_another_package,
            reads_on_and_on_in_other_packages,
            applies_the_same_change_to_its_neighbours,
            turns_to_pipelines_and_documents,
        ]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng = self.rng

        def looks_at_four_callers_elsewhere() -> None:
            for path in self.outside[: rng.randint(3, 4)]:
                self.open(path)
            for _ in range(4):
                self.edit(self.target)

        def looks_around_first() -> None:
            if len(self.run.calls) < 2:
                for path in rng.sample(sorted(self.text), 6):
                    self.open(path)
            self.work(5)

        def runs_the_tests_after_each_edit() -> None:
            for _ in range(rng.randint(3, 6)):
                self.edit(self.target)
                self.bugs = rng.sample(WORDS, rng.randint(1, 4))
                self.check()

        def three_edits_miss_and_then_one_fits() -> None:
            for number in range(4):
                args = {
                    "filePath": self.target,
                    "before": f"return {' ' * number}{rng.choice(WORDS)}",
                    "after": f"return {number}",
                }
                if number < 3:
                    self.run.call(
                        "editor_replace", args, "no exact match", ok=False, cause="near", place=self.place(self.target)
                    )
                else:
                    self.run.call(
                        "editor_replace", args, "ok", clears="near", place=self.place(self.target), change=True
                    )

        def the_same_listing_three_times() -> None:
            for _ in range(3):
                self.run.call(
                    "editor_list", {"dir": f"packages/{self.package}"}, "package.json\nsrc/\ntest/\ntsconfig.json"
                )
            self.work(4)

        def renames_callers_in_all_folders() -> None:
            if self.form == "everywhere":
                for path in rng.sample(sorted(self.text), rng.randint(10, 20)):
                    self.edit(path, "do")
            else:
                self.work(4)

        def edits_the_shared_library_that_is_imported() -> None:
            shared = [path for path in sorted(self.inside) if "packages/utils" in path]
            for path in shared[:3]:
                self.open(path)
                self.edit(path)
                self.edit(path)

        return [
            looks_at_four_callers_elsewhere,
            looks_around_first,
            runs_the_tests_after_each_edit,
            three_edits_miss_and_then_one_fits,
            the_same_listing_three_times,
            renames_callers_in_all_folders,
            edits_the_shared_library_that_is_imported,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Monorepo, rng)
