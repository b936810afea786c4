"""The ledger against a simple model of the rules: every verdict is the model's, and the figures always add up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.containment.gates import unlimited
from watchkeeper.accounting.account import (
    CEILINGS,
    COST,
    INPUT_TOKENS,
    MODEL_CALLS,
    OUTPUT_TOKENS,
    RETRIES,
    STEPS,
    TOOL_CALLS,
    TOTAL_TOKENS,
    Account,
)
from watchkeeper.accounting.admission import Demand
from watchkeeper.accounting.call_request import Admitted, CallRequest, Charge, Estimate, Waits
from watchkeeper.accounting.ledger import MemoryLedger, Refused
from watchkeeper.accounting.limits import Landing, Limits
from watchkeeper.core.errors import Stop
from watchkeeper.core.usage import NANOS_PER_USD, TokenUsage

REASONS = (
    "budget_exceeded",
    "token_limit_exceeded",
    "token_limit_exceeded",
    "token_limit_exceeded",
    "step_limit_exceeded",
    "tool_call_limit_exceeded",
    "retry_budget_exceeded",
)
Counts = dict[int, int]


@dataclass(eq=False)
class Model:
    """One account, as the rules read: who is above, what may be used, what was, what is held and by whom."""

    account: Account
    parent: Model | None
    ceilings: Counts
    lands: bool
    used: Counts = field(default_factory=lambda: dict.fromkeys(range(7), 0))
    hold: Counts = field(default_factory=lambda: dict.fromkeys(range(7), 0))
    calls: list[Call] = field(default_factory=list["Call"])
    children: list[Model] = field(default_factory=list["Model"])
    stop: str | None = None
    work_stop: str | None = None
    closed: bool = False

    @property
    def chain(self) -> list[Model]:
        return [self, *(self.parent.chain if self.parent else [])]

    def below(self) -> list[Model]:
        return [self, *(model for child in self.children for model in child.below())]

    def total(self, what: int) -> int:
        return sum(model.used[what] for model in self.below())

    def reserved(self, what: int) -> int:
        return sum(call.holds[what] for model in self.below() for call in model.calls)

    def held(self, what: int) -> int:
        return sum(model.hold[what] for model in self.below())


@dataclass(eq=False)
class Call:
    """A call under way."""

    model: Model
    demand: Demand
    holds: Counts
    worst: Counts
    may_fail: bool


def needs(request: CallRequest, output: int) -> Counts:
    """What a call uses at worst with this output cap."""
    estimate = request.estimate
    return {
        COST: estimate.input_nanos + estimate.output_nanos_per_token * output,
        TOTAL_TOKENS: estimate.input_tokens + output,
        INPUT_TOKENS: estimate.input_tokens,
        OUTPUT_TOKENS: output,
        STEPS: 1,
        TOOL_CALLS: int(request.kind == "tool"),
        RETRIES: int(request.retry or request.spends_retry_on_error),
    }


def hold_after(model: Model, request: CallRequest) -> Counts:
    """What the account holds for landing once the call is admitted."""
    if request.phase == "landing":
        return dict.fromkeys(range(7), 0)
    if request.landing is None:
        return model.hold
    estimate = request.landing
    out = estimate.max_output_tokens
    return {
        COST: estimate.input_nanos + estimate.output_nanos_per_token * out,
        TOTAL_TOKENS: estimate.input_tokens + out,
        INPUT_TOKENS: estimate.input_tokens,
        OUTPUT_TOKENS: out,
        STEPS: model.hold[STEPS],
        TOOL_CALLS: 0,
        RETRIES: 0,
    }


def verdict(model: Model, request: CallRequest) -> tuple[str, Any]:
    """Decide by trying every output cap from the wished-for one down."""
    landing = request.phase == "landing"
    for level in model.chain:
        stop = level.stop or ("aborted" if level.closed else None) or (None if landing else level.work_stop)
        if stop:
            return "stopped", stop
    most = request.estimate.max_output_tokens
    least = min(request.estimate.min_output_tokens or 256, most)
    hold = hold_after(model, request)

    def obstacles(output: int, *, alone: bool) -> list[int]:
        """The limits, in order, under which the call does not fit; alone: as if nobody else held anything."""
        found: list[int] = []
        for what in range(7):
            need = needs(request, output)[what]
            for level in model.chain:
                ceiling = level.ceilings.get(what)
                concerned = what < TOOL_CALLS or need
                if ceiling is None or not concerned:
                    continue
                if what == RETRIES and request.spends_retry_on_error:
                    ceiling = max(ceiling, 1)
                left = ceiling - level.total(what)
                if left <= 0:
                    found.append(what)
                    continue
                path = model.chain[: model.chain.index(level) + 1]
                if alone:
                    others = sum(one.hold[what] for one in path[1:])
                else:
                    others = level.reserved(what) + level.held(what) - model.hold[what]
                free = left - others - hold[what]
                nothing_new = need == 0 and hold[what] <= model.hold[what]
                if need > free and not nothing_new:
                    found.append(what)
        return found

    exhausted = obstacles(least, alone=True)
    if exhausted:
        return "exhausted", REASONS[exhausted[0]]
    for output in range(most, least - 1, -1):
        if not obstacles(output, alone=False):
            return "admitted", output
    return "waits", None


amounts = st.integers(0, 6)
estimates = st.builds(
    Estimate,
    input_tokens=amounts,
    max_output_tokens=amounts,
    min_output_tokens=st.integers(0, 3),
    input_nanos=amounts,
    output_nanos_per_token=st.integers(0, 2),
)
requests = st.builds(
    CallRequest,
    kind=st.sampled_from(["llm", "tool", "child"]),
    estimate=estimates,
    phase=st.sampled_from(["work", "work", "work", "landing"]),
    landing=st.none() | estimates,
    retry=st.booleans(),
).map(lambda request: request)
ceilings = st.fixed_dictionaries(
    {},
    optional={
        "max_cost_usd": st.integers(1, 40).map(lambda nanos: f"{nanos / NANOS_PER_USD:.9f}"),
        "max_total_tokens": st.integers(1, 60),
        "max_input_tokens": st.integers(1, 40),
        "max_output_tokens": st.integers(1, 40),
        "max_steps": st.integers(1, 12),
        "max_tool_calls": st.integers(1, 5),
        "max_retries": st.integers(0, 4),
    },
)


NOTHING: Any = cast("Any", multiple())


class LedgerMachine(RuleBasedStateMachine):
    """Opens, admits, settles, stops and closes at random, beside the model."""

    contexts: Bundle[Model] = Bundle("contexts")
    under_way: Bundle[Call] = Bundle("under_way")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger()
        self.roots: list[Model] = []

    @rule(target=contexts, ceilings=ceilings, lands=st.booleans())
    def open_root(self, ceilings: dict[str, Any], lands: bool) -> Any:
        if self.roots:
            return NOTHING
        return self._open(None, unlimited(**ceilings, landing=Landing() if lands else None))

    @rule(target=contexts, parent=contexts, ceilings=ceilings, lands=st.booleans())
    def open_child(self, parent: Model, ceilings: dict[str, Any], lands: bool) -> Any:
        if len(self.roots[0].below()) >= 6:
            return NOTHING
        return self._open(parent, unlimited(**ceilings, landing=Landing() if lands else None))

    def _open(self, parent: Model | None, limits: Limits) -> Model:
        account = Account(limits, parent.account if parent else None)
        own = {what: ceiling for what, name in enumerate(CEILINGS) if (ceiling := limits.ceiling(name)) is not None}
        model = Model(account, parent, own, limits.landing is not None)
        if parent:
            parent.children.append(model)
        else:
            self.roots.append(model)
        rooms = [
            level.ceilings[STEPS] - level.total(STEPS) - level.held(STEPS)
            for level in model.chain
            if STEPS in level.ceilings
        ]
        if model.lands and rooms and min(rooms) >= 2:
            model.hold[STEPS] = 1
        self.ledger.open(account)
        return model

    @rule(target=under_way, model=contexts, request=requests, wrapped=st.booleans())
    def admit(self, model: Model, request: CallRequest, wrapped: bool) -> Any:
        if wrapped:
            request = CallRequest(request.kind, estimate=request.estimate, spends_retry_on_error=True)
        expected = verdict(model, request)
        demand = Demand(model.account, request)
        grant = self.ledger.admit(demand, 0.0)
        if expected[0] == "admitted":
            assert grant == Admitted(expected[1])
            return self._begin(model, request, demand, expected[1])
        if expected[0] == "waits":
            assert isinstance(grant, Waits)
            return NOTHING
        assert isinstance(grant, Refused)
        assert grant.stop.reason == expected[1]
        work_only = model.lands and request.phase == "work"
        if expected[0] == "exhausted":
            assert grant.latched
            if work_only:
                model.work_stop = expected[1]
            else:
                model.stop = expected[1]
        else:
            assert not grant.latched
        return NOTHING

    def _begin(self, model: Model, request: CallRequest, demand: Demand, output: int) -> Call:
        worst = needs(request, output)
        holds = {what: worst[what] if what <= OUTPUT_TOKENS else 0 for what in range(7)}
        model.hold = hold_after(model, request)
        model.used[STEPS] += 1
        model.used[TOOL_CALLS] += worst[TOOL_CALLS]
        if request.spends_retry_on_error:
            holds[RETRIES] = 1
        elif request.retry:
            model.used[RETRIES] += 1
        call = Call(model, demand, holds, worst, request.spends_retry_on_error)
        model.calls.append(call)
        return call

    @rule(call=consumes(under_way), failed=st.booleans(), data=st.data())
    def settle(self, call: Call, failed: bool, data: st.DataObject) -> None:
        real = {what: data.draw(st.integers(0, call.worst[what])) for what in (COST, INPUT_TOKENS, OUTPUT_TOKENS)}
        charge = Charge(TokenUsage(real[INPUT_TOKENS], real[OUTPUT_TOKENS]), real[COST])
        self.ledger.settle(call.demand, charge, failed, 0.0)
        call.model.calls.remove(call)
        for what, amount in real.items():
            call.model.used[what] += amount
        call.model.used[TOTAL_TOKENS] += real[INPUT_TOKENS] + real[OUTPUT_TOKENS]
        call.model.used[RETRIES] += failed and call.may_fail

    @rule(model=contexts)
    def close(self, model: Model) -> None:
        self.ledger.close(model.account, 0.0)
        model.hold = dict.fromkeys(range(7), 0)
        model.closed = True

    @rule(model=contexts, work_only=st.booleans())
    def stop(self, model: Model, work_only: bool) -> None:
        stop = Stop("aborted", "caller", "enough")
        expected = model.stop is None and (not work_only or model.work_stop is None)
        assert self.ledger.latch(model.account, stop, work_only, 0.0) == expected
        if expected and work_only:
            model.work_stop = "aborted"
        elif expected:
            model.stop = "aborted"

    @invariant()
    def figures_add_up(self) -> None:
        for model in self.roots[0].below() if self.roots else []:
            account = model.account
            for what in range(7):
                assert account.settled[what] == model.total(what)
                assert account.reserved[what] == model.reserved(what) + model.held(what)
            assert account.settled[MODEL_CALLS] <= account.settled[STEPS]

    @invariant()
    def no_ceiling_is_exceeded(self) -> None:
        for model in self.roots[0].below() if self.roots else []:
            for what, ceiling in model.ceilings.items():
                allowed = max(ceiling, 1) if what == RETRIES else ceiling
                assert model.account.settled[what] + model.reserved(what) <= allowed


TestLedger = pytest.mark.no_cover(pytest.mark.spec("FR-028", "FR-029", "FR-092")(LedgerMachine.TestCase))
TestLedger.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
