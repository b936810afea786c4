"""Where the command starts; this module needs nothing beyond the core packages.

Without the extra it says what to install instead of showing a traceback; everything else is in `main`.
"""

from __future__ import annotations

import sys
from typing import Final

MISSING: Final = "error: the command line needs optional dependencies: pip install 'watchkeeper[cli]'\n"
BAD_INPUT: Final = 2


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: Always, with the command's exit code.
    """
    try:
        from watchkeeper.cli import main as command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write(MISSING)
        raise SystemExit(BAD_INPUT) from None
    command.main()
