"""Tools and typed answers as one JSON object a turn, and the schemas and words that a small model is given for them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.adapters.endpoint import KEPT_ENTRIES, Kept
from watchkeeper.core.codec import json_schema
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from watchkeeper.core.model import ModelReply, OutputSchema, ToolSpec
from watchkeeper.core.usage import TokenUsage
from watchkeeper.local.steps import (
    ARRAY_ITEMS,
    LONGEST_STRING_CHARS,
    STRING_CHARS,
    AnswerStream,
    StepPlan,
    bounded_schema,
    describe_fields,
    encode_fragment,
    join_messages,
    make_plan,
    read_step,
    type_words,
    visible_answer,
)

LOOKUP = ToolSpec(
    "lookup",
    "Look up\n  a customer.",
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}}, "required": ["name"]},
)
LIST_ALL = ToolSpec("list_all", "List all.", {"type": "object", "properties": {}})
OUTPUT = OutputSchema("Done", {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})
TOOLS = (LOOKUP, LIST_ALL)


def schema_of(form: bytes) -> dict[str, Any]:
    value = json.loads(form)
    assert value["type"] == "json_schema"
    assert value["json_schema"]["strict"] is True
    schema: dict[str, Any] = value["json_schema"]["schema"]
    return schema


def actions(schema: dict[str, Any]) -> list[str]:
    branches = schema.get("anyOf", [schema])
    return [branch["properties"]["action"]["const"] for branch in branches]


def messages(*transcript: Message, instructions: str = "") -> list[dict[str, str]]:
    pieces = join_messages([encode_fragment(message) for message in transcript], instructions)
    value: list[dict[str, str]] = json.loads(b"[" + b"".join(pieces) + b"]")
    return value


def reply(text: str) -> ModelReply:
    return ModelReply(AssistantMessage(text=text), TokenUsage(10, 5), model="m")


def test_the_schema_offers_each_tool_and_the_final_answer() -> None:
    plan = make_plan(TOOLS, OUTPUT)
    schema = schema_of(plan.formats["auto"])
    assert actions(schema) == ["lookup", "list_all", "final_answer"]
    first, _, last = schema["anyOf"]
    assert first["properties"]["arguments"]["properties"]["name"]["maxLength"] == 40
    assert last["properties"]["answer"]["properties"] == {"ok": {"type": "boolean"}}
    assert first["required"] == ["action", "arguments"]
    assert first["additionalProperties"] is False


def test_tool_choice_narrows_the_schema_and_never_the_instructions() -> None:
    plan = make_plan(TOOLS, None)
    assert actions(schema_of(plan.formats["none"])) == ["final_answer"]
    assert actions(schema_of(plan.formats["required"])) == ["lookup", "list_all"]
    answer = schema_of(plan.formats["none"])["properties"]["answer"]
    assert answer["type"] == "string"
    assert answer["maxLength"] > 0


def test_the_instructions_name_tools_arguments_and_answer() -> None:
    text = make_plan(TOOLS, OUTPUT).instructions
    assert "- lookup: Look up a customer.\n    name (string)\n- list_all: List all.\n" in text
    assert '{"action":"final_answer","answer":{...}}' in text
    assert text.endswith("Fields of the answer:\n- ok (boolean)")


def test_without_tools_the_answers_schema_stands_alone() -> None:
    plan = make_plan((), OUTPUT)
    assert schema_of(plan.formats["auto"])["properties"] == {"ok": {"type": "boolean"}}
    assert plan.formats["auto"] == plan.formats["none"] == plan.formats["required"]
    assert "- ok (boolean)" in plan.instructions
    assert read_step(reply('{"ok":true}'), plan, 3).message.text == '{"ok":true}'


def test_without_tools_and_schema_nothing_is_added() -> None:
    plan = make_plan((), None)
    assert plan.instructions == ""
    assert not plan.formats
    assert visible_answer("Hello", plan) == "Hello"


def test_a_tool_named_like_the_end_keeps_its_name() -> None:
    plan = make_plan((ToolSpec("final_answer", "A tool.", {"type": "object"}),), None)
    assert actions(schema_of(plan.formats["auto"])) == ["final_answer", "final_answer_"]


def test_definitions_stand_at_the_root() -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "null"}}}
    plan = make_plan((ToolSpec("t", "T.", schema),), OutputSchema("O", schema))
    assert schema_of(plan.formats["auto"])["$defs"] == {"0.X": {"type": "null"}, "answer.X": {"type": "null"}}


def test_plans_are_kept_for_the_objects_of_a_run() -> None:
    plans: Kept[StepPlan] = Kept()

    def kept(tools: tuple[ToolSpec, ...], output: OutputSchema | None) -> StepPlan:
        return plans.get(lambda: make_plan(tools, output), tools, output)

    plan = kept(TOOLS, OUTPUT)
    assert kept(TOOLS, OUTPUT) is plan
    assert kept(TOOLS, None) is not plan
    for _ in range(KEPT_ENTRIES):
        kept((LOOKUP, LIST_ALL), OUTPUT)
    assert kept(TOOLS, OUTPUT).formats == plan.formats


def test_a_tool_is_called_with_the_arguments_as_written() -> None:
    written = '{"action": "lookup", "arguments": {"name":  "Ann"}}'
    result = read_step(reply(written), make_plan(TOOLS, None), 4)
    assert result.message.tool_calls == (ToolCall("call_4", "lookup", '{"name":  "Ann"}'),)
    assert result.message.text == ""
    assert result.finish == "tool_calls"
    assert result.usage == TokenUsage(10, 5)
    assert encode_fragment(result.message) == b"a" + json.dumps(written).encode()[1:-1]


def test_an_unknown_tool_is_passed_on_for_the_loop_to_answer() -> None:
    result = read_step(reply('{"action":"drop_tables"}'), make_plan(TOOLS, None), 0)
    assert result.message.tool_calls == (ToolCall("call_0", "drop_tables", "{}"),)


def test_a_typed_answer_is_its_json() -> None:
    result = read_step(reply('{"action":"final_answer","answer":{"ok": true} }'), make_plan(TOOLS, OUTPUT), 4)
    assert result.message.text == '{"ok": true}'
    assert not result.message.tool_calls
    assert result.finish == "stop"


def test_an_answer_without_a_type_is_its_text() -> None:
    result = read_step(reply('{"action":"final_answer","answer":"Zoë \\"is\\" in\\n"}'), make_plan(TOOLS, None), 4)
    assert result.message.text == 'Zoë "is" in\n'


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ('{"action":"final_answer","answer":"half a sen', "half a sen"),
        ('{"action":"lookup","argum', '{"action":"lookup","argum'),
        ("I would rather talk.", "I would rather talk."),
        ("", ""),
        ("[1]", "[1]"),
    ],
)
def test_what_can_be_read_of_a_broken_reply_is_kept(raw: str, text: str) -> None:
    result = read_step(reply(raw), make_plan(TOOLS, None), 4)
    assert result.message.text == text
    assert not result.message.tool_calls
    assert messages(UserMessage.of("x"), result.message)[-1]["content"] == raw


def test_roles_alternate_and_the_instructions_end_the_system_message() -> None:
    assert messages(
        SystemMessage("You sort."),
        UserMessage.of("One."),
        AssistantMessage(tool_calls=(ToolCall("c1", "lookup", '{"name":"A"}'), ToolCall("c2", "list_all", ""))),
        ToolMessage("c1", "lookup", "found"),
        ToolMessage("c2", "list_all", "no such thing", is_error=True),
        UserMessage((TextPart("Go"), TextPart("on."))),
        AssistantMessage("Done."),
        instructions="Use tools.",
    ) == [
        {"role": "system", "content": "You sort.\n\nUse tools."},
        {"role": "user", "content": "One."},
        {
            "role": "assistant",
            "content": '{"action":"lookup","arguments":{"name":"A"}}\n{"action":"list_all","arguments":{}}',
        },
        {
            "role": "user",
            "content": "Result of lookup:\nfound\n\nError from list_all:\nno such thing\n\nGo\n\non.",
        },
        {"role": "assistant", "content": "Done."},
    ]


def test_another_providers_message_is_written_in_our_form() -> None:
    message = AssistantMessage("Let me see.", (ToolCall("c", "lookup", "{}"),), provider_data={"encoding": "other"})
    assert messages(message) == [
        {"role": "assistant", "content": 'Let me see.\n{"action":"lookup","arguments":{}}'},
    ]


def test_instructions_alone_make_a_system_message() -> None:
    assert messages(instructions="Use tools.") == [{"role": "system", "content": "Use tools."}]
    assert messages() == []


def test_an_image_is_refused_with_a_reason() -> None:
    with pytest.raises(ProviderError, match="reads text only") as caught:
        encode_fragment(UserMessage((ImagePart(url="https://x.test/a.png"),)))
    assert caught.value.fault == "bad_request"


TEXTS = st.text(max_size=20)
MESSAGES = st.one_of(
    TEXTS.map(UserMessage.of),
    TEXTS.map(AssistantMessage),
    st.builds(ToolMessage, st.just("c"), st.just("t"), TEXTS, st.booleans()),
)


@given(st.lists(MESSAGES, max_size=8), st.lists(MESSAGES, max_size=4), TEXTS)
def test_a_longer_transcript_begins_as_the_shorter_one(
    before: list[Message], after: list[Message], instructions: str
) -> None:
    short = b"".join(join_messages([encode_fragment(message) for message in before], instructions))
    long = b"".join(join_messages([encode_fragment(message) for message in before + after], instructions))
    assert long.startswith(short.removesuffix(b'"}'))
    json.loads(b"[" + long + b"]")


@given(st.text(), st.integers(1, 7), st.booleans())
def test_the_text_that_streams_is_the_answers_text(text: str, size: int, ascii_only: bool) -> None:
    """Whatever the pieces are, and however the model escapes, the deltas add up to the answer."""
    plan = make_plan(TOOLS, None)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = ""
    raw = json.dumps({"action": "final_answer", "answer": text}, ensure_ascii=ascii_only)
    deltas: list[str] = []
    stream = AnswerStream(plan, deltas.append)
    for start in range(0, len(raw), size):
        stream.feed(raw[start : start + size])
    assert "".join(deltas) == text == read_step(reply(raw), plan, 0).message.text


@given(st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.lists(TEXTS))), st.integers(1, 7))
def test_a_typed_answer_streams_as_its_json(value: Any, size: int) -> None:
    plan = make_plan(TOOLS, OUTPUT)
    raw = json.dumps({"action": "final_answer", "answer": value}, indent=1)
    deltas: list[str] = []
    stream = AnswerStream(plan, deltas.append)
    for start in range(0, len(raw), size):
        stream.feed(raw[start : start + size])
    assert json.loads("".join(deltas)) == value


def test_nothing_streams_while_a_tool_is_called() -> None:
    deltas: list[str] = []
    stream = AnswerStream(make_plan(TOOLS, None), deltas.append)
    for piece in ('{"action":"loo', 'kup","arguments":{"name":"final_answer"}}'):
        stream.feed(piece)
    assert not deltas


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
