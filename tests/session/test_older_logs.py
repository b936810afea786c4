"""Stored data does not depend on module names: old logs are read, and new ones name no module of ours."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import watchkeeper
from tests.session.recorded_values import recorded
from watchkeeper.core.codec import CodecError
from watchkeeper.core.type_tags import tag_of, type_of
from watchkeeper.core.usage import ModelPrice, Usage
from watchkeeper.session.log import event
from watchkeeper.session.slices import Origin
from watchkeeper.session.tagging import dump, load

OLDER: list[str] = (Path(__file__).parent / "data" / "older_log.jsonl").read_text("utf-8").splitlines()
"""The same log as `recorded`, written when types within an event were named by module and class."""


@pytest.mark.parametrize("seq", range(1, len(OLDER) + 1))
def test_an_event_of_an_older_log_is_read_as_what_it_was(seq: int) -> None:
    assert load(json.loads(OLDER[seq - 1])) == recorded()[seq - 1]


def test_the_older_log_has_what_today_s_has_under_other_names() -> None:
    older, now = "\n".join(OLDER), json.dumps(dump(recorded()))
    assert len(OLDER) == len(recorded())
    assert "watchkeeper." in older
    assert "watchkeeper." not in now


def test_a_former_name_is_never_written_again() -> None:
    stop = type_of("watchkeeper.core.stop:Stop")
    assert tag_of(stop) == "watchkeeper:stop"


def test_a_class_that_moved_is_found_where_it_is_today() -> None:
    price = ModelPrice.per_million(1, 2)
    stored = dump(price)
    stored["$type"] = "watchkeeper.core.price:ModelPrice"
    assert load(stored) == price
    with pytest.raises(CodecError, match=r"unknown type tag 'watchkeeper.core.price:NoSuchPrice'"):
        type_of("watchkeeper.core.price:NoSuchPrice")


def test_an_event_of_a_user_may_have_the_name_of_a_value_of_ours() -> None:
    @event("usage")
    @dataclass(frozen=True)
    class Used:
        amount: int

    assert load(dump(Used(1))) == Used(1)
    assert load(dump(Usage())) == Usage()


def test_no_type_within_a_recorded_event_is_stored_under_the_name_of_a_module() -> None:
    """Whatever a field of an event may hold by its annotation has a tag that says nothing of where its class lives."""
    seen: set[type] = {Origin}  # a snapshot's JSON leaves it out
    for event_type in _registered_events():
        for part in _parts(event_type, seen):
            stable = tag_of(part).removeprefix("watchkeeper:")
            assert ":" not in stable, f"{part} within {event_type.__name__} needs a tag: @own_value(...)"
    names = ("stop", "token_usage", "decision", "tool_call")
    assert {type_of(f"watchkeeper:{name}") for name in names} <= seen


def _registered_events() -> list[type]:
    classes: set[type] = set()
    for module in walk_packages(watchkeeper.__path__, "watchkeeper."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(import_module(module.name)).values():
            if isinstance(value, type) and value.__module__.startswith("watchkeeper.") and _has_fields(value):
                classes.add(value)
    return [each for each in classes if ":" not in tag_of(each).removeprefix("watchkeeper:")]


def _parts(annotation: Any, seen: set[type]) -> Iterator[type]:
    """Yield the classes of ours that a value of this type may hold, itself included."""
    for argument in typing.get_args(annotation):
        yield from _parts(argument, seen)
    ours = isinstance(annotation, type) and annotation.__module__.startswith("watchkeeper.")
    if not ours or annotation in seen:
        return
    seen.add(annotation)
    yield annotation
    if _has_fields(annotation):
        for hint in typing.get_type_hints(annotation).values():
            yield from _parts(hint, seen)


def _has_fields(type_: Any) -> bool:
    return bool(dataclasses.is_dataclass(type_)) or hasattr(type_, "__struct_fields__")
