"""Replies of providers that were damaged at random, and what a run makes of them. Run by hand; tests use a few hundred.

A fake provider words a good reply, or it is one of `benchmarks.recorded_replies`. One to three mutations damage it: in
its JSON (values of other types, deep or huge values, missing and repeated fields), in its order of events, in its
bytes, or in its headers. A run must end with an answer or with a stop that names the provider's fault; any other
exception is a defect, and is printed with the seed that brings it back:

    python -m benchmarks.malformed_replies --replies 15000
    python -m benchmarks.malformed_replies --seed 4711 --replies 1
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeGuard

import msgspec

from benchmarks.recorded_replies import FORMS
from watchkeeper import Agent, Limits, ModelPrice, ToolContext, arun, tool
from watchkeeper.clock import TestClock
from watchkeeper.core.messages import ToolCall
from watchkeeper.core.usage import TokenUsage
from watchkeeper.events import ModelFailed
from watchkeeper.models import AnthropicModel, LiteLLMModel, OpenAIChatModel, OpenAIResponsesModel
from watchkeeper.testing import FakeAnthropic, FakeOpenAI, Reply, WireReply, WireRequest, WireServer

DEEP: Final = 3000
ODD: Final[tuple[Callable[[], Any], ...]] = (
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 1.5,
    lambda: 2**63,
    lambda: 10**30,
    lambda: "",
    lambda: "1k",
    lambda: "x" * 10_000,
    lambda: "\x00\x1b[31m\u202e",
    list,
    dict,
    lambda: ["hello"],
    lambda: [None, 1, "two", [3], {"four": 4}],
    lambda: {"type": 7, "text": ["x"], "name": {}, "id": []},
    lambda: {"message": {"message": 1}, "code": [1]},
)
DEEP_JSON: Final = (b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP)
BYTES: Final = (b"", b"\xff\xfe", b"NaN", b"1e999", b'"\\ud800"', b"9" * 5000, *DEEP_JSON)
HEADERS: Final = ("retry-after", "retry-after-ms", "date", "x-request-id", "content-type", "x-should-retry", "location")
HEADER_VALUES: Final = (
    "nan",
    "-1",
    "1e400",
    "9" * 5000,
    "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
    "Mon, 01 Jan 0001 00:00:00 +9999",
    "text/html; charset=utf-7",
    "application/json; charset=no-such",
    "\xe9\xff",
)
PLACEHOLDER: Final = "\u0001raw\u0001"
CALLS: Final = (ToolCall("call_1", "lookup", '{"word":"owl"}'), ToolCall("call_2", "lookup", '{"word":"elk"}'))
ANSWERS: Final = (
    Reply(text="An owl is a bird."),
    Reply(text="Looking.", calls=CALLS, reasoning="Two words to look up."),
    Reply(refusal="I cannot help with that."),
    Reply(text="It was", usage=TokenUsage(120, 30, cached_tokens=100, reasoning_tokens=20), cut=True),
)
PRICE: Final = ModelPrice.per_million(1, 10)


@dataclass(frozen=True)
class Interface:
    """An adapter and the fake it is asked over.

    Attributes:
        name: What to call it.
        fake: Words good replies.
        model: Makes the model, given the server's address.
    """

    name: str
    fake: Callable[[Any], FakeOpenAI | FakeAnthropic]
    model: Callable[[str], Any]


def _of(model: Callable[..., Any], name: str, prefix: str) -> Callable[[str], Any]:
    return lambda url: model(name, api_key="test", base_url=url + prefix)


CHAT: Final = Interface("openai_chat", FakeOpenAI, _of(OpenAIChatModel, "gpt-5-mini", "/v1"))
RESPONSES: Final = Interface("openai_responses", FakeOpenAI, _of(OpenAIResponsesModel, "gpt-5-mini", "/v1"))
MESSAGES: Final = Interface("anthropic", FakeAnthropic, _of(AnthropicModel, "claude-sonnet-5", ""))
LITELLM: Final = Interface("litellm", FakeOpenAI, _of(LiteLLMModel, "openai/gpt-5-mini", "/v1"))
INTERFACES: Final = {each.name: each for each in (CHAT, RESPONSES, MESSAGES, LITELLM)}


@tool
def lookup(word: str, *, context: ToolContext) -> str:
    """Look a word up."""
    return f"{word}: a bird"


# --- damage ---------------------------------------------------------------------------------------------------------


def damaged(reply: WireReply, rng: random.Random) -> WireReply:
    """Return a reply with one to three mutations."""
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.08:
            name, value = rng.choice(HEADERS), rng.choice(HEADER_VALUES)
            if name == "content-type":
                reply = replace(reply, content_type=value)
            else:
                reply = replace(reply, headers={**reply.headers, name: value}, status=rng.choice((200, 429, 500, 302)))
        elif kind < 0.12:
            reply = replace(reply, status=rng.choice((201, 204, 400, 401, 404, 413, 429, 500, 503, 529)))
        elif reply.parts:
            reply = replace(reply, parts=_damaged_events(list(reply.parts), rng) or [b"\n"])
        else:
            reply = replace(reply, body=_damaged_bytes(reply.body, rng))
    return reply


def _damaged_events(parts: list[bytes], rng: random.Random) -> list[bytes]:
    place = rng.randrange(len(parts))
    match rng.randrange(8):
        case 0:
            del parts[place]
        case 1:
            parts.insert(place, parts[rng.randrange(len(parts))])
        case 2:
            rng.shuffle(parts)
        case _:
            head, mark, data = parts[place].partition(b"data: ")
            parts[place] = head + mark + _damaged_bytes(data.strip(), rng) + b"\n\n"
    return parts


def _damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2 and content:
        place = rng.randrange(len(content))
        cut = (content[:place], content[:place] + rng.choice(BYTES) + content[place + 1 :], rng.choice(BYTES))
        return rng.choice(cut)
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return content + rng.choice(BYTES)
    raw = rng.choice(BYTES) if rng.random() < 0.15 else None
    value = _damaged_value(value, (lambda: PLACEHOLDER) if raw is not None else rng.choice(ODD), rng)
    encoded = msgspec.json.encode(value) if not _is_huge(value) else str(value).encode()
    return encoded if raw is None else encoded.replace(msgspec.json.encode(PLACEHOLDER), raw)


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > 64


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_array(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _damaged_value(value: Any, odd: Callable[[], Any], rng: random.Random) -> Any:
    """Return the value with one place in it changed."""
    fields: dict[str, Any] = value if _is_object(value) else {}
    items: list[Any] = value if _is_array(value) else []
    keys: list[Any] = list(fields) or list(range(len(items)))
    if not keys or rng.random() < 0.1:
        made = odd()
        return msgspec.Raw(str(made).encode()) if _is_huge(made) else made
    key = rng.choice(keys)
    drawn = rng.random()
    if fields:
        if drawn < 0.1:
            return {name: each for name, each in fields.items() if name != key}
        return {**fields, key: _damaged_value(fields[key], odd, rng)}
    if drawn < 0.1:
        return [*items, items[key]]
    return [*items[:key], _damaged_value(items[key], odd, rng), *items[key + 1 :]]


# --- runs -----------------------------------------------------------------------------------------------------------


def ignore(event: object) -> None:
    """Listen, so that replies are streamed, and do nothing."""


class Damaging:
    """A server whose replies are damaged.

    Args:
        interface: Whose replies.
        store: Where runs are recorded.
    """

    def __init__(self, interface: Interface, store: Path) -> None:
        self._store = store
        self._rng = random.Random(0)
        self.server = WireServer(self._answer, record=False)
        self._fake = interface.fake(self._reply)
        self._forms = FORMS.get(interface.name)

    def _reply(self, number: int, body: Any) -> Reply:
        return self._rng.choice(ANSWERS)

    def _answer(self, request: WireRequest) -> WireReply:
        worded = self._fake.handle(request)
        if self._forms is not None and self._rng.random() < 0.5:
            worded = self._rng.choice(self._forms[bool(worded.parts)])
        return damaged(worded, self._rng)

    async def ask(self, model: Any, seed: int, *, stream: bool) -> tuple[str, str]:
        """Run an agent over damaged replies.

        Args:
            model: Who asks this server.
            seed: Of the damage.
            stream: Whether replies are streamed.

        Returns:
            How the run ended, and the foreign exception that reached it, if any.
        """
        self._rng = random.Random(seed)
        options: dict[str, Any] = {"on_event": ignore} if stream else {}
        agent: Agent[str] = Agent(model, "Be brief.", str, tools=(lookup,), limits=Limits(max_steps=6, deadline="1h"))
        result = await arun(
            agent.prompt("What is an owl?"),
            model=model,
            limits=agent.limits,
            prices={f"{model.provider}:{model.name}": PRICE},
            clock=TestClock(),
            rng=random.Random(seed),
            store=self._store,
            **options,
        )
        reason = result.stop.reason if result.stop is not None else "ok"
        foreign = [failed.error for failed in result.session[ModelFailed].all() if failed.fault == "error"]
        if reason == "error" or foreign:
            return reason, f"{foreign or result.stop} {result.error!r}"
        if result.usage.cost_nanos is None or result.usage.cost_nanos > 10**9:
            return reason, f"cost {result.usage.cost_nanos} nano-dollars, of {result.usage}"
        return reason, ""


async def replies_of(interface: Interface, seeds: range) -> tuple[Counter[str], list[str]]:
    """Return how runs over damaged replies ended, and the defects that were found."""
    reasons, defects = Counter[str](), list[str]()
    with TemporaryDirectory() as folder:
        damaging = Damaging(interface, Path(folder) / "runs.sqlite3")
        await _count(damaging, interface, seeds, reasons, defects)
    return reasons, defects


async def _count(
    damaging: Damaging, interface: Interface, seeds: range, reasons: Counter[str], defects: list[str]
) -> None:
    async with damaging.server as server:
        model = interface.model(server.url)
        for seed in seeds:
            try:
                reason, foreign = await damaging.ask(model, seed, stream=bool(seed % 2))
            except Exception as error:
                reason, foreign = "raised", repr(error)
            reasons[reason] += 1
            if foreign:
                defects.append(f"{interface.name}, seed {seed}: {foreign[:600]}")
        await model.close()


def main() -> None:
    """Print how runs ended, and every defect."""
    parser = argparse.ArgumentParser(description="Runs over damaged replies.")
    parser.add_argument("--replies", type=int, default=2000, help="runs for each interface")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--interface", choices=sorted(INTERFACES), help="this one only")
    given = parser.parse_args()
    failed = False
    for name, interface in INTERFACES.items():
        if given.interface in (None, name):
            began = time.perf_counter()
            reasons, defects = asyncio.run(replies_of(interface, range(given.seed, given.seed + given.replies)))
            seconds = time.perf_counter() - began
            ended = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
            print(f"{name}: {given.replies} runs in {seconds:.1f} s, {len(defects)} defects; {ended}")
            for defect in defects[:20]:
                print("   ", defect)
            failed |= bool(defects)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
