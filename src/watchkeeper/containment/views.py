"""What there is to see of a context: its stops, what it has used, its state. Reading only, from any thread."""

from __future__ import annotations

from watchkeeper.containment.account import CEILINGS, Account
from watchkeeper.containment.carving import left_of
from watchkeeper.containment.figures import budget_status_of, stop_of, usage_of, work_stop_of
from watchkeeper.containment.passage import Passage
from watchkeeper.containment.snapshot import ContextSnapshot
from watchkeeper.core.budget import BudgetStatus
from watchkeeper.core.clock import Clock
from watchkeeper.core.deadline import Deadline
from watchkeeper.core.stop import Stop
from watchkeeper.core.usage import Usage


class Views:
    """The readable side of a context, which sets what it reads.

    Attributes:
        deadline: The moment at which everything is over, or None.
        work_deadline: The moment at which the work is over and a landing turn may begin, or None.
    """

    deadline: Deadline | None
    work_deadline: Deadline | None
    _account: Account
    _clock: Clock
    _passage: Passage

    @property
    def stop(self) -> Stop | None:
        """What ended everything, found here or above; None while something may still run."""
        return stop_of(self._account)

    @property
    def work_stop(self) -> Stop | None:
        """What ended the work, found here or above; a landing turn may still pass unless `stop` is set too."""
        return work_stop_of(self._account)

    @property
    def usage(self) -> Usage:
        """What this context and those below it have used."""
        return usage_of(self._account)

    def left(self) -> dict[str, int]:
        """Return what is left of every ceiling that binds here, by its field in `Limits`; ``max_cost_nanos`` for money.

        What calls under way may still use, and what is set aside for others, is not left.
        """
        return {CEILINGS[count]: left.amount for count, left in left_of(self._account).items()}

    @property
    def is_booked(self) -> bool:
        """Whether nothing is set aside any more for a call here or below; what is held for a landing is no call."""
        account = self._account
        return all(reserved <= held for reserved, held in zip(account.reserved, account.hold, strict=True))

    def stands_below(self, other: Views) -> bool:
        """Return whether it is a context, or stands below it: what passes here counts there."""
        return other._account in self._account.chain

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since it was opened."""
        return self._clock.monotonic() - self._account.opened_at

    @property
    def snapshot_at_stop(self) -> ContextSnapshot | None:
        """The state at the moment of the first stop that was latched here; None while there is none."""
        return self._passage.snapshot_at_stop

    def budget_status(self, turns_used: int | None = None) -> BudgetStatus:
        """Return its own ceilings beside what was used, at this moment.

        Args:
            turns_used: Model turns taken, which only the loop counts; without it nothing is said of turns.
        """
        return budget_status_of(self._account, self.deadline, self._clock.monotonic(), turns_used)

    def get_snapshot(self) -> ContextSnapshot:
        """Return the state of the chain at this moment; from any thread, at any time, also after it was closed."""
        return self._passage.snapshot()
