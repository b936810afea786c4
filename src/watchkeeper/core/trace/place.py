"""Where in a trace the running code is: W3C trace context, read and written, and a context variable.

A run puts its own place in force for its code, and a tracer, if there is one, that of each call. Log lines, the headers
of our HTTP clients and the environment of isolated tools name that place. Nothing here knows OpenTelemetry; where a
program has imported that, `ambient` reads the span that is current in it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Generator, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from watchkeeper.core.errors import ConfigurationError

VARIABLE: Final = "TRACEPARENT"
"""The environment variable in which a program is told its place in a trace."""

HEADER: Final = "traceparent"
SAMPLED: Final = 1

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class Place(msgspec.Struct, frozen=True, gc=False):
    """A span of a trace.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        run_id: The run that the span belongs to; empty if it is no run of ours.
        flags: The flags of the trace; the lowest bit says that it is sampled.
    """

    trace_id: str
    span_id: str
    run_id: str = ""
    flags: int = SAMPLED

    @property
    def traceparent(self) -> str:
        """The place as the value of a ``traceparent`` header."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


HERE: Final[ContextVar[Place | None]] = ContextVar("watchkeeper_trace", default=None)
"""The place of the running code; None outside of all runs."""


def place_from(traceparent: object) -> Place:
    """Read a ``traceparent``.

    Raises:
        ConfigurationError: If it is none.
    """
    found = _FORM.fullmatch(traceparent.strip()) if isinstance(traceparent, str) else None
    if found is not None:
        version, trace_id, span_id, flags, more = found.groups()
        if version != "ff" and not (version == "00" and more) and int(trace_id, 16) and int(span_id, 16):
            return Place(trace_id, span_id, flags=int(flags, 16))
    raise ConfigurationError(
        f"traceparent={traceparent!r} must have the form 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, in"
        " lower case and not all zero"
    )


def ambient() -> Place | None:
    """Return the current span of OpenTelemetry, if the program uses it; None if there is none."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    current = api.get_current_span().get_span_context()
    if not current.is_valid:
        return None
    return Place(f"{current.trace_id:032x}", f"{current.span_id:016x}", flags=int(current.trace_flags))


def traceparent_here() -> str | None:
    """Return the place of the running code, as it is passed on to other programs; None outside of all runs."""
    here = HERE.get()
    return None if here is None else here.traceparent


def passed_on(headers: Container[str] = ()) -> list[tuple[str, str]]:
    """Return the header that continues the trace in a request, unless there is one among its headers."""
    here = HERE.get()
    return [] if here is None or HEADER in headers else [(HEADER, here.traceparent)]


@contextmanager
def at(place: Place | None) -> Generator[None]:
    """Put a place in force for the code in a ``with`` block; None changes nothing."""
    if place is None:
        yield
        return
    token = HERE.set(place)
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context than it was entered in, which keeps its own place
            HERE.reset(token)


def on_line(_: object, __: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Bind the ids of the run and the span of the running code to a log line, unless it names others itself."""
    here = HERE.get()
    if here is not None:
        for name, value in (("run_id", here.run_id), ("trace_id", here.trace_id), ("span_id", here.span_id)):
            if value:
                facts.setdefault(name, value)
    return facts
