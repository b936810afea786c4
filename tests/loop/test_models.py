"""Worst cases of model calls: never below what a provider can bill."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import Call, Calls, Say, ScriptedModel, play
from watchkeeper.accounting.account import Account
from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.accounting.limits import Limits
from watchkeeper.asking.models import (
    FRAME_TOKENS,
    UNBOUNDED_IMAGE_TOKENS,
    InputBound,
    charge_failure,
    charge_reply,
    counted_usage,
    estimate_call,
)
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.errors import ConfigurationError, ProviderError, UnsentError
from watchkeeper.core.messages import AssistantMessage, ImagePart, TextPart, Transcript, UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest, OutputSchema, ToolSpec
from watchkeeper.core.usage import FREE, MOST_TOKENS, NOTHING_PRESUMED, ModelPrice, Presumed, Rate, TokenUsage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.events import ModelReplied
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import tool

TOKENS = st.integers(0, 2_000_000)
RATES = st.integers(0, 10**12)


@st.composite
def prices(draw: st.DrawFn) -> ModelPrice:
    """Draw a price with tiers that may be dearer or cheaper."""
    base, dear, cached, write = (draw(RATES) for _ in range(4))
    tiered, falling = Rate(base, ((200_000, dear),)), Rate(dear, ((200_000, base),))
    return ModelPrice(tiered, falling, Rate(cached), Rate(write), draw(st.integers(0, 10**9)))


@pytest.mark.spec("FR-073")
@given(price=prices(), bound=TOKENS, data=st.data())
def test_no_call_within_its_bounds_costs_more_than_its_worst_case(
    price: ModelPrice, bound: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, bound))
    cached = data.draw(st.integers(0, size))
    written = data.draw(st.integers(0, size - cached))
    cap = data.draw(st.integers(0, 100_000))
    output = data.draw(st.integers(0, cap))
    worst = price.worst_input(bound) + cap * price.worst_output_token(bound)
    assert price.cost(TokenUsage(size, output, cached, written)) <= worst


def test_a_price_is_what_providers_print() -> None:
    price = ModelPrice.per_million("0.25", 2, cached_usd=Decimal("0.025"), cache_write_usd=0.3)
    assert price.cost(TokenUsage(1_000_000, 1_000_000)) == 2_250_000_000
    assert price.cost(TokenUsage(1_000_000, 0, cached_tokens=1_000_000)) == 25_000_000
    assert price.cost(TokenUsage(1_000_000, 0, cache_write_tokens=1_000_000)) == 300_000_000
    assert price.cost(TokenUsage(1, 0)) == 250
    assert FREE.cost(TokenUsage(10**9, 10**9)) == 0


@pytest.mark.parametrize("usd", [-1, "nan", "inf"])
def test_a_price_that_makes_no_sense_is_refused(usd: Any) -> None:
    with pytest.raises(ConfigurationError, match="price"):
        ModelPrice.per_million(usd, 1)


def request(*messages: Any, **given_: Any) -> ModelRequest:
    return ModelRequest(Transcript(messages), **given_)


def test_a_token_is_never_less_than_a_byte() -> None:
    asked = request(UserMessage.of("größer"))
    assert InputBound(asked, Account(Limits())).tokens(asked.transcript) >= len("größer".encode())


def test_tools_and_schemas_count() -> None:
    plain = request(UserMessage.of("x"))
    tools = (ToolSpec("look", "Look around.", {"type": "object"}),)
    rich = request(UserMessage.of("x"), tools=tools, output=OutputSchema("Out", {"type": "object"}))
    bound = InputBound(plain, Account(Limits())).tokens(plain.transcript)
    assert InputBound(rich, Account(Limits())).tokens(rich.transcript) > bound + 40


def test_reasoning_that_goes_back_to_its_provider_counts_where_nobody_has_counted_it() -> None:
    """A run that continues a session, or goes back to a model after another, sends replies that it has not learned."""
    earlier = AssistantMessage("y" * 100, provider_data={"encrypted": "s" * 9_000})
    asked = request(UserMessage.of("x"), earlier, UserMessage.of("z"))
    assert 9_100 <= InputBound(asked, Account(Limits())).tokens(asked.transcript) <= 9_300


def learn(bound: InputBound, reply: ModelReply) -> None:
    """Let a bound learn from a reply, as a run does."""
    bound.learn(reply, counted_usage(reply, estimate_call(1000, 100, 10, None), 100))


def test_the_providers_count_replaces_the_guess_and_only_what_is_new_is_added() -> None:
    asked = request(UserMessage.of("x" * 1000))
    bound = InputBound(asked, Account(Limits()))
    assert bound.likely() is None
    assert bound.tokens(asked.transcript) >= 1000
    reply = ModelReply(AssistantMessage("y" * 500), TokenUsage(200, 100))
    learn(bound, reply)
    asked.transcript.append(reply.message)
    first = bound.tokens(asked.transcript)
    assert 300 <= first <= 350
    asked.transcript.append(UserMessage.of("z" * 90))
    assert first + 90 <= bound.tokens(asked.transcript) <= first + 150
    likely = bound.likely()
    assert likely is not None
    assert 300 <= likely < bound.tokens(asked.transcript)


def test_a_new_segment_is_counted_anew_by_its_bytes_with_what_goes_back_unchanged() -> None:
    tools = (ToolSpec("look", "Look around.", {"type": "object"}),)
    asked = request(UserMessage.of("x" * 1000), tools=tools)
    bound = InputBound(asked, Account(Limits()))
    reply = ModelReply(AssistantMessage("y" * 500, provider_data={"signed": "s" * 700}), TokenUsage(9_000, 100))
    learn(bound, reply)
    asked.transcript.append(reply.message)
    bound.tokens(asked.transcript)
    asked.transcript.begin_segment([UserMessage.of("z" * 300), reply.message])
    fresh = bound.tokens(asked.transcript)
    assert bound.fixed + 1_500 <= fresh <= bound.fixed + 1_600
    assert bound.likely() is None
    asked.transcript.append(UserMessage.of("w" * 90))
    assert fresh + 90 <= bound.tokens(asked.transcript) <= fresh + 150


def test_a_count_below_an_earlier_one_of_the_segment_lowers_nothing() -> None:
    asked = request(UserMessage.of("x" * 9_000))
    bound = InputBound(asked, Account(Limits()))
    for count in (6_000, 50, 40):
        bound.tokens(asked.transcript)
        reply = ModelReply(AssistantMessage("y" * 10), TokenUsage(count, 10))
        learn(bound, reply)
        asked.transcript.append(reply.message)
        asked.transcript.append(UserMessage.of("z" * 90))
    likely = bound.likely()
    assert likely is not None
    assert 6_000 <= likely <= bound.tokens(asked.transcript) <= 6_700
    learn(bound, ModelReply(AssistantMessage("y"), TokenUsage(6_010, 5)))
    assert bound.tokens(asked.transcript) <= 6_050
    asked.transcript.begin_segment([UserMessage.of("z" * 300)])
    bound.tokens(asked.transcript)
    learn(bound, ModelReply(AssistantMessage("y"), TokenUsage(80, 5)))
    assert bound.tokens(asked.transcript) <= 110


@given(data=st.data())
def test_the_bound_holds_for_a_provider_that_leaves_out_now_and_then_what_it_had_in_a_cache(
    data: st.DataObject,
) -> None:
    asked = request(UserMessage.of("x" * 5_000))
    bound = InputBound(asked, Account(Limits()))
    true = most = data.draw(st.integers(1, 5_000))
    for turn in range(data.draw(st.integers(1, 12))):
        assert bound.tokens(asked.transcript) >= true
        told = true if turn == 0 or data.draw(st.booleans()) else data.draw(st.integers(0, most - 1))
        most = max(most, told)
        said = data.draw(st.integers(0, 200))
        reply = ModelReply(AssistantMessage("y" * said), TokenUsage(told, data.draw(st.integers(0, 300)) + said))
        learn(bound, reply)
        asked.transcript.append(reply.message)
        new = data.draw(st.integers(0, 400))
        asked.transcript.append(UserMessage.of("z" * new))
        true += data.draw(st.integers(0, said + new + 2 * FRAME_TOKENS))


@pytest.mark.spec("FR-152")
@given(ceiling=st.integers(1_000, 30_000), data=st.data())
def test_no_ceiling_is_passed_whatever_a_provider_counts_within_what_was_reserved(
    ceiling: int, data: st.DataObject
) -> None:
    asyncio.run(spend(ceiling, data))


async def spend(ceiling: int, data: st.DataObject) -> None:
    """Ask until the gate refuses."""
    asked = request(UserMessage.of("x" * 900))
    limits = Limits(max_input_tokens=ceiling, max_total_tokens=None, landing=None)
    bound = InputBound(asked, Account(limits))
    with ExecutionContext(limits) as gate:
        for _ in range(20):
            worst = estimate_call(bound.tokens(asked.transcript), 100, 10, None)

            async def answer(ticket: Ticket, worst: Estimate = worst) -> ModelReply:
                counts = TokenUsage(data.draw(st.integers(-1, worst.input_tokens)), data.draw(st.integers(-1, 100)))
                return ModelReply(AssistantMessage("y" * data.draw(st.integers(0, 100))), counts)

            def meter(
                reply: ModelReply | None, error: BaseException | None, ticket: Ticket, worst: Estimate = worst
            ) -> Charge:
                assert reply is not None
                return charge_reply(counted_usage(reply, worst, ticket.max_output_tokens), None)

            outcome = await gate.acall(CallRequest("llm", "ask", worst), answer, meter)
            assert gate.usage.tokens.input_tokens <= ceiling
            if outcome.value is None:
                break
            bound.learn(outcome.value, counted_usage(outcome.value, worst, 100))
            asked.transcript.append(outcome.value.message)
            asked.transcript.append(UserMessage.of("z" * 50))


@pytest.mark.spec("FR-152")
async def test_one_low_count_lets_no_run_pass_its_ceiling() -> None:
    counts = iter((6_000, 50, 6_200, 6_400))

    @tool
    def page() -> str:
        """Turn the page."""
        return "x" * 40

    def asked(sent: ModelRequest) -> Calls:
        return Calls((Call("page"),), usage=TokenUsage(next(counts), 10))

    template = PromptTemplate[str](
        ns="tests", key="pages", sections=[MarkdownSection("Task", "task", "word " * 1300, tools=(page,))]
    )
    limits = Limits(max_input_tokens=12_150, landing=None)
    result = await play(template, ScriptedModel(asked), limits)
    assert result.stop is not None
    assert result.stop.limit == "max_input_tokens"
    assert result.usage.tokens.input_tokens <= 12_150


def test_a_provider_that_counts_nothing_teaches_nothing() -> None:
    asked = request(UserMessage.of("x" * 1000))
    bound = InputBound(asked, Account(Limits()))
    learn(bound, ModelReply(AssistantMessage("y"), TokenUsage()))
    assert bound.tokens(asked.transcript) >= 1000


def test_an_image_counts_as_declared_and_is_refused_undeclared_under_a_ceiling() -> None:
    def bound(image: ImagePart, limits: Limits) -> int:
        asked = request(UserMessage((TextPart(""), image)))
        return InputBound(asked, Account(limits)).tokens(asked.transcript)

    free = Limits(max_total_tokens=None)
    assert bound(ImagePart(data="aGk=", max_tokens=800), Limits()) >= 800
    assert bound(ImagePart(data="aGk="), free) >= UNBOUNDED_IMAGE_TOKENS
    with pytest.raises(ConfigurationError, match="max_tokens"):
        bound(ImagePart(data="aGk="), Limits())


PRICE = ModelPrice.per_million(1, 10)
WORST = TokenUsage(1000, 500)


def test_a_reply_is_charged_by_its_usage_and_unknown_prices_stay_unknown() -> None:
    assert charge_reply(TokenUsage(100, 10), PRICE).cost_nanos == 200_000
    assert charge_reply(TokenUsage(100, 10), None).cost_nanos is None


def test_a_server_that_reports_no_usage_is_charged_by_the_bounds_never_nothing() -> None:
    worst = estimate_call(1000, 500, 256, PRICE)
    assert counted_usage(ModelReply(AssistantMessage("four"), TokenUsage()), worst, 500) == TokenUsage(1000, 4)
    reported = TokenUsage(7, 3)
    assert counted_usage(ModelReply(AssistantMessage("four"), reported), worst, 500) is reported


@pytest.mark.parametrize(
    ("reported", "charged"),
    [
        (TokenUsage(0, 30), TokenUsage(1000, 30)),
        (TokenUsage(-5, 30), WORST),
        (TokenUsage(50, -5), WORST),
        (TokenUsage(50, 30, cached_tokens=-5), WORST),
        (TokenUsage(50, 30, cached_tokens=40, cache_write_tokens=11), WORST),
        (TokenUsage(2**63, 30), WORST),
        (TokenUsage(50, MOST_TOKENS + 1), WORST),
        (TokenUsage(True, 30), WORST),
        (TokenUsage("50", 30), WORST),  # type: ignore[arg-type]  # a model of the caller's own
        (TokenUsage(50, 30, reasoning_tokens=40), TokenUsage(50, 30, reasoning_tokens=40)),
    ],
)
def test_usage_that_cannot_be_is_charged_the_worst_case(reported: TokenUsage, charged: TokenUsage) -> None:
    reply = ModelReply(AssistantMessage("four"), reported)
    assert counted_usage(reply, estimate_call(1000, 500, 256, PRICE), 500) == charged


async def test_a_report_that_no_log_could_keep_does_not_end_the_run() -> None:
    """A model of the caller's own may report anything; every record of the turn has what was charged instead."""

    @tool
    def look() -> str:
        """Look around."""
        return "an owl"

    counts = iter((TokenUsage(object(), 10), TokenUsage(50, 10)))  # type: ignore[arg-type]
    replies = iter((Call("look"), "done"))

    def asked(sent: ModelRequest) -> Calls | Say:
        said, usage = next(replies), next(counts)
        return Calls((said,), usage=usage) if isinstance(said, Call) else Say(said, usage=usage)

    template = PromptTemplate[str](
        ns="tests", key="odd", sections=[MarkdownSection("Task", "task", "Look.", tools=(look,))]
    )
    result = await play(template, ScriptedModel(asked))
    assert (result.text, result.stop) == ("done", None)
    charged = [event.usage for event in result.session[ModelReplied].all()]
    assert [event.usage for event in result.session[ToolInvoked].all()] == charged[:1]
    assert all(usage.is_possible for usage in charged)


def test_what_a_provider_refused_costs_nothing_and_what_nobody_knows_costs_the_worst_case() -> None:
    worst = estimate_call(1000, 500, 256, PRICE)
    refused = charge_failure(ProviderError("no", fault="auth"), worst, 500, PRICE)
    assert (refused.cost_nanos, refused.tokens.total) == (0, 0)
    assert charge_failure(UnsentError("the script is over"), worst, 500, PRICE) == refused
    for error in (TimeoutError(), None, ProviderError("lost", fault="broken_stream", billed=True)):
        charged = charge_failure(error, worst, 500, PRICE)
        assert (charged.cost_nanos, charged.tokens.total) == (1_000_000 + 5_000_000, 1500)
        assert charged.presumed == Presumed(1, charged.tokens, charged.cost_nanos)
    assert refused.presumed == NOTHING_PRESUMED
    unknown = charge_failure(None, estimate_call(1000, 500, 256, None), 500, None)
    assert unknown.cost_nanos is None
