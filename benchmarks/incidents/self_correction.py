"""A loop that corrects itself: code is written, the check fails, the report goes back to the model; the check is wrong.

The conversation grows by every attempt, so each costs more than the one before.
"""

from __future__ import annotations

from functools import partial

from benchmarks.incidents.provider import Provider, price
from benchmarks.incidents.replay import Replay
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.shield.decision import Decision

CONFIG = ExecutionConfig(max_cost_usd=1.00, max_steps=25, max_retries_total=3, timeout_ms=0)
WINDOW, TASK, REPORT, CODE = 200_000, 2_000, 600, 800


def model() -> Provider:
    return Provider(lambda prompt: "def total(rows): return sum(rows)")


def passes(code: str) -> bool:
    """Check the code, with the module that it should be checked with missing."""
    return "import ledger" in code


def prompt_tokens(attempt: int) -> int:
    return min(TASK + attempt * (CODE + REPORT), WINDOW - CODE)


def before(provider: Provider) -> None:
    attempt, code = 0, ""
    while not passes(code):
        code = provider.ask("fix it", prompt_tokens(attempt), CODE).text
        attempt += 1


def after(provider: Provider) -> ExecutionContext:
    attempt, code = 0, ""
    with ExecutionContext(CONFIG) as ctx:
        while not passes(code):
            tokens = prompt_tokens(attempt)
            outcome = ctx.call_llm(
                partial(provider.ask, "fix it", tokens, CODE),
                WrapOptions("fix", cost_estimate_hint=price(tokens, CODE)),
                cost_of=lambda reply: reply.usd,
            )
            if outcome.decision is not Decision.ALLOW or outcome.value is None:
                break
            code = outcome.value.text
            attempt += 1
    return ctx


REPLAY = Replay("self-correction loop", model, before, after, "25 steps, $1.00", 25, 1.00)
