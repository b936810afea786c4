"""Print the lowest version that pyproject.toml allows of each package that it names, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

PYPROJECT: Final = Path(__file__).resolve().parent.parent / "pyproject.toml"
REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^]]*\])?(?:>=|==)([\w.]+)(?:,<[\w.]+)?")


def lowest() -> dict[str, str]:
    """Return the lowest versions by package, of the dependencies, of all extras and of the build.

    Raises:
        ValueError: If a requirement has no lower bound, or a package has several.
    """
    pyproject: dict[str, Any] = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    project = pyproject["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    bounds: dict[str, str] = {}
    for requirement in [*pyproject["build-system"]["requires"], *project["dependencies"], *extras]:
        if requirement.startswith(f"{project['name']}["):
            continue
        read = REQUIREMENT.fullmatch(requirement)
        if read is None or bounds.setdefault(read[1], read[2]) != read[2]:
            raise ValueError(f"{requirement!r} in pyproject.toml needs one lower bound, everywhere the same")
    return bounds


if __name__ == "__main__":
    for name, version in sorted(lowest().items()):
        print(f"{name}=={version}")
