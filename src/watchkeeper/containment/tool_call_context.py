"""What a shield hook sees of one call: whose it is, what it is called, what it may cost (contract: containment).

Frozen. The same object is handed to every hook that is asked before a call and to ``release`` if the call does not run;
hooks that are asked afterwards get one with the same number and what the call really used.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from watchkeeper.containment.config import ChainMetadata

NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


class ToolCallContext(msgspec.Struct, frozen=True):
    """One model call, tool call or request to the outside.

    Attributes:
        request_id: The request that the chain serves.
        user_id: End user, if known.
        session_id: Session of the caller's own, if he has one; an ExecutionContext knows none.
        tool_name: Label of the call: the operation name.
        model: Model that is asked, or the chain's.
        endpoint: Provider or address, if known.
        tokens_in: Before the call the most input it can have, afterwards what it had; None if there is nothing to say.
        tokens_out: Before the call the output cap that was granted, afterwards what it had.
        cost_usd: Before the call the most it can cost, afterwards what it cost; None if that is not known.
        metadata: chain_id, org_id, team and service of the chain, and its tags.
        kind: ``llm``, ``tool`` or ``egress``.
        degraded: Whether the call is the cheaper one already; a hook that says DEGRADE lets it pass.
        number: Tells calls apart: the same before and after a call; 0 outside of a gate.
        cost_share: Share of the cost ceiling that was spent when the call asked, of the tightest one if several hold;
            None without a ceiling.
        arguments: What a tool is called with, in a run the text that the model wrote; None if nobody told.
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


def facts_of(chain: ChainMetadata) -> Mapping[str, Any]:
    """Return a chain's metadata for its calls; a tag never takes the place of one of the four."""
    own = {"chain_id": chain.chain_id, "org_id": chain.org_id, "team": chain.team, "service": chain.service}
    return MappingProxyType({**chain.tags, **own})
