"""`watchkeeper runs` and `watchkeeper show` tell of contained blocks."""

# ruff: noqa: SIM117 -- blocks nest as they are used

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI

from tests.cli.support import CommandLine
from watchkeeper.blocks.contained import contained
from watchkeeper.contained_sdk.http import contained_http_client
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import say


def test_the_command_line_tells_of_a_block(cli: CommandLine) -> None:
    messages: Any = [{"role": "user", "content": "Hello."}]
    with FakeOpenAI(lambda number, body: say("Good.")) as server:
        http = contained_http_client()
        with OpenAI(api_key="k", base_url=server.base_url, http_client=http) as client:
            with contained(max_cost_usd=1, store="runs.db", name="nightly") as gate:
                client.chat.completions.create(model="gpt-5-mini", messages=messages)
                with contained(max_steps=5, name="second part"):
                    client.chat.completions.create(model="gpt-5-mini", messages=messages)
    run_id, store = gate.metadata.chain_id, ("--store", "runs.db")
    (line,) = [line for line in cli("runs", *store).out.splitlines() if run_id[:8] in line]
    assert line.split()[3:6] == ["nightly", "contained", "done"]
    (row,) = json.loads(cli("runs", "--json", *store).out)
    assert (row["run_id"], row["prompt"], row["model"], row["ok"]) == (run_id, "nightly", "contained", True)
    assert row["usage"]["model_calls"] == 2
    told = cli("show", run_id[:8], *store).out
    assert told.startswith(f"contained block nightly {run_id}\n")
    assert "● model  openai:gpt-5-mini: 10 in, 5 out, $0.000012, " in told
    assert "↳ contained  block second part, run " in told
    assert "✓ second part  Done: 1 model call, " in told
    assert "Done: 2 model calls, 0 tool calls, 30 tokens, " in told.splitlines()[-1]
    events = [json.loads(line) for line in cli("show", run_id, "--json", *store).out.splitlines()]
    assert {event["tag"] for event in events} >= {"run_started", "call_ended", "child_started", "run_ended"}
