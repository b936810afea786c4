"""What several commands share: how an option is described, and the store that they read."""

from __future__ import annotations

from typing import Annotated

import typer

from watchkeeper.app.settings import settings_here, text_from
from watchkeeper.cli import storing
from watchkeeper.cli.console import error_console, say
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.disk.sqlite import DEFAULT
from watchkeeper.store.run_store import RunStore, store_path

Store = Annotated[str | None, typer.Option(help="Folder of the runs.", metavar="FOLDER")]


def option(text: str, metavar: str | None = None, *names: str, least: int | None = None) -> typer.models.OptionInfo:
    """Describe an option; its name is that of its parameter unless others are given."""
    made: typer.models.OptionInfo = typer.Option(*names, help=text, metavar=metavar, min=least)
    return made


def open_for_reading(named: str | None) -> RunStore:
    """Open the store that the option, the environment or the settings name.

    Raises:
        ConfigurationError: If they say that there is none.
        StoreError: If there is no such folder, or it is not a store.
    """
    settings = settings_here({"store": named})
    wanted = text_from(settings, "store") or DEFAULT
    path = store_path(wanted)
    if path is None:
        raise ConfigurationError(f"{settings['store'].source} says that there is no store; name its folder")
    advice = storing.older_runs(wanted, path)
    if advice and not path.exists():
        raise StoreError(f"there is no store {path} yet; {advice}")
    if advice:
        say(error_console(), (advice, "yellow"))
    return RunStore(path, read_only=True)
