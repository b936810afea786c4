"""Subagents: an agent starts runs of other prompts for parts of its work, and gets their results."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.errors import DispatchSubagentError as DispatchSubagentError
    from watchkeeper.core.errors import ToolValidationError as ToolValidationError
    from watchkeeper.subagents.dispatch import SubagentSettings as SubagentSettings
    from watchkeeper.subagents.payloads import Artifact as Artifact, DispatchSubagent as DispatchSubagent
    from watchkeeper.subagents.payloads import DispatchSubagentResult as DispatchSubagentResult
    from watchkeeper.subagents.payloads import DispatchSubagents as DispatchSubagents
    from watchkeeper.subagents.payloads import DispatchSubagentsResult as DispatchSubagentsResult
    from watchkeeper.subagents.payloads import PromptRegistry as PromptRegistry, SubagentMode as SubagentMode
    from watchkeeper.subagents.payloads import SubagentOutcome as SubagentOutcome
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
