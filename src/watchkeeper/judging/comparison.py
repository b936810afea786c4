"""Which of two works is better: a model is asked in both orders, because many prefer what they read first.

A work wins only if it wins in both orders. Where the answer follows the order, that is the result, and it is said: it
tells of the judge, not of the works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from watchkeeper.core.errors import NestedEvaluationError
from watchkeeper.core.usage import TokenUsage
from watchkeeper.judging.evaluator import NestedEvaluator
from watchkeeper.judging.showing import TASK_CHARS, cut, shown_answer
from watchkeeper.judging.templates import COMPARISON, ComparisonVerdict
from watchkeeper.judging.trajectory import filled
from watchkeeper.prompt.adapter import ProviderAdapter
from watchkeeper.prompt.nested import NestedExecutionContext
from watchkeeper.prompt.prompt import Prompt

Better = Literal["first", "second", "tie"]

TURNED: Final[Mapping[Better, Better]] = {"first": "second", "second": "first", "tie": "tie"}

COMPARE: Final = Prompt(COMPARISON)
"""What is asked by default."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of asking in both orders.

    Attributes:
        winner: ``first``, ``second`` or ``tie`` if both orders say so; ``undecided`` if the answer follows the order.
        said: Which work each of the two answers preferred, in the order of the arguments.
        reasons: Why, of each.
        usage: Tokens of both.
    """

    winner: Literal["first", "second", "tie", "undecided"]
    said: tuple[Better, Better]
    reasons: tuple[str, str]
    usage: TokenUsage


async def compare(
    adapter: ProviderAdapter,
    *,
    task: str,
    first: Any,
    second: Any,
    context: NestedExecutionContext,
    prompt: Prompt[ComparisonVerdict] = COMPARE,
) -> Comparison:
    """Ask which of two works serves a task better, twice, in both orders.

    Args:
        adapter: Whom to ask.
        task: What was asked for.
        first: One work; typed values are shown as JSON.
        second: The other.
        context: What each of the two evaluations may look at and spend.
        prompt: What to ask; filled with ``task_description``, ``first`` and ``second``.

    Raises:
        NestedEvaluationError: If one of the evaluations failed.
        PromptEvaluationError: If time or budget were over.
        ConfigurationError: As `NestedEvaluator` raises it.
    """

    async def ask(one: Any, other: Any) -> tuple[ComparisonVerdict, TokenUsage]:
        values = {
            "task_description": cut(task, TASK_CHARS),
            "first": shown_answer(one),
            "second": shown_answer(other),
        }
        result = await NestedEvaluator(adapter, prompt=filled(prompt, values), context=context).evaluate_async()
        if result.output is None:
            raise result.error or NestedEvaluationError("the evaluation ended without an answer", kind="output")
        return result.output, result.usage or TokenUsage()

    straight, used = await ask(first, second)
    turned, used_turned = await ask(second, first)
    said = (straight.better, TURNED[turned.better])
    return Comparison(
        winner=said[0] if said[0] == said[1] else "undecided",
        said=said,
        reasons=(straight.reason, turned.reason),
        usage=used + used_turned,
    )
