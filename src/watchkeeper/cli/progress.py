"""Progress in the terminal while a run goes on: one line per thing that happened, in plain words.

A line is printed when something is over, never redrawn, so that it reads the same in a terminal, a CI log and a file.
Called on a listener's worker thread, one event at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from rich.markup import escape

from watchkeeper.containment.safety_event import SafetyEvent
from watchkeeper.core.codec import display
from watchkeeper.core.quantities import format_duration, format_money
from watchkeeper.runtime.events import (
    CompletionChecked,
    ItemEnded,
    ManyStarted,
    ModelFailed,
    ModelReplied,
    NoticeAppended,
    RunStarted,
)
from watchkeeper.tools.invoked import ToolInvoked

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100


def shorten(text: str, width: int = WIDTH) -> str:
    """Return text on one line, cut to a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


class Progress:
    """Prints events as they happen."""

    def __init__(self, console: Console) -> None:
        """Print to ``console``."""
        self._console = console
        self._items: dict[UUID, str] = {}
        self._many = False

    def __call__(self, event: Any) -> None:
        """Print one event, if it is worth a line."""
        match event:
            case ManyStarted():
                self._many = True
                self._head(f"{event.prompt_name} over {len(event.items)} items", event.model, event.limits)
            case RunStarted():
                if event.item is not None:
                    self._items[event.run_context.session_id] = event.item
                    self._line("[bold]▸[/bold]", event.item, "")
                elif not self._many:
                    self._head(event.prompt_name, event.model, event.limits)
            case ModelReplied():
                self._reply(event)
            case ToolInvoked():
                self._tool(event)
            case ModelFailed():
                again = f"; again in {format_duration(event.retry_in)}" if event.retry_in is not None else ""
                self._line("[yellow]![/yellow]", "model failed", f"{event.error}{again}")
            case NoticeAppended():
                self._line("[yellow]→[/yellow]", "told the agent", event.text)
            case CompletionChecked():
                self._line("[cyan]?[/cyan]", "checked", f"{event.status}: {event.explanation}")
            case SafetyEvent():
                self._line("[red]■[/red]", event.event_type, event.reason)
            case ItemEnded():
                mark = "[green]✓[/green]" if event.stop is None else "[red]✗[/red]"
                self._console.print(f"{mark} [bold]{escape(event.item)}[/bold]  {escape(event.sentence)}")
            case _:
                pass

    def _head(self, what: str, model: str, limits: str) -> None:
        self._console.print(f"[bold]{escape(what)}[/bold] with [cyan]{escape(model)}[/cyan]")
        self._console.print(f"[dim]limits: {escape(limits)}[/dim]")

    def _reply(self, event: ModelReplied) -> None:
        usage = (
            f"{event.usage.input_tokens:,} in ({event.usage.cached_tokens:,} cached), {event.usage.output_tokens:,} out"
        )
        cost = format_money(event.cost_nanos) if event.cost_nanos is not None else "cost unknown"
        said = f"turn {event.turn}: {usage}, {cost}, {format_duration(event.duration_ms / 1000)}"
        self._line("[blue]●[/blue]", "model", said)

    def _tool(self, event: ToolInvoked) -> None:
        mark = "[green]●[/green]" if event.success else "[red]●[/red]"
        arguments = shorten(display(event.params), 60)
        self._line(mark, event.name, f"{arguments} → {event.outcome}: {event.rendered_output}")

    def _line(self, mark: str, what: str, detail: str) -> None:
        self._console.print(f"  {mark} {escape(what)} [dim]{escape(shorten(detail))}[/dim]", highlight=False)
