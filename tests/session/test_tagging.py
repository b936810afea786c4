"""Typed JSON: what is written comes back equal and of the same types; what cannot be written is refused by name."""

from __future__ import annotations

import collections
import enum
import functools
import json
import threading
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.codec import CodecError, OversizedValueError, encode
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.type_tags import register
from watchkeeper.core.usage import TokenUsage
from watchkeeper.runtime.events import ModelReplied
from watchkeeper.session.tagging import MARK, MOST_LEVELS, Form, check, dump, load, register_form
from watchkeeper.tools.context import ToolInvoked

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1


class Mood(enum.StrEnum):
    CALM = "calm"


class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Point(NamedTuple):
    x: int
    y: Any


class Nothing(NamedTuple):
    pass


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    parts: tuple[Any, ...] = ()


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)
    name: str
    inner: Any = None
    alias: int = pydantic.Field(default=1, alias="Alias")
    _secret: int = pydantic.PrivateAttr(default=3)

    def hide(self, secret: int) -> None:
        self._secret = secret

    def hidden(self) -> int:
        return self._secret


class Roots(pydantic.RootModel[list[int]]):
    pass


class Generics(pydantic.BaseModel, Generic[T]):
    item: T


class Computing(pydantic.BaseModel):
    number: int

    @functools.cached_property
    def cached(self) -> object:
        return object()


@pydantic.dataclasses.dataclass
class Validated:
    number: int


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True)
class Leaf:
    text: str
    role: str = field(default="leaf", init=False)
    count: ClassVar[int] = 0


@dataclass(frozen=True)
class Box(Generic[T]):
    value: T


@dataclass(slots=True)
class Node:
    left: Any
    right: Any = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Checked:
    """A value whose constructor would refuse or change what is put back."""

    at: datetime
    seed: InitVar[int] = 0
    doubled: int = field(init=False, default=0)

    def __post_init__(self, seed: int) -> None:
        if self.at.tzinfo is None:
            raise ValueError("needs a time zone")
        object.__setattr__(self, "doubled", seed * 2)


class Pair(tuple[int, int]):
    pass


def again(value: Any) -> Any:
    """Write a value as JSON text, and read it back with two readers that must agree."""
    text = encode(dump(value))
    assert json.dumps(json.loads(text), sort_keys=True) == json.dumps(msgspec.json.decode(text), sort_keys=True)
    return load(msgspec.json.decode(text))


def kind_of(value: object) -> type[Any]:
    return type(value)


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    kind = kind_of(one)
    if issubclass(kind, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(alike, one, other))
    if issubclass(kind, (dict, MappingProxyType)):
        return list(map(repr, one)) == list(map(repr, other)) and all(map(alike, one.values(), other.values()))
    if hasattr(one, "__dataclass_fields__"):
        return all(alike(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return bool(one == other)


zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kathmandu"]).map(ZoneInfo),
)
texts = st.text(st.characters(exclude_categories=()), max_size=8)
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=8),
    st.dates(),
    st.datetimes(timezones=zones),
    st.times(timezones=st.none() | st.just(UTC)),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([*Colour, *Level, *Mood, Right.READ | Right.WRITE, Right(0)]),
    st.sampled_from([int, Colour, Leaf, Model]),
    st.sampled_from([Path("a/b"), PurePosixPath("/x"), PureWindowsPath("c:\\x")]),
    st.builds(Leaf, texts),
    st.just(Empty()),
)


def containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(values, max_size=3)
    tables = st.dictionaries(st.one_of(texts, st.just(MARK), hashables), values, max_size=3)
    return st.one_of(
        few,
        few.map(tuple),
        few.map(collections.deque),
        tables,
        st.dictionaries(st.sampled_from(["a", "b", "ü"]), values),
        tables.map(MappingProxyType),
        tables.map(collections.OrderedDict),
        tables.map(lambda table: collections.defaultdict(list, table)),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        st.builds(Box, values),
        st.builds(Node, values, values, tables),
        st.builds(Point, st.integers(), values),
        st.builds(Struct, name=texts, parts=few.map(tuple)),
        st.builds(Model, name=st.text(max_size=3), inner=values),
    )


values = st.recursive(hashables, containers, max_leaves=12)


@pytest.mark.spec("FR-009")
@given(values)
def test_any_value_comes_back_as_what_it_was(value: Any) -> None:
    check(value)
    assert alike(again(value), value)


@given(values)
def test_writing_is_deterministic(value: Any) -> None:
    assert encode(dump(value)) == encode(dump(again(value)))


ODD: list[Any] = [
    "\ud800 lone",
    {"\udfff": 1},
    {"$type": "dict"},
    {"$type": None},
    {"$other": 1},
    {1: "a", "1": "b"},
    10**60,
    -0.0,
    5e-324,
    bytearray(b"xyz"),
    collections.Counter("abba"),
    collections.deque([1, 2], maxlen=2),
    collections.defaultdict(None, {1: 2}),
    collections.defaultdict(Nothing),
    time(1, 2, 3, fold=1),
    time(1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=-3601, microseconds=5))),
    time(1, 2, tzinfo=timezone(timedelta(microseconds=-1))),
    date(2026, 11, 21),
    Nothing(),
    Decimal("1.10"),
    Fraction(1, 3),
    UUID(int=1),
    Box(Box(None)),
    type,
    list,
]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_odd_values_come_back_too(value: Any) -> None:
    check(value)
    back = again(value)
    assert alike(back, value)
    if isinstance(value, collections.deque):
        assert back.maxlen == value.maxlen
    if isinstance(value, collections.defaultdict):
        assert back.default_factory is value.default_factory


def test_values_that_are_not_numbers_come_back() -> None:
    assert str(again(float("nan"))) == "nan"
    assert again([float("inf"), float("-inf")]) == [float("inf"), float("-inf")]
    assert again(Decimal("NaN")).is_nan()


def test_a_time_zone_keeps_its_name_and_a_repeated_hour_its_fold() -> None:
    second = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    back = again(second)
    assert (back.tzinfo, back.fold, back.utcoffset()) == (second.tzinfo, 1, timedelta(hours=1))
    naive = second.replace(tzinfo=None)
    assert again(naive).fold == 1
    assert again(time(2, 30, tzinfo=ZoneInfo("Europe/Berlin"))).tzinfo is ZoneInfo("Europe/Berlin")


def test_values_are_put_back_without_running_their_constructor() -> None:
    value = Checked(datetime(2026, 1, 1, tzinfo=UTC), seed=21)
    assert value.doubled == 42
    assert again(value) == value


def test_a_pydantic_model_keeps_extra_private_and_set_fields() -> None:
    value = Model.model_validate({"name": "n", "Alias": 4, "more": Colour.RED})
    value.hide(9)
    back = again(value)
    assert back == value
    assert back.model_fields_set == {"name", "alias", "more"}
    assert (back.more, back.hidden(), back.alias) == (Colour.RED, 9, 4)


def test_other_kinds_of_models_come_back_too() -> None:
    computing = Computing(number=1)
    assert computing.cached
    for value in (Roots([1, 2]), Generics[int](item=3), computing, Computing.model_construct(), Validated(4)):
        check(value)
        assert again(value) == value


def test_plain_json_stands_for_itself() -> None:
    value = {"a": [1, 2.5, "x", None, True]}
    assert dump(value) == value


def test_a_dataclass_is_its_tag_and_its_fields() -> None:
    assert dump(Leaf("x")) == {MARK: f"{__name__}:Leaf", "text": "x", "role": "leaf"}


def test_a_tag_that_is_registered_after_the_first_use_is_used_from_then_on() -> None:
    @dataclass(frozen=True)
    class Late:
        n: int

    before = dump(Late(1))
    register(Late, "tagging_late")
    assert dump(Late(1)) == {MARK: "tagging_late", "n": 1}
    assert load(before) == Late(1)


# --- what is refused --------------------------------------------------------------------------------------------------


class Foreign:
    pass


class PrivateLock(pydantic.BaseModel):
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)


@dataclass
class Text(str):
    """A subclass of a plain type is more than its fields."""

    more: int = 0


REFUSED: list[tuple[Any, str]] = [
    (threading.Lock(), r"lock cannot be written: _thread\.lock has no typed JSON form"),
    ({"a": [1, (Foreign(),)]}, r"dict\['a'\]\[1\]\[0\] cannot be written: .*test_tagging\.Foreign"),
    (Node(1, Box(Foreign())), r"Node\.right\.value cannot be written: .*Foreign"),
    (Point(1, Foreign()), r"Point\.y cannot be written"),
    (Struct(name="n", parts=(1, Foreign())), r"Struct\.parts\[1\] cannot be written"),
    (Model(name="n", inner=Foreign()), r"Model\.inner cannot be written"),
    (PrivateLock(), r"PrivateLock\.\$__pydantic_private__\['_lock'\] cannot be written"),
    ({Foreign(): 1}, r"dict \(key <.*Foreign.*>\) cannot be written"),
    ({Foreign()}, r"set\[\.\.\.\] cannot be written"),
    (collections.defaultdict(lambda: 1), r"defaultdict\.default_factory cannot be written: builtins\.function"),
    (Text(1), "Text cannot be written"),
    (Pair((1, 2)), "Pair cannot be written"),
    (print, "builtin_function_or_method cannot be written"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[type(value).__name__ for value, _ in REFUSED])
def test_what_is_more_than_its_fields_is_refused_by_name_and_place(value: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        dump(value)
    with pytest.raises(CodecError, match=message):
        check(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    for refuse in (dump, check):
        with pytest.raises(CodecError, match="contains itself"):
            refuse(value)


WRAPS: list[Callable[[Any], Any]] = [
    lambda inner: [inner],
    lambda inner: {1: inner},
    lambda inner: {"a": inner},
    lambda inner: (inner,),
]


@pytest.mark.parametrize("wrap", WRAPS, ids=["list", "dict", "object", "tuple"])
def test_what_is_nested_as_deeply_as_allowed_can_be_written_and_read(wrap: Callable[[Any], Any]) -> None:
    value: Any = 1
    for _ in range(MOST_LEVELS + 1):
        value = wrap(value)
    check(value)
    assert load(dump(value)) == value
    with pytest.raises(CodecError, match="nested too deeply"):
        check(wrap(value))


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    data: list[Any] = []
    for _ in range(100_000):
        data = [data]
    with pytest.raises(CodecError, match="nested too deeply"):
        load(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({MARK: "nobody_knows"}, "unknown type tag 'nobody_knows'"),
        ({MARK: 5}, r"\$type must be the tag of a type, got 5"),
        ({MARK: "uuid", "value": "no"}, "this is not a valid 'uuid': ValueError"),
        ({MARK: "uuid"}, "this is not a valid 'uuid': KeyError"),
        ({MARK: "decimal", "value": "x"}, "this is not a valid 'decimal'"),
        ({MARK: "datetime", "value": "2026-01-01", "zone": "No/Where"}, "this is not a valid 'datetime'"),
        ({MARK: "tuple", "items": 5}, "this is not a valid 'tuple'"),
        ({MARK: f"{__name__}:Foreign"}, "means a type that has no typed JSON form"),
        ({MARK: f"{__name__}:Leaf", "text": "x", "new": 1}, "has no field 'new'; it was written by another version"),
        ({MARK: f"{__name__}:Leaf", "role": "x"}, "needs the field 'text'"),
        ({MARK: f"{__name__}:Colour", "name": "BLUE"}, "this is not a valid .*Colour"),
        ({MARK: f"{__name__}:Point", "x": 1}, "this is not a valid .*Point.*KeyError"),
        ({MARK: f"{__name__}:Struct"}, "this is not a valid .*Struct.*name"),
        ({MARK: "builtins:eval"}, "has no such class"),
    ],
)
def test_data_that_does_not_fit_its_tag_is_refused(data: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        load(data)


def test_fields_that_older_data_does_not_have_take_their_defaults() -> None:
    assert load({MARK: f"{__name__}:Node", "left": 1}) == Node(1)
    assert load({MARK: f"{__name__}:Struct", "name": "n"}) == Struct(name="n")


def test_a_type_may_bring_its_own_form() -> None:
    class Celsius:
        def __init__(self, degrees: float) -> None:
            self.degrees = degrees

    form = Form(lambda value: {MARK: "celsius", "c": value.degrees}, lambda data: Celsius(data["c"]))
    register_form(Celsius, "celsius", form)
    check([Celsius(1.5)])
    assert again([Celsius(1.5)])[0].degrees == 1.5


def test_many_threads_may_meet_a_new_type_at_once() -> None:
    kinds: list[Any] = [
        dataclass(frozen=True)(type(f"Kind{n}", (), {"__annotations__": {"n": int}})) for n in range(200)
    ]
    start = threading.Barrier(8)
    wrong: list[Any] = []

    def work() -> None:
        start.wait()
        wrong.extend(kind for kind in kinds if dump(kind(1))["n"] != 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Lock:
    """No value of it can be written."""


@pytest.mark.parametrize("field", ["params", "result"])
def test_what_a_tool_was_given_and_returned_is_looked_at_in_the_record_of_its_call(field: str) -> None:
    held: dict[str, Any] = {"params": {}, "result": None, field: [Lock()]}
    with pytest.raises(CodecError, match=rf"ToolInvoked\.{field}\[0\] cannot be written"):
        check(invoked(**held))


@pytest.mark.parametrize("field", ["params", "result"])
def test_the_size_of_a_tools_arguments_and_result_counts_in_the_record_of_its_call(field: str) -> None:
    check(invoked(**{"params": {}, "result": None, field: list(range(50))}), most=52)
    with pytest.raises(OversizedValueError):
        check(invoked(**{"params": {}, "result": None, field: list(range(53))}), most=52)


@pytest.mark.parametrize("field", ["text", "provider_data"])
def test_what_a_model_said_is_looked_at_in_the_record_of_its_reply(field: str) -> None:
    parts: dict[str, Any] = {"text": "", field: Lock()}
    said = msgspec.structs.replace(REPLIED, message=AssistantMessage(**parts))
    with pytest.raises(CodecError, match=rf"ModelReplied\.message\.{field} cannot be written"):
        check(said)
    assert load(dump(REPLIED)) == REPLIED


REPLIED = ModelReplied(
    1,
    AssistantMessage("Hi."),
    "stop",
    TokenUsage(5, 1),
    0,
    "any",
    "n",
    0.5,
    landing=False,
    created_at=datetime.now(UTC),
)


def invoked(params: Any, result: Any) -> ToolInvoked:
    """Return the record of a tool call."""
    now, some = datetime.now(UTC), UUID(int=1)
    return ToolInvoked("ns/key", "any", "look", params, result, some, now, TokenUsage(5, 1), "", "c1", some)


@pytest.mark.parametrize("number", [2**300, -(2**300)])
def test_long_numbers_count_as_several_values_of_either_sign(number: int) -> None:
    check([number], most=2)
    with pytest.raises(OversizedValueError):
        check([number], most=1)
    check([-1, 2**256 - 1, 1 - 2**256], most=3)
