"""Measure the shape of the code base: how much there is, how scattered it is, how often it repeats itself.

``shape.py`` prints a table with the figures at commit 603c236 (measured by this script), those of this tree, and the
goals. ``--circles`` prints the import circles between modules and exits 1 if there is one; ``--duplicates`` prints the
places with the same lines. Nothing is changed and nothing is cached.

Usage: shape.py [--circles | --duplicates] [--test-seconds N]
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeGuard

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "watchkeeper"

HIGHER_FOLDERS: Final = (
    *("adapters", "app", "cli", "judging", "observers", "store", "subagents", "testing"),  # at 603c236
    *("contained_sdk", "local"),  # split off these
)
"""All other folders are layers 0 to 5: a new one counts there until it is named here."""

MOVED_UP: Final = ("judging/command_checker.py",)
"""Files that came from layers 0 to 5 and stand higher now. To move code up makes nothing smaller, so they still count;
whoever moves another file up adds it here."""

TOUR: Final = re.compile(r"^## A tour of .*?(?=^## )", re.MULTILINE | re.DOTALL)
STOP_OF_TOUR: Final = re.compile(r"^\| *\d+ *\| `([^`]+\.py)`", re.MULTILINE)
STOPS_OF_WHOLE_TOUR: Final = 10
"""A tour with fewer stops does not show the whole way of a request; the reading path is the one below then."""

READING_PATH: Final = (
    ("kernel/turn_machine.py",),
    ("loop/driver.py", "runtime/driver.py"),
    ("loop/model_calls.py", "runtime/model_calls.py"),
    ("loop/tool_calls.py", "runtime/tool_calls.py"),
    ("containment/execution_context.py",),
    ("containment/calls.py", "containment/passage.py"),
    ("accounting/admission.py", "containment/admission.py"),
    ("accounting/ledger.py", "containment/ledger.py"),
    ("containment/in_flight.py", "containment/flight.py"),
    ("session/session.py",),
    ("session/journal.py",),
)
"""Where each station of the reading path may be; the first path that exists counts."""

NO_CODE: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
SAME_LINES: Final = 6

Graph = Mapping[str, Mapping[str, int]]
"""Each module's imports, with the line of the first one."""


class Row(NamedTuple):
    """One line of the table."""

    what: str
    old: str
    now: str
    goal: str


class Span(NamedTuple):
    """Lines of a file, both ends included."""

    file: str
    first: int
    last: int


class Same(NamedTuple):
    """Two places with the same lines; ``length`` is how many of them were compared."""

    length: int
    one: Span
    other: Span


def sources(folder: Path) -> dict[str, str]:
    """Return the text of every Python file below a folder, by its path from there."""
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in sorted(folder.rglob("*.py"))}


# --- lines ------------------------------------------------------------------------------------------------------------


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module and of its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def code_lines(text: str) -> int:
    """Count the lines with a token that is neither comment nor docstring."""
    skipped = {(node.lineno, node.col_offset) for node in docstrings(ast.parse(text))}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NO_CODE or (token.type == tokenize.STRING and token.start in skipped):
            continue
        lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def length(text: str) -> int:
    """Count all lines."""
    return len(text.splitlines())


def folder_lengths(files: Mapping[str, str]) -> Counter[str]:
    """Count the lines of each folder's own files."""
    counts: Counter[str] = Counter()
    for path, text in files.items():
        counts[path.rpartition("/")[0]] += length(text)
    return counts


# --- import circles ---------------------------------------------------------------------------------------------------


def import_graph(files: Mapping[str, str], package: str) -> Graph:
    """Return what each module imports of its package, also in functions and under ``TYPE_CHECKING``.

    Args:
        files: Texts by path from the package's folder.
        package: Its name.
    """
    names = {module_name(path, package): path for path in files}
    graph: dict[str, dict[str, int]] = {}
    for name, path in names.items():
        imports = graph[name] = {}
        for line, wanted in imported(ast.parse(files[path])):
            # "from a import b" means the module a.b if there is one, else the name b of a.
            target = next((part for part in (wanted, wanted.rpartition(".")[0]) if part in names), None)
            if target is not None and target != name:
                imports.setdefault(target, line)
    return graph


def module_name(path: str, package: str) -> str:
    """Return the dotted name of a file of the package."""
    parts = (package, *path.removesuffix(".py").split("/"))
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything that is imported; imports are absolute here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph.get(name, ()):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            place = stack.index(name)
            if len(stack) - place > 1:
                found.append(sorted(stack[place:]))
            del stack[place:]

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def describe_circle(circle: Sequence[str], graph: Graph) -> str:
    """Return the modules of a circle with the imports that close it."""
    imports = [
        f"    {name}:{line} imports {target}"
        for name in circle
        for target, line in graph[name].items()
        if target in circle
    ]
    return "\n".join([f"A circle of {len(circle)} modules:", *imports])


# --- the same lines ---------------------------------------------------------------------------------------------------


def compared_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are compared, with their numbers.

    White space is folded. Blank, comment, docstring and import lines and lone punctuation are passed over; so is the
    table of a front (``public_names``), which ``render_fronts.py`` writes from its imports.
    """
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) or is_front(node)]
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    skipped: set[int] = set()
    for node in (*imports, *texts):
        skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    folded = ((number, " ".join(line.split())) for number, line in enumerate(text.splitlines(), 1))
    return [
        (number, line)
        for number, line in folded
        if number not in skipped and not line.startswith("#") and re.search(r"\w", line)
    ]


def is_front(node: ast.AST) -> TypeGuard[ast.Assign]:
    """Return whether a statement is the table of the public names of a front."""
    call = node.value if isinstance(node, ast.Assign) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "public_names"


def duplicates(files: Mapping[str, str], least: int = SAME_LINES) -> list[Same]:
    """Return every two places with the same lines, `least` or more, as long as they are the same; longest first."""
    lines = {path: compared_lines(text) for path, text in files.items()}
    windows: defaultdict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, numbered in lines.items():
        for start in range(len(numbered) - least + 1):
            windows[tuple(line for _, line in numbered[start : start + least])].append((path, start))
    found: list[Same] = []
    for places in windows.values():
        for position, (path, start) in enumerate(places):
            for other, there in places[position + 1 :]:
                one, two = lines[path][start:], lines[other][there:]
                if start and there and lines[path][start - 1][1] == lines[other][there - 1][1]:
                    continue  # part of a longer run that began earlier
                count = common(one, two)
                found.append(Same(count, span(path, one[:count]), span(other, two[:count])))
    return sorted(found, key=lambda same: (-same.length, same))


def common(one: Sequence[tuple[int, str]], other: Sequence[tuple[int, str]]) -> int:
    """Count the lines that are the same from the start."""
    pairs = zip(one, other, strict=False)
    return next((count for count, (left, right) in enumerate(pairs) if left[1] != right[1]), min(len(one), len(other)))


def span(path: str, numbered: Sequence[tuple[int, str]]) -> Span:
    """Return from which line to which these lines of a file go."""
    return Span(path, numbered[0][0], numbered[-1][0])


def places(found: Iterable[Same]) -> set[Span]:
    """Return each place once, however many others are the same."""
    return {place for same in found for place in (same.one, same.other)}


# --- tests ------------------------------------------------------------------------------------------------------------


PUBLIC: Final = frozenset({"_exit", "_replace"})
"""Documented names of the standard library: of `os`, and of every named tuple."""


def private_reads(text: str) -> int:
    """Count the reads of an attribute ``_name`` of anything but ``self`` and ``cls``; those of `PUBLIC` are none."""
    return sum(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and node.attr not in PUBLIC
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        for node in ast.walk(ast.parse(text))
    )


# --- what a request visits --------------------------------------------------------------------------------------------


class Visits(NamedTuple):
    """Distinct files and functions that were entered."""

    files: int
    functions: int

    def __str__(self) -> str:
        """Write them as the table does."""
        return f"{self.files} / {self.functions}"


def public(name: str) -> Any:
    """Return a public name of the gate, from whichever package exports it."""
    for package in ("watchkeeper.containment", "watchkeeper.shield"):
        try:
            return getattr(importlib.import_module(package), name)
        except (AttributeError, ModuleNotFoundError):
            continue
    raise SystemExit(f"shape.py: no package exports {name}")


def gate(*, guarded: bool) -> Any:
    """Return an open gate with every limit set, and with one shipped hook and a breaker if it is to be guarded."""
    from watchkeeper import Limits

    limits = Limits(max_cost_usd=10**6, max_total_tokens=10**12, max_steps=10**6, max_retries=10**6)
    if not guarded:
        return public("ExecutionContext")(limits)
    pipeline = public("ShieldPipeline")(pre_dispatch=[public("BudgetWindowHook")(10**6)])
    return public("ExecutionContext")(limits, pipeline, circuit_breaker=public("CircuitBreaker")())


def visits(*, guarded: bool) -> Visits:
    """Count what one model call visits on its way through the gate.

    The call: ``await gate.acall(request, work)`` with an estimate and a hold for landing, whose work waits for one turn
    of the event loop, so that its timer is set, and which is charged what was reserved. Three such calls went before.
    Counted are the distinct files of the package, and the distinct functions in them (code objects, comprehensions and
    lambdas included), that the interpreter enters until the call returns. The goals were set beside an earlier count
    by hand, 15 / 33 and 22 / 63; this one is repeatable.
    """
    entered: set[CodeType] = set()

    package = str(Path(importlib.import_module("watchkeeper").__file__ or "").parent)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            entered.add(frame.f_code)

    async def work(_: object) -> None:
        await asyncio.sleep(0)

    def request() -> object:
        estimate = public("Estimate")
        return public("CallRequest")(
            "llm", "think", estimate(1000, 1000, 256, 100_000, 200), landing=estimate(2000, 1000, 256, 200_000, 200)
        )

    async def measure() -> None:
        context = gate(guarded=guarded)
        requests = [request() for _ in range(4)]
        for warm in requests[1:]:
            await context.acall(warm, work)
        sys.setprofile(note)
        try:
            await context.acall(requests[0], work)
        finally:
            sys.setprofile(None)
        context.close()

    asyncio.run(measure())
    return Visits(len({code.co_filename for code in entered}), len(entered))


# --- the table --------------------------------------------------------------------------------------------------------


def reading_path(files: Mapping[str, str]) -> list[str]:
    """Return the files of the reading path: those of the tour in the docs if it is whole, else those listed above.

    Raises:
        SystemExit: If a file is not there: a path that is shorter only because of that would look like progress.
    """
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tour = TOUR.search(page)
    stops: list[str] = STOP_OF_TOUR.findall(tour.group()) if tour else []
    if len(stops) < STOPS_OF_WHOLE_TOUR:
        stops = [next((path for path in paths if path in files), paths[0]) for paths in READING_PATH]
    missing = [path for path in stops if path not in files]
    if missing:
        raise SystemExit(f"shape.py: the reading path names files that are not there: {', '.join(missing)}")
    return stops


def thousands(count: int) -> str:
    """Write a number of lines as the table does."""
    return f"{count / 1000:.1f}k"


def size_rows(files: Mapping[str, str]) -> Iterator[Row]:
    """Yield how much there is."""
    counts = {path: code_lines(text) for path, text in files.items()}
    below = sum(
        count
        for path, count in counts.items()
        if path in MOVED_UP or ("/" in path and path.partition("/")[0] not in HIGHER_FOLDERS)
    )
    now = f"{thousands(below)} / {thousands(sum(counts.values()))}"
    yield Row("code lines, layers 0 to 5 / all of src", "15.6k / 27.1k", now, "14k / 25k")
    yield Row("modules", "272", f"{len(files)}", "160")
    longest = max(files, key=lambda path: length(files[path]))
    yield Row("lines of the longest module", "400", f"{length(files[longest])} ({longest})", "560")
    (folder, lines), *_ = folder_lengths(files).most_common(1)
    yield Row("lines of the largest folder", "6,625", f"{lines:,} ({folder})", "3,500")


def scatter_rows(files: Mapping[str, str]) -> Iterator[Row]:
    """Yield how far one has to go to follow one thing."""
    yield Row("files / functions a request visits, bare gate", "13 / 30", str(visits(guarded=False)), "7 / 24")
    yield Row("the same with one hook and a breaker", "19 / 59", str(visits(guarded=True)), "12 / 45")
    path = reading_path(files)
    lines = sum(length(files[stop]) for stop in path)
    yield Row("the reading path, lines in files", "3.8k in 12", f"{thousands(lines)} in {len(path)}", "3.5k in 10")


def order_rows(files: Mapping[str, str]) -> Iterator[Row]:
    """Yield what repeats itself, and what depends on what it should not."""
    yield Row("import circles", "1", f"{len(circles(import_graph(files, 'watchkeeper')))}", "0")
    yield Row("places with the same 6 lines or more", "41", f"{len(places(duplicates(files)))}", "15")
    reads = sum(map(private_reads, sources(ROOT / "tests").values()))
    yield Row("private attributes that tests read", "56", f"{reads}", "0")


def print_table(test_seconds: float | None) -> None:
    """Print all rows in columns."""
    files = sources(SOURCE)
    seconds = "not measured" if test_seconds is None else f"{test_seconds:g} s"
    rows = [Row("", "603c236", "now", "goal"), *size_rows(files), *scatter_rows(files), *order_rows(files)]
    rows.append(Row("make test on two idle cores", "235 s", seconds, "180 s"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_circles() -> int:
    """Print the import circles, and return 1 if there is one."""
    graph = import_graph(sources(SOURCE), "watchkeeper")
    found = circles(graph)
    print("\n".join(describe_circle(circle, graph) for circle in found) or f"No import circle in {len(graph)} modules")
    return 1 if found else 0


def print_duplicates() -> int:
    """Print every two places with the same lines."""
    found = duplicates(sources(SOURCE))
    for lines, one, other in found:
        print(f"{lines:3} lines: {one.file}:{one.first}-{one.last} and {other.file}:{other.first}-{other.last}")
    print(f"{len(places(found))} places")
    return 0


def main() -> int:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description="Measure the shape of the code base.")
    parser.add_argument("--circles", action="store_true", help="print the import circles; exit 1 if there is one")
    parser.add_argument("--duplicates", action="store_true", help="print the places with the same lines")
    parser.add_argument("--test-seconds", type=float, metavar="N", help="what `make test` took, for the table")
    options = parser.parse_args()
    asked: Callable[[], int] | None = (
        print_circles if options.circles else print_duplicates if options.duplicates else None
    )
    if asked is not None:
        return asked()
    print_table(options.test_seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
