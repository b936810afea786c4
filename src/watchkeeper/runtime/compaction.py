"""Compaction: a conversation that no longer fits the model goes on as a summary of itself.

A child run, under a small share of what the run has left, reads the old segment as far as it fits and writes notes; the
new segment is the run's instructions and task, the notes with the limits that are left, and the newest messages. The
old segment stays on the log and nothing in it is changed. Where that cannot work, or would not make the conversation
smaller, the run is stopped by its full context, as it would have been: nothing here raises for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from watchkeeper.core.codec import encode
from watchkeeper.core.errors import StoreError
from watchkeeper.core.limits import Limits
from watchkeeper.core.messages import ImagePart, Message, SystemMessage, ToolMessage, UserMessage
from watchkeeper.core.price import ModelPrice
from watchkeeper.core.stop import Stop
from watchkeeper.core.transcript import Transcript
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.kernel.signals import Compacted, Stopped
from watchkeeper.prompt.events import PromptRendered
from watchkeeper.runtime.child import Children, ChildTask
from watchkeeper.runtime.compaction_events import ContextCompacted, segment_of
from watchkeeper.runtime.excerpt import excerpt, shortened
from watchkeeper.runtime.model_calls import ModelCalls
from watchkeeper.runtime.model_line import BYTES_PER_TOKEN
from watchkeeper.runtime.plan import RunHome
from watchkeeper.runtime.pricing import image_tokens, message_bytes
from watchkeeper.runtime.recorder import Recorder
from watchkeeper.runtime.summary import ContextSummary, limits_left, summary_message, summary_prompt
from watchkeeper.session.log import Envelope

SHARE: Final = 0.1
"""Share of the money and tokens that are left which a summary may cost at most."""

TIME_SHARE: Final = 0.3
"""Share of the time that is left which it may take."""

LEAST_TIME: Final = timedelta(seconds=1)

LARGEST_SEGMENT: Final = 0.75
"""Share of the room for a conversation that a new segment may take: more would be full again too soon."""

KEPT_SHARE: Final = 0.2
"""Share of that room for the newest messages, as they are."""

TASK_SHARE: Final = 0.25
"""Share of what the child reads that the task may take."""

MARGIN: Final = 0.9
"""Share of the window that is counted on, because sizes are guesses until the provider has counted."""

LEAST_READ: Final = 1_000
"""Bytes of a conversation below which nobody can summarise it."""

LEAST_OUTPUT: Final = 512
MOST_OUTPUT: Final = 8_192
"""Bounds of a summary's output cap in tokens, reasoning included; between them it is an eighth of the window."""

DENSEST: Final = 1.0
THINNEST: Final = 0.25
"""Bounds of the tokens that a byte is taken for; between them it is what the provider counted."""


class NoSummaryError(Exception):
    """The conversation cannot be compacted; says why."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large things are for the model in use.

    Attributes:
        density: Tokens for each byte.
        before: Tokens of the conversation as it stands, tools included.
        fixed: Tokens of what every request repeats: tools and the answer's schema.
        room: Tokens that a conversation may have before the context counts as full.
        window: Tokens that the model holds.
    """

    density: float
    before: int
    fixed: int
    room: int
    window: int

    def tokens(self, messages: Sequence[Message]) -> int:
        """Return a fair guess of the tokens of messages."""
        parts = (part for message in messages if isinstance(message, UserMessage) for part in message.parts)
        images = sum(image_tokens(part) for part in parts if isinstance(part, ImagePart))
        return int(self.density * sum(message_bytes(message) for message in messages)) + images


@dataclass(frozen=True, slots=True)
class Share:
    """What a summary may cost; None where no limit holds.

    Attributes:
        tokens: Input and output together.
        nanos: Nano-dollars.
        time: How long it may take.
    """

    tokens: int | None
    nanos: int | None
    time: timedelta | None


class Compaction:
    """Makes new segments for one run."""

    def __init__(
        self, home: RunHome, recorder: Recorder, models: ModelCalls, transcript: Transcript, children: Children
    ) -> None:
        """Take note of where the run's own prompt stands, before anything was said.

        Args:
            home: Where the run lives.
            recorder: Where to write.
            models: Which model is asked, and how much it holds.
            transcript: The conversation, with the prompt at its end.
            children: Starts the run that makes a summary.
        """
        self._home = home
        self._recorder = recorder
        self._models = models
        self._transcript = transcript
        self._children = children
        self._opening = opening_of(home.session.log, transcript)

    async def compact(self, stop: Stop, turns: int) -> Compacted | Stopped:
        """Begin a new segment; where that cannot be done, say what ends the work.

        Args:
            stop: That the context is full.
            turns: Model turns so far.

        Raises:
            StoreError: If the gate's ledger cannot be used.
        """
        try:
            return await self._compact(stop, turns)
        except NoSummaryError as error:
            why = str(error)
        except StoreError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        over = self._home.gate.stop or self._home.gate.work_stop
        said = f"{stop.message.rstrip('.')}; it could not be summarised: {why.rstrip('.')}."
        return Stopped(over or replace(stop, message=said))

    async def _compact(self, stop: Stop, turns: int) -> Compacted:
        old = list(self._transcript)
        scale = self._scale(stop, old)
        opening = [old[place] for place in self._opening]
        said = [message for place, message in enumerate(old) if place not in self._opening]
        largest = int(LARGEST_SEGMENT * scale.room) - scale.fixed - scale.tokens(opening)
        if not said or largest <= 0:
            raise NoSummaryError("the task alone fills the context")
        summary, run_id = await self._summarise(opening, said, scale)
        text = summary_message(summary, self._limits_left(turns))
        left = largest - scale.tokens([UserMessage.of(text)])
        if left < 0:
            raise NoSummaryError("the summary is too long for the context")
        newest = old[max(self._opening, default=-1) + 1 :]
        kept = newest_that_fit(newest, min(left, int(KEPT_SHARE * scale.room)), scale.tokens)
        messages = segment_of(old, self._opening, text, kept)
        self._recorder.record(
            ContextCompacted(
                segment=self._transcript.segment + 1,
                summary=text,
                opening=self._opening,
                kept=kept,
                left_out=len(said) - kept,
                tokens_before=scale.before,
                tokens_after=scale.fixed + scale.tokens(messages),
                run_id=run_id,
                turn=turns + 1,
                created_at=self._home.clock.now(),
            )
        )
        self._opening = tuple(range(len(opening)))
        return Compacted(messages)

    async def _summarise(
        self, opening: Sequence[Message], said: Sequence[Message], scale: Scale
    ) -> tuple[ContextSummary, UUID]:
        """Have the notes written, by a run whose worst case fits its share of what is left."""
        share, price = self._share(), self._models.line.in_use.price
        cap = min(max(scale.window // 8, LEAST_OUTPUT), MOST_OUTPUT)
        fixed = empty_prompt_bytes()
        density = max(scale.density, 1 / BYTES_PER_TOKEN)  # signed data is thin, and is not in what is read
        room = int((scale.window * MARGIN - cap) / density) - fixed
        if share.tokens is not None:
            room = min(room, share.tokens - cap - fixed)
        if share.nanos is not None and price is not None:
            while room >= LEAST_READ and worst_cost(price, fixed + room, cap) > share.nanos:
                room = int(room * 0.9)
        if room < LEAST_READ:
            raise NoSummaryError("a tenth of what is left does not pay for a summary, or the model holds too little")
        task = shortened("\n\n".join(message.text for message in opening), int(room * TASK_SHARE))
        task_bytes = len(task.encode("utf-8", "replace"))
        prompt = summary_prompt(task, excerpt(said, room - task_bytes))
        whole = 2 * (fixed + room + cap)  # an answer that does not fit may be mended once
        limits = Limits(
            deadline=share.time,
            max_cost_usd=None if share.nanos is None else Decimal(share.nanos) / NANOS_PER_USD,
            max_total_tokens=whole if share.tokens is None else min(whole, share.tokens),
            max_output_tokens=cap,
            max_turns=2,
            landing=None,
        )
        child = await self._children.start(ChildTask(prompt=prompt, kind="summary", limits=limits))
        result = child.result
        if result.output is None:
            raise NoSummaryError(result.stop.message if result.stop else "it has no output")
        return result.output, child.run_context.run_id

    def _scale(self, stop: Stop, old: Sequence[Message]) -> Scale:
        """Measure the conversation by what the provider counted, so far as it did."""
        in_use = self._models.line.in_use
        fixed = in_use.bound.fixed
        size = sum(message_bytes(message) for message in old) + fixed
        before = in_use.bound.likely() or size // BYTES_PER_TOKEN
        density = min(max(before / size, THINNEST), DENSEST)
        room, window = self._models.room(in_use), in_use.model.context_window
        if stop.source == "provider" or room is None or window is None:  # it holds less than it was sent
            room = before if room is None else min(room, before)
            window = before if window is None else min(window, before)
        return Scale(density, before, int(density * fixed), room, window)

    def _share(self) -> Share:
        """Return what a summary may cost now, at most."""
        gate = self._home.gate
        status = gate.budget_status()
        tokens, money = status.remaining_tokens, status.remaining_cost_usd
        deadline = gate.work_deadline
        left = None if deadline is None else deadline.remaining(self._home.clock)
        return Share(
            tokens=None if tokens is None else int(SHARE * tokens),
            nanos=None if money is None else int(SHARE * int(money * NANOS_PER_USD)),
            time=None if left is None else max(left * TIME_SHARE, LEAST_TIME),
        )

    def _limits_left(self, turns: int) -> list[str]:
        most = self._home.gate.limits.ceiling("max_turns")
        return limits_left(self._home.gate.budget_status(), None if most is None else most - turns)


def opening_of(log: Sequence[Envelope], transcript: Transcript) -> tuple[int, ...]:
    """Return where a transcript that ends with a prompt has its instructions and that prompt.

    Args:
        log: The log; its newest `PromptRendered` is that prompt.
        transcript: The conversation, with an earlier one of the session before the prompt if there was one.
    """
    rendered = (one.event for one in reversed(log) if isinstance(one.event, PromptRendered))
    count = next((len(event.messages) for event in rendered), 0)
    places = range(len(transcript) - count, len(transcript))
    instructed = len(transcript) > count and isinstance(transcript[0], SystemMessage)
    return (0, *places) if instructed else tuple(places)


def newest_that_fit(messages: Sequence[Message], room: int, tokens: Callable[[Sequence[Message]], int]) -> int:
    """Return how many of the newest messages fit, never a tool result without the call it belongs to."""
    kept = 0
    for count, message in enumerate(reversed(messages), start=1):
        room -= tokens([message])
        if room < 0:
            break
        if not isinstance(message, ToolMessage):
            kept = count
    return kept


def worst_cost(price: ModelPrice, input_tokens: int, output_tokens: int) -> int:
    """Return the most that one call can cost, in nano-dollars."""
    return price.worst_input(input_tokens) + output_tokens * price.worst_output_token(input_tokens)


@functools.cache
def empty_prompt_bytes() -> int:
    """Return an upper bound of the tokens that a summary's prompt has without its material."""
    empty = summary_prompt("", "").render(output_in_prompt=True)
    schema = len(encode(empty.output.schema)) if empty.output else 0
    return schema + sum(message_bytes(message) for message in empty.messages)
