"""A tool with which the agent answers advice: it has acted on it, or it does not apply.

The answer is recorded on the log, and that source is silent for a number of calls. Warnings about hard limits are
still delivered, because the gate stops the run at a limit no matter what the agent has answered.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

import msgspec

from watchkeeper.prompt.advice import Assessment, Feedback
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.runtime.advice_events import AdviceAcknowledged
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.values import ToolResult
from watchkeeper.tools.tool import tool


def _about(text: str) -> Any:
    return msgspec.Meta(description=text)


@tool
def answer_advice(
    source: Annotated[str, _about("the name in the heading of the advice, for example Stall")],
    action: Annotated[
        Literal["acknowledge", "dismiss"], _about("acknowledge: seen and dealt with; dismiss: it does not apply here")
    ],
    reason: Annotated[str, _about("why, in one sentence")],
    for_calls: Annotated[int, msgspec.Meta(ge=1, le=50, description="tool calls for which it is to be quiet")] = 10,
    *,
    context: ToolContext,
) -> ToolResult[str]:
    """Answer a Trajectory Assessment, so that the same advice does not come again for a while."""
    session = context.session
    known = sorted({advice.source for advice in chain(session[Assessment].all(), session[Feedback].all())})
    heading = source.rpartition(" [")[0].strip()  # models copy the whole heading: "Stall [warning]"
    if source not in known and heading in known:
        source = heading
    if source not in known:
        return ToolResult.error(f"nobody called {source!r} has said anything; sources: {', '.join(known) or 'none'}")
    call_index = len(session[ToolInvoked].all()) + 1  # this call is on the log when it is over
    session.dispatch(AdviceAcknowledged(source, action, for_calls, call_index, reason))
    return ToolResult.ok(source, f"{source} is quiet for {for_calls} calls, but for warnings about hard limits.")


def answer_section(title: str = "Advice", key: str = "advice") -> MarkdownSection:
    """Return a section that tells the agent about assessments and gives it the tool to answer them."""
    return MarkdownSection(
        title=title,
        key=key,
        template=(
            "While you work you may be shown a Trajectory Assessment. Take it seriously. If it does not apply, or you"
            " have dealt with it, say so with answer_advice instead of ignoring it."
        ),
        tools=(answer_advice,),
    )
