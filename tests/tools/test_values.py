"""What a model wrote, read and refused; what a tool returns and what a model sees of it."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import ToolValidationError
from watchkeeper.session.tagging import dump, load
from watchkeeper.tools.values import Arguments, ToolResult, arguments_schema


@dataclass
class Part:
    sku: str
    count: int = 1


@dataclass
class Order:
    name: str
    parts: list[Part] = field(default_factory=list[Part])
    speed: Literal["slow", "fast"] = "slow"
    note: str | None = None
    by_room: dict[str, Part] = field(default_factory=dict[str, Part])
    pair: tuple[int, Part] | None = None
    one: Part | None = None


@dataclass
class Flat:
    query: str
    limit: int = 5
    exact: bool = False


@dataclass
class Checked:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        if self.low < 0:
            raise ToolValidationError("low must not be negative: try 0")
        if self.low == 13:
            raise KeyError("thirteen")


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Owner(pydantic.BaseModel):
    pet: Cat | Dog
    count: int = 1


class Told(pydantic.BaseModel):
    pet: Cat | Dog = pydantic.Field(discriminator="kind")


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


class Loose(msgspec.Struct):
    anything: Any
    text: str | list[int] = ""


def arguments(type_: Any, name: str = "order") -> Arguments:
    return Arguments(name, type_, arguments_schema(name, type_, {}, {}))


def refusal(type_: Any, text: str) -> str:
    with pytest.raises(ToolValidationError) as caught:
        arguments(type_).read(text)
    return str(caught.value)


def is_read_or_refused(type_: Any, text: str, told: str) -> bool:
    try:
        return isinstance(arguments(type_).read(text), type_)
    except ToolValidationError as error:
        return told in str(error)


FLAT_TAKES = "It takes query (string, required), limit (integer, default 5), exact (boolean, default false)."


@pytest.mark.spec("SD-009", "FR-024")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "`query` is required and missing"),
        ('{"query": 5}', "expected `str`, got `int` at `query` (5)"),
        ('{"query": "a", "limit": "5"}', "expected `int`, got `str` at `limit` ('5')"),
        ('{"query": "a", "limit": null}', "expected `int`, got `null` at `limit` (null)"),
        ('{"qery": "a"}', "unknown field `qery` (did you mean `query`?)"),
        ('{"query": "a", "zzz": 1}', "unknown field `zzz`"),
        ("[1]", "expected a JSON object, got [1]"),
        ('"text"', "they are not JSON (JSON is malformed: invalid character (byte 4)): 'text'"),
        ("find the key", "they are not JSON (JSON is malformed: invalid character (byte 5)): 'find the key'"),
        ('{"query": "a"', 'they are not JSON (Input data was truncated): \'{"query": "a"\''),
        ("5", "expected a JSON object, got 5"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_the_tool_takes(text: str, problem: str) -> None:
    assert refusal(Flat, text) == f"The arguments of order do not fit: {problem}. {FLAT_TAKES}"


@pytest.mark.spec("FR-024")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "a", "parts": [{"sku": "x"}, {"sku": 1}]}', "expected `str`, got `int` at `parts[1].sku` (1)"),
        ('{"name": "a", "parts": [{"count": 1}]}', "`parts[0].sku` is required and missing"),
        ('{"name": "a", "parts": [{"sku": "x", "size": 1}]}', "unknown field `parts[0].size`; known there: sku, count"),
        ('{"name": "a", "parts": [{"sku": "x", "cont": 1}]}', "`parts[0].cont` (did you mean `count`?)"),
        ('{"name": "a", "by_room": {"hall": {"sku": "x", "size": 1}}}', "unknown field `by_room.hall.size`"),
        ('{"name": "a", "pair": [1, {"sku": "x", "size": 1}]}', "unknown field `pair[1].size`"),
        ('{"name": "a", "one": {"sku": "x", "size": 1}}', "unknown field `one.size`"),
        ('{"name": "a", "speed": "fest"}', "invalid enum value 'fest' at `speed` ('fest')"),
        ('{"name": "a", "parts": 3}', "expected `array`, got `int` at `parts` (3)"),
        ('{"name": "a", "parts": "not json"}', "expected `array`, got `str` at `parts` ('not json')"),
        ('{"name": "a", "parts": "{\\"sku\\": \\"x\\"}"}', "expected `array`, got `str` at `parts`"),
        ('{"name": "a", "parts": "[{\\"sku\\": 5}]"}', "expected `array`, got `str` at `parts`"),
    ],
)
def test_a_refusal_names_the_place_at_every_depth(text: str, problem: str) -> None:
    assert problem in refusal(Order, text)


def test_what_a_tool_takes_is_said_in_words() -> None:
    assert arguments(Order).describe() == (
        "It takes name (string, required), parts (array of object, optional), speed (one of fast, slow, default slow),"
        " note (string or null, default null), by_room (object, optional), pair (array [integer, object] or null,"
        " default null), one (object or null, default null)."
    )
    assert (
        arguments(Loose).describe()
        == "It takes anything (anything, required), text (string or array of integer, default )."
    )


@pytest.mark.parametrize("text", ["", "  \n", "{}", "null", '"{}"', '""', '"null"'])
def test_nothing_means_no_arguments(text: str) -> None:
    @dataclass
    class Nothing:
        pass

    assert arguments(Nothing).read(text) == Nothing()
    assert arguments(Nothing).describe() == "It takes no arguments."


def test_arguments_packed_into_a_string_are_unpacked() -> None:
    assert arguments(Flat).read('"{\\"query\\": \\"a\\"}"') == Flat("a")


def test_an_array_or_object_packed_into_a_string_is_unpacked_where_no_text_can_be_meant() -> None:
    packed = json.dumps({"name": "[1]", "parts": '[{"sku": "x"}]', "one": '{"sku": "y"}'})
    assert arguments(Order).read(packed) == Order("[1]", [Part("x")], one=Part("y"))


def test_a_string_stays_a_string_where_text_can_be_meant() -> None:
    text = json.dumps({"anything": "[1]", "text": "[1]"})
    assert arguments(Loose).read(text) == Loose("[1]", "[1]")


def test_checks_of_the_params_type_speak_for_themselves() -> None:
    assert "low must not be above high" in refusal(Checked, '{"low": 2, "high": 1}')
    assert refusal(Checked, '{"low": -1, "high": 1}') == "low must not be negative: try 0"
    assert "KeyError: 'thirteen'" in refusal(Checked, '{"low": 13, "high": 14}')


def test_pydantic_models_are_refused_in_the_same_words() -> None:
    assert "field required at `count`" not in refusal(Owner, '{"pet": {"kind": "cat"}, "count": "many"}')
    assert "unable to parse string as an integer at `count` ('many')" in refusal(
        Owner, '{"pet": {"kind": "cat"}, "count": "many"}'
    )
    assert "unknown field `pet.color`" in refusal(Owner, '{"pet": {"kind": "cat", "color": 1}}')
    assert "unknown field `size`" in refusal(Owner, '{"pet": {"kind": "cat"}, "size": 1}')


def test_a_place_that_is_not_in_the_arguments_is_named_without_a_value() -> None:
    assert "`pet.cat.lives`" in refusal(Told, '{"pet": {"kind": "cat", "lives": "x"}}')


def test_a_union_allows_what_one_of_its_members_knows() -> None:
    assert arguments(Owner).read('{"pet": {"kind": "dog", "tricks": ["sit"]}}') == Owner(
        pet=Dog(kind="dog", tricks=["sit"])
    )


def test_a_model_that_allows_more_is_given_more() -> None:
    assert arguments(Open).read('{"a": 1, "b": {"c": 2}}').model_extra == {"b": {"c": 2}}


def test_long_values_are_shortened_and_deep_ones_refused() -> None:
    message = refusal(Flat, json.dumps({"query": ["x" * 500]}))
    assert len(message) < 300
    assert "…" in message
    assert "not JSON" in refusal(Flat, "[" * 100_000)
    assert "not JSON" in refusal(Flat, '{"query": "\ud800"}')


@pytest.mark.spec("FR-106")
@given(st.text())
def test_any_text_is_read_or_refused_for_the_model(text: str) -> None:
    assert is_read_or_refused(Flat, text, "It takes query")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "sku", "x", ""]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["name", "parts", "one", "pair", "by_room", "else"]), JSON))
def test_any_json_is_read_or_refused_for_the_model(value: dict[str, Any]) -> None:
    assert is_read_or_refused(Order, json.dumps(value), "It takes name")


@given(st.builds(Order, st.text(), st.lists(st.builds(Part, st.text(), st.integers())), note=st.none() | st.text()))
def test_what_fits_is_read_as_it_is_however_it_is_packed(order: Order) -> None:
    text = msgspec.json.encode(order).decode()
    assert arguments(Order).read(text) == order
    assert arguments(Order).read(json.dumps(text)) == order


@dataclass(frozen=True)
class Found:
    title: str


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult.ok(Found("a"), "one found"), "one found"),
        (ToolResult.ok(Found("a")), '{"title":"a"}'),
        (ToolResult.ok("plain"), "plain"),
        (ToolResult.ok([1, None]), "[1,null]"),
        (ToolResult.ok(0), "0"),
        (ToolResult.ok(""), ""),
        (ToolResult.ok(), "done"),
        (ToolResult.error("no such thing"), "no such thing"),
        (ToolResult.error(""), "failed"),
        (ToolResult.error("", Found("a")), '{"title":"a"}'),
        (ToolResult.ok(1j), "1j"),
    ],
)
def test_a_model_sees_the_message_or_else_the_value(result: ToolResult[Any], text: str) -> None:
    assert result.render() == text


@pytest.mark.spec("FR-020")
def test_success_and_failure_are_told_apart() -> None:
    assert (ToolResult.ok(1).success, ToolResult.error("x").success) == (True, False)
    assert ToolResult.error("x", 5).value == 5


def test_a_result_comes_back_from_the_log_as_it_was() -> None:
    result = ToolResult.ok(Found("a"), "one")
    assert load(dump(result)) == result


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(NamedTuple):
    x: int
    label: str = ""


class Row(NamedTuple):
    places: list[Place]
    next: Row | None = None


def test_a_model_is_told_the_values_of_an_enumeration_and_the_fields_of_a_named_tuple() -> None:
    @dataclass
    class Asked:
        color: Color
        colors: list[Color]
        row: Row
        pair: tuple[int, Color]

    asked = arguments(Asked)
    assert asked.describe() == (
        "It takes color (one of blue, red, required), colors (array of one of blue, red, required), row (array [places"
        " array of array, next array [places array, next array or null] or null], required), pair (array [integer, one"
        " of blue, red], required)."
    )
    assert asked.schema["$defs"]["Place"]["prefixItems"][0] == {"type": "integer", "description": "x"}
    row = asked.read('{"color": "red", "colors": [], "row": [[[1, "a"]], null], "pair": [1, "blue"]}').row
    assert row == Row([Place(1, "a")])
