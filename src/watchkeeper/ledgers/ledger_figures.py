"""One process's state of shared accounts: figures from the file, its own reservations, and unwritten changes.

All accounts of this process with the same key share the same lists of figures, so that a change of one is seen by all.
Changes are recorded as differences; changes that cannot be written are kept for the next transaction. The reservations
of this process are written as totals, so that they are complete again after the file released them. Each call with a
worst case has its own row until its real charge is known. If the lease of this process ended meanwhile, the worst case
was booked for its calls; that booking is undone before the figures are read.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from watchkeeper.accounting.account import COST, INPUT_TOKENS, NOTHING, OUTPUT_TOKENS, Account
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import Charge
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import StoreError
from watchkeeper.core.ids import IdSource
from watchkeeper.accounting.limits import Period, period_days
from watchkeeper.core.meters import COLUMNS
from watchkeeper.core.usage import NOTHING_PRESUMED
from watchkeeper.ledgers.ledger_file import CallRow, Held, LedgerFile, State, figures, ledger_failures
from watchkeeper.disk.sqlite import is_locked

T = TypeVar("T")

ALL_MOVE: Final = (1 << len(NOTHING)) - 1

DEAD_SECONDS: Final = 1.0
"""Shortest time between two checks whether processes with reservations are dead."""

NOTHING_BOOKED: Final = (0,) * len(COLUMNS)


class Numbers(list[int]):
    """Figures by count, shared by the accounts with one key, as long as one of these lives."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True)
class Change:
    """The amounts to add to the settled figures of one name and day."""

    amounts: list[int] = field(default_factory=lambda: [0] * len(COLUMNS))
    unpriced: bool = False


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call whose real charge is known, or that its process has abandoned.

    Attributes:
        call: Its id.
        booked: By count, what this process believes is booked for it.
        days: By name, the day for which it counts.
        presumed: By count, what it is charged if that is presumed; None if it is the real charge.
    """

    call: str
    booked: tuple[int, ...]
    days: Mapping[str, str]
    presumed: tuple[int, ...] | None


class Figures:
    """Loads, tracks and writes the figures of shared accounts; its ledger keeps other threads out.

    Attributes:
        file: The ledger's file.
        lease_seconds: How long the reservations of this process stay if the lease is not renewed.
        lock: Held while the lists of figures change.
    """

    def __init__(
        self, file: LedgerFile, lease_seconds: float, clock: Clock, ids: IdSource, lock: AbstractContextManager[Any]
    ) -> None:
        """Start without accounts.

        Args:
            file: The ledger's file.
            lease_seconds: How long reservations stay if the lease is not renewed.
            clock: Time.
            ids: Names this holder of reservations.
            lock: Held while the lists of figures change.
        """
        self.file = file
        self._clock = clock
        self._ids = ids
        self.lease_seconds = lease_seconds
        self.lock = lock
        self._accounts: weakref.WeakSet[Account] = weakref.WeakSet()
        self._settled: weakref.WeakValueDictionary[tuple[str, Period | None], Numbers] = weakref.WeakValueDictionary()
        self._reserved: weakref.WeakValueDictionary[str, Numbers] = weakref.WeakValueDictionary()
        self.become_new_holder()

    def become_new_holder(self) -> None:
        """Become a new holder, with no reservations and nothing to write: at the start, and after a fork."""
        self._holder = str(self._ids.uuid())
        self._held: dict[str, list[int]] = {}
        self._unwritten: dict[tuple[str, str], Change] = {}
        self._dirty: set[str] = set()
        self._masks: dict[str, int] = {}
        self._others: dict[str, Held] = {}
        self._released: list[tuple[str, list[int]]] = []
        self._calls: dict[Demand, list[CallRow]] = {}
        self._begun: dict[Demand, list[CallRow]] = {}
        self._ended: dict[str, EndedCall] = {}
        self._renewed_at = self._asked_for_dead_at = -math.inf
        self._version = 0, 0
        self._spans: weakref.WeakKeyDictionary[Account, tuple[str, str]] = weakref.WeakKeyDictionary()
        self._next_end = -math.inf
        self._now, self._instant = self._clock.now(), self._clock.monotonic()

    # --- what accounts there are --------------------------------------------------------------------------------------

    def bind(self, shared: Iterable[Account]) -> None:
        """Give accounts the lists of figures that belong to their keys."""
        for level in shared:
            if level in self._accounts or level.key is None:
                continue
            settled = self._settled.setdefault((level.key, level.period), Numbers(level.settled))
            reserved = self._reserved.setdefault(level.key, Numbers(level.reserved))
            level.settled, level.reserved = settled, reserved
            self._accounts.add(level)

    def held_elsewhere(self, account: Account, count: int) -> bool:
        """Return whether another holder has reserved some of a count and may release it."""
        held = None if account.key is None else self._others.get(account.key)
        return held is not None and held.moving[count] > 0

    @property
    def is_busy(self) -> bool:
        """Whether something is held or has yet to be written."""
        return bool(self._held or self._calls or self.is_changed)

    @property
    def is_changed(self) -> bool:
        """Whether something has yet to be written."""
        return bool(self._unwritten or self._dirty or self._released or self._begun or self._ended)

    # --- calls --------------------------------------------------------------------------------------------------------

    def begin_call(self, demand: Demand, shared: Iterable[Account]) -> None:
        """Note the worst case of a call that was admitted, for `write`; a call that can cost nothing has none."""
        amounts = dict(demand.reserved)
        worst = amounts.get(COST, 0), amounts.get(INPUT_TOKENS, 0), amounts.get(OUTPUT_TOKENS, 0)
        if any(worst):
            self._note_call(demand, shared, worst, not demand.request.estimate.known_cost, "running")

    def _note_call(
        self, demand: Demand, shared: Iterable[Account], amounts: tuple[int, int, int], unpriced: bool, state: State
    ) -> None:
        demand.number = demand.number or self._ids.uuid().int
        call, operation, since = id_of(demand), demand.request.operation_name, self._now.timestamp()
        self._begun[demand] = rows = [
            CallRow(call, name, self._holder, day, operation, *amounts, unpriced, state, since)
            for name, day in days_of(shared, demand).items()
        ]
        if state == "running":
            self._calls[demand] = rows

    def cancel_call(self, demand: Demand) -> None:
        """Forget a call that could not be written, so that it was never admitted."""
        self._begun.pop(demand, None)
        self._calls.pop(demand, None)

    def end_call(self, demand: Demand, shared: Iterable[Account], charge: Charge, booked: Charge | None = None) -> None:
        """Note that a call is charged, before the figures are loaded.

        Args:
            demand: The call.
            shared: The accounts that it concerns.
            charge: What it is charged; if the charge is presumed, the call stays on record until the real one is known.
            booked: What was charged for it before, if this is its late result.
        """
        known = self._calls.pop(demand, None) is not None or booked is not None
        left = charge.presumed is not NOTHING_PRESUMED and charge.presumed.tokens == charge.tokens
        if not (known or left):
            return
        if known:
            call, is_written = id_of(demand), self._begun.pop(demand, None) is None
            presumed = booked_by(charge) if left else None
            if call in self._ended:  # not written yet: what the file has of it is what it had before that
                self._ended[call] = replace(self._ended[call], presumed=presumed)
            elif is_written:
                before = NOTHING_BOOKED if booked is None else booked_by(booked)
                self._ended[call] = EndedCall(call, before, days_of(shared, demand), presumed)
        if left:
            tokens = charge.tokens
            amounts = charge.cost_nanos or 0, tokens.input_tokens, tokens.output_tokens
            self._note_call(demand, shared, amounts, charge.cost_nanos is None, "left")

    def _take_back(self) -> None:
        """Undo the presumed bookings for calls of this process, made when it seemed to be dead."""
        file, now = self.file, self._now.timestamp()
        for ended in self._ended.values():
            for name, day in ended.days.items():
                row = file.end_call(ended.call, name)
                if row is not None:
                    booked: Sequence[int] = row.booked()
                    if row.state == "corrected" and ended.presumed is not None:
                        file.begin_call(row)  # what a person has said stays: a presumption knows no better
                        booked = ended.presumed
                    change = [believed - found for believed, found in zip(ended.booked, booked, strict=True)]
                    file.add_used(name, day, change, False, now)
                    self._spans.clear()
        if self._calls and self._is_due and not file.has_lease(self._holder):
            file.revive(self._holder)
            self._spans.clear()

    @property
    def _is_due(self) -> bool:
        """Whether the lease must be renewed."""
        return bool(self._held or self._calls) and self._instant - self._renewed_at >= self.lease_seconds / 3

    # --- in a transaction ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open the file and delete old figures.

        Raises:
            StoreError: If the file cannot be used.
        """
        with self._used():
            self.file.begin()
            self.file.forget(self._clock.now())
            self.file.commit()

    def load(self, shared: Iterable[Account]) -> None:
        """Begin a transaction, release reservations whose lease is over, and bring accounts up to date.

        Raises:
            StoreError: If the file cannot be used.
        """
        with self._used():
            self.file.begin()
            now = self._now = self._clock.now()  # read after the transaction began, which may have waited for others
            self._instant = self._clock.monotonic()
            version = self.file.version()
            if version != self._version:
                self._version = version
                self.outdate()
            self._release_expired()
            self._take_back()
            with self.lock:
                while self._released:
                    self._note_held(*self._released.pop())
                for level in shared:
                    span = window(level, now)
                    if self._spans.get(level) != span:
                        self._load_one(level, now, *span)
                        self._spans[level] = span

    def outdate(self) -> None:
        """Read all figures again from the file next time, because the ones in memory may differ from it."""
        self._spans.clear()
        self._next_end = -math.inf

    def _release_expired(self) -> None:
        """Release the reservations of holders whose lease has ended; does nothing if no lease can have ended yet."""
        instant = self._instant
        asks = self._next_end < math.inf and instant - self._asked_for_dead_at >= DEAD_SECONDS
        if not asks and instant < self._next_end:
            return
        known = self._next_end
        self._next_end = self.file.release_expired(instant, self._now.timestamp(), self._holder, ask_for_dead=asks)
        if asks:
            self._asked_for_dead_at = instant
        if known > -math.inf:
            self._spans.clear()

    def _load_one(self, level: Account, now: datetime, first: str, last: str) -> None:
        name = str(level.key)
        settled, unpriced = self.file.settled(name, first, last)
        for (noted, day), change in self._unwritten.items():
            if noted == name and first <= day <= last:
                settled = [one + other for one, other in zip(settled, change.amounts, strict=True)]
                unpriced = unpriced or change.unpriced
        others = self.file.reserved(name, self._holder)
        self._others.pop(name, None)
        if any(others.amounts):
            self._others[name] = others
        own = self._held.get(name, NOTHING)
        level.settled[:] = settled
        level.reserved[:] = [one + other for one, other in zip(others.amounts, own, strict=True)]
        level.unpriced = unpriced
        if level.period is not None:
            level.renews_on = period_days(level.period, now)[1] + timedelta(days=1)

    def record(self, shared: tuple[Account, ...], act: Callable[[], T], day: str = "") -> T:
        """Run ``act`` and record its changes for `write`; what it books counts for ``day``, or for today."""
        with self.lock:
            before = [(level, level.settled.copy(), level.reserved.copy(), level.unpriced) for level in shared]
            try:
                return act()
            finally:
                for level, settled, reserved, unpriced in before:
                    self._note(level, settled, reserved, unpriced, day)

    def record_release(self, shared: tuple[Account, ...], act: Callable[[], T]) -> T:
        """Run ``act``, which only releases reservations, without the file; the next transaction writes the changes."""
        with self.lock:
            before = [(level, level.reserved.copy()) for level in shared]
            result = act()
            for level, reserved in before:
                if level.reserved != reserved:
                    change = [new - old for new, old in zip(level.reserved, reserved, strict=True)]
                    self._released.append((str(level.key), change))
        return result

    def _note(self, level: Account, settled: list[int], reserved: list[int], unpriced: bool, day: str) -> None:
        name = str(level.key)
        if level.settled != settled or level.unpriced != unpriced:
            booked = "" if level.period is None else day or self._now.date().isoformat()
            change = self._unwritten.setdefault((name, booked), Change())
            for count, (new, old) in enumerate(zip(level.settled, settled, strict=True)):
                change.amounts[count] += new - old
            change.unpriced = change.unpriced or level.unpriced
            if level.unpriced != unpriced:
                self._spans.clear()  # other accounts with its key do not know this yet
            if not in_window(level, booked, self._now):
                level.settled[:], level.unpriced = settled, unpriced
        if level.reserved != reserved:
            self._note_held(name, [new - old for new, old in zip(level.reserved, reserved, strict=True)])

    def _note_held(self, name: str, changes: list[int]) -> None:
        held = self._held.setdefault(name, list(NOTHING))
        for count, change in enumerate(changes):
            # Not below zero: a forked process may release what only its parent held, a closed ledger what comes late.
            held[count] = max(held[count] + change, 0)
        if not any(held):
            del self._held[name]
        self._dirty.add(name)

    def is_outdated(self, shared: Iterable[Account], day: str) -> bool:
        """Return whether a day no longer counts for one of the accounts."""
        return bool(day) and not all(in_window(level, day, self._now) for level in shared)

    def write(self, inner: MemoryLedger) -> None:
        """Write what is noted, renew the lease if it is time, and end the transaction.

        Raises:
            StoreError: If the changes cannot be written; they are kept.
        """
        file = self.file
        masks = self._stuck_masks(inner)
        changed = self._dirty | {name for name, mask in masks.items() if mask != self._masks.get(name, ALL_MOVE)}
        due = self._is_due
        with self._used():
            if due:
                file.renew(self._holder, self._instant, self.lease_seconds)
                changed |= self._held.keys()
            for name in changed:
                file.reserve(name, self._holder, self._held.get(name, NOTHING), masks.get(name, ALL_MOVE))
            self._book()
            file.commit()
        self._written()
        self._masks = masks
        if due:
            self._renewed_at = self._instant

    def _written(self) -> None:
        """Clear the recorded changes, which are now in the file."""
        for noted in (self._unwritten, self._dirty, self._begun, self._ended):
            noted.clear()

    def _book(self) -> None:
        for rows in self._begun.values():
            for row in rows:
                self.file.begin_call(row)
        for (name, day), change in self._unwritten.items():
            if any(change.amounts) or change.unpriced:
                self.file.add_used(name, day, change.amounts, change.unpriced, self._now.timestamp())

    def stuck_changed(self, inner: MemoryLedger) -> bool:
        """Return whether reservations here became stuck, or no longer are, so that other holders must be told."""
        return self._stuck_masks(inner) != self._masks

    def _stuck_masks(self, inner: MemoryLedger) -> dict[str, int]:
        """Return, by name with stuck reservations, a mask: a bit for each count whose reservations can be released."""
        if not self._held or not inner.waiting:
            return {}
        masks: dict[str, int] = {}
        for level in list(self._accounts):
            if level.key in self._held:
                mask = sum(1 << count for count, moves in enumerate(inner.moving(level)) if moves)
                if mask != ALL_MOVE:
                    masks[level.key] = mask
        return masks

    def release_all(self) -> None:
        """Write the recorded changes and release all reservations of this holder.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._used():
            self.file.begin()
            self._now, self._instant = self._clock.now(), self._clock.monotonic()
            self._take_back()
            self._book()
            self.file.release_all(self._holder, self._now.timestamp())
            self.file.commit()
        self._written()
        self._held.clear()
        self._released.clear()
        self._masks.clear()

    @contextmanager
    def _used(self) -> Generator[None]:
        """Turn errors into StoreError; close the connection after an error, unless others hold the file locked."""
        try:
            with ledger_failures(self.file.path):
                yield
        except StoreError as error:
            self.outdate()
            self.file.rollback()
            if not is_locked(error):
                self.file.close()
            raise


def shared_by(account: Account) -> tuple[Account, ...]:
    """Return the accounts of a chain that other processes may use too."""
    return tuple(level for level in account.chain if level.key is not None)


def id_of(demand: Demand) -> str:
    """Return the id by which log, snapshot and ledger know a call."""
    digits = f"{demand.number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def days_of(shared: Iterable[Account], demand: Demand) -> dict[str, str]:
    """Return, by the names of accounts, the day for which a call counts there; empty where there are no days."""
    return {str(level.key): "" if level.period is None else demand.day for level in shared}


def booked_by(charge: Charge) -> tuple[int, ...]:
    """Return the amounts that a charge books, by count."""
    tokens, presumed = charge.tokens, charge.presumed is not NOTHING_PRESUMED
    return tuple(figures(charge.cost_nanos or 0, tokens.input_tokens, tokens.output_tokens, presumed=presumed))


def is_stopped(demand: Demand) -> bool:
    """Return whether a call is refused whatever the figures are, because of a stop on an account."""
    return any(
        level.barred is not None
        or (level.work_stop is not None and not demand.landing and level not in demand.account.work_ignored)
        for level in demand.account.chain
    )


def window(level: Account, now: datetime) -> tuple[str, str]:
    """Return the first and the last day whose figures count for an account now."""
    if level.period is None:
        return "", ""
    first, last = period_days(level.period, now)
    return first.isoformat(), last.isoformat()


def in_window(level: Account, day: str, now: datetime) -> bool:
    """Return whether the figures of a day count for an account now; one without a period has no days."""
    first, last = window(level, now)
    return level.period is None or first <= day <= last
