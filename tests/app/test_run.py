"""`run` and `arun`: strings for models, stores, listeners, and what is refused before anything is spent."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from watchkeeper.accounting.budget import Budget
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.options import ManyOptions, RunOptions, TaskOptions
from watchkeeper.app.run import arun, arun_many, run, run_many
from watchkeeper.blocks.contained import contained
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, PromptDefinitionError, StoreError, UnknownModelError
from watchkeeper.core.messages import SystemMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.loop.run import Adapter
from watchkeeper.observers.resources import ResourceObserver
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import ModelReplied, RunEnded, RunStarted, TextDelta
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.session import Session
from watchkeeper.store.run_store import RunStore
from watchkeeper.subagents.dispatch import SubagentSettings
from watchkeeper.subagents.payloads import DispatchSubagent, DispatchSubagents, PromptRegistry
from watchkeeper.subagents.section import PromptSubagentToolsSection
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.resources import ResourceBinding, Resources, Scope
from watchkeeper.tools.tool import tool

HELLO = PromptTemplate(ns="tests", key="hello", sections=[MarkdownSection(title="T", key="t", template="Say hello.")])


@pytest.mark.spec("FR-048")
def test_run_blocks_and_arun_awaits_and_both_end_alike() -> None:
    result = run(HELLO, model=ScriptedModel(["hello"]), store=None)
    assert result.output == "hello"


@pytest.mark.spec("FR-048")
async def test_run_works_inside_a_running_loop() -> None:
    assert run(HELLO, model=ScriptedModel(["hello"]), store=None).output == "hello"
    assert (await arun(HELLO, model=ScriptedModel(["hello"]), store=None)).output == "hello"


def test_all_front_doors_take_the_same_options() -> None:
    doors: dict[Any, str] = {run: "RunOptions", arun: "RunOptions", run_many: "ManyOptions", arun_many: "ManyOptions"}
    own: dict[Any, str] = {Agent.run: "RunOptions", Agent.arun: "RunOptions"}
    over_tasks: dict[Any, str] = {Agent.run_many: "TaskOptions", Agent.arun_many: "TaskOptions"}
    for door, options in {**doors, **own, **over_tasks}.items():
        assert inspect.signature(door).parameters["options"].annotation == f"Unpack[{options}]"
    assert (
        RunOptions.__annotations__.items() < TaskOptions.__annotations__.items() < ManyOptions.__annotations__.items()
    )


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(TypeError, match="max_cost"):
        run(HELLO, model=ScriptedModel(["hello"]), max_cost=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_a_wish_for_a_full_context_that_nobody_knows_is_refused() -> None:
    odd: Any = "shrink"
    with pytest.raises(ConfigurationError, match="on_context_full='shrink' must be 'compact' or 'land' or 'stop'"):
        run(HELLO, model=ScriptedModel([]), on_context_full=odd, store=None)


def test_an_unknown_model_lists_the_forms_that_exist() -> None:
    with pytest.raises(UnknownModelError, match="'openai:NAME'"):
        run(HELLO, model="gpt-5", store=None)


@pytest.mark.spec("FR-113")
def test_a_store_that_cannot_be_written_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = ScriptedModel(["hello"])
    with pytest.raises(StoreError, match="store=None"):
        run(HELLO, model=model, store=tmp_path / "file" / "runs.sqlite3")
    assert model.requests == []


@pytest.mark.spec("FR-075")
def test_runs_are_stored_where_asked_and_in_the_users_folder_by_default(tmp_path: Path) -> None:
    result = run(HELLO, model=ScriptedModel(["hello"]), store=tmp_path / "runs.sqlite3")
    store = RunStore(tmp_path / "runs.sqlite3")
    assert store.find(str(result.run_id)).prompt == "tests/hello"
    tags = [event.tag for event in store.events(str(result.run_id))]
    assert tags[0] == "run_started"
    assert tags[-1] == "run_ended"
    store.close()
    other = run(HELLO, model=ScriptedModel(["hello"]))
    default = RunStore()
    assert default.find(str(other.run_id)).ended_at is not None
    default.close()


def test_the_store_has_the_limits_of_runs_items_children_and_blocks_as_values(tmp_path: Path) -> None:
    given = Limits(deadline="30m", max_cost_usd="1.50", max_turns=7, account="team", account_limit="$20/day")
    own = Limits(deadline="1m", max_total_tokens=5_000, landing=None)
    section = PromptSubagentToolsSection(
        PromptRegistry(HELLO),
        model=ScriptedModel(["hello"], name="c"),
        settings={"tests/hello": SubagentSettings(limits=own)},
    )
    boss = PromptTemplate(ns="tests", key="boss", sections=[*HELLO.sections, section])
    task = DispatchSubagent("ad_hoc", "tests", "hello", "Say it.")
    ledger = SqliteLedger(tmp_path / "ledger.db")
    with RunStore(tmp_path / "runs.db") as store:
        result = run(
            boss, model=ScriptedModel([Call("dispatch_subagent", task), "x"]), limits=given, store=store, ledger=ledger
        )
        many = run_many(HELLO, [()], model=ScriptedModel(["hello"]), limits=Limits(max_total_tokens=9_000), store=store)
        with contained(max_cost_usd=2, store=store) as block:
            pass

        def limits_of(tag: str, run_id: object) -> Any:
            (found,) = [event.load() for event in store.events(str(run_id)) if event.tag == tag]
            assert found.limit_values.describe() == found.limits
            return found.limit_values

        assert limits_of("run_started", result.run_id) == result.limits == given
        child = limits_of("child_started", result.run_id)
        assert (child.deadline, child.max_total_tokens, child.landing) == (timedelta(minutes=1), 5_000, None)
        assert limits_of("run_started", store.children(str(result.run_id))[0].run_id) == child
        assert limits_of("many_started", many.run_id) == many.limits
        assert limits_of("run_started", many.results[0].run_id) == many.results[0].limits
        assert limits_of("run_started", block.metadata.chain_id).max_cost_usd == 2


def test_an_open_store_may_be_handed_in_and_stays_open(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.sqlite3")
    for _ in range(2):
        run(HELLO, model=ScriptedModel(["hello"]), store=store)
    assert len(store.runs()) == 2
    store.close()


@pytest.mark.spec("FR-053")
def test_every_event_and_the_text_as_it_arrives_reach_the_listener_in_order() -> None:
    heard: list[Any] = []
    threads: set[str] = set()

    def hear(event: Any) -> None:
        heard.append(event)
        threads.add(threading.current_thread().name)

    run(HELLO, model=ScriptedModel(["hello"]), store=None, on_event=hear)
    kinds: list[type] = [type(event) for event in heard]
    assert kinds[0] is RunStarted
    assert kinds[-1] is RunEnded
    assert heard[kinds.index(TextDelta)].text == "hello"
    assert kinds.index(TextDelta) < kinds.index(ModelReplied)
    assert "watchkeeper-loop" not in threads


async def test_an_async_listener_is_awaited() -> None:
    heard: list[Any] = []

    async def hear(event: Any) -> None:
        heard.append(type(event))

    await arun(HELLO, model=ScriptedModel(["hello"]), store=None, on_event=hear)
    assert RunEnded in heard


@pytest.mark.spec("FR-053")
def test_a_listener_that_raises_does_not_end_the_run() -> None:
    def hear(event: Any) -> None:
        raise RuntimeError("listener bug")

    assert run(HELLO, model=ScriptedModel(["hello"]), store=None, on_event=hear).ok


@pytest.mark.spec("TO-024")
def test_a_budget_seeded_in_the_session_tightens_the_limits() -> None:
    session = Session()
    session[Budget].seed(Budget(max_tool_calls=1))
    result = run(HELLO, model=ScriptedModel(["hello"]), store=None, session=session, limits=Limits(max_tool_calls=9))
    assert result.limits.max_tool_calls == 1


def events_of(result: RunResult[Any]) -> list[str]:
    return [item.outcome for item in result.session[ToolInvoked].all()]


def test_every_run_makes_its_own_resources_and_closes_them_at_its_end() -> None:
    class Connection:
        closed = False

        def close(self) -> None:
            self.closed = True

    made: list[Connection] = []

    @tool
    def use(*, context: ToolContext) -> str:
        """Use the connection."""
        made.append(context.resources.get(Connection))
        return "used"

    section = MarkdownSection(title="T", key="t", template="Use it.", tools=(use,))
    template = PromptTemplate(ns="tests", key="resources", sections=[section])
    resources = Resources([ResourceBinding(Connection, lambda _: Connection())])
    for _ in range(2):
        result = run(template, model=ScriptedModel([Call("use"), "done"]), store=None, resources=resources)
        assert events_of(result) == ["ok"]
    assert [connection.closed for connection in made] == [True, True]
    assert made[0] is not made[1]


class Unclosable:
    """A connection whose end fails, or never comes."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def aclose(self) -> None:
        if self.how == "fails":
            raise OSError("cannot close")
        await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["fails", "hangs"])
@pytest.mark.parametrize("scope", list(Scope))
def test_what_cannot_be_closed_costs_no_result_and_is_logged(
    how: str, scope: Scope, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def use(*, context: ToolContext) -> str:
        """Use the connection."""
        context.resources.get(Unclosable)
        return "used"

    monkeypatch.setattr("watchkeeper.runtime.user_code.CLOSE_SECONDS", 0.05 if how == "hangs" else 30.0)
    section = MarkdownSection(title="T", key="t", template="Use it.", tools=(use,))
    template = PromptTemplate(ns="tests", key="unclosable", sections=[section])
    resources = Resources([ResourceBinding(Unclosable, lambda _: Unclosable(how), scope)])
    with caplog.at_level(logging.WARNING):
        result = run(template, model=ScriptedModel([Call("use"), "done"]), store=None, resources=resources)
    assert (result.text, result.stop) == ("done", None)
    assert f"close.{'failed' if how == 'fails' else 'late'}" in caplog.text


@pytest.mark.parametrize("scope", list(Scope))
def test_a_factory_that_hangs_does_not_hang_the_run(scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def hang(_: Resources) -> Unclosable:
        assert go_on.wait(30)
        raise OSError("too late")

    @tool(timeout="50ms")
    def use(*, context: ToolContext) -> str:
        """Use the connection."""
        context.resources.get(Unclosable)
        return "used"

    monkeypatch.setattr("watchkeeper.runtime.user_code.CLOSE_SECONDS", 0.05)
    section = MarkdownSection(title="T", key="t", template="Use it.", tools=(use,))
    template = PromptTemplate(ns="tests", key="hanging", sections=[section])
    resources = Resources([ResourceBinding(Unclosable, hang, scope)])
    script = ScriptedModel([Call("use"), Call("use"), "done"])
    try:
        assert run(template, model=script, store=None, resources=resources).text == "done"
    finally:
        go_on.set()


def test_a_model_that_cannot_be_closed_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ScriptedModel):
        async def close(self) -> None:
            raise ExceptionGroup("two things", [OSError("the pipe is broken")])

    def named(name: str) -> Broken:
        return Broken(["done"])

    monkeypatch.setattr("watchkeeper.app.models.model_from", named)
    with caplog.at_level(logging.WARNING):
        assert run(HELLO, model="openai:x", store=None).text == "done"
    assert "the pipe is broken" in caplog.text


def test_a_prompt_with_a_placeholder_that_nothing_fills_is_refused() -> None:
    template = PromptTemplate(ns="t", key="k", sections=[MarkdownSection(title="T", key="t", template="Do ${what}.")])
    with pytest.raises(PromptDefinitionError, match="what"):
        run(template, model=ScriptedModel([]), store=None)


# --- Agent ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an agent answers."""

    number: int


@tool
def double(number: int) -> int:
    """Double a number."""
    return number * 2


def agent(model: ScriptedModel, **options: Any) -> Agent[Answer]:
    return Agent(model, "You double numbers.", Answer, tools=(double,), **options)


@pytest.mark.spec("FR-051")
def test_an_agent_is_a_template_and_a_run() -> None:
    model = ScriptedModel([Call("double", {"number": 2}), Say(Answer(4))])
    result = agent(model).run("Double 2.", store=None, clock=TestClock())
    assert result.output == Answer(4)
    system, task = model.requests[0].transcript[0], model.requests[0].transcript[1]
    assert isinstance(system, SystemMessage)
    assert "You double numbers." in system.text
    assert "Double 2." in getattr(task, "text", "")


async def test_an_agent_can_be_awaited_and_keeps_its_limits() -> None:
    result = await agent(ScriptedModel([Say(Answer(4))]), limits=Limits(max_turns=3)).arun("Double 2.", store=None)
    assert result.limits.max_turns == 3


def test_an_agent_may_be_observed() -> None:
    config = ObserverConfig(ResourceObserver(), ObserverTrigger(every_n_calls=1))
    model = ScriptedModel([Call("double", {"number": 2}), Say(Answer(4))])
    result = agent(model, observers=[config]).run("Double 2.", store=None)
    said = result.session[Assessment].latest()
    assert said is not None
    assert said.summary.startswith("You have ")


@pytest.mark.spec("FR-051")
def test_an_agent_runs_over_many_tasks() -> None:
    many = agent(ScriptedModel(lambda _: Say(Answer(1)))).run_many(["a", "b"], store=None)
    assert [result.item for result in many.results] == ["a", "b"]


def test_an_agent_whose_output_has_no_schema_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError):
        Agent(ScriptedModel([]), "x", threading.Lock)  # pyright: ignore[reportArgumentType]


# --- cancelled from outside -------------------------------------------------------------------------------------------

SWALLOWED = ("returned", "raised")
DOORS = ("arun", "agent", "many", "evaluate", "subagent", "subagents", "model")


@pytest.mark.parametrize("swallowed", SWALLOWED)
@pytest.mark.parametrize("door", DOORS)
async def test_work_that_swallows_a_cancellation_does_not_make_an_ordinary_result_of_it(
    door: str, swallowed: str
) -> None:
    waiting = asyncio.Event()

    async def wait() -> str:
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if swallowed == "raised":
                raise ValueError("broken off") from None
        return "kept on"

    @tool
    async def stubborn() -> str:
        """Wait for ever."""
        return await wait()

    class Stubborn(ScriptedModel):
        async def turn(self, request: ModelRequest) -> ModelReply:
            await wait()
            return await super().turn(request)

    section = MarkdownSection(title="T", key="t", template="Wait.", tools=() if door == "model" else (stubborn,))
    prompt, model = PromptTemplate[str](ns="t", key="p", sections=[section]), ScriptedModel([Call("stubborn"), "done"])
    if door.startswith("subagent"):
        task = DispatchSubagent("ad_hoc", "t", "p", "Wait.")
        call = Call(f"dispatch_{door}", task if door == "subagent" else DispatchSubagents((task, task)))
        registry = PromptRegistry(prompt)
        dispatch = PromptSubagentToolsSection(registry, model=ScriptedModel([Call("stubborn"), "done"] * 2, name="c"))
        prompt, model = (
            PromptTemplate(ns="t", key="boss", sections=[*HELLO.sections, dispatch]),
            ScriptedModel([call, "x"]),
        )
    session, work = Session(), cast("Any", None)
    if door == "agent":
        work = Agent(model, "Wait.", tools=(stubborn,)).arun("Go.", session=session, store=None)
    elif door == "many":
        work = arun_many(prompt, [()], model=model, store=None)
    elif door == "evaluate":
        work = Adapter(model).evaluate_async(Prompt(prompt), session=session)
    else:
        work = arun(prompt, model=Stubborn(["x"]) if door == "model" else model, session=session, store=None)
    running = asyncio.ensure_future(work)
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    if door != "many":
        assert [end.stop.reason for end in session[RunEnded].all() if end.stop] == ["aborted"]


async def test_a_tool_that_takes_a_cancellation_back_goes_on() -> None:
    waiting = asyncio.Event()

    @tool
    async def handled() -> str:
        """Wait, and end the wait on purpose."""
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            running.uncancel()
        return "went on"

    agent = Agent(ScriptedModel([Call("handled"), "done"]), "Wait.", tools=(handled,))
    running = asyncio.ensure_future(agent.arun("Go.", store=None))
    await waiting.wait()
    running.cancel()
    assert (await running).output == "done"


def test_the_sentence_says_which_tokens_are_presumed_from_the_store_too(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel([ConnectionError("lost")]), "Be brief.", str, name="lost")
    with RunStore(tmp_path / "s") as store:
        ended = agent.run("Go.", store=store)
        stored = store.find(str(ended.run_id))
    presumed = ended.usage.presumed.tokens.total
    assert presumed > 16_000
    assert f"tokens ({presumed:,} of them presumed), " in ended.sentence()
    assert f"tokens ({presumed:,} of them presumed), " in stored.sentence()
