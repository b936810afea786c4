"""Several children in one call: side by side, one outcome each, all of them under the parent's ceilings."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.subagents.support import DIG, Note, Watched, child_model, dispatching, limited, play, results, task
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, Script, ScriptedModel
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import ModelPrice, Rate, TokenUsage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.session.session import Session
from watchkeeper.subagents.dispatch import SubagentSettings
from watchkeeper.subagents.payloads import DispatchSubagentsResult
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import MemoryFilesystem, OverlayFilesystem
from watchkeeper.tools.tool import tool


def asked(request: ModelRequest) -> str:
    """Return the instructions of the child that asks."""
    last = [message for message in request.transcript if isinstance(message, UserMessage)][-1]
    return last.text.split("\n")[2]


class Slow(ScriptedModel):
    """A model that answers in a later turn of the loop, and knows how many ask at once."""

    def __init__(self, script: Script, **details: Any) -> None:
        super().__init__(script, name="child", **details)
        self.now = self.most = 0

    async def turn(self, request: ModelRequest) -> ModelReply:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return await super().turn(request)
        finally:
            self.now -= 1


def numbered(count: int) -> list[Any]:
    return [task(f"Number {number}.") for number in range(count)]


@pytest.mark.spec("SD-016")
async def test_there_is_one_outcome_for_each_task_in_their_order() -> None:
    class Late(Slow):
        async def turn(self, request: ModelRequest) -> ModelReply:
            for _ in range(40 - 10 * int(asked(request)[7])):
                await asyncio.sleep(0)
            return await super().turn(request)

    model = Late(lambda request: f"answer to {asked(request)}")
    played = await play(dispatching(*numbered(4)), children=model)
    value: DispatchSubagentsResult = played.value
    assert [outcome.result.message_summary for outcome in value.outcomes if outcome.result] == [
        f"answer to Number {number}." for number in range(4)
    ]
    assert played.said.startswith("## 1. research/dig: done\nanswer to Number 0.\n\n## 2. research/dig: done\n")


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_at_most_so_many_run_at_once(most: int) -> None:
    model = Slow(lambda request: "found")
    played = await play(dispatching(*numbered(7)), children=model, max_parallel=most)
    assert model.most == most
    assert len(played.ended) == 7


@pytest.mark.spec("SD-016")
async def test_one_failure_does_not_lose_the_others() -> None:
    def answer(request: ModelRequest) -> Any:
        return ProviderError("overrun", fault="auth") if "Number 1" in asked(request) else "found"

    tasks = [*numbered(3), task(prompt_key="dug"), task(" "), task(snapshot_version="0")]
    played = await play(dispatching(*tasks), children=Slow(answer))
    outcomes = played.value.outcomes
    assert [outcome.ok for outcome in outcomes] == [True, False, True, False, False, False]
    assert "overrun" in outcomes[1].error
    assert "Did you mean 'research/dig'?" in outcomes[3].error
    assert "instructions must not be empty" in outcomes[4].error
    assert "snapshot_version" in outcomes[5].error
    assert played.calls[-1].outcome == "ok"
    assert "## 2. research/dig: failed\nThe subagent research/dig was stopped" in played.said


async def test_an_error_that_nobody_expected_fails_its_own_task_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(files: OverlayFilesystem, path: str) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(OverlayFilesystem, "watch", watch)
    tasks = [task(), task(expected_artifacts=("bad.txt",)), task()]
    options = {"filesystem": MemoryFilesystem()}
    played = await play(dispatching(*tasks), children=Slow(lambda _: "found"), options=options)
    outcomes = played.value.outcomes
    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert outcomes[1].error == "The subagent research/dig did not run to its end: the disk is gone."


async def test_if_all_fail_the_call_has_failed_and_returns_nothing() -> None:
    played = await play(dispatching(task(" "), task(" ")))
    assert played.calls[-1].outcome == "failed"
    assert played.value is None
    assert played.said.count("instructions must not be empty") == 2


async def test_no_tasks_are_refused() -> None:
    played = await play(Call("dispatch_subagents", {"tasks": []}))
    assert played.calls[-1].outcome == "invalid"
    assert played.said == "tasks holds 0 tasks; give 1 to 20, and the rest in another call"


@pytest.mark.spec("SD-011")
async def test_children_see_nothing_of_each_other_and_the_parent_nothing_of_them() -> None:
    seen: dict[str, list[Note]] = {}
    session, watched = Session(), Watched()
    session.dispatch(Note("mine"))

    @tool
    async def look(name: str, *, context: ToolContext) -> str:
        """Look around."""
        for number in range(3):
            context.session.dispatch(Note(f"{name} {number}"))
            await asyncio.sleep(0)
        return "seen"

    def answer(request: ModelRequest) -> Any:
        if any(getattr(message, "tool_calls", ()) for message in request.transcript):
            return "found"
        return Call("look", {"name": asked(request)})

    def attend(child: Session) -> None:
        watched(child)
        heard: list[Note] = []
        seen[str(child.session_id)] = heard
        child.dispatcher.subscribe(Note, heard.append)

    played = await play(
        dispatching(*numbered(6)),
        children=Slow(answer),
        tools=[look],
        hydrate=attend,
        options={"session": session},
    )
    assert all(outcome.ok for outcome in played.value.outcomes)
    assert list(session[Note].all()) == [Note("mine")]
    assert all(len({note.text.rsplit(" ", 1)[0] for note in heard}) == 1 for heard in seen.values())
    assert sorted(len(heard) for heard in seen.values()) == [3] * 6
    assert await watched.alive() == 0


@pytest.mark.spec("SD-014")
async def test_a_conflict_between_siblings_fails_the_later_files_only() -> None:
    files, all_of_them = MemoryFilesystem(), asyncio.Barrier(3)

    @tool
    async def write(path: str, text: str, *, context: ToolContext) -> str:
        """Write a file."""
        assert context.filesystem is not None
        context.filesystem.write_text(path, text)
        if path != "shared.md":  # each has its own copy, of the turn before, when the first hands over
            await all_of_them.wait()
        return "written"

    def answer(request: ModelRequest) -> Any:
        number = asked(request)[7]
        turns = sum(1 for message in request.transcript if getattr(message, "tool_calls", ()))
        if turns == 0:
            return Call("write", {"path": "shared.md", "text": number})
        if turns == 1:
            return Call("write", {"path": f"own-{number}.md", "text": number})
        return "dug"

    tasks = [task(f"Number {n}.", expected_artifacts=("shared.md", f"own-{n}.md")) for n in range(3)]
    played = await play(dispatching(*tasks), children=Slow(answer), tools=[write], options={"filesystem": files})
    outcomes = [outcome.result for outcome in played.value.outcomes]
    # Their hand-overs run on worker threads: which of the three is the first is not told.
    first, *later = sorted(range(3), key=lambda number: len(outcomes[number].failed_artifacts))
    assert [outcomes[number].failed_artifacts for number in (first, *later)] == [(), ("shared.md",), ("shared.md",)]
    assert played.said.count("Not kept: shared.md (another subagent changed it meanwhile)") == 2
    assert files.glob("**") == ("own-0.md", "own-1.md", "own-2.md", "shared.md")
    assert files.read_text("shared.md") == str(first)


async def test_those_that_run_at_once_get_equal_parts_of_the_share() -> None:
    played = await play(
        dispatching(*numbered(5)),
        children=Slow(lambda request: "found"),
        limits=Limits(max_total_tokens=400_000, max_tool_calls=41, deadline="1h", verdict=None, landing=None),
        max_parallel=2,
    )
    # Half of what is left, by two; the time in three rounds.
    share = (400_000 - 120) // 2
    assert f"total tokens {share // 2:,}" in played.started[0].limits
    assert f"total tokens {share // 2:,}" in played.started[1].limits
    assert all("tool calls 10" in each.limits for each in played.started)
    assert all(each.limits.startswith("deadline 10m") for each in played.started)
    assert all(outcome.ok for outcome in played.value.outcomes)


async def test_what_one_child_has_not_used_is_there_for_the_next() -> None:
    played = await play(
        dispatching(*numbered(20)),
        children=Slow(lambda request: "found"),
        limits=Limits(max_total_tokens=50_000),
    )
    assert [outcome.error for outcome in played.value.outcomes] == [""] * 20
    assert played.result.usage.tokens.total == 22 * 120


@pytest.mark.parametrize("most", [2, 8])
@pytest.mark.parametrize("key", ["unprepared", "unfilled", "clashing"])
async def test_the_part_of_a_child_that_did_not_start_is_there_for_the_next(key: str, most: int) -> None:
    def hydrate(session: Session) -> None:
        raise OSError("the notes are gone")

    @tool
    async def look() -> str:
        """Look around."""
        return "seen"

    @tool(name="look")
    async def look_again() -> str:
        """Look elsewhere."""
        return "seen"

    sections = {
        "unprepared": MarkdownSection("U", "u", "Dig."),
        "unfilled": MarkdownSection("U", "u", "${weather}"),
        "clashing": MarkdownSection("U", "u", "Look.", tools=[look_again]),
    }
    bad = PromptTemplate[str](ns="research", key=key, sections=[sections[key]])
    played = await play(
        dispatching(*([task(prompt_key=key)] * 12), *numbered(8)),
        prompts=[DIG, bad],
        children=Slow(lambda request: "found"),
        tools=[look],
        settings={"research/unprepared": SubagentSettings(hydrate=hydrate)} if key == "unprepared" else {},
        limits=Limits(max_total_tokens=400_000, verdict=None, landing=None),
        max_parallel=most,
    )
    assert [outcome.ok for outcome in played.value.outcomes] == [False] * 12 + [True] * 8
    share = (400_000 - 120) // 2
    assert f"total tokens {share // most:,}" in played.started[0].limits


async def test_children_never_get_more_than_the_share_of_their_call() -> None:
    def greedy(request: ModelRequest) -> Any:
        return Say("found", TokenUsage(input_tokens=50, output_tokens=min(2_000, request.max_output_tokens)))

    played = await play(
        dispatching(*numbered(6)),
        children=Slow(greedy),
        limits=Limits(max_total_tokens=20_000, verdict=None, landing=None),
        max_parallel=2,
    )
    assert sum(each.usage.tokens.total for each in played.ended) <= (20_000 - 120) // 2
    assert any(outcome.ok for outcome in played.value.outcomes)


PRICE = ModelPrice(input=Rate(10**9), output=Rate(10**10))  # $1 and $10 per million tokens


@pytest.mark.spec("SD-016")
async def test_twenty_children_racing_one_ceiling_never_exceed_it() -> None:
    """By no token and no nano-dollar; sync tools on real threads and answers of every size in between."""
    lock = threading.Lock()
    worked: list[str] = []

    @tool(parallel_safe=True)
    def work(name: str) -> str:
        """Work on a thread."""
        with lock:
            worked.append(name)
        return "done"

    def answer(request: ModelRequest) -> Any:
        turns = sum(1 for message in request.transcript if getattr(message, "tool_calls", ()))
        usage = TokenUsage(
            input_tokens=200 + 13 * turns, output_tokens=min(250 + 17 * turns, request.max_output_tokens)
        )
        if request.tool_choice == "none" or turns == 30:
            return Say("found", usage)
        calls = tuple(Call("work", {"name": asked(request)}) for _ in range(2))
        return Calls(calls, "", usage)

    limits = Limits(max_total_tokens=300_000, max_cost_usd="1.5", max_tool_calls=1_000, max_steps=1_500)
    for given in (None, Limits(max_total_tokens=40_000, max_cost_usd="0.3", max_tool_calls=90)):
        played = await play(
            dispatching(*numbered(20)),
            children=Slow(answer, free=False, max_output_tokens=400),
            tools=[work],
            limits=limits,
            max_parallel=20,
            settings={} if given is None else limited(given),
            share=0.9,
            options={"prices": {"scripted:child": PRICE}},
        )
        used = played.result.usage
        assert used.tokens.total <= 300_000
        assert used.cost_nanos is not None
        assert used.cost_nanos <= 1_500_000_000
        assert used.tool_calls <= 1_000
        assert used.steps <= 1_500
        assert len(worked) <= 1_000
        assert used.tokens.total > 100_000  # there was a race
        assert used.tokens.total == sum(each.usage.tokens.total for each in played.ended) + 120 * played.result.turns
        worked.clear()


async def test_a_child_that_a_tool_of_its_own_cancels_does_not_take_the_others_along() -> None:
    @tool
    async def give_up() -> str:
        """Raise what only the loop may raise."""
        raise asyncio.CancelledError

    def answer(request: ModelRequest) -> Any:
        calls = [message for message in request.transcript if getattr(message, "tool_calls", ())]
        return Call("give_up") if "Number 0" in asked(request) and not calls else "found"

    played = await play(dispatching(*numbered(3)), children=Slow(answer), tools=[give_up])
    assert [outcome.ok for outcome in played.value.outcomes] == [True, True, True]


async def test_a_cancelled_call_waits_until_every_child_is_over() -> None:
    session, watched = Session(), Watched()
    started = asyncio.Event()

    class Stuck(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            if len(watched.sessions) == 4:
                started.set()
            await asyncio.Event().wait()
            raise AssertionError

    work = asyncio.ensure_future(
        play(
            dispatching(*numbered(6)),
            children=Stuck([], name="child"),
            hydrate=watched,
            options={"session": session},
        )
    )
    await started.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    del work
    assert session.children == ()
    assert await watched.alive() == 0
    kinds = [type(envelope.event).__name__ for envelope in session.log]
    assert kinds.count("ChildStarted") == kinds.count("ChildEnded") == 4


@pytest.mark.spec("DL-007", "DL-013", "DL-019")
async def test_a_parent_whose_time_is_over_takes_all_of_them_along() -> None:
    session, watched, clock = Session(), Watched(), TestClock()
    started = asyncio.Event()

    class Stuck(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            if len(watched.sessions) == 4:
                started.set()
            await asyncio.Event().wait()
            raise AssertionError

    work = asyncio.ensure_future(
        play(
            dispatching(*numbered(6)),
            children=Stuck([], name="child"),
            hydrate=watched,
            limits=Limits(deadline="10m", landing=None, verdict=None),
            settings=limited(Limits(deadline="1h")),
            options={"session": session, "clock": clock},
        )
    )
    await started.wait()
    clock.advance(601)
    played = await work
    assert played.result.stop is not None
    assert played.result.stop.reason == "timeout"
    assert played.calls[-1].result.message.startswith("deadline exceeded")
    assert session.children == ()
    assert await watched.alive() == 0
    assert len(played.started) == len(played.ended)


async def test_a_model_that_calls_twice_in_one_turn_gets_both_results() -> None:
    first = Call("dispatch_subagent", task("Number 1."))
    second = Call("dispatch_subagent", task("Number 2."))
    played = await play(Calls((first, second)), children=child_model(lambda request: asked(request)))
    assert results(played.parent) == ["Number 1.", "Number 2."]


async def test_different_prompts_may_stand_side_by_side() -> None:
    write = PromptTemplate[str](ns="research", key="write", sections=[MarkdownSection("W", "w", "Write.")])
    played = await play(
        dispatching(task(), task(prompt_key="write")),
        prompts=[DIG, write],
        children=lambda request: "written" if "# W\n" in request.transcript[0].text else "found",
    )
    assert [outcome.result.message_summary for outcome in played.value.outcomes] == ["found", "written"]
