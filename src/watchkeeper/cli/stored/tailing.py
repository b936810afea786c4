"""``watchkeeper tail``: the last lines of a stored run, those that follow while it goes on, and what is under way."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

from watchkeeper.cli.console import make_console, put
from watchkeeper.cli.stored.listing import state_in_words
from watchkeeper.cli.report import line_of, parts_of
from watchkeeper.cli.stored.story import event_as_data
from watchkeeper.cli.stored.under_way import CallsUnderWay, parts_of_call, under_way_in, words_of
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.text import one_line
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.events import CallBegun
from watchkeeper.store.run_file import ENDINGS
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore, StoredEvent

PAUSE: Final = 0.5
"""Seconds between two looks at a run that goes on."""

BEGUN: Final = tag_of(CallBegun)

Show = Callable[[StoredEvent], None]


def pause() -> None:
    """Wait before the next look."""
    SYSTEM_CLOCK.wait(threading.Event(), PAUSE)


def tail(store: RunStore, run: StoredRun, out: TextIO, count: int, *, follows: bool, as_json: bool) -> None:
    """Print the last lines of a run, then how it ended; if it is followed, what comes until its end before that.

    Raises:
        StoreError: At an event that is damaged.
    """
    console = make_console(out)

    def show(event: StoredEvent) -> None:
        if as_json:
            out.write(json.dumps(event_as_data(run, event)) + "\n")
            return
        line = line_of(event.tag, event.body)
        if line is not None:
            put(console, (f"{event.at:%H:%M:%S}", "dim"), "  ", *parts_of(line))

    calls = CallsUnderWay()
    position, ended = _show_last(store, run.run_id, count, show, calls, as_json=as_json)
    while follows and not ended and not console.quiet:  # quiet: the reader of a pipe is gone
        out.flush()
        goes_on = store.is_owned(run.run_id)  # asked before, so that what its process wrote last is read
        for behind, event in store.events_from(run.run_id, position, calls=True):
            calls.add(event)
            if event.tag != BEGUN:
                show(event)
            position, ended = behind, event.tag in ENDINGS
        if not ended and not goes_on:
            break
        if not ended:
            pause()
    if not as_json:
        now = store.find(run.run_id)
        for words in words_of(store, now, calls):
            put(console, " " * len("00:00:00  "), *parts_of_call(words))
        for each, words in under_way_in(store, store.children(run.run_id)):
            put(console, " " * len("00:00:00  "), *parts_of_call(words, each))
        put(console, (one_line(now.sentence()), state_in_words(now)[1]))


def _show_last(
    store: RunStore, run_id: str, count: int, show: Show, calls: CallsUnderWay, *, as_json: bool
) -> tuple[int, bool]:
    """Show the last events that have a line; return where the file goes on, and whether its run has ended."""
    position, ended = 0, False
    last: deque[StoredEvent] = deque(maxlen=count)
    for behind, event in store.events_from(run_id, 0, calls=True):
        calls.add(event)
        position, ended = behind, event.tag in ENDINGS
        if event.tag != BEGUN and (as_json or line_of(event.tag, event.body) is not None):
            last.append(event)
    for event in last:
        show(event)
    return position, ended
