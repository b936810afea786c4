"""The scripted model: says what the script says, and complains about scripts that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from watchkeeper.adapters.scripted import DEFAULT_USAGE, Call, Calls, Say, ScriptedModel
from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.core.messages import AssistantMessage, Transcript, UserMessage
from watchkeeper.core.model import Model, ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage


@dataclass(frozen=True)
class Answer:
    """Something typed."""

    number: int


def request(**given: Any) -> ModelRequest:
    return ModelRequest(Transcript([UserMessage.of("go")]), **given)


@pytest.mark.spec("FR-063")
async def test_steps_are_taken_in_order_and_completeness_is_asserted() -> None:
    model = ScriptedModel(["hello", Say(Answer(1)), Call("look", {"at": "it"})])
    assert isinstance(model, Model)
    texts = [(await model.turn(request())).message.text for _ in range(2)]
    assert texts == ["hello", '{"number":1}']
    with pytest.raises(AssertionError, match="1 of 3 steps of the script was never asked for"):
        model.assert_complete()
    asked = await model.turn(request())
    assert (asked.finish, asked.message.tool_calls[0].arguments) == ("tool_calls", '{"at":"it"}')
    model.assert_complete()
    assert len(model.requests) == 3
    await model.close()


async def test_a_script_that_runs_out_says_how_long_it_was() -> None:
    with pytest.raises(ConfigurationError, match="has 0 steps, and turn 1 was asked for"):
        await ScriptedModel([]).turn(request())


async def test_calls_have_ids_of_their_own_and_arguments_as_given() -> None:
    model = ScriptedModel([Calls((Call("a"), Call("b", "{broken")), text="both", usage=TokenUsage(1, 2))])
    reply = await model.turn(request())
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == [("a", "{}"), ("b", "{broken")]
    assert len({call.call_id for call in reply.message.tool_calls}) == 2
    assert (reply.message.text, reply.usage) == ("both", TokenUsage(1, 2))


async def test_errors_are_raised_and_functions_see_the_request() -> None:
    def answer(asked: ModelRequest) -> str:
        return str(asked.max_output_tokens)

    model = ScriptedModel([ProviderError("down", fault="server"), answer])
    with pytest.raises(ProviderError, match="down"):
        await model.turn(request())
    assert (await model.turn(request(max_output_tokens=77))).message.text == "77"


async def test_one_function_serves_every_turn() -> None:
    model = ScriptedModel(lambda _: "again")
    assert [(await model.turn(request())).message.text for _ in range(3)] == ["again"] * 3
    model.assert_complete()


async def test_a_whole_reply_is_passed_as_it_is_and_text_is_streamed_to_whoever_listens() -> None:
    heard: list[str] = []
    reply = ModelReply(AssistantMessage("as it is"), DEFAULT_USAGE, model="other")
    model = ScriptedModel([reply, ""])
    assert await model.turn(request(on_delta=heard.append)) is reply
    await model.turn(request(on_delta=heard.append))
    assert heard == ["as it is"]


async def test_a_step_that_is_none_is_refused() -> None:
    steps: list[Any] = [42]
    with pytest.raises(ConfigurationError, match="not 42"):
        await ScriptedModel(steps).turn(request())


def test_it_says_of_itself_that_it_is_a_script() -> None:
    model = ScriptedModel([])
    assert (model.name, model.provider, model.free) == ("scripted", "scripted", True)


@pytest.mark.parametrize("script", ["hello", Say("hello"), Call("look"), Calls(()), ValueError("no")], ids=str)
def test_a_single_step_is_no_script(script: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is one step, and a script is a list of them: ScriptedModel\(\["):
        ScriptedModel(script)


@pytest.mark.parametrize("script", [None, 3])
def test_what_cannot_be_gone_through_is_no_script(script: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{script} is no script; write for example"):
        ScriptedModel(script)


async def test_a_script_of_one_step_is_counted_in_the_singular() -> None:
    model = ScriptedModel(["one"])
    with pytest.raises(AssertionError, match="1 of 1 step of the script was never asked for"):
        model.assert_complete()
    await model.turn(request())
    with pytest.raises(ConfigurationError, match="the script has 1 step, and turn 2 was asked for"):
        await model.turn(request())
