"""The public names of a package or module, imported when they are first used (PEP 562).

A front (`watchkeeper`, `watchkeeper.containment`, ...) lists its names twice: as imports for type checkers, and as a
table from which the running program looks them up. ``scripts/render_fronts.py`` writes the table from the imports.
Importing a front must cost next to nothing: nothing here imports a module before one of its names is asked for.

The same way a lower folder gets what a higher one fills in, which it must not import itself (`provide`, `provided`):
`watchkeeper/__init__.py`, which always runs first, says who fills which role.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final


def public_names(
    front: str, names_by_module: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a front.

    Args:
        front: Its ``__name__``.
        names_by_module: By module, without ``watchkeeper.``, the names that it defines, separated by spaces.
    """
    modules = {name: module for module, names in names_by_module.items() for name in names.split()}
    public = sorted(modules)

    def look_up(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {front!r} has no attribute {name!r}")
        value = getattr(import_module(f"watchkeeper.{modules[name]}"), name)
        setattr(sys.modules[front], name, value)
        return value

    return look_up, public.copy, public


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
