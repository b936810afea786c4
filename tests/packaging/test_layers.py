"""The layer table holds in the tree, and the contract that says so really refuses what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from scripts.render_fronts import fronts

ROOT = Path(__file__).parents[2]
PACKAGE = "watchkeeper"


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the package under `folder`/src against the project's own contract."""
    script = Path(sys.executable).with_name("lint-imports")
    command = [str(script), "--no-logo", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    env = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def build_package(folder: Path, files: dict[str, str]) -> None:
    """Write a package of the same name with the given modules; every folder gets its __init__."""
    for name, text in files.items():
        path = folder / "src" / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    (folder / "src" / PACKAGE / "__init__.py").touch()


@pytest.mark.spec("FR-090")
def test_every_folder_keeps_the_layer_table() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spec("FR-090")
@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("core/clock.py", "import watchkeeper.session.log"),
        ("session/log.py", "from watchkeeper.loop import driver"),
        ("tools/tool.py", "import watchkeeper.containment.gate"),
        ("containment/gate.py", "import watchkeeper.tools.tool"),
        ("store/sqlite.py", "from watchkeeper.local import model"),
        ("core/clock.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import watchkeeper.cli.main"),
        ("cli/main.py", "from watchkeeper import errors"),
        ("core/clock.py", "def late():\n    import watchkeeper.session.log"),
        ("gadgets/thing.py", ""),
    ],
    ids=[
        "upward",
        "skipping",
        "sibling",
        "sibling back",
        "sibling local",
        "type checking",
        "front",
        "lazy",
        "unlisted folder",
    ],
)
def test_the_contract_refuses(tmp_path: Path, importer: str, statement: str) -> None:
    files = {
        "core/clock.py": "",
        "session/log.py": "",
        "tools/tool.py": "",
        "containment/gate.py": "",
        "loop/driver.py": "",
        "local/model.py": "",
        "errors.py": "",
        "store/sqlite.py": "",
        "cli/main.py": "",
    }
    build_package(tmp_path, files)
    assert lint_imports(tmp_path).returncode == 0
    build_package(tmp_path, files | {importer: statement})
    assert lint_imports(tmp_path).returncode == 1


def test_no_module_imports_a_front() -> None:
    """A front names what is in many folders, so importing it from inside would go round the layer table."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    inside = {
        (name, front)
        for front in fronts()
        for name in graph.find_modules_that_directly_import(front)
        if name != f"{PACKAGE}.__main__"
    }
    assert inside == set()
