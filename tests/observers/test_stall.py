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
from watchkeeper.observers.progress import LONG_AGO
from watchkeeper.observers.stall import CITED, LOOKED_BACK, StallDetector, Stalls
from watchkeeper.prompt.advice import SEVERITIES, Assessment
from watchkeeper.prompt.observer import ObserverConfig, ObserverContext, ObserverTrigger
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.prompt.trajectory import KEPT_CALLS, Trajectory
from watchkeeper.runtime.advice_events import AdviceAcknowledged
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
        "You seem to be going in circles: since call #3, 3 calls, of look, brought nothing new: they brought what had"
        " been seen before."
    )
    (seen,) = said.observations
    assert seen.category == "loop"
    assert seen.description in said.summary
    assert seen.evidence == "#3 look(room=3)\n#4 look(room=3)\n#5 look(room=3)"
    assert said.suggestions == (
        "What you have seen will not change by asking again: use it, or try something else.",
        "If you are waiting for something, do other work meanwhile and look again later.",
        "If you cannot get further, say what is missing and finish with what you have.",
    )


@pytest.mark.parametrize(
    ("times", "severity", "said"),
    [
        (3, None, ""),
        (4, "caution", "3 calls"),
        (6, "caution", "5 calls"),
        (7, "warning", "6 calls"),
        (KEPT_CALLS * 3, "warning", f"{CITED} calls"),
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
    assert said.severity == "caution"
    assert said.observations[0].evidence == "#5 status(job=1)\n#7 status(job=1)\n#9 status(job=1)"
    graver = ask(STALL, rounds * 8)
    assert graver is not None
    assert graver.severity == "warning"


@pytest.mark.spec("TO-013")
def test_two_calls_in_turn_are_thrashing() -> None:
    assert ask(STALL, [ok("a", "red"), ok("b", "blue")] * 2) is None
    assert kind_of(ask(STALL, [ok("a", "red"), ok("b", "blue")] * 3)) == "thrashing"


def polled(apart: float, *states: str) -> list[int]:
    """Return after which of some looks, so many seconds apart, it speaks."""
    calls = tuple(TracedCall("status", {"job": 7}, state, at=apart * n) for n, state in enumerate(states))
    return [number for number, _ in replay(Trace("", ("healthy",), "", calls), STALL)]


def test_looks_that_are_far_apart_are_waiting() -> None:
    still = [f"job 7: running, {n} s so far, checked at 10:0{n % 10}:00" for n in range(10)]
    assert polled(20, *still) == []
    assert polled(19, *["job 7: running"] * 10)[0] == 4
    assert polled(30, *["job 7: running"] * 13)[0] == 12, "the eleventh look is the first that is too many"
    assert polled(400, *["job 7: running"] * 5)[0] == 5, "nothing moved for 15 minutes"
    assert polled(30, *[f"job 7: running, step {n // 8} of 9" for n in range(40)]) == []
    assert polled(30, *["job 7: failed for good"] * 6)[0] == 4, "it is final"


def test_a_clock_and_noise_are_no_movement() -> None:
    assert polled(5, *[f"load {'1' if n % 2 else '2'}.{n % 3} now {100 + 5 * n}" for n in range(12)])
    assert polled(7, *[f"up {7 * n + 300}" for n in range(12)])
    assert not polled(7, *[f"done {3 * n * n}" for n in range(12)])


@pytest.mark.parametrize(
    "asked",
    [
        [
            "select * from t where a = 'x9'",
            "SELECT * FROM t WHERE a = 'x9' limit 10",
            "select  *  from t where a='x9' -- 3",
        ],
        [
            "cat src/parser/lexer.py",
            "head -n 200 ./src/parser/lexer.py",
            "cd /app && sed -n '1,90p' src/parser/lexer.py",
        ],
    ],
)
def test_the_same_question_with_other_spelling_is_no_new_question(asked: list[str]) -> None:
    result = "class Lexer:\n    def scan(self): return self.tokens\n    size = 17"
    calls = [ok("run", f"{result}\ntook {n}.{n} s", command=line) for n, line in enumerate(asked * 2)]
    assert ask(STALL, calls) is not None


def test_the_same_question_in_other_words_or_by_another_tool_is_no_new_question() -> None:
    hits = "1. Milling in Corran, archive 44\n2. Rentals of 1801\n3. Map of the county"
    words = ["deed of the mill", "mill deed", "the deed of sale, mill", "mill: deeds of sale", "sale deed mill"]
    assert ask(STALL, [ok(f"find{n % 2}", f"{hits}\n({n + 3} ms)", q=query) for n, query in enumerate(words)])


def test_changes_that_undo_each_other_are_thrashing() -> None:
    there, back = (
        ok("edit", "ok", path="a.py", old="x = 1", new="x = 2"),
        ok("edit", "ok", path="a.py", old="x = 2", new="x = 1"),
    )
    assert kind_of(ask(STALL, [ok("read", "x = 1", path="a.py"), *[there, back] * 3])) == "thrashing"


def test_many_edits_of_one_file_are_work() -> None:
    """Editing one file five times in ten calls is no stall, and no reading in between makes it one."""
    edits = [ok("edit", "ok", path="a.py", old=f"x{n} = 1", new=f"x{n} = 2") for n in range(9)]
    assert ask(STALL, edits) is None
    checked = [call for n, edit in enumerate(edits) for call in (edit, bad("test", f"test_{n} failed: {n} is not 2"))]
    assert not list(replay(Trace("", ("healthy",), "", tuple(checked)), STALL))
    read = [call for n, edit in enumerate(edits) for call in (edit, ok("read", f"y = {n}\nz = {n + 3}", path="a.py"))]
    assert not list(replay(Trace("", ("healthy",), "", tuple(read)), STALL))


def test_enumerating_is_work_even_if_all_answers_are_equal() -> None:
    assert ask(STALL, [ok("get", '{"state": "active"}', id=f"A-{n}") for n in range(90)]) is None
    assert ask(STALL, [ok("grep", "", pattern=f"old_{n}") for n in range(90)]) is None
    assert ask(STALL, [ok("list", f"item {n}, item {n + 1}", offset=n) for n in range(0, 90, 2)]) is None


def test_a_failure_that_comes_back_whatever_is_tried_is_a_stall() -> None:
    tries = [call for n in range(5) for call in (ok("edit", text=f"try {n}"), bad("test", f"red in 0.{n}1s"))]
    assert kind_of(ask(STALL, tries[:-2])) == ""
    said = ask(STALL, tries)
    assert said is not None
    assert "failed in the same way" in said.summary
    assert said.observations[0].evidence is not None
    assert "#10 test()" in said.observations[0].evidence


def test_a_success_between_begins_the_count_anew() -> None:
    def tries(count: int) -> list[TracedCall]:
        return [call for n in range(count) for call in (ok("edit", text=f"{count} {n}"), bad("test", "red"))]

    assert ask(STALL, [*tries(3), ok("test", "green"), *tries(4)]) is None
    assert ask(STALL, [*tries(3), bad("test", "amber"), *tries(4)]) is None


@pytest.mark.spec("TO-013")
def test_a_window_in_which_nothing_is_new_is_a_stall() -> None:
    three = [ok("read", "A", path="a"), ok("read", "B", path="b"), ok("list", "a b")]
    assert ask(STALL, three) is None
    said = ask(STALL, three * 3)
    assert said is not None
    assert kind_of(said) == "stall"
    assert ask(STALL, [*three * 5, ok("read", "C", path="c")]) is None, "it tries something new"


def test_one_new_call_does_not_hide_a_stall() -> None:
    same = [ok("look", "dark", room=3)] * 4
    assert ask(STALL, [*same, ok("read", "three words more", path="x"), *same]) is not None


def test_what_was_seen_long_ago_may_be_read_again() -> None:
    first = [ok("read", f"{n}", path=f"f{n}") for n in range(LONG_AGO + 1)]
    assert ask(STALL, [*first, *first[:12]]) is None


@pytest.mark.parametrize("line", ["idle", "x" * 300], ids=["short lines", "long lines"])
def test_what_changes_in_the_middle_of_a_result_is_seen(line: str) -> None:
    results = [ok("status", f"{line}\nstep {n} since 10:00:{10 + n}\n{line}") for n in range(20)]
    assert ask(STALL, results) is None
    assert kind_of(ask(STALL, [ok("status", f"{line}\nat 10:00:{10 + n}\n{line}") for n in range(20)])) == "loop"


def test_of_long_results_the_ends_are_read_and_the_middle_is_compared() -> None:
    long = "word " * 2000
    assert kind_of(ask(STALL, [ok("look", f"{long} 0.{n}1s") for n in range(9)])) == "loop"
    assert ask(STALL, [ok("look", f"{long}{n}{long}") for n in range(9)]) is None


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


def test_it_wants_to_be_asked_only_where_there_is_a_stall() -> None:
    assert wanted(ok("a"), ok("b"), ok("a"), ok("a"), ok("a"), ok("c")) == [*[False] * 4, True, False]
    edits = [call for n in range(9) for call in (ok("edit", "saved", path="x", text=f"{n}"), ok("test"))]
    assert not any(wanted(*edits)), "work between equal calls"
    assert not any(wanted(ok("b"), *(ok("c", n=n) for n in range(90)), ok("b")))


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
    assert told[0] <= 15
    assert len(told) >= 8


def test_a_loop_that_was_left_is_told_once_and_as_what_it_was() -> None:
    calls = [*[ok("look", "dark", room=3)] * 9, ok("light")]
    said = ask_once(STALL, calls)
    assert said is not None
    assert said.summary == (
        "You seem to have gone in circles: since call #2, 8 calls, of look, brought nothing new: they brought what had"
        " been seen before, up to call #9."
    )
    assert said.severity == "warning"
    new = [ok("walk", step=step) for step in range(30)]
    assert [number for number, _ in replay(Trace("", ("stalled",), "", (*calls, *new)), STALL, 10)] == [10]
    assert ask_once(STALL, [*calls, *new[: LOOKED_BACK - 2]]) is not None
    assert ask_once(STALL, [*calls, *new[: LOOKED_BACK - 1]]) is None, "what is older is stale"


def test_of_several_stalls_the_gravest_is_told_and_then_the_newest() -> None:
    work = [ok("read", f"new words {n} in {n}", path=f"p{n}") for n in range(4)]
    said = ask_once(STALL, [*[ok("a", "dark")] * 8, *work, *[ok("b", "cold")] * 4])
    assert said is not None
    assert "of a," in said.summary
    said = ask_once(STALL, [*[ok("a", "dark")] * 4, *work, *[ok("b", "cold")] * 4])
    assert said is not None
    assert "of b," in said.summary


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
        ({"repeats": 2}, r"StallDetector\(repeats=2\) must be a whole number from 3 to 200"),
        ({"repeats": 201}, r"repeats=201"),
        ({"repeats": True}, r"repeats=True"),
        ({"looks": 1}, r"looks=1\) must be a whole number of at least 2"),
        ({"apart": 0}, r"apart=0\) must be a number of seconds above 0"),
        ({"patience": "long"}, r"patience='long'\) must be a number"),
        ({"name": " "}, r"name=' '"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        StallDetector(**fields)


def test_a_patient_detector_waits_longer() -> None:
    assert ask(StallDetector(repeats=10), [ok("look")] * 9) is None
    assert ask(StallDetector(repeats=10), [ok("look")] * 10) is not None
    slow = tuple(TracedCall("status", {}, "running", at=30.0 * n) for n in range(20))
    assert not list(replay(Trace("", ("healthy",), "", slow), StallDetector(looks=20)))


def test_its_state_is_bounded() -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory)
    for number in range(3000):
        call = ok(
            "write", f"written w{number} x{number}\nrow {number} of {number}", path=f"f{number}", content=f"t{number}"
        )
        session.dispatch(event := event_of(call, number + 1))
        trajectory.add(event)
        assert not STALL.should_run(session, context=context)
    progress = trajectory.fold(STALL, lambda: Stalls(STALL)).progress
    assert len(progress.threads) <= 400
    assert len(progress.states) <= 400
    assert len(progress.shown) <= 20_000


def test_a_no_that_is_worded_anew_is_the_same_no() -> None:
    said = ("Nothing new on this.", "There is no change since last time.", "Still no answer.", "No update so far.")
    assert kind_of(ask(STALL, [ok("ask", text, case="417") for text in said])) != ""


def test_other_words_in_the_place_of_the_first_ones_are_another_question() -> None:
    searches = [ok("search", "no results", q=f"{plant} order march") for plant in ("amber", "birch", "cedar", "lotus")]
    names = [ok("search", "no record", q=f"Anna {name}") for name in ("Meyer", "Koch", "Lange", "Vogt", "Berg")]
    assert ask(STALL, searches) is None
    assert ask(STALL, names) is None


def edit(number: int, old: str, new: str) -> list[TracedCall]:
    """An edit of one file and a look at another: two calls."""
    return [
        ok("edit_file", path="a.py", old=old, new=new),
        ok("read", f"line {number}: field_{number}", path=f"{number}.py"),
    ]


def test_five_edits_of_one_file_in_ten_calls_are_told_only_if_they_undo_each_other_or_a_check_fails_as_before() -> None:
    growing = [call for number in range(5) for call in edit(number, f"step_{number}", f"step_{number} = {number}")]
    assert not any(wanted(*growing))
    there, back = (
        ok("edit_file", path="a.py", old="x = 1", new="x = 2"),
        ok("edit_file", path="a.py", old="x = 2", new="x = 1"),
    )
    assert kind_of(ask(STALL, [there, back, there, back, there])) == "thrashing"
    check = bad("run", "FAILED test_a: expected 3, got 4", target="tests")
    assert ask(STALL, [call for number in range(6) for call in (edit(number, f"s{number}", f"t{number}")[0], check)])


def test_read_write_read_is_told_only_if_the_writes_undo_each_other() -> None:
    growing = [
        call
        for number in range(5)
        for call in (
            ok("read", f"rows: {number}", path="a.py"),
            ok("write", "saved", path="a.py", content="x" * number + "y"),
        )
    ]
    assert not any(wanted(*growing))
    writes = [ok("write", "saved", path="a.py", content=content) for content in ("x = 1", "x = 2")] * 4
    reads = [ok("read", call.arguments["content"], path="a.py") for call in writes]
    assert any(wanted(*[call for pair in zip(writes, reads, strict=True) for call in pair]))


def test_one_message_to_several_people_is_work_in_any_language() -> None:
    calls = [
        ok("courrier", "envoye", a=f"seller {name}", ref="45-1", texte="offer")
        for name in ("mill", "north", "old", "east")
    ]
    assert not any(wanted(*calls))


def test_an_acknowledgement_in_other_words_is_no_other_answer() -> None:
    answers = ("OK", "done", "ACK", "OK", "done", "ACK", "OK")
    moves = [ok("move", answer, plate="P5", to=("deck", "reader")[number % 2]) for number, answer in enumerate(answers)]
    assert any(wanted(*moves))


def test_lines_of_a_file_are_no_command_line() -> None:
    text = "\n".join(f"{number}: def f_{number}(): pass" for number in range(3, 9))
    calls = [ok("view", text, filePath="a.py", startLine=line, endLine=9) for line in (3, 2, 1, 3, 2)]
    assert any(wanted(*calls))


ROWS = "cabinet,units\nA-1,57\nB-2,54\nC-3,40\nD-4,12"


def test_a_cursor_that_always_leads_to_the_same_page_is_a_stall() -> None:
    codes = ("52934406e3", "c07469764c", "47b21e2c5a", "8462f33613", "3116426f0e", "3b7408eb1a")
    calls = [ok("get", ROWS, url=f"https://a.example/stock?lot=7&cursor={code}") for code in codes]
    assert ask(STALL, calls) is not None
    assert ask(STALL, [ok("get", ROWS, lot="7", page_token=code) for code in codes]) is not None


def test_the_pages_behind_an_address_are_news() -> None:
    pages = [
        ok("get", f"day,badge\n{n},{7411 * n}", url=f"https://a.example/log?room=2&page={n}") for n in range(2, 12)
    ]
    assert not any(wanted(*pages))


def test_rows_of_one_answer_in_other_ranges_of_cells_are_no_news() -> None:
    rows = [f"{n},{n * 17}.5,lunch" for n in range(20, 30)]
    ranges = [(20, 30), (21, 28), (24, 27), (22, 29), (23, 29), (20, 27)]
    calls = [ok("read", "\n".join(rows[a - 20 : b - 20]), range=f"Meals!A{a}:H{b - 1}") for a, b in ranges]
    assert ask(STALL, calls) is not None


def test_how_long_a_call_took_is_no_news() -> None:
    calls = [ok("get", f"total 482 units\n({ms} ms)", q="lot 7") for ms in (1934, 331, 2060, 392, 3796)]
    assert ask(STALL, calls) is not None


def test_one_thing_moved_to_and_fro_is_no_waiting() -> None:
    moves = [("09:00", 0), ("10:00", 12), ("09:00", 24), ("10:00", 36), ("09:00", 48), ("10:00", 60), ("09:00", 72)]
    calls = [TracedCall("move", {"patient": "P-17", "to": to}, f"P-17 now at {to}", True, at) for to, at in moves]
    assert ask(STALL, calls) is not None


def test_two_things_that_are_waited_for_in_turn_are_waiting() -> None:
    looks = [
        TracedCall("state", {"job": f"J-{7 + number % 2}"}, "state: queued", True, number * 12.0)
        for number in range(10)
    ]
    assert ask(STALL, looks) is None


def test_reminders_that_say_the_same_are_repeated() -> None:
    texts = (
        "7b has no music",
        "Reminder: 7b has no music",
        "once more: 7b has no music",
        "please note: 7b has no music",
    )
    calls = [ok("send", "sent", to="head", text=text) for text in (*texts, "Again: 7b has no music")]
    assert ask(STALL, calls) is not None
