"""One provider's address, reached through its SDK with bytes that are already encoded, and how they are encoded.

The SDK's own ``post`` is used with an untyped body, so its authentication, headers, errors and streams are kept, but it
does not walk over every message of the history. SDK retries are off. Every error of the SDK or the connection is raised
as a ProviderError; cancelling drops the request. A message is encoded when it is new and its bytes are kept in its
transcript; what is the same in every turn of a run (tools, the output's schema) is encoded once for those objects. A
turn only joins bytes: the history is never encoded again. No request leaves for another machine while `allow_remote`
forbids it; importing ``watchkeeper.testing`` does. Nothing here knows a provider.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import ipaddress
import re
import urllib.parse
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from watchkeeper.adapters.scrubbing import conceal, scrub
from watchkeeper.asking.provider_work import OF_THE_ADAPTER
from watchkeeper.containment.calls import check_leaving
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, ProviderError
from watchkeeper.core.messages import AssistantMessage, Message, Transcript
from watchkeeper.core.model import ModelSettings, OutputSchema, extra_fields
from watchkeeper.core.secrets import REDACTED, SECRET_NAME, hold, hold_headers, hold_url, redacted

T = TypeVar("T")


class Endpoint:
    """Posts encoded bodies through an SDK client."""

    def __init__(self, provider: str, sdk: ModuleType, client: Any, options: Mapping[str, Any] | None = None) -> None:
        """Use a client of an SDK.

        Args:
            provider: Provider name, for errors.
            sdk: The SDK's module (openai or anthropic).
            client: An async client of it, with retries off.
            options: Request options that every request needs.
        """
        from watchkeeper.adapters.provider_errors import provider_error

        httpx = sdk_httpx(sdk)
        self._base = str(client.base_url).rstrip("/")
        for address in (str(client.base_url), self._base):
            hold_url(address)
        hold_headers(getattr(client, "default_headers", None))
        hold_headers(getattr(client, "auth_headers", None))
        self._hold_key(client)
        check_key(provider, client.api_key)
        self._provider_error = provider_error
        self.provider = provider
        self.url = self._base + "/"
        self._client = client
        self._options = dict(options or {})
        self._raw = httpx.Response
        self._stream_class = sdk.AsyncStream[object]
        self._errors: tuple[type[Exception], ...] = (sdk.APIError, httpx.HTTPError)

    async def ask(self, path: str, body: bytes, timeout: float | None) -> bytes:
        """Post a body and return the whole answer.

        Raises:
            ProviderError: Whatever went wrong.
        """
        self._check_leaving(path)
        try:
            response = await self._client.post(
                self._base + path, content=body, cast_to=self._raw, options=self._request_options(timeout)
            )
            self._hold_key(self._client)
            return await body_of(response)
        except self._errors as error:
            raise self._translate(error) from error

    async def stream(
        self, path: str, body: bytes, timeout: float | None, on_event: Callable[[dict[str, Any]], None]
    ) -> None:
        """Post a body and hand over every server-sent event as it comes, decoded.

        Raises:
            ProviderError: For every failure, also in the middle of the answer.
        """
        self._check_leaving(path)
        try:
            stream = await self._client.post(
                self._base + path,
                content=body,
                cast_to=object,
                options=self._request_options(timeout),
                stream=True,
                stream_cls=self._stream_class,
            )
            self._hold_key(self._client)
            async with stream:
                with reading(self.provider, self._errors):
                    async for event in stream:
                        on_event(event)
        except self._errors as error:
            raise self._translate(error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _check_leaving(self, path: str) -> None:
        check_remote(self.url)
        check_leaving(self._base + path, "POST")

    def _request_options(self, timeout: float | None) -> dict[str, Any]:
        return self._options if timeout is None else {**self._options, "timeout": timeout}

    def _hold_key(self, client: Any) -> None:
        """Register the key as a secret that is never written; a key from a function is renewed from time to time."""
        hold(client.api_key, getattr(client, "auth_token", None))

    def _translate(self, error: Exception) -> ProviderError:
        hold_headers(_headers_sent(error))
        scrub(error)
        translated = self._provider_error(error, provider=self.provider, url=self.url)
        conceal(error)
        return translated


def _headers_sent(error: Exception) -> Mapping[str, Any] | None:
    """Return the headers of the request that an error of an SDK is about; None if it does not say."""
    try:
        return dict(cast("Any", error).request.headers)
    except (AttributeError, RuntimeError):  # httpx raises a RuntimeError if the request was never set
        return None


class _ListenerFailed(BaseException):
    """Carries what a listener raised past everything that reads a reply; no Exception, so that nothing retries it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def listening(on_delta: Callable[[str], object]) -> Generator[Callable[[str], object]]:
    """Yield a listener whose own errors leave this block unchanged, and are never taken for faults of the reply."""

    def hear(text: str) -> None:
        try:
            on_delta(text)
        except Exception as error:
            raise _ListenerFailed(error) from error

    try:
        yield hear
    except _ListenerFailed as failed:
        raise failed.error from None


@contextmanager
def reading(provider: str, passing: tuple[type[Exception], ...] = (), content: bytes = b"") -> Generator[None]:
    """Make any failure to read a reply a `ProviderError` with the fault ``malformed_reply``.

    A reply may be anything at all, and what reads it may fail in any way: every exception counts. The reply was paid
    for, so the error is billed.

    Args:
        provider: Name of the provider that answered.
        passing: Errors of the connection, which leave as they are.
        content: The reply, if it is there as a whole; its beginning is quoted.

    Raises:
        ProviderError: If the block raises any other error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (ProviderError, *passing)):
            raise
        start = f": {quoted(content.decode('utf-8', 'replace'))!r}" if content else ""
        why = quoted(f"{type(error).__name__}: {error}")
        raise unreadable(provider, f"a reply of its interface ({why}){start}") from error


QUOTED: Final = 200
SEARCHED: Final = 20_000


def quoted(text: str) -> str:
    """Return the beginning of a text, for a message; credentials are replaced before the cut could leave a part."""
    return redacted(text[:SEARCHED])[:QUOTED]


def unreadable(provider: str, expected: str) -> ProviderError:
    """Return the error for a billed answer that cannot be used; the message says what was ``expected`` instead."""
    message = f"{provider} answered something that is not {expected}"
    return ProviderError(message, fault="malformed_reply", provider=provider, billed=True)


def broken_stream(provider: str, detail: str) -> ProviderError:
    """Return the error for a reply that ended too early."""
    return ProviderError(
        f"the answer of {provider} is incomplete: {detail}", fault="broken_stream", provider=provider, billed=True
    )


MOST_PARTS: Final = 10_000
"""Calls or blocks that the events of one stream may bring."""


def part_index(index: Any) -> int:
    """Return the place of a call or a block in a streamed answer.

    Raises:
        ValueError: If it is no number, or one that no answer reaches.
    """
    number = int(index)
    if abs(number) > MOST_PARTS:
        raise ValueError(f"a streamed answer has at most {MOST_PARTS:,} parts, not {number:,}")
    return number


# Where the bytes of a body ride along, so that nothing has to be read out of a stream that is one piece anyway.
BODY: Final = "watchkeeper_body"


async def body_of(response: Any) -> bytes:
    """Return the bytes of a response."""
    whole: bytes | None = response.extensions.get(BODY)
    return cast("bytes", await response.aread()) if whole is None else whole


def sdk_httpx(sdk: ModuleType) -> Any:
    """Return the httpx module that an SDK is built on: httpx, or its successor httpx2."""
    names = (base.__module__.partition(".")[0] for base in sdk.DefaultAsyncHttpxClient.__mro__)
    return importlib.import_module(next(name for name in names if name in ("httpx", "httpx2")))


# --- addresses ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RemotePolicy:
    """Whether adapters may reach other machines; one for the whole process."""

    allowed: bool = True


REMOTE: Final = RemotePolicy()


def allow_remote(allowed: bool) -> bool:
    """Allow or forbid every host but this machine, for all adapters in the process, and return what held before.

    Tests forbid it, so that a forgotten fake can never reach a paid model.
    """
    before, REMOTE.allowed = REMOTE.allowed, allowed
    return before


def is_loopback(url: str) -> bool:
    """Return whether a URL points to this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_remote(url: str) -> None:
    """Refuse a URL on another machine while remote hosts are forbidden.

    Raises:
        ConfigurationError: If `allow_remote` forbids the host.
    """
    if not REMOTE.allowed and not is_loopback(url):
        raise ConfigurationError(
            f"{url} is not on this machine, and real providers are blocked here: use a fake server or the scripted "
            "model, or call watchkeeper.testing.allow_remote(True) first"
        )


def check_base_url(base_url: str | None) -> None:
    """Refuse a value that cannot be an address, and one with a user name: the SDKs send a key in its place.

    Raises:
        ConfigurationError: If there is one and it is not an http(s) address, or has user info.
    """
    if base_url is None:
        return
    has_user = False
    try:
        parts = urllib.parse.urlsplit(base_url)
        has_user = "@" in parts.netloc
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if usable and not has_user:
        return
    hold_url(base_url)
    _, at, rest = base_url.rpartition("@")  # the part before it may be a password, also if that part is the error
    shown = redacted(f"{REDACTED}@{rest}" if at else base_url)
    if not usable:
        raise ConfigurationError(f"base_url={shown!r} is no address: write it like 'http://localhost:8080/v1'")
    raise ConfigurationError(
        f"base_url={shown!r} has a user name or password in it, which cannot be sent beside the key; make the model"
        " with the address alone and headers={'Authorization': 'Basic ...'} (the base64 form of 'user:password')"
    )


def check_key(what: str, key: object) -> None:
    """Refuse a key that no header can carry; the message does not quote it.

    Raises:
        ConfigurationError: If it holds a line break, an invisible or a foreign character, as a careless copy does.
    """
    if isinstance(key, str) and not (key.isascii() and key.isprintable()):
        place = next(at for at, letter in enumerate(key, 1) if not (letter.isascii() and letter.isprintable()))
        raise ConfigurationError(
            f"the key of {what} cannot be sent: its character {place} of {len(key)} is a line break, invisible or "
            "outside of ASCII; copy it again, or strip() what was read from a file"
        )


def import_sdk(name: str, what: str, extra: str) -> ModuleType:
    """Import an SDK when it is first needed.

    Raises:
        MissingExtraError: If it, or the HTTP client it is used with, is not installed.
    """
    for needed in (name, "aiohttp"):
        if importlib.util.find_spec(needed) is None:
            raise MissingExtraError(what, extra)
    return importlib.import_module(name)


# --- encoding -------------------------------------------------------------------------------------------------------

ENCODER: Final = msgspec.json.Encoder()
KEPT_ENTRIES: Final = 64
DIGEST: Final = 32


def encode(value: Any) -> bytes:
    """Return a value as JSON; halves of surrogate pairs, which files and processes can leave in text, become U+FFFD."""
    try:
        return ENCODER.encode(value)
    except UnicodeEncodeError:
        return ENCODER.encode(_well_formed(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"a request cannot be written as JSON: {error}") from error


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {_well_formed(key): _well_formed(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item) for item in cast("list[Any]", value)]
    return value


def encoded_messages(transcript: Transcript, key: str, encode_message: Callable[[Message], bytes]) -> list[bytes]:
    """Return the elements of a JSON array of all messages, commas included, encoding only what is new.

    Args:
        transcript: The conversation; its place for ``key`` is filled up.
        key: Name of the encoding.
        encode_message: Encodes one message; may return several elements, or none.
    """
    pieces = transcript.encoded(key)
    for message in transcript.since(len(pieces)):
        piece = encode_message(message)
        pieces.append(b"," + piece if piece and any(pieces) else piece)
    return pieces


def given(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {key: value for key, value in (fields or {}).items() if value is not None}


def tool_arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object, for providers that take no text; broken ones stay visible in it."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {"unreadable_arguments": text}


def own_data(message: AssistantMessage, encoding: str) -> dict[str, Any]:
    """Return what an adapter kept in a message under its encoding; nothing, if another adapter wrote it."""
    data: Any = message.provider_data
    if not isinstance(data, dict):
        return {}
    data = cast("dict[str, Any]", data)
    return data if data.get("encoding") == encoding else {}


def with_ids(
    returned: list[dict[str, Any]], message: AssistantMessage, kind: str, key: str, allowed: re.Pattern[str]
) -> list[dict[str, Any]]:
    """Return what a provider wants back unchanged, with its calls under the ids that the conversation knows them by.

    The loop gives a call another id if the provider uses the same one twice.

    Args:
        returned: Blocks or items of a reply.
        message: The reply, with the same calls in the same order.
        kind: Type of those that are calls.
        key: Their field with the id.
        allowed: The form of an id that the provider takes.
    """
    ids = iter(message.tool_calls)
    mended: list[dict[str, Any]] = []
    for each in returned:
        call = next(ids, None) if each.get("type") == kind else None
        mended.append(each if call is None else {**each, key: portable_id(call.call_id, allowed)})
    return mended


def portable_id(call_id: str, allowed: re.Pattern[str]) -> str:
    """Return a call's id in a form that the provider accepts: unchanged, or derived from it if its form is not allowed.

    Ids of other providers, from before a switch of models, can be longer than a provider takes, or have other letters.
    """
    if allowed.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:DIGEST]}"


class Kept(Generic[T]):
    """A cache keyed by the identity of objects; it holds the objects, so that their ids are not reused."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._entries: dict[tuple[int, ...], tuple[tuple[object, ...], T]] = {}

    def get(self, make: Callable[[], T], *objects: object) -> T:
        """Return what ``make`` returned at the first call with these same objects."""
        key = tuple(map(id, objects))
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= KEPT_ENTRIES:
                self._entries.clear()
            entry = self._entries[key] = (objects, make())
        return entry[1]


def join_body(head: Mapping[str, Any], array: str, pieces: list[bytes], tail: bytes) -> bytes:
    """Return one JSON object: the fields of ``head``, an array of encoded pieces, and encoded fields in braces."""
    close = b"]" if tail == b"{}" else b"],"
    return b"".join([encode(head)[:-1], b',"', array.encode(), b'":[', *pieces, close, tail[1:]])


def credentials_in(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts with credentials among provider-specific fields, each with the name of its field.

    They are tokens of MCP servers, headers, and parts of addresses.
    """
    if isinstance(value, str):
        if "://" in value or re.search(SECRET_NAME, name):
            yield name, value
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[object, object]", value).items():
            yield from credentials_in(each, str(key))
    elif isinstance(value, list | tuple):
        for each in cast("list[object]", value):
            yield from credentials_in(each)


def hold_extra(found: Iterable[tuple[str, str]]) -> None:
    """Register these credentials for one request."""
    for name, text in found:
        hold_headers({name: text}, passing=True)
        if "://" in text:
            hold_url(text, passing=True)


CREDENTIALS: Final[Kept[tuple[tuple[str, str], ...]]] = Kept()
"""Those in the extra fields of settings that were checked: to look for them takes 2 ms where tools are described."""


def check_extra(settings: ModelSettings, reserved: frozenset[str]) -> None:
    """Refuse provider-specific fields that would replace fields that the adapter writes; register credentials in them.

    They are registered with every request, because those of other requests may have pushed them out.

    Args:
        settings: The settings; their fields are read once.
        reserved: Fields that only the adapter writes, beside `OF_THE_ADAPTER`; always the same set.

    Raises:
        ConfigurationError: If there are any.
    """
    if settings.extra:
        hold_extra(CREDENTIALS.get(lambda: _checked(extra_fields(settings), reserved), settings, reserved))


def _checked(extra: Mapping[str, Any], reserved: frozenset[str]) -> tuple[tuple[str, str], ...]:
    clash = sorted((reserved | OF_THE_ADAPTER) & extra.keys())
    if clash:
        raise ConfigurationError(f"ModelSettings.extra cannot set {', '.join(clash)}: the adapter writes these itself")
    return tuple(credentials_in(extra))


def all_tools(own: list[dict[str, Any]], extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an agent's tools as the interface wants them, and behind them those that the settings add.

    Args:
        own: The agent's tools.
        extra: Provider-specific fields; their ``tools`` are the provider's own.

    Raises:
        ConfigurationError: If they are no list of objects, or one has the name of a tool of the agent.
    """
    added: object = extra.get("tools") or []
    if not isinstance(added, list | tuple) or not all(isinstance(tool, Mapping) for tool in cast("list[Any]", added)):
        raise ConfigurationError(f"ModelSettings.extra tools={added!r} must be a list of objects: {EXTRA_TOOLS}")
    added = cast("list[Mapping[str, Any]]", added)
    clash = sorted({_tool_name(tool) for tool in own} & {_tool_name(tool) for tool in added} - {""})
    if clash:
        raise ConfigurationError(f"ModelSettings.extra tools cannot contain {', '.join(clash)}: {EXTRA_TOOLS}")
    return [*own, *map(dict, added)]


EXTRA_TOOLS: Final = "these are the provider's own tools, added to the agent's; give the agent's tools to the agent"


def _tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    named = cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else tool
    return str(named.get("name") or "")


# --- schemas --------------------------------------------------------------------------------------------------------
# In the subset of JSON Schema that providers enforce, every object lists all its properties, all are required and
# nothing else is allowed. A field with a default is therefore asked for too, with its default in its description:
# whatever comes back still fits the type. What the subset cannot express (open maps, values of any type) gives None,
# never a weaker schema. Constraints that a provider does not check go into the description; the runtime checks them.

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
OPENAI_KEYWORDS: Final = frozenset(
    {"pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
)
# https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations
ANTHROPIC_KEYWORDS: Final = frozenset[str]()
FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
PLAIN: Final = frozenset({"type", "enum", "const", "$ref", "description", "title"})


class _InexpressibleError(Exception):
    """A part of a schema lies outside the subset."""


def strict_schema(schema: Mapping[str, Any], keywords: frozenset[str] = OPENAI_KEYWORDS) -> dict[str, Any] | None:
    """Return a schema in the enforced subset, or None if the subset cannot express it.

    Args:
        schema: JSON Schema of an object, self-contained.
        keywords: Constraints that the provider checks.
    """
    try:
        strict = _strict(schema, keywords)
    except _InexpressibleError:
        return None
    if strict.get("type") != "object":
        return None
    definitions = cast("Mapping[str, Mapping[str, Any]]", schema.get("$defs") or {})
    if definitions:
        try:
            strict["$defs"] = {name: _strict(part, keywords) for name, part in definitions.items()}
        except _InexpressibleError:
            return None
    return strict


def describe_schema(output: OutputSchema) -> str:
    """Return an instruction with the schema, for models whose provider cannot enforce one."""
    return (
        "When the work is done, answer with one JSON object that fits this JSON Schema, and with nothing else: "
        f"{encode(output.schema).decode()}"
    )


def _strict(schema: Mapping[str, Any], keywords: frozenset[str]) -> dict[str, Any]:
    strict = {key: schema[key] for key in PLAIN & schema.keys()}
    notes = _notes(schema, keywords, strict)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            strict["anyOf"] = [_strict(option, keywords) for option in schema[key]]
    if schema.get("type") == "object":
        _close_object(schema, keywords, strict)
    elif schema.get("type") == "array":
        if not isinstance(schema.get("items"), Mapping):
            raise _InexpressibleError
        strict["items"] = _strict(schema["items"], keywords)
    if not strict.keys() & {"type", "anyOf", "$ref", "enum", "const"} or "allOf" in schema:
        raise _InexpressibleError
    if "$ref" in strict:
        # Providers refuse other keywords beside a reference.
        return {"$ref": strict["$ref"]}
    if notes:
        strict["description"] = " ".join(filter(None, [strict.get("description"), f"({', '.join(notes)})"]))
    return strict


def _close_object(schema: Mapping[str, Any], keywords: frozenset[str], strict: dict[str, Any]) -> None:
    properties = cast("Mapping[str, Mapping[str, Any]]", schema.get("properties") or {})
    if schema.get("additionalProperties", False) is not False or "patternProperties" in schema:
        raise _InexpressibleError
    if not properties and "additionalProperties" not in schema and "properties" not in schema:
        raise _InexpressibleError
    strict["properties"] = {name: _strict(part, keywords) for name, part in properties.items()}
    strict["required"] = list(properties)
    strict["additionalProperties"] = False


def _notes(schema: Mapping[str, Any], keywords: frozenset[str], strict: dict[str, Any]) -> list[str]:
    """Keep what the provider checks, and return the rest in words."""
    notes: list[str] = []
    for key, value in schema.items():
        if key in keywords or (key == "format" and value in FORMATS):
            strict[key] = value
        elif key == "default":
            notes.append(f"default: {value!r}")
        elif key in _CONSTRAINTS:
            notes.append(f"{key}: {value}")
    return notes


_CONSTRAINTS: Final = OPENAI_KEYWORDS | {"format", "minLength", "maxLength", "uniqueItems", "examples"}
