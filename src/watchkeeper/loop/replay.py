"""Replaying a run: the code of today against the answers that are on record, and where the two differ.

The driver of a run works as ever, but nothing runs live: no model is asked, no tool is called, nothing is recorded.
What the code decides by itself is decided again and compared with the record: the prompt, the tools on offer, how
arguments are decoded, how the answer is read, what the agent is told, the verdict of a checker and the advice of
observers that ask no model and look at no file. A difference after which the record no longer tells what follows ends
the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final, Literal, NoReturn, cast
from uuid import UUID

import msgspec

from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.children.child import Children
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline, SystemClock
from watchkeeper.core.codec import CodecError, display
from watchkeeper.core.errors import ConfigurationError, ToolValidationError
from watchkeeper.core.ids import SYSTEM_IDS
from watchkeeper.core.messages import Message, ToolCall
from watchkeeper.core.model import STATES
from watchkeeper.core.quantities import counted
from watchkeeper.core.text import one_line
from watchkeeper.kernel.turn_machine import (
    AskModel,
    CheckDone,
    Command,
    Compact,
    End,
    Observe,
    Replied,
    RunTools,
    Signal,
)
from watchkeeper.loop.driver import drive
from watchkeeper.loop.resume import STEPS, Recorded, digests_of
from watchkeeper.loop.used import spent_of
from watchkeeper.oversight.engine import Oversight
from watchkeeper.prompt.advice import Advice
from watchkeeper.prompt.completion import TaskCompletionContext, asked_models, asks_model, verdict_of
from watchkeeper.prompt.evaluation import NESTED, PromptRendered
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.events import (
    CompletionChecked,
    ContextCompacted,
    ModelReplied,
    NoticeAppended,
    RunEnded,
    RunResumed,
    RunStarted,
    WorkStopped,
)
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.runtime.result import NOTHING_USED
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import dump
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import Tool

Kind = (
    Literal["prompt", "tools", "answer type", "models", "call", "message"]
    | Literal["answer", "verdict", "advice", "course", "record"]
)

EXPECTED: Final[dict[type[Any], tuple[type[Any], ...]]] = {
    AskModel: (ModelReplied, WorkStopped),
    RunTools: (ToolInvoked, WorkStopped),
    CheckDone: (CompletionChecked, WorkStopped),
    Compact: (ContextCompacted, WorkStopped),
    Observe: (ObserversRan, WorkStopped, ModelReplied, NoticeAppended, RunEnded),
}
"""What the record may have where the loop has a command; observers that had nothing to say leave no event."""

SHOWN: Final = 60
"""Characters that are shown of a longer text, around the place where it differs."""


class Difference(msgspec.Struct, frozen=True):
    """Where the code of today does something else than the record has.

    Attributes:
        seq: Number of the event on record.
        kind: ``prompt``, ``tools``, ``answer type`` or ``models`` for what the run is made of; ``call`` for how a tool
            is called, ``message`` for what the agent is told, ``verdict``, ``advice``, ``answer`` for how it ends;
            ``course`` if something else is done, ``record`` if the event cannot be read by the code of today.
        said: What differs, in a sentence.
    """

    seq: int
    kind: Kind
    said: str

    def __str__(self) -> str:
        return f"event {self.seq}: {self.said}"


class Replayed(msgspec.Struct, frozen=True):
    """What a replay has shown.

    Attributes:
        run_id: Id of the run.
        differences: Where the code of today differs from the record, in order.
        compared: Number of the last event on record that was reached.
        recorded: Number of the last event on record.
        left_out: Names of the checker, observers and feedback providers that were not asked again.
    """

    run_id: UUID
    differences: tuple[Difference, ...]
    compared: int
    recorded: int
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def sentence(self) -> str:
        """Say in one sentence what the replay has shown."""
        found = counted(len(self.differences), "difference") if self.differences else "No difference"
        said = f"{found} up to event {self.compared:,} of {self.recorded:,}"
        if self.left_out:
            said += f"; not asked again: {', '.join(self.left_out)}"
        return f"{said}."


class RecordOverError(Exception):
    """The record has no answer to what the loop does next."""


class Replay(Recorded):
    """The answers of a run that is on record, each compared with what the code of today does.

    Attributes:
        differences: Where they differ.
        until: Number of the last event that was reached.
        left_out: Who was not asked again.
    """

    def __init__(self, log: Sequence[Envelope], prepare: Callable[[Session], object] | None = None) -> None:
        """Read the log of the session, without beginnings of calls; ``prepare`` registers its reducers."""
        super().__init__(log, whole=True)
        self.differences: list[Difference] = []
        self.left_out: dict[str, None] = {}
        self.until = 0
        self._whole_log = log
        self._prepare = prepare
        marks = (*STEPS, NoticeAppended, RunEnded)
        self._marks = [each for each in self.log if isinstance(each.event, marks)]
        self._mark = self._turns = self._replied = 0
        self._finish: Any = None
        self._plan: RunPlan[Any] | None = None
        self._tools: dict[str, Tool] = {}

    # --- what the run is made of --------------------------------------------------------------------------------------

    def compare_plan(self, plan: RunPlan[Any]) -> None:
        """Compare what the run is made of."""
        self._plan, self._tools = plan, {tool.name: tool for tool in plan.prompt.tools}
        rendered = next((each for each in self.log if isinstance(each.event, PromptRendered)), None)
        if rendered is not None:
            self._compare_messages(rendered.seq, plan.prompt.messages, rendered.event.messages)
        seq = next(each.seq for each in self.log if each.event is self.opened)
        before, now = self.opened.digests, digests_of(plan)
        for name, kind in (("output", "answer type"), ("models", "models")):
            if before.get(name, now[name]) != now[name]:
                self._differs(seq, cast("Kind", kind), f"the {kind} of the run changed")
        if before.get("tools", now["tools"]) != now["tools"]:
            names = rendered.event.tool_names if rendered is not None else ()
            self._differs(seq, "tools", tools_in_words(names, tuple(self._tools)))

    def has_messages(self, messages: Sequence[Message]) -> bool:
        """Whether the prompt on record has these messages."""
        return any(isinstance(each.event, PromptRendered) and each.event.messages == messages for each in self.log)

    def _compare_messages(self, seq: int, today: Sequence[Message], record: Sequence[Message]) -> None:
        if len(today) != len(record):
            said = f"the prompt of today has {counted(len(today), 'message')} where the record has {len(record)}"
            self._differs(seq, "prompt", said)
        for number, (ours, theirs) in enumerate(zip(today, record, strict=False), 1):
            texts = (ours.text, theirs.text)
            if ours != theirs:
                shown = "its images differ" if texts[0] == texts[1] else differing(*texts)
                self._differs(seq, "prompt", f"message {number} of the prompt ({ours.role}): {shown}")

    def _differs(self, seq: int, kind: Kind, said: str) -> None:
        self.differences.append(Difference(seq, kind, said))

    # --- the course ---------------------------------------------------------------------------------------------------

    @property
    def _next_mark(self) -> Envelope | None:
        """The next event on record of those that are compared."""
        while self._mark < len(self._marks) and self._marks[self._mark].seq <= self.until:
            self._mark += 1
        return self._marks[self._mark] if self._mark < len(self._marks) else None

    def _expected(self) -> Envelope:
        """Return the next event on record.

        Raises:
            RecordOverError: If the record ends here, also because the run was broken off.
        """
        mark = self._next_mark
        if mark is None or (isinstance(mark.event, RunEnded) and mark.event.turns is None):
            raise RecordOverError
        return mark

    def _diverges(self, mark: Envelope, today: str) -> NoReturn:
        self._differs(mark.seq, "course", f"the agent of today {today} where the record has {on_record(mark.event)}")
        self.until = mark.seq
        raise RecordOverError

    def has_notice(self, text: str) -> bool:
        """Compare what the agent is told."""
        mark = self._expected()
        if not isinstance(mark.event, NoticeAppended):
            self._diverges(mark, f"is told {clip(text)}")
        if mark.event.text != text:
            self._differs(mark.seq, "message", f"the agent is told: {differing(text, mark.event.text)}")
        self.until = mark.seq
        return True

    def answer(self, command: Command) -> Signal | None:
        """Return what the log says about a command of the loop; None if it is computed again first: see `instead`."""
        mark = self._expected()
        event, today = mark.event, in_words(command)
        if not isinstance(event, EXPECTED[type(command)]):
            self._diverges(mark, today)
        if isinstance(command, AskModel) and isinstance(event, ModelReplied) and event.landing != command.landing:
            self._diverges(mark, today)
        if isinstance(command, CheckDone | Observe):
            return None
        if isinstance(command, RunTools):
            self._compare_calls(command.calls)
        return self._recorded(command)

    def _recorded(self, command: Command) -> Signal:
        signal = super().answer(command)
        if signal is None:
            raise RecordOverError
        self.until = max(self.until, self._numbers[self._place - 1] if self._place else 0)
        if isinstance(signal, Replied):
            self._turns += 1
            self._finish, self._replied = signal.reply.finish, self.until
        return signal

    def _compare_calls(self, calls: Sequence[ToolCall]) -> None:
        """Compare how tools are called: the last attempt at each call."""
        done = {
            each.event.call_id: each
            for each in self._marks[self._mark :]
            if isinstance(each.event, ToolInvoked) and each.event.outcome != "skipped"
        }
        for call in calls:
            found = done.get(call.call_id)
            if found is None:
                continue
            record: ToolInvoked = found.event
            ours, theirs = self._called_today(call), called_then(call, record)
            if ours != theirs:
                self._differs(found.seq, "call", f"the agent of today asks for {ours} where the record has {theirs}")

    def _called_today(self, call: ToolCall) -> str:
        tool = self._tools.get(call.name)
        if tool is None:
            return f"{call.name}(...), which is no tool"
        try:
            return call_in_words(call.name, tool.decode(call.arguments))
        except (ToolValidationError, CodecError):
            return f"{call.name}({call.arguments}), which does not fit"

    # --- what is computed again ---------------------------------------------------------------------------------------

    async def instead(self, command: Command) -> Signal | None:
        """Return the recorded answer to a command, after what is computed again was compared with it.

        Raises:
            RecordOverError: For anything else, because nothing runs live.
        """
        mark = self._next_mark
        if mark is None or not isinstance(command, CheckDone | Observe):
            raise RecordOverError
        signal = self._recorded(command)
        if isinstance(command, CheckDone) and isinstance(mark.event, CompletionChecked):
            await self._check_again(mark.seq, mark.event, command.output)
        elif isinstance(command, Observe):
            await self._look_again(mark)
        return signal

    def _session(self, until: int) -> Session:
        """Return a session with the log up to an event."""
        log = [each for each in self._whole_log if each.seq <= until]
        return Session.restored(log, self.started.run_context.session_id, prepare=self._prepare)

    async def _check_again(self, seq: int, event: CompletionChecked, output: Any) -> None:
        plan = self._plan
        checker = None if plan is None else plan.checker
        if plan is None or checker is None or asks_model(checker) or asked_models(checker):
            self.left_out["the checker"] = None
            return
        unseen = Unseen()
        context = TaskCompletionContext(
            session=self._session(seq - 1),
            tentative_output=output,
            stop_reason=self._finish,
            filesystem=cast("Any", unseen),
            run_context=self.started.run_context,
            adapter=cast("Any", unseen),
            task=task_of(plan),
        )
        result = await verdict_of(checker, context)
        if unseen.asked:
            self.left_out["the checker"] = None
            return
        ours = f"{STATES[result.status]} ({result.explanation})"
        theirs = f"{event.verdict} ({event.explanation})"
        if ours != theirs:
            self._differs(seq, "verdict", f"the checker's verdict is {differing(ours, theirs)}")

    async def _look_again(self, mark: Envelope) -> None:
        """Ask the observers again, of what was on record before they were asked."""
        plan = self._plan
        if plan is None:
            return
        asked = [each for each in plan.sources if not (asked_models(each.source) or asks_model(each.source))]
        self.left_out.update(dict.fromkeys(each.name for each in plan.sources if each not in asked))
        theirs = mark.event if isinstance(mark.event, ObserversRan) else None
        before = [each for each in self._whole_log if self._replied < each.seq < mark.seq]
        at = mark.event.created_at if theirs else before[-1].at
        session = self._session(self._replied)
        unseen = Unseen()
        earlier = [each for each in self.log if each.seq < mark.seq]
        begun = [each.event for each in earlier if isinstance(each.event, RunStarted | RunResumed)][-1]
        ends = None if begun.deadline is None else Deadline(begun.deadline)
        limits = replace(begun.limit_values or Limits(), deadline=ends, account=None, account_limit=None)
        spent = spent_of(earlier, lambda _: NOTHING_USED).usage
        clock = Moment(at)
        with ExecutionContext(limits, clock=clock, spent=spent, parent=None) as gate:
            scope = scope_of(self, session, gate, clock, unseen)
            alone = msgspec.structs.replace(plan, sources=tuple(replace(each, escalate=None) for each in asked))
            engine = Oversight(alone, scope, lambda source, turn: None, cast("Children", unseen))
            for envelope in before:
                session.dispatch(envelope.event)
            position = len(session.log)
            await engine.look(self._turns + 1)
        if unseen.asked:
            self.left_out.update(dict.fromkeys(each.name for each in asked))
            return
        ours = [each.event for each in session.log[position:] if isinstance(each.event, ObserversRan)]
        now, then = said_by(ours), said_by([] if theirs is None else [theirs])
        for name in dict.fromkeys([*then, *now]):
            if name not in self.left_out and now.get(name) != then.get(name):
                said = f"{name} says {now.get(name, 'nothing')} where the record has {then.get(name, 'nothing')}"
                self._differs(mark.seq if theirs else before[-1].seq, "advice", said)

    def ended(self, end: End) -> None:
        """Compare how the run ends."""
        mark = self._next_mark
        if mark is None or (isinstance(mark.event, RunEnded) and mark.event.turns is None):
            return
        if not isinstance(mark.event, RunEnded):
            self._differs(
                mark.seq, "course", f"the agent of today {in_words(end)} where the record has {on_record(mark.event)}"
            )
            return
        self.until = self.log[-1].seq
        record: RunEnded = mark.event
        then = End(record.output, record.stop, record.partial)
        ours, theirs = in_words(end), in_words(then)
        same = dump([end.output, end.partial]) == dump([then.output, then.partial])
        stops = [None if each.stop is None else (each.stop.reason, each.stop.limit) for each in (end, then)]
        if not same or stops[0] != stops[1]:
            self._differs(mark.seq, "answer", f"the agent of today {ours}, the one on record {theirs}")
        elif end.verdict != record.verdict:
            said = f"its work is {end.verdict} where the record has {record.verdict}"
            self._differs(mark.seq, "verdict", said)


async def replayed(plan: RunPlan[Any], replay: Replay) -> Replayed:
    """Run the loop against the record, and return where the two differ."""

    async def never(*_: Any, **__: Any) -> NoReturn:
        raise RecordOverError

    replay.compare_plan(plan)
    attempts = [each.event for each in replay.log if isinstance(each.event, RunStarted | RunResumed)]
    limits = attempts[-1].limit_values or Limits()
    rules = replace(UNLIMITED, max_turns=limits.max_turns, landing=limits.landing)
    with ExecutionContext(rules, parent=None) as gate:
        try:
            ending = await drive(plan, scope_of(replay, Session(), gate), replay.opening, never, replay)
            replay.ended(ending.end)
        except RecordOverError:
            pass
    last = replay.log[-1].seq
    differences = tuple(sorted(replay.differences, key=lambda each: each.seq))
    return Replayed(replay.started.run_context.run_id, differences, replay.until, last, tuple(replay.left_out))


def scope_of(
    replay: Replay, session: Session, gate: ExecutionContext, clock: Clock = SYSTEM_CLOCK, files: Any = None
) -> RunScope:
    """Return a scope in memory for the run of a replay."""
    return RunScope(session, gate, replay.started.run_context, clock, SYSTEM_IDS, filesystem=files)


class Moment(SystemClock):
    """The machine's clock with another wall time, which stands still."""

    __slots__ = ("_at",)

    def __init__(self, at: datetime) -> None:
        """Show this time."""
        self._at = at

    def now(self) -> datetime:
        """Return the time that is shown."""
        return self._at


class Unseen:
    """Stands for files and models, which a replay does not have; notes whether anybody asked for them."""

    def __init__(self) -> None:
        """Begin unasked."""
        self.asked = False

    def read_only_view(self) -> Unseen:
        """Return itself."""
        return self

    def refuse(self) -> NoReturn:
        """Note that it was asked, and refuse."""
        self.asked = True
        raise ConfigurationError("a replay has no files and asks no model")

    @property
    def family(self) -> Any:
        """What observers are told about nested evaluations."""
        return SimpleNamespace(nested=NESTED, scope=self)

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()


# --- words ------------------------------------------------------------------------------------------------------------


def in_words(command: Command) -> str:
    """Return what the loop does, as the end of a sentence about the agent."""
    match command:
        case AskModel(landing=True):
            return "takes its last turn"
        case AskModel():
            return "asks the model"
        case RunTools(calls=calls):
            return f"calls {', '.join(call.name for call in calls)}"
        case CheckDone():
            return "has its answer checked"
        case Compact():
            return "compacts the conversation"
        case Observe():
            return "asks its observers"
        case End(stop=None, output=output):
            return f"ends with the answer {clip(display(output))}"
        case End(stop=stop, partial=partial):
            had = "nothing" if partial is None else display(partial)
            return f"ends with {clip(had)}, because: {stop and stop.message}"
        case _:
            return "reads the answer"


def on_record(event: object) -> str:
    """Return an event as the end of a sentence."""
    match event:
        case ModelReplied(turn=turn, landing=landing):
            return f"the reply of the last turn ({turn})" if landing else f"the reply of turn {turn}"
        case ToolInvoked(name=name, params=params):
            return call_in_words(name, params)
        case NoticeAppended(text=text):
            return f"that it is told {clip(text)}"
        case CompletionChecked(verdict=verdict):
            return f"the checker's verdict ({verdict})"
        case ObserversRan():
            return "the advice of its observers"
        case ContextCompacted():
            return "a summary of the conversation"
        case WorkStopped(stop=stop) | RunEnded(stop=stop) if stop is not None:
            return f"a stop: {stop.message}"
        case _:
            return "the end of the run"


def call_in_words(name: str, params: Any) -> str:
    """Return a call as code."""
    if isinstance(params, dict):
        given = ", ".join(f"{key}={value!r}" for key, value in cast("dict[str, Any]", params).items())
    else:
        given = params if isinstance(params, str) else repr(params)
    return f"{name}({given})"


def called_then(call: ToolCall, record: ToolInvoked) -> str:
    """Return how a tool was called, by the record."""
    if record.outcome == "unknown_tool":
        return f"{record.name}(...), which is no tool"
    if record.outcome == "invalid" and record.params == call.arguments:
        return f"{record.name}({call.arguments}), which does not fit"
    return call_in_words(record.name, record.params)


def tools_in_words(then: Sequence[str], now: Sequence[str]) -> str:
    """Say how the tools on offer changed, given their names."""
    more, less = [each for each in now if each not in then], [each for each in then if each not in now]
    said = [f"{', '.join(more)} came"] if more else []
    said += [f"{', '.join(less)} went"] if less else []
    return f"the tools of the run changed: {' and '.join(said) or 'a description or a parameter of one of them'}"


def said_by(rounds: Sequence[ObserversRan]) -> dict[str, str]:
    """Return what each source said, in words."""
    said: dict[str, str] = {}
    for ran in (each for round_ in rounds for each in round_.runs):
        if ran.outcome in ("advised", "failed"):
            said[ran.source] = f"{advice_in_words(ran.advice)}" if ran.advice is not None else f"an error ({ran.error})"
    return said


def advice_in_words(advice: Advice) -> str:
    """Return advice on one line."""
    more = [*(each.description for each in advice.observations), *advice.suggestions]
    return one_line(" / ".join([f"{advice.severity}: {advice.summary}", *more]), 4 * SHOWN)


def task_of(plan: RunPlan[Any]) -> str:
    """Return the text of the first messages."""
    return "\n\n".join(message.text for message in plan.prompt.messages)


def clip(text: str) -> str:
    """Return the beginning of a text in quotes."""
    return repr(one_line(text, SHOWN))


def differing(today: str, record: str) -> str:
    """Show where two texts differ."""
    first = next(_differences(today, record), None)
    if first is None:
        return clip(today)
    begin = max(0, first - SHOWN // 2)
    ours, theirs = (one_line(text[begin : begin + SHOWN], SHOWN) for text in (today, record))
    before = "..." if begin else ""
    return f"{before}{ours!r} where the record has {before}{theirs!r}"


def _differences(one: str, other: str) -> Iterator[int]:
    for place, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            yield place
    if len(one) != len(other):
        yield min(len(one), len(other))
