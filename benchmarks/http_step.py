"""What one step over HTTP costs the client, in ms of CPU: a bare aiohttp loop, Watchkeeper's adapters, and whole runs.

The model is a fake server in a process of its own; it asks for one tool call N times and then answers. A step is one
turn: the request with the whole conversation so far, the reply, the result of its call. Target: at most 1.3 times the
aiohttp loop plus 0.3 ms, in the same run. Run with ``python -m benchmarks.http_step [N ...]``; exits 1 if missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.anthropic import AnthropicModel
from watchkeeper.adapters.openai_chat import OpenAIChatModel
from watchkeeper.adapters.openai_responses import OpenAIResponsesModel
from watchkeeper.app.run import arun
from watchkeeper.core.messages import SystemMessage, ToolMessage, Transcript, UserMessage
from watchkeeper.core.model import Model, ModelRequest, ToolSpec
from watchkeeper.core.usage import ModelPrice
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.testing.fake_anthropic import FakeAnthropic
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import Step, call, say
from watchkeeper.tools.tool import tool

FACTOR, ALLOWANCE = 1.3, 0.3
SYSTEM = "You are a careful clerk. " * 8
TASK = "Look every word up, one after the other, and then say that you are done."
RESULT = "a bird of the night, of which there are some two hundred and fifty species"
LOOKUP = ToolSpec(
    "lookup",
    "Look a word up in the dictionary.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
STEPS_PER_SAMPLE = 600
LIMITS = Limits(deadline="1h", max_cost_usd=1000, max_total_tokens=10**12, max_steps=10**9, max_turns=10**9)
PRICES = {name: ModelPrice.per_million("0.25", 2) for name in ("gpt-5-mini", "claude-sonnet-5")}

Loop = Callable[[int], Awaitable[None]]


def answer(number: int, body: Any) -> Step:
    """Ask for a call after every message but one that says that it is the last."""
    last = body["messages"][-1] if "messages" in body else body["input"][-1]
    return say("Done.") if "the last word" in str(last) else call("lookup", {"word": "owl"}, call_id=f"call_{number}")


def result(step: int, steps: int) -> str:
    return "the last word" if step == steps - 1 else RESULT


async def serve() -> None:
    """Serve both providers until the parent closes our stdin, and print their addresses."""
    async with (
        FakeOpenAI(answer, strict=False, record=False) as openai,
        FakeAnthropic(answer, strict=False, record=False) as anthropic,
    ):
        print(json.dumps([openai.base_url, anthropic.base_url]), flush=True)
        await asyncio.to_thread(sys.stdin.read)


def aiohttp_loop(session: aiohttp.ClientSession, base_url: str) -> Loop:
    """Return the loop that everything is compared with: no SDK, no checks, the whole body encoded every time."""
    tools = [
        {
            "type": "function",
            "function": {"name": LOOKUP.name, "description": LOOKUP.description, "parameters": LOOKUP.parameters},
        }
    ]
    headers = {"authorization": "Bearer test", "content-type": "application/json"}

    async def loop(steps: int) -> None:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
        for step in range(steps + 1):
            body = {"model": "gpt-5-mini", "messages": messages, "tools": tools, "max_completion_tokens": 4096}
            async with session.post(
                f"{base_url}/chat/completions", data=json.dumps(body).encode(), headers=headers
            ) as response:
                message = json.loads(await response.read())["choices"][0]["message"]
            messages.append(message)
            messages.extend(
                {"role": "tool", "tool_call_id": made["id"], "content": result(step, steps)}
                for made in message.get("tool_calls") or ()
            )
        assert messages[-1]["content"] == "Done."
        assert len(messages) == 2 * steps + 3

    return loop


def adapter_loop(model: Model) -> Loop:
    """Return the same loop over an adapter."""
    tools = (LOOKUP,)

    async def loop(steps: int) -> None:
        transcript = Transcript([SystemMessage(SYSTEM), UserMessage.of(TASK)])
        text = ""
        for step in range(steps + 1):
            reply = await model.turn(ModelRequest(transcript, tools=tools, timeout=600.0))
            transcript.append(reply.message)
            text = reply.message.text
            for made in reply.message.tool_calls:
                transcript.append(ToolMessage(made.call_id, made.name, result(step, steps)))
        assert text == "Done."
        assert len(transcript) == 2 * steps + 3

    return loop


def run_loop(model: Model) -> Loop:
    """Return the same loop as a whole run: the gate with all its ceilings, the log, the session, transactions."""
    results: list[str] = []

    @tool(name=LOOKUP.name)
    async def lookup(word: str) -> str:
        """Look a word up in the dictionary."""
        return results.pop()

    sections = [
        MarkdownSection(title="Role", key="role", template=SYSTEM, role="system"),
        MarkdownSection(title="Task", key="task", template=TASK, tools=(lookup,)),
    ]
    template = PromptTemplate(ns="bench", key="http", sections=sections)

    async def loop(steps: int) -> None:
        results[:] = [result(step, steps) for step in reversed(range(steps))]
        ended = await arun(template, model=model, limits=LIMITS, prices=PRICES, store=None)
        assert ended.output == "Done.", ended.sentence()
        assert ended.usage.tool_calls == steps

    return loop


async def measure(loops: dict[str, Loop], steps: int, samples: int) -> dict[str, float]:
    """Return the median CPU ms per step of each loop; the loops take turns, so that all see the same machine."""
    runs = max(1, STEPS_PER_SAMPLE // steps)
    costs: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        await loop(10)
    for _ in range(samples):
        for name, loop in loops.items():
            began = time.process_time()
            for _ in range(runs):
                await loop(steps)
            costs[name].append((time.process_time() - began) * 1000 / (runs * (steps + 1)))
    return {name: statistics.median(values) for name, values in costs.items()}


async def compare(openai_url: str, anthropic_url: str, sizes: list[int], samples: int) -> dict[int, dict[str, float]]:
    """Measure all loops at all sizes."""
    models: dict[str, Model] = {
        "openai chat": OpenAIChatModel("gpt-5-mini", api_key="test", base_url=openai_url),
        "openai responses": OpenAIResponsesModel("gpt-5-mini", api_key="test", base_url=openai_url),
        "anthropic": AnthropicModel("claude-sonnet-5", api_key="test", base_url=anthropic_url),
    }
    async with aiohttp.ClientSession() as session:
        loops = {"aiohttp": aiohttp_loop(session, openai_url)}
        loops |= {name: adapter_loop(model) for name, model in models.items()}
        loops |= {f"run, {name}": run_loop(models[name]) for name in ("openai chat", "anthropic")}
        found = {size: await measure(loops, size, samples) for size in sizes}
    for model in models.values():
        await model.close()
    return found


def report(found: dict[int, dict[str, float]]) -> bool:
    """Print the table and return whether every adapter met the target at every size."""
    names = list(next(iter(found.values())))
    print("ms of CPU per step".ljust(20) + "".join(f"N={size}".rjust(10) for size in found))
    for name in names:
        print(name.ljust(20) + "".join(f"{costs[name]:10.3f}" for costs in found.values()))
    limits = {size: FACTOR * costs["aiohttp"] + ALLOWANCE for size, costs in found.items()}
    print("target".ljust(20) + "".join(f"{limit:10.3f}" for limit in limits.values()))
    return all(costs[name] <= limits[size] for size, costs in found.items() for name in names)


def main() -> int:
    """Measure against a server of our own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[10, 100, 300, 1000], help="steps per run")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
        return 0
    command = [sys.executable, "-m", "benchmarks.http_step", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        openai_url, anthropic_url = json.loads(server.stdout.readline())
        found = asyncio.run(compare(openai_url, anthropic_url, arguments.sizes, arguments.samples))
    return 0 if report(found) else 1


if __name__ == "__main__":
    sys.exit(main())
