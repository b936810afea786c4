"""What became of a run, as the page says it: the kind has a shape and a colour, the words begin a sentence."""

from __future__ import annotations

import msgspec

from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.states import Kind, state_of


class Status(msgspec.Struct, frozen=True, gc=False):
    """What became of a run.

    Attributes:
        kind: Which shape and colour it has.
        words: What it is called.
        key: What runs are counted and filtered by.
    """

    kind: Kind
    words: str
    key: str


def status_of(run: StoredRun) -> Status:
    """Return what became of a stored run."""
    state = state_of(run)
    if run.stop is not None and state.kind in ("stopped", "failed"):
        return Status(state.kind, f"Stopped: {state.words}", state.key)
    return Status(state.kind, state.words[:1].upper() + state.words[1:], state.key)
