"""What runs in the process of an isolated tool: find the function, call it, send back what it returned.

Arguments and result are sent as typed JSON, never as pickles. A failure is sent as a reply too; only a process that
dies sends none. It ends without the interpreter's shutdown, because a thread or an exit handler could block that.
Its start is part of every call, so nothing here imports asyncio.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import signal
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, Literal

import msgspec

from watchkeeper.core import codec
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, ToolDefinitionError, ToolValidationError
from watchkeeper.core.text import error_text, storable, traceback_text
from watchkeeper.session.tagging import check, dump, load
from watchkeeper.tools.values import MOST_RESULT_LEVELS, MOST_RESULT_VALUES, NothingDoneError, ToolResult, as_result

MAIN: Final = "__main__"

MAIN_ELSEWHERE: Final = "__mp_main__"
"""Name under which a script is imported by its tools' processes: the one that multiprocessing uses."""

_importing: list[str] = []


class Reference(msgspec.Struct, frozen=True):
    """Address of a function, which is sent to the process instead of the function.

    Another process imports the module as this one did: by its name, or from its file if the name does not lead there; a
    script as multiprocessing does, without its main part.

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
    """Import the module and return the object with this name: a function, or the tool made of it.

    Raises:
        LookupError: If the module has no such name.
        Exception: Any error that the import raises.
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
        # Also under the name by which the parent, which runs the script, knows its types.
        return _from_file(MAIN_ELSEWHERE, reference.file, reference.package, MAIN)
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


MAX_RESULT_BYTES: Final = 64 * 1024 * 1024
"""How large a result may be on its way, as JSON."""


MAX_SAID_CHARS: Final = 64 * 1024
"""How much of what an exception says leaves the process."""


class Order(msgspec.Struct, frozen=True):
    """What the worker is to do.

    Attributes:
        reference: The function.
        spreads: Whether each argument is a parameter of its own.
        params: The arguments, as typed JSON.
    """

    reference: Reference
    spreads: bool
    params: Any


class Reply(msgspec.Struct, frozen=True):
    """The outcome of an order.

    Attributes:
        kind: In one word.
        said: What was wrong, for the model.
        result: The `ToolResult` as typed JSON, if the function returned.
        traceback: Where the function raised.
    """

    kind: Literal["returned", "invalid", "failed", "nothing_done"]
    said: str = ""
    result: Any = None
    traceback: str = ""


def work(order: bytes, result_fd: int) -> None:
    """Do what is asked, send the reply, end the process.

    Args:
        order: An `Order` as JSON.
        result_fd: Where the reply goes, with its length in eight bytes before it.
    """
    mine = os.fstat(result_fd)
    code = 0
    try:
        reply = answer(order)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    else:
        if is_still(result_fd, mine):
            write(result_fd, framed(reply))
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def framed(message: bytes) -> bytes:
    """Return a message with its length in eight bytes before it."""
    return len(message).to_bytes(8) + message


def is_still(descriptor: int, what: os.stat_result) -> bool:
    """Return whether a descriptor is what it was: the function may have closed it and opened a file in its place."""
    try:
        return os.path.samestat(os.fstat(descriptor), what)
    except OSError:
        return False


def write(descriptor: int, data: bytes) -> None:
    """Write everything."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def answer(order: bytes) -> bytes:
    """Return the reply to an order, as JSON; a SystemExit of the function passes through."""
    said = "its process could not import it: "
    try:
        wanted = codec.decode(order, Order)
        function, params = prepare(wanted)
        said = ""
        return returned_reply(called(function, params, wanted.spreads))
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, ToolValidationError) and not said:
            return encoded(Reply("invalid", bounded(str(error))))
        nothing_done, why = bool(said) or isinstance(error, NothingDoneError), error_text(error)
        where = traceback_text(error, why)
        return encoded(Reply("nothing_done" if nothing_done else "failed", bounded(said + why), None, where))


def bounded(text: str) -> str:
    """Return the text of an exception, cut if it is too long, and without lone surrogates."""
    if len(text) <= MAX_SAID_CHARS:
        return storable(text)
    return f"{storable(text[:MAX_SAID_CHARS])} [cut: the first {MAX_SAID_CHARS:,} of {len(text):,} characters]"


def prepare(order: Order) -> tuple[Any, Any]:
    """Find the function and read its arguments."""
    found = find(order.reference)
    function = found if inspect.isfunction(found) else getattr(found, "handler", None)
    if function is None:
        raise LookupError(f"{order.reference.qualname!r} is a {type(found).__name__} there, neither function nor tool")
    return function, load(order.params)


def called(function: Any, params: Any, spreads: bool) -> Any:
    """Call the function, on a loop of its own if it is async."""
    returned = function(**params) if spreads else function(params)
    if not inspect.isawaitable(returned):
        return returned

    import asyncio

    async def waited() -> Any:
        return await returned

    return asyncio.run(waited())


def returned_reply(returned: Any) -> bytes:
    """Return the reply that carries what the function returned, or says why it cannot be carried."""
    try:
        result = as_result(returned)
        check(result, MOST_RESULT_VALUES, MOST_RESULT_LEVELS)
        data = encoded(Reply("returned", result=dump(result)))
    except CodecError as error:
        return encoded(Reply("failed", f"what it returned cannot leave its process: {error}"))
    if len(data) > MAX_RESULT_BYTES:
        said = f"its result takes {len(data):,} bytes, and {MAX_RESULT_BYTES:,} may leave its process"
        return encoded(Reply("failed", f"{said}; write it to a file and return where it is"))
    return data


def encoded(reply: Reply) -> bytes:
    """Write a reply with the script's types under the name that they have in the parent."""
    data = codec.encode(reply)
    for key in (b'"$type":"', b'"$type":"type","value":"'):
        # A quotation mark inside a text is escaped: these bytes are always a tag.
        data = data.replace(key + MAIN_ELSEWHERE.encode() + b":", key + MAIN.encode() + b":")
    return data


IGNORED_BY_PYTHON: Final = ("SIGPIPE", "SIGXFSZ")
"""Signals that Python ignores and other programs do not expect to be ignored."""


def become(arguments: list[str], folder: str) -> ToolResult[None]:
    """Replace this process by the command, in the folder; return only if that fails, with the reason.

    This is what the process of a command calls. No shell is used: the first word names the program, the
    others are its arguments, unchanged.
    """
    try:
        os.chdir(folder)
    except OSError as error:
        return ToolResult.error(f"the folder {folder!r} cannot be entered: {error.strerror}")
    for name in IGNORED_BY_PYTHON:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        return ToolResult.error(f"{arguments[0]!r} cannot be started: {error.strerror}")
