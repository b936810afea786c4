"""Sessions: typed state that is a fold of one event log, with reducers, snapshots, branches and read-only views."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.ids import RunContext as RunContext
    from watchkeeper.core.type_tags import stored_as as stored_as
    from watchkeeper.session.log import Dispatcher as Dispatcher, Envelope as Envelope, EventBus as EventBus
    from watchkeeper.session.log import EventLog as EventLog, InProcessDispatcher as InProcessDispatcher
    from watchkeeper.session.log import Unsubscribe as Unsubscribe, event as event
    from watchkeeper.session.session import Branch as Branch, Session as Session, SessionView as SessionView
    from watchkeeper.session.session import SliceAccessor as SliceAccessor
    from watchkeeper.session.session import iter_sessions_bottom_up as iter_sessions_bottom_up
    from watchkeeper.session.slices import Append as Append, Clear as Clear, Extend as Extend, Op as Op
    from watchkeeper.session.slices import Reducer as Reducer, Replace as Replace, SliceView as SliceView
    from watchkeeper.session.slices import Snapshot as Snapshot, append_event as append_event
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "core.ids": "RunContext",
            "core.type_tags": "stored_as",
            "session.log": "Dispatcher Envelope EventBus EventLog InProcessDispatcher Unsubscribe event",
            "session.session": "Branch Session SessionView SliceAccessor iter_sessions_bottom_up",
            "session.slices": "Append Clear Extend Op Reducer Replace SliceView Snapshot append_event",
        },
    )
