"""Watchkeeper's observers, the tool to answer them, and what an observer of your own needs.

They watch resources and pace, stalls, error cascades and drift.
"""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.observers.acknowledge import answer_advice as answer_advice, answer_section as answer_section
    from watchkeeper.observers.cascade import ErrorCascadeDetector as ErrorCascadeDetector
    from watchkeeper.observers.drift.detector import DriftDetector as DriftDetector
    from watchkeeper.observers.resources import PaceEstimator as PaceEstimator, ResourceObserver as ResourceObserver
    from watchkeeper.observers.stall import StallDetector as StallDetector
    from watchkeeper.observers.suspicion import SuspicionRules as SuspicionRules
    from watchkeeper.oversight.own_loop import build_context as build_context, on_tool_invoked as on_tool_invoked
    from watchkeeper.prompt.advice import Assessment as Assessment, Feedback as Feedback, Observation as Observation
    from watchkeeper.prompt.advice import RecordAssessment as RecordAssessment
    from watchkeeper.prompt.observer import Escalation as Escalation, FeedbackContext as FeedbackContext
    from watchkeeper.prompt.observer import FeedbackProvider as FeedbackProvider
    from watchkeeper.prompt.observer import FeedbackProviderConfig as FeedbackProviderConfig
    from watchkeeper.prompt.observer import FeedbackTrigger as FeedbackTrigger, ObserverConfig as ObserverConfig
    from watchkeeper.prompt.observer import ObserverContext as ObserverContext, ObserverTrigger as ObserverTrigger
    from watchkeeper.prompt.observer import TrajectoryObserver as TrajectoryObserver, on_loop as on_loop
    from watchkeeper.prompt.trajectory import CallDigest as CallDigest, Trajectory as Trajectory
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "observers.acknowledge": "answer_advice answer_section",
            "observers.cascade": "ErrorCascadeDetector",
            "observers.drift.detector": "DriftDetector",
            "observers.resources": "PaceEstimator ResourceObserver",
            "observers.stall": "StallDetector",
            "observers.suspicion": "SuspicionRules",
            "oversight.own_loop": "build_context on_tool_invoked",
            "prompt.advice": "Assessment Feedback Observation RecordAssessment",
            "prompt.observer": (
                "Escalation FeedbackContext FeedbackProvider FeedbackProviderConfig FeedbackTrigger ObserverConfig "
                "ObserverContext ObserverTrigger TrajectoryObserver on_loop"
            ),
            "prompt.trajectory": "CallDigest Trajectory",
        },
    )
