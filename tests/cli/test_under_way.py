"""A call that was under way when its run's process died, or when the run was given up, is named, with its outcome."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.app.written import Written, written
from tests.cli.support import CommandLine, rewritten
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.cli.stored.under_way import BEGUN, CallsUnderWay
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import ModelPrice
from watchkeeper.runtime.events import RunResumed
from watchkeeper.store.cancelling import cancel
from watchkeeper.store.plain_json import untyped
from watchkeeper.store.run_store import RunStore, StoredEvent
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.filesystems import HostFilesystem
from watchkeeper.tools.tool import tool

LIMITS = Limits(max_cost_usd=9)
PRICES = {"scripted": ModelPrice.per_million(10, 30)}
NAMED = re.compile(r"^ *\? under way: (.*)$", re.MULTILINE)
SENDS = re.compile(r"tool send_mail\(to=\"(\w+)\", urgent=true\), begun \d\d:\d\d:\d\d, its outcome is unknown")
ASKS = re.compile(r"model scripted:scripted, begun \d\d:\d\d:\d\d; its worst case counts: [\d,]+ tokens, \$0\.\d+")


@dataclass(frozen=True)
class Receipt:
    """What the tool returns: a type of the agent's own."""

    number: int


@tool
def send_mail(to: str, urgent: bool) -> Receipt:
    """Send a mail."""
    return Receipt(len(to))


def keep(text: str, *, context: ToolContext) -> Receipt:
    """Write a file."""
    assert context.filesystem is not None
    context.filesystem.write_text("kept.txt", text)
    return Receipt(1)


def step(request: ModelRequest) -> Any:
    done = sum(isinstance(message, ToolMessage) for message in request.transcript)
    mails = Calls(tuple(Call("send_mail", {"to": name, "urgent": True}) for name in ("ann", "bob")))
    return [mails, None, Call("keep", {"text": "x"}), Say("All is sent.")][done]


def agent(*, idempotent: bool = False) -> Agent[str]:
    tools = [send_mail, tool(idempotent=idempotent)(keep)]
    return Agent(ScriptedModel(step), "Send.", str, tools=tools, limits=LIMITS)


def lines_of(folder: Path, worker: Agent[str]) -> Written:
    """Return the lines of a run to its end."""
    with written() as lines:
        result = worker.run("go", store=folder / "store", filesystem=HostFilesystem(folder), prices=PRICES)
    assert result.ok
    return lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The lines of a run in which mails are sent, and a file is written."""
    return lines_of(tmp_path_factory.mktemp("whole"), agent())


def only(store: Path) -> str:
    """Return the id of the one run of a store."""
    with RunStore(store, read_only=True) as opened:
        (row,) = opened.runs()
    return row.run_id


def foreign(store: Path) -> Path:
    """Make the types of the agent unknown in a store, as they are to a command that does not import its code."""
    for file in (store / "runs").glob("*.jsonl"):
        *lines, half = file.read_bytes().split(b"\n")
        own = f"{__name__}:Receipt"
        other = [rewritten(line, own, "nowhere:Receipt") if own.encode() in line else line + b"\n" for line in lines]
        file.write_bytes(b"".join(other) + half)
    return store


def dead(run: Written, tmp_path: Path) -> Iterator[tuple[Path, int, dict[str, Any] | None]]:
    """Yield stores whose run died behind each of its lines, with the call that had begun last if it has no end."""
    for count in range(run.place("run_opened") + 1, len(run.lines)):
        begun = [json.loads(line)["begun"] for _, line in run.lines[:count] if line.startswith(b'{"begun":')]
        ended = b"".join(line for _, line in run.lines[:count] if line.startswith(b'{"seq":'))
        left = [call for call in begun if call["node_id"].encode() not in ended]
        assert len(left) <= 1
        yield foreign(run.cut(count, tmp_path / "store")), count, left[0] if left else None


def test_show_tail_and_cancel_name_what_was_under_way_wherever_the_process_died(
    run: Written, cli: CommandLine, tmp_path: Path
) -> None:
    kinds = set[str]()
    for store, count, left in dead(run, tmp_path):
        run_id = only(store)
        shown = NAMED.findall(cli("show", run_id, "--store", store).out)
        assert NAMED.findall(cli("tail", run_id, "-n", "1", "--store", store).out) == shown, count
        cancelled = cli("cancel", run_id, "--store", store)
        assert (cancelled.code, cancelled.err) == (0, "")
        assert cancelled.out.startswith("The run was cancelled by ")
        assert NAMED.findall(cancelled.out) == shown, count
        assert NAMED.findall(cli("show", run_id, "--store", store).out) == shown, count
        if left is None:
            assert shown == [], count
            continue
        kinds.add(left["name"])
        if left["name"] == "keep" and b'"files"' in run.lines[count - 1][1]:
            assert shown[0].endswith("; it had succeeded, and resume finishes writing its files")
        elif left["name"] == "keep":
            assert re.fullmatch(r'tool keep\(text="x"\), begun [\d:]+, its outcome is unknown', shown[0]), count
        else:
            assert (SENDS if left["kind"] == "tool" else ASKS).fullmatch(shown[0]), (count, shown)
    assert kinds == {"send_mail", "keep", "scripted:scripted"}


def test_what_is_named_is_what_resume_takes_for_unknown(run: Written, tmp_path: Path) -> None:
    for given_up in (False, True):
        for place, (_, line) in enumerate(run.lines):
            if b'"begun":{"kind":"tool","name":"send_mail"' not in line:
                continue
            store = run.cut(place + 1, tmp_path / "store")
            run_id = only(store)
            if given_up:
                with RunStore(store) as opened:
                    cancel(opened, run_id, by="cleo")
            result = agent().resume(run_id, store=store, filesystem=HostFilesystem(tmp_path), prices=PRICES)
            (resumed,) = (each.event for each in result.session.log if isinstance(each.event, RunResumed))
            assert resumed.unknown == (json.loads(line)["begun"]["call_id"],)


def test_calls_of_items_are_named_with_the_item(cli: CommandLine, tmp_path: Path) -> None:
    worker = Agent(
        ScriptedModel([Call("send_mail", {"to": "ann", "urgent": True})] * 2), "Send.", str, tools=[send_mail]
    )
    with written() as lines:
        worker.run_many(["a.txt", "b.txt"], store=tmp_path / "whole", concurrency=1)
    place = next(at for at, (_, line) in enumerate(lines.lines) if b'"begun":{"kind":"tool"' in line)
    store = foreign(lines.cut(place + 1, tmp_path / "store"))
    named = r'a\.txt: tool send_mail\(to="ann", urgent=true\), begun [\d:]+, its outcome is unknown'
    for command in ("show", "tail", "cancel", "show", "tail"):
        (found,) = NAMED.findall(cli(command, only(store), "--store", store).out)
        assert re.fullmatch(named, found), (command, found)


def test_a_run_that_goes_on_names_what_is_under_way_and_says_nothing_of_its_outcome(
    cli: CommandLine, tmp_path: Path
) -> None:
    said: list[str] = []

    @tool
    def look_in(number: int) -> str:
        """Look how the run stands."""
        store = tmp_path / "store"
        shown = [cli(command, only(store), "--store", store) for command in ("show", "tail")]
        said.extend(each.out for each in shown)
        return "seen"

    model = ScriptedModel([Call("look_in", {"number": 7}), Say("done")])
    Agent(model, "Look.", str, tools=[look_in]).run("go", store=tmp_path / "store")
    named = [NAMED.findall(text) for text in said]
    assert [len(each) for each in named] == [1, 1]
    assert re.fullmatch(r"tool look_in\(number=7\), begun \d\d:\d\d:\d\d", named[0][0])


def test_arguments_are_shown_on_one_line_and_nothing_is_said_where_an_event_cannot_be_read(
    run: Written, cli: CommandLine, tmp_path: Path
) -> None:
    place = next(at for at, (_, line) in enumerate(run.lines) if b'"begun":{"kind":"tool"' in line)
    hostile = json.dumps({"to": "a\x1b[2J\n? under way: " + "x" * 500})
    with written() as lines:
        model = ScriptedModel([Call("send_mail", json.loads(hostile) | {"urgent": True}), Say("done")])
        Agent(model, "Send.", str, tools=[send_mail]).run("go", store=tmp_path / "first")
    at = next(at for at, (_, line) in enumerate(lines.lines) if b'"begun":{"kind":"tool"' in line)
    second = lines.cut(at + 1, tmp_path / "second")
    said = cli("show", only(second), "--store", second).out
    (named,) = NAMED.findall(said)
    assert "\x1b" not in said
    assert len(named) < 150
    store = run.cut(place + 1, tmp_path / "third")
    (file,) = (store / "runs").glob("*.jsonl")
    whole = file.read_bytes().splitlines(keepends=True)[:-1]
    odd = [rewritten(line, '"turn":', '"round":') if b'"tag":"model_replied"' in line else line for line in whole]
    file.write_bytes(b"".join(odd))
    assert NAMED.findall(cli("show", only(store), "--store", store).out) == []


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_run_that_was_given_up_goes_on_with_what_it_would_have_had(tmp_path: Path, idempotent: bool) -> None:
    run = lines_of(tmp_path, agent(idempotent=idempotent))
    for place in range(run.place("run_opened") + 1, len(run.lines)):
        results: list[Any] = []
        for given_up in (False, True):
            store = run.cut(place, tmp_path / f"store-{given_up}")
            if given_up:
                with RunStore(store) as opened:
                    cancel(opened, only(store), by="cleo")
            folder = tmp_path / f"files-{place}-{given_up}"
            folder.mkdir()
            files = HostFilesystem(folder)
            results.append(
                agent(idempotent=idempotent).resume(only(store), store=store, filesystem=files, prices=PRICES)
            )
        direct, later = results
        assert (later.usage, later.turns, later.output) == (direct.usage, direct.turns, direct.output), place


@pytest.mark.parametrize("node", [{}, [], {"$type": "nope"}])
def test_a_call_whose_node_is_of_another_kind_is_taken_in(node: object) -> None:
    calls = CallsUnderWay()
    for tag in (BEGUN, "tool_invoked"):
        calls.add(StoredEvent(1, datetime(2026, 1, 1, tzinfo=UTC), tag, {"node_id": node}))


@pytest.mark.parametrize("text", [1e308, "x", None])
def test_a_stored_text_that_cannot_be_decoded_is_shown_as_it_stands(text: object) -> None:
    assert untyped({"$type": "str", "utf16": text}) == str(text)
