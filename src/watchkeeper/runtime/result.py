"""How a run ended, and everything it had by then. A stop is a result, never only an exception."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from watchkeeper.core.errors import RunStoppedError, Stop
from watchkeeper.core.limits import Limits
from watchkeeper.core.messages import ToolCall, ToolMessage, Transcript, UserMessage
from watchkeeper.core.model import CompletionState
from watchkeeper.core.quantities import format_duration, format_money
from watchkeeper.core.usage import Usage
from watchkeeper.kernel.turn_machine import kept_message
from watchkeeper.prompt.rendered import PromptRendered
from watchkeeper.runtime.events import ContextCompacted, ModelReplied, NoticeAppended, ObserversRan, segment_of
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked

OutputT = TypeVar("OutputT")


SAID_CHARS: Final = 200
"""How much of a checker's explanation stands in the sentence of a result."""


@dataclass(frozen=True, slots=True)
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
        usage: Everything it used, its children included.
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
    """

    run_id: UUID
    prompt_name: str
    model: str
    output: OutputT | None
    stop: Stop | None
    partial: OutputT | str | None
    text: str
    usage: Usage
    turns: int
    completion: CompletionState
    completion_note: str
    limits: Limits
    started_at: datetime
    duration: timedelta
    session: Session = field(repr=False)
    error: BaseException | None = None
    item: str | None = None
    answered_by: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the work was completed."""
        return self.stop is None

    @property
    def cost(self) -> Decimal | None:
        """What it cost in US dollars, exact; None if a price was not known."""
        return self.usage.cost

    def sentence(self) -> str:
        """Say in one sentence how the run ended, what it took, and what it had."""
        took = spent(self.turns, self.usage.tool_calls, self.usage.tokens.total, self.usage.cost_nanos, self.duration)
        if self.stop is None:
            if self.completion == "unverified":
                return f"Done, but not verified: {self._noted()} ({took})."
            return f"Done{' and verified' if self.completion == 'verified' else ''}: {took}."
        if self.usage.steps == 0:
            return self.stop.message
        return f"{self.stop.message.rstrip('.')}; it had {self._had()}{self._judged(self.stop)} ({took})."

    def _noted(self) -> str:
        """Return what the checker said as it can stand in a sentence."""
        said = " ".join(self.completion_note.split()).rstrip(".") or "no reason given"
        return said if len(said) <= SAID_CHARS else f"{said[: SAID_CHARS - 1]}…"

    def _judged(self, stop: Stop) -> str:
        """Return the checker's word on a stopped run, where the stop does not say it."""
        words = {"rejected": ", after an answer that was rejected", "unverified": ", which was not verified"}
        return "" if stop.source == "checker" else words.get(self.completion, "")

    def _had(self) -> str:
        if self.partial is None:
            return "nothing to hand over"
        if isinstance(self.partial, str):
            size = len(self.partial)
            return f"{size:,} character{'s' if size != 1 else ''} of text to hand over"
        return f"a partial {type(self.partial).__name__} to hand over"

    def unwrap(self) -> OutputT:
        """Return the output.

        Raises:
            RunStoppedError: If the run ended early; the error carries this result.
        """
        if self.stop is not None or self.output is None:
            stop = self.stop or Stop("error", "caller", "The run completed without an output.")
            raise RunStoppedError(self.sentence(), stop=stop, result=self)
        return self.output


NOTHING_USED: Final = Usage()


def broken_off(error: BaseException) -> Stop:
    """Return the stop of a run that has no result of its own because this was raised in it."""
    said = f"The run was broken off: {type(error).__name__}{': ' if str(error) else ''}{error}"
    return Stop("error" if isinstance(error, Exception) else "aborted", "caller", said)


def without_output(
    stop: Stop,
    *,
    run_id: UUID,
    prompt_name: str,
    model: str,
    limits: Limits,
    session: Session,
    usage: Usage = NOTHING_USED,
    error: BaseException | None = None,
    item: str | None = None,
) -> RunResult[Any]:
    """Return the result of a run whose loop never began, or was broken off."""
    return RunResult(
        run_id=run_id,
        prompt_name=prompt_name,
        model=model,
        output=None,
        stop=stop,
        partial=None,
        text="",
        usage=usage,
        turns=0,
        completion="unchecked",
        completion_note="",
        limits=limits,
        started_at=session.clock.now(),
        duration=timedelta(0),
        session=session,
        error=error,
        item=item,
    )


def spent(
    turns: int | None, tool_calls: int, tokens: int, cost_nanos: int | None, duration: timedelta | float | None
) -> str:
    """Say what a run took, in the same words wherever it is said.

    Args:
        turns: Model turns; None where they are not counted: a run over many items has none of its own.
        tool_calls: Admitted tool calls.
        tokens: Input and output tokens.
        cost_nanos: Nano-dollars; None if a price was not known.
        duration: A length, or seconds; None if it is not known.
    """
    parts = [] if turns is None else [_counted(turns, "turn")]
    parts += [_counted(tool_calls, "tool call"), _counted(tokens, "token")]
    parts.append("cost unknown" if cost_nanos is None else format_money(cost_nanos))
    return ", ".join(parts if duration is None else [*parts, format_duration(duration)])


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


@dataclass(frozen=True, slots=True)
class ManyResult(Generic[OutputT]):
    """The end of a run over many items.

    Attributes:
        run_id: Id of the whole.
        results: One result per item, in the items' order.
        stop: What ended the whole early, else None.
        usage: Everything all items used.
        limits: The ceilings over all.
        duration: How long it took.
    """

    run_id: UUID
    results: tuple[RunResult[OutputT], ...]
    stop: Stop | None
    usage: Usage
    limits: Limits
    duration: timedelta

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
        """Whether the work of every item was completed."""
        return not self.not_done

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
        """Return True: a result over no items is a result all the same; ask ``ok`` whether the work was completed."""
        return True

    def unwrap(self) -> tuple[OutputT, ...]:
        """Return the outputs, in the items' order.

        Raises:
            RunStoppedError: If an item was not done; its stop is that of the whole, or else of the first such item, and
                it carries this result.
        """
        outputs: list[OutputT] = []
        for result in self.results:
            try:
                outputs.append(result.unwrap())
            except RunStoppedError as error:
                said = f"{self.sentence().rstrip('.')}; {result.item!r}: {error}"
                raise RunStoppedError(said, stop=self.stop or error.stop, result=self) from result.error
        return tuple(outputs)

    def sentence(self) -> str:
        """Say in one sentence how the whole ended."""
        took = spent(None, self.usage.tool_calls, self.usage.tokens.total, self.usage.cost_nanos, self.duration)
        count = f"{len(self.done)} of {len(self.results)} items done{self._unverified()}"
        return f"{count}: {took}." if self.stop is None else f"{self.stop.message.rstrip('.')}; {count} ({took})."

    def _unverified(self) -> str:
        count = sum(result.completion == "unverified" for result in self.done)
        return f", {count} of them not verified" if count else ""


# --- replay ---------------------------------------------------------------------------------------------------------
# Folds of a run's log: what was said. The transcript is not kept beside the log, it is read from it.


def transcript_of(log: Iterable[Envelope]) -> Transcript:
    """Return the conversation that a log tells of.

    A reply is followed by one message per tool call, in the order of the calls; of several attempts at a call the last
    one counts. A call whose run was broken off before it had a result is answered with that, because providers refuse
    calls that nobody answered. Where the conversation was compacted, what is returned is its newest segment.
    """
    transcript = Transcript()
    results: dict[str, ToolMessage] = {}

    def flush() -> None:
        for message in results.values():
            transcript.append(message)
        results.clear()

    for envelope in log:
        match envelope.event:
            case ToolInvoked(call_id=str(call_id), name=name, rendered_output=text) as invoked:
                results[call_id] = ToolMessage(call_id, name, text, is_error=not invoked.success)
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


def unanswered(call: ToolCall) -> ToolMessage:
    """Return what a model is told of a call whose run ended before the call did."""
    said = "no result: the run was broken off; the call may or may not have had its effect"
    return ToolMessage(call.call_id, call.name, said, is_error=True)
