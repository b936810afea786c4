"""What `docs/architecture.md` says of the code is in the code: layers, folders, quoted lines, names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "watchkeeper"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LAYER = re.compile(r"^\| (\d+) \| `(\w+)/` \|", re.MULTILINE)
STOP = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` \|.*\| `(.+)` \|$", re.MULTILINE)


def contract() -> list[set[str]]:
    """Return the rows of folders in the layer contract, lowest first: without the modules at the top of the package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows: list[str] = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    found = [set(re.findall(r"\w+", row)) for row in reversed(rows)]
    modules = {path.stem for path in SOURCE.glob("*.py")}
    return [row for row in found if not row <= modules]


def folders() -> set[str]:
    """Return the folders of the package that hold modules."""
    return {path.parent.name for path in SOURCE.glob("*/*.py")}


def test_the_layer_table_is_the_contract() -> None:
    shown: dict[int, set[str]] = {}
    for number, folder in LAYER.findall(PAGE):
        shown.setdefault(int(number), set()).add(folder)
    expected = {number: row & folders() for number, row in enumerate(contract())}
    assert shown == {number: row for number, row in expected.items() if row}


def test_folders_that_do_not_exist_yet_are_called_so() -> None:
    later = PAGE.partition("has places for folders that do not exist yet:")[2].partition("([roadmap]")[0]
    named = set(re.findall(r"`(\w+)`", later))
    assert named == set().union(*contract()) - folders()


@pytest.mark.spec("FR-098")
def test_the_tour_has_ten_files_with_lines_that_are_there() -> None:
    tour = STOP.findall(PAGE)
    assert [int(number) for number, _, _ in tour] == list(range(1, 11))
    missing = [path for _, path, line in tour if line not in (SOURCE / path).read_text(encoding="utf-8")]
    assert missing == []


@pytest.mark.spec("FR-098")
def test_the_line_that_admits_a_call_is_in_decide() -> None:
    from watchkeeper.accounting import admission

    text = Path(admission.__file__).read_text(encoding="utf-8")
    body = text.partition("\ndef decide(")[2].partition("\ndef ")[0]
    assert "return waits or Admitted(output)" in body


def paths_named() -> list[str]:
    """Return every path that the pages name in the form `folder/module.py`."""
    found: set[str] = set()
    for page in (ROOT / "docs").glob("*.md"):
        found |= set(re.findall(r"`(\w+/[\w/]+\.py)`", page.read_text(encoding="utf-8")))
    return sorted(found)


@pytest.mark.parametrize("path", paths_named())
def test_a_path_that_a_page_names_exists(path: str) -> None:
    assert (SOURCE / path).is_file() or (ROOT / path).is_file()
