"""When the agent repeats itself, and when it only seems to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpus import ask, ask_once, event_of, replay
from tests.corpus.trace import Trace, TracedCall
from watchkeeper.adapters.scripted import Call, Calls, ScriptedModel
from watchkeeper.app.run import run
from watchkeeper.core.errors import ObserverError
from watchkeeper.core.model import ModelRequest
from watchkeeper.observers.stall import EDGE, LONGEST, LOOKED_BACK, MEMORY, StallDetector, edges_of, what_lasts
from watchkeeper.prompt.advice import SEVERITIES, Assessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.prompt.trajectory import KEPT_CALLS, Trajectory
from watchkeeper.runtime.events import AdviceAcknowledged
from watchkeeper.session.session import Session
from watchkeeper.tools.context import ToolInvoked
from watchkeeper.tools.tool import tool

STALL = StallDetector()


def ok(tool: str, result: str = "ok", **arguments: Any) -> TracedCall:
    """A call that succeeded."""
    return TracedCall(tool, arguments, result)


def bad(tool: str, result: str = "no", **arguments: Any) -> TracedCall:
    """A call that failed."""
    return TracedCall(tool, arguments, result, success=False)


def kind_of(assessment: Assessment | None) -> str:
    """Return the category of what was said."""
    return "" if assessment is None else assessment.observations[0].category


def wanted(*calls: TracedCall) -> list[bool]:
    """Return after which calls it wants to be asked."""
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory)
    assert not STALL.should_run(session, context=context)
    assert STALL.observe(session, context=context) is None
    asked: list[bool] = []
    for number, call in enumerate(calls, 1):
        session.dispatch(event := event_of(call, number))
        trajectory.add(event)
        asked.append(STALL.should_run(session, context=context))
        assert STALL.should_run(session, context=context) is asked[-1], "asking changes nothing"
    return asked


@pytest.mark.spec("TO-013")
def test_one_call_repeated_is_a_loop() -> None:
    said = ask(STALL, [ok("open", path="a"), *[ok("look", "dark", room=3)] * 4])
    assert said is not None
    assert said.observer_name == "Stall"
    assert said.severity == "caution"
    assert said.summary == (
        "You seem to be going in circles: look was called 4 times in a row with the same arguments and result."
    )
    (seen,) = said.observations
    assert seen.category == "loop"
    assert seen.description == "look was called 4 times in a row with the same arguments and result."
    assert seen.evidence == "#2 look(room=3)\n#3 look(room=3)\n#4 look(room=3)\n#5 look(room=3)"
    assert said.suggestions == (
        "What you have seen will not change by asking again: use it, or try something else.",
        "If you are waiting for something, do other work meanwhile and look again later.",
        "If you cannot get further, say what is missing and finish with what you have.",
    )


@pytest.mark.parametrize(
    ("times", "severity", "said"),
    [
        (3, None, ""),
        (4, "caution", "4 times"),
        (7, "caution", "7 times"),
        (8, "warning", "8 times"),
        (LONGEST - 1, "warning", f"{LONGEST - 1} times"),
        (LONGEST, "warning", f"at least {LONGEST} times"),
        (KEPT_CALLS * 3, "warning", f"at least {LONGEST} times"),
    ],
)
def test_the_longer_the_graver(times: int, severity: str | None, said: str) -> None:
    assessment = ask(STALL, [ok("look", "dark")] * times)
    assert (assessment and assessment.severity) == severity
    assert assessment is None or said in assessment.summary


@pytest.mark.spec("TO-013")
def test_polling_whose_result_changes_is_no_stall() -> None:
    assert ask(STALL, [ok("status", f"{n} of 90 done", job=1) for n in range(90)]) is None
    assert ask(STALL, [ok("status", f"{n // 3} %", job=1) for n in range(90)]) is None


def test_equal_results_of_different_calls_are_no_stall() -> None:
    assert ask(STALL, [ok("write", "written", path=f"f{n}") for n in range(90)]) is None


def test_waiting_between_looks_does_not_hide_a_loop() -> None:
    rounds = [ok("wait", "waited", s=5), ok("status", "pending", job=1)]
    assert ask(STALL, rounds * 3) is None
    said = ask(STALL, [ok("start"), *rounds * 4])
    assert said is not None
    assert kind_of(said) == "thrashing"
    assert said.severity == "caution"
    assert "wait and status were called in turn, 4 times, with the same results" in said.summary
    assert said.observations[0].evidence is not None
    assert said.observations[0].evidence.startswith("#2 wait(s=5)\n#3 status(job=1)\n")
    graver = ask(STALL, rounds * 8)
    assert graver is not None
    assert graver.severity == "warning"
    assert "8 times" in graver.summary


@pytest.mark.spec("TO-013")
def test_rounds_are_counted_whole() -> None:
    rounds = [ok("a"), ok("b")] * 4
    assert kind_of(ask(STALL, [ok("b"), *rounds])) == "thrashing"
    assert kind_of(ask(STALL, rounds[1:])) == ""
    said = ask(STALL, [ok("b"), *rounds])
    assert said is not None
    assert "called in turn, 4 times" in said.summary


def test_a_failure_that_comes_back_whatever_is_tried_is_a_stall() -> None:
    tries = [call for n in range(5) for call in (ok("edit", text=f"try {n}"), bad("test", f"red in 0.{n}1s"))]
    assert kind_of(ask(STALL, tries[:-2])) == ""
    said = ask(STALL, tries)
    assert said is not None
    assert kind_of(said) == "stall"
    assert "test failed 5 times in the same way, whatever you did in between" in said.summary
    assert said.observations[0].evidence is not None
    assert "#10 test()" in said.observations[0].evidence
    assert ask(STALL, tries[:-1]) is None, "the newest call may be what helps"


def test_a_success_between_begins_the_count_anew() -> None:
    def tries(count: int) -> list[TracedCall]:
        return [call for n in range(count) for call in (ok("edit", text=f"{count} {n}"), bad("test", "red"))]

    assert ask(STALL, [*tries(3), ok("test", "green"), *tries(4)]) is None
    assert ask(STALL, [*tries(3), bad("test", "amber"), *tries(4)]) is None


@pytest.mark.spec("TO-013")
def test_a_window_in_which_nothing_is_new_is_a_stall() -> None:
    three = [ok("read", "A", path="a"), ok("read", "B", path="b"), ok("list", "a b")]
    assert ask(STALL, three * 4) is None
    said = ask(STALL, three * 5)
    assert said is not None
    assert (kind_of(said), said.severity) == ("stall", "caution")
    assert said.summary == (
        "You seem to be going in circles: nothing of what the last 10 calls brought was new; "
        "list alone was called 4 times with the same arguments."
    )
    assert said.observations[0].evidence == "#6 list()\n#9 list()\n#12 list()\n#15 list()"
    assert ask(STALL, [*three * 5, ok("read", "C", path="c")]) is None, "it tries something new"


def test_more_novelty_may_be_asked_for() -> None:
    calls = [ok("read", "A", path="a"), ok("read", "B", path="b"), ok("list", "a b")] * 5
    calls[-5] = ok("new")
    assert ask(STALL, calls) is None
    said = ask(StallDetector(novelty=0.2), calls)
    assert said is not None
    assert "only 1 of what the last 10 calls brought was new" in said.summary


def test_what_was_seen_long_ago_may_be_read_again() -> None:
    first = [ok("read", f"{n}", path=f"f{n}") for n in range(MEMORY + 12)]
    assert ask(STALL, [*first, *first[:12]]) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3 failed in 0.12s", "3 failed in 0.29s", True),
        ("3 failed in 12 ms", "3 failed in 9 ms", True),
        ("3 failed in 1.5 seconds", "3 failed in 2.25 seconds", True),
        ("[10:00:01] waiting", "[10:00:09] waiting", True),
        ("at 2026-03-01T10:00:01Z", "at 2026-03-02T11:30:00.123+01:00", True),
        ("at 2026-03-01 10:00:01 no", "at 2026-03-02 10:00:01 no", True),
        ("<Job at 0x7f3a>", "<Job at 0x9e01>", True),
        ("id 0b5c9a6e-1111-4222-8333-444455556666", "id 1b5c9a6e-1111-4222-8333-444455556666", True),
        ("3 failed in 0.12s", "2 failed in 0.12s", False),
        ("ready in 20 s", "ready in 10 s", False),
        ("45%", "46%", False),
        ("on 2026-03-01", "on 2026-03-02", False),
        ("a b", "a b c", False),
        ("", "", True),
    ],
)
def test_times_and_addresses_are_nothing_new(one: str, other: str, same: bool) -> None:
    assert (what_lasts(one) == what_lasts(other)) is same
    assert (edges_of(one) == edges_of(other)) is same
    said = ask(STALL, [ok("look", text) for text in (one, other, one, other)])
    assert (said is not None) is same


@given(st.text("0123456789:.smTZx-+ ", max_size=40), st.text("0123456789:.smTZx-+ ", max_size=40))
def test_blanks_are_nothing_new(one: str, other: str) -> None:
    assert what_lasts(f"{one} {other}") == what_lasts(f" {one}  {other} ")
    assert edges_of(f"{one} {other}") == edges_of(f" {one}  {other}\n")


def test_what_changes_at_the_edge_of_a_result_is_seen_without_reading_it() -> None:
    log = "\n".join(f"10:00:{second} worker {second} idle" for second in range(10, 70))
    what_lasts.cache_clear()
    for results in ([f"{log}\n{n} left" for n in range(20)], [f"step {n}\n{log}\n" for n in range(20)]):
        assert wanted(*(ok("status", result) for result in results)) == [False] * 20
    assert what_lasts.cache_info().misses == 0


@pytest.mark.parametrize("line", ["idle", "x" * (EDGE + 1)], ids=["short lines", "long lines"])
def test_what_changes_in_its_middle_is_seen_all_the_same(line: str) -> None:
    results = [ok("status", f"{line}\nstep {n} since 10:00:{10 + n}\n{line}") for n in range(20)]
    assert any(wanted(*results))
    assert ask(STALL, results) is None
    assert kind_of(ask(STALL, [ok("status", f"{line}\nat 10:00:{10 + n}\n{line}") for n in range(20)])) == "loop"


def test_a_result_is_read_for_its_times_once() -> None:
    what_lasts.cache_clear()
    log = [f"idle\nstep {step} at 10:00:{second}\nidle" for step in range(20) for second in ("01", "09")]
    assert not list(replay(Trace("", ("healthy",), "", tuple(ok("status", line) for line in log)), STALL))
    assert len(log) // 2 < what_lasts.cache_info().misses <= len(log)


def test_long_results_are_compared_letter_by_letter() -> None:
    long = "x" * 5000
    assert ask(STALL, [ok("look", f"{long} 0.{n}1s") for n in range(9)]) is None
    assert kind_of(ask(STALL, [ok("look", long)] * 4)) == "loop"


@pytest.mark.parametrize("piece", ["1", "1.", "1:", "0x", "a", "1-", "1 "])
def test_no_result_takes_long_to_compare(piece: str) -> None:
    results = [piece * 1900 + end for end in "abcdef"]
    for _ in range(20):
        assert ask(STALL, [ok("look", result) for result in results]) is None


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_it_never_speaks_while_every_call_is_new(names: list[str]) -> None:
    assert ask(STALL, [ok(name, number=number) for number, name in enumerate(names)]) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_whatever_it_says_can_be_read(picked: list[tuple[str, bool]]) -> None:
    said = ask(STALL, [TracedCall(name, {}, "x", success=success) for name, success in picked])
    if said is not None:
        assert said.observations[0].evidence
        assert said.severity in ("caution", "warning")


def test_it_looks_only_where_there_may_be_a_pattern() -> None:
    assert wanted(ok("a"), ok("b"), ok("a"), ok("a"), ok("a"), ok("a"), ok("c")) == [*[False] * 5, True, False]
    edits = [call for n in range(9) for call in (ok("edit", n=n), ok("test"))]
    assert not any(wanted(*edits)), "work between equal calls"
    assert sum(wanted(*[bad(call.tool, **call.arguments) for call in edits])) == 5, "every failure of test from the 5th"
    assert wanted(*[ok("a"), ok("b")] * 4) == [*[False] * 7, True]
    assert not any(wanted(ok("b"), *(ok("c", n=n) for n in range(MEMORY)), ok("b")))


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xy"), st.booleans()), max_size=60),
    st.builds(
        StallDetector,
        repeats=st.integers(2, 6),
        rounds=st.integers(2, 4),
        fruitless=st.integers(2, 30),
        window=st.integers(4, 30),
        novelty=st.sampled_from([0.05, 0.1, 0.5]),
    ),
)
def test_it_is_asked_whenever_it_has_something_to_say(
    picked: list[tuple[str, str, bool]], stall: StallDetector
) -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory)
    for number, (name, result, success) in enumerate(picked, 1):
        session.dispatch(event := event_of(TracedCall(name, {}, result, success=success), number))
        trajectory.add(event)
        assert stall.observe(session, context=context) is None or stall.should_run(session, context=context)


PICKED = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xxy"), st.booleans()), max_size=50)


@given(PICKED, st.lists(st.integers(1, LOOKED_BACK), max_size=50))
def test_turns_of_several_calls_hide_nothing(picked: list[tuple[str, str, bool]], sizes: list[int]) -> None:
    calls = [TracedCall(name, {}, result, success=success) for name, result, success in picked]
    alone = dict(replay(Trace("", ("healthy",), "", tuple(calls)), STALL))
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory)
    done = 0
    for size in [*sizes, *[1] * len(calls)]:
        turn = calls[done : done + size]
        if not turn:
            break
        for number, call in enumerate(turn, done + 1):
            session.dispatch(event := event_of(call, number))
            trajectory.add(event)
        each = [alone[number] for number in range(done + 1, done + len(turn) + 1) if number in alone]
        done += len(turn)
        said = STALL.observe(session, context=context) if STALL.should_run(session, context=context) else None
        assert (said is not None) is bool(each)
        if said is not None:
            assert said.severity == max((one.severity for one in each), key=SEVERITIES.index)
            assert said.observations[0].category in {one.observations[0].category for one in each}


@pytest.mark.parametrize("place", range(5))
def test_one_new_call_hides_no_loop_of_the_same_turn(place: int) -> None:
    turns: list[TracedCall] = []
    for number in range(12):
        turn = [ok("search", "nothing", query="invoice")] * 4
        turns += [*turn[:place], ok("search", "nothing", query=f"{number}"), *turn[place:]]
    told = [number for number, _ in replay(Trace("", ("stalled",), "", tuple(turns)), STALL, turn=5)]
    assert told == list(range(5 if place in (0, 4) else 10, 61, 5))


def test_a_loop_that_was_left_is_told_once_and_as_what_it_was() -> None:
    calls = [*[ok("look", "dark", room=3)] * 9, ok("light")]
    said = ask_once(STALL, calls)
    assert said is not None
    assert said.summary == (
        "You seem to have gone in circles: look was called 9 times in a row with the same arguments and result,"
        " up to call #9."
    )
    assert said.severity == "warning"
    new = [ok("walk", step=step) for step in range(30)]
    assert [number for number, _ in replay(Trace("", ("stalled",), "", (*calls, *new)), STALL, 10)] == [10]
    assert ask_once(STALL, [*calls, *new[: LOOKED_BACK - 2]]) is not None
    assert ask_once(STALL, [*calls, *new[: LOOKED_BACK - 1]]) is None, "what is older is stale"


def test_of_several_patterns_the_gravest_is_told_and_then_the_newest() -> None:
    said = ask_once(STALL, [*[ok("a")] * 8, *[ok("b")] * 5])
    assert said is not None
    assert "a was called 8 times" in said.summary
    said = ask_once(STALL, [*[ok("a")] * 5, ok("c"), *[ok("b")] * 4])
    assert said is not None
    assert "b was called 4 times" in said.summary


def continued(calls: list[TracedCall], *facts: Assessment | AdviceAcknowledged) -> Assessment | None:
    """Return what is said first in a session that goes on, in which there were these calls and these facts."""
    session, trajectory = Session(), Trajectory()
    for number, call in enumerate(calls, 1):
        session.dispatch(event_of(call, number))
    for fact in facts:
        session[type(fact)].append(fact)
    trajectory.begin(session[ToolInvoked].all())
    return STALL.observe(session, context=ObserverContext(session, trajectory=trajectory))


def test_when_a_session_goes_on_nothing_is_told_twice_or_against_the_agents_wish() -> None:
    calls = [*[ok("look")] * 5, ok("light"), ok("walk")]
    other, told = Assessment("Other", "x", call_index=6), Assessment("Stall", "x", call_index=5)
    assert continued(calls) is not None
    assert continued(calls, other) is not None
    assert continued(calls, Assessment("Stall", "x", call_index=4), other) is not None, "it went on after that"
    assert continued(calls, told, other) is None
    assert continued(calls, AdviceAcknowledged("Stall", "dismiss", 3, 4)) is None
    assert continued(calls, AdviceAcknowledged("Stall", "dismiss", 1, 3)) is not None
    assert continued(calls, AdviceAcknowledged("Other", "dismiss", 9, 4)) is not None
    assert continued([*calls, *[ok("look")] * 4], told) is not None


def test_an_agent_that_makes_several_calls_at_once_is_told() -> None:
    def reply(request: ModelRequest) -> Calls | str:
        if "### Stall" in request.transcript[-1].text:
            return "There is none."
        new = f"page {len(request.transcript)}"
        return Calls((*[Call("search", {"query": "invoice"})] * 4, Call("search", {"query": new})))

    @tool
    def search(query: str) -> str:
        """Search."""
        return "nothing found"

    task = MarkdownSection("Task", "task", "Find the invoice.", tools=(search,))
    observers = [ObserverConfig(STALL, ObserverTrigger(on_every_call=True))]
    template = PromptTemplate[str](ns="demo", key="search", sections=(task,), observers=observers)
    result = run(template, model=ScriptedModel(reply), store=None)
    assert (result.output, result.usage.tool_calls) == ("There is none.", 5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"repeats": 1}, r"StallDetector\(repeats=1\) must be a whole number from 2 to 200"),
        ({"repeats": 201}, r"repeats=201"),
        ({"repeats": True}, r"repeats=True"),
        ({"rounds": 1}, r"rounds=1\) must be a whole number from 2 to 100"),
        ({"fruitless": 0}, r"fruitless=0\) must be a whole number from 2 to 66"),
        ({"window": 3}, r"window=3\) must be a whole number from 4"),
        ({"novelty": 0.0}, r"novelty=0.0\) must be more than 0"),
        ({"name": " "}, r"name=' '"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        StallDetector(**fields)


@pytest.mark.parametrize(
    ("detector", "calls"),
    [
        (StallDetector(repeats=10), [ok("look")] * 9),
        (StallDetector(rounds=10), [ok("a"), ok("b")] * 5),
        (StallDetector(window=20), [ok("a"), ok("b"), ok("c")] * 6),
        (StallDetector(fruitless=9), [bad("a"), ok("b", "1"), bad("a"), ok("b", "2")] * 2),
    ],
)
def test_a_patient_detector_waits_longer(detector: StallDetector, calls: list[TracedCall]) -> None:
    assert ask(detector, calls) is None
