"""Cancellation tokens: one flag, first reason wins, downwards to children, callbacks once."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from watchkeeper.core.cancellation import CancellationToken


def test_a_fresh_token_is_not_cancelled() -> None:
    token = CancellationToken()
    assert (token.is_cancelled, token.reason) == (False, None)
    assert token.wait(0) is False


def test_the_first_reason_stays() -> None:
    token = CancellationToken()
    token.cancel("first")
    token.cancel("second")
    assert (token.is_cancelled, token.reason) == (True, "first")
    assert token.wait() is True


def test_cancelling_without_a_reason_has_one_all_the_same() -> None:
    token = CancellationToken()
    token.cancel()
    assert token.reason == "cancelled"


@pytest.mark.spec("EC-032")
def test_children_and_theirs_are_cancelled_with_their_parent_and_not_the_other_way() -> None:
    root = CancellationToken()
    child = root.child()
    grandchild = child.child()
    sibling = root.child()
    child.cancel("mine")
    assert (grandchild.reason, root.reason, sibling.reason) == ("mine", None, None)
    root.cancel("all")
    assert (child.reason, sibling.reason) == ("mine", "all")


def test_a_child_of_a_cancelled_token_is_cancelled_from_the_start() -> None:
    root = CancellationToken()
    root.cancel("over")
    assert root.child().reason == "over"


def test_callbacks_run_once_with_the_reason_and_can_be_forgotten() -> None:
    token = CancellationToken()
    heard: list[str] = []
    token.on_cancel(lambda reason: heard.append(f"a {reason}"))
    forget = token.on_cancel(lambda reason: heard.append(f"b {reason}"))
    forget()
    forget()
    token.cancel("now")
    token.cancel("again")
    assert heard == ["a now"]


def test_the_same_callback_may_be_registered_twice() -> None:
    token = CancellationToken()
    heard: list[str] = []
    forget = token.on_cancel(heard.append)
    token.on_cancel(heard.append)
    callback = heard.append
    token.on_cancel(callback)
    token.on_cancel(callback)
    forget()
    token.cancel("now")
    assert heard == ["now"] * 3


def test_a_callback_for_a_cancelled_token_runs_at_once() -> None:
    token = CancellationToken()
    token.cancel("over")
    heard: list[str] = []
    forget = token.on_cancel(heard.append)
    assert heard == ["over"]
    forget()


def test_a_callback_that_raises_keeps_neither_the_others_nor_the_children_from_hearing() -> None:
    token = CancellationToken()
    child = token.child()
    heard: list[str] = []

    def broken(reason: str) -> None:
        raise RuntimeError(reason)

    token.on_cancel(broken)
    token.on_cancel(heard.append)
    token.cancel("now")
    assert heard == ["now"]
    assert child.is_cancelled


@pytest.mark.spec("EC-032")
def test_waiting_threads_are_woken() -> None:
    token = CancellationToken()
    child = token.child()
    woken: list[bool] = []

    def wait(one: CancellationToken) -> None:
        woken.append(one.wait(30))

    threads = [threading.Thread(target=wait, args=(one,)) for one in (token, child, child)]
    for thread in threads:
        thread.start()
    token.cancel("now")
    for thread in threads:
        thread.join(30)
    assert woken == [True, True, True]


def test_a_child_that_is_done_is_let_go() -> None:
    root = CancellationToken()
    gone = weakref.ref(root.child())
    gc.collect()
    assert gone() is None


@pytest.mark.spec("FR-008")
def test_cancelling_and_registering_at_once_loses_no_callback() -> None:
    for _ in range(200):
        token = CancellationToken()
        heard: list[str] = []
        barrier = threading.Barrier(3)

        def register(token: CancellationToken = token, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            token.on_cancel(heard.append)  # noqa: B023  # joined before the next round

        def adopt(token: CancellationToken = token, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            child = token.child()
            child.wait(30)
            heard.append(str(child.reason))  # noqa: B023  # joined before the next round

        threads = [threading.Thread(target=register), threading.Thread(target=adopt)]
        for thread in threads:
            thread.start()
        barrier.wait()
        token.cancel("now")
        for thread in threads:
            thread.join(30)
        assert heard == ["now", "now"]
