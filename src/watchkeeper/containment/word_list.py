"""Lists of names and patterns as people write them: checked once, when they are given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from watchkeeper.core.errors import ConfigurationError


def words(values: Iterable[str], field: str) -> tuple[str, ...]:
    """Return the texts of a list.

    Args:
        values: The list; a text alone is refused, because it would be read letter by letter.
        field: Name for the error message.

    Raises:
        ConfigurationError: If it is one text, or holds something else than texts, or an empty one.
    """
    if isinstance(values, str):
        raise ConfigurationError(f"{field}={values!r} is one text; write a list of texts: [{values!r}]")
    found: list[str] = []
    for value in _items(values, field):
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(f"{field}: {value!r} is not a name or a pattern for names")
        found.append(value)
    return tuple(found)


def _items(values: object, field: str) -> Iterable[object]:
    if not isinstance(values, Iterable):
        raise ConfigurationError(f"{field}={values!r} is not a list of texts")
    return cast("Iterable[object]", values)
