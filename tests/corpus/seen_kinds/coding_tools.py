"""Coding in a repository with structured file tools, a test runner and a few commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from tests.corpus.seen_kinds._code1 import CodeDesk
from tests.corpus.seen_kinds._hands1 import Shown
from tests.corpus.seen_kinds._repo1 import Function, Module
from tests.corpus.seen_kinds._world1 import compose
from tests.corpus.trace import Trace

KIND = "coding with file tools"


class Tools(CodeDesk):
    """Three families of tools; a run has one of them."""

    def __init__(self, rng: Random) -> None:
        self.family = rng.choice(("plain", "json", "uri"))
        super().__init__(rng, rng.choice(("py", "py", "ts", "go")))

    def hand_read(self, path: str, first: int, last: int, lines: list[str]) -> Shown:
        numbered = "\n".join(f"{first + i:>4}\t{text}" for i, text in enumerate(lines))
        if self.family == "plain":
            given = (
                {"path": path}
                if len(lines) == len(self.repo.files[path]) and self.chance(0.5)
                else {"path": path, "start_line": first, "end_line": last}
            )
            return "read_file", given, numbered
        if self.family == "json":
            out = json.dumps(
                {"file": path, "from": first, "to": last, "text": "\n".join(lines), "ms": self.rng.randint(2, 40)}
            )
            return "view", {"file": path, "lines": f"{first}-{last}"}, out
        return "fs.read", {"uri": f"repo://{path}", "offset": first - 1, "limit": len(lines)}, "\n".join(lines)

    def hand_find(self, pattern: str, under: str, hits: list[tuple[str, int, str]]) -> Shown:
        if self.family == "json":
            rows = [{"file": p, "line": n, "text": t.strip()} for p, n, t in hits[:25]]
            out = json.dumps({"matches": rows, "total": len(hits), "took_ms": self.rng.randint(3, 90)})
            return "search", {"query": pattern, "glob": f"{under or '.'}/**"}, out
        out = "\n".join(f"{p}:{n}: {t.strip()}" for p, n, t in hits[:30]) or f"No matches for {pattern!r}."
        if self.family == "plain":
            return "grep", {"pattern": pattern, "path": under or "."}, out
        return "fs.search", {"needle": pattern, "root": f"repo://{under}"}, out

    def hand_edit(self, path: str, number: int, old: str, new: str) -> Shown:
        if self.family == "json":
            out = json.dumps({"ok": True, "file": path, "replaced": 1, "rev": self.hexed(8)})
            return "replace", {"file": path, "old": old, "new": new}, out
        if self.family == "plain":
            return (
                "edit_file",
                {"path": path, "old_str": old, "new_str": new},
                f"Edited {path} (1 replacement, line {number}).",
            )
        return "fs.patch", {"uri": f"repo://{path}", "line": number, "text": new}, f"patched {path}@{self.hexed(6)}"

    def hand_miss(self, path: str, old: str, new: str) -> Shown:
        if self.family == "json":
            out = json.dumps({"ok": False, "error": {"code": "NO_MATCH", "file": path, "id": self.hexed(8)}})
            return "replace", {"file": path, "old": old, "new": new}, out
        if self.family == "plain":
            return (
                "edit_file",
                {"path": path, "old_str": old, "new_str": new},
                f"Error: old_str was not found in {path}.",
            )
        return (
            "fs.patch",
            {"uri": f"repo://{path}", "before": old, "text": new},
            f"conflict: context does not match in {path}",
        )

    def hand_tests(self, module: Module | None, failing: list[tuple[Module, Function, int]], ran: int) -> Shown:
        where = module.test if module else "all"
        seconds = self.rng.uniform(0.2, 9)
        if self.family == "json":
            rows = [
                {"test": self.repo.test_name(f), "file": m.test, "expected": f.wanted, "received": g}
                for m, f, g in failing
            ]
            out = json.dumps({"passed": ran - len(rows), "failed": rows, "seconds": round(seconds, 2)})
            given = {"file": where, "bail": self.chance(0.2), "workers": self.rng.choice((1, 2, 4))}
            return "test", given, out
        told = [f"FAILED {m.test}::{self.repo.test_name(f)} - expected {f.wanted}, got {g}" for m, f, g in failing]
        if self.chance(0.3):
            told.reverse()
        out = "\n".join([*told, f"{len(told)} failed, {ran - len(told)} passed in {seconds:.2f}s"])
        if self.family == "plain":
            return "run_tests", {"target": where, **({"verbose": True} if self.chance(0.3) else {})}, out
        return "tests.run", {"selector": where, "timeout": self.rng.choice((60, 120, 300))}, out

    def hand_list(self, folder: str, names: list[str]) -> Shown:
        if self.family == "json":
            return "tree", {"file": folder or "."}, json.dumps({"entries": names, "count": len(names)})
        tool = "list_dir" if self.family == "plain" else "fs.list"
        return tool, {"path" if self.family == "plain" else "uri": folder or "."}, "\n".join(names)

    def hand_line(self, command: str, out: str, code: int = 0) -> Shown:
        if self.family == "json":
            return (
                "exec",
                {"argv": command.split()},
                json.dumps({"exit_code": code, "output": out, "ms": self.rng.randint(20, 900)}),
            )
        if self.family == "plain":
            return "run_command", {"command": command}, f"{out}[exit {code}]"
        return "proc.run", {"line": command}, out if not code else f"{out}(status {code})"


def trajectories(rng: Random) -> Iterator[Trace]:
    """Runs of a coding agent with file tools."""
    return compose(KIND, Tools, rng)
