"""What a prompt was given: bound dataclass values and named variables, looked up for placeholders and predicates.

A placeholder takes the variable of its name, else the field of that name of the one bound value that has it. Two bound
values with the same field are ambiguous, which is an error only where the name is used. Pure lookups; nothing here is
ever changed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from watchkeeper.core.errors import PromptDefinitionError


def field_owners(types: Iterable[type[Any]]) -> dict[str, tuple[type[Any], ...]]:
    """Return for each field name the dataclasses that have it."""
    owners: dict[str, tuple[type[Any], ...]] = {}
    for type_ in types:
        for item in dataclasses.fields(type_):
            owners[item.name] = (*owners.get(item.name, ()), type_)
    return owners


class Bindings:
    """Bound values by type, and variables by name."""

    __slots__ = ("_owners", "params", "variables")

    def __init__(self, params: Mapping[type[Any], Any], variables: Mapping[str, Any]) -> None:
        """Look things up in these; neither is copied or changed."""
        self.params = params
        self.variables = variables
        self._owners = field_owners(params)

    def names(self) -> set[str]:
        """Return every name that has a value."""
        return {*self._owners, *self.variables}

    def value(self, name: str) -> Any:
        """Return the value of a name.

        Raises:
            KeyError: If nothing has that name.
            PromptDefinitionError: If two bound values have it.
        """
        if name in self.variables:
            return self.variables[name]
        owner, *others = self._owners[name]
        if others:
            raise PromptDefinitionError(ambiguous(name, [owner, *others]))
        return getattr(self.params[owner], name)

    def ask(self, enabled: Callable[..., object], key: str) -> bool:
        """Call a section's predicate with the values that it asks for.

        Raises:
            PromptDefinitionError: If it asks for something that is not there, or raises.
        """
        arguments: dict[str, Any] = {}
        positional: list[Any] = []
        parameters = predicate_parameters(enabled)
        for name, wanted in match_predicate(enabled, key, self.params, self.names()).items():
            value = self.params[wanted] if isinstance(wanted, type) else self.value(wanted)
            if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                arguments[name] = value
        try:
            return bool(enabled(*positional, **arguments))
        except Exception as error:
            raise PromptDefinitionError(f"section {key!r}: its enabled predicate raised {error!r}") from error


def predicate_parameters(enabled: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters that a predicate must or may be given, by name; a built-in without a signature has none."""
    try:
        parameters = inspect.signature(enabled).parameters
    except ValueError:
        return {}
    given: Collection[str] = enabled.keywords if isinstance(enabled, functools.partial) else ()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: item for name, item in parameters.items() if item.kind not in variadic and name not in given}


def match_predicate(
    enabled: Callable[..., object], key: str, types: Collection[type[Any]], names: Collection[str]
) -> dict[str, type[Any] | str]:
    """Say for each parameter of a predicate which bound type or which named value it gets.

    Raises:
        PromptDefinitionError: If a parameter without a default can be given nothing.
    """
    parameters = predicate_parameters(enabled)
    hints = _hints(enabled)
    matched: dict[str, type[Any] | str] = {}
    for name, parameter in parameters.items():
        hint = hints.get(name)
        fitting = [type_ for type_ in types if isinstance(hint, type) and issubclass(type_, hint)]
        if fitting and hint is not object:
            matched[name] = fitting[0]
        elif name in names:
            matched[name] = name
        elif len(parameters) == 1 and hint is None and len(types) == 1:
            matched[name] = next(iter(types))
        elif parameter.default is inspect.Parameter.empty:
            raise PromptDefinitionError(
                f"section {key!r}: its enabled predicate asks for {name!r}, and there is {listing(types, names)}"
            )
    return matched


def _hints(enabled: Callable[..., object]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function_of(enabled))
    except (NameError, TypeError, AttributeError):
        return {}


def function_of(predicate: Any) -> Any:
    """Return the function that a call of the predicate runs: itself, what it wraps, or its class's ``__call__``."""
    while isinstance(predicate, functools.partial):
        predicate = predicate.func
    return predicate if inspect.isroutine(predicate) else type(predicate).__call__


def listing(types: Collection[type[Any]], names: Collection[str]) -> str:
    """Write what exists, for an error message."""
    found = [type_.__name__ for type_ in types] + sorted(names)
    return ", ".join(found) if found else "nothing bound"


def ambiguous(name: str, owners: Iterable[type[Any]]) -> str:
    """Word the error for a name that more than one bound type has."""
    return (
        f"${{{name}}} is ambiguous: {' and '.join(owner.__name__ for owner in owners)} both have it; "
        f"rename one field or give with_variables({name}=...)"
    )


def unfilled(name: str, given: Collection[str]) -> str:
    """Word the error for a placeholder that has no value."""
    return (
        f"nothing fills ${{{name}}}{_choices(name, given, 'given')}; "
        f"use bind(...) with a dataclass that has this field, or with_variables({name}=...)"
    )


def unknown(name: str, known: Collection[str]) -> str:
    """Word the error for a name that the declared params do not have."""
    return f"unknown placeholder ${{{name}}}{_choices(name, known, 'known')}"


def _choices(name: str, known: Collection[str], what: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean ${{{near[0]}}}?" if near else ""
    there = ", ".join(f"${{{item}}}" for item in sorted(known)) or "none"
    return f"{meant} ({what}: {there})"
