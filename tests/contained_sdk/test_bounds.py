"""What a hostile server, or ordinary code, could use to get past the bounds of a block."""

# ruff: noqa: SIM117 -- servers, clients and blocks nest as they are used

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from tests.contained_sdk.test_http import PRICES, always, async_client, chat, sync_client
from watchkeeper.app.contained import contained
from watchkeeper.contained_sdk.calls import CallStopped
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.limits import Limits
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import say

# --- what outlives a model call ---------------------------------------------------------------------------------------

PRICED = Limits(max_cost_usd=1, landing=None)


def test_a_thread_that_outlives_a_model_call_sends_nothing_in_its_name() -> None:
    with FakeOpenAI(always(say("Good."))) as server, sync_client(chat, server) as client:
        refused: list[object] = []

        def late() -> None:
            with pytest.raises(CallStopped) as caught:
                chat(client)
            refused.append(caught.value)

        with ExecutionContext(PRICED) as gate:
            copied = gate.call_llm(contextvars.copy_context).value
            assert copied is not None
            thread = threading.Thread(target=copied.run, args=(late,))
            thread.start()
            thread.join()
        assert (len(refused), len(server.requests)) == (1, 0)


async def test_a_task_that_outlives_a_model_call_is_counted_in_its_block() -> None:
    with FakeOpenAI(always(say("Good."))) as server:
        async with async_client(chat, server) as client:
            go_on = asyncio.Event()

            async def late() -> None:
                await go_on.wait()
                await chat(client)

            async def begin() -> asyncio.Task[None]:
                return asyncio.create_task(late())

            with ExecutionContext(Limits(max_steps=2, landing=None)) as gate:
                task = (await gate.acall_llm(begin)).value
                go_on.set()
                assert task is not None
                await task
                assert (gate.usage.model_calls, gate.usage.steps, len(server.requests)) == (2, 2, 1)
