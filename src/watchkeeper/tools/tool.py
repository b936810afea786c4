"""A function that a model may call.

The function's types make the schema, its docstring the description; both are made once, when the tool is defined, and
what cannot be described to a model is refused then, with the way to repair it. `Tool.decode` checks what a model wrote,
`Tool.call` calls the function and wraps what it returns. A tool knows nothing of threads, limits, retries or time: it
declares, the runtime does.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final, Literal, NotRequired, Required, cast, overload

import msgspec

from watchkeeper.core.codec import CodecError, is_pydantic, parse_docstring, to_builtins
from watchkeeper.core.errors import LimitsError, ToolDefinitionError
from watchkeeper.core.model import ToolSpec
from watchkeeper.core.quantities import DurationLike, duration, is_whole
from watchkeeper.tools.values import Arguments, ToolResult, arguments_schema, as_result
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.isolation.call import KILL_GRACE_SECONDS, Isolation, ProcessCall, call_isolated
from watchkeeper.tools.isolation.worker import reference_to

CONTEXT: Final = "context"

MUTABLE: Final = (list, dict, set, bytearray)
"""Types of mutable defaults: Python shares such a default between calls, so one call would see another's changes."""


class Signature(msgspec.Struct, frozen=True):
    """A function's parameters, as a tool sees them.

    Two shapes are read. ``def f(params: SomeDataclass, *, context)``: one parameter whose type is an object is the
    arguments themselves. ``def f(a: int, b: str = "x", *, context)``: each parameter is one argument, and a typed dict
    is made of them. ``context: ToolContext`` is optional in both and never shown to the model.

    Attributes:
        params_type: Type of the arguments.
        spreads: Whether each field of the arguments is passed as a parameter of its own.
        takes_context: Whether the function asks for the context.
        defaults: Defaults of single parameters that can be shown to a model.
        fresh: Defaults that a call could change; each call needs a copy of its own.
    """

    params_type: Any
    spreads: bool
    takes_context: bool
    defaults: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    fresh: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


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
    for item in parameters:
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            raise ToolDefinitionError(
                f"tool {name!r}: a tool cannot take {str(item).split(':')[0]}, because a model fills parameters by"
                " name; write each argument out as a parameter of its own"
            )
    known = getattr(plain_function(function), "__globals__", {})
    hints = {item.name: _type_of(name, item, known, names_in_scope) for item in parameters}
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
    kinds = (is_dataclass, typing.is_typeddict, is_pydantic)
    return inspect.isclass(origin) and (issubclass(origin, msgspec.Struct) or any(fits(origin) for fits in kinds))


def _spread(name: str, arguments: list[inspect.Parameter], hints: Mapping[str, Any], takes_context: bool) -> Signature:
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for item in arguments:
        if item.kind is item.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"tool {name!r}: {item} is followed by '/', so a call cannot pass it by name; leave out the '/'"
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
    fresh: dict[str, Any] = {
        item.name: item.default for item in arguments if isinstance(cast("object", item.default), MUTABLE)
    }
    return Signature(made, spreads=True, takes_context=takes_context, defaults=defaults, fresh=fresh)


def _type_of(tool_name: str, parameter: inspect.Parameter, known: Mapping[str, Any], local: Mapping[str, Any]) -> Any:
    """Return the type of a parameter; an annotation that is text is read with the names known at its definition."""
    hint = parameter.annotation
    if hint is parameter.empty:
        advice = f"write for example `{parameter.name}: str`"
        if parameter.name in ("self", "cls"):
            advice = f"make the tool of the bound method: tool(instance.{tool_name})"
        raise ToolDefinitionError(f"tool {tool_name!r}: parameter {parameter.name!r} has no type; {advice}")
    if parameter.name == CONTEXT and isinstance(hint, str) and hint.split(".")[-1] == ToolContext.__name__:
        return ToolContext
    holder = types.SimpleNamespace(__annotations__={parameter.name: hint})
    try:
        return typing.get_type_hints(holder, dict(known), dict(local), include_extras=True)[parameter.name]
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise ToolDefinitionError(
            f"tool {tool_name!r}: the type {hint!r} of parameter {parameter.name!r} cannot be read ({error}); "
            "import it at run time, not only for type checking"
        ) from error


def plain_function(function: Any) -> Any:
    """Return the function inside partials, bound methods, wrappers and callable objects."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[object]", function).func
    function = inspect.unwrap(function)
    if inspect.ismethod(function) or inspect.isfunction(function):
        return getattr(function, "__func__", function)
    return type(function).__call__


_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

HAS_PROCESS_GROUPS: Final = os.name == "posix"
"""Whether a process and all that it starts can be killed together."""

Handler = Callable[..., Any]
OnUnknown = Literal["tell", "park"]
UNKNOWN_CHOICES: Final[tuple[str, ...]] = typing.get_args(OnUnknown)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function, and the facts about it that a model and the runtime need; made by `tool`.

    Attributes:
        name: The name that the model writes in a call.
        description: The description that the model gets.
        params_type: The type into which the arguments are decoded.
        handler: The function.
        takes_context: Whether it asks for a `ToolContext`.
        spreads: Whether each field of the arguments is passed as a parameter of its own.
        is_async: Whether it is a coroutine function.
        timeout: Seconds that one attempt may take; None for the time that the run has left.
        retries: How often an attempt that crashed or was too slow is repeated. Of a tool that is neither read-only nor
            idempotent, only one that raised `NothingDoneError` or never began: any other may have had an effect.
        parallel_safe: Whether it may run beside the other calls of a turn.
        read_only: Whether it changes nothing, so that it may run again.
        idempotent: Whether the same call, with the same idempotency key, has its effect once however often it runs.
        on_unknown: Of a call of which nobody knows whether it had its effect: ``tell`` the agent, or ``park`` the run.
        isolation: How it runs in a process of its own, or None if it runs in this one.
        fresh: Default values of parameters; each call gets its own copies.
        schema: JSON Schema of the arguments; made from their type by default.
        spec: Name, description and schema, as a model gets them.
    """

    name: str
    description: str
    params_type: Any
    handler: Handler
    takes_context: bool = False
    spreads: bool = False
    is_async: bool = False
    timeout: float | None = None
    retries: int = 0
    parallel_safe: bool = False
    read_only: bool = False
    idempotent: bool = False
    on_unknown: OnUnknown = "tell"
    isolation: Isolation | None = None
    fresh: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)
    schema: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    spec: ToolSpec = field(init=False, compare=False, repr=False)
    _arguments: Arguments = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Make the spec once; every turn of a run sends the same object."""
        schema = self.schema or arguments_schema(self.name, self.params_type, {}, {})
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "spec", ToolSpec(self.name, self.description, schema))
        object.__setattr__(self, "_arguments", Arguments(self.name, self.params_type, schema))

    @property
    def may_repeat(self) -> bool:
        """Whether a call may run again that failed, or of which nobody knows whether it had its effect."""
        return self.read_only or self.idempotent

    def decode(self, arguments_json: str) -> Any:
        """Turn the arguments as a model wrote them into what the function takes.

        Raises:
            ToolValidationError: If they are not JSON or do not fit; worded so that the model can correct them.
        """
        return self._arguments.read(arguments_json)

    def call(self, params: Any, context: ToolContext) -> ToolResult[Any] | Awaitable[ToolResult[Any]]:
        """Call the function and wrap what it returns; what it raises passes through.

        Args:
            params: The value that `decode` returned.
            context: Handed on if the function asks for it.

        Returns:
            The result, or an awaitable of it if the function is async or isolated.
        """
        if self.isolation is not None:
            return call_isolated(self.isolation, params)
        named: dict[str, Any] = dict(params) if self.spreads else {}
        for name, default in self.fresh.items():
            if name not in named:
                named[name] = copy.deepcopy(default)
        if self.takes_context:
            named["context"] = context
        returned = self.handler(**named) if self.spreads else self.handler(params, **named)
        return _later(returned) if self.is_async or inspect.isawaitable(returned) else as_result(returned)

    def process(self) -> ProcessCall | None:
        """Return a call in a process of its own, not yet begun; None if the tool is not isolated."""
        return None if self.isolation is None else ProcessCall(self.isolation)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it was written: a tool can be tested like any function."""
        return self.handler(*args, **kwargs)


@overload
def tool(function: Handler, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: DurationLike | None = None,
    retries: int = 0,
    parallel_safe: bool = False,
    read_only: bool = False,
    idempotent: bool = False,
    on_unknown: OnUnknown = "tell",
    isolation: Literal["process"] | None = None,
    kill_grace: DurationLike | None = None,
) -> Callable[[Handler], Tool]: ...
def tool(
    function: Handler | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: DurationLike | None = None,
    retries: int = 0,
    parallel_safe: bool = False,
    read_only: bool = False,
    idempotent: bool = False,
    on_unknown: OnUnknown = "tell",
    isolation: Literal["process"] | None = None,
    kill_grace: DurationLike | None = None,
) -> Tool | Callable[[Handler], Tool]:
    """Make a tool of a function.

    The function takes either one parameter whose type is a dataclass (a pydantic model, a msgspec struct, a typed
    dict), or parameters of plain types; both may take ``context: ToolContext`` besides. It may be async. It returns a
    `ToolResult`, or a value that is taken for a success.

    Args:
        function: The function; without it, a decorator with the options below is returned.
        name: As the model writes it; the function's name by default.
        description: What the model is told; the docstring without its sections by default.
        timeout: How long one attempt may take ("30s", a timedelta, seconds).
        retries: How often an attempt that failed is repeated, if that does no harm; see `Tool`.
        parallel_safe: Whether it may run beside the other calls of a turn.
        read_only: Whether it changes nothing. After a crash, a call that was under way runs again.
        idempotent: Whether the same call has its effect once, however often it runs with the same
            ``context.idempotency_key``. After a crash, a call that was under way runs again with the same key.
        on_unknown: What happens after a crash to a call of any other tool that was under way: ``tell`` the agent that
            nobody knows whether it had its effect, or ``park`` the run until a person says whether it is to run again.
        isolation: "process" runs the function in a process of its own, which is killed with all that it started when
            its time is over or the run is aborted. It then must be importable and cannot take a `ToolContext`.
        kill_grace: Time between TERM and KILL for an isolated tool ("2s" by default).

    Raises:
        ToolDefinitionError: If a parameter has no type, there is no description, or the name or an option is bad.
    """
    # Types that are defined in the same function as the tool are found in the locals of the caller.
    scope = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage]

    def make(function: Handler) -> Tool:
        tool_name = _checked_name(function, name)
        if not is_whole(retries, 0):
            raise ToolDefinitionError(f"tool {tool_name!r}: retries={retries!r} must be 0 or a positive whole number")
        signature = read_signature(tool_name, function, scope)
        return Tool(
            **_read(tool_name, function, signature, description),
            timeout=_seconds(tool_name, timeout, "timeout"),
            retries=retries,
            parallel_safe=parallel_safe,
            read_only=read_only,
            idempotent=idempotent,
            on_unknown=_on_unknown(tool_name, on_unknown, read_only or idempotent),
            isolation=_isolation(tool_name, function, signature, isolation, kill_grace),
        )

    return make if function is None else make(function)


def _read(name: str, function: Handler, signature: Signature, description: str | None) -> dict[str, Any]:
    """Return what a tool takes from its function."""
    docstring = parse_docstring(inspect.getdoc(plain_function(function)))
    return {
        "name": name,
        "description": _checked_description(name, description, docstring.text),
        "params_type": signature.params_type,
        "handler": function,
        "takes_context": signature.takes_context,
        "spreads": signature.spreads,
        "is_async": _is_async(name, function),
        "fresh": signature.fresh,
        "schema": arguments_schema(name, signature.params_type, docstring.fields, signature.defaults),
    }


async def _later(returned: Any) -> ToolResult[Any]:
    return as_result(await returned if inspect.isawaitable(returned) else returned)


def _checked_name(function: Handler, name: str | None) -> str:
    if not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
        raise ToolDefinitionError(f"a tool is made of a function, not of {function!r}")
    own = plain_function(function).__name__
    found = name if name is not None else "" if own == "__call__" else own
    if not _NAME.fullmatch(found):
        raise ToolDefinitionError(
            f"{found!r} cannot be a tool's name: use 1 to 64 letters, digits, '_' and '-', for example "
            "@tool(name='look_up')"
        )
    return found


def _checked_description(name: str, given: str | None, docstring: str) -> str:
    text = (given if given is not None else docstring).strip()
    if not text:
        raise ToolDefinitionError(
            f"tool {name!r} has no description; write a docstring that tells the model when and how to use it"
        )
    return text


def _on_unknown(name: str, choice: str, may_repeat: bool) -> OnUnknown:
    if choice not in UNKNOWN_CHOICES:
        raise ToolDefinitionError(f"tool {name!r}: on_unknown={choice!r} must be 'tell' or 'park'")
    if choice == "park" and may_repeat:
        raise ToolDefinitionError(
            f"tool {name!r}: on_unknown='park' has no meaning for a tool that is read-only or idempotent, because its"
            " calls simply run again; leave one of the two out"
        )
    return cast("OnUnknown", choice)


def _isolation(
    name: str, function: Handler, signature: Signature, isolation: str | None, kill_grace: DurationLike | None
) -> Isolation | None:
    if isolation is None:
        if kill_grace is not None:
            raise ToolDefinitionError(f"tool {name!r}: kill_grace={kill_grace!r} needs isolation='process'")
        return None
    if isolation != "process":
        raise ToolDefinitionError(f"tool {name!r}: isolation={isolation!r} is not known; write 'process' or leave it")
    if not HAS_PROCESS_GROUPS:
        raise ToolDefinitionError(
            f"tool {name!r}: isolation='process' needs process groups, which this system ({sys.platform}) does not have"
        )
    if signature.takes_context:
        raise ToolDefinitionError(
            f"tool {name!r}: isolation='process' and `context` exclude each other, because session, files and "
            "resources are not there in another process; pass what it needs as arguments, and keep what it returns "
            "with a tool that is not isolated"
        )
    grace = _seconds(name, kill_grace, "kill_grace")
    reference = reference_to(name, function)
    return Isolation(reference, signature.spreads, KILL_GRACE_SECONDS if grace is None else grace)


def _seconds(name: str, value: DurationLike | None, option: str) -> float | None:
    try:
        return None if value is None else duration(value, option).total_seconds()
    except (LimitsError, TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {name!r}: {error}") from error


def _is_async(name: str, function: Handler) -> bool:
    plain = plain_function(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ToolDefinitionError(f"tool {name!r} is a generator; return one value, for example a list")
    return inspect.iscoroutinefunction(plain)
