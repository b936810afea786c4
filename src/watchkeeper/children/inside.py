"""Runs that the user's code starts inside another run, a contained block or an `ExecutionContext`.

Such a run is a child of the enclosing context: it passes the context's gate, its own gate is a child of that gate, its
usage counts there, and the context's deadline and cancellation apply to it. If the enclosing context belongs to a run,
that run's log has the pair of events that refers to the child. The child shares the budget that is left there; nothing
is reserved for it. A run with ``parent=None`` is independent and is not handled here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.children.child import ChildFacts, no_charge, record_end, record_start
from watchkeeper.children.innermost import Depths, innermost_run
from watchkeeper.containment import enclosing
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CURRENT_CALL, Ticket
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.ids import IdSource, RunContext, derive_child_run_context, root_run_context
from watchkeeper.core.trace.place import HERE, Place, ambient, at, place_from
from watchkeeper.runtime.plan import RunScope
from watchkeeper.runtime.result import ManyResult, RunResult, broken_off
from watchkeeper.runtime.tracing import below

ResultT = TypeVar("ResultT", bound="RunResult[Any] | ManyResult[Any]")

NO_DEPTHS: Final[Depths] = {}


class Surrounding(msgspec.Struct, frozen=True):
    """The place in which a run is started.

    Attributes:
        gate: The innermost context that the code runs in; None outside of all.
        scope: The run to which this gate, or a gate above it, belongs; None if there is no such run.
        apart: Whether the run is independent of an enclosing context on purpose (``parent=None``).
        above: The span below which the trace of a run outside of all others goes on, or None.
    """

    gate: ExecutionContext | None = None
    scope: RunScope | None = None
    apart: bool = False
    above: Place | None = None

    @property
    def parent_run_id(self) -> UUID | None:
        """Id of the enclosing run, or None."""
        return None if self.scope is None else self.scope.run_context.run_id

    @property
    def depths(self) -> Depths:
        """The nesting depth, by family, of a run that is started here, itself included."""
        if self.scope is None:
            return NO_DEPTHS
        above = self.scope.depths
        return {**above, "run": above.get("run", 0) + 1}

    @property
    def deepest(self) -> Depths:
        """The maximum depth, by family, as set by the runs around it."""
        return NO_DEPTHS if self.scope is None else self.scope.deepest

    @property
    def call_id(self) -> str | None:
        """Id of the enclosing run's tool call in which this code runs, or None."""
        call, scope = CURRENT_CALL.get(), self.scope
        if call is None or scope is None:
            return None
        named = (each.request.call_id for each in call.chain() if each.home() is scope.gate)
        return next((call_id for call_id in named if call_id is not None), None)

    def run_context(self, session_id: UUID, ids: IdSource) -> RunContext:
        """Return the identifiers of a run that is started here: in the trace of the enclosing run, if there is one."""
        if self.scope is None:
            return below(root_run_context(session_id, ids), self.above)
        return derive_child_run_context(self.scope.run_context, session_id, ids)

    async def passed(self, name: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT | Stop:
        """Do the work of a run; if there is an enclosing gate, as one call of kind ``child`` through it.

        Returns:
            Its result; or, if the gate refused or ended the run so that it has no result, the stop.

        Raises:
            BaseException: Whatever the work raises.
        """
        if self.gate is None:
            with at(self.above):
                return await work()
        outer, held = CURRENT_CALL.get(), list[ResultT]()

        async def begun(ticket: Ticket) -> None:
            forget = None if outer is None else outer.cancellation.on_cancel(ticket.cancellation.cancel)
            try:
                held.append(await work())
            finally:
                if forget is not None:
                    forget()

        outcome = await self.gate.acall(CallRequest(kind="child", operation_name=name), begun, no_charge)
        if held:
            return held[0]
        if outcome.stop is not None:
            return outcome.stop
        if outcome.error is not None:
            raise outcome.error
        return Stop("policy_halt", "hook", f"{name} was not started: {outcome.stop_reason}.")

    async def recorded(
        self, run: RunScope, name: str, model: str, work: Callable[[], Awaitable[ResultT]], *, admitted: bool = True
    ) -> ResultT:
        """Do the work of a run; record its start and its end on the log of the enclosing run, if there is one.

        ``admitted`` says whether it was `passed` as a call of the enclosing gate.
        """
        scope = self.scope
        if scope is None:
            return await work()
        about = ChildFacts("run", name, model, run.clock.monotonic(), self.call_id, admitted=admitted)
        record_start(scope, run, about)
        try:
            result = await work()
        except BaseException as error:
            record_end(scope, run, about, broken_off(error))
            raise
        record_end(scope, run, about, result)
        return result


def surrounding(*, apart: bool = False, traceparent: str | None = None) -> Surrounding:
    """Return the context, and the run, inside which a run is started.

    Args:
        apart: Whether the run is to be independent of the enclosing context.
        traceparent: The span below which its trace goes on; by default the current one, if it is not independent.

    Raises:
        ConfigurationError: If the enclosing context is over, which can happen in a thread or task that outlives it; or
            for a traceparent that is none, or is given inside a run, whose trace goes on.
    """
    given = None if traceparent is None else place_from(traceparent)
    if apart:
        inside = enclosing.innermost() is not None
        return Surrounding(apart=inside, above=given or (None if inside else ambient()))
    gate: ExecutionContext | None = enclosing.current()
    scope = None if gate is None else innermost_run()
    if gate is None or scope is None or not gate.stands_below(scope.gate):
        return Surrounding(gate, above=given or HERE.get() or ambient())
    if given is not None:
        raise ConfigurationError(
            f"traceparent={traceparent!r} is given to a run that is started inside another one, in whose trace it is;"
            " leave it out, or pass parent=None to make the run independent"
        )
    return Surrounding(gate, scope)


def refuse_own_account(account: str | None, around: Surrounding) -> None:
    """Refuse an account name for a run inside another context, because its usage counts in that context.

    Raises:
        ConfigurationError: If the account is none of the enclosing context's; the message says what to do instead.
    """
    if account is None or around.gate is None:
        return
    if any(level.period is not None and level.name == account for level in around.gate.account.chain):
        return
    raise ConfigurationError(
        f"account={account!r} is named by a run that is started inside another one, which counts what the run spends;"
        " name it in the limits of the outermost run or block, or pass parent=None to make this run independent"
    )
