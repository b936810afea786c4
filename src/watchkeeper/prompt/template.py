"""A typed prompt template: sections under a name, and the type of the answer.

`PromptTemplate[Report](...)` asks for a `Report`; without a type the answer is plain text. Everything that can be
wrong with a template is found when it is made: syntax, equal keys, tools that clash, an output type that has no
schema, and, if it declares its ``params``, placeholders and predicates that nothing fills. Without declared params,
what is missing is known, and refused, when it is rendered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any, Generic, TypeVar, cast

from watchkeeper.core.errors import ConfigurationError, ObserverError, PromptDefinitionError
from watchkeeper.prompt.bindings import ambiguous, field_owners, match_predicate, unknown
from watchkeeper.prompt.completion import COMPLETION_ROUNDS, TaskCompletionChecker, on_error_of
from watchkeeper.prompt.nested import NestedExecutionConfig
from watchkeeper.prompt.observer import FeedbackProviderConfig, ObserverConfig, SourceConfig, check_distinct
from watchkeeper.prompt.output import OutputT, output_schema
from watchkeeper.prompt.sections import KEY, MarkdownSection
from watchkeeper.tools.tool import Tool


class _TypedTemplate(GenericAlias):
    """`PromptTemplate[Report]`: an alias that hands its argument to the constructor."""

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
        sections: What it says, in order; a list or a tuple.
        name: Name in logs and events; ``ns/key`` if left out.
        params: Dataclasses whose fields fill the placeholders. None: not declared, checked when rendered.
        output_type: Type of the answer: a dataclass, a pydantic model, a msgspec struct, a list of them, ...; usually
            given as ``PromptTemplate[Report]``.
        task_completion_checker: Who says whether the work is done, or None.
        completion_rounds: How often "incomplete" may send the agent back to work; with 0 the first one ends the run.
        observers: Who assesses how a run is going, and when.
        feedback_providers: Who gives feedback on it, and when.
        nested_execution_config: What nested evaluations of its runs may do; None for the defaults.
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
            put(self, "sections", _as_sections(self.sections))
            _check_section_keys(self.walk())
            _distinct_tools(self.walk())
            output_schema(self.output_type)
            _check_checker(self.task_completion_checker)
            _check_rounds(self.completion_rounds)
            _check_nested(self.nested_execution_config)
            put(self, "observers", _configs(self.observers, ObserverConfig, "observers"))
            put(
                self,
                "feedback_providers",
                _configs(self.feedback_providers, FeedbackProviderConfig, "feedback_providers"),
            )
            check_distinct(self.sources)
            if self.params is not None:
                put(self, "params", _as_params(self.params))
                self._check_names(cast("tuple[type[Any], ...]", self.params))
        except (PromptDefinitionError, ObserverError) as error:
            raise type(error)(f"prompt {f'{self.ns}/{self.key}'!r}: {error}") from error.__cause__

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Observers, then feedback providers."""
        return (*self.observers, *self.feedback_providers)

    @property
    def models(self) -> tuple[Any, ...]:
        """Models that its sections name for child runs, each once."""
        found: list[Any] = []
        for section in self.walk():
            found += [model for model in section.models if not any(model is other or model == other for other in found)]
        return tuple(found)

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

    def _check_names(self, params: tuple[type[Any], ...]) -> None:
        owners = field_owners(params)
        for section in self.walk():
            for name in sorted(section.placeholders):
                if name not in owners:
                    raise PromptDefinitionError(f"section {section.key!r}: {unknown(name, owners)}")
                if len(owners[name]) > 1:
                    raise PromptDefinitionError(f"section {section.key!r}: {ambiguous(name, owners[name])}")
            if section.enabled is not None:
                match_predicate(section.enabled, section.key, params, owners)


def _check_checker(given: object) -> None:
    if given is not None and (isinstance(given, type) or not isinstance(given, TaskCompletionChecker)):
        raise PromptDefinitionError(
            f"task_completion_checker={given!r} is no checker; give for example FileOutputChecker(['report.md'])"
        )
    try:
        on_error_of(given)
    except ConfigurationError as error:
        raise PromptDefinitionError(f"task_completion_checker: {error}") from error


def _check_rounds(given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise PromptDefinitionError(
            f"completion_rounds={given!r} must be a whole number: how often the agent may be sent back to work"
        )


def _check_nested(given: object) -> None:
    if not isinstance(given, NestedExecutionConfig | None):
        raise PromptDefinitionError(
            f"nested_execution_config={given!r} is none; give NestedExecutionConfig(max_nested_duration='15s')"
        )


def _configs(given: object, kind: type[Any], name: str) -> tuple[Any, ...]:
    if isinstance(given, kind) or not hasattr(given, "__iter__"):
        raise ObserverError(f"{name} must be a list or tuple of {kind.__name__}(...), not {given!r}")
    configs = tuple(cast("Sequence[Any]", given))
    for config in configs:
        if not isinstance(config, kind):
            raise ObserverError(f"{name} holds {config!r}; wrap it: {kind.__name__}(..., trigger=ObserverTrigger(...))")
    return configs


def _as_sections(given: object) -> tuple[MarkdownSection, ...]:
    if isinstance(given, (MarkdownSection, str)) or not hasattr(given, "__iter__"):
        raise PromptDefinitionError(f"sections must be a list or tuple of sections, not {given!r}")
    sections = tuple(cast("Sequence[Any]", given))
    if not sections:
        raise PromptDefinitionError("it has no sections; give at least one MarkdownSection(title=, key=, template=)")
    for section in sections:
        if not isinstance(section, MarkdownSection):
            raise PromptDefinitionError(f"{section!r} is not a section; use MarkdownSection(title=, key=, template=)")
    return sections


def _as_params(given: object) -> tuple[type[Any], ...]:
    if isinstance(given, type) or not hasattr(given, "__iter__"):
        raise PromptDefinitionError(f"params must be a list or tuple of dataclass types, not {given!r}")
    params = tuple(cast("Sequence[Any]", given))
    for type_ in params:
        if not (isinstance(type_, type) and dataclasses.is_dataclass(type_)):
            raise PromptDefinitionError(f"{type_!r} in params is not a dataclass; declare dataclass types")
    if len(set(params)) < len(params):
        raise PromptDefinitionError("params names a type twice")
    return params


def _check_section_keys(sections: Iterator[MarkdownSection]) -> None:
    seen: set[str] = set()
    for section in sections:
        if section.key in seen:
            raise PromptDefinitionError(f"two sections have the key {section.key!r}; keys must be unique in a prompt")
        seen.add(section.key)


def _distinct_tools(sections: Iterator[MarkdownSection]) -> tuple[Tool, ...]:
    found: dict[str, tuple[Tool, str]] = {}
    for section in sections:
        for tool in section.tools:
            known, place = found.setdefault(tool.name, (tool, section.key))
            if known is not tool and known != tool:
                where = (
                    f"section {place!r} has two different tools"
                    if place == section.key
                    else f"sections {place!r} and {section.key!r} have different tools"
                )
                raise PromptDefinitionError(f"{where} with the name {tool.name!r}; rename one: @tool(name=...)")
    return tuple(tool for tool, _ in found.values())
