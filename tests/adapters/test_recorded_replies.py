"""Replies as providers really send them, and what a run makes of them: the forms are those of recorded traffic."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.malformed_replies import CHAT, MESSAGES, PRICE, RESPONSES, Interface, ignore
from benchmarks.recorded_replies import (
    COMPACTED,
    COUNTED,
    ENCRYPTED,
    FAILED_CALL,
    FORMS,
    FOUND,
    FUNCTION_CALL,
    RETIRED,
    SEARCH,
    SIGNED,
    THOUGHT,
    USE,
    chat,
    claude,
    claude_events,
    response,
    streamed,
    text,
    thought,
)
from tests.kit import events
from watchkeeper import (
    Adapter,
    Agent,
    Budget,
    BudgetTracker,
    ExecutionContext,
    Limits,
    RunResult,
    TokenUsage,
    ToolContext,
    arun,
    contained,
    tool,
)
from watchkeeper.adapters.anthropic import AnthropicModel, read_message
from watchkeeper.adapters.openai_chat import Completion, OpenAIChatModel, read_reply
from watchkeeper.clock import TestClock
from watchkeeper.contained_sdk.reading import read_whole
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.model import ModelSettings
from watchkeeper.models import ScriptedModel
from watchkeeper.runtime.events import ModelFailed, ModelReplied
from watchkeeper.testing import WireReply, WireRequest, WireServer
from watchkeeper.testing.wire import json_reply

whole_or_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def run_over(
    interface: Interface, replies: Sequence[WireReply], *, stream: bool = False, **options: Any
) -> tuple[RunResult[str], list[dict[str, Any]]]:
    """Run an agent over recorded replies, the last of them again and again; return its result and what was sent."""
    number = itertools.count()

    def answer(sent: WireRequest) -> WireReply:
        return replies[min(next(number), len(replies) - 1)]

    if stream:
        options["on_event"] = ignore
    tools = options.pop("tools", ())
    output = options.pop("output", str)
    limits = options.pop("limits", Limits(max_cost_usd=5, max_retries=9, max_turns=6))
    async with WireServer(answer) as server:
        model = interface.model(server.url)
        model.context_window = options.pop("context_window", None)
        agent: Agent[Any] = Agent(model, "Be brief.", output, tools=tools)
        result = await arun(
            agent.prompt("What is an owl?"),
            model=model,
            limits=limits,
            prices={f"{model.provider}:{model.name}": PRICE},
            clock=TestClock(),
            rng=random.Random(1),
            **options,
        )
        await model.close()
        return result, [request.json() for request in server.requests]


# --- reasons to finish ----------------------------------------------------------------------------------------------


@whole_or_streamed
@pytest.mark.parametrize("reason", ["weather", "abort", "tool_calls_limit"])
async def test_an_answer_that_ended_for_an_unknown_reason_is_never_the_final_one(reason: str, stream: bool) -> None:
    result, sent = await run_over(CHAT, [chat(reason, stream=stream)], stream=stream)
    assert result.stop is not None
    assert result.stop.reason == "output_invalid"
    assert reason in result.stop.message
    assert (result.output, result.partial) == (None, "Half an ans")
    assert "ended before it was complete" in str(sent[1])


async def test_one_that_ends_well_when_it_is_asked_again_is_used() -> None:
    result, _ = await run_over(CHAT, [chat("weather"), chat("stop", "A whole answer.")])
    assert result.output == "A whole answer."


async def test_the_same_of_the_other_interfaces() -> None:
    odd = [(MESSAGES, json_reply(claude("weather"))), (MESSAGES, json_reply(claude(None)))]
    odd += [(RESPONSES, response("incomplete", "weather")), (RESPONSES, response("in_progress")), (CHAT, chat(None))]
    for interface, reply in odd:
        result, _ = await run_over(interface, [reply])
        assert result.stop is not None
        assert "not known" in result.stop.message


NO_CALLS: list[tuple[Interface, WireReply, bool]] = [
    (CHAT, chat("tool_calls"), False),
    (CHAT, chat("tool_calls", tool_calls=[]), False),
    (CHAT, chat("function_call", stream=True), True),
    (MESSAGES, json_reply(claude("tool_use")), False),
    (MESSAGES, claude_events(claude("tool_use")), True),
]


@pytest.mark.parametrize(("interface", "reply", "stream"), NO_CALLS)
async def test_an_answer_that_ended_for_calls_that_it_does_not_have_is_not_the_final_one(
    interface: Interface, reply: WireReply, stream: bool
) -> None:
    result, sent = await run_over(interface, [reply], stream=stream)
    assert result.stop is not None
    assert result.stop.message == (
        "The final answer ended with tool calls as the reason, but has none, twice in a row; it may be incomplete."
    )
    assert (result.output, result.partial, len(sent)) == (None, "Half an ans", 2)


@pytest.mark.parametrize(
    ("reason", "output", "said"),
    [("eos", "Half an ans", ""), ("model_length", None, "cut off at the output limit")],
)
async def test_reasons_of_other_servers_mean_what_they_mean_there(reason: str, output: str | None, said: str) -> None:
    result, _ = await run_over(CHAT, [chat(reason)])
    assert result.output == output
    assert said in (result.stop.message if result.stop else "")


@whole_or_streamed
@pytest.mark.parametrize(("reason", "fault"), [("error", "server"), ("insufficient_system_resource", "overloaded")])
async def test_an_answer_of_which_the_server_says_that_it_failed_is_asked_for_again(
    reason: str, fault: str, stream: bool
) -> None:
    replies = [chat(reason, stream=stream), chat("stop", "A whole answer.", stream=stream)]
    result, _ = await run_over(CHAT, replies, stream=stream)
    assert [failed.fault for failed in events(result, ModelFailed)] == [fault]
    assert result.output == "A whole answer."


# --- Anthropic: what its own tools and its compaction do --------------------------------------------------------------


@whole_or_streamed
@pytest.mark.parametrize("before", ["An owl ", ""])
async def test_a_paused_turn_goes_on_where_it_was(before: str, stream: bool) -> None:
    blocks: list[dict[str, Any]] = [*([text(before)] if before else []), SEARCH]
    messages = [claude("pause_turn", *blocks), claude("pause_turn", FOUND), claude("end_turn", text("is a bird."))]
    word = claude_events if stream else json_reply
    result, sent = await run_over(MESSAGES, [word(message) for message in messages], stream=stream)
    assert (result.output, result.stop) == (f"{before}is a bird.", None)
    roles = [[message["role"] for message in body["messages"]] for body in sent]
    assert roles == [["user"], ["user", "assistant"], ["user", "assistant"]]
    assert sent[2]["messages"][1]["content"] == [*blocks, FOUND]


async def test_a_turn_that_pauses_for_ever_ends_at_a_limit_and_is_no_pass() -> None:
    result, sent = await run_over(MESSAGES, [json_reply(claude("pause_turn", text("One "), SEARCH))])
    assert result.stop is not None
    assert result.stop.reason == "turn_limit_exceeded"
    assert result.output is None
    assert len(sent) == 6


@whole_or_streamed
async def test_what_a_compaction_at_the_provider_used_is_counted(stream: bool) -> None:
    """The counts of the answer itself leave it out, but it is billed."""
    word = claude_events if stream else json_reply
    blocks = ({"type": "compaction", "content": "They spoke of owls."}, text("A bird."))
    reply = word(claude("end_turn", *blocks, usage=COMPACTED))
    result, _ = await run_over(MESSAGES, [reply], stream=stream)
    assert (result.output, result.usage.tokens) == ("A bird.", TokenUsage(83_779, 176))


def test_nor_does_a_contained_client_leave_it_out() -> None:
    body = json_reply(claude("end_turn", usage=COMPACTED)).body
    assert read_whole(AnthropicModel.wire, body).usage == TokenUsage(83_779, 176)


async def test_a_ceiling_holds_on_what_a_compaction_used() -> None:
    paused = json_reply(claude("pause_turn", text("A "), SEARCH, usage=COMPACTED))
    result, sent = await run_over(MESSAGES, [paused], limits=Limits(max_total_tokens=150_000))
    assert result.stop is not None
    assert result.stop.reason == "token_limit_exceeded"
    assert len(sent) == 2


async def test_a_compaction_does_not_fill_the_context_that_it_emptied() -> None:
    paused = json_reply(claude("pause_turn", text("An owl "), SEARCH, usage=COMPACTED))
    ended = json_reply(claude("end_turn", text("is a bird.")))
    result, _ = await run_over(MESSAGES, [paused, ended], context_window=60_000)
    assert result.output == "An owl is a bird."


def test_the_context_is_what_the_last_message_held() -> None:
    model_asked = [{"type": "message", "input_tokens": count, "output_tokens": 5} for count in (100, 200)]
    told = {"input_tokens": 300, "output_tokens": 10, "iterations": model_asked}
    reply = read_message(claude("end_turn", usage=told), "anthropic", "any", 0)
    assert (reply.usage, reply.context_tokens) == (TokenUsage(300, 10), 205)
    told = {"input_tokens": 0, "output_tokens": 0, "iterations": [COMPACTED["iterations"][0]]}
    reply = read_message(claude("compaction", usage=told), "anthropic", "any", 0)
    assert (reply.finish, reply.usage, reply.context_tokens) == ("paused", TokenUsage(83_555, 154), 83_709)
    assert read_message(claude("end_turn"), "anthropic", "any", 0).context_tokens is None
    odd = {"input_tokens": 1, "output_tokens": 1, "iterations": [{"input_tokens": "many"}]}
    assert not read_message(claude("end_turn", usage=odd), "anthropic", "any", 0).usage.is_possible


async def test_calls_of_the_providers_own_tools_go_back_as_they_came() -> None:
    began: list[dict[str, Any]] = [
        {**SEARCH, "input": {}},
        {**SEARCH, "type": "mcp_tool_use", "id": "mcptoolu_1", "input": {"given": 1}},
        FOUND,
    ]
    pieces = [(0, {"type": "input_json_delta", "partial_json": piece}) for piece in ("", '{"que', 'ry": "owl"}')]
    empty = (1, {"type": "input_json_delta", "partial_json": ""})
    paused = claude_events(claude("pause_turn", *began), *pieces, empty)
    _, sent = await run_over(MESSAGES, [paused, claude_events(claude("end_turn"))], stream=True)
    assert sent[1]["messages"][1]["content"] == [SEARCH, began[1], FOUND]


@pytest.mark.parametrize("summary", ["They spoke of owls.", None])
async def test_a_streamed_compaction_goes_back_with_its_summary(summary: str | None) -> None:
    whole = claude("compaction", {"type": "compaction", "content": ""})
    delta = {"type": "compaction_delta", "content": summary, "encrypted_content": "opaque"}
    signed = {"type": "signature_delta", "signature": "s1"}
    ended = claude_events(claude("end_turn", text("A bird.")))
    result, sent = await run_over(MESSAGES, [claude_events(whole, (0, delta), (0, signed)), ended], stream=True)
    block = {"type": "compaction", "content": summary, "encrypted_content": "opaque", "signature": "s1"}
    assert sent[1]["messages"][1]["content"] == [{key: value for key, value in block.items() if value is not None}]
    assert result.output == "A bird."


# --- OpenAI's Responses ---------------------------------------------------------------------------------------------

ANSWERED: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "A bird."}],
}


@tool
def lookup(word: str, *, context: ToolContext) -> str:
    """Look a word up."""
    return f"{word}: a bird"


@whole_or_streamed
async def test_arguments_may_be_objects(stream: bool) -> None:
    """They always are in a search for tools, which the provider runs itself."""
    searched = {"type": "tool_search_call", "call_id": None, "arguments": {"goal": "words"}, "execution": "server"}
    called = {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": {"word": "owl"}}
    replies = [response("completed", None, *items, stream=stream) for items in ([searched, called], [ANSWERED])]
    result, sent = await run_over(RESPONSES, replies, stream=stream, tools=[lookup])
    assert result.output == "A bird."
    assert sent[1]["input"][-1] == {"type": "function_call_output", "call_id": "c1", "output": "owl: a bird"}


# --- calls whose id comes again --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interface", "asking", "ending"),
    [
        (MESSAGES, json_reply(claude("tool_use", THOUGHT, USE)), json_reply(claude("end_turn"))),
        (RESPONSES, response("completed", None, ENCRYPTED, FUNCTION_CALL), response("completed")),
        (CHAT, chat("tool_calls", "", tool_calls=[SIGNED]), chat("stop")),
    ],
    ids=["anthropic", "openai_responses", "openai_chat"],
)
async def test_a_call_whose_id_comes_again_has_one_new_id_everywhere(
    interface: Interface, asking: WireReply, ending: WireReply
) -> None:
    """What the provider wants back unchanged must name the call as its result does."""
    result, sent = await run_over(interface, [asking, asking, ending], tools=[lookup])
    assert result.output == "Half an ans"
    history = sent[2]["input" if interface is RESPONSES else "messages"]
    if interface is MESSAGES:
        blocks = [block for message in history for block in message["content"] if "tool" in block["type"]]
        ids = [block.get("id") or block["tool_use_id"] for block in blocks]
    elif interface is RESPONSES:
        ids = [item["call_id"] for item in history if "call_id" in item]
    else:
        made = [call for message in history for call in message.get("tool_calls", ())]
        assert [call["extra_content"] for call in made] == [{"sign": 1}] * 2
        answered = [message["tool_call_id"] for message in history if message["role"] == "tool"]
        ids = [made[0]["id"], answered[0], made[1]["id"], answered[1]]
    assert ids == ["call_1", "call_1", "call_1-2", "call_1-2"]


# --- Chat Completions of many servers --------------------------------------------------------------------------------


async def test_alternatives_in_a_stream_are_not_mixed() -> None:
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": index, "delta": {"content": said}, "finish_reason": None}]}
        for index, said in ((0, "A "), (1, "An "), (1, "owl."), (0, "bird."))
    ]
    ends: list[dict[str, Any]] = [
        {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in (1, 0)
    ]
    result, _ = await run_over(CHAT, [streamed(*chunks, *ends, done=True)], stream=True)
    assert (result.output, events(result, ModelReplied)[-1].message.text) == ("A bird.", "A bird.")


async def test_several_alternatives_are_refused_before_they_are_paid_for() -> None:
    with pytest.raises(ConfigurationError, match="n=2: a run uses one alternative"):
        await run_over(CHAT, [chat("stop")], settings=ModelSettings(extra={"n": 2}))
    result, _ = await run_over(CHAT, [chat("stop")], settings=ModelSettings(extra={"n": 1}))
    assert result.stop is None


@pytest.mark.parametrize(
    ("interface", "extra"),
    [
        (CHAT, {"max_tokens": 500_000}),
        (CHAT, {"max_completion_tokens": 500_000}),
        (CHAT, {"max_output_tokens": 500_000}),
        (CHAT, {"model": "dear-model"}),
        (RESPONSES, {"max_output_tokens": 500_000}),
        (RESPONSES, {"model": "dear-model"}),
        (MESSAGES, {"max_tokens": 500_000}),
        (MESSAGES, {"model": "dear-model"}),
    ],
)
async def test_no_extra_field_replaces_the_cap_that_the_gate_granted_or_the_model(
    interface: Interface, extra: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot set {next(iter(extra))}"):
        await run_over(interface, [chat("stop")], settings=ModelSettings(extra=extra))


@pytest.mark.parametrize("interface", [CHAT, RESPONSES, MESSAGES])
async def test_what_extra_fields_say_counts_as_input(interface: Interface) -> None:
    settings = ModelSettings(extra={"instructions": "Be brief. " * 5_000})
    result, sent = await run_over(interface, [], settings=settings, limits=Limits(max_total_tokens=40_000))
    assert result.stop is not None
    assert (result.stop.reason, sent) == ("token_limit_exceeded", [])


async def test_each_tool_that_is_only_named_adds_its_own_description() -> None:
    tools = [{"type": f"{name}_20250124", "name": name} for name in ("bash", "text_editor", "computer", "memory")]
    settings = ModelSettings(extra={"tools": tools}, max_output_tokens=300)
    result, sent = await run_over(MESSAGES, [], settings=settings, limits=Limits(max_total_tokens=4_500, landing=None))
    assert result.stop is not None
    assert (result.stop.reason, sent) == ("token_limit_exceeded", [])


UNBOUNDED: list[dict[str, Any]] = [
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"web_search_options": {}},
    {"mcp_servers": [{"url": "https://tools.example"}]},
    {"context_management": {"edits": [{"type": "compact_20260112"}]}},
    {"prompt": {"id": "pmpt_1"}},
    {"extra_body": {"plugins": [{"id": "web"}]}},
    {"data_sources": [{"type": "azure_search", "parameters": {}}]},
    {"extra_body": {"enable_search": True}},
    {"vector_store_ids": ["vs_1"]},
    {"preset": "writer"},
    {"compaction": {"type": "summarize"}},
    {"tools": [{"googleSearch": {}}]},
]
OTHER_MODELS: list[dict[str, Any]] = [
    {"models": ["dear-model"]},
    {"fallbacks": [{"model": "dear-model"}]},
    {"tools": [{"type": "advisor_20260301", "model": "dear-model"}]},
    {"tools": [{"type": "image_generation"}]},
]


@pytest.mark.parametrize("extra", UNBOUNDED + OTHER_MODELS)
async def test_what_a_provider_does_by_itself_needs_a_bound_under_a_ceiling(extra: dict[str, Any]) -> None:
    """The request is refused before it is sent; it used to be counted only afterwards, above the ceiling."""
    with pytest.raises(ConfigurationError, match=r"ModelSettings\.extra .*(extra_max_tokens=|fallback=)"):
        await run_over(CHAT, [chat("stop")], settings=ModelSettings(extra=extra))
    free = Limits(max_cost_usd=None, max_total_tokens=None, max_turns=2)
    result, _ = await run_over(CHAT, [chat("stop")], settings=ModelSettings(extra=extra), limits=free)
    assert result.stop is None


GEMINI: dict[str, Any] = {"extra_body": {"extra_body": {"google": {"cached_content": "c", "thinking_config": {}}}}}
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"top_k": 3, "new_search": {}}, "new_search"),
    ({"disable_search": False}, "disable_search"),
    ({"enable_thinking": True}, "enable_thinking"),
    ({"thinking_budget": 8_192}, "thinking_budget"),
    ({"extra_body": {"n_predict": 90_000, "min_p": 0.1}}, "n_predict"),
    (GEMINI, "cached_content"),
    ({"extra_body": {"extra_body": {"enable_search": True}}}, "enable_search"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
]


@pytest.mark.parametrize(("extra", "name"), UNKNOWN)
async def test_a_field_that_nobody_knows_needs_a_bound_where_a_ceiling_is_named(
    extra: dict[str, Any], name: str
) -> None:
    for named in (Limits(max_cost_usd=5), Limits(max_total_tokens=90_000), Limits(max_output_tokens=90_000)):
        with pytest.raises(
            ConfigurationError, match=f"knows here how much {name} in .*extra_max_tokens=.*0 if it adds none"
        ):
            await run_over(CHAT, [chat("stop")], settings=ModelSettings(extra=extra), limits=named)
    for settings, limits in (
        (ModelSettings(extra=extra, extra_max_tokens=0), Limits(max_cost_usd=5)),
        (ModelSettings(extra=extra), Limits()),
    ):
        result, sent = await run_over(CHAT, [chat("stop")], settings=settings, limits=limits)
        assert (result.stop, len(sent)) == (None, 1)


async def test_a_ceiling_of_an_account_or_around_a_run_is_a_named_one(tmp_path: Path) -> None:
    agent: Agent[str] = Agent(ScriptedModel(["An owl."]), "Be brief.", str)
    settings = ModelSettings(extra={"new_search": {}})
    refused = pytest.raises(ConfigurationError, match="new_search")
    paid = replace(agent, limits=Limits(account="team", account_limit="$20/day"))
    with refused:
        await paid.arun("What is it?", settings=settings, ledger=str(tmp_path / "ledger.db"))
    with contained(max_cost_usd=1, store=None), refused:
        await agent.arun("What is it?", settings=settings)
    with contained(max_steps=9, store=None):
        result = await agent.arun("What is it?", settings=settings)
    assert result.output == "An owl."


async def test_what_is_switched_off_needs_no_bound() -> None:
    extra: dict[str, Any] = {"enable_search": False, "plugins": [], "web_search_options": None, "new_search": None}
    extra |= {"enable_thinking": False}
    settings = ModelSettings(extra=extra)
    result, _ = await run_over(CHAT, [chat("stop")], settings=settings)
    assert result.stop is None


@pytest.mark.parametrize("name", ["gpt-5-search-api", "perplexity/sonar-deep-research", "compound-beta", "x:online"])
async def test_a_model_that_searches_by_itself_needs_a_bound_under_a_ceiling(name: str) -> None:
    model = ScriptedModel(["An owl."], name=name)
    agent: Agent[str] = Agent(model, "Be brief.", str, limits=Limits(max_total_tokens=60_000))
    with pytest.raises(ConfigurationError, match=rf"{name} makes the provider .*searches by itself.*extra_max_tokens="):
        await agent.arun("What is it?")
    result = await agent.arun("What is it?", settings=ModelSettings(extra_max_tokens=20_000))
    assert result.output == "An owl."
    with pytest.raises(ConfigurationError, match="searches by itself"):
        await Agent(ScriptedModel(["No."]), "Be brief.", str).arun("What is it?", fallback=[model])


@pytest.mark.parametrize("name", ["langgraph/owl", "bedrock/agentcore/arn", "vertex_ai/agent_engine/1", "a2a/owl"])
async def test_an_agent_in_the_place_of_a_model_needs_a_bound_under_a_ceiling(name: str) -> None:
    agent: Agent[str] = Agent(ScriptedModel(["An owl."], name=name), "Be brief.", str)
    with pytest.raises(ConfigurationError, match=rf"{name} makes the provider .*works by itself.*extra_max_tokens="):
        await agent.arun("What is it?")
    result = await agent.arun("What is it?", settings=ModelSettings(extra_max_tokens=20_000))
    assert result.output == "An owl."


@pytest.mark.parametrize("extra", UNBOUNDED)
async def test_the_named_bound_is_reserved_beside_the_call(extra: dict[str, Any]) -> None:
    settings = ModelSettings(extra=extra, extra_max_tokens=30_000)
    result, sent = await run_over(CHAT, [chat("stop")], settings=settings, limits=Limits(max_total_tokens=60_000))
    assert result.stop is None
    assert len(sent) == 1
    result, sent = await run_over(CHAT, [chat("stop")], settings=settings, limits=Limits(max_total_tokens=29_000))
    assert result.stop is not None
    assert (result.stop.reason, sent) == ("token_limit_exceeded", [])


@pytest.mark.parametrize("extra", [UNBOUNDED[0], OTHER_MODELS[0]])
async def test_ceilings_around_a_run_count_as_its_own(extra: dict[str, Any]) -> None:
    settings = ModelSettings(extra=extra, extra_max_tokens=None if extra in UNBOUNDED else 0)
    model = ScriptedModel(["An owl."])
    agent: Agent[str] = Agent(model, "Be brief.", str, limits=Limits(max_total_tokens=None))
    refused = pytest.raises(ConfigurationError, match=r"ModelSettings\.extra")
    with contained(max_cost_usd=1, store=None), refused:
        await agent.arun("What is it?", settings=settings)
    with ExecutionContext(Limits(max_cost_usd=1)), refused:
        await agent.arun("What is it?", settings=settings)
    with refused:
        adapter = Adapter(model, settings=settings)
        await adapter.evaluate_async(agent.prompt("What?"), budget_tracker=BudgetTracker(Budget(max_cost_usd=1)))
    with ExecutionContext(Limits(max_cost_usd=1)):
        result = await agent.arun("What is it?", settings=settings, parent=None)
    assert result.output == "An owl."


async def test_other_models_need_no_price_where_only_tokens_are_limited() -> None:
    settings = ModelSettings(extra={"models": ["other"]}, extra_max_tokens=20_000)
    limits = Limits(max_cost_usd=None, max_total_tokens=90_000)
    result, _ = await run_over(CHAT, [chat("stop")], settings=settings, limits=limits)
    assert result.stop is None


@pytest.mark.parametrize(
    ("told", "output"),
    [
        ({"total_tokens": 399, "completion_tokens_details": {"reasoning_tokens": 386}}, 387),  # xAI
        ({"total_tokens": 999, "completion_tokens_details": {"reasoning_tokens": 386}}, 387),
        ({"total_tokens": 399}, 388),  # Gemini
        ({"total_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 1}}, 1),  # OpenAI
        ({"total_tokens": 5}, 1),
        ({"total_tokens": "399"}, 1),
        ({}, 1),
    ],
)
def test_reasoning_that_is_counted_beside_the_answer_is_charged(told: dict[str, Any], output: int) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 1, **told}
    whole = read_whole(OpenAIChatModel.wire, json_reply({"id": "c", "choices": [], "usage": usage}).body).usage
    assert whole is not None
    assert (whole.input_tokens, whole.output_tokens) == (11, output)
    reply = msgspec.json.decode(chat("stop").body, type=dict[str, Any])
    answer = msgspec.convert({**reply, "usage": usage}, Completion)
    assert read_reply(answer, "x-ai", "any", 0).usage == whole


@whole_or_streamed
async def test_a_run_is_charged_for_reasoning_that_is_counted_beside_the_answer(stream: bool) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 5_012}
    whole = {**msgspec.json.decode(chat("stop").body, type=dict[str, Any]), "usage": usage}
    reply = streamed(SAID, {**COUNTED, "usage": usage}, done=True) if stream else json_reply(whole)
    result, _ = await run_over(CHAT, [reply], stream=stream)
    assert result.usage.tokens == TokenUsage(9, 5_003)


SAID: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": "A bird."}, "finish_reason": None}]}


async def test_a_stream_that_ends_with_its_counts_is_whole_without_a_reason_to_finish() -> None:
    result, sent = await run_over(CHAT, [streamed(SAID, COUNTED, done=True)], stream=True)
    assert (result.output, result.usage.tokens, len(sent)) == ("A bird.", TokenUsage(9, 3), 1)


@pytest.mark.parametrize(
    "chunks", [(SAID,), ({**SAID, "usage": COUNTED["usage"]},), (COUNTED,)], ids=["text", "with counts", "counts"]
)
async def test_and_one_that_ends_without_both_or_says_nothing_is_broken(chunks: tuple[dict[str, Any], ...]) -> None:
    replies = [streamed(*chunks, done=True), streamed(SAID, COUNTED, done=True)]
    result, _ = await run_over(CHAT, replies, stream=True)
    assert [failed.fault for failed in events(result, ModelFailed)] == ["broken_stream"]
    assert result.output == "A bird."


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interface", "status", "body"),
    [
        (CHAT, 404, {"error": {"message": RETIRED, "type": "invalid_request_error", "code": "model_not_found"}}),
        (CHAT, 400, {"error": {"message": RETIRED, "type": "invalid_request_error", "code": "model_decommissioned"}}),
        (CHAT, 410, {"detail": "Gone"}),
        (RESPONSES, 404, {"error": {"message": RETIRED, "code": "model_not_found"}}),
        (MESSAGES, 404, {"type": "error", "error": {"type": "not_found_error", "message": "model: claude-2"}}),
    ],
)
@whole_or_streamed
async def test_another_model_takes_over_from_a_retired_one(
    interface: Interface, status: int, body: dict[str, Any], stream: bool
) -> None:
    backup = ScriptedModel(["A bird."], name="backup", provider="elsewhere")
    replies = [json_reply(body, status)]
    result, sent = await run_over(interface, replies, stream=stream, fallback=[backup])
    assert (result.output, result.answered_by, len(sent)) == ("A bird.", ("elsewhere:backup",), 1)
    assert [failed.fault for failed in events(result, ModelFailed)] == ["not_found"]


async def test_without_another_model_a_retired_one_ends_the_run_at_once() -> None:
    result, sent = await run_over(CHAT, [json_reply({"error": {"message": RETIRED}}, 404)])
    assert result.stop is not None
    assert (result.stop.reason, len(sent)) == ("provider_error", 1)
    assert RETIRED in result.stop.message


@whole_or_streamed
@pytest.mark.parametrize("code", [{"code": "tool_use_failed"}, {}], ids=["code", "words"])
async def test_a_call_that_the_provider_could_not_read_is_asked_for_once_more(
    code: dict[str, Any], stream: bool
) -> None:
    """Groq answers so, with status 400 or within a stream; the model wrote it, and writes something else next time."""
    error = {"error": {**FAILED_CALL, **code}}
    failed = streamed(error) if stream else json_reply(error, 400)
    result, _ = await run_over(CHAT, [failed, chat("stop", "A bird.", stream=stream)], stream=stream, tools=[lookup])
    assert (result.output, [each.fault for each in events(result, ModelFailed)]) == ("A bird.", ["malformed_reply"])
    result, sent = await run_over(CHAT, [failed], stream=stream, tools=[lookup])
    assert result.stop is not None
    assert (result.stop.reason, len(sent)) == ("provider_error", 2)
    assert result.usage.tokens.output_tokens > 0  # its worst case is booked


# --- parts of other servers -----------------------------------------------------------------------------------------


async def test_what_mistral_thinks_is_read_as_reasoning() -> None:
    whole = [thought("Which bird? "), thought("An owl."), text("A "), text("bird.")]
    deltas = [[thought("Which bird? ")], [thought("An owl.")], [text("A ")], "bird."]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]} for part in deltas
    ]
    ended = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}
    message = json_reply({"choices": [{"message": {"role": "assistant", "content": whole}, "finish_reason": "stop"}]})
    for reply, stream in ((message, False), (streamed(*chunks, ended, done=True), True)):
        result, _ = await run_over(CHAT, [reply], stream=stream)
        said = events(result, ModelReplied)[-1].message
        assert (said.text, said.reasoning) == ("A bird.", "Which bird? An owl.")
        assert result.output == "A bird."


# --- forms to damage --------------------------------------------------------------------------------------------------


TOLD = {b"tool_use_failed": "malformed_reply", b"model_not_found": "not_found", b'"status":"failed"': "server"}


@whole_or_streamed
@pytest.mark.parametrize("interface", [CHAT, RESPONSES, MESSAGES], ids=lambda interface: interface.name)
async def test_forms_that_are_damaged_are_read_while_they_are_whole(interface: Interface, stream: bool) -> None:
    """Else damage would never get beyond the first thing that is read of them."""
    for form in FORMS[interface.name][stream]:
        result, _ = await run_over(interface, [form], stream=stream, tools=[lookup])
        faults = {failed.fault for failed in events(result, ModelFailed)}
        sent = form.body or b"".join(form.parts or ())
        assert faults == {fault for mark, fault in TOLD.items() if mark in sent.replace(b" ", b"")}
