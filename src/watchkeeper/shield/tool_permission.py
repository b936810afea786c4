"""Which tools may be used: each tool is allowed, denied, or a person is asked.

If several patterns match a tool's name, the most cautious one counts: deny, then ask, then allow. A name that matches
no pattern is denied. Every answer but a clear yes denies the call; so does a question that nobody can answer, that is
not answered in time, or whose function fails. Questions are asked one at a time, and a call waits no longer than the
timeout, including its time in the queue. By default the question is shown on the process's terminal; `core.lazy_names`
loads the module that does so.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from inspect import iscoroutinefunction
from typing import Final

from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.lazy_names import provided
from watchkeeper.core.quantities import DurationLike, duration, format_duration, is_listed, is_text
from watchkeeper.core.workers import BlockingCall
from watchkeeper.shield.attention import ATTENTION
from watchkeeper.shield.decision import Decision, ToolCallContext

AskWith = Callable[[ToolCallContext], object]
"""Asks a person. True or "yes" allows this call, "always" also every later call of the tool; all else denies it."""

YES: Final = frozenset({"y", "yes"})
ALWAYS: Final = frozenset({"a", "always"})
LONGEST_SHOWN: Final = 2_000
"""Characters of a call's arguments that are shown on the terminal."""


class Questioner(ABC):
    """Asks a person a question, as text."""

    @abstractmethod
    def ask(self, question: str, withdrawn: CancellationToken) -> str | None:
        """Show a question and wait for the answer.

        Args:
            question: The text to show.
            withdrawn: Is cancelled when the answer is not needed any more.

        Returns:
            The answer; None if no person can answer or the question was withdrawn.
        """


class ToolPermissionHook:
    """Allows or denies tools by their names, or asks a person.

    Args:
        allow: Names of tools that may be used, or patterns like those for file names ("read_*"); by default all.
        deny: Names or patterns of tools that may not be used.
        ask: Names or patterns of tools about which a person is asked.
        ask_with: Asks a person and waits for the answer, on a thread of its own; by default the process's terminal.
        timeout: The longest time that a call waits for an answer; after it the call is denied.
        clock: The source of time.

    Attributes:
        blocks_for: The most seconds that a call waits for an answer; None if ``ask`` is empty.

    Raises:
        ConfigurationError: If a value has the wrong type or is out of range.
    """

    __slots__ = (
        "_allow",
        "_always",
        "_ask",
        "_ask_with",
        "_clock",
        "_deny",
        "_open",
        "_queue",
        "_timeout",
        "_unanswered",
        "_why",
    )

    def __init__(
        self,
        allow: Iterable[str] = ("*",),
        deny: Iterable[str] = (),
        ask: Iterable[str] = (),
        *,
        ask_with: AskWith | Questioner | None = None,
        timeout: DurationLike = "60s",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Read the patterns."""
        self._allow, self._deny, self._ask = words(allow, "allow"), words(deny, "deny"), words(ask, "ask")
        if iscoroutinefunction(ask_with):
            raise ConfigurationError(
                f"ask_with={ask_with!r} is a coroutine function; give a plain one, it has its own thread"
            )
        if not (ask_with is None or isinstance(ask_with, Questioner) or callable(ask_with)):
            raise ConfigurationError(f"ask_with={ask_with!r} cannot be called; give a function of the call's context")
        self._ask_with = ask_with
        self._timeout = duration(timeout, "timeout").total_seconds()
        self._clock = clock
        self._queue = _Queue(clock)
        self._always: set[str] = set()
        self._open: dict[int, CancellationToken] = {}
        self._why: dict[int, str] = {}
        self._unanswered: dict[int, str] = {}

    @property
    def blocks_for(self) -> float | None:
        """The most seconds that a call waits for an answer; None if ``ask`` is empty."""
        return self._timeout if self._ask else None

    @property
    def pending(self) -> int:
        """Number of questions that wait for an answer or for their turn."""
        return len(self._queue.waiting)

    def before_tool_call(self, ctx: ToolCallContext) -> Decision | None:
        """Return None for a tool that may be used, else HALT."""
        why = self._objection(ctx)
        if why is None:
            return None
        self._why[id(ctx)] = why
        return Decision.HALT

    def explain(self, ctx: ToolCallContext) -> str:
        """Say why a call was denied."""
        return self._why.pop(id(ctx), "The tool may be used.")

    def question(self, ctx: ToolCallContext) -> str | None:
        """Return what a person is to be asked about a call that was denied because nobody answered; else None."""
        return self._unanswered.pop(id(ctx), None)

    def release(self, ctx: ToolCallContext) -> None:
        """Withdraw the question about a call, because the call does not run any more."""
        self._why.pop(id(ctx), None)
        self._unanswered.pop(id(ctx), None)
        withdrawn = self._open.get(id(ctx))
        if withdrawn is not None:
            withdrawn.cancel("the call does not run any more")

    def _objection(self, ctx: ToolCallContext) -> str | None:
        """Return why a call may not run, or None if it may."""
        name = ctx.tool_name or ""
        denied = _matching(self._deny, name)
        if denied is not None:
            return f"The tool {name!r} is denied (deny={denied!r})."
        if _matching(self._ask, name) is not None:
            return None if name in self._always or ctx.approved_by is not None else self._answer(ctx, name)
        if _matching(self._allow, name) is None:
            return f"The tool {name!r} is not among those that are allowed."
        return None

    def _answer(self, ctx: ToolCallContext, name: str) -> str | None:
        """Wait for this call's turn and ask; return the objection, or None."""
        until = self._clock.monotonic() + self._timeout
        withdrawn = self._open[id(ctx)] = CancellationToken()
        try:
            with self._queue.turn(until, withdrawn) as came:
                if name in self._always:
                    return None
                left = until - self._clock.monotonic()
                if not came or left <= 0:
                    return self._nobody(ctx, f"Nobody could be asked about the tool {name!r} in time.")
                return self._put(ctx, name, left, withdrawn)
        finally:
            self._open.pop(id(ctx), None)
            withdrawn.cancel("nobody waits for the answer any more")

    def _put(self, ctx: ToolCallContext, name: str, seconds: float, withdrawn: CancellationToken) -> str | None:
        """Ask now; return the objection, or None."""
        ask_with = provided("terminal")() if self._ask_with is None else self._ask_with
        with ATTENTION.held():
            if isinstance(ask_with, Questioner):
                call = BlockingCall[object](partial(ask_with.ask, question(ctx, seconds), withdrawn))
            else:
                call = BlockingCall(partial(ask_with, ctx))
            withdrawn.on_cancel(lambda _: call.wake())
            call.wait(seconds, self._clock)
        if call.leave():
            return self._nobody(ctx, f"Nobody allowed the tool {name!r} within {format_duration(self._timeout)}.")
        said = call.result()
        word = said.strip().lower() if isinstance(said, str) else None
        if word in ALWAYS:
            self._always.add(name)
        if said is True or word in YES or word in ALWAYS:
            return None
        if said is None:
            return self._nobody(ctx, f"Nobody is there to allow the tool {name!r}.")
        return f"The tool {name!r} was not allowed when somebody was asked."

    def _nobody(self, ctx: ToolCallContext, why: str) -> str:
        """Remember that nobody has answered the question about a call; return the objection."""
        self._unanswered[id(ctx)] = f"May {ctx.tool_name} run?"
        return why


class _Queue:
    """Gives turns to threads in the order of their arrival; a thread waits for its turn until its time is over."""

    __slots__ = ("_clock", "_lock", "waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.waiting: deque[threading.Event] = deque()

    @contextmanager
    def turn(self, until: float, withdrawn: CancellationToken) -> Generator[bool]:
        """Wait for a turn and hold it; yield whether it came in time and before the question was withdrawn."""
        mine = threading.Event()
        with self._lock:
            self.waiting.append(mine)
            if self.waiting[0] is mine:
                mine.set()
        withdrawn.on_cancel(lambda _: mine.set())
        try:
            while not mine.is_set() and (left := until - self._clock.monotonic()) > 0:
                self._clock.wait(mine, left)
            yield self.waiting[0] is mine and not withdrawn.is_cancelled
        finally:
            with self._lock:
                self.waiting.remove(mine)
                if self.waiting:
                    self.waiting[0].set()


def question(ctx: ToolCallContext, seconds: float) -> str:
    """Return the text for a terminal: the tool, the beginning of its arguments, and the possible answers."""
    name = (ctx.tool_name or "a tool without a name").replace("\n", "\\n")
    asked = f"\nMay {name} run? "
    if ctx.arguments is not None:
        text = str(ctx.arguments).replace("\n", "\\n")
        rest = len(text) - LONGEST_SHOWN
        more = f" ... and {rest:,} more characters" if rest > 0 else ""
        asked = f"\nMay {name} run with these arguments?\n  {text[:LONGEST_SHOWN]}{more}\n"
    return f"{asked}No answer within {format_duration(seconds)} is a no. [y]es, [a]lways, [N]o: "


def _matching(patterns: tuple[str, ...], name: str) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def words(values: Iterable[str], field: str) -> tuple[str, ...]:
    """Return the texts of a list.

    Args:
        values: The list; a single text is refused, because it would be read letter by letter.
        field: Name for the error message.

    Raises:
        ConfigurationError: If it is a single text or not a list, or if an item is empty or not text.
    """
    if isinstance(values, str):
        raise ConfigurationError(f"{field}={values!r} is one text; write a list of texts: [{values!r}]")
    if not is_listed(values):
        raise ConfigurationError(f"{field}={values!r} must be a list of texts, for example ['read_*']")
    found: list[str] = []
    for value in values:
        if not is_text(value):
            raise ConfigurationError(f"{field}: {value!r} must be a tool's name or a pattern such as 'read_*'")
        found.append(value)
    return tuple(found)
