"""``runs``, ``show`` and ``account``: what the store and the ledger hold, during a run and afterwards."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.support import AGENT, CommandLine
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.accounting.limits import Limits
from watchkeeper.cli.console import PlainConsole
from watchkeeper.cli.stored.listing import print_runs
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.ids import SYSTEM_IDS, root_run_context
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.runtime.events import RunStarted
from watchkeeper.session.log import Envelope
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore
from watchkeeper.testing.ledger_checks import CENT

FOLDER = ("-p", "folder=inbox")
PATIENT = AGENT + "\n\ndef SCRIPT(request):\n    return last_words\n"


@dataclass(frozen=True)
class Strange:
    """An event that the command line knows nothing of."""

    what: str


def test_runs_lists_the_newest_first(cli: CommandLine) -> None:
    cli.run(*FOLDER)
    cli.run("--max-turns", "1", *FOLDER)
    head, *rows, totals = cli("runs").out.splitlines()
    assert head.split() == ["run", "started", "(UTC)", "prompt", "model", "state", "cost", "took"]
    assert ["turn limit" in row for row in rows] == [True, False]
    assert all("tests/triage  scripted:scripted" in row for row in rows)
    assert totals.startswith("2 runs: 1 done, 1 not done; 360 tokens, $0.00, ")
    _, _, totals = cli("runs", "--limit", "1").out.splitlines()
    assert totals.startswith("1 of 2 runs: 1 done, 1 not done; 360 tokens, ")


def test_runs_as_json_are_the_rows(cli: CommandLine) -> None:
    cli.run(*FOLDER)
    (row,) = json.loads(cli("runs", "--json").out)
    assert (row["prompt"], row["tokens"], row["stop"]) == ("tests/triage", 240, None)
    assert (row["ok"], row["turns"], row["cost_usd"], row["completion"]) == (True, 2, "0", "unchecked")
    assert row["items"] is row["items_done"] is row["item"] is None


@pytest.mark.spec("FR-142")
@pytest.mark.parametrize("more", [(), ("--max-turns", "1")], ids=["done", "stopped"])
def test_a_run_says_the_same_in_json_at_its_end_and_from_the_store(cli: CommandLine, more: tuple[str, ...]) -> None:
    ended = json.loads(cli.run("--json", *more, *FOLDER).out)
    (stored,) = json.loads(cli("runs", "--json").out)
    assert stored.keys() - ended.keys() == {"parent_id", "items", "items_done", "ended_at", "running", "process"}
    assert {key: ended[key] for key in stored.keys() & ended.keys()} == {
        key: stored[key] for key in stored.keys() & ended.keys()
    }


def test_a_run_over_many_says_the_same_in_json_at_its_end_and_from_the_store(cli: CommandLine) -> None:
    cli.write(PATIENT)
    for name in ("a.txt", "b.txt", "c.txt"):
        (cli.folder / name).touch()
    ended = json.loads(cli.run("--each", "*.txt", "--max-steps", "2", "--concurrency", "1", "--json").out)
    (stored,) = json.loads(cli("runs", "--json").out)
    assert (ended["ok"], ended["items"], ended["items_done"]) == (False, 3, 2)
    assert {key: ended[key] for key in stored.keys() & ended.keys()} == {
        key: stored[key] for key in stored.keys() & ended.keys()
    }


@pytest.mark.spec("FR-142")
@pytest.mark.parametrize("more", [(), ("--each", "*.txt")], ids=["one", "many"])
def test_show_ends_with_the_words_with_which_the_run_ended(cli: CommandLine, more: tuple[str, ...]) -> None:
    cli.write(PATIENT)
    (cli.folder / "a.txt").touch()
    said = json.loads(cli.run("--json", *(more or FOLDER)).out)
    assert cli("show", said["run_id"]).out.splitlines()[-1] == said["sentence"]


def test_an_empty_store_has_no_runs(cli: CommandLine) -> None:
    RunStore("empty.db").close()
    assert cli("runs", "--store", "empty.db").out == "no runs in empty.db\n"
    assert json.loads(cli("runs", "--store", "empty.db", "--json").out) == []


def test_show_tells_a_run_in_order(cli: CommandLine) -> None:
    run_id = json.loads(cli.run("--json", *FOLDER).out)["run_id"]
    said = cli("show", run_id[:8])
    assert said.code == 0
    order = [
        f"tests/triage {run_id} with scripted:scripted",
        "; limits: deadline 1h",
        "○ prompt  1 message, tools: look, keep",
        "● model  turn 1",
        '● look  {"path": "a"} → looked at a',
        "● model  turn 2",
        '{"summary":"all [bold]well[/bold]","count":2}',
        "Done: 2 turns, 1 tool call, 240 tokens, $0.00, ",
    ]
    places = [said.out.index(part) for part in order]
    assert places == sorted(places)


def test_show_says_why_a_run_stopped(cli: CommandLine) -> None:
    run_id = json.loads(cli.run("--json", "--max-turns", "1", *FOLDER).out)["run_id"]
    last = cli("show", run_id).out.splitlines()[-1]
    assert "turn" in last
    assert "The run reached its limit of 1 turn; it used 1 turn, 1 tool call, 120 tokens, $0.00, " in last


def test_show_as_json_is_one_event_per_line(cli: CommandLine) -> None:
    run_id = json.loads(cli.run("--json", *FOLDER).out)["run_id"]
    events = [json.loads(line) for line in cli("show", run_id, "--json").out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["tag"], events[-1]["tag"]) == ("run_started", "run_ended")
    assert {event["run_id"] for event in events} == {run_id}


def test_a_run_over_many_shows_its_items_and_each_item_itself(cli: CommandLine) -> None:
    cli.write(PATIENT)
    (cli.folder / "inbox").mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (cli.folder / "inbox" / name).touch()
    ran = json.loads(cli.run("--each", "inbox/*.txt", "--max-steps", "2", "--concurrency", "1", "--json").out)
    assert "tests/triage ×3  scripted:scripted  2 of 3 done" in cli("runs").out
    said = cli("show", ran["run_id"]).out
    for part in ("✓ a.txt", "✗ c.txt", "run ", "item", "reached its ceiling of 2 steps; 2 of 3 items done ("):
        assert part in said
    one = ran["results"][0]
    assert "tests/triage, item a.txt" in cli("show", one["run_id"]).out
    lines = cli("show", ran["run_id"], "--json").out.splitlines()
    assert {json.loads(line)["run_id"] for line in lines} >= {ran["run_id"], one["run_id"]}


def test_a_run_that_has_not_ended_says_so_and_shows_what_it_has(cli: CommandLine) -> None:
    run_id, at = uuid4(), datetime(2026, 11, 21, tzinfo=UTC)
    start = RunStarted(root_run_context(SYSTEM_IDS.uuid(), SYSTEM_IDS), "n/k", "m", "none", None, at)
    with RunStore("runs.db") as store:
        store.append([Item(run_id, Envelope(1, at, start)), Item(run_id, Envelope(2, at, Strange("thing")))])
        said = cli("show", str(run_id), "--store", "runs.db")
        assert said.out.splitlines()[-1] == f"It is still running in process {os.getpid()}."
        assert '· tests.cli.test_report:Strange  {"what": "thing"}' in said.out
        assert f"running, process {os.getpid()}" in cli("runs", "--store", "runs.db").out
    said = cli("show", str(run_id), "--store", "runs.db")
    assert said.out.splitlines()[-2:] == [
        "Interrupted: its process ended before the run did.",
        f"go on with: watchkeeper resume {str(run_id)[:8]} --store runs.db",
    ]
    assert '· tests.cli.test_report:Strange  {"what": "thing"}' in said.out
    assert "process died" in cli("runs", "--store", "runs.db").out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["show", "ffff"], "no run whose id begins with 'ffff'; 'watchkeeper runs --store "),
        (["show", ""], "no run whose id begins with ''"),
        (["runs", "--store", "nowhere.db"], "there is no store nowhere.db yet"),
        (["show", "ff", "--store", "."], ". is not the folder of a store; name another one"),
        (["runs", "--store", "triage.py"], "triage.py is not the folder of a store; name another one"),
        (["runs", "--store", "none"], "--store says that there is no store"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(cli: CommandLine, arguments: list[str], part: str) -> None:
    cli.run(*FOLDER)
    said = cli(*arguments)
    assert said.code == 2
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert part in line


def test_the_version_is_told(cli: CommandLine) -> None:
    assert cli("--version").out.startswith("watchkeeper ")


def test_in_a_terminal_states_have_colours(cli: CommandLine) -> None:
    cli.run(*FOLDER)
    out = io.StringIO()
    with RunStore() as store:
        print_runs(PlainConsole(file=out, force_terminal=True, width=120), store.runs())
    assert "\x1b[32mdone" in out.getvalue()


# --- ``watchkeeper run --account`` counts across runs, and ``watchkeeper ac -----------------------------------------


@pytest.mark.spec("FR-129")
def test_runs_under_an_account_are_counted_and_shown(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.watchkeeper]\nledger = "ledger.db"\n', encoding="utf-8")
    under = ("--account", "team-a", "--account-limit", "100k tokens/day", "--store", "none")
    for _ in range(2):
        assert cli.run("-p", "folder=in", *under).code == 0
    shown = cli("account", "--json")
    (report,) = json.loads(shown.out)
    assert report["name"] == "team-a"
    assert report["day"] == report["month"]
    assert report["day"]["model_calls"] == 4
    assert (report["held_nanos"], report["held_tokens"]) == (0, 0)
    table = cli("account", "team-a").out
    assert "team-a" in table
    assert "nothing" in table


def test_what_is_presumed_is_listed_and_corrected_by_hand(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    limits = Limits(account="team-a", account_limit="$1/day", landing=None)

    def nobody_knows(value: object, error: object, ticket: object) -> Charge:
        raise ValueError("no usage")

    with SqliteLedger(path) as ledger, ExecutionContext(limits, ledger=ledger) as gate:
        request = CallRequest("llm", "think", Estimate(1000, 200, 0, CENT, CENT // 10))
        outcome = gate.call(request, lambda _: "done", nobody_knows)
        assert gate.usage.presumed.cost_nanos == 21 * CENT
    assert outcome.node_id is not None
    table = cli("account", "--ledger", path).out
    assert all(part in table for part in (outcome.node_id, "think", "left", "$0.21", "1,200"))
    (report,) = json.loads(cli("account", "--json", "--ledger", path).out)
    assert report["presumed"][0]["id"] == outcome.node_id
    assert report["day"]["presumed"] == {**report["day"]["presumed"], "calls": 1, "cost_nanos": 21 * CENT}

    for begin, amount, cents in ((outcome.node_id[:8], "$0.05", 5), (outcome.node_id, "0.03", 3)):  # also once more
        settled = cli("account", "settle", begin, amount, "--tokens", "900,20", "--ledger", path)
        assert settled.code == 0
        said = " ".join(settled.out.split())
        assert f"{outcome.node_id}: $0.0{cents} and 920 tokens (900 in, 20 out) are booked in the place of" in said
        (report,) = json.loads(cli("account", "--json", "--ledger", path).out)
        assert (report["day"]["cost_nanos"], report["day"]["tokens"]) == (cents * CENT, 920)
        assert (report["day"]["presumed"]["calls"], report["presumed"]) == (0, [])
    kept = cli("account", "settle", outcome.node_id, "0.02", "--ledger", path)
    assert "$0.02 is booked in the place of $0.03; the 920 tokens stay as they were" in " ".join(kept.out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("settle", "abc", "1"), "no presumed call 'abc'"),
        (("settle", "", "1"), "no presumed call ''"),
        (("settle",), "account settle ID AMOUNT"),
        (("settle", "--ledger", "missing"), "account settle ID AMOUNT"),
        (("settle", "abc", "1", "--json"), "--json applies to the report of accounts"),
        (("settle", "abc"), "account settle ID AMOUNT"),
        (("team-a", "abc", "1"), "account settle ID AMOUNT"),
        (("settle", "abc", "1e99"), "0 or more"),
        (("settle", "abc", "-1"), "AMOUNT='-1' must be a finite number of dollars, 0 or more"),
        (("settle", "abc", "-0.50", "--tokens", "5,5"), "AMOUNT='-0.50' must be a finite number of dollars, 0 or more"),
        (("settle", "abc", "-$2"), "AMOUNT='-$2' must be a finite number of dollars, 0 or more"),
        (("settle", "abc", "1", "-x"), "No such option: -x"),
        (("settle", "abc", "9223372036.9"), "at most $1,000,000,000"),
        (("settle", "abc", "\u0663"), "must be a finite number of dollars"),
        (("settle", "abc", "1", "--tokens", "5"), "input and output"),
        (("settle", "abc", "1", "--tokens", "5,x"), "not a whole number"),
    ],
)
def test_what_cannot_be_settled_is_said(
    arguments: tuple[str, ...], said: str, cli: CommandLine, tmp_path: Path
) -> None:
    SqliteLedger(tmp_path / "ledger.db").shutdown()
    told = cli("account", "--ledger", tmp_path / "ledger.db", *arguments)
    assert told.code == 2
    assert said in " ".join(told.err.split())


def test_an_account_that_nobody_used_is_an_error_that_says_which_there_are(cli: CommandLine, tmp_path: Path) -> None:
    missing = cli("account")
    assert missing.code == 2
    assert "there is no ledger" in missing.err
    under = ("--account", "team-a", "--account-limit", "100k tokens/day", "--store", "none")
    assert cli.run("-p", "folder=in", *under).code == 0
    unknown = cli("account", "team-b")
    assert unknown.code == 2
    assert "has no account 'team-b'; accounts: team-a" in " ".join(unknown.err.split())


def test_a_ledger_without_accounts_says_so(cli: CommandLine, tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "empty.db").shutdown()
    assert "no accounts in" in cli("account", "--ledger", tmp_path / "empty.db").out


def test_a_run_without_an_account_makes_no_ledger(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    monkeypatch.setenv("WATCHKEEPER_LEDGER", str(path))
    assert cli.run("-p", "folder=in", "--store", "none").code == 0
    assert not path.exists()
