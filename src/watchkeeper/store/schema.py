"""The tables of the run store, and how a file of them is found and opened.

One SQLite file in WAL mode, so that readers see a run as it goes and never hold it up. A file that another program or
another version wrote is refused and left as it is. Opening for reading changes nothing on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from watchkeeper.core.errors import StoreError

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID: Final = 0x574B5052
"""What SQLite keeps in the file's head to say whose it is: ``WKPR``."""

SCHEMA_VERSION: Final = 1
BUSY_SECONDS: Final = 30.0
"""How long a write waits for other processes that write to the same file."""

ATTEMPTS: Final = 50
"""How often a file is tried to be put into WAL mode, while others make it too."""

NO_STORE: Final = frozenset({"none", "off"})
DEFAULT: Final = "default"
VARIABLE: Final = "WATCHKEEPER_STORE"

TABLES: Final = (
    """
    CREATE TABLE runs (
        run_id TEXT PRIMARY KEY,
        parent_id TEXT,
        prompt TEXT NOT NULL,
        model TEXT NOT NULL,
        item TEXT,
        items INTEGER,
        limits TEXT NOT NULL,
        started_at TEXT NOT NULL,
        ended_at TEXT,
        stop TEXT,
        done INTEGER,
        tokens INTEGER,
        cost_nanos INTEGER,
        steps INTEGER,
        duration_ms REAL
    )
    """,
    "CREATE INDEX runs_by_start ON runs (started_at)",
    "CREATE INDEX runs_by_parent ON runs (parent_id)",
    """
    CREATE TABLE events (
        run_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        at TEXT NOT NULL,
        tag TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID
    """,
    f"PRAGMA application_id={APPLICATION_ID}",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)


def store_path(where: Path | str | None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that ``where`` means: a path, ``none`` for no store, or ``default`` for the user's own.

    The user's own is what ``WATCHKEEPER_STORE`` names (which may be ``none``), else a file in the user's data folder.
    """
    if where == DEFAULT:
        where = (os.environ if environ is None else environ).get(VARIABLE) or DEFAULT
    if where is None or (isinstance(where, str) and where.strip().lower() in NO_STORE):
        return None
    if where != DEFAULT:
        return Path(where).expanduser()
    from platformdirs import user_data_path

    return user_data_path("watchkeeper", appauthor=False) / "runs.sqlite3"


def connect(path: Path) -> sqlite3.Connection:
    """Open the file for reading and writing, and make it if it is missing.

    Raises:
        StoreError: If it cannot be opened or written, is not a store, or was written by another version.
    """
    import sqlite3

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, error) from error
    try:
        _make(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise _unusable(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the file for reading only; also where the file or its folder cannot be written.

    Raises:
        StoreError: If there is no such file, it is not a store, or was written by another version.
    """
    import sqlite3

    if not path.is_file():
        raise StoreError(f"there is no store {path} yet; 'watchkeeper run' makes it, or name another one with --store")
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        try:
            return _read_only(address, path)
        except sqlite3.OperationalError:
            # A file in WAL mode in a folder that cannot be written opens only as one that nobody changes.
            return _read_only(f"{address}&immutable=1", path)
    except sqlite3.Error as error:
        raise StoreError(f"the store {path} cannot be read: {error}; name another file (--store)") from error


def _read_only(address: str, path: Path) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        if not _is_store(connection, path):
            raise StoreError(f"{path} is an empty file, not a store; name another one with --store")
    except (sqlite3.Error, StoreError):
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables, unless they are there; the write shows now, not in the middle of a run, that it is possible."""
    _is_store(connection, path)
    share(connection)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    if not _is_store(connection, path):
        for statement in TABLES:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")


def share(connection: sqlite3.Connection) -> None:
    """Put the file into WAL mode.

    SQLite does not wait for others when it changes the mode, so several processes that make a file at once would fail
    each other; it does wait for an exclusive transaction, after which the next attempt has the file to itself.
    """
    import sqlite3

    for attempt in range(ATTEMPTS):
        try:
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",):
                return
        except sqlite3.OperationalError:
            if attempt == ATTEMPTS - 1:
                raise
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")


def _is_store(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the tables are there; False for an empty file.

    Raises:
        StoreError: If the file is somebody else's.
    """
    queries = ("SELECT count(*) FROM sqlite_master", "PRAGMA application_id", "PRAGMA user_version")
    inside = connection.in_transaction
    if not inside:
        connection.execute("BEGIN")  # one look at all three: somebody may be making the file right now
    try:
        tables, owner, version = (connection.execute(query).fetchone()[0] for query in queries)
    finally:
        if not inside:
            connection.execute("ROLLBACK")
    if not (owner or version or tables):
        return False
    if owner != APPLICATION_ID:
        raise StoreError(f"{path} is a SQLite file of another program; name another file")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the store {path} has schema version {version}, this Watchkeeper writes version {SCHEMA_VERSION}; "
            "name another file, or use the Watchkeeper that wrote it"
        )
    return True


def _unusable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the store {path} cannot be used: {error}; name another file (store=..., --store, {VARIABLE}), "
        "or run without one (store=None, --store none)"
    )
