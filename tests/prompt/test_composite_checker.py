"""Several checkers as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.model import CompletionStatus
from watchkeeper.prompt.completion import (
    CompositeChecker,
    FileOutputChecker,
    Mode,
    OnError,
    PredicateChecker,
    TaskCompletionChecker,
    TaskCompletionContext,
    TaskCompletionResult,
    asks_model,
    on_error_of,
)
from watchkeeper.session.session import Session

Word = Literal["complete", "incomplete", "unverified", "raises", "nonsense"]
WORDS: tuple[Word, ...] = ("complete", "incomplete", "unverified", "raises", "nonsense")
CONTEXT = TaskCompletionContext(session=Session(), tentative_output="done")


@dataclass
class Part:
    """A checker that says a word, and remembers that it was asked."""

    word: Word
    name: str = "part"
    asked: list[str] = field(default_factory=list[str])
    on_error: OnError = "open"

    def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
        assert context is CONTEXT
        self.asked.append(self.name)
        if self.word == "raises":
            raise ValueError("oops")
        if self.word == "nonsense":
            return True  # type: ignore[return-value] # pyright: ignore[reportReturnType]
        return TaskCompletionResult(self.word, f"{self.name} is {self.word}")


class Later(Part):
    """The same on the loop."""

    async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return Part.check(self, context)


@dataclass
class Judge(Part):
    """A checker that says that it asks a model."""

    asks_model: bool = True


def expected(words: Sequence[Word], mode: Mode) -> CompletionStatus:
    """Three-valued logic: a part that fails is unverified."""
    found = {word if word in ("complete", "incomplete") else "unverified" for word in words}
    decisive: CompletionStatus = "incomplete" if mode == "all" else "complete"
    if decisive in found:
        return decisive
    if "unverified" in found:
        return "unverified"
    return "complete" if mode == "all" else "incomplete"


MODES: tuple[Mode, ...] = ("all", "any")


@pytest.mark.spec("FR-159")
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), mode=st.sampled_from(MODES), data=st.data())
async def test_an_undecided_part_never_makes_the_whole_complete(
    words: list[Word], mode: Mode, data: st.DataObject
) -> None:
    asked: list[str] = []
    kinds = data.draw(st.lists(st.sampled_from((Part, Later)), min_size=len(words), max_size=len(words)))
    parts = [kind(word, str(place), asked) for place, (kind, word) in enumerate(zip(kinds, words, strict=True))]
    result = await CompositeChecker(parts, mode).check(CONTEXT)
    assert result.status == expected(words, mode)
    assert result.explanation
    decisive = "incomplete" if mode == "all" else "complete"
    last = words.index(decisive) if decisive in words else len(words) - 1
    assert asked == [str(place) for place in range(last + 1)]


@pytest.mark.parametrize(
    ("words", "mode", "explanation"),
    [
        (("complete", "complete"), "all", "0 is complete; 1 is complete"),
        (("complete", "incomplete", "incomplete"), "all", "1 is incomplete"),
        (("complete", "unverified", "raises"), "all", "1 is unverified; the checker failed: ValueError: oops"),
        (("incomplete", "incomplete"), "any", "0 is incomplete; 1 is incomplete"),
        (("unverified", "complete"), "any", "1 is complete"),
        (("incomplete", "unverified"), "any", "1 is unverified"),
    ],
)
async def test_the_explanation_is_that_of_the_parts_that_decide(
    words: tuple[Word, ...], mode: Mode, explanation: str
) -> None:
    checker = CompositeChecker([Part(word, str(place)) for place, word in enumerate(words)], mode)
    assert (await checker.check(CONTEXT)).explanation == explanation


async def test_explanations_of_several_lines_stand_apart_and_equal_ones_once() -> None:
    def missing(text: str) -> PredicateChecker:
        return PredicateChecker(lambda _: TaskCompletionResult.incomplete(text), "it is done")

    checker = CompositeChecker([missing("one"), missing("two\nlines"), missing("one"), missing("")], "any")
    assert (await checker.check(CONTEXT)).explanation == "one\n\ntwo\nlines"


@pytest.mark.spec("FR-159")
async def test_composites_may_be_parts_of_composites() -> None:
    tests = CompositeChecker([Part("incomplete", "unit"), Part("complete", "end to end")], "any")
    checker = CompositeChecker(part for part in (tests, Part("complete", "files")))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert isinstance(checker, TaskCompletionChecker)
    assert await checker.check(CONTEXT) == TaskCompletionResult.ok("end to end is complete; files is complete")


def test_it_is_closed_if_any_part_is_and_asks_a_model_if_any_part_does() -> None:
    open_, closed, judge = Part("complete"), Part("complete", on_error="closed"), Judge("complete")
    plain = PredicateChecker(lambda _: True, "true")
    assert (on_error_of(CompositeChecker([plain, open_])), asks_model(CompositeChecker([plain]))) == ("open", False)
    deep = CompositeChecker([CompositeChecker([plain, closed]), CompositeChecker([judge])], "any")
    assert (on_error_of(deep), asks_model(deep)) == ("closed", True)


@pytest.mark.parametrize(
    ("checkers", "mode", "problem"),
    [
        ([], "all", "needs at least one checker; without any it would check nothing"),
        (None, "all", "needs a list of checkers, not None"),
        ("tests", "all", "needs a list of checkers, not 'tests'"),
        ([Part("complete"), "tests"], "all", "'tests' is no checker; it needs a method check"),
        ([FileOutputChecker], "all", "is no checker"),
        ([Part("complete")], "most", "mode='most' must be 'all' or 'any'"),
        ([Part("complete")], [], "mode=.* must be 'all' or 'any'"),
        ([Part("complete", on_error="shut")], "all", "Part: on_error='shut' must be 'open' or 'closed'"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    ],
    ids=["empty", "none", "text", "no-checker", "class", "mode", "mode-list", "policy"],
)
def test_what_checks_nothing_is_refused_when_it_is_made(checkers: Any, mode: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        CompositeChecker(checkers, mode)
