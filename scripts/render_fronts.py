"""Lay out every public front by its imports, and write the list of all public names with their signatures.

A front is a package or module whose names may be imported from outside: it imports them for type checkers, under
``if TYPE_CHECKING:``, and finds them in a table when the program runs (`watchkeeper.core.lazy_names`). Only the imports
are written by hand. Run this after a change of them, or of what a public name takes; tests compare.

Usage: python -m scripts.render_fronts
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "watchkeeper"
SOURCE = ROOT / "src" / PACKAGE
LISTED = ROOT / "tests" / "packaging" / "public_api.txt"
NAMES = re.compile(r"(?<=\nif TYPE_CHECKING:\n).*?(?=\n\S|\Z)", re.DOTALL)
TABLE = re.compile(r"(public_names\(\n        __name__,\n        )\{.*?\}(,\n    \)\n)", re.DOTALL)
ROW_WIDTH = 120
HEAD = """\
# Every public name and what it takes. A test compares; `python -m scripts.render_fronts` renews this file.
# A line that goes or changes breaks users: say so in CHANGELOG.md.
"""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def path_of(module: str) -> Path:
    """Return the file of a module of the package."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def fronts() -> dict[str, Path]:
    """Return the file of each front, by the name that users import, the package itself first."""
    found: dict[str, Path] = {}
    for path in sorted([*SOURCE.glob("*.py"), *SOURCE.glob("*/__init__.py")]):
        if "public_names(" in path.read_text(encoding="utf-8"):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return dict(sorted(found.items()))


def names_of(path: Path) -> dict[str, str]:
    """Return the module of each name that a front imports for type checkers."""
    return {
        alias.asname: statement.module
        for block in tree_of(path).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
        if alias.asname
    }


def by_module(path: Path) -> dict[str, list[str]]:
    """Return the names of a front by the module that defines them, both sorted."""
    found: dict[str, list[str]] = {}
    for name, module in sorted(names_of(path).items()):
        found.setdefault(module, []).append(name)
    return dict(sorted(found.items()))


def imports_of(path: Path) -> str:
    """Return the imports of a front: sorted, and as many names on a line as it holds."""
    lines: list[str] = []
    for module, names in by_module(path).items():
        start = f"    from {module} import "
        lines.append(start)
        for name in names:
            if lines[-1] != start and len(lines[-1]) + len(f"{name} as {name}") > ROW_WIDTH:
                lines.append(start)
            lines[-1] += f"{name} as {name}, "
    return "\n".join(line.removesuffix(", ") for line in lines)


def table_of(path: Path) -> str:
    """Return the rows of a front's table, as the formatter leaves them."""
    return "".join(row_of(module.partition(".")[2], names) for module, names in by_module(path).items())


def row_of(module: str, names: list[str]) -> str:
    """Return one row of a table: a module and its names, on as many lines as they need."""
    row = f'            "{module}": "{" ".join(names)}",\n'
    if len(row) <= ROW_WIDTH + 1:
        return row
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > ROW_WIDTH - 20:
            lines.append("")
        lines[-1] += f"{name} "
    lines[-1] = lines[-1].rstrip()
    return (
        f'            "{module}": (\n' + "".join(f'                "{line}"\n' for line in lines) + "            ),\n"
    )


def laid_out(path: Path) -> str:
    """Return a front's text with its imports in order, and with the table that they ask for."""
    text = NAMES.sub(lambda _: imports_of(path), path.read_text(encoding="utf-8"), count=1)
    return TABLE.sub(lambda found: f"{found[1]}{{\n{table_of(path)}        }}{found[2]}", text)


def definition_of(module: str, name: str) -> Definition | None:
    """Return the statement that defines a name in a module; of an overloaded function, the last."""
    for node in reversed(tree_of(path_of(module)).body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            return node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return node
    return None


def public_api() -> str:
    """Return the list of all public names: each front's, and below them what each name takes, once."""
    lines: list[str] = []
    described: dict[tuple[str, str], str] = {}
    for front, path in fronts().items():
        for name, module in sorted(names_of(path).items()):
            first = described.setdefault((module, name), f"{front}.{name}")
            if first == f"{front}.{name}":
                lines += described_lines(front, name, definition_of(module, name))
            else:
                lines.append(f"{front}.{name} = {first}")
    return HEAD + "".join(f"{line}\n" for line in lines)


def described_lines(front: str, name: str, node: Definition | None) -> Iterator[str]:
    """Yield the line of a public name and, for a class, one for each public member that it defines."""
    whole = f"{front}.{name}"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        yield f"{whole}: class({bases})"
        for member in node.body:
            yield from member_lines(name, member)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"{whole}{signature(node)}"
    else:
        yield f"{whole} = {value_of(node)}"


def value_of(node: Definition | None) -> str:
    """Return the text of a constant's value; of an object, what makes it."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call):
        return f"{ast.unparse(value.func)}()"
    return " ".join(ast.unparse(value).split()) if value else ""


def member_lines(owner: str, node: ast.stmt) -> Iterator[str]:
    """Yield the line of a class's member if it is public: a constructor, a method, a property, a field."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        marks = {ast.unparse(mark) for mark in node.decorator_list}
        if node.name in {"__init__", "__new__", "__call__"} or not node.name.startswith("_"):
            kind = "".join(f"@{mark} " for mark in sorted(marks & {"property", "classmethod", "staticmethod"}))
            yield f"    {owner}: {kind}{node.name}{signature(node)}"
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
        default = f" = {ast.unparse(node.value)}" if node.value else ""
        yield f"    {owner}: {node.target.id}: {ast.unparse(node.annotation)}{default}"
    elif isinstance(node, ast.Assign):
        for to in node.targets:
            if isinstance(to, ast.Name) and to.id[0] != "_":
                yield f"    {owner}: {to.id} = {ast.unparse(node.value)}"


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return what a function takes and returns."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}{' async' if isinstance(node, ast.AsyncFunctionDef) else ''}"


def main() -> None:
    """Renew the tables and the list, and say which changed."""
    wanted = {path: laid_out(path) for path in fronts().values()} | {LISTED: public_api()}
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"renewed {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
