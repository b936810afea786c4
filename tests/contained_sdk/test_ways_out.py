"""A client of ours goes the ways that an SDK's own client goes: through proxies, and where it is redirected to."""

# ruff: noqa: SIM117 -- servers, clients and blocks nest as they are used

from __future__ import annotations

import copy
import pickle
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.contained_sdk.test_http import GPT, PRICES, USAGE, Plain, chat, events_of, every_side, whole_or_streamed
from watchkeeper.accounting.limits import Limits
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk.calls import CallStopped
from watchkeeper.contained_sdk.http import contained_http_client, environment_proxies
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.errors import ConfigurationError, RunStoppedError
from watchkeeper.core.secrets import REDACTED, redacted
from watchkeeper.core.usage import TokenUsage
from watchkeeper.shield.egress import EgressAllowList
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.store.run_store import RunStore
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import EVENT_STREAM, WireReply, WireRequest, WireServer, json_reply, say

ANSWER: dict[str, Any] = {"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
NOBODY = "http://127.0.0.1:9"
BODY = {"model": GPT, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 300}


@every_side
@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
async def test_the_proxy_of_the_environment_is_used_and_its_requests_are_counted(
    side: Plain, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WireServer(lambda request: json_reply(ANSWER)) as proxy:
        monkeypatch.setenv(name, proxy.url)
        async with side.using(side.http_client()) as http, side.using(contained()) as ctx:
            response = await side.of(http.post(f"{NOBODY}/v1/chat/completions", json=BODY))
            assert response.json()["id"] == "x"
            assert ctx.usage.tokens == TokenUsage(3, 4)
        assert [request.path for request in proxy.requests] == [f"{NOBODY}/v1/chat/completions"]


def test_credentials_that_a_proxy_repeats_are_replaced_in_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(request: WireRequest) -> WireReply:
        return json_reply({"error": {"message": f"{request.headers['proxy-authorization']} is not known"}}, 407)

    with WireServer(refuse) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//someone:a-pass-word@"))
        with contained_http_client() as http, contained(store=tmp_path / "runs.db"):
            http.post(f"{NOBODY}/v1/chat/completions", json=BODY)
    with RunStore(tmp_path / "runs.db", read_only=True) as store:
        (run,) = store.runs()
        told = repr([event.body for event in store.events(run.run_id)])
    assert "is not known" in told
    assert b64encode(b"someone:a-pass-word").decode() not in told


@every_side
async def test_what_needs_no_proxy_goes_without_one(side: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeOpenAI(lambda number, body: say("Good.")) as server:
        async with side.using(side.client(chat, server)) as client, side.using(contained()) as ctx:
            await side.of(chat(client))
            assert ctx.usage.model_calls == 1


def test_a_transport_of_ones_own_asks_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx2

    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    with WireServer(lambda request: json_reply(ANSWER)) as server:
        with contained_http_client(httpx2.HTTPTransport()) as http, contained() as ctx:
            http.post(f"{server.url}/v1/chat/completions", json=BODY)
            assert ctx.usage.tokens == TokenUsage(3, 4)


ADDRESS, LOOPBACK6 = "http://127.0.0.1:8080", "http://[::1]:8080"
NEAR, FAR = "http://near.example/v1", "https://api.far.example:8443/v1"
WAYS: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, {NEAR: "", FAR: ""}),
    ({"HTTP_PROXY": "http://p:1"}, {NEAR: "http://p:1", FAR: ""}),
    ({"https_proxy": "p:1"}, {NEAR: "", FAR: "http://p:1"}),
    ({"ALL_PROXY": "http://a:1", "HTTPS_PROXY": "http://s:2"}, {NEAR: "http://a:1", FAR: "http://s:2"}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "*"}, {NEAR: "", FAR: ""}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "near.example, *"}, {FAR: ""}),
    (
        {"ALL_PROXY": "p:1", "NO_PROXY": "far.example"},
        {NEAR: "http://p:1", FAR: "", "http://sofar.example": "http://p:1"},
    ),
    ({"ALL_PROXY": "p:1", "NO_PROXY": ".far.example"}, {FAR: "", "http://far.example": "http://p:1"}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "*.far.example"}, {FAR: "", "http://far.example": "http://p:1"}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "far.example:8443,near.example:81"}, {NEAR: "http://p:1", FAR: ""}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "https://api.far.example"}, {FAR: "", "http://api.far.example": "http://p:1"}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "localhost,127.0.0.1,::1"}, {"http://localhost": "", ADDRESS: "", LOOPBACK6: ""}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "[::1], 127.0.0.1:8080"}, {ADDRESS: "", LOOPBACK6: ""}),
    ({"ALL_PROXY": "p:1", "NO_PROXY": "notlocalhost"}, {"http://localhost": "http://p:1"}),
    (
        {"ALL_PROXY": "p:1", "NO_PROXY": "10.0.0.0/99,[::1,a b,near.example/x,://,,far.example"},
        {NEAR: "http://p:1", FAR: ""},
    ),
]


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
@pytest.mark.parametrize(("environment", "ways"), WAYS)
def test_which_addresses_go_through_which_proxy(
    package: str, environment: dict[str, str], ways: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = pytest.importorskip(package)
    set_proxies(monkeypatch, environment)
    for address, proxy in ways.items():
        assert way_of(module, address) == proxy, address


def test_a_network_needs_no_proxy_where_httpx_knows_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = pytest.importorskip("httpx2")
    set_proxies(monkeypatch, {"ALL_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8,fe80::/10"})
    assert way_of(module, "http://10.1.2.3") == way_of(module, "http://[fe80::1]") == ""
    assert way_of(module, "http://11.1.2.3") == way_of(module, "http://[::1]") == "http://p:1"


def test_the_password_of_a_proxy_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxies(monkeypatch, {"HTTPS_PROXY": "ann:proxy-password-1@proxy.example:3128"})
    contained_http_client().close()
    assert redacted("proxy-password-1") == REDACTED


def set_proxies(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def way_of(module: Any, address: str) -> str:
    """Return the proxy that a request to this address goes to; empty if it goes there by itself."""

    def to(proxy: str) -> Any:
        def answer(request: object) -> Any:
            return module.Response(200, text=proxy)

        return module.MockTransport(answer)

    mounts = {pattern: proxy and to(proxy) for pattern, proxy in environment_proxies(module).items()}
    with module.Client(transport=to(""), mounts=mounts) as client:
        return str(client.get(address).text)


def moving_to(where: str, status: int) -> WireServer:
    return WireServer(lambda request: WireReply(status, {"location": where + request.path}, b"Over there."))


def within(request: WireRequest, kind: str = "") -> WireReply:
    """Send everything of the old address to the new one."""
    if request.path.startswith("/old"):
        return WireReply(307, {"location": request.path.removeprefix("/old")}, b"Over there.", content_type=kind)
    if request.json().get("stream"):
        return WireReply(parts=[*events_of("one"), USAGE, b"data: [DONE]\n\n"], content_type=EVENT_STREAM)
    return json_reply(ANSWER)


@every_side
@whole_or_streamed
@pytest.mark.parametrize("kind", ["", "text/plain", "application/json"])
async def test_a_redirect_is_followed_and_costs_nothing_by_itself(side: Plain, stream: bool, kind: str) -> None:
    with WireServer(partial(within, kind=kind)) as server:
        async with side.using(side.chat_client(server)) as client:
            client.base_url = f"{server.url}/old/v1"
            async with side.using(contained(max_cost_usd=1, prices=PRICES)) as ctx:
                answer = await side.of(chat(client, stream=stream))
                if stream:
                    assert len(await side.all(answer)) == 1
                assert ctx.usage.tokens == (TokenUsage(10, 5) if stream else TokenUsage(3, 4))
                assert [node.status for node in ctx.get_snapshot().nodes] == ["ok", "ok"]
        assert [request.path for request in server.requests] == ["/old/v1/chat/completions", "/v1/chat/completions"]


def test_a_post_that_is_answered_elsewhere_may_have_been_billed() -> None:
    with WireServer(lambda request: json_reply({})) as server, moving_to(server.url, 303) as old:
        with contained_http_client() as http, contained() as ctx:
            http.post(f"{old.url}/v1/chat/completions", json=BODY)
            assert ctx.usage.tokens.output_tokens == 300
        assert server.requests[0].method == "GET"


def test_an_accepted_request_is_no_answer() -> None:
    def accepted(request: WireRequest) -> WireReply:
        return WireReply(status=202, body=b"Later.")

    with WireServer(accepted) as server, contained_http_client() as http, contained() as ctx:
        http.post(f"{server.url}/v1/chat/completions", json=BODY)
        assert ctx.usage.tokens.output_tokens == 300


def test_each_address_on_the_way_is_asked_at_the_gate() -> None:
    with WireServer(lambda request: json_reply(ANSWER)) as server:
        elsewhere = server.url.replace("127.0.0.1", "localhost")
        with moving_to(elsewhere, 307) as old, contained_http_client() as http:
            shield = ShieldPipeline(egress=EgressAllowList(["http://127.0.0.1:*"], ["POST"]))
            with pytest.raises(RunStoppedError, match=r"Nothing .*localhost"), contained(pipeline=shield):
                http.post(f"{old.url}/v1/chat/completions", json=BODY)
            assert len(old.requests) == 1
        assert server.requests == []


@pytest.mark.parametrize(
    ("name", "url", "more"),
    [
        ("by-a-hook", NOBODY, {}),
        ("on-its-way", NOBODY, {"extensions": {"target": b"/elsewhere"}}),
        ("in-a-test", "https://else.example", {}),
    ],
)
def test_a_refused_request_does_not_show_its_credentials(name: str, url: str, more: Any) -> None:
    key, token = f"key-refused-{name}", f"token-refused-{name}"
    shield = ShieldPipeline(egress=EgressAllowList(["api.example.com"], ["POST"]))
    with contained_http_client() as http:
        with pytest.raises((RunStoppedError, ConfigurationError)) as caught, contained(pipeline=shield):
            http.post(f"{url}/v1/x?key={key}", headers={"authorization": f"Bearer {token}"}, json=BODY, **more)
    assert key not in str(caught.value)
    assert redacted(f"{key} {token}") == f"{REDACTED} {REDACTED}"


@pytest.mark.parametrize("limits", [Limits(max_steps=1), Limits(max_cost_usd=1)], ids=["stopped", "unpriced"])
def test_a_refusal_can_be_sent_to_another_process(limits: Limits) -> None:
    with FakeOpenAI(lambda number, body: say("Good.")) as server, contained_http_client() as http:
        client = OpenAI(api_key="k", base_url=server.base_url, http_client=http)
        with ExecutionContext(limits), pytest.raises(CallStopped) as caught:
            _ = [chat(client), chat(client)]
    sent = caught.value
    for arrived in (pickle.loads(pickle.dumps(sent)), copy.copy(sent)):
        assert (str(arrived), arrived.stop, arrived.is_local) == (str(sent), sent.stop, sent.is_local)
        assert (type(arrived.error), str(arrived.error)) == (type(sent.error), str(sent.error))
