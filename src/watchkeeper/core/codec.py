"""Values to JSON and back, and their JSON Schemas, by type.

msgspec does the work for dataclasses, msgspec structs, enums, dates, Decimal and containers. Pydantic models are taken
where a user brings them; pydantic is never imported here unless the type at hand is already one of its models.
What comes in from a model or a file is checked against its type, and an error says where and what was expected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeGuard, TypeVar, cast

import msgspec

from watchkeeper.core.docstrings import parse_docstring
from watchkeeper.core.errors import ConfigurationError, WatchkeeperError

T = TypeVar("T")

_DEFINITIONS: Final = "#/$defs/"
_JSON_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


class CodecError(WatchkeeperError):
    """A value does not fit its type, or cannot be written as JSON."""


def is_pydantic(type_: Any) -> TypeGuard[type[Any]]:
    """Return whether ``type_`` is a pydantic model class, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(type_, type) and issubclass(type_, pydantic.BaseModel)


def json_schema(type_: Any) -> dict[str, Any]:
    """Return the self-contained JSON Schema of a type; definitions stand in ``$defs`` at its root.

    Docstrings become descriptions: their text describes the object, an ``Attributes:`` or ``Args:`` section its
    properties. What a class did not write itself (the docstring that `dataclass` makes up) does not show.

    Raises:
        ConfigurationError: If the type has no JSON form.
    """
    models = _PydanticSchemas()
    try:
        if is_pydantic(type_):
            schema = cast("dict[str, Any]", cast("Any", type_).model_json_schema())
        else:
            schema = msgspec.json.schema(type_, schema_hook=models.schema)
    except (TypeError, ValueError, RuntimeError, KeyError, NameError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[-1]
        raise ConfigurationError(
            f"{type_!r} has no JSON Schema: {reason}; use dataclasses and plain types, and no two classes of one name"
        ) from error
    if models.definitions:
        schema["$defs"] = {**schema.get("$defs", {}), **models.definitions}
    return map_schema(_inline_root(schema), _described)


class _PydanticSchemas:
    """Schemas of the pydantic models inside another type, with the definitions they bring along."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._known: dict[type, dict[str, Any]] = {}

    def schema(self, type_: type) -> dict[str, Any]:
        if not is_pydantic(type_):
            raise NotImplementedError
        if type_ not in self._known:
            # The dot keeps these names apart from those that msgspec gives, the number from each other.
            prefix = f"{type_.__name__}.{len(self._known) + 1}."
            schema: dict[str, Any] = type_.model_json_schema(ref_template=f"{_DEFINITIONS}{prefix}{{model}}")
            inner: dict[str, Any] = schema.pop("$defs", {})
            self.definitions.update({prefix + name: body for name, body in inner.items()})
            self._known[type_] = schema
        return dict(self._known[type_])


def map_schema(schema: Mapping[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a JSON Schema in which it and every schema inside it went through ``change``, innermost first."""
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
    """Spread a docstring over the properties it describes, and give an enumeration the type of its values."""
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


def decode(data: str | bytes, type_: type[T]) -> T:
    """Read JSON text as a value of ``type_``.

    Raises:
        CodecError: If the text is not JSON or does not fit; the message names the place.
    """
    try:
        if is_pydantic(type_):
            return cast("T", cast("Any", type_).model_validate_json(data))
        return msgspec.json.decode(data, type=type_, dec_hook=_from_foreign)
    except (ValueError, TypeError, RecursionError, NotImplementedError) as error:
        raise CodecError(_clean(error)) from error


def convert(value: Any, type_: type[T]) -> T:
    """Turn JSON-like builtins into a value of ``type_``.

    Raises:
        CodecError: If the value does not fit; the message names the place.
    """
    try:
        if is_pydantic(type_):
            return cast("T", cast("Any", type_).model_validate_json(msgspec.json.encode(value)))
        return msgspec.convert(value, type=type_, str_keys=True, dec_hook=_from_foreign)
    except (ValueError, TypeError, RecursionError, NotImplementedError) as error:
        raise CodecError(_clean(error)) from error


def _from_foreign(type_: type[Any], value: Any) -> Any:
    """Read a pydantic model inside another type."""
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
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _foreign(value: Any) -> Any:
    """Encode what msgspec does not know: pydantic models and, for people, anything else by its repr."""
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
    except (TypeError, NotImplementedError, ValueError) as error:
        raise CodecError(f"cannot write {type(value).__name__} as JSON: {error}") from error


def to_builtins(value: Any) -> Any:
    """Turn a value into dicts, lists, strings and numbers.

    Raises:
        CodecError: If something in it has no JSON form.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=_foreign, str_keys=True)
    except (TypeError, NotImplementedError, ValueError) as error:
        raise CodecError(f"cannot write {type(value).__name__} as JSON: {error}") from error


def display(value: Any) -> str:
    """Write a value for a person or a model: text as it is, everything else as JSON, or its repr as a last resort."""
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode()
    except CodecError:
        return repr(value)
