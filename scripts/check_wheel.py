"""Build the wheel and try it as a user would: on Python 3.11 and on the newest Python that this machine has.

For each: a clean environment outside the tree, first the bare wheel (import, its cost, the number of packages), then with
the extra `cli` the commands and the example with the scripted model, from a folder that holds nothing but the example.

Usage: check_wheel.py [-- ARGUMENTS OF `watchkeeper run` FOR THE EXAMPLE]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
LOWEST = (3, 11)
IMPORT_CPU_MS = 80.0
CORE_PACKAGES = 10
MEASURE_IMPORT = """
import resource, time
start = time.process_time()
import watchkeeper
cpu = time.process_time() - start
print(cpu * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


class Failed(Exception):
    """A step that did not do what a user may expect."""


def call(command: Sequence[str | Path], **options: object) -> str:
    """Run a command and return what it printed; its output is part of the failure."""
    done = subprocess.run(  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    )
    return done.stdout
