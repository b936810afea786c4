"""Placeholders in a section's text: ``${name}``, ``$name``, and ``$$`` for a dollar sign.

The text is parsed once, when its section is made; filling it is a join. A value goes in exactly as it is and is never
looked at again, so text from outside cannot smuggle in a placeholder. What is not text is written as JSON, but dates,
paths and the like without quotes; an image takes its place between the texts around it.
"""

from __future__ import annotations

import os
import string
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import msgspec

from watchkeeper.core.codec import display
from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import ImagePart


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A gap in a text, to be filled with the value of this name."""

    name: str


Piece = str | Placeholder


def parse_text(text: str) -> tuple[Piece, ...]:
    """Split a template's text into literal text and placeholders; common indentation and outer blank lines go.

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
        elif _are_images(value):
            yield from value
        else:
            yield as_text(value)


def _are_images(value: Any) -> TypeGuard[Sequence[ImagePart]]:
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(item, ImagePart) for item in cast("Sequence[Any]", value))


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
