"""Questions of parked runs, and the answers of persons: read from the store, and written there.

An answer is written into the record of its run while no process works on the run; `resume` acts on it. It is refused
if nobody waits for it, if it comes twice or too late, or if it is about other arguments than those on record.
"""

from __future__ import annotations

from collections.abc import Iterator
from getpass import getuser
from typing import Any, Final, NamedTuple

from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.text import one_line
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.parking import PARKED, CallAnswered, CallParked, waiting
from watchkeeper.store.run_index import StoredRun, untyped
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked

OWN: Final = frozenset({tag_of(CallParked), tag_of(CallAnswered)})
INVOKED: Final = tag_of(ToolInvoked)


class Waiting(NamedTuple):
    """A tool call that waits for an answer.

    Attributes:
        run: Its run.
        question: What is asked about it.
    """

    run: StoredRun
    question: CallParked

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {"run_id": self.run.run_id, "item": self.run.item, **self.question.as_data()}


def pending(store: RunStore) -> tuple[Waiting, ...]:
    """Return the calls of all parked runs that wait for an answer; expired ones are among them.

    Raises:
        StoreError: If a parked run cannot be read.
    """
    runs = (run for run in store.stopped_by(PARKED) if run.items is None)
    return tuple(each for run in runs for each in waiting_in(store, run))


def answer(
    store: RunStore,
    run_id: str,
    call_id: str | None = None,
    *,
    allowed: bool,
    by: str | None = None,
    why: str = "",
    digest: str = "",
    clock: Clock = SYSTEM_CLOCK,
) -> Waiting:
    """Put on record what a person says about a call that waits, and return the call.

    Args:
        store: Where its run is.
        run_id: Id of its run, or of the run over many to which that belongs; or the beginning of it.
        call_id: Its id, or the beginning of it; None for the only call that waits.
        allowed: Whether it may run; if nobody knows whether it had its effect, whether it is to run again.
        by: Who says so; the user of this process by default.
        why: The reason; the agent is told if the call is denied.
        digest: The beginning of the hash of the arguments that the person has seen; empty for those on record.
        clock: The source of time.

    Raises:
        ConfigurationError: If no such call waits, it has its answer already, or has expired.
        StoreError: If the run is not there or a living process works on it.
    """
    who = getuser() if by is None else by.strip()
    if not who:
        raise ConfigurationError("by='' names nobody; say who gives the answer")
    run = store.find(run_id)
    runs = [each for each in store.children(run.run_id) if each.item is not None] if run.items is not None else [run]
    found = _chosen(store, run, runs, call_id)
    with store.visited(found.run.run_id) as add:
        now, question = clock.now(), found.question
        if all(each.question.question_id != question.question_id for each in waiting_in(store, found.run)):
            raise ConfigurationError(_over(store, [found.run], run, question.call_id))
        name = f"the question about {named(question)} of the run {found.run.run_id}"
        if question.expired(now):
            raise ConfigurationError(f"{name} expired at {question.expires:%Y-%m-%d %H:%M:%S} UTC; resume the run")
        if not question.digest.startswith(digest.strip().lower()):
            raise ConfigurationError(
                f"{name} is about arguments with the hash {question.digest[:12]}, not {digest!r}; look at them again"
            )
        add(CallAnswered(question.question_id, question.call_id, question.digest, allowed, who, why.strip(), now))
    return found


def waiting_in(store: RunStore, run: StoredRun) -> tuple[Waiting, ...]:
    """Return the calls of one run that wait for an answer."""
    return tuple(Waiting(run, question) for question in waiting(_events(store, run)))


def named(question: CallParked) -> str:
    """Return name and id of a call, for a message."""
    return f"{one_line(question.name, 60)} ({one_line(question.call_id, 60)})"


def _events(store: RunStore, run: StoredRun) -> Iterator[object]:
    for event in store.events(run.run_id):
        if event.tag in OWN:
            yield event.load()
        elif event.tag == INVOKED:
            yield str(untyped(event.body).get("call_id"))


def _chosen(store: RunStore, run: StoredRun, runs: list[StoredRun], call_id: str | None) -> Waiting:
    """Return the one call that is meant.

    Raises:
        ConfigurationError: If there is none, or more than one.
    """
    open_ = [each for one in runs for each in waiting_in(store, one)]
    wanted = [each for each in open_ if call_id is None or each.question.call_id == call_id]
    if call_id and not wanted:
        wanted = [each for each in open_ if each.question.call_id.startswith(call_id)]
    if len(wanted) == 1:
        return wanted[0]
    if not wanted:
        raise ConfigurationError(_over(store, runs, run, call_id))
    several = ", ".join(f"{named(each.question)} of {each.run.run_id[:8]}" for each in wanted[:5])
    what = "call" if call_id is None else "run"
    raise ConfigurationError(f"more than one call waits for an answer: {several}; name the {what}")


def _over(store: RunStore, runs: list[StoredRun], run: StoredRun, call_id: str | None) -> str:
    """Say why there is no such call that waits."""
    if any(each.running for each in (run, *runs)):
        return f"the run {run.run_id} is running; only calls of a parked run wait for an answer"
    open_ = [named(each.question) for one in runs for each in waiting_in(store, one)]
    given = [event for one in runs for event in _events(store, one) if isinstance(event, CallAnswered)]
    for each in reversed(given):
        if call_id in (None, each.call_id) and not (open_ and call_id is None):
            word = "approved" if each.allowed else "denied"
            return f"the call {one_line(each.call_id, 60)} of the run {run.run_id} was {word} already, by {each.by}"
    if open_:
        return f"the run {run.run_id} has no call {call_id!r} that waits for an answer; there are {', '.join(open_)}"
    return f"the run {run.run_id} waits for no answer: {run.sentence()}"
