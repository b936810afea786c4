"""A Python web service, by a coding assistant with Read, Edit, Grep, Glob and Bash."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tests.corpus.seen_more.trees import TreeScene
from tests.corpus.seen_more.world import Args, Place, Shape, stories
from tests.corpus.trace import Trace

KIND = "ticket_service"


class Service(TreeScene):
    """Modules of a service that sells tickets for concerts."""

    parts: ClassVar[dict[str, list[str]]] = {
        "seating": ["plan", "hold", "prices", "blocks"],
        "orders": ["cart", "pay", "refund", "invoice", "states"],
        "scanner": ["codes", "gate", "offline", "sync"],
        "mailer": ["templates", "queue", "bounces"],
        "reports": ["daily", "promoter", "export", "taxes"],
    }
    shared: ClassVar[dict[str, list[str]]] = {"core": ["db", "clock", "errors", "settings", "events"]}
    strays = (
        "README.md",
        "CHANGELOG.md",
        "scripts/seed_demo.py",
        "docs/deploy.md",
        "helm/values.yaml",
        ".github/CODEOWNERS",
    )
    words = (
        "expiry",
        "holder",
        "block",
        "currency",
        "quota",
        "locale",
        "barcode",
        "venue",
        "fee",
        "slot",
        "coupon",
        "batch",
    )

    def path(self, part: str, stem: str) -> str:
        """Modules by package."""
        return f"/app/tickets/{part}/{stem}.py"

    def test_of(self, path: str) -> str:
        """Tests mirror the packages."""
        if not path.startswith("/app/tickets/"):
            return ""
        return path.replace("/app/tickets/", "/app/tests/").rsplit("/", 1)[0] + "/test_" + path.rsplit("/", 1)[-1]

    def link_line(self, path: str, link: str) -> str:
        """An import."""
        package, module = link.removeprefix("/app/").removesuffix(".py").replace("/", ".").rsplit(".", 1)
        return f"from {package} import {module}"

    def body(self, path: str) -> list[str]:
        """Functions with annotations."""
        rng = self.rng
        lines = ["", ""]
        for _ in range(rng.randint(3, 10)):
            word, other = rng.sample(self.words, 2)
            lines += [
                f"def {rng.choice(['get', 'make', 'sum'])}_{word}({other}: int) -> int:",
                f"    return {other} * {rng.randint(0, 99)}",
                "",
            ]
        return lines

    def new_line(self, path: str, word: str) -> str:
        """A statement."""
        return f"    {word} = max({self.rng.choice(self.words)}, {self.number})"

    def say_task(self) -> str:
        """The task in its form."""
        rng, name = self.rng, self.target.rsplit("/", 1)[-1]
        module = self.target.removeprefix("/app/").removesuffix(".py").replace("/", ".")
        return {
            "path": f"Refactor {self.target.removeprefix('/app/')} so that it has no global state.",
            "file": f"`{module}` swallows exceptions. It should raise the right ones; write tests for that.",
            "glob": f"Add type annotations in tickets/{self.part}/*.py until mypy is quiet.",
            "folder": f"The package tickets/{self.part} is to be moved to async.",
            "words": rng.choice(
                [
                    f"Users report wrong amounts in {self.part}. Reproduce with a test, then fix the bug.",
                    f"{self.part}: handle time zones properly",
                    f"As agreed in the planning: the {self.part} component gets feature flags.",
                ]
            ),
            "red": f"CI: `pytest tests/{self.part}` red on main, see the output, repair.",
            "line": f"Traceback ends in tickets/{self.part}/{name}, line {rng.randint(8, 30)}: TypeError: None",
            "everywhere": "Replace `print(` by logging calls across the repository.",
            "nothing": "Please improve test coverage a bit.",
        }[self.form]

    def do_read(self, path: str, fresh: bool | None, place: Place) -> None:
        """Read a file or a part of it."""
        lines, rng = self.text[path], self.rng
        args: Args = {"file_path": path}
        offset = 0
        if fresh is False and rng.random() < 0.7:
            offset = rng.randint(0, 4)
            args |= {"offset": offset, "limit": rng.randint(20, 200)}
        shown = "\n".join(f"{n:>6}\t{line}" for n, line in enumerate(lines[offset:], offset + 1))
        self.run.call("Read", args, shown, fresh=fresh is None or fresh, place=place)

    def do_edit(self, path: str, before: str, after: str, fresh: bool, place: Place) -> None:
        """Replace a string in a file."""
        args = {"file_path": path, "old_string": before, "new_string": after}
        tool = "Edit" if before else "Write"
        if not before:
            args = {"file_path": path if path.startswith("/") else f"/app/{path}", "content": after}
        said = f"The file {path} has been updated." if self.rng.random() < 0.6 else f"Applied 1 edit to {path}"
        self.run.call(tool, args, said, fresh=fresh, change=True, place=place)

    def do_seek(self, query: str, hits: list[str], fresh: bool, place: Place) -> None:
        """Search."""
        where = "/app" if self.form in ("everywhere", "nothing") else f"/app/tickets/{self.part}"
        args = {"pattern": query, "path": where, "output_mode": "content"}
        self.run.call("Grep", args, "\n".join(hits) or "No matches found", fresh=fresh, place=place)

    def do_check(self, red: list[str], fresh: bool, place: Place) -> None:
        """Run the tests of the part."""
        where = self.named_by_check or f"/app/tests/{self.part}"
        lines = [f"FAILED {where}::test_{word} - assert {len(word)} == 0" for word in red]
        lines += [f"{len(red)} failed, {40 - len(red)} passed in {self.run.millis() / 100:.2f}s"]
        flags = self.rng.choice(["-q", "-x -q", "--tb=short", "-q -p no:randomly"])
        args = {"command": f"cd /app && pytest tests/{self.part} {flags}", "description": "Run tests"}
        self.run.call("Bash", args, "\n".join(lines), fresh=fresh, place=place)

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def bash(command: str, said: str, cause: str) -> None:
            self.run.call("Bash", {"command": command}, said, ok=rng.random() < 0.5, cause=cause)

        def the_database_is_not_there() -> None:
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                command = rng.choice(
                    [
                        "flask db upgrade",
                        "python -m tickets.core.db --check",
                        f"psql -c 'select {self.number}'",
                        "make seed",
                    ]
                )
                said = rng.choice(
                    [
                        "OperationalError: could not connect to server: Connection refused (127.0.0.1:5432)",
                        "psql: error: connection to server on socket failed: No such file or directory",
                        "E   ConnectionRefusedError: [Errno 111]\n!!! Interrupted: 1 error during collection !!!",
                    ]
                )
                bash(f"{command} # {self.number}", said, "database")
                self.quiet()

        def no_way_to_the_package_index() -> None:
            for name in rng.sample(
                ["ruff", "freezegun", "httpx", "respx", "hypothesis", "factory-boy", "time-machine"], rng.randint(4, 6)
            ):
                said = rng.choice(
                    [
                        f"Retrying (total=0): Name or service not known\nERROR: No distribution for {name}",
                        f"error: Failed to fetch: `https://pypi.internal/simple/{name}/`\n  Caused by: dns error",
                    ]
                )
                bash(rng.choice([f"pip install {name}", f"uv add {name}", f"poetry add -D {name}"]), said, "index")
                if rng.random() < 0.8:
                    self.quiet()

        def edits_are_refused_in_plan_mode() -> None:
            for _ in range(rng.randint(4, 7)):
                path = rng.choice(self.core)
                self.number += 1
                args = {"file_path": path, "old_string": f"x = {self.number}", "new_string": "x = 0"}
                said = rng.choice(
                    [
                        "<error>Plan mode: edits are not allowed.</error>",
                        "Edit denied by the mode (plan).",
                        "You are in plan mode, nothing was written.",
                    ]
                )
                self.run.call("Edit", args, said, ok=rng.random() < 0.5, cause="plan", place=self.place(path))
                self.seek()

        return [the_database_is_not_there, no_way_to_the_package_index, edits_are_refused_in_plan_mode]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""

        def git_status_thrice() -> None:
            for _ in range(3):
                self.run.call("Bash", {"command": "git stash list"}, "")
            self.work(4)

        def four_files_at_once() -> None:
            for number, path in enumerate([path for path in self.inside if path not in self.known][:4]):
                self.known.add(path)
                lines = "\n".join(self.text[path])
                self.run.call("Read", {"file_path": path}, lines, fresh=True, place=self.place(path), beside=number > 0)

        def one_missing_module_after_the_other() -> None:
            for name in self.rng.sample(["freezegun", "respx", "factory", "httpx", "orjson"], self.rng.randint(3, 4)):
                for flags in self.rng.sample(["-q", "-x", "--lf"], self.rng.randint(1, 2)):
                    said = f"ImportError while loading conftest.py\nE   ModuleNotFoundError: No module named '{name}'"
                    args = {"command": f"pytest tests/{self.part} {flags}", "description": "Run tests"}
                    self.run.call("Bash", args, said, ok=False, cause=name)
                args = {"command": f"pip install {name}", "description": "Install"}
                self.run.call("Bash", args, f"Successfully installed {name}", change=True, clears=name)
            self.work(3)

        return [one_missing_module_after_the_other, *super().alikes(), git_status_thrice, four_files_at_once]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Service, rng)
