"""The values of dispatching: the task that a model writes, its result, and the registry of prompts.

Tasks and results are plain frozen values with a JSON form: the model reads their descriptions, and results go on the
parent's log. Their constructors check nothing, so that one task of several can be refused alone; `checked`, `prompt_of`
and `check_version` check a task before anything is started. Every refusal is a `ToolValidationError` that says what was
wrong, with which value, and what to write instead: a model reads it and tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

from watchkeeper.core.errors import PromptDefinitionError, ToolValidationError
from watchkeeper.core.model import CompletionState
from watchkeeper.core.text import clipped, nearest
from watchkeeper.core.type_tags import own_value
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.session.log import event
from watchkeeper.session.slices import Snapshot

SubagentMode = Literal["plan_step", "ad_hoc"]

MAX_INSTRUCTIONS: Final = 2_000
MAX_ARTIFACT: Final = 160
MAX_TASKS: Final = 20
SHOWN: Final = 60
"""Characters of a bad value that a refusal repeats."""

STRANGE: Final = 10
"""How many different characters that are not ASCII a refusal lists, so that all can be replaced at once."""


@own_value("dispatch_subagent")
@dataclass(slots=True, frozen=True)
class DispatchSubagent:
    """One task for one subagent.

    Attributes:
        mode: "plan_step" for a step of a plan (then name it in plan_step_id), "ad_hoc" for anything else.
        prompt_ns: Namespace of the subagent's prompt: what stands before the last "/" of its name.
        prompt_key: Key of the subagent's prompt: what stands after the last "/" of its name.
        instructions: Everything the subagent must know and do, in 1 to 2,000 plain ASCII characters; it sees nothing of
            this conversation.
        expected_artifacts: Paths of files that it is to write and you need, at most 160 ASCII characters each; leave it
            empty if its answer is enough.
        plan_step_id: The step of the plan; required in mode "plan_step", else leave it out.
        snapshot_version: Leave it out, unless you were told a version of session snapshots to insist on.
    """

    mode: SubagentMode
    prompt_ns: str
    prompt_key: str
    instructions: str
    expected_artifacts: tuple[str, ...] = ()
    plan_step_id: str | None = None
    snapshot_version: str | None = None


@own_value("dispatch_subagent_result")
@dataclass(slots=True, frozen=True)
class DispatchSubagentResult:
    """What a subagent that completed its work hands back.

    Attributes:
        prompt_ns: Namespace of its prompt.
        prompt_key: Key of its prompt.
        message_summary: Text for the parent's model: the last answer, shortened, and notes about its files.
        artifacts: The expected files that it left, and what it recorded as `Artifact`.
        tools_used: Tools that it called, in the order of first use.
        output: Its structured output as JSON values; None if it answers in text.
        plan_step_id: The step of the plan that it was given.
        run_id: Its run; the key of its log.
        completion: What the completion checker of its prompt said.
        failed_artifacts: Those of its files that could not be kept.
    """

    prompt_ns: str
    prompt_key: str
    message_summary: str
    artifacts: tuple[str, ...] = ()
    tools_used: tuple[str, ...] = ()
    output: Any = None
    plan_step_id: str | None = None
    run_id: UUID | None = None
    completion: CompletionState = "unchecked"
    failed_artifacts: tuple[str, ...] = ()


@own_value("dispatch_subagents")
@dataclass(slots=True, frozen=True)
class DispatchSubagents:
    """Several tasks, each for a subagent of its own; they run at the same time and do not see each other.

    Attributes:
        tasks: 1 to 20 tasks.
    """

    tasks: tuple[DispatchSubagent, ...]


@own_value("subagent_outcome")
@dataclass(slots=True, frozen=True)
class SubagentOutcome:
    """The end of one task of several: a result, or the reason why there is none.

    Attributes:
        result: What the subagent handed back, or None.
        error: The reason; empty if there is a result.
    """

    result: DispatchSubagentResult | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the subagent completed its work."""
        return self.result is not None


@own_value("dispatch_subagents_result")
@dataclass(slots=True, frozen=True)
class DispatchSubagentsResult:
    """The ends of several tasks.

    Attributes:
        outcomes: One for each task, in the order of the tasks.
    """

    outcomes: tuple[SubagentOutcome, ...]


@event("artifact")
@dataclass(slots=True, frozen=True)
class Artifact:
    """A deliverable that a tool or a reducer records in its session, to be handed to the parent of a subagent.

    Attributes:
        path: A file of the subagent's, which is then kept, or any other reference, for example a citation.
    """

    path: str


class PromptRegistry:
    """A table of prompts by namespace and key, from which a run can start another prompt by its name.

    A registered prompt is enabled until `disable` is called: then it can be looked up, but no run may start it. Both
    can change while runs go on.
    """

    __slots__ = ("_disabled", "_prompts")

    def __init__(self, *prompts: Prompt[Any] | PromptTemplate[Any]) -> None:
        """Register the given prompts."""
        self._prompts: dict[tuple[str, str], Prompt[Any]] = {}
        self._disabled: set[tuple[str, str]] = set()
        for prompt in prompts:
            self.register(prompt)

    def register(self, prompt: Prompt[Any] | PromptTemplate[Any], *, enabled: bool = True) -> Prompt[Any]:
        """Add a prompt, or a template with nothing bound, and return the prompt.

        Args:
            prompt: What to add; another prompt of the same template takes the place of the earlier one.
            enabled: Whether a run may start it.

        Raises:
            PromptDefinitionError: If another template has the same namespace and key, or it is no prompt.
        """
        if not isinstance(prompt, Prompt | PromptTemplate):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PromptDefinitionError(
                f"a registry holds prompts and templates, and this is of the type {type(prompt).__name__}; "
                "pass them one by one: PromptRegistry(a, b); of an agent pass its template: agent.template"
            )
        added = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        known = self._prompts.setdefault((added.ns, added.key), added)
        if known.template is not added.template:
            raise PromptDefinitionError(f"prompt {f'{added.ns}/{added.key}'!r} is registered already; use another key")
        self._prompts[added.ns, added.key] = added
        (self._disabled.discard if enabled else self._disabled.add)((added.ns, added.key))
        return added

    def enable(self, ns: str, key: str) -> None:
        """Let runs start a prompt again.

        Raises:
            PromptDefinitionError: If there is none of this name.
        """
        self.get(ns, key)
        self._disabled.discard((ns, key))

    def disable(self, ns: str, key: str) -> None:
        """Let no run start a prompt from now on; those that run go on.

        Raises:
            PromptDefinitionError: If there is none of this name.
        """
        self.get(ns, key)
        self._disabled.add((ns, key))

    def is_enabled(self, ns: str, key: str) -> bool:
        """Return whether there is such a prompt and a run may start it."""
        return (ns, key) in self._prompts and (ns, key) not in self._disabled

    @property
    def enabled(self) -> tuple[Prompt[Any], ...]:
        """The prompts that a run may start, oldest first."""
        return tuple(prompt for prompt in self if (prompt.ns, prompt.key) not in self._disabled)

    def get(self, ns: str, key: str) -> Prompt[Any]:
        """Return a prompt.

        Raises:
            PromptDefinitionError: If there is none; the message lists those that exist.
        """
        prompt = self._prompts.get((ns, key))
        if prompt is None:
            meant, listed = _suggested(f"{ns}/{key}", self)
            meant = f"did you mean {meant}? " if meant else ""
            raise PromptDefinitionError(f"no prompt {f'{ns}/{key}'!r}; {meant}registered: {listed}")
        return prompt

    def __iter__(self) -> Iterator[Prompt[Any]]:
        """Iterate over the prompts, oldest first."""
        return iter(tuple(self._prompts.values()))

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self._prompts)

    def __contains__(self, name: object) -> bool:
        """Return whether ``(ns, key)`` is registered."""
        return name in self._prompts


def checked(task: DispatchSubagent) -> DispatchSubagent:
    """Return the task with its texts trimmed and each artifact once.

    Raises:
        ToolValidationError: If a text is empty, too long or not ASCII, or a plan's step has no id.
    """
    instructions = _text(task.instructions, "instructions", MAX_INSTRUCTIONS)
    artifacts = (_text(path, "each of expected_artifacts", MAX_ARTIFACT) for path in task.expected_artifacts)
    step = (task.plan_step_id or "").strip() or None
    if step is not None:
        _text(step, "plan_step_id", MAX_ARTIFACT)
    elif task.mode == "plan_step":
        raise ToolValidationError(
            'plan_step_id is missing: in mode "plan_step" name the step of the plan, or use mode "ad_hoc"'
        )
    return replace(
        task, instructions=instructions, expected_artifacts=tuple(dict.fromkeys(artifacts)), plan_step_id=step
    )


def checked_count(tasks: DispatchSubagents) -> int:
    """Return how many tasks there are.

    Raises:
        ToolValidationError: If there are none, or too many.
    """
    count = len(tasks.tasks)
    if not 1 <= count <= MAX_TASKS:
        raise ToolValidationError(f"tasks holds {count} tasks; give 1 to {MAX_TASKS}, and the rest in another call")
    return count


def prompt_of(task: DispatchSubagent, registry: PromptRegistry) -> Prompt[Any]:
    """Return the prompt that a task names.

    Raises:
        ToolValidationError: If there is none of that name, or it is disabled; it lists those that are enabled.
    """
    if registry.is_enabled(task.prompt_ns, task.prompt_key):
        return registry.get(task.prompt_ns, task.prompt_key)
    name = f"{task.prompt_ns}/{task.prompt_key}"
    disabled = (task.prompt_ns, task.prompt_key) in registry
    meant, listed = _suggested(name, registry.enabled)
    meant = f" Did you mean {meant}?" if meant and not disabled else ""
    what = "is disabled" if disabled else "does not exist"
    raise ToolValidationError(f"the subagent {_shown(name)} {what}.{meant} Enabled subagents: {listed}")


def _suggested(name: str, prompts: Iterable[Prompt[Any]]) -> tuple[str, str]:
    """Return the prompt whose name is nearest, quoted, or nothing; and the names of all."""
    names = [f"{prompt.ns}/{prompt.key}" for prompt in prompts]
    near = nearest(name, names)
    return repr(near) if near else "", ", ".join(names) or "none"


def check_version(task: DispatchSubagent, snapshot: Snapshot) -> None:
    """Refuse a task that relies on another version of snapshots than this session writes.

    Raises:
        ToolValidationError: Naming both.
    """
    wanted = (task.snapshot_version or "").strip()
    if wanted and wanted != str(snapshot.version):
        raise ToolValidationError(
            f"snapshot_version is {_shown(wanted)}, but this session's snapshots have version {snapshot.version};"
            f' give "{snapshot.version}", or leave it out'
        )


def _text(given: str, what: str, most: int) -> str:
    """Return a text without the space around it."""
    text = given.strip()
    if not text:
        raise ToolValidationError(f"{what} must not be empty; give 1 to {most:,} ASCII characters")
    if len(text) > most:
        raise ToolValidationError(
            f"{what} may have {most:,} characters, and this has {len(text):,}: {_shown(text)}; shorten it"
        )
    if not text.isascii():
        strange = list(dict.fromkeys(char for char in text if not char.isascii()))
        more = f" and {len(strange) - STRANGE} more" if len(strange) > STRANGE else ""
        raise ToolValidationError(
            f"{what} must be plain ASCII, and holds {' '.join(map(repr, strange[:STRANGE]))}{more}; write it with ASCII"
            " characters only"
        )
    return text


def _shown(text: str) -> str:
    return repr(clipped(text, SHOWN + 1))
