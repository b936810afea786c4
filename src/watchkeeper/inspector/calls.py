"""The calls of a run and of the runs below it, from their events: when each began and ended, and what it used.

Each call is a node with its own use: what a run below has used that its calls on record do not have stands on the node
of that run. So the sum over all nodes is what the run has used. A call that is under way has a node without an end, and
its worst case; when it ends, another node with the same number takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, cast

import msgspec

from watchkeeper.core.quantities import format_duration
from watchkeeper.inspector.gauges import Use
from watchkeeper.inspector.runs_view import shown
from watchkeeper.shield.pipeline import QUESTION
from watchkeeper.store.ceilings import SECONDS
from watchkeeper.store.plain_json import UNREADABLE
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import StoredEvent
from watchkeeper.store.states import words_for

NOTHING: Final[Mapping[str, Any]] = {}
JUDGES: Final = ("evaluation", "verdict")
"""Kinds of runs below a run that judge its work."""

NodeKind = Literal["model", "tool", "child", "judge", "gate"]
KINDS: Final[Mapping[str, NodeKind]] = {"llm": "model", "tool": "tool"}


class Amounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What calls use, by what limits count.

    Attributes:
        cost_nanos: Money in nano-dollars; None if nobody knows.
        input_tokens: Tokens sent.
        output_tokens: Tokens returned.
        steps: Admitted calls.
        turns: Turns of the run's own model.
        tool_calls: Admitted tool calls.
        retries: Calls that repeated a failed one.
        presumed_nanos: The part of the money that is a worst case.
        presumed_input: The part of the tokens sent that is a worst case.
        presumed_output: The part of the tokens returned that is a worst case.
    """

    cost_nanos: int | None = 0
    input_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    turns: int = 0
    tool_calls: int = 0
    retries: int = 0
    presumed_nanos: int = 0
    presumed_input: int = 0
    presumed_output: int = 0

    def plus(self, other: Amounts, sign: int = 1) -> Amounts:
        """Return the sum, or with ``sign=-1`` the difference; an unknown cost of the other counts as nothing."""
        own, rest = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        cost = None if self.cost_nanos is None else self.cost_nanos + sign * (other.cost_nanos or 0)
        return Amounts(cost, *(one + sign * two for one, two in zip(own[1:], rest[1:], strict=True)))

    def by_field(self) -> dict[str, int]:
        """Return them by the field of the limit that counts them."""
        return {
            "max_cost_usd": self.cost_nanos or 0,
            "max_total_tokens": self.input_tokens + self.output_tokens,
            "max_input_tokens": self.input_tokens,
            "max_output_tokens": self.output_tokens,
            "max_steps": self.steps,
            "max_turns": self.turns,
            "max_tool_calls": self.tool_calls,
            "max_retries": self.retries,
        }

    def presumed(self) -> dict[str, int]:
        """Return the part that is a worst case, in the same way."""
        both = self.presumed_input + self.presumed_output
        fields = ("max_cost_usd", "max_total_tokens", "max_input_tokens", "max_output_tokens")
        amounts = (self.presumed_nanos, both, self.presumed_input, self.presumed_output)
        return dict(zip(fields, amounts, strict=True))


NO_AMOUNTS: Final = Amounts()


class Stretch(msgspec.Struct, frozen=True):
    """A time in which a process worked on the run: from when, and how many seconds others had worked before.

    Attributes:
        begin: In milliseconds after the start.
        end: When it was interrupted; None for the last one.
        worked: Seconds of work before it that count.
    """

    begin: float
    end: float | None
    worked: float


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call.

    Attributes:
        number: Its place among the nodes; it stays the same.
        seq: Number of the event of its end on the log of its run; of the last event before it while it is under way.
        run_id: The run whose log has it.
        kind: What was called; ``gate`` for a call that was refused.
        name: What it is called.
        begin: When it began, in milliseconds after the start of the run that is shown.
        end: When it ended; None while it is under way, and if its process died over it.
        parent: Number of the node that it is below.
        note: How it went, if not well, or how long it took.
        failed: Whether it did not do its work.
        used: What it has used itself.
        worst: The most that it may use or might have used, as it was reserved; None if that is not on record.
        child_id: The run that it is, if it is one.
        refused_at: The limit at which the gate refused it, if it was one.
        asked: The least that it asked for there, in the limit's unit; None if that is not on record.
        left: What was left there for work; None if that is not on record.
        depth: How deep it stands.
    """

    number: int
    seq: int
    run_id: str
    kind: NodeKind
    name: str
    begin: float
    end: float | None = None
    parent: int | None = None
    note: str = ""
    failed: bool = False
    used: Amounts = NO_AMOUNTS
    worst: Amounts | None = None
    child_id: str | None = None
    refused_at: str | None = None
    asked: int | None = None
    left: int | None = None
    depth: int = 0

    @property
    def cost_nanos(self) -> int | None:
        """Its own cost in nano-dollars; None if nobody knows."""
        return self.used.cost_nanos


class Nodes:
    """All nodes of a run and the runs below it.

    Attributes:
        began: When the run that is shown began.
        listed: The nodes by number.
        changed: Numbers of nodes in the order in which they were made or replaced.
        total: What all of them have used.
        counted: The part of it that counts for the limits: after a resumption with fresh ones, what came since.
        since: Milliseconds after the start before which what was used does not count any more.
        stretches: When processes worked on the run; one, unless it was resumed.
    """

    def __init__(self, began: datetime) -> None:
        """Begin without nodes."""
        self.began = began
        self.listed: list[Node] = []
        self.changed: list[int] = []
        self.total = self.counted = NO_AMOUNTS
        self.unpriced = False
        self.since = 0.0
        self.stretches = [Stretch(0.0, None, 0.0)]

    def after(self, at: datetime) -> float:
        """Return how many milliseconds after the start a moment is."""
        return round(max(0.0, (at - self.began).total_seconds()) * 1000, 3)

    def put(self, **fields: Any) -> int:
        """Add a node and return its number."""
        parent: int | None = fields.get("parent")
        depth = 0 if parent is None else self.listed[parent].depth + 1
        node = Node(number=len(self.listed), depth=depth, **fields)
        self.listed.append(node)
        self._count(node, 1)
        return node.number

    def replace(self, number: int, **fields: Any) -> None:
        """Put another node in the place of one."""
        self._count(self.listed[number], -1)
        self.listed[number] = node = msgspec.structs.replace(self.listed[number], **fields)
        self._count(node, 1)

    def forget(self) -> None:
        """Let only count what is used from here on."""
        self.counted, self.unpriced = NO_AMOUNTS, False

    def _count(self, node: Node, sign: int) -> None:
        if sign > 0:
            self.changed.append(node.number)
        if node.used is not NO_AMOUNTS:
            self.unpriced = self.unpriced or node.used.cost_nanos is None
            self.total = self.total.plus(node.used, sign)
            self.counted = self.counted.plus(node.used, sign)

    def use(self, elapsed: float | None) -> Use:
        """Return what a run that has not ended has used that limits count, and what calls under way hold.

        Args:
            elapsed: Seconds for which it has worked; None if nobody knows.
        """
        used: dict[str, float | None] = {SECONDS: elapsed, **self.counted.by_field()}
        if self.unpriced:
            used["max_cost_usd"] = None
        presumed: dict[str, float] = {field: amount for field, amount in self.counted.presumed().items() if amount}
        held: dict[str, float] = {}
        for node in self.listed:
            if node.end is None and node.worst is not None:
                for field, amount in node.worst.by_field().items():
                    held[field] = held.get(field, 0) + amount
        return Use(used, presumed, held)


class RunCalls:
    """Makes nodes of the events of one run, event by event.

    Attributes:
        run_id: The run.
        position: Up to where its file was read.
        last: Number of the last event that was read.
        below: The runs below it by id, as far as its log names them.
        node: The node that stands for the run; None for the run that is shown.
        inside: What its nodes and those below have used.
    """

    def __init__(self, run_id: str, nodes: Nodes, node: int | None = None) -> None:
        """Begin at the beginning of a run's log."""
        self.run_id = run_id
        self.node = node
        self.position = 0
        self.last = 0
        self.below: dict[str, RunCalls] = {}
        self._nodes = nodes
        self._log_id = run_id
        self._last_at = 0.0
        self._turn: int | None = None
        self._open: dict[str, tuple[int, int]] = {}  # by id at the gate: the node, and the attempt
        self._tools: dict[str, int] = {}  # by the provider's id: tool calls that are under way
        self._own_numbers: list[int] = []
        self._admitted: dict[str, int] = {}
        self._told_above: list[tuple[StoredEvent, Mapping[str, Any]]] = []
        self._read: Mapping[str, Callable[[StoredEvent, Mapping[str, Any]], None]] = {
            "call_begun": self._begun,
            "model_replied": self._replied,
            "model_failed": self._failed,
            "tool_invoked": self._invoked,
            "call_parked": self._parked,
            "call_ended": self._ended,
            "child_started": self._child_started,
            "child_ended": self._child_ended,
            "safety_event": self._refused,
            "run_resumed": self._resumed,
        }

    def add(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        """Take in one event; one of another version is left out."""
        self.last = event.seq or self.last
        if event.tag != "run_resumed":  # what was before it
            self._last_at = self._nodes.after(event.at)
        child = self.below.get(str(fields.get("run_id"))) if event.tag in ("call_begun", "call_ended") else None
        if child is not None:  # a call in a run below, which that run's own record has, too, if there is one
            child._told_above.append((event, fields))
            return
        read = self._read.get(event.tag)
        if read is not None:
            try:
                read(event, fields)
            except UNREADABLE:
                return

    def inside(self) -> Amounts:
        """Return what its nodes and those of the runs below have used."""
        total = NO_AMOUNTS
        for number in self._own_numbers:
            total = total.plus(self._nodes.listed[number].used)
        for child in self.below.values():
            if child.node is not None:
                total = total.plus(self._nodes.listed[child.node].used).plus(child.inside())
        return total

    def _put(self, event: StoredEvent, kind: NodeKind, name: str, **fields: Any) -> int:
        parent = fields.pop("parent", self.node)
        number = self._nodes.put(
            seq=self.last, run_id=self._log_id, kind=kind, name=shown(name), parent=parent, **fields
        )
        self._own_numbers.append(number)
        return number

    def _settle(
        self, event: StoredEvent, fields: Mapping[str, Any], kind: NodeKind, name: str, used: Amounts, **more: Any
    ) -> int:
        """End the node of a call, or add one for a call whose beginning is not on record."""
        at, node_id = self._nodes.after(event.at), str(fields.get("node_id") or "")
        took = float(fields.get("duration_ms") or 0.0)
        parent = more.pop("parent", self.node)
        begun = self._open.pop(node_id, None)
        more["note"] = shown(str(more.get("note") or format_duration(took / 1000)))
        if begun is None:
            begin = max(0.0, round(at - took, 3))
            return self._put(event, kind, name, begin=begin, end=at, parent=parent, used=used, **more)
        self._nodes.replace(begun[0], seq=event.seq, kind=kind, name=shown(name), end=at, used=used, **more)
        return begun[0]

    def _attempt(self, fields: Mapping[str, Any]) -> int:
        begun = self._open.get(str(fields.get("node_id")))
        return int(fields.get("attempt") or (begun[1] if begun is not None else 1))

    def _begun(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        is_model, own = fields["kind"] == "llm", fields.get("run_id") is None
        worst = _amounts(fields.get("worst"), fields.get("worst_nanos"))
        extra = {"steps": 1, "retries": int(fields["attempt"] > 1), "tool_calls": int(not is_model)}
        worst = msgspec.structs.replace(worst, turns=int(is_model and own and self.node is None), **extra)
        name = f"turn {fields['turn']}" if is_model and own else str(fields["name"])
        parent = self.node if is_model and own else self._around() if not own else self._turn_node()
        begin = self._nodes.after(event.at)
        kind: NodeKind = "model" if is_model else "tool"
        number = self._put(event, kind, name, begin=begin, parent=parent, worst=worst)
        self._open[fields["node_id"]] = number, int(fields["attempt"])
        if is_model and own:
            self._turn = number
        elif fields.get("call_id"):
            self._tools[fields["call_id"]] = number

    def _turn_node(self) -> int | None:
        return self.node if self._turn is None else self._turn

    def _around(self) -> int | None:
        """Return the node in which the run's code made a call: the one tool that is under way, if it is one."""
        tools = list(self._tools.values())
        return tools[0] if len(tools) == 1 else self._turn_node() if tools else self.node

    def _replied(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        landing = ", last turn" if fields.get("landing") else ""
        used = _amounts(fields["usage"], fields["cost_nanos"])
        counts = {"steps": 1, "retries": int(self._attempt(fields) > 1), "turns": int(self.node is None)}
        used = msgspec.structs.replace(used, **(counts if fields.get("node_id") else {}))
        self._turn = self._settle(event, fields, "model", f"turn {fields['turn']}{landing}", used)

    def _failed(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        used = _amounts(fields.get("usage"), fields.get("cost_nanos", 0), fields.get("presumed"))
        if fields.get("node_id"):
            used = msgspec.structs.replace(used, steps=1, retries=int(self._attempt(fields) > 1))
        note = f"failed: {fields['fault']}"
        self._turn = self._settle(event, fields, "model", f"turn {fields['turn']}", used, note=note, failed=True)

    def _invoked(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        failed = fields["outcome"] != "ok"
        used = _tool_call(fields) if fields.get("node_id") else NO_AMOUNTS
        note = str(fields["outcome"]) if failed else ""
        parent = self._turn_node()
        self._settle(event, fields, "tool", str(fields["name"]), used, note=note, failed=failed, parent=parent)
        self._tools.pop(str(fields.get("call_id")), None)

    def _parked(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        if fields.get("node_id") in self._open:  # one that had not begun is told by its later result
            self._settle(event, fields, "tool", str(fields.get("name") or "tool"), _tool_call(fields), note="parked")

    def _ended(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        failed, admitted = fields["status"] != "ok", int(fields.get("admitted", True))
        used = _amounts(fields["usage"], fields["cost_nanos"], fields.get("presumed"))
        is_model = int(fields["kind"] == "llm")
        counts = {"steps": admitted, "tool_calls": (1 - is_model) * admitted, "retries": int(fields.get("retries", 0))}
        used = msgspec.structs.replace(used, **counts)
        kind: NodeKind = KINDS.get(fields["kind"], "child")
        name = str(fields["name"])
        note = str(fields["status"]) if failed else ""
        self._settle(event, fields, kind, name, used, note=note, failed=failed, parent=self._around())

    def _child_started(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        run_id = str(fields["run_context"]["run_id"])
        self._admitted[run_id] = self._admitted.get(run_id, 0) + int(fields.get("admitted", True))
        child = self.below.get(run_id)
        steps = Amounts(steps=self._admitted[run_id])
        if child is not None and child.node is not None:  # it goes on
            self._nodes.replace(child.node, end=None, note="", failed=False)
            return
        parent = self._tools.get(str(fields.get("call_id")), self._turn_node())
        kind: NodeKind = "judge" if fields["kind"] in JUDGES else "child"
        begin = self._nodes.after(event.at)
        self._put_child(run_id, kind, shown(str(fields["prompt_name"])), begin, parent=parent, used=steps)

    def take_told_above(self, log_id: str) -> None:
        """Make nodes of the calls that the log above has, of a run that has no record of its own."""
        if not self.position:
            self._log_id = log_id
            for event, fields in self._told_above:
                self.add(event, fields)
        self._told_above.clear()

    def _child_ended(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        run_id, stop = str(fields["run_id"]), fields.get("stop")
        took = float(fields["duration_ms"])
        if run_id not in self.below:
            begin = max(0.0, self._nodes.after(event.at) - took)
            kind: NodeKind = "judge" if fields["kind"] in JUDGES else "child"
            self._put_child(run_id, kind, shown(str(fields["prompt_name"])), begin)
            self._admitted[run_id] = 1
        child = self.below[run_id]
        child.take_told_above(self.run_id)
        steps = self._admitted.get(run_id, 1)
        used = _usage(fields["usage"]).plus(Amounts(steps=steps)).plus(child.inside(), -1)
        note = format_duration(took / 1000) if stop is None else words_for(str(stop["reason"]))
        at = self._nodes.after(event.at)
        if child.node is not None:
            more = {"end": at, "used": used, "note": note, "failed": stop is not None}
            self._nodes.replace(child.node, seq=event.seq, **more)

    def _refused(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        if "HALT" not in str(fields["decision"]):
            return
        at = self._nodes.after(event.at)
        facts: Mapping[str, Any] = fields.get("metadata") or NOTHING
        if QUESTION in facts:  # the call is parked, or denied because nobody was there; what follows says which
            self._put(event, "gate", "a person is asked", begin=at, end=at, note=str(facts[QUESTION]))
            return
        note = words_for(str(fields["event_type"]))
        refused_at = None if facts.get("limit") is None else str(facts["limit"])
        told = {name: facts[name] for name in ("asked", "left") if type(facts.get(name)) is int}
        more = {"note": note, "failed": True, "refused_at": refused_at, **told}
        self._put(event, "gate", "next call refused", begin=at, end=at, **more)

    def _resumed(self, event: StoredEvent, fields: Mapping[str, Any]) -> None:
        """End what was under way, with its worst case; where the run goes on with fresh limits, count anew."""
        at, worked = self._nodes.after(event.at), float(fields.get("worked_seconds") or 0)
        for number, _ in self._open.values():
            worst = self._nodes.listed[number].worst or NO_AMOUNTS
            lost = {
                "presumed_nanos": worst.cost_nanos or 0,
                "presumed_input": worst.input_tokens,
                "presumed_output": worst.output_tokens,
            }
            used = msgspec.structs.replace(worst, turns=0, **lost)
            self._nodes.replace(number, end=at, used=used, note="not settled", failed=True)
        self._open.clear()
        self._tools.clear()
        if self.node is None:
            last = self._nodes.stretches.pop()
            before = Stretch(last.begin, max(last.begin, self._last_at), last.worked)
            self._nodes.stretches += [before, Stretch(at, None, worked)]
            if not worked and _usage(fields["spent"]) == NO_AMOUNTS:
                self._nodes.since = at
                self._nodes.forget()

    def add_found(self, run: StoredRun) -> None:
        """Put a run that is below this one by the index, as items are; or what became of it since."""
        child = self.below.get(run.run_id)
        number = None if child is None else child.node
        if number is None:
            name, begin = shown(run.item or run.prompt), self._nodes.after(run.started_at)
            number = self._put_child(run.run_id, "child", name, begin, seq=0, parent=self.node)
        inside = self.below[run.run_id].inside()
        used = NO_AMOUNTS if run.usage is None else _usage(run.usage).plus(inside, -1)
        note = "running" if run.ended_at is None else format_duration(run.seconds or 0)
        end = None if run.ended_at is None else self._nodes.after(run.ended_at)
        was = self._nodes.listed[number]
        if (was.end, was.note, was.used) != (end, note, used):
            self._nodes.replace(number, end=end, note=note, failed=run.stop is not None, used=used)

    def _put_child(self, run_id: str, kind: NodeKind, name: str, begin: float, **fields: Any) -> int:
        fields = {"seq": self.last, "parent": self._turn_node(), "used": NO_AMOUNTS, **fields}
        number = self._nodes.put(run_id=self.run_id, kind=kind, name=name, begin=begin, child_id=run_id, **fields)
        self.below[run_id] = RunCalls(run_id, self._nodes, number)
        return number


def _amounts(usage: Any, nanos: int | None, presumed: Any = None) -> Amounts:
    """Return tokens and money of a call."""
    tokens = cast("Mapping[str, Any]", usage) if isinstance(usage, Mapping) else NOTHING
    lost = cast("Mapping[str, Any]", presumed) if isinstance(presumed, Mapping) else NOTHING
    lost_tokens: Mapping[str, Any] = lost.get("tokens") or NOTHING
    return Amounts(
        nanos,
        int(tokens.get("input_tokens", 0)),
        int(tokens.get("output_tokens", 0)),
        presumed_nanos=int(lost.get("cost_nanos") or 0),
        presumed_input=int(lost_tokens.get("input_tokens", 0)),
        presumed_output=int(lost_tokens.get("output_tokens", 0)),
    )


def _usage(usage: Mapping[str, Any]) -> Amounts:
    """Return what a run has used, from its usage on record."""
    counts = {name: int(usage.get(name) or 0) for name in ("steps", "tool_calls", "retries")}
    found = _amounts(usage.get("tokens"), usage.get("cost_nanos"), usage.get("presumed"))
    return msgspec.structs.replace(found, **counts)


def _tool_call(fields: Mapping[str, Any]) -> Amounts:
    return Amounts(steps=1, tool_calls=1, retries=int((fields.get("attempt") or 1) > 1))
