"""Who is told of what: which values make sense, and how one notice is delivered."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.app.hooks import Hook
from watchkeeper.app.settings import notify_from, settings_here
from watchkeeper.app.telling.notify import Notify, delivered
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.secrets import redacted

NOTE = """
import json, os, sys
open("told", "a").write(json.dumps([os.environ["WATCHKEEPER_NOTICE"], json.load(sys.stdin)]))
"""
COMMAND = shlex.join([sys.executable, "-c", NOTE])
NOTICE: dict[str, Any] = {"run_id": "0123", "sentence": "All is well.", "ok": True}


@pytest.mark.parametrize(
    ("on", "kinds", "shares"),
    [
        ("end", ("end",), ()),
        ("warning,80%,parked,failed,end", ("warning", "80%", "parked", "failed", "end"), (80,)),
        (" Warning , 50 %,080%, 80%,", ("warning", "50%", "80%"), (50, 80)),
        (["100%", "1%", "failed"], ("100%", "1%", "failed"), (100, 1)),
    ],
)
def test_what_notices_are_for_is_read_from_a_text_or_a_list(
    on: Any, kinds: tuple[str, ...], shares: tuple[int, ...]
) -> None:
    notify = Notify("https://example.org/hook", on)
    assert (notify.kinds, notify.shares) == (kinds, shares)


@pytest.mark.parametrize(
    ("on", "parts"),
    [
        ("warnings", ["'warnings' is none of warning, parked, failed, end", "did you mean warning?"]),
        ("0%", ["'0%' must be from 1% to 100%"]),
        ("130%", ["'130%' must be from 1% to 100%"]),
        ("9" * 5000 + "%", ["must be from 1% to 100%"]),
        ("-5%", ["'-5%' is none of"]),
        ("80", ["'80' is none of", "no share such as 80%"]),
        ("12.5%", ["'12.5%' is none of"]),
        ("", ["'' must be any of"]),
        (",end", ["'' must be any of"]),
        ([], ["names nothing"]),
        (80, ["80 must be any of"]),
        ([None], ["None must be any of"]),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(on: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Notify("https://example.org/hook", on)
    assert all(part in str(caught.value) for part in parts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "to", ["ftp://example.org/x", "https://", "https://a b/c", "file:///etc/passwd", "http://x:99999/"]
)
def test_an_address_that_cannot_be_sent_to_is_refused(to: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address that can be sent to"):
        Notify(to)


@pytest.mark.parametrize("to", [None, 3, ["curl"]])
def test_something_else_than_a_text_is_refused(to: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a command line, or an https:// address"):
        Notify(to)


def test_of_an_address_only_scheme_and_host_are_shown() -> None:
    notify = Notify("https://me:word@hooks.example.org/services/T0123/hidden?token=abc", "end")
    assert notify.name == "https://hooks.example.org"
    assert "hidden" not in repr(notify)
    assert "hidden" not in redacted(f"sent to {notify.to} at noon")


def test_a_command_gets_the_notice_on_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert delivered(Notify(COMMAND), "80%", NOTICE) is None
    assert json.loads((tmp_path / "told").read_text()) == ["80%", NOTICE]


@pytest.mark.parametrize(
    ("code", "said"),
    [("raise SystemExit(7)", "exit code 7"), ("import threading; threading.Event().wait()", "not over after 0.01 s")],
)
def test_a_command_that_fails_or_hangs_is_said(code: str, said: str) -> None:
    command = shlex.join([sys.executable, "-c", code])
    assert delivered(Notify(command), "end", NOTICE, seconds=0.01 if "wait" in code else 60) == said


def test_an_address_gets_it_as_the_body_of_a_post_with_a_line_for_people() -> None:
    with Hook() as hook:
        assert delivered(Notify(hook.url), "warning", NOTICE) is None
    assert hook.got == [
        {"notice": "warning", "text": "watchkeeper, run 0123, warning: All is well.", **NOTICE},
    ]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_address_that_refuses_or_sends_elsewhere_is_said_and_not_followed(status: int) -> None:
    with Hook(status) as hook:
        assert delivered(Notify(hook.url), "end", NOTICE) == f"it answered with status {status}"
    assert hook.methods == ["POST"]


def test_a_server_that_answers_with_the_address_cannot_bring_it_on_record() -> None:
    def echo() -> None:
        connection, _ = server.accept()
        with connection:
            asked = connection.recv(65536).split(b" ")[1]
            connection.sendall(b"HTTP/1.1 none " + asked + b"\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        echoing = threading.Thread(target=echo)
        echoing.start()
        said = delivered(Notify(f"http://127.0.0.1:{server.getsockname()[1]}/services/T0123/hidden"), "end", NOTICE)
        echoing.join()
    assert said == "the exchange with it failed: BadStatusLine"


def test_an_address_where_nobody_listens_is_said() -> None:
    with Hook() as hook:
        url = hook.url
    said = delivered(Notify(url), "end", NOTICE)
    assert said is not None
    assert "refused" in said
    assert "secret-path" not in said


@pytest.mark.parametrize(
    ("name", "said"), [("ADDRESS_SECONDS", "timed out"), ("WHOLE_SECONDS", "not over after 0.01 s")]
)
def test_an_address_that_never_answers_is_left(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"watchkeeper.app.telling.notify.{name}", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = delivered(Notify(f"http://127.0.0.1:{silent.getsockname()[1]}/hook"), "end", NOTICE)
    assert found is not None
    assert said in found


def test_settings_name_both_and_say_where_the_mistake_is(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.watchkeeper]\nnotify = "https://example.org/hook"\nnotify_on = "warning,80%"\n'
    )
    notify = notify_from(settings_here({}, {}, tmp_path))
    assert notify is not None
    assert (notify.to, notify.kinds) == ("https://example.org/hook", ("warning", "80%"))
    assert notify_from(settings_here({"notify": "none"}, {}, tmp_path)) is None
    changed = notify_from(settings_here({}, {"WATCHKEEPER_NOTIFY_ON": "end"}, tmp_path))
    assert changed is not None
    assert changed.kinds == ("end",)
    with pytest.raises(ConfigurationError, match=r"^WATCHKEEPER_NOTIFY_ON: '0%' must be from 1% to 100%$"):
        notify_from(settings_here({}, {"WATCHKEEPER_NOTIFY_ON": "0%"}, tmp_path))


def test_kinds_without_somebody_to_tell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^--notify-on needs somebody to tell: --notify COMMAND, or --notify http"
    ):
        notify_from(settings_here({"notify_on": "warning"}, {}, tmp_path))


def test_without_settings_nobody_is_told(tmp_path: Path) -> None:
    assert notify_from(settings_here({}, {}, tmp_path)) is None
