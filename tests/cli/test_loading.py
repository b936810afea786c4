"""What the command line names: agents in files, parameters, files to run over. Every error is one clear line."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.support import AGENT, CommandLine
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.agent import Agent
from watchkeeper.cli.loading import (
    AgentFileError,
    bind,
    item_maker,
    labels_of,
    load,
    load_module,
    matching_files,
    parse_params,
)
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate

THERE = "it has triage.py:triage, triage.py:bound, triage.py:agent"


@pytest.mark.spec("FR-077")
@pytest.mark.parametrize(("name", "kind"), [("triage", PromptTemplate), ("bound", Prompt), ("agent", Agent)])
def test_a_template_a_prompt_and_an_agent_can_be_run(cli: CommandLine, name: str, kind: type) -> None:
    loaded = load(f"triage.py:{name}")
    assert isinstance(loaded.target, kind)
    assert isinstance(loaded.prompt, Prompt)
    assert loaded.limits == (Limits(max_steps=9, max_turns=9) if name == "agent" else Limits())


def test_an_agents_instructions_are_bound(cli: CommandLine) -> None:
    assert load("triage.py:agent").prompt.variables == {"instructions": "Be brief."}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("triage.py", f"'triage.py' does not say which agent: {THERE}"),
        ("triage.py:", "must be FILE:NAME, for example triage.py:triage"),
        (":triage", "must be FILE:NAME"),
        ("triage", "must be FILE:NAME"),
        ("", "must be FILE:NAME"),
        ("nowhere.py:triage", "there is no file nowhere.py"),
        (".:triage", ". is a folder, not a file"),
        ("notes.txt:triage", "notes.txt is not a Python file: its name must end in .py"),
        ("triage.py:other", f"triage.py has no 'other': {THERE}"),
        ("triage.py:number", f"triage.py:number is a int, not a PromptTemplate, Prompt or Agent: {THERE}"),
        ("empty.py:x", "empty.py has no 'x': it has no PromptTemplate, Prompt or Agent"),
    ],
)
def test_a_target_that_is_not_there_is_refused_in_one_line(cli: CommandLine, target: str, message: str) -> None:
    (cli.folder / "notes.txt").write_text("x", encoding="utf-8")
    (cli.folder / "empty.py").touch()
    assert message in cli.refused(target=target)


@pytest.mark.parametrize(
    ("text", "place", "last"),
    [
        ("def fail():\n    return 1 / 0\n\n\nfail()\n", "in fail", "ZeroDivisionError: division by zero"),
        ("import no_such_module_here\n", "line 1", "No module named 'no_such_module_here'"),
        ("def broken(:\n", "def broken(:", "SyntaxError"),
    ],
)
def test_an_exception_of_the_agents_own_file_shows_its_traceback(
    cli: CommandLine, text: str, place: str, last: str
) -> None:
    cli.write(text, "mine.py")
    said = cli.run(target="mine.py:x")
    assert said.code == 2
    assert said.out == ""
    assert place in said.err
    assert "importlib" not in said.err
    assert "watchkeeper" not in said.err.partition("error: ")[0]
    assert said.err.splitlines()[-1].startswith("error: mine.py cannot be imported: ")
    assert last in said.err


def test_a_definition_that_cannot_work_is_one_line_with_its_place(cli: CommandLine) -> None:
    section = 'MarkdownSection(title="T", key="t", template="x")'
    text = f'from watchkeeper import *\n\nbad = PromptTemplate(ns="a", key="b", sections=[{section}, {section}])\n'
    cli.write(text, "mine.py")
    line = cli.refused(target="mine.py:bad")
    assert (
        line == "error: mine.py, line 3: prompt 'a/b': two sections have the key 't'; keys must be unique in a prompt"
    )


def test_a_file_that_cannot_be_imported_leaves_nothing_behind(cli: CommandLine) -> None:
    cli.write("1 / 0", "mine.py")
    path = list(sys.path)
    with pytest.raises(AgentFileError):
        load_module(Path("mine.py"))
    assert "mine" not in sys.modules
    assert sys.path == path


@pytest.mark.parametrize(("file", "name"), [("json.py", "agent_json"), ("watchkeeper.py", "agent_watchkeeper")])
def test_a_file_never_takes_the_place_of_a_module(cli: CommandLine, file: str, name: str) -> None:
    cli.write("x = 1", file)
    before = sys.modules[file[:-3]]
    assert load_module(Path(file)).__name__ == name
    assert sys.modules[file[:-3]] is before


def test_a_file_finds_its_neighbours_and_keeps_its_name(cli: CommandLine) -> None:
    folder = cli.folder / "agents"
    folder.mkdir()
    (folder / "neighbour_of_mine.py").write_text("value = 7", encoding="utf-8")
    (folder / "my_own_agent.py").write_text("from neighbour_of_mine import value", encoding="utf-8")
    module = load_module(Path("agents/my_own_agent.py"))
    assert (module.value, module.__name__) == (7, "my_own_agent")
    (folder / "my-own.py").write_text("x = 1", encoding="utf-8")
    assert load_module(Path("agents/my-own.py")).__name__ == "agent_my-own"


def test_files_are_found_by_pattern_sorted_and_only_files(cli: CommandLine) -> None:
    for name in ("b.txt", "a.txt", "c.txt", "deep/a.txt"):
        (cli.folder / "inbox" / name).parent.mkdir(parents=True, exist_ok=True)
        (cli.folder / "inbox" / name).touch()
    found = matching_files("inbox/*")
    assert [path.name for path in found] == ["a.txt", "b.txt", "c.txt"]
    assert labels_of(found) == ["a.txt", "b.txt", "c.txt"]
    deep = matching_files("inbox/**/a.txt")
    assert labels_of(deep) == [str(Path("inbox/a.txt")), str(Path("inbox/deep/a.txt"))]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("inbox/*.md", "--each 'inbox/*.md': no file matches"),
        ("nowhere/*.md", "--each 'nowhere/*.md': there is no folder nowhere"),
        ("nowhere/**/*.md", "there is no folder nowhere"),
        ("inbox/missing.txt", "no file matches"),
        ("inbox/*/deeper/*.txt", "no file matches"),
        ("inbox/", "is a folder; name its files, for example inbox/*"),
    ],
)
def test_a_pattern_that_matches_nothing_says_why(cli: CommandLine, pattern: str, message: str) -> None:
    (cli.folder / "inbox").mkdir()
    with pytest.raises(ConfigurationError) as caught:
        matching_files(pattern)
    assert message in str(caught.value)


def test_a_function_of_the_agents_file_is_found(cli: CommandLine) -> None:
    cli.write(AGENT)
    loaded = load("triage.py:triage")
    assert loaded.function("report", "--after")(3) == "reported int"


# --- parameters: text becomes what a field is, and what is unknown, missing -----------------------------------------


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


def items_for(prompt: Prompt[Any], paths: list[Path], values: dict[str, str]) -> tuple[Prompt[Any], list[Any]]:
    base, make = item_maker(prompt, values, (), texts=True)
    return base, [make(str(path)) for path in paths]


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
