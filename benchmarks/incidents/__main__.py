"""Replays every incident and prints one table, before and after: ``python -m benchmarks.incidents``.

Exits 1 if a contained run exceeded its ceiling, was not stopped, or was not counted exactly.
"""

from __future__ import annotations

import sys

from benchmarks.incidents.table import comparisons, table


def main() -> int:
    """Print the table."""
    try:
        print("\n".join(table(comparisons())))
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
