"""The port to a language model: one turn, request to reply; and the words for whether work is done.

An adapter implements `Model` and translates; it has no loop, no retries and no limits of its own: those are in the
gate and the loop. Cancelling the coroutine must drop the request. Errors are raised as `ProviderError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, cast, get_args, runtime_checkable

import msgspec

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.messages import AssistantMessage, Transcript
from watchkeeper.core.quantities import is_number, is_whole
from watchkeeper.core.usage import TokenUsage

ToolChoice = Literal["auto", "none", "required"]
FinishReason = Literal["stop", "tool_calls", "length", "refusal", "paused", "unknown"]
Effort = Literal["minimal", "low", "medium", "high"]
EFFORTS: Final[tuple[str, ...]] = get_args(Effort)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told about a tool.

    Attributes:
        name: Letters, digits, underscore, hyphen; at most 64.
        description: When and how to use it.
        parameters: JSON Schema of an object, self-contained (``$defs`` inside).
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The typed answer a prompt wants.

    Attributes:
        name: Name of the output type.
        schema: JSON Schema of an object, self-contained (``$defs`` inside).
    """

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of a model; None means the provider's default.

    Attributes:
        temperature: 0 to 2.
        top_p: 0 to 1.
        max_output_tokens: Cap on each reply; the gate may lower it to what is affordable.
        effort: Reasoning effort, for models that reason.
        seed: For providers that support it.
        parallel_tool_calls: Whether the model may ask for several calls in one turn.
        extra: Provider-specific fields, merged into the request body as they are.
        extra_max_tokens: The most tokens, read and written together, that what `extra` makes the provider do by itself
            (search, summarize, run tools) adds to one call. A ceiling on cost or tokens needs it, and reserves it.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    effort: Effort | None = None
    seed: int | None = None
    parallel_tool_calls: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extra_max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no provider takes, before it is sent.

        Raises:
            ConfigurationError: Naming the field, the value and what it may be.
        """
        _check_share(self.temperature, "temperature", 2)
        _check_share(self.top_p, "top_p", 1)
        _check_whole(self.max_output_tokens, "max_output_tokens", 1)
        _check_whole(self.extra_max_tokens, "extra_max_tokens", 0)
        _check_whole(self.seed, "seed", None)
        if self.effort is not None and self.effort not in EFFORTS:
            raise ConfigurationError(f"effort={self.effort!r} must be {' or '.join(map(repr, EFFORTS))}")
        if not isinstance(self.parallel_tool_calls, bool | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"parallel_tool_calls={self.parallel_tool_calls!r} must be True or False")
        if not isinstance(self.extra, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"extra={self.extra!r} must be a dict of fields of the request")


def extra_fields(settings: ModelSettings) -> Mapping[str, Any]:
    """Return the fields of ``extra`` as they are sent: LiteLLM puts those in an ``extra_body`` beside the others."""
    body = settings.extra.get("extra_body")
    if not isinstance(body, Mapping):
        return settings.extra
    others = {name: value for name, value in settings.extra.items() if name != "extra_body"}
    return {**others, **cast("Mapping[str, Any]", body)}


def _check_share(value: object, name: str, most: int) -> None:
    if value is not None and not (is_number(value) and 0 <= value <= most):
        raise ConfigurationError(f"{name}={value!r} must be a number from 0 to {most}, or None for the usual one")


def _check_whole(value: object, name: str, least: int | None) -> None:
    if value is not None and not is_whole(value, least):
        of_least = "" if least is None else f" of at least {least}"
        raise ConfigurationError(f"{name}={value!r} must be a whole number{of_least}, or None for the usual one")


class ModelRequest(msgspec.Struct, frozen=True):
    """The request for one turn of a model.

    Attributes:
        transcript: All messages so far; the adapter only reads it, except for its own encodings in it.
        tools: Tools on offer; the same tuple object in every turn of a run, so its encoding can be kept.
        tool_choice: ``none`` keeps the tools in the request (for prompt caches) but forbids their use.
        output: Schema of the final answer, or None for plain text. The same object in every turn of a run.
        max_output_tokens: Cap on this reply's output, reasoning included.
        settings: Model settings for this request.
        timeout: Seconds left for this call, or None; a bound for the transport; the gate cancels independently.
        on_delta: Called with each piece of text as it arrives; None if no streaming is needed.
        on_text: Called instead with each piece of text if the adapter streams without being asked to, so that a turn
            that is cut off keeps its text; None if there is an ``on_delta``.
    """

    transcript: Transcript
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    output: OutputSchema | None = None
    max_output_tokens: int = 4096
    settings: ModelSettings = ModelSettings()
    timeout: float | None = None
    on_delta: Callable[[str], None] | None = None
    on_text: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The reply of a model to one request.

    Attributes:
        message: Text and tool calls.
        usage: Tokens as the provider reported them.
        finish: Why the model stopped; ``refusal`` also for content filters; ``paused`` if it goes on where it was as
            soon as it gets its own message back; ``unknown`` for reasons that nobody here knows: the answer may be
            incomplete, so it is never taken for the final one; ``tool_calls`` without a call is treated alike.
        model: The model that actually answered, as the provider names it.
        response_id: The provider's id of the reply, if any.
        refusal: The refusal's text, if it refused.
        ended_by: The provider's own word for an ``unknown`` reason.
        context_tokens: Size of the conversation with this reply, if ``usage`` counts more than that because the
            provider asked its model several times; else None.
    """

    message: AssistantMessage
    usage: TokenUsage
    finish: FinishReason = "stop"
    model: str = ""
    response_id: str = ""
    refusal: str = ""
    ended_by: str = ""
    context_tokens: int | None = None


@runtime_checkable
class Model(Protocol):
    """One turn of a language model.

    Attributes:
        name: The model's name as the provider knows it, for example ``gpt-5-mini``.
        provider: Provider name, for example ``openai``; used for prices, telemetry and events.
        native_output: Whether the adapter itself makes the model answer in ``request.output``'s schema. If not, the
            runtime describes the schema in the prompt.
        context_window: Tokens the model can hold, if known.
        max_output_tokens: Largest reply the model can give, if known.
        free: True if a call is declared to cost nothing (a model on this machine).
    """

    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def native_output(self) -> bool: ...
    @property
    def context_window(self) -> int | None: ...
    @property
    def max_output_tokens(self) -> int | None: ...
    @property
    def free(self) -> bool: ...

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Ask for one reply.

        Raises:
            ProviderError: Its fault tells whether a retry may help.
        """
        ...

    async def close(self) -> None:
        """Close connections and processes; a second call does nothing."""
        ...


# Four states can be recorded, and only ``verified`` is a pass. If a checker could not give its verdict (an error, a
# limit, nothing to look at), the state is ``unverified``, never ``verified``; work for which no check was requested is
# ``unchecked``.

CompletionStatus = Literal["complete", "incomplete", "unverified"]
"""A checker's verdict on the work."""

CompletionState = Literal["verified", "rejected", "unverified", "unchecked"]
"""The recorded state of the work."""

STATES: Final[Mapping[CompletionStatus, CompletionState]] = {
    "complete": "verified",
    "incomplete": "rejected",
    "unverified": "unverified",
}
"""The state of the work that follows from a checker's verdict."""
