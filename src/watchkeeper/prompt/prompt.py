"""A prompt: a template together with what is bound to it, ready to render.

Frozen: `bind` and `with_variables` return new prompts. Rendering is pure: the same prompt renders to the same messages
every time, values are inserted exactly as they are, and a name without a value is an error, never an empty gap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Generic

from watchkeeper.core.deadline import Deadline
from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import ImagePart, Message, Part, SystemMessage, TextPart, UserMessage
from watchkeeper.prompt.bindings import Bindings, listing, unfilled, unknown
from watchkeeper.prompt.output import OutputT, answer_form, format_section, output_schema
from watchkeeper.prompt.placeholders import fill
from watchkeeper.prompt.rendered import RenderedPrompt
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.tools.tool import Tool

_DEEPEST_HEADING: Final = 6


@dataclass(frozen=True, slots=True, eq=False)
class Prompt(Generic[OutputT]):
    """A template and its values.

    Attributes:
        template: What to render.
        params: Bound dataclass values by their type.
        variables: Values by placeholder name; they take precedence over fields of bound values.
    """

    template: PromptTemplate[OutputT]
    params: Mapping[type[Any], Any] = field(default_factory=dict[type[Any], Any])
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Refuse what is no template.

        Raises:
            PromptDefinitionError: If it is something else.
        """
        _check_template(self.template)

    @property
    def ns(self) -> str:
        """Namespace of the template."""
        return self.template.ns

    @property
    def key(self) -> str:
        """Key of the template."""
        return self.template.key

    @property
    def name(self) -> str:
        """Name in logs and events."""
        return self.template.name

    @property
    def output_type(self) -> type[OutputT]:
        """Type of the answer."""
        return self.template.output_type

    def bind(self, *params: Any) -> Prompt[OutputT]:
        """Return this prompt with dataclass values bound; a value takes the place of an earlier one of its type.

        Raises:
            PromptDefinitionError: If a value is not a dataclass instance, if two are of one type, or if the template
                declares its params and this is none of them.
        """
        given: dict[type[Any], Any] = {}
        for value in params:
            type_ = self._param_type(value)
            if type_ in given:
                raise self._error(f"bind was given two values of type {type_.__name__}; bind one per type")
            given[type_] = value
        return dataclasses.replace(self, params=MappingProxyType({**self.params, **given}))

    def with_variables(self, /, **values: Any) -> Prompt[OutputT]:
        """Return this prompt with values for placeholders by name; they take precedence over bound fields.

        Raises:
            PromptDefinitionError: If the template declares its params and a name is none of their fields.
        """
        if self.template.params is not None:
            known = {item.name for type_ in self.template.params for item in dataclasses.fields(type_)}
            for name in values:
                if name not in known:
                    raise self._error(unknown(name, known))
        return dataclasses.replace(self, variables=MappingProxyType({**self.variables, **values}))

    def render(
        self, *, deadline: Deadline | datetime | None = None, output_in_prompt: bool = False
    ) -> RenderedPrompt[OutputT]:
        """Put every value in its place.

        Args:
            deadline: When the evaluation must be over; kept on the result.
            output_in_prompt: Whether to describe the answer's JSON Schema in the prompt, for models that cannot be
                held to a schema.

        Raises:
            PromptDefinitionError: If a placeholder of an enabled section has no value, or nothing is left to say.
        """
        try:
            system, user, tools = self._write(output_in_prompt)
        except PromptDefinitionError as error:
            raise self._error(str(error)) from error.__cause__
        return RenderedPrompt(
            ns=self.ns,
            key=self.key,
            name=self.name,
            messages=(*system, user),
            tools=tools,
            output_type=self.output_type,
            output=output_schema(self.output_type),
            deadline=Deadline(deadline) if isinstance(deadline, datetime) else deadline,
        )

    def _write(self, output_in_prompt: bool) -> tuple[list[Message], UserMessage, tuple[Tool, ...]]:
        bindings = Bindings(self._with_defaults(), self.variables)
        system, user = _Page(), _Page()
        tools: dict[str, Tool] = {}
        for section in self.template.sections:
            _put(section, system if section.role == "system" else user, 1, bindings, tools)
        if user.is_blank():
            raise PromptDefinitionError("nothing is left to say to the model: no section with role 'user' has text")
        if output_in_prompt and self.output_type is not str:
            user.add(["# Answer format\n\n", format_section(answer_form(self.output_type))])
        instructions: list[Message] = [] if system.is_blank() else [SystemMessage(system.text())]
        return instructions, UserMessage(user.parts()), tuple(tools.values())

    def _with_defaults(self) -> Mapping[type[Any], Any]:
        """Add declared params that are not bound but need no arguments: their defaults speak for them."""
        missing = [type_ for type_ in self.template.params or () if type_ not in self.params]
        defaults = {type_: type_() for type_ in missing if _needs_nothing(type_)}
        return {**self.params, **defaults} if defaults else self.params

    def _param_type(self, value: Any) -> type[Any]:
        if isinstance(value, type) or not dataclasses.is_dataclass(value):
            raise self._error(f"bind takes dataclass instances, not {value!r}; for single values use with_variables")
        declared = self.template.params
        if declared is None:
            return type(value)
        for type_ in declared:
            if isinstance(value, type_):
                return type_
        raise self._error(f"{type(value).__name__} is none of its params: {listing(declared, ())}")

    def _error(self, message: str) -> PromptDefinitionError:
        return PromptDefinitionError(f"prompt {f'{self.ns}/{self.key}'!r}: {message}")


def _check_template(given: object) -> None:
    if not isinstance(given, PromptTemplate):
        raise PromptDefinitionError(f"{given!r} is no template; write Prompt(PromptTemplate(ns=, key=, sections=))")


def _needs_nothing(type_: type[Any]) -> bool:
    absent = dataclasses.MISSING
    return all(
        item.default is not absent or item.default_factory is not absent
        for item in dataclasses.fields(type_)
        if item.init
    )


class _Page:
    """One message in the making: text that grows, with images between."""

    __slots__ = ("_parts", "_text")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._text: list[str] = []

    def add(self, block: Iterable[str | ImagePart]) -> None:
        """Write a block, a blank line after what stands there already."""
        separator = "\n\n" if self._text else ""
        for item in block:
            if isinstance(item, ImagePart):
                self._flush()
                self._parts.append(item)
                separator = ""
            elif item:
                self._text.append(separator + item)
                separator = ""

    def _flush(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        if text.strip():
            self._parts.append(TextPart(text))

    def parts(self) -> tuple[Part, ...]:
        """Return what was written."""
        self._flush()
        return tuple(self._parts)

    def text(self) -> str:
        """Return what was written as one text.

        Raises:
            PromptDefinitionError: If there is an image in it.
        """
        if self._parts:
            raise PromptDefinitionError("an image stands in a section with role 'system'; show it in a user section")
        return "".join(self._text)

    def is_blank(self) -> bool:
        """Return whether nothing visible was written yet."""
        return not self._parts and not any(text.strip() for text in self._text)


def _put(section: MarkdownSection, page: _Page, level: int, bindings: Bindings, tools: dict[str, Tool]) -> None:
    if section.enabled is not None and not bindings.ask(section.enabled, section.key):
        return
    tools.update({tool.name: tool for tool in section.tools if tool.name not in tools})
    values: dict[str, Any] = {}
    for name in section.placeholders:
        try:
            values[name] = bindings.value(name)
        except KeyError:
            raise PromptDefinitionError(f"section {section.key!r}: {unfilled(name, bindings.names())}") from None
        except PromptDefinitionError as error:
            raise PromptDefinitionError(f"section {section.key!r}: {error}") from None
    heading = f"{'#' * min(level, _DEEPEST_HEADING)} {section.title}" if section.title else ""
    body = [*fill(section.pieces, values), *section.images]
    gap = ["\n\n"] if heading and body else []
    page.add([heading, *gap, *body])
    for child in section.children:
        _put(child, page, level + 1, bindings, tools)
