"""Invalid arguments are refused before anything is spent; the error has name, value and what to write instead."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.options import (
    CHECKED_WHERE_USED,
    RULES,
    ManyOptions,
    RunOptions,
    brief,
    check_arguments,
    options_for_run,
    renamed,
)
from watchkeeper.app.run import arun, arun_many, run, run_many
from watchkeeper.blocks.contained import contained
from watchkeeper.core.clock import SystemClock
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.ids import RandomIds
from watchkeeper.core.model import ModelSettings
from watchkeeper.core.usage import FREE
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.shield.circuit_breaker import CircuitBreaker, CircuitBreakers
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.tool_permission import ToolPermissionHook
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import MemoryFilesystem
from watchkeeper.tools.resources import Resources
from watchkeeper.tools.tool import tool

TEMPLATE = PromptTemplate(ns="tests", key="hello", sections=[MarkdownSection(title="", key="task", template="Say hi.")])


@dataclass(frozen=True)
class Item:
    """What one run is about."""

    name: str


def model() -> ScriptedModel:
    return ScriptedModel(lambda _: "hi")


def agent(**given: Any) -> Agent[str]:
    named: Any = {"model": model(), "instructions": "Be brief.", "output_type": str, **given}
    return Agent(**named)


WRONG: dict[str, tuple[Any, str]] = {
    "settings": ({"temperature": 0.1}, r"settings={'temperature': 0.1} must be ModelSettings, for example ModelSett"),
    "prices": ({"scripted": 1}, r"prices\['scripted'\]=1 must be a ModelPrice; write .*ModelPrice.per_million"),
    "fallback": ("local", "fallback='local' must be a sequence"),
    "shield": (ToolPermissionHook(allow=["x"]), r"must be a ShieldPipeline.*ShieldPipeline\(tool_dispatch="),
    "breakers": ({}, r"breakers={} must be CircuitBreakers"),
    "resources": ({}, r"resources={} must be Resources; .*Resources\.of\("),
    "filesystem": ("/tmp", r"filesystem='/tmp' must be a Filesystem; .*HostFilesystem\('/path'\)"),
    "on_event": (3, "on_event=3 must be a function"),
    "on_record": ([], r"on_record=\[\] must be a function"),
    "on_open": (3, "on_open=3 must be a function of the run's ExecutionContext"),
    "notify": ("curl", r"notify='curl' must be a Notify, for example Notify\('https://"),
    "telemetry": ("on", r"telemetry='on' must be a Telemetry, for example watchkeeper.telemetry.Telemetry\(\)"),
    "traceparent": (7, "traceparent=7 must be text such as '00-<32 hex digits>-<16 hex digits>-01'"),
    "on_context_full": ("wait", "on_context_full='wait' must be"),
    "store": (False, "store=False must be a path, an open RunStore, or None"),
    "on_ask": ("wait", "on_ask='wait' must be 'deny', 'park', or Park"),
    "on_store_failure": ("ignore", "on_store_failure='ignore' must be 'stop' or 'go_on'"),
    "durability": ("disk", "durability='disk' must be 'process' or 'power'"),
    "ledger": (None, "ledger=None must be a path or an open ledger"),
    "raise_on_stop": ("no", "raise_on_stop='no' must be True or False"),
    "origin": ("a file", "origin='a file' must be a dict of plain values"),
    "parent": ("run", "parent=.run. must be None, for an independent run"),
    "clock": (3, "clock=3 must be a Clock"),
    "ids": (random.Random, "ids=.* must be an IdSource"),
    "rng": (7, "rng=7 must be a random.Random"),
}


@pytest.mark.spec("FR-143")
def test_every_option_has_a_rule() -> None:
    assert RunOptions.__annotations__.keys() == WRONG.keys() == {*WRONG} & {*RULES, *CHECKED_WHERE_USED, "prices"}
    assert ManyOptions.__annotations__.keys() == {*WRONG, "each", "concurrency", "label"}


@pytest.mark.spec("FR-143")
@pytest.mark.parametrize("name", WRONG)
def test_an_option_of_the_wrong_kind_is_refused_before_the_model_is_asked(name: str) -> None:
    value, said = WRONG[name]
    asked = model()
    wrong: Any = {"store": None, name: value}
    with pytest.raises(ConfigurationError, match=said):
        run(TEMPLATE, model=asked, **wrong)
    with pytest.raises(ConfigurationError, match=said):
        run_many(TEMPLATE, [Item("one")], model=asked, **wrong)
    assert asked.requests == []


def test_what_fits_is_taken_and_none_where_it_means_something() -> None:
    options = options_for_run(
        {
            "settings": ModelSettings(temperature=0),
            "prices": {"scripted": FREE},
            "shield": ShieldPipeline(),
            "breakers": CircuitBreakers(),
            "resources": Resources(),
            "filesystem": MemoryFilesystem(),
            "on_event": print,
            "store": None,
            "on_store_failure": "go_on",
            "ledger": "default",
            "raise_on_stop": True,
            "clock": SystemClock(),
            "ids": RandomIds(),
            "rng": random.Random(1),
        }
    )
    assert options.keys() <= RunOptions.__annotations__.keys()
    nothing: Any = dict.fromkeys(("prices", "shield", "breakers", "resources", "filesystem", "on_event", "on_record"))
    assert options_for_run(nothing).get("shield") is None


WRONG_NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "a text as prompt": ({"prompt": "Say hi"}, r"prompt='Say hi' must be a PromptTemplate.*Agent\(.*\)\.run\(text\)"),
    "an agent as prompt": ({"prompt": agent()}, r"prompt=Agent\(...\) must be .*agent\.run\(task\)"),
    "a dict of limits": ({"limits": {"max_turns": 3}}, r"limits={'max_turns': 3} must be Limits, for example Limits\("),
    "a text as limits": ({"limits": "1m"}, "limits='1m' must be Limits"),
    "no limits": ({"limits": None}, r"limits=None must be Limits.*Limits\(max_turns=None\) lifts one"),
    "no model": ({"model": None}, "model=None must be a text such as 'openai:gpt-5-mini'"),
    "a function as model": ({"model": print}, "model=<built-in function print> must be"),
    "a class as model": ({"model": ScriptedModel}, "model=.* must be .* a Model such as ScriptedModel"),
}


@pytest.mark.spec("FR-143")
@pytest.mark.parametrize("case", WRONG_NAMED)
async def test_what_run_and_run_many_take_by_name_is_looked_at_first(case: str) -> None:
    wrong, said = WRONG_NAMED[case]
    given: Any = {"prompt": TEMPLATE, "model": model(), "store": None, **wrong}
    with pytest.raises(ConfigurationError, match=said):
        await arun(**given)
    with pytest.raises(ConfigurationError, match=said):
        await arun_many(items=[Item("one")], **given)


def test_a_result_is_no_session_but_has_one() -> None:
    first: Any = run(TEMPLATE, model=model(), store=None)
    with pytest.raises(ConfigurationError, match=r"session=RunResult\(...\) must be .*session=result\.session"):
        run(TEMPLATE, model=model(), store=None, session=first)
    assert run(TEMPLATE, model=model(), store=None, session=first.session).ok


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"each": "1m"}, r"each='1m' must be Limits .*Limits\(deadline='1m'\)"),
        ({"concurrency": "4"}, "concurrency='4' must be a whole number of at least 1"),
        ({"concurrency": True}, "concurrency=True must be"),
        ({"label": "name"}, "label='name' must be a function"),
        ({"items": "abc"}, "items='abc' must be a list of items"),
        ({"items": None}, "items=None must be a list of items"),
        ({"items": {"a": 1}}, "items={'a': 1} must be a list of items"),
    ],
)
def test_what_run_many_takes_besides_is_looked_at_first(wrong: dict[str, Any], said: str) -> None:
    asked = model()
    given: Any = {"prompt": TEMPLATE, "items": [Item("one")], "model": asked, "store": None, **wrong}
    with pytest.raises(ConfigurationError, match=said):
        run_many(**given)
    assert asked.requests == []


@pytest.mark.parametrize("price", [{3: FREE}, 3])
def test_prices_must_be_named_by_text(price: Any) -> None:
    with pytest.raises(ConfigurationError, match="prices"):
        options_for_run({"prices": price})


def test_a_misspelt_option_is_refused_with_the_nearest() -> None:
    calls: list[Callable[[Any], object]] = [
        lambda wrong: run(TEMPLATE, model=model(), **wrong),
        lambda wrong: run_many(TEMPLATE, [Item("one")], model=model(), **wrong),
        lambda wrong: agent().run("Go.", **wrong),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="unexpected keyword argument 'on_evnt'; did you mean 'on_event'"):
            call({"on_evnt": print})
        with pytest.raises(TypeError, match="unexpected keyword argument 'limit'; did you mean 'limits'"):
            call({"limit": Limits()})
        with pytest.raises(TypeError, match="unexpected keyword argument 'zzz'; there are breakers, clock, "):
            call({"zzz": 1})


def test_an_option_of_another_function_is_called_that() -> None:
    session: Any = {"session": None}
    each: Any = {"each": Limits()}
    with pytest.raises(TypeError, match="unexpected keyword argument 'session' here; run takes a session"):
        run_many(TEMPLATE, [Item("one")], model=model(), **session)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'each' here; .*run_many takes each"):
        run(TEMPLATE, model=model(), **each)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": None}, "model=None must be"),
        ({"model": lambda: "hi"}, "model=.* must be a text such as"),
        ({"limits": {"max_turns": 3}}, "limits={'max_turns': 3} must be Limits"),
        ({"instructions": 3}, "instructions=3 must be text"),
    ],
    ids=["no model", "a function as model", "a dict as limits", "a number as instructions"],
)
def test_an_agent_that_cannot_run_is_refused_when_it_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        agent(**wrong)


@pytest.mark.spec("FR-143")
@pytest.mark.parametrize("task", [None, "", "  \n", 3])
async def test_a_task_must_be_text_that_says_something(task: Any) -> None:
    asked = model()
    whole = agent(model=asked)
    attempts: list[Callable[[Any], object]] = [whole.run, whole.prompt, lambda each: whole.run_many(["fine", each])]
    for attempt in attempts:
        with pytest.raises(ConfigurationError, match=r"task=.* must be text that says what is to be done"):
            attempt(task)
    with pytest.raises(ConfigurationError, match="task="):
        await agent(model=asked).arun(task)
    with pytest.raises(ConfigurationError, match="tasks='one' must be a list of texts"):
        agent(model=asked).run_many("one")
    assert asked.requests == []


async def test_what_an_agent_says_itself_is_not_for_one_run_of_it() -> None:
    limits: Any = {"limits": Limits(max_turns=1)}
    other: Any = {"model": "local"}
    label: Any = {"label": str}
    with pytest.raises(ConfigurationError, match=r"limits= belongs to the Agent.*replace\(agent, limits=\.\.\.\)"):
        agent().run("Go.", **limits)
    with pytest.raises(ConfigurationError, match="model= belongs to the Agent"):
        await agent().arun("Go.", **other)
    with pytest.raises(ConfigurationError, match="an Agent gives label= itself"):
        agent().run_many(["Go."], **label)
    assert replace(agent(), limits=Limits(max_turns=1)).run("Go.", store=None).ok


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"limits": "1m"}, "limits='1m' must be Limits"),
        ({"pipeline": [1]}, r"pipeline=\[1\] must be a ShieldPipeline"),
        ({"circuit_breaker": 3}, "circuit_breaker=3 must be CircuitBreakers"),
        ({"on_event": 3}, "on_event=3 must be a function"),
        ({"ledger": 3}, "ledger=3 must be a path"),
        ({"clock": 3}, "clock=3 must be a Clock"),
    ],
)
def test_a_block_takes_the_same_kinds_of_things(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        contained(**wrong)
    contained(circuit_breaker=CircuitBreaker())


def test_a_value_is_shown_short() -> None:
    assert brief(3) == "3"
    assert brief("x" * 100) == f"'{'x' * 58}…"
    assert brief(list(range(100))) == "list(...)"
    assert str(renamed(LimitsError("deadline=3 is deadline=3"), "deadline", "timeout")) == "timeout=3 is deadline=3"


def test_a_name_without_a_rule_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        check_arguments({"nothing": 1})


@tool
def look(context: ToolContext) -> str:
    """Look at the list."""
    return context.filesystem.read_text("list")  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


@tool
def stumble(context: ToolContext) -> str:
    """Look at nothing."""
    nothing: Any = None if context.filesystem is None else {}
    return str(nothing.missing)


def told(name: str, **options: Any) -> str:
    """Return what the model is told about a call of a tool."""
    asked = ScriptedModel([Call(name), "done"])
    agent(model=asked, tools=(look, stumble)).run("Go.", store=None, **options)
    return str(list(asked.requests[1].transcript))


def test_a_tool_that_takes_files_for_granted_is_told_how_a_run_gets_some() -> None:
    assert "this run has no files: context.filesystem is None unless the run is given filesystem=" in told("look")
    assert "this run has no files" not in told("stumble")
    files = MemoryFilesystem()
    files.write_text("list", "milk")
    assert "milk" in told("look", filesystem=files)
    assert "this run has no files" not in told("look", filesystem=MemoryFilesystem())
