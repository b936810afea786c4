"""Values to JSON and back, and their JSON Schemas, by type.

msgspec does the work for dataclasses, msgspec structs, enums, dates, Decimal and containers. Pydantic models are taken
where a user brings them; pydantic is never imported here unless the type at hand is already one of its models.
What comes in from a model or a file is checked against its type, and an error says where and what was expected.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar, cast

import msgspec

from watchkeeper.core.errors import ConfigurationError, WatchkeeperError

T = TypeVar("T")


class CodecError(WatchkeeperError):
    """A value does not fit its type, or cannot be written as JSON."""


def is_pydantic(type_: Any) -> TypeGuard[type[Any]]:
    """Return whether ``type_`` is a pydantic model class, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(type_, type) and issubclass(type_, pydantic.BaseModel)


def json_schema(type_: Any) -> dict[str, Any]:
    """Return the self-contained JSON Schema of a type.

    Raises:
        ConfigurationError: If the type has no JSON form.
    """
    if is_pydantic(type_):
        return cast("dict[str, Any]", cast("Any", type_).model_json_schema())
    try:
        schema = msgspec.json.schema(type_)
    except (TypeError, RuntimeError) as error:
        raise ConfigurationError(f"{type_!r} has no JSON Schema: {error}; use dataclasses and plain types") from error
    return _inline_root(schema)


def _inline_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the root definition at the top, where providers want ``type: object``."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    definitions: dict[str, Any] = dict(schema.get("$defs", {}))
    name = reference.removeprefix("#/$defs/")
    root = dict(definitions[name])
    if not _mentions({key: value for key, value in definitions.items()}, reference):
        del definitions[name]
    if definitions:
        root["$defs"] = definitions
    return root


def _mentions(node: Any, reference: str) -> bool:
    if isinstance(node, dict):
        table = cast("dict[str, Any]", node)
        return table.get("$ref") == reference or any(_mentions(value, reference) for value in table.values())
    if isinstance(node, list):
        return any(_mentions(value, reference) for value in cast("list[Any]", node))
    return False


def decode(data: str | bytes, type_: type[T]) -> T:
    """Read JSON text as a value of ``type_``.

    Raises:
        CodecError: If the text is not JSON or does not fit; the message names the place.
    """
    try:
        if is_pydantic(type_):
            return cast("T", cast("Any", type_).model_validate_json(data))
        return msgspec.json.decode(data, type=type_)
    except ValueError as error:
        raise CodecError(_clean(error)) from error


def convert(value: Any, type_: type[T]) -> T:
    """Turn JSON-like builtins into a value of ``type_``.

    Raises:
        CodecError: If the value does not fit; the message names the place.
    """
    try:
        if is_pydantic(type_):
            return cast("T", cast("Any", type_).model_validate(value))
        return msgspec.convert(value, type=type_)
    except ValueError as error:
        raise CodecError(_clean(error)) from error


def _clean(error: ValueError) -> str:
    if type(error).__module__.startswith("pydantic"):
        problems: list[Mapping[str, Any]] = cast("Any", error).errors(include_url=False)
        return "; ".join(f"{problem['msg']} - at `$.{'.'.join(map(str, problem['loc']))}`" for problem in problems)
    return str(error)


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
