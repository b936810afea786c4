"""What several files of these tests use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.tools.processes import Lives


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    with closing(Lives(tmp_path / "fifo")) as lives:
        yield lives
