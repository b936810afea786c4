"""What the log says when a conversation was compacted, and the one rule by which a new segment follows from it.

The loop and `transcript_of` build the segment with the same function, so what is replayed is what was sent. Messages
that stand again are named by their place, not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from watchkeeper.core.messages import Message, UserMessage
from watchkeeper.session.registry import event


@event("context_compacted")
@dataclass(frozen=True, slots=True)
class ContextCompacted:
    """The context was full; a summary begins a new segment of the conversation, the old one stays on the log.

    Attributes:
        segment: Number of the new segment; the first that is begun this way is 2.
        summary: What the model is told in place of what was left out.
        opening: Places in the old segment of the messages that open the new one: instructions and task.
        kept: How many of the old segment's newest messages stand in the new one, after the summary.
        left_out: How many messages the summary stands for.
        tokens_before: Tokens of the old segment, tools included; as the provider counted them, else a fair guess.
        tokens_after: A fair guess of those of the new one.
        run_id: The child run that made the summary.
        turn: The model turn that reads the new segment first.
        created_at: When.
    """

    segment: int
    summary: str
    opening: tuple[int, ...]
    kept: int
    left_out: int
    tokens_before: int
    tokens_after: int
    run_id: UUID
    turn: int
    created_at: datetime


def segment_of(old: Sequence[Message], opening: Iterable[int], summary: str, kept: int) -> tuple[Message, ...]:
    """Return what a new segment begins with: the old one's opening, the summary, and its newest messages."""
    return (*(old[place] for place in opening), UserMessage.of(summary), *old[len(old) - kept :])
