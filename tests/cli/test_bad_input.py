"""Input that cannot work is one line of ours with exit code 2, and never a traceback."""

from __future__ import annotations

import pytest

from tests.cli.support import AGENT, CommandLine

DEEP = "[" * 20_000
LISTS = AGENT.replace("limit: int = 3", "limit: int = 3\n    tree: object = None\n    names: list[str] | None = None")
RUN = ("run", "triage.py:triage", "--model", "scripted", "-p", "folder=x")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "~nouser/x.py:x"),
        ("run", "x\0.py:x"),
        ("run", "triage.py:\0"),
        ("run", DEEP),
        ("run", "x" * 300),
        ("run", f"{'x' * 300}:x"),
        (*RUN, "-p", f"names={DEEP}"),
        (*RUN, "-p", "limit=\0"),
        (*RUN, "-p", "limit=\ud800"),
        (*RUN, "-p", "names=\ud800"),
        (*RUN, "-p", "tree=\ud800"),
        (*RUN, "-p", f"limit={'9' * 5000}"),
        ("run", "triage.py:triage", "--each", "\0*"),
        ("run", "triage.py:triage", "--each", "~nouser/*"),
        ("run", "triage.py:triage", "--each", "x" * 5000),
        (*RUN, "--store", "~nouser/runs.db"),
        (*RUN, "--store", "x\0"),
        (*RUN, "--store", "x" * 5000),
        (*RUN, "--store", ":memory:"),
        (*RUN, "--files", "~nouser"),
        (*RUN, "--files", "x\0"),
        (*RUN, "--files", "x" * 5000),
        (*RUN, "--notify", "x\0"),
        (*RUN, "--notify", "'"),
        (*RUN, "--account", "a", "--account-limit", "$1e999999999/day"),
        (*RUN, "--max-cost", "1e999999999"),
        (*RUN, "--max-tokens", "9" * 5000),
        (*RUN, "--max-tokens", "1e999999999"),
        (*RUN, "--timeout", "9" * 5000),
        (*RUN, "--timeout", "1e308d"),
        ("run", "triage.py:triage", "-p", "folder=x", "--model", "http://h\0/v1#x"),
        ("run", "triage.py:triage", "-p", "folder=x", "--model", "http://[/v1#x"),
        ("run", "triage.py:triage", "-p", "folder=x", "--model", "local:~nouser/x.gguf"),
        ("run", "triage.py:triage", "-p", "folder=x", "--model", "local:x\0.gguf"),
        (*RUN, "--store", "triage.py"),
        (*RUN, "--notify", "cat", "--notify-on", "130%"),
        (*RUN, "--notify-on", "80%"),
        ("runs", "--since", "yesterday"),
        ("runs", "--sort", "price"),
        ("report", "--csv", "--json"),
        ("cancel", "x", "--wait", "soon", "--store", "x"),
        ("runs", "--store", "triage.py"),
        ("runs", "--store", "~nouser/runs.db"),
        ("runs", "--store", "x\0"),
        ("runs", "--store", "."),
        ("runs", "--store", ":memory:"),
        ("runs", "--limit", "9" * 30, "--store", "x"),
        ("show", "\ud800", "--store", "x"),
        ("account", "--ledger", "~nouser/l"),
        ("account", "--ledger", "x\0"),
    ],
    ids=lambda arguments: " ".join(arguments)[:60].encode("unicode_escape").decode(),
)
def test_an_argument_that_cannot_work_is_refused(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    cli.write(LISTS)
    monkeypatch.setenv("WATCHKEEPER_API_KEY", "key")
    said = cli(*arguments)
    assert said.code == 2, said
    assert "Traceback" not in said.err + said.out
    assert "error" in said.err.lower()


@pytest.mark.parametrize(
    "text",
    [
        f"x = {DEEP}",
        '[tool.watchkeeper]\nstore = "~nouser/runs.db"\n',
        '[tool.watchkeeper]\nstore = "x\\u0000"\n',
        '[tool.watchkeeper]\nledger = "~nouser/l"\n',
        "[tool.watchkeeper.prices]\nx = { input = nan, output = 1 }\n",
        "[tool.watchkeeper.prices]\nx = { input = 1e308, output = inf }\n",
        "[tool.watchkeeper]\ntimeout = inf\n",
        f"[tool.watchkeeper]\nmax_tokens = {'9' * 4000}\n",
        "[tool.watchkeeper]\nmax_cost = nan\n",
        f"[tool.watchkeeper]\nmax_cost = 0x{'f' * 5000}\n",
        f"[tool.watchkeeper]\nmax_tokens = 0x{'f' * 5000}\n",
        f"[tool.watchkeeper]\ntimeout = 0x{'f' * 5000}\n",
        f"[tool.watchkeeper]\non_context_full = 0x{'f' * 5000}\n",
        f"[tool.watchkeeper]\naccount = 0x{'f' * 5000}\n",
        f"[tool.watchkeeper]\nprices = 0x{'f' * 5000}\n",
        f"[tool.watchkeeper.prices]\nx = 0x{'f' * 5000}\n",
        f"[tool.watchkeeper.prices]\nx = {{ input = 0x{'f' * 5000}, output = 1 }}\n",
        f"[tool]\nwatchkeeper = 0x{'f' * 5000}\n",
        f"x = {'9' * 5000}\n",
        "[tool]\nwatchkeeper = 3\n",
        "tool = 3\n",
        "\0",
        "x" * 10_000 + " = 1 =",
    ],
    ids=lambda text: text[:60].encode("unicode_escape").decode(),
)
def test_a_settings_file_that_cannot_work_is_refused(cli: CommandLine, text: str) -> None:
    (cli.folder / "pyproject.toml").write_text(text)
    said = cli(*RUN)
    assert said.code == 2, said
    assert "Traceback" not in said.err + said.out
    assert said.err.startswith("error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--on-store-failure", "maybe"),
        ("--durability", "maybe"),
        ("--on-context-full", "maybe"),
        ("--store", "triage.py"),
        ("--store", ":memory:"),
        ("--model", "opnai:x"),
        ("--fallback", "http://h/v1"),
        ("--files", "nowhere"),
        ("-p", "folder"),
        ("--each", "nowhere/*"),
        ("--first", "2"),
        ("--concurrency", "2"),
        ("--notify", "no-such-program"),
        ("--max-cost", "much"),
        ("--timeout", "soon"),
        ("--account", "a b", "--account-limit", "$1/day"),
        ("--account-limit", "much"),
    ],
    ids=" ".join,
)
def test_an_option_is_checked_before_the_agents_file_is_executed(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    cli.write(f"raise SystemExit('executed')\n{AGENT}")
    said = cli("run", "triage.py:triage", *arguments)
    assert said.code == 2, said
    assert said.err.startswith("error: ")
    assert "executed" not in said.err


@pytest.mark.parametrize("setting", ["prices.x = 3", "ledger = ':memory:'", "store = ':memory:'", "model = 3"])
def test_a_setting_is_checked_before_the_agents_file_is_executed(cli: CommandLine, setting: str) -> None:
    cli.write(f"raise SystemExit('executed')\n{AGENT}")
    (cli.folder / "pyproject.toml").write_text(f"[tool.watchkeeper]\n{setting}\n")
    said = cli("run", "triage.py:triage")
    assert said.code == 2, said
    assert said.err.startswith("error: ")
    assert not list(cli.folder.glob(":memory:*"))


def test_an_account_needs_only_what_the_agents_file_does_not_give(cli: CommandLine) -> None:
    cli.write(AGENT.replace("Limits(max_steps=9", "Limits(account='team', account_limit='$9/day', max_steps=9"))
    for given in (("--account-limit", "$1/day"), ("--account", "other"), ("--account", "none")):
        said = cli("run", "triage.py:agent", "-p", "task=x", "--store", "none", *given)
        assert said.code == 0, said
