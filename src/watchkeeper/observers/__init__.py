"""Observers that ship, and the tool to answer them: resources and pace, stalls, error cascades, drift.

The names below, with the protocols and records that observers of one's own need, are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import imported_when_used

if TYPE_CHECKING:
    from watchkeeper.observers.acknowledge import answer_advice, answer_section
    from watchkeeper.observers.drift import DriftDetector
    from watchkeeper.observers.error_cascade import ErrorCascadeDetector
    from watchkeeper.observers.resources import PaceEstimator, ResourceObserver
    from watchkeeper.observers.stall import StallDetector
    from watchkeeper.prompt.advice import Assessment, Feedback, Observation
    from watchkeeper.prompt.observer import (
        Escalation,
        FeedbackContext,
        FeedbackProvider,
        FeedbackProviderConfig,
        FeedbackTrigger,
        ObserverConfig,
        ObserverContext,
        ObserverTrigger,
        TrajectoryObserver,
        on_loop,
    )

_HOMES: Final = {
    "Assessment": "watchkeeper.prompt.advice",
    "DriftDetector": "watchkeeper.observers.drift",
    "ErrorCascadeDetector": "watchkeeper.observers.error_cascade",
    "Escalation": "watchkeeper.prompt.observer",
    "Feedback": "watchkeeper.prompt.advice",
    "FeedbackContext": "watchkeeper.prompt.observer",
    "FeedbackProvider": "watchkeeper.prompt.observer",
    "FeedbackProviderConfig": "watchkeeper.prompt.observer",
    "FeedbackTrigger": "watchkeeper.prompt.observer",
    "Observation": "watchkeeper.prompt.advice",
    "ObserverConfig": "watchkeeper.prompt.observer",
    "ObserverContext": "watchkeeper.prompt.observer",
    "ObserverTrigger": "watchkeeper.prompt.observer",
    "PaceEstimator": "watchkeeper.observers.resources",
    "ResourceObserver": "watchkeeper.observers.resources",
    "StallDetector": "watchkeeper.observers.stall",
    "TrajectoryObserver": "watchkeeper.prompt.observer",
    "answer_advice": "watchkeeper.observers.acknowledge",
    "answer_section": "watchkeeper.observers.acknowledge",
    "on_loop": "watchkeeper.prompt.observer",
}

__all__ = [
    "Assessment",
    "DriftDetector",
    "ErrorCascadeDetector",
    "Escalation",
    "Feedback",
    "FeedbackContext",
    "FeedbackProvider",
    "FeedbackProviderConfig",
    "FeedbackTrigger",
    "Observation",
    "ObserverConfig",
    "ObserverContext",
    "ObserverTrigger",
    "PaceEstimator",
    "ResourceObserver",
    "StallDetector",
    "TrajectoryObserver",
    "answer_advice",
    "answer_section",
    "on_loop",
]

__getattr__ = imported_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
