"""The credentials that this process holds, and how they are kept out of what it writes.

Code that reads a credential registers it here: API keys, authorization headers, user info and secret parameters of
URLs. Texts that are written (stored events, log lines, messages of stops and of provider errors, the result for
``--notify``) then show ``[redacted]`` in place of each credential. Only these exact texts are replaced; all else stays
as it is, because a run must be resumable from what is stored. A text of fewer than eight characters is never replaced:
it could be an ordinary word. Nothing here guesses whether a text is a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from watchkeeper.core.forks import ModuleLock

REDACTED: Final = "[redacted]"
LEAST: Final = 8
"""Characters of the shortest credential that is replaced."""

MOST_HELD: Final = 256
"""How many credentials are held; the oldest are forgotten, because renewed tokens would add up without end. Those that
change with every request are counted apart, so that they do not push out a key that was held once."""

PLACEHOLDERS: Final = frozenset(
    {"lm-studio", "not-needed", "not-required", "no-key-required", "placeholder", "anything"}
)
"""What people write where a server needs no key: words, not secrets."""

SECRET_NAME: Final = (
    r"(?i)(^|api|access|secret|private|(?<!idempotency)(?<!cache)[-_])key$|token(?!i[sz])|secret|(^|[-_])sig(nature)?$"
    r"|passw|(^|[-_])auth(?!ors?(?![a-z]))|credential|cookie"
)
"""Names of headers and of parameters of addresses that hold credentials; compiled when it is needed."""

SECRET_VARIABLES: Final = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
"""Ends of names of environment variables that hold credentials."""


class _Held(NamedTuple):
    """What is known of one credential.

    Attributes:
        forms: The texts in which it may appear.
        in_json: The same inside JSON.
        anchor: A part of it that percent-encoding leaves as it is; None if that would leave all of it.
        passing: Whether it belongs to one request only.
    """

    forms: frozenset[str]
    in_json: frozenset[str]
    anchor: str | None
    passing: bool


class Secrets:
    """Credentials, and the texts in which each may appear; safe to use from several threads."""

    __slots__ = ("_anchors", "_held", "_in_json", "_lock", "_pattern", "_texts")

    def __init__(self) -> None:
        """Hold nothing."""
        self._lock = ModuleLock()
        self._held: dict[str, _Held] = {}
        self._anchors: tuple[str, ...] = ()
        self._texts: tuple[str, ...] = ()
        self._in_json: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    @property
    def any(self) -> bool:
        """Whether any credential is held."""
        return bool(self._texts)

    def __contains__(self, text: object) -> bool:
        """Return whether exactly this credential is held."""
        return text in self._held

    def add(self, text: object, *, passing: bool = False) -> None:
        """Register a credential; ignore values that are no text, too short or a known placeholder.

        Args:
            text: The credential.
            passing: Whether it belongs to one request only.
        """
        if not isinstance(text, str) or len(text) < LEAST or text in PLACEHOLDERS:
            return
        known = self._held.get(text)
        if known is not None and known.passing <= passing:
            return
        with self._lock:
            forms, anchor = _forms(text), _anchor(text)
            held = {**self._held, text: _Held(forms, frozenset(map(_in_json, forms)), anchor, passing)}
            alike = [other for other, each in held.items() if each.passing == passing]
            for oldest in alike[:-MOST_HELD]:
                del held[oldest]
            plain = frozenset[str]().union(*(each.forms for each in held.values()))
            # The pattern is compiled when it is needed: that takes 100 ms, and signatures change with every request.
            self._pattern = None
            self._in_json = tuple(frozenset[str]().union(*(each.in_json for each in held.values())))
            self._anchors = tuple(each.anchor for each in held.values() if each.anchor is not None)
            self._texts, self._held = tuple(sorted(plain, key=len, reverse=True)), held

    def redacted(self, text: str) -> str:
        """Return a text without the credentials in it."""
        # A substring search per text is many times faster than the pattern, and almost never finds a credential.
        return self._compiled().sub(REDACTED, text) if self._may_show(text, self._texts) else text

    def _may_show(self, text: str, forms: tuple[str, ...]) -> bool:
        for form in forms:
            if form in text:
                return True
        return bool(self._anchors) and "%" in text and any(anchor in text for anchor in self._anchors)

    def _compiled(self) -> re.Pattern[str]:
        with self._lock:
            if self._pattern is None:
                patterns = {text: re.escape(text) for text in self._texts}
                patterns |= {text: _encoded(text) for text, each in self._held.items() if each.anchor is not None}
                self._pattern = re.compile("|".join(patterns[text] for text in sorted(patterns, key=len, reverse=True)))
            return self._pattern

    def redacted_json(self, text: str) -> str:
        """Return JSON, as `session.tagging` writes it, without the credentials in its texts; it stays valid JSON."""
        if not self._texts:
            return text
        encoded = '"utf16"' in text or '"bytes"' in text
        if not encoded and not self._may_show(text, self._in_json):
            return text
        import json  # here and below: nearly every process imports this module, and few need these

        return json.dumps(self.redacted_data(json.loads(text)), ensure_ascii=False, separators=(",", ":"))

    def redacted_data(self, data: Any) -> Any:
        """Return JSON-able data without the credentials in its texts."""
        if isinstance(data, str):
            return self.redacted(data)
        if isinstance(data, list | tuple):
            return [self.redacted_data(item) for item in cast("Iterable[Any]", data)]
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        redacted = {self.redacted_data(key): self.redacted_data(value) for key, value in fields.items()}
        for key, encoding in (("utf16", "utf-16-le"), ("value", "latin-1")):
            if fields.get("$type") in ("str", "bytes", "bytearray") and isinstance(fields.get(key), str):
                redacted[key] = self._redacted_base64(fields[key], encoding)
        return redacted

    def _redacted_base64(self, text: str, encoding: str) -> str:
        import base64

        try:
            inside = base64.b64decode(text, validate=True).decode(encoding, "surrogatepass")
        except ValueError:
            return text
        said = self.redacted(inside)
        return text if said == inside else base64.b64encode(said.encode(encoding, "surrogatepass")).decode("ascii")


def _forms(secret: str) -> frozenset[str]:
    """Return the forms in which a credential may appear in texts: plain, inside JSON, and with its spaces in a URL."""
    import json

    escaped = (_in_json(secret), json.dumps(secret)[1:-1])
    slashes = (form.replace("/", "\\/") for form in escaped)  # as PHP and others write them
    return frozenset({secret, secret.replace(" ", "+"), *escaped, *slashes})


_KEPT: Final = re.compile(r"[A-Za-z0-9._~-]+")
"""Characters that percent-encoding leaves as they are."""


def _anchor(secret: str) -> str | None:
    """Return the longest part of a credential that percent-encoding leaves as it is; None if that is all of it."""
    return None if _KEPT.fullmatch(secret) else max(_KEPT.findall(secret), key=len, default="")


def _encoded(secret: str) -> str:
    """Return a pattern of a credential in a URL: each library encodes other characters, and few encode all."""
    return "".join(character if _KEPT.fullmatch(character) else _one_encoded(character) for character in secret)


def _one_encoded(character: str) -> str:
    digits = "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
    plus = "|[+]" if character == " " else ""
    return f"(?:{re.escape(character)}|(?i:{digits}){plus})"


def _in_json(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)[1:-1]


HELD: Final = Secrets()
"""The credentials of this process."""

redacted = HELD.redacted


def hold(*secrets: object, passing: bool = False) -> None:
    """Register credentials; values that are no text are ignored."""
    for secret in secrets:
        HELD.add(secret, passing=passing)


def hold_url(url: object, *, passing: bool = False) -> None:
    """Register the user info of a URL, and the values of parameters whose names match `SECRET_NAME`.

    Args:
        url: An address, also one without a scheme; other values are ignored.
        passing: Whether it belongs to one request only.
    """
    if not isinstance(url, str) or ("@" not in url and "?" not in url):
        return
    import base64
    import urllib.parse

    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"//{url}")
        user, password = parts.username, parts.password
    except ValueError:
        return
    if user is not None:
        info = parts.netloc.rpartition("@")[0]
        plain = urllib.parse.unquote(info)
        hold(info, plain, base64.b64encode(plain.encode()).decode(), passing=passing)
        secret = user if password is None else password
        hold(secret, urllib.parse.unquote(secret), passing=passing)
    for part in parts.query.split("&"):
        name, _, value = part.partition("=")
        if re.search(SECRET_NAME, urllib.parse.unquote_plus(name)):
            hold(urllib.parse.unquote(value), urllib.parse.unquote_plus(value), passing=passing)


def hold_headers(headers: Mapping[str, Any] | None, *, passing: bool = False) -> None:
    """Register the credentials in headers: of ``Authorization``, what follows the scheme.

    Args:
        headers: By name.
        passing: Whether they belong to one request only.
    """
    for name, value in (headers or {}).items():
        if not isinstance(value, str) or value in HELD or not re.search(SECRET_NAME, name):
            continue
        scheme, _, rest = value.partition(" ") if "authorization" in name.lower() else ("", "", value)
        hold(rest.strip() or scheme, passing=passing)
        if scheme.lower() == "basic":
            _hold_basic(rest.strip(), passing=passing)


def _hold_basic(text: str, *, passing: bool) -> None:
    """Register the password of basic authentication, which is only base64-encoded, not encrypted."""
    import base64

    try:
        info = base64.b64decode(text, validate=True).decode()
    except ValueError:
        return
    hold(info, info.partition(":")[2], passing=passing)


def hold_variables(environ: Mapping[str, str]) -> None:
    """Register the credentials in environment variables, by the ends of their names; for code that reads many."""
    hold(*(value for name, value in environ.items() if name.endswith(SECRET_VARIABLES)))
