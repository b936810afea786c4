"""Runs that the user's code starts inside another run, a contained block or an `ExecutionContext`.

Such a run is a child of what is around it, whoever wrote the code: it passes the gate there, its own gate stands below,
what it spends counts there, and deadline and cancellation reach it. If a run is around it, that run's log has the pair
of events that leads to it. It shares what is left around it; nothing is set aside for it. What stands apart, by
``parent=None``, never comes here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.children.child import ChildFacts, Depths, innermost_run, no_charge, record_end, record_start
from watchkeeper.containment import enclosing
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CURRENT_CALL, Ticket
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.ids import IdSource, RunContext, derive_child_run_context, root_run_context
from watchkeeper.runtime.plan import RunScope
from watchkeeper.runtime.result import ManyResult, RunResult, broken_off

ResultT = TypeVar("ResultT", bound="RunResult[Any] | ManyResult[Any]")

NO_DEPTHS: Final[Depths] = {}


class Surrounding(msgspec.Struct, frozen=True):
    """What a run is started in.

    Attributes:
        gate: The innermost context that the code runs in; None outside of all.
        scope: The run that this gate belongs to, or stands below; None if it is no run's.
        apart: Whether the run stands apart from what there is, on purpose.
    """

    gate: ExecutionContext | None = None
    scope: RunScope | None = None
    apart: bool = False

    @property
    def parent_run_id(self) -> UUID | None:
        """The run around, or None."""
        return None if self.scope is None else self.scope.run_context.run_id

    @property
    def depths(self) -> Depths:
        """How many children of each kind stand above a run that is started here, and are it."""
        if self.scope is None:
            return NO_DEPTHS
        above = self.scope.depths
        return {**above, "run": above.get("run", 0) + 1}

    def run_context(self, session_id: UUID, ids: IdSource) -> RunContext:
        """Return the identifiers of a run that is started here: in the trace of the run around, if there is one."""
        if self.scope is None:
            return root_run_context(session_id, ids)
        return derive_child_run_context(self.scope.run_context, session_id, ids)

    async def passed(self, name: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT | Stop:
        """Do the work of a run, through the gate around it if there is one.

        Returns:
            Its result; if it has none, because it was refused there or was ended from there, why.

        Raises:
            BaseException: Whatever the work raises.
        """
        if self.gate is None:
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

    async def recorded(self, run: RunScope, name: str, model: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Do the work of a run between the two events on the log of the run around it, if there is one."""
        scope = self.scope
        if scope is None:
            return await work()
        about = ChildFacts("run", name, model, run.clock.monotonic())
        record_start(scope, run, about)
        try:
            result = await work()
        except BaseException as error:
            record_end(scope, run, about, broken_off(error))
            raise
        record_end(scope, run, about, result)
        return result


def surrounding(*, apart: bool = False) -> Surrounding:
    """Return what a run is started in.

    Args:
        apart: Whether it is to stand apart from that.

    Raises:
        ConfigurationError: If what is around is over, which can be so in a thread or task that outlives it.
    """
    if apart:
        return Surrounding(apart=enclosing.innermost() is not None)
    gate: ExecutionContext | None = enclosing.current()
    scope = None if gate is None else innermost_run()
    if gate is None or scope is None or not gate.stands_below(scope.gate):
        return Surrounding(gate)
    return Surrounding(gate, scope)


def refuse_own_account(account: str | None, around: Surrounding) -> None:
    """Refuse an account of its own for a run inside something else: what it spends counts there.

    Raises:
        ConfigurationError: With the way out.
    """
    if account is None or around.gate is None:
        return
    if any(level.period is not None and level.name == account for level in around.gate.account.chain):
        return
    raise ConfigurationError(
        f"account={account!r} is named by a run that is started inside another one, where what it spends is counted;"
        " name it in the limits of the outermost run or block, or say parent=None, so that this run stands apart"
    )
