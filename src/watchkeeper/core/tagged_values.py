"""The typed JSON of plain values and containers, as one table.

Each form says how values of exactly one type are written, read and looked into. A subclass of these types may hold
more than its value and therefore has no form here.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from watchkeeper.core.bounded_text import is_storable

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
