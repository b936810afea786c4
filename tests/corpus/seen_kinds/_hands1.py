"""What a coding agent does with its tools, before it is said which tools these are."""

from __future__ import annotations

from typing import Any

from tests.corpus.seen_kinds._repo1 import Function, Module
from tests.corpus.seen_kinds._world1 import Roaming

Shown = tuple[str, "dict[str, Any] | str", str]
"""The tool, its arguments, and the result."""


class Hands(Roaming):
    """How a read, a search, an edit, a test run is spelled and how its result looks."""

    def hand_read(self, path: str, first: int, last: int, lines: list[str]) -> Shown:
        raise NotImplementedError

    def hand_find(self, pattern: str, under: str, hits: list[tuple[str, int, str]]) -> Shown:
        raise NotImplementedError

    def hand_edit(self, path: str, number: int, old: str, new: str) -> Shown:
        raise NotImplementedError

    def hand_miss(self, path: str, old: str, new: str) -> Shown:
        raise NotImplementedError

    def hand_tests(self, module: Module | None, failing: list[tuple[Module, Function, int]], ran: int) -> Shown:
        raise NotImplementedError

    def hand_list(self, folder: str, names: list[str]) -> Shown:
        raise NotImplementedError

    def hand_line(self, command: str, out: str, code: int = 0) -> Shown:
        """A command of the repository's own tools."""
        raise NotImplementedError
