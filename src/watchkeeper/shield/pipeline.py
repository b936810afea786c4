"""The shield pipeline: hooks that are asked about each call, and the protocols of the hooks.

Each slot holds any number of hooks, which are asked in order. The first decision other than ALLOW wins and is recorded
as a `SafetyEvent`. If a hook raises, returns something else than a `Decision`, or takes longer than ``hook_timeout``,
that is recorded and counts as HALT: a broken hook refuses. Hooks run on the caller's thread, because a change of thread
would take longer than they do; hooks that may block (``blocks_for``) are asked on a worker thread by the gate. A
pipeline keeps no state of any chain and is safe to share between chains and threads if its hooks are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from types import CoroutineType, MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, cast, get_args

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, StopReason
from watchkeeper.core.text import logger, shown
from watchkeeper.core.quantities import DurationLike, duration
from watchkeeper.shield.decision import KEPT_EVENTS, Decision, SafetyEvent, ToolCallContext

# --- hooks ------------------------------------------------------------------------------------------------------------
# Each method returns a `Decision`, or None to abstain. Methods are sync and fast, and thread-safe if the pipeline is
# shared. A hook has the methods of its slot, and may also have:
#
# - ``release(ctx)``: called if a call does not run after the hook was asked; gives back what the hook counted for it.
#   Hooks that have it see an answer before those that do not, because these may object to it
# - ``stop_reason``: one of `core.errors.StopReason`, the reason of its HALT; ``policy_halt`` otherwise
# - ``explain(ctx) -> str``: one sentence that says why it did not allow the call
# - ``question(ctx) -> str | None``: what a person is to be asked about a tool call to which it has just said HALT, if a
#   person may allow it; a run can then park (docs/recovery.md). Its HALT counts for nothing once the call is approved
# - ``blocks_for``: seconds it may take; before a model call or a tool call it is then asked on a worker thread, so that
#   it can wait for a person or server. Its other methods are called where the call is, also on an event loop
# - ``fallback_model``: name of the cheaper model to use when it returns DEGRADE


class PreDispatchHook(Protocol):
    """Asked before a model call, and also after it if it has ``after_llm_call(ctx, response)``."""

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Decide whether the model may be called."""


class ResponseHook(PreDispatchHook, Protocol):
    """Asked before a model call, and about its answer."""

    def after_llm_call(self, ctx: ToolCallContext, response: Any) -> Decision | None:
        """Decide whether the answer may be used; it is charged in both cases."""


class ToolDispatchHook(Protocol):
    """Asked before a tool call."""

    def before_tool_call(self, ctx: ToolCallContext) -> Decision | None:
        """Decide whether the tool may run."""


class EgressBoundaryHook(Protocol):
    """Asked before a request to the outside."""

    def before_egress(self, ctx: ToolCallContext, url: str, method: str) -> Decision | None:
        """Decide whether the request may be sent."""


class RetryBoundaryHook(Protocol):
    """Asked about a call that failed."""

    def on_error(self, ctx: ToolCallContext, err: BaseException) -> Decision | None:
        """Decide what to do about the failure; None means that the call may be repeated."""


class BudgetBoundaryHook(Protocol):
    """Asked after a call, when its actual cost is known."""

    def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> Decision | None:
        """Decide what the cost means for later calls; it is charged in every case."""


class ReleasingHook(Protocol):
    """Counts calls when it is asked about them, and forgets those that did not run."""

    def release(self, ctx: ToolCallContext) -> object:
        """Give back what was counted for a call that does not run; do nothing if nothing was counted."""


HOOK_FAILED: Final = "hook_failed"

QUESTION: Final = "question"
"""The key of an event's metadata under which is what a person is to be asked about the call."""

ASKED: Final = {
    "before_llm_call": "before a model call",
    "after_llm_call": "about the answer of a model",
    "before_tool_call": "before a tool call",
    "before_egress": "about a request to the outside",
    "on_error": "about a failed call",
    "before_charge": "about the cost of a call",
}
HALTS: Final = {"on_error": "provider_error", "before_charge": "budget_exceeded"}
"""By method, the stop reason of a HALT if the hook has none; ``policy_halt`` for the other methods."""


class Asked(NamedTuple):
    """One method of one hook, ready to be called."""

    hook: Any
    method: Callable[..., object]

    @property
    def name(self) -> str:
        """Name of the hook."""
        return type(self.hook).__name__


class ShieldPipeline:
    """Hooks by slot.

    Args:
        pre_dispatch: Asked before a model call (`PreDispatchHook`), and about its answer by hooks with
            ``after_llm_call``.
        egress: Asked about requests to the outside.
        retry: Asked about failures.
        budget: Asked after a call, with its cost.
        tool_dispatch: Asked before a tool call.
        on_error_policy: The decision about a failure if there is no hook in ``retry``.
        hook_timeout: Seconds that the hooks of one slot may take together, or text such as "2s".
        clock: The source of time.

    Raises:
        ConfigurationError: If a hook lacks the method of its slot, or that method is a coroutine function.
    """

    __slots__ = ("_asked", "_clock", "_events", "_hook_timeout", "_on_error_policy", "_releases", "events_dropped")

    def __init__(
        self,
        *,
        pre_dispatch: PreDispatchHook | Sequence[PreDispatchHook] = (),
        egress: EgressBoundaryHook | Sequence[EgressBoundaryHook] = (),
        retry: RetryBoundaryHook | Sequence[RetryBoundaryHook] = (),
        budget: BudgetBoundaryHook | Sequence[BudgetBoundaryHook] = (),
        tool_dispatch: ToolDispatchHook | Sequence[ToolDispatchHook] = (),
        on_error_policy: Decision = Decision.HALT,
        hook_timeout: DurationLike = 10.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Store the hooks and check them."""
        answering = [hook for hook in as_hooks(pre_dispatch) if hasattr(hook, "after_llm_call")]
        answering.sort(key=lambda hook: not hasattr(hook, "release"))
        self._asked = {
            "before_llm_call": methods_of("pre_dispatch", pre_dispatch, "before_llm_call"),
            "after_llm_call": methods_of("pre_dispatch", answering, "after_llm_call"),
            "before_tool_call": methods_of("tool_dispatch", tool_dispatch, "before_tool_call"),
            "before_egress": methods_of("egress", egress, "before_egress"),
            "on_error": methods_of("retry", retry, "on_error"),
            "before_charge": methods_of("budget", budget, "before_charge"),
        }
        self._releases = {
            method: tuple(asked.hook.release for asked in self._asked[method] if hasattr(asked.hook, "release"))
            for method in ("before_llm_call", "before_tool_call")
        }
        if not isinstance(on_error_policy, Decision):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ConfigurationError(f"on_error_policy={on_error_policy!r} must be a Decision, such as Decision.HALT")
        self._on_error_policy = on_error_policy
        self._hook_timeout = duration(hook_timeout, "hook_timeout").total_seconds()
        self._clock = clock
        self._events: deque[SafetyEvent] = deque(maxlen=KEPT_EVENTS)
        self.events_dropped = 0

    # --- one method for each question ---------------------------------------------------------------------------------

    def before_llm_call(self, ctx: ToolCallContext) -> Decision:
        """Ask the hooks whether a model may be called."""
        return decision_of(self.ask("before_llm_call", ctx))

    def after_llm_call(self, ctx: ToolCallContext, response: Any) -> Decision:
        """Ask the hooks whether a model's answer may be used."""
        return decision_of(self.ask("after_llm_call", ctx, response))

    def before_tool_call(self, ctx: ToolCallContext) -> Decision:
        """Ask the hooks whether a tool may run."""
        return decision_of(self.ask("before_tool_call", ctx))

    def before_egress(self, ctx: ToolCallContext, url: str, method: str) -> Decision:
        """Ask the hooks whether a request may be sent."""
        return decision_of(self.ask("before_egress", ctx, url, method))

    def on_error(self, ctx: ToolCallContext, err: BaseException) -> Decision:
        """Ask the hooks what to do about a failure; without such hooks, ``on_error_policy`` decides."""
        return decision_of(self.ask("on_error", ctx, err))

    def before_charge(self, ctx: ToolCallContext, cost_usd: float) -> Decision:
        """Tell the hooks what a call cost, and ask what that means for later calls."""
        return decision_of(self.ask("before_charge", ctx, cost_usd))

    def release(self, ctx: ToolCallContext) -> None:
        """Tell the hooks that a call about which they were asked does not run."""
        for release in self._releases["before_tool_call" if ctx.kind == "tool" else "before_llm_call"]:
            try:
                release(ctx)
            except Exception as error:
                logger().error("hook.release_failed", hook=shown(release), error=shown(error))

    def get_events(self) -> tuple[SafetyEvent, ...]:
        """Return the events of calls that were not allowed, the oldest first; the newest `KEPT_EVENTS` are kept."""
        return tuple(self._events)

    @property
    def fallback_model(self) -> str | None:
        """The cheaper model: the ``fallback_model`` of the first hook that has one."""
        hooks = (asked.hook for asked in (*self._asked["before_llm_call"], *self._asked["before_charge"]))
        return next((model for hook in hooks if (model := getattr(hook, "fallback_model", None))), None)

    def unreachable(self, url: str, method: str) -> str | None:
        """Return what is missing in an allow-list for requests to an address; None if nothing is missing.

        Only hooks with ``entry_for(url, method)`` are asked, because they can tell without a call.
        """
        lists = (asked.hook for asked in self._asked["before_egress"] if hasattr(asked.hook, "entry_for"))
        return next((missing for each in lists if (missing := each.entry_for(url, method))), None)

    # --- for the gate -------------------------------------------------------------------------------------------------

    def concerns(self, method: str) -> bool:
        """Return whether any hook has this method."""
        return bool(self._asked[method])

    def blocks_for(self, method: str) -> float | None:
        """Return the seconds for which the hooks of a method may block; None if none of them has ``blocks_for``."""
        seconds = [getattr(asked.hook, "blocks_for", None) for asked in self._asked[method]]
        waits = [duration(wait, "blocks_for").total_seconds() for wait in seconds if wait is not None]
        return sum(waits) + self._hook_timeout if waits else None

    def ask(self, method: str, ctx: ToolCallContext, *facts: Any) -> SafetyEvent | None:
        """Ask the hooks that have this method, in order; record and return the first decision other than ALLOW.

        Args:
            method: One of the six methods that hooks are asked by.
            ctx: The call.
            *facts: The other arguments of the method.

        Returns:
            The event, or None if all allow or abstain.
        """
        hooks = self._asked[method]
        if not hooks:
            return self._without_hooks(ctx) if method == "on_error" else None
        began = self._clock.monotonic()
        for asked in hooks:
            try:
                said = answer = asked.method(ctx, *facts)
            except Exception as error:
                return self._failed(asked, method, ctx, f"raised {shown(error)}")
            if said is None or said is Decision.ALLOW or (said is Decision.DEGRADE and ctx.degraded):
                continue
            if said is Decision.HALT and method == "before_tool_call" and is_answered(asked, ctx):
                continue
            if not isinstance(said, Decision):
                if isinstance(said, CoroutineType):
                    said.close()  # it is never awaited
                return self._failed(asked, method, ctx, f"answered {shown(answer)}, which is not a Decision")
            return self._record(asked, said, method, ctx)
        took = self._clock.monotonic() - began
        limit = self._hook_timeout if took <= self._hook_timeout else self.blocks_for(method) or self._hook_timeout
        return self._failed(hooks[-1], method, ctx, f"took {took:.1f} s, at most {limit:g}") if took > limit else None

    def overran(self, method: str, ctx: ToolCallContext) -> SafetyEvent:
        """Record that a hook that may block did not answer in time."""
        asked = next(asked for asked in self._asked[method] if getattr(asked.hook, "blocks_for", None) is not None)
        return self._failed(asked, method, ctx, "did not answer in time")

    # --- what is recorded ---------------------------------------------------------------------------------------------

    def _record(self, asked: Asked, said: Decision, method: str, ctx: ToolCallContext) -> SafetyEvent:
        """Record the decision of a hook."""
        event_type = f"policy_{said.lower()}"
        if said is Decision.HALT:
            event_type = getattr(asked.hook, "stop_reason", None) or HALTS.get(method, event_type)
        reason = f"{asked.name} said {said} {ASKED[method]}{f': {ctx.tool_name}' if ctx.tool_name else ''}."
        if hasattr(asked.hook, "explain"):
            try:
                reason = str(asked.hook.explain(ctx))
            except Exception as error:
                logger().error("hook.explain_failed", hook=asked.name, error=shown(error))
        question = question_of(asked, ctx) if said is Decision.HALT and method == "before_tool_call" else None
        return self._append(event_type, said, reason, asked.name, ctx, {} if question is None else {QUESTION: question})

    def _failed(self, asked: Asked, method: str, ctx: ToolCallContext, what: str) -> SafetyEvent:
        """Record the failure of a hook; it counts as HALT."""
        reason = f"{asked.name} {what}, when it was asked {ASKED[method]}; what is not allowed is refused."
        return self._append(HOOK_FAILED, Decision.HALT, reason, asked.name, ctx)

    def _without_hooks(self, ctx: ToolCallContext) -> SafetyEvent | None:
        """Decide about a failed call by ``on_error_policy``."""
        said = self._on_error_policy
        if said is Decision.ALLOW:
            return None
        event_type = "provider_error" if said is Decision.HALT else f"policy_{said.lower()}"
        reason = f"{ctx.tool_name or 'A call'} failed, and without a retry hook that means {said}."
        return self._append(event_type, said, reason, "ShieldPipeline", ctx)

    def _append(
        self,
        event_type: str,
        said: Decision,
        reason: str,
        hook: str,
        ctx: ToolCallContext,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> SafetyEvent:
        event = SafetyEvent(
            event_type=event_type,
            decision=said,
            reason=reason,
            hook=hook,
            ts=self._clock.now(),
            request_id=ctx.request_id,
            metadata={**ctx.metadata, "kind": ctx.kind, "tool_name": ctx.tool_name, "model": ctx.model, **more},
        )
        self.events_dropped += len(self._events) == KEPT_EVENTS
        self._events.append(event)
        return event


def question_of(asked: Asked, ctx: ToolCallContext) -> str | None:
    """Return what a hook that said HALT wants a person to be asked; None if it asks nobody."""
    if not hasattr(asked.hook, "question"):
        return None
    try:
        said = asked.hook.question(ctx)
    except Exception as error:
        logger().error("hook.question_failed", hook=asked.name, error=shown(error))
        return None
    return said if isinstance(said, str) else None


def is_answered(asked: Asked, ctx: ToolCallContext) -> bool:
    """Return whether a hook that said HALT only asks a person, and a person has approved the call."""
    return ctx.approved_by is not None and question_of(asked, ctx) is not None


def decision_of(event: SafetyEvent | None) -> Decision:
    """Return the decision of an event; ALLOW without one."""
    return Decision.ALLOW if event is None else event.decision


def as_hooks(slot: object) -> tuple[Any, ...]:
    """Return the hooks of a slot, which holds one hook or a sequence of them."""
    return tuple(cast("Sequence[Any]", slot)) if isinstance(slot, list | tuple) else (slot,)


def methods_of(slot: str, given: object, method: str) -> tuple[Asked, ...]:
    """Return a method of every hook in a slot, after checking it.

    Raises:
        ConfigurationError: If a hook does not have the method, if the method is a coroutine function, or if the hook's
            ``stop_reason`` or ``blocks_for`` is invalid.
    """
    found: list[Asked] = []
    for hook in as_hooks(given):
        bound = getattr(hook, method, None)
        if not callable(bound):
            raise ConfigurationError(f"{slot}={hook!r} has no method {method}; a hook for {slot}= needs one")
        if iscoroutinefunction(bound):
            raise ConfigurationError(f"{slot}={hook!r}: {method} must be a plain function, not async")
        reason = getattr(hook, "stop_reason", None)
        if reason is not None and reason not in get_args(StopReason):
            raise ConfigurationError(f"{slot}={hook!r}: stop_reason={reason!r} must be one of {get_args(StopReason)}")
        if (wait := getattr(hook, "blocks_for", None)) is not None:
            duration(wait, "blocks_for")
        found.append(Asked(hook, bound))
    return tuple(found)
