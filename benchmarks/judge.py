"""How well the bundled model judges trajectories, beside the rules.

100 trajectories of the unseen part, drawn at random. Of each, `LLMTrajectoryFeedback` is asked once: at the first call
at which the rules suspect something, or in the middle if they never do. It is right if it calls the work stuck or off
track where trouble has begun by then, and on track where none has. Beside it: whether the detectors had spoken by then.
Totals only are printed. Run by hand, ``python -m benchmarks.judge [COUNT]`` or ``make measure``: it needs the model's
packages (``make run`` installs them), and 100 questions take about half an hour on two cores.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.corpus.corpus import UNSEEN, begins_at, event_of, first_words, generated, interval, questions
from tests.corpus.trace import Trace
from watchkeeper import Adapter
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.errors import NestedEvaluationError, PromptEvaluationError
from watchkeeper.judging import LLMTrajectoryFeedback, NestedExecutionConfig
from watchkeeper.local.model import LocalModel
from watchkeeper.observers import FeedbackContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session

COUNT, SEED = 100, 20261123
"""How many trajectories are drawn, and the seed of the draw."""

PATIENT = NestedExecutionConfig(max_nested_duration="10m")
"""How long one answer may take: longer than by default, because the machine may be busy."""


class Counted(LocalModel):
    """The bundled model, and what it has used."""

    tokens = 0

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Answer, and count."""
        reply = await super().turn(request)
        self.tokens += reply.usage.total
        return reply


@dataclass(frozen=True)
class Answer:
    """One question and what came of it.

    Attributes:
        troubled: Whether trouble had begun by then.
        told: Whether the model said that the work is not on track; None if it gave no valid answer.
        ruled: Whether a detector had spoken by then.
        seconds: How long the answer took.
        tokens: What it used, read and written.
    """

    troubled: bool
    told: bool | None
    ruled: bool
    seconds: float
    tokens: int


def drawn(count: int) -> list[tuple[Trace, int]]:
    """Return trajectories, each with the number of the call after which the model is asked."""
    everything = [trace for traces in generated(UNSEEN[0]).values() for trace in traces]
    chosen = random.Random(SEED).sample(everything, count)
    return [(trace, [*questions(trace), len(trace.calls) // 2][0]) for trace in chosen]


async def ask(model: Counted, trace: Trace, number: int) -> Answer:
    """Ask about the first ``number`` calls of a trajectory."""
    session, trajectory = Session(), Trajectory()
    for place, call in enumerate(trace.calls[:number], 1):
        event = event_of(call, place)
        session.dispatch(event)
        trajectory.add(event)
    judge = LLMTrajectoryFeedback(Adapter(model), min_calls=1)
    told, before, began = None, model.tokens, time.perf_counter()
    try:
        context = FeedbackContext(session, trajectory=trajectory, task=trace.task, nested=PATIENT)
        said = await judge.provide(context=context)
        told = said.severity != "info"
    except (NestedEvaluationError, PromptEvaluationError) as error:
        print(f"  no answer: {error}", file=sys.stderr)
    ruled = any(at <= number for at in first_words(trace).values())
    return Answer(begins_at(trace) <= number, told, ruled, time.perf_counter() - began, model.tokens - before)


def line(name: str, said: Sequence[bool], troubled: Sequence[bool]) -> str:
    """Return precision and recall of what was said, with their 95 % intervals."""
    right = sum(each and trouble for each, trouble in zip(said, troubled, strict=True))
    shares = [(right, sum(said)), (right, sum(troubled))]
    shown = [
        f"{part / of if of else 1:.2f} ({low:.2f} to {high:.2f})"
        for (part, of), (low, high) in zip(shares, (interval(*share) for share in shares), strict=True)
    ]
    return f"{name:<22} precision {shown[0]}, recall {shown[1]}"


async def main() -> int:
    """Ask, and print the totals."""
    count = int(sys.argv[1]) if sys.argv[1:] else COUNT
    model, answers = Counted(), list[Answer]()
    try:
        for trace, number in drawn(count):
            answers.append(await ask(model, trace, number))
            if sys.stderr.isatty():
                print(f"\r{len(answers)} of {count}", end="", file=sys.stderr)
    finally:
        await model.close()
    troubled = [each.troubled for each in answers]
    print(
        f"{count} questions, {sum(troubled)} about work with trouble; {sum(e.told is None for e in answers)} no answer"
    )
    print(line("the bundled model", [each.told is True for each in answers], troubled))
    print(line("the three detectors", [each.ruled for each in answers], troubled))
    both = [each.told is True or each.ruled for each in answers]
    print(line("one of the two", both, troubled))
    seconds = [each.seconds for each in answers]
    tokens = [each.tokens for each in answers]
    print(f"a question: {statistics.median(seconds):.1f} s and {statistics.median(tokens):.0f} tokens (medians)")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
