"""``tail``: the last lines of a stored run, and with ``-f`` those that follow until its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.cli.support import CommandLine
from tests.cli.test_figures import begun, ended, invoked, replied
from tests.store.test_run_store import log
from watchkeeper.store.run_store import RunStore

RUN = UUID(int=7, version=4)


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[RunStore]:
    """Return a store with a run on which this process works."""
    with RunStore(tmp_path / "live") as store:
        store.append(log(RUN, begun("ns/key"), replied(1), invoked("one"), invoked("two"), invoked("three")))
        yield store


def tools(text: str) -> list[str]:
    """Return the names of the tools whose lines were printed."""
    return [line.split()[2] for line in text.splitlines() if "→" in line]


def meanwhile(patch: pytest.MonkeyPatch, *steps: Any) -> list[int]:
    """Take these steps in the pauses between two looks; return a list that grows by one with each pause."""
    waiting, pauses = iter(steps), list[int]()

    def pause() -> None:
        pauses.append(1)
        next(waiting)()

    patch.setattr("watchkeeper.cli.stored.tailing.pause", pause)
    return pauses


def test_the_last_lines_and_the_state_are_printed(cli: CommandLine, going_on: RunStore) -> None:
    said = cli("tail", str(RUN), "-n", "2", "--store", going_on.path)
    assert (said.code, tools(said.out)) == (0, ["two", "three"])
    assert said.out.splitlines()[-1].startswith("It is still running in process ")
    assert tools(cli("tail", str(RUN), "--store", going_on.path).out) == ["one", "two", "three"]
    (last,) = cli("tail", str(RUN), "-n", "1", "--json", "--store", going_on.path).out.splitlines()
    assert json.loads(last)["event"]["name"] == "three"


def test_what_follows_is_printed_until_the_run_has_ended(
    cli: CommandLine, going_on: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = meanwhile(
        monkeypatch,
        lambda: None,
        lambda: going_on.append(log(RUN, invoked("four"), invoked("\x1b[2J\nfive"), first=6)),
        lambda: going_on.append(log(RUN, ended(RUN, 1, 5), first=8)),
    )
    said = cli("tail", "-f", str(RUN), "-n", "1", "--store", going_on.path)
    assert (said.code, len(pauses)) == (0, 3)
    assert tools(said.out) == ["three", "four", "\\x1b[2J"]
    assert said.out.splitlines()[-1].startswith("Done: ")


def test_following_ends_when_the_process_is_gone(
    cli: CommandLine, going_on: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = meanwhile(monkeypatch, going_on.close)
    said = cli("tail", "-f", str(RUN), "--store", going_on.path)
    assert (said.code, len(pauses)) == (0, 1)
    assert said.out.splitlines()[-1] == "Interrupted: its process ended before the run did."


def test_a_run_that_has_ended_is_not_waited_for(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = json.loads(cli.run("--json", "-p", "folder=x").out)["run_id"]
    pauses = meanwhile(monkeypatch)
    said = cli("tail", "-f", run_id)
    assert (said.code, pauses) == (0, [])
    assert said.out.splitlines()[-1] == cli("show", run_id).out.splitlines()[-1]


def test_ctrl_c_ends_it_without_a_traceback(
    cli: CommandLine, going_on: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    meanwhile(monkeypatch, interrupted)
    said = cli("tail", "-f", str(RUN), "--store", going_on.path)
    assert (said.code, said.err) == (130, "")
    assert tools(said.out) == ["one", "two", "three"]
