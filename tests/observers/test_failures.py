"""Which results are failures: refusals in all the forms that tools give them, and what only looks like one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus.corpus import event_of
from tests.corpus.trace import TracedCall
from tests.kit import busy_seconds
from watchkeeper.observers.failures.causes import classed
from watchkeeper.observers.questions import read_line, things_in
from watchkeeper.observers.reading import Reading, read_call


def read(result: str, arguments: Any = None, *, success: bool = True, tool: str = "t") -> Reading:
    """Return what a result says."""
    return read_call(event_of(TracedCall(tool, arguments or {"q": "abc"}, result, success), 1), 1)


@pytest.mark.parametrize(
    "result",
    [
        "ERROR 1045 (28000): Access denied for user 'etl'@'db'",
        "ORA-01653: unable to extend table STAGE.X by 128 in tablespace DATA",
        "Result: REFUSED - operator lacks clearance",
        "HTTP/1.1 401 Unauthorized\nWWW-Authenticate: Bearer",
        "<response status='error'><reason>no lease</reason></response>",
        "NACK: interlock open",
        "Request failed with status code 429",
        "You do not have permission to open this folder.",
        "Your session has expired. Please log in again.",
        '{"ok":true,"data":{"error":{"code":"FORBIDDEN","message":"scope missing"}}}',
        '{"status":"error","message":"printer offline"}',
        '{"code":403,"msg":"no"}',
        "[ERROR] 2026-03-01 09:00:01 disk full",
        "2026-03-01T09:00:01Z ERROR write failed: No space left on device",
        "Traceback (most recent call last):\n  File \"x.py\", line 3\nModuleNotFoundError: No module named 'yaml'",
        "bash: convert: command not found",
        "The request was rejected: budget line 4410 is locked.",
        'psql: error: connection to server at "db" failed: Connection refused',
        "Zugriff verweigert (Fehler 5)",
        "rm: cannot remove 'x': Permission denied",
        "remote: HTTP Basic: Access denied",
        "E: Unable to locate package jq",
        "npm ERR! code E401",
        "curl: (7) Failed to connect to x port 443",
        "Error: ENOSPC: no space left on device, write",
        "The mailbox is full.",
        "Command exited with code 127\nfoo: not found",
        '{"result": null, "error": "lock held by pid 77"}',
        '{"errors":[{"message":"Not authorized to access field"}],"data":null}',
        "Insufficient funds on account 12",
        "FAILED: telescope dome is closed by safety controller",
        "Upload refused (HTTP 413)",
        "sorry, the archive is closed to this account",
        "exit status 1\nfatal: could not read Username for 'https://x': terminal prompts disabled",
        '{"exit_code": 2, "stdout": "", "stderr": "make: *** No rule to make target"}',
        "Permission denied (publickey).",
        "429 Too Many Requests",
        "status: error\nreason: quota",
        "Period 2026-03 is closed for postings.",
        "Your sign-in has lapsed; sign in again to continue.",
        "Instrument HPLC-2 did not answer within 30 s.",
        "I don't understand the parameter 'qty'. Did you mean 'quantity'?",
        "The endpoint /v1/orders was retired on 1 March. Use /v2/orders.",
        "Only the owner may change this entry; nothing was saved.",
        "Table is being rebuilt; writes are suspended.",
        "You have used all 50 requests of this hour. Come back at 10:00.",
        "There is no package called 'ggplot2'",
        "Nothing was sent. Reason: signature missing.",
        "Skipped: target is in maintenance mode.",
        "Die Sitzung ist abgelaufen, bitte neu anmelden",
        "ETIMEDOUT 10.0.0.3:5432",
        '{"isError": true, "content": [{"type": "text", "text": "backend gone"}]}',
    ],
)
def test_a_refusal_is_a_failure_even_if_the_tool_calls_it_a_success(result: str) -> None:
    assert read(result).outcome == "failed"


@pytest.mark.parametrize(
    "result",
    [
        "3 failed, 2 passed in 0.2s",
        "FAIL src/x.test.ts\n  expected 3 to be 4",
        "src/a.py:12: raise PermissionError('permission denied')",
        "no matches found",
        "Found 0 results",
        '{"job": 7, "status": "failed", "error": "oom"}',
        "total 8\n-rw-r--r-- error.log\n-rw-r--r-- failed_jobs.csv",
        '{"errors": 0, "warnings": 3}',
        '{"items":[{"id":1,"error":"x"}]}',
        "The door is locked.",
        "status: 200",
        "saved",
        "error rate: 0.2 %",
        "Errors: none",
        "def handle_error(e):\n    raise ValueError('invalid')\n",
        "# Error handling\n\nThis page tells how to deal with errors.",
        "def f():\n    return 1  # cannot be negative\n\n\ndef g():\n    pass\n",
        "order 4010 shipped, 503 units left",
        "no issues found",
        "0 errors, 0 warnings",
        "invoice 401 paid",
        '{"id": 12, "status": "open", "title": "Login fails with error 500"}',
        "temperature 22.5, limit 40, status normal",
        "access log: 404 hits today: 12",
        "unknown",
        "disk: 71 % full",
        "mode: read-only",
        "last error: none",
        "license: 3 of 12 in use",
        "invoice 401: paid\ninvoice 403: open\ninvoice 404: rejected by client",
        "rejected invoice 12",
        "The tenant may not sublet without consent (clause 4).",
        "From: a@b.example\nSubject: budget\n\nWe cannot say more before June.",
        '{"id": "C-12", "status": "rejected", "by": "m.koch"}',
        "no, that sample is not in the freezer",
        "The job has not started yet.",
    ],
)
def test_what_only_speaks_of_errors_is_none(result: str) -> None:
    assert read(result).outcome != "failed"


@pytest.mark.parametrize(
    ("result", "command"),
    [
        ("[exit code 1]", "grep -rn x ."),
        ("", "test -f x"),
        ("1c1\n< a\n---\n> b\nexit code: 1", "diff a b"),
        ("exit=1 took=2.3s\n--- stdout\n", "rg x"),
        ('{"exit_code": 1, "stdout": "", "stderr": ""}', "find . | grep x"),
        ("$ pytest -q\n2 failed, 3 passed in 1.20s\n? 1", "pytest -q"),
        ("HTTP/1.1 503\n\nupstream unavailable", "curl -si http://a.svc/healthz"),
    ],
)
def test_a_no_to_a_question_is_no_failure(result: str, command: str) -> None:
    assert read(result, {"command": command}, success=False).outcome == "neither"


def test_a_check_that_could_not_check_failed() -> None:
    assert read("E   ModuleNotFoundError: No module named 'yaml'\n1 error in 0.1s", success=False).outcome == "failed"


@pytest.mark.parametrize(
    "result",
    [
        "Validation failed: expected 13-digit number",
        "Import failed: 1 error (column vat unknown)",
        "credit check failed: account frozen",
        "0 rows affected: table locked",
        "no records could be saved",
    ],
)
def test_a_failure_that_looks_like_a_verdict_is_one(result: str) -> None:
    assert read(result, {"device": "probe-3"}, success=False).outcome == "failed"


def test_a_state_that_keeps_a_change_from_being_made_is_a_refusal() -> None:
    state = "target is in maintenance mode"
    assert read(state, {"path": "a", "content": "x"}).outcome == "failed"
    assert read("interlock inactive", {"path": "a", "content": "x"}).outcome != "succeeded"


def test_the_command_and_the_exit_code_are_no_part_of_the_message() -> None:
    result = "$ cat x\ncat: x: Permission denied\n[exit code 1]"
    assert read(result, {"command": "cat x"}).message == "cat: x: permission denied"
    wrapped = '{"exit_code": 2, "stdout": "", "stderr": "make: no rule", "ms": 12}'
    assert read(wrapped).message == "make: no rule"


def test_only_the_edges_of_a_long_result_are_read() -> None:
    assert read("line\n" * 10**6 + "permission denied").outcome == "succeeded"
    long = "Traceback (most recent call last):\n" + "  File x\n" * 10**5 + "OSError: [Errno 28] No space left on device"
    assert read(long).outcome == "failed"


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize(
    "result",
    [
        "rc=1 a=" + "bbbb=" * 15 + "!",
        "1" * 4100,
        "word" * 1000,
        "x" + "\n" * 4000 + "x",
        "rc " + "1" * 4000,
        '{"a":' + "[" * 994,
        '{"a":' + "[" * 4000,
    ],
)
def test_no_result_that_was_made_for_it_stops_or_delays_the_reading(result: str, success: bool) -> None:
    found = list[Reading]()
    assert busy_seconds(lambda: found.append(read(result, success=success))) < 0.5
    assert found[0].outcome == ("succeeded" if success else "failed")


@pytest.mark.parametrize(
    "piece", ["not a ", "nicht a ", "aucune ", "protected ", "x failed ", "<a>", "e 12 ", "session "]
)
def test_megabytes_of_hostile_text_are_read_at_once(piece: str) -> None:
    def read_all() -> None:
        for text in (piece * (10**6 // len(piece)), piece * (280 // len(piece))):
            read(text)
            read(text, {"text": text, "cmd": text})

    assert busy_seconds(read_all) < 1.0


def test_a_long_list_of_long_words_is_searched_for_things_quickly() -> None:
    def search() -> None:
        for _ in range(400):
            assert not things_in("a" * 400)
            assert not things_in("-" * 400)

    assert busy_seconds(search) < 0.5


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("git push origin main", ["git", "push", "origin"]),
        ("cd /w && sudo FOO=1 git -C x push", ["git", "x", "push"]),
        ("cat a.py | grep x", ["cat"]),
        ("python -m pytest -q", ["python", "-m", "pytest"]),
        ("/usr/bin/ls -la", ["ls"]),
        ("cd /w", ["cd"]),
        ("", []),
        ("&& ;", []),
    ],
)
def test_a_command_line_runs_a_program(line: str, parts: list[str]) -> None:
    assert list(read_line(line).program) == parts


def test_things_have_several_spellings() -> None:
    assert set(things_in("no such file: 'data/north.csv'")) == {"data/north.csv", "north.csv"}
    assert "db-new" in things_in("could not reach db-new")
    assert "x.example" in things_in("get https://x.example/a/b?c=1 failed")


def test_a_statement_is_known_by_its_verb_and_a_write_by_what_it_gives_or_gets() -> None:
    one, other = (
        read("3", {"command": f"select a from t where order_date > {number}"}, tool="db") for number in (1, 2)
    )
    assert one.doing == other.doing != read("3", {"command": "delete from t"}, tool="db").doing
    assert "order_date" in one.echo
    assert not one.state
    assert read("saved", {"lemma": "a"}).state


@pytest.mark.parametrize(
    ("message", "group"),
    [
        ("filenotfounderror: no such file", "missing"),
        ("http 401", "login"),
        ("403", "rights"),
        ("line 403 is empty", ""),
        ("missing required field 'date'", "interface"),
        ("unknown tool 'ocr'", "tool"),
        ("role 'x' already exists", "conflict"),
        ("what", ""),
    ],
)
def test_what_went_wrong_has_a_class(message: str, group: str) -> None:
    assert classed(message) == group
