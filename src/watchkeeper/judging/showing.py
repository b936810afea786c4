"""What a judge is shown of a run, as bounded text, and whether what it quotes was shown.

Everything is cut to a stated length, so that judging costs the same after ten tool calls and after ten thousand. The
marks that fence data off in the evaluation templates are taken out of the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from watchkeeper.core.codec import display
from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.invoked import ToolInvoked, is_success

TASK_CHARS: Final = 2_000
ANSWER_CHARS: Final = 4_000
FILE_CHARS: Final = 2_000
NAME_CHARS: Final = 64
ARGUMENT_CHARS: Final = 160
RESULT_CHARS: Final = 160

_MARKS: Final = re.compile(r"[<>]{3,}")
"""Whole runs of both signs: taking out only one of them could bring the other's halves together."""

_ELLIPSIS: Final = re.compile(r"\.{3,}|…")
_WORD: Final = re.compile(r"\w+")


def cut(text: str, most: int) -> str:
    """Return at most ``most`` characters of a text: its beginning and its end, with a note where something is left out.

    Args:
        text: Any text; marks that fence off data are taken out of it.
        most: How many characters of it.
    """
    text = _MARKS.sub("", text)
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail]} [{len(text) - most:,} characters left out] {text[len(text) - tail :]}"


def shown_answer(answer: Any) -> str:
    """Return an agent's answer as text; a typed one as JSON."""
    return cut(display(answer), ANSWER_CHARS)


def shown_calls(calls: Sequence[ToolInvoked]) -> str:
    """Return tool calls, one a line: what was asked, whether it worked, and how the result begins."""
    return "\n".join(_shown_call(call) for call in calls)


def _shown_call(call: ToolInvoked) -> str:
    arguments = _line(display(call.params), ARGUMENT_CHARS)
    outcome = "ok" if is_success(call) else call.outcome if call.outcome != "ok" else "failed"
    name = _line(call.name, NAME_CHARS)  # a model may have called a tool that there is not, by any name
    return f"{name} {arguments} -> {outcome}: {_line(call.rendered_output, RESULT_CHARS)}"


def _line(text: str, most: int) -> str:
    return cut(" ".join(text[: 2 * most].split()), most)


def shown_files(files: Filesystem | None, paths: Sequence[str]) -> str:
    """Return the contents of files, each under its path, one that is not there as that."""
    return "\n\n".join(f"File {path}:\n{_content(files, path)}" for path in paths)


def _content(files: Filesystem | None, path: str) -> str:
    if files is None:
        return "(the run has no files)"
    try:
        return cut(files.read_text(path), FILE_CHARS)
    except FilesystemError as error:
        return f"({error})"


def has_words(text: str) -> bool:
    """Return whether there is a word or a number in a text."""
    return _WORD.search(text) is not None


def unfounded(quotes: Iterable[str], shown: str) -> tuple[str, ...]:
    """Return the quotes that stand nowhere in what was shown; one without a word in it stands nowhere.

    Words count, in their order; capitals, white space, punctuation and marks do not. An ellipsis stands for anything.
    """
    text = f" {_words(shown)} "

    def stands(quote: str) -> bool:
        parts = [words for part in _ELLIPSIS.split(quote) if (words := _words(part))]
        return bool(parts) and all(f" {part} " in text for part in parts)

    return tuple(quote for quote in quotes if not stands(quote))


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))
