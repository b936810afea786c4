"""The typed answer of a prompt: its schema, and how a model's text becomes a value.

Plain text (``str``) has no schema and is taken as it is. Everything else is asked for as one JSON object; a type that
is none (a list, a number, a choice) is wrapped in an object with the one field ``value``. Reading is tolerant of what
models put around JSON (a fence, a sentence) and strict about the type: nothing is coerced, and an answer that could
mean two things is refused. Errors are worded for the model that must repair the answer.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from watchkeeper.core.codec import CodecError, convert, decode, json_schema, map_schema
from watchkeeper.core.errors import ConfigurationError, OutputParseError, PromptDefinitionError
from watchkeeper.core.model import OutputSchema

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

T = TypeVar("T")

WRAPPED: Final = "value"
"""Field that holds an answer which is not an object by itself."""

_MOST_ATTEMPTS: Final = 64
_OPENER: Final = re.compile(r"[{\[]")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How answers of one type are asked for and read.

    Attributes:
        schema: What the model is asked for.
        wrapped: Whether the value lies in the field ``value`` of the object.
        expectation: The same in one sentence, for a model that got it wrong.
    """

    schema: OutputSchema
    wrapped: bool
    expectation: str


def output_schema(type_: Any) -> OutputSchema | None:
    """Return the schema of an output type, or None for plain text.

    Raises:
        PromptDefinitionError: If no JSON Schema can describe the type.
    """
    return None if type_ is str else answer_form(type_).schema


def answer_form(type_: Any) -> AnswerForm:
    """Return how answers of a type other than ``str`` are asked for and read; made once per type.

    Raises:
        PromptDefinitionError: If no JSON Schema can describe the type.
    """
    try:
        return _cached_form(type_)
    except TypeError:  # an unhashable annotation
        return _form(type_)


def _form(type_: Any) -> AnswerForm:
    name = _name_of(type_)
    if type_ is Any or type_ is object or type_ is None or type_ is type(None):
        raise PromptDefinitionError(f"output type {name} says nothing; use a dataclass, or str for plain text")
    try:
        schema = json_schema(type_)
        wrapped = schema.get("type") != "object"
        if wrapped:
            name = "Answer"
            schema = json_schema(msgspec.defstruct(name, [(WRAPPED, type_)]))
    except ConfigurationError as error:
        raise PromptDefinitionError(f"output type {name} cannot be asked for: {error}") from error
    schema = map_schema(schema, _closed)
    return AnswerForm(OutputSchema(name, schema), wrapped, describe(schema))


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Name every field that may be given, as providers want it, and drop titles: they repeat names and cost tokens."""
    table = {key: value for key, value in schema.items() if key != "title"}
    if "properties" in table:
        table.setdefault("additionalProperties", False)
    return table


_cached_form = functools.lru_cache(maxsize=256)(_form)


def _name_of(type_: Any) -> str:
    name = getattr(type_, "__name__", None) or str(type_)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:64] or "Answer"


def parse_output(text: str, type_: type[T]) -> T:
    """Read a model's final text as a value of the output type.

    Args:
        text: What the model answered.
        type_: The output type; ``str`` returns the text unchanged.

    Raises:
        OutputParseError: If the text holds no such value; the message says where and what was expected.
    """
    if type_ is str:
        return cast("T", text)
    form = answer_form(type_)
    found: list[T] = []
    problem = ""
    for candidate in _candidates(text):
        try:
            value = _read(candidate, type_, form)
        except CodecError as error:
            problem = problem or f"The answer does not fit: {error}."
            continue
        if value not in found:
            found.append(value)
    if len(found) == 1:
        return found[0]
    if found:
        problem = f"The answer holds {len(found)} different JSON values that fit; only one can be the answer."
    raise OutputParseError(f"{problem or _no_json(text)} {form.expectation}", raw=text)


def _read(candidate: str, type_: type[T], form: AnswerForm) -> T:
    if not form.wrapped:
        return decode(candidate, type_)
    data = decode(candidate, cast("type[Any]", Any))
    if isinstance(data, dict) and cast("dict[str, Any]", data).keys() == {WRAPPED}:
        return convert(data[WRAPPED], type_)
    return convert(data, type_)


def _candidates(text: str) -> Iterator[str]:
    """Yield the whole text if it is JSON, else every outermost JSON object or array in it."""
    stripped = text.strip()
    if _is_json(stripped):
        yield stripped
        return
    position = 0
    for _ in range(_MOST_ATTEMPTS):
        opener = _OPENER.search(stripped, position)
        if opener is None:
            return
        try:
            _, end = json.JSONDecoder().raw_decode(stripped, opener.start())
        except (ValueError, RecursionError):
            position = opener.end()
        else:
            yield stripped[opener.start() : end]
            position = end


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _no_json(text: str) -> str:
    stripped = text.strip()
    if not stripped:
        return "The answer is empty."
    start = stripped.find("{")
    if start < 0:
        return "The answer holds no JSON object."
    try:
        json.JSONDecoder().raw_decode(stripped, start)
    except json.JSONDecodeError as error:
        return f"The answer is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
    except (ValueError, RecursionError) as error:
        return f"The answer is not valid JSON: {error}."
    return "The answer holds no JSON object."


def describe(schema: Mapping[str, Any]) -> str:
    """Say in one sentence what an answer must look like: its fields, their kinds, which may be left out."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = set(cast("list[str]", schema.get("required", [])))
    fields = [
        f"`{name}` ({_kind(field, definitions)}{'' if name in required else ', may be left out'})"
        for name, field in properties.items()
    ]
    what = f" with {', '.join(fields)}" if fields else ""
    return f"Give the whole answer again as one JSON object{what}, and nothing else."


def _kind(field: Any, definitions: Mapping[str, Any]) -> str:
    schema = cast("Mapping[str, Any]", field if isinstance(field, dict) else {})
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _kind(definitions.get(reference.rsplit("/", 1)[-1]), {})
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(item, ensure_ascii=False) for item in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(dict.fromkeys(_kind(option, definitions) for option in options))
    if schema.get("type") == "array" and schema.get("items"):
        return f"array of {_kind(schema['items'], definitions)}"
    kind = schema.get("type", "any value")
    return " or ".join(cast("list[str]", kind)) if isinstance(kind, list) else str(kind)


def format_section(form: AnswerForm) -> str:
    """Return the text that asks for an answer in this form, for models that cannot be held to a schema."""
    schema = json.dumps(form.schema.schema, ensure_ascii=False)
    return (
        "When you are done, answer with exactly one JSON object that fits this JSON Schema, "
        f"without anything before or after it:\n\n{schema}"
    )
