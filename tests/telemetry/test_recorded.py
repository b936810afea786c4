"""What a run exports is what two real backends were sent, and what they made of that is what was sent.

If the export has to change, ``make backends`` sends it to them anew and renews what is recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.sample import as_data, reported, sample
from tests.telemetry.support import Kept
from watchkeeper.core.clock import TestClock
from watchkeeper.telemetry import names

RECORDED = Path(__file__).parent / "recorded"
BACKENDS = sorted(path.stem for path in RECORDED.glob("*.json") if path.stem != "export")


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


async def test_the_export_is_the_one_that_the_backends_were_sent(kept: Kept) -> None:
    usage = await sample(kept.telemetry, TestClock())
    assert as_data(kept.spans) == recorded("export")
    assert reported(kept.spans) == usage.tokens.total


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_lost_nothing_and_counted_nothing_twice(backend: str) -> None:
    found, sent = recorded(backend), recorded("export")
    assert Counter((span["name"], span["below"]) for span in found["spans"]) == Counter(
        (span["name"], span["below"]) for span in sent
    )
    assert found["tokens"] == found["ledger_tokens"]
    for span in found["spans"]:
        assert span["type"].upper() == names.KINDS[span["name"].partition(" ")[0]]
    errors = sum(span["status"] == "ERROR" for span in sent)
    assert sum(span["status"] == "ERROR" for span in found["spans"]) == errors


def test_there_are_two_backends() -> None:
    assert len(BACKENDS) == 2
