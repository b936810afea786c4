"""What stands in a stored line, as plain JSON: without the names of types, and of the kinds that it must be.

A line may be damaged, or written by another version or program. So whoever reads one without its types expects any of
`UNREADABLE`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Any, Final, cast

import msgspec

from watchkeeper.session.tagging import MARK, PLAIN_TAGS

HOLDERS: Final = frozenset({"type", *PLAIN_TAGS})
"""Tags of the standard library's types, which hold one thing."""

MAPPINGS: Final = frozenset({"dict", "mapping_proxy", "ordered_dict", "counter", "defaultdict"})

UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, msgspec.MsgspecError)
"""Errors that damaged data can raise."""


def whole(value: object) -> int:
    """Return a value that must be a whole number."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def moment(text: str) -> datetime:
    """Return a time, which is written with its zone and has a year in UTC."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the time {text} has no zone")
    if found.year in (MINYEAR, MAXYEAR):
        try:
            found.astimezone(UTC)
        except OverflowError as error:
            raise ValueError(f"the time {text} is out of range") from error
    return found


def as_text(*values: object) -> str:
    """Return the last of several values, all of which must be text; what UTF-8 cannot hold is written as escapes."""
    text = ""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no text")
        text = value
    return text.encode("utf-8", "backslashreplace").decode()


def as_fields(data: object) -> dict[str, Any]:
    """Return data that must be an object of JSON."""
    if not isinstance(data, dict):
        raise TypeError(f"{data!r} is no object of JSON")
    return cast("dict[str, Any]", data)


def said_in(message: Mapping[str, Any], other: Callable[[Any], str] = lambda _: "[image]") -> str:
    """Return the text of a message without the names of types; ``other`` says what stands for a part that has none."""
    if "parts" not in message:
        return str(message["text"])
    return "\n\n".join(str(part.get("text") or other(part)) for part in message["parts"])


_NESTED: Final = (dict, list)


def untyped(data: Any) -> Any:
    """Return the JSON of a store without the names of types in it."""
    if isinstance(data, list):
        items: list[Any] = cast("Any", data)
        return [untyped(item) if item.__class__ in _NESTED else item for item in items]
    if not isinstance(data, dict):
        return data
    fields: dict[str, Any] = cast("Any", data)
    if MARK not in fields:  # nearly every one
        return {key: untyped(value) if value.__class__ in _NESTED else value for key, value in fields.items()}
    tag = str(fields.get(MARK, ":"))
    if tag in MAPPINGS and "items" in fields:
        return {str(untyped(key)): untyped(value) for key, value in fields["items"]}
    if tag == "str":
        encoded = str(fields.get("utf16"))
        try:
            return b64decode(encoded).decode("utf-16-le", "surrogatepass")
        except ValueError:  # the record is damaged
            return encoded
    if tag in HOLDERS:
        for held in ("items", "value"):
            if held in fields:
                return untyped(fields[held])
    return {key: untyped(value) for key, value in fields.items() if key != MARK}
