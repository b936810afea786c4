"""`evaluate` as the specification defines it: preflight, deadlines, budgets and trackers, exceptions, events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from tests.kit import Call, Report, Say, ScriptedModel, agent
from watchkeeper.accounting.budget import Budget, BudgetTracker
from watchkeeper.core.clock import Deadline, TestClock
from watchkeeper.core.errors import (
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    OutputParseError,
    PromptEvaluationError,
    ProviderError,
    ThrottleError,
    UnpricedModelError,
    WatchkeeperError,
)
from watchkeeper.core.ids import root_run_context
from watchkeeper.core.messages import AssistantMessage
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.evaluation import PromptDeadlineAssigned
from watchkeeper.prompt.template import Prompt, ProviderAdapter
from watchkeeper.runtime.events import RunStarted
from watchkeeper.session.log import InProcessDispatcher
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.tool import tool

PROMPT = Prompt(agent())


class Slow(ScriptedModel):
    """Takes an hour for every turn."""

    def __init__(self, clock: TestClock, script: list[Any]) -> None:
        super().__init__(script)
        self.clock = clock

    async def turn(self, request: ModelRequest) -> ModelReply:
        await self.clock.sleep(3600)
        return await super().turn(request)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("openai:gpt-5-mini", r"not 'openai:gpt-5-mini'; make one: .*\.model_from\('openai:gpt-5-mini'\)$"),
        (None, "needs a Model, not None$"),
    ],
    ids=["string", "none"],
)
def test_what_is_no_model_is_refused_with_the_way_to_make_one(model: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Adapter(model)


@pytest.mark.spec("DL-004")
def test_an_adapter_is_a_provider_adapter() -> None:
    adapter = Adapter(ScriptedModel([]))
    as_protocol: ProviderAdapter = adapter
    assert as_protocol is adapter
    assert adapter.name == "scripted"


@pytest.mark.spec("FR-042")
def test_a_prompt_is_evaluated_to_a_typed_response() -> None:
    response = Adapter(ScriptedModel([Say(Report(3))])).evaluate(PROMPT)
    assert response.output == Report(3)
    assert response.prompt_name == "tests/agent"
    assert response.usage.total == 120
    assert response.cost == 0


def test_without_parsing_the_text_alone_is_returned() -> None:
    response = Adapter(ScriptedModel(["no json at all"])).evaluate(PROMPT, parse_output=False)
    assert (response.output, response.text) == (None, "no json at all")


# --- preflight --------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, 12, 0, 0, 400_000, tzinfo=UTC)


@pytest.mark.spec("DL-002")
@pytest.mark.parametrize(
    ("deadline", "why"),
    [
        (NOW.replace(tzinfo=None) + timedelta(hours=1), "has no time zone"),
        (NOW - timedelta(seconds=1), "is not in the future"),
        (NOW, "is not in the future"),
        (NOW + timedelta(milliseconds=500), "is not in the future"),
        (Deadline(NOW - timedelta(seconds=1)), "is not in the future"),
    ],
)
def test_a_deadline_that_makes_no_sense_is_refused_in_preflight(deadline: Any, why: str) -> None:
    model = ScriptedModel([Say(Report(1))])
    with pytest.raises(PromptEvaluationError, match=why) as caught:
        Adapter(model, clock=TestClock(NOW)).evaluate(PROMPT, deadline=deadline)
    assert caught.value.phase == "preflight"
    assert "deadline" in caught.value.provider_payload
    assert model.requests == []


@pytest.mark.spec("DL-001")
def test_a_deadline_in_the_next_second_is_good() -> None:
    adapter = Adapter(ScriptedModel([Say(Report(1))]), clock=TestClock(NOW))
    assert adapter.evaluate(PROMPT, deadline=NOW + timedelta(seconds=1)).output == Report(1)


# --- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DL-005", "DL-008", "DL-018")
def test_tools_get_the_callers_deadline_and_the_session_an_event() -> None:
    seen: list[Any] = []

    @tool
    def look(*, context: ToolContext) -> str:
        """Look at the deadline."""
        seen.append(context.deadline)
        return "seen"

    session, deadline = Session(), NOW + timedelta(seconds=5)
    adapter = Adapter(ScriptedModel([Call("look"), Say(Report(1))]), clock=TestClock(NOW))
    adapter.evaluate(Prompt(agent(look)), session=session, deadline=deadline)
    assert seen == [Deadline(deadline)]
    assigned = session[PromptDeadlineAssigned].latest()
    assert assigned is not None
    assert assigned.deadline == deadline


@pytest.mark.spec("DL-010", "DL-015")
def test_a_deadline_that_passes_raises_with_the_cutoff_in_its_payload() -> None:
    clock, deadline = TestClock(NOW), NOW + timedelta(minutes=5)
    with pytest.raises(DeadlineExceededError, match="deadline of 5m") as caught:
        Adapter(Slow(clock, [Say(Report(1))]), clock=clock).evaluate(PROMPT, deadline=deadline)
    assert caught.value.phase == "deadline"
    assert caught.value.provider_payload["deadline"] == deadline.isoformat()
    assert caught.value.stop is not None
    assert caught.value.stop.reason == "timeout"


@pytest.mark.spec("DL-010")
def test_no_provider_call_is_made_once_the_deadline_is_over() -> None:
    clock = TestClock(NOW)

    @tool
    async def wait() -> str:
        """Let the deadline pass."""
        clock.advance(600)
        return "late"

    model = ScriptedModel([Call("wait"), Say(Report(1))])
    with pytest.raises(DeadlineExceededError):
        Adapter(model, clock=clock).evaluate(Prompt(agent(wait)), deadline=NOW + timedelta(minutes=5))
    assert len(model.requests) == 1


@pytest.mark.spec("DL-003", "DL-020")
def test_without_a_deadline_a_run_takes_what_it_takes() -> None:
    clock = TestClock(NOW)
    model = Slow(clock, [Say(Report(1))])
    assert Adapter(model, clock=clock).evaluate(PROMPT).output == Report(1)
    assert clock.monotonic() == 3600


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_a_budget_that_is_used_up_raises_and_nothing_lands() -> None:
    model = ScriptedModel(lambda _: Call("nope"))
    with pytest.raises(BudgetExceededError, match="ceiling of 5,000 tokens") as caught:
        Adapter(model).evaluate(PROMPT, budget=Budget(max_total_tokens=5000))
    assert caught.value.phase == "budget"
    assert all(request.tool_choice == "auto" for request in model.requests)


@pytest.mark.spec("TO-024")
def test_a_budget_seeded_in_the_session_tightens_and_never_loosens() -> None:
    for seeded, given in ((2000, 50_000), (50_000, 2000)):
        session = Session()
        session[Budget].seed(Budget(max_total_tokens=seeded))
        model = ScriptedModel(lambda _: Call("nope"))
        with pytest.raises(BudgetExceededError, match="2,000 tokens"):
            Adapter(model).evaluate(PROMPT, session=session, budget=Budget(max_total_tokens=given))


def test_a_tracker_bounds_all_evaluations_that_share_it() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=1000))
    adapter = Adapter(ScriptedModel([Say(Report(1))] * 50))
    evaluations, session = 0, Session()
    with suppress(BudgetExceededError):
        while evaluations < 50:
            adapter.evaluate(PROMPT, session=session, budget_tracker=tracker)
            evaluations += 1
    assert 1 <= evaluations <= 8
    assert tracker.usage.tokens.total == 120 * evaluations <= 1000
    assert [type(item.event).__name__ for item in session.log].count("SafetyEvent") == 1


@pytest.mark.spec("NE-011")
async def test_evaluations_that_share_a_tracker_at_once_never_exceed_it_together() -> None:
    tracker = BudgetTracker(Budget(max_total_tokens=2000))
    adapter = Adapter(ScriptedModel([Say(Report(1))] * 50))
    works = [adapter.evaluate_async(PROMPT, budget_tracker=tracker) for _ in range(50)]
    results = await asyncio.gather(*works, return_exceptions=True)
    done = [result for result in results if not isinstance(result, BaseException)]
    assert {type(result) for result in results if isinstance(result, BaseException)} == {BudgetExceededError}
    assert tracker.usage.tokens.total == 120 * len(done) <= 2000


def test_a_tracker_that_is_used_up_refuses_before_anything_is_sent() -> None:
    tracker = BudgetTracker(Budget(max_tool_calls=1))
    model = ScriptedModel([Call("look"), Say(Report(1))])

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    Adapter(model).evaluate(Prompt(agent(look)), budget_tracker=tracker)
    with pytest.raises(BudgetExceededError, match="max_tool_calls, 1 of 1"):
        Adapter(model).evaluate(PROMPT, budget_tracker=tracker)
    model.assert_complete()


@pytest.mark.parametrize("through", ["budget", "tracker"])
def test_a_cost_ceiling_needs_a_price(through: str) -> None:
    budget = Budget(max_cost_usd=1)
    given: dict[str, Any] = {"budget": budget} if through == "budget" else {"budget_tracker": BudgetTracker(budget)}
    with pytest.raises(UnpricedModelError, match="ModelPrice"):
        Adapter(ScriptedModel([], free=False)).evaluate(PROMPT, **given)
    priced = Adapter(ScriptedModel([Say(Report(1))], free=False), price=ModelPrice.per_million(1, 2))
    assert priced.evaluate(PROMPT, **given).cost is not None


# --- what ends an evaluation ------------------------------------------------------------------------------------------


def test_an_answer_that_never_fits_raises_with_what_the_model_said() -> None:
    with pytest.raises(OutputParseError) as caught:
        Adapter(ScriptedModel(["three", "still three"])).evaluate(PROMPT)
    assert caught.value.raw == "still three"
    assert caught.value.phase == "response"


def test_nothing_twice_is_an_output_that_cannot_be_parsed() -> None:
    with pytest.raises(OutputParseError, match="answered with nothing"):
        Adapter(ScriptedModel(["", ""])).evaluate(PROMPT)


@pytest.mark.spec("NE-017")
@pytest.mark.parametrize(
    ("error", "type_"),
    [
        (ThrottleError("slow down", retry_after=1), ThrottleError),
        (ProviderError("who are you", fault="auth", status=401), ProviderError),
    ],
)
def test_a_providers_failure_is_raised_as_it_is(error: ProviderError, type_: type[ProviderError]) -> None:
    adapter = Adapter(ScriptedModel([error] * 9), clock=TestClock())
    with pytest.raises(type_) as caught:
        adapter.evaluate(PROMPT)
    assert caught.value is error
    assert caught.value.stop is not None


def test_a_refusal_is_an_evaluation_error() -> None:
    refusal = ModelReply(AssistantMessage(""), TokenUsage(1, 1), "refusal", refusal="no")
    with pytest.raises(PromptEvaluationError, match="The model refused: no"):
        Adapter(ScriptedModel([refusal])).evaluate(PROMPT)


# --- session, bus, run context, portal --------------------------------------------------------------------------------


def test_events_go_to_the_session_and_to_the_bus() -> None:
    bus, heard = InProcessDispatcher(), list[Any]()
    bus.subscribe(ToolInvoked, heard.append)
    session = Session()
    Adapter(ScriptedModel([Call("nope"), Say(Report(1))])).evaluate(PROMPT, session=session, bus=bus)
    assert heard == list(session[ToolInvoked].all())
    Adapter(ScriptedModel([Call("nope"), Say(Report(1))])).evaluate(PROMPT, session=session)
    assert len(heard) == 1


@pytest.mark.spec("NE-015")
def test_the_run_context_is_the_callers_if_one_is_given() -> None:
    session = Session()
    context = root_run_context(session.session_id)
    Adapter(ScriptedModel([Say(Report(1))])).evaluate(PROMPT, session=session, run_context=context)
    started = session[RunStarted].latest()
    assert started is not None
    assert started.run_context is context


@pytest.mark.spec("NE-033", "FR-042")
async def test_evaluate_works_while_the_callers_loop_runs() -> None:
    """As in a notebook: the portal's loop is another one."""
    assert Adapter(ScriptedModel([Say(Report(1))])).evaluate(PROMPT).output == Report(1)


@pytest.mark.spec("FR-042")
def test_on_the_portals_own_thread_it_raises_and_names_the_async_twin() -> None:
    caught: list[str] = []

    @tool
    async def nested() -> str:
        """Evaluate from the loop's own thread."""
        try:
            Adapter(ScriptedModel([Say(Report(1))])).evaluate(PROMPT)
        except WatchkeeperError as error:
            caught.append(str(error))
        return "done"

    Adapter(ScriptedModel([Call("nested"), Say(Report(1))])).evaluate(Prompt(agent(nested)))
    assert len(caught) == 1
    assert "await evaluate_async(...)" in caught[0]


def test_a_sync_tool_may_evaluate_from_its_worker_thread() -> None:
    names: list[str] = []

    @tool
    def nested() -> str:
        """Evaluate from a worker."""
        names.append(threading.current_thread().name)
        return Adapter(ScriptedModel([Say(Report(7))])).evaluate(PROMPT).text

    Adapter(ScriptedModel([Call("nested"), Say(Report(1))])).evaluate(Prompt(agent(nested)))
    assert names[0] != "watchkeeper-loop"


def test_evaluations_from_many_threads_do_not_disturb_each_other() -> None:
    results: list[int] = []
    lock = threading.Lock()

    def one(number: int) -> None:
        response = Adapter(ScriptedModel([Call("nope"), Say(Report(number))])).evaluate(PROMPT)
        with lock:
            results.append(response.output.total if response.output else -1)

    run_threads([partial(one, number) for number in range(16)])
    assert sorted(results) == list(range(16))


def run_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
