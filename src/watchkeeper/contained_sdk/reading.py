"""Reads, from the bytes, what a provider's own SDK sends and what the provider answers.

A field of a request is changed only where the gate grants less than was asked, where no cap was named, where a stream
would end without its token counts, or where a cheaper model takes over; every other value keeps its bytes. A stream is
passed on as its bytes arrive. Token counts are used once the provider has sent their final values. The details of an
interface are in its `Wire`. This module sends nothing and decides nothing.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec

from watchkeeper.adapters.anthropic import MESSAGES
from watchkeeper.adapters.endpoint import given
from watchkeeper.adapters.openai_chat import CHAT, EMBEDDINGS
from watchkeeper.adapters.openai_responses import RESPONSES
from watchkeeper.adapters.wire import Wire
from watchkeeper.contained_sdk.addresses import normal_path
from watchkeeper.core.usage import TokenUsage
from watchkeeper.asking.models import FRAME_TOKENS
from watchkeeper.asking.provider_work import (
    ADVISOR,
    AT_THE_PROVIDER,
    DRAWS,
    KNOWN_FIELDS,
    SUMMARIES,
    runs_at_provider,
    searches_by_itself,
    summarizes,
    tools_overhead,
    unknown_fields,
)

WIRES: Final = (CHAT, RESPONSES, EMBEDDINGS, MESSAGES)
"""The interfaces whose requests are read; any other post counts as a tool call that bills in an unknown way."""

NO_INPUT: Final = frozenset(
    {"max_completion_tokens", "max_tokens", "max_output_tokens", "n", "stream", "stream_options"}
)
"""Fields that add nothing to the input."""

UNCAPPED: Final = -1
"""What servers like LM Studio's take for no cap on the output, as any other negative number."""

OLD_CAP: Final = re.compile(r"https?://([^/]*\.)?deepseek\.com[:/]")
"""Servers that know only the older name of the output cap, and pass over the newer one, which LangChain sends."""

UNSIZED: Final = re.compile(
    "(input_)?(audio|document|file|image|video)(_url)?|computer_screenshot|container_upload|item_reference"
)
"""Types of parts whose size in bytes gives no bound on their tokens."""

SIZED: Final = re.compile(
    "message|((input|output|summary|reasoning)_)?text|refusal|(redacted_)?thinking|reasoning|compaction|fallback|program"
    "|(tool_)?reference|tool_removal"
    "|mcp_(list_tools|tool_listing|approval_request|approval_response)|.*_(call|output|result|use)"
)
"""Types of items and parts that are no more than their bytes. Others may bring tools, or stand for what is stored."""

REFERENCE: Final = frozenset({"id", "type"})
"""The only fields of an item that refers to a stored item of a conversation; its type may be missing."""

PLAIN_TEXT: Final = frozenset({"text", "cache_control"})
"""The only fields of a part without a type."""

KINDS: Final = re.compile(rb'"type"\s*:\s*"(?:input_)?(audio|image|video)|"(audio)"\s*:\s*\{\s*"id"')
"""Parts that are no text, and sound that the provider keeps."""

SIZED_SOURCES: Final = frozenset({"text", "content"})
DEPLOYMENT: Final = re.compile(r"/deployments/([^/]+)/")
"""Where Azure's addresses name the deployment that answers, whatever model the body names."""

PRICE_FIELDS: Final = ("service_tier", "speed", "inference_geo")
"""Fields that may choose another price."""

FIXED_TIERS: Final = frozenset({"default", "standard", "standard_only", "priority", "batch"})
"""Service tiers that a request is never answered above."""


def wire_at(path: str) -> Wire | None:
    """Return the interface that a path belongs to, however it is spelled, or None."""
    normal = normal_path(path)
    wires = (wire for wire in WIRES if normal.endswith(wire.path))
    return next((wire for wire in wires if wire is not MESSAGES or "/threads/" not in normal), None)


def read_call(path: str, body: bytes, url: str) -> SentRequest | None:
    """Return the model call in a request, or None if it is not a known model call."""
    wire = wire_at(path)
    try:
        return None if wire is None else SentRequest(wire, body, url)
    except (msgspec.DecodeError, RecursionError):
        return None


class SentRequest:
    """One model call, read from the body of its request.

    Attributes:
        wire: The interface that it is for.
        model: The model's name.
        streaming: Whether the answer is to come as a stream.
        cap: Output tokens that it asks for at most, all alternatives together; None if it names no cap.
        others: Other models that it lets answer, or be asked on the way.
        deployment: The deployment that its address names, or nothing.
        attempts: How often the input may be read and answered, one time after another, and be billed each time: by
            the models that take over, and for a summary of it.
        copies: How many alternatives it asks for, in all attempts.
        least: Output tokens without which the provider would refuse the request.
        pieces: The messages of the conversation, as bytes.
        fixed: Everything else that the input's tokens depend on; the same in each turn of one conversation.
        previous: The stored answer that it goes on from, if it does.
        wishes: Fields that may choose another price.
        long_cache: Whether it asks for caches that live for an hour.
        kinds: What it sends besides text ("audio", "image", "video").
        audible: Whether it asks for spoken answers, which no list of prices by token covers.
        unknown: Fields of which nobody knows here what they make the provider do.
        adds_usage: Whether the stream's token counts are there only because we ask for them.
    """

    def __init__(self, wire: Wire, body: bytes, url: str) -> None:
        """Read a body.

        Raises:
            msgspec.DecodeError: If it is not a JSON object, or a field is not what it has to be.
        """
        self._fields = fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        self._url = url
        self.wire = wire
        self.model = self._get("model", str) or ""
        self.streaming = self._get("stream", bool) or False
        tools: list[dict[str, Any]] = self._get("tools", list[dict[str, Any]]) or []
        self._fallbacks = fallbacks = self._read_fallbacks()
        advisors = [tool.get("model") for tool in tools if str(tool.get("type")).startswith(ADVISOR)]
        drawn = [f"what draws for {DRAWS}" for tool in tools if tool.get("type") == DRAWS]
        named: list[Any] = [
            *(self._get("models", list[str]) or []),
            *(each.get("model") for each in fallbacks),
            *advisors,
            *drawn,
        ]
        self.others = tuple(dict.fromkeys(str(name) for name in named))
        found = DEPLOYMENT.search(url)
        self.deployment = "" if found is None else unquote(found[1])
        self.attempts = 1 + len(fallbacks) + sum(summarizes(name, self._get(name, Any)) for name in SUMMARIES)
        self.copies = max(self._get("n", int) or 1, 1) * self.attempts
        caps = [cap for name in wire.caps if (cap := self._get(name, int)) is not None]  # of two, servers take either
        if min(caps, default=UNCAPPED) <= UNCAPPED:
            caps = []
        else:
            caps += (cap for each in fallbacks if isinstance(cap := each.get("max_tokens"), int))
        self.cap = max(caps) * self.copies if caps else None
        thinking: dict[str, Any] = (self._get("thinking", dict) or {}) if wire.thinks_in_cap else {}
        budget = thinking.get("budget_tokens")
        self.least = (budget if isinstance(budget, int) else 0) + 1 if wire.thinks_in_cap else 0
        self.wishes = {name: wish for name in PRICE_FIELDS if (wish := self._get(name, str)) is not None}
        self.long_cache = re.search(rb'"ttl"\s*:\s*"1h"', body) is not None
        self.kinds = tuple(sorted({kind.decode() for found in KINDS.findall(body) for kind in found if kind}))
        self.audible = "audio" in fields
        self.previous: str | None = self._get("previous_response_id", str) if wire.stored else None
        self._options: dict[str, Any] = self._get("stream_options", dict) or {}
        self.adds_usage = wire.asks_usage and self.streaming and not self._options.get("include_usage")
        self.pieces: tuple[bytes, ...] = ()
        if wire.history in fields and bytes(fields[wire.history]).lstrip()[:1] == b"[":
            self.pieces = tuple(map(bytes, msgspec.json.decode(fields[wire.history], type=list[msgspec.Raw])))
        left_out = NO_INPUT | ({wire.history} if self.pieces else frozenset[str]())
        self.fixed = tuple((name, bytes(value)) for name, value in fields.items() if name not in left_out)
        self._fixed_bytes = sum(len(value) for _, value in self.fixed) + FRAME_TOKENS + tools_overhead(tools)
        at_provider = sum(map(runs_at_provider, tools)) + searches_by_itself(self.model)
        known = ("model", "audio", wire.history or "input", *wire.caps, *wire.stored)
        self.unknown = tuple(
            unknown_fields({name: self._get(name, Any) for name in fields if name not in KNOWN_FIELDS}, known)
        )
        self._fixed_unsized = at_provider + sum(map(self._given, (*wire.stored, *AT_THE_PROVIDER)))

    def _read_fallbacks(self) -> list[dict[str, Any]]:
        """Return the models that the provider asks if the first one declines; plain text means that it chooses them."""
        told: str | list[str | dict[str, Any]] = self._get("fallbacks", str | list[str | dict[str, Any]]) or []
        if isinstance(told, str):
            return [{"model": f"what fallbacks={told!r} chooses"}]
        return [{"model": each} if isinstance(each, str) else each for each in told]

    def input_bound(self, known: int = 0) -> tuple[int, int]:
        """Return an upper bound of the tokens of the text, and the number of parts whose bytes give no bound.

        Args:
            known: Number of messages that the provider has already counted. They and the fixed part are left out, but
                not what the provider may add in each turn.
        """
        text, unsized = (FRAME_TOKENS if known else self._fixed_bytes), self._fixed_unsized
        for piece in self.pieces[known:]:
            message = msgspec.json.decode(piece)
            size, parts = weigh(message)
            if isinstance(message, dict):
                item = cast("dict[str, Any]", message)
                parts = (parts or stands_for_more(item)) + sum(not is_known(part) for part in parts_of(item))
            text += len(piece) - size + FRAME_TOKENS
            unsized += parts
        return text, unsized

    def capped(self, granted: int | None, model: str | None = None) -> bytes:
        """Return the body to send.

        Args:
            granted: Output tokens granted for all alternatives together; None leaves the cap as it is.
            model: Asked instead of the one that the request names.
        """
        fields: dict[str, Any] = dict(self._fields)
        caps = self.wire.caps
        if granted is not None and caps and (self.cap is None or granted < self.cap):
            for name in [name for name in caps if self._given(name)] or [self.wire.cap_at(self._url)]:
                cap = self._get(name, int) or UNCAPPED
                fields[name] = min(cap if cap > UNCAPPED else sys.maxsize, granted // self.copies)
            if any("max_tokens" in fallback for fallback in self._fallbacks):
                fields["fallbacks"] = [self._limited(fallback, granted // self.copies) for fallback in self._fallbacks]
        older = self.wire.cap_at(self._url)
        if (
            granted is not None
            and older not in fields
            and "max_completion_tokens" in fields
            and OLD_CAP.match(self._url)
        ):
            fields[older] = fields["max_completion_tokens"]
        if self.adds_usage:
            fields["stream_options"] = {**self._options, "include_usage": True}
        if model is not None:
            fields["model"] = model
        return msgspec.json.encode(fields)

    def _limited(self, fallback: dict[str, Any], most: int) -> dict[str, Any]:
        own = fallback.get("max_tokens")
        return {**fallback, "max_tokens": min(own, most)} if isinstance(own, int) else fallback

    def at(self, **wishes: str) -> SentRequest:
        """Return a copy that asks for other pricing options, given by name (such as the service tier)."""
        other = copy.copy(self)
        other.wishes = {**self.wishes, **wishes}
        return other

    def _given(self, name: str) -> bool:
        return name in self._fields and bytes(self._fields[name]) not in (b"null", b"false")

    def _get(self, name: str, type_: Any) -> Any:
        return msgspec.json.decode(self._fields[name], type=type_ | None) if name in self._fields else None


def stands_for_more(message: dict[str, Any]) -> bool:
    """Return whether a message, or the audio in it, is only an id of what the provider stores."""
    return ("id" in message and message.keys() <= REFERENCE) or isinstance(message.get("audio"), dict)


def parts_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an item of a conversation, if it has a type, and the parts of its content."""
    content: Any = item.get("content")
    parts = cast("Sequence[Any]", content) if isinstance(content, list) else ()
    own = [item] if isinstance(item.get("type"), str) else []
    return own + [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]


def is_known(part: dict[str, Any]) -> bool:
    """Return whether the type of an item or part says what it is; without a type, only text is known."""
    kind: Any = part.get("type")
    if kind is None:
        return part.keys() <= PLAIN_TEXT
    return (SIZED.fullmatch(str(kind)) or UNSIZED.fullmatch(str(kind))) is not None


def weigh(content: Any) -> tuple[int, int]:
    """Return the number of bytes of the parts whose size gives no bound on their tokens, and the number of parts."""
    size = parts = 0
    left: list[Any] = [content]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            source: Any = fields.get("source")
            plain = isinstance(source, dict) and cast("dict[str, Any]", source).get("type") in SIZED_SOURCES
            if UNSIZED.fullmatch(str(fields.get("type"))) and not plain:
                size, parts = size + len(msgspec.json.encode(fields)), parts + 1
            elif fields.get("type") != "tool_use":  # its arguments are text to the model, whatever their fields say
                left += fields.values()
        elif isinstance(part, list):
            left += cast("Sequence[Any]", part)
    return size, parts


# --- answers --------------------------------------------------------------------------------------------------------

DONE: Final = b"[DONE]"
FINISHED: Final = re.compile(rb'"(?:finish|stop)_reason"\s*:\s*"')
"""Says, in a chunk of a stream, that an alternative is complete: only then are counts in the middle the last ones."""

NO_ANSWER: Final = (msgspec.DecodeError, ValueError, TypeError, RecursionError)


BEGUN: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|data:|event:)")
"""How an answer begins; anything else that cannot be read, for example a web page, was never one."""

PENDING: Final = frozenset({"queued", "in_progress"})
"""What a job's answer says of itself while the provider still works on it."""


class Told(msgspec.Struct):
    """What is read of an answer, or of one event of it, in any interface."""

    type: Any = ""
    id: Any = None
    request_id: Any = None
    status: Any = None
    usage: Any = None
    service_tier: Any = None
    choices: Any = None
    output: Any = None
    content: Any = None
    data: Any = None
    error: Any = None
    response: Any = None
    message: Any = None

    @property
    def pending(self) -> bool:
        """Whether a whole answer is not final: it says so, or it has no parts of an answer."""
        parts = (self.usage, self.choices, self.output, self.content, self.data, self.error)
        return self.status in PENDING or all(part is None for part in parts)


class Seen:
    """What an answer has told so far.

    Attributes:
        usage: Its token counts, once they are final and make sense.
        response_id: The id under which the provider keeps the answer, if it does.
        ended: Whether the answer said that it was complete.
        pending: Whether the provider still works on it; its cost is known when it is retrieved.
        damaged: Whether a part of it could not be read that may have told its token counts.
        size: Bytes of it so far.
    """

    __slots__ = ("_counts", "_last", "damaged", "ended", "granted", "pending", "response_id", "size", "told", "usage")

    def __init__(self) -> None:
        """Start without counts."""
        self.usage: TokenUsage | None = None
        self.response_id = ""
        self.ended = False
        self.pending = False
        self.damaged = False
        self.size = 0
        self.told: TokenUsage | None = None
        self.granted: dict[str, str] = {}
        self._last: TokenUsage | None = None
        self._counts: dict[str, Any] = {}

    def take(self, wire: Wire, told: Told, *, counted: bool, final: bool) -> None:
        """Take in an answer or an event; counts that came earlier hold until they are said again.

        Args:
            wire: The interface.
            told: The answer or event.
            counted: Whether its counts are final if the answer ends with it.
            final: Whether they are so in any case.

        Raises:
            msgspec.ValidationError: If the token counts are invalid.
        """
        inner: Any = told.response or told.message
        inner = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        counts = [cast("dict[str, Any]", part) for part in (inner.get("usage"), told.usage) if isinstance(part, dict)]
        for part in counts:
            self._counts.update(given(part))
        for part in ({"service_tier": told.service_tier}, inner, *counts):
            self.granted.update({name: wish for name in PRICE_FIELDS if isinstance(wish := part.get(name), str)})
        if wire.stored:
            self.response_id = str(inner.get("id") or told.id or self.response_id)
        if self._counts and (counts or final):
            usage = msgspec.convert(self._counts, wire.usage).tokens()
            if usage.input_tokens > 0 and usage.is_possible:
                self.told = larger(usage, self.told)
                self._last = usage if counted else self._last
                self.usage = usage if final else self.usage

    def end(self) -> None:
        """Take note that the answer is complete: what it told last holds."""
        self.ended = True
        if self.usage is None:
            self.usage = self._last


def larger(one: TokenUsage, other: TokenUsage | None) -> TokenUsage:
    """Return the larger of each count."""
    if other is None:
        return one
    return TokenUsage(*map(max, zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)))


def read_whole(wire: Wire, content: bytes) -> Seen:
    """Return what a whole answer tells; one that is no JSON tells nothing but its size."""
    seen = Seen()
    seen.size = len(content)
    seen.ended = True
    try:
        told = msgspec.json.decode(content, type=Told)
        seen.pending = told.pending
        seen.take(wire, told, counted=True, final=not told.pending)
        if told.pending:
            seen.response_id = str(told.id or told.request_id or "")
    except NO_ANSWER:
        seen.usage, seen.damaged = None, BEGUN.match(content) is not None
    return seen


class StreamReader:
    """Reads the token counts out of a stream of server-sent events while it passes.

    Attributes:
        seen: What it has told so far.
    """

    def __init__(self, wire: Wire, *, hide_usage: bool, copies: int = 1) -> None:
        """Begin.

        Args:
            wire: The interface whose events they are.
            hide_usage: Whether to take out the chunk that brings nothing but token counts.
            copies: How many alternatives it brings.
        """
        self.seen = Seen()
        self._wire = wire
        self._hide = hide_usage and wire.asks_usage
        self._unfinished = copies
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Take in bytes and return those to pass on: all events that are complete."""
        self.seen.size += len(chunk)
        self._rest.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:  # a line is put together once, however many pieces it comes in
            return b""
        lines = b"".join(self._rest).splitlines(keepends=True)
        self._rest = [] if lines[-1].endswith(b"\n") else [lines.pop()]
        return b"".join(line for line in lines if not self._swallows(line))

    def finish(self) -> bytes:
        """Return what is left at the end of the stream."""
        lines, self._rest = b"".join(self._rest).splitlines(keepends=True), []
        return b"".join(line for line in lines if not self._swallows(line))

    def _swallows(self, line: bytes) -> bool:
        """Read one line; return whether the caller is not to see it."""
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        self._unfinished -= len(FINISHED.findall(data))
        if data == DONE:
            self.seen.end()
        elif b'"usage"' in data or b'"message_stop"' in data or b'"response.' in data:
            try:
                told = msgspec.json.decode(data, type=Told)
                counted, ends = told.type in self._wire.counted, told.type in self._wire.ended
                self.seen.take(self._wire, told, counted=counted, final=counted and (ends or self._unfinished <= 0))
                if ends:
                    self.seen.end()
            except NO_ANSWER:
                self.seen.damaged = True
                return False
            return self._hide and told.usage is not None and not told.choices
        return False
