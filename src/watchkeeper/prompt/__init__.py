"""Prompts: typed templates with sections and tools, what they render to, and how an answer is parsed and checked."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.prompt.completion import CompositeChecker as CompositeChecker
    from watchkeeper.prompt.completion import FileOutputChecker as FileOutputChecker
    from watchkeeper.prompt.completion import PredicateChecker as PredicateChecker
    from watchkeeper.prompt.completion import TaskCompletionChecker as TaskCompletionChecker
    from watchkeeper.prompt.completion import TaskCompletionContext as TaskCompletionContext
    from watchkeeper.prompt.completion import TaskCompletionResult as TaskCompletionResult
    from watchkeeper.prompt.evaluation import PromptResponse as PromptResponse, RenderedPrompt as RenderedPrompt
    from watchkeeper.prompt.output import parse_output as parse_output
    from watchkeeper.prompt.sections import MarkdownSection as MarkdownSection
    from watchkeeper.prompt.template import AnyPrompt as AnyPrompt, Prompt as Prompt, PromptTemplate as PromptTemplate
    from watchkeeper.prompt.template import ProviderAdapter as ProviderAdapter
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "prompt.completion": (
                "CompositeChecker FileOutputChecker PredicateChecker TaskCompletionChecker TaskCompletionContext "
                "TaskCompletionResult"
            ),
            "prompt.evaluation": "PromptResponse RenderedPrompt",
            "prompt.output": "parse_output",
            "prompt.sections": "MarkdownSection",
            "prompt.template": "AnyPrompt Prompt PromptTemplate ProviderAdapter",
        },
    )
