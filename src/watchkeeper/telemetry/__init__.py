"""OpenTelemetry: spans, metrics and events of runs (the extra ``otel``; docs/telemetry.md)."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.telemetry.telemetry import Telemetry as Telemetry
else:
    __getattr__, __dir__, __all__ = public_names(__name__, {"telemetry.telemetry": "Telemetry"})
