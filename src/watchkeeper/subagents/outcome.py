"""From the end of a child run to what its parent is told: short, whole, and nothing of the conversation between.

What enters the parent's transcript is bounded here, in bytes, whatever the child said: the summary with its notes, or
the sentence that says why there is none. The child's log keeps the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from watchkeeper.core.codec import CodecError, display, encode
from watchkeeper.core.errors import DispatchSubagentError
from watchkeeper.runtime.excerpt import shortened
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.snapshot import Snapshot
from watchkeeper.subagents.payloads import Artifact, DispatchSubagent, DispatchSubagentResult
from watchkeeper.subagents.workspace import ChildFiles, HandedOver
from watchkeeper.tools.invoked import ToolInvoked

SUMMARY_BYTES: Final = 1_536
"""What one child adds to its parent's transcript at most, as UTF-8."""

NOTES_BYTES: Final = 512
"""The part of it that notes about files and verdict may take."""


def collected(
    task: DispatchSubagent, result: RunResult[Any], snapshot: Snapshot, files: ChildFiles
) -> DispatchSubagentResult:
    """Return what a child that completed its work hands back; its artifacts are the parent's then.

    Raises:
        DispatchSubagentError: If its structured output has no JSON form; then nothing of its files is handed over.
    """
    output = None if isinstance(result.output, str) else as_json(task, result.output)
    recorded = recorded_artifacts(result, snapshot)
    handed = files.hand_over(dict.fromkeys((*task.expected_artifacts, *recorded)))
    notes = shortened(
        "\n".join(_notes(task, result, recorded, handed, has_files=files.overlay is not None)), NOTES_BYTES
    )
    said = shortened(_said(result, output), SUMMARY_BYTES - len(notes.encode()) - 1 if notes else SUMMARY_BYTES)
    there = {*handed.kept, *handed.unchanged, *recorded} - handed.failed.keys()
    return DispatchSubagentResult(
        prompt_ns=task.prompt_ns,
        prompt_key=task.prompt_key,
        message_summary=f"{said}\n{notes}" if notes else said,
        artifacts=tuple(path for path in dict.fromkeys((*task.expected_artifacts, *recorded)) if path in there),
        tools_used=tools_used(result),
        output=output,
        plan_step_id=task.plan_step_id,
        run_id=result.run_id,
        completion=result.completion,
        failed_artifacts=tuple(handed.failed),
    )


def failure(name: str, result: RunResult[Any]) -> DispatchSubagentError:
    """Return the error of a child that was stopped: why, by which limit, and what it had."""
    stop = result.stop
    why = "it has no output" if stop is None else stop.message.rstrip(".")
    limit = f" (limit: {stop.limit})" if stop is not None and stop.limit and stop.limit not in why else ""
    text = f"The subagent {name} was stopped before its work was done: {why}{limit}."
    had = result.partial if result.partial is not None else result.text
    said = display(had).strip()
    if said:
        text = shortened(text, SUMMARY_BYTES // 2)
        text = f"{text} It handed over:\n{shortened(said, SUMMARY_BYTES - len(text.encode()) - 20)}"
    return DispatchSubagentError(shortened(text, SUMMARY_BYTES))


def broken(name: str, error: BaseException) -> DispatchSubagentError:
    """Return the error of a child that could not be started, or that was broken off."""
    said = str(error).rstrip(".") or type(error).__name__
    return DispatchSubagentError(shortened(f"The subagent {name} did not run to its end: {said}.", SUMMARY_BYTES))


def tools_used(result: RunResult[Any]) -> tuple[str, ...]:
    """Return the names of the tools that a child really called, in the order of first use."""
    calls = (envelope.event for envelope in result.session.log if isinstance(envelope.event, ToolInvoked))
    return tuple(dict.fromkeys(call.name for call in calls if call.node_id is not None))


def recorded_artifacts(result: RunResult[Any], snapshot: Snapshot) -> tuple[str, ...]:
    """Return the paths that tools or reducers recorded as artifacts in a child's session, each once."""
    items = result.session[Artifact].all()
    if not items:
        return ()
    found = Counter(items)
    found.subtract(snapshot[Artifact])
    return tuple(artifact.path for artifact, count in found.items() if count > 0)


def as_json(task: DispatchSubagent, output: Any) -> Any:
    """Return an output as JSON values.

    Raises:
        DispatchSubagentError: If it has no JSON form.
    """
    try:
        return msgspec.json.decode(encode(output))
    except (CodecError, msgspec.DecodeError) as error:
        raise DispatchSubagentError(
            f"The subagent {task.prompt_ns}/{task.prompt_key} completed its work, but its output cannot be handed over:"
            f" {error}. Ask for the same in text, or dispatch another subagent."
        ) from error


def _said(result: RunResult[Any], output: Any) -> str:
    """Return a child's last words: text, the summary that its output has, or the output as JSON."""
    if output is None:
        return str(result.output or result.text).strip() or "Done; it said nothing."
    summary = cast("dict[str, Any]", output).get("summary") if isinstance(output, dict) else None
    return summary.strip() if isinstance(summary, str) and summary.strip() else display(output)


def _notes(
    task: DispatchSubagent, result: RunResult[Any], recorded: Iterable[str], handed: HandedOver, *, has_files: bool
) -> Iterable[str]:
    if handed.failed:
        yield "Not kept: " + "; ".join(f"{path} ({why})" for path, why in handed.failed.items())
    absent = [path for path in handed.absent if path in task.expected_artifacts and path not in recorded]
    if absent and has_files:
        yield f"Expected, but not left as files: {', '.join(absent)}"
    if result.completion == "unverified":
        yield f"Not verified: {' '.join(result.completion_note.split()) or 'no reason given'}"
    if handed.kept:
        yield f"Files kept: {', '.join(handed.kept)}"
    if handed.unchanged:
        yield f"Files left as they were: {', '.join(handed.unchanged)}"
    others = [path for path in handed.absent if path in recorded]
    if others:
        yield f"Recorded: {', '.join(others)}"
