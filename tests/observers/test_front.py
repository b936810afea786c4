"""The names at `watchkeeper.observers`: sorted, all there, and imported only when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from watchkeeper import observers


def test_every_public_name_is_there_and_the_list_is_sorted() -> None:
    assert observers.__all__ == sorted(observers.__all__)
    assert dir(observers) == observers.__all__
    for name in observers.__all__:
        assert getattr(observers, name).__module__.startswith("watchkeeper.") or name == "answer_advice"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"'watchkeeper\.observers' has no attribute 'Nobody'"):
        _ = observers.Nobody


def test_importing_the_front_imports_no_observer() -> None:
    said = "import sys, watchkeeper.observers; print([name for name in sys.modules if 'observers.' in name])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"
