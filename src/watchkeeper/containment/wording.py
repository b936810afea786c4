"""Anything as text, also what cannot say what it is: a call is settled and recorded whatever its errors look like."""

from __future__ import annotations


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
