"""SQLite files that several processes share: how they are named, opened, made and recognised, for runs and ledgers.

Every file is in WAL mode, so that readers see what is committed and never block a writer. Its head says which program
and which schema version wrote it; a file of another program or version is refused and not changed. A file and the
folders that are made for it are the user's alone, because texts of users and tools are in it. Opening for reading
changes nothing on disk. `sqlite3` is imported when the first file is opened, not before.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.core.quantities import path_from

if TYPE_CHECKING:
    import sqlite3

DEFAULT: Final = "default"

RECOVER: Final = (
    "; the file is damaged: put it aside and use another one, and see what can be had of it with sqlite3 FILE .recover"
)
"""What to do about a file that is broken, for messages."""

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
SIDE_FILES: Final = ("-wal", "-shm")

WAL_ATTEMPTS: Final = 50
"""How often to try to put a file into WAL mode while other processes make it too."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One kind of file.

    Attributes:
        noun: What the file is, for messages.
        application_id: Number in the file's header that says which program wrote it.
        version: Of the tables.
        tables: The statements that make them.
        other_file: What to do about a file that is something else, for messages.
        columns: By table, columns that a file may lack because it was made before they existed, and what they are; they
            are added when it is opened for writing, so each needs a default.
        page_bytes: Size of the pages of a new file; a commit writes each page that it changes as a whole.
        steps: By older version, the statements that migrate its tables to the next version; a file of a version that is
            missing here is refused.
    """

    noun: str
    application_id: int
    version: int
    tables: tuple[str, ...]
    other_file: str
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    page_bytes: int = 4096
    steps: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])

    def is_in(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Return whether the tables are there; False for an empty file.

        Raises:
            StoreError: If the file belongs to another program, or to another version.
        """
        queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        inside = connection.in_transaction
        if not inside:
            connection.execute("BEGIN")  # one snapshot for all three: another process may be making the file right now
        try:
            owner, version, tables = (connection.execute(query).fetchone()[0] for query in queries)
        finally:
            if connection.in_transaction and not inside:  # an error may have ended it, and must not be masked
                connection.execute("ROLLBACK")
        if not (owner or version or tables):
            return False
        if owner != self.application_id:
            raise StoreError(f"{path} is not the file of a {self.noun} but of another program; {self.other_file}")
        if version != self.version and version not in self.steps:
            raise StoreError(
                f"the {self.noun} {path} has schema version {version}, this Watchkeeper writes version {self.version}; "
                "name another file, or use the Watchkeeper that wrote it"
            )
        return True

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the tables of an older file to the present version."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for older in range(version, self.version):
            for statement in self.steps[older]:
                connection.execute(statement)

    def add_missing_columns(self, connection: sqlite3.Connection) -> None:
        """Add to the tables of an older file the columns that it lacks."""
        for table, columns in self.columns.items():
            present = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            for name, definition in columns.items():
                if name not in present:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {definition}")


def chosen_file(
    where: Path | str | None, variable: str, name: str, lifted: frozenset[str], environ: Mapping[str, str] | None
) -> Path | None:
    """Return the file that ``where`` means: a path, a word that means none, or ``default`` for the user's own.

    Args:
        where: What the caller wrote; None means none.
        variable: The environment variable that may name the user's own file.
        name: Of the user's own file, in the user's data folder.
        lifted: The words that mean none.
        environ: The environment; that of the process if None.
    """
    if where == DEFAULT:
        where = (os.environ if environ is None else environ).get(variable) or DEFAULT
    if where is None or (isinstance(where, str) and where.strip().lower() in lifted):
        return None
    if where != DEFAULT:
        if os.fspath(where) == ":memory:":
            instead = "name a file" + (", or 'none' for none" if lifted else "")
            raise ConfigurationError(f"':memory:' is no file, and memory is lost with the process; {instead}")
        return path_from(where)
    from platformdirs import user_data_path

    return user_data_path("watchkeeper", appauthor=False) / name


Identity = tuple[int, int] | None
"""Device and number of a file; None if there is none."""


def with_side_files(path: Path) -> tuple[str, ...]:
    """Return the names of a file and of its side files, which SQLite has beside the target of a link."""
    file = os.fspath(path)
    beside = os.path.realpath(file) if os.path.islink(file) else file
    return (file, *(beside + end for end in SIDE_FILES))


def identities(path: Path) -> tuple[Identity, ...]:
    """Return the identities of a file and of its side files; a later file with the same name has another one."""
    found: list[Identity] = []
    for name in with_side_files(path):
        try:
            at = os.stat(name)
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((at.st_dev, at.st_ino))
    return tuple(found)


def refuse_second_name(path: Path) -> None:
    """Refuse a file with several hard links: under each, SQLite would make side files that the others do not see.

    Raises:
        StoreError: If it has more than one.
    """
    if path.is_file() and path.stat().st_nlink > 1:
        raise StoreError(
            f"{path} has a second name (a hard link), and a program that uses it does not see what is written here; "
            "remove one of the names, or make it a symbolic link"
        )


def replaced(path: Path, *, itself: bool) -> StoreError:
    """Return the error that a ledger is not the file that this process has used so far, or a side file of it is not.

    Args:
        path: The ledger.
        itself: Whether it is the ledger; else only its ``-wal`` or ``-shm`` file was deleted or replaced.
    """
    if itself:
        return StoreError(
            f"the ledger {path} was deleted or replaced while it was in use, so nobody knows what is left; stop all"
            " processes that use it, put the file back or start with a new one, and start them again"
        )
    return StoreError(
        f"the -wal or -shm file of the ledger {path} was deleted or replaced while it was in use, so this call is"
        " refused; keep the ledger and put nothing back: the next call opens it again. Start no other process on it"
        " before each that has it open has made a call, and leave these files to SQLite from now on"
    )


@contextmanager
def failing_as(what: str, advice: str = "") -> Generator[None]:
    """Turn errors of the file or the disk into a StoreError.

    Args:
        what: What cannot be done, with the path; the error follows it.
        advice: Text that follows the error.

    Raises:
        StoreError: For every error of the file or the disk.
    """
    import sqlite3

    try:
        yield
    except (sqlite3.Error, OSError, OverflowError) as error:
        damaged = getattr(error, "sqlite_errorname", "") == "SQLITE_CORRUPT"
        raise StoreError(f"{what}: {error}{RECOVER if damaged else advice}") from error


def is_locked(error: BaseException | None) -> bool:
    """Return whether an error, or that which caused it, only says that others hold the file locked."""
    import sqlite3

    if isinstance(error, StoreError):
        error = error.__cause__
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def connect(path: Path, schema: Schema, busy_seconds: float) -> sqlite3.Connection:
    """Open a file for reading and writing, and make it if it is missing.

    Args:
        path: The file; its folder is made if it is missing, both for this user alone. An older file that everybody may
            read becomes this user's alone, too.
        schema: The tables that the file must have.
        busy_seconds: How long a write waits for other processes that write to it.

    Raises:
        sqlite3.Error: If it cannot be opened or written.
        OSError: If its folder cannot be made.
        StoreError: If it is another kind of file, or was written by another version.
    """
    import sqlite3

    _make_private(path)
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA page_size={schema.page_bytes}")  # of a new file; an older one keeps its own
        schema.is_in(connection, path)  # before anything is changed
        _tighten(path)
        _use_wal(connection)
        # A crash of the machine may lose the last transactions, a crash of the process none.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        if not schema.is_in(connection, path):
            for statement in schema.tables:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={schema.application_id}")
        else:
            schema.migrate(connection)
        schema.add_missing_columns(connection)
        # Written in any case: that the file cannot be written shows now, not in the middle of a run.
        connection.execute(f"PRAGMA user_version={schema.version}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def make_folders(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)


def _make_private(path: Path) -> None:
    """Make a missing file, and the folders that it lacks, for this user alone; SQLite gives its side files its mode."""
    make_folders(path.parent)
    with suppress(FileExistsError, IsADirectoryError):  # SQLite itself refuses an unsuitable existing file
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE_FILE))


def _tighten(path: Path) -> None:
    """Make a file of this user, and its side files, private to the owner if everybody may read it.

    A mode that only gives access to a group was set on purpose and stays; a file of another user is not changed, nor is
    a device such as ``/dev/null``, which is everybody's.
    """
    for name in with_side_files(path):
        with suppress(OSError):
            mode = os.stat(name).st_mode
            if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
                os.chmod(name, PRIVATE_FILE)


def connect_to_read(path: Path, schema: Schema, busy_seconds: float) -> sqlite3.Connection:
    """Open a file for reading only; also where the file or its folder cannot be written.

    Raises:
        sqlite3.Error: If it cannot be read.
        StoreError: If it is empty or another kind of file, or was written by another version.
    """
    import sqlite3

    def opened(address: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            if not schema.is_in(connection, path):
                raise StoreError(f"{path} is an empty file, not a {schema.noun}; {schema.other_file}")
        except BaseException:
            connection.close()
            raise
        return connection

    address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"
    try:
        return opened(address)
    except sqlite3.OperationalError:
        # In a folder that cannot be written, a file in WAL mode can be opened only as immutable.
        return opened(f"{address}&immutable=1")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Put the file into WAL mode.

    SQLite does not wait for others when it changes the mode, so several processes that make a file at once would
    fail; it does wait for an exclusive transaction, after which the next attempt has the file to itself.
    """
    import sqlite3

    for attempt in range(WAL_ATTEMPTS):
        try:
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",):
                return
        except sqlite3.OperationalError:
            if attempt == WAL_ATTEMPTS - 1:
                raise
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")


# --- forks ------------------------------------------------------------------------------------------------------------
# SQLite remembers in memory which locks a process has; a forked process has that memory, but not the locks. When its
# parent closed a file, its -wal and -shm would be deleted under the child, and both would write apart from then on. And
# no lock of Python must be inherited that nobody releases. So before a fork all is locked, and all files are closed.


class OpenFile(Protocol):
    """What has a file open; it opens the file again when it is next used."""

    def before_fork(self) -> None:
        """Keep other threads out, and close the file."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """Let other threads in again."""
        ...


OPEN_FILES: Final[weakref.WeakSet[OpenFile]] = weakref.WeakSet()
HELD_STILL: Final[list[OpenFile]] = []
REGISTERING: Final = threading.RLock()
"""Held while a file is added, and during a fork: no thread may be inside SQLite then, also not with a new file."""


def register(file: OpenFile) -> None:
    """Have a file closed before each fork; call it before the file is opened."""
    with REGISTERING:
        OPEN_FILES.add(file)


def before_fork() -> None:
    """Close all files, and let no other be opened until `after_fork`."""
    REGISTERING.acquire()
    for each in list(OPEN_FILES):
        each.before_fork()
        HELD_STILL.append(each)  # only now: Ctrl-C may come in between


def after_fork(*, child: bool) -> None:
    """Let all files be used again."""
    while HELD_STILL:
        HELD_STILL.pop().after_fork(child=child)
    REGISTERING.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=before_fork,
        after_in_parent=partial(after_fork, child=False),
        after_in_child=partial(after_fork, child=True),
    )
