"""One tree of errors, each with what a caller needs to act on it."""

from __future__ import annotations

import copy
import pickle

import pytest

from watchkeeper.core import errors
from watchkeeper.core.errors import (
    RETRYABLE_FAULTS,
    BudgetExceededError,
    ConfigurationError,
    DeadlineExceededError,
    MissingExtraError,
    OutputParseError,
    PromptEvaluationError,
    ProviderError,
    RunStoppedError,
    Stop,
    ThrottleError,
    WatchkeeperError,
)

STOP = Stop("timeout", "gate", "The run reached its deadline of 1h.", "deadline", "1h")
EVERY = [
    ConfigurationError("wrong"),
    MissingExtraError("the OpenAI adapter", "openai"),
    PromptEvaluationError("m", phase="preflight", prompt_name="ns/key", provider_payload={"deadline": "x"}),
    DeadlineExceededError("late", provider_payload={"deadline": "x"}),
    BudgetExceededError("spent", prompt_name="ns/key"),
    OutputParseError("no", raw="{"),
    ProviderError("down", fault="server", provider="openai", status=500, billed=True),
    ThrottleError("slow down", provider="openai", retry_after=2.5),
    RunStoppedError("stopped", stop=STOP, result={"spent": 1}),
]


def all_errors() -> list[type[BaseException]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__
    ]


@pytest.mark.spec("NE-017", "FR-001")
def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = errors.__doc__ or ""
    for error in all_errors():
        line = next(line for line in drawn.splitlines() if f" {error.__name__} " in f"{line.replace('─', ' ')} ")
        depth = max(line.find("├"), line.find("└"), 0)
        ancestors = [parent for parent in error.__mro__ if issubclass(parent, WatchkeeperError)]
        assert depth == (0 if error is WatchkeeperError else 4 + 3 * (len(ancestors) - 2)), line


def test_everything_descends_from_one_root() -> None:
    assert all(issubclass(error, WatchkeeperError) for error in all_errors())


def test_a_configuration_error_is_a_value_error() -> None:
    assert issubclass(ConfigurationError, ValueError)


@pytest.mark.spec("NE-017")
def test_evaluation_errors_know_their_phase() -> None:
    phases = {type(error).__name__: error.phase for error in EVERY if isinstance(error, PromptEvaluationError)}
    assert phases == {
        "PromptEvaluationError": "preflight",
        "DeadlineExceededError": "deadline",
        "BudgetExceededError": "budget",
        "OutputParseError": "response",
        "ProviderError": "request",
        "ThrottleError": "request",
    }


def test_the_facts_stand_beside_the_message() -> None:
    throttled = ThrottleError("slow down", provider="openai", retry_after=2.5)
    assert (throttled.fault, throttled.status, throttled.retry_after) == ("rate_limit", 429, 2.5)
    assert throttled.provider_payload == {"provider": "openai", "status": 429}
    parse = OutputParseError("no", raw="{")
    assert (parse.raw, parse.message, parse.provider_payload) == ("{", "no", {"raw": "{"})
    assert parse.stop is None


@pytest.mark.spec("FR-103")
def test_a_missing_extra_names_the_command_that_brings_it() -> None:
    assert str(EVERY[1]) == ("the OpenAI adapter needs an optional dependency: pip install 'watchkeeper[openai]'")


@pytest.mark.parametrize("fault", ["auth", "context_full", "bad_request", "refused"])
def test_what_will_fail_again_is_not_retryable(fault: errors.ProviderFault) -> None:
    assert not ProviderError("m", fault=fault).retryable


@pytest.mark.parametrize("fault", sorted(RETRYABLE_FAULTS))
def test_what_may_pass_is_retryable(fault: errors.ProviderFault) -> None:
    assert ProviderError("m", fault=fault).retryable


@pytest.mark.spec("FR-001")
@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_errors_travel_between_processes_whole(error: WatchkeeperError) -> None:
    for arrived in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)
        assert vars(arrived) == vars(error)
