"""Whether the tests notice when a behaviour breaks: the source is broken on purpose, in one place at a time.

Each mutant of ``mutants.json`` names one behaviour, the change of the source that breaks it, and the tests that must
fail then. It has a place in the tree as it was before modules were merged (``old``) and one in the tree as it is
(``new``; what is left out there is as in ``old``). So the same mutants show that no test was lost on the way.

Everything runs on copies in temporary directories; the tree itself is never changed.

Usage: mutants.py [--tree old|new] [--only ID ...] [--jobs 2]  break each behaviour; exit code 1 if a mutant survives
       mutants.py --search tests/core [--only ID ...]          look for other tests that fail, and name these
       mutants.py --relocate                                   find source and tests that were moved
       mutants.py --list                                       say which behaviours are broken, and how many of each
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

ROOT: Final = Path(__file__).resolve().parents[1]
COPIED: Final = ("src", "tests", "docs", "examples", "benchmarks", "scripts", "pyproject.toml", "README.md")
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider")
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::\w+)*)", re.MULTILINE)
TOKEN: Final = re.compile(r"(?:self\.)?\w+|[^\w\s]")
BASELINE_SECONDS: Final = 1200.0
MOST_FOUND: Final = 3
"""How many tests a search names for each mutant at most."""

Tree = Literal["old", "new"]


class Place(msgspec.Struct, omit_defaults=True):
    """Where a behaviour is written and tested.

    Attributes:
        file: The module, from the root of the repository.
        within: The function or class in which the snippet stands; it helps to find the snippet again.
        find: A snippet that occurs exactly once in the module.
        replace: What is put in its place.
        tests: Node ids of the tests that fail then.
    """

    file: str = ""
    within: str = ""
    find: str = ""
    replace: str | None = None
    tests: tuple[str, ...] = ()

    def over(self, other: Place) -> Place:
        """Return this place, with what it leaves out taken from another one."""
        replace = other.replace if self.replace is None else self.replace
        return Place(
            self.file or other.file,
            self.within or other.within,
            self.find or other.find,
            replace,
            self.tests or other.tests,
        )

    def beside(self, other: Place) -> Place:
        """Return only that part of this place in which it differs from another one."""
        return Place(
            "" if self.file == other.file else self.file,
            "" if self.within == other.within else self.within,
            "" if self.find == other.find else self.find,
            None if self.replace == other.replace else self.replace,
            () if self.tests == other.tests else self.tests,
        )


class Mutant(msgspec.Struct):
    """One behaviour, and how it is broken.

    Attributes:
        id: Layer and behaviour in a few words.
        breaks: The behaviour that does not hold any more, in one sentence.
        old: Its place before modules were merged.
        new: Its place now, as far as it differs.
    """

    id: str
    breaks: str
    old: Place
    new: Place

    def place(self, tree: Tree) -> Place:
        """Return its whole place in a tree."""
        return self.old if tree == "old" else self.new.over(self.old)

    def put(self, tree: Tree, place: Place) -> None:
        """Set its place in a tree."""
        if tree == "old":
            self.old = place
        else:
            self.new = place.beside(self.old)


class Ran(NamedTuple):
    """How a run of pytest ended: its exit code (None if it took too long), the failed tests, the end of its output."""

    code: int | None
    failed: list[str]
    output: str
    seconds: float


class Runner:
    """Runs pytest on copies of the tree, one run for each copy at a time."""

    def __init__(self, root: Path, jobs: int, folder: Path) -> None:
        """Make the copies in ``folder``."""
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False
        for number in range(jobs):
            copy = folder / f"copy{number}"
            copy_tree(root, copy)
            self._free.put(copy)

    def run(self, tests: Iterable[str], options: Sequence[str], seconds: float, place: Place | None = None) -> Ran:
        """Run tests, on a mutated copy if a place is given."""
        copy = self._free.get()
        try:
            with mutated(copy, place):
                return self._run(copy, [*PYTEST, *options, f"--basetemp={copy}-files", *tests], seconds)
        finally:
            self._free.put(copy)

    def _run(self, copy: Path, command: list[str], seconds: float) -> Ran:
        began = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
        with self._lock:
            if self._ended:
                return Ran(None, [], "", 0.0)
            process = subprocess.Popen(
                command,
                cwd=copy,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=seconds)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            kill(process)
            output, code = process.communicate()[0], None
        finally:
            with self._lock:
                self._running.discard(process)
        failed = list(dict.fromkeys(FAILED.findall(output)))
        return Ran(code, failed, output[-600:], time.perf_counter() - began)

    def end(self) -> None:
        """Kill what is still running, and start nothing more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads its own group, and its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def copy_tree(root: Path, copy: Path) -> None:
    """Copy what the tests need."""
    copy.mkdir()
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)


@contextmanager
def mutated(copy: Path, place: Place | None) -> Generator[None]:
    """Break a behaviour in a copy for a while."""
    if place is None:
        yield
        return
    path = copy / place.file
    whole = path.read_text(encoding="utf-8")
    try:
        rewrite(path, whole.replace(place.find, place.replace or ""))
        yield
    finally:
        rewrite(path, whole)


def rewrite(path: Path, text: str) -> None:
    """Write a module, and drop its compiled form: size and second of the change may be the same as before."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


@contextmanager
def copies(root: Path, jobs: int) -> Generator[Runner]:
    """Provide copies of a tree, and remove them with everything that still runs in them."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        runner = Runner(root, jobs, Path(folder))
        try:
            yield runner
        finally:
            runner.end()


# -- breaking ----------------------------------------------------------------------------------------------------------


def obstacle(root: Path, place: Place, tests: Mapping[str, Sequence[str]] | None) -> str | None:
    """Return why a mutant cannot be applied to a tree, or its tests not be run, or None."""
    path = root / place.file
    if not path.is_file():
        return f"there is no {place.file}"
    count = path.read_text(encoding="utf-8").count(place.find)
    if count != 1:
        return f"its snippet occurs {count} times in {place.file}"
    if tests is None:
        return None
    missing = [test for test in place.tests if test not in tests.get(test.rsplit("::", 1)[-1], ())]
    if missing or not place.tests:
        return f"there is no test {missing[0]}" if missing else "it names no test"
    return None


def red_tests(runner: Runner, places: Sequence[Place], jobs: int) -> set[str]:
    """Run all named tests on the unbroken tree; return those that fail even there."""
    named = sorted({test for place in places for test in place.tests})
    files = sorted({test.split("::")[0] for test in named})
    parts = [[test for test in named if files.index(test.split("::")[0]) % jobs == part] for part in range(jobs)]

    def run(part: Sequence[str]) -> Ran:
        return runner.run(part, (), BASELINE_SECONDS)

    with ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(run, [part for part in parts if part]))
    red: set[str] = set()
    for ran in runs:
        red.update(ran.failed)
        if ran.code not in (0, 1):
            raise SystemExit(
                f"the named tests could not be run on the unbroken tree (exit code {ran.code}):\n{ran.output}"
            )
    return red


def verdict(ran: Ran) -> tuple[bool, str]:
    """Return whether a mutant was killed, and how the run is described."""
    if ran.code is None:
        return True, "killed by time-out: the tests did not end"
    if ran.code == 1 and ran.failed:
        return True, f"killed by {ran.failed[0]}"
    if ran.code == 0:
        return False, "SURVIVED"
    return False, f"NOT RUN: pytest ended with exit code {ran.code}\n{ran.output}"


def attack(mutants: Sequence[Mutant], root: Path, tree: Tree, jobs: int, seconds: float) -> bool:
    """Break one behaviour after the other; return whether the tests noticed every time."""
    began = time.perf_counter()
    tests = test_functions(root)
    told: Counter[str] = Counter()
    usable: list[tuple[Mutant, Place]] = []
    for mutant in mutants:
        place = mutant.place(tree)
        why = obstacle(root, place, tests)
        if why is None:
            usable.append((mutant, place))
        else:
            told["not applied"] += 1
            print(f"{mutant.id}: NOT APPLIED: {why}", flush=True)
    with copies(root, jobs) as runner:
        red = red_tests(runner, [place for _, place in usable], jobs) if usable else set[str]()
        for test in sorted(red):
            print(f"{test} fails on the unbroken tree", flush=True)

        def check(each: tuple[Mutant, Place]) -> None:
            mutant, place = each
            green = [test for test in place.tests if test not in red]
            ran = runner.run(green, ("-x",), seconds, place) if green else Ran(5, [], "no named test passes", 0.0)
            killed, how = verdict(ran)
            told["timed out" if ran.code is None else "killed" if killed else "survived or not run"] += 1
            print(f"{mutant.id}: {how} ({ran.seconds:.1f} s)", flush=True)
            if not killed:
                print(f"    {mutant.breaks}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(check, usable))
    took = time.perf_counter() - began
    print(f"{len(mutants)} mutants in {took:.0f} s: {', '.join(f'{count} {what}' for what, count in told.items())}")
    return not red and told["killed"] + told["timed out"] == len(mutants)


def search(mutants: Sequence[Mutant], root: Path, tree: Tree, jobs: int, where: Sequence[str]) -> bool:
    """Name for each mutant the first tests under some paths that fail; return whether there are some for each."""
    lost: list[str] = []
    with copies(root, jobs) as runner:

        def look(mutant: Mutant) -> None:
            place = mutant.place(tree)
            why = obstacle(root, place, None)
            if why is not None:
                lost.append(mutant.id)
                print(f"{mutant.id}: NOT APPLIED: {why}", flush=True)
                return
            ran = runner.run(where, (f"--maxfail={MOST_FOUND}",), BASELINE_SECONDS, place)
            if ran.code == 1 and ran.failed:
                mutant.put(tree, msgspec.structs.replace(place, tests=tuple(ran.failed)))
            else:
                lost.append(mutant.id)
            print(f"{mutant.id}: {', '.join(ran.failed) or verdict(ran)[1]} ({ran.seconds:.1f} s)", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(look, mutants))
    return not lost


# -- relocating --------------------------------------------------------------------------------------------------------


def named_blocks(text: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield functions and classes of a module by their dotted names."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield f"{prefix}{child.name}", child
                yield from below(child, f"{prefix}{child.name}.")
            else:
                yield from below(child, prefix)

    yield from below(ast.parse(text), "")


def block_at(text: str, place: int) -> str:
    """Return the dotted name of the innermost function or class around a position in a module."""
    line = text.count("\n", 0, place) + 1
    found = ""
    for name, node in named_blocks(text):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = name
    return found


def test_functions(root: Path) -> dict[str, list[str]]:
    """Return the node ids of all tests by the names of their functions, of test classes and of files by their own."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        found.setdefault(file, []).append(file)
        for name, _ in named_blocks(path.read_text(encoding="utf-8")):
            found.setdefault(name.rsplit(".", 1)[-1], []).append(f"{file}::{name.replace('.', '::')}")
    return found


def relocate(mutants: Sequence[Mutant], root: Path) -> bool:
    """Find the place of every mutant in the tree as it is; return whether all were found."""
    sources = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / "src").rglob("*.py"))
    }
    tests = test_functions(root)
    lost: list[str] = []
    for mutant in mutants:
        place = mutant.place("new")
        source, said = relocated_source(place, sources)
        if source is None:
            lost.append(f"{mutant.id}: {said}")
        elif said:
            print(f"{mutant.id}: {said}")
        here = source or place
        moved: list[str] = []
        for test in place.tests:
            where, said = relocated_test(test, tests)
            if where is None:
                lost.append(f"{mutant.id}: {said}")
            else:
                moved.append(where)
        mutant.put("new", msgspec.structs.replace(here, tests=tuple(moved) or place.tests))
    for line in lost:
        print(f"NOT PLACED {line}")
    print(f"{len(mutants)} mutants, {len(lost)} snippets or tests not placed")
    return not lost


def relocated_source(place: Place, sources: Mapping[str, str]) -> tuple[Place | None, str]:
    """Return where a snippet stands now and a remark, or None and where to look."""
    candidates = [file for file, text in sources.items() if text.count(place.find) == 1]
    bare = place.within.rsplit(".", 1)[-1]
    homes = {file: block_at(sources[file], sources[file].index(place.find)) for file in candidates}
    alike = [file for file, home in homes.items() if home.rsplit(".", 1)[-1] == bare]
    file = next((each for each in (alike, candidates) if len(each) == 1), [""])[0]
    if place.file in alike or (place.file in candidates and not file):
        file = place.file
    if file:
        remark = (
            ""
            if file in alike
            else f"look at it: it stood in {place.within!r}, and stands in {homes[file]!r} of {file}"
        )
        return msgspec.structs.replace(place, file=file, within=homes[file]), remark
    if not candidates:
        turned = renamed(place, sources)
        if turned is not None:
            return turned, f"look at it: `{place.find}` is `{turned.find}` in {turned.file}"
    several = f"its snippet stands in {', '.join(candidates)}; " if candidates else "its snippet is nowhere; "
    return None, several + whereabouts(place, sources, bare)


def renamed(place: Place, sources: Mapping[str, str]) -> Place | None:
    """Find a snippet that is laid out in another way now, or in which at most two names are others.

    ``self.`` and leading underscores count as no difference, so a method that became a function is found, too.
    """
    wanted = [match[0] for match in TOKEN.finditer(place.find)]
    found: list[tuple[str, int, int, dict[str, str]]] = []
    for file, text in sources.items():
        tokens = list(TOKEN.finditer(text))
        bare = [_bare(token[0]) for token in tokens]
        for start in range(len(tokens) - len(wanted) + 1):
            names = _names_changed(wanted, bare[start : start + len(wanted)])
            if names is not None:
                part = tokens[start : start + len(wanted)]
                written = dict(zip(wanted, (token[0] for token in part), strict=True))
                found.append((file, part[0].start(), part[-1].end(), written))
    if len(found) != 1:
        return None
    file, start, end, written = found[0]
    text = sources[file]
    find = text[start:end]
    lines = TOKEN.sub(lambda token: written.get(token[0], token[0]), place.replace or "").split("\n")
    by = _margin(find.split("\n")[-1]) - _margin(place.find.split("\n")[-1]) if "\n" in find else 0
    if place.find[:1].isspace():  # what stands before the first token belongs to the snippet, too
        start = text.rindex("\n", 0, start) + 1
        find = text[start:end]
    replace = "\n".join([lines[0], *(" " * max(_margin(line) + by, 0) + line.lstrip() for line in lines[1:])])
    if text.count(find) != 1:
        return None
    return msgspec.structs.replace(place, file=file, within=block_at(text, start), find=find, replace=replace)


def _bare(token: str) -> str:
    return token.removeprefix("self.").lstrip("_") or token


def _names_changed(wanted: Sequence[str], there: Sequence[str]) -> dict[str, str] | None:
    """Return which names differ, or None if more differs than a few names."""
    turned: dict[str, str] = {}
    changed: dict[str, str] = {}
    for old, new in zip(map(_bare, wanted), there, strict=True):
        if turned.setdefault(old, new) != new or (old != new and not (old.isidentifier() and new.isidentifier())):
            return None  # a name that is two names now would have to be renamed by hand
        if old != new:
            changed[old] = new
        if len(changed) > 2:
            return None
    names = {name for name in turned if name.isidentifier()}
    return changed if 2 * len(changed) <= len(names) else None


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def whereabouts(place: Place, sources: Mapping[str, str], bare: str) -> str:
    """Return where the function of a snippet is now, and the line that is most like the snippet's first one."""
    homes = [
        f"{file}:{node.lineno}"
        for file, text in sources.items()
        for name, node in named_blocks(text)
        if name.rsplit(".", 1)[-1] == bare and isinstance(node, ast.stmt)
    ]
    said = f"{bare!r} is in {', '.join(homes[:4])}" if homes else f"there is no {bare!r} any more"
    wanted = max(place.find.split("\n"), key=len).strip()
    lines = {
        line.strip(): f"{file}:{number}"
        for file, text in sources.items()
        for number, line in enumerate(text.split("\n"), start=1)
        if len(line) > len(wanted) // 2
    }
    near = get_close_matches(wanted, lines, n=1, cutoff=0.6)
    return f"{said}; it was `{wanted}`" + (f", and {lines[near[0]]} is most like it: `{near[0]}`" if near else "")


def relocated_test(test: str, tests: Mapping[str, Sequence[str]]) -> tuple[str | None, str]:
    """Return the node id that a test has now, or None and what is known of it."""
    file, _, _ = test.partition("::")
    name = test.rsplit("::", 1)[-1]
    known = list(tests.get(name, ()))
    if test in known:
        return test, ""
    for same in (
        [each for each in known if each.split("::")[0] == file],
        [each for each in known if Path(each.split("::")[0]).name == Path(file).name],
        [each for each in known if Path(each.split("::")[0]).parent == Path(file).parent],
        known,
    ):
        if len(same) == 1:
            return same[0], ""
    if known:
        return None, f"{name} may be any of {', '.join(known)}"
    near = get_close_matches(name, tests, n=2, cutoff=0.7)
    return None, f"there is no test {test}" + (f"; similar: {', '.join(near)}" if near else "")


# -- the command -------------------------------------------------------------------------------------------------------


def chosen(mutants: Sequence[Mutant], only: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose ids are given, or begin with what is given; all if nothing is given."""
    unknown = [each for each in only if not any(mutant.id.startswith(each) for mutant in mutants)]
    if unknown:
        raise SystemExit(f"there is no mutant {', '.join(unknown)}")
    return [mutant for mutant in mutants if not only or mutant.id.startswith(tuple(only))]


def listing(mutants: Sequence[Mutant]) -> str:
    """Return all mutants as text."""
    counts = Counter(mutant.id.split("-")[0] for mutant in mutants)
    lines = [f"{mutant.id}: {mutant.breaks}" for mutant in mutants]
    return "\n".join([*lines, "", ", ".join(f"{layer} {count}" for layer, count in counts.items())])


def write(path: Path, mutants: Sequence[Mutant]) -> None:
    """Write the data file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(mutants), indent=2) + b"\n")


def main() -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", choices=("old", "new"), default="new", help="which place of the mutants to take")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="ids of mutants, or what they begin with")
    parser.add_argument("--jobs", type=int, default=2, help="how many run side by side")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for the tests of one mutant")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree; for example a checkout of an older commit")
    parser.add_argument("--data", type=Path, default=Path(__file__).with_suffix(".json"), help="the data file")
    parser.add_argument("--search", nargs="+", default=[], metavar="PATH", help="tests of which some are to be named")
    parser.add_argument("--relocate", action="store_true", help="find source and tests that were moved")
    parser.add_argument("--list", action="store_true", help="say what is broken")
    given = parser.parse_args()
    data: Path = given.data
    tree: Tree = given.tree
    root: Path = given.root.resolve()
    mutants = msgspec.json.decode(data.read_bytes(), type=list[Mutant])
    some = chosen(mutants, given.only)
    if given.list:
        print(listing(some))
        return 0
    if given.relocate:
        fine = relocate(some, root)
        write(data, mutants)
    elif given.search:
        fine = search(some, root, tree, given.jobs, given.search)
        write(data, mutants)
    else:
        fine = attack(some, root, tree, given.jobs, given.timeout)
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
