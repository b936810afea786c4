"""Events in one line: the same words live and from the store, for every event; live lines name their run."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.limits import Limits
from watchkeeper.cli.console import make_console
from watchkeeper.cli.report import FORMATTERS, HINT, UNSEEN, Progress, line_of
from watchkeeper.core.errors import Stop
from watchkeeper.core.ids import SYSTEM_IDS, RunContext, derive_child_run_context, root_run_context
from watchkeeper.core.messages import AssistantMessage, UserMessage
from watchkeeper.core.type_tags import tag_of, type_of
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.runtime.advice_events import AdviceAcknowledged, EscalationTaken, ObserversRan, SourceRan
from watchkeeper.runtime.events import (
    CallEnded,
    ChildEnded,
    ChildStarted,
    CompletionChecked,
    ContextCompacted,
    ItemEnded,
    ManyStarted,
    ModelFailed,
    ModelReplied,
    ModelSwitched,
    NoticeAppended,
    ReducerFailed,
    RunEnded,
    RunResumed,
    RunStarted,
)
from watchkeeper.session.log import Envelope, SliceEdited
from watchkeeper.session.tagging import dump
from watchkeeper.shield.decision import Decision, SafetyEvent
from watchkeeper.store.older_store import EventsMissing
from watchkeeper.store.plain_json import untyped
from watchkeeper.tools.context import ToolInvoked, ToolOutcome
from watchkeeper.tools.values import ToolResult

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
            CallEnded("llm", "gpt-5", "openai", "ok", TokenUsage(1200, 30), 2_000_000, 1500.0, None, None, "n", AT),
            ("●", "model", "openai:gpt-5: 1,200 in, 30 out, $0.002, 1.5s"),
        ),
        (
            CallEnded("llm", "gpt-5", "openai", "error", TokenUsage(9), None, 1500.0, None, "is\ndown", "n", AT),
            ("●", "model", "openai:gpt-5: 9 in, 0 out, cost unknown, 1.5s; is down"),
        ),
        (
            CallEnded("tool", "/v1/images", "", "halted", TokenUsage(), 0, 0.0, "step_limit_exceeded", None, "n", AT),
            ("●", "call", "/v1/images: refused, step limit"),
        ),
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
        (SafetyEvent("timeout", Decision.HALT, "It is over.", "gate", ts=AT), ("■", "deadline", "It is over.")),
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
        (EventsMissing(5, 1007), ("!", "missing", "events 5 to 1,007 are missing in the record")),
        (FileTicket("x"), ("·", tag_of(FileTicket), '{"queue": "x", "tags": []}')),
    ],
)
def test_an_event_in_words(event: Any, expected: tuple[str, str, str]) -> None:
    assert words(event) == expected


@pytest.mark.parametrize("tag", sorted([*UNSEEN, *FORMATTERS]))
def test_every_tag_with_words_of_its_own_is_that_of_an_event(tag: str) -> None:
    assert type_of(tag) is not None
    assert (line_of(tag, {}) is None) == (tag in UNSEEN)


@given(
    st.dictionaries(
        st.text(), st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner)), max_size=4
    )
)
def test_an_event_of_another_version_or_program_is_still_shown(body: dict[str, Any]) -> None:
    for tag in (*FORMATTERS, "from the future", "a:B"):
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


# --- progress: lines that say whose they are ------------------------------------------------------------------------

CONTEXT = root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS)


def printed(*happened: tuple[UUID, Any]) -> list[str]:
    """Return the lines printed for some events."""
    out = io.StringIO()
    progress = Progress(make_console(out))
    for run_id, event in happened:
        progress(run_id, Envelope(1, AT, event))
    return out.getvalue().splitlines()


def many(concurrency: int, *items: str) -> ManyStarted:
    """Return the beginning of a run over many."""
    return ManyStarted(CONTEXT, "n/k", "m", "turns 3", items, concurrency, AT)


def begun(item: str | None = None) -> RunStarted:
    """Return the beginning of a run."""
    return RunStarted(CONTEXT, "n/k", "m", "turns 3", None, AT, item)


def test_a_single_run_has_a_head_and_its_lines_under_it() -> None:
    run_id = uuid4()
    lines = printed((run_id, begun()), (run_id, NoticeAppended("now", AT)))
    assert lines == ["n/k with m", "limits: turns 3", "  → told the agent  now"]


def resumed(run_id: UUID, *items: str, item: str | None = None) -> RunResumed:
    """Return that a run, or one item of it, goes on."""
    return RunResumed(run_id, 3, "turns 3", Limits(), None, Usage(), (), 1.0, AT, items=items, item=item)


def test_the_lines_of_an_item_that_goes_on_have_its_label() -> None:
    whole, first, second = uuid4(), uuid4(), uuid4()
    happened = [(whole, resumed(whole, "a.txt", "b.txt")), (first, resumed(first, item="a.txt"))]
    lines = printed(*happened, (second, begun("b.txt")), (first, NoticeAppended("now", AT)))
    assert lines[1].startswith("a.txt  ↻ resumed  after event 3; used so far: 0 tokens, $0.00; limits: turns 3")
    assert lines[-1] == "a.txt  → told the agent  now"
    alone = printed((whole, resumed(whole, "a.txt")), (first, resumed(first, item="a.txt")))
    assert alone[1] == "▸ a.txt"


def test_the_head_names_who_takes_over() -> None:
    one = RunStarted(CONTEXT, "n/k", "m", "turns 3", None, AT, fallback=("a:b", "c:d"))
    many = ManyStarted(CONTEXT, "n/k", "m", "turns 3", ("x",), 1, AT, fallback=("a:b",))
    assert printed((uuid4(), one))[0] == "n/k with m, or else a:b, c:d"
    assert printed((uuid4(), many))[0] == "n/k over 1 item with m, or else a:b"


def dispatched(context: RunContext, depth: int = 1) -> ChildStarted:
    """Return the beginning of a child."""
    return ChildStarted(context, CONTEXT.run_id, "subagent", "n/child", "m", depth, "turns 2", "call-1", AT)


def returned(context: RunContext) -> ChildEnded:
    """Return the end of a child."""
    return ChildEnded(
        context.run_id, CONTEXT.run_id, "subagent", "n/child", None, "unchecked", Usage(), 1.0, "Done: 1 turn.", AT
    )


@pytest.mark.spec("FR-168")
def test_what_a_child_does_stands_further_in_between_its_beginning_and_its_end() -> None:
    root = CONTEXT.run_id
    child = derive_child_run_context(CONTEXT, SYSTEM_IDS.uuid())
    grandchild = derive_child_run_context(child, SYSTEM_IDS.uuid())
    lines = printed(
        (root, begun()),
        (root, dispatched(child)),
        (child.run_id, begun()),
        (child.run_id, NoticeAppended("below", AT)),
        (child.run_id, dispatched(grandchild, 2)),
        (grandchild.run_id, NoticeAppended("deeper", AT)),
        (child.run_id, returned(grandchild)),
        (root, returned(child)),
    )
    assert lines[2:] == [
        f"  ↳ dispatched  n/child with m, run {str(child.run_id)[:8]}; limits: turns 2",
        "      → told the agent  below",
        f"      ↳ dispatched  n/child with m, run {str(grandchild.run_id)[:8]}; limits: turns 2",
        "          → told the agent  deeper",
        "      ✓ n/child  Done: 1 turn.",
        "  ✓ n/child  Done: 1 turn.",
    ]


def test_items_that_interleave_are_told_apart() -> None:
    whole, one, two = uuid4(), uuid4(), uuid4()
    lines = printed(
        (whole, many(2, "a.txt", "long name.txt")),
        (one, begun("a.txt")),
        (two, begun("long name.txt")),
        (two, NoticeAppended("two", AT)),
        (one, NoticeAppended("one", AT)),
        (one, RunEnded(one, None, None, None, "", "unchecked", Usage(), 1.0, None, AT)),
        (whole, ItemEnded(0, "a.txt", one, "Done.", None, AT)),
        (whole, ItemEnded(1, "c.txt", None, "Not started.", None, AT)),
    )
    assert lines[2:] == [
        "long name.txt  → told the agent  two",
        "a.txt          → told the agent  one",
        "✓ a.txt  Done.",
    ]


def test_edits_of_slices_are_for_the_store_alone() -> None:
    assert printed((uuid4(), SliceEdited(str, "append", ("x",)))) == []


def test_items_one_after_the_other_have_a_head_each() -> None:
    whole, one = uuid4(), uuid4()
    lines = printed((whole, many(1, "a.txt")), (one, begun("a.txt")), (one, NoticeAppended("one", AT)))
    assert lines[2:] == ["▸ a.txt", "  → told the agent  one"]


def test_the_first_ctrl_c_is_answered_with_what_the_second_does() -> None:
    stopped = SafetyEvent("interrupted", Decision.HALT, "The run was interrupted.", "gate", ts=AT)
    (line,) = printed((uuid4(), stopped))
    assert line == f"  ■ interrupted  The run was interrupted. {HINT}"


def test_an_over_long_or_hostile_label_stays_one_short_line() -> None:
    whole, one = uuid4(), uuid4()
    label = "x" * 80 + "\x1b[2J"
    lines = printed((whole, many(2, label)), (one, begun(label)), (one, NoticeAppended("one", AT)))
    assert lines[2] == f"{'x' * 27}…  → told the agent  one"
