"""One call at the gate, as the outside sees it: what is asked, what the work is given, what came of it.

A `CallRequest` goes in, the work gets a `Ticket`, an `Outcome` comes out. They are made once per call and are cheap to
build.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from watchkeeper.containment.decision import Decision
from watchkeeper.containment.dollars import Dollars, nanos
from watchkeeper.containment.estimate import Charge, Estimate
from watchkeeper.containment.nodes import Node, NodeKind
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.stop import Stop

T = TypeVar("T")

CALL_TIMEOUT: Final = "call_timeout"
"""Stop reason of a call that overran its own time-out; nothing is latched."""

NO_ESTIMATE: Final = Estimate()


class CallRequest(msgspec.Struct, frozen=True):
    """What is asked of the gate.

    Attributes:
        kind: A model call, a tool call, or a child run.
        operation_name: A label for people.
        estimate: The worst case, reserved before the call.
        timeout: Seconds that this call may take from its admission on, or None for as long as its phase has.
        retry: Whether the call repeats a failed one; it then spends one retry.
        phase: ``landing`` for the last turn, which may pass a stop of work.
        landing: What a landing turn would need after this call; kept back for it from now on.
        spends_retry_on_error: Whether a failure spends a retry (seed: execution-context); one is set aside for it.
        max_retries: How often in a row an operation of this name may be repeated; None for as often as
            the chain allows.
        model: What hooks are told about the model.
        provider: Whom it goes to; key of the circuit breaker where there is one for each.
        degraded: Whether it is the cheaper call already; a hook that says DEGRADE lets it pass.
        arguments: What hooks are told about the arguments of a tool; None for nothing.
    """

    kind: NodeKind
    operation_name: str = ""
    estimate: Estimate = NO_ESTIMATE
    timeout: float | None = None
    retry: bool = False
    phase: Literal["work", "landing"] = "work"
    landing: Estimate | None = None
    spends_retry_on_error: bool = False
    max_retries: int | None = None
    model: str = ""
    provider: str = ""
    degraded: bool = False
    arguments: Any = None


class Ticket:
    """What the work is given: what it may use, and the signal to stop.

    Attributes:
        max_output_tokens: Output cap that was granted; at most what was wished for.
        timeout: Seconds left for the call when it was admitted, or None.
        charged_nanos: What the work said it cost, by `charge`; None if it said nothing.
    """

    __slots__ = ("_parent_token", "_token", "charged_nanos", "max_output_tokens", "node", "timeout")

    node: Node
    max_output_tokens: int
    timeout: float | None
    charged_nanos: int | None
    _parent_token: CancellationToken
    _token: CancellationToken | None

    @property
    def node_id(self) -> str:
        """The id of the call's node."""
        return self.node.node_id

    @property
    def cancellation(self) -> CancellationToken:
        """Cancelled when the call's time is over or its context is aborted or closed."""
        if self._token is None:
            self._token = self._parent_token.child()
        return self._token

    def charge(self, usd: Dollars) -> None:
        """Say what the work costs, in dollars; several charges add up, and take the place of the hint."""
        self.charged_nanos = (self.charged_nanos or 0) + nanos(usd, "charge")


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """What came of a call.

    Attributes:
        decision: ALLOW if it ran and returned, RETRY if it failed and may be repeated, HALT if it was refused or
            stopped; or whatever a hook said about it.
        value: What the work returned; also if it came too late, as long as it came before the gate let go.
        error: What the work raised, or a TimeoutError for a call that overran.
        stop_reason: The reason behind a HALT, the type of the event behind what a hook said, or `CALL_TIMEOUT`.
        stop: The stop behind a HALT or a QUARANTINE; None for failures and time-outs of the call alone.
        admitted: Whether the work was begun.
        node: The gate's own record of the call.
    """

    decision: Decision
    value: T | None = None
    error: BaseException | None = None
    stop_reason: str | None = None
    stop: Stop | None = None
    node: Node | None = None
    admitted: bool = True

    @property
    def node_id(self) -> str | None:
        """The id of the admitted call, or None if it was refused."""
        return self.node.node_id if self.node is not None and self.admitted else None


Work = Callable[[Ticket], Awaitable[T]]
Meter = Callable[[T | None, BaseException | None, Ticket], Charge]
