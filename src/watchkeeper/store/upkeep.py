"""Looks after the folder of a store: finds what is damaged, removes what nobody needs any more, and deletes old runs.

Nothing here touches a run on which a living process works. What a crash leaves behind the last whole line of a file is
no damage: readers ignore it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.quantities import counted
from watchkeeper.runtime.parking import PARKED
from watchkeeper.store.run_file import LOG_SUFFIX, SUFFIX, VERSION, DamagedLineError, held, is_owned, is_whole
from watchkeeper.store.run_file import read_lines, reading
from watchkeeper.store.plain_json import UNREADABLE
from watchkeeper.store.run_index import NOT_BEGUN, RUNS, RunIndex, StoredRun, stored_run
from watchkeeper.store.run_store import event_lines, event_of

PART: Final = ".part"
"""How the name of a file ends that is being made; it gets its own name when it is whole."""

FRESH_SECONDS: Final = 60.0
"""A file that was changed less than this long ago may be one that a process is just beginning."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not as it should be with a file of a store.

    Attributes:
        name: Of the file, in the folder of the runs.
        what: What was found, in words.
        damaged: Whether something is lost; else it is only what a crash leaves behind.
        size: How many bytes can be removed.
    """

    name: str
    what: str
    damaged: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or would be.

    Attributes:
        runs: How many runs without those below them.
        below: How many runs below them.
        size: How many bytes.
        kept: How many that began before the time were kept, because they have not ended or cannot be read.
    """

    runs: int
    below: int
    size: int
    kept: int


def files_of(store: Path) -> tuple[Path, ...]:
    """Return the files of runs, sorted by name: runs below a run come after it."""
    return tuple(sorted((store / RUNS).glob(f"*{SUFFIX}")))


def findings(store: Path) -> Iterator[Finding]:
    """Read every line of every run, and yield what is not as it should be."""
    for path in files_of(store):
        with suppress(FileNotFoundError):  # it was removed just now
            found = finding(path)
            if found is not None and (found.damaged or not is_owned(path)):  # else it is being written
                yield found


def finding(path: Path) -> Finding | None:
    """Read every line of a file, and return what is not as it should be; None if all is well.

    Raises:
        FileNotFoundError: If it is not there.
    """
    try:
        with reading(path) as file:
            for line in event_lines(file, calls=True):
                event_of(line)
            end, left = _whole_end(file)
    except FileNotFoundError:
        raise
    except (OSError, *UNREADABLE) as error:
        return Finding(path.name, str(error), damaged=True)
    if left and left.endswith(b"\n") and not is_whole(left.splitlines(keepends=True)[-1]):
        return Finding(path.name, "its last line is damaged", damaged=True)
    run = stored_run(path)
    if run.damage is not None and run.damage != NOT_BEGUN:
        return Finding(path.name, run.damage, damaged=True)
    if run.damage is not None:
        return Finding(path.name, "its process died before the run had begun", damaged=False, size=end + len(left))
    if left:
        what = f"its process died while it wrote the last {counted(len(left), 'byte')}"
        return Finding(path.name, what, damaged=False, size=len(left))
    return None


def _whole_end(file: BinaryIO) -> tuple[int, bytes]:
    """Return where the last whole group of lines of a file ends, and what is behind it.

    Raises:
        DamagedLineError: If it is damaged, its owners are out of order, or a newer version wrote it.
    """
    end = epoch = 0
    for position, line in read_lines(file):
        end = position
        if line.owner is not None:
            if line.owner.version > VERSION:
                raise DamagedLineError("a newer Watchkeeper wrote it; check it with that one")
            if line.owner.epoch != epoch + 1:
                raise DamagedLineError(f"after owner {epoch} comes owner {line.owner.epoch}")
            epoch = line.owner.epoch
    file.seek(end)
    return end, file.read()


def compact(store: Path) -> Iterator[Finding]:
    """Remove what crashes left behind, and yield what was removed; damaged files stay as they are.

    Raises:
        OSError: If files cannot be changed; all others are done before.
    """
    now = SYSTEM_CLOCK.now().timestamp()
    failure: OSError | None = None
    for path in files_of(store):
        try:
            if (found := _compacted(path, now)) is not None:
                yield found
        except OSError as error:
            failure = failure or error
    for path in (store / RUNS).glob(f"*{PART}"):
        with suppress(FileNotFoundError):
            at = path.stat()
            if now - at.st_mtime >= FRESH_SECONDS:
                path.unlink()
                yield Finding(path.name, "its import was broken off", damaged=False, size=at.st_size)
    if failure is not None:
        raise failure


def _compacted(path: Path, now: float) -> Finding | None:
    """Remove from a file what a crash left behind, and return what that was, if there was any.

    Raises:
        OSError: If it cannot be changed.
    """
    with suppress(FileNotFoundError), held(path) as free:
        found = finding(path) if free else None
        if found is None or found.damaged:
            return None
        at = path.stat()
        if found.size < at.st_size:
            os.truncate(path, at.st_size - found.size)
        elif now - at.st_mtime < FRESH_SECONDS:
            return None
        else:
            path.unlink()
        return found
    return None


def prune(store: Path, before: datetime, *, dry_run: bool = False) -> Pruned:
    """Delete the runs that ended before a time, each with those below it; never one that runs, is parked or damaged.

    Args:
        store: The folder of the store.
        before: The time.
        dry_run: Whether to delete nothing, and say only what would be deleted.

    Raises:
        OSError: If files cannot be deleted; all others are before.
    """
    failure: OSError | None = None
    files: dict[str, list[str]] = {}
    for name in filter(_is_of_a_run, os.listdir(store / RUNS)):
        files.setdefault(name.partition(".")[0], []).append(name)
    runs = below = size = kept = 0
    for (root_name, root), *others in _trees(store):
        if root.damage == NOT_BEGUN or root.started_at >= before:
            continue
        if not _is_over(root, before):
            kept += 1
        elif all(_is_over(run, before) or (run.ended_at is None and not run.running) for _, run in others):
            if any(_is_damaged(store / RUNS / name) for name in (root_name, *(name for name, _ in others))):
                kept += 1
                continue
            names = {name for name, _ in others} | {*files.get(root_name.removesuffix(SUFFIX), ())} - {root_name}
            try:
                freed = _deleted(store / RUNS, root_name, names, dry_run=dry_run)
            except OSError as error:
                failure = failure or error
                continue
            if freed is not None:
                runs, below, size = runs + 1, below + len(others), size + freed
    if failure is not None:
        raise failure
    return Pruned(runs, below, size, kept)


def _is_damaged(path: Path) -> bool:
    """Return whether something in a file of a run is lost; the list of runs sees its beginning and its end only."""
    with suppress(FileNotFoundError):
        found = finding(path)
        return found is not None and found.damaged
    return False


def _is_of_a_run(name: str) -> bool:
    """Return whether a file is one that is written for a run, and no copy that somebody keeps beside it."""
    return name.endswith((SUFFIX, LOG_SUFFIX, PART))


def _trees(store: Path) -> Iterable[Sequence[tuple[str, StoredRun]]]:
    """Return all runs with the names of their files: each that is below no other, followed by those below it."""
    index = RunIndex(store)
    try:
        rows = {run.run_id: (name, run) for name, run in index.everything()}
    finally:
        index.close()
    trees: dict[str, list[tuple[str, StoredRun]]] = {}
    for run_id, (name, run) in rows.items():
        top, passed = run, {run_id}
        while top.parent_id in rows and top.parent_id not in passed:
            passed.add(top.parent_id)
            top = rows[top.parent_id][1]
        tree = trees.setdefault(top.run_id, [])
        tree.insert(0 if top is run else len(tree), (name, run))
    return trees.values()


def _is_over(run: StoredRun, before: datetime) -> bool:
    """Return whether a run ended before a time, for good."""
    waits = run.stop is not None and run.stop.get("reason") == PARKED
    return run.ended_at is not None and run.ended_at < before and not waits


def _deleted(folder: Path, root: str, below: Iterable[str], *, dry_run: bool) -> int | None:
    """Delete the file of a run after those below it; return how many bytes, or None if a process works on one."""
    with suppress(FileNotFoundError), held(folder / root) as free:
        if not free or any(is_owned(folder / name) for name in below if name.endswith(SUFFIX)):
            return None
        if stored_run(folder / root).ended_at is None:  # it was taken over just now
            return None
        freed = 0
        for name in (*sorted(below), root):
            with suppress(FileNotFoundError):
                freed += (folder / name).stat().st_size
                if not dry_run:
                    (folder / name).unlink()
        return freed
    return None
