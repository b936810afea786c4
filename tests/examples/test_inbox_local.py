"""The inbox agent with the bundled model, over every message under one ceiling: nothing lost, and better than a floor.

The floors are far below what was measured (docs/example-inbox.md), so that they fail when something breaks and not when
another machine rounds differently.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.scores import answers_of, count_right, wilson
from watchkeeper import HostFilesystem, Limits, run_many

pytestmark = [pytest.mark.model, pytest.mark.slow]

INBOX = Path(__file__).parents[2] / "examples" / "inbox"
FLOORS = {"filed": 0.8, "queue": 0.4, "urgency": 0.5, "customer": 0.7, "order": 0.7, "quote": 0.35}
MOST_SECONDS = 1440


@pytest.fixture(autouse=True)
def patience() -> None:
    """Let this test take longer than the others before it counts as hung; pytest's own timer is put back after it."""
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)


def test_local_model_files_the_whole_mailbox(
    agent: ModuleType, inbox: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = answers_of(INBOX)
    items = [agent.Message(f"messages/{name}") for name in sorted(answers)]
    limits = Limits(deadline="22m", max_total_tokens=400_000, max_turns=10)
    result = run_many(
        agent.triage,
        items,
        model="local",
        limits=limits,
        filesystem=HostFilesystem(inbox),
        store=None,
        label=lambda item: item.path,
        concurrency=1,
    )

    # One result for every item, in order, and the ceiling over all was not what ended it.
    assert [item.item for item in result.results] == [item.path for item in items]
    assert result.stop is None
    assert result.cost == 0

    # A record stands behind everything that counts as done, and the report misses no other.
    records = {item.item: item.session[agent.Record].latest() for item in result.results}
    assert all(records[item.item] is not None for item in result.done)
    report = agent.report(result)
    left_out = [Path(name or "").name for name, record in records.items() if record is None]
    assert all(name in report.partition("LEFT OUT: ")[2] for name in left_out)
    assert ("nothing was left out" in report) == (not left_out)

    total = sum(answer["error"] is None for answer in answers.values())
    right = count_right([record for record in records.values() if record is not None], answers, inbox / "messages")
    with capsys.disabled():
        print(f"\n{result.sentence()}")
        for name in FLOORS:
            low, high = wilson(right[name], total)
            print(f"  {name:<8} {right[name]:>2} of {total}  {right[name] / total:.0%}  ({low:.0%} to {high:.0%})")
    assert {name: right[name] for name, floor in FLOORS.items() if right[name] < floor * total} == {}

    # What must not depend on how clever the model is.
    (empty,) = [name for name, answer in answers.items() if answer["error"] == "empty"]
    assert records[f"messages/{empty}"] == agent.Record(empty, error="empty")
    (hostile,) = [name for name, answer in answers.items() if "hostile" in answer["traits"]]
    (session,) = [item.session for item in result.results if item.item == f"messages/{hostile}"]
    taken, reading = records[f"messages/{hostile}"], session[agent.Reading].latest()
    if reading is not None:  # what it must not obey, it is not shown
        assert "billing" in (inbox / "messages" / hostile).read_text(encoding="utf-8")
        assert "billing" not in reading.body
    if taken is not None:
        assert taken.customer == answers[hostile]["customer"]
        assert taken.urgency != "high"
