"""Replaying: the code of today against what is on record, without a model, tools, or a change to the record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_resume import World
from tests.kit import events
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.loop.replay import Difference
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.completion import TaskCompletionChecker, TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import Tool, tool


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult[str]]:
    """Return the store of a run that is done, and how it ended."""
    store = tmp_path_factory.mktemp("whole") / "store"
    return store, World().agent().run("go", store=store)


def test_the_same_code_has_no_difference_and_does_nothing(whole: tuple[Path, RunResult[str]]) -> None:
    store, first = whole
    file = store / "runs" / f"{first.run_id}.jsonl"
    before, world = file.read_bytes(), World()
    replayed = world.agent().replay(str(first.run_id), store=store)
    assert replayed.differences == ()
    assert replayed.ok
    assert replayed.compared == replayed.recorded == len(first.session.log)
    assert (world.sent, world.put, world.looked, world.asked) == ([], [], [], [])
    assert world.checked == 2
    assert file.read_bytes() == before
    assert [each.name for each in (store / "runs").iterdir()] == [file.name]


def test_an_interrupted_run_is_replayed_up_to_its_last_line(whole: tuple[Path, RunResult[str]], tmp_path: Path) -> None:
    store, first = whole
    lines = (store / "runs" / f"{first.run_id}.jsonl").read_bytes().splitlines(keepends=True)
    opened = next(place for place, line in enumerate(lines) if b'"tag":"run_opened"' in line) + 1
    for count in range(opened, len(lines), 3):
        other = tmp_path / str(count)
        RunStore(other).close()
        (other / "runs" / f"{first.run_id}.jsonl").write_bytes(b"".join(lines[:count]))
        assert World().agent().replay(str(first.run_id), store=other).differences == ()


SCRIPT = (Call("put", {"number": 2}), Say("41"))


@dataclass(frozen=True)
class Order:
    """What a small agent is made of."""

    tools: tuple[Tool, ...] = ()
    instructions: str = "Work."
    output: type[Any] = str
    checker: TaskCompletionChecker | None = None
    observers: tuple[ObserverConfig, ...] = ()
    limits: Limits = Limits()

    def agent(self, script: Any = SCRIPT) -> Agent[Any]:
        """Return the agent."""
        return Agent(
            ScriptedModel(script),
            self.instructions,
            self.output,
            tools=self.tools,
            task_completion_checker=self.checker,
            observers=self.observers,
            limits=self.limits,
        )

    def recorded(self, store: Path, *script: Any) -> str:
        """Run it and return the id of the run."""
        return str(self.agent(*([script] if script else [])).run("go", store=store).run_id)

    def differences(self, run_id: str, store: Path) -> list[tuple[str, str]]:
        """Return how it differs from a run that is on record."""
        return [(each.kind, each.said) for each in self.agent([]).replay(run_id, store=store).differences]


@tool
def put(number: int) -> str:
    """Put."""
    return f"put {number}"


@tool(name="put")
def put_a_part(number: float) -> str:
    """Put."""
    return f"put {number}"


PLAIN = Order((put,))


def test_a_changed_prompt_names_the_message(tmp_path: Path) -> None:
    run_id = PLAIN.recorded(tmp_path / "s")
    assert replace(PLAIN, instructions="Work well.").differences(run_id, tmp_path / "s") == [
        (
            "prompt",
            "message 1 of the prompt (system): '# Instructions Work well.' where the record has '# Instructions Work.'",
        )
    ]


def test_a_call_that_is_decoded_in_another_way_is_named(tmp_path: Path) -> None:
    run_id = PLAIN.recorded(tmp_path / "s")
    (tools, call) = replace(PLAIN, tools=(put_a_part,)).differences(run_id, tmp_path / "s")
    assert tools == ("tools", "the tools of the run changed: a description or a parameter of one of them")
    assert call == (
        "call",
        "the agent of today asks for put(number=2.0) where the record has put(number=2)",
    )
    gone = replace(PLAIN, tools=()).differences(run_id, tmp_path / "s")
    assert gone == [
        ("tools", "the tools of the run changed: put went"),
        ("call", "the agent of today asks for put(...), which is no tool where the record has put(number=2)"),
    ]


def test_an_answer_that_is_read_in_another_way_is_named(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Sum:
        total: int

    @dataclass(frozen=True)
    class Strict:
        total: int
        why: str

    Sum.__name__ = Strict.__name__ = "Sum"
    typed = Order(output=Sum)
    run_id = typed.recorded(tmp_path / "s", Say(Sum(3)))
    said = replace(typed, output=Strict).differences(run_id, tmp_path / "s")
    assert [kind for kind, _ in said] == ["answer type", "course"]
    assert "where the record has the end of the run" in said[1][1]


class Says(TaskCompletionChecker):
    """Gives one verdict."""

    def __init__(self, result: TaskCompletionResult, *, asks_model: bool = False) -> None:
        """Give this one."""
        self.result, self.asks_model = result, asks_model

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Give it."""
        return self.result


def test_a_verdict_is_computed_again_unless_that_needs_a_model(tmp_path: Path) -> None:
    checked = replace(PLAIN, checker=Says(TaskCompletionResult.ok("fine")))
    run_id = checked.recorded(tmp_path / "s")
    other = TaskCompletionResult.incomplete("no sum")
    assert replace(PLAIN, checker=Says(other)).differences(run_id, tmp_path / "s") == [
        ("verdict", "the checker's verdict is 'rejected (no sum)' where the record has 'verified (fine)'")
    ]
    replayed = replace(PLAIN, checker=Says(other, asks_model=True)).agent([]).replay(run_id, store=tmp_path / "s")
    assert replayed.ok
    assert replayed.left_out == ("the checker",)
    assert "not asked again: the checker" in replayed.sentence()


@dataclass
class Voice:
    """Says one thing after every call."""

    said: str = ""
    asks: bool = False
    name: str = "voice"

    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Speak if there is something to say."""
        return bool(self.said)

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment:
        """Say it."""
        if self.asks:
            context.adapter.evaluate(None)  # type: ignore[union-attr]
        return Assessment(self.name, self.said, severity="caution")


def heard(voice: Voice) -> Order:
    """Return the agent with an observer."""
    return replace(PLAIN, observers=(ObserverConfig(voice, ObserverTrigger(every_n_calls=1)),))


def test_advice_that_differs_is_a_difference_of_its_own_kind(tmp_path: Path) -> None:
    run_id = heard(Voice("slow down")).recorded(tmp_path / "s")
    assert heard(Voice("slow down")).differences(run_id, tmp_path / "s") == []
    assert heard(Voice("stop here")).differences(run_id, tmp_path / "s") == [
        ("advice", "voice says caution: stop here where the record has caution: slow down")
    ]
    assert heard(Voice()).differences(run_id, tmp_path / "s") == [
        ("advice", "voice says nothing where the record has caution: slow down")
    ]
    silent = heard(Voice()).recorded(tmp_path / "silent")
    assert heard(Voice()).differences(silent, tmp_path / "silent") == []
    assert heard(Voice("now")).differences(silent, tmp_path / "silent") == [
        ("advice", "voice says caution: now where the record has nothing")
    ]
    asking = heard(Voice("x", asks=True)).agent([]).replay(run_id, store=tmp_path / "s")
    assert (asking.ok, asking.left_out) == (True, ("voice",))


def test_a_source_that_is_asked_at_a_share_of_a_limit_is_not_asked_anew(tmp_path: Path) -> None:
    trigger = ObserverTrigger(at_limit_share=0.25)
    order = replace(PLAIN, observers=(ObserverConfig(Voice("half"), trigger),), limits=Limits(max_turns=8))
    run_id = order.recorded(tmp_path / "s", *[Call("put", {"number": each}) for each in range(4)], Say("41"))
    assert order.differences(run_id, tmp_path / "s") == []
    lines = (tmp_path / "s" / "runs" / f"{run_id}.jsonl").read_bytes().splitlines(keepends=True)
    RunStore(tmp_path / "other").close()
    (tmp_path / "other" / "runs" / f"{run_id}.jsonl").write_bytes(b"".join(lines[:-6]))
    result = order.agent([Say("41")] * 2).resume(run_id, store=tmp_path / "other")
    assert [len(each.runs) for each in events(result, ObserversRan)] == [1]


def test_a_run_that_a_limit_stopped_is_replayed_with_its_last_turn(tmp_path: Path) -> None:
    short = replace(PLAIN, limits=Limits(max_tool_calls=1))
    calls = Call("put", {"number": 1}), Call("put", {"number": 2}), Say("as far as I got")
    run_id = short.recorded(tmp_path / "s", *calls)
    replayed = short.agent([]).replay(run_id, store=tmp_path / "s")
    assert replayed.differences == ()
    assert replayed.compared == replayed.recorded


def test_a_run_that_went_on_under_other_limits_is_replayed_as_one(tmp_path: Path) -> None:
    calls = [Call("put", {"number": each}) for each in range(4)]
    short = replace(heard(Voice("slow down")), limits=Limits(max_turns=3, max_tool_calls=2))
    run_id = short.recorded(tmp_path / "s", *calls)
    longer = Limits(max_turns=9, max_tool_calls=5)
    result = short.agent([*calls[2:], Say("41")]).resume(run_id, store=tmp_path / "s", limits=longer)
    assert result.ok, result.sentence()
    replayed = short.agent([]).replay(run_id, store=tmp_path / "s")
    assert replayed.differences == ()
    assert replayed.compared == replayed.recorded


def test_a_changed_course_ends_the_replay(tmp_path: Path) -> None:
    run_id = PLAIN.recorded(tmp_path / "s")
    said = replace(PLAIN, checker=Says(TaskCompletionResult.ok("fine"))).differences(run_id, tmp_path / "s")
    assert said == [("course", "the agent of today has its answer checked where the record has the end of the run")]


def test_a_model_that_is_named_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = ScriptedModel([Say("41")], name="gpt-5-mini", provider="openai")
    run_id = str(replace(PLAIN.agent(), model=model).run("go", store=tmp_path / "s").run_id)
    assert replace(PLAIN.agent(), model="openai:gpt-5-mini").replay(run_id, store=tmp_path / "s").ok
    (other,) = replace(PLAIN.agent(), model="anthropic:x").replay(run_id, store=tmp_path / "s").differences
    assert (other.kind, other.said) == ("models", "the models of the run changed")


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    result = PLAIN.agent([Say("41")] * 2).run_many(["a", "b"], store=tmp_path / "s")
    with pytest.raises(ConfigurationError, match="is no run of one agent"):
        PLAIN.agent().replay(str(result.run_id), store=tmp_path / "s")
    with pytest.raises(ConfigurationError, match="there is no store"):
        PLAIN.agent().replay("feed", store=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'stoer'; did you mean 'store'"):
        PLAIN.agent().replay("feed", stoer=None)  # type: ignore[call-arg]


def test_a_difference_names_its_event() -> None:
    assert str(Difference(14, "call", "it differs")) == "event 14: it differs"
