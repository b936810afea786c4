"""A run from start to end: the prompt's messages, the loop, the result. Every way to run ends in `execute`.

`Adapter.evaluate` is the simplest way, for a model and a prompt: it takes a prompt, returns a response, and raises a
stop as an exception. It uses the same loop, gate and log as `run`, without landing and without defaults: only limits
that the caller gives are in force. `children_outside_runs` starts children outside of any run, for judges that are
asked before or after a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar, Unpack

from watchkeeper.children.child import Children, Family
from watchkeeper.children.innermost import session_here
from watchkeeper.children.inside import surrounding
from watchkeeper.children.nested_adapter import response_of
from watchkeeper.children.spending import spending_on_record
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.accounting.ledger import usage_at_worst
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, Deadline
from watchkeeper.core.errors import ConfigurationError, LimitsError, Stop, StoreError, UnpricedModelError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource, RunContext, root_run_context
from watchkeeper.accounting.limits import UNLIMITED, Limits, tighten
from watchkeeper.core.messages import Message, SystemMessage, Transcript, UserMessage
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.usage import FREE, ModelPrice
from watchkeeper.kernel.turn_machine import End
from watchkeeper.loop.driver import Drive, drive
from watchkeeper.loop.resume import Recorded, Resumed, digests_of, result_on_record
from watchkeeper.prompt.evaluation import PromptDeadlineAssigned, PromptExecuted, PromptRendered
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import RunEnded, RunOpened, RunStarted
from watchkeeper.runtime.file_record import opened as files_opened
from watchkeeper.runtime.parking import Park
from watchkeeper.runtime.plan import Durable, PricedModel, RunPlan, RunScope, plan_for, refuse_model_switches
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.result import RunResult, broken_off, log_end, result_of, transcript_of
from watchkeeper.runtime.shared_budget import gate_outside_runs
from watchkeeper.runtime.tracing import traced
from watchkeeper.runtime.user_code import booked
from watchkeeper.session.session import Session
from watchkeeper.tools.isolation.worker import refuse_while_importing
from watchkeeper.prompt.evaluation import (
    NESTED,
    NESTED_LIMITS,
    EvaluateOptions,
    checked_deadline,
    NestedExecutionConfig,
    PromptResponse,
    check_options,
)
from watchkeeper.runtime.used_before import NOTHING_BEFORE, UsedBefore


OutputT = TypeVar("OutputT")


async def execute(
    plan: RunPlan[OutputT],
    scope: RunScope,
    drive: Drive = drive,
    resumed: Resumed | None = None,
    opened: Callable[[], dict[str, Any]] | None = None,
) -> RunResult[OutputT]:
    """Run to the end and return the result; the caller that opened the gate closes it.

    Args:
        plan: The inputs of the run.
        scope: Session, gate, clock and files of the run.
        drive: Does the work between the events of the run's start and its end; the loop by default.
        resumed: What an earlier process has put on record of this run, or None for a new one.
        opened: Returns what `RunOpened` says of this run beside its digests; None for a run that does not go on.

    Raises:
        ConfigurationError: If the plan cannot work, before anything is spent.
        CancelledError: If the task is cancelled; the run's end is recorded on the log in this case, too.
    """
    refuse_while_importing()
    with traced(scope, plan):
        return await _executed(plan, scope, drive, resumed, opened)


async def _executed(
    plan: RunPlan[OutputT],
    scope: RunScope,
    drive: Drive,
    resumed: Resumed | None,
    opened: Callable[[], dict[str, Any]] | None,
) -> RunResult[OutputT]:
    began, earlier = scope.clock.monotonic(), NOTHING_BEFORE
    recorded = None
    if resumed is not None and resumed.exhausted is not None:
        return _as_it_ended(plan, scope, resumed, resumed.exhausted)
    if resumed is None:
        started = _announce(plan, scope)
        transcript = _opening(plan, scope)
    else:
        began, earlier = began - resumed.worked_seconds, resumed.earlier
        recorded, started = resumed.recorded, resumed.recorded.started
        transcript = recorded.opening
        if resumed.forked:
            started = _announce(plan, scope, recorded)
        else:
            again = resumed.event(scope.gate, scope.gate.limits, digests_of(plan), scope.clock.now(), item=scope.item)
            scope.record(again)
    try:
        with spending_on_record(scope), left_is_booked(scope.gate):
            if opened is not None and (resumed is None or resumed.forked) and scope.durable is not None:
                await _put_on_record(plan, scope, scope.durable, opened())
            ending = await drive(plan, scope, transcript, execute, recorded)
            await booked(scope.gate)
    except BaseException as error:
        _close(plan, scope, End(stop=broken_off(error)), None, began, earlier)
        raise
    end = ending.end
    ended = _close(plan, scope, end, ending.turns, began, earlier, ending.denied)
    return result_of(
        started,
        ended,
        limits=scope.gate.limits,
        session=scope.session,
        completion_note=end.explanation,
        error=ending.error if end.stop is not None else None,
        answered_by=ending.answered_by,
    )


@contextmanager
def left_is_booked(gate: ExecutionContext) -> Generator[None]:
    """Close a gate if the block is broken off, and book what its code has left under way: nobody waits for that."""
    try:
        yield
    except BaseException:
        gate.close()
        gate.book_left()
        raise


def in_force(limits: Limits, session: Session, clock: Clock, late: float = 0.0) -> Limits:
    """Return the limits, tightened by a `Budget` that is in the session's state.

    Args:
        limits: The limits that the caller gave.
        session: The session whose state may hold a `Budget`.
        clock: The clock of the run.
        late: How many seconds ago the caller called.

    Raises:
        LimitsError: If the deadline was over when the caller called.
    """
    budget = session[Budget].latest()
    if budget is not None:
        limits = tighten(limits, budget.as_limits(), clock)
    deadline = limits.deadline
    if isinstance(deadline, Deadline) and deadline.remaining(clock) + timedelta(seconds=late) <= timedelta(0):
        raise LimitsError(f"the deadline {deadline.at.isoformat()} is over already; give a later one or a length")
    return limits


def _announce(plan: RunPlan[Any], scope: RunScope, forked: Recorded | None = None) -> RunStarted:
    """Record the start of the run, and its deadline; ``forked``: the record from which it goes on."""
    gate, now = scope.gate, scope.clock.now()
    started = RunStarted(
        run_context=scope.run_context,
        prompt_name=plan.prompt.name,
        model=plan.model.label,
        limits=gate.limits.describe(),
        deadline=gate.deadline.at if gate.deadline else None,
        started_at=now,
        item=scope.item,
        item_index=scope.item_index,
        parent_run_id=scope.parent_run_id,
        fallback=tuple(each.label for each in plan.fallback),
        apart=scope.apart,
        limit_values=gate.limits,
        forked_from=None if forked is None else forked.started.run_context.run_id,
        forked_at=0 if forked is None else forked.after,
    )
    scope.record(started)
    if gate.deadline is not None:
        scope.record(PromptDeadlineAssigned(plan.prompt.name, gate.deadline.at, scope.session.session_id, now))
    return started


def _as_it_ended(plan: RunPlan[Any], scope: RunScope, resumed: Resumed, stop: Stop) -> RunResult[Any]:
    """Return how a run ended that would stop at the same limit again; nothing is recorded.

    Raises:
        ConfigurationError: If it is made of other things than it was, and that is not accepted.
    """
    resumed.changes(digests_of(plan))
    result = result_on_record(scope.session.log, scope.session)
    assert result is not None
    return replace(result, stop=stop)


async def _put_on_record(plan: RunPlan[Any], scope: RunScope, durable: Durable, more: dict[str, Any]) -> None:
    """Put on record what another process needs to go on with the run.

    Raises:
        ConfigurationError: If the run is to park, and cannot be resumed.
    """
    facts: dict[str, Any] = {"origin": {}, "params": (), "variables": {}, "not_resumable": "", **more}
    files, run_id, now = None, scope.run_context.run_id, scope.clock.now()
    if not facts["not_resumable"]:
        files, facts["not_resumable"] = files_opened(scope.filesystem, now)
    refuse_to_park(plan.park, facts["not_resumable"])
    scope.record(RunOpened(run_id=run_id, digests=digests_of(plan), created_at=now, park=plan.park, **facts))
    with suppress(StoreError):  # the first call waits for the store, and does not begin without it
        if files is not None:
            await durable.begin_call(run_id, files)
        await durable.barrier()


def refuse_to_park(park: Park | None, not_resumable: str) -> None:
    """Refuse to park a run with which nobody could go on.

    Raises:
        ConfigurationError: If it is to park.
    """
    if park is not None and not_resumable:
        raise ConfigurationError(f"the run cannot park, because it cannot be resumed: {not_resumable}")


def _opening(plan: RunPlan[Any], scope: RunScope) -> Transcript:
    """Add the prompt to an earlier conversation of the session: that is what the run begins with."""
    transcript = transcript_of(scope.session.log)
    messages = _continued(plan.prompt.messages, transcript) if len(transcript) else plan.prompt.messages
    for message in messages:
        transcript.append(message)
    scope.record(
        PromptRendered(
            prompt_name=plan.prompt.name,
            messages=messages,
            tool_names=tuple(tool.name for tool in plan.prompt.tools),
            adapter=plan.model.provider,
            session_id=scope.session.session_id,
            created_at=scope.clock.now(),
            run_context=scope.run_context,
        )
    )
    return transcript


def _continued(messages: tuple[Message, ...], earlier: Transcript) -> tuple[Message, ...]:
    """Return the messages to append. A conversation has one system message, the first; other system messages become
    user messages.
    """
    return tuple(
        UserMessage.of(message.text) if isinstance(message, SystemMessage) else message
        for message in messages
        if not (isinstance(message, SystemMessage) and message == earlier[0])
    )


def _close(
    plan: RunPlan[Any],
    scope: RunScope,
    end: End,
    turns: int | None,
    began: float,
    earlier: UsedBefore,
    denied: int = 0,
) -> RunEnded:
    """Record the end: the prompt's outcome, then the run's, with the time that was left."""
    gate, now = scope.gate, scope.clock.now()
    usage = usage_at_worst(gate.account, gate.ledger)
    took = timedelta(seconds=scope.clock.monotonic() - began).total_seconds()
    remaining = gate.deadline.remaining(scope.clock).total_seconds() if gate.deadline else None
    if end.stop is None:
        scope.record(
            PromptExecuted(
                prompt_name=plan.prompt.name,
                adapter=plan.model.provider,
                output=end.output,
                text=end.text,
                usage=usage.tokens,
                session_id=scope.session.session_id,
                created_at=now,
                remaining_seconds=remaining,
                run_context=scope.run_context,
            )
        )
    ended = RunEnded(
        run_id=scope.run_context.run_id,
        stop=end.stop,
        output=end.output,
        partial=end.partial,
        text=end.text,
        verdict=end.verdict,
        usage=usage,
        duration_ms=took * 1000,
        remaining_seconds=remaining,
        ended_at=now,
        turns=turns,
        denied=denied,
        earlier=earlier,
        run_context=scope.run_context,
    )
    scope.record(ended)
    log_end(
        "run.completed" if end.stop is None else "run.stopped",
        {"run_id": str(scope.run_context.run_id)},
        plan.prompt.name,
        end.stop,
        end.verdict,
        usage + earlier.usage,
        duration_seconds=round(took + earlier.seconds, 3),
        remaining_seconds=None if remaining is None else round(remaining, 3),
    )
    return ended


HARD_STOPS: Final = replace(UNLIMITED, landing=None)
"""The limits of an evaluation for which the caller gives none."""


def _checked_model(model: object) -> Model:
    if isinstance(model, Model):
        return model
    way = f"; make one: watchkeeper.app.models.model_from({model!r})" if isinstance(model, str) else ""
    raise ConfigurationError(f"Adapter needs a Model, not {model!r}{way}")


class Adapter:
    """Evaluates prompts with one model."""

    __slots__ = ("_clock", "_ids", "_price", "_rng", "_settings", "model")

    def __init__(
        self,
        model: Model,
        *,
        settings: ModelSettings = ModelSettings(),
        price: ModelPrice | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
        rng: random.Random | None = None,
    ) -> None:
        """Wrap a model.

        Args:
            model: The model that answers.
            settings: The settings of its requests.
            price: What it charges; needed under a cost ceiling unless the model is free.
            clock: Time.
            ids: Identifiers.
            rng: Randomness for backoff.

        Raises:
            ConfigurationError: If that is no model.
        """
        self.model = _checked_model(model)
        self._settings = settings
        self._price = price or (FREE if model.free else None)
        self._clock = clock
        self._ids = ids
        self._rng = rng or random.Random()

    @property
    def name(self) -> str:
        """The provider's name, as events carry it."""
        return self.model.provider

    @property
    def priced(self) -> PricedModel:
        """Its model with price and settings, for a run that is to use the same model."""
        return PricedModel(self.model, self._price, self._settings)

    def evaluate(
        self, prompt: Prompt[OutputT], *params: Any, **options: Unpack[EvaluateOptions]
    ) -> PromptResponse[OutputT]:
        """Evaluate a prompt and wait for the response; see `evaluate_async`."""
        check_options(options)
        deadline = checked_deadline(options.get("deadline"), self._clock)  # here, because the loop may be late
        return PORTAL.call(self._evaluate(prompt, params, options, deadline), "evaluate_async")

    async def evaluate_async(
        self, prompt: Prompt[OutputT], *params: Any, **options: Unpack[EvaluateOptions]
    ) -> PromptResponse[OutputT]:
        """Evaluate a prompt.

        Args:
            prompt: What to evaluate.
            *params: Dataclass values that fill its placeholders, beside those that are bound already.
            **options: See `EvaluateOptions`.

        Raises:
            PromptEvaluationError: Phase ``preflight`` for an invalid deadline, else the error that ended the
                evaluation: DeadlineExceededError, BudgetExceededError, ThrottleError, OutputParseError or another
                ProviderError.
            ConfigurationError: If the prompt, the tools or the budget cannot work.
        """
        check_options(options)
        deadline = checked_deadline(options.get("deadline"), self._clock)
        return await self._evaluate(prompt, params, options, deadline)

    async def _evaluate(
        self, prompt: Prompt[OutputT], params: tuple[Any, ...], options: EvaluateOptions, deadline: Deadline | None
    ) -> PromptResponse[OutputT]:
        """Evaluate, once the options are checked; a deadline that is over by now ends it as any deadline does."""
        bus, tracker = options.get("bus"), options.get("budget_tracker")
        given = options.get("session")
        session = Session(clock=self._clock, ids=self._ids) if given is None else session_here(given)
        is_given = session is given
        limits = self._limits(session, deadline, options.get("budget"), tracker)
        around = surrounding()
        with ExitStack() as stack:
            if given is not None and not is_given:
                stack.callback(session.close)
            if bus is not None and bus is not session.dispatcher:
                stack.callback(session.dispatcher.subscribe_all(bus.publish))
            gate = stack.enter_context(gate_outside_runs(limits, tracker, session, self._clock, self._ids))
            refuse_unready(prompt.template, limits)
            models = self._child_models(prompt.template, limits)
            bound = prompt.bind(*params) if params else prompt
            plan = self._plan(bound, gate, options.get("parse_output", True), models)
            scope = RunScope(
                session,
                gate,
                options.get("run_context") or around.run_context(session.session_id, self._ids),
                self._clock,
                self._ids,
                self._rng,
                parent_run_id=around.parent_run_id,
                depths=around.depths,
                deepest=around.deepest,
                watch=None if around.scope is None or is_given else around.scope.watch,
                durable=None if around.scope is None or is_given else around.scope.durable,
            )
            if scope.watch is not None:
                stack.callback(scope.watch(session, scope.run_context.run_id))
            work = partial(execute, plan, scope)
            result = await around.recorded(scope, plan.prompt.name, plan.model.label, work, admitted=False)
        return response_of(result, gate.deadline)

    def _limits(
        self, session: Session, deadline: Deadline | None, budget: Budget | None, tracker: BudgetTracker | None
    ) -> Limits:
        """Return the limits of this evaluation: for each limit the tightest that applies.

        Raises:
            UnpricedModelError: If there is a cost ceiling, and the model's price is unknown.
        """
        limits = HARD_STOPS
        for ceilings in (Budget(deadline=deadline) if deadline else None, budget, session[Budget].latest()):
            if ceilings is not None:
                limits = tighten(limits, ceilings.as_limits(), self._clock)
        priced = limits.max_cost_nanos is not None or (tracker is not None and tracker.budget.max_cost_usd is not None)
        if priced and self._price is None:
            raise UnpricedModelError(
                f"a cost ceiling is set, but there is no price for {self.model.name!r}; "
                "give one: Adapter(model, price=ModelPrice.per_million(input_usd, output_usd))"
            )
        return limits

    def _child_models(self, template: PromptTemplate[Any], limits: Limits) -> Mapping[str, PricedModel]:
        """Return the models that the template's sections name for subagents, by ``provider:name``.

        Raises:
            ConfigurationError: For a model string, because only `run` makes models.
            UnpricedModelError: If there is a cost ceiling, and the price of such a model is unknown.
        """
        found: dict[str, PricedModel] = {}
        for named in template.models:
            model = self.priced
            if isinstance(named, str):
                if named != model.label:
                    raise ConfigurationError(
                        f"a subagent of {template.name!r} has the model {named!r}, which only run() makes; give it the"
                        f" model itself: watchkeeper.models.model_from({named!r})"
                    )
            elif not isinstance(named, Model):
                continue  # an adapter of a judge, which has a model and a price of its own
            elif named is not self.model:
                model = PricedModel(named, FREE if named.free else None)
            if limits.max_cost_nanos is not None and model.price is None:
                raise UnpricedModelError(
                    f"a cost ceiling is set, but there is no price for {model.label!r}, the model of a subagent of"
                    f" {template.name!r}; use run(), which knows prices and takes prices="
                )
            found[model.label] = model
        return found

    def _plan(
        self,
        prompt: Prompt[OutputT],
        gate: ExecutionContext,
        parse_output: bool,
        child_models: Mapping[str, PricedModel],
    ) -> RunPlan[OutputT]:
        refuse_model_switches(prompt.template, "an adapter", "run() or arun(), or action='stop' or 'call'")
        in_prompt = parse_output and not self.model.native_output
        rendered = prompt.render(deadline=gate.deadline, output_in_prompt=in_prompt)
        return plan_for(prompt, rendered, self.priced, parse_output=parse_output, child_models=child_models)


def refuse_unready(template: PromptTemplate[Any], limits: Limits) -> None:
    """Refuse judges of a template that an adapter does not make ready: one that names its model, or has no price.

    Raises:
        ConfigurationError: Naming it and what to give.
        UnpricedModelError: If there is a cost ceiling, and the price of a judge's model is unknown.
    """
    for asked in template.judges:
        if isinstance(asked, str):
            raise ConfigurationError(
                f"a judge of {template.name!r} names the model {asked!r}, which only run() makes; give it"
                f" Adapter(watchkeeper.models.model_from({asked!r}))"
            )
        if limits.max_cost_nanos is not None and not (isinstance(asked, Adapter) and asked.priced.price):
            name = asked.priced.label if isinstance(asked, Adapter) else type(asked).__name__
            raise UnpricedModelError(
                f"a cost ceiling is set, but there is no price for {name!r}, which a judge of {template.name!r} asks;"
                " give one: Adapter(model, price=ModelPrice.per_million(input_usd, output_usd))"
            )


@contextmanager
def children_outside_runs(
    session: Session,
    *,
    model: PricedModel,
    run_context: RunContext | None = None,
    nested: NestedExecutionConfig = NESTED,
    tracker: BudgetTracker | None = None,
    ids: IdSource = SYSTEM_IDS,
) -> Generator[Children]:
    """Yield a `Children` that starts children outside of any run, below a gate of its own; each child has its own
    limits.

    Args:
        session: The children's parent; it also gets the events of their starts and ends.
        model: The model of children that name none.
        run_context: Identifiers of the caller, to which the children's refer; fresh ones by default.
        nested: What nested evaluations may do.
        tracker: A budget that is shared with other evaluations, or None.
        ids: The source of identifiers.

    Raises:
        BudgetExceededError: If the tracker's budget is used up.
    """
    with gate_outside_runs(NESTED_LIMITS, tracker, session, session.clock, ids) as gate:
        context = run_context or root_run_context(session.session_id, ids)
        yield Children(
            Family(RunScope(session, gate, context, session.clock, ids), lambda: model, nested=nested), execute
        )
