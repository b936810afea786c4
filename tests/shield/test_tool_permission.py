"""The most cautious pattern counts; a question is answered yes or the answer is no, and no call is held too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.containment.gates import until_other_thread
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.attention import ATTENTION
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.terminal import Terminal
from watchkeeper.shield.tool_permission import ToolPermissionHook, question

HALT = Decision.HALT


def call(name: str | None = "send_mail", **fields: Any) -> ToolCallContext:
    return ToolCallContext("request", tool_name=name, kind="tool", **fields)


def always_says(answer: object) -> Callable[[ToolCallContext], object]:
    return lambda ctx: answer


class Person:
    """Is asked on another thread, and answers when the test says so, each question by itself."""

    def __init__(self) -> None:
        self.asked: list[ToolCallContext] = []
        self.answers: dict[int, object] = {}
        self.said: dict[int, threading.Event] = {}

    def __call__(self, ctx: ToolCallContext) -> object:
        said = self.said[id(ctx)] = threading.Event()
        self.asked.append(ctx)
        said.wait()
        return self.answers[id(ctx)]

    def answer(self, ctx: ToolCallContext, said: object) -> None:
        self.answers[id(ctx)] = said
        self.said[id(ctx)].set()


class Asker:
    """Asks a hook on a thread of its own."""

    def __init__(self, hook: ToolPermissionHook, ctx: ToolCallContext) -> None:
        self.ctx = ctx
        self.said: list[Decision | None] = []
        self.thread = threading.Thread(target=lambda: self.said.append(hook.before_tool_call(ctx)), daemon=True)
        self.thread.start()

    def decision(self) -> Decision | None:
        self.thread.join(10)
        return self.said[0]


def test_all_tools_are_allowed_but_those_that_are_denied() -> None:
    hook = ToolPermissionHook(deny=["send_*", "rm"])
    ctx = call()
    assert hook.before_tool_call(call("read_file")) is None
    assert hook.before_tool_call(call("rm")) is HALT
    assert hook.before_tool_call(ctx) is HALT
    assert hook.explain(ctx) == "The tool 'send_mail' is denied (deny='send_*')."
    assert hook.blocks_for is None


def test_what_no_pattern_allows_is_denied() -> None:
    hook = ToolPermissionHook(allow=["read_*", "list"])
    ctx = call()
    assert hook.before_tool_call(call("read_file")) is None
    assert hook.before_tool_call(call("list")) is None
    assert hook.before_tool_call(call("lists")) is HALT
    assert hook.before_tool_call(call("READ_file")) is HALT
    assert hook.before_tool_call(call(None)) is HALT
    assert hook.before_tool_call(ctx) is HALT
    assert hook.explain(ctx) == "The tool 'send_mail' is not among those that are allowed."
    assert hook.explain(ctx) == "The tool may be used."


@pytest.mark.spec("EC-040")
def test_denying_wins_over_asking_and_asking_over_allowing() -> None:
    hook = ToolPermissionHook(["send_mail"], ["send_all"], ["send_*"], ask_with=always_says(True))
    assert hook.before_tool_call(call("send_all")) is HALT
    assert hook.before_tool_call(call("send_mail")) is None
    refusing = ToolPermissionHook(["send_mail"], ask=["send_*"], ask_with=always_says(False))
    assert refusing.before_tool_call(call("send_mail")) is HALT


@pytest.mark.parametrize("answer", [True, "y", "yes", " YES \n", "a", "always"])
def test_a_yes_lets_the_call_run(answer: object) -> None:
    assert ToolPermissionHook(ask=["*"], ask_with=always_says(answer)).before_tool_call(call()) is None


@pytest.mark.parametrize("answer", [False, None, "", "n", "no", "yesterday", "yes please", 1, [True], object()])
def test_whatever_else_is_said_is_no(answer: object) -> None:
    hook = ToolPermissionHook(ask=["*"], ask_with=always_says(answer))
    ctx = call()
    assert hook.before_tool_call(ctx) is HALT
    expected = "Nobody is there to allow" if answer is None else "was not allowed when somebody was asked"
    assert expected in hook.explain(ctx) or expected in f"The tool {hook.explain(ctx)}"


def test_always_holds_for_every_later_call_of_that_tool_alone() -> None:
    answers = iter(["always", "yes", "no"])
    hook = ToolPermissionHook(ask=["send_*"], ask_with=lambda ctx: next(answers))
    said = [hook.before_tool_call(call(name)) for name in ("send_mail", "send_mail", "send_fax", "send_fax")]
    assert said == [None, None, None, HALT]


def test_whoever_is_asked_sees_the_call() -> None:
    seen: list[ToolCallContext] = []

    def look(ctx: ToolCallContext) -> bool:
        seen.append(ctx)
        return True

    hook = ToolPermissionHook(ask=["*"], ask_with=look)
    ctx = call(arguments='{"to": "all"}')
    assert hook.before_tool_call(ctx) is None
    assert seen == [ctx]


def test_a_failure_of_whoever_is_asked_is_raised_and_the_next_is_asked() -> None:
    def fail(ctx: ToolCallContext) -> bool:
        raise OSError("no connection")

    hook = ToolPermissionHook(ask=["*"], ask_with=fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no connection"):
            hook.before_tool_call(call())


@pytest.mark.spec("EC-040")
def test_no_answer_in_time_is_a_no_and_a_late_yes_changes_nothing() -> None:
    clock, person = TestClock(), Person()
    hook = ToolPermissionHook(ask=["*"], ask_with=person, timeout="30s", clock=clock)
    assert hook.blocks_for == 30
    asker = Asker(hook, call())
    until_other_thread(lambda: bool(person.asked))
    let_pass(clock, 30, asker)
    assert asker.decision() is HALT
    assert hook.explain(asker.ctx) == "Nobody allowed the tool 'send_mail' within 30s."
    person.answer(asker.ctx, "always")
    second = Asker(hook, call())
    until_other_thread(lambda: len(person.asked) == 2)
    person.answer(second.ctx, "no")
    assert second.decision() is HALT


def let_pass(clock: TestClock, seconds: float, asker: Asker) -> None:
    """Let time pass until the asker has noticed: he may not have begun to wait when it passes first."""

    def noticed() -> bool:
        clock.advance(seconds)
        return bool(asker.said)

    until_other_thread(noticed)


def test_questions_are_put_one_after_the_other_in_the_order_of_their_calls() -> None:
    person = Person()
    hook = ToolPermissionHook(ask=["*"], ask_with=person)
    askers: list[Asker] = []
    for number in range(3):
        askers.append(Asker(hook, call(f"tool_{number}")))
        until_other_thread(lambda: hook.pending == len(askers))
    for number, asker in enumerate(askers):
        until_other_thread(lambda: len(person.asked) == number + 1)  # noqa: B023  # called at once
        assert person.asked[-1] is asker.ctx
        person.answer(asker.ctx, number != 1)
    assert [asker.decision() for asker in askers] == [None, HALT, None]


def test_always_also_answers_for_those_that_wait_in_the_queue() -> None:
    person = Person()
    hook = ToolPermissionHook(ask=["*"], ask_with=person)
    first = Asker(hook, call())
    until_other_thread(lambda: len(person.asked) == 1)
    second = Asker(hook, call())
    until_other_thread(lambda: hook.pending == 2)
    person.answer(first.ctx, "always")
    assert [first.decision(), second.decision()] == [None, None]
    assert len(person.asked) == 1


def test_time_in_the_queue_counts() -> None:
    clock, person = TestClock(), Person()
    hook = ToolPermissionHook(ask=["*"], ask_with=person, timeout=10, clock=clock)
    first = Asker(hook, call())
    until_other_thread(lambda: len(person.asked) == 1)
    second = Asker(hook, call())
    until_other_thread(lambda: hook.pending == 2)
    let_pass(clock, 10, second)
    let_pass(clock, 10, first)
    assert [first.decision(), second.decision()] == [HALT, HALT]
    assert len(person.asked) == 1
    assert hook.explain(second.ctx) == "Nobody could be asked about the tool 'send_mail' in time."
    person.answer(first.ctx, True)


def test_a_call_that_does_not_run_any_more_is_not_asked_about_any_longer() -> None:
    person = Person()
    hook = ToolPermissionHook(ask=["*"], ask_with=person, timeout="1h")
    first = Asker(hook, call())
    until_other_thread(lambda: len(person.asked) == 1)
    second = Asker(hook, call())
    until_other_thread(lambda: hook.pending == 2)
    hook.release(second.ctx)
    assert second.decision() is HALT
    hook.release(first.ctx)
    assert first.decision() is HALT
    hook.release(first.ctx)
    assert len(person.asked) == 1
    person.answer(first.ctx, True)


def test_parallel_questions_are_never_open_together() -> None:
    open_now: list[int] = []
    most: list[int] = []

    def ask(ctx: ToolCallContext) -> bool:
        open_now.append(1)
        most.append(len(open_now))
        open_now.pop()
        return True

    hook = ToolPermissionHook(ask=["*"], ask_with=ask)
    askers = [Asker(hook, call(f"tool_{number}")) for number in range(32)]
    assert [asker.decision() for asker in askers] == [None] * 32
    assert set(most) == {1}


def test_the_question_shows_the_arguments_and_no_more_than_some() -> None:
    assert question(call(), 60) == ("\nMay send_mail run? No answer within 1m is a no. [y]es, [a]lways, [N]o: ")
    shown = question(call(arguments='{"to": "' + "x" * 5_000), 60)
    assert shown.startswith('\nMay send_mail run with these arguments?\n  {"to": "xxx')
    assert len(shown) < 2_200
    assert "3,008 more characters" in shown
    assert question(call("a\nb"), 60).startswith("\nMay a\\nb run")


def test_whoever_waits_for_an_answer_can_be_interrupted_and_the_question_ends_with_him() -> None:
    class Interrupting(TestClock):
        def wait(self, event: threading.Event, seconds: float | None) -> None:
            raise KeyboardInterrupt

    over = threading.Event()
    tokens: list[CancellationToken] = []

    class Watched(Terminal):
        def ask(self, question: str, withdrawn: CancellationToken) -> str | None:
            tokens.append(withdrawn)
            withdrawn.on_cancel(lambda _: over.set())
            over.wait()
            return "yes"

    hook = ToolPermissionHook(ask=["*"], ask_with=Watched(), clock=Interrupting())
    with pytest.raises(KeyboardInterrupt):
        hook.before_tool_call(call())
    until_other_thread(lambda: bool(tokens) and over.is_set())


async def answer_later(ctx: ToolCallContext) -> bool:
    return True


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("allow", "deny", "ask") for value in ("send_*", 5, None)),
        *((field, [value]) for field in ("allow", "deny", "ask") for value in ("", 5, None)),
        *(("timeout", value) for value in (0, -1, float("nan"), float("inf"), "soon", None)),
        ("ask_with", 5),
        ("ask_with", answer_later),
    ],
)
def test_what_makes_no_sense_is_refused_with_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}") as caught:
        ToolPermissionHook(**{field: value})
    assert repr(value).strip("[]") in str(caught.value)


@pytest.mark.parametrize("answer", ["yes", "no", None])
def test_whoever_draws_on_the_terminal_is_told_before_a_question_and_after_it(answer: object) -> None:
    told: list[object] = []

    def ask(_: ToolCallContext) -> object:
        told.append("asked")
        return answer

    end = ATTENTION.tell(told.append)
    try:
        ToolPermissionHook(ask=["send_*"], ask_with=ask).before_tool_call(call())
        assert told == [True, "asked", False]
    finally:
        end()
    ToolPermissionHook(ask=["send_*"], ask_with=ask).before_tool_call(call())
    assert told == [True, "asked", False, "asked"]
