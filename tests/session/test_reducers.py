"""Reducers are pure, computed together, and what they do wrong is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.session.samples import (
    Commanded,
    Counted,
    Plan,
    Step,
    Total,
    Unstorable,
    add_up,
    obey,
    session_with_reducers,
)
from watchkeeper.core.errors import ReducerError, SessionError
from watchkeeper.session.log import SliceEdited
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Append, Clear, Extend, Op, Replace, SliceView, append_event

A, B, C = Plan("a"), Plan("b"), Plan("c")


@pytest.mark.spec("TO-022", "FR-014")
def test_the_four_operations() -> None:
    session = Session()
    session[Plan].register(Commanded, obey)
    for command, expected in (
        (Commanded("append", (A,)), [A]),
        (Commanded("extend", (B, C)), [A, B, C]),
        (Commanded("extend"), [A, B, C]),
        (Commanded("replace", (C,)), [C]),
        (Commanded("clear"), []),
        (Commanded("append", (B,)), [B]),
        (Commanded("replace"), []),
    ):
        session.dispatch(command)
        assert session[Plan].all() == expected


def test_operations_are_values() -> None:
    assert Append(A) == Append(A)
    assert Extend((A,)) == Extend((A,))
    assert Replace((A,)) != Replace((B,))
    assert Clear() == Clear()


def test_several_reducers_of_one_slice_run_in_order_each_on_what_the_last_one_left() -> None:
    session, seen = Session(), list[int]()

    def count(plans: SliceView[Plan], step: Step) -> Op[Plan]:
        seen.append(len(plans))
        return Append(Plan(f"{step.number}:{len(plans)}"))

    def again(plans: SliceView[Plan], step: Step) -> Op[Plan]:
        return count(plans, step)

    session[Plan].register(Step, count)
    session[Plan].register(Step, again)
    session.dispatch(Step(1))
    session.dispatch(Step(2))
    assert seen == [0, 1, 2, 3]


def test_registering_the_same_reducer_again_changes_nothing() -> None:
    session = Session()
    for _ in range(3):
        session[Step].register(Step, append_event)
    session.dispatch(Step(1))
    assert session[Step].all() == [Step(1)]


def test_a_reducer_listens_to_exactly_its_type() -> None:
    class Special(Counted):
        pass

    session = Session()
    session[Total].register(Counted, add_up)
    session.dispatch(Special(1))
    assert session[Total].latest() is None
    assert session[Special].all() == [Special(1)]


def test_reducers_registered_later_leave_what_was_before() -> None:
    session = Session()
    session.dispatch(Counted(1))
    session[Total].register(Counted, add_up)
    session.dispatch(Counted(2))
    assert session[Counted].all() == [Counted(1)]
    assert session[Total].all() == [Total(2)]


def failing(items: Any) -> Iterator[Any]:
    yield items
    raise OSError("half way")


NOTHING_TO_ITERATE: Any = 5
NONSENSE: list[tuple[Any, str]] = [
    (None, "TypeError: it returned NoneType; return Append, Extend, Replace or Clear"),
    ([A], "it returned list"),
    (Append("a"), r"SessionError: session\[Plan\] holds Plan, not str"),
    (Extend([A, 1]), r"session\[Plan\] holds Plan, not int \(1\)"),
    (Replace(NOTHING_TO_ITERATE), "TypeError: 'int' object is not iterable"),
    (Extend(failing(A)), "OSError: half way"),
]


@pytest.mark.parametrize(("op", "message"), NONSENSE)
def test_what_a_reducer_does_wrong_is_named_and_changes_nothing(op: Any, message: str) -> None:
    session = Session()
    session[Plan].seed(B)

    def reducer(plans: SliceView[Plan], step: Step) -> Op[Plan]:
        return op  # type: ignore[no-any-return]

    session[Plan].register(Step, reducer)
    with pytest.raises(ReducerError, match=f"reducer .*reducer of slice Plan failed on Step: .*{message}"):
        session.dispatch(Step(1))
    assert session[Plan].all() == [B]
    assert session.log[-1].event == Step(1)


def test_an_item_that_cannot_be_stored_is_the_reducers_failure() -> None:
    session = Session()
    session[Unstorable].register(Step, lambda view, step: Append(Unstorable()))
    with pytest.raises(ReducerError, match="Unstorable has no typed JSON form"):
        session.dispatch(Step(1))


PHOTO = Session().snapshot()

ATTEMPTS: dict[str, Callable[[Session], object]] = {
    "dispatch": lambda session: session.dispatch(Step(2)),
    "append": lambda session: session[Plan].append(A),
    "clear": lambda session: session[Plan].clear(),
    "reset": lambda session: session.reset(),
    "rollback": lambda session: session.rollback(PHOTO),
    "latest": lambda session: session[Plan].latest(),
    "all": lambda session: session[Plan].all(),
    "log": lambda session: len(session.log),
    "snapshot": lambda session: session.snapshot(),
    "branch": lambda session: session.branch(),
    "register": lambda session: session[Plan].register(Counted, append_plan),
}


def append_plan(plans: SliceView[Plan], counted: Counted) -> Op[Plan]:
    return Append(Plan(str(counted.by)))


@pytest.mark.spec("FR-014")
@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["itself", "another session"])
def test_a_reducer_may_neither_dispatch_nor_read_a_session(attempt: str, elsewhere: bool) -> None:
    session = Session()
    other = Session() if elsewhere else session

    def impure(plans: SliceView[Plan], step: Step) -> Op[Plan]:
        ATTEMPTS[attempt](other)
        return Clear()

    session[Plan].register(Step, impure)
    with pytest.raises(ReducerError, match="SessionError: a reducer may not") as caught:
        session.dispatch(Step(1))
    assert isinstance(caught.value.__cause__, SessionError)
    assert [envelope.event for envelope in session.log] == [Step(1)]
    session[Plan].append(B)
    assert session[Plan].latest() == B


def test_a_reducer_may_not_merge_a_branch() -> None:
    session = Session()
    branch = session.branch()

    def impure(plans: SliceView[Plan], step: Step) -> Op[Plan]:
        branch.merge()
        return Clear()

    session[Plan].register(Step, impure)
    with pytest.raises(ReducerError, match="a reducer may not merge"):
        session.dispatch(Step(1))


def test_what_cannot_be_a_reducer_is_refused() -> None:
    session = Session()

    async def later(plans: Any, step: Step) -> Any:
        raise AssertionError(plans, step)

    wrong: Any
    for wrong in (later, None, 5):
        with pytest.raises(SessionError, match="a reducer must be a plain function"):
            session[Plan].register(Step, wrong)
    wrong = "Step"
    with pytest.raises(SessionError, match="register an event's class, got 'Step'"):
        session[Plan].register(wrong, append_plan)
    with pytest.raises(SessionError, match="SliceEdited is the session's own record"):
        session[Plan].register(SliceEdited, lambda view, edited: Clear())


def test_two_sessions_have_reducers_of_their_own() -> None:
    session_with_reducers()
    plain = Session()
    plain.dispatch(Counted(1))
    assert plain[Total].latest() is None


def test_a_slice_can_be_told_to_keep_its_events_whatever_else_listens() -> None:
    session = Session()
    session[Counted].keep()
    session.dispatch(Counted(1))
    session[Total].register(Counted, add_up)
    session.dispatch(Counted(2))
    session[Counted].keep()
    session[Counted].keep()
    session.dispatch(Counted(3))
    assert session[Counted].all() == [Counted(1), Counted(3)]
    assert session[Total].latest() == Total(5)
