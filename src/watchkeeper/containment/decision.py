"""What the gate says about a call, in the words of the seed execution-context."""

from __future__ import annotations

from enum import StrEnum


class Decision(StrEnum):
    """The verdict on one call; the value equals the name.

    ALLOW: it ran and returned. RETRY: it ran and failed, and may be repeated. HALT: it was refused or stopped.
    DEGRADE, QUARANTINE and QUEUE come from hooks and are forwarded to the caller.
    """

    ALLOW = "ALLOW"
    RETRY = "RETRY"
    HALT = "HALT"
    DEGRADE = "DEGRADE"
    QUARANTINE = "QUARANTINE"
    QUEUE = "QUEUE"
