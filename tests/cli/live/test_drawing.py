"""How the live view looks: at three widths, without colours, with hostile texts; its figures add up."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from watchkeeper.cli.console import make_console, row_of
from watchkeeper.cli.live.drawing import ASCII, lines_of
from watchkeeper.cli.live.state import Advised, Items, UnderWay, View
from watchkeeper.runtime.gauges import Gauge

GOLDEN = Path(__file__).parent / "golden"
NOW = datetime(2026, 11, 23, 14, 2, tzinfo=UTC)
NANOS = 1_000_000_000

GAUGES = (
    Gauge("deadline", 200_000, 600_000, 30_000, column="time"),
    Gauge("max_total_tokens", 361_240, 500_000, 12_000, 2_000, column="total_tokens"),
    Gauge("max_cost_usd", 420_000_000, 2 * NANOS, 100_000_000, column="cost_nanos"),
    Gauge("max_steps", 18, 19, column="steps"),
    Gauge("max_output_tokens", 1_001, 20_000_000, 1_024, column="output_tokens"),
    Gauge("account_limit", 19 * NANOS, 20 * NANOS, NANOS // 2, 100_000_000, column="cost_nanos"),
)
ONE = View(
    "billing/triage",
    "anthropic:claude-sonnet-5",
    200.4,
    420_000_000,
    NOW,
    GAUGES,
    ("total_tokens", NOW + timedelta(minutes=30)),
    (UnderWay("model", "anthropic:claude-sonnet-5", 12.7), UnderWay("tool", "read_mail", 3.2)),
    None,
    Advised("Stall", "warning", "The last 12 calls brought nothing new; the same three files were read again."),
)
MANY = replace(
    ONE,
    under_way=tuple(UnderWay("", f"letter-{number}.txt", 80.0 - number) for number in range(5)),
    items=Items(200, 12, 3),
    advice=Advised("Resources", "caution", "You have used 361,240 of 500,000 tokens."),
    cost_nanos=None,
)
ENDED = replace(ONE, ended="cost limit", end=None, under_way=(), advice=None)


def drawn(view: View, width: int, *, colours: bool = False) -> str:
    return "".join(f"{row_of(line, width, colours=colours)}\n" for line in lines_of(view, width))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("name", "view"), [("one", ONE), ("many", MANY), ("ended", ENDED)])
def test_the_live_view_looks_as_it_did(name: str, view: View, width: int) -> None:
    assert drawn(view, width) == (GOLDEN / f"{name}-{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [*range(60, 201, 7), 20, 200])
@pytest.mark.parametrize("view", [ONE, MANY, ENDED])
def test_no_line_is_wider_than_the_terminal(view: View, width: int) -> None:
    assert all(len(line) <= width for line in drawn(view, width).splitlines())


def test_no_color_means_no_style_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert make_console(io.StringIO()).color_system is None
    assert "\x1b" not in drawn(MANY, 80)
    assert "\x1b[31m" in drawn(MANY, 80, colours=True)


def test_what_others_wrote_cannot_act_on_the_terminal() -> None:
    evil = "\x1b[2J\x1b]8;;http://x\x07link\nmoney  ####  \u202egnp.exe"
    view = replace(
        MANY, name=evil, model=evil, under_way=(UnderWay("", evil, 1.0),), advice=Advised(evil, "warning", evil)
    )
    said = drawn(view, 200)
    assert len(said.splitlines()) == len(drawn(MANY, 200).splitlines())
    assert not any(sign in said for sign in "\x1b\x07\u202e")
    assert "\\x1b[2J" in said


def test_wide_letters_count_two_columns() -> None:
    view = replace(ONE, advice=Advised("Stall", "info", "漢" * 100))
    last = drawn(view, 60).splitlines()[-1]
    assert last.endswith("…")
    assert len(last) + last.count("漢") <= 60


@pytest.mark.parametrize("used", [0, 1, 499_999, 500_000, 700_000])
@pytest.mark.parametrize("bar", [10, 17, 30])
def test_a_bar_is_full_only_if_the_limit_is_reached(used: int, bar: int) -> None:
    gauge = Gauge("max_total_tokens", used, 500_000, min(300, max(500_000 - used, 0)), column="total_tokens")
    width = {10: 50, 17: 77, 30: 200}[bar]
    line = "".join(
        part if isinstance(part, str) else part[0]
        for part in lines_of(replace(ENDED, gauges=(gauge,)), width, ASCII)[1]
    )
    assert len(line) <= width
    signs = line.split()[1]
    assert set(signs) <= {"#", "+", "."}
    assert ("#" in signs) == bool(used)
    assert (set(signs) == {"#"}) == (used >= 500_000)


def test_what_is_used_reserved_and_left_comes_to_the_limit() -> None:
    for gauge in GAUGES:
        assert gauge.used + gauge.reserved + gauge.left == gauge.most
        assert gauge.presumed <= gauge.used


@pytest.mark.parametrize(
    ("ahead", "said"),
    [(timedelta(minutes=30), "14:32"), (timedelta(hours=20), "Tue 10:02"), (timedelta(days=30), "2026-12-23")],
)
def test_a_projected_end_on_another_day_names_the_day(ahead: timedelta, said: str) -> None:
    view = replace(ONE, end=("cost_nanos", NOW + ahead))
    line = next(line for line in drawn(view, 80).splitlines() if "ends" in line)
    assert line.split(maxsplit=1) == ["ends", f"money first, at about {said}"]
