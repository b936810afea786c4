"""How often operations with a retry policy of their own have failed (seed: execution-context, WrapOptions).

An operation is known by its kind and name. Only failures in a row count: a success ends the attempt at it.
"""

from __future__ import annotations

import threading

from watchkeeper.containment.call import CallRequest


class Operations:
    """Failures in a row, by operation."""

    __slots__ = ("_failures", "_lock")

    def __init__(self) -> None:
        """Start without failures."""
        self._failures: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def exhausted(self, request: CallRequest) -> bool:
        """Return whether the operation has been repeated as often as it may be."""
        failures = self._failures.get((request.kind, request.operation_name), 0)
        return request.max_retries is not None and failures > request.max_retries

    def record(self, request: CallRequest, *, failed: bool) -> None:
        """Remember how an attempt went."""
        operation = (request.kind, request.operation_name)
        with self._lock:
            if failed:
                self._failures[operation] = self._failures.get(operation, 0) + 1
            else:
                self._failures.pop(operation, None)
