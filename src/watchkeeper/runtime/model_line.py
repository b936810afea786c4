"""The models of one run: which one is in use, which may take its place, and who answered.

A line begins with the model that was asked for; those behind it take over in their order. Whoever takes over stays:
nothing goes back by itself, because a switch costs a prompt cache. In one turn each model is tried at most once, so a
turn always ends. What differs from model to model (caps, prices, settings, the bound of its input) is made here, anew
for each one that takes over; a run that never switches makes it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from watchkeeper.core.model import ModelRequest
from watchkeeper.runtime.pricing import InputBound

if TYPE_CHECKING:
    from watchkeeper.core.limits import Limits
    from watchkeeper.core.model import Model
    from watchkeeper.core.transcript import Transcript
    from watchkeeper.runtime.plan import PricedModel, RunPlan

DEFAULT_OUTPUT_CAP: Final = 16_384
"""Output cap of a reply where neither the caller nor the model names a smaller one."""

BYTES_PER_TOKEN: Final = 3
"""A fair guess, for judging whether a conversation fits that no provider has counted yet."""


class ModelInUse:
    """One model as a run asks it.

    Attributes:
        model: Who answers.
        price: What it charges, or None if nobody knows.
        service: Whose circuit breaker watches it.
        label: ``provider:name``.
        degraded: Whether it is the cheaper model that hooks may ask for.
        cap: Output cap of its replies.
        request: What is the same in all its requests.
        bound: The upper bound of its input.
    """

    __slots__ = ("bound", "cap", "degraded", "label", "model", "place", "price", "request", "service")

    def __init__(self, line: ModelLine, place: int) -> None:
        """Prepare what every turn with this model repeats."""
        plan = line.plan
        chosen = line.models[place]
        self.place = place
        self.label = chosen.label
        self.model = model = chosen.model
        self.price = chosen.price
        self.degraded = plan.cheaper is not None and model is plan.cheaper.model
        self.service = line.services[place]
        wished, largest = chosen.settings.max_output_tokens or DEFAULT_OUTPUT_CAP, model.max_output_tokens
        self.cap = wished if largest is None else min(wished, largest)
        self.request = ModelRequest(
            transcript=line.transcript,
            tools=line.tools,
            output=plan.prompt.output if model.native_output and plan.parse_output else None,
            max_output_tokens=self.cap,
            settings=chosen.settings,
            on_delta=plan.on_delta,
        )
        self.bound = InputBound(self.request, line.limits)


class ModelLine:
    """The models of one run, in the order in which they take over.

    Attributes:
        in_use: The one that is asked now.
        answered_by: ``provider:name`` of those that answered, in the order of their first answers.
        switched: Whether another than the first was ever in use.
    """

    __slots__ = (
        "_tried",
        "answered_by",
        "in_use",
        "limits",
        "models",
        "plan",
        "services",
        "switched",
        "tools",
        "transcript",
    )

    def __init__(self, plan: RunPlan[Any], limits: Limits, transcript: Transcript) -> None:
        """Begin with the model that was asked for."""
        self.plan = plan
        self.limits = limits
        self.transcript = transcript
        self.tools = tuple(tool.spec for tool in plan.prompt.tools)
        self.models = plan.models
        self.services = services_of(self.models)
        self.answered_by: tuple[str, ...] = ()
        self.switched = False
        self._tried: set[int] = set()
        self.in_use = ModelInUse(self, 0)

    def model_in_use(self) -> PricedModel:
        """Return the model that is asked now, with all that is known of it."""
        return self.models[self.in_use.place]

    def begin_turn(self) -> None:
        """Let every model be tried again."""
        if self._tried:
            self._tried.clear()

    def answered(self) -> None:
        """Note who answered."""
        if not self.answered_by or self.in_use.label not in self.answered_by:
            self.answered_by += (self.in_use.label,)

    def find(self, fits: Callable[[ModelInUse], bool], *, cheaper: bool = False) -> ModelInUse | None:
        """Return who would take over now, or None: not tried in this turn, able to hold the conversation, and fit.

        Args:
            fits: Says whether a candidate can be asked at all, for example whether a ceiling still pays for it.
            cheaper: Whether only the cheaper model will do, because a hook said so.
        """
        for place in self._places(cheaper):
            if place not in self._tried and place != self.in_use.place:
                candidate = ModelInUse(self, place)
                if self._holds(candidate) and fits(candidate):
                    return candidate
        return None

    def named(self, model: Model) -> ModelInUse | None:
        """Return this very model of the line if it could take over: it is not in use, and holds the conversation."""
        for place, each in enumerate(self.models):
            if each.model is model and place != self.in_use.place:
                candidate = ModelInUse(self, place)
                return candidate if self._holds(candidate) else None
        return None

    def take_over(self, candidate: ModelInUse) -> None:
        """Let a model take the place of the one in use, which is not tried again in this turn."""
        self._tried.add(self.in_use.place)
        self.in_use = candidate
        self.switched = True

    @property
    def replacing(self) -> bool:
        """Whether the model in use took over in this turn: what it says of the request may be true of it alone."""
        return bool(self._tried)

    def _places(self, cheaper: bool) -> list[int]:
        """Return where to look: behind the model in use first, then from the beginning of the line.

        The cheaper model replaces no other unless it stands in the line itself; if it fails, the line's others do.
        """
        if cheaper:
            named = self.plan.cheaper
            return [place for place, each in enumerate(self.models) if named is not None and each.model is named.model]
        count = 1 + len(self.plan.fallback)
        first = self.in_use.place
        if first >= count:  # not of the line: after the cheaper model no dearer one that a hook would not have
            return list(range(1 if self.in_use.degraded else 0, count))
        return [place % count for place in range(first + 1, first + count)]

    def _holds(self, candidate: ModelInUse) -> bool:
        """Whether a model's context, as far as it is known, has room for the conversation and an answer."""
        window = candidate.model.context_window
        if window is None:
            return True
        bound = self.in_use.bound
        likely = bound.likely()
        tokens = bound.tokens(self.transcript) // BYTES_PER_TOKEN if likely is None else likely
        return tokens + min(candidate.cap, self.limits.min_output_tokens) <= window


def services_of(models: Sequence[PricedModel]) -> tuple[str, ...]:
    """Return, for each model, the name under which a circuit breaker watches it.

    A breaker watches a provider. Where several models of one line are the same provider's, each is watched by itself;
    else the failures of one would shut out the one that is to replace it.
    """
    if len(models) == 1:
        return (models[0].model.provider,)
    providers = [each.model.provider for each in models]
    names = [
        provider if providers.count(provider) == 1 else f"{provider}:{each.model.name}"
        for provider, each in zip(providers, models, strict=True)
    ]
    return tuple(name if name not in names[:place] else f"{name} ({place + 1})" for place, name in enumerate(names))
