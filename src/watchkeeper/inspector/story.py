"""The entries of a run's story: one for each event, with the words for it, its place in time, and what was said.

An entry of a running page has only the beginning of a text; the whole text is handed out when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from watchkeeper.core.quantities import counted, format_duration
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import clipped, printable
from watchkeeper.runtime.last_failures import LastFailures
from watchkeeper.store.plain_json import UNREADABLE, said_in
from watchkeeper.inspector.runs_view import shown
from watchkeeper.inspector.wording import labels_in
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import StoredEvent

MOST_CHARS: Final = 65_536
"""How much of one text is shown."""

FIRST_CHARS: Final = 280
"""How much of a text an entry has before the whole text is asked for."""

CHANGING: Final = frozenset({"rolled_back", "session_reset", "slice_edited"})
"""Events that change the state by what they are, without recorded changes."""

Marker = Literal["", "A", "S", "V", "B", "R"]


class Told(Protocol):
    """One line of the story."""

    @property
    def style(self) -> str:
        """Colour of the mark."""
        ...

    @property
    def what(self) -> str:
        """A word or two."""
        ...

    @property
    def detail(self) -> str:
        """The rest."""
        ...


Tells = Callable[[str, Mapping[str, Any]], Told | None]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the story.

    Attributes:
        seq: Number of its event.
        at: When it happened, in milliseconds after the start.
        after: How long after the start it happened, in words.
        tag: The kind of event.
        style: ``red``, ``yellow`` or anything else: how serious it is.
        what: A word or two; empty if the event says nothing to a person.
        detail: The rest of the line.
        text: What was said, as far as it is shown here; lines are kept.
        size: How many characters that has as a whole.
        marker: The letter of its marker: assessment, safety event, verdict, rolled back or retry; empty for none.
        changes: How many slices of the state it changed; 1 if it says so itself.
    """

    seq: int
    at: float
    after: str
    tag: str
    style: str = ""
    what: str = ""
    detail: str = ""
    text: str = ""
    size: int = 0
    marker: Marker = ""
    changes: int = 0


class Story:
    """Makes entries of events.

    Attributes:
        entries: One for each event.
        focus: Number of the event that stopped the run, or None.
        answer: What the run has answered.
        explanation: What its completion checker said last.
        items: The labels of a run over many.
        calls: Its last tool calls.
        last: When the last event was recorded.
    """

    def __init__(self, run: StoredRun, tells: Tells, *, whole: bool = True) -> None:
        """Tell the story of a run.

        Args:
            run: The run.
            tells: Returns the line of an event in words, given its tag and JSON.
            whole: Whether entries have their whole texts.
        """
        self.entries: list[Entry] = []
        self.focus: int | None = None
        self.answer = ""
        self.explanation = ""
        self.items: Sequence[str] = ()
        self.calls = LastFailures()
        self.last = run.started_at
        self._began = run.started_at
        self._tells = tells
        self._whole = whole
        self._reason = None if run.stop is None else run.stop.get("reason")

    def ended(self, run: StoredRun) -> None:
        """Take notice of how the run has ended."""
        self._reason = None if run.stop is None else run.stop.get("reason")

    def add(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        """Tell one event."""
        if event.tag == "call_begun":
            return
        self.last = event.at
        if event.tag == "run_ended":
            self.answer = str(fields.get("text") or "")
        elif event.tag == "completion_checked":
            self.explanation = str(fields.get("explanation") or "")
        elif event.tag == "tool_invoked":
            self.calls.add(*(str(fields.get(name)) for name in ("name", "outcome", "rendered_output")))
        elif event.tag == "many_started":
            self.items = labels_in(fields)
        if self._reason is not None and event.tag == "safety_event" and fields.get("event_type") == self._reason:
            self.focus = event.seq
        line = self._tells(event.tag, event.body)
        text = text_of(event.tag, fields)
        # A credential that the first cut divides stands behind the second.
        said = safe(text) if self._whole else safe(text[: 16 * FIRST_CHARS])[:FIRST_CHARS]
        after = max(0.0, (event.at - self._began).total_seconds())
        self.entries.append(
            Entry(
                seq=event.seq,
                at=round(after * 1000, 3),
                after=f"+{format_duration(after)}",
                tag=event.tag,
                style="" if line is None else line.style,
                what="" if line is None else shown(line.what),
                detail="" if line is None else shown(line.detail),
                text=said,
                size=len(text),
                marker=marker_of(event.tag, fields),
                changes=changes_in(event),
            )
        )


def changes_in(event: StoredEvent) -> int:
    """Return how many slices of the state an event has changed; 1 if it says so itself."""
    return len(event.changes or ()) or int(event.tag in CHANGING)


def marker_of(tag: str, fields: Mapping[str, Any]) -> Marker:
    """Return the letter of the marker that an event has on the time ruler; empty for none."""
    try:
        if tag == "observers_ran":
            return "A" if any(run.get("advice") for run in fields["runs"]) else ""
        if tag == "model_failed":
            return "R" if fields.get("retry_in") is not None else ""
        if tag == "tool_invoked":
            return "R" if fields.get("attempt", 1) > 1 else ""
    except UNREADABLE:
        return ""
    letters: Mapping[str, Marker] = {"safety_event": "S", "completion_checked": "V", "rolled_back": "B"}
    return letters.get(tag, "")


def text_of(tag: str, fields: Mapping[str, Any]) -> str:
    """Return the longer text of an event: the task, the model's words, a result, an explanation."""
    try:
        if tag == "prompt_rendered":
            asked: Sequence[Mapping[str, Any]] = fields["messages"]
            return "\n\n".join(said_in(message) for message in asked)
        if tag == "model_replied":
            return str(fields["message"]["text"])
        if tag == "tool_invoked":
            return str(fields.get("traceback") or fields["rendered_output"])
        if tag in ("notice_appended", "observers_ran"):
            return str(fields.get("text") or "")
        return str(fields["explanation"]) if tag == "completion_checked" else ""
    except UNREADABLE:
        return ""  # the line shows what the event has


def safe(text: str, most: int = MOST_CHARS) -> str:
    """Return a foreign text without credentials, with control characters escaped, and cut if it is very long."""
    cut = f"\n[{counted(len(text) - most, 'character')} more]" if len(text) > most else ""
    return printable(redacted(clipped(text, most) if cut else text)).strip() + cut
