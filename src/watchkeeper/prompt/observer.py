"""Observers and feedback providers of a template: protocols, triggers, escalation and configuration.

Both kinds of source look at a run while it goes on and return advice for the agent; they differ in what they are called
with. Each source has a trigger of its own. The context that a source is given is made for one round and is read-only.
Values that are read often are folds that the runtime keeps up to date (`Trajectory`, the severities by source), so a
look costs the same after ten thousand tool calls as after ten. A configuration that cannot work is refused here, when
the template is made, not in the middle of a run.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar, cast

import msgspec

from watchkeeper.accounting.budget import Budget, BudgetStatus
from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import FilesystemError, LimitsError, ObserverError
from watchkeeper.core.ids import RunContext
from watchkeeper.core.quantities import DurationLike, duration, is_number, is_share, is_text, is_whole
from watchkeeper.prompt.advice import (
    MAX_AGE_CALLS,
    SEVERITIES,
    SUSPICION,
    Advice,
    Assessment,
    Feedback,
    Severity,
    check_source_name,
)
from watchkeeper.prompt.evaluation import (
    NESTED,
    NestedAdapter,
    NestedExecutionConfig,
    NestedExecutionContext,
    nested_context,
)
from watchkeeper.prompt.evaluation import RenderedPrompt
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked, is_success
from watchkeeper.tools.filesystem import Filesystem, normal_path

M = TypeVar("M", bound=Callable[..., Any])


Trend = Literal["rising", "steady", "falling"]

COOL_DOWN: Final = 4
"""Looks after which an unchanged finding is told again, by default: 60 of them are told at most 5 times."""

ONE_IN: Final = 15
"""Tool calls for each question to a judge, on average, by default."""

TREND_SPAN: Final = 3
"""The number of pieces of advice of one source that a trend is read from."""


class _OfSession(msgspec.Struct, frozen=True):
    """The first positional argument of every context of a source: the session."""

    session: Session


class ObserverContext(_OfSession, frozen=True, kw_only=True):
    """What an observer may look at; all but the session is given by keyword.

    A msgspec struct, because every round makes one. The four fields that `FeedbackContext` takes by position stand
    first: a struct keeps the order of its base.

    Attributes:
        session: The run's session; read it, do not write to it.
        prompt: The run's rendered prompt: messages, tools, type of the answer; None outside of a run.
        deadline: When the work must be over, or None.
        adapter: Evaluates prompts with the run's own model, or None outside of a run.
        run_context: The run's identifiers, or None.
        budget: Limits and what is used of them, at this moment.
        trajectory: The newest tool calls, digested.
        now: This moment, in UTC.
        advice: The advice of other sources after this same call so far, in the order of the template.
        severities: By source, the severities of its newest advice, the oldest first.
        task: The text of the first messages that the agent was sent.
        filesystem: A read-only view of the run's files, or None.
        nested: The rules of nested evaluations.
        suspicions: What was suspected since a judge was last asked, the newest of each source.
    """

    prompt: RenderedPrompt[Any] | None = None
    deadline: Deadline | None = None
    adapter: NestedAdapter | None = None
    run_context: RunContext | None = None
    budget: BudgetStatus = BudgetStatus()
    trajectory: Trajectory = msgspec.field(default_factory=Trajectory)
    now: datetime | None = None
    advice: Sequence[Advice] = ()
    severities: Mapping[str, Sequence[Severity]] = msgspec.field(default_factory=dict[str, Sequence[Severity]])
    task: str = ""
    filesystem: Filesystem | None = None
    nested: NestedExecutionConfig = NESTED
    suspicions: Sequence[Advice] = ()

    @property
    def last_assessment(self) -> Assessment | None:
        """The newest assessment of any observer."""
        return self.session[Assessment].latest()

    @property
    def last_feedback(self) -> Feedback | None:
        """The newest feedback of any feedback provider."""
        return self.session[Feedback].latest()

    @property
    def assessments(self) -> tuple[Assessment, ...]:
        """The assessments of other observers after this same call, so that an observer may build on them."""
        return tuple(each for each in self.advice if isinstance(each, Assessment) and each.severity != SUSPICION)

    @property
    def tool_call_count(self) -> int:
        """Tool calls so far."""
        return len(self.session[ToolInvoked].all())

    def tool_calls_since_last_assessment(self) -> int:
        """Return the number of tool calls since `last_assessment`; all of them if there is none."""
        last = self.last_assessment
        return max(self.tool_call_count - (0 if last is None else last.call_index), 0)

    def recent_tool_calls(self, n: int) -> Sequence[ToolInvoked]:
        """Return the newest tool calls, the oldest of them first.

        Args:
            n: Maximum number of calls.
        """
        calls = self.session[ToolInvoked].all()
        return calls[max(len(calls) - max(n, 0), 0) :]

    def error_rate(self, window: int) -> float:
        """Return the share of failures among the newest calls; 0.0 if there are none.

        Args:
            window: Number of calls to look at.
        """
        recent = self.recent_tool_calls(window)
        return sum(not is_success(call) for call in recent) / len(recent) if recent else 0.0

    def trend(self, name: str) -> Trend:
        """Return whether the severity of a source's newest advice rises or falls."""
        history = [SEVERITIES.index(severity) for severity in list(self.severities.get(name, ()))[-TREND_SPAN:]]
        if len(history) < 2 or history[0] == history[-1]:
            return "steady"
        return "rising" if history[-1] > history[0] else "falling"


class FeedbackContext(ObserverContext, frozen=True):
    """What a feedback provider may look at: the same as an observer, and the context of a nested evaluation.

    Session, prompt, deadline, adapter and identifiers may be given by position, in this order
    (docs/specification.md, nested execution); everything else is given by keyword.

    Attributes:
        prompt: The run's rendered prompt: messages, tools, type of the answer; None outside of a run.
        deadline: When the work must be over, or None.
        adapter: Evaluates prompts with the run's own model, or None outside of a run.
        run_context: The run's identifiers, or None.
    """

    prompt: RenderedPrompt[Any] | None = None
    deadline: Deadline | None = None
    adapter: NestedAdapter | None = None
    run_context: RunContext | None = None

    @property
    def last_assessment(self) -> Assessment | None:
        """What an observer or a feedback provider said last; feedback is given with its provider as the observer."""
        last, said = self.session[Assessment].latest(), self.last_feedback
        if said is None or (last is not None and last.call_index > said.call_index):
            return last
        return Assessment(*(getattr(said, name) for name in Feedback.__slots__))

    def create_nested_context(
        self, *, budget: Budget | None = None, max_duration: DurationLike | None = None
    ) -> NestedExecutionContext:
        """Return the context of a nested evaluation.

        Args:
            budget: The most that it may spend, reserved from what the run has left; by default that of the template's
                `NestedExecutionConfig`, so that feedback does not use up the budget of the work.
            max_duration: The longest that it may take; by default that of the same configuration.
        """
        return nested_context(self, budget or self.nested.default_nested_budget, max_duration, "evaluation")


EscalationAction = Literal["stop", "switch_model", "call"]


ON_LOOP: Final = "_watchkeeper_on_loop"


def on_loop(method: M) -> M:
    """Have a plain ``should_run``, ``observe`` or ``provide`` called on the event loop instead of on a worker thread.

    Use it for methods that only read the context and take microseconds: handing them to a thread would take longer.
    Nothing can interrupt such a method; a source that exceeds its time limit there is off for the rest of the run. It
    may still run on a thread where one is needed anyway, for an earlier source or because ``should_run`` is not marked.

    Args:
        method: The function, in its class.

    Returns:
        The same function, marked.

    Raises:
        ObserverError: If it is ``async def``, and so is called on the loop anyway, or if it is not a function.
    """
    function: object = getattr(method, "__func__", method)
    name = getattr(function, "__qualname__", repr(method))
    if inspect.iscoroutinefunction(function):
        raise ObserverError(f"@on_loop means nothing for {name}: it is `async def`, and is asked on the loop anyway")
    if not inspect.isfunction(function):
        raise ObserverError(f"@on_loop marks a function in its class, as in `@on_loop def should_run(...)`, not {name}")
    setattr(function, ON_LOOP, True)
    return method


def is_on_loop(method: Callable[..., Any]) -> bool:
    """Return whether a method is plain and marked with `on_loop`; an async wrapper of a marked one is not."""
    return getattr(method, ON_LOOP, None) is True and not inspect.iscoroutinefunction(method)


class TrajectoryObserver(Protocol):
    """Assesses how a run is going; its methods may be sync (run on a worker thread, or see `on_loop`) or async."""

    @property
    def name(self) -> str:
        """Unique among the sources of a template."""
        ...

    def should_run(self, session: Session, *, context: ObserverContext) -> bool | Awaitable[bool]:
        """Whether there may be something to say; asked only when the trigger fired."""
        ...

    def observe(
        self, session: Session, *, context: ObserverContext
    ) -> Assessment | Awaitable[Assessment | None] | None:
        """Look at the run and return an assessment; None for no assessment."""
        ...


class FeedbackProvider(Protocol):
    """Gives feedback on how a run is going: a `TrajectoryObserver` that is not handed the session."""

    @property
    def name(self) -> str:
        """Unique among the sources of a template."""
        ...

    def should_run(self, *, context: FeedbackContext) -> bool | Awaitable[bool]:
        """Whether there may be something to say; asked only when the trigger fired."""
        ...

    def provide(self, *, context: FeedbackContext) -> Feedback | Awaitable[Feedback | None] | None:
        """Look at the run and return feedback; None for no feedback."""
        ...


@dataclass(frozen=True, slots=True)
class ObserverTrigger:
    """When a source is asked; any condition is enough.

    Attributes:
        every_n_calls: After this number of tool calls since its last advice.
        after_consecutive_errors: After this number of failures in a row; asked again only after more failures.
        every_n_seconds: After this number of seconds since its last advice; at once if it has given none.
        on_every_call: After every call; the observer decides.
        at_limit_share: When this share of any limit is used: one or several between 0 and 1; each once for each limit.
        when_file_exists: When a file of this path appears in the run's filesystem; once for each time it appears.
        on_suspicion: When another source has raised a suspicion since this one was last asked: for judges.
        at_most_one_in: It is asked at most once in so many tool calls on average, whatever condition holds, and not
            twice within two thirds of them; 15 by default with ``on_suspicion``, else not bounded.
    """

    every_n_calls: int | None = None
    after_consecutive_errors: int | None = None
    every_n_seconds: float | None = None
    on_every_call: bool = False
    at_limit_share: float | tuple[float, ...] | None = None
    when_file_exists: str | None = None
    on_suspicion: bool = False
    at_most_one_in: int | None = None

    def __post_init__(self) -> None:
        """Refuse conditions that could never hold, or that would always hold by mistake.

        Raises:
            ObserverError: Naming the condition and its value.
        """
        for name in ("every_n_calls", "after_consecutive_errors", "at_most_one_in"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        seconds = self.every_n_seconds
        if seconds is not None and (not is_number(seconds) or seconds <= 0):
            raise ObserverError(f"every_n_seconds={seconds!r} must be a finite number above 0")
        for name in ("on_every_call", "on_suspicion"):
            if getattr(self, name) not in (True, False):
                raise ObserverError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.at_limit_share is not None:
            object.__setattr__(self, "at_limit_share", _shares(self.at_limit_share))
        if self.when_file_exists is not None:
            _check_file(self.when_file_exists)
        if self.on_suspicion and self.at_most_one_in is None:
            object.__setattr__(self, "at_most_one_in", ONE_IN)
        if not (self.conditions or self.on_every_call):
            raise ObserverError(
                "a trigger without a condition never fires; give on_every_call=True, every_n_calls=10 or another"
            )

    @property
    def conditions(self) -> tuple[str, ...]:
        """Names of the conditions that are set, except `on_every_call`."""
        names = ("every_n_calls", "after_consecutive_errors", "every_n_seconds", "at_limit_share", "when_file_exists")
        return (*(name for name in names if getattr(self, name) is not None), *["on_suspicion"][: self.on_suspicion])

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of `at_limit_share`, the smallest first."""
        given = self.at_limit_share
        return given if isinstance(given, tuple) else () if given is None else (given,)


FeedbackTrigger = ObserverTrigger
"""Another name of `ObserverTrigger`, for feedback providers."""


@dataclass(frozen=True, slots=True)
class Escalation:
    """What the runtime does when the agent does not follow advice.

    Attributes:
        after: The number of pieces of advice in a row, of at least ``severity``, after which it acts.
        severity: The least severity that counts.
        action: ``stop`` ends the run with a landing turn, ``switch_model`` goes on with ``model``, ``call`` calls the
            function ``call``.
        call: For ``call``: a function of the newest advice; a sync one runs on a worker thread.
        model: For ``switch_model``: the model string or `Model` to go on with.
    """

    after: int = 3
    severity: Severity = "warning"
    action: EscalationAction = "stop"
    call: Callable[[Advice], Any] | None = None
    model: Any = None

    def __post_init__(self) -> None:
        """Refuse an invalid escalation.

        Raises:
            ObserverError: Naming the field and its value.
        """
        _check_count("Escalation.after", self.after)
        if self.severity not in SEVERITIES:
            raise ObserverError(f"Escalation.severity={self.severity!r} must be one of {', '.join(SEVERITIES)}")
        needs = {"stop": None, "switch_model": "model", "call": "call"}
        if self.action not in tuple(needs):  # a list could not be looked up
            raise ObserverError(f"Escalation.action={self.action!r} must be one of {', '.join(needs)}")
        needed = needs[self.action]
        for name in ("call", "model"):
            if (getattr(self, name) is not None) != (name == needed):
                rule = "is needed for" if name == needed else "means nothing for"
                raise ObserverError(f"Escalation.{name} {rule} action={self.action!r}")
        if self.call is not None and not callable(self.call):
            raise ObserverError(f"Escalation.call={self.call!r} cannot be called")
        model: object = self.model
        if model is not None and not is_text(model) and not hasattr(model, "turn"):
            raise ObserverError(f"Escalation.model={model!r} must be a model string such as 'openai:gpt-5', or a Model")


class Configured:
    """What `ObserverConfig` and `FeedbackProviderConfig` have in common."""

    __slots__ = ()

    trigger: ObserverTrigger
    max_age_calls: int
    time_limit: DurationLike
    escalate: Escalation | None
    cool_down: int

    def __post_init__(self) -> None:
        """Refuse a source that could not be asked.

        Raises:
            ObserverError: Naming what is wrong with it.
        """
        check_source(self)

    @property
    def source(self) -> Any:
        """The observer or provider."""
        return self.observer if isinstance(self, ObserverConfig) else cast("FeedbackProviderConfig", self).provider

    @property
    def name(self) -> str:
        """Its name."""
        name: str = self.source.name
        return name

    @property
    def limit_seconds(self) -> float:
        """The time limit in seconds."""
        return duration(self.time_limit, "time_limit").total_seconds()


@dataclass(frozen=True, slots=True)
class ObserverConfig(Configured):
    """A trajectory observer in a template.

    Attributes:
        observer: The observer.
        trigger: When it is asked.
        max_age_calls: After this number of later tool calls, an undelivered assessment is dropped.
        time_limit: What one look may take; an observer that takes longer is off for the rest of the run.
        escalate: What happens when the agent does not follow its advice, or None.
        cool_down: The agent is told an unchanged finding again after so many looks that found it, then after twice as
            many, and so on; 0 tells it at every look. Of limits (``about_limits``) it is always told.
    """

    observer: TrajectoryObserver
    trigger: ObserverTrigger
    max_age_calls: int = MAX_AGE_CALLS
    time_limit: DurationLike = "2s"
    escalate: Escalation | None = None
    cool_down: int = COOL_DOWN


@dataclass(frozen=True, slots=True)
class FeedbackProviderConfig(Configured):
    """A feedback provider in a template; all else as in `ObserverConfig`.

    Attributes:
        provider: The feedback provider.
        trigger: When it is asked.
        max_age_calls: After this number of later tool calls, undelivered feedback is dropped.
        time_limit: What one look may take; longer by default, because providers may ask a model.
        escalate: What happens when the agent does not follow its feedback, or None.
        cool_down: When unchanged feedback is told again.
    """

    provider: FeedbackProvider
    trigger: FeedbackTrigger
    max_age_calls: int = MAX_AGE_CALLS
    time_limit: DurationLike = "60s"
    escalate: Escalation | None = None
    cool_down: int = COOL_DOWN


SourceConfig = ObserverConfig | FeedbackProviderConfig


def check_source(config: Configured) -> None:
    """Refuse a source that could not be asked.

    Raises:
        ObserverError: Naming what is wrong with it.
    """
    kind, source = type(config).__name__, cast("object", config.source)
    if isinstance(source, type):
        raise ObserverError(f"{kind}: {source.__name__} is a class; give an instance, {source.__name__}()")
    try:
        name: object = getattr(source, "name", None)
    except Exception as error:
        raise ObserverError(f"{kind}: the name of {reprlib.repr(source)} cannot be read: {error!r}") from error
    check_source_name(name, f"{kind}({reprlib.repr(source)})")
    is_observer = isinstance(config, ObserverConfig)
    methods = ("should_run", "observe" if is_observer else "provide")
    for method in methods:
        if not callable(getattr(source, method, None)):
            raise ObserverError(f"{kind}: {name!r} has no method {method}()")
    for method in methods:
        _check_signature(getattr(source, method), f"{kind}: {name!r}", method, is_observer=is_observer)
    if not isinstance(config.trigger, ObserverTrigger):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ObserverError(f"{kind}: trigger={config.trigger!r} of {name!r} must be ObserverTrigger(...)")
    if config.escalate is not None and not isinstance(config.escalate, Escalation):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ObserverError(f"{kind}: escalate={config.escalate!r} of {name!r} must be Escalation(...)")
    _check_count(f"max_age_calls of {name!r}", config.max_age_calls)
    if not is_whole(config.cool_down, 0):
        raise ObserverError(f"cool_down={config.cool_down!r} of {name!r} must be a whole number, 0 or more")
    try:
        duration(config.time_limit, f"time_limit of {name!r}")
    except LimitsError as error:
        raise ObserverError(str(error)) from error


def check_distinct(configs: tuple[SourceConfig, ...]) -> None:
    """Refuse two sources of the same name, because the log and the agent tell advice apart by it.

    Raises:
        ObserverError: Naming it.
    """
    names = [config.name for config in configs]
    for name in names:
        if names.count(name) > 1:
            raise ObserverError(f"two observers or feedback providers are called {name!r}; give each a name of its own")


def _check_signature(method: Callable[..., Any], whose: str, name: str, *, is_observer: bool) -> None:
    """Refuse a method that cannot be called as the engine calls it."""
    given, said = ((None,), "self, session, *, context") if is_observer else ((), "self, *, context")
    try:
        inspect.signature(method).bind(*given, context=None)
    except TypeError as error:
        raise ObserverError(f"{whose} has a {name}() that cannot be called: {error}; write {name}({said})") from error
    except ValueError:
        return  # a method written in C need not have a signature


def _check_file(path: object) -> None:
    if not isinstance(path, str):
        raise ObserverError(f"when_file_exists={path!r} must be a text: a path from the root of the run's files")
    try:
        normal = normal_path(path.strip())
    except FilesystemError as error:
        raise ObserverError(f"when_file_exists: {error}") from error
    if not normal:
        raise ObserverError(f"when_file_exists={path!r} names no file; give a path")


def _shares(given: object) -> tuple[float, ...] | None:
    """Return the shares in order, each once."""
    if isinstance(given, list | set | frozenset):
        raise ObserverError(f"at_limit_share={given!r} must be one share or a tuple of them, as (0.5, 0.8)")
    shares = cast("tuple[float, ...]", given if isinstance(given, tuple) else (given,))
    for share in shares:
        if not is_share(share, whole=True):
            raise ObserverError(f"at_limit_share={share!r} must be above 0 and at most 1; 0.8 means 80 %")
    return tuple(sorted(set(shares))) or None


def _check_count(name: str, value: object) -> None:
    if not is_whole(value, 1):
        raise ObserverError(f"{name}={value!r} must be a whole number of at least 1")
