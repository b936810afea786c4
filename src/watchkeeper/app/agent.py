"""`Agent`: a thin front for those who come from other libraries. It builds a template and calls `run`; nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, Unpack

from watchkeeper.app.checks import check_arguments, check_left_to_agent
from watchkeeper.app.many import run_many
from watchkeeper.app.options import RunKeywords
from watchkeeper.app.run import arun, run
from watchkeeper.core.limits import Limits
from watchkeeper.core.model import Model
from watchkeeper.prompt.completion import TaskCompletionChecker
from watchkeeper.prompt.observer import ObserverConfig
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.tools.tool import Tool

OutputT = TypeVar("OutputT")


@dataclass(frozen=True)
class Task:
    """What an `Agent` is asked to do."""

    task: str


@dataclass(frozen=True)
class Agent(Generic[OutputT]):
    """An agent in five words: model, instructions, tools, output type, limits.

    Attributes:
        model: Who answers.
        instructions: Standing instructions; they become the system message.
        output_type: What it answers with: a dataclass, a pydantic model, or str.
        tools: What it may call.
        limits: What each run may spend.
        name: Names it in logs.
        task_completion_checker: Who says whether the work is done, or None.
        observers: Who assesses how a run is going, and when.
    """

    model: Model | str
    instructions: str
    output_type: type[OutputT]
    tools: tuple[Tool, ...] = ()
    limits: Limits = Limits()
    name: str = "agent"
    task_completion_checker: TaskCompletionChecker | None = None
    observers: Sequence[ObserverConfig] = ()
    template: PromptTemplate[OutputT] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Build the template, so that what is wrong with it shows at once."""
        check_arguments({"model": self.model, "instructions": self.instructions, "limits": self.limits})
        sections = (
            MarkdownSection(title="Instructions", key="instructions", template="${instructions}", role="system"),
            MarkdownSection(title="Task", key="task", template="${task}", tools=self.tools),
        )
        template = PromptTemplate(
            ns="agents",
            key=self.name,
            sections=sections,
            output_type=self.output_type,
            task_completion_checker=self.task_completion_checker,
            observers=self.observers,
        )
        object.__setattr__(self, "template", template)

    def prompt(self, task: str) -> Prompt[OutputT]:
        """Return the bound prompt for one task."""
        check_arguments({"task": task})
        return Prompt(self.template).with_variables(instructions=self.instructions, task=task)

    def run(self, task: str, **options: Unpack[RunKeywords]) -> RunResult[OutputT]:
        """Run on one task; see `watchkeeper.run`."""
        check_left_to_agent(options)
        return run(self.prompt(task), model=self.model, limits=self.limits, **options)

    async def arun(self, task: str, **options: Unpack[RunKeywords]) -> RunResult[OutputT]:
        """Run on one task; see `watchkeeper.arun`."""
        check_left_to_agent(options)
        return await arun(self.prompt(task), model=self.model, limits=self.limits, **options)

    def run_many(
        self, tasks: Iterable[str], *, concurrency: int = 4, **options: Unpack[RunKeywords]
    ) -> ManyResult[OutputT]:
        """Run on many tasks under one ceiling; see `watchkeeper.run_many`."""
        check_left_to_agent(options)
        check_arguments({"tasks": tasks})
        prompt = Prompt(self.template).with_variables(instructions=self.instructions)
        items = [Task(task) for task in tasks]
        for item in items:
            check_arguments({"task": item.task})
        return run_many(
            prompt,
            items,
            model=self.model,
            limits=self.limits,
            concurrency=concurrency,
            label=lambda item: item.task[:60],
            **options,
        )
