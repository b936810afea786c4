"""Forking: a new run goes on from every event of another one, and leaves that one as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app import test_parking as parking
from tests.app import test_resume_below as below
from tests.app.test_resume import HOUR, ROUNDS, Sent, World
from tests.app.written import written
from tests.kit import events
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.runtime.events import ChildStarted, RunStarted
from watchkeeper.runtime.parking import CallAnswered, CallParked
from watchkeeper.runtime.result import RunResult
from watchkeeper.store.answers import pending
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult[str]]:
    """Return the store of a run that is done, and how it ended."""
    store = tmp_path_factory.mktemp("whole") / "store"
    return store, World().agent().run("go", store=store)


def test_a_new_run_goes_on_from_every_event(whole: tuple[Path, RunResult[str]], tmp_path: Path) -> None:
    store, first = whole
    before = (store / "runs" / f"{first.run_id}.jsonl").read_bytes()
    log = list(first.session.log)
    began = next(each.seq for each in log if type(each.event).__name__ == "RunOpened")
    for at in range(began, len(log) - 1):
        world = World()
        result = world.agent().fork(str(first.run_id), at=at, store=store)
        assert result.output == first.output, (at, result.sentence())
        assert result.run_id != first.run_id
        assert [each.number for each in events(result, Sent)] == list(range(ROUNDS))
        done = [each for each in log[:at] if isinstance(each.event, ToolInvoked)]
        assert result.usage.tool_calls == len(events(first, ToolInvoked)) - len(done)
        started = events(result, RunStarted)[-1]
        assert started.forked_from == first.run_id
        assert started.forked_at in (at, at - 1)
    assert (store / "runs" / f"{first.run_id}.jsonl").read_bytes() == before


def test_a_fork_has_limits_of_its_own(whole: tuple[Path, RunResult[str]]) -> None:
    store, first = whole
    at = next(each.seq for each in first.session.log if isinstance(each.event, ToolInvoked))
    result = World().agent().fork(str(first.run_id), at=at, store=store, limits=Limits(max_tool_calls=2))
    assert result.stop is not None
    assert result.limits.max_tool_calls == 2
    assert World().agent().fork(str(first.run_id), at=at, store=store).limits.max_turns == HOUR.max_turns
    late = len(first.session.log) - 8
    few = World().agent().fork(str(first.run_id), at=late, store=store, limits=Limits(max_turns=6))
    assert few.ok, few.sentence()
    assert 0 < few.turns == few.usage.model_calls < first.turns
    assert World().agent().replay(str(few.run_id), store=store).ok


def test_a_fork_that_was_interrupted_is_resumed(whole: tuple[Path, RunResult[str]], tmp_path: Path) -> None:
    store, first = whole
    at = [each.seq for each in first.session.log if isinstance(each.event, ToolInvoked)][5]
    forked = World().agent().fork(str(first.run_id), at=at, store=store)
    lines = (store / "runs" / f"{forked.run_id}.jsonl").read_bytes().splitlines(keepends=True)
    opened = max(place for place, line in enumerate(lines) if b'"tag":"run_opened"' in line) + 1
    for count in range(opened, len(lines), 5):
        other = tmp_path / str(count)
        RunStore(other).close()
        (other / "runs" / f"{forked.run_id}.jsonl").write_bytes(b"".join(lines[:count]))
        result = World().agent().resume(str(forked.run_id), store=other)
        assert result.output == first.output, result.sentence()
        own = result.usage.tokens.total - result.usage.presumed.tokens.total
        assert own == forked.usage.tokens.total


def test_a_fork_that_was_interrupted_begins_subagents_of_its_own(tmp_path: Path) -> None:
    world, store = below.World(), tmp_path / "store"
    with written() as lines:
        first = world.agent().run("go", store=store, **world.options())
        begun = (each for each in first.session.log if isinstance(each.event, ChildStarted))
        at = next(each.seq for each in begun if each.event.kind == "subagent")
        forked = world.agent().fork(str(first.run_id), at=at, store=store, **world.options())
    run_id = str(forked.run_id)
    opened = [name == f"{run_id}.jsonl" and b'"tag":"run_opened"' in line for name, line in lines.lines]
    cut = lines.cut(len(opened) - opened[::-1].index(True), tmp_path / "cut")
    result = below.World().agent().resume(run_id, store=cut, **world.options())
    assert result.output == forked.output
    with RunStore(store, read_only=True) as undisturbed, RunStore(cut, read_only=True) as resumed:
        assert len(resumed.children(run_id)) == len(undisturbed.children(run_id)) > 1


def test_an_event_from_which_nothing_goes_on_is_refused(whole: tuple[Path, RunResult[str]]) -> None:
    store, first = whole
    agent, last = World().agent(), len(first.session.log)
    with pytest.raises(ConfigurationError, match=f"cannot be forked at event {last + 1}; its events are "):
        agent.fork(str(first.run_id), at=last + 1, store=store)
    with pytest.raises(ConfigurationError, match="cannot be forked at event 1; its events are "):
        agent.fork(str(first.run_id), at=1, store=store)
    with pytest.raises(ConfigurationError, match="is done"):
        agent.fork(str(first.run_id), at=last, store=store)
    with pytest.raises(TypeError, match="fresh_limits"):
        agent.fork(str(first.run_id), at=last - 2, store=store, fresh_limits=True)  # type: ignore[call-arg]
    with pytest.raises(StoreError, match="no run whose id begins with"):
        agent.fork("feed", at=last, store=store)


@pytest.mark.parametrize("of", [CallParked, CallAnswered])
def test_what_a_person_was_asked_and_has_answered_is_not_about_the_call_of_a_fork(
    of: type[CallParked | CallAnswered], tmp_path: Path
) -> None:
    world, store = parking.World(), tmp_path / "store"
    agent = world.agent()
    run_id = str(agent.run("go", store=store, on_ask="park").run_id)
    parking.say(store, run_id)
    first = agent.resume(run_id, store=store)
    assert world.sent == [1]
    world.sent.clear()
    at = next(each.seq for each in first.session.log if isinstance(each.event, of))
    forked = agent.fork(run_id, at=at, store=store)
    assert [each.call_id for each in forked.waiting] == ["call-2"]
    with RunStore(store) as opened:
        assert str(forked.run_id) in {each.run.run_id for each in pending(opened)}
    parking.say(store, forked.run_id)
    again = agent.resume(str(forked.run_id), store=store)
    assert world.sent == [1]
    for each in again.waiting:
        parking.say(store, forked.run_id, each.call_id, allowed=False)
    done = agent.resume(str(forked.run_id), store=store)
    assert (done.ok, done.denied) == (True, 2)
    last = max(each.seq for each in done.session.log if isinstance(each.event, ToolInvoked))
    assert agent.fork(str(done.run_id), at=last, store=store).denied == 0, "only its own denials count"
