"""What a call is charged where blocks nest, and where the provider chooses another service tier than was asked."""

# ruff: noqa: PT012, SIM117 -- a block that is ended is what is tested; servers, clients and blocks nest as they are used

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.contained_sdk.test_http import HELLO, chat, sync_client
from watchkeeper.app.prices import listed_price
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk.http import contained_http_client
from watchkeeper.core.errors import RunStoppedError, UnpricedModelError
from watchkeeper.core.usage import FREE, ModelPrice, TokenUsage
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import EVENT_STREAM, WireReply, WireRequest, WireServer, json_reply, say

GPT = "gpt-5-mini"
USED = TokenUsage(1_000, 500)


def listed(tier: str) -> int:
    price = listed_price("openai", GPT, {"service_tier": tier})
    assert price is not None
    return price.cost(USED)


BASE, PRIORITY, FLEX = listed("default"), listed("priority"), listed("flex")


def test_the_tiers_of_the_list_differ() -> None:
    assert FLEX < BASE < PRIORITY


# --- blocks inside blocks ---------------------------------------------------------------------------------------------


def test_an_inner_price_does_not_lower_what_counts_around_it() -> None:
    dear, cheap = ModelPrice.per_million(10, 100), ModelPrice.per_million(1, 10)
    with FakeOpenAI(lambda number, body: say("Good.", usage=USED)) as server, sync_client(chat, server) as client:
        with contained(max_cost_usd=1) as outer, contained(prices={GPT: FREE}):
            chat(client)
        assert outer.usage.cost_nanos == BASE
        with contained(max_cost_usd=1, prices={GPT: cheap}) as outer, contained(prices={GPT: dear}) as inner:
            chat(client)
        assert outer.usage.cost_nanos == inner.usage.cost_nanos == dear.cost(USED)
        with contained(prices={"unheard-of": FREE}) as outer, contained():
            chat(client, model="unheard-of")
        assert outer.usage.cost_nanos == 0
        with contained() as outer, contained(prices={"unheard-of": cheap}):
            chat(client, model="unheard-of")
        assert outer.usage.cost_nanos == cheap.cost(USED)


def test_a_ceiling_holds_around_a_block_that_calls_everything_free() -> None:
    with FakeOpenAI(lambda number, body: say("Good.", usage=USED)) as server, sync_client(chat, server) as client:
        with pytest.raises(RunStoppedError) as caught, contained(max_cost_usd="$0.01"):
            while True:
                with contained(prices={GPT: FREE}):
                    chat(client, max_tokens=500)
        assert caught.value.stop.reason == "budget_exceeded"
        assert len(server.requests) < 10


# --- service tiers ----------------------------------------------------------------------------------------------------


def answering(tier: str | None) -> Callable[[WireRequest], WireReply]:
    """Answer in every interface, at a tier."""
    told = {} if tier is None else {"service_tier": tier}
    counts = {"prompt_tokens": USED.input_tokens, "completion_tokens": USED.output_tokens}

    def answer(request: WireRequest) -> WireReply:
        if request.path.endswith("/responses"):
            usage = {"input_tokens": USED.input_tokens, "output_tokens": USED.output_tokens}
            return json_reply({"id": "r", "status": "completed", "output": [], "usage": usage, **told})
        whole: dict[str, Any] = {"id": "c", "choices": [], "usage": counts, **told}
        if not request.json().get("stream"):
            return json_reply(whole)
        parts = [b"data: " + msgspec.json.encode(whole) + b"\n\n", b"data: [DONE]\n\n"]
        return WireReply(parts=parts, content_type=EVENT_STREAM)

    return answer


@pytest.mark.parametrize(
    ("asked", "answered", "cost"),
    [
        (None, None, BASE),
        (None, "default", BASE),
        (None, "priority", PRIORITY),
        ("auto", "priority", PRIORITY),
        ("auto", "flex", FLEX),
        ("flex", "flex", FLEX),
        ("flex", None, FLEX),
        ("flex", "default", BASE),
        ("priority", "default", BASE),
        ("priority", "unheard-of", PRIORITY),
        ("flex", "unheard-of", BASE),
    ],
)
def test_the_tier_that_answered_is_charged(asked: str | None, answered: str | None, cost: int) -> None:
    """A project may be set to a dearer tier at the provider, which no request tells."""
    wish = {} if asked is None else {"service_tier": asked}
    with WireServer(answering(answered)) as server, contained_http_client() as http, contained(max_cost_usd=1) as ctx:
        http.post(f"{server.url}/v1/responses", json={"model": GPT, "input": "Hello.", **wish})
        for how in ({}, {"stream": True}):
            http.post(f"{server.url}/v1/chat/completions", json={"model": GPT, "messages": HELLO, **wish, **how})
        assert [round(node.cost_usd * 1e9) for node in ctx.get_snapshot().nodes] == [cost] * 3


def test_a_price_that_the_caller_gave_holds_for_every_tier() -> None:
    own = ModelPrice.per_million(1, 10)
    with WireServer(answering("priority")) as server, contained_http_client() as http:
        with contained(prices={GPT: own}) as ctx:
            http.post(f"{server.url}/v1/chat/completions", json={"model": GPT, "messages": HELLO})
            assert ctx.usage.cost_nanos == own.cost(USED)


@pytest.mark.parametrize("tier", [None, "auto", "flex", "default"])
def test_a_ceiling_holds_whatever_tier_the_provider_chooses(tier: str | None) -> None:
    """The worst case of a request that leaves the choice is that of the dearest tier it may be given."""
    wish = {} if tier is None else {"service_tier": tier}
    chosen = {"flex": "default", "default": "default"}.get(tier or "", "priority")

    def spendthrift(request: WireRequest) -> WireReply:
        cap = request.json()["max_tokens"]
        usage = {"prompt_tokens": len(msgspec.json.encode(HELLO)), "completion_tokens": cap}
        return json_reply({"id": "c", "choices": [], "usage": usage, "service_tier": chosen})

    with WireServer(spendthrift) as server, contained_http_client() as http:
        with pytest.raises(RunStoppedError) as caught, contained(max_cost_usd="$0.02"):
            while True:
                body = {"model": GPT, "messages": HELLO, **wish}
                http.post(f"{server.url}/v1/chat/completions", json=body)
        assert caught.value.result.usage.cost_nanos <= 20_000_000


# --- input that is no text --------------------------------------------------------------------------------------------

SOUND = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}]


def test_sound_is_charged_at_the_rate_of_sound() -> None:
    text, sound = (listed_price("openai", "gpt-audio", kinds=kinds) for kinds in ((), ("audio",)))
    assert text is not None
    assert sound is not None
    assert sound.cost(USED) > 2 * text.cost(USED)
    with FakeOpenAI(lambda number, body: say("Good.", usage=USED)) as server, sync_client(chat, server) as client:
        with contained(max_cost_usd=1, max_part_tokens=1_000) as gate:
            chat(client, model="gpt-audio", messages=SOUND, max_tokens=500)
            assert gate.usage.cost_nanos == sound.cost(USED)
            chat(client, model="gpt-audio", max_tokens=500)
            assert gate.usage.cost_nanos == sound.cost(USED) + text.cost(USED)
        with pytest.raises(UnpricedModelError, match="gpt-4o-audio-preview has no known price"):
            with contained(max_cost_usd=1, max_part_tokens=1_000):
                chat(client, model="gpt-4o-audio-preview", messages=SOUND)
