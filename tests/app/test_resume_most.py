"""What all assessments of a run may spend together holds over all attempts, also if processes die in assessments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.app.written import Written, written
from watchkeeper.accounting.budget import Budget
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.resume import resume
from watchkeeper.app.run import run
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.judging.model_judges import LLMTrajectoryFeedback
from watchkeeper.judging.templates import TrajectoryAssessment
from watchkeeper.prompt.observer import FeedbackProviderConfig, FeedbackTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.tool import tool

MOST = 12_000
USED = TokenUsage(1_000, 100)


@tool
def look() -> str:
    """Look."""
    return "nothing"


def assessed() -> PromptTemplate[str]:
    """Return a prompt whose agent is assessed after each tool call."""
    feedback = LLMTrajectoryFeedback(min_calls=1, most=Budget(max_total_tokens=MOST))
    return PromptTemplate[str](
        ns="t",
        key="assessed",
        sections=(MarkdownSection(title="Task", key="t", template="Look.", tools=(look,)),),
        feedback_providers=(FeedbackProviderConfig(feedback, FeedbackTrigger(every_n_calls=1)),),
    )


def last_question(lines: Written) -> int:
    """Return how many lines there are up to the beginning of the last model call of an assessment."""
    begun = (
        place
        for place, (name, line) in enumerate(lines.lines)
        if name.count(".") > 1 and line.startswith(b'{"begun":') and b'"kind":"llm"' in line
    )
    return max(begun) + 1


def test_assessments_during_which_the_process_dies_count_under_what_all_may_spend(tmp_path: Path) -> None:
    asked = 0

    def answer(request: ModelRequest) -> Any:
        """Answer for the agent, which looks once, and for the one who assesses it."""
        nonlocal asked
        if request.output is not None:
            asked += 1
            return Say(TrajectoryAssessment("It looked.", "on_track", ""), usage=USED)
        return "done" if len(request.transcript) > 2 else Call("look")

    with written() as lines:
        result = run(assessed(), model=ScriptedModel(answer), store=tmp_path / "store")
        before = 0
        while before < asked <= 12:
            before, count = asked, last_question(lines)
            store = lines.cut(count, tmp_path / "dead")
            del lines.lines[count:]
            with RunStore(store, read_only=True) as stored:
                (row,) = stored.runs()
            result = resume(row.run_id, assessed(), model=ScriptedModel(answer), store=store)
            assert result.output == "done"
    assert 1 < asked == before, "nothing was left for one more"
    assert asked * USED.total <= MOST
