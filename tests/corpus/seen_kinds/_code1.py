"""An agent that repairs a repository: what it does, well and badly, however its tools look.

A subclass brings the hands: how a read, a search, an edit, a test run is spelled and how its result looks.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.corpus.seen_kinds._hands1 import Hands
from tests.corpus.seen_kinds._repo1 import Function, Module, Repo
from tests.corpus.seen_kinds._world1 import Steps


class CodeDesk(Hands):
    """A coding run."""

    def __init__(self, rng: Random, lang: str) -> None:
        super().__init__(rng)
        self.repo = Repo(rng, lang)
        self.module = rng.choice(self.repo.modules)
        self.kind = rng.choice(("fix", "fix", "strict", "strict", "part", "rename"))
        siblings = [m for m in self.repo.modules if m.area == self.module.area]
        self.targets = [self.module] if self.kind != "part" else siblings
        self.inside = {a for m in self.targets for a in (m.path, m.test, *(o.path for o in m.imports))}
        for module in self.targets:
            for function in rng.sample(module.functions, rng.randint(1, min(3, len(module.functions)))):
                self.repo.spoil(module, function)
        self.renamed = rng.choice(self.module.functions)
        self.task = self._task()
        self.edits = 0
        self.dirty: set[str] = set()
        self.patcher = ""  # what an edit has to be made with to show that patches fit
        self.codes = False  # a red test and a search without hits are reported as calls that failed
        self.job = 3000 + rng.randrange(6000)

    def _task(self) -> str:
        module, rng = self.module, self.rng
        folder = module.path.rsplit("/", 1)[0]
        if self.kind == "fix":
            return rng.choice(
                (
                    f"The tests in {module.test} fail since yesterday's merge. Repair {module.path} until they pass.",
                    f"{module.path} returns wrong numbers. {module.test} shows which. Fix it and commit.",
                )
            )
        if self.kind == "strict":
            return (
                f"Give every function in {module.path} an optional argument `strict` that is off by default, and "
                f"repair what {module.test} finds. Commit when it is green."
            )
        if self.kind == "part":
            return f"Look after the {module.area} part ({folder}/): all its tests have to pass. Commit each module."
        old = self.repo.spelled(self.renamed.name)
        new = self.repo.spelled(f"{self.renamed.name}_of")
        return (
            f"Rename `{old}` (in {module.path}) to `{new}` in the whole repository, with tests and callers, and see "
            f"that {module.test} is green."
        )

    def is_inside(self, address: str) -> bool:
        return self.kind == "rename" or address in self.inside

    # --- acts ---

    def read(self, path: str, first: int = 1, last: int | None = None) -> None:
        lines = self.repo.files[path]
        last = min(last or len(lines), len(lines))
        part = lines[first - 1 : last]
        tool, given, out = self.hand_read(path, first, last, part)
        self.say(tool, given, out, shows=[("line", path, t.strip()) for t in part if t.strip()], on=[path])

    def find(self, pattern: str, under: str = "") -> None:
        hits = self.repo.grep(pattern, under)
        tool, given, out = self.hand_find(pattern, under, hits)
        facts: list[tuple[str, ...]] = [("hits", pattern, path) for path, _, _ in hits]
        if not any(("asked", pattern, under[:n]) in self.seen for n in range(len(under) + 1)):
            facts.append(("asked", pattern, under))
        on = [under] if under.endswith((".py", ".go", ".ts")) else []
        self.say(tool, given, out, shows=facts, on=on, ok=bool(hits) or not self.codes)

    def edit(self, path: str, index: int, new: str, void: bool = False) -> None:
        lines = self.repo.files[path]
        old, lines[index] = lines[index], new
        self.states.setdefault(path, set()).add((index, old))
        tool, given, out = self.hand_edit(path, index + 1, old, new)
        self.seen.add(("line", path, new.strip()))
        self.edits += 1
        self.dirty.add(path)
        clears = [f"edit {path}"] if self.patcher in str(given) else []
        self.say(
            tool, given, out, sets=(path, (index, new)), void=void, on=[path], writes=True, clears=clears
        )

    def tests(self, module: Module | None, gap: float | None = None) -> None:
        among = [module] if module else self.repo.modules
        failing = [(m, f, got) for m in among for f, got in self.repo.failing(m)]
        tool, given, out = self.hand_tests(module, failing, sum(len(m.functions) for m in among))
        answer = tuple((f.name, got) for _, f, got in failing)
        facts = [("failing", m.path, f.name, got) for m, f, got in failing]
        where = [module.test] if module else []
        ok = not answer or not self.codes
        self.say(tool, given, out, shows=facts, check=(f"tests {where}", answer), on=where, gap=gap, ok=ok)

    def look(self, folder: str) -> None:
        names = sorted(p[len(folder) :].lstrip("/") for p in self.repo.files if p.startswith(folder))
        tool, given, out = self.hand_list(folder, names)
        known = any(("list", folder[:n]) in self.seen for n in range(len(folder) + 1))
        self.say(tool, given, out, shows=[] if known else [("list", folder)])

    def line(self, command: str, out: str, code: int = 0, **notes: Any) -> None:
        tool, given, shown = self.hand_line(command, out, code)
        self.say(tool, given, shown, **notes)

    def status(self) -> None:
        out = "".join(f" M {path}\n" for path in sorted(self.dirty)) or "nothing to commit, working tree clean\n"
        self.line("git status --short", out, shows=[("status", *sorted(self.dirty))])

    def commit(self, module: Module) -> None:
        if self.dirty:
            self.dirty.clear()
            self.line(f"git commit -qam 'Repair {module.name}'", "", sets=(("commit", module.path), self.edits))

    # --- work ---

    def work(self) -> Steps:
        repo = self.repo
        if self.chance(0.6):
            self.look("")
            yield
        if self.chance(0.3):
            self.status()
            yield
        if self.kind == "rename":
            yield from self._rename()
        for module in self.targets:
            yield from self._read_module(module)
            self.tests(module)
            yield
            for function, _ in repo.failing(module):
                yield from self._repair(module, function)
            if self.kind == "strict":
                yield from self._strict(module)
            if self.dirty and self.chance(0.7):
                self.commit(module)
                yield
        self.tests(None)
        yield
        yield from self._extras()

    def _read_module(self, module: Module) -> Steps:
        size, step = len(self.repo.files[module.path]), self.rng.choice((15, 20, 30, 60))
        for first in range(1, size + 1, step):
            self.read(module.path, first, first + step - 1)
            yield
        self.read(module.test)
        yield
        for other in module.imports:
            if self.chance(0.6):
                self.read(other.path, 1, self.rng.choice((20, 40)))
                yield

    def _repair(self, module: Module, function: Function) -> Steps:
        if self.chance(0.4):
            self.find(self.repo.spelled(function.name))
            yield
        path = module.path
        index = self._made(module, function)
        if self.chance(0.35):
            wrong = self.repo.formula(function, plus=function.plus + self.rng.choice((2, 5, -2, 20)) or 3)
            self.edit(path, index, wrong)
            yield
            self.tests(module)
            yield
        self.edit(path, index, self.repo.formula(function))
        yield
        self.tests(module)
        yield

    def _made(self, module: Module, function: Function) -> int:
        lines = self.repo.files[module.path]
        head = next(
            i for i, t in enumerate(lines) if self.repo.spelled(function.name) in t and "(" in t and "result" not in t
        )
        return next(i for i in range(head, len(lines)) if "result" in lines[i] and "*" in lines[i])

    def _strict(self, module: Module) -> Steps:
        for function in module.functions:
            index = self.repo.files[module.path].index(self.repo.signature(function))
            self.edit(module.path, index, self.repo.signature(function, strict=True))
            yield
            if self.chance(0.5):
                self.tests(module)
                yield

    def _rename(self) -> Steps:
        old, new = self.repo.spelled(self.renamed.name), self.repo.spelled(f"{self.renamed.name}_of")
        self.find(old)
        yield
        for path, number, text in self.repo.grep(old):
            if self.chance(0.4):
                self.read(path, max(1, number - 4), number + 4)
                yield
            self.edit(path, number - 1, text.replace(old, new))
            yield
        self.find(old + "(")
        yield
        self.renamed.name += "_of"

    def _extras(self) -> Steps:
        """What is left after the last test: neighbours of the change, each looked at once."""
        for other in self.module.imports:
            for function in other.functions:
                if self.chance(0.5):
                    self.find(self.repo.spelled(function.name))
                    yield
            self.read(other.path)
            yield
        self.line(
            "git log --oneline -3", f"{self.hexed(7)} Repair {self.module.name}\n{self.hexed(7)} Merge", shows=["log"]
        )
        yield

    # --- stalls ---

    def stall_read_again(self) -> Steps:
        module = self.module
        self.read(module.path)
        yield
        self.find(f"{self.repo.spelled(module.functions[0].name)}")
        yield
        size = len(self.repo.files[module.path])
        for _ in range(self.rng.randint(7, 17)):
            if self.chance(0.25):
                function = self.pick(module.functions)
                self.find(self.repo.spelled(function.name), module.path)
            elif self.chance(0.2):
                self.status()
            else:
                first = self.rng.randint(1, size - 8)
                self.read(module.path, first, first + self.rng.randint(7, size))
            yield

    def stall_tests_without_change(self) -> Steps:
        if not self.repo.failing(self.module):
            self.repo.spoil(self.module, self.module.functions[-1])
            self.read(self.module.path)
            yield
        self.tests(self.module)
        yield
        for _ in range(self.rng.randint(8, 15)):
            if self.chance(0.3):
                self.read(self.module.test, self.rng.randint(1, 4))
            else:
                self.tests(self.module, self.rng.uniform(4, 18))
            yield

    def stall_flips(self) -> Steps:
        function = self.pick(self.module.functions)
        path, index = self.module.path, self._made(self.module, function)
        self.read(path, max(1, index - 3), index + 5)
        yield
        tried = [function.plus + n for n in (1, 9)]
        for plus in tried:
            self.edit(path, index, self.repo.formula(function, plus=plus))
            self.tests(self.module)
            yield
        for round_ in range(self.rng.randint(5, 10)):
            plus = tried[round_ % 2]
            self.edit(path, index, self.repo.formula(function, plus=plus), void=True)
            yield
            if self.chance(0.6):
                self.read(path, max(1, index - self.rng.randint(0, 3)), index + self.rng.randint(2, 5))
            else:
                self.status()
            yield

    def stall_ci_waiting(self) -> Steps:
        done = self.rng.randint(1, 3)
        for look in range(self.rng.randint(18, 26)):
            age = f"{int(self.now // 60)}m{int(self.now % 60):02d}s"
            out = f"run {self.job}  lint: passed   unit: running ({done} of 4 shards done)   age {age}\n"
            self.line(f"ci show {self.job}", out, wait=("ci", done), gap=self.rng.uniform(22, 75) if look else None)
            yield

    def stall_narrower_searches(self) -> Steps:
        gone = self.pick(("legacyTotals", "old_totals", "applyDiscount", "as_legacy"))
        self.find(gone)
        yield
        tops = sorted(
            {p.split("/")[0] for p in self.repo.files} | {"/".join(p.split("/")[:2]) for p in self.repo.files}
        )
        self.rng.shuffle(tops)
        for top in tops[: self.rng.randint(7, 12)]:
            self.find(gone, top)
            yield

    # --- cascades ---

    def cascade_text_not_found(self) -> Steps:
        path = self.module.path
        for _ in range(self.rng.randint(4, 8)):
            yield from self._miss(path)
            if self.chance(0.5):
                first = self.rng.randint(1, 20)
                self.read(path, first, first + self.rng.randint(6, 25))
                yield

    def _miss(self, path: str) -> Steps:
        text = self.pick([t for t in self.repo.files[path] if len(t.strip()) > 12])
        broken = self.pick((text.replace("  ", "\t"), text.strip() + " ", text.replace(" ", "  "), "    " + text))
        tool, given, out = self.hand_miss(path, broken, broken + "  # checked")
        cause = f"edit {path}"
        self.say(tool, given, out, shows=[("missed", path, text)], cause=cause, on=[path], ok=False)
        yield

    def cascade_token_expired(self) -> Steps:
        lines = (
            "git push origin HEAD",
            "git fetch origin main",
            "git push -u origin fix-branch",
            f"ci start --branch fix-{self.job}",
            "git ls-remote origin",
            "git pull --rebase origin main",
            "git push --force-with-lease origin HEAD",
        )
        for command in self.rng.sample(lines, self.rng.randint(4, 7)):
            out = self.pick(
                (
                    "remote: HTTP 401: the access token has expired\nfatal: Authentication failed\n",
                    f"error: token expired (request {self.hexed(8)})\n",
                )
            )
            self.line(command, out, 128, shows=[("denied", command)], cause="token", ok=self.chance(0.3))
            yield

    def cascade_no_index(self) -> Steps:
        names = ["rangekit", "tablefmt", "propcheck", "fasthash", "linecov", "typegen", "snapdiff"]
        for name in self.rng.sample(names, self.rng.randint(4, 7)):
            command = self.pick((f"pkg install {name}", f"pkg add {name}@latest", f"pkg install --retry 1 {name}"))
            seconds = self.rng.randint(9, 31)
            out = f"pkg: could not reach index.internal:443 (timed out after {seconds} s), {name} not installed\n"
            self.line(command, out, 1, shows=[("unreachable", name)], cause="index", ok=False)
            yield

    def cascade_read_only(self) -> Steps:
        for name in self.rng.sample(
            ["schema", "fixtures", "golden", "index", "table", "cases"], self.rng.randint(4, 6)
        ):
            path = f"{self.module.path.rsplit('/', 1)[0]}/generated/{name}.json"
            command = self.pick((f"make {name}", f"gen --out {path}", f"gen -o {path} --from {self.module.path}"))
            out = f"gen: open {path}: read-only file system\n"
            self.line(command, out, self.rng.randint(1, 2), shows=[("ro", name)], cause="ro", ok=self.chance(0.4))
            yield

    # --- drift ---

    def _retouch(self, path: str, index: int) -> None:
        mark = "#" if self.repo.lang == "py" else "//"
        words = self.pick(("see the table", "upper end", "rounded down", "was off by one once", "keep in step"))
        self.edit(path, index, f"{self.repo.files[path][index].rstrip()}  {mark} {words} ({self.edits + 1})")

    def _strangers(self) -> list[Module]:
        found = [m for m in self.repo.modules if m.path not in self.inside]
        self.rng.shuffle(found)
        return found

    def peek(self, number: int) -> None:
        found = sorted((m for m in self.repo.modules if m.path not in self.inside), key=lambda m: m.path[::-1])
        self.read(found[number % len(found)].path, 1, self.rng.choice((10, 25, 60)))

    def drift_polishes_neighbours(self) -> Steps:
        for module in self._strangers()[:3]:
            if self.chance(0.6):
                self.read(module.path)
                yield
            for function in module.functions[: self.rng.randint(1, 3)]:
                if self.chance(0.35):
                    own = self.pick(self.targets)
                    self.read(own.path, self.rng.randint(1, 12))
                    yield
                self._retouch(module.path, self._made(module, function))
                yield

    def drift_reads_elsewhere(self) -> Steps:
        for module in self._strangers()[: self.rng.randint(5, 8)]:
            self.read(module.path, 1, self.rng.choice((12, 25, 60)))
            yield
            if self.chance(0.4):
                self.tests(module)
                yield

    def drift_mends_other_tests(self) -> Steps:
        for module in self._strangers()[:4]:
            function = self.pick(module.functions)
            self._retouch(module.test, self.repo.at(module.test, f"{self.repo.spelled(function.name)}("))
            yield
            self.tests(module)
            yield
            if self.chance(0.7):
                self.tests(self.module)
                yield

    # --- look-alikes ---

    def alike_ci_moves(self) -> Steps:
        done = 0
        for _ in range(self.rng.randint(6, 14)):
            done += self.rng.choice((0, 1, 3))
            self.line(
                f"ci show {self.job}",
                f"run {self.job}: {done} of 60 suites\n",
                wait=("ci", done),
                gap=self.rng.uniform(21, 40),
            )
            yield

    def alike_ci_patient(self) -> Steps:
        for look in range(self.rng.randint(4, 8)):
            self.line(
                f"ci show {self.job}", "queued\n", wait=("ci", "queued"), gap=self.rng.uniform(30, 95) if look else None
            )
            yield
        self.line(f"ci show {self.job}", f"passed in {self.rng.randint(40, 300)} s\n", wait=("ci", "passed"), gap=40)
        yield

    def alike_two_misses(self) -> Steps:
        path = self.module.path
        for _ in range(self.rng.randint(2, 3)):
            yield from self._miss(path)
        self.read(path)
        yield
        self._retouch(path, self._made(self.module, self.pick(self.module.functions)))
        yield

    def alike_waits_longer(self) -> Steps:
        gap = self.rng.uniform(3, 6)
        for _ in range(self.rng.randint(3, 5)):
            out = f"remote: too many requests, try later ({self.hexed(6)})\n"
            self.line("git push origin HEAD", out, 1, shows=["busy"], cause="busy", ok=False, gap=gap)
            gap *= self.rng.uniform(1.8, 2.6)
            yield
        self.line(
            "git push origin HEAD",
            "To origin\n   HEAD -> main\n",
            clears=["busy", "token"],
            sets=("pushed", self.edits),
            gap=gap,
        )
        yield

    def alike_three_obstacles(self) -> Steps:
        known = (
            ("make lint", "make: lint: no such target\n", "lint"),
            ("git stash pop", "No stash entries found.\n", "stash"),
            ("pkg install tablefmt", "pkg: tablefmt needs a lock file\n", "lock"),
            ("git checkout fix-it", "error: pathspec 'fix-it' did not match any branch\n", "branch"),
        )
        for command, out, cause in self.rng.sample(known, 3):
            self.line(command, out, 2, shows=[command], cause=cause, ok=False)
            yield

    def alike_status_now_and_then(self) -> Steps:
        for _ in range(self.rng.randint(3, 4)):
            self.status()
            yield
            for _ in range(2):
                next(self.main, None)

    def alike_names_that_are_free(self) -> Steps:
        for name in self.rng.sample(["clampTo", "asWhole", "roundHalf", "floorOf", "splitAt", "nearest", "capped"], 5):
            self.find(name)
            yield

    def alike_looks_at_imports(self) -> Steps:
        for other in [o for m in self.targets for o in m.imports]:
            size = len(self.repo.files[other.path])
            step = size // self.rng.randint(3, 5)
            for first in range(1, size, step):
                self.read(other.path, first, first + step)
                yield
