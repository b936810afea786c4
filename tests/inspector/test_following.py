"""A page is told of a run's record piece by piece, and of the rest when it comes back after its connection broke."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.inspector.written import Written, write_night
from watchkeeper.accounting.limits import Limits
from watchkeeper.cli.report import line_of
from watchkeeper.core.clock import TestClock
from watchkeeper.inspector.following import Recordings, follow
from watchkeeper.inspector.server import application
from watchkeeper.store.run_store import RunStore


def said(message: bytes) -> tuple[str, dict[str, Any]]:
    """Return the id of a message, or the name of its event, and its data."""
    lines = dict(line.split(": ", 1) for line in message.decode().strip().splitlines())
    return lines.get("id", lines.get("event", "")), json.loads(lines["data"])


async def all_of(messages: AsyncIterator[bytes]) -> list[tuple[str, dict[str, Any]]]:
    """Return the messages of a stream that ends."""
    return [said(message) async for message in messages]


async def test_a_run_that_is_over_is_told_whole_and_the_stream_ends(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = write_night(store)
        *pieces, (last, _) = await all_of(follow(Recordings(store, line_of), str(run.run_id)))
    assert last == "over"
    head = pieces[-1][1]["head"]
    assert (head["whole"], head["focus"] is not None) == (True, True)
    assert len([node for _, piece in pieces for node in piece.get("nodes", [])]) >= 68


async def test_a_page_that_comes_back_is_told_only_the_rest(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits())
        run.model()
        run.flush()
        recordings, clock = Recordings(store, line_of), TestClock()
        stream = follow(recordings, str(run.run_id), clock=clock)
        first, piece = said(await anext(stream))
        assert (len(piece["nodes"]), len(piece["entries"])) == (1, 3)
        await stream.aclose()  # type: ignore[attr-defined]
        run.tool()
        run.end()
        (_, rest), (last, _) = await all_of(follow(recordings, str(run.run_id), first, clock))
    assert [node["name"] for node in rest["nodes"]] == ["search"]
    assert [entry["tag"] for entry in rest["entries"]] == ["tool_invoked", "run_ended"]
    assert (last, rest["head"]["run"]["status"]["kind"]) == ("over", "done")


@pytest.mark.parametrize("old", ["7-1-1", "x", "1-2"])
async def test_a_page_of_another_recording_begins_anew(tmp_path: Path, old: str) -> None:
    with RunStore(tmp_path / "s") as store:
        run = write_night(store)
        (_, piece), *_ = await all_of(follow(Recordings(store, line_of), str(run.run_id), old))
    assert piece["anew"] is True
    assert piece["entries"][0]["seq"] == 1


async def test_what_a_running_run_does_is_told_when_it_comes(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = Written(store, Limits())
        run.flush()
        stream = follow(Recordings(store, line_of), str(run.run_id), clock=TestClock())
        _, piece = said(await anext(stream))
        assert piece.get("nodes", []) == []
        run.model()
        run.flush()
        _, piece = said(await anext(stream))
        assert [node["name"] for node in piece["nodes"]] == ["turn 1"]
        run.end()
        _, piece = said(await anext(stream))
        assert piece["head"]["run"]["status"]["words"] == "Done"
        assert said(await anext(stream))[0] == "over"


async def test_a_run_that_is_gone_ends_the_stream(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        assert await all_of(follow(Recordings(store, line_of), "ffff")) == [("over", {})]


def test_who_has_no_token_is_told_nothing(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run = write_night(store)
        client = TestClient(application(store, line_of, "secret", 8000), base_url="http://127.0.0.1:8000")
        paths = [f"/api/runs/{run.run_id}/{part}" for part in ("head", "live", "events/3", "state/3")]
        assert {client.get(path).status_code for path in paths} == {403}
        client.get("/?token=secret")
        assert {client.get(path).status_code for path in paths} == {200}
        assert {client.get(path).status_code for path in (f"{paths[2]}00", f"{paths[3]}/x", "/api/runs/ff/head")} == {
            404
        }
        numbers = ("9" * 5_000, "1" * 19, "-1", "\u0663")
        assert {client.get(paths[place][:-1] + number).status_code for place in (2, 3) for number in numbers} == {404}
        assert client.get(paths[1]).headers["content-type"].startswith("text/event-stream")
