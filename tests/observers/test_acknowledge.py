"""The tool with which an agent answers advice: what is recorded, who can be answered, what stays loud."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit import Call, Report, Say, events, play
from watchkeeper.accounting.limits import Limits
from watchkeeper.observers.acknowledge import answer_advice, answer_section
from watchkeeper.observers.resources import ResourceObserver
from watchkeeper.prompt.observer import ObserverConfig, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.advice_events import AdviceAcknowledged, ObserversRan
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import tool


@tool
def look(a: int = 0) -> str:
    """Look."""
    return f"saw {a}"


def template() -> PromptTemplate[Report]:
    """Return an agent that is told what is left after every call, and may answer."""
    return PromptTemplate[Report](
        ns="t",
        key="answering",
        sections=[MarkdownSection(title="Task", key="task", template="Look.", tools=(look,)), answer_section()],
        observers=[ObserverConfig(ResourceObserver(), ObserverTrigger(on_every_call=True))],
    )


def answer(**given: Any) -> Call:
    """Answer the observer."""
    fields = {"source": "Resources", "action": "acknowledge", "reason": "I know", "for_calls": 3}
    return Call("answer_advice", fields | given)


@pytest.mark.spec("TO-019")
async def test_an_answer_is_recorded_and_holds_back_all_but_warnings() -> None:
    script = [Call("look"), answer(), *[Call("look", {"a": a}) for a in range(8)], Say(Report(1))]
    result = await play(template(), script, Limits(deadline=None, max_total_tokens=None, max_tool_calls=20))
    (recorded,) = events(result, AdviceAcknowledged)
    assert recorded == AdviceAcknowledged("Resources", "acknowledge", 3, 2, "I know")
    assert [each.call_index for each in events(result, ObserversRan) if each.told] == [1, 6, 7, 8, 9, 10]


@pytest.mark.spec("TO-019")
async def test_warnings_come_while_the_source_is_to_be_quiet() -> None:
    script = [Call("look"), answer(for_calls=50), *[Call("look", {"a": a}) for a in range(8)], Say(Report(1))]
    result = await play(template(), script, Limits(deadline=None, max_total_tokens=None, max_tool_calls=10))
    assert [each.call_index for each in events(result, ObserversRan) if each.told] == [1, 9, 10]


@pytest.mark.parametrize("source", ["Resources [info]", "Resources [warning]"])
async def test_the_whole_heading_will_do(source: str) -> None:
    result = await play(template(), [Call("look"), answer(source=source), Say(Report(1))])
    assert [each.source for each in events(result, AdviceAcknowledged)] == ["Resources"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": "Ghost"}, "nobody called 'Ghost' has said anything; sources: Resources"),
        ({"source": "Ghost [info]"}, "nobody called 'Ghost [info]'"),
        ({"for_calls": 0}, ">= 1"),
        ({"for_calls": 51}, "<= 50"),
        ({"action": "ignore"}, "ignore"),
    ],
)
async def test_what_cannot_be_answered_is_sent_back_with_the_reason(given: dict[str, Any], said: str) -> None:
    result = await play(template(), [Call("look"), answer(**given), Say(Report(1))])
    assert not events(result, AdviceAcknowledged)
    assert said in events(result, ToolInvoked)[1].rendered_output


async def test_before_any_advice_there_is_nothing_to_answer() -> None:
    result = await play(template(), [answer(), Say(Report(1))])
    assert "sources: none" in events(result, ToolInvoked)[0].rendered_output


def test_the_section_brings_the_tool() -> None:
    section = answer_section(title="Answers", key="answers")
    assert (section.title, section.key, section.tools) == ("Answers", "answers", (answer_advice,))
    assert "answer_advice" in section.template
