"""Prompts by namespace and key."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.subagents.payloads import PromptRegistry


def template(key: str = "triage") -> PromptTemplate[Any]:
    section = MarkdownSection(title="Task", key="task", template="${folder}")
    return PromptTemplate(ns="support", key=key, sections=[section])


@pytest.mark.spec("SD-008", "FR-038")
def test_templates_and_prompts_are_found_by_namespace_and_key() -> None:
    bound = Prompt(template("other")).with_variables(folder="x")
    registry = PromptRegistry(template(), bound)
    assert registry.get("support", "triage").name == "support/triage"
    assert registry.get("support", "other") is bound
    assert [prompt.key for prompt in registry] == ["triage", "other"]
    assert len(registry) == 2
    assert ("support", "triage") in registry
    assert ("support", "nothing") not in registry


@pytest.mark.spec("SD-008")
def test_an_unknown_prompt_lists_what_there_is() -> None:
    registry = PromptRegistry(template(), template("report"))
    with pytest.raises(PromptDefinitionError) as caught:
        registry.get("support", "triag")
    assert str(caught.value) == (
        "no prompt 'support/triag'; did you mean 'support/triage'? registered: support/triage, support/report"
    )
    with pytest.raises(PromptDefinitionError, match="no prompt 'a/b'; registered: none"):
        PromptRegistry().get("a", "b")


def test_another_template_under_the_same_key_is_refused() -> None:
    registry = PromptRegistry(template())
    with pytest.raises(PromptDefinitionError, match="prompt 'support/triage' is registered already; use another key"):
        registry.register(template())


def test_the_same_template_bound_anew_takes_the_place_of_the_old() -> None:
    given = template()
    registry = PromptRegistry(given)
    bound = registry.register(Prompt(given).with_variables(folder="x"))
    assert registry.get("support", "triage") is bound
    assert len(registry) == 1


@pytest.mark.spec("SD-008")
def test_a_prompt_is_enabled_until_it_is_disabled() -> None:
    registry = PromptRegistry(template())
    registry.register(template("report"), enabled=False)
    assert [prompt.key for prompt in registry.enabled] == ["triage"]
    assert registry.is_enabled("support", "triage")
    assert not registry.is_enabled("support", "report")
    assert not registry.is_enabled("support", "nothing")
    registry.enable("support", "report")
    registry.disable("support", "triage")
    assert [prompt.key for prompt in registry.enabled] == ["report"]
    assert registry.get("support", "triage").key == "triage"


def test_registering_again_says_anew_whether_it_is_enabled() -> None:
    known = template()
    registry = PromptRegistry(known)
    registry.disable("support", "triage")
    registry.register(Prompt(known).with_variables(folder="x"))
    assert registry.is_enabled("support", "triage")


def test_only_what_is_there_can_be_enabled_or_disabled() -> None:
    registry = PromptRegistry(template())
    for change in (registry.enable, registry.disable):
        with pytest.raises(PromptDefinitionError, match="did you mean 'support/triage'"):
            change("support", "triag")


@pytest.mark.parametrize(
    "given", [[template()], "support/triage", None, template], ids=["list", "text", "none", "maker"]
)
def test_what_is_no_prompt_is_refused_by_its_type(given: Any) -> None:
    with pytest.raises(
        PromptDefinitionError, match=r"this is of the type \w+; pass them one by one: PromptRegistry\(a, b\)"
    ):
        PromptRegistry(given)
