"""The thread of a ledger: it looks after what is held and who waits, while there is anything to look after.

One daemon thread per ledger at most. It renews leases, asks for those who wait what others have given back, and writes
what could not be written. It ends by itself at the first look that finds nothing to do, and at once when it is stopped;
it never keeps its ledger alive. It decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from watchkeeper.core.clock import Clock


class Keeper:
    """Calls ``look`` again and again, each time as many seconds after it was begun as it said, until it says None."""

    __slots__ = ("_clock", "_look", "_stopped", "_thread", "_woken")

    def __init__(self, look: Callable[[], float | None], clock: Clock, first: float) -> None:
        """Start the thread.

        Args:
            look: What to do; returns after how many seconds to do it again, or None to end.
            clock: Where time comes from.
            first: Seconds until it is done first.
        """
        self._look = look
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
