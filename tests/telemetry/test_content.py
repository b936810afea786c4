"""What is told of texts: nothing of messages by default, and nothing hostile, endless or secret in any case."""

from __future__ import annotations

import json

import pytest

from tests.kit import Call, Report, Say, ScriptedModel, agent, play
from tests.telemetry.support import Kept, attributes
from watchkeeper import ToolResult, tool
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.secrets import hold
from watchkeeper.telemetry import names
from watchkeeper.telemetry.values import CAPTURE, CONTENT_CHARS, PART_CHARS, TEXT_CHARS

SECRET = "sk-very-secret-credential-1"
MESSAGES = (names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.SYSTEM_INSTRUCTIONS, names.TOOL_DEFINITIONS)


@tool
def echo(text: str) -> str:
    """Return a text."""
    return f"heard: {text}"


def everything(kept: Kept) -> str:
    """Return all that was exported as one text."""
    spans = [(span.name, attributes(span), [dict(e.attributes or {}) for e in span.events]) for span in kept.spans]
    logs = [(record.event_name, dict(record.attributes or {})) for record in kept.records]
    descriptions = [span.status.description for span in kept.spans]
    return json.dumps([spans, logs, descriptions], default=str, ensure_ascii=False)


async def test_no_content_is_exported_unless_it_is_asked_for(kept: Kept) -> None:
    await play(agent(echo), [Call("echo", {"text": "private"}), Say(Report(1, "private"))], telemetry=kept.telemetry)
    assert "private" not in everything(kept)


@pytest.mark.parametrize(
    ("mode", "spans", "events"),
    [("SPAN_ONLY", True, False), ("event_only", False, True), ("SPAN_AND_EVENT", True, True), ("true", False, False)],
)
async def test_the_standard_variable_says_where_content_goes(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, mode: str, spans: bool, events: bool
) -> None:
    monkeypatch.setenv(CAPTURE, mode)
    await play(agent(echo), [Call("echo", {"text": "private"}), Say(Report(1))], telemetry=kept.telemetry)
    chat = attributes(kept.of(names.CHAT)[-1])
    assert all((name in chat) == spans for name in (names.INPUT_MESSAGES, names.OUTPUT_MESSAGES))
    assert (names.TOOL_ARGUMENTS in attributes(kept.named("execute_tool echo"))) == spans
    details = [record for record in kept.records if record.event_name == names.DETAILS]
    assert len(details) == (2 if events else 0)
    for record in details:
        assert "Count." in record.attributes[names.INPUT_MESSAGES]
        assert record.span_id in {span.context.span_id for span in kept.of(names.CHAT) if span.context}


async def test_input_messages_are_those_that_the_model_was_sent(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")
    await play(agent(echo), [Call("echo", {"text": "a"}), Say(Report(1))], telemetry=kept.telemetry)
    first, second = (json.loads(attributes(span)[names.INPUT_MESSAGES]) for span in kept.of(names.CHAT))
    assert [message["role"] for message in first] == ["user"]
    assert [message["role"] for message in second] == ["user", "assistant", "tool"]
    assert second[1]["parts"][-1]["arguments"] == {"text": "a"}
    assert second[2]["parts"] == [{"type": "tool_call_response", "id": "call-1", "response": "heard: a"}]


async def test_credentials_are_replaced(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, "SPAN_AND_EVENT")
    hold(SECRET)

    @tool
    def fail(text: str) -> ToolResult[str]:
        """Fail."""
        return ToolResult.error(f"wrong key {SECRET}")

    refused = ProviderError(f"bad key {SECRET}", fault="overloaded", provider="scripted")
    calls = [refused, Call("fail", {"text": SECRET}), Call(SECRET, {}), Say(Report(1, SECRET))]
    await play(agent(fail), calls, telemetry=kept.telemetry)
    assert SECRET not in everything(kept)
    assert "[redacted]" in everything(kept)


async def test_hostile_texts_are_bounded_and_can_be_encoded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")

    @tool
    def flood(text: str) -> ToolResult[str]:
        """Fail at length."""
        return ToolResult.error("\ud800" + "x" * 200_000)

    long = "y" * (3 * PART_CHARS)
    model = ScriptedModel([*(Call("flood", {"text": long}) for _ in range(12)), Say(Report(1, long))])
    await play(agent(flood), model, telemetry=kept.telemetry)
    for span in kept.spans:
        for name, value in attributes(span).items():
            if isinstance(value, str):
                value.encode()
                content = name in MESSAGES or name in (names.TOOL_ARGUMENTS, names.TOOL_RESULT)
                assert len(value) <= (CONTENT_CHARS + 100 if content else TEXT_CHARS)
    last = json.loads(attributes(kept.of(names.CHAT)[-1])[names.INPUT_MESSAGES])
    assert "earlier messages are left out" in last[0]["parts"][0]["content"]


async def test_the_name_of_a_tool_that_a_model_made_up_is_bounded(kept: Kept) -> None:
    await play(agent(), [Call("z" * 10_000), Say(Report(1))], telemetry=kept.telemetry)
    [span] = kept.of(names.EXECUTE_TOOL)
    assert len(span.name) < 300
    assert len(attributes(span)[names.TOOL_NAME]) <= TEXT_CHARS


@pytest.mark.parametrize("levels", [150, 900, 7_000])
async def test_arguments_that_are_nested_too_deeply_cost_no_span(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    monkeypatch.setenv(CAPTURE, "SPAN_AND_EVENT")
    deep = "[" * levels + "]" * levels
    script = [Call("echo", f'{{"text": {deep}}}'), Say(Report(1))]
    await play(agent(echo), script, telemetry=kept.telemetry)
    called, answered = kept.of(names.CHAT)
    assert len(kept.of(names.EXECUTE_TOOL)) == 1
    assert deep in attributes(called)[names.OUTPUT_MESSAGES]
    assert deep in attributes(answered)[names.INPUT_MESSAGES]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN"])
async def test_messages_are_json_whatever_numbers_a_model_writes(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(constant)

    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")

    @tool
    def wait(seconds: float) -> str:
        """Wait."""
        return str(seconds)

    script = [Call("wait", f'{{"seconds": {number}}}'), Say(Report(1))]
    await play(agent(wait), script, telemetry=kept.telemetry)
    for span in kept.spans:
        for name in (*MESSAGES, names.TOOL_ARGUMENTS):
            json.loads(attributes(span).get(name, "0"), parse_constant=refused)


async def test_content_that_cannot_be_told_costs_no_span(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> str:
        raise RecursionError

    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")
    monkeypatch.setattr("watchkeeper.telemetry.reading.document", fails)
    monkeypatch.setattr("watchkeeper.telemetry.reading.answer", fails)
    await play(agent(echo), [Call("echo", {"text": "x"}), Say(Report(1))], telemetry=kept.telemetry)
    assert (len(kept.of(names.CHAT)), len(kept.of(names.EXECUTE_TOOL))) == (2, 1)
