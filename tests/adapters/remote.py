"""The remote adapters with the fakes they are tested against, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from watchkeeper.adapters.anthropic import AnthropicModel
from watchkeeper.adapters.litellm import LiteLLMModel
from watchkeeper.adapters.openai_chat import OpenAIChatModel
from watchkeeper.adapters.openai_responses import OpenAIResponsesModel
from watchkeeper.adapters.wire import RemoteModel
from watchkeeper.core.messages import Message, SystemMessage, Transcript, UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest, OutputSchema, ToolSpec
from watchkeeper.testing.fake_anthropic import FakeAnthropic
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import FakeProvider, Script

LOOKUP = ToolSpec(
    "lookup",
    "Look a word up.",
    {"type": "object", "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["word"]},
)
REPORT = OutputSchema(
    "Report",
    {
        "type": "object",
        "properties": {"title": {"type": "string"}, "count": {"type": "integer", "minimum": 0, "default": 3}},
        "required": ["title"],
    },
)


@dataclass(frozen=True)
class Remote:
    """One adapter and its fake."""

    name: str
    fake: Callable[[Script], FakeProvider]
    model: Callable[..., Any]


def chat(base_url: str, **details: Any) -> RemoteModel:
    return OpenAIChatModel("gpt-5-mini", api_key="test", base_url=base_url, **details)


def responses(base_url: str, **details: Any) -> RemoteModel:
    return OpenAIResponsesModel("gpt-5-mini", api_key="test", base_url=base_url, **details)


def anthropic(base_url: str, **details: Any) -> RemoteModel:
    return AnthropicModel("claude-sonnet-5", api_key="test", base_url=base_url, **details)


def litellm(base_url: str, **details: Any) -> LiteLLMModel:
    return LiteLLMModel("openai/gpt-5-mini", api_key="test", base_url=base_url, **details)


CHAT = Remote("openai_chat", FakeOpenAI, chat)
RESPONSES = Remote("openai_responses", FakeOpenAI, responses)
ANTHROPIC = Remote("anthropic", FakeAnthropic, anthropic)
LITELLM = Remote("litellm", FakeOpenAI, litellm)
REMOTES = (CHAT, RESPONSES, ANTHROPIC)


def conversation(*messages: Message) -> Transcript:
    return Transcript(messages or (SystemMessage("Be brief."), UserMessage.of("Hello")))


def request(transcript: Transcript | None = None, *, stream: bool = False, **fields: Any) -> ModelRequest:
    if stream:
        fields.setdefault("on_delta", ignore)
    return ModelRequest(transcript or conversation(), **fields)


def ignore(text: str) -> None:
    """Listen to deltas without using them."""


async def ask(
    remote: Remote, script: Script, *, stream: bool = False, **fields: Any
) -> tuple[ModelReply, dict[str, Any]]:
    """Ask once and return the reply with the body that was sent."""
    async with remote.fake(script) as fake:
        model = remote.model(fake.base_url)
        try:
            reply = await model.turn(request(stream=stream, **fields))
        finally:
            await model.close()
        return reply, fake.bodies()[-1]
