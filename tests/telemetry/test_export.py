"""``--otel``: what reaches a collector, and that none of its failures is a failure of the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from requests import ConnectionError, Response, Session

from tests.cli.support import ROOT, CommandLine
from tests.telemetry.collector import Collector, collecting, values_of
from watchkeeper.telemetry import names
from watchkeeper.telemetry.export import Tally, Target, session_for

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

PATIENT, SHORT = 60.0, 0.2
"""Seconds that the end waits: for a collector that answers, and for one that does not."""

ONCE = "0.7"
"""Seconds for which the exporters try: once, because they wait 0.8 s at least before they try again."""


def ignore(provider: object) -> None:
    """Set no global provider."""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Run commands in this process, which keeps its own global provider."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", ignore)
    monkeypatch.setattr("watchkeeper.telemetry.export.FLUSH_SECONDS", PATIENT)
    made = CommandLine(tmp_path, monkeypatch, capsys)
    made.write()
    return made


Given = tuple[str, ...]
GIVEN: Given = ("--param", "folder=x", "--store", "none")


@pytest.fixture
def sent_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[Collector], None]:
    """Name a collector in the environment."""
    return lambda collector: monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)


def test_a_collector_gets_traces_and_metrics(
    command: CommandLine, sent_to: Callable[[Collector], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    with collecting() as collector:
        sent_to(collector)
        said = command.run(*GIVEN, "--otel")
    assert (said.code, said.err) == (0, "")
    assert "not exported" not in said.out
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"invoke_agent tests/triage", "chat scripted", "execute_tool look"}
    top = spans["invoke_agent tests/triage"]
    assert (top.trace_id.hex(), top.parent_span_id.hex()) == (TRACE, SPAN)
    assert spans["execute_tool look"].parent_span_id == top.span_id
    assert values_of(spans["chat scripted"])[names.INPUT_TOKENS] == 100
    assert collector.services == {"watchkeeper"}
    assert collector.metrics >= {names.OPERATION_DURATION, names.TOKEN_USAGE, names.TOOL_DURATION, names.AGENT_DURATION}


def test_the_standard_variables_switch_it_on_and_off(
    command: CommandLine, sent_to: Callable[[Collector], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        sent_to(collector)
        assert command.run(*GIVEN, "--no-otel").code == 0
        assert collector.requests == []
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        assert command.run(*GIVEN, "--otel").code == 0
        assert collector.requests == []
        monkeypatch.delenv("OTEL_SDK_DISABLED")
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "inbox")
        assert command.run(*GIVEN).code == 0
    assert (len(collector.spans), collector.metrics, collector.services) == (4, set(), {"inbox"})


def test_the_result_as_json_stays_alone_on_standard_output(
    command: CommandLine, sent_to: Callable[[Collector], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting(400) as collector:
        sent_to(collector)
        said = command.run(*GIVEN, "--json")
    assert json.loads(said.out)["ok"] is True
    assert said.err.splitlines()[-1].startswith(f"not exported to {collector.url}: ")


@pytest.mark.parametrize("status", [400, 503], ids=["refuses", "is overloaded"])
def test_a_collector_that_takes_nothing_is_told_in_one_line(
    command: CommandLine, sent_to: Callable[[Collector], None], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", ONCE)
    with collecting(status) as collector:
        sent_to(collector)
        said = command.run(*GIVEN)
    assert said.code == 0
    lines = [line for line in said.out.splitlines() if line.startswith("not exported")]
    assert len(lines) == 1
    assert lines[0].startswith(f"not exported to {collector.url}: 4 spans and the metrics; ")
    assert said.err == ""


def test_a_redirect_is_not_followed_and_what_was_sent_counts_as_lost(
    command: CommandLine, sent_to: Callable[[Collector], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-honeycomb-team=very-secret-key")
    with collecting() as elsewhere, collecting(307) as collector:
        collector.location = elsewhere.url
        sent_to(collector)
        said = command.run(*GIVEN)
    assert (said.code, elsewhere.requests) == (0, [])
    assert f"not exported to {collector.url}: 4 spans and the metrics; " in said.out
    assert "307, a redirect, which is not followed" in said.out


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_of_a_collector_is_read_only_at_its_beginning(
    command: CommandLine, sent_to: Callable[[Collector], None], status: int
) -> None:
    """One that does not end would fill the memory of the run, beside it."""
    with collecting(status) as collector:
        collector.talk = b"too much is said here " * 1_000_000
        sent_to(collector)
        said = command.run(*GIVEN)
        with collector.came:
            assert collector.came.wait_for(lambda: collector.unheard == len(collector.requests) > 0, 30)
    assert said.code == 0
    assert ("not exported" in said.out) == (status == 400)


def test_what_was_not_made_is_not_lost(command: CommandLine, sent_to: Callable[[Collector], None]) -> None:
    with collecting() as collector:
        sent_to(collector)
        said = command.run()
    assert (said.code, collector.requests) == (2, [])
    assert "not exported" not in said.out + said.err


def test_a_collector_that_never_answers_does_not_hold_the_command_up(
    command: CommandLine, sent_to: Callable[[Collector], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper.telemetry.export.FLUSH_SECONDS", SHORT)
    with collecting(answers=False) as collector:
        sent_to(collector)
        said = command.run(*GIVEN)
    assert said.code == 0
    assert "4 spans and the metrics; no answer within 0.2 s" in said.out


NOTHING = "nothing answered there, so start a collector, or set OTEL_EXPORTER_OTLP_ENDPOINT to the address of yours"


def test_a_collector_that_is_not_there_fails_nothing_and_is_told_in_a_plain_sentence(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as gone:
        pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", ONCE)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", gone.url.replace("//", "//user:very-secret-key@"))
    said = command.run(*GIVEN)
    assert said.code == 0
    (line,) = [line for line in said.out.splitlines() if line.startswith("not exported")]
    assert line == f"not exported to {gone.url}: 4 spans and the metrics; {NOTHING}"
    assert "very-secret-key" not in said.out + said.err


def test_why_nothing_answered_holds_while_the_next_attempt_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as gone:
        pass
    tally, seen = Tally("span", Target(gone.url, "OTEL_EXPORTER_OTLP_ENDPOINT")), list[str]()
    session = session_for(tally, {})
    assert session is not None
    with session, pytest.raises(ConnectionError):
        session.post(gone.url)
    assert tally.unanswered == NOTHING

    def answered(*_: object, **__: object) -> Response:
        seen.append(tally.unanswered)
        return Response()

    monkeypatch.setattr(Session, "send", answered)
    session.post(gone.url)
    assert (seen, tally.unanswered) == ([NOTHING], "")


def test_what_answers_but_is_no_collector_is_told(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", ONCE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        closing = threading.Thread(target=close_each, args=(server,), daemon=True)
        closing.start()
        said = command.run(*GIVEN)
    assert said.code == 0
    assert "; what answers there speaks no OTLP over HTTP, whose usual port is 4318, so set OTEL_EXPORTER_" in said.out


def close_each(server: socket.socket) -> None:
    """Answer in words that are no HTTP, until the server is closed."""
    with suppress(OSError):
        while True:
            taken, _ = server.accept()
            with taken:
                taken.recv(65536)
                taken.sendall(b"gRPC, please\r\n")


def test_each_signal_names_its_own_address(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchkeeper.telemetry.export.FLUSH_SECONDS", PATIENT)
    with collecting() as gone:
        pass
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{gone.url}/v1/metrics")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", ONCE)
        said = command.run(*GIVEN)
    told = NOTHING.replace("OTLP_ENDPOINT", "OTLP_METRICS_ENDPOINT")
    assert f"not exported to {gone.url}: the metrics; {told}" in said.out.splitlines()
    assert len(collector.spans) == 4


@pytest.mark.parametrize(
    ("variable", "value", "repeated"),
    [
        ("TRACES_HEADERS", "x-honeycomb-team=traces-key-1", "traces-key-1"),
        ("METRICS_HEADERS", "a=b, api-key = metrics-key-1 ", "metrics-key-1"),
        ("HEADERS", "Authorization=Bearer%20bearer%2Bkey-1", "bearer+key-1"),
        ("HEADERS", "authorization=Basic%20dXNlcjpwYXNzd29yZC0x", "password-1"),
        ("METRICS_ENDPOINT", "http://user:metrics-secret@127.0.0.1:9/", "metrics-secret"),
    ],
)
def test_a_key_that_a_collector_repeats_is_not_shown(
    command: CommandLine,
    sent_to: Callable[[Collector], None],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    repeated: str,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", ONCE)
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{variable}", value)
    with collecting(401) as collector:
        collector.reason = f"unknown key {repeated}"
        sent_to(collector)
        said = command.run(*GIVEN)
    assert "not exported to" in said.out
    assert repeated not in said.out + said.err


NO_ADDRESS = "is no address that can be sent to; write for example http://localhost:4318"
NO_HEADER = "is no header that can be sent; write NAME=VALUE, with commas between and other characters as %XX"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "-5", "the export of telemetry: schedule_delay_millis must be positive"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a non-negative integer"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL='grpc' is not supported here"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER='zipkin' must be otlp, console or none"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:abc", f"OTEL_EXPORTER_OTLP_ENDPOINT {NO_ADDRESS}"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999", f"OTEL_EXPORTER_OTLP_ENDPOINT {NO_ADDRESS}"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", f"OTEL_EXPORTER_OTLP_ENDPOINT {NO_ADDRESS}"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https:/x", f"OTEL_EXPORTER_OTLP_ENDPOINT {NO_ADDRESS}"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://local host:4318", f"OTEL_EXPORTER_OTLP_ENDPOINT {NO_ADDRESS}"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[::1", f"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT {NO_ADDRESS}"),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "grpc://collector:4317", f"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT {NO_ADDRESS}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key", f"part 1 of OTEL_EXPORTER_OTLP_HEADERS {NO_HEADER}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,=c", f"part 2 of OTEL_EXPORTER_OTLP_HEADERS {NO_HEADER}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%0d%0ac", f"part 1 of OTEL_EXPORTER_OTLP_HEADERS {NO_HEADER}"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=€", f"of OTEL_EXPORTER_OTLP_METRICS_HEADERS {NO_HEADER}"),
        (
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
            "a=%E2%82%AC",
            f"of OTEL_EXPORTER_OTLP_METRICS_HEADERS {NO_HEADER}",
        ),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "nobody", "Requested component 'nobody' not found"),
    ],
)
def test_what_cannot_be_exported_to_is_refused_before_the_run(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    refused = command.refused(*GIVEN, "--otel")
    assert message in refused
    assert "api-key" not in refused


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "nonsense"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "nonsense"),
    ],
)
def test_what_no_signal_uses_is_not_looked_at(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    for signal_name in ("TRACES", "METRICS", "LOGS"):
        monkeypatch.setenv(f"OTEL_{signal_name}_EXPORTER", "none")
    monkeypatch.setenv(variable, value)
    assert command.run(*GIVEN, "--otel").code == 0


def test_without_opentelemetry_only_the_option_is_an_error(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchkeeper.telemetry.export", None)
    assert "pip install 'watchkeeper[otel]'" in command.refused(*GIVEN, "--otel")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    said = command.run(*GIVEN)
    assert said.code == 0
    assert "--no-otel silences this line" in said.out


def test_a_traceparent_that_is_none_is_told_and_not_used(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", "anything")
    said = command.run(*GIVEN)
    assert said.code == 0
    assert "TRACEPARENT is not used: " in said.out


WAITING = '''
import threading
from watchkeeper import Agent, tool
from watchkeeper.adapters.scripted import Call

@tool
def wait() -> str:
    """Wait for ever."""
    threading.Event().wait()
    return ""

SCRIPT = [Call("wait")]
agent = Agent("scripted", "Wait.", str, tools=[wait])
'''


def test_a_kill_leaves_the_spans_that_were_exported_before_it(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING, encoding="utf-8")
    words = ["run", "waiting.py:agent", "--model", "scripted", "--store", "none", "--param", "task=x", "--otel"]
    with collecting() as collector:
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "10"}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "watchkeeper", *words]
        with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) as running:
            try:
                collector.wait_for_span("chat scripted")
            finally:
                running.send_signal(signal.SIGKILL)
    assert [span.name for span in collector.spans] == ["chat scripted"]
