"""Functions that become tools."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

import msgspec
import pydantic
import pytest

from watchkeeper.core.errors import ToolDefinitionError
from watchkeeper.core.ids import root_run_context
from watchkeeper.session.session import Session
from watchkeeper.tools.context import CallInfo, ToolContext, ToolScope
from watchkeeper.tools.tool import Tool, tool
from watchkeeper.tools.values import ToolResult


@pytest.fixture
def context() -> ToolContext:
    session = Session()
    return ToolContext(CallInfo("call-1", "any"), ToolScope(session, root_run_context(session.session_id)))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Part:
    """A part.

    Attributes:
        sku: Stock number.
    """

    sku: str
    count: int = 1


@dataclass
class Order:
    """An order.

    Attributes:
        parts: What is wanted.
        colour: Of all parts.
    """

    parts: list[Part]
    colour: Colour = Colour.RED
    speed: Literal["slow", "fast"] = "slow"
    note: str | None = None
    tags: list[str] = field(default_factory=list[str])


class OrderModel(pydantic.BaseModel):
    """An order."""

    part: str = pydantic.Field(description="What is wanted.")
    count: int = 1


class OrderStruct(msgspec.Struct):
    part: str


class OrderDict(TypedDict):
    zebra: str
    apple: int


@tool
def place(params: Order, *, context: ToolContext) -> ToolResult[int]:
    """Place an order.

    Do this once.

    Args:
        params: Not shown to a model.

    Returns:
        The order's number.
    """
    return ToolResult.ok(len(params.parts), f"placed by {context.call_id}")


@tool(parallel_safe=True, read_only=True, retries=2, timeout="1m30s")
async def look_up(
    name: str,
    limit: Annotated[int, msgspec.Meta(ge=1, description="How many.")] = 5,
    colour: Colour = Colour.BLUE,
    parts: list[Part] | None = None,
) -> list[str]:
    """Look something up.

    Args:
        name: What to look for,
            in words.
        limit: Not shown, the type says it already.
        colour: Of the thing.
    """
    await asyncio.sleep(0)
    return [name] * limit


@pytest.mark.spec("FR-018")
def test_a_dataclass_parameter_is_the_arguments() -> None:
    assert (place.name, place.description) == ("place", "Place an order.\n\nDo this once.")
    assert (place.params_type, place.takes_context, place.spreads, place.is_async) == (Order, True, False, False)
    assert place.spec.parameters == {
        "description": "An order.",
        "type": "object",
        "properties": {
            "parts": {"description": "What is wanted.", "type": "array", "items": {"$ref": "#/$defs/Part"}},
            "colour": {"description": "Of all parts.", "$ref": "#/$defs/Colour", "default": "red"},
            "speed": {"enum": ["fast", "slow"], "type": "string", "default": "slow"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["parts"],
        "additionalProperties": False,
        "$defs": {
            "Part": {
                "description": "A part.",
                "type": "object",
                "properties": {
                    "sku": {"description": "Stock number.", "type": "string"},
                    "count": {"type": "integer", "default": 1},
                },
                "required": ["sku"],
                "additionalProperties": False,
            },
            "Colour": {"enum": ["blue", "red"], "type": "string"},
        },
    }


@pytest.mark.spec("FR-018")
def test_plain_parameters_are_arguments_one_by_one_in_their_order() -> None:
    assert (look_up.spreads, look_up.is_async, look_up.takes_context) == (True, True, False)
    properties = look_up.spec.parameters["properties"]
    assert list(properties) == ["name", "limit", "colour", "parts"]
    assert look_up.spec.parameters["required"] == ["name"]
    assert properties["name"] == {"description": "What to look for, in words.", "type": "string"}
    assert properties["limit"] == {"description": "How many.", "type": "integer", "minimum": 1, "default": 5}
    assert properties["colour"] == {"description": "Of the thing.", "$ref": "#/$defs/Colour", "default": "blue"}
    assert properties["parts"] == {
        "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Part"}}, {"type": "null"}],
        "default": None,
    }


def test_what_is_declared_about_running_is_kept() -> None:
    assert (look_up.timeout, look_up.retries, look_up.parallel_safe) == (90.0, 2, True)
    assert (place.timeout, place.retries, place.parallel_safe) == (None, 0, False)


def test_the_spec_is_made_once() -> None:
    assert place.spec is place.spec
    assert place.spec.name == "place"


def test_a_tool_is_called_with_what_it_decoded(context: ToolContext) -> None:
    params = place.decode('{"parts": [{"sku": "a"}, {"sku": "b"}], "colour": "blue"}')
    assert params == Order([Part("a"), Part("b")], Colour.BLUE)
    assert place.call(params, context) == ToolResult(True, 2, "placed by call-1")


async def test_a_plain_return_value_is_a_success(context: ToolContext) -> None:
    params = look_up.decode('{"name": "x", "limit": 2}')
    assert params == {"name": "x", "limit": 2}
    called = look_up.call(params, context)
    assert inspect.isawaitable(called)
    assert await called == ToolResult.ok(["x", "x"])


def test_a_tool_can_be_called_like_the_function_it_is(context: ToolContext) -> None:
    assert place(Order([]), context=context) == ToolResult.ok(0, "placed by call-1")


def test_what_the_function_raises_passes_through(context: ToolContext) -> None:
    @tool
    def broken() -> None:
        """Break."""
        raise KeyError("x")

    with pytest.raises(KeyError):
        broken.call({}, context)


def test_a_plain_function_may_take_the_context_too(context: ToolContext) -> None:
    @tool
    def whoami(greeting: str, *, context: ToolContext) -> str:
        """Say who calls."""
        return f"{greeting} {context.call_id}"

    assert "context" not in whoami.spec.parameters["properties"]
    assert whoami.call(whoami.decode('{"greeting": "hi"}'), context) == ToolResult.ok("hi call-1")


def test_the_context_may_be_optional(context: ToolContext) -> None:
    @tool
    def whoami(context: ToolContext | None = None) -> str:
        """Say who calls."""
        return context.call_id if context else "nobody"

    assert whoami.call({}, context) == ToolResult.ok("call-1")


def test_a_parameter_called_context_that_is_something_else_is_an_argument() -> None:
    @tool
    def summarise(context: str, length: int) -> str:
        """Summarise a text."""
        return context[:length]

    assert not summarise.takes_context
    assert list(summarise.spec.parameters["properties"]) == ["context", "length"]


def test_a_function_without_arguments_takes_none() -> None:
    @tool
    def tick() -> int:
        """Tick."""
        return 1

    assert tick.spec.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert tick.decode("") == {}


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (OrderModel, '{"part": "a"}'),
        (OrderStruct, '{"part": "a"}'),
        (OrderDict, '{"zebra": "a", "apple": 1}'),
    ],
)
def test_models_structs_and_typed_dicts_are_params_too(type_: Any, text: str, context: ToolContext) -> None:
    def take(params: Any) -> Any:
        """Take one."""
        return params

    take.__annotations__["params"] = type_
    made = tool(take)
    assert (made.params_type, made.spreads) == (type_, False)
    assert made.spec.parameters["additionalProperties"] is False
    assert made.call(made.decode(text), context) == ToolResult.ok(made.decode(text))


def test_a_typed_dict_keeps_the_order_it_was_written_in() -> None:
    @tool
    def take(params: OrderDict) -> None:
        """Take one."""

    assert list(take.spec.parameters["properties"]) == ["zebra", "apple"]
    assert take.spec.parameters["required"] == ["zebra", "apple"]


@pytest.mark.spec("FR-018")
def test_a_pydantic_parameter_keeps_its_descriptions() -> None:
    @tool
    def take(params: OrderModel) -> str:
        """Take one."""
        return params.part

    assert take.spec.parameters["properties"]["part"] == {"description": "What is wanted.", "type": "string"}


def test_types_of_the_surrounding_function_are_found() -> None:
    @dataclass
    class Local:
        a: int

    @tool
    def take(params: Local) -> int:
        """Take one."""
        return params.a

    @tool(name="other")
    def take_many(first: Local, second: Local) -> int:
        """Take two."""
        return first.a + second.a

    assert take.decode('{"a": 1}') == Local(1)
    assert take_many.decode('{"first": {"a": 1}, "second": {"a": 2}}') == {"first": Local(1), "second": Local(2)}


def test_bound_methods_partials_wrapped_functions_and_callable_objects_become_tools(context: ToolContext) -> None:
    class Shop:
        def sell(self, name: str) -> str:
            """Sell one."""
            return f"sold {name}"

        def __call__(self, name: str) -> str:
            """Ask the shop."""
            return f"asked {name}"

    def send(name: str, secret: str) -> str:
        """Send one."""
        return f"{name} {secret}"

    @functools.wraps(send)
    def wrapped(*args: Any, **kwargs: Any) -> str:
        return send(*args, **kwargs).upper()

    shop = Shop()
    partial = tool(functools.partial(send, secret="s3"))
    assert tool(shop.sell).call({"name": "a"}, context) == ToolResult.ok("sold a")
    assert list(partial.spec.parameters["properties"]) == ["name"], "what is bound is not for a model to see"
    assert partial.call({"name": "a"}, context) == ToolResult.ok("a s3")
    assert tool(wrapped).call({"name": "a", "secret": "b"}, context) == ToolResult.ok("A B")
    assert tool(name="ask", description="Ask.")(shop).call({"name": "a"}, context) == ToolResult.ok("asked a")


@pytest.mark.spec("FR-027")
async def test_async_callables_of_every_kind_are_seen_as_async(context: ToolContext) -> None:
    class Shop:
        async def __call__(self, name: str) -> str:
            """Ask the shop."""
            return f"asked {name}"

    async def send(name: str) -> str:
        """Send one."""
        return f"sent {name}"

    @functools.wraps(send)
    def returns_the_coroutine(name: str) -> Any:
        return send(name)

    @functools.wraps(send)
    def returns_the_value(name: str) -> Any:
        return f"sent {name}"

    for made in (
        tool(name="ask")(Shop()),
        tool(functools.partial(send)),
        tool(returns_the_coroutine),
        tool(returns_the_value),
    ):
        assert made.is_async
        result = await cast("Any", made.call({"name": "a"}, context))
        assert result.success
        assert result.value.endswith(" a")


async def test_a_sync_function_that_returns_an_awaitable_is_awaited(context: ToolContext) -> None:
    async def later() -> int:
        return 3

    @tool
    def deferred() -> Any:
        """Return later."""
        return later()

    assert not deferred.is_async
    assert await cast("Any", deferred.call({}, context)) == ToolResult.ok(3)


def test_name_and_description_can_be_given() -> None:
    @tool(name="look-up_2", description="  Find it.  ")
    def _(name: str) -> str:
        return name

    assert (_.name, _.spec.description) == ("look-up_2", "Find it.")


def test_two_tools_of_one_function_are_equal_and_hashable() -> None:
    def same(name: str) -> str:
        """Same."""
        return name

    one = Tool("same", "Same.", Order, same)
    assert one == Tool("same", "Same.", Order, same)
    assert hash(one) == hash(Tool("same", "Same.", Order, same))
    assert one != Tool("same", "Other.", Order, same)


def test_a_tool_can_be_made_without_a_signature() -> None:
    made = Tool("raw", "Raw.", dict[str, Any], echo, schema={"type": "object"})
    assert made.spec.parameters == {"type": "object"}
    assert made.decode('{"any": {"thing": 1}}') == {"any": {"thing": 1}}


def echo(params: Any) -> Any:
    """Return what was given."""
    return params


def untyped(name):  # type: ignore[no-untyped-def]  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    """Do it."""


def undocumented(name: str) -> None: ...


def positional(name: str, /, size: int) -> None:
    """Do it."""


def variadic(*names: str) -> None:
    """Do it."""


def untyped_keywords(**kw: Any) -> None:
    """Do it."""


untyped_keywords.__annotations__.clear()


def keywords(**names: str) -> None:
    """Do it."""


def unresolved(name: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]
    """Do it."""


def opaque(name: complex) -> None:
    """Do it."""


def at_path(where: Path) -> None:
    """Do it."""


@dataclass(frozen=True)
class Square:
    side: int


@dataclass(frozen=True)
class Circle:
    radius: int


def member(colour: Literal["green", Colour.RED]) -> None:
    """Do it."""


def fraction(share: Literal[0.5, 1]) -> None:  # type: ignore[valid-type]
    """Do it."""


def shape(what: Square | Circle) -> None:
    """Do it."""


def other_context(where: ToolContext) -> None:
    """Do it."""


def numbers() -> Iterator[int]:
    """Do it."""
    yield 1


async def async_numbers() -> AsyncIterator[int]:
    """Do it."""
    yield 1


def only_sections(name: str) -> None:
    """
    Args:
        name: A name.
    """


class Shop:
    def sell(self, name: str) -> None:
        """Sell."""


class Counter:
    def __call__(self) -> None:
        """Call."""


HOPELESS: list[tuple[Any, str]] = [
    (untyped, r"tool 'untyped': parameter 'name' has no type; write for example `name: str`"),
    (undocumented, r"tool 'undocumented' has no description; write a docstring"),
    (only_sections, r"tool 'only_sections' has no description"),
    (positional, r"tool 'positional': name: 'str' is followed by '/', so a call cannot pass it by name"),
    (variadic, r"tool 'variadic': a tool cannot take \*names, .* write each argument out as a parameter of its own"),
    (untyped_keywords, r"tool 'untyped_keywords': a tool cannot take \*\*kw"),
    (keywords, r"tool 'keywords': a tool cannot take \*\*names, because a model fills"),
    (unresolved, r"the type 'Missing' of parameter 'name' cannot be read .*import it at run time"),
    (opaque, r"the arguments of tool 'opaque' cannot be described: .*complex"),
    (at_path, r"tool 'at_path' cannot be described: .* take a str, and make a Path of it"),
    (
        member,
        r"'member' cannot be described: .* in the place of an enum's member write its value, as in Literal\['a'",
    ),
    (fraction, r"tool 'fraction' cannot be described: .* for fractions and bytes take a float or a str"),
    (shape, r"tool 'shape' cannot be described: .* give each a tag .* or write one dataclass with optional fields"),
    (other_context, r"call the parameter 'where' `context`"),
    (numbers, r"tool 'numbers' is a generator"),
    (async_numbers, r"tool 'async_numbers' is a generator"),
    (lambda: None, r"'<lambda>' cannot be a tool's name: use 1 to 64 letters"),
    (Shop.sell, r"parameter 'self' has no type; make the tool of the bound method: tool\(instance.sell\)"),
    (Counter(), r"'' cannot be a tool's name"),
    (3, r"a tool is made of a function, not of 3"),
]


@pytest.mark.spec("FR-105")
@pytest.mark.parametrize(("function", "message"), HOPELESS)
def test_what_cannot_be_offered_to_a_model_is_refused_with_the_repair(function: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message):
        tool(function)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "two words"}, "'two words' cannot be a tool's name"),
        ({"name": ""}, "'' cannot be a tool's name"),
        ({"name": "x" * 65}, "cannot be a tool's name"),
        ({"description": "  "}, "has no description"),
        ({"timeout": "soon"}, "tool 'fine': timeout='soon' is not a duration"),
        ({"timeout": 0}, "timeout=0 must be more than 0"),
        ({"timeout": timedelta(seconds=-1)}, "must be more than 0"),
        ({"timeout": object()}, "tool 'fine': "),
        ({"retries": -1}, "retries=-1 must be 0 or a positive whole number"),
        ({"retries": True}, "retries=True must be"),
        ({"retries": 1.5}, "retries=1.5 must be"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    def fine(name: str) -> None:
        """Do it."""

    with pytest.raises(ToolDefinitionError, match=message):
        tool(**options)(fine)


def test_params_that_are_no_object_are_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="is not an object; use a dataclass"):
        Tool("raw", "Raw.", list[int], echo)


def test_a_default_without_a_json_form_works_and_is_not_shown(context: ToolContext) -> None:
    @tool
    def take(name: Any = Shop, size: int = 3) -> bool:
        """Take one."""
        return name is Shop

    assert take.spec.parameters["properties"] == {"name": {}, "size": {"type": "integer", "default": 3}}
    assert take.call(take.decode("{}"), context) == ToolResult.ok(True)


@pytest.mark.spec("FR-147")
def test_a_default_that_a_call_changes_is_whole_again_for_the_next(context: ToolContext) -> None:
    @tool
    def collect(name: str, seen: list[list[str]] = [[]], sizes: dict[str, int] = {}) -> tuple[int, int]:  # noqa: B006
        """Collect names."""
        seen[0].append(name)
        sizes[name] = len(name)
        return len(seen[0]), len(sizes)

    for name in ("a", "b", "c"):
        params = collect.decode(f'{{"name": "{name}"}}')
        assert collect.call(params, context) == ToolResult.ok((1, 1))
    given = collect.decode('{"name": "a", "seen": [["x", "y"]]}')
    assert collect.call(given, context) == ToolResult.ok((3, 1))
    assert collect.spec.parameters["properties"]["seen"]["default"] == [[]]


def test_a_default_that_cannot_be_changed_is_handed_on_as_it_is(context: ToolContext) -> None:
    nothing = object()

    @tool
    def is_left_out(name: Any = nothing) -> bool:
        """Tell."""
        return name is nothing

    assert is_left_out.call(is_left_out.decode("{}"), context) == ToolResult.ok(True)
