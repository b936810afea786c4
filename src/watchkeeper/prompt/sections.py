"""Sections: the pieces a prompt is made of.

A section has a title, a text with placeholders, tools, images and nested sections; its heading level is its depth.
A section whose `enabled` predicate says no vanishes with its images, its tools and everything nested in it. Sections
are frozen and checked when they are made; what needs the neighbours (equal keys, unknown names) the template checks.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import ImagePart
from watchkeeper.prompt.bindings import function_of
from watchkeeper.prompt.placeholders import Piece, names_in, parse_text
from watchkeeper.tools.tool import Tool

Role = Literal["system", "user"]

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What a section's, a prompt's or a namespace's key may look like."""


@dataclass(frozen=True, slots=True)
class MarkdownSection:
    """One titled piece of a prompt.

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
        images: Images that follow the text. (A placeholder whose value is an `ImagePart` shows it in its place.)
        models: Models, or their strings, that its tools start child runs with; made and priced with the run's own.
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
        put(self, "tools", self._items("tools", self.tools, Tool, "decorate the function with @tool"))
        put(self, "children", self._items("children", self.children, MarkdownSection, "nest sections in sections"))
        put(self, "images", self._items("images", self.images, ImagePart, "use ImagePart.from_bytes(...)"))
        try:
            put(self, "pieces", parse_text(_text(self.template)))
        except PromptDefinitionError as error:
            raise PromptDefinitionError(f"section {self.key!r}: {error}") from None
        self._check_role()
        if self.enabled is not None:
            _check_predicate(self.enabled, self.key)

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of the placeholders in this section's own text."""
        return names_in(self.pieces)

    def walk(self) -> Iterator[MarkdownSection]:
        """Yield this section and all that are nested in it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def _items(self, name: str, given: object, kind: type[Any], advice: str) -> tuple[Any, ...]:
        if isinstance(given, (kind, str, bytes)) or not hasattr(given, "__iter__"):
            raise PromptDefinitionError(f"section {self.key!r}: {name} must be a list or tuple, not {given!r}")
        items = tuple(cast("Sequence[Any]", given))
        for item in items:
            if not isinstance(item, kind):
                raise PromptDefinitionError(
                    f"section {self.key!r}: {item!r} in {name} is not a {kind.__name__}; {advice}"
                )
        return items

    def _check_role(self) -> None:
        if not _is_role(self.role):
            raise PromptDefinitionError(f"section {self.key!r}: role {self.role!r} must be 'system' or 'user'")
        for child in self.children:
            if child.role is not None and child.role != (self.role or "user"):
                raise PromptDefinitionError(
                    f"section {child.key!r} has role {child.role!r} but lies in {self.key!r}, which has "
                    f"{self.role or 'user'!r}; move it to the top, or leave its role out"
                )
        if self.role == "system" and any(section.images for section in self.walk()):
            raise PromptDefinitionError(f"section {self.key!r}: a system section cannot hold images")


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise PromptDefinitionError(f"template must be text, not {given!r}")
    return given


def _is_role(role: object) -> bool:
    return role is None or role in get_args(Role)


def _check_predicate(enabled: object, key: str) -> None:
    if not callable(enabled):
        raise PromptDefinitionError(f"section {key!r}: enabled={enabled!r} must be a function that returns a bool")
    if inspect.iscoroutinefunction(function_of(enabled)):
        raise PromptDefinitionError(f"section {key!r}: enabled must be a plain function, not a coroutine function")
