"""The context that the running code is in: the innermost one that was entered or has a call under way here.

`with context:` puts a context in force for the block; a call under way puts its context in force for its work. Tasks
and worker threads see what was in force where they were started, as with any context variable; a bare thread sees
nothing. Contexts are held weakly: a task or a timer that outlives one never keeps it alive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

from watchkeeper.accounting.account import Account
from watchkeeper.accounting.ledger import Ledger
from watchkeeper.containment.in_flight import CURRENT_CALL
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.meters import SHARED

NO_CALL: Final = -1

DEFAULTS: Final = Limits()


class Entered(NamedTuple):
    """A context that was entered by ``with``.

    Attributes:
        context: The context.
        name: The name of the context in error messages.
        call: Number of the call under way at that moment, so that it is known which of the two is inside the other.
        around: What was entered before it and is not left yet; None if nothing was.
    """

    context: ReferenceType[Any]
    name: str
    call: int
    around: Entered | None


class Place(NamedTuple):
    """The context that the running code is in.

    Attributes:
        context: The innermost context; None once it was collected.
        name: The name of the context in error messages.
    """

    context: Any
    name: str


ENTERED: Final[ContextVar[Entered | None]] = ContextVar("watchkeeper_entered", default=None)
"""The context of the innermost ``with`` that this code runs in."""


_outermost: Final[dict[int, ReferenceType[Any]]] = {}
"""The contexts of this process that were entered outside of all others and are not left yet, by `id`."""


def _forget() -> None:
    """Leave all contexts: a forked process may not use the contexts of its parent process."""
    ENTERED.set(None)
    _outermost.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget)


def enter(context: object, name: str) -> None:
    """Put a context in force, until `leave`."""
    call, around, own = CURRENT_CALL.get(), ENTERED.get(), ref(context)
    if call is None and around is None:
        _outermost[id(context)] = own
    ENTERED.set(Entered(own, name, NO_CALL if call is None else call.node.number, around))


def leave(context: object) -> None:
    """Put the previous context in force again.

    Generators and fixtures may be left in another order than they were entered: what was entered later stays in force,
    and the context that is left is not restored after it. Closed from elsewhere, for example by the collector, a
    context is not in force here, and nothing changes.
    """
    _outermost.pop(id(context), None)
    ENTERED.set(without(ENTERED.get(), lambda each: each.context() is context))


def without(innermost: Any, is_left: Callable[[Any], bool]) -> Any:
    """Return what was entered (named tuples, each with the one ``around`` it) without the innermost that is left."""
    later: list[Any] = []
    found = innermost
    while found is not None and not is_left(found):
        later.append(found)
        found = found.around
    if found is None:
        return innermost
    kept = found.around
    for each in reversed(later):
        kept = each._replace(around=kept)
    return kept


def entered_here() -> Iterator[Any]:
    """Yield the contexts that this code entered and has not left, innermost first."""
    entered = ENTERED.get()
    while entered is not None:
        yield entered.context()
        entered = entered.around


def innermost() -> Place | None:
    """Return the innermost context that this code runs in; None outside of all."""
    entered, call = ENTERED.get(), CURRENT_CALL.get()
    if call is not None and (entered is None or entered.call != call.node.number):
        return Place(call.home(), f"the {call.request.kind} call {call.request.operation_name!r}")
    return None if entered is None else Place(entered.context(), entered.name)


def outermost() -> tuple[Any, ...]:
    """Return the contexts that are open in this process, but for those that are inside another one."""
    found = [place() for place in tuple(_outermost.values())]
    return tuple(context for context in found if context is not None and not context.is_closed)


def current() -> Any:
    """Return the innermost context that this code runs in; None outside of all.

    Raises:
        ConfigurationError: If it is over, which is possible in a thread or task that outlives it.
    """
    place = innermost()
    if place is None:
        return None
    if place.context is None or place.context.is_closed:
        raise ConfigurationError(
            f"this was started inside {place.name}, which is closed by now, so nothing is started; start it while that"
            " is open, or pass parent=None to make it independent"
        )
    return place.context


def refuse_own(above: Clock, clock: Clock, shared: Ledger, ledger: Ledger | None) -> None:
    """Refuse a clock or a ledger of its own for what is started inside a context.

    Args:
        above: The clock of the context around it.
        clock: The one that was given; the system's means that none was.
        shared: The ledger of the context around it.
        ledger: The one that was given, or None.

    Raises:
        ConfigurationError: With the way out.
    """
    other_clock = clock is not SYSTEM_CLOCK and clock is not above
    if other_clock or (ledger is not None and ledger is not shared):
        own = "clock" if other_clock else "ledger"
        raise ConfigurationError(
            f"what is started inside another context uses the {own} of that context; leave {own}= out, or pass"
            " parent=None to make it independent"
        )


def inherited(limits: Limits, above: Account) -> Limits:
    """Return limits without those default ceilings for which an account above has a ceiling: that one holds."""
    lifted: dict[str, Any] = {
        meter.field: None
        for place, meter in enumerate(SHARED)
        if limits.ceiling(meter.ceiling) == DEFAULTS.ceiling(meter.ceiling) is not None and above.has_ceiling(place)
    }
    if limits.deadline == DEFAULTS.deadline and above.deadline is not None:
        lifted["deadline"] = None
    return replace(limits, **lifted) if lifted else limits
