"""Notices while a run goes on: of each kind, at most one in ten minutes, and none of them fails or delays the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.hooks import Hook
from watchkeeper import Agent, Limits, tool
from watchkeeper.app.telling.notices import LATE
from watchkeeper.app.telling.notify import Notify
from watchkeeper.containment import ShieldPipeline, ToolPermissionHook
from watchkeeper.core.clock import TestClock
from watchkeeper.models import Call, Calls, Say, ScriptedModel
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.runtime.events import NoticeSent
from watchkeeper.session.session import Session
from watchkeeper.store import RunStore


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as made:
        yield made


class Grumbler:
    """An observer that speaks after every call, with the severities it is given."""

    name = "Grumbler"

    def __init__(self, *severities: Any) -> None:
        self.severities = [*severities]

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        return bool(self.severities)

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
        severity = self.severities.pop(0)
        return Assessment("Grumbler", f"It goes badly, {severity}.", severity=severity)


class Work:
    """An agent whose tool takes a while on the test's clock."""

    def __init__(
        self, *pauses: float, severities: tuple[str, ...] = (), limits: Limits | None = None, **more: Any
    ) -> None:
        self.clock = TestClock()
        left = [*pauses]

        @tool
        async def work() -> str:
            """Work for a while, once all that has happened is told."""
            for _ in range(50):
                await asyncio.sleep(0)
            self.clock.advance(left.pop(0))
            return "worked"

        steps: list[Any] = [*(Call("work", {}) for _ in pauses), Say("done")]
        observers = [ObserverConfig(Grumbler(*severities), ObserverTrigger(on_every_call=True))] if severities else []
        given = limits or Limits(deadline="10h", max_total_tokens=10_000_000)
        self.agent = Agent(
            ScriptedModel(steps), "Work.", str, tools=[work], limits=given, observers=observers, name="worker", **more
        )

    def run(self, hook: Hook, on: str, **options: Any) -> Any:
        given: dict[str, Any] = {"store": None, "clock": self.clock, **options}
        return self.agent.run("Go", notify=Notify(hook.url, on), **given)


def told(hook: Hook) -> list[dict[str, Any]]:
    """Return the notices in the order in which they were sent; they may arrive in another one."""
    return sorted(hook.got, key=lambda notice: (notice["notice"] == "end", str(notice.get("at"))))


def kinds(hook: Hook) -> list[str]:
    return [each["notice"] for each in told(hook)]


def recorded(session: Session) -> list[NoticeSent]:
    return [each.event for each in session.log if isinstance(each.event, NoticeSent)]


def test_a_warning_is_told_with_run_sentence_and_figures(hook: Hook) -> None:
    result = Work(1, 1, severities=("caution", "warning")).run(hook, "warning")
    (notice,) = told(hook)
    assert notice["notice"] == "warning"
    assert notice["run_id"] == str(result.run_id)
    assert notice["sentence"] == "Grumbler warns: It goes badly, warning."
    assert notice["prompt"] == "agents/worker"
    assert notice["text"] == f"watchkeeper, run {result.run_id}, warning: Grumbler warns: It goes badly, warning."
    figures = notice["figures"]
    assert figures["steps"] >= 4
    tokens = figures["limits"]["max_total_tokens"]
    assert tokens["used"] + tokens["reserved"] + tokens["left"] == tokens["most"] == 10_000_000
    assert figures["limits"]["deadline"]["most"] == 36_000.0
    (event,) = recorded(result.session)
    assert (event.notice, event.error, event.to) == ("warning", "", hook.url.rpartition("/services")[0])


def test_of_one_kind_there_is_one_in_ten_minutes_and_what_came_between_is_counted(hook: Hook) -> None:
    Work(1, 60, 60, 600, severities=("warning",) * 4).run(hook, "warning")
    assert kinds(hook) == ["warning", "warning"]
    assert [each["held_back"] for each in told(hook)] == [0, 2]


def test_a_share_of_a_limit_is_told_once_for_each_limit(hook: Hook) -> None:
    limits = Limits(deadline="10h", max_steps=10, max_turns=100)
    Work(1, 1, 1, 1, limits=limits).run(hook, "50%,80%")
    assert sorted(kinds(hook)) == ["50%", "80%"]
    assert [each["passed"] for each in told(hook)] == [["max_steps"], ["max_steps"]]
    half = told(hook)[kinds(hook).index("50%")]
    assert half["sentence"] in ("Used: 50% of the steps (5 of 10).", "Used: 60% of the steps (6 of 10).")


def test_a_second_limit_that_passes_a_share_soon_after_is_told_later_not_never(hook: Hook) -> None:
    limits = Limits(deadline="10h", max_tool_calls=12, max_steps=20)
    Work(1, 1, 1, 1, 1, 1, 1, 601, 1, limits=limits).run(hook, "50%")
    assert [each["passed"] for each in told(hook)] == [["max_steps"], ["max_tool_calls"]]


def test_time_is_a_limit_too_and_is_told_although_nothing_happens(hook: Hook) -> None:
    Work(3600 * 8.1).run(hook, "80%")
    assert kinds(hook) == ["80%"]
    assert told(hook)[0]["passed"] == ["deadline"]
    assert told(hook)[0]["sentence"].startswith("Used: 8")


def test_a_share_that_the_work_cannot_reach_is_told_when_the_limit_ends_the_work(hook: Hook) -> None:
    Work(1, 2.5, limits=Limits(deadline="4s")).run(hook, "50%,80%,100%")
    by_kind = {each["notice"]: each for each in told(hook)}  # those of one moment arrive in any order
    assert by_kind.keys() == {"50%", "80%", "100%"}
    assert [each["passed"] for each in by_kind.values()] == [["deadline"]] * 3
    assert all(each["sentence"].startswith("Used: ") for each in by_kind.values())
    reached = "The run reached its deadline of 4s; the last 1s are kept for its last turn."
    assert reached in by_kind["100%"]["sentence"]


def test_a_run_that_is_stopped_is_told_as_failed_and_its_end_after_that(hook: Hook) -> None:
    result = Work(1, 1, 1, limits=Limits(max_turns=2)).run(hook, "failed,end")
    assert kinds(hook) == ["failed", "end"]
    assert told(hook)[0]["sentence"] == f"The run was stopped. {result.stop.message}"
    assert told(hook)[0]["reason"] == "turn_limit_exceeded"
    assert told(hook)[1]["sentence"] == result.sentence()
    assert (told(hook)[1]["ok"], told(hook)[1]["cost_usd"]) == (False, "0")


def test_a_run_that_is_done_is_told_at_its_end_only(hook: Hook) -> None:
    result = Work(1).run(hook, "warning,80%,parked,failed,end")
    assert kinds(hook) == ["end"]
    assert told(hook)[0]["output"] == "done"
    assert [each.notice for each in recorded(result.session)] == ["end"]


def test_of_many_items_the_one_that_fails_is_named_and_more_of_them_are_counted(hook: Hook) -> None:
    clock = TestClock()

    def answer(request: Any) -> Any:
        words = str([*request.transcript])
        clock.advance(700 if "slow" in words else 1)
        return Say("") if "bad" in words else Say("good")

    agent = Agent(ScriptedModel(answer), "Work.", str, name="worker", limits=Limits(deadline="10h"))
    notify = Notify(hook.url, "failed,end")
    items = ["good 1", "bad 2", "bad 3", "good slow", "bad 4"]
    many = agent.run_many(items, concurrency=1, notify=notify, store=None, clock=clock)
    assert (len(many.done), len(many.not_done)) == (2, 3)
    assert kinds(hook) == ["failed", "failed", "end"]
    assert [each.get("item") for each in told(hook)] == ["bad 2", "bad 4", None]
    assert told(hook)[1]["held_back"] == 1
    assert told(hook)[0]["sentence"].startswith("Item 'bad 2' is not done. ")
    assert told(hook)[2]["items_done"] == 2
    assert {each["run_id"] for each in told(hook)} == {told(hook)[2]["run_id"]}


def test_a_parked_call_is_told_with_what_is_asked_and_is_no_failure(hook: Hook, tmp_path: Path) -> None:
    def nobody(_: object) -> None:
        return None

    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["work"], ask_with=nobody))
    work = Work(1, shield=shield)
    result = work.run(hook, "parked,failed", store=tmp_path / "runs", on_ask="park")
    assert result.stop.reason == "parked"
    assert kinds(hook) == ["parked"]
    assert told(hook)[0]["sentence"] == "The tool call work waits for an answer: May work run?"
    assert told(hook)[0]["tool"] == "work"


def test_all_calls_for_which_a_run_parks_are_told_in_one_notice(hook: Hook, tmp_path: Path) -> None:
    def nobody(_: object) -> None:
        return None

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        return to

    model = ScriptedModel([Calls(tuple(Call("send", {"to": to}) for to in "abc"))])
    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["send"], ask_with=nobody))
    agent = Agent(model, "Work.", str, tools=[send], shield=shield)
    agent.run("Go", notify=Notify(hook.url, "parked"), store=tmp_path / "runs", on_ask="park", clock=TestClock())
    (notice,) = told(hook)
    assert notice["held_back"] == 0
    assert [call["call_id"] for call in notice["calls"]] == ["call-1", "call-2", "call-3"]
    assert notice["sentence"].startswith("3 tool calls wait for answers. send (call-1): May send run? send (call-2): ")


def test_what_parks_soon_after_another_item_is_told_at_the_end_of_the_whole(hook: Hook, tmp_path: Path) -> None:
    def nobody(_: object) -> None:
        return None

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        return to

    model = ScriptedModel(lambda _: Calls((Call("send", {"to": "a"}), Call("send", {"to": "b"}))))
    shield = ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["send"], ask_with=nobody))
    agent = Agent(model, "Work.", str, tools=[send], shield=shield)
    notify, clock = Notify(hook.url, "parked"), TestClock()
    agent.run_many(["1", "2", "3"], concurrency=1, notify=notify, store=tmp_path / "s", on_ask="park", clock=clock)
    first, last = sorted(hook.got, key=lambda notice: len(notice["calls"]))
    assert [call["item"] for call in first["calls"]] == ["1", "1"]
    assert first["item"] == "1"
    assert [call["item"] for call in last["calls"]] == ["2", "2", "3", "3"]
    assert "item" not in last


@pytest.mark.parametrize("status", [302, 500])
def test_a_notice_that_cannot_be_delivered_is_on_record_and_costs_the_run_nothing(
    status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Hook(status) as hook, RunStore(tmp_path / "runs") as store:
        result = Work(1, severities=("warning",)).run(hook, "warning,end", store=store)
        assert result.ok
        stored = [each.load() for each in store.events(str(result.run_id)) if each.tag == "notice_sent"]
    assert [(each.notice, each.error) for each in stored] == [
        (kind, f"it answered with status {status}") for kind in ("warning", "end")
    ]
    assert "secret-path" not in str(stored) + caplog.text
    assert "notice.failed" in caplog.text


def test_a_notice_that_hangs_does_not_hold_the_run_and_is_on_record(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:

    release = threading.Event()

    def hang(*_: object, **__: object) -> None:
        release.wait(60)

    monkeypatch.setattr("watchkeeper.app.telling.notices.delivered", hang)
    monkeypatch.setattr("watchkeeper.app.telling.notices.LAST_SECONDS", 0.01)
    with Hook() as hook, RunStore(tmp_path / "store") as store:
        result = Work(1, severities=("warning",)).run(hook, "warning", store=store)
        stored = [each.load() for each in store.events(str(result.run_id)) if each.tag == "notice_sent"]
    release.set()
    assert result.ok
    assert [(each.notice, each.error) for each in stored] == [("warning", LATE)]
    assert "notice.failed" in caplog.text


def test_a_key_that_the_process_holds_is_not_told(hook: Hook) -> None:
    from watchkeeper.core.secrets import hold

    hold("sk-notice-0123456789")

    class Leaky(Grumbler):
        def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
            self.severities.pop()
            return Assessment("Leaky", "It used sk-notice-0123456789.", severity="warning")

    work = Work(1)
    agent = Agent(
        work.agent.model,
        "Work.",
        str,
        tools=work.agent.tools,
        observers=[ObserverConfig(Leaky("warning"), ObserverTrigger(on_every_call=True))],
    )
    agent.run("Go", notify=Notify(hook.url, "warning"), store=None, clock=work.clock)
    assert [each["sentence"] for each in told(hook)] == ["Grumbler warns: It used [redacted]."]


def test_a_run_with_notices_can_be_replayed_and_shown(hook: Hook, tmp_path: Path) -> None:
    from watchkeeper.recovery import replay

    work = Work(1, severities=("warning",))
    result = work.run(hook, "warning,end", store=tmp_path / "runs")
    again = Work(1, severities=("warning",)).agent
    found = replay(str(result.run_id), again.prompt("Go"), model=again.model, store=tmp_path / "runs")
    assert found.ok, found.differences
