"""What somebody gives to a judge, checked where it is given and not where it is used.

A judge whose adapter is a string fails when the work is done and paid for, and leaves it unverified. What cannot work
is therefore refused at once, in words that say what to write instead.
"""

from __future__ import annotations

from typing import Final

from watchkeeper.core.budget import Budget, BudgetTracker
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.model import Model
from watchkeeper.prompt.prompt import Prompt

METHODS: Final = ("evaluate_async", "evaluate")


def check_adapter(adapter: object) -> None:
    """Refuse an adapter that can evaluate nothing.

    Raises:
        ConfigurationError: Naming it and what to give.
    """
    if any(callable(getattr(adapter, name, None)) for name in METHODS):
        return
    made = f"watchkeeper.app.models.model_from({adapter!r})" if isinstance(adapter, str) else "model"
    what = "is a model" if isinstance(adapter, Model) else "can evaluate nothing"
    raise ConfigurationError(f"adapter={adapter!r} {what}; give Adapter({made})")


def check_prompt(prompt: object, name: str) -> None:
    """Refuse what is no prompt.

    Args:
        prompt: What was given.
        name: As what.

    Raises:
        ConfigurationError: Naming it and what to give.
    """
    if not isinstance(prompt, Prompt):
        raise ConfigurationError(f"{name} must be a Prompt, not {type(prompt).__name__}; give Prompt(template)")


def check_budget(budget: object) -> None:
    """Refuse what is neither a budget nor None.

    Raises:
        ConfigurationError: Naming it and what to give.
    """
    if not isinstance(budget, Budget | None):
        raise ConfigurationError(f"budget={budget!r} is none; give for example Budget(max_total_tokens=8_000)")


def check_tracker(tracker: object) -> None:
    """Refuse what is neither a tracker nor None.

    Raises:
        ConfigurationError: Naming it and what to give.
    """
    if not isinstance(tracker, BudgetTracker | None):
        raise ConfigurationError(f"budget_tracker={tracker!r} is none; give BudgetTracker(Budget(...))")
