"""Planner and critic: each answers the other, politely, and neither ever says that it is done."""

from __future__ import annotations

from functools import partial

from benchmarks.incidents.provider import Provider, price
from benchmarks.incidents.replay import Replay
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.shield.decision import Decision

CONFIG = ExecutionConfig(max_cost_usd=5.00, max_steps=30, max_retries_total=3, timeout_ms=0)
TOKENS_IN, TOKENS_OUT = 6_000, 700
HINT = WrapOptions("turn", cost_estimate_hint=price(TOKENS_IN, TOKENS_OUT))


def model() -> Provider:
    return Provider(
        lambda prompt: "Good, but it needs more detail." if "plan" in prompt else "Here is the plan, again."
    )


def before(provider: Provider) -> None:
    said = "Here is the plan."
    while "approved" not in said:
        said = provider.ask(said, TOKENS_IN, TOKENS_OUT).text


def after(provider: Provider) -> ExecutionContext:
    said = "Here is the plan."
    with ExecutionContext(CONFIG) as ctx:
        while "approved" not in said:
            outcome = ctx.call_llm(
                partial(provider.ask, said, TOKENS_IN, TOKENS_OUT), HINT, cost_of=lambda reply: reply.usd
            )
            if outcome.decision is not Decision.ALLOW or outcome.value is None:
                break
            said = outcome.value.text
    return ctx


REPLAY = Replay("planner/critic ping-pong", model, before, after, "30 steps", 30, 5.00)
