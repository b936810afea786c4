"""Build the wheel and try it as a user would: on Python 3.11 and on the newest Python that this machine has.

For each: a clean environment outside the tree, first the bare wheel (its import, what that costs, how many packages it
needs), then with the extra `cli` the commands, and the example with the scripted model in a folder that holds nothing
but the example. Any surprise ends it with a message and exit code 1.

Usage: check_wheel.py -- ARGUMENTS OF `watchkeeper run` FOR THE EXAMPLE
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
PACKAGED_PINS = {f"watchkeeper/local/requirements/{name}" for name in ("local-engine.txt", "local-model.txt")}
LOWEST = (3, 11)
IMPORT_CPU_MS = 80.0
CORE_PACKAGES = 10
MEASURE_IMPORT = """
import resource, time
start = time.process_time()
import watchkeeper
print((time.process_time() - start) * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
DESCRIBE_PYTHON = "import sys, venv, ensurepip; print(*sys.version_info[:2], sys.version_info[3], sys.executable)"


class CheckFailed(Exception):
    """Something is not as a user may expect it."""


def call(command: Sequence[str | Path], cwd: Path, env: dict[str, str]) -> str:
    """Run a command and return what it printed; a failure shows the command and its last lines."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise CheckFailed(f"exit code {done.returncode} from: {' '.join(words)}\n{tail}")
    return done.stdout


def clean_environment(home: Path) -> dict[str, str]:
    """Return the environment of a new user: no keys, no settings, an empty home; the way to packages is kept."""
    kept = re.compile(r"^(PATH|LANG|LC_.*|TMPDIR|PIP_.*|SSL_CERT_.*|.*_proxy)$", re.IGNORECASE)
    home.mkdir(exist_ok=True)
    return {name: value for name, value in os.environ.items() if kept.match(name)} | {"HOME": str(home)}


def interpreters() -> Iterator[Path]:
    """Yield every place where a Python may be: on PATH, beside this one, and under pyenv."""
    for minor in range(LOWEST[1], 30):
        if found := shutil.which(f"python3.{minor}"):
            yield Path(found)
    roots = {Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"}
    base = Path(sys.base_prefix)
    yield base / "bin" / "python3"
    if base.parent.name == "versions":
        roots.add(base.parent)
    for root in sorted(roots):
        yield from sorted(root.glob("3.*/bin/python3"))


def usable_pythons() -> dict[tuple[int, int], Path]:
    """Return the released Pythons that can make an environment, by version."""
    found: dict[tuple[int, int], Path] = {}
    for path in interpreters():
        try:
            done = subprocess.run([path, "-c", DESCRIBE_PYTHON], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.returncode:
            continue
        major, minor, level, executable = done.stdout.strip().split(maxsplit=3)
        version = (int(major), int(minor))
        if level == "final" and version >= LOWEST:
            found.setdefault(version, Path(executable))
    return found


def build(place: Path, env: dict[str, str]) -> Path:
    """Build the wheel and return its path."""
    call([sys.executable, "-m", "build", "--wheel", "--outdir", place, ROOT], place, env)
    (wheel,) = place.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Compare the wheel with the source folder: every module, the type marker, the licences, nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | PACKAGED_PINS
    if inside != expected:
        raise CheckFailed(f"the wheel and src differ in: {sorted(inside ^ expected)}")
    if "watchkeeper/py.typed" not in inside:
        raise CheckFailed("the wheel has no watchkeeper/py.typed")
    for licence in ("LICENSE", "NOTICE"):
        if not any(name.endswith(f"/licenses/{licence}") for name in names):
            raise CheckFailed(f"the wheel has no {licence}")
    print(f"  {wheel.name}: {len(inside)} files, {wheel.stat().st_size / 1024:.0f} KB, typed, with licence and notice")


def check_core(python: Path, place: Path, env: dict[str, str]) -> None:
    """Check the bare wheel: few packages, a cheap import, and a command that names the extra it needs."""
    listed = call([python, "-m", "pip", "list", "--format", "freeze"], place, env)
    found = re.findall(r"^([\w.-]+)(?:==| @ )", listed, re.MULTILINE)
    packages = [name for name in found if name not in {"pip", "setuptools", "wheel", "watchkeeper"}]
    if len(packages) > CORE_PACKAGES:
        raise CheckFailed(f"the core needs {len(packages)} packages, at most {CORE_PACKAGES} are allowed: {packages}")
    call([python, "-c", "import watchkeeper"], place, env)  # writes the bytecode
    costs = [[float(word) for word in call([python, "-c", MEASURE_IMPORT], place, env).split()] for _ in range(5)]
    cpu, memory = (sorted(column)[len(costs) // 2] for column in zip(*costs, strict=True))
    print(f"  bare: {len(packages)} packages; import {cpu:.1f} ms of CPU, {memory:.0f} MB of memory after it")
    if cpu > IMPORT_CPU_MS:
        raise CheckFailed(f"import watchkeeper costs {cpu:.0f} ms of CPU; the ceiling is {IMPORT_CPU_MS:.0f} ms")
    names = "import watchkeeper as w; [getattr(w, name) for name in w.__all__]; print(len(w.__all__))"
    print(f"  bare: all {call([python, '-c', names], place, env).strip()} exported names resolve")
    said = subprocess.run(
        [python.with_name("watchkeeper"), "--help"], env=env, capture_output=True, text=True, check=False
    )
    if said.returncode == 0 or "watchkeeper[cli]" not in said.stdout + said.stderr:
        raise CheckFailed(f"without the extra, the command does not name watchkeeper[cli]: {said.stderr[-500:]}")


def check_example(python: Path, place: Path, env: dict[str, str], arguments: list[str]) -> None:
    """Run the commands and the example from an otherwise empty folder with the scripted model."""
    for name in ("watchkeeper", "wk"):
        call([python.with_name(name), "--help"], place, env)
    shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    printed = call([python.with_name("watchkeeper"), "run", *arguments, "--model", "scripted"], place, env)
    print("  the example with the scripted model:")
    print("\n".join(f"    | {line}" for line in printed.splitlines()[-12:]))


def check_python(python: Path, wheel: Path, place: Path, arguments: list[str]) -> None:
    """Install the wheel with one Python in a new environment and check it there."""
    env = clean_environment(place / "home")
    call([python, "-m", "venv", place / "venv"], place, env)
    inside = place / "venv" / "bin" / "python"
    install: list[str | Path] = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", CONSTRAINTS]
    empty = place / "empty"
    empty.mkdir()
    call([*install, wheel], place, env)
    check_core(inside, empty, env)
    call([*install, f"{wheel}[cli]"], place, env)
    check_example(inside, empty, env, arguments)


def main() -> int:
    """Build once, check on both Pythons, and return the exit code."""
    arguments = sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]
    if not arguments:
        print(f"usage: {sys.argv[0]} -- ARGUMENTS OF `watchkeeper run`", file=sys.stderr)
        return 2
    pythons = usable_pythons()
    chosen = sorted({min(pythons), max(pythons)})
    if len(chosen) == 1:
        print(f"Only Python {'.'.join(map(str, chosen[0]))} was found: the wheel is checked on that alone.")
    try:
        with tempfile.TemporaryDirectory(prefix="watchkeeper-wheel-") as folder:
            place = Path(folder)
            print("The wheel")
            (place / "dist").mkdir()
            wheel = build(place / "dist", clean_environment(place / "home"))
            check_contents(wheel)
            for version in chosen:
                name = ".".join(map(str, version))
                print(f"Python {name} ({pythons[version]})")
                (place / name).mkdir()
                check_python(pythons[version], wheel, place / name, arguments)
    except CheckFailed as error:
        print(f"The wheel check failed: {error}", file=sys.stderr)
        return 1
    print("The wheel is good.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
