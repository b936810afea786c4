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

from msgspec.structs import replace

from watchkeeper.accounting.call_request import CallRequest
from watchkeeper.children.child import no_charge
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import Clock, Deadline, earliest
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import (
    FilesystemError,
    ReducerError,
    SessionError,
    Stop,
    StoreError,
    ToolValidationError,
)
from watchkeeper.core.messages import ImagePart, Part, ToolCall, ToolMessage
from watchkeeper.core.text import error_text
from watchkeeper.core.usage import TokenUsage
from watchkeeper.core.workers import Patience, run_in_worker
from watchkeeper.kernel.turn_machine import Stopped, ToolsDone
from watchkeeper.asking.provider_work import bounds_input
from watchkeeper.asking.retry import call_through
from watchkeeper.loop.attempt import (
    Attempt,
    classify,
    cut,
    failed,
    may_retry,
    not_asked,
    not_run,
    raised_at,
    recordable,
    refusal,
    why_of,
)
from watchkeeper.runtime.events import CallBegun
from watchkeeper.runtime.file_record import FilesNotOnRecord, Unfinished, changed, finish
from watchkeeper.runtime.parking import (
    HIDDEN,
    NO_ANSWERS,
    NOT_BEGUN,
    UNKNOWN,
    AnswersOfCall,
    CallParked,
    Earlier,
    Park,
    answers_among,
    digest_of,
    is_denial,
    parked_stop,
    refusal_of,
)
from watchkeeper.runtime.plan import RunPlan, RunScope
from watchkeeper.runtime.result import images_of
from watchkeeper.runtime.user_code import closed, over_at, raise_failure
from watchkeeper.session.tagging import check
from watchkeeper.shield.pipeline import QUESTION
from watchkeeper.tools.context import Answer, CallInfo, ToolContext, ToolInvoked, ToolScope
from watchkeeper.tools.isolation.call import ProcessCall
from watchkeeper.tools.values import (
    MOST_RESULT_LEVELS,
    MOST_RESULT_VALUES,
    NothingDoneError,
    ToolResult,
    image_parts,
)
from watchkeeper.tools.tool import Tool

T = TypeVar("T")

UNCHECKED_CHARS: Final = 2 * MOST_RESULT_LEVELS
"""Arguments whose text is longer are looked at before the call: the log has to keep them beside the result."""

LOOP_SECONDS: Final = 0.1
"""How long the loop may take to stop a process whose time is over, before that is done from another thread."""


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
        self._bounds_input = bounds_input(scope.gate.account)
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
                if attempt.parks is not None:
                    if await self._park(attempt, attempt.parks):
                        parked.append((call.name, call.call_id))
                        continue
                    attempt = not_asked(attempt, attempt.parks)
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
        first = 1 + self._earlier.begun.get(call.call_id, 0)
        if call.call_id in self._earlier.hidden:
            if first > 1:
                return Attempt("unknown", ToolResult.error(UNKNOWN.format(call.name)), first - 1, call.arguments)
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
        answers = NO_ANSWERS
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
            return await durable.barrier()
        except StoreError:
            return False

    async def _attempt(self, call: ToolCall, tool: Tool, params: Any, number: int, answers: AnswersOfCall) -> Attempt:
        """Make one admitted attempt; classify how it went."""
        clock, began = self._scope.clock, self._scope.clock.monotonic()
        context: ToolContext | None = None
        process, task = tool.process(), asyncio.current_task()

        async def work(ticket: Ticket) -> ToolResult[Any]:
            nonlocal context
            if self._scope.durable is not None and not tool.read_only:
                if not tool.idempotent:
                    await self._scope.begin_call(self._intent(call, number, ticket))
                else:  # after a crash it must get the same idempotency key, so the reply that asks for it be on record
                    await self._scope.all_on_record()
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
            recorder=self._scope.durable,
            on_log=True,
        )
        try:
            outcome = await call_through(self._scope, request, work, no_charge)
        finally:
            if process is not None:  # the run waits until the call's process is gone
                await process.gone()
        stop, has_files = self._stop_of(outcome), self._tool_scope.filesystem is not None
        did_nothing = context is None or isinstance(outcome.error, NothingDoneError)
        word, result = classify(tool, outcome, stop, did_nothing=did_nothing, has_files=has_files)
        return Attempt(
            outcome=word,
            result=result,
            number=number,
            params=params,
            context=context,
            stop=stop,
            node_id=outcome.node_id,
            duration_ms=(clock.monotonic() - began) * 1000,
            halted=outcome.stop is not None,
            did_nothing=did_nothing,
            parks=None if self._parking is None else self._asks(call, outcome, context, self._parking),
            traceback=raised_at(outcome.error, why_of(outcome)) if word == "crashed" else "",
        )

    def _intent(self, call: ToolCall, number: int, ticket: Ticket) -> CallBegun:
        """Return what is on record before the tool has an effect."""
        place, now = (call.name, self._turn, number, ticket.node_id, call.call_id), self._scope.clock.now()
        return CallBegun("tool", *place, TokenUsage(), 0, now)

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
        context = attempt.context
        if self._scope.durable is None or context is None or not (context.has_changed_files or context.written_events):
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
                attempt, text, images = failed(attempt, said, raised_at(error, str(why)))
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
        return ToolInvoked(  # for more keywords Python makes a dict
            plan.prompt.name,
            plan.model.provider,
            call.name,
            attempt.params,
            attempt.result,
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
            traceback=attempt.traceback,
            run_context=scope.run_context,
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
