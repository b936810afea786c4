"""Where the command starts: the installed command, ``python -m watchkeeper``, and what is said without the extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from watchkeeper.cli import entry

ROOT = Path(__file__).parents[2]
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from watchkeeper.cli.entry import main
main()
"""


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_it_names_the_command_that_installs_it(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(name=package), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: the command line needs optional dependencies: pip install 'watchkeeper[cli]'\n"


def test_another_module_that_is_missing_is_a_bug_and_shows_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(name="msgspec")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "No module named 'msgspec'" in done.stderr


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "watchkeeper", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("watchkeeper ")


def test_both_commands_start_here() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert scripts == dict.fromkeys(("watchkeeper", "wk"), f"{entry.__name__}:{entry.main.__name__}")


def test_help_is_shown_without_arguments() -> None:
    done = subprocess.run([sys.executable, "-m", "watchkeeper"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "show" in done.stdout + done.stderr
