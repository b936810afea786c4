"""What ``watchkeeper store`` does to the folder of a store, and the lines in which it says so."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

from watchkeeper.app.settings import settings_here, text_from
from watchkeeper.cli.console import make_console, printing, put
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.core.quantities import counted, how_long_ago
from watchkeeper.store.older_store import import_runs, older_store
from watchkeeper.store.run_index import RunIndex
from watchkeeper.store.run_store import VARIABLE, RunStore, is_old_store, store_path
from watchkeeper.disk.sqlite import DEFAULT, chosen_file, failing_as
from watchkeeper.store.upkeep import Finding, compact, files_of, findings, prune


def check(store: RunStore) -> None:
    """Print a line for every file that is not as it should be.

    Raises:
        StoreError: If a file is damaged.
    """
    with failing_as(f"{store.path} cannot be checked"):
        found, files = list(findings(store.path)), counted(len(files_of(store.path)), "file")
    damaged = sum(each.damaged for each in found)
    with printing() as out:
        for each in found:
            _put(out, "damaged" if each.damaged else "left", _line(each), "red" if each.damaged else "dim")
        if not damaged:
            put(make_console(out), f"nothing is damaged in the {files} of {store.path}")
    if damaged:
        raise StoreError(f"{store.path}: {damaged} of {files} cannot be read whole; other runs can be read")


def tidy(store: RunStore) -> None:
    """Remove what crashes left behind, and print a line for each removal.

    Raises:
        StoreError: If a file cannot be changed.
    """
    removed: list[Finding] = []
    try:
        with failing_as(f"{store.path} cannot be compacted whole"):
            removed.extend(compact(store.path))  # what was removed before a failure is in it
    finally:
        _print_removed(store, removed)


def _print_removed(store: RunStore, removed: Sequence[Finding]) -> None:
    with printing() as out:
        for each in removed:
            _put(out, "removed", _line(each), "dim")
        size = _bytes(sum(each.size for each in removed))
        put(make_console(out), f"removed {size} from {counted(len(removed), 'file')} of {store.path}")


def delete_older(store: RunStore, older: str, *, dry_run: bool) -> None:
    """Delete runs that ended longer ago than this, and say how many.

    Raises:
        LimitsError: If that is no length of time.
        StoreError: If a file cannot be deleted.
    """
    before = SYSTEM_CLOCK.now() - how_long_ago(older, "--older")
    with failing_as(f"not all old runs of {store.path} could be deleted"):
        done = prune(store.path, before, dry_run=dry_run)
    below = f" and {done.below:,} below them" if done.below else ""
    kept = f"; {done.kept:,} older kept: not ended, or not readable" if done.kept else ""
    would = "would delete" if dry_run else "deleted"
    with printing() as out:
        said = f"{would} {counted(done.runs, 'run')}{below}, {_bytes(done.size)}, from {store.path}{kept}"
        put(make_console(out), said)


def reindex(store: RunStore) -> None:
    """Make the index anew.

    Raises:
        StoreError: If it cannot be written.
    """
    with closing(RunIndex(store.path)) as index, failing_as("the index cannot be made anew"):
        count = index.renew()
    with printing() as out:
        put(make_console(out), f"indexed {counted(count, 'file')} of {store.path}")


def bring_in(file: Path, store: str | None) -> None:
    """Write the runs of a store of version 0.1 into a folder, by default the one beside it.

    Raises:
        ConfigurationError: If it is no such store, or no folder is named.
        StoreError: If it cannot be read, or the folder cannot be written.
    """
    if not is_old_store(file):
        raise ConfigurationError(f"{file} is not the file of a store of version 0.1")
    path = store_path(file if store is None else store)
    if path is None:
        raise ConfigurationError(f"--store={store} names no folder")
    with RunStore(path) as into:
        done = import_runs(file, into.path)
    was = "was" if done.there == 1 else "were"
    there = f"; {done.there:,} {was} there already" if done.there else ""
    with printing() as out:
        for run_id, which in done.missing.items():
            _put(out, "missing", f"{run_id}: events {which} are not in the older store", "yellow")
        for run_id, why in done.unreadable.items():
            _put(out, "left out", f"{run_id}: {why}", "red")
        put(make_console(out), f"brought {counted(done.runs, 'run')} into {path}{there}; {file} stays as it is")
    if done.unreadable:
        raise StoreError(f"{counted(len(done.unreadable), 'run')} of {file} cannot be read; all others are in {path}")


def older_runs(named: Path | str, store: Path) -> str:
    """Return how to bring in the runs of a store of version 0.1 that a folder lacks; empty if there is none.

    Args:
        named: What was named as the store.
        store: The folder that it means.
    """
    own = chosen_file(named, VARIABLE, store.name, frozenset(), None)
    file = older_store(store if own is None else own, store)
    if file is None:
        return ""
    into = "" if store == store_path(file) else f" --store {shlex.quote(str(store))}"
    command = f"watchkeeper store import {shlex.quote(str(file))}{into}"
    return f"{file} is a store of version 0.1, and its runs are not here yet: {command}"


def to_type(command: str, store: Path, folder: Path | None = None) -> str:
    """Return a command to type; it names the store, unless without that it would open the same.

    Args:
        command: What follows the name of the program.
        store: The folder of the store.
        folder: In which folder it will be typed; the working folder if None.
    """
    folder = folder or Path.cwd()
    try:
        own = store_path(text_from(settings_here(folder=folder), "store") or DEFAULT)
    except ConfigurationError:  # the settings were changed since
        own = None
    found = own is not None and os.path.abspath(folder / own) == os.path.abspath(folder / store)
    return f"watchkeeper {command}" + ("" if found else f" --store {shlex.quote(str(store))}")


def _put(out: TextIO, word: str, rest: str, style: str) -> None:
    put(make_console(out), (f"{word:<8} ", style), rest)


def _line(found: Finding) -> str:
    size = f" ({_bytes(found.size)})" if found.size else ""
    return f"{found.name}: {found.what}{size}"


def _bytes(size: int) -> str:
    """Return a number of bytes in a unit that fits."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= one:
            return f"{size / one:,.1f} {unit}"
    return counted(size, "byte")
