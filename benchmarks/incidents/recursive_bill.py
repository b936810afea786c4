"""A bill that recurses: an agent splits its task, hands each part to an agent like itself, and merges what they say.

Three parts, eight levels: nobody has written a large number anywhere.
"""

from __future__ import annotations

from benchmarks.incidents.provider import Provider, Reply, price
from benchmarks.incidents.replay import Replay
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.record import Outcome
from watchkeeper.shield.decision import Decision

LIMITS = Limits(deadline=None, max_cost_usd="2.00", max_turns=None, landing=None)
CHILD = Limits(deadline=None, max_cost_usd="1.00", max_turns=None, landing=None)
LEVELS, PARTS = 8, 3
TOKENS_IN, TOKENS_OUT = 3_000, 400
HINT = WrapOptions("split", cost_estimate_hint=price(TOKENS_IN, TOKENS_OUT))


def model() -> Provider:
    return Provider(lambda prompt: ",".join(f"{prompt}.{part}" for part in range(PARTS)), seconds=3)


def before(provider: Provider) -> None:
    def agent(task: str, level: int) -> None:
        parts = provider.ask(task, TOKENS_IN, TOKENS_OUT).text.split(",")
        if level < LEVELS:
            for part in parts:
                agent(part, level + 1)
            provider.ask(f"merge {task}", TOKENS_IN, TOKENS_OUT)

    agent("1", 1)


def after(provider: Provider) -> ExecutionContext:
    def agent(gate: ExecutionContext, task: str, level: int) -> None:
        split = ask(gate, task)
        if split.decision is not Decision.ALLOW or split.value is None or level == LEVELS:
            return
        for part in split.value.text.split(","):
            with gate.child(CHILD, part) as below:
                agent(below, part, level + 1)
        ask(gate, f"merge {task}")

    def ask(gate: ExecutionContext, task: str) -> Outcome[Reply]:
        return gate.call_llm(lambda: provider.ask(task, TOKENS_IN, TOKENS_OUT), HINT, cost_of=lambda reply: reply.usd)

    with ExecutionContext(LIMITS) as ctx:
        agent(ctx, "1", 1)
    return ctx


REPLAY = Replay("recursive bill", model, before, after, "$2.00", None, 2.00)
