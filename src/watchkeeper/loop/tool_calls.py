"""The tool calls of one reply, each through the gate and each a transaction.

Every call gets exactly one result, and every attempt at it one `ToolInvoked`. A tool works on a branch of the session
and an overlay of the filesystem; they are merged in the order of the calls if it succeeded and dropped if it did not,
so a tool that fails or exceeds its time leaves no changes. Where there is a store, the changes of files are on record
before they are made. Calls run concurrently only if their tools are declared `parallel_safe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.children.child import no_charge
from watchkeeper.containment.in_flight import CALL_TIMEOUT, Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import Clock, Deadline, earliest
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import (
    FilesystemError,
    ReducerError,
    SessionError,
    Stop,
    StoreError,
    ToolProcessError,
    ToolValidationError,
)
from watchkeeper.core.messages import ImagePart, Part, ToolCall, ToolMessage
from watchkeeper.core.quantities import format_duration
from watchkeeper.core.text import CrashError, error_text
from watchkeeper.core.usage import TokenUsage
from watchkeeper.core.workers import Patience, run_in_worker
from watchkeeper.kernel.turn_machine import Stopped, ToolsDone
from watchkeeper.asking.models import bounds_input
from watchkeeper.loop.parked_calls import (
    HIDDEN,
    NO_ANSWERS,
    NOT_BEGUN,
    NOT_RUN,
    UNKNOWN,
    AnswersOfCall,
    Earlier,
    answers_among,
    is_denial,
    refusal_of,
)
from watchkeeper.asking.retry import call_through, held_back
from watchkeeper.runtime.events import CallBegun
from watchkeeper.runtime.file_record import FilesNotOnRecord, Unfinished, changed, finish
from watchkeeper.runtime.parking import CallParked, Park, digest_of, parked_stop
from watchkeeper.runtime.plan import MAX_RESULT_BYTES, NotOnRecordError, RunPlan, RunScope
from watchkeeper.runtime.result import images_of
from watchkeeper.runtime.user_code import closed, over_at, raise_failure
from watchkeeper.session.tagging import check
from watchkeeper.shield.pipeline import QUESTION
from watchkeeper.tools.context import Answer, CallInfo, ToolContext, ToolInvoked, ToolOutcome, ToolScope
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.isolation import ProcessCall
from watchkeeper.tools.values import MOST_RESULT_LEVELS, MOST_RESULT_VALUES, ToolResult, image_parts
from watchkeeper.tools.tool import Tool

T = TypeVar("T")

DEADLINE_MESSAGE: Final = "deadline exceeded"
"""The text of a tool's result when the deadline was exceeded."""

UNBOUNDED_IMAGE: Final = (
    "The image cannot be shown: the tool returned an image that has no token bound, but a ceiling on cost or tokens is"
    " in force; its code must say ImagePart(..., max_tokens=...)"
)
"""The text of a tool's result that holds an image whose cost no ceiling could hold."""

UNCHECKED_CHARS: Final = 2 * MOST_RESULT_LEVELS
"""Arguments whose text is longer are looked at before the call: the log has to keep them beside the result."""

LOOP_SECONDS: Final = 0.1
"""How long the loop may take to stop a process whose time is over, before that is done from another thread."""


class Attempt(msgspec.Struct, frozen=True):
    """How one attempt at a call went.

    Attributes:
        outcome: In one word.
        result: What the model is told.
        number: 1 for the first attempt at the call.
        params: The decoded arguments, or the raw text where they could not be decoded.
        context: What the tool was given, if it ran.
        stop: Set if the gate stopped the work here.
        node_id: The admitted call at the gate, if it was admitted.
        duration_ms: From admission to result.
        repeatable: Whether a failed call may be tried again; False if the gate or a hook gave a stop.
        parks: The question for which the run parks, instead of a result; or None.
    """

    outcome: ToolOutcome
    result: ToolResult[Any]
    number: int = 1
    params: Any = None
    context: ToolContext | None = None
    stop: Stop | None = None
    node_id: str | None = None
    duration_ms: float = 0.0
    repeatable: bool = True
    parks: CallParked | None = None


class ToolCalls:
    """The tool side of one run.

    Attributes:
        denied: How many calls a hook or a person has denied so far, in this process.
    """

    def __init__(self, plan: RunPlan[Any], scope: RunScope) -> None:
        """Index the prompt's tools by name."""
        self.denied = 0
        self._plan = plan
        self._scope = scope
        self._usage: TokenUsage | None = None
        self._turn = 0
        self._parking = plan.park
        self._earlier = NOT_BEGUN
        self._run_id = str(scope.run_context.run_id)
        self._tools: dict[str, Tool] = {tool.name: tool for tool in plan.prompt.tools}
        self._parallel = frozenset(tool.name for tool in plan.prompt.tools if tool.parallel_safe)
        self._bounds_input = bounds_input(scope.gate.limits)
        self._tool_scope = ToolScope(
            session=scope.session,
            run_context=scope.run_context,
            filesystem=scope.filesystem,
            resources=scope.resources,
            budget=scope.gate.budget_status,
            clock=scope.clock,
        )

    async def run(
        self, calls: Sequence[ToolCall], usage: TokenUsage | None, turn: int, earlier: Earlier = NOT_BEGUN
    ) -> ToolsDone | Stopped:
        """Run the calls of a reply; return one message per call, in the same order, or that the run parks.

        Args:
            calls: The calls.
            usage: The tokens of the reply.
            turn: The number of the model turn.
            earlier: What is on record of these calls, if the run was interrupted while they ran.
        """
        self._usage, self._turn, self._earlier = usage, turn, earlier
        messages: list[ToolMessage] = []
        images: list[Part] = []
        parked: list[tuple[str, str]] = []
        stop: Stop | None = None
        for batch in self._batches(calls):
            if stop is not None:
                attempts = [not_run(call, stop) for call in batch]
            elif len(batch) == 1:
                attempts = [await self._call(batch[0])]
            else:
                attempts = await asyncio.gather(*(self._call(call) for call in batch))
            for call, attempt in zip(batch, attempts, strict=True):
                if attempt.parks is not None and await self._park(attempt, attempt.parks):
                    parked.append((call.name, call.call_id))
                    continue
                done, left = earlier.done.get(call.call_id), earlier.unfinished.get(call.call_id)
                if left is not None and done is None:
                    message, shown = await self._go_on(call, left)
                else:
                    message, shown = recalled(call, done) if done else await self._finish(call, attempt)
                messages.append(message)
                if shown:
                    images += image_parts(call.name, shown)
                stop = stop or attempt.stop
        return Stopped(parked_stop(parked)) if parked else ToolsDone(tuple(messages), stop, tuple(images))

    def _batches(self, calls: Sequence[ToolCall]) -> Sequence[Sequence[ToolCall]]:
        """Divide the calls of a reply, in their order, into batches that run concurrently."""
        if len(calls) == 1:
            return (calls,)
        batches: list[Sequence[ToolCall]] = []
        for side_by_side, group in groupby(calls, lambda call: call.name in self._parallel):
            together = tuple(group)
            batches += [together] if side_by_side else [(call,) for call in together]
        return batches

    async def _call(self, call: ToolCall) -> Attempt:
        """Attempt one call as often as its tool allows and the gate admits; return the last attempt."""
        if call.call_id in self._earlier.done or call.call_id in self._earlier.unfinished:
            return Attempt("skipped", ToolResult.error(""))
        if call.call_id in self._earlier.hidden:
            return Attempt("skipped", ToolResult.error(HIDDEN.format(call.name)), params=call.arguments)
        tool = self._tools.get(call.name)
        if tool is None:
            offered = ", ".join(sorted(self._tools)) or "none"
            said = f"There is no tool {call.name!r}. Tools: {offered}."
            return Attempt("unknown_tool", ToolResult.error(said), params=call.arguments)
        try:
            params = tool.decode(call.arguments)
            if len(call.arguments) > UNCHECKED_CHARS:
                check(params, MOST_RESULT_VALUES, MOST_RESULT_LEVELS)
        except (ToolValidationError, CodecError) as error:
            return Attempt("invalid", ToolResult.error(refusal(error)), params=call.arguments)
        first, answers = 1 + self._earlier.begun.get(call.call_id, 0), NO_ANSWERS
        if self._earlier is not NOT_BEGUN:
            instead = self._instead(call, tool, params, first)
            if instead is not None:
                return instead
            answers = answers_among(self._earlier.asked_about(call), self._scope.clock.now())
        attempt = await self._attempt(call, tool, params, first, answers)
        while may_retry(attempt, tool):
            await self._drop(attempt)
            self._record(call, attempt, attempt.result.message)
            attempt = await self._attempt(call, tool, params, attempt.number + 1, answers)
        return attempt

    def _instead(self, call: ToolCall, tool: Tool, params: Any, first: int) -> Attempt | None:
        """Return what becomes of a call that had begun or was asked about, if it does not run; None if it runs."""
        asked = self._earlier.asked_about(call)
        if asked and call.call_id in self._earlier.waits:
            question, answer = asked[-1].question, asked[-1].ruling(self._scope.clock.now())
            if answer is None:
                return Attempt("skipped", ToolResult.error(""), params=params, parks=question)
            if answer.allowed or question.kind == "tool":
                return None
            word, said = refusal_of(question, answer)
            return Attempt(word, ToolResult.error(said), max(first - 1, 1), params)
        if first == 1 or tool.may_repeat:
            return None
        said, parks = UNKNOWN.format(call.name), None
        if tool.on_unknown == "park":
            parks = self._question("unknown", call, tool.name, f"{said} Is it to run again?", Park())
        return Attempt("unknown", ToolResult.error(said), first - 1, params, parks=parks)

    def _question(
        self, kind: Literal["hook", "tool", "unknown"], call: ToolCall, asker: str, text: str, park: Park
    ) -> CallParked:
        """Return the question to a person about a call."""
        now = self._scope.clock.now()
        return CallParked(
            question_id=self._scope.ids.uuid(),
            kind=kind,
            call_id=call.call_id,
            name=call.name,
            arguments=call.arguments,
            digest=digest_of(call.arguments),
            asked_by=asker,
            question=text,
            expires=park.expiry(now),
            then=park.then,
            created_at=now,
        )

    async def _park(self, attempt: Attempt, question: CallParked) -> bool:
        """Put the question about a call on record, unless it is; return False if it cannot be put there."""
        if self._earlier.has_question(question):
            return True
        if attempt.context is not None:
            attempt.context.discard()
        await self._drop(attempt)
        durable = self._scope.durable
        if durable is None:
            return False
        self._scope.record(question)
        try:
            await durable.barrier()
        except StoreError:
            return False
        return True

    async def _attempt(self, call: ToolCall, tool: Tool, params: Any, number: int, answers: AnswersOfCall) -> Attempt:
        """Make one admitted attempt; classify how it went."""
        clock = self._scope.clock
        began = clock.monotonic()
        context: ToolContext | None = None
        process = tool.process()
        task = asyncio.current_task()

        def intent(ticket: Ticket) -> CallBegun:
            turn = self._turn
            return CallBegun(
                "tool", tool.name, turn, number, ticket.node_id, call.call_id, TokenUsage(), 0, clock.now()
            )

        async def work(ticket: Ticket) -> ToolResult[Any]:
            nonlocal context
            if self._scope.durable is not None and not tool.may_repeat:
                await self._scope.begin_call(intent(ticket))
            context = self._context(call, tool, number, ticket, answers.of_tool)
            try:
                if process is not None:
                    with stopped_in_time(process, ticket, clock):
                        return await process.call(params)
                call_tool = tool.call if tool.is_async else in_time(tool.call, ticket, clock)
                made = call_tool(params, context) if tool.is_async else await run_in_worker(call_tool, params, context)
                return made if isinstance(made, ToolResult) else await made
            except BaseException as error:
                raise_failure(error, task)

        request = CallRequest(
            kind="tool",
            operation_name=tool.name,
            timeout=tool.timeout,
            retry=number > 1,
            arguments=call.arguments,
            call_id=call.call_id,
            approved_by=answers.approved_by,
        )
        try:
            outcome = await call_through(self._scope, request, work, no_charge)
        finally:
            if process is not None:  # the run waits until the call's process is gone
                await process.gone()
        stop = self._stop_of(outcome)
        word, result = classify(tool, outcome, stop, has_files=self._tool_scope.filesystem is not None)
        return Attempt(
            outcome=word,
            result=result,
            number=number,
            params=params,
            context=context,
            stop=stop,
            node_id=outcome.node_id,
            duration_ms=(clock.monotonic() - began) * 1000,
            repeatable=outcome.stop is None,
            parks=None if self._parking is None else self._asks(call, outcome, context, self._parking),
        )

    def _asks(
        self, call: ToolCall, outcome: Outcome[Any], context: ToolContext | None, park: Park
    ) -> CallParked | None:
        """Return the question that a hook or the tool itself asks about a call and nobody has answered, or None."""
        if context is not None and context.asked is not None:
            question = self._question("tool", call, call.name, context.asked, park)
            return replace(question, node_id=outcome.node_id or "")
        refusal = outcome.refusal
        text = None if refusal is None else refusal.metadata.get(QUESTION)
        return None if refusal is None or text is None else self._question("hook", call, refusal.hook, text, park)

    def _stop_of(self, outcome: Outcome[Any]) -> Stop | None:
        """Return the outcome's stop if it ends the run; a hook's stop for one call ends only that call."""
        stop = outcome.stop
        if stop is None or stop.source != "hook":
            return stop
        return stop if stop in (self._scope.gate.stop, self._scope.gate.work_stop) else None

    def _context(
        self, call: ToolCall, tool: Tool, number: int, ticket: Ticket, answers: Mapping[str, Answer]
    ) -> ToolContext:
        deadline, clock = self._scope.gate.work_deadline, self._scope.clock
        if tool.timeout is not None and ticket.timeout is not None:  # the tool's own timeout may come first
            deadline = earliest(deadline, Deadline.after(ticket.timeout, clock), clock=clock)
        info = CallInfo(
            call_id=call.call_id,
            tool_name=tool.name,
            attempt=number,
            idempotency_key=f"{self._run_id}:{call.call_id}",
            deadline=deadline,
            cancellation=ticket.cancellation,
            answers=answers,
            may_park=self._parking is not None,
        )
        return ToolContext(info, self._tool_scope)

    async def _finish(self, call: ToolCall, attempt: Attempt) -> tuple[ToolMessage, tuple[ImagePart, ...]]:
        """Keep or drop the tool's changes, record the attempt, and return the message and images for the model."""
        attempt, text, images = recordable(attempt, self._bounds_input)
        if self._scope.durable is None or attempt.context is None:
            return await self._kept(call, attempt, text, images)
        with self._together():
            return await self._kept(call, attempt, text, images)

    @contextmanager
    def _together(self) -> Generator[None]:
        """Let what is recorded in the block be on record together or not at all."""
        durable, run_id = self._scope.durable, self._scope.run_context.run_id
        if durable is None:
            yield
            return
        durable.hold(run_id)
        try:
            yield
        finally:
            self._scope.session.flush()
            durable.release(run_id)

    async def _go_on(self, call: ToolCall, left: Unfinished) -> tuple[ToolMessage, tuple[ImagePart, ...]]:
        """Finish the commit of a call during which the process ended; its tool does not run again."""
        scope, invoked, said = self._scope, left.invoked, ""
        with self._together():
            if scope.filesystem is not None:
                said = await run_in_worker(finish, scope.filesystem, left.changes)
            if not said:
                branch = scope.session.branch()
                try:
                    for each in left.events:
                        branch.dispatch(each)
                    branch.merge()
                except (ReducerError, SessionError) as error:
                    said = str(error)
            if said:
                said = f"{call.name} succeeded, but what it changed could not all be kept: {said}"
                invoked = replace(invoked, outcome="crashed", result=ToolResult.error(said), rendered_output=cut(said))
            invoked = replace(invoked, node_id=None)  # the gate has counted the call: `loop.resume.spent_of`
            scope.record(invoked)
        return recalled(call, invoked)

    async def _kept(
        self, call: ToolCall, attempt: Attempt, text: str, images: tuple[ImagePart, ...]
    ) -> tuple[ToolMessage, tuple[ImagePart, ...]]:
        event_id: UUID | None = None
        if attempt.outcome == "ok" and attempt.context is not None:
            try:
                if attempt.context.has_changed_files:
                    event_id = self._scope.ids.uuid()
                    await self._keep(attempt.context, self._invoked(call, attempt, text, event_id))
                else:
                    attempt.context.commit()
            except Exception as error:  # files may be of any kind, and fail in any way
                why = error if isinstance(error, SessionError | FilesystemError) else error_text(error)
                said = f"{call.name} succeeded, but what it changed could not be kept: {why}"
                attempt, text, images = failed(attempt, said)
        await self._drop(attempt)
        return self._record(call, attempt, text, event_id), images

    async def _keep(self, context: ToolContext, invoked: ToolInvoked) -> None:
        """Commit a tool's changes on a worker thread, because files may be slow or locked by a call that has timed out.

        They are on record before, so that the commit can be finished if the process dies.

        Raises:
            SessionError: If it cannot be kept.
            FilesystemError: If a file cannot be kept, or the work was over before all of them were written.
        """
        scope, gate, clock = self._scope, self._scope.gate, self._scope.clock
        until = over_at(gate, clock)
        patience, left_out = Patience(lambda: until, clock, gate.cancellation), ""
        try:
            if scope.durable is not None:
                changes = await run_in_worker(changed, context, invoked, clock.now(), patience=patience)
                await scope.begin_call(changes)
                left_out = "" if scope.filesystem is None or scope.filesystem.survives_process else changes.left_out
            await run_in_worker(context.commit, patience=patience)
            if left_out:
                self._parking = None  # nobody could go on with the run
                scope.record(FilesNotOnRecord(context.call_id, invoked.name, left_out, clock.now()))
        except TimeoutError:
            if context.discard():
                raise FilesystemError("the work was over before its files were written") from None
        except BaseException:
            context.discard()
            raise

    async def _drop(self, attempt: Attempt) -> None:
        """Discard the attempt's changes unless it succeeded, and close its resources."""
        context = attempt.context
        if context is None:
            return
        if attempt.outcome != "ok":
            context.discard()
        if context.has_resources:
            await closed(f"resources of {context.tool_name}", context.aclose())

    def _record(self, call: ToolCall, attempt: Attempt, text: str, event_id: UUID | None = None) -> ToolMessage:
        invoked = self._invoked(call, attempt, text, event_id or self._scope.ids.uuid())
        self.denied += is_denial(attempt.outcome, invoked.rendered_output)
        self._scope.record(invoked)
        return ToolMessage(call.call_id, call.name, invoked.rendered_output, is_error=not attempt.result.success)

    def _invoked(self, call: ToolCall, attempt: Attempt, text: str, event_id: UUID) -> ToolInvoked:
        scope, plan = self._scope, self._plan
        return ToolInvoked(
            prompt_name=plan.prompt.name,
            adapter=plan.model.provider,
            name=call.name,
            params=attempt.params,
            result=attempt.result,
            session_id=scope.session.session_id,
            created_at=scope.clock.now(),
            usage=self._usage,
            rendered_output=cut(text),
            call_id=call.call_id,
            event_id=event_id,
            outcome=attempt.outcome,
            duration_ms=attempt.duration_ms,
            attempt=attempt.number,
            node_id=attempt.node_id,
        )


def recalled(call: ToolCall, done: ToolInvoked) -> tuple[ToolMessage, tuple[ImagePart, ...]]:
    """Return the message and images of a call that has its result on record."""
    images = images_of(done.result)
    return ToolMessage(call.call_id, call.name, done.rendered_output, is_error=not done.success), images


@contextmanager
def stopped_in_time(process: ProcessCall, ticket: Ticket, clock: Clock) -> Generator[None]:
    """Stop a process when its time is over even if the loop, which does so first, is blocked by other code."""
    if ticket.timeout is None:
        yield
        return
    alarm = clock.alarm(clock.monotonic() + ticket.timeout + LOOP_SECONDS, process.stop)
    try:
        yield
    finally:
        alarm.cancel()


def in_time(fn: Callable[..., T], ticket: Ticket, clock: Clock) -> Callable[..., T]:
    """Return a function that raises TimeoutError if the call's timeout is over before a thread starts it."""
    if ticket.timeout is None:
        return fn
    until = clock.monotonic() + ticket.timeout

    def begin(*args: Any) -> T:
        if clock.monotonic() >= until:
            raise TimeoutError("it was not begun in time")
        return fn(*args)

    return begin


def not_run(call: ToolCall, stop: Stop) -> Attempt:
    """Return the result of a call that was not run because an earlier call stopped the run."""
    said = DEADLINE_MESSAGE if stop.reason == "timeout" else f"{NOT_RUN}{stop.message}"
    return Attempt("skipped", ToolResult.error(said), params=call.arguments)


def may_retry(attempt: Attempt, tool: Tool) -> bool:
    """Return whether a call is attempted again after this attempt."""
    failed = attempt.outcome in ("crashed", "timeout") and attempt.stop is None
    return failed and attempt.repeatable and attempt.number <= tool.retries


def classify(
    tool: Tool, outcome: Outcome[ToolResult[Any]], stop: Stop | None, *, has_files: bool
) -> tuple[ToolOutcome, ToolResult[Any]]:
    """Say in one word how an attempt went, and what the model is told about it; ``stop`` is that of the run."""
    if stop is not None:
        if stop.reason == "timeout":
            return "deadline", ToolResult.error(DEADLINE_MESSAGE)
        if outcome.admitted:
            return "cancelled", ToolResult.error(f"stopped midway: {stop.message}")
        return "denied", ToolResult.error(f"{NOT_RUN}{stop.message}")
    if not outcome.admitted:
        said = held_back(outcome) if outcome.stop is None else outcome.stop.message
        return "denied", ToolResult.error(f"{tool.name} was not run, and nothing was changed: {said}")
    if outcome.error is None:
        result: Any = outcome.value
        return "ok" if result.success else "failed", result
    if isinstance(outcome.error, NotOnRecordError):
        return "denied", ToolResult.error(f"{tool.name} was not run, and nothing was changed: {outcome.error}")
    if outcome.stop_reason == CALL_TIMEOUT:
        said = f"{tool.name} did not finish within {format_duration(tool.timeout or 0)} and was stopped."
        return "timeout", ToolResult.error(said)
    if isinstance(outcome.error, ToolValidationError):
        return "invalid", ToolResult.error(refusal(outcome.error))
    if isinstance(outcome.error, ToolProcessError | CrashError):
        return "crashed", ToolResult.error(f"{tool.name} failed: {outcome.error}")
    ending = None if outcome.node is None else outcome.node.ending
    why = ending.error if ending is not None and ending.error is not None else error_text(outcome.error)
    said = f"{tool.name} failed: {why}"
    return "crashed", ToolResult.error(said + missed_files(outcome.error, has_files=has_files))


def refusal(error: ToolValidationError | CodecError) -> str:
    """Return what a refusal of arguments says; the user's code may have raised it with anything."""
    try:
        return str(error)
    except Exception:
        return error_text(error)


def missed_files(error: BaseException | None, *, has_files: bool) -> str:
    """Return a hint if a tool crashed because it used the filesystem in a run without files; else an empty text."""
    if has_files or not isinstance(error, AttributeError) or error.obj is not None or error.name is None:
        return ""
    if not hasattr(Filesystem, error.name):
        return ""
    return "; this run has no files: context.filesystem is None unless the run is given filesystem=HostFilesystem(...)"


def recordable(attempt: Attempt, bounds_input: bool) -> tuple[Attempt, str, tuple[ImagePart, ...]]:
    """Return the attempt and the text and images of its result, or a failure in its place.

    Args:
        attempt: What a call has come to; it fails if the log could not keep its result.
        bounds_input: Whether a ceiling has to hold the tokens of each image; one without a bound is then a failure.
    """
    try:
        check(attempt.result, MOST_RESULT_VALUES, MOST_RESULT_LEVELS)
        text, images = attempt.result.shown()
        if type(text) is not str:
            why = f"its message is of the type {type(text).__name__}, not a text"
        elif bounds_input and any(image.max_tokens is None for image in images):
            return failed(attempt, UNBOUNDED_IMAGE)
        else:
            return attempt, text, images
    except CodecError as error:
        why = str(error)
    except Exception as error:  # the code of the value's type ran
        why = error_text(error)
    return failed(attempt, f"The result cannot be recorded: {why}")


def failed(attempt: Attempt, said: str) -> tuple[Attempt, str, tuple[ImagePart, ...]]:
    """Return an attempt as one that crashed for a reason, and what the model is shown of it."""
    return replace(attempt, outcome="crashed", result=ToolResult.error(said)), said, ()


def cut(text: str) -> str:
    """Cut a tool's text to `MAX_RESULT_BYTES` for the model, with a note; the log keeps the whole result."""
    if len(text) <= MAX_RESULT_BYTES and text.isascii():
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_RESULT_BYTES:
        return data.decode()
    shown = data[:MAX_RESULT_BYTES].decode("utf-8", "ignore")
    return f"{shown}\n[cut: the first {MAX_RESULT_BYTES:,} of {len(data):,} bytes are shown]"
