"""Values to JSON and back, and their schemas, open and closed."""

from __future__ import annotations

import enum
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.codec import (
    CodecError,
    close,
    convert,
    decode,
    display,
    encode,
    is_pydantic,
    json_schema,
    map_schema,
    resolved,
    to_builtins,
    unknown_field,
)
from watchkeeper.core.errors import ConfigurationError

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    """How large."""

    SMALL = 1
    LARGE = 2


class Mixed(enum.Enum):
    NOTHING = ""
    ONE = "one"


@dataclass
class Bare:
    a: int


@dataclass
class Described:
    """A described thing.

    It has a body.

    Attributes:
        name: What it is called,
            in full.
        bare: The bare part.
        odd: Already described elsewhere.
    """

    name: str
    bare: Bare
    odd: Annotated[int, msgspec.Meta(description="In its type.")] = 1
    plain: str | None = None


@dataclass
class OnlyAttributes:
    """
    Attributes:
        a: The a.
    """

    a: int


@dataclass
class Node:
    """A node."""

    value: int
    children: list[Node] = field(default_factory=list["Node"])


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Wide:
    described: Described
    boxes: list[Box[int]]
    node: Node
    colour: Colour
    size: Size
    word: Literal["a", "b"]
    many: dict[str, Bare]
    pair: tuple[int, str]
    either: int | str = 1
    when: datetime | None = None


class Model(pydantic.BaseModel):
    """A model."""

    count: int
    note: str = ""


class Tree(pydantic.BaseModel):
    value: int
    kids: list[Tree] = []


@dataclass
class Holder:
    model: Model
    trees: list[Tree]
    other: Model | None = None


class Struct(msgspec.Struct):
    x: int
    y: str = "y"


class Typed(TypedDict):
    a: int


class Named(NamedTuple):
    a: int


def references(node: Any) -> set[str]:
    """Every reference anywhere in a schema."""
    if isinstance(node, dict):
        inner = set[str]().union(*(references(value) for value in node.values()))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return inner | ({node["$ref"]} if isinstance(node.get("$ref"), str) else set())  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(node, list):
        return set[str]().union(*(references(value) for value in node))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return set()


ALL_TYPES: list[Any] = [Bare, Described, Node, Wide, Model, Tree, Holder, Struct, Typed, Box[Described], Box[Tree]]


@pytest.mark.parametrize("type_", ALL_TYPES)
def test_a_schema_is_an_object_that_holds_all_it_refers_to(type_: Any) -> None:
    schema = json_schema(type_)
    assert schema["type"] == "object"
    known = {f"#/$defs/{name}" for name in schema.get("$defs", {})}
    assert references(schema) <= known
    assert known <= references(schema), "a definition that nothing refers to"


@pytest.mark.parametrize("type_", [Bare, Box[int], Colour, Named, Struct, Typed])
def test_a_docstring_that_nobody_wrote_does_not_show(type_: Any) -> None:
    assert "description" not in json_schema(type_)


def test_docstrings_become_descriptions_of_the_object_and_its_properties() -> None:
    schema = json_schema(Described)
    assert schema["description"] == "A described thing.\n\nIt has a body."
    properties = schema["properties"]
    assert properties["name"]["description"] == "What it is called, in full."
    assert properties["bare"] == {"description": "The bare part.", "$ref": "#/$defs/Bare"}
    assert properties["odd"]["description"] == "In its type."
    assert "description" not in properties["plain"]


def test_nested_definitions_are_described_too() -> None:
    assert json_schema(Wide)["$defs"]["Described"]["description"] == "A described thing.\n\nIt has a body."


def test_a_docstring_of_attributes_alone_describes_only_them() -> None:
    schema = json_schema(OnlyAttributes)
    assert "description" not in schema
    assert schema["properties"]["a"]["description"] == "The a."


def test_the_root_stands_at_the_top_and_stays_defined_only_if_it_is_recursive() -> None:
    assert "$defs" not in json_schema(Bare)
    node = json_schema(Node)
    assert node["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert set(node["$defs"]) == {"Node"}
    tree = json_schema(Tree)
    assert tree["properties"]["kids"]["items"] == {"$ref": "#/$defs/Tree"}
    assert tree["type"] == "object"


def test_what_is_said_beside_the_root_goes_before_what_its_class_says() -> None:
    schema = json_schema(Annotated[Described, msgspec.Meta(description="Said here.")])
    assert schema["description"] == "Said here."
    assert schema["type"] == "object"


def test_defaults_optionals_and_choices_show() -> None:
    schema = json_schema(Wide)
    properties = schema["properties"]
    assert schema["required"] == ["described", "boxes", "node", "colour", "size", "word", "many", "pair"]
    assert properties["word"] == {"enum": ["a", "b"], "type": "string"}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 1}
    assert properties["when"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert schema["$defs"]["Size"] == {
        "title": "Size",
        "description": "How large.",
        "enum": [1, 2],
        "type": "integer",
    }


def test_an_enumeration_of_several_types_names_none() -> None:
    @dataclass
    class Odd:
        word: Literal["a", 1]

    globals()["Odd"] = Odd
    assert "type" not in json_schema(Odd)["properties"]["word"]


def test_pydantic_models_inside_dataclasses_bring_their_definitions_along() -> None:
    schema = json_schema(Holder)
    assert schema["properties"]["model"]["description"] == "A model."
    assert schema["properties"]["trees"]["items"] == {"$ref": "#/$defs/Tree.2.Tree"}
    assert schema["$defs"]["Tree.2.Tree"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/Tree.2.Tree"}


class Opaque:
    pass


def make_twin() -> Any:
    @dataclass
    class Twin:
        a: int

    return Twin


@pytest.mark.parametrize("type_", [Opaque, list[Opaque], complex])
def test_a_type_without_a_json_form_is_refused_with_advice(type_: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"has no JSON Schema.*use dataclasses"):
        json_schema(type_)


def test_two_classes_of_one_name_in_one_place_are_refused() -> None:
    first, second = make_twin(), make_twin()
    pair = msgspec.defstruct("Pair", [("a", first), ("b", second)])
    with pytest.raises(ConfigurationError, match="no two classes of one name"):
        json_schema(pair)


def test_map_schema_reaches_every_schema_and_no_property_that_is_named_like_a_keyword() -> None:
    schema = {
        "type": "object",
        "properties": {"properties": {"type": "object"}, "items": {"type": "array", "items": {"type": "null"}}},
        "anyOf": [{"type": "string"}],
        "additionalProperties": {"type": "number"},
        "$defs": {"D": {"type": "boolean"}},
    }
    seen: list[Any] = []

    def look(part: dict[str, Any]) -> dict[str, Any]:
        seen.append(part["type"])
        return part

    map_schema(schema, look)
    assert seen == ["object", "null", "array", "string", "number", "boolean", "object"]


WIDES = st.builds(
    Wide,
    described=st.builds(Described, st.text(), st.builds(Bare, st.integers()), st.integers()),
    boxes=st.lists(st.builds(Box[int], st.integers())),
    node=st.builds(Node, st.integers(), st.lists(st.builds(Node, st.integers()))),
    colour=st.sampled_from(Colour),
    size=st.sampled_from(Size),
    word=st.sampled_from(("a", "b")),
    many=st.dictionaries(st.text(), st.builds(Bare, st.integers())),
    pair=st.tuples(st.integers(), st.text()),
    either=st.integers() | st.text(),
    when=st.none() | st.datetimes(timezones=st.just(UTC)),
)


@pytest.mark.spec("FR-009")
@given(WIDES)
def test_what_is_written_is_read_again(value: Wide) -> None:
    assert decode(encode(value), Wide) == value
    assert convert(to_builtins(value), Wide) == value


@given(st.integers(), st.lists(st.integers()))
def test_pydantic_models_are_read_and_written(count: int, values: list[int]) -> None:
    holder = Holder(Model(count=count), [Tree(value=value) for value in values])
    assert decode(encode(holder), Holder) == holder
    assert convert(to_builtins(holder), Holder) == holder
    assert decode(encode(holder.model), Model) == holder.model
    assert convert(to_builtins(holder.model), Model) == holder.model


def test_values_with_text_keys_and_forms_are_read_back() -> None:
    @dataclass
    class Keys:
        by_number: dict[int, Decimal]
        by_id: dict[UUID, bytes]

    globals()["Keys"] = Keys
    value = Keys({1: Decimal("1.50")}, {UUID(int=5): b"\x00"})
    assert convert(to_builtins(value), Keys) == value


@pytest.mark.parametrize(
    ("text", "type_", "message"),
    [
        ("{", Bare, "truncated"),
        ('{"a": "x"}', Bare, r"Expected `int`, got `str` - at `\$\.a`"),
        ("{}", Bare, "missing required field `a`"),
        ('{"count": "x"}', Model, r"valid integer.* - at `\$\.count`"),
        ('{"value": 1, "kids": [{"value": 1}, {}]}', Tree, r"Field required - at `\$\.kids\[1\]\.value`"),
        (
            '{"model": {"count": 1}, "trees": [{}]}',
            Holder,
            r"Field required - at `\$\.value` - at `\$\.trees\[0\]`",
        ),
        ("[" * 100_000, list[Any], "recursion"),
        ('{"a": 1}', Opaque, "Opaque"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(text: str, type_: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode(text, type_)


@pytest.mark.parametrize(("value", "type_"), [({"a": "x"}, Bare), ({"count": "x"}, Model), ({}, Tree), ({}, Opaque)])
def test_builtins_that_do_not_fit_are_refused(value: Any, type_: Any) -> None:
    with pytest.raises(CodecError):
        convert(value, type_)


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(CodecError, match="cannot write list as JSON: Opaque has no JSON form"):
        encode([Opaque()])
    with pytest.raises(CodecError, match="cannot write Opaque as JSON"):
        to_builtins(Opaque())


def test_display_shows_text_as_it_is_and_everything_else_as_json_or_repr() -> None:
    assert display("a\nb") == "a\nb"
    assert display(Bare(1)) == '{"a":1}'
    assert display(Model(count=1)) == '{"count":1,"note":""}'
    assert display(1 + 2j) == "(1+2j)"


@pytest.mark.spec("FR-009")
def test_pydantic_is_known_by_its_classes_and_never_imported_for_asking() -> None:
    assert is_pydantic(Model)
    assert not is_pydantic(Model(count=1))
    assert not is_pydantic(Bare)
    script = (
        "import sys; from watchkeeper.core.codec import is_pydantic, json_schema, encode;"
        "is_pydantic(int); json_schema(list[int]); encode([1]); assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@dataclass
class Leaf:
    size: int
    label: str = ""


@dataclass
class Branching:
    name: str
    leaf: Leaf | None = None
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    by_name: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    pair: tuple[Leaf, int] | None = None
    numbers: dict[str, int] = field(default_factory=dict[str, int])


SCHEMA = close(json_schema(Branching))

leaves = st.builds(Leaf, st.integers(), st.text())
trees = st.builds(
    Branching,
    st.text(),
    st.none() | leaves,
    st.lists(leaves, max_size=3),
    st.dictionaries(st.text(), leaves, max_size=3),
    st.none() | st.tuples(leaves, st.integers()),
    st.dictionaries(st.text(), st.integers(), max_size=3),
)


@given(trees)
def test_a_value_of_the_type_has_no_unknown_field(tree: Branching) -> None:
    assert unknown_field(to_builtins(tree), SCHEMA) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"nam": "x"}, "unknown field `nam` (did you mean `name`?)"),
        ({"zzz": 1}, "unknown field `zzz`"),
        ({"leaf": {"siz": 1}}, "unknown field `leaf.siz` (did you mean `size`?); known there: size, label"),
        ({"leaves": [{"size": 1}, {"q": 1}]}, "unknown field `leaves[1].q`; known there: size, label"),
        ({"by_name": {"a": {"q": 1}}}, "unknown field `by_name.a.q`; known there: size, label"),
        ({"pair": [{"q": 1}, 2]}, "unknown field `pair[0].q`; known there: size, label"),
    ],
)
def test_the_first_unknown_field_is_named_with_its_place(value: Any, said: str) -> None:
    assert unknown_field(value, SCHEMA) == said


def test_a_name_of_megabytes_is_neither_compared_nor_repeated() -> None:
    said = unknown_field({"n" * 50_000_000: 1}, SCHEMA)  # half a minute, if it were looked for a near one
    assert said is not None
    assert len(said) < 300


def test_a_long_name_above_many_values_is_not_written_down_for_each() -> None:
    value = {"numbers": {"n" * 5_000_000: [1] * 200_000}}  # a minute and more, if it were
    assert unknown_field(value, SCHEMA) is None


@pytest.mark.parametrize("value", [None, 3, "x", [1, 2], {"leaf": None}, {"numbers": {"any": 1}}, {"leaf": 5}])
def test_what_is_wrong_in_another_way_is_not_its_business(value: Any) -> None:
    assert unknown_field(value, SCHEMA) is None


def test_a_value_needs_to_fit_only_one_of_several_objects() -> None:
    def closed(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {}}, "additionalProperties": False}

    for schema in ({"anyOf": [closed("one"), closed("other")]}, {"oneOf": [closed("other"), closed("one")]}):
        assert unknown_field({"one": 1}, schema) is None
        assert unknown_field({"other": 1}, schema) is None
        assert unknown_field({"none": 1}, schema) is not None


def test_an_object_that_names_no_fields_stays_open() -> None:
    assert unknown_field({"anything": {"at": "all"}}, close(json_schema(dict[str, Any]))) is None
    assert "additionalProperties" not in close({"type": "object"})


def test_closing_drops_titles_and_keeps_what_the_schema_says_itself() -> None:
    open_schema = {"title": "T", "type": "object", "properties": {"title": {"type": "string"}}}
    assert close(open_schema) == {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "additionalProperties": False,
    }
    assert close({**open_schema, "additionalProperties": True})["additionalProperties"] is True


def test_a_reference_leads_to_its_definition() -> None:
    assert resolved({"$ref": "#/$defs/Leaf"}, {"Leaf": {"type": "object"}}) == {"type": "object"}
    assert resolved({"type": "string"}, {}) == {"type": "string"}
