"""What a function's signature says about the tool that it becomes.

Two shapes are read. ``def f(params: SomeDataclass, *, context)``: one parameter whose type is an object is the
arguments themselves. ``def f(a: int, b: str = "x", *, context)``: each parameter is one argument, and a typed dict is
made of them. ``context: ToolContext`` is optional in both and never shown to the model. Whatever cannot be described
to a model is refused here, with the way to repair it.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final, NotRequired, Required, cast

import msgspec

from watchkeeper.core.codec import CodecError, is_pydantic, to_builtins
from watchkeeper.core.errors import ToolDefinitionError
from watchkeeper.tools.context import ToolContext

CONTEXT: Final = "context"

MUTABLE: Final = (list, dict, set, bytearray)
"""Defaults of these kinds Python shares between all calls: what one call leaves there, the next would find."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters, as a tool sees them.

    Attributes:
        params_type: Type of the arguments.
        spreads: Whether each argument is a parameter of its own.
        takes_context: Whether the function asks for the context.
        defaults: Defaults of single parameters that can be shown to a model.
        fresh: Defaults that a call could change; each call needs a copy of its own.
    """

    params_type: Any
    spreads: bool
    takes_context: bool
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fresh: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_signature(name: str, function: Callable[..., Any], names_in_scope: Mapping[str, Any]) -> Signature:
    """Read a function's parameters.

    Args:
        name: The tool's name, for messages.
        function: The function, a bound method or a partial.
        names_in_scope: Local names at the place of its definition, for annotations that are text.

    Raises:
        ToolDefinitionError: If a parameter has no type, or one that no model can fill.
    """
    whole: Any = function
    bound: Mapping[str, Any] = whole.keywords if isinstance(function, functools.partial) else {}
    parameters = [item for item in inspect.signature(whole).parameters.values() if item.name not in bound]
    _refuse_stars(name, parameters)
    scope = _Scope(name, getattr(plain_function(function), "__globals__", {}), names_in_scope)
    hints = {item.name: scope.type_of(item) for item in parameters}
    takes_context = _is_context(hints.get(CONTEXT))
    arguments = [item for item in parameters if not (item.name == CONTEXT and takes_context)]
    for item in arguments:
        if _is_context(hints[item.name]):
            raise ToolDefinitionError(
                f"tool {name!r}: call the parameter {item.name!r} `context`; it is passed by name"
            )
    if len(arguments) == 1 and is_object_type(hints[arguments[0].name]):
        return Signature(hints[arguments[0].name], spreads=False, takes_context=takes_context)
    return _spread(name, arguments, hints, takes_context)


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def is_object_type(type_: Any) -> bool:
    """Return whether a type is a JSON object with named fields."""
    origin: Any = typing.get_origin(type_) or type_
    kinds = (is_dataclass, typing.is_typeddict, is_pydantic, _is_struct)
    return inspect.isclass(origin) and any(fits(origin) for fits in kinds)


def _is_struct(type_: Any) -> bool:
    return issubclass(type_, msgspec.Struct)


def _spread(name: str, arguments: list[inspect.Parameter], hints: Mapping[str, Any], takes_context: bool) -> Signature:
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for item in arguments:
        if item.kind is item.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"tool {name!r}: {item} cannot be named in a call, because a '/' stands behind it; leave that out"
            )
        if item.default is item.empty:
            fields[item.name] = Required[hints[item.name]]
            continue
        fields[item.name] = NotRequired[hints[item.name]]
        try:
            defaults[item.name] = to_builtins(item.default)
        except CodecError:
            continue  # a default that has no JSON form works all the same; it is only not shown
    made: Any = cast("Any", typing.TypedDict)(f"{name}_arguments", fields)
    fresh: dict[str, Any] = {item.name: item.default for item in arguments if _is_mutable(item.default)}
    return Signature(made, spreads=True, takes_context=takes_context, defaults=defaults, fresh=fresh)


def _is_mutable(default: object) -> bool:
    return isinstance(default, MUTABLE)


def _refuse_stars(name: str, parameters: list[inspect.Parameter]) -> None:
    """Refuse parameters that stand for any number of arguments."""
    for item in parameters:
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            stars = "*" if item.kind is item.VAR_POSITIONAL else "**"
            raise ToolDefinitionError(
                f"tool {name!r}: a tool cannot take {stars}{item.name}, because a model fills parameters by name;"
                " write each argument out as a parameter of its own"
            )


@dataclass(frozen=True, slots=True)
class _Scope:
    tool_name: str
    globals: Mapping[str, Any]
    locals: Mapping[str, Any]

    def type_of(self, parameter: inspect.Parameter) -> Any:
        hint = parameter.annotation
        if hint is parameter.empty:
            advice = (
                f"make the tool of the bound method: tool(instance.{self.tool_name})"
                if parameter.name in ("self", "cls")
                else f"write for example `{parameter.name}: str`"
            )
            raise ToolDefinitionError(f"tool {self.tool_name!r}: parameter {parameter.name!r} has no type; {advice}")
        if parameter.name == CONTEXT and isinstance(hint, str) and hint.split(".")[-1] == ToolContext.__name__:
            return ToolContext
        holder = types.SimpleNamespace(__annotations__={parameter.name: hint})
        try:
            resolved = typing.get_type_hints(holder, dict(self.globals), dict(self.locals), include_extras=True)
        except (NameError, TypeError, SyntaxError, AttributeError) as error:
            raise ToolDefinitionError(
                f"tool {self.tool_name!r}: the type {hint!r} of parameter {parameter.name!r} cannot be read ({error}); "
                "import it at run time, not only for type checking"
            ) from error
        return resolved[parameter.name]


def plain_function(function: Any) -> Any:
    """Return the function inside partials, bound methods, wrappers and callable objects."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[object]", function).func
    function = inspect.unwrap(function)
    if inspect.ismethod(function) or inspect.isfunction(function):
        return getattr(function, "__func__", function)
    return type(function).__call__
