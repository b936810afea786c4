"""Whether the agent drifts from its task: what the task names, and what the newest calls touch."""

from __future__ import annotations

from watchkeeper.observers.drift.detector import DriftDetector as DriftDetector
