"""Finds what the command line names: an agent in a file, its parameters, its items. Every miss is a clear error."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from watchkeeper.app.agent import Agent
from watchkeeper.core.codec import CodecError, convert
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.template import PromptTemplate


def load_module(path: Path) -> ModuleType:
    """Import a file as a module of its own name.

    Raises:
        ConfigurationError: If it is not there or is not Python; errors that the file itself raises pass through.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    name = path.stem if path.stem.isidentifier() else "agent"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def load_target(target: str) -> tuple[ModuleType, Any]:
    """Return the module and the object that ``FILE:NAME`` names.

    Raises:
        ConfigurationError: If the form is wrong or the name is not in the file; the message lists what is.
    """
    file, separator, name = target.rpartition(":")
    if not separator or not name:
        raise ConfigurationError(f"{target!r} must be FILE:NAME, for example triage.py:triage")
    module = load_module(Path(file))
    if not hasattr(module, name):
        found = [key for key, value in vars(module).items() if isinstance(value, PromptTemplate | Prompt | Agent)]
        raise ConfigurationError(f"{file} has no {name!r}; agents in it: {', '.join(found) or 'none'}")
    return module, getattr(module, name)


def prompt_of(target: Any, name: str) -> Prompt[Any]:
    """Return the prompt of a loaded object.

    Raises:
        ConfigurationError: If it is not an agent.
    """
    match target:
        case Prompt():
            return cast("Prompt[Any]", target)
        case PromptTemplate():
            return Prompt(cast("PromptTemplate[Any]", target))
        case Agent():
            return Prompt(cast("Agent[Any]", target).template).with_variables(instructions=target.instructions)
        case _:
            raise ConfigurationError(f"{name} is a {type(target).__name__}, not a PromptTemplate, Prompt or Agent")


def parse_params(pairs: Sequence[str]) -> dict[str, str]:
    """Read ``--param key=value`` options.

    Raises:
        ConfigurationError: If one has no ``=`` or repeats a key.
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


def bind(prompt: Prompt[Any], values: Mapping[str, str]) -> Prompt[Any]:
    """Bind command-line values: to the template's parameter types where their fields are named, else as variables."""
    rest = dict(values)
    for type_ in prompt.template.params or ():
        made = _instance(type_, rest)
        if made is not None:
            prompt = prompt.bind(made)
            for item in fields(type_):
                rest.pop(item.name, None)
    return prompt.with_variables(**rest) if rest else prompt


def items_from(prompt: Prompt[Any], paths: Sequence[Path], values: Mapping[str, str]) -> list[Any]:
    """Return one parameter value per file: the path goes into the one field that no ``--param`` fills.

    Raises:
        ConfigurationError: If the template does not take exactly one such field.
    """
    for type_ in prompt.template.params or ():
        open_fields = [item for item in fields(type_) if item.name not in values and _required(item)]
        if len(open_fields) == 1:
            name = open_fields[0].name
            given = {key: value for key, value in values.items() if key in {item.name for item in fields(type_)}}
            return [_convert(type_, {**given, name: str(path)}) for path in paths]
    raise ConfigurationError(
        f"--each needs a template with params=(SomeDataclass,) that has one field left for the path; "
        f"{prompt.template.name} has params={tuple(type_.__name__ for type_ in prompt.template.params or ())}"
    )


def _required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _instance(type_: type[Any], values: Mapping[str, str]) -> Any:
    names = {item.name for item in fields(type_)}
    given = {key: value for key, value in values.items() if key in names}
    missing = [item.name for item in fields(type_) if item.name not in given and _required(item)]
    if not given and missing:
        return None
    if missing:
        raise ConfigurationError(f"--param {missing[0]}=... is missing: {type_.__name__} needs it")
    return _convert(type_, given)


def _convert(type_: type[Any], values: Mapping[str, str]) -> Any:
    try:
        return convert(dict(values), type_, lenient=True)
    except CodecError as error:
        raise ConfigurationError(f"the parameters do not fit {type_.__name__}: {error}") from error


def matching_files(pattern: str, first: int | None) -> list[Path]:
    """Return the files that a pattern matches, sorted by name.

    Raises:
        ConfigurationError: If it matches none; the message says whether the folder is there.
    """
    import glob

    paths = sorted(Path(found) for found in glob.glob(pattern, recursive=True) if Path(found).is_file())
    if not paths:
        folder = Path(pattern).parent
        why = (
            f"the folder {folder} does not exist"
            if not folder.is_dir() and "*" not in str(folder)
            else "no file matches"
        )
        raise ConfigurationError(f"--each {pattern!r}: {why}")
    return paths if first is None else paths[:first]
