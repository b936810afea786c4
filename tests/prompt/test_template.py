"""Templates: what can be wrong is found when they are made."""

from __future__ import annotations

import functools
import re
import typing
from dataclasses import dataclass
from datetime import UTC, datetime
from types import GenericAlias
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import ConfigurationError, LimitsError, PromptDefinitionError
from watchkeeper.core.messages import ImagePart, SystemMessage, TextPart, UserMessage
from watchkeeper.prompt.completion import FileOutputChecker
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
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
    """What was found."""

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
    given: dict[str, Any] = {"title": key.title(), "key": key, "template": template, **more}
    return MarkdownSection(**given)


def test_the_specifications_way_to_declare_one_works() -> None:
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
        ({"sections": section()}, "sections must be a list or tuple of MarkdownSection"),
        ({"sections": "text"}, "sections must be a list or tuple of MarkdownSection, not 'text'"),
        ({"sections": ["text"]}, "'text' in sections is not a MarkdownSection; use MarkdownSection"),
        ({"sections": None}, "sections must be a list or tuple of MarkdownSection, not None"),
        ({"sections": [section(), section()]}, "prompt 'a/b': two sections have the key 'task'"),
        ({"sections": [section(children=[section("x", children=[section()])])]}, "two sections have the key 'task'"),
        (
            {"sections": [section(tools=[look]), section("other", tools=[look_elsewhere])]},
            r"two different tools have the name 'look' in sections 'task' and 'other'; rename one: @tool\(name=",
        ),
        (
            {"sections": [section(tools=[look, look_elsewhere])]},
            r"two different tools have the name 'look' in section 'task'; rename one: @tool\(name=\.\.\.\)",
        ),
        ({"params": Inbox}, "params must be a list or tuple of type, not <class"),
        ({"params": [dict]}, "<class 'dict'> in params is not a dataclass"),
        ({"params": [Inbox("x")]}, "in params is not a type; declare dataclass types"),
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
        ({"output_type": Any}, "output type Any has no fields; use a dataclass, or str"),
        ({"output_type": None}, "output type None has no fields"),
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


# --- Binding and rendering ---


IMAGE = ImagePart(data="aGk=")


@dataclass(frozen=True)
class SpecialInbox(Inbox):
    reason: str = "special"


@dataclass(frozen=True)
class Style:
    language: str = "English"


@tool
def file(record: str) -> str:
    """File a record."""
    return record


def missing_key() -> object:
    return {"a": 1}["b"]


def has_a_reason(inbox: Inbox) -> bool:
    return isinstance(inbox, SpecialInbox) and bool(inbox.reason)


def is_urgent(urgent: bool) -> bool:
    return urgent


def prompt(*sections: MarkdownSection, **more: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate(ns="support", key="triage", sections=sections or [section()], **more))


class TestBinding:
    @pytest.mark.spec("FR-033")
    def test_a_bound_value_fills_the_placeholders(self) -> None:
        assert prompt().bind(Inbox("inbox")).render().text == "# Task\n\nTriage inbox."

    def test_binding_returns_a_new_prompt_and_leaves_the_old_one(self) -> None:
        unbound = prompt()
        first = unbound.bind(Inbox("one"))
        second = first.bind(Inbox("two"))
        assert "one" in first.render().text
        assert "two" in second.render().text
        with pytest.raises(PromptDefinitionError):
            unbound.render()

    def test_several_values_of_different_types_go_together(self) -> None:
        both = prompt(section(template="${folder} in ${language}")).bind(Inbox("x"), Style())
        assert both.render().text.endswith("x in English")

    def test_declared_params_that_need_nothing_speak_for_themselves(self) -> None:
        template = section(template="${folder} in ${language}")
        bound = prompt(template, params=[Inbox, Style]).bind(Inbox("x"))
        assert bound.render().text.endswith("x in English")
        assert bound.bind(Style("French")).render().text.endswith("x in French")

    def test_a_value_of_a_subclass_counts_as_the_declared_type(self) -> None:
        declared = prompt(section(enabled=has_a_reason), params=[Inbox], output_type=str)
        assert "rush" in declared.bind(SpecialInbox("rush")).render().text

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            (
                ({"folder": "x"},),
                r"bind takes dataclass instances, not \{'folder': 'x'\}; for single values use with_v",
            ),
            ((Inbox,), "bind takes dataclass instances"),
            ((Inbox("a"), Inbox("b")), "bind was given two values of type Inbox"),
        ],
    )
    def test_what_cannot_be_bound_is_refused(self, given: tuple[Any, ...], problem: str) -> None:
        with pytest.raises(PromptDefinitionError, match=f"^prompt 'support/triage': {problem}"):
            prompt().bind(*given)

    def test_only_a_template_makes_a_prompt(self) -> None:
        wrong: Any = section()
        with pytest.raises(PromptDefinitionError, match=r"is no template; write Prompt\(PromptTemplate\("):
            Prompt(wrong)

    def test_an_undeclared_type_is_refused_where_params_are_declared(self) -> None:
        with pytest.raises(PromptDefinitionError, match="Style is none of its params: Inbox"):
            prompt(params=[Inbox]).bind(Style())


class TestVariables:
    def test_every_name_is_free_for_a_variable(self) -> None:
        assert prompt(section(template="${self}")).with_variables(self="me").render().text.endswith("me")

    @pytest.mark.spec("NE-006")
    def test_variables_fill_placeholders_and_win_over_bound_fields(self) -> None:
        assert prompt().with_variables(folder="a").render().text.endswith("Triage a.")
        bound = prompt().bind(Inbox("a")).with_variables(folder="b")
        assert bound.render().text.endswith("Triage b.")
        assert bound.with_variables(folder="c").render().text.endswith("Triage c.")

    def test_names_that_no_placeholder_has_do_no_harm(self) -> None:
        """The specification's verifier hands every prompt the same three variables."""
        assert prompt().with_variables(folder="a", stop_reason=None).render().text.endswith("Triage a.")

    def test_a_name_that_is_no_declared_field_is_refused(self) -> None:
        with pytest.raises(
            PromptDefinitionError, match=r"unknown placeholder \$\{foldr\}; did you mean \$\{folder\}\?"
        ):
            prompt(params=[Inbox]).with_variables(foldr="x")
        assert "x" in prompt(params=[Inbox]).with_variables(folder="x").render().text

    def test_a_missing_value_is_named_with_section_and_remedy(self) -> None:
        with pytest.raises(PromptDefinitionError) as caught:
            prompt().with_variables(foldr="x").render()
        assert str(caught.value) == (
            "prompt 'support/triage': section 'task': nothing fills ${folder}; did you mean ${foldr}? "
            "(given: ${foldr}); use bind(...) with a dataclass that has this field, or with_variables(folder=...)"
        )

    def test_two_bound_values_with_the_name_are_refused_where_it_is_used(self) -> None:
        bound = prompt().bind(Inbox("a"), SpecialInbox("b"))
        with pytest.raises(PromptDefinitionError, match=r"section 'task': \$\{folder\} is ambiguous"):
            bound.render()
        assert bound.with_variables(folder="c").render().text.endswith("Triage c.")


class TestRendering:
    def test_headings_follow_the_nesting(self) -> None:
        deep = section("g", "end")
        for key in "fedcba":
            deep = section(key, "", children=[deep])
        text = prompt(deep).render().text
        headings = [line for line in text.splitlines() if line.startswith("#")]
        assert headings == ["# A", "## B", "### C", "#### D", "##### E", "###### F", "###### G"]

    def test_blocks_are_separated_by_one_blank_line(self) -> None:
        text = prompt(section("a", "one", children=[section("b", "two")]), section("c", "three")).render().text
        assert text == "# A\n\none\n\n## B\n\ntwo\n\n# C\n\nthree"

    def test_a_section_without_a_title_is_only_its_text(self) -> None:
        assert prompt(section("a", "one", title=""), section("b", "", title="")).render().text == "one"

    def test_system_sections_make_the_system_message(self) -> None:
        rendered = prompt(
            section("a", "Do it."),
            section("b", "Be brief.", role="system", children=[section("c", "Very.")]),
        ).render()
        assert rendered.messages == (
            SystemMessage("# B\n\nBe brief.\n\n## C\n\nVery."),
            UserMessage.of("# A\n\nDo it."),
        )

    @pytest.mark.spec("FR-035")
    def test_a_disabled_section_vanishes_with_its_children_and_tools(self) -> None:
        gone = section(
            "gone", "${no_value}", tools=[look], images=[IMAGE], enabled=lambda: False,
            children=[section("also", "x", tools=[file])],
        )  # fmt: skip
        rendered = prompt(section("stays", "y", tools=[file]), gone).render()
        assert rendered.text == "# Stays\n\ny"
        assert rendered.tools == (file,)
        assert rendered.messages == (UserMessage.of("# Stays\n\ny"),)

    @pytest.mark.spec("FR-035")
    def test_predicates_decide_by_bound_values(self) -> None:
        both = prompt(section(), section("rush", "Hurry.", enabled=is_urgent))
        assert "Hurry." in both.bind(Inbox("x", urgent=True)).render().text
        assert "Hurry." not in both.bind(Inbox("x")).render().text

    def test_a_predicate_that_raises_names_its_section(self) -> None:
        broken = prompt(section("a", "x", enabled=missing_key))
        with pytest.raises(PromptDefinitionError, match="section 'a': its enabled predicate raised KeyError") as caught:
            broken.render()
        assert isinstance(caught.value.__cause__, KeyError)

    def test_tools_come_in_document_order_each_once(self) -> None:
        nested = section("b", "-", tools=[file, look])
        rendered = prompt(section("a", "-", tools=[look], children=[nested]), section("c", "-", tools=[file])).render()
        assert rendered.tools == (look, file)

    @pytest.mark.spec("FR-036")
    def test_images_stand_where_they_belong(self) -> None:
        rendered = (
            prompt(section("a", "See ${shot} here.", images=[IMAGE]), section("b", "Next."))
            .with_variables(shot=IMAGE)
            .render()
        )
        assert rendered.messages[0] == UserMessage(
            (TextPart("# A\n\nSee "), IMAGE, TextPart(" here."), IMAGE, TextPart("# B\n\nNext."))
        )

    def test_an_image_alone_is_a_prompt(self) -> None:
        assert prompt(section("a", "", title="", images=[IMAGE])).render().messages == (UserMessage((IMAGE,)),)

    def test_an_image_in_a_system_section_is_refused(self) -> None:
        shown = prompt(section("a", "x"), section("b", "${shot}", role="system")).with_variables(shot=IMAGE)
        with pytest.raises(PromptDefinitionError, match="an image is in a section with role 'system'"):
            shown.render()

    @pytest.mark.parametrize(
        "given",
        [
            section("a", "x", role="system"),
            section("a", "x", enabled=lambda: False),
            section("a", "", title=""),
            section("a", "${blank}", title=""),
        ],
    )
    def test_a_prompt_that_says_nothing_is_refused(self, given: MarkdownSection) -> None:
        with pytest.raises(PromptDefinitionError, match="prompt 'support/triage': nothing is left to say"):
            prompt(given).with_variables(blank=" \n").render()

    @given(st.text(), st.text())
    def test_values_are_inserted_verbatim_and_never_expanded(self, folder: str, note: str) -> None:
        bound = prompt(section(template="<${folder}|${note}>")).with_variables(folder=folder, note=note)
        assert bound.render().text == f"# Task\n\n<{folder}|{note}>"

    @given(st.sampled_from(["${note}", "$note", "$$", "${", "# H", "</system>", "{note}", "%(note)s"]))
    def test_text_from_outside_cannot_smuggle_in_a_placeholder(self, evil: str) -> None:
        bound = prompt(section(template="${folder} ${note}")).with_variables(folder=evil, note="SECRET")
        assert bound.render().text == f"# Task\n\n{evil} SECRET"

    @given(st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=1, max_size=6, unique=True), st.data())
    def test_exactly_the_enabled_sections_remain_in_order(self, keys: list[str], data: st.DataObject) -> None:
        on = {key: data.draw(st.booleans(), label=key) for key in keys}
        sections = [section(key, f"text of {key}", enabled=functools.partial(bool, on[key])) for key in keys]
        rendered = prompt(section("first0", "-"), *sections).render()
        assert re.findall(r"text of (\w+)", rendered.text) == [key for key in keys if on[key]]


class TestResult:
    @pytest.mark.spec("DL-006", "FR-039")
    def test_it_carries_what_a_run_needs(self) -> None:
        at = datetime(2030, 1, 1, tzinfo=UTC)
        template = PromptTemplate[Report](ns="support", key="triage", sections=[section()], name="Triage")
        rendered = Prompt(template).bind(Inbox("x")).render(deadline=at)
        assert (rendered.ns, rendered.key, rendered.name) == ("support", "triage", "Triage")
        assert rendered.deadline == Deadline(at)
        assert rendered.output_type is Report
        assert rendered.output is not None
        assert rendered.output.name == "Report"
        assert Prompt(template).bind(Inbox("x")).render(deadline=Deadline(at)).deadline == Deadline(at)

    def test_without_a_deadline_there_is_none(self) -> None:
        assert prompt().bind(Inbox("x")).render().deadline is None

    def test_a_naive_deadline_is_refused(self) -> None:
        with pytest.raises(LimitsError, match="has no time zone"):
            prompt().bind(Inbox("x")).render(deadline=datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None))

    def test_rendering_twice_gives_equal_results_and_the_same_schema_object(self) -> None:
        bound = prompt(output_type=Report).bind(Inbox("x"))
        assert bound.render() == bound.render()
        assert bound.render().output is bound.render().output

    def test_the_answer_format_is_added_on_request_only(self) -> None:
        bound = prompt(output_type=Report).bind(Inbox("x"))
        assert "Answer format" not in bound.render().text
        asked = bound.render(output_in_prompt=True)
        assert asked.text.startswith("# Task\n\nTriage x.\n\n# Answer format\n\n")
        assert '"total": {"type": "integer"}' in asked.text
        assert len(asked.messages[0].parts if isinstance(asked.messages[0], UserMessage) else ()) == 1

    def test_plain_text_needs_no_answer_format(self) -> None:
        rendered = prompt().bind(Inbox("x")).render(output_in_prompt=True)
        assert rendered.text == "# Task\n\nTriage x."
        assert rendered.output is None

    def test_a_prompt_shows_what_its_template_is(self) -> None:
        given = prompt(output_type=Report)
        assert (given.ns, given.key, given.name, given.output_type) == ("support", "triage", "support/triage", Report)
