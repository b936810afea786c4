"""Scores by criteria: each asked once, in a range, added up by code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import Report, Say, ScriptedModel
from watchkeeper.accounting.budget import Budget
from watchkeeper.core.clock import TestClock
from watchkeeper.core.codec import decode, encode
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.judging import Criterion, NestedEvaluator, NestedExecutionContext, Rubric
from watchkeeper.loop.run import Adapter
from watchkeeper.prompt.output import output_schema
from watchkeeper.session.session import Session

RUBRIC = Rubric([Criterion("accuracy", "Every fact is right.", 3), Criterion("tone", "Costs $0 and is kind.")], most=4)


def scores(**given: int) -> dict[str, Any]:
    return {name: {"reason": f"because of {name}", "score": score} for name, score in given.items()}


def read(answer: Any) -> Any:
    return decode(encode(answer), RUBRIC.template.output_type)


@pytest.mark.spec("NE-038")
async def test_a_model_scores_each_criterion_and_code_adds_them_up() -> None:
    model = ScriptedModel([Say(scores(accuracy=4, tone=0))])
    nested = NestedExecutionContext(Session(clock=TestClock()), budget=Budget(max_total_tokens=8_000))
    prompt = RUBRIC.prompt("Report.", Report(3, "fine"))
    said = await NestedEvaluator(Adapter(model), prompt=prompt, context=nested).evaluate_async()
    result = RUBRIC.result(said.output)
    assert dict(result.scores) == {"accuracy": 4, "tone": 0}
    assert result.reasons["tone"] == "because of tone"
    assert result.total == 0.75
    text = model.requests[0].transcript[0].text
    assert "- accuracy: Every fact is right.\n- tone: Costs $0 and is kind." in text
    assert '{"total":3,"note":"fine"}' in text
    assert "from 0 (not at all) to 4 (fully)" in text


@given(st.integers(0, 4), st.integers(0, 4))
def test_the_total_is_the_weighted_mean_as_a_share_of_the_most(accuracy: int, tone: int) -> None:
    result = RUBRIC.result(read(scores(accuracy=accuracy, tone=tone)))
    assert result.total == pytest.approx((3 * accuracy + tone) / 16)
    assert 0 <= result.total <= 1


@pytest.mark.parametrize(
    "answer",
    [
        scores(accuracy=5, tone=0),
        scores(accuracy=-1, tone=0),
        scores(accuracy=4),
        {"accuracy": {"reason": "", "score": "4"}, "tone": {"reason": "", "score": 0}},
        {"accuracy": {"reason": "", "score": 2.5}, "tone": {"reason": "", "score": 0}},
    ],
    ids=["too-high", "too-low", "one-left-out", "text", "fraction"],
)
def test_scores_out_of_range_or_left_out_do_not_fit(answer: Any) -> None:
    with pytest.raises(Exception, match=r"accuracy|tone"):
        read(answer)


def test_the_schema_names_every_criterion_and_every_step() -> None:
    schema = output_schema(RUBRIC.template.output_type)
    assert schema is not None
    assert schema.schema["required"] == ["accuracy", "tone"]
    assert b'"enum":[0,1,2,3,4]' in msgspec.json.encode(schema.schema)


@pytest.mark.parametrize("answer", [None, SimpleNamespace(accuracy=1), {"accuracy": 1}], ids=["none", "other", "dict"])
def test_what_is_no_answer_to_the_rubric_is_refused(answer: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no answer to this rubric"):
        RUBRIC.result(answer)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Rubric([]), "needs criteria"),
        (lambda: Rubric([Criterion("a", "A."), Criterion("a", "B.")]), "a name of its own"),
        (lambda: Rubric([Criterion("a", "A.")], most=0), "from 1 to 10"),
        (lambda: Rubric([Criterion("a", "A.")], most=100), "from 1 to 10"),
        (lambda: Criterion("two words", "A."), "must be a word"),
        (lambda: Criterion("class", "A."), "must be a word"),
        (lambda: Criterion("a", " "), "has no description"),
        (lambda: Criterion("a", "A.", 0), "weight=0"),
        (lambda: Criterion("a", "A.", float("nan")), "weight=nan"),
    ],
    ids=["none", "twice", "no-scale", "fine-scale", "name", "keyword", "description", "weight", "nan"],
)
def test_a_rubric_that_could_not_be_asked_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make()
