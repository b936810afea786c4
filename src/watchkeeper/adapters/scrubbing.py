"""Takes credentials out of the errors of providers' SDKs, whose texts may repeat the key that was sent.

`scrub` replaces them in the texts of an error and of those that caused it. Some errors make their text anew whenever it
is asked for; `conceal` puts others in the place of these, so that a traceback does not show them either.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.core.secrets import HELD, REDACTED, redacted


def scrub(error: BaseException | None) -> None:
    """Redact the credentials in the texts of an error and of the errors that caused it; changes them in place.

    An error of a provider's SDK repeats the provider's message, which may contain the key that was sent. A traceback
    shows that error too, even if the error raised in its place does not contain the key.
    """
    if not HELD.any:
        return
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(_scrubbed(each) for each in error.args)
        for name, value in list(vars(error).items()):
            if isinstance(value, str | dict | list):
                setattr(error, name, _scrubbed(value))
        error = error.__cause__ or error.__context__


class RedactedError(Exception):
    """Stands in a traceback for an error whose own text shows a credential and cannot be changed."""


def conceal(error: BaseException) -> None:
    """Replace the errors behind one whose texts show a credential although they were scrubbed.

    Errors of aiohttp make their text of the request, with its address or that of the proxy.
    """
    import traceback

    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        behind = error.__cause__ or error.__context__
        if behind is None:
            return
        said = "".join(traceback.format_exception_only(behind)).strip()
        if redacted(said) != said:
            stand_in = RedactedError(redacted(said)).with_traceback(behind.__traceback__)
            stand_in.__context__, stand_in.__cause__ = behind.__context__, behind.__cause__
            stand_in.__suppress_context__ = behind.__suppress_context__
            is_cause, behind = error.__cause__ is behind, stand_in
            error.__context__ = stand_in
            if is_cause:
                error.__cause__ = stand_in
        error = behind


def _scrubbed(value: Any) -> Any:
    try:
        return HELD.redacted_data(value) if isinstance(value, str | dict | list) else value
    except RecursionError:  # data from a provider may be nested too deeply
        return REDACTED
