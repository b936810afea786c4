"""Models: the providers' and the scripted one, what goes in and comes out, usage and prices."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.adapters.anthropic import AnthropicModel as AnthropicModel
    from watchkeeper.adapters.litellm import LiteLLMModel as LiteLLMModel
    from watchkeeper.adapters.openai_chat import OpenAIChatModel as OpenAIChatModel
    from watchkeeper.adapters.openai_responses import OpenAIResponsesModel as OpenAIResponsesModel
    from watchkeeper.adapters.scripted import Call as Call, Calls as Calls, Say as Say, ScriptedModel as ScriptedModel
    from watchkeeper.app.models import model_from as model_from
    from watchkeeper.core.messages import AssistantMessage as AssistantMessage, ImagePart as ImagePart
    from watchkeeper.core.messages import Message as Message, Part as Part, SystemMessage as SystemMessage
    from watchkeeper.core.messages import TextPart as TextPart, ToolCall as ToolCall, ToolMessage as ToolMessage
    from watchkeeper.core.messages import Transcript as Transcript, UserMessage as UserMessage
    from watchkeeper.core.model import Effort as Effort, FinishReason as FinishReason, Model as Model
    from watchkeeper.core.model import ModelReply as ModelReply, ModelRequest as ModelRequest
    from watchkeeper.core.model import ModelSettings as ModelSettings, OutputSchema as OutputSchema
    from watchkeeper.core.model import ToolChoice as ToolChoice, ToolSpec as ToolSpec
    from watchkeeper.core.usage import ModelPrice as ModelPrice, Rate as Rate, TokenUsage as TokenUsage, Usage as Usage
    from watchkeeper.local.model import LocalModel as LocalModel
    from watchkeeper.loop.run import Adapter as Adapter
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "adapters.anthropic": "AnthropicModel",
            "adapters.litellm": "LiteLLMModel",
            "adapters.openai_chat": "OpenAIChatModel",
            "adapters.openai_responses": "OpenAIResponsesModel",
            "adapters.scripted": "Call Calls Say ScriptedModel",
            "app.models": "model_from",
            "core.messages": (
                "AssistantMessage ImagePart Message Part SystemMessage TextPart ToolCall ToolMessage Transcript "
                "UserMessage"
            ),
            "core.model": (
                "Effort FinishReason Model ModelReply ModelRequest ModelSettings OutputSchema ToolChoice ToolSpec"
            ),
            "core.usage": "ModelPrice Rate TokenUsage Usage",
            "local.model": "LocalModel",
            "loop.run": "Adapter",
        },
    )
