"""What the log records about a prompt comes back from storage as what it was."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import pytest

from watchkeeper.core.messages import ImagePart, SystemMessage, TextPart, UserMessage
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.rendered import PromptDeadlineAssigned, PromptExecuted, PromptRendered
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.session.tagging import dump, load

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SESSION = UUID(int=7)


@dataclass(frozen=True)
class Report:
    total: int


EVENTS = [
    PromptDeadlineAssigned("support/triage", NOW, SESSION, NOW),
    PromptRendered(
        "support/triage",
        (SystemMessage("s"), UserMessage((TextPart("u"), ImagePart(data="aGk=")))),
        ("look",),
        "openai",
        SESSION,
        NOW,
    ),
    PromptExecuted("support/triage", "openai", Report(3), "text", TokenUsage(5, 6), SESSION, NOW, 12.5),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_storage(event: object) -> None:
    assert load(dump(event)) == event


@pytest.mark.spec("DL-008")
def test_their_tags_are_stable() -> None:
    assert [tag_of(type(event)) for event in EVENTS] == [
        "prompt_deadline_assigned",
        "prompt_rendered",
        "prompt_executed",
    ]


@pytest.mark.spec("DL-009")
def test_they_are_slices_of_a_session_and_of_its_snapshot() -> None:
    session = Session()
    for event in EVENTS:
        session.dispatch(event)
    restored = Session()
    restored.rollback(Snapshot.from_json(session.snapshot().to_json()))
    assert restored[PromptExecuted].latest() == EVENTS[-1]
    assert restored[PromptRendered].latest() == EVENTS[1]


def test_without_a_deadline_no_time_remains_to_be_told() -> None:
    executed = PromptExecuted("p", "a", None, "", TokenUsage(), SESSION, NOW)
    assert executed.remaining_seconds is None
