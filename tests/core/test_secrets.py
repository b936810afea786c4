"""Credentials are replaced wherever a text is written, and nothing else is."""

from __future__ import annotations

import base64
import json
import logging
import re
import string
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from watchkeeper.core.codec import encode
from watchkeeper.core.errors import ProviderError, Stop
from watchkeeper.core.secrets import (
    HELD,
    MOST_HELD,
    REDACTED,
    Secrets,
    hold,
    hold_headers,
    hold_url,
    redacted,
)
from watchkeeper.core.text import logger
from watchkeeper.session.tagging import dump

KEY = "sk-proj-0123456789abcdef"


def holding(*secrets: str) -> Secrets:
    """Return a registry of its own."""
    made = Secrets()
    for secret in secrets:
        made.add(secret)
    return made


def test_exactly_the_credential_is_replaced() -> None:
    held = holding(KEY)
    assert held.redacted(f"Incorrect key: {KEY}.") == "Incorrect key: [redacted]."
    near = f"{KEY[:-1]} and {KEY.upper()}"
    assert held.redacted(near) is near


@pytest.mark.parametrize(
    "word", ["", "short", "test", "no-key", "lm-studio", "not-needed", None, 12345678, b"12345678"]
)
def test_words_and_what_is_no_text_are_left_alone(word: Any) -> None:
    held = holding(word)
    assert held.redacted(f"a {word} b") == f"a {word} b"
    assert not held.any


def test_the_longer_of_two_goes_first() -> None:
    held = holding("password", "password-of-the-house")
    assert held.redacted("password-of-the-house, password") == f"{REDACTED}, {REDACTED}"


def test_only_so_many_are_held_and_the_oldest_are_forgotten() -> None:
    held = holding(*(f"token-{number:06}" for number in range(MOST_HELD + 1)))
    assert held.redacted("token-000000 token-000256") == f"token-000000 {REDACTED}"


@pytest.mark.parametrize("said", [r"sk-\/proj\/0123", "sk-%2fproj%2f0123", "sk-%2Fproj%2F0123"])
def test_other_spellings_of_json_and_addresses_are_replaced(said: str) -> None:
    held = holding("sk-/proj/0123")
    assert held.redacted(f"You sent {said}.") == f"You sent {REDACTED}."
    assert "proj" not in held.redacted_json(json.dumps({"said": said}))


@pytest.mark.parametrize("said", ["p%40s!s%3Aw0rd(1)", "p%40s%21s%3aw0rd%281%29", "p@s!s:w0rd%281)", "p@s!s:w0rd(1)"])
def test_an_address_may_encode_any_part_of_a_credential(said: str) -> None:
    """Each library encodes other characters: Python's urllib the exclamation mark, yarl and browsers do not."""
    held = holding("p@s!s:w0rd(1)")
    assert (
        held.redacted(f"407, url='http://us!er:{said}@proxy:3128'") == f"407, url='http://us!er:{REDACTED}@proxy:3128'"
    )
    assert "w0rd" not in held.redacted_json(json.dumps({"said": said}))


def test_credentials_of_single_requests_push_out_no_others() -> None:
    held = holding(KEY)
    for number in range(2 * MOST_HELD):
        held.add(f"signature-{number:06}", passing=True)
    assert held.redacted(f"{KEY} signature-000000") == f"{REDACTED} signature-000000"
    held.add("signature-000511")  # it is used elsewhere too
    for number in range(MOST_HELD):
        held.add(f"another-{number:06}", passing=True)
    assert held.redacted("signature-000511 signature-000510") == f"{REDACTED} signature-000510"


def test_a_credential_that_changes_with_every_request_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern of all that are held takes 100 ms to compile; it is compiled when there is something to replace."""
    held, compiled = Secrets(), Mock(wraps=re.compile)
    monkeypatch.setattr(re, "compile", compiled)
    for number in range(MOST_HELD):
        held.add(f"Signature={number:064x}")
        assert held.redacted("Nothing to see.") == "Nothing to see."
    compiled.assert_not_called()
    assert held.redacted(f"Signature={7:064x}") == REDACTED
    compiled.assert_called_once()


SECRET = st.text(st.characters(codec="utf-8"), min_size=8, max_size=20)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(secret=SECRET, data=DATA, before=st.text(max_size=5), after=st.text(string.printable, max_size=5))
def test_no_credential_is_in_what_is_written_as_json(secret: str, data: Any, before: str, after: str) -> None:
    """Texts and bytes at any place, also texts that are written as base64; what is written stays JSON."""
    said = f"{before}{secret}{after}"
    assume(not said.startswith("$"))  # the whole object would be written as pairs, because of its key
    event = {
        "text": said,
        "list": [said, data],
        said: 1,
        "bytes": said.encode("utf-8", "replace"),
        "half": said + "\ud800",
    }
    written = holding(secret).redacted_json(encode(dump(event)).decode())
    found = json.loads(written)
    assert secret not in json.dumps(found["text"], ensure_ascii=False)
    assert REDACTED in found["text"]
    half = base64.b64decode(found["half"]["utf16"]).decode("utf-16-le", "surrogatepass")
    assert REDACTED in half
    assert secret not in half


@given(data=DATA)
def test_without_a_credential_in_it_json_stays_as_it_is(data: Any) -> None:
    text = encode(dump({"data": data})).decode()
    assert json.loads(holding("sk-not-in-there").redacted_json(text)) == json.loads(text)


def test_a_number_that_looks_like_a_credential_leaves_json_valid() -> None:
    text = '{"tokens":12345678,"text":"12345678"}'
    assert json.loads(holding("12345678").redacted_json(text)) == {"tokens": 12345678, "text": REDACTED}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://ann:pass-word-1@host/v1", "pass-word-1"),
        ("https://token-of-a-user@host/v1", "token-of-a-user"),
        ("https://ann:p%40ss-word-2@host/v1", "p@ss-word-2"),
        ("https://ann:x@host:99/v1", "ann:x@host"),
        ("https://host/v1?api_key=abcdefgh-3", "abcdefgh-3"),
        ("https://host/v1?key=abcdefgh-4&api-version=2024-10-21", "abcdefgh-4"),
        ("https://host/v1?sig=a%2Fb%2Fcdefgh", "a/b/cdefgh"),
        ("https://host/v1?sig=a%2Bb/c%3D%3Defgh", "a%2Bb/c%3D%3Defgh"),
        ("https://host/v1?sig=a+b/c==ijkl", "a+b/c==ijkl"),
        ("ann:pass-word-5@proxy:3128", "pass-word-5"),
    ],
)
def test_credentials_in_addresses_are_held(url: str, said: str) -> None:
    hold_url(url)
    if said == "ann:x@host":  # the whole is too short to be replaced anywhere
        assert redacted(said) == said
    else:
        assert redacted(f"<{said}>") == f"<{REDACTED}>"
    assert redacted("2024-10-21 host") == "2024-10-21 host"


def test_what_is_no_address_holds_nothing() -> None:
    said = "no address, http://[::1, https://host/v1"
    for url in ("", "no address", "http://[::1", "https://host/v1", None):
        hold_url(url)
    assert redacted(said) == said


def test_credentials_in_headers_are_held() -> None:
    basic = base64.b64encode(b"ann:pass-word-9").decode()
    headers = {
        "Authorization": "Bearer bearer-token-1",
        "x-api-key": "anthropic-key-1",
        "Proxy-Authorization": f"Basic {basic}",
        "Idempotency-Key": "idempotency-1",
        "User-Agent": "agent-of-mine",
        "author": "author-of-mine",
        "tokenizer": "tokenizer-of-mine",
        "cookie": "session=abcdef; other=1",
    }
    hold_headers(headers)
    for said in ("bearer-token-1", "anthropic-key-1", basic, "pass-word-9", "session=abcdef; other=1"):
        assert redacted(said) == REDACTED
    for said in ("idempotency-1", "agent-of-mine", "author-of-mine", "tokenizer-of-mine", "Bearer"):
        assert redacted(said) == said


def test_headers_of_single_requests_push_out_no_lasting_credential() -> None:
    hold(KEY)
    for number in range(MOST_HELD):
        basic = base64.b64encode(f"ann:password-{number:06}".encode()).decode()
        hold_headers({"Authorization": f"Basic {basic}"}, passing=True)
    assert redacted(f"{KEY} password-000255") == f"{REDACTED} {REDACTED}"


def test_stops_errors_and_log_lines_hold_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "watchkeeper")
    hold(KEY)
    assert KEY in HELD
    assert Stop("error", "loop", f"no {KEY}").message == f"no {REDACTED}"
    error = ProviderError(f"no {KEY}", fault="auth")
    assert (str(error), error.message) == (f"no {REDACTED}", f"no {REDACTED}")
    logger().warning("key.told", key=KEY)
    assert "key.told" in caplog.text
    assert KEY not in caplog.text
