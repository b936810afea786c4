"""JSON Schemas in the subset that providers enforce while a model writes.

In that subset every object lists all its properties, all are required and nothing else is allowed. A field with a
default is therefore asked for too, with its default in its description: whatever comes back still fits the type. What
the subset cannot say (open maps, values of any type) makes a schema inexpressible: None, never something weaker that
looks the same. Constraints that a provider does not check go into the description, and into the parsing afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from watchkeeper.adapters.encoding import encode
from watchkeeper.core.model import OutputSchema

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
OPENAI_KEYWORDS: Final = frozenset(
    {"pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
)
# https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations
ANTHROPIC_KEYWORDS: Final = frozenset[str]()
FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
PLAIN: Final = frozenset({"type", "enum", "const", "$ref", "description", "title"})


class _InexpressibleError(Exception):
    """A part of a schema lies outside the subset."""


def strict_schema(schema: Mapping[str, Any], keywords: frozenset[str] = OPENAI_KEYWORDS) -> dict[str, Any] | None:
    """Return a schema in the enforced subset, or None if the subset cannot express it.

    Args:
        schema: JSON Schema of an object, self-contained.
        keywords: Constraints that the provider checks.
    """
    try:
        strict = _strict(schema, keywords)
    except _InexpressibleError:
        return None
    if strict.get("type") != "object":
        return None
    definitions = cast("Mapping[str, Mapping[str, Any]]", schema.get("$defs") or {})
    if definitions:
        try:
            strict["$defs"] = {name: _strict(part, keywords) for name, part in definitions.items()}
        except _InexpressibleError:
            return None
    return strict


def describe_schema(output: OutputSchema) -> str:
    """Return an instruction for models that cannot be held to a schema."""
    return (
        "When the work is done, answer with one JSON object that fits this JSON Schema, and with nothing else: "
        f"{encode(output.schema).decode()}"
    )


def _strict(schema: Mapping[str, Any], keywords: frozenset[str]) -> dict[str, Any]:
    strict = {key: schema[key] for key in PLAIN & schema.keys()}
    notes = _notes(schema, keywords, strict)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            strict["anyOf"] = [_strict(option, keywords) for option in schema[key]]
    if schema.get("type") == "object":
        _close_object(schema, keywords, strict)
    elif schema.get("type") == "array":
        if not isinstance(schema.get("items"), Mapping):
            raise _InexpressibleError
        strict["items"] = _strict(schema["items"], keywords)
    if not strict.keys() & {"type", "anyOf", "$ref", "enum", "const"} or "allOf" in schema:
        raise _InexpressibleError
    if "$ref" in strict:
        # Providers refuse other keywords beside a reference.
        return {"$ref": strict["$ref"]}
    if notes:
        strict["description"] = " ".join(filter(None, [strict.get("description"), f"({', '.join(notes)})"]))
    return strict


def _close_object(schema: Mapping[str, Any], keywords: frozenset[str], strict: dict[str, Any]) -> None:
    properties = cast("Mapping[str, Mapping[str, Any]]", schema.get("properties") or {})
    if schema.get("additionalProperties", False) is not False or "patternProperties" in schema:
        raise _InexpressibleError
    if not properties and "additionalProperties" not in schema and "properties" not in schema:
        raise _InexpressibleError
    strict["properties"] = {name: _strict(part, keywords) for name, part in properties.items()}
    strict["required"] = list(properties)
    strict["additionalProperties"] = False


def _notes(schema: Mapping[str, Any], keywords: frozenset[str], strict: dict[str, Any]) -> list[str]:
    """Keep what the provider checks, and return the rest in words."""
    notes: list[str] = []
    for key, value in schema.items():
        if key in keywords or (key == "format" and value in FORMATS):
            strict[key] = value
        elif key == "default":
            notes.append(f"default: {value!r}")
        elif key in _CONSTRAINTS:
            notes.append(f"{key}: {value}")
    return notes


_CONSTRAINTS: Final = OPENAI_KEYWORDS | {"format", "minLength", "maxLength", "uniqueItems", "examples"}
