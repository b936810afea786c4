"""What a task for a subagent must fulfil (seed: subagent-dispatch, "Key rules"); pure checks, nothing is started.

Every refusal is a `ToolValidationError` that says what was wrong, with which value, and what to write instead: a model
reads it and tries again.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any, Final

from watchkeeper.core.errors import ToolValidationError
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.registry import PromptRegistry
from watchkeeper.session.snapshot import Snapshot
from watchkeeper.subagents.payloads import DispatchSubagent, DispatchSubagents

MAX_INSTRUCTIONS: Final = 2_000
MAX_ARTIFACT: Final = 160
MAX_TASKS: Final = 20
SHOWN: Final = 60
"""Characters of a bad value that a refusal repeats."""


def checked(task: DispatchSubagent) -> DispatchSubagent:
    """Return the task with its texts trimmed and each artifact once.

    Raises:
        ToolValidationError: If a text is empty, too long or not ASCII, or a plan's step has no id.
    """
    instructions = _text(task.instructions, "instructions", MAX_INSTRUCTIONS)
    artifacts = (_text(path, "each of expected_artifacts", MAX_ARTIFACT) for path in task.expected_artifacts)
    step = (task.plan_step_id or "").strip() or None
    if step is not None:
        _text(step, "plan_step_id", MAX_ARTIFACT)
    elif task.mode == "plan_step":
        raise ToolValidationError(
            'plan_step_id is missing: in mode "plan_step" name the step of the plan, or use mode "ad_hoc"'
        )
    return replace(
        task, instructions=instructions, expected_artifacts=tuple(dict.fromkeys(artifacts)), plan_step_id=step
    )


def checked_count(tasks: DispatchSubagents) -> int:
    """Return how many tasks there are.

    Raises:
        ToolValidationError: If there are none, or too many.
    """
    count = len(tasks.tasks)
    if not 1 <= count <= MAX_TASKS:
        raise ToolValidationError(f"tasks holds {count} tasks; give 1 to {MAX_TASKS}, and the rest in another call")
    return count


def prompt_of(task: DispatchSubagent, registry: PromptRegistry) -> Prompt[Any]:
    """Return the prompt that a task names.

    Raises:
        ToolValidationError: If there is none of that name, or it is disabled; it lists those that are enabled.
    """
    if registry.is_enabled(task.prompt_ns, task.prompt_key):
        return registry.get(task.prompt_ns, task.prompt_key)
    name = f"{task.prompt_ns}/{task.prompt_key}"
    known = [f"{prompt.ns}/{prompt.key}" for prompt in registry.enabled]
    disabled = (task.prompt_ns, task.prompt_key) in registry
    near = [] if disabled else difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    what = "is disabled" if disabled else "does not exist"
    raise ToolValidationError(
        f"the subagent {_shown(name)} {what}.{meant} Enabled subagents: {', '.join(known) or 'none'}"
    )


def check_version(task: DispatchSubagent, snapshot: Snapshot) -> None:
    """Refuse a task that relies on another version of snapshots than this session writes.

    Raises:
        ToolValidationError: Naming both.
    """
    wanted = task.snapshot_version
    if wanted is not None and wanted.strip() != str(snapshot.version):
        raise ToolValidationError(
            f"snapshot_version is {_shown(wanted)}, but this session's snapshots have version {snapshot.version};"
            f' give "{snapshot.version}", or leave it out'
        )


def _text(given: str, what: str, most: int) -> str:
    """Return a text without the space around it."""
    text = given.strip()
    if not text:
        raise ToolValidationError(f"{what} must not be empty; give 1 to {most:,} ASCII characters")
    if len(text) > most:
        raise ToolValidationError(
            f"{what} may have {most:,} characters, and this has {len(text):,}: {_shown(text)}; shorten it"
        )
    if not text.isascii():
        place, strange = next((place, char) for place, char in enumerate(text) if not char.isascii())
        raise ToolValidationError(
            f"{what} must be plain ASCII; {strange!r} (character {place + 1}) is not; write it with ASCII characters"
        )
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
