"""``watchkeeper view`` starts the inspector's page and says where it is; ``watchkeeper export`` writes it to a file."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from watchkeeper.cli.console import error_console, make_console, printing, put, say
from watchkeeper.cli.report import line_of
from watchkeeper.cli.stored.listing import SHORT_ID
from watchkeeper.core.errors import ConfigurationError, MissingExtraError
from watchkeeper.core.quantities import counted
from watchkeeper.core.text import one_line
from watchkeeper.inspector import exporting
from watchkeeper.inspector.redaction import Redaction
from watchkeeper.store.run_store import RunStore

if TYPE_CHECKING:
    from watchkeeper.inspector.server import Served

EXPOSED: Final = (
    "other machines can reach this page, and nothing is encrypted: who has its address with the token, or reads along,"
    " reads all runs of the store"
)
CLOSING: Final = 3.0
"""Seconds that a server has for its end when the run beside it has ended."""

LEAST_NAMED: Final = 3
"""Characters of the shortest text that can be left out: a shorter one is a part of too many words."""


def view(store: RunStore, port: int, bind: str | None, *, opens: bool) -> None:
    """Serve the page over a store until Ctrl-C.

    Args:
        store: The runs.
        port: Where on this machine; 0 for any port that is free.
        bind: Another address than the loopback's.
        opens: Whether a browser is opened, if there is a screen.

    Raises:
        ConfigurationError: If the extra is missing (MissingExtraError), or the port or the address cannot be used.
    """
    page = served(store, port, bind)
    with suppress(KeyboardInterrupt):
        with printing() as out:
            empty = "" if store.runs(1) else " (no runs in it yet)"
            where = "on this machine" if bind is None else f"on {bind}"
            put(make_console(out), f"{store.path}{empty} {where}, until Ctrl-C:")
            put(make_console(out), page.address)
        if bind is not None and not ip_address(bind).is_loopback:
            say(error_console(), (f"warning: {EXPOSED}", "yellow"))
        if opens and has_screen():
            webbrowser.open(page.address)
        page.run()


def served(store: RunStore, port: int = 0, bind: str | None = None) -> Served:
    """Return a server for a store, which listens already.

    Raises:
        ConfigurationError: If the extra is missing (MissingExtraError), or the port or the address cannot be used.
    """
    try:
        from watchkeeper.inspector import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError("watchkeeper view", "view") from None
    return server.served(store, line_of, server.listen(port) if bind is None else server.listen(port, bind))


@contextmanager
def beside(store: Path, console: Console) -> Generator[None]:
    """Serve the page over a store on a thread while this process does something else, and open it if there is a screen.

    Raises:
        MissingExtraError: If the extra is not installed.
    """
    with RunStore(store, read_only=True) as runs:
        page = served(runs)
        thread = threading.Thread(target=page.run, name="watchkeeper view", daemon=True)
        thread.start()
        try:
            say(console, (f"page, until the run has ended: {page.address}", "dim"))
            if has_screen():
                webbrowser.open(page.address)
            yield
        finally:
            page.server.should_exit = True
            thread.join(CLOSING)


def export(store: RunStore, run_id: str, path: Path | None, named: Iterable[str], *, guesses: bool) -> None:
    """Write the page of a run to a file, and say what is in it and what is not.

    Args:
        store: The runs.
        run_id: The run's id, or the beginning of it.
        path: The file; None for one in the working folder that is named after the run.
        named: Texts to leave out.
        guesses: Whether what looks like a credential is left out.

    Raises:
        ConfigurationError: If the file cannot be written, or a text to leave out is too short.
    """
    texts = tuple(named)
    for text in texts:
        if len(text.strip()) < LEAST_NAMED:
            raise ConfigurationError(f"--redact={text!r} must have at least {LEAST_NAMED} characters")
    if path is not None:
        check_replaceable(path)
    found = exporting.exported(store, run_id, line_of, Redaction(texts, guesses=guesses))
    path = path or Path(f"run-{found.run_id[:SHORT_ID]}.html")
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_text(found.page, encoding="utf-8")
        os.replace(new, path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            new.unlink(missing_ok=True)
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"-o: {str(path)!r} cannot be written: {why}; name another file") from error
    with printing() as out:
        size = f"{path.stat().st_size / 1_000_000:,.1f} MB"
        put(make_console(out), f"wrote {one_line(str(path))}: {counted(found.runs, 'run')}, {size}")
        for note in found.left_out:
            put(make_console(out), ("left out ", "yellow"), note)
        if guesses:
            put(
                make_console(out),
                ("credentials are guessed by their form: look at the page before you give it to others", "dim"),
            )


def check_replaceable(path: Path) -> None:
    """Refuse a path at which no file can stand, before the page is made; a device must not be replaced by a file.

    Raises:
        ConfigurationError: If its folder is not there, or something else than a file stands there.
    """
    if not path.name or (os.path.lexists(path) and not os.path.isfile(path)):
        raise ConfigurationError(f"-o: {str(path)!r} is no file; name one that may be replaced, or a new one")
    if not os.path.isdir(path.parent):
        raise ConfigurationError(
            f"-o: {str(path)!r} cannot be written, because there is no folder {str(path.parent)!r}; make it, or"
            " name another file"
        )


def has_screen() -> bool:
    """Return whether a browser that is opened here would be seen."""
    if sys.platform in ("win32", "darwin"):
        return not os.environ.get("SSH_CONNECTION")
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
