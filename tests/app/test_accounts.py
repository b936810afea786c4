"""Runs under an account: one ceiling for all of them, kept in a file."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import Call, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.run import arun, run, run_many
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError, StoreError, UnpricedModelError
from watchkeeper.core.usage import ModelPrice
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.tools.tool import tool

PRICE = {"scripted": ModelPrice.per_million(1, 1)}


@tool
def look() -> str:
    """Look around."""
    return "nothing new"


TASK = MarkdownSection("Task", "task", "Look after the shop.", tools=(look,))
SHOP = PromptTemplate[str](ns="tests", key="shop", sections=(TASK,))


@dataclass(frozen=True)
class Item:
    """What one run of many is bound to."""

    text: str


def under(limit: str, **more: Any) -> Limits:
    return Limits(account="team-a", account_limit=limit, **more)


def answering() -> ScriptedModel:
    return ScriptedModel(lambda request: Say("done"))


def never_done() -> ScriptedModel:
    return ScriptedModel(lambda request: Say("so far") if request.tool_choice == "none" else Call("look"))


def test_a_later_run_finds_what_an_earlier_one_has_used(tmp_path: Path) -> None:
    clock = TestClock(datetime(2026, 3, 1, 2, tzinfo=UTC))
    path = tmp_path / "ledger.sqlite3"

    def night() -> Any:
        return run(SHOP, model=never_done(), limits=under("9k tokens/day"), ledger=path, store=None, clock=clock)

    first, second = night(), night()
    for result in (first, second):
        assert result.stop is not None
        assert (result.stop.reason, result.stop.limit) == ("token_limit_exceeded", "account_limit")
        assert str(result.stop).startswith("The account 'team-a' has ")
        assert " tokens left of its ceiling of 9,000 tokens/day after " in str(result.stop)
        assert str(result.stop).endswith("; the day ends at 2026-03-02 00:00 UTC.")
    assert first.partial == "so far"  # it had kept enough for its last turn
    assert (first.turns, second.turns) == (61, 2)  # the second could only just hand over what it had
    assert 7_000 < first.usage.tokens.total + second.usage.tokens.total <= 9_000
    clock.advance(86_400)
    assert night().turns == first.turns


def test_the_items_of_a_run_over_many_share_the_account_and_its_end_is_the_end_of_all(tmp_path: Path) -> None:
    asked = Prompt(PromptTemplate[str](ns="tests", key="each", sections=(MarkdownSection("T", "t", "${text}"),)))
    items = [Item(f"item {number}") for number in range(40)]
    result = run_many(
        asked,
        items,
        model=answering(),
        limits=under("2k tokens/month", landing=None),
        ledger=tmp_path / "ledger.sqlite3",
        store=None,
    )
    assert 0 < len(result.done) < 40
    assert 1_500 < result.usage.tokens.total <= 2_000
    assert result.stop is not None
    assert result.stop.limit == "account_limit"


async def test_runs_side_by_side_never_spend_more_than_their_account(tmp_path: Path) -> None:
    limits = under("$0.02/day", max_turns=None)
    options: Any = {"model": never_done(), "limits": limits, "store": None, "prices": PRICE}
    with SqliteLedger(tmp_path / "ledger.sqlite3") as ledger:
        shared = [arun(SHOP, ledger=ledger, **options) for _ in range(2)]
        apart = [arun(SHOP, ledger=tmp_path / "ledger.sqlite3", **options) for _ in range(2)]
        async with asyncio.timeout(60):
            results = await asyncio.gather(*shared, *apart)
        costs = [result.cost for result in results]
        assert all(cost is not None for cost in costs)
        assert 0.015 < sum(float(cost or 0) for cost in costs) <= 0.02
        assert {result.stop.limit for result in results if result.stop} == {"account_limit"}
        again = await arun(SHOP, ledger=ledger, **options)  # a ledger that was handed in stays open
        assert again.stop is not None


def test_a_money_limit_needs_a_price_before_anything_is_spent(tmp_path: Path) -> None:
    model = ScriptedModel(["done"], free=False)
    with pytest.raises(UnpricedModelError, match="account_limit is set, but nobody knows what scripted:scripted costs"):
        run(SHOP, model=model, limits=under("$1/day"), ledger=tmp_path / "ledger.sqlite3", store=None)
    assert model.requests == []


def test_a_ledger_that_cannot_be_used_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    model = answering()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"ledger.sqlite3 cannot be used"):
        run(SHOP, model=model, limits=under("$1/day"), ledger=tmp_path / "file" / "ledger.sqlite3", store=None)
    with pytest.raises(ConfigurationError, match="needs a ledger that remembers other runs"):
        run(SHOP, model=model, limits=under("$1/day"), ledger=MemoryLedger(), store=None)
    assert model.requests == []


def test_a_ledger_that_breaks_under_way_stops_the_run_and_loses_no_result(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"

    def breaking(request: Any) -> Call:
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE IF EXISTS settled")
        connection.close()
        return Call("look")

    model = ScriptedModel(breaking)
    result = run(SHOP, model=model, limits=under("$1/day"), ledger=path, store=None)
    assert len(model.requests) == 1
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("error", "gate")
    assert "no such table: settled" in str(result.stop)
    assert isinstance(result.error, StoreError)
    assert result.usage.tokens.total > 0


def test_without_an_account_a_ledger_that_is_named_is_used_and_the_default_is_not(
    tmp_path: Path, user_folders: Path
) -> None:
    path = tmp_path / "ledger.sqlite3"
    assert run(SHOP, model=answering(), store=None, ledger=path).output == "done"
    assert path.exists()
    for named in ({}, {"ledger": "default"}):
        options: Any = named
        assert run(SHOP, model=answering(), store=None, **options).output == "done"
    assert not (user_folders / "data" / "watchkeeper" / "ledger.sqlite3").exists()


def test_an_agent_takes_an_account_in_its_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WATCHKEEPER_LEDGER", str(tmp_path / "mine.db"))
    agent = Agent(answering(), "Be brief.", str, limits=under("1M tokens/month"))
    assert agent.run("Go on.", store=None).output == "done"
    assert (tmp_path / "mine.db").exists()
