"""For everything that tools, models and checkers raise, the run ends with a result; cancellations are told apart."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.kit import JUDGE, Call, Panic, ScriptedModel, Slow, events, play
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import arun
from watchkeeper.children.child import Children, ChildTask, children_of
from watchkeeper.core import secrets
from watchkeeper.core.codec import encode
from watchkeeper.core.errors import ToolValidationError
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.text import MOST_FRAMES, MOST_TRACEBACK_CHARS
from watchkeeper.core.workers import BreakOut
from watchkeeper.prompt.completion import TaskCompletionContext, TaskCompletionResult
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.tagging import dump, load
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.tool import Tool, tool
from watchkeeper.tools.values import ToolResult

CRASHES = [Panic("rust"), GeneratorExit("rust"), BaseExceptionGroup("rust", [Panic()])]
PASSING = [KeyboardInterrupt(), SystemExit(3), BreakOut("block")]


def name_of(error: BaseException) -> str:
    """Name a case."""
    return type(error).__name__


def template(*tools: Tool, checker: Any = None) -> PromptTemplate[str]:
    """Return an agent with these tools."""
    section = MarkdownSection("Task", "task", "Look.", tools=tools)
    return PromptTemplate[str](ns="tests", key="crash", sections=[section], task_completion_checker=checker)


def raising(error: BaseException, how: str) -> Tool:
    """Return a tool that raises this."""

    @tool(name="look")
    def on_thread() -> str:
        """Look."""
        raise error

    @tool(name="look")
    async def on_loop() -> str:
        """Look."""
        await asyncio.sleep(0)
        raise error

    return on_thread if how == "sync" else on_loop


@pytest.mark.spec("FR-151")
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("error", CRASHES, ids=name_of)
async def test_whatever_a_tool_raises_is_its_failure_and_the_run_goes_on(error: BaseException, how: str) -> None:
    result = await play(template(raising(error, how)), [Call("look"), "done"])
    assert result.text == "done"
    (invoked,) = events(result, ToolInvoked)
    assert invoked.outcome == "crashed"
    said = f"{type(error).__name__}: {error}"
    assert invoked.rendered_output == f"look failed: {said}. It may have had an effect all the same."


async def where_it_crashed(tool: Tool) -> str:
    """Return the traceback that is on the log of a run whose tool crashes; the model is not shown it."""
    result = await play(template(tool), [Call("look"), "done"])
    (invoked,) = events(result, ToolInvoked)
    assert invoked.outcome == "crashed"
    assert "Traceback" not in invoked.rendered_output
    return invoked.traceback


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("error", [KeyError("name"), Panic("rust")], ids=name_of)
async def test_the_traceback_of_a_crash_is_on_the_log_from_the_users_code_on(error: BaseException, how: str) -> None:
    head, place, line, *_, last = (await where_it_crashed(raising(error, how))).splitlines()
    assert head == "Traceback (most recent call last):"
    assert f'File "{__file__}", line ' in place
    assert line == "    raise error"
    assert last.endswith(f"{type(error).__name__}: {error}")


async def test_a_traceback_has_a_bound_and_no_credential() -> None:
    secrets.hold("pw-of-the-traceback-24680", passing=True)

    @tool
    def look() -> str:
        """Look."""
        raise ValueError("x" * 100_000 + " pw-of-the-traceback-24680")

    said = await where_it_crashed(look)
    assert len(said) < MOST_TRACEBACK_CHARS + 100
    assert said.startswith("[cut: 9")
    assert said.endswith("xx [redacted]")


async def test_only_the_last_frames_of_a_deep_traceback_are_kept() -> None:
    @tool
    def look() -> str:
        """Look."""

        def even(number: int) -> str:
            return odd(number - 1)

        def odd(number: int) -> str:
            return even(number - 1) if number > 1 else str(1 // 0)

        return even(400)

    said = await where_it_crashed(look)
    assert said.count("File ") == MOST_FRAMES
    assert said.endswith("ZeroDivisionError: integer division or modulo by zero")


async def test_what_did_not_crash_has_no_traceback() -> None:
    result = await play(template(raising(ToolValidationError("not so"), "sync")), [Call("look"), "done"])
    (invoked,) = events(result, ToolInvoked)
    assert (invoked.outcome, invoked.traceback) == ("invalid", "")


class Mute(Exception):
    """An error whose message cannot be read."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no message")


class MuteRefusal(ToolValidationError):
    """A refusal whose message cannot be read."""

    __str__ = Mute.__str__


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("error", [Mute(), MuteRefusal()], ids=name_of)
async def test_an_error_without_a_readable_message_is_the_tools_failure(error: Exception, how: str) -> None:
    result = await play(template(raising(error, how)), [Call("look"), "done"])
    assert result.output == "done"
    (invoked,) = events(result, ToolInvoked)
    assert "whose message cannot be read: RuntimeError" in invoked.rendered_output
    assert (invoked.outcome == "crashed") == ("raise error" in invoked.traceback)


@dataclass
class Part:
    """A value; its field can be deleted."""

    size: int


def without_its_field() -> Part:
    """Return a part from which the field was deleted."""
    part = Part(1)
    del part.size
    return part


@pytest.mark.parametrize(
    "returned", [without_its_field(), ToolResult.ok(message=cast("str", 5))], ids=["field", "message"]
)
async def test_a_result_that_cannot_be_read_is_the_tools_failure(returned: Any) -> None:
    @tool
    def look() -> Any:
        """Look."""
        return returned

    result = await play(template(look), [Call("look"), "done"])
    assert result.output == "done"
    assert events(result, ToolInvoked)[0].outcome == "crashed"
    assert "cannot be recorded" in events(result, ToolInvoked)[0].rendered_output


def doubled(times: int) -> list[Any]:
    """Return a list of lists that takes little memory, and 2 to this power values if it is written."""
    value: list[Any] = []
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "returned",
    [doubled(60), {"a": doubled(60)}, ["x" * 10**6] * 1000, [10**600] * 500_000, [None] * 500_001],
    ids=["shared", "in a dict", "text", "numbers", "flat"],
)
async def test_a_result_of_too_many_values_is_the_tools_failure(returned: Any) -> None:
    @tool
    def look() -> Any:
        """Look."""
        return returned

    result = await play(template(look), [Call("look"), "done"])
    assert result.output == "done"
    (invoked,) = events(result, ToolInvoked)
    assert invoked.outcome == "crashed"
    assert "holds more than 500,000 values" in invoked.rendered_output
    assert "keep large data in files" in invoked.rendered_output


async def test_a_result_of_as_many_values_as_allowed_is_kept() -> None:
    @tool
    def look(rows: list[int]) -> list[int]:
        """Look."""
        return rows

    rows = [7] * 490_000
    result = await play(template(look), [Call("look", {"rows": rows}), "done"])
    (invoked,) = events(result, ToolInvoked)
    assert (invoked.outcome, invoked.result.value) == ("ok", rows)


async def test_arguments_of_too_many_values_are_refused() -> None:
    begun: list[int] = []

    @tool
    def look(rows: list[list[int]]) -> str:
        """Look."""
        begun.append(len(rows))
        return "seen"

    result = await play(template(look), [Call("look", {"rows": [[]] * 600_000}), "done"])
    assert (result.output, begun) == ("done", [])
    (invoked,) = events(result, ToolInvoked)
    assert invoked.outcome == "invalid"
    assert "holds more than 500,000 values" in invoked.rendered_output


@pytest.mark.parametrize("levels", [100, 150, 151, 400, *range(960, 980)])
async def test_deep_arguments_are_refused_or_kept_whole(levels: int, tmp_path: Path) -> None:
    @tool
    def look(box: dict[str, Any]) -> Any:
        """Look."""
        return box

    with RunStore(tmp_path / "runs.sqlite3") as store:
        call = Call("look", '{"box":' + '{"in":' * levels + "1" + "}" * levels + "}")
        result = await play(template(look), [call, "done"], store=store)
        assert result.output == "done"
        assert not [event for event in store.events(str(result.run_id)) if "$unwritable" in str(event.body)]
    (invoked,) = events(result, ToolInvoked)
    assert invoked.outcome == ("ok" if levels <= 150 else "invalid")


@pytest.mark.parametrize("levels", [150, 400, 970])
async def test_a_deep_answer_is_refused_or_kept_whole(levels: int, tmp_path: Path) -> None:
    asking = PromptTemplate[dict[str, Any]](ns="tests", key="deep", sections=[MarkdownSection("Task", "task", "Look.")])
    answer = '{"in":' * levels + "1" + "}" * levels
    with RunStore(tmp_path / "runs.sqlite3") as store:
        result = await play(asking, [answer, answer, '{"in":1}'], store=store)
        assert "$unwritable" not in "".join(str(event.body) for event in store.events(str(result.run_id)))
    assert result.ok == (levels == 150)


class Asked(Exception):
    """Counts how often its message was asked for."""

    times = 0

    def __str__(self) -> str:
        """Count."""
        self.times += 1
        return "slow"


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_the_message_of_an_error_is_asked_for_once(how: str) -> None:
    error = Asked()
    result = await play(template(raising(error, how)), [Call("look"), "done"])
    assert events(result, ToolInvoked)[0].rendered_output.startswith("look failed: Asked: slow. ")
    assert error.times == 1


async def test_a_number_of_any_length_is_a_result() -> None:
    @tool
    def factorial(n: int) -> int:
        """Compute."""
        return math.factorial(n)

    result = await play(template(factorial), [Call("factorial", {"n": 3000}), "done"])
    assert result.output == "done"
    invoked = events(result, ToolInvoked)[0]
    assert invoked.outcome == "ok"
    assert load(msgspec.json.decode(encode(dump(invoked.result)))).value == math.factorial(3000)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_what_passes_everybody_passes_a_tool(how: str) -> None:
    with pytest.raises(BreakOut):
        await play(template(raising(BreakOut("block"), how)), [Call("look"), "done"])


@pytest.mark.spec("FR-151")
@pytest.mark.parametrize("error", CRASHES, ids=name_of)
async def test_whatever_a_model_raises_ends_the_run_with_a_result(error: BaseException) -> None:
    class Model(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            raise error

    result = await play(template(), Model([]))
    assert result.stop is not None
    assert result.stop.reason == "error"
    assert result.stop.message == f"The model failed unexpectedly: {type(error).__name__}: {error}"


async def test_what_passes_everybody_passes_a_model() -> None:
    class Model(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            raise BreakOut("block")

    with pytest.raises(BreakOut):
        await play(template(), Model([]))


@pytest.mark.spec("FR-151")
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("error", CRASHES, ids=name_of)
async def test_whatever_a_checker_raises_leaves_the_work_unverified(error: BaseException, how: str) -> None:
    class OnThread:
        def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            raise error

    class OnLoop:
        async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            raise error

    result = await play(template(checker=OnThread() if how == "sync" else OnLoop()), ["done"])
    assert result.completion == "unverified"
    assert result.completion_note == f"the checker failed: {type(error).__name__}: {error}"


async def test_what_passes_everybody_passes_a_checker() -> None:
    class Checker:
        def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            raise BreakOut("block")

    with pytest.raises(BreakOut):
        await play(template(checker=Checker()), ["done"])


# --- a run's own cancellations, in real time --------------------------------------------------------------------------


def below(context: ToolContext) -> Children:
    """Return what starts child runs."""
    children = children_of(context.session)
    assert children is not None
    return children


def asking(after_ms: int) -> Tool:
    """Return a tool that times out at 60 ms, with a child run inside that does so a little later."""

    @tool(timeout=timedelta(milliseconds=60))
    async def ask(*, context: ToolContext) -> str:
        """Ask a judge."""
        limits = Limits(deadline=timedelta(milliseconds=60 + after_ms), landing=None)
        child = await below(context).start(ChildTask(Prompt(JUDGE), "evaluation", limits))
        return child.result.sentence()

    return ask


async def one_run(after_ms: int) -> RunResult[Any]:
    """Run an agent whose tool is stopped while its child is."""
    return await arun(template(asking(after_ms)), model=Slow([Call("ask"), "done"]), store=None)


@pytest.mark.spec("FR-150")
async def test_a_tool_and_its_child_that_time_out_together_end_no_run() -> None:
    ends = await asyncio.gather(*(one_run(number % 8) for number in range(50)), return_exceptions=True)
    said = Counter(each.text if isinstance(each, RunResult) else repr(each) for each in ends)
    assert said == {"done": 50}


async def test_an_abort_from_a_thread_ends_runs_with_children_as_aborted() -> None:
    async def once() -> str:
        begun: list[Any] = []
        ready = asyncio.Event()

        @tool
        async def ask(*, context: ToolContext) -> str:
            """Ask a judge."""
            children = below(context)
            begun.append(children.family.scope.gate)
            ready.set()
            return (await children.start(ChildTask(Prompt(JUDGE), "evaluation", Limits()))).result.sentence()

        task = asyncio.ensure_future(arun(template(ask), model=Slow([Call("ask"), "done"]), store=None))
        await ready.wait()
        await asyncio.sleep(0.005)
        threading.Thread(target=begun[0].abort, args=("enough",)).start()
        result = await task
        return result.stop.reason if result.stop else result.text

    ends = await asyncio.gather(*(once() for _ in range(50)), return_exceptions=True)
    assert Counter(map(str, ends)) == {"aborted": 50}


@pytest.mark.parametrize("value", [10**5000, {10**5000}, {"a": [10**5000]}], ids=["int", "set", "nested"])
async def test_a_number_with_too_many_digits_to_be_written_ends_no_run(value: object) -> None:
    """Python writes no whole number of more than 4,300 digits."""

    @tool
    def factorial() -> object:
        """Return a large number."""
        return value

    result = await play(template(factorial), ScriptedModel([Call("factorial"), "Done."]))
    assert (result.output, result.stop) == ("Done.", None)
    assert [invoked.outcome for invoked in events(result, ToolInvoked)] == ["ok"]
