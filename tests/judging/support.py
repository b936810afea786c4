"""Something to do inside a run: a checker that calls a function while the run goes on, and keeps what it returned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.kit import agent, play
from watchkeeper.children.child import Children, children_of
from watchkeeper.core.limits import Limits
from watchkeeper.core.model import ModelRequest
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.result import RunResult
from watchkeeper.tools.tool import Tool

ANSWER = '{"total": 1}'


@dataclass
class Inside:
    """A checker that does something else; what it raises it keeps."""

    act: Callable[[TaskCompletionContext], Awaitable[Any]]
    said: list[Any] = field(default_factory=list[Any])
    raised: list[BaseException] = field(default_factory=list[BaseException])
    asks_model: bool = False

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Do it."""
        try:
            self.said.append(await self.act(context))
        except BaseException as error:
            self.raised.append(error)
            raise
        return TaskCompletionResult.ok("done")


async def inside(
    act: Callable[[TaskCompletionContext], Awaitable[Any]],
    script: Iterable[Any] | Any,
    limits: Limits = Limits(),
    *,
    asks_model: bool = False,
    tools: Iterable[Tool] = (),
    **options: Any,
) -> tuple[RunResult[Any], Inside]:
    """Run an agent that answers with the first step of the script; ``act`` happens while its answer is checked."""
    checker = Inside(act, asks_model=asks_model)
    result = await play(agent(*tools, checker=checker), script, limits, **options)
    return result, checker


def answers(_: ModelRequest) -> str:
    """Answer as the agent does, whoever asks."""
    return ANSWER


def children(context: TaskCompletionContext) -> Children:
    """Return what starts children of the run that is going on."""
    found = children_of(context.session)
    assert found is not None
    return found


def question(text: str = "What do you think?", *, key: str = "question", tools: Iterable[Tool] = ()) -> Prompt[str]:
    """Return a prompt that is answered in plain text."""
    section = MarkdownSection(title="Question", key="question", template=text, tools=tuple(tools))
    return Prompt(PromptTemplate[str](ns="tests", key=key, sections=(section,)))
