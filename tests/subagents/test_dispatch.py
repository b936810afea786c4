"""From a task to a child run: its model, limits, state, tools, resources, place in the trace, how deep it may go."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from tests.oversight.support import Watcher
from tests.subagents.support import (
    DIG,
    Note,
    child_model,
    dispatching,
    parent_template,
    play,
    results,
    task,
    texts,
    tool_names,
)
from watchkeeper.accounting.budget import Budget
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.app.run import arun
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, UnpricedModelError
from watchkeeper.core.model import ModelRequest
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.advice import Assessment, Feedback
from watchkeeper.prompt.evaluation import PromptRendered
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ModelReplied, RunStarted
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Replace
from watchkeeper.subagents.dispatch import SubagentSettings
from watchkeeper.subagents.payloads import Artifact, PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.resources import ResourceBinding, Resources
from watchkeeper.tools.tool import tool

WRITE = PromptTemplate[str](ns="research", key="write", sections=[MarkdownSection("Write", "write", "Write.")])


@dataclass(frozen=True)
class Count:
    """What is derived from notes."""

    notes: int


def count_notes(child: Session) -> None:
    child[Count].seed(Count(len(child[Note].all())))


@tool
async def look() -> str:
    """Look around."""
    return "seen"


class TestModels:
    """Who answers in a child."""

    @pytest.mark.spec("SD-017")
    async def test_the_parents_own_by_default(self) -> None:
        section = PromptSubagentToolsSection(PromptRegistry(DIG))
        parent = ScriptedModel([dispatching(task()), "found by the same", "done"])
        result = await arun(parent_template(section), model=parent, store=None)
        assert result.output == "done"
        parent.assert_complete()

    @pytest.mark.spec("SD-017")
    async def test_one_for_all_and_another_for_one_prompt(self) -> None:
        small, large = child_model(["dug"], name="small"), child_model(["written"], name="large")
        played = await play(
            dispatching(task(), task(prompt_key="write")),
            prompts=[DIG, WRITE],
            model=small,
            settings={"research/write": SubagentSettings(model=large)},
        )
        assert [each.model for each in played.started] == ["scripted:small", "scripted:large"]
        assert played.result.answered_by == ("scripted:scripted",)

    @pytest.mark.spec("SD-017")
    async def test_a_string_is_made_and_priced_when_the_run_begins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from watchkeeper.app import models as lineup

        made: list[str] = []
        cheap = child_model(["found"], name="gpt-5-mini", provider="openai")

        def make(text: str) -> ScriptedModel:
            made.append(text)
            return cheap

        monkeypatch.setattr(lineup, "model_from", make)
        played = await play(dispatching(task()), model="openai:gpt-5-mini")
        assert made == ["openai:gpt-5-mini"]
        assert played.started[0].model == "openai:gpt-5-mini"
        assert played.said == "found"

    async def test_one_that_the_run_does_not_know_is_refused_in_words(self) -> None:
        """A registry that grows after the section was made may bring models that nobody has priced."""
        registry = PromptRegistry(DIG)
        section = PromptSubagentToolsSection(registry, max_depth=2)
        inner = PromptSubagentToolsSection(PromptRegistry(WRITE), model=child_model(["x"], name="late"))
        registry.register(parent_template(inner, ns="research", key="boss"))
        steps: list[Any] = [
            dispatching(task(prompt_key="boss")),
            dispatching(task(prompt_key="write")),
            "could not",
            "done",
        ]
        model = ScriptedModel(steps)
        result = await arun(parent_template(section), model=model, store=None)
        assert result.ok
        assert any("scripted:late of this subagent was not made ready" in text for text in results(model, 2))

    @pytest.mark.spec("SD-017")
    def test_the_models_of_a_section_answer_under_adapter_evaluate_too(self) -> None:
        small, large = child_model(["dug"], name="small"), child_model(["written"], name="large")
        section = PromptSubagentToolsSection(
            PromptRegistry(DIG, WRITE), model=small, settings={"research/write": SubagentSettings(model=large)}
        )
        parent = ScriptedModel([dispatching(task(), task(prompt_key="write")), "done"])
        assert Adapter(parent).evaluate(Prompt(parent_template(section))).output == "done"
        assert "dug" in results(parent)[0]
        assert "written" in results(parent)[0]

    def test_an_adapter_refuses_a_model_string_of_a_subagent_and_one_without_a_price(self) -> None:
        named = PromptSubagentToolsSection(PromptRegistry(DIG), model="openai:gpt-5-mini")
        adapter = Adapter(ScriptedModel([]))
        with pytest.raises(ConfigurationError, match=r"has the model 'openai:gpt-5-mini', which only run\(\) makes"):
            adapter.evaluate(Prompt(parent_template(named)))
        unpriced = child_model([], name="dear", provider="openai", free=False)
        section = PromptSubagentToolsSection(PromptRegistry(DIG), model=unpriced)
        with pytest.raises(UnpricedModelError, match="no price for 'openai:dear', the model of a subagent"):
            adapter.evaluate(Prompt(parent_template(section)), budget=Budget(max_cost_usd=1))


class TestLimits:
    """What a child may spend."""

    @pytest.mark.spec("SD-017")
    async def test_half_of_what_is_left_by_default(self) -> None:
        played = await play(
            dispatching(task()), limits=Limits(max_total_tokens=1_000_120, deadline="1h", landing=None, verdict=None)
        )
        assert "total tokens 500,000" in played.started[0].limits
        assert played.started[0].limits.startswith("deadline 30m")

    @pytest.mark.spec("SD-017")
    async def test_those_of_the_section_or_of_the_prompt(self) -> None:
        played = await play(
            dispatching(task(), task(prompt_key="write")),
            prompts=[DIG, WRITE],
            children=["a", "b"],
            settings={"research/write": SubagentSettings(limits=Limits(max_turns=3))},
        )
        assert "turns 3" in played.started[1].limits
        one, model = Limits(max_turns=2, deadline="3m"), child_model(["a"])
        section = PromptSubagentToolsSection(PromptRegistry(DIG), limits=one, model=model)
        parent = ScriptedModel([dispatching(task()), "done"])
        result = await arun(parent_template(section), model=parent, store=None, clock=TestClock())
        (started,) = [each.event for each in result.session.log if type(each.event).__name__ == "ChildStarted"]
        assert started.limits == one.describe()

    @pytest.mark.spec("SD-017")
    async def test_a_child_gets_at_most_what_its_parent_has_left(self) -> None:
        played = await play(
            dispatching(task()),
            limits=Limits(max_total_tokens=50_000, verdict=None, landing=None),
            settings={"research/dig": SubagentSettings(limits=Limits(max_total_tokens=80_000))},
        )
        assert "total tokens 49,880" in played.started[0].limits

    async def test_what_it_spends_counts_at_its_parent(self) -> None:
        played = await play(dispatching(task()), children=[Call("look"), "found"], tools=[look])
        assert played.result.usage.tokens.total == 4 * 120
        assert played.result.usage.tool_calls == 2
        assert played.ended[0].usage.tokens.total == 2 * 120


class TestState:
    """What a child begins with."""

    async def test_the_parents_slices_and_a_summary_of_them(self) -> None:
        session = Session()
        seen: list[Any] = []
        session.dispatch(Note("one"))
        model = child_model(["found"])
        await play(
            dispatching(task()),
            children=model,
            hydrate=lambda child: seen.append(list(child[Note].all())),
            options={"session": session},
        )
        assert seen == [[Note("one")]]
        assert 'Note: 1 item, the newest: {"text":"one"}' in texts(model)[1]

    @pytest.mark.parametrize("hydrated", [False, True])
    async def test_what_says_how_the_parents_run_went_is_not_among_them(self, hydrated: bool) -> None:
        session = Session()
        session.dispatch(Note("one"))
        session[Assessment].append(Assessment("Watcher", "of the parent"))
        session[Feedback].append(Feedback("Judge", "of the parent"))
        seen: list[Any] = []
        prepared: list[str] = []

        def watch(context: ObserverContext) -> Assessment:
            said, of_run = context.last_assessment, context.session.snapshot()
            assert len(of_run[RunStarted]) == len(of_run[PromptRendered]) == 1
            assert (list(of_run[Note]), len(of_run[Feedback])) == ([Note("one")], 0)
            seen.append((said and said.summary, context.tool_call_count, len(of_run[ModelReplied])))
            return Assessment("Watcher", "of the child")

        prompt = replace(DIG, observers=(ObserverConfig(Watcher(watch), ObserverTrigger(on_every_call=True)),))
        played = await play(
            Call("look"),
            dispatching(task()),
            children=[Call("look"), Call("look"), "found"],
            prompts=[prompt],
            tools=[look],
            hydrate=(lambda child: prepared.extend(call.name for call in child[ToolInvoked].all()))
            if hydrated
            else None,
            options={"session": session},
        )
        assert played.result.ok
        assert prepared == ["look"] * hydrated
        assert seen == [(None, 1, 1), ("of the child", 2, 2)]
        assert [said.summary for said in session[Assessment].all()] == ["of the parent"]

    @pytest.mark.spec("SD-002")
    async def test_those_of_a_session_that_the_section_was_given(self) -> None:
        other = Session()
        seen: list[Any] = []
        other.dispatch(Note("elsewhere"))
        await play(
            dispatching(task()),
            session=other,
            hydrate=lambda child: seen.append(child[Note].latest()),
        )
        assert seen == [Note("elsewhere")]

    async def test_reducers_of_the_parent_hold_in_the_child(self) -> None:
        session = Session()
        kept: list[Any] = []
        session[Note].register(Note, lambda view, event: Replace((event,)))

        @tool
        async def note(text: str, *, context: ToolContext) -> str:
            """Note something."""
            context.session.dispatch(Note(text))
            kept.append(list(context.session[Note].all()))
            return "noted"

        await play(
            dispatching(task()),
            children=[Call("note", {"text": "a"}), Call("note", {"text": "b"}), "found"],
            tools=[note],
            options={"session": session},
        )
        assert kept == [[Note("a")], [Note("b")]]

    @pytest.mark.spec("SD-015")
    async def test_more_may_be_derived_from_it(self) -> None:
        session, model = Session(), child_model([Call("count"), "found"])
        session.dispatch(Note("one"))

        @tool
        async def count(*, context: ToolContext) -> str:
            """Count the notes."""
            latest = context.session[Count].latest()
            return str(latest.notes if latest else None)

        await play(
            dispatching(task()),
            children=model,
            tools=[count],
            settings={"research/dig": SubagentSettings(hydrate=count_notes)},
            options={"session": session},
        )
        assert results(model) == ["1"]
        assert session[Count].latest() is None

    async def test_it_is_not_derived_on_the_loops_thread(self) -> None:
        threads: list[int] = []
        await play(dispatching(task()), hydrate=lambda child: threads.append(threading.get_ident()))
        assert threads
        assert threading.get_ident() not in threads

    async def test_sessions_below_are_taken_along_if_asked(self) -> None:
        session, model = Session(), child_model(["found"])
        below = session.child()
        below.dispatch(Note("below"))
        await play(dispatching(task()), children=model, cascade=True, options={"session": session})
        assert f"in the session below, {below.session_id}: Note: 1 item" in texts(model)[1]


class TestTools:
    """What a child may call."""

    @pytest.mark.spec("SD-005")
    async def test_its_prompts_own_beside_those_of_its_parent(self) -> None:
        @tool
        async def own() -> str:
            """Only of the child."""
            return "own"

        prompt = PromptTemplate[str](
            ns="research", key="dig", sections=[MarkdownSection("D", "d", "Dig.", tools=[own])]
        )
        model = child_model([Call("own"), Call("look"), "found"])
        played = await play(dispatching(task()), children=model, prompts=[prompt], tools=[look])
        assert sorted(tool_names(model)) == ["look", "own"]
        assert results(model) == ["own", "seen"]
        assert played.value.tools_used == ("own", "look")

    @pytest.mark.spec("SD-005")
    async def test_another_tool_of_the_same_name_is_an_error_in_words(self) -> None:
        other = tool(name="look", description="Another one.")(lambda: "other")
        prompt = PromptTemplate[str](
            ns="research", key="dig", sections=[MarkdownSection("D", "d", "Dig.", tools=[other])]
        )
        played = await play(dispatching(task()), prompts=[prompt], tools=[look])
        assert "has a tool 'look' that is another one than its parent's" in played.said
        assert played.started == []

    @pytest.mark.spec("SD-005")
    async def test_resources_are_made_anew_for_the_child_and_closed_with_it(self) -> None:
        class Client:
            made: ClassVar[list[Any]] = []

            def __init__(self) -> None:
                self.closed = False
                self.made.append(self)

            def close(self) -> None:
                self.closed = True

        @tool
        async def use(*, context: ToolContext) -> str:
            """Use the client."""
            return str(Client.made.index(context.resources.get(Client)))

        model = child_model([Call("use"), "found"])
        played = await play(
            Call("use"),
            dispatching(task()),
            Call("use"),
            children=model,
            tools=[use],
            options={"resources": Resources([ResourceBinding(Client, lambda _: Client())])},
        )
        assert results(model) == ["1"]
        assert results(played.parent) == ["0", "found", "0"]
        assert [client.closed for client in Client.made] == [True, True]


class TestDepth:
    """How many subagents may stand inside each other."""

    @pytest.mark.spec("SD-005")
    async def test_a_subagent_is_not_offered_dispatch(self) -> None:
        model = child_model([dispatching(task()), "alone then"])
        played = await play(dispatching(task()), children=model)
        assert "There is no tool 'dispatch_subagent'" in results(model)[0]
        assert played.said == "alone then"

    @pytest.mark.spec("SD-005")
    async def test_with_more_depth_it_is_until_the_last(self) -> None:
        model = child_model([dispatching(task("Deeper.")), "at the bottom", "in the middle"])
        played = await play(dispatching(task()), children=model, max_depth=2)
        assert tool_names(model, 0) == ["dispatch_subagent", "dispatch_subagents"]
        assert tool_names(model, 1) == []
        assert played.said == "in the middle"
        assert len(played.started) == 1

    @pytest.mark.spec("SD-005")
    async def test_a_prompt_that_brings_dispatch_of_its_own_is_refused_below_the_limit(self) -> None:
        inner = PromptSubagentToolsSection(PromptRegistry(DIG), max_depth=9)
        boss = parent_template(inner, ns="research", key="boss")
        model = child_model([dispatching(task()), "alone then"])
        played = await play(dispatching(task(prompt_key="boss")), children=model, prompts=[boss])
        assert "subagents may stand at most 1 deep here" in results(model)[0]
        assert played.said == "alone then"

    async def test_its_own_dispatch_goes_before_its_parents(self) -> None:
        inner = PromptSubagentToolsSection(PromptRegistry(WRITE), max_depth=2)
        boss = parent_template(inner, ns="research", key="boss")
        model = child_model([dispatching(task(prompt_key="write")), "written", "boss is done"])
        played = await play(dispatching(task(prompt_key="boss")), prompts=[boss], children=model, max_depth=2)
        assert results(model) == ["written"]
        assert played.said == "boss is done"

    async def test_a_held_session_of_the_parent_does_not_lead_past_the_limit(self) -> None:
        held: list[ToolContext] = []

        @tool
        async def hold(*, context: ToolContext) -> str:
            """Keep the context."""
            held.append(context)
            return "held"

        section_tools: list[Any] = []

        @tool
        async def sneak() -> str:
            """Dispatch with the parent's context."""
            await section_tools[0].handler(task("Deeper."), context=held[0])
            return "got through"

        registry = PromptRegistry(DIG)
        model = child_model([Call("sneak"), "caught"])
        section = PromptSubagentToolsSection(registry, model=model)
        section_tools.extend(section.tools)
        parent = ScriptedModel([Call("hold"), dispatching(task()), "done"])
        result = await arun(parent_template(section, [hold, sneak]), model=parent, store=None)
        assert result.ok
        assert "got through" not in results(model)[0]


async def test_the_child_stands_in_its_parents_trace() -> None:
    played = await play(dispatching(task()))
    (started,) = played.started
    (ended,) = played.ended
    parent = next(each.event.run_context for each in played.result.session.log if hasattr(each.event, "run_context"))
    assert started.run_context.trace_id == parent.trace_id
    assert started.run_context.parent_span_id == parent.span_id
    assert started.call_id == played.calls[-1].call_id
    assert (started.kind, started.depth, ended.stop) == ("subagent", 1, None)
    assert ended.run_id == played.value.run_id


async def test_a_prompt_that_cannot_be_rendered_is_an_error_in_words() -> None:
    bad = PromptTemplate[str](ns="research", key="dig", sections=[MarkdownSection("D", "d", "${weather}")])
    played = await play(dispatching(task()), prompts=[bad])
    assert "The subagent research/dig did not run to its end" in played.said
    assert "nothing fills ${weather}" in played.said
    assert played.started == []


async def test_bound_prompts_of_the_registry_keep_their_values() -> None:
    bound = Prompt(
        PromptTemplate[str](ns="research", key="dig", sections=[MarkdownSection("D", "d", "Dig in ${place}.")])
    ).with_variables(place="the garden")
    model = child_model(["found"])
    await play(dispatching(task()), children=model, prompts=[bound])
    assert texts(model)[0] == "# D\n\nDig in the garden."


async def test_the_steps_metadata_reaches_child_and_result() -> None:
    model = child_model(["found"])
    step = task("Take it.", mode="plan_step", plan_step_id=" 3b ", snapshot_version="1")
    played = await play(dispatching(step), children=model)
    assert "Step of the plan: 3b" in texts(model)[1]
    assert played.value.plan_step_id == "3b"


async def test_a_prompt_that_is_disabled_while_the_run_goes_on_cannot_be_dispatched_any_more() -> None:
    registry = PromptRegistry(DIG)

    @tool
    async def disable() -> str:
        """Disable the prompt."""
        registry.disable("research", "dig")
        return "disabled"

    model = child_model(["found"])
    section = PromptSubagentToolsSection(registry, model=model)
    parent = ScriptedModel([dispatching(task()), Call("disable"), dispatching(task()), "done"])
    await arun(parent_template(section, [disable]), model=parent, store=None)
    assert results(parent)[2] == "the subagent 'research/dig' is disabled. Enabled subagents: none"


async def test_events_of_a_child_do_not_reach_subscribers_of_the_parent() -> None:
    session = Session()
    heard: list[Artifact] = []
    session.dispatcher.subscribe(Artifact, heard.append)

    @tool
    async def record(*, context: ToolContext) -> str:
        """Record one."""
        context.session.dispatch(Artifact("a"))
        return "recorded"

    played = await play(
        dispatching(task()), children=[Call("record"), "found"], tools=[record], options={"session": session}
    )
    assert played.value.artifacts == ("a",)
    assert heard == []
    assert session[Artifact].latest() is None


async def test_runs_beside_each_other_may_share_one_section() -> None:
    def repeat(request: ModelRequest) -> str:
        return request.transcript[-1].text.split("\n")[2]

    model = child_model(repeat)
    section = PromptSubagentToolsSection(PromptRegistry(DIG), model=model)
    template = parent_template(section)

    async def one(number: int) -> str:
        parent = ScriptedModel([dispatching(task(f"Number {number}.")), "done"])
        await arun(template, model=parent, store=None)
        return results(parent)[0]

    assert await asyncio.gather(*map(one, range(8))) == [f"Number {number}." for number in range(8)]
