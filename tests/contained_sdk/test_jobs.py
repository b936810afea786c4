"""A job in the background holds its worst case until somebody retrieves its token counts."""

# ruff: noqa: PT012, SIM117 -- a block that is ended is what is tested; servers, clients and blocks nest as they are used

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from openai import OpenAI

from tests.contained_sdk.test_http import GPT, HELLO, PRICES, Plain, every_side
from watchkeeper.adapters.openai_responses import RESPONSES
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk.http import contained_http_client
from watchkeeper.contained_sdk.jobs import KEPT_JOBS, Job, Jobs
from watchkeeper.contained_sdk.reading import read_whole
from watchkeeper.core.errors import RunStoppedError
from watchkeeper.core.usage import TokenUsage
from watchkeeper.testing.wire import EVENT_STREAM, WireReply, WireRequest, WireServer, json_reply

INPUT, OUTPUT = 20, 700
USAGE = {"input_tokens": INPUT, "output_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
COST = INPUT * 1_000 + OUTPUT * 10_000
"""Nano-dollars of one finished job."""


def answer_of(number: int, status: str, **more: Any) -> dict[str, Any]:
    common: dict[str, Any] = {
        "id": f"resp_{number}",
        "object": "response",
        "status": status,
        "model": GPT,
        "output": [],
        "usage": None,
    }
    return {**common, "created_at": 0, "tools": [], "parallel_tool_calls": True, "tool_choice": "auto", **more}


def event_of(kind: str, response: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode({"type": kind, "sequence_number": 0, "response": response}) + b"\n\n"


class JobServer(WireServer):
    """Begins jobs at once; they are done when ``done`` says so."""

    def __init__(self, *, done: bool = True) -> None:
        self.started = 0
        self.done = done
        super().__init__(self.serve)

    def serve(self, request: WireRequest) -> WireReply:
        path, _, query = request.path.partition("?")
        if path.endswith("/cancel"):
            return json_reply(self.state(path.split("/")[-2], "cancelled"))
        if request.method == "GET":
            state = self.state(path.split("/")[-1], "completed" if self.done else "in_progress")
            if "stream=true" not in query:
                return json_reply(state)
            return WireReply(parts=[event_of("response.completed", state)], content_type=EVENT_STREAM)
        self.started += 1
        queued = answer_of(self.started, "queued")
        if not request.json().get("stream"):
            return json_reply(queued)
        return WireReply(parts=[event_of("response.created", queued)], content_type=EVENT_STREAM, breaks=True)

    def state(self, response_id: str, status: str) -> dict[str, Any]:
        usage = None if status == "in_progress" else USAGE
        return answer_of(int(response_id.removeprefix("resp_")), status, usage=usage)


def begin(client: Any, **more: Any) -> Any:
    asked = {"model": GPT, "input": "Think.", "background": True, "max_output_tokens": 1000}
    return client.responses.create(**{**asked, **more})


def test_jobs_cannot_be_started_beyond_the_ceiling() -> None:
    """Three jobs of a cent at most fit under four cents, and a shorter one; "queued" tells nothing of their costs."""
    with JobServer() as server, OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
        with pytest.raises(RunStoppedError) as caught, contained(max_cost_usd="0.04", prices=PRICES):
            while True:
                begin(client)
        assert caught.value.stop.reason == "budget_exceeded"
        assert 3 * 1000 * 10_000 < caught.value.result.usage.cost_nanos <= 40_000_000
        assert server.started == 4


@every_side
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_whoever_retrieves_a_job_learns_what_it_cost(side: Plain, streamed: bool) -> None:
    with JobServer() as server:
        async with side.using(side.chat_client(server)) as client:
            async with side.using(contained(max_cost_usd=1, prices=PRICES)) as ctx:
                job = await side.of(begin(client))
                held = ctx.usage.cost_nanos
                assert held > 1000 * 10_000
                server.done = False
                await side.of(client.responses.retrieve(job.id))
                assert ctx.usage.cost_nanos == held
                server.done = True
                for _ in range(2):
                    answer = await side.of(client.responses.retrieve(job.id, stream=streamed))
                    if streamed:
                        assert len(await side.all(answer)) == 1
                    assert (ctx.usage.cost_nanos, ctx.usage.tokens) == (COST, TokenUsage(INPUT, OUTPUT))
                assert [node.cost_usd for node in ctx.get_snapshot().nodes] == [COST / 1e9]


def test_a_job_that_is_cancelled_tells_what_it_cost() -> None:
    with JobServer() as server, OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
        with contained(max_cost_usd=1, prices=PRICES) as ctx:
            client.responses.cancel(begin(client).id)
            assert (ctx.usage.cost_nanos, ctx.usage.steps) == (COST, 1)


def test_another_server_does_not_tell_what_a_job_cost() -> None:
    with JobServer() as server, JobServer() as other, contained_http_client() as http:
        with OpenAI(api_key="k", base_url=server.url, http_client=http) as client:
            with contained(max_cost_usd=1, prices=PRICES) as ctx:
                job = begin(client)
                held = ctx.usage.cost_nanos
                http.get(f"{other.url}/responses/{job.id}")
                assert ctx.usage.cost_nanos == held
                http.get(f"{server.url}/responses/{job.id}")
                assert ctx.usage.cost_nanos == COST


@pytest.mark.parametrize(("most", "streamed"), [("MOST_WHOLE_BYTES", False), ("MOST_STREAM_BYTES", True)])
def test_an_answer_that_is_too_large_passes_but_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, most: str, streamed: bool
) -> None:
    monkeypatch.setattr(f"watchkeeper.contained_sdk.jobs.{most}", 100)
    with JobServer() as server, OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
        with contained(max_cost_usd=1, prices=PRICES) as ctx:
            job = begin(client)
            held = ctx.usage.cost_nanos
            answer = client.responses.retrieve(job.id, stream=True) if streamed else client.responses.retrieve(job.id)
            assert list(cast("Any", answer))
            assert ctx.usage.cost_nanos == held


def test_a_job_whose_stream_broke_tells_its_cost_when_it_is_retrieved() -> None:
    with JobServer() as server, OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
        with contained(max_cost_usd=1, prices=PRICES) as ctx:
            with pytest.raises(Exception, match=r"(?i)peer|incomplete"):
                list(begin(client, stream=True))
            assert cast("int", ctx.usage.cost_nanos) > 1000 * 10_000
            client.responses.retrieve("resp_1")
            assert ctx.usage.cost_nanos == COST


def test_a_job_of_a_block_inside_is_settled_in_the_one_around_it() -> None:
    with JobServer() as server, OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
        with contained(max_cost_usd=1, prices=PRICES) as ctx:
            with contained():
                job = begin(client)
            assert cast("int", ctx.usage.cost_nanos) > 1000 * 10_000
            client.responses.retrieve(job.id)
            assert ctx.usage.cost_nanos == COST


def test_what_is_unknown_at_the_end_stays_booked_at_its_worst_case(tmp_path: Path) -> None:
    terms: dict[str, Any] = {"account": "a", "account_limit": "$1/day", "ledger": tmp_path / "l", "prices": PRICES}
    with JobServer() as server, OpenAI(api_key="k", base_url=server.url, http_client=contained_http_client()) as client:
        with contained(**terms):
            job = begin(client, max_output_tokens=60_000)
        client.responses.retrieve(job.id)
        with pytest.raises(RunStoppedError, match="account"), contained(**terms):
            begin(client, max_output_tokens=60_000, stream=False)
            begin(client, max_output_tokens=60_000, stream=False)


def test_an_answer_without_anything_of_an_answer_is_not_final() -> None:
    """Some servers take a chat completion on, and give it out later under another path."""

    def deferred(request: WireRequest) -> WireReply:
        if request.method == "POST":
            return json_reply({"request_id": "later"})
        return json_reply({"id": "c", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})

    with WireServer(deferred) as server, contained_http_client() as http:
        with contained(max_cost_usd=1, prices=PRICES) as ctx:
            body = {"model": GPT, "messages": HELLO, "deferred": True, "max_tokens": 500}
            http.post(f"{server.url}/v1/chat/completions", json=body)
            assert ctx.usage.tokens.output_tokens == 500
            http.get(f"{server.url}/v1/chat/deferred-completion/later")
            assert ctx.usage.tokens == TokenUsage(10, 5)


def test_no_more_jobs_are_remembered_than_are_allowed() -> None:
    jobs, told = Jobs(), list[str]()

    def tells(name: str) -> Callable[[object], None]:
        return lambda seen: told.append(name)

    for number in range(KEPT_JOBS + 1):
        jobs.add(f"r{number}", Job(RESPONSES, tells(f"r{number}"), "here"))
    assert jobs.asked_for("/v1/responses/r0", "here") is None
    assert jobs.asked_for(f"/v1/responses/r{KEPT_JOBS}/cancel", "here") is not None
    final = read_whole(RESPONSES, msgspec.json.encode(answer_of(1, "completed", usage=USAGE)))
    jobs.learn("r0", final)
    jobs.learn("r7", final)
    jobs.learn("r7", final)
    assert told == ["r7"]
