"""A web front end: components in folders with stories, tests and styles; a linter and a test runner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

NAMES = [
    "DatePicker",
    "Tooltip",
    "Modal",
    "Table",
    "Avatar",
    "Stepper",
    "Toast",
    "Slider",
    "TreeView",
    "Combobox",
    "Badge",
    "Pagination",
]


class ReactWidgets(Stage):
    """One component, what it imports, and the files that belong to it by name."""

    kind = "react_widgets"
    styles = ("log",)
    paces = (2.0, 4.0, 8.0)
    memo = ("update_plan",)

    def setup(self) -> None:
        self.name, *self.others = self.some(NAMES, 8)
        self.root = self.pick("packages/ui/src", "src/components", "libs/design/lib")
        self.ext = self.pick("tsx", "jsx")
        self.own = [
            f"{self.root}/{self.name}/{self.name}.{tail}"
            for tail in (self.ext, f"test.{self.ext}", f"stories.{self.ext}", "module.css")
        ]
        self.own.append(f"{self.root}/{self.name}/index.ts")
        self.hooks = [
            f"{self.root}/hooks/use{word}.ts"
            for word in self.some(["Focus", "Popper", "Escape", "Id", "Media", "Controlled", "Outside"], 3)
        ]
        self.runner = self.pick("npx vitest run", "npx jest", "yarn test", "pnpm --filter ui test")
        self.task = self.pick(
            f"{self.name} loses focus when it re-renders. Fix it in {self.own[0]} and add a test.",
            f"Convert {self.root}/{self.name} to controlled/uncontrolled, keep the public props.",
            f"a11y audit says {self.name} has no label. issue #{self.n(100, 4000)}",
        )

    def source(self, path: str) -> str:
        """Return part of a file."""
        stem = path.split("/")[-1].split(".")[0]
        word = self.pick("open", "value", "anchor", "label", "active", "ref", "items")
        imports = (
            "".join(f"import {{ {h.split('/')[-1][:-3]} }} from '../hooks';\n" for h in self.some(self.hooks, 0, 2))
            if path in self.own
            else ""
        )
        return (
            f"{imports}export function {stem}({{ {word} }}: {stem}Props) {{\n  const [{word}{self.n(1, 9)}, "
            f"set{word.title()}] = useState({self.n(0, 99)});\n  // {self.hex(5)}"
        )

    def read(self, path: str, **more: Any) -> None:
        """Open a file."""
        tool, args = self.pick(
            ("Read", {"file_path": path, "offset": self.n(1, 200)}),
            ("Bash", {"command": f"cat {path} | head -{self.n(20, 200)}"}),
            ("Grep", {"pattern": "useState", "path": path, "-A": self.n(1, 9)}),
        )
        self.call(tool, args, self.source(path), **more)

    def edit(self, path: str, **more: Any) -> None:
        """Change a file."""
        self.call(
            self.pick("Edit", "MultiEdit"),
            {"file_path": path, "old_string": f"useState({self.n(0, 99)})", "new_string": f"useRef({self.n(0, 99)})"},
            f"The file {path} has been updated (line {self.n(1, 300)}).",
            change=True,
            **more,
        )

    def test(self, failed: int, of: int) -> None:
        """Run the component's tests."""
        names = self.some(
            [
                "keeps focus",
                "closes on escape",
                "calls onChange",
                "has a label",
                "renders items",
                "forwards refs",
                "is disabled",
            ],
            2,
        )
        text = "\n".join(
            f" {'x' if k < failed else 'v'} {self.name} > {name} ({self.n(2, 90)} ms)" for k, name in enumerate(names)
        )
        self.call(
            "Bash",
            {"command": f"{self.runner} {self.name}"},
            f"{text}\nTests {failed} failed | {of - failed} passed",
            ok=not failed,
        )

    def step(self) -> None:
        kind = self.n(0, 5)
        if kind < 2:
            self.read(self.pick(*self.own))
        elif kind == 2:
            self.read(self.pick(*self.hooks))
        elif kind < 5:
            self.edit(self.pick(*self.own))
        else:
            self.test(self.n(0, 2), self.n(7, 60))

    def drift_restyle_everything(self) -> None:
        """Aligns the styles of all other components with the one it changed."""
        self.lead()
        for other in self.others:
            path = f"{self.root}/{other}/{other}.module.css"
            if self.chance(0.6):
                self.read(path, out=True)
            self.edit(path, out=True)
            self.now_and_then()

    def drift_build_tooling(self) -> None:
        """A slow test makes the agent rebuild the tool chain."""
        self.lead()
        for _ in self.times(9, 13):
            path = self.pick(
                "vite.config.ts",
                "tsconfig.base.json",
                ".github/workflows/ci.yml",
                "scripts/release.mjs",
                "Dockerfile",
                ".storybook/main.ts",
                "turbo.json",
            )
            if self.chance(0.5):
                self.call(
                    "Edit",
                    {"file_path": path, "old_string": f"{self.n(1, 99)}", "new_string": f"{self.n(1, 99)}"},
                    f"{path} updated, line {self.n(1, 200)}",
                    out=True,
                    change=True,
                )
            else:
                self.call(
                    "Bash",
                    {"command": f"cat {path} | sed -n '{self.n(1, 90)},+9p'"},
                    f"# {path}\n{self.pick('target', 'plugins', 'cache', 'node')}: {self.hex(4)}",
                    out=True,
                )
            self.now_and_then()
        self.tail()

    def drift_lint_rest(self) -> None:
        """Repairs lint warnings wherever there are any, gradually."""
        self.lead()

        def lint() -> None:
            other = self.pick(*self.others)
            path = f"{self.root}/{other}/{other}.{self.ext}"
            if self.chance(0.3):
                self.call(
                    "Bash",
                    {"command": f"npx eslint {path} --rule {self.pick('eqeqeq', 'no-shadow', 'curly')}"},
                    f"{path} {self.n(1, 300)}:{self.n(1, 80)} warning {self.hex(3)}",
                    out=True,
                )
            else:
                self.edit(path, out=True)

        self.gradually(lint, 16, 24)

    def drift_mobile_app(self) -> None:
        """Finds a component of the same purpose in the mobile app, and goes on there."""
        self.lead()
        for _ in self.times(9, 12):
            path = (
                f"apps/mobile/{self.pick('screens', 'native', 'nav')}/"
                f"{self.pick('Home', 'Login', 'Cart', 'Profile')}{self.n(1, 9)}.{self.pick('kt', 'swift', 'tsx')}"
            )
            self.call(
                "Read",
                {"file_path": path},
                f"class {path.split('/')[-1].split('.')[0]} // {self.n(1, 900)} lines {self.hex(3)}",
                out=True,
            )
            if self.chance(0.4):
                self.edit(path, out=True)
        self.tail()

    def stall_same_red_test(self) -> None:
        """The red test, run with other flags."""
        self.work(5, 9)
        for number in self.times(7, 12):
            flag = self.pick("", "--silent", "--bail", "-t focus", "--no-cache", "--runInBand", "--verbose", "-u")
            self.call(
                "Bash",
                {"command": f"{self.runner} {self.name} {flag}"},
                self.pick(
                    f"x {self.name} > keeps focus\nexpected <button> to have focus",
                    "AssertionError: expected <button> to have focus",
                    f"FAIL {self.name} keeps focus: <button> has no focus",
                ),
                ok=False,
                new=number == 0,
            )
        self.tail()

    def stall_import_toggle(self) -> None:
        """Two ways to import, in turn, with the same complaint of the linter between."""
        self.work(4, 8)
        pair = ["import React from 'react'", "import * as React from 'react'"]
        for number in self.times(9, 14):
            if number % 3 == 2:
                self.call(
                    "Bash",
                    {"command": f"npx eslint {self.own[0]}"},
                    "1:1 error import/order",
                    ok=False,
                    new=number == 2,
                )
            else:
                self.call(
                    "Edit",
                    {"file_path": self.own[0], "old_string": pair[number % 2], "new_string": pair[1 - number % 2]},
                    "updated",
                    new=number < 2,
                )

    def stall_glob_again(self) -> None:
        """Looks for a file that does not exist, by all patterns."""
        self.work(4, 9)
        for number in self.times(7, 12):
            word = f"{self.name}Context"
            tool, args = self.pick(
                ("Glob", {"pattern": f"**/{word}*"}),
                ("Glob", {"pattern": f"{self.root}/**/{word}.{self.ext}"}),
                ("Bash", {"command": f"find . -name '{word}*' -maxdepth {number + 3}"}),
                ("Bash", {"command": f"git ls-files | grep -i {word.lower()}"}),
                ("Grep", {"pattern": f"createContext.*{word}", "glob": "*.ts*"}),
            )
            self.call(tool, args, self.pick("No files found", "", "no matches"), new=number == 0)

    def cascade_node_modules(self) -> None:
        """One package is not installed; tests, stories, types and linter fall over it."""
        self.work(4, 9)
        missing = self.pick("@floating-ui/react", "date-fns", "@testing-library/user-event", "clsx")
        for _ in self.times(5, 9):
            path = self.pick(*self.own)
            self.call(
                "Bash",
                {
                    "command": self.pick(
                        f"{self.runner} {path}",
                        f"npx tsc --noEmit {path}",
                        f"npx eslint {path}",
                        "npx storybook build",
                        f"node -e \"require('./{path}')\"",
                    )
                },
                self.pick(
                    f"Error: Cannot find module '{missing}' from {path}",
                    f"{path}({self.n(1, 99)},{self.n(1, 40)}): error TS2307: Cannot find module '{missing}'",
                    f'Failed to resolve import "{missing}" ({path})',
                ),
                ok=False,
                cause="package",
            )
            if self.chance(0.4):
                self.read(path)

    def cascade_stale_edit(self) -> None:
        """Edits whose old text is never there, since the file was formatted: one wrong assumption."""
        self.work(4, 9)
        for _ in self.times(4, 7):
            self.call(
                "Edit",
                {"file_path": self.own[0], "old_string": f"\tconst {self.hex(4)} = useMemo(", "new_string": "x"},
                self.pick(
                    f"String to replace not found in file: const {self.hex(4)}",
                    f"old_string not found (tabs?) near {self.n(1, 300)}",
                    f"no match; file uses spaces, line {self.n(1, 300)}",
                ),
                ok=False,
                cause="tabs",
            )
            if self.chance(0.4):
                self.read(self.own[1])
        self.tail()

    def healthy_imports_followed(self) -> None:
        """Opens each module that the component imports."""
        imports = [
            f"{self.root}/{part}"
            for part in (
                "utils/dom.ts",
                "utils/keys.ts",
                "theme/tokens.ts",
                "theme/space.ts",
                "hooks/index.ts",
                "types/common.ts",
                "icons/Close.tsx",
            )
        ]
        self.call(
            "Read",
            {"file_path": self.own[0]},
            "\n".join(f"import {{ {self.hex(3)} }} from '{path}'" for path in imports),
        )
        for path in imports:
            self.read(path)
        self.work(6, 10)

    def healthy_red_to_green(self) -> None:
        """Fewer red tests with every edit."""
        self.work(2, 4)
        total = self.n(20, 60)
        for failed in range(self.n(6, 9), -1, -1):
            self.test(failed, total)
            if failed:
                self.edit(self.own[0])

    def healthy_one_file_many_edits(self) -> None:
        """Twenty edits of one file."""
        self.read(self.own[0])
        for _ in self.times(14, 22):
            self.edit(self.own[0])
        self.test(0, self.n(7, 40))

    def healthy_search_without_hits(self) -> None:
        """Where is the prop used? Each search is another question; most have no hit."""
        self.work(1, 3)
        for word in self.some(
            ["isOpen", "onDismiss", "anchorEl", "portal", "placement", "inline", "dense", "trapFocus", "returnFocus"],
            7,
            9,
        ):
            self.call(
                "Bash",
                {"command": f"grep -rn 'is{self.name}.*{word}' {self.root}/{self.name}"},
                f"exit code 1 ({word})",
                ok=False,
            )
        self.work(4, 9)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(14, 32)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(ReactWidgets, rng)
