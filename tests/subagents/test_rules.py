"""The rules for a task, with error messages that help a model to correct it."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.subagents.support import DIG, task
from watchkeeper.core.errors import ToolValidationError
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.session.session import Session
from watchkeeper.subagents.payloads import (
    DispatchSubagents,
    PromptRegistry,
    check_version,
    checked,
    checked_count,
    prompt_of,
)

PRINTABLE = st.text(st.sampled_from(string.printable), max_size=2_200)


@pytest.mark.spec("SD-003")
@given(PRINTABLE)
def test_instructions_have_1_to_2000_characters_once_they_are_trimmed(text: str) -> None:
    trimmed = text.strip()
    if 1 <= len(trimmed) <= 2_000:
        assert checked(task(text)).instructions == trimmed
    else:
        with pytest.raises(ToolValidationError, match="instructions"):
            checked(task(text))


@pytest.mark.spec("SD-003")
@given(st.text(min_size=1, max_size=50))
def test_texts_are_ascii(text: str) -> None:
    if text.isascii() or text.strip().isascii():
        return
    with pytest.raises(ToolValidationError, match="must be plain ASCII"):
        checked(task(text))
    with pytest.raises(ToolValidationError, match="must be plain ASCII"):
        checked(task(expected_artifacts=(text,)))
    with pytest.raises(ToolValidationError, match="must be plain ASCII"):
        checked(task(mode="plan_step", plan_step_id=text))


@pytest.mark.spec("SD-003")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"instructions": " \n "}, "instructions must not be empty; give 1 to 2,000 ASCII characters"),
        ({"instructions": "x" * 2_001}, "instructions may have 2,000 characters, and this has 2,001: 'xxx"),
        (
            {"instructions": "“Käse”, Käse"},
            "instructions must be plain ASCII, and holds '“' 'ä' '”'; write it with ASCII characters only",
        ),
        ({"instructions": "".join(map(chr, range(0x4E00, 0x4E20)))}, "and 22 more; write it with ASCII"),
        ({"expected_artifacts": ("a" * 161,)}, "each of expected_artifacts may have 160 characters, and this has 161"),
        ({"expected_artifacts": ("a", "")}, "each of expected_artifacts must not be empty"),
        ({"mode": "plan_step"}, 'plan_step_id is missing: in mode "plan_step" name the step'),
        ({"mode": "plan_step", "plan_step_id": "  "}, "plan_step_id is missing"),
        ({"mode": "plan_step", "plan_step_id": "7" * 161}, "plan_step_id may have 160 characters"),
    ],
    ids=["empty", "long", "umlaut", "chinese", "long artifact", "empty artifact", "no step", "blank step", "long step"],
)
def test_a_refusal_says_what_is_wrong_and_what_to_write(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ToolValidationError) as caught:
        checked(task(**{"instructions": "Find it.", **fields}))  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_longest_texts_are_good() -> None:
    good = checked(task("x" * 2_000, mode="plan_step", plan_step_id=" 3 ", expected_artifacts=("a" * 160,)))
    assert (good.plan_step_id, good.expected_artifacts) == ("3", ("a" * 160,))


def test_artifacts_are_trimmed_and_named_once() -> None:
    assert checked(task(expected_artifacts=(" a", "b", "a "))).expected_artifacts == ("a", "b")


def test_an_ad_hoc_task_may_name_a_step() -> None:
    assert checked(task(plan_step_id="4")).plan_step_id == "4"
    assert checked(task()).plan_step_id is None


@pytest.mark.spec("SD-008")
def test_only_enabled_prompts_can_be_dispatched() -> None:
    other = PromptTemplate[str](ns="research", key="write", sections=[MarkdownSection("W", "w", "Write.")])
    registry = PromptRegistry(DIG, other)
    assert prompt_of(task(), registry).template is DIG
    registry.disable("research", "dig")
    with pytest.raises(ToolValidationError) as caught:
        prompt_of(task(), registry)
    assert str(caught.value) == "the subagent 'research/dig' is disabled. Enabled subagents: research/write"
    registry.disable("research", "write")
    with pytest.raises(ToolValidationError, match=r"does not exist\. Enabled subagents: none"):
        prompt_of(task(prompt_ns="x"), registry)


def test_an_unknown_prompt_is_told_its_neighbours() -> None:
    with pytest.raises(ToolValidationError) as caught:
        prompt_of(task(prompt_key="digs"), PromptRegistry(DIG))
    assert (
        str(caught.value)
        == "the subagent 'research/digs' does not exist. Did you mean 'research/dig'? Enabled subagents: research/dig"
    )


def test_a_long_name_is_not_repeated_in_full() -> None:
    with pytest.raises(ToolValidationError) as caught:
        prompt_of(task(prompt_key="x" * 10_000), PromptRegistry(DIG))
    assert len(str(caught.value)) < 300


@pytest.mark.spec("SD-003")
def test_the_version_of_the_snapshot_is_checked() -> None:
    snapshot = Session().snapshot()
    check_version(task(), snapshot)
    check_version(task(snapshot_version="1"), snapshot)
    check_version(task(snapshot_version=" 1 "), snapshot)
    check_version(task(snapshot_version=" "), snapshot)
    with pytest.raises(ToolValidationError) as caught:
        check_version(task(snapshot_version="2"), snapshot)
    assert (
        str(caught.value)
        == "snapshot_version is '2', but this session's snapshots have version 1; give \"1\", or leave it out"
    )


@pytest.mark.parametrize("count", [0, 21])
def test_there_are_1_to_20_tasks(count: int) -> None:
    with pytest.raises(ToolValidationError, match=f"tasks holds {count} tasks; give 1 to 20"):
        checked_count(DispatchSubagents((task(),) * count))


def test_twenty_tasks_are_good() -> None:
    assert checked_count(DispatchSubagents((task(),) * 20)) == 20
