"""What ``--each`` reads: files, texts, lines, rows and standard input; bad lines are named with their numbers."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.support import AGENT, CommandLine
from watchkeeper.cli.console import word_points

ECHO = (
    AGENT
    + """

def SCRIPT(request):
    said = request.transcript[0].text.split("Look into ")[1]
    return Say({"summary": said, "count": 1})
"""
)


def over(cli: CommandLine, *arguments: str, code: int = 0) -> list[tuple[str, str]]:
    """Run over items; return label and prompt of each."""
    cli.write(ECHO)
    said = cli.run("--json", *arguments)
    assert said.code == code, said.err
    results: list[dict[str, Any]] = json.loads(said.out)["results"]
    return [(result["item"], result["output"]["summary"]) for result in results]


def write(cli: CommandLine, **texts: str) -> None:
    for name, text in texts.items():
        (cli.folder / name.replace("_", ".")).write_bytes(text.encode("utf-8", errors="surrogateescape"))


def stdin(patch: pytest.MonkeyPatch, text: str) -> None:
    patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))


def test_several_patterns_are_run_over_together_and_no_file_twice(cli: CommandLine) -> None:
    write(cli, a_txt="A", b_md="B", c_txt="C")
    found = over(cli, "--each", "*.txt", "--each", "b.md", "--each", "a*")
    assert [label for label, _ in found] == ["a.txt", "c.txt", "b.md"]
    assert found[2][1] == "b.md, at most 3."
    assert len(over(cli, "--each", "*.txt", "--each", "b.md", "--first", "2")) == 2


def test_the_text_of_a_file_may_be_what_is_bound(cli: CommandLine) -> None:
    write(cli, a_txt="first\nsecond", b_txt="B")
    assert over(cli, "--each", "text:*.txt", "-p", "limit=2") == [
        ("a.txt", "first\nsecond, at most 2."),
        ("b.txt", "B, at most 2."),
    ]


def test_the_text_of_no_file_is_taken_twice_and_labels_tell_all_files_apart(cli: CommandLine) -> None:
    for name in ("a/x.md", "b/x.md", "c/y.md"):
        (cli.folder / name).parent.mkdir()
        (cli.folder / name).write_text(f"text of {name}")
    sources = ("text:a/*.md", "text:b/*.md", "c/y.md", "text:*/x.md", "c/*", "text:c/y.md")
    assert over(cli, *(part for source in sources for part in ("--each", source))) == [
        ("a/x.md", "text of a/x.md, at most 3."),
        ("b/x.md", "text of b/x.md, at most 3."),
        ("c/y.md", "c/y.md, at most 3."),
        ("c/y.md", "text of c/y.md, at most 3."),
    ]


def test_every_line_of_a_file_is_an_item(cli: CommandLine) -> None:
    write(cli, names_txt="one\r\n\ntwo\u2028more\n")
    assert over(cli, "--each", "lines:names.txt") == [
        ("names.txt:1", "one, at most 3."),
        ("names.txt:3", "two\u2028more, at most 3."),
    ]


def test_columns_go_into_the_parameters_of_their_names(cli: CommandLine) -> None:
    write(cli, rows_csv='\ufefflimit, folder,note\n5,"a\nb",x\n\n6,c,y\n')
    assert over(cli, "--each", "csv:rows.csv") == [("rows.csv:2", "a\nb, at most 5."), ("rows.csv:5", "c, at most 6.")]


def test_values_of_json_lines_go_into_parameters_and_null_is_none_given(cli: CommandLine) -> None:
    write(cli, rows_jsonl='{"folder": "a", "limit": 5, "more": [1]}\n{"folder": "5", "limit": null}\n')
    assert over(cli, "--each", "jsonl:rows.jsonl") == [
        ("rows.jsonl:1", "a, at most 5."),
        ("rows.jsonl:2", "5, at most 3."),
    ]


@pytest.mark.parametrize(("kind", "text"), [("lines", "a\n"), ("csv", "folder\na\n"), ("jsonl", '{"folder": "a"}\n')])
def test_standard_input_has_items_too(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, kind: str, text: str) -> None:
    stdin(monkeypatch, text)
    assert [said for _, said in over(cli, "--each", f"{kind}:-")] == ["a, at most 3."]


BAD_CSV = "folder,limit\na,1\nb\nc,many\n\udcff,1\nd,4\n"
BAD_JSONL = '{"folder": "a"}\n{"folder"\n[1]\n{"limit": 1}\n\udcff\n{"folder": "b"}\n'


@pytest.mark.parametrize(
    ("source", "text", "bad", "good"),
    [
        ("csv:rows.x", BAD_CSV, {"line 3: 1 cell, and 2 columns", "line 5: not UTF-8"}, 2),
        ("jsonl:rows.x", BAD_JSONL, {"line 2: ", "line 3: not a JSON object", "line 5: not UTF-8"}, 2),
        ("lines:rows.x", "a\n\udcff\nb\n", {"line 2: not UTF-8"}, 2),
    ],
)
def test_bad_lines_are_refused_together_or_left_out(
    cli: CommandLine, source: str, text: str, bad: set[str], good: int
) -> None:
    cli.write(ECHO)
    write(cli, rows_x=text)
    line = cli.refused("--each", source)
    assert all(f"rows.x, {said}" in line for said in bad)
    assert "--skip-bad leaves out" in line
    said = cli.run("--each", source, "--skip-bad")
    assert said.code == 0
    assert all(f"left out: rows.x, {part}" in said.out for part in bad)
    assert f"{good} of {good} items done" in said.out


@pytest.mark.parametrize(
    ("source", "text", "part"),
    [
        ("csv:rows.x", "folder,limit\na,1\nb,many\n", "rows.x, line 3: limit=many: "),
        ("jsonl:rows.x", '{"folder": "a"}\n{"limit": 1}\n', "rows.x, line 2: no value for folder"),
    ],
)
def test_rows_that_do_not_fit_the_parameters_are_bad_too(cli: CommandLine, source: str, text: str, part: str) -> None:
    cli.write(ECHO)
    write(cli, rows_x=text)
    assert part in cli.refused("--each", source)
    said = cli.run("--each", source, "--skip-bad")
    assert f"left out: {part}" in said.out
    assert "1 of 1 items done" in said.out


@pytest.mark.parametrize(
    ("sources", "text", "part"),
    [
        (["csv:missing.csv"], "", "No such file"),
        (["lines:rows.x"], "\n\n", "has no items"),
        (["-"], "", "write lines:-"),
        (["lines:-", "csv:-"], "", "standard input can be read once only"),
        (["csv:rows.x"], "folder,folder\na,b\n", "line 1: every column needs a name of its own"),
        (["csv:rows.x"], "other\na\n", "--each has no column of folder, limit"),
        (["lines:rows.x"], "\udcff\n", "line 1: not UTF-8"),
        (["text:*.y"], "", "no file matches"),
    ],
)
def test_sources_that_cannot_work_are_refused(cli: CommandLine, sources: list[str], text: str, part: str) -> None:
    cli.write(ECHO)
    write(cli, rows_x=text)
    assert part in cli.refused(*(part for source in sources for part in ("--each", source)))


def test_a_parameter_and_a_column_of_one_name_are_refused(cli: CommandLine) -> None:
    cli.write(ECHO)
    write(cli, rows_x="folder,limit\na,1\n")
    assert "--param limit: a column has that name, too" in cli.refused("--each", "csv:rows.x", "-p", "limit=1")


def test_many_bad_lines_are_counted(cli: CommandLine) -> None:
    cli.write(ECHO)
    write(cli, rows_x="no json\n" * 30)
    line = cli.refused("--each", "jsonl:rows.x", "--skip-bad")
    assert "line 5: " in line
    assert "line 6: " not in line
    assert "and 25 more (no item can be used)" in line


# --- two hundred items ------------------------------------------------------------------------------------------------

BATCH = (
    AGENT
    + """
from watchkeeper.errors import ProviderError


def SCRIPT(request):
    said = request.transcript[0].text
    return ProviderError("bad", fault="bad_request") if "bad" in said else last_words
"""
)
NAMES = "".join(f"{'bad' if number % 20 == 7 else 'good'} {number}\n" for number in range(200))


def test_a_batch_of_two_hundred_with_ten_bad_ones_ends_with_a_screenful_and_exit_code_3(cli: CommandLine) -> None:
    cli.write(BATCH)
    write(cli, names_txt=NAMES)
    said = cli.run("--each", "lines:names.txt")
    lines = said.out.splitlines()
    assert said.code == 3
    assert len(lines) <= 30
    counts = [line for line in lines if " done, " in line and " not done, " in line]
    assert len(counts) == 10
    assert counts[4].startswith("95 of 200 done, 5 not done, $0.00, about ")
    assert counts[-1] == "190 of 200 done, 10 not done, $0.00"
    assert [line.split()[0] for line in lines if "✗" in line] == [f"names.txt:{20 * n + 8}" for n in range(10)]
    assert lines[-3].startswith("190 of 200 items done")
    assert lines[-1].startswith("what failed: watchkeeper runs --failed --parent ")


SLOW = (
    AGENT.replace('print("the tool speaks")', "others.wait(30)")
    + """
import threading

from watchkeeper.adapters.scripted import Calls
from watchkeeper.core.usage import TokenUsage

ended = 0
others = threading.Event()


def SCRIPT(request):
    global ended
    first = len(request.transcript) == 1
    usage = TokenUsage(10_000 if first else 1, 0)
    if first and "slow" in request.transcript[0].text:
        return Calls((Call("look", {"path": "a"}),), usage=usage)
    ended += 1
    if ended == 3:
        others.set()
    return Say({"summary": "done", "count": 1}, usage=usage)
"""
)


def test_the_counter_shows_what_running_items_have_cost_too(cli: CommandLine) -> None:
    cli.write(SLOW)
    write(cli, names_txt="slow\n" + "quick\n" * 19)
    (cli.folder / "pyproject.toml").write_text(
        '[tool.watchkeeper.prices]\n"scripted:scripted" = { input = 100, output = 0 }\n'
    )
    said = cli.run("--each", "lines:names.txt", "--concurrency", "2")
    counts = [line.partition(", about")[0] for line in said.out.splitlines() if " not done, " in line]
    assert said.code == 0
    assert counts[0] == "2 of 20 done, 0 not done, $3.00"  # one of them is what the slow item has cost so far
    assert counts[-1] == "20 of 20 done, 0 not done, $20.00"


def test_quiet_prints_only_the_end(cli: CommandLine) -> None:
    cli.write(BATCH)
    write(cli, names_txt=NAMES)
    lines = cli.run("--each", "lines:names.txt", "--quiet").out.splitlines()
    assert len(lines) == 15
    assert lines[0] == ""
    assert lines[-3].startswith("190 of 200 items done")
    assert lines[-1].startswith("what failed: watchkeeper runs --failed --parent ")
    assert cli.run("-p", "folder=x", "-q").out.splitlines()[1] == "Result"


def test_a_limit_that_was_reached_by_failing_calls_is_said_with_them(cli: CommandLine) -> None:
    failing = AGENT.replace('print("the tool speaks")', 'raise KeyError("A-117 of account-27182818284590")')
    failing += 'from watchkeeper.core.secrets import hold\nhold("account-27182818284590")\n'
    cli.write(failing + 'SCRIPT = lambda request: Call("look", {"path": "a"})\n')
    write(cli, names_txt="one\n")
    out = cli.run("--each", "lines:names.txt", "-q", "--max-turns", "4").out
    assert "✗  The run reached its limit of 4 turns. Its last 3 calls of look failed: " in out
    assert "KeyError: 'A-117 of " in out
    assert "27182818284590" not in out
    alone = cli.run("-p", "folder=one", "-q", "--max-turns", "4").out
    assert "Its last 3 calls of look failed: KeyError: 'A-117 of " in alone
    shown = cli("show", alone.split("watchkeeper show ")[1].split()[0]).out
    assert "Its last 3 calls of look failed: KeyError: 'A-117 of " in shown


def test_show_names_the_batch_of_an_item_and_the_items_that_never_began(cli: CommandLine) -> None:
    cli.write()
    write(cli, names_txt="one\ntwo\nthree\n")
    out = cli.run("--each", "lines:names.txt", "-q", "--max-steps", "3", "--concurrency", "1").out
    whole = cli("show", out.split("watchkeeper show ")[1].split()[0]).out
    assert "2 items never began: names.txt:2, names.txt:3\n" in whole
    (item,) = [line.split()[0] for line in whole.splitlines() if " names.txt:1 " in line and "✗" not in line][-1:]
    said = cli("show", item).out.splitlines()[2]
    assert said.startswith("item of tests/triage ×3 (")
    assert "), within its limits: " in said
    assert "steps 3" in said


def test_of_many_failures_the_first_are_listed_and_the_rest_counted(cli: CommandLine) -> None:
    cli.write(BATCH)
    write(cli, names_txt=NAMES.replace("good", "bad"))
    said = cli.run("--each", "lines:names.txt", "-q")
    assert said.code == 1
    assert said.out.count("✗") == 20
    assert "\nand 180 more\n" in said.out


def test_json_lines_are_events_and_items_as_they_end_and_the_result(cli: CommandLine) -> None:
    cli.write(BATCH)
    write(cli, names_txt="good 1\nbad 2\n")
    said = cli.run("--each", "lines:names.txt", "--jsonl")
    assert said.code == 3
    *events, last = [json.loads(line) for line in said.out.splitlines()]
    ended = [line["event"] for line in events if line["tag"] == "item_ended"]
    assert [item["item"] for item in ended] == ["names.txt:1", "names.txt:2"]
    assert ended[1]["stop"]["reason"] == "provider_error"
    assert {line["item"] for line in events if line["tag"] == "run_ended"} == {"names.txt:1", "names.txt:2"}
    assert events[0]["tag"] == "many_started"
    assert last["tag"] == "result"
    assert last["result"]["items_done"] == 1
    (only,) = [json.loads(line) for line in cli.run("-p", "folder=x", "--jsonl", "-q").out.splitlines()]
    assert only["result"]["ok"] is True
    assert "give one of them" in cli.refused("-p", "folder=x", "--jsonl", "--json")


def test_a_long_line_is_folded_between_words() -> None:
    line = "  one two three  four " + "x" * 30 + " five"
    points = word_points(line, 12, 4)
    parts = [line[start:end] for start, end in zip([0, *points], [*points, None], strict=True)]
    assert parts == ["  one two ", "three  ", "four ", "x" * 8, "x" * 8, "x" * 8, "xxxxxx ", "five"]
