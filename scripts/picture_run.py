"""Make the README's picture of a run: run a command, keep what it printed, draw it as a terminal.

Usage: picture_run.py OUT.svg TITLE -- COMMAND ...

The text and its colours are those of the run. A line that is wider than the picture ends in an ellipsis, and of several
items only the first and the last are drawn, with the number of lines that were left out between them. The exit code is
that of the command; nothing is drawn of a run that failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

WIDTH = 118
ITEM = "▸"


def printed_by(command: list[str]) -> tuple[int, list[str]]:
    """Run a command as if in a terminal, showing its output as it comes; return its exit code and its lines."""
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        if process.stdout is None:
            raise RuntimeError("the command was started without a pipe for its output")
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return process.returncode, lines


def shortened(lines: list[Text]) -> list[Text]:
    """Leave out the items between the first and the last."""
    starts = [number for number, line in enumerate(lines) if line.plain.startswith(ITEM)]
    if len(starts) < 3:
        return lines
    left_out = starts[-1] - starts[1]
    return [*lines[: starts[1]], Text(f"  ⋮ {left_out} lines", style="dim"), *lines[starts[-1] :]]


def draw(lines: list[Text], title: str) -> str:
    """Return the lines as an SVG."""
    console = Console(width=WIDTH, record=True, file=StringIO(), color_system="truecolor", legacy_windows=False)
    for line in lines:
        line.truncate(WIDTH, overflow="ellipsis")
        console.print(line, no_wrap=True, highlight=False)
    # The fonts that rich would fetch from elsewhere: any monospaced font does.
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=form, unique_id="run")


def main() -> int:
    """Run, draw, and return the command's exit code."""
    if len(sys.argv) < 5 or sys.argv[3] != "--":
        print(f"usage: {sys.argv[0]} OUT.svg TITLE -- COMMAND ...", file=sys.stderr)
        return 2
    out, title, command = Path(sys.argv[1]), sys.argv[2], sys.argv[4:]
    code, lines = printed_by(command)
    if code:
        print(f"the command ended with exit code {code}; {out} was not made", file=sys.stderr)
        return code
    svg = draw(shortened([Text.from_ansi(line) for line in lines]), title)
    out.write_text(svg, encoding="utf-8")
    print(f"{out}: {len(svg.encode()) / 1024:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
