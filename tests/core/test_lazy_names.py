"""Names that are imported when they are first used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from watchkeeper.core.lazy_names import public_names
from watchkeeper.observers.stall import StallDetector


def test_a_name_is_looked_up_once_and_kept_in_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("made_up")
    monkeypatch.setitem(sys.modules, "made_up", package)
    look_up, _, _ = public_names("made_up", {"observers.stall": "StallDetector"})
    assert look_up("StallDetector") is StallDetector
    assert vars(package)["StallDetector"] is StallDetector


def test_a_name_that_is_not_there_is_an_attribute_error_that_names_the_package() -> None:
    look_up, _, _ = public_names("watchkeeper.observers", {})
    with pytest.raises(AttributeError, match=r"module 'watchkeeper.observers' has no attribute 'Stahl'"):
        look_up("Stahl")


def test_the_names_are_listed_sorted() -> None:
    _, list_names, listed = public_names(
        "made_up", {"observers.stall": "StallDetector", "core.clock": "Deadline Clock"}
    )
    assert listed == list_names() == ["Clock", "Deadline", "StallDetector"]
