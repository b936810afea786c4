"""Subagents: an agent hands blocks of work to fresh prompts below it, and gets back what matters.

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import imported_when_used

if TYPE_CHECKING:
    from watchkeeper.core.errors import DispatchSubagentError, ToolValidationError
    from watchkeeper.subagents.dispatch import SubagentSettings
    from watchkeeper.subagents.payloads import (
        Artifact,
        DispatchSubagent,
        DispatchSubagentResult,
        DispatchSubagents,
        DispatchSubagentsResult,
        PromptRegistry,
        SubagentMode,
        SubagentOutcome,
    )
    from watchkeeper.subagents.section import PromptSubagentToolsSection

_HOMES: Final = {
    "Artifact": "watchkeeper.subagents.payloads",
    "DispatchSubagent": "watchkeeper.subagents.payloads",
    "DispatchSubagentError": "watchkeeper.core.errors",
    "DispatchSubagentResult": "watchkeeper.subagents.payloads",
    "DispatchSubagents": "watchkeeper.subagents.payloads",
    "DispatchSubagentsResult": "watchkeeper.subagents.payloads",
    "PromptRegistry": "watchkeeper.subagents.payloads",
    "PromptSubagentToolsSection": "watchkeeper.subagents.section",
    "SubagentMode": "watchkeeper.subagents.payloads",
    "SubagentOutcome": "watchkeeper.subagents.payloads",
    "SubagentSettings": "watchkeeper.subagents.dispatch",
    "ToolValidationError": "watchkeeper.core.errors",
}

__all__ = [
    "Artifact",
    "DispatchSubagent",
    "DispatchSubagentError",
    "DispatchSubagentResult",
    "DispatchSubagents",
    "DispatchSubagentsResult",
    "PromptRegistry",
    "PromptSubagentToolsSection",
    "SubagentMode",
    "SubagentOutcome",
    "SubagentSettings",
    "ToolValidationError",
]

__getattr__ = imported_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
