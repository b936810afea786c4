"""Names and forms are those of the GenAI conventions, as OpenTelemetry's own helper for instrumentations sends them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.types import (
    FunctionToolDefinition,
    InputMessage,
    OutputMessage,
    TextPart,
    ToolCallRequestPart,
    ToolCallResponsePart,
)

from tests.kit import Call, Report, Say, ScriptedModel, play
from tests.telemetry.support import Kept, attributes
from watchkeeper import Limits, MarkdownSection, ModelSettings, PromptTemplate, TokenUsage, tool
from watchkeeper.telemetry import names
from watchkeeper.telemetry.values import CAPTURE

OURS_ALONE = {names.CACHE_CREATION}
"""Names of the conventions that the helper does not send: older ones, which backends still read."""

USAGE = TokenUsage(200, 30, 50, 20, 5)


@tool
def look(path: str) -> str:
    """Look at a path."""
    return f"looked at {path}"


def template() -> PromptTemplate[Report]:
    section = MarkdownSection(title="Task", key="task", template="Count.", tools=(look,))
    return PromptTemplate[Report](ns="tests", key="agent", sections=[section])


async def ours(kept: Kept) -> None:
    """Run an agent whose model calls have everything that a provider can tell."""
    model = ScriptedModel([Call("look", {"path": "a"}), Say(Report(1), USAGE)], name="gpt-5-mini", provider="openai")
    settings = ModelSettings(temperature=0.5, top_p=0.9, seed=7)
    await play(template(), model, Limits(deadline="1h"), telemetry=kept.telemetry, settings=settings)


def theirs(kept: Kept) -> None:
    """Send the same by the helper."""
    handler = TelemetryHandler(kept.provider, kept.meters, kept.logs)
    with handler.workflow("tests/agent", conversation_id="c"):
        pass
    with handler.invoke_local_agent(agent_name="tests/agent", request_model="gpt-5-mini", conversation_id="c"):
        with handler.inference("openai", request_model="gpt-5-mini", conversation_id="c") as chat:
            chat.temperature, chat.top_p, chat.seed, chat.max_tokens = 0.5, 0.9, 7, 16_384
            chat.response_model_name, chat.response_id, chat.finish_reasons = "gpt-5-mini", "r", ["stop"]
            chat.request_stream = True
            chat.input_tokens, chat.output_tokens = USAGE.input_tokens, USAGE.output_tokens
            chat.cache_read_input_tokens, chat.cache_write_input_tokens = USAGE.cached_tokens, USAGE.cache_write_tokens
            chat.thinking_tokens = USAGE.reasoning_tokens
            asked = ToolCallRequestPart({"path": "a"}, "look", "call-1")
            chat.input_messages = [
                InputMessage("user", [TextPart("Count.")]),
                InputMessage("assistant", [asked]),
                InputMessage("tool", [ToolCallResponsePart("looked at a", "call-1")]),
            ]
            chat.output_messages = [OutputMessage("assistant", [TextPart('{"total":1,"note":""}')], "stop")]
            chat.system_instruction = [TextPart("Be brief.")]
            chat.tool_definitions = [FunctionToolDefinition("look", "Look at a path.", {})]
        with handler.tool("look", tool_type="function", agent_name="tests/agent") as used:
            used.tool_call_id, used.tool_description = "call-1", "Look at a path."
            used.arguments, used.tool_result = {"path": "a"}, "looked at a"


def of_conventions(span: ReadableSpan) -> set[str]:
    """Return the attributes of a span that are not Watchkeeper's own, nor OpenInference's."""
    return {name for name in attributes(span) if not name.startswith(("watchkeeper.", "openinference."))}


def last(kept: Kept, operation: str) -> ReadableSpan:
    return kept.of(operation)[-1]


OPERATIONS = (names.CHAT, names.EXECUTE_TOOL, names.INVOKE_AGENT)


@pytest.mark.parametrize("mode", ["NO_CONTENT", "SPAN_ONLY"])
async def test_spans_have_the_names_and_attributes_of_the_conventions(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv(CAPTURE, mode)
    mine, helper = Kept(), Kept()
    await ours(mine)
    theirs(helper)
    for operation in OPERATIONS:
        own, other = last(mine, operation), last(helper, operation)
        assert (own.name, own.kind) == (other.name, other.kind)
        assert of_conventions(own) - of_conventions(other) - OURS_ALONE == set()
        same = of_conventions(own) & of_conventions(other) - {names.CONVERSATION, names.RESPONSE_ID}
        differing = {
            name: (attributes(own)[name], attributes(other)[name])
            for name in same
            if name not in CONTENT and attributes(own)[name] != attributes(other)[name]
        }
        assert differing == {}
    assert (names.INPUT_MESSAGES in attributes(last(mine, names.CHAT))) == (mode == "SPAN_ONLY")


CONTENT = {
    names.INPUT_MESSAGES,
    names.OUTPUT_MESSAGES,
    names.SYSTEM_INSTRUCTIONS,
    names.TOOL_DEFINITIONS,
    names.TOOL_ARGUMENTS,
    names.TOOL_RESULT,
}


def forms(value: Any) -> Any:
    """Return a JSON value with types in the place of texts: its form."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: each if key in ("type", "role", "finish_reason") else forms(each) for key, each in fields.items()}
    return [forms(each) for each in cast("Sequence[Any]", value)] if isinstance(value, list) else type(value).__name__


async def test_content_has_the_form_of_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")
    mine, helper = Kept(), Kept()
    await ours(mine)
    theirs(helper)
    own, other = attributes(last(mine, names.CHAT)), attributes(last(helper, names.CHAT))
    for name in (names.INPUT_MESSAGES, names.OUTPUT_MESSAGES):
        expected = [{key: value for key, value in each.items() if key != "name"} for each in json.loads(other[name])]
        assert forms(json.loads(own[name])) == forms(expected)
    [mine_tool], [their_tool] = json.loads(own[names.TOOL_DEFINITIONS]), json.loads(other[names.TOOL_DEFINITIONS])
    assert mine_tool.keys() == their_tool.keys()
    own, other = attributes(last(mine, names.EXECUTE_TOOL)), attributes(last(helper, names.EXECUTE_TOOL))
    assert json.loads(own[names.TOOL_ARGUMENTS]) == json.loads(other[names.TOOL_ARGUMENTS]) == {"path": "a"}
    assert own[names.TOOL_RESULT] == other[names.TOOL_RESULT] == "looked at a"


async def test_metrics_have_the_names_units_bounds_and_attributes_of_the_conventions() -> None:
    mine, helper = Kept(), Kept()
    await ours(mine)
    theirs(helper)
    own, other = mine.points, helper.points
    assert own.keys() - other.keys() == set()
    assert own.keys() >= {names.OPERATION_DURATION, names.TOKEN_USAGE, names.TOOL_DURATION, names.AGENT_DURATION}
    for name in own:
        assert own[name][0].explicit_bounds == pytest.approx(other[name][0].explicit_bounds)
        assert own[name][0].attributes.keys() - other[name][0].attributes.keys() == set(), name


def test_names_of_bounds_that_no_run_here_uses() -> None:
    helper = Kept()
    theirs(helper)
    assert helper.points[names.WORKFLOW_DURATION][0].explicit_bounds == names.WORKFLOW_BOUNDS
    assert names.WORKFLOW_NAME in attributes(helper.named("invoke_workflow tests/agent"))
    assert helper.points[names.WORKFLOW_DURATION][0].attributes.keys() <= {names.OPERATION, names.WORKFLOW_NAME}
