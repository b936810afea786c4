"""The trace goes on in what a run starts and asks: isolated tools, providers, log lines."""

from __future__ import annotations

import pytest

from tests.adapters.remote import LITELLM, REMOTES, Remote
from tests.kit import Call, Report, Say, ScriptedModel, agent, play, tool_texts
from tests.telemetry.support import Kept, attributes, ids
from tests.tools import isolated_functions as functions
from watchkeeper import tool
from watchkeeper.core.text import logger
from watchkeeper.core.trace.place import SAMPLED, traceparent_here
from watchkeeper.telemetry import names
from watchkeeper.testing.wire import say

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"

work = tool(isolation="process", kill_grace="50ms", name="work")(functions.place_in_trace)


async def test_an_isolated_tool_finds_its_span_in_the_environment(kept: Kept) -> None:
    model = ScriptedModel([Call("work"), Say(Report(1))])
    await play(agent(work), model, telemetry=kept.telemetry)
    version, *found, flags = tool_texts(model)[0].split("-")
    assert (version, tuple(found)) == ("00", ids(kept.named("execute_tool work")))
    assert int(flags, 16) & SAMPLED


async def test_an_isolated_tool_of_a_run_without_telemetry_finds_the_runs_trace() -> None:
    model = ScriptedModel([Call("work"), Say(Report(1))])
    await play(agent(work), model, traceparent=TRACEPARENT)
    version, trace_id, span_id, flags = tool_texts(model)[0].split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "01")
    assert span_id != SPAN


@pytest.mark.parametrize("remote", [*REMOTES, LITELLM], ids=lambda remote: remote.name)
async def test_a_provider_is_told_the_span_of_the_call(kept: Kept, remote: Remote) -> None:
    async with remote.fake([say('{"total": 1}')]) as fake:
        model = remote.model(fake.base_url)
        await play(agent(), model, telemetry=kept.telemetry, traceparent=TRACEPARENT)
        await model.close()
        [asked] = fake.requests
    [chat] = kept.of(names.CHAT)
    assert asked.headers["traceparent"] == "-".join(("00", *ids(chat), "01"))


async def test_outside_of_runs_nothing_is_passed_on() -> None:
    assert traceparent_here() is None


async def test_every_line_of_a_run_names_the_run_and_the_span(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def write() -> str:
        """Write a line."""
        logger().info("note.written")
        return ""

    with caplog.at_level("INFO", "watchkeeper"):
        await play(agent(write), [Call("write"), Say(Report(1))], telemetry=kept.telemetry)
    [line] = [record.message for record in caplog.records if "note.written" in record.message]
    span = kept.named("execute_tool write")
    trace_id, span_id = ids(span)
    for name, value in (("run_id", attributes(span)[names.RUN_ID]), ("trace_id", trace_id), ("span_id", span_id)):
        assert f"{name}='{value}'" in line
    [end] = [record.message for record in caplog.records if "run.completed" in record.message]
    assert f"span_id='{ids(kept.named('invoke_agent tests/agent'))[1]}'" in end
