"""README and docs execute: every python block runs, in order, in one namespace per page, and none is skipped.

A page runs in an empty folder of its own that has the project's examples beside it. Its namespace is that of a module,
so that type hints in a block resolve as they would in a file. Blocks that start with ``>>>`` are compared with what
they print. Where a page names a real model, an invisible block before it puts what that model answers in ``SCRIPT``:
the string then gives a scripted model of that name, once. Links between pages lead somewhere.
"""

from __future__ import annotations

import doctest
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser

from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.app import models as lineup
from watchkeeper.app.models import model_from
from watchkeeper.core.model import Model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def scripted_once(page: types.ModuleType, real: Callable[[str], Model]) -> Callable[[str], Model]:
    """Return what makes models of strings on a page: the page's script, used up at once, else the real thing."""

    def make(text: str) -> Model:
        script = vars(page).pop("SCRIPT", None)
        if script is None:
            return real(text)
        provider, _, name = text.partition(":")
        return ScriptedModel(script, name=name or text, provider=provider, free=provider == "local")

    return make


@pytest.mark.spec("DL-016", "FR-094", "FR-099", "FR-117")
@by_page
def test_every_python_block_of_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(lineup, "model_from", scripted_once(module, model_from))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    parser = PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    document = Document.parse(str(page), parser)
    document.namespace = vars(module)
    examples = list(document.examples())
    fences = page.read_text(encoding="utf-8").count("```python")
    assert len(examples) >= fences, f"{page.name} has {fences} python blocks; {len(examples)} were found"
    for example in examples:
        example.evaluate()


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings have where Markdown is shown."""
    titles = HEADING.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.spec("FR-099")
@by_page
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    wrong: list[str] = []
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        target = match[1] or match[2]
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            wrong.append(target)
    assert wrong == []
