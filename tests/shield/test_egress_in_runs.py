"""What the egress hooks of a run's shield are asked: its model calls, and what its tools send with our clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.adapters.remote import LITELLM, REMOTES, Remote, chat, request
from tests.kit import Call, ScriptedModel, events, outcomes
from watchkeeper import Agent, RunResult, arun, tool
from watchkeeper.accounting.limits import Limits
from watchkeeper.contained_sdk.http import contained_async_http_client, contained_http_client
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.errors import ConfigurationError, EgressRefusedError
from watchkeeper.runtime.events import ModelFailed
from watchkeeper.shield.decision import Decision, SafetyEvent, ToolCallContext
from watchkeeper.shield.egress import EgressAllowList
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.testing import FakeOpenAI, WireReply, WireRequest, WireServer, say

notes = pytest.mark.filterwarnings("ignore::UserWarning:pydantic", "ignore::DeprecationWarning:litellm")
every_model = pytest.mark.parametrize(
    "remote", [*REMOTES, pytest.param(LITELLM, marks=notes)], ids=lambda remote: remote.name
)


class Asked:
    """Remembers what it was asked, and says the same each time."""

    def __init__(self, said: Decision | None = None) -> None:
        self.said = said
        self.asked: list[tuple[str, str, str]] = []

    def before_egress(self, ctx: ToolCallContext, url: str, method: str) -> Decision | None:
        self.asked.append((ctx.kind, url, method))
        return self.said


async def played(model: Any, egress: Any, *tools: Any, **options: Any) -> RunResult[str]:
    agent: Agent[str] = Agent(model, "Be brief.", str, tools=tools)
    shield = ShieldPipeline(egress=egress)
    return await arun(agent.prompt("Owl?"), model=model, limits=Limits(), shield=shield, store=None, **options)


def unheard(event: object) -> None:
    """Make a run stream, and do nothing with what it says."""


@pytest.mark.spec("EC-038")
@every_model
async def test_the_models_of_a_run_are_refused_before_the_first_request_with_the_entry_to_add(remote: Remote) -> None:
    async with remote.fake([say("An owl.")]) as fake:
        model = remote.model(fake.base_url)
        with pytest.raises(ConfigurationError, match=rf"add '{fake.url}' to hosts and add 'POST' to methods"):
            await played(model, EgressAllowList(["api.example.com"]))
        with pytest.raises(ConfigurationError, match=r": add 'POST' to methods"):
            await played(model, EgressAllowList([fake.url]))
        await model.close()
        assert fake.requests == []


@every_model
async def test_a_model_that_is_on_the_list_is_asked(remote: Remote) -> None:
    async with remote.fake([say("An owl.")]) as fake:
        model = remote.model(fake.base_url)
        result = await played(model, EgressAllowList([fake.url], ["POST"]))
        await model.close()
    assert result.text == "An owl."


async def test_the_models_of_a_fallback_are_looked_at_before_the_first_request_too() -> None:
    async with FakeOpenAI([say("An owl.")]) as fake:
        model, other = chat(fake.base_url), chat("https://api.example.com/v1", provider="other")
        with pytest.raises(ConfigurationError, match=r"of other:gpt-5-mini: add 'api\.example\.com' to hosts"):
            await played(model, EgressAllowList([fake.url], ["POST"]), fallback=[other])
        await model.close()
        await other.close()
        assert fake.requests == []


@notes
async def test_a_model_whose_address_nobody_knows_is_not_on_any_list() -> None:
    from watchkeeper.adapters.litellm import LiteLLMModel

    with pytest.raises(ConfigurationError, match="nobody knows it; give the model its base_url"):
        await played(LiteLLMModel("gemini/gemini-2.5-flash", api_key="test"), EgressAllowList(["*.googleapis.com"]))


async def test_a_model_in_this_process_needs_no_entry() -> None:
    assert (await played(ScriptedModel(["An owl."]), EgressAllowList([]))).text == "An owl."


@every_model
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_any_egress_hook_is_asked_about_each_request_of_a_model(remote: Remote, stream: bool) -> None:
    hook = Asked()
    async with remote.fake([say("An owl.")]) as fake:
        model = remote.model(fake.base_url)
        await played(model, hook, **({"on_event": unheard} if stream else {}))
        await model.close()
        ((kind, url, method),) = hook.asked
        assert (kind, method) == ("egress", "POST")
        assert url.startswith(fake.url)


@pytest.mark.parametrize(
    ("said", "reason"), [(Decision.HALT, "policy_halt"), (Decision.QUARANTINE, "policy_quarantine")]
)
async def test_what_a_hook_refuses_is_not_sent_costs_nothing_and_ends_the_work(said: Decision, reason: str) -> None:
    async with FakeOpenAI([say("An owl.")]) as fake:
        model = chat(fake.base_url)
        result = await played(model, Asked(said))
        await model.close()
        assert fake.requests == []
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == (reason, "hook")
    assert result.usage.tokens.total == 0
    assert [failed.fault for failed in events(result, ModelFailed)] == [reason]
    assert len([each for each in events(result, SafetyEvent) if each.hook == "Asked"]) == 1


def asking_tools(url: str) -> list[Callable[[], Any]]:
    """Return functions that ask the model at an address, each in its own way."""
    message: list[Any] = [{"role": "user", "content": "Owl?"}]

    async def our_model() -> str:
        model = chat(url)
        try:
            return (await model.turn(request())).message.text
        finally:
            await model.close()

    async def async_sdk() -> str | None:
        async with openai.AsyncOpenAI(
            api_key="test", base_url=url, http_client=contained_async_http_client(), max_retries=0
        ) as client:
            said = await client.chat.completions.create(model="gpt-5-mini", messages=message)
            return said.choices[0].message.content

    def sdk() -> str | None:
        with openai.OpenAI(api_key="test", base_url=url, http_client=contained_http_client(), max_retries=0) as client:
            return client.chat.completions.create(model="gpt-5-mini", messages=message).choices[0].message.content

    async def in_a_thread() -> str | None:
        return await asyncio.to_thread(sdk)

    return [our_model, async_sdk, sdk, in_a_thread]


@pytest.mark.parametrize("number", range(4), ids=["our-model", "async-sdk", "sdk", "in-a-thread"])
@pytest.mark.parametrize("listed", [False, True], ids=["missing", "listed"])
async def test_a_tool_that_uses_our_clients_is_asked_about(number: int, listed: bool) -> None:
    with FakeOpenAI([say("An owl.")]) as fake:
        ask = asking_tools(fake.base_url)[number]
        ask.__doc__ = "Ask another model."
        ask.__name__ = "ask"
        offered = tool(ask)
        model = ScriptedModel([Call("ask"), "Done."])
        result = await played(model, EgressAllowList([fake.url] if listed else ["api.example.com"], ["POST"]), offered)
        assert len(fake.requests) == listed
    assert result.text == "Done."
    assert outcomes(result) == [("ask", "ok" if listed else "crashed")]


async def test_each_redirect_is_a_request_of_its_own() -> None:
    with FakeOpenAI([say("An owl.")]) as target:

        def away(sent: WireRequest) -> WireReply:
            return WireReply(status=307, headers={"location": f"{target.base_url}/chat/completions"})

        with WireServer(away) as first:

            @tool
            def fetch() -> int:
                """Fetch a page."""
                with contained_http_client() as client:
                    return int(client.get(f"{first.url}/page", follow_redirects=True).status_code)

            model = ScriptedModel([Call("fetch"), "Done."])
            result = await played(model, EgressAllowList([first.url]), fetch)
            assert (len(first.requests), len(target.requests)) == (1, 0)
    assert outcomes(result) == [("fetch", "crashed")]


async def test_a_model_inside_a_call_of_the_gate_is_asked_about_and_outside_of_all_it_is_not() -> None:
    async with FakeOpenAI([say("An owl."), say("An elk.")]) as fake:
        model = chat(fake.base_url)
        with ExecutionContext(Limits(), ShieldPipeline(egress=EgressAllowList(["api.example.com"]))) as ctx:
            outcome = await ctx.acall_tool(lambda: model.turn(request()))
            assert isinstance(outcome.error, EgressRefusedError)
            assert f"add '{fake.url}' to hosts" in str(outcome.error)
            assert (await model.turn(request())).message.text == "An owl."
        await model.close()


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("https://api.example.com/v1", "'api.example.com'"),
        ("https://api.example.com:8443/", "'api.example.com:8443'"),
        ("http://api.example.com", "'http://api.example.com'"),
        ("http://[::1]:8080/v1", "'http://[::1]:8080'"),
    ],
)
def test_the_entry_that_is_named_allows_the_request(url: str, entry: str) -> None:
    said = EgressAllowList([]).entry_for(url, "GET")
    assert said == f"add {entry} to hosts"
    assert EgressAllowList([entry.strip("'")]).entry_for(url, "GET") is None
    assert EgressAllowList([]).entry_for("https://a@b", "GET") == "an address that is not plainly written"
