"""What one run did itself, added up from its log once it is over: by model, by tool, and what observers said.

The index keeps it beside the run's row, so that a report over thousands of runs reads no log. Runs below a run have
their own. A model call during which the process died, or that the end of the run cut off, counts as failed, with its
worst case: so it does in the run's usage, and the sums agree. Values in a log may be of any kind, because another
version or program wrote it: what is no such event is left out, and the activity says that it is not whole. Names that
models make up are bounded in length and number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from watchkeeper.core.text import clipped
from watchkeeper.core.usage import TokenUsage
from watchkeeper.tools.context import ToolOutcome
from watchkeeper.store.run_file import DamagedLineError, Line, read_lines, reading

MOST_NAMES: Final = 200
"""Further models or tools of a run are added up under `OTHERS`."""

NAME_CHARS: Final = 100
OTHERS: Final = "(others)"
UNREADABLE_NAME: Final = "(a name that is no text)"


class ModelUse(msgspec.Struct, gc=False):
    """What was asked of one model.

    Attributes:
        calls: Admitted calls, failed ones included.
        failed: How many of them failed.
        input_tokens: Their input, as it was charged.
        output_tokens: Their output, as it was charged.
        cost_nanos: Their cost in nano-dollars, as far as it is known.
        unpriced: How many have a cost that is not known.
        ms: How long those took that did not fail, in milliseconds.
    """

    calls: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nanos: int = 0
    unpriced: int = 0
    ms: float = 0.0

    def add(self, other: ModelUse) -> None:
        """Take in what was asked elsewhere."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ToolUse(msgspec.Struct, gc=False):
    """What was asked of one tool.

    Attributes:
        calls: Attempts, whatever came of them.
        failed: How many of them were run and did not succeed.
        not_run: How many of them the gate, a hook or a person refused, or the end of the run came before.
        retried: How many repeated a failed one.
        ms: How long they took, in milliseconds.
        slowest_ms: How long the slowest took.
    """

    calls: int = 0
    failed: int = 0
    not_run: int = 0
    retried: int = 0
    ms: float = 0.0
    slowest_ms: float = 0.0

    def add(self, other: ToolUse) -> None:
        """Take in what was asked elsewhere."""
        self.calls += other.calls
        self.failed += other.failed
        self.not_run += other.not_run
        self.retried += other.retried
        self.ms += other.ms
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)


class Advised(msgspec.Struct, gc=False):
    """What one observer or feedback provider said.

    Attributes:
        severities: How often it spoke, by severity.
        told: How often the agent was told.
        failed: How often it failed or took too long.
    """

    severities: dict[str, int] = {}  # msgspec copies it
    told: int = 0
    failed: int = 0

    def add(self, other: Advised) -> None:
        """Take in what it said elsewhere."""
        for severity, times in other.severities.items():
            self.severities[severity] = self.severities.get(severity, 0) + times
        self.told += other.told
        self.failed += other.failed


class Activity(msgspec.Struct, gc=False):
    """What one run did itself, or several.

    Attributes:
        models: By ``provider:name``.
        tools: By name; calls that its code made count, too.
        faults: Failed model calls by kind of failure.
        advised: By the name of the source.
        whole: Whether all of the log could be read.
    """

    models: dict[str, ModelUse] = {}
    tools: dict[str, ToolUse] = {}
    faults: dict[str, int] = {}
    advised: dict[str, Advised] = {}
    whole: bool = True

    def add(self, other: Activity) -> None:
        """Take in what another run did."""
        for name, model in other.models.items():
            self.models.setdefault(name, ModelUse()).add(model)
        for name, tool in other.tools.items():
            self.tools.setdefault(name, ToolUse()).add(tool)
        for name, times in other.faults.items():
            self.faults[name] = self.faults.get(name, 0) + times
        for name, said in other.advised.items():
            self.advised.setdefault(name, Advised()).add(said)


NOT_RUN: Final[frozenset[ToolOutcome]] = frozenset({"denied", "skipped"})
"""Outcomes of calls whose tool was not run."""

ACTIVITY: Final = msgspec.json.Decoder(Activity)


def written(found: Activity) -> str:
    """Return an activity as the JSON that `ACTIVITY` reads; without its figures if they are no such numbers."""
    try:
        text = msgspec.json.encode(found).decode()
        ACTIVITY.decode(text)
    except (msgspec.MsgspecError, OverflowError):
        return msgspec.json.encode(Activity(whole=False)).decode()
    return text


class _Begun(msgspec.Struct):
    kind: str
    name: object
    node_id: str
    worst: TokenUsage = TokenUsage()
    worst_nanos: int | None = 0

    @property
    def usage(self) -> TokenUsage:
        return self.worst

    @property
    def cost_nanos(self) -> int | None:
        return self.worst_nanos


class _Replied(msgspec.Struct):
    usage: TokenUsage
    cost_nanos: int | None
    duration_ms: float
    model: object
    node_id: str | None = None


class _Failed(msgspec.Struct):
    fault: str
    model: object = ""
    node_id: str | None = None
    usage: TokenUsage = TokenUsage()
    cost_nanos: int | None = 0


class _Invoked(msgspec.Struct):
    name: object
    outcome: str = "ok"
    duration_ms: float = 0.0
    attempt: int = 1


class _Called(msgspec.Struct):
    kind: str
    name: object
    provider: str
    status: str
    usage: TokenUsage
    cost_nanos: int | None
    duration_ms: float
    retries: int = 0
    admitted: bool = True
    node_id: str = ""


class _Advice(msgspec.Struct):
    severity: str = "info"


class _Asked(msgspec.Struct):
    source: object
    outcome: str
    advice: _Advice | None = None


class _AllAsked(msgspec.Struct):
    items: list[_Asked]


class _AllTold(msgspec.Struct):
    items: list[object]


class _Observed(msgspec.Struct):
    runs: list[_Asked] | _AllAsked  # a tuple is stored with its type where the field may hold other things
    told: list[object] | _AllTold = []


KindT = TypeVar("KindT")
UseT = TypeVar("UseT")
Open = dict[str, _Begun]
"""The model calls that have begun and have no end yet, by the node at the gate: each names its model with its provider,
as a reply does not."""

GOES_ON: Final = "run_resumed"
"""The event at which calls that are under way have no end any more."""


def activity_of(path: Path) -> Activity:
    """Return what the run of a file did itself, as far as it can be read."""
    found, begun = Activity(), Open()
    try:
        with reading(path) as file:
            for _, line in read_lines(file):
                if line.begun:
                    call = _read(line.begun, _Begun)
                    if call is not None and call.kind == "llm":
                        begun[call.node_id] = call
                elif line.past:
                    continue
                elif line.tag == GOES_ON:
                    _cut_off(found, begun)
                elif line.tag in FOLDS and not FOLDS[line.tag](found, line, begun):
                    found.whole = False
    except (OSError, DamagedLineError):
        found.whole = False
    _cut_off(found, begun)
    return found


def _cut_off(found: Activity, begun: Open) -> None:
    for call in begun.values():
        _add_model(found, call.name, call, failed=True, ms=0.0)
    begun.clear()


def _read(body: msgspec.Raw, kind: type[KindT]) -> KindT | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _name(value: object) -> str:
    return clipped(value, NAME_CHARS) if isinstance(value, str) else UNREADABLE_NAME


def _use(uses: dict[str, UseT], name: object, kind: type[UseT]) -> UseT:
    known = _name(name)
    if known not in uses and len(uses) >= MOST_NAMES:
        known = OTHERS
    return uses.setdefault(known, kind())


def _add_model(
    found: Activity, name: object, said: _Replied | _Failed | _Called | _Begun, *, failed: bool, ms: float
) -> None:
    use, tokens = _use(found.models, name, ModelUse), said.usage
    unpriced = int(said.cost_nanos is None)
    use.add(ModelUse(1, failed, tokens.input_tokens, tokens.output_tokens, said.cost_nanos or 0, unpriced, ms))


def _replied(found: Activity, line: Line, begun: Open) -> bool:
    said = _read(line.body, _Replied)
    if said is not None:
        _add_model(found, _asked(begun, said), said, failed=False, ms=said.duration_ms)
    return said is not None


def _asked(begun: Open, said: _Replied | _Failed) -> object:
    """Return the name of the model that a call asked, which is over now."""
    call = begun.pop(said.node_id or "", None)
    return said.model if call is None else call.name


def _failed(found: Activity, line: Line, begun: Open) -> bool:
    said = _read(line.body, _Failed)
    if said is not None:
        _add_model(found, _asked(begun, said), said, failed=True, ms=0.0)
        found.faults[said.fault] = found.faults.get(said.fault, 0) + 1
    return said is not None


def _invoked(found: Activity, line: Line, _: Open) -> bool:
    said = _read(line.body, _Invoked)
    if said is not None:
        took, not_run = said.duration_ms, said.outcome in NOT_RUN
        failed = said.outcome != "ok" and not not_run
        _use(found.tools, said.name, ToolUse).add(ToolUse(1, failed, not_run, said.attempt > 1, took, took))
    return said is not None


def _called(found: Activity, line: Line, begun: Open) -> bool:
    said = _read(line.body, _Called)
    if said is not None:
        begun.pop(said.node_id, None)
    if said is None or not said.admitted or said.status == "halted":
        return said is not None
    failed, took = said.status != "ok", said.duration_ms
    if said.kind == "llm":
        name = f"{said.provider}:{_name(said.name)}" if said.provider else said.name
        _add_model(found, name, said, failed=failed, ms=0.0 if failed else took)
    else:
        _use(found.tools, said.name, ToolUse).add(ToolUse(1, failed, 0, said.retries, took, took))
    return True


def _observed(found: Activity, line: Line, _: Open) -> bool:
    said = _read(line.body, _Observed)
    if said is None:
        return False
    for asked in said.runs if isinstance(said.runs, list) else said.runs.items:
        spoke = {} if asked.advice is None else {asked.advice.severity: 1}
        failed = asked.outcome in ("failed", "overran")
        _use(found.advised, asked.source, Advised).add(Advised(spoke, 0, int(failed)))
    for source in said.told if isinstance(said.told, list) else said.told.items:
        _use(found.advised, source, Advised).told += 1
    return True


FOLDS: Final[Mapping[str, Callable[[Activity, Line, Open], bool]]] = {
    "model_replied": _replied,
    "model_failed": _failed,
    "tool_invoked": _invoked,
    "call_ended": _called,
    "observers_ran": _observed,
}
"""What each event adds; False if it cannot be read."""
