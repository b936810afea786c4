"""A ledger that several processes on one machine share: one file, one ceiling for all of them.

It composes a `MemoryLedger`: in one transaction that keeps all other writers out, it loads the figures of the accounts
that have a key, lets the same code decide and reserve as in one process, and writes what changed. What a process has
reserved is under a lease: when a process dies, its claims and landing holds are released, the worst case is presumed
for its in-flight calls, and settled figures stay. If the file cannot be used, nothing is admitted; what was spent is
kept in memory and written as soon as possible.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from watchkeeper.accounting.account import Account
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import Admitted, Charge, Locked, Waits
from watchkeeper.accounting.ledger import Grant, MemoryLedger, Waiter, do_nothing, is_inherited
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock, running_loop
from watchkeeper.core.errors import ConfigurationError, Stop, StoreError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.text import logger
from watchkeeper.core.quantities import duration
from watchkeeper.ledgers.ledger_figures import Figures, is_stopped, shared_by
from watchkeeper.ledgers.ledger_file import LedgerFile, ledger_path
from watchkeeper.disk.sqlite import is_locked, register

T = TypeVar("T")

NO_CHARGE: Final = Charge()
NEVER_SET: Final = threading.Event()

SHORTEST_POLL: Final = 0.02
LONGEST_POLL: Final = 0.25

LOCK_SECONDS: Final = 0.02
"""How long one attempt waits for a file that others hold locked, on the thread or event loop that makes it."""


class ThreadState(threading.local):
    """Whether this thread is inside a ledger's transaction.

    The garbage collector may run finalisers at any point, also of contexts on other ledgers. A finaliser that waits for
    the file during a transaction of its own thread would wait for ever, so its work is done after the transaction.

    Attributes:
        later: What to do after the transaction under way; None outside one.
    """

    later: list[Callable[[], object]] | None = None


THIS_THREAD: Final = ThreadState()


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
            lease_seconds: If a process does not renew its lease for this long, its reservations are released, and the
                worst case of its calls under way is booked. A process that was only paused for longer takes that back,
                and books what it spent.
            busy_seconds: How long to wait for others that hold the file locked, in real seconds. Calls on an event loop
                wait without holding up the loop.
            ids: Names this holder of reservations.

        Raises:
            LimitsError: If a number of seconds is invalid.
            StoreError: If the file cannot be used, is not a ledger, or was written by another version.
        """
        lease = duration(lease_seconds, "lease_seconds").total_seconds()
        busy = duration(busy_seconds, "busy_seconds").total_seconds()
        self.path = ledger_path(path).absolute()
        self._closed = True
        self._clock = clock
        self._lock = threading.RLock()
        self._figures_lock = threading.RLock()
        self._busy_seconds = busy
        self._file = LedgerFile(self.path, min(busy, LOCK_SECONDS))
        self._figures = Figures(self._file, lease, clock, ids, self._figures_lock)
        self._inner = MemoryLedger(self._figures.held_elsewhere, self._figures_lock)
        self._thread: LedgerThread | None = None
        self._poll = SHORTEST_POLL
        self._locked_out: list[Waiter] = []
        register(self)
        try:
            self._retried(self._prepare, blocks_loop=False)
        except StoreError as error:
            if not self._may_become_free(error):
                raise
        self._closed = False

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
            raise ConfigurationError(f"two accounts of one chain have the key {keys[0]!r}; rename one of them")
        act = partial(self._inner.open, account)
        carves = account.for_verdict or (account.carved_on_open and len(account.chain) > 1)
        try:
            return self._retried(partial(self._open, account, shared, act), blocks_loop=carves)
        except StoreError as error:
            if carves or not self._may_become_free(error):
                raise
        # Without a carved amount there is nothing to decide; the first admission writes the reservation for landing.
        with self._exclusive():
            return self._figures.record(shared, act)

    def _open(self, account: Account, shared: tuple[Account, ...], act: Callable[[], Stop | None]) -> Stop | None:
        with self._exclusive():
            self._figures.bind(shared)
            now = self._clock.monotonic()
            return self._write_or_undo(shared, act, partial(self._inner.close, account, now))

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

        def carve() -> list[Stop | None]:
            with self._exclusive():
                return self._write_or_undo(shared, partial(self._inner.open_shares, accounts, weights), undo)

        return self._retried(carve)

    def admit(self, demand: Demand, now: float, waiter: Waiter | None = None) -> Grant:
        """Decide about a call and, if it is admitted, reserve for it, for all processes at once.

        Raises:
            StoreError: If the file cannot be used, or the ledger is closed; the call is not admitted.
        """
        account = demand.account
        shared = shared_by(account)
        if not shared or is_stopped(demand):
            return self._inner.admit(demand, now, waiter)
        try:
            return self._admit(demand, shared, now, waiter)
        except StoreError as error:
            if not self._may_become_free(error):
                raise
        return self._admit_later(demand, shared, now, waiter)

    def _admit(self, demand: Demand, shared: tuple[Account, ...], now: float, waiter: Waiter | None) -> Grant:
        with self._exclusive():
            demand.day = self._clock.now().date().isoformat()  # in UTC

            def act() -> Grant:
                grant = self._inner.admit(demand, now, waiter)
                if isinstance(grant, Admitted):
                    self._figures.begin_call(demand, shared)
                return grant

            def undo() -> None:
                self._figures.cancel_call(demand)
                self._inner.refund(demand, now)

            grant = self._write_or_undo(shared, act, undo)
            if isinstance(grant, Waits):
                self._poll_soon()
            return grant

    def _admit_later(self, demand: Demand, shared: tuple[Account, ...], now: float, waiter: Waiter | None) -> Grant:
        """Decide about a call that found the file locked: a plain thread tries on, others wait to be notified."""
        account = demand.account
        ends_at = account.ends_at(landing=demand.landing)
        if waiter is None and running_loop() is None:
            late: list[float] = [now]

            def attempt() -> Grant:
                late[0] = self._clock.monotonic()
                return self._admit(demand, shared, now, None)

            try:
                return self._retried(attempt, lambda: late[0] >= ends_at)
            except StoreError as error:
                now = late[0]
                if now < ends_at or not is_locked(error):
                    raise
        if now >= ends_at:  # needs no figures
            return self._figures.record_release(shared, partial(self._inner.admit, demand, now, waiter))
        if waiter is not None:
            with self._exclusive():
                if waiter not in self._locked_out:
                    self._locked_out.append(waiter)
            self._poll_soon()
        return Locked()

    def withdraw(self, waiter: Waiter, now: float) -> None:
        """Remove a waiter; does nothing if it was already removed."""
        with suppress(ValueError):
            self._locked_out.remove(waiter)
        self._inner.withdraw(waiter, now)
        shared = shared_by(waiter.demand.account)
        if shared and not self._closed:
            self._write_now_or_later(shared, do_nothing, acts_first=True)

    def refund(self, demand: Demand, now: float) -> None:
        """Undo an admission: of a call that was refused after it and never ran."""
        self._end_call(demand, partial(self._inner.refund, demand, now), NO_CHARGE)

    def settle(self, demand: Demand, charge: Charge, failed: bool, now: float) -> None:
        """Give back what was reserved for a call and book what it cost, on the day on which it was admitted."""
        self._end_call(demand, partial(self._inner.settle, demand, charge, failed, now), charge)

    def correct(self, demand: Demand, booked: Charge, charge: Charge, now: float) -> None:
        """Replace what was booked for a call by what its late result shows."""
        self._end_call(demand, partial(self._inner.correct, demand, booked, charge, now), charge, booked)

    def _end_call(
        self, demand: Demand, act: Callable[[], object], charge: Charge, booked: Charge | None = None
    ) -> None:
        """Run ``act``, which settles a call or corrects its charge; in the file, that replaces the presumed charge."""
        shared = shared_by(demand.account)
        ended = partial(self._figures.end_call, demand, shared, charge, booked)
        self._write_now_or_later(shared, act, demand.day, first=ended)

    def latch(self, account: Account, stop: Stop, work_only: bool, now: float) -> bool:
        """Put a stop on an account unless there is one; stops hold in this process only, and wait for no file.

        Carved amounts that the account need not keep are released; the ledger's own thread writes that.
        """
        if not account.claims:
            return self._inner.latch(account, stop, work_only, now)
        put = self._figures.record_release(
            shared_by(account), partial(self._inner.latch, account, stop, work_only, now)
        )
        thread = self._thread
        if thread is not None:
            thread.wake()
        return put

    def close(self, account: Account, now: float) -> None:
        """Give back what the account still holds; `shutdown` closes the ledger itself."""
        self._write_now_or_later(shared_by(account), partial(self._inner.close, account, now), acts_first=True)

    def under_way(self, account: Account) -> list[Demand]:
        """Return the calls of this process under an account for which something is reserved."""
        return self._inner.under_way(account)

    # --- a file that others hold locked -------------------------------------------------------------------------------
    # One attempt is short, whoever makes it. A plain thread tries again, without keeping other threads out meanwhile; a
    # call on an event loop is remembered, and the ledger's own thread tries for it. What was spent is kept in memory.

    def _may_become_free(self, error: StoreError) -> bool:
        """Return whether an error only says that others hold the file, and they have not done so for too long."""
        return is_locked(error) and self._file.locked_seconds < self._busy_seconds

    def _retried(self, act: Callable[[], T], is_over: Callable[[], bool] = bool, *, blocks_loop: bool = True) -> T:
        """Run ``act`` until the file is not locked; only once on the thread of an event loop that must not be blocked.

        Raises:
            StoreError: If the file cannot be used, or is locked for too long.
        """
        while True:
            try:
                return act()
            except StoreError as error:
                if not self._may_become_free(error) or is_over() or not (blocks_loop or running_loop() is None):
                    raise
            SYSTEM_CLOCK.wait(NEVER_SET, SHORTEST_POLL)

    def _prepare(self) -> None:
        with self._lock:
            self._figures.prepare()

    @property
    def _is_tried_soon(self) -> bool:
        """Whether others hold the file, and have not done so for too long."""
        return 0 < self._file.locked_seconds < self._busy_seconds

    @property
    def waits_for_file(self) -> bool:
        """Whether a call waits for others to release the file."""
        return bool(self._locked_out)

    def _tell_locked_out(self) -> None:
        waiters, self._locked_out = self._locked_out, []
        for waiter in waiters:
            waiter.wake()

    # --- operations on shared figures ---------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        """Keep out other threads and this thread's finalisers; afterwards do the work of the finalisers."""
        if THIS_THREAD.later is not None:
            raise StoreError(f"this thread is in the middle of a transaction; do not use {self.path} in a finaliser")
        later: list[Callable[[], object]] = []
        try:
            with self._lock:
                THIS_THREAD.later = later
                try:
                    yield
                finally:
                    try:
                        self._tidy_up()
                    finally:  # also where Ctrl-C interrupts that: all else on this thread would be refused
                        THIS_THREAD.later = None
        finally:
            for act in later:
                act()

    def _tidy_up(self) -> None:
        """Leave no transaction open, and see to it that the thread of the ledger is there if it is needed."""
        if self._file.rollback():
            self._figures.outdate()
        if self._closed:
            self._file.close()
        elif self._thread is None and self._is_needed():
            self._thread = LedgerThread(self, self._clock, self._wait())

    def _write_or_undo(self, shared: tuple[Account, ...], act: Callable[[], T], undo: Callable[[], object]) -> T:
        """Load, act and write; if it cannot be written, undo it and raise."""
        if self._closed:
            raise StoreError(
                f"the ledger {self.path} was shut down; open another one, or shut it down after its contexts"
            )
        self._figures.load(shared)
        result = self._figures.record(shared, act)
        try:
            self._figures.write(self._inner)
        except StoreError:
            self._figures.record(shared, undo)
            raise
        return result

    def _write_now_or_later(
        self,
        shared: tuple[Account, ...],
        act: Callable[[], object],
        day: str = "",
        *,
        first: Callable[[], object] = do_nothing,
        acts_first: bool = False,
    ) -> None:
        """Run ``act``, which always takes effect, and write its changes now or, if the file cannot be used, later.

        Args:
            shared: The accounts that it may change.
            act: The action to take.
            day: The day for which it counts; today if empty.
            first: What to do before the figures are loaded.
            acts_first: Whether it needs no fresh figures, so that the file is not used if nothing changes.
        """
        if not shared or is_inherited(shared[0]):  # a forked process books nothing for its parent
            act()
            return
        if THIS_THREAD.later is not None:
            THIS_THREAD.later.append(
                partial(self._write_now_or_later, shared, act, day, first=first, acts_first=acts_first)
            )
            return
        is_late = False
        with self._exclusive():
            first()
            if not acts_first and not self._closed:
                written = self._apply(shared, act, day)
            else:
                self._figures.record(shared, act, day)
                if not (self._figures.is_changed or self._figures.stuck_changed(self._inner)):
                    return
                written = self._apply(shared, partial(self._inner.review, self._clock.monotonic()))
            if not written and self._is_tried_soon:
                is_late = self._closed
                self._poll_soon()
        if is_late:
            self._write_late()

    def _apply(self, shared: tuple[Account, ...], act: Callable[[], object], day: str = "") -> bool:
        """Load, act, write; return whether it is written."""
        figures = self._figures
        failure: StoreError | None = None
        try:
            figures.load(shared)
        except StoreError as error:
            failure = error
        figures.record(shared, act, day)
        if failure is None:
            if figures.is_outdated(shared, day):
                self._inner.review(self._clock.monotonic())  # what was booked does not count for today
            try:
                figures.write(self._inner)
            except StoreError as error:
                failure = error
        if failure is None:
            return True
        if not self._is_tried_soon:
            logger().error("ledger.unwritten", path=str(self.path), error=str(failure))
        return False

    # --- what the ledger's own thread does ---------------------------------------------------------------------------

    def tend(self) -> float | None:
        """Renew the lease, decide again about waiting calls, write what is unwritten; for the ledger's own thread.

        Returns:
            Seconds until the next call; None if there is nothing left to do.
        """
        with self._exclusive():
            if self._closed or not self._is_needed():
                self._thread = None
                return None
            shared = {level: None for account in self._inner.waiting for level in shared_by(account)}
            written = self._apply(tuple(shared), partial(self._inner.review, self._clock.monotonic()))
            if not self._is_tried_soon:
                self._tell_locked_out()
                if not written:
                    self._inner.tell_all()
            self._poll = min(self._poll * 2, LONGEST_POLL)
            return self._wait()

    def _is_needed(self) -> bool:
        return bool(self._locked_out or self._inner.waiting or self._file.locked_seconds) or self._figures.is_busy

    def _wait(self) -> float:
        hurries = self._locked_out or self._inner.waiting or self._file.locked_seconds
        return self._poll if hurries else self._figures.lease_seconds / 3

    def _poll_soon(self) -> None:
        """Poll at once for a waiting call, and then less and less often."""
        self._poll = SHORTEST_POLL
        if self._thread is not None:
            self._thread.wake()

    # --- the end ------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Give back all that is held here and close the file.

        Calls under way are still settled; nothing is admitted any more. A second call does nothing.
        """
        if THIS_THREAD.later is not None:
            THIS_THREAD.later.append(self.shutdown)
            return
        failure: StoreError | None = None
        with self._exclusive():
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.stop()
            if not self._closed:
                self._closed = True
                self._tell_locked_out()
                self._inner.tell_all()
                try:
                    self._figures.release_all()
                except StoreError as error:
                    failure = error
        if failure is not None:
            self._release_later(failure)
        if thread is not None:
            thread.join()

    def _release_later(self, failure: StoreError) -> None:
        """Release all after a first attempt that failed: again, for a limited time, if the file was only locked."""
        if self._may_become_free(failure):
            self._release_retried()
        else:
            logger().error("ledger.unwritten", path=str(self.path), error=str(failure))

    def _write_late(self) -> None:
        """Write what a call has spent that ended after the shutdown, once others release the file.

        The ledger's own thread has ended. A plain thread waits here, an event loop is not held up. The end of the
        process waits as `shutdown` does.
        """
        if running_loop() is None:
            self._release_retried()
        else:
            threading.Thread(target=self._release_retried, name="watchkeeper-ledger-late", daemon=False).start()

    def _release_retried(self) -> None:
        """Write what is noted and release all, again and again while others hold the file."""

        def release() -> None:
            with self._exclusive():
                self._figures.release_all()

        try:
            self._retried(release)
        except StoreError as error:
            logger().error("ledger.unwritten", path=str(self.path), error=str(error))

    def __enter__(self) -> Self:
        """Return the ledger."""
        return self

    def __exit__(self, *_: object) -> None:
        """Shut the ledger down."""
        self.shutdown()

    def __del__(self) -> None:
        """Shut down a ledger that was not shut down; at the end of the process its lease just ends."""
        if hasattr(self, "_thread") and not self._closed and not sys.is_finalizing():
            self.shutdown()

    def before_fork(self) -> None:
        """Wait until no thread is inside a transaction, keep all out during the fork, and close the file."""
        self._lock.acquire()
        self._figures_lock.acquire()
        self._file.close()

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child as a new holder without reservations."""
        if child:
            self._thread = None
            self._locked_out = []
            self._figures.become_new_holder()
        self._figures_lock.release()
        self._lock.release()


class LedgerThread:
    """The thread of a ledger: it renews leases and wakes waiting calls, as long as there are any.

    At most one daemon thread per ledger. It renews the lease, checks for waiting calls what others have released, and
    writes what could not be written before. It ends when there is nothing left to do, or when it is stopped. It never
    keeps its ledger alive, and decides nothing.
    """

    def __init__(self, ledger: SqliteLedger, clock: Clock, first: float) -> None:
        """Start the thread.

        Args:
            ledger: Its `tend` returns the seconds until its next call.
            clock: The source of time.
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
        """Let the thread look at its ledger now."""
        self._woken.set()

    def stop(self) -> None:
        """Tell the thread to end; return at once."""
        self._stopped = True
        self._woken.set()

    def join(self) -> None:
        """Wait until the thread has ended, unless this is it."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, until: float) -> None:
        # Instants instead of durations: a thread may start late or be delayed, but a lease still ends in time.
        clock = self._clock
        while True:
            clock.wait(self._woken, max(until - clock.monotonic(), 0.0))
            self._woken.clear()
            if self._stopped:
                return
            ledger = self._ledger()
            seconds = None if ledger is None else ledger.tend()
            if ledger is None or seconds is None:
                return
            clock = SYSTEM_CLOCK if ledger.waits_for_file else self._clock  # what locks a file knows no other clock
            del ledger
            until = clock.monotonic() + seconds
