"""Runs of a store of version 0.1 come into the folder as they were, and the file stays as it is."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from tests.store.older import older_store_of
from tests.store.test_run_store import START, USAGE, Note, ended, log, started
from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.runtime.events import ManyEnded, ManyStarted
from watchkeeper.store.older_store import EventsMissing, import_runs, older_store
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.upkeep import findings

PARENT, ITEM, JUDGE, OPEN = (uuid4() for _ in range(4))


@pytest.fixture
def before(tmp_path: Path) -> RunStore:
    """Return a store with a run over many, an item of it, a run below that, and one that has not ended."""
    with RunStore(tmp_path / "before") as store:
        context = started().run_context
        store.append(log(PARENT, ManyStarted(context, "ns/key", "m", "none", ("a",), 2, START)))
        store.append(log(ITEM, started("a", PARENT, later=1), Note("x\ny\u2028z"), ended(ITEM)))
        store.append(log(JUDGE, started(None, ITEM, later=2), Note(2**70), ended(JUDGE)))
        store.append(log(PARENT, ManyEnded(PARENT, None, 1, 1, USAGE, 1.0, START), first=2))
        store.append(log(OPEN, started(later=3), Note("half")))
    return store


@pytest.fixture
def older(before: RunStore) -> Path:
    """Return the same runs in a store of version 0.1."""
    with RunStore(before.path, read_only=True) as store:
        return older_store_of(store, before.path.with_name("runs.sqlite3"))


def content(path: Path) -> dict[str, object]:
    """Return all runs of a store, and their events."""
    with RunStore(path, read_only=True) as store:
        top = store.runs()
        items = [item for run in top for item in store.children(run.run_id)]
        runs = [*top, *items, *(run for item in items for run in store.children(item.run_id))]
        return {run.run_id: (run, [event.envelope() for event in store.events(run.run_id)]) for run in runs}


@pytest.mark.spec("FR-191")
def test_runs_come_in_as_they_were_and_only_once(before: RunStore, older: Path, tmp_path: Path) -> None:
    untouched = older.read_bytes()
    into = tmp_path / "runs.store"
    with RunStore(into):
        assert older_store(into, into) == older
        first, second = import_runs(older, into), import_runs(older, into)
    assert (first.runs, first.there, dict(first.unreadable)) == (4, 0, {})
    assert (second.runs, second.there) == (0, 4)
    assert content(into) == content(before.path)
    assert len(content(into)) == 4
    assert list(findings(into)) == []
    assert {file.name.count(".") for file in (into / "runs").glob(f"{PARENT}*")} == {1, 2}
    assert older.read_bytes() == untouched
    assert older_store(into, into) is older_store(older, into) is None


def test_a_run_that_cannot_be_read_costs_no_other(older: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET body = '{' WHERE run_id = ? AND seq = 2", (str(ITEM),))
        connection.execute("UPDATE events SET at = x'ff' WHERE run_id = ?", (str(OPEN),))
    with RunStore(tmp_path / "into") as into:
        done = import_runs(older, into.path)
        assert done.runs == 2
        assert done.unreadable.keys() == {str(ITEM), str(OPEN)}
        assert done.unreadable[str(ITEM)].startswith("event 2: ")
        assert [run.run_id for run in into.runs()] == [str(PARENT)]
    assert sorted(file.suffix for file in (tmp_path / "into" / "runs").iterdir()) == [".jsonl", ".jsonl"]


def test_a_run_with_gaps_comes_in_with_what_is_there(before: RunStore, older: Path, tmp_path: Path) -> None:
    with RunStore(before.path, read_only=True) as store:
        whole, row = [event.seq for event in store.events(str(ITEM))], store.find(str(ITEM))
    gone = whole[1:-1]
    assert gone
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        between = (str(ITEM), gone[0], gone[-1])
        connection.execute("DELETE FROM events WHERE run_id = ? AND seq BETWEEN ? AND ?", between)
    with RunStore(tmp_path / "into") as into:
        done = import_runs(older, into.path)
        assert dict(done.missing) == {str(ITEM): f"{gone[0]} to {gone[-1]}"}
        assert dict(done.unreadable) == {}
        events = list(into.events(str(ITEM)))
        assert [event.seq for event in events] == [whole[0], gone[-1], whole[-1]]
        assert events[1].load() == EventsMissing(gone[0], gone[-1])
        assert into.find(str(ITEM)).ended_at == row.ended_at
    assert list(findings(tmp_path / "into")) == []


def test_nor_does_one_without_an_id_nor_the_name_of_the_file(older: Path, tmp_path: Path) -> None:
    file = older.rename(older.with_name(os.fsdecode(b"caf\xe9.sqlite3")))
    with closing(sqlite3.connect(file)) as damaged:
        damaged.execute("UPDATE runs SET run_id = '../../x' WHERE run_id = ?", (str(OPEN),))
        damaged.execute("UPDATE runs SET parent_id = X'FF' WHERE run_id = ?", (str(ITEM),))
        damaged.commit()
    into = tmp_path / "runs.store"
    with RunStore(into) as store:
        done = import_runs(file, into)
        assert (done.runs, set(done.unreadable)) == (2, {"b'../../x'", repr(str(ITEM).encode())})
        assert older_store(file, into) is None
        assert [run.run_id for run in store.runs(10**30)] == [str(PARENT)]


@pytest.mark.parametrize("what", ["missing", "text", "ledger", "newer"])
def test_what_is_no_older_store_is_refused(what: str, older: Path, tmp_path: Path) -> None:
    file = older if what == "newer" else tmp_path / what
    if what == "text":
        file.write_text("no database")
    elif what != "missing":
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS theirs (x)")
            connection.execute(f"PRAGMA {'application_id=7' if what == 'ledger' else 'user_version=9'}")
    with RunStore(tmp_path / "into") as into, pytest.raises(StoreError, match=str(file)):
        import_runs(file, into.path)
    assert list((tmp_path / "into" / "runs").iterdir()) == []


@pytest.mark.parametrize("has_gap", [False, True])
def test_a_run_that_came_in_is_not_resumed_and_why_is_said(tmp_path: Path, *, has_gap: bool) -> None:
    """Version 0.1 did not record what resuming needs."""
    agent = Agent(ScriptedModel(["one", "two"]), "Be brief.", str)
    ran = agent.run("go", store=tmp_path / "before")
    with RunStore(tmp_path / "before", read_only=True) as store:
        older = older_store_of(store, tmp_path / "runs.sqlite3")
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        connection.execute("DELETE FROM events WHERE seq >= (SELECT seq FROM events WHERE tag = 'prompt_executed')")
        connection.execute("DELETE FROM events WHERE tag = 'run_opened'")
        if has_gap:
            connection.execute("DELETE FROM events WHERE tag = 'prompt_rendered'")
        else:
            connection.execute("UPDATE events SET seq = seq - 1 WHERE tag = 'model_replied'")
        connection.execute("UPDATE runs SET ended_at = NULL")
    with RunStore(older) as store:
        import_runs(older, store.path)
        with pytest.raises(
            ConfigurationError, match=r"version 0\.1 recorded it, without what that needs; start a new run"
        ):
            agent.resume(str(ran.run_id), store=store)
        assert not store.find(str(ran.run_id)).running
