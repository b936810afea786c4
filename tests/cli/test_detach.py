"""`run --detach`, `resume --detach` and `cancel`, on real processes.

Tests and processes wait for each other with named pipes, with the record of the run, and with the end of a process.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest

from tests.cli.support import ROOT, CommandLine, Processes
from watchkeeper.core.clock import TestClock
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.core.usage import Usage
from watchkeeper.disk.liveness import ProcessMark, ignores, own_mark, send_signal
from watchkeeper.runtime.events import RunEnded, RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.store import StoredRun, cancel
from watchkeeper.store.items import Item
from watchkeeper.store.run_file import RunFile
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.upkeep import prune

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to know processes")

AT = datetime(2026, 1, 1, tzinfo=UTC)
AGENT = '''
import asyncio
import os

from watchkeeper import Agent, tool
from watchkeeper.models import Call, Say, ScriptedModel
from watchkeeper.shield import ShieldPipeline, ToolPermissionHook

print("the agent is loaded")


def said(pipe):
    os.write(os.open(pipe, os.O_WRONLY), b"!")


@tool
def wait_at_gate() -> str:
    """Wait on a thread."""
    said("ready")
    return os.read(os.open("gate", os.O_RDONLY), 2).decode()


@tool
async def wait_for_ever() -> str:
    """Wait on the loop."""
    said("ready")
    await asyncio.Event().wait()


@tool
def mail(to: str) -> str:
    """Mail a letter."""
    with open("sent", "a") as sent:
        sent.write(to)
    return "sent"


def asks_once(name, **arguments):
    def script(request):
        if request.tool_choice == "none" or any(message.role == "tool" for message in request.transcript):
            return Say("this is what I have")
        return Call(name, arguments)

    return ScriptedModel(script)


at_gate = Agent(asks_once("wait_at_gate"), "Wait.", str, tools=[wait_at_gate])
on_loop = Agent(asks_once("wait_for_ever"), "Wait.", str, tools=[wait_for_ever])
quick = Agent(ScriptedModel([Say("done")]), "Be quick.", str)
nobody = ToolPermissionHook(ask=["mail"], ask_with=lambda call: None)
parks = Agent(asks_once("mail", to="ann"), "Mail.", str, tools=[mail], shield=ShieldPipeline(tool_dispatch=nobody))
'''


def until_readable(number: int) -> None:
    """Wait until a pipe has something to read, or a process has ended, given its handle."""
    waiting = select.poll()
    waiting.register(number, select.POLLIN)
    assert waiting.poll(60_000), "nothing came"


@dataclass(frozen=True)
class Detached:
    """A detached run.

    Attributes:
        run_id: Its id.
        process: Id of its process.
        log: What it prints.
        folder: Where it was started.
        handle: The process, to wait for.
        ready: The pipe on which a tool says that it waits.
        gate: The pipe from which it reads then.
    """

    run_id: str
    process: int
    log: Path
    folder: Path
    handle: int
    ready: int
    gate: int

    def until_ready(self, times: int = 1) -> None:
        """Wait until the tool waits."""
        for _ in range(times):
            until_readable(self.ready)
            assert os.read(self.ready, 1) == b"!"

    def open_gate(self, times: int = 1) -> None:
        """Let the tool go on."""
        os.write(self.gate, b"go" * times)

    def kill(self) -> None:
        """Kill the process while its tool waits."""
        self.until_ready()
        os.kill(self.process, signal.SIGKILL)
        self.until_over()

    def until_over(self) -> StoredRun:
        """Wait for the end of the process; return the run."""
        until_readable(self.handle)
        return self.stored()

    def until_interrupted(self) -> None:
        """Wait until it is on record that the run was asked to end."""
        with RunStore(self.folder / "runs.db", read_only=True) as store:
            while not any(
                "interrupted" in str(event.body) for run in self.with_items(store) for event in store.events(run.run_id)
            ):
                assert store.find(self.run_id).running

    def with_items(self, store: RunStore) -> tuple[StoredRun, ...]:
        """Return the run and those below it."""
        return (store.find(self.run_id), *store.children(self.run_id))

    def stored(self) -> StoredRun:
        """Return the run."""
        with RunStore(self.folder / "runs.db", read_only=True) as store:
            return store.find(self.run_id)

    def reason(self) -> str:
        """Return why it ended early."""
        stop = self.stored().stop
        assert stop is not None
        return str(stop["reason"])


@pytest.fixture
def detach(
    processes: Processes, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Detached]]:
    """Return what starts a detached run; its process is killed at the end."""
    cli.write(AGENT, "waiting.py")
    monkeypatch.setenv("WATCHKEEPER_STORE", "runs.db")
    pipes = [cli.folder / name for name in ("ready", "gate")]
    for path in pipes:
        os.mkfifo(path)
    ready, gate = (os.open(path, os.O_RDWR) for path in pipes)
    handles: list[int] = []

    def start(*command: str) -> Detached:
        process = processes.start(cli.folder, *command, "--detach", "--json")
        said = process.said()
        assert process.returncode == 0, said
        facts = json.loads(said)
        handles.append(os.pidfd_open(facts["process"]))
        return Detached(facts["run_id"], facts["process"], Path(facts["log"]), cli.folder, handles[-1], ready, gate)

    yield start
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    for number in (*handles, ready, gate):
        os.close(number)


def run_of(name: str, *more: str) -> tuple[str, ...]:
    """Return the command that runs an agent."""
    return ("run", f"waiting.py:{name}", "-p", "task=x", *more)


@pytest.mark.spec("FR-192")
def test_a_detached_run_goes_on_in_a_session_of_its_own_and_is_landed_by_cancel(
    detach: Callable[..., Detached], cli: CommandLine
) -> None:
    run = detach(*run_of("at_gate"))
    run.until_ready()
    assert os.getsid(run.process) == run.process
    assert os.readlink(f"/proc/{run.process}/fd/0") == os.devnull
    assert stat.S_IMODE(run.log.stat().st_mode) == 0o600
    (row,) = json.loads(cli("runs", "--json").out)
    assert (row["running"], row["process"]) == (True, run.process)
    assert f"running, process {run.process}" in cli("runs").out
    said = cli("cancel", run.run_id[:8])
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"asked process {run.process} to land the run {run.run_id[:8]}; look: watchkeeper show")
    run.until_interrupted()
    run.open_gate()
    ended = run.until_over()
    assert (run.reason(), ended.process) == ("interrupted", None)
    log = run.log.read_text()
    assert log.startswith("the agent is loaded\n")
    assert "Partial result\n│ this is what I have\n" in log


def test_what_is_printed_names_the_run_its_process_its_log_and_the_next_commands(
    processes: Processes, cli: CommandLine
) -> None:
    cli.write(AGENT, "waiting.py")
    process = processes.start(cli.folder, *run_of("quick", "--store", "my runs"), "-d")
    said = process.said()
    with RunStore("my runs", read_only=True) as store:
        (run,) = store.runs()
    short = f"{run.run_id[:8]} --store 'my runs'"
    assert process.returncode == 0
    assert re.sub(r"process \d+", "process N", said).splitlines() == [
        f"detached  run {run.run_id}, process N",
        f"output    {cli.folder}/my runs/runs/{run.run_id}.log",
        f"look      watchkeeper show {short}, or watchkeeper runs --store 'my runs'",
        f"cancel    watchkeeper cancel {short}; a second time ends it at once",
        f"resume    watchkeeper resume {short}, if its process has died",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that takes nothing")
def test_a_run_that_has_begun_is_no_failure_if_that_cannot_be_printed(processes: Processes, cli: CommandLine) -> None:
    cli.write(AGENT, "waiting.py")
    reader, errors = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    process = processes.start(cli.folder, *run_of("quick", "--store", "runs"), "-d", stdout=full, stderr=errors)
    assert process.wait() == 0
    for number in (full, errors):
        os.close(number)
    with open(reader) as said, RunStore("runs", read_only=True) as store:
        assert f"detached: run {store.runs()[0].run_id}, process " in said.read()


def test_the_output_of_a_run_is_deleted_with_it(detach: Callable[..., Detached]) -> None:
    run = detach(*run_of("quick"))
    run.until_over()
    assert run.log.exists()
    assert prune(Path("runs.db"), datetime.now(UTC)).runs == 1
    assert os.listdir(run.log.parent) == []


def test_hard_ends_at_once_what_does_not_land(detach: Callable[..., Detached], cli: CommandLine) -> None:
    run = detach(*run_of("on_loop"))
    run.until_ready()
    said = cli("cancel", run.run_id, "--hard")
    assert said.code == 0
    assert said.out.startswith("The run was aborted: interrupted twice")
    run.until_over()
    assert run.reason() == "aborted"


def test_a_second_cancel_ends_it_hard(detach: Callable[..., Detached], cli: CommandLine) -> None:
    run = detach(*run_of("on_loop"))
    run.until_ready()
    said = cli("cancel", run.run_id, "--wait", "0.01")
    assert (said.code, said.out) == (1, f"It was asked to end. It is still running in process {run.process}.\n")
    run.until_interrupted()
    said = cli("cancel", run.run_id, "--wait", "60")
    assert (said.code, said.out[:39]) == (0, "The run was aborted: interrupted twice;")


def test_a_process_that_ignores_ctrl_c_gets_sigterm(detach: Callable[..., Detached], cli: CommandLine) -> None:
    """As one that a script has started with ``&``."""
    text = AGENT.replace('print("the agent is loaded")', "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    cli.write(text, "waiting.py")
    run = detach(*run_of("at_gate"))
    run.until_ready()
    assert ignores(run.process, signal.SIGINT)
    assert cli("cancel", run.run_id).code == 0
    run.until_interrupted()
    run.open_gate()
    run.until_over()
    assert run.reason() == "interrupted"


def test_a_run_over_many_lands_what_runs_and_begins_nothing_new(
    detach: Callable[..., Detached], cli: CommandLine
) -> None:
    (cli.folder / "items").write_text("a\nb\nc\n")
    run = detach("run", "waiting.py:at_gate", "--each", "lines:items", "--concurrency", "2")
    run.until_ready(2)
    with RunStore("runs.db", read_only=True) as store:
        item = store.children(run.run_id)[0].run_id
    refused = cli("cancel", item)
    assert (refused.code, refused.err) == (
        2,
        f"error: the run {item} is part of the run {run.run_id}; cancel that one\n",
    )
    assert cli("cancel", run.run_id).code == 0
    run.until_interrupted()
    run.open_gate(2)
    ended = run.until_over()
    with RunStore("runs.db", read_only=True) as store:
        stops = [each.stop and each.stop["reason"] for each in store.children(run.run_id)]
    assert (run.reason(), ended.items_done, stops) == ("interrupted", 0, ["interrupted", "interrupted"])


@pytest.mark.spec("FR-192")
def test_a_killed_process_is_resumed_detached_and_a_second_resume_is_refused(
    detach: Callable[..., Detached], cli: CommandLine
) -> None:
    died = detach(*run_of("at_gate"))
    died.kill()
    assert cli("runs", "--interrupted").out == f"{died.run_id}\n"
    (cli.folder / "waiting.py").write_text(
        AGENT.replace('Say("this', 'Call("wait_at_gate", {}) if LEFT.pop() else Say("this').replace(
            "@tool\ndef wait_at", "LEFT = [False, True]\n\n\n@tool\ndef wait_at"
        )
    )
    again = detach("resume", died.run_id[:8])
    again.until_ready()
    assert (again.run_id, again.log) == (died.run_id, died.log)
    assert cli("runs", "--interrupted").out == ""
    second = cli("resume", died.run_id, "--quiet")
    assert second.code == 2
    assert "is running: a living process works on it" in second.err
    again.open_gate()
    ended = again.until_over()
    assert (ended.stop, ended.turns) == (None, 3)
    assert again.log.read_text().count("the agent is loaded") == 2


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise ValueError('no')", 2, "error: waiting.py cannot be imported: ValueError: no\n"),
        (
            "import os\nos.kill(os.getpid(), 9)",
            137,
            "the process of the run ended before the run began (exit code 137)",
        ),
    ],
    ids=["import", "kill"],
)
def test_what_fails_early_is_told_and_leaves_nothing_behind(
    processes: Processes, cli: CommandLine, text: str, code: int, said: str
) -> None:
    cli.write(text, "waiting.py")
    before = {*os.listdir(cli.folder)}
    process = processes.start(cli.folder, *run_of("quick", "--store", "new"), "--detach")
    assert said in process.said()
    assert process.returncode == code
    assert {*os.listdir(cli.folder)} - before <= {"__pycache__"}


def test_a_command_that_is_ended_while_it_waits_ends_the_process_too(processes: Processes, cli: CommandLine) -> None:
    os.mkfifo(cli.folder / "ready")
    cli.write(
        'import os, threading\nopen("ready", "w").write(str(os.getpid()))\nthreading.Event().wait()', "waiting.py"
    )
    process = processes.start(cli.folder, *run_of("quick", "--store", "new"), "--detach")
    handle = os.pidfd_open(int((cli.folder / "ready").read_text()))
    process.send_signal(signal.SIGTERM)
    until_readable(handle)
    os.close(handle)
    process.said()
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("option", "said"),
    [(("--store", "none"), "--detach needs a store"), (("--store", "runs.db", "--jsonl"), "--jsonl prints while")],
)
def test_what_cannot_be_detached_is_refused(cli: CommandLine, option: tuple[str, ...], said: str) -> None:
    assert said in cli.refused(*option, "--detach")


# --- runs that cannot be asked ----------------------------------------------------------------------------------------


def begun(store: RunStore) -> str:
    """Begin a run in this process; return its id."""
    run_id = uuid4()
    start = RunStarted(root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS), "n/k", "m", "none", None, AT)
    store.append([Item(run_id, Envelope(1, AT, start))])
    return str(run_id)


class Impatient(TestClock):
    """A clock on which nobody waits; at the 20th look something happens."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.looks = 0
        self._then = then

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Go on at once."""
        self.looks += 1
        if self.looks == 20:
            self._then()


def test_whoever_waits_for_the_end_of_a_run_reads_it_only_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run takes a while to read, and it is looked ten times a second."""
    asked = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        with RunStore(tmp_path / "runs.db") as store:
            store.heeds_signals = True
            run_id = UUID(begun(store))
            end = RunEnded(run_id, None, "out", None, "said", "unchecked", Usage(), 1.0, None, AT)
            clock = Impatient(lambda: store.append([Item(run_id, Envelope(2, AT, end))]))
            find = Mock(wraps=store.find)
            monkeypatch.setattr(store, "find", find)
            assert cancel(store, str(run_id), wait=60, clock=clock).ended_at is not None
        assert (asked, clock.looks, find.call_count) == ([signal.SIGINT], 20, 2)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.spec("FR-193")
def test_a_run_inside_a_program_of_its_own_is_not_signalled(cli: CommandLine) -> None:
    with RunStore("runs.db") as store:
        said = cli("cancel", begun(store), "--store", "runs.db")
    assert said.code == 2
    assert f"inside a program of its own, process {os.getpid()}, which is not signalled" in said.err
    assert f"kill -INT {os.getpid()}" in said.err


@pytest.mark.spec("FR-193")
@pytest.mark.parametrize(
    ("other", "state", "why"),
    [
        ({"started": "1"}, "running", "a process is just taking the run"),
        (
            {"machine": "another"},
            f"running, process {os.getpid()}",
            f"Where it works, this lands the run: kill -INT {os.getpid()}",
        ),
    ],
    ids=["started at another time", "in another container"],
)
def test_a_process_that_only_has_the_id_of_the_owner_is_not_signalled(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], state: str, why: str
) -> None:
    """This process has the lock and the id."""
    sent = Mock()
    monkeypatch.setattr(os, "kill", sent)
    monkeypatch.setattr(signal, "pidfd_send_signal", sent)
    with RunStore("runs.db") as store:
        path = store.path / "runs" / f"{begun(store)}.jsonl"
    line = path.read_bytes().splitlines(keepends=True)[1]
    path.unlink()
    own = own_mark()
    mark = ProcessMark(own.process, other.get("started", own.started), other.get("machine", own.machine))
    file = RunFile(path, mark, AT.isoformat(), heeds=True)
    file.write(line)
    said = cli("cancel", path.stem, "--store", "runs.db")
    row = cli("runs", "--store", "runs.db").out.splitlines()[1]
    assert (said.code, row.endswith(f"  {state}")) == (2, True)
    file.close()
    assert why in said.err
    sent.assert_not_called()


@pytest.mark.parametrize("with_handle", [True, False])
def test_a_signal_is_for_the_process_of_the_mark_alone(monkeypatch: pytest.MonkeyPatch, with_handle: bool) -> None:
    """Also where the system has no handles for processes."""
    if not with_handle:
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=OSError("no such call")))
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    try:
        mark = own_mark()
        for started, machine in (("1", mark.machine), ("", mark.machine), (mark.started, "another")):
            with pytest.raises(ProcessLookupError):
                send_signal(ProcessMark(mark.process, started, machine), signal.SIGUSR1)
        assert got == []
        send_signal(mark, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == [signal.SIGUSR1]


@pytest.mark.parametrize("process", [0, -1, -5])
def test_a_mark_that_means_a_group_or_everybody_is_nobodys(monkeypatch: pytest.MonkeyPatch, process: int) -> None:
    """A record can be edited; kill(2) takes such numbers for all processes of a group, or of the user."""
    kill = Mock()
    monkeypatch.setattr(os, "kill", kill)
    own = own_mark()
    with pytest.raises(ProcessLookupError):
        send_signal(ProcessMark(process, own.started, own.machine), signal.SIGUSR1)
    assert not kill.called


def test_what_is_over_unknown_or_ambiguous_is_one_line(cli: CommandLine) -> None:
    with RunStore("runs.db") as store:
        first = Counter(begun(store)[0] for _ in range(17))
    (shared, _), *_ = first.most_common()
    run = json.loads(cli.run("--store", "runs.db", "--json", "-p", "folder=x").out)["run_id"]
    for wanted, part in ((run, "is over: Done"), ("xyz", "no run whose id"), (shared, "more than one run")):
        said = cli("cancel", wanted, "--store", "runs.db")
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert part in " ".join(said.err.split())


# --- runs whose process has died --------------------------------------------------------------------------------------


def test_a_run_whose_process_was_killed_is_ended_on_record_and_resumed_only_by_hand(
    detach: Callable[..., Detached], cli: CommandLine
) -> None:
    died = detach(*run_of("at_gate"))
    died.kill()
    assert cli("runs", "--interrupted").out == f"{died.run_id}\n"
    said = cli("cancel", died.run_id[:8], "--by", "cleo")
    assert (said.code, said.err) == (0, "")
    ended, under_way = said.out.splitlines()
    assert ended.startswith("The run was cancelled by cleo after its process had died; it used ")
    assert under_way.startswith("? under way: tool wait_at_gate(), begun ")
    assert cli("runs", "--interrupted").out == ""
    (row,) = json.loads(cli("runs", "--json").out)
    assert (row["stop"]["reason"], row["usage"]["tool_calls"]) == ("cancelled", 1)
    assert "is over: The run was cancelled by cleo" in cli("cancel", died.run_id).err
    resumed = json.loads(cli("resume", died.run_id, "--json").out)
    assert (resumed["ok"], resumed["usage"]["tool_calls"]) == (True, 1)


# --- parked runs ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("FR-194")
def test_a_parked_run_is_ended_on_record_and_its_calls_are_denied(cli: CommandLine) -> None:
    cli.write(AGENT, "waiting.py")
    parked = json.loads(cli(*run_of("parks", "--on-ask", "park", "--store", "runs.db", "--json")).out)
    where = ("--store", "runs.db")
    assert "mail" in cli("pending", *where).out
    said = cli("cancel", parked["run_id"], "--by", "cleo", *where)
    assert (said.code, said.out[:57]) == (0, "The run was cancelled by cleo while it was parked; it use")
    assert cli("pending", *where).out == "nothing waits for an answer in runs.db\n"
    assert "denied already, by cleo" in cli("approve", parked["run_id"], *where).err
    assert "is over: The run was cancelled" in cli("cancel", parked["run_id"], *where).err
    (row,) = json.loads(cli("runs", "--json", *where).out)
    assert (row["stop"]["reason"], row["usage"]) == ("cancelled", parked["usage"])
    resumed = json.loads(cli("resume", parked["run_id"], "--json", *where).out)
    assert (resumed["output"], resumed["denied"]) == ("this is what I have", 1)
    assert not (cli.folder / "sent").exists()


def test_parked_items_of_a_run_over_many_are_ended_with_it(cli: CommandLine) -> None:
    cli.write(AGENT, "waiting.py")
    (cli.folder / "items").write_text("a\nb\n")
    each = ("--each", "lines:items", "--on-ask", "park", "--store", "runs.db", "--json")
    parked = json.loads(cli("run", "waiting.py:parks", *each).out)
    with RunStore("runs.db") as store:
        run = cancel(store, parked["run_id"], by="cleo")
        items = [child.stop and child.stop["reason"] for child in store.children(run.run_id)]
    assert (run.stop and run.stop["reason"], items) == ("cancelled", ["cancelled", "cancelled"])
    assert cli("pending", "--store", "runs.db").out.startswith("nothing waits")


# --- the unit of systemd in the docs ----------------------------------------------------------------------------------


def unit() -> configparser.ConfigParser:
    """Return the unit that the docs show."""
    page = (ROOT / "docs" / "recovery.md").read_text("utf-8")
    (text,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


def test_the_unit_lands_a_run_that_is_stopped_and_starts_again_only_after_a_crash(tmp_path: Path) -> None:
    parsed = unit()
    service = dict(parsed["Service"])
    assert set(parsed.sections()) == {"Unit", "Service"}
    assert (service["Type"], service["KillSignal"], service["KillMode"]) == ("exec", "SIGINT", "mixed")
    assert service["Restart"] == "on-abnormal"
    assert service["SuccessExitStatus"].split() == ["4", "130"]
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        path = tmp_path / "nightly.service"
        with path.open("w") as file:
            parsed.set("Service", "ExecStart", "/bin/true")
            parsed.remove_option("Service", "User")
            parsed.set("Service", "WorkingDirectory", str(tmp_path))
            parsed.write(file, space_around_delimiters=False)
        done = subprocess.run([analyze, "verify", str(path)], capture_output=True, text=True, check=False)
        assert "nknown" not in done.stderr


def test_the_script_of_the_unit_goes_on_with_a_dead_run_and_begins_one_otherwise(
    detach: Callable[..., Detached], cli: CommandLine
) -> None:
    page = (ROOT / "docs" / "recovery.md").read_text("utf-8")
    (script,) = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", page, re.DOTALL)
    script = script.replace("watchkeeper", f"{sys.executable} -m watchkeeper").replace(
        "triage.py:agent --each 'inbox/*.txt'", "waiting.py:quick -p task=x"
    )
    (cli.folder / "nightly.sh").write_text(script.replace("nightly.store", "runs.db"))
    died = detach(*run_of("at_gate"))
    died.kill()
    for _ in range(2):
        done: Any = subprocess.run(["sh", "nightly.sh"], cwd=cli.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with RunStore("runs.db", read_only=True) as store:
        new, old = store.runs()
    assert (old.run_id, old.stop, new.prompt) == (died.run_id, None, old.prompt)
