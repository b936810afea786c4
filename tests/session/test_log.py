"""The log, the tags of events, and who is told about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from tests.session.samples import Counted, Plan, Step
from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.errors import ConfigurationError, SessionError
from watchkeeper.core.type_tags import tag_of, type_of
from watchkeeper.session.log import Dispatcher, Envelope, EventBus, EventLog, InProcessDispatcher, Unsubscribe, event
from watchkeeper.session.session import Session
from watchkeeper.session.tagging import dump, load


def session_of(count: int) -> Session:
    session = Session()
    for number in range(count):
        session.dispatch(Step(number))
    return session


def test_a_log_grows_with_its_session() -> None:
    session = Session()
    log = session.log
    assert len(log) == 0
    session.dispatch(Step(0))
    assert [envelope.event for envelope in log] == [Step(0)]
    assert isinstance(log, Sequence)


@pytest.mark.spec("FR-010")
def test_since_returns_what_is_new() -> None:
    session = session_of(100)
    newest = session.log[-1].seq
    assert session.log.since(newest) == ()
    session.dispatch(Step(100))
    assert [envelope.seq for envelope in session.log.since(newest)] == [101]
    assert [envelope.seq for envelope in session.log.since(0)] == list(range(1, 102))
    assert session.log.since(-5) == session.log.since(0)
    assert session.log.since(1000) == ()


def test_positions_and_parts() -> None:
    log = session_of(5).log
    assert log[0].seq == 1
    assert [envelope.seq for envelope in log[1:3]] == [2, 3]
    with pytest.raises(IndexError):
        log[5]


def test_an_iteration_sees_the_log_as_it_was_when_it_began() -> None:
    session = session_of(3)
    seen: list[int] = []
    for envelope in session.log:
        session.dispatch(Step(9))
        seen.append(envelope.seq)
    assert seen == [1, 2, 3]
    assert len(session.log) == 6


@pytest.mark.spec("FR-010")
def test_a_log_has_nothing_to_write_with() -> None:
    assert not {name for name in dir(EventLog) if name in {"append", "extend", "insert", "clear", "__setitem__"}}


def test_an_envelope_comes_back_from_typed_json() -> None:
    envelope = session_of(1).log[0]
    back = load(dump(envelope))
    assert isinstance(back, Envelope)
    assert back == envelope
    assert b'"$type":"envelope"' in encode(dump(envelope))


def test_an_event_type_is_found_by_its_tag() -> None:
    assert tag_of(Counted) == "samples_counted"
    assert type_of("samples_counted") is Counted


def test_a_type_without_the_decorator_gets_a_tag_of_module_and_name() -> None:
    assert tag_of(Plan) == "tests.session.samples:Plan"
    assert type_of("tests.session.samples:Plan") is Plan


def test_one_tag_means_one_type() -> None:
    with pytest.raises(ConfigurationError, match=r"'samples_counted' .* belongs to tests\.session\.samples:Counted"):

        @event("samples_counted")
        @dataclass(frozen=True)
        class Other:  # pyright: ignore[reportUnusedClass]
            by: int


def test_models_and_structs_can_be_events() -> None:
    @event("registry_model")
    class Model(pydantic.BaseModel):
        n: int

    @event("registry_struct")
    class Struct(msgspec.Struct):
        n: int

    assert (type_of("registry_model"), type_of("registry_struct")) == (Model, Struct)


def test_the_decorator_below_dataclass_says_where_it_belongs() -> None:
    """A slotted dataclass is another class than the one that the inner decorator sees."""
    with pytest.raises(ConfigurationError, match=r"write @event\('registry_order'\) above @dataclass"):

        @dataclass(frozen=True, slots=True)
        @event("registry_order")
        class Order:  # pyright: ignore[reportUnusedClass]
            n: int


def test_a_subclass_has_a_tag_of_its_own() -> None:
    @dataclass(frozen=True, slots=True)
    class More(Counted):
        text: str = ""

    assert tag_of(More).endswith("More")


def test_an_unknown_tag_is_named() -> None:
    with pytest.raises(CodecError, match="unknown type tag 'registry_nobody'"):
        type_of("registry_nobody")


@dataclass(frozen=True, slots=True)
class LongStep(Step):
    """A subclass of an event."""


def test_a_subscriber_hears_its_type_and_subclasses() -> None:
    session, heard = Session(), list[Any]()
    session.dispatcher.subscribe(Step, heard.append)
    for each in (Step(1), Plan("p"), LongStep(2)):
        session.dispatch(each)
    assert heard == [Step(1), LongStep(2)]


def test_a_subscriber_to_everything_gets_envelopes() -> None:
    session, heard = Session(), list[Envelope]()
    session.dispatcher.subscribe_all(heard.append)
    session.dispatch(Step(1))
    session[Plan].append(Plan("p"))
    assert heard == list(session.log)


def test_an_unsubscribed_handler_hears_nothing_more_and_may_be_dropped_twice() -> None:
    session, heard = Session(), list[Any]()
    stop = session.dispatcher.subscribe(Step, heard.append)
    keep = session.dispatcher.subscribe(Step, heard.append)
    session.dispatch(Step(1))
    stop()
    stop()
    session.dispatch(Step(2))
    assert heard == [Step(1), Step(1), Step(2)]
    keep()
    session.dispatch(Step(3))
    assert len(heard) == 3


def test_handlers_run_in_the_order_of_subscription() -> None:
    session, heard = Session(), list[str]()
    session.dispatcher.subscribe(Step, lambda _: heard.append("first"))
    session.dispatcher.subscribe_all(lambda _: heard.append("second"))
    session.dispatcher.subscribe(Step, lambda _: heard.append("third"))
    session.dispatch(Step(1))
    assert heard == ["first", "second", "third"]


def test_a_handler_that_raises_is_reported_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    session, heard = Session(), list[Any]()

    def broken(event: Step) -> None:
        raise ValueError(f"cannot handle {event.number}")

    session.dispatcher.subscribe(Step, broken)
    session.dispatcher.subscribe(Step, heard.append)
    with caplog.at_level(logging.ERROR, logger="watchkeeper"):
        envelope = session.dispatch(Step(7))
    assert heard == [Step(7)]
    assert envelope.seq == 1
    [record] = caplog.records
    for part in ("subscriber.failed", "broken", "tests.session.samples:Step", "seq=1", "cannot handle 7"):
        assert part in record.getMessage()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interrupt_in_a_handler_is_raised_after_everybody_was_told(interrupt: type[BaseException]) -> None:
    session, heard = Session(), list[Any]()

    def interrupted(event: Step) -> None:
        if event.number == 1:
            session.dispatch(Step(2))
            raise interrupt

    session.dispatcher.subscribe(Step, interrupted)
    session.dispatcher.subscribe(Step, heard.append)
    with pytest.raises(interrupt):
        session.dispatch(Step(1))
    assert heard == [Step(1), Step(2)]
    session.dispatch(Step(3))
    assert heard[-1] == Step(3)


def test_what_a_handler_dispatches_is_told_after_the_event_at_hand() -> None:
    session, heard = Session(), list[tuple[str, int]]()

    def echo(event: Step) -> None:
        if event.number < 3:
            session.dispatch(Step(event.number + 1))
        heard.append(("echo", event.number))

    session.dispatcher.subscribe(Step, echo)
    session.dispatcher.subscribe(Step, lambda event: heard.append(("last", event.number)))
    session.dispatch(Step(1))
    assert heard == [(name, number) for number in (1, 2, 3) for name in ("echo", "last")]


def test_a_handler_may_read_the_session_with_the_event_applied() -> None:
    session, seen = Session(), list[int]()
    session.dispatcher.subscribe(Step, lambda _: seen.append(len(session[Step].all())))
    session.dispatch(Step(1))
    session.dispatch(Step(2))
    assert seen == [1, 2]


def test_a_subscription_made_while_publishing_counts_from_the_next_event() -> None:
    session, heard = Session(), list[Any]()
    session.dispatcher.subscribe(Counted, lambda _: session.dispatcher.subscribe(Step, heard.append))
    session.dispatch(Step(1))
    session.dispatch(Counted(1))
    session.dispatch(Step(2))
    assert heard == [Step(2)]


def test_a_coroutine_function_is_refused_because_nobody_would_await_it() -> None:
    dispatcher = InProcessDispatcher()

    async def handler(event: Any) -> None:
        raise AssertionError(event)

    with pytest.raises(SessionError, match="handler is a coroutine function"):
        dispatcher.subscribe(Step, handler)
    with pytest.raises(SessionError, match="subscribe a plain function"):
        dispatcher.subscribe_all(handler)


def test_sessions_may_share_a_dispatcher() -> None:
    bus: EventBus = InProcessDispatcher()
    heard = list[Any]()
    bus.subscribe(Step, heard.append)
    Session(dispatcher=bus).dispatch(Step(1))
    Session(dispatcher=bus).dispatch(Step(2))
    assert heard == [Step(1), Step(2)]


def test_a_dispatcher_of_the_users_that_raises_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    class Fragile:
        def subscribe(self, event_type: type[Any], handler: Any) -> Unsubscribe:
            raise NotImplementedError

        def subscribe_all(self, handler: Any) -> Unsubscribe:
            raise NotImplementedError

        def publish(self, envelope: Envelope) -> None:
            raise OSError("the bus is down")

    fragile: Dispatcher = Fragile()
    with caplog.at_level(logging.ERROR, logger="watchkeeper"):
        assert Session(dispatcher=fragile).dispatch(Step(1)).seq == 1
    assert "dispatcher.failed" in caplog.text
    assert "the bus is down" in caplog.text


def test_a_callable_object_is_named_by_its_repr(caplog: pytest.LogCaptureFixture) -> None:
    class Handler:
        def __call__(self, event: Step) -> None:
            raise ValueError

        def __repr__(self) -> str:
            return "the handler"

    session = Session()
    session.dispatcher.subscribe(Step, Handler())
    with caplog.at_level(logging.ERROR, logger="watchkeeper"):
        session.dispatch(Step(1))
    assert "the handler" in caplog.text
