"""What a child is told when it begins: by name where its template asks for it, as a message where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.subagents.support import Note, task
from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import Message, UserMessage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.subagents.payloads import DispatchSubagent
from watchkeeper.subagents.workspace import summary_lines, told, values_of

STEP = task("Find the key.", mode="plan_step", plan_step_id="3", expected_artifacts=("a.md", "b.md"))
EMPTY = Session().snapshot()


@dataclass(frozen=True)
class Work:
    """What a template may declare."""

    instructions: str
    expected_artifacts: tuple[str, ...]
    tone: str = "short"


@dataclass(frozen=True)
class Strange:
    """Asks for what nobody gives."""

    instructions: str
    weather: str


def prompt(text: str, *more: MarkdownSection, params: Sequence[type[Any]] | None = None) -> Prompt[str]:
    """Return a prompt of one section with this text."""
    sections = [MarkdownSection("Work", "work", text), *more]
    return Prompt(PromptTemplate[str](ns="tests", key="child", sections=sections, params=params))


def words(prompt: Prompt[str], task: DispatchSubagent = STEP, snapshot: Snapshot = EMPTY) -> list[str]:
    """Return the texts that a child's conversation begins with."""
    bound, messages = told(prompt, task, snapshot)
    every: list[Message] = [*bound.render().messages, *messages]
    assert all(isinstance(message, UserMessage) for message in every)
    return [message.text for message in every]


@pytest.mark.spec("SD-004")
def test_every_value_has_a_name() -> None:
    text = "${instructions}|${mode}|${plan_step_id}|${expected_artifacts}|${snapshot_version}\n${snapshot_summary}"
    assert words(prompt(text)) == ["# Work\n\nFind the key.|plan_step|3|a.md, b.md|1\n- empty"]


def test_what_is_not_there_is_called_none() -> None:
    assert words(prompt("${plan_step_id}, ${expected_artifacts}"), task())[0] == "# Work\n\nnone, none"


@pytest.mark.spec("SD-004")
def test_a_template_that_names_nothing_is_followed_by_all_of_it() -> None:
    first, second = words(prompt("Work."))
    assert first == "# Work\n\nWork."
    assert second == (
        "# Your task\n\nFind the key.\n\nThis is a step of a plan.\nStep of the plan: 3\n"
        "Leave these files; no others are kept: a.md, b.md\n"
        "State that you begin with (snapshot version 1):\n- empty"
    )


def test_only_what_the_template_leaves_out_follows() -> None:
    _, rest = words(prompt("${instructions} ${snapshot_summary} ${plan_step_id} ${expected_artifacts}"))
    assert rest == "This is a step of a plan."
    _, rest = words(prompt("${mode} ${snapshot_version} ${plan_step_id} ${expected_artifacts} ${instructions}"))
    assert rest == "State that you begin with:\n- empty"


def test_instructions_that_a_predicate_may_leave_out_are_said_all_the_same() -> None:
    def never() -> bool:
        return False

    hidden = MarkdownSection("Hidden", "hidden", "${instructions}", enabled=never)
    inside = MarkdownSection("Out", "out", "x", children=[hidden])
    assert any("Find the key." in text for text in words(prompt("Work.", inside)))


def test_predicates_get_the_values_too() -> None:
    def planned(mode: str) -> bool:
        return mode == "plan_step"

    section = MarkdownSection("Plan", "plan", "Keep to the plan.", enabled=planned)
    assert "Keep to the plan." in words(prompt("Work.", section))[0]
    assert "Keep to the plan." not in words(prompt("Work.", section), task())[0]


def test_a_declared_dataclass_is_filled_with_what_it_asks_for() -> None:
    text = "${instructions} ${expected_artifacts} ${tone}"
    first, rest = words(prompt(text, params=[Work]))
    assert first == "# Work\n\nFind the key. a.md, b.md short"
    assert "# Your task" not in rest

    def several(work: Work) -> bool:
        return work.expected_artifacts == ("a.md", "b.md")

    section = MarkdownSection("Several", "several", "Two files.", enabled=several)
    assert "Two files." in words(prompt(text, section, params=[Work]))[0]


def test_values_that_the_registry_bound_stay() -> None:
    bound = prompt("${instructions} ${tone} ${extra}", params=None).with_variables(extra="!", tone="long")
    assert words(bound)[0] == "# Work\n\nFind the key. long !"
    declared = prompt("${tone}", params=[Work]).bind(Work("theirs", (), "loud"))
    assert words(declared)[0] == "# Work\n\nloud"


def test_a_prompt_that_asks_for_more_is_an_error_that_names_it() -> None:
    with pytest.raises(PromptDefinitionError, match="weather"):
        words(prompt("${instructions} ${weather}", params=[Strange]))


def test_values_go_in_exactly_as_they_are() -> None:
    dollars = task("Pay $5 or ${mode}.")
    assert words(prompt("${instructions}"), dollars)[0] == "# Work\n\nPay $5 or ${mode}."


class TestSummary:
    """The state in a few lines."""

    def test_names_sizes_and_the_newest_item(self) -> None:
        session = Session()
        for text in ("one", "two", "x" * 1_000):
            session.dispatch(Note(text))
        (line,) = summary_lines(session.snapshot())
        assert line.startswith('- Note: 3 items, the newest: {"text":"xxx')
        assert line.endswith("…")
        assert len(line) < 200

    def test_what_only_says_how_the_run_went_is_left_out(self) -> None:
        from watchkeeper.runtime.events import NoticeAppended

        session = Session()
        session.dispatch(NoticeAppended("a notice", session.clock.now()))
        session.dispatch(Note("mine"))
        assert list(summary_lines(session.snapshot())) == ['- Note: 1 item, the newest: {"text":"mine"}']

    def test_a_great_many_slices_are_cut(self) -> None:
        session = Session()
        for number in range(15):
            session.dispatch(made_up(number)("x"))
        lines = list(summary_lines(session.snapshot()))
        assert len(lines) == 13
        assert lines[-1] == "- and 3 more"

    def test_sessions_below_are_named_if_they_were_taken_along(self) -> None:
        session = Session()
        child = session.child()
        child.dispatch(Note("below"))
        assert list(summary_lines(session.snapshot())) == []
        (line,) = summary_lines(session.snapshot(cascade=True))
        assert line == f'- in the session below, {child.session_id}: Note: 1 item, the newest: {{"text":"below"}}'
        assert values_of(task(), session.snapshot(cascade=True))["snapshot_summary"] == line


def made_up(number: int) -> type[Any]:
    """Return a class of its own for a slice."""
    from dataclasses import make_dataclass

    made = make_dataclass(f"Made{number}", [("text", str)], frozen=True)
    made.__module__ = __name__
    globals()[made.__name__] = made
    return made
