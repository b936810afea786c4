"""Where a function lives, so that another process finds it: module, name and file.

Functions do not travel, only their addresses do. What has none (a lambda, a function inside another, a method, a
line typed into a prompt) is refused when the tool is defined. The other process imports the module as this one did:
by its name, or from its file if the name does not lead there; a script as multiprocessing does, without its main part.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from watchkeeper.core.errors import ConfigurationError, ToolDefinitionError

MAIN: Final = "__main__"

MAIN_ELSEWHERE: Final = "__mp_main__"
"""Name under which a script is imported by its tools' processes: the one that multiprocessing uses."""

_importing: list[str] = []


@dataclass(frozen=True, slots=True)
class Reference:
    """Address of a function.

    Attributes:
        module: Name of its module.
        qualname: Its name there.
        file: The module's file; empty if it has none.
        package: The module's package.
    """

    module: str
    qualname: str
    file: str = ""
    package: str = ""


def reference_to(tool_name: str, function: Any) -> Reference:
    """Return the address of a tool's function.

    Raises:
        ToolDefinitionError: If another process could not find it.
    """
    if not inspect.isfunction(function):
        raise _unreachable(tool_name, f"{function!r} is not a plain function")
    qualname = function.__qualname__
    if function.__name__ == "<lambda>":
        raise _unreachable(tool_name, "it is a lambda")
    if "<locals>" in qualname:
        raise _unreachable(tool_name, f"it is defined inside another function ({qualname})")
    names: dict[str, Any] = function.__globals__
    file = names.get("__file__") if names.get("__name__") == function.__module__ else _file_of(function.__module__)
    if not file and (function.__module__ == MAIN or function.__module__ not in sys.modules):
        raise _unreachable(tool_name, f"its module {function.__module__!r} has no file")
    package = names.get("__package__") if function.__module__ == MAIN else ""
    return Reference(function.__module__, qualname, os.path.abspath(file) if file else "", package or "")


def _file_of(module_name: str) -> str | None:
    return getattr(sys.modules.get(module_name), "__file__", None)


def _unreachable(tool_name: str, why: str) -> ToolDefinitionError:
    return ToolDefinitionError(
        f"tool {tool_name!r}: isolation='process' needs a function that another process can import, but {why}; write "
        "it with `def` at the top level of a module in a file"
    )


def refuse_while_importing() -> None:
    """Raise if this process only imports a module to find a tool in it: what runs on import would run in every call.

    Raises:
        ConfigurationError: With the way to repair it.
    """
    if _importing:
        raise ConfigurationError(
            f"a run was started while {_importing[-1]} was imported to find an isolated tool in it; put what runs at "
            "the end of that file under `if __name__ == '__main__':`"
        )


def find(reference: Reference) -> Any:
    """Import the module and return what its name stands for there: a function, or the tool made of it.

    Raises:
        LookupError: If the module has no such name.
        Exception: Whatever importing raises.
    """
    _importing.append(reference.file or reference.module)
    try:
        found: Any = _imported(reference)
    finally:
        _importing.pop()
    for name in reference.qualname.split("."):
        if not hasattr(found, name):
            raise LookupError(f"{reference.file or reference.module} has no {reference.qualname!r} when it is imported")
        found = getattr(found, name)
    return found


def _imported(reference: Reference) -> ModuleType:
    if reference.module == MAIN:
        return _imported_script(reference)
    known = sys.modules.get(reference.module)
    if known is not None and _same_file(getattr(known, "__file__", None), reference.file):
        return known
    if not reference.file or _leads_there(reference):
        return importlib.import_module(reference.module)
    return _from_file(reference.module, reference.file)


def _leads_there(reference: Reference) -> bool:
    """Return whether importing the module by its name ends at its file."""
    try:
        spec = importlib.util.find_spec(reference.module)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and _same_file(spec.origin, reference.file)


def _same_file(one: str | None, other: str) -> bool:
    return bool(one) and os.path.realpath(str(one)) == os.path.realpath(other)


def _from_file(name: str, file: str, package: str = "", alias: str | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if package:
        module.__package__, module.__spec__ = package, None
    sys.modules[name] = module
    if alias is not None:
        sys.modules[alias] = module
    spec.loader.exec_module(module)
    return module


def _imported_script(reference: Reference) -> ModuleType:
    """Import the script that the parent runs; also under the name by which the parent knows its types."""
    return _from_file(MAIN_ELSEWHERE, reference.file, reference.package, MAIN)
