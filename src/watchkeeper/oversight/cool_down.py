"""How often the agent hears one thing: an unchanged finding is told again only when it got worse or after a gap.

The gap is counted in looks at which the source finds the same, and doubles each time it is told. Only the delivery is
damped: the log, the slices and the count for escalation have every finding. The state is a fold of the log.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Final

from watchkeeper.prompt.advice import SEVERITIES, Advice

SILENT_CALLS: Final = 10
"""Once a source has been silent, or has only informed, for so many calls, what it finds is new."""

KNOWN: Final = 16
"""The number of findings of one source that are remembered, the newest ones."""

VARYING: Final = re.compile(r"#?\d[\d,.:]*")
WORD: Final = re.compile(r"[^\s.,;:]+")


class CoolDown:
    """What the agent was told by one source, and how long the same is held back."""

    __slots__ = ("_calm_since", "_first_gap", "_gap", "_known", "_looks", "_silent_since")

    def __init__(self, first_gap: int) -> None:
        """Begin before the first finding.

        Args:
            first_gap: Looks after which an unchanged finding is told for the second time; 0 to tell it at every look.
        """
        self._first_gap = first_gap
        self._begin()

    def _begin(self) -> None:
        self._gap = self._first_gap
        self._looks = 0
        self._known: dict[Hashable, int] = {}
        self._silent_since: int | None = None
        self._calm_since: int | None = None

    @property
    def hears_silence(self) -> bool:
        """Whether the next silence of the source matters, and must be on the log."""
        return bool(self._known) and self._silent_since is None

    def silent(self, call_index: int) -> None:
        """Take in that the source was asked and had nothing to say."""
        if self.hears_silence:
            self._silent_since = call_index
            self._calm_since = call_index if self._calm_since is None else self._calm_since

    def skip(self, calls: int) -> None:
        """Count calls for which the agent asked the source to be quiet as looks."""
        self._looks += calls

    def tells(self, advice: Advice, call_index: int) -> bool:
        """Take in what the source found; return whether the agent is told."""
        finding, severity = finding_of(advice), SEVERITIES.index(advice.severity)
        since = self._calm_since if severity else self._silent_since
        if since is not None and call_index - since >= SILENT_CALLS:
            self._begin()
        self._silent_since = None
        if severity:
            self._calm_since = None
        elif self._known and self._calm_since is None:
            self._calm_since = call_index
        self._looks += 1
        known = self._known.pop(finding, None)
        again = self._looks >= self._gap
        is_told = known is None or severity > known or again
        if is_told:
            self._looks = 0
            self._gap *= 1 if known is None else 2
        self._known[finding] = severity if known is None else max(severity, known)
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        return is_told


def finding_of(advice: Advice) -> Hashable:
    """Return what makes two findings of one source the same.

    What they observed, or their summaries if they name no observations, have the same words, whatever their numbers
    and the order of the words: "57 calls brought nothing" is the same as "58 calls brought nothing". What is only told
    for information ("3 of 9 done") is the same if it is the same text.
    """
    if advice.severity == SEVERITIES[0]:
        return advice.summary
    said = " ".join(each.description for each in advice.observations) or advice.summary
    return frozenset(WORD.findall(VARYING.sub("#", said)))
