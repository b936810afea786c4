"""A forked process has only the thread that forked; no lock of a module waits there for another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import watchkeeper

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

LOCKED = """
import os, signal, threading
from watchkeeper.core.forks import ModuleLock
lock, held, done = ModuleLock(), threading.Event(), threading.Event()
def hold():
    with lock:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    with lock, lock:
        os._exit(0)
done.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with lock:
    pass
"""

INSIDE = """
import os
from watchkeeper import Agent, tool
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.children.innermost import innermost_run, is_inside_run, run_below
from watchkeeper.containment import enclosing

ends = []
@tool
def forks() -> str:
    \"\"\"Fork.\"\"\"
    gate = enclosing.current()
    assert is_inside_run() and run_below(gate) is not None
    child = os.fork()
    if child == 0:
        os._exit(is_inside_run() or innermost_run() is not None or run_below(gate) is not None)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return "forked"

agent = Agent(ScriptedModel([Call("forks", {}), "done"]), "Fork.", str, tools=[forks])
result = agent.run("Go.", store=None)
assert (result.output, ends) == ("done", [0]), (result.sentence(), ends)
"""


@forks
@pytest.mark.parametrize("script", [LOCKED, INSIDE], ids=["a lock that is held", "a run that goes on"])
def test_a_forked_process_forgets(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_each_lock_of_a_module_is_one_that_a_forked_process_finds_free() -> None:
    plain = re.compile(r"^\w+(: [^=]+)? = threading\.(R?Lock|Condition)\(", re.MULTILINE)
    sources = Path(watchkeeper.__file__).parent.rglob("*.py")
    found = [path.name for path in sources if plain.search(path.read_text(encoding="utf-8"))]
    assert found == ["sqlite.py"]  # the thread that forks holds this one itself
