"""Tags: one tag means one type, a registered tag keeps its type, and looking one up imports nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.type_tags import register, tag_of, type_of
from watchkeeper.session.tagging import PLAIN_TAGS, dump


@dataclass(frozen=True)
class Outer:
    text: str

    @dataclass(frozen=True)
    class Inner:
        text: str


def test_a_type_without_a_tag_is_named_by_module_and_qualified_name() -> None:
    assert tag_of(Outer.Inner) == f"{__name__}:Outer.Inner"
    assert type_of(f"{__name__}:Outer.Inner") is Outer.Inner


def test_a_class_of_an_imported_module_is_found_without_registration() -> None:
    assert type_of("collections:ChainMap").__name__ == "ChainMap"


def test_a_registered_tag_wins_over_the_name_and_may_be_registered_again() -> None:
    class Moved:
        pass

    automatic = tag_of(Moved)
    register(Moved, "tags_moved")
    register(Moved, "tags_moved")
    assert tag_of(Moved) == "tags_moved"
    assert type_of("tags_moved") is Moved
    assert type_of(automatic) is Moved


def test_a_tag_belongs_to_one_type() -> None:
    class One:
        pass

    class Two:
        pass

    register(One, "tags_one")
    with pytest.raises(ConfigurationError, match=r"'tags_one' .*Two.* belongs to .*One"):
        register(Two, "tags_one")
    with pytest.raises(ConfigurationError, match="already has the tag 'tags_one'"):
        register(One, "tags_uno")


def test_the_tags_of_plain_types_are_taken() -> None:
    assert {"tuple", "int"} <= PLAIN_TAGS

    class Tuple:
        pass

    assert dump((1,)) == {"$type": "tuple", "items": [1]}
    with pytest.raises(ConfigurationError, match="belongs to builtins:tuple"):
        register(Tuple, "tuple")


def test_the_same_definition_run_again_replaces_its_older_self() -> None:
    def define() -> type:
        class Cell:
            pass

        register(Cell, "tags_cell")
        return Cell

    first, second = define(), define()
    assert type_of("tags_cell") is second
    assert tag_of(first) == tag_of(second) == "tags_cell"


def test_the_newest_definition_of_an_automatic_tag_is_the_one_that_is_read() -> None:
    def define() -> type:
        class Local:
            pass

        return Local

    first, second = define(), define()
    assert tag_of(first) == tag_of(second)
    assert type_of(tag_of(first)) is second


@pytest.mark.parametrize("tag", ["", "a:b", "$type"])
def test_a_tag_that_could_be_mistaken_is_refused(tag: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a tag"):
        register(Outer, tag)


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("never_registered", "no type is registered under it"),
        ("no.such.module:Thing", "import 'no.such.module' before reading this"),
        (f"{__name__}:Missing", "has no such class"),
        (f"{__name__}:Outer.Missing", "has no such class"),
        ("os:system", "has no such class"),
        ("collections:ChainMap.copy", "has no such class"),
    ],
)
def test_an_unknown_tag_is_named_with_what_to_do(tag: str, message: str) -> None:
    with pytest.raises(CodecError, match=f"unknown type tag {tag!r}: .*{message}") as caught:
        type_of(tag)
    assert "import" in str(caught.value)


def test_looking_a_tag_up_imports_nothing() -> None:
    name = "this"  # a module of the standard library that nobody imports
    assert name not in sys.modules
    with pytest.raises(CodecError):
        type_of(f"{name}:Zen")
    assert name not in sys.modules


def test_looking_a_tag_up_runs_no_code_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules may load attributes on demand, as `watchkeeper` does; a stored file must not trigger that."""
    asked: list[str] = []

    def load_lazily(name: str) -> type:
        asked.append(name)
        return Outer

    module = ModuleType("lazy_module")
    monkeypatch.setattr(module, "__getattr__", load_lazily, raising=False)
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    assert module.Thing is Outer
    with pytest.raises(CodecError, match="'lazy_module' has no such class"):
        type_of("lazy_module:Anything")
    assert asked == ["Thing"]
