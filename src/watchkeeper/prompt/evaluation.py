"""Evaluation as values: what a prompt renders to, how it is evaluated, what comes back, and what may be nested.

`RenderedPrompt` is what a run sends first; it never changes afterwards. `EvaluateOptions` is the one list of what
`evaluate` takes by keyword, `PromptResponse` what it returns; three events record an evaluation. A nested evaluation
may read its parent and spend a part of what it has. It must never change its parent, so a writable filesystem, or the
parent's session among the resources, is refused here. `children` and `judging` run nested evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, Protocol, TypedDict, Unpack, cast, get_args
from uuid import UUID

import msgspec

from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline, earliest
from watchkeeper.core.errors import ConfigurationError, LimitsError, PromptEvaluationError
from watchkeeper.core.ids import RunContext
from watchkeeper.accounting.limits import UNLIMITED, Limits, tighten
from watchkeeper.core.messages import Message, SystemMessage, UserMessage
from watchkeeper.core.model import CompletionState, OutputSchema
from watchkeeper.core.quantities import DurationLike, duration, is_whole
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.output import OutputT
from watchkeeper.session.log import Dispatcher, event
from watchkeeper.session.session import Session, SessionView
from watchkeeper.session.tagging import check_only
from watchkeeper.tools.filesystem import Filesystem, ReadOnlyFilesystem
from watchkeeper.tools.resources import ResourceBinding, Resources
from watchkeeper.tools.tool import Tool


class RenderedPrompt(msgspec.Struct, Generic[OutputT], frozen=True):
    """A prompt with every value in its place, made by `Prompt.render`.

    Attributes:
        ns: Namespace of the prompt.
        key: Key of the prompt within its namespace.
        name: The prompt's name in logs and events.
        messages: The system message, if there is one, and one user message; the first messages of the transcript.
        tools: Tools of the enabled sections, in document order, each once.
        output_type: The type of the final answer; ``str`` for plain text.
        output: The answer's schema, or None for plain text.
        deadline: The moment at which the evaluation must be over, or None.
    """

    ns: str
    key: str
    name: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    output_type: type[OutputT]
    output: OutputSchema | None = None
    deadline: Deadline | None = None

    @property
    def text(self) -> str:
        """All text of all messages, as a person would read it."""
        return "\n\n".join(
            message.text for message in self.messages if isinstance(message, SystemMessage | UserMessage)
        )


@event("prompt_deadline_assigned")
class PromptDeadlineAssigned(msgspec.Struct, frozen=True):
    """An evaluation has a deadline.

    Attributes:
        prompt_name: Name of the prompt; ``ns/key`` if it has no name of its own.
        deadline: The moment, normalised to UTC.
        session_id: Id of the session.
        created_at: When it was assigned.
    """

    prompt_name: str
    deadline: datetime
    session_id: UUID
    created_at: datetime


@event("prompt_rendered")
class PromptRendered(msgspec.Struct, frozen=True):
    """A prompt was rendered; with it a transcript begins.

    Attributes:
        prompt_name: Name of the prompt; ``ns/key`` if it has no name of its own.
        messages: The first messages of the transcript.
        tool_names: Tools on offer.
        adapter: Name of the adapter that evaluates it.
        session_id: Id of the session.
        created_at: The time of the event.
        run_context: The identifiers of the run.
    """

    prompt_name: str
    messages: tuple[Message, ...]
    tool_names: tuple[str, ...]
    adapter: str
    session_id: UUID
    created_at: datetime
    run_context: RunContext | None = None


@event("prompt_executed")
class PromptExecuted(msgspec.Struct, frozen=True):
    """An evaluation ended with an answer.

    Attributes:
        prompt_name: Name of the prompt; ``ns/key`` if it has no name of its own.
        adapter: Name of the adapter that evaluated it.
        output: The typed answer, or None if it was not parsed.
        text: The model's final text.
        usage: Tokens of the whole evaluation.
        session_id: Id of the session.
        created_at: The time of the event.
        remaining_seconds: Time left to the deadline, or None without one.
        run_context: The identifiers of the run.
    """

    prompt_name: str
    adapter: str
    output: Any
    text: str
    usage: TokenUsage
    session_id: UUID
    created_at: datetime
    remaining_seconds: float | None = None
    run_context: RunContext | None = None


check_only(PromptExecuted, "output", "text")


class EvaluateOptions(TypedDict, total=False):
    """The optional keyword arguments of `evaluate` and `evaluate_async`.

    Attributes:
        session: Where to record; a fresh session by default. A `Budget` in it tightens the limits.
        bus: A second dispatcher for the events, besides the session's own.
        deadline: When it must be over: with a time zone, and at least a second from now.
        budget: The limits of the evaluation.
        budget_tracker: A budget that is shared with other evaluations; what is used is added to it.
        run_context: Identifiers to run under; fresh ones by default.
        parse_output: Whether to read the final text as the prompt's output type; True by default.
    """

    session: Session | None
    bus: Dispatcher | None
    deadline: Deadline | datetime | None
    budget: Budget | None
    budget_tracker: BudgetTracker | None
    run_context: RunContext | None
    parse_output: bool


def check_options(options: EvaluateOptions) -> None:
    """Refuse a keyword that `evaluate` does not take.

    Raises:
        TypeError: Naming it and the existing keywords.
    """
    for name in options.keys() - EvaluateOptions.__annotations__.keys():
        known = ", ".join(EvaluateOptions.__annotations__)
        raise TypeError(f"evaluate() got an unexpected keyword argument {name!r}; it takes {known}")


@dataclass(frozen=True, slots=True)
class PromptResponse(Generic[OutputT]):
    """The result of an evaluation.

    Attributes:
        prompt_name: Name of the prompt; ``ns/key`` if it has no name of its own.
        output: The typed answer; None with ``parse_output=False``.
        text: The model's final text.
        usage: Tokens of the whole evaluation.
        cost: US dollars, exact; None if unknown.
        completion: ``verified``, ``unverified`` if the checker could not tell, or ``unchecked`` without a checker.
        completion_note: The checker's explanation, or why there is no verdict.
    """

    prompt_name: str
    output: OutputT | None
    text: str
    usage: TokenUsage
    cost: Decimal | None
    completion: CompletionState = "unchecked"
    completion_note: str = ""


class NestedAdapter(Protocol):
    """Evaluates prompts inside a run, with the run's own model, for checkers and feedback providers.

    `ProviderAdapter` has the same methods with the type of the answer. This protocol cannot name `Prompt`, whose module
    imports those of checkers and observers, so it takes any prompt.
    """

    def evaluate(self, prompt: Any, *params: Any, **options: Unpack[EvaluateOptions]) -> PromptResponse[Any]:
        """Evaluate a prompt and return the answer; see `ProviderAdapter.evaluate`."""
        ...

    async def evaluate_async(
        self, prompt: Any, *params: Any, **options: Unpack[EvaluateOptions]
    ) -> PromptResponse[Any]:
        """Evaluate a prompt; as `evaluate`, on the caller's loop."""
        ...


Purpose = Literal["evaluation", "verdict"]

MAX_NESTED: Final = timedelta(seconds=30)
"""How long a nested run may take by default."""

NESTED_BUDGET: Final = Budget(max_total_tokens=1000)
"""The default budget of a nested run that does not share its parent's."""

NESTED_LIMITS: Final = replace(UNLIMITED, max_turns=20, min_output_tokens=64, landing=None, verdict=None)
"""Ceilings of every nested run besides its time and its budget; a verdict is short, so short replies will do."""


@dataclass(frozen=True, slots=True)
class NestedExecutionConfig:
    """What nested runs of a template may do.

    Attributes:
        max_nested_duration: The longest that any nested run may take.
        default_nested_budget: The budget of one that does not share its parent's; None for no ceiling of its own.
        allow_nested_tools: Whether nested prompts may have tools.
        max_nesting_depth: The number of evaluations that may be nested in each other; 1 allows none inside another.
    """

    max_nested_duration: DurationLike = MAX_NESTED
    default_nested_budget: Budget | None = NESTED_BUDGET
    allow_nested_tools: bool = False
    max_nesting_depth: int = 1

    def __post_init__(self) -> None:
        """Refuse a permission or a budget of another type, and a depth below one.

        Raises:
            LimitsError: For a duration that is not one.
            ConfigurationError: For a depth below one, or a budget or a permission of the wrong type.
        """
        object.__setattr__(self, "max_nested_duration", duration(self.max_nested_duration, "max_nested_duration"))
        if type(self.allow_nested_tools) is not bool:
            raise ConfigurationError(f"allow_nested_tools={self.allow_nested_tools!r} must be True or False")
        if not is_whole(self.max_nesting_depth, 1):
            raise ConfigurationError(f"max_nesting_depth={self.max_nesting_depth!r} must be a whole number from 1 on")
        budget = cast("object", self.default_nested_budget)
        if not isinstance(budget, Budget | None):
            raise ConfigurationError(f"default_nested_budget={budget!r} must be Budget(...) or None")

    @property
    def longest(self) -> timedelta:
        """`max_nested_duration` as a length."""
        return duration(self.max_nested_duration, "max_nested_duration")


NESTED: Final = NestedExecutionConfig()
"""The rules of nested runs whose template sets none."""


KINDS: Final = (
    ("parent_session", Session, "context.session"),
    ("parent_run_context", RunContext | None, "context.run_context"),
    ("deadline", Deadline | datetime | None, "derive_nested_deadline(context.deadline, '15s')"),
    ("budget", Budget | None, "Budget(max_total_tokens=8_000)"),
    ("resource_overrides", Mapping, "{Clock: clock}"),
    ("config", NestedExecutionConfig, "NestedExecutionConfig(max_nested_duration='15s')"),
)
"""The types of the fields of a `NestedExecutionContext`, with an example of each."""


@dataclass(frozen=True, slots=True)
class NestedExecutionContext:
    """What a nested run may use of its parent.

    Attributes:
        parent_session: A live, read-only view of the parent's session, made here of what is given; it equals that
            session, and every write through it is refused. The nested run has a session of its own.
        parent_run_context: The parent's identifiers; needed only where no run writes to the session.
        deadline: When the nested run must be over; at the latest ``config.max_nested_duration`` from its start.
        budget: What it may spend, reserved from what the parent has left; None shares what the parent has.
        resource_overrides: The resources of its tools, by type: instances, or a `ResourceBinding` that makes one for
            it; a filesystem must be a read-only view.
        config: The rules of nested runs.
        purpose: A ``verdict`` may use the part of the parent's limits that is reserved for the check of its answer.
    """

    parent_session: Session
    parent_run_context: RunContext | None = None
    deadline: Deadline | datetime | None = None
    budget: Budget | None = None
    resource_overrides: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    config: NestedExecutionConfig = NESTED
    purpose: Purpose = "evaluation"

    def __post_init__(self) -> None:
        """Refuse what would let a nested run change its parent.

        Raises:
            ConfigurationError: For a value of the wrong type, a filesystem that can be written to, or a session among
                the overrides.
        """
        for name, kind, example in KINDS:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigurationError(f"{name}={value!r} of a nested run must be a value such as {example}")
        if not isinstance(self.parent_session, SessionView):
            object.__setattr__(self, "parent_session", SessionView(self.parent_session))
        if self.purpose not in get_args(Purpose):
            raise ConfigurationError(f"purpose={self.purpose!r} must be 'evaluation' or 'verdict'")
        if isinstance(self.deadline, datetime):
            object.__setattr__(self, "deadline", Deadline(self.deadline))
        overrides = dict(self.resource_overrides)
        for kind, value in overrides.items():
            check_override(kind, value)
            if isinstance(value, ResourceBinding):
                overrides[kind] = _held_to_reading(kind, value)
        object.__setattr__(self, "resource_overrides", MappingProxyType(overrides))

    @property
    def filesystem(self) -> Filesystem | None:
        """The read-only view among the overrides, or None."""
        found = [value for value in self.resource_overrides.values() if isinstance(value, Filesystem)]
        return found[0] if found else None


def check_override(kind: object, value: object) -> None:
    """Refuse a resource through which a nested run could change its parent.

    Raises:
        ConfigurationError: Naming it.
    """
    if isinstance(value, Session):
        raise ConfigurationError(
            "resource_overrides hands a session to the nested run, which could write to it; pass what it needs to know"
            " as variables of its prompt"
        )
    made = value.protocol if isinstance(value, ResourceBinding) else None
    writes = isinstance(value, Filesystem) and not isinstance(value, ReadOnlyFilesystem)
    if writes or (isinstance(made, type) and issubclass(made, Filesystem)):
        name = getattr(kind, "__name__", repr(kind))
        raise ConfigurationError(
            f"resource_overrides[{name}] is a filesystem that can be written to; give filesystem.read_only_view()"
        )


def _held_to_reading(kind: object, binding: Any) -> Any:
    """Return a binding whose factory's results are checked as instances are."""

    def make(resources: Resources) -> Any:
        made = binding.factory(resources)
        check_override(kind, made)
        return made

    return replace(binding, factory=make)


def refuse_tools(name: str, tools: Sequence[Tool], config: NestedExecutionConfig) -> None:
    """Refuse a nested prompt that has tools if the configuration does not allow them.

    Args:
        name: The prompt's name.
        tools: The prompt's tools.
        config: The rules of nested runs.

    Raises:
        ConfigurationError: Naming them.
    """
    if tools and not config.allow_nested_tools:
        named = ", ".join(tool.name for tool in tools)
        raise ConfigurationError(
            f"the nested prompt {name!r} has tools ({named}); pass what it needs to know as variables, or allow tools:"
            " nested_execution_config=NestedExecutionConfig(allow_nested_tools=True)"
        )


def checked_deadline(value: Deadline | datetime | None, clock: Clock) -> Deadline | None:
    """Check a deadline that a caller handed to ``evaluate`` (docs/specification.md, deadlines).

    Raises:
        PromptEvaluationError: With phase ``preflight`` if it is naive, past, or within the current second.
    """
    if value is None:
        return None
    try:
        deadline = value if isinstance(value, Deadline) else Deadline(value)
    except LimitsError as error:
        raise PromptEvaluationError(
            str(error), phase="preflight", provider_payload={"deadline": _written(value)}
        ) from error
    now = clock.now()
    if (now + deadline.remaining(clock)).replace(microsecond=0) <= now.replace(microsecond=0):
        written = deadline.at.isoformat()
        raise PromptEvaluationError(
            f"deadline {written} is not in the future (now {now.isoformat()}); give at least the next second",
            phase="preflight",
            provider_payload={"deadline": written},
        )
    return deadline.bound(clock)


def _written(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def derive_nested_deadline(
    parent_deadline: Deadline | datetime | None,
    max_nested_duration: DurationLike = MAX_NESTED,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Deadline:
    """Return when a nested run must be over: at its parent's deadline or after its own time, whichever is first.

    Args:
        parent_deadline: The parent's deadline, or None.
        max_nested_duration: The nested run's own time, from now.
        clock: The source of time.
    """
    parent = Deadline(parent_deadline) if isinstance(parent_deadline, datetime) else parent_deadline
    own = Deadline.after(duration(max_nested_duration, "max_nested_duration"), clock)
    return cast("Deadline", earliest(parent, own, clock=clock))


def nested_limits(deadline: Deadline | None, longest: timedelta, budget: Budget | None, clock: Clock) -> Limits:
    """Return the ceilings of a nested run: short, and without a last turn, because it only judges.

    Args:
        deadline: When it must be over, or None.
        longest: The longest that it may take in any case.
        budget: What it may spend; None for what its parent has left.
        clock: The source of time.
    """
    own = NESTED_LIMITS if budget is None else tighten(NESTED_LIMITS, budget.as_limits(), clock)
    ends = earliest(derive_nested_deadline(deadline, longest, clock=clock), own.start(clock), clock=clock)
    return replace(own, deadline=ends)


def nested_context(
    asking: Any, budget: Budget | None, max_duration: DurationLike | None, purpose: Purpose
) -> NestedExecutionContext:
    """Return the context of a nested evaluation that is made from the context of a checker or a feedback provider."""
    longest = max_duration or asking.nested.longest
    return NestedExecutionContext(
        parent_session=asking.session,
        parent_run_context=asking.run_context,
        deadline=derive_nested_deadline(asking.deadline, longest, clock=asking.session.clock),
        budget=budget,
        resource_overrides={} if asking.filesystem is None else {Filesystem: asking.filesystem},
        config=asking.nested,
        purpose=purpose,
    )
