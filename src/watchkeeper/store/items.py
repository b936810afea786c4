"""What is on its way to the store: which item is of which run, and how each becomes a line of its run's file.

Whatever is in an event, there is a line for it, with all credentials that the process holds replaced: if the event
cannot be written, the line holds a note in its place, so that those beside it are on record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from itertools import groupby
from operator import attrgetter
from typing import Final, cast
from uuid import UUID

import msgspec

from watchkeeper.core.codec import encode
from watchkeeper.core.errors import StoreError
from watchkeeper.core.secrets import HELD, redacted
from watchkeeper.core.text import logger, storable
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.events import CallBegun
from watchkeeper.runtime.file_record import FilesChanged, storable_files
from watchkeeper.session.event_json import data_of, write_event
from watchkeeper.session.log import Envelope
from watchkeeper.session.tagging import dump
from watchkeeper.store.run_file import MOST_LINE, EventLine, begun_line, event_line, files_line
from watchkeeper.store.run_index import HEAD_BYTES

UNWRITABLE: Final = "$unwritable"

_RUN_ID: Final = attrgetter("run_id")


class Item(msgspec.Struct, frozen=True, gc=False):
    """One envelope, or what is about to begin, on its way to the store.

    Attributes:
        run_id: Its run.
        envelope: The event with its number and time; or a call, or changes of files, which are no events of the
            session's log.
        more: Whether the next one of the same run belongs to it: they are on record together or not at all.
        past: Whether it is from before the run.
    """

    run_id: UUID
    envelope: Envelope | CallBegun | FilesChanged
    more: bool = False
    past: bool = False


class UnwrittenError(StoreError):
    """Some runs of a batch could not be written; the others are.

    Attributes:
        runs: The ids of those that could not.
    """

    def __init__(self, message: str, runs: Set[UUID]) -> None:
        """Say why, and of which runs nothing was written."""
        super().__init__(message)
        self.runs = runs


def effect_line(what: CallBegun | FilesChanged) -> bytes:
    """Return the line that says that a call begins or files change; texts that UTF-8 cannot hold are made storable."""
    try:
        return begun_line(what) if isinstance(what, CallBegun) else files_line(what)
    except UnicodeEncodeError:
        if isinstance(what, FilesChanged):
            return files_line(storable_files(what))
        return begun_line(msgspec.structs.replace(what, name=storable(what.name), call_id=storable(what.call_id)))


def by_run_of(batch: Sequence[Item]) -> Sequence[tuple[UUID, Sequence[Item]]]:
    """Return the items of each run together; the run whose last event is older comes first: the end of a child."""
    for item in batch:
        if item.run_id is not batch[0].run_id:
            break
    else:
        return [(batch[0].run_id, batch)] if batch else ()
    by_run: dict[UUID, list[Item]] = {}
    for run_id, side_by_side in groupby(batch, _RUN_ID):
        by_run[run_id] = [*by_run.pop(run_id, ()), *side_by_side]
    return [*by_run.items()]


def line_of(envelope: Envelope, more: bool = False, past: bool = False) -> bytes:
    """Return an event's line; with a note in place of the event if it cannot be written, so that the others are."""
    event, changes, changed = cast("object", envelope.event), envelope.changes, b""
    tag = tag_of(type(event))
    try:
        if changes is None:
            line = _line_at_once(EventLine(envelope.seq, envelope.at, tag, data_of(event), None, more, past))
            if line is not None:
                return line
        body = _redacted(write_event(event))
        if changes is not None:
            changed = _redacted(encode([dump(change) for change in changes]))
        if len(body) + len(changed) > MOST_LINE - HEAD_BYTES:
            raise ValueError(f"it takes {len(body) + len(changed):,} bytes")
    except Exception as error:
        said = redacted(f"{type(error).__name__}: {error}")
        logger().warning("event.unwritable", seq=envelope.seq, event_type=tag, error=said)
        body = json.dumps({UNWRITABLE: said}).encode()
    raw = msgspec.Raw(changed) if changed else None
    return event_line(EventLine(envelope.seq, envelope.at, tag, msgspec.Raw(body), raw, more, past))


def _line_at_once(event: EventLine) -> bytes | None:
    """Return the line of nearly every event; None if msgspec cannot write it, or it is too long or not redacted."""
    try:
        line = event_line(event)
    except (TypeError, ValueError, RecursionError):
        return None
    if len(line) > MOST_LINE:
        return None
    return line if not HELD.any or _redacted(line) == line else None


def _redacted(data: bytes) -> bytes:
    return HELD.redacted_json(data.decode()).encode() if HELD.any else data
