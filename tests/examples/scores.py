"""How right records are: each field held against the known answers, by the rules of the example's DATA.md."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FIELDS = ("queue", "urgency", "customer", "order", "quote")


def answers_of(inbox: Path) -> dict[str, Any]:
    """Return the known answers by file name; they stand beside the folder that the agent may read."""
    answers: dict[str, Any] = json.loads(inbox.with_name("inbox-answers.json").read_text(encoding="utf-8"))
    return answers


def quote_is_right(quote: str | None, body: str, evidence: Iterable[str]) -> bool:
    """Whether a quote stands in the body, has a fit length, and lies in or holds an evidence sentence."""
    if quote is None or not 12 <= len(quote) <= 300 or quote not in body:
        return False
    return any(quote in sentence or sentence in quote for sentence in evidence)


def right_fields(record: Any, answer: Mapping[str, Any], body: str) -> set[str]:
    """Return the names of the fields that are right."""
    right = {name for name in ("queue", "urgency", "customer", "order") if getattr(record, name) == answer[name]}
    if quote_is_right(record.quote, body, answer["evidence"]):
        right.add("quote")
    return right


def count_right(records: Iterable[Any], answers: Mapping[str, Any], messages: Path) -> Counter[str]:
    """Count the right fields over all records of messages that can be filed; ``filed`` counts the records."""
    counted: Counter[str] = Counter()
    for record in records:
        answer = answers[record.file]
        if answer["error"] is None:
            body = (messages / record.file).read_bytes().decode("utf-8").partition("\n\n")[2]
            counted.update({"filed", *right_fields(record, answer, body)})
    return counted


def wilson(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    z = 1.959964
    share = right / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return middle - half, middle + half
