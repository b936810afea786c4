"""Two runs side by side: what stands beside what, where they part, and the page that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.inspector.browser import reading
from tests.inspector.support import HOSTILE, PRICES, fill, looks, template
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Say, ScriptedModel
from watchkeeper.app.run import run
from watchkeeper.core.errors import ProviderError
from watchkeeper.inspector.compare_view import CompareView, compare_view
from watchkeeper.store import comparison
from watchkeeper.store.comparison import Step, aligned
from watchkeeper.store.run_store import RunStore


def ran(store: Path, *paths: str, last: str = "Here.") -> str:
    """Store a run that looks at these paths; return its id."""
    limits = Limits(max_cost_usd="0.50", max_steps=40)
    return str(run(template(), model=looks(*paths, last=last), prices=PRICES, limits=limits, store=store).run_id)


def seen(folder: Path, one: str, other: str) -> CompareView:
    """Return the view of two runs."""
    with RunStore(folder, read_only=True) as store:
        return compare_view(store, one, other)


def relations(view: CompareView) -> str:
    """Return the relations of the rows, a letter each."""
    letters = {"same": "=", "content": "~", "asked": "!", "one": "A", "other": "B"}
    return "".join(letters[step.relation] for step in view.steps)


def step(what: str, asked: str = "", said: str = "") -> Step:
    """Return a step."""
    return Step(0, what, said, "", asked)


def test_runs_that_did_the_same_have_no_divergence(tmp_path: Path) -> None:
    view = seen(tmp_path / "s", ran(tmp_path / "s", "a"), ran(tmp_path / "s", "a"))
    assert (relations(view), view.first, view.fork) == ("====", None, None)
    assert view.sentence.startswith("All 4 steps are the same. A is done at $0.0")
    assert {fact.difference for fact in view.facts if fact.name != "time"} == {""}


def test_steps_are_aligned_again_behind_what_only_one_run_did(tmp_path: Path) -> None:
    one, other = ran(tmp_path / "s", "a", "b"), ran(tmp_path / "s", "a", "x", "y", "b")
    view = seen(tmp_path / "s", one, other)
    assert relations(view) == "===BBBB==="  # prompt, a; x and y, each with its call; b with its call, the answer
    assert view.first == 3
    assert view.sentence.startswith("The same for 3 steps. Then A asked for look, and B asked for look. A is done")
    assert view.fork is not None
    assert ("I look at b." in view.fork[0].words, "I look at x." in view.fork[1].words) == (True, True)
    facts = {fact.name: (fact.one, fact.other, fact.difference, fact.share) for fact in view.facts}
    assert facts["turns"] == ("3", "5", "+2", "+67%")
    assert facts["calls of look"] == ("2", "4", "+2", "+100%")
    assert "prompt" not in facts
    back = seen(tmp_path / "s", other, one)
    assert relations(back) == "===AAAA==="
    assert next(fact for fact in back.facts if fact.name == "turns").difference == "\N{MINUS SIGN}2"


def test_other_arguments_and_other_contents_stand_side_by_side(tmp_path: Path) -> None:
    view = seen(tmp_path / "s", ran(tmp_path / "s", "a", last="Yes."), ran(tmp_path / "s", "b", last="No."))
    assert relations(view) == "=!!~"
    other = view.steps[2].other
    assert other is not None
    assert (other.kind, other.name, other.detail) == ("tool", "look", '{"path": "b"}')


def test_a_run_that_stopped_earlier_has_no_further_step(tmp_path: Path) -> None:
    one = ran(tmp_path / "s", "a")
    limits = Limits(max_turns=1)
    with RunStore(tmp_path / "s") as store:
        stopped = run(template(), model=looks("a"), prices=PRICES, limits=limits, store=store).run_id
    view = seen(tmp_path / "s", str(stopped), one)
    assert relations(view).endswith("B")
    assert view.fork is not None
    assert view.fork[0].did == "has no further step"
    assert "A was stopped by turn limit" in view.sentence


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("", "", ""),
        ("ab", "", "AA"),
        ("", "ab", "BB"),
        ("abcab", "abab", "~~A~~"),
        ("xa", "ya", "AB~"),
    ],
)
def test_alignment_leaves_over_as_little_as_possible(one: str, other: str, expected: str) -> None:
    found = aligned([step(each, said="1") for each in one], [step(each, said="2") for each in other])
    letters = {"content": "~", "one": "A", "other": "B"}
    assert ("".join(letters[relation] for _, _, relation in found.pairs), found.whole) == (expected, True)


def test_runs_with_too_little_in_common_are_aligned_in_their_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_EDITS", 4)
    found = aligned([step(each) for each in "abcde"], [step(each) for each in "abvwxyz"])
    assert not found.whole
    assert [relation for _, _, relation in found.pairs] == ["same"] * 2 + ["one"] * 3 + ["other"] * 5


def test_a_failed_attempt_at_a_model_call_is_no_step(tmp_path: Path) -> None:
    busy = ProviderError("busy", fault="overloaded", provider="scripted", status=503, retry_after=0)

    def answered(*script: Any) -> str:
        model = ScriptedModel([*script, Say("Here.")], free=False)
        return str(run(template(), model=model, prices=PRICES, store=tmp_path / "s").run_id)

    view = seen(tmp_path / "s", answered(), answered(busy))
    assert relations(view) == "=="


def test_hostile_text_is_one_printable_line(tmp_path: Path) -> None:
    view = seen(tmp_path / "s", ran(tmp_path / "s", "a"), ran(tmp_path / "s", HOSTILE))
    cells = [cell for row in view.steps for cell in (row.one, row.other) if cell is not None]
    assert not [cell for cell in cells if not (cell.name + cell.detail).isprintable()]
    assert "\x1b" not in "".join(side.words for side in view.fork or ())


def test_from_the_list_to_the_first_divergence(page: Page, tmp_path: Path) -> None:
    one = ran(tmp_path / "s", *"abcdefgh", "x", "z")
    other = ran(tmp_path / "s", *"abcdefgh", "y", "z")
    with reading(tmp_path / "s") as address:
        page.goto(address)
        for run_id in (one, other):
            page.get_by_role("checkbox", name=run_id[:8]).check()
        page.get_by_role("button", name="Compare the two selected").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("The same for 17 steps. Then A asked for look")
        expect(page.locator("tr.fork")).to_be_in_viewport()
        expect(page.locator("tr.at")).to_contain_text("≠ arguments")
        left = page.get_by_role("region", name="What was left, over the time of each")
        expect(left).to_contain_text("of $0.50 left after")
        left.get_by_role("button", name="Steps").click()
        expect(left).to_contain_text("A: 47% of 40 left after")
        expect(left.locator("polyline")).to_have_count(2)
        page.get_by_role("button", name="steps that are the same").first.click()
        expect(page.locator("tr.r-same")).to_have_count(20)
        page.keyboard.press("j")
        there = page.url
        assert there.endswith("?at=18")
        page.reload()
        expect(page.locator("tr.at")).to_contain_text('{"path": "x"}')
        page.keyboard.press("e")
        assert page.url.endswith("?at=17")
        page.locator("tr.at").get_by_role("link").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Done")


def test_two_runs_are_selected_and_compared_by_keys(page: Page, tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with reading(tmp_path / "s") as address:
        page.goto(address)
        expect(page.locator("tbody tr")).to_have_count(2)
        for key in "xjxc":
            page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_contain_text("A was stopped by step limit")
        expect(page.locator("pre img, pre script, td img")).to_have_count(0)
        page.goto(address + "#/compare/ffff/eeee")
        expect(page.get_by_text("has no run whose id begins with 'ffff'")).to_be_visible()
