"""`Agent`: instructions, tools, a model and limits in one value. It builds a prompt template and calls `run`.

The options of an agent hold for all of its runs, also on the command line; a run may give other `settings`, `shield`,
`resources` and `filesystem`. Store and callbacks are options of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Unpack, cast

from watchkeeper.app.options import RunOptions, TaskOptions, brief, check_arguments, check_left_to_agent
from watchkeeper.app.resume import ForkOptions, ResumeManyOptions, ResumeOptions, afork, aresume, aresume_many
from watchkeeper.app.resume import fork, resume, resume_many
from watchkeeper.app.replay import ReplayOptions, areplay, replay
from watchkeeper.app.run import arun, arun_many, run, run_many
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import ImagePart
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.prompt.completion import COMPLETION_ROUNDS, TaskCompletionChecker
from watchkeeper.prompt.observer import FeedbackProviderConfig, ObserverConfig
from watchkeeper.prompt.output import OutputT
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.loop.replay import Replayed
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.session.session import Session
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.resources import Resources
from watchkeeper.tools.tool import Tool

if TYPE_CHECKING:
    from watchkeeper.subagents.payloads import PromptRegistry

LABEL_CHARS: Final = 60
"""A task is named in results and logs by this many of its first characters."""


Work = str | Sequence[str | ImagePart]
"""What an `Agent` can be asked to do: text, or texts and images in their order."""


@dataclass(frozen=True)
class Task:
    """What an `Agent` is asked to do."""

    task: Work


@dataclass(frozen=True)
class Agent(Generic[OutputT]):
    """An agent: a model, instructions, an output type, tools and limits.

    Attributes:
        model: The model that answers.
        instructions: Standing instructions; they become the system message.
        output_type: The type of its answer: a dataclass, a pydantic model, or text.
        tools: The tools that it may call.
        limits: The limits of each run.
        name: Its name in logs.
        task_completion_checker: Decides whether the work is done, or None.
        observers: Observers, and when each is asked.
        feedback_providers: Feedback providers, and when each is asked.
        completion_rounds: How often it may go on working after the verdict "incomplete".
        settings: Temperature, effort, output cap ...
        shield: Hooks that are asked before every model call and tool call.
        resources: What tools may ask their context for.
        filesystem: What tools may read and write.
        sections: Further sections of its prompt, between instructions and task, with their tools.
        subagents: What it may hand work to: prompts and templates, or a `PromptRegistry` of them. For settings of
            subagents, give a `PromptSubagentToolsSection` among the sections instead.
        template: The prompt template that it builds.
    """

    model: Model | str
    instructions: str
    output_type: type[OutputT] = field(default=cast("type[OutputT]", str))
    tools: Sequence[Tool] = ()
    limits: Limits = Limits()
    name: str = "agent"
    task_completion_checker: TaskCompletionChecker | None = None
    observers: Sequence[ObserverConfig] = ()
    feedback_providers: Sequence[FeedbackProviderConfig] = ()
    completion_rounds: int = COMPLETION_ROUNDS
    settings: ModelSettings = field(default=ModelSettings(), hash=False)
    shield: ShieldPipeline | None = None
    resources: Resources | None = None
    filesystem: Filesystem | None = None
    sections: Sequence[MarkdownSection] = field(default=(), hash=False)
    subagents: Sequence[PromptTemplate[Any] | Prompt[Any]] | PromptRegistry = field(default=(), hash=False)
    template: PromptTemplate[OutputT] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Build the template, so that mistakes in it raise at once."""
        own = {"sections": self.sections, "subagents": self.subagents}
        given = {"model": self.model, "instructions": self.instructions, "limits": self.limits}
        check_arguments({**given, **own, **self.options})
        further = tuple(self.sections)
        check_placeholders(further)
        sections = (
            MarkdownSection(title="Instructions", key="instructions", template="${instructions}", role="system"),
            *further,
            *subagents_section(self.subagents),
            MarkdownSection(title="Task", key="task", template="${task}", tools=self.tools),
        )
        template = PromptTemplate(
            ns="agents",
            key=self.name,
            sections=sections,
            output_type=self.output_type,
            task_completion_checker=self.task_completion_checker,
            observers=self.observers,
            feedback_providers=self.feedback_providers,
            completion_rounds=self.completion_rounds,
        )
        put = object.__setattr__
        put(self, "tools", tuple(self.tools))
        put(self, "sections", further)
        put(self, "subagents", tuple(self.subagents) if isinstance(self.subagents, list) else self.subagents)
        put(self, "observers", template.observers)
        put(self, "feedback_providers", template.feedback_providers)
        put(self, "template", template)

    @property
    def options(self) -> RunOptions:
        """The options of its runs beside prompt, model and limits."""
        given: RunOptions = {"settings": self.settings, "shield": self.shield}
        if self.resources is not None:
            given["resources"] = self.resources
        if self.filesystem is not None:
            given["filesystem"] = self.filesystem
        return given

    def prompt(self, task: Work) -> Prompt[OutputT]:
        """Return the bound prompt for one task."""
        check_arguments({"task": task})
        return self._any_task().with_variables(task=task)

    def run(self, task: Work, *, session: Session | None = None, **options: Unpack[RunOptions]) -> RunResult[OutputT]:
        """Run on one task; see `watchkeeper.run`.

        Args:
            task: What to do: text, or a list of texts and `ImagePart`.
            session: An earlier session to continue with: ``first.session``.
            options: See `RunOptions`.
        """
        return run(self.prompt(task), session=session, **self._run_with(options))

    async def arun(
        self, task: Work, *, session: Session | None = None, **options: Unpack[RunOptions]
    ) -> RunResult[OutputT]:
        """Run on one task; see `watchkeeper.arun`, and `run` for the arguments."""
        return await arun(self.prompt(task), session=session, **self._run_with(options))

    def resume(self, run_id: str, **options: Unpack[ResumeOptions]) -> RunResult[OutputT]:
        """Go on with a run of this agent whose process has died; see `recovery.aresume` for the arguments."""
        return resume(run_id, self._any_task(), **self._resume_with(options))

    async def aresume(self, run_id: str, **options: Unpack[ResumeOptions]) -> RunResult[OutputT]:
        """Go on with a run of this agent whose process has died; see `recovery.aresume` for the arguments."""
        return await aresume(run_id, self._any_task(), **self._resume_with(options))

    def replay(self, run_id: str, **options: Unpack[ReplayOptions]) -> Replayed:
        """Run this agent against the record of one of its runs; see `recovery.areplay` for the arguments."""
        return replay(run_id, self._any_task(), **self._replay_with(options))

    async def areplay(self, run_id: str, **options: Unpack[ReplayOptions]) -> Replayed:
        """Run this agent against the record of one of its runs; see `recovery.areplay` for the arguments."""
        return await areplay(run_id, self._any_task(), **self._replay_with(options))

    def fork(self, run_id: str, *, at: int, **options: Unpack[ForkOptions]) -> RunResult[OutputT]:
        """Go on from an event of a run of this agent as a new run; see `recovery.afork` for the arguments."""
        return fork(run_id, self._any_task(), at=at, **self._resume_with(options))

    async def afork(self, run_id: str, *, at: int, **options: Unpack[ForkOptions]) -> RunResult[OutputT]:
        """Go on from an event of a run of this agent as a new run; see `recovery.afork` for the arguments."""
        return await afork(run_id, self._any_task(), at=at, **self._resume_with(options))

    def resume_many(
        self, run_id: str, tasks: Iterable[Work], **options: Unpack[ResumeManyOptions]
    ) -> ManyResult[OutputT]:
        """Go on with a run of this agent over many tasks, which are given again; see `recovery.aresume_many`."""
        return resume_many(run_id, self._any_task(), items_of(tasks), label=named, **self._resume_with(options))

    async def aresume_many(
        self, run_id: str, tasks: Iterable[Work], **options: Unpack[ResumeManyOptions]
    ) -> ManyResult[OutputT]:
        """Go on with a run of this agent over many tasks, which are given again; see `recovery.aresume_many`."""
        return await aresume_many(run_id, self._any_task(), items_of(tasks), label=named, **self._resume_with(options))

    def run_many(self, tasks: Iterable[Work], **options: Unpack[TaskOptions]) -> ManyResult[OutputT]:
        """Run on many tasks under one ceiling; see `watchkeeper.run_many`.

        Args:
            tasks: What to do, one text (or list of texts and images) for each run.
            options: See `TaskOptions` and `RunOptions`.
        """
        return run_many(self._any_task(), items_of(tasks), label=named, **self._run_with(options))

    async def arun_many(self, tasks: Iterable[Work], **options: Unpack[TaskOptions]) -> ManyResult[OutputT]:
        """Run on many tasks under one ceiling; see `watchkeeper.arun_many`, and `run_many` for the arguments."""
        return await arun_many(self._any_task(), items_of(tasks), label=named, **self._run_with(options))

    def _any_task(self) -> Prompt[OutputT]:
        return Prompt(self.template).with_variables(instructions=self.instructions)

    def _resume_with(self, options: ResumeOptions | ResumeManyOptions | ForkOptions) -> dict[str, Any]:
        return {"model": self.model, **self.options, **options}

    def _replay_with(self, options: ReplayOptions) -> dict[str, Any]:
        return {"model": self.model, "shield": self.shield, **options}

    def _run_with(self, options: RunOptions) -> dict[str, Any]:
        check_left_to_agent(options)
        return {"model": self.model, "limits": self.limits, **self.options, **options}


def subagents_section(given: Sequence[PromptTemplate[Any] | Prompt[Any]] | PromptRegistry) -> list[MarkdownSection]:
    """Return the section with the tools that dispatch subagents; no section if there are none.

    Raises:
        ConfigurationError: If one of them is no prompt.
        PromptDefinitionError: If two have the same name.
    """
    if isinstance(given, Sequence) and not given:
        return []
    # imported only where it is used, so that an agent without subagents starts as fast as before
    from watchkeeper.subagents.payloads import PromptRegistry as Registry
    from watchkeeper.subagents.section import PromptSubagentToolsSection

    for each in given:
        if not isinstance(cast("object", each), Prompt | PromptTemplate):
            said = ", not Agents, which have a model and limits of their own" if isinstance(each, Agent) else ""
            raise ConfigurationError(f"subagents are prompts and templates{said}; {brief(each)} is neither")
    return [PromptSubagentToolsSection(given if isinstance(given, Registry) else Registry(*given))]


BOUND: Final = frozenset({"instructions", "task"})
"""The placeholders that an agent fills."""


def check_placeholders(sections: Sequence[MarkdownSection]) -> None:
    """Refuse sections with placeholders that an agent does not fill.

    Raises:
        ConfigurationError: Naming the section and the placeholder.
    """
    for section in (each for outer in sections for each in outer.walk()):
        for name in sorted(set(section.placeholders) - BOUND):
            raise ConfigurationError(
                f"the section {section.key!r} has the placeholder ${{{name}}}, and an Agent fills only ${{task}} and"
                " ${instructions}; write the value itself, or use a PromptTemplate with watchkeeper.run"
            )


def items_of(tasks: Iterable[Work]) -> list[Task]:
    """Return an item for each task.

    Raises:
        ConfigurationError: If they are not a list of texts.
    """
    check_arguments({"tasks": tasks})
    items: list[Task] = []
    for task in tasks:
        check_arguments({"task": task})
        items.append(Task(task))
    return items


def named(item: Task) -> str:
    """Name a task by its beginning."""
    task = item.task
    return (task if isinstance(task, str) else " ".join(part for part in task if isinstance(part, str)))[:LABEL_CHARS]
