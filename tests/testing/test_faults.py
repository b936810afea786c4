"""Scripted faults: one that does not exist is refused, and one that hangs ends under the test's clock."""

from __future__ import annotations

import asyncio
import http.client

import pytest

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.openai_chat import OpenAIChatModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import Fault, WireReply, WireServer


@pytest.mark.parametrize("limits", [Limits(deadline="2h", landing=None), Limits(deadline="20m")])
def test_a_fake_that_hangs_ends_under_the_test_clock(limits: Limits) -> None:
    clock = TestClock()
    with FakeOpenAI(lambda number, body: Fault("hang"), clock=clock) as server:
        model = OpenAIChatModel("gpt-5-mini", api_key="test", base_url=server.base_url)
        result = Agent(model, "Work.", str, limits=limits).run("go", clock=clock, store=None)
        asyncio.run(model.close())
    assert result.stop is not None
    assert result.stop.reason == "timeout"
    assert clock.monotonic() >= 19 * 60


def test_a_fault_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"there is no fault 'overlaoded'; did you mean 'overloaded'\?"):
        Fault("overlaoded")  # type: ignore[arg-type]


def test_a_fake_that_hangs_ends_without_a_clock_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchkeeper.testing.wire.HANG_SECONDS", 0.05)
    with WireServer(lambda request: WireReply(hangs=True)) as server:
        client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
        client.request("GET", "/")
        with pytest.raises(http.client.RemoteDisconnected):
            client.getresponse()
        client.close()
