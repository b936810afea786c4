"""Settings: the command line wins over the environment, which wins over ``[tool.watchkeeper]`` and the agent's own.

Only the settings named here are read. An unknown key in the file is an error, because a misspelt limit must not be
ignored silently. ``none`` (or ``off``) lifts a limit. Every setting remembers where it was written, so that an error
message can name the place.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from watchkeeper.app.telling.notify import END, Notify, kinds_of
from watchkeeper.app.options import STORE_CHOICES, OnAsk, OnStoreFailure, renamed
from watchkeeper.core.errors import ConfigurationError, LimitsError
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.meters import METERS
from watchkeeper.core.text import shown
from watchkeeper.core.quantities import duration, path_from
from watchkeeper.core.usage import ModelPrice
from watchkeeper.runtime.parking import ASK_CHOICES, EXPIRY_CHOICES, OnExpiry, Park
from watchkeeper.runtime.plan import CONTEXT_CHOICES, OnContextFull
from watchkeeper.disk.power import DURABILITIES, Durability

FIELDS: Final[Mapping[str, str]] = {
    "timeout": "deadline",
    **{meter.setting: meter.field for meter in METERS},
}
"""Setting name (``WATCHKEEPER_`` and upper case in the environment) to the field of Limits."""

ACCOUNT: Final = ("account", "account_limit")
"""The account and its limit: settings with the names of the fields of Limits, read together."""

CONTEXT_FULL: Final = "on_context_full"
STORE_FAILURE: Final = "on_store_failure"
DURABILITY: Final = "durability"
ASKING: Final = ("on_ask", "ask_expires", "on_expiry")
"""What happens to a call about which a person is to be asked, and nobody answers; read together."""

NOTIFY: Final = ("notify", "notify_on")
"""Where notices about a run go, and what for; read together."""

TEXTS: Final = ("model", "store", STORE_FAILURE, DURABILITY, *ASKING, *NOTIFY, "ledger", CONTEXT_FULL, *ACCOUNT)
PRICES: Final = "prices"
RATES: Final[Mapping[str, str]] = {
    "input": "input_usd",
    "output": "output_usd",
    "cached": "cached_usd",
    "cache_write": "cache_write_usd",
}
"""What a table under ``[tool.watchkeeper.prices]`` may hold: dollars per million tokens."""

PREFIX: Final = "WATCHKEEPER_"
OTHER_VARIABLES: Final = frozenset({"api_key", "run_id", "ok", "notice"})
"""Variables with the prefix that are not settings: a server's key, and what ``--notify`` tells its command."""

UNPLACED: Final = ("default", ":memory:")
"""Values of ``store`` and ``ledger`` that are not paths."""

LIFTED: Final = frozenset({"none", "off"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and where it was written.

    Attributes:
        value: The value as it was written.
        source: For messages: an option, an environment variable, or a key and its file.
    """

    value: Any
    source: str

    @property
    def lifted(self) -> bool:
        """Whether it lifts the limit, or turns the thing off."""
        return isinstance(self.value, str) and self.value.strip().lower() in LIFTED


Settings = Mapping[str, Setting]


def find_pyproject(start: Path) -> Path | None:
    """Return the nearest pyproject.toml at or above ``start``, or None."""
    candidates = (folder / "pyproject.toml" for folder in (start, *start.parents))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def file_settings(start: Path) -> dict[str, Setting]:
    """Read ``[tool.watchkeeper]`` of the nearest pyproject.toml; a relative path of a store or ledger starts at the
    folder of that file.

    Raises:
        ConfigurationError: If the file cannot be read, is not TOML, or names a setting that does not exist.
    """
    path = find_pyproject(start)
    if path is None:
        return {}
    settings = {
        key.replace("-", "_"): Setting(value, f"{key} in [tool.watchkeeper] of {path}")
        for key, value in _table(path).items()
    }
    known = (*FIELDS, *TEXTS, PRICES)
    for name, setting in settings.items():
        if name not in known:
            near = nearest(name, known)
            others = "settings:" if near is None else f"did you mean {near}? Settings:"
            raise ConfigurationError(f"{setting.source}: there is no such setting; {others} {', '.join(known)}")
    for name in ("store", "ledger"):
        file = settings.get(name)
        if file is not None and isinstance(file.value, str) and not file.lifted and file.value not in UNPLACED:
            settings[name] = replace(file, value=str(path.parent / path_from(file.value)))
    return settings


def _table(path: Path) -> dict[str, Any]:
    try:
        table: object = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read as TOML: {error}") from error
    for name in ("tool", "watchkeeper"):
        table = cast("dict[str, object]", table).get(name, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"[tool.watchkeeper] of {path} must be a table, not {shown(table)}")
    return cast("dict[str, Any]", table)


def environment_settings(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Read ``WATCHKEEPER_MAX_COST`` and the other variables; an empty variable counts as not set.

    Raises:
        ConfigurationError: For a variable that looks like a setting but is not one.
    """
    known = (*FIELDS, *TEXTS)
    settings: dict[str, Setting] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or not value:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in known:
            settings[name] = Setting(value, variable)
        elif name not in OTHER_VARIABLES:
            _refuse_misspelt(variable, name, known)
    return settings


def _refuse_misspelt(variable: str, name: str, known: tuple[str, ...]) -> None:
    """Refuse a probable misspelling of a setting; other programs may have variables with our prefix."""
    near = nearest(name, known)
    if near is not None:
        raise ConfigurationError(f"{variable}: there is no such setting; did you mean {PREFIX}{near.upper()}?")
    if name.startswith("max_"):
        names = ", ".join(f"{PREFIX}{known_name.upper()}" for known_name in known)
        raise ConfigurationError(f"{variable}: there is no such limit; settings: {names}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the setting that was probably meant, by its spelling or by its name in `Limits`; None if there is none."""
    by_field = {field: setting for setting, field in FIELDS.items()}
    if name in by_field:
        return by_field[name]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), None)


def settings_here(
    given: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> dict[str, Setting]:
    """Return the settings in force in a folder: options over the environment over the file.

    Args:
        given: Options of the command line, by setting; None for one that was not given.
        environ: The environment; that of the process if None.
        folder: Where to look for the file; the working folder if None.

    Raises:
        ConfigurationError: If the file is wrong.
    """
    options = {name: value for name, value in (given or {}).items() if value is not None}
    return {
        **file_settings(folder or Path.cwd()),
        **environment_settings(os.environ if environ is None else environ),
        **{name: Setting(value, f"--{name.replace('_', '-')}") for name, value in options.items()},
    }


def limits_from(settings: Settings, base: Limits = Limits()) -> Limits:
    """Return ``base`` with every limit that the settings name.

    Raises:
        LimitsError: If a limit is invalid; the message names the value and where it was written.
    """
    limits = base
    for name, field in FIELDS.items():
        setting = settings.get(name)
        if setting is None:
            continue
        try:
            limits = replace(limits, **cast("Any", {field: _limit(field, setting)}))
        except LimitsError as error:
            raise LimitsError(f"{setting.source}: {renamed(error, field, name)}; 'none' lifts the limit") from error
    return with_account(settings, limits)


def check_values(settings: Settings) -> None:
    """Refuse values of settings that are wrong for every agent.

    Raises:
        ConfigurationError: Naming the value and where it was written.
    """
    given = {name: setting for name, setting in settings.items() if not setting.lifted}
    if "account" in settings and "account" not in given:
        given.pop("account_limit", None)
    limits_from(given, Limits(account="any", account_limit="$1/day"))  # the agent's file may give the one not given
    for name in TEXTS:
        text_from(settings, name)
    context_full_from(settings)
    store_failure_from(settings)
    on_ask_from(settings)
    notify_from(settings)
    prices_from(settings)


def _limit(field: str, setting: Setting) -> Any:
    """Return a limit as `Limits` takes it; a bare number of a length is seconds, as it is on the command line."""
    if setting.lifted:
        return None
    if field == "deadline" and isinstance(setting.value, int | float):
        return duration(setting.value, field)
    return setting.value


def with_account(settings: Settings, limits: Limits) -> Limits:
    """Return limits with the account that the settings name, and with the limit that they give it.

    Raises:
        LimitsError: If name or limit is invalid, or one is given without the other.
    """
    given = {name: settings[name] for name in ACCOUNT if name in settings}
    if not given:
        return limits
    changes = {name: None if setting.lifted else setting.value for name, setting in given.items()}
    if "account" in changes and changes["account"] is None:
        changes["account_limit"] = None
    try:
        return replace(limits, **cast("Any", changes))
    except LimitsError as error:
        where = " and ".join(setting.source for setting in given.values())
        raise LimitsError(f"{where}: {error}; an account 'none' lifts the limit") from error


def text_from(settings: Settings, name: str) -> str | None:
    """Return a setting that is text, or None if it is not set.

    Raises:
        ConfigurationError: If it is not text.
    """
    setting = settings.get(name)
    if setting is None:
        return None
    if not isinstance(setting.value, str):
        raise ConfigurationError(f"{setting.source}: {shown(setting.value)} must be text")
    return setting.value


def context_full_from(settings: Settings) -> OnContextFull | None:
    """Return what happens when the model's context is full, or None if it is not set.

    Raises:
        ConfigurationError: If it is none of the choices.
    """
    return cast("OnContextFull | None", _choice_from(settings, CONTEXT_FULL, CONTEXT_CHOICES))


def store_failure_from(settings: Settings) -> OnStoreFailure | None:
    """Return what happens when the store cannot be written, or None if it is not set.

    Raises:
        ConfigurationError: If it is none of the choices.
    """
    return cast("OnStoreFailure | None", _choice_from(settings, STORE_FAILURE, STORE_CHOICES))


def durability_from(settings: Settings) -> Durability | None:
    """Return what the record of a run is to survive, or None if it is not set.

    Raises:
        ConfigurationError: If it is none of the choices.
    """
    return cast("Durability | None", _choice_from(settings, DURABILITY, DURABILITIES))


def on_ask_from(settings: Settings) -> Park | OnAsk | None:
    """Return what happens to a call about which a person is to be asked, or None if it is not set.

    Raises:
        ConfigurationError: If it is none of the choices, or an expiry is set without ``park``.
    """
    chosen, then = _choice_from(settings, "on_ask", ASK_CHOICES), _choice_from(settings, "on_expiry", EXPIRY_CHOICES)
    expires = settings.get("ask_expires")
    if chosen != "park":
        for setting in (settings.get("ask_expires"), settings.get("on_expiry")):
            if setting is not None:
                raise ConfigurationError(f"{setting.source} needs on_ask 'park' (--on-ask park)")
        return cast("OnAsk | None", chosen)
    try:
        length = None if expires is None or expires.lifted else expires.value
        return Park(length, cast("OnExpiry", then or "deny"))
    except LimitsError as error:
        raise ConfigurationError(f"{expires.source if expires else ''}: {error}") from error


def notify_from(settings: Settings) -> Notify | None:
    """Return who is told about a run, and of what, or None if nobody is.

    Raises:
        ConfigurationError: If what it is for or where it goes makes no sense, or where it goes is missing.
    """
    to, on = text_from(settings, "notify"), text_from(settings, "notify_on")
    lifted = [name for name in NOTIFY if name in settings and settings[name].lifted]
    if lifted or (to is None and on is None):
        return None
    if to is None:
        raise ConfigurationError(
            f"{settings['notify_on'].source} needs somebody to tell: --notify COMMAND, or --notify https://host/path"
        )
    kinds = (END,) if on is None else kinds_of(on, settings["notify_on"].source)
    try:
        return Notify(to, kinds)
    except ConfigurationError as error:
        raise ConfigurationError(f"{settings['notify'].source}{str(error).removeprefix('to')}") from error


def _choice_from(settings: Settings, name: str, choices: Iterable[str]) -> str | None:
    said = text_from(settings, name)
    if said is not None and said not in choices:
        raise ConfigurationError(f"{settings[name].source}: {said!r} must be {' or '.join(choices)}")
    return said


def prices_from(settings: Settings) -> dict[str, ModelPrice]:
    """Return the prices under ``[tool.watchkeeper.prices]``, by ``provider:model`` or by the model's name alone.

    Raises:
        ConfigurationError: If a price is not a table of dollars per million tokens.
    """
    setting = settings.get(PRICES)
    if setting is None:
        return {}
    table: object = setting.value
    if not isinstance(table, dict):
        raise ConfigurationError(f"{setting.source}: {shown(table)} must be a table of models")
    return {name: _price(name, rates, setting.source) for name, rates in cast("dict[str, Any]", table).items()}


def _price(model: str, rates: Any, source: str) -> ModelPrice:
    wanted = f"{source}: write {model!r} = {{ input = 0.25, output = 2 }}, in dollars per million tokens"
    if not isinstance(rates, dict):
        raise ConfigurationError(f"{wanted}, not {shown(rates)}")
    given = cast("dict[str, Any]", rates)
    strange = sorted(given.keys() - RATES.keys())
    missing = sorted({"input", "output"} - given.keys())
    if strange or missing:
        wrong = f"{strange[0]!r} is none of {', '.join(RATES)}" if strange else f"{missing[0]!r} is missing"
        raise ConfigurationError(f"{wanted}; {wrong}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(f"{wanted}; {name} = {shown(value)} is not a number")
    return ModelPrice.per_million(**{RATES[name]: value for name, value in given.items()})
