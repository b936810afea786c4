"""`run` and `arun`: the front door. Everything a run needs is put together here and nowhere else.

`run` blocks; `arun` is the same on the caller's loop. A stop is a result: both return it, and raise only for input
that cannot work (before anything is spent) or if ``raise_on_stop`` asks for it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, TypeVar, Unpack

from watchkeeper.app.checks import check_arguments
from watchkeeper.app.interrupts import Interrupts
from watchkeeper.app.options import RunKeywords, RunOptions, options_for_run
from watchkeeper.app.surroundings import Surroundings, open_surroundings
from watchkeeper.containment.config import ChainMetadata
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.budget import Budget
from watchkeeper.core.deadline import Deadline
from watchkeeper.core.errors import LimitsError, RunStoppedError
from watchkeeper.core.limits import Limits, tighten
from watchkeeper.core.model import Model
from watchkeeper.core.run_context import RunContext, root_run_context
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.bounded import closed
from watchkeeper.runtime.plan import Place, RunHome, RunPlan
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.runtime.result import RunResult
from watchkeeper.runtime.run import execute
from watchkeeper.session.session import Session
from watchkeeper.tools.resources import Resources

OutputT = TypeVar("OutputT")


def run(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    session: Session | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult[OutputT]:
    """Run an agent to its end and return how it ended; see `arun` for the arguments.

    Ctrl-C lands the run: it takes a last turn and hands over what it has. A second one stops it hard.
    """
    interrupts = Interrupts()
    work = _run(prompt, model, limits, session, options_for_run(options), interrupts)
    return PORTAL.call(work, "arun", interrupts.interrupt)


async def arun(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    *,
    model: Model | str,
    limits: Limits = Limits(),
    session: Session | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult[OutputT]:
    """Run an agent to its end and return how it ended.

    Args:
        prompt: What the agent is: a bound prompt, or a template without placeholders.
        model: Who answers: a `Model`, or a string such as ``openai:gpt-5-mini`` or ``local``.
        limits: What it may spend, its children included.
        session: An earlier session to continue with: its slices, its log, its conversation.
        options: See `RunOptions`.

    Raises:
        ConfigurationError: If something the caller wrote cannot work; nothing was spent.
        StoreError: If the store cannot be written; nothing was spent.
        RunStoppedError: Only with ``raise_on_stop``.
    """
    return await _run(prompt, model, limits, session, options_for_run(options), Interrupts())


async def _run(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    model: Model | str,
    limits: Limits,
    session: Session | None,
    options: RunOptions,
    interrupts: Interrupts,
) -> RunResult[OutputT]:
    check_arguments({"prompt": prompt, "model": model, "limits": limits, "session": session})
    session = session or Session(clock=options.clock, ids=options.ids)
    limits = in_force(limits, session, options)
    async with AsyncExitStack() as stack:
        around = open_surroundings(stack, template_of(prompt), model, limits, options)
        context = root_run_context(session.session_id, options.ids)
        gate = gate_of(limits, session, context, around, options)
        plan = plan_of(prompt, around, gate.deadline, options)
        home = home_of(session, gate, context, options, around)
        unwatch = around.watch(session, context.run_id)
        try:
            with gate, interrupts.over(gate):
                result = await execute(plan, home)
        finally:
            unwatch()
            if not home.resources.end_unused():
                await closed("the run's resources", home.resources.aclose())
    if result.stop is not None and options.raise_on_stop:
        raise RunStoppedError(result.sentence(), stop=result.stop, result=result) from result.error
    return result


def in_force(limits: Limits, session: Session, options: RunOptions) -> Limits:
    """Return the limits, tightened by a `Budget` that was seeded in the session.

    Raises:
        LimitsError: If the deadline is over already.
    """
    budget = session[Budget].latest()
    if budget is not None:
        limits = tighten(limits, budget.as_limits(), options.clock)
    deadline = limits.deadline
    if isinstance(deadline, Deadline) and deadline.expired(options.clock):
        raise LimitsError(f"the deadline {deadline.at.isoformat()} is over already; give a later one or a length")
    return limits


def gate_of(
    limits: Limits, session: Session, context: RunContext, around: Surroundings, options: RunOptions
) -> ExecutionContext:
    """Open the gate of a run: its ceilings, its hooks, its circuit breakers; what it reports carries the run's ids."""
    return ExecutionContext(
        limits,
        options.shield,
        ChainMetadata(str(context.request_id), str(context.run_id)),
        circuit_breaker=around.breakers,
        ledger=around.ledger,
        clock=options.clock,
        ids=options.ids,
        on_event=session.dispatch,
    )


def plan_of(
    prompt: Prompt[OutputT] | PromptTemplate[OutputT],
    around: Surroundings,
    deadline: Deadline | None,
    options: RunOptions,
) -> RunPlan[OutputT]:
    """Render the prompt, once, and say how it is run."""
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    models = around.models
    return RunPlan(
        prompt=bound.render(deadline=deadline, output_in_prompt=models.output_in_prompt),
        model=models.first.model,
        price=models.first.price,
        settings=models.first.settings,
        checker=bound.template.task_completion_checker,
        on_context_full=options.on_context_full,
        on_delta=around.on_delta,
        fallback=models.fallback,
        cheaper=models.cheaper,
        sources=bound.template.sources,
        escalations=models.escalations,
        completion_rounds=bound.template.completion_rounds,
        nested=bound.template.nested_execution_config,
        child_models=models.children,
    )


def template_of(prompt: Prompt[Any] | PromptTemplate[Any]) -> PromptTemplate[Any]:
    """Return the template behind a prompt."""
    return prompt.template if isinstance(prompt, Prompt) else prompt


def home_of(
    session: Session,
    gate: ExecutionContext,
    context: RunContext,
    options: RunOptions,
    around: Surroundings,
    place: Place | None = None,
) -> RunHome:
    """Say where a run lives."""
    return RunHome(
        session=session,
        gate=gate,
        run_context=context,
        clock=options.clock,
        ids=options.ids,
        rng=options.rng,
        resources=options.resources or Resources(),
        filesystem=options.filesystem,
        place=place,
        watch=around.watch_child,
    )
