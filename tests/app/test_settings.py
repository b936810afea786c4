"""Settings: which source wins, what is refused, and that every message says where the mistake is."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.accounting.limits import Limits
from watchkeeper.app.settings import (
    FIELDS,
    RATES,
    context_full_from,
    environment_settings,
    file_settings,
    limits_from,
    prices_from,
    settings_here,
    text_from,
)
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.core.usage import ModelPrice


def write(folder: Path, text: str) -> Path:
    """Write a pyproject.toml with a table for Watchkeeper."""
    path = folder / "pyproject.toml"
    path.write_text(f"[tool.watchkeeper]\n{text}\n", encoding="utf-8")
    return path


GIVEN: dict[str, tuple[str, str, Any]] = {
    "timeout": ("30m", "deadline", timedelta(minutes=30)),
    "max_cost": ("$2.50", "max_cost_usd", Decimal("2.5")),
    "max_tokens": ("500k", "max_total_tokens", 500_000),
    "max_input_tokens": ("1000", "max_input_tokens", 1000),
    "max_output_tokens": ("2M", "max_output_tokens", 2_000_000),
    "max_steps": ("7", "max_steps", 7),
    "max_turns": ("8", "max_turns", 8),
    "max_tool_calls": ("9", "max_tool_calls", 9),
    "max_retries": ("0", "max_retries", 0),
}


def test_every_setting_is_tried_here() -> None:
    assert GIVEN.keys() == FIELDS.keys()


@pytest.mark.parametrize("name", GIVEN)
def test_a_limit_is_read_from_the_command_line_the_environment_and_the_file(name: str, tmp_path: Path) -> None:
    text, field, value = GIVEN[name]
    bare = tmp_path / "bare"
    bare.mkdir()
    write(bare, "")
    write(tmp_path, f'{name.replace("_", "-")} = "{text}"')
    for settings in (
        settings_here({name: text}, {}, bare),
        settings_here({}, {f"WATCHKEEPER_{name.upper()}": text}, bare),
        settings_here({}, {}, tmp_path),
    ):
        assert getattr(limits_from(settings), field) == value


@pytest.mark.spec("FR-083")
def test_the_command_line_wins_over_the_environment_over_the_file_over_the_agent(tmp_path: Path) -> None:
    write(tmp_path, "max_steps = 3\nmax_turns = 3\nmax_tool_calls = 3")
    environ = {"WATCHKEEPER_MAX_STEPS": "2", "WATCHKEEPER_MAX_TURNS": "2"}
    settings = settings_here({"max_steps": "1", "max_turns": None}, environ, tmp_path)
    limits = limits_from(settings, Limits(max_steps=4, max_turns=4, max_tool_calls=4, max_input_tokens=4))
    assert (limits.max_steps, limits.max_turns, limits.max_tool_calls, limits.max_input_tokens) == (1, 2, 3, 4)


def test_without_settings_the_base_stays_as_it_is() -> None:
    base = Limits(max_cost_usd=1)
    assert limits_from({}, base) == base


@pytest.mark.parametrize("word", ["none", "off", "NONE", " none "])
def test_none_lifts_a_limit(word: str) -> None:
    limits = limits_from(settings_here({"max_tokens": word, "timeout": word, "max_cost": word}), Limits(max_cost_usd=1))
    assert limits.max_total_tokens is None
    assert limits.deadline is None
    assert limits.max_cost_nanos is None


@pytest.mark.spec("FR-111")
@pytest.mark.parametrize(
    ("given", "environ", "text", "parts"),
    [
        ({"max_cost": "free"}, {}, "", ["--max-cost", "'free'", "amount of money"]),
        ({"max_cost": "-1"}, {}, "", ["--max-cost", "'-1'"]),
        ({"max_steps": "0"}, {}, "", ["--max-steps", "'0'", "at least 1"]),
        ({"timeout": "soon"}, {}, "", ["--timeout", "'soon'", "30m"]),
        ({}, {"WATCHKEEPER_MAX_TOKENS": "many"}, "", ["WATCHKEEPER_MAX_TOKENS", "'many'", "500k"]),
        ({}, {}, "max_turns = 1.5", ["max_turns in [tool.watchkeeper]", "pyproject.toml", "1.5"]),
        ({}, {}, "timeout = true", ["timeout in [tool.watchkeeper]", "True"]),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_place_and_value(
    given: dict[str, str | None], environ: dict[str, str], text: str, parts: list[str], tmp_path: Path
) -> None:
    write(tmp_path, text)
    with pytest.raises(LimitsError) as caught:
        limits_from(settings_here(given, environ, tmp_path))
    assert all(part in str(caught.value) for part in [*parts, "'none' lifts the limit"])


def test_an_unknown_key_of_the_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "max_costs = 2")
    with pytest.raises(
        ConfigurationError, match=r"max_costs in .*no such setting; did you mean max_cost\? Settings: timeout, max_cost"
    ):
        file_settings(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[tool.watchkeeper", "cannot be read as TOML"),
        ("tool = 3", "must be a table, not 3"),
        ("[tool]\nwatchkeeper = 'x'", "must be a table, not 'x'"),
    ],
)
def test_a_broken_file_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        settings_here({}, {}, tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        file_settings(tmp_path)


def test_the_nearest_file_above_counts(tmp_path: Path) -> None:
    write(tmp_path, "max_steps = 3")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert limits_from(file_settings(deep)).max_steps == 3
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    assert file_settings(deep) == {}


def test_without_a_file_there_are_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_: Path) -> None:
        return None

    monkeypatch.setattr("watchkeeper.app.settings.find_pyproject", nowhere)
    assert settings_here(environ={}, folder=tmp_path) == {}


def test_the_working_folder_and_the_process_environment_are_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "max_steps = 3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATCHKEEPER_MODEL", "local")
    settings = settings_here()
    assert limits_from(settings).max_steps == 3
    assert text_from(settings, "model") == "local"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert environment_settings({"WATCHKEEPER_MAX_COST": "", "WATCHKEEPER_OTHER": "x"}) == {}


@pytest.mark.spec("FR-145")
@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (
            "WATCHKEEPER_MAX_TURN",
            r"WATCHKEEPER_MAX_TURN: there is no such setting; did you mean WATCHKEEPER_MAX_TURNS\?",
        ),
        ("WATCHKEEPER_MAX_COST_USD", "did you mean WATCHKEEPER_MAX_COST"),
        ("WATCHKEEPER_MAX_TOTAL_TOKENS", "did you mean WATCHKEEPER_MAX_TOKENS"),
        ("WATCHKEEPER_DEADLINE", "did you mean WATCHKEEPER_TIMEOUT"),
        ("WATCHKEEPER_MODLE", "did you mean WATCHKEEPER_MODEL"),
        ("WATCHKEEPER_MAX_HATS", "there is no such limit; settings: WATCHKEEPER_TIMEOUT, WATCHKEEPER_MAX_COST, "),
    ],
)
def test_a_variable_that_must_be_a_misspelt_setting_is_refused(variable: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        settings_here({}, {variable: "3"}, tmp_path)
    assert environment_settings({variable: ""}) == {}


@pytest.mark.spec("FR-145")
@pytest.mark.parametrize("name", ["API_KEY", "RUN_ID", "OK", "OTHER", "HOME", "DOCKER_IMAGE", "ENV", "VERSION", "LOG"])
def test_variables_of_others_with_the_same_prefix_are_left_alone(name: str) -> None:
    assert environment_settings({f"WATCHKEEPER_{name}": "x"}) == {}


@pytest.mark.parametrize(("written", "seconds"), [("90", 90), ("1.5", 1.5), ('"90"', 90)])
def test_a_bare_number_as_time_is_seconds(written: str, seconds: float, tmp_path: Path) -> None:
    write(tmp_path, f"timeout = {written}")
    assert limits_from(file_settings(tmp_path)).deadline == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("timeout = true", "timeout in .*: timeout=True is not a duration"),
        ("timeout = -3", "timeout in .*: timeout=-3 must be more than 0"),
        ('timeout = "soon"', "timeout in .*: timeout='soon' is not a duration; write for example '30m'"),
        ("timeout = [3]", r"timeout in .*: timeout=\[3\] must be a text like '30m'"),
        ("max_cost = 0", "max_cost in .*: max_cost=0 must be more than"),
    ],
)
def test_a_wrong_limit_is_called_by_the_name_it_has_in_the_file(written: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, written)
    with pytest.raises(LimitsError, match=said):
        limits_from(file_settings(tmp_path))


def test_a_key_of_the_file_may_be_meant_by_its_name_in_limits(tmp_path: Path) -> None:
    write(tmp_path, "deadline = 90")
    with pytest.raises(ConfigurationError, match=r"no such setting; did you mean timeout\?"):
        file_settings(tmp_path)
    write(tmp_path, "zzz = 90")
    with pytest.raises(ConfigurationError, match="no such setting; settings: timeout"):
        file_settings(tmp_path)


def test_a_relative_store_of_the_file_stands_beside_the_file(tmp_path: Path) -> None:
    write(tmp_path, 'store = "runs/here.db"')
    assert text_from(settings_here({}, {}, tmp_path), "store") == str(tmp_path / "runs" / "here.db")


@pytest.mark.parametrize("word", ["none", "default"])
def test_words_for_a_store_are_no_paths(word: str, tmp_path: Path) -> None:
    write(tmp_path, f'store = "{word}"')
    assert text_from(file_settings(tmp_path), "store") == word


def test_an_account_and_its_limit_are_read_together_wherever_each_is_written(tmp_path: Path) -> None:
    write(tmp_path, 'account = "team-a"\naccount-limit = "$20/day"\nledger = "ledger.db"')
    settings = settings_here({"account_limit": "$3/month"}, {"WATCHKEEPER_ACCOUNT": "team-b"}, tmp_path)
    limits = limits_from(settings)
    assert (limits.account, str(limits.account_limit)) == ("team-b", "$3.00/month")
    assert text_from(settings, "ledger") == str(tmp_path / "ledger.db")
    assert limits_from({}, limits) == limits
    assert limits_from(settings_here({"account": "none"}, {}, tmp_path), limits) == Limits()


def test_an_account_that_makes_no_sense_is_refused_by_place_and_value(tmp_path: Path) -> None:
    write(tmp_path, 'account = "team-a"')
    with pytest.raises(LimitsError, match=r"account in .*pyproject.toml: account='team-a' needs an account_limit"):
        limits_from(file_settings(tmp_path))
    with pytest.raises(LimitsError, match=r"and --account-limit: account_limit='\$2' is not an amount for a period"):
        limits_from(settings_here({"account_limit": "$2"}, {}, tmp_path), Limits(account="a", account_limit="$1/day"))


def test_what_a_full_context_means_is_one_of_the_choices(tmp_path: Path) -> None:
    write(tmp_path, 'on-context-full = "compact"')
    assert context_full_from(file_settings(tmp_path)) == "compact"
    assert context_full_from(settings_here({}, {"WATCHKEEPER_ON_CONTEXT_FULL": "stop"}, tmp_path)) == "stop"
    assert context_full_from({}) is None
    with pytest.raises(ConfigurationError, match="--on-context-full: 'shrink' must be compact or land or stop"):
        context_full_from(settings_here({"on_context_full": "shrink"}, {}, tmp_path))


@pytest.mark.parametrize("name", ["model", "store"])
def test_a_text_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, f"{name} = 3")
    with pytest.raises(ConfigurationError, match=rf"{name} in .*: 3 must be text"):
        text_from(file_settings(tmp_path), name)
    assert text_from({}, name) is None


def test_prices_are_read_from_the_file(tmp_path: Path) -> None:
    rates = "input = 0.25, output = 2, cached = 0.025, cache_write = 0.3"
    write(tmp_path, f'[tool.watchkeeper.prices]\n"openai:mine" = {{ {rates} }}\nother = {{ input = 1, output = 2 }}')
    assert prices_from(file_settings(tmp_path)) == {
        "openai:mine": ModelPrice.per_million(0.25, 2, 0.025, 0.3),
        "other": ModelPrice.per_million(1, 2),
    }
    assert prices_from({}) == {}
    assert len(RATES) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prices = 3", "3 must be a table of models"),
        ("prices = { mine = 3 }", "not 3"),
        ("prices = { mine = { input = 1 } }", "'output' is missing"),
        ("prices = { mine = { input = 1, output = 2, cache = 3 } }", "'cache' is none of input, output"),
        ("prices = { mine = { input = 'x', output = 2 } }", "input = 'x' is not a number"),
        ("prices = { mine = { input = true, output = 2 } }", "input = True is not a number"),
        ("prices = { mine = { input = -1, output = 2 } }", "must be 0 or more"),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigurationError, match=message):
        prices_from(file_settings(tmp_path))
