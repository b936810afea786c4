"""What an observer tells the agent: a summary, evidence, suggestions, as markdown (seed: trajectory-observers).

`Assessment` and `Feedback` are one record under the two names that the seeds give its author. Each is checked when it
is made, kept in a slice of its own, and never changed. Every text in it is bounded, and so is their number, so that no
observer floods the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Self, TypeVar, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.session.registry import event

T = TypeVar("T")

Severity = Literal["info", "caution", "warning"]

SEVERITIES: Final[tuple[Severity, ...]] = ("info", "caution", "warning")
"""All severities, the mildest first."""

EVIDENCE_CHARS: Final = 2000
"""Longer evidence is shortened, with a note; so is any other text of advice."""

MOST_ITEMS: Final = 20
"""So many observations and so many suggestions are kept of one piece of advice."""

MAX_AGE_CALLS: Final = 20
"""After so many more tool calls, advice says nothing about the present any more."""


@event("observation")
@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was observed (seed: trajectory-observers).

    Attributes:
        category: Its kind in a word: ``loop``, ``error_rate``, ``drift``, ``stall`` ...
        description: One sentence.
        evidence: The calls or patterns behind it.

    What exceeds `EVIDENCE_CHARS` in one of them is cut, with a note.
    """

    category: str
    description: str
    evidence: str | None = None

    def __post_init__(self) -> None:
        """Shorten what would flood the context."""
        for name, text in (("category", self.category), ("description", self.description), ("evidence", self.evidence)):
            if text is not None or name != "evidence":
                shown = _bounded(text, f"Observation.{name}")
                if shown is not text:
                    object.__setattr__(self, name, shown)


class Advice:
    """What `Assessment` and `Feedback` have in common."""

    __slots__ = ()

    summary: str
    observations: tuple[Observation, ...]
    suggestions: tuple[str, ...]
    severity: Severity
    timestamp: datetime | None
    call_index: int

    @property
    def source(self) -> str:
        """Name of the observer or provider."""
        raise NotImplementedError

    def render(self) -> str:
        """Return it as concise markdown."""
        return render_block((self,), self.call_index)

    def stamped(self, source: str, call_index: int, at: datetime) -> Self:
        """Return the same advice under its source's name, with when it was made."""
        face = cast("type[Self]", Assessment if isinstance(self, Assessment) else Feedback)
        if type(self) is not face or not source.strip() or at.tzinfo is None:
            make = cast("Callable[..., Self]", face)
            return make(source, self.summary, self.observations, self.suggestions, self.severity, at, call_index)
        stamped = object.__new__(face)  # its texts were checked when it was made: it is not checked again
        put = object.__setattr__
        put(stamped, "observer_name" if face is Assessment else "provider_name", source)
        put(stamped, "summary", self.summary)
        put(stamped, "observations", self.observations)
        put(stamped, "suggestions", self.suggestions)
        put(stamped, "severity", self.severity)
        put(stamped, "timestamp", at)
        put(stamped, "call_index", call_index)
        return stamped

    def is_stale(self, current_call_index: int, max_age_calls: int = MAX_AGE_CALLS) -> bool:
        """Return whether it is too old to say anything about the present.

        Args:
            current_call_index: Tool calls so far.
            max_age_calls: Tool calls after which it is too old.
        """
        return current_call_index - self.call_index > max_age_calls

    def _check(self) -> None:
        """Refuse what nobody could render, order or store."""
        source = self.source
        if not _bounded(source, "the name of advice").strip():
            raise ObserverError(f"{type(self).__name__} without a name: say whose it is")
        summary = _bounded(self.summary, "the summary of advice")
        if not summary.strip():
            raise ObserverError(f"the {type(self).__name__} of {source!r} has an empty summary; say what you see")
        if self.severity not in SEVERITIES:
            raise ObserverError(f"severity={self.severity!r} of {source!r} must be one of {', '.join(SEVERITIES)}")
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ObserverError(f"timestamp={self.timestamp!r} of {source!r} has no time zone; give an aware one")
        put = object.__setattr__
        if summary is not self.summary:
            put(self, "summary", summary)
        if self.observations != ():
            put(self, "observations", _items(self.observations, Observation, "observations"))
        if self.suggestions != ():
            suggestions = _items(self.suggestions, str, "suggestions")
            put(self, "suggestions", tuple([_bounded(text, "a suggestion") for text in suggestions]))


@event("assessment")
@dataclass(frozen=True, slots=True)
class Assessment(Advice):
    """What a trajectory observer says (seed: trajectory-observers).

    Attributes:
        observer_name: Who says it.
        summary: What it comes to.
        observations: What it rests on.
        suggestions: What the agent might do.
        severity: ``info``, ``caution`` or ``warning``.
        timestamp: When it was made, in UTC; set when it is recorded.
        call_index: Number of tool calls when it was made; set when it is recorded.
    """

    observer_name: str
    summary: str
    observations: tuple[Observation, ...] = ()
    suggestions: tuple[str, ...] = ()
    severity: Severity = "info"
    timestamp: datetime | None = None
    call_index: int = 0

    def __post_init__(self) -> None:
        """Check it."""
        self._check()

    @property
    def source(self) -> str:
        """Name of the observer."""
        return self.observer_name


@event("feedback")
@dataclass(frozen=True, slots=True)
class Feedback(Advice):
    """What a feedback provider says (seed: nested-execution); its attributes are those of `Assessment`.

    Attributes:
        provider_name: Who says it.
        summary: What it comes to.
        observations: What it rests on.
        suggestions: What the agent might do.
        severity: ``info``, ``caution`` or ``warning``.
        timestamp: When it was made, in UTC; set when it is recorded.
        call_index: Number of tool calls when it was made; set when it is recorded.
    """

    provider_name: str
    summary: str
    observations: tuple[Observation, ...] = ()
    suggestions: tuple[str, ...] = ()
    severity: Severity = "info"
    timestamp: datetime | None = None
    call_index: int = 0

    def __post_init__(self) -> None:
        """Check it."""
        self._check()

    @property
    def source(self) -> str:
        """Name of the provider."""
        return self.provider_name


def render_block(advices: Iterable[Advice], call_index: int) -> str:
    """Merge what several sources say into one block of markdown.

    Args:
        advices: What they say, in order.
        call_index: Number of tool calls so far.
    """
    lines = ["## Trajectory Assessment", "", f"_Generated after tool call #{call_index}_"]
    for advice in advices:
        lines += ["", f"### {advice.source} [{advice.severity}]", "", advice.summary]
        if advice.observations:
            lines.append("")
            for observation in advice.observations:
                lines.append(f"**{observation.category}**: {observation.description}")
                if observation.evidence:
                    fence = _fence(observation.evidence)
                    lines += [fence, observation.evidence, fence]
        if advice.suggestions:
            lines += ["", "**Suggestions**:", *(f"- {suggestion}" for suggestion in advice.suggestions)]
    return "\n".join(lines)


def _bounded(text: object, what: str) -> str:
    """Return a text, shortened with a note if it would flood the context."""
    if not isinstance(text, str):
        raise ObserverError(f"{what} must be a text, not {type(text).__name__}")
    if len(text) <= EVIDENCE_CHARS:
        return text
    return f"{text[:EVIDENCE_CHARS]}\n[cut: {len(text) - EVIDENCE_CHARS:,} more characters]"


def _items(given: Iterable[object], kind: type[T], what: str) -> tuple[T, ...]:
    """Return the first of some items, checked."""
    items: tuple[object, ...] = tuple(given) if not isinstance(given, str) else (None,)
    for item in items:
        if not isinstance(item, kind):
            raise ObserverError(f"{what} must be a sequence of {kind.__name__}; write ({kind.__name__}(...),)")
    return cast("tuple[T, ...]", items[:MOST_ITEMS])


def _fence(text: str) -> str:
    """Return a fence that the text cannot close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence
