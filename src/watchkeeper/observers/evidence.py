"""What Watchkeeper's observers share: how they cite tool calls, and how they refuse invalid settings.

Calls are cited by their number in the session, with shortened arguments, so that a reader finds them on the log.
However large the arguments are, no more of them is read than is shown. A refusal names observer, field and value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import is_share, is_whole
from watchkeeper.core.text import clipped
from watchkeeper.prompt.advice import check_source_name
from watchkeeper.tools.context import ToolInvoked, error_message

VALUE_CHARS: Final = 48
ARGUMENT_CHARS: Final = 120
MESSAGE_CHARS: Final = 120
CITED_CALLS: Final = 6
CITED_ARGUMENTS: Final = 8


def cite(calls: Sequence[ToolInvoked], indices: Iterable[int], *, errors: bool = False) -> str:
    """Return one line for each of some calls; of many the first and the last ones.

    Args:
        calls: Every call of the session.
        indices: Which of them, from 1; others than there are say nothing.
        errors: Whether to say what went wrong.
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
        call: Which call.
        index: Its number in the session, from 1.
        errors: Whether to say what went wrong.
    """
    said = f"#{index} {shorten(call.name)}({shorten(arguments_of(call.params), ARGUMENT_CHARS)})"
    message = error_message(call) if errors else None
    return f"{said} → {shorten(message, MESSAGE_CHARS)}" if message else said


def arguments_of(params: Any) -> str:
    """Return arguments as a person would write them; each value shortened, and of very many the first ones.

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
        text: Of any length; no more than eight times of what may be shown is looked at.
        most: Characters that may be shown.
    """
    line = " ".join(text[: 8 * most].split())
    return clipped(line, most) if len(text) <= 8 * most else f"{line[: most - 1]}…"


def _shown(value: object) -> str:
    return clipped(reprlib.repr(value), VALUE_CHARS)


def check_settings(observer: Any, *shares: str, **counts: tuple[int, int | None]) -> None:
    """Refuse an observer whose name or thresholds make no sense.

    Args:
        observer: It, with its settings as attributes.
        shares: The names of those that are shares between 0 and 1.
        counts: By name, the least and the most of those that are whole numbers; None where there is no most.

    Raises:
        ObserverError: Naming observer, field and value.
    """
    kind = type(observer).__name__
    for field in shares:
        check_share(kind, field, getattr(observer, field))
    for field, (least, most) in counts.items():
        check_count(kind, field, getattr(observer, field), least, most)
    check_name(kind, observer.name)


def check_count(observer: str, field: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Refuse a threshold that is no whole number of at least ``least``, and where there is one at most ``most``.

    Raises:
        ObserverError: Naming observer, field and value.
    """
    if not is_whole(value, least, most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ObserverError(f"{observer}({field}={_shown(value)}) must be a whole number {bounds}")


def check_share(observer: str, field: str, value: object) -> None:
    """Refuse a threshold that is no share between 0 and 1.

    Raises:
        ObserverError: Naming observer, field and value.
    """
    if not is_share(value):
        raise ObserverError(f"{observer}({field}={_shown(value)}) must be more than 0 and less than 1")


def check_name(observer: str, name: object) -> None:
    """Refuse a name under which nobody could be found, or that could not stand in a heading.

    Raises:
        ObserverError: Naming observer and value.
    """
    said = f"{observer}(name={_shown(name)})"
    if not isinstance(name, str) or not name.strip():
        raise ObserverError(f"{said} must have a name: a text that is not empty")
    check_source_name(name, said)
