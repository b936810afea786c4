"""Commands: how they end, and that nothing of them is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.tools.processes import Lives, is_alive
from watchkeeper.core.clock import SYSTEM_CLOCK, TestClock
from watchkeeper.core.errors import ToolProcessError
from watchkeeper.tools.isolation import call as isolation
from watchkeeper.tools.isolation import worker as process_worker
from watchkeeper.tools.isolation.call import CommandEnd, run_command
from watchkeeper.tools.isolation.worker import become

SHELL = ("/bin/sh", "-c")


async def run(*arguments: str, folder: Path, seconds: float = 60.0) -> CommandEnd:
    """Run a command."""
    return await run_command(arguments, folder, seconds, SYSTEM_CLOCK)


async def test_exit_code_output_and_folder_are_the_commands_own(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    end = await run(*SHELL, "test -e here && pwd; echo oops >&2; exit 3", folder=tmp_path)
    assert (end.status, end.output.splitlines()[1]) == (3, "oops")
    assert end.output.splitlines()[0].endswith(tmp_path.name)
    assert await run("true", folder=tmp_path) == CommandEnd(0, "")


async def test_arguments_arrive_as_they_are_without_a_shell(tmp_path: Path) -> None:
    program = "import sys; print(sys.argv[1:])"
    end = await run(sys.executable, "-c", program, "$HOME", "a b", "*", "| true", "ä", folder=tmp_path)
    assert end.output == "['$HOME', 'a b', '*', '| true', 'ä']"


async def test_a_command_has_no_input_and_the_signals_that_programs_expect(tmp_path: Path) -> None:
    program = "import signal, sys; print(repr(sys.stdin.read()), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    assert (await run(sys.executable, "-c", program, folder=tmp_path)).output == "'' True"
    assert (await run(*SHELL, "yes | head -n 1", folder=tmp_path)) == CommandEnd(0, "y")


async def test_only_the_end_of_a_flood_of_output_is_kept(tmp_path: Path) -> None:
    end = await run(*SHELL, "head -c 3000000 /dev/zero | tr '\\0' x; echo the end", folder=tmp_path)
    assert end.status == 0
    assert end.output.endswith("xthe end")
    assert len(end.output) <= isolation.KEPT_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("program", "folder", "problem"),
    [
        ("no-such-program", ".", "'no-such-program' cannot be started: No such file or directory"),
        ("./plain.txt", ".", "'./plain.txt' cannot be started: Permission denied"),
        ("./noise", ".", "'./noise' cannot be started: Exec format error"),
        ("true", "nowhere", "cannot be entered: No such file or directory"),
        ("true", "plain.txt", "cannot be entered: Not a directory"),
    ],
)
async def test_what_cannot_be_started_is_told_from_what_has_failed(
    tmp_path: Path, program: str, folder: str, problem: str
) -> None:
    (tmp_path / "plain.txt").write_text("text")
    (tmp_path / "noise").write_bytes(b"\x01\x02")
    (tmp_path / "noise").chmod(0o755)
    end = await run(program, folder=tmp_path / folder)
    assert end.status is None
    assert end.problem.endswith(problem)


async def test_a_command_that_a_signal_ended_has_its_negative_number(tmp_path: Path) -> None:
    assert (await run(*SHELL, "kill -SEGV $$", folder=tmp_path)).status == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("trap", "status"), [("", -signal.SIGTERM), ("trap 'exit 0' TERM;", 0)], ids=["dies", "ends-well"]
)
async def test_a_command_is_ended_when_its_time_is_over_whatever_it_makes_of_that(
    tmp_path: Path, lives: Lives, trap: str, status: int
) -> None:
    clock = TestClock()
    script = f"{trap} echo half way; exec 3>{lives.fifo}; echo $$ >&3; while :; do sleep 0.01; done"
    running = asyncio.ensure_future(run_command((*SHELL, script), tmp_path, 3600.0, clock))
    await asyncio.to_thread(lives.begun)
    clock.advance(3599.0)
    assert not lives.all_dead()
    clock.advance(1.0)
    end = await running
    assert (end.timed_out, end.status, end.output[:8]) == (True, status, "half way")
    assert lives.all_dead()


@pytest.mark.spec("FR-158")
async def test_what_it_leaves_running_ends_with_it_also_outside_of_its_group(tmp_path: Path, lives: Lives) -> None:
    program = (
        "import os, time\n"
        f"pipe = os.open({lives.fifo!r}, os.O_WRONLY)\n"
        "heard, said = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.write(pipe, f'{os.getpid()}\\n'.encode())\n"
        "    os.write(said, b'!')\n"
        "    time.sleep(600)\n"
        "os.read(heard, 1)\n"
    )
    assert (await run(sys.executable, "-c", program, folder=tmp_path)).status == 0
    left = await asyncio.to_thread(lives.begun)
    assert lives.all_dead()
    assert not is_alive(left)


@pytest.mark.spec("FR-158")
async def test_a_cancelled_command_is_dead_when_the_cancellation_arrives(tmp_path: Path, lives: Lives) -> None:
    running = asyncio.ensure_future(
        run(*SHELL, f"exec 3>{lives.fifo}; echo $$ >&3; sleep 600 & sleep 600", folder=tmp_path)
    )
    process = await asyncio.to_thread(lives.begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert lives.all_dead()
    assert not is_alive(process)


async def test_what_ignores_term_is_killed_after_the_grace_or_at_once_if_nobody_waits_for_it(
    tmp_path: Path, lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper.tools.isolation.call.KILL_GRACE_SECONDS", 0.2)
    script = f"trap '' TERM; exec 3>{lives.fifo}; echo $$ >&3; while :; do sleep 0.01; done"
    running = asyncio.ensure_future(run(*SHELL, script, folder=tmp_path))
    process = await asyncio.to_thread(lives.begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(process)
    monkeypatch.setattr("watchkeeper.tools.isolation.call.KILL_GRACE_SECONDS", 600.0)
    running = asyncio.ensure_future(run(*SHELL, script, folder=tmp_path))
    process = await asyncio.to_thread(lives.begun)
    while not running.done():  # whoever waits in vain says so once more: the grace is over
        running.cancel()
        await asyncio.wait({running}, timeout=0.5)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(process)


async def test_without_a_python_to_watch_over_it_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ToolProcessError, match="could not be started: this program's Python cannot be started again"):
        await run(*SHELL, f"touch {tmp_path}/ran", folder=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_worker_turns_into_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    before = {name: signal.getsignal(getattr(signal, name)) for name in process_worker.IGNORED_BY_PYTHON}

    def execvp(program: str, arguments: list[str]) -> None:
        seen.extend((program, arguments, os.getcwd(), signal.getsignal(signal.SIGPIPE)))
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.chdir(tmp_path.parent)  # and back at the end
    monkeypatch.setattr(os, "execvp", execvp)
    try:
        said = become(["tests", "-q"], str(tmp_path))
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
    assert seen == ["tests", ["tests", "-q"], str(tmp_path.resolve()), signal.SIG_DFL]
    assert (said.success, said.message) == (False, "'tests' cannot be started: No such file or directory")
    said = become(["tests"], str(tmp_path / "nowhere"))
    assert said.message.endswith("cannot be entered: No such file or directory")
