"""What a person reads about runs: a line for each event, the end of a run, and what the store holds of runs.

The words are the same while a run goes on, at its end and from the store; results and stored runs have the same JSON
keys for the same things. A line is made from an event's tag and JSON alone, so that events of types that cannot be
imported here can be shown. An event without a formatter shows as its tag and its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TextIO
from uuid import UUID

from rich.console import Console
from rich.text import Text

from watchkeeper.cli.console import CUT, Part, print_fenced, print_table, put, styled
from watchkeeper.core.codec import display, to_builtins
from watchkeeper.core.quantities import counted, format_duration, format_money
from watchkeeper.core.secrets import HELD, redacted
from watchkeeper.core.text import one_line
from watchkeeper.core.type_tags import tag_of
from watchkeeper.runtime.events import (
    CallEnded,
    ChildStarted,
    ItemEnded,
    ManyStarted,
    ModelReplied,
    RunEnded,
    RunResumed,
    RunStarted,
)
from watchkeeper.runtime.last_failures import LastFailures
from watchkeeper.runtime.result import NOT_STARTED, ManyResult, RunResult
from watchkeeper.session.log import Envelope, SliceEdited
from watchkeeper.session.tagging import dump
from watchkeeper.shield.decision import SafetyEvent
from watchkeeper.shield.pipeline import QUESTION
from watchkeeper.core.usage import TokenUsage
from watchkeeper.ledgers.ledger_file import AccountReport, PresumedCall
from watchkeeper.store.plain_json import UNREADABLE, untyped
from watchkeeper.store.items import UNWRITABLE
from watchkeeper.store.states import FAILURES as FAULTS, words_for
from watchkeeper.tools.context import ToolInvoked

Body = Mapping[str, Any]
REPEATED: Final = frozenset(("prompt_deadline_assigned", "prompt_executed"))
"""Events whose content is in those around them."""

UNSEEN: Final = REPEATED | {
    *("run_started", "many_started", "many_ended", "run_ended"),
    *("call_begun", "work_stopped"),
}
"""Events without a line: the head and the end of a report, or the lines around it, have their content."""

SEVERITIES: Final = ("suspicion", "info", "caution", "warning")
ARGUMENTS_CUT: Final = 60
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)

VERDICT_MARKS: Final[Mapping[str, tuple[str, str]]] = {"verified": ("✓", "green"), "rejected": ("✗", "yellow")}
NOT_VERIFIED: Final = ("?", "yellow")


@dataclass(frozen=True, slots=True)
class Line:
    """What happened.

    Attributes:
        mark: One character that tells the kind.
        style: Colour of the mark.
        what: A word or two.
        detail: The rest.
    """

    mark: str
    style: str
    what: str
    detail: str


def line_of(tag: str, body: Body) -> Line | None:
    """Return the line of an event, given as a store holds it; None for one that says nothing to a person."""
    return line_from(tag, untyped(body)) if has_line(tag, body) else None


def has_line(tag: str, body: Body) -> bool:
    """Return whether an event says something to a person that no line around it says."""
    if tag == "safety_event":  # of a call that a person is to allow, the next line says that it is parked or denied
        facts: object = body.get("metadata")
        return not (isinstance(facts, Mapping) and QUESTION in facts)
    return tag not in UNSEEN and not (tag == "run_opened" and body.get("not_resumable") == "")


def line_from(tag: str, fields: Body) -> Line:
    """Return the line of an event, given without the names of types in it."""
    format_line = FORMATTERS.get(tag)
    if format_line is not None and UNWRITABLE not in fields:
        try:
            return format_line(fields)
        except UNREADABLE:
            pass  # another version wrote it, with other fields: show them as they are
    return Line("·", "dim", one_line(tag, CUT), one_line(json.dumps(fields, ensure_ascii=False), CUT))


def done_mark(verdict: str) -> tuple[str, str]:
    """Return mark and colour of completed work; they differ if it could not be verified."""
    return NOT_VERIFIED if verdict == "unverified" else ("✓", "green")


def _prompt_rendered(body: Body) -> Line:
    tools = ", ".join(body["tool_names"]) or "none"
    return Line("○", "dim", "prompt", f"{counted(len(body['messages']), 'message')}, tools: {tools}")


def _model_replied(body: Body) -> Line:
    usage: Body = body["usage"]
    cached = f" ({usage['cached_tokens']:,} cached)" if usage.get("cached_tokens") else ""
    tokens = f"{usage['input_tokens']:,} in{cached}, {usage['output_tokens']:,} out"
    cost = body["cost_nanos"]
    price = "cost unknown" if cost is None else format_money(cost)
    took = format_duration(body["duration_ms"] / 1000)
    landing = ", landing" if body.get("landing") else ""
    return Line("●", "blue", "model", f"turn {body['turn']}{landing}: {tokens}, {price}, {took}")


def _tool_invoked(body: Body) -> Line:
    good = body["outcome"] == "ok"
    params = body["params"]
    given = params if isinstance(params, str) else _ENCODER.encode(params)
    said = one_line(str(body["rendered_output"]), CUT)
    outcome = "" if good else f"{body['outcome']}: "
    detail = f"{one_line(given, ARGUMENTS_CUT)} → {outcome}{said}"
    return Line("●", "green" if good else "red", one_line(str(body["name"]), ARGUMENTS_CUT), detail)


def _model_failed(body: Body) -> Line:
    retry = body["retry_in"]
    again = "" if retry is None else f"; again in {format_duration(retry)}"
    return Line("!", "yellow", "model failed", f"{body['fault']}: {body['error']}{again}")


def _observers_ran(body: Body) -> Line:
    runs: list[Body] = body["runs"]
    severities = [str(ran["advice"]["severity"]) for ran in runs if ran.get("advice")]
    broken = any(ran["outcome"] in ("failed", "overran") for ran in runs)
    gravest = max((*severities, "info"), key=SEVERITIES.index)
    style = "red" if broken else {"info": "dim", "caution": "yellow", "warning": "red"}[gravest]
    told = [str(source) for source in body["told"]]
    spoke = [str(ran["source"]) for ran in runs if ran.get("advice") and ran["advice"]["severity"] != "suspicion"]
    said = "; ".join(_ran(ran) for ran in runs) or "nothing new"
    if told:
        said += " → told the agent" if told == spoke else f" → told the agent what {' and '.join(told)} said"
    elif spoke:
        said += " → held back"
    return Line("◆", style, "observed", said)


def _ran(ran: Body) -> str:
    advice = ran.get("advice")
    if advice:
        return one_line(f"{ran['source']} [{advice['severity']}]: {advice['summary']}", 2 * CUT)
    said = ran.get("error") or "nothing more to say"
    return one_line(f"{ran['source']} {ran['outcome']}: {said}", 2 * CUT)


def _advice_acknowledged(body: Body) -> Line:
    calls = counted(int(body["for_calls"]), "call")
    reason = f": {body['reason']}" if body.get("reason") else ""
    verb = {"acknowledge": "acknowledged", "dismiss": "dismissed"}.get(str(body["action"]), str(body["action"]))
    return Line("←", "cyan", "answered", one_line(f"{body['source']} {verb} for {calls}{reason}", 2 * CUT))


def _call_ended(body: Body) -> Line:
    name = ":".join(part for part in (body["provider"], body["name"]) if part) or "a call"
    status, usage, cost = body["status"], body["usage"], body["cost_nanos"]
    why = ": ".join(part for part in (words_for(body["stop_reason"] or ""), body["error"]) if part)
    if status == "halted":
        said = f"{name}: refused, {why}"
    else:
        counts = f"{usage['input_tokens']:,} in, {usage['output_tokens']:,} out, " if body["kind"] == "llm" else ""
        price = "cost unknown" if cost is None else format_money(cost)
        said = f"{name}: {counts}{price}, {format_duration(body['duration_ms'] / 1000)}"
        said += "" if status == "ok" else f"; {why or status}"
    what = "model" if body["kind"] == "llm" else "call"
    return Line("●", "blue" if status == "ok" else "red", what, one_line(said, 2 * CUT))


def _model_switched(body: Body) -> Line:
    why = one_line(str(body["why"]), 2 * CUT)
    return Line("⇄", "yellow", "switched", f"to {body['to_model']} from {body['from_model']}: {why}")


def _completion_checked(body: Body) -> Line:
    verdict = str(body["verdict"])
    mark, style = VERDICT_MARKS.get(verdict, NOT_VERIFIED)
    return Line(mark, style, verdict, one_line(str(body["explanation"]), 2 * CUT))


def _item_ended(body: Body) -> Line:
    mark, style = ("✗", "red") if body["stop"] is not None else done_mark(str(body.get("verdict")))
    return Line(mark, style, str(body["item"]), str(body["sentence"]))


CHILD_KINDS: Final = {
    "evaluation": "asked",
    "verdict": "asked for a verdict",
    "summary": "asked for a summary",
    "run": "started",
    "block": "contained",
}


def _child_started(body: Body) -> Line:
    what = CHILD_KINDS.get(str(body["kind"]), "dispatched")
    run_id = str(body["run_context"]["run_id"]).partition("-")[0]
    name = f"block {body['prompt_name']}" if body["kind"] == "block" else f"{body['prompt_name']} with {body['model']}"
    return Line("↳", "magenta", what, f"{name}, run {run_id}; limits: {body['limits']}")


def _child_ended(body: Body) -> Line:
    mark, style = ("✗", "yellow") if body["stop"] is not None else done_mark(str(body["completion"]))
    return Line(mark, style, str(body["prompt_name"]), one_line(str(body["said"]), 2 * CUT))


def _context_compacted(body: Body) -> Line:
    left_out, kept = counted(int(body["left_out"]), "message"), int(body["kept"])
    sizes = f"{body['tokens_before']:,} to about {body['tokens_after']:,} tokens"
    return Line("≡", "cyan", "compacted", f"{sizes}: a summary stands for {left_out}, the newest {kept:,} stay")


def _slice_edited(body: Body) -> Line:
    items = one_line(json.dumps(body["items"], ensure_ascii=False), CUT)
    return Line("·", "dim", f"{body['edit']} {str(body['slice_type']).rpartition(':')[2]}", items)


def _run_resumed(body: Body) -> Line:
    tokens, unknown = body["spent"]["tokens"], body["unknown"]
    used = tokens["input_tokens"] + tokens["output_tokens"]
    items: Sequence[str] = body.get("items", ())
    said = f"{counted(len(items), 'item')} of it" if items else f"after event {body['after']:,}"
    said += f"; used so far: {used:,} tokens, {format_money(body['spent']['cost_nanos'])}"
    earlier: Body = body.get("earlier") or {}
    before: Body = earlier.get("usage") or {}
    if before.get("steps"):
        count = before["tokens"]["input_tokens"] + before["tokens"]["output_tokens"]
        said += f", and {count:,} tokens, {format_money(before['cost_nanos'])} that count no more"
    said += f"; limits: {body['limits']}"
    if unknown:
        said += f"; it is not known whether {counted(len(unknown), 'tool call')} had an effect"
    if body["changes"]:
        said += f"; changed since: {', '.join(body['changes'])}"
    return Line("↻", "yellow", "resumed", said)


def _call_parked(body: Body) -> Line:
    given = one_line(str(body["arguments"]), ARGUMENTS_CUT)
    said = f"{body['name']} ({body['call_id']}) {given}: {body['asked_by']} asks: {body['question']}"
    return Line("‖", "yellow", "parked", one_line(said, 2 * CUT))


def _call_answered(body: Body) -> Line:
    word, style = ("approved", "green") if body["allowed"] else ("denied", "red")
    why = f": {body['why']}" if body["why"] else ""
    return Line("←", style, word, one_line(f"{body['call_id']} by {body['by']}{why}", 2 * CUT))


def _notice_sent(body: Body) -> Line:
    error, to = str(body["error"]), one_line(str(body["to"]), ARGUMENTS_CUT)
    said = one_line(f"{to} ({body['notice']}): {error or body['sentence']}", 2 * CUT)
    return Line("!", "red", "not told", said) if error else Line("→", "dim", "told", said)


FORMATTERS: Final[Mapping[str, Callable[[Body], Line]]] = {
    "prompt_rendered": _prompt_rendered,
    "model_replied": _model_replied,
    "tool_invoked": _tool_invoked,
    "model_failed": _model_failed,
    "call_ended": _call_ended,
    "model_switched": _model_switched,
    "notice_appended": lambda body: Line("→", "yellow", "told the agent", one_line(str(body["text"]), 2 * CUT)),
    "observers_ran": _observers_ran,
    "advice_acknowledged": _advice_acknowledged,
    "run_opened": lambda body: Line("!", "yellow", "not resumable", one_line(str(body["not_resumable"]), 2 * CUT)),
    "files_not_on_record": lambda body: Line(
        "!", "yellow", "not resumable", one_line(f"what {body['name']} changed is not stored: {body['why']}", 2 * CUT)
    ),
    "run_resumed": _run_resumed,
    "events_missing": lambda body: Line(
        "!", "yellow", "missing", f"events {body['first']:,} to {body['last']:,} are missing in the record"
    ),
    "call_parked": _call_parked,
    "call_answered": _call_answered,
    "store_failed": lambda body: Line(
        "!", "red", "store failed", one_line(f"{body['then']}: {body['error']}", 2 * CUT)
    ),
    "escalation_taken": lambda body: Line("▲", "red", "escalated", str(body["detail"])),
    "completion_checked": _completion_checked,
    "safety_event": lambda body: Line("■", "red", words_for(str(body["event_type"])), str(body["reason"])),
    "notice_sent": _notice_sent,
    "reducer_failed": lambda body: Line("!", "red", "reducer failed", f"on {body['event_type']}: {body['error']}"),
    "item_ended": _item_ended,
    "child_started": _child_started,
    "child_ended": _child_ended,
    "context_compacted": _context_compacted,
    "slice_edited": _slice_edited,
}


# --- while a run goes on --------------------------------------------------------------------------------------------
# A line is printed when something is over, and never redrawn, so that it reads the same in a terminal, a CI log and a
# file. Where several runs go on at once, every line names its run; the lines of a child run are indented. Over more
# than `FEW` items there is only a counter, a few times. Called on a listener's worker thread, one event at a time.

FEW: Final = 10
"""Maximum number of items for which every event gets a line, and every item a row at the end."""

COUNTS: Final = 10
"""How often the counter is printed."""

FAILURES: Final = 20
"""Maximum number of failed items that are listed at the end."""

LABEL_WIDTH: Final = 28
CHILD_INDENT: Final = "    "
HINT: Final = "It hands over what it has; interrupted once more, it stops at once."


class Progress:
    """Prints events as they happen."""

    def __init__(self, console: Console) -> None:
        """Print to ``console``."""
        self._console = console
        self._items: dict[UUID, str] = {}
        self._depths: dict[UUID, int] = {}
        self._interleaved = False
        self._counter: Counter | None = None
        self._width = 0

    def __call__(self, run_id: UUID, envelope: Envelope) -> None:
        """Print one event, if it is worth a line."""
        event: object = envelope.event
        match event:
            case ManyStarted():
                self._over(event.items, event.concurrency, event.started_at)
                self._head(f"{event.prompt_name} over {counted(len(event.items), 'item')}", event)
            case RunResumed(items=items) if items:
                self._line(None, event)
                self._over(items, len(items), event.created_at)
            case SafetyEvent(event_type="interrupted"):
                self._line(run_id, replace(event, reason=f"{event.reason} {HINT}"))
            case _ if self._counter is not None:
                said = self._counter(run_id, event)
                if said:
                    put(self._console, said)
            case RunStarted(item=str(item)) | RunResumed(item=str(item)):
                self._items[run_id] = item
                if not self._interleaved:
                    put(self._console, ("▸ ", "bold"), one_line(item))
                if isinstance(event, RunResumed):
                    self._line(run_id, event)
            case RunStarted() if run_id in self._depths:
                pass  # the line above says that it began
            case RunStarted():
                self._head(event.prompt_name, event)
                if event.forked_from is not None:
                    put(self._console, (fork_line(str(event.forked_from), event.forked_at), "dim"))
            case ChildStarted(run_context=child):
                self._line(run_id, event)
                self._items[child.run_id] = self._items.get(run_id, "")
                self._depths[child.run_id] = self._depths.get(run_id, 0) + 1
            case ItemEnded(run_id=None) | SliceEdited():
                pass  # an item that was never started is in the report at the end, state is in the store
            case ItemEnded():
                self._line(None, event)
            case RunEnded():
                self._items.pop(run_id, None)
                self._depths.pop(run_id, None)
            case _:
                self._line(run_id, event)

    def _over(self, items: Sequence[str], concurrency: int, began: datetime) -> None:
        """Prepare for the items of a run over many."""
        self._interleaved = concurrency > 1
        self._width = min(max(map(len, items), default=0), LABEL_WIDTH)
        self._counter = Counter(len(items), began) if len(items) > FEW else None

    def _head(self, what: str, started: RunStarted | ManyStarted) -> None:
        others = f", or else {', '.join(started.fallback)}" if started.fallback else ""
        put(self._console, (what, "bold"), " with ", (started.model, "cyan"), (others, "dim"))
        put(self._console, (f"limits: {started.limits}", "dim"))

    def _line(self, run_id: UUID | None, event: object) -> None:
        line = line_of(tag_of(type(event)), HELD.redacted_data(dump(event)))  # before it is cut
        if line is None:
            return
        label = "" if run_id is None else self._items.get(run_id, "")
        if label and self._interleaved:
            label = one_line(label, LABEL_WIDTH).ljust(self._width) + "  "
        else:
            label = "  " if run_id is not None else ""
        if run_id is not None:
            label += CHILD_INDENT * self._depths.get(run_id, 0)
        put(self._console, (label, "dim"), *parts_of(line))


class Counter:
    """Counts the items of a run over many as they end, and adds up what they cost, also those that still run."""

    def __init__(self, items: int, began: datetime) -> None:
        """Begin with none of them."""
        self._items = items
        self._began = began
        self._ended = self._failed = 0
        self._cost: int | None = 0
        self._running: dict[UUID, int | None] = {}
        self._above: dict[UUID, UUID] = {}

    def __call__(self, run_id: UUID, event: object) -> str:
        """Take one event of a run; return the line of the counter if it is time for one, else an empty text."""
        match event:
            case ChildStarted(run_context=child):
                self._above[child.run_id] = self._above.get(run_id, run_id)
            case ModelReplied(cost_nanos=cost) | CallEnded(cost_nanos=cost):
                item = self._above.get(run_id, run_id)
                self._running[item] = total_cost(self._running.get(item, 0), cost)
            case RunEnded(usage=usage) if run_id not in self._above:
                self._running.pop(run_id, None)  # the usage has it all, also what has no event of its own
                self._cost = total_cost(self._cost, usage.cost_nanos)
            case ItemEnded():
                self._ended += 1
                self._failed += event.stop is not None
                share = COUNTS * self._ended // self._items
                if share > COUNTS * (self._ended - 1) // self._items:
                    return self._line((event.ended_at - self._began).total_seconds())
            case _:
                pass
        return ""

    def _line(self, seconds: float) -> str:
        spent = total_cost(self._cost, *self._running.values())
        cost = "cost unknown" if spent is None else format_money(spent)
        done = f"{self._ended - self._failed:,} of {self._items:,} done, {self._failed:,} not done, {cost}"
        left = self._items - self._ended
        return f"{done}, about {format_duration(seconds / self._ended * left)} left" if left else done


def total_cost(*parts: int | None) -> int | None:
    """Return a sum of nano-dollars; None if one of them is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


class JsonLines:
    """Prints events as JSON, one line each: those that have a line for people, and the ends of runs and items."""

    def __init__(self, out: TextIO) -> None:
        """Print to ``out``."""
        self._out = out
        self._items: dict[UUID, str] = {}

    def __call__(self, run_id: UUID, envelope: Envelope) -> None:
        """Print one event, if it matters."""
        event: object = envelope.event
        tag = tag_of(type(event))
        if tag in REPEATED:
            return
        if isinstance(event, RunStarted) and event.item is not None:
            self._items[run_id] = event.item
        item = self._items.pop(run_id, None) if isinstance(event, RunEnded) else self._items.get(run_id)
        data = {"run_id": str(run_id), "item": item, "seq": envelope.seq, "at": envelope.at.isoformat(), "tag": tag}
        self._out.write(json.dumps({**data, "event": HELD.redacted_data(dump(event))}) + "\n")
        self._out.flush()


def parts_of(line: Line) -> list[Part]:
    """Return a line's parts with their styles; what prints them escapes what is not printable."""
    what, detail = " ".join(line.what.split()), " ".join(line.detail.split())
    return [(line.mark, line.style), " ", (what, "bold"), "  ", detail]


# --- at its end, and from the store ---------------------------------------------------------------------------------

ANSWER_CUT: Final = 160
"""Answers of items are cut to this length in a terminal's table; a pipe, --json and ``show`` have all of them."""


def print_result(console: Console, result: RunResult[Any]) -> None:
    """Print the typed result, what ended it and what it cost."""
    put(console)
    shown = result.output if result.ok else result.partial
    if shown is not None:
        put(console, ("Result" if result.ok else "Partial result", "bold"))
        text = shown if isinstance(shown, str) else json.dumps(to_builtins(shown), indent=2, ensure_ascii=False)
        print_fenced(console, text)
    if result.answered_by not in ((), (result.model,)):
        put(console, (f"Answered by {', then '.join(map(one_line, result.answered_by))}", "cyan"))
    if result.completion_note:
        put(console, (f"{result.completion.capitalize()}: {one_line(result.completion_note)}", "cyan"))
    said = f"{one_line(result.sentence())} {failures_at_end(result)}".rstrip()
    put(console, (said, "green" if passed(result) else "yellow"))


def print_many(console: Console, result: ManyResult[Any]) -> None:
    """Print one row per item, then the whole; of many items only those that failed."""
    put(console)
    shown = result.results if len(result) <= FEW else result.not_done[:FAILURES]
    cut = ANSWER_CUT if console.is_terminal else None
    rows: list[tuple[Text | str, ...]] = []
    for item in shown:
        if item.ok:
            mark, said = styled(done_mark(item.completion)), one_line(redacted(display(item.output)), cut)
        else:
            mark, said = styled(("✗", "red")), one_line(_why_not_done(item, result))
        rows.append((one_line(item.item or "", cut and LABEL_WIDTH), mark, said))
    if rows:
        print_table(console, ("item", "", "result" if len(result) <= FEW else "not done"), rows)
    if len(result) > FEW and len(result.not_done) > FAILURES:
        put(console, f"and {len(result.not_done) - FAILURES:,} more")
    good = all(passed(item) for item in result.results)
    put(console, (one_line(result.sentence()), "green" if good else "yellow"))


def _why_not_done(item: RunResult[Any], whole: ManyResult[Any]) -> str:
    """Return why an item is not done; what the last line says of the whole is not said at each item."""
    message = "" if item.stop is None else item.stop.message
    if whole.stop is not None and message == f"{NOT_STARTED}{whole.stop.message}":
        return NOT_STARTED.rstrip(": ")
    return f"{message} {failures_at_end(item)}".rstrip()


def failures_at_end(result: RunResult[Any]) -> str:
    """Say which tool failed at each of the last calls of a run that was stopped, unless it was one call at most."""
    last = LastFailures()
    if result.stop is not None and result.stop.reason not in FAULTS:
        for each in result.session.log:
            if isinstance(each.event, ToolInvoked):
                last.add(each.event.name, each.event.outcome, each.event.rendered_output)
    return last.in_words()


def passed(result: RunResult[Any]) -> bool:
    """Return whether the work is done and was not left unverified."""
    return result.ok and result.completion != "unverified"


def fork_line(origin: str, at: int) -> str:
    """Say of which run another one is a fork, and what it does not have of that run."""
    return f"forked from the run {origin} after its event {at:,}; files are not set back to that time"


def print_accounts(console: Console, reports: Sequence[AccountReport]) -> None:
    """Print a table, one line for each account, and another one of the calls whose real charge is not known."""
    rows: list[tuple[Text | str, ...]] = []
    for report in reports:
        day, month = report.day, report.month
        held = format_money(report.held_nanos) if report.held_nanos or report.held_tokens else "nothing"
        today = (format_money(day.cost_nanos), f"{day.tokens:,}")
        rows.append((styled((report.name, "bold")), *today, format_money(month.cost_nanos), f"{month.tokens:,}", held))
    print_table(console, ("account", "today", "tokens", "this month", "tokens", "held"), rows)
    presumed = [
        (call.id, report.name, one_line(call.operation), call.reason, f"{call.since:%Y-%m-%d %H:%M}", *worst_of(call))
        for report in reports
        for call in report.presumed
    ]
    if presumed:
        put(console)
        put(console, "presumed, and part of the figures above; to correct one: watchkeeper account settle ID AMOUNT")
        print_table(console, ("id", "account", "call", "", "since (UTC)", "cost", "tokens"), presumed)


def print_settled(console: Console, settled: Sequence[PresumedCall], nanos: int, used: TokenUsage | None) -> None:
    """Say what is booked for a call now, and what was booked before; without tokens, those that were booked stay."""
    for call in settled[:1]:
        cost, tokens = worst_of(call)
        booked = f"{call.id}: {format_money(nanos)}"
        if used is None:
            put(console, f"{booked} is booked in the place of {cost}; the {tokens} tokens stay as they were")
            continue
        booked += f" and {used.total:,} tokens ({used.input_tokens:,} in, {used.output_tokens:,} out) are booked"
        put(console, f"{booked} in the place of {cost} and {tokens} tokens")


def worst_of(call: PresumedCall) -> tuple[str, str]:
    """Write what is presumed for a call: money and tokens."""
    return format_money(call.cost_nanos), f"{call.tokens.total:,}"
