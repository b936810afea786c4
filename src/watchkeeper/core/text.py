"""Texts that somebody else wrote, before they are recorded or shown to a model: bounded, and as UTF-8 holds them.

What is cut is said, so that no reader takes a part for the whole.
"""

from __future__ import annotations


def bounded(text: str, most: int) -> str:
    """Return a text, cut with a note if it is longer than it may be.

    Args:
        text: Of any length.
        most: Characters that are kept.
    """
    if len(text) <= most:
        return storable(text)
    return f"{storable(text[:most])}\n[cut: {len(text) - most:,} more characters]"


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


# --- wording --------------------------------------------------------------------------------------------------------
# Anything as text, also what cannot say what it is: a call is settled and recorded whatever its errors look like.


def written(error: BaseException | None) -> str:
    """Return an error as text: its kind and what it says."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as raised:
        return f"{name}, which raised {type(raised).__name__} when asked what it says"


def shown(value: object) -> str:
    """Return a value as it shows itself."""
    try:
        return repr(value)
    except Exception as raised:
        return f"a {type(value).__name__}, which raised {type(raised).__name__} when asked to show itself"
