"""A process that has imported the command line and copies itself for every command that a test sends.

Each command is a real process, with signals, streams and an end of its own, in the time of a fork. Tests of what the
interpreter does before the first import (closed streams, encodings) start one of their own instead.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Serve commands, one after another; in the copy, run one and end as ``python -m watchkeeper`` does."""
    import watchkeeper.cli.main
    import watchkeeper.local.model
    import watchkeeper.store.sqlite_ledger  # noqa: F401
    from watchkeeper.cli.entry import main as command

    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, streams, *_ = socket.recv_fds(control, 1 << 20, 3)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            begin(json.loads(data), streams)
            command()
        for stream in streams:
            os.close(stream)
        control.send(str(pid).encode())
        control.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def begin(order: dict[str, object], streams: list[int]) -> None:
    """Take the place of a fresh process: its streams, folder, environment and arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    folder, environ, arguments = order["folder"], order["environ"], order["arguments"]
    assert isinstance(folder, str)
    assert isinstance(environ, dict)
    assert isinstance(arguments, list)
    encoding, _, errors = str(environ.get("PYTHONIOENCODING", "utf-8")).partition(":")
    sys.stdin = open(0, encoding=encoding, errors=errors or None, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, errors=errors or None, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[0] = folder
    sys.argv = ["watchkeeper", *arguments]
    if order["nohup"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


if __name__ == "__main__":
    main()
