"""Watchkeeper runs LLM agents that work unattended: inside their limits, told when they drift, fully recorded.

These are the names that most programs need. docs/reference.md lists all public packages; other modules are private and
may move. A name is imported when it is first used, so that ``import watchkeeper`` costs next to nothing.
"""

from typing import TYPE_CHECKING, Final

from watchkeeper.core.lazy_names import provide, public_names

if TYPE_CHECKING:
    from watchkeeper.accounting.budget import Budget as Budget, BudgetTracker as BudgetTracker
    from watchkeeper.accounting.limits import Landing as Landing, Limits as Limits
    from watchkeeper.app.agent import Agent as Agent
    from watchkeeper.app.run import arun as arun, arun_many as arun_many, run as run, run_many as run_many
    from watchkeeper.blocks.contained import contained as contained
    from watchkeeper.containment.config import ExecutionConfig as ExecutionConfig
    from watchkeeper.containment.execution_context import ExecutionContext as ExecutionContext
    from watchkeeper.core.clock import Deadline as Deadline
    from watchkeeper.core.errors import Stop as Stop, WatchkeeperError as WatchkeeperError
    from watchkeeper.core.messages import ImagePart as ImagePart
    from watchkeeper.core.model import Model as Model, ModelSettings as ModelSettings
    from watchkeeper.core.usage import ModelPrice as ModelPrice, TokenUsage as TokenUsage, Usage as Usage
    from watchkeeper.loop.run import Adapter as Adapter
    from watchkeeper.prompt.completion import FileOutputChecker as FileOutputChecker
    from watchkeeper.prompt.completion import PredicateChecker as PredicateChecker
    from watchkeeper.prompt.completion import TaskCompletionResult as TaskCompletionResult
    from watchkeeper.prompt.sections import MarkdownSection as MarkdownSection
    from watchkeeper.prompt.template import Prompt as Prompt, PromptTemplate as PromptTemplate
    from watchkeeper.runtime.result import ManyResult as ManyResult, RunResult as RunResult
    from watchkeeper.session.session import Session as Session
    from watchkeeper.session.slices import Snapshot as Snapshot
    from watchkeeper.tools.context import ToolContext as ToolContext, ToolInvoked as ToolInvoked
    from watchkeeper.tools.filesystems import HostFilesystem as HostFilesystem, MemoryFilesystem as MemoryFilesystem
    from watchkeeper.tools.resources import Resources as Resources
    from watchkeeper.tools.tool import Tool as Tool, tool as tool
    from watchkeeper.tools.values import ToolResult as ToolResult
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "accounting.budget": "Budget BudgetTracker",
            "accounting.limits": "Landing Limits",
            "app.agent": "Agent",
            "app.run": "arun arun_many run run_many",
            "blocks.contained": "contained",
            "containment.config": "ExecutionConfig",
            "containment.execution_context": "ExecutionContext",
            "core.clock": "Deadline",
            "core.errors": "Stop WatchkeeperError",
            "core.messages": "ImagePart",
            "core.model": "Model ModelSettings",
            "core.usage": "ModelPrice TokenUsage Usage",
            "loop.run": "Adapter",
            "prompt.completion": "FileOutputChecker PredicateChecker TaskCompletionResult",
            "prompt.sections": "MarkdownSection",
            "prompt.template": "Prompt PromptTemplate",
            "runtime.result": "ManyResult RunResult",
            "session.session": "Session",
            "session.slices": "Snapshot",
            "tools.context": "ToolContext ToolInvoked",
            "tools.filesystems": "HostFilesystem MemoryFilesystem",
            "tools.resources": "Resources",
            "tools.tool": "Tool tool",
            "tools.values": "ToolResult",
        },
    )

__version__: Final = "0.1.0"

provide("terminal", "watchkeeper.shield.terminal", "Terminal")  # where a ToolPermissionHook asks by default
