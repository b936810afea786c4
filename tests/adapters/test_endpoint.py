"""Bytes that are made once, schemas in the subset that providers enforce, and the addresses that may be reached."""

from __future__ import annotations

import enum
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.adapters import endpoint
from watchkeeper.adapters.endpoint import (
    ANTHROPIC_KEYWORDS,
    KEPT_ENTRIES,
    Kept,
    check_extra,
    describe_schema,
    encode,
    encoded_messages,
    join_body,
    own_data,
    strict_schema,
    tool_arguments,
)
from watchkeeper.core.codec import json_schema
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import AssistantMessage, Message, Transcript, UserMessage
from watchkeeper.core.model import ModelSettings, OutputSchema
from watchkeeper.core.secrets import MOST_HELD, REDACTED, hold, redacted
from watchkeeper.testing.fake_anthropic import check_anthropic_schema
from watchkeeper.testing.fake_openai import check_openai_schema


def test_text_that_json_cannot_carry_is_replaced() -> None:
    assert encode({"a\udc80": ["b\ud83d", ("c", 1)]}) == '{"a\ufffd":["b\ufffd",["c",1]]}'.encode()
    assert msgspec.json.decode(encode("\ud83d\ude00")) == "😀"


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner) | st.dictionaries(st.text(), inner)


# Halves of surrogate pairs are what JSON cannot carry; hypothesis leaves them out unless told.
broken_text = st.text(st.characters(exclude_categories=()))


@given(st.recursive(broken_text | st.integers(-9, 9), containers))
def test_every_text_can_be_encoded(value: Any) -> None:
    # The standard library writes halves as escapes and reads two that belong together as one character.
    paired = json.dumps(json.loads(json.dumps(value)), ensure_ascii=False)
    assert msgspec.json.decode(encode(value)) == json.loads(re.sub("[\ud800-\udfff]", "\ufffd", paired))


def test_what_is_no_json_is_named() -> None:
    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        encode(object())


@given(st.lists(st.booleans()))
def test_pieces_join_to_an_array_even_if_some_are_empty(wanted: list[bool]) -> None:
    transcript = Transcript(UserMessage.of("yes" if say else "") for say in wanted)

    def element(message: Message) -> bytes:
        assert isinstance(message, UserMessage)
        return encode(message.text) if message.text else b""

    pieces = encoded_messages(transcript, "test", element)
    assert len(pieces) == len(wanted)
    assert msgspec.json.decode(b"[" + b"".join(pieces) + b"]") == ["yes"] * sum(wanted)
    transcript.append(UserMessage.of("more"))
    again = encoded_messages(transcript, "test", element)
    assert again is pieces
    assert msgspec.json.decode(b"[" + b"".join(again) + b"]") == [*["yes"] * sum(wanted), "more"]


@pytest.mark.parametrize("tail", [{}, {"tools": [1]}])
def test_a_body_is_one_object(tail: dict[str, Any]) -> None:
    body = join_body({"model": "m"}, "messages", [b"1", b",2"], encode(tail))
    assert msgspec.json.decode(body) == {"model": "m", "messages": [1, 2], **tail}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", {"unreadable_arguments": "[1]"}),
        ('{"a"', {"unreadable_arguments": '{"a"'}),
        ('{"a": "\udc80"}', {"unreadable_arguments": '{"a": "\udc80"}'}),
    ],
)
def test_arguments_as_an_object(text: str, arguments: dict[str, Any]) -> None:
    assert tool_arguments(text) == arguments


def test_only_ones_own_data_is_used() -> None:
    mine = {"encoding": "mine", "items": [1]}
    assert own_data(AssistantMessage(provider_data=mine), "mine") == mine
    assert own_data(AssistantMessage(provider_data=mine), "other") == {}
    assert own_data(AssistantMessage(provider_data="text"), "mine") == {}


def test_bytes_are_kept_for_the_very_same_objects() -> None:
    kept: Kept[bytes] = Kept()
    made: list[object] = []

    def make() -> bytes:
        made.append(object())
        return str(len(made)).encode()

    first, equal = (1, [2]), (1, [2])
    assert kept.get(make, first) == kept.get(make, first) == b"1"
    assert kept.get(make, equal) == b"2"
    for number in range(KEPT_ENTRIES):
        kept.get(make, object(), number)
    assert kept.get(make, first) != b"1"


def test_reserved_fields_cannot_be_set() -> None:
    own = frozenset({"stream"})
    check_extra(ModelSettings(extra={"user": "seven"}), own)
    settings = ModelSettings(extra={"stream": 1, "user": 3, "extra_body": {"messages": 2}})
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="cannot set messages, stream"):
            check_extra(settings, own)


def test_extra_fields_are_searched_for_credentials_once_and_these_are_held_with_each_request() -> None:
    class Fields(dict[str, Any]):
        searched = 0

        def items(self) -> Any:
            self.searched += 1
            return super().items()

    fields, own = Fields({"mcp_servers": [{"authorization_token": "token-of-this-request"}]}), frozenset({"stream"})
    settings = ModelSettings(extra=fields)
    check_extra(settings, own)
    for number in range(MOST_HELD):
        hold(f"token-of-request-{number:04}", passing=True)
    assert redacted("token-of-this-request") == "token-of-this-request"
    check_extra(settings, own)
    assert redacted("token-of-this-request") == REDACTED
    assert fields.searched == 1


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


def check_accepted(schema: Schema) -> None:
    """Assert that both providers' fakes take what a schema becomes."""
    named = {"name": "x", "strict": True, "schema": strict_schema(schema)}
    assert check_openai_schema(named, "response_format") is None
    assert check_anthropic_schema(strict_schema(schema, ANTHROPIC_KEYWORDS) or {}) is None


@pytest.mark.parametrize("type_", [Person, Report, Tree])
def test_dataclasses_are_expressible(type_: type[Any]) -> None:
    check_accepted(json_schema(type_))


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
def test_what_can_be_said_is_accepted_and_of_anything_else_nothing_comes_out(schema: Schema) -> None:
    whole = {**schema, "$defs": {"Leaf": {"type": "string", "maxLength": 3}}}
    written = json.dumps(schema)
    if "{}" in written or "additionalProperties" in written:
        assert strict_schema(whole) is None
    else:
        check_accepted(whole)


def test_a_schema_in_words() -> None:
    text = describe_schema(OutputSchema("Open", json_schema(Open)))
    assert '"additionalProperties"' in text
    assert text.startswith("When the work is done, answer with one JSON object")


# --- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:80/v1", True),
        ("http://localhost/v1", True),
        ("http://api.localhost", True),
        ("http://[::1]:8080", True),
        ("https://api.openai.com/v1", False),
        ("http://10.0.0.1", False),
        ("http://localhost.example.com", False),
        ("nonsense", False),
    ],
)
def test_this_machine_is_told_from_others(url: str, near: bool) -> None:
    assert endpoint.is_loopback(url) is near


def test_blocking_returns_what_held_before() -> None:
    before = endpoint.allow_remote(False)
    assert endpoint.allow_remote(before) is False
    endpoint.allow_remote(False)
    with pytest.raises(ConfigurationError, match=r"api\.openai\.com"):
        endpoint.check_remote("https://api.openai.com/v1")
    endpoint.allow_remote(True)
    endpoint.check_remote("https://api.openai.com/v1")
    endpoint.allow_remote(before)


@pytest.mark.spec("FR-069")
@pytest.mark.parametrize(("module", "allowed"), [("watchkeeper.testing.wire", False), ("watchkeeper.adapters", True)])
def test_importing_the_fakes_blocks_real_providers(module: str, allowed: bool) -> None:
    code = f"import {module}; from watchkeeper.adapters.endpoint import REMOTE; assert REMOTE.allowed is {allowed}"
    subprocess.run([sys.executable, "-c", code], check=True)
