"""Whether the last calls of a run failed, one after the other, is said in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from watchkeeper.runtime.last_failures import LastFailures

BROKEN = ("look", "failed", "look failed: no such page")
SILENT = ("look", "timeout", "")


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ((), ""),
        ((BROKEN,), ""),
        ((BROKEN, BROKEN), "Its last 2 calls of look failed: no such page"),
        ((BROKEN, SILENT), "Its last 2 calls of look failed."),
        ((BROKEN, BROKEN, ("look", "ok", "a page")), ""),
        ((("find", "failed", "nothing"), BROKEN), ""),
    ],
)
def test_what_is_said_of_the_last_calls(calls: Sequence[tuple[str, str, str]], said: str) -> None:
    last = LastFailures()
    for call in calls:
        last.add(*call)
    assert last.in_words() == said
