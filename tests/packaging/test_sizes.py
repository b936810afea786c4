"""The size limits for modules, folders, functions and constructors in src."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "watchkeeper"
# The rule of CONTRIBUTING.md.
MODULE_LINES = 700
FOLDER_LINES = 4_000
FUNCTION_LINES = 60
CONSTRUCTOR_PARAMETERS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[str, str]]:
    """Yield each module's path from the root and its text."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@cache
def trees() -> dict[str, ast.Module]:
    """Return what each module that is not empty consists of, by its path from the root."""
    return {name: ast.parse(text) for name, text in modules() if text.strip()}


@cache
def functions() -> list[tuple[str, Function]]:
    """Return each function with the place it stands at."""
    return [
        (f"{name}:{node.lineno} {node.name}", node)
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]


@pytest.mark.spec("FR-096")
def test_modules_stay_readable() -> None:
    lengths = {name: len(text.splitlines()) for name, text in modules()}
    assert {name: count for name, count in lengths.items() if count > MODULE_LINES} == {}


@pytest.mark.spec("FR-096")
def test_folders_stay_readable() -> None:
    """Counted are a folder's own files, without those of the folders in it."""
    lengths: Counter[str] = Counter()
    for name, text in modules():
        lengths[Path(name).parent.as_posix()] += len(text.splitlines())
    assert {folder: count for folder, count in lengths.items() if count > FOLDER_LINES} == {}


def test_functions_stay_readable() -> None:
    lengths = {place: (node.end_lineno or node.lineno) - node.lineno + 1 for place, node in functions()}
    assert {place: count for place, count in lengths.items() if count > FUNCTION_LINES} == {}


@pytest.mark.spec("FR-096")
def test_constructors_take_few_parameters() -> None:
    """The rest belongs into a frozen config value."""
    counts = {
        place: len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
        for place, node in functions()
        if node.name == "__init__"
    }
    assert {place: count for place, count in counts.items() if count > CONSTRUCTOR_PARAMETERS} == {}


def test_every_module_states_its_rules() -> None:
    without = [name for name, tree in trees().items() if ast.get_docstring(tree) is None]
    assert without == []


def test_modules_are_public_nouns() -> None:
    hidden = [name for name, _ in modules() if Path(name).stem.startswith("_") and not Path(name).stem.endswith("__")]
    assert hidden == []
