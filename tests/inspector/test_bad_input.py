"""Stores and runs that are not as they should be: the server answers, and the page says what is the matter."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from playwright.sync_api import Locator, Page, expect
from starlette.testclient import TestClient

from tests.app.test_parking import World
from tests.cli.support import CommandLine
from tests.inspector.browser import reading
from tests.inspector.support import PRICES, fill, looks, template
from watchkeeper.adapters.scripted import Say, ScriptedModel
from watchkeeper.app.resume import resume
from watchkeeper.app.run import run
from watchkeeper.cli.report import line_of
from watchkeeper.core.model import ModelRequest
from watchkeeper.inspector.server import application
from watchkeeper.store.run_file import CHECKED
from watchkeeper.store.run_store import MARKER, RunStore

KILLED = """
import os, signal, sys
from tests.inspector.support import PRICES, looks, template
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.app.run import run

def step(request):
    if len(request.transcript) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return Call("look", {"path": "a"})

run(template(), model=ScriptedModel(step, free=False), prices=PRICES, store=sys.argv[1])
"""


def killed(store: Path) -> str:
    """Store a run whose process was killed after its first tool call; return its id."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(store)], check=False, capture_output=True)
    assert ended.returncode == -9, ended.stderr
    return file_of(store).name.removesuffix(".jsonl")


def file_of(store: Path) -> Path:
    """Return the file of the only run of a store."""
    (file,) = (store / "runs").iterdir()
    return file


def sealed(line: dict[str, Any]) -> bytes:
    """Return a line of a run's file, with the checksum that it has to have."""
    line.pop("crc")
    head = json.dumps(line, separators=(",", ":")).encode()[:-1]
    return head + CHECKED % crc32(head)


def done(store: Path, *paths: str) -> str:
    """Store one run that is done; return its id."""
    return str(run(template(), model=looks(*(paths or ("a",))), prices=PRICES, store=store).run_id)


@contextmanager
def asking(folder: Path) -> Generator[TestClient]:
    """Ask the server of a store, as who has the token."""
    with RunStore(folder, read_only=True) as store:
        client = TestClient(application(store, line_of, "secret", 8000), base_url="http://127.0.0.1:8000")
        client.get("/?token=secret")
        yield client


def statuses(client: TestClient) -> list[str]:
    """Return the statuses of the rows of the list."""
    answer = client.get("/api/runs")
    assert answer.status_code == 200
    return [row["status"]["words"] for row in answer.json()["rows"]]


def opened(page: Page, address: str, run_id: str) -> Locator:
    """Open the page of a run; return its headline."""
    page.goto(address)
    page.goto(f"{address.partition('?')[0]}#/run/{run_id}")
    return page.get_by_role("heading", level=1)


def test_an_empty_store_says_how_to_make_a_run(page: Page, tmp_path: Path) -> None:
    RunStore(tmp_path / "s").close()
    with asking(tmp_path / "s") as client:
        assert statuses(client) == []
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_have_text("No runs yet")
        expect(page.get_by_text("This store has no runs.")).to_contain_text("watchkeeper run")
        expect(page.get_by_role("table")).to_have_count(0)


def test_a_store_whose_index_is_locked_is_shown(page: Page, tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        store.runs(1)  # makes the index
    other = sqlite3.connect(tmp_path / "s" / "index.sqlite3", isolation_level=None)
    other.execute("PRAGMA journal_mode=DELETE")
    other.execute("BEGIN EXCLUSIVE")
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Stopped: step limit", "Done"]
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.locator("tbody tr")).to_have_count(2)
    other.close()


def test_an_index_of_a_newer_version_is_made_anew(page: Page, tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        store.runs(1)
    index = sqlite3.connect(tmp_path / "s" / "index.sqlite3")
    index.execute("PRAGMA user_version=99")
    index.commit()
    index.close()
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Stopped: step limit", "Done"]
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.locator("tbody tr")).to_have_count(2)


def test_a_run_of_a_newer_version_is_shown_as_far_as_it_is_understood(page: Page, tmp_path: Path) -> None:
    run_id = done(tmp_path / "s")
    lines = [json.loads(line) for line in file_of(tmp_path / "s").read_bytes().splitlines()]
    lines[0]["owner"]["version"] = 99
    for line in lines:
        if line.get("tag") == "model_replied":
            line["body"] = {"turn": "the first", "new_field": {"of": ["a", "newer"]}}
        elif line.get("tag") == "tool_invoked":
            line |= {"tag": "from_the_future", "body": {"what": "happened"}}
    file_of(tmp_path / "s").write_bytes(b"".join(sealed(line) for line in lines))
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Done"]
        view = client.get(f"/api/runs/{run_id}").json()
        assert view["damage"] == ""
        assert client.get(f"/api/compare/{run_id}/{run_id}").json()["sentence"].startswith("All 3 steps are the same")
    with reading(tmp_path / "s") as address:
        expect(opened(page, address, run_id)).to_contain_text("Done")
        expect(page.locator("main")).to_contain_text("from_the_future")


def test_a_store_of_a_newer_version_is_refused_in_words(cli: CommandLine, tmp_path: Path) -> None:
    RunStore(tmp_path / "s").close()
    (tmp_path / "s" / MARKER).write_text("99")
    for command in (("view", tmp_path / "s"), ("export", "7", "--store", tmp_path / "s")):
        said = cli(*command)
        assert (said.code, "has the layout '99', this Watchkeeper writes" in said.err) == (2, True)


@pytest.mark.parametrize("lost", [1, 40, 3_000])
def test_a_record_cut_off_in_the_middle_of_a_write_is_shown_up_to_there(page: Page, tmp_path: Path, lost: int) -> None:
    run_id = done(tmp_path / "s")
    file = file_of(tmp_path / "s")
    file.write_bytes(file.read_bytes()[:-lost])
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Process died"]
        view = client.get(f"/api/runs/{run_id}").json()
        assert (view["damage"], view["answer"]) == ("", "")
    with reading(tmp_path / "s") as address:
        expect(opened(page, address, run_id)).to_contain_text("Interrupted: its process ended before the run did.")
        expect(page.locator(".told").first).to_be_visible()


def test_a_run_whose_process_was_killed_is_interrupted_and_not_running(page: Page, tmp_path: Path) -> None:
    run_id = killed(tmp_path / "s")
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Process died"]
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.get_by_role("button", name="1 process died")).to_be_visible()
        expect(page.locator("tbody tr")).to_contain_text("unknown")  # nobody knows what it has used
        expect(opened(page, address, run_id)).to_contain_text("Interrupted: its process ended")
        expect(page.locator("main")).not_to_contain_text("Running")


def test_a_run_that_was_gone_on_with_is_shown_whole(page: Page, tmp_path: Path) -> None:
    run_id = killed(tmp_path / "s")
    resume(run_id, template(), model=looks(last="Found."), prices=PRICES, store=tmp_path / "s")
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Done"]
        tags = [entry["tag"] for entry in client.get(f"/api/runs/{run_id}").json()["story"]]
        assert tags.index("tool_invoked") < tags.index("run_resumed")
    with reading(tmp_path / "s") as address:
        expect(opened(page, address, run_id)).to_contain_text("Done: 2 turns")
        expect(page.locator("main")).to_contain_text("Found.")


def test_a_run_that_goes_on_is_running_until_it_ends(page: Page, tmp_path: Path) -> None:
    asked, answered = threading.Event(), threading.Event()

    def step(_: ModelRequest) -> Say:
        asked.set()
        assert answered.wait(60)
        return Say("Here.")

    def work() -> None:
        run(template(), model=ScriptedModel(step, free=False), prices=PRICES, store=tmp_path / "s")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert asked.wait(60)
        with asking(tmp_path / "s") as client:
            assert statuses(client) == ["Running"]
        with reading(tmp_path / "s") as address:
            run_id = file_of(tmp_path / "s").name.removesuffix(".jsonl")
            expect(opened(page, address, run_id)).to_contain_text("It is still running in process")
            page.get_by_role("link", name="Runs").click()
            expect(page.get_by_role("button", name="1 running")).to_be_visible()
            answered.set()
            worker.join(60)
            page.reload()
            expect(page.get_by_role("button", name="1 done")).to_be_visible()
    finally:
        answered.set()
        worker.join(60)


def test_a_parked_run_waits_for_a_person(page: Page, tmp_path: Path) -> None:
    parked = World().agent().run("go", store=tmp_path / "s", on_ask="park")
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Parked"]
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.get_by_role("button", name="1 parked")).to_be_visible()
        expect(opened(page, address, str(parked.run_id))).to_contain_text("answer")


def test_a_damaged_run_is_named_and_keeps_no_other_from_being_shown(page: Page, tmp_path: Path) -> None:
    run_id = done(tmp_path / "s")
    file = file_of(tmp_path / "s")
    whole = file.read_bytes()
    other = done(tmp_path / "s")
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:6], b"\xff" * len(lines[6]), *lines[7:]]))
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Done", "Done"]  # its first and its last event can be read
        assert "is damaged" in client.get(f"/api/runs/{run_id}").json()["damage"]
        assert client.get(f"/api/compare/{run_id}/{other}").json()["notes"] != []
    with reading(tmp_path / "s") as address:
        opened(page, address, run_id)
        expect(page.get_by_text("cannot be read any further")).to_be_visible()
    file.write_bytes(b"\x00" * 4_000)
    with asking(tmp_path / "s") as client:
        assert statuses(client) == ["Damaged", "Done"]
        assert client.get(f"/api/runs/{run_id}").status_code == 404
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.get_by_role("button", name="1 damaged")).to_be_visible()
        page.get_by_role("link", name=run_id[:8]).click()
        expect(page.get_by_text("cannot be read")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("link", name="tests/triage").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Done")


@pytest.mark.parametrize("megabytes", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_a_message_of_many_megabytes_is_cut_and_shown(page: Page, tmp_path: Path, megabytes: int) -> None:
    text = "\x1b[31m<b>0123456789\n" * (megabytes * 50_000)
    model = ScriptedModel([Say(text)], free=False)
    run_id = str(run(template(), model=model, prices=PRICES, store=tmp_path / "s").run_id)
    assert file_of(tmp_path / "s").stat().st_size > megabytes * 1_000_000
    with asking(tmp_path / "s") as client:
        answer = client.get(f"/api/runs/{run_id}")
        assert len(answer.content) < 2_000_000
        assert "characters more]" in answer.json()["answer"]
        assert len(client.get(f"/api/compare/{run_id}/{run_id}").content) < 100_000
    with reading(tmp_path / "s") as address:
        expect(opened(page, address, run_id)).to_contain_text("Done")
        page.wait_for_function("document.querySelector('main').textContent.includes('characters more]')")
        assert page.locator("pre b").count() == 0
