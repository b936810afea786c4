"""Subagents: an agent hands pieces of work to new prompts with runs of their own, and gets their results back."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.errors import (
        DispatchSubagentError as DispatchSubagentError,
        ToolValidationError as ToolValidationError,
    )
    from watchkeeper.subagents.dispatch import SubagentSettings as SubagentSettings
    from watchkeeper.subagents.payloads import (
        Artifact as Artifact,
        DispatchSubagent as DispatchSubagent,
        DispatchSubagentResult as DispatchSubagentResult,
        DispatchSubagents as DispatchSubagents,
        DispatchSubagentsResult as DispatchSubagentsResult,
        PromptRegistry as PromptRegistry,
        SubagentMode as SubagentMode,
        SubagentOutcome as SubagentOutcome,
    )
    from watchkeeper.subagents.section import PromptSubagentToolsSection as PromptSubagentToolsSection
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "core.errors": "DispatchSubagentError ToolValidationError",
            "subagents.dispatch": "SubagentSettings",
            "subagents.payloads": (
                "Artifact DispatchSubagent DispatchSubagentResult DispatchSubagents DispatchSubagentsResult "
                "PromptRegistry SubagentMode SubagentOutcome"
            ),
            "subagents.section": "PromptSubagentToolsSection",
        },
    )
