"""Errors of providers' SDKs show no credential, neither in their texts nor in a traceback."""

from __future__ import annotations

import traceback
from typing import Any

from watchkeeper.adapters.scrubbing import conceal, scrub
from watchkeeper.core.secrets import REDACTED, hold

KEY = "sk-proj-0123456789abcdef"


def test_an_error_and_its_causes_are_scrubbed() -> None:
    hold(KEY)
    inner, outer = ValueError(f"inner {KEY}", 3), KeyError(f"outer {KEY}")
    outer.body = {"error": [{"message": KEY}], 3: KEY}  # type: ignore[attr-defined]
    outer.__cause__, inner.__context__ = inner, outer
    scrub(outer)
    assert (inner.args, outer.args) == ((f"inner {REDACTED}", 3), (f"outer {REDACTED}",))
    assert KEY not in str(vars(outer))
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    outer.body = deep  # type: ignore[attr-defined]
    scrub(outer)
    assert outer.body == REDACTED  # type: ignore[attr-defined]


class Telling(Exception):
    """An error whose text does not come from its arguments."""

    def __str__(self) -> str:
        return f"url='https://host/?key={KEY}'"


def test_an_error_whose_text_cannot_be_changed_is_replaced_in_the_traceback() -> None:
    hold(KEY)
    try:
        try:
            try:
                raise KeyError("the first")
            except KeyError as first:
                raise Telling from first
        except Telling as telling:
            raise ValueError(f"outer {KEY}") from telling
    except ValueError as error:
        outer = error
    scrub(outer)
    conceal(outer)
    told = "".join(traceback.format_exception(outer))
    assert KEY not in told
    assert f"Telling: url='https://host/?key={REDACTED}'" in told
    assert "KeyError: 'the first'" in told
    assert "raise Telling" in told  # where it was raised is still shown
