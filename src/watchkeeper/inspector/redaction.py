"""What is left out of a page that is given to others: what looks like a credential, and texts that the user names.

The credentials that this process holds are left out of every page (`core.secrets`). A stored run may hold others: a
tool has read them in a file, a server has sent them. Here they are guessed by their form, because a page that leaves
the machine is better without a word too many. Each is replaced by what it was, and counted with its events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from watchkeeper.core.quantities import counted

KEY: Final = "API key"
TOKEN: Final = "token"
PRIVATE: Final = "private key"
PASSWORD: Final = "password or secret"
NAMED: Final = "text that was named"

MOST_PLACES: Final = 5
"""How many events are named where something was left out."""

FORMS: Final[Mapping[str, str]] = {
    PRIVATE: r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    TOKEN: (  # the first is looked for once in a word: a text of nothing but its beginnings would take hours
        r"(?<![\w-])(?>[\w-]*?\beyJ)[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
        r"|(?<=\bBearer )[\w.~+/-]{12,}=*|(?<=\bBasic )[\w+/-]{12,}=*"
    ),
    KEY: (
        r"\bsk-[\w-]{16,}|\b[rsp]k_(?:live|test)_\w{16,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
        r"|\bxox[a-z]-[\w-]{10,}|\bAIza[\w-]{30,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bhf_[A-Za-z0-9]{24,}"
        r"|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{40,}"
    ),
    PASSWORD: (
        r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"
        r"|(?:(?<=password)|(?<=passwd)|(?<=secret)|(?<=token)|(?<=api_key)|(?<=api-key)|(?<=apikey)|(?<=access_key)"
        r"|(?<=private_key))(?P<sign>\\?[\"']?\s*[:=]\s*\\?[\"']?)"
        r"(?!(?:true|false|null|none|unknown)\b|\d+\b|\[redacted)[^\s\"'\\,;{}]{6,}"
    ),
}
"""How credentials look, by what they are; the first that fits holds."""

ANCHORS: Final = (
    *("-----begin", "eyj", "bearer ", "basic ", "sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "xox", "aiza", "akia", "asia", "hf_", "npm_", "pypi-", "://", "password", "passwd"),
    *("secret", "token", "api_key", "api-key", "apikey", "access_key", "private_key"),
)
"""A text that has none of these in lower case has nothing that fits; to see that takes far less time."""


class Redaction:
    """Leaves texts out of data, and counts them."""

    def __init__(self, named: Iterable[str] = (), *, guesses: bool = True) -> None:
        """Leave out named texts and, unless they are to stay, what looks like a credential.

        Args:
            named: Texts, as they are written.
            guesses: Whether to look for credentials by their form.
        """
        texts = sorted(named, key=len, reverse=True)
        forms = {NAMED: "|".join(map(re.escape, texts))} if texts else {}
        self._anchors = (*(text.lower() for text in texts), *(ANCHORS if guesses else ()))
        forms |= FORMS if guesses else {}
        self._kinds = tuple(forms)
        groups = (f"(?P<k{number}>{form})" for number, form in enumerate(forms.values()))
        self._pattern = re.compile("|".join(groups), re.IGNORECASE | re.DOTALL) if forms else None
        self._counts: dict[str, int] = {}
        self._places: dict[str, dict[int, None]] = {}
        self._seq: int | None = None

    def data(self, data: Any) -> Any:
        """Return JSON-able data without them; keys of objects stay as they are."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, list | tuple):
            return [self.data(each) for each in cast("Iterable[Any]", data)]
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        outside = self._seq
        if isinstance(fields.get("seq"), int):
            self._seq = fields["seq"]
        found = {key: self.data(value) for key, value in fields.items()}
        self._seq = outside
        return found

    def text(self, text: str) -> str:
        """Return a text without them."""
        lowered = text.lower()
        if self._pattern is None or not any(anchor in lowered for anchor in self._anchors):
            return text
        return self._pattern.sub(self._left_out, text)

    def _left_out(self, match: re.Match[str]) -> str:
        kind = self._kinds[next(number for number in range(len(self._kinds)) if match[f"k{number}"] is not None)]
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if self._seq is not None:
            self._places.setdefault(kind, {})[self._seq] = None
        return f"{match.groupdict().get('sign') or ''}[redacted: {kind}]"

    def in_words(self) -> str:
        """Return what was left out and where; empty for nothing."""
        return "; ".join(self._kind_in_words(kind, times) for kind, times in self._counts.items())

    def _kind_in_words(self, kind: str, times: int) -> str:
        places = sorted(self._places.get(kind, ()))
        more = f" and {len(places) - MOST_PLACES:,} more" if len(places) > MOST_PLACES else ""
        events = ", ".join(f"{seq:,}" for seq in places[:MOST_PLACES])
        where = f" (event{'s' * (len(places) > 1)} {events}{more})" if places else ""
        return f"{kind}, {counted(times, 'time')}{where}"
