"""The public names of a package or module, imported when they are first used (PEP 562).

A front (`watchkeeper`, `watchkeeper.containment`, ...) lists its names twice: as imports for type checkers, and as a
table from which the running program looks them up. ``scripts/render_fronts.py`` writes the table from the imports.
Importing a front must cost almost nothing: a module is imported only when one of its names is first used.

A lower folder must not import from a higher one. Where it needs something from there, it looks it up by a role name
(`provide`, `provided`): `watchkeeper/__init__.py`, which always runs first, registers the module and name of each role.
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
        front: The ``__name__`` of the front.
        names_by_module: Maps a module path (without ``watchkeeper.``) to its names, separated by spaces.
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
    """Register the module and the name that fill a role; the module is imported at the first `provided` call."""
    _PROVIDERS[role] = (module, name)


def provided(role: str) -> Any:
    """Return the object that fills a role.

    Raises:
        KeyError: If nothing is registered for the role.
    """
    module, name = _PROVIDERS[role]
    return getattr(import_module(module), name)
