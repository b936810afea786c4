"""Names that are imported when they are first used, so that importing their package costs next to nothing.

Two uses: the public names of a package (`imported_when_used`), and roles that a lower folder needs filled from a higher
one, which it must not import itself (`provide`, `provided`). `watchkeeper/__init__.py`, which always runs first, says
who fills them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final


def imported_when_used(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562).

    Args:
        package: Its ``__name__``.
        homes: By public name, the module that it lives in.
    """

    def look_up(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return look_up


_PROVIDERS: Final[dict[str, tuple[str, str]]] = {}


def provide(role: str, module: str, name: str) -> None:
    """Say which name of which module fills a role; it is imported when somebody first asks for it."""
    _PROVIDERS[role] = (module, name)


def provided(role: str) -> Any:
    """Return what fills a role.

    Raises:
        KeyError: If nobody said who does.
    """
    module, name = _PROVIDERS[role]
    return getattr(import_module(module), name)
