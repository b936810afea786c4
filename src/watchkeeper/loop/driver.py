"""The one driver: executes the turn machine's commands until the run ends.

A whole run is the loop in `drive`: hand the machine a signal, execute its command, turn the result into the next
signal. Every model call and tool call goes through the gate (`model_calls`, `tool_calls`); everything that happens is
recorded on the session's log. Only the machine decides what comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from watchkeeper.children.child import Children, Execute, Family
from watchkeeper.children.nested_adapter import RunAdapter
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.codec import CodecError, OversizedValueError
from watchkeeper.core.errors import OutputParseError, Stop, StoreError
from watchkeeper.core.messages import Transcript
from watchkeeper.core.model import ModelReply
from watchkeeper.kernel.turn_machine import (
    AskModel,
    CheckDone,
    Checked,
    Command,
    Compact,
    Compacted,
    End,
    Observe,
    Observed,
    Parsed,
    ReadAnswer,
    Replied,
    RunTools,
    Signal,
    Started,
    Stopped,
    Unparsable,
)
from watchkeeper.kernel.turn_machine import LoopRules, TurnMachine, not_checked
from watchkeeper.asking.compaction import Compaction
from watchkeeper.asking.model_calls import ModelCalls
from watchkeeper.loop.resume import Recorded
from watchkeeper.asking.retry import WorkStoppedError
from watchkeeper.loop.tool_calls import ToolCalls
from watchkeeper.oversight.engine import Oversight
from watchkeeper.prompt.completion import (
    TaskCompletionContext,
    TaskCompletionResult,
    asks_model,
    on_error_of,
    verdict_of,
)
from watchkeeper.prompt.evaluation import NESTED
from watchkeeper.prompt.output import parse_output
from watchkeeper.runtime.events import CompletionChecked, NoticeAppended, WorkStopped
from watchkeeper.runtime.parking import NOT_BEGUN
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.runtime.user_code import RunOverError, StrayCancellationError, within
from watchkeeper.session.tagging import check
from watchkeeper.tools.values import MOST_RESULT_LEVELS

SETTLE_SECONDS: Final = 3.0
"""How long a run waits for a checker that it has cancelled; in real time, because it may do real work."""


class Ending(msgspec.Struct, frozen=True):
    """How a run ended.

    Attributes:
        end: The machine's last command.
        turns: Model turns taken.
        error: The exception behind the stop, if there is one.
        answered_by: Which models answered, in the order of their first answers.
        denied: Tool calls that a hook or a person has denied.
    """

    end: End
    turns: int
    error: BaseException | None
    answered_by: tuple[str, ...]
    denied: int = 0


Drive = Callable[[RunPlan[Any], RunScope, Transcript, Execute, Recorded | None], Awaitable[Ending]]
"""The function that takes a run from its first messages to its end; `drive` is the loop's."""


async def drive(
    plan: RunPlan[Any], scope: RunScope, transcript: Transcript, execute: Execute, recorded: Recorded | None = None
) -> Ending:
    """Run the loop to its end.

    Args:
        plan: The inputs of the run.
        scope: Session, gate, clock and files of the run.
        transcript: The conversation; it ends with the prompt.
        execute: How its children run.
        recorded: What an earlier process has put on record of this run: it is not done again.
    """
    kept = scope.gate.keep_verdict() if asks_model(plan.checker) else None
    driver = _Driver(plan, scope, transcript, execute, kept)
    if recorded is not None:
        driver.recorded, driver.again, driver.machine.turns = recorded, True, -recorded.earlier_turns
        driver.children.begun = recorded.child
    try:
        with driver.children.attached():
            return await driver.run()
    finally:
        if kept is not None:
            kept.close()


class _Driver:
    """One run in progress."""

    def __init__(
        self,
        plan: RunPlan[Any],
        scope: RunScope,
        transcript: Transcript,
        execute: Execute,
        verdict_gate: ExecutionContext | None,
    ) -> None:
        self.plan = plan
        self.scope = scope
        self.models = ModelCalls(plan, scope, transcript)
        self.tools = ToolCalls(plan, scope)
        family = Family(
            scope=scope,
            model=self.models.line.model_in_use,
            fallback=plan.fallback,
            cheaper=plan.cheaper,
            tools=plan.prompt.tools,
            models=plan.child_models,
            nested=plan.nested or NESTED,
            verdict_gate=verdict_gate,
            on_context_full=plan.on_context_full,
        )
        self.children = Children(family, execute)
        self.oversight = self.compaction = None
        if plan.sources:
            self.oversight = Oversight(plan, scope, self.models.switch_to, self.children)
        if plan.on_context_full == "compact":
            self.compaction = Compaction(scope, self.models, transcript, self.children)
        limits = scope.gate.limits
        rules = LoopRules(
            max_turns=limits.ceiling("max_turns"),
            lands=limits.landing is not None,
            lands_when_full=plan.on_context_full != "stop",
            compacts=self.compaction is not None,
            observes=self.oversight is not None,
            checks=plan.checker is not None,
            completion_rounds=plan.completion_rounds,
            closed=on_error_of(plan.checker) == "closed",
        )
        self.machine = TurnMachine(rules, transcript)
        self.reply: ModelReply | None = None
        self.error: BaseException | None = None
        self.recorded: Recorded | None = None
        self.again = False

    async def run(self) -> Ending:
        signal: Signal = Started()
        while True:
            command = self.machine.handle(signal)
            for text in self.machine.notices:
                if self.recorded is None or not self.recorded.has_notice(text):
                    self.scope.record(NoticeAppended(text, self.scope.clock.now()))
            if isinstance(command, End):
                denied = self.tools.denied + (0 if self.recorded is None else self.recorded.denied)
                return Ending(command, self.machine.turns, self.error, self.models.line.answered_by, denied)
            answer = None if self.recorded is None else self._recall(command, self.recorded)
            signal = answer or await self._live(command)

    async def _live(self, command: Command) -> Signal:
        """Execute a command; if that was stopped, record why."""
        step = self.machine.state.value
        replayed = None if self.recorded is None else await self.recorded.instead(command)
        if replayed is not None:
            return replayed
        try:
            signal = await self._execute(command)
        except StoreError as error:  # the gate's ledger cannot be used, so nothing may run any more
            self.error = error
            signal = Stopped(Stop("error", "gate", str(error)))
        stop = getattr(signal, "stop", None)
        if stop is not None:
            text = signal.text if isinstance(signal, Stopped) else ""
            self.scope.record(WorkStopped(step, stop, text, self.scope.clock.now()))
        return signal

    def _recall(self, command: Command, recorded: Recorded) -> Signal | None:
        """Return what the record says about a command; None if it is to be executed now."""
        signal = self._read(command.text) if isinstance(command, ReadAnswer) else recorded.answer(command)
        if isinstance(signal, Replied):
            self.reply = signal.reply
            self.models.recall(signal.reply, recorded.switched_to)
        elif isinstance(command, AskModel):
            self.models.failed = recorded.failed
            if recorded.switched_to is not None:
                self.models.line.recall_switch(recorded.switched_to)
        elif isinstance(signal, Compacted) and self.compaction is not None:
            self.compaction.recall()
        return signal

    async def _execute(self, command: Command) -> Signal:
        match command:
            case AskModel(landing=landing):
                return await self._ask(landing)
            case Compact(stop=stop):
                return await self.compaction.compact(stop, self.machine.turns) if self.compaction else Stopped(stop)
            case RunTools(calls=calls):
                earlier = NOT_BEGUN if self.recorded is None else self.recorded.earlier(calls)
                usage = self.reply.usage if self.reply else None
                return await self.tools.run(calls, usage, self.machine.turns, earlier)
            case Observe():
                again, self.again = self.again, False
                return await self.oversight.look(self.machine.turns + 1, again=again) if self.oversight else Observed()
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
            return Stopped(stopped.stop, stopped.text)

    def _read(self, text: str) -> Signal:
        if not self.plan.parse_output:
            return Parsed(None)
        try:
            output = parse_output(text, self.plan.prompt.output_type)
            _check_size(output, text)
        except OutputParseError as error:
            self.error = error
            return Unparsable(error.message)
        return Parsed(output)

    async def _check(self, output: Any) -> Signal:
        """Ask the checker; if it cannot give a verdict, the work is unverified and the reason is recorded.

        The answer is checked even if the work has reached a ceiling.
        """
        checker = self.plan.checker
        if checker is None:
            raise RuntimeError("a check was asked for, but the run has no checker")
        gate = self.children.family.verdict_gate or self.scope.gate
        over = self.scope.gate.work_stop
        stop = gate.stop or (over if over is not None and over.reason == "interrupted" else None)
        if stop is not None:  # a person who interrupts the work need not wait for a verdict
            return self._not_checked(stop)
        context = TaskCompletionContext(
            session=self.scope.session,
            tentative_output=output,
            stop_reason=self.reply.finish if self.reply else None,
            filesystem=self.scope.filesystem.read_only_view() if self.scope.filesystem else None,
            deadline=gate.work_deadline,
            run_context=self.scope.run_context,
            adapter=RunAdapter(self.children, "verdict"),
            task="\n\n".join(message.text for message in self.plan.prompt.messages),
            nested=self.children.family.nested,
        )
        self.children.at_the_end = True
        asking = asyncio.ensure_future(verdict_of(checker, context))
        try:
            result = await within(gate, asking, self.scope.clock)
        except RunOverError:
            await asyncio.wait({asking}, timeout=SETTLE_SECONDS)
            said = "The run was over before the completion checker had its say."
            return self._not_checked(gate.stop or Stop("timeout", "gate", said, "deadline"))
        except StrayCancellationError as error:
            result = TaskCompletionResult.unverified(f"the checker failed: {error}")
        finally:
            self.children.at_the_end = False
        if gate.stop is not None and gate.stop.reason == "aborted" and result.status == "unverified":
            return self._not_checked(gate.stop)  # an aborted run must not end as completed
        self.scope.record(CompletionChecked(result.verdict, result.explanation, self.scope.clock.now()))
        return Checked(result.status, result.explanation)

    def _not_checked(self, stop: Stop) -> Stopped:
        """Record that there is an answer but no verdict on it."""
        self.scope.record(CompletionChecked("unverified", not_checked(stop), self.scope.clock.now()))
        return Stopped(stop)


def _check_size(output: object, text: str) -> None:
    """Refuse an answer that the log could not keep because of what the model wrote.

    A value that cannot be written because of its type, whatever the model answers, is not the answer's fault.
    """
    try:
        check(output, deepest=MOST_RESULT_LEVELS)
    except OversizedValueError as error:
        raise OutputParseError(f"The answer does not fit: {error}.", raw=text) from None
    except CodecError:
        return
