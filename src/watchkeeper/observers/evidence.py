"""What the observers of this package share: how they cite calls, what is news to the agent, and checks of settings.

Calls are cited by their number in the session, with shortened arguments, so that a reader finds them on the log. The
cost of a citation does not grow with the size of the arguments. A setting that is refused is named with its observer
and its value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import is_share, is_text, is_whole
from watchkeeper.core.text import clipped
from watchkeeper.prompt.advice import Assessment, check_source_name
from watchkeeper.prompt.observer import ObserverContext, on_loop
from watchkeeper.runtime.advice_events import AdviceAcknowledged
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked, error_message

VALUE_CHARS: Final = 48
ARGUMENT_CHARS: Final = 120
MESSAGE_CHARS: Final = 120
CITED_CALLS: Final = 6
CITED_ARGUMENTS: Final = 8

ANSWERS: Final = 10
"""The number of the agent's newest answers to advice that are read."""


def cite(calls: Sequence[ToolInvoked], indices: Iterable[int], *, errors: bool = False) -> str:
    """Return one line for each of some calls; of many the first and the last ones.

    Args:
        calls: Every call of the session.
        indices: Numbers of the calls to cite, from 1; numbers without a call are left out.
        errors: Whether to add the error message.
    """
    wanted = [index for index in indices if 0 < index <= len(calls)]
    half = CITED_CALLS // 2
    left_out = max(len(wanted) - 2 * half, 0)
    first, last = wanted[:half], wanted[half + left_out :]
    lines = [line_of(calls[index - 1], index, errors=errors) for index in first]
    if left_out:
        lines.append(f"... {left_out:,} more ...")
    return "\n".join([*lines, *(line_of(calls[index - 1], index, errors=errors) for index in last)])


def line_of(call: ToolInvoked, index: int, *, errors: bool = False) -> str:
    """Return one call in a line: ``#12 edit_file(path='a.py', text='import os ...')``.

    Args:
        call: The call to describe.
        index: Its number in the session, from 1.
        errors: Whether to add the error message.
    """
    said = f"#{index} {shorten(call.name)}({shorten(arguments_of(call.params), ARGUMENT_CHARS)})"
    message = error_message(call) if errors else None
    return f"{said} → {shorten(message, MESSAGE_CHARS)}" if message else said


def arguments_of(params: Any) -> str:
    """Return arguments as in a Python call, each value shortened, and of very many the first ones.

    Args:
        params: Decoded arguments, or the text that the model wrote in their place.
    """
    if isinstance(params, str):
        return shorten(params, ARGUMENT_CHARS)
    fields: Iterable[str] | None = getattr(params, "__struct_fields__", None)
    if fields is None:
        fields = getattr(params, "__dataclass_fields__", None)
    if isinstance(params, dict):
        named = cast("dict[str, Any]", params)
    elif fields is not None:
        named = {name: getattr(params, name) for name in fields}
    else:
        return "" if params is None else reprlib.repr(params)
    shown = [f"{name}={_value(value)}" for (name, value), _ in zip(named.items(), range(CITED_ARGUMENTS), strict=False)]
    return ", ".join([*shown, "…"] if len(named) > CITED_ARGUMENTS else shown)


def _value(value: Any) -> str:
    return repr(shorten(value)) if isinstance(value, str) else shorten(reprlib.repr(value))


def shorten(text: str, most: int = VALUE_CHARS) -> str:
    """Return a text on one line, cut where it is too long.

    Args:
        text: Of any length; at most eight times ``most`` characters of it are read.
        most: Characters that may be shown.
    """
    line = " ".join(text[: 8 * most].split())
    return clipped(line, most) if len(text) <= 8 * most else f"{line[: most - 1]}…"


def told_up_to(session: Session, name: str, since: int) -> int:
    """Return the last call up to which the agent was told or asked not to be told, ``since`` or a later one.

    Args:
        session: The run's session.
        name: The observer's name.
        since: The last call at which the observer was asked.
    """
    for assessment in reversed(session[Assessment].all()):
        if assessment.call_index <= since:
            break
        if assessment.observer_name == name:
            since = assessment.call_index
    for answer in session[AdviceAcknowledged].all()[-ANSWERS:]:
        if answer.source == name:
            since = max(since, answer.call_index + answer.for_calls)
    return since


class Dated(Protocol):
    """Trouble as it stood after one call: ``index``, the call's number in the session."""

    @property
    def index(self) -> int: ...


D = TypeVar("D", bound=Dated)


class CallByCall(Generic[D]):
    """An observer that judges every call, and tells of trouble that stood after calls since its last look.

    The agent is not told again of what stood when it was last told, unless that stands after the newest call.
    """

    __slots__ = ()

    name: str

    @on_loop
    def should_run(self, session: Session, *, context: ObserverContext) -> bool:
        """Whether there was trouble after a call since the last look."""
        return bool(self._since(context))

    def observe(self, session: Session, *, context: ObserverContext) -> Assessment | None:
        """Return what to tell of the trouble since the last look; None if the agent was told of all of it."""
        found, count = self._since(context), context.trajectory.count
        if found and (len(found) > 1 or found[-1].index < count):
            told = told_up_to(session, self.name, count - context.trajectory.unseen_by(self.name))
            found = [each for each in found if each.index > told or each.index == count]
        return self._assessment(found, session, context) if found else None

    def _since(self, context: ObserverContext) -> Sequence[D]:
        """Return the trouble that stood after the calls since the last look, the oldest first."""
        raise NotImplementedError

    def _assessment(self, found: Sequence[D], session: Session, context: ObserverContext) -> Assessment:
        """Return what to tell of trouble of which there is some."""
        raise NotImplementedError


def check_settings(observer: Any, *shares: str, **counts: tuple[int, int | None]) -> None:
    """Refuse an observer whose name or thresholds are out of range.

    Args:
        observer: The observer, with its settings as attributes.
        shares: Names of the settings that are shares between 0 and 1.
        counts: By name, the least and the most of the settings that are whole numbers; None for no upper bound.

    Raises:
        ObserverError: Naming observer, field and value.
    """

    def said(field: str) -> str:
        return f"{type(observer).__name__}({field}={clipped(reprlib.repr(getattr(observer, field)), VALUE_CHARS)})"

    for field in shares:
        if not is_share(getattr(observer, field)):
            raise ObserverError(f"{said(field)} must be more than 0 and less than 1")
    for field, (least, most) in counts.items():
        if not is_whole(getattr(observer, field), least, most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise ObserverError(f"{said(field)} must be a whole number {bounds}")
    if not is_text(observer.name):
        raise ObserverError(f"{said('name')} must have a name: a text that is not empty")
    check_source_name(observer.name, said("name"))
