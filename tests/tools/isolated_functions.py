"""What isolated tools of the tests do in their processes: nothing of the tools' machinery is imported here."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Order:
    """An order.

    Attributes:
        number: Its number.
        due: Its day.
        colour: Its colour.
    """

    number: int
    due: date
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Filed:
    order: Order
    price: Decimal
    process: int


def file_order(order: Order) -> Filed:
    """File an order."""
    return Filed(order, Decimal("1.50"), os.getpid())


def reply_forged() -> str:
    """Send a reply of its own to where its process sends its reply."""
    forged = b'{"kind":"returned","result":{"$type":"fraction","value":"1e10000000"}}'
    for entry in os.listdir("/dev/fd"):
        descriptor = int(entry)
        try:
            pipe = descriptor > 2 and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
            if pipe and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.write(descriptor, len(forged).to_bytes(8) + forged)
        except OSError:
            continue
    os._exit(0)


def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


async def add_later(a: int, b: int) -> int:
    """Add, later."""
    import asyncio

    await asyncio.sleep(0)
    return a + b


def surroundings() -> dict[str, str]:
    """Tell where it runs."""
    return {"folder": os.getcwd(), "variable": os.environ.get("ISOLATED", ""), "input": sys.stdin.read()}


def fail(text: str) -> str:
    """Raise."""
    raise ValueError(text)


def do_nothing(text: str) -> str:
    """Fail before anything is done."""
    from watchkeeper.tools import NothingDoneError

    raise NothingDoneError(text)


def refuse(text: str) -> str:
    """Refuse."""
    from watchkeeper.core.errors import ToolValidationError

    raise ToolValidationError(text)


def give_up(text: str) -> Any:
    """Return a failure."""
    from watchkeeper.tools.values import ToolResult

    return ToolResult.error(text)


def leave(code: int) -> str:
    """End the process at once."""
    os._exit(code)


def exit_with(code: int, *, nothing: bool = False, text: bool = False) -> str:
    """Exit."""
    sys.exit(None if nothing else "said" if text else code)


def crash() -> str:
    """Read where nothing is."""
    print("about to read")
    print("really", file=sys.stderr, flush=True)
    ctypes.string_at(0)
    return "never"


def die(number: int) -> str:
    """Send itself a signal."""
    os.kill(os.getpid(), number)
    return "never"


def flood(size: int) -> str:
    """Print much and die."""
    print("x" * size)
    print("the end", flush=True)
    os._exit(1)


def large(size: int) -> str:
    """Return much."""
    return "y" * size


def unserialisable() -> Any:
    """Return what cannot travel."""
    return threading.Lock()


def doubled() -> Any:
    """Return little that is much if it is written."""
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    return value


def nested(levels: int) -> Any:
    """Return an empty list inside so many others."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def forge(before: str, part: str, times: int) -> None:
    """Write a reply by itself, and end."""
    head = '{"kind":"returned","said":"","result":{"$type":"tool_result","success":true,"message":"","value":'
    data = (head + before + part * times + "}}").encode()
    for entry in os.listdir("/dev/fd"):
        descriptor = int(entry)
        with suppress(OSError):
            if descriptor > 2 and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                rest = memoryview(len(data).to_bytes(8) + data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
    os._exit(0)


def surrogate() -> str:
    """Raise what cannot be written."""
    raise ValueError("\udc80")


def close_everything() -> str:
    """Close every pipe."""
    os.closerange(0, 256)
    return "done"


def take_the_place(path: str) -> str:
    """Close every pipe and open files instead."""
    highest = max(map(int, os.listdir("/dev/fd")))  # the pipes have the numbers that they have in the test's process
    os.closerange(3, highest + 1)
    for _ in range(3, highest + 1):
        os.open(path, os.O_CREAT | os.O_WRONLY)
    return "done"


def tell_and_wait(fifo: str, begun: int | None = None) -> None:
    """Hold a fifo open, tell the process id, live for ever."""
    with open(fifo, "w") as pipe:
        print(os.getpid(), file=pipe, flush=True)
        if begun is not None:
            os.write(begun, b"!")
        while True:
            signal.pause()


def wait(fifo: str) -> str:
    """Wait for ever."""
    tell_and_wait(fifo)
    return "never"


def wait_stubbornly(fifo: str) -> str:
    """Wait for ever, whatever TERM says."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell_and_wait(fifo)
    return "never"


def clean_up(fifo: str, note: str) -> str:
    """Wait, and clean up when told to end."""

    def ended(number: int, frame: object) -> None:
        with open(note, "w") as file:
            file.write("clean")
        os._exit(0)

    signal.signal(signal.SIGTERM, ended)
    tell_and_wait(fifo)
    return "never"


SHELL = 'trap "" TERM; exec 9>"$0"; echo $$ >&9; echo begun; sleep 600; echo late >"$0.late"'


def wait_for_shell(fifo: str) -> str:
    """Wait for a shell that ignores TERM and would write a file."""
    subprocess.run(["sh", "-c", SHELL, fifo], check=False)
    return "never"


def leave_shell(fifo: str, *, own_session: bool = False) -> str:
    """Return while a shell that ignores TERM goes on."""
    shell = subprocess.Popen(["sh", "-c", SHELL, fifo], start_new_session=own_session, stdout=subprocess.PIPE)
    assert shell.stdout is not None
    shell.stdout.readline()
    return "left"


def fork_and_exit(fifo: str) -> str:
    """Leave a fork of itself behind."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        tell_and_wait(fifo, writing)
    os.read(reading, 1)
    os._exit(0)


def outlive(fifo: str, number: int, again: bool) -> str:
    """Hide a process from the guard, as far from it as can be, and stop or kill the guard."""
    guard = os.getppid()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for each in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(each, signal.SIG_IGN)
            os.closerange(0, 3)
            with open(fifo, "w") as pipe:
                print(os.getpid(), file=pipe, flush=True)
                os.write(writing, b"!")
                while again:
                    with suppress(ProcessLookupError):
                        os.kill(guard, number)
                while True:
                    signal.pause()
        os._exit(0)
    os.read(reading, 1)
    os.kill(guard, number)
    while True:
        signal.pause()


def fail_at_length(characters: int) -> str:
    """Raise an exception that says too much."""
    raise ValueError("x" * characters)


def flood_reply(size: int) -> str:
    """Send more than a reply may take."""
    for entry in os.listdir("/dev/fd"):
        descriptor = int(entry)
        with suppress(OSError):
            pipe = descriptor > 2 and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
            if pipe and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                while size > 0:
                    size -= os.write(descriptor, bytes(min(size, 1 << 20)))
    os._exit(0)


def hold_interpreter(fifo: str) -> str:
    """Wait in C code that lets nothing else run."""
    with open(fifo, "w") as pipe:
        print(os.getpid(), file=pipe, flush=True)
        ctypes.PyDLL(None).sleep(600)
    return "never"


def kill_guard() -> str:
    """Kill the process that watches over this one."""
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()
    return "never"


def stop_guard(fifo: str) -> str:
    """Stop the process that watches over this one."""
    os.kill(os.getppid(), signal.SIGSTOP)
    tell_and_wait(fifo)
    return "never"


def place_in_trace() -> str:
    """Return the place in the trace that this process was told."""
    return os.environ.get("TRACEPARENT", "none")
