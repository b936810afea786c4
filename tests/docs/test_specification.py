"""`docs/specification.md` is true: every name in it exists, and what is done is proved by tests that carry its id.

The public names of the five documents are listed here once more, so that none can fall out of the table.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "specification.md"
PREFIXES: Final = ("DL", "EC", "NE", "SD", "TO", "FR")
STATUSES: Final = ("done", "partly", "later")

NAMES: Final = """
    ProviderAdapter RenderedPrompt.deadline PromptDeadlineAssigned ToolContext.deadline PromptEvaluationError
    ExecutionContext ExecutionConfig ChainMetadata WrapOptions ContextSnapshot NodeRecord SafetyEvent Decision
    ShieldPipeline ToolCallContext BudgetWindowHook CircuitBreaker PolicyContext PolicyDecision CancellationToken
    wrap_llm_call wrap_tool_call record_event get_snapshot abort budget_exceeded retry_budget_exceeded circuit_open
    step_limit_exceeded timeout aborted provider_rate_limit provider_error
    NestedExecutionContext NestedEvaluator NestedEvaluationResult NestedEvaluationError NestedExecutionConfig
    iter_sessions_bottom_up derive_nested_deadline derive_child_run_context generate_span_id RunContext BudgetTracker
    Budget TokenUsage DeadlineExceededError BudgetExceededError ThrottleError OutputParseError FeedbackContext Feedback
    FeedbackProvider FeedbackProviderConfig FeedbackTrigger create_nested_context TaskCompletionContext
    TaskCompletionResult LLMTrajectoryFeedback TrajectoryAssessment LLMCompletionVerifier CompletionVerdict
    nested_execution_config max_nesting_depth
    SubagentMode DispatchSubagent DispatchSubagentResult DispatchSubagentError PromptSubagentToolsSection
    dispatch_subagent ToolValidationError
    TrajectoryObserver Observation Assessment ObserverContext ObserverTrigger ObserverConfig ResourceObserver
    StallDetector ErrorCascadeDetector DriftDetector ToolInvoked Append
"""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    id: str
    what: str
    where: tuple[str, ...]
    files: tuple[str, ...]
    status: str
    note: str

    def __str__(self) -> str:
        return f"{self.id}: {self.what}"


def quoted(cell: str) -> tuple[str, ...]:
    """Return what stands between backticks."""
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows() -> list[Row]:
    """Return the table's rows; a line of it that is none is an error."""
    found: list[Row] = []
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("|---|---|---|---|---|---|") + 1
    for number, line in enumerate(lines[start:], start + 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 6, f"line {number} has {len(cells)} cells: {line}"
        name, what, where, files, status, note = cells
        found.append(Row(name, what, quoted(where), quoted(files), status, note))
    return found


ROWS: Final = rows()


def is_path(name: str) -> bool:
    """Return whether a name of the table means a file or folder of the project."""
    return "/" in name or (ROOT / name).is_file()


@cache
def modules_by_name() -> dict[str, list[str]]:
    """Return, for each name that stands at the top level of a module, the modules that define it."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        found.setdefault(module.rpartition(".")[2], []).append(module)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(module)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(module)
    return found


def exists(name: str) -> bool:
    """Return whether a name of the table is defined somewhere in the package."""
    first, *rest = name.split(".")
    for module_name in modules_by_name().get(first, ()):
        module: Any = importlib.import_module(module_name)
        if module_name.rpartition(".")[2] == first and not hasattr(module, first):
            return not rest
        try:
            reduce(getattr, rest, getattr(module, first))
        except AttributeError:
            continue
        return True
    return False


def is_mark(node: ast.expr) -> bool:
    """Return whether an expression is the mark that holds ids; most are not, and none of those is written out."""
    return isinstance(node, ast.Attribute) and node.attr == "spec" and ast.unparse(node) == "pytest.mark.spec"


@cache
def ids_on_tests() -> dict[str, list[str]]:
    """Return, for each id, the tests that carry it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and is_mark(node.func):
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}"
                    found.setdefault(str(argument.value), []).append(f"{path.name}:{node.lineno}")
    return found


def test_every_row_has_an_id_of_its_own_and_a_known_status() -> None:
    wrong = [str(row) for row in ROWS if row.id[:2] not in PREFIXES or not re.fullmatch(r"[A-Z]{2}-\d{3}", row.id)]
    assert wrong + [str(row) for row in ROWS if row.status not in STATUSES] == []
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert len({(row.id[:2], row.what) for row in ROWS}) == len(ROWS)


def test_every_name_that_the_table_mentions_exists() -> None:
    missing = [
        f"{row}: {name}"
        for row in ROWS
        for name in row.where
        if not ((ROOT / name).exists() if is_path(name) else exists(name))
    ]
    assert missing == []


def test_every_file_that_proves_a_row_exists() -> None:
    assert [f"{row}: {file}" for row in ROWS for file in row.files if not (ROOT / file).is_file()] == []


def test_every_id_on_a_test_is_one_of_the_table() -> None:
    known = {row.id for row in ROWS}
    assert {name: places for name, places in ids_on_tests().items() if name not in known} == {}


@pytest.mark.spec("FR-100")
def test_what_is_done_is_somewhere_and_is_proved() -> None:
    proved = ids_on_tests()
    assert [
        str(row) for row in ROWS if row.status != "later" and not (row.where and (row.files or row.id in proved))
    ] == []


def test_what_is_missing_says_what_and_why() -> None:
    assert [str(row) for row in ROWS if row.status != "done" and not row.note] == []
    assert [
        str(row) for row in ROWS if row.status == "later" and (row.files or row.id in ids_on_tests() or row.where)
    ] == []


@pytest.mark.parametrize("name", NAMES.split())
def test_every_public_name_of_the_documents_has_a_row(name: str) -> None:
    text = "\n".join(f"{row.what} {' '.join(row.where)}" for row in ROWS)
    assert re.search(rf"\b{re.escape(name)}\b", text)
