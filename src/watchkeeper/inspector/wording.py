"""Words about a stored run that the terminal and the page share: what it is called and what it is below, which of its
items never began, how it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from watchkeeper.core.errors import StoreError
from watchkeeper.core.quantities import counted
from watchkeeper.runtime.last_failures import LastFailures
from watchkeeper.store.plain_json import UNREADABLE, as_text
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.states import state_of

NAMED: Final = 20
"""Further items that never began are counted."""


def name_of(run: StoredRun) -> str:
    """Return the name of a run's prompt; of a run over many, with the number of its items."""
    return run.prompt if run.items is None else f"{run.prompt} ×{run.items}"


def run_above(store: RunStore, run: StoredRun) -> StoredRun | None:
    """Return the run that one is right below; None without one, or if the store cannot tell any more."""
    try:
        return None if run.parent_id is None else store.find(run.parent_id)
    except StoreError:
        return None


def place_below(above: StoredRun) -> str:
    """Say where a run stands that is right below another one: ``item of demo/mail ×48``."""
    return f"{'below' if above.items is None else 'item of'} {name_of(above)}"


def labels_in(fields: Mapping[str, Any]) -> list[str]:
    """Return the labels of all items from the event with which a run over many began; none if it cannot be read."""
    try:
        return [as_text(label) for label in fields["items"]]
    except UNREADABLE:
        return []


def never_began(run: StoredRun, labels: Sequence[str], own: Iterable[StoredRun]) -> str:
    """Name the items that never began, at most `NAMED`; empty if there are none, or the run still goes on."""
    begun = {each.item_index for each in own}
    names = [] if run.running else [label for index, label in enumerate(labels) if index not in begun]
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{counted(len(names), 'item')} never began: {', '.join(names[:NAMED])}{more}" if names else ""


def sentence_of(run: StoredRun, note: str, last: LastFailures) -> str:
    """Return how a run ended; of one that a limit or a policy has stopped, also that its last calls failed."""
    said = run.sentence(note)
    return f"{said} {last.in_words()}".rstrip() if state_of(run).kind == "stopped" else said
