"""What a docstring says to a model: the text itself, and a line for each argument or attribute.

Reads the Google style: sections with a heading at the margin and an indented body. Sections about arguments become a
table; sections that only matter to the caller in Python (returns, raises) are dropped; everything else stays text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_FIELD_SECTIONS: Final = (
    "args",
    "arguments",
    "parameters",
    "attributes",
    "fields",
    "keyword args",
    "keyword arguments",
)
_DROPPED_SECTIONS: Final = ("returns", "return", "yields", "yield", "raises", "raise")
_HEADING: Final = re.compile(r"([A-Z][A-Za-z ]*):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\(.*?\))?\s*:(?:\s+|$)(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring taken apart.

    Attributes:
        text: Summary and body, without the sections about arguments, returns and raises.
        fields: Description of each argument or attribute, in one line each.
    """

    text: str = ""
    fields: Mapping[str, str] = field(default_factory=dict[str, str])


def parse_docstring(docstring: str | None) -> Docstring:
    """Take a Google-style docstring apart; one without sections is all text."""
    kept: list[str] = []
    described: dict[str, str] = {}
    section: list[str] = kept
    argument_blocks: list[list[str]] = []
    # A docstring that begins with a heading loses the indent of what is under it when it is cleaned.
    indent_lost = False
    for number, line in enumerate(inspect.cleandoc(docstring or "").splitlines()):
        heading = _HEADING.fullmatch(line)
        title = heading[1].lower() if heading else ""
        if title in _FIELD_SECTIONS:
            indent_lost = number == 0
            section = []
            argument_blocks.append(section)
        elif title in _DROPPED_SECTIONS:
            section = []
        else:
            indent_lost = indent_lost and bool(line)
            if line and not line[0].isspace() and not indent_lost:
                section = kept
            section.append(line)
    for block in argument_blocks:
        described.update(_entries(block))
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), described)


def _entries(block: list[str]) -> dict[str, str]:
    """Read ``name: text`` entries; deeper lines continue the entry above them."""
    lines = [line for line in block if line.strip()]
    margin = min((_indent(line) for line in lines), default=0)
    described: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry is None:
            current.append(line.strip())
        else:
            current = described.setdefault(entry["name"], [])
            current.append(entry["text"])
    return {name: text for name, parts in described.items() if (text := " ".join(filter(None, parts)).strip())}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
