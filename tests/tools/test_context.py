"""What a tool is given for one call, and the event that tells of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import Deadline, TestClock
from watchkeeper.core.errors import ConfigurationError, FilesystemError, ReducerError, SessionError
from watchkeeper.core.ids import root_run_context
from watchkeeper.core.type_tags import tag_of
from watchkeeper.core.usage import TokenUsage
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Append, Snapshot
from watchkeeper.session.tagging import dump, load
from watchkeeper.tools.context import (
    CallInfo,
    ToolContext,
    ToolInvoked,
    ToolOutcome,
    ToolScope,
    error_message,
    is_success,
)
from watchkeeper.tools.filesystems import MemoryFilesystem, OverlayFilesystem
from watchkeeper.tools.resources import ResourceBinding, Resources, Scope
from watchkeeper.tools.values import ToolResult


@dataclass(frozen=True)
class Noted:
    text: str


class Client:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@dataclass
class World:
    session: Session
    files: MemoryFilesystem
    clock: TestClock
    scope: ToolScope

    def context(self, call_id: str = "call-1", deadline: Deadline | None = None) -> ToolContext:
        return ToolContext(CallInfo(call_id, "note", attempt=2, idempotency_key="run:1", deadline=deadline), self.scope)


def refuse(state: Any, event: Noted) -> Append[Noted]:
    raise ValueError("refused")


@pytest.fixture
def world() -> World:
    session, files, clock = Session(), MemoryFilesystem({"a": "1"}), TestClock()
    resources = Resources([ResourceBinding(Client, lambda _: Client(), Scope.TOOL_CALL)])
    run_context = root_run_context(session.session_id)

    def look() -> BudgetStatus:
        return BudgetStatus(tokens_used=len(files.read_bytes("a")))

    scope = ToolScope(session, run_context, files, resources, budget=look, clock=clock)
    return World(session, files, clock, scope)


@pytest.mark.spec("FR-019")
def test_a_context_tells_about_the_call_and_the_run(world: World) -> None:
    token = CancellationToken()
    context = ToolContext(CallInfo("call-1", "note", 2, "run:1", cancellation=token), world.scope)
    assert (context.call_id, context.tool_name, context.attempt, context.idempotency_key) == (
        "call-1",
        "note",
        2,
        "run:1",
    )
    assert context.cancellation is token
    assert context.run_context is world.scope.run_context
    assert context.clock is world.clock
    assert (context.deadline, context.remaining_seconds) == (None, None)


@pytest.mark.spec("DL-005")
def test_the_deadline_counts_down_to_nothing(world: World) -> None:
    context = world.context(deadline=Deadline(world.clock.now() + timedelta(seconds=10)))
    assert context.remaining_seconds == 10.0
    world.clock.advance(4)
    assert context.remaining_seconds == 6.0
    world.clock.advance(10)
    assert context.remaining_seconds == 0.0


@pytest.mark.spec("FR-019")
def test_the_budget_is_looked_at_when_it_is_asked_for(world: World) -> None:
    context = world.context()
    world.files.write_text("a", "12345")
    assert context.budget == BudgetStatus(tokens_used=5)
    bare = ToolContext(CallInfo("c", "t"), ToolScope(world.session, world.scope.run_context))
    assert (bare.budget, bare.filesystem) == (None, None)
    with pytest.raises(ConfigurationError):
        bare.resources.get(Client)


def test_session_and_files_are_made_once_and_only_when_asked_for(world: World) -> None:
    context = world.context()
    assert context.session is context.session
    assert context.filesystem is context.filesystem
    assert isinstance(context.filesystem, OverlayFilesystem)
    assert context.resources is context.resources


def write_all(context: ToolContext) -> None:
    context.session.dispatch(Noted("x"))
    assert context.filesystem is not None
    context.filesystem.write_text("a", "2")


def test_nothing_is_visible_outside_before_the_commit_and_everything_after(world: World) -> None:
    context = world.context()
    write_all(context)
    assert context.session[Noted].all()[0] == Noted("x")
    assert (len(world.session[Noted].all()), world.files.read_text("a")) == (0, "1")
    context.commit()
    assert (world.session[Noted].latest(), world.files.read_text("a")) == (Noted("x"), "2")
    context.commit()
    context.discard()
    assert (len(world.session[Noted].all()), world.files.read_text("a")) == (1, "2")


def test_nothing_remains_after_a_discard(world: World) -> None:
    context = world.context()
    write_all(context)
    context.discard()
    context.discard()
    assert (len(world.session[Noted].all()), world.files.read_text("a")) == (0, "1")
    with pytest.raises(SessionError, match="tool call 'call-1' was discarded; it cannot be committed"):
        context.commit()


@pytest.mark.spec("FR-044")
@pytest.mark.parametrize("end", ["commit", "discard"])
def test_a_thread_that_wakes_up_late_can_do_no_harm(world: World, end: str) -> None:
    context, untouched = world.context("used"), world.context("untouched")
    session, files = context.session, context.filesystem
    assert files is not None
    for each in (context, untouched):
        getattr(each, end)()
    late: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: session.dispatch(Noted("late")), SessionError),
        (lambda: session[Noted].seed(Noted("late")), SessionError),
        (lambda: files.write_text("a", "late"), FilesystemError),
        (lambda: untouched.session, SessionError),
        (lambda: untouched.filesystem, FilesystemError),
        (lambda: untouched.resources.get(Client), ConfigurationError),
    ]
    for act, error in late:
        with pytest.raises(error):
            act()
    assert (len(world.session[Noted].all()), world.files.read_text("a")) == (0, "1")


def test_a_read_only_view_refuses_a_change_where_it_is_made(world: World) -> None:
    view = world.files.read_only_view()
    context = ToolContext(CallInfo("call-1", "note"), msgspec.structs.replace(world.scope, filesystem=view))
    assert context.filesystem is not None
    assert context.filesystem.read_text("a") == "1"
    with pytest.raises(FilesystemError, match="'a' cannot be changed: these files are read-only here"):
        context.filesystem.write_text("a", "2")
    context.session.dispatch(Noted("kept"))
    context.commit()
    assert list(world.session[Noted].all()) == [Noted("kept")]
    assert world.files.read_text("a") == "1"


def test_a_file_conflict_keeps_the_session_as_it_was(world: World) -> None:
    context = world.context()
    write_all(context)
    world.files.write_text("a", "theirs")
    with pytest.raises(FilesystemError, match="'a' was changed by somebody else"):
        context.commit()
    assert (len(world.session[Noted].all()), world.files.read_text("a")) == (0, "theirs")
    context.discard()
    with pytest.raises(SessionError, match="was discarded"):
        context.commit()


@pytest.mark.parametrize("with_files", [True, False])
def test_a_reducer_that_refuses_keeps_files_and_session_as_they_were(world: World, with_files: bool) -> None:
    context = world.context()
    if with_files:
        write_all(context)
    context.session.dispatch(Noted("first"))
    world.session[Noted].register(Noted, refuse)
    with pytest.raises(ReducerError, match="refused"):
        context.commit()
    assert (len(world.session[Noted].all()), world.files.read_text("a")) == (0, "1")
    context.discard()


def test_files_alone_can_be_committed(world: World) -> None:
    context = world.context()
    assert context.filesystem is not None
    context.filesystem.write_text("a", "2")
    context.commit()
    assert world.files.read_text("a") == "2"


async def test_what_was_made_for_the_call_is_closed_with_it(world: World) -> None:
    context = world.context()
    client = context.resources.get(Client)
    assert not client.closed
    context.commit()
    await context.aclose()
    assert client.closed
    await world.context().aclose()


def test_threads_of_one_tool_share_one_session(world: World) -> None:
    context = world.context()
    barrier = threading.Barrier(4)

    def note() -> None:
        barrier.wait()
        context.session.dispatch(Noted(threading.current_thread().name))

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context.commit()
    assert len(world.session[Noted].all()) == 4


def test_calls_side_by_side_both_keep_what_they_did(world: World) -> None:
    one, two = world.context("one"), world.context("two")
    for context in (one, two):
        context.session.dispatch(Noted(context.call_id))
        assert context.filesystem is not None
        context.filesystem.write_text(f"out/{context.call_id}", "x")
    one.commit()
    two.commit()
    assert [noted.text for noted in world.session[Noted].all()] == ["one", "two"]
    assert world.files.glob("out/*") == ("out/one", "out/two")


INVOKED = ToolInvoked(
    prompt_name="support/triage",
    adapter="scripted",
    name="find",
    params={"query": "key"},
    result=ToolResult.ok([1]),
    session_id=UUID(int=1),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    usage=TokenUsage(3, 4),
    rendered_output="[1]",
    call_id="call-1",
    event_id=UUID(int=2),
)


def test_its_tag_is_stable() -> None:
    assert tag_of(ToolInvoked) == "tool_invoked"


@pytest.mark.spec("TO-020")
def test_it_comes_back_from_a_snapshot_as_it_was() -> None:
    session = Session()
    session.dispatch(INVOKED)
    assert load(dump(INVOKED)) == INVOKED
    snapshot = session.snapshot()
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert session[ToolInvoked].latest() == INVOKED


def test_a_success_has_no_error_message() -> None:
    assert INVOKED.success
    assert is_success(INVOKED)
    assert error_message(INVOKED) is None


@pytest.mark.spec("TO-021")
@pytest.mark.parametrize("outcome", [word for word in get_args(ToolOutcome) if word != "ok"])
def test_every_other_outcome_is_a_failure(outcome: Any) -> None:
    failed = replace(INVOKED, outcome=outcome, result=ToolResult.error("it broke"))
    assert not failed.success
    assert error_message(failed) == "it broke"


@pytest.mark.spec("TO-021")
def test_a_result_of_another_kind_counts_by_the_outcome() -> None:
    assert replace(INVOKED, result="text").success
    odd = replace(INVOKED, outcome="crashed", result="text")
    assert (odd.success, error_message(odd)) == (False, None)
    assert not replace(INVOKED, result=ToolResult.error("no")).success
