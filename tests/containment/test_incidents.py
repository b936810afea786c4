"""The incidents, replayed: contained, none exceeds its ceiling, and the documented table has their figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.incidents.__main__ import main
from benchmarks.incidents.replay import Comparison, Replay, compare
from benchmarks.incidents.table import REPLAYS, comparisons, table

PAGE = Path(__file__).parents[2] / "docs/containment.md"


@pytest.fixture(scope="module")
def replayed() -> list[Comparison]:
    return comparisons()


def test_every_incident_is_contained_at_a_small_part_of_what_it_was(replayed: list[Comparison]) -> None:
    assert len(replayed) == 6
    for row in replayed:
        assert row.executions_after * 7 < row.executions_before
        assert row.usd_after * 10 < row.usd_before


@pytest.mark.spec("FR-133")
def test_the_documented_table_is_what_the_replays_come_to(replayed: list[Comparison]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(table(replayed)) in page, "\n" + "\n".join(table(replayed))


def test_running_the_package_prints_the_table(capsys: pytest.CaptureFixture[str], replayed: list[Comparison]) -> None:
    assert main() == 0
    assert capsys.readouterr().out == "\n".join(table(replayed)) + "\n"


@pytest.mark.parametrize(
    ("executions", "usd", "said"), [(5, 100.0, "executions"), (10**6, 0.5, "spent")], ids=["calls", "money"]
)
def test_a_replay_that_exceeds_its_ceiling_is_an_error(executions: int, usd: float, said: str) -> None:
    loop = REPLAYS[0]
    tight = Replay(loop.name, loop.provider, loop.before, loop.after, "tighter", executions, usd)
    with pytest.raises(AssertionError, match=said):
        compare(tight)
