"""`Agent`: its options hold for all of its runs, from Python and from the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import LABEL_CHARS, Agent
from watchkeeper.core.errors import ConfigurationError, ObserverError, PromptDefinitionError
from watchkeeper.core.model import ModelRequest, ModelSettings
from watchkeeper.prompt.advice import Feedback
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.observer import FeedbackProviderConfig, FeedbackTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.events import ChildEnded
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.tool_permission import ToolPermissionHook
from watchkeeper.subagents import PromptRegistry, PromptSubagentToolsSection
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.resources import Resources
from watchkeeper.tools.tool import tool


@dataclass(frozen=True)
class Shop:
    """What a tool works with."""

    name: str


@tool
def look(*, context: ToolContext) -> str:
    """Look at the shop and its papers."""
    files = context.filesystem
    assert files is not None
    return f"{context.resources.get(Shop).name}: {files.read_text('till.txt')}"


@tool
def close_down() -> str:
    """Close the shop."""
    return "closed"


def last_said(request: ModelRequest) -> str:
    message: Any = request.transcript[-1]
    return str(message.text)


def echo(request: ModelRequest) -> Any:
    return Say(f"done: {last_said(request).splitlines()[-1]}")


def steps_seen(agent: Agent[Any], **options: Any) -> list[str]:
    session = agent.run("Look.", store=None, **options).session
    return [str(entry.rendered_output) for entry in session[ToolInvoked].all()]


def test_an_agent_answers_in_text_unless_it_says_otherwise() -> None:
    assert Agent(ScriptedModel(["well"]), "Be brief.").run("How is it?", store=None).output == "well"


def test_lists_are_taken_and_kept_as_tuples() -> None:
    agent = Agent(ScriptedModel(["well"]), "Be brief.", tools=[look, close_down])
    assert agent.tools == (look, close_down)
    assert {agent: 1}[agent] == 1


@pytest.mark.spec("FR-140")
def test_hooks_of_the_agent_are_asked_in_every_run() -> None:
    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(deny=["close_*"]))
    model = ScriptedModel(lambda request: "done" if last_said(request) != "# Task\n\nLook." else Call("close_down"))
    agent = Agent(model, "You keep a shop.", tools=(close_down,), shield=shield)
    assert "denied" in steps_seen(agent)[0]
    assert steps_seen(agent, shield=None) == ["closed"]
    assert steps_seen(replace(agent, shield=None)) == ["closed"]


def test_tools_have_the_resources_and_the_filesystem_of_the_agent() -> None:
    def script(request: ModelRequest) -> Any:
        return Call("look") if last_said(request).endswith("Look.") else "done"

    files = MemoryFilesystem({"till.txt": "3 coins"})
    shop = Resources.of({Shop: Shop("corner")})
    agent = Agent(ScriptedModel(script), "You keep a shop.", tools=(look,), resources=shop, filesystem=files)
    assert steps_seen(agent) == ["corner: 3 coins"]
    other = MemoryFilesystem({"till.txt": "nothing"})
    assert steps_seen(agent, filesystem=other) == ["corner: nothing"]


def test_the_model_is_asked_with_the_settings_of_the_agent_unless_the_run_has_its_own() -> None:
    model = ScriptedModel(echo)
    agent = Agent(model, "Be brief.", settings=ModelSettings(temperature=0.25))
    agent.run("One.", store=None)
    agent.run("Two.", store=None, settings=ModelSettings(temperature=0.5))
    assert [request.settings.temperature for request in model.requests] == [0.25, 0.5]


class Never:
    """A checker whom nothing satisfies."""

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Find it incomplete."""
        return TaskCompletionResult.incomplete("not yet")


def test_the_agent_says_how_often_it_may_be_sent_back_to_work() -> None:
    model = ScriptedModel(echo)
    agent = Agent(model, "Be brief.", task_completion_checker=Never(), completion_rounds=1)
    result = agent.run("One.", store=None)
    assert result.stop is not None
    assert (result.stop.reason, result.turns) == ("incomplete", 2)


class Critic:
    """A feedback provider that always has the same to say."""

    name = "critic"

    def should_run(self, context: Any) -> bool:
        """Speak whenever it is asked."""
        return True

    def provide(self, context: Any) -> Feedback:
        """Say it."""
        return Feedback(provider_name=self.name, summary="hurry up", call_index=1)


def test_feedback_providers_of_the_agent_are_asked() -> None:
    config = FeedbackProviderConfig(provider=Critic(), trigger=FeedbackTrigger(every_n_calls=1))
    model = ScriptedModel([Call("close_down"), "done"])
    agent = Agent(model, "You keep a shop.", tools=(close_down,), feedback_providers=[config])
    session = agent.run("Close.", store=None).session
    assert "hurry up" in session[ObserversRan].all()[0].text


def test_a_conversation_goes_on_inside_the_limits_of_the_agent() -> None:
    model = ScriptedModel(lambda request: f"message {len(request.transcript)}")
    agent = Agent(model, "Be brief.", limits=Limits(max_turns=7))
    first = agent.run("One.", store=None)
    second = agent.run("Two.", session=first.session, store=None)
    assert (second.output, second.limits.max_turns) == ("message 4", 7)


async def test_a_conversation_goes_on_on_the_callers_loop_too() -> None:
    model = ScriptedModel(lambda request: f"message {len(request.transcript)}")
    agent = Agent(model, "Be brief.")
    first = await agent.arun("One.", store=None)
    assert (await agent.arun("Two.", session=first.session, store=None)).output == "message 4"


def test_many_tasks_are_run_under_one_ceiling_and_named_by_their_beginning() -> None:
    tasks = ["One.", "Two. " + "x" * 100]
    many = Agent(ScriptedModel(echo), "Be brief.", limits=Limits(max_steps=9)).run_many(tasks, store=None)
    assert [result.item for result in many] == ["One.", tasks[1][:LABEL_CHARS]]
    assert many.unwrap()[0] == "done: One."
    assert many.limits.max_steps == 9


async def test_many_tasks_are_run_on_the_callers_loop_too() -> None:
    agent = Agent(ScriptedModel(echo), "Be brief.")
    many = await agent.arun_many(["One.", "Two."], concurrency=1, store=None)
    assert many.unwrap() == ("done: One.", "done: Two.")


@pytest.mark.parametrize("limits", [Limits(max_steps=1, landing=None)], ids=["one step"])
def test_single_tasks_may_have_tighter_limits(limits: Limits) -> None:
    model = ScriptedModel(lambda request: Call("close_down"))
    many = Agent(model, "You keep a shop.", tools=(close_down,)).run_many(["One.", "Two."], each=limits, store=None)
    assert [result.usage.steps for result in many] == [1, 1]


@pytest.mark.parametrize(
    ("given", "error", "part"),
    [
        ({"completion_rounds": -1}, PromptDefinitionError, "completion_rounds=-1"),
        ({"feedback_providers": [Critic()]}, ObserverError, "in feedback_providers is not a FeedbackProviderConfig"),
        ({"shield": "none"}, ConfigurationError, "shield='none'"),
        ({"settings": {"temperature": 1}}, ConfigurationError, "settings="),
        ({"resources": {Shop: 1}}, ConfigurationError, "resources="),
        ({"filesystem": "inbox"}, ConfigurationError, "filesystem='inbox'"),
        ({"tools": look}, PromptDefinitionError, "tools"),
    ],
    ids=["rounds", "providers", "shield", "settings", "resources", "filesystem", "tools"],
)
def test_what_cannot_work_is_refused_when_the_agent_is_made(given: Any, error: type[Exception], part: str) -> None:
    with pytest.raises(error, match=part):
        Agent(ScriptedModel(echo), "Be brief.", **given)


# --- sections and subagents -------------------------------------------------------------------------------------------

SEARCH = PromptTemplate[str](ns="shop", key="search", sections=(MarkdownSection("Task", "task", "Search."),))
ASK = {"mode": "ad_hoc", "prompt_ns": "shop", "prompt_key": "search", "instructions": "Count the tills."}


@pytest.mark.parametrize("given", [[SEARCH], (SEARCH,), PromptRegistry(SEARCH)])
def test_an_agent_hands_work_to_its_subagents(given: Any) -> None:
    model = ScriptedModel([Call("dispatch_subagent", ASK), "Two.", "There are two."])
    agent = Agent(model, "You run a shop.", str, subagents=given)
    result = agent.run("How many tills?", store=None)
    assert result.output == "There are two."
    assert [ended.prompt_name for ended in result.session[ChildEnded].all()] == ["shop/search"]
    assert replace(agent, name="other").template.tools[0].name == agent.template.tools[0].name


def test_further_sections_stand_between_instructions_and_task_with_their_tools() -> None:
    style = MarkdownSection("Style", "style", "Write to ${task}.", tools=(look,))
    agent = Agent(ScriptedModel([]), "You write.", str, tools=(close_down,), sections=[style])
    assert [section.key for section in agent.template.sections] == ["instructions", "style", "task"]
    assert [each.name for each in agent.template.tools] == ["look", "close_down"]
    assert "Write to Ann." in agent.prompt("Ann").render().text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sections": MarkdownSection("S", "s", "Brief.")}, "sections=.* must be a list of sections"),
        ({"sections": ["Be brief."]}, "sections=.* must be a list of sections"),
        ({"sections": iter(())}, "sections=.* must be a list of sections"),
        ({"sections": [MarkdownSection("S", "s", "For ${whom}.")]}, r"the section 's' has the placeholder \$\{whom\}"),
        ({"sections": [MarkdownSection("T", "task", "Again.")]}, "'task'"),
        ({"subagents": SEARCH}, "subagents=.* must be a list of prompts"),
        ({"subagents": ["search"]}, "'search' is neither"),
        ({"subagents": [Agent("local", "You search.")]}, "not Agents, which have a model and limits of their own"),
        ({"subagents": [SEARCH, replace(SEARCH, name="b")]}, "registered already"),
        ({"subagents": [SEARCH], "sections": [PromptSubagentToolsSection(PromptRegistry(SEARCH))]}, "subagents"),
    ],
)
def test_sections_and_subagents_that_cannot_work_are_refused_at_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigurationError, PromptDefinitionError), match=said):
        Agent(ScriptedModel([]), "You work.", str, **given)
