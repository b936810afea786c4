"""The gate against a model of its rules: for any sequence of operations, both decide and count the same.

The model knows nothing of threads, tasks or timers. It is the rules as one would tell them: `Book` is what a context
may spend and has spent, `Model` what happens to calls. Hypothesis drives both through admissions, successes, failures,
charges, hooks, a breaker, passing time, aborts, children and closings, and compares them after every step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVarTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.containment.gates import dollars, unlimited
from watchkeeper.accounting.account import TOOL_CALLS
from watchkeeper.accounting.call_request import CallRequest, Estimate
from watchkeeper.accounting.ledger import MemoryLedger
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.containment.record import Outcome
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.circuit_breaker import CircuitBreaker
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.pipeline import ShieldPipeline

Args = TypeVarTuple("Args")

CENT: Final = dollars(0.01)
FOREVER: Final = float("inf")
LIMITS: Final = {
    "cents": "budget_exceeded",
    "steps": "step_limit_exceeded",
    "tools": "tool_call_limit_exceeded",
    "retries": "retry_budget_exceeded",
}
"""What can have a ceiling, in the order in which it is looked at, and the stop that it leads to."""

# --- the model --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Book:
    """What a context may spend, has spent, and has set aside for calls under way."""

    ceilings: dict[str, int]
    above: Book | None = None
    deadline: float = FOREVER
    used: Counter[str] = field(default_factory=Counter[str])
    held: Counter[str] = field(default_factory=Counter[str])
    stop: str | None = None
    newest: Call | None = None
    aborted: bool = False
    timed_out: bool = False
    closed: bool = False
    events: list[str] = field(default_factory=list[str])

    def chain(self) -> Iterator[Book]:
        book: Book | None = self
        while book is not None:
            yield book
            book = book.above

    def found_stop(self) -> str | None:
        return next((book.stop for book in self.chain() if book.stop), None)

    def abort_reason(self) -> str | None:
        """What ended it, or else why its newest call was the last of its kind."""
        reason = self.newest.expected[1] if self.newest and self.newest.expected else None
        return self.found_stop() or (reason if reason in CALL_STOPS else None)

    def latch(self, reason: str) -> None:
        if self.stop is None:
            self.stop = reason
            self.say(reason)

    def say(self, reason: str) -> None:
        """What happens here is on record here and above."""
        for book in self.chain():
            book.events.append(reason)


Mode = Literal["plain", "repeat", "wrapped"]


@dataclass(eq=False)
class Call:
    """A call: what it wants, and how far it has come."""

    book: Book
    cents: int
    tool: bool
    mode: Mode
    timeout: float | None
    mood: Decision | None = None
    until: float = FOREVER
    generation: int = 0
    state: Literal["waiting", "told", "running", "over"] = "waiting"
    expected: tuple[Decision, str | None] | None = None

    def wants(self) -> dict[str, int]:
        tools = {"tools": 1} if self.tool else {}
        retries = {} if self.mode == "plain" else {"retries": 1}
        return {"cents": self.cents, "steps": 1, **tools, **retries}

    def sets_aside(self) -> dict[str, int]:
        return {"cents": self.cents, "retries": int(self.mode == "wrapped")}


class Circuit:
    """A breaker: two failures in a row keep calls away for five seconds, then one may try."""

    def __init__(self) -> None:
        self.state: Literal["closed", "open", "trying"] = "closed"
        self.failures = self.generation = 0
        self.open_until = 0.0
        self.probe: Call | None = None

    def move(self, state: Literal["closed", "open", "trying"]) -> None:
        self.state, self.failures, self.probe = state, 0, None
        self.generation += 1

    def lets_pass(self, call: Call, now: float) -> bool:
        if self.state == "open" and now >= self.open_until:
            self.move("trying")
        if self.state == "open" or self.probe is not None:
            return False
        if self.state == "trying":
            self.probe = call
        call.generation = self.generation
        return True

    def hear(self, call: Call, now: float, *, failed: bool | None) -> None:
        if call.generation != self.generation:
            return
        if failed is None:
            self.probe = None
        elif not failed and self.state == "trying":
            self.move("closed")
        else:
            self.failures = self.failures + 1 if failed else 0
            if failed and (self.state == "trying" or self.failures == 2):
                self.move("open")
                self.open_until = now + 5


class Model:
    """The rules."""

    def __init__(self) -> None:
        self.now = 0.0
        self.circuit = Circuit()
        self.books: list[Book] = []
        self.calls: list[Call] = []

    def verdict(self, call: Call) -> str:
        """What the gate has to say: the reason of a stop, "wait" or "admit"."""
        if reason := call.book.found_stop():
            return reason
        if self.now >= call.book.deadline:
            return "timeout"
        verdict = "admit"
        for limit, want in call.wants().items():
            for book in call.book.chain():
                if limit not in book.ceilings:
                    continue
                ceiling = book.ceilings[limit]
                if limit == "retries" and call.mode == "wrapped":
                    ceiling = ceiling or 1  # no retries: the first failure is final, not that nothing may run
                left = ceiling - book.used[limit]
                if left <= 0 or want > left:
                    return LIMITS[limit]
                if want > max(left - book.held[limit], 0):  # what wants nothing waits for nothing
                    verdict = "wait"
        return verdict

    def ask(self, call: Call) -> bool:
        """Ask for admission; return whether a refusal is news for those who wait."""
        verdict = self.verdict(call)
        if verdict == "wait":
            call.state = "waiting"
            return False
        call.book.newest = call
        if verdict == "admit" and (call.mood or not self.circuit.lets_pass(call, self.now)):
            reason = f"policy_{call.mood.lower()}" if call.mood else "circuit_open"
            call.state, call.expected = "over", (call.mood or Decision.HALT, reason)
            call.book.say(reason)
            return True
        elif verdict == "admit":
            call.state = "running"
            call.until = min(call.book.deadline, FOREVER if call.timeout is None else self.now + call.timeout)
            for book in call.book.chain():
                book.held.update(call.sets_aside())
                book.used["steps"] += 1
                book.used["tools"] += call.tool
                book.used["retries"] += call.mode == "repeat"
        else:
            call.state, call.expected = "over", (Decision.HALT, verdict)
            if not call.book.found_stop():
                call.book.latch(verdict)
                return True
        return False

    def start(self, call: Call) -> None:
        self.calls.append(call)
        if self.ask(call):
            self.go_on()

    def go_on(self) -> None:
        """Those who wait ask again once they need not wait any longer, in the order in which they came to know."""
        told: list[Call] = []
        news = True
        while news or told:
            for call in self.calls if news else ():
                if call.state == "waiting" and self.verdict(call) != "wait":
                    call.state = "told"
                    told.append(call)
            if news := bool(told):
                asking = told.pop(0)
                self.ask(asking)
                news = asking.state != "waiting"

    def settle(self, call: Call, cents: int | None, *, failed: bool, heard: bool | None = None) -> None:
        call.state = "over"
        self.circuit.hear(call, self.now, failed=heard)
        for book in call.book.chain():
            book.held.subtract(call.sets_aside())
            book.used["cents"] += call.cents if cents is None else cents
            book.used["retries"] += failed and call.mode == "wrapped"

    def fail(self, call: Call, reason: str | None) -> None:
        """A failure may be repeated as long as a retry is left."""
        spent = any(book.used["retries"] >= book.ceilings.get("retries", FOREVER) for book in call.book.chain())
        if call.mode == "wrapped" and spent:
            call.expected = (Decision.HALT, "provider_error")
            call.book.say("provider_error")
        else:
            call.expected = (Decision.RETRY, reason)
            if reason is not None and call.mode == "wrapped":
                call.book.say(reason)

    def end(self, call: Call, cents: int | None, *, failed: bool) -> None:
        self.settle(call, cents, failed=failed, heard=failed)
        if failed:
            self.fail(call, None)
        else:
            call.expected = (Decision.ALLOW, None)
        self.go_on()

    def tick(self) -> None:
        self.now += 1
        over = [call for call in self.calls if call.state == "running" and call.until <= self.now]
        for top in self.books:  # one in which no call is interrupted now says so first, and with it all below it
            if top.deadline <= self.now and not top.closed and not any(call.book is top for call in over):
                for book in self.books:
                    if top in book.chain():
                        self.look_at_time(book)
        for call in sorted(over, key=lambda call: call.until):
            own = call.until < call.book.deadline
            self.settle(call, None, failed=True, heard=own or None)
            if own:
                self.fail(call, "call_timeout")
            else:
                call.book.latch("timeout")
                call.expected = (Decision.HALT, call.book.found_stop())
        for book in self.books:
            self.look_at_time(book)
        if over or any(call.state == "waiting" and call.book.deadline <= self.now for call in self.calls):
            self.go_on()

    def look_at_time(self, book: Book) -> None:
        """That the time is over is said once, whether somebody asks or not."""
        if book.deadline <= self.now and not book.closed and not book.aborted:
            book.timed_out = True
            book.latch("timeout")

    def abort(self, book: Book) -> None:
        if not book.aborted and not book.closed and not book.timed_out:
            self.cancel(book)
            self.go_on()

    def cancel(self, top: Book) -> None:
        """Everything in and below a book ends, and says that it was aborted, once."""
        for book in self.books:
            if top in book.chain() and not book.aborted and not book.closed and not book.timed_out:
                book.aborted = True
                book.stop = book.stop or "aborted"
                if any(above.aborted or above.closed for above in list(book.chain())[1:]):
                    book.events.append("aborted")  # above it is on record, if it was an abort
                else:
                    book.say("aborted")
        for call in self.calls:
            if call.state == "running" and top in call.book.chain():
                self.settle(call, None, failed=False)
                call.expected = (Decision.HALT, "aborted" if call.book.closed else call.book.found_stop())

    def close(self, book: Book) -> None:
        book.closed = True
        self.cancel(book)
        for call in self.calls:
            if call.state == "waiting" and call.book is book:
                call.state, call.expected, book.newest = "over", (Decision.HALT, "aborted"), call
        self.go_on()


CALL_STOPS: Final = ("provider_error", "circuit_open", "policy_halt", "policy_quarantine")


# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Work:
    """Work that goes on until it is told how to end."""

    end: asyncio.Future[tuple[int | None, bool]]

    async def __call__(self, ticket: Ticket) -> str:
        cents, fails = await self.end
        if cents is not None:
            ticket.charge(f"{cents / 100:.2f}")
        if fails:
            raise ValueError("flaky")
        return "done"


CEILINGS: Final = st.fixed_dictionaries(
    {},
    optional={
        "cents": st.integers(1, 12),
        "steps": st.integers(1, 12),
        "tools": st.integers(1, 6),
        "retries": st.integers(0, 4),
    },
)
MOODS: Final = [None] * 8 + [said for said in Decision if said is not Decision.ALLOW]
TIMES: Final = st.none() | st.integers(1, 12)


def limits_of(ceilings: dict[str, int], seconds: int | None) -> dict[str, Any]:
    fields = {"steps": "max_steps", "tools": "max_tool_calls", "retries": "max_retries"}
    limits: dict[str, Any] = {fields[name]: value for name, value in ceilings.items() if name in fields}
    if "cents" in ceilings:
        limits["max_cost_usd"] = f"{ceilings['cents'] / 100:.2f}"
    if seconds is not None:
        limits["deadline"] = f"{seconds}s"
    return limits


class Moods:
    """A hook that says of each call what the test wants it to say."""

    def __init__(self) -> None:
        self.of: dict[str | None, Decision | None] = {}

    def before_llm_call(self, ctx: ToolCallContext) -> Decision | None:
        return self.of[ctx.tool_name]

    before_tool_call = before_llm_call


class QuietLoop(asyncio.SelectorEventLoop):
    """A loop that can run until nothing is ready any more, instead of a number of rounds that is always enough."""

    scheduled = 0

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon_threadsafe(callback, *args, context=context)

    def run_until_quiet(self) -> None:
        """Run up to the first round in which nobody schedules anything."""
        before = -1
        while self.scheduled > before + 1:
            before = self.scheduled
            self.call_soon(self.stop)
            self.run_forever()


class Gate(RuleBasedStateMachine):
    """The gate and its model, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = QuietLoop()
        self.clock = TestClock()
        self.model = Model()
        self.moods = Moods()
        self.contexts: list[ExecutionContext] = []
        self.works: list[Work] = []
        self.tasks: list[asyncio.Task[Outcome[Any]]] = []

    def let_run(self) -> None:
        self.loop.run_until_quiet()

    def running(self) -> list[int]:
        return [number for number, call in enumerate(self.model.calls) if call.state == "running"]

    @initialize(ceilings=CEILINGS, seconds=TIMES)
    def open(self, ceilings: dict[str, int], seconds: int | None) -> None:
        pipeline = ShieldPipeline(
            pre_dispatch=self.moods, tool_dispatch=self.moods, on_error_policy=Decision.ALLOW, clock=self.clock
        )
        breaker = CircuitBreaker(2, 5.0, clock=self.clock)
        limits = unlimited(**limits_of(ceilings, seconds))
        self.contexts.append(ExecutionContext(limits, pipeline, circuit_breaker=breaker, clock=self.clock))
        self.model.books.append(Book(ceilings, deadline=seconds or FOREVER))

    @precondition(lambda self: len(self.contexts) < 5)
    @rule(data=st.data(), ceilings=CEILINGS, seconds=TIMES)
    def child(self, data: st.DataObject, ceilings: dict[str, int], seconds: int | None) -> None:
        parent = data.draw(st.integers(0, len(self.contexts) - 1))
        context, book = self.contexts[parent], self.model.books[parent]
        limits = unlimited(**limits_of(ceilings, seconds))
        if book.closed:
            with pytest.raises(ConfigurationError, match="closed"):
                context.child(limits, carve=False)
            return
        self.contexts.append(context.child(limits, carve=False))
        own = FOREVER if seconds is None else self.model.now + seconds
        born_aborted = book.aborted
        self.model.books.append(Book(ceilings, book, min(own, book.deadline)))
        if born_aborted:
            self.model.cancel(self.model.books[-1])
        self.model.look_at_time(self.model.books[-1])

    @rule(data=st.data(), cents=st.sampled_from([0, 0, 1, 2, 3, 5]), tool=st.booleans(), timeout=TIMES)
    def call(self, data: st.DataObject, cents: int, tool: bool, timeout: int | None) -> None:
        where = data.draw(st.integers(0, len(self.contexts) - 1))
        mode: Mode = data.draw(st.sampled_from(["plain", "repeat", "wrapped"]))
        request = CallRequest(
            "tool" if tool else "llm",
            f"call {len(self.works)}",
            estimate=Estimate(input_nanos=cents * CENT),
            timeout=timeout,
            retry=mode == "repeat",
            spends_retry_on_error=mode == "wrapped",
        )
        work = Work(self.loop.create_future())
        mood = data.draw(st.sampled_from(MOODS))
        self.moods.of[request.operation_name] = mood
        call = Call(self.model.books[where], cents, tool, mode, timeout, mood)
        task = self.loop.create_task(self.contexts[where].acall(request, work))
        self.let_run()
        if call.book.closed:
            with pytest.raises(ConfigurationError, match="closed"):
                task.result()
            return
        self.works.append(work)
        self.tasks.append(task)
        self.model.start(call)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), cents=st.none() | st.integers(0, 8), fails=st.booleans())
    def end(self, data: st.DataObject, cents: int | None, fails: bool) -> None:
        number = data.draw(st.sampled_from(self.running()))
        self.works[number].end.set_result((cents, fails))
        self.let_run()
        self.model.end(self.model.calls[number], cents, failed=fails)

    @rule(seconds=st.integers(1, 8))
    def tick(self, seconds: int) -> None:
        for _ in range(seconds):  # whatever happens in between happens in its order
            self.clock.advance(1)
            self.let_run()
            self.model.tick()

    @precondition(lambda self: len(self.model.calls) > 5)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        where = data.draw(st.integers(0, len(self.contexts) - 1))
        self.contexts[where].abort("enough")
        self.let_run()
        self.model.abort(self.model.books[where])

    @precondition(lambda self: len(self.model.calls) > 5)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        where = data.draw(st.integers(0, len(self.contexts) - 1))
        self.contexts[where].close()
        self.let_run()
        self.model.close(self.model.books[where])

    @invariant()
    def both_say_the_same_of_every_call(self) -> None:
        for call, task, work in zip(self.model.calls, self.tasks, self.works, strict=True):
            if call.state != "over":
                assert not task.done(), (task, call)
                continue
            outcome = task.result()
            assert (outcome.decision, outcome.stop_reason) == call.expected
            assert (outcome.value == "done") is (outcome.decision is Decision.ALLOW)
            assert outcome.admitted or not work.end.done()

    @invariant()
    def both_count_the_same(self) -> None:
        for context, book in zip(self.contexts, self.model.books, strict=True):
            account = context.account
            seen = context.get_snapshot()
            spent = min(book.used["retries"], book.ceilings.get("retries", 10**9))
            assert (seen.step_count, seen.retries_used) == (book.used["steps"], spent)
            assert account.settled[TOOL_CALLS] == book.used["tools"]
            assert context.usage.cost_nanos == book.used["cents"] * CENT
            assert account.reserved == [book.held["cents"] * CENT, 0, 0, 0, 0, 0, book.held["retries"]]
            assert (seen.abort_reason, seen.aborted) == (book.abort_reason(), book.aborted)
            assert [event.event_type for event in seen.events] == book.events

    @invariant()
    def no_ceiling_is_exceeded_by_what_was_set_aside(self) -> None:
        for book in self.model.books:
            assert book.used["steps"] <= book.ceilings.get("steps", FOREVER)
            assert book.used["tools"] <= book.ceilings.get("tools", FOREVER)
            assert book.used["retries"] <= max(book.ceilings.get("retries", FOREVER), 1)

    def teardown(self) -> None:
        try:
            for context, book in zip(self.contexts, self.model.books, strict=True):
                context.close()
                self.let_run()
                self.model.close(book)
            self.both_say_the_same_of_every_call()
            self.both_count_the_same()
            for context in self.contexts[:1]:
                assert isinstance(context.ledger, MemoryLedger)
                assert context.ledger.is_idle
        finally:
            self.loop.close()


TestGate = pytest.mark.no_cover(pytest.mark.spec("FR-130")(Gate.TestCase))
TestGate.settings = settings(max_examples=250, stateful_step_count=40)
