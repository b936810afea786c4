"""The turn loop's rules, without any I/O: what it asks for, what it appends, how it ends."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import Stop, StopReason
from watchkeeper.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, Transcript, UserMessage
from watchkeeper.core.model import FinishReason, ModelReply
from watchkeeper.core.usage import TokenUsage
from watchkeeper.kernel.turn_machine import (
    CUT_NOTICE,
    EMPTY_NOTICE,
    TABLE,
    AskModel,
    CheckDone,
    Checked,
    Command,
    Compact,
    Compacted,
    End,
    LoopRules,
    Observe,
    Observed,
    Parsed,
    ReadAnswer,
    Replied,
    RunTools,
    Signal,
    Started,
    State,
    Stopped,
    ToolsDone,
    TurnMachine,
    Unparsable,
    allowed,
    mermaid,
)

CALL = ToolCall("c1", "look", "{}")
LIMIT = Stop("budget_exceeded", "gate", "The run reached its cost ceiling of $2.00.")
FULL = Stop("context_full", "loop", "The conversation has grown to about 3,900 tokens.")
ABORT = Stop("aborted", "caller", "The run was aborted.")


def machine(**rules: Any) -> TurnMachine:
    return TurnMachine(LoopRules(**rules), Transcript([UserMessage.of("Do it.")]))


def reply(text: str = "", *calls: ToolCall, finish: FinishReason = "stop") -> Replied:
    return Replied(ModelReply(AssistantMessage(text, calls), TokenUsage(1, 1), finish))


def done(*texts: str, stop: Stop | None = None) -> ToolsDone:
    return ToolsDone(tuple(ToolMessage(CALL.call_id, CALL.name, text) for text in texts), stop)


def feed(loop: TurnMachine, *signals: Signal) -> Command:
    command: Command | None = None
    for signal in signals:
        command = loop.handle(signal)
    assert command is not None
    return command


def last_text(loop: TurnMachine) -> str:
    message = loop.transcript[len(loop.transcript) - 1]
    assert isinstance(message, UserMessage)
    return message.text


def test_a_final_answer_ends_the_run_with_its_output() -> None:
    loop = machine()
    assert feed(loop, Started()) == AskModel()
    assert feed(loop, reply("42")) == ReadAnswer("42")
    assert feed(loop, Parsed(42)) == End(output=42, text="42")
    assert loop.state is State.ENDED
    assert loop.turns == 1


def test_tool_calls_are_run_and_their_results_appended_in_order() -> None:
    loop = machine()
    assert feed(loop, Started(), reply("let me see", CALL)) == RunTools((CALL,))
    assert feed(loop, done("found")) == AskModel()
    assert [message.role for message in loop.transcript] == ["user", "assistant", "tool"]


def test_the_work_is_checked_if_there_is_a_checker() -> None:
    loop = machine(checks=True)
    assert feed(loop, Started(), reply("42"), Parsed(42)) == CheckDone(42)
    end = feed(loop, Checked("complete", "all files are there"))
    assert end == End(output=42, text="42", verdict="verified", explanation="all files are there")


def test_unverified_work_ends_as_unverified_never_as_verified() -> None:
    end = feed(machine(checks=True), Started(), reply("42"), Parsed(42), Checked("unverified", "the checker failed"))
    assert end == End(output=42, text="42", verdict="unverified", explanation="the checker failed")


@pytest.mark.spec("NE-022")
def test_under_a_closed_policy_unverified_work_is_a_stop_with_the_answer_as_partial_result() -> None:
    loop = machine(checks=True, closed=True)
    end = feed(loop, Started(), reply("42"), Parsed(42), Checked("unverified", "the checker failed"))
    stop = Stop("unverified", "checker", "Nobody could verify the work: the checker failed")
    assert end == End(stop=stop, partial=42, text="42", verdict="unverified", explanation="the checker failed")


def test_a_closed_policy_lets_verified_work_end() -> None:
    end = feed(machine(checks=True, closed=True), Started(), reply("42"), Parsed(42), Checked("complete", "fine"))
    assert end == End(output=42, text="42", verdict="verified", explanation="fine")


def test_incomplete_work_is_sent_back_with_the_reason() -> None:
    loop = machine(checks=True)
    assert feed(loop, Started(), reply("42"), Parsed(42), Checked("incomplete", "b.txt is missing")) == AskModel()
    assert "b.txt is missing" in last_text(loop)


def test_incomplete_once_too_often_ends_the_run_with_the_answer_as_partial_result() -> None:
    loop = machine(checks=True, completion_rounds=1)
    round_trip = (reply("42"), Parsed(42), Checked("incomplete", "no"))
    end = feed(loop, Started(), *round_trip, *round_trip)
    assert isinstance(end, End)
    assert end.stop is not None
    assert (end.stop.reason, end.partial) == ("incomplete", 42)
    assert end.stop.message == "The work was found incomplete 2 times, last: no"
    assert (end.verdict, end.explanation) == ("rejected", "no")


@pytest.mark.spec("FR-157")
def test_without_rounds_the_first_incomplete_ends_the_run_and_its_sentence_is_short() -> None:
    long = "one line\n" * 100
    loop = machine(checks=True, completion_rounds=0)
    end = feed(loop, Started(), reply("42"), Parsed(42), Checked("incomplete", long))
    assert isinstance(end, End)
    assert end.stop is not None
    assert end.stop.message.startswith("The work was found incomplete: one line one line")
    assert len(end.stop.message) < 400
    assert "\n" not in end.stop.message
    assert end.explanation == long


def test_a_limit_after_a_rejection_leaves_the_checkers_last_word_on_the_record() -> None:
    loop = machine(checks=True)
    feed(loop, Started(), reply("42"), Parsed(42), Checked("incomplete", "b.txt is missing"), Stopped(LIMIT))
    end = feed(loop, reply("so far"), Parsed("so far"))
    explained = "b.txt is missing"
    assert end == End(stop=LIMIT, partial="so far", text="so far", verdict="rejected", explanation=explained)


def test_a_limit_before_any_check_leaves_the_work_unchecked() -> None:
    end = feed(machine(checks=True, lands=False), Started(), reply("x", CALL), done("x"), Stopped(LIMIT))
    assert end == End(stop=LIMIT, partial="x", text="x", verdict="unchecked")


def test_an_answer_that_does_not_fit_gets_one_repair_round() -> None:
    loop = machine()
    assert feed(loop, Started(), reply("x"), Unparsable("expected int, got 'x'")) == AskModel()
    assert last_text(loop) == "expected int, got 'x'"
    end = feed(loop, reply("y"), Unparsable("expected int, got 'y'"))
    assert isinstance(end, End)
    assert end.stop is not None
    assert (end.stop.reason, end.partial) == ("output_invalid", "y")


def test_tools_between_two_bad_answers_earn_a_new_repair_round() -> None:
    loop = machine()
    feed(loop, Started(), reply("x"), Unparsable("no"), reply("", CALL), done("ok"), reply("x"))
    assert feed(loop, Unparsable("no")) == AskModel()


def test_an_empty_reply_is_asked_again_once_and_never_enters_the_transcript() -> None:
    loop = machine()
    assert feed(loop, Started(), reply("  ")) == AskModel()
    assert last_text(loop) == EMPTY_NOTICE
    end = feed(loop, reply(""))
    assert isinstance(end, End)
    assert end.stop is not None
    assert end.stop.reason == "empty_answer"
    assert all(message.role == "user" for message in loop.transcript)


def test_a_cut_answer_is_asked_again_once() -> None:
    loop = machine()
    assert feed(loop, Started(), reply("half an ans", finish="length")) == AskModel()
    assert last_text(loop) == CUT_NOTICE
    end = feed(loop, reply("half", finish="length"))
    assert isinstance(end, End)
    assert end.stop is not None
    assert (end.stop.reason, end.partial) == ("output_invalid", "half")


def test_a_refusal_ends_the_run_with_the_models_words() -> None:
    end = feed(machine(), Started(), reply("I will not.", finish="refusal"))
    assert isinstance(end, End)
    assert end.stop is not None
    assert end.stop.reason == "refused"
    assert "I will not." in end.stop.message


@pytest.mark.spec("FR-046")
def test_a_limit_is_landed_with_a_last_turn_that_hands_over_what_there_is() -> None:
    loop = machine()
    assert feed(loop, Started(), reply("", CALL), done("found"), Stopped(LIMIT)) == AskModel(landing=True)
    assert "$2.00" in last_text(loop)
    assert feed(loop, reply("half of it")) == ReadAnswer("half of it")
    assert feed(loop, Parsed(0.5)) == End(stop=LIMIT, partial=0.5, text="half of it")


def test_a_landing_answer_that_does_not_fit_is_handed_over_as_text() -> None:
    end = feed(machine(), Started(), reply("", CALL), done("x"), Stopped(LIMIT), reply("half of it"), Unparsable("no"))
    assert end == End(stop=LIMIT, partial="half of it", text="half of it")


def test_a_limit_that_comes_while_tools_run_leaves_no_call_without_a_result() -> None:
    loop = machine()
    assert feed(loop, Started(), reply("", CALL), done("not run", stop=LIMIT)) == AskModel(landing=True)
    assert [message.role for message in loop.transcript] == ["user", "assistant", "tool", "user"]


def test_calls_in_a_landing_reply_are_ignored_and_only_its_text_is_kept() -> None:
    loop = machine()
    feed(loop, Started(), reply("", CALL), done("x"), Stopped(LIMIT))
    assert feed(loop, reply("so far", CALL, finish="tool_calls")) == ReadAnswer("so far")
    assert loop.transcript[len(loop.transcript) - 1] == AssistantMessage("so far")


@pytest.mark.parametrize("answer", [reply(""), reply("", CALL), reply("no", finish="refusal")])
def test_a_landing_without_words_ends_with_the_limit(answer: Replied) -> None:
    end = feed(machine(), Started(), reply("first", CALL), done("x"), Stopped(LIMIT), answer)
    assert isinstance(end, End)
    assert end.stop is LIMIT


def test_a_landing_that_is_stopped_itself_ends_with_the_first_limit() -> None:
    end = feed(machine(), Started(), reply("so far", CALL), done("x"), Stopped(LIMIT), Stopped(ABORT))
    assert end == End(stop=LIMIT, partial="so far", text="so far")


@pytest.mark.parametrize(
    ("rules", "stop"),
    [({}, ABORT), ({"lands": False}, LIMIT), ({"lands_when_full": False}, Stop("context_full", "loop", "full"))],
)
def test_an_abort_and_an_unwanted_landing_end_at_once(rules: dict[str, Any], stop: Stop) -> None:
    end = feed(machine(**rules), Started(), reply("", CALL), done("x"), Stopped(stop))
    assert isinstance(end, End)
    assert end.stop is stop


@pytest.mark.parametrize(
    "reason",
    [
        "budget_exceeded",
        "token_limit_exceeded",
        "step_limit_exceeded",
        "tool_call_limit_exceeded",
        "retry_budget_exceeded",
        "turn_limit_exceeded",
        "timeout",
        "context_full",
        "interrupted",
        "escalated",
    ],
)
def test_after_a_limit_an_interruption_or_an_escalation_comes_a_last_turn(reason: StopReason) -> None:
    stop = Stop(reason, "gate", "Over.")
    assert feed(machine(), Started(), reply("", CALL), done("x"), Stopped(stop)) == AskModel(landing=True)


SEGMENT = (UserMessage.of("Do it."), UserMessage.of("So far: half of it."))


def test_a_full_context_is_compacted_and_the_work_goes_on_in_a_new_segment() -> None:
    loop = machine(compacts=True)
    assert feed(loop, Started(), reply("", CALL), done("x"), Stopped(FULL)) == Compact(FULL)
    assert loop.state is State.COMPACTING
    assert feed(loop, Compacted(SEGMENT)) == AskModel()
    assert (tuple(loop.transcript), loop.transcript.segment, loop.turns) == (SEGMENT, 2, 1)
    assert feed(loop, reply("42"), Parsed(42)) == End(output=42, text="42")


def test_a_context_that_is_full_again_before_a_turn_was_completed_is_landed() -> None:
    loop = machine(compacts=True)
    feed(loop, Started(), reply("", CALL), done("x"), Stopped(FULL), Compacted(SEGMENT))
    assert feed(loop, Stopped(FULL)) == AskModel(landing=True)


def test_every_completed_turn_earns_another_segment() -> None:
    loop = machine(compacts=True)
    feed(loop, Started())
    for segment in range(2, 6):
        assert feed(loop, reply("", CALL), done("x"), Stopped(FULL)) == Compact(FULL)
        feed(loop, Compacted(SEGMENT))
        assert loop.transcript.segment == segment


def test_an_earlier_conversation_that_fills_the_context_is_compacted_before_the_first_turn() -> None:
    loop = machine(compacts=True)
    assert feed(loop, Started(), Stopped(FULL)) == Compact(FULL)
    end = feed(loop, Compacted(SEGMENT), Stopped(FULL))
    assert end == End(stop=FULL)


@pytest.mark.parametrize("stop", [FULL, LIMIT])
def test_where_no_summary_can_be_made_the_run_is_landed(stop: Stop) -> None:
    loop = machine(compacts=True)
    assert feed(loop, Started(), reply("", CALL), done("x"), Stopped(FULL), Stopped(stop)) == AskModel(landing=True)
    assert last_text(loop).startswith(stop.message)
    assert loop.transcript.segment == 1


def test_an_abort_while_the_summary_is_made_ends_the_run() -> None:
    end = feed(machine(compacts=True), Started(), reply("so far", CALL), done("x"), Stopped(FULL), Stopped(ABORT))
    assert end == End(stop=ABORT, partial="so far", text="so far")


def test_other_limits_are_never_compacted() -> None:
    loop = machine(compacts=True)
    assert feed(loop, Started(), reply("", CALL), done("x"), Stopped(LIMIT)) == AskModel(landing=True)


def test_a_full_context_while_landing_ends_the_run() -> None:
    loop = machine(compacts=True)
    end = feed(loop, Started(), reply("so far", CALL), done("x"), Stopped(LIMIT), Stopped(FULL))
    assert end == End(stop=LIMIT, partial="so far", text="so far")


def test_a_limit_before_the_first_reply_has_nothing_to_land() -> None:
    loop = machine(max_turns=1)
    end = feed(loop, Started(), Stopped(LIMIT))
    assert end == End(stop=LIMIT)


def test_a_limit_that_comes_while_the_answer_is_checked_keeps_the_answer_as_partial() -> None:
    end = feed(machine(checks=True), Started(), reply("42"), Parsed(42), Stopped(LIMIT))
    why = f"the run ended before the answer was checked: {LIMIT.message}"
    assert end == End(stop=LIMIT, partial=42, text="42", verdict="unverified", explanation=why)


def test_the_last_turn_of_a_turn_limit_is_the_landing() -> None:
    loop = machine(max_turns=2)
    assert feed(loop, Started(), reply("", CALL), done("x")) == AskModel(landing=True)
    end = feed(loop, reply("so far"), Parsed("so far"))
    assert isinstance(end, End)
    assert end.stop is not None
    assert (end.stop.reason, end.stop.limit, end.stop.value) == ("turn_limit_exceeded", "max_turns", "2 turns")
    assert loop.turns == 2


def test_one_turn_is_one_turn_of_work_without_landing() -> None:
    loop = machine(max_turns=1)
    end = feed(loop, Started(), reply("", CALL), done("x"))
    assert isinstance(end, End)
    assert end.stop is not None
    assert loop.turns == 1


@pytest.mark.spec("FR-040")
def test_a_signal_that_cannot_happen_is_a_bug_and_says_so() -> None:
    with pytest.raises(RuntimeError, match="Parsed cannot happen while the loop is ready"):
        machine().handle(Parsed(1))


def test_the_diagram_shows_every_row_of_the_table() -> None:
    drawn = mermaid()
    for row in TABLE:
        assert row.signal.__name__ in drawn
    assert allowed(State.READY, Replied) == frozenset()


STOPS = st.sampled_from([LIMIT, ABORT, Stop("timeout", "gate", "late"), Stop("context_full", "loop", "full")])
FINISHES: tuple[FinishReason, ...] = ("stop", "stop", "length", "refusal", "paused", "unknown")
VERDICTS: tuple[Literal["complete", "incomplete", "unverified"], ...] = ("complete", "incomplete", "unverified")


@st.composite
def replies(draw: st.DrawFn) -> Replied:
    """Draw what a model may answer."""
    count, finish = draw(st.integers(0, 3)), draw(st.sampled_from(FINISHES))
    calls = tuple(ToolCall(f"c{number}", "look", "{}") for number in range(count))
    message = AssistantMessage(draw(st.sampled_from(["", " ", "text"])), calls)
    return Replied(ModelReply(message, TokenUsage(1, 1), "tool_calls" if calls and finish == "stop" else finish))


@pytest.mark.spec("FR-040", "FR-092", "FR-165")
@given(data=st.data(), max_turns=st.one_of(st.none(), st.integers(1, 6)), flags=st.tuples(*[st.booleans()] * 4))
def test_whatever_happens_the_loop_keeps_its_rules(
    data: st.DataObject, max_turns: int | None, flags: tuple[bool, bool, bool, bool]
) -> None:
    """It never exceeds its turns, only appends within a segment, begins a new one only for a summary and never two
    without a turn between, answers every call once, and ends once with a reason or an output.
    """
    checks, lands, observes, compacts = flags
    loop = machine(max_turns=max_turns, checks=checks, lands=lands, observes=observes, compacts=compacts)
    command = loop.handle(Started())
    before: list[Message] = list(loop.transcript)
    segments: list[int] = []
    for _ in range(60):
        if isinstance(command, End):
            break
        assert compacts or not isinstance(command, Compact)
        signal = data.draw(answers(command))
        command = loop.handle(signal)
        now = list(loop.transcript)
        if isinstance(signal, Compacted):
            segments.append(loop.turns)
            before = list(signal.messages)
        assert loop.transcript.segment == 1 + len(segments)
        assert all(old is new for old, new in zip(before, now, strict=False))
        assert len(now) >= len(before)
        before = now
        assert max_turns is None or loop.turns <= max_turns
    if isinstance(command, End):
        assert (command.stop is None) or command.output is None
        assert command.verdict != "rejected" or command.stop is not None
        assert command.verdict != "verified" or command.stop is None
        assert (command.verdict == "unchecked") == (not command.explanation)
        assert command.stop is not None or (command.verdict == "unchecked") == (not checks)
    assert len(set(segments)) == len(segments)
    asked = [call.call_id for message in before if isinstance(message, AssistantMessage) for call in message.tool_calls]
    answered = [message.call_id for message in before if isinstance(message, ToolMessage)]
    if not isinstance(command, RunTools):
        assert asked == answered


def test_what_observers_say_is_appended_after_the_results_and_their_stop_lands() -> None:
    loop = machine(observes=True)
    loop.handle(Started())
    call = ToolCall("c0", "look", "{}")
    loop.handle(Replied(ModelReply(AssistantMessage("", (call,)), TokenUsage(1, 1), "tool_calls")))
    assert loop.handle(ToolsDone((ToolMessage("c0", "look", "ok"),))) == Observe()
    stop = Stop("escalated", "observer", "not heeded")
    assert loop.handle(Observed("heed this", stop)) == AskModel(landing=True)
    assert [type(message) for message in loop.transcript][-3:] == [ToolMessage, UserMessage, UserMessage]
    assert list(loop.transcript)[-2].text == "heed this"


def answers(command: Command) -> st.SearchStrategy[Signal]:
    """Return what a driver may say after a command."""
    match command:
        case AskModel():
            return st.one_of(replies(), replies(), replies(), STOPS.map(Stopped))
        case Compact():
            return st.one_of(st.just(Compacted(SEGMENT)), STOPS.map(Stopped))
        case RunTools(calls=calls):
            results = tuple(ToolMessage(call.call_id, call.name, "ok") for call in calls)

            def stopped(stop: Stop) -> Signal:
                return ToolsDone(results, stop)

            return st.one_of(st.just(ToolsDone(results)), STOPS.map(stopped))
        case Observe():
            stopping = STOPS.map(lambda stop: Observed("heed this", stop))
            return st.one_of(st.sampled_from([Observed(), Observed("heed this")]), stopping)
        case ReadAnswer():
            return st.sampled_from([Parsed(1), Unparsable("no")])
        case CheckDone():
            return st.one_of(st.sampled_from([Checked(status, "why") for status in VERDICTS]), STOPS.map(Stopped))
        case End():
            raise AssertionError("nothing follows the end")
