"""A turn that still streams when its time is over, or when the run is aborted, keeps what it has said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from watchkeeper import Adapter, Landing, Limits, MarkdownSection, Prompt, PromptTemplate, RunResult, Session, run
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import DeadlineExceededError
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.core.messages import AssistantMessage, UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import FREE, TokenUsage
from watchkeeper.loop.run import execute
from watchkeeper.runtime.events import ModelFailed
from watchkeeper.runtime.plan import PricedModel, RunScope, plan_for
from watchkeeper.runtime.result import transcript_of


class Streams:
    """A model that says the pieces of each turn, and takes an hour for a turn that ends with None."""

    name, provider, native_output, free = "streams", "test", True, True
    context_window = max_output_tokens = None
    streams_anyway = False

    def __init__(self, clock: TestClock, *turns: Sequence[str | Callable[[], object] | None]) -> None:
        self.clock, self.turns = clock, list(turns)
        self.requests: list[list[Any]] = []

    async def turn(self, request: ModelRequest) -> ModelReply:
        self.requests.append(list(request.transcript))
        said = ""
        for piece in self.turns.pop(0):
            if piece is None:
                await self.clock.sleep(3600)
                continue
            if not isinstance(piece, str):
                piece()
                continue
            said += piece
            hear = request.on_delta or (request.on_text if self.streams_anyway else None)
            if hear is not None:
                hear(piece)
        return ModelReply(AssistantMessage(text=said), TokenUsage(10, 5))

    async def close(self) -> None:
        pass


ASK: Prompt[str] = Prompt(
    PromptTemplate[str](ns="demo", key="cut", sections=(MarkdownSection("Task", "task", "Write."),))
)

LANDS = Limits("100s", landing=Landing(time_share=0.1))


def streamed(model: Streams, limits: Limits, session: Session | None = None) -> RunResult[str]:
    return run(ASK, model=model, limits=limits, clock=model.clock, session=session, on_event=lambda event: None)


def test_a_first_turn_that_is_cut_is_the_partial_answer() -> None:
    clock = TestClock()
    model = Streams(clock, ["Half ", "of it", None])
    result = streamed(model, Limits("100s", landing=None))
    assert result.stop is not None
    assert result.stop.reason == "timeout"
    assert (result.output, result.partial, result.text) == (None, "Half of it", "Half of it")
    assert "10 characters of text to hand over" in result.sentence()


def test_an_adapter_that_streams_without_a_listener_keeps_its_text_too() -> None:
    clock = TestClock()
    model = Streams(clock, ["Half ", "of it", None], ["All of it"])
    model.streams_anyway = True
    result = run(ASK, model=model, limits=LANDS, clock=clock)
    assert result.stop is not None
    assert (result.stop.reason, result.partial) == ("timeout", "All of it")
    assert model.requests[1][1] == AssistantMessage(text="Half of it")
    again = Streams(clock, ["Half ", "of it", None])
    again.streams_anyway = True
    assert run(ASK, model=again, limits=Limits("100s", landing=None), clock=clock).partial == "Half of it"


def test_it_lands_if_there_is_time() -> None:
    clock = TestClock()
    model = Streams(clock, ["Half", None], ["All of it"])
    result = streamed(model, LANDS)
    assert result.stop is not None
    assert (result.stop.reason, result.partial) == ("timeout", "All of it")
    first, cut, notice = model.requests[1]
    assert isinstance(first, UserMessage)
    assert cut == AssistantMessage(text="Half")
    assert "This is your last turn" in notice.text


def test_a_hand_over_that_is_cut_too_replaces_nothing() -> None:
    clock = TestClock()
    result = streamed(Streams(clock, ["Half of it", None], ["Al", None]), LANDS)
    assert result.stop is not None
    assert (result.stop.reason, result.partial) == ("timeout", "Half of it")


def test_the_log_has_the_conversation_as_it_was() -> None:
    clock = TestClock()
    model = Streams(clock, ["Half", None], ["All of it"], ["More"])
    session = Session(clock=clock)
    streamed(model, LANDS, session)
    said = [message.text for message in transcript_of(session.log)]
    assert (said[1], said[3]) == ("Half", "All of it")
    assert [envelope.event.text for envelope in session.log if isinstance(envelope.event, ModelFailed)] == ["Half"]
    streamed(model, LANDS, session)
    assert [message.text for message in model.requests[2]][: len(said)] == said


def test_a_turn_that_said_nothing_leaves_nothing() -> None:
    clock = TestClock()
    model = Streams(clock, [" \n", None])
    result = streamed(model, LANDS)
    assert result.stop is not None
    assert (result.stop.reason, result.partial, len(model.requests)) == ("timeout", None, 1)


async def test_an_abort_keeps_it_too() -> None:
    clock = TestClock()
    session = Session(clock=clock)
    with ExecutionContext(LANDS, clock=clock) as gate:
        model = PricedModel(Streams(clock, ["Half", lambda: gate.cancellation.cancel("enough"), None]), FREE)
        plan = plan_for(ASK, ASK.render(), model, on_delta=print)
        result = await execute(plan, RunScope(session, gate, root_run_context(session.session_id), clock, SYSTEM_IDS))
    assert result.stop is not None
    assert (result.stop.reason, result.partial) == ("aborted", "Half")


def test_evaluate_is_stopped_as_before() -> None:
    clock = TestClock()
    with pytest.raises(DeadlineExceededError):
        Adapter(Streams(clock, ["Half", None]), clock=clock).evaluate(ASK, deadline=clock.now() + timedelta(seconds=9))
