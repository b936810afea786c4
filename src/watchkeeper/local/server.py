"""The engine's process, managed by its parent: start, address, crash, respawn, end.

One engine per process and model, shared by all its users in the process, and closed with the last of them. Processes do
not share an engine: the end of its owner would cut off the answers of the others. They do share the memory of the
weights, because every engine maps the same file. The engine's output goes to a log file that every error names; the
file goes away when the engine ends well. An engine never outlives its parent.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Final

from watchkeeper.core.errors import MissingExtraError, ProviderError, ProviderFault
from watchkeeper.core.forks import ModuleLock, in_forked

PROVIDER: Final = "local"
ENGINE_PACKAGES: Final = ("xllamacpp", "openai", "aiohttp")
ENGINE: Final = Path(__file__).with_name("engine.py")
READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 5.0
END_SECONDS: Final = 5.0
LOG_TAIL_BYTES: Final = 4096
ENGINE_ERROR: Final = re.compile(r"^[\d.]+ E +(.+)$", re.MULTILINE)
MAX_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with.

    Attributes:
        model: The GGUF file.
        alias: Name under which the model answers.
        context: Tokens that a conversation may have.
        threads: Threads that compute.
    """

    model: str
    alias: str
    context: int
    threads: int


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where a running engine answers.

    Attributes:
        url: Address without a path.
        key: The key that it requires, so that no other user of the machine can use it.
        pid: The engine's process.
        newlines: Tokens that begin an indented line; without them JSON is a third shorter and still valid.
    """

    url: str
    key: str = field(repr=False)
    pid: int
    newlines: tuple[int, ...] = ()

    @property
    def base_url(self) -> str:
        """Address of the OpenAI-compatible interface."""
        return f"{self.url}/v1"


class LocalServer:
    """One engine process, started when it is first needed and again after it died.

    Args:
        options: The options with which the engine is started.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._address: EngineAddress | None = None
        self._owner = 0
        self.log: Path | None = None

    def address(self) -> EngineAddress | None:
        """Return the engine's address; None if it does not run, or belongs to the process that this one forked from."""
        process = self._process
        alive = process is not None and self._owner == os.getpid() and process.poll() is None
        return self._address if alive else None

    def ensure(self) -> EngineAddress:
        """Return where the engine answers, starting it if necessary, which blocks for seconds.

        Raises:
            ProviderError: If it cannot be started; names the log file.
        """
        with self._lock:
            address = self.address()
            if address is None:
                self._discard()
                address = self._start()
            return address

    def describe_end(self) -> str | None:
        """Say how the engine ended, or return None if it runs; waits a moment, for connections break before the end."""
        process = self._process
        if process is None or self._owner != os.getpid():
            return None
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return f"the local engine {_ending(code)}{self._log_words(-1)}"

    def close(self) -> None:
        """End the engine and wait until its process has ended; does nothing if it does not run."""
        with self._lock:
            self._discard()

    def renew_lock(self) -> None:
        """Replace the lock in a forked process: a thread that held it is not there to release it."""
        self._lock = threading.Lock()

    def _start(self) -> EngineAddress:
        with open_log() as log:
            self.log = Path(log.name)
            options = json.dumps({**asdict(self.options), "log": log.name})
            try:
                process = subprocess.Popen(
                    # -P: the folder of this file must not shadow packages of the same names.
                    [sys.executable, "-P", str(ENGINE), options],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,  # a buffer has a lock, which a process that is forked meanwhile could not get
                    stderr=log,
                    # A Ctrl-C in the terminal is for the parent alone.
                    start_new_session=True,
                )
            except OSError as error:
                raise self._start_error(f"could not be started: {error}", "bad_request") from error
        self._process, self._owner = process, os.getpid()
        line = _first_line(process, READY_SECONDS)
        if line is None:
            self._discard()
            raise self._start_error(f"was not ready after {READY_SECONDS:g} s", "server")
        try:
            said = json.loads(line)
            address = EngineAddress(str(said["url"]), str(said["key"]), process.pid, tuple(said["newlines"]))
        except (ValueError, KeyError, TypeError) as error:
            self._discard()
            code = process.returncode
            # A signal may mean that memory was full, so a retry may help; a refused file stays refused.
            raise self._start_error(_ending(code), "server" if code < 0 else "bad_request") from error
        self._address = address
        return address

    def _start_error(self, what: str, fault: ProviderFault) -> ProviderError:
        return ProviderError(
            f"the local engine {what} (model {self.options.model}){self._log_words(0)}", fault=fault, provider=PROVIDER
        )

    def _log_words(self, which: int) -> str:
        # The most useful error line is the first one for a refused file, and the last one for a crash.
        words = _complaint(self.log, which)
        return f"{f'; it said: {words}' if words else ''}; its log: {self.log}"

    def _discard(self) -> None:
        """Let go of the process, ending it unless it belongs to the process this one forked from."""
        process, self._process, self._address = self._process, None, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        if self._owner != os.getpid():
            # Not our child: it cannot be waited for, and must not be ended.
            process.returncode = 0
            return
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _first_line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """Return the first line a process writes, empty if it ended before; None (and the process killed) if time is up."""
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        line = process.stdout.readline() if process.stdout is not None else b""
    finally:
        timer.cancel()
    return None if expired.is_set() and not line else line


def _ending(code: int) -> str:
    if code == -9:
        return "was killed (signal 9; if nobody did that, the memory was full: the model needs about 2 GB)"
    return f"died of signal {-code}" if code < 0 else f"ended with code {code}"


def _complaint(log: Path | None, which: int) -> str:
    """Return one of the last lines of a log that tell of errors, chosen by its index."""
    try:
        text = log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace") if log is not None else ""
    except OSError:
        return ""
    # The engine writes its lines from a thread of its own, so the end of the program may come before them.
    lines = ENGINE_ERROR.findall(text) or [line.strip() for line in text.splitlines() if "rror" in line]
    return lines[which] if lines else ""


def open_log() -> IO[bytes]:
    """Open a new log file in the user's log folder, or where temporary files go if that cannot be written."""
    import platformdirs

    folder = platformdirs.user_log_path("watchkeeper", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _new_log(folder)
    except OSError:
        return _new_log(None)


def _new_log(folder: Path | None) -> IO[bytes]:
    return tempfile.NamedTemporaryFile(dir=folder, prefix="watchkeeper-engine-", suffix=".log", delete=False)


def default_threads() -> int:
    """Return how many threads compute: the cores that this process may use, at most eight."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(usable, MAX_THREADS)


def check_engine() -> None:
    """Check that the engine and the client that speaks to it are installed, without loading them.

    Raises:
        MissingExtraError: If one is not.
    """
    if any(importlib.util.find_spec(name) is None for name in ENGINE_PACKAGES):
        raise MissingExtraError("The local model", "local")


class SharedServers:
    """The engines of this process, one for each set of options, counted."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = ModuleLock()
        self._held: dict[EngineOptions, tuple[LocalServer, int]] = {}

    def acquire(self, options: EngineOptions) -> LocalServer:
        """Return the engine with these options; it starts when it is first asked for an address."""
        with self._lock:
            server, count = self._held.get(options) or (LocalServer(options), 0)
            self._held[options] = (server, count + 1)
            return server

    def release(self, server: LocalServer) -> None:
        """Give an engine back; it ends with its last user."""
        with self._lock:
            held, count = self._held.get(server.options) or (server, 1)
            if held is server and count > 1:
                self._held[server.options] = (server, count - 1)
                return
            self._held.pop(server.options, None)
        server.close()

    def close(self) -> None:
        """End every engine."""
        with self._lock:
            held, self._held = self._held, {}
        for server, _ in held.values():
            server.close()

    def renew_locks(self) -> None:
        """Let each engine be used in a forked process."""
        for server, _ in self._held.values():
            server.renew_lock()


SERVERS: Final = SharedServers()
atexit.register(SERVERS.close)
in_forked(SERVERS.renew_locks)
