"""The enforced subset: whatever comes out is accepted by the providers, and what they cannot say is refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.adapters.endpoint import ANTHROPIC_KEYWORDS, describe_schema, strict_schema
from watchkeeper.core.codec import json_schema
from watchkeeper.core.model import OutputSchema
from watchkeeper.testing.provider_checks import check_anthropic_schema, check_openai_schema

Schema = dict[str, Any]


class Queue(enum.Enum):
    BILLING = "billing"
    SHIPPING = "shipping"


@dataclass
class Person:
    """A person."""

    name: str
    age: Annotated[int, msgspec.Meta(ge=0, description="In years.")] = 30
    boss: Person | None = None


@dataclass
class Report:
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=80, description="A few words.")]
    queue: Queue
    people: list[Person] = field(default_factory=list[Person])
    mood: Literal["good", "bad"] = "good"
    score: float | None = None


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class Open:
    counts: dict[str, int]


@dataclass
class Anything:
    value: Any


@dataclass
class Pair:
    both: tuple[int, str]


def accepted(schema: Schema) -> None:
    named = {"name": "x", "strict": True, "schema": strict_schema(schema)}
    assert check_openai_schema(named, "response_format") is None
    assert check_anthropic_schema(strict_schema(schema, ANTHROPIC_KEYWORDS) or {}) is None


@pytest.mark.parametrize("type_", [Person, Report, Tree])
def test_dataclasses_are_expressible(type_: type[Any]) -> None:
    accepted(json_schema(type_))


@pytest.mark.parametrize("type_", [Open, Anything, Pair])
def test_what_the_subset_cannot_say_is_none(type_: type[Any]) -> None:
    assert strict_schema(json_schema(type_)) is None


OPEN: list[Schema] = [
    {"type": "string"},
    {"anyOf": [{"type": "object", "properties": {}}]},
    {"type": "object"},
    {"type": "object", "additionalProperties": True},
    {"type": "object", "properties": {"a": {}}},
    {"type": "object", "properties": {"a": {"type": "array"}}},
    {"type": "object", "properties": {}, "patternProperties": {"^x": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}], "type": "string"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "object"}}},
]


@pytest.mark.parametrize("schema", OPEN)
def test_open_or_empty_schemas_are_none(schema: Schema) -> None:
    assert strict_schema(schema) is None


def test_constraints_are_kept_where_they_are_checked_and_told_where_not() -> None:
    schema = json_schema(Report)
    title = (strict_schema(schema) or {})["properties"]["title"]
    assert title == {"type": "string", "description": "A few words. (maxLength: 80, minLength: 1)"}
    age = (strict_schema(schema) or {})["$defs"]["Person"]["properties"]["age"]
    assert age == {"type": "integer", "minimum": 0, "description": "In years. (default: 30)"}
    told = (strict_schema(schema, ANTHROPIC_KEYWORDS) or {})["$defs"]["Person"]["properties"]["age"]
    assert told == {"type": "integer", "description": "In years. (minimum: 0, default: 30)"}


def test_formats_that_nobody_checks_are_told() -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"type": "string", "format": "date-time"}, "x": {"type": "string", "format": "base64"}},
    }
    properties = (strict_schema(schema) or {})["properties"]
    assert properties["at"]["format"] == "date-time"
    assert properties["x"] == {"type": "string", "description": "(format: base64)"}


def test_either_of_several_is_any_of() -> None:
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "null"}], "title": "A"}}}
    part = (strict_schema(schema) or {})["properties"]["a"]
    assert part == {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "A"}


def test_nothing_stands_beside_a_reference() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A", "description": "the first", "default": None}},
        "$defs": {"A": {"type": "string", "enum": ["x"]}},
    }
    assert (strict_schema(schema) or {})["properties"]["a"] == {"$ref": "#/$defs/A"}


def test_the_given_schema_is_left_alone() -> None:
    schema = json_schema(Report)
    before = msgspec.json.encode(schema)
    strict_schema(schema)
    assert msgspec.json.encode(schema) == before


LEAVES: list[Schema] = [
    {"type": "string", "minLength": 2},
    {"type": "integer", "minimum": 1, "default": 3},
    {"type": "number", "multipleOf": 0.5},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["a", "b"]},
    {"const": 4},
    {"$ref": "#/$defs/Leaf", "description": "a leaf"},
    {},
    {"type": "object", "additionalProperties": {"type": "string"}},
]


def object_of(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": sorted(properties)[:1]}


def array_of(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def any_of(options: list[Schema]) -> Schema:
    return {"anyOf": options}


def objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(object_of)


def larger(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    options = st.lists(inner, min_size=1, max_size=3)
    return inner.map(array_of) | options.map(any_of) | objects(inner)


parts: st.SearchStrategy[Schema] = st.recursive(st.sampled_from(LEAVES), larger, max_leaves=8)


@given(objects(parts))
def test_what_comes_out_is_accepted_or_nothing_comes_out(schema: Schema) -> None:
    whole = {**schema, "$defs": {"Leaf": {"type": "string", "maxLength": 3}}}
    if strict_schema(whole) is not None:
        accepted(whole)


def test_a_schema_in_words() -> None:
    text = describe_schema(OutputSchema("Open", json_schema(Open)))
    assert '"additionalProperties"' in text
    assert text.startswith("When the work is done, answer with one JSON object")
