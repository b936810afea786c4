"""JSON Schemas for a small model on this machine: bounded for its grammar, and in few words for its prompt.

The engine turns a schema into a grammar, so an answer always has its form; what the grammar cannot hold (free patterns,
ranges of decimals) is left out and checked by the runtime as for every model. Strings and arrays get bounds, because a
small model may repeat itself without end. The prompt gets the same types in a line each, with their descriptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

STRING_CHARS: Final = 2000
LONGEST_STRING_CHARS: Final = 8000
ARRAY_ITEMS: Final = 50
FORMATS: Final = frozenset({"date", "time", "date-time", "uuid"})
INTEGER_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
DEFINITIONS: Final = "#/$defs/"
# Anchored, of classes and literals, and without repetition that has no end.
PLAIN_WORD: Final = re.compile(r"[A-Za-z][\w-]*")
SAFE_PATTERN: Final = re.compile(r"\^(?:\[[\w -]+\]|\\d|[\w :/@#-]|\{\d{1,3}(?:,\d{1,3})?\}|\?)+\$")

Schema = Mapping[str, Any]


def bounded_schema(schema: Schema, definitions: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return a schema that the engine accepts and whose answers end.

    Args:
        schema: A self-contained JSON Schema.
        definitions: Takes up the schema's own definitions, bounded; belongs under ``$defs`` at the root.
        prefix: Put before the names of definitions, to tell apart those of several schemas.
    """
    for name, part in cast("Mapping[str, Schema]", schema.get("$defs") or {}).items():
        definitions[prefix + name] = _bounded(part, prefix)
    return _bounded(schema, prefix)


def _bounded(node: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {}
    schema = cast("Schema", node)
    if "$ref" in schema:
        return {"$ref": DEFINITIONS + prefix + str(schema["$ref"]).removeprefix(DEFINITIONS)}
    for key in ("const", "enum"):
        if key in schema:
            return {key: schema[key]}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return {"anyOf": [_bounded(option, prefix) for option in schema[key]]}
    if "allOf" in schema:
        return {"allOf": [_bounded(part, prefix) for part in schema["allOf"]]}
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = cast("list[str]", kind)
        return {"anyOf": [_bounded({**schema, "type": one}, prefix) for one in kinds]}
    match kind:
        case "string":
            return _bounded_string(schema)
        case "integer":
            return {"type": kind, **{key: schema[key] for key in INTEGER_BOUNDS if isinstance(schema.get(key), int)}}
        case "number" | "boolean" | "null":
            return {"type": kind}
        case "array":
            return _bounded_array(schema, prefix)
        case "object":
            return _bounded_object(schema, prefix)
        case _:
            return _bounded_object(schema, prefix) if "properties" in schema else {}


def _bounded_string(schema: Schema) -> dict[str, Any]:
    if schema.get("format") in FORMATS:
        return {"type": "string", "format": schema["format"]}
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and SAFE_PATTERN.fullmatch(pattern):
        return {"type": "string", "pattern": pattern}
    longest = min(schema.get("maxLength", STRING_CHARS), LONGEST_STRING_CHARS)
    return {"type": "string", "minLength": min(schema.get("minLength", 0), longest), "maxLength": longest}


def _bounded_array(schema: Schema, prefix: str) -> dict[str, Any]:
    most = min(schema.get("maxItems", ARRAY_ITEMS), ARRAY_ITEMS)
    if schema.get("prefixItems"):
        return {"type": "array", "prefixItems": [_bounded(item, prefix) for item in schema["prefixItems"]]}
    least = min(schema.get("minItems", 0), most)
    return {"type": "array", "items": _bounded(schema.get("items"), prefix), "minItems": least, "maxItems": most}


def _bounded_object(schema: Schema, prefix: str) -> dict[str, Any]:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    others = schema.get("additionalProperties")
    bounded: dict[str, Any] = {"type": "object"}
    if properties or others is False:
        bounded["properties"] = {name: _bounded(part, prefix) for name, part in properties.items()}
        bounded["required"] = [name for name in properties if name in schema.get("required", ())]
        bounded["additionalProperties"] = False
    if isinstance(others, Mapping):
        bounded["additionalProperties"] = _bounded(others, prefix)
    return bounded


def describe_fields(schema: Schema, indent: str) -> str:
    """Return an object's fields, a line each: name, type, description."""
    definitions = cast("Mapping[str, Schema]", schema.get("$defs") or {})
    required = schema.get("required", ())
    lines: list[str] = []
    for name, part in cast("Mapping[str, Schema]", schema.get("properties") or {}).items():
        optional = "" if name in required else ", optional"
        words = description_of(part, definitions)
        lines.append(f"{indent}{name} ({type_words(part, definitions)}{optional}){': ' + words if words else ''}")
    return "\n".join(lines)


def description_of(part: Schema, definitions: Mapping[str, Schema]) -> str:
    """Return what a field is for, on one line: its own description or else that of its type."""
    text = part.get("description")
    if not text and "$ref" in part:
        text = definitions.get(_name(part), {}).get("description")
    return " ".join(str(text).split()) if text else ""


def type_words(part: Any, definitions: Mapping[str, Schema], within: tuple[str, ...] = ()) -> str:
    """Return a type in few words.

    Args:
        part: The type's schema.
        definitions: What its references refer to.
        within: Names of the definitions that are being described, so that a recursive type ends.
    """
    if not isinstance(part, Mapping):
        return "anything"
    schema = cast("Schema", part)
    if "$ref" in schema:
        name = _name(schema)
        return name if name in within else type_words(definitions.get(name), definitions, (*within, name))
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return _choice(schema["enum"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " | ".join(type_words(option, definitions, within) for option in options)
    kind = schema.get("type", "object" if "properties" in schema else "anything")
    if isinstance(kind, list):
        return " | ".join(cast("list[str]", kind))
    if kind == "array":
        return f"list of {type_words(schema.get('items'), definitions, within)}"
    if kind == "object" and schema.get("properties"):
        fields = [
            f"{name}: {type_words(field, definitions, within)}{_remark(field, definitions)}"
            for name, field in schema["properties"].items()
        ]
        return "{" + ", ".join(fields) + "}"
    return f"{kind}{_limits(schema)}"


def _choice(values: Any) -> str:
    """Return the allowed values; quotes, which cost a token each, only where a text could be mistaken."""
    plain = all(isinstance(value, str) and PLAIN_WORD.fullmatch(value) for value in values)
    words = values if plain else [json.dumps(value, ensure_ascii=False) for value in values]
    return f"one of {', '.join(words)}" if plain else " | ".join(words)


def _remark(field: Schema, definitions: Mapping[str, Schema]) -> str:
    words = description_of(field, definitions)
    return f" ({words})" if words else ""


def _limits(schema: Schema) -> str:
    if isinstance(schema.get("format"), str):
        return f" {schema['format']}"
    if "minimum" in schema and "maximum" in schema:
        return f" from {schema['minimum']} to {schema['maximum']}"
    return ""


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix(DEFINITIONS)
