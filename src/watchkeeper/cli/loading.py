"""Finds what the command line names: an agent in a file, a function in the same file, files to run over.

Whatever is not found is a clear error. An exception of the user's own file during its import is kept, with the part of
its traceback in that file and below.
"""

from __future__ import annotations

import dataclasses
import difflib
import glob
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Final, cast, get_type_hints

import msgspec

from watchkeeper.app.agent import Agent
from watchkeeper.app.options import RunOptions
from watchkeeper.core.errors import ConfigurationError, WatchkeeperError
from watchkeeper.cli.console import CUT
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.text import one_line
from watchkeeper.prompt.sections import MarkdownSection, predicate_parameters
from watchkeeper.prompt.template import Prompt, PromptTemplate

AgentLike = PromptTemplate[Any] | Prompt[Any] | Agent[Any]
AGENTS: Final = (PromptTemplate, Prompt, Agent)


LONGEST_TARGET: Final = 4_000
"""Characters. No system has longer paths, and it raises for them."""


class AgentFileError(ConfigurationError):
    """The agent's file raised while it was imported; its exception is the cause."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An agent from a file.

    Attributes:
        module: The file, imported.
        target: The object that ``FILE:NAME`` names.
        prompt: The prompt of the agent.
    """

    module: ModuleType
    target: AgentLike
    prompt: Prompt[Any]

    @property
    def limits(self) -> Limits:
        """The limits of the agent, or the defaults."""
        return self.target.limits if isinstance(self.target, Agent) else Limits()

    @property
    def options(self) -> RunOptions:
        """The options of the agent: hooks, settings, resources, filesystem."""
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


def agent_file(target: str) -> tuple[Path, str]:
    """Return file and name of ``FILE:NAME``; nothing is executed. The name is empty if only a file is given.

    Raises:
        ConfigurationError: If the form is wrong, or there is no such file.
    """
    file, _, name = target.rpartition(":")
    if len(target) > LONGEST_TARGET:
        raise ConfigurationError(f"{target[:CUT]!r}... is too long; it must be FILE:NAME")
    if not file and os.path.isfile(target):
        return Path(target), ""
    if not file or not name:
        raise ConfigurationError(f"{target!r} must be FILE:NAME, for example triage.py:triage")
    if not os.path.isfile(file):
        raise ConfigurationError(
            f"{file} is a folder, not a file" if os.path.isdir(file) else f"there is no file {file}"
        )
    return Path(file), name


def load(target: str) -> Loaded:
    """Return the agent that ``FILE:NAME`` names.

    Raises:
        ConfigurationError: If the form is wrong, the file or the name is not there (the message lists what is), or
            it names no agent.
        AgentFileError: If the file raised while it was imported.
    """
    path, name = agent_file(target)
    module = load_module(path)
    file = str(path)
    if not name:
        raise ConfigurationError(f"{target!r} does not say which agent: {_listing(file, module)}")
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
    """Import a file, with its folder on the path, as ``python FILE`` would; the module has the file's name.

    Raises:
        ConfigurationError: If it is not Python, or defines something that cannot work.
        AgentFileError: If it raised anything else.
    """
    name = _module_name(path.stem)
    file = path.resolve()
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        sys.path.remove(str(file.parent))
        line = _in_file(error, str(file))
        if isinstance(error, WatchkeeperError):
            raise ConfigurationError(f"{path}{line}: {error}") from error
        raise AgentFileError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _module_name(stem: str) -> str:
    """Return the file's own name, unless another module has it."""
    taken = stem in sys.modules or stem in sys.stdlib_module_names or stem == "watchkeeper"
    return f"agent_{stem}" if taken or not stem.isidentifier() else stem


def _in_file(error: Exception, file: str) -> str:
    """Cut a traceback to the part in the file and below; return the line of the file, in words."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != file:
        place = place.tb_next
    error.__traceback__ = place
    return "" if place is None else f", line {place.tb_lineno}"


def matching_files(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, sorted by path.

    Raises:
        ConfigurationError: If it matches none; the message says whether the folder is there.
    """
    paths = sorted(Path(found) for found in glob.glob(pattern, recursive=True) if os.path.isfile(found))
    if paths:
        return paths
    if os.path.isdir(pattern):
        raise ConfigurationError(f"--each {pattern!r} is a folder; name its files, for example {pattern.rstrip('/')}/*")
    fixed = Path(pattern)
    while glob.has_magic(str(fixed)):
        fixed = fixed.parent
    folder = fixed if fixed != Path(pattern) else fixed.parent
    why = "no file matches" if os.path.isdir(folder) else f"there is no folder {folder}"
    raise ConfigurationError(f"--each {pattern!r}: {why}")


def labels_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its own, or its whole path where two have the same."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


# --- parameters: ``--param key=value`` to what a prompt binds, and items --------------------------------
# Text is read as the type of its field; lists and tables are written as JSON. An unknown key is refused, and missing
# ones are named, before anything is spent.

Values = Mapping[str, str]


def parse_params(pairs: Iterable[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` pairs.

    Raises:
        ConfigurationError: If one has no ``=`` or no key, or repeats a key.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigurationError(f"--param {pair!r} must be KEY=VALUE")
        if key in values:
            raise ConfigurationError(f"--param {key} is given twice")
        values[key] = value
    return values


def bind(prompt: Prompt[Any], values: Values) -> Prompt[Any]:
    """Bind values: to the fields of the prompt's parameter types that they name, else as variables.

    Raises:
        ConfigurationError: If one is unknown or does not fit, or one that is needed is missing.
    """
    _refuse_unknown(prompt, values)
    missing = _open_names(prompt, values)
    if missing:
        more = f" (and {', '.join(missing[1:])})" if missing[1:] else ""
        raise ConfigurationError(f"--param {missing[0]}=... is missing{more}: {prompt.name} needs it")
    return _bound(prompt, values, _types(prompt))


def item_maker(
    prompt: Prompt[Any], values: Values, columns: Collection[str], *, texts: bool
) -> tuple[Prompt[Any], Callable[[str | Values], Any]]:
    """Return the prompt with the values bound, and a function that turns an item into the values that `run_many` binds.

    A text fills the one parameter that no ``--param`` fills; a row's columns fill the parameters of the same names, and
    other columns are ignored. The function raises a ConfigurationError for an item that does not fit.

    Args:
        prompt: The prompt.
        values: The values of ``--param``.
        columns: The columns of all rows.
        texts: Whether there are items that are texts.

    Raises:
        ConfigurationError: If a value does not fit, or the items cannot be bound to the prompt at all.
    """
    _refuse_unknown(prompt, values)
    left, known = _open_names(prompt, values), _known(prompt)
    if texts and len(left) != 1:
        what = f"leaves open: {', '.join(left)}; give all but one with --param" if left else "leaves none open"
        raise ConfigurationError(f"--each fills the one parameter that is left open; {prompt.name} {what}")
    filled = {*known.intersection(columns), *(left if texts else ())}
    twice = sorted(filled & set(values))
    if twice or not filled:
        takes = ", ".join(sorted(known)) or "none"
        why = f"--param {twice[0]}: a column has that name, too" if twice else f"--each has no column of {takes}"
        raise ConfigurationError(why)
    owners = [type_ for type_ in _types(prompt) if known.intersection(columns) & _fields(type_).keys()]
    first = next((type_ for type_ in _types(prompt) if texts and left[0] in _fields(type_)), None)
    owners += [first] if first is not None and first not in owners else []

    def make(item: str | Values) -> Any:
        own = {left[0]: item} if isinstance(item, str) else {name: item[name] for name in item if name in known}
        missing = [name for name in left if name not in own]
        if missing:
            raise ConfigurationError(f"no value for {', '.join(missing)}")
        made = [_made(prompt, owner, {**_own(owner, values), **_own(owner, own)}, "") for owner in owners]
        others = tuple(name for name in own if not any(name in _fields(owner) for owner in owners))
        if others:
            made.append(_of_variables(others)(**{name: own[name] for name in others}))
        return made[0] if len(made) == 1 else tuple(made)

    return _bound(prompt, values, [type_ for type_ in _types(prompt) if type_ not in owners]), make


@cache
def _of_variables(names: tuple[str, ...]) -> type[Any]:
    """Return a type that binds variables of a prompt without declared parameters."""
    return dataclasses.make_dataclass("Item", [(name, str) for name in names], frozen=True)


def _types(prompt: Prompt[Any]) -> tuple[type[Any], ...]:
    """Return the types whose fields are parameters: the declared ones, or those that are bound already."""
    declared = prompt.template.params
    return tuple(prompt.params) if declared is None else tuple(declared)


def _fields(type_: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    return {item.name: item for item in dataclasses.fields(type_) if item.init}


def _own(type_: type[Any], values: Values) -> dict[str, str]:
    return {name: values[name] for name in _fields(type_) if name in values}


def _known(prompt: Prompt[Any]) -> set[str]:
    known = {name for type_ in _types(prompt) for name in _fields(type_)}
    if prompt.template.params is None:
        known |= prompt.template.placeholders
        for section in prompt.template.walk():
            known.update(predicate_parameters(section.enabled) if section.enabled is not None else ())
    return known


def _refuse_unknown(prompt: Prompt[Any], values: Values) -> None:
    known = _known(prompt)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            takes = ", ".join(sorted(known)) or "none"
            raise ConfigurationError(f"--param {name}: {prompt.name} has no such parameter{meant} (it takes: {takes})")


def _open_names(prompt: Prompt[Any], values: Values) -> list[str]:
    """Return the required names that are not given, in the order of the declarations."""
    given = {*values, *prompt.variables}
    types = [type_ for type_ in _types(prompt) if type_ not in prompt.params]
    names = [name for type_ in types for name, item in _fields(type_).items() if _is_required(item)]
    if prompt.template.params is None:
        given |= {name for type_ in prompt.params for name in _fields(type_)}
        names += _placeholders(prompt.template.sections)
    return [name for name in dict.fromkeys(names) if name not in given]


def _placeholders(sections: Iterable[MarkdownSection]) -> Iterator[str]:
    """Yield the placeholders of every section that always shows."""
    for section in sections:
        if section.enabled is None:
            yield from sorted(section.placeholders)
            yield from _placeholders(section.children)


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _bound(prompt: Prompt[Any], values: Values, types: Iterable[type[Any]]) -> Prompt[Any]:
    for type_ in types:
        own = _own(type_, values)
        if own:
            prompt = prompt.bind(_made(prompt, type_, own))
    if prompt.template.params is None:
        taken = {name for type_ in _types(prompt) for name in _fields(type_)}
        prompt = prompt.with_variables(**{name: value for name, value in values.items() if name not in taken})
    return prompt


def _made(prompt: Prompt[Any], type_: type[Any], own: Values, option: str = "--param ") -> Any:
    """Make a value of a parameter type, or change the bound one; ``option`` names the values' source in errors."""
    try:
        hints = get_type_hints(type_, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"the types of {type_.__name__} cannot be read: {error}") from error
    given = {name: _value(text, hints[name], f"{option}{name}={one_line(text, CUT)}") for name, text in own.items()}
    bound = prompt.params.get(type_)
    try:
        return type_(**given) if bound is None else dataclasses.replace(bound, **given)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the parameters do not fit {type_.__name__}: {error}") from error


def _value(text: str, hint: Any, where: str) -> Any:
    """Read text as a type; if that fails, as JSON."""
    try:
        return msgspec.convert(text, hint, strict=False, dec_hook=_path)
    except (ValueError, TypeError, NotImplementedError) as error:
        try:
            return msgspec.json.decode(text, type=hint, dec_hook=_path)
        except (ValueError, RecursionError, TypeError, NotImplementedError):
            raise ConfigurationError(f"{where}: {error}") from error


def _path(type_: type[Any], value: Any) -> Any:
    if issubclass(type_, PurePath) and isinstance(value, str):
        return type_(value)
    raise NotImplementedError(f"a {type_.__name__} cannot be given as text")
