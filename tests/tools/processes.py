"""What tests ask of the system about processes."""

from __future__ import annotations

import os


def is_alive(process: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
