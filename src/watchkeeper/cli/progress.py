"""Progress while a run goes on: one line per thing that happened, in plain words.

A line is printed when something is over, never redrawn, so that it reads the same in a terminal, a CI log and a file.
Where several runs go on at once every line says whose it is; what a child run does stands further in. Called on a
listener's worker thread, one event at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from watchkeeper.cli.console import one_line, styled
from watchkeeper.cli.wording import Line, line_of
from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.core.quantities import counted
from watchkeeper.core.tagging import dump
from watchkeeper.runtime.child_events import ChildStarted
from watchkeeper.runtime.events import ItemEnded, ManyStarted, RunEnded, RunStarted
from watchkeeper.session.events import SliceEdited
from watchkeeper.session.registry import event_tag

if TYPE_CHECKING:
    from rich.console import Console

    from watchkeeper.session.log import Envelope

LABEL_WIDTH: Final = 28
CHILD_INDENT: Final = "    "
HINT: Final = "It hands over what it has; Ctrl-C again stops it at once."


class Progress:
    """Prints events as they happen."""

    def __init__(self, console: Console) -> None:
        """Print to ``console``."""
        self._console = console
        self._items: dict[UUID, str] = {}
        self._depths: dict[UUID, int] = {}
        self._many: ManyStarted | None = None
        self._width = 0

    def __call__(self, run_id: UUID, envelope: Envelope) -> None:
        """Print one event, if it is worth a line."""
        event: object = envelope.event
        match event:
            case ManyStarted():
                self._many = event
                self._width = min(max(map(len, event.items), default=0), LABEL_WIDTH)
                self._head(f"{event.prompt_name} over {counted(len(event.items), 'item')}", event)
            case RunStarted(item=str(item)):
                self._items[run_id] = item
                if not self._interleaved:
                    self._console.print(styled(("▸ ", "bold"), one_line(item)))
            case RunStarted() if run_id in self._depths:
                pass  # the line above says that it began
            case RunStarted():
                self._head(event.prompt_name, event)
            case ChildStarted(run_context=child):
                self._line(run_id, event)
                self._items[child.run_id] = self._items.get(run_id, "")
                self._depths[child.run_id] = self._depths.get(run_id, 0) + 1
            case ItemEnded(run_id=None) | SliceEdited():
                pass  # an item that was never started is in the report at the end, state is in the store
            case ItemEnded():
                self._line(None, event)
            case SafetyEvent(event_type="interrupted"):
                self._line(run_id, replace(event, reason=f"{event.reason} {HINT}"))
            case RunEnded():
                self._items.pop(run_id, None)
                self._depths.pop(run_id, None)
            case _:
                self._line(run_id, event)

    @property
    def _interleaved(self) -> bool:
        return self._many is not None and self._many.concurrency > 1

    def _head(self, what: str, started: RunStarted | ManyStarted) -> None:
        others = f", or else {', '.join(started.fallback)}" if started.fallback else ""
        self._console.print(styled((what, "bold"), " with ", (started.model, "cyan"), (others, "dim")))
        self._console.print(styled((f"limits: {started.limits}", "dim")))

    def _line(self, run_id: UUID | None, event: object) -> None:
        line = line_of(event_tag(type(event)), dump(event))
        if line is None:
            return
        label = "" if run_id is None else self._items.get(run_id, "")
        if label and self._interleaved:
            label = one_line(label, LABEL_WIDTH).ljust(self._width) + "  "
        else:
            label = "  " if run_id is not None else ""
        if run_id is not None:
            label += CHILD_INDENT * self._depths.get(run_id, 0)
        self._console.print(styled((label, "dim"), *parts_of(line)))


def parts_of(line: Line) -> list[str | tuple[str, str]]:
    """Return a line's parts with their styles."""
    return [(line.mark, line.style), " ", (one_line(line.what), "bold"), "  ", one_line(line.detail)]
