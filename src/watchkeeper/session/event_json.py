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
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter, call
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.type_tags import OURS, type_of
from watchkeeper.session.slices import SliceChange
from watchkeeper.session.tagging import MARK, dump, load

PLAIN: Final = frozenset({str, int, bool, datetime, UUID, type(None)})
"""Types that are written plainly: their JSON and the declared type give the same value back."""

SELF_TYPED: Final = frozenset({str, int, bool, type(None)})
"""Types that JSON gives back as they were, whatever type is declared."""

_TEXT: Final = frozenset({str})
_ENCODER: Final = msgspec.json.Encoder()

Test = Callable[[Any], bool]
"""Whether a value can be written plainly."""

_passes: Final = cast("Callable[[Test, Any], bool]", call)


class _Form(msgspec.Struct, frozen=True):
    """How events of one type are written.

    Attributes:
        names: All fields.
        tested: The fields that are not always plain.
        values_of: Gives the values of these fields.
        tests: The tests whether they are plain.
        hints: The declared types.
    """

    names: tuple[str, ...]
    tested: tuple[str, ...]
    values_of: Callable[[Any], Sequence[Any]]
    tests: tuple[Test, ...]
    hints: Mapping[str, Any]


_FORMS: Final[dict[type, _Form | None]] = {}


def write_event(event: object) -> bytes:
    """Return an event as JSON.

    Raises:
        CodecError: If something in it cannot be written.
    """
    try:
        return _ENCODER.encode(data_of(event))
    except (TypeError, ValueError, RecursionError):  # a text that UTF-8 cannot hold, a number without end
        return encode(dump(event))


def data_of(event: object) -> object:
    """Return what msgspec writes as the JSON of an event: mostly the event itself.

    It may refuse that for its values, as it does a text that UTF-8 cannot hold; `write_event` writes these, too.

    Raises:
        CodecError: If something in it cannot be written.
    """
    kind = type(event)
    form = _FORMS[kind] if kind in _FORMS else _form_of(kind)
    if form is None:
        return dump(event)
    if all(map(_passes, form.tests, form.values_of(event))):
        return event
    written = {name: getattr(event, name) for name in form.names}
    for name, is_plain in zip(form.tested, form.tests, strict=True):
        if not is_plain(written[name]):
            written[name] = dump(written[name])
    return written


def read_event(tag: str, body: Mapping[str, Any]) -> Any:
    """Return an event from its tag and its JSON, as `json.loads` gives it.

    Raises:
        CodecError: If its type is not known here, or the JSON does not fit it.
    """
    kind = type_of(tag)
    if MARK in body:
        return read_value(kind, body)
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


def read_own(tag: str, body: Mapping[str, Any]) -> Any:
    """Return an event as `read_event` does, but with None in the place of every value of a type that is not ours.

    So what a run did and spent can be read where the code of its agent is not imported, or has changed since.

    Raises:
        CodecError: If the type of the event is not known here, or the JSON does not fit it.
    """
    return read_event(tag, _without_foreign(body))


def is_foreign(tag: str) -> bool:
    """Return whether a tag is of a type that is neither ours nor of the standard library, nor registered here."""
    module_name, colon, _ = tag.partition(":")
    if colon:
        return module_name.partition(".")[0] != OURS
    try:
        type_of(tag)
    except CodecError:
        return True
    return False


def _without_foreign(data: Any) -> Any:
    if isinstance(data, list):
        items: list[Any] = cast("Any", data)
        return [_without_foreign(item) for item in items]
    if not isinstance(data, dict):
        return data
    fields: dict[str, Any] = cast("Any", data)
    tag = fields.get(MARK)
    if isinstance(tag, str) and is_foreign(tag):
        return None
    return {key: _without_foreign(value) for key, value in fields.items()}


def read_value(hint: Any, data: Any) -> Any:
    """Return a value from the type that is declared for it and its JSON, in which it names its own.

    Raises:
        CodecError: If it is of another type, or a field in it is.
    """
    value = load(data)
    if not _fit(hint)(value):
        raise CodecError(f"{type(value).__name__} where {hint} is declared, or a field in it has another type")
    return value


def read_changes(data: Any) -> tuple[SliceChange, ...]:
    """Return what reducers made of an event from its JSON.

    Raises:
        CodecError: If it is something else, or an item is not of the type of its slice.
    """
    changes: Sequence[SliceChange] = read_value(Sequence[SliceChange], data)
    for change in changes:
        if not all(map(_fit(change.slice_type), change.items)):
            raise CodecError(f"an item of the slice {change.slice_type.__name__} is not of that type, or a field in it")
    return tuple(changes)


def _value(hint: Any, data: Any) -> Any:
    if _plain(hint) in (None, _is_self_typed) or (isinstance(data, dict) and MARK in data):
        return read_value(hint, data)
    return msgspec.convert(data, hint)


@cache
def _fit(hint: Any) -> Test:
    """Return the test whether a value that names its type may stand where another type is declared.

    Fields of ours are looked at in all their depth; what is of others' making, as the result of a tool, is not.
    """
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return lambda value: isinstance(value, str | int) and value in inside
    if kind in (Union, types.UnionType):
        tests = [*map(_fit, inside)]
        return lambda value: any(test(value) for test in tests)
    if kind is tuple and inside and inside[-1] is not ...:
        tests = [*map(_fit, inside)]
        return lambda value: _is_sequence(value) and len(value) == len(tests) and all(map(_passes, tests, value))
    if kind in (tuple, list, Sequence):
        item = _fit(inside[0]) if inside else _always
        return lambda value: _is_sequence(value) and all(map(item, value))
    if kind is float or kind is int:
        numbers = (int, float) if kind is float else (int,)
        return lambda value: isinstance(value, numbers) and value.__class__ is not bool
    if not isinstance(kind, type) or kind is Any or getattr(cast("object", kind), "_is_protocol", False):
        return _always
    if kind is not hint:  # a generic type
        return lambda value: isinstance(value, kind)
    return lambda value: isinstance(value, kind) and _is_sound(value)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_sound(value: Any) -> bool:
    """Whether the fields of a value have the declared types, if it is ours."""
    return all(test(getattr(value, name)) for name, test in _field_tests(value.__class__))


@cache
def _field_tests(kind: type) -> tuple[tuple[str, Test], ...]:
    if not _is_ours(kind):
        return ()
    hints = get_type_hints(kind)
    tests = ((name, _fit(hints[name])) for name in _fields(kind))
    return tuple((name, test) for name, test in tests if test is not _always)


def _form_of(kind: type) -> _Form | None:
    """Return how events of a type are written; None if they are typed as a whole."""
    if kind in _FORMS:
        return _FORMS[kind]
    form: _Form | None = None
    if _is_ours(kind):
        hints = get_type_hints(kind)
        names = tuple(_fields(kind))
        if len(names) > 1 and all(_is_given(kind, name) for name in names):
            tests = {name: test for name in names if (test := _plain(hints[name])) is not _always}
            checks = tuple(test or _never for test in tests.values())
            form = _Form(names, tuple(tests), _getter(tuple(tests)), checks, hints)
    _FORMS[kind] = form
    return form


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


@cache
def _plain(hint: Any) -> Test | None:
    """Return the test whether a value of a declared type can be written plainly; None if none can."""
    if hint in PLAIN or get_origin(hint) is Literal:
        return _always
    if hint is float:
        return _is_finite
    if hint is Any or isinstance(hint, TypeVar):
        return _is_self_typed
    hint = get_origin(hint) if _is_ours(get_origin(hint)) else hint
    if get_origin(hint) in (Union, types.UnionType):
        others = [each for each in get_args(hint) if each is not type(None)]
        return _if_any(_plain(others[0])) if len(others) == 1 else None
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        return _if_all(_plain(get_args(hint)[0]))
    return _plain_fields(hint) if _is_ours(hint) else None


def _is_ours(hint: Any) -> bool:
    """Whether a type is a struct or dataclass of ours."""
    return isinstance(hint, type) and hint.__module__.partition(".")[0] == OURS and _has_fields(hint)


def _if_any(inner: Test | None) -> Test | None:
    return inner if inner is None or inner is _always else lambda value: value is None or inner(value)


def _if_all(inner: Test | None) -> Test | None:
    return inner if inner is None or inner is _always else lambda value: all(map(inner, value))


@cache
def _plain_fields(kind: type) -> Test | None:
    """Return the test for a struct or dataclass of ours, of which one field may need a test of its own.

    One that may hold anything is made by code of others; so its texts and numbers are looked at, too.
    """
    hints, tests = get_type_hints(kind), list[tuple[str, Test]]()
    for name in _fields(kind):
        test = _plain(hints[name])
        if test is None:
            return None
        if test is not _always:
            tests.append((name, test))
    if not tests:
        return _always
    if len(tests) > 1:
        return None
    name, is_plain = tests[0]
    held: Callable[[Any], Any] = attrgetter(name)
    simple = {each: hints[each] for each in _fields(kind) if hints[each] in SELF_TYPED}
    simple_of, types_of_simple = _getter(tuple(simple)), tuple(simple.values())

    def test_of_value(value: Any) -> bool:
        return (
            value.__class__ is kind and is_plain(held(value)) and tuple(map(type, simple_of(value))) == types_of_simple
        )

    return test_of_value


def _getter(names: tuple[str, ...]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that gives the values of these fields."""
    if len(names) > 1:
        return cast("Callable[[Any], Sequence[Any]]", attrgetter(*names))
    return lambda value: [getattr(value, name) for name in names]


def _is_finite(value: Any) -> bool:
    return value.__class__ is float and math.isfinite(value)


def _is_self_typed(value: Any) -> bool:
    """Whether JSON gives a value of any type back as it was: a text, a whole number, or an object of those."""
    if value.__class__ is dict:
        types_of = SELF_TYPED.issuperset(map(type, value.values())) and _TEXT.issuperset(map(type, value))
        return types_of and MARK not in value
    return value.__class__ in SELF_TYPED


def _has_fields(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) or hasattr(cast("object", kind), "__dataclass_fields__")


def _fields(kind: type) -> list[str]:
    if issubclass(kind, msgspec.Struct):
        return [*kind.__struct_fields__]
    return [field.name for field in dataclasses.fields(cast("Any", kind))]


def _is_given(kind: type, name: str) -> bool:
    """Whether a field of an event is given when one is made."""
    if issubclass(kind, msgspec.Struct):
        return True
    return {field.name: field.init for field in dataclasses.fields(cast("Any", kind))}[name]
