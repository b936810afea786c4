"""What became of a run: one of a few kinds, in a word or two. Every list, sum and page of stored runs says it by this.

Plain functions over rows of the index (`StoredRun`): no log is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from watchkeeper.core.meters import METERS
from watchkeeper.core.text import one_line
from watchkeeper.runtime.parking import PARKED
from watchkeeper.store.run_index import StoredRun

Kind = Literal["done", "unverified", "stopped", "failed", "lost", "running", "waiting", "superseded"]

PROCESS_DIED: Final = "process died"

WORDS: Final[Mapping[str, str]] = {
    **{meter.reason: f"{meter.unit} limit" for meter in reversed(METERS)},  # of all limits of tokens, the first one
    "timeout": "deadline",
    "provider_error": "provider failed",
    "provider_rate_limit": "provider's rate limit",
    "output_invalid": "answer not readable",
    "incomplete": "answer rejected",
    "error": "unexpected error",
}
"""Reasons of stops in words; any other is shown with spaces."""

FAILURES: Final = frozenset(
    {
        "provider_error",
        "hook_failed",
        "output_invalid",
        "empty_answer",
        "refused",
        "incomplete",
        "error",
        "store_failed",
    }
)
"""Reasons that are no limit, no policy and nobody's wish."""

LONGEST: Final = 60
"""Characters of a reason that another version has recorded."""


@dataclass(frozen=True, slots=True)
class State:
    """What became of a run.

    Attributes:
        kind: ``done``; ``unverified``: done, but its checker could not tell; ``stopped`` or ``failed``: ended early;
            ``lost``: its process died; ``running``; ``waiting``: for a person; ``superseded``: begun anew later.
        words: What it is called.
        key: What runs are counted by: for a stop its reason.
    """

    kind: Kind
    words: str
    key: str

    @property
    def has_failed(self) -> bool:
        """Whether the work was not done, and nobody is on it or waits for a person.

        Such a run was stopped, its process died, its file is damaged, or it left items undone.
        """
        return self.kind in ("stopped", "failed", "lost")


def words_for(reason: str) -> str:
    """Return the reason of a stop in a word or two."""
    return one_line(WORDS.get(reason, reason.replace("_", " ")), LONGEST)


def state_of(run: StoredRun) -> State:
    """Return what became of a stored run."""
    if run.damage is not None:
        return State("failed", "damaged", "damaged")
    if run.superseded:
        return State("superseded", "begun anew later", "begun anew later")
    if run.ended_at is None:
        return State("running", "running", "running") if run.running else State("lost", PROCESS_DIED, PROCESS_DIED)
    done = "" if run.items in (None, run.items_done) else f"{run.items_done or 0} of {run.items} done"
    if run.stop is not None:
        reason = str(run.stop["reason"])
        kind: Kind = "waiting" if reason == PARKED else "failed" if reason in FAILURES else "stopped"
        return State(kind, f"{done}: {words_for(reason)}" if done else words_for(reason), reason)
    if done:
        return State("stopped", done, "items left")
    if run.completion == "unverified":
        return State("unverified", "done, not verified", "unverified")
    if run.completion == "verified":
        return State("done", "done and verified", "verified")
    return State("done", "done", "done")
