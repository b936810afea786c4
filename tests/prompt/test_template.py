"""Templates: what can be wrong is found when they are made."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Generic, TypeVar

import pytest

from watchkeeper.core.errors import ConfigurationError, PromptDefinitionError
from watchkeeper.prompt.completion import FileOutputChecker
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.tools.tool import tool

T = TypeVar("T")


@dataclass(frozen=True)
class Inbox:
    folder: str
    urgent: bool = False


@dataclass(frozen=True)
class Archive:
    folder: str


@dataclass
class Report:
    total: int


class Shut:
    """A checker with a policy that is none."""

    on_error = "shut"

    def check(self, context: Any) -> Any:
        """Say nothing."""


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return place


@tool(name="look")
def look_elsewhere(place: str) -> str:
    """Look somewhere else."""
    return place


def late_or_urgent(late: bool, urgent: bool) -> bool:
    return late or urgent


def section(key: str = "task", template: str = "Triage ${folder}.", **more: Any) -> MarkdownSection:
    return MarkdownSection(title=key.title(), key=key, template=template, **more)


def test_the_seeds_way_to_declare_one_works() -> None:
    checker = FileOutputChecker(["report.md"])
    template = PromptTemplate(
        ns="my-agent", key="main", sections=[section(template="...")], task_completion_checker=checker
    )
    assert template.name == "my-agent/main"
    assert template.output_type is str
    assert isinstance(template.sections, tuple)
    assert template.task_completion_checker is checker


@pytest.mark.spec("FR-033")
def test_subscripting_fixes_the_output_type() -> None:
    template = PromptTemplate[Report](ns="a", key="b", sections=[section()])
    assert type(template) is PromptTemplate
    assert template.output_type is Report
    assert PromptTemplate(ns="a", key="b", sections=[section()], output_type=Report).output_type is Report
    assert PromptTemplate[list[int]](ns="a", key="b", sections=[section()]).output_type == list[int]


def test_the_subscripted_class_is_an_ordinary_alias() -> None:
    alias: Any = PromptTemplate[Report]
    assert isinstance(alias, GenericAlias)
    assert typing.get_origin(alias) is PromptTemplate
    assert typing.get_args(alias) == (Report,)
    assert alias == PromptTemplate[Report]
    assert typing.get_args(alias | None) == (alias, type(None))


def test_a_type_variable_leaves_the_output_type_to_the_argument() -> None:
    class Holder(Generic[T]):
        def make(self, output_type: type[T]) -> PromptTemplate[T]:
            return PromptTemplate[T](ns="a", key="b", sections=[section()], output_type=output_type)

    assert Holder[Report]().make(Report).output_type is Report


def test_it_knows_its_sections_placeholders_and_tools() -> None:
    nested = section("inner", "Look at ${what}.", tools=[look])
    template = PromptTemplate(ns="a", key="b", sections=[section(tools=[look], children=[nested]), section("end", "-")])
    assert [item.key for item in template.walk()] == ["task", "inner", "end"]
    assert template.placeholders == {"folder", "what"}
    assert template.tools == (look,)


@pytest.mark.spec("FR-034", "FR-104")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ns": ""}, "prompt '/b': ns '' must be letters"),
        ({"ns": "a//b"}, "ns 'a//b' must be"),
        ({"key": "b c"}, "prompt 'a/b c': key 'b c' must be"),
        ({"key": "b/c"}, "key 'b/c' must be"),
        ({"sections": []}, "prompt 'a/b': it has no sections"),
        ({"sections": section()}, "sections must be a list or tuple of sections"),
        ({"sections": "text"}, "sections must be a list or tuple of sections, not 'text'"),
        ({"sections": ["text"]}, "'text' is not a section; use MarkdownSection"),
        ({"sections": None}, "sections must be a list or tuple of sections, not None"),
        ({"sections": [section(), section()]}, "prompt 'a/b': two sections have the key 'task'"),
        ({"sections": [section(children=[section("x", children=[section()])])]}, "two sections have the key 'task'"),
        (
            {"sections": [section(tools=[look]), section("other", tools=[look_elsewhere])]},
            r"sections 'task' and 'other' have different tools with the name 'look'; rename one: @tool\(name=\.\.\.\)",
        ),
        (
            {"sections": [section(tools=[look, look_elsewhere])]},
            r"section 'task' has two different tools with the name 'look'; rename one: @tool\(name=\.\.\.\)",
        ),
        ({"params": Inbox}, "params must be a list or tuple of dataclass types"),
        ({"params": [dict]}, "<class 'dict'> in params is not a dataclass"),
        ({"params": [Inbox("x")]}, "in params is not a dataclass; declare dataclass types"),
        ({"params": [Inbox, Inbox]}, "params names a type twice"),
        ({"params": []}, r"section 'task': unknown placeholder \$\{folder\} \(known: none\)"),
        (
            {"sections": [section(template="${foldr}")], "params": [Inbox]},
            r"'task': unknown placeholder \$\{foldr\}; did you mean \$\{folder\}\? \(known: \$\{folder\}, \$\{ur",
        ),
        (
            {"sections": [section(children=[section("inner", "${who}")])], "params": [Inbox]},
            r"section 'inner': unknown placeholder \$\{who\}",
        ),
        (
            {"params": [Inbox, Archive]},
            r"section 'task': \$\{folder\} is ambiguous: Inbox and Archive both have it; rename one field",
        ),
        (
            {"sections": [section(enabled=late_or_urgent)], "params": [Inbox]},
            "section 'task': its enabled predicate asks for 'late', and there is Inbox, folder, urgent",
        ),
        ({"task_completion_checker": "check"}, "task_completion_checker='check' is no checker; give for example"),
        ({"task_completion_checker": FileOutputChecker}, "is no checker"),
        ({"task_completion_checker": Shut()}, "task_completion_checker: Shut: on_error='shut' must be 'open' or"),
        ({"completion_rounds": -1}, "completion_rounds=-1 must be a whole number: how often the agent may be sent"),
        ({"completion_rounds": True}, "completion_rounds=True must be a whole number"),
        ({"completion_rounds": "3"}, "completion_rounds='3' must be a whole number"),
        ({"output_type": Any}, "output type Any says nothing; use a dataclass, or str"),
        ({"output_type": None}, "output type None says nothing"),
        ({"output_type": Exception}, "output type Exception cannot be asked for: .* use dataclasses and plain types"),
    ],
)
def test_what_cannot_work_is_refused_with_names(given: dict[str, Any], problem: str) -> None:
    arguments: dict[str, Any] = {"ns": "a", "key": "b", "sections": [section()], **given}
    with pytest.raises(PromptDefinitionError, match=problem):
        PromptTemplate(**arguments)


def test_a_refusal_is_a_configuration_error_of_the_prompt() -> None:
    with pytest.raises(ConfigurationError, match=r"^prompt 'a/b': "):
        PromptTemplate(ns="a", key="b", sections=[])


def test_an_ambiguous_field_that_nothing_uses_is_no_problem() -> None:
    template = PromptTemplate(ns="a", key="b", sections=[section(template="Hello.")], params=[Inbox, Archive])
    assert template.params == (Inbox, Archive)


def test_equal_tools_may_stand_in_several_sections() -> None:
    template = PromptTemplate(ns="a", key="b", sections=[section(tools=[look]), section("more", tools=[look])])
    assert template.tools == (look,)


def test_undeclared_params_leave_placeholders_to_the_rendering() -> None:
    assert PromptTemplate(ns="a/nested", key="b", sections=[section(template="${anything}")]).placeholders == {
        "anything"
    }
