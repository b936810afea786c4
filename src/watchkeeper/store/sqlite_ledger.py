"""A ledger that several processes on one machine share: one file, one ceiling for all of them.

It composes a `MemoryLedger`: in one transaction that keeps all other writers out, it loads the figures of the accounts
that have a key, lets the same code decide and reserve as in one process, and writes what changed. What a process has
reserved is under a lease: a process that dies leaks nothing once its lease is over, and what was settled stays. If the
file cannot be used, nothing is admitted; what was spent is kept in memory and written as soon as that is possible.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from watchkeeper.accounting.account import Account
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import Charge
from watchkeeper.accounting.ledger import Grant, MemoryLedger, Waiter, do_nothing
from watchkeeper.accounting.refusals import Waits
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, Stop, StoreError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.logs import logger
from watchkeeper.core.quantities import duration
from watchkeeper.store.ledger_figures import Figures, is_stopped, shared_by
from watchkeeper.store.ledger_file import LedgerFile, ledger_path

T = TypeVar("T")


SHORTEST_POLL: Final = 0.02
LONGEST_POLL: Final = 0.25


class InHand(threading.local):
    """What this thread is in the middle of.

    The collector may run finalisers at any point, also of contexts on other ledgers; if one of them waited for a file
    here, it would wait for its own thread. What they want is done afterwards.

    Attributes:
        later: What to do after the transaction that is under way; None outside one.
    """

    later: list[Callable[[], object]] | None = None


IN_HAND: Final = InHand()


class SqliteLedger:
    """A ledger in a SQLite file; safe to use from several threads and from several processes at once.

    Contexts whose root has the same ``chain_id`` share that root's figures, whichever process they are in. If they
    name different ceilings, each enforces its own, so that the tighter one holds. Every admission and settlement is a
    transaction of some hundred microseconds, on the thread that calls.

    Attributes:
        path: The file.
    """

    def __init__(
        self,
        path: Path | str = "default",
        *,
        clock: Clock = SYSTEM_CLOCK,
        lease_seconds: float = 30.0,
        busy_seconds: float = 10.0,
        ids: IdSource = SYSTEM_IDS,
    ) -> None:
        """Open the file, and make it if it is missing.

        Args:
            path: The file; ``default`` is the user's own.
            clock: Where time comes from; all who share a file must share it too.
            lease_seconds: After how long without a sign of life the reservations of a process come back to the others.
                A process that was merely paused for longer takes its own back, and books what it spent.
            busy_seconds: How long to wait for others that write to the file.
            ids: Names this holder of reservations.

        Raises:
            LimitsError: If a number of seconds makes no sense.
            StoreError: If the file cannot be used, is not a ledger, or was written by another version.
        """
        lease = duration(lease_seconds, "lease_seconds").total_seconds()
        busy = duration(busy_seconds, "busy_seconds").total_seconds()
        self.path = ledger_path(path).absolute()
        self._closed = True
        self._clock = clock
        self._lock = threading.RLock()
        self._looking = threading.RLock()
        self._figures = Figures(LedgerFile(self.path, busy), lease, clock, ids, self._looking)
        self._inner = MemoryLedger(self._figures.held_elsewhere, self._looking)
        self._keeper: Keeper | None = None
        self._poll = SHORTEST_POLL
        self._figures.prepare()
        self._closed = False
        LEDGERS.add(self)

    # --- the port -----------------------------------------------------------------------------------------------------

    def open(self, account: Account) -> Stop | None:
        """Take in an account, sharing the figures of those in its chain that have a key.

        Raises:
            StoreError: If the file cannot be used.
            ConfigurationError: If two accounts in the chain have the same key.
        """
        shared = shared_by(account)
        if not shared:
            return self._inner.open(account)
        keys = [level.key for level in shared]
        if len(set(keys)) < len(keys):
            raise ConfigurationError(f"two accounts of one chain have the key {keys[0]!r}; name one of them otherwise")
        with self._alone():
            self._figures.bind(shared)
            now = self._clock.monotonic()
            return self._strictly(shared, partial(self._inner.open, account), partial(self._inner.close, account, now))

    def open_shares(self, accounts: Sequence[Account], weights: Sequence[float]) -> list[Stop | None]:
        """Take in new accounts below one parent and carve for each its share of all that the parent has left.

        Raises:
            StoreError: If the file cannot be used.
        """
        shared = shared_by(accounts[0])
        if not shared:
            return self._inner.open_shares(accounts, weights)

        def undo() -> None:
            for account in accounts:
                self._inner.close(account, self._clock.monotonic())

        with self._alone():
            return self._strictly(shared, partial(self._inner.open_shares, accounts, weights), undo)

    def admit(self, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        """Decide about a call and, if it is admitted, reserve for it, for all processes at once.

        Raises:
            StoreError: If the file cannot be used, or the ledger is closed; the call is not admitted.
        """
        account = demand.account
        shared = shared_by(account)
        if not shared or is_stopped(demand):
            return self._inner.admit(demand, now, waiter)
        with self._alone():
            demand.day = self._figures.today()
            grant = self._strictly(
                shared, partial(self._inner.admit, demand, now, waiter), partial(self._inner.refund, demand, now)
            )
            if isinstance(grant, Waits):
                self._hasten()
            return grant

    def withdraw(self, waiter: Waiter, now: float) -> None:
        """Forget a waiter; harmless if it is forgotten already."""
        self._inner.withdraw(waiter, now)
        shared = shared_by(waiter.demand.account)
        if shared and not self._closed:
            self._leniently(shared, do_nothing, acts_first=True)

    def refund(self, demand: Demand, now: float) -> None:
        """Undo an admission: of a call that was refused after it and never ran."""
        self._leniently(shared_by(demand.account), partial(self._inner.refund, demand, now), demand.day)

    def settle(self, demand: Demand, charge: Charge, failed: bool, now: float) -> None:
        """Give back what was reserved for a call and book what it cost, on the day on which it was admitted."""
        act = partial(self._inner.settle, demand, charge, failed, now)
        self._leniently(shared_by(demand.account), act, demand.day)

    def correct(self, demand: Demand, booked: Charge, charge: Charge, now: float) -> None:
        """Replace what was booked for a call by what its late result shows."""
        act = partial(self._inner.correct, demand, booked, charge, now)
        self._leniently(shared_by(demand.account), act, demand.day)

    def latch(self, account: Account, stop: Stop, work_only: bool, now: float) -> bool:
        """Put a stop on an account unless there is one; stops hold in this process only, and wait for no file.

        What the account has carved and need not keep comes back; the ledger's own thread writes that.
        """
        if not account.claims:
            return self._inner.latch(account, stop, work_only, now)
        put = self._figures.watch_aside(shared_by(account), partial(self._inner.latch, account, stop, work_only, now))
        keeper = self._keeper
        if keeper is not None:
            keeper.wake()
        return put

    def close(self, account: Account, now: float) -> None:
        """Give back what the account still holds; `shutdown` closes the ledger itself."""
        self._leniently(shared_by(account), partial(self._inner.close, account, now), acts_first=True)

    # --- operations on shared figures ---------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep other threads out, and finalisers of this one; afterwards do what those wanted."""
        if IN_HAND.later is not None:
            raise StoreError(f"this thread is in the middle of a transaction; do not use {self.path} in a finaliser")
        later: list[Callable[[], object]] = []
        try:
            with self._lock:
                IN_HAND.later = later
                try:
                    yield
                finally:
                    self._figures.file.rollback()
                    if self._closed:
                        self._figures.file.close()
                    elif self._keeper is None and self._is_needed():
                        self._keeper = Keeper(self, self._clock, self._wait())
                    IN_HAND.later = None
        finally:
            for act in later:
                act()

    def _strictly(self, shared: tuple[Account, ...], act: Callable[[], T], undo: Callable[[], object]) -> T:
        """Do something that must not happen unless it is written."""
        if self._closed:
            raise StoreError(
                f"the ledger {self.path} was shut down; open another one, or shut it down after its contexts"
            )
        self._figures.load(shared)
        result = self._figures.watch(shared, act)
        try:
            self._figures.write(self._inner)
        except StoreError:
            self._figures.watch(shared, undo)
            raise
        return result

    def _leniently(
        self, shared: tuple[Account, ...], act: Callable[[], object], day: str = "", *, acts_first: bool = False
    ) -> None:
        """Do something that happens anyway, and write it now or later.

        Args:
            shared: The accounts that it may change.
            act: What to do.
            day: For which day it counts; the present one if empty.
            acts_first: Whether it needs no fresh figures, so that the file is not used if nothing changes.
        """
        if not shared:
            act()
            return
        if IN_HAND.later is not None:
            IN_HAND.later.append(partial(self._leniently, shared, act, day, acts_first=acts_first))
            return
        with self._alone():
            if not acts_first and not self._closed:
                self._do(shared, act, day)
                return
            self._figures.watch(shared, act, day)
            if self._figures.is_changed or self._figures.moves_otherwise(self._inner):
                self._do(shared, partial(self._inner.review, self._clock.monotonic()))

    def _do(self, shared: tuple[Account, ...], act: Callable[[], object], day: str = "") -> bool:
        """Load, act, write; return whether it is written."""
        figures = self._figures
        failure: StoreError | None = None
        try:
            figures.load(shared)
        except StoreError as error:
            failure = error
        figures.watch(shared, act, day)
        if failure is None:
            if figures.is_past(shared, day):
                self._inner.review(self._clock.monotonic())  # what was booked does not count for today
            try:
                figures.write(self._inner)
            except StoreError as error:
                failure = error
        if failure is not None:
            logger().error("ledger.unwritten", path=str(self.path), error=str(failure))
        return failure is None

    # --- looking after it ---------------------------------------------------------------------------------------------

    def look_after(self) -> float | None:
        """Renew the lease, ask for those who wait, write what is left to write; called by the ledger's own thread.

        Returns:
            After how many seconds to come back; None if there is nothing to look after.
        """
        with self._alone():
            if self._closed or not self._is_needed():
                self._keeper = None
                return None
            shared = {level: None for account in self._inner.waiting for level in shared_by(account)}
            if not self._do(tuple(shared), partial(self._inner.review, self._clock.monotonic())):
                self._inner.tell_all()
            self._poll = min(self._poll * 2, LONGEST_POLL)
            return self._wait()

    def _is_needed(self) -> bool:
        return bool(self._inner.waiting) or self._figures.is_busy

    def _wait(self) -> float:
        return self._poll if self._inner.waiting else self._figures.lease_seconds / 3

    def _hasten(self) -> None:
        """Look soon, and then less and less often: somebody waits."""
        self._poll = SHORTEST_POLL
        if self._keeper is not None:
            self._keeper.wake()

    # --- the end ------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Give back all that is held here and close the file.

        Calls still under way are settled all the same; nothing is admitted any more. Calling it twice is harmless.
        """
        if IN_HAND.later is not None:
            IN_HAND.later.append(self.shutdown)
            return
        with self._alone():
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                keeper.stop()
            if not self._closed:
                self._closed = True
                self._inner.tell_all()
                try:
                    self._figures.leave()
                except StoreError as error:
                    logger().error("ledger.unwritten", path=str(self.path), error=str(error))
        if keeper is not None:
            keeper.join()

    def __enter__(self) -> Self:
        """Return the ledger."""
        return self

    def __exit__(self, *_: object) -> None:
        """Shut it down."""
        self.shutdown()

    def __del__(self) -> None:
        """Shut down a ledger that nobody shut down; at the end of the process its lease ends by itself."""
        if hasattr(self, "_keeper") and not self._closed and not sys.is_finalizing():
            self.shutdown()

    def before_fork(self) -> None:
        """Let nobody be in the middle of something while this process is copied."""
        self._lock.acquire()
        self._looking.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the copy as a holder of its own, which holds nothing yet."""
        if child:
            self._keeper = None
            self._figures.start_over()
        self._looking.release()
        self._lock.release()


class Keeper:
    """The thread of a ledger: it looks after what is held and who waits, as long as there is anything to look after.

    One daemon thread per ledger at most. It renews leases, asks for those who wait what others have given back, and
    writes what could not be written. It ends at the first look that finds nothing to do, and at once when it is
    stopped; it never keeps its ledger alive. It decides nothing.
    """

    def __init__(self, ledger: SqliteLedger, clock: Clock, first: float) -> None:
        """Start the thread.

        Args:
            ledger: Its `look_after` says after how many seconds to call it again.
            clock: Where time comes from.
            first: Seconds until the first look.
        """
        self._ledger = weakref.ref(ledger)
        self._clock = clock
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, args=(clock.monotonic() + first,), name="watchkeeper-ledger", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Look at once."""
        self._woken.set()

    def stop(self) -> None:
        """Let the thread end; returns at once."""
        self._stopped = True
        self._woken.set()

    def join(self) -> None:
        """Wait until the thread has ended, unless this is it."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, until: float) -> None:
        # Instants, because a thread may be slow to start, or held up: a lease does not wait for it.
        while True:
            self._clock.wait(self._woken, max(until - self._clock.monotonic(), 0.0))
            self._woken.clear()
            if self._stopped:
                return
            began = self._clock.monotonic()
            seconds = self._look()
            if seconds is None:
                return
            until = began + seconds

    def _look(self) -> float | None:
        ledger = self._ledger()
        return None if ledger is None else ledger.look_after()


# --- forks ----------------------------------------------------------------------------------------------------------
# A copy of a process must not use its parent's connection, nor find a lock that nobody releases. Before a process is
# copied all its ledgers are held still; in the copy each goes on as a holder of its own.

LEDGERS: Final[weakref.WeakSet[SqliteLedger]] = weakref.WeakSet()
HELD_STILL: Final[list[SqliteLedger]] = []


def before_fork() -> None:
    """Hold all ledgers still."""
    HELD_STILL[:] = LEDGERS
    for ledger in HELD_STILL:
        ledger.before_fork()


def after_fork(*, child: bool) -> None:
    """Let them go on."""
    for ledger in HELD_STILL:
        ledger.after_fork(child=child)
    HELD_STILL.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=before_fork,
        after_in_parent=partial(after_fork, child=False),
        after_in_child=partial(after_fork, child=True),
    )
