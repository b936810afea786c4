"""The worker's part of an isolated call, called here and now."""

from __future__ import annotations

import os
from datetime import date
from typing import Any

import pytest

from tests.tools import isolated_functions as functions
from watchkeeper.core import codec
from watchkeeper.session.tagging import dump, load
from watchkeeper.tools import process_worker
from watchkeeper.tools.process_worker import Order, Reply, answer, encoded, is_still, reference_to, work, write
from watchkeeper.tools.result import ToolResult
from watchkeeper.tools.tool import tool

made = tool(isolation="process")(functions.add)


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", leave)
    return codes


def order(function: Any, params: Any, *, spreads: bool = True) -> bytes:
    return codec.encode(Order(reference_to("t", function), spreads, dump(params)))


def replied(function: Any, params: Any, *, spreads: bool = True) -> Reply:
    return codec.decode(answer(order(function, params, spreads=spreads)), Reply)


def sent(request: bytes) -> bytes:
    receiving, sending = os.pipe()
    with pytest.raises(Ended):
        work(request, sending)
    os.close(sending)
    with open(receiving, "rb") as pipe:
        return pipe.read()


def test_what_the_function_returns_is_sent_with_its_length(exits: list[int]) -> None:
    data = sent(order(functions.add, {"a": 1}))
    assert int.from_bytes(data[:8]) == len(data) - 8
    assert load(codec.decode(data[8:], Reply).result) == ToolResult.ok(3)
    assert exits == [0]


@pytest.mark.parametrize(
    ("params", "code"), [({"code": 300}, 44), ({"code": 1, "nothing": True}, 0), ({"code": 9, "text": True}, 1)]
)
def test_an_exit_of_the_function_is_the_exit_of_the_process(exits: list[int], params: Any, code: int) -> None:
    assert sent(order(functions.exit_with, params)) == b""
    assert exits == [code]


def test_an_exit_during_the_import_is_one_too(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(reference: object) -> None:
        raise SystemExit(5)

    monkeypatch.setattr(process_worker, "find", leave)
    assert sent(order(functions.add, {"a": 1})) == b""
    assert exits == [5]


def test_nothing_is_written_where_the_pipe_was_closed(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(descriptor: int, what: os.stat_result) -> bool:
        return False

    monkeypatch.setattr(process_worker, "is_still", never)
    assert sent(order(functions.add, {"a": 1})) == b""
    assert exits == [0]


def test_a_descriptor_is_known_again() -> None:
    one, two = os.pipe()
    other = os.open(os.devnull, os.O_RDONLY)
    assert is_still(one, os.fstat(one))
    assert not is_still(one, os.fstat(other))
    what = os.fstat(one)
    for descriptor in (one, two, other):
        os.close(descriptor)
    assert not is_still(one, what)


def test_everything_is_written() -> None:
    one, two = os.pipe()
    write(two, b"all of it")
    os.close(two)
    assert os.read(one, 100) == b"all of it"
    os.close(one)


def test_a_tool_is_called_by_its_function() -> None:
    assert load(replied(functions.file_order, functions.Order(1, date(2026, 1, 1)), spreads=False).result).success
    assert load(replied(functions.add_later, {"a": 1, "b": 1}).result).value == 2
    reference = reference_to("t", functions.add)
    named = codec.encode(
        {"reference": {**codec.to_builtins(reference), "module": __name__, "qualname": "made", "file": __file__}}
        | {"spreads": True, "params": {"a": 4}}
    )
    assert load(codec.decode(answer(named), Reply).result).value == 6


def test_what_goes_wrong_is_a_reply() -> None:
    assert replied(functions.fail, {"text": "no"}) == Reply("failed", "ValueError: no")
    assert replied(functions.refuse, {"text": "no"}) == Reply("invalid", "no")
    assert "cannot leave its process" in replied(functions.unserialisable, {}).said
    assert codec.decode(answer(b"{"), Reply).said.startswith("its process could not import it: CodecError")
    assert (
        "is a type there, neither function nor tool"
        in codec.decode(
            answer(codec.encode(Order(reference_to("t", functions.add), True, {})).replace(b'"add"', b'"Order"')), Reply
        ).said
    )


def test_a_result_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_worker, "MAX_RESULT_BYTES", 1000)
    assert replied(functions.large, {"size": 500}).kind == "returned"
    assert "and 1,000 may leave its process" in replied(functions.large, {"size": 1000}).said


def test_the_types_of_a_script_get_the_name_that_the_parent_knows() -> None:
    written = [{"$type": "__mp_main__:A"}, {"$type": "type", "value": "__mp_main__:A"}, '"$type":"__mp_main__:A', 1]
    assert codec.decode(encoded(Reply("returned", result=written)), Reply).result == [
        {"$type": "__main__:A"},
        {"$type": "type", "value": "__main__:A"},
        '"$type":"__mp_main__:A',
        1,
    ]
