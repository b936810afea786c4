"""The public map: what each front exports is listed, there, imported only when it is used, and changes visibly."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import watchkeeper
from scripts.render_fronts import LISTED, ROOT, SOURCE, fronts, laid_out, names_of, public_api

MOST_NAMES = 40
MOST_PACKAGES = 10
HEAVY = (
    *("aiohttp", "anthropic", "asyncio", "httpx", "litellm", "openai", "opentelemetry", "pydantic", "rich", "sqlite3"),
    "typer",
)
FRONTS = fronts()
EXPECTED = """
    watchkeeper watchkeeper.cli watchkeeper.clock watchkeeper.contained_sdk watchkeeper.containment watchkeeper.errors
    watchkeeper.events watchkeeper.judging watchkeeper.models watchkeeper.observers watchkeeper.prompt
    watchkeeper.recovery watchkeeper.session watchkeeper.shield watchkeeper.store watchkeeper.subagents
    watchkeeper.telemetry watchkeeper.testing watchkeeper.tools
"""
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
IMPORT = re.compile(r"(?:from|import)[ \t]+(watchkeeper[\w.]*)")
FROM = re.compile(r"from[ \t]+(watchkeeper[\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([\w, ]+))")

by_front = pytest.mark.parametrize("front", sorted(FRONTS))


def test_the_fronts_are_these() -> None:
    assert set(FRONTS) == set(EXPECTED.split())


@pytest.mark.spec("FR-096")
@by_front
def test_the_names_are_sorted_and_there(front: str) -> None:
    module = importlib.import_module(front)
    assert module.__all__ == sorted(set(module.__all__))
    assert [name for name in dir(module) if name != "__version__"] == module.__all__
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []


@by_front
def test_type_checkers_see_the_names_that_the_program_finds(front: str) -> None:
    module, typed = importlib.import_module(front), names_of(FRONTS[front])
    assert sorted(typed) == module.__all__
    elsewhere = {
        name: getattr(module, name).__module__
        for name, home in typed.items()
        if getattr(getattr(module, name), "__module__", home) != home and isinstance(getattr(module, name), type)
    }
    assert elsewhere == {}, "a front imports a name from the module that defines it"


@by_front
def test_the_table_is_that_of_the_imports(front: str) -> None:
    path = FRONTS[front]
    assert laid_out(path) == path.read_text(encoding="utf-8"), "run python -m scripts.render_fronts"


@by_front
def test_everything_can_be_imported_at_once(front: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {front} import *", namespace)
    assert set(importlib.import_module(front).__all__) <= set(namespace)


@by_front
def test_an_unknown_name_is_an_attribute_error(front: str) -> None:
    module = importlib.import_module(front)
    with pytest.raises(AttributeError, match=rf"module '{re.escape(front)}' has no attribute 'no_such_name'"):
        _ = module.no_such_name


def test_names_are_found_again_after_a_reload() -> None:
    from watchkeeper import subagents

    again = importlib.reload(subagents)
    assert again.SubagentSettings is subagents.SubagentSettings


def test_no_name_hides_a_module() -> None:
    """An attribute of the package can be either: `watchkeeper.errors` is the module, so no name may be called so."""
    modules = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert modules & set(dir(watchkeeper)) == set()


def test_the_front_of_the_package_is_small() -> None:
    assert len(dir(watchkeeper)) <= MOST_NAMES


def test_the_list_of_public_names_is_current() -> None:
    """A line that goes or changes breaks users: `CHANGELOG.md` tells them."""
    assert public_api() == LISTED.read_text(encoding="utf-8"), "run python -m scripts.render_fronts"


@pytest.mark.spec("FR-097")
def test_the_version_is_that_of_the_distribution() -> None:
    assert watchkeeper.__version__ == importlib.metadata.version("watchkeeper")


@pytest.mark.spec("FR-089")
def test_importing_a_front_imports_nothing_heavy_and_nothing_behind_it() -> None:
    light = sorted(set(FRONTS) - {"watchkeeper.testing"})
    code = (
        f"import sys, {', '.join(light)}; print(*[name for name in {HEAVY!r} if name in sys.modules]);"
        "print(*[name for name in sys.modules if name.startswith('watchkeeper.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, own = done.stdout.split("\n")[:2]
    assert heavy.split() == []
    assert set(own.split()) == {*light, "watchkeeper.core", "watchkeeper.core.lazy_names"} - {"watchkeeper"}


@pytest.mark.spec("FR-089")
def test_the_core_needs_at_most_ten_packages() -> None:
    seen: set[str] = set()
    waiting = ["watchkeeper"]
    while waiting:
        name = waiting.pop()
        for line in importlib.metadata.requires(name) or []:
            needed = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower()
            if "extra ==" not in line and "python_version <" not in line and needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    assert len(seen) <= MOST_PACKAGES, sorted(seen)


def imports_on(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each module that a page imports from, with each name."""
    text = page.read_text(encoding="utf-8")
    for match in IMPORT.finditer(text):
        yield match[1], ""
    for match in FROM.finditer(text):
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", match[2] or match[3])):
            yield match[1], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_imports_from_the_public_map_only(page: Path) -> None:
    private = [
        f"{module} {name}".strip()
        for module, name in imports_on(page)
        if module not in FRONTS or (name and name not in names_of(FRONTS[module]))
    ]
    assert private == [], "docs/reference.md lists what is public"
