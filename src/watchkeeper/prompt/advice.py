"""What an observer tells the agent: a summary, evidence, suggestions, as markdown.

`Assessment` and `Feedback` are one record under two names: an observer's and a feedback provider's. Each is checked
when it is made, kept in a slice of its own, and never changed. Every text in it is bounded, and so are their number and
what is shown of them together, each time with a note, so that no observer floods the context.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Self, TypeVar, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.text import bounded
from watchkeeper.session.log import event

T = TypeVar("T")

Severity = Literal["info", "caution", "warning"]

SEVERITIES: Final[tuple[Severity, ...]] = ("info", "caution", "warning")
"""All severities, the mildest first."""

EVIDENCE_CHARS: Final = 2000
"""Longer evidence is shortened, with a note; so is any other text of advice."""

MOST_ITEMS: Final = 20
"""So many observations and so many suggestions one piece of advice has; the last says how many more there were."""

SHOWN_CHARS: Final = 8000
"""What exceeds it, of one piece of advice, is kept and not shown; its summary always is."""

NAME_CHARS: Final = 80
"""Longer names would be no headings."""

MAX_AGE_CALLS: Final = 20
"""After so many more tool calls, advice says nothing about the present any more."""


@event("observation")
@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was observed.

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
                if name != "evidence" and not shown.strip():
                    raise ObserverError(
                        f"Observation.{name}={text!r} is empty; say what you see in a word or a sentence"
                    )
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
        kind = cast("type[Self]", Assessment if isinstance(self, Assessment) else Feedback)
        if type(self) is not kind or not source.strip() or at.tzinfo is None:
            make = cast("Callable[..., Self]", kind)
            return make(source, self.summary, self.observations, self.suggestions, self.severity, at, call_index)
        stamped = object.__new__(kind)  # its texts were checked when it was made: it is not checked again
        put = object.__setattr__
        put(stamped, "observer_name" if kind is Assessment else "provider_name", source)
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

    def __post_init__(self) -> None:
        """Refuse what nobody could render, order or store."""
        source = self.source
        if not _bounded(source, "the name of advice").strip():
            raise ObserverError(f"{type(self).__name__} without a name: say whose it is")
        summary = _bounded(self.summary, "the summary of advice")
        if not summary.strip():
            raise ObserverError(f"the {type(self).__name__} of {source!r} has an empty summary; say what you see")
        if self.severity not in SEVERITIES:
            raise ObserverError(f"severity={self.severity!r} of {source!r} must be one of {', '.join(SEVERITIES)}")
        at = cast("object", self.timestamp)
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise ObserverError(f"timestamp={at!r} of {source!r} must be a datetime with a time zone, or None")
        put = object.__setattr__
        if summary is not self.summary:
            put(self, "summary", summary)
        if self.observations != ():
            observations, more = _items(self.observations, Observation, "observations")
            put(self, "observations", (*observations, *(Observation("more", each) for each in more)))
        if self.suggestions != ():
            suggestions, more = _items(self.suggestions, str, "suggestions")
            put(self, "suggestions", (*(_bounded(text, "a suggestion") for text in suggestions), *more))


@event("assessment")
@dataclass(frozen=True, slots=True)
class Assessment(Advice):
    """The advice of a trajectory observer.

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

    @property
    def source(self) -> str:
        """Name of the observer."""
        return self.observer_name


@event("feedback")
@dataclass(frozen=True, slots=True)
class Feedback(Advice):
    """The advice of a feedback provider; its attributes are those of `Assessment`.

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
        shown = len(advice.summary)
        if advice.observations:
            lines.append("")
            for place, observation in enumerate(advice.observations):
                part = _observed(observation)
                shown += sum(map(len, part))
                if shown > SHOWN_CHARS:
                    lines.append(f"[{len(advice.observations) - place} observations are not shown]")
                    break
                lines += part
        if advice.suggestions:
            lines += ["", "**Suggestions**:"]
            for place, suggestion in enumerate(advice.suggestions):
                shown += len(suggestion)
                if shown > 2 * SHOWN_CHARS:
                    lines.append(f"[{len(advice.suggestions) - place} suggestions are not shown]")
                    break
                lines.append(f"- {suggestion}")
    return "\n".join(lines)


def _observed(observation: Observation) -> list[str]:
    lines = [f"**{observation.category}**: {observation.description}"]
    if observation.evidence:
        fence = _fence(observation.evidence)
        lines += [fence, observation.evidence, fence]
    return lines


def check_source_name(name: object, whose: str) -> None:
    """Refuse a name under which nobody could be found, or that could not stand in a heading.

    Raises:
        ObserverError: Naming it.
    """
    if not isinstance(name, str) or not name.strip():
        raise ObserverError(f"{whose} has no name (name={name!r}); give it a property `name` that returns a text")
    if len(name) > NAME_CHARS or name != name.strip() or not name.isprintable():
        shown = f"{name[:NAME_CHARS]!r}" + ("..." if len(name) > NAME_CHARS else "")
        raise ObserverError(
            f"the name {shown} of {whose} must be one line of at most {NAME_CHARS} printable characters, without blanks"
            " around it: it stands in a heading that the agent reads"
        )


def _bounded(text: object, what: str) -> str:
    """Return a text, shortened with a note if it would flood the context."""
    if not isinstance(text, str):
        raise ObserverError(f"{what} must be a text, not {type(text).__name__}")
    return bounded(text, EVIDENCE_CHARS)


def _items(given: object, kind: type[T], what: str) -> tuple[tuple[T, ...], tuple[str, ...]]:
    """Return the first of some items, checked, and what to say of the others."""
    whole, items = given, cast("tuple[object, ...]", (None,))
    if isinstance(given, Iterable) and not isinstance(given, str):
        items = tuple(cast("Iterable[object]", given))
    for item in items:
        if not isinstance(item, kind):
            example = '("...",)' if kind is str else f"({kind.__name__}(...),)"
            raise ObserverError(f"{what}={reprlib.repr(whole)} must be a sequence of {kind.__name__}; write {example}")
    checked = cast("tuple[T, ...]", items)
    if len(checked) <= MOST_ITEMS:
        return checked, ()
    kept = checked[: MOST_ITEMS - 1]
    return kept, (f"[{len(checked) - len(kept):,} more {what} were left out]",)


def _fence(text: str) -> str:
    """Return a fence that the text cannot close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence
