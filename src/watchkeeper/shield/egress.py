"""Where a call may reach: an allow-list of hosts and methods.

A request that is not clearly allowed is refused. URLs are parsed by a stricter grammar than the standard's, so that no
client can read another host from a URL than the one that was checked: everything that clients parse differently
(credentials, unusual spellings of addresses, characters that are folded or dropped) is refused. Host names are compared
as text; DNS is never asked. Each redirect is a request of its own.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.shield.decision import Decision, ToolCallContext
from watchkeeper.shield.tool_permission import words

READING: Final = ("GET", "HEAD")
"""Methods that are allowed by default."""

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@%\\]+)"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?:[/?#].*)?",
)
_PATTERN: Final = re.compile(
    r"(?:(?P<scheme>[A-Za-z]+)://)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@%\\]+)"
    r"(?::(?P<port>[1-9][0-9]{0,4}|\*))?",
)
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_METHOD: Final = re.compile(r"[A-Z][A-Z-]*")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a URL, in normalised form.

    Attributes:
        scheme: Lower case.
        host: A lower-case name without a dot at its end, or an address as `ipaddress` writes it.
        port: The port; the default port of the scheme if the URL has none.
    """

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class _Rule:
    scheme: str
    host: str
    port: int | None
    subdomains: bool

    def covers(self, origin: Origin) -> bool:
        if origin.scheme != self.scheme or self.port not in (None, origin.port):
            return False
        return origin.host.endswith("." + self.host) if self.subdomains else origin.host == self.host


class EgressAllowList:
    """Lets requests through to named hosts, by named methods, and refuses all others.

    Args:
        hosts: ``"api.example.com"`` is that host over https at port 443; ``"*.example.com"`` is every name below
            example.com, but not example.com itself; ``"example.com:8443"`` is another port, ``"example.com:*"`` any;
            ``"http://127.0.0.1:8080"`` and ``"wss://example.com"`` name the scheme, ``"[::1]"`` is an address. An
            empty list allows nothing.
        methods: HTTP methods; ``"*"`` means any. By default only methods that read.

    Raises:
        ConfigurationError: If a host or a method is not valid.
    """

    __slots__ = ("_methods", "_rules")

    def __init__(self, hosts: Iterable[str], methods: Iterable[str] = READING) -> None:
        """Parse the list once."""
        self._rules = tuple(_rule(host) for host in words(hosts, "hosts"))
        self._methods = frozenset(_method(method) for method in words(methods, "methods"))

    def before_egress(self, ctx: ToolCallContext, url: str, method: str) -> Decision | None:
        """Refuse a request that is not clearly allowed."""
        return None if self.allows(url, method) else Decision.HALT

    def allows(self, url: str, method: str = "GET") -> bool:
        """Return whether a request is on the list."""
        if method.upper() not in self._methods and "*" not in self._methods:
            return False
        origin = origin_of(url)
        return origin is not None and any(rule.covers(origin) for rule in self._rules)

    def explain(self, ctx: ToolCallContext) -> str:
        """Say where the request would have gone, without its path and its query."""
        origin = origin_of(ctx.endpoint or "")
        where = f"{origin.scheme}://{_bracketed(origin)}:{origin.port}" if origin else UNREADABLE
        missing = "" if origin is None else f": {self._missing(origin, None)}"
        return f"Nothing on the list allows this request to {where}{missing}."

    def entry_for(self, url: str, method: str) -> str | None:
        """Return what to add so that a request is allowed; None if it is; `UNREADABLE` if no entry can allow it."""
        if self.allows(url, method):
            return None
        origin = origin_of(url)
        return UNREADABLE if origin is None else self._missing(origin, method)

    def _missing(self, origin: Origin, method: str | None) -> str:
        """Say what to add to the list; without a method, only the host is checked."""
        added: list[str] = []
        if not any(rule.covers(origin) for rule in self._rules):
            added.append(f"add {entry_of(origin)!r} to hosts")
        if method is not None and not {method.upper(), "*"} & self._methods:
            added.append(f"add {method.upper()!r} to methods")
        return " and ".join(added) or f"the list allows the methods {', '.join(sorted(self._methods))} there"


UNREADABLE: Final = "an address that is not plainly written"


def entry_of(origin: Origin) -> str:
    """Return the entry of the list that allows an origin."""
    host = _bracketed(origin)
    if origin.scheme == "https":
        return host if origin.port == 443 else f"{host}:{origin.port}"
    return f"{origin.scheme}://{host}" + ("" if origin.port == _PORTS[origin.scheme] else f":{origin.port}")


def _bracketed(origin: Origin) -> str:
    return f"[{origin.host}]" if ":" in origin.host else origin.host


def origin_of(url: str) -> Origin | None:
    """Return the origin of a URL, or None if clients could parse the URL differently."""
    if _FORBIDDEN.search(url):
        return None
    match = _ORIGIN.fullmatch(url)
    if match is None:
        return None
    scheme, host = match["scheme"].lower(), _host(match["host"])
    port = int(match["port"]) if match["port"] else _PORTS.get(scheme)
    if scheme not in _PORTS or host is None or port is None or port > 65_535:
        return None
    return Origin(scheme, host, port)


def _host(text: str) -> str | None:
    """Return a host in normalised form, or None if the text is not a host."""
    if text.startswith("["):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            return None
    name = _in_ascii(text)
    if name is None:
        return None
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(name)) if text == name else None
        except ValueError:
            return None
    fits = len(name) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
    return name if fits else None


def _in_ascii(text: str) -> str | None:
    """Return a name in lower case, in ASCII, without the root's dot; None if clients could convert it differently.

    The two standards for international names, and the clients that follow them, differ in letters that fold into
    others (such as the German sharp s) and in characters that are replaced by others.
    """
    name = text.lower().removesuffix(".")
    if text.isascii():
        return name
    if unicodedata.normalize("NFKC", text) != text or text.lower() != text.casefold():
        return None
    if not all(character in ".-_" or unicodedata.category(character)[0] in "LMN" for character in name):
        return None
    try:
        ascii_name = name.encode("idna")
        same = ascii_name.decode("idna") == name and text.removesuffix(".").encode("idna").lower() == ascii_name
        return ascii_name.decode("ascii") if same else None
    except UnicodeError:
        return None


def _rule(pattern: str) -> _Rule:
    match = None if _FORBIDDEN.search(pattern) else _PATTERN.fullmatch(pattern)
    if match is None:
        raise ConfigurationError(
            f"hosts: {pattern!r} is not a host; write for example 'api.example.com', '*.example.com',"
            " 'example.com:8443' or 'http://127.0.0.1:8080'"
        )
    scheme, text, port = (match["scheme"] or "https").lower(), match["host"], match["port"]
    if scheme not in _PORTS:
        raise ConfigurationError(f"hosts: {pattern!r} has the scheme {scheme!r}; known are {', '.join(_PORTS)}")
    subdomains = text.startswith("*.")
    host = _host(text[2:] if subdomains else text)
    if host is None or (subdomains and (":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]))):
        raise ConfigurationError(f"hosts: {pattern!r} names no host; '*.' may stand before a name, and nowhere else")
    if port not in (None, "*") and int(port) > 65_535:
        raise ConfigurationError(f"hosts: {pattern!r} has a port above 65535")
    return _Rule(scheme, host, None if port == "*" else int(port or _PORTS[scheme]), subdomains)


def _method(method: str) -> str:
    name = method.upper()
    if name != "*" and not _METHOD.fullmatch(name):
        raise ConfigurationError(f"methods: {method!r} is not an HTTP method; write for example 'GET', or '*' for any")
    return name
