"""Containment in a hurry: ``contained(...)`` around a function, or a block, that itself uses a provider's SDK.

Inside, calls of clients made with `adapters.contained_http` are counted, priced and stopped; where the block ends, a
stop becomes a RunStoppedError that says why and what was spent. Each call of a decorated function, and each entry of a
block, is a chain of its own; one inside another is bound by both. Blocks know nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, TypedDict, TypeVar, Unpack, cast

from watchkeeper.app.checks import check_arguments, check_keywords, renamed
from watchkeeper.app.contained_block import Block, Terms
from watchkeeper.app.prices import Prices
from watchkeeper.containment.circuit_breaker import CircuitBreaker, CircuitBreakers
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.ledger import Ledger
from watchkeeper.containment.pipeline import ShieldPipeline
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.core.account_limit import AccountLimit
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.deadline import DeadlineLike
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.limits import Limits
from watchkeeper.core.quantities import CountLike, MoneyLike, count

P = ParamSpec("P")
T = TypeVar("T")


OWN: Final = ("limits", "pipeline", "circuit_breaker", "prices", "max_part_tokens", "ledger", "on_event", "clock")
"""What `contained` takes beside single ceilings."""


class Ceilings(TypedDict, total=False):
    """What a block may use, by itself; what is not named has the default of `Limits`, None lifts it.

    Attributes:
        max_cost_usd: Dollars.
        max_steps: Admitted calls, also those that fail.
        timeout: A length from the entry ("5m", timedelta), or a moment (datetime, Deadline).
        max_total_tokens: Input and output tokens.
        max_input_tokens: Input tokens.
        max_output_tokens: Output tokens.
        max_tool_calls: Requests that are neither model calls nor free.
        max_retries: Requests that an SDK repeats.
        account: An account that this chain shares with others, before and beside it.
        account_limit: What all of them together may use in a day or a month ("$20/day").
    """

    max_cost_usd: MoneyLike | None
    max_steps: CountLike | None
    timeout: DeadlineLike | None
    max_total_tokens: CountLike | None
    max_input_tokens: CountLike | None
    max_output_tokens: CountLike | None
    max_tool_calls: CountLike | None
    max_retries: CountLike | None
    account: str | None
    account_limit: AccountLimit | str | None


def contained(
    *,
    limits: Limits | None = None,
    pipeline: ShieldPipeline | None = None,
    circuit_breaker: CircuitBreaker | CircuitBreakers | None = None,
    prices: Prices | None = None,
    max_part_tokens: CountLike | None = None,
    ledger: Ledger | Path | str = "default",
    on_event: Callable[[SafetyEvent], object] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **ceilings: Unpack[Ceilings],
) -> Contained:
    """Return a decorator and context manager, sync and async, that contains the model calls made inside.

    Args:
        limits: All ceilings in one value, instead of single ones. Nothing is kept back for a landing turn, which a
            block does not have, and ``max_turns`` counts nothing here.
        pipeline: Hooks that are asked about every call and every address.
        circuit_breaker: Keeps calls away from a provider that is down.
        prices: The caller's own prices by ``provider:model`` or model; they win over the price list.
        max_part_tokens: The most input tokens that one part may cost whose bytes do not bound it: an image, a file, a
            stored conversation, a tool that the provider runs. Without it such requests are refused under a ceiling
            on cost or tokens.
        ledger: Where what is spent is kept, so that other processes and later runs count it: a ledger, or a file. By
            default a file in the user's data folder if an account is named, else this process's memory.
        on_event: Told of every stop.
        clock: Where time comes from.
        **ceilings: Single ceilings; see `Ceilings`.

    Raises:
        ConfigurationError: For limits beside single ceilings, and for values that make no sense.
        TypeError: For a ceiling that does not exist.
    """
    check_keywords(ceilings, Ceilings.__annotations__, OWN)
    hooks = {"pipeline": pipeline, "circuit_breaker": circuit_breaker, "on_event": on_event}
    check_arguments({**hooks, "prices": prices, "ledger": ledger, "clock": clock})
    if limits is None:
        limits = _limits(ceilings)
    elif ceilings:
        raise ConfigurationError(f"contained() was given limits=... and {sorted(ceilings)}: say it in one way")
    check_arguments({"limits": limits})
    part = None if max_part_tokens is None else count(max_part_tokens, "max_part_tokens")
    limits = replace(limits, landing=None)
    return Contained(Terms(limits, pipeline, circuit_breaker, prices or {}, part, ledger, on_event, clock))


def _limits(ceilings: Ceilings) -> Limits:
    """Return the single ceilings as one value, and what is wrong with them in their own names."""
    named: dict[str, Any] = {("deadline" if key == "timeout" else key): value for key, value in ceilings.items()}
    try:
        return Limits(**named, landing=None)
    except LimitsError as error:
        raise renamed(error, "deadline", "timeout") from None


class Contained:
    """A decorator and context manager made by `contained`.

    As a decorator it may be used for any number of functions and calls, at once too; as a context manager it is open
    once at a time. Entered, it gives the `ExecutionContext` that its calls pass.
    """

    def __init__(self, terms: Terms) -> None:
        """Keep the terms; nothing is opened yet."""
        self._terms = terms
        self._block: Block | None = None

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Contain each call of a function, sync or async.

        Raises:
            ConfigurationError: For a generator function, whose body runs outside of its call.
        """
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigurationError(f"{fn!r} is a generator function: use `with contained(...)` inside it instead")
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
            waiting = cast("Callable[P, Any]", fn)

            @functools.wraps(fn)
            async def contained_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with Contained(self._terms):
                    return await waiting(*args, **kwargs)

            return cast("Callable[P, T]", contained_coroutine)

        @functools.wraps(fn)
        def contained_call(*args: P.args, **kwargs: P.kwargs) -> T:
            with Contained(self._terms):
                value = fn(*args, **kwargs)
                if inspect.iscoroutine(value):
                    value.close()
                    raise ConfigurationError(f"{fn!r} returned a coroutine: decorate the `async def` itself")
                return value

        return contained_call

    def __enter__(self) -> ExecutionContext:
        """Open a block."""
        self._check_unused()
        self._block = Block(self._terms)
        return self._block.context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the block.

        Raises:
            RunStoppedError: If a stop ended it.
        """
        block, self._block = self._block, None
        if block is not None:
            block.leave(error)

    async def __aenter__(self) -> ExecutionContext:
        """Open a block that is interrupted at its deadline, and by an abort, wherever it waits."""
        self._check_unused()
        task = running_task()
        self._block = Block(self._terms)
        self._block.watch(task)
        return self._block.context

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the block; raises as `__exit__` does."""
        self.__exit__(kind, error, traceback)

    def _check_unused(self) -> None:
        if self._block is not None:
            raise ConfigurationError("this contained(...) is open already: make another one for another block")


def running_task() -> asyncio.Task[Any]:
    """Return the task that runs now.

    Raises:
        ConfigurationError: If there is none.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        raise ConfigurationError("`async with contained(...)` works in asyncio's tasks only; elsewhere use `with`")
    return task
