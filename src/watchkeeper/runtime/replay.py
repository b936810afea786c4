"""Folds of a run's log: what was said. The transcript is not kept beside the log, it is read from it."""

from __future__ import annotations

from collections.abc import Iterable

from watchkeeper.core.messages import ToolCall, ToolMessage, UserMessage
from watchkeeper.core.transcript import Transcript
from watchkeeper.kernel.turn_machine import kept_message
from watchkeeper.prompt.events import PromptRendered
from watchkeeper.runtime.compaction_events import ContextCompacted, segment_of
from watchkeeper.runtime.events import ModelReplied, NoticeAppended
from watchkeeper.session.log import Envelope
from watchkeeper.tools.invoked import ToolInvoked


def transcript_of(log: Iterable[Envelope]) -> Transcript:
    """Return the conversation that a log tells of.

    A reply is followed by one message per tool call, in the order of the calls; of several attempts at a call the last
    one counts. A call whose run was broken off before it had a result is answered with that, because providers refuse
    calls that nobody answered. Where the conversation was compacted, what is returned is its newest segment.
    """
    transcript = Transcript()
    results: dict[str, ToolMessage] = {}

    def flush() -> None:
        for message in results.values():
            transcript.append(message)
        results.clear()

    for envelope in log:
        match envelope.event:
            case ToolInvoked(call_id=str(call_id), name=name, rendered_output=text) as invoked:
                results[call_id] = ToolMessage(call_id, name, text, is_error=not invoked.success)
            case PromptRendered(messages=messages):
                flush()
                for message in messages:
                    transcript.append(message)
            case ModelReplied(message=message, finish=finish, landing=landing):
                flush()
                kept = kept_message(message, finish, landing=landing)
                if kept is not None:
                    transcript.append(kept)
                    results.update((call.call_id, unanswered(call)) for call in kept.tool_calls)
            case NoticeAppended(text=text):
                flush()
                transcript.append(UserMessage.of(text))
            case ContextCompacted(opening=opening, summary=summary, kept=kept):
                flush()
                transcript.begin_segment(segment_of(list(transcript), opening, summary, kept))
            case _:
                pass
    flush()
    return transcript


def unanswered(call: ToolCall) -> ToolMessage:
    """Return what a model is told of a call whose run ended before the call did."""
    said = "no result: the run was broken off; the call may or may not have had its effect"
    return ToolMessage(call.call_id, call.name, said, is_error=True)
