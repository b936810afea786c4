"""What crosses between a model and a tool: the arguments that the model writes, and the result that it is shown.

A tool's schema and the reading of its arguments agree: what the schema does not name is refused, at every depth. A
refusal is worded for the model: it names the place, what was expected, what was got and what the tool takes. Two known
mistakes of models are accepted where the meaning is clear: no arguments at all, and JSON packed into a string.

A result is a value: success or not, the typed value for programs, and a message for the model. A failed result is a
result like any other: the model sees it and decides what to do. It is never an exception, and it spends no retry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields as dataclass_fields, is_dataclass
from typing import Any, Final, Generic, TypeVar, cast, is_typeddict, overload

import msgspec
from msgspec.structs import force_setattr

from watchkeeper.core.codec import CodecError, check_size, close, convert, display, json_schema, resolved, unknown_field
from watchkeeper.core.errors import ConfigurationError, ToolDefinitionError, ToolValidationError, WatchkeeperError
from watchkeeper.core.messages import ImagePart, Part, TextPart
from watchkeeper.core.text import clipped, error_text
from watchkeeper.core.type_tags import own_value

T = TypeVar("T")
V = TypeVar("V")

MOST_RESULT_VALUES: Final = 500_000
"""Most values in a result, and in a call's arguments: half of what one record of the log may hold."""

MOST_RESULT_LEVELS: Final = 150
"""Most levels of values inside values there: fewer than a record may have."""


class NothingDoneError(WatchkeeperError):
    """A tool raises it when it fails before it had any effect, so that the same call may be tried again.

    ``@tool(retries=2)`` repeats such an attempt of every tool. Another failure of a tool that is neither read-only nor
    idempotent is not repeated, because it may have had its effect.
    """


@own_value("tool_result")
@dataclass(frozen=True, slots=True)
class ToolResult(Generic[T]):
    """The outcome of one tool call.

    Attributes:
        success: Whether the tool did what it was asked.
        value: What it produced, for programs; None if it failed or produced nothing.
        message: What the model is told; if empty, it is shown the value: as text or JSON, and each `ImagePart` in it as
            an image.
    """

    success: bool
    value: T | None
    message: str

    @overload
    @staticmethod
    def ok(*, message: str = "") -> ToolResult[Any]: ...
    @overload
    @staticmethod
    def ok(value: V, message: str = "") -> ToolResult[V]: ...
    @staticmethod
    def ok(value: Any = None, message: str = "") -> ToolResult[Any]:
        """Return a success.

        Args:
            value: The value that the tool produced.
            message: What the model is told; without one it is shown the value.
        """
        return ToolResult(True, value, message)

    @overload
    @staticmethod
    def error(message: str) -> ToolResult[Any]: ...
    @overload
    @staticmethod
    def error(message: str, value: V) -> ToolResult[V]: ...
    @staticmethod
    def error(message: str, value: Any = None) -> ToolResult[Any]:
        """Return a failure.

        Args:
            message: What went wrong and what the model may do about it.
            value: Something to keep beside the message, for programs.
        """
        return ToolResult(False, value, message)

    def render(self) -> str:
        """Return the text that the model sees: the message if there is one, else the value as text or JSON."""
        return self.shown()[0]

    def shown(self) -> tuple[str, tuple[ImagePart, ...]]:
        """Return the text that the model sees, and the images in the value; the text names each in its place."""
        if self.message:
            return self.message, ()
        if self.value is None:
            return ("done" if self.success else "failed"), ()
        text = display(self.value)
        if _HAS_IMAGE not in text or isinstance(self.value, str):
            return text, ()
        images: list[ImagePart] = []
        rest = _without_images(self.value, images)
        lines = cast("list[object]", rest) if isinstance(rest, list) else []
        alone = bool(lines) and all(isinstance(line, str) for line in lines)
        return ("\n".join(map(str, lines)) if alone else display(rest)), tuple(images)


_HAS_IMAGE: Final = '"media_type":"image/'
"""What the JSON of every value with an `ImagePart` in it contains; so that no other value is walked through."""


def _without_images(value: Any, images: list[ImagePart]) -> Any:
    """Return a value with a name in the place of each image in it; the images are added to the list."""
    if isinstance(value, ImagePart):
        images.append(value)
        return f"(image {len(images)})"
    if isinstance(value, list | tuple):
        return [_without_images(item, images) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {key: _without_images(item, images) for key, item in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, msgspec.Struct):
        fields = ((field.encode_name, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        return {name: _without_images(item, images) for name, item in fields}
    if is_dataclass(value):
        return {field.name: _without_images(getattr(value, field.name), images) for field in dataclass_fields(value)}
    return value


def image_parts(name: str, images: tuple[ImagePart, ...]) -> tuple[Part, ...]:
    """Return what shows a model the images that a tool returned; nothing without images."""
    return (TextPart(f"Images returned by {name}, in order:"), *images) if images else ()


def as_result(returned: object) -> ToolResult[Any]:
    """Return what a tool's function returned as a result; a plain value is taken for a success."""
    return cast("ToolResult[object]", returned) if isinstance(returned, ToolResult) else ToolResult.ok(returned)


_PLACE: Final = r"`\$\.?([^`]*)`"
_MISSING: Final = r"Object missing required field `(?P<name>[^`]*)`(?: - at `(?P<place>[^`]*)`)?"
_STEP: Final = r"\.?([^.\[\]]+)|\[(\d+)\]"
_SHOWN_CHARACTERS: Final = 80

Schema = Mapping[str, Any]


class Arguments(msgspec.Struct, frozen=True):
    """The arguments of one tool.

    A msgspec struct, because the start of every isolated call imports it, and it is there twenty times sooner.

    Attributes:
        tool_name: Name of the tool, for error messages.
        type: The type into which they are decoded.
        schema: JSON Schema of an object, closed and self-contained.
        nested: Whether unknown fields may hide deeper than at the top.
    """

    tool_name: str
    type: Any
    schema: Schema
    nested: bool = False

    def __post_init__(self) -> None:
        """Look once for parts that need a deeper look at every call."""
        parts = cast("Mapping[str, Schema]", self.schema.get("properties", {})).values()
        flat = all(set(part) <= _FLAT_KEYWORDS and part.get("type") not in ("object", "array") for part in parts)
        force_setattr(self, "nested", not flat or "additionalProperties" not in self.schema)

    def read(self, text: str) -> Any:
        """Turn a model's text into the tool's arguments; no text at all means no arguments.

        Raises:
            ToolValidationError: If it is not JSON, not an object, or does not fit; worded for the model.
        """
        raw = self._parse(text)
        try:
            return self._fit(raw)
        except CodecError as error:
            unpacked = self._unpacked(raw)
            if unpacked != raw:
                try:
                    return self._fit(unpacked)
                except (CodecError, ToolValidationError):
                    pass  # the message about what the model really wrote is the better one
            raise self._refusal(_explained(str(error), raw)) from error

    def _parse(self, text: str) -> dict[str, Any]:
        raw = self._json(text)
        if isinstance(raw, str):
            raw = self._json(raw)
        if raw is None:
            return {}
        if not isinstance(raw, dict):
            raise self._refusal(f"expected a JSON object, got {_shown(raw)}")
        return cast("dict[str, Any]", raw)

    def _json(self, text: str) -> Any:
        try:
            check_size(text, MOST_RESULT_VALUES)
            return None if not text.strip() else msgspec.json.decode(text)
        except CodecError as error:
            raise self._refusal(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise self._refusal(f"they are not JSON ({error}): {_shown(text)}") from error

    def _fit(self, raw: dict[str, Any]) -> Any:
        if self.nested or not raw.keys() <= self.schema["properties"].keys():
            unknown = unknown_field(raw, self.schema)
            if unknown is not None:
                raise self._refusal(unknown)
        try:
            return convert(raw, self.type)
        except (CodecError, ToolValidationError):
            raise
        except Exception as error:
            # A check that the user wrote into the params type refused it with its own message.
            raise self._refusal(error_text(error)) from error

    def _unpacked(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with JSON texts opened where only an object or an array can be meant."""
        definitions = self.schema.get("$defs", {})
        properties: Mapping[str, Schema] = self.schema.get("properties", {})
        return {
            name: _opened(value)
            if isinstance(value, str) and name in properties and not _takes_text(properties[name], definitions)
            else value
            for name, value in raw.items()
        }

    def _refusal(self, problem: str) -> ToolValidationError:
        return ToolValidationError(f"The arguments of {self.tool_name} do not fit: {problem}. {self.describe()}")

    def describe(self) -> str:
        """Say in one sentence what the tool takes."""
        properties: Mapping[str, Schema] = self.schema.get("properties", {})
        required, definitions = self.schema.get("required", ()), self.schema.get("$defs", {})
        if not properties:
            return "It takes no arguments." if self.schema.get("additionalProperties") is False else ""
        fields = [
            f"{name} ({_kind(part, definitions)}, {'required' if name in required else _optional(part)})"
            for name, part in properties.items()
        ]
        return f"It takes {', '.join(fields)}."


_FLAT_KEYWORDS: Final = frozenset(
    {"type", "description", "default", "enum", "const", "format", "pattern", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
)


def arguments_schema(tool_name: str, type_: Any, descriptions: Mapping[str, str], defaults: Schema) -> Schema:
    """Return the closed schema of a tool's arguments.

    Args:
        tool_name: Name of the tool, for error messages.
        type_: A dataclass, msgspec struct, typed dict or pydantic model.
        descriptions: What the function's docstring says about fields; the type's own descriptions take precedence.
        defaults: Defaults from the function's signature, as JSON-able values.

    Raises:
        ToolDefinitionError: If the type has no schema, or one that is not an object.
    """
    try:
        schema = close(json_schema(type_))
    except ConfigurationError as error:
        raise ToolDefinitionError(f"the arguments of tool {tool_name!r} cannot be described: {error}") from error
    if schema.get("type") != "object":
        raise ToolDefinitionError(f"tool {tool_name!r} takes {type_!r}, which is not an object; use a dataclass")
    properties = cast("Mapping[str, dict[str, Any]]", schema.get("properties", {}))
    if is_typeddict(type_):
        # The codec knows no order in typed dicts; a model reads the fields as they were written.
        properties = {name: properties[name] for name in type_.__annotations__}
        schema["required"] = [name for name in properties if name in schema["required"]]
    schema["properties"] = {
        name: {
            **({"description": descriptions[name]} if name in descriptions else {}),
            **part,
            **({"default": defaults[name]} if name in defaults else {}),
        }
        for name, part in properties.items()
    }
    return schema


def _takes_text(schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    schema = resolved(schema, definitions)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return any(_takes_text(option, definitions) for option in options)
    return bool(schema.get("type", "string") == "string")


def _opened(text: str) -> Any:
    try:
        check_size(text, MOST_RESULT_VALUES)
        value = msgspec.json.decode(text)
    except (CodecError, ValueError, RecursionError):
        return text
    return cast("Any", value) if isinstance(value, dict | list) else text


def _explained(problem: str, raw: dict[str, Any]) -> str:
    """Put a codec's message into the model's terms, and show the value it is about."""
    places = re.findall(_PLACE, problem)
    shown = ""
    if len(places) == 1:
        value: Any = raw
        for name, index in re.findall(_STEP, places[0]):
            try:
                value = value[name] if name else value[int(index)]
            except (KeyError, IndexError, TypeError):
                break
        else:
            shown = f" ({_shown(value)})"
    problem = re.sub(_PLACE, r"`\1`", problem)
    missing = re.fullmatch(_MISSING, problem)
    if missing is not None:
        return f"`{'.'.join(filter(None, (missing['place'], missing['name'])))}` is required and missing"
    return problem[:1].lower() + problem[1:].replace(" - at ", " at ") + shown


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else display(value)
    short = clipped(text, _SHOWN_CHARACTERS)
    return repr(short) if isinstance(value, str) else short


def _kind(schema: Schema, definitions: Mapping[str, Schema], depth: int = 2) -> str:
    """Name a schema's kind in a few words, with what is inside to a depth."""
    schema = resolved(schema, definitions)
    if "enum" in schema:
        return "one of " + ", ".join(
            display(value) if isinstance(value, str) else str(value) for value in schema["enum"]
        )
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(_kind(option, definitions, depth) for option in options)
    if depth and schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_kind(schema['items'], definitions, depth - 1)}"
    if depth and "prefixItems" in schema:
        parts = [(part.get("description", ""), _kind(part, definitions, depth - 1)) for part in schema["prefixItems"]]
        return f"array [{', '.join(' '.join(filter(None, part)) for part in parts)}]"
    return str(schema.get("type", "anything"))


def _optional(schema: Schema) -> str:
    return f"default {display(schema['default'])!s}" if "default" in schema else "optional"
