"""Sections: the titled texts with placeholders that a prompt is made of, and how placeholders get their values.

A section has a title, a text with placeholders, tools, images and nested sections; its heading level is its depth.
A section whose `enabled` predicate returns False is left out with its images, its tools and everything nested in it.
Sections are frozen and checked when they are made; what concerns several sections (duplicate keys, unknown names) the
template checks.

A placeholder is ``${name}`` or ``$name``; ``$$`` is a dollar sign. The text is parsed once, when its section is made.
A placeholder takes the variable of its name, else the field of that name of the one bound value that has it; if two
bound values have it, that is an error. A value is inserted exactly as it is and never parsed, so text from outside
cannot add a placeholder. Values other than text are written as JSON, but dates and paths without quotes; an image is
placed between the texts around it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import string
import textwrap
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, TypeVar, cast, get_args

import msgspec

from watchkeeper.core.codec import display
from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import ImagePart
from watchkeeper.core.quantities import is_listed
from watchkeeper.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A place in a text where the value of this name is inserted."""

    name: str


Piece = str | Placeholder


def parse_text(text: str) -> tuple[Piece, ...]:
    """Split a template's text into literal text and placeholders; common indentation and outer blank lines are removed.

    Raises:
        PromptDefinitionError: If a dollar sign starts neither a placeholder nor ``$$``; the message names the place.
    """
    body = textwrap.dedent(text).strip("\n").rstrip()
    pieces: list[Piece] = []
    literal, end = "", 0
    for match in string.Template.pattern.finditer(body):
        literal += body[end : match.start()]
        end = match.end()
        name = match["named"] or match["braced"]
        if name is not None:
            if literal:
                pieces.append(literal)
            pieces.append(Placeholder(name))
            literal = ""
        elif match["escaped"] is not None:
            literal += "$"
        else:
            raise PromptDefinitionError(_stray_dollar(body, match.start()))
    literal += body[end:]
    if literal:
        pieces.append(literal)
    return tuple(pieces)


def _stray_dollar(body: str, at: int) -> str:
    line = body.count("\n", 0, at) + 1
    column = at - body.rfind("\n", 0, at)
    seen = body[at : at + 20].split("\n", 1)[0]
    return (
        f"{seen!r} at line {line}, column {column} is no placeholder; "
        "write ${name} for a value (letters, digits, underscores) and $$ for a dollar sign"
    )


def names_in(pieces: Sequence[Piece]) -> frozenset[str]:
    """Return the names of all placeholders."""
    return frozenset(piece.name for piece in pieces if isinstance(piece, Placeholder))


def fill(pieces: Sequence[Piece], values: Mapping[str, Any]) -> Iterator[str | ImagePart]:
    """Yield the text with every placeholder's value in its place; every name must be in ``values``."""
    for piece in pieces:
        if isinstance(piece, str):
            yield piece
            continue
        value = values[piece.name]
        if isinstance(value, ImagePart):
            yield value
        elif _shows_images(value):
            last: str | ImagePart = ""
            for item in value:
                yield "\n" + item if isinstance(item, str) and isinstance(last, str) and last else item
                last = item
        else:
            yield as_text(value)


def _shows_images(value: Any) -> TypeGuard[Sequence[str | ImagePart]]:
    """Return whether a value is a list of images, with or without texts between them."""
    if not isinstance(value, (list, tuple)):
        return False
    items = cast("Sequence[Any]", value)
    return all(isinstance(item, str | ImagePart) for item in items) and any(
        isinstance(item, ImagePart) for item in items
    )


def as_text(value: Any) -> str:
    """Write a value for a prompt: text as it is, paths and dates without quotes, everything else as JSON."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(cast("os.PathLike[str] | os.PathLike[bytes]", value))
    text = display(value)
    if text.startswith('"'):
        return msgspec.json.decode(text, type=str)
    return text


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
        """Look values up in these two mappings; neither is copied or changed."""
        self.params = params
        self.variables = variables
        self._owners = field_owners(params)

    def names(self) -> set[str]:
        """Return every name that has a value."""
        return {*self._owners, *self.variables}

    def value(self, name: str) -> Any:
        """Return the value of a name.

        Raises:
            PromptDefinitionError: If nothing has that name, or two bound values have it.
        """
        if name in self.variables:
            return self.variables[name]
        owners = self._owners.get(name, ())
        if len(owners) != 1:
            raise PromptDefinitionError(ambiguous(name, owners) if owners else unfilled(name, self.names()))
        return getattr(self.params[owners[0]], name)

    def ask(self, enabled: Callable[..., object], key: str) -> bool:
        """Call a section's predicate with the values that it asks for.

        Raises:
            PromptDefinitionError: If one of its parameters has no value, or if it raises.
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
    """Return the parameters of a predicate by name, without variadic ones; none for a built-in without a signature."""
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
    """Return for each parameter of a predicate the bound type or the name of the value that it gets.

    Raises:
        PromptDefinitionError: If a parameter without a default has no value.
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
    """Return the existing types and names, for an error message."""
    found = [type_.__name__ for type_ in types] + sorted(names)
    return ", ".join(found) if found else "nothing bound"


def ambiguous(name: str, owners: Iterable[type[Any]]) -> str:
    """Return the error message for a name that more than one bound type has."""
    return (
        f"${{{name}}} is ambiguous: {' and '.join(owner.__name__ for owner in owners)} both have it; "
        f"rename one field or give with_variables({name}=...)"
    )


def unfilled(name: str, given: Collection[str]) -> str:
    """Return the error message for a placeholder that has no value."""
    return (
        f"nothing fills ${{{name}}}{_choices(name, given, 'given')}; "
        f"use bind(...) with a dataclass that has this field, or with_variables({name}=...)"
    )


def unknown(name: str, known: Collection[str]) -> str:
    """Return the error message for a name that the declared params do not have."""
    return f"unknown placeholder ${{{name}}}{_choices(name, known, 'known')}"


def _choices(name: str, known: Collection[str], what: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean ${{{near[0]}}}?" if near else ""
    there = ", ".join(f"${{{item}}}" for item in sorted(known)) or "none"
    return f"{meant} ({what}: {there})"


T = TypeVar("T")

Role = Literal["system", "user"]

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The form of the keys of sections and prompts, and of each part of a namespace."""


@dataclass(frozen=True, slots=True)
class MarkdownSection:
    """One titled text of a prompt.

    Attributes:
        title: Heading; empty for none.
        key: Unique within its template: letters, digits, dot, hyphen, underscore.
        template: Markdown with ``${name}`` placeholders; ``$$`` is a dollar sign. Common indentation is removed.
        tools: Tools that are on offer while the section is enabled.
        children: Nested sections, one heading level deeper, each in the role of its parent.
        enabled: Predicate that decides at rendering. A parameter annotated with the type of a bound value gets that
            value, any other gets the placeholder value of its own name; a single unannotated parameter with another
            name gets the bound value, if exactly one is bound. None: always enabled.
        role: ``system`` for standing instructions, else ``user``; None: the parent's, and ``user`` at the top.
        images: Images that follow the text. (A placeholder whose value is an `ImagePart`, or a list of
            images and texts, shows it in its place.)
        models: Models, or model strings, that its tools start child runs with; they are priced with the run's own.
    """

    title: str
    key: str
    template: str
    tools: Sequence[Tool] = ()
    children: Sequence[MarkdownSection] = ()
    enabled: Callable[..., object] | None = None
    role: Role | None = None
    images: Sequence[ImagePart] = ()
    models: Sequence[Any] = ()
    pieces: tuple[Piece, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the text and refuse what cannot be rendered.

        Raises:
            PromptDefinitionError: Naming the section, what is wrong, and what to write instead.
        """
        if not KEY.fullmatch(self.key):
            raise PromptDefinitionError(f"section key {self.key!r} must be letters, digits, '.', '-' or '_'")
        if "\n" in self.title or "${" in self.title:
            raise PromptDefinitionError(
                f"section {self.key!r}: title {self.title!r} must be one line without placeholders; they go in the text"
            )
        put = object.__setattr__
        try:
            put(self, "tools", listed(self.tools, "tools", Tool, "decorate the function with @tool"))
            put(self, "children", listed(self.children, "children", MarkdownSection, "nest sections in sections"))
            put(self, "images", listed(self.images, "images", ImagePart, "use ImagePart.from_bytes(...)"))
            if not isinstance(cast("object", self.template), str):
                raise PromptDefinitionError(f"template must be text, not {self.template!r}")
            put(self, "pieces", parse_text(self.template))
            self._check_enabled()
        except PromptDefinitionError as error:
            raise PromptDefinitionError(f"section {self.key!r}: {error}") from None
        self._check_role()

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of the placeholders in this section's own text."""
        return names_in(self.pieces)

    def walk(self) -> Iterator[MarkdownSection]:
        """Yield this section and all that are nested in it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def _check_enabled(self) -> None:
        if self.enabled is None:
            return
        if not callable(cast("object", self.enabled)):
            raise PromptDefinitionError(f"enabled={self.enabled!r} must be a function that returns a bool")
        if inspect.iscoroutinefunction(function_of(self.enabled)):
            raise PromptDefinitionError("enabled must be a plain function, not a coroutine function")

    def _check_role(self) -> None:
        if self.role not in (None, *get_args(Role)):
            raise PromptDefinitionError(f"section {self.key!r}: role {self.role!r} must be 'system' or 'user'")
        for child in self.children:
            if child.role is not None and child.role != (self.role or "user"):
                raise PromptDefinitionError(
                    f"section {child.key!r} has role {child.role!r} but lies in {self.key!r}, which has "
                    f"{self.role or 'user'!r}; move it to the top, or leave its role out"
                )
        if self.role == "system" and any(section.images for section in self.walk()):
            raise PromptDefinitionError(f"section {self.key!r}: a system section cannot hold images")


def listed(
    given: object, name: str, kind: type[T], advice: str, error: type[Exception] = PromptDefinitionError
) -> tuple[T, ...]:
    """Return the items of a list as a tuple.

    Args:
        given: The list, or another iterable that is not text.
        name: Its name in error messages.
        kind: The type of its items.
        advice: What to write instead of an item of another type.
        error: The type of error that is raised.

    Raises:
        Exception: An ``error``, if it is no list or holds an item of another type.
    """
    if isinstance(given, type) or not is_listed(given):
        raise error(f"{name} must be a list or tuple of {kind.__name__}, not {given!r}")
    items: list[T] = []
    for item in given:
        if not isinstance(item, kind):
            raise error(f"{item!r} in {name} is not a {kind.__name__}; {advice}")
        items.append(item)
    return tuple(items)
