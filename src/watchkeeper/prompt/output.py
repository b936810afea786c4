"""The typed answer of a prompt: its schema, and how a model's text becomes a value.

Plain text (``str``) has no schema and is taken as it is. Every other type is asked for as one JSON object; a type that
is not an object (a list, a number, a choice) is wrapped in an object with the one field ``value``. Reading accepts text
around the JSON (a fence, a sentence) and is strict about the type: nothing is coerced, no field is dropped, and an
ambiguous answer is refused. Errors are worded for the model, which must repair the answer.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from watchkeeper.core.codec import CodecError, check_size, close, decode, json_schema, unknown_field
from watchkeeper.core.errors import ConfigurationError, OutputParseError, PromptDefinitionError
from watchkeeper.core.model import OutputSchema
from watchkeeper.core.text import error_text

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

T = TypeVar("T")

WRAPPED: Final = "value"
"""Field that holds an answer which is not an object by itself."""

MOST_VALUES: Final = 150_000
"""Maximum number of values in an answer; no model writes as many."""

_MOST_ATTEMPTS: Final = 64
_MOST_READ: Final = 8_000_000
"""Characters that failed attempts to find JSON in a text may have read, all together."""

_OPENER: Final = re.compile(r"[{\[]")
_BROKEN_OBJECT: Final = re.compile(r"\{\s*\"|\[\s*\{\s*\"")
_BROKEN_VALUE: Final = re.compile(r"\{\s*\"|\[\s*[\"{\[]")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How answers of one type are asked for and read.

    Attributes:
        schema: The schema of the answer.
        wrapper: The object with the one field ``value``, for a type that is not an object by itself; else None.
        expectation: The schema in one sentence, for a model whose answer did not fit.
    """

    schema: OutputSchema
    wrapper: type[Any] | None
    expectation: str


def output_schema(type_: Any) -> OutputSchema | None:
    """Return the schema of an output type, or None for plain text.

    Raises:
        PromptDefinitionError: If no JSON Schema can describe the type.
    """
    return None if type_ is str else answer_form(type_).schema


def answer_form(type_: Any) -> AnswerForm:
    """Return the form of answers of a type other than ``str``; made once per type.

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
        raise PromptDefinitionError(f"output type {name} has no fields; use a dataclass, or str for plain text")
    try:
        schema, wrapper = json_schema(type_), None
        if schema.get("type") != "object":
            name, wrapper = "Answer", msgspec.defstruct("Answer", [(WRAPPED, type_)])
            schema = json_schema(wrapper)
    except ConfigurationError as error:
        raise PromptDefinitionError(f"output type {name} cannot be asked for: {error}") from error
    schema = close(schema)
    return AnswerForm(OutputSchema(name, schema), wrapper, describe(schema))


_cached_form = functools.lru_cache(maxsize=256)(_form)


def _name_of(type_: Any) -> str:
    name = getattr(type_, "__name__", None) or str(type_)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:64] or "Answer"


def parse_output(text: str, type_: type[T]) -> T:
    """Read a model's final text as a value of the output type.

    Args:
        text: The text of the model's answer.
        type_: The output type; ``str`` returns the text unchanged.

    Raises:
        OutputParseError: If the text holds no such value; the message says where it fails, and what was expected.
    """
    if type_ is str:
        return cast("T", text)
    form = answer_form(type_)
    try:
        check_size(text, MOST_VALUES)
        return _only_one(text.strip(), type_, form)
    except CodecError as error:
        raise OutputParseError(f"The answer does not fit: {error}. {form.expectation}", raw=text) from error


def _only_one(text: str, type_: type[T], form: AnswerForm) -> T:
    found: list[T] = []
    problems: list[tuple[int, str]] = []
    for candidate in _candidates(text, _BROKEN_OBJECT if form.wrapper is None else _BROKEN_VALUE):
        try:
            value = _read(candidate, type_, form)
        except CodecError as error:
            problems.append((len(candidate), str(error)))
        except Exception as error:  # a check of the user's own type raised
            problems.append((len(candidate), error_text(error)))
        else:
            found += [value] if value not in found else []
    if len(found) == 1:
        return found[0]
    if found:
        raise CodecError(f"it holds {len(found)} different JSON values that fit, and only one can be meant")
    if problems:
        raise CodecError(max(problems)[1])  # the longest candidate counts as the answer, shorter ones as mentions
    raise CodecError("it holds no JSON object" if text else "it is empty")


def _read(candidate: str, type_: type[T], form: AnswerForm) -> T:
    data = json.loads(candidate, object_pairs_hook=_each_once)
    wrapped = isinstance(data, dict) and cast("dict[str, Any]", data).keys() == {WRAPPED}
    bare = form.wrapper is not None and not wrapped
    unknown = unknown_field({WRAPPED: data} if bare else data, form.schema.schema)
    if unknown is not None:
        raise CodecError(unknown)
    if form.wrapper is None or bare:
        return decode(candidate, type_)
    return cast("T", getattr(decode(candidate, form.wrapper), WRAPPED))


def _each_once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its fields; a field given twice with different values is refused.

    Raises:
        CodecError: Naming the field.
    """
    data: dict[str, Any] = {}
    for name, value in fields:
        if data.setdefault(name, value) != value:
            raise CodecError(f"it gives `{name}` twice, differently, and only one can be meant")
    return data


def _candidates(text: str, broken: re.Pattern[str]) -> Iterator[str]:
    """Yield the whole text if it is JSON, else the outermost JSON objects and lists in it.

    Args:
        text: The text of the model's answer.
        broken: How the answer begins, also where it is no valid JSON.

    Raises:
        CodecError: At invalid JSON, because values inside it would be parts of the answer, not the answer.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        yield text
        return
    position = read = 0
    for _ in range(_MOST_ATTEMPTS):
        start = _OPENER.search(text, position)
        if start is None or read > _MOST_READ:
            return
        try:
            _, end = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError) as error:
            if broken.match(text, start.start()):
                raise CodecError(_json_problem(error)) from error
            position = start.end()
            read += len(text) - position  # an error does not tell how far the text was read
        else:
            yield text[start.start() : end]
            position = end


def _json_problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"it is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    return f"it is not valid JSON: {error}"


def describe(schema: Mapping[str, Any]) -> str:
    """Return a sentence that describes an answer: its fields, their types, which may be left out."""
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
    """Return the text that asks for an answer in this form, for models without native structured output."""
    schema = json.dumps(form.schema.schema, ensure_ascii=False)
    return (
        "When you are done, answer with exactly one JSON object that fits this JSON Schema, "
        f"without anything before or after it:\n\n{schema}"
    )
