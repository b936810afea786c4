"""The run store: other connections see at once what is written, and it is kept after crashes and errors."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import Stop, StoreError
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.core.usage import TokenUsage, Usage
from watchkeeper.disk.liveness import own_mark
from watchkeeper.disk.power import Durability
from watchkeeper.runtime.events import CallBegun, ManyEnded, ManyStarted, NoticeAppended, RunEnded, RunStarted
from watchkeeper.runtime.file_record import FilesChanged
from watchkeeper.session.log import Envelope
from watchkeeper.store import run_file
from watchkeeper.store.items import Item, UnwrittenError
from watchkeeper.store.run_store import RunStore

START = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
USAGE = Usage(TokenUsage(100, 20), cost_nanos=3, model_calls=1, tool_calls=1, steps=2, retries=0)


@dataclass(frozen=True)
class Note:
    """An event of a user's."""

    text: Any


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """Return a store of its own."""
    with RunStore(tmp_path / "runs.db") as made:
        yield made


def started(item: str | None = None, parent: UUID | None = None, later: int = 0) -> RunStarted:
    """Return the first event of a run."""
    context = root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS)
    at = START + timedelta(seconds=later)
    return RunStarted(context, "ns/key", "scripted:m", "turns 3", None, at, item, parent)


def ended(run_id: UUID, stop: Stop | None = None) -> RunEnded:
    """Return the last event of a run."""
    at = START + timedelta(minutes=1)
    return RunEnded(run_id, stop, "out", None, "said", "unchecked", USAGE, 60_000.0, None, at)


def log(run_id: UUID, *events: Any, first: int = 1) -> list[Item]:
    """Return a batch of events on one log."""
    return [Item(run_id, Envelope(seq, START, event)) for seq, event in enumerate(events, first)]


def file_of(store: RunStore, run_id: UUID) -> Path:
    """Return the file of a run."""
    (file,) = (store.path / "runs").glob(f"*{run_id}.jsonl")
    return file


@pytest.mark.spec("FR-076")
def test_a_run_is_there_from_its_first_event_to_its_last(store: RunStore) -> None:
    run_id = uuid4()
    store.append(log(run_id, started()))
    (row,) = store.runs()
    assert (row.run_id, row.prompt, row.model, row.limits) == (str(run_id), "ns/key", "scripted:m", "turns 3")
    assert (row.started_at, row.ended_at, row.stop, row.tokens) == (START, None, None, None)
    store.append(log(run_id, ended(run_id), first=2))
    (row,) = store.runs()
    assert row.ended_at == START + timedelta(minutes=1)
    assert (row.tokens, row.cost_nanos, row.steps, row.duration_ms) == (120, 3, 2, 60_000.0)
    assert row.stop is None


@pytest.mark.spec("FR-155")
def test_the_checkers_last_word_is_kept(store: RunStore) -> None:
    one, two, open_ = uuid4(), uuid4(), uuid4()
    store.append(log(one, started(), replace(ended(one), verdict="verified"), NoticeAppended("late", START)))
    store.append(log(two, started(later=1), replace(ended(two), verdict="unverified")))
    store.append(log(open_, started(later=2)))
    assert [row.completion for row in store.runs()] == [None, "unverified", "verified"]
    assert store.find(str(one)).completion == "verified"


def test_a_batch_that_is_written_again_says_of_no_call_twice_that_it_begins(store: RunStore) -> None:
    """Else a call with a result would seem to have begun once more, with nobody knowing what came of that."""
    fine, broken = uuid4(), uuid4()
    store.append([*log(fine, started()), *log(broken, started())])
    file_of(store, broken).unlink()
    begun = CallBegun("tool", "send", 1, 1, "node", "call", TokenUsage(), 0, START)
    batch = [Item(fine, begun), *log(fine, NoticeAppended("sent", START), first=2)]
    for _ in range(3):
        with pytest.raises(StoreError, match="deleted"):
            store.append([*batch, *log(broken, ended(broken), first=2)])
    tags = [event.tag for event in store.events(str(fine), calls=True)]
    assert tags == ["run_started", "call_begun", "notice_appended"]


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_run_that_has_ended_is_nobodys_also_when_its_end_is_written_again(
    tmp_path: Path, durability: Durability
) -> None:
    """A parked run would get no answer while this process lives."""
    fine, broken = uuid4(), uuid4()
    with RunStore(tmp_path / "runs", durability=durability) as store:
        store.append([*log(fine, started()), *log(broken, started())])
        file_of(store, broken).unlink()
        for _ in range(2):
            with pytest.raises(StoreError, match="deleted"):
                store.append([*log(fine, ended(fine), first=2), *log(broken, ended(broken), first=2)])
        store.append(log(fine, ended(fine), first=2))
        assert not store.is_owned(str(fine))


def test_turns_and_usage_are_kept_and_unknown_before_the_end(store: RunStore) -> None:
    one, whole, open_ = uuid4(), uuid4(), uuid4()
    store.append(log(one, started(), replace(ended(one), turns=7)))
    many = ManyStarted(started().run_context, "ns/key", "m", "none", ("a",), 2, START + timedelta(seconds=1))
    store.append(log(whole, many, ManyEnded(whole, None, 1, 1, USAGE, 1.0, START)))
    store.append(log(open_, started(later=2)))
    assert [(row.turns, row.tool_calls, row.completion) for row in store.runs()] == [
        (None, None, None),
        (None, 1, None),
        (7, 1, "unchecked"),
    ]
    usage = store.find(str(one)).usage
    assert usage is not None
    assert usage["tokens"]["input_tokens"] == 100


def test_why_a_run_stopped_is_kept(store: RunStore) -> None:
    run_id = uuid4()
    store.append(log(run_id, started(), ended(run_id, Stop("timeout", "gate", "It is over.", "deadline", "1h"))))
    stop = store.find(str(run_id)).stop
    assert stop is not None
    assert (stop["reason"], stop["message"], stop["limit"]) == ("timeout", "It is over.", "deadline")


@pytest.mark.spec("FR-076")
def test_a_run_over_many_has_its_items_as_children(store: RunStore) -> None:
    parent, one, two = uuid4(), uuid4(), uuid4()
    many = ManyStarted(started().run_context, "ns/key", "m", "none", ("a", "b", "c"), 2, START)
    store.append(log(parent, many))
    store.append(log(one, started("b", parent, later=1)) + log(two, started("a", parent)))
    store.append(log(parent, ManyEnded(parent, None, 2, 3, USAGE, 1.0, START), first=2))
    (row,) = store.runs()
    assert (row.items, row.items_done, row.item) == (3, 2, None)
    assert [(child.item, child.parent_id) for child in store.children(row.run_id)] == [
        ("a", str(parent)),
        ("b", str(parent)),
    ]


def test_runs_come_newest_first_and_as_many_as_asked(store: RunStore) -> None:
    ids = [uuid4() for _ in range(4)]
    for later, run_id in enumerate(ids):
        store.append(log(run_id, started(later=later // 2)))
    assert [row.run_id for row in store.runs(3)] == [str(run_id) for run_id in reversed(ids)][:3]


@pytest.mark.spec("FR-074")
def test_another_connection_reads_while_the_run_goes_on(store: RunStore) -> None:
    run_id = uuid4()
    with RunStore(store.path, read_only=True) as reader:
        assert reader.runs() == ()
        store.append(log(run_id, started(), Note("one")))
        assert [event.seq for event in reader.events(str(run_id))] == [1, 2]
        store.append(log(run_id, Note("two"), first=3))
        assert [event.body["text"] for event in reader.events(str(run_id), after=2)] == ["two"]


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    """Return one store for many examples, each with runs of its own."""
    with RunStore(tmp_path_factory.mktemp("runs") / "runs.db") as made:
        yield made


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=8), after=st.integers(0, 12))
def test_events_come_back_once_in_order_however_they_were_batched(
    shared_store: RunStore, counts: list[int], after: int
) -> None:
    run_id, other, seq = uuid4(), uuid4(), 1
    for number in counts:
        batch = log(run_id, *(Note(seq + index) for index in range(number)), first=seq)
        shared_store.append(batch + log(other, Note("other"), first=seq))
        shared_store.append(batch)
        seq += number
    found = [(event.seq, event.load()) for event in shared_store.events(str(run_id), after)]
    assert found == [(number, Note(number)) for number in range(after + 1, seq)]


def test_a_long_log_is_read_whole(store: RunStore) -> None:
    run_id, count = uuid4(), 1_001
    store.append(log(run_id, *map(Note, range(count))))
    assert [event.body["text"] for event in store.events(str(run_id))] == list(range(count))


def test_a_value_comes_back_as_what_it_was_and_an_unknown_one_as_json(store: RunStore) -> None:
    run_id = uuid4()
    notice = NoticeAppended("hear ye", START)
    store.append(log(run_id, notice, Note(("a", {1: "b"}))))
    first, second = store.events(str(run_id))
    assert first.load() == notice
    assert (first.tag, first.at) == ("notice_appended", START)
    assert second.tag.endswith(":Note")
    unknown = type(second)(second.seq, second.at, second.tag, {**second.body, "$type": "nowhere:Note"})
    with pytest.raises(CodecError, match="nowhere"):
        unknown.load()


def test_an_event_that_cannot_be_written_leaves_a_note_and_the_others_go_on(
    store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = uuid4()
    with caplog.at_level(logging.WARNING, "watchkeeper"):
        store.append(log(run_id, Note("one"), Note(threading.Lock()), Note("three")))
    one, two, three = store.events(str(run_id))
    assert (one.load(), three.load()) == (Note("one"), Note("three"))
    assert "lock" in str(two.body).lower()
    with pytest.raises(CodecError, match="could not be written"):
        two.load()
    assert "event.unwritable" in caplog.text


def test_names_that_utf8_cannot_hold_are_written_as_escapes(store: RunStore) -> None:
    parent, run_id = uuid4(), uuid4()
    store.append(log(run_id, started("caf\udce9.txt", parent), Note("\ud800")))
    (child,) = store.children(str(parent))
    assert child.item == "caf\\udce9.txt"
    assert [event.load() for event in store.events(str(run_id), after=1)] == [Note("\ud800")]


def test_no_run_keeps_the_others_from_being_listed(store: RunStore) -> None:
    """A provider's error, or a model's refusal, may hold half of a surrogate pair; a file may have any name."""
    ids = [uuid4(), uuid4()]
    store.append(log(ids[0], started(), ended(ids[0])))
    stop = Stop("provider_error", "provider", "The provider failed: bad \ud800 thing", "field \ud800", "\udcff")
    store.append(log(ids[1], started(later=1), ended(ids[1], stop)))
    (store.path / "runs" / os.fsdecode(b"\xff.jsonl")).write_bytes(b"")
    for _ in range(2):
        with RunStore(store.path, read_only=True) as reader:
            failed, good = reader.runs()
            assert (good.stop, failed.damage) == (None, None)
            assert "The provider failed: bad \\ud800 thing" in failed.sentence()
            assert reader.find(str(ids[1])) == failed
            last = list(reader.events(str(ids[1])))[-1].load()
            assert last.stop == stop, "the record has it as it was"
            with pytest.raises(StoreError, match="no run whose id begins with"):
                reader.find("\udcff")


@pytest.mark.spec("FR-076")
def test_a_run_is_found_by_the_beginning_of_its_id(store: RunStore) -> None:
    ids = [UUID(f"abcd{number}000-0000-4000-8000-000000000000") for number in range(5)]
    store.append([pair for run_id in ids for pair in log(run_id, started())])
    assert store.find("abcd3").run_id == str(ids[3])
    assert store.find(f" {str(ids[0]).upper()} ").run_id == str(ids[0])
    for prefix in ("", "f", "abcd9", "z", "%"):
        with pytest.raises(StoreError, match=r"no run whose id begins with .* 'watchkeeper runs --store .*' lists"):
            store.find(prefix)
    with pytest.raises(StoreError, match=r"more than one run whose id begins with 'abcd': abcd0.* \.\.\."):
        store.find("abcd")


def test_a_batch_that_cannot_be_written_leaves_nothing_and_can_be_written_later(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after half of the batch."""
    run_id, whole = uuid4(), os.write
    store.append(log(run_id, started()))
    before = file_of(store, run_id).read_bytes()
    batch = log(run_id, Note("x" * 1_000), ended(run_id), first=2)

    def half(file: int, data: bytes) -> int:
        if len(data) < 500:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(file, data[: len(data) // 2])

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        with pytest.raises(StoreError, match=r"2 events could not be written to .*No space left"):
            store.append(batch)
    assert file_of(store, run_id).read_bytes() == before
    assert store.failure is not None
    store.append(batch)
    assert [event.seq for event in store.events(str(run_id))] == [1, 2, 3]


@pytest.mark.parametrize("over", [False, True])
def test_a_batch_that_fails_between_two_runs_leaves_each_line_once(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    """Beginnings of calls and changes of files have no number by which a second one is known.

    So the error says whose are to be written again.
    """
    one, two = uuid4(), uuid4()
    store.append(log(one, started()))
    begun = CallBegun("tool", "send", 1, 1, "node", "call-1", TokenUsage(), 0, START)
    changed = FilesChanged(START)
    last = log(one, ended(one), first=2) if over else []
    batch = [Item(one, begun), Item(one, changed), *last, *log(two, started())]
    with monkeypatch.context() as context:
        write = run_file.RunFile.write

        def full(file: run_file.RunFile, data: bytes, *, last: bool = False) -> None:
            if str(two) in file.path.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(file, data, last=last)

        context.setattr(run_file.RunFile, "write", full)
        for _ in range(2):
            with pytest.raises(UnwrittenError, match=r"1 events .* No space left") as failed:
                store.append(batch)
            assert failed.value.runs == {two}
            batch = [item for item in batch if item.run_id in failed.value.runs]
    store.append([*batch, *log(two, NoticeAppended("late", START), first=2)])
    lines = file_of(store, one).read_bytes().splitlines()
    assert sum(line.startswith(b'{"begun"') for line in lines) == 1
    assert sum(line.startswith(b'{"files"') for line in lines) == 1
    assert len([*store.events(str(one))]) == 1 + over
    assert len([*store.events(str(two))]) == 2
    store.append([Item(two, begun), Item(two, begun)])
    assert file_of(store, two).read_bytes().count(b'{"begun"') == 2


def test_the_owner_of_a_long_run_is_found_without_reading_all_of_it(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every list of runs asks for the owner of each run that goes on."""
    run_id = uuid4()
    store.append(log(run_id, started(), *[NoticeAppended("x" * 100, START) for _ in range(5_000)]))
    looked_at = Mock(wraps=run_file.is_whole)
    monkeypatch.setattr(run_file, "is_whole", looked_at)
    owner = store.owner(str(run_id))
    assert owner is not None
    assert owner.mark == own_mark()
    assert looked_at.call_count < 2_000


@pytest.mark.parametrize("chunk", [1, 64, 100, 150, 1_000])
def test_the_owner_is_found_wherever_its_line_stands(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(run_file, "CHUNK", chunk)
    run_id = uuid4()
    store.append(log(run_id, started()))
    for number in range(20):
        store.append(log(run_id, Note("x" * number), first=2 + number))
        owner = run_file.last_owner(file_of(store, run_id))
        assert owner is not None
        assert (owner.epoch, owner.mark) == (1, own_mark())
    store.append(log(run_id, Note('"tag":"run_ended"'), ended(run_id), first=22))
    assert run_file.last_owner(file_of(store, run_id)) is None


def test_a_group_whose_end_is_missing_is_not_on_record(store: RunStore) -> None:
    run_id = uuid4()
    one, two, three = log(run_id, started(), Note("a"), Note("b"))
    store.append([one, replace(two, more=True)])
    assert [event.seq for event in store.events(str(run_id))] == [1]
    store.append([three])
    assert [event.seq for event in store.events(str(run_id))] == [1, 2, 3]


@pytest.mark.parametrize("tail", [b"{", b'{"seq":3,"at":', b"\n", b"\x00" * 100])
def test_what_a_crash_left_behind_the_last_line_is_ignored_and_cut_off(store: RunStore, tail: bytes) -> None:
    run_id = uuid4()
    store.append(log(run_id, started(), Note("a")))
    store.close()
    file = file_of(store, run_id)
    whole = file.read_bytes()
    file.write_bytes(whole + tail)
    with RunStore(store.path) as again:
        assert [event.seq for event in again.events(str(run_id))] == [1, 2]
        assert again.runs()[0].damage is None
        assert again.take_over(str(run_id)) == 2
        again.append(log(run_id, Note("b"), first=3))
        assert [event.seq for event in again.events(str(run_id))] == [1, 2, 3]
    assert file.read_bytes().startswith(whole)


def test_a_run_belongs_to_one_store_at_a_time(store: RunStore) -> None:
    run_id = uuid4()
    store.append(log(run_id, started()))
    with RunStore(store.path) as other:
        assert other.runs()[0].running
        for act in (lambda: other.take_over(str(run_id)), lambda: other.append(log(run_id, Note("x"), first=2))):
            with pytest.raises(StoreError):
                act()
        store.close()
        assert not other.runs()[0].running
        assert other.take_over(str(run_id)) == 1
        other.append(log(run_id, Note("x"), first=2))


def test_the_index_may_be_lost_damaged_or_locked_at_any_time(store: RunStore) -> None:
    run_id = uuid4()
    store.append(log(run_id, started(), Note("x"), ended(run_id)))
    index = store.path / "index.sqlite3"
    (row,) = store.runs()
    for harm in (index.unlink, lambda: index.write_bytes(b"x" * 10_000)):
        harm()
        for side in ("-wal", "-shm"):
            Path(f"{index}{side}").unlink(missing_ok=True)
        with RunStore(store.path, read_only=True) as reader:
            assert reader.runs() == (row,)
            assert [event.seq for event in reader.events(str(run_id))] == [1, 2, 3]
    index.unlink()
    with RunStore(store.path, read_only=True) as reader:
        assert len(reader.runs()) == 1
    for damaged in ("[]", "{", '{"running": 5}', b"\xff\x00"):
        with closing(sqlite3.connect(index)) as other:
            other.execute("UPDATE runs SET row = ?", (damaged,))
            other.commit()
        with RunStore(store.path, read_only=True) as reader:
            assert reader.runs() == (row,)
    with closing(sqlite3.connect(index, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        store.append(log(other_id := uuid4(), started(later=1)))
        with RunStore(store.path, read_only=True) as reader:
            assert [each.run_id for each in reader.runs()] == [str(other_id), str(run_id)]


def test_a_known_run_is_read_without_a_look_at_all_others(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, looks = uuid4(), uuid4(), list[object]()
    store.append(log(one, started()))
    store.runs()
    scandir = os.scandir

    def looking(path: Path) -> Any:
        looks.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", looking)
    assert len(list(store.events(str(one)))) == 1
    assert not looks
    store.append(log(other, started()))
    assert len(list(store.events(str(other)))) == 1, "a run that has begun since is found"
    assert len(looks) == 1
    file_of(store, one).unlink()
    assert list(store.events(str(one))) == []


def test_a_number_that_sqlite_cannot_hold_costs_nothing_else(store: RunStore) -> None:
    """The row has the largest number that it can have; the event has the true one."""
    run_id = uuid4()
    huge = Usage(TokenUsage(2**63, 1), cost_nanos=2**70, model_calls=1, tool_calls=0, steps=1, retries=0)
    store.append(log(run_id, started(), replace(ended(run_id), usage=huge)))
    (row,) = store.runs()
    assert (row.tokens, row.cost_nanos) == (2**63 - 1, 2**63 - 1)
    assert row.usage is not None
    assert row.usage["cost_nanos"] == 2**70
    assert [event.tag for event in store.events(str(run_id))] == ["run_started", "run_ended"]


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_file_that_is_gone_is_no_file_to_write_to(
    store: RunStore, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write looks for it if none has looked for a while; the one that ends the run does in any case."""
    monkeypatch.setattr(run_file, "LOOK_EVERY", seconds)
    store.append(log(run_id := uuid4(), Note("x")))
    file_of(store, run_id).unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="the file was deleted while it was open"):
            store.append(log(run_id, ended(run_id) if seconds else Note("x"), first=2))


def test_a_program_may_change_its_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunStore("runs.db") as store:
        (tmp_path / "inner").mkdir()
        monkeypatch.chdir(tmp_path / "inner")
        store.append(log(run_id := uuid4(), started()))
        assert [event.tag for event in store.events(str(run_id))] == ["run_started"]


def test_a_closed_store_refuses_everything(store: RunStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match=r"could not be written to .*: it was closed$"):
        store.append(log(uuid4(), Note("x")))
    with pytest.raises(StoreError, match=r"runs cannot be read from .*: it was closed$"):
        store.runs()
    with pytest.raises(StoreError, match=r"events cannot be read from .*: it was closed$"):
        list(store.events("x"))


def test_a_store_for_reading_refuses_to_write(store: RunStore) -> None:
    with RunStore(store.path, read_only=True) as reader, pytest.raises(StoreError, match="opened for reading only"):
        reader.append(log(uuid4(), Note("x")))


def test_the_users_own_store_is_the_default(user_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunStore() as store:
        assert store.path == user_folders / "data" / "watchkeeper" / "runs.store"
    monkeypatch.setenv("WATCHKEEPER_STORE", "none")
    with pytest.raises(StoreError, match="WATCHKEEPER_STORE"):
        RunStore()


def test_threads_may_write_at_once(store: RunStore) -> None:
    ids = [uuid4() for _ in range(6)]

    def write(run_id: UUID) -> None:
        for seq in range(1, 41):
            store.append(log(run_id, Note(seq), first=seq))

    threads = [threading.Thread(target=write, args=(run_id,)) for run_id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(list(store.events(str(run_id)))) for run_id in ids] == [40] * len(ids)


WRITER = """
import sys
from datetime import UTC, datetime
from uuid import UUID
from watchkeeper.runtime.events import NoticeAppended
from watchkeeper.session.log import Envelope
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore

store, run_id, count = RunStore(sys.argv[1]), UUID(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
at = datetime(2026, 1, 1, tzinfo=UTC)
for seq in range(1, count + 1):
    store.append([Item(run_id, Envelope(seq, at, NoticeAppended(str(seq), at)))])
    print(seq, flush=True)
sys.stdin.readline()
"""


def writer(path: Path, run_id: UUID, count: int) -> subprocess.Popen[str]:
    """Start a process that is ready to write."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(run_id), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert said(process) == "ready"
    return process


def said(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    """Give a process its sign."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()


def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    path, ids, count = tmp_path / "runs.db", [uuid4(), uuid4()], 100
    processes = [writer(path, run_id, count) for run_id in ids]
    for process in processes:
        tell(process)
    for process in processes:
        tell(process)
        process.communicate(timeout=60)
        assert process.returncode == 0
    with RunStore(path, read_only=True) as reader:
        for run_id in ids:
            assert [event.body["text"] for event in reader.events(str(run_id))] == [
                str(seq) for seq in range(1, count + 1)
            ]


MAKER = """
import sys
from watchkeeper.core.errors import StoreError
from watchkeeper.store.run_store import RunStore
print("ready", flush=True)
for line in sys.stdin:
    try:
        RunStore(line.strip()).close()
        print("made", flush=True)
    except StoreError as error:
        print(error, flush=True)
"""


def test_processes_may_make_the_same_store_at_the_same_moment(tmp_path: Path) -> None:
    """They begin together, at a sign on their input, twenty times."""
    start = [sys.executable, "-c", MAKER]
    makers = [subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        assert [said(each) for each in makers] == ["ready"] * 3
        for number in range(20):
            path = tmp_path / "made" / f"runs{number}"
            for each in makers:
                assert each.stdin is not None
                each.stdin.write(f"{path}\n")
                each.stdin.flush()
            assert [said(each) for each in makers] == ["made"] * 3
            assert sorted(each.name for each in path.iterdir()) == ["runs", "watchkeeper-store"]
    finally:
        for each in makers:
            each.communicate(timeout=60)


@pytest.mark.parametrize("there", [["runs/"], ["runs/", "watchkeeper-store.71.140"], ["watchkeeper-store.71.140"]])
def test_a_store_that_another_process_makes_just_now_is_made_together(tmp_path: Path, there: list[str]) -> None:
    """The same is left where that process died over it."""
    path = tmp_path / "store"
    path.mkdir()
    for name in there:
        (path / name).mkdir() if name.endswith("/") else (path / name).touch()
    with RunStore(path) as store:
        run_id = uuid4()
        store.append(log(run_id, started()))
        assert [run.run_id for run in store.runs()] == [str(run_id)]


@pytest.mark.parametrize("there", ["runs/mine", "notes", "watchkeeper-stores"])
def test_a_folder_with_other_things_is_no_store(tmp_path: Path, there: str) -> None:
    path = tmp_path / "store" / there
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(StoreError, match="holds other things and is not a store"):
        RunStore(tmp_path / "store")
    assert [each for each in (tmp_path / "store").rglob("*") if each.is_file()] == [path]


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(StoreError, match=r"notes is a file and is not a store; name another folder"):
        RunStore(tmp_path / "notes")


@pytest.mark.spec("FR-074")
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_what_was_committed_survives_the_death_of_its_process(tmp_path: Path) -> None:
    path, run_id = tmp_path / "runs.db", uuid4()
    process = writer(path, run_id, 1_000_000)
    tell(process)
    while int(said(process)) < 50:
        pass
    process.send_signal(signal.SIGKILL)
    with process:
        assert process.stdout is not None
        rest = process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    told = 50 + sum(line.endswith("\n") for line in rest.splitlines(keepends=True))
    with RunStore(path, read_only=True) as reader:
        found = [event.seq for event in reader.events(str(run_id))]
    assert found == list(range(1, len(found) + 1))
    assert len(found) in (told, told + 1)
    with RunStore(path) as store:
        store.append(log(uuid4(), started()))
        assert len(store.runs()) == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it is not known there which processes run")
def test_without_locks_the_owner_is_known_by_its_process(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id, over = uuid4(), uuid4()
    store.append(log(run_id, started()) + log(over, started(), ended(over)))
    gone = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(store.path)], capture_output=True, text=True)
    dead = gone.stdout.strip()
    assert (gone.returncode, len(dead)) == (-signal.SIGKILL, 36)
    monkeypatch.setattr("watchkeeper.store.run_file.fcntl", None)
    assert {run.run_id: run.running for run in store.runs()} == {str(run_id): True, str(over): False, dead: False}
    with RunStore(store.path) as other:
        with pytest.raises(StoreError, match="a living process works on it"):
            other.take_over(str(run_id))
        assert other.take_over(dead) == 1
        assert other.take_over(str(over)) == 2


def test_a_reader_that_looks_at_a_file_keeps_nobody_from_taking_it(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a file is owned is seen by a lock that the reader has for a moment."""
    fcntl = pytest.importorskip("fcntl")
    run_id = uuid4()
    with RunStore(store.path) as other:
        other.append(log(run_id, started()))
    with file_of(store, run_id).open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)

        def let_go(*_: object) -> None:
            fcntl.flock(reader, fcntl.LOCK_UN)

        monkeypatch.setattr(type(SYSTEM_CLOCK), "wait", let_go)
        assert store.take_over(str(run_id)) == 1


WRITE_AND_DIE = """
import os, sys
from uuid import uuid4
from tests.store.test_run_store import RunStore, log, started
run_id = uuid4()
RunStore(sys.argv[1]).append(log(run_id, started()))
print(run_id, flush=True)
os.kill(os.getpid(), 9)
"""
