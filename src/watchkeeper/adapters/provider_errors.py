"""Translates what a provider's SDK raised into one of the faults of `ProviderError`.

The provider's own error type or code decides first, its wording second (only for a full context and blocked content,
which have no code everywhere), the HTTP status last. The wait that a provider asks for is kept in seconds. ``billed``
is True if the request had reached the provider and its end was not seen: the provider may charge for it.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from watchkeeper.adapters.reply_bounds import RefusedBodyError
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.secrets import redacted
from watchkeeper.core.errors import ProviderError, ProviderFault, ThrottleError

# Types and codes: https://docs.claude.com/en/api/errors, https://platform.openai.com/docs/guides/error-codes,
# openai/types/responses/response_error.py; exceed_context_size_error is llama.cpp's.
CODES: Final[Mapping[ProviderFault, str]] = {
    "rate_limit": "rate_limit_error rate_limit_exceeded",
    "auth": "insufficient_quota billing_error authentication_error permission_error invalid_api_key",
    # model_decommissioned is Groq's, DeploymentNotFound Azure's
    "not_found": "model_not_found not_found_error model_decommissioned DeploymentNotFound",
    "overloaded": "overloaded_error service_unavailable_error",
    "context_full": "request_too_large context_length_exceeded exceed_context_size_error",
    "refused": "content_policy_violation content_filter invalid_prompt bio_policy image_content_policy_violation",
    # Groq's: the model wrote a call or an answer that the server could not read
    "malformed_reply": "tool_use_failed output_parse_failed json_validate_failed",
    "server": "timeout_error api_error server_error",
}
BY_CODE: Final[Mapping[str, ProviderFault]] = {code: fault for fault, codes in CODES.items() for code in codes.split()}
STATUSES: Final[Mapping[ProviderFault, tuple[int, ...]]] = {
    "auth": (401, 402, 403),
    "not_found": (404, 410),
    "timeout": (408,),
    "server": (409,),
    "context_full": (413,),
    "rate_limit": (429,),
    "overloaded": (503, 529),
}
BY_STATUS: Final[Mapping[int, ProviderFault]] = {status: fault for fault, all_ in STATUSES.items() for status in all_}
CONTEXT_FULL: Final = re.compile(
    r"prompt is too long|maximum context length|exceeds? (the |this model's )?(available )?context"
    r"|context (limit|window|length) .*exceed|exceeds the context window|input is too long",
    re.IGNORECASE,
)
BLOCKED: Final = re.compile(r"content (filtering|management) policy|blocked by content filter", re.IGNORECASE)
UNREAD: Final = re.compile(r"\bfailed_generation\b")
MESSAGE_LENGTH: Final = 500


def provider_error(
    error: Exception, *, provider: str, url: str, code: str | None = None, clock: Clock = SYSTEM_CLOCK
) -> ProviderError:
    """Translate an exception of a provider's SDK, or of the HTTP client beneath it.

    Args:
        error: What was raised.
        provider: Name of the provider.
        url: The address of the request; named in the message if no server answered.
        code: The provider's error code, if the caller knows it from elsewhere.
        clock: Tells the time where a provider asks to wait until a date without telling its own.
    """
    response = getattr(error, "response", None)
    body = getattr(error, "body", None)
    status = cast("int | None", getattr(error, "status_code", None))
    if status is None and body is None:
        return connection_error(error, provider=provider, url=url)
    # LiteLLM makes a response of its own and keeps the provider's headers beside it.
    headers: Mapping[str, str] = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", {})
    said, text = describe(body)
    code = code or said
    if status is not None and 300 <= status < 400:
        text = f"a redirect to {headers.get('location')}, which is not followed: give the final address as base_url"
    text = text or shorten(str(error))
    fault = classify(code, text, status)
    billed = is_billed(fault, status, f"{provider} {url}")
    mapped = fault_error(fault, say(provider, status, text), provider=provider, status=status, billed=billed)
    mapped.retry_after = retry_after(headers, clock)
    request_id = headers.get("x-request-id") or headers.get("request-id")
    mapped.provider_payload.update({key: value for key, value in (("code", code), ("request_id", request_id)) if value})
    return mapped


def is_billed(fault: ProviderFault, status: int | None, server: str) -> bool:
    """Return whether a failed request may be on the bill.

    What the model wrote is billed, whatever the status. An error that arrives inside a stream (status 200, or none)
    ends a reply that had begun. Azure bills a prompt that its filter has read and refused, and perhaps an answer to it
    (https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter).

    Args:
        fault: What went wrong.
        status: The HTTP status, if there is one.
        server: The provider and the address, in any words.
    """
    if fault == "refused" and "azure" in server:
        return True
    return fault in ("timeout", "malformed_reply") or status is None or status < 300


def fault_error(
    fault: ProviderFault, message: str, *, provider: str, status: int | None = None, billed: bool = False
) -> ProviderError:
    """Return the error for a fault; a rate limit has a class of its own."""
    if fault != "rate_limit":
        return ProviderError(message, fault=fault, provider=provider, status=status, billed=billed)
    throttled = ThrottleError(message, provider=provider, status=status)
    throttled.billed = billed
    return throttled


def reply_error(error: object, provider: str) -> ProviderError:
    """Return the error that an accepted request reports within its answer; the request may be billed."""
    code, text = describe({"error": error})
    return fault_error(
        classify(code, text, None),
        say(provider, None, text or code or "the reply failed"),
        provider=provider,
        billed=True,
    )


def classify(code: str, text: str, status: int | None) -> ProviderFault:
    """Return the fault that an error's code, wording and HTTP status amount to."""
    if code in BY_CODE:
        return BY_CODE[code]
    if CONTEXT_FULL.search(text):
        return "context_full"
    if BLOCKED.search(text):
        return "refused"
    if UNREAD.search(text):
        return "malformed_reply"
    if status is None or status < 300:
        return "bad_request" if code == "invalid_request_error" else "server"
    if status in BY_STATUS:
        return BY_STATUS[status]
    return "server" if status >= 500 else "bad_request"


def describe(body: object) -> tuple[str, str]:
    """Return the code (or, without one that is known, the type) and the message of an error body.

    The body is the provider's JSON, whole (Anthropic) or already its ``error`` part (OpenAI's SDK unwraps it).
    """
    if not isinstance(body, Mapping):
        return "", shorten(body) if isinstance(body, str) else ""
    fields = cast("Mapping[str, Any]", body)
    inner = fields.get("error")
    if isinstance(inner, Mapping):
        fields = cast("Mapping[str, Any]", inner)
    elif isinstance(inner, str):
        return "", shorten(inner)
    names = [shorten(str(fields[key])) for key in ("code", "type") if fields.get(key)]
    code = next((name for name in names if name in BY_CODE), names[0] if names else "")
    return code, shorten(str(fields.get("message") or ""))


def retry_after(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Return the seconds a provider asks to wait: ``retry-after-ms``, or ``retry-after`` as seconds or as a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(milliseconds / 1000, 0.0)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return max(seconds, 0.0)
    until = _date(text)
    if until is None:
        return None
    # The provider's own idea of now is better than ours: its date and ours may differ by minutes.
    now = _date(headers.get("date")) or clock.now()
    return max((until - now).total_seconds(), 0.0)


def connection_error(error: Exception, *, provider: str, url: str) -> ProviderError:
    """Translate an error below HTTP: no server, a timeout, or a connection that broke."""
    import aiohttp

    chain = list(_causes(error))
    root = chain[-1]
    detail = shorten(str(root) or type(root).__name__)
    fault: ProviderFault = "connection"
    if isinstance(root, RefusedBodyError):
        return ProviderError(f"{provider} at {url}: {root}", fault=root.fault, provider=provider, billed=True)
    if any(isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError) for cause in chain):
        billed = False
        text = f"cannot connect to {provider} at {url}: {detail}; check the address, the network and the proxy"
    elif any(isinstance(cause, TimeoutError) for cause in chain):
        fault, billed = "timeout", True
        text = f"{provider} at {url} did not answer in time: {detail}"
    elif any(isinstance(cause, aiohttp.ClientPayloadError) for cause in chain):
        fault, billed = "broken_stream", True
        text = f"the answer of {provider} at {url} broke off: {detail}"
    else:
        billed = True
        text = f"the connection to {provider} at {url} was lost: {detail}"
    return ProviderError(text, fault=fault, provider=provider, billed=billed)


def say(provider: str, status: int | None, text: str) -> str:
    """Word an error with its provider and status."""
    return f"{provider} answered {status}: {text}" if status else f"{provider}: {text}"


def shorten(text: str) -> str:
    """Cut a provider's words to what fits a message; a credential in them is replaced first, so that no part stays."""
    return text if len(text) <= MESSAGE_LENGTH else f"{redacted(text)[:MESSAGE_LENGTH]} [...]"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


def _date(text: str | None) -> datetime | None:
    try:
        date = email.utils.parsedate_to_datetime(text) if text else None
    except (ValueError, OverflowError, TypeError):  # years and zones that no calendar has
        return None
    return date.replace(tzinfo=UTC) if date is not None and date.tzinfo is None else date
