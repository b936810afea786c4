"""The events of a run, as a process finds them that has imported nothing else."""

from __future__ import annotations

import subprocess
import sys

TAGS = [
    "run_started",
    "run_ended",
    "many_started",
    "item_ended",
    "many_ended",
    "prompt_deadline_assigned",
    "prompt_rendered",
    "prompt_executed",
    "model_replied",
    "model_failed",
    "model_switched",
    "tool_invoked",
    "notice_appended",
    "completion_checked",
    "safety_event",
    "observers_ran",
    "advice_acknowledged",
    "escalation_taken",
    "child_started",
    "child_ended",
    "context_compacted",
    "reducer_failed",
    "slice_edited",
    "rolled_back",
    "state_inherited",
    "session_reset",
]


def test_every_tag_of_a_run_s_log_is_known_once_the_run_s_events_are_imported() -> None:
    """Else a stored log could be read or not, by what the process happened to import before."""
    code = (
        "import watchkeeper.runtime.events\n"
        "from watchkeeper.core.type_tags import tag_of, type_of\n"
        f"print([tag for tag in {TAGS!r} if tag_of(type_of(tag)) != tag])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
