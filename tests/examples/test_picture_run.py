"""The README's picture: what a command printed, shortened, drawn without fetching anything; none of a failed run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "picture_run.py"
RUN = """
print("the head")
for item in ("one", "two", "three"):
    print(f"▸ {item}")
    print("  \\033[32m●\\033[0m work on " + item + "<&>" + "." * 200)
print("the end")
"""


def picture(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_draws_first_and_last_item_and_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.svg"
    assert picture(monkeypatch, str(out), "make run", "--", sys.executable, "-c", RUN) == 0
    svg = out.read_text(encoding="utf-8").replace("&#160;", " ")
    for text in ("make run", "the head", "▸ one", "▸ three", "the end", "⋮ 2 lines", "one&lt;&amp;&gt;"):
        assert text in svg
    assert "two" not in svg
    assert "url(http" not in svg
    assert len(svg) < 60_000
    assert "▸ two" in capsys.readouterr().out


def test_a_failed_run_gives_its_exit_code_and_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run.svg"
    assert picture(monkeypatch, str(out), "make run", "--", sys.executable, "-c", "raise SystemExit(3)") == 3
    assert not out.exists()


def test_wrong_arguments_are_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert picture(monkeypatch, "out.svg") == 2
    assert "usage:" in capsys.readouterr().err
