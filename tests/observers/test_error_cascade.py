"""The detector of error cascades: what it says, which failures have one cause, and what closes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.corpus import ask, ask_once, event_of, replay
from tests.corpus.trace import Trace, TracedCall
from watchkeeper.core.errors import ObserverError
from watchkeeper.observers.cascade import ErrorCascadeDetector
from watchkeeper.prompt.observer import ObserverContext
from watchkeeper.prompt.trajectory import Trajectory
from watchkeeper.session.session import Session

ERRORS = ErrorCascadeDetector()


def bad(result: str, tool: str = "t", **arguments: Any) -> TracedCall:
    """A call that failed."""
    return TracedCall(tool, arguments, result, success=False)


def good(result: str = "ok", tool: str = "other", **arguments: Any) -> TracedCall:
    """A call that succeeded."""
    return TracedCall(tool, arguments, result)


def at(times: list[float], call: TracedCall) -> list[TracedCall]:
    """Make a call at each of some times."""
    return [TracedCall(call.tool, call.arguments, call.result, call.success, time) for time in times]


def spoke(calls: list[TracedCall], detector: ErrorCascadeDetector = ERRORS) -> list[int]:
    """Return after which calls the detector spoke."""
    return [number for number, _ in replay(Trace("", ("healthy",), "", tuple(calls)), detector)]


OK = good()


@pytest.mark.spec("TO-014")
def test_failures_of_one_cause_are_told_and_cited() -> None:
    said = ask(ERRORS, [OK, *(bad(f"403 forbidden: '{name}'", "read", path=name) for name in ("a", "b", "c", "d"))])
    assert said is not None
    assert said.observer_name == "Errors"
    assert said.severity == "caution"
    assert said.summary == (
        "4 calls failed for what seems to be one cause (a right is missing), and none of them succeeded since call #2;"
        " the last: 403 forbidden: 'd'"
    )
    (seen,) = said.observations
    assert (seen.category, seen.description) == (
        "error_cascade",
        "4 calls failed for what seems to be one cause (a right is missing).",
    )
    assert seen.evidence == "\n".join(
        f"#{number} read(path='{name}') → 403 forbidden: '{name}'" for number, name in enumerate("abcd", 2)
    )
    assert said.suggestions[0] == "Stop and find out why before you call again; the same call will fail the same way."


@pytest.mark.parametrize(
    ("row", "severity"), [(0, None), (3, None), (4, "caution"), (7, "caution"), (8, "warning"), (400, "warning")]
)
def test_the_more_the_graver(row: int, severity: str | None) -> None:
    said = ask(ERRORS, [OK, *[bad("no")] * row])
    assert (said and said.severity) == severity


def test_of_very_many_the_first_and_the_last_are_cited() -> None:
    said = ask(ERRORS, [bad("disk full", path=f"f{number}") for number in range(1234)])
    assert said is not None
    assert said.summary.startswith("101 calls failed for what seems to be one cause (no space is left)")
    evidence = said.observations[0].evidence
    assert evidence is not None
    assert evidence.splitlines()[0].startswith("#1134 ")
    assert evidence.splitlines()[3] == "... 95 more ..."
    assert len(evidence.splitlines()) == 7


@pytest.mark.spec("TO-014")
def test_other_calls_that_succeed_in_between_close_nothing() -> None:
    assert spoke([bad("no"), OK, OK, bad("no"), OK, bad("no"), *[OK] * 20, bad("no"), OK, bad("no")]) == [27, 29]


def test_a_success_of_what_failed_closes_it() -> None:
    again = good("ok", "t")
    assert spoke([*[bad("no")] * 3, again] * 9) == []
    assert spoke([*[bad("no")] * 9, again, *[bad("no")] * 3]) == [4, 5, 6, 7, 8, 9]


def test_a_success_of_the_same_action_on_another_target_leaves_the_target_open() -> None:
    refused = [bad("could not apply the change", "edit", path="a.py", old=f"x{number}") for number in range(4)]
    other = good("edited b.py", "edit", path="b.py", old="y")
    same = good("edited a.py", "edit", path="a.py", old="y")
    assert spoke([refused[0], other, refused[1], other, refused[2], refused[3]]) == [6]
    assert spoke([refused[0], refused[1], same, refused[2], refused[3]]) == []


def test_a_command_line_is_read_as_what_it_runs() -> None:
    def push(number: int) -> TracedCall:
        return bad("remote: token expired", "shell", command=f"cd /work && git push origin b{number}")

    status = good("nothing to commit", "shell", command="git status")
    pushed = good("pushed", "shell", command="git push origin main")
    assert spoke([push(1), status, push(2), status, push(3), push(4)]) == [6]
    assert spoke([push(1), push(2), pushed, push(3), push(4)]) == []


@pytest.mark.parametrize(
    "messages",
    [
        ("quota exceeded: 0 hours left", "your GPU quota is exceeded", "cannot start: quota exceeded", "HTTP 429"),
        ("401 Unauthorized", "token expired (request 8a1f)", "please sign in again", "session is over, please log in"),
        ("write: No space left on device", "disk full", "ENOSPC", "not enough space on the volume"),
        ("connect to db-new: Connection refused", "no route to host db-new", "HTTP/1.1 503", "db-new timed out"),
        ("database is locked", "resource busy", "could not obtain lock on t", "in use by pid 7"),
    ],
    ids=["quota", "login", "disk", "network", "lock"],
)
def test_one_class_is_one_cause_under_many_tools_and_messages(messages: tuple[str, ...]) -> None:
    calls = [bad(message, f"tool{number}") for number, message in enumerate(messages)]
    assert spoke(calls) == [4]


def test_different_causes_one_after_the_other_are_no_cascade() -> None:
    calls = [
        bad("permission denied to create database", "create_database"),
        bad("syntax error at or near 'TENANT'", "run_sql"),
        bad("could not translate host name 'db-new'", "connect"),
        bad("role 'orchard' already exists", "create_role"),
        bad("disk full", "write"),
        bad("quota exceeded", "render"),
    ]
    assert spoke(calls) == []


def test_four_things_that_are_missing_are_four_causes_and_one_that_is_missing_is_one() -> None:
    assert spoke([bad(f"no such file: '{name}'", "read", path=name) for name in ("a.c", "b.c", "c.c", "d.c")]) == []
    guesses = ["sensor/north.csv", "north.csv", "data/north.csv", "/srv/north.csv"]
    assert spoke([bad(f"no such file: '{name}'", "read", path=name) for name in guesses]) == [4]


def test_the_same_code_is_the_same_cause() -> None:
    calls = [bad(f"{text} (E-4410)", f"tool{text}") for text in ("posting", "closing", "moving", "booking")]
    assert spoke(calls) == [4]


def test_a_refusal_in_a_result_that_is_called_a_success_is_a_failure() -> None:
    refused = '{"status": "ok", "result": {"error": "operator lacks clearance", "ref": "%d"}}'
    calls = [good(refused % number, "move_dome", to=number) for number in range(4)]
    assert spoke(calls) == [4]
    said = ask(ERRORS, calls)
    assert said is not None
    assert said.observations[0].evidence is not None
    assert "operator lacks clearance" in said.observations[0].evidence


def test_the_host_and_the_verb_of_a_request_are_not_its_target() -> None:
    def get(path: str) -> dict[str, str]:
        return {"method": "GET", "url": f"https://travel.example/{path}"}

    down = TracedCall("http", get("ferries/search?to=Porto"), 'HTTP/2 502\n\n{"error": "ferry-gw: unreachable"}')
    other = TracedCall("http", get("hotels/search?city=Porto"), 'HTTP/2 200\n\n{"results": []}')
    same = TracedCall("http", get("ferries/search?to=Bari"), 'HTTP/2 200\n\n{"results": []}')
    assert spoke([down, other, down, other, down, down]) == [6]
    assert spoke([down, other, down, same, down, down]) == []


def test_what_the_message_quotes_must_have_been_asked_for_again() -> None:
    missing = bad('ERROR: column "ts" does not exist', "sql", statement="select count(*) from t where ts > 1")
    without = good("3", "sql", statement="select count(*) from t")
    with_it = good("3", "sql", statement="select ts from t")
    assert spoke([missing, without, missing, without, missing, missing]) == [6]
    assert spoke([missing, missing, with_it, missing, missing]) == []


def test_a_red_verdict_is_no_failure() -> None:
    assert spoke([bad("2 failed, 7 passed in 0.3s", "run_tests")] * 9) == []
    edit = good("saved", "edit_proof", tactic="auto.")
    check = bad("goal remains: rev (rev l) = l", "check_proof", lemma="rev_rev")
    assert spoke([edit, check] * 9) == []


def test_a_search_without_hits_is_no_failure() -> None:
    def grep(word: str) -> TracedCall:
        return bad("[exit code 1]", "shell", command=f"grep -rn {word} .")

    assert spoke([grep(word) for word in ("a", "b", "c", "d", "e", "f")]) == []
    assert spoke([bad("no matches found", "find", text=word) for word in "abcdef"]) == []


def test_retries_that_wait_longer_each_time_are_given_time() -> None:
    call = bad("503 service unavailable", "fetch", url="https://rates.example/eur")
    assert spoke(at([0, 5, 15, 35, 75], call)) == []
    assert spoke(at([0, 5, 15, 35, 75, 155], call)) == [6]
    assert spoke(at([0, 5, 10, 15, 20], call)) == [4, 5]


def test_looks_for_a_thing_that_is_not_there_yet_wait_for_it() -> None:
    call = bad("404 not found", "get_record", name="new.example.org")
    assert spoke(at([30.0 * look for look in range(10)], call)) == []
    assert spoke(at([5.0 * look for look in range(5)], call)) == [4, 5]


def test_what_a_success_of_the_same_turn_closed_is_not_told() -> None:
    calls = [*[bad("no")] * 5, good("ok", "t")]
    assert ask_once(ERRORS, calls) is None
    assert ask_once(ERRORS, [*calls[:-1], OK]) is not None


def test_a_failure_without_a_message_is_named_by_how_it_ended() -> None:
    said = ask(ERRORS, [bad("")] * 4)
    assert said is not None
    assert said.summary.endswith("the last: failed")


def test_a_message_of_megabytes_is_cut() -> None:
    said = ask(ERRORS, [bad("x " * 10**6)] * 4)
    assert said is not None
    assert len(said.summary) < 300


def test_likeness_may_be_strict_or_lax() -> None:
    calls = [bad(f"{word}: this will never work", f"ask_{word}") for word in ("server", "printer", "clerk", "keeper")]
    assert ask(ErrorCascadeDetector(likeness=0.99), calls) is None
    assert ask(ErrorCascadeDetector(likeness=0.1), calls) is not None


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["no such file", "no such host", "12", "", "denied to all"])),
        min_size=1,
        max_size=60,
    )
)
def test_who_is_asked_late_says_nothing_that_who_was_asked_always_did_not_say(calls: list[tuple[bool, str]]) -> None:
    made = [TracedCall("t", {"q": text}, text, success) for success, text in calls]
    assert (ask_once(ERRORS, made) is None) or spoke(made)


def test_it_is_asked_when_enough_failed() -> None:
    session, trajectory = Session(), Trajectory()
    context = ObserverContext(session, trajectory=trajectory)
    assert not ERRORS.should_run(session, context=context)
    for number in range(1, 5):
        assert not ERRORS.should_run(session, context=context)
        session.dispatch(event_of(bad("no"), number))
        trajectory.add(event_of(bad("no"), number))
    assert ERRORS.should_run(session, context=context)
    session.dispatch(event_of(OK, 5))
    trajectory.add(event_of(OK, 5))
    assert not ERRORS.should_run(session, context=context)


@pytest.mark.parametrize(
    ("detector", "grave"),
    [
        (ErrorCascadeDetector(), 8),
        (ErrorCascadeDetector(failures=10), 20),
        (ErrorCascadeDetector(failures=10, severe=12), 12),
        (ErrorCascadeDetector(severe=4), 4),
    ],
    ids=["as it comes", "patient", "patient, then soon grave", "grave at once"],
)
def test_a_cascade_is_grave_at_twice_the_length_or_as_said(detector: ErrorCascadeDetector, grave: int) -> None:
    milder, graver = (ask(detector, [bad("no")] * row) for row in (grave - 1, grave))
    assert milder is None or milder.severity == "caution"
    assert graver is not None
    assert graver.severity == "warning"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"failures": 10, "severe": 6}, r"severe=6\) must be a whole number of at least 10"),
        ({"severe": "6"}, r"severe='6'"),
        ({"failures": 1}, r"ErrorCascadeDetector\(failures=1\) must be a whole number from 2 to 100"),
        ({"failures": 5, "severe": 4}, r"severe=4\) must be a whole number of at least 5"),
        ({"likeness": 1.0}, r"likeness=1.0"),
        ({"name": ""}, r"name=''\) must have a name"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ObserverError, match=said):
        ErrorCascadeDetector(**fields)


def test_no_arguments_of_a_model_can_break_it() -> None:
    odd: list[Any] = ["", "((", {"a": None}, {"": [["x"], 3, None]}, {"cmd": ["git", 7]}, {"q": {"sql": {"a": "b"}}}]
    calls = [TracedCall("t", each, "denied", success=False) for each in odd]
    assert spoke(calls)


@pytest.mark.parametrize(
    "messages",
    [
        ("Door interlock open, run not started", "interlock: refused", "Sequence aborted: interlock is open"),
        ("object is under embargo", "cannot release: embargo", "access refused (embargo)"),
        ("Unknown column 'cust_no'", "field cust_no does not exist", "KeyError: 'cust_no'"),
        ("cannot connect to lic-1.example", "checkout failed (lic-1.example)", "lic-1.example has no answer"),
    ],
    ids=["interlock", "embargo", "column", "host"],
)
def test_messages_with_the_word_that_matters_in_common_have_one_cause(messages: tuple[str, ...]) -> None:
    calls = [bad(message, "submit", sample=f"S{number}") for number, message in enumerate((*messages, messages[0]))]
    assert spoke(calls) == [4]


def test_four_missing_pages_of_one_host_are_four_causes() -> None:
    pages = [bad("404 page not found", "fetch", url=f"https://x.example/{word}") for word in ("a1", "b2", "c3", "d4")]
    assert spoke(pages) == []


def test_an_answer_that_was_a_failure_once_is_one_wherever_it_is_called_a_success() -> None:
    answers = ["owner is root"] * 4
    assert not spoke([good(answer, "put", path=f"{place}.x") for place, answer in enumerate(answers)])
    calls = [good(answer, "put", path=f"{place}.x") for place, answer in enumerate(answers)]
    calls[2] = bad("owner is root", "put", path="2.x")
    assert spoke(calls) == [4]


def test_a_change_that_names_what_the_message_named_is_a_repair() -> None:
    names = ("respx", "orjson", "httpx", "numpy", "pandas")
    missing = [bad(f"ImportError: No module named '{name}'", "sh", cmd="pytest -q tests") for name in names]
    repairs = [good("installed", "sh", cmd=f"pip install {name}") for name in names]
    assert not spoke([call for pair in zip(missing, repairs, strict=True) for call in pair])
    assert spoke([missing[0], good("ok"), missing[0], good("ok"), missing[0], missing[0]]) == [6]


def test_one_action_that_fails_under_several_messages_fails_of_one_cause() -> None:
    messages = ("host not responding", "line dropped - reconnect", "session lost", "host not responding")
    calls = [bad(message, "terminal", line=f"TRK {place}") for place, message in enumerate(messages)]
    assert spoke([call for each in calls for call in (each, good("saved", "note", text="later"))]) == [7]


def test_a_doubtful_answer_counts_beside_certain_ones_only() -> None:
    def put(answer: str, number: int) -> TracedCall:
        return good(answer, "put", node=number)

    doubtful = [put("font not there, text left as it was", number) for number in range(4)]
    assert not spoke(doubtful)
    certain = [bad("unloaded font", "put", node=7), bad("unloaded font", "put", node=8)]
    assert spoke([*doubtful[:2], *certain]) == [4]


@pytest.mark.parametrize("answer", ["no answer yet", "noch nicht ausgehoben", "pas encore de nouvelles"])
def test_what_is_awaited_is_no_failure(answer: str) -> None:
    assert not spoke(at([0.0, 30.0, 60.0, 90.0, 120.0], good(answer, "inbox", sender="head")))


def test_one_step_after_another_is_no_cascade_although_the_tool_reports_failures() -> None:
    left = (2208, 1104, 552, 276, 138, 69)
    assert not spoke([bad(f"that one is bad; {count} revisions left", "step", name="repro") for count in left])


def test_to_ask_for_one_thing_after_another_and_be_told_no_is_no_cascade() -> None:
    assert not spoke([bad(f"bay {bay}-K occupied", "check", bay=f"{bay}-K") for bay in (411, 402, 468, 367, 355)])


def test_a_table_is_no_refusal_because_another_table_was_one() -> None:
    refused = bad("<table><tr><td>4711</td></tr></table>", "rights", badge=4711)
    tables = [good(f"<table><tr><td>{number}</td></tr></table>", "log", day=number) for number in range(81, 88)]
    assert not spoke([refused, *tables])


def test_a_page_that_refuses_is_read_without_its_tags() -> None:
    page = "<title>Login</title><p>Your session has expired. Please sign in again.</p>"
    assert spoke([good(page, "click", ref=f"e{number}") for number in range(71, 76)])
