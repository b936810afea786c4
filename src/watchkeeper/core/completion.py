"""The words for whether work is done: what a checker says, and how the work then stands on the record.

Four words stand on the record, and only one of them is a pass. Whatever keeps a checker from giving its verdict (an
error, a limit, nothing to look at) is ``unverified``, never ``verified``; work that nobody was to check is
``unchecked``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

CompletionStatus = Literal["complete", "incomplete", "unverified"]
"""What a checker says of the work."""

CompletionState = Literal["verified", "rejected", "unverified", "unchecked"]
"""How the work stands on the record."""

STATES: Final[Mapping[CompletionStatus, CompletionState]] = {
    "complete": "verified",
    "incomplete": "rejected",
    "unverified": "unverified",
}
"""How work stands after a checker's word."""
