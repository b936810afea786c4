"""The package shows its names, sorted, and imports what is behind them when they are first used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from watchkeeper import subagents


def test_the_names_are_sorted_and_there() -> None:
    assert sorted(subagents.__all__) == subagents.__all__ == dir(subagents)
    for name in subagents.__all__:
        assert getattr(subagents, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = subagents.nothing


def test_names_are_found_again_after_a_reload() -> None:
    again = importlib.reload(subagents)
    assert again.SubagentSettings is subagents.SubagentSettings


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = "import sys, watchkeeper.subagents; print('watchkeeper.runtime' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
