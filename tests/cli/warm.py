"""A process that has imported the command line and copies itself for every command that a test sends.

Each command is a real process, with signals, streams and an end of its own, in the time of a fork. Tests of what the
interpreter does before the first import (closed streams, encodings) start one of their own instead.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from functools import cache
from typing import TypedDict
from unittest.mock import patch

import typer.main

IMPORTED = (
    "pydantic.type_adapter",
    "watchkeeper.cli.main",
    "watchkeeper.local.model",
    "watchkeeper.ledgers.sqlite_ledger",
)

command_of = cache(typer.main.get_command)
"""What typer makes of the commands' functions for each call: where several are called, all would wait for it."""


class Command(TypedDict):
    """What a test sends."""

    folder: str
    environ: dict[str, str]
    arguments: list[str]
    nohup: bool


def main() -> None:
    """Serve commands, one after another; in the copy, run one and end as ``python -m watchkeeper`` does."""
    for name in IMPORTED:
        importlib.import_module(name)
    from watchkeeper.cli.entry import main as run
    from watchkeeper.cli.main import app

    command_of(app)
    patch.object(typer.main, "get_command", command_of).start()
    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, streams, *_ = socket.recv_fds(control, 1 << 20, 3)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            begin(json.loads(data), streams)
            run()
        for stream in streams:
            os.close(stream)
        control.send(str(pid).encode())
        control.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def begin(command: Command, streams: list[int]) -> None:
    """Take the place of a fresh process: its streams, folder, environment and arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    encoding, _, errors = command["environ"].get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = open(0, encoding=encoding, errors=errors or None, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, errors=errors or None, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environ"])
    sys.path[0] = command["folder"]
    sys.argv = ["watchkeeper", *command["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if command["nohup"] else signal.SIG_DFL)


if __name__ == "__main__":
    main()
