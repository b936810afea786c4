"""What it costs to show one run of 100,000 events: at most 3 s of CPU and 100 MB, the process included.

Every second event is a reply of a model that says something and asks for a call, every other one the call. Run with
``python -m benchmarks.show``; exits 1 if a target is missed.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.usage import TokenUsage
from watchkeeper.runtime.events import ModelReplied, RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult

EVENTS = 100_000
SECONDS, MEGABYTES = 3.0, 100.0
BEGAN = datetime(2026, 11, 21, tzinfo=UTC)
SAID = "The quick brown fox jumps over the lazy dog. " * 6
USAGE = TokenUsage(900, 40)


def event(number: int, at: datetime) -> Any:
    """Return one event of the run."""
    if number == 1:
        return RunStarted(root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS), "bench/show", "m", "none", None, at)
    if number % 2:
        params, result = {"path": f"src/file_{number}.py"}, ToolResult.ok(number, SAID)
        return ToolInvoked("bench/show", "a", "read", params, result, None, at, USAGE, SAID, f"c{number}", uuid4())
    message = AssistantMessage("I look at the next file.", (ToolCall(f"c{number + 1}", "read", '{"path":"x"}'),))
    return ModelReplied(number // 2, message, "tool_calls", USAGE, 120_000, "m", f"n{number}", 1500.0, False, at)


def main() -> int:
    """Write the run, show it, and compare."""
    run_id = uuid4()
    with tempfile.TemporaryDirectory() as folder, open("/dev/null", "wb") as nowhere:
        path = Path(folder) / "store"
        with RunStore(path) as store:
            for first in range(1, EVENTS + 1, 500):
                times = ((number, BEGAN + timedelta(seconds=number)) for number in range(first, first + 500))
                store.append([Item(run_id, Envelope(number, at, event(number, at))) for number, at in times])
        command = [sys.executable, "-m", "watchkeeper", "show", str(run_id), "--store", str(path)]
        subprocess.run(command, stdout=nowhere, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"a run of {EVENTS:,} events: {seconds:.2f} s of CPU (at most {SECONDS:g}), {megabytes:.0f} MB", end=" ")
    print(f"(at most {MEGABYTES:g})")
    return int(seconds > SECONDS or megabytes > MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
