"""Typed JSON: a value that is written comes back as what it was, whatever its declared type.

Plain JSON stands for itself; everything else is an object whose ``$type`` holds the tag of its type. Dataclasses,
enums, named tuples, msgspec structs and pydantic models are their fields. Types that are more than their fields (open
files, locks, functions) are refused, by name and place. Reading runs no code that a file chose: no import, and fields
are put back as they were, without ``__init__`` and validators (msgspec structs alone run their ``__post_init__``).
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast
from uuid import UUID

import msgspec

from watchkeeper.core.codec import CodecError, is_pydantic
from watchkeeper.core.text import error_text, is_storable
from watchkeeper.core.type_tags import register, tag_of, type_of

# --- tagged values --------------------------------------------------------------------------------------------------
# The typed JSON of plain values and containers, as one table.
#
# Each form says how values of exactly one type are written, read and looked into. A subclass of these types may hold
# more than its value and therefore has no form here.

MARK: Final = "$type"


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type are written and read.

    Attributes:
        write: Turns a value into JSON-able data.
        read: Turns that data back into the value.
        parts: The values that it holds; None if it holds none.
        labels: Where each part stands, for messages.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    parts: Callable[[Any], Iterable[Any]] | None = None
    labels: Callable[[Any], Iterable[str]] = lambda value: (f"[{index}]" for index in range(len(value)))


Walk = Callable[[Any], Any]
Entry = tuple[type, str, Form]


def forms(dump: Walk, load: Walk) -> Iterator[Entry]:
    """Yield type, tag and form of everything that is known from the start; ``dump`` and ``load`` serve the parts."""
    yield from _scalars()
    yield from _times()
    yield from _sequences(dump, load)
    yield from _mappings(dump, load)


def _itself(value: Any) -> Any:
    return value


def _valued(type_: type, tag: str, to_json: Walk, from_json: Walk) -> Entry:
    return type_, tag, Form(lambda value: {MARK: tag, "value": to_json(value)}, lambda data: from_json(data["value"]))


# --- scalars ----------------------------------------------------------------------------------------------------------


def _scalars() -> Iterator[Entry]:
    for plain, tag in ((type(None), "none"), (bool, "bool"), (int, "int")):
        yield plain, tag, Form(_itself, _itself)
    yield str, "str", Form(_write_text, _read_text)
    yield float, "float", Form(_write_float, lambda data: float(data["value"]))
    yield _valued(complex, "complex", lambda value: [repr(value.real), repr(value.imag)], _read_complex)
    yield _valued(bytes, "bytes", _base64, _read_bytes)
    yield _valued(bytearray, "bytearray", _base64, lambda text: bytearray(_read_bytes(text)))
    for type_, tag in (
        (Decimal, "decimal"),
        (Fraction, "fraction"),
        (UUID, "uuid"),
        (type(Path()), "path"),
        (PurePosixPath, "posix_path"),
        (PureWindowsPath, "windows_path"),
    ):
        yield _valued(type_, tag, str, type_)


def _write_text(text: str) -> Any:
    if is_storable(text):
        return text
    return {MARK: "str", "utf16": _base64(text.encode("utf-16-le", "surrogatepass"))}


def _read_text(data: dict[str, Any]) -> str:
    return _read_bytes(data["utf16"]).decode("utf-16-le", "surrogatepass")


def _write_float(value: float) -> Any:
    return value if math.isfinite(value) else {MARK: "float", "value": repr(value)}


def _read_complex(parts: list[str]) -> complex:
    real, imag = map(float, parts)
    return complex(real, imag)


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _read_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# --- times ------------------------------------------------------------------------------------------------------------


def _times() -> Iterator[Entry]:
    yield (
        datetime,
        "datetime",
        Form(
            partial(_write_moment, "datetime"), lambda data: _read_moment(data, datetime.fromisoformat(data["value"]))
        ),
    )
    yield (
        time,
        "time",
        Form(partial(_write_moment, "time"), lambda data: _read_moment(data, time.fromisoformat(data["value"]))),
    )
    yield _valued(date, "date", date.isoformat, date.fromisoformat)
    yield _valued(
        timedelta,
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    )


def _write_moment(tag: str, value: datetime | time) -> Any:
    zone = _zone_fields(value)
    text = (value.replace(tzinfo=None) if zone else value).isoformat()
    return {MARK: tag, "value": text, **zone, **({"fold": 1} if value.fold else {})}


def _read_moment(data: dict[str, Any], value: datetime | time) -> Any:
    value = value.replace(fold=data.get("fold", 0))
    if "zone" in data:
        from zoneinfo import ZoneInfo

        return value.replace(tzinfo=ZoneInfo(data["zone"]))
    if "offset" in data:
        return value.replace(tzinfo=timezone(timedelta(*data["offset"])))
    return value


def _zone_fields(value: datetime | time) -> dict[str, Any]:
    """Return what ISO text does not keep: the name of a zone, and offsets that have parts of a second."""
    name = getattr(value.tzinfo, "key", None) if type(value.tzinfo).__module__.startswith("zoneinfo") else None
    if name is not None:
        return {"zone": name}
    offset = value.utcoffset()
    if offset is not None and offset.microseconds:
        return {"offset": [offset.days, offset.seconds, offset.microseconds]}
    return {}


# --- containers -------------------------------------------------------------------------------------------------------


def _unnumbered(value: Iterable[Any]) -> Iterator[str]:
    return ("[...]" for _ in value)


def _sequences(dump: Walk, load: Walk) -> Iterator[Entry]:
    def ordered(value: Iterable[Any]) -> Any:
        return {MARK: "tuple", "items": [dump(item) for item in value]}

    def unordered(tag: str) -> Walk:
        return lambda value: {MARK: tag, "items": sorted((dump(item) for item in value), key=repr)}

    def bounded(value: deque[Any]) -> Any:
        return {MARK: "deque", "items": [dump(item) for item in value], "maxlen": value.maxlen}

    yield list, "list", Form(lambda value: [dump(item) for item in value], _itself, iter)
    yield tuple, "tuple", Form(ordered, lambda data: tuple(map(load, data["items"])), iter)
    yield set, "set", Form(unordered("set"), lambda data: set(map(load, data["items"])), iter, _unnumbered)
    yield (
        frozenset,
        "frozenset",
        Form(unordered("frozenset"), lambda data: frozenset(map(load, data["items"])), iter, _unnumbered),
    )
    yield deque, "deque", Form(bounded, lambda data: deque(map(load, data["items"]), data["maxlen"]), iter)


def _mappings(dump: Walk, load: Walk) -> Iterator[Entry]:
    def pairs(value: Mapping[Any, Any]) -> list[list[Any]]:
        return [[dump(key), dump(item)] for key, item in value.items()]

    def unpaired(data: dict[str, Any]) -> dict[Any, Any]:
        return {load(key): load(item) for key, item in data["items"]}

    def write_dict(value: dict[Any, Any]) -> Any:
        for key in value:
            if type(key) is not str or key.startswith("$") or not is_storable(key):
                return {MARK: "dict", "items": pairs(value)}
        return {key: dump(item) for key, item in value.items()}

    def write_default(value: defaultdict[Any, Any]) -> Any:
        return {MARK: "defaultdict", "factory": dump(value.default_factory), "items": pairs(value)}

    def paired(type_: type, tag: str, build: Callable[[dict[Any, Any]], Any]) -> Entry:
        return (
            type_,
            tag,
            Form(
                lambda value: {MARK: tag, "items": pairs(value)},
                lambda data: build(unpaired(data)),
                _pairs_parts,
                _pairs_labels,
            ),
        )

    yield dict, "dict", Form(write_dict, unpaired, _pairs_parts, _pairs_labels)
    yield paired(MappingProxyType, "mapping_proxy", MappingProxyType)
    yield paired(OrderedDict, "ordered_dict", OrderedDict)
    yield paired(Counter, "counter", Counter)
    yield (
        defaultdict,
        "defaultdict",
        Form(
            write_default,
            lambda data: defaultdict(load(data["factory"]), unpaired(data)),
            lambda value: (value.default_factory, *_pairs_parts(value)),
            lambda value: (".default_factory", *_pairs_labels(value)),
        ),
    )


def _pairs_parts(value: Mapping[Any, Any]) -> list[Any]:
    return [*value.keys(), *value.values()]


def _pairs_labels(value: Mapping[Any, Any]) -> list[str]:
    return [*(f" (key {key!r})" for key in value), *(f"[{key!r}]" for key in value)]


class _Refused(Exception):
    """Values of a type have no form."""


def dump(value: Any) -> Any:
    """Turn a value into JSON-able data that says what it was.

    Raises:
        CodecError: If something in it cannot be written; the message names the place and the type.
    """
    try:
        return _dump(value)
    except (_Refused, RecursionError):
        _explain(value)


def load(data: Any) -> Any:
    """Turn what `dump` wrote back into the value.

    Raises:
        CodecError: If a tag is unknown, or the data does not fit its tag.
    """
    try:
        return _load(data)
    except RecursionError:
        raise CodecError("the data is nested too deeply to be read") from None


def check(value: Any) -> None:
    """Refuse a value that `dump` could not write; costs one look at the type of everything in it.

    Raises:
        CodecError: As `dump`.
    """
    try:
        _check(value)
    except (_Refused, RecursionError):
        _explain(value)


def register_form(type_: type, tag: str, form: Form) -> None:
    """Give a type that is not simply its fields a tag and a form of its own.

    What ``form.write`` returns is an object with the tag under `MARK`; ``form.read`` gets that object.
    """
    register(type_, tag)
    _add(type_, form)


# --- the walk ---------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_forms: dict[type, Form] = {}
_leaves: set[type] = set()
_parts: dict[type, Callable[[Any], Iterable[Any]]] = {}
"""How values of a type are looked into, for all that are no leaves."""


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


def _check(value: object) -> None:
    type_ = type(value)
    parts = _parts.get(type_) or _form_of(type_).parts
    if parts is not None:
        for part in parts(value):
            if type(part) not in _leaves:
                _check(part)


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
    except _Refused:
        raise CodecError(f"the tag {tag!r} means a type that has no typed JSON form") from None
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise CodecError(f"this is no {tag!r}: {error_text(error)}") from error


def _explain(value: Any) -> NoReturn:
    place = type(value).__name__
    try:
        found = _find(value, place)
    except RecursionError:
        found = None
    if found is None:
        raise CodecError(f"{place} cannot be written: it is nested too deeply, or contains itself")
    place, name = found
    raise CodecError(
        f"{place} cannot be written: {name} has no typed JSON form;"
        " use dataclasses, enums, pydantic models, msgspec structs, containers and plain values"
    )


def _find(value: object, place: str) -> tuple[str, str] | None:
    """Return the place and the type's name of the first thing that has no form."""
    type_ = type(value)
    try:
        form = _form_of(type_)
    except _Refused:
        return place, f"{type_.__module__}.{type_.__qualname__}"
    if form.parts is None:
        return None
    for label, part in zip(form.labels(value), form.parts(value), strict=True):
        found = _find(part, place + label)
        if found is not None:
            return found
    return None


# --- classes ----------------------------------------------------------------------------------------------------------

_CONTENT: Final = (str, bytes, bytearray, int, float, list, dict, set, frozenset, tuple, PurePath)
"""What a subclass may hold beside its fields."""


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

    if not names:
        return Form(write, read)
    parts: Callable[[Any], Any] = attrgetter(*names)
    if len(names) == 1:
        only = parts
        parts = lambda value: (only(value),)  # noqa: E731
    return Form(write, read, parts, lambda _: [f".{name}" for name in names])


def _known(data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Read the fields that are there; a field that the type does not have was written by other code."""
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

    def read(data: dict[str, Any]) -> Any:
        known = _known(data, names)
        value = type_.__new__(type_)
        for field in fields:
            object.__setattr__(value, field.name, known[field.name] if field.name in known else default(field))
        return value

    return _fields_form(type_, names, read)


def _enum_form(type_: type[enum.Enum]) -> Form:
    if issubclass(type_, enum.Flag):
        return Form(lambda value: {MARK: tag_of(type_), "value": value.value}, lambda data: type_(data["value"]))
    return Form(lambda value: {MARK: tag_of(type_), "name": value.name}, lambda data: type_[data["name"]])


def _pydantic_form(type_: Any) -> Form:
    """Keep fields, extra and private values, and which fields were set: what pickling a model keeps, by itself."""
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


for _type, _tag, _form in forms(_dump, _load):
    register_form(_type, _tag, _form)
register_form(
    type, "type", Form(lambda value: {MARK: "type", "value": tag_of(value)}, lambda data: type_of(data["value"]))
)
