"""Write what the docs take from the code into the docs: the public names, states, events, errors, the commands' help.

A region stands between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->`` in a page. Run it after a change of
the code it shows; a test compares.

Usage: python -m scripts.render_docs
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from scripts.render_fronts import PACKAGE, definition_of, fronts, names_of, tree_of, value_of
from watchkeeper import Agent, Limits, tool
from watchkeeper.app.settings import ACCOUNT, CONTEXT_FULL, DURABILITY, FIELDS, STORE_FAILURE, TEXTS
from watchkeeper.cli.console import row_of
from watchkeeper.cli.live.drawing import lines_of
from watchkeeper.cli.live.state import Follower
from watchkeeper.core import errors
from watchkeeper.core.clock import TestClock
from watchkeeper.kernel.turn_machine import mermaid
from watchkeeper.models import Call, Say, ScriptedModel
from watchkeeper.session.log import Envelope

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "watchkeeper"
REGION = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)
COMMANDS = ("", "run", "account", "runs", "show", "report", "compare", "tail", "observe", "resume", "cancel", "store")
PRINT_HELPS = """
import contextlib, io, json, sys
from watchkeeper.cli.main import app

texts = {}
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        app([*command.split(), "--help"], prog_name="watchkeeper")
    texts[command] = printed.getvalue()
print(json.dumps(texts))
"""
"""Prints what ``--help`` of each command prints, as JSON; given the commands."""
WIDTH = "100"


def state_diagram() -> str:
    """Return the turn loop's states as a Mermaid diagram."""
    return f"```mermaid\n{mermaid()}\n```\n"


def gate_states() -> str:
    """Return a table of what calls get in each state of a context, found out by trying."""
    words = [sys.executable, str(ROOT / "scripts" / "gate_states.py")]
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=True).stdout


def error_tree() -> str:
    """Return the tree of errors, as the module's head draws it."""
    head = inspect.getdoc(errors) or ""
    lines = [line.removeprefix("    ") for line in head.splitlines() if line.startswith("    ")]
    return "```\n" + "\n".join(lines) + "\n```\n"


def events() -> str:
    """Return a table of all event types that are registered under a tag."""
    rows = [
        f"| `{tag}` | `{name}` | `{module}` | {sentence} |"
        for tag, name, module, sentence in sorted(registered_events())
    ]
    return "\n".join(["| tag | event | module | what it says |", "|---|---|---|---|", *rows, ""])


def registered_events() -> Iterator[tuple[str, str, str, str]]:
    """Yield tag, class, module and first sentence of each event type in the source."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in tree_of(path).body:
            if not isinstance(node, ast.ClassDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "event":
                    where = path.relative_to(SOURCE).as_posix()
                    yield ast.literal_eval(mark.args[0]), node.name, where, first_paragraph(node)


def public_names() -> str:
    """Return all public names by front, each explained in one line, in one place."""
    homes = explained_in()
    parts: list[str] = []
    for front, path in fronts().items():
        head = (ast.get_docstring(tree_of(path)) or "").partition("\n\n")[0]
        own = {name: module for name, module in sorted(names_of(path).items()) if homes[module, name] == front}
        parts += [f"## {front}\n", f"{' '.join(head.split())}\n"]
        parts.append("".join(f"- `{name}`: {explained(module, name)}\n" for name, module in own.items()))
        if others := sorted(names_of(path).keys() - own.keys()):
            parts.append(f"Also here: {', '.join(f'`{name}`' for name in others)}.\n")
    return "\n".join(part for part in parts if part)


def explained_in() -> dict[tuple[str, str], str]:
    """Return the front that explains each name: the package's, that of the name's folder, or the first."""
    homes: dict[tuple[str, str], str] = {}
    for front, path in fronts().items():
        for name, module in names_of(path).items():
            first = homes.setdefault((module, name), front)
            if module.startswith(f"{front}.") and first != PACKAGE:
                homes[module, name] = front
    return homes


def explained(module: str, name: str) -> str:
    """Return what a public name is: the first sentence of its docstring, or its value."""
    node = definition_of(module, name)
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return re.split(r"(?<=[a-z0-9)`])\.\s", first_paragraph(node))[0].rstrip(".") + "."
    return f"`{value_of(node)}`."


def first_paragraph(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split()).replace("``", "`")


def settings() -> str:
    """Return a table of the settings, with their environment variables and fields."""
    rows = [f"| `{name}` | `WATCHKEEPER_{name.upper()}` | `Limits.{field}` |" for name, field in FIELDS.items()]
    texts = {name: f"`Limits.{name}`" if name in ACCOUNT else f"the {name}" for name in TEXTS}
    texts[CONTEXT_FULL] = "what happens when the context is full"
    texts[STORE_FAILURE] = "what happens when the store fails"
    texts[DURABILITY] = "what the record of a run survives"
    texts["notify"] = "a command or an address that is told about runs"
    texts["notify_on"] = "what it is told of, for example `warning,80%,failed,end`"
    texts["on_ask"] = "what happens to a call about which a person is to be asked, where nobody answers"
    texts["ask_expires"] = "`Park.expires`, with `on_ask` park"
    texts["on_expiry"] = "`Park.then`, with `on_ask` park"
    rows += [f"| `{name}` | `WATCHKEEPER_{name.upper()}` | {sets} |" for name, sets in texts.items()]
    return "\n".join(["| in the file | in the environment | sets |", "|---|---|---|", *rows, ""])


def rooms() -> str:
    """Return a table of all modules, with the first sentence of each head."""
    lines = ["| module | what is in it |", "|---|---|"]
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        head = ast.get_docstring(tree_of(path))
        if "/" in name and path.name != "__init__.py" and head is not None:
            said = " ".join(head.partition("\n\n")[0].split())
            lines.append(f"| `{name}` | {said} |")
    return "\n".join(lines) + "\n"


def live_view() -> str:
    """Return what the live view shows of a scripted run at one moment, in 80 columns."""
    clock = TestClock(datetime(2026, 11, 23, 14, tzinfo=UTC))
    follower = Follower(clock, lambda moment: moment)
    seen: list[str] = []

    async def take(run_id: UUID, envelope: Envelope) -> None:
        follower.take(run_id, envelope.event)

    @tool
    async def count(shelf: int) -> str:
        """Count what stands on a shelf."""
        await clock.sleep(40)
        if shelf == 6 and (view := follower.seen()) is not None:
            seen.extend(row_of(line, 80, colours=False) for line in lines_of(view, 80))
        return "12"

    steps: list[Any] = [*(Call("count", {"shelf": shelf}) for shelf in range(1, 8)), Say("84")]
    limits = Limits(deadline="15m", max_total_tokens=6_000, max_steps=40)
    shop = Agent(ScriptedModel(steps), "Count.", str, tools=[count], limits=limits, name="stock")
    shop.run("Count the stock.", on_record=take, on_open=follower.opened, clock=clock, store=None)
    return "\n".join(["```text", *seen, "```", ""])


def help_of(command: str) -> str:
    """Return what ``--help`` of a command prints; the empty one is that of all commands."""
    text = "\n".join(line.rstrip() for line in helps()[command].splitlines()).strip("\n")
    return f"```text\n{text}\n```\n"


@cache
def helps() -> dict[str, str]:
    """Return what ``--help`` of each command prints in a plain terminal of fixed width, all from one process."""
    colours = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TERMINAL_WIDTH")
    env = {name: value for name, value in os.environ.items() if name not in colours}
    env |= {"COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    words = [sys.executable, "-c", PRINT_HELPS, json.dumps(COMMANDS)]
    done = subprocess.run(words, env=env, capture_output=True, encoding="utf-8", check=True)
    return msgspec.json.decode(done.stdout, type=dict[str, str])


RENDERERS: Mapping[str, Callable[[], str]] = {
    "state-diagram": state_diagram,
    "gate-states": gate_states,
    "error-tree": error_tree,
    "events": events,
    "rooms": rooms,
    "settings": settings,
    "public-names": public_names,
    **{f"help-{command}".rstrip("-"): partial(help_of, command) for command in COMMANDS},
    "live-view": live_view,
}


def rendered(page: str) -> str:
    """Return a page with every generated region as it should be now.

    Raises:
        KeyError: If a region has a name that nothing here renders.
    """
    return REGION.sub(lambda region: f"{region[1]}{RENDERERS[region['name']]()}{region[3]}", page)


def pages() -> Iterator[Path]:
    """Yield every page that may have a generated region."""
    yield from sorted((ROOT / "docs").rglob("*.md"))


def main() -> None:
    """Renew every page, and say which changed."""
    for path in pages():
        before = path.read_text(encoding="utf-8")
        after = rendered(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"renewed {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
