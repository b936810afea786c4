"""The engine's process, with a fake engine that knows no model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.core.errors import MissingExtraError, ProviderError
from watchkeeper.local import server as local_server
from watchkeeper.local.server import EngineOptions, LocalServer, SharedServers, check_engine, default_threads

FAKE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "ENGINE", FAKE)


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., EngineOptions]:
    def make(**script: Any) -> EngineOptions:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        file.write_bytes(b"GGUF" + json.dumps({"requests": str(tmp_path / "requests"), **script}).encode())
        return EngineOptions(str(file), "tiny", 512, 2)

    return make


@pytest.fixture
def server(options: Callable[..., EngineOptions]) -> Iterator[LocalServer]:
    started = LocalServer(options())
    yield started
    started.close()


def is_running(pid: int) -> bool:
    """Return whether a process that is not our child, or was waited for, is still there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    waiting = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        waiting.wait(0.05)
    raise AssertionError(f"not within {seconds} s")


def test_an_engine_starts_when_it_is_first_needed_and_only_once(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.address() is None
    with ThreadPoolExecutor(4) as pool:
        addresses = {future.result() for future in [pool.submit(server.ensure) for _ in range(4)]}
    (address,) = addresses
    assert server.address() == address
    assert address.base_url.startswith("http://127.0.0.1:")
    assert address.base_url.endswith("/v1")
    assert address.newlines == (7, 8)
    assert "fake-key" not in repr(address)
    monkeypatch.setattr(local_server, "END_SECONDS", 0.1)
    assert server.describe_end() is None


def test_closing_ends_the_engine_and_removes_its_log(server: LocalServer) -> None:
    address = server.ensure()
    log = server.log
    assert log is not None
    assert log.exists()
    server.close()
    assert not is_running(address.pid)
    assert not log.exists()
    assert server.address() is None
    server.close()


@pytest.mark.spec("FR-061")
def test_a_killed_engine_is_described_with_its_log_and_started_again(server: LocalServer) -> None:
    first = server.ensure()
    os.kill(first.pid, signal.SIGKILL)
    text = server.describe_end() or ""
    assert "was killed (signal 9" in text
    assert str(server.log) in text
    assert server.address() is None
    second = server.ensure()
    assert second.pid != first.pid
    assert server.address() == second


def test_another_signal_is_named(server: LocalServer) -> None:
    os.kill(server.ensure().pid, signal.SIGSEGV)
    assert "died of signal 11" in (server.describe_end() or "")


def test_an_engine_that_refuses_its_model_says_why(options: Callable[..., EngineOptions]) -> None:
    server = LocalServer(options(start="fail"))
    said = r"ended with code 1 .*error loading model: not this one; its log: "
    with pytest.raises(ProviderError, match=said) as caught:
        server.ensure()
    assert caught.value.fault == "bad_request"
    assert not caught.value.retryable
    assert server.address() is None
    assert server.log is not None
    assert "not this one" in server.log.read_text()


def test_an_engine_that_never_gets_ready_is_ended(
    options: Callable[..., EngineOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "READY_SECONDS", 0.3)
    server = LocalServer(options(start="hang"))
    with pytest.raises(ProviderError, match=r"was not ready after 0\.3 s") as caught:
        server.ensure()
    assert caught.value.fault == "server"


def test_an_engine_that_says_something_else_is_ended(options: Callable[..., EngineOptions]) -> None:
    with pytest.raises(ProviderError, match="ended with code"):
        LocalServer(options(start="garbage")).ensure()


def test_an_engine_that_does_not_end_is_killed(
    options: Callable[..., EngineOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "STOP_SECONDS", 0.3)
    server = LocalServer(options())
    address = server.ensure()
    os.kill(address.pid, signal.SIGSTOP)
    server.close()
    assert not is_running(address.pid)


def test_a_python_that_cannot_be_run_is_told(
    options: Callable[..., EngineOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ProviderError, match=r"could not be started: .*no-python"):
        LocalServer(options()).ensure()


def test_a_log_folder_that_cannot_be_made_is_replaced(
    server: LocalServer, user_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user_folders / "state").write_text("in the way")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server.ensure()
    assert server.log is not None
    assert server.log.parent == tmp_path


def test_the_engines_own_words_come_first(server: LocalServer) -> None:
    pid = server.ensure().pid
    assert server.log is not None
    server.log.write_text("0.00.1 E first\nRuntimeError: summary\n0.00.2 E  srv last words\n0.00.3 I note\n")
    os.kill(pid, signal.SIGKILL)
    assert "it said: srv last words; its log" in (server.describe_end() or "")


def test_a_lost_log_does_not_hide_the_error(server: LocalServer) -> None:
    pid = server.ensure().pid
    assert server.log is not None
    server.log.unlink()
    os.kill(pid, signal.SIGKILL)
    assert "was killed" in (server.describe_end() or "")


CHILD = """
import os, sys
from pathlib import Path
from watchkeeper.local import server as local_server
local_server.ENGINE = Path(sys.argv[1])
address = local_server.SERVERS.acquire(local_server.EngineOptions(sys.argv[2], "tiny", 512, 2)).ensure()
print(address.pid, flush=True)
if sys.argv[3] == "wait":
    sys.stdin.read()
"""


def start_parent(options: EngineOptions, how: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(FAKE), options.model, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_an_engine_ends_with_its_process(options: Callable[..., EngineOptions]) -> None:
    parent, pid = start_parent(options(), "end")
    with parent:
        assert parent.wait() == 0
    assert not is_running(pid)


@pytest.mark.spec("FR-061")
def test_an_engine_ends_when_its_process_is_killed(options: Callable[..., EngineOptions]) -> None:
    parent, pid = start_parent(options(), "wait")
    with parent:
        assert is_running(pid)
        parent.kill()
    wait_until(lambda: not is_running(pid))


def test_ctrl_c_in_the_terminal_is_for_the_parent_alone(server: LocalServer) -> None:
    address = server.ensure()
    assert os.getpgid(address.pid) != os.getpgid(0)
    assert os.getsid(address.pid) != os.getsid(0)


FORK = """
import os, sys
from pathlib import Path
from watchkeeper.local import server as local_server
local_server.ENGINE = Path(sys.argv[1])
server = local_server.SERVERS.acquire(local_server.EngineOptions(sys.argv[2], "tiny", 512, 2))
address = server.ensure()
child = os.fork()
if child == 0:
    seen = server.address(), server.describe_end()
    server.close()
    os._exit(0 if seen == (None, None) else 1)
print(os.waitpid(child, 0)[1], server.address() == address)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_leaves_its_parents_engine_alone(options: Callable[..., EngineOptions]) -> None:
    # From 3.12 on Python warns of forking beside threads; that it works all the same is what is tested.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, str(FAKE), options().model]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


FORK_DURING_START = """
import os, signal, subprocess, sys, threading
from pathlib import Path
from watchkeeper.local import server as local_server
local_server.ENGINE = Path(sys.argv[1])
options = local_server.EngineOptions(sys.argv[2], "tiny", 512, 2)
started = threading.Event()
class Pipe:
    def __init__(self, file):
        self.file, self.close = file, file.close
    def readline(self):
        started.set()
        return self.file.readline()
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **how):
        super().__init__(*arguments, **how)
        self.stdout = Pipe(self.stdout)
        engines.append(self)
engines, subprocess.Popen = [], Popen
server = local_server.SERVERS.acquire(options)
threading.Thread(target=server.ensure, daemon=True).start()
started.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)  # instead of waiting for ever
    Path(sys.argv[2] + "~").write_text("GGUF{}")
    os.replace(sys.argv[2] + "~", sys.argv[2])
    same = local_server.SERVERS.acquire(options)
    alive = same.ensure() is not None and same is server
    local_server.SERVERS.close()
    os._exit(not alive)
print(os.waitpid(child, 0)[1], engines[0].poll(), flush=True)
engines[0].kill()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_process_that_is_forked_while_an_engine_starts_has_one_of_its_own(
    options: Callable[..., EngineOptions],
) -> None:
    model = options(start="hang").model
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_DURING_START, str(FAKE), model]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0 None\n", "")


@pytest.mark.spec("FR-061")
def test_an_engine_is_shared_and_ends_with_its_last_user(options: Callable[..., EngineOptions]) -> None:
    servers = SharedServers()
    same = options()
    first, second, other = servers.acquire(same), servers.acquire(same), servers.acquire(options())
    assert first is second is not other
    pid = first.ensure().pid
    servers.release(first)
    assert is_running(pid)
    servers.release(second)
    assert not is_running(pid)
    assert servers.acquire(same) is not first
    pid = servers.acquire(same).ensure().pid
    servers.close()
    assert not is_running(pid)


def test_what_was_closed_with_all_is_released_harmlessly(options: Callable[..., EngineOptions]) -> None:
    servers = SharedServers()
    server = servers.acquire(options())
    servers.close()
    servers.release(server)


def test_a_missing_engine_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "ENGINE_PACKAGES", ("json", "no_such_engine"))
    with pytest.raises(MissingExtraError, match=r"pip install 'watchkeeper\[local\]'"):
        check_engine()


def test_threads_are_bounded_by_the_cores_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= default_threads() <= 8

    def many(pid: int) -> set[int]:
        return set(range(64))

    monkeypatch.setattr("os.sched_getaffinity", many, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert default_threads() == 8
