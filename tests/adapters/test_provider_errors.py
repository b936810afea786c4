"""How an SDK's error becomes a fault: code first, wording second, status last."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.adapters.provider_errors import (
    BY_CODE,
    classify,
    connection_error,
    describe,
    provider_error,
    reply_error,
    retry_after,
)
from watchkeeper.core.clock import TestClock
from watchkeeper.core.errors import ProviderError, ThrottleError

NOON = TestClock(datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC))


class SdkError(Exception):
    """Looks like the SDKs' errors: status, body and response are attributes."""

    def __init__(self, status: int | None = None, body: object = None, headers: dict[str, str] | None = None) -> None:
        super().__init__("Error code: something")
        self.status_code = status
        self.body = body
        self.response = SimpleNamespace(headers=headers or {})


def mapped(*args: Any, **kwargs: Any) -> ProviderError:
    return provider_error(SdkError(*args, **kwargs), provider="openai", url="http://there", clock=NOON)


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (400, "bad_request"),
        (401, "auth"),
        (402, "auth"),
        (403, "auth"),
        (404, "not_found"),
        (408, "timeout"),
        (409, "server"),
        (413, "context_full"),
        (418, "bad_request"),
        (422, "bad_request"),
        (429, "rate_limit"),
        (500, "server"),
        (502, "server"),
        (503, "overloaded"),
        (504, "server"),
        (529, "overloaded"),
    ],
)
def test_a_status_alone(status: int, fault: str) -> None:
    error = mapped(status, "<html>nothing to read</html>")
    assert error.fault == fault
    assert isinstance(error, ThrottleError) is (fault == "rate_limit")
    assert error.message == f"openai answered {status}: <html>nothing to read</html>"


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_a_known_code_decides_whatever_the_status(code: str) -> None:
    assert classify(code, "", 400) == BY_CODE[code]
    assert mapped(400, {"code": code, "message": "so"}).fault == BY_CODE[code]


@pytest.mark.spec("FR-067")
@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 207791 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648",
        "This model's maximum context length is 8192 tokens. However, you requested 8227 tokens",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "Input is too long for requested model.",
    ],
)
def test_a_full_context_is_known_by_its_words(text: str) -> None:
    assert classify("invalid_request_error", text, 400) == "context_full"


def test_words_about_context_in_other_matters_are_not_mistaken() -> None:
    assert classify("", "Extra inputs are not permitted: context", 400) == "bad_request"


def test_blocked_content_is_known_by_its_words() -> None:
    assert classify("", "Output blocked by content filtering policy", 400) == "refused"
    assert classify("", "The response was filtered due to Azure's content management policy", 400) == "refused"


def test_a_bad_request_within_a_stream() -> None:
    assert classify("invalid_request_error", "so", 200) == "bad_request"
    assert classify("", "so", None) == "server"


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ({"error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded_error", "Overloaded"),
        ({"code": None, "type": "requests", "message": "slow"}, "requests", "slow"),
        ({"code": "rate_limit_exceeded", "type": "requests"}, "rate_limit_exceeded", ""),
        ({"code": "odd", "type": "server_error", "message": "so"}, "server_error", "so"),
        ({"error": "unauthorized"}, "", "unauthorized"),
        ({}, "", ""),
        ("plain", "", "plain"),
        (None, "", ""),
        (["list"], "", ""),
    ],
)
def test_what_a_body_says(body: object, code: str, text: str) -> None:
    assert describe(body) == (code, text)


def test_long_words_are_cut() -> None:
    message = mapped(500, {"message": "x" * 5000}).message
    assert len(message) < 600
    assert message.endswith("[...]")


@pytest.mark.parametrize("field", ["code", "type"])
def test_a_long_code_is_cut(field: str) -> None:
    said = {field: "x" * 5000}
    assert len(reply_error(said, "openai").message) < 600
    error = mapped(500, said)
    assert len(error.message) + len(error.provider_payload["code"]) < 1200


def test_the_request_is_named_for_the_providers_support() -> None:
    payload = mapped(500, {"code": "odd"}, {"x-request-id": "req_7"}).provider_payload
    assert (payload["request_id"], payload["code"], payload["status"]) == ("req_7", "odd", 500)
    assert mapped(500, {}, {"request-id": "req_8"}).provider_payload["request_id"] == "req_8"
    assert "request_id" not in mapped(500, {}).provider_payload


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:20 GMT"}, 20.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:20 -0000"}, 20.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:59:00 GMT"}, 0.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:20 GMT", "date": "Sat, 21 Nov 2026 12:00:15 GMT"}, 5.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOON) == seconds
    assert mapped(429, {}, headers).retry_after == seconds


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "date"]), st.text()))
def test_no_header_can_break_the_wait(headers: dict[str, str]) -> None:
    seconds = retry_after(headers, NOON)
    assert seconds is None or 0 <= seconds < float("inf")


json_like: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "code", "type", "message", "x"]), inner),
)


@given(st.integers(100, 599) | st.none(), json_like)
def test_no_body_can_break_the_translation(status: int | None, body: Any) -> None:
    error = mapped(status, body)
    assert isinstance(error, ProviderError)
    assert error.message


def test_a_redirect_names_where_to() -> None:
    assert "a redirect to http://new, which is not followed" in mapped(308, "", {"location": "http://new"}).message


def test_causes_below_http_are_told_apart() -> None:
    def caused(cause: Exception | None) -> ProviderError:
        error = RuntimeError("Connection error.")
        error.__cause__ = cause
        return provider_error(error, provider="openai", url="http://there")

    refused = aiohttp.ClientConnectorError(SimpleNamespace(ssl=None, host="there", port=80), OSError(111, "refused"))  # type: ignore[arg-type]
    assert (caused(refused).fault, caused(refused).billed) == ("connection", False)
    assert caused(aiohttp.ConnectionTimeoutError()).billed is False
    assert (caused(TimeoutError()).fault, caused(TimeoutError()).billed) == ("timeout", True)
    assert caused(aiohttp.ClientPayloadError("half")).fault == "broken_stream"
    lost = caused(aiohttp.ServerDisconnectedError())
    assert (lost.fault, lost.billed, lost.retryable) == ("connection", True, True)
    assert "lost: Connection error." in caused(None).message
    assert "TimeoutError" in connection_error(TimeoutError(), provider="openai", url="http://there").message


@pytest.mark.parametrize(
    ("provider", "url", "billed"),
    [
        ("openai", "https://api.openai.com/v1/", False),
        ("openai", "https://mine.openai.azure.com/openai/v1/", True),
        ("azure", "LiteLLM's azure", True),
    ],
)
def test_azure_bills_a_prompt_that_its_filter_has_read_and_refused(provider: str, url: str, billed: bool) -> None:
    error = SdkError(400, {"code": "content_filter", "message": "The response was filtered"})
    refused = provider_error(error, provider=provider, url=url)
    assert (refused.fault, refused.billed) == ("refused", billed)
    other = provider_error(SdkError(400, {"message": "no such field"}), provider=provider, url=url)
    assert (other.fault, other.billed) == ("bad_request", False)


def test_an_error_within_an_answer_may_have_to_be_paid_for() -> None:
    throttled = reply_error({"code": "rate_limit_exceeded", "message": "slow"}, "openai")
    assert isinstance(throttled, ThrottleError)
    assert throttled.billed
    assert reply_error(None, "openai").message == "openai: the reply failed"
    assert reply_error({"code": "odd"}, "openai").message == "openai: odd"
