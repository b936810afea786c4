"""Values and reducers that the session's tests share."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from watchkeeper.session.log import event
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Append, Clear, Extend, Op, Replace, SliceView


@dataclass(frozen=True, slots=True)
class Plan:
    """Something to keep in a slice."""

    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """An event without reducers."""

    number: int


@event("samples_counted")
@dataclass(frozen=True, slots=True)
class Counted:
    """An event that reducers fold into `Total`."""

    by: int


@dataclass(frozen=True, slots=True)
class Total:
    """The fold of `Counted`."""

    value: int


@event("samples_commanded")
@dataclass(frozen=True, slots=True)
class Commanded:
    """An event that says which operation its reducer should return."""

    op: str
    plans: tuple[Plan, ...] = ()


@event("samples_broken")
@dataclass(frozen=True, slots=True)
class Broken:
    """An event whose last reducer raises."""

    number: int


@event("samples_claimed")
@dataclass(frozen=True, slots=True)
class Claimed:
    """An event that is accepted once per number."""

    number: int


class Unstorable:
    """Nothing that a snapshot could hold."""


def add_up(totals: SliceView[Total], counted: Counted) -> Op[Total]:
    """Keep only the running total."""
    last = totals.latest()
    return Replace((Total(counted.by + (last.value if last else 0)),))


def obey(plans: SliceView[Plan], commanded: Commanded) -> Op[Plan]:
    """Return the operation that the event asks for."""
    match commanded.op:
        case "append":
            return Append(commanded.plans[0])
        case "extend":
            return Extend(plan for plan in commanded.plans)
        case "replace":
            return Replace(commanded.plans)
        case _:
            return Clear()


def keep_number(steps: SliceView[Step], broken: Broken) -> Op[Step]:
    """Succeed, before the reducer that fails."""
    return Append(Step(broken.number))


def fail(plans: SliceView[Plan], broken: Broken) -> Op[Plan]:
    """Raise on odd numbers."""
    if broken.number % 2:
        raise ValueError(f"odd: {broken.number}")
    return Append(Plan(f"even: {broken.number}"))


def claim_once(claims: SliceView[Claimed], claimed: Claimed) -> Op[Claimed]:
    """Raise if the number is claimed already."""
    if claimed in claims:
        raise LookupError(f"{claimed.number} is taken")
    return Append(claimed)


def session_with_reducers(**kwargs: Any) -> Session:
    """Return a session in which every sample has the reducers above."""
    session = Session(**kwargs)
    session[Total].register(Counted, add_up)
    session[Plan].register(Commanded, obey)
    session[Step].register(Broken, keep_number)
    session[Plan].register(Broken, fail)
    session[Claimed].register(Claimed, claim_once)
    return session


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run ``work(number)`` in threads that start together; raise what one of them raised."""
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def buffers(*views: SliceView[Any]) -> dict[int, int]:
    """Return the size of every container that views are made of, by identity."""
    found: dict[int, int] = {}
    waiting: list[object] = list(views)
    while waiting:
        thing = waiting.pop()
        if id(thing) not in found and type(thing) in (SliceView, list, tuple):
            found[id(thing)] = sys.getsizeof(thing)
            waiting.extend(gc.get_referents(thing))
    return found
