"""What is not clearly allowed is refused; what is allowed leads, for every client, to a host that was named."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yarl
from hypothesis import example, given
from hypothesis import strategies as st

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.egress import EgressAllowList, Origin, origin_of

GOOD = EgressAllowList(
    ["good.com", "*.good.org", "http://127.0.0.1:8080", "[::1]:9000", "any.net:*", "bücher.de"], ["*"]
)
CTX = ToolCallContext("request", kind="egress")


@pytest.mark.parametrize(
    "url",
    [
        "https://good.com",
        "https://good.com/",
        "https://good.com:443/v1?q=1#part",
        "https://good.com?q=https://evil.com",
        "https://good.com#@evil.com",
        "https://good.com/@evil.com/a:b",
        "HTTPS://GOOD.COM/Path",
        "https://good.com./",
        "https://a.good.org",
        "https://a.b.good.org/x",
        "http://127.0.0.1:8080/health",
        "https://[::1]:9000/",
        "https://[0:0:0:0:0:0:0:1]:9000/",
        "https://any.net:1/",
        "https://any.net:65535/",
        "https://bücher.de/",
        "https://BÜCHER.de/",
        "https://xn--bcher-kva.de/",
        "https://good.com/päth?ü=ß",
    ],
)
def test_a_named_host_is_reached_however_it_is_properly_spelled(url: str) -> None:
    assert GOOD.before_egress(CTX, url, "GET") is None


@pytest.mark.spec("EC-038")
@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "good.com",
        "//good.com",
        "https:good.com",
        "https:/good.com",
        "https:///good.com",
        "https://",
        "https://:443",
        "https://.",
        "https://evil.com",
        "https://evil.com/good.com",
        "https://evil.com?good.com",
        "https://evil.com#good.com",
        "https://good.com.evil.com",
        "https://evilgood.com",
        "https://good.com@evil.com",
        "https://good.com:443@evil.com",
        "https://good.com%40evil.com",
        "https://user:password@good.com",
        "https://@good.com",
        "https://good.com\\@evil.com",
        "https://good.com\\.evil.com",
        "https:\\\\good.com",
        "https://good.com/\\evil.com",
        "https://good.com\t",
        "https://go\nod.com",
        "https://good.com\x00.evil.com",
        "https://good.com\u2028",
        " https://good.com",
        "https://good.com..",
        "https://good..com",
        "https://.good.com",
        "https://good%2ecom",
        "https://goo%64.com",
        "https://good.com:",
        "https://good.com:0",
        "https://good.com:0443",
        "https://good.com:80",
        "https://good.com:444",
        "https://good.com:99999",
        "https://good.com:4٤3",
        "https://good.com:443:443",
        "https://any.net:65536",
        "http://good.com",
        "ftp://good.com",
        "file:///etc/passwd",
        "javascript://good.com/%0aalert(1)",
        "data:text/html,good.com",
        "https://good.org",
        "https://xgood.org",
        "https://.good.org",
        "https://good.org.evil.com",
        "https://g\u043e\u043ed.com",
        "https://ｇood.com",
        "https://good。com",
        "https://good．com",
        "https://good｡com",
        "https://good.com\u200b",
        "https://go\u00adod.com",
        "https://\u212aelvin.com",
        "http://127.1:8080",
        "http://2130706433:8080",
        "http://0x7f.0.0.1:8080",
        "http://0x7f000001:8080",
        "http://0177.0.0.1:8080",
        "http://127.0.0.1.:8080",
        "http://127.0.0.01:8080",
        "http://127.0.0.1",
        "https://127.0.0.1:8080",
        "https://[::1]",
        "https://[::ffff:127.0.0.1]:9000",
        "https://[::1%25eth0]:9000",
        "https://[::1%eth0]:9000",
        "https://[good.com]",
        "https://[::1]good.com:9000",
        "https://[:::1]:9000",
        "https://good.com]",
        "https://-good.com",
        "https://" + "a" * 64 + ".good.org",
        "https://" + "a." * 130 + "good.org",
    ],
)
def test_whatever_else_a_url_says_is_refused(url: str) -> None:
    assert GOOD.before_egress(CTX, url, "GET") is Decision.HALT


def test_letters_that_clients_turn_into_different_names_are_refused() -> None:
    shield = EgressAllowList(["fass.de", "xn--fa-hia.de"])
    assert shield.allows("https://fass.de")
    assert shield.allows("https://xn--fa-hia.de")
    assert not shield.allows("https://faß.de")


def test_characters_without_an_agreed_name_are_refused() -> None:
    shield = EgressAllowList(["*.com"])
    assert shield.allows("https://日本.com")
    assert not shield.allows("https://\u1e9eo.com")
    assert not shield.allows("https://☃.com")
    assert not shield.allows("https://" + "ü" * 64 + ".com")


def test_only_reading_is_allowed_unless_methods_are_named() -> None:
    shield = EgressAllowList(["good.com"])
    assert [
        shield.allows("https://good.com", method) for method in ("GET", "get", "HEAD", "POST", "DELETE", "", "*")
    ] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert EgressAllowList(["good.com"], ["post"]).before_egress(CTX, "https://good.com", "POST") is None


def test_an_empty_list_allows_nothing() -> None:
    assert not EgressAllowList([]).allows("https://good.com")
    assert not EgressAllowList(["good.com"], []).allows("https://good.com")


def test_a_refusal_says_what_was_refused() -> None:
    ctx = ToolCallContext("request", kind="egress", endpoint="https://evil.com/secret?key=1")
    said = "Nothing on the list allows this request to https://evil.com:443: add 'evil.com' to hosts."
    assert GOOD.explain(ctx) == said
    plain = ToolCallContext("request", kind="egress", endpoint="https://user@evil.com")
    assert GOOD.explain(plain) == "Nothing on the list allows this request to an address that is not plainly written."


def test_schemes_have_their_own_ports() -> None:
    assert origin_of("ws://good.com/socket") == Origin("ws", "good.com", 80)
    assert origin_of("wss://good.com") == Origin("wss", "good.com", 443)
    assert origin_of("http://good.com") == Origin("http", "good.com", 80)


PARTS = [
    "https",
    "http",
    ":",
    "/",
    "//",
    "://",
    "\\",
    "@",
    "?",
    "#",
    ".",
    "good.com",
    "a.good.org",
    "evil.com",
    "127.0.0.1",
    "[::1]",
    "any.net",
    ":443",
    ":8080",
    "%2e",
    "%40",
    "%00",
    "\t",
    " ",
    "。",
    "ß",
    "ü",
    "\u200d",
    "\u0430",
    "0x7f",
    "xn--",
    "[",
    "]",
    ";",
    "&",
    "'",
]
urls = st.one_of(
    st.text(max_size=40),
    st.text(max_size=20).map("https://good.com{}".format),
    st.text(max_size=20).map("https://{}good.com".format),
    st.text(max_size=12).map("https://{}.good.org/".format),
    st.lists(st.sampled_from(PARTS), max_size=9).map("".join),
    st.lists(st.sampled_from(PARTS), max_size=6).map(lambda parts: "https://" + "".join(parts)),
)


def is_named(scheme: str, host: str, port: int | None) -> bool:
    host = host.strip("[]").removesuffix(".").lower()
    port = port or {"https": 443, "http": 80}[scheme]
    names = {("https", "good.com", 443), ("http", "127.0.0.1", 8080), ("https", "::1", 9000)}
    return (
        (scheme, host, port) in names
        or (
            (scheme, port) == ("https", 443)
            and (host.endswith(".good.org") or host in ("bücher.de", "xn--bcher-kva.de"))
        )
        or (scheme, host) == ("https", "any.net")
    )


@pytest.mark.spec("EC-038")
@given(urls)
@example("https://good.com:443/@evil.com")
@example("https://ü.good.org/")
@example("https://a_b.good.org/")
def test_every_client_finds_a_named_host_in_what_is_allowed(url: str) -> None:
    if not GOOD.allows(url):
        return
    plain = urlsplit(url)
    assert is_named(plain.scheme, plain.hostname or "", plain.port)
    assert plain.username is plain.password is None
    with suppress(httpx.InvalidURL):  # who cannot read it sends nothing
        by_httpx = httpx.URL(url)
        assert is_named(by_httpx.scheme, by_httpx.raw_host.decode(), by_httpx.port)
        assert by_httpx.userinfo == b""
    with suppress(ValueError):
        by_yarl = yarl.URL(url)
        assert is_named(by_yarl.scheme, by_yarl.raw_host or "", by_yarl.port)
        assert by_yarl.user is by_yarl.password is None


@given(st.text(max_size=60))
def test_any_text_is_answered(url: str) -> None:
    origin = origin_of(url)
    assert origin is None or origin_of(f"{origin.scheme}://{bracketed(origin.host)}:{origin.port}") == origin


@given(st.text(max_size=12).map("https://{}.com/".format))
def test_a_name_has_one_spelling_and_it_leads_to_itself(url: str) -> None:
    origin = origin_of(url)
    if origin is not None:
        assert origin.host.isascii()
        assert origin.host == origin.host.lower()
        assert origin_of(f"https://{origin.host}") == origin
        for host in hosts_by_clients(url):
            assert host.removesuffix(".") == origin.host


def hosts_by_clients(url: str) -> list[str]:
    found: list[str] = []
    with suppress(httpx.InvalidURL):
        found.append(httpx.URL(url).raw_host.decode())
    with suppress(ValueError):
        found.append(yarl.URL(url).raw_host or "")
    with suppress(UnicodeError):  # as the standard library resolves it
        found.append((urlsplit(url).hostname or "").encode("idna").decode())
    return found


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "*",
        "*.",
        "*.*.com",
        "a*.com",
        "api.*.com",
        "*.127.0.0.1",
        "*.[::1]",
        "https://",
        "https://good.com/path",
        "user@good.com",
        "good.com:0",
        "good.com:65536",
        "good.com:http",
        "ftp://good.com",
        "good com",
        "good.com\n",
        "127.1",
        "[::g]",
        "-good.com",
        "faß.de",
        5,
        None,
    ],
)
def test_a_host_that_cannot_be_read_is_refused_with_its_value(host: Any) -> None:
    with pytest.raises(ConfigurationError, match="hosts") as caught:
        EgressAllowList([host])
    assert repr(host) in str(caught.value)


@pytest.mark.parametrize("method", ["", "GE T", "GET\n", "ＧＥＴ", 5, None])
def test_a_method_that_cannot_be_read_is_refused_with_its_value(method: Any) -> None:
    with pytest.raises(ConfigurationError, match="methods") as caught:
        EgressAllowList(["good.com"], [method])
    assert repr(method) in str(caught.value)


@pytest.mark.parametrize("field", ["hosts", "methods"])
@pytest.mark.parametrize("value", ["good.com", 5, None])
def test_a_list_that_is_none_is_refused(field: str, value: Any) -> None:
    lists: dict[str, Any] = {"hosts": ["good.com"], field: value}
    with pytest.raises(ConfigurationError, match=f"{field}="):
        EgressAllowList(**lists)
