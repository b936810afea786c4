"""What a file or another process wrote is bounded, and checked as new values are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.limits import Limits
from watchkeeper.core.codec import CodecError, convert, decode, encode
from watchkeeper.core.errors import ConfigurationError, SnapshotError
from watchkeeper.core.type_tags import tag_of
from watchkeeper.session.session import Session
from watchkeeper.session.slices import Snapshot
from watchkeeper.session.tagging import check, dump, load

NUMBERS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10), st.floats(), st.sampled_from(["5", "x", "", "1e9", "nan", "10k", []])
)
FIELDS = st.dictionaries(
    st.sampled_from(["max_cost_usd", "max_steps", "max_tool_calls", "min_output_tokens", "max_cost_nanos"]),
    NUMBERS,
    max_size=4,
)


@given(FIELDS)
def test_limits_that_are_read_are_those_that_could_be_made(fields: dict[str, Any]) -> None:
    given = {name: value for name, value in fields.items() if name != "max_cost_nanos"}  # it is computed
    try:
        made = Limits(**given)
    except ConfigurationError:
        made = None
    data = {"$type": tag_of(Limits), **{name: dump(value) for name, value in fields.items()}}
    try:
        read = load(data)
    except CodecError:
        read = None
    assert read == made


def test_a_snapshot_with_limits_that_nobody_could_make_is_refused() -> None:
    session = Session()
    session[Limits].append(Limits(max_cost_usd=5))
    text = session.snapshot().to_json()
    assert Snapshot.from_json(text).slices[Limits].latest() == Limits(max_cost_usd=5)
    with pytest.raises(SnapshotError, match="max_cost_usd"):
        Snapshot.from_json(text.replace('"value":"5"', '"value":"-5"'))


@dataclass(frozen=True)
class Positive:
    number: int
    noted: list[str] = field(default_factory=list[str], init=False, compare=False)

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ArithmeticError("not positive")
        object.__setattr__(self, "noted", ["made anew"])


@dataclass
class Seeded:
    number: int
    seed: InitVar[int]

    def __post_init__(self, seed: int) -> None:
        self.number += seed


def test_a_dataclass_is_checked_and_keeps_what_was_stored() -> None:
    value = Positive(1)
    value.noted[:] = ["stored"]
    assert load(dump(value)).noted == ["stored"]
    with pytest.raises(CodecError, match="Positive': ArithmeticError: not positive"):
        load({**dump(value), "number": 0})


def test_what_a_dataclass_was_made_from_is_not_needed() -> None:
    assert load(dump(Seeded(1, 2))) == Seeded(3, 0)


@pytest.mark.parametrize(
    "data",
    [
        {"$type": "fraction", "value": "1e10000000"},
        {"$type": "fraction", "value": "1.5"},
        {"$type": "fraction", "value": "1" * 5000},
        {"$type": "fraction", "value": "1/0"},
        {"$type": "decimal", "value": "1e6145"},
        {"$type": "decimal", "value": "0e-999999999"},
        {"$type": "decimal", "value": "1" * 4301},
        {"$type": "decimal", "value": "NaN" + "1" * 4301},
        {"$type": "timedelta", "value": [10**4000, 0, 0]},
    ],
)
def test_numbers_that_would_take_minutes_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(CodecError) as caught:
        load(data)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [Decimal("1e6145"), Decimal("1" * 4301), Fraction(10) ** 4300, Fraction(1, 10**4300)])
def test_what_could_not_be_read_back_is_not_taken(value: Any) -> None:
    for act in (check, dump):
        with pytest.raises(CodecError, match=r"^list\[0\] cannot be written: "):
            act([value])
        with pytest.raises(CodecError, match=r"^list\[2\] cannot be written: builtins.object has no typed JSON form"):
            act([Decimal(0), Fraction(0), object()])


@pytest.mark.parametrize("value", [Decimal("1e6144"), Decimal("-1e-6144"), Decimal("NaN"), Decimal("-Infinity")])
def test_what_is_within_bounds_comes_back(value: Decimal) -> None:
    assert str(load(dump(value))) == str(value)


@dataclass
class Order:
    prices: list[Decimal]
    note: str = ""


def test_decimals_in_arguments_and_answers_are_bounded() -> None:
    assert decode('{"prices": ["1.5"], "note": "1e999999"}', Order) == Order([Decimal("1.5")], "1e999999")
    for wrong in ('{"prices": ["1e999999"]}', '{"prices": ["1", "-1e-999999999"]}'):
        with pytest.raises(CodecError, match="exponents end at 6,144"):
            decode(wrong, Order)
    with pytest.raises(CodecError, match="exponents end at 6,144"):
        convert(["1e9999999"], list[Decimal])


def test_what_is_nested_too_deeply_is_an_error_of_ours() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    with pytest.raises(SnapshotError, match="this is no snapshot: maximum recursion depth"):
        Snapshot.from_json(deep)
    with pytest.raises(CodecError, match="recursion"):
        decode(deep, list)
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(CodecError):
        encode(value)
    for act in (check, dump, load):
        with pytest.raises(CodecError, match="nested too deeply"):
            act(value)


PLACES = st.integers(0, 10**6)
BREAKS = st.sampled_from(["[", "]", "{", "}", '"', "-", "9" * 50, "1e400", "null", "\\u0000", '"$type"', ":", ",", ""])


@given(st.lists(st.tuples(PLACES, st.integers(0, 5), BREAKS), min_size=1, max_size=4))
def test_a_damaged_snapshot_is_read_or_refused(changes: list[tuple[int, int, str]]) -> None:
    session = Session()
    session[Limits].append(Limits(max_cost_usd=5, deadline="5m"))
    session[Order].append(Order([Decimal("1.5")]))
    session[Positive].append(Positive(3))
    text = session.snapshot().to_json()
    for place, length, put in changes:
        start = place % len(text)
        text = text[:start] + put + text[start + length :]
    with suppress(SnapshotError):
        Snapshot.from_json(text)
