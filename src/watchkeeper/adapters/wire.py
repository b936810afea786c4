"""One provider interface on the wire, and a turn over any of them.

A `Wire` is a value with everything that is particular to one interface. Each provider's file defines its own; adapters,
clients that contain other people's SDKs, and the fakes of tests use it, so that an interface is described once. A
`RemoteModel` is a model behind one. Nothing here knows a provider.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from watchkeeper.adapters.endpoint import Endpoint, Kept, check_extra, encode, join_body, listening, reading
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import UNREADABLE_USAGE, TokenUsage

T = TypeVar("T")
OnDelta = Callable[[str], object]
Connect = Callable[[str, str, str | None, str | None, Mapping[str, str] | None], Endpoint]


class Usage(Protocol):
    """Token counts as an interface words them."""

    def tokens(self) -> TokenUsage:
        """Return them in our terms."""
        ...


def usage_of(kind: type[Usage], told: Any) -> TokenUsage:
    """Return the token counts of an answer in our terms, as they were reported.

    Whether they can be true is decided where they are charged (`TokenUsage.is_possible`); a reply is never lost because
    of them.

    Args:
        kind: The interface's own counts.
        told: What the answer says, decoded; None counts nothing.
    """
    if told is None:
        return TokenUsage()
    try:
        return msgspec.convert(told, kind).tokens()
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError):
        return UNREADABLE_USAGE


class Collector(Protocol):
    """Joins the events of a stream into a whole answer."""

    def feed(self, event: dict[str, Any], /) -> None:
        """Take in one event."""
        ...

    def whole(self) -> Any:
        """Return the whole answer.

        Raises:
            ProviderError: If the stream ended before the answer did.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One provider interface.

    To add one, write one file with its `Wire` and its subclass of `RemoteModel`, and add the `Wire` to ``WIRES`` in
    `watchkeeper.contained_sdk.reading`; a model that strings can name has a row in `watchkeeper.app.models` too.

    Attributes:
        provider: The provider whose prices apply by default.
        path: What the address of a request ends with.
        history: The field that holds the conversation, as a list.
        encoding: Name of a model's encodings, with ``{provider}`` and ``{name}``.
        reserved: Fields that only the adapter writes, beside those that no settings may set (`OF_THE_ADAPTER`).
        caps: Fields that cap the output.
        cap_at: Returns the one of them that the server at an address knows.
        longest_whole: Output tokens above which an answer has to be streamed.
        replies: Whether there is any output.
        usage: What token counts are decoded as.
        counted: Types of events after which the token counts are final.
        ended: Types of events that end an answer.
        asks_usage: Whether a stream tells its token counts only if ``stream_options`` ask for them.
        thinks_in_cap: Whether the cap has to be above the budget of ``thinking``.
        stored: Fields that bring in what the provider has stored.
        connect: Returns an endpoint, given who asks, the provider, the key, the address and the headers.
        encode: Returns the body of a request; the last argument says whether the answer is to be streamed.
        answer: What a whole answer is decoded as.
        collect: Returns what puts a stream together; given who listens, and the provider's name for errors.
        read: Returns an answer in our terms; given the provider, the encoding, and its place in the transcript.
    """

    provider: str
    path: str
    history: str
    encoding: str
    reserved: frozenset[str]
    caps: tuple[str, ...]
    cap_at: Callable[[str], str]
    longest_whole: int = sys.maxsize
    replies: bool = True
    usage: type[Usage]
    counted: frozenset[str]
    ended: frozenset[str] = frozenset()
    asks_usage: bool = False
    thinks_in_cap: bool = False
    stored: tuple[str, ...] = ()
    connect: Connect
    encode: Callable[[RemoteModel, ModelRequest, bool], bytes]
    answer: Any
    collect: Callable[[OnDelta, str], Collector]
    read: Callable[[Any, str, str, int], ModelReply]


class RemoteModel:
    """A model behind a provider's interface.

    Args:
        name: The model's name as the server knows it.
        api_key: The key, or None for what the provider's SDK finds in the environment.
        base_url: Address of another server of this interface.
        provider: Provider name, for prices, telemetry and errors; by default the interface's own.
        native_output: False for servers that enforce no JSON schema; the prompt then describes it.
        context_window: Tokens the model can hold, if known.
        max_output_tokens: Largest reply the model can give, if known.
        headers: Sent with every request.

    Raises:
        MissingExtraError: If the provider's SDK is not installed.
        MissingKeyError: If the provider needs a key and there is none.
        ConfigurationError: If ``base_url`` is not an address.
    """

    wire: ClassVar[Wire]

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        provider: str = "",
        native_output: bool = True,
        context_window: int | None = None,
        max_output_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.provider = provider or self.wire.provider
        self.native_output = native_output
        self.context_window = context_window
        self.max_output_tokens = max_output_tokens
        self.free = False
        self.endpoint = self.wire.connect(type(self).__name__, self.provider, api_key, base_url, headers)
        # One model requires reasoning data back that another model refuses, so each model has its own encodings.
        self.encoding = self.wire.encoding.format(provider=self.provider, name=name)
        self._kept: Kept[bytes] = Kept()

    @property
    def address(self) -> str:
        """Where its requests go."""
        return self.endpoint.url

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Ask for one reply.

        Raises:
            ProviderError: With the fault that tells whether a retry may help.
        """
        wire = self.wire
        check_extra(request.settings, wire.reserved)
        on_delta: OnDelta | None = request.on_delta
        if on_delta is None and request.max_output_tokens > wire.longest_whole:
            on_delta = request.on_text or str
        body = wire.encode(self, request, on_delta is not None)

        def read(answer: Any) -> ModelReply:
            return wire.read(answer, self.provider, self.encoding, len(request.transcript))

        return await exchange(wire, self.endpoint, body, request.timeout, on_delta, read)

    async def close(self) -> None:
        """Close the connections; the model stays usable."""
        await self.endpoint.close()

    def body(
        self,
        request: ModelRequest,
        head: Mapping[str, Any],
        pieces: list[bytes],
        fixed: Callable[[], Mapping[str, Any]],
        *parts: object,
    ) -> bytes:
        """Return the body of a request.

        Args:
            request: The request to encode.
            head: Fields that may change from turn to turn.
            pieces: The encoded elements of the conversation.
            fixed: Makes the fields that are the same in every turn of a run; called once for the same objects.
            parts: Objects beside the tools, the output and the settings that they are made from.
        """
        tail = self._kept.get(lambda: encode(fixed()), request.tools, request.output, request.settings, *parts)
        return join_body(head, self.wire.history, pieces, tail)


async def exchange(
    wire: Wire,
    endpoint: Endpoint,
    body: bytes,
    timeout: float | None,
    on_delta: OnDelta | None,
    read: Callable[[Any], T],
) -> T:
    """Send a body and return what ``read`` makes of the whole answer; streamed if ``on_delta`` is given.

    This is the one place where replies are read: every error of decoding, collecting and ``read`` is a fault of the
    reply.

    Args:
        wire: The interface that is spoken.
        endpoint: The provider's endpoint that gets the request.
        body: The encoded body to send.
        timeout: Seconds for all of it, or None.
        on_delta: Called with text as it arrives; its errors are raised unchanged.
        read: Reads the decoded answer.

    Raises:
        ProviderError: For every failure.
    """
    provider = endpoint.provider
    if on_delta is None:
        content = await endpoint.ask(wire.path, body, timeout)
        with reading(provider, content=content):
            return read(msgspec.json.decode(content, type=wire.answer))
    with listening(on_delta) as hear:
        collector = wire.collect(hear, provider)
        await endpoint.stream(wire.path, body, timeout, collector.feed)
        with reading(provider):
            return read(collector.whole())
