"""Questions of parked runs, and the answers of persons: read from the store, and written there.

An answer is written into the record of its run while no process works on the run; `resume` acts on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.core.text import logger
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.parking import PARKED, CallAnswered, CallParked, answer_to, no_question, waiting
from watchkeeper.store.plain_json import untyped
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked

OWN: Final = frozenset({tag_of(CallParked), tag_of(CallAnswered)})
INVOKED: Final = tag_of(ToolInvoked)


class Waiting(NamedTuple):
    """A tool call that waits for an answer: its run, and the question about it."""

    run: StoredRun
    question: CallParked

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {"run_id": self.run.run_id, "item": self.run.item, **self.question.as_data()}


def pending(store: RunStore) -> tuple[Waiting, ...]:
    """Return the calls of all parked runs that wait for an answer; expired ones are among them.

    A run whose file is damaged is passed over, with a warning.
    """
    found: list[Waiting] = []
    for run in store.stopped_by(PARKED):
        try:
            found += waiting_in(store, run)
        except StoreError as error:
            logger().warning("pending.unreadable", error=str(error))
    return tuple(found)


def answer(
    store: RunStore, run_id: str, call_id: str | None = None, *, allowed: bool, clock: Clock = SYSTEM_CLOCK, **said: str
) -> Waiting:
    """Put on record what a person says about a call that waits, and return the call.

    Args:
        store: Where its run is.
        run_id: Id of its run, or of the run over many to which that belongs; or the beginning of it.
        call_id: Its id, or the beginning of it; None for the only call that waits.
        allowed: Whether it may run; if nobody knows whether it had its effect, whether it is to run again.
        clock: The source of time.
        **said: ``by``, ``why`` and ``digest``: see `runtime.parking.answer_to`.

    Raises:
        ConfigurationError: If no such call waits, it has its answer already, or has expired.
        StoreError: If the run is not there or a living process works on it.
    """
    run = store.find(run_id)
    runs = [run] if run.items is None else [each for each in store.children(run.run_id) if each.item is not None]
    found = _chosen(store, run, runs, call_id)
    with store.visited(found.run.run_id) as add:
        if found not in waiting_in(store, found.run):  # somebody was faster
            raise _refusal(store, [found.run], run, found.question.call_id)
        add(answer_to(found.question, found.run.run_id, clock.now(), allowed=allowed, **said))
    return found


def waiting_in(store: RunStore, run: StoredRun) -> tuple[Waiting, ...]:
    """Return the calls of a run that wait for an answer."""
    return tuple(Waiting(run, question) for question in waiting(_events(store, run)))


def _events(store: RunStore, run: StoredRun) -> Iterator[object]:
    for event in store.events(run.run_id):
        if event.tag in OWN:
            yield event.load()
        elif event.tag == INVOKED:
            yield str(untyped(event.body).get("call_id"))


def _chosen(store: RunStore, run: StoredRun, runs: list[StoredRun], call_id: str | None) -> Waiting:
    """Return the one call that is meant."""
    found = [each for one in runs for each in waiting_in(store, one)]
    wanted = [each for each in found if call_id is None or each.question.call_id == call_id]
    wanted = wanted or [each for each in found if each.question.call_id.startswith(call_id or "")]
    if len(wanted) == 1:
        return wanted[0]
    if not wanted:
        raise _refusal(store, runs, run, call_id)
    several = ", ".join(f"{each.question.named} of {each.run.run_id[:8]}" for each in wanted[:5])
    what = "call" if call_id is None else "run"
    raise ConfigurationError(f"more than one call waits for an answer: {several}; name the {what}")


def _refusal(store: RunStore, runs: list[StoredRun], run: StoredRun, call_id: str | None) -> ConfigurationError:
    if any(each.running for each in (run, *runs)):
        return ConfigurationError(f"the run {run.run_id} is running; only calls of a parked run wait for an answer")
    events = [event for one in runs for event in _events(store, one)]
    said = no_question(events, call_id) or f"waits for no answer: {run.sentence()}"
    return ConfigurationError(f"the run {run.run_id} {said}")
