"""Which tools may be used: allowed, denied, or asked about.

Of the patterns that match a tool's name the most cautious counts: deny, then ask, then allow; a name that none matches
is denied. Whatever is no clear yes is a no: also when nobody is there, nothing is said in time, or whoever is asked
fails. Questions are put one after the other, and no call is held for longer than the time-out, its time in the queue
included. By default the person at the process's terminal is asked; `core.lazy_names` knows who does that.
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
from watchkeeper.shield.decision import Decision, ToolCallContext

AskWith = Callable[[ToolCallContext], object]
"""Asks a person: True or "yes" lets this call run, "always" every later one of the tool too; all else is no."""

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
            question: What to show.
            withdrawn: Cancelled when nobody waits for the answer any more.

        Returns:
            The answer; None if nobody is there or the question was withdrawn.
        """


class ToolPermissionHook:
    """Allows or denies tools by their names, or asks a person.

    Args:
        allow: Names, or patterns as of file names ("read_*"), of tools that may be used; by default all.
        deny: Those that may not.
        ask: Those to ask about.
        ask_with: Asks a person and waits for the answer, on a thread of its own; by default the process's terminal.
        timeout: How long a call is held for an answer at most; then it is denied.
        clock: Where time comes from.

    Attributes:
        blocks_for: Seconds for which a question may hold a call; None if no tool is asked about.

    Raises:
        ConfigurationError: If a value makes no sense.
    """

    __slots__ = ("_allow", "_always", "_ask", "_ask_with", "_clock", "_deny", "_open", "_queue", "_timeout", "_why")

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

    @property
    def blocks_for(self) -> float | None:
        """Seconds for which a question may hold a call; None if no tool is asked about."""
        return self._timeout if self._ask else None

    @property
    def pending(self) -> int:
        """Number of questions that wait for an answer, or for their turn."""
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

    def release(self, ctx: ToolCallContext) -> None:
        """Withdraw what is being asked about a call: it does not run any more, whatever the answer."""
        self._why.pop(id(ctx), None)
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
            return None if name in self._always else self._answer(ctx, name)
        if _matching(self._allow, name) is None:
            return f"The tool {name!r} is not among those that are allowed."
        return None

    def _answer(self, ctx: ToolCallContext, name: str) -> str | None:
        """Ask when it is this call's turn; return the objection."""
        until = self._clock.monotonic() + self._timeout
        withdrawn = self._open[id(ctx)] = CancellationToken()
        try:
            with self._queue.turn(until, withdrawn) as came:
                if name in self._always:
                    return None
                left = until - self._clock.monotonic()
                if not came or left <= 0:
                    return f"Nobody could be asked about the tool {name!r} in time."
                return self._put(ctx, name, left, withdrawn)
        finally:
            self._open.pop(id(ctx), None)
            withdrawn.cancel("nobody waits for the answer any more")

    def _put(self, ctx: ToolCallContext, name: str, seconds: float, withdrawn: CancellationToken) -> str | None:
        """Ask, now; return the objection."""
        ask_with = provided("terminal")() if self._ask_with is None else self._ask_with
        if isinstance(ask_with, Questioner):
            call = BlockingCall[object](partial(ask_with.ask, question(ctx, seconds), withdrawn))
        else:
            call = BlockingCall(partial(ask_with, ctx))
        withdrawn.on_cancel(lambda _: call.wake())
        call.wait(seconds, self._clock)
        if call.leave():
            return f"Nobody allowed the tool {name!r} within {format_duration(self._timeout)}."
        said = call.result()
        word = said.strip().lower() if isinstance(said, str) else None
        if word in ALWAYS:
            self._always.add(name)
        if said is True or word in YES or word in ALWAYS:
            return None
        if said is None:
            return f"Nobody is there to allow the tool {name!r}."
        return f"The tool {name!r} was not allowed when somebody was asked."


class _Queue:
    """Gives turns to threads, in the order in which they came, each at most until its time is over."""

    __slots__ = ("_clock", "_lock", "waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.waiting: deque[threading.Event] = deque()

    @contextmanager
    def turn(self, until: float, withdrawn: CancellationToken) -> Generator[bool]:
        """Wait for a turn and hold it; give whether it came, in time and before the question was withdrawn."""
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
    """Return what is shown on a terminal: the tool, the beginning of its arguments, and what may be answered."""
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
        values: The list; a text alone is refused, because it would be read letter by letter.
        field: Name for the error message.

    Raises:
        ConfigurationError: If it is one text, or holds something else than texts, or an empty one.
    """
    if isinstance(values, str):
        raise ConfigurationError(f"{field}={values!r} is one text; write a list of texts: [{values!r}]")
    if not is_listed(values):
        raise ConfigurationError(f"{field}={values!r} is not a list of texts")
    found: list[str] = []
    for value in values:
        if not is_text(value):
            raise ConfigurationError(f"{field}: {value!r} is not a name or a pattern for names")
        found.append(value)
    return tuple(found)
