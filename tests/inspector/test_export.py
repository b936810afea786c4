"""``export``: the page of a run as one file that works from disk; what is left out of it is said."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cli.support import CommandLine
from tests.inspector.support import HOSTILE, PRICES, fill, fill_many, template
from tests.inspector.test_state_view import written
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.run import run
from watchkeeper.cli.report import line_of
from watchkeeper.inspector.exporting import exported, fitting
from watchkeeper.inspector.redaction import Redaction
from watchkeeper.store.run_store import RunStore

KEY = "sk-ant-api03-" + "a1B2" * 6


def ran(store: Path, *said: str) -> str:
    """Store a run whose model says these texts beside its calls; return the run's id."""
    script: list[Any] = [Calls((Call("look", {"path": "a"}),), text) for text in said]
    return str(
        run(template(), model=ScriptedModel([*script, Say("Done.")], free=False), prices=PRICES, store=store).run_id
    )


def data_of(page: str) -> dict[str, Any]:
    """Return the data of a page."""
    found = re.search(r'<script type="application/json" id="exported">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_works_from_disk_without_a_server(cli: CommandLine, page: Page, tmp_path: Path) -> None:
    _, stopped = fill(tmp_path / "s")
    said = cli("export", stopped[:8], "-o", "run.html", "--store", tmp_path / "s")
    assert (said.code, "wrote run.html: 1 run, 0.1 MB" in said.out) == (0, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((cli.folder / "run.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_contain_text("ceiling of 3 steps")
    expect(page.locator(".told.at")).to_contain_text("This stopped the run")
    expect(page.get_by_role("complementary")).to_contain_text("Exported: this file has one run")
    page.keyboard.press("j")
    there = page.url
    page.reload()
    assert page.url == there
    page.get_by_role("link", name="Runs").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("checkbox")).to_have_count(0)  # there is nothing to compare with
    assert [each for each in asked if not each.startswith(("file:", "data:"))] == []


def test_hostile_text_ends_neither_its_element_nor_its_string(page: Page, tmp_path: Path) -> None:
    evil = f"</script><script>alert(1)</script><!--<script> {HOSTILE} ![x](http://evil.example/x.png)"
    run_id = ran(tmp_path / "s", evil)
    with RunStore(tmp_path / "s", read_only=True) as store:
        made = exported(store, run_id, line_of, Redaction())
    assert made.page.count("</script>") == made.page.count("<script") == 2
    (tmp_path / "x.html").write_text(made.page, encoding="utf-8")
    page.goto((tmp_path / "x.html").as_uri())
    expect(page.get_by_text("</script><script>alert(1)</script><!--<script>").first).to_be_visible()
    assert page.locator("main img, main script").count() == 0


def test_an_item_names_the_run_over_all_items_which_is_not_in_the_file(tmp_path: Path) -> None:
    many = fill_many(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        item = store.children(many)[0].run_id
        alone, whole = (data_of(exported(store, each, line_of, Redaction()).page) for each in (item, many))
    above = [data["answers"][f"api/runs/{item}"]["above"] for data in (alone, whole)]
    assert [(each["run_id"], each["words"]) for each in above] == [
        ("", "item of tests/letters ×3"),
        (many, "item of tests/letters ×3"),
    ]


def test_its_policy_lets_no_other_script_in(browser: Browser, tmp_path: Path) -> None:
    done, _ = fill(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        made = exported(store, done, line_of, Redaction())
    assert "unsafe" not in made.page.partition("<title>")[0]
    changed = made.page.replace("</body>", "<script>document.title = 'evil'</script></body>")
    (tmp_path / "x.html").write_text(changed, encoding="utf-8")
    page, said = browser.new_page(), list[str]()
    page.on("console", lambda line: said.append(line.text))
    page.goto((tmp_path / "x.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_contain_text("Done")
    assert page.title() != "evil"
    assert any("violates the following Content Security Policy" in line for line in said)
    page.close()


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        (f"the key is {KEY}.", "API key"),
        ("AWS: AKIAIOSFODNN7EXAMPLE", "API key"),
        ("Authorization: Bearer abcdefghijkl.mnop", "token"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "token"),
        ('{"password": "hunter22"}', "password or secret"),
        (r"{\"client_secret\": \"hunter22\"}", "password or secret"),
        ("postgres://admin:hunter22@db/x", "password or secret"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----", "private key"),
        ("Invoice of HALDEN Marine", "text that was named"),
    ],
)
def test_what_looks_like_a_credential_or_is_named_is_left_out(text: str, left_out: str) -> None:
    redaction = Redaction(["Halden Marine"])
    found = redaction.data({"story": [{"seq": 7, "text": text}]})["story"][0]["text"]
    assert f"[redacted: {left_out}]" in found
    assert not re.search("a1B2|AKIA|mnop|c2ln|hunter|MIIE|halden", found, re.IGNORECASE)
    assert redaction.in_words() == f"{left_out}, 1 time (event 7)"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "max_tokens: 2000000",
            "password: none",
            "token: true",
            "a task-list of risk-adjusted-weighted-values",
            "120 tokens",
        ),
        *("http://127.0.0.1:8080/x@y", "api_key=[redacted]", "7f3a9c21-0d4e-4c5b-9f00-2b5d90d2ee11"),
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    assert Redaction(["Halden"]).text(text) == text


def test_an_export_says_what_it_left_out(cli: CommandLine, page: Page, tmp_path: Path) -> None:
    run_id = ran(tmp_path / "s", f"I use {KEY}.", f"I use {KEY} for Halden.", "Halden!")
    said = cli("export", run_id, "--store", tmp_path / "s", "--redact", "Halden", "-o", tmp_path / "x.html")
    assert (said.code, "left out Replaced by [redacted]: API key, " in said.out) == (0, True)
    written = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert KEY not in written
    assert "Halden" not in written
    page.goto((tmp_path / "x.html").as_uri())
    expect(page.get_by_role("complementary")).to_contain_text("API key, ")
    expect(page.get_by_role("complementary")).to_contain_text("text that was named, ")
    said = cli("export", run_id, "--store", tmp_path / "s", "--unredacted", "-o", tmp_path / "y.html")
    assert KEY in (tmp_path / "y.html").read_text(encoding="utf-8")
    assert "left out" not in said.out


def test_what_cannot_be_written_or_left_out_is_said(cli: CommandLine, tmp_path: Path) -> None:
    done, _ = fill(tmp_path / "s")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for options, why in (
        (
            ("-o", "/nowhere/x.html"),
            "cannot be written, because there is no folder '/nowhere'; make it",
        ),
        (("-o", "triage.py/x.html"), "there is no folder 'triage.py'"),
        (("-o", "x" * 300), "cannot be written: File name too long; name another file"),
        (("-o", ""), "'.' is no file"),
        (("-o", str(tmp_path)), "is no file; name one that may be replaced, or a new one"),
        (("-o", str(pipe)), "is no file; name one that may be replaced, or a new one"),
        (("--redact", "a"), "at least 3 characters"),
    ):
        said = cli("export", done, "--store", tmp_path / "s", *options)
        assert (said.code, len(said.err.splitlines()), why in said.err) == (2, 1, True), said
    assert pipe.is_fifo()
    assert cli("export", "ffff", "--store", tmp_path / "s").code == 2
    cli("export", done[:8], "--store", tmp_path / "s")
    assert (cli.folder / f"run-{done[:8]}.html").exists()


def test_the_runs_below_are_in_it(tmp_path: Path) -> None:
    many = fill_many(tmp_path / "s")
    with RunStore(tmp_path / "s", read_only=True) as store:
        made = exported(store, many, line_of, Redaction())
        children = [child.run_id for child in store.children(many)]
        alone = exported(store, children[0], line_of, Redaction())
    assert made.runs == 4
    answers = data_of(made.page)["answers"]
    heads = {path for path in answers if "/events/" not in path and "/state/" not in path}
    assert heads == {f"api/runs/{run_id}" for run_id in (many, *children)} | {"api/runs"}
    assert f"api/runs/{children[0]}/events/1" in answers
    assert len(answers["api/runs"]["rows"]) == 3
    assert len(data_of(alone.page)["answers"]["api/runs"]["rows"]) == 1


def test_every_tab_works_in_the_file_or_says_what_it_lacks(page: Page, tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        run_id = written(store).run_id
        made = exported(store, str(run_id), line_of, Redaction(["match"]))
    assert "match" not in made.page.partition('id="exported">')[2].partition("</script>")[0]
    (tmp_path / "x.html").write_text(made.page, encoding="utf-8")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{(tmp_path / 'x.html').as_uri()}#/run/{run_id}?at=5&tab=state")
    panel = page.get_by_role("tabpanel")
    expect(panel.locator(".added")).to_contain_text("check")
    expect(panel.locator(".removed")).to_contain_text("[redacted: text that was named]")
    for tab in ("Transcript", "Assessments", "Safety", "Verdicts", "Log", "Raw"):
        page.get_by_role("tab", name=tab).click()
        expect(panel).not_to_be_empty()
    expect(panel).to_contain_text('"text"')
    without = {path: answer for path, answer in data_of(made.page)["answers"].items() if "/5" not in path}
    data = json.dumps({**data_of(made.page), "answers": without}).replace("<", "\\u003c")
    (tmp_path / "y.html").write_text(re.sub('(?<=id="exported">).*?(?=</script>)', lambda _: data, made.page))
    for tab in ("state", "raw"):
        page.goto(f"{(tmp_path / 'y.html').as_uri()}#/run/{run_id}?at=5&tab={tab}")
        expect(panel).to_contain_text("This file does not have that: it was exported without it.")
    assert [each for each in asked if not each.startswith(("file:", "data:"))] == []


def test_too_much_is_cut_and_said() -> None:
    def view(chars: int, entries: int) -> dict[str, Any]:
        return {"story": [{"seq": seq, "text": "x" * chars} for seq in range(entries)]}

    main = "api/runs/a"
    small = {main: view(10, 10), "api/runs/b": view(10, 10)}
    assert fitting(small, main, 10_000) == (small, [])
    long = {main: view(20_000, 4), "api/runs/b": view(10, 10)}
    cut, notes = fitting(long, main, 40_000)
    assert notes == ["The ends of 4 texts of more than 4,096 characters."]
    assert (len(cut[main]["story"][0]["text"]), cut["api/runs/b"]) == (4_097, long["api/runs/b"])
    records = {main: view(10, 3), **{f"{main}/events/{number}": view(100, 20) for number in range(3)}}
    records[f"{main}/state/2"] = view(100, 20)
    cut, notes = fitting(records, main, 6_000)
    left_out = ["The whole records of 1 event.", "The state after 1 event."]
    assert (list(cut), notes) == ([main, f"{main}/events/2", f"{main}/events/1"], left_out)
    several = {main: view(100, 40), "api/runs/b": view(100, 40), "api/runs/c": view(100, 40)}
    cut, notes = fitting(several, main, 12_000)
    assert (list(cut), notes) == ([main, "api/runs/b"], ["1 run below it."])
    many = {main: view(100, 3_000)}
    cut, notes = fitting(many, main, 60_000)
    assert notes == ["The middle of 1 list of more than 200 entries."]
    assert [entry["seq"] for entry in cut[main]["story"]][98:102] == [98, 99, 2900, 2901]


def test_a_run_of_more_than_20_mb_is_cut_to_it(tmp_path: Path) -> None:
    run_id = ran(tmp_path / "s", *("<" * 60_000 for _ in range(80)))  # 6 bytes each in the file
    with RunStore(tmp_path / "s", read_only=True) as store:
        made = exported(store, run_id, line_of, Redaction())
    assert len(made.page) < 20_200_000
    ends, records = made.left_out
    assert ends == "The ends of 80 texts of more than 16,384 characters."
    assert re.fullmatch(r"The whole records of \d+ events.", records)


@pytest.mark.parametrize("text", ["eyJ-" * 100_000, "-eyJ-.aaaaaaaaa" * 20_000])
def test_a_text_full_of_beginnings_of_tokens_takes_no_longer_than_its_size(text: str) -> None:
    # With a search that begins anew at each of them, the first takes a quarter of an hour.
    assert Redaction().text(text) == text


def test_a_token_within_a_longer_word_is_left_out() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
    assert token not in Redaction().text(f"session-{token} eyJ-{token}")
