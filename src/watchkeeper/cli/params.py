"""Parameters from the command line: ``--param key=value`` to what a prompt binds, and one item per file.

Text is read as the type of the field that it is for; lists and tables are written as JSON. A key that nothing takes
is refused, like a misspelt limit, and what is missing is named before anything is spent.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, get_type_hints

import msgspec

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.prompt.bindings import predicate_parameters
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.sections import MarkdownSection

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


def items_for(prompt: Prompt[Any], paths: Sequence[Path], values: Values) -> tuple[Prompt[Any], list[Any]]:
    """Return the prompt with the values bound, and one more value to bind per file: its path goes into the one
    parameter that no ``--param`` fills.

    Raises:
        ConfigurationError: If not exactly one parameter is left, or a value does not fit.
    """
    _refuse_unknown(prompt, values)
    left = _open_names(prompt, values)
    if len(left) != 1:
        what = f"leaves open: {', '.join(left)}; give all but one with --param" if left else "leaves none open"
        raise ConfigurationError(f"--each puts the path into the one parameter that is left open; {prompt.name} {what}")
    name = left[0]
    owner = next((type_ for type_ in _types(prompt) if name in _fields(type_)), None)
    if owner is None:
        item = dataclasses.make_dataclass("Item", [(name, str)], frozen=True)
        return _bound(prompt, values, ()), [item(str(path)) for path in paths]
    items = [_made(prompt, owner, {**_own(owner, values), name: str(path)}) for path in paths]
    return _bound(prompt, values, [type_ for type_ in _types(prompt) if type_ is not owner]), items


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
    """Return what must be given and is not, in the order of the declarations."""
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


def _made(prompt: Prompt[Any], type_: type[Any], own: Values) -> Any:
    """Make a value of a parameter type, or change the one that is bound."""
    try:
        hints = get_type_hints(type_, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"the types of {type_.__name__} cannot be read: {error}") from error
    given = {name: _value(text, hints[name], f"--param {name}={text}") for name, text in own.items()}
    bound = prompt.params.get(type_)
    try:
        return type_(**given) if bound is None else dataclasses.replace(bound, **given)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the parameters do not fit {type_.__name__}: {error}") from error


def _value(text: str, hint: Any, where: str) -> Any:
    """Read text as a type; what text alone cannot be, as JSON."""
    try:
        return msgspec.convert(text, hint, strict=False, dec_hook=_path)
    except (msgspec.ValidationError, TypeError, NotImplementedError) as error:
        try:
            return msgspec.json.decode(text, type=hint, dec_hook=_path)
        except (msgspec.DecodeError, TypeError, NotImplementedError):
            raise ConfigurationError(f"{where}: {error}") from error


def _path(type_: type[Any], value: Any) -> Any:
    if issubclass(type_, PurePath) and isinstance(value, str):
        return type_(value)
    raise NotImplementedError(f"a {type_.__name__} cannot be given as text")
