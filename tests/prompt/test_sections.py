"""Sections are checked when they are made."""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path, PurePosixPath
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import ImagePart
from watchkeeper.prompt.sections import (
    Bindings,
    MarkdownSection,
    Placeholder,
    as_text,
    fill,
    match_predicate,
    names_in,
    parse_text,
)
from watchkeeper.tools.tool import tool

IMAGE = ImagePart(data="aGk=")


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return place


def section(**changes: Any) -> MarkdownSection:
    given: dict[str, Any] = {"title": "Task", "key": "task", "template": "Do ${it}.", **changes}
    return MarkdownSection(**given)


def test_lists_and_tuples_are_the_same() -> None:
    given = section(tools=[look], children=[section(key="inner")], images=[IMAGE])
    assert given == section(tools=(look,), children=(section(key="inner"),), images=(IMAGE,))
    assert given.tools == (look,)
    assert given.children[0].key == "inner"
    assert hash(given) == hash(section(tools=(look,), children=(section(key="inner"),), images=(IMAGE,)))


def test_a_section_is_frozen() -> None:
    name = "title"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(section(), name, "other")


def test_it_knows_its_own_placeholders_and_walks_in_document_order() -> None:
    tree = section(children=[section(key="a", template="${x}", children=[section(key="b")]), section(key="c")])
    assert tree.placeholders == {"it"}
    assert [inner.key for inner in tree.walk()] == ["task", "a", "b", "c"]


async def maybe() -> bool:
    return True


class AsyncPredicate:
    async def __call__(self) -> bool:
        return True


@pytest.mark.spec("FR-034")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"key": ""}, "section key '' must be letters"),
        ({"key": "two words"}, "section key 'two words'"),
        ({"key": "-x"}, "section key '-x'"),
        ({"template": None}, "section 'task': template must be text, not None"),
        ({"title": "For ${who}"}, r"section 'task': title 'For \$\{who\}' must be one line without placeholders"),
        ({"title": "a\nb"}, "must be one line"),
        ({"template": "pay $5"}, r"section 'task': '\$5' at line 1, column 5"),
        ({"tools": look}, "section 'task': tools must be a list or tuple"),
        ({"tools": [print]}, r"section 'task': <built-in function print> in tools is not a Tool; .*@tool"),
        ({"tools": "look"}, "tools must be a list or tuple of Tool, not 'look'"),
        ({"tools": None}, "tools must be a list or tuple of Tool, not None"),
        ({"children": ["text"]}, "'text' in children is not a MarkdownSection"),
        ({"images": [b"raw"]}, r"b'raw' in images is not a ImagePart; use ImagePart\.from_bytes"),
        ({"role": "developer"}, "section 'task': role 'developer' must be 'system' or 'user'"),
        ({"role": "system", "images": [IMAGE]}, "section 'task': a system section cannot hold images"),
        ({"enabled": True}, "section 'task': enabled=True must be a function"),
        ({"enabled": maybe}, "enabled must be a plain function, not a coroutine function"),
        ({"enabled": AsyncPredicate()}, "enabled must be a plain function"),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_name(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(PromptDefinitionError, match=problem):
        section(**given)


def test_a_nested_section_cannot_change_the_role() -> None:
    inner = section(key="inner", role="system")
    with pytest.raises(PromptDefinitionError, match=r"section 'inner' has role 'system' but lies in 'task'.*'user'"):
        section(children=[inner])
    assert section(role="system", children=[inner]).children == (inner,)


def test_images_nested_in_a_system_section_are_refused_too() -> None:
    with pytest.raises(PromptDefinitionError, match="a system section cannot hold images"):
        section(role="system", children=[section(key="inner", images=[IMAGE])])


# --- Placeholders: parsed once, filled verbatim, never expanded again ---


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


# --- Looking up what placeholders and predicates ask for ---


if TYPE_CHECKING:
    Elsewhere = bool


@dataclass(frozen=True)
class Inbox:
    folder: str
    urgent: bool = False


@dataclass(frozen=True)
class VipInbox(Inbox):
    name: str = "vip"


@dataclass(frozen=True)
class Reader:
    language: str = "en"


def bindings(*params: Any, **variables: Any) -> Bindings:
    return Bindings({type(value): value for value in params}, variables)


def urgent_inbox(inbox: Inbox) -> bool:
    return inbox.urgent


def both(inbox: Inbox, reader: Reader) -> bool:
    return inbox.urgent and reader.language == "en"


def english(language: str) -> bool:
    return language == "en"


def positional(inbox: Inbox, /, language: str) -> bool:
    return inbox.urgent and language == "en"


def unknown_hint(urgent: Elsewhere) -> bool:
    """Its annotation is known to type checkers only."""
    return bool(urgent)


def is_urgent(urgent: bool) -> bool:
    return urgent


def urgent_and_english(urgent: bool, language: str) -> bool:
    return urgent and language == "en"


def in_folder(folder: str = "elsewhere") -> bool:
    return folder == "in"


def missing_default(missing: str = "default") -> bool:
    return missing == "default"


def anything(*args: object, **kwargs: object) -> bool:
    return not args and not kwargs


def any_name(params: Any) -> bool:
    return bool(params.urgent)


any_name.__annotations__.clear()  # as a lambda has none


def missing_and_urgent(missing: bool, urgent: bool) -> bool:
    return missing and urgent


def raising(urgent: bool) -> float:
    return urgent / 0


class Predicate:
    """A callable object: its parameters are those of its call."""

    def __call__(self, inbox: Inbox) -> bool:
        return inbox.urgent

    def method(self, reader: Reader) -> bool:
        return reader.language == "en"


FULL = bindings(Inbox("in", urgent=True), Reader())


@pytest.mark.parametrize(
    "predicate",
    [
        urgent_inbox,
        both,
        english,
        positional,
        unknown_hint,
        Predicate(),
        Predicate().method,
        lambda: True,
        is_urgent,
        urgent_and_english,
        in_folder,
        missing_default,
        anything,
        functools.partial(both, reader=Reader("en")),
    ],
)
def test_a_predicate_gets_what_its_parameters_say(predicate: Callable[..., object]) -> None:
    assert FULL.ask(predicate, "task") is True


def test_a_lone_parameter_of_any_name_gets_the_only_bound_value() -> None:
    assert bindings(Inbox("in", urgent=True)).ask(any_name, "task")
    assert not bindings(Inbox("in")).ask(any_name, "task")


def test_a_type_matches_its_subclasses() -> None:
    assert bindings(VipInbox("in", urgent=True)).ask(urgent_inbox, "task")


def test_variables_take_precedence_over_fields() -> None:
    bound = bindings(Inbox("in"), folder="out", extra=1)
    assert bound.value("folder") == "out"
    assert bound.value("urgent") is False
    assert bound.value("extra") == 1
    assert bound.names() == {"folder", "urgent", "extra"}
    with pytest.raises(PromptDefinitionError, match=r"nothing fills \$\{missing\}"):
        bound.value("missing")


def test_two_owners_of_a_name_are_ambiguous_unless_a_variable_decides() -> None:
    two = bindings(Inbox("in"), VipInbox("vip"))
    with pytest.raises(PromptDefinitionError, match=r"\$\{folder\} is ambiguous: Inbox and VipInbox both have it"):
        two.value("folder")
    assert Bindings(two.params, {"folder": "x"}).value("folder") == "x"


@pytest.mark.parametrize(
    ("predicate", "problem"),
    [
        (missing_and_urgent, "asks for 'missing', and there is Inbox, Reader, folder, language, urgent"),
        (any_name, "asks for 'params'"),
        (raising, r"section 'task': its enabled predicate raised ZeroDivisionError"),
    ],
)
def test_what_a_predicate_cannot_get_or_do_is_named(predicate: Callable[..., object], problem: str) -> None:
    with pytest.raises(PromptDefinitionError, match=problem):
        FULL.ask(predicate, "task")


def test_nothing_bound_is_said_so() -> None:
    with pytest.raises(PromptDefinitionError, match="asks for 'inbox', and there is nothing bound"):
        match_predicate(urgent_inbox, "task", (), ())


def test_a_built_in_without_a_signature_is_called_without_arguments() -> None:
    assert bindings().ask(dict, "task") is False
