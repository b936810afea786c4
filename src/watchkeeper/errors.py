"""Every error that Watchkeeper raises, and `Stop`, which says why a run ended before its work was done."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.codec import CodecError as CodecError
    from watchkeeper.core.errors import BudgetExceededError as BudgetExceededError
    from watchkeeper.core.errors import ConfigurationError as ConfigurationError
    from watchkeeper.core.errors import DeadlineExceededError as DeadlineExceededError
    from watchkeeper.core.errors import DispatchSubagentError as DispatchSubagentError
    from watchkeeper.core.errors import FilesystemError as FilesystemError, LimitsError as LimitsError
    from watchkeeper.core.errors import MissingExtraError as MissingExtraError, MissingKeyError as MissingKeyError
    from watchkeeper.core.errors import NestedEvaluationError as NestedEvaluationError
    from watchkeeper.core.errors import NestingDepthError as NestingDepthError, ObserverError as ObserverError
    from watchkeeper.core.errors import OutputParseError as OutputParseError, Phase as Phase
    from watchkeeper.core.errors import PromptDefinitionError as PromptDefinitionError
    from watchkeeper.core.errors import PromptEvaluationError as PromptEvaluationError, ProviderError as ProviderError
    from watchkeeper.core.errors import ProviderFault as ProviderFault, ReducerError as ReducerError
    from watchkeeper.core.errors import RunStoppedError as RunStoppedError, SessionError as SessionError
    from watchkeeper.core.errors import SnapshotError as SnapshotError, Stop as Stop, StopReason as StopReason
    from watchkeeper.core.errors import StoreError as StoreError, ThrottleError as ThrottleError
    from watchkeeper.core.errors import ToolDefinitionError as ToolDefinitionError, ToolProcessError as ToolProcessError
    from watchkeeper.core.errors import ToolValidationError as ToolValidationError
    from watchkeeper.core.errors import UnknownModelError as UnknownModelError, UnpricedModelError as UnpricedModelError
    from watchkeeper.core.errors import WatchkeeperError as WatchkeeperError
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "core.codec": "CodecError",
            "core.errors": (
                "BudgetExceededError ConfigurationError DeadlineExceededError DispatchSubagentError FilesystemError "
                "LimitsError MissingExtraError MissingKeyError NestedEvaluationError NestingDepthError ObserverError "
                "OutputParseError Phase PromptDefinitionError PromptEvaluationError ProviderError ProviderFault "
                "ReducerError RunStoppedError SessionError SnapshotError Stop StopReason StoreError ThrottleError "
                "ToolDefinitionError ToolProcessError ToolValidationError UnknownModelError UnpricedModelError "
                "WatchkeeperError"
            ),
        },
    )
