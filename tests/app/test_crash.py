"""Real deaths (kill -9) before, inside and after what a run does; each time another process goes on with it.

One process makes the victims: it is forked for each boundary, and the fork dies there. What a provider bills and what a
tool does is in a plain file, which survives.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from tests.kit import events
from watchkeeper.accounting.limits import UNLIMITED, Limits
from watchkeeper.adapters.scripted import Call, Calls, Say, ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.core.messages import ToolMessage
from watchkeeper.core.model import ModelRequest
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.judging import CompletionVerdict, LLMCompletionVerifier
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate
from watchkeeper.runtime.parking import PARKED
from watchkeeper.runtime.result import RunResult
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.shield.tool_permission import ToolPermissionHook
from watchkeeper.store.answers import answer, pending
from watchkeeper.store.run_file import RunFile
from watchkeeper.store.run_store import RunStore
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.filesystems import HostFilesystem
from watchkeeper.tools.tool import tool

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

PRICE: Final = ModelPrice.per_million(10, 30)
GOOD: Final = CompletionVerdict((), ("finished",), "It is done.", True, "")
CHILD = PromptTemplate[str](
    ns="t", key="child", sections=(MarkdownSection(title="Task", key="task", template="Write page ${instructions}."),)
)
WRITES_BESIDES: Final = 5
"""Of the boundaries of writes one in so many is tried; `test_resume` and those beside it try every line."""


class World:
    """An agent in a folder; it dies at one of its boundaries."""

    def __init__(self, folder: Path, dies_at: int = 0) -> None:
        self.folder = folder
        self.dies_at = dies_at
        self.passed: list[str] = []
        folder.mkdir(exist_ok=True)

    def boundary(self, name: str) -> None:
        """Die here, if it is the turn of this boundary."""
        self.passed.append(name)
        if len(self.passed) == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, line: str) -> None:
        """Do something that survives the process."""
        self.boundary(f"before {line}")
        with (self.folder / "world.txt").open("a") as file:
            file.write(f"{line}\n")
        self.boundary(f"after {line}")

    def agent(self) -> Agent[str]:
        """Return an agent that looks twice at once, sends, puts, sends a subagent for a file, and mails if it may."""

        @tool(read_only=True, parallel_safe=True)
        def look(number: int) -> str:
            """Look."""
            self.note(f"look {number}")
            return f"saw {number}"

        @tool
        def send(number: int) -> str:
            """Send."""
            self.note(f"send {number}")
            return f"sent {number}"

        @tool(idempotent=True)
        def put(number: int, context: ToolContext) -> str:
            """Put, and ask another model."""
            self.note(f"put {number} {context.idempotency_key}")
            with ExecutionContext(UNLIMITED) as own:
                cost = PRICE.cost(TokenUsage(50, 5)) / 1_000_000_000
                own.call_llm(lambda: self.note("bill 50 5"), WrapOptions(cost_estimate_hint=cost))
            return f"put {number}"

        @tool(idempotent=True)
        def write(number: int, context: ToolContext) -> str:
            """Write two files."""
            assert context.filesystem is not None
            context.filesystem.write_text(f"page{number}.txt", f"page {number}")
            context.filesystem.write_text(f"more{number}.txt", f"more {number}")
            return f"wrote {number}"

        @tool
        def mail(number: int) -> str:
            """Mail."""
            self.note(f"mail {number}")
            return f"mailed {number}"

        return Agent(
            ScriptedModel(self.reply, name="billed", free=False),
            "Work.",
            str,
            tools=[look, send, put, write, mail],
            limits=Limits(deadline=None, max_cost_usd=100, max_turns=40),
            subagents=[CHILD],
            task_completion_checker=LLMCompletionVerifier(),
            shield=ShieldPipeline(tool_dispatch=ToolPermissionHook(ask=["mail"], ask_with=lambda call: None)),
        )

    def options(self) -> dict[str, Any]:
        """Return what its runs need beside."""
        (self.folder / "files").mkdir(exist_ok=True)
        files = HostFilesystem(self.folder / "files")
        more: dict[str, Any] = {"store": self.folder / "store", "filesystem": files}
        return {**more, "prices": {"billed": PRICE}, "on_ask": "park"}

    def reply(self, request: ModelRequest) -> Any:
        """Bill, and return what the model says: it follows from the conversation alone."""
        self.note("bill 100 10")
        used = TokenUsage(100, 10)
        calls, said = self.next(request)
        return Calls(calls, usage=used) if calls else Say(said, usage=used)

    def next(self, request: ModelRequest) -> tuple[tuple[Call, ...], Any]:
        """Return the calls of the next step, or what is said instead."""
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        if request.output is not None and request.output.name == "CompletionVerdict":
            return (), GOOD
        if "Write page" in request.transcript[0].text:
            return ((), "written") if done == 1 else ((Call("write", {"number": 7}),), "")
        names = {"prompt_ns": "t", "prompt_key": "child", "instructions": "7", "mode": "ad_hoc"}
        task = {**names, "expected_artifacts": ["page7.txt", "more7.txt"]}
        steps: dict[int, tuple[Call, ...]] = {
            0: (Call("look", {"number": 1}), Call("look", {"number": 2})),
            2: (Call("send", {"number": 1}),),
            3: (Call("put", {"number": 1}),),
            4: (Call("dispatch_subagents", {"tasks": [task]}),),
            5: (Call("write", {"number": 1}),),
            6: (Call("mail", {"number": 1}), Call("put", {"number": 2})),
            8: (Call("send", {"number": 2}), Call("put", {"number": 3})),
            10: (Call("look", {"number": 3}),),
            11: (Call("send", {"number": 3}),),
        }
        return steps.get(done, ()), "finished"

    def to_the_end(self, run_id: str | None = None) -> RunResult[str]:
        """Run or go on; when it parks, allow what is asked and go on."""
        agent, options = self.agent(), self.options()
        result: RunResult[str] | None = None
        while result is None or (result.stop is not None and result.stop.reason == PARKED):
            if run_id is not None:
                self.boundary("parked")
                self.allow(run_id)
                self.boundary("answered")
            result = agent.run("go", **options) if run_id is None else agent.resume(run_id, **options)
            run_id = str(result.run_id)
        return result

    def allow(self, run_id: str) -> None:
        """Allow what the run asks, if it is parked."""
        with RunStore(self.folder / "store") as store:
            if pending(store):
                answer(store, run_id, allowed=True, by="ann")

    def lines(self) -> list[str]:
        """Return what was done in the world."""
        return (self.folder / "world.txt").read_text().splitlines()

    def state(self) -> dict[str, str]:
        """Return the files that were written."""
        return {path.name: path.read_text() for path in sorted((self.folder / "files").iterdir())}


def live(folder: Path, dies_at: int) -> World:
    """Run to the end or to one's death, with a boundary around every write to a record or to a file."""
    world, write, commit = World(folder, dies_at), RunFile.write, HostFilesystem.write_bytes

    def recorded(file: RunFile, data: bytes, *, last: bool = False) -> None:
        world.boundary("write")
        if len(world.passed) + 1 == world.dies_at:
            write(file, data[: len(data) // 2])
        world.boundary("torn")
        write(file, data, last=last)

    def committed(files: HostFilesystem, path: str, data: bytes) -> Any:
        world.boundary(f"commit {path}")
        done = commit(files, path, data)
        world.boundary(f"committed {path}")
        return done

    with patch.object(RunFile, "write", recorded), patch.object(HostFilesystem, "write_bytes", committed):
        world.to_the_end()
    return world


def make_victims(folder: Path) -> None:
    """Run once undisturbed, then die at the boundaries; in a process of its own, which has no threads."""
    whole = os.fork()
    if not whole:
        world = live(folder / "0", 0)
        (folder / "boundaries.txt").write_text("\n".join(world.passed))
        os._exit(0)
    assert os.waitpid(whole, 0)[1] == 0
    boundaries = (folder / "boundaries.txt").read_text().split("\n")
    gc.freeze()  # or every fork's collections copy what all share
    for number, name in enumerate(boundaries, start=1):
        if name in ("write", "torn") and number % WRITES_BESIDES:
            continue
        child = os.fork()
        if not child:
            live(folder / str(number), number)
            os._exit(0)
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the folders of runs that have died; that of the undisturbed one is ``0``."""
    folder = tmp_path_factory.mktemp("victims")
    code = "import sys; from pathlib import Path; from tests.app.test_crash import make_victims;"
    made = subprocess.run(
        [sys.executable, "-c", f"{code} make_victims(Path(sys.argv[1]))", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder


def billed(lines: list[str]) -> int:
    """Return what the provider has billed, in nano-dollars."""
    calls = [re.fullmatch(r"bill (\d+) (\d+)", line) for line in lines]
    return sum(PRICE.cost(TokenUsage(int(call[1]), int(call[2]))) for call in calls if call is not None)


def result_on_disk(folder: Path) -> tuple[str, bool]:
    """Return the id of the run in a folder, and whether it can be resumed."""
    with RunStore(folder / "store", read_only=True) as store:
        run = next(each for each in store.runs() if each.parent_id is None)
        opened = any(each.tag == "run_opened" for each in store.events(run.run_id))
        done = run.ended_at is not None and run.stop is None
        return run.run_id, opened and not done


def test_nothing_is_done_twice_or_spent_unseen_after_a_death_at_any_boundary(victims: Path) -> None:
    whole = World(victims / "0")
    with RunStore(whole.folder / "store", read_only=True) as store:
        undisturbed = next(each for each in store.runs() if each.parent_id is None)
    assert undisturbed.stop is None
    gone_on = Counter[str]()
    boundaries = (victims / "boundaries.txt").read_text().split("\n")
    for folder in sorted(victims.iterdir()):
        if not folder.is_dir() or folder.name == "0" or not any((folder / "store" / "runs").glob("*.jsonl")):
            continue
        died_at = boundaries[int(folder.name) - 1]
        run_id, is_open = result_on_disk(folder)
        if not is_open:
            continue
        result, world = World(folder).to_the_end(run_id), World(folder)
        assert result.ok, (died_at, result.sentence())
        done = Counter(line for line in world.lines() if not line.startswith(("bill", "look")))
        unknown = [each for each in events(result, ToolInvoked) if each.outcome == "unknown"]
        assert all(count == 1 for line, count in done.items() if not line.startswith("put")), (died_at, done)
        assert result.output == "finished"
        assert len(unknown) <= 1
        if not unknown:
            expected = {line.split(" ")[0] + line.split(" ")[1] for line in whole.lines() if "bill" not in line}
            assert {line.split(" ")[0] + line.split(" ")[1] for line in world.lines() if "bill" not in line} == expected
            assert world.state() == whole.state(), died_at
        usage = result.usage
        assert usage.cost_nanos is not None
        assert usage.cost_nanos >= billed(world.lines()), died_at
        assert usage.cost_nanos - (usage.presumed.cost_nanos or 0) <= billed(world.lines()), died_at
        assert usage.presumed.calls <= 1, died_at
        gone_on[died_at.split(" ")[0]] += 1
    assert gone_on.keys() >= {"write", "torn", "before", "after", "commit", "committed", "parked", "answered"}
