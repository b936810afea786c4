"""Recorded model traffic for tests: asked once for real, answered from a file ever after.

`recorded` makes a model of a file. Without the file it passes every request on to a real model and keeps what was asked
and answered; with it, it answers from the file, and fails with a diff if the request has changed. The file has JSON
lines in a fixed order, so that a change of it can be read in a review: each message, each set of tools and settings
once, then the exchanges, which refer to them by number. Credentials that this process holds are not in it.
"""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, cast

import msgspec

from watchkeeper.adapters.endpoint import allow_remote, credentials_in, hold_extra
from watchkeeper.app.models import model_from
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, ProviderError, ThrottleError
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.model import FinishReason, Model, ModelReply, ModelRequest, ModelSettings, OutputSchema, ToolSpec
from watchkeeper.core.quantities import counted
from watchkeeper.core.secrets import HELD, REDACTED
from watchkeeper.core.usage import TokenUsage
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.session.event_json import read_value
from watchkeeper.session.tagging import dump, load

VARIABLE: Final = "WATCHKEEPER_RECORD"
"""Environment variable: ``1`` asks the real models again, and replaces the files."""

VERSION: Final = 1

INSIDE_TEXT: Final = r'(?:[^"\\]|\\.)'
"""A character of a text in JSON, or an escape."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: the model that answered.

    Attributes:
        recording: Version of the format.
        name: The model's name, as the provider knows it.
        provider: The provider's name.
        native_output: Whether the model answers in a schema by itself.
        context_window: Tokens that it can hold, if known.
        max_output_tokens: Its largest reply, if known.
        free: Whether a call costs nothing.
    """

    recording: int
    name: str
    provider: str
    native_output: bool
    context_window: int | None
    max_output_tokens: int | None
    free: bool


class Form(msgspec.Struct, frozen=True):
    """What several requests have in common.

    Attributes:
        tools: The tools on offer.
        output: The schema of the answer, or None for text.
        settings: How the model is asked.
    """

    tools: tuple[ToolSpec, ...]
    output: OutputSchema | None
    settings: ModelSettings


class Replied(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply; the attributes are those of `ModelReply`, the message as typed JSON."""

    message: Any
    usage: TokenUsage
    finish: FinishReason
    model: str = ""
    response_id: str = ""
    refusal: str = ""
    ended_by: str = ""
    context_tokens: int | None = None


class Failed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of the provider; the attributes are those of `ProviderError`."""

    message: str
    fault: Any
    provider: str = ""
    status: int | None = None
    retry_after: float | None = None
    billed: bool = False
    throttled: bool = False


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request and what came of it.

    Attributes:
        form: Which of the forms it has, counted from 0.
        messages: Which messages it sends, counted from 0.
        tool_choice: Whether tools may be used.
        pieces: The pieces in which the text arrived, if it was streamed.
        reply: The reply; None if it failed.
        error: How it failed.
    """

    form: int
    messages: tuple[int, ...]
    tool_choice: str = "auto"
    pieces: tuple[str, ...] = ()
    reply: Replied | None = None
    error: Failed | None = None


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the lines behind the first.

    Attributes:
        message: A message, as typed JSON.
        form: What several requests have in common.
        exchange: A request and what came of it.
    """

    message: Any = None
    form: Form | None = None
    exchange: Exchange | None = None


class Asked(msgspec.Struct, frozen=True):
    """A request as it is compared: JSON of its form, and of each message."""

    form: str
    messages: tuple[str, ...]
    tool_choice: str

    @classmethod
    def of(cls, request: ModelRequest) -> Asked:
        """Take what is compared; credentials are left out."""
        form = Form(request.tools, request.output, request.settings)
        messages = tuple(text_of(dump(message)) for message in request.transcript)
        return cls(text_of(form), messages, request.tool_choice)

    def fits(self, record: Asked) -> bool:
        """Whether this request is the one on record; a credential there stands for any text."""
        ours, theirs = (self.form, *self.messages), (record.form, *record.messages)
        if self.tool_choice != record.tool_choice or len(ours) != len(theirs):
            return False
        return all(map(same_text, ours, theirs))

    def lines(self) -> Iterator[str]:
        """Yield it in lines, for a diff."""
        form = msgspec.json.decode(self.form)
        yield f"settings: {msgspec.json.encode(form['settings']).decode()}"
        yield f"tool_choice: {self.tool_choice}"
        yield from pretty("output", form["output"])
        for tool in form["tools"]:
            yield from pretty(f"tool {tool['name']}", tool)
        for number, text in enumerate(self.messages, 1):
            message = msgspec.json.decode(text)
            yield from pretty(f"message {number}", message)


class ChangedRequestError(AssertionError):
    """A request differs from the recorded one; the text has the difference."""


class RecordedModel:
    """A model that answers from a file, or records into it; made by `recorded`.

    Attributes:
        path: The file.
        recording: Whether real traffic is recorded now.
        name: As `Model` has it, like the following.
        provider: The provider's name.
        native_output: Whether the model answers in a schema by itself.
        context_window: Tokens that it can hold, if known.
        max_output_tokens: Its largest reply, if known.
        free: Whether a call costs nothing.
    """

    def __init__(self, path: Path | str, model: Model | str | None = None, *, record: bool | None = None) -> None:
        """Read the file, or prepare to record it; see `recorded`."""
        self.path = Path(path)
        wanted = os.environ.get(VARIABLE) == "1" if record is None else record
        self.recording = wanted or not self.path.exists()
        self._lock = threading.Lock()
        self._asked: list[Asked] = []
        self._outcomes: list[tuple[tuple[str, ...], Replied | Failed] | None] = []
        self._used: list[bool] = []
        self._changed: ChangedRequestError | None = None
        self._own: Model | None = None
        self._open = False
        if not self.recording:
            facts = self._read()
        elif model is None:
            why = f"{self.path} is to be recorded again" if self.path.exists() else f"there is no recording {self.path}"
            raise ConfigurationError(f"{why}; give the model to record: recorded(..., model=)")
        else:
            facts = self._prepare(model)
        self.name, self.provider, self.native_output = facts.name, facts.provider, facts.native_output
        self.context_window, self.max_output_tokens, self.free = (
            facts.context_window,
            facts.max_output_tokens,
            facts.free,
        )
        self._facts = facts

    def _prepare(self, model: Model | str) -> Facts:
        """Take the real model."""
        self._model = model_from(model) if isinstance(model, str) else model
        if isinstance(model, str):
            self._own = self._model
        asked = self._model
        return Facts(
            recording=VERSION,
            name=asked.name,
            provider=asked.provider,
            native_output=asked.native_output,
            context_window=asked.context_window,
            max_output_tokens=asked.max_output_tokens,
            free=asked.free,
        )

    def _read(self) -> Facts:
        try:
            first, *rest = self.path.read_bytes().splitlines()
            facts = msgspec.json.decode(first, type=Facts)
            if facts.recording != VERSION:
                raise ValueError(f"it has the version {facts.recording}, not {VERSION}")
            lines = [msgspec.json.decode(line, type=Line) for line in rest]
            forms = [text_of(line.form) for line in lines if line.form is not None]
            messages = [text_of(line.message) for line in lines if line.message is not None]
            for each in (line.exchange for line in lines if line.exchange is not None):
                sent = tuple(messages[number] for number in each.messages)
                outcome = each.reply or each.error
                if outcome is None:
                    raise ValueError("an exchange has neither a reply nor an error")
                if isinstance(outcome, Replied):
                    read_value(AssistantMessage, outcome.message)
                self._asked.append(Asked(forms[each.form], sent, each.tool_choice))
                self._outcomes.append((each.pieces, outcome))
                self._used.append(False)
        except (OSError, ValueError, LookupError, CodecError) as error:
            raise ConfigurationError(
                f"the recording {self.path} cannot be read: {error}; record it again with {VARIABLE}=1"
            ) from error
        return facts

    # --- the model ----------------------------------------------------------------------------------------------------

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Answer from the file, or ask the real model and keep what it answers.

        Raises:
            ProviderError: If the real model did.
            ChangedRequestError: If the file has no such request.
            ConfigurationError: Outside of a ``with`` block.
        """
        if not self._open:
            raise ConfigurationError("use it in a block: with recorded(...) as model: ...")
        hold_extra(credentials_in(request.settings.extra))
        asked = Asked.of(request)
        return await self._record(request, asked) if self.recording else self._replay(request, asked)

    async def _record(self, request: ModelRequest, asked: Asked) -> ModelReply:
        with self._lock:
            place = len(self._asked)
            self._asked.append(asked)
            self._outcomes.append(None)
        pieces: list[str] = []
        heard: dict[str, Any] = {
            name: keeping(pieces, listener)
            for name in ("on_delta", "on_text")
            if (listener := getattr(request, name)) is not None
        }
        try:
            reply = await self._model.turn(msgspec.structs.replace(request, **heard))
        except ProviderError as error:
            failed = Failed(
                message=error.message,
                fault=error.fault,
                provider=error.provider,
                status=error.status,
                retry_after=error.retry_after,
                billed=error.billed,
                throttled=isinstance(error, ThrottleError),
            )
            self._outcomes[place] = (tuple(pieces), failed)
            raise
        fields = {name: getattr(reply, name) for name in Replied.__struct_fields__ if name != "message"}
        self._outcomes[place] = (tuple(pieces), Replied(dump(reply.message), **fields))
        return reply

    def _replay(self, request: ModelRequest, asked: Asked) -> ModelReply:
        with self._lock:
            left = [place for place, used in enumerate(self._used) if not used]
            place = next((place for place in left if asked.fits(self._asked[place])), None)
            if place is None:
                self._changed = self._changed or self._difference(asked, left)
                raise self._changed
            self._used[place] = True
            kept = self._outcomes[place]
        assert kept is not None, "a file has no exchange without an outcome"
        pieces, outcome = kept
        text = outcome.message if isinstance(outcome, Failed) else load(outcome.message).text
        for piece in pieces or ((text,) if text and isinstance(outcome, Replied) and request.on_delta else ()):
            hear = request.on_delta or request.on_text
            if hear is not None:
                hear(piece)
        if isinstance(outcome, Failed):
            raise error_of(outcome)
        message: AssistantMessage = load(outcome.message)
        fields = {name: getattr(outcome, name) for name in Replied.__struct_fields__ if name != "message"}
        return ModelReply(message, **fields)

    def _difference(self, asked: Asked, left: list[int]) -> ChangedRequestError:
        again = f"Record it again with {VARIABLE}=1."
        if not left:
            said = f"all {counted(len(self._asked), 'recorded request')} were made, and another one came"
            return ChangedRequestError(f"{self.path}: {said}. {again}")
        place = max(left, key=lambda each: (alike(asked, self._asked[each]), -each))
        diff = difflib.unified_diff(
            list(self._asked[place].lines()), list(asked.lines()), "recorded", "today", n=2, lineterm=""
        )
        shown = "\n".join(diff)
        return ChangedRequestError(f"{self.path}: request {place + 1} has changed. {again}\n{shown}")

    async def close(self) -> None:
        """Do nothing: the end of the block closes the real model."""

    # --- the block ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end(error)
        finally:
            if self._own is not None:
                PORTAL.call(self._own.close(), "async with")

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end(error)
        finally:
            if self._own is not None:
                await self._own.close()

    def _begin(self) -> None:
        self._open = True
        self._allowed = allow_remote(True) if self.recording else None

    def _end(self, error: BaseException | None) -> None:
        """Write what was recorded; or check that the whole record was used."""
        self._open = False
        if self._allowed is not None:
            allow_remote(self._allowed)
        if self._changed is not None and error is not self._changed:
            raise self._changed from error
        if error is not None:
            return
        if self.recording:
            self._write()
        elif not all(self._used):
            left = self._used.count(False)
            raise ChangedRequestError(
                f"{self.path}: {left} of {counted(len(self._used), 'recorded request')} did not come."
                f" Record it again with {VARIABLE}=1."
            )

    def _write(self) -> None:
        forms: dict[str, int] = {}
        messages: dict[str, int] = {}
        lines: list[str] = [text_of(self._facts)]
        for asked, outcome in zip(self._asked, self._outcomes, strict=True):
            if outcome is None:
                continue  # it was broken off, and would be again
            form, *sent = map(HELD.redacted_json, (asked.form, *asked.messages))  # some credentials came later
            for kind, known, texts in (("form", forms, (form,)), ("message", messages, sent)):
                for text in texts:
                    if text not in known:
                        known[text] = len(known)
                        lines.append(f'{{"{kind}":{text}}}')
            pieces, came = outcome
            said = HELD.redacted("".join(pieces))  # a credential may have come in several pieces
            exchange = Exchange(
                forms[form],
                tuple(messages[text] for text in sent),
                asked.tool_choice,
                pieces if said == "".join(pieces) else (said,),
                came if isinstance(came, Replied) else None,
                came if isinstance(came, Failed) else None,
            )
            lines.append(text_of(Line(exchange=exchange)))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = self.path.with_name(f"{self.path.name}.new")
        made.write_text("\n".join(lines) + "\n", "utf-8")
        made.replace(self.path)


def recorded(path: Path | str, *, model: Model | str | None = None, record: bool | None = None) -> RecordedModel:
    """Return a model that answers from a file; if it is missing, a real model is asked and the file made.

    Use it in a block, ``with`` or ``async with``. Its end writes what was recorded, if the block did not raise; or it
    fails if a request differed from the recorded one, or did not come. What is compared is the messages, the tools, the
    schema of the answer and the settings, not the time and the output tokens that limits leave. Requests that run
    side by side may come in any order.

    Args:
        path: The file, for example ``tests/traffic/triage.jsonl``.
        model: The real model: a `Model`, or a string such as ``openai:gpt-5-mini``; needed only while recording.
        record: True records again, False never does; by default if ``WATCHKEEPER_RECORD=1`` is set.

    Raises:
        ConfigurationError: If the file cannot be read, or is missing and there is no model to ask.
    """
    return RecordedModel(path, model, record=record)


def text_of(value: object) -> str:
    """Return a value as JSON in a fixed order, without credentials."""
    return HELD.redacted_json(msgspec.json.encode(value, order="deterministic").decode())


def same_text(today: str, record: str) -> bool:
    """Whether a JSON text is the one on record; where a credential was left out, the text may have any text."""
    if REDACTED not in record:
        return today == record
    first, *middle, last = map(re.escape, record.split(REDACTED))
    # Each part is taken where it comes first and nowhere else, so that many of them need no longer than one. What
    # stands between them ends with its text: another field, or a further part of a message, is a change.
    pattern = first + "".join(f"(?>{INSIDE_TEXT}*?{part})" for part in middle) + f"{INSIDE_TEXT}*{last}"
    return re.fullmatch(pattern, today, re.DOTALL) is not None


def keeping(pieces: list[str], listener: Callable[[str], None]) -> Callable[[str], None]:
    """Return a listener that keeps what it hears."""

    def hear(text: str) -> None:
        pieces.append(text)
        listener(text)

    return hear


def alike(one: Asked, other: Asked) -> int:
    """Return how many messages two requests have in common at their beginnings, and whether their forms agree."""
    count = 0
    for ours, theirs in zip(one.messages, other.messages, strict=False):
        if not same_text(ours, theirs):
            break
        count += 2
    return count + same_text(one.form, other.form)


def error_of(failed: Failed) -> ProviderError:
    """Return the error of the provider."""
    if failed.throttled:
        return ThrottleError(
            failed.message, provider=failed.provider, status=failed.status, retry_after=failed.retry_after
        )
    return ProviderError(
        failed.message,
        fault=failed.fault,
        provider=failed.provider,
        status=failed.status,
        retry_after=failed.retry_after,
        billed=failed.billed,
    )


def pretty(head: str, value: Any) -> Iterator[str]:
    """Yield JSON in lines, texts of several lines split at their ends."""
    yield f"{head}:"
    if isinstance(value, Mapping):
        for name, each in cast("Mapping[str, Any]", value).items():
            if isinstance(each, str) and "\n" in each:
                yield f"  {name}:"
                yield from (f"    {line}" for line in each.split("\n"))
            else:
                text = msgspec.json.format(msgspec.json.encode(each), indent=2).decode()
                first, *rest = text.split("\n")
                yield f"  {name}: {first}"
                yield from (f"  {line}" for line in rest)
    elif value is not None:
        yield f"  {value}"
