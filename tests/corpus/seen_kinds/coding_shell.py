"""Coding in a repository with nothing but a shell command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from random import Random

from tests.corpus.seen_kinds._code1 import CodeDesk
from tests.corpus.seen_kinds._hands1 import Shown
from tests.corpus.seen_kinds._repo1 import Function, Module
from tests.corpus.seen_kinds._world1 import Steps, compose
from tests.corpus.trace import Trace

KIND = "coding in a shell"


class Shell(CodeDesk):
    """One tool that runs a line; the agent spells what it does in many ways."""

    def __init__(self, rng: Random) -> None:
        self.style = rng.choice(("bash", "exec", "terminal"))
        super().__init__(rng, rng.choice(("py", "go", "go", "ts", "ts")))
        self.codes = rng.random() < 0.5
        self.patcher = "git apply"
        self.home = rng.choice(("/work/app", "/srv/checkout", "~/code/app", ""))

    def shown(self, command: str, out: str, code: int = 0) -> Shown:
        """A line with its output, as the style has it."""
        if self.home and self.chance(0.25):
            command = f"cd {self.home} && {command}"
        if self.style == "bash":
            return "bash", {"command": command}, out + (f"\n[exit code {code}]" if code or self.chance(0.3) else "")
        if self.style == "exec":
            took = self.rng.uniform(0.01, 3)
            return "exec", {"cmd": command, "timeout_ms": 60000}, f"exit={code} took={took:.2f}s\n--- stdout\n{out}"
        return "terminal", command, f"$ {command}\n{out}" + (f"\n? {code}" if code else "")

    def hand_read(self, path: str, first: int, last: int, lines: list[str]) -> Shown:
        text = "\n".join(lines)
        whole = first == 1 and last == len(self.repo.files[path])
        if whole and self.chance(0.6):
            command = self.rng.choice((f"cat {path}", f"nl -ba {path}", f"cat -A {path} | sed 's/\\$$//'"))
            if command.startswith("nl"):
                text = "\n".join(f"{first + i:>6}\t{t}" for i, t in enumerate(lines))
        elif first == 1 and self.chance(0.5):
            command = f"head -n {last} {path}"
        else:
            command = self.rng.choice(
                (
                    f"sed -n '{first},{last}p' {path}",
                    f"awk 'NR>={first} && NR<={last}' {path}",
                    f"tail -n +{first} {path} | head -{last - first + 1}",
                )
            )
        return self.shown(command, text)

    def hand_find(self, pattern: str, under: str, hits: list[tuple[str, int, str]]) -> Shown:
        where = under or "."
        quoted = shlex.quote(pattern)
        command = self.rng.choice(
            (
                f"grep -rn {quoted} {where}",
                f"rg -n {quoted} {where}",
                f"git grep -n {quoted} -- {where}",
                f"find {where} -type f | xargs grep -n {quoted}",
            )
        )
        return self.shown(command, "\n".join(f"{p}:{n}:{t}" for p, n, t in hits[:35]), 0 if hits else 1)

    def hand_edit(self, path: str, number: int, old: str, new: str) -> Shown:
        way = self.rng.randrange(3)
        if way == 0:
            change = f"{number}c\\{new}"
            return self.shown(f"sed -i {shlex.quote(change)} {path}", "")
        if way == 1:
            script = f"from pathlib import Path as P; p=P({path!r}); "
            script += f"p.write_text(p.read_text().replace({old!r}, {new!r}, 1))"
            return self.shown(f"python3 -c {shlex.quote(script)}", "")
        patch = f"--- a/{path}\n+++ b/{path}\n@@ -{number} +{number} @@\n-{old}\n+{new}\n"
        return self.shown(f"git apply --unidiff-zero - <<'EOF'\n{patch}EOF", "")

    def hand_miss(self, path: str, old: str, new: str) -> Shown:
        patch = f"--- a/{path}\n+++ b/{path}\n@@ -{self.rng.randint(3, 30)} @@\n-{old}\n+{new}\n"
        out = self.rng.choice(
            (f"error: patch failed: {path}\nerror: {path}: patch does not apply", f"{path}: no such hunk")
        )
        return self.shown(f"git apply - <<'EOF'\n{patch}EOF", out, 1)

    def hand_tests(self, module: Module | None, failing: list[tuple[Module, Function, int]], ran: int) -> Shown:
        seconds, lang = self.rng.uniform(0.1, 7), self.repo.lang
        test = module.test if module else ""
        code = 1 if failing else 0
        if lang == "py":
            flags = self.rng.choice(("", "-q", "-x -q", "--tb=short", "-vv", "-p no:cacheprovider"))
            told = [f"FAILED {m.test}::{self.repo.test_name(f)} - assert {g} == {f.wanted}" for m, f, g in failing]
            out = "\n".join([*told, f"{len(told)} failed, {ran - len(told)} passed in {seconds:.2f}s"])
            return self.shown(f"python -m pytest {flags} {test}".replace("  ", " ").strip(), out, code)
        if lang == "go":
            where = f"./{test.rsplit('/', 1)[0]}/..." if test else "./..."
            told = [
                f"--- FAIL: {self.repo.test_name(f)} ({seconds / 9:.2f}s)\n    got {g}, want {f.wanted}"
                for _, f, g in failing
            ]
            out = "\n".join([*told, f"{'FAIL' if told else 'ok'}\texample.test/app\t{seconds:.3f}s"])
            return self.shown(f"go test {self.rng.choice(('', '-count=1 ', '-v ', '-short '))}{where}", out, code)
        told = [f"  ✕ {self.repo.test_name(f)}\n    Expected: {f.wanted}\n    Received: {g}" for _, f, g in failing]
        out = "\n".join([*told, f"Tests: {len(told)} failed, {ran} total\nTime: {seconds:.3f} s"])
        runner = self.rng.choice(("npm test --", "npx spec", "npm run -s spec --"))
        return self.shown(f"{runner} {test} {self.rng.choice(('', '--no-color', '-i'))}".strip(), out, code)

    def hand_list(self, folder: str, names: list[str]) -> Shown:
        where = folder or "."
        command = self.rng.choice(
            (f"ls -R {where}", f"find {where} -type f | sort", "git ls-files", f"tree -fi {where}")
        )
        return self.shown(command, "\n".join(names))

    def hand_line(self, command: str, out: str, code: int = 0) -> Shown:
        return self.shown(command, out.rstrip("\n"), code)

    # --- what happens only in a shell ---

    def cascade_disk_full(self) -> Steps:
        """Nothing can be written under /tmp; the agent builds and dumps there all the same."""
        name = self.module.name
        lines = (
            f"git diff > /tmp/{name}.diff",
            f"cp {self.module.path} /tmp/{name}.bak",
            f"make cover OUT=/tmp/cover-{name}",
            f"tar czf /tmp/{name}.tgz {self.module.path.rsplit('/', 1)[0]}",
            f"python3 scripts/dump.py --to /tmp/{name}.json",
            "mktemp -d",
        )
        for line in self.rng.sample(lines, self.rng.randint(4, 6)):
            target = next((w for w in line.split() if "/tmp" in w), "/tmp/x").removeprefix("OUT=")
            out = self.pick(
                (f"write error: {target}: No space left on device", f"{target}: No space left on device (28)")
            )
            self.line(line, out, 1, shows=[("full", line)], cause="disk", ok=not self.codes)
            yield

    def stall_processes(self) -> Steps:
        """A test server hangs; the agent lists it again and again in other words."""
        port = 8000 + self.rng.randrange(900)
        pid = self.rng.randint(900, 30000)
        self.line(f"make serve PORT={port} &", f"[1] {pid}", sets=("server", port))
        yield
        views = (
            ("ps aux | grep '[s]erve'", f"app {pid} 0.0 0.1 node serve {port}"),
            (f"lsof -i :{port}", f"node {pid} app TCP *:{port} (LISTEN)"),
            ("pgrep -fl serve", f"{pid} node serve {port}"),
            ("jobs -l", f"[1]+ {pid} Running make serve PORT={port} &"),
            (f"ss -ltnp | grep {port}", f"LISTEN 0 511 *:{port} users:((node,pid={pid}))"),
            (f"curl -sm3 localhost:{port}/health", "curl: (28) timed out, 0 bytes received"),
        )
        for command, out in self.rng.sample(views, 4):
            self.line(command, out, shows=[command])
            yield
        for _ in range(self.rng.randint(8, 14)):
            command, out = self.pick(views[:5])
            flag = self.pick((" | head -3", " 2>&1", "", "; date +%T"))
            known = command in self.seen
            self.line(
                command + flag,
                out + (f"\n10:{self.rng.randint(10, 59)}:{self.rng.randint(10, 59)}" if "date" in flag else ""),
                shows=[command] if not known else [],
            )
            yield


def trajectories(rng: Random) -> Iterator[Trace]:
    """Runs of a coding agent that has a shell."""
    return compose(KIND, Shell, rng)
