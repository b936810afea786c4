"""A run with subagents, judge, observers, a compacted context and a fallback goes on from every line it has written."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.app.written import Written, written
from tests.kit import down, events
from tests.loop.test_compaction import is_summary, tokens_of
from tests.oversight.support import Watcher
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.asking.compaction import ContextSummary
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.judging import CompletionVerdict, LLMCompletionVerifier
from watchkeeper.loop.reopen import Reader
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.advice_events import ObserversRan
from watchkeeper.runtime.events import ChildEnded, ChildStarted, CompletionChecked, ContextCompacted, ModelSwitched
from watchkeeper.runtime.result import RunResult
from watchkeeper.store.cancelling import cancel
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import tool

WINDOW = 6_000
Whole = tuple[Written, RunResult[str]]
STEP = re.compile(r"step=(\d+)")
CHILD = PromptTemplate[str](
    ns="t", key="child", sections=(MarkdownSection(title="Task", key="task", template="Post letter ${instructions}."),)
)
GOOD = CompletionVerdict((), ("finished",), "It is done.", True, "")
POSTED = [3, 7, 102, 202]
PAGE = "a line of the page. " * 220


class Patient(ScriptedModel):
    """Lets others go on while it answers, so that two subagents work at the same time."""

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Answer a little later."""
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().turn(request)


@dataclass
class World:
    """What the tools of an agent do, and what its models were asked."""

    posted: list[int] = field(default_factory=list[int])
    judged: int = 0
    summarised: int = 0

    def agent(self) -> Agent[str]:
        """Return an agent that reads, posts, and lets two subagents read and post."""

        @tool(read_only=True)
        def read(step: int) -> str:
            """Read."""
            return f"step={step} {PAGE}"

        @tool(read_only=True)
        def glance(step: int) -> str:
            """Glance."""
            return f"step={step}"

        @tool
        def post(step: int) -> str:
            """Post."""
            self.posted.append(step)
            return f"step={step} posted"

        return Agent(
            model=Patient(self.first, name="one", provider="a", context_window=WINDOW),
            instructions="Work.",
            tools=[read, glance, post],
            limits=Limits(deadline=None, max_total_tokens=None, max_turns=60),
            subagents=[CHILD],
            observers=[ObserverConfig(Watcher(self.advise), ObserverTrigger(every_n_calls=1))],
            task_completion_checker=LLMCompletionVerifier(),
        )

    def options(self) -> dict[str, Any]:
        """Return what its runs need beside."""
        second = Patient(self.answer, name="two", provider="b", context_window=WINDOW)
        return {"fallback": [second], "on_context_full": "compact"}

    def advise(self, context: ObserverContext) -> Assessment | None:
        """Advise after the posting, by what is on record."""
        calls = [each for each in context.session[ToolInvoked].all() if each.name == "post"]
        told = any(each.text for each in context.session[ObserversRan].all())
        return Assessment("Watcher", "mind the stamps") if calls and not told else None

    def first(self, request: ModelRequest) -> Any:
        """Answer until the third step; then this model is down for good."""
        if not self.is_child(request) and self.step(request) >= 3:
            return down("auth")
        return self.answer(request)

    def is_child(self, request: ModelRequest) -> bool:
        """Whether a subagent asks."""
        return "Post letter" in request.transcript[0].text

    def step(self, request: ModelRequest) -> int:
        """Return how far the conversation has come."""
        return max((int(found) for message in request.transcript for found in STEP.findall(_text(message))), default=0)

    def answer(self, request: ModelRequest) -> Any:
        """Return what a model says: it follows from the conversation alone."""
        used = TokenUsage(tokens_of(request), 20)
        if is_summary(request):
            self.summarised += 1
            steps = [int(found) for message in request.transcript for found in STEP.findall(_text(message))]
            return Say(ContextSummary((f"step={max(steps)}",), (), (), ()), usage=used)
        if request.output is not None and request.output.name == "CompletionVerdict":
            self.judged += 1
            return Say(GOOD, usage=used)
        return with_usage(self.next(request), used)

    def next(self, request: ModelRequest) -> Say | Calls:
        """Return the next step."""
        step = self.step(request)
        if self.is_child(request):
            number = int(re.findall(r"letter (\d+)", request.transcript[0].text)[0])
            names = ["glance", "post", "glance"]
            place = max(step - number, 0)
            return Say(f"step=2 letter {number} is posted") if place == 3 else one(names[place], number + place + 1)
        match step:
            case 1:
                tasks = [
                    {"prompt_ns": "t", "prompt_key": "child", "instructions": str(number), "mode": "ad_hoc"}
                    for number in (100, 200)
                ]
                return Calls((Call("dispatch_subagents", {"tasks": tasks}),))
            case 2 | 6:
                return one("post", step + 1)
            case 8:
                return Say("finished")
            case _:
                return one("read", step + 1)


def one(name: str, step: int) -> Calls:
    return Calls((Call(name, {"step": step}),))


def with_usage(said: Say | Calls, used: TokenUsage) -> Say | Calls:
    return Say(said.answer, usage=used) if isinstance(said, Say) else Calls(said.calls, usage=used)


def _text(message: Any) -> str:
    """Return what is to be read of a message; a posting counts even if nobody knows how it went."""
    if isinstance(message, AssistantMessage):
        return " ".join(
            f"step={json.loads(call.arguments)['step']}" for call in message.tool_calls if call.name == "post"
        )
    return str(message.text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the lines of a run that nobody disturbed, and how it ended."""
    world = World()
    with written() as lines:
        result = world.agent().run("go", store=tmp_path_factory.mktemp("whole") / "store", **world.options())
    assert result.ok, result.sentence()
    assert sorted(world.posted) == POSTED
    for kind in (CompletionChecked, ContextCompacted, ModelSwitched, ObserversRan):
        assert events(result, kind), kind
    assert Counter(each.kind for each in events(result, ChildStarted)) == {"subagent": 2, "verdict": 1, "summary": 1}
    return lines, result


def test_the_record_of_a_whole_run_has_what_its_gate_has_counted(whole: Whole, tmp_path: Path) -> None:
    lines, result = whole
    root = f"{result.run_id}.jsonl"
    ended = next(
        place for place, (name, line) in enumerate(lines.lines) if name == root and b'"tag":"run_ended"' in line
    )
    with RunStore(lines.cut(ended, tmp_path / "store"), read_only=True) as stored:
        assert Reader(stored).used_by(result.run_id) == result.usage


def below(lines: Written, tag: str, count: int) -> list[dict[str, Any]]:
    """Return the events of a type among the first lines, as JSON."""
    return [json.loads(line)["body"] for line in lines.with_tag(tag, count)]


def test_it_goes_on_from_every_line_and_does_nothing_twice(
    whole: tuple[Written, RunResult[str]], tmp_path: Path
) -> None:
    lines, undisturbed = whole
    run_id = str(undisturbed.run_id)
    for count in range(lines.place("run_opened") + 1, len(lines.lines)):
        store, world = lines.cut(count, tmp_path / "store"), World()
        with written() as further:
            result = world.agent().resume(run_id, store=store, **world.options())
        assert result.ok, (count, result.sentence())
        assert (result.output, result.run_id) == (undisturbed.output, undisturbed.run_id)
        assert result.completion == undisturbed.completion == "verified"
        assert result.answered_by == undisturbed.answered_by

        invoked = [each for each in below(lines, "tool_invoked", count) if each["name"] == "post"]
        before = {each["params"]["step"] for each in invoked}
        begun = lines.begun("tool", count)
        unknown = len(begun) - len(invoked)
        assert not before & {*world.posted}, (count, "posted twice")
        assert len(before) + len(world.posted) + unknown == len(POSTED), count

        asked = lines.begun("llm", count)
        answered = len(below(lines, "model_replied", count)) + len(below(lines, "model_failed", count))
        interrupted = len(asked) - answered
        failed = len(below(lines, "model_failed", count)) - len(below(lines, "model_switched", count))
        anew = asked_anew(lines, count)
        usage = result.usage
        assert usage.presumed.calls == interrupted, count
        assert usage.model_calls == undisturbed.usage.model_calls + interrupted + failed + anew.model_calls, count
        assert usage.tool_calls == undisturbed.usage.tool_calls, count
        if not unknown:
            settled = usage.tokens.total - usage.presumed.tokens.total
            assert settled == undisturbed.usage.tokens.total + anew.tokens.total, count
        assert world.judged == (0 if below(lines, "completion_checked", count) else 1), count
        assert world.summarised == (0 if below(lines, "context_compacted", count) else 1), count

        begun_below = Counter(each.kind for each in events(result, ChildStarted))
        assert begun_below["subagent"] - without_work(lines, count) == 2, count
        assert len({each.run_id for each in events(result, ChildEnded) if each.kind == "subagent"}) == 2
        with RunStore(store, read_only=True) as stored:
            row = stored.find(run_id)
            assert (row.ended_at is not None, row.stop) == (True, None)
            assert all(line for _, line in further.lines)


def test_it_is_cancelled_at_every_line_with_what_is_below_it_and_counts_everything_once(
    whole: Whole, tmp_path: Path
) -> None:
    lines, undisturbed = whole
    run_id = str(undisturbed.run_id)
    for count in range(lines.place("run_opened") + 1, len(lines.lines)):
        store, world = lines.cut(count, tmp_path / "store"), World()
        with RunStore(store) as opened:
            before = Reader(opened).used_by(undisturbed.run_id)
            run = cancel(opened, run_id, by="cleo")
            assert run.stop is not None, count
            assert (run.stop["reason"], run.is_resumable) == ("cancelled", False)
            assert all(each.ended_at is not None for each in opened.children(run_id)), count
            after = Reader(opened).used_by(undisturbed.run_id)
        assert after.presumed == before.presumed, count
        assert (after.tokens, after.model_calls, after.tool_calls) == (
            before.tokens,
            before.model_calls,
            before.tool_calls,
        )
        assert 0 <= after.steps - before.steps <= 2, "a subagent that was open counts as a step"
        if count % 2:  # to save time
            continue

        with written() as further:
            result = world.agent().resume(run_id, store=store, **world.options())
        assert result.ok, (count, result.sentence())
        done = {each["params"]["step"] for each in below(lines, "tool_invoked", count) if each["name"] == "post"}
        told = [each.rendered_output for each in events(result, ToolInvoked) if "cancelled by cleo" in str(each.result)]
        again = {100 + 2, 200 + 2} if told else set[int]()  # the agent sends them again, knowing that
        assert not (done - again) & {*world.posted}, (count, "posted twice")
        asked = len(lines.begun("llm", count)) + len(further.begun("llm", len(further.lines)))
        assert result.usage.model_calls == asked, count


def test_a_run_below_goes_on_with_the_one_above_it_alone(whole: Whole, tmp_path: Path) -> None:
    lines, undisturbed = whole
    store, world = lines.cut(lines.place("child_ended"), tmp_path / "store"), World()
    with RunStore(store, read_only=True) as opened:
        below_it = [each.run_id for each in opened.children(str(undisturbed.run_id))]
    before = {path: path.read_bytes() for path in (store / "runs").iterdir()}
    for run_id in below_it:
        said = f"is a part of the run {undisturbed.run_id}, whose limits hold for it; resume the run"
        with pytest.raises(ConfigurationError, match=said) as refused:
            world.agent().resume(run_id, store=store)
        assert f"agent.resume('{undisturbed.run_id}')" in str(refused.value)
    assert before == {path: path.read_bytes() for path in (store / "runs").iterdir()}
    assert not world.posted


def asked_anew(lines: Written, count: int) -> Usage:
    """Return what judges and summaries had used whose word is not on record: they are asked anew."""
    said = {"verdict": "completion_checked", "summary": "context_compacted"}
    started = [each for each in below(lines, "child_started", count) if each["kind"] in said]
    lost = {each["run_context"]["run_id"] for each in started if not below(lines, said[each["kind"]], count)}
    replies = [
        json.loads(line)["body"]["usage"]
        for name, line in lines.lines[:count]
        if b'"tag":"model_replied"' in line and name.split(".")[1] in lost
    ]
    return sum(
        (Usage(TokenUsage(each["input_tokens"], each["output_tokens"]), model_calls=1) for each in replies), Usage()
    )


def without_work(lines: Written, count: int) -> int:
    """Return how many subagents had begun of which nothing was on record: they are begun anew."""
    started = sum("subagent" in str(each["kind"]) for each in below(lines, "child_started", count))
    return started - (len(below(lines, "run_opened", count)) - 1)
