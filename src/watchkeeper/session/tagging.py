"""Typed JSON: a value that is written and read back is equal and of the same type.

Plain JSON values are written as they are; every other value is an object whose ``$type`` holds the tag of its type.
Dataclasses, enums, named tuples, msgspec structs and pydantic models are written as their fields. Types with state
beside their fields (open files, locks, functions) are refused; the error names the type and the place. Reading imports
nothing and calls no ``__init__``: the fields are set to the stored values. The ``__post_init__`` of the class then
checks them as for a new value, so it has to accept values that it produced itself, as for `dataclasses.replace`.
Numbers are bounded: a short text must not stand for a number that takes minutes to compute with.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar, cast
from uuid import UUID

import msgspec

from watchkeeper.core.codec import CodecError, OversizedValueError, is_pydantic, number_problem
from watchkeeper.core.errors import SnapshotError
from watchkeeper.core.forks import ModuleLock
from watchkeeper.core.text import clipped, error_text, is_storable, shown
from watchkeeper.core.type_tags import OURS, register, tag_of, type_of

MARK: Final = "$type"

MOST_VALUES: Final = 1_000_000
"""Most values in one that is checked: `check` may run on an event loop and takes about half a second for as many."""

MOST_LEVELS: Final = 200
"""Most levels of values inside values: `dump` and `load` need several frames of Python's stack for each."""

VALUE_SIZE: Final = 256
"""Characters of text, bytes, or bits of a whole number, that count as one value more: they are written as text."""

SHOWN_CHARS: Final = 500
"""Most characters of an error's text in a message: the text may quote the data that was read."""

N = TypeVar("N", Decimal, Fraction)

Step = Callable[[Any], Any]


def _numbered(value: Any) -> Iterator[str]:
    return (f"[{index}]" for index in range(len(value)))


class Form(msgspec.Struct, frozen=True):
    """How values of one type are written and read.

    A form applies to exactly one type and not to its subclasses, which may hold more state.

    Attributes:
        write: Turns a value into JSON-able data.
        read: Turns that data back into the value.
        parts: Returns the values inside a value; None if the type holds no other values.
        labels: Returns the place of each part, for messages.
    """

    write: Step
    read: Step
    parts: Callable[[Any], Collection[Any]] | None = None
    labels: Callable[[Any], Iterable[str]] = _numbered


class _Refused(Exception):
    """A value has no form: because of its type, or, if a message is given, because of the value itself."""


class _TooManyError(Exception):
    """A value holds more values than may be looked at."""


def dump(value: Any) -> Any:
    """Turn a value into JSON-able data that also records its types.

    Raises:
        CodecError: If something in it cannot be written; the message names the place and the type.
    """
    try:
        return _dump(value)
    except (_Refused, RecursionError):
        _explain(value)


def load(data: Any) -> Any:
    """Turn data that `dump` returned back into the value.

    Raises:
        CodecError: If a tag is unknown, or the data does not fit its tag.
    """
    try:
        return _load(data)
    except RecursionError:
        raise CodecError("the data is nested too deeply to be read") from None


def check(value: Any, most: int = MOST_VALUES, deepest: int = MOST_LEVELS) -> None:
    """Refuse a value that `dump` could not write, or that is too large to be kept; looks at the type of every part.

    A part that is in it several times counts as often, because it is written as often.

    Args:
        value: Of any type.
        most: Most values inside it; `VALUE_SIZE` characters or bytes count as one.
        deepest: Most levels of values inside values.

    Raises:
        CodecError: In the same cases as `dump`.
        OversizedValueError: If it holds more values or levels.
    """
    try:
        _check(value, most, deepest)
    except _TooManyError:
        counted = "a part that occurs twice counts twice, and long text counts as several"
        said = f"{type(value).__name__} cannot be written: it holds more than {most:,} values ({counted})"
        raise OversizedValueError(f"{said}; keep large data in files") from None
    except (_Refused, RecursionError):
        _explain(value)


def register_form(type_: type, tag: str, form: Form) -> None:
    """Register a tag and a form for a type that is not written as its fields.

    ``form.write`` returns an object with the tag under `MARK`; ``form.read`` gets that object.
    """
    register(type_, tag)
    _add(type_, form)


def check_only(type_: type, *names: str) -> None:
    """Let `check` look only at these fields of a class of ours.

    Only for the records that the runtime makes most often: it fills the other fields itself, with short plain values,
    with what is on the log already, or with values that were checked when they were made.
    """
    _add(type_, _looking_at(names, _form_of(type_)))


# --- the walk ---------------------------------------------------------------------------------------------------------

_lock: Final = ModuleLock()
_forms: dict[type, Form] = {}
_leaves: set[type] = set()
_parts: dict[type, Callable[[Any], Collection[Any]]] = {}
"""By type: the function that returns the parts of a value, for all types that are no leaves."""

_BYTES: Final = frozenset([bytes, bytearray])


def _add(type_: type, form: Form) -> Form:
    with _lock:
        _forms[type_] = form
        if form.parts is None:
            _leaves.add(type_)
        else:
            _parts[type_] = form.parts
    return form


def _form_of(type_: type) -> Form:
    return _forms.get(type_) or _add(type_, _class_form(type_))


def _dump(value: object) -> Any:
    type_ = type(value)
    return (_forms.get(type_) or _form_of(type_)).write(value)


def _check(value: object, left: int, levels: int) -> int:
    """Return how many values may still follow, of ``left`` before this one's parts."""
    if levels < 0:
        raise RecursionError
    parts = _parts.get(type(value)) or _form_of(type(value)).parts
    if parts is None:
        return left
    inside = parts(value)
    left -= len(inside)
    if left < 0:
        raise _TooManyError
    for part in inside:  # three walks a step: types of many values come first
        kind = type(part)  # pyright: ignore[reportUnknownVariableType]  # of anything
        if kind is str:
            if len(part) >= VALUE_SIZE:
                left = _less(left, len(part))
        elif kind is int:
            if part.bit_length() > VALUE_SIZE:
                left = _less(left, part.bit_length())
        elif kind not in _leaves:
            left = _check(part, left, levels - 1)
        elif kind in _BYTES:
            left = _less(left, len(part))
    return left


def _less(left: int, size: int) -> int:
    """Return what is left after a long value, of so many characters, bytes or bits."""
    left -= size // VALUE_SIZE
    if left < 0:
        raise _TooManyError
    return left


def _load(data: Any) -> Any:
    type_ = data.__class__
    if type_ is list:
        return [_load(item) for item in data]
    if type_ is not dict:
        return data
    if MARK not in data:
        return {key: _load(item) for key, item in data.items()}
    tag = data[MARK]
    if not isinstance(tag, str):
        raise CodecError(f"{MARK} must be the tag of a type, got {tag!r}")
    try:
        return _form_of(type_of(tag)).read(data)
    except _Refused as refused:
        if refused.args:
            raise CodecError(f"this is not a valid {tag!r}: {refused} cannot be taken") from None
        raise CodecError(f"the tag {tag!r} means a type that has no typed JSON form") from None
    except (CodecError, SnapshotError, RecursionError):
        raise
    except Exception as error:  # also errors of a __post_init__
        raise CodecError(f"this is not a valid {tag!r}: {clipped(error_text(error), SHOWN_CHARS)}") from error


def _explain(value: Any) -> NoReturn:
    place = type(value).__name__
    try:
        found = _find(value, place)
    except RecursionError:
        found = None
    if found is None:
        raise OversizedValueError(f"{place} cannot be written: it is nested too deeply, or contains itself")
    place, why = found
    raise CodecError(f"{place} cannot be written: {why}")


def _find(value: object, place: str) -> tuple[str, str] | None:
    """Return the place of the first value that has no form, and the reason."""
    type_ = type(value)
    try:
        form = _form_of(type_)
        parts = None if form.parts is None else form.parts(value)
    except _Refused as refused:
        name = f"{type_.__module__}.{type_.__qualname__}"
        use = "use dataclasses, enums, pydantic models, msgspec structs, containers and plain values"
        return place, str(refused) or f"{name} has no typed JSON form; {use}"
    if parts is None:
        return None
    for label, part in zip(form.labels(value), parts, strict=True):
        found = _find(part, place + label)
        if found is not None:
            return found
    return None


# --- classes ----------------------------------------------------------------------------------------------------------

_CONTENT: Final = (str, bytes, bytearray, int, float, list, dict, set, frozenset, tuple, PurePath)
"""Base types whose subclasses hold content beside their fields; such subclasses are refused."""


def _class_form(type_: type[Any]) -> Form:
    """Return the form of a class of a known kind."""
    if issubclass(type_, enum.Enum):
        return _enum_form(type_)
    if issubclass(type_, type):
        return _forms[type]
    if issubclass(type_, msgspec.Struct):
        names = type_.__struct_fields__
        return _fields_form(type_, names, lambda data: type_(**_known(data, names)))
    if issubclass(type_, tuple) and hasattr(cast("Any", type_), "_fields"):
        return _named_tuple_form(type_)
    if issubclass(type_, _CONTENT):
        raise _Refused
    if is_pydantic(type_):
        return _pydantic_form(type_)
    if dataclasses.is_dataclass(type_):
        return _dataclass_form(type_)
    raise _Refused


def _fields_form(type_: type, names: tuple[str, ...], read: Callable[[dict[str, Any]], Any]) -> Form:
    def write(value: Any) -> Any:
        data: dict[str, Any] = {MARK: tag_of(type_)}
        for name in names:
            data[name] = _dump(getattr(value, name))
        return data

    return _looking_at(names, Form(write, read)) if names else Form(write, read)


def _looking_at(names: tuple[str, ...], form: Form) -> Form:
    """Return a form whose parts are these fields."""
    get: Callable[[Any], Any] = attrgetter(*names)
    parts: Callable[[Any], Collection[Any]] = get if len(names) > 1 else lambda value: (get(value),)
    return Form(form.write, form.read, parts, lambda _: [f".{name}" for name in names])


def _known(data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Read the fields in the data; raise a CodecError for a field that the type does not have."""
    strange = sorted(data.keys() - {MARK, *names})
    if strange:
        raise CodecError(f"{data[MARK]!r} has no field {strange[0]!r}; it was written by another version of its type")
    return {name: _load(data[name]) for name in names if name in data}


def _named_tuple_form(type_: Any) -> Form:
    names: tuple[str, ...] = type_._fields
    return _fields_form(type_, names, lambda data: type_._make(_load(data[name]) for name in names))


def _dataclass_form(type_: Any) -> Form:
    fields = dataclasses.fields(type_)
    names = tuple(field.name for field in fields)

    def default(field: dataclasses.Field[Any]) -> Any:
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        raise CodecError(f"{tag_of(type_)!r} needs the field {field.name!r}; it was written by another version")

    check_as_new = _check_as_new(type_)

    def read(data: dict[str, Any]) -> Any:
        known = _known(data, names)
        value = type_.__new__(type_)
        for field in fields:
            if field.name not in known:
                known[field.name] = default(field)
            object.__setattr__(value, field.name, known[field.name])
        if check_as_new is not None:
            check_as_new(value, known)
        return value

    return _fields_form(type_, names, read)


def _check_as_new(type_: Any) -> Callable[[Any, dict[str, Any]], None] | None:
    """Return a function that checks a dataclass value after its fields were set; None if there is no such check."""
    after: Callable[..., object] | None = getattr(type_, "__post_init__", None)
    if after is None:
        return None
    marker = getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009  # no public name for these fields
    given = [each for each in type_.__dataclass_fields__.values() if getattr(each, "_field_type", None) is marker]
    if any(each.default is dataclasses.MISSING for each in given):
        return None  # the InitVar values are not stored
    arguments = [each.default for each in given]
    ours = type_.__module__.partition(".")[0] == OURS

    def check_as_new(value: Any, known: dict[str, Any]) -> None:
        after(value, *arguments)
        if ours:  # computed fields have to agree with the others
            return
        for name, stored in known.items():
            if getattr(value, name) is not stored:
                object.__setattr__(value, name, stored)

    return check_as_new


def _enum_form(type_: type[enum.Enum]) -> Form:
    if issubclass(type_, enum.Flag):
        return Form(lambda value: {MARK: tag_of(type_), "value": value.value}, lambda data: type_(data["value"]))
    return Form(lambda value: {MARK: tag_of(type_), "name": value.name}, lambda data: type_[data["name"]])


def _pydantic_form(type_: Any) -> Form:
    """Keep fields, extra and private values, and the set of given fields: the same as pickling a model keeps."""
    extras = ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
    fields: dict[str, Any] = type_.model_fields
    names = tuple(fields)

    def state(value: Any) -> dict[str, Any]:
        held = value.__getstate__()
        return {name: part for name, part in held["__dict__"].items() if name in fields} | {
            f"${extra}": held[extra] for extra in extras if extra in held
        }

    def write(value: Any) -> Any:
        return {MARK: tag_of(type_)} | {name: _dump(part) for name, part in state(value).items()}

    def read(data: dict[str, Any]) -> Any:
        known = _known(data, (*names, *(f"${extra}" for extra in extras)))
        value = type_.__new__(type_)
        held = {extra: known.pop(f"${extra}") for extra in extras if f"${extra}" in known}
        value.__setstate__({"__dict__": known, **held})
        return value

    return Form(write, read, lambda value: state(value).values(), lambda value: [f".{name}" for name in state(value)])


# --- plain values and containers --------------------------------------------------------------------------------------


def _itself(value: Any) -> Any:
    return value


def _write_text(text: str) -> Any:
    return text if is_storable(text) else {MARK: "str", "utf16": _base64(text.encode("utf-16-le", "surrogatepass"))}


def _read_text(data: dict[str, Any]) -> str:
    return _from_base64(data["utf16"]).decode("utf-16-le", "surrogatepass")


_LARGE: Final = 10**600
"""A number from which on JSON has hexadecimal text instead: Python limits the length of decimal numbers."""


def _write_int(value: int) -> Any:
    return value if -_LARGE < value < _LARGE else {MARK: "int", "value": hex(value)}


def _write_float(value: float) -> Any:
    return value if math.isfinite(value) else {MARK: "float", "value": repr(value)}


_FRACTION: Final = re.compile(r"-?[0-9]+(/[0-9]+)?")


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _write_moment(value: datetime | time) -> Any:
    # What ISO text does not keep: the name of a zone, offsets that have parts of a second, and the fold.
    kept: dict[str, Any] = {"fold": 1} if value.fold else {}
    name = getattr(value.tzinfo, "key", None) if type(value.tzinfo).__module__.startswith("zoneinfo") else None
    offset = value.utcoffset()
    if name is not None:
        kept["zone"] = name
    elif offset is not None and offset.microseconds:
        kept["offset"] = _units(offset)
    text = (value.replace(tzinfo=None) if "zone" in kept or "offset" in kept else value).isoformat()
    return {MARK: type(value).__name__, "value": text, **kept}


def _read_moment(type_: type[datetime | time], data: dict[str, Any]) -> Any:
    value = type_.fromisoformat(data["value"]).replace(fold=data.get("fold", 0))
    if "zone" in data:
        from zoneinfo import ZoneInfo

        return value.replace(tzinfo=ZoneInfo(data["zone"]))
    if "offset" in data:
        return value.replace(tzinfo=timezone(timedelta(*data["offset"])))
    return value


def _units(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _write_dict(value: dict[Any, Any]) -> Any:
    for key in value:
        if type(key) is not str or key.startswith("$") or not is_storable(key):
            return {MARK: "dict", "items": _write_pairs(value)}
    return {key: _dump(item) for key, item in value.items()}


def _write_pairs(value: Mapping[Any, Any]) -> list[list[Any]]:
    return [[_dump(key), _dump(item)] for key, item in value.items()]


def _read_pairs(data: dict[str, Any]) -> dict[Any, Any]:
    return {_load(key): _load(item) for key, item in data["items"]}


def _keys_and_items(value: Mapping[Any, Any]) -> list[Any]:
    return [*value.keys(), *value.values()]


def _keyed(value: Mapping[Any, Any]) -> list[str]:
    return [*(f" (key {key!r})" for key in value), *(f"[{key!r}]" for key in value)]


def _bounded(value: N) -> N:
    """Return a number if it is within the bounds of `number_problem`; raise _Refused if not."""
    problem = number_problem(value)
    if problem is not None:
        raise _Refused(problem)
    return value


def _register_number(type_: type[N], tag: str, from_json: Callable[[str], N]) -> None:
    def none(value: N) -> tuple[()]:
        _bounded(value)  # so that `check` refuses it too, not only `dump`
        return ()

    form = Form(
        lambda value: {MARK: tag, "value": str(_bounded(value))},
        lambda data: _bounded(from_json(data["value"])),
        none,
        lambda _: (),
    )
    register_form(type_, tag, form)


def _read_fraction(text: str) -> Fraction:
    if not _FRACTION.fullmatch(text):  # an exponent would be computed at once
        raise ValueError(f"expected whole numbers, not {clipped(text, SHOWN_CHARS)!r}")
    return Fraction(text)


def _register_value(type_: type, tag: str, to_json: Step, from_json: Step) -> None:
    form = Form(lambda value: {MARK: tag, "value": to_json(value)}, lambda data: from_json(data["value"]))
    register_form(type_, tag, form)


def register_sequence(type_: Callable[[Iterable[Any]], Iterable[Any]], tag: str, *, ordered: bool = True) -> None:
    """Register a type that is built from its items; items of an unordered type are sorted by their repr."""

    def write(value: Iterable[Any]) -> dict[str, Any]:
        items: list[Any] = list(map(_dump, value))
        return {MARK: tag, "items": items if ordered else sorted(items, key=shown)}

    form = Form(
        write,
        lambda data: type_(map(_load, data["items"])),
        _itself,
        _numbered if ordered else lambda value: ["[...]"] * len(value),
    )
    register_form(cast("type", type_), tag, form)


def _register_mapping(type_: Any, tag: str) -> None:
    form = Form(
        lambda value: {MARK: tag, "items": _write_pairs(value)},
        lambda data: type_(_read_pairs(data)),
        _keys_and_items,
        _keyed,
    )
    register_form(type_, tag, form)


def _register_all() -> None:
    """Register the built-in types."""
    for plain, tag in ((type(None), "none"), (bool, "bool")):
        register_form(plain, tag, Form(_itself, _itself))
    register_form(int, "int", Form(_write_int, lambda data: int(data["value"], 16)))
    register_form(str, "str", Form(_write_text, _read_text))
    register_form(float, "float", Form(_write_float, lambda data: float(data["value"])))
    _register_value(complex, "complex", lambda value: [repr(value.real), repr(value.imag)], _read_complex)
    _register_value(bytes, "bytes", _base64, _from_base64)
    _register_value(bytearray, "bytearray", _base64, lambda text: bytearray(_from_base64(text)))
    paths = ((type(Path()), "path"), (PurePosixPath, "posix_path"), (PureWindowsPath, "windows_path"))
    _register_number(Decimal, "decimal", Decimal)
    _register_number(Fraction, "fraction", _read_fraction)
    for written, tag in ((UUID, "uuid"), *paths):
        _register_value(written, tag, str, written)
    for moment in (datetime, time):
        register_form(moment, moment.__name__, Form(_write_moment, partial(_read_moment, moment)))
    _register_value(date, "date", date.isoformat, date.fromisoformat)
    _register_value(timedelta, "timedelta", _units, lambda units: timedelta(*units))
    _register_value(type, "type", tag_of, type_of)
    register_form(list, "list", Form(lambda value: [_dump(item) for item in value], _itself, _itself))
    register_sequence(tuple, "tuple")
    register_sequence(set, "set", ordered=False)
    register_sequence(frozenset, "frozenset", ordered=False)
    register_form(
        deque,
        "deque",
        Form(
            lambda value: {MARK: "deque", "items": [_dump(item) for item in value], "maxlen": value.maxlen},
            lambda data: deque(map(_load, data["items"]), data["maxlen"]),
            _itself,
        ),
    )
    register_form(dict, "dict", Form(_write_dict, _read_pairs, _keys_and_items, _keyed))
    for mapping, tag in ((MappingProxyType, "mapping_proxy"), (OrderedDict, "ordered_dict"), (Counter, "counter")):
        _register_mapping(mapping, tag)
    register_form(
        defaultdict,
        "defaultdict",
        Form(
            lambda value: {MARK: "defaultdict", "factory": _dump(value.default_factory), "items": _write_pairs(value)},
            lambda data: defaultdict(_load(data["factory"]), _read_pairs(data)),
            lambda value: (value.default_factory, *_keys_and_items(value)),
            lambda value: (".default_factory", *_keyed(value)),
        ),
    )


def _read_complex(parts: list[str]) -> complex:
    real, imag = map(float, parts)
    return complex(real, imag)


_register_all()

PLAIN_TAGS: Final = frozenset(map(tag_of, _forms))
"""Tags of plain values and containers; all other tags belong to classes."""
