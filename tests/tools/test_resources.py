"""Things that tools share, made when asked for and closed when their scope ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.tools.resources import ResourceBinding, Resources, Scope


class Store(Protocol):
    def get(self, key: str) -> str: ...


class MemoryStore:
    def get(self, key: str) -> str:
        return key


class Closing:
    """Remembers in which order things were closed."""

    log: list[str]

    def __init__(self, log: list[str], name: str = "closing") -> None:
        self.log, self.name = log, name

    def close(self) -> None:
        self.log.append(self.name)


class AsyncClosing(Closing):
    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.log.append(f"async {self.name}")


class Failing:
    def close(self) -> None:
        raise OSError("will not close")


class A(Closing): ...


class B(Closing): ...


def test_an_instance_that_was_handed_in_is_found_and_never_closed() -> None:
    log: list[str] = []
    resources = Resources.of({Closing: Closing(log), Store: MemoryStore()})
    assert resources.get(Store).get("x") == "x"
    assert resources.get(Closing) is resources.get(Closing)
    resources.close()
    assert log == []
    assert resources.get(Store).get("y") == "y"


@pytest.mark.spec("FR-025")
def test_a_run_resource_is_made_once_when_first_asked_for() -> None:
    made: list[str] = []

    def make(_: Resources) -> MemoryStore:
        made.append("store")
        return MemoryStore()

    resources = Resources([ResourceBinding(Store, make)])
    assert Store in resources
    assert made == []
    store = resources.get(Store)
    assert resources.get(Store) is store
    assert resources.tool_call().get(Store) is store
    assert resources.child().get(Store) is store
    assert made == ["store"]


@pytest.mark.spec("FR-025")
def test_a_tool_call_resource_is_fresh_for_every_call_and_closed_with_it() -> None:
    log: list[str] = []
    resources = Resources([ResourceBinding(A, lambda _: A(log, "a"), Scope.TOOL_CALL)])
    one, two = resources.tool_call(), resources.tool_call()
    assert one.get(A) is one.get(A)
    assert one.get(A) is not two.get(A)
    one.close()
    assert log == ["a"]
    with pytest.raises(ConfigurationError, match="resource A was asked for after its tool_call was over"):
        one.get(A)
    resources.close()
    assert log == ["a"]
    two.close()
    assert log == ["a", "a"]


def test_a_tool_call_resource_cannot_be_asked_for_outside_a_call() -> None:
    resources = Resources(
        [
            ResourceBinding(A, lambda _: A([]), Scope.TOOL_CALL),
            ResourceBinding(B, lambda inner: B(inner.get(A).log)),
        ]
    )
    with pytest.raises(ConfigurationError, match=r"resource A lives for one tool call only; ask .*context\.resources"):
        resources.get(A)
    with pytest.raises(ConfigurationError, match="lives for one tool call only"):
        resources.tool_call().get(B)


def test_a_factory_may_ask_for_what_it_needs_and_closing_goes_backwards() -> None:
    log: list[str] = []
    resources = Resources(
        [
            ResourceBinding(B, lambda inner: B(inner.get(A).log, "b")),
            ResourceBinding(A, lambda _: A(log, "a")),
            ResourceBinding(Closing, lambda inner: Closing(inner.get(B).log, "c"), Scope.TOOL_CALL),
        ]
    )
    call = resources.tool_call()
    assert call.get(Closing).log is log
    call.close()
    resources.close()
    resources.close()
    assert log == ["c", "b", "a"]


def test_a_circle_is_refused_with_its_way() -> None:
    resources = Resources(
        [
            ResourceBinding(A, lambda inner: A(inner.get(B).log)),
            ResourceBinding(B, lambda inner: B(inner.get(A).log)),
        ]
    )
    with pytest.raises(ConfigurationError, match="resources need each other in a circle: A → B → A"):
        resources.get(A)


def test_what_nobody_provides_is_refused_and_what_is_known_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no resource A; known resources: none"):
        Resources().get(A)
    resources = Resources([ResourceBinding(B, lambda _: B([]))]).child({Store: MemoryStore()})
    assert (A in resources, B in resources, Store in resources) == (False, True, True)
    with pytest.raises(ConfigurationError, match="no resource A; known resources: B, Store"):
        resources.get(A)
    with pytest.raises(ConfigurationError, match="no resource 'text'"):
        resources.get("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_two_bindings_of_one_type_are_refused() -> None:
    binding = ResourceBinding(A, lambda _: A([]))
    with pytest.raises(ConfigurationError, match="two bindings for resource A; keep one"):
        Resources([binding, binding])


def test_an_async_factory_is_refused() -> None:
    async def make(_: Resources) -> MemoryStore:
        return MemoryStore()

    binding: ResourceBinding[Any] = ResourceBinding(MemoryStore, make)
    with pytest.raises(ConfigurationError, match="the factory of resource MemoryStore is async"):
        Resources([binding]).get(MemoryStore)


def test_a_factory_that_fails_may_be_tried_again() -> None:
    attempts = iter([True, False])

    def make(_: Resources) -> MemoryStore:
        if next(attempts):
            raise OSError("not yet")
        return MemoryStore()

    resources = Resources([ResourceBinding(MemoryStore, make)])
    with pytest.raises(OSError, match="not yet"):
        resources.get(MemoryStore)
    assert resources.get(MemoryStore)


def test_a_child_puts_its_own_in_the_place_of_what_it_inherits() -> None:
    log: list[str] = []
    parent = Resources([ResourceBinding(A, lambda _: A(log, "parent"))])
    other = A(log, "child")
    child = parent.child({A: other})
    assert child.get(A) is other
    assert child.tool_call().get(A) is other
    assert parent.get(A) is not other
    child.close()
    assert log == []
    parent.close()
    assert log == ["parent"]


def test_a_child_of_a_tool_calls_resources_shares_what_the_call_has() -> None:
    resources = Resources([ResourceBinding(A, lambda _: A([]), Scope.TOOL_CALL)], {Store: MemoryStore()})
    call = resources.tool_call({B: B([])})
    assert call.child().get(B) is call.get(B)
    assert call.child().get(Store) is resources.get(Store)


def test_a_generator_that_is_a_context_manager_is_entered_and_left() -> None:
    log: list[str] = []

    @contextmanager
    def opened(_: Resources) -> Generator[MemoryStore]:
        log.append("enter")
        yield MemoryStore()
        log.append("exit")

    resources = Resources([ResourceBinding(MemoryStore, opened)])
    assert isinstance(resources.get(MemoryStore), MemoryStore)
    assert log == ["enter"]
    resources.close()
    assert log == ["enter", "exit"]


def test_a_lock_is_not_entered_and_a_stack_is_closed_as_itself() -> None:
    log: list[str] = []
    stack = ExitStack()
    stack.callback(log.append, "closed")
    resources = Resources(
        [ResourceBinding(threading.Lock, lambda _: threading.Lock()), ResourceBinding(ExitStack, lambda _: stack)]
    )
    assert not resources.get(threading.Lock).locked()
    assert resources.get(ExitStack) is stack
    resources.close()
    assert log == ["closed"]


async def test_aclose_waits_for_what_closes_asynchronously_and_takes_the_rest_too() -> None:
    log: list[str] = []
    resources = Resources(
        [
            ResourceBinding(A, lambda _: A(log, "a")),
            ResourceBinding(AsyncClosing, lambda _: AsyncClosing(log, "b")),
            ResourceBinding(MemoryStore, lambda _: MemoryStore()),
        ]
    )
    for protocol in (A, AsyncClosing, MemoryStore):
        resources.get(protocol)
    await resources.aclose()
    assert log == ["async b", "a"]


def test_close_says_what_can_only_be_closed_asynchronously() -> None:
    log: list[str] = []
    resources = Resources(
        [ResourceBinding(A, lambda _: A(log, "a")), ResourceBinding(AsyncClosing, lambda _: AsyncClosing(log, "b"))]
    )
    resources.get(A)
    resources.get(AsyncClosing)
    with pytest.raises(ExceptionGroup, match="resources could not be closed") as caught:
        resources.close()
    assert [str(error) for error in caught.value.exceptions] == [
        "resource AsyncClosing closes asynchronously: use aclose()"
    ]
    assert log == ["a"]


async def test_everything_is_closed_before_anything_is_raised() -> None:
    log: list[str] = []
    bindings: list[ResourceBinding[Any]] = [
        ResourceBinding(A, lambda _: A(log, "a")),
        ResourceBinding(Failing, lambda _: Failing()),
    ]
    for wait in (True, False):
        resources = Resources(bindings)
        resources.get(A)
        resources.get(Failing)
        with pytest.raises(ExceptionGroup) as caught:
            await (resources.aclose() if wait else asyncio.to_thread(resources.close))
        assert [str(error) for error in caught.value.exceptions] == ["will not close"]
    assert log == ["a", "a"]


def test_what_closes_with_an_awaitable_that_is_no_coroutine_is_reported_too() -> None:
    class Futures:
        def close(self) -> object:
            class Later:
                def __await__(self) -> Iterator[None]:
                    yield None

            return Later()

    resources = Resources([ResourceBinding(Futures, lambda _: Futures())])
    resources.get(Futures)
    with pytest.raises(ExceptionGroup):
        resources.close()


def test_threads_that_ask_at_once_get_the_same_resource() -> None:
    made: list[MemoryStore] = []
    barrier = threading.Barrier(8)

    def make(_: Resources) -> MemoryStore:
        made.append(MemoryStore())
        return made[-1]

    resources = Resources([ResourceBinding(MemoryStore, make)])
    got: list[MemoryStore] = []

    def ask() -> None:
        barrier.wait()
        got.append(resources.tool_call().get(MemoryStore))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert all(store is made[0] for store in got)


@given(st.permutations(range(5)))
def test_whatever_the_order_of_asking_the_last_made_is_closed_first(order: list[int]) -> None:
    log: list[str] = []
    types = [type(f"T{number}", (Closing,), {}) for number in range(5)]

    def binding(made: type[Closing]) -> ResourceBinding[Closing]:
        return ResourceBinding(made, lambda _: made(log, made.__name__))

    resources = Resources([binding(made) for made in types])
    for number in order:
        resources.get(types[number])
    resources.close()
    assert log == [f"T{number}" for number in reversed(order)]


def test_what_is_there_is_found_while_a_factory_takes_long() -> None:
    begun, finish = threading.Event(), threading.Event()

    def slow(_: Resources) -> int:
        begun.set()
        finish.wait()
        return 1

    there = Resources((ResourceBinding(int, slow),), {str: "there"})
    thread = threading.Thread(target=there.get, args=(int,))
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(there.tool_call().get(str)), daemon=True)
    thread.start()
    begun.wait()
    asking.start()
    asking.join(10)
    finish.set()
    thread.join()
    assert found == ["there"]


def test_a_run_below_another_makes_its_own() -> None:
    log: list[str] = []
    resources = Resources([ResourceBinding(A, lambda _: A(log, "made"))], {B: B(log, "given")})
    mine = resources.get(A)
    below = resources.for_run()
    assert below.get(A) is not mine
    assert below.get(B) is resources.get(B)
    below.close()
    assert log == ["made"]
    assert resources.get(A) is mine
