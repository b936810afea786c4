"""Values to JSON and back, their JSON Schemas, and what docstrings say about their fields.

msgspec does the work for dataclasses, msgspec structs, enums, dates, Decimal and containers. Pydantic models are
accepted too; pydantic is never imported here, only used if the program has already imported it.
Input from a model or a file is checked against its type, and an error names the place and the expected type. Nesting
depth and numbers are bounded, so that a short text cannot stand for a number that takes minutes or all memory to use.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar, cast

import msgspec

from watchkeeper.core.errors import ConfigurationError, WatchkeeperError
from watchkeeper.core.text import clipped, nearest, shown

T = TypeVar("T")

Schema = Mapping[str, Any]

LONGEST_SHOWN: Final = 200  # characters of a name that an error repeats: a model may choose one of megabytes
_DEFINITIONS: Final = "#/$defs/"
_JSON_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


class CodecError(WatchkeeperError):
    """A value does not fit its type, or cannot be written as JSON."""


class OversizedValueError(CodecError):
    """A value has more parts, or more levels of parts, than may be kept."""


def check_size(text: str, most: int) -> None:
    """Refuse a model's JSON before it is decoded, because decoding many values holds up everything else in the process.

    Raises:
        CodecError: If it has more than ``most`` values; commas and braces in its texts count too.
    """
    if len(text) > most and text.count(",") + text.count("{") + text.count("[") > most:
        raise CodecError(f"it holds more than {most:,} values")


def is_pydantic(type_: Any) -> TypeGuard[type[Any]]:
    """Return whether ``type_`` is a pydantic model class, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(type_, type) and issubclass(type_, pydantic.BaseModel)


def decode(data: str | bytes, type_: type[T]) -> T:
    """Read JSON text as a value of ``type_``.

    Raises:
        CodecError: If the text is not JSON or does not fit; the message names the place.
    """
    try:
        if is_pydantic(type_):
            return _bounded(cast("T", cast("Any", type_).model_validate_json(data)), type_)
        return _bounded(msgspec.json.decode(data, type=type_, dec_hook=_from_foreign), type_)
    except (ValueError, TypeError, RecursionError, NotImplementedError) as error:
        raise CodecError(_clean(error)) from error


def convert(value: Any, type_: type[T]) -> T:
    """Turn JSON-like builtins into a value of ``type_``.

    Raises:
        CodecError: If the value does not fit; the message names the place.
    """
    try:
        return _bounded(msgspec.convert(value, type=type_, str_keys=True, dec_hook=_from_foreign), type_)
    except (ValueError, TypeError, RecursionError, NotImplementedError) as error:
        raise CodecError(_clean(error)) from error


MAX_EXPONENT: Final = 6144
"""Largest absolute exponent (power of ten) of a decimal number: the range of IEEE 754's decimal128."""

MAX_DIGITS: Final = 4300
"""Most digits of a number: Python's own default limit for reading and writing integers."""

_MAX_BITS: Final = int(MAX_DIGITS * math.log2(10))


def number_problem(value: Decimal | Fraction) -> str | None:
    """Return why a number may be neither read nor written, or None if it is allowed."""
    if isinstance(value, Fraction):
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        return None if bits <= _MAX_BITS else f"a fraction of more than {MAX_DIGITS:,} digits"
    digits = value.as_tuple().digits
    if len(digits) > MAX_DIGITS:
        return f"a decimal number of {len(digits):,} digits; {MAX_DIGITS:,} are allowed"
    if value.is_finite() and abs(value.adjusted()) > MAX_EXPONENT:
        return f"the decimal number {clipped(str(value), 80)}; exponents end at {MAX_EXPONENT:,}"
    return None


def _bounded(value: T, type_: Any) -> T:
    """Return a decoded value if all decimal numbers in it are within bounds.

    Raises:
        ValueError: If a number is out of bounds; the message names the first one found.
    """
    if not _bears_decimals(type_):
        return value
    parts: list[Any] = [msgspec.to_builtins(value, builtin_types=(Decimal,), enc_hook=_with_decimals, str_keys=True)]
    while parts:
        part = parts.pop()
        if isinstance(part, Decimal):
            problem = number_problem(part)
            if problem is not None:
                raise ValueError(f"the value holds {problem}")
        elif isinstance(part, dict):
            parts += cast("dict[str, Any]", part).values()
        elif isinstance(part, list | tuple):
            parts += cast("Sequence[Any]", part)
    return value


def _with_decimals(value: Any) -> Any:
    return value.model_dump() if is_pydantic(type(value)) else None


@lru_cache(maxsize=256)
def _find_decimals(type_: Any) -> bool:
    try:
        schema = msgspec.json.schema(type_, schema_hook=_schema_of_foreign)
    except (TypeError, ValueError, RuntimeError, KeyError, NameError):
        return False
    return b'"format":"decimal"' in msgspec.json.encode(schema)


def _schema_of_foreign(type_: type) -> dict[str, Any]:
    return {"format": "decimal" if is_pydantic(type_) and "Decimal" in repr(type_.model_fields) else "none"}


def _bears_decimals(type_: Any) -> bool:
    """Return whether values of a type may hold decimal numbers; computed once for each type."""
    try:
        return _find_decimals(type_)
    except TypeError:  # a type that has no hash
        return _find_decimals.__wrapped__(type_)


def _from_foreign(type_: type[Any], value: Any) -> Any:
    """Read a pydantic model, alone or inside another type."""
    if not is_pydantic(type_):
        raise NotImplementedError(f"{type_.__name__} has no JSON form")
    try:
        return type_.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(_clean(error)) from None


def _clean(error: Exception) -> str:
    if not type(error).__module__.startswith("pydantic"):
        return str(error)
    problems: list[Mapping[str, Any]] = cast("Any", error).errors(include_url=False, include_input=False)
    return "; ".join(f"{problem['msg']} - at `{_place(problem['loc'])}`" for problem in problems)


def _place(location: Iterable[str | int]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{clipped(part, LONGEST_SHOWN)}" for part in location)
    return "$" + "".join(parts)


def _foreign(value: Any) -> Any:
    """Encode types that msgspec does not know: pydantic models."""
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_foreign)


def encode(value: Any) -> bytes:
    """Write a value as compact JSON.

    Raises:
        CodecError: If something in it has no JSON form.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, NotImplementedError, ValueError, RecursionError) as error:
        raise CodecError(f"cannot write {type(value).__name__} as JSON: {error}") from error


def to_builtins(value: Any) -> Any:
    """Turn a value into dicts, lists, strings and numbers.

    Raises:
        CodecError: If something in it has no JSON form.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=_foreign, str_keys=True)
    except (TypeError, NotImplementedError, ValueError, RecursionError) as error:
        raise CodecError(f"cannot write {type(value).__name__} as JSON: {error}") from error


def display(value: Any) -> str:
    """Write a value for a person or a model: text as it is, everything else as JSON, or its repr as a last resort."""
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode()
    except CodecError:
        return shown(value)


def json_schema(type_: Any) -> dict[str, Any]:
    """Return the self-contained JSON Schema of a type; definitions are in ``$defs`` at its root.

    Docstrings become descriptions: their text describes the object, an ``Attributes:`` or ``Args:`` section its
    properties. Docstrings that `dataclass` generates are left out.

    Raises:
        ConfigurationError: If the type has no JSON form.
    """
    definitions: dict[str, Any] = {}
    known: dict[type, dict[str, Any]] = {}

    def of_model(model: type) -> dict[str, Any]:
        """Return the schema of a pydantic model inside another type, and keep the definitions it brings along."""
        if not is_pydantic(model):
            raise NotImplementedError
        if model not in known:
            # The dot avoids clashes with msgspec's names; the number avoids clashes between pydantic models.
            prefix = f"{model.__name__}.{len(known) + 1}."
            known[model] = model.model_json_schema(ref_template=f"{_DEFINITIONS}{prefix}{{model}}")
            inner: dict[str, Any] = known[model].pop("$defs", {})
            definitions.update({prefix + name: body for name, body in inner.items()})
        return dict(known[model])

    try:
        if is_pydantic(type_):
            schema = cast("dict[str, Any]", cast("Any", type_).model_json_schema())
        else:
            schema = msgspec.json.schema(type_, schema_hook=of_model)
    except (TypeError, ValueError, RuntimeError, KeyError, NameError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[-1]
        raise ConfigurationError(f"{type_!r} has no JSON Schema: {reason}; {_instead(reason)}") from error
    if any("prefixItems" in body for body in schema.get("$defs", {}).values()) and not is_pydantic(type_):
        _name_items(type_, schema["$defs"])
    if definitions:
        schema["$defs"] = {**schema.get("$defs", {}), **definitions}
    return map_schema(_inline_root(schema), _described)


def _instead(reason: str) -> str:
    """Return what to write in the place of a type that has no JSON Schema."""
    if "pathlib." in reason:
        return "take a str, and make a Path of it"
    if "Literal may only" in reason:
        return (
            "in the place of an enum's member write its value, as in Literal['a', 'red'], or take the enum itself as"
            " the type; for fractions and bytes take a float or a str"
        )
    if "Type unions" in reason:
        return (
            "a model's JSON does not tell such types apart: give each a tag (class A(msgspec.Struct, tag=True)), or"
            " write one dataclass with optional fields"
        )
    return "use dataclasses and plain types, and no two classes of one name"


def _name_items(type_: Any, definitions: Mapping[str, dict[str, Any]]) -> None:
    """Describe the items of each NamedTuple inside a type by the names of its fields."""
    parts, seen = [msgspec.inspect.type_info(type_)], set[int]()
    while parts:
        part: Any = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, msgspec.inspect.NamedTupleType):
            items = definitions.get(part.cls.__name__, {}).get("prefixItems", ())
            for item, field in zip(items, part.fields, strict=False):  # none if the class is generic
                item.setdefault("description", field.name)
        for name in getattr(part, "__struct_fields__", ()):
            inner: tuple[Any, ...] | Any = getattr(part, name)
            parts += inner if isinstance(inner, tuple) else (inner,)


def map_schema(schema: Mapping[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Apply ``change`` to a JSON Schema and to every schema inside it, innermost first; return the result."""
    table: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            table[key] = {name: map_schema(part, change) for name, part in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            table[key] = [map_schema(part, change) for part in value]
        elif key in ("items", "additionalProperties", "propertyNames") and isinstance(value, dict):
            table[key] = map_schema(cast("dict[str, Any]", value), change)
        else:
            table[key] = value
    return change(table)


def _inline_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the root definition at the top, where providers want ``type: object``."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    definitions: dict[str, Any] = dict(schema["$defs"])
    name = reference.removeprefix(_DEFINITIONS)
    said_here = {key: value for key, value in schema.items() if key not in ("$ref", "$defs")}
    root = {**definitions[name], **said_here}
    recursive = f'"{reference}"'.encode() in msgspec.json.encode(definitions)
    if not recursive:
        del definitions[name]
    if definitions:
        root["$defs"] = definitions
    return root


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Copy docstring texts to the properties they describe, and give an enumeration the type of its values."""
    if "properties" in schema and "description" in schema:
        docstring = parse_docstring(schema["description"])
        properties = cast("dict[str, dict[str, Any]]", schema["properties"])
        described = {
            name: {"description": docstring.fields[name], **body} if name in docstring.fields else body
            for name, body in properties.items()
        }
        schema = {**schema, "description": docstring.text, "properties": described}
        if not docstring.text:
            del schema["description"]
    if "enum" in schema and "type" not in schema:
        values: list[object] = schema["enum"]
        types = {_JSON_TYPES.get(type(value)) for value in values}
        if len(types) == 1 and None not in types:
            schema = {**schema, "type": types.pop()}
    return schema


def close(schema: Schema) -> dict[str, Any]:
    """Return the schema with every object closed: it allows only the named fields.

    Titles are left out: they repeat names and cost tokens each time.
    """
    return map_schema(schema, _closed)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    table = {key: value for key, value in schema.items() if key != "title"}
    if "properties" in table:
        table.setdefault("additionalProperties", False)
    return table


def unknown_field(value: Any, schema: Schema) -> str | None:
    """Describe the first field in a JSON value that a closed schema does not know, or return None if all are known.

    The decoders skip unknown fields, so a misspelt optional field would be lost without an error.
    """
    found = _unknown(value, schema, schema.get("$defs", {}))
    return None if found is None else found.in_words()


class _Unknown(NamedTuple):
    """A field that is not known; ``way`` leads to it, its last step first, and is filled on the way back.

    A place that is written down for each part of a value takes as long as the names before it, which a model chose.
    """

    name: str
    known: list[str]
    way: list[str | int]

    def in_words(self) -> str:
        """Return what is wrong, with names of a readable length."""
        near = nearest(self.name, self.known)
        hint = f" (did you mean `{near}`?)" if near else ""
        inside = f"; known there: {', '.join(self.known) or 'none'}" if self.way else ""
        place = _place((*reversed(self.way), self.name)).removeprefix("$").removeprefix(".")
        return f"unknown field `{place}`{hint}{inside}"


def resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema that a reference points to, or the schema itself."""
    reference = schema.get("$ref")
    return definitions[reference.removeprefix(_DEFINITIONS)] if isinstance(reference, str) else schema


def _unknown(value: Any, schema: Any, definitions: Mapping[str, Schema]) -> _Unknown | None:
    if not isinstance(schema, Mapping):
        return None
    schema = resolved(cast("Schema", schema), definitions)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        kind = "object" if isinstance(value, dict) else "array"
        fitting = [option for option in options if resolved(option, definitions).get("type") == kind]
        found = [_unknown(value, option, definitions) for option in fitting]
        return None if None in found or not found else found[0]
    deeper: _Unknown | None = None
    if isinstance(value, dict):
        properties: Mapping[str, Any] = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for name, part in cast("dict[str, Any]", value).items():
            if name not in properties and others is False:
                return _Unknown(name, list(properties), [])
            deeper = _unknown(part, properties.get(name, others), definitions)
            if deeper is not None:
                deeper.way.append(name)
                break
    elif isinstance(value, list):
        first: Sequence[Any] = schema.get("prefixItems", ())
        for index, part in enumerate(cast("Sequence[Any]", value)):
            inner = first[index] if index < len(first) else schema.get("items")
            deeper = _unknown(part, inner, definitions)
            if deeper is not None:
                deeper.way.append(index)
                break
    return deeper


_FIELD_SECTIONS: Final = (
    "args",
    "arguments",
    "parameters",
    "attributes",
    "fields",
    "keyword args",
    "keyword arguments",
)
_DROPPED_SECTIONS: Final = ("returns", "return", "yields", "yield", "raises", "raise")
_HEADING: Final = re.compile(r"([A-Z][A-Za-z ]*):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\(.*?\))?\s*:(?:\s+|$)(?P<text>.*)")


class Docstring(msgspec.Struct, frozen=True):
    """A parsed docstring.

    Attributes:
        text: Summary and body, without the sections about arguments, returns and raises.
        fields: Description of each argument or attribute, in one line each.
    """

    text: str = ""
    fields: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


def parse_docstring(docstring: str | None) -> Docstring:
    """Parse a Google-style docstring; a docstring without sections is all text.

    Sections about arguments become ``fields``. Those that only matter to a Python caller (returns, raises) are dropped.
    """
    kept: list[str] = []
    described: dict[str, str] = {}
    section: list[str] = kept
    argument_blocks: list[list[str]] = []
    # If a docstring begins with a heading, cleandoc removes the indent of the lines under that heading.
    indent_lost = False
    for number, line in enumerate(inspect.cleandoc(docstring or "").splitlines()):
        heading = _HEADING.fullmatch(line)
        title = heading[1].lower() if heading else ""
        if title in _FIELD_SECTIONS:
            indent_lost = number == 0
            section = []
            argument_blocks.append(section)
        elif title in _DROPPED_SECTIONS:
            section = []
        else:
            indent_lost = indent_lost and bool(line)
            if line and not line[0].isspace() and not indent_lost:
                section = kept
            section.append(line)
    for block in argument_blocks:
        described.update(_entries(block))
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), described)


def _entries(block: list[str]) -> dict[str, str]:
    """Read ``name: text`` entries; deeper lines continue the entry above them."""
    lines = [line for line in block if line.strip()]
    margin = min((_indent(line) for line in lines), default=0)
    described: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry is None:
            current.append(line.strip())
        else:
            current = described.setdefault(entry["name"], [])
            current.append(entry["text"])
    return {name: text for name, parts in described.items() if (text := " ".join(filter(None, parts)).strip())}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
