"""Names that are imported when they are first used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from watchkeeper.core.lazy_names import imported_when_used
from watchkeeper.observers.stall import StallDetector


def test_a_name_is_looked_up_once_and_kept_in_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("made_up")
    monkeypatch.setitem(sys.modules, "made_up", package)
    look_up = imported_when_used("made_up", {"StallDetector": "watchkeeper.observers.stall"})
    assert look_up("StallDetector") is StallDetector
    assert vars(package)["StallDetector"] is StallDetector


def test_a_name_that_is_not_there_is_an_attribute_error_that_names_the_package() -> None:
    with pytest.raises(AttributeError, match=r"module 'watchkeeper.observers' has no attribute 'Stahl'"):
        imported_when_used("watchkeeper.observers", {})("Stahl")
