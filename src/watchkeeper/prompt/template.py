"""A typed prompt template: sections under a name, and the type of the answer.

`PromptTemplate[Report](...)` asks for a `Report`; without a type the answer is plain text. A template is checked when
it is made: the syntax, duplicate keys, different tools with the same name, an output type without a schema, and, if it
declares its ``params``, placeholders and predicates that have no value. Without declared params, a missing value is
found when the prompt is rendered.

A `Prompt` is a template with values bound to it. Both are frozen: `bind` and `with_variables` return new prompts.
Rendering is pure: the same prompt renders to the same messages every time, values are inserted exactly as they are, and
a name without a value is an error, never an empty text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import GenericAlias, MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar, Unpack, cast

from watchkeeper.core.clock import Deadline
from watchkeeper.core.errors import ConfigurationError, ObserverError, PromptDefinitionError
from watchkeeper.core.messages import ImagePart, Message, Part, SystemMessage, TextPart, UserMessage
from watchkeeper.core.quantities import duration, is_whole
from watchkeeper.prompt.completion import (
    COMPLETION_ROUNDS,
    TaskCompletionChecker,
    asked_models,
    is_checker,
    on_error_of,
)
from watchkeeper.prompt.evaluation import NESTED, EvaluateOptions, NestedExecutionConfig, PromptResponse
from watchkeeper.prompt.observer import FeedbackProviderConfig, ObserverConfig, SourceConfig, check_distinct
from watchkeeper.prompt.output import OutputT, answer_form, format_section, output_schema
from watchkeeper.prompt.evaluation import RenderedPrompt
from watchkeeper.prompt.sections import (
    KEY,
    Bindings,
    MarkdownSection,
    ambiguous,
    field_owners,
    fill,
    listed,
    listing,
    match_predicate,
    unknown,
)
from watchkeeper.tools.tool import Tool


class _TypedTemplate(GenericAlias):
    """`PromptTemplate[Report]`: an alias that passes its argument to the constructor."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        (output_type,) = self.__args__
        if not isinstance(output_type, TypeVar):
            kwargs.setdefault("output_type", output_type)
        return cast("Any", self.__origin__)(*args, **kwargs)


@dataclass(frozen=True, slots=True, eq=False)
class PromptTemplate(Generic[OutputT]):
    """A prompt before anything is bound to it.

    Attributes:
        ns: Namespace, for example ``support``.
        key: Unique within the namespace.
        sections: Its sections, in order; a list or a tuple.
        name: Name in logs and events; ``ns/key`` if left out.
        params: Dataclasses whose fields fill the placeholders. None: not declared, checked when rendered.
        output_type: Type of the answer: a dataclass, a pydantic model, a msgspec struct, a list of them, ...; usually
            given as ``PromptTemplate[Report]``.
        task_completion_checker: Checks whether the work is done, or None.
        completion_rounds: How often "incomplete" may send the agent back to work; with 0 the first one ends the run.
        observers: Observers of its runs, each with its trigger.
        feedback_providers: Feedback providers of its runs, each with its trigger.
        nested_execution_config: The rules of nested evaluations in its runs; None for the defaults.
    """

    ns: str
    key: str
    sections: Sequence[MarkdownSection]
    name: str = ""
    params: Sequence[type[Any]] | None = None
    output_type: type[OutputT] = field(default=cast("type[OutputT]", str))
    task_completion_checker: TaskCompletionChecker | None = None
    observers: Sequence[ObserverConfig] = ()
    feedback_providers: Sequence[FeedbackProviderConfig] = ()
    nested_execution_config: NestedExecutionConfig | None = None
    completion_rounds: int = COMPLETION_ROUNDS

    def __class_getitem__(cls, item: Any) -> _TypedTemplate:
        """Fix the output type."""
        return _TypedTemplate(cls, (item,))

    def __post_init__(self) -> None:
        """Check everything that can be checked before values are bound.

        Raises:
            PromptDefinitionError: Naming the prompt, the section, what is wrong and what exists.
        """
        put = object.__setattr__
        try:
            self._check_keys()
            put(self, "name", self.name or f"{self.ns}/{self.key}")
            advice = "use MarkdownSection(title=, key=, template=)"
            put(self, "sections", listed(self.sections, "sections", MarkdownSection, advice))
            self._check_section_keys()
            _distinct_tools(self.walk())
            output_schema(self.output_type)
            self._check_rules()
            for name, kind in (("observers", ObserverConfig), ("feedback_providers", FeedbackProviderConfig)):
                advice = f"wrap it: {kind.__name__}(..., trigger=ObserverTrigger(...))"
                put(self, name, listed(getattr(self, name), name, kind, advice, ObserverError))
            check_distinct(self.sources)
            self._check_judges()
            if self.params is not None:
                put(self, "params", _as_params(self.params))
                self._check_names(self.params)
        except (PromptDefinitionError, ObserverError) as error:
            raise type(error)(f"prompt {f'{self.ns}/{self.key}'!r}: {error}") from error.__cause__

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Observers, then feedback providers."""
        return (*self.observers, *self.feedback_providers)

    @property
    def models(self) -> tuple[Any, ...]:
        """Models that its sections, its checker and its sources name for child runs, each once."""
        found: list[Any] = []
        for named in (*(section.models for section in self.walk()), self.judges):
            found += [model for model in named if not any(model is other or model == other for other in found)]
        return tuple(found)

    @property
    def judges(self) -> tuple[Any, ...]:
        """Models that its checker and its sources ask beside the run's own: model strings and adapters."""
        asking = (self.task_completion_checker, *(config.source for config in self.sources))
        return tuple(model for each in asking for model in asked_models(each))

    def walk(self) -> Iterator[MarkdownSection]:
        """Yield every section, nested ones too, in document order."""
        for section in self.sections:
            yield from section.walk()

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of all placeholders in all sections."""
        return frozenset(name for section in self.walk() for name in section.placeholders)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools of all sections, enabled or not, in document order, each once."""
        return _distinct_tools(self.walk())

    def _check_keys(self) -> None:
        for what, value in (("ns", self.ns), ("key", self.key)):
            parts = value.split("/") if what == "ns" else [value]
            if not all(KEY.fullmatch(part) for part in parts):
                raise PromptDefinitionError(f"{what} {value!r} must be letters, digits, '.', '-' or '_'")

    def _check_rules(self) -> None:
        """Refuse an invalid completion checker, number of rounds or nested configuration."""
        checker, nested = self.task_completion_checker, cast("object", self.nested_execution_config)
        if checker is not None and not is_checker(checker):
            raise PromptDefinitionError(
                f"task_completion_checker={checker!r} is no checker; give for example FileOutputChecker(['report.md'])"
            )
        try:
            on_error_of(checker)
        except ConfigurationError as error:
            raise PromptDefinitionError(f"task_completion_checker: {error}") from error
        if not is_whole(self.completion_rounds, 0):
            raise PromptDefinitionError(
                f"completion_rounds={self.completion_rounds!r} must be a whole number: how often the agent may be sent"
                " back to work"
            )
        if not isinstance(nested, NestedExecutionConfig | None):
            raise PromptDefinitionError(
                f"nested_execution_config={nested!r} must be a NestedExecutionConfig(max_nested_duration='15s')"
            )

    def _check_judges(self) -> None:
        """Refuse a shipped judge that was given more time than its runs allow: it would be cut off silently."""
        longest = (self.nested_execution_config or NESTED).longest
        for judge in (self.task_completion_checker, *(config.source for config in self.sources)):
            given = getattr(judge, "max_duration", None) if hasattr(judge, "asked_models") else None
            if given is not None and duration(given, "max_duration") > longest:
                seconds = f"{longest.total_seconds():g}s"
                raise PromptDefinitionError(
                    f"max_duration={given!r} of {type(judge).__name__} is more than max_nested_duration={seconds!r} of"
                    " the template; raise it there: nested_execution_config=NestedExecutionConfig("
                    "max_nested_duration=...)"
                )

    def _check_section_keys(self) -> None:
        if not self.sections:
            raise PromptDefinitionError(
                "it has no sections; give at least one MarkdownSection(title=, key=, template=)"
            )
        seen: set[str] = set()
        for section in self.walk():
            if section.key in seen:
                raise PromptDefinitionError(
                    f"two sections have the key {section.key!r}; keys must be unique in a prompt"
                )
            seen.add(section.key)

    def _check_names(self, params: Sequence[type[Any]]) -> None:
        owners = field_owners(params)
        for section in self.walk():
            for name in sorted(section.placeholders):
                if name not in owners:
                    raise PromptDefinitionError(f"section {section.key!r}: {unknown(name, owners)}")
                if len(owners[name]) > 1:
                    raise PromptDefinitionError(f"section {section.key!r}: {ambiguous(name, owners[name])}")
            if section.enabled is not None:
                match_predicate(section.enabled, section.key, params, owners)


def _as_params(given: object) -> tuple[type[Any], ...]:
    params = listed(given, "params", type, "declare dataclass types")
    for type_ in params:
        if not dataclasses.is_dataclass(type_):
            raise PromptDefinitionError(f"{type_!r} in params is not a dataclass; declare dataclass types")
    if len(set(params)) < len(params):
        raise PromptDefinitionError("params names a type twice")
    return params


def _distinct_tools(sections: Iterator[MarkdownSection]) -> tuple[Tool, ...]:
    found: dict[str, tuple[Tool, str]] = {}
    for section in sections:
        for tool in section.tools:
            known, place = found.setdefault(tool.name, (tool, section.key))
            if known is not tool and known != tool:
                where = f"section {place!r}" if place == section.key else f"sections {place!r} and {section.key!r}"
                said = f"two different tools have the name {tool.name!r} in {where}"
                raise PromptDefinitionError(f"{said}; rename one: @tool(name=...)")
    return tuple(tool for tool, _ in found.values())


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
        """Refuse a template of another type.

        Raises:
            PromptDefinitionError: Naming it.
        """
        given = cast("object", self.template)
        if not isinstance(given, PromptTemplate):
            raise PromptDefinitionError(f"{given!r} is no template; write Prompt(PromptTemplate(ns=, key=, sections=))")

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
                declares its params and a value's type is not among them.
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
            PromptDefinitionError: If the template declares its params and they have no field of that name.
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
        """Return the prompt with every value in its place.

        Args:
            deadline: When the evaluation must be over; kept on the result.
            output_in_prompt: Whether to describe the answer's JSON Schema in the prompt, for models without native
                structured output.

        Raises:
            PromptDefinitionError: If a placeholder of an enabled section has no value, or no section with role
                ``user`` has text.
        """
        try:
            messages, tools = self._write(output_in_prompt)
        except PromptDefinitionError as error:
            raise self._error(str(error)) from error.__cause__
        return RenderedPrompt(
            ns=self.ns,
            key=self.key,
            name=self.name,
            messages=messages,
            tools=tools,
            output_type=self.output_type,
            output=output_schema(self.output_type),
            deadline=Deadline(deadline) if isinstance(deadline, datetime) else deadline,
        )

    def _write(self, output_in_prompt: bool) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
        bindings = Bindings(self._with_defaults(), self.variables)
        system, user = _Page(), _Page()
        tools: dict[str, Tool] = {}
        for section in self.template.sections:
            _put(section, system if section.role == "system" else user, 1, bindings, tools)
        if user.is_blank():
            raise PromptDefinitionError("nothing is left to say to the model: no section with role 'user' has text")
        if output_in_prompt and self.output_type is not str:
            user.add(["# Answer format\n\n", format_section(answer_form(self.output_type))])
        asked = UserMessage(user.parts())
        messages = (asked,) if system.is_blank() else (SystemMessage(system.text()), asked)
        return messages, tuple(tools.values())

    def _with_defaults(self) -> Mapping[type[Any], Any]:
        """Return the bound values, and the defaults of declared params that are not bound and need no arguments."""
        missing = [type_ for type_ in self.template.params or () if type_ not in self.params]
        return {**self.params, **{type_: type_() for type_ in missing if _needs_nothing(type_)}}

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


AnyPrompt = Prompt[OutputT] | PromptTemplate[OutputT]
"""A prompt, or a template without placeholders, or of which values are bound elsewhere."""


def _needs_nothing(type_: type[Any]) -> bool:
    absent = dataclasses.MISSING
    return all(
        item.default is not absent or item.default_factory is not absent
        for item in dataclasses.fields(type_)
        if item.init
    )


@dataclass(slots=True)
class _Page:
    """The content of one message while it is written: text, with images between."""

    _parts: list[Part] = field(default_factory=list[Part])
    _text: list[str] = field(default_factory=list[str])

    def add(self, block: Iterable[str | ImagePart]) -> None:
        """Write a block, separated from the text before it by a blank line."""
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
        """Return the content."""
        self._flush()
        return tuple(self._parts)

    def text(self) -> str:
        """Return the content as one text.

        Raises:
            PromptDefinitionError: If there is an image in it.
        """
        if self._parts:
            raise PromptDefinitionError("an image is in a section with role 'system'; put it into a user section")
        return "".join(self._text)

    def is_blank(self) -> bool:
        """Return whether there is no image and no visible text."""
        return not self._parts and not any(text.strip() for text in self._text)


def _put(section: MarkdownSection, page: _Page, level: int, bindings: Bindings, tools: dict[str, Tool]) -> None:
    if section.enabled is not None and not bindings.ask(section.enabled, section.key):
        return
    tools.update({tool.name: tool for tool in section.tools if tool.name not in tools})
    try:
        values = {name: bindings.value(name) for name in section.placeholders}
    except PromptDefinitionError as error:
        raise PromptDefinitionError(f"section {section.key!r}: {error}") from None
    heading = f"{'#' * min(level, _DEEPEST_HEADING)} {section.title}" if section.title else ""
    body = [*fill(section.pieces, values), *section.images]
    gap = ["\n\n"] if heading and body else []
    page.add([heading, *gap, *body])
    for child in section.children:
        _put(child, page, level + 1, bindings, tools)


AnswerT = TypeVar("AnswerT")


class ProviderAdapter(Protocol):
    """Evaluates prompts with one model.

    An adapter of your own takes the options as ``**options: Unpack[EvaluateOptions]``; pyright refuses one that lists
    them.
    """

    def evaluate(
        self, prompt: Prompt[AnswerT], *params: Any, **options: Unpack[EvaluateOptions]
    ) -> PromptResponse[AnswerT]:
        """Evaluate a prompt and return the answer.

        Args:
            prompt: What to evaluate.
            *params: Dataclass values to bind to it.
            **options: See `EvaluateOptions`.

        Raises:
            PromptEvaluationError: With phase ``preflight`` for an invalid deadline, and for failures.
            DeadlineExceededError: The deadline passed.
            BudgetExceededError: A ceiling was reached.
            OutputParseError: The final answer does not fit.
        """
        ...

    async def evaluate_async(
        self, prompt: Prompt[AnswerT], *params: Any, **options: Unpack[EvaluateOptions]
    ) -> PromptResponse[AnswerT]:
        """Evaluate a prompt; as `evaluate`, on the caller's loop."""
        ...
