"""README and docs execute: every python block runs, in order, in one namespace per page, and none is skipped.

A page runs in an empty folder of its own that has the project's examples beside it. Its namespace is that of a module,
so that type hints in a block resolve as they would in a file.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_block_of_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    document = Document.parse(str(page), PythonCodeBlockParser())
    document.namespace = vars(module)
    examples = list(document.examples())
    fences = page.read_text(encoding="utf-8").count("```python")
    assert len(examples) >= fences, f"{page.name} has {fences} python blocks; {len(examples)} were found"
    for example in examples:
        example.evaluate()
