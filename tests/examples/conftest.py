"""What the tests of the inbox example share: the agent as a module, and a copy of its folder to file into."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

INBOX = Path(__file__).parents[2] / "examples" / "inbox"


@pytest.fixture(scope="session")
def agent() -> Iterator[ModuleType]:
    """The agent's file, loaded once, as the command line loads it."""
    spec = importlib.util.spec_from_file_location("inbox_agent", INBOX / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["inbox_agent"] = module
    sys.path.insert(0, str(INBOX))
    spec.loader.exec_module(module)
    sys.path.remove(str(INBOX))
    yield module
    del sys.modules["inbox_agent"], sys.modules["mail"]


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A copy of the example's messages and directory; nothing is filed there yet."""
    for name in ("messages", "directory"):
        shutil.copytree(INBOX / name, tmp_path / "inbox" / name)
    return tmp_path / "inbox"
