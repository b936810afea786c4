"""The messages by which variants of the agent were compared are others than those its accuracy is stated for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.examples.scores import quote_is_right

INBOX = Path(__file__).parents[2] / "examples" / "inbox"
DEV: list[dict[str, Any]] = json.loads((Path(__file__).parent / "dev_messages.json").read_text(encoding="utf-8"))


def test_every_queue_and_urgency_is_there_and_evidence_can_be_quoted() -> None:
    assert set(Counter(message["queue"] for message in DEV).values()) <= {3, 4}
    assert {message["urgency"] for message in DEV} == {"low", "normal", "high"}
    for message in DEV:
        assert all(quote_is_right(sentence, message["body"], [sentence]) for sentence in message["evidence"])


def test_no_sentence_of_them_stands_in_the_mailbox_or_the_prompt() -> None:
    mailbox = "\n".join(path.read_text(encoding="utf-8") for path in (INBOX / "messages").iterdir())
    prompt = (INBOX / "agent.py").read_text(encoding="utf-8")
    for message in DEV:
        for sentence in message["evidence"]:
            assert sentence not in mailbox
            assert sentence not in prompt
