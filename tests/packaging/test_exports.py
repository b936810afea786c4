"""The front door: what `watchkeeper` exports is listed, sorted, small, and imported only when it is used."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

import watchkeeper

MOST_NAMES = 40
MOST_PACKAGES = 10
HEAVY = ("aiohttp", "anthropic", "asyncio", "httpx", "litellm", "openai", "pydantic", "rich", "sqlite3", "typer")


@pytest.mark.spec("FR-096")
def test_all_is_sorted_and_small() -> None:
    assert list(watchkeeper.__all__) == sorted(set(watchkeeper.__all__))
    assert len(watchkeeper.__all__) <= MOST_NAMES


def test_all_is_the_namespace() -> None:
    names = {name for name in dir(watchkeeper) if not name.startswith("_")}
    modules = {name.partition(".")[2].partition(".")[0] for name in sys.modules if name.startswith("watchkeeper.")}
    assert names - modules == {name for name in watchkeeper.__all__ if not name.startswith("_")} - modules


def test_every_exported_name_is_there() -> None:
    missing = [name for name in watchkeeper.__all__ if getattr(watchkeeper, name, None) is None]
    assert missing == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(watchkeeper, "no_such_name")


@pytest.mark.spec("FR-097")
def test_the_version_is_that_of_the_distribution() -> None:
    assert watchkeeper.__version__ == importlib.metadata.version("watchkeeper")


@pytest.mark.spec("FR-089")
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, watchkeeper; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


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
