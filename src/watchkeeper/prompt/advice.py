"""What an observer tells the agent: a summary, evidence, suggestions, as markdown.

`Assessment` is made by an observer, `Feedback` by a feedback provider; both are `Advice`, with the same fields except
the name of their source. Advice is checked when it is made, kept in a slice of its own type, and never changed. The
length of every text, the number of texts, and what is shown of them together are bounded, each with a note of what was
left out, so that no observer floods the model's context.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Self, TypeVar, cast

from watchkeeper.core.errors import ObserverError
from watchkeeper.core.quantities import is_listed, is_text
from watchkeeper.core.text import bounded
from watchkeeper.session.log import event
from watchkeeper.session.reducers import BY_DEFAULT
from watchkeeper.session.slices import Extend, SliceView

T = TypeVar("T")

Severity = Literal["suspicion", "info", "caution", "warning"]

SUSPICION: Final = "suspicion"
"""The severity of what may be trouble: the agent is not told, it is kept on the log alone, and it asks the judges."""

SEVERITIES: Final[tuple[Severity, ...]] = ("info", "caution", "warning")
"""The severities of what the agent is told, the mildest first."""

EVIDENCE_CHARS: Final = 2000
"""Longer evidence is cut, with a note; so is any other text of advice."""

MOST_ITEMS: Final = 20
"""The most observations, and the most suggestions, of one piece of advice; the last one counts those left out."""

SHOWN_CHARS: Final = 8000
"""How much of one piece of advice is shown to the agent; its summary always is, and the rest is kept on the log."""

NAME_CHARS: Final = 80
"""The longest name of a source, because it is shown in a heading."""

MAX_AGE_CALLS: Final = 20
"""The number of later tool calls after which advice is out of date."""


@event("observation")
@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was observed.

    Attributes:
        category: Its kind in a word: ``loop``, ``error_rate``, ``drift``, ``stall`` ...
        description: One sentence.
        evidence: The calls or patterns behind it.

    A text longer than `EVIDENCE_CHARS` is cut, with a note.
    """

    category: str
    description: str
    evidence: str | None = None

    def __post_init__(self) -> None:
        """Cut long texts, and refuse an observation that says nothing.

        Raises:
            ObserverError: For a category or a description that is empty, or a field that is not text.
        """
        for name in ("category", "description"):
            text = _bounded(getattr(self, name), f"Observation.{name}")
            if not is_text(text):
                raise ObserverError(f"Observation.{name}={text!r} is empty; say what you see in a word or a sentence")
            object.__setattr__(self, name, text)
        if self.evidence is not None:
            object.__setattr__(self, "evidence", _bounded(self.evidence, "Observation.evidence"))


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
        return self.observer_name if isinstance(self, Assessment) else cast("Feedback", self).provider_name

    def render(self) -> str:
        """Return it as concise markdown."""
        return render_block((self,), self.call_index)

    def stamped(self, source: str, call_index: int, at: datetime) -> Self:
        """Return the same advice with the name of its source and the moment and tool call at which it was made."""
        kind = cast("type[Self]", Assessment if isinstance(self, Assessment) else Feedback)
        said = (source, self.summary, self.observations, self.suggestions, self.severity, at, call_index)
        if type(self) is not kind or not is_text(source) or at.tzinfo is None:
            return cast("Callable[..., Self]", kind)(*said)
        stamped = object.__new__(kind)  # not checked anew: texts that were cut would be cut once more
        for name, value in zip(cast("Iterable[str]", kind.__slots__), said, strict=True):
            object.__setattr__(stamped, name, value)
        return stamped

    def is_stale(self, current_call_index: int, max_age_calls: int = MAX_AGE_CALLS) -> bool:
        """Return whether it is out of date.

        Args:
            current_call_index: Tool calls so far.
            max_age_calls: The most tool calls since it was made that leave it up to date.
        """
        return current_call_index - self.call_index > max_age_calls

    def __post_init__(self) -> None:
        """Refuse advice that could not be rendered, ordered or stored, and cut what is too long.

        Raises:
            ObserverError: Naming the field and its value.
        """
        source, put = self.source, object.__setattr__
        if not is_text(_bounded(source, "the name of advice")):
            raise ObserverError(f"{type(self).__name__} without a name; give the name of its observer or provider")
        put(self, "summary", _bounded(self.summary, "the summary of advice"))
        if not is_text(self.summary):
            raise ObserverError(f"the {type(self).__name__} of {source!r} has an empty summary; say what you see")
        if self.severity not in (SUSPICION, *SEVERITIES):
            known = ", ".join((SUSPICION, *SEVERITIES))
            raise ObserverError(f"severity={self.severity!r} of {source!r} must be one of {known}")
        at = cast("object", self.timestamp)
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise ObserverError(f"timestamp={at!r} of {source!r} must be a datetime with a time zone, or None")
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
        observer_name: Name of the observer.
        summary: The conclusion, in a sentence or two.
        observations: What the conclusion is based on.
        suggestions: What the agent might do.
        severity: ``info``, ``caution`` or ``warning``; or ``suspicion``, which the agent is not told (`SUSPICION`).
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


@event("feedback")
@dataclass(frozen=True, slots=True)
class Feedback(Advice):
    """The advice of a feedback provider; its attributes are those of `Assessment`.

    Attributes:
        provider_name: Name of the provider.
        summary: The conclusion, in a sentence or two.
        observations: What the conclusion is based on.
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


@event("record_assessment")
@dataclass(frozen=True, slots=True)
class RecordAssessment:
    """Appends an assessment to ``session[Assessment]`` when it is dispatched: for a loop of your own.

    Runs record what their observers say by themselves.

    Attributes:
        assessment: What was said.
    """

    assessment: Assessment


def record_assessment(view: SliceView[Assessment], event: RecordAssessment) -> Extend[Assessment]:
    """Keep the assessment; a suspicion is on the log alone."""
    return Extend(() if event.assessment.severity == SUSPICION else (event.assessment,))


BY_DEFAULT[RecordAssessment] = ((Assessment, record_assessment),)


def render_block(advices: Iterable[Advice], call_index: int) -> str:
    """Merge what several sources say into one block of markdown.

    Args:
        advices: The advice of the sources, in order.
        call_index: Number of tool calls so far.
    """
    lines = ["## Trajectory Assessment", "", f"_Generated after tool call #{call_index}_"]
    for advice in advices:
        lines += ["", f"### {advice.source} [{advice.severity}]", "", advice.summary]
        shown = len(advice.summary)
        if advice.observations:
            observed = [_observed(observation) for observation in advice.observations]
            shown = _add(lines, ["", *observed], shown, SHOWN_CHARS, "observations")
        if advice.suggestions:
            lines += ["", "**Suggestions**:"]
            _add(lines, [f"- {suggestion}" for suggestion in advice.suggestions], shown, 2 * SHOWN_CHARS, "suggestions")
    return "\n".join(lines)


def _add(lines: list[str], texts: list[str], shown: int, most: int, what: str) -> int:
    """Add texts until ``most`` characters are shown, then a note; return how many are shown with all that was added."""
    for place, text in enumerate(texts):
        shown += len(text)
        if shown > most:
            lines.append(f"[{len(texts) - place} {what} are not shown]")
            break
        lines.append(text)
    return shown


def _observed(observation: Observation) -> str:
    said = f"**{observation.category}**: {observation.description}"
    if not observation.evidence:
        return said
    fence = _fence(observation.evidence)
    return f"{said}\n{fence}\n{observation.evidence}\n{fence}"


def check_source_name(name: object, whose: str) -> None:
    """Refuse a name that is empty or cannot be shown in a heading.

    Raises:
        ObserverError: Naming it.
    """
    if not is_text(name):
        raise ObserverError(f"{whose} has no name (name={name!r}); give it a property `name` that returns a text")
    if len(name) > NAME_CHARS or name != name.strip() or not name.isprintable():
        shown = f"{name[:NAME_CHARS]!r}" + ("..." if len(name) > NAME_CHARS else "")
        raise ObserverError(
            f"the name {shown} of {whose} must be one line of at most {NAME_CHARS} printable characters, without blanks"
            " around it, because it is part of a heading that the agent reads"
        )


def _bounded(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise ObserverError(f"{what} must be a text, not {type(text).__name__}")
    return bounded(text, EVIDENCE_CHARS)


def _items(given: object, kind: type[T], what: str) -> tuple[tuple[T, ...], tuple[str, ...]]:
    """Return the first of some items, checked, and a note on the others if there are any."""
    items = tuple(given) if is_listed(given) else (given,)
    checked = tuple(item for item in items if isinstance(item, kind))
    if not is_listed(given) or len(checked) < len(items):
        example = '("...",)' if kind is str else f"({kind.__name__}(...),)"
        raise ObserverError(f"{what}={reprlib.repr(given)} must be a sequence of {kind.__name__}; write {example}")
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
