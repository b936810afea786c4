"""Event types have stable tags."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pydantic
import pytest

from tests.session.samples import Counted, Plan
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.type_tags import tag_of, type_of
from watchkeeper.session.log import event


def test_an_event_type_is_found_by_its_tag() -> None:
    assert tag_of(Counted) == "samples_counted"
    assert type_of("samples_counted") is Counted


def test_a_type_without_the_decorator_gets_a_tag_of_module_and_name() -> None:
    assert tag_of(Plan) == "tests.session.samples:Plan"
    assert type_of("tests.session.samples:Plan") is Plan


def test_one_tag_means_one_type() -> None:
    with pytest.raises(ConfigurationError, match=r"'samples_counted' .* belongs to tests\.session\.samples:Counted"):

        @event("samples_counted")
        @dataclass(frozen=True)
        class Other:  # pyright: ignore[reportUnusedClass]
            by: int


def test_models_and_structs_can_be_events() -> None:
    @event("registry_model")
    class Model(pydantic.BaseModel):
        n: int

    @event("registry_struct")
    class Struct(msgspec.Struct):
        n: int

    assert (type_of("registry_model"), type_of("registry_struct")) == (Model, Struct)


def test_the_decorator_below_dataclass_says_where_it_belongs() -> None:
    """A slotted dataclass is another class than the one that the inner decorator sees."""
    with pytest.raises(ConfigurationError, match=r"write @event\('registry_order'\) above @dataclass"):

        @dataclass(frozen=True, slots=True)
        @event("registry_order")
        class Order:  # pyright: ignore[reportUnusedClass]
            n: int


def test_a_subclass_has_a_tag_of_its_own() -> None:
    @dataclass(frozen=True, slots=True)
    class More(Counted):
        text: str = ""

    assert tag_of(More).endswith("More")


def test_an_unknown_tag_is_named() -> None:
    with pytest.raises(CodecError, match="unknown type tag 'registry_nobody'"):
        type_of("registry_nobody")
