"""The inbox agent reads any mail: whatever its headers, charset and parts are, it goes on with what can be read."""

from __future__ import annotations

import base64
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from watchkeeper import MemoryFilesystem, Prompt, RunResult, ToolInvoked, run
from watchkeeper.models import Call, Say, ScriptedModel

HTML = (
    b"<html><head><title>T</title><style>p {}</style></head><body><p>My kettle <b>leaks</b> &amp; smells.</p>"
    b"<script>no()</script>Please repair it.</body>"
)
PARTS = b'Content-Type: multipart/mixed; boundary="b"\n\n--b\nContent-Type: text/html\n\n' + HTML + b"\n--b\n"
PICTURE = b'Content-Type: image/png\nContent-Disposition: attachment; filename="a.png"\n\nxx\n--b--\n'


def run_on(agent: ModuleType, raw: bytes, model: ScriptedModel, **changed: Any) -> RunResult[Any]:
    files = MemoryFilesystem()
    files.write_bytes("messages/mail.txt", raw)
    for name in ("customers", "orders"):
        files.write_text(f"directory/{name}.json", "[]")
    prompt = Prompt(replace(agent.triage, **changed)).bind(agent.Message("mail.txt"))
    return run(prompt, model=model, filesystem=files, store=None)


def read(agent: ModuleType, raw: bytes) -> str:
    """Return what the model is shown of a mail."""
    script = ScriptedModel([Call("read_message", {"path": "mail.txt"}), Say({"filed_in": "other"})])
    result = run_on(agent, raw, script, task_completion_checker=None)
    assert result.ok, result.sentence()
    [told] = [entry.event for entry in result.session.log if isinstance(entry.event, ToolInvoked)]
    assert told.result.success, told.rendered_output
    return told.rendered_output


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (
            b"From: Jo <jo@example.com>\nSubject: Kettle\n\nIt leaks.",
            "From: Jo <jo@example.com>\nSubject: Kettle\n\nIt leaks.",
        ),
        (b"Subject: =?utf-8?q?Caf=C3=A9?=\n\nIt leaks.", "From: \nSubject: Café\n\nIt leaks."),
        ("Subject: Café\n\nIt leaks. 漏れ".encode(), "From: \nSubject: Café\n\nIt leaks. 漏れ"),
        (b"Subject: a\n b\n\nIt leaks.", "From: \nSubject: a b\n\nIt leaks."),
        (b"Subject: =?nosuch?q?a?=\n\nIt leaks.", "From: \nSubject: =?nosuch?q?a?=\n\nIt leaks."),
        (b"Content-Type: text/plain; charset=nosuch\n\nCaf\xe9", "From: \nSubject: \n\nCafé"),
        (b"Content-Type: text/plain; charset=latin-1\n\nCaf\xe9", "From: \nSubject: \n\nCafé"),
        (b"Content-Transfer-Encoding: base64\n\n" + base64.b64encode("Café".encode()), "From: \nSubject: \n\nCafé"),
        (b"Content-Transfer-Encoding: base64\n\n!", "From: \nSubject: \n\n!"),
        (b"Content-Type: text/html\n\n" + HTML, "From: \nSubject: \n\nMy kettle leaks & smells.\nPlease repair it."),
        (PARTS + PICTURE, "From: \nSubject: \nAttached: a.png\n\nMy kettle leaks & smells.\nPlease repair it."),
        (b"Content-Type: multipart/mixed\n\nIt leaks.", "From: \nSubject: \n\nIt leaks."),
        (b"Content-Type: text/plain; charset=unicode-escape\n\nA \\ud800", "From: \nSubject: \n\nA ?"),
        (b"It leaks.", "From: \nSubject: \n\nIt leaks."),
    ],
)
def test_mail_of_every_shape_is_read(agent: ModuleType, raw: bytes, shown: str) -> None:
    assert read(agent, raw) == shown


@pytest.mark.parametrize(
    ("date", "sent"),
    [
        (b"Tue, 04 Mar 2031 09:12:00 +0000", "2031-03-04 09:12:00+00:00"),
        (b"2031-03-04 09:12", "2031-03-04 09:12:00"),
        (b"yesterday", "None"),
        (b"", "None"),
        (b"Tue, 04 Mar 99999999999999999999 09:12:00 +0000", "None"),
        (b"Tue, 04 Mar 2031 09:12:00 +9999999", "None"),
    ],
)
def test_a_date_that_is_none_costs_nothing_but_the_date(agent: ModuleType, date: bytes, sent: str) -> None:
    raw = b"From: Jo <jo@example.com>\nDate: " + date + b"\n\nPlease repair my kettle before Thursday."
    result = run_on(agent, raw, ScriptedModel(agent.SCRIPT))
    assert result.ok, result.sentence()
    [reading], [record] = (result.session[kind].all() for kind in (agent.Reading, agent.Record))
    assert str(reading.sent) == sent
    assert record.quote == "Please repair my kettle before Thursday."


def test_a_message_of_one_short_word_is_filed(agent: ModuleType) -> None:
    result = run_on(agent, b"Subject: x\n\nhelp!!", ScriptedModel(agent.SCRIPT))
    assert [record.quote for record in result.session[agent.Record].all()] == ["help!!"]


HEADERS = st.sampled_from(
    ["From", "Subject", "Date", "Content-Type", "Content-Transfer-Encoding", "Content-Disposition", "MIME-Version"]
)
VALUES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [
            b"text/html; charset=utf-16",
            b'multipart/mixed; boundary="b"',
            b"message/rfc822",
            b"message/partial",
            b"text/plain; charset*=utf-8''x%ZZ; charset*1=y",
            b"base64",
            b"quoted-printable",
            b"x-uuencode",
            b"attachment; filename*0*=utf-8''%e2; filename*1=x",
            b"=?utf-8?b?4?= =?hex?q?a?=",
            b"Mon, 99 Foo 20000 99:99:99 +99999999999",
            b'"a\\" <@,:;@> (((',
        ]
    ),
)
BODIES = st.one_of(
    st.binary(max_size=120),
    st.lists(
        st.sampled_from(
            [
                b"--b\n",
                b"--b--",
                b"\n",
                b"<p>",
                b"<![x",
                b"<!--",
                b"&#x110000;",
                b"begin 6 x\n",
                b"Content-Type: text/html\n",
            ]
        )
    ).map(b"".join),
)


@settings(max_examples=200, deadline=None)
@given(headers=st.lists(st.tuples(HEADERS, VALUES), max_size=6), body=BODIES)
@example(headers=[("Content-Type", b"text/html")], body=b"<![if x]>")
def test_no_mail_crashes_the_reader(agent: ModuleType, headers: list[tuple[str, bytes]], body: bytes) -> None:
    read(agent, b"".join(name.encode() + b": " + value + b"\n" for name, value in headers) + b"\n" + body)
