"""Watchkeeper runs LLM agents that work unattended: inside their limits, told when they drift, fully recorded.

The names below are the public front, imported when they are first used, so that ``import watchkeeper`` costs next to
nothing. Everything else is public where it lives: ``watchkeeper.<layer>.<noun>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import imported_when_used, provide

if TYPE_CHECKING:
    from watchkeeper.app.agent import Agent
    from watchkeeper.app.contained import contained
    from watchkeeper.app.run import arun, arun_many, run, run_many
    from watchkeeper.containment.config import ExecutionConfig
    from watchkeeper.containment.execution_context import ExecutionContext
    from watchkeeper.core.budget import Budget, BudgetTracker
    from watchkeeper.core.clock import Deadline
    from watchkeeper.core.errors import Stop, WatchkeeperError
    from watchkeeper.core.limits import Landing, Limits
    from watchkeeper.core.messages import ImagePart
    from watchkeeper.core.model import Model, ModelSettings
    from watchkeeper.core.usage import ModelPrice, TokenUsage, Usage
    from watchkeeper.loop.adapter import Adapter
    from watchkeeper.prompt.completion import (
        FileOutputChecker,
        PredicateChecker,
        TaskCompletionResult,
    )
    from watchkeeper.prompt.sections import MarkdownSection
    from watchkeeper.prompt.template import Prompt, PromptTemplate
    from watchkeeper.runtime.result import ManyResult, RunResult
    from watchkeeper.session.session import Session
    from watchkeeper.session.slices import Snapshot
    from watchkeeper.tools.context import ToolContext, ToolInvoked
    from watchkeeper.tools.filesystems import HostFilesystem, MemoryFilesystem
    from watchkeeper.tools.resources import Resources
    from watchkeeper.tools.result import ToolResult
    from watchkeeper.tools.tool import Tool, tool

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Adapter": "watchkeeper.loop.adapter",
    "Agent": "watchkeeper.app.agent",
    "Budget": "watchkeeper.core.budget",
    "BudgetTracker": "watchkeeper.core.budget",
    "Deadline": "watchkeeper.core.clock",
    "ExecutionConfig": "watchkeeper.containment.config",
    "ExecutionContext": "watchkeeper.containment.execution_context",
    "FileOutputChecker": "watchkeeper.prompt.completion",
    "HostFilesystem": "watchkeeper.tools.filesystems",
    "ImagePart": "watchkeeper.core.messages",
    "Landing": "watchkeeper.core.limits",
    "Limits": "watchkeeper.core.limits",
    "ManyResult": "watchkeeper.runtime.result",
    "MarkdownSection": "watchkeeper.prompt.sections",
    "MemoryFilesystem": "watchkeeper.tools.filesystems",
    "Model": "watchkeeper.core.model",
    "ModelPrice": "watchkeeper.core.usage",
    "ModelSettings": "watchkeeper.core.model",
    "PredicateChecker": "watchkeeper.prompt.completion",
    "Prompt": "watchkeeper.prompt.template",
    "PromptTemplate": "watchkeeper.prompt.template",
    "Resources": "watchkeeper.tools.resources",
    "RunResult": "watchkeeper.runtime.result",
    "Session": "watchkeeper.session.session",
    "Snapshot": "watchkeeper.session.slices",
    "Stop": "watchkeeper.core.errors",
    "TaskCompletionResult": "watchkeeper.prompt.completion",
    "TokenUsage": "watchkeeper.core.usage",
    "Tool": "watchkeeper.tools.tool",
    "ToolContext": "watchkeeper.tools.context",
    "ToolInvoked": "watchkeeper.tools.context",
    "ToolResult": "watchkeeper.tools.result",
    "Usage": "watchkeeper.core.usage",
    "WatchkeeperError": "watchkeeper.core.errors",
    "arun": "watchkeeper.app.run",
    "arun_many": "watchkeeper.app.run",
    "contained": "watchkeeper.app.contained",
    "run": "watchkeeper.app.run",
    "run_many": "watchkeeper.app.run",
    "tool": "watchkeeper.tools.tool",
}

__all__ = [
    "Adapter",
    "Agent",
    "Budget",
    "BudgetTracker",
    "Deadline",
    "ExecutionConfig",
    "ExecutionContext",
    "FileOutputChecker",
    "HostFilesystem",
    "ImagePart",
    "Landing",
    "Limits",
    "ManyResult",
    "MarkdownSection",
    "MemoryFilesystem",
    "Model",
    "ModelPrice",
    "ModelSettings",
    "PredicateChecker",
    "Prompt",
    "PromptTemplate",
    "Resources",
    "RunResult",
    "Session",
    "Snapshot",
    "Stop",
    "TaskCompletionResult",
    "TokenUsage",
    "Tool",
    "ToolContext",
    "ToolInvoked",
    "ToolResult",
    "Usage",
    "WatchkeeperError",
    "arun",
    "arun_many",
    "contained",
    "run",
    "run_many",
    "tool",
]

__getattr__ = imported_when_used(__name__, _HOMES)
provide("terminal", "watchkeeper.app.terminal", "Terminal")  # where a ToolPermissionHook asks by default


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*__all__, "__version__"})
