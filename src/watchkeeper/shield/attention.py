"""Who is told that a person is being asked something, so that nothing else is shown in between.

A hook asks a person on the terminal, or by a function of the user's own. Whatever draws on the same terminal is told
before the question is shown and after it is over, on the thread that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

Listener = Callable[[bool], None]
"""Is called with True before a question is shown, and with False when it is over; must not raise or wait for long."""


class Attention:
    """The questions of this process, and who is told of them."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._listeners: tuple[Listener, ...] = ()

    def tell(self, listener: Listener) -> Callable[[], None]:
        """Tell a listener from now on; return a function that ends it."""
        self._listeners = (*self._listeners, listener)

        def end() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return end

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the attention of a person while the block runs."""
        told = self._listeners
        for listener in told:
            listener(True)
        try:
            yield
        finally:
            for listener in told:
                listener(False)


ATTENTION: Final = Attention()
"""That of this process."""
