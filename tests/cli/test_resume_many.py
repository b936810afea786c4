"""``watchkeeper resume`` on a run over many items."""

from __future__ import annotations

import json

from tests.cli.support import CommandLine

AGENT = """
from pathlib import Path

from watchkeeper.models import Say
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate

section = MarkdownSection(title="Task", key="task", template="Look into ${name}.")
triage = PromptTemplate[str](ns="t", key="triage", sections=[section])


def SCRIPT(request):
    name = request.transcript[0].text.rpartition("Look into ")[2][0]
    return ValueError("it is broken") if Path(f"{name}.broken").exists() else Say(f"did {name}")
"""


def test_items_that_are_not_done_are_done_and_the_others_are_kept(cli: CommandLine) -> None:
    cli.write(AGENT)
    names, broken = cli.folder / "names.txt", cli.folder / "b.broken"
    names.write_text("a\nb\nc\nd\n")
    broken.touch()
    first = cli.run("--json", "--each", "lines:names.txt", "--first", "3", "--concurrency", "1")
    assert first.code == 3, first.err
    before = json.loads(first.out)
    run_id = before["run_id"]
    assert [each["output"] for each in before["results"]] == ["did a", None, "did c"]

    names.write_text("a\nx\nc\nd\n")
    said = cli("resume", run_id)
    assert said.code == 2
    assert "item 2 'names.txt:2' has changed" in " ".join(said.err.split())
    names.write_text("a\nb\nc\nd\n")
    assert cli("resume", run_id, "--only", "some").code == 2
    nothing = cli("resume", run_id, "--only", "unstarted", "--json")
    assert nothing.code == 3, nothing.err

    broken.unlink()
    again = cli("resume", run_id, "--only", "failed", "--json")
    assert again.code == 0, again.err
    after = json.loads(again.out)
    assert [each["output"] for each in after["results"]] == ["did a", "did b", "did c"]
    assert after["results"][0]["run_id"] == before["results"][0]["run_id"]
    shown = cli("show", run_id)
    assert shown.out.count("begun anew later") == 1
    assert "3 of 3 items done" in shown.out
    listed = json.loads(cli("runs", "--json").out)
    assert [(run["run_id"], run["items_done"]) for run in listed] == [(run_id, 3)]
    assert cli("resume", run_id).code == 2


def test_limits_named_at_a_resume_hold_for_those_that_follow(cli: CommandLine) -> None:
    """Also where the command that began the run has named others."""
    cli.write(AGENT)
    broken = cli.folder / "a.broken"
    broken.touch()
    (cli.folder / "names.txt").write_text("a\nb\n")
    begun = cli.run(
        "--json", "--each", "lines:names.txt", "--concurrency", "1", "--max-steps", "40", "--max-turns", "7"
    )
    run_id = json.loads(begun.out)["run_id"]
    assert cli("resume", run_id, "--max-steps", "9", "--max-tokens", "500000").code == 3
    broken.unlink()
    assert cli("resume", run_id).code == 0
    shown = map(json.loads, cli("show", run_id, "--json").out.splitlines())
    told = [each["event"]["limit_values"] for each in shown if each["tag"] == "run_resumed"]
    assert [(each["max_steps"], each["max_turns"], each["max_total_tokens"]) for each in told] == [(9, 7, 500_000)] * 2
