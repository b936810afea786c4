"""A bypass never looks like a pass: whatever keeps a checker from its verdict, the run says ``unverified``."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Call, Report, Say, ScriptedModel, agent, events, play
from watchkeeper.accounting.limits import Limits
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import PromptEvaluationError, Stop
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.judging.command_checker import CommandChecker
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.completion import (
    CompositeChecker,
    FileOutputChecker,
    PredicateChecker,
    TaskCompletionChecker,
    TaskCompletionContext,
    TaskCompletionResult,
)
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.events import CompletionChecked, RunEnded
from watchkeeper.runtime.result import RunResult
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import HostFilesystem, MemoryFilesystem
from watchkeeper.tools.tool import tool


class Answers:
    """A checker that gives one answer, or raises it."""

    def __init__(self, answer: Any, on_error: str = "open") -> None:
        self.answer = answer
        self.on_error = on_error

    async def check(self, context: TaskCompletionContext) -> Any:
        """Give it."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def yes(context: TaskCompletionContext) -> bool:
    """Agree to everything."""
    return True


FINE = PredicateChecker(yes, "all is well")


def refusing(on_error: str) -> PredicateChecker:
    """Return a checker that cannot tell."""

    def cannot_tell(_: TaskCompletionContext) -> TaskCompletionResult:
        return TaskCompletionResult.unverified("nobody knows")

    return PredicateChecker(cannot_tell, "it is known", on_error=on_error)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


BYPASSES: dict[str, tuple[Any, str]] = {
    "raises": (Answers(ValueError("oops")), "the checker failed: ValueError: oops"),
    "cancelled": (Answers(asyncio.CancelledError()), "it raised CancelledError, though nobody had cancelled it"),
    "true": (Answers(True), "check() must return a TaskCompletionResult, not True"),
    "none": (Answers(None), "check() must return a TaskCompletionResult, not None"),
    "text": (Answers("complete"), "check() must return a TaskCompletionResult, not 'complete'"),
    "no-filesystem": (FileOutputChecker(["report.md"]), "the run has no filesystem in which files could be looked for"),
    "bad-path": (FileOutputChecker(["../report.md"]), "the run has no filesystem"),
    "no-folder": (CommandChecker("true"), "the run has no folder of this machine"),
    "not-found": (CommandChecker("no-such-program", cwd="."), "'no-such-program' cannot be started"),
    "timed-out": (CommandChecker("sleep 600", cwd=".", timeout=0.2), "was not over within 200ms"),
    "killed": (CommandChecker(["sh", "-c", "kill -9 $$"], cwd="."), "ended from outside, by SIGKILL"),
    "all-with-an-unverified-part": (CompositeChecker([FINE, FileOutputChecker(["a"]), FINE]), "no filesystem"),
    "any-with-an-unverified-part": (CompositeChecker([FileOutputChecker(["a"]), Answers(None)], "any"), "not None"),
    "nested": (CompositeChecker([CompositeChecker([Answers(ValueError("oops"))], "any"), FINE]), "ValueError: oops"),
}


def judged(result: RunResult[Any]) -> tuple[str, list[str], str]:
    """Return the verdict wherever it stands: in the result, in the events of the checks, at the end of the run."""
    checked: list[str] = [event.verdict for event in events(result, CompletionChecked)]
    return result.completion, checked, events(result, RunEnded)[0].verdict


@pytest.mark.spec("NE-021", "FR-155")
@pytest.mark.parametrize("name", BYPASSES)
async def test_what_is_no_verdict_leaves_the_run_done_but_unverified_everywhere(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    checker, why = BYPASSES[name]
    options: dict[str, Any] = {"clock": SYSTEM_CLOCK} if name == "timed-out" else {}
    result = await play(agent(checker=checker), [Say(Report(1))], **options)
    assert result.output == Report(1)
    assert judged(result) == ("unverified", ["unverified"], "unverified")
    assert why in result.completion_note
    assert result.sentence().startswith("Done, but not verified: ")
    assert "completion='unverified'" in caplog.text


@pytest.mark.spec("NE-022")
@pytest.mark.parametrize("name", ["raises", "true", "cancelled"])
async def test_closed_unverified_work_is_a_stop_with_the_answer_in_partial(name: str) -> None:
    given, why = BYPASSES[name]
    result = await play(agent(checker=Answers(given.answer, "closed")), [Say(Report(1))])
    assert not result.ok
    assert (result.output, result.partial) == (None, Report(1))
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("unverified", "checker")
    assert why in result.stop.message
    assert why in result.completion_note
    assert judged(result) == ("unverified", ["unverified"], "unverified")
    assert result.sentence().startswith("Nobody could verify the work: ")
    assert "it had a partial Report to hand over (1 turn" in result.sentence()


@pytest.mark.spec("NE-022")
@pytest.mark.parametrize(
    "checker",
    [
        FileOutputChecker(["report.md"], on_error="closed"),
        CommandChecker("no-such-program", cwd=".", on_error="closed"),
        refusing("closed"),
        CompositeChecker([FINE, refusing("closed")]),
        CompositeChecker([PredicateChecker(yes, "fine", on_error="closed"), Answers(None)]),
    ],
    ids=["files", "command", "predicate", "composite", "composite-of-another-closed-part"],
)
async def test_every_checker_may_be_closed(checker: TaskCompletionChecker) -> None:
    result = await play(agent(checker=checker), [Say(Report(1))])
    assert result.stop is not None
    assert (result.stop.reason, result.completion) == ("unverified", "unverified")


async def test_closed_lets_a_verified_answer_through_and_sends_a_rejected_one_back() -> None:
    checker = PredicateChecker(lambda given: given.tentative_output == Report(2), "the total is 2", on_error="closed")
    result = await play(agent(checker=checker), [Say(Report(1)), Say(Report(2))])
    assert judged(result) == ("verified", ["rejected", "verified"], "verified")
    assert result.output == Report(2)


@pytest.mark.spec("FR-155")
@pytest.mark.parametrize(
    ("checker", "completion", "note"),
    [
        (FINE, "verified", "all is well"),
        (refusing("open"), "unverified", "nobody knows"),
        (None, "unchecked", ""),
    ],
    ids=["fine", "cannot-tell", "none"],
)
async def test_what_evaluate_returns_says_it_too(
    checker: TaskCompletionChecker | None, completion: str, note: str
) -> None:
    response = await Adapter(ScriptedModel([Say(Report(1))])).evaluate_async(Prompt(agent(checker=checker)))
    assert (response.output, response.completion, response.completion_note) == (Report(1), completion, note)


async def test_evaluate_raises_where_nobody_could_verify_and_the_checker_is_closed() -> None:
    adapter = Adapter(ScriptedModel([Say(Report(1))]))
    with pytest.raises(PromptEvaluationError, match="Nobody could verify the work: nobody knows") as caught:
        await adapter.evaluate_async(Prompt(agent(checker=refusing("closed"))))
    assert caught.value.stop is not None
    assert caught.value.stop.reason == "unverified"


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-156")
async def test_a_deadline_during_the_check_leaves_the_answer_unverified() -> None:
    clock = TestClock()

    class Hangs:
        async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            await clock.sleep(86_400)
            return TaskCompletionResult.ok()

    result = await play(agent(checker=Hangs()), [Say(Report(7))], Limits(deadline="1h"), clock=clock)
    assert result.stop is not None
    assert (result.stop.reason, result.partial) == ("timeout", Report(7))
    assert judged(result) == ("unverified", ["unverified"], "unverified")
    assert result.completion_note.startswith("the run ended before the answer was checked: ")
    assert "to hand over, which was not verified (" in result.sentence()


async def test_a_command_that_the_deadline_ends_is_dead_when_the_run_is_over(tmp_path: Path) -> None:
    clock = TestClock()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    checker = CommandChecker(["sh", "-c", f"exec 3>{fifo}; echo begun >&3; sleep 600"])
    files = HostFilesystem(tmp_path)
    running = asyncio.ensure_future(
        play(agent(checker=checker), [Say(Report(7))], Limits(deadline="1h"), clock=clock, filesystem=files)
    )
    await asyncio.to_thread(until_begun, descriptor)
    clock.advance(3600.0)
    result = await running
    assert os.read(descriptor, 1) == b""  # nobody holds the other end any more
    os.close(descriptor)
    assert result.stop is not None
    assert (result.stop.reason, result.completion) == ("timeout", "unverified")


def until_begun(descriptor: int) -> None:
    """Wait until something came through the pipe, and read all of it."""
    import select

    select.select([descriptor], [], [], 60)
    os.set_blocking(descriptor, True)
    assert os.read(descriptor, 6) == b"begun\n"


class Ends(ScriptedModel):
    """A model during whose last words something ends the work."""

    def __init__(self, stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__([Say(Report(1))])
        self.stop = stop
        self.gates: list[ExecutionContext] = []
        before = ExecutionContext.acall

        async def acall(gate: ExecutionContext, *given: Any, **options: Any) -> Any:
            self.gates.append(gate)
            return await before(gate, *given, **options)

        monkeypatch.setattr(ExecutionContext, "acall", acall)

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Answer, but not before the end has come."""
        self.gates[-1].land(self.stop)
        return await super().turn(request)


async def test_an_interrupted_run_does_not_wait_for_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Asked:
        async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            asked.append("asked")
            return TaskCompletionResult.ok()

    stop = Stop("interrupted", "caller", "The run was interrupted.")
    result = await play(agent(checker=Asked()), Ends(stop, monkeypatch))
    assert asked == []
    assert (result.stop, result.partial) == (stop, Report(1))
    assert judged(result) == ("unverified", ["unverified"], "unverified")


async def test_a_ceiling_that_is_reached_with_the_last_answer_does_not_undo_work_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Stop("token_limit_exceeded", "gate", "All items together reached 500 tokens.", "max_total_tokens", "500")
    result = await play(agent(checker=FINE), Ends(stop, monkeypatch))
    assert result.output == Report(1)
    assert judged(result) == ("verified", ["verified"], "verified")


@pytest.mark.spec("FR-156")
async def test_a_limit_before_any_answer_leaves_the_work_unchecked() -> None:
    @tool
    def look(*, context: ToolContext) -> str:
        """Look."""
        return "seen"

    result = await play(agent(look, checker=FINE), [Call("look"), Say(Report(1))], Limits(max_turns=2))
    assert result.stop is not None
    assert result.stop.reason == "turn_limit_exceeded"
    assert judged(result) == ("unchecked", [], "unchecked")


@pytest.mark.spec("FR-156")
async def test_a_limit_after_a_rejection_leaves_the_rejection_as_the_last_word() -> None:
    checker = PredicateChecker(lambda _: False, "never good enough")
    result = await play(agent(checker=checker), [Say(Report(1)), Say(Report(2))], Limits(max_turns=2))
    assert result.stop is not None
    assert (result.stop.reason, result.partial) == ("turn_limit_exceeded", Report(2))
    assert judged(result) == ("rejected", ["rejected"], "rejected")
    assert "to hand over, after an answer that was rejected (" in result.sentence()


async def test_a_checker_that_ignores_its_cancellation_does_not_hold_the_run_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("watchkeeper.loop.driver.SETTLE_SECONDS", 0.01)
    clock, release = TestClock(), asyncio.Event()

    class Stubborn:
        async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            try:
                await clock.sleep(86_400)
            except asyncio.CancelledError:
                await release.wait()
            return TaskCompletionResult.ok("far too late")

    result = await play(agent(checker=Stubborn()), [Say(Report(7))], Limits(deadline="1h"), clock=clock)
    release.set()
    assert judged(result) == ("unverified", ["unverified"], "unverified")


# --- files and commands, in a run -------------------------------------------------------------------------------------


@pytest.mark.spec("FR-158")
async def test_a_command_sends_the_agent_back_with_its_output_until_it_succeeds(tmp_path: Path) -> None:
    @tool
    def write(path: str, text: str, *, context: ToolContext) -> str:
        """Write a file."""
        assert context.filesystem is not None
        context.filesystem.write_text(path, text)
        return "written"

    checker = CompositeChecker(
        [FileOutputChecker(["sum.py"]), CommandChecker("python3 -B -c 'import sum; assert sum.TOTAL == 3, sum.TOTAL'")]
    )
    model = ScriptedModel(
        [
            Say(Report(3)),
            Call("write", {"path": "sum.py", "text": "TOTAL = 4"}),
            Say(Report(3)),
            Call("write", {"path": "sum.py", "text": "TOTAL = 3"}),
            Say(Report(3)),
        ]
    )
    result = await play(agent(write, checker=checker), model, filesystem=HostFilesystem(tmp_path))
    assert judged(result) == ("verified", ["rejected", "rejected", "verified"], "verified")
    told = [message.text for message in model.requests[-1].transcript if message.role == "user"]
    assert "these files are expected: missing: sum.py" in told[1]
    assert "ended with exit code 1. Its output ended with:" in told[2]
    assert "AssertionError: 4" in told[2]


async def test_files_in_memory_can_be_looked_for() -> None:
    files = MemoryFilesystem({"report.md": "text"})
    result = await play(agent(checker=FileOutputChecker(["report.md"])), [Say(Report(1))], filesystem=files)
    assert (result.completion, result.completion_note) == ("verified", "the file is there")
