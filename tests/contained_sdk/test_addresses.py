"""A request is judged by what its address means, however it is spelled; what cannot be counted needs a word."""

# ruff: noqa: SIM117 -- servers, clients and blocks nest as they are used

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contained_sdk.test_http import GPT, HELLO, anything
from watchkeeper.accounting.limits import Limits
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk.addresses import address_of, normal_path, purpose_of
from watchkeeper.contained_sdk.calls import CallStopped
from watchkeeper.contained_sdk.http import contained_http_client
from watchkeeper.contained_sdk.reading import wire_at
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.errors import ConfigurationError, RunStoppedError, UnpricedModelError
from watchkeeper.shield.egress import EgressAllowList
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import WireServer, say

GENERATING = [
    "/v1/completions",
    "/v1/engines/davinci/completions",
    "/v1/responses/compact",
    "/v1/batches",
    "/v1/messages/batches",
    "/v1/complete",
    "/messages",
    "/v1/images/generations",
    "/v1/audio/speech",
    "/v1/threads/runs",
    "/v1/threads/t/runs",
    "/v1/videos/edits",
    "/v1/videos/extensions",
    "/v1/realtime",
    "/v1/realtime/transcription_sessions",
    "/v1/realtime/calls/c/accept",
    "/v1/chatkit/sessions",
    "/v1/vector_stores/v/files",
    "/v1/vector_stores/v/search",
    "/v1/fine_tuning/jobs/j/resume",
    "/v1/fine_tuning/alpha/graders/run",
    "/v1/sessions",
    "/v1/sessions/s/events",
    "/v1/deployments/d/run",
    "/v1/dreams",
    "/v1/fine_tuning/jobs",
    "/model/anthropic.claude-v2%3A1/invoke",
    "/model/arn%3Aaws%3Abedrock%3Aeu%3A1%3Ainference-profile%2Fx/converse-stream",
    "/v1beta/models/gemini-pro:generateContent",
    "/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict",
    "/api/chat",
    "/api/generate",
    "/v2/chat",
    "/generate_stream",
    "/uploads/v1/completions",
    "/files/v1/batches/",
    "/v1/COMPLETIONS",
    "/v1//completions/",
    "/v1/%63ompletions",
    "/v1/x/../completions;v=1",
]


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("method", ["POST", "PUT", "post", "PATCH"])
def test_what_makes_a_model_work_is_known_however_it_is_spelled(path: str, method: str) -> None:
    assert purpose_of(method, "localhost", path) == "generating"


def respelled(letter: str, change: str) -> str:
    return {"upper case": letter.upper(), "encoded": f"%{ord(letter):02X}"}.get(change, letter)


@given(st.sampled_from(["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"]), st.data())
def test_the_spelling_of_an_address_changes_nothing(path: str, data: st.DataObject) -> None:
    changed = data.draw(st.lists(st.sampled_from(["as it is", "upper case", "encoded"]), min_size=20, max_size=20))
    spelled = "".join(map(respelled, path, changed)) + path[20:]
    spelled = quote(spelled).replace("/", data.draw(st.sampled_from(["/", "//", "/./", "/x/../"])))
    spelled += data.draw(st.sampled_from(["", "/", "//", "/.", ";a=b"]))
    assert normal_path(spelled) == path
    assert wire_at(spelled) is wire_at(path) is not None


@pytest.mark.parametrize(
    ("method", "host", "path", "purpose"),
    [
        ("GET", "api.openai.com", "/v1/models", "free"),
        ("DELETE", "api.openai.com", "/v1/responses/r", "free"),
        ("POST", "api.openai.com", "/v1/files", "free"),
        ("POST", "api.openai.com", "/v1/uploads/u/parts", "free"),
        ("POST", "api.openai.com", "/v1/uploads/", "free"),
        ("POST", "api.openai.com", "/v1/responses/r/cancel", "free"),
        ("POST", "api.anthropic.com", "/v1/messages/count_tokens", "free"),
        ("POST", "localhost", "/v1/threads/t/messages", "other"),
        ("POST", "localhost", "/v1/vector_stores", "other"),
        ("POST", "api.openai.com", "/v1/something/new", "generating"),
        ("POST", "eu.api.openai.com.", "/v1/something/new", "generating"),
        ("POST", "bedrock-runtime.eu-west-1.amazonaws.com", "/", "generating"),
        ("POST", "notopenai.com", "/", "other"),
    ],
)
def test_what_an_address_is_for(method: str, host: str, path: str, purpose: str) -> None:
    assert purpose_of(method, host, path) == purpose


@pytest.mark.parametrize(
    "spelled", ["/chat/completions/", "//chat/completions", "/Chat/Completions", "/%63hat/completions"]
)
def test_a_model_call_is_counted_however_its_address_is_spelled(spelled: str) -> None:
    with FakeOpenAI(lambda number, body: say("Good.")) as server, contained_http_client() as http:
        with contained(max_cost_usd=1) as ctx:
            for method in ("POST", "PUT"):
                http.request(method, server.base_url + spelled, json={"model": GPT, "messages": HELLO})
            assert ctx.usage.model_calls == 2
            assert all("max_tokens" in body for body in server.bodies())


@pytest.mark.parametrize("path", ["/uploads/v1/chat/completions", "/threads/v1/chat/completions"])
def test_a_base_address_makes_nothing_free(path: str) -> None:
    with WireServer(anything) as server, contained_http_client() as http, contained() as ctx:
        http.post(server.url + path, json={"model": GPT, "messages": HELLO})
        assert ctx.usage.model_calls == 1


CHAT = "/v1/chat/completions"


DIVIDING = ["%3B", "%3F", "%23", "%00", "%20", "\\\\", "%5C", "%253F"]


@pytest.mark.parametrize("tail", [*(f"{mark}/files" for mark in DIVIDING), ";x/files", ";" * 100 + "/files"])
def test_an_address_that_some_servers_read_as_a_model_call_is_one(tail: str) -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        with pytest.raises(ConfigurationError), contained(max_total_tokens=1000):
            http.post(server.url + CHAT + tail, json={"model": GPT, "messages": HELLO})
        assert server.requests == []


@pytest.mark.parametrize(
    "path", ["%2Ffiles", "/%2e%2e/files", "/.%2e/moderations", "%c0%affiles", "%252F..%252Ffiles;", "/x%2F..%2Ffiles"]
)
def test_an_address_that_servers_read_in_different_ways_is_never_free(path: str) -> None:
    with WireServer(anything) as server, contained_http_client() as http, contained() as ctx:
        http.post(server.url + CHAT + path, json={"model": GPT, "messages": HELLO})
        assert ctx.usage.steps == 1


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_header_in_place_of_the_method_is_a_method(method: str, name: str) -> None:
    with WireServer(anything) as server, contained_http_client() as http, contained() as ctx:
        call = {"model": GPT, "messages": HELLO}
        http.request(method, server.url + CHAT, json=call, headers={name: "POST"})
        assert (ctx.usage.model_calls, ctx.usage.steps) == (1, 1)
        http.request("POST", server.url + CHAT, json=call, headers={name: "GET"})
        assert ctx.usage.model_calls == 2


def test_reading_with_the_body_of_a_model_call_is_one() -> None:
    with WireServer(anything) as server, contained_http_client() as http, contained() as ctx:
        http.request("GET", server.url + CHAT, json={"model": GPT, "messages": HELLO})
        assert ctx.usage.steps == 1
        http.get(server.url + CHAT)
        http.request("GET", server.url + "/search", json={})
        assert ctx.usage.steps == 1


WEBSOCKET = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}


def handshake(request: httpx.Request) -> httpx.Response:
    return httpx.Response(101, headers=WEBSOCKET, extensions={"network_stream": request.url})


@pytest.mark.parametrize("path", ["/v1/realtime?model=gpt-realtime-2", "/v1/responses"])
def test_a_websocket_is_not_read_for_nothing(path: str) -> None:
    """What is said over it is on the bill, and nobody sees it here."""
    url = f"http://localhost{path}"
    with contained_http_client(httpx.MockTransport(handshake)) as http:
        with pytest.raises(ConfigurationError, match='uncounted="allow"'), contained(max_total_tokens=1000):
            http.get(url, headers=WEBSOCKET)
        with pytest.raises(UnpricedModelError), contained(max_cost_usd=1):
            http.get("http://localhost/anything", headers=WEBSOCKET)
        with contained(max_cost_usd=1, uncounted="allow") as ctx, http.stream("GET", url, headers=WEBSOCKET) as opened:
            assert (opened.status_code, opened.extensions["network_stream"]) == (101, httpx.URL(url))
            assert (ctx.usage.steps, ctx.usage.cost_nanos) == (1, None)


def test_a_request_that_names_another_path_than_its_address_is_refused() -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        with pytest.raises(ConfigurationError, match="put the path into the address"), contained():
            http.post(server.url + "/files", json={}, extensions={"target": CHAT.encode()})
        assert server.requests == []
        with contained() as ctx:
            http.post(server.url + "/files", json={}, extensions={"target": b"/files"})
            assert (ctx.usage.steps, len(server.requests)) == (0, 1)


def test_the_host_that_a_header_names_is_asked_for_too() -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        shield = ShieldPipeline(egress=EgressAllowList([server.url], ["GET", "POST"]))
        with contained(pipeline=shield):
            http.get(server.url + "/files", headers={"Host": server.url.removeprefix("http://").upper()})
        with pytest.raises(RunStoppedError, match="//localhost:99"), contained(pipeline=shield):
            http.get(server.url + "/files", headers={"Host": "localhost:99"})
        assert len(server.requests) == 1
    request = httpx.Request("POST", "http://localhost/new", headers={"Host": "api.openai.com:443"})
    assert address_of(request).purpose == "generating"


NAMED: list[dict[str, Any]] = [
    {"max_total_tokens": 1000},
    {"max_output_tokens": "2M"},
    {"limits": Limits(max_input_tokens=9)},
    {"max_total_tokens": 2_000_000},
]


@pytest.mark.parametrize("terms", NAMED)
def test_what_cannot_be_counted_is_refused_under_a_ceiling_that_was_named(terms: dict[str, Any]) -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        for method in ("POST", "PUT"):
            with pytest.raises(ConfigurationError, match=r'/v1/completions .*uncounted="allow"'), contained(**terms):
                http.request(method, f"{server.url}/v1/completions", json={"model": GPT, "prompt": "Hi."})
        assert server.requests == []
        with contained(uncounted="allow", **terms) as ctx:
            http.post(f"{server.url}/v1/completions", json={"model": GPT, "prompt": "Hi."})
            assert (ctx.usage.steps, ctx.usage.tool_calls, ctx.usage.cost_nanos) == (1, 1, None)
        with contained(**terms) as ctx:
            http.post(f"{server.url}/v1/vector_stores", json={})
            assert ctx.usage.steps == 1


def test_a_body_that_cannot_be_read_is_refused_where_a_model_call_is_expected() -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        with pytest.raises(ConfigurationError, match="chat/completions"), contained(max_total_tokens=1000):
            http.post(f"{server.url}/v1/chat/completions", content=b"[1, 2")
        assert server.requests == []


def test_under_a_ceiling_on_money_everything_that_may_bill_is_refused_unless_it_is_allowed() -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        for path in ("/v1/batches", "/v1/vector_stores"):
            with pytest.raises(UnpricedModelError, match=r'uncounted="allow"'), contained(max_cost_usd=1):
                http.post(server.url + path, json={})
        assert server.requests == []
        with contained(max_cost_usd=1, uncounted="allow") as ctx:
            http.post(f"{server.url}/v1/batches", json={})
            http.post(f"{server.url}/v1/vector_stores", json={})
            assert ctx.usage.cost_nanos is None


def test_where_only_the_defaults_hold_it_counts_as_a_step() -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        unnamed: list[dict[str, Any]] = [{}, {"max_steps": 9}, {"limits": Limits()}, {"max_total_tokens": None}]
        for terms in unnamed:
            with contained(**terms) as ctx:
                http.post(f"{server.url}/v1/completions", json={})
                assert (ctx.usage.steps, ctx.usage.tool_calls) == (1, 1)
        with pytest.raises(ConfigurationError, match="uncounted"), contained(uncounted="refuse"):
            http.post(f"{server.url}/v1/completions", json={})


def test_a_block_inside_cannot_allow_what_the_one_around_it_refuses() -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        with pytest.raises(ConfigurationError, match="uncounted"):
            with contained(max_total_tokens=1000), contained(uncounted="allow"):
                http.post(f"{server.url}/v1/completions", json={})
        with pytest.raises(ConfigurationError, match="uncounted"):
            with contained(uncounted="allow"), contained(max_total_tokens=1000):
                http.post(f"{server.url}/v1/completions", json={})
        with contained(max_total_tokens=1000, uncounted="allow"), contained():
            http.post(f"{server.url}/v1/completions", json={})
        assert len(server.requests) == 1


@pytest.mark.parametrize("limits", [Limits(max_total_tokens=1000), Limits(max_input_tokens="1M")])
def test_a_context_around_refuses_what_cannot_be_counted_as_a_block_does(limits: Limits) -> None:
    with WireServer(anything) as server, contained_http_client() as http:
        with ExecutionContext(limits), pytest.raises(CallStopped, match='uncounted="allow"'):
            http.post(f"{server.url}/v1/completions", json={})
        with ExecutionContext(limits), pytest.raises(ConfigurationError, match='uncounted="allow"'), contained():
            http.post(f"{server.url}/v1/completions", json={})
        assert server.requests == []
        with ExecutionContext(limits) as ctx, contained(uncounted="allow"):
            http.post(f"{server.url}/v1/completions", json={})
            assert ctx.usage.tool_calls == 1
        with ExecutionContext(Limits(max_steps=9)) as ctx:
            http.post(f"{server.url}/v1/completions", json={})
            assert ctx.usage.tool_calls == 1


def test_there_are_two_words_for_what_cannot_be_counted() -> None:
    with pytest.raises(ConfigurationError, match="uncounted='maybe'"):
        contained(uncounted="maybe")  # type: ignore[arg-type]
