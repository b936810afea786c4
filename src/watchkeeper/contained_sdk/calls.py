"""The model calls of a contained block: what is known of each, and what it asks of the gate.

The block that is in force is found by a context variable. A model call reserves its worst case, is sent with the output
cap that was granted, and is charged what the provider counted; if that count is unknown, the full reservation is
charged. A refusal is a `CallStopped`: no SDK wraps it, and no layer of retries catches it. Nothing here sends or waits.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from watchkeeper.accounting.account import COST
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate, presumed_charge
from watchkeeper.adapters.endpoint import check_remote
from watchkeeper.adapters.reply_bounds import RefusedBodyError, encoding_of
from watchkeeper.adapters.scrubbing import scrub
from watchkeeper.children.innermost import innermost_run, is_inside_run, run_below, run_of
from watchkeeper.contained_sdk.addresses import Address
from watchkeeper.contained_sdk.jobs import Job, Jobs, server_of
from watchkeeper.contained_sdk.reading import FIXED_TIERS, Seen, SentRequest, larger, read_call, read_whole
from watchkeeper.contained_sdk.traffic import Traffic
from watchkeeper.containment import enclosing
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import CURRENT_CALL, InFlightCall, Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.containment.settlement import LateResult
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError, ProviderError, Stop, UnpricedModelError
from watchkeeper.core.meters import SHARED
from watchkeeper.core.trace.place import passed_on
from watchkeeper.core.usage import ModelPrice, TokenUsage, dearer
from watchkeeper.core.workers import BreakOut, running_task
from watchkeeper.asking.models import UNBOUNDED_IMAGE_TOKENS, charge_failure, charge_reply, estimate_call
from watchkeeper.asking.provider_work import is_spending_named
from watchkeeper.runtime.plan import RunScope
from watchkeeper.shield.decision import Decision

FINE_TUNED: Final = "ft"
"""What the names of fine-tuned models begin with, before a colon; no provider's name."""

KEPT_ANSWERS: Final = 1024
KEPT_CONVERSATIONS: Final = 8


Uncounted = Literal["refuse", "count", "allow"]

PriceOf = Callable[[str, str, SentRequest], ModelPrice | None]
"""Looks up what a provider's model charges for a call; None if it is unknown."""


BLOCKS: Final[dict[int, Containment]] = {}
"""The blocks that are open in this process, by the `id` of their contexts."""


class CallStopped(BreakOut):
    """A call was not let through, and nothing was sent; ends the contained block that it was made in.

    It is a BaseException like CancelledError: a stop has to get past every layer that retries what failed. The
    block turns it into an error where it ends; in the code of a run it is a failure of that code, as a tool's is.

    Attributes:
        stop: Why, if the gate or a hook refused.
        error: Why, if the call could not be contained.
    """

    def __init__(self, stop: Stop | None, error: Exception | None = None) -> None:
        """Keep the reason."""
        scrub(error)  # some of these name the address of the request
        super().__init__(str(stop.message if stop is not None else error))
        self.stop = stop
        self.error = error
        place = enclosing.innermost()
        self.is_local = place is not None and is_inside_run() and id(place.context) not in BLOCKS

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by what it was made of: a pool of processes breaks at an exception that it cannot unpickle."""
        return CallStopped, (self.stop, self.error), {"is_local": self.is_local}


class Counted:
    """What providers have counted, so that a conversation is bounded by its last count and the bytes of what is new."""

    def __init__(self) -> None:
        """Start without counts."""
        self._stored: dict[str, int] = {}
        self._conversations: tuple[tuple[SentRequest, int, int], ...] = ()
        self._learning = threading.RLock()  # a finaliser may come in here in the middle

    def learn(self, sent: SentRequest, seen: Seen) -> None:
        """Take in the count of an answer; one below an earlier count of the same conversation tells of a part of it."""
        usage = seen.usage
        if usage is None:
            return
        with self._learning:
            if seen.response_id:
                part = usage.input_tokens < self._stored.get(sent.previous or "", 0)
                total = self.bound(sent)[0] + usage.output_tokens if part else usage.total
                while len(self._stored) >= KEPT_ANSWERS:
                    self._stored.pop(next(iter(self._stored)))
                self._stored[seen.response_id] = total
            most = max((count for known, count, _ in self._conversations if continues(sent, known)), default=0)
            if sent.pieces and usage.input_tokens >= most:
                older = [known for known in self._conversations if not continues(sent, known[0])]
                # Where the provider keeps answers, the next request may only name the reasoning of this one.
                hidden = usage.reasoning_tokens if sent.wire.stored else 0
                self._conversations = ((sent, usage.input_tokens, hidden), *older[: KEPT_CONVERSATIONS - 1])

    def bound(self, sent: SentRequest) -> tuple[int, int]:
        """Return an upper bound of a call's input tokens but for its unsized parts, and how many of those it has."""
        known = [each for each in self._conversations if continues(sent, each[0])]
        if known:
            longest, counted, hidden = max(known, key=lambda each: len(each[0].pieces))
            tokens = counted + hidden
            text, unsized = sent.input_bound(len(longest.pieces))
        else:
            (text, unsized), tokens = sent.input_bound(), 0
        stored = self._stored.get(sent.previous) if sent.previous else None
        return (tokens + text, unsized) if stored is None else (tokens + text + stored, unsized - 1)


def continues(sent: SentRequest, earlier: SentRequest) -> bool:
    """Return whether a call sends all that an earlier one sent, and perhaps more."""
    return sent.fixed == earlier.fixed and sent.pieces[: len(earlier.pieces)] == earlier.pieces


@dataclass(frozen=True, slots=True)
class Containment:
    """A block in force.

    Attributes:
        context: The gate that its calls pass.
        price_of: Returns the price of a model.
        bounded: Whether a ceiling on money or tokens holds, here or above.
        uncounted: What happens to a model call that cannot be counted: refused, because the block names a ceiling;
            counted as a step, if what is around names none; or let through, because the caller says so.
        max_part_tokens: The most tokens of one part whose size in bytes gives no bound; None if not given.
        fallback_model: The cheaper model that a hook's DEGRADE switches to, or None.
        counted: What providers have counted so far.
        jobs: Answers that are not final yet; those of the block around it, if there is one.
        traffic: What is under way; also shared with the block around it.
        clock: The source of time.
    """

    context: ExecutionContext
    price_of: PriceOf
    bounded: bool
    max_part_tokens: int | None = None
    uncounted: Uncounted = "count"
    fallback_model: str | None = None
    counted: Counted = field(default_factory=Counted)
    jobs: Jobs = field(default_factory=Jobs)
    traffic: Traffic = field(default_factory=Traffic)
    clock: Clock = SYSTEM_CLOCK

    def check(self, url: str, method: str) -> None:
        """Refuse a request that may not be sent, of any kind.

        Raises:
            CallStopped: If the block is over, or the address is not allowed.
        """
        try:
            check_remote(url)
            stop = self.context.egress_stop(url, method)
        except ConfigurationError as error:
            raise CallStopped(None, error) from None
        if stop is not None:
            raise CallStopped(stop)


def in_force() -> Containment | None:
    """Return the block of the innermost context that this code runs in; None outside of all.

    For a run, or an `ExecutionContext`, it is made here: its gate, and the run's prices.

    Raises:
        ConfigurationError: If that context is over.
    """
    context: ExecutionContext | None = enclosing.current()
    if context is None:
        return None
    blocks = (BLOCKS.get(id(around)) for around in enclosing.entered_here())
    block = next((block for block in blocks if block is not None), None)
    run = innermost_run()
    if run is None or not context.stands_below(run.gate):  # a listener, or code that outlives a run or block
        run = run_of(context)
    return _block_of(context, block, run)


def for_request() -> Containment | None:
    """Return the block that a request belongs to; None if it is outside of all blocks.

    A thread without context variables belongs to the context that is open in the process, if there is exactly one.

    Raises:
        CallStopped: If its block cannot be determined.
    """
    try:
        return in_force() or _around_bare_thread()
    except ConfigurationError as error:
        raise CallStopped(None, error) from None


def is_part_of_model_call(block: Containment) -> bool:
    """Return whether a request is made within a model call of a run or context: then it is that call's own.

    A task or thread that was started within the call may outlive it; what it sends afterwards is nobody's yet.
    """
    call = CURRENT_CALL.get()
    if call is None or call.is_settled or call.request.kind != "llm":
        return False
    return call.home() is block.context and id(block.context) not in BLOCKS


def _block_of(context: ExecutionContext, block: Containment | None, run: RunScope | None) -> Containment:
    """Return the block of a context.

    Args:
        context: The innermost one.
        block: The innermost block around.
        run: The innermost run around.
    """
    if block is not None and block.context is context:
        return block
    prices = run.price_of if run is not None and context.stands_below(run.gate) else None
    account = context.account
    bounded = any(account.has_ceiling(place) for place, meter in enumerate(SHARED) if not meter.is_counted)
    if block is not None and context.stands_below(block.context):
        return replace(block, context=context, price_of=prices or block.price_of, bounded=bounded)
    return Containment(context, prices or _unknown, bounded, clock=context.clock)


def _unknown(provider: str, model: str, sent: SentRequest) -> ModelPrice | None:
    """Return no price, because only runs and blocks have a price list."""
    return None


def _around_bare_thread() -> Containment | None:
    """Return the block of a thread that carries no context variables: that of the only context that is open.

    The main thread and the tasks of a loop always carry theirs; there, none means that there is none.

    Raises:
        ConfigurationError: If several are open.
    """
    if threading.current_thread() is threading.main_thread() or running_task() is not None:
        return None
    found: tuple[ExecutionContext, ...] = enclosing.outermost()
    if len(found) > 1:
        raise ConfigurationError(
            f"a request of a contained client was made in a thread without context variables while {len(found)} blocks"
            " or runs are open, so nobody can say which of them it belongs to; start the thread by"
            " threading.Thread(target=contextvars.copy_context().run, args=(function,))"
        )
    if not found:
        return None
    return BLOCKS.get(id(found[0])) or _block_of(found[0], None, run_below(found[0]))


class ContainedCall:
    """One request that the gate decides about.

    Attributes:
        block: The block that it is made in.
        sent: The model call; None for a request whose cost has no known bound.
        request: The request to the gate.
        seen: The facts that were read from the answer so far.
        provider: The provider whose prices apply.
        failure: The provider's refusal, if that is what came; the caller gets it as it is.
        origin: The server that it goes to.
    """

    def __init__(
        self, block: Containment, request: Any, body: bytes, address: Address, provider: str, output_cap: int
    ) -> None:
        """Find the worst case of an httpx request whose body has been read.

        Raises:
            CallStopped: If its cost cannot be bounded, and a bound is required.
        """
        self.block = block
        self._path: str = request.url.path
        self._purpose = address.purpose
        self.origin = server_of(request.url)
        self._body = body
        retries = request.headers.get(RETRY_HEADER, "0")
        self._retry = retries.isdecimal() and retries.strip("0") != ""
        self.sent = read_call(address.path, body, str(request.url))
        self.seen = Seen()
        self.failure: Any = None
        self._moved = False
        self.provider = provider or (self.sent.wire.provider if self.sent else "openai")
        self._output_cap = output_cap
        self._model: str | None = None
        self._ask()

    @property
    def streaming(self) -> bool:
        """Whether the answer is to come as a stream."""
        return self.sent is not None and self.sent.streaming

    def _ask(self) -> None:
        sent, block, retry = self.sent, self.block, self._retry
        self.price = worst = None
        if sent is None:
            self._check_uncounted()
            self._estimate = Estimate(known_cost=block.uncounted == "allow")
            self.request = CallRequest("tool", self._path, self._estimate, retry=retry)
            return
        name = self._model or sent.model
        replies = sent.wire.replies
        if not sent.audible:
            self.price = self._price(sent)
            worst = self._dearest(sent)
        cap = sent.cap if sent.cap is not None else self._output_cap * sent.copies
        least = max(block.context.limits.min_output_tokens, sent.least) * sent.copies
        self._estimate = estimate_call(self._input_tokens(sent), cap if replies else 0, least, worst)
        self._worst_price = worst
        self.request = CallRequest(
            "llm",
            name,
            self._estimate,
            retry=retry,
            model=name,
            provider=self.provider,
            degraded=self._model is not None,
        )

    def _price(self, sent: SentRequest) -> ModelPrice | None:
        """Return what a call costs, at the dearest of the models that may answer it; None if one of them is unknown.

        Raises:
            CallStopped: If the price of another model than the one asked is unknown, and a cost ceiling holds.
        """
        price = self.block.price_of(self.provider, self._model or sent.model, sent)
        above = self.block.price_of(self.provider, sent.deployment, sent) if sent.deployment else None
        price = price if price is None or above is None else dearer(price, above)
        for name in sent.others:
            other = self.block.price_of(self.provider, name, sent)
            if other is None and self.block.context.account.has_ceiling(COST):
                raise unpriced(UnpricedModelError(f"{name} has no known price, and the request lets it answer"))
            price = None if price is None or other is None else dearer(price, other)
        return price

    def _dearest(self, sent: SentRequest) -> ModelPrice | None:
        """Return what a model may charge at most, where the provider chooses the service tier."""
        asked, tier = self.price, sent.wishes.get("service_tier")
        if asked is None or tier in FIXED_TIERS:
            return asked
        above = self._price(sent.at(service_tier="default" if tier == "flex" else "priority"))
        return asked if above is None else dearer(asked, above)

    def _charge_answer(self, usage: TokenUsage) -> Charge:
        """Return what an answer cost at the tier that it was given at; the higher price, if that tier is unknown."""
        sent, asked, granted = self.sent, self.price, self.seen.granted
        if sent is None or asked is None or all(sent.wishes.get(name) == wish for name, wish in granted.items()):
            return charge_reply(usage, asked)
        price = self._price(sent.at(**granted)) or asked
        if granted.get("service_tier", "default") not in FIXED_TIERS | {"flex"}:
            price = dearer(price, asked)
        return charge_reply(usage, price)

    def _check_uncounted(self) -> None:
        """Refuse a request that cannot be counted, and so could spend any amount, if a ceiling was named."""
        priced = self.block.context.account.has_ceiling(COST)
        if not self._refuses_uncounted() or not (priced or self._purpose == "generating"):
            return
        said = (
            f"{self._path} bills in a way that nobody can count from here, so the named ceiling on cost or tokens could"
            ' not be kept; contained(uncounted="allow") lets such requests pass, each counted as one'
            " step and one tool call of unknown cost, or lift the ceiling"
        )
        raise CallStopped(None, UnpricedModelError(said) if priced else ConfigurationError(said))

    def _refuses_uncounted(self) -> bool:
        """Return whether nothing may be sent that cannot be counted, because a ceiling on money or tokens is named."""
        uncounted = self.block.uncounted
        return uncounted == "refuse" or (uncounted == "count" and is_spending_named(self.block.context.account))

    def _input_tokens(self, sent: SentRequest) -> int:
        block = self.block
        try:
            text, unsized = block.counted.bound(sent)
        except RecursionError:
            said = f"the request to {sent.model} is nested too deeply to be read; nothing was sent"
            raise CallStopped(None, ConfigurationError(said)) from None
        unknown = sent.unknown if sent.unknown and self._refuses_uncounted() else ()
        unsized += len(unknown)
        if unsized and block.bounded and block.max_part_tokens is None:
            said = "an image, a file, a stored conversation, a tool that the provider runs"
            if unknown:
                said = f"nobody knows here how much {', '.join(unknown)} may add"
            raise CallStopped(
                None,
                ConfigurationError(
                    f"the request to {sent.model} has {unsized} part(s) whose tokens are not bounded by their bytes"
                    f" ({said}), but a ceiling on cost or tokens is in force; set contained(max_part_tokens=...), the"
                    " most tokens of one part, or remove the ceiling"
                ),
            )
        part = UNBOUNDED_IMAGE_TOKENS if block.max_part_tokens is None else block.max_part_tokens
        return (text + unsized * part) * sent.attempts

    def body(self, ticket: Ticket) -> bytes:
        """Return what to send, given what was granted."""
        if self.sent is None:
            return self._body
        return self.sent.capped(ticket.max_output_tokens if self.block.bounded else None, self._model)

    def answered(self, content: bytes, status: int) -> None:
        """Read the usage from a whole response; after a redirect or 202 the real one is still to come."""
        self._moved = status in MOVED
        if self.sent is not None:
            self.seen = read_whole(self.sent.wire, content)
            self.seen.pending |= self.seen.usage is None and (status == ACCEPTED or status >= REDIRECTIONS)

    def meter(self, value: object, error: BaseException | None, ticket: Ticket) -> Charge:
        """Record the call's cost. A call without a complete answer is charged its reservation, or the counts
        so far if they are more.

        If the provider stores the answer, the charge is corrected when the answer is retrieved.
        """
        seen, worst, granted = self.seen, self._estimate, ticket.max_output_tokens
        if self._moved:
            return Charge()
        if self.sent is None:
            return Charge(cost_nanos=None)
        if seen.usage is not None:
            if self._model is None:
                self.block.counted.learn(self.sent, seen)
            return self._charge_answer(seen.usage)
        if error is None and seen.ended and not (seen.pending or seen.damaged):
            return charge_reply(TokenUsage(worst.input_tokens, min(seen.size, granted)), self._worst_price)
        charge = at_least(charge_failure(error, worst, granted, self._worst_price), seen.told, self._worst_price)
        if seen.response_id and isinstance(ticket, InFlightCall):
            job = Job(self.sent.wire, partial(self._correct, ticket, charge), self.origin)
            self.block.jobs.add(seen.response_id, job)
        return charge

    def _correct(self, ticket: InFlightCall, booked: Charge, seen: Seen) -> None:
        """Replace the charge of an answer that was not final by its final counts."""
        self.seen = seen
        block = self.block
        LateResult(ticket, booked, self.meter, block.context.ledger, block.clock, lambda: None).arrive(None, None)

    def outlasts(self, seconds: float | None) -> bool:
        """Return whether a wait of this length would end after the block's deadline."""
        deadline, clock = self.block.context.deadline, self.block.clock
        return seconds is not None and deadline is not None and seconds >= deadline.remaining(clock).total_seconds()

    def degrades(self, outcome: Outcome[Any]) -> bool:
        """Return whether to ask again, with the cheaper model that a hook wants."""
        if outcome.admitted or outcome.decision is not Decision.DEGRADE or self.sent is None or self._model:
            return False
        self._model = self._cheaper()
        if self._model is not None:
            self._ask()
        return self._model is not None

    def _cheaper(self) -> str | None:
        """Return the cheaper model as this provider knows it; None if there is none, or if it is another provider's."""
        named = self.block.fallback_model or ""
        provider, colon, model = named.partition(":")
        if not colon or provider == FINE_TUNED:
            return named or None
        return model if provider == self.provider else None

    def settle(self, outcome: Outcome[Any]) -> None:
        """Raise the call's error, unless the call brought an answer or a refusal of the provider.

        Raises:
            CallStopped: If the gate or a hook stopped it.
            Exception: The error of the transport.
        """
        if outcome.stop is not None:
            raise CallStopped(outcome.stop) from outcome.error
        if not outcome.admitted:
            said = f"{self.request.operation_name} was not let through: a hook decided {outcome.decision.value}"
            cheaper = self.block.fallback_model
            if outcome.decision is Decision.DEGRADE and cheaper and self.sent is not None:
                said += f", but {cheaper} cannot take the place of a model of {self.provider}"
            raise CallStopped(Stop("policy_halt", "hook", said))
        if outcome.error is not None and self.failure is None:
            error = outcome.error
            raise error.__cause__ if isinstance(error, ProviderError) and error.__cause__ is not None else error


def at_least(charge: Charge, told: TokenUsage | None, price: ModelPrice | None) -> Charge:
    """Return a charge that is not below what the provider has told of a call so far."""
    if told is None:
        return charge
    costs = None if price is None or charge.cost_nanos is None else max(charge.cost_nanos, price.cost(told))
    tokens = larger(charge.tokens, told)
    return presumed_charge(tokens, costs) if charge.presumed.calls else Charge(tokens, costs)


def unpriced(error: UnpricedModelError) -> CallStopped:
    """Return the refusal of a call without a price, with the ways out."""
    ways = UnpricedModelError(
        f"{error} (contained(prices={{'provider:model': ModelPrice.per_million(input_usd, output_usd)}}), or "
        "pip install 'watchkeeper[prices]' for the list)"
    )
    return CallStopped(None, ways)


# --- requests and responses of httpx --------------------------------------------------------------------------------

RETRY_HEADER: Final = "x-stainless-retry-count"
"""In which the SDKs count the attempts that they have repeated."""

ACCEPTED: Final = 202
REDIRECTIONS: Final = 300
MOVED: Final = (307, 308)
"""Statuses that repeat the whole request elsewhere: nothing was done about it here."""

TIMEOUTS: Final = ("connect", "read", "write", "pool")
UNPACKED: Final = "gzip, deflate"
"""The content encodings that are unpacked here."""

NEVER_SENT: Final = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol")
"""Errors after which nothing can have been billed."""


def module_of(value: Any) -> Any:
    """Return the module, httpx or httpx2, that a request or a transport comes from."""
    for base in type(value).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return importlib.import_module(name)
    return importlib.import_module("httpx")


def outgoing(request: Any, call: ContainedCall, ticket: Ticket) -> Any:
    """Return the request to send for one admitted attempt, with the granted output cap and shortened timeouts."""
    httpx = module_of(request)
    headers = httpx.Headers(request.headers)
    for name in ("content-length", "transfer-encoding"):  # of the body that the caller gave
        headers.pop(name, None)
    # The token counts of a stream are read while it passes; a whole answer is unpacked here, where its size is bounded.
    headers["accept-encoding"] = "identity" if call.streaming else UNPACKED
    headers.update(passed_on(headers))
    extensions = dict(request.extensions)
    if ticket.timeout is not None:
        extensions["timeout"] = bounded(extensions.get("timeout") or {}, ticket.timeout)
    return httpx.Request(request.method, request.url, headers=headers, content=call.body(ticket), extensions=extensions)


def bounded(timeouts: Mapping[str, float | None], most: float) -> dict[str, float]:
    """Return an SDK's timeouts, none of them longer than the call may take."""
    return {name: min(most, seconds) if (seconds := timeouts.get(name)) is not None else most for name in TIMEOUTS}


def unencoded(request: Any) -> Any:
    """Return a request that asks for an answer that can be read while it passes."""
    httpx = module_of(request)
    headers = httpx.Headers(request.headers)
    headers["accept-encoding"] = "identity"
    parts = {"headers": headers, "extensions": request.extensions}
    return httpx.Request(request.method, request.url, stream=request.stream, **parts)


def as_whole(request: Any, response: Any, content: bytes) -> Any:
    """Return a response whose whole body has been read, unpacked."""
    httpx = module_of(request)
    headers = httpx.Headers(response.headers)
    if encoding_of(response):
        del headers["content-encoding"]
        headers.pop("content-length", None)
    return httpx.Response(response.status_code, headers=headers, content=content, extensions=response.extensions)


def as_answer(call: ContainedCall, response: Any) -> Any:
    """Return a whole response that is an answer, once its call knows what it cost.

    Raises:
        ProviderError: If it is a refusal; the call keeps the response for its caller.
    """
    if response.status_code < 400:
        call.answered(response.content, response.status_code)
        return response
    from watchkeeper.adapters import provider_errors

    if call.outlasts(provider_errors.retry_after(response.headers, SYSTEM_CLOCK)):
        response.headers["x-should-retry"] = "false"  # the SDKs look at it before they wait
    call.failure = response
    try:
        said = response.json()
    except (ValueError, RecursionError):
        said = None
    status, (code, text) = response.status_code, provider_errors.describe(said)
    fault = provider_errors.classify(code, text, status)
    words = provider_errors.say(call.provider, status, text or code or response.reason_phrase)
    billed = provider_errors.is_billed(fault, status, f"{call.provider} {call.origin}")
    raise provider_errors.fault_error(fault, words, provider=call.provider, status=status, billed=billed)


@contextmanager
def translated(request: Any, provider: str) -> Generator[None]:
    """Turn the transport's errors into `ProviderError`; the original is the cause, and ``billed`` is set."""
    httpx = module_of(request)
    try:
        yield
    except httpx.TransportError as error:
        kind = type(error).__name__
        raise ProviderError(
            f"{provider} at {request.url.host}: {kind}: {error}",
            fault="timeout" if isinstance(error, httpx.TimeoutException) else "connection",
            provider=provider,
            billed=kind not in NEVER_SENT,
        ) from error
    except RefusedBodyError as error:
        said = f"{provider} at {request.url.host}: {error}"
        raise ProviderError(said, fault=error.fault, provider=provider, billed=True) from httpx.ReadError(str(error))
