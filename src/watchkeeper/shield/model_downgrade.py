"""When to go on with a cheaper model.

The hook only says when; whoever makes the calls switches to its `fallback_model`. A call that already goes to that
model is let through unasked, so that the switch can be made and nothing is degraded twice.
"""

from __future__ import annotations

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import PreDispatchHook
from watchkeeper.shield.windows import checked_share


class ModelDowngradeHook:
    """Asks for a cheaper model once a share of the money is spent, or once another hook does not let a call pass.

    Args:
        model: The cheaper model.
        at_cost_share: Share of the cost ceiling, above 0 and at most 1; once it is spent, calls are DEGRADE. None to
            look at ``when`` alone.
        when: Another hook, which sees only calls of dearer models: whatever else than ALLOW it says becomes DEGRADE.

    Attributes:
        fallback_model: The cheaper model.

    Raises:
        ConfigurationError: If a value makes no sense, or there is nothing by which to decide.
    """

    __slots__ = ("_at_cost_share", "_when", "fallback_model")

    def __init__(
        self,
        model: str,
        at_cost_share: float | None = 0.8,
        when: PreDispatchHook | None = None,
    ) -> None:
        """Keep what to decide by."""
        self.fallback_model = _named(model)
        if at_cost_share is None and when is None:
            raise ConfigurationError("at_cost_share=None and when=None leave nothing to decide by; give one of them")
        self._at_cost_share = None if at_cost_share is None else checked_share(at_cost_share, "at_cost_share")
        if when is not None and not hasattr(when, "before_llm_call"):
            raise ConfigurationError(
                f"when={when!r} is no hook that is asked before a model call: it has no before_llm_call"
            )
        self._when = when

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        """Return DEGRADE for a call of a dearer model once it is time, else None."""
        if self._is_cheaper(ctx):
            return None
        if self._is_spent(ctx):
            return Decision.DEGRADE
        said = None if self._when is None else self._when.before_llm_call(ctx)
        return None if said is None or said is Decision.ALLOW else Decision.DEGRADE

    def after_llm_call(self, ctx: ToolCallContext, response: object) -> None:
        """Tell the other hook what came of a call, if it wants to know."""
        after = getattr(self._when, "after_llm_call", None)
        if after is not None and not self._is_cheaper(ctx):
            after(ctx, response)

    def release(self, ctx: ToolCallContext) -> None:
        """Tell the other hook that a call did not run after all, if it wants to know."""
        release = getattr(self._when, "release", None)
        if release is not None:
            release(ctx)

    def explain(self, ctx: ToolCallContext) -> str:
        """Say why it is time for the cheaper model."""
        why = f"{type(self._when).__name__} holds dearer calls back"
        if self._is_spent(ctx):
            why = f"At least {self._at_cost_share:.0%} of the money is spent"
        return f"{why}; go on with {self.fallback_model}."

    def _is_spent(self, ctx: ToolCallContext) -> bool:
        at = self._at_cost_share
        return at is not None and ctx.cost_share is not None and ctx.cost_share >= at

    def _is_cheaper(self, ctx: ToolCallContext) -> bool:
        return ctx.degraded or (ctx.model is not None and _same(ctx.model, self.fallback_model))


def _named(model: object) -> str:
    if not isinstance(model, str) or not model.strip():
        raise ConfigurationError(f"model={model!r} names no model; write for example 'openai:gpt-5-mini'")
    return model


def _same(one: str, other: str) -> bool:
    """Return whether two names mean one model; the provider may be left out of one of them."""
    return one == other or one.endswith(f":{other}") or other.endswith(f":{one}")
