"""A retry storm over three layers: the client repeats, the step repeats the client, the queue repeats the step.

The provider is down and fails after it has read the prompt, which it bills. Nobody sees more than his own few retries.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.incidents.provider import Provider, price
from benchmarks.incidents.replay import Replay
from watchkeeper.containment.config import ExecutionConfig, WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext

CONFIG = ExecutionConfig(max_cost_usd=1.00, max_steps=500, max_retries_total=10, timeout_ms=0)
JOBS = 25
LAYERS = (4, 5, 3)
"""Attempts of the client, of the step, of the queue."""
TOKENS_IN = 4_000
HINT = WrapOptions("answer", cost_estimate_hint=price(TOKENS_IN, 0))


def model() -> Provider:
    def down(prompt: str) -> str:
        raise ConnectionError("503: overloaded")

    return Provider(down, seconds=2)


def repeated(work: Callable[[], object], attempts: int) -> Callable[[], object]:
    """Return work as one of the layers does it: again, until it succeeds or the layer gives up."""

    def again() -> None:
        for attempt in range(attempts):
            try:
                work()
                return
            except ConnectionError:
                if attempt == attempts - 1:
                    raise

    return again


def run_queue(call: Callable[[], object]) -> None:
    for attempts in LAYERS:
        call = repeated(call, attempts)
    for _ in range(JOBS):
        try:
            call()
        except ConnectionError:
            continue  # the queue gives this job up and takes the next one


def before(provider: Provider) -> None:
    run_queue(lambda: provider.ask("answer", TOKENS_IN, 0))


def after(provider: Provider) -> ExecutionContext:
    with ExecutionContext(CONFIG) as ctx:

        def call() -> None:
            outcome = ctx.call_llm(lambda: provider.ask("answer", TOKENS_IN, 0), HINT)
            if outcome.value is None:
                raise ConnectionError(str(outcome.error or outcome.stop_reason))

        run_queue(call)
    return ctx


REPLAY = Replay("retry storm over three layers", model, before, after, "10 retries", 10, 1.00)
