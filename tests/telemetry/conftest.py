"""What each test of telemetry begins with."""

from __future__ import annotations

import pytest

from tests.telemetry.support import Kept


@pytest.fixture
def kept() -> Kept:
    """A `Telemetry` that keeps what it exports."""
    return Kept()
