"""What ``watchkeeper show`` prints of one run: its task, what the model said between its calls, what happened, its end.

Events are read, told and forgotten one after the other, so that a run of any length takes the same memory. Texts of
several lines stand behind a fence; the first lines of each are printed, with ``--full`` all of it. Like the lines of a
report, a story is made of tags and JSON alone, and shows an event as it is if another version wrote it with other
fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from watchkeeper.cli.console import Part, behind_fence, fenced, print_fenced, put, put_all
from watchkeeper.cli.stored.listing import SHORT_ID, print_runs, state_in_words
from watchkeeper.cli.report import FORMATTERS, UNSEEN, Body, fork_line, has_line, line_from, parts_of
from watchkeeper.cli.stored.under_way import CallsUnderWay, parts_of_call, under_way_in, words_of
from watchkeeper.cli.storing import to_type
from watchkeeper.core.quantities import counted
from watchkeeper.core.secrets import redacted
from watchkeeper.core.text import clipped, one_line
from watchkeeper.inspector.wording import labels_in, never_began, place_below, run_above, sentence_of
from watchkeeper.runtime.last_failures import LastFailures
from watchkeeper.store.plain_json import UNREADABLE, said_in
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore, StoredEvent

TASK_LINES: Final = 10
WORDS_LINES: Final = 3
TRACEBACK_LINES: Final = 6
"""Lines of the task, of what the model says and of a traceback that are printed without ``--full``."""

LINE_CUT: Final = 200
"""Characters that are printed of each of these lines."""

WHOLE: Final[Mapping[str, Mapping[str, str]]] = {
    "tool_invoked": {"params": "arguments", "rendered_output": "result"},
    "observers_ran": {"runs": "observers", "text": "told the agent"},
    "notice_appended": {"text": "told the agent"},
    "advice_acknowledged": {"reason": "reason"},
    "completion_checked": {"explanation": "explanation"},
    "safety_event": {"hook": "decided by", "metadata": "facts"},
    "call_parked": {"arguments": "arguments", "question": "question"},
    "call_answered": {"why": "reason"},
    "child_ended": {"said": "said"},
    "context_compacted": {"summary": "summary"},
    "model_failed": {"error": "error"},
    "call_ended": {"error": "error"},
    "slice_edited": {"items": "items"},
}
"""What ``--full`` prints below the line of an event if the line has only a part of it: fields, each with its name."""

HINT: Final = "--full shows all"

Lines = Iterator[Sequence[Part]]


def print_run(console: Console, store: RunStore, run: StoredRun, *, full: bool = False) -> None:
    """Print one stored run: its head, its story, its children or items, its answer, its end."""
    what = one_line(run.prompt if run.item is None else f"{run.prompt}, item {run.item}")
    if run.is_block:
        put(console, "contained block ", (what, "bold"), f" {run.run_id}")
    else:
        put(console, (what, "bold"), f" {run.run_id} with ", (one_line(run.model), "cyan"))
    put(console, (f"started {run.started_at:%Y-%m-%d %H:%M:%S} UTC; limits: {run.limits}", "dim"))
    above = run_above(store, run)
    if above is not None:
        within = "" if above.items is None else f", within its limits: {above.limits}"
        put(console, (f"{one_line(place_below(above))} ({above.run_id[:SHORT_ID]}){within}", "dim"))
    story = Story(lambda calls: words_of(store, run, calls), full=full)
    put_all(console, story.lines(store.events(run.run_id, calls=True)))
    children = store.children(run.run_id)
    if children:
        put(console)
        print_runs(console, children)
        for each, words in under_way_in(store, children):
            put(console, *parts_of_call(words, each))
    missing = never_began(run, story.items, children)
    if missing:
        put(console, (one_line(missing), "yellow"))
    if story.answer:
        put(console)
        print_fenced(console, story.answer)
    put(console, (one_line(sentence_of(run, story.explanation, story.last)), state_in_words(run)[1]))
    if run.is_resumable and run.parent_id is None:
        put(console, (f"go on with: {to_type(f'resume {run.run_id[:SHORT_ID]}', store.path)}", "dim"))
    store.check(children)


class Story:
    """Makes lines of events.

    Attributes:
        answer: The text with which the run ended, once all events are told.
        explanation: What the last check of an answer said.
        items: The labels of a run over many.
        last: Its last tool calls.
    """

    def __init__(
        self, open_calls: Callable[[CallsUnderWay], Iterable[str]] = lambda _: (), *, full: bool = False
    ) -> None:
        """Tell the beginning of each text, or all of it.

        Args:
            open_calls: Returns calls that have begun and have no end, each in words.
            full: Whether to tell all of each text.
        """
        self.answer = ""
        self.explanation = ""
        self.items: Sequence[str] = ()
        self.last = LastFailures()
        self._open_calls = open_calls
        self._full = full
        self._final = ""

    def lines(self, events: Iterable[StoredEvent]) -> Lines:
        """Yield the lines of a run's events, given in order with the beginnings of its calls."""
        calls = CallsUnderWay()
        for event in events:
            tag = event.tag
            if tag == "run_resumed":
                yield from self._under_way(calls)
            calls.add(event)
            if tag in UNSEEN and tag not in ("run_started", "many_started", "run_ended"):
                continue
            fields: Body = event.untyped()
            if tag == "run_ended":
                self.answer = str(fields.get("text") or "")
                if self._final.strip() == self.answer.strip():
                    self._final = ""  # it stands at the end, whole
            if self._final:
                yield from self._final_words()
            if tag == "run_started":
                if origin := fields.get("forked_from"):
                    yield ((fork_line(origin, fields["forked_at"]), "dim"),)
            elif has_line(tag, fields):
                yield from self._told(event, fields)
            self._note(tag, fields)
        yield from self._final_words()
        yield from self._under_way(calls)

    def _note(self, tag: str, fields: Body) -> None:
        """Keep what is said of the run below its story."""
        try:
            if tag == "many_started":
                self.items = labels_in(fields)
            elif tag == "tool_invoked":
                self.last.add(str(fields["name"]), str(fields["outcome"]), str(fields["rendered_output"]))
        except UNREADABLE:
            pass  # another version wrote it; then nothing is said of it

    def _under_way(self, calls: CallsUnderWay) -> Lines:
        for words in self._open_calls(calls):
            yield (" " * len("00:00:00  "), *parts_of_call(words))

    def _told(self, event: StoredEvent, fields: Body) -> Lines:
        """Yield the line of an event, and what belongs below it."""
        line = line_from(event.tag, fields)
        yield ((event.at.time().isoformat("seconds"), "dim"), "  ", *parts_of(line))
        try:
            if event.tag == "prompt_rendered":
                yield from self._prompt(fields)
            elif event.tag == "model_replied":
                yield from self._words(fields["message"])
            elif event.tag == "completion_checked":
                self.explanation = str(fields["explanation"])
            if self._full:
                yield from self._whole(event.tag, fields, line.detail)
            if event.tag == "tool_invoked" and fields.get("traceback"):
                yield from self._text(str(fields["traceback"]), -TRACEBACK_LINES, "dim")
        except UNREADABLE:
            pass  # another version wrote it; the line shows what it has

    def _prompt(self, fields: Body) -> Lines:
        """Yield the task: what the user says in the prompt; with ``--full`` all of the prompt."""
        messages: Sequence[Body] = fields["messages"]
        if self._full:
            for message in messages:
                yield from self._named(str(message["role"]), said_in(message))
        else:
            asked = [message for message in messages if message["role"] == "user"]
            yield from self._text(said_in((asked or messages)[-1]), TASK_LINES)

    def _words(self, message: Body) -> Lines:
        """Yield what the model says beside its calls; what it says without a call may be its answer, and waits."""
        if self._full and message.get("reasoning"):
            yield from self._named("thought", str(message["reasoning"]))
        if message["tool_calls"]:
            yield from self._text(str(message["text"]), WORDS_LINES)
        else:
            self._final = str(message["text"])

    def _final_words(self) -> Iterable[Sequence[Part]]:
        """Return what the model said without a call, if that was not its answer."""
        final, self._final = self._final, ""
        return self._text(final, WORDS_LINES)

    def _whole(self, tag: str, fields: Body, shown: str) -> Lines:
        """Yield what the line of an event does not show of it."""
        if tag not in FORMATTERS:
            yield from self._named("event", as_text(fields))
        for name, label in WHOLE.get(tag, {}).items():
            value = fields.get(name)
            flat = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if value and one_line(flat) not in shown:
                yield from self._named(label, as_text(value))

    def _named(self, label: str, text: str) -> Lines:
        """Yield a whole text below its name."""
        yield ((f"          {label}", "dim"),)
        yield from fenced(text)

    def _text(self, text: str, most: int, style: str = "") -> Iterable[Sequence[Part]]:
        """Return the first lines of a text, or the last ones for a negative number; with ``--full`` all of them."""
        text = text.strip()
        if not text:
            return ()
        if self._full:
            return fenced(text, style)
        every = redacted(text).replace("\r\n", "\n").split("\n")
        shown = [clipped(line, LINE_CUT) for line in (every[:most] if most > 0 else every[most:])]
        left = len(every) - len(shown)
        if left:
            note = f"[{counted(left, 'line')} {'more' if most > 0 else 'before this'}; {HINT}]"
            shown.insert(len(shown) if most > 0 else 0, note)
        return [behind_fence(line, style) for line in shown]


def as_text(value: Any) -> str:
    """Return a text as it is, and anything else as JSON for people."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def with_children(store: RunStore, run: StoredRun) -> Iterator[StoredRun]:
    """Yield a run and all below it, each before its own children, in the order they began."""
    yield run
    children = store.children(run.run_id)
    store.check(children)
    for child in children:
        yield from with_children(store, child)


def event_as_data(run: StoredRun, event: StoredEvent) -> dict[str, Any]:
    """Return a stored event as JSON-able data."""
    at = event.at.isoformat()
    return {"run_id": run.run_id, "seq": event.seq, "at": at, "tag": event.tag, "event": event.body}
