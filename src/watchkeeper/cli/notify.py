"""Tells somebody that a run is over, with a command: the result as JSON on its stdin, the outcome in its environment.

The command is checked before the run starts. Its own failure is said, and changes nothing else.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any, Final

from watchkeeper.core.errors import ConfigurationError

SECONDS: Final = 60.0
"""How long the command may take."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A command to run at the end.

    Attributes:
        words: Program and arguments; no shell reads them.
    """

    words: tuple[str, ...]

    @classmethod
    def parse(cls, command: str) -> Notification:
        """Read a command line.

        Raises:
            ConfigurationError: If it cannot be read, or there is no such program.
        """
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise ConfigurationError(f"--notify {command!r} cannot be read: {error}") from error
        if not words:
            raise ConfigurationError("--notify names no command")
        if shutil.which(words[0]) is None:
            raise ConfigurationError(
                f"--notify: there is no program {words[0]!r}; it is run without a shell, so write sh -c '...' for one"
            )
        return cls(words)

    def send(self, data: dict[str, Any], *, quiet: bool) -> str | None:
        """Run it; return what went wrong, or None.

        Args:
            data: The result.
            quiet: Whether what it prints must stay out of standard output.
        """
        facts = {"WATCHKEEPER_RUN_ID": str(data["run_id"]), "WATCHKEEPER_OK": str(data["ok"]).lower()}
        try:
            done = subprocess.run(
                self.words,
                input=json.dumps(data),
                text=True,
                env={**os.environ, **facts},
                stdout=2 if quiet else None,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, ValueError) as error:
            return f"--notify {self.words[0]}: {error}"
        except subprocess.TimeoutExpired:
            return f"--notify {self.words[0]}: not over after {SECONDS:g} s"
        return f"--notify {self.words[0]}: exit code {done.returncode}" if done.returncode else None
