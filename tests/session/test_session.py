"""A session, its snapshots and its branches behave like a simple model of lists and dictionaries."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.session.samples import (
    Broken,
    Claimed,
    Commanded,
    Counted,
    Plan,
    Step,
    Total,
    Unstorable,
    add_up,
    session_with_reducers,
)
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ReducerError, SessionError
from watchkeeper.session.log import RolledBack, SessionReset, SliceEdited
from watchkeeper.session.session import Branch, Session
from watchkeeper.session.slices import Snapshot, append_event

SLICES: tuple[type[Any], ...] = (Plan, Step, Total, Counted, Commanded, Broken, Claimed)

Slices = dict[type, list[Any]]
Write = tuple[Any, ...]


class Failed(Exception):
    """A reducer of the model fails."""


@dataclass
class Photo:
    """The model of a snapshot."""

    slices: Slices
    owner: int
    writes: list[Write]


@dataclass
class Model:
    """The model of a session or branch: plain lists, copied wherever something must not change."""

    slices: Slices = field(default_factory=dict[type, list[Any]])
    log: list[Write] = field(default_factory=list[Write])
    writes: list[Write] = field(default_factory=list[Write])
    base: Model | None = None
    ended: bool = False

    def write(self, write: Write) -> bool:
        """Do what a write says; return whether its reducers succeeded."""
        try:
            slices = applied(self.slices, write)
        except Failed:
            self.log.append(write)
            return False
        self.log.append(write)
        self.slices = slices
        if write[0] == "rollback" and write[1].owner == id(self):
            self.writes = list(write[1].writes)
        elif self.base is not None:
            self.writes.append(write)
        return True

    def merge(self) -> bool:
        """Repeat the writes on the base, all or nothing."""
        assert self.base is not None
        trial = copy.copy(self.base)
        trial.log, trial.writes = [], []
        for write in self.writes:
            try:
                applied(trial.slices, write)
            except Failed:
                return False
            trial.write(write)
        for write in self.writes:
            self.base.write(write)
        self.ended = True
        return True


def applied(slices: Slices, write: Write) -> Slices:
    """Return what the slices are after a write."""
    now = {kind: list(items) for kind, items in slices.items()}
    match write:
        case ("event", Step() as step):
            now.setdefault(Step, []).append(step)
        case ("event", Counted(by)):
            now[Total] = [Total(by + (now[Total][-1].value if now.get(Total) else 0))]
        case ("event", Commanded("append", (plan, *_))):
            now.setdefault(Plan, []).append(plan)
        case ("event", Commanded("extend", plans)):
            now.setdefault(Plan, []).extend(plans)
        case ("event", Commanded("replace", plans)):
            now[Plan] = list(plans)
        case ("event", Commanded()):
            now[Plan] = []
        case ("event", Broken(number)):
            if number % 2:
                raise Failed
            now.setdefault(Step, []).append(Step(number))
            now.setdefault(Plan, []).append(Plan(f"even: {number}"))
        case ("event", Claimed() as claimed):
            if claimed in now.get(Claimed, []):
                raise Failed
            now.setdefault(Claimed, []).append(claimed)
        case ("append", kind, items):
            now.setdefault(kind, []).extend(items)
        case ("seed", kind, items):
            now[kind] = list(items)
        case ("clear", kind, _):
            now[kind] = []
        case ("rollback", photo):
            now = {kind: list(items) for kind, items in photo.slices.items()}
        case _:
            now = {}
    return now


plans = st.builds(Plan, st.text(max_size=3))
events = st.one_of(
    st.builds(Step, st.integers(0, 9)),
    st.builds(Counted, st.integers(-5, 5)),
    st.builds(Commanded, st.just("append"), st.tuples(plans)),
    st.builds(Commanded, st.sampled_from(["extend", "replace", "clear"]), st.lists(plans, max_size=3).map(tuple)),
    st.builds(Broken, st.integers(0, 3)),
    st.builds(Claimed, st.integers(0, 4)),
)


class Sessions(RuleBasedStateMachine):
    """One session, branches of it and of each other, snapshots of any of them restored in any of them."""

    branches = Bundle("branches")
    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.session = session_with_reducers(clock=TestClock())
        self.model = Model()
        self.told: list[int] = []
        self.session.dispatcher.subscribe_all(lambda envelope: self.told.append(envelope.seq))
        self.pairs: list[tuple[Session, Model]] = [(self.session, self.model)]

    def pick(self, which: int) -> tuple[Session, Model]:
        open_pairs = [pair for pair in self.pairs if not pair[1].ended]
        return open_pairs[which % len(open_pairs)]

    @rule(which=st.integers(0, 9), event=events)
    def dispatch(self, which: int, event: Any) -> None:
        session, model = self.pick(which)
        if model.write(("event", event)):
            envelope = session.dispatch(event)
        else:
            with pytest.raises(ReducerError):
                session.dispatch(event)
            envelope = session.log[-1]
        assert (envelope.seq, envelope.event) == (len(model.log), event)

    @rule(which=st.integers(0, 9), items=st.lists(plans, max_size=2))
    def seed(self, which: int, items: list[Plan]) -> None:
        session, model = self.pick(which)
        session[Plan].seed(*items)
        model.write(("seed", Plan, items))

    @rule(which=st.integers(0, 9), item=plans)
    def append(self, which: int, item: Plan) -> None:
        session, model = self.pick(which)
        session[Plan].append(item)
        model.write(("append", Plan, [item]))

    @rule(which=st.integers(0, 9), kind=st.sampled_from([Plan, Step, Total]))
    def clear(self, which: int, kind: type) -> None:
        session, model = self.pick(which)
        session[kind].clear()
        model.write(("clear", kind, ()))

    @rule(which=st.integers(0, 9))
    def reset(self, which: int) -> None:
        session, model = self.pick(which)
        session.reset()
        model.write(("reset",))

    @rule(target=snapshots, which=st.integers(0, 9))
    def snapshot(self, which: int) -> tuple[Snapshot, Photo]:
        session, model = self.pick(which)
        snapshot = session.snapshot()
        assert snapshot.seq == len(model.log)
        return snapshot, Photo(model.slices, id(model), list(model.writes))

    @rule(target=snapshots, pair=snapshots)
    def store_and_load(self, pair: tuple[Snapshot, Photo]) -> tuple[Snapshot, Photo]:
        snapshot, photo = pair
        back = Snapshot.from_json(snapshot.to_json())
        assert back == snapshot
        assert hash(back) == hash(snapshot)
        return back, Photo(photo.slices, 0, [])

    @rule(which=st.integers(0, 9), pair=snapshots)
    def rollback(self, which: int, pair: tuple[Snapshot, Photo]) -> None:
        session, model = self.pick(which)
        snapshot, photo = pair
        session.rollback(snapshot)
        model.write(("rollback", photo))

    @rule(target=branches, which=st.integers(0, 9))
    def branch(self, which: int) -> tuple[Branch, Model]:
        session, model = self.pick(which)
        pair = (session.branch(), Model(model.slices, list(model.log), [], model))
        self.pairs.append(pair)
        return pair

    @rule(pair=consumes(branches))
    def merge(self, pair: tuple[Branch, Model]) -> None:
        branch, model = pair
        assert model.base is not None
        if model.ended or model.base.ended:
            with pytest.raises(SessionError, match="this branch was"):
                branch.merge()
        elif model.merge():
            branch.merge()
        else:
            with pytest.raises(ReducerError):
                branch.merge()

    @rule(pair=consumes(branches))
    def discard(self, pair: tuple[Branch, Model]) -> None:
        branch, model = pair
        branch.discard()
        model.ended = True

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        for session, model in self.pairs:
            for kind in SLICES:
                items = model.slices.get(kind, [])
                assert session[kind].all() == items
                assert session[kind].latest() == (items[-1] if items else None)
                assert session[kind].where(lambda item: item is not None) == tuple(items)
            assert len(session.log) == len(model.log)
        assert self.told == list(range(1, len(self.session.log) + 1))

    def teardown(self) -> None:
        for session, _ in self.pairs:
            assert [envelope.seq for envelope in session.log] == list(range(1, len(session.log) + 1))
            assert folded(session).slices == session.snapshot().slices


def folded(session: Session) -> Snapshot:
    """Return the state that a session's log alone tells of."""
    fresh = session_with_reducers()
    positions = {0: fresh.snapshot()}
    for envelope in session.log:
        event = envelope.event
        if isinstance(event, RolledBack):
            fresh.rollback(event.snapshot or positions[event.seq])
        else:
            try:
                fresh.dispatch(event)
            except ReducerError:
                assert isinstance(event, (Broken, Claimed))
        positions[envelope.seq] = fresh.snapshot()
    return fresh.snapshot()


TestSessions = pytest.mark.no_cover(pytest.mark.spec("FR-011", "FR-012", "FR-092")(Sessions.TestCase))
TestSessions.settings = settings(max_examples=80, stateful_step_count=30)


# --- dispatch ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("TO-023")
def test_an_event_without_reducers_is_kept_in_its_own_slice() -> None:
    session = Session()
    session.dispatch(Step(1))
    session.dispatch(Step(2))
    assert session[Step].all() == [Step(1), Step(2)]


def test_an_event_with_any_reducer_is_kept_only_where_reducers_put_it() -> None:
    session = Session()
    session[Total].register(Counted, add_up)
    session.dispatch(Counted(2))
    assert (session[Total].latest(), session[Counted].latest()) == (Total(2), None)
    session[Counted].register(Counted, append_event)
    session.dispatch(Counted(3))
    assert session[Total].latest() == Total(5)
    assert session[Counted].all() == [Counted(3)]


def test_an_envelope_carries_number_time_and_event() -> None:
    clock = TestClock(datetime(2026, 1, 1, tzinfo=UTC))
    session = Session(clock=clock)
    session.dispatch(Step(1))
    clock.advance(5)
    envelope = session.dispatch(Step(2))
    assert (envelope.seq, envelope.at, envelope.event) == (2, datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC), Step(2))
    assert session.log[1] is envelope


@pytest.mark.spec("FR-015")
def test_a_failing_reducer_leaves_the_event_recorded_and_told_and_no_slice_changed() -> None:
    session = session_with_reducers()
    told: list[Broken] = []
    session.dispatcher.subscribe(Broken, told.append)
    before = session.snapshot()
    with pytest.raises(
        ReducerError, match=r"reducer fail of slice Plan failed on Broken: ValueError: odd: 1"
    ) as caught:
        session.dispatch(Broken(1))
    assert isinstance(caught.value.__cause__, ValueError)
    assert session.snapshot().slices == before.slices
    assert session.log[-1].event == Broken(1)
    assert told == [Broken(1)]
    session.dispatch(Broken(2))
    assert session[Step].all() == [Step(2)]
    assert session[Plan].all() == [Plan("even: 2")]


def test_what_cannot_be_stored_is_refused_before_it_is_recorded() -> None:
    session = Session()

    @dataclass(frozen=True)
    class Holder:
        what: Any

    with pytest.raises(SessionError, match=r"Holder\.what\[0\] cannot be written: tests\.session\.samples\.Unstorable"):
        session.dispatch(Holder([Unstorable()]))
    with pytest.raises(SessionError, match=r"keeps only what can be stored: .*Unstorable"):
        session[Unstorable].append(Unstorable())
    assert len(session.log) == 0
    session.dispatch(Holder([1]))
    assert len(session.log) == 1


def test_a_class_in_the_place_of_an_instance_is_refused() -> None:
    with pytest.raises(SessionError, match="dispatch an instance, not the class Step"):
        Session().dispatch(Step)


def test_a_slice_key_must_be_a_concrete_class() -> None:
    class Port(Protocol):
        pass

    session = Session()
    for key in (list[int], "Plan", Port):
        with pytest.raises(SessionError, match="takes a concrete class"):
            session[key]  # type: ignore[index]  # pyright: ignore[reportArgumentType, reportCallIssue]


# --- edits, rollback and reset are on the log -------------------------------------------------------------------------


@pytest.mark.spec("FR-011")
def test_edits_rollback_and_reset_are_events() -> None:
    session = Session()
    start = session.snapshot()
    session[Plan].seed(Plan("a"), Plan("b"))
    session[Plan].append(Plan("c"))
    session[Plan].clear()
    session.rollback(start)
    session.reset()
    assert [envelope.event for envelope in session.log] == [
        SliceEdited(Plan, "seed", (Plan("a"), Plan("b"))),
        SliceEdited(Plan, "append", (Plan("c"),)),
        SliceEdited(Plan, "clear"),
        RolledBack(session.session_id, 0),
        SessionReset(),
    ]


@pytest.mark.spec("SD-010")
def test_a_rollback_to_a_foreign_state_carries_it_on_the_log() -> None:
    parent = Session()
    parent[Plan].seed(Plan("handed over"))
    handed = parent.snapshot()
    child = Session(parent=parent)
    child.rollback(handed)
    assert child[Plan].all() == [Plan("handed over")]
    assert child.log[-1].event == RolledBack(parent.session_id, 1, handed)
    stored = Snapshot.from_json(child.snapshot().to_json())
    child.rollback(stored)
    assert child.log[-1].event.snapshot == stored


@pytest.mark.spec("FR-012")
def test_a_rollback_keeps_the_log_and_the_reducers() -> None:
    session = session_with_reducers()
    session.dispatch(Counted(1))
    snapshot = session.snapshot()
    session.dispatch(Counted(1))
    session.rollback(snapshot)
    assert (session[Total].latest(), len(session.log)) == (Total(1), 3)
    session.dispatch(Counted(1))
    assert session[Total].latest() == Total(2)
    session.reset()
    session.dispatch(Counted(7))
    assert session[Total].latest() == Total(7)


def test_an_empty_slice_is_as_if_it_had_never_been() -> None:
    session = session_with_reducers()
    session[Step].seed()
    session.dispatch(Commanded("append", (Plan("a"),)))
    session.dispatch(Commanded("clear"))
    session[Plan].append(Plan("b"))
    session[Plan].clear()
    assert session.snapshot().slices == {}


def test_a_wrong_item_is_refused_and_nothing_is_recorded() -> None:
    session = Session()
    wrong: Any = "a plan"
    for edit in (session[Plan].append, session[Plan].seed):
        with pytest.raises(SessionError, match=r"session\[Plan\] holds Plan, not str \('a plan'\)"):
            edit(wrong)
    with pytest.raises(SessionError, match="holds Plan, not str"):
        session.dispatch(SliceEdited(Plan, "seed", ("a plan",)))
    assert len(session.log) == 0


def test_a_rolled_back_event_without_its_snapshot_is_refused() -> None:
    session = Session()
    with pytest.raises(SessionError, match=r"call session\.rollback"):
        session.dispatch(RolledBack(session.session_id, 0))
    assert len(session.log) == 0


def test_a_subclass_of_the_slice_type_fits() -> None:
    class Special(Plan):
        pass

    session = Session()
    session[Plan].append(Special("s"))
    assert session[Plan].where(lambda plan: isinstance(plan, Special)) == (Special("s"),)


# --- identity ---------------------------------------------------------------------------------------------------------


def test_two_sessions_differ_and_an_identity_can_be_given() -> None:
    one, other = Session(), Session()
    assert one.session_id != other.session_id
    assert Session(session_id=one.session_id).session_id == one.session_id
    assert one.dispatcher is not other.dispatcher
    assert repr(one) == f"Session({one.session_id}, 0 events)"


def test_what_a_subscriber_dispatches_is_told_in_the_order_of_the_log() -> None:
    @dataclass(frozen=True)
    class Numbered:
        number: int

    session = Session()
    told: list[int] = []

    def follow(event: Numbered) -> None:
        told.append(event.number)
        if event.number == 0:
            for number in (1, 2, 3):
                session.dispatch(Numbered(number))

    session.dispatcher.subscribe(Numbered, follow)
    session.dispatch(Numbered(0))
    assert told == [0, 1, 2, 3]
