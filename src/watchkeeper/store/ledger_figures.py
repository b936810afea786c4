"""What one process knows of shared accounts: figures from the file, what it holds itself, what is not yet written.

All accounts of this process with the same key have the same lists of figures, so that what one of them loads or
changes all of them see. Changes are noted as differences; what cannot be written stays noted and goes into the next
transaction. What this process holds is written as a whole, so that a file that has given it up learns it again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from watchkeeper.accounting.account import NOTHING, Account
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.core.clock import Clock
from watchkeeper.core.errors import StoreError
from watchkeeper.core.ids import IdSource
from watchkeeper.core.limits import Period, period_days
from watchkeeper.core.meters import COLUMNS
from watchkeeper.store.ledger_file import KEEP_SECONDS, Held, LedgerFile, ledger_failures

T = TypeVar("T")

ALL_MOVE: Final = (1 << len(NOTHING)) - 1
ABANDONED: Final[list[object]] = []
"""Connections of a parent process: closing them here would close them there."""


class Numbers(list[int]):
    """Figures by count, shared by accounts with one key; they live as long as one of these."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True)
class Change:
    """What is to be added to the settled figures of one name and day."""

    amounts: list[int] = field(default_factory=lambda: [0] * len(COLUMNS))
    unpriced: bool = False


class Figures:
    """Loads, watches and writes the figures of shared accounts; its ledger keeps other threads out.

    Attributes:
        file: The ledger's file.
        lease_seconds: How long what this process holds stays without a sign of life.
        lock: Held while the lists of figures change.
    """

    def __init__(
        self, file: LedgerFile, lease_seconds: float, clock: Clock, ids: IdSource, lock: AbstractContextManager[Any]
    ) -> None:
        """Start without accounts.

        Args:
            file: The ledger's file.
            lease_seconds: How long reservations stay without a sign of life.
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
        ABANDONED.extend(connection for connection in (self.file.abandon(),) if connection is not None)
        self._holder = str(self._ids.uuid())
        self._held: dict[str, list[int]] = {}
        self._unwritten: dict[tuple[str, str], Change] = {}
        self._dirty: set[str] = set()
        self._masks: dict[str, int] = {}
        self._others: dict[str, Held] = {}
        self._released: list[tuple[str, list[int]]] = []
        self._renewed_at = -math.inf
        self._now = self._clock.now()

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
        """Return whether another holder has reserved some of a count and may give it back by itself."""
        held = None if account.key is None else self._others.get(account.key)
        return held is not None and held.moving[count] > 0

    @property
    def is_busy(self) -> bool:
        """Whether something is held or has yet to be written."""
        return bool(self._held or self.is_changed)

    @property
    def is_changed(self) -> bool:
        """Whether something has yet to be written."""
        return bool(self._unwritten or self._dirty or self._released)

    # --- in a transaction ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open the file and forget what is old.

        Raises:
            StoreError: If the file cannot be used.
        """
        with self._used():
            self.file.begin()
            self.file.forget(self._clock.now().timestamp() - KEEP_SECONDS)
            self.file.commit()

    def load(self, shared: Iterable[Account]) -> None:
        """Begin a transaction, release reservations whose lease is over, and bring accounts up to date.

        Raises:
            StoreError: If the file cannot be used.
        """
        with self._used():
            self.file.begin()
            now = self._now = self._clock.now()  # not before: others may have kept us waiting
            self.file.release_expired(now.timestamp(), self._holder)
            with self.lock:
                while self._released:
                    self._note_held(*self._released.pop())
                for level in shared:
                    self._load_one(level, now)

    def _load_one(self, level: Account, now: datetime) -> None:
        name = str(level.key)
        first, last = window(level, now)
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
        """Do something and record what it changes for `write`; what it books counts for ``day``, or for today."""
        with self.lock:
            before = [(level, level.settled.copy(), level.reserved.copy(), level.unpriced) for level in shared]
            try:
                return act()
            finally:
                for level, settled, reserved, unpriced in before:
                    self._note(level, settled, reserved, unpriced, day)

    def record_release(self, shared: tuple[Account, ...], act: Callable[[], T]) -> T:
        """Do something that only releases reservations, without the file; the next transaction writes it."""
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
            if not in_window(level, booked, self._now):
                level.settled[:], level.unpriced = settled, unpriced
        if level.reserved != reserved:
            self._note_held(name, [new - old for new, old in zip(level.reserved, reserved, strict=True)])

    def _note_held(self, name: str, changes: list[int]) -> None:
        held = self._held.setdefault(name, list(NOTHING))
        for count, change in enumerate(changes):
            # A copy of a process never held what it gives back for its parent, nor a closed ledger what comes late.
            held[count] = max(held[count] + change, 0)
        if not any(held):
            del self._held[name]
        self._dirty.add(name)

    def is_outdated(self, shared: Iterable[Account], day: str) -> bool:
        """Return whether a day counts no longer for one of the accounts."""
        return bool(day) and not all(in_window(level, day, self._now) for level in shared)

    def write(self, inner: MemoryLedger) -> None:
        """Write what is noted, renew the lease if it is time, and end the transaction.

        Raises:
            StoreError: If it cannot be written; it stays noted.
        """
        file, now = self.file, self._now.timestamp()
        masks = self._stuck_masks(inner)
        changed = self._dirty | {name for name, mask in masks.items() if mask != self._masks.get(name, ALL_MOVE)}
        due = bool(self._held) and not 0 <= now - self._renewed_at < self.lease_seconds / 3
        with self._used():
            if due:
                file.renew(self._holder, now, self.lease_seconds)
                changed |= self._held.keys()
            for name in changed:
                file.reserve(name, self._holder, self._held.get(name, NOTHING), masks.get(name, ALL_MOVE))
            self._book()
            file.commit()
        self._unwritten.clear()
        self._dirty.clear()
        self._masks = masks
        if due:
            self._renewed_at = now

    def _book(self) -> None:
        for (name, day), change in self._unwritten.items():
            if any(change.amounts) or change.unpriced:
                self.file.add_used(name, day, change.amounts, change.unpriced, self._now.timestamp())

    def stuck_changed(self, inner: MemoryLedger) -> bool:
        """Return whether other holders must learn that reservations here became stuck, or no longer are."""
        return self._stuck_masks(inner) != self._masks

    def _stuck_masks(self, inner: MemoryLedger) -> dict[str, int]:
        """Return, by name, a bit for each count whose reservation can come back by itself, where not all can."""
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
        """Write what is noted and release all reservations of this holder.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._used():
            self.file.begin()
            self._now = self._clock.now()
            self._book()
            self.file.release_all(self._holder)
            self.file.commit()
        self._unwritten.clear()
        self._held.clear()
        self._dirty.clear()
        self._released.clear()
        self._masks.clear()

    @contextmanager
    def _used(self) -> Generator[None]:
        """Turn errors into StoreError, and close a connection on which something failed."""
        try:
            with ledger_failures(self.file.path):
                yield
        except StoreError:
            self.file.rollback()
            self.file.close()
            raise


def shared_by(account: Account) -> tuple[Account, ...]:
    """Return the accounts of a chain that other processes may use too."""
    return tuple(level for level in account.chain if level.key is not None)


def is_stopped(demand: Demand) -> bool:
    """Return whether a call is refused whatever the figures are."""
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
