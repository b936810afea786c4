"""The guard's part of an isolated call, called here and now; the workers are real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.tools import process_guard
from watchkeeper.tools.process_guard import Guard, children, group_lives, main, read_frame, send, tell
from watchkeeper.tools.process_worker import framed


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    numbers = (signal.SIGCHLD, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def lifeline() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            continue


@pytest.fixture
def orphans_come_here() -> Iterator[None]:
    """Let this process reap what a worker leaves, as the guard's own process does; else it waits for the system's."""
    process_guard.adopt_orphans()
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(process_guard.SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def started(command: str) -> int:
    """Start a shell in a group of its own that says on a pipe when it is ready; return its process id."""
    reading, writing = os.pipe()
    worker = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", command.replace("READY", "echo >&9; exec 9>&-")],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, writing, 9)],
        setpgroup=0,
    )
    os.close(writing)
    assert os.read(reading, 1) == b"\n", "the shell did not start"
    os.close(reading)
    return worker


def watched(worker: int, lifeline: int, grace: float = 0.05, parent: int | None = None) -> int:
    guard = Guard(worker, os.getppid() if parent is None else parent, grace)
    guard.watch(lifeline)
    assert not group_lives(worker)
    return os.waitstatus_to_exitcode(guard.status)


def test_a_worker_that_ends_is_reaped_with_its_code(lifeline: tuple[int, int]) -> None:
    assert watched(started("READY; exit 3"), lifeline[0]) == 3


@pytest.mark.usefixtures("orphans_come_here")
def test_what_a_worker_leaves_gets_term_and_then_kill(lifeline: tuple[int, int]) -> None:
    assert watched(started("trap '' TERM; sleep 600 9>&- & READY; exit 4"), lifeline[0]) == 4


@pytest.mark.usefixtures("orphans_come_here")
def test_a_word_of_the_parent_is_term(lifeline: tuple[int, int]) -> None:
    worker = started("sleep 600 9>&- & trap 'sleep 0.1; exit 9' TERM; READY; wait")  # it takes its time to clean up
    os.write(lifeline[1], process_guard.TERMINATE)
    assert watched(worker, lifeline[0], grace=600) == 9


def test_kill_comes_after_the_grace(lifeline: tuple[int, int]) -> None:
    worker = started("trap '' TERM; READY; exec sleep 600")
    os.write(lifeline[1], process_guard.TERMINATE)
    assert watched(worker, lifeline[0]) == -signal.SIGKILL


def test_the_word_for_kill_ends_the_grace(lifeline: tuple[int, int]) -> None:
    worker = started("trap '' TERM; READY; exec sleep 600")
    os.write(lifeline[1], process_guard.TERMINATE + process_guard.KILL)
    assert watched(worker, lifeline[0], grace=600) == -signal.SIGKILL


def test_the_end_of_the_parent_is_kill_at_once(lifeline: tuple[int, int]) -> None:
    worker = started("trap '' TERM; READY; exec sleep 600")
    os.close(lifeline[1])
    assert watched(worker, lifeline[0], grace=600) == -signal.SIGKILL


def test_a_parent_that_is_gone_is_noticed_though_its_pipe_is_held_open(
    lifeline: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_guard, "LOOK_SECONDS", 0.01)
    worker = started("trap '' TERM; READY; exec sleep 600")
    assert watched(worker, lifeline[0], grace=600, parent=1 if os.getppid() != 1 else 2) == -signal.SIGKILL


class Forked(BaseException):
    """Stands for the worker's part after the fork."""


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Let the guard read these bytes as its input."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    real = os.read

    def read(descriptor: int, size: int) -> bytes:
        return real(reading if descriptor == 0 else descriptor, size)

    monkeypatch.setattr(os, "read", read)


def test_it_ends_if_the_parent_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, framed(b"path")[:-1])
    main(["5", "1", "2.0"])


def test_it_reports_the_group_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    closed: list[int] = []
    piped(monkeypatch, framed(b"path") + framed(b"order"))
    worker = started("READY; exit 6")

    def reap(guard: Guard, lifeline: int) -> None:
        guard.status = os.waitpid(worker, 0)[1]

    monkeypatch.setattr(os, "fork", lambda: worker)
    monkeypatch.setattr(os, "close", closed.append)
    monkeypatch.setattr(process_guard, "tell", said.append)
    monkeypatch.setattr(process_guard, "adopt_orphans", lambda: None)
    monkeypatch.setattr(Guard, "watch", reap)
    main(["77", "1", "2.0"])
    assert said == [f"group {worker}", f"ended {6 << 8}"]
    assert closed == [77]


def test_the_fork_becomes_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, framed(b"a\0b") + framed(b"order"))
    given: list[Any] = []

    def become(*arguments: Any) -> None:
        given.extend(arguments)
        raise Forked

    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(process_guard, "become_worker", become)
    with pytest.raises(Forked):
        main(["77", "1", "2.0"])
    assert given == [["a", "b"], b"order", 77]


def test_the_worker_has_no_input_and_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def leave(code: int) -> None:
        done.append(code)
        raise Forked

    def tell_first(first: Any, second: Any, third: Any) -> None:
        done.append(first)

    def tell_second(first: int, second: int) -> None:
        done.append(second)

    def tell_both(first: int, second: int) -> None:
        done.append((first, second))

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "excepthook", tell_first)
    monkeypatch.setattr(os, "setpgid", tell_both)
    monkeypatch.setattr(os, "dup2", tell_second)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Forked):
        process_guard.become_worker([*sys.path], b"order", 9999)
    assert done == [(0, 0), 0, 1, OSError, process_guard.WORKER_FAILED]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_orphans_are_adopted_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    asked: list[Any] = []

    class Library:
        def __init__(self, name: None) -> None:
            assert name is None

        def prctl(self, *arguments: int) -> None:
            asked.append(arguments)

    monkeypatch.setattr(ctypes, "CDLL", Library)
    process_guard.adopt_orphans()
    assert asked == [(36, 1, 0, 0, 0)]
    monkeypatch.setattr(sys, "platform", "darwin")
    process_guard.adopt_orphans()
    assert len(asked) == 1


def test_a_message_that_is_cut_off_is_none() -> None:
    for data, expected in ((framed(b"hello"), b"hello"), (framed(b"hello")[:-1], None), (b"", None)):
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        assert read_frame(reading) == expected
        os.close(reading)


def test_a_parent_that_is_gone_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, data: bytes) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(os, "write", broken)
    tell("ended 0")


def test_a_signal_to_nobody_is_told() -> None:
    def refused(target: int, number: int) -> None:
        raise PermissionError

    assert send(os.kill, os.getpid(), 0)
    assert not send(refused, 1, 0)


def test_where_the_system_lists_no_children_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 0)
    assert children() == []
