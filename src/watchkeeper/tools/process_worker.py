"""The process in which an isolated tool's function runs: find it, call it, send back what it returned.

Arguments and result cross as typed JSON, never as pickles. Whatever goes wrong is a reply too; only a process that dies
gives none. Ends without the interpreter's farewell, because a thread or an exit handler could hold that up for ever.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from watchkeeper.core import codec
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ToolValidationError
from watchkeeper.core.tagging import dump, load
from watchkeeper.tools.process_reference import MAIN, MAIN_ELSEWHERE, Reference, find
from watchkeeper.tools.result import ToolResult

MAX_RESULT_BYTES: Final = 64 * 1024 * 1024
"""How large a result may be on its way, as JSON."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the worker is to do.

    Attributes:
        reference: The function.
        spreads: Whether each argument is a parameter of its own.
        params: The arguments, as typed JSON.
    """

    reference: Reference
    spreads: bool
    params: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of it.

    Attributes:
        kind: In one word.
        said: What was wrong, for the model.
        result: The `ToolResult` as typed JSON, if the function returned.
    """

    kind: Literal["returned", "invalid", "failed"]
    said: str = ""
    result: Any = None


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
            write(result_fd, len(reply).to_bytes(8) + reply)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


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
    try:
        wanted = codec.decode(order, Order)
        function, params = prepare(wanted)
    except SystemExit:
        raise
    except BaseException as error:
        return encoded(Reply("failed", f"its process could not import it: {type(error).__name__}: {error}"))
    try:
        returned = called(function, params, wanted.spreads)
    except SystemExit:
        raise
    except ToolValidationError as error:
        return encoded(Reply("invalid", str(error)))
    except BaseException as error:
        return encoded(Reply("failed", f"{type(error).__name__}: {error}"))
    return returned_reply(returned)


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
    result = ToolResult.ok(returned) if not isinstance(returned, ToolResult) else cast("ToolResult[object]", returned)
    try:
        data = encoded(Reply("returned", result=dump(result)))
    except CodecError as error:
        return encoded(Reply("failed", f"what it returned cannot leave its process: {error}"))
    if len(data) > MAX_RESULT_BYTES:
        return encoded(
            Reply(
                "failed",
                f"its result takes {len(data):,} bytes, and {MAX_RESULT_BYTES:,} may leave its process; write it to "
                "a file and return where it is",
            )
        )
    return data


def encoded(reply: Reply) -> bytes:
    """Write a reply with the script's types under the name that they have in the parent."""
    data = codec.encode(reply)
    for key in (b'"$type":"', b'"$type":"type","value":"'):
        # A quotation mark inside a text is escaped: these bytes are always a tag.
        data = data.replace(key + MAIN_ELSEWHERE.encode() + b":", key + MAIN.encode() + b":")
    return data
