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

from watchkeeper.core.budget import Budget, BudgetTracker
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline, earliest
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.ids import RunContext
from watchkeeper.core.limits import UNLIMITED, Limits, tighten
from watchkeeper.core.messages import Message, SystemMessage, UserMessage
from watchkeeper.core.model import CompletionState, OutputSchema
from watchkeeper.core.quantities import DurationLike, duration
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.output import OutputT
from watchkeeper.session.log import Dispatcher, event
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem, ReadOnlyFilesystem
from watchkeeper.tools.resources import ResourceBinding, Resources
from watchkeeper.tools.tool import Tool


class RenderedPrompt(msgspec.Struct, Generic[OutputT], frozen=True):
    """What one evaluation of a prompt starts from.

    Attributes:
        ns: Namespace of the prompt.
        key: Key of the prompt within its namespace.
        name: The prompt's name in logs and events.
        messages: The system message, if there is one, and one user message.
        tools: Tools on offer.
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
        prompt_name: Which prompt.
        deadline: The moment, normalised to UTC.
        session_id: Which session.
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
        prompt_name: Which prompt.
        messages: The first messages of the transcript.
        tool_names: Tools on offer.
        adapter: Who evaluates it.
        session_id: Which session.
        created_at: When.
    """

    prompt_name: str
    messages: tuple[Message, ...]
    tool_names: tuple[str, ...]
    adapter: str
    session_id: UUID
    created_at: datetime


@event("prompt_executed")
class PromptExecuted(msgspec.Struct, frozen=True):
    """An evaluation came to its end with an answer.

    Attributes:
        prompt_name: Which prompt.
        adapter: Who evaluated it.
        output: The typed answer, or None if it was not parsed.
        text: The model's final text.
        usage: Tokens of the whole evaluation.
        session_id: Which session.
        created_at: When.
        remaining_seconds: Time left to the deadline, or None without one.
    """

    prompt_name: str
    adapter: str
    output: Any
    text: str
    usage: TokenUsage
    session_id: UUID
    created_at: datetime
    remaining_seconds: float | None = None


class EvaluateOptions(TypedDict, total=False):
    """What `evaluate` and `evaluate_async` take by keyword, beside the prompt and its params; all may be left out.

    Attributes:
        session: Where to record; a fresh session by default. A `Budget` that it holds tightens the limits.
        bus: Where else events are published; the session's own dispatcher by default.
        deadline: When it must be over: aware, and not before the next second.
        budget: What it may spend.
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
        TypeError: Naming it and those that there are.
    """
    for name in options.keys() - EvaluateOptions.__annotations__.keys():
        known = ", ".join(EvaluateOptions.__annotations__)
        raise TypeError(f"evaluate() got an unexpected keyword argument {name!r}; it takes {known}")


@dataclass(frozen=True, slots=True)
class PromptResponse(Generic[OutputT]):
    """What an evaluation came to.

    Attributes:
        prompt_name: Which prompt.
        output: The typed answer; None if it was not to be parsed.
        text: The model's final text.
        usage: Tokens of the whole evaluation.
        cost: Money in US dollars, exact; None if unknown.
        completion: How the work stands: ``verified``, or ``unverified`` if its checker could not tell; ``unchecked``
            without a checker.
        completion_note: What the checker said, or why there is no verdict.
    """

    prompt_name: str
    output: OutputT | None
    text: str
    usage: TokenUsage
    cost: Decimal | None
    completion: CompletionState = "unchecked"
    completion_note: str = ""


class NestedAdapter(Protocol):
    """Evaluates prompts for those who judge or advise a run from within, with the run's own model.

    A `Prompt` names checkers and observers, and those name this class; so it takes any prompt. For everybody else
    `ProviderAdapter` has the same methods with the type of the answer.
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
"""How long a nested run may take unless somebody says otherwise."""

NESTED_BUDGET: Final = Budget(max_total_tokens=1000)
"""What one may spend unless somebody says otherwise, where its budget is not shared."""

NESTED_LIMITS: Final = replace(UNLIMITED, max_turns=20, min_output_tokens=64, landing=None, verdict=None)
"""Ceilings of every nested run beside its time and its budget; a verdict is short, so short replies are worth it."""


@dataclass(frozen=True, slots=True)
class NestedExecutionConfig:
    """What nested runs of a template may do.

    Attributes:
        max_nested_duration: The longest that any nested run may take.
        default_nested_budget: What one may spend where its budget is not shared with the parent's.
        allow_nested_tools: Whether nested prompts may have tools.
        max_nesting_depth: How many evaluations may stand inside each other; 1 allows none inside another.
    """

    max_nested_duration: DurationLike = MAX_NESTED
    default_nested_budget: Budget | None = NESTED_BUDGET
    allow_nested_tools: bool = False
    max_nesting_depth: int = 1

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            LimitsError: For a duration that cannot be.
            ConfigurationError: For a depth below one, or a budget or a permission that is none.
        """
        object.__setattr__(self, "max_nested_duration", duration(self.max_nested_duration, "max_nested_duration"))
        allowed, depth, budget = cast(
            "tuple[object, object, object]",
            (self.allow_nested_tools, self.max_nesting_depth, self.default_nested_budget),
        )
        if not isinstance(allowed, bool):
            raise ConfigurationError(f"allow_nested_tools={allowed!r} must be True or False")
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ConfigurationError(f"max_nesting_depth={depth!r} must be a whole number from 1 on")
        if not isinstance(budget, Budget | None):
            raise ConfigurationError(f"default_nested_budget={budget!r} must be Budget(...) or None")

    @property
    def longest(self) -> timedelta:
        """`max_nested_duration` as a length."""
        return duration(self.max_nested_duration, "max_nested_duration")


NESTED: Final = NestedExecutionConfig()
"""What nested runs may do where a template says nothing."""


KINDS: Final = (
    ("parent_run_context", RunContext | None, "context.run_context"),
    ("deadline", Deadline | datetime | None, "derive_nested_deadline(context.deadline, '15s')"),
    ("budget", Budget | None, "Budget(max_total_tokens=8_000)"),
    ("resource_overrides", Mapping, "{Clock: clock}"),
    ("config", NestedExecutionConfig, "NestedExecutionConfig(max_nested_duration='15s')"),
)
"""What the fields of a context hold, with an example of each."""


@dataclass(frozen=True, slots=True)
class NestedExecutionContext:
    """What a nested run is given of its parent.

    Attributes:
        parent_session: The parent's session; the nested run may read it and has one of its own.
        parent_run_context: The parent's identifiers where no run writes to the session; a run has its own.
        deadline: When the nested run must be over; at the latest ``config.max_nested_duration`` from its start.
        budget: What it may spend, set aside from what the parent has left; None shares what the parent has.
        resource_overrides: What its tools may ask for, by type: instances, or a `ResourceBinding` that makes one for
            it; a filesystem must be a read-only view.
        config: What nested runs may do.
        purpose: ``verdict`` may use what was kept back for the last word on a run.
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
            ConfigurationError: For a session that is none, a filesystem that can be written to, a session among the
                overrides, or a value that is of another kind than its field.
        """
        if not isinstance(cast("object", self.parent_session), Session):
            raise ConfigurationError(
                f"parent_session={self.parent_session!r} is no Session; give the context's session"
            )
        for name, kind, example in KINDS:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigurationError(f"{name}={value!r} of a nested run makes no sense; give for example {example}")
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
            "resource_overrides hands a session to the nested run, which could write to it; say what it is to know"
            " with the prompt's variables"
        )
    made = value.protocol if isinstance(value, ResourceBinding) else None
    writes = isinstance(value, Filesystem) and not isinstance(value, ReadOnlyFilesystem)
    if writes or (isinstance(made, type) and issubclass(made, Filesystem)):
        name = getattr(kind, "__name__", repr(kind))
        raise ConfigurationError(
            f"resource_overrides[{name}] is a filesystem that can be written to; give filesystem.read_only_view()"
        )


def _held_to_reading(kind: object, binding: Any) -> Any:
    """Return a binding whose factory is refused what would be refused as an instance."""

    def make(resources: Resources) -> Any:
        made = binding.factory(resources)
        check_override(kind, made)
        return made

    return replace(binding, factory=make)


def refuse_tools(name: str, tools: Sequence[Tool], config: NestedExecutionConfig) -> None:
    """Refuse a nested prompt with tools where nested prompts have none.

    Args:
        name: The prompt's.
        tools: What it offers.
        config: What nested runs may do.

    Raises:
        ConfigurationError: Naming them.
    """
    if tools and not config.allow_nested_tools:
        named = ", ".join(tool.name for tool in tools)
        raise ConfigurationError(
            f"the nested prompt {name!r} has tools ({named}); say what it is to know with its variables, or allow them:"
            " nested_execution_config=NestedExecutionConfig(allow_nested_tools=True)"
        )


def derive_nested_deadline(
    parent_deadline: Deadline | datetime | None,
    max_nested_duration: DurationLike = MAX_NESTED,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Deadline:
    """Return when a nested run must be over: with its parent, or after its own time.

    Args:
        parent_deadline: The parent's, if it has one.
        max_nested_duration: The nested run's own time, from now.
        clock: Where time comes from.
    """
    parent = Deadline(parent_deadline) if isinstance(parent_deadline, datetime) else parent_deadline
    own = Deadline(clock.now() + duration(max_nested_duration, "max_nested_duration"))
    return cast("Deadline", earliest(parent, own))


def nested_limits(deadline: Deadline | None, longest: timedelta, budget: Budget | None, clock: Clock) -> Limits:
    """Return the ceilings of a nested run: short, and without a last turn, because it only judges.

    Args:
        deadline: When it must be over, if somebody said so.
        longest: The longest that it may take in any case.
        budget: What it may spend; None for what its parent has left.
        clock: Where time comes from.
    """
    own = NESTED_LIMITS if budget is None else tighten(NESTED_LIMITS, budget.as_limits(), clock)
    ends = earliest(derive_nested_deadline(deadline, longest, clock=clock), own.start(clock))
    return replace(own, deadline=ends)


def nested_context(
    asking: Any, budget: Budget | None, max_duration: DurationLike | None, purpose: Purpose
) -> NestedExecutionContext:
    """Return what a nested evaluation is given by whoever asks for it: the context of a checker or of a provider."""
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
