"""``watchkeeper view``: its address, its end by Ctrl-C, and what it says where it cannot start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.cli.support import CommandLine
from watchkeeper.cli import viewing
from watchkeeper.cli.viewing import has_screen
from watchkeeper.inspector.server import listen
from watchkeeper.store.run_store import MARKER, RunStore


def test_it_prints_an_address_that_works_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    RunStore(tmp_path / "s").close()
    command = [sys.executable, "-m", "watchkeeper", "view", str(tmp_path / "s"), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}) as process:
        assert process.stdout is not None
        try:
            assert "no runs in it yet" in process.stdout.readline()
            address = process.stdout.readline().strip()
            keeps = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            assert b'<div id="page">' in keeps.open(address, timeout=60).read()
            runs = keeps.open(address.partition("?")[0] + "api/runs", timeout=60).read()
            assert json.loads(runs)["sentence"] == "No runs yet"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_it_says_what_keeps_it_from_starting(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = cli("view", tmp_path / "nowhere")
    assert (said.code, "there is no store" in said.err) == (2, True)
    RunStore(tmp_path / "s").close()
    with listen(0) as taken:
        port = str(taken.getsockname()[1])
        said = cli("view", tmp_path / "s", "--port", port, "--no-open")
    assert (said.code, f"--port={port} is taken" in said.err) == (2, True)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "watchkeeper.inspector.server")
    monkeypatch.delattr("watchkeeper.inspector.server")
    said = cli("view", tmp_path / "s")
    assert (said.code, "pip install 'watchkeeper[view]'" in said.err) == (2, True)
    marker = next(tmp_path.rglob(MARKER))
    marker.write_text("99")
    said = cli("view", tmp_path / "s")
    assert (said.code, "has the layout '99'" in said.err) == (2, True)


def test_another_address_needs_a_flag_and_is_warned_of(tmp_path: Path) -> None:
    RunStore(tmp_path / "s").close()
    command = [sys.executable, "-m", "watchkeeper", "view", str(tmp_path / "s"), "--no-open", "--bind"]
    for address, warned in (("0.0.0.0", True), ("127.0.0.2", False)):
        with subprocess.Popen(
            [*command, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert f"on {address}, until Ctrl-C" in " ".join(process.stdout.readline().split())
                assert "/?token=" in process.stdout.readline()
                if warned:
                    assert "other machines can reach this page" in process.stderr.readline()
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
            assert warned or "warning" not in process.stderr.read()


LOOKING = """
import json, urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from watchkeeper import MarkdownSection, PromptTemplate, tool
from watchkeeper.adapters.scripted import Call, Say

@tool
def look() -> str:
    \"\"\"Look at the page of this run.\"\"\"
    address = Path("address.txt").read_text()
    keeps = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    keeps.open(address, timeout=60).read()
    runs = json.loads(keeps.open(address.partition("?")[0] + "api/runs", timeout=60).read())
    return "it says " + runs["rows"][0]["status"]["words"]

SCRIPT = [Call("look"), lambda request: Say(request.transcript[-1].text)]
task = MarkdownSection(title="Task", key="task", template="Look.", tools=(look,))
triage = PromptTemplate[str](ns="tests", key="looking", sections=(task,))
"""


def test_run_shows_the_page_while_it_goes_on(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_page(address: str) -> bool:
        opened.append(address)
        return bool((cli.folder / "address.txt").write_text(address))

    monkeypatch.setattr("webbrowser.open", open_page)
    monkeypatch.setattr(viewing, "CLOSING", 60.0)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    cli.write(LOOKING)
    said = cli.run("--view", "--store", cli.folder / "s")
    assert said.code == 0
    assert "it says Running" in said.out
    assert f"page, until the run has ended: {opened[0]}" in " ".join(said.out.split())
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(opened[0], timeout=60)


def test_a_page_beside_a_run_needs_a_store_and_this_process(cli: CommandLine) -> None:
    assert "--view shows the store" in cli.refused("--view", "--store", "none")
    assert "--view ends with this command" in cli.refused("--view", "--detach")


def test_a_browser_is_opened_only_where_it_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_screen()
