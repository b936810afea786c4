"""Placeholders: parsed once, filled verbatim, never expanded again."""

from __future__ import annotations

import string
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import ImagePart
from watchkeeper.prompt.sections import Placeholder, as_text, fill, names_in, parse_text

IMAGE = ImagePart(data="aGk=")

names = st.from_regex(r"[_a-zA-Z][_a-zA-Z0-9]{0,8}", fullmatch=True)
odd_texts = st.text() | st.sampled_from(
    ["$", "$$", "${", "${}", "${a}", "$a", "}", "# Title", "```\n${x}\n```", "%s", "{0}", "\\g<1>", "\n\n", " ", "\t"]
)


def filled(template: str, **values: Any) -> str:
    return "".join(str(piece) for piece in fill(parse_text(template), values))


def test_both_spellings_are_placeholders_and_two_dollars_are_one() -> None:
    assert parse_text("a ${b} $c $$5") == ("a ", Placeholder("b"), " ", Placeholder("c"), " $5")
    assert parse_text("$$${x}$$") == ("$", Placeholder("x"), "$")
    assert names_in(parse_text("${x}${x}$y")) == {"x", "y"}
    assert parse_text("") == ()


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("costs $5", r"'\$5' at line 1, column 7 "),
        ("one\ntwo ${bad name} x\nthree", r"'\$\{bad name\} x' at line 2, column 5 "),
        ("${", r"'\$\{' at line 1, column 1 "),
        ("${a.b}", r"'\$\{a.b\}' at line 1"),
        ("${é}", "at line 1, column 1"),
        ("end $", r"'\$' at line 1, column 5"),
    ],
)
def test_a_stray_dollar_is_refused_with_its_place_and_the_way_out(template: str, place: str) -> None:
    with pytest.raises(PromptDefinitionError, match=place + r".*\$\$ for a dollar sign"):
        parse_text(template)


def test_common_indentation_and_outer_blank_lines_go() -> None:
    text = """
        First:
          ${a}

        Last.
        """
    assert filled(text, a="x") == "First:\n  x\n\nLast."
    assert filled("\tcode\n\t\tmore\t") == "code\n\tmore"


@given(
    st.dictionaries(names, odd_texts, min_size=1, max_size=4),
    st.lists(odd_texts.filter(lambda text: "\n" not in text), max_size=5),
    st.randoms(),
)
def test_values_go_in_verbatim_and_are_never_expanded(values: dict[str, str], literals: list[str], rng: Random) -> None:
    """Whatever a value looks like, what comes out is the literal text with the value in its place."""
    template, expected = ">", ">"
    for literal in literals:
        name = rng.choice(sorted(values))
        template += literal.replace("$", "$$") + "${" + name + "}|"
        expected += literal + values[name] + "|"
    assert filled(template, **values) == expected


@given(st.text(alphabet="ab$ {}\\n_", max_size=40), st.text())
def test_the_syntax_is_that_of_the_standard_library(template: str, value: str) -> None:
    anchored = f"|{template}|"
    values = dict.fromkeys(string.Template(anchored).get_identifiers(), value)
    try:
        expected = string.Template(anchored).substitute(values)
    except ValueError:
        with pytest.raises(PromptDefinitionError):
            parse_text(anchored)
    else:
        assert filled(anchored, **values) == expected


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    LARGE = "large"


@dataclass
class Point:
    x: int
    label: str


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is ${x}", "as it is ${x}"),
        (Size.LARGE, "large"),
        (3, "3"),
        (2.5, "2.5"),
        (True, "true"),
        (None, "null"),
        (Colour.RED, "red"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00Z"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("a") / "b.txt", str(Path("a") / "b.txt")),
        (PurePosixPath("/x/y"), "/x/y"),
        (["a", 1], '["a",1]'),
        ((), "[]"),
        ({"k": "ü"}, '{"k":"ü"}'),
        (Point(1, 'say "hi"'), '{"x":1,"label":"say \\"hi\\""}'),
    ],
)
def test_values_are_written_as_a_reader_expects(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_what_has_no_json_form_is_written_by_its_repr() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    assert as_text(Odd()) == "<odd>"


def test_images_take_their_place_between_the_texts() -> None:
    pieces = parse_text("before ${one} between ${many} after")
    assert list(fill(pieces, {"one": IMAGE, "many": [IMAGE, IMAGE]})) == [
        "before ",
        IMAGE,
        " between ",
        IMAGE,
        IMAGE,
        " after",
    ]


def test_a_list_that_is_not_all_images_is_text() -> None:
    (written,) = fill(parse_text("${mixed}"), {"mixed": ["a", 2]})
    assert written == '["a",2]'
