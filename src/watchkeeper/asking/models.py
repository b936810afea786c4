"""The models of one run: which one is in use, which ones may replace it, and which ones answered.

A line begins with the requested model; the models after it take over in order. A model that took over stays in use: the
run never switches back by itself, because a switch costs a prompt cache. In one turn each model is tried at most once,
so a turn always ends. Everything specific to a model (caps, prices, settings, the bound of its input) is created here
for each model that takes over; a run that never switches creates it once.

This module also computes the worst cases of model calls, which the gate reserves before anything is spent. Input is
bounded by the provider's last count plus the bytes of the new messages: a token has at least one byte. A transcript
only grows, so a count below an earlier one covers only a part (some servers leave out cached input). Output is bounded
by its cap. Images cannot be bounded by bytes; they need a bound declared by the caller when a ceiling on money or
tokens is in force.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from watchkeeper.accounting.account import Account
from watchkeeper.accounting.call_request import NO_TOKENS, Charge, Estimate, presumed_charge
from watchkeeper.asking.provider_work import TOOLS_OVERHEAD, bounds_input, check_extra_is_bounded, tools_overhead
from watchkeeper.core.codec import encode
from watchkeeper.core.errors import ConfigurationError, EgressRefusedError, ProviderError, UnsentError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolMessage,
    Transcript,
    UserMessage,
)
from watchkeeper.core.model import ModelReply, ModelRequest, extra_fields
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.runtime.plan import NotOnRecordError

if TYPE_CHECKING:
    from watchkeeper.containment.execution_context import ExecutionContext
    from watchkeeper.containment.in_flight import Ticket
    from watchkeeper.core.model import Model
    from watchkeeper.runtime.plan import PricedModel, RunPlan

FRAME_TOKENS: Final = 16
"""Upper bound of what a chat format adds around one message."""

UNBOUNDED_IMAGE_TOKENS: Final = 4096
"""Assumed for an image without a declared bound where no ceiling depends on it."""


class InputBound:
    """An upper bound of a request's input tokens. An update counts only new messages; a new segment is counted from its
    start.

    Attributes:
        fixed: The part of it that every request repeats: tools and output schema.
    """

    __slots__ = ("_counted", "_known", "_learned", "_most", "_seen", "_segment", "_strict", "fixed")

    def __init__(self, request: ModelRequest, account: Account) -> None:
        """Bound what every request repeats: tools, output schema and extra fields; ``account`` knows the ceilings."""
        fixed = sum(len(encode([tool.name, tool.description, tool.parameters])) for tool in request.tools)
        extra = extra_fields(request.settings)
        if extra:
            fixed += len(repr(dict(extra)).encode("utf-8", "replace"))
        fixed += max(tools_overhead(extra.get("tools") or ()), TOOLS_OVERHEAD if request.tools else 0)
        if request.output is not None:
            fixed += len(encode(request.output.schema))
        self._known = self.fixed = fixed
        self._segment = request.transcript.segment
        self._seen = 0
        self._counted = self._most = 0
        self._learned: Message | None = None
        self._strict = bounds_input(account)

    def tokens(self, transcript: Transcript) -> int:
        """Return the bound for the current transcript."""
        if transcript.segment != self._segment:
            self._begin_segment(transcript)
        for message in transcript.since(self._seen):
            if message is not self._learned:
                self._known += message_bytes(message) + self._images(message)
        self._seen = len(transcript)
        return self._known

    def _begin_segment(self, transcript: Transcript) -> None:
        """Count a new segment: the provider has counted neither its messages nor the data that they send back."""
        self._segment = transcript.segment
        self._learned = None
        self._counted = self._most = 0
        self._seen = len(transcript)
        self._known = self.fixed + sum(message_bytes(message) + self._images(message) for message in transcript)

    def learn(self, reply: ModelReply, counted: TokenUsage) -> float | None:
        """Take the provider's own count: it covers everything up to and including the reply's message.

        A count below an earlier count of the segment does not cover everything: then the bound of what was sent is
        kept. A provider that compacts the conversation itself says so by `ModelReply.context_tokens`.

        Args:
            reply: The reply.
            counted: What it is charged for (`counted_usage`). If that is not what was reported, nothing is learned.

        Returns:
            The input tokens per byte, if this was the first count of a segment that is not too short; else None.
        """
        usage = reply.usage
        if counted is not usage:
            return None
        measures = not self._counted and self._known >= MEASURED_BYTES and reply.context_tokens is None
        density = usage.input_tokens / self._known if measures else None
        if reply.context_tokens is not None:
            self._most = 0
            self._counted = self._known = reply.context_tokens + FRAME_TOKENS
        elif usage.input_tokens < self._most:
            self._known += max(usage.output_tokens, text_bytes(reply.message)) + FRAME_TOKENS
        else:
            self._most = usage.input_tokens
            self._counted = self._known = usage.total + FRAME_TOKENS
        self._learned = reply.message
        return density

    def guess(self, density: float | None) -> int:
        """Return an estimate of the input's tokens: what was counted, and a share of the bytes that are not yet."""
        return self._counted + likely_tokens(self._known - self._counted, density)

    def likely(self) -> int | None:
        """Return a fair guess of the input's tokens, for judging whether the context will overflow; None before the
        provider has counted anything.
        """
        return self.guess(None) if self._counted else None

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


MEASURED_BYTES: Final = 500
"""In shorter requests, what a provider adds by itself weighs too much to tell how dense text is."""

LEAST_DENSITY: Final = 0.25
"""Fewer tokens per byte are not believed: some servers leave out cached input."""

DENSITY_MARGIN: Final = 1.25
"""How much denser than what was counted a text may be."""


def likely_tokens(size: int, density: float | None = None) -> int:
    """Return an estimate of the tokens of text, for an isolated nested budget.

    Args:
        size: Its length in bytes.
        density: Tokens per byte as the provider counted them, or None if it has counted nothing yet.
    """
    if density is None:
        return math.ceil(size / BYTES_PER_TOKEN)
    return math.ceil(size * min(max(density * DENSITY_MARGIN, LEAST_DENSITY), 1.0))


def image_tokens(part: ImagePart) -> int:
    """Return an image's declared bound, or what is assumed for one without."""
    return UNBOUNDED_IMAGE_TOKENS if part.max_tokens is None else part.max_tokens


def message_bytes(message: Message) -> int:
    """Return an upper bound of a message's tokens, images aside, with what an adapter sends back unchanged."""
    data = message.provider_data if isinstance(message, AssistantMessage) else None
    return text_bytes(message) + FRAME_TOKENS + (0 if data is None else len(encode(data)))


def estimate_call(input_tokens: int, cap: int, least: int, price: ModelPrice | None, beside: int = 0) -> Estimate:
    """Return the worst case of one call.

    Args:
        input_tokens: The bound of its input.
        cap: The cap of its output.
        least: The fewest output tokens with which it is worth making.
        price: What it costs; None if unknown.
        beside: The most tokens that the provider reads and writes beside that, each at the dearer rate.
    """
    read = input_tokens + beside
    written = price.worst_output_token(read) if price else 0
    return Estimate(
        input_tokens=read,
        max_output_tokens=cap,
        min_output_tokens=min(least, cap),
        input_nanos=price.worst_input(read) + beside * written if price else 0,
        output_nanos_per_token=written,
        known_cost=price is not None,
    )


def counted_usage(reply: ModelReply, worst: Estimate, granted: int) -> TokenUsage:
    """Return what a reply is charged for: the usage that was reported, if it can be true.

    If a server reports no input tokens, the bound of the input is charged, and the reported output or, without it, the
    reply's bytes. If the reported usage is impossible (`TokenUsage.is_possible`), it is ignored and the worst case is
    charged. The reply is kept in any case, and no reply is free.

    Args:
        reply: The reply of the model.
        worst: The most that the call may use.
        granted: The output tokens that the gate granted.
    """
    usage = reply.usage
    if not usage.is_possible:
        return TokenUsage(input_tokens=worst.input_tokens, output_tokens=granted)
    if usage.input_tokens > 0:
        return usage
    return TokenUsage(input_tokens=worst.input_tokens, output_tokens=usage.output_tokens or text_bytes(reply.message))


def charge_reply(usage: TokenUsage, price: ModelPrice | None, reported: TokenUsage | None = None) -> Charge:
    """Return what a reply cost; ``reported``: what its provider said, if that is not what is charged."""
    if reported is None or reported is usage:
        return Charge(usage, price.cost(usage) if price else None)
    said = reported if reported.is_possible else NO_TOKENS
    return Charge(usage, price.cost(usage) if price else None, reported=said)


def charge_failure(error: BaseException | None, worst: Estimate, granted: int, price: ModelPrice | None) -> Charge:
    """Return what a failed or cancelled call is charged.

    A provider that refused before doing anything bills nothing. After a cancelled request or a lost stream the billed
    amount is unknown, so the whole reservation is charged: a ceiling must hold on the provider's bill, too.
    """
    unsent = isinstance(error, EgressRefusedError | NotOnRecordError | UnsentError)
    if unsent or (isinstance(error, ProviderError) and not error.billed):
        return Charge(TokenUsage(), 0)
    usage = TokenUsage(input_tokens=worst.input_tokens, output_tokens=granted)
    return presumed_charge(usage, None if price is None else worst.nanos(granted))


DEFAULT_OUTPUT_CAP: Final = 16_384
"""Output cap of a reply where neither the caller nor the model names a smaller one."""

BYTES_PER_TOKEN: Final = 3
"""An estimate for text that no provider has counted yet."""


class ModelInUse:
    """One model as a run asks it.

    Attributes:
        model: The model that answers.
        price: Its price, or None if unknown.
        service: Name of the circuit breaker that watches it.
        label: ``provider:name``.
        degraded: Whether it is the cheaper model that hooks may ask for.
        cap: Output cap of its replies.
        landing_cap: The same for a landing turn.
        beside: The most tokens that its settings let the provider use beside a reply.
        request: The parts that are the same in all its requests.
        bound: The upper bound of its input.
    """

    def __init__(self, line: ModelLine, place: int) -> None:
        """Prepare what every turn with this model repeats."""
        plan, limits = line.plan, line.limits
        chosen = line.models[place]
        self.place = place
        self.label = chosen.label
        self.model = model = chosen.model
        self.price = chosen.price
        self.degraded = plan.cheaper is not None and model is plan.cheaper.model
        self.service = line.services[place]
        wished, largest = chosen.settings.max_output_tokens or DEFAULT_OUTPUT_CAP, model.max_output_tokens
        self.cap = wished if largest is None else min(wished, largest)
        self.landing_cap = min(limits.landing.max_output_tokens, self.cap) if limits.landing else self.cap
        self.beside = chosen.settings.extra_max_tokens or 0
        self.request = ModelRequest(
            transcript=line.transcript,
            tools=line.tools,
            output=plan.prompt.output if model.native_output and plan.parse_output else None,
            max_output_tokens=self.cap,
            settings=chosen.settings,
            on_delta=plan.on_delta,
        )
        self.bound = InputBound(self.request, line.account)
        self._limits = limits

    def worst(self, input_tokens: int, *, landing: bool) -> Estimate:
        """Return the worst case of a call with this input bound."""
        cap = self.landing_cap if landing else self.cap
        return estimate_call(input_tokens, cap, self._limits.min_output_tokens, self.price, self.beside)

    def asking(self, ticket: Ticket, heard: list[str], *, landing: bool) -> ModelRequest:
        """Return the request of a call: what every call repeats, and what the gate granted this one.

        Args:
            ticket: The ticket of the admitted call, with its granted output tokens.
            heard: Gets the pieces of text that are streamed, with or without a listener.
            landing: Whether it is the last turn.
        """
        whole = self.request
        return ModelRequest(
            transcript=whole.transcript,
            tools=whole.tools,
            tool_choice="none" if landing else "auto",
            output=whole.output,
            max_output_tokens=ticket.max_output_tokens,
            settings=whole.settings,
            timeout=ticket.timeout,
            on_delta=None if whole.on_delta is None else both(heard.append, whole.on_delta),
            on_text=heard.append if whole.on_delta is None else None,
        )

    @property
    def room(self) -> int | None:
        """How many tokens a conversation may have, so that an answer fits and landing too; None if unknown."""
        window, limits = self.model.context_window, self._limits
        if window is None:
            return None
        return window - min(self.cap, limits.min_output_tokens) - (self.landing_cap if limits.landing else 0)


def both(first: Callable[[str], object], second: Callable[[str], object]) -> Callable[[str], None]:
    """Return a listener that passes what it gets on to two."""

    def hear(text: str) -> None:
        first(text)
        second(text)

    return hear


class ModelLine:
    """The models of one run, in the order in which they take over.

    Attributes:
        in_use: The one that is asked now.
        answered_by: ``provider:name`` of those that answered, in the order of their first answers.
        switched: Whether another than the first was ever in use.
    """

    def __init__(self, plan: RunPlan[Any], gate: ExecutionContext, transcript: Transcript) -> None:
        """Begin with the model that was asked for.

        Raises:
            ConfigurationError: If settings make a provider work without a bound, and a ceiling is in force.
        """
        self.plan = plan
        self.limits = gate.limits
        self.account = gate.account
        for each in plan.models:
            check_extra_is_bounded(each.settings, self.account, each.model.name)
        self.transcript = transcript
        self.tools = tuple(tool.spec for tool in plan.prompt.tools)
        self.models = plan.models
        self.services = services_of(self.models)
        self.answered_by: tuple[str, ...] = ()
        self.switched = False
        self._tried: set[int] = set()
        self.in_use = ModelInUse(self, 0)

    def model_in_use(self) -> PricedModel:
        """Return the model that is asked now, with all that is known of it."""
        return self.models[self.in_use.place]

    def begin_turn(self) -> None:
        """Let every model be tried again."""
        self._tried.clear()

    def answered(self) -> None:
        """Note who answered."""
        if not self.answered_by or self.in_use.label not in self.answered_by:
            self.answered_by += (self.in_use.label,)

    def find(self, fits: Callable[[ModelInUse], bool], *, cheaper: bool = False) -> ModelInUse | None:
        """Return the model that would take over now, or None. It was not tried in this turn, can hold the conversation,
        and fits.

        Args:
            fits: Says whether a candidate can be asked at all, for example whether a ceiling still pays for it.
            cheaper: Whether only the cheaper model will do, because a hook said so.
        """
        for place in self._places(cheaper):
            if place not in self._tried and place != self.in_use.place:
                candidate = ModelInUse(self, place)
                if self._holds(candidate) and fits(candidate):
                    return candidate
        return None

    def named(self, model: Model) -> ModelInUse | None:
        """Return this very model of the line if it could take over: it is not in use, and holds the conversation."""
        for place, each in enumerate(self.models):
            if each.model is model and place != self.in_use.place:
                candidate = ModelInUse(self, place)
                return candidate if self._holds(candidate) else None
        return None

    def take_over(self, candidate: ModelInUse) -> None:
        """Let a model take the place of the one in use, which is not tried again in this turn."""
        self._tried.add(self.in_use.place)
        self.in_use = candidate
        self.switched = True

    def recall_switch(self, label: str) -> None:
        """Let the model take over that did so in an earlier process.

        Raises:
            ConfigurationError: If the run has no such model any more.
        """
        place = next((place for place, each in enumerate(self.models) if each.label == label), None)
        if place is None:
            raise ConfigurationError(f"the model {label}, which had taken over, is not among the models of the run")
        self.take_over(ModelInUse(self, place))

    @property
    def replacing(self) -> bool:
        """Whether the model in use took over in this turn; a fault of the request may then be specific to it."""
        return bool(self._tried)

    def _places(self, cheaper: bool) -> list[int]:
        """Return where to look: behind the model in use first, then from the beginning of the line.

        The cheaper model takes over without a hook only if it is in the line, too; if it fails, the other models of the
        line take over.
        """
        if cheaper:
            named = self.plan.cheaper
            return [place for place, each in enumerate(self.models) if named is not None and each.model is named.model]
        count = 1 + len(self.plan.fallback)
        first = self.in_use.place
        if first >= count:  # not in the line; after the cheaper model, not the first one, which a hook did not want
            return list(range(1 if self.in_use.degraded else 0, count))
        return [place % count for place in range(first + 1, first + count)]

    def _holds(self, candidate: ModelInUse) -> bool:
        """Whether a model's context, as far as it is known, has room for the conversation and an answer."""
        window = candidate.model.context_window
        if window is None:
            return True
        bound = self.in_use.bound
        likely = bound.likely()
        tokens = bound.tokens(self.transcript) // BYTES_PER_TOKEN if likely is None else likely
        return tokens + min(candidate.cap, self.limits.min_output_tokens) <= window


def services_of(models: Sequence[PricedModel]) -> tuple[str, ...]:
    """Return, for each model, the name under which a circuit breaker watches it.

    A breaker watches a provider. Where several models of one line are the same provider's, each has its own breaker;
    otherwise the failures of one would block the model that is to replace it.
    """
    if len(models) == 1:
        return (models[0].model.provider,)
    providers = [each.model.provider for each in models]
    names = [
        provider if providers.count(provider) == 1 else f"{provider}:{each.model.name}"
        for provider, each in zip(providers, models, strict=True)
    ]
    return tuple(name if name not in names[:place] else f"{name} ({place + 1})" for place, name in enumerate(names))


def text_bytes(message: Message) -> int:
    """Return the UTF-8 size of everything textual in a message: an upper bound of its tokens without framing.

    Lone surrogates, which can come from file names, count as many bytes as the text sent in their place.
    """
    match message:
        case SystemMessage(text=text) | ToolMessage(text=text):
            return _size(text)
        case UserMessage(parts=parts):
            return sum(_size(part.text) for part in parts if isinstance(part, TextPart))
        case _:
            calls = sum(_size(call.name) + _size(call.arguments) for call in message.tool_calls)
            return _size(message.text) + _size(message.reasoning) + calls


def _size(text: str) -> int:
    """Return the bytes that are sent for a text; the replacement of a surrogate has the same size."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
