"""Makes stores of version 0.1, which were one SQLite file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from watchkeeper.store.run_store import RunStore

TABLES = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, parent_id TEXT, prompt TEXT NOT NULL, model TEXT NOT NULL, item TEXT, items INTEGER,
    limits TEXT NOT NULL, started_at TEXT NOT NULL, ended_at TEXT, stop TEXT, done INTEGER, tokens INTEGER,
    cost_nanos INTEGER, steps INTEGER, duration_ms REAL
);
CREATE INDEX runs_by_start ON runs (started_at);
CREATE INDEX runs_by_parent ON runs (parent_id);
CREATE TABLE events (
    run_id TEXT NOT NULL, seq INTEGER NOT NULL, at TEXT NOT NULL, tag TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
PRAGMA application_id=1464553554;
PRAGMA user_version=1;
"""


def older_store_of(store: RunStore, path: Path) -> Path:
    """Write the runs of a store as version 0.1 did, and return the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        older.execute("PRAGMA journal_mode=WAL")
        older.executescript(TABLES)
        level = store.runs()
        while level:
            for run in level:
                row = (run.run_id, run.parent_id, run.prompt, run.model, run.item, run.items, run.limits)
                ended = run.ended_at and run.ended_at.isoformat()
                older.execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, run.started_at.isoformat(), ended, None, None, None, None, None, None),
                )
                for event in store.events(run.run_id):
                    values = (run.run_id, event.seq, event.at.isoformat(), event.tag, json.dumps(event.body))
                    older.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", values)
            level = tuple(child for run in level for child in store.children(run.run_id))
    return path
