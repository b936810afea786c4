"""Finds what the command line names: an agent in a file, a function beside it, files to go through.

Every miss is a clear error. What the user's own file raises while it is imported is the user's to see: it is kept, with
the part of its traceback that lies in that file and below.
"""

from __future__ import annotations

import glob
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from watchkeeper.app.agent import Agent
from watchkeeper.app.options import RunKeywords
from watchkeeper.core.errors import ConfigurationError, WatchkeeperError
from watchkeeper.core.limits import Limits
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.template import PromptTemplate

AgentLike = PromptTemplate[Any] | Prompt[Any] | Agent[Any]
AGENTS: Final = (PromptTemplate, Prompt, Agent)


class AgentFileError(ConfigurationError):
    """The agent's file raised while it was imported; its exception is the cause."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An agent from a file.

    Attributes:
        module: The file, imported.
        target: What ``FILE:NAME`` names.
        prompt: Its prompt.
    """

    module: ModuleType
    target: AgentLike
    prompt: Prompt[Any]

    @property
    def limits(self) -> Limits:
        """The limits it brings along, or the safe defaults."""
        return self.target.limits if isinstance(self.target, Agent) else Limits()

    @property
    def options(self) -> RunKeywords:
        """The options it brings along: an agent's hooks, settings, resources, filesystem."""
        return self.target.options if isinstance(self.target, Agent) else {}

    def function(self, name: str, option: str) -> Callable[..., Any]:
        """Return a function of the agent's file.

        Raises:
            ConfigurationError: If there is none of that name.
        """
        found = getattr(self.module, name, None)
        if not callable(found):
            raise ConfigurationError(f"{option} {name!r}: {self.module.__file__} has no function of that name")
        return cast("Callable[..., Any]", found)


def load(target: str) -> Loaded:
    """Return the agent that ``FILE:NAME`` names.

    Raises:
        ConfigurationError: If the form is wrong, the file or the name is not there (the message lists what is), or
            it names no agent.
        AgentFileError: If the file raised while it was imported.
    """
    file, _, name = target.rpartition(":")
    if not file and Path(target).is_file():
        raise ConfigurationError(f"{target!r} does not say which agent: {_listing(target, load_module(Path(target)))}")
    if not file or not name:
        raise ConfigurationError(f"{target!r} must be FILE:NAME, for example triage.py:triage")
    module = load_module(Path(file))
    if not hasattr(module, name):
        raise ConfigurationError(f"{file} has no {name!r}: {_listing(file, module)}")
    found: object = getattr(module, name)
    if isinstance(found, AGENTS):
        agent: AgentLike = cast("Any", found)
        return Loaded(module, agent, _prompt(agent))
    kind = type(found).__name__
    raise ConfigurationError(f"{target} is a {kind}, not a PromptTemplate, Prompt or Agent: {_listing(file, module)}")


def _listing(file: str, module: ModuleType) -> str:
    found = [f"{file}:{name}" for name, value in vars(module).items() if isinstance(value, AGENTS)]
    return f"it has {', '.join(found)}" if found else "it has no PromptTemplate, Prompt or Agent"


def _prompt(agent: AgentLike) -> Prompt[Any]:
    if isinstance(agent, Prompt):
        return agent
    if isinstance(agent, Agent):
        return Prompt(agent.template).with_variables(instructions=agent.instructions)
    return Prompt(agent)


def load_module(path: Path) -> ModuleType:
    """Import a file, with its folder on the path, as ``python FILE`` would; the module bears the file's name.

    Raises:
        ConfigurationError: If it is not there, is not Python, or defines something that cannot work.
        AgentFileError: If it raised anything else.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    name = _module_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        sys.path.remove(str(path.resolve().parent))
        _strip(error, str(path.resolve()))
        if isinstance(error, WatchkeeperError):
            raise ConfigurationError(f"{path}{_line(error)}: {error}") from error
        raise AgentFileError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _module_name(stem: str) -> str:
    """Return the file's own name, unless that would put another module out of its place."""
    taken = stem in sys.modules or stem in sys.stdlib_module_names or stem == "watchkeeper"
    return f"agent_{stem}" if taken or not stem.isidentifier() else stem


def _strip(error: Exception, file: str) -> None:
    """Leave of a traceback what lies in the file and below it."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != file:
        place = place.tb_next
    error.__traceback__ = place


def _line(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f", line {frames[0].lineno}" if frames else ""


def matching_files(pattern: str, first: int | None) -> list[Path]:
    """Return the files that a pattern matches, sorted by path; only the first few, if so asked.

    Raises:
        ConfigurationError: If it matches none; the message says whether the folder is there.
    """
    paths = sorted(Path(found) for found in glob.glob(pattern, recursive=True) if Path(found).is_file())
    if paths:
        return paths[:first]
    if Path(pattern).is_dir():
        raise ConfigurationError(f"--each {pattern!r} is a folder; name its files, for example {pattern.rstrip('/')}/*")
    fixed = Path(pattern)
    while glob.has_magic(str(fixed)):
        fixed = fixed.parent
    folder = fixed if fixed != Path(pattern) else fixed.parent
    why = "no file matches" if folder.is_dir() else f"there is no folder {folder}"
    raise ConfigurationError(f"--each {pattern!r}: {why}")


def labels_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its own, or its whole path where two have the same."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
