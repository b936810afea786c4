"""However a child ends: it is closed and unsubscribed, its reservation is released, and the parent goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.subagents.support import (
    DIG,
    Note,
    Watched,
    child_model,
    dispatching,
    limited,
    parent_template,
    play,
    results,
    task,
)
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.children.child import children_of
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import DispatchSubagentError, ProviderError
from watchkeeper.core.ids import root_run_context
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.session.session import Session
from watchkeeper.subagents.dispatch import ADVICE, MAY_PASS, SAME_AGAIN, SEND_FEWER, USE_IT
from watchkeeper.subagents.payloads import PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import CallInfo, ToolContext, ToolScope
from watchkeeper.tools.tool import tool


class Stuck(ScriptedModel):
    """A model that never answers."""

    def __init__(self) -> None:
        super().__init__([], name="child")
        self.asked = asyncio.Event()

    async def turn(self, request: ModelRequest) -> ModelReply:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")


@tool
async def wait_a_minute(*, context: ToolContext) -> str:
    """Wait a minute."""
    context.session.dispatch(Note("waited"))
    await context.clock.sleep(60)
    return "waited"


@tool
async def look() -> str:
    """Look around."""
    return "seen"


@tool
async def crash() -> str:
    """Crash."""
    raise RuntimeError("fell over")


@tool
async def abort_all(*, context: ToolContext) -> str:
    """Abort the run that this belongs to."""
    children = children_of(context.session)
    assert children is not None
    children.family.scope.gate.abort("enough")
    return "aborted"


def endlessly(request: ModelRequest) -> Call:
    """Call the same tool for ever; a landing turn has nothing to say."""
    return Call("wait_a_minute")


def refused(request: ModelRequest) -> ProviderError:
    """Refuse, with an error that nobody keeps."""
    return ProviderError("bad key", fault="auth")


ENDINGS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "success": ({"children": ["found"]}, None, "found"),
    "model error": ({"children": refused}, "provider_error", "bad key"),
    "tool crash": ({"children": [Call("crash"), "found"], "tools": [crash]}, None, "found"),
    "deadline": (
        {"children": endlessly, "tools": [wait_a_minute], "settings": limited(Limits(deadline="5m", landing=None))},
        "timeout",
        "5m",
    ),
    "abort": ({"children": [Call("abort_all"), "found"], "tools": [abort_all]}, "aborted", "enough"),
    "limit": (
        {"children": endlessly, "tools": [wait_a_minute], "settings": limited(Limits(max_tool_calls=3))},
        "tool_call_limit_exceeded",
        "max_tool_calls",
    ),
    "turns": (
        {"children": endlessly, "tools": [wait_a_minute], "settings": limited(Limits(max_turns=2))},
        "turn_limit_exceeded",
        "2 turns",
    ),
}


@pytest.mark.spec("SD-004", "SD-006", "SD-012")
@pytest.mark.parametrize("which", ENDINGS)
async def test_nothing_stays_of_a_child_and_the_parent_goes_on(which: str) -> None:
    options, stop, words = ENDINGS[which]
    session, watched = Session(), Watched()
    session.dispatch(Note("mine"))
    heard: list[Any] = []

    def attend(child: Session) -> None:
        watched(child)
        child.dispatcher.subscribe(Note, heard.append)

    done = await play(dispatching(task()), hydrate=attend, options={"session": session}, **options)
    assert done.result.ok
    assert words in done.said
    assert len(done.said.encode()) < 2048
    ended = done.ended[-1]
    assert (ended.stop.reason if ended.stop else None) == stop
    assert list(session[Note].all()) == [Note("mine")]
    assert session.children == ()
    assert len(watched.sessions) == 1
    assert await watched.alive() == 0
    heard_before = len(heard)
    session.dispatch(Note("later"))
    assert len(heard) == heard_before
    if stop is not None:
        assert done.value is None


@pytest.mark.spec("DL-007", "DL-013", "DL-019")
async def test_a_child_that_never_answers_is_ended_by_its_deadline() -> None:
    clock, model = TestClock(), Stuck()
    work = asyncio.ensure_future(
        play(
            dispatching(task()),
            children=model,
            settings=limited(Limits(deadline="5m", landing=None)),
            options={"clock": clock},
        )
    )
    await model.asked.wait()
    clock.advance(301)
    done = await work
    assert done.result.ok
    assert "its deadline of 5m" in done.said
    assert "5m" in done.said


@pytest.mark.spec("SD-006")
async def test_a_cancelled_run_takes_its_child_along() -> None:
    session, watched, model = Session(), Watched(), Stuck()
    session.dispatch(Note("mine"))
    work = asyncio.ensure_future(
        play(dispatching(task()), children=model, hydrate=watched, options={"session": session})
    )
    await model.asked.wait()
    (child,) = session.children
    del child
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    del work
    assert session.children == ()
    assert list(session[Note].all()) == [Note("mine")]
    assert await watched.alive() == 0
    kinds = [type(envelope.event).__name__ for envelope in session.log]
    assert kinds.count("ChildStarted") == kinds.count("ChildEnded") == 1


@pytest.mark.spec("DL-013")
async def test_an_aborted_parent_ends_its_child_too() -> None:
    session, watched, model, clock = Session(), Watched(), Stuck(), TestClock()
    work = asyncio.ensure_future(
        play(
            dispatching(task()),
            children=model,
            hydrate=watched,
            limits=Limits(deadline="2m", landing=None),
            options={"session": session, "clock": clock},
        )
    )
    await model.asked.wait()
    clock.advance(121)
    done = await work
    assert done.result.stop is not None
    assert done.result.stop.reason == "timeout"
    assert session.children == ()
    assert await watched.alive() == 0


@pytest.mark.spec("SD-006")
async def test_what_a_stopped_child_had_is_handed_over_in_short() -> None:
    def lands(request: ModelRequest) -> Any:
        return "So far: " + "it is in the attic. " * 500 if request.tool_choice == "none" else Call("wait_a_minute")

    done = await play(
        dispatching(task()),
        children=lands,
        tools=[wait_a_minute],
        settings=limited(Limits(max_tool_calls=3)),
    )
    assert "max_tool_calls" in done.said
    assert "So far: it is in the attic." in done.said
    assert "left out" in done.said
    assert done.said.endswith("If that is enough, use it. Else change the task, or do the work yourself.")
    assert len(done.said.encode()) < 2048
    assert done.value is None


async def test_what_a_child_reserved_and_did_not_use_comes_back() -> None:
    """Two children in a row may each have more than half of what there is."""
    limits = Limits(max_total_tokens=20_000, max_tool_calls=10, deadline="1h", verdict=None)
    done = await play(
        dispatching(task("One.")),
        dispatching(task("Two.")),
        children=["first", "second"],
        limits=limits,
        settings=limited(Limits(max_total_tokens=15_000)),
    )
    assert results(done.parent) == ["first", "second"]
    assert done.result.usage.tokens.total == 5 * 120


async def test_a_dispatch_outside_of_a_run_is_refused() -> None:
    session = Session()
    section = PromptSubagentToolsSection(PromptRegistry(DIG))
    context = ToolContext(CallInfo("c", "t"), ToolScope(session, root_run_context(session.session_id)))
    with pytest.raises(DispatchSubagentError, match="only be dispatched within a run"):
        await section.tools[0].handler(task(), context=context)


async def test_the_stop_of_the_run_is_the_runs_not_the_childs() -> None:
    """A child that hits its parent's ceiling says so; the parent lands as always."""
    model = child_model(endlessly)
    done = await play(
        dispatching(task()),
        children=model,
        tools=[wait_a_minute],
        limits=Limits(max_tool_calls=5),
        share=0.99,
    )
    assert done.ended[0].stop is not None
    assert done.result.usage.tool_calls <= 5


# --- whether to send it again -----------------------------------------------------------------------------------------


@tool(name="look")
async def namesake() -> str:
    """Another tool of that name."""
    return "seen"


LOOKS = [Call("crash")] * 9
OTHERS = MarkdownSection("More", "more", "More.")
ONE_TURN = limited(Limits(max_turns=1, landing=None))
NO_RETRY = limited(Limits(max_retries=0))

ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "its own tokens": (SAME_AGAIN, {"settings": limited(Limits(max_total_tokens=300))}),
    "its own turns": (SAME_AGAIN, {"children": LOOKS, "tools": [crash], "settings": ONE_TURN}),
    "what is left": (SAME_AGAIN, {"limits": Limits(max_total_tokens=8_000), "share": 0.03}),
    "what a provider refuses for good": (SAME_AGAIN, {"children": [ProviderError("bad key", fault="auth")]}),
    "what may pass": (MAY_PASS, {"children": [ProviderError("busy", fault="overloaded")], "settings": NO_RETRY}),
    "what nobody knows": ("", {"children": [RuntimeError("fell over")]}),
    "its configuration": (SAME_AGAIN, {"prompts": [parent_template(OTHERS, [namesake], ns="research", key="dig")]}),
}


@pytest.mark.parametrize("ending", ENDS)
async def test_a_parent_is_told_whether_the_same_task_would_end_in_the_same_way(ending: str) -> None:
    said, options = ENDS[ending]
    given: dict[str, Any] = {"tools": [look], **options}
    done = await play(dispatching(task()), **given)
    assert done.result.ok
    assert done.value is None
    assert [each for each in (SAME_AGAIN, MAY_PASS, SEND_FEWER) if each in done.said] == [said] * bool(said)
    assert done.said.endswith(ADVICE)


async def test_tasks_that_share_too_little_are_not_called_hopeless() -> None:
    two = dispatching(task("One."), task("Two."))
    share: dict[str, Any] = {"limits": Limits(max_total_tokens=8_000), "share": 0.1}
    done = await play(two, **share)
    assert (done.said.count(SEND_FEWER), done.said.count(SAME_AGAIN)) == (2, 0)
    assert (await play(dispatching(task("One.")), **share)).said == "found"
    done = await play(two, settings=limited(Limits(max_total_tokens=300)))
    assert (done.said.count(SEND_FEWER), done.said.count(SAME_AGAIN)) == (0, 2)


async def test_the_last_words_of_a_stopped_child_come_with_the_same_advice() -> None:
    def lands(request: ModelRequest) -> Any:
        return "So far: nothing." if request.tool_choice == "none" else Call("crash")

    done = await play(dispatching(task()), children=lands, tools=[crash], settings=limited(Limits(max_turns=2)))
    assert f"{SAME_AGAIN} It handed over:\nSo far: nothing." in done.said
    assert done.said.endswith(USE_IT)


async def test_too_deep_a_task_is_not_worth_sending_again() -> None:
    inner = PromptSubagentToolsSection(PromptRegistry(DIG), max_depth=9)
    model = child_model([dispatching(task()), "alone then"])
    boss = parent_template(inner, ns="research", key="boss")
    done = await play(dispatching(task(prompt_key="boss")), children=model, prompts=[boss])
    assert done.said == "alone then"
    assert results(model)[0].endswith(f"{SAME_AGAIN} {ADVICE}")
