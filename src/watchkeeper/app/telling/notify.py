"""Who is told about a run and of what: `Notify`, and how one notice is delivered.

A notice goes to a command, as JSON on its input, or to an address of the web, as the body of a POST. Both have a time
limit, and neither can fail the run: `delivered` returns what went wrong. No shell reads the command, and no redirection
is followed, because the address may hold a key; for that reason only its scheme and host are ever shown.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.quantities import is_listed, is_text
from watchkeeper.core.secrets import hold, hold_url, redacted
from watchkeeper.core.text import error_text, one_line, shown
from watchkeeper.core.workers import BlockingCall

KINDS: Final = ("warning", "parked", "failed", "end")
"""What there are notices of, besides the shares of limits."""

END: Final = "end"

SHARE: Final = re.compile(r"(\d+)\s*%", re.ASCII)
SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
ADDRESSES: Final = ("http", "https")

COMMAND_SECONDS: Final = 60.0
"""How long a command may take."""

ADDRESS_SECONDS: Final = 10.0
"""How long an address may take to take the connection, and again to answer."""

WHOLE_SECONDS: Final = 20.0
"""How long all of that may take, the look-up of the name included."""

FACTS: Final[Mapping[str, str]] = {"run_id": "WATCHKEEPER_RUN_ID", "ok": "WATCHKEEPER_OK"}
"""What a command finds in its environment besides the kind of the notice, by the key of the notice."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Who is told about a run, and of what, while something can still be done.

    Args:
        to: A command line, which gets the notice as JSON on its input; or an ``http://`` or ``https://`` address, which
            gets it as the body of a POST.
        on: What for: any of ``warning``, ``parked``, ``failed``, ``end``, and shares of limits such as ``80%``; a list,
            or one text with commas.

    Raises:
        ConfigurationError: If a value makes no sense, or there is no such program.
    """

    to: str = field(repr=False)
    on: str | Iterable[str] = (END,)

    def __post_init__(self) -> None:
        """Read what it is for, check where it goes, and keep the address out of everything that is written."""
        if not isinstance(self.to, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"to={shown(self.to)} must be a command line, or an https:// address")
        object.__setattr__(self, "on", kinds_of(self.on, "on"))
        if not self.is_address:
            program_of(self.to, "to")
            return
        try:
            parts = urlsplit(self.to)
            good = parts.scheme.lower() in ADDRESSES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or not self.to.isprintable() or " " in self.to:
            raise ConfigurationError(f"to: {self.name} is no address that can be sent to; write https://host/path")
        hold_url(self.to)
        hold(self.to)

    @property
    def is_address(self) -> bool:
        """Whether it goes to an address and not to a command."""
        return SCHEME.match(self.to) is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        """What there are notices for."""
        return tuple(self.on)

    @property
    def shares(self) -> tuple[int, ...]:
        """The shares of limits at which there is a notice, in per cent."""
        return tuple(int(kind[:-1]) for kind in self.kinds if kind.endswith("%"))

    @property
    def name(self) -> str:
        """Where it goes, as it may be shown: the program, or scheme and host."""
        if not self.is_address:
            return program_of(self.to, "to")[0]
        scheme, _, rest = self.to.partition("://")
        return one_line(f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}", 100)


def kinds_of(on: object, name: str) -> tuple[str, ...]:
    """Return what notices are for, each once.

    Raises:
        ConfigurationError: If one is unknown, a share is not from 1% to 100%, or there is none; ``name`` is the
            argument.
    """
    given = on.split(",") if isinstance(on, str) else list(on) if is_listed(on) else [on]
    kinds: dict[str, None] = {}
    for each in given:
        if not is_text(each):
            if isinstance(on, str) and each == "" and kinds:
                continue  # a comma at the end
            raise ConfigurationError(f"{name}: {shown(each)} must be any of {', '.join(KINDS)}, or a share such as 80%")
        kind = each.strip().lower()
        share = SHARE.fullmatch(kind)
        if share is not None:
            if not 1 <= int(share[1][:9]) <= 100:
                raise ConfigurationError(f"{name}: {each.strip()!r} must be from 1% to 100%")
            kind = f"{int(share[1])}%"
        elif kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ConfigurationError(
                f"{name}: {each.strip()!r} is none of {', '.join(KINDS)}, and no share such as 80%{meant}"
            )
        kinds[kind] = None
    if not kinds:
        raise ConfigurationError(f"{name} names nothing; write any of {', '.join(KINDS)}, or a share such as 80%")
    return tuple(kinds)


def program_of(command: str, name: str) -> list[str]:
    """Return program and arguments of a command line; no shell reads them.

    Raises:
        ConfigurationError: If it cannot be read, or there is no such program; ``name`` is the argument.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"{name} {command!r} cannot be read: {error}") from error
    if not words:
        raise ConfigurationError(f"{name} names no command")
    if shutil.which(words[0]) is None:
        raise ConfigurationError(f"{name}: there is no program {words[0]!r}; for shell syntax write sh -c '...'")
    return words


def delivered(
    notify: Notify, kind: str, notice: Mapping[str, Any], *, quiet: bool = False, seconds: float = COMMAND_SECONDS
) -> str | None:
    """Deliver one notice; blocks. Return what went wrong, or None.

    An address also gets the kind as ``notice``, and ``text`` with a line for people, which chat programs show.

    Args:
        notify: Where it goes.
        kind: What it is for.
        notice: The notice, as JSON-able data without credentials.
        quiet: Whether what a command prints must stay out of standard output.
        seconds: How long a command may take.
    """
    try:
        if notify.is_address:
            text = f"watchkeeper, run {notice.get('run_id')}, {kind}: {notice.get('sentence')}"
            return _posted_in_time(notify, {"notice": kind, "text": text, **notice})
        return _run(program_of(notify.to, "to"), kind, notice, quiet, seconds)
    except Exception as error:  # whatever it is, the run goes on; the caller records it
        return redacted(error_text(error))


def _run(program: list[str], kind: str, notice: Mapping[str, Any], quiet: bool, seconds: float) -> str | None:
    import subprocess

    facts = {FACTS[key]: _as_fact(notice[key]) for key in FACTS if notice.get(key) is not None}
    env, stdout = {**os.environ, "WATCHKEEPER_NOTICE": kind, **facts}, 2 if quiet else None
    try:
        done = subprocess.run(
            program, input=json.dumps(notice), text=True, env=env, stdout=stdout, timeout=seconds, check=False
        )
    except (OSError, ValueError) as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"not over after {seconds:g} s"
    return f"exit code {done.returncode}" if done.returncode else None


def _as_fact(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _posted_in_time(notify: Notify, notice: Mapping[str, Any]) -> str | None:
    """Post on a worker thread: neither looking up a name nor an answer that drips in has a time limit of its own."""
    call = BlockingCall(partial(_posted, notify, notice))
    call.wait(WHOLE_SECONDS, SYSTEM_CLOCK)
    return f"not over after {WHOLE_SECONDS:g} s" if call.leave() else call.result()


def _posted(notify: Notify, notice: Mapping[str, Any]) -> str | None:
    from http.client import HTTPException
    from urllib import error, request

    class Nowhere(request.HTTPRedirectHandler):
        """Follows no redirection."""

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
            return None

    headers = {"Content-Type": "application/json", "User-Agent": "watchkeeper"}
    sent = request.Request(notify.to, json.dumps(notice).encode(), headers, method="POST")
    try:
        with request.build_opener(Nowhere).open(sent, timeout=ADDRESS_SECONDS):
            return None
    except error.HTTPError as refused:
        refused.close()
        return f"it answered with status {refused.code}"
    except error.URLError as failed:
        return redacted(str(failed.reason))
    except HTTPException as failed:  # its words may be the server's, which has read the address
        return f"the exchange with it failed: {type(failed).__name__}"
