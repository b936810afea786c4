"""Words for events: the same live and from the store, and something for every event, also for those of others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli.event_lines import UNSEEN, WORDINGS, line_of
from watchkeeper.core.errors import Stop
from watchkeeper.core.messages import AssistantMessage, UserMessage
from watchkeeper.core.type_tags import tag_of, type_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.rendered import PromptRendered
from watchkeeper.runtime.events import (
    AdviceAcknowledged,
    CompletionChecked,
    ContextCompacted,
    EscalationTaken,
    ItemEnded,
    ModelFailed,
    ModelReplied,
    ModelSwitched,
    NoticeAppended,
    ObserversRan,
    ReducerFailed,
    SourceRan,
)
from watchkeeper.session.log import SliceEdited
from watchkeeper.session.tagging import dump
from watchkeeper.shield.decision import Decision, SafetyEvent
from watchkeeper.store.run_store import untyped
from watchkeeper.tools.context import ToolInvoked, ToolOutcome
from watchkeeper.tools.result import ToolResult

AT = datetime(2026, 11, 21, tzinfo=UTC)
ID = UUID(int=7)


@dataclass(frozen=True)
class FileTicket:
    """Parameters of a user's tool."""

    queue: str
    tags: tuple[str, ...] = ()


def words(event: object) -> tuple[str, str, str]:
    """Return mark, head and detail of an event's line."""
    line = line_of(tag_of(type(event)), dump(event))
    assert line is not None
    return line.mark, line.what, line.detail


def replied(usage: TokenUsage, cost: int | None, landing: bool) -> ModelReplied:
    """Return a reply."""
    return ModelReplied(3, AssistantMessage("x"), "stop", usage, cost, "m", "n", 1500.0, landing, AT)


def invoked(params: Any, outcome: ToolOutcome, said: str) -> ToolInvoked:
    """Return a tool call."""
    return ToolInvoked("n/k", "a", "file", params, ToolResult(True, 1, said), None, AT, None, said, "c", ID, outcome)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            PromptRendered("n/k", (UserMessage.of("x"),), ("a", "b"), "m", ID, AT),
            ("○", "prompt", "1 message, tools: a, b"),
        ),
        (
            PromptRendered("n/k", (UserMessage.of("x"),) * 2, (), "m", ID, AT),
            ("○", "prompt", "2 messages, tools: none"),
        ),
        (
            replied(TokenUsage(1200, 30), 250_000_000, landing=False),
            ("●", "model", "turn 3: 1,200 in, 30 out, $0.25, 1.5s"),
        ),
        (
            replied(TokenUsage(1200, 30, 1000), None, landing=True),
            ("●", "model", "turn 3, landing: 1,200 in (1,000 cached), 30 out, cost unknown, 1.5s"),
        ),
        (
            invoked(FileTicket("billing", ("a",)), "ok", "filed\nas 7"),
            ("●", "file", '{"queue": "billing", "tags": ["a"]} → filed as 7'),
        ),
        (invoked("{broken", "invalid", "no JSON"), ("●", "file", "{broken → invalid: no JSON")),
        (ModelFailed(1, 1, "server", "oh no", 2.0, None, AT), ("!", "model failed", "server: oh no; again in 2s")),
        (ModelFailed(1, 1, "auth", "no key", None, None, AT), ("!", "model failed", "auth: no key")),
        (
            ModelSwitched(1, "a:b", "c:d", "auth", "no key", AT),
            ("⇄", "switched", "to c:d from a:b: no key"),
        ),
        (
            ContextCompacted(2, "So far: ...", (0, 1), 4, 14, 2782, 1047, ID, 15, AT),
            ("≡", "compacted", "2,782 to about 1,047 tokens: a summary stands for 14 messages, the newest 4 stay"),
        ),
        (NoticeAppended("last turn", AT), ("→", "told the agent", "last turn")),
        (CompletionChecked("rejected", "no file", AT), ("✗", "rejected", "no file")),
        (CompletionChecked("verified", "", AT), ("✓", "verified", "")),
        (CompletionChecked("unverified", "it failed", AT), ("?", "unverified", "it failed")),
        (SafetyEvent("timeout", Decision.HALT, "It is over.", "gate", ts=AT), ("■", "timeout", "It is over.")),
        (
            ObserversRan(
                9,
                (
                    SourceRan("Stall", "advised", Assessment("Stall", "Stop it.", severity="warning")),
                    SourceRan("Mine", "failed", error="ValueError: x"),
                    SourceRan("Pace", "silent"),
                ),
                AT,
            ),
            (
                "◆",
                "observed",
                "Stall [warning]: Stop it.; Mine failed: ValueError: x; Pace silent: nothing more to say → held back",
            ),
        ),
        (
            ObserversRan(9, (SourceRan("Stall", "advised", Assessment("Stall", "Stop.")),), AT, ("Stall",), "...", 10),
            ("◆", "observed", "Stall [info]: Stop. → told the agent"),
        ),
        (
            ObserversRan(9, (), AT, ("Stall", "Pace"), "...", 10),
            ("◆", "observed", "nothing new → told the agent what Stall and Pace said"),
        ),
        (
            AdviceAcknowledged("Stall", "dismiss", 1, 9, "It polls."),
            ("←", "answered", "Stall dismissed for 1 call: It polls."),
        ),
        (AdviceAcknowledged("Stall", "acknowledge", 5, 9), ("←", "answered", "Stall acknowledged for 5 calls")),
        (
            EscalationTaken("Stall", "stop", "Stall spoke 3 times in a row: the run was stopped", 9, AT),
            ("▲", "escalated", "Stall spoke 3 times in a row: the run was stopped"),
        ),
        (ReducerFailed("Note", "ValueError", AT), ("!", "reducer failed", "on Note: ValueError")),
        (ItemEnded(0, "a.txt", ID, "Done.", None, AT), ("✓", "a.txt", "Done.")),
        (ItemEnded(0, "a.txt", ID, "Over.", Stop("timeout", "gate", "x"), AT), ("✗", "a.txt", "Over.")),
        (SliceEdited(FileTicket, "seed", (FileTicket("x"),)), ("·", "seed FileTicket", '[{"queue": "x", "tags": []}]')),
        (FileTicket("x"), ("·", tag_of(FileTicket), '{"queue": "x", "tags": []}')),
    ],
)
def test_an_event_in_words(event: Any, expected: tuple[str, str, str]) -> None:
    assert words(event) == expected


@pytest.mark.parametrize("tag", sorted([*UNSEEN, *WORDINGS]))
def test_every_tag_with_words_of_its_own_is_that_of_an_event(tag: str) -> None:
    assert type_of(tag) is not None
    assert (line_of(tag, {}) is None) == (tag in UNSEEN)


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner))))
def test_an_event_of_another_version_or_program_is_still_shown(body: dict[str, Any]) -> None:
    for tag in (*WORDINGS, "from the future", "a:B"):
        assert line_of(tag, body) is not None


def test_what_could_not_be_written_is_shown_as_such() -> None:
    line = line_of("tool_invoked", {"$unwritable": "CodecError: a lock"})
    assert line is not None
    assert line.what == "tool_invoked"
    assert "a lock" in line.detail


def test_long_words_of_models_and_tools_are_cut_and_reasons_are_not() -> None:
    long = "word " * 200
    assert words(invoked(FileTicket(long), "ok", long))[2].count("…") == 2
    assert words(NoticeAppended(long, AT))[2].endswith("…")
    assert words(ModelFailed(1, 1, "server", long, None, None, AT))[2].strip() == f"server: {long}".strip()


def test_typed_json_becomes_what_a_person_would_write() -> None:
    value = {
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "money": Decimal("1.5"),
        "id": ID,
        "set": {1},
        "tuple": (1, (2,)),
        "keys": {1: "a", (1, 2): "b"},
        "length": timedelta(seconds=3),
        "lone": "\ud800",
        "ticket": FileTicket("q"),
        "bytes": b"x",
    }
    assert untyped(dump(value)) == {
        "when": "2026-01-01T00:00:00+00:00",
        "money": "1.5",
        "id": str(ID),
        "set": [1],
        "tuple": [1, [2]],
        "keys": {"1": "a", "[1, 2]": "b"},
        "length": [0, 3, 0],
        "lone": "\ud800",
        "ticket": {"queue": "q", "tags": []},
        "bytes": "eA==",
    }
