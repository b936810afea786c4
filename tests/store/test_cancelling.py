"""Asking a process to end its run: how often it is asked, and how long somebody waits for the end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from watchkeeper.core.clock import TestClock
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.disk.liveness import ProcessMark
from watchkeeper.runtime.events import RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.store import cancelling
from watchkeeper.store.cancelling import HARD_SECONDS, LOOK_SECONDS, cancel
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore


class Waiting(TestClock):
    """A clock that moves when somebody waits."""

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Let the time pass."""
        self.advance(seconds or 0.0)


@pytest.mark.parametrize(("hard", "asked", "lasts"), [(False, 1, 10.0), (True, 3, sum(HARD_SECONDS) + 10.0)])
def test_the_end_of_a_run_that_does_not_heed_is_waited_for_once(
    hard: bool, asked: int, lasts: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []

    def send(mark: ProcessMark, number: int) -> None:
        signals.append(number)

    monkeypatch.setattr(cancelling, "send_signal", send)
    clock, run_id = Waiting(), SYSTEM_IDS.uuid()
    began = RunStarted(root_run_context(run_id, SYSTEM_IDS), "n/k", "m", "none", None, clock.now())
    with RunStore(tmp_path / "store") as working, RunStore(tmp_path / "store", read_only=True) as store:
        working.heeds_signals = True
        working.append([Item(run_id, Envelope(1, clock.now(), began))])
        start = clock.monotonic()
        assert cancel(store, str(run_id), hard=hard, wait="10s", clock=clock).running
    assert len(signals) == asked
    assert clock.monotonic() - start == pytest.approx(lasts, abs=4 * LOOK_SECONDS)
