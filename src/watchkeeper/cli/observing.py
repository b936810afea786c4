"""``watchkeeper observe``: what the detectors would have said in stored runs, with thresholds that the user tries.

A run is replayed from its record: its task, its tool calls, and after which model turn each was made. The detectors are
asked after every turn, as in a run with a trigger on every call, and one trouble is told as often as such a run tells
its agent of it. No model, tool or type of the user is needed. What they would have said changes nothing in the record;
the agent of the stored run did not hear it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, NamedTuple, cast, get_type_hints
from uuid import UUID

import msgspec
from rich.console import Console

from watchkeeper.cli.console import put
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.observers.drift import DriftDetector
from watchkeeper.observers.cascade import ErrorCascadeDetector
from watchkeeper.observers.stall import StallDetector
from watchkeeper.oversight.cool_down import CoolDown
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import COOL_DOWN, ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session
from watchkeeper.store.plain_json import UNREADABLE, as_fields, as_text, untyped
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore, StoredEvent
from watchkeeper.tools.context import ToolInvoked, ToolOutcome
from watchkeeper.tools.values import ToolResult

Detector = StallDetector | ErrorCascadeDetector | DriftDetector
KINDS: Final[Mapping[str, type[Any]]] = {
    each.__name__: each for each in (StallDetector, ErrorCascadeDetector, DriftDetector)
}

WORDS: Final[Mapping[Any, str]] = {float: "a number", str: "a text"}


class Said(NamedTuple):
    """What a detector would have said in a run.

    Attributes:
        call: Number of the run's tool calls at that moment.
        at: When the newest of them was recorded.
        assessment: What it would have said.
    """

    call: int
    at: datetime
    assessment: Assessment

    def as_data(self, run: StoredRun) -> dict[str, Any]:
        """Return it as JSON-able data."""
        shown = self.assessment
        return {
            "run_id": run.run_id,
            "call": self.call,
            "at": self.at.isoformat(),
            "detector": shown.observer_name,
            "severity": shown.severity,
            "summary": shown.summary,
            "observations": [msgspec.to_builtins(each) for each in shown.observations],
            "suggestions": list(shown.suggestions),
        }


def detectors_with(settings: Sequence[str]) -> list[Detector]:
    """Return the three detectors, with settings such as ``StallDetector.repeats=6``.

    Raises:
        ConfigurationError: If a setting is not written so, names no detector or no field of it, or has a wrong value.
        ObserverError: If a value is out of range.
    """
    chosen: dict[str, dict[str, Any]] = {name: {} for name in KINDS}
    for setting in settings:
        place, separator, text = setting.partition("=")
        name, dot, field = place.partition(".")
        if not (separator and dot):
            raise ConfigurationError(
                f"--set {setting!r}: write DETECTOR.FIELD=VALUE, for example StallDetector.repeats=6"
            )
        if name not in KINDS:
            raise ConfigurationError(f"--set {setting!r} names no detector; there are {', '.join(KINDS)}")
        types = get_type_hints(KINDS[name])
        hints = {each.name: types[each.name] for each in fields(KINDS[name])}
        if field not in hints:
            raise ConfigurationError(f"--set {setting!r}: {name} has no field {field!r}; it has {', '.join(hints)}")
        chosen[name][field] = _value(setting, text, hints[field])
    return [kind(**chosen[name]) for name, kind in KINDS.items()]


def _value(setting: str, text: str, hint: Any) -> Any:
    wanted = tuple[str, ...] if hint == Sequence[str] else hint
    given: Any = [part.strip() for part in text.split(",") if part.strip()] if wanted is not hint else text
    try:
        return msgspec.convert(given, wanted, strict=False)
    except msgspec.ValidationError:
        raise ConfigurationError(f"--set {setting!r}: {text!r} is not {WORDS.get(hint, 'a whole number')}") from None


def heard(store: RunStore, run: StoredRun, detectors: Sequence[Detector]) -> Iterator[Said]:
    """Yield what detectors would have told the agent in a run, in order.

    Args:
        store: Where the run is.
        run: Which.
        detectors: Whom to ask after every turn.

    Raises:
        StoreError: At an event that is damaged.
    """
    session, trajectory, waiting = Session(), Trajectory(), 0
    context = ObserverContext(session, trajectory=trajectory)
    watched = [(detector, CoolDown(COOL_DOWN)) for detector in detectors]
    at: datetime | None = None
    for event in store.events(run.run_id):
        try:
            read = _read(event)
        except UNREADABLE as error:
            raise StoreError(
                f"{store.path}: event {event.seq} of the run {run.run_id} cannot be read ({error})"
            ) from error
        if isinstance(read, str):
            context = ObserverContext(session, trajectory=trajectory, task=read)
        elif read is not None:
            session.dispatch(read)
            trajectory.add(read)
            waiting, at = waiting + 1, event.at
        elif event.tag in ("model_replied", "run_ended") and waiting and at is not None:
            yield from _asked(watched, session, context, at)
            waiting = 0
    if waiting and at is not None:  # a run without an end on record
        yield from _asked(watched, session, context, at)


def _asked(
    watched: Sequence[tuple[Detector, CoolDown]], session: Session, context: ObserverContext, at: datetime
) -> Iterator[Said]:
    count = context.trajectory.count
    for detector, cool_down in watched:
        wants = detector.should_run(session, context=context)
        said = detector.observe(session, context=context) if wants else None
        if said is None:
            cool_down.silent(count)
            continue
        session[Assessment].append(said.stamped(detector.name, count, at))
        if cool_down.tells(said, count):
            yield Said(count, at, said)


def _read(event: StoredEvent) -> ToolInvoked | str | None:
    """Return the tool call or the task of an event; None if it has neither."""
    if event.tag == "tool_invoked":
        return invoked_of(event)
    if event.tag == "prompt_rendered":
        return "\n\n".join(map(_text_of, untyped(event.body).get("messages", ())))
    return None


def _text_of(message: Any) -> str:
    fields = as_fields(message)
    return as_text(fields.get("text") or "".join(part.get("text", "") for part in fields.get("parts", ())))


def invoked_of(event: StoredEvent) -> ToolInvoked:
    """Return a stored tool call as the event that it was, with plain arguments in the place of the user's types."""
    body: dict[str, Any] = untyped(event.body)
    shown, outcome = str(body.get("rendered_output", "")), cast("ToolOutcome", as_text(body.get("outcome", "ok")))
    value: Any = ToolResult.ok(shown, shown) if outcome == "ok" else ToolResult[Any].error(shown)
    return ToolInvoked(
        prompt_name=str(body.get("prompt_name", "")),
        adapter=str(body.get("adapter", "")),
        name=str(body.get("name", "")),
        params=body.get("params"),
        result=value,
        session_id=None,
        created_at=event.at,
        usage=None,
        rendered_output=shown,
        call_id=str(body.get("call_id", "")),
        event_id=UUID(int=event.seq),
        outcome=outcome,
    )


def print_heard(console: Console, run: StoredRun, said: Sequence[Said]) -> None:
    """Print what detectors would have said in a run: a line for the run, then one for each time, with its evidence.

    Args:
        console: Where to.
        run: The run.
        said: What they would have said.
    """
    times = {0: "nothing would have been said", 1: "once"}.get(len(said), f"{len(said):,} times")
    put(console, f"{run.run_id[:8]}  {run.prompt}: {times}")
    for call, at, assessment in said:
        who = f"{assessment.observer_name} ({assessment.severity})"
        put(console, f"  call {call:,}, {at:%H:%M:%S}  {who}: {assessment.summary}")
        for observation in assessment.observations:
            for line in (observation.evidence or "").splitlines():
                put(console, f"      {line}")
