"""`docs/specification.md` is true: every name and test in it exists, and what is done is proved.

The public names of the five documents are listed here once more, so that none can fall out of the table.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "specification.md"
SOURCES: Final = (
    "deadlines",
    "execution-context",
    "nested-execution",
    "subagent-dispatch",
    "trajectory-observers",
    "first release",
)
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

    number: int
    source: str
    what: str
    where: tuple[str, ...]
    tests: tuple[str, ...]
    status: str
    note: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.what}"


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
        source, what, where, tests, status, note = cells
        found.append(Row(number, source, what, quoted(where), quoted(tests), status, note))
    return found


ROWS: Final = rows()


def is_path(name: str) -> bool:
    """Return whether a name of the table means a file or folder of the project."""
    return "/" in name or (ROOT / name).is_file()


def resolved(name: str) -> Any:
    """Return what a dotted name below the package means."""
    parts = name.split(".")
    for end in range(len(parts), -1, -1):
        try:
            found: Any = importlib.import_module(".".join(["watchkeeper", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"watchkeeper.{name} is not there")


@cache
def named_tests(path: Path) -> frozenset[str]:
    """Return the tests of a file, those in classes with their class, and state machines by the name they run under."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inside = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}::{item.name}" for item in inside}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in names if name.rpartition("::")[2].startswith(("test", "Test")))


def test_every_row_has_a_known_source_and_status() -> None:
    assert [str(row) for row in ROWS if row.source not in SOURCES or row.status not in STATUSES] == []
    assert len({(row.source, row.what) for row in ROWS}) == len(ROWS)


def test_every_name_that_the_table_mentions_exists() -> None:
    missing: list[str] = []
    for row in ROWS:
        for name in row.where:
            try:
                there = (ROOT / name).exists() if is_path(name) else resolved(name) is not None
            except (AttributeError, AssertionError):
                there = False
            if not there:
                missing.append(f"{row}: {name}")
    assert missing == []


def test_every_test_that_the_table_mentions_exists() -> None:
    missing: list[str] = []
    for row in ROWS:
        for test in row.tests:
            file, _, node = test.partition("::")
            path = ROOT / "tests" / file if node else ROOT / file
            if not path.is_file() or (node and node not in named_tests(path)):
                missing.append(f"{row}: {test}")
    assert missing == []


def test_what_is_done_is_somewhere_and_is_proved() -> None:
    assert [str(row) for row in ROWS if row.status != "later" and not (row.where and row.tests)] == []


def test_what_is_missing_says_what_and_why() -> None:
    assert [str(row) for row in ROWS if row.status != "done" and not row.note] == []
    assert [str(row) for row in ROWS if row.status == "later" and (row.tests or row.where)] == []


@pytest.mark.parametrize("name", NAMES.split())
def test_every_public_name_of_the_documents_has_a_row(name: str) -> None:
    text = "\n".join(f"{row.what} {' '.join(row.where)}" for row in ROWS)
    assert re.search(rf"\b{re.escape(name)}\b", text)
