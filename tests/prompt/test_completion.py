"""Whether the work is done."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

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
    verdict_of,
)
from watchkeeper.session.session import Session
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.filesystems import MemoryFilesystem


def context(filesystem: Filesystem | None = None, output: Any = None) -> TaskCompletionContext:
    return TaskCompletionContext(session=Session(), tentative_output=output, filesystem=filesystem)


def done(given: TaskCompletionContext) -> bool:
    return bool(given.tentative_output == "done")


async def done_later(given: TaskCompletionContext) -> bool:
    return bool(given.tentative_output == "done")


@pytest.mark.spec("NE-020")
def test_verdicts_have_a_status_and_a_reason() -> None:
    assert TaskCompletionResult.ok() == TaskCompletionResult("complete", "")
    assert TaskCompletionResult.incomplete("one is missing").status == "incomplete"
    assert TaskCompletionResult.unverified("no files").explanation == "no files"


def test_on_the_record_a_word_is_a_verdict_and_only_complete_is_a_pass() -> None:
    words = (TaskCompletionResult.ok(), TaskCompletionResult.incomplete("no"), TaskCompletionResult.unverified("why"))
    assert [word.verdict for word in words] == ["verified", "rejected", "unverified"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ValueError("oops"), "the checker failed: ValueError: oops"),
        (True, "the checker failed: TypeError: check() must return a TaskCompletionResult, not True"),
        (None, "check() must return a TaskCompletionResult, not None"),
        ("complete", "check() must return a TaskCompletionResult, not 'complete'"),
        (TaskCompletionResult(cast("Any", "passed")), "must return a TaskCompletionResult, not TaskCompletionResult("),
    ],
    ids=["raises", "true", "none", "text", "unknown-status"],
)
async def test_whatever_is_no_verdict_is_unverified(answer: Any, why: str, kind: str) -> None:
    class Sync:
        def check(self, context: TaskCompletionContext) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    class Async:
        async def check(self, context: TaskCompletionContext) -> Any:
            return Sync().check(context)

    result = await verdict_of(Sync() if kind == "sync" else Async(), context())
    assert result.status == "unverified"
    assert why in result.explanation


async def test_a_cancelled_check_is_cancelled_and_no_verdict() -> None:
    class Hangs:
        async def check(self, context: TaskCompletionContext) -> TaskCompletionResult:
            await asyncio.Event().wait()
            return TaskCompletionResult.ok()

    asking = asyncio.ensure_future(verdict_of(Hangs(), context()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_what_an_error_means_is_stated_at_the_checker() -> None:
    assert on_error_of(FileOutputChecker(["a"])) == on_error_of(PredicateChecker(done, "it is done")) == "open"
    assert on_error_of(FileOutputChecker(["a"], on_error="closed")) == "closed"
    assert on_error_of(PredicateChecker(done, "it is done", on_error="closed")) == "closed"
    assert on_error_of(object()) == "open"


@pytest.mark.parametrize("policy", ["close", None, True])
def test_a_policy_that_is_none_is_refused_when_the_checker_is_made(policy: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"FileOutputChecker: on_error=.* must be 'open' or 'closed'"):
        FileOutputChecker(["a"], on_error=policy)
    with pytest.raises(ConfigurationError, match=r"PredicateChecker: on_error=.* must be 'open' or 'closed'"):
        PredicateChecker(done, "it is done", on_error=policy)


def test_both_built_in_checkers_fit_the_protocol() -> None:
    assert isinstance(FileOutputChecker(["a"]), TaskCompletionChecker)
    assert isinstance(PredicateChecker(done, "it is done"), TaskCompletionChecker)


class TestFiles:
    def test_all_files_there_is_complete(self) -> None:
        files = MemoryFilesystem({"report.md": "text", "data/out.csv": "a,b"})
        checker = FileOutputChecker(["report.md", "data/out.csv"])
        assert checker.check(context(files.read_only_view())) == TaskCompletionResult.ok("all 2 files are there")

    def test_one_file_is_not_counted(self) -> None:
        files = MemoryFilesystem({"report.md": "text"})
        assert FileOutputChecker(["report.md"]).check(context(files)) == TaskCompletionResult.ok("the file is there")

    @pytest.mark.spec("FR-045")
    def test_missing_and_empty_files_are_named(self) -> None:
        files = MemoryFilesystem({"report.md": "", "folder/x": "1"})
        result = FileOutputChecker(["report.md", "folder", "summary.md"]).check(context(files))
        assert result == TaskCompletionResult.incomplete(
            "these files are expected: missing: folder, summary.md; empty: report.md"
        )

    def test_without_files_to_look_at_nobody_can_tell(self) -> None:
        assert FileOutputChecker(["a"]).check(context()).status == "unverified"

    @pytest.mark.parametrize("files", [[], (), "report.md"])
    def test_a_checker_that_checks_nothing_is_refused(self, files: Any) -> None:
        with pytest.raises(ConfigurationError, match="FileOutputChecker needs a list of paths"):
            FileOutputChecker(files)


class TestPredicate:
    @pytest.mark.spec("FR-045")
    def test_it_says_what_holds_or_does_not_hold_yet(self) -> None:
        checker = PredicateChecker(done, "every message has a record")
        assert checker.check(context(output="done")) == TaskCompletionResult.ok("every message has a record")
        assert checker.check(context(output="no")) == TaskCompletionResult.incomplete(
            "this does not hold yet: every message has a record"
        )

    def test_a_predicate_may_give_a_verdict_of_its_own(self) -> None:
        verdict = TaskCompletionResult.incomplete("two records are missing")
        assert PredicateChecker(lambda _: verdict, "all filed").check(context()) is verdict

    @pytest.mark.parametrize("said", ["not done", 1, None, [False]], ids=["text", "number", "none", "list"])
    async def test_what_is_no_bool_verifies_nothing(self, said: Any) -> None:
        verdict = await verdict_of(PredicateChecker(lambda _: said, "it is done"), context())
        assert verdict.status == "unverified"
        assert "the predicate must return True, False or a TaskCompletionResult" in verdict.explanation

    async def test_an_async_predicate_is_awaited(self) -> None:
        checker = PredicateChecker(done_later, "it is done")
        answer = checker.check(context(output="done"))
        assert inspect.isawaitable(answer)
        assert await answer == TaskCompletionResult.ok("it is done")


# --- Several checkers as one ---


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
