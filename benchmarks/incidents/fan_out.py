"""A runaway fan-out: a task for every line of an export that should have had twelve, all at once, three calls each."""

from __future__ import annotations

import asyncio
from functools import partial

from benchmarks.incidents.provider import Provider, Reply, price
from benchmarks.incidents.replay import Replay
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.shield.decision import Decision

LIMITS = Limits(deadline=None, max_cost_usd="5.00", max_turns=None, landing=None)
LINES, CALLS = 1_000, 3
TOKENS_IN, TOKENS_OUT = 5_000, 1_000
HINT = WrapOptions("enrich", cost_estimate_hint=price(TOKENS_IN, TOKENS_OUT))


def model() -> Provider:
    return Provider(lambda prompt: f"{prompt}, enriched", seconds=1)


async def ask(provider: Provider, line: str) -> Reply:
    await asyncio.sleep(0)
    return provider.ask(line, TOKENS_IN, TOKENS_OUT)


def before(provider: Provider) -> None:
    async def enrich(line: str) -> None:
        for _ in range(CALLS):
            line = (await ask(provider, line)).text

    async def export() -> None:
        await asyncio.gather(*(enrich(f"line {number}") for number in range(LINES)))

    asyncio.run(export())


def after(provider: Provider) -> ExecutionContext:
    async def enrich(ctx: ExecutionContext, line: str) -> None:
        for _ in range(CALLS):
            outcome = await ctx.acall_llm(partial(ask, provider, line), HINT, cost_of=lambda reply: reply.usd)
            if outcome.decision is not Decision.ALLOW or outcome.value is None:
                return
            line = outcome.value.text

    async def export() -> ExecutionContext:
        with ExecutionContext(LIMITS) as ctx:
            await asyncio.gather(*(enrich(ctx, f"line {number}") for number in range(LINES)))
        return ctx

    return asyncio.run(export())


REPLAY = Replay("runaway fan-out", model, before, after, "$5.00", None, 5.00)
