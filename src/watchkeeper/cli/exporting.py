"""``--otel``: whether telemetry is exported, and the trace in which a command was started.

The SDK of OpenTelemetry is imported only if something is to be exported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from watchkeeper.app.options import RunOptions
from watchkeeper.core.errors import ConfigurationError, MissingExtraError
from watchkeeper.core.trace.place import VARIABLE, place_from
from watchkeeper.runtime.portal import EndRequests

if TYPE_CHECKING:
    from watchkeeper.telemetry.export import Export

Tell = Callable[[str], object]

DISABLED: Final = "OTEL_SDK_DISABLED"

SWITCHES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_LOGS_EXPORTER",
)
"""Variables that switch the export on without ``--otel``, unless they say none."""


def is_wanted(chosen: bool | None, environ: Mapping[str, str]) -> bool:
    """Return whether telemetry is to be exported.

    Args:
        chosen: ``--otel`` or ``--no-otel``; None if neither was given.
        environ: The environment.
    """
    if environ.get(DISABLED, "").strip().lower() == "true":
        return False
    return any(environ.get(name, "").strip() not in ("", "none") for name in SWITCHES) if chosen is None else chosen


@contextmanager
def exporting(
    chosen: bool | None, environ: Mapping[str, str], requests: EndRequests, tell: Tell
) -> Generator[RunOptions]:
    """Export telemetry while the block runs, if that is wanted, and yield the options of the run that are for that.

    At the end what is left is sent in a bounded time, which a signal breaks off. What goes wrong is told in one line
    and changes nothing else.

    Args:
        chosen: ``--otel`` or ``--no-otel``; None if neither was given.
        environ: The environment.
        requests: The signals to end.
        tell: Gets the lines.

    Raises:
        MissingExtraError: For ``--otel`` without OpenTelemetry.
        ConfigurationError: If the variables ask for what there is not.
    """
    options: RunOptions = {}
    given = environ.get(VARIABLE, "").strip()
    if given:
        try:
            place_from(given)
            options["traceparent"] = given
        except ConfigurationError as error:
            tell(f"{VARIABLE} is not used: {error}")
    export = opened(chosen, environ, tell) if is_wanted(chosen, environ) else None
    if export is None:
        yield options
        return
    try:
        yield {**options, "telemetry": export.telemetry}
    finally:
        try:
            complaint = requests.broken_off_by(export.finish)
        except KeyboardInterrupt:
            complaint = "the export of telemetry was broken off by a signal"
        if complaint:
            tell(complaint)


def opened(chosen: bool | None, environ: Mapping[str, str], tell: Tell) -> Export | None:
    """Begin to export; without OpenTelemetry, variables that are set for other programs do not stop the run."""
    try:
        from watchkeeper.telemetry.export import Export
    except ImportError as error:
        missing = MissingExtraError("--otel" if chosen else "The export of telemetry", "otel")
        if chosen:
            raise missing from error
        tell(f"{missing}; --no-otel silences this line")
        return None
    return Export(environ)
