"""Texts that somebody else wrote are bounded, and can be sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.messages import UserMessage, text_bytes
from watchkeeper.core.text import bounded, storable


@given(st.text(st.characters(), max_size=50), st.integers(1, 60))
def test_what_is_cut_is_said(text: str, most: int) -> None:
    shown = bounded(text, most)
    shown.encode()  # raises where it could not be sent
    if len(text) <= most:
        assert len(shown) == len(text)
    else:
        assert shown.endswith(f"\n[cut: {len(text) - most} more characters]")


def test_only_what_cannot_be_sent_is_replaced() -> None:
    assert storable("naïve \U0001f600") == "naïve \U0001f600"
    assert storable("caf\udce9") == "caf?"


def test_a_lone_surrogate_counts_as_what_is_sent_for_it() -> None:
    assert text_bytes(UserMessage.of("caf\udce9")) == len("caf\ufffd".encode())
