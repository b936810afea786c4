"""Schemas for the engine's grammar and for the prompt of a small model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.codec import json_schema
from watchkeeper.local.steps import (
    ARRAY_ITEMS,
    LONGEST_STRING_CHARS,
    STRING_CHARS,
    bounded_schema,
    describe_fields,
    type_words,
)


def bounded(schema: Any, prefix: str = "") -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    root = bounded_schema(schema, definitions, prefix)
    return {**root, "$defs": definitions} if definitions else root


BOUNDED: list[tuple[Any, Any]] = [
    ({"type": "string"}, {"type": "string", "minLength": 0, "maxLength": STRING_CHARS}),
    ({"type": "string", "maxLength": 80, "minLength": 90}, {"type": "string", "minLength": 80, "maxLength": 80}),
    (
        {"type": "string", "maxLength": 10**6},
        {"type": "string", "minLength": 0, "maxLength": LONGEST_STRING_CHARS},
    ),
    ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
    ({"type": "string", "format": "uri"}, {"type": "string", "minLength": 0, "maxLength": STRING_CHARS}),
    ({"type": "string", "pattern": r"^[A-Z]{2}-\d{1,4}$"}, {"type": "string", "pattern": r"^[A-Z]{2}-\d{1,4}$"}),
    ({"type": "string", "pattern": r"^\w+$"}, {"type": "string", "minLength": 0, "maxLength": STRING_CHARS}),
    ({"type": "string", "pattern": "x"}, {"type": "string", "minLength": 0, "maxLength": STRING_CHARS}),
    ({"type": "integer", "minimum": 1, "maximum": 9.5}, {"type": "integer", "minimum": 1}),
    ({"type": "number", "minimum": 1}, {"type": "number"}),
    ({"type": ["boolean", "null"]}, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
    ({"const": "x", "type": "string"}, {"const": "x"}),
    ({"enum": ["a", 1], "default": "a"}, {"enum": ["a", 1]}),
    ({"oneOf": [{"const": 1}], "discriminator": {}}, {"anyOf": [{"const": 1}]}),
    ({"allOf": [{"const": 1}]}, {"allOf": [{"const": 1}]}),
    (
        {"type": "array", "items": {"type": "null"}, "maxItems": 999},
        {"type": "array", "items": {"type": "null"}, "minItems": 0, "maxItems": ARRAY_ITEMS},
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
        {"type": "array", "prefixItems": [{"type": "null"}]},
    ),
    ({"type": "object"}, {"type": "object"}),
    (
        {"type": "object", "additionalProperties": {"type": "null"}},
        {"type": "object", "additionalProperties": {"type": "null"}},
    ),
    (
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    ),
    ({}, {}),
    ({"anyOf": [True]}, {"anyOf": [{}]}),
    ({"not": {"type": "string"}}, {}),
]


@pytest.mark.parametrize(("given_schema", "expected"), BOUNDED, ids=json.dumps)
def test_a_schema_is_bounded(given_schema: Any, expected: Any) -> None:
    assert bounded(given_schema) == expected


def test_an_object_keeps_its_order_and_its_required_fields() -> None:
    schema = {"properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["a"]}
    result = bounded(schema)
    assert list(result["properties"]) == ["b", "a"]
    assert result["required"] == ["a"]
    assert result["additionalProperties"] is False


def test_definitions_of_several_schemas_are_told_apart() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}}
    definitions: dict[str, Any] = {}
    assert bounded_schema(schema, definitions, "0.") == {"$ref": "#/$defs/0.A"}
    bounded_schema({"$defs": {"A": {"type": "null"}}}, definitions, "1.")
    assert definitions["0.A"]["items"] == {"$ref": "#/$defs/0.A"}
    assert definitions["1.A"] == {"type": "null"}


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "number", "boolean", "null"])},
        optional={"maxLength": st.integers(0, 9999), "description": st.text(max_size=9), "minimum": st.integers()},
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from("abcd"), inner),
                "required": st.lists(st.sampled_from("abcd"), unique=True),
            }
        ),
    ),
    max_leaves=12,
)


def unbounded(schema: Any) -> bool:
    """Return whether a string or an array anywhere in a schema may go on without end."""
    found: list[bool] = []

    def look(node: dict[str, Any]) -> dict[str, Any]:
        bound = {"string": "maxLength", "array": "maxItems"}.get(node.get("type", ""))
        found.append(bound is not None and bound not in node)
        return node

    json.loads(json.dumps(schema), object_hook=look)
    return any(found)


@given(SCHEMAS)
def test_every_string_and_array_ends(schema: Any) -> None:
    assert not unbounded(bounded(schema))


@given(SCHEMAS)
def test_bounding_twice_changes_nothing(schema: Any) -> None:
    once = bounded(schema)
    assert bounded(once) == once


@given(st.dictionaries(st.sampled_from("abcd"), SCHEMAS))
def test_every_field_is_described_on_one_line(properties: Any) -> None:
    words = describe_fields({"type": "object", "properties": properties}, "- ")
    assert len(words.splitlines()) == len(properties)
    assert [line[2] for line in words.splitlines()] == list(properties)


class Queue(Enum):
    """Which team."""

    BILLING = "billing"
    SHIPPING = "shipping"


@dataclass
class Line:
    """One line of an order."""

    item: str
    count: int = 1


@dataclass
class Tree:
    """A tree."""

    children: list[Tree] = field(default_factory=list["Tree"])


@dataclass
class Ticket:
    """A ticket."""

    queue: Queue
    lines: list[Line]
    size: tuple[int, int]
    tree: Tree
    note: str | None = None
    any: Any = None


def test_a_dataclass_is_described_in_few_words() -> None:
    schema = json_schema(Ticket)
    words = describe_fields(schema, "- ").splitlines()
    assert words[0] == "- queue (one of billing, shipping): Which team."
    assert words[1] == "- lines (list of {item: string, count: integer})"
    assert words[3] == "- tree ({children: list of Tree}): A tree."
    assert words[4] == "- note (string | null, optional)"
    assert words[5] == "- any (anything, optional)"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "format": "date"}, "string date"),
        ({"type": "integer", "minimum": 1, "maximum": 5}, "integer from 1 to 5"),
        ({"const": "é"}, '"é"'),
        ({"type": ["string", "null"]}, "string | null"),
        ({"oneOf": [{"type": "null"}, {"const": 1}]}, "null | 1"),
        (True, "anything"),
        (
            {"properties": {"a": {"type": "null", "description": " of\nno use "}}},
            "{a: null (of no use)}",
        ),
    ],
    ids=json.dumps,
)
def test_a_type_is_said_in_few_words(schema: Any, words: str) -> None:
    assert type_words(schema, {}) == words


def test_a_kept_pattern_has_no_endless_repetition() -> None:
    for pattern in (r"^a*$", r"^(ab)$", r"^[^a]$", r"^.$", r"^a|b$", r"a", r"^[a-z]+$"):
        assert "pattern" not in bounded({"type": "string", "pattern": pattern})
        re.compile(pattern)
