"""Spans of runs, model calls and tools: what they are called, how they nest, how they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from tests.kit import ANSWER, Call, Calls, Report, Say, ScriptedModel, agent, events, play, step
from tests.subagents.support import dispatching, task
from tests.subagents.support import play as dispatch
from tests.telemetry.support import Kept, attributes, events_of, ids, is_below, parent_id
from watchkeeper import ExecutionContext, Limits, ToolContext, contained, tool
from watchkeeper.app.run import arun, arun_many, run
from watchkeeper.containment import WrapOptions
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.events import ModelReplied, RunEnded
from watchkeeper.prompt.evaluation import PromptExecuted, PromptRendered
from watchkeeper.telemetry import Telemetry, names
from watchkeeper.tools.context import ToolInvoked

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


async def test_a_run_its_model_calls_and_its_tools_have_spans(kept: Kept) -> None:
    await play(agent(step), [Call("step"), Say(Report(1))], telemetry=kept.telemetry)

    run_span = kept.named("invoke_agent tests/agent")
    calls = kept.leaves
    assert [span.name for span in calls] == ["chat scripted", "execute_tool step", "chat scripted"]
    assert all(is_below(span, run_span) for span in calls)
    assert run_span.parent is None
    assert attributes(run_span)[names.AGENT_NAME] == "tests/agent"
    assert attributes(run_span)[names.KIND] == "AGENT"
    chat = attributes(calls[0])
    assert chat[names.PROVIDER] == chat[names.REQUEST_MODEL] == chat[names.RESPONSE_MODEL] == "scripted"
    assert (chat[names.INPUT_TOKENS], chat[names.OUTPUT_TOKENS]) == (100, 20)
    assert chat[names.FINISH_REASONS] == ("tool_calls",)
    used = attributes(calls[1])
    assert (used[names.TOOL_NAME], used[names.TOOL_TYPE], used[names.TOOL_CALL_ID]) == ("step", "function", "call-1")
    assert used[names.TOOL_DESCRIPTION] == "Take a step."


async def test_a_model_of_a_server_is_a_client_span(kept: Kept) -> None:
    model = ScriptedModel([Say(Report(1))], provider="gemini", name="gemini-4")
    await play(agent(), model, telemetry=kept.telemetry)
    span = kept.named("chat gemini-4")
    assert span.kind is SpanKind.CLIENT
    assert attributes(span)[names.PROVIDER] == "gcp.gemini"


async def test_the_spans_have_the_ids_of_the_record(kept: Kept) -> None:
    result = await play(agent(step), [Call("step"), Say(Report(1))], telemetry=kept.telemetry)
    kinds: tuple[type[Any], ...] = (PromptRendered, ModelReplied, ToolInvoked, PromptExecuted, RunEnded)
    contexts = {event.run_context for kind in kinds for event in events(result, kind)}
    [context] = contexts
    assert context is not None
    assert ids(kept.named("invoke_agent tests/agent")) == (context.trace_id, context.span_id)


async def test_what_a_tool_traces_itself_stands_below_its_span(kept: Kept) -> None:
    tracer = kept.provider.get_tracer("of the user")

    @tool
    def fetch() -> str:
        """Fetch, on a worker thread."""
        with tracer.start_as_current_span("GET"):
            return "fine"

    @tool
    async def ask() -> str:
        """Ask, on the loop."""
        with tracer.start_as_current_span("ASK"):
            await asyncio.sleep(0)
            return "fine"

    await play(agent(fetch, ask), [Calls((Call("fetch"), Call("ask"))), Say(Report(1))], telemetry=kept.telemetry)
    assert is_below(kept.named("GET"), kept.named("execute_tool fetch"))
    assert is_below(kept.named("ASK"), kept.named("execute_tool ask"))
    assert not trace.get_current_span().get_span_context().is_valid


async def test_tools_side_by_side_do_not_nest_in_each_other(kept: Kept) -> None:
    @tool(parallel_safe=True)
    async def both(number: int) -> str:
        """Do it."""
        await asyncio.sleep(0)
        return str(number)

    script = [Calls((Call("both", {"number": 1}), Call("both", {"number": 2}))), Say(Report(1))]
    await play(agent(both), script, telemetry=kept.telemetry)
    top = kept.named("invoke_agent tests/agent")
    tools = kept.of(names.EXECUTE_TOOL)
    assert len(tools) == 2
    assert all(is_below(span, top) for span in tools)


async def test_a_run_that_a_tool_starts_nests_in_the_tool(kept: Kept) -> None:
    @tool
    async def delegate() -> str:
        """Start a run."""
        return (await arun(agent(), model=ScriptedModel([Say(Report(2))]), store=None)).sentence()

    await play(agent(delegate), [Call("delegate"), Say(Report(1))], telemetry=kept.telemetry)
    inner, outer = kept.of(names.INVOKE_AGENT)
    assert is_below(inner, kept.named("execute_tool delegate"))
    assert attributes(inner)[names.PARENT_RUN_ID] == attributes(outer)[names.RUN_ID]
    assert attributes(inner)[names.CHILD_KIND] == "run"
    assert sum(is_below(span, inner) for span in kept.of(names.CHAT)) == 1


async def test_a_run_that_is_independent_is_linked_to_where_it_was_started(kept: Kept) -> None:
    @tool
    async def delegate() -> str:
        """Start a run apart."""
        model = ScriptedModel([Say(Report(2))])
        return (await arun(agent(), model=model, store=None, parent=None, telemetry=kept.telemetry)).sentence()

    await play(agent(delegate), [Call("delegate"), Say(Report(1))], telemetry=kept.telemetry)
    inner, outer = kept.of(names.INVOKE_AGENT)
    assert inner.parent is None
    assert ids(inner)[0] != ids(outer)[0]
    assert [f"{link.context.span_id:016x}" for link in inner.links] == [ids(kept.named("execute_tool delegate"))[1]]


async def test_items_stand_below_the_whole(kept: Kept) -> None:
    template = agent()
    model = ScriptedModel(lambda _: Say(Report(1)))
    await arun_many(
        template, [(), ()], model=model, store=None, clock=TestClock(), telemetry=kept.telemetry, label=lambda _: "one"
    )
    whole = kept.named("invoke_workflow tests/agent")
    items = kept.of(names.INVOKE_AGENT)
    assert len(items) == 2
    assert all(is_below(span, whole) for span in items)
    assert attributes(whole)[names.ITEMS_DONE] == 2
    assert attributes(items[0])[names.ITEM] == "one"


async def test_calls_of_a_contained_block_stand_below_the_tool(kept: Kept) -> None:
    @tool
    def block() -> str:
        """Open a block."""
        with contained(max_cost_usd=1) as inside:
            inside.call_tool(lambda: "fine", WrapOptions(operation_name="inner"))
        return "left"

    await play(agent(block), [Call("block"), Say(Report(1))], telemetry=kept.telemetry)
    assert is_below(kept.named("execute_tool inner"), kept.named("execute_tool block"))


@pytest.mark.spec("NE-028")
async def test_subagents_nest_in_the_tool_that_dispatches_them(kept: Kept) -> None:
    given = {"telemetry": kept.telemetry}
    await dispatch(dispatching(task(), task()), children=["found"] * 2, options=given)
    first, second, parent = kept.of(names.INVOKE_AGENT)
    [used] = kept.of(names.EXECUTE_TOOL)
    assert is_below(used, parent)
    assert is_below(first, used)
    assert is_below(second, used)
    assert attributes(first)[names.CHILD_KIND] == "subagent"
    assert attributes(first)[names.DEPTH] == 1
    assert {ids(span)[0] for span in kept.spans} == {ids(parent)[0]}


def test_a_gate_of_ones_own_can_be_traced(kept: Kept) -> None:
    with ExecutionContext(Limits(max_cost_usd=1)) as context:
        context.trace(kept.telemetry)
        context.call_llm(lambda: "fine", WrapOptions(operation_name="mine", model="gpt-5-mini", provider="openai"))
        context.call_tool(lambda: 1 / 0, WrapOptions(operation_name="broken"))
    assert attributes(kept.named("chat gpt-5-mini"))[names.PROVIDER] == "openai"
    assert attributes(kept.named("execute_tool broken"))[names.ERROR_TYPE] == "ZeroDivisionError"


# --- the trace of the caller ------------------------------------------------------------------------------------------


async def test_a_traceparent_is_continued(kept: Kept) -> None:
    await play(agent(), [Say(Report(1))], telemetry=kept.telemetry, traceparent=TRACEPARENT)
    span = kept.named("invoke_agent tests/agent")
    assert (ids(span)[0], parent_id(span)) == (TRACE, SPAN)


async def test_a_traceparent_that_is_not_sampled_exports_nothing(kept: Kept) -> None:
    await play(agent(), [Say(Report(1))], telemetry=kept.telemetry, traceparent=f"00-{TRACE}-{SPAN}-00")
    assert kept.spans == ()


async def test_the_current_span_is_continued(kept: Kept) -> None:
    with kept.provider.get_tracer("of the user").start_as_current_span("request"):
        result = await play(agent(), [Say(Report(1))], telemetry=kept.telemetry)
    assert is_below(kept.named("invoke_agent tests/agent"), kept.named("request"))
    [ended] = events(result, RunEnded)
    assert ended.run_context is not None
    assert (ended.run_context.trace_id, ended.run_context.parent_span_id) == ids(kept.named("request"))


def test_the_current_span_of_a_blocking_run_is_continued(kept: Kept) -> None:
    with kept.provider.get_tracer("of the user").start_as_current_span("request"):
        run(agent(), model=ScriptedModel([Say(Report(1))]), store=None, telemetry=kept.telemetry)
    assert is_below(kept.named("invoke_agent tests/agent"), kept.named("request"))


async def test_a_run_without_telemetry_takes_the_trace_of_the_current_span_too(kept: Kept) -> None:
    with kept.provider.get_tracer("of the user").start_as_current_span("request"):
        result = await play(agent(), [Say(Report(1))])
    [ended] = events(result, RunEnded)
    assert ended.run_context is not None
    assert (ended.run_context.trace_id, ended.run_context.parent_span_id) == ids(kept.named("request"))


@pytest.mark.parametrize(
    "given", ["", "00-abc", TRACEPARENT.upper(), f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01"]
)
async def test_a_traceparent_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="traceparent="):
        await play(agent(), [Say(Report(1))], traceparent=given)


async def test_a_run_inside_another_takes_no_traceparent() -> None:
    refused: list[str] = []

    @tool
    async def delegate() -> str:
        """Start a run."""
        with pytest.raises(ConfigurationError, match="in whose trace it is") as raised:
            await arun(agent(), model=ScriptedModel([]), store=None, traceparent=TRACEPARENT)
        refused.append(str(raised.value))
        return "refused"

    await play(agent(delegate), [Call("delegate"), Say(Report(1))])
    assert len(refused) == 1


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_a_failed_attempt_and_its_retry_have_spans_of_their_own(kept: Kept) -> None:
    script = [ProviderError("busy", fault="overloaded", provider="scripted"), Say(Report(1))]
    await play(agent(), script, telemetry=kept.telemetry)
    failed, answered = kept.of(names.CHAT)
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)[names.ERROR_TYPE] == "overloaded"
    assert answered.status.status_code is StatusCode.UNSET
    assert attributes(answered)[names.CALL_ATTEMPT] == 2


async def test_a_tool_that_fails_is_an_error(kept: Kept) -> None:
    @tool
    async def crash() -> str:
        """Crash."""
        raise KeyError("gone")

    await play(agent(crash), [Calls((Call("crash"), Call("missing"))), Say(Report(1))], telemetry=kept.telemetry)
    assert attributes(kept.named("execute_tool crash"))[names.ERROR_TYPE] == "crashed"
    refused = kept.named("execute_tool missing")
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes(refused)[names.ERROR_TYPE] == "unknown_tool"


async def test_a_run_that_a_limit_stops_says_which(kept: Kept) -> None:
    limits = Limits(max_tool_calls=1, landing=None)
    await play(agent(step), [Call("step"), Call("step")], limits, telemetry=kept.telemetry)
    span = kept.named("invoke_agent tests/agent")
    said = attributes(span)
    assert span.status.status_code is StatusCode.ERROR
    assert said[names.STOP_LIMIT] == "max_tool_calls"
    assert said[names.STOP_REASON] == said[names.ERROR_TYPE]
    assert said["watchkeeper.limit.max_tool_calls"] == 1
    assert events_of(span, names.SAFETY_EVENT)[0]["watchkeeper.safety_event.decision"] == "HALT"


async def test_a_cancelled_run_ends_the_spans_that_are_open(kept: Kept) -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    running = asyncio.create_task(play(agent(wait), [Call("wait")], telemetry=kept.telemetry))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    tool_span, run_span = kept.named("execute_tool wait"), kept.named("invoke_agent tests/agent")
    assert is_below(tool_span, run_span)
    assert {tool_span.status.status_code, run_span.status.status_code} == {StatusCode.ERROR}
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_run_that_was_refused_has_no_span(kept: Kept) -> None:
    with pytest.raises(ConfigurationError):
        await play(agent(), ScriptedModel([], free=False), Limits(max_cost_usd=1), telemetry=kept.telemetry)
    assert kept.spans == ()


async def test_nothing_is_exported_that_the_sampler_drops() -> None:
    kept = Kept(ALWAYS_OFF)
    result = await play(agent(step), [Call("step"), Say(Report(1))], telemetry=kept.telemetry)
    assert result.output == Report(1)
    assert kept.spans == ()


async def test_telemetry_without_a_provider_of_the_sdk_changes_nothing() -> None:
    result = await play(agent(step), [Call("step"), Say(Report(1))], telemetry=Telemetry(trace.NoOpTracerProvider()))
    assert result.output == Report(1)


async def test_telemetry_that_is_broken_does_not_fail_the_run(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(trace.NoOpTracer):
        def start_span(self, *args: Any, **more: Any) -> trace.Span:
            raise RuntimeError("no spans today")

    class Provider(trace.NoOpTracerProvider):
        def get_tracer(self, *args: Any, **more: Any) -> trace.Tracer:
            return Broken()

    with caplog.at_level("ERROR", "watchkeeper"):
        result = await play(agent(step), [Call("step"), Say(Report(1))], telemetry=Telemetry(Provider()))
    assert result.output == Report(1)
    assert sum("telemetry.failed" in record.message for record in caplog.records) == 1


def test_other_values_than_a_telemetry_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="telemetry='yes' must be a Telemetry"):
        run(agent(), model=ScriptedModel([Say(Report(1))]), telemetry="yes")  # type: ignore[arg-type]


async def test_the_context_of_a_tool_names_the_place_of_the_run(kept: Kept) -> None:
    found: list[str | None] = []

    @tool
    async def look(*, context: ToolContext) -> str:
        """Look."""
        found.append(context.run_context.span_id)
        return ""

    await play(agent(look), [Call("look"), Say(ANSWER)], telemetry=kept.telemetry)
    assert found == [ids(kept.named("invoke_agent tests/agent"))[1]]
