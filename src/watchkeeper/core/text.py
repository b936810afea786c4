"""Makes texts from outside safe to record and show (bounded, valid UTF-8), and writes to the host's log.

A cut text says that it was cut, so that no reader takes a part for the whole. Errors and values become text even if
their own ``__str__`` or ``__repr__`` raises, because their call must still be settled and recorded.

Texts of models, tools, files and servers must never act on a terminal. `printable` is the only place that decides which
characters are shown as escapes; whatever writes to a terminal uses it, and breaks long lines at `fold_points`.

A library must not print. structlog builds a log line and passes it to the standard library's logger
``watchkeeper``; it is silent until the host configures logging. Names of lines are ``noun.happened``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from watchkeeper.core.secrets import redacted
from watchkeeper.core.trace.place import on_line

if TYPE_CHECKING:
    from types import TracebackType

    from structlog.typing import FilteringBoundLogger

_UNSEEN: Final = (  # compiled when it is needed: that takes milliseconds
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1: escape sequences, the cursor, the bell
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of text
    "\u2028\u2029"  # other line ends
    "\u17b4\u17b5\u3164\uffa0"  # invisible letters
    "\xad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"  # invisible, and needed by no script
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff]"  # lone surrogates
)

_UNSEEN_LETTERS: Final = "\u17b4\u17b5\u3164\uffa0"
"""Those of the pattern that Python calls printable; others are above U+FFFF."""

_PACKAGE: Final = __file__.removesuffix("core/text.py")

MOST_FRAMES: Final = 20
"""Frames of a traceback that are kept: the last ones."""

MOST_ERRORS: Final = 4
"""Errors of a traceback that are kept: the last one, and those before it."""

MOST_TRACEBACK_CHARS: Final = 4_000

LONGEST_SLIP: Final = 200
"""Characters of the longest name for which a near one is looked for."""

_AND_THEN: Final = "\n\nDuring handling of the above exception, another exception occurred:\n\n"

_SEPARATORS: Final = re.compile("[,;:] |^[\"'`]")


def printable(text: str) -> str:
    """Return a text in which characters that act on a terminal, hide text or change its direction are escaped.

    Tabs and newlines stay; so do the joiners U+200C and U+200D, because several scripts need them.
    """
    if text.isprintable() and (text.isascii() or not _may_hold_unseen_letters(text)):
        return text  # nearly every text; the pattern takes many times longer
    return re.sub(_UNSEEN, lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def _may_hold_unseen_letters(text: str) -> bool:
    """Return whether a text that Python calls printable may nevertheless hold something of the pattern."""
    return any(map(text.__contains__, _UNSEEN_LETTERS)) or len(text.encode("utf-16-le")) > 2 * len(text)


def one_line(text: str, cut: int | None = None) -> str:
    """Return a text as one printable line, cut with an ellipsis if it is longer than ``cut`` characters."""
    if cut is not None and len(text) > 2 * cut:  # most of a long text is not looked at
        line = " ".join(text[: 2 * cut].split())
        if len(line) > cut:
            return clipped(printable(line), cut)
    line = printable(" ".join(text.split()))
    return line if cut is None else clipped(line, cut)


def one_name(name: str) -> str:
    """Return a name, such as a path, for a list on one line: quoted if it could be taken for more than one name.

    Whoever chose the name could otherwise add entries and lines to what a model or a person is told.
    """
    plain = name.isprintable() and name == name.strip() and not _SEPARATORS.search(name) and name
    return name if plain else repr(name)


def fold_points(line: str, width: int, margin: int = 0) -> list[int]:
    """Return where to break a line so that the terminal does not wrap it.

    A terminal continues a long line at the left edge, where its text could imitate a separate line.

    Args:
        line: Printable, without a newline.
        width: Columns of the first part. A character counts at least as many columns as a terminal gives it.
        margin: Columns before every further part.
    """
    points: list[int] = []
    column = 0
    for index, character in enumerate(line):
        columns = 8 if character == "\t" else 1 + (unicodedata.east_asian_width(character) in "WF")
        if column + columns > width and index > (points[-1] if points else 0):
            points.append(index)
            column = margin
        column += columns
    return points


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return which known name was probably meant; None if none is alike, or ``name`` is too long for a slip of the pen.

    To compare a name of megabytes takes half a minute.
    """
    if len(name) > LONGEST_SLIP:
        return None
    import difflib  # few processes need it

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def bounded(text: str, most: int) -> str:
    """Return a text, cut with a note if it is longer than ``most`` characters.

    Args:
        text: Of any length.
        most: Characters that are kept.
    """
    if len(text) <= most:
        return storable(text)
    return f"{storable(text[:most])}\n[cut: {len(text) - most:,} more characters]"


def clipped(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters; a longer text is cut and ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def storable(text: str) -> str:
    """Return a text as UTF-8 can hold it: lone surrogates, which can come from file names, become ``?``."""
    return text if is_storable(text) else text.encode("utf-8", "replace").decode()


def is_storable(text: str) -> bool:
    """Return whether UTF-8 can hold a text as it is; False if it has lone surrogates, which models do write."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class CrashError(Exception):
    """Replaces a BaseException that user code raised, where only an Exception is accepted."""

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


def traceback_text(error: BaseException, said: str) -> str:
    """Return where an error was raised, as Python prints it; redacted, and bounded by leaving out the beginning.

    The frames above the user's code, which are those of the runtime and of asyncio, are left out. Errors before this
    one are named by their types: to read a message can take long, because it is code of the user.

    Args:
        error: What was raised.
        said: Its type and message, which have been read already.
    """
    import traceback  # only few processes need it

    blocks: list[str] = []
    behind: BaseException | None = error
    while behind is not None and len(blocks) < MOST_ERRORS:
        place = behind.__traceback__
        while place is not None and _is_above(place):
            place = place.tb_next
        frames = traceback.extract_tb(place or behind.__traceback__, limit=-MOST_FRAMES).format()
        blocks.append(f"Traceback (most recent call last):\n{''.join(frames)}{said}")
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)
        said = type(behind).__name__
    return bounded_traceback(_AND_THEN.join(reversed(blocks)))


def bounded_traceback(text: str) -> str:
    """Return a traceback, perhaps of another process, redacted and without what is too much at its beginning."""
    text = storable(redacted(text))
    over = len(text) - MOST_TRACEBACK_CHARS
    return f"[cut: {over:,} characters before this]\n{text[over:]}" if over > 0 else text


def _is_above(place: TracebackType) -> bool:
    frame = place.tb_frame
    if frame.f_code.co_filename.startswith(_PACKAGE):
        return True
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("asyncio", "concurrent", "threading")


def shown(value: object) -> str:
    """Return the ``repr`` of a value, or a note if it has none."""
    try:
        return repr(value)
    except Exception as worse:
        return f"a {type(value).__name__}, whose repr cannot be read: {type(worse).__name__}"


@cache
def logger() -> FilteringBoundLogger:
    """Return the structured logger; structlog and logging are imported at the first line that is written.

    A NullHandler is added, because otherwise the standard library's last-resort handler would print warnings.
    """
    import logging

    import structlog

    under = logging.getLogger("watchkeeper")
    under.addHandler(logging.NullHandler())
    made = structlog.wrap_logger(
        under,
        processors=[
            structlog.stdlib.filter_by_level,
            on_line,
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
    """Return whether the host logs lines of this level; cheap, for lines that are written often."""
    import logging  # not at the top: the process of an isolated tool needs this module, but no logging

    return logging.getLogger("watchkeeper").isEnabledFor(level)
