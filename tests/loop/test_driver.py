"""Whole runs with a scripted model: what the loop does with replies, tools, answers and checkers."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from tests.kit import Call, Calls, Report, Say, ScriptedModel, agent, events, outcomes, play
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, OutputParseError, ProviderError, RunStoppedError
from watchkeeper.core.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage
from watchkeeper.prompt.completion import (
    PredicateChecker,
    TaskCompletionContext,
    TaskCompletionResult,
)
from watchkeeper.prompt.evaluation import PromptExecuted, PromptRendered
from watchkeeper.runtime.events import CompletionChecked, ModelReplied, NoticeAppended, RunEnded, RunStarted
from watchkeeper.runtime.result import transcript_of
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.tool import tool
from watchkeeper.tools.values import NothingDoneError, ToolResult


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def add_later(a: int, b: int) -> int:
    """Add two numbers, on the loop."""
    return a + b


@dataclass(frozen=True)
class Note:
    """A note that tools take."""

    text: str


@tool
def note(text: str, fails: bool = False, *, context: ToolContext) -> ToolResult[None]:
    """Take a note, and fail afterwards if asked to."""
    context.session[Note].append(Note(text))
    if context.filesystem is not None:
        context.filesystem.write_text(f"{text}.txt", text)
    return ToolResult.error("no luck") if fails else ToolResult.ok(None, "noted")


@pytest.mark.spec("FR-041")
async def test_a_run_calls_tools_and_returns_a_typed_answer() -> None:
    result = await play(agent(add), [Call("add", {"a": 1, "b": 2}), Say(Report(3))])
    assert result.output == Report(3)
    assert result.ok
    assert result.stop is None
    assert (result.turns, result.usage.tool_calls, result.usage.steps) == (2, 1, 3)
    assert result.sentence().startswith("Done: 2 turns, 1 tool call, 240 tokens, $0.00")


async def test_the_log_tells_the_whole_run_in_order() -> None:
    result = await play(agent(add), [Call("add", {"a": 1, "b": 2}), Say(Report(3))], Limits(deadline=None))
    kinds = [type(envelope.event).__name__ for envelope in result.session.log]
    assert kinds == [
        "RunStarted",
        "PromptRendered",
        "ModelReplied",
        "ToolInvoked",
        "ModelReplied",
        "PromptExecuted",
        "RunEnded",
    ]
    started, ended = events(result, RunStarted)[0], events(result, RunEnded)[0]
    assert (started.prompt_name, started.model) == ("tests/agent", "scripted:scripted")
    assert (ended.run_id, ended.output, ended.usage) == (result.run_id, Report(3), result.usage)
    assert events(result, PromptExecuted)[0].output == Report(3)
    assert [replied.turn for replied in events(result, ModelReplied)] == [1, 2]


@pytest.mark.spec("TO-020")
async def test_a_tool_attempt_carries_the_tokens_of_the_reply_that_asked_for_it() -> None:
    result = await play(agent(add), [Call("add", {"a": 1, "b": 2}), Say(Report(3))])
    assert events(result, ToolInvoked)[0].usage == events(result, ModelReplied)[0].usage


@pytest.mark.spec("FR-027")
async def test_sync_and_async_tools_may_be_mixed_in_one_turn() -> None:
    two = Calls((Call("add", {"a": 1, "b": 2}), Call("add_later", {"a": 3, "b": 4})))
    result = await play(agent(add, add_later), [two, Say(Report(10))])
    assert outcomes(result) == [("add", "ok"), ("add_later", "ok")]


@pytest.mark.spec("FR-107")
async def test_an_unknown_tool_is_answered_with_the_names_of_those_that_exist() -> None:
    model = ScriptedModel([Call("multiply", {}), Say(Report(0))])
    result = await play(agent(add), model)
    assert outcomes(result) == [("multiply", "unknown_tool")]
    assert "There is no tool 'multiply'. Tools: add." in said(model)
    assert result.usage.tool_calls == 0


@pytest.mark.spec("SD-009", "FR-106")
@pytest.mark.parametrize("arguments", ["{not json", '{"a": "one", "b": 2}', '{"a": 1}', '{"a": 1, "b": 2, "c": 3}'])
async def test_arguments_that_do_not_fit_are_sent_back_with_the_reason(arguments: str) -> None:
    result = await play(agent(add), [Call("add", arguments), Say(Report(0))])
    assert outcomes(result) == [("add", "invalid")]
    assert result.ok


async def test_a_tool_that_crashes_is_an_event_and_the_run_goes_on() -> None:
    @tool
    def crash() -> int:
        """Divide by nothing."""
        return 1 // 0

    model = ScriptedModel([Call("crash"), Say(Report(0))])
    result = await play(agent(crash), model)
    assert outcomes(result) == [("crash", "crashed")]
    assert "crash failed: ZeroDivisionError" in said(model)
    assert result.usage.retries == 0


@pytest.mark.spec("FR-021")
async def test_a_tool_with_retries_is_executed_again_and_every_attempt_is_an_event() -> None:
    attempts: list[tuple[int, str]] = []

    @tool(retries=2, idempotent=True)
    def flaky(*, context: ToolContext) -> str:
        """Fail twice."""
        attempts.append((context.attempt, context.idempotency_key))
        if len(attempts) < 3:
            raise OSError("not yet")
        return "there"

    result = await play(agent(flaky), [Call("flaky"), Say(Report(0))])
    assert outcomes(result) == [("flaky", "crashed"), ("flaky", "crashed"), ("flaky", "ok")]
    assert [number for number, _ in attempts] == [1, 2, 3]
    assert len({key for _, key in attempts}) == 1
    assert (result.usage.retries, result.usage.tool_calls) == (2, 3)


async def test_a_failed_result_is_a_result_and_is_not_retried() -> None:
    @tool(retries=5, read_only=True)
    def refuse() -> ToolResult[None]:
        """Fail politely."""
        return ToolResult.error("no")

    result = await play(agent(refuse), [Call("refuse"), Say(Report(0))])
    assert outcomes(result) == [("refuse", "failed")]
    assert result.usage.retries == 0


@pytest.mark.parametrize("how", ["raises", "is too slow"])
async def test_a_tool_that_may_have_had_an_effect_is_not_repeated_and_the_agent_is_told(how: str) -> None:
    clock, charged = TestClock(), list[int]()

    @tool(retries=2, timeout="5s")
    async def charge(amount: int) -> str:
        """Charge a card."""
        charged.append(amount)
        if how == "is too slow":
            await clock.sleep(60)
        raise OSError("connection lost")

    model = ScriptedModel([Call("charge", {"amount": 5}), Say(Report(0))])
    result = await play(agent(charge), model, clock=clock)
    assert charged == [5]
    assert outcomes(result) == [("charge", "crashed" if how == "raises" else "timeout")]
    assert result.usage.retries == 0
    assert said(model).endswith("It may have had an effect all the same.")


async def test_a_tool_that_says_that_it_did_nothing_is_repeated_whatever_it_is_declared() -> None:
    charged = list[int]()

    @tool(retries=3)
    def charge(amount: int, *, context: ToolContext) -> str:
        """Charge a card."""
        if context.attempt < 3:
            raise NothingDoneError("the bank is busy")
        charged.append(amount)
        raise OSError("connection lost")

    model = ScriptedModel([Call("charge", {"amount": 5}), Say(Report(0))])
    result = await play(agent(charge), model)
    assert charged == [5]
    first, _, last = (each.rendered_output for each in events(result, ToolInvoked))
    assert first == "charge failed: NothingDoneError: the bank is busy. It had no effect."
    assert last == "charge failed: OSError: connection lost. It may have had an effect all the same."
    assert result.usage.retries == 2


@pytest.mark.spec("FR-044")
async def test_a_tool_that_fails_leaves_session_and_files_as_they_were() -> None:
    files = MemoryFilesystem()
    script = [Call("note", {"text": "kept"}), Call("note", {"text": "lost", "fails": True}), Say(Report(0))]
    result = await play(agent(note), script, filesystem=files)
    assert outcomes(result) == [("note", "ok"), ("note", "failed")]
    assert [item.text for item in result.session[Note].all()] == ["kept"]
    assert files.list() == ("kept.txt",)


async def test_what_a_tool_changed_is_seen_by_the_next_one() -> None:
    @tool
    def count_notes(*, context: ToolContext) -> int:
        """Count the notes."""
        return len(context.session[Note].all())

    calls = Calls((Call("note", {"text": "a"}), Call("count_notes"), Call("note", {"text": "b"})))
    model = ScriptedModel([calls, Say(Report(0))])
    await play(agent(note, count_notes), model)
    results = [message.text for message in model.requests[-1].transcript if isinstance(message, ToolMessage)]
    assert results == ["noted", "1", "noted"]


@pytest.mark.spec("FR-044")
async def test_a_change_that_cannot_be_kept_turns_a_success_into_a_failure() -> None:
    files = MemoryFilesystem()

    @tool(parallel_safe=True)
    def claim(*, context: ToolContext) -> str:
        """Write the same file as somebody else."""
        assert context.filesystem is not None
        context.filesystem.write_text("same.txt", context.call_id)
        return "mine"

    model = ScriptedModel([Calls((Call("claim"), Call("claim"))), Say(Report(0))])
    result = await play(agent(claim), model, filesystem=files)
    assert outcomes(result) == [("claim", "ok"), ("claim", "crashed")]
    assert files.read_text("same.txt") == "call-1"
    assert "could not be kept" in said(model)


async def test_files_of_any_kind_may_fail_in_any_way() -> None:
    class Remote(MemoryFilesystem):
        def write_bytes(self, path: str, data: bytes) -> None:
            if path == "second.txt":
                raise ConnectionError("the server is gone")
            super().write_bytes(path, data)

    @tool
    def write(*, context: ToolContext) -> str:
        """Write two files."""
        assert context.filesystem is not None
        context.filesystem.write_text("first.txt", "new")
        context.filesystem.write_text("second.txt", "new")
        return "written"

    files = Remote({"first.txt": "old"})
    model = ScriptedModel([Call("write"), Say(Report(0))])
    result = await play(agent(write), model, filesystem=files)
    assert outcomes(result) == [("write", "crashed")]
    assert files.read_text("first.txt") == "old"
    assert "could not be kept: ConnectionError: the server is gone" in said(model)


@pytest.mark.spec("FR-109")
async def test_the_answer_is_repaired_once_if_it_does_not_fit() -> None:
    result = await play(agent(), ["the total is three", Say(Report(3))])
    assert result.output == Report(3)
    assert len(events(result, NoticeAppended)) == 1


@pytest.mark.spec("FR-109")
async def test_an_answer_that_never_fits_is_a_typed_error_with_what_the_model_said() -> None:
    result = await play(agent(), ["three", "still three"])
    assert result.stop is not None
    assert result.stop.reason == "output_invalid"
    assert isinstance(result.error, OutputParseError)
    assert (result.partial, result.text) == ("still three", "still three")
    assert "11 characters of text to hand over" in result.sentence()


@pytest.mark.spec("FR-108")
async def test_nothing_twice_ends_the_run_and_says_so() -> None:
    result = await play(agent(), ["", " "])
    assert result.stop is not None
    assert result.stop.reason == "empty_answer"
    assert result.sentence().startswith("The model answered with nothing, twice in a row; it had nothing to hand over")


async def test_a_refusal_is_a_stop_with_the_models_words() -> None:
    refusal = ModelReply(AssistantMessage(""), TokenUsage(10, 5), "refusal", refusal="I cannot help with that.")
    result = await play(agent(), [refusal])
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("refused", "provider")
    assert "I cannot help with that." in result.stop.message


@pytest.mark.spec("FR-110")
async def test_a_model_that_never_stops_calling_is_ended_by_its_turns_and_lands() -> None:
    model = ScriptedModel([*[Call("add", {"a": 1, "b": 1})] * 4, Say(Report(8))])
    result = await play(agent(add), model, Limits(max_turns=5))
    assert result.stop is not None
    assert (result.stop.reason, result.turns) == ("turn_limit_exceeded", 5)
    assert result.partial == Report(8)
    assert "it had a partial Report to hand over" in result.sentence()
    assert model.requests[-1].tool_choice == "none"
    assert model.requests[-1].tools is model.requests[0].tools


@pytest.mark.spec("FR-043")
async def test_a_run_that_is_stopped_raises_only_if_asked_and_loses_nothing() -> None:
    with pytest.raises(RunStoppedError, match="answered with nothing") as caught:
        await play(agent(), ["", ""], raise_on_stop=True)
    assert caught.value.result.usage.model_calls == 2
    with pytest.raises(RunStoppedError):
        caught.value.result.unwrap()
    done = await play(agent(), [Say(Report(1))])
    assert done.unwrap() == Report(1)


@pytest.mark.spec("FR-047")
async def test_a_long_tool_result_is_cut_for_the_model_and_kept_whole_on_the_log() -> None:
    @tool
    def flood() -> str:
        """Say a lot."""
        return "ä" * 40_000

    model = ScriptedModel([Call("flood"), Say(Report(0))])
    result = await play(agent(flood), model)
    shown = said(model)
    assert len(shown.encode()) < 33_000
    assert "[cut: the first 32,768 of 80,000 bytes are shown]" in shown
    assert transcript_of(result.session.log)[2] == model.requests[-1].transcript[2]


async def test_text_that_is_no_unicode_does_not_end_a_run() -> None:
    @tool
    def odd() -> str:
        """Return half a character."""
        return "half \ud83d"

    result = await play(agent(odd), [Call("odd"), Say(Report(0))])
    assert result.ok


async def test_a_result_that_the_log_cannot_keep_fails_that_call_alone() -> None:
    @tool
    def lock(*, context: ToolContext) -> object:
        """Return something that is no data."""
        context.session[Note].append(Note("lost"))
        return threading.Lock()

    model = ScriptedModel([Call("lock"), Say(Report(0))])
    result = await play(agent(lock), model)
    assert outcomes(result) == [("lock", "crashed")]
    assert "The result cannot be recorded" in said(model)
    assert result.session[Note].latest() is None


async def test_complete_work_is_checked_and_says_so() -> None:
    checker = PredicateChecker(lambda context: context.tentative_output == Report(3), "the total must be 3")
    result = await play(agent(checker=checker), [Say(Report(3))])
    assert (result.completion, result.completion_note) == ("verified", "the total must be 3")
    assert result.sentence().startswith("Done and verified: 1 turn")
    assert events(result, RunEnded)[0].verdict == "verified"


@pytest.mark.spec("NE-020", "FR-045")
async def test_incomplete_work_is_sent_back_until_it_is_complete() -> None:
    checker = PredicateChecker(lambda context: context.tentative_output == Report(3), "the total must be 3")
    model = ScriptedModel([Say(Report(2)), Say(Report(3))])
    result = await play(agent(checker=checker), model)
    assert result.output == Report(3)
    assert [checked.verdict for checked in events(result, CompletionChecked)] == ["rejected", "verified"]
    assert "the total must be 3" in said(model)


async def test_work_that_stays_incomplete_ends_as_stopped_with_its_answer_as_partial_result() -> None:
    checker = PredicateChecker(lambda _: False, "never good enough")
    result = await play(agent(checker=checker), [Say(Report(1))] * 4)
    assert result.stop is not None
    assert (result.stop.reason, result.partial) == ("incomplete", Report(1))
    assert (result.completion, result.completion_note) == (
        "rejected",
        "this does not hold yet: never good enough",
    )
    said = "The work was found incomplete 4 times, last: this does not hold yet: never good enough; it had a partial"
    assert result.sentence().startswith(f"{said} Report to hand over (4 turns, ")
    assert [checked.verdict for checked in events(result, CompletionChecked)] == ["rejected"] * 4
    assert events(result, RunEnded)[0].verdict == "rejected"


@pytest.mark.spec("FR-157")
async def test_the_template_says_how_often_the_agent_is_sent_back() -> None:
    checker = PredicateChecker(lambda _: False, "never good enough")
    for rounds in (0, 1, 5):
        template = replace(agent(checker=checker), completion_rounds=rounds)
        result = await play(template, [Say(Report(1))] * (rounds + 1))
        assert result.stop is not None
        assert (result.stop.reason, result.turns) == ("incomplete", rounds + 1)


async def test_without_a_checker_work_is_unchecked() -> None:
    result = await play(agent(), [Say(Report(1))])
    assert (result.completion, result.completion_note) == ("unchecked", "")
    assert result.sentence().startswith("Done: ")
    assert events(result, CompletionChecked) == []


@pytest.mark.spec("NE-020")
async def test_an_async_checker_is_awaited_and_sees_the_work() -> None:
    seen: list[TaskCompletionContext] = []

    class Checker:
        async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            seen.append(context)
            return TaskCompletionResult.ok("looks fine")

    files = MemoryFilesystem({"a.txt": "a"})
    result = await play(agent(checker=Checker()), [Say(Report(1))], filesystem=files)
    assert (result.completion, result.completion_note) == ("verified", "looks fine")
    assert seen[0].tentative_output == Report(1)
    assert seen[0].stop_reason == "stop"
    assert seen[0].filesystem is not None
    with pytest.raises(Exception, match="read-only"):
        seen[0].filesystem.write_text("a.txt", "b")


@pytest.mark.spec("NE-021")
async def test_a_checker_that_fails_leaves_the_work_unverified_never_verified() -> None:
    class Broken:
        def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            raise ValueError("oops")

    result = await play(agent(checker=Broken()), [Say(Report(1))])
    assert result.output == Report(1)
    assert result.completion == "unverified"
    assert result.completion_note == "the checker failed: ValueError: oops"
    assert result.sentence().startswith("Done, but not verified: the checker failed: ValueError: oops (1 turn, ")
    checked = events(result, CompletionChecked)[0]
    assert (checked.verdict, checked.explanation) == ("unverified", "the checker failed: ValueError: oops")
    assert events(result, RunEnded)[0].verdict == "unverified"


@pytest.mark.spec("FR-054")
async def test_a_run_continues_an_earlier_session_with_its_conversation_and_its_slices() -> None:
    session = Session()
    session[Note].append(Note("from before"))
    await play(agent(add), [Call("add", {"a": 1, "b": 2}), Say(Report(3))], session=session)
    model = ScriptedModel([Say(Report(4))])
    await play(agent(add), model, session=session)
    roles = [message.role for message in model.requests[0].transcript][:-1]  # its own answer came after
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert session[Note].latest() == Note("from before")
    assert len(events_in(session, PromptRendered)) == 2


async def test_a_failing_reducer_is_recorded_and_costs_nothing_else() -> None:
    session = Session()

    def broken(state: object, event: object) -> object:
        raise RuntimeError("reducer bug")

    session[Note].register(ModelReplied, broken)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    result = await play(agent(), [Say(Report(1))], session=session)
    assert result.output == Report(1)
    kinds = [type(envelope.event).__name__ for envelope in session.log]
    assert "ReducerFailed" in kinds


class Raising:
    """A model whose turns return, or raise, what it is given."""

    name = provider = "raising"
    native_output = True
    context_window = max_output_tokens = None
    free = True

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)

    async def turn(self, request: ModelRequest) -> Any:
        made = self.turns.pop(0)
        if isinstance(made, BaseException):
            raise made
        return made

    async def close(self) -> None:
        pass


LOOKS: Final = ModelReply(
    AssistantMessage("Looking.", (ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"))), TokenUsage(10, 5)
)


@tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("bug", [KeyError("a bug"), asyncio.CancelledError(), None], ids=["error", "cancelled", "none"])
async def test_a_bug_in_an_adapter_ends_the_work_and_loses_nothing(bug: Any) -> None:
    result = await play(agent(look), Raising(LOOKS, bug))
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source, result.turns) == ("error", "provider", 1)
    assert result.partial == "Looking."
    assert outcomes(result) == [("look", "ok"), ("look", "ok")]
    assert result.error is not None
    assert result.usage.model_calls == 2


async def test_what_is_wrong_with_the_configuration_is_raised_in_the_first_turn() -> None:
    session = Session()
    with pytest.raises(ConfigurationError, match="no such option"):
        await play(agent(), Raising(ConfigurationError("no such option")), session=session)
    ended = session[RunEnded].latest()
    assert ended is not None
    assert ended.stop is not None
    assert ended.stop.message == "The run was broken off: ConfigurationError: no such option"


async def test_calls_of_a_server_that_counts_anew_in_every_reply_are_kept_apart() -> None:
    keys: list[str] = []

    @tool
    async def act(*, context: ToolContext) -> str:
        """Act."""
        keys.append(context.idempotency_key.split(":")[1])
        return f"act {len(keys)}"

    def reply(*ids: str) -> ModelReply:
        return ModelReply(AssistantMessage("", tuple(ToolCall(id_, "act", "{}") for id_ in ids)), TokenUsage(10, 5))

    done = ModelReply(AssistantMessage('{"total": 1}'), TokenUsage(10, 5))
    result = await play(agent(act), Raising(reply("0", "0", ""), reply("0", ""), done))
    assert result.output == Report(1)
    assert keys == ["0", "0-2", "call", "0-3", "call-2"]
    said = [message.text for message in transcript_of(result.session.log) if isinstance(message, ToolMessage)]
    assert said == [f"act {number}" for number in range(1, 6)]


async def test_a_tool_that_raises_a_cancellation_of_its_own_crashes_alone() -> None:
    @tool
    async def stray() -> str:
        """Cancel nobody knows what."""
        raise asyncio.CancelledError

    result = await play(agent(stray), [Call("stray"), Say(Report(1))])
    assert result.output == Report(1)
    assert outcomes(result) == [("stray", "crashed")]


async def test_a_run_that_is_cancelled_has_its_end_on_the_log_and_can_be_continued() -> None:
    session, began = Session(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    running = asyncio.create_task(play(agent(look, wait), [Calls((Call("look"), Call("wait")))], session=session))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ended = session[RunEnded].latest()
    assert ended is not None
    assert ended.stop is not None
    assert ended.stop.reason == "aborted"
    model = ScriptedModel([Say(Report(2))])
    result = await play(agent(look, wait), model, session=session)
    assert result.output == Report(2)
    calls = [call.call_id for message in model.requests[0].transcript for call in getattr(message, "tool_calls", ())]
    answers = [message for message in model.requests[0].transcript if isinstance(message, ToolMessage)]
    assert [answer.call_id for answer in answers] == calls
    assert [(answer.text.split(":")[0], answer.is_error) for answer in answers] == [
        ("seen", False),
        ("no result", True),
    ]


@pytest.mark.parametrize("verdict", [None, True, asyncio.CancelledError()], ids=["none", "bool", "cancelled"])
async def test_a_checker_that_gives_no_verdict_leaves_the_work_unverified(verdict: Any) -> None:
    class Odd:
        async def check(self, context: TaskCompletionContext) -> Any:
            if isinstance(verdict, BaseException):
                raise verdict
            return verdict

    result = await play(agent(checker=Odd()), [Say(Report(1))])
    assert (result.output, result.completion) == (Report(1), "unverified")


@pytest.mark.spec("FR-041")
async def test_the_transcript_of_the_log_is_the_transcript_that_the_model_saw() -> None:
    checker = PredicateChecker(lambda context: context.tentative_output == Report(3), "the total must be 3")
    calls = Calls((Call("add", {"a": 1, "b": 2}), Call("nope"), Call("note", {"text": "x", "fails": True})))
    model = ScriptedModel([calls, "", Say(Report(2)), "broken", Say(Report(3))])
    result = await play(agent(add, note, checker=checker), model)
    assert result.ok
    assert list(transcript_of(result.session.log))[:-1] == list(model.requests[-1].transcript)[:-1]
    assert list(transcript_of(result.session.log)) == list(model.requests[-1].transcript)


async def test_a_model_that_cannot_be_held_to_a_schema_gets_it_in_the_prompt() -> None:
    model = ScriptedModel([Say(Report(1))], native_output=False)
    result = await play(agent(), model)
    assert result.output == Report(1)
    first = model.requests[0]
    assert first.output is None
    opening = first.transcript[0]
    assert isinstance(opening, UserMessage)
    assert "total" in opening.text


async def test_a_provider_error_that_cannot_pass_ends_the_run_at_once() -> None:
    result = await play(agent(), [ProviderError("wrong key", fault="auth", provider="openai", status=401)])
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("provider_error", "provider")
    assert "wrong key" in result.sentence()
    assert result.usage.model_calls == 1


def said(model: ScriptedModel) -> str:
    """Return all that the model was told by tools and the runtime."""
    told = [message for message in model.requests[-1].transcript if isinstance(message, ToolMessage | UserMessage)]
    return "\n".join(message.text for message in told)


def events_in(session: Session, type_: type) -> list[object]:
    return [envelope.event for envelope in session.log if isinstance(envelope.event, type_)]


@pytest.mark.parametrize("finish", ["refusal", "unknown"])
async def test_endless_words_of_a_provider_do_not_make_an_endless_stop(finish: Any) -> None:
    words = "x" * 1_000_000
    reply = ModelReply(AssistantMessage("Hm."), TokenUsage(1, 1), finish, "m", refusal=words, ended_by=words)
    result = await play(agent(), [reply, reply])
    assert result.stop is not None
    assert len(result.stop.message) < 2_200
