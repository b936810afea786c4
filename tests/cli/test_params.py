"""Parameters: text becomes what a field is, and what is unknown, missing or does not fit is named."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli.loading import bind, items_for, parse_params
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate


@dataclass(frozen=True)
class Inbox:
    """One required field, one with a default."""

    folder: str
    limit: int = 3


@dataclass(frozen=True)
class Letter:
    """What an item is."""

    path: Path


@dataclass(frozen=True)
class Everything:
    """A field of every kind."""

    text: str = ""
    number: int = 0
    ratio: float = 0.0
    money: Decimal = Decimal(0)
    flag: bool = False
    day: date = date(2026, 1, 1)
    path: Path = Path()
    queue: Literal["billing", "other"] = "other"
    few: Annotated[int, msgspec.Meta(le=5)] = 0
    maybe: int | None = None
    names: list[str] = field(default_factory=list[str])
    table: dict[str, int] = field(default_factory=dict[str, int])
    inner: Inbox | None = None
    made: str = field(default="", init=False)


@dataclass(frozen=True)
class Picky:
    """It checks its fields itself, and one of them is nothing text can be."""

    size: int
    other: timedelta | type = timedelta(0)

    def __post_init__(self) -> None:
        if self.size > 9:
            raise ValueError("size must be at most 9")


def section(template: str, key: str = "t", **more: Any) -> MarkdownSection:
    """Return a section."""
    return MarkdownSection(title="T", key=key, template=template, **more)


def prompt(*params: type[Any], template: str = "x", **more: Any) -> Prompt[Any]:
    """Return a prompt whose template declares its parameters."""
    return Prompt(PromptTemplate(ns="n", key="k", params=params, sections=[section(template)], **more))


def undeclared(template: str, **more: Any) -> Prompt[Any]:
    """Return a prompt whose template declares nothing."""
    return Prompt(PromptTemplate(ns="n", key="k", sections=[section(template, **more)]))


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert parse_params(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pairs", [["a"], ["=1"], [""], ["a=1", "a=2"]])
def test_what_is_no_pair_or_comes_twice_is_refused(pairs: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"must be KEY=VALUE|--param a is given twice"):
        parse_params(pairs)


@pytest.mark.spec("FR-077")
@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("text=12", "12"),
        ("text=null", "null"),
        ("text=", ""),
        ("number=12", 12),
        ("ratio=1.5", 1.5),
        ("money=1.50", Decimal("1.50")),
        ("flag=true", True),
        ("flag=0", False),
        ("day=2026-11-21", date(2026, 11, 21)),
        ("path=a/b", Path("a/b")),
        ("queue=billing", "billing"),
        ("few=5", 5),
        ("maybe=4", 4),
        ("maybe=null", None),
        ('names=["a", "b"]', ["a", "b"]),
        ('table={"a": 1}', {"a": 1}),
        ('inner={"folder": "x"}', Inbox("x")),
    ],
)
def test_text_becomes_what_the_field_is(pair: str, value: object) -> None:
    name = pair.partition("=")[0]
    (made,) = bind(prompt(Everything), parse_params([pair])).params.values()
    changed: dict[str, Any] = {name: value}
    assert made == dataclasses.replace(Everything(), **changed)


@pytest.mark.parametrize(
    "pair", ["number=x", "number=1.5", "flag=maybe", "day=soon", "queue=third", "few=6", "names=a", "inner={}"]
)
def test_text_that_does_not_fit_is_refused_with_the_pair(pair: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        bind(prompt(Everything), parse_params([pair]))
    assert str(caught.value).startswith(f"--param {pair}: ")


@given(st.text(), st.integers())
def test_any_text_and_any_number_go_through(folder: str, limit: int) -> None:
    bound = bind(prompt(Inbox), {"folder": folder, "limit": str(limit)})
    if -(2**63) <= limit < 2**63:
        assert bound.params[Inbox] == Inbox(folder, limit)


def test_a_value_that_its_own_type_refuses_is_refused_with_its_words() -> None:
    with pytest.raises(ConfigurationError, match="do not fit Picky: size must be at most 9"):
        bind(prompt(Picky), {"size": "10"})
    with pytest.raises(ConfigurationError, match="--param other=x: "):
        bind(prompt(Picky), {"size": "1", "other": "x"})


def test_types_that_cannot_be_read_are_refused() -> None:
    made: Any = dataclasses.make_dataclass("Unknown", [("a", "NoSuchType")])
    with pytest.raises(ConfigurationError, match="types of Unknown cannot be read"):
        bind(prompt(made), {"a": "1"})


def test_values_go_to_every_type_that_has_the_field() -> None:
    bound = bind(prompt(Inbox, Letter), {"folder": "f", "path": "p"})
    assert bound.params == {Inbox: Inbox("f"), Letter: Letter(Path("p"))}


def test_values_change_what_is_bound_already() -> None:
    for base in (prompt(Inbox), undeclared("${folder} ${limit}")):
        assert bind(base.bind(Inbox("old", 7)), {"folder": "new"}).params[Inbox] == Inbox("new", 7)
        assert bind(base.bind(Inbox("old", 7)), {}).params[Inbox] == Inbox("old", 7)


def test_values_of_a_template_that_declares_nothing_are_variables() -> None:
    bound = bind(undeclared("${a} and ${b}").with_variables(b="known"), {"a": "1"})
    assert dict(bound.variables) == {"a": "1", "b": "known"}
    assert "1 and known" in bound.render().text


def test_what_a_predicate_asks_for_is_a_parameter() -> None:
    def enabled(wanted: str) -> bool:
        return wanted == "yes"

    conditional = undeclared("${a}", enabled=enabled)
    assert dict(bind(conditional, {"wanted": "yes", "a": "1"}).variables) == {"wanted": "yes", "a": "1"}
    assert bind(conditional, {"wanted": "no"}).variables == {"wanted": "no"}


@pytest.mark.parametrize("base", [prompt(Inbox), undeclared("${folder} ${limit}")])
def test_an_unknown_parameter_is_refused_with_those_that_exist(base: Prompt[Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        bind(base, {"foldr": "x"})
    said = "--param foldr: n/k has no such parameter; did you mean folder? (it takes: folder, limit)"
    assert str(caught.value) == said
    with pytest.raises(ConfigurationError, match=r"no such parameter \(it takes: none\)"):
        bind(prompt(), {"x": "1"})


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"--param folder=\.\.\. is missing: n/k needs it"):
        bind(prompt(Inbox), {"limit": "1"})
    with pytest.raises(ConfigurationError, match=r"--param a=\.\.\. is missing \(and b\)"):
        bind(undeclared("${a} ${b}"), {})


def test_what_a_section_that_may_not_show_would_need_is_not_missing() -> None:
    child = section("${deep}", key="child")
    sections = [
        section("${a}"),
        section("${b}", key="u", enabled=lambda: False),
        section("", key="v", children=[child]),
    ]
    base = Prompt(PromptTemplate(ns="n", key="k", sections=sections))
    with pytest.raises(ConfigurationError, match=r"--param a=\.\.\. is missing \(and deep\)"):
        bind(base, {})


PATHS = [Path("inbox/a.txt"), Path("inbox/b.txt")]


def test_each_path_goes_into_the_one_parameter_that_is_left() -> None:
    base, items = items_for(prompt(Letter, Everything), PATHS, {"number": "7"})
    assert items == [Letter(PATHS[0]), Letter(PATHS[1])]
    assert base.params == {Everything: dataclasses.replace(Everything(), number=7)}


def test_the_other_fields_of_its_type_are_those_that_are_given() -> None:
    base, items = items_for(prompt(Inbox), PATHS, {"limit": "7"})
    assert items == [Inbox(str(path), 7) for path in PATHS]
    assert not base.params


def test_a_placeholder_may_be_what_is_left() -> None:
    base, items = items_for(undeclared("${a} in ${b}"), PATHS, {"b": "B"})
    assert f"{PATHS[1]} in B" in base.bind(items[1]).render().text


@pytest.mark.parametrize(
    ("base", "values", "message"),
    [
        (prompt(Inbox, Letter), {}, "n/k leaves open: folder, path; give all but one with --param"),
        (prompt(Inbox), {"folder": "x"}, "n/k leaves none open"),
        (prompt(), {}, "n/k leaves none open"),
        (undeclared("${a} ${b}"), {}, "n/k leaves open: a, b"),
        (prompt(Inbox).bind(Inbox("x")), {}, "n/k leaves none open"),
        (prompt(Inbox), {"other": "x"}, "no such parameter"),
    ],
)
def test_each_needs_exactly_one_parameter_to_be_left(base: Prompt[Any], values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        items_for(base, PATHS, values)
    assert message in str(caught.value)
