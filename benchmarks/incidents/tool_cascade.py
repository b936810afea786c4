"""A tool cascade: every page that the tool fetches names four more, and the agent fetches whatever is named."""

from __future__ import annotations

from collections import deque
from functools import partial

from benchmarks.incidents.provider import Provider, price
from benchmarks.incidents.replay import Replay
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.shield.decision import Decision

LIMITS = Limits(deadline=None, max_cost_usd="1.00", max_tool_calls=50, max_turns=None, landing=None)
TOKENS_IN = 2_500
HINT = WrapOptions("fetch", cost_estimate_hint=price(TOKENS_IN, 0))


def model() -> Provider:
    return Provider(lambda page: " ".join(f"{page}/{link}" for link in "abcd"), seconds=4)


def before(provider: Provider) -> None:
    pages = deque(["start"])
    while pages:
        pages.extend(provider.ask(pages.popleft(), TOKENS_IN, 0).text.split())


def after(provider: Provider) -> ExecutionContext:
    pages = deque(["start"])
    with ExecutionContext(LIMITS) as ctx:
        while pages:
            page = pages.popleft()
            outcome = ctx.call_tool(partial(provider.ask, page, TOKENS_IN, 0), HINT, cost_of=lambda reply: reply.usd)
            if outcome.decision is not Decision.ALLOW or outcome.value is None:
                break
            pages.extend(outcome.value.text.split())
    return ctx


REPLAY = Replay("tool cascade", model, before, after, "50 tool calls", 50, 1.00)
