"""``make test-lowest`` tests with the bounds that pyproject.toml states."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.lowest import lowest

ROOT = Path(__file__).resolve().parents[2]


def pinned() -> dict[str, str]:
    lines = (ROOT / "requirements" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> list[int]:
    """Return a version as numbers, without the zeros at its end."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers[-1] == 0:
        numbers.pop()
    return numbers


def test_the_lowest_versions_tested_are_the_bounds_in_pyproject() -> None:
    tested = pinned()
    wrong = {name: bound for name, bound in lowest().items() if release(tested[normal(name)]) != release(bound)}
    assert wrong == {}, "requirements/lowest.txt is out of date: run scripts/renew-constraints --lowest"
