"""The context that a tool gets for one call, and the event that each call adds to the log.

A tool works on a branch of the session and on an overlay of the filesystem. Both are made on first use, because most
tools use neither. Changes are invisible outside until the runtime commits; if it discards them, nothing remains. After
that every write is refused, also from a thread of the call that is still running.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline
from watchkeeper.core.errors import FilesystemError, SessionError, WatchkeeperError
from watchkeeper.core.ids import RunContext
from watchkeeper.core.usage import TokenUsage
from watchkeeper.session.log import event
from watchkeeper.session.session import Branch, Session
from watchkeeper.session.tagging import check_only
from watchkeeper.tools.filesystem import Filesystem, ReadOnlyFilesystem
from watchkeeper.tools.filesystems import OverlayFilesystem
from watchkeeper.tools.resources import Resources
from watchkeeper.tools.values import ToolResult

COMMITTING: Final = "being committed"
COMMITTED: Final = "committed"
DISCARDED: Final = "discarded"


class Answer(msgspec.Struct, frozen=True):
    """What a person has said about a tool call; it is true in a condition if the call is allowed.

    Attributes:
        allowed: Whether it may go on.
        by: Who decided.
        why: The reason; may be empty.
    """

    allowed: bool
    by: str
    why: str = ""

    def __bool__(self) -> bool:
        """Return whether it is a yes."""
        return self.allowed


NOBODY: Final = Answer(False, "nobody", "Nobody is there to answer.")
"""The answer to a tool's question in a run that does not park."""


class ParkedError(WatchkeeperError):
    """A tool has asked a question to which there is no answer yet; its run parks, whatever the tool does with this."""


class CallInfo(msgspec.Struct, frozen=True):
    """The data of one attempt at one tool call.

    A msgspec struct, because every call makes one.

    Attributes:
        call_id: The provider's id of the call.
        tool_name: Name of the tool.
        attempt: 1 for the first attempt.
        idempotency_key: The same for every attempt at this call, also after a restart; pass it to services that support
            idempotency keys, so that nothing happens twice.
        deadline: The moment at which the call will be cancelled, or None.
        cancellation: Tells that the call should stop.
        answers: What persons have answered to questions of this call, by question.
        may_park: Whether a question without an answer parks the run.
    """

    call_id: str
    tool_name: str
    attempt: int = 1
    idempotency_key: str = ""
    deadline: Deadline | None = None
    cancellation: CancellationToken = msgspec.field(default_factory=CancellationToken)
    answers: Mapping[str, Answer] = MappingProxyType({})
    may_park: bool = False


class ToolScope(msgspec.Struct, frozen=True):
    """What all calls of one run share.

    Attributes:
        session: The run's session; a tool sees a branch of it.
        run_context: Identifiers of the run.
        filesystem: The run's files, or None; a tool sees an overlay of them.
        resources: The resources that tools may request.
        budget: Returns what may be spent and what was spent, or None.
        clock: The run's time.
    """

    session: Session
    run_context: RunContext
    filesystem: Filesystem | None = None
    resources: Resources = msgspec.field(default_factory=Resources)
    budget: Callable[[], BudgetStatus] | None = None
    clock: Clock = SYSTEM_CLOCK


class ToolContext:
    """One tool call's view of its run.

    Attributes:
        call: The data of this attempt.
        scope: What all calls of the run share.
        asked: The question to a person for which the run parks, or None.
    """

    __slots__ = ("_branch", "_lock", "_over", "_overlay", "_resources", "asked", "call", "scope")

    def __init__(self, call: CallInfo, scope: ToolScope) -> None:
        """Store both arguments; branch, overlay and resources are made on first use."""
        self.call = call
        self.scope = scope
        self.asked: str | None = None
        self._branch: Branch | None = None
        self._overlay: OverlayFilesystem | None = None
        self._resources: Resources | None = None
        self._lock = threading.RLock()
        self._over = ""

    @property
    def call_id(self) -> str:
        """The provider's id of the call."""
        return self.call.call_id

    @property
    def tool_name(self) -> str:
        """Name of the tool."""
        return self.call.tool_name

    @property
    def attempt(self) -> int:
        """1 for the first attempt at this call."""
        return self.call.attempt

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt at this call, so that a service can recognise a repetition."""
        return self.call.idempotency_key

    @property
    def deadline(self) -> Deadline | None:
        """The moment at which the call will be cancelled, or None (docs/specification.md, deadlines)."""
        deadline, clock = self.call.deadline, self.scope.clock
        if deadline is None or deadline.until is None:
            return deadline
        now, left = clock.now(), deadline.remaining(clock)
        if abs(deadline.at - now - left) < timedelta(seconds=1):
            return deadline
        return Deadline.ending(now + left, deadline.until, deadline.wall)  # the wall clock was moved

    @property
    def cancellation(self) -> CancellationToken:
        """Tells that the call should stop; a sync tool that waits should wait on it."""
        return self.call.cancellation

    @property
    def run_context(self) -> RunContext:
        """Identifiers of the run."""
        return self.scope.run_context

    @property
    def clock(self) -> Clock:
        """The run's time."""
        return self.scope.clock

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds left to the deadline, never negative; None without one."""
        deadline = self.call.deadline
        return None if deadline is None else max(deadline.remaining(self.scope.clock).total_seconds(), 0.0)

    @property
    def budget(self) -> BudgetStatus | None:
        """What may be spent and what was spent, at this moment."""
        return None if self.scope.budget is None else self.scope.budget()

    @property
    def session(self) -> Session:
        """A branch of the run's session: it sees the session's state; writes stay private until the call succeeds."""
        with self._lock:
            if self._branch is None:
                if self._over:
                    raise SessionError(f"tool call {self.call_id!r} is over ({self._over}); its session is closed")
                self._branch = self.scope.session.branch()
            return self._branch

    @property
    def filesystem(self) -> Filesystem | None:
        """The run's files; changes are buffered until the call has succeeded. None if the run has no files.

        A read-only view gets no overlay: it refuses every change at once, with a message.
        """
        base = self.scope.filesystem
        if base is None or isinstance(base, ReadOnlyFilesystem):
            return base
        with self._lock:
            if self._overlay is None:
                if self._over:
                    raise FilesystemError(f"tool call {self.call_id!r} is over ({self._over}); its files are closed")
                self._overlay = OverlayFilesystem(base)
            return self._overlay

    @property
    def resources(self) -> Resources:
        """What the tool may ask for: the run's resources, and those that are made fresh for this call."""
        with self._lock:
            if self._resources is None:
                self._resources = self.scope.resources.tool_call()
                if self._over:
                    self._resources.close()
            return self._resources

    def ask(self, question: str) -> Answer:
        """Ask a person whether the call may go on, and return the answer.

        In a run with ``on_ask="park"`` the run parks at the first question without an answer: the call ends here,
        and what it changed in session and files is dropped. Once the question is answered, ``resume`` runs the call
        again from its beginning, and this returns the answer. So ask before anything has an effect outside. In any
        other run the answer is no at once.

        Args:
            question: What the person reads; a tool that asks twice needs two different questions.

        Raises:
            ParkedError: To end the call, because the run parks.
        """
        answer = self.call.answers.get(question)
        if answer is not None:
            return answer
        if not self.call.may_park:
            return NOBODY
        self.asked = self.asked or question
        raise ParkedError(f"the run is parked until somebody answers: {question}")

    @property
    def has_resources(self) -> bool:
        """Whether the tool asked for resources, so that there may be something to close."""
        return self._resources is not None

    @property
    def has_changed_files(self) -> bool:
        """Whether `commit` has files to write, which may take long; never blocks."""
        overlay = self._overlay
        return overlay is not None and overlay.is_changed

    @property
    def changed_files(self) -> OverlayFilesystem | None:
        """What `commit` has to write; None if there is nothing. Never blocks."""
        return self._overlay if self.has_changed_files else None

    @property
    def written_events(self) -> tuple[Any, ...]:
        """The events that `commit` will put on the session's log."""
        return () if self._branch is None else self._branch.written

    def commit(self) -> None:
        """Make the tool's changes visible: its files and its session, or neither; does nothing if already committed.

        Raises:
            FilesystemError: If one of the files was changed outside meanwhile; everything is discarded.
            ReducerError: If a reducer refuses an event of the tool; everything is discarded.
            SessionError: If it was discarded before, or while its files were written.
        """
        with self._lock:
            if self._over == COMMITTED:
                return
            self._refuse_if_over()
            if self._overlay is None and self._branch is None:  # it asked for neither, as most do
                self._over = COMMITTED
                return
            self._over = COMMITTING
        try:
            self._commit_both()
        except BaseException:
            self._over = DISCARDED
            self._drop_both()
            raise

    def _commit_both(self) -> None:
        base = self.scope.filesystem
        if self._overlay is None or base is None or not self._overlay.is_changed:
            if self._overlay is not None:
                self._overlay.commit()
            self._decide()
            if self._branch is not None:
                self._branch.merge()
            return
        with base.exclusive():
            before = base.snapshot()
            self._overlay.commit()
            try:
                self._decide()
                if self._branch is not None:
                    self._branch.merge()
            except BaseException:
                base.restore(before)
                raise

    def _decide(self) -> None:
        """Change the state from committing to committed, if the call was not discarded meanwhile."""
        with self._lock:
            if self._over != COMMITTING:
                self._refuse_if_over()
            self._over = COMMITTED

    def _refuse_if_over(self) -> None:
        if self._over:
            raise SessionError(f"tool call {self.call_id!r} was {self._over}; it cannot be committed")

    def discard(self) -> bool:
        """Drop the tool's changes; does nothing if the call is already over. Never blocks, so the loop may call it.

        If another thread is committing files at that moment, that thread restores them.

        Returns:
            True if no change remains; False if the call was committed.
        """
        with self._lock:
            if self._over in (COMMITTED, DISCARDED):
                return self._over == DISCARDED
            self._over = DISCARDED
        self._drop_both()
        return True

    def _drop_both(self) -> None:
        if self._branch is not None:
            self._branch.discard()
        if self._overlay is not None:
            self._overlay.discard()

    async def aclose(self) -> None:
        """Close the resources that were made for this call; must be called when the call has ended, in every case.

        Raises:
            ExceptionGroup: The errors that closing raised.
        """
        resources = self._resources
        if resources is not None:
            await resources.aclose()


# fmt: off
ToolOutcome = Literal[
    "ok", "failed", "invalid", "unknown_tool", "crashed", "timeout", "deadline", "denied", "skipped", "cancelled",
    "unknown",
]
# fmt: on
"""How an attempt ended; only ``ok`` is a success. ``unknown``: the process ended while it ran."""


@event("tool_invoked")
class ToolInvoked(msgspec.Struct, frozen=True):
    """One attempt at one tool call (docs/specification.md, trajectory observers).

    Every attempt is recorded exactly once, with any outcome; observers and usage know tools from these events alone. A
    msgspec struct, because every call makes one and its sixteen fields cost a dataclass microseconds.

    Attributes:
        prompt_name: ``ns/key`` of the prompt, or the name it was given.
        adapter: Name of the adapter that the model was reached through.
        name: Tool name as the model wrote it.
        params: The decoded arguments; the text as the model wrote it if they did not fit.
        result: The `ToolResult`.
        session_id: Session of the run.
        created_at: When the attempt ended.
        usage: Tokens of the model reply that asked for the call, if the provider told.
        rendered_output: What the model was shown.
        call_id: The provider's id of the call.
        event_id: Unique to this event.
        outcome: How the attempt ended.
        duration_ms: Milliseconds from admission to the end; 0 if the tool was not called.
        attempt: 1 for the first attempt at this call.
        node_id: The attempt's node in the gate's records, if it was admitted.
        traceback: Where the tool raised, if it crashed; the model is not shown it.
        run_context: The identifiers of the run.
    """

    prompt_name: str
    adapter: str
    name: str
    params: Any
    result: ToolResult[Any]
    session_id: UUID | None
    created_at: datetime
    usage: TokenUsage | None
    rendered_output: str
    call_id: str | None
    event_id: UUID
    outcome: ToolOutcome = "ok"
    duration_ms: float = 0.0
    attempt: int = 1
    node_id: str | None = None
    traceback: str = ""
    run_context: RunContext | None = None

    @property
    def success(self) -> bool:
        """Whether the tool did what it was asked."""
        return is_success(self)


check_only(ToolInvoked, "params", "result")


def is_success(invoked: ToolInvoked) -> bool:
    """Return whether the attempt succeeded; a result without a flag counts by the outcome alone."""
    return invoked.outcome == "ok" and bool(getattr(invoked.result, "success", True))


def error_message(invoked: ToolInvoked) -> str | None:
    """Return what went wrong, or None for a success or a result that carries no message."""
    if is_success(invoked):
        return None
    message = getattr(invoked.result, "message", None)
    return message if isinstance(message, str) else None
