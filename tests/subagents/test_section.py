"""The section: what the model is told, which tools it brings, which arguments are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.subagents.support import DIG, child_model, parent_template
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.subagents.dispatch import SubagentSettings
from watchkeeper.subagents.payloads import PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection

NAMED = PromptTemplate[str](
    ns="a/b", key="c", name="The costly one", sections=[MarkdownSection("W", "w", "Write for $$5.")]
)


@pytest.mark.spec("SD-002")
def test_it_is_a_section_with_two_tools_and_a_list_of_subagents() -> None:
    registry = PromptRegistry(DIG, NAMED)
    registry.register(PromptTemplate[str](ns="x", key="off", sections=[MarkdownSection("W", "w", "W.")]), enabled=False)
    section = PromptSubagentToolsSection(
        registry, settings={"research/dig": SubagentSettings(description="Digs for $3\nor ${less}.")}
    )
    assert isinstance(section, MarkdownSection)
    assert [each.name for each in section.tools] == ["dispatch_subagent", "dispatch_subagents"]
    text = Prompt(parent_template(section)).render().messages[0].text
    assert '- `research/dig` (prompt_ns "research", prompt_key "dig"): Digs for $3 or ${less}.' in text
    assert '- `a/b/c` (prompt_ns "a/b", prompt_key "c"): The costly one' in text
    assert "off" not in text.split("Subagents:")[1]


def test_what_the_model_reads_is_short() -> None:
    section = PromptSubagentToolsSection(PromptRegistry(DIG))
    text = Prompt(parent_template(section)).render().messages[0].text
    assert len(text) < 1_500
    for each in section.tools:
        assert len(each.description) < 300
        assert each.schema is not None
        assert each.schema["additionalProperties"] is False


@pytest.mark.spec("SD-002")
def test_a_tool_tells_when_to_use_it() -> None:
    one, several = PromptSubagentToolsSection(PromptRegistry(DIG)).tools
    assert "Use it for work of many turns" in one.description
    assert "do not need each other's results" in several.description
    assert one.schema is not None
    assert one.schema["required"] == ["mode", "prompt_ns", "prompt_key", "instructions"]
    assert "2,000 plain ASCII characters" in one.schema["properties"]["instructions"]["description"]


def test_the_models_of_children_are_named_for_the_run() -> None:
    small, large = child_model([], name="small"), child_model([], name="large")
    section = PromptSubagentToolsSection(
        PromptRegistry(DIG, NAMED),
        model="openai:gpt-5-mini",
        settings={"research/dig": SubagentSettings(model=small), "a/b/c": SubagentSettings(model="openai:gpt-5-mini")},
    )
    assert section.models == ("openai:gpt-5-mini", small)
    outer = PromptSubagentToolsSection(PromptRegistry(parent_template(section)), model=large)
    assert outer.models == (large, "openai:gpt-5-mini", small)
    assert parent_template(outer).models == outer.models


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two different models of subagents are called scripted:child"):
        PromptSubagentToolsSection(
            PromptRegistry(DIG),
            model=child_model([]),
            settings={"research/dig": SubagentSettings(model=child_model([]))},
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"share": 1.5}, "share=1.5 must lie between 0 and 1"),
        ({"max_depth": 0}, "max_depth=0 must be a whole number"),
        ({"max_parallel": 0}, "max_parallel=0 must be a whole number"),
        ({"settings": {"research/dog": SubagentSettings()}}, "'research/dog', which is not registered: research/dig"),
        ({"settings": {"research/dig": "cheap"}}, r"settings\['research/dig'\]='cheap' must be SubagentSettings"),
        ({"model": 3}, "model=3 of a subagent must be"),
        ({"limits": 3}, "limits=3 of a subagent must be"),
        ({"hydrate": 3}, "hydrate=3 must be a function"),
        ({"session": "mine"}, "session='mine' is no Session; leave it out"),
    ],
    ids=["share", "depth", "parallel", "unknown prompt", "no settings", "model", "limits", "hydrate", "session"],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PromptSubagentToolsSection(PromptRegistry(DIG), **arguments)


def test_a_registry_is_needed() -> None:
    registry: Any = [DIG]
    with pytest.raises(ConfigurationError, match="is no registry of prompts; give PromptRegistry"):
        PromptSubagentToolsSection(registry)


def test_one_section_may_stand_in_several_templates() -> None:
    section = PromptSubagentToolsSection(PromptRegistry(DIG))
    one, two = parent_template(section), parent_template(section, key="other")
    assert one.tools == two.tools
