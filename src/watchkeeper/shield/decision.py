"""Values about a call: the chain that it belongs to, what a hook sees of it, the decision, and the incident.

They have the names of docs/specification.md (execution-context) and never change once they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.type_tags import own_value
from watchkeeper.session.log import event


@dataclass(frozen=True, slots=True)
class ChainMetadata:
    """The request, the organisation and the user that a chain belongs to.

    Attributes:
        request_id: The request it serves.
        chain_id: The agent run, job or user action.
        org_id: Organisation.
        team: Team or cost centre.
        service: Service or agent.
        user_id: End user, if known.
        model: Primary model, if known.
        tags: Any further labels; a read-only copy is kept.
    """

    request_id: str
    chain_id: str
    org_id: str = ""
    team: str = ""
    service: str = ""
    user_id: str | None = None
    model: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Refuse a chain or a request without an id.

        Raises:
            ConfigurationError: If one of the two ids is empty or not text, or if the tags are not a mapping.
        """
        for name in ("request_id", "chain_id"):
            value: object = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{name}={value!r} must be a text that is not empty")
        if not isinstance(self.tags, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ConfigurationError(f"tags={self.tags!r} must be a mapping of names to texts")
        object.__setattr__(self, "tags", MappingProxyType(dict(self.tags)))


KEPT_EVENTS: Final = 10_000
"""The least number of newest events that a record keeps, besides the stops of its chain."""


@own_value("decision")
class Decision(StrEnum):
    """The verdict on one call; the value equals the name.

    ALLOW: it ran and returned. RETRY: it ran and failed, and may be repeated. HALT: it was refused or stopped.
    DEGRADE, QUARANTINE and QUEUE come from hooks and are forwarded to the caller.
    """

    ALLOW = "ALLOW"
    RETRY = "RETRY"
    HALT = "HALT"
    DEGRADE = "DEGRADE"
    QUARANTINE = "QUARANTINE"
    QUEUE = "QUEUE"


@event("safety_event")
@dataclass(frozen=True, slots=True)
class SafetyEvent:
    """An incident: something was stopped, or code reported one.

    There is one event for each stop. Events of the gate itself have ``hook="ExecutionContext"`` and the stop reason as
    ``event_type``.

    Attributes:
        event_type: What happened; one of the stop reasons for stops of the gate.
        decision: What was decided about it.
        reason: One sentence for a person.
        hook: Name of the hook or other code that decided.
        request_id: The request it belongs to, if known.
        ts: When it happened, converted to UTC; now by default.
        metadata: Facts: the chain, the limit and its value, what the refused call asked for and what was left for it.
    """

    event_type: str
    decision: Decision
    reason: str
    hook: str
    request_id: str | None = None
    ts: datetime = field(default_factory=SYSTEM_CLOCK.now)
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Refuse a time without a time zone, and convert the time to UTC.

        Raises:
            ConfigurationError: If the time has no time zone.
        """
        if self.ts.tzinfo is UTC:
            return
        if self.ts.utcoffset() is None:
            raise ConfigurationError(f"ts={self.ts!r} has no time zone; write datetime.now(UTC)")
        object.__setattr__(self, "ts", self.ts.astimezone(UTC))


NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


class ToolCallContext(msgspec.Struct, frozen=True):
    """One model call, tool call or request to the outside, as a hook sees it.

    The same object is given to every hook that is asked before a call and to ``release`` if the call does not run;
    hooks that are asked after the call get another one with the same number and the actual usage of the call.

    Attributes:
        request_id: The request that the chain serves.
        user_id: End user, if known.
        session_id: The caller's own session, if there is one; an ExecutionContext has none.
        tool_name: Label of the call: the operation name.
        model: Model that is asked, or the chain's.
        endpoint: Provider or address, if known.
        tokens_in: Before the call, the most input tokens it can have; after it, the actual number; None if unknown.
        tokens_out: Before the call, the ceiling of output tokens that was granted; after it, the actual number.
        cost_usd: Before the call, the most dollars it can cost; after it, the actual cost; None if unknown.
        metadata: chain_id, org_id, team and service of the chain, and its tags.
        kind: ``llm``, ``tool`` or ``egress``.
        degraded: Whether the call already goes to the cheaper model; then DEGRADE from a hook lets it pass.
        number: Identifies the call: the same before and after it; 0 outside of a gate.
        cost_share: Share of the cost ceiling that was spent when the hook was asked; if several ceilings apply, of the
            tightest one; None without a ceiling.
        arguments: Arguments of a tool call, in a run as the text that the model wrote; None if they were not given.
        approved_by: Who has approved this very call, with these arguments, for which the run was parked; else None.
    """

    request_id: str
    user_id: str | None = None
    session_id: str | None = None
    tool_name: str | None = None
    model: str | None = None
    endpoint: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    metadata: Mapping[str, Any] = NO_METADATA
    kind: str = "llm"
    degraded: bool = False
    number: int = 0
    cost_share: float | None = None
    arguments: Any = None
    approved_by: str | None = None


def facts_of(chain: ChainMetadata) -> Mapping[str, Any]:
    """Return a chain's metadata for its calls; a tag cannot override chain_id, org_id, team or service."""
    own = {"chain_id": chain.chain_id, "org_id": chain.org_id, "team": chain.team, "service": chain.service}
    return MappingProxyType({**chain.tags, **own})
