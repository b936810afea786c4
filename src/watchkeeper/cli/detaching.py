"""``--detach``: a run in a process of its own, which goes on when the terminal is closed; and ``watchkeeper cancel``.

The process is a copy of the command, so folder, environment and Python are the same. It has a session of its own and
no input, and what it prints goes to a file beside the run's record, from the moment at which the run's beginning is on
record. Until then the command waits: what cannot begin is told as without ``--detach``, and leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TextIO, cast
from uuid import UUID

from watchkeeper.app.options import StoreLike
from watchkeeper.app.settings import settings_here, text_from
from watchkeeper.cli import running
from watchkeeper.cli.console import complain, error_console, make_console, move_output, pass_on, printing, put, say
from watchkeeper.cli.stored.listing import SHORT_ID
from watchkeeper.cli.stored.story import with_children
from watchkeeper.cli.stored.under_way import parts_of_call, under_way_in
from watchkeeper.cli.storing import to_type
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.text import one_line
from watchkeeper.runtime.events import ManyStarted, RunResumed, RunStarted
from watchkeeper.runtime.portal import EndRequests, heeding
from watchkeeper.disk.power import Durability
from watchkeeper.store.run_file import LOG_SUFFIX
from watchkeeper.store.run_index import RUNS, StoredRun
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore, store_path


class _WatchedStore(RunStore):
    """A store that says when the beginning of a run is on record, or that it goes on."""

    def __init__(self, path: Path, durability: Durability, begun: Callable[[Path, UUID], None]) -> None:
        """Open the folder; ``begun`` is called once, with the folder and the run's id."""
        super().__init__(path, durability=durability)
        self._begun: Callable[[Path, UUID], None] | None = begun

    def append(self, batch: Sequence[Item]) -> None:
        """Write a batch, and look whether a run begins with it."""
        super().append(batch)
        if self._begun is None or self.first_run is None:
            return
        events = (getattr(item.envelope, "event", None) for item in batch if not item.past)
        if any(isinstance(event, RunStarted | ManyStarted | RunResumed) for event in events):
            begun, self._begun = self._begun, None
            begun(self.path, self.first_run)


def carry_out_detached(order: running.Order) -> int:
    """Start what was ordered in a process of its own, say how to look at it, and return the exit code.

    Raises:
        ConfigurationError: If it cannot be detached.
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("--detach needs fork(), which this system lacks; start the command in the background")
    if order.as_jsonl:
        raise ConfigurationError("--jsonl prints while the run goes on, --detach does not; see watchkeeper show --json")
    if order.views:
        raise ConfigurationError("--view ends with this command, --detach does not; see watchkeeper view")
    if store_path(text_from(settings_here(order.given), "store") or "default") is None:
        raise ConfigurationError(
            "--detach needs a store: it is where you look at the run; leave out --store none, or name a folder"
        )
    for stream in (cast("TextIO | None", sys.stdout), cast("TextIO | None", sys.stderr)):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as early:
        process = os.fork()
        if process == 0:
            os.close(reader)
            return _as_detached(order, early, writer)
        os.close(writer)
        with open(reader, encoding="utf-8") as told:
            return _started(order, process, told, early)


def _started(order: running.Order, process: int, told: IO[str], early: IO[bytes]) -> int:
    """Wait until the run has begun, and say so; if it did not begin, say what its process has said."""
    requests = EndRequests()
    with heeding(requests):
        try:
            line = told.readline()
            code = 0 if line else _code_of(process)
        except KeyboardInterrupt:
            os.kill(process, signal.SIGTERM)
            return running.signalled(requests)
    if line:
        begun = json.loads(line)
        try:
            _print_started(order, process, begun)
        except SystemExit:  # what could not be printed is said; the run goes on, and must not be begun once more
            say(error_console(), f"detached: run {begun['run_id']}, process {process}")
        return code
    pass_on(early)
    if code >= running.SIGNALLED:
        complain(error_console(), f"the process of the run ended before the run began (exit code {code})")
    return code


def _code_of(process: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return running.SIGNALLED - code if code < 0 else code


def _print_started(order: running.Order, process: int, begun: dict[str, str]) -> None:
    """Print what has begun, and the commands with which to look at it and to end it."""
    with printing() as out:
        if order.as_json:
            out.write(json.dumps({**begun, "process": process}) + "\n")
            return
        console, short = make_console(out), begun["run_id"][:SHORT_ID]
        typed = partial(to_type, store=Path(begun["store"]), folder=order.folder)
        put(console, ("detached", "green"), f"  run {begun['run_id']}, process {process}")
        put(console, f"output    {begun['log'] or 'nowhere: ' + one_line(begun['log_error'])}")
        put(console, f"look      {typed(f'show {short}')}, or {typed('runs')}")
        put(console, f"cancel    {typed(f'cancel {short}')}; a second time ends it at once")
        put(console, f"resume    {typed(f'resume {short}')}, if its process has died")


def _as_detached(order: running.Order, early: IO[bytes], writer: int) -> int:
    """Do what was ordered, as the new process; return the exit code.

    Nobody reads that code or the end of the output; both are in the record of the run.
    """
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, early.fileno(), early.fileno())):
        os.dup2(file, number)
    os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # whoever follows the file reads every line at once
            reconfigure(line_buffering=True)

    def begun(folder: Path, run_id: UUID) -> None:
        facts = {"run_id": str(run_id), "store": str(folder), "log": "", "log_error": ""}
        log = folder.absolute() / RUNS / f"{run_id}{LOG_SUFFIX}"
        try:
            move_output(early.fileno(), log)
            facts["log"] = str(log)
        except OSError as error:  # the run is worth more than what it prints
            facts["log_error"] = str(error)
        with suppress(OSError):  # the command was ended meanwhile
            os.write(writer, json.dumps(facts).encode() + b"\n")
        os.close(writer)

    def opener(where: RunStore | StoreLike, durability: Durability | None) -> RunStore | None:
        path = None if where is None or isinstance(where, RunStore) else store_path(where)
        return None if path is None else _WatchedStore(path, durability or "process", begun)

    return running.carry_out(replace(order, as_json=False), opener)


def print_cancelled(run: StoredRun, store: RunStore, *, waited: bool) -> int:
    """Say what has become of a run that was asked to end; return the exit code.

    Args:
        run: The run as it is stored now.
        store: Its store.
        waited: Whether its end was waited for.
    """
    short, path = run.run_id[:SHORT_ID], store.path
    with printing() as out:
        console = make_console(out)
        if not run.running:
            put(console, one_line(run.sentence()))
            for each, words in under_way_in(store, with_children(store, run)):
                put(console, *parts_of_call(words, None if each is run else each))
            return running.DONE
        if not waited:
            look = to_type(f"show {short}", path)
            put(console, f"asked process {run.process} to land the run {short}; look: {look}")
            put(console, (f"once more ends it at once: {to_type(f'cancel {short}', path)}", "dim"))
            return running.DONE
        put(console, (f"It was asked to end. {one_line(run.sentence())}", "yellow"))
    return running.STOPPED
