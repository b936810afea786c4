"""Every event that the log of a run may hold, the envelope that it is in, and who is told of some of them."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.app.telling.notify import Notify as Notify
    from watchkeeper.prompt.advice import Assessment as Assessment, Feedback as Feedback, Observation as Observation
    from watchkeeper.prompt.evaluation import PromptDeadlineAssigned as PromptDeadlineAssigned
    from watchkeeper.prompt.evaluation import PromptExecuted as PromptExecuted, PromptRendered as PromptRendered
    from watchkeeper.runtime.advice_events import AdviceAcknowledged as AdviceAcknowledged
    from watchkeeper.runtime.advice_events import EscalationTaken as EscalationTaken, ObserversRan as ObserversRan
    from watchkeeper.runtime.advice_events import SourceRan as SourceRan
    from watchkeeper.runtime.events import CallBegun as CallBegun, CallEnded as CallEnded, ChildEnded as ChildEnded
    from watchkeeper.runtime.events import ChildStarted as ChildStarted, CompletionChecked as CompletionChecked
    from watchkeeper.runtime.events import ContextCompacted as ContextCompacted, ItemEnded as ItemEnded
    from watchkeeper.runtime.events import ManyEnded as ManyEnded, ManyStarted as ManyStarted
    from watchkeeper.runtime.events import ModelFailed as ModelFailed, ModelReplied as ModelReplied
    from watchkeeper.runtime.events import ModelSwitched as ModelSwitched, NoticeAppended as NoticeAppended
    from watchkeeper.runtime.events import NoticeSent as NoticeSent, ReducerFailed as ReducerFailed
    from watchkeeper.runtime.events import RunEnded as RunEnded, RunOpened as RunOpened, RunResumed as RunResumed
    from watchkeeper.runtime.events import RunStarted as RunStarted, StoreFailed as StoreFailed
    from watchkeeper.runtime.events import WorkStopped as WorkStopped
    from watchkeeper.runtime.file_record import FilesNotOnRecord as FilesNotOnRecord
    from watchkeeper.runtime.parking import CallAnswered as CallAnswered, CallParked as CallParked
    from watchkeeper.session.log import Envelope as Envelope, RolledBack as RolledBack, SessionReset as SessionReset
    from watchkeeper.session.log import SliceEdited as SliceEdited, StateInherited as StateInherited
    from watchkeeper.shield.decision import SafetyEvent as SafetyEvent
    from watchkeeper.subagents.payloads import Artifact as Artifact
    from watchkeeper.tools.context import ToolInvoked as ToolInvoked
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "app.telling.notify": "Notify",
            "prompt.advice": "Assessment Feedback Observation",
            "prompt.evaluation": "PromptDeadlineAssigned PromptExecuted PromptRendered",
            "runtime.advice_events": "AdviceAcknowledged EscalationTaken ObserversRan SourceRan",
            "runtime.events": (
                "CallBegun CallEnded ChildEnded ChildStarted CompletionChecked ContextCompacted ItemEnded ManyEnded "
                "ManyStarted ModelFailed ModelReplied ModelSwitched NoticeAppended NoticeSent ReducerFailed RunEnded "
                "RunOpened RunResumed RunStarted StoreFailed WorkStopped"
            ),
            "runtime.file_record": "FilesNotOnRecord",
            "runtime.parking": "CallAnswered CallParked",
            "session.log": "Envelope RolledBack SessionReset SliceEdited StateInherited",
            "shield.decision": "SafetyEvent",
            "subagents.payloads": "Artifact",
            "tools.context": "ToolInvoked",
        },
    )
