"""What is left is reported in the words of the document on trajectory observers (docs/specification.md, TO).

The severity follows from the limit of which the smallest share is left.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.usage import NANOS_PER_USD
from watchkeeper.observers.resources import ResourceObserver, format_remaining
from watchkeeper.prompt.advice import Assessment
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.session.session import Session

RESOURCES = ResourceObserver()
HALF_HOUR = 30 * 60.0
EXAMPLE = """\
## Trajectory Assessment

_Generated after tool call #47_

### Resources [caution]

You have 8 minutes remaining before the deadline. You have used 35,000 of
50,000 tokens (70% of budget). 15,000 tokens remaining. You have made 47 of
100 allowed tool calls. 53 calls remaining.

**Suggestions**:
- Be mindful of remaining resources when planning next steps."""

INFO = """\
### Resources [info]

You have 25 minutes remaining before the deadline. You have used 12,000 of
50,000 tokens (24% of budget). 38,000 tokens remaining."""

CAUTION = """\
### Resources [caution]

You have 6 minutes remaining before the deadline. You have used 42,000 of
50,000 tokens (84% of budget). 8,000 tokens remaining.

**Suggestions**:
- Be mindful of remaining resources when planning next steps."""

WARNING = """\
### Resources [warning]

You have 2 minutes remaining before the deadline. You have used 48,500 of
50,000 tokens (97% of budget). 1,500 tokens remaining.

**Suggestions**:
- Prioritize completing the most critical remaining work.
- Consider wrapping up with a summary of progress and remaining tasks."""


def observed(observer: ResourceObserver = RESOURCES, **budget: Any) -> Assessment:
    """Return what it says of a budget."""
    session = Session()
    context = ObserverContext(session, budget=BudgetStatus(**budget))
    assert observer.should_run(session, context=context)
    return observer.observe(session, context=context)


def timed(minutes: float, **budget: Any) -> Assessment:
    """Return what it says with so many minutes of half an hour left."""
    left = minutes * 60
    return observed(remaining_seconds=left, elapsed_seconds=HALF_HOUR - left, **budget)


def joined(text: str) -> str:
    """Join soft line breaks, as a reader of markdown sees them."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(each if each.startswith("**") else " ".join(each.split("\n")) for each in paragraphs)


@pytest.mark.spec("TO-003")
def test_the_example_of_the_document_renders_as_in_its_text() -> None:
    said = timed(8, max_tokens=50_000, tokens_used=35_000, max_tool_calls=100, tool_calls_used=47)
    assert said.stamped("Resources", 47, datetime(2026, 11, 21, tzinfo=UTC)).render() == joined(EXAMPLE)


@pytest.mark.spec("TO-012")
@pytest.mark.parametrize(
    ("minutes", "used", "expected"), [(25, 12_000, INFO), (6, 42_000, CAUTION), (2, 48_500, WARNING)]
)
def test_the_severities_of_the_document_render_as_in_its_text(minutes: int, used: int, expected: str) -> None:
    said = timed(minutes, max_tokens=50_000, tokens_used=used).render()
    assert said.partition("_Generated after tool call #0_\n\n")[2] == joined(expected)


@pytest.mark.spec("TO-012")
@pytest.mark.parametrize(
    ("budget", "summary", "severity"),
    [
        ({}, "No resource constraints configured.", "info"),
        (
            {"max_cost_nanos": 2 * NANOS_PER_USD, "cost_nanos": 3 * NANOS_PER_USD // 2},
            "You have spent $1.50 of $2.00 (75% of budget). $0.50 remaining.",
            "caution",
        ),
        (
            {"max_cost_nanos": 20_000_000, "cost_nanos": 300_000},
            "You have spent $0.0003 of $0.02 (1% of budget). $0.0197 remaining.",
            "info",
        ),
        (
            {"max_cost_nanos": 2 * NANOS_PER_USD, "cost_nanos": 2 * NANOS_PER_USD},
            "You have exhausted your cost budget.",
            "warning",
        ),
        ({"max_cost_nanos": 2 * NANOS_PER_USD, "cost_nanos": None}, "No resource constraints configured.", "info"),
        (
            {"max_steps": 2000, "steps_used": 1000},
            "You have taken 1,000 of 2,000 allowed steps. 1,000 steps remaining.",
            "info",
        ),
        (
            {"max_tool_calls": 80_000, "tool_calls_used": 2_500},
            "You have made 2,500 of 80,000 allowed tool calls. 77,500 calls remaining.",
            "info",
        ),
        ({"max_steps": 20, "steps_used": 20}, "You have exhausted your step budget.", "warning"),
        ({"max_tool_calls": 20, "tool_calls_used": 21}, "You have exhausted your tool call budget.", "warning"),
        (
            {"max_tool_calls": 10, "tool_calls_used": 9},
            "You have made 9 of 10 allowed tool calls. 1 call remaining.",
            "warning",
        ),
        (
            {"max_tool_calls": 1},
            "You have made 0 of 1 allowed tool call. 1 call remaining.",
            "info",
        ),
        ({"max_tokens": 20, "tokens_used": 20}, "You have exhausted your token budget.", "warning"),
        (
            {"max_tokens": 1_000_000, "tokens_used": 999_999},
            "You have used 999,999 of 1,000,000 tokens (99% of budget). 1 token remaining.",
            "warning",
        ),
        (
            {"max_input_tokens": 80_000, "input_tokens_used": 60_000},
            "You have used 60,000 of 80,000 input tokens (75% of budget). 20,000 input tokens remaining.",
            "caution",
        ),
        (
            {"max_output_tokens": 1_000, "output_tokens_used": 999},
            "You have used 999 of 1,000 output tokens (99% of budget). 1 output token remaining.",
            "warning",
        ),
        ({"max_input_tokens": 5, "input_tokens_used": 9}, "You have exhausted your input token budget.", "warning"),
        ({"max_output_tokens": 5, "output_tokens_used": 5}, "You have exhausted your output token budget.", "warning"),
        ({"max_turns": 20, "turns_used": 19}, "You have taken 19 of 20 allowed turns. 1 turn remaining.", "warning"),
        ({"max_turns": 20, "turns_used": 20}, "You have exhausted your turn budget.", "warning"),
        ({"max_retries": 20}, "No resource constraints configured.", "info"),
        (
            {"max_retries": 20, "retries_used": 1},
            "You have used 1 of 20 allowed retries. 19 retries remaining.",
            "info",
        ),
        (
            {"max_retries": 20, "retries_used": 19},
            "You have used 19 of 20 allowed retries. 1 retry remaining.",
            "warning",
        ),
        ({"max_retries": 2, "retries_used": 2}, "You have exhausted your retry budget.", "warning"),
        ({"remaining_seconds": 0.0, "elapsed_seconds": 0.0}, "You have reached the time deadline.", "warning"),
    ],
)
def test_every_limit_has_its_sentence(budget: dict[str, Any], summary: str, severity: str) -> None:
    said = observed(**budget)
    assert (said.summary, said.severity) == (summary, severity)


def test_the_tightest_limit_decides() -> None:
    said = timed(25, max_tokens=100, tokens_used=10, max_tool_calls=10, tool_calls_used=9)
    assert said.severity == "warning"
    assert len(said.suggestions) == 2


def test_thresholds_can_be_chosen() -> None:
    strict = ResourceObserver(caution_threshold=0.9, warning_threshold=0.8, name="Strict")
    assert observed(strict, max_tokens=100, tokens_used=15).severity == "caution"
    assert observed(strict, max_tokens=100, tokens_used=20).severity == "warning"
    assert observed(strict, max_tokens=100, tokens_used=5).observer_name == "Strict"


@pytest.mark.spec("TO-012")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"caution_threshold": 0}, "caution_threshold=0"),
        ({"warning_threshold": 1.5}, "warning_threshold=1.5"),
        ({"caution_threshold": 0.1, "warning_threshold": 0.2}, "must not exceed caution_threshold=0.1"),
        ({"name": "   "}, r"ResourceObserver\(name='   '\) must have a name"),
        ({"name": None}, r"ResourceObserver\(name=None\) must have a name"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        ResourceObserver(**fields)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "less than a second"),
        (1, "1 second"),
        (59.9, "59 seconds"),
        (60, "1 minute"),
        (3599, "59 minutes"),
        (3600, "1 hour"),
        (5400, "1.5 hours"),
        (2 * 3600, "2 hours"),
        (86_399, "23.9 hours"),
        (86_400, "1 day"),
        (36 * 3600, "1.5 days"),
        (48 * 3600, "2 days"),
    ],
)
def test_time_is_written_as_the_specification_writes_it(seconds: float, said: str) -> None:
    assert format_remaining(seconds) == said


@given(st.integers(1, 10**18), st.integers(1, 10**18))
def test_a_hundred_percent_is_said_only_of_what_is_used_up(most: int, left: int) -> None:
    summary = observed(max_tokens=most, tokens_used=max(most - left, 0)).summary
    assert "100%" not in summary
    assert "exhausted" not in summary


@given(st.floats(0, 1e8), st.floats(0, 1e8))
def test_a_shorter_time_is_never_written_like_a_longer_one_of_a_smaller_unit(one: float, other: float) -> None:
    units = ["second", "minute", "hour", "day"]
    less, more = (format_remaining(each).rpartition(" ")[2].rstrip("s") for each in sorted((one, other)))
    assert units.index(less) <= units.index(more)


def test_the_sentences_stand_in_one_order_after_that_of_the_time() -> None:
    used: dict[str, Any] = dict.fromkeys(
        ("tokens_used", "input_tokens_used", "output_tokens_used", "tool_calls_used", "steps_used", "turns_used"), 1
    )
    most: dict[str, Any] = dict.fromkeys(
        ("max_tokens", "max_input_tokens", "max_output_tokens", "max_cost_nanos", "max_tool_calls", "max_steps"), 100
    )
    summary = timed(25, **used, **most, max_turns=100, max_retries=100, retries_used=1).summary
    words = ["deadline", "tokens", "input", "output", "spent", "tool calls", "steps", "turns", "retries"]
    places = [summary.index(word) for word in words]
    assert places == sorted(places)
    assert summary.count("remaining") == len(words)


@given(st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_severity_grows_with_use_and_never_falls(most: int, used: int) -> None:
    order = ["info", "caution", "warning"]
    less = observed(max_tokens=most, tokens_used=used // 2)
    more = observed(max_tokens=most, tokens_used=used)
    assert order.index(less.severity) <= order.index(more.severity)
