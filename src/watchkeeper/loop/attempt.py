"""How one attempt at a tool call went: in one word, and in what the model is told.

An attempt that failed says whether it may have had an effect. It is repeated only as `may_retry` says. A result that
the log could not keep is a failure, and so is an image whose cost no ceiling could hold.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from watchkeeper.asking.retry import held_back
from watchkeeper.containment.in_flight import CALL_TIMEOUT
from watchkeeper.containment.record import Outcome
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import Stop, ToolProcessError, ToolValidationError
from watchkeeper.core.messages import ImagePart, ToolCall
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import CrashError, error_text, traceback_text
from watchkeeper.runtime.parking import NOT_RUN, CallParked
from watchkeeper.runtime.plan import MAX_RESULT_BYTES, NotOnRecordError
from watchkeeper.session.tagging import check
from watchkeeper.tools.context import ToolContext, ToolOutcome
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.tool import Tool
from watchkeeper.tools.values import MOST_RESULT_LEVELS, MOST_RESULT_VALUES, ToolResult

DEADLINE_MESSAGE: Final = "deadline exceeded"
"""The text of a tool's result when the deadline was exceeded."""

UNBOUNDED_IMAGE: Final = (
    "The image cannot be shown: the tool returned an image that has no token bound, but a ceiling on cost or tokens is"
    " in force; its code must say ImagePart(..., max_tokens=...)"
)
"""The text of a tool's result that holds an image whose cost no ceiling could hold."""

MAYBE_EFFECT: Final = "It may have had an effect all the same."
"""What the model is told besides of a failed attempt that is not repeated, because nobody knows what it has done."""

NO_EFFECT: Final = "It had no effect."
"""What the model is told besides of an attempt that failed before it did anything."""


class Attempt(msgspec.Struct, frozen=True):
    """How one attempt at a call went.

    Attributes:
        outcome: In one word.
        result: What the model is told.
        number: 1 for the first attempt at the call.
        params: The decoded arguments, or the raw text where they could not be decoded.
        context: What the tool was given, if it ran.
        stop: Set if the gate stopped the work here.
        node_id: The admitted call at the gate, if it was admitted.
        duration_ms: From admission to result.
        halted: Whether the gate or a hook gave a stop for it.
        did_nothing: Whether it certainly had no effect, if it failed.
        parks: The question for which the run parks, instead of a result; or None.
        traceback: Where the tool raised, if it crashed.
    """

    outcome: ToolOutcome
    result: ToolResult[Any]
    number: int = 1
    params: Any = None
    context: ToolContext | None = None
    stop: Stop | None = None
    node_id: str | None = None
    duration_ms: float = 0.0
    halted: bool = False
    did_nothing: bool = False
    parks: CallParked | None = None
    traceback: str = ""


def not_run(call: ToolCall, stop: Stop) -> Attempt:
    """Return the result of a call that was not run because an earlier call stopped the run."""
    said = DEADLINE_MESSAGE if stop.reason == "timeout" else f"{NOT_RUN}{stop.message}"
    return Attempt("skipped", ToolResult.error(said), params=call.arguments)


def not_asked(attempt: Attempt, question: CallParked) -> Attempt:
    """Return the result of a call whose question cannot be put on record, so that nobody will answer it."""
    if question.kind != "tool":
        return attempt
    said = f"{question.name} was stopped, and nothing was changed: its question to a person cannot be put on record."
    return replace(attempt, outcome="denied", result=ToolResult.error(said))


def may_retry(attempt: Attempt, tool: Tool) -> bool:
    """Return whether a call is attempted again after this attempt; nothing else decides that.

    Of a tool that is neither read-only nor idempotent only an attempt that certainly had no effect is repeated.
    """
    failed = attempt.outcome in ("crashed", "timeout") and attempt.stop is None and attempt.parks is None
    harmless = tool.may_repeat or attempt.did_nothing
    return failed and harmless and not attempt.halted and attempt.number <= tool.retries


def classify(
    tool: Tool, outcome: Outcome[ToolResult[Any]], stop: Stop | None, *, did_nothing: bool, has_files: bool
) -> tuple[ToolOutcome, ToolResult[Any]]:
    """Say in one word how an attempt went, and what the model is told about it.

    Args:
        tool: The tool.
        outcome: What became of the call.
        stop: That of the run, if the call was stopped by it.
        did_nothing: Whether it certainly had no effect, if it failed.
        has_files: Whether the run has files.
    """
    if stop is not None:
        if stop.reason == "timeout":
            begun = outcome.admitted and not did_nothing
            said = with_effect(DEADLINE_MESSAGE, tool, did_nothing=False) if begun else DEADLINE_MESSAGE
            return "deadline", ToolResult.error(said)
        if outcome.admitted:
            return "cancelled", ToolResult.error(f"stopped midway: {stop.message}")
        return "denied", ToolResult.error(f"{NOT_RUN}{stop.message}")
    if not outcome.admitted:
        said = held_back(outcome) if outcome.stop is None else outcome.stop.message
        return "denied", ToolResult.error(f"{tool.name} was not run, and nothing was changed: {said}")
    if outcome.error is None:
        result: Any = outcome.value
        return "ok" if result.success else "failed", result
    if isinstance(outcome.error, NotOnRecordError):
        return "denied", ToolResult.error(f"{tool.name} was not run, and nothing was changed: {outcome.error}")
    if outcome.stop_reason == CALL_TIMEOUT:
        said = f"{tool.name} did not finish within {format_duration(tool.timeout or 0)} and was stopped."
        return "timeout", ToolResult.error(with_effect(said, tool, did_nothing=did_nothing))
    if isinstance(outcome.error, ToolValidationError):
        return "invalid", ToolResult.error(refusal(outcome.error))
    if isinstance(outcome.error, ToolProcessError | CrashError):
        return "crashed", ToolResult.error(
            with_effect(f"{tool.name} failed: {outcome.error}", tool, did_nothing=did_nothing)
        )
    said = f"{tool.name} failed: {why_of(outcome)}{missed_files(outcome.error, has_files=has_files)}"
    return "crashed", ToolResult.error(with_effect(said, tool, did_nothing=did_nothing))


def with_effect(said: str, tool: Tool, *, did_nothing: bool) -> str:
    """Return the message of an attempt that failed, with what is known of its effect where that matters."""
    if tool.may_repeat and not did_nothing:
        return said
    return f"{said}{'' if said.endswith(('.', '!', '?')) else '.'} {NO_EFFECT if did_nothing else MAYBE_EFFECT}"


def refusal(error: ToolValidationError | CodecError) -> str:
    """Return what a refusal of arguments says; the user's code may have raised it with anything."""
    try:
        return str(error)
    except Exception:
        return error_text(error)


def missed_files(error: BaseException | None, *, has_files: bool) -> str:
    """Return a hint if a tool crashed because it used the filesystem in a run without files; else an empty text."""
    if has_files or not isinstance(error, AttributeError) or error.obj is not None or error.name is None:
        return ""
    if not hasattr(Filesystem, error.name):
        return ""
    return "; this run has no files: context.filesystem is None unless the run is given filesystem=HostFilesystem(...)"


def recordable(attempt: Attempt, bounds_input: bool) -> tuple[Attempt, str, tuple[ImagePart, ...]]:
    """Return the attempt and the text and images of its result, or a failure in its place.

    Args:
        attempt: What a call has come to; it fails if the log could not keep its result.
        bounds_input: Whether a ceiling has to hold the tokens of each image; one without a bound is then a failure.
    """
    where = ""
    try:
        check(attempt.result, MOST_RESULT_VALUES, MOST_RESULT_LEVELS)
        text, images = attempt.result.shown()
        if type(text) is not str:
            why = f"its message is of the type {type(text).__name__}, not a text"
        elif bounds_input and any(image.max_tokens is None for image in images):
            return failed(attempt, UNBOUNDED_IMAGE)
        else:
            return attempt, text, images
    except CodecError as error:
        why = str(error)
    except Exception as error:  # the code of the value's type ran
        why = error_text(error)
        where = raised_at(error, why)
    return failed(attempt, f"The result cannot be recorded: {why}", where)


def failed(attempt: Attempt, said: str, traceback: str = "") -> tuple[Attempt, str, tuple[ImagePart, ...]]:
    """Return an attempt as one that crashed for a reason, and what the model is shown of it."""
    return replace(attempt, outcome="crashed", result=ToolResult.error(said), traceback=traceback), said, ()


def why_of(outcome: Outcome[Any]) -> str:
    """Return what a call raised, as text; its message has been read already, which can take long."""
    ending = None if outcome.node is None else outcome.node.ending
    return ending.error if ending is not None and ending.error is not None else error_text(outcome.error)


def raised_at(error: BaseException | None, said: str) -> str:
    """Return the traceback of what the user's code raised, as text for the log; the process of a tool sends its own."""
    if isinstance(error, ToolProcessError):
        return error.traceback
    if isinstance(error, CrashError) and error.__cause__ is not None:
        error = error.__cause__
    return "" if error is None else traceback_text(error, said)


def cut(text: str) -> str:
    """Cut a tool's text to `MAX_RESULT_BYTES` for the model, with a note; the log keeps the whole result."""
    if len(text) <= MAX_RESULT_BYTES and text.isascii():
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_RESULT_BYTES:
        return data.decode()
    shown = data[:MAX_RESULT_BYTES].decode("utf-8", "ignore")
    return f"{shown}\n[cut: the first {MAX_RESULT_BYTES:,} of {len(data):,} bytes are shown]"
