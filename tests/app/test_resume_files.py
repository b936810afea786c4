"""Resuming a run whose tools change files: nothing is lost, nothing is half written, and what is not ours stays."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.kit import events
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.secrets import Secrets
from watchkeeper.runtime import file_record
from watchkeeper.runtime.events import RunOpened
from watchkeeper.runtime.file_record import FilesNotOnRecord
from watchkeeper.runtime.result import RunResult
from watchkeeper.session.log import event
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.tool_permission import ToolPermissionHook
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.filesystems import HostFilesystem, MemoryFilesystem, OverlayFilesystem
from watchkeeper.tools.tool import tool

ROUNDS: Final = 3
START: Final = {"old.txt": "old", "log.txt": "begun\n", "gone/0": "x", "gone/1": "x", "gone/2": "x", "kept.txt": "kept"}

Files = dict[str, bytes]


@event("tests.files_written")
class Noted(msgspec.Struct, frozen=True):
    """What a tool wrote to the session."""

    number: int


def agent(ran: list[int] | None = None, **more: Any) -> Agent[str]:
    """Return an agent whose tool makes, changes, extends, replaces and removes files in every round."""

    @tool
    def work(number: int, *, context: ToolContext) -> str:
        """Work."""
        files = context.filesystem
        assert files is not None
        if ran is not None:
            ran.append(number)
        files.write_bytes(f"new/{number}.bin", bytes([number, 255, 0]))
        files.write_text("old.txt", f"old {number}")
        files.append_text("log.txt", f"line {number} ü\n")
        files.delete(f"gone/{number}")
        files.make_dirs(f"empty/{number}")
        context.session.dispatch(Noted(number))
        return f"worked {number}"

    def step(request: ModelRequest) -> Say | Call:
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        return Say("finished") if done == ROUNDS else Call("work", {"number": done})

    return Agent(ScriptedModel(step), "Work.", str, tools=[work], limits=Limits(max_turns=20), **more)


def content(files: Filesystem) -> Files:
    """Return every file, and every folder with a slash at its end."""
    paths = file_record.everything(files)
    return {path: files.read_bytes(path) for path in paths if files.is_file(path)} | {
        f"{path}/": b"" for path in paths if not files.is_file(path)
    }


def host(folder: Path) -> Filesystem:
    """Return a folder with the files of the start, as far as it is new."""
    if not folder.exists():
        folder.mkdir()
        filled(HostFilesystem(folder))
    return HostFilesystem(folder)


def filled(files: Filesystem) -> Filesystem:
    """Write the files of the start."""
    for path, text in START.items():
        files.write_text(path, text)
    return files


def memory(_: Path) -> Filesystem:
    """Return the files of the start, in memory."""
    return filled(MemoryFilesystem())


def overlay(folder: Path) -> Filesystem:
    """Return an overlay over a folder with the files of the start."""
    return OverlayFilesystem(host(folder))


MAKERS: Final[dict[str, Callable[[Path], Filesystem]]] = {"host": host, "memory": memory, "overlay": overlay}


def lines_of(store: Path) -> tuple[str, list[bytes]]:
    """Return the id and the lines of the only run of a store."""
    (file,) = (store / "runs").iterdir()
    return file.stem, file.read_bytes().splitlines(keepends=True)


def died_after(run: tuple[str, list[bytes]], count: int, store: Path) -> str:
    """Write a store whose run has so many lines."""
    RunStore(store).close()
    (store / "runs" / f"{run[0]}.jsonl").write_bytes(b"".join(run[1][:count]))
    return run[0]


def beginning(lines: list[bytes]) -> int:
    """Return how many lines there are before the run can go on."""
    return next(place for place, line in enumerate(lines) if b'"tag":"run_opened"' in line) + 1


def put(files: Filesystem, wanted: Files) -> None:
    """Make a filesystem hold exactly this."""
    for path in reversed(file_record.everything(files)):
        files.delete(path)
    for path, data in sorted(wanted.items()):
        if path.endswith("/"):
            files.make_dirs(path)
        else:
            files.write_bytes(path, data)


class Watched(HostFilesystem):
    """Looks at the run's record whenever a file is about to change, and keeps what stood in the folder then."""

    def __init__(self, root: Path, store: Path) -> None:
        super().__init__(root)
        self.store = store
        self.plain = HostFilesystem(root)
        self.states: list[tuple[int, Files]] = []

    def _put(self, entry: Any) -> None:
        self._look()
        if entry.kind == "file":
            self.plain.write_bytes(entry.path, entry.data)
        else:
            (self.plain.make_dirs if entry.kind else self.plain.delete)(entry.path)

    def _append(self, path: str, data: bytes) -> None:
        self._look()
        self.plain.append_text(path, data.decode())

    def _look(self) -> None:
        if (self.store / "runs").exists():
            self.states.append((len(lines_of(self.store)[1]), content(HostFilesystem(self.root))))


def test_a_kill_between_any_two_files_of_a_commit_loses_nothing(tmp_path: Path) -> None:
    """The state of folder and record just before every single write is what a kill there leaves."""
    watched = Watched(host(tmp_path / "files").root, tmp_path / "store")  # type: ignore[attr-defined]
    result = agent(filesystem=watched).run("go", store=tmp_path / "store")
    assert result.ok
    end, run = content(watched), lines_of(tmp_path / "store")
    assert len(watched.states) == ROUNDS * 5 + 2  # the folders `new` and `empty` are made once
    for place, (count, state) in enumerate(watched.states):
        folder, store = tmp_path / f"files{place}", tmp_path / f"store{place}"
        folder.mkdir()
        files, ran = Moved(folder, watched.root), list[int]()
        put(files, state)
        again = agent(ran, filesystem=files).resume(died_after(run, count, store), store=store)
        assert again.ok, again.sentence()
        assert content(files) == end, (place, count)
        assert ran == list(range(ROUNDS - len(ran), ROUNDS)), "the tool ran again although it had succeeded"
        check_calls(again, place)


class Moved(HostFilesystem):
    """A copy of the folder of another run."""

    def __init__(self, folder: Path, _: Path) -> None:
        super().__init__(folder)


Moved.__name__ = Watched.__name__  # a run goes on with the type of filesystem that it had


def check_calls(result: RunResult[str], place: object) -> None:
    """Check that every call has one result, a good one, and that the session has what the tool wrote, once."""
    invoked = events(result, ToolInvoked)
    assert [each.outcome for each in invoked] == ["ok"] * ROUNDS, place
    assert [each.number for each in events(result, Noted)] == list(range(ROUNDS)), place
    assert result.usage.tool_calls == ROUNDS, place


@pytest.mark.parametrize("kind", MAKERS)
def test_files_are_as_they_were_after_a_death_behind_every_line(kind: str, tmp_path: Path) -> None:
    make = MAKERS[kind]
    files = make(tmp_path / "files")
    result = agent(filesystem=files).run("go", store=tmp_path / "store")
    assert result.ok
    end, run = content(files), lines_of(tmp_path / "store")
    done = (tmp_path / "files").exists() and content(HostFilesystem(tmp_path / "files"))
    ending = len(run[1])
    for count in range(beginning(run[1]), ending):
        store, folder, ran = tmp_path / f"store{count}", tmp_path / f"files{count}", list[int]()
        again = make(folder)
        if kind == "host":
            put(again, _written_by(run[1][:count], content(again)))
        resumed = agent(ran, filesystem=again).resume(died_after(run, count, store), store=store)
        assert resumed.ok, (count, resumed.sentence())
        unknown = [each for each in events(resumed, ToolInvoked) if each.outcome == "unknown"]
        if unknown:  # the tool had begun, and nothing of what it did is on record
            assert b'"begun"' in run[1][count - 1], count
            continue
        assert content(again) == end, count
        check_calls(resumed, count)
        if kind == "overlay":
            assert content(HostFilesystem(folder)) == done, "the folder below was written to"


def _written_by(lines: list[bytes], state: Files) -> Files:
    """Return what stands in the folder if a commit is made right after the line that announces it."""
    files = filled(MemoryFilesystem())
    put(files, state)
    for line in lines:
        if line.startswith(b'{"files":'):
            changes = msgspec.json.decode(line, type=dict[str, msgspec.Raw])["files"]
            decoded = msgspec.json.decode(changes, type=file_record.FilesChanged)
            assert file_record.finish(files, decoded) == ""
    return content(files)


def interrupted(tmp_path: Path, files: Filesystem) -> str:
    """Run, then cut the record behind the changes of the first call; return the id of the run."""
    agent(filesystem=files).run("go", store=tmp_path / "whole")
    run = lines_of(tmp_path / "whole")
    places = [place for place, line in enumerate(run[1]) if line.startswith(b'{"files":')]
    return died_after(run, places[1] + 1, tmp_path / "store")


def test_every_mixture_of_written_and_unwritten_files_is_finished(tmp_path: Path) -> None:
    first = host(tmp_path / "whole_files")
    run_id = interrupted(tmp_path, first)
    before = content(filled(MemoryFilesystem()))
    with RunStore(tmp_path / "store", read_only=True) as store:
        *_, changes = store.files(run_id)
    after = dict(before)
    for change in changes.paths:
        files = filled(MemoryFilesystem())
        put(files, after)
        assert file_record.apply(files, [change]) == {}
        after = content(files)
    for chosen in itertools.product((False, True), repeat=len(changes.paths)):
        files = filled(MemoryFilesystem())
        done = [change for change, is_done in zip(changes.paths, chosen, strict=True) if is_done]
        assert file_record.apply(files, done) == {}
        assert file_record.finish(files, changes) == ""
        assert content(files) == after


def test_what_somebody_else_has_changed_stays_and_the_agent_is_told(tmp_path: Path) -> None:
    run_id = interrupted(tmp_path, host(tmp_path / "whole_files"))
    files = host(tmp_path / "files")
    files.write_text("old.txt", "theirs")
    files.write_text("log.txt", "begun\nthey wrote")
    result = agent(filesystem=files).resume(run_id, store=tmp_path / "store")
    first = events(result, ToolInvoked)[0]
    assert first.outcome == "crashed"
    assert "old.txt: somebody else has changed it since, and it stays as it is" in first.rendered_output
    assert "log.txt: somebody else" in first.rendered_output
    assert "As it should be: empty, empty/0, gone/0, new, new/0.bin" in first.rendered_output
    assert [each.number for each in events(result, Noted)] == [1, 2]
    assert files.read_text("old.txt") == "old 2"  # by the later calls, which saw what others had written
    assert files.read_text("log.txt").startswith("begun\nthey wroteline 1")
    assert files.read_bytes("new/0.bin") == bytes([0, 255, 0])


def test_half_an_addition_is_completed(tmp_path: Path) -> None:
    run_id = interrupted(tmp_path, host(tmp_path / "whole_files"))
    files = host(tmp_path / "files")
    files.write_bytes("log.txt", b"begun\n" + "line 0 ü\n".encode()[:8])
    result = agent(filesystem=files).resume(run_id, store=tmp_path / "store")
    check_calls(result, "half")
    assert files.read_text("log.txt") == "begun\nline 0 ü\nline 1 ü\nline 2 ü\n"


def test_a_commit_that_fails_midway_is_taken_back_and_not_finished_later(tmp_path: Path) -> None:
    class Full(HostFilesystem):
        def write_bytes(self, path: str, data: bytes) -> None:
            if path == "old.txt" and data == b"old 1":
                raise OSError(28, "No space left on device")
            super().write_bytes(path, data)

    files = Full(host(tmp_path / "files").root)  # type: ignore[attr-defined]
    result = agent(filesystem=files).run("go", store=tmp_path / "store")
    assert [each.outcome for each in events(result, ToolInvoked)] == ["ok", "crashed", "ok"]
    assert not files.exists("new/1.bin")
    run = lines_of(tmp_path / "store")
    crashed = next(place for place, line in enumerate(run[1]) if b'"outcome":"crashed"' in line)
    run_id = died_after(run, crashed + 1, tmp_path / "cut")
    before = content(files)
    ran = list[int]()
    again = agent(ran, filesystem=files).resume(run_id, store=tmp_path / "cut")
    assert ran == [2]
    assert [each.outcome for each in events(again, ToolInvoked)] == ["ok", "crashed", "crashed"]  # gone/2 is gone
    assert content(files) == before
    assert [each.number for each in events(again, Noted)] == [0]


def test_a_commit_that_cannot_be_finished_either_is_told(tmp_path: Path) -> None:
    class Full(HostFilesystem):
        def _append(self, path: str, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    run_id = interrupted(tmp_path, Full(host(tmp_path / "whole_files").root))  # type: ignore[attr-defined]
    files = Full(host(tmp_path / "files").root)  # type: ignore[attr-defined]
    result = agent(filesystem=files).resume(run_id, store=tmp_path / "store")
    first = events(result, ToolInvoked)[0]
    assert first.outcome == "crashed"
    assert "log.txt: OSError: [Errno 28] No space left on device. As it should be" in first.rendered_output
    assert files.read_text("log.txt") == "begun\n"


@pytest.mark.parametrize(
    "kind", ["memory", pytest.param("host", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux names"))]
)
def test_a_file_whose_name_is_no_utf_8_is_changed_and_rebuilt_like_any_other(kind: str, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / "work").mkdir()

    def filesystem() -> Filesystem:
        return MemoryFilesystem() if kind == "memory" else HostFilesystem(tmp_path / "work")

    @tool
    def put(*, context: ToolContext) -> str:
        """Write the file."""
        files = context.filesystem
        assert files is not None
        files.write_text(name, "black")
        return "written"

    script: list[Any] = [Call("put"), ValueError("down"), "done"]
    barista = Agent(ScriptedModel(script), "Work.", str, tools=[put])
    options: Any = {"store": tmp_path / "runs", "clock": TestClock()}
    first = barista.run("go", filesystem=filesystem(), **options)
    assert first.stop is not None
    assert first.stop.source == "provider"
    files = filesystem()
    assert barista.resume(str(first.run_id), filesystem=files, **options).output == "done"
    assert files.read_text(name) == "black"


@pytest.mark.parametrize("kind", ["host", "memory"])
def test_contents_with_a_credential_are_not_stored(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Secrets()
    held.add("line 0 ü")
    monkeypatch.setattr(file_record, "HELD", held)
    files = MAKERS[kind](tmp_path / "files")
    result = agent(filesystem=files).run("go", store=tmp_path / "whole")
    assert result.ok
    assert files.read_text("log.txt").startswith("begun\nline 0")
    run = lines_of(tmp_path / "whole")
    assert not any(b"bGluZSAw" in line for line in run[1]), "the file's content is in the record"
    run_id = died_after(run, len(run[1]) - 4, tmp_path / "store")
    if kind == "memory":
        assert [each.name for each in events(result, FilesNotOnRecord)] == ["work"]
        with pytest.raises(ConfigurationError, match="what work changed in its MemoryFilesystem is not stored"):
            agent(filesystem=memory(tmp_path)).resume(run_id, store=tmp_path / "store")
    else:
        assert not events(result, FilesNotOnRecord)
        assert agent(filesystem=files).resume(run_id, store=tmp_path / "store").ok


def test_an_interrupted_commit_without_contents_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_record, "MOST_BYTES", 10)
    run_id = interrupted(tmp_path, host(tmp_path / "whole_files"))
    files = host(tmp_path / "files")
    files.write_text("old.txt", "old 0")
    result = agent(filesystem=files).resume(run_id, store=tmp_path / "store")
    first = events(result, ToolInvoked)[0]
    assert first.outcome == "crashed"
    assert "log.txt: not written: its content is not on record (the call changed more than 16 MiB)" in (
        first.rendered_output
    )
    assert "As it should be: empty, empty/0, gone/0, new, old.txt" in first.rendered_output


def not_resumable(files: Filesystem, store: Path) -> str:
    """Run with these files; return why it could not be resumed."""
    result = agent(filesystem=files).run("go", store=store)
    (opened,) = events(result, RunOpened)
    return opened.not_resumable


def test_what_cannot_be_rebuilt_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign(Filesystem):
        def __init__(self, base: Filesystem) -> None:
            super().__init__()
            self.base = base

        def _kind(self, path: str) -> Any:
            return self.base.kind(path)

        def _read(self, path: str) -> bytes:
            return self.base.read_bytes(path)

        def _names(self, path: str) -> list[str]:
            return [name.rpartition("/")[2] for name in self.base.list(path)]

        def _put(self, entry: Any) -> None:
            if entry.kind == "file":
                self.base.write_bytes(entry.path, entry.data)
            else:
                (self.base.make_dirs if entry.kind else self.base.delete)(entry.path)

    class Lasting(Foreign):
        survives_process = True

    assert not_resumable(memory(tmp_path), tmp_path / "0") == ""
    assert not_resumable(Lasting(memory(tmp_path)), tmp_path / "1") == ""
    why = "what its tools change in a Foreign is not on record, and ends with the process"
    assert not_resumable(Foreign(memory(tmp_path)), tmp_path / "2") == why
    monkeypatch.setattr(file_record, "MOST_BYTES", 10)
    assert not_resumable(memory(tmp_path), tmp_path / "3") == "its MemoryFilesystem holds more than 16 MiB at the start"
    assert not_resumable(host(tmp_path / "files"), tmp_path / "4") == ""
    run = lines_of(tmp_path / "3")
    with pytest.raises(ConfigurationError, match="cannot be resumed: its MemoryFilesystem holds more than"):
        agent(filesystem=memory(tmp_path)).resume(
            died_after(run, len(run[1]) - 3, tmp_path / "5"), store=tmp_path / "5"
        )


def test_runs_say_what_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent(filesystem=memory(tmp_path)).run("go", store=tmp_path / "whole")
    monkeypatch.setattr(file_record, "MOST_BYTES", 17)
    agent(filesystem=memory(tmp_path)).run("go", store=tmp_path / "later")
    monkeypatch.setattr(file_record, "MOST_BYTES", 10)
    agent(filesystem=memory(tmp_path)).run("go", store=tmp_path / "never")
    said = list[str]()
    for name in ("whole", "later", "never"):
        run = lines_of(tmp_path / name)
        died_after(run, len(run[1]) - 3, tmp_path / f"{name}_cut")
        with RunStore(tmp_path / f"{name}_cut", read_only=True) as store:
            said += [each.sentence() for each in store.runs()]
    ended = "Interrupted: its process ended before the run did."
    assert said == [
        ended,
        f"{ended} It cannot be resumed: what work changed is not stored: the call changed more than 16 MiB.",
        f"{ended} It cannot be resumed: its MemoryFilesystem holds more than 16 MiB at the start.",
    ]


def test_a_run_that_can_be_resumed_no_more_does_not_park(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool
    def write(size: int, *, context: ToolContext) -> str:
        """Write."""
        assert context.filesystem is not None
        context.filesystem.write_bytes("out", bytes(size))
        return "written"

    @tool
    def mail() -> str:
        """Mail."""
        return "sent"

    monkeypatch.setattr(file_record, "MOST_BYTES", 50)
    permission = ToolPermissionHook(ask=["mail"], ask_with=lambda call: None)
    results = list[RunResult[str]]()
    for size in (50, 51):
        model = ScriptedModel([Call("write", {"size": size}), Call("mail", {}), "done"])
        shield = ShieldPipeline(tool_dispatch=permission)
        writer = Agent(model, "Mail.", str, tools=[write, mail], shield=shield, filesystem=MemoryFilesystem())
        results.append(writer.run("go", store=tmp_path / f"store{size}", on_ask="park"))
    assert [each.stop.reason if each.stop else None for each in results] == ["parked", None]
    assert [each.outcome for each in events(results[1], ToolInvoked)] == ["ok", "denied"]


def test_another_kind_of_files_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    run_id = interrupted(tmp_path, memory(tmp_path))
    files = host(tmp_path / "files")
    before = content(files)
    with pytest.raises(ConfigurationError, match="its tools work on a MemoryFilesystem: give it one"):
        agent(filesystem=files).resume(run_id, store=tmp_path / "store")
    with pytest.raises(ConfigurationError, match="its tools work on a MemoryFilesystem"):
        agent().resume(run_id, store=tmp_path / "store")
    assert content(files) == before
    assert agent(filesystem=memory(tmp_path)).resume(run_id, store=tmp_path / "store").ok


def test_tools_that_change_no_files_leave_no_line(tmp_path: Path) -> None:
    @tool
    def look(*, context: ToolContext) -> str:
        """Look."""
        assert context.filesystem is not None
        return context.filesystem.read_text("old.txt")

    model = ScriptedModel([Call("look", {}), "done"])
    Agent(model, "Look.", str, tools=[look], filesystem=memory(tmp_path)).run("go", store=tmp_path / "store")
    _, lines = lines_of(tmp_path / "store")
    assert sum(line.startswith(b'{"files":') for line in lines) == 1  # what the run began with


VICTIM = """
import os, sys
from pathlib import Path
from tests.app.test_resume_files import agent
from watchkeeper.tools.filesystems import HostFilesystem

class Deadly(HostFilesystem):
    def _put(self, entry):
        if entry.path == "old.txt" and entry.data == b"old 1":
            os.kill(os.getpid(), 9)
        super()._put(entry)

Deadly.__name__ = "HostFilesystem"
agent(filesystem=Deadly(sys.argv[1])).run("go", store=sys.argv[2])
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_process_that_is_killed_between_two_files_of_a_commit_is_taken_over(tmp_path: Path) -> None:
    files, store = host(tmp_path / "files"), tmp_path / "store"
    arguments = [sys.executable, "-c", VICTIM, str(tmp_path / "files"), str(store)]
    died = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert (files.exists("new/1.bin"), files.read_text("old.txt")) == (True, "old 0")
    ran = list[int]()
    with RunStore(store, read_only=True) as reader:
        (run,) = reader.runs()
    result = agent(ran, filesystem=files).resume(run.run_id, store=store)
    assert ran == [2]
    check_calls(result, "killed")
    assert files.read_text("old.txt") == "old 2"
    assert files.read_text("log.txt") == "begun\nline 0 ü\nline 1 ü\nline 2 ü\n"
    assert not [path for path in files.glob("**") if path.endswith(".part")]
