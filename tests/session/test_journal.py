"""With threads no event is lost, delivered twice, or seen before it is complete."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from typing import Any

import pytest

from tests.session.samples import Claimed, Commanded, Counted, Plan, Step, Total, in_threads, session_with_reducers
from watchkeeper.core.errors import ReducerError, SessionError
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Branch, Session
from watchkeeper.session.slices import Append, Op, Replace, SliceView

THREADS = 8
EACH = 300


@pytest.fixture(autouse=True)
def often_switching_threads() -> Any:
    """Let threads take turns as often as they can, so that races show."""
    import sys

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.spec("FR-015")
def test_no_event_of_many_threads_is_lost_and_the_fold_is_exact() -> None:
    session = session_with_reducers()

    def work(number: int) -> None:
        for index in range(EACH):
            session.dispatch(Counted(1))
            session.dispatch(Step(number * EACH + index))
            session[Plan].append(Plan(f"{number}.{index}"))

    in_threads(THREADS, work)
    assert session[Total].latest() == Total(THREADS * EACH)
    assert sorted(step.number for step in session[Step].all()) == list(range(THREADS * EACH))
    assert Counter(session[Plan].all()) == Counter(Plan(f"{n}.{i}") for n in range(THREADS) for i in range(EACH))
    assert [envelope.seq for envelope in session.log] == list(range(1, 3 * THREADS * EACH + 1))


def test_events_of_one_thread_stay_in_their_order() -> None:
    session = Session()
    in_threads(THREADS, lambda number: [session.dispatch(Step(number * EACH + index)) for index in range(EACH)])
    for number in range(THREADS):
        mine = [step.number for step in session[Step].all() if step.number // EACH == number]
        assert mine == sorted(mine)


@pytest.mark.spec("FR-015")
def test_every_subscriber_is_told_each_event_once_in_the_order_of_the_log() -> None:
    session = Session()
    told: list[list[int]] = [[], []]
    inside = itertools.count()
    overlaps: list[int] = []

    def second(envelope: Envelope) -> None:
        if next(inside) % 2:
            overlaps.append(envelope.seq)
        told[1].append(envelope.seq)
        next(inside)

    session.dispatcher.subscribe_all(lambda envelope: told[0].append(envelope.seq))
    session.dispatcher.subscribe_all(second)
    in_threads(THREADS, lambda number: [session.dispatch(Step(number)) for _ in range(EACH)])
    assert told[0] == told[1] == list(range(1, THREADS * EACH + 1))
    assert overlaps == []


def test_every_dispatcher_knows_its_own_envelope() -> None:
    session = Session()
    mine: list[dict[int, int]] = [{} for _ in range(THREADS)]

    def work(number: int) -> None:
        for index in range(EACH):
            mine[number][session.dispatch(Step(number * EACH + index)).seq] = number * EACH + index

    in_threads(THREADS, work)
    together = {seq: value for part in mine for seq, value in part.items()}
    assert together == {envelope.seq: envelope.event.number for envelope in session.log}


def test_readers_see_an_event_with_everything_it_did_or_not_at_all() -> None:
    session = Session()

    def double(totals: SliceView[Total], counted: Counted) -> Op[Total]:
        return Append(Total(counted.by))

    def note(plans: SliceView[Plan], counted: Counted) -> Op[Plan]:
        return Append(Plan(str(counted.by)))

    session[Total].register(Counted, double)
    session[Plan].register(Counted, note)
    wrong: list[Any] = []
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for index in range(2 * EACH):
                session.dispatch(Counted(index))
            done.set()
        while number and not done.is_set():
            snapshot = session.snapshot()
            lengths = {snapshot.seq, len(snapshot[Total]), len(snapshot[Plan])}
            if len(lengths) != 1 or [total.value for total in snapshot[Total]] != list(range(snapshot.seq)):
                wrong.append(lengths)

    in_threads(4, work)
    assert wrong == []


def test_branches_of_many_threads_merge_exactly() -> None:
    session = session_with_reducers()

    def work(number: int) -> None:
        for index in range(60):
            branch = session.branch()
            branch.dispatch(Counted(1))
            branch.dispatch(Step(number * 60 + index))
            branch[Plan].append(Plan("p"))
            assert branch[Step].latest() == Step(number * 60 + index)
            if index % 3:
                branch.merge()
            else:
                branch.discard()

    in_threads(THREADS, work)
    merged = THREADS * 40
    assert session[Total].latest() == Total(merged)
    assert len(session[Plan].all()) == merged
    assert sorted(step.number % 60 % 3 for step in session[Step].all()) == sorted([1, 2] * (merged // 2))
    groups = [session.log[start : start + 3] for start in range(0, 3 * merged, 3)]
    assert all([type(envelope.event).__name__ for envelope in group] == EXPECTED for group in groups)


EXPECTED = ["Counted", "Step", "SliceEdited"]


def test_of_racing_claims_exactly_one_wins() -> None:
    session = session_with_reducers()
    outcomes: list[tuple[int, bool]] = []

    def work(number: int) -> None:
        for index in range(40):
            branch = session.branch()
            try:
                branch.dispatch(Claimed(index))
                branch.merge()
            except ReducerError:
                branch.discard()
                outcomes.append((index, False))
            else:
                outcomes.append((index, True))

    in_threads(THREADS, work)
    assert Counter(index for index, won in outcomes if won) == dict.fromkeys(range(40), 1)
    assert [claimed.number for claimed in session[Claimed].all()] == [e.event.number for e in session.log]


def test_a_discarded_branch_takes_nothing_from_a_thread_that_goes_on_writing() -> None:
    session = Session()
    branch = session.branch()
    wrote = threading.Semaphore(0)
    refused: list[SessionError] = []

    def tool() -> None:
        try:
            for number in itertools.count():
                branch.dispatch(Step(number))
                wrote.release()
        except SessionError as error:
            refused.append(error)

    thread = threading.Thread(target=tool)
    thread.start()
    for _ in range(5):
        wrote.acquire()
    branch.discard()
    thread.join()
    assert "this branch was discarded" in str(refused[0])
    assert (len(session.log), len(session[Step].all())) == (0, 0)


def test_a_merge_takes_all_that_was_written_before_it_and_nothing_after() -> None:
    for _ in range(30):
        session = Session()
        branch = session.branch()
        accepted: list[int] = []

        def work(
            number: int, session: Session = session, branch: Branch = branch, accepted: list[int] = accepted
        ) -> None:
            if number == 0:
                branch.merge()
                return
            try:
                for index in range(20):
                    branch.dispatch(Step(number * 100 + index))
                    accepted.append(number * 100 + index)
            except SessionError:
                pass

        in_threads(3, work)
        assert sorted(step.number for step in session[Step].all()) == sorted(accepted)


def test_dispatching_from_a_subscriber_on_another_thread_does_not_deadlock() -> None:
    """A subscriber may wait for a thread that dispatches to the same session."""
    session = Session()
    told: list[int] = []

    def handler(event: Step) -> None:
        told.append(event.number)
        if event.number == 0:
            thread = threading.Thread(target=session.dispatch, args=(Step(1),))
            thread.start()
            thread.join()

    session.dispatcher.subscribe(Step, handler)
    session.dispatch(Step(0))
    assert told == [0, 1]


def test_flush_waits_for_what_another_thread_is_telling() -> None:
    session = Session()
    told: list[int] = []
    inside, go_on = threading.Event(), threading.Event()

    def handler(event: Step) -> None:
        if event.number == 0:
            inside.set()
            go_on.wait()
        told.append(event.number)

    session.dispatcher.subscribe(Step, handler)
    other = threading.Thread(target=session.dispatch, args=(Step(0),))
    other.start()
    inside.wait()
    session.dispatch(Step(1))
    assert (told, len(session.log)) == ([], 2)
    assert not session.flush(0)
    threading.Timer(0.01, go_on.set).start()
    assert session.branch().flush()
    assert told == [0, 1]
    other.join()
    assert session.flush()


def test_flush_inside_a_subscriber_does_not_wait_for_itself() -> None:
    session = Session()
    flushed: list[bool] = []
    session.dispatcher.subscribe(Step, lambda _: flushed.append(session.flush()))
    session.dispatch(Step(1))
    assert flushed == [False]


def test_after_a_flush_the_caller_knows_that_its_own_events_were_told() -> None:
    session = Session()
    told: set[int] = set()
    missing: list[int] = []
    session.dispatcher.subscribe(Step, lambda step: told.add(step.number))

    def work(number: int) -> None:
        for index in range(EACH):
            session.dispatch(Step(number * EACH + index))
            assert session.flush()
            if number * EACH + index not in told:
                missing.append(index)

    in_threads(4, work)
    assert missing == []


def test_an_interrupt_in_a_reducer_records_nothing() -> None:
    session = Session()

    def interrupted(plans: SliceView[Plan], step: Step) -> Op[Plan]:
        if step.number == 0:
            raise asyncio.CancelledError
        return Replace([Plan("fine")])

    session[Plan].register(Step, interrupted)
    with pytest.raises(asyncio.CancelledError):
        session.dispatch(Step(0))
    assert len(session.log) == 0
    session.dispatch(Step(1))
    assert session[Plan].latest() == Plan("fine")


def test_an_aborted_append_leaves_no_trace_in_shared_structure() -> None:
    """The first reducer's item lands behind the end of the slice before the second one fails."""
    session = session_with_reducers()
    session.dispatch(Commanded("extend", tuple(Plan(str(number)) for number in range(10))))
    view = session[Plan].all()
    branch = session.branch()
    branch.dispatch(Claimed(1))
    branch[Plan].append(Plan("from the branch"))
    session.dispatch(Claimed(1))
    with pytest.raises(ReducerError):
        branch.merge()
    session[Plan].append(Plan("next"))
    assert list(view) == [Plan(str(number)) for number in range(10)]
    assert session[Plan].all() == [*view, Plan("next")]
