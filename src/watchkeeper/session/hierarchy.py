"""Walking sessions that started other sessions (seed: nested-execution, "Session Hierarchy")."""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.session.session import Session


def iter_sessions_bottom_up(session: Session) -> Iterator[Session]:
    """Yield every session below ``session``, children before their parents, and at last itself."""
    for child in session.children:
        yield from iter_sessions_bottom_up(child)
    yield session.origin
