"""Messages, and the transcript that only grows."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.asking.models import text_bytes
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Transcript,
    UserMessage,
)

PIXEL = ImagePart(data="aGk=", media_type="image/gif", max_tokens=85)


@pytest.mark.spec("FR-006")
def test_roles_are_fixed() -> None:
    every: list[Message] = [SystemMessage("s"), UserMessage.of("u"), AssistantMessage("a"), ToolMessage("1", "t", "r")]
    assert [message.role for message in every] == ["system", "user", "assistant", "tool"]


def test_the_text_of_a_user_message_leaves_images_out() -> None:
    assert UserMessage((TextPart("a"), PIXEL, TextPart("b"))).text == "a\n\nb"
    assert UserMessage.of("a").parts == (TextPart("a"),)


@given(st.binary(min_size=1))
def test_an_image_from_bytes_holds_their_base64(data: bytes) -> None:
    part = ImagePart.from_bytes(data, "image/jpeg", 100)
    assert base64.b64decode(part.data) == data
    assert (part.media_type, part.url, part.max_tokens) == ("image/jpeg", "", 100)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "either data"),
        ({"data": "aGk=", "url": "https://example.com/a.png"}, "not both"),
        ({"data": b"raw"}, r"for raw bytes write ImagePart\.from_bytes"),
        ({"data": "aGk=", "media_type": "text/plain"}, "media_type='text/plain'"),
        ({"url": "file:///etc/passwd"}, r"url='file:///etc/passwd' must be http\(s\)"),
        ({"data": "aGk=", "max_tokens": 0}, "max_tokens=0 must be at least 1"),
    ],
)
def test_an_image_that_cannot_be_sent_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        ImagePart(**given)


@given(st.text(), st.text(), st.text(), st.text())
def test_text_bytes_counts_everything_textual_in_utf8(one: str, two: str, three: str, four: str) -> None:
    def size(*texts: str) -> int:
        return sum(len(text.encode()) for text in texts)

    assert text_bytes(SystemMessage(one)) == size(one)
    assert text_bytes(ToolMessage("id", "name", one)) == size(one)
    assert text_bytes(UserMessage((TextPart(one), PIXEL, TextPart(two)))) == size(one, two)
    said = AssistantMessage(text=one, reasoning=two, tool_calls=(ToolCall("id", three, four),))
    assert text_bytes(said) == size(one, two, three, four)


messages = st.lists(st.text().map(UserMessage.of), max_size=10)


@pytest.mark.spec("FR-006")
@given(messages, messages)
def test_what_was_appended_stays_where_it_is(first: list[Message], more: list[Message]) -> None:
    transcript = Transcript(first)
    for message in more:
        transcript.append(message)
    assert list(transcript) == [*first, *more]
    assert len(transcript) == len(first) + len(more)
    assert transcript.since(len(first)) == more
    assert all(transcript[index] is message for index, message in enumerate(first))


def test_the_given_list_is_not_shared() -> None:
    given = [UserMessage.of("a")]
    transcript = Transcript(given)
    given.clear()
    assert len(transcript) == 1


def test_each_adapter_has_encodings_of_its_own() -> None:
    transcript = Transcript()
    transcript.encoded("openai").append(b"{}")
    assert transcript.encoded("openai") == [b"{}"]
    assert transcript.encoded("openai") is transcript.encoded("openai")
    assert transcript.encoded("anthropic") == []


@given(messages, messages, messages)
def test_a_new_segment_holds_what_it_was_given_and_grows_like_the_first(
    first: list[Message], second: list[Message], more: list[Message]
) -> None:
    transcript = Transcript(first)
    transcript.encoded("openai").extend(b"{}" for _ in first)
    transcript.begin_segment(second)
    for message in more:
        transcript.append(message)
    assert list(transcript) == [*second, *more]
    assert (transcript.segment, transcript.encoded("openai")) == (2, [])


def test_the_list_a_segment_begins_with_is_not_shared() -> None:
    given = [UserMessage.of("a")]
    transcript = Transcript()
    transcript.begin_segment(given)
    given.clear()
    assert len(transcript) == 1
