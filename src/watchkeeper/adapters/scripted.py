"""A model that follows a script: for tests, and for showing an agent without any model.

Each step is what one turn answers: text, tool calls, an error to raise, or a function of the request. A script that
runs out, or that a test leaves unfinished (`assert_complete`), is a failure with a message that says so. It is no real
model, and its provider name says so wherever the model is named.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from watchkeeper.core.codec import encode
from watchkeeper.core.errors import ConfigurationError, UnsentError
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import FinishReason, ModelReply, ModelRequest
from watchkeeper.core.quantities import counted
from watchkeeper.core.usage import TokenUsage

DEFAULT_USAGE: Final = TokenUsage(input_tokens=100, output_tokens=20)


@dataclass(frozen=True, slots=True)
class Say:
    """Answer with text; any other value is written as JSON."""

    answer: Any
    usage: TokenUsage = DEFAULT_USAGE
    finish: FinishReason = "stop"


@dataclass(frozen=True, slots=True)
class Call:
    """Ask for one tool call; ``arguments`` is a dict, a dataclass, or text that is sent as it is."""

    tool: str
    arguments: Any = None


@dataclass(frozen=True, slots=True)
class Calls:
    """Ask for several tool calls in one turn."""

    calls: tuple[Call, ...]
    text: str = ""
    usage: TokenUsage = DEFAULT_USAGE


Step = Say | Call | Calls | ModelReply | Exception | str
Script = Iterable[Step | Callable[[ModelRequest], Step]] | Callable[[ModelRequest], Step]


class ScriptedModel:
    """Answers turn by turn from a script.

    A script is a sequence of steps, or one function from the request to a step that serves every turn (for runs whose
    turns interleave).
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        provider: str = "scripted",
        native_output: bool = True,
        context_window: int | None = None,
        max_output_tokens: int | None = None,
        free: bool = True,
    ) -> None:
        """Follow ``script``; the other arguments are the model's properties.

        Raises:
            ConfigurationError: If the script is a single step, or not a script at all.
        """
        _check_script(script)
        self.name = name
        self.provider = provider
        self.native_output = native_output
        self.context_window = context_window
        self.max_output_tokens = max_output_tokens
        self.free = free
        self._respond = script if callable(script) else None
        self._steps: list[Step | Callable[[ModelRequest], Step]] = [] if callable(script) else list(script)
        self._lock = threading.Lock()
        self._call_ids = itertools.count(1)
        self._taken = 0
        self.requests: list[ModelRequest] = []

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Answer with the next step.

        Raises:
            UnsentError: If the script has no step left.
        """
        with self._lock:
            self.requests.append(request)
            step = self._respond or self._next()
        made = step(request) if callable(step) and not isinstance(step, type) else step
        if isinstance(made, BaseException):
            raise made
        reply = self._reply(made)
        if request.on_delta is not None and reply.message.text:
            request.on_delta(reply.message.text)
        return reply

    def _next(self) -> Step | Callable[[ModelRequest], Step]:
        if self._taken >= len(self._steps):
            raise UnsentError(
                f"the script has {counted(len(self._steps), 'step')}, and turn {self._taken + 1} was asked for; "
                "add a step, the last of which is the answer"
            )
        self._taken += 1
        return self._steps[self._taken - 1]

    def _reply(self, step: Any) -> ModelReply:
        match step:
            case ModelReply():
                return step
            case Say(answer=answer, usage=usage, finish=finish):
                text = answer if isinstance(answer, str) else encode(answer).decode()
                return ModelReply(AssistantMessage(text), usage, finish, self.name)
            case Call():
                return self._asking((step,), "", DEFAULT_USAGE)
            case Calls(calls=calls, text=text, usage=usage):
                return self._asking(calls, text, usage)
            case str():
                return ModelReply(AssistantMessage(step), DEFAULT_USAGE, "stop", self.name)
            case _:
                raise UnsentError(f"a script step is Say, Call, Calls, ModelReply, text or an error, not {step!r}")

    def _asking(self, calls: Sequence[Call], text: str, usage: TokenUsage) -> ModelReply:
        asked = tuple(ToolCall(f"call-{next(self._call_ids)}", call.tool, _arguments(call.arguments)) for call in calls)
        return ModelReply(AssistantMessage(text, asked), usage, "tool_calls", self.name)

    def assert_complete(self) -> None:
        """Raise AssertionError if steps of the script are left."""
        left = len(self._steps) - self._taken
        if left:
            steps, was = counted(len(self._steps), "step"), "was" if left == 1 else "were"
            raise AssertionError(f"{left} of {steps} of the script {was} never asked for")

    async def close(self) -> None:
        """Do nothing: the model holds no resources."""


def _check_script(script: object) -> None:
    if isinstance(script, Step):
        raise ConfigurationError(f"{script!r} is one step, and a script is a list of them: ScriptedModel([{script!r}])")
    if not callable(script) and not isinstance(script, Iterable):
        raise ConfigurationError(f"{script!r} is no script; write for example ScriptedModel(['hello'])")


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return encode({} if arguments is None else arguments).decode()
