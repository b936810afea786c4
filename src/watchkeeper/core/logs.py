"""Structured log lines that go where the host's logging goes.

A library must not print. structlog builds the line, the standard library's logging takes it under the logger
``watchkeeper``; silent until the host configures logging. Names are ``noun.happened``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_made: list[Any] = []


def logger() -> FilteringBoundLogger:
    """Return the structured logger; structlog is imported at the first line that is written."""
    if not _made:
        import structlog

        _made.append(
            structlog.wrap_logger(
                logging.getLogger("watchkeeper"),
                processors=[
                    structlog.stdlib.filter_by_level,
                    structlog.processors.format_exc_info,
                    structlog.processors.KeyValueRenderer(key_order=["event"]),
                ],
                wrapper_class=structlog.stdlib.BoundLogger,
                cache_logger_on_first_use=True,
            )
        )
    return cast("FilteringBoundLogger", _made[0])


def enabled(level: int) -> bool:
    """Return whether anybody listens to lines of this level; cheap, for lines that are written often."""
    return logging.getLogger("watchkeeper").isEnabledFor(level)
