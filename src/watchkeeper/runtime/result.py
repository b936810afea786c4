"""The result of a run: how it ended, and what it had produced. A run that is stopped returns a result, too.

`run_as_data` and `end_in_words` say what a run was, in the same keys and words for a result and for a stored run.
`result_of` folds the events of a run's start and end into its result; `transcript_of` folds its log into the
conversation, which is kept nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar, cast
from uuid import UUID

from watchkeeper.core.codec import to_builtins
from watchkeeper.core.errors import RunStoppedError, Stop
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    Part,
    ToolCall,
    ToolMessage,
    Transcript,
    UserMessage,
)
from watchkeeper.core.model import CompletionState
from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.text import is_logged, logger
from watchkeeper.core.usage import NANOS_PER_USD, Usage
from watchkeeper.kernel.turn_machine import kept_message
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.events import (
    CallBegun,
    ContextCompacted,
    ModelFailed,
    ModelReplied,
    NoticeAppended,
    RunEnded,
    RunResumed,
    RunStarted,
)
from watchkeeper.runtime.parking import PARKED, CallParked, waiting
from watchkeeper.runtime.used_before import NOTHING_BEFORE, UsedBefore
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.values import ToolResult, image_parts

OutputT = TypeVar("OutputT")
GO_ON: Final = frozenset({"interrupted", "aborted", "cancelled", PARKED})
"""Stops after which an item goes on from its own record; after others it is begun anew."""

NOTHING_USED: Final = Usage()

NOTE_CHARS: Final = 200
"""Maximum length of a checker's explanation in the sentence of a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Generic[OutputT]):
    """The end of a run.

    Attributes:
        run_id: Its id, under which the store keeps it.
        prompt_name: ``ns/key`` of its prompt.
        model: ``provider:name`` of the model that was asked for.
        output: The typed answer of completed work, else None.
        stop: Why it ended early, else None.
        partial: What a stopped run had: a typed value if it fits, else text, else None.
        text: The last text the model gave.
        usage: Everything it used in all attempts, its children included.
        turns: Model turns.
        completion: The completion checker's last word: ``verified``, ``rejected`` or ``unverified``; ``unchecked`` if
            there is no checker, or the run was stopped before it had been asked.
        completion_note: What it said; for ``unverified``, why there is no verdict.
        limits: The limits that were in force.
        started_at: When it began.
        duration: How long it took.
        session: Its session: every event and every slice.
        error: The exception behind the stop, if there is one.
        item: Which item of a run over many this is, if it is one.
        answered_by: ``provider:name`` of the models that answered, in the order of their first answers; more than one
            if a fallback, or the cheaper model that a hook asked for, took over.
        not_stored: Why not all of its events are in the store, in a sentence; empty if they are, or if there is none.
        denied: Tool calls that a hook or a person has denied.
        earlier: The part of usage, turns and duration that its limits do not count: it is from before they were fresh.
    """

    run_id: UUID
    prompt_name: str
    model: str
    output: OutputT | None = None
    stop: Stop | None
    partial: OutputT | str | None = None
    text: str = ""
    usage: Usage = NOTHING_USED
    turns: int = 0
    completion: CompletionState = "unchecked"
    completion_note: str = ""
    limits: Limits
    started_at: datetime
    duration: timedelta = timedelta(0)
    session: Session = field(repr=False)
    error: BaseException | None = None
    item: str | None = None
    answered_by: tuple[str, ...] = ()
    not_stored: str = ""
    denied: int = 0
    earlier: UsedBefore = NOTHING_BEFORE

    @property
    def ok(self) -> bool:
        """Whether the work was completed."""
        return self.stop is None

    @property
    def cost(self) -> Decimal | None:
        """What it cost in US dollars, exact; None if a price was not known."""
        return self.usage.cost

    @property
    def waiting(self) -> tuple[CallParked, ...]:
        """The questions for which the run is parked; empty if it is not."""
        if self.stop is None or self.stop.reason != PARKED:
            return ()
        events = [envelope.event for envelope in self.session.log]
        began = max((place for place, event in enumerate(events) if isinstance(event, RunStarted)), default=0)
        return waiting(events[began:])

    def sentence(self) -> str:
        """Say in one sentence how the run ended, what it took, and what it had."""
        if self.stop is not None and self.usage.steps == 0:
            return with_note(self.stop.message, self.not_stored, self.stop)
        used = self.usage
        calls = (used.tool_calls, used.tokens.total, used.cost_nanos)
        presumed = used.presumed.tokens.total
        took = spent(self.turns, *calls, self.duration, denied=self.denied, presumed=presumed)
        stop = None if self.stop is None else self.stop.message
        said = end_in_words(took, stop, self.completion, self.completion_note, had=f"it had {self._had()}")
        return with_note(said, self.not_stored, self.stop)

    def _had(self) -> str:
        """Say what a stopped run hands over, with the checker's word on it where the stop does not say that."""
        words = {"rejected": ", after an answer that was rejected", "unverified": ", which was not verified"}
        judged = "" if self.stop is None or self.stop.source == "checker" else words.get(self.completion, "")
        if self.partial is None:
            return f"nothing to hand over{judged}"
        if isinstance(self.partial, str):
            return f"{counted(len(self.partial), 'character')} of text to hand over{judged}"
        return f"a partial {type(self.partial).__name__} to hand over{judged}"

    def unwrap(self) -> OutputT:
        """Return the output.

        Raises:
            RunStoppedError: If the run ended early; the error carries this result.
        """
        if self.stop is not None or self.output is None:
            stop = self.stop or Stop("error", "caller", "The run completed without an output.")
            raise RunStoppedError(self.sentence(), stop=stop, result=self)
        return self.output

    def as_data(self) -> dict[str, Any]:
        """Return the result as JSON-able data: everything but the session."""
        return run_as_data(
            run_id=self.run_id,
            item=self.item,
            prompt=self.prompt_name,
            model=self.model,
            answered_by=self.answered_by,
            output=self.output,
            partial=self.partial,
            completion=self.completion,
            completion_note=self.completion_note,
            turns=self.turns,
            started_at=self.started_at,
            denied=self.denied,
            waiting=tuple(question.as_data() for question in self.waiting),
            **_common(self),
        )


def result_of(started: RunStarted, ended: RunEnded, *, limits: Limits, session: Session, **more: Any) -> RunResult[Any]:
    """Return the result that follows from the events of a run's start and end.

    Args:
        started: The event of its start.
        ended: The event of its end.
        limits: The limits that were in force.
        session: The session of the run.
        more: What the events do not tell: ``completion_note``, ``error`` and ``answered_by``.
    """
    return RunResult(
        run_id=ended.run_id,
        prompt_name=started.prompt_name,
        model=started.model,
        output=ended.output,
        stop=ended.stop,
        partial=ended.partial,
        text=ended.text,
        usage=ended.usage + ended.earlier.usage,
        turns=(ended.turns or 0) + ended.earlier.turns,
        denied=ended.denied,
        earlier=ended.earlier,
        completion=ended.verdict,
        limits=limits,
        started_at=started.started_at,
        duration=timedelta(milliseconds=ended.duration_ms, seconds=ended.earlier.seconds),
        session=session,
        item=started.item,
        **more,
    )


def broken_off(error: BaseException) -> Stop:
    """Return the stop of a run that has no result because ``error`` was raised in it."""
    said = f"The run was broken off: {type(error).__name__}{': ' if str(error) else ''}{error}"
    return Stop("error" if isinstance(error, Exception) else "aborted", "caller", said)


@dataclass(frozen=True, slots=True)
class ManyResult(Generic[OutputT]):
    """The end of a run over many items.

    Attributes:
        run_id: Id of the whole.
        results: One result per item, in the items' order.
        stop: What ended the whole early, else None.
        usage: Everything all items used in all attempts.
        limits: The ceilings over all.
        duration: How long it took.
        not_stored: Why not all of its events are in the store, in a sentence; empty if they are, or if there is none.
        earlier: The part of usage and duration that its limits do not count: it is from before they were fresh.
    """

    run_id: UUID
    results: tuple[RunResult[OutputT], ...]
    stop: Stop | None
    usage: Usage
    limits: Limits
    duration: timedelta
    not_stored: str = ""
    earlier: UsedBefore = NOTHING_BEFORE

    @property
    def done(self) -> tuple[RunResult[OutputT], ...]:
        """The items whose work was completed."""
        return tuple(result for result in self.results if result.ok)

    @property
    def not_done(self) -> tuple[RunResult[Any], ...]:
        """The items that failed, or that a limit left open."""
        return tuple(result for result in self.results if not result.ok)

    @property
    def ok(self) -> bool:
        """Whether the work of every item was completed, and nothing stopped the whole."""
        return self.stop is None and not self.not_done

    @property
    def cost(self) -> Decimal | None:
        """What all items cost in US dollars, exact; None if a price was not known."""
        return self.usage.cost

    def __len__(self) -> int:
        """Return how many items there were."""
        return len(self.results)

    def __iter__(self) -> Iterator[RunResult[OutputT]]:
        """Iterate over the results, in the items' order."""
        return iter(self.results)

    def __bool__(self) -> bool:
        """Return True, also for a result without items; ``ok`` tells whether the work was completed."""
        return True

    def unwrap(self) -> tuple[OutputT, ...]:
        """Return the outputs, in the items' order.

        Raises:
            RunStoppedError: If an item was not done, or the whole was stopped; its stop is that of the whole, or else
                of the first such item, and it carries this result.
        """
        outputs: list[OutputT] = []
        for result in self.results:
            try:
                outputs.append(result.unwrap())
            except RunStoppedError as error:
                said = f"{self.sentence().rstrip('.')}; {result.item!r}: {error}"
                raise RunStoppedError(said, stop=self.stop or error.stop, result=self) from result.error
        if self.stop is not None:
            raise RunStoppedError(self.sentence(), stop=self.stop, result=self)
        return tuple(outputs)

    def sentence(self) -> str:
        """Say in one sentence how the whole ended."""
        used, denied = self.usage, sum(result.denied for result in self.results)
        calls = (used.tool_calls, used.tokens.total, used.cost_nanos)
        took = spent(None, *calls, self.duration, denied=denied, presumed=used.presumed.tokens.total)
        unverified = sum(result.completion == "unverified" for result in self.done)
        note = f", {unverified} of them not verified" if unverified else ""
        done = f"{items_done(len(self.done), len(self.results))}{note}"
        said = end_in_words(took, None if self.stop is None else self.stop.message, done=done)
        return with_note(said, self.not_stored, self.stop)

    def as_data(self) -> dict[str, Any]:
        """Return the whole and its results as JSON-able data."""
        results = [result.as_data() for result in self.results]
        return run_as_data(
            run_id=self.run_id, items=len(self), items_done=len(self.done), results=results, **_common(self)
        )


# --- a run as data and in words: the same from a result, an event and the store -------------------------------------

KEYS: Final = (
    "run_id",
    "parent_id",
    "item",
    "prompt",
    "model",
    "answered_by",
    "ok",
    "items",
    "items_done",
    "output",
    "stop",
    "partial",
    "completion",
    "completion_note",
    "turns",
    "tokens",
    "usage",
    "earlier",
    "cost_usd",
    "duration_seconds",
    "limits",
    "started_at",
    "ended_at",
    "running",
    "process",
    "not_stored",
    "denied",
    "waiting",
    "damage",
    "sentence",
    "results",
)
"""The keys of a run's JSON, in order; a result, a result over many and a stored run each have some of them."""


def run_as_data(**facts: Any) -> dict[str, Any]:
    """Return what is known of a run as JSON-able data, in the order of `KEYS`; None for what is not known yet.

    Args:
        facts: By key; others are left out. Money is given in nano-dollars and written exactly in dollars, a length is
            given in seconds.
    """
    cost, seconds = facts.get("cost_usd"), facts.get("duration_seconds")
    facts["run_id"] = str(facts["run_id"])
    facts["cost_usd"] = None if cost is None else f"{(Decimal(cost) / NANOS_PER_USD).normalize():f}"
    facts["duration_seconds"] = None if seconds is None else round(seconds, 3)
    for key in ("started_at", "ended_at"):
        if facts.get(key) is not None:
            facts[key] = facts[key].isoformat()
    return {key: to_builtins(facts[key]) for key in KEYS if key in facts}


def _common(result: RunResult[Any] | ManyResult[Any]) -> dict[str, Any]:
    """Return the facts that one run and a run over many have in common."""
    return {
        "ok": result.ok,
        "stop": result.stop,
        "tokens": result.usage.tokens.total,
        "usage": result.usage,
        **({} if result.earlier == NOTHING_BEFORE else {"earlier": result.earlier}),
        "cost_usd": result.usage.cost_nanos,
        "duration_seconds": result.duration.total_seconds(),
        "limits": result.limits.describe(),
        "not_stored": result.not_stored,
        "sentence": result.sentence(),
    }


def end_in_words(
    took: str, stop: str | None, completion: str | None = None, note: str = "", *, done: str = "", had: str = ""
) -> str:
    """Say in one sentence how a run ended.

    Args:
        took: Usage and duration in words, as `spent` returns them.
        stop: The message of what ended it early, or None.
        completion: The checker's last word, or None.
        note: The explanation of the completion checker.
        done: How many items are done, of a run over many.
        had: What a stopped run hands over.
    """
    if stop is not None:
        end = f"{done or had} ({took})" if done or had else f"it used {took}"
        return f"{stop.rstrip('.')}; {end}."
    if completion == "unverified":
        said = " ".join(note.split()).rstrip(".") or "no reason given"
        said = said if len(said) <= NOTE_CHARS else f"{said[: NOTE_CHARS - 1]}…"
        return f"Done, but not verified: {said} ({took})."
    return f"{done or 'Done'}{' and verified' if completion == 'verified' else ''}: {took}."


def with_note(said: str, not_stored: str, stop: Stop | None) -> str:
    """Add to a sentence about a run which events are not stored, unless its stop says that already."""
    if not not_stored or (stop is not None and stop.reason == "store_failed"):
        return said
    return f"{said} {not_stored.rstrip('.')}."


def items_done(done: int | None, items: int) -> str:
    """Say how many items are done."""
    return f"{done} of {items} items done"


NOT_STARTED: Final = "Not started: "
"""How the stop of an item begins that was not started."""


def spent(
    turns: int | None,
    tool_calls: int,
    tokens: int,
    cost_nanos: int | None,
    duration: timedelta | float | None,
    model_calls: int | None = None,
    denied: int = 0,
    presumed: int = 0,
) -> str:
    """Say what a run took, in the same words wherever it is said.

    Args:
        turns: Model turns; None where they are not counted: a run over many items has none of its own.
        tool_calls: Admitted tool calls.
        tokens: Input and output tokens.
        cost_nanos: Nano-dollars; None if a price was not known.
        duration: A length, or seconds; None if it is not known.
        model_calls: Model calls of a contained block, which has no turns; None for a run.
        denied: Tool calls that a hook or a person has denied; said only if there are any.
        presumed: The part of the tokens that is a worst case, because it is not known; said only if there is one.
    """
    parts = [] if turns is None else [counted(turns, "turn")]
    parts += [] if model_calls is None else [counted(model_calls, "model call")]
    parts += [counted(tool_calls, "tool call"), *([f"{denied:,} denied"] if denied else [])]
    parts.append(counted(tokens, "token") + (f" ({presumed:,} of them presumed)" if presumed else ""))
    parts.append("cost unknown" if cost_nanos is None else format_money(cost_nanos))
    return ", ".join(parts if duration is None else [*parts, format_duration(duration)])


def log_end(
    line: str, ids: Mapping[str, str], prompt: str, stop: Stop | None, completion: str, usage: Usage, **more: Any
) -> None:
    """Write one structured log line about the end of a run.

    Args:
        line: The name of the log line.
        ids: The identifiers of the run.
        prompt: ``ns/key`` of the run's prompt.
        stop: Why it ended early, or None.
        completion: The verdict of the completion checker.
        usage: The usage of the run.
        **more: What else the line says, such as times.
    """
    if is_logged(logging.INFO):
        logger().info(
            line,
            **ids,
            prompt=prompt,
            stop=stop.reason if stop else None,
            completion=completion,
            **more,
            tokens=usage.tokens.total,
            cost_usd=None if usage.cost is None else float(usage.cost),
        )


# --- folds of the log -----------------------------------------------------------------------------------------------


def segment_of(old: Sequence[Message], opening: Iterable[int], summary: str, kept: int) -> tuple[Message, ...]:
    """Return what a new segment begins with: the old one's opening, the summary, and its newest messages.

    The loop and `transcript_of` build it with this, so what is replayed is what was sent.
    """
    return (*(old[place] for place in opening), UserMessage.of(summary), *old[len(old) - kept :])


def transcript_of(log: Iterable[Envelope]) -> Transcript:
    """Return the conversation that is recorded on a log.

    A reply is followed by one message per tool call, in the order of the calls; of several attempts at a call the last
    one counts. A call without a result, because its run was broken off, gets an answer that says so, because providers
    refuse unanswered calls. If the conversation was compacted, its newest segment is returned.
    """
    transcript = Transcript()
    results: dict[str, ToolMessage] = {}
    images: dict[str, tuple[Part, ...]] = {}

    def flush() -> None:
        for message in results.values():
            transcript.append(message)
        shown = tuple(part for call_id in results for part in images.get(call_id, ()))
        if shown:
            transcript.append(UserMessage(shown))
        results.clear()
        images.clear()

    for envelope in as_continued(log):
        match envelope.event:
            case ToolInvoked(call_id=str(call_id), name=name, rendered_output=text) as invoked:
                results[call_id] = ToolMessage(call_id, name, text, is_error=not invoked.success)
                images[call_id] = image_parts(name, images_of(invoked.result))
            case PromptRendered(messages=messages):
                flush()
                for message in messages:
                    transcript.append(message)
            case ModelReplied(message=message, finish=finish, landing=landing):
                flush()
                kept = kept_message(message, finish, landing=landing)
                if kept is not None:
                    transcript.append(kept)
                    results.update((call.call_id, unanswered(call)) for call in kept.tool_calls)
            case ModelFailed(text=text) if text:
                flush()
                transcript.append(AssistantMessage(text=text))
            case NoticeAppended(text=text) | ObserversRan(text=text) if text:
                flush()
                transcript.append(UserMessage.of(text))
            case ContextCompacted(opening=opening, summary=summary, kept=kept):
                flush()
                transcript.begin_segment(segment_of(list(transcript), opening, summary, kept))
            case _:
                pass
    flush()
    return transcript


def as_continued(log: Iterable[Envelope]) -> Sequence[Envelope]:
    """Return the events of a log without those that a resumed run has taken back: its end, and its last turn."""
    kept: list[Envelope] = []
    for envelope in log:
        if isinstance(envelope.event, RunResumed):
            count = len(kept)
            while kept and kept[-1].seq > envelope.event.after:
                kept.pop()
            while len(kept) < count and isinstance(kept[-1].event, CallBegun):  # it was a part of what is taken back
                kept.pop()
        kept.append(envelope)
    return kept


def images_of(result: object) -> tuple[ImagePart, ...]:
    """Return the images in a recorded result."""
    return cast("ToolResult[object]", result).shown()[1] if isinstance(result, ToolResult) else ()


def unanswered(call: ToolCall) -> ToolMessage:
    """Return the message that answers a tool call whose run ended before the call did."""
    said = "no result: the run was broken off; the call may or may not have had its effect"
    return ToolMessage(call.call_id, call.name, said, is_error=True)
