"""Events as a store holds them: JSON that is quick to write, and exact.

Every event could be written as typed JSON (`tagging`), in which each value names its type. Four or five events are
written at every step of a run, and the types of most of their fields follow from the event's own type; so these fields
are written plainly, and only fields that may hold anything are typed. The reader tells the two forms apart by the mark
of typed JSON at the top. An event of a user's is always typed.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.type_tags import OURS, type_of
from watchkeeper.session.tagging import MARK, dump, load

PLAIN: Final = frozenset({str, int, bool, datetime, UUID, type(None)})
"""Types that are written plainly: their JSON and the declared type give the same value back."""

_ENCODER: Final = msgspec.json.Encoder()

Test = Callable[[Any], bool]
"""Whether a value can be written plainly."""


class _Form(msgspec.Struct, frozen=True):
    """How events of one type are written.

    Attributes:
        names: All fields.
        values: Returns their values.
        typed: By the place of a field that is not always plain, the test whether a value is; None for never.
        hints: The declared types.
    """

    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    typed: Mapping[int, Test | None]
    hints: Mapping[str, Any]


_FORMS: Final[dict[type, _Form | None]] = {}


def write_event(event: object) -> bytes:
    """Return an event as JSON.

    Raises:
        CodecError: If something in it cannot be written.
    """
    kind = type(event)
    form = _FORMS[kind] if kind in _FORMS else _form_of(kind)
    if form is None:
        return encode(dump(event))
    values = dict(zip(form.names, form.values(event), strict=True))
    for place, is_plain in form.typed.items():
        name = form.names[place]
        if is_plain is None or not is_plain(values[name]):
            values[name] = dump(values[name])
    try:
        return _ENCODER.encode(values)
    except (TypeError, ValueError, RecursionError):  # a text that UTF-8 cannot hold, a number without end
        return encode(dump(event))


def read_event(tag: str, body: Mapping[str, Any]) -> Any:
    """Return an event from its tag and its JSON, as `json.loads` gives it.

    Raises:
        CodecError: If its type is not known here, or the JSON does not fit it.
    """
    if MARK in body:
        return load(body)
    kind = type_of(tag)
    form = _form_of(kind)
    if form is None:
        raise CodecError(f"{tag!r} is written without the types of its values")
    strange = sorted(body.keys() - set(form.names))
    if strange:
        raise CodecError(f"{tag!r} has no field {strange[0]!r}; it was written by another version of its type")
    try:
        return kind(**{name: _value(form.hints[name], body[name]) for name in form.names if name in body})
    except CodecError:
        raise
    except Exception as error:  # also those of a __post_init__
        raise CodecError(f"this is not a valid {tag!r}: {error}") from error


def _value(hint: Any, data: Any) -> Any:
    is_plain = _plain(hint)
    if is_plain is None or (isinstance(data, dict) and MARK in data):
        return load(data)
    return msgspec.convert(data, hint)


def _form_of(kind: type) -> _Form | None:
    """Return how events of a type are written; None if they are typed as a whole."""
    if kind in _FORMS:
        return _FORMS[kind]
    form: _Form | None = None
    if kind.__module__.partition(".")[0] == OURS and _has_fields(kind):
        hints = get_type_hints(kind)
        names = tuple(_fields(kind))
        if len(names) > 1 and all(_is_given(kind, name) for name in names):
            tests = {place: _plain(hints[name]) for place, name in enumerate(names)}
            typed = {place: test for place, test in tests.items() if test is not _always}
            form = _Form(names, cast("Any", attrgetter(*names)), typed, hints)
    _FORMS[kind] = form
    return form


def _always(_: Any) -> bool:
    return True


def _plain(hint: Any) -> Test | None:
    """Return the test whether a value of a declared type can be written plainly; None if none can."""
    if hint in PLAIN or get_origin(hint) is Literal:
        return _always
    if hint is float:
        return _is_finite
    if get_origin(hint) in (Union, types.UnionType):
        others = [each for each in get_args(hint) if each is not type(None)]
        return _if_any(_plain(others[0])) if len(others) == 1 else None
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        return _if_all(_plain(get_args(hint)[0]))
    if isinstance(hint, type) and hint.__module__.partition(".")[0] == OURS and _has_fields(hint):
        return _plain_fields(hint)
    return None


def _if_any(inner: Test | None) -> Test | None:
    return inner if inner is None or inner is _always else lambda value: value is None or inner(value)


def _if_all(inner: Test | None) -> Test | None:
    return inner if inner is None or inner is _always else lambda value: all(map(inner, value))


def _plain_fields(kind: type) -> Test | None:
    """Return the test for a struct or dataclass of ours: its fields that may hold anything must hold None."""
    hints, open_fields = get_type_hints(kind), list[str]()
    for name in _fields(kind):
        inner = _plain(hints[name])
        if inner is None:
            open_fields.append(name)
        elif inner is not _always:
            return None
    if not open_fields:
        return _always
    if len(open_fields) > 1 or hints[open_fields[0]] is not Any:
        return None
    held: Callable[[Any], Any] = attrgetter(open_fields[0])

    def holds_nothing(value: Any) -> bool:
        return value.__class__ is kind and held(value) is None

    return holds_nothing


def _is_finite(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _has_fields(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__")


def _fields(kind: type) -> list[str]:
    if issubclass(kind, msgspec.Struct):
        return [*kind.__struct_fields__]
    return [field.name for field in dataclasses.fields(cast("Any", kind))]


def _is_given(kind: type, name: str) -> bool:
    """Whether a field of an event is given when one is made."""
    if issubclass(kind, msgspec.Struct):
        return True
    return {field.name: field.init for field in dataclasses.fields(cast("Any", kind))}[name]
