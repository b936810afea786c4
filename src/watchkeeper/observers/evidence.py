"""How observers cite tool calls: by index, with their arguments shortened, so that a reader finds them on the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.tools.invoked import ToolInvoked, error_message

ARGUMENT_CHARS: Final = 60
CITED_CALLS: Final = 6


def cite(calls: Sequence[ToolInvoked], indices: Iterable[int], *, errors: bool = False) -> str:
    """Return one line for each of some calls; of many the first and the last ones.

    Args:
        calls: Every call of the session.
        indices: Which of them, from 1.
        errors: Whether to say what went wrong.
    """
    wanted = [index for index in indices if 0 < index <= len(calls)]
    lines = [line_of(calls[index - 1], index, errors=errors) for index in wanted[: CITED_CALLS // 2]]
    rest = wanted[CITED_CALLS // 2 :]
    left_out = len(rest) - CITED_CALLS // 2
    if left_out > 0:
        lines.append(f"... {left_out:,} more ...")
        rest = rest[left_out:]
    return "\n".join([*lines, *(line_of(calls[index - 1], index, errors=errors) for index in rest)])


def line_of(call: ToolInvoked, index: int, *, errors: bool = False) -> str:
    """Return one call in a line: ``#12 edit_file(path='a.py', text='import os...')``."""
    said = f"#{index} {call.name}({shorten(arguments_of(call.params))})"
    message = error_message(call) if errors else None
    return f"{said} → {shorten(message, 2 * ARGUMENT_CHARS)}" if message else said


def arguments_of(params: Any) -> str:
    """Return arguments as a person would write them."""
    if isinstance(params, str):
        return params
    fields: Iterable[str] = getattr(params, "__struct_fields__", ()) or getattr(params, "__dataclass_fields__", ())
    named: dict[str, Any] = {name: getattr(params, name) for name in fields}
    if isinstance(params, dict):
        named = cast("dict[str, Any]", params)
    elif not named:
        return repr(params)
    return ", ".join(f"{name}={_value(value)}" for name, value in named.items())


def _value(value: Any) -> str:
    return json.dumps(shorten(value), ensure_ascii=False) if isinstance(value, str) else shorten(repr(value))


def shorten(text: str, most: int = ARGUMENT_CHARS) -> str:
    """Return a text on one line, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def check_count(observer: str, field: str, value: object, least: int = 1) -> None:
    """Refuse a threshold that is no whole number of at least ``least``.

    Raises:
        ObserverError: Naming observer, field and value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ObserverError(f"{observer}({field}={value!r}) must be a whole number of at least {least}")


def check_share(observer: str, field: str, value: object) -> None:
    """Refuse a threshold that is no share between 0 and 1.

    Raises:
        ObserverError: Naming observer, field and value.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise ObserverError(f"{observer}({field}={value!r}) must be more than 0 and less than 1")
