"""Runs every benchmark, one after the other: ``python -m benchmarks``, or ``python -m benchmarks step session``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONG = frozenset({"judge", "told"})
"""Those that take more than half an hour with the bundled model; they are run if they are named."""


def main() -> int:
    """Run the named benchmarks, or all but the long ones; return 1 if one of them missed a target or failed."""
    here = Path(__file__).parent
    modules = [path.stem for path in here.glob("*.py") if not path.stem.startswith("__")]
    found = sorted([*modules, *(path.parent.name for path in here.glob("*/__main__.py"))])
    wanted = sys.argv[1:] or [name for name in found if name not in LONG]
    unknown = sorted(set(wanted) - set(found))
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; benchmarks: {', '.join(found)}", file=sys.stderr)
        return 2
    failed: list[str] = []
    for name in wanted:
        print(f"\n=== {name} ===", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nmissed a target or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
