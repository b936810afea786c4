"""Asks the egress hooks about a request that Watchkeeper's own clients are about to send.

A request is made inside a call of the gate or outside of all. Inside, the hooks of that call's context are asked, in
whatever function or thread the request is made, as long as the thread has the caller's context variables (threads of
`asyncio.to_thread` and of plain tools do). What sends by other means is not seen here: docs/hooks.md lists it.
"""

from __future__ import annotations

from typing import cast

from watchkeeper.containment.in_flight import CURRENT_CALL
from watchkeeper.core.errors import EgressRefusedError, StopReason
from watchkeeper.shield.decision import Decision


def check_leaving(url: str, method: str) -> None:
    """Ask about a request before it is sent; each redirect is a request of its own.

    Args:
        url: Where it goes.
        method: Its HTTP method.

    Raises:
        EgressRefusedError: If a hook does not allow it.
    """
    inside = CURRENT_CALL.get()
    guarded = None if inside is None else inside.nearest_guarded()
    if guarded is None or guarded.asks_egress is None:
        return
    event = guarded.asks_egress(guarded, url, method)
    if event is None:
        return
    reason = event.event_type if event.decision is Decision.HALT else "policy_halt"
    raise EgressRefusedError(event.reason, reason=cast("StopReason", reason))
