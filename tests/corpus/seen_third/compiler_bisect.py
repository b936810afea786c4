"""A C++ compiler's repository: regressions are bisected, reduced and fixed, in a shell with version control."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

PASSES = ["inline", "licm", "sroa", "gvn", "loop-unroll", "dce", "vectorize", "tailcall", "jump-thread", "mem2reg"]


class CompilerBisect(Stage):
    """A pass of an optimiser; its header, its tests, what a backtrace names."""

    kind = "compiler_bisect"
    styles = ("log",)
    paces = (4.0, 9.0, 15.0)

    def setup(self) -> None:
        self.name, *self.others = self.some(PASSES, 7)
        camel = "".join(part.title() for part in self.name.split("-"))
        self.top = self.pick("lib/Opt", "src/opt", "compiler/passes", "gcc/opt")
        self.ext = self.pick("cpp", "cc")
        self.file = f"{self.top}/{camel}.{self.ext}"
        self.header = f"include/opt/{camel}.h"
        self.tests = [
            f"test/{self.name}/{word}.c"
            for word in ("basic", "alias", "nested", f"pr{self.n(1000, 9999)}", "volatile", "phi")
        ]
        self.bug = self.n(20000, 70000)
        self.good, self.bad = self.hex(9), self.hex(9)
        self.task = self.pick(
            f"PR{self.bug}: wrong code at -O2 since {self.bad[:7]}. It is in {self.file}. Find the cause and fix it.",
            f"{self.name} pass crashes (assert) on {self.tests[3]}; fix in {self.file}",
            f"{self.file}: make the {self.name} pass handle volatile loads, with tests in test/{self.name}/",
        )

    def sh(self, line: str, result: str, **more: Any) -> None:
        """Run a command."""
        self.call("shell", {"command": line}, result, **more)

    def code(self) -> str:
        """Return a few lines."""
        names = self.some(["Use", "Def", "Blk", "Phi", "Val", "Mem", "Loop", "Edge", "Cost", "Kill"], 3)
        return "\n".join(
            f"{self.n(20, 900)}:  {'if' if self.chance(0.5) else 'for'} ({a}{self.n(1, 9)}->is{b}()) // {self.hex(4)}"
            for a, b in pairwise(names)
        )

    def read(self, path: str, **more: Any) -> None:
        """Show part of a file."""
        first = self.n(1, 1400)
        self.sh(
            self.pick(
                f"sed -n '{first},{first + self.n(20, 90)}p' {path}",
                f"cat -n {path} | tail -n +{first} | head -60",
                f"less -N +{first} {path}",
            ),
            self.code(),
            **more,
        )

    def edit(self, path: str, **more: Any) -> None:
        """Change a file."""
        self.call(
            "apply_patch",
            {
                "patch": (
                    f"--- a/{path}\n+++ b/{path}\n@@ -{self.n(1, 900)},3 +{self.n(1, 900)},4 @@\n+  // {self.hex(5)}\n"
                )
            },
            f"patched {path}: +{self.n(1, 9)} -{self.n(0, 5)}",
            change=True,
            **more,
        )

    def step(self) -> None:
        kind = self.n(0, 5)
        if kind < 3:
            self.read(self.pick(self.file, self.file, self.header, *self.tests))
        elif kind == 3:
            self.edit(self.pick(self.file, self.header))
        elif kind == 4:
            self.sh(
                f"ninja -C build check-{self.name}",
                f"[{self.n(90, 400)}/400] {self.pick(*self.tests)}: {self.pick('PASS', 'FAIL')} in "
                f"{self.n(1, 99)}.{self.n(0, 9)}",
            )
        else:
            self.sh(f"build/bin/cc -O2 -S {self.pick(*self.tests)} -fdump-{self.name} -o -", self.code(), out=False)

    def drift_pass_after_pass(self) -> None:
        """Looks whether other passes have the same mistake, and rewrites them."""
        self.lead()
        for other in self.others:
            path = f"{self.top}/{''.join(p.title() for p in other.split('-'))}.{self.ext}"
            for _ in self.times(1, 2):
                self.read(path, out=True)
            if self.chance(0.6):
                self.edit(path, out=True)
            self.now_and_then()

    def drift_warnings(self) -> None:
        """Silences compiler warnings in the front end, which the build happened to print."""
        self.lead()
        self.sh(
            "ninja -C build 2>&1 | grep warning",
            "\n".join(
                f"lib/Parse/{w}.{self.ext}:{self.n(1, 900)}: warning: unused '{w}'" for w in ("Expr", "Decl", "Lexer")
            ),
            out=None,
        )
        for _ in self.times(7, 11):
            path = (
                f"lib/{self.pick('Parse', 'Sema', 'AST')}/"
                f"{self.pick('Expr', 'Decl', 'Lexer', 'Template', 'Scope', 'Attr')}.{self.ext}"
            )
            self.sh(
                f"sed -i '{self.n(1, 900)}s/^/[[maybe_unused]] /' {path}",
                self.pick("", f"{path} ok {self.n(1, 99)}"),
                out=True,
                change=True,
            )
            if self.chance(0.3):
                self.read(path, out=True)
        self.tail()

    def drift_bug_tracker(self) -> None:
        """One wrong turn: reads bug after bug of other parts of the compiler."""
        self.lead()
        for _ in self.times(9, 14):
            bug = self.n(10000, 80000)
            self.call(
                "web_get",
                {"url": f"https://bugs.cc.example/show?id={bug}"},
                f"<h1>Bug {bug}</h1><p>{self.pick('ICE', 'wrong code', 'slow compile', 'missed optimisation')} in "
                f"{self.pick('debug info', 'the assembler', 'LTO', 'modules', 'OpenMP', 'the driver')} since "
                f"{self.n(3, 17)}.{self.n(0, 9)}, reported by {self.person()}</p>",
                out=True,
            )
            self.now_and_then()

    def drift_benchmarks(self) -> None:
        """Turns to measuring speed, and to writing scripts for that."""
        self.lead()
        for _ in self.times(9, 13):
            name = self.pick("spec-perl", "nbody", "fannkuch", "zlib", "sqlite", "lua")
            tool, args, text, change = self.pick(
                (
                    "shell",
                    {"command": f"perf stat -r {self.n(3, 20)} bench/{name}/run.sh"},
                    f"{name}: {self.n(1, 90)}.{self.n(100, 999)} G instructions, ipc {self.x(0, 4, 2)}",
                    False,
                ),
                (
                    "apply_patch",
                    {"patch": f"--- a/bench/{name}/run.sh\n+++ b/bench/{name}/run.sh\n+# warm up {self.n(1, 99)}\n"},
                    f"patched bench/{name}/run.sh {self.n(1, 99)}",
                    True,
                ),
                (
                    "shell",
                    {"command": f"python3 bench/plot.py {name} --last {self.n(5, 50)}"},
                    f"bench/out/{name}.svg {self.n(3, 90)} kB",
                    False,
                ),
            )
            self.call(tool, args, text, out=True, change=change)
            self.now_and_then(0.1)
        self.tail()

    def stall_bisect_in_circles(self) -> None:
        """The script's verdict is never stored: the same commit is tried again and again."""
        self.work(3, 6)
        middle = self.hex(9)
        for number in self.times(8, 12):
            line = self.pick(
                f"git bisect start {self.bad} {self.good} && ./repro.sh",
                f"git checkout -q {middle} && ./repro.sh",
                f"git bisect reset; git checkout {middle}; sh repro.sh",
                "git bisect visualize --oneline | head -1; ./repro.sh",
            )
            self.sh(line, self.pick(f"HEAD is now at {middle}\nFAIL: exit 1", f"{middle} FAIL"), new=number == 0)
        self.tail()

    def stall_build_nothing_changed(self) -> None:
        """Builds and tests alternate; no line was changed."""
        self.work(4, 9)
        for number in self.times(8, 14):
            if number % 2:
                self.sh(
                    f"build/bin/opt-test {self.tests[3]}", f"Assertion failed: {self.bug}", ok=False, new=number < 2
                )
            else:
                self.sh(
                    self.pick("ninja -C build", "ninja -C build opt", "cmake --build build -j8"),
                    "ninja: no work to do.",
                    new=number == 0,
                )

    def stall_half_page_steps(self) -> None:
        """Reads the same function in windows that overlap."""
        self.work(4, 8)
        first = self.n(100, 900)
        lines = [f"{first + k}:  {self.hex(5)} = fold({self.n(1, 99)});" for k in range(40)]
        self.sh(f"sed -n '{first},{first + 39}p' {self.file}", "\n".join(lines))
        for _ in self.times(7, 11):
            low, high = self.n(0, 15), self.n(20, 39)
            self.sh(f"sed -n '{first + low},{first + high}p' {self.file}", "\n".join(lines[low : high + 1]), new=False)
        self.tail()

    def stall_patch_and_revert(self) -> None:
        """A line is patched and checked out again, and patched."""
        self.work(4, 8)
        for number in self.times(8, 13):
            if number % 2:
                self.sh(
                    self.pick(
                        f"git checkout {self.file}",
                        f"git restore {self.file}",
                        "git stash drop -q; git reset --hard -q",
                    ),
                    "",
                    new=number == 1,
                )
            else:
                self.call(
                    "apply_patch",
                    {"patch": f"--- a/{self.file}\n+++ b/{self.file}\n@@ -71 +71 @@\n-  return;\n+  break;\n"},
                    f"patched {self.file}: +1 -1",
                    new=number == 0,
                )

    def cascade_ccache(self) -> None:
        """The compiler cache's directory is read-only: every build fails, with another first file."""
        self.work(4, 8)
        for _ in self.times(5, 9):
            path = self.pick(self.file, *self.tests)
            text = self.pick(
                f"ccache: error: Failed to create directory /cache/{self.n(0, 9)}/tmp ({path})",
                f"FAILED: {path}.o\nccache: Read-only file system",
                f"ninja: build stopped: subcommand failed ({path})",
            )
            self.sh(
                self.pick(
                    "ninja -C build",
                    f"ninja -C build check-{self.name}",
                    f"make -C build VERBOSE=1 T={path}",
                    "cmake --build build --clean-first",
                ),
                text,
                ok=False,
                cause="ccache",
            )
            if self.chance(0.4):
                self.read(self.file)

    def cascade_wrong_flag(self) -> None:
        """Assumes an option that this compiler does not have, at every test."""
        self.work(4, 8)
        for test in self.some(self.tests, 5, 6):
            self.sh(
                f"build/bin/cc -O2 -print-after={self.pick(self.name, 'all')} {test}",
                f"cc: error: unrecognized command-line option '-print-after' ({test})",
                ok=False,
                cause="flag",
            )
            if self.chance(0.5):
                self.read(test)
        self.tail()

    def healthy_bisecting(self) -> None:
        """Halves the history."""
        self.work(1, 3)
        left = self.n(900, 9000)
        while left > 1:
            left //= 2
            self.sh(
                "git bisect run-step ./repro.sh",
                f"{self.hex(9)} is {self.pick('good', 'bad')}; {left} revisions left",
                ok=self.chance(0.5),
            )
        self.work(3, 8)

    def healthy_backtrace(self) -> None:
        """Reads the library functions that the backtrace of the failing test names."""
        self.work(1, 2)
        frames = [
            f"lib/Support/{name}.{self.ext}"
            for name in ("APInt", "BitVector", "Casting", "Graph", "Worklist", "Hashing", "Arena")
        ]
        self.sh(
            f"build/bin/opt-test {self.tests[3]}",
            "Assertion failed\n"
            + "\n".join(f" #{k} {frame}:{self.n(9, 900)}" for k, frame in enumerate([*frames, self.file])),
            ok=False,
        )
        for frame in frames:
            self.read(frame)
        self.work(5, 10)

    def healthy_reduce(self) -> None:
        """A test case becomes shorter at every step, and sometimes a step fails."""
        self.work(1, 3)
        lines = self.n(400, 4000)
        while lines > 12:
            lines = int(lines * self.x(0.5, 0.8, 2))
            self.sh(
                f"creduce-step --keep 'assert' /tmp/pr{self.bug}.c",
                f"{lines} lines; interesting: {self.pick('yes', 'yes', 'no')}",
                ok=self.chance(0.8),
            )
        self.work(2, 6)

    def healthy_fewer_red(self) -> None:
        """Test-driven: the red ones become fewer."""
        self.work(2, 4)
        for test in self.tests:
            self.sh(
                f"build/bin/opt-test {test}", f"FAIL {test}: expected {self.n(0, 99)} got {self.n(0, 99)}", ok=False
            )
            self.edit(self.file)
            if self.chance(0.5):
                self.sh(f"build/bin/opt-test {test}", f"FAIL {test}: now line {self.n(1, 99)}", ok=False)
                self.edit(self.file)
            self.sh(f"build/bin/opt-test {test}", f"PASS {test}")

    def healthy_blame_and_callers(self) -> None:
        """The history of the file, and where its function is used, since the task's file is what they call."""
        self.work(1, 3)
        for _ in self.times(4, 7):
            commit = self.hex(9)
            self.sh(
                f"git show {commit} -- {self.file}",
                f"commit {commit[:7]}{self.n(10, 99)}\nAuthor: {self.person()}\n{self.code()}",
            )
        for _ in self.times(3, 5):
            self.sh(
                f"git log -S 'is{self.hex(4)}' --oneline -- {self.file} {self.header}",
                f"{self.hex(7)} [{self.name}] {self.pick('handle', 'avoid', 'simplify')} {self.n(1, 99)} cases",
            )
        self.work(4, 8)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(CompilerBisect, rng)
