"""Docstrings taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.codec import parse_docstring

WHOLE = """Find a thing.

    Use it when a thing is lost.
    It takes its time.

    Args:
        name: What it is called,
          in full.
        size (int): How large it is.
        *rest: Anything else.

    Example:
        find("key")

    Returns:
        The thing.

    Raises:
        LookupError: If there is none.
    """


def test_text_keeps_summary_body_and_examples_and_drops_what_a_model_cannot_use() -> None:
    found = parse_docstring(WHOLE)
    assert found.text == (
        'Find a thing.\n\nUse it when a thing is lost.\nIt takes its time.\n\nExample:\n    find("key")'
    )


def test_each_argument_gets_one_line() -> None:
    assert parse_docstring(WHOLE).fields == {
        "name": "What it is called, in full.",
        "size": "How large it is.",
        "rest": "Anything else.",
    }


@pytest.mark.parametrize("heading", ["Args", "Arguments", "Parameters", "Attributes", "Fields", "Keyword Args"])
def test_every_usual_heading_of_arguments_is_known(heading: str) -> None:
    found = parse_docstring(f"Text.\n\n{heading}:\n    a: One.\n")
    assert (found.text, found.fields) == ("Text.", {"a": "One."})


def test_several_sections_are_put_together() -> None:
    found = parse_docstring("Text.\n\nArgs:\n    a: One.\n\nKeyword Args:\n    b: Two.\n")
    assert found.fields == {"a": "One.", "b": "Two."}


def test_text_after_a_section_is_text_again() -> None:
    found = parse_docstring("Text.\n\nArgs:\n    a: One.\n\nMore text.\n")
    assert (found.text, found.fields) == ("Text.\n\nMore text.", {"a": "One."})


def test_a_description_may_begin_on_the_next_line() -> None:
    assert parse_docstring("Text.\n\nArgs:\n    a:\n        One.\n").fields == {"a": "One."}


def test_a_docstring_may_begin_with_a_section() -> None:
    text = """Attributes:
        a: One.
        b: Two.

    Text.
    """
    assert parse_docstring("Args:\n        a: One.\n    ").fields == {"a": "One."}
    assert parse_docstring(text).fields == {"a": "One.", "b": "Two."}
    assert parse_docstring(text).text == "Text."


def test_a_section_without_entries_says_nothing() -> None:
    found = parse_docstring("Text.\n\nArgs:\n\nMore.\n\nAttributes:\n    no entry here\n    a:\n")
    assert (found.text, found.fields) == ("Text.\n\nMore.", {})


@pytest.mark.parametrize("empty", [None, "", "   \n  "])
def test_no_docstring_is_no_text(empty: str | None) -> None:
    found = parse_docstring(empty)
    assert (found.text, dict(found.fields)) == ("", {})


def test_a_colon_in_plain_text_is_not_a_heading() -> None:
    text = "Note well: this stays.\n\nargs:\n    stays too"
    assert parse_docstring(text).text == text


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    parsed = parse_docstring(text)
    assert parsed.text == parsed.text.strip()


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.from_regex(r"[A-Z][a-z ]{0,20}[a-z]\.", fullmatch=True)
    )
)
def test_whatever_is_described_is_found_again(fields: dict[str, str]) -> None:
    lines = "\n".join(f"    {name}: {text}" for name, text in fields.items())
    assert parse_docstring(f"Text.\n\nArgs:\n{lines}\n").fields == fields
