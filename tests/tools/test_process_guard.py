"""The guard's part of an isolated call; what signals and reaps processes runs in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.tools.isolation import guard as process_guard
from watchkeeper.tools.isolation.guard import Guard, children, main, read_frame, send, tell
from watchkeeper.tools.isolation.worker import framed


class Guarded:
    """A guard over a shell, in a process of its own, whose lifeline is held here."""

    def __init__(self, command: str, grace: float = 0.05, parent: int = 0) -> None:
        arguments = [command, str(grace), str(parent), "0.5" if parent == 0 else "0.01"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.guarded_shell", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lifeline, self._said = self._process.stdin, self._process.stdout
        assert self._said.readline() == b"ready\n"

    def tell(self, words: bytes) -> None:
        self._lifeline.write(words)

    def end(self) -> int:
        """Wait until it is over; return the shell's exit code."""
        with self._said:
            said = self._said.read()
        self._lifeline.close()
        assert self._process.wait() == 0
        return int(said)

    def leave(self) -> int:
        """Close the lifeline, as a parent that ends does, and wait."""
        self._lifeline.close()
        return self.end()


def test_a_worker_that_ends_is_reaped_with_its_code() -> None:
    assert Guarded("READY; exit 3").end() == 3


def test_what_a_worker_leaves_gets_term_and_then_kill() -> None:
    assert Guarded("trap '' TERM; sleep 600 9>&- & READY; exit 4").end() == 4


def test_a_word_of_the_parent_is_term() -> None:
    # it takes its time to clean up
    guarded = Guarded("sleep 600 9>&- & trap 'sleep 0.1; exit 9' TERM; READY; wait", grace=600)
    guarded.tell(process_guard.TERMINATE)
    assert guarded.end() == 9


def test_kill_comes_after_the_grace() -> None:
    guarded = Guarded("trap '' TERM; READY; exec sleep 600")
    guarded.tell(process_guard.TERMINATE)
    assert guarded.end() == -signal.SIGKILL


def test_the_word_for_kill_ends_the_grace() -> None:
    guarded = Guarded("trap '' TERM; READY; exec sleep 600", grace=600)
    guarded.tell(process_guard.TERMINATE + process_guard.KILL)
    assert guarded.end() == -signal.SIGKILL


def test_the_end_of_the_parent_is_kill_at_once() -> None:
    assert Guarded("trap '' TERM; READY; exec sleep 600", grace=600).leave() == -signal.SIGKILL


def test_a_parent_that_is_gone_is_noticed_though_its_pipe_is_held_open() -> None:
    another = 1 if os.getpid() != 1 else 2
    assert Guarded("trap '' TERM; READY; exec sleep 600", grace=600, parent=another).end() == -signal.SIGKILL


def test_a_guard_leaves_the_processes_of_others_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            assert Guarded("trap '' TERM; READY; exec sleep 600", grace=0).leave() == -signal.SIGKILL
            assert other.poll() is None
        finally:
            other.kill()


@pytest.fixture
def _same_signals() -> Iterator[None]:
    numbers = (signal.SIGCHLD, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


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


@pytest.mark.usefixtures("_same_signals")
def test_it_ends_if_the_parent_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, framed(b"path")[:-1])
    main(["5", "1", "2.0"])


@pytest.mark.usefixtures("_same_signals")
def test_it_reports_the_group_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    closed: list[int] = []
    piped(monkeypatch, framed(b"path") + framed(b"order"))
    worker = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 6"], os.environ, setpgroup=0)

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


@pytest.mark.usefixtures("_same_signals")
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
