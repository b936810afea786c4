"""A checker that judges by the exit code of a command, for example of the test suite.

Exit code 0 is complete; any other is incomplete, with the end of what the command printed as the explanation for the
agent. The work is unverified if the command could not be started, was ended by its time limit or by a signal from
outside, or has no folder to run in. No shell is involved, and no process of the command outlives the check.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, cast

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.quantities import DurationLike, duration, format_duration
from watchkeeper.prompt.completion import OnError, TaskCompletionContext, TaskCompletionResult, on_error_of
from watchkeeper.tools.isolation.call import CommandEnd, run_command, signal_name

OUTPUT_BYTES: Final = 3000
"""The length of the end of a command's output that the agent is shown, in bytes of UTF-8."""

SHELL_WORDS: Final = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1"})
"""Words that only a shell understands; without a shell, the program would get them as arguments."""

FROM_OUTSIDE: Final = frozenset({"SIGHUP", "SIGINT", "SIGKILL", "SIGTERM"})
"""Signals that other processes send to end a program; all others are failures of the program itself."""


@dataclass(frozen=True, slots=True)
class CommandChecker:
    """The work is complete when a command ends with exit code 0.

    It runs in ``cwd``, else in the folder of the run's `HostFilesystem`, with the environment and the rights of this
    process. After ``timeout``, or at the end of the run's time, it gets TERM, and KILL two seconds later, together with
    all processes that it has started.

    Attributes:
        command: The program and its arguments; a text is split into words as a shell would, but no shell runs it.
        cwd: The folder in which it runs; relative to the current folder at the time the checker is made.
        timeout: How long it may take: "5m", a timedelta, seconds.
        description: What its success means, worded for the agent: "the tests pass".
        on_error: What follows if it cannot tell: ``open`` ends the run as done but not verified, ``closed`` stops it.
        arguments: The program and its arguments, one text each.
    """

    command: str | Sequence[str]
    cwd: str | os.PathLike[str] | None = None
    timeout: DurationLike = "5m"
    description: str = ""
    on_error: OnError = "open"
    arguments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Refuse an invalid command, folder or policy.

        Raises:
            ConfigurationError: Naming it.
            LimitsError: For a time limit that is not a duration.
        """
        put = object.__setattr__
        put(self, "arguments", words_of(self.command))
        put(self, "timeout", duration(self.timeout, "timeout"))
        if self.cwd is not None:
            put(self, "cwd", Path(os.path.abspath(_folder_name(self.cwd))))
        on_error_of(self)

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        """Run the command and judge by how it ended."""
        folder = cast("Path | None", self.cwd)
        if folder is None and context.filesystem is not None:
            folder = context.filesystem.host_folder
        if folder is None:
            return TaskCompletionResult.unverified(
                f"{self._shown} was not run: the run has no folder of this machine; give it a HostFilesystem, or the "
                "checker a cwd"
            )
        seconds = cast("timedelta", self.timeout).total_seconds()
        return self._judged(await run_command(self.arguments, folder, seconds, context.session.clock))

    @property
    def _shown(self) -> str:
        return f"`{shlex.join(self.arguments)}`"

    def _judged(self, end: CommandEnd) -> TaskCompletionResult:
        if end.problem:
            return TaskCompletionResult.unverified(f"{self._shown} was not run: {end.problem}")
        undecided = self._undecided(end)
        if undecided:
            return TaskCompletionResult.unverified(f"{self._shown} {undecided}{_printed(end.output)}")
        if end.status == 0:
            return TaskCompletionResult.ok(self.description or f"{self._shown} ended with exit code 0")
        missing = f"this does not hold yet: {self.description}. " if self.description else ""
        status = cast("int", end.status)
        ending = f"was ended by {signal_name(status)}" if status < 0 else f"ended with exit code {status}"
        return TaskCompletionResult.incomplete(f"{missing}{self._shown} {ending}{_printed(end.output)}")

    def _undecided(self, end: CommandEnd) -> str:
        """Return why the end of the command gives no verdict; empty if it gives one."""
        if end.timed_out:
            return f"was not over within {format_duration(cast('timedelta', self.timeout))} and was ended"
        if end.status is None:
            return "was lost: its exit code is unknown"
        if end.status < 0 and signal_name(end.status) in FROM_OUTSIDE:
            return f"was ended from outside, by {signal_name(end.status)}"
        return ""


def words_of(command: object) -> tuple[str, ...]:
    """Return a command as a program and its arguments.

    Raises:
        ConfigurationError: If it is not a text or a sequence of texts, is empty, or needs a shell.
    """
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigurationError(f"CommandChecker: the command {command!r} cannot be split: {error}") from error
        for word in words:
            if word in SHELL_WORDS:
                raise ConfigurationError(
                    f"CommandChecker: {word!r} in {command!r} needs a shell, and none is used; give a script, or "
                    f"['sh', '-c', {command!r}]"
                )
    elif isinstance(command, Sequence) and not isinstance(command, bytes | bytearray):
        words = list(cast("Sequence[str]", command))
    else:
        raise ConfigurationError(f"CommandChecker needs a command as a text or a list of texts, not {command!r}")
    if not words or not all(isinstance(word, str) and "\0" not in word for word in cast("list[object]", words)):
        raise ConfigurationError(f"CommandChecker needs a program and its arguments as texts, not {command!r}")
    if not words[0].strip():
        raise ConfigurationError(f"CommandChecker: the command {command!r} names no program")
    return tuple(words)


def _folder_name(given: object) -> str:
    name = os.fspath(cast("str", given)) if isinstance(given, str | os.PathLike) else ""
    if isinstance(cast("object", name), str) and name.strip() and "\0" not in name:
        return name
    raise ConfigurationError(f"CommandChecker: cwd={given!r} must be the name of a folder")


def _printed(output: str) -> str:
    """Return the end of an output for an explanation; if it is cut, from the beginning of a line."""
    text = output.strip()
    if not text:
        return "; it printed nothing"
    data = text.encode()
    if len(data) > OUTPUT_BYTES:
        end = data[-OUTPUT_BYTES:].decode(errors="ignore")
        _, newline, whole_lines = end.partition("\n")
        text = f"…\n{whole_lines if newline else end}"
    return f". Its output ended with:\n{text}"
