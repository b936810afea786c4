"""Limits from the surroundings: command line over environment over ``[tool.watchkeeper]`` over the safe defaults.

Only what is named here is read; an unknown key in the file is an error, because a misspelt limit that silently does
nothing is how a bill runs away. ``none`` (or ``off``) lifts a limit.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.limits import Limits

FIELDS: Final[dict[str, str]] = {
    "timeout": "deadline",
    "max_cost": "max_cost_usd",
    "max_tokens": "max_total_tokens",
    "max_input_tokens": "max_input_tokens",
    "max_output_tokens": "max_output_tokens",
    "max_steps": "max_steps",
    "max_turns": "max_turns",
    "max_tool_calls": "max_tool_calls",
    "max_retries": "max_retries",
}
"""Setting name (``WATCHKEEPER_`` and upper case in the environment) to the field of Limits."""

OTHERS: Final = ("model", "store")
LIFTED: Final = ("none", "off")


def find_pyproject(start: Path) -> Path | None:
    """Return the nearest pyproject.toml at or above ``start``, or None."""
    for folder in (start, *start.parents):
        candidate = folder / "pyproject.toml"
        if candidate.is_file():
            return candidate
    return None


def file_settings(start: Path) -> dict[str, Any]:
    """Read ``[tool.watchkeeper]`` of the nearest pyproject.toml.

    Raises:
        ConfigurationError: If the file is not TOML, or names a setting that does not exist.
    """
    path = find_pyproject(start)
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            table = tomllib.load(file).get("tool", {}).get("watchkeeper", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    settings = {key.replace("-", "_"): value for key, value in table.items()}
    unknown = sorted(set(settings) - set(FIELDS) - set(OTHERS))
    if unknown:
        known = ", ".join((*FIELDS, *OTHERS))
        raise ConfigurationError(f"[tool.watchkeeper] in {path} has no setting {unknown[0]!r}; settings: {known}")
    return settings


def environment_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read ``WATCHKEEPER_MAX_COST`` and its kin."""
    names = {f"WATCHKEEPER_{name.upper()}": name for name in (*FIELDS, *OTHERS)}
    return {name: environ[variable] for variable, name in names.items() if environ.get(variable)}


def settings_here(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Return the settings in force in a folder: the environment's over the file's."""
    return {
        **file_settings(folder or Path.cwd()),
        **environment_settings(os.environ if environ is None else environ),
    }


def limits_from(settings: Mapping[str, Any], base: Limits = Limits()) -> Limits:
    """Return ``base`` with every limit that the settings name.

    Raises:
        LimitsError: If a limit makes no sense; the message names field and value.
    """
    changes: dict[str, Any] = {}
    for name, field in FIELDS.items():
        value = settings.get(name)
        if value is not None:
            changes[field] = None if str(value).lower() in LIFTED else _number(value)
    return replace(base, **changes)


def _number(value: Any) -> Any:
    """Environment variables are text; whole numbers are meant as numbers."""
    return int(value) if isinstance(value, str) and value.isdigit() else value
