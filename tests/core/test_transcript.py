"""The messages of one conversation only grow, until a new segment takes their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.messages import Message, Transcript, UserMessage

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
