"""The record of one child run where its parent's is: a pair of events on the parent's log, and a pair of log lines.

Both have the ids of both runs, so that the tree of a run can be drawn from either. The end is written whatever way the
child ended.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from watchkeeper.core.logs import enabled, logger
from watchkeeper.runtime.child_events import ChildEnded, ChildKind, ChildStarted
from watchkeeper.runtime.plan import RunHome
from watchkeeper.runtime.recorder import Recorder
from watchkeeper.runtime.result import RunResult, broken_off


class ChildRecord:
    """Writes down that a child began, and how it ended."""

    __slots__ = ("_began", "_home", "_kind", "_name", "_parent", "_recorder")

    def __init__(self, parent: RunHome, child: RunHome, kind: ChildKind, prompt_name: str) -> None:
        """Write on the log of ``parent`` what becomes of the run at ``child``."""
        self._recorder = Recorder(parent.session, child.clock)
        self._parent: UUID = parent.run_context.run_id
        self._home = child
        self._kind: ChildKind = kind
        self._name = prompt_name
        self._began = child.clock.monotonic()

    def started(self, model: str, call_id: str | None) -> None:
        """Write down that it began.

        Args:
            model: ``provider:name`` of its model.
            call_id: The tool call that asked for it, or None.
        """
        home = self._home
        depth, limits = sum(home.depths.values()), home.gate.limits.describe()
        self._recorder.record(
            ChildStarted(
                run_context=home.run_context,
                parent_run_id=self._parent,
                kind=self._kind,
                prompt_name=self._name,
                model=model,
                depth=depth,
                limits=limits,
                call_id=call_id,
                started_at=home.clock.now(),
            )
        )
        if enabled(logging.INFO):
            logger().info(
                "child.started", kind=self._kind, prompt=self._name, depth=depth, limits=limits, **self._ids()
            )

    def ended(self, result: RunResult[Any] | None, error: BaseException | None) -> None:
        """Write down how it ended, also if it was broken off.

        Args:
            result: Its result, if it had one.
            error: What broke it off, if it had none.
        """
        home = self._home
        duration = (home.clock.monotonic() - self._began) * 1000
        usage = home.gate.usage
        stop = result.stop if result is not None else None if error is None else broken_off(error)
        said = result.sentence() if result is not None else "" if stop is None else stop.message
        completion = "unchecked" if result is None else result.completion
        self._recorder.record(
            ChildEnded(
                run_id=home.run_context.run_id,
                parent_run_id=self._parent,
                kind=self._kind,
                prompt_name=self._name,
                stop=stop,
                completion=completion,
                usage=usage,
                duration_ms=duration,
                said=said,
                ended_at=home.clock.now(),
            )
        )
        if enabled(logging.INFO):
            logger().info(
                "child.ended",
                kind=self._kind,
                prompt=self._name,
                stop=stop.reason if stop else None,
                completion=completion,
                duration_seconds=round(duration / 1000, 3),
                tokens=usage.tokens.total,
                cost_usd=None if usage.cost is None else float(usage.cost),
                **self._ids(),
            )

    def _ids(self) -> dict[str, str]:
        return {"run_id": str(self._home.run_context.run_id), "parent_run_id": str(self._parent)}
