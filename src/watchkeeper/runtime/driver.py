"""The one driver: executes the turn machine's commands until the run ends.

A whole run is the loop in `drive`: hand the machine a signal, execute its command, turn the result into the next
signal. Everything that costs or acts goes through the gate (`model_calls`, `tool_calls`); everything that happens is
recorded on the session's log. Nothing here decides what comes next: that is the machine's.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from watchkeeper.core.errors import OutputParseError, StoreError
from watchkeeper.core.messages import UserMessage
from watchkeeper.core.model import ModelReply
from watchkeeper.core.stop import Stop
from watchkeeper.core.transcript import Transcript
from watchkeeper.core.workers import run_in_worker
from watchkeeper.kernel.commands import AskModel, CheckDone, Command, End, Observe, ReadAnswer, RunTools
from watchkeeper.kernel.signals import Checked, Observed, Parsed, Replied, Signal, Started, Stopped, Unparsable
from watchkeeper.kernel.turn_machine import LoopRules, TurnMachine
from watchkeeper.prompt.completion import TaskCompletionChecker, TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.output import parse_output
from watchkeeper.runtime.bounded import RunOverError, within
from watchkeeper.runtime.events import CompletionChecked, NoticeAppended
from watchkeeper.runtime.failures import WorkStoppedError
from watchkeeper.runtime.model_calls import ModelCalls
from watchkeeper.runtime.oversight import Oversight
from watchkeeper.runtime.plan import RunHome, RunPlan
from watchkeeper.runtime.recorder import Recorder
from watchkeeper.runtime.tool_calls import ToolCalls


class Ending(msgspec.Struct, frozen=True):
    """How a run ended.

    Attributes:
        end: The machine's last command.
        turns: Model turns taken.
        error: The exception behind the stop, if there is one.
        answered_by: Which models answered, in the order of their first answers.
    """

    end: End
    turns: int
    error: BaseException | None
    answered_by: tuple[str, ...]


async def drive(plan: RunPlan[Any], home: RunHome, transcript: Transcript) -> Ending:
    """Run the loop to its end; the prompt's messages are in ``transcript`` already."""
    return await _Driver(plan, home, transcript).run()


class _Driver:
    """One run in progress."""

    def __init__(self, plan: RunPlan[Any], home: RunHome, transcript: Transcript) -> None:
        self.plan = plan
        self.home = home
        self.transcript = transcript
        self.recorder = Recorder(home.session, home.clock)
        self.models = ModelCalls(plan, home, self.recorder, transcript)
        self.tools = ToolCalls(plan, home, self.recorder)
        self.oversight = Oversight(plan, home, self.recorder, self.models.switch_to) if plan.sources else None
        limits = home.gate.limits
        rules = LoopRules(
            max_turns=limits.ceiling("max_turns"),
            lands=limits.landing is not None,
            lands_when_full=plan.on_context_full == "land",
            observes=self.oversight is not None,
            checks=plan.checker is not None,
        )
        self.machine = TurnMachine(rules, transcript)
        self.reply: ModelReply | None = None
        self.error: BaseException | None = None

    async def run(self) -> Ending:
        signal: Signal = Started()
        while True:
            command = self._step(signal)
            if isinstance(command, End):
                return Ending(command, self.machine.turns, self.error, self.models.line.answered_by)
            try:
                signal = await self._execute(command)
            except StoreError as error:  # the gate's ledger cannot be used, so nothing may run any more
                self.error = error
                signal = Stopped(Stop("error", "gate", str(error)))

    def _step(self, signal: Signal) -> Command:
        """Take one step of the machine, and record what it said to the model."""
        before = len(self.transcript)
        command = self.machine.handle(signal)
        if len(self.transcript) > before:
            for message in self.transcript.since(before):
                if isinstance(message, UserMessage):
                    self.recorder.record(NoticeAppended(message.text, self.home.clock.now()))
        return command

    async def _execute(self, command: Command) -> Signal:
        match command:
            case AskModel(landing=landing):
                return await self._ask(landing)
            case RunTools(calls=calls):
                return await self.tools.run(calls, self.reply.usage if self.reply else None)
            case Observe():
                return await self.oversight.look(self.machine.turns + 1) if self.oversight else Observed()
            case ReadAnswer(text=text):
                return self._read(text)
            case CheckDone(output=output):
                return await self._check(output)
            case End():
                raise RuntimeError("the end of a run is not a command to execute")

    async def _ask(self, landing: bool) -> Signal:
        try:
            self.reply = await self.models.ask(self.machine.turns + 1, landing=landing)
            return Replied(self.reply)
        except WorkStoppedError as stopped:
            self.error = self.error or stopped.error
            return Stopped(stopped.stop)

    def _read(self, text: str) -> Signal:
        if not self.plan.parse_output:
            return Parsed(None)
        try:
            return Parsed(parse_output(text, self.plan.prompt.output_type))
        except OutputParseError as error:
            self.error = error
            return Unparsable(error.message)

    async def _check(self, output: Any) -> Signal:
        """Ask the checker; what it raises leaves the work unverified, and is recorded."""
        checker = self.plan.checker
        if checker is None:
            raise RuntimeError("a check was asked for, but the run has no checker")
        stop = self.home.gate.stop or self.home.gate.work_stop
        if stop is not None:
            return Stopped(stop)
        context = TaskCompletionContext(
            session=self.home.session,
            tentative_output=output,
            stop_reason=self.reply.finish if self.reply else None,
            filesystem=self.home.filesystem.read_only_view() if self.home.filesystem else None,
            deadline=self.home.gate.work_deadline,
            run_context=self.home.run_context,
        )
        try:
            result = await within(self.home.gate, _verdict_of(checker, context), self.home.clock)
        except RunOverError:
            said = "The run was over before the completion checker had its say."
            return Stopped(self.home.gate.stop or Stop("timeout", "gate", said, "deadline"))
        except Exception as error:
            result = TaskCompletionResult.unverified(f"the checker failed: {type(error).__name__}: {error}")
        self.recorder.record(CompletionChecked(result.status, result.explanation, self.home.clock.now()))
        return Checked(result.status, result.explanation)


async def _verdict_of(checker: TaskCompletionChecker, context: TaskCompletionContext) -> TaskCompletionResult:
    """Ask a checker: an async one here, a sync one on a worker thread (it may return an awaitable all the same)."""
    is_async = inspect.iscoroutinefunction(checker.check)
    said: object = checker.check(context) if is_async else await run_in_worker(checker.check, context)
    return _checked(await said if inspect.isawaitable(said) else said)


def _checked(verdict: object) -> TaskCompletionResult:
    if not isinstance(verdict, TaskCompletionResult):
        raise TypeError(f"check() must return a TaskCompletionResult, not {verdict!r}")
    return verdict
