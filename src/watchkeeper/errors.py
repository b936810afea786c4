"""Every error that Watchkeeper raises, and `Stop`, which says why a run ended before its time."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.core.codec import CodecError as CodecError
    from watchkeeper.core.errors import (
        BudgetExceededError as BudgetExceededError,
        ConfigurationError as ConfigurationError,
        DeadlineExceededError as DeadlineExceededError,
        DispatchSubagentError as DispatchSubagentError,
        FilesystemError as FilesystemError,
        LimitsError as LimitsError,
        MissingExtraError as MissingExtraError,
        MissingKeyError as MissingKeyError,
        NestedEvaluationError as NestedEvaluationError,
        NestingDepthError as NestingDepthError,
        ObserverError as ObserverError,
        OutputParseError as OutputParseError,
        Phase as Phase,
        PromptDefinitionError as PromptDefinitionError,
        PromptEvaluationError as PromptEvaluationError,
        ProviderError as ProviderError,
        ProviderFault as ProviderFault,
        ReducerError as ReducerError,
        RunStoppedError as RunStoppedError,
        SessionError as SessionError,
        SnapshotError as SnapshotError,
        Stop as Stop,
        StopReason as StopReason,
        StoreError as StoreError,
        ThrottleError as ThrottleError,
        ToolDefinitionError as ToolDefinitionError,
        ToolProcessError as ToolProcessError,
        ToolValidationError as ToolValidationError,
        UnknownModelError as UnknownModelError,
        UnpricedModelError as UnpricedModelError,
        WatchkeeperError as WatchkeeperError,
    )
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
