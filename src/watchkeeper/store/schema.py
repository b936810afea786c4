"""The tables of the run store, and how they are opened. One SQLite file, WAL, so that readers see a run as it goes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from watchkeeper.core.errors import StoreError

SCHEMA_VERSION: Final = 1

TABLES: Final = """
CREATE TABLE IF NOT EXISTS runs (
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
);
CREATE INDEX IF NOT EXISTS runs_by_start ON runs (started_at);
CREATE INDEX IF NOT EXISTS runs_by_parent ON runs (parent_id);
CREATE TABLE IF NOT EXISTS events (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at TEXT NOT NULL,
    tag TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
"""


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return where runs are kept: ``WATCHKEEPER_STORE``, else the user's data folder."""
    named = (os.environ if environ is None else environ).get("WATCHKEEPER_STORE")
    if named:
        return Path(named)
    from platformdirs import user_data_path

    return user_data_path("watchkeeper", appauthor=False) / "runs.sqlite3"


def connect(path: Path) -> sqlite3.Connection:
    """Open the file for reading and writing, and make its tables if they are missing.

    Raises:
        StoreError: If it cannot be opened or written, is not a store, or was written by another version.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, error) from error
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise StoreError(
                f"{path} has schema version {version}, this is version {SCHEMA_VERSION}; name another file"
            )
        # The write shows now, and not in the middle of a run, that the file can be written.
        connection.executescript(f"BEGIN IMMEDIATE;{TABLES}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
    except sqlite3.Error as error:
        connection.close()
        raise _unusable(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _unusable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the store {path} cannot be written ({error}); name another file (store=..., --store, WATCHKEEPER_STORE), "
        "or run without one (store=None, --store none)"
    )
