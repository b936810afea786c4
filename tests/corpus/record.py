"""Records runs of the inbox example as trajectories, in the form of the corpus.

``python -m tests.corpus.record scripted 01.txt 02.txt ...``, or ``local``, or one of `STUCK`, and messages: one run for
each message, with the example's script, the bundled model, or a script that gets stuck in the model's place. What is
printed is what happened, call by call; nobody edits it but for the label, which a person gives after reading.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.corpus.corpus import written
from tests.corpus.trace import Trace, TracedCall
from watchkeeper import HostFilesystem, Limits, Prompt, ToolInvoked, run
from watchkeeper.adapters.scripted import Call, ScriptedModel
from watchkeeper.tools.context import is_success

INBOX = Path(__file__).parents[2] / "examples" / "inbox"

STUCK: Final[dict[str, Callable[[str], Call]]] = {
    "forgetful": lambda path: Call("read_message", {"path": path}),
    "hasty": lambda path: Call(
        "file_record",
        {"wants": "They want us to look into it", "quote": "please look into it", "kind": "technical", "hurry": "none"},
    ),
}
"""Models that do one thing and no other: read again and again, or file what they have not read."""


def load_agent() -> Any:
    """Return the example's module."""
    spec = importlib.util.spec_from_file_location("inbox_agent", INBOX / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["inbox_agent"] = module
    sys.path.insert(0, str(INBOX))  # as the command line does: the example has a second file
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(INBOX))
    return module


def record(message: str, kind: str) -> Trace:
    """Run the agent on one message in a copy of its folder; return what it did."""
    agent = load_agent()
    path = f"messages/{message}"
    model: Any = kind
    if kind == "scripted":
        model = ScriptedModel(agent.SCRIPT)
    elif kind in STUCK:
        model = ScriptedModel(lambda request: STUCK[kind](path))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("messages", "directory"):
            shutil.copytree(INBOX / name, Path(folder) / name)
        result = run(
            Prompt(agent.triage).bind(agent.Message(path)),
            model=model,
            filesystem=HostFilesystem(Path(folder)),
            limits=Limits(deadline="10m", max_turns=10),
            store=None,
        )
    calls = [entry.event for entry in result.session.log if isinstance(entry.event, ToolInvoked)]
    return Trace(
        name=f"inbox {Path(message).stem}, {kind} model",
        labels=("healthy",),
        task=f"File the message {path}.",
        origin=f"recorded: {kind} model",
        calls=tuple(
            TracedCall(
                call.name,
                msgspec.to_builtins(call.params),
                call.rendered_output,
                is_success(call),
                round((call.created_at - calls[0].created_at).total_seconds(), 3),
            )
            for call in calls
        ),
    )


if __name__ == "__main__":
    sys.stdout.write(written([record(message, sys.argv[1]) for message in sys.argv[2:]]))
