"""Closed JSON Schemas: an object holds the fields that its schema names, and no others.

What a model is asked for and what is accepted agree at every depth: `close` writes it into the schema, `unknown_field`
finds what a model wrote besides. (The decoders underneath skip unknown fields, and with them a misspelt optional one.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from watchkeeper.core.codec import map_schema

Schema = Mapping[str, Any]


def close(schema: Schema) -> dict[str, Any]:
    """Return the schema with every object closed and without titles: they repeat names and cost tokens each time."""
    return map_schema(schema, _closed)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    table = {key: value for key, value in schema.items() if key != "title"}
    if "properties" in table:
        table.setdefault("additionalProperties", False)
    return table


def unknown_field(value: Any, schema: Schema) -> str | None:
    """Describe the first field in a JSON value that a closed schema does not know, or return None if all are known."""
    found = _search(value, schema, schema.get("$defs", {}), "")
    return None if found is None else _described(*found)


def resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema that a reference points to, or the schema itself."""
    reference = schema.get("$ref")
    return definitions[reference.removeprefix("#/$defs/")] if isinstance(reference, str) else schema


def _search(
    value: Any, schema: Schema, definitions: Mapping[str, Schema], place: str
) -> tuple[str, str, list[str]] | None:
    """Find the place of the first unknown field, its name, and the names known there."""
    schema = resolved(schema, definitions)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        kind = "object" if isinstance(value, dict) else "array"
        fitting = [option for option in options if resolved(option, definitions).get("type") == kind]
        found = [_search(value, option, definitions, place) for option in fitting]
        return None if None in found or not found else found[0]
    if isinstance(value, dict):
        return _search_object(cast("dict[str, Any]", value), schema, definitions, place)
    if isinstance(value, list):
        return _search_array(cast("Sequence[Any]", value), schema, definitions, place)
    return None


def _search_object(
    value: Mapping[str, Any], schema: Schema, definitions: Mapping[str, Schema], place: str
) -> tuple[str, str, list[str]] | None:
    properties: Mapping[str, Schema | bool] = schema.get("properties", {})
    others: Schema | bool = schema.get("additionalProperties", True)
    for name, part in value.items():
        if name not in properties and others is False:
            return place, name, list(properties)
        inner = properties.get(name, others)
        deeper = _search(part, inner, definitions, f"{place}.{name}") if isinstance(inner, Mapping) else None
        if deeper is not None:
            return deeper
    return None


def _search_array(
    value: Sequence[Any], schema: Schema, definitions: Mapping[str, Schema], place: str
) -> tuple[str, str, list[str]] | None:
    first: Sequence[Schema] = schema.get("prefixItems", ())
    rest: Schema | bool | None = schema.get("items")
    for index, part in enumerate(value):
        inner = first[index] if index < len(first) else rest
        deeper = _search(part, inner, definitions, f"{place}[{index}]") if isinstance(inner, Mapping) else None
        if deeper is not None:
            return deeper
    return None


def _described(place: str, name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean `{near[0]}`?)" if near else ""
    inside = f"; known there: {', '.join(known) or 'none'}" if place else ""
    return f"unknown field `{f'{place}.{name}'.removeprefix('.')}`{hint}{inside}"
