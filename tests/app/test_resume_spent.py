"""What a resumed run has spent: at every line of its files at least what was billed, and not more than it may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from tests.app.written import Written
from tests.kit import down, events
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.run import run
from watchkeeper.blocks.contained import contained
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import StoreError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import ModelPrice, TokenUsage, Usage
from watchkeeper.loop.reopen import Reader
from watchkeeper.loop.run import Adapter
from watchkeeper.loop.used import spent_of
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import CallEnded, ModelFailed, ModelSwitched
from watchkeeper.runtime.result import RunResult
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.store.run_file import RunFile
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.tool import tool

PRICE = ModelPrice.per_million(10, 30, 1)
ROOMY = Limits(deadline=None, max_turns=60, max_cost_usd=500, max_retries=50)
ASIDE = PromptTemplate[str](ns="t", key="aside", sections=(MarkdownSection(title="Task", key="t", template="Look."),))
CENT = 10_000_000


@dataclass
class Billing(Written):
    """Lines, and beside each what providers had billed when the line after it began to be written."""

    billed: int = 0
    billed_at: list[int] = field(default_factory=list[int])

    @contextmanager
    def noted(self) -> Generator[None]:
        """Note what is written inside the block."""
        write = RunFile.write

        def noting(file: RunFile, data: bytes, *, last: bool = False) -> None:
            before = self.billed
            write(file, data, last=last)
            lines = data.splitlines(keepends=True)
            self.lines.extend((file.path.name, line) for line in lines)
            self.billed_at.extend(before for _ in lines)

        with patch.object(RunFile, "write", noting):
            yield

    def at(self, count: int) -> int:
        """Return the most that can have been billed when a process dies after these many lines."""
        return self.billed_at[count] if count < len(self.billed_at) else self.billed


@dataclass
class World:
    """A provider that bills, fails and answers, and tools that spend by themselves."""

    billing: Billing = field(default_factory=Billing)
    failures: dict[str, int] = field(default_factory=dict[str, int])

    def bill(self, usd: float) -> None:
        """Bill dollars."""
        self.billing.billed += round(usd * 1_000_000_000)

    def agent(self) -> Agent[str]:
        """Return an agent whose tools spend in every way in which one can."""

        @tool(parallel_safe=True)
        def context(number: int) -> str:
            """Call in a context of its own, with a hint that is too low once."""

            def work(ticket: Ticket) -> None:
                for usd in (0.02, 0.05):
                    ticket.charge(usd)
                    self.bill(usd)

            with ExecutionContext(UNLIMITED) as own:
                own.call_llm(work, WrapOptions("odd", cost_estimate_hint=0.01))
                own.call_tool(lambda: self.bill(0.03), WrapOptions(cost_estimate_hint=0.03))
                own.wrap_tool_call(lambda: None)
                own.call_llm(self.fail, WrapOptions(cost_estimate_hint=0.04))
            return f"context {number}"

        @tool(idempotent=True)
        async def nested(number: int) -> str:
            """Ask a model beside the run, and in a run without a store."""
            model = ScriptedModel(lambda _: Say("yes", usage=self.used(20)), name="aside", free=False)
            await Adapter(model, price=PRICE).evaluate_async(Prompt(ASIDE))
            unstored = ScriptedModel(lambda _: Say("no", usage=self.used(30)), name="unstored", free=False)
            await asyncio.to_thread(
                run, ASIDE, model=unstored, store=None, prices={"unstored": PRICE}, limits=Limits(max_turns=2)
            )
            return f"nested {number}"

        @tool
        def block(number: int) -> str:
            """Open a block."""
            with contained(max_cost_usd=2) as box:
                box.call_llm(lambda: self.bill(0.07), WrapOptions(cost_estimate_hint=0.07))
                with ExecutionContext(UNLIMITED) as own:
                    own.call_tool(lambda: self.bill(0.02), WrapOptions(cost_estimate_hint=0.02))
            return f"block {number}"

        return Agent(
            ScriptedModel(self.first, name="first", provider="a", free=False),
            "Work.",
            str,
            tools=[context, nested, block],
            limits=ROOMY,
        )

    def options(self) -> dict[str, Any]:
        """Return what its runs need beside."""
        second = ScriptedModel(self.answer, name="second", provider="b", free=False)
        return {"fallback": [second], "prices": {"first": PRICE, "second": PRICE}, "clock": TestClock()}

    def fail(self) -> None:
        """Bill, and fail."""
        self.bill(0.04)
        raise ValueError("it broke")

    def used(self, tokens: int) -> TokenUsage:
        """Bill for a reply and return its usage."""
        usage = TokenUsage(100 * tokens, tokens, cached_tokens=40 * tokens)
        self.billing.billed += PRICE.cost(usage)
        return usage

    def first(self, request: ModelRequest) -> Any:
        """Fail twice at the second step, once billed; at the fourth this model is down for good."""
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        failed = self.failures[str(done)] = self.failures.get(str(done), 0) + 1
        if done == 2 and failed < 3:
            return down("server", billed=failed == 2)
        return down("auth") if done >= 4 else self.answer(request)

    def answer(self, request: ModelRequest) -> Any:
        """Return the next step: it follows from the conversation alone."""
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        usage = self.used(10 + done)
        if done == 0:
            return Calls((Call("context", {"number": 0}), Call("context", {"number": 1})), usage=usage)
        names = {2: "nested", 3: "block", 4: "context"}
        return Calls((Call(names[done], {"number": done}),), usage=usage) if done in names else Say("fin", usage=usage)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Billing, RunResult[str]]:
    """Return the lines of a run that nobody disturbed, and how it ended."""
    world = World()
    with world.billing.noted():
        result = world.agent().run("go", store=tmp_path_factory.mktemp("whole") / "store", **world.options())
    assert result.ok, result.sentence()
    assert events(result, ModelSwitched)
    assert {each.presumed.calls for each in events(result, ModelFailed)} == {0, 1}
    assert result.usage.retries > 2
    assert events(result, CallEnded)
    return world.billing, result


def on_record(lines: Written, count: int, store: Path, run_id: object) -> Usage:
    """Return what a run has used by its first lines."""
    with RunStore(lines.cut(count, store), read_only=True) as reader:
        return Reader(reader).used_by(UUID(str(run_id)))


def cost_of_failure(line: bytes) -> int:
    """Return what was presumed for a failed call; here the provider did not bill it."""
    return int(json.loads(line)["body"]["presumed"]["cost_nanos"])


def test_the_record_of_a_whole_run_has_what_its_gate_has_counted(
    whole: tuple[Billing, RunResult[str]], tmp_path: Path
) -> None:
    lines, result = whole
    ended = max(place for place, (_, line) in enumerate(lines.lines) if b'"tag":"run_ended"' in line)
    assert on_record(lines, ended, tmp_path / "store", result.run_id) == result.usage
    assert (result.usage.cost_nanos or 0) >= lines.billed


def test_at_every_line_it_has_at_least_what_was_billed_and_at_most_the_worst_case_more(
    whole: tuple[Billing, RunResult[str]], tmp_path: Path
) -> None:
    lines, result = whole
    for count in range(lines.place("run_opened") + 1, len(lines.lines)):
        used = on_record(lines, count, tmp_path / "cut", result.run_id)
        assert used.cost_nanos is not None
        failed = sum(cost_of_failure(line) for line in lines.with_tag("model_failed", count))
        assert used.cost_nanos - failed >= lines.at(count), (count, lines.lines[count])
        settled = used.cost_nanos - (used.presumed.cost_nanos or 0)
        assert settled <= lines.at(count), (count, lines.lines[count])


def test_it_goes_on_from_every_line_with_what_was_spent(whole: tuple[Billing, RunResult[str]], tmp_path: Path) -> None:
    lines, undisturbed = whole
    for count in range(lines.place("run_opened") + 1, len(lines.lines)):
        before = lines.at(count)
        world = World()
        result = world.agent().resume(
            str(undisturbed.run_id), store=lines.cut(count, tmp_path / "cut"), **world.options()
        )
        assert result.ok, (count, result.sentence())
        assert (result.usage.cost_nanos or 0) >= before + world.billing.billed, count


def test_a_call_of_a_tool_that_cannot_be_put_on_record_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    @tool
    def spend() -> str:
        """Spend."""
        with ExecutionContext(UNLIMITED, ShieldPipeline()) as own:
            own.call_llm(lambda: made.append(1), WrapOptions(cost_estimate_hint=0.01))
        return "spent"

    def refusing(store: RunStore, batch: Sequence[Any]) -> None:
        if any(getattr(each.envelope, "run_id", None) is not None for each in batch):
            raise StoreError("the disk is full")
        append(store, batch)

    append = RunStore.append
    monkeypatch.setattr(RunStore, "append", refusing)
    script = ScriptedModel([Call("spend", {}), Say("fin")])
    result = Agent(script, "Work.", str, tools=[spend], limits=ROOMY).run("go", store=tmp_path / "store")
    assert result.ok
    assert not made
    (invoked,) = events(result, ToolInvoked)
    assert (invoked.outcome, "the disk is full" in invoked.rendered_output) == ("crashed", True)
    assert result.usage.cost_nanos == 0


@pytest.mark.parametrize("block", [{}, {"store": "other"}])
@pytest.mark.parametrize("inner", [{}, {"store": "third"}])
def test_what_a_run_inside_a_block_spends_is_on_the_record_of_the_run_around_before_it_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: dict[str, Any], inner: dict[str, Any]
) -> None:
    """Other records are of no use to whoever resumes the run around."""
    monkeypatch.chdir(tmp_path)
    used: list[Usage] = []
    run_ids: list[UUID] = []

    def answer(_: ModelRequest) -> Say:
        with RunStore("store", read_only=True) as store:
            used.append(Reader(store).used_by(run_ids[0]))
        return Say("yes", usage=TokenUsage(10, 1))

    @tool
    def ask(*, context: ToolContext) -> str:
        """Ask a model in a block."""
        run_ids.append(context.run_context.run_id)
        model = ScriptedModel(answer, name="aside", free=False)
        with contained(**block):
            return str(run(ASIDE, model=model, prices={"aside": PRICE}, **inner).output)

    asking = ScriptedModel([Call("ask"), "done"])
    result = Agent(asking, "Work.", str, tools=[ask]).run("go", store="store")
    assert result.output == "done"
    (at_its_answer,) = used
    assert (at_its_answer.model_calls, at_its_answer.presumed.calls) == (2, 1)
    with RunStore("store", read_only=True) as store:
        assert Reader(store).used_by(run_ids[0]).model_calls == 3
        log = Reader(store).log(run_ids[0])
        assert spent_of(log[:-1], Reader(store).used_by).usage.model_calls == 3, "also without its end"
