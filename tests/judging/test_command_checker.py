"""A command decides whether the work is done."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.judging.command_checker import OUTPUT_BYTES, CommandChecker
from watchkeeper.prompt.completion import (
    TaskCompletionChecker,
    TaskCompletionContext,
    TaskCompletionResult,
    on_error_of,
    verdict_of,
)
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.filesystems import HostFilesystem, MemoryFilesystem, OverlayFilesystem
from watchkeeper.tools.isolation.call import CommandEnd


def context(filesystem: Filesystem | None) -> TaskCompletionContext:
    return TaskCompletionContext(session=Session(), tentative_output="done", filesystem=filesystem)


def shell(script: str, **options: Any) -> CommandChecker:
    return CommandChecker(["/bin/sh", "-c", script], **options)


def ends(monkeypatch: pytest.MonkeyPatch, end: CommandEnd) -> None:
    """Let every command end so."""

    async def run_command(*_: object) -> CommandEnd:
        return end

    monkeypatch.setattr("watchkeeper.judging.command_checker.run_command", run_command)


async def test_exit_code_0_is_complete_in_the_folder_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("all is well")
    files = HostFilesystem(tmp_path)
    assert isinstance(shell("true"), TaskCompletionChecker)
    for view in (files, files.read_only_view(), files.read_only_view().read_only_view()):
        result = await CommandChecker("test -s report.md").check(context(view))
        assert result == TaskCompletionResult.ok("`test -s report.md` ended with exit code 0")


async def test_the_description_is_the_explanation_of_a_pass(tmp_path: Path) -> None:
    checker = shell("true", cwd=tmp_path, description="the tests pass")
    assert await checker.check(context(None)) == TaskCompletionResult.ok("the tests pass")


@pytest.mark.spec("FR-158")
async def test_any_other_exit_code_is_incomplete_with_the_end_of_the_output(tmp_path: Path) -> None:
    checker = shell("echo 1 failed, 2 passed; exit 1", cwd=tmp_path, description="the tests pass")
    result = await checker.check(context(MemoryFilesystem()))
    assert result.status == "incomplete"
    assert result.explanation == (
        "this does not hold yet: the tests pass. `/bin/sh -c 'echo 1 failed, 2 passed; exit 1'` ended with exit code 1."
        " Its output ended with:\n1 failed, 2 passed"
    )
    silent = await CommandChecker("false", cwd=tmp_path).check(context(None))
    assert silent == TaskCompletionResult.incomplete("`false` ended with exit code 1; it printed nothing")


async def test_a_program_that_crashes_is_incomplete(tmp_path: Path) -> None:
    result = await shell("kill -SEGV $$", cwd=tmp_path).check(context(None))
    assert result.status == "incomplete"
    assert "was ended by SIGSEGV" in result.explanation


@pytest.mark.parametrize(
    ("output", "begins"),
    [
        ("a line\n" * 5000, "…\na line\na line\n"),
        ("x" * 9000, "…\nxxx"),
        ("ü" * 1490 + "\n" + "ü" * 1490, f"…\n{'ü' * 1490}"),
        ("漢字" * 5000, "…\n"),
    ],
    ids=["lines", "one-line", "two-lines", "three-bytes"],
)
async def test_a_long_output_is_cut_at_the_beginning_of_a_line_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, begins: str
) -> None:
    ends(monkeypatch, CommandEnd(1, output))
    result = await CommandChecker("tests", cwd=tmp_path).check(context(None))
    shown = result.explanation.split("Its output ended with:\n")[1]
    assert shown.startswith(begins)
    assert shown.endswith(output.strip()[-8:])
    assert len(shown.encode()) <= OUTPUT_BYTES + 4


@pytest.mark.spec("FR-158")
@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        ("no-such-program --now", {}, "`no-such-program --now` was not run: 'no-such-program' cannot be started"),
        ("/etc/passwd", {}, "`/etc/passwd` was not run: '/etc/passwd' cannot be started: Permission denied"),
        ("true", {"cwd": "/no/such/folder"}, "`true` was not run: the folder '/no/such/folder' cannot be entered"),
        ("sleep 600", {"timeout": 0.3}, "`sleep 600` was not over within 300ms and was ended; it printed nothing"),
        (["/bin/sh", "-c", "kill -9 $$"], {}, "was ended from outside, by SIGKILL"),
    ],
    ids=["not-found", "not-executable", "no-such-folder", "timed-out", "killed"],
)
async def test_a_command_that_decided_nothing_leaves_the_work_unverified(
    tmp_path: Path, command: Any, options: dict[str, Any], why: str
) -> None:
    given: dict[str, Any] = {"cwd": tmp_path, **options}
    result = await CommandChecker(command, **given).check(context(None))
    assert result.status == "unverified"
    assert why in result.explanation


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (CommandEnd(0, "ok", timed_out=True), "was not over within 5m and was ended. Its output ended with:\nok"),
        (CommandEnd(None, ""), "was lost: its exit code is unknown; it printed nothing"),
        (CommandEnd(None, "", "no luck"), "was not run: no luck"),
    ],
    ids=["zero-too-late", "lost", "not-started"],
)
async def test_an_exit_that_proves_nothing_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: CommandEnd, why: str
) -> None:
    ends(monkeypatch, end)
    assert await CommandChecker("tests", cwd=tmp_path).check(context(None)) == TaskCompletionResult.unverified(
        f"`tests` {why}"
    )


async def test_a_signal_without_a_name_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ends(monkeypatch, CommandEnd(-33, ""))
    result = await CommandChecker("tests", cwd=tmp_path).check(context(None))
    assert result.explanation == "`tests` was ended by signal 33; it printed nothing"


@pytest.mark.parametrize(
    "filesystem", [None, MemoryFilesystem(), OverlayFilesystem(MemoryFilesystem())], ids=["none", "memory", "overlay"]
)
async def test_without_a_folder_of_this_machine_nothing_is_run(filesystem: Filesystem | None) -> None:
    result = await CommandChecker("true").check(context(filesystem))
    assert result.status == "unverified"
    assert "`true` was not run: the run has no folder of this machine; give it a HostFilesystem" in result.explanation


async def test_changes_that_are_not_committed_are_no_files_of_a_folder(tmp_path: Path) -> None:
    overlay = OverlayFilesystem(HostFilesystem(tmp_path))
    overlay.write_text("report.md", "text")
    assert overlay.host_folder is None
    assert (await CommandChecker("test -s report.md").check(context(overlay))).status == "unverified"


async def test_a_program_that_cannot_be_watched_over_leaves_the_work_unverified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    result = await verdict_of(CommandChecker("true", cwd=tmp_path), context(None))
    assert result.status == "unverified"
    assert "the checker failed: ToolProcessError" in result.explanation


def test_a_text_is_split_into_words_and_a_list_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CommandChecker("pytest -q 'tests/a b.py'").arguments == ("pytest", "-q", "tests/a b.py")
    assert CommandChecker(["grep", "a | b", ""]).arguments == ("grep", "a | b", "")
    assert CommandChecker("true", timeout="90s").timeout == timedelta(seconds=90)
    monkeypatch.chdir(tmp_path)
    assert CommandChecker("true", cwd="sub").cwd == tmp_path / "sub"


def test_what_an_error_means_is_stated_at_the_checker() -> None:
    assert on_error_of(CommandChecker("true")) == "open"
    assert on_error_of(CommandChecker("true", on_error="closed")) == "closed"


@pytest.mark.parametrize(
    ("command", "options", "problem"),
    [
        ("", {}, "needs a program and its arguments as texts, not ''"),
        ("  ", {}, "needs a program and its arguments as texts"),
        ([], {}, "needs a program and its arguments as texts"),
        (["pytest", 3], {}, "needs a program and its arguments as texts"),
        (["pytest\0"], {}, "needs a program and its arguments as texts"),
        ([" "], {}, "names no program"),
        (None, {}, "needs a command as a text or a list of texts, not None"),
        (b"true", {}, "needs a command as a text or a list of texts"),
        ("echo 'open", {}, "cannot be split: No closing quotation"),
        ("make && make test", {}, r"'&&' in 'make && make test' needs a shell, and none is used; .*\['sh', '-c', "),
        ("pytest > log.txt", {}, "'>' in 'pytest > log.txt' needs a shell"),
        ("true", {"cwd": ""}, "cwd='' must be the name of a folder"),
        ("true", {"cwd": 7}, "cwd=7 must be the name of a folder"),
        ("true", {"cwd": b"sub"}, "cwd=b'sub' must be the name of a folder"),
        ("true", {"on_error": "close"}, "on_error='close' must be 'open' or 'closed'"),
    ],
)
def test_what_cannot_be_run_is_refused_when_it_is_made(command: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        CommandChecker(command, **options)


@pytest.mark.parametrize("timeout", [0, -1, "soon", None])
def test_a_time_limit_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(LimitsError, match="timeout"):
        CommandChecker("true", timeout=timeout)
