"""The events of an evaluation survive storage; what a nested run may read and spend, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.session.test_session_views import WRITES, Note
from watchkeeper.accounting.budget import Budget, BudgetStatus
from watchkeeper.core.clock import SYSTEM_CLOCK, Deadline, TestClock
from watchkeeper.core.errors import (
    ConfigurationError,
    LimitsError,
    PromptDefinitionError,
    PromptEvaluationError,
    SessionError,
)
from watchkeeper.core.ids import root_run_context
from watchkeeper.core.messages import ImagePart, SystemMessage, TextPart, UserMessage
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.completion import TaskCompletionContext
from watchkeeper.prompt.evaluation import (
    MAX_NESTED,
    NestedAdapter,
    NestedExecutionConfig,
    NestedExecutionContext,
    PromptDeadlineAssigned,
    PromptExecuted,
    PromptRendered,
    checked_deadline,
    derive_nested_deadline,
    nested_limits,
    refuse_tools,
)
from watchkeeper.prompt.observer import FeedbackContext, ObserverContext
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.session.session import Session, SessionView
from watchkeeper.session.slices import Snapshot
from watchkeeper.session.tagging import dump, load
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.resources import ResourceBinding, Resources
from watchkeeper.tools.tool import tool

LOOK = MarkdownSection(title="Task", key="task", template="Look.")
NOW = TestClock().now()
MIDDAY = datetime(2026, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def at(seconds: float) -> Deadline:
    return Deadline(NOW + timedelta(seconds=seconds))


class TestConfig:
    @pytest.mark.spec("NE-025")
    def test_its_defaults_are_those_of_the_document(self) -> None:
        config = NestedExecutionConfig()
        assert config.longest == timedelta(seconds=30)
        assert config.default_nested_budget == Budget(max_total_tokens=1000)
        assert (config.allow_nested_tools, config.max_nesting_depth) == (False, 1)

    def test_durations_are_read_as_everywhere(self) -> None:
        assert NestedExecutionConfig(max_nested_duration="15s").longest == timedelta(seconds=15)

    @pytest.mark.parametrize("depth", [0, -1, 1.5, True, "2"])
    def test_a_depth_that_is_none_is_refused(self, depth: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"max_nesting_depth=.* whole number from 1 on"):
            NestedExecutionConfig(max_nesting_depth=depth)

    def test_a_duration_or_a_budget_that_is_none_is_refused(self) -> None:
        with pytest.raises(LimitsError, match="max_nested_duration"):
            NestedExecutionConfig(max_nested_duration=0)
        with pytest.raises(ConfigurationError, match="default_nested_budget=500"):
            NestedExecutionConfig(default_nested_budget=cast("Any", 500))

    def test_a_permission_that_is_none_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="allow_nested_tools='no' must be True or False"):
            NestedExecutionConfig(allow_nested_tools=cast("Any", "no"))

    def test_a_template_has_one_or_none(self) -> None:
        section = MarkdownSection(title="", key="task", template="Go.")
        config = NestedExecutionConfig(max_nested_duration=timedelta(seconds=15))
        template = PromptTemplate[str](ns="t", key="k", sections=(section,), nested_execution_config=config)
        assert template.nested_execution_config is config
        with pytest.raises(PromptDefinitionError, match="nested_execution_config='30s' must be"):
            PromptTemplate[str](ns="t", key="k", sections=(section,), nested_execution_config=cast("Any", "30s"))


class TestDeadline:
    @pytest.mark.spec("NE-009")
    @given(st.none() | st.floats(-1000, 1000), st.floats(0.001, 1000))
    def test_it_is_the_earlier_of_the_parents_and_its_own(self, parent: float | None, own: float) -> None:
        clock = TestClock()
        derived = derive_nested_deadline(None if parent is None else at(parent), timedelta(seconds=own), clock=clock)
        assert derived.at == min(at(own).at, at(own if parent is None else parent).at)

    @pytest.mark.spec("NE-009")
    def test_it_is_thirty_seconds_unless_somebody_says_otherwise(self) -> None:
        assert derive_nested_deadline(None, clock=TestClock()) == at(30)
        assert timedelta(seconds=30) == MAX_NESTED
        before = datetime.now(UTC)
        assert before < derive_nested_deadline(None).at <= SYSTEM_CLOCK.now() + MAX_NESTED

    def test_it_takes_a_datetime(self) -> None:
        assert derive_nested_deadline(at(5).at, clock=TestClock()) == at(5)


class TestLimits:
    @given(st.none() | st.floats(1, 1000), st.floats(1, 1000), st.none() | st.floats(1, 1000))
    def test_no_nested_run_is_longer_than_any_of_its_bounds(
        self, deadline: float | None, longest: float, own: float | None
    ) -> None:
        budget = None if own is None else Budget(deadline=at(own), max_total_tokens=100)
        ends = None if deadline is None else at(deadline)
        limits = nested_limits(ends, timedelta(seconds=longest), budget, TestClock())
        known = [seconds for seconds in (deadline, longest, own) if seconds is not None]
        assert limits.deadline == at(min(known))
        assert limits.max_total_tokens == (None if budget is None else 100)

    def test_it_only_judges_so_it_is_short_and_has_no_last_turn(self) -> None:
        limits = nested_limits(None, MAX_NESTED, None, TestClock())
        assert (limits.landing, limits.max_turns, limits.min_output_tokens) == (None, 20, 64)


class TestContext:
    @pytest.mark.spec("NE-001")
    def test_it_holds_what_it_is_given(self) -> None:
        session = Session()
        above = root_run_context(session.session_id)
        view = MemoryFilesystem().read_only_view()
        context = NestedExecutionContext(session, above, at(9).at, Budget(max_total_tokens=5), {Filesystem: view})
        assert (context.parent_session, context.parent_run_context, context.deadline) == (session, above, at(9))
        assert context.filesystem is view
        assert NestedExecutionContext(session).filesystem is None

    @pytest.mark.spec("NE-005")
    @pytest.mark.parametrize("write", WRITES)
    def test_nothing_can_be_written_through_its_parent_session(self, write: str) -> None:
        session = Session()
        session.dispatch(Note("yours"))
        below = session.child()
        context = NestedExecutionContext(session)
        assert isinstance(replace(context).parent_session, SessionView)
        with pytest.raises(SessionError, match="nothing can be written to it"):
            WRITES[write](context.parent_session)
        with pytest.raises(SessionError, match="closed by whoever started it"):
            context.parent_session.close()
        assert (list(context.parent_session[Note].all()), len(session.log)) == ([Note("yours")], 1)
        assert len(below.log) == 0

    @pytest.mark.spec("NE-001")
    def test_what_is_overridden_cannot_be_changed_afterwards(self) -> None:
        given: dict[Any, Any] = {int: 1}
        context = NestedExecutionContext(Session(), resource_overrides=given)
        given[int] = 2
        assert dict(context.resource_overrides) == {int: 1}
        with pytest.raises(TypeError):
            cast("Any", context.resource_overrides)[int] = 3

    def test_a_parent_that_is_no_session_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"parent_session=None of a nested run .*context\.session"):
            NestedExecutionContext(cast("Any", None))

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"deadline": "30s"}, r"deadline='30s' of a nested run must be a value such as .*derive_nested_deadline\("),
            ({"budget": 3}, r"budget=3 of a nested run .*Budget\("),
            ({"resource_overrides": 3}, "resource_overrides=3 of a nested run"),
            ({"config": 3}, r"config=3 of a nested run .*NestedExecutionConfig\("),
            ({"parent_run_context": 3}, "parent_run_context=3 of a nested run"),
            ({"purpose": "x"}, "purpose='x' must be 'evaluation' or 'verdict'"),
        ],
        ids=["deadline", "budget", "overrides", "config", "run context", "purpose"],
    )
    def test_a_value_of_another_kind_is_refused(self, given: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            NestedExecutionContext(Session(), **given)

    @pytest.mark.spec("NE-027")
    @pytest.mark.parametrize("make", [Session, lambda: Session().branch()], ids=["session", "branch"])
    def test_a_session_as_a_resource_is_refused(self, make: Any) -> None:
        with pytest.raises(ConfigurationError, match="hands a session to the nested run"):
            NestedExecutionContext(Session(), resource_overrides={Session: make()})

    @pytest.mark.spec("NE-027")
    def test_a_filesystem_that_can_be_written_to_is_refused(self) -> None:
        files = MemoryFilesystem()
        said = r"resource_overrides\[Filesystem\] is a filesystem that can be written to; give .*read_only_view\(\)"
        with pytest.raises(ConfigurationError, match=said):
            NestedExecutionContext(Session(), resource_overrides={Filesystem: files})
        with pytest.raises(ConfigurationError, match=r"resource_overrides\['files'\]"):
            NestedExecutionContext(Session(), resource_overrides={"files": files})
        making = ResourceBinding(Filesystem, lambda _: files)
        with pytest.raises(ConfigurationError, match=said):
            NestedExecutionContext(Session(), resource_overrides={Filesystem: making})

    @pytest.mark.parametrize("make", [MemoryFilesystem, Session], ids=["files", "session"])
    def test_what_a_factory_makes_is_held_to_the_same(self, make: Any) -> None:
        context = NestedExecutionContext(Session(), resource_overrides={int: ResourceBinding(int, lambda _: make())})
        with pytest.raises(ConfigurationError, match=r"resource_overrides(\[int\] is a filesystem| hands a session)"):
            Resources().afresh(context.resource_overrides).get(int)

    def test_a_factory_for_anything_else_is_fine(self) -> None:
        making = ResourceBinding(int, lambda _: 1)
        context = NestedExecutionContext(Session(), resource_overrides={int: making})
        assert context.filesystem is None
        assert Resources().afresh(context.resource_overrides).get(int) == 1


class TestCreate:
    @pytest.mark.spec("NE-019")
    def test_feedback_gets_a_budget_of_its_own_and_the_templates_time(self) -> None:
        session = Session(clock=TestClock())
        view = MemoryFilesystem().read_only_view()
        config = NestedExecutionConfig(max_nested_duration="15s", default_nested_budget=Budget(max_total_tokens=7))
        context = FeedbackContext(session, filesystem=view, deadline=at(100), nested=config)
        nested = context.create_nested_context()
        assert (nested.budget, nested.deadline) == (Budget(max_total_tokens=7), at(15))
        assert (nested.filesystem, nested.config, nested.purpose) == (view, config, "evaluation")
        own = context.create_nested_context(budget=Budget(max_total_tokens=9), max_duration="5s")
        assert (own.budget, own.deadline) == (Budget(max_total_tokens=9), at(5))

    @pytest.mark.spec("NE-018")
    def test_a_feedback_context_takes_by_position_what_the_specification_lists_and_in_that_order(self) -> None:
        session = Session(clock=TestClock())
        context_of_run = root_run_context(session.session_id)
        prompt = Prompt(PromptTemplate[str](ns="n", key="k", sections=[LOOK])).render()
        adapter = cast("NestedAdapter", object())
        context = FeedbackContext(session, prompt, at(10), adapter, context_of_run, budget=BudgetStatus(turns_used=3))
        assert (context.prompt, context.deadline, context.adapter) == (prompt, at(10), adapter)
        assert (context.run_context, context.budget.turns_used) == (context_of_run, 3)
        assert context.create_nested_context().parent_run_context == context_of_run
        for kind, first in ((FeedbackContext, (None, None, None, None)), (ObserverContext, ())):
            with pytest.raises(TypeError, match="positional"):
                cast("Any", kind)(session, *first, BudgetStatus())

    @pytest.mark.spec("NE-019")
    def test_a_verdict_shares_what_the_run_has_left(self) -> None:
        session = Session(clock=TestClock())
        context = TaskCompletionContext(
            session, "done", deadline=at(10), run_context=root_run_context(session.session_id)
        )
        nested = context.create_nested_context()
        assert (nested.budget, nested.deadline, nested.purpose) == (None, at(10), "verdict")
        assert nested.parent_run_context is context.run_context
        assert nested.filesystem is None


def test_tools_of_a_nested_prompt_are_refused_by_name_unless_they_are_allowed() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    with pytest.raises(ConfigurationError, match=r"'t/k' has tools \(look\)"):
        refuse_tools("t/k", (look,), NestedExecutionConfig())
    refuse_tools("t/k", (look,), NestedExecutionConfig(allow_nested_tools=True))
    refuse_tools("t/k", (), NestedExecutionConfig())


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SESSION = UUID(int=7)


@dataclass(frozen=True)
class Report:
    total: int


EVENTS = [
    PromptDeadlineAssigned("support/triage", MOMENT, SESSION, MOMENT),
    PromptRendered(
        "support/triage",
        (SystemMessage("s"), UserMessage((TextPart("u"), ImagePart(data="aGk=")))),
        ("look",),
        "openai",
        SESSION,
        MOMENT,
    ),
    PromptExecuted("support/triage", "openai", Report(3), "text", TokenUsage(5, 6), SESSION, MOMENT, 12.5),
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
    executed = PromptExecuted("p", "a", None, "", TokenUsage(), SESSION, MOMENT)
    assert executed.remaining_seconds is None


class TestCheckedDeadline:
    """What a caller of `evaluate` hands over is checked eagerly (docs/specification.md, deadlines)."""

    @pytest.mark.spec("DL-003")
    def test_none_means_no_deadline(self) -> None:
        assert checked_deadline(None, TestClock(MIDDAY)) is None

    def test_a_moment_from_the_next_second_on_is_accepted(self) -> None:
        at = MIDDAY.replace(second=1, microsecond=0)
        assert checked_deadline(at, TestClock(MIDDAY)) == Deadline(at)
        assert checked_deadline(Deadline(at), TestClock(MIDDAY)) == Deadline(at)

    @pytest.mark.spec("DL-002")
    @pytest.mark.parametrize(
        "at",
        [
            MIDDAY - timedelta(days=1),
            MIDDAY - timedelta(microseconds=1),
            MIDDAY,
            MIDDAY + timedelta(milliseconds=1),
            MIDDAY.replace(microsecond=999_999),
            MIDDAY.astimezone(timezone(timedelta(hours=-7))),
        ],
    )
    def test_past_or_within_the_current_second_is_refused_before_anything_is_sent(self, at: datetime) -> None:
        with pytest.raises(PromptEvaluationError, match=r"is not in the future \(now 2026-05-01T12:00:00") as caught:
            checked_deadline(at, TestClock(MIDDAY))
        assert caught.value.phase == "preflight"
        assert caught.value.provider_payload == {"deadline": at.astimezone(UTC).isoformat()}

    @pytest.mark.spec("DL-002")
    def test_a_naive_moment_is_refused(self) -> None:
        with pytest.raises(PromptEvaluationError, match="has no time zone") as caught:
            checked_deadline(MIDDAY.replace(year=2027, tzinfo=None), TestClock(MIDDAY))
        assert caught.value.phase == "preflight"
        assert caught.value.provider_payload == {"deadline": "2027-05-01T12:00:00.250000"}

    @pytest.mark.spec("DL-017")
    def test_something_else_is_refused_in_the_same_way(self) -> None:
        wrong: Any = "30m"
        with pytest.raises(PromptEvaluationError, match="is not a datetime") as caught:
            checked_deadline(wrong, TestClock(MIDDAY))
        assert caught.value.phase == "preflight"
        assert caught.value.provider_payload == {"deadline": "30m"}
