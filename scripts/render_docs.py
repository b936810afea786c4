"""Write what the docs take from the code into the docs: the public names, states, events, errors, the commands' help.

A region stands between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->`` in a page. Run it after a change of
the code it shows; a test compares.

Usage: python -m scripts.render_docs
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scripts.render_fronts import PACKAGE, definition_of, fronts, names_of, tree_of, value_of
from watchkeeper.app.settings import ACCOUNT, CONTEXT_FULL, FIELDS, STORE_FAILURE, TEXTS
from watchkeeper.core import errors
from watchkeeper.kernel.turn_machine import mermaid

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "watchkeeper"
REGION = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)
RUN_COMMAND = "from watchkeeper.cli.main import app; app(prog_name='watchkeeper')"
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
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
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
        head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if "/" in name and path.name != "__init__.py" and head is not None:
            said = " ".join(head.partition("\n\n")[0].split())
            lines.append(f"| `{name}` | {said} |")
    return "\n".join(lines) + "\n"


def help_of(*command: str) -> str:
    """Return what ``--help`` of a command prints in a plain terminal of fixed width."""
    colours = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TERMINAL_WIDTH")
    env = {name: value for name, value in os.environ.items() if name not in colours}
    env |= {"COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    words = [sys.executable, "-c", RUN_COMMAND, *command, "--help"]
    done = subprocess.run(words, env=env, capture_output=True, encoding="utf-8", check=True)
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
    return f"```text\n{text}\n```\n"


RENDERERS: Mapping[str, Callable[[], str]] = {
    "state-diagram": state_diagram,
    "gate-states": gate_states,
    "error-tree": error_tree,
    "events": events,
    "rooms": rooms,
    "settings": settings,
    "public-names": public_names,
    "help": help_of,
    "help-run": lambda: help_of("run"),
    "help-account": lambda: help_of("account"),
    "help-runs": lambda: help_of("runs"),
    "help-show": lambda: help_of("show"),
    "help-observe": lambda: help_of("observe"),
    "help-resume": lambda: help_of("resume"),
    "help-store": lambda: help_of("store"),
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
