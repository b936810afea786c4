"""Tools: functions that a model may call, each call a transaction over the files and the session that it may change."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.errors import ToolValidationError as ToolValidationError
    from watchkeeper.tools.context import Answer as Answer, CallInfo as CallInfo, ParkedError as ParkedError
    from watchkeeper.tools.context import ToolContext as ToolContext, ToolInvoked as ToolInvoked
    from watchkeeper.tools.context import ToolOutcome as ToolOutcome, error_message as error_message
    from watchkeeper.tools.context import is_success as is_success
    from watchkeeper.tools.filesystem import EntryKind as EntryKind, FileStat as FileStat, Filesystem as Filesystem
    from watchkeeper.tools.filesystem import FilesystemSnapshot as FilesystemSnapshot
    from watchkeeper.tools.filesystem import ReadOnlyFilesystem as ReadOnlyFilesystem
    from watchkeeper.tools.filesystems import FileChange as FileChange, HostFilesystem as HostFilesystem
    from watchkeeper.tools.filesystems import MemoryFilesystem as MemoryFilesystem
    from watchkeeper.tools.filesystems import OverlayFilesystem as OverlayFilesystem
    from watchkeeper.tools.resources import ResourceBinding as ResourceBinding, Resources as Resources, Scope as Scope
    from watchkeeper.tools.tool import Tool as Tool, tool as tool
    from watchkeeper.tools.values import NothingDoneError as NothingDoneError, ToolResult as ToolResult
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "core.errors": "ToolValidationError",
            "tools.context": "Answer CallInfo ParkedError ToolContext ToolInvoked ToolOutcome error_message is_success",
            "tools.filesystem": "EntryKind FileStat Filesystem FilesystemSnapshot ReadOnlyFilesystem",
            "tools.filesystems": "FileChange HostFilesystem MemoryFilesystem OverlayFilesystem",
            "tools.resources": "ResourceBinding Resources Scope",
            "tools.tool": "Tool tool",
            "tools.values": "NothingDoneError ToolResult",
        },
    )
