"""The table of meters: it agrees with the typed fields, and a new limit is one field of `Limits` and one row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest

import watchkeeper
from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.blocks.contained import SINGLE, Ceilings
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.errors import StopReason
from watchkeeper.core.meters import BY_FIELD, COLUMNS, METERS, SHARED, TOLD
from watchkeeper.core.usage import Usage
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.shield.decision import ChainMetadata

SOURCE = Path(watchkeeper.__file__).parent
WORKER = Path(__file__).with_name("new_limit.py")

FIELD = "    max_child_runs: CountLike | None = None\n"
FIELDS_END = "    max_cost_nanos: int | None = field("
ROW = """    LimitMeter(
        field="max_child_runs",
        column="child_runs",
        reason="child_run_limit_exceeded",
        unit="child run",
        calls=("child",),
        option="Most child runs for the whole.",
        verb="started",
        remedy="Hand over less",
    ),
"""
ROWS_END = ")\n# fmt: on\n"

REASON = '    "child_run_limit_exceeded",\n'
REASONS_END = "    # a shield hook's: it returned HALT or QUARANTINE, or it failed\n"

COUNT = "    child_runs: int = 0\n"
COUNTS_END = "    presumed: Presumed = NOTHING_PRESUMED\n\n    @property\n    def cost"

ADDED = (
    ("accounting/limits.py", FIELDS_END, FIELD),
    ("core/meters.py", ROWS_END, ROW),
    ("core/errors.py", REASONS_END, REASON),
    ("core/usage.py", COUNTS_END, COUNT),
)
"""What makes a limit that goes on over a resume, as docs/limits.md says it: in which file before which line."""


def test_the_rows_agree_with_the_typed_fields() -> None:
    limits, status, usage = Limits(), BudgetStatus(), Usage()
    for meter in METERS:
        assert hasattr(limits, meter.field)
        assert limits.ceiling(meter.ceiling) == (None if meter.measures == "money" else getattr(limits, meter.field))
        assert all(hasattr(status, name) for name in meter.status), f"give BudgetStatus the fields {meter.status}"
        count = meter.usage.partition(".")[0]
        assert meter.column == "turns" or hasattr(usage, count), f"count {count} in Usage: a resumed run begins with it"
        assert meter.column == "turns" or attrgetter(meter.usage)(usage) == 0
    assert Ceilings.__annotations__.keys() == set(SINGLE), "give the new ceiling its type in Ceilings"


def test_every_reason_of_a_row_is_a_reason_of_stops() -> None:
    missing = {meter.reason for meter in METERS} - set(get_args(StopReason))
    assert not missing, f"add to StopReason in core/errors.py, or runs that stop there cannot be read: {missing}"


@pytest.mark.parametrize("of", ["field", "column", "setting", "told", "unit"])
def test_no_two_rows_share_a_name(of: str) -> None:
    found = [getattr(meter, of) for meter in METERS]
    assert len(set(found)) == len(found)


def test_the_order_of_admission_and_of_ledger_files_stays() -> None:
    order = ["cost_nanos", "total_tokens", "input_tokens", "output_tokens", "steps", "tool_calls", "retries"]
    assert [meter.column for meter in SHARED][:7] == order
    assert COLUMNS[: len(SHARED)] == tuple(meter.column for meter in SHARED)
    assert sorted(map(attrgetter("field"), TOLD)) == sorted(BY_FIELD)


def test_unlimited_limits_have_no_ceiling() -> None:
    assert UNLIMITED.describe() == "none"
    assert all(UNLIMITED.ceiling(meter.ceiling) is None for meter in METERS)


@pytest.fixture(scope="module")
def copy_with_a_new_limit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package to which one field, one row and one reason were added."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "src" / "watchkeeper"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, mark, added in ADDED:
        path = package / name
        text = path.read_text(encoding="utf-8")
        assert text.count(mark) == 1
        path.write_text(text.replace(mark, added + mark), encoding="utf-8")
    return folder


def in_the_copy(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy."""
    hidden = {name: value for name, value in os.environ.items() if not name.startswith("WATCHKEEPER_")}
    environment = {**hidden, "PYTHONPATH": str(folder / "src"), "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture(scope="module")
def said(copy_with_a_new_limit: Path) -> dict[str, Any]:
    """Return what the copy makes of its limit, on a ledger file that was made and used without it."""
    folder = copy_with_a_new_limit
    chain = ChainMetadata("request", "chain")
    with (
        SqliteLedger(folder / "ledger.sqlite3") as ledger,
        ExecutionContext(Limits(), None, chain, ledger=ledger) as gate,
    ):
        assert gate.call(CallRequest("tool", "look"), lambda ticket: 1).value == 1
    done = in_the_copy(folder, WORKER, folder)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_new_limit_is_enforced_by_the_gate(said: dict[str, Any]) -> None:
    found = said["gate"]
    *ran, refused = found["reached"]
    assert ran == [None] * 4
    assert refused == {
        "reason": "child_run_limit_exceeded",
        "limit": "max_child_runs",
        "value": "2 child runs",
        "said": "The run reached its ceiling of 2 child runs in 2 tool calls, 2 child runs.",
    }
    assert found["carved"] == [2, 1]
    assert found["kept"] == 18
    assert found["contained"] == 1
    assert found["described"] == "deadline 1h, total tokens 2,000,000, turns 100, retries 20, child runs 3"


def test_a_new_limit_is_kept_in_a_ledger_file_that_was_made_before(said: dict[str, Any]) -> None:
    found = said["ledger"]
    assert [stop and stop["reason"] for stop in found["stops"]] == [None, None, "child_run_limit_exceeded"]
    assert found["tool_calls"] == 1
    assert all(columns.count("child_runs") == 1 for columns in found["tables"].values())


def test_a_new_limit_can_be_set_in_every_place(said: dict[str, Any], copy_with_a_new_limit: Path) -> None:
    assert said["settings"] == {"file": 3, "environment": 4, "option": 5}
    shown = in_the_copy(copy_with_a_new_limit, "-m", "watchkeeper", "run", "--help").stdout
    assert "--max-child-runs" in shown
    assert "Most child runs for the whole." in shown
    agent = "from watchkeeper import Agent\nasker = Agent('scripted', 'Ask.')\n"
    (copy_with_a_new_limit / "asker.py").write_text(agent, encoding="utf-8")
    refused = in_the_copy(copy_with_a_new_limit, "-m", "watchkeeper", "run", "asker.py:asker", "--max-child-runs", "no")
    assert refused.returncode == 2
    assert "--max-child-runs: max_child_runs='no' is not a whole number" in refused.stderr


def test_observers_speak_of_a_new_limit(said: dict[str, Any]) -> None:
    assert said["observers"] == {
        "pace": "At the present rate the child runs will be used up in about 10 minutes (about 10 more tool calls),"
        " before the deadline in 50 minutes.",
        "evidence": "4 of 8 child runs (50%) used in 10 minutes with 10 tool calls",
        "advice": ["Hand over less, or drop what matters least, so that the budget lasts."],
        "left": said["observers"]["left"],
    }
    assert "You have started 4 of 8 allowed child runs. 4 child runs remaining." in said["observers"]["left"]


def test_a_run_that_used_up_a_new_limit_asks_nothing_when_it_is_resumed(said: dict[str, Any]) -> None:
    assert said["run"] == {
        "ended": ["child_run_limit_exceeded", "max_child_runs"],
        "handed_over": [True, True, False],
        "still": "The run reached its ceiling of 2 child runs in 5 model calls, 3 tool calls, 2 child runs. "
        "It goes on under a higher one"
        " (limits=Limits(max_child_runs=...) or --max-child-runs) or with what was used not counted"
        " (fresh_limits=True or --fresh-limits).",
        "asked": ["helper", "helper"],
        "higher": ["Done.", ["helper", "helper", "boss"]],
        "used": [2, 2],
    }
