"""A conversation as text fits the room it is given, and says what is missing in it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

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
from watchkeeper.loop.compaction import excerpt, shortened

CALL = ToolCall("c1", "read", '{"page":1}')


def result(text: str) -> ToolMessage:
    return ToolMessage("c1", "read", text)


def test_what_fits_stands_there_whole() -> None:
    image = ImagePart(data="aGk=")
    said: list[Message] = [
        SystemMessage("Be brief."),
        UserMessage((TextPart("Read it."), image)),
        AssistantMessage("I read.", (CALL,)),
        result("page one"),
        ToolMessage("c2", "read", "no such page", is_error=True),
        AssistantMessage("Done."),
    ]
    assert excerpt(said, 1_000) == (
        "[instructions]\nBe brief.\n\n[user]\nRead it.\n\n(an image)\n\n[assistant]\nI read.\n\n"
        '[assistant calls read]\n{"page":1}\n\n[result of read]\npage one\n\n[error from read]\nno such page\n\n'
        "[assistant]\nDone."
    )


def test_results_are_shortened_before_anything_that_was_said() -> None:
    said: list[Message] = [UserMessage.of("u" * 1_000), AssistantMessage("a" * 1_000), result("r" * 50_000)]
    text = excerpt(said, 5_000)
    assert "u" * 1_000 in text
    assert "a" * 1_000 in text
    assert "bytes are left out here" in text


def test_the_middle_goes_last_and_the_first_and_the_newest_stay() -> None:
    said: list[Message] = [UserMessage.of(f"message {number} " + "x" * 300) for number in range(100)]
    text = excerpt(said, 4_000)
    assert "message 0 " in text
    assert "message 99 " in text
    assert "entries are left out here" in text
    assert "message 50 " not in text
    shown = [int(number) for number in re.findall(r"message (\d+) ", text)]
    assert shown == sorted(shown)


@given(st.text(), st.integers(0, 200))
def test_a_shortened_text_has_both_its_ends(text: str, most: int) -> None:
    short = shortened(text, most)
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        assert short == text
    else:
        assert len(short.encode()) <= max(most, 80)
        assert "bytes are left out here" in short


texts = st.text(st.characters(codec="utf-8"), max_size=300) | st.integers(500, 5_000).map("ä".__mul__)
messages = st.one_of(
    texts.map(UserMessage.of),
    texts.map(result),
    texts.map(AssistantMessage),
    texts.map(lambda text: AssistantMessage("", (ToolCall("c1", "write", text),))),
)


@given(st.lists(messages, max_size=40), st.integers(1_000, 20_000))
def test_it_always_fits(said: list[Message], room: int) -> None:
    assert len(excerpt(said, room).encode()) <= room


def test_half_characters_do_no_harm() -> None:
    assert "left out here" in shortened("half \ud83d" * 100, 200)
