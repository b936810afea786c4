"""Clocks and deadlines: Watchkeeper takes all time from a `Clock`."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.clock import Clock as Clock, Deadline as Deadline, SYSTEM_CLOCK as SYSTEM_CLOCK
    from watchkeeper.core.clock import SystemClock as SystemClock, TestClock as TestClock, Timer as Timer
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "core.clock": "Clock Deadline SYSTEM_CLOCK SystemClock TestClock Timer",
        },
    )
