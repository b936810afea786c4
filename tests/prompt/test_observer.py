"""What a template says of observers: whatever cannot work is refused when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from watchkeeper.core.errors import ObserverError
from watchkeeper.prompt.advice import Assessment, Feedback
from watchkeeper.prompt.observer import (
    Escalation,
    FeedbackProviderConfig,
    ObserverConfig,
    ObserverTrigger,
)
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate

ALWAYS = ObserverTrigger(on_every_call=True)
SECTIONS = [MarkdownSection(title="T", key="t", template="x")]


@dataclass(frozen=True)
class Watcher:
    """Says hello."""

    name: str = "Watcher"

    def should_run(self, session: Any, *, context: Any) -> bool:
        return True

    def observe(self, session: Any, *, context: Any) -> Assessment:
        return Assessment(self.name, "hello")


@dataclass(frozen=True)
class Judge:
    """Says hello."""

    name: str = "Judge"

    def should_run(self, *, context: Any) -> bool:
        return True

    def provide(self, *, context: Any) -> Feedback:
        return Feedback(self.name, "hello")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "a trigger without a condition never fires"),
        ({"on_every_call": False}, "never fires"),
        ({"every_n_calls": 0}, "every_n_calls=0 must be a whole number of at least 1"),
        ({"every_n_calls": -3}, "every_n_calls=-3"),
        ({"every_n_calls": 1.5}, "every_n_calls=1.5"),
        ({"after_consecutive_errors": 0}, "after_consecutive_errors=0"),
        ({"every_n_seconds": 0}, "every_n_seconds=0 must be a finite number above 0"),
        ({"every_n_seconds": float("inf")}, "every_n_seconds=inf"),
        ({"every_n_seconds": float("nan")}, "every_n_seconds=nan"),
        ({"at_limit_share": 0.0}, "at_limit_share=0.0 must be above 0 and at most 1"),
        ({"at_limit_share": (0.5, 80)}, "at_limit_share=80"),
        ({"at_limit_share": ()}, "never fires"),
        ({"when_file_exists": " "}, "names no file"),
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        ObserverTrigger(**fields)


def test_shares_are_sorted() -> None:
    assert ObserverTrigger(at_limit_share=(0.8, 0.5)).shares == (0.5, 0.8)
    assert ObserverTrigger(at_limit_share=0.8).shares == (0.8,)
    assert ALWAYS.shares == ()
    assert ObserverTrigger(every_n_calls=1, when_file_exists="x").conditions == ("every_n_calls", "when_file_exists")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"after": 0}, "Escalation.after=0"),
        ({"severity": "fatal"}, "Escalation.severity='fatal'"),
        ({"action": "shout"}, "Escalation.action='shout' must be one of stop, switch_model, call"),
        ({"action": "call"}, "Escalation.call is needed for action='call'"),
        ({"action": "switch_model"}, "Escalation.model is needed"),
        ({"action": "stop", "model": "local"}, "Escalation.model means nothing for action='stop'"),
        ({"action": "call", "call": 3}, "Escalation.call=3 cannot be called"),
    ],
)
def test_an_escalation_that_could_not_happen_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        Escalation(**fields)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ObserverConfig(object(), ALWAYS), "has no name"),  # type: ignore[arg-type]
        (lambda: ObserverConfig(Watcher(""), ALWAYS), "has no name"),
        (lambda: ObserverConfig(Judge(), ALWAYS), r"'Judge' has no method observe\(\)"),  # type: ignore[arg-type]
        (lambda: FeedbackProviderConfig(Watcher(), ALWAYS), r"has no method provide\(\)"),  # type: ignore[arg-type]
        (lambda: ObserverConfig(Watcher(), 5), "trigger=5 of 'Watcher' must be ObserverTrigger"),  # type: ignore[arg-type]
        (lambda: ObserverConfig(Watcher(), ALWAYS, max_age_calls=0), "max_age_calls of 'Watcher'=0"),
        (lambda: ObserverConfig(Watcher(), ALWAYS, time_limit="soon"), "time_limit of 'Watcher'"),
        (lambda: ObserverConfig(Watcher(), ALWAYS, escalate="stop"), "must be Escalation"),  # type: ignore[arg-type]
    ],
)
def test_a_source_that_could_not_be_asked_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        make()


def test_a_template_holds_observers_and_providers() -> None:
    watcher, judge = ObserverConfig(Watcher(), ALWAYS), FeedbackProviderConfig(Judge(), ALWAYS)
    template = PromptTemplate(ns="a", key="b", sections=SECTIONS, observers=[watcher], feedback_providers=[judge])
    assert template.sources == (watcher, judge)
    assert (watcher.source, watcher.name, watcher.limit_seconds) == (Watcher(), "Watcher", 2.0)
    assert (judge.source, judge.name, judge.limit_seconds) == (Judge(), "Judge", 60.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"observers": [ObserverConfig(Watcher(), ALWAYS)] * 2}, "prompt 'a/b': two .* are called 'Watcher'"),
        ({"observers": [Watcher()]}, "observers holds Watcher.*wrap it"),
        ({"observers": ObserverConfig(Watcher(), ALWAYS)}, "observers must be a list or tuple"),
        ({"feedback_providers": [ObserverConfig(Watcher(), ALWAYS)]}, "feedback_providers holds ObserverConfig"),
        ({"observers": 3}, "observers must be a list or tuple"),
    ],
)
def test_a_template_refuses_what_is_no_source(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        PromptTemplate(ns="a", key="b", sections=SECTIONS, **fields)
