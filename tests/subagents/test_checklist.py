"""The testing checklist of the document on subagent dispatch, point by point (docs/specification.md, SD)."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from tests.kit import left_of
from tests.subagents.support import (
    DIG,
    Finding,
    Note,
    Watched,
    child_model,
    dispatching,
    play,
    results,
    task,
    tool_names,
)
from watchkeeper.adapters.scripted import Call, Say
from watchkeeper.core.errors import DispatchSubagentError, ProviderError, ToolValidationError
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.subagents.payloads import DispatchSubagentResult
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.tool import tool


@tool
async def look(*, context: ToolContext) -> str:
    """Look around."""
    context.session.dispatch(Note("seen by a tool"))
    return "seen"


@tool
async def look_again(place: str) -> str:
    """Look somewhere else."""
    return place


@pytest.mark.spec("SD-004", "SD-007")
async def test_snapshot_parity() -> None:
    """After rollback the child session exposes identical slices to the parent snapshot before any child tool runs."""
    session = Session()
    session.dispatch(Note("one"))
    session.dispatch(Note("two"))
    compared: list[bool] = []

    def compare(child: Session) -> None:
        taken, own = session.snapshot(), child.snapshot()
        # The parent's log goes on while the child is started; what the user put there does not.
        assert list(own[Note]) == list(taken[Note]) == [Note("one"), Note("two")]
        compared.append(own.slices.keys() <= taken.slices.keys())
        slices: Mapping[Any, Sequence[Any]] = own.slices
        before: Mapping[Any, Sequence[Any]] = taken.slices
        assert all(list(view) == list(before[type_])[: len(view)] for type_, view in slices.items())

    played = await play(dispatching(task()), hydrate=compare, options={"session": session})
    assert played.result.ok
    assert compared == [True]


@pytest.mark.spec("SD-005", "SD-007")
async def test_tool_propagation() -> None:
    """The child prompt receives the same tool definitions as the parent; they work without more registration."""
    model = child_model([Call("look_again", {"place": "attic"}), "found"])
    played = await play(dispatching(task()), children=model, tools=[look, look_again])
    own, given = played.parent.requests[0].tools, model.requests[0].tools
    assert [spec for spec in own if not spec.name.startswith("dispatch_")] == list(given)
    assert results(model) == ["attic"]


@pytest.mark.spec("SD-007", "SD-011")
async def test_isolation() -> None:
    """Running a tool in the child leaves the parent unchanged; then the child is collected and gets no more events."""
    session = Session()
    session.dispatch(Note("mine"))
    watched = Watched()
    heard: list[Any] = []

    def attend(child: Session) -> None:
        watched(child)
        child.dispatcher.subscribe(Note, heard.append)

    played = await play(
        dispatching(task()),
        children=[Call("look"), "found"],
        tools=[look],
        hydrate=attend,
        options={"session": session},
    )
    assert played.result.ok
    assert heard == [Note("seen by a tool")]
    assert list(session[Note].all()) == [Note("mine")]
    assert session.children == ()
    session.dispatch(Note("later"))
    assert len(heard) == 1
    assert await watched.alive() == 0


@pytest.mark.spec("SD-001", "SD-007")
async def test_structured_output() -> None:
    """A result whose message_summary matches the message of the ToolResult, and whose artifacts are the child's."""
    finder = PromptTemplate[Finding](
        ns="research", key="dig", sections=[MarkdownSection("Dig", "dig", "Dig.", tools=[look])]
    )
    played = await play(
        dispatching(task()), children=[Call("look"), Say(Finding("It is blue.", ["page 3"]))], prompts=[finder]
    )
    result = played.calls[-1].result
    value = cast("DispatchSubagentResult", result.value)
    assert value.message_summary == result.message == played.said == "It is blue."
    assert value.output == {"summary": "It is blue.", "sources": ["page 3"]}
    assert value.tools_used == ("look",)
    assert value.artifacts == ()
    assert (value.prompt_ns, value.prompt_key) == ("research", "dig")
    assert value.run_id == played.started[0].run_context.run_id


def user_slices(session: Session) -> dict[type, list[Any]]:
    """Return what a user keeps in a session."""
    taken: Snapshot = session.snapshot()
    return {type_: list(view) for type_, view in taken.slices.items() if type_ is Note}


@tool
async def crash() -> str:
    """Crash."""
    raise RuntimeError("the tool fell over")


def broken_hydration(session: Session) -> None:
    session.dispatch(Note("half done"))
    raise ValueError("no such metric")


def later_hydration(session: Session) -> object:
    async def later() -> None:
        session.dispatch(Note("too late"))

    return later()


FAILURES: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "prompt lookup": ({"prompt_key": "dug"}, {}, ToolValidationError, "Did you mean 'research/dig'?"),
    "snapshot version": ({"snapshot_version": "7"}, {}, ToolValidationError, "snapshots have version 1"),
    "snapshot hydration": ({}, {"hydrate": broken_hydration}, ToolValidationError, "ValueError: no such metric"),
    "async hydration": (
        {},
        {"hydrate": later_hydration},
        ToolValidationError,
        "a coroutine, which",
    ),
    "model error": (
        {},
        {"children": [ProviderError("no such account", fault="auth")]},
        DispatchSubagentError,
        "no such account",
    ),
    "nonsense": ({}, {"children": []}, DispatchSubagentError, "turn 1 was asked for"),
}


@pytest.mark.spec("SD-001", "SD-006", "SD-007", "SD-015")
@pytest.mark.parametrize("which", FAILURES)
async def test_failure_reporting(which: str) -> None:
    """Failures raise the documented exceptions, whose message the parent's model gets, and leave its session alone."""
    fields, options, kind, words = FAILURES[which]
    session = Session()
    session.dispatch(Note("mine"))
    before = user_slices(session)
    played = await play(dispatching(task(**fields)), options={"session": session}, **options)
    call = played.calls[-1]
    assert played.result.ok
    assert words in played.said
    assert call.outcome == ("invalid" if kind is ToolValidationError else "crashed")
    assert call.result.value is None
    assert not call.result.success
    assert user_slices(session) == before
    assert session.children == ()


@pytest.mark.parametrize(
    ("hydrate", "words"), [(broken_hydration, "ValueError: no such metric"), (later_hydration, "a coroutine, which")]
)
async def test_what_no_model_can_mend_is_logged_too(
    hydrate: Callable[[Session], object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    played = await play(dispatching(task()), hydrate=hydrate)
    (line,) = (said for said in caplog.messages if "subagent.not_prepared" in said)
    assert words in line
    assert hydrate.__name__ in line
    assert ("do not send the same task again" in played.said) is (hydrate is later_hydration)


async def test_a_crash_of_a_childs_tool_is_the_childs_to_deal_with() -> None:
    """Tool crashes do not end a child: its model sees them."""
    model = child_model([Call("crash"), "it fell over, but this is what I know"])
    played = await play(dispatching(task()), children=model, tools=[crash])
    assert "the tool fell over" in results(model)[0]
    assert played.said == "it fell over, but this is what I know"
    assert played.value.tools_used == ("crash",)


@pytest.mark.spec("SD-001")
async def test_the_fields_are_those_of_the_document() -> None:
    names = [item.name for item in dataclasses.fields(DispatchSubagentResult)]
    assert names[:5] == ["prompt_ns", "prompt_key", "message_summary", "artifacts", "tools_used"]


async def test_the_parents_snapshot_is_kept_by_nobody() -> None:
    """The child's snapshot is not persisted: nothing of its slices is on the parent's log."""
    session = Session()
    await play(dispatching(task()), children=[Call("look"), "found"], tools=[look], options={"session": session})
    assert not [envelope for envelope in session.log if isinstance(envelope.event, Note)]
    reference = weakref.ref(session)
    del session
    assert left_of([reference]) == 0


async def test_dispatch_is_only_offered_to_the_parent() -> None:
    model = child_model(["found"])
    played = await play(dispatching(task()), children=model, tools=[look], prompts=[DIG])
    assert tool_names(model) == ["look"]
    assert tool_names(played.parent) == ["look", "dispatch_subagent", "dispatch_subagents"]
