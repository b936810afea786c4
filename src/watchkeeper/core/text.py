"""Makes texts from outside fit to be recorded and shown, bounded and valid as UTF-8; and writes to the host's log.

What is cut is said, so that no reader takes a part for the whole. Errors and values become text whatever their own
methods do, because a call is settled and recorded even if its error cannot say what it is.

A library must not print. structlog builds a log line, the standard library's logging takes it under the logger
``watchkeeper``; silent until the host configures logging. Names of lines are ``noun.happened``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

from watchkeeper.core.secrets import redacted

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def bounded(text: str, most: int) -> str:
    """Return a text, cut with a note if it is longer than it may be.

    Args:
        text: Of any length.
        most: Characters that are kept.
    """
    if len(text) <= most:
        return storable(text)
    return f"{storable(text[:most])}\n[cut: {len(text) - most:,} more characters]"


def clipped(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters; an ellipsis ends one that was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def storable(text: str) -> str:
    """Return a text as UTF-8 can hold it: lone surrogates, which file names bring along, become question marks."""
    return text if is_storable(text) else text.encode("utf-8", "replace").decode()


def is_storable(text: str) -> bool:
    """Return whether UTF-8 can hold a text as it is: lone surrogates, which models do write, have none."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class CrashError(Exception):
    """Stands for something raised by the user's code that is no Exception, where only Exceptions are taken."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error_text(error))


def error_text(error: BaseException | None) -> str:
    """Return an error's type and message, as in ``KeyError: 'name'``; the type alone if there is no message."""
    if error is None:
        return "no error"
    kind = type(error).__name__
    try:
        message = str(error)
    except Exception as worse:
        return f"{kind}, whose message cannot be read: {type(worse).__name__}"
    if isinstance(error, CrashError):
        return message
    return f"{kind}: {message}" if message else kind


def shown(value: object) -> str:
    """Return the ``repr`` of a value, or a note if it has none."""
    try:
        return repr(value)
    except Exception as worse:
        return f"a {type(value).__name__}, whose repr cannot be read: {type(worse).__name__}"


@cache
def logger() -> FilteringBoundLogger:
    """Return the structured logger; structlog and logging are imported at the first line that is written."""
    import logging

    import structlog

    made = structlog.wrap_logger(
        logging.getLogger("watchkeeper"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
            _redacted_line,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("FilteringBoundLogger", made)


def _redacted_line(_: object, __: str, line: Any) -> str:
    return redacted(line)


def is_logged(level: int) -> bool:
    """Return whether anybody listens to lines of this level; cheap, for lines that are written often."""
    import logging  # not above: the process of an isolated tool needs texts and no log

    return logging.getLogger("watchkeeper").isEnabledFor(level)
