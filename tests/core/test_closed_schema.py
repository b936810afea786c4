"""Closed schemas: what is not named is found, at every depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.codec import close, json_schema, resolved, to_builtins, unknown_field


@dataclass
class Leaf:
    size: int
    label: str = ""


@dataclass
class Tree:
    name: str
    leaf: Leaf | None = None
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    by_name: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    pair: tuple[Leaf, int] | None = None
    numbers: dict[str, int] = field(default_factory=dict[str, int])


SCHEMA = close(json_schema(Tree))

leaves = st.builds(Leaf, st.integers(), st.text())
trees = st.builds(
    Tree,
    st.text(),
    st.none() | leaves,
    st.lists(leaves, max_size=3),
    st.dictionaries(st.text(), leaves, max_size=3),
    st.none() | st.tuples(leaves, st.integers()),
    st.dictionaries(st.text(), st.integers(), max_size=3),
)


@given(trees)
def test_a_value_of_the_type_has_no_unknown_field(tree: Tree) -> None:
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
