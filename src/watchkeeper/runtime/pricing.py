"""Worst cases of model calls, so that the gate can reserve before anything is spent.

Input is bounded by what the provider last reported plus the bytes of what is new: a token is never less than a byte.
A transcript only grows, so a count below an earlier one tells of a part (servers leave out what they had in a cache).
Output is bounded by its cap. What bytes cannot bound (images) needs a bound declared by the caller when a ceiling on
money or tokens is in force.
"""

from __future__ import annotations

from typing import Final

from watchkeeper.containment.estimate import Charge, Estimate
from watchkeeper.core.codec import encode
from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.core.limits import Limits
from watchkeeper.core.messages import AssistantMessage, ImagePart, Message, UserMessage, text_bytes
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.price import ModelPrice
from watchkeeper.core.transcript import Transcript
from watchkeeper.core.usage import TokenUsage

FRAME_TOKENS: Final = 16
"""Upper bound of what a chat format adds around one message."""

TOOLS_OVERHEAD: Final = 1024
"""Upper bound of what providers add to the prompt when tools are present (Anthropic documents 313 to 804)."""

UNBOUNDED_IMAGE_TOKENS: Final = 4096
"""Assumed for an image without a declared bound where no ceiling depends on it."""


class InputBound:
    """An upper bound of a request's input tokens, updated at the cost of what is new; a new segment is counted anew.

    Attributes:
        fixed: The part of it that every request repeats: tools and output schema.
    """

    __slots__ = ("_counted", "_known", "_learned", "_most", "_seen", "_segment", "_strict", "fixed")

    def __init__(self, request: ModelRequest, limits: Limits) -> None:
        """Bound what every request repeats: tools and output schema."""
        fixed = sum(len(encode([tool.name, tool.description, tool.parameters])) for tool in request.tools)
        if request.tools:
            fixed += TOOLS_OVERHEAD
        if request.output is not None:
            fixed += len(encode(request.output.schema))
        self._known = self.fixed = fixed
        self._segment = request.transcript.segment
        self._seen = 0
        self._counted = self._most = 0
        self._learned: Message | None = None
        ceilings = (limits.max_cost_nanos, limits.max_total_tokens, limits.max_input_tokens)
        self._strict = limits.account is not None or any(value is not None for value in ceilings)

    def tokens(self, transcript: Transcript) -> int:
        """Return the bound for the transcript as it stands."""
        if transcript.segment != self._segment:
            self._begin_segment(transcript)
        for message in transcript.since(self._seen):
            if message is not self._learned:
                self._known += text_bytes(message) + FRAME_TOKENS + self._images(message)
        self._seen = len(transcript)
        return self._known

    def _begin_segment(self, transcript: Transcript) -> None:
        """Count a new segment: the provider has counted none of it yet, nor what its messages send back unchanged."""
        self._segment = transcript.segment
        self._learned = None
        self._counted = self._most = 0
        self._seen = len(transcript)
        self._known = self.fixed + sum(message_bytes(message) + self._images(message) for message in transcript)

    def learn(self, reply: ModelReply) -> None:
        """Take the provider's own count: it covers everything up to and including the reply's message.

        One that is below an earlier count of the segment does not: then the bound of what was sent stays.
        """
        usage = reply.usage
        if usage.input_tokens <= 0 or usage.output_tokens < 0:
            return
        if usage.input_tokens < self._most:
            self._known += max(usage.output_tokens, text_bytes(reply.message)) + FRAME_TOKENS
        else:
            self._most = usage.input_tokens
            self._counted = self._known = usage.total + FRAME_TOKENS
        self._learned = reply.message

    def likely(self) -> int | None:
        """Return a fair guess of the input's tokens (a third of the bytes that are not counted yet), for judging
        whether the context will overflow; None before the provider has counted anything.
        """
        return self._counted + (self._known - self._counted) // 3 if self._counted else None

    def _images(self, message: Message) -> int:
        if not isinstance(message, UserMessage):
            return 0
        return sum(self._image(part) for part in message.parts if isinstance(part, ImagePart))

    def _image(self, part: ImagePart) -> int:
        if part.max_tokens is not None:
            return part.max_tokens
        if self._strict:
            raise ConfigurationError(
                "an image has no token bound, but a ceiling on cost or tokens is in force; "
                "write ImagePart(..., max_tokens=...), or lift the ceiling"
            )
        return image_tokens(part)


def image_tokens(part: ImagePart) -> int:
    """Return an image's declared bound, or what is assumed for one without."""
    return UNBOUNDED_IMAGE_TOKENS if part.max_tokens is None else part.max_tokens


def message_bytes(message: Message) -> int:
    """Return an upper bound of a message's tokens, images aside, with what an adapter sends back unchanged."""
    data = message.provider_data if isinstance(message, AssistantMessage) else None
    return text_bytes(message) + FRAME_TOKENS + (0 if data is None else len(encode(data)))


def estimate_call(input_tokens: int, cap: int, least: int, price: ModelPrice | None) -> Estimate:
    """Return the worst case of one call with this input bound and output cap."""
    return Estimate(
        input_tokens=input_tokens,
        max_output_tokens=cap,
        min_output_tokens=min(least, cap),
        input_nanos=price.worst_input(input_tokens) if price else 0,
        output_nanos_per_token=price.worst_output_token(input_tokens) if price else 0,
        known_cost=price is not None,
    )


def counted(reply: ModelReply, worst: Estimate) -> TokenUsage:
    """Return the reply's usage; where a server reports nothing, or nonsense, the bounds: no reply costs nothing."""
    usage = reply.usage
    details = (usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens)
    if usage.input_tokens > 0 and usage.output_tokens >= 0 and min(details) >= 0:
        return usage
    output = usage.output_tokens if usage.output_tokens > 0 else text_bytes(reply.message)
    return TokenUsage(input_tokens=worst.input_tokens, output_tokens=output)


def charge_reply(usage: TokenUsage, price: ModelPrice | None) -> Charge:
    """Return what a reply cost."""
    return Charge(usage, price.cost(usage) if price else None)


def charge_failure(error: BaseException | None, worst: Estimate, granted: int, price: ModelPrice | None) -> Charge:
    """Return what a failed or cancelled call is charged.

    A provider that refused before doing anything bills nothing. Whoever cancels a request, or loses its stream,
    cannot know what was billed, so the reservation stands: a ceiling must hold on the provider's bill, too.
    """
    if isinstance(error, ProviderError) and not error.billed:
        return Charge(TokenUsage(), 0)
    usage = TokenUsage(input_tokens=worst.input_tokens, output_tokens=granted)
    if price is None:
        return Charge(usage, None)
    return Charge(usage, worst.input_nanos + granted * worst.output_nanos_per_token)
