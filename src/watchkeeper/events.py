"""Every event that the log of a run may hold, and the envelope that it is in."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.prompt.advice import Assessment as Assessment, Feedback as Feedback, Observation as Observation
    from watchkeeper.prompt.evaluation import PromptDeadlineAssigned as PromptDeadlineAssigned
    from watchkeeper.prompt.evaluation import PromptExecuted as PromptExecuted, PromptRendered as PromptRendered
    from watchkeeper.runtime.events import AdviceAcknowledged as AdviceAcknowledged, CallBegun as CallBegun
    from watchkeeper.runtime.events import CallEnded as CallEnded, ChildEnded as ChildEnded
    from watchkeeper.runtime.events import ChildStarted as ChildStarted, CompletionChecked as CompletionChecked
    from watchkeeper.runtime.events import ContextCompacted as ContextCompacted, EscalationTaken as EscalationTaken
    from watchkeeper.runtime.events import ItemEnded as ItemEnded, ManyEnded as ManyEnded, ManyStarted as ManyStarted
    from watchkeeper.runtime.events import ModelFailed as ModelFailed, ModelReplied as ModelReplied
    from watchkeeper.runtime.events import ModelSwitched as ModelSwitched, NoticeAppended as NoticeAppended
    from watchkeeper.runtime.events import ObserversRan as ObserversRan, ReducerFailed as ReducerFailed
    from watchkeeper.runtime.events import RunEnded as RunEnded, RunOpened as RunOpened, RunResumed as RunResumed
    from watchkeeper.runtime.events import RunStarted as RunStarted, SourceRan as SourceRan, StoreFailed as StoreFailed
    from watchkeeper.runtime.events import WorkStopped as WorkStopped
    from watchkeeper.session.log import Envelope as Envelope, RolledBack as RolledBack, SessionReset as SessionReset
    from watchkeeper.session.log import SliceEdited as SliceEdited, StateInherited as StateInherited
    from watchkeeper.shield.decision import SafetyEvent as SafetyEvent
    from watchkeeper.subagents.payloads import Artifact as Artifact
    from watchkeeper.tools.context import ToolInvoked as ToolInvoked
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "prompt.advice": "Assessment Feedback Observation",
            "prompt.evaluation": "PromptDeadlineAssigned PromptExecuted PromptRendered",
            "runtime.events": (
                "AdviceAcknowledged CallBegun CallEnded ChildEnded ChildStarted CompletionChecked ContextCompacted "
                "EscalationTaken ItemEnded ManyEnded ManyStarted ModelFailed ModelReplied ModelSwitched "
                "NoticeAppended ObserversRan ReducerFailed RunEnded RunOpened RunResumed RunStarted SourceRan "
                "StoreFailed WorkStopped"
            ),
            "session.log": "Envelope RolledBack SessionReset SliceEdited StateInherited",
            "shield.decision": "SafetyEvent",
            "subagents.payloads": "Artifact",
            "tools.context": "ToolInvoked",
        },
    )
