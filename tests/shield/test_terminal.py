"""A terminal is asked only if a person can answer, and everything is closed after the question."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.containment.gates import until_other_thread
from watchkeeper.shield.terminal import Terminal, laid_out
from watchkeeper.core.cancellation import CancellationToken
from watchkeeper.core.clock import TestClock
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.tool_permission import ToolPermissionHook, question


class Screen:
    """A terminal of its own, with the test at the keyboard."""

    def __init__(self) -> None:
        self.keyboard, self.line = pty.openpty()
        self.path = os.ttyname(self.line)
        self.shown = ""

    def shows(self, text: str) -> None:
        while text not in self.shown:
            ready, _, _ = select.select([self.keyboard], [], [], 30)
            assert ready, f"{text!r} was never shown: {self.shown!r}"
            self.shown += os.read(self.keyboard, 4096).decode()

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    def close(self) -> None:
        os.close(self.keyboard)
        os.close(self.line)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    made.close()


class Asking:
    """A question put on a thread of its own."""

    def __init__(self, path: str) -> None:
        self.withdrawn = CancellationToken()
        self.said: list[str | None] = []
        self.thread = threading.Thread(
            target=lambda: self.said.append(Terminal(path).ask("May it? ", self.withdrawn)), daemon=True
        )
        self.thread.start()

    def answer(self) -> str | None:
        self.thread.join(10)
        return self.said[0]


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def test_the_line_that_is_typed_is_the_answer(screen: Screen) -> None:
    before = open_files()
    asking = Asking(screen.path)
    screen.shows("May it? ")
    screen.type("yes\n")
    assert asking.answer() == "yes\n"
    assert open_files() == before


def test_what_was_typed_before_the_question_is_no_answer(screen: Screen) -> None:
    screen.type("yes\n")
    asking = Asking(screen.path)
    screen.shows("May it? ")
    screen.type("no\n")
    assert asking.answer() == "no\n"


def test_a_withdrawn_question_ends_and_leaves_nothing_open(screen: Screen) -> None:
    before = open_files()
    asking = Asking(screen.path)
    screen.shows("May it? ")
    asking.withdrawn.cancel()
    asking.withdrawn.cancel()
    assert asking.answer() is None
    assert open_files() == before
    again = Asking(screen.path)
    screen.shows("May it? \r\nMay it? ")
    screen.type("yes\n")
    assert again.answer() == "yes\n"
    again.withdrawn.cancel()


def test_a_question_withdrawn_before_it_was_put_ends_at_once(screen: Screen) -> None:
    withdrawn = CancellationToken()
    withdrawn.cancel()
    assert Terminal(screen.path).ask("May it? ", withdrawn) is None


def test_a_question_that_is_over_is_withdrawn_in_vain(screen: Screen) -> None:
    class Late(CancellationToken):
        """Calls back even what was forgotten, as one that is cancelled at that very moment does."""

        def on_cancel(self, callback: Callable[[str], None]) -> Callable[[], None]:
            super().on_cancel(callback)
            return lambda: None

    withdrawn = Late()
    said: list[str | None] = []
    thread = threading.Thread(target=lambda: said.append(Terminal(screen.path).ask("May it? ", withdrawn)), daemon=True)
    thread.start()
    screen.shows("May it? ")
    screen.type("no\n")
    thread.join(10)
    before = open_files()
    withdrawn.cancel()
    assert (said, open_files()) == (["no\n"], before)


def test_the_end_of_input_is_no_answer(screen: Screen) -> None:
    asking = Asking(screen.path)
    screen.shows("May it? ")
    screen.type("\x04")
    assert asking.answer() is None


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    plain = tmp_path / "file"
    plain.write_text("yes\n")
    before = open_files()
    for path in (str(tmp_path / "nothing"), str(plain)):
        assert Terminal(path).ask("May it? ", CancellationToken()) is None
    assert open_files() == before
    assert plain.read_text() == "yes\n"


def test_a_process_in_the_background_asks_nobody(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    def somebody_elses(descriptor: int) -> int:
        return os.getpgrp() + 1

    monkeypatch.setattr(os, "tcgetpgrp", somebody_elses)
    assert Terminal(screen.path).ask("May it? ", CancellationToken()) is None


def test_what_a_model_wrote_moves_no_cursor_and_hides_nothing(screen: Screen) -> None:
    assert laid_out("a\x1b[2Jb\r\x07c\u202ed\ne é", 80) == "a\\x1b[2Jb\\r\\x07c\\u202ed\ne é"


def test_long_arguments_imitate_no_line_of_the_question(screen: Screen) -> None:
    assert laid_out("x" * 25 + "\ny", 10).split("\n") == [
        "x" * 10,
        "    " + "x" * 6,
        "    " + "x" * 6,
        "    " + "x" * 3,
        "y",
    ]
    assert laid_out("漢字漢字", 5).split("\n") == ["漢字", "    漢", "    字"]
    ctx = ToolCallContext("request", tool_name="send_mail", kind="tool", arguments='{"to":\n"May all run?"}')
    assert '\n  {"to":\\n"May all run?"}\n' in question(ctx, 5)


def test_a_tool_is_allowed_at_the_terminal(screen: Screen) -> None:
    hook = ToolPermissionHook(ask=["*"], ask_with=Terminal(screen.path))
    said: list[Decision | None] = []
    ctx = ToolCallContext("request", tool_name="send_mail", kind="tool", arguments='{"to": "\x1b[1Aall"}')
    thread = threading.Thread(target=lambda: said.append(hook.before_tool_call(ctx)), daemon=True)
    thread.start()
    screen.shows("[N]o: ")
    assert 'May send_mail run with these arguments?\r\n  {"to": "\\x1b[1Aall"}\r\nNo answer' in screen.shown
    screen.type("y\n")
    thread.join(10)
    assert said == [None]


def test_nobody_at_the_terminal_means_no_when_the_time_is_over(screen: Screen) -> None:
    clock = TestClock()
    hook = ToolPermissionHook(ask=["*"], ask_with=Terminal(screen.path), timeout=5, clock=clock)
    said: list[Decision | None] = []
    ctx = ToolCallContext("request", tool_name="send_mail", kind="tool")
    thread = threading.Thread(target=lambda: said.append(hook.before_tool_call(ctx)), daemon=True)
    before = open_files()
    thread.start()
    screen.shows("[N]o: ")

    def over() -> bool:
        clock.advance(5)
        return bool(said)

    until_other_thread(over)
    assert said == [Decision.HALT]
    until_other_thread(lambda: open_files() == before)


@pytest.mark.spec("EC-040")
@pytest.mark.parametrize("package", ["watchkeeper.shield", "watchkeeper.shield.tool_permission"])
def test_a_process_without_a_terminal_denies_at_once_whatever_was_imported(package: str) -> None:
    code = (
        f"from {package} import ToolPermissionHook as Hook\n"
        "from watchkeeper.shield.decision import ToolCallContext as Call\n"
        "hook, call = Hook(ask=['*']), Call('request', tool_name='send_mail')\n"
        "print(hook.before_tool_call(call), hook.explain(call))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "HALT Nobody is there to allow the tool 'send_mail'.\n"
