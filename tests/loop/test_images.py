"""Images that tools return: the model sees them, in every interface, and ceilings hold on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.malformed_replies import CHAT, MESSAGES, PRICE, RESPONSES, Interface
from tests.kit import Call, Calls, ScriptedModel, events
from watchkeeper import Agent, ExecutionContext, ImagePart, Limits, RunResult, ToolContext, ToolResult, tool
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import TextPart, ToolMessage, UserMessage
from watchkeeper.models import ModelRequest
from watchkeeper.runtime.result import transcript_of
from watchkeeper.testing import say
from watchkeeper.testing.wire import Reply, call
from watchkeeper.tools.context import ToolInvoked

OWL = ImagePart.from_bytes(b"an owl", max_tokens=50)
ELK = ImagePart.from_bytes(b"an elk", "image/jpeg", max_tokens=60)


@dataclass(frozen=True)
class Chart:
    """A chart with its title."""

    title: str
    image: ImagePart


@tool
def look(what: str, *, context: ToolContext) -> Any:
    """Look at something."""
    shown: dict[str, Any] = {
        "owl": OWL,
        "both": ["An owl, and an elk:", OWL, ELK],
        "chart": Chart("Owls", OWL),
        "told": ToolResult.ok(OWL, "It is an owl."),
        "unbounded": ImagePart.from_bytes(b"an ape"),
    }
    return shown[what]


async def looked(*whats: str, limits: Limits | None = None) -> tuple[RunResult[str], list[Any]]:
    """Run an agent that looks at these things at once; return its result and what the model was asked last."""
    seen: list[Any] = []

    def answer(asked: ModelRequest) -> str:
        seen.extend(asked.transcript)
        return "Seen."

    calls = Calls(tuple(Call("look", {"what": what}) for what in whats))
    model = ScriptedModel([calls, answer])
    agent: Agent[str] = Agent(model, "Look.", str, tools=[look], limits=limits or Limits())
    return await agent.arun("Look at them."), seen


@pytest.mark.parametrize(
    ("what", "text", "images"),
    [
        ("owl", "(image 1)", (OWL,)),
        ("both", "An owl, and an elk:\n(image 1)\n(image 2)", (OWL, ELK)),
        ("chart", '{"title":"Owls","image":"(image 1)"}', (OWL,)),
        ("told", "It is an owl.", ()),
    ],
)
async def test_a_model_sees_the_images_in_a_result(what: str, text: str, images: tuple[ImagePart, ...]) -> None:
    result, seen = await looked(what)
    assert result.output == "Seen."
    messages = [message for message in seen if isinstance(message, ToolMessage)]
    assert [message.text for message in messages] == [text]
    after = seen[seen.index(messages[0]) + 1 :]
    shown = UserMessage((TextPart("Images returned by look, in order:"), *images))
    assert after == ([shown] if images else [])
    assert list(transcript_of(result.session.log))[: len(seen)] == seen


async def test_images_of_several_calls_follow_all_their_results() -> None:
    _, seen = await looked("owl", "told", "both")
    kinds = [message.role for message in seen][-4:]
    assert kinds == ["tool", "tool", "tool", "user"]
    assert [part for part in seen[-1].parts if isinstance(part, ImagePart)] == [OWL, OWL, ELK]


async def test_an_image_without_a_bound_is_refused_under_a_ceiling_only() -> None:
    result, seen = await looked("unbounded")
    assert "its code must say ImagePart(..., max_tokens=...)" in seen[-1].text
    assert [invoked.outcome for invoked in events(result, ToolInvoked)] == ["crashed"]
    _, seen = await looked("unbounded", limits=Limits(max_total_tokens=None))
    assert isinstance(seen[-1], UserMessage)


@pytest.mark.parametrize("interface", [CHAT, RESPONSES, MESSAGES], ids=lambda interface: interface.name)
async def test_every_interface_takes_it_and_a_stored_session_goes_on_with_it(
    interface: Interface, tmp_path: Path
) -> None:
    script: list[Reply] = [call("look", {"what": "both"}), say("An owl."), say("Still an owl.")]
    async with interface.fake(script) as fake:
        model = interface.model(fake.url)
        options: dict[str, Any] = {"prices": {f"{model.provider}:{model.name}": PRICE}, "store": tmp_path / "runs.db"}
        agent: Agent[str] = Agent(model, "Look.", str, tools=[look], limits=Limits(max_cost_usd=1))
        first = await agent.arun("What is it?", **options)
        again = await agent.arun("Sure?", session=first.session, **options)
        await model.close()
        bodies = fake.bodies()
    assert (first.output, again.output) == ("An owl.", "Still an owl.")
    for body in bodies[1:]:
        assert str(body).count("YW4gb3ds") == str(body).count("YW4gZWxr") == 1


async def test_an_agent_takes_images_with_its_task() -> None:
    model = ScriptedModel(["An owl."] * 3)
    agent: Agent[str] = Agent(model, "Look.", str)
    result = await agent.arun(["What is this?", OWL, "And this?", "Be quick.", ELK])
    shown = transcript_of(result.session.log)[1]
    assert isinstance(shown, UserMessage)
    first, owl, then, elk = shown.parts
    assert (owl, elk) == (OWL, ELK)
    assert isinstance(first, TextPart)
    assert isinstance(then, TextPart)
    assert (first.text.splitlines()[-1], then.text.strip()) == ("What is this?", "And this?\nBe quick.")
    many = await agent.arun_many([["What is this?", OWL], "And without?"])
    assert [one.output for one in many] == ["An owl.", "An owl."]


@pytest.mark.parametrize("task", [[OWL], ["What", "is this?"], OWL, [], ["What is this?", b"an owl"]])
def test_a_task_says_what_is_to_be_done(task: Any) -> None:
    agent: Agent[str] = Agent(ScriptedModel(["An owl."]), "Look.", str)
    with pytest.raises(ConfigurationError, match="text that says what is to be done, or a list of texts and images"):
        agent.run(task)


FREE = Limits(max_total_tokens=None)


@pytest.mark.parametrize("around", [Limits(), Limits(max_cost_usd=1, max_total_tokens=None)])
async def test_a_ceiling_around_a_run_asks_for_a_bound_too(around: Limits) -> None:
    """An item of many has no ceiling of its own; it used to send images whose tokens nobody had bounded."""
    ape = ImagePart.from_bytes(b"an ape")
    agent: Agent[str] = Agent(ScriptedModel(lambda _: "Seen."), "Look.", str, limits=around)
    many = await agent.arun_many([["An ape:", ape]])
    assert isinstance(many.results[0].error, ConfigurationError)
    assert many.usage.model_calls == 0
    with ExecutionContext(around), pytest.raises(ConfigurationError, match="max_tokens="):
        await replace(agent, limits=FREE).arun(["An ape:", ape])
    with ExecutionContext(around):
        result, seen = await looked("unbounded", limits=FREE)
    assert result.output == "Seen."
    assert "its code must say ImagePart(..., max_tokens=...)" in seen[-1].text
