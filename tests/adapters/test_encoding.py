"""Bytes that are made once: of messages, of what a run repeats, and of text that JSON cannot carry."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.adapters.endpoint import (
    KEPT_ENTRIES,
    Kept,
    check_extra,
    encode,
    encoded_messages,
    join_body,
    own_data,
    tool_arguments,
)
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import AssistantMessage, Message, Transcript, UserMessage


def test_text_that_json_cannot_carry_is_replaced() -> None:
    assert encode({"a\udc80": ["b\ud83d", ("c", 1)]}) == '{"a\ufffd":["b\ufffd",["c",1]]}'.encode()
    assert msgspec.json.decode(encode("\ud83d\ude00")) == "😀"


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner) | st.dictionaries(st.text(), inner)


# Halves of surrogate pairs are what JSON cannot carry; hypothesis leaves them out unless told.
broken_text = st.text(st.characters(exclude_categories=()))


@given(st.recursive(broken_text | st.integers(-9, 9), containers))
def test_every_text_can_be_encoded(value: Any) -> None:
    msgspec.json.decode(encode(value))


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
    kept = Kept()
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
    check_extra({"user": "seven"}, frozenset({"stream"}))
    with pytest.raises(ConfigurationError, match="cannot set messages, stream"):
        check_extra({"stream": 1, "messages": 2, "user": 3}, frozenset({"stream", "messages"}))
